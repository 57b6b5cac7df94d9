// Filled forms: no navigation, reload or end of the session discards them unasked, and what was chosen before the script
// ran counts.

import type { Dialog, Page } from "@playwright/test";

import { fillList, form, jobAction, makeCalendar, makeJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { expect, open, row, screenshot, test, waitForHydration, waitForLive } from "../fixtures/test";
import { callServerFunction, COOKIE, inviteUser, sessionIn, signIn, type TestUser } from "../fixtures/users";

test.use({ stackName: "jobs" });

/** Opens the form of a new job by a link, so that Back stays inside the app, and fills its name. */
async function fillNewJob(page: Page, name: string): Promise<void> {
  await open(page, "/jobs");
  await page.getByRole("main").getByRole("link", { name: /new job|create your first job/i }).first().click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("New job");
  await page.getByLabel("Name", { exact: true }).fill(name);
}

/** Ends the user's session, as a sign-out on another page of the same browser does. */
async function endSession(url: string, user: TestUser): Promise<void> {
  const answer = await callServerFunction(url, user.session, "sign_out", {});
  expect(answer.status, answer.text).toBe(200);
}

/** Signs the user in again under a new session. */
async function signInAgain(page: Page, url: string, user: TestUser): Promise<void> {
  const answer = await callServerFunction(url, undefined, "sign_in", { email: user.email, passphrase: user.passphrase });
  expect(answer.status, answer.text).toBe(200);
  await signIn(page.context(), url, { ...user, session: sessionIn(answer.response) });
}

/** Reloads the page and returns true if the browser asked before. */
async function reload(page: Page): Promise<boolean> {
  let asked = false;
  const agree = (dialog: Dialog) => {
    asked = true;
    void dialog.accept();
  };
  page.once("dialog", agree);
  await page.reload();
  page.off("dialog", agree);
  await waitForHydration(page);
  return asked;
}

/** The question before a navigation. */
function question(page: Page) {
  return page.getByRole("dialog", { name: "Discard changes?" });
}

/** Answers the question with "Keep editing" and checks that the form is unchanged. */
async function keepEditing(page: Page, name: string): Promise<void> {
  await expect(question(page)).toBeVisible();
  await expect(question(page).getByRole("button", { name: "Keep editing" })).toBeFocused();
  await question(page).getByRole("button", { name: "Keep editing" }).click();
  await expect(question(page)).toBeHidden();
  await expect(page).toHaveURL(/\/jobs\/new$/);
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue(name);
}

test("links, shortcuts and Back ask before they discard", async ({ admin: page }) => {
  await fillNewJob(page, "Half a job");
  const heading = page.getByRole("heading", { level: 1 });

  await page.getByRole("navigation", { name: "Main", exact: true }).getByRole("link", { name: "Occurrences" }).click();
  await screenshot(page, "dialog-leave");
  await keepEditing(page, "Half a job");
  await page.getByRole("main").getByRole("link", { name: "Cancel" }).click();
  await keepEditing(page, "Half a job");
  await heading.focus();
  await page.keyboard.type("gj");
  await keepEditing(page, "Half a job");
  await page.goBack();
  await keepEditing(page, "Half a job");

  // Escape keeps the form too, and a second Back asks again.
  await page.goBack();
  await expect(question(page)).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(question(page)).toBeHidden();
  await expect(page).toHaveURL(/\/jobs\/new$/);
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Half a job");
  await page.goBack();
  await question(page).getByRole("button", { name: "Discard" }).click();
  await expect(heading).toHaveText("Jobs");
  await expect(page).toHaveURL(/\/jobs$/);

  // The discarded values do not come back.
  await page.goForward();
  await expect(heading).toHaveText("New job");
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("");
  await expect(page.locator("#draft-notice")).toHaveCount(0);
});

test("a discarded form lets each kind of navigation pass", { tag: "@all" }, async ({ admin: page }) => {
  const heading = page.getByRole("heading", { level: 1 });
  await fillNewJob(page, "Discarded by a link");
  await page.getByRole("navigation", { name: "Main", exact: true }).getByRole("link", { name: "Workers" }).click();
  await question(page).getByRole("button", { name: "Discard" }).click();
  await expect(heading).toHaveText("Workers");
  await fillNewJob(page, "Discarded by a shortcut");
  await heading.focus();
  await page.keyboard.type("gc");
  await question(page).getByRole("button", { name: "Discard" }).click();
  await expect(heading).toHaveText("Calendars");

  // An unchanged form asks nothing.
  await page.getByRole("link", { name: "New calendar" }).click();
  await expect(heading).toHaveText("New calendar");
  await page.getByRole("main").getByRole("link", { name: "Cancel" }).click();
  await expect(heading).toHaveText("Calendars");
  await expect(question(page)).toBeHidden();
});

test("a changed run input asks before it is discarded", { tag: "@all" }, async ({ admin: page, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Typed input", input: shell("true") });
  await open(page, `/jobs/${job}`);
  await jobAction(page, "Run with different input…");
  const dialog = page.getByRole("dialog", { name: "Run Typed input with different input" });
  await dialog.getByLabel("Input as JSON").fill('{"argv": ["echo"]}');
  // The dialog covers the link for a pointer, so the click is made by a script.
  await page.evaluate(() => (document.querySelector('nav a[href="/workers"]') as HTMLElement).click());
  await expect(question(page)).toBeVisible();
  await question(page).getByRole("button", { name: "Keep editing" }).click();
  await expect(dialog.getByLabel("Input as JSON")).toHaveValue('{"argv": ["echo"]}');
});

test("a reload restores every part of a job form", async ({ admin: page, stack, firstAdmin }) => {
  await makeJob(stack.url, firstAdmin, { name: "Registers the types", input: shell("true") });
  await fillNewJob(page, "Restored job");
  await page.getByRole("radio", { name: /^http-request/ }).check();
  await page.getByRole("textbox", { name: /^URL/ }).fill("http://127.0.0.1:9/restored");
  await page.getByRole("radio", { name: /^Interval/ }).check();
  await page.getByLabel("Interval", { exact: true }).fill("7");
  await page.getByLabel("Unit", { exact: true }).selectOption("hours");
  await page.getByLabel("Maximum retries").fill("4");

  page.once("dialog", (dialog) => void dialog.accept());
  await page.reload();
  await waitForHydration(page);
  const notice = page.locator("#draft-notice");
  await expect(notice).toContainText(/Unsaved changes from .* were restored\./);
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Restored job");
  await expect(page.getByRole("radio", { name: /^http-request/ })).toBeChecked();
  await expect(page.getByRole("textbox", { name: /^URL/ })).toHaveValue("http://127.0.0.1:9/restored");
  await expect(page.getByRole("radio", { name: /^Interval/ })).toBeChecked();
  await expect(page.getByLabel("Interval", { exact: true })).toHaveValue("7");
  await expect(page.getByLabel("Unit", { exact: true })).toHaveValue("hours");
  await expect(page.getByLabel("Maximum retries")).toHaveValue("4");
  await expect(page.locator(".preview-words")).toContainText("7 hours");
  await screenshot(page, "job-form-restored");

  // Restored changes are still unsaved, and saving them removes the draft.
  await page.getByRole("main").getByRole("link", { name: "Cancel" }).click();
  await question(page).getByRole("button", { name: "Keep editing" }).click();
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Restored job");
  await open(page, "/jobs/new");
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("");
  await expect(notice).toHaveCount(0);
});

test("a reload restores groups, rows and invalid JSON", { tag: "@all" }, async ({ admin: page, stack, firstAdmin }) => {
  await makeJob(stack.url, firstAdmin, { name: "Registers the types first", input: shell("true") });
  await open(page, "/jobs/new?type=local/http-request");
  const variant = page.getByRole("combobox", { name: "Authentication: variant" });
  const token = page.getByRole("group", { name: /^Authentication/ }).getByRole("textbox", { name: /^Token/ });
  const follow = page.getByRole("combobox", { name: /^Follow redirects/ });
  const [fields, json] = [page.getByRole("radio", { name: "Fields" }), page.getByRole("radio", { name: "JSON" })];
  await page.getByRole("textbox", { name: /^URL/ }).fill("http://127.0.0.1:9/groups");
  await page.getByRole("button", { name: "Add to Headers" }).click();
  await page.getByRole("textbox", { name: "Headers 1: name" }).fill("X-One");
  await page.getByRole("textbox", { name: "Headers 1: value" }).fill("1");
  await variant.selectOption({ label: "Bearer" });
  await token.fill("abc");
  await follow.selectOption({ label: "No" });
  await fillList(page, "Expected statuses", ["200", "204"]);
  await page.getByRole("button", { name: "Move up: Expected statuses 2" }).click();
  await expect(page.getByRole("textbox", { name: "Expected statuses 1", exact: true })).toHaveValue("204");

  expect(await reload(page)).toBe(true);
  await expect(page.locator("#draft-notice")).toBeVisible();
  await expect(page.getByRole("textbox", { name: /^URL/ })).toHaveValue("http://127.0.0.1:9/groups");
  await expect(page.getByRole("textbox", { name: "Headers 1: name" })).toHaveValue("X-One");
  await expect(page.getByRole("textbox", { name: "Headers 1: value" })).toHaveValue("1");
  await expect(variant.locator("option:checked")).toHaveText("Bearer");
  await expect(token).toHaveValue("abc");
  await expect(follow).toHaveValue("false");
  await expect(page.getByRole("textbox", { name: "Expected statuses 1", exact: true })).toHaveValue("204");
  await expect(page.getByRole("textbox", { name: "Expected statuses 2", exact: true })).toHaveValue("200");

  await json.check();
  await page.getByLabel("Input as JSON").fill('{"url": ');
  expect(await reload(page)).toBe(true);
  await expect(json).toBeChecked();
  await expect(page.getByLabel("Input as JSON")).toHaveValue('{"url": ');
  await fields.click();
  await expect(page.getByText("Fix the JSON first. Then it can be edited as fields.")).toBeVisible();
  await expect(json).toBeChecked();
  await page.getByLabel("Input as JSON").fill('{"url": "http://127.0.0.1:9/fixed", "followRedirects": true}');
  await fields.check();
  await expect(page.getByRole("textbox", { name: /^URL/ })).toHaveValue("http://127.0.0.1:9/fixed");
  await expect(follow).toHaveValue("true");
});

test("a change of rows alone is guarded", async ({ admin: page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 409/);
  const job = await makeJob(stack.url, firstAdmin, { name: "Rows", input: shell("true") });
  await open(page, `/jobs/${job}`);
  await jobAction(page, "Edit");
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Edit Rows");
  await page.getByRole("button", { name: "Move up: Command 3" }).click();
  const second = page.getByRole("textbox", { name: "Command 2", exact: true });
  await expect(second).toHaveValue("true");
  await page.evaluate(() => history.back());
  await expect(question(page)).toBeVisible();
  await question(page).getByRole("button", { name: "Keep editing" }).click();
  await expect(page).toHaveURL(new RegExp(`/jobs/${job}/edit$`));
  await expect(second).toHaveValue("true");
  expect(await reload(page)).toBe(true);
  await expect(page.locator("#draft-notice")).toBeVisible();
  await expect(second).toHaveValue("true");

  // The job is changed elsewhere. The check of the values that were just refused keeps the refusal.
  const theirs = { ...form({ name: "Rows", input: shell("true"), tags: "theirs" }), "form[id]": job, "form[version]": "1" };
  expect((await callServerFunction(stack.url, firstAdmin.session, "save_job", theirs)).status).toBe(200);
  const checked = page.waitForResponse(
    (answer) => answer.url().endsWith("/api/check_job") && (answer.request().postData() ?? "").includes("Mine"),
  );
  const name = page.getByLabel("Name", { exact: true });
  await name.fill("Mine");
  await page.getByRole("button", { name: "Save" }).click();
  const refusal = page.locator("#error-summary");
  await expect(refusal).toContainText("This job was changed in the meantime");
  await checked;
  await expect(page.locator(".checked-preview")).not.toHaveAttribute("data-outdated");
  await expect(refusal).toContainText("This job was changed in the meantime");

  // The reloaded page restores the values on the new version, says so, and saves them.
  expect(await reload(page)).toBe(true);
  await expect(page.locator("#draft-notice")).toContainText("The job has been changed since then");
  await expect(name).toHaveValue("Mine");
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Mine");
});

test("an inserted input alone is guarded", { tag: "@all" }, async ({ admin: page, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Inserted", input: shell("echo one") });
  const run = await runJob(stack.url, firstAdmin, job, shell("echo other"));
  await waitForStatus(stack.url, firstAdmin, run, "completed");
  await open(page, `/jobs/${job}`);
  await jobAction(page, "Run with different input…");
  const dialog = page.getByRole("dialog", { name: "Run Inserted with different input" });
  await dialog.getByRole("button", { name: "Use input of last run" }).click();
  await expect(dialog.getByLabel("Input as JSON")).toHaveValue(/echo other/);
  expect(await reload(page)).toBe(true);

  await open(page, `/jobs/${job}/edit`);
  await page.getByRole("button", { name: "Use input of last run" }).click();
  const third = page.getByRole("textbox", { name: "Command 3", exact: true });
  await expect(third).toHaveValue("echo other");
  expect(await reload(page)).toBe(true);
  await expect(page.locator("#draft-notice")).toBeVisible();
  await expect(third).toHaveValue("echo other");
});

test("an added window alone is guarded", { tag: "@all" }, async ({ admin: page }) => {
  await open(page, "/calendars");
  await page.getByRole("main").getByRole("link", { name: "New calendar" }).first().click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("New calendar");
  await page.getByRole("button", { name: "Add a window" }).click();
  await expect(page.getByRole("group", { name: "Window 1" })).toBeVisible();
  await page.evaluate(() => history.back());
  await expect(question(page)).toBeVisible();
  await question(page).getByRole("button", { name: "Keep editing" }).click();
  await expect(page).toHaveURL(/\/calendars\/new$/);
  await expect(page.getByRole("group", { name: "Window 1" })).toBeVisible();
});

test("a restored calendar form is discarded on request", { tag: "@all" }, async ({ admin: page, stack, firstAdmin }) => {
  const id = await makeCalendar(stack.url, firstAdmin, { name: "Stored", dates: "2031-01-01" });
  await open(page, `/calendars/${id}/edit`);
  await page.getByLabel("Name", { exact: true }).fill("Changed");
  await page.getByRole("button", { name: "Add a window" }).click();
  await page.getByRole("group", { name: "Window 1" }).getByLabel("Tue").check();
  page.once("dialog", (dialog) => void dialog.accept());
  await page.reload();
  await waitForHydration(page);
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Changed");
  await expect(page.getByRole("group", { name: "Window 1" }).getByLabel("Tue")).toBeChecked();
  await page.getByRole("button", { name: "Discard them" }).click();
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Stored");
  await expect(page.getByRole("group", { name: /^Window/ })).toHaveCount(0);
  await expect(page.locator("#draft-notice")).toHaveCount(0);
  // Nothing is unsaved any more.
  await page.getByRole("main").getByRole("link", { name: "Cancel" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Calendars");
});

test("an ended session keeps a filled form in place", async ({ admin: page, context, stack, firstAdmin, watch }) => {
  watch.expect(/status of (401|403)/);
  const path = "/calendars/new";
  await open(page, path);
  await page.getByLabel("Name", { exact: true }).fill("Survivor");
  await page.getByLabel("Days (optional)").fill("2032-02-02");
  await context.clearCookies({ name: COOKIE });
  await page.getByRole("button", { name: "Create" }).click();
  const notice = page.locator("#session-end");
  await expect(notice).toContainText("You are signed out.");
  await expect(notice).toContainText("your changes are kept");
  const link = notice.getByRole("link", { name: "Sign in in another tab" });
  await expect(link).toHaveAttribute("target", "_blank");
  await expect(link).toHaveAttribute("rel", /noopener/);
  await expect(page).toHaveURL(new RegExp(`${path}$`));
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Survivor");
  await screenshot(page, "form-signed-out");

  // After a sign-in in another tab the same form is saved.
  await signIn(context, stack.url, firstAdmin);
  await page.evaluate(() => window.dispatchEvent(new Event("focus")));
  await expect(notice.locator(".notice")).toHaveCount(0);
  await expect(page.locator(".toast")).toContainText(`You are signed in as ${firstAdmin.email}.`);
  await page.getByRole("button", { name: "Create" }).click();
  await expect(page.getByRole("row").filter({ hasText: "Survivor" })).toBeVisible();
});

test("a page is live again after a new sign-in", async ({ context, page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 401/);
  const user = await inviteUser(stack.url, firstAdmin, "Lena Left", "operator");
  const job = await makeJob(stack.url, firstAdmin, { name: "Seen again", input: shell("true") });
  await signIn(context, stack.url, user);
  await fillNewJob(page, "Kept over the end");
  await waitForLive(page);
  await endSession(stack.url, user);
  const notice = page.locator("#session-end");
  await expect(notice).toContainText("You are signed out. You were signed out in another tab.");
  // The stream ended with the session, which is stated once.
  await expect(page.locator(".live-pill")).toHaveAttribute("data-state", "offline");
  await expect(page.locator("#stale-data")).toHaveCount(0);

  await signInAgain(page, stack.url, user);
  const other = await context.newPage();
  await open(other, "/occurrences");
  await waitForLive(other);
  await page.bringToFront();
  await page.evaluate(() => window.dispatchEvent(new Event("focus")));
  await expect(notice.locator(".notice")).toHaveCount(0);
  await waitForLive(page);
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Kept over the end");

  // The page has a stream of its own when the other tab is gone.
  await other.close();
  await page.getByRole("main").getByRole("link", { name: "Cancel" }).click();
  await question(page).getByRole("button", { name: "Discard" }).click();
  await page.getByLabel("Search jobs").fill("Seen again");
  await page.getByRole("button", { name: "Search" }).click();
  await page.locator(`#job-rows tr[data-id="${job}"] a.row-link`).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Seen again");
  await waitForLive(page);
  const run = await runJob(stack.url, firstAdmin, job);
  await expect(row(page, run)).toHaveAttribute("data-status", "completed");
});

test("an ended session keeps an open dialog and its text", async ({ context, page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 401/);
  const user = await inviteUser(stack.url, firstAdmin, "Dora Dialog", "operator");
  const job = await makeJob(stack.url, firstAdmin, { name: "Talked about", input: shell("true") });
  await signIn(context, stack.url, user);
  await open(page, `/jobs/${job}`);
  await waitForLive(page);
  await page.getByRole("button", { name: "Pause…" }).click();
  const dialog = page.getByRole("dialog", { name: "Pause Talked about?" });
  await dialog.getByLabel("Reason").fill("the disk is full");
  // The dialog covers the link for a pointer, so the click is made by a script.
  await page.evaluate(() => (document.querySelector('nav a[href="/workers"]') as HTMLElement).click());
  await question(page).getByRole("button", { name: "Keep editing" }).click();
  await expect(dialog.getByLabel("Reason")).toHaveValue("the disk is full");

  await endSession(stack.url, user);
  const notice = dialog.getByRole("alert").filter({ hasText: "You are signed out." });
  await expect(notice).toContainText("You are signed out. You were signed out in another tab.");
  await screenshot(page, "dialog-signed-out");
  const opened = context.waitForEvent("page");
  await notice.getByRole("link", { name: "Sign in in another tab" }).click();
  const other = await opened;
  await expect(other).toHaveURL(/\/login$/);
  await signInAgain(page, stack.url, user);
  await other.close();
  await page.evaluate(() => window.dispatchEvent(new Event("focus")));
  await expect(notice).toHaveCount(0);
  await expect(dialog.getByLabel("Reason")).toHaveValue("the disk is full");
  await dialog.getByRole("button", { name: "Pause job" }).click();
  await expect(page.getByText("This job is paused")).toContainText("the disk is full");
});

test("a refused first run is stated until the page is left", { tag: "@all" }, async ({ admin: page, stack, firstAdmin }) => {
  await makeJob(stack.url, firstAdmin, { name: "Registers the types too", input: shell("true") });
  await open(page, "/jobs/new?type=local/shell-command");
  await page.getByLabel("Name", { exact: true }).fill("Inactive from the start");
  await fillList(page, "Command", ["true"]);
  await page.getByRole("radio", { name: /^Manual only/ }).check();
  await page.getByRole("checkbox", { name: /^Active/ }).uncheck();
  await page.getByRole("button", { name: "Create and run now" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Inactive from the start");
  const notice = page.getByText("The job is created, but it is not queued to run now. This job is paused.");
  await expect(notice).toBeVisible();
  await expect(page.getByText("created and queued")).toHaveCount(0);
  await page.getByRole("navigation", { name: "Main", exact: true }).getByRole("link", { name: "Jobs" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Jobs");
  await expect(notice).toHaveCount(0);
});

test("choices made before the script runs count", async ({ admin: page, stack, firstAdmin }) => {
  await makeJob(stack.url, firstAdmin, { name: "Registers the types as well", input: shell("true") });
  let release: () => void = () => undefined;
  const held = new Promise<void>((done) => (release = done));
  await page.route(/\.wasm/, async (route) => {
    await held;
    await route.continue();
  });
  // The page's load event waits for the preloaded file.
  await page.goto("/jobs/new?type=local/shell-command", { waitUntil: "commit" });
  await page.getByLabel("Name", { exact: true }).fill("Typed early");
  await page.getByRole("radio", { name: /^http-request/ }).check();
  await page.getByRole("radio", { name: /^Interval/ }).check();
  await page.getByLabel("Interval", { exact: true }).fill("9");
  await page.getByLabel("Maximum retries").fill("2");
  await expect(page.locator("html")).not.toHaveAttribute("data-ready", "true");
  release();
  await waitForHydration(page);

  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Typed early");
  await expect(page.getByRole("radio", { name: /^http-request/ })).toBeChecked();
  await expect(page.getByRole("radio", { name: /^Interval/ })).toBeChecked();
  await expect(page.locator("#f-cron")).toBeHidden();
  await expect(page.getByLabel("Interval", { exact: true })).toHaveValue("9");
  await expect(page.locator("#retries")).toContainText("Up to 2 retries");
  await expect(page.locator(".preview-words")).toContainText("9 minutes");
  await page.getByRole("textbox", { name: /^URL/ }).fill("http://127.0.0.1:9/early");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Typed early");
  const id = page.url().split("/").at(-1) ?? "";
  const answer = await page.request.get(`/api/job?id=${id}`);
  const text = await answer.text();
  expect(text).toContain("http://127.0.0.1:9/early");
  expect(text).toContain("http-request");
});

test("another job type and back keeps the fields", { tag: "@all" }, async ({ admin: page, stack, firstAdmin }) => {
  await makeJob(stack.url, firstAdmin, { name: "Registers the types again", input: shell("true") });
  await open(page, "/jobs/new?type=local/http-request");
  await page.getByRole("textbox", { name: /^URL/ }).fill("http://127.0.0.1:9/kept");
  await page.getByRole("radio", { name: /^shell-command/ }).check();
  await page.getByLabel("Working directory").fill("/tmp");
  await page.getByRole("radio", { name: /^http-request/ }).check();
  await expect(page.getByRole("textbox", { name: /^URL/ })).toHaveValue("http://127.0.0.1:9/kept");
  await page.getByRole("radio", { name: /^shell-command/ }).check();
  await expect(page.getByLabel("Working directory")).toHaveValue("/tmp");
});

test("the notice of a plain form goes with its page", { tag: "@all" }, async ({ admin: page, context, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Paused plainly", input: shell("true") });
  // A form that is posted before the script runs leaves its notice for the next page.
  const answer = await context.request.post("/api/set_job_active", {
    form: { id: job, active: "false" },
    headers: { accept: "text/html", origin: stack.url },
    maxRedirects: 0,
  });
  expect(answer.status()).toBe(302);
  await open(page, `/jobs/${job}`);
  const notice = page.getByText("The job is paused.", { exact: true });
  await expect(notice).toBeVisible();
  await page.getByRole("navigation", { name: "Main", exact: true }).getByRole("link", { name: "Workers" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Workers");
  await expect(notice).toBeHidden();
});
