// Failures grouped by cause, their retry and resolution, and dead letters.

import { randomBytes } from "node:crypto";
import { rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { publishDeadLetter } from "../fixtures/dead-letter";
import { makeJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { hasServices } from "../fixtures/stack";
import { expect, open, screenshot, test, waitForLive } from "../fixtures/test";

test.use({ stackName: "runs" });

/** The import jobs fail until this file exists. */
const stock = join(tmpdir(), `milvaion-e2e-${randomBytes(6).toString("hex")}`);

test.afterAll(async () => {
  await rm(stock, { force: true });
});

test("failures are grouped by cause and the list updates live", async ({ admin, firstAdmin, stack, target }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Import parts", input: shell("echo the part list is missing >&2; exit 7") });
  const other = await makeJob(stack.url, firstAdmin, {
    name: "Call the shop",
    target: "local/http-request",
    input: { url: target.at("/broken") },
  });
  await open(admin, "/failed");
  await waitForLive(admin);
  for (const one of [job, job, other, job]) {
    await waitForStatus(stack.url, firstAdmin, await runJob(stack.url, firstAdmin, one), "failed");
  }
  const rows = admin.locator("#failure-groups tbody tr");
  await expect(rows.filter({ hasText: "Import parts" }).locator("td.num")).toHaveText("3");
  await expect(rows.filter({ hasText: "Call the shop" })).toHaveCount(1);
  await screenshot(admin, "failures");

  await admin.getByLabel("Search failures").fill("shop");
  await admin.getByRole("button", { name: "Search" }).click();
  await expect(admin).toHaveURL(/\?q=shop$/);
  await expect(rows).toHaveCount(1);
  await admin.getByLabel("Cause").selectOption("lost");
  await admin.getByRole("button", { name: "Search" }).click();
  await expect(admin).toHaveURL(/\?cause=lost&q=shop$/);
  await expect(admin.getByText("No failure matches")).toBeVisible();
  await admin.getByRole("link", { name: "Show all open failures" }).click();
  await expect(rows.filter({ hasText: "Import parts" })).toHaveCount(1);
});

test("selected failures are retried after confirmation", async ({ admin, firstAdmin, stack }) => {
  const job = await makeJob(stack.url, firstAdmin, {
    name: "Import orders",
    input: shell(`test -e ${stock} || { echo "the stock list is missing" >&2; exit 7; }`),
  });
  for (let run = 0; run < 3; run += 1) {
    await waitForStatus(stack.url, firstAdmin, await runJob(stack.url, firstAdmin, job), "failed");
  }
  await writeFile(stock, "");
  await open(admin, "/failed?q=stock");
  await waitForLive(admin);
  await admin.locator("#failure-groups tbody tr").filter({ hasText: "Import orders" }).locator("a.row-link").click();
  await expect(admin.locator("#failure-count")).toHaveText("3 open of 3 failures");
  const rows = admin.locator("#failures tbody tr");
  await expect(rows).toHaveCount(3);
  await expect(admin.getByRole("button", { name: "Retry all 3…" })).toBeVisible();
  await rows.nth(0).getByRole("checkbox").check();
  await rows.nth(1).getByRole("checkbox").press("Space");
  await admin.getByRole("button", { name: "Retry 2 selected…" }).click();
  const dialog = admin.getByRole("dialog", { name: "Retry 2 failures?" });
  await expect(dialog.getByRole("button", { name: "Cancel" })).toBeFocused();
  await screenshot(admin, "dialog-retry");
  await admin.keyboard.press("Escape");
  await expect(dialog).toBeHidden();
  await expect(rows).toHaveCount(3);

  await admin.getByRole("button", { name: "Retry 2 selected…" }).click();
  await dialog.getByLabel("Reason").fill("the list is back");
  await dialog.getByRole("button", { name: "Retry" }).click();
  await expect(admin.locator(".toast").filter({ hasText: "2 failures were retried." })).toBeVisible();
  await expect(rows).toHaveCount(1);
  await expect(admin.locator("#failure-count")).toHaveText("1 open of 3 failures");

  await admin.getByRole("link", { name: "All", exact: true }).click();
  await expect(rows).toHaveCount(3);
  await expect(admin.locator('#failures tr[data-state="resolved"]')).toHaveCount(2);
  await screenshot(admin, "failures-kind");
  await admin.getByRole("link", { name: "as a new run" }).first().click();
  await expect(admin.locator("#occurrence-status")).toHaveAttribute("data-status", "completed");
  await expect(admin.locator("#facts").locator("..")).toContainText("the list is back");
});

test("a failure is retried with edited input and links to its retry", async ({ admin, firstAdmin, stack, watch }) => {
  watch.expect(/status of 422/);
  const job = await makeJob(stack.url, firstAdmin, { name: "Greet", input: { argv: ["false"] } });
  const run = await runJob(stack.url, firstAdmin, job);
  await waitForStatus(stack.url, firstAdmin, run, "failed");
  await open(admin, `/occurrences/${run}`);
  await admin.getByRole("link", { name: "View failure" }).click();
  await expect(admin).toHaveURL(new RegExp(`/failed/${run}$`));
  await expect(admin.locator("#failure-state")).toHaveText("Open");
  const input = admin.getByLabel("Input as JSON");
  await expect(input).toHaveValue(/"false"/);
  await screenshot(admin, "failure");
  await input.fill('{"argv": [');
  await admin.getByRole("button", { name: "Retry" }).click();
  await expect(admin.locator("#retry-input-error")).toContainText("not JSON");
  await expect(input).toHaveValue('{"argv": [');
  await input.fill('{"argv": "none"}');
  await admin.getByRole("button", { name: "Retry" }).click();
  await expect(admin.locator("#retry-input-error")).toContainText("argv");
  await input.fill('{"argv": ["echo", "mended"]}');
  await admin.getByRole("button", { name: "Retry" }).click();
  await expect(admin).toHaveURL(/\/occurrences\//);
  const made = admin.url().split("/").at(-1) ?? "";
  expect(made).not.toBe(run);
  await expect(admin.locator("#occurrence-status")).toHaveAttribute("data-status", "completed");
  await expect(admin.locator(".log-lines")).toContainText("mended");
  await expect(admin.getByRole("link", { name: run })).toHaveAttribute("href", `/occurrences/${run}`);

  await admin.goto(`/failed/${run}`);
  await expect(admin.locator("#failure-state")).toContainText("Retried");
  await expect(admin.getByRole("link", { name: "as a new run" })).toHaveAttribute("href", `/occurrences/${made}`);
});

test("an unreadable message is shown safely and resolved", { tag: "@all" }, async ({ admin, stack }) => {
  test.skip(!hasServices, "needs the broker's address");
  await open(admin, "/failed");
  await admin.getByRole("link", { name: "Dead letters" }).click();
  await expect(admin.getByText("No dead letters")).toBeVisible();
  const bytes = Buffer.concat([Buffer.from("<script>alert(1)</script>\0\x1b[2J "), Buffer.alloc(3_000, "x")]);
  await publishDeadLetter(process.env.AMQP_URL ?? "", stack.prefix, bytes);
  await publishDeadLetter(process.env.AMQP_URL ?? "", stack.prefix, bytes);
  const deadLetters = admin.locator("#dead-letters > li");
  await expect(async () => {
    await admin.reload();
    await expect(deadLetters).toContainText(["Received 1 more time."], { timeout: 500 });
  }).toPass({ timeout: 20_000 });
  await open(admin, "/failed?tab=dead-letters");
  await expect(deadLetters).toHaveCount(1);
  await expect(deadLetters).toContainText("2.9 KiB");
  await deadLetters.getByText("Message body (beginning)").click();
  await expect(deadLetters.locator("pre").first()).toContainText("<script>alert(1)</script>\\x00\\x1b[2J");
  await screenshot(admin, "dead-letters");
  await deadLetters.getByRole("checkbox").check();
  await admin.getByRole("button", { name: "Resolve 1 selected…" }).click();
  const dialog = admin.getByRole("dialog", { name: "Resolve 1 dead letter?" });
  await dialog.getByLabel("Note").fill("an experiment");
  await dialog.getByRole("button", { name: "Resolve" }).click();
  await expect(admin.locator(".toast").filter({ hasText: "1 dead letter was resolved." })).toBeVisible();
  await expect(deadLetters).toHaveCount(0);
  await admin.getByRole("link", { name: "Resolved" }).click();
  await expect(deadLetters).toContainText("an experiment");
});
