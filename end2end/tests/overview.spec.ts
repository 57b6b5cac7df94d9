// The overview and the lists behind its tiles, and the first minute of a new installation.

import { makeJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { expect, open, row, screenshot, test, waitForLive } from "../fixtures/test";
import { apiClient } from "../fixtures/users";

test.use({ stackName: "overview" });
test.describe.configure({ mode: "serial" });

/** The ids of the jobs that the first test after the sample job creates. */
let good = "";
let bad = "";
let sample = "";

test("a double click runs the sample job once", async ({ admin: page }) => {
  await open(page, "/");
  const button = page.getByRole("button", { name: "Run a sample job" });
  await expect(button).not.toHaveAttribute("aria-disabled", "true");
  await screenshot(page, "overview-first-steps");
  await button.dblclick();
  await expect(page).toHaveURL(/\/occurrences\/[0-9a-f-]{36}$/);
  sample = page.url().split("/").pop() ?? "";
  await expect(page.getByRole("heading", { level: 1 })).toContainText("Sample job");
  await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", /running|completed/);
  await expect(page.locator(".log-lines")).toContainText("step 1 of 10 is done");
  await screenshot(page, "sample-run");
  await open(page, "/occurrences");
  await expect(page.locator("#occurrences tbody tr")).toHaveCount(1);
  await open(page, "/jobs");
  await expect(page.getByRole("link", { name: "Sample job" })).toHaveCount(1);
});

test("a plain form runs the sample job once for a key", async ({ stack, firstAdmin }) => {
  // The previous run of the job must be over, or the overlap policy may refuse the next one.
  await waitForStatus(stack.url, firstAdmin, sample, "completed");
  const browser = await apiClient(stack.url, firstAdmin.session, { accept: "text/html" });
  const post = () => browser.post("/api/run_sample_job", { form: { idempotency_key: "plain" }, maxRedirects: 0 });
  const places = [(await post()).headers().location, (await post()).headers().location];
  expect(places[0]).toMatch(/^\/occurrences\/[0-9a-f-]{36}$/);
  expect(places[0]).not.toBe(`/occurrences/${sample}`);
  expect(places[1]).toBe(places[0]);
  await browser.dispose();
  await waitForStatus(stack.url, firstAdmin, (places[0] ?? "").split("/").pop() ?? "", "completed");
});

test("tiles count the rows of their lists", async ({ admin: page, stack, firstAdmin }) => {
  good = await makeJob(stack.url, firstAdmin, { name: "Works", input: shell("true") });
  bad = await makeJob(stack.url, firstAdmin, { name: "Breaks", input: shell("exit 3") });
  for (const [job, status] of [[good, "completed"], [bad, "failed"], [bad, "failed"]] as const) {
    await waitForStatus(stack.url, firstAdmin, await runJob(stack.url, firstAdmin, job), status);
  }
  for (const window of ["1h", "7d"]) {
    for (const [status, count] of [["completed", 3], ["failed", 2], ["timed-out", 0], ["cancelled", 0], ["skipped", 0]] as const) {
      await open(page, `/?window=${window}`);
      const tile = page.locator(`.tile[data-status="${status}"]`);
      await expect(tile.locator(".tile-value")).toHaveText(String(count));
      await tile.click();
      await expect(page).toHaveURL(`${stack.url}/occurrences?status=${status}&window=${window}`);
      await expect(page.locator("#occurrences tbody tr")).toHaveCount(count);
    }
  }
  await open(page, "/");
  for (const status of ["queued", "running"]) {
    await expect(page.locator(`.tile[data-status="${status}"] .tile-value`)).toHaveText("0");
  }
  await expect(page.locator('.tile[data-status="unknown"]')).toHaveCount(0);
});

test("a running occurrence is counted while it runs", async ({ admin: page, stack, firstAdmin }) => {
  const slow = await makeJob(stack.url, firstAdmin, { name: "Waits", target: "local/demo", input: { steps: 1, durationSeconds: 3600 } });
  await open(page, "/");
  await waitForLive(page);
  const run = await runJob(stack.url, firstAdmin, slow);
  const running = page.locator('.tile[data-status="running"]');
  await expect(running.locator(".tile-value")).toHaveText("1");
  await running.click();
  await expect(page).toHaveURL(`${stack.url}/occurrences?status=running`);
  await expect(row(page, run)).toHaveCount(1);
  await open(page, `/occurrences/${run}`);
  await page.getByRole("button", { name: "Cancel run…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel run" }).click();
  await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "cancelled");
  await open(page, "/");
  await expect(page.locator('.tile[data-status="running"] .tile-value')).toHaveText("0");
  await expect(page.locator('.tile[data-status="cancelled"] .tile-value')).toHaveText("1");
});

test("the window is chosen by links", async ({ admin: page, stack }) => {
  await open(page, "/");
  const windows = page.getByRole("navigation", { name: "Time window" });
  await expect(windows.getByRole("link", { name: "Last hour" })).toHaveAttribute("aria-current", "true");
  await windows.getByRole("link", { name: "Last 24 hours" }).click();
  await expect(page).toHaveURL(`${stack.url}/?window=24h`);
  await expect(page.getByRole("heading", { name: "Ended in the last 24 hours" })).toBeVisible();
  await expect(page.locator('.tile[data-status="failed"]')).toHaveAttribute("href", "/occurrences?status=failed&window=24h");
  await expect(page.locator("svg.bars")).toHaveAttribute("aria-label", /^6 occurrences ended in the last 24 hours/);
});

test("recent failures include those that timed out", async ({ admin: page, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Too slow", input: shell("sleep 60"), timeout: 1 });
  await waitForStatus(stack.url, firstAdmin, await runJob(stack.url, firstAdmin, job), "timed-out");
  await open(page, "/");
  const recent = page.getByRole("region", { name: "Recent failures" });
  await expect(recent).toContainText("Too slow");
  await expect(recent).toContainText("Breaks");
});

test("an invalid address lists nothing", async ({ admin: page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 400/);
  const client = await apiClient(stack.url, firstAdmin.session);
  for (const path of ["/occurrences?status=foo", "/occurrences?job=7", "/occurrences?window=2h", "/occurrences?before=x", "/?window=1y"]) {
    expect((await client.get(path)).status(), path).toBe(400);
    await open(page, path);
    await expect(page.locator("#filter-error")).toBeVisible();
    await expect(page.locator("main table")).toHaveCount(0);
    await expect(page.locator(".tile")).toHaveCount(0);
  }
  await client.dispose();
  await open(page, "/occurrences?status=foo");
  await screenshot(page, "occurrences-invalid-filter");
  await page.locator("#filter-error").getByRole("link").click();
  await expect(page).toHaveURL(`${stack.url}/occurrences`);
  await expect(page.locator("#filter-error")).toHaveCount(0);
  await expect(page.locator("#occurrences tbody tr").first()).toBeVisible();
});

test("the list of one job names it", async ({ admin: page, stack }) => {
  await open(page, `/occurrences?job=${bad}`);
  await expect(page.locator("#occurrences tbody tr")).toHaveCount(2);
  const chip = page.getByRole("navigation", { name: "Filter by job" }).getByRole("link");
  await expect(chip).toContainText("Job: Breaks");
  await page.getByRole("navigation", { name: "Filter by time" }).getByRole("link", { name: "Last 7 days" }).click();
  await expect(page).toHaveURL(`${stack.url}/occurrences?job=${bad}&window=7d`);
  await expect(page.locator("#occurrences tbody tr")).toHaveCount(2);
  await chip.click();
  await expect(page).toHaveURL(`${stack.url}/occurrences?window=7d`);
  await expect(page.getByRole("navigation", { name: "Filter by job" })).toHaveCount(0);
});

test("an empty list names its filter", async ({ admin: page, stack }) => {
  await open(page, `/occurrences?job=${good}&status=failed&window=24h`);
  await expect(page.getByText("No occurrence of Works became Failed in the last 24 hours.")).toBeVisible();
  await page.getByRole("link", { name: "Show all statuses" }).click();
  await expect(page).toHaveURL(`${stack.url}/occurrences?job=${good}&window=24h`);
  await expect(page.locator("#occurrences tbody tr")).toHaveCount(1);
});
