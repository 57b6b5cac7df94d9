// The dashboard without JavaScript: every page is readable and every form works.

import type { Page } from "@playwright/test";

import { fillList, makeJob, runJob, shell } from "../fixtures/jobs";
import { expect, row, screenshot, test } from "../fixtures/test";
import { inviteUser } from "../fixtures/users";

test.use({ stackName: "no-javascript", javaScriptEnabled: false });
test.describe.configure({ mode: "serial" });

test.beforeEach(({ watch }) => {
  // The page preloads the WebAssembly, which is never used without scripts.
  watch.expect(/\.wasm was preloaded using link preload but not used/);
});

test("a one-time link and the sign-in page work", async ({ page, stack, firstAdmin }) => {
  const olga = await inviteUser(stack.url, firstAdmin, "Olga Operator", "operator");
  await page.goto("/jobs?state=active");
  await expect(page).toHaveURL(/\/login\?next=/);
  await expect(page).toHaveTitle("Sign in · Milvaion");
  await page.getByLabel("E-mail").fill(olga.email);
  await page.getByLabel("Passphrase", { exact: true }).fill("not the passphrase");
  await page.getByRole("button", { name: "Sign in" }).click();
  await expect(page.locator("#f-passphrase-error")).toContainText("wrong");
  await expect(page.getByLabel("E-mail")).toHaveValue(olga.email);
  await expect(page.getByLabel("Passphrase", { exact: true })).toHaveValue("");
  await page.getByLabel("Passphrase", { exact: true }).fill(olga.passphrase);
  await page.getByRole("button", { name: "Sign in" }).click();
  await expect(page).toHaveURL(/\/jobs\?state=active$/);
  await page.locator(".user-menu summary").click();
  await page.getByRole("button", { name: "Sign out" }).click();
  await expect(page).toHaveURL(/\/login$/);
  await page.goto("/");
  await expect(page).toHaveURL(/\/login/);
});

test("every page is readable", async ({ admin: page, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Tell a story", input: shell("echo once upon a time"), tags: "prose" });
  const run = await runJob(stack.url, firstAdmin, job);
  await reloadUntilStatus(page, run, "completed");

  for (const [path, heading] of [["/", "Overview"], ["/jobs", "Jobs"], ["/occurrences", "Occurrences"], ["/failed", "Failures"],
    ["/failed?tab=dead-letters", "Failures"], ["/calendars", "Calendars"], ["/alerts", "Alerts"],
    ["/alerts/rules", "Alert rules"], ["/alerts/rules/new", "New alert rule"], ["/alerts/channels", "Alert channels"],
    ["/alerts/channels/new", "New alert channel"], ["/workers", "Workers"], ["/team", "Team"], ["/audit", "Audit log"],
    ["/account", "Account"], ["/tokens", "API tokens"], ["/menu", "Menu"], ["/help", "Help"]] as const) {
    await page.goto(path);
    await expect(page.getByRole("heading", { level: 1 })).toHaveText(heading);
    await expect(page.getByText("Loading…")).toHaveCount(0);
  }
  await page.goto("/");
  await expect(page.locator(".health li")).not.toHaveCount(0);
  await expect(page.locator(".tile").filter({ hasText: "Completed" }).locator(".tile-value")).toHaveText("1");
  await page.goto("/workers");
  await expect(page.getByText("shell-command").first()).toBeVisible();

  await page.goto("/occurrences?status=completed");
  await expect(row(page, run)).toContainText("Tell a story");
  await page.goto("/occurrences?status=failed");
  await expect(row(page, run)).toHaveCount(0);
  await page.goto("/occurrences");
  await row(page, run).locator("a.row-link").click();
  await expect(page.locator(".log-lines")).toContainText("once upon a time");
  await expect(page.locator(".timeline li")).toHaveCount(3);
  await expect(page.locator("#result")).toContainText('"exitCode": 0');
  await expect(page.locator("time").first()).toContainText("UTC");
  await screenshot(page, "no-javascript-occurrence");

  await page.goto("/jobs");
  await page.getByLabel("Search jobs").fill("prose");
  await page.getByRole("button", { name: "Search" }).click();
  await page.getByRole("link", { name: "Tell a story" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Tell a story");
  await expect(row(page, run)).toBeVisible();
  await screenshot(page, "no-javascript-job");
});

test("a form of an ended session leads to the sign-in page and back", async ({ admin: page, context, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Too late", input: shell("true") });
  await page.goto(`/jobs/${job}`);
  await context.clearCookies();
  await page.getByRole("button", { name: "Run now: Too late" }).click();
  await expect(page).toHaveURL(`${stack.url}/login?next=/jobs/${job}&reason=form-not-sent`);
  await expect(page.locator("#session-end")).toContainText("The form was not sent: nothing was changed");
  await page.getByLabel("E-mail").fill(firstAdmin.email);
  await page.getByLabel("Passphrase", { exact: true }).fill(firstAdmin.passphrase);
  await page.getByRole("button", { name: "Sign in" }).click();
  await expect(page).toHaveURL(`${stack.url}/jobs/${job}`);
  await expect(page.getByText("No occurrences yet")).toBeVisible();
});

test("a rejected job form shows its errors and keeps the input", async ({ admin: page }) => {
  await page.goto("/jobs/new");
  await page.getByRole("link", { name: "shell-command on local" }).click();
  await expect(page.getByRole("radio", { name: /^shell-command/ })).toBeChecked();
  await page.getByLabel("Name", { exact: true }).fill("Sweep the floor");
  await fillList(page, "Command", ["echo", "swept <b>twice</b>"]);
  await page.getByRole("radio", { name: /^Cron expression/ }).check();
  await page.getByRole("textbox", { name: "Cron expression" }).fill("61 * * * *");
  await page.getByLabel("Time zone", { exact: true }).fill("Europe/Warsaw");
  await page.getByRole("button", { name: "Create", exact: true }).click();

  await expect(page.locator("#error-summary")).toContainText("1 problem needs attention");
  await expect(page.locator("#f-cron-error")).toContainText("61");
  await expect(page.locator("#f-cron")).toHaveAttribute("aria-invalid", "true");
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Sweep the floor");
  await expect(page.getByRole("textbox", { name: "Command 1" })).toHaveValue("echo");
  await expect(page.getByRole("textbox", { name: "Command 2" })).toHaveValue("swept <b>twice</b>");
  await expect(page.getByRole("textbox", { name: "Cron expression" })).toHaveValue("61 * * * *");
  await expect(page.getByLabel("Time zone", { exact: true })).toHaveValue("Europe/Warsaw");
  await screenshot(page, "no-javascript-job-form");

  await page.getByRole("textbox", { name: "Cron expression" }).fill("0 9 * * MON-FRI");
  await page.getByRole("button", { name: "Check" }).click();
  await expect(page.getByText("All fields are valid. Nothing is saved yet.")).toBeVisible();
  await expect(page.locator(".preview tbody tr")).toHaveCount(5);
  await expect(page.locator(".preview")).toContainText("CET");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Sweep the floor");
  await expect(page.getByText("The job is created.")).toBeVisible();
  await page.reload();
  await expect(page.getByText("The job is created.")).toHaveCount(0);
});

test("a job is run, paused, resumed, edited and deleted", async ({ admin: page }) => {
  await page.goto("/jobs");
  await page.getByRole("link", { name: "Sweep the floor" }).click();
  const address = page.url();

  await page.getByRole("button", { name: "Run now: Sweep the floor" }).click();
  await expect(page).toHaveURL(/\/occurrences\//);
  await expect(page.getByText("The job is queued to run now.")).toBeVisible();
  await reloadUntilStatus(page, page.url().split("/").at(-1) ?? "", "completed");
  await expect(page.locator(".log-lines")).toContainText("swept <b>twice</b>");

  await page.goto(address);
  await page.getByText("Run with different input", { exact: true }).click();
  await page.locator("#plain-run-input").fill('{"argv": [');
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(page.locator("#plain-run-input-error")).toBeVisible();
  await expect(page.locator("#plain-run-input")).toHaveValue('{"argv": [');
  await page.locator("#plain-run-input").fill('{"argv": ["echo", "mopped"]}');
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(page).toHaveURL(/\/occurrences\//);
  await reloadUntilStatus(page, page.url().split("/").at(-1) ?? "", "completed");
  await expect(page.locator(".log-lines")).toContainText("mopped");

  await page.goto(address);
  await page.locator("summary").filter({ hasText: "Pause" }).click();
  await page.locator("#plain-pause-reason").fill("holidays");
  await page.getByRole("button", { name: "Pause job" }).click();
  await expect(page.getByText("The job is paused.")).toBeVisible();
  await expect(page.getByText("Reason: holidays")).toBeVisible();
  await page.getByRole("button", { name: "Resume: Sweep the floor" }).click();
  await expect(page.getByText("The job is resumed.", { exact: true })).toBeVisible();
  await expect(page.getByText("This job is paused")).toHaveCount(0);

  await page.getByRole("link", { name: "Edit" }).click();
  await page.getByLabel("Name", { exact: true }).fill("Sweep the floor well");
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.getByText("The job is saved.")).toBeVisible();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Sweep the floor well");

  await page.getByRole("link", { name: "Delete…" }).click();
  await expect(page.getByRole("heading", { name: "Delete job Sweep the floor well?" })).toBeVisible();
  await screenshot(page, "no-javascript-delete");
  await page.getByRole("button", { name: "Delete job" }).click();
  await expect(page).toHaveURL(/\/jobs$/);
  await expect(page.getByText("The job Sweep the floor well is deleted.")).toBeVisible();
  await expect(page.getByRole("link", { name: "Sweep the floor well" })).toHaveCount(0);
});

test("a calendar is created, changed, used by a job and deleted", async ({ admin: page, stack, firstAdmin }) => {
  await page.goto("/calendars");
  await page.getByRole("link", { name: "New calendar" }).click();
  await page.getByLabel("Name", { exact: true }).fill("Days off");
  await page.getByLabel("Time zone", { exact: true }).fill("Europe/Warsaw");
  await page.getByLabel("Days (optional)").fill("2030-12-24 to 2030-12-26\nsoon");
  const second = page.getByRole("group", { name: "Window 2" });
  await second.getByLabel("Fri").check();
  await second.getByLabel("From").fill("22:00");
  await second.getByLabel("To", { exact: true }).fill("06:00");
  await page.getByRole("button", { name: "Create" }).click();
  await expect(page.locator("#f-dates-error")).toContainText(": got soon");
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Days off");
  await expect(page.getByRole("group", { name: "Window 2" }).getByLabel("Fri")).toBeChecked();
  await page.getByLabel("Days (optional)").fill("2030-12-24 to 2030-12-26");
  await page.getByRole("button", { name: "Check" }).click();
  await expect(page.getByText("All fields are valid. Nothing is saved yet.")).toBeVisible();
  await expect(page.locator("#falls li")).toHaveCount(5);
  await screenshot(page, "no-javascript-calendar");
  await page.getByRole("button", { name: "Create" }).click();
  await expect(page.getByText("The calendar is created.")).toBeVisible();
  await expect(page.getByRole("row").filter({ hasText: "Days off" })).toContainText("Fri 22:00–06:00 the next day; 2030-12-24 to 2030-12-26");

  const job = await makeJob(stack.url, firstAdmin, { name: "Yule", input: shell("true"), cron: "0 12 24-27 12 *" });
  await page.goto(`/jobs/${job}/edit`);
  await page.getByText("Blackout calendars and blackout policy").click();
  await page.getByRole("checkbox", { name: /^Days off/ }).check();
  await page.getByLabel("Maximum retries").fill("2");
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.getByText("The job is saved.")).toBeVisible();
  await expect(page.locator("#definition ~ .kv")).toContainText("Up to 2 retries, after 5 s and 10 s");
  await page.locator("#definition ~ .kv").getByRole("link", { name: "Days off" }).click();
  await page.getByRole("link", { name: "Delete…" }).click();
  await page.getByRole("button", { name: "Delete calendar" }).click();
  await expect(page.locator("#error-summary")).toContainText("Yule still uses Days off");

  await page.goto(`/jobs/${job}/edit`);
  await page.getByRole("checkbox", { name: /^Days off/ }).uncheck();
  await page.getByRole("button", { name: "Save" }).click();
  await page.goto("/calendars");
  await page.getByRole("link", { name: "Days off" }).click();
  await page.getByRole("link", { name: "Delete…" }).click();
  await page.getByRole("button", { name: "Delete calendar" }).click();
  await expect(page.getByText("The calendar Days off is deleted.")).toBeVisible();
  await expect(page.getByText("No calendars yet")).toBeVisible();
});

test("failures are retried and resolved, singly and in bulk", async ({ admin: page, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Break", input: shell("exit 7") });
  const runs: string[] = [];
  for (let n = 0; n < 3; n += 1) {
    runs.push(await runJob(stack.url, firstAdmin, job));
    await reloadUntilStatus(page, runs[n] ?? "", "failed");
  }
  await page.getByRole("link", { name: "View failure" }).click();
  await page.getByLabel("Input as JSON").fill('{"argv": [');
  await page.getByRole("button", { name: "Retry" }).click();
  await expect(page.locator("#retry-input-error")).toBeVisible();
  await expect(page.getByLabel("Input as JSON")).toHaveValue('{"argv": [');
  await page.getByLabel("Input as JSON").fill('{"argv": ["echo", "mended"]}');
  await page.getByRole("button", { name: "Retry" }).click();
  await expect(page).toHaveURL(/\/occurrences\//);
  await expect(page.getByText("Retry started. This is the new run.")).toBeVisible();
  await reloadUntilStatus(page, page.url().split("/").at(-1) ?? "", "completed");
  await expect(page.locator(".log-lines")).toContainText("mended");

  await page.goto("/failed");
  await page.getByRole("link", { name: "Failures", exact: true }).first().click();
  await page.locator("#failure-groups tbody tr").filter({ hasText: "Break" }).locator("a.row-link").click();
  await expect(page.locator("#failure-count")).toHaveText("2 open of 3 failures");
  await page.getByRole("button", { name: "Resolve" }).click();
  await expect(page.getByText("Choose at least one open failure")).toBeVisible();
  await page.locator(`#failures tr[data-id="${runs[0]}"]`).getByRole("checkbox").check();
  await page.locator("#plain-note").fill("looked at");
  await screenshot(page, "no-javascript-failures");
  await page.getByRole("button", { name: "Resolve" }).click();
  await expect(page.getByText("1 failure was resolved.")).toBeVisible();
  await expect(page.locator("#failure-count")).toHaveText("1 open of 3 failures");
  await page.getByRole("radio", { name: "All 1 open failure of this cause" }).check();
  await page.getByRole("button", { name: "Retry" }).click();
  await expect(page.getByText("1 failure was retried.")).toBeVisible();
});

test("an earlier version of a job is compared and restored", async ({ admin: page, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Paint it red", input: shell("echo red") });
  await page.goto(`/jobs/${job}/edit`);
  await page.getByLabel("Name", { exact: true }).fill("Paint it blue");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("link", { name: "History" }).click();
  await expect(page.locator("#versions tbody tr")).toHaveCount(2);
  await page.getByRole("link", { name: "Compare with current / restore (version 1)" }).click();
  await expect(page.locator('.diff tr[data-field="displayName"]')).toContainText("Paint it red");
  await screenshot(page, "no-javascript-history");
  await page.getByRole("button", { name: "Restore version 1" }).click();
  await expect(page.getByText("Version 1 is restored, as version 3.")).toBeVisible();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Paint it red");
});

test("an Admin creates and revokes an invitation", async ({ admin: page }) => {
  await page.goto("/team");
  await page.getByRole("button", { name: "Create link" }).click();
  await expect(page.locator("#f-name-error")).toBeVisible();
  await page.getByLabel("Name", { exact: true }).fill("Nina");
  await page.getByRole("radio", { name: /^Operator/ }).check();
  await page.getByRole("button", { name: "Create link" }).click();
  await expect(page.getByText(/Nina can now join as Operator\. .*http:\/\/127\.0\.0\.1:\d+\/invite\?token=/)).toBeVisible();
  await page.getByRole("button", { name: "Revoke the invitation of Nina" }).click();
  await expect(page.getByText("The invitation is revoked.")).toBeVisible();
});

/** Reloads an occurrence's page until it shows `status`. */
async function reloadUntilStatus(page: Page, id: string, status: string): Promise<void> {
  await expect(async () => {
    await page.goto(`/occurrences/${id}`);
    await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", status, { timeout: 500 });
  }).toPass({ timeout: 20_000 });
}
