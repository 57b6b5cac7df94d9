// The same dashboard without a script: everything is read, and every form works by itself.

import type { Page } from "@playwright/test";

import { makeJob, runJob, shell } from "../fixtures/jobs";
import { invited } from "../fixtures/people";
import { expect, row, shot, test } from "../fixtures/test";

test.use({ scene: "nojs", javaScriptEnabled: false });
test.describe.configure({ mode: "serial" });

test.beforeEach(({ watch }) => {
  // The page cannot know that its script will never ask for what it had loaded ahead.
  watch.expect(/app\.wasm was preloaded using link preload but not used/);
});

test("a one-time link and the sign-in page work", async ({ page, stack, person }) => {
  const olga = await invited(stack.url, person, "Olga Operator", "operator");
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

test("everything is read", async ({ admin: page, stack, person }) => {
  const job = await makeJob(stack.url, person, { name: "Tell a story", input: shell("echo once upon a time"), tags: "prose" });
  const run = await runJob(stack.url, person, job);
  await settled(page, run, "completed");

  for (const [path, heading] of [["/", "Overview"], ["/jobs", "Jobs"], ["/occurrences", "Occurrences"], ["/failed", "Failures"],
    ["/failed?tab=dead-letters", "Failures"], ["/calendars", "Calendars"], ["/workers", "Workers"], ["/team", "Team"], ["/help", "Help"]] as const) {
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
  await shot(page, "nojs-occurrence");

  await page.goto("/jobs");
  await page.getByLabel("Search jobs").fill("prose");
  await page.getByRole("button", { name: "Search" }).click();
  await page.getByRole("link", { name: "Tell a story" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Tell a story");
  await expect(row(page, run)).toBeVisible();
  await shot(page, "nojs-job");
});

test("a job is defined: wrong fields are told beside them and nothing typed is lost", async ({ admin: page }) => {
  await page.goto("/jobs/new");
  await page.getByRole("link", { name: "shell-command on local" }).click();
  await expect(page.getByRole("radio", { name: /^shell-command/ })).toBeChecked();
  await page.getByLabel("Name", { exact: true }).fill("Sweep the floor");
  await page.getByRole("textbox", { name: /^Command/ }).fill("echo\nswept <b>twice</b>");
  await page.getByRole("radio", { name: /^Cron expression/ }).check();
  await page.getByRole("textbox", { name: "Cron expression" }).fill("61 * * * *");
  await page.getByLabel("Time zone", { exact: true }).fill("Europe/Warsaw");
  await page.getByRole("button", { name: "Create", exact: true }).click();

  await expect(page.locator("#error-summary")).toContainText("One thing needs another look");
  await expect(page.locator("#f-cron-error")).toContainText("61");
  await expect(page.locator("#f-cron")).toHaveAttribute("aria-invalid", "true");
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Sweep the floor");
  await expect(page.getByRole("textbox", { name: /^Command/ })).toHaveValue(/^echo\r?\nswept <b>twice<\/b>$/);
  await expect(page.getByRole("textbox", { name: "Cron expression" })).toHaveValue("61 * * * *");
  await expect(page.getByLabel("Time zone", { exact: true })).toHaveValue("Europe/Warsaw");
  await shot(page, "nojs-job-form");

  await page.getByRole("textbox", { name: "Cron expression" }).fill("0 9 * * MON-FRI");
  await page.getByRole("button", { name: "Check" }).click();
  await expect(page.getByText("Everything is right. Nothing is saved yet.")).toBeVisible();
  await expect(page.locator(".preview tbody tr")).toHaveCount(5);
  await expect(page.locator(".preview")).toContainText("CET");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Sweep the floor");
  await expect(page.getByText("The job is created.")).toBeVisible();
  await page.reload();
  await expect(page.getByText("The job is created.")).toHaveCount(0);
});

test("it is run, run with another input, paused, resumed, edited and deleted", async ({ admin: page }) => {
  await page.goto("/jobs");
  await page.getByRole("link", { name: "Sweep the floor" }).click();
  const address = page.url();

  await page.getByRole("button", { name: "Run now: Sweep the floor" }).click();
  await expect(page).toHaveURL(/\/occurrences\//);
  await expect(page.getByText("The job is queued to run now.")).toBeVisible();
  await settled(page, page.url().split("/").at(-1) ?? "", "completed");
  await expect(page.locator(".log-lines")).toContainText("swept <b>twice</b>");

  await page.goto(address);
  await page.getByText("Run with other input", { exact: true }).click();
  await page.locator("#plain-run-input").fill('{"argv": [');
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(page.locator("#plain-run-input-error")).toBeVisible();
  await expect(page.locator("#plain-run-input")).toHaveValue('{"argv": [');
  await page.locator("#plain-run-input").fill('{"argv": ["echo", "mopped"]}');
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(page).toHaveURL(/\/occurrences\//);
  await settled(page, page.url().split("/").at(-1) ?? "", "completed");
  await expect(page.locator(".log-lines")).toContainText("mopped");

  await page.goto(address);
  await page.locator("summary").filter({ hasText: "Pause" }).click();
  await page.locator("#plain-pause-reason").fill("holidays");
  await page.getByRole("button", { name: "Pause job" }).click();
  await expect(page.getByText("The job is paused.")).toBeVisible();
  await expect(page.getByText("Reason: holidays")).toBeVisible();
  await page.getByRole("button", { name: "Resume: Sweep the floor" }).click();
  await expect(page.getByText("The job is resumed.")).toBeVisible();
  await expect(page.getByText("This job is paused")).toHaveCount(0);

  await page.getByRole("link", { name: "Edit" }).click();
  await page.getByLabel("Name", { exact: true }).fill("Sweep the floor well");
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.getByText("The job is saved.")).toBeVisible();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Sweep the floor well");

  await page.getByRole("link", { name: "Delete…" }).click();
  await expect(page.getByRole("heading", { name: "Delete job Sweep the floor well?" })).toBeVisible();
  await shot(page, "nojs-delete");
  await page.getByRole("button", { name: "Delete job" }).click();
  await expect(page).toHaveURL(/\/jobs$/);
  await expect(page.getByText("The job Sweep the floor well is deleted.")).toBeVisible();
  await expect(page.getByRole("link", { name: "Sweep the floor well" })).toHaveCount(0);
});

test("a calendar is made, changed, chosen by a job and deleted", async ({ admin: page, stack, person }) => {
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
  await expect(page.getByText("Everything is right. Nothing is saved yet.")).toBeVisible();
  await expect(page.locator("#falls li")).toHaveCount(5);
  await shot(page, "nojs-calendar");
  await page.getByRole("button", { name: "Create" }).click();
  await expect(page.getByText("The calendar is made.")).toBeVisible();
  await expect(page.getByRole("row").filter({ hasText: "Days off" })).toContainText("Fri 22:00–06:00 the next day; 2030-12-24 to 2030-12-26");

  const job = await makeJob(stack.url, person, { name: "Yule", input: shell("true"), cron: "0 12 24-27 12 *" });
  await page.goto(`/jobs/${job}/edit`);
  await page.getByText("Calendars, and what becomes of fires in a blackout").click();
  await page.getByRole("checkbox", { name: /^Days off/ }).check();
  await page.getByLabel("Retries").fill("2");
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.getByText("The job is saved.")).toBeVisible();
  await expect(page.locator("#definition ~ .kv")).toContainText("Tried up to 2 times more: after 5 s and 10 s");
  await page.locator("#definition ~ .kv").getByRole("link", { name: "Days off" }).click();
  await page.getByRole("link", { name: "Delete…" }).click();
  await page.getByRole("button", { name: "Delete calendar" }).click();
  await expect(page.locator("#error-summary")).toContainText("Yule still keeps to Days off");

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

test("failures are run again and resolved, one by one and several at once", async ({ admin: page, stack, person }) => {
  const job = await makeJob(stack.url, person, { name: "Break", input: shell("exit 7") });
  const runs: string[] = [];
  for (let n = 0; n < 3; n += 1) {
    runs.push(await runJob(stack.url, person, job));
    await settled(page, runs[n] ?? "", "failed");
  }
  await page.getByRole("link", { name: "Failure", exact: true }).click();
  await page.getByLabel("Input as JSON").fill('{"argv": [');
  await page.getByRole("button", { name: "Retry" }).click();
  await expect(page.locator("#retry-input-error")).toBeVisible();
  await expect(page.getByLabel("Input as JSON")).toHaveValue('{"argv": [');
  await page.getByLabel("Input as JSON").fill('{"argv": ["echo", "mended"]}');
  await page.getByRole("button", { name: "Retry" }).click();
  await expect(page).toHaveURL(/\/occurrences\//);
  await expect(page.getByText("The failure is retried as this occurrence.")).toBeVisible();
  await settled(page, page.url().split("/").at(-1) ?? "", "completed");
  await expect(page.locator(".log-lines")).toContainText("mended");

  await page.goto("/failed");
  await page.getByRole("link", { name: "Failures", exact: true }).first().click();
  await page.locator("#failure-groups tbody tr").filter({ hasText: "Break" }).locator("a.row-link").click();
  await expect(page.locator("#failure-count")).toHaveText("2 open of 3 failures");
  await page.getByRole("button", { name: "Resolve" }).click();
  await expect(page.getByText("Choose at least one that is open")).toBeVisible();
  await page.locator(`#failures tr[data-id="${runs[0]}"]`).getByRole("checkbox").check();
  await page.locator("#plain-note").fill("looked at");
  await shot(page, "nojs-failures");
  await page.getByRole("button", { name: "Resolve" }).click();
  await expect(page.getByText("1 failure is resolved.")).toBeVisible();
  await expect(page.locator("#failure-count")).toHaveText("1 open of 3 failures");
  await page.getByRole("radio", { name: "All 1 open failure of this cause" }).check();
  await page.getByRole("button", { name: "Retry" }).click();
  await expect(page.getByText("1 failure is retried.")).toBeVisible();
});

test("an earlier version of a job is compared and restored", async ({ admin: page, stack, person }) => {
  const job = await makeJob(stack.url, person, { name: "Paint it red", input: shell("echo red") });
  await page.goto(`/jobs/${job}/edit`);
  await page.getByLabel("Name", { exact: true }).fill("Paint it blue");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("link", { name: "History" }).click();
  await expect(page.locator("#versions tbody tr")).toHaveCount(2);
  await page.getByRole("link", { name: "With the present, or restore version 1" }).click();
  await expect(page.locator('.diff tr[data-field="displayName"]')).toContainText("Paint it red");
  await shot(page, "nojs-history");
  await page.getByRole("button", { name: "Restore version 1" }).click();
  await expect(page.getByText("Version 1 is restored, as version 3.")).toBeVisible();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Paint it red");
});

test("an Admin invites somebody and takes it back", async ({ admin: page }) => {
  await page.goto("/team");
  await page.getByRole("button", { name: "Make a link" }).click();
  await expect(page.locator("#f-name-error")).toBeVisible();
  await page.getByLabel("Name", { exact: true }).fill("Nina");
  await page.getByRole("radio", { name: /^Operator/ }).check();
  await page.getByRole("button", { name: "Make a link" }).click();
  await expect(page.getByText(/Nina can now join as Operator\. .*http:\/\/127\.0\.0\.1:\d+\/invite\?token=/)).toBeVisible();
  await page.getByRole("button", { name: "Take back the invitation of Nina" }).click();
  await expect(page.getByText("The invitation is taken back.")).toBeVisible();
});

/** Loads an occurrence's page again until it says so. */
async function settled(page: Page, id: string, status: string): Promise<void> {
  await expect(async () => {
    await page.goto(`/occurrences/${id}`);
    await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", status, { timeout: 500 });
  }).toPass({ timeout: 20_000 });
}
