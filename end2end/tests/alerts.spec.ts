// Alerts: a channel and a rule are defined, muted and deleted; a failing job makes an alert fire, and the bell counts it
// until a run completes.

import type { Locator, Page } from "@playwright/test";

import { checkThemes } from "../fixtures/axe";
import { makeJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { expect, open, screenshot, test, waitForLive } from "../fixtures/test";
import { apiClient, callServerFunction, inviteUser, signIn, type TestUser } from "../fixtures/users";

test.use({ stackName: "alerts" });

/** The time within which an alert fires or is resolved. */
const EVALUATED = { timeout: 30_000 };

/** The bell in the top bar. */
function bell(page: Page): Locator {
  return page.locator("#alert-bell");
}

/** Creates a rule about failures of a job and returns its id. */
async function makeRule(url: string, user: TestUser, name: string, job: string): Promise<string> {
  const fields = { "form[name]": name, "form[kind]": "occurrence_failed", "form[jobs]": job, "form[severity]": "critical", "form[isEnabled]": "on" };
  const answer = await callServerFunction(url, user.session, "save_alert_rule", fields);
  expect(answer.status, answer.text).toBe(200);
  const client = await apiClient(url, user.session);
  const rules = (await (await client.get("/api/alert_rules")).json()) as { id: string; definition: { name: string } }[];
  await client.dispose();
  return rules.find((rule) => rule.definition.name === name)?.id ?? "";
}

test("a channel is created, tested and deleted", async ({ admin: page, target, watch }) => {
  // Invalid fields.
  watch.expect(/status of 422/);
  await open(page, "/alerts");
  await page.getByRole("navigation", { name: "Alerts, rules and channels" }).getByRole("link", { name: "Channels" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Alert channels");
  await expect(page.getByText("No alert channels")).toBeVisible();
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
  await checkThemes(page, "alert-channel-refused");
  await page.getByLabel("Name", { exact: true }).fill("Hook");
  await page.getByLabel("Address", { exact: true }).fill(target.at("/alerts"));
  await page.getByRole("button", { name: "Create" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Hook");

  await page.getByRole("button", { name: "Send a test" }).click();
  await expect(page.locator("#test-result")).toContainText("The receiver accepted the test message.");
  expect(target.requests.filter(({ path }) => path === "/alerts")).toHaveLength(1);
  await screenshot(page, "alert-channel");
  await checkThemes(page, "alert-channel");

  await page.getByRole("button", { name: "Delete…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete channel" }).click();
  await expect(page.locator(".toast").filter({ hasText: "The alert channel Hook is deleted." })).toBeVisible();
  await expect(page.getByText("No alert channels")).toBeVisible();
});

test("a channel that a rule uses is not deleted", async ({ admin: page, stack, firstAdmin, target, watch }) => {
  watch.expect(/status of 409/);
  const channel = { "form[name]": "Pager", "form[kind]": "webhook", "form[target][url]": target.at("/pager"), "form[isEnabled]": "on" };
  const saved = await callServerFunction(stack.url, firstAdmin.session, "save_alert_channel", channel);
  expect(saved.status, saved.text).toBe(200);
  const rule = { "form[name]": "Lost runs", "form[kind]": "lost_run", "form[severity]": "warning", "form[channels][0]": "Pager" };
  const used = await callServerFunction(stack.url, firstAdmin.session, "save_alert_rule", rule);
  expect(used.status, used.text).toBe(200);
  await open(page, "/alerts/channels");
  await expect(page.getByRole("row").filter({ hasText: "Pager" })).toContainText("1 rule");
  await page.getByRole("link", { name: "Pager" }).click();
  await page.getByRole("button", { name: "Delete…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete channel" }).click();
  await expect(page.locator("#error-summary")).toContainText("still uses Pager");
});

test("a rule is created, muted, changed and deleted", async ({ admin: page, stack, firstAdmin, watch }) => {
  // Invalid fields, and another version.
  watch.expect(/status of (409|422)/);
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
  await checkThemes(page, "alert-rule-refused");

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
  await expect(page.getByRole("button", { name: "Mute", exact: true })).toBeHidden();
  await screenshot(page, "alert-rule-muted");
  await checkThemes(page, "alert-rule-muted");
  await page.getByRole("button", { name: "End the mute" }).click();
  await expect(page.getByRole("button", { name: "Mute", exact: true })).toBeVisible();
  await page.getByLabel("Mute for").selectOption("until");
  await page.locator("#f-until").fill("2020-01-01");
  await page.getByRole("button", { name: "Mute", exact: true }).click();
  await expect(page.locator("#f-until-error")).toContainText("Enter a time in the future");

  const id = new URL(page.url()).pathname.split("/").pop() ?? "";
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
  test.setTimeout(120_000);
  const job = await makeJob(stack.url, firstAdmin, { name: "Import orders", input: shell("exit 7") });
  const rule = await makeRule(stack.url, firstAdmin, "Order watch", job);
  await open(page, "/alerts");
  await waitForLive(page);
  await expect(bell(page)).toHaveAccessibleName("Alerts: none firing");
  const failed = await runJob(stack.url, firstAdmin, job);
  await waitForStatus(stack.url, firstAdmin, failed, "failed");

  // A rule that exists from the start may fire too.
  await expect(bell(page)).toHaveAccessibleName(/^Alerts: \d+ firing$/, EVALUATED);
  const alert = page.locator("#alerts").getByRole("row").filter({ hasText: "Order watch" });
  await expect(alert).toContainText("Import orders", EVALUATED);
  await expect(alert).toContainText("Critical");
  await expect(bell(page)).toHaveAttribute("data-status", "failed");
  await expect(alert.getByRole("link", { name: "Latest occurrence" })).toHaveAttribute("href", `/occurrences/${failed}`);
  await screenshot(page, "alerts-firing");
  await checkThemes(page, "alerts-firing");

  const mended = await runJob(stack.url, firstAdmin, job, shell("true"));
  await waitForStatus(stack.url, firstAdmin, mended, "completed");
  await expect(alert).toHaveCount(0, EVALUATED);
  await expect(bell(page)).toHaveAccessibleName("Alerts: none firing", EVALUATED);
  await page.getByRole("link", { name: "Resolved", exact: true }).click();
  await expect(alert).toContainText("Resolved");
  await page.getByLabel("Rule", { exact: true }).selectOption(rule);
  await page.getByRole("button", { name: "Apply" }).click();
  await expect(page).toHaveURL(new RegExp(`/alerts\\?state=resolved&rule=${rule}$`));
  await expect(page.locator("#alerts tbody tr")).toHaveCount(1);
  await alert.getByRole("link", { name: "Order watch" }).click();
  await expect(page.getByRole("region", { name: "Alerts of this rule" }).getByRole("row").filter({ hasText: "Import orders" })).toBeVisible();
});

test("rules and channels are managed without JavaScript", async ({ browser, stack, firstAdmin }) => {
  const context = await browser.newContext({ baseURL: stack.url, javaScriptEnabled: false });
  await signIn(context, stack.url, firstAdmin);
  const page = await context.newPage();
  await page.goto("/alerts/channels/new");
  await page.getByLabel("Name", { exact: true }).fill("Mail");
  await page.getByLabel("Recipients").fill("nobody");
  await page.getByRole("button", { name: "Create" }).click();
  await expect(page.locator("#f-target-to-error")).toContainText("Enter 1 to 20 e-mail addresses");
  await page.getByLabel("Recipients").fill("team@example.org\nops@example.org");
  await page.getByRole("button", { name: "Create" }).click();
  await expect(page.getByText("The alert channel is created. Send a test to check it.")).toBeVisible();

  await page.goto("/alerts/rules/new");
  await expect(page.getByRole("group", { name: "Failure rate of a job" })).toBeVisible();
  await page.getByLabel("Name", { exact: true }).fill("Slow runs");
  await page.getByLabel("Condition", { exact: true }).selectOption("long_run");
  await page.getByLabel("Limit (seconds)").fill("60");
  await page.getByRole("checkbox", { name: "Mail" }).check();
  await page.getByRole("button", { name: "Create" }).click();
  await expect(page.getByText("The alert rule Slow runs is created.")).toBeVisible();
  await expect(page.getByRole("row").filter({ hasText: "Slow runs" })).toContainText("Mail");

  await page.getByRole("link", { name: "Slow runs" }).click();
  await page.getByRole("button", { name: "Mute", exact: true }).click();
  await expect(page.getByText("The alert rule Slow runs is muted until", { exact: false })).toBeVisible();
  await page.getByRole("button", { name: "End the mute" }).click();
  await expect(page.getByText("The alert rule Slow runs sends messages again.")).toBeVisible();
  await page.getByRole("link", { name: "Delete…" }).click();
  await page.getByRole("button", { name: "Delete rule" }).click();
  await expect(page.getByText("The alert rule Slow runs is deleted.")).toBeVisible();
  await context.close();
});

test("a Viewer reads alerts and rules and changes nothing", async ({ browser, stack, firstAdmin, watch }) => {
  const context = await browser.newContext({ baseURL: stack.url });
  watch.follow(context);
  await signIn(context, stack.url, await inviteUser(stack.url, firstAdmin, "Vera Viewer", "viewer"));
  const job = await makeJob(stack.url, firstAdmin, { name: "Report", input: shell("true") });
  const rule = await makeRule(stack.url, firstAdmin, "Report failed", job);
  const page = await context.newPage();
  await open(page, "/alerts/rules");
  await expect(page.getByRole("navigation", { name: "Alerts, rules and channels" }).getByRole("link")).toHaveText(["Alerts", "Rules"]);
  await expect(page.getByRole("link", { name: "New rule" })).toHaveCount(0);
  await page.getByRole("link", { name: "Report failed" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Report failed");
  await expect(page.getByText("An occurrence fails for good.")).toBeVisible();
  await expect(page.getByRole("main").locator("form")).toHaveCount(0);
  await checkThemes(page, "alert-rule-viewer");
  const client = await apiClient(stack.url, (await context.cookies()).find(({ name }) => name === "milvaion_session")?.value);
  expect((await client.post("/api/mute_alert_rule", { form: { id: rule, length: "1h" } })).status()).toBe(403);
  await client.dispose();
  await context.close();
});
