// The overview follows running occurrences, and its window is chosen by links. What its tiles count is tested in
// `server/tests/it/overview.rs`, and the first minute of a new installation in `journey.spec.ts`.

import { makeJob, runJob } from "../fixtures/jobs";
import { expect, open, row, test, waitForLive } from "../fixtures/test";

test.use({ stackName: "runs" });

test("a running occurrence is counted while it runs", async ({ admin: page, stack, firstAdmin }) => {
  const slow = await makeJob(stack.url, firstAdmin, { name: "Waits", target: "local/demo", input: { steps: 1, durationSeconds: 3600 } });
  await open(page, "/");
  await waitForLive(page);
  const running = page.locator('.tile[data-status="running"]');
  const before = Number(await running.locator(".tile-value").textContent());
  const run = await runJob(stack.url, firstAdmin, slow);
  await expect(running.locator(".tile-value")).toHaveText(String(before + 1));
  await running.click();
  await expect(page).toHaveURL(`${stack.url}/occurrences?status=running`);
  await row(page, run).locator("a.row-link").click();
  await page.getByRole("button", { name: "Cancel run…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel run" }).click();
  await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "cancelled");
  await page.getByRole("navigation", { name: "Main", exact: true }).getByRole("link", { name: "Overview" }).click();
  await expect(running.locator(".tile-value")).toHaveText(String(before));
});

test("the window is chosen by links", { tag: "@all" }, async ({ admin: page, stack }) => {
  await open(page, "/");
  const windows = page.getByRole("navigation", { name: "Time window" });
  await expect(windows.getByRole("link", { name: "Last hour" })).toHaveAttribute("aria-current", "true");
  await windows.getByRole("link", { name: "Last 24 hours" }).click();
  await expect(page).toHaveURL(`${stack.url}/?window=24h`);
  await expect(page.getByRole("heading", { name: "Ended in the last 24 hours" })).toBeVisible();
  await expect(page.locator('.tile[data-status="failed"]')).toHaveAttribute("href", "/occurrences?status=failed&window=24h");
  await expect(page.locator("svg.bars")).toHaveAttribute("aria-label", /occurrences ended in the last 24 hours/);
});
