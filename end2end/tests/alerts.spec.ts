// Alerts: a channel and a rule are defined, muted and deleted; a failing job makes an alert fire, and the bell counts it
// until a run completes.

import type { Locator, Page } from "@playwright/test";

import { makeRule } from "../fixtures/alerts";
import { makeJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { expect, open, screenshot, test, waitForLive } from "../fixtures/test";
import { callServerFunction } from "../fixtures/users";

test.use({ stackName: "jobs" });

/** The time within which an alert fires or is resolved. */
const EVALUATED = { timeout: 30_000 };

/** The bell in the top bar. */
function bell(page: Page): Locator {
  return page.locator("#alert-bell");
}

/** Checks that the bell shows the number of the listed alerts. */
async function expectBellToCount(page: Page): Promise<void> {
  await expect(async () => {
    const firing = await page.locator("#alerts tbody tr").count();
    await expect(bell(page)).toHaveAccessibleName(`Alerts: ${firing === 0 ? "none" : firing} firing`, { timeout: 500 });
  }).toPass(EVALUATED);
}

test("a channel is created, tested and deleted", async ({ admin: page, target, watch }) => {
  // Invalid fields.
  watch.expect(/status of 422/);
  await open(page, "/alerts");
  await page.getByRole("navigation", { name: "Alerts, rules and channels" }).getByRole("link", { name: "Channels" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Alert channels");
  await page.getByRole("link", { name: "New channel" }).click();
  await expect(page.getByLabel("Recipients")).toBeVisible();
  await page.getByLabel("Kind").selectOption("slack");
  await expect(page.getByLabel("Recipients")).toBeHidden();
  await expect(page.locator("#f-target-urlSecret-hint")).toContainText("set the environment variable ALERT_SECRET_NAME on every server");
  await page.getByLabel("Kind").selectOption("webhook");
  await page.getByLabel("Address", { exact: true }).fill("ftp://example.org");
  await page.getByRole("button", { name: "Create" }).click();
  await expect(page.locator("#error-summary")).toBeFocused();
  await expect(page.locator("#f-name-error")).toContainText("Enter a name of 1 to 100 printable characters");
  await expect(page.locator("#f-target-url-error")).toContainText("Enter an address such as https://");
  await page.getByLabel("Name", { exact: true }).fill("Hook");
  await page.getByLabel("Address", { exact: true }).fill(target.at("/alerts"));
  await page.getByRole("button", { name: "Create" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Hook");

  await page.getByRole("button", { name: "Send a test" }).click();
  await expect(page.locator("#test-result")).toContainText("The receiver accepted the test message.");
  expect(target.requests.filter(({ path }) => path === "/alerts")).toHaveLength(1);
  await screenshot(page, "alert-channel");

  await page.getByRole("button", { name: "Delete…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete channel" }).click();
  await expect(page.locator(".toast").filter({ hasText: "The alert channel Hook is deleted." })).toBeVisible();
  await expect(page.getByRole("link", { name: "Hook" })).toHaveCount(0);
});

test("a rule is created and muted", async ({ admin: page, watch }) => {
  // Invalid fields.
  watch.expect(/status of 422/);
  await open(page, "/alerts/rules");
  await page.getByRole("link", { name: "New rule" }).click();
  await expect(page.getByRole("group", { name: "Causes of the failure" })).toBeVisible();
  await expect(page.getByLabel("Window (minutes)")).toBeHidden();
  await page.getByLabel("Condition", { exact: true }).selectOption("queue_age");
  await expect(page.getByRole("group", { name: "Causes of the failure" })).toBeHidden();
  await expect(page.getByLabel("Tags (optional)")).toBeHidden();
  await page.getByLabel("Condition", { exact: true }).selectOption("failure_rate");
  await expect(page.getByLabel("Tags (optional)")).toBeVisible();
  await page.getByLabel("Failed occurrences (%)").fill("200");
  await page.getByRole("button", { name: "Create" }).click();
  await expect(page.locator("#error-summary")).toBeFocused();
  await expect(page.locator("#f-condition-percent-error")).toContainText("Enter a percentage from 1 to 100");

  // The values survive a reload.
  await page.getByLabel("Name", { exact: true }).fill("Many failures");
  await page.getByLabel("Failed occurrences (%)").fill("20");
  await expect.poll(() => page.evaluate(() => JSON.stringify(sessionStorage))).toContain("Many failures");
  await page.reload();
  await expect(page.locator("#draft-notice")).toBeVisible();
  await expect(page.getByLabel("Failed occurrences (%)")).toHaveValue("20");
  await page.getByRole("button", { name: "Create" }).click();
  await expect(page.locator(".toast").filter({ hasText: "The alert rule Many failures is created." })).toBeVisible();
  const row = page.getByRole("row").filter({ hasText: "Many failures" });
  await expect(row).toContainText("At least 20% of a job's occurrences fail within 60 min (at least 4 ended).");
  await expect(row).toContainText("Not firing");

  await row.getByRole("link", { name: "Many failures" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Many failures");
  await expect(page.locator("#f-until")).toBeHidden();
  await page.getByLabel("Mute for").selectOption("8h");
  await page.getByRole("button", { name: "Mute", exact: true }).click();
  await expect(page.locator("#unmute")).toContainText("Muted until");
  await expect(page.getByRole("heading", { name: "State", exact: true })).toBeFocused();
  await expect(page.getByRole("button", { name: "Mute", exact: true })).toBeHidden();
  await screenshot(page, "alert-rule-muted");
  await page.getByRole("button", { name: "End the mute" }).click();
  await expect(page.getByRole("button", { name: "Mute", exact: true })).toBeVisible();
  await page.getByLabel("Mute for").selectOption("until");
  await page.locator("#f-until").fill("2020-01-01");
  await page.getByRole("button", { name: "Mute", exact: true }).click();
  await expect(page.locator("#f-until-error")).toContainText("Enter a time in the future");
});

test("a conflicting change of a rule is refused, and the rule is deleted", { tag: "@all" }, async ({ admin: page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 409/);
  const job = await makeJob(stack.url, firstAdmin, { name: "Watched", input: shell("true") });
  const id = await makeRule(stack.url, firstAdmin, "Before the conflict", job);
  await open(page, `/alerts/rules/${id}`);
  await page.getByLabel("Name", { exact: true }).fill("Mine");
  const theirs = { "form[id]": id, "form[name]": "Theirs", "form[kind]": "misfire", "form[severity]": "warning" };
  expect((await callServerFunction(stack.url, firstAdmin.session, "save_alert_rule", theirs)).status).toBe(200);
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.locator("#error-summary")).toContainText("This alert rule was changed in the meantime");
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Mine");
  await open(page, `/alerts/rules/${id}`);
  await page.getByRole("button", { name: "Discard them" }).click();
  await page.getByRole("button", { name: "Delete…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete rule" }).click();
  await expect(page.locator(".toast").filter({ hasText: "The alert rule Theirs is deleted." })).toBeVisible();
  await expect(page.getByRole("row").filter({ hasText: "Theirs" })).toHaveCount(0);
});

test("the bell counts a failing job until a run completes", async ({ admin: page, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Import orders", input: shell("exit 7") });
  const rule = await makeRule(stack.url, firstAdmin, "Order watch", job);
  await open(page, "/alerts");
  await waitForLive(page);
  const failed = await runJob(stack.url, firstAdmin, job);
  await waitForStatus(stack.url, firstAdmin, failed, "failed");

  // Rules that exist from the start may fire too.
  const alert = page.locator("#alerts").getByRole("row").filter({ hasText: "Order watch" });
  await expect(alert).toContainText("Import orders", EVALUATED);
  await expect(alert).toContainText("Critical");
  await expectBellToCount(page);
  await expect(bell(page)).toHaveAttribute("data-status", "failed");
  await expect(alert.getByRole("link", { name: "Latest occurrence" })).toHaveAttribute("href", `/occurrences/${failed}`);
  await screenshot(page, "alerts-firing");

  const mended = await runJob(stack.url, firstAdmin, job, shell("true"));
  await waitForStatus(stack.url, firstAdmin, mended, "completed");
  await expect(alert).toHaveCount(0, EVALUATED);
  await expectBellToCount(page);
  await page.getByRole("link", { name: "Resolved", exact: true }).click();
  await expect(alert).toContainText("Resolved");
  await page.getByLabel("Rule", { exact: true }).selectOption(rule);
  await page.getByRole("button", { name: "Apply" }).click();
  await expect(page).toHaveURL(new RegExp(`/alerts\\?state=resolved&rule=${rule}$`));
  await expect(page.locator("#alerts tbody tr")).toHaveCount(1);
  await alert.getByRole("link", { name: "Order watch" }).click();
  await expect(page.getByRole("region", { name: "Alerts of this rule" }).getByRole("row").filter({ hasText: "Import orders" })).toBeVisible();
});

