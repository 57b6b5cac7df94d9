// The team from the invitation to the removal of a user, on the real stack: what an Admin does, and what the open pages of
// the other user show.

import { readFile } from "node:fs/promises";

import type { Browser, BrowserContext, Locator, Page } from "@playwright/test";

import { checkThemes } from "../fixtures/axe";
import { makeJob, shell } from "../fixtures/jobs";
import { hasServices, type TestStack } from "../fixtures/stack";
import { type ConsoleWatch, expect, open, screenshot, test, waitForHydration, waitForLive } from "../fixtures/test";
import { apiClient, callServerFunction, COOKIE, inviteUser, signIn, type TestUser, whoami } from "../fixtures/users";

test.use({ stackName: "team" });
test.describe.configure({ mode: "serial" });

/** The time within which an open page must follow a change of its user, in milliseconds. */
const REACTION_MILLIS = 2_000;
const FIRST_PASSPHRASE = "eleven quiet harbours";
const SECOND_PASSPHRASE = "seven patient lanterns";

/** The row of a user or an invitation. */
function rowOf(page: Page, name: string): Locator {
  return page.locator("#team tbody tr").filter({ hasText: name });
}

/** The toast with this text. */
function toast(page: Page, text: string): Locator {
  return page.locator(".toast").filter({ hasText: text });
}

/** Chooses a role on the page of a user and saves it. */
async function changeRole(page: Page, role: string): Promise<void> {
  await page.getByRole("radio", { name: new RegExp(`^${role}`) }).check();
  await page.getByRole("button", { name: "Change role" }).click();
}

/** Opens the dialog of an action on the page of a user and confirms it. */
async function confirmAction(page: Page, button: string, verb: string): Promise<void> {
  await page.getByRole("button", { name: button }).click();
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByRole("button", { name: "Cancel" })).toBeFocused();
  await dialog.getByRole("button", { name: verb, exact: true }).click();
}

/** Opens a page in a browser of its own, like that of another user. */
async function openElsewhere(browser: Browser, stack: TestStack, watch: ConsoleWatch, options = {}): Promise<[BrowserContext, Page]> {
  const context = await browser.newContext({ baseURL: stack.url, ...options });
  watch.follow(context);
  return [context, await context.newPage()];
}

/** Returns the user of a context. */
async function userOf(context: BrowserContext, name: string, email: string, passphrase: string): Promise<TestUser> {
  const session = (await context.cookies()).find((cookie) => cookie.name === COOKIE)?.value ?? "";
  return { name, email, passphrase, session };
}

/** Fills the form of an invitation and joins. */
async function join(page: Page, email: string): Promise<void> {
  await page.getByLabel("E-mail").fill(email);
  await page.getByLabel("Passphrase", { exact: true }).fill(FIRST_PASSPHRASE);
  await page.getByRole("button", { name: "Create my account" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
}

test("a user is invited, demoted, promoted, deactivated, reactivated, reset and removed", async ({ admin, browser, stack, watch }) => {
  test.setTimeout(120_000);
  // The demoted user's form, the calls of an ended session and a short passphrase are refused.
  watch.expect(/status of (401|403|404|422)/);
  await open(admin, "/team");
  await admin.getByLabel("Name", { exact: true }).fill("Una User");
  await admin.getByRole("radio", { name: /^Operator/ }).check();
  await admin.getByRole("button", { name: "Create link" }).click();
  const invitation = await admin.getByLabel("One-time link", { exact: true }).inputValue();
  await expect(rowOf(admin, "Una User").locator(".badge")).toHaveText("Invited");
  await expect(rowOf(admin, "Una User")).toContainText(/Expires in (2 d 23 h|3 d)/);

  const [context, page] = await openElsewhere(browser, stack, watch);
  await page.goto(invitation);
  await waitForHydration(page);
  await join(page, "una@example.org");
  const una = await userOf(context, "Una User", "una@example.org", FIRST_PASSPHRASE);
  const job = await makeJob(stack.url, una, { name: "Una's report", input: shell("true") });

  await open(admin, "/team");
  await expect(rowOf(admin, "una@example.org").locator(".badge")).toHaveText("Active");
  await expect(rowOf(admin, "una@example.org")).toContainText("1 session");
  await rowOf(admin, "una@example.org").getByRole("link", { name: "Una User" }).click();
  await expect(admin.getByRole("heading", { level: 1 })).toHaveText("Una User");
  await waitForHydration(admin);

  // The demotion, while the user fills a form.
  await open(page, "/calendars/new");
  await waitForLive(page);
  await page.getByLabel("Name", { exact: true }).fill("Una's holidays");
  await page.getByLabel("Days (optional)").fill("2030-12-24");
  await admin.getByRole("radio", { name: /^Viewer/ }).check();
  await expect(admin.locator("#rights [data-rights=lost]")).toContainText("change jobs");
  await expect(admin.locator("#rights [data-rights=gained]")).toHaveCount(0);
  await screenshot(admin, "user-change-role");
  await changeRole(admin, "Viewer");
  await expect(toast(page, "Your role is now Viewer (was Operator).")).toBeVisible({ timeout: REACTION_MILLIS });
  await expect(toast(admin, "Una User is now Viewer (was Operator).")).toBeVisible();
  await expect(admin.locator("#user-role")).toHaveText("Viewer");
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Una's holidays");
  await expect(page.getByLabel("Days (optional)")).toHaveValue("2030-12-24");
  await page.getByRole("button", { name: "Create" }).click();
  await expect(page.locator("#error-summary")).toContainText("You are a Viewer; ask an Admin.");
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Una's holidays");
  await screenshot(page, "demoted-form");

  // The promotion: the same form can be saved.
  await changeRole(admin, "Operator");
  await expect(toast(page, "Your role is now Operator (was Viewer).")).toBeVisible({ timeout: REACTION_MILLIS });
  await expect(admin.locator("#user-role")).toHaveText("Operator");
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Una's holidays");
  await page.getByRole("button", { name: "Create" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Calendars");
  await expect(page.getByRole("row").filter({ hasText: "Una's holidays" })).toBeVisible();

  // A page that the role may no longer open states that.
  await open(page, "/jobs/new");
  await waitForLive(page);
  await changeRole(admin, "Viewer");
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Not allowed", { timeout: REACTION_MILLIS });
  await expect(admin.locator("#user-role")).toHaveText("Viewer");
  await changeRole(admin, "Operator");
  await expect(admin.locator("#user-role")).toHaveText("Operator");

  // The deactivation, with the jobs that keep running.
  await open(page, "/jobs");
  await waitForLive(page);
  await admin.getByRole("button", { name: "Deactivate…" }).click();
  const dialog = admin.getByRole("dialog", { name: "Deactivate Una User?" });
  await expect(dialog).toContainText("All sessions and API tokens of the user end at once");
  await expect(dialog).toContainText("This user has created 1 job.");
  await expect(dialog.getByRole("link", { name: "Una's report" })).toHaveAttribute("href", `/jobs/${job}`);
  await screenshot(admin, "user-deactivate");
  await dialog.getByRole("button", { name: "Deactivate" }).click();
  await expect(page).toHaveURL(/\/login\?.*reason=deactivated/, { timeout: REACTION_MILLIS });
  await expect(page.locator("#session-end")).toContainText("Your account was deactivated.");
  await expect(admin.locator("#deactivated")).toContainText("This user is deactivated");
  await expect(admin.locator("#user-state .badge")).toHaveText("Deactivated");
  await expect(admin.getByText("No session. The user is signed out everywhere.")).toBeVisible();
  const refused = await callServerFunction(stack.url, una.session, "trigger_job", { id: job });
  expect(refused.status, "the old session").toBe(401);
  const late = await callServerFunction(stack.url, undefined, "sign_in", { email: una.email, passphrase: FIRST_PASSPHRASE });
  expect(late.status, "a sign-in while deactivated").not.toBe(200);

  await admin.getByRole("button", { name: "Reactivate" }).click();
  await expect(admin.locator("#user-state .badge")).toHaveText("Active");
  await expect(admin.locator("#deactivated")).toHaveCount(0);

  // The reset link.
  await confirmAction(admin, "Create reset link…", "Create reset link");
  const reset = await admin.getByLabel("One-time link", { exact: true }).inputValue();
  expect(reset).toContain("/reset?token=");
  await expect(admin.locator("#open-reset")).toContainText("A reset link is open.");
  await screenshot(admin, "user-reset-link");
  await page.goto(reset);
  await waitForHydration(page);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Set a new passphrase");
  await expect(page.getByLabel("E-mail")).toHaveValue("una@example.org");
  await page.getByLabel("New passphrase").fill("short");
  await page.getByRole("button", { name: "Set passphrase" }).click();
  await expect(page.locator("#f-passphrase-error")).toBeVisible();
  await page.getByLabel("New passphrase").fill(SECOND_PASSPHRASE);
  await page.getByRole("button", { name: "Set passphrase" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
  const client = await apiClient(stack.url);
  const used = await client.get(reset);
  expect(used.status()).toBe(404);
  expect(await used.text()).toContain("This link no longer works");
  await client.dispose();
  const old = await callServerFunction(stack.url, undefined, "sign_in", { email: una.email, passphrase: FIRST_PASSPHRASE });
  expect(old.status, "the old passphrase").not.toBe(200);
  const current = await callServerFunction(stack.url, undefined, "sign_in", { email: una.email, passphrase: SECOND_PASSPHRASE });
  expect(current.status, current.text).toBe(200);

  // The removal.
  await admin.reload();
  await waitForHydration(admin);
  await expect(admin.locator("#open-reset")).toHaveCount(0);
  await confirmAction(admin, "Deactivate…", "Deactivate");
  await expect(admin.locator("#deactivated")).toBeVisible();
  await confirmAction(admin, "Remove user…", "Remove user");
  await expect(admin).toHaveURL(/\/team$/);
  await expect(toast(admin, "Una User is removed.")).toBeVisible();
  await expect(rowOf(admin, "una@example.org")).toHaveCount(0);
  await open(admin, `/jobs/${job}`);
  await expect(admin.getByRole("heading", { level: 1 })).toHaveText("Una's report");
  await context.close();
});

test("an invitation gets a new link and is revoked", async ({ admin, stack }) => {
  await open(admin, "/team");
  await admin.getByLabel("Name", { exact: true }).fill("Never Mind");
  await admin.getByRole("button", { name: "Create link" }).click();
  const field = admin.getByLabel("One-time link", { exact: true });
  const first = await field.inputValue();
  await admin.getByRole("button", { name: "New link for Never Mind" }).click();
  await expect(admin.getByText("The invitation of Never Mind has a new link.")).toBeVisible();
  await expect(field).toHaveCount(1);
  await expect(field).toBeFocused();
  const second = await field.inputValue();
  expect(second).not.toBe(first);
  await screenshot(admin, "team-new-link");
  const client = await apiClient(stack.url);
  expect((await client.get(first)).status(), "the old link").toBe(404);
  expect((await client.get(second)).status(), "the new link").toBe(200);

  await confirmRevocation(admin);
  await expect(rowOf(admin, "Never Mind")).toHaveCount(0);
  expect((await client.get(second)).status(), "the revoked link").toBe(404);
  await client.dispose();
});

/** Revokes the invitation of Never Mind. */
async function confirmRevocation(page: Page): Promise<void> {
  await page.getByRole("button", { name: "Revoke the invitation of Never Mind" }).click();
  const dialog = page.getByRole("dialog", { name: "Revoke the invitation of Never Mind?" });
  await dialog.getByRole("button", { name: "Revoke" }).click();
  await expect(toast(page, "The invitation is revoked.")).toBeVisible();
}

test("the filter is part of the address and of the CSV file", async ({ admin, stack, firstAdmin }) => {
  await inviteUser(stack.url, firstAdmin, "Vera Viewer", "viewer");
  await inviteUser(stack.url, firstAdmin, "Oscar Operator", "operator");
  await open(admin, "/team");
  await expect(admin.locator("#team-count")).toHaveText("3 users and invitations");
  await admin.evaluate(() => document.documentElement.setAttribute("data-marked", "true"));
  await admin.getByLabel("Name", { exact: true }).fill("Half a name");
  await admin.getByRole("combobox", { name: "Role" }).selectOption("viewer");
  await admin.getByRole("searchbox", { name: "Search" }).fill("EXAMPLE.org");
  await admin.getByRole("button", { name: "Filter" }).click();
  await expect(admin).toHaveURL(/\/team\?q=EXAMPLE\.org&role=viewer$/);
  await expect(admin.locator("#team-count")).toHaveText("1 of 3 users and invitations");
  await expect(rowOf(admin, "Vera Viewer")).toHaveCount(1);
  await expect(admin.locator("#team tbody tr")).toHaveCount(1);
  await expect(admin.locator("html"), "no full load").toHaveAttribute("data-marked", "true");
  await expect(admin.getByLabel("Name", { exact: true })).toHaveValue("Half a name");

  const [download] = await Promise.all([admin.waitForEvent("download"), admin.getByRole("link", { name: "Download CSV" }).click()]);
  const csv = await readFile(await download.path(), "utf8");
  expect(csv).toContain("vera.viewer@example.org");
  expect(csv).not.toContain("oscar.operator@example.org");
  expect(csv.trim().split(/\r?\n/), "a header and one row").toHaveLength(2);

  await admin.goBack();
  await expect(admin).toHaveURL(/\/team$/);
  await expect(admin.locator("#team tbody tr")).toHaveCount(3);
  await expect(admin.getByRole("combobox", { name: "Role" })).toHaveValue("");
  await admin.goForward();
  await expect(admin.locator("#team tbody tr")).toHaveCount(1);
  await expect(admin.getByRole("combobox", { name: "Role" })).toHaveValue("viewer");
  await admin.getByRole("combobox", { name: "State" }).selectOption("deactivated");
  await admin.getByRole("button", { name: "Filter" }).click();
  await expect(admin.getByText("No user or invitation matches")).toBeVisible();
  await admin.getByRole("link", { name: "Show the whole team" }).click();
  await expect(admin.locator("#team tbody tr")).toHaveCount(3);
});

test("the last Admin is protected, and a self-demotion is confirmed", async ({ admin, browser, stack, firstAdmin, watch }) => {
  watch.expect(/status of (403|409)/);
  const { id } = await whoami(stack.url, firstAdmin);
  await open(admin, "/team");
  await rowOf(admin, firstAdmin.email).getByRole("link", { name: "Ada" }).click();
  await expect(admin.locator("#last-admin")).toContainText("This user is the last Admin");
  await expect(admin.getByRole("radio", { name: /^Viewer/ })).toBeDisabled();
  await expect(admin.getByRole("button", { name: "Deactivate…" })).toHaveAttribute("aria-disabled", "true");
  await screenshot(admin, "user-last-admin");
  const demotion = { id, role: "viewer", confirm_self: "true" };
  expect((await callServerFunction(stack.url, firstAdmin.session, "change_role", demotion)).status).toBe(409);
  expect((await callServerFunction(stack.url, firstAdmin.session, "set_user_active", { id, active: "false" })).status).toBe(409);

  const anna = await inviteUser(stack.url, firstAdmin, "Anna Admin", "admin");
  const [context, page] = await openElsewhere(browser, stack, watch);
  await signIn(context, stack.url, anna);
  const own = await whoami(stack.url, anna);
  await open(page, `/team/${own.id}`);
  await waitForLive(page);
  await page.getByRole("radio", { name: /^Operator/ }).check();
  await expect(page.getByText("This is your own role.").first()).toBeVisible();
  await expect(page.locator("#rights [data-rights=lost]")).toContainText("change the team");
  await page.getByRole("button", { name: "Change role" }).click();
  await expect(page.locator(".action-error .notice")).toContainText("Select the checkbox");
  await expect(page.locator("#user-role")).toHaveText("Admin");
  await page.getByRole("checkbox", { name: /^I understand that I lose/ }).check();
  await screenshot(page, "user-self-demotion");
  await page.getByRole("button", { name: "Change role" }).click();
  await expect(toast(page, "Your role is now Operator (was Admin).")).toBeVisible({ timeout: REACTION_MILLIS });
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Not allowed");
  await context.close();
});

test("sessions are ended singly and together", async ({ admin, stack, firstAdmin }) => {
  const sam = await inviteUser(stack.url, firstAdmin, "Sam Sessions", "viewer");
  for (const device of ["Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "curl/8.5.0"]) {
    const fields = { email: sam.email, passphrase: sam.passphrase };
    const answer = await callServerFunction(stack.url, undefined, "sign_in", fields, { "user-agent": device });
    expect(answer.status, answer.text).toBe(200);
  }
  const { id } = await whoami(stack.url, sam);
  await open(admin, `/team/${id}`);
  const rows = admin.locator('section[aria-labelledby="sessions"] tbody tr');
  await expect(rows).toHaveCount(3);
  await expect(rows.filter({ hasText: "Firefox" })).toHaveCount(1);
  await rows.filter({ hasText: "Firefox" }).getByRole("button", { name: /^End the session/ }).click();
  await admin.getByRole("dialog", { name: "End this session?" }).getByRole("button", { name: "End session" }).click();
  await expect(toast(admin, "1 session was ended.")).toBeVisible();
  await expect(rows).toHaveCount(2);
  await expect(rows.filter({ hasText: "Firefox" })).toHaveCount(0);
  await confirmAction(admin, "End all sessions…", "End all sessions");
  await expect(toast(admin, "2 sessions were ended.")).toBeVisible();
  await expect(admin.getByText("No session. The user is signed out everywhere.")).toBeVisible();
  expect((await callServerFunction(stack.url, sam.session, "run_sample_job", {})).status).toBe(401);
});

test("a locked user is listed and unlocked", async ({ admin, stack, firstAdmin }) => {
  test.skip(!hasServices, "the sign-in limit is set in a shared database");
  const lola = await inviteUser(stack.url, firstAdmin, "Lola Locked", "viewer");
  const { id } = await whoami(stack.url, lola);
  // The limits of all accounts.
  await stack.sql(
    `insert into sign_in_throttle (kind, slot, failures, last_at, locked_until)
     select 'account', slot, 20, now(), now() + interval '10 minutes' from generate_series(0, 65535) slot
     on conflict (kind, slot) do update set failures = 20, last_at = now(), locked_until = now() + interval '10 minutes'`,
  );
  try {
    await open(admin, "/team?state=locked");
    await expect(rowOf(admin, "Lola Locked").locator(".badge")).toHaveText("Locked");
    await open(admin, `/team/${id}`);
    await expect(admin.locator("#locked")).toContainText("Sign-ins from unknown devices are refused until");
    await checkThemes(admin, "user-locked");
    await admin.getByRole("button", { name: "Unlock" }).click();
    await expect(toast(admin, "Lola Locked is unlocked")).toBeVisible();
    await expect(admin.locator("#locked")).toHaveCount(0);
    await expect(admin.locator("#user-state .badge")).toHaveText("Active");
  } finally {
    await stack.sql("delete from sign_in_throttle");
  }
});

test("the pages of the team are accessible", async ({ admin, stack, firstAdmin, watch }) => {
  test.setTimeout(240_000);
  watch.expect(/status of (400|404)/);
  const grace = await inviteUser(stack.url, firstAdmin, "Grace Guest", "operator");
  await makeJob(stack.url, grace, { name: "Grace's report", input: shell("true") });
  const invited = await callServerFunction(stack.url, firstAdmin.session, "invite_user", { name: "Nora New", role: "viewer" });
  expect(invited.status, invited.text).toBe(200);
  const { id } = await whoami(stack.url, grace);
  await open(admin, "/team");
  await admin.getByRole("button", { name: "New link for Nora New" }).click();
  await expect(admin.getByLabel("One-time link", { exact: true })).toBeVisible();
  await checkThemes(admin, "team-list");
  await open(admin, "/team?q=nothing");
  await checkThemes(admin, "team-none");
  await open(admin, "/team?role=boss");
  await expect(admin.locator("#filter-error")).toBeVisible();

  await open(admin, `/team/${id}`);
  await admin.getByRole("radio", { name: /^Admin/ }).check();
  await expect(admin.locator("#rights [data-rights=gained]")).toContainText("delete jobs");
  await checkThemes(admin, "user");
  await admin.getByRole("button", { name: "Deactivate…" }).click();
  await checkThemes(admin, "user-dialog");
  await admin.keyboard.press("Escape");
  await expect(admin.getByRole("button", { name: "Deactivate…" })).toBeFocused();
  await confirmAction(admin, "Create reset link…", "Create reset link");
  const link = await admin.getByLabel("One-time link", { exact: true }).inputValue();
  await expect(admin.locator("#open-reset")).toBeVisible();
  await checkThemes(admin, "user-link");
  const reset = new URL(link);
  await open(admin, `${reset.pathname}${reset.search}`);
  await checkThemes(admin, "reset");
  await open(admin, `/team/${id}`);
  await admin.getByRole("button", { name: "Revoke link" }).click();
  await expect(toast(admin, "The reset link is revoked.")).toBeVisible();
  await expect(admin.locator("#open-reset")).toHaveCount(0);
  await open(admin, `${reset.pathname}${reset.search}`);
  await expect(admin.getByRole("heading", { level: 1 })).toHaveText("This link no longer works");
  await checkThemes(admin, "reset-spent");
  await open(admin, `/team/${id}`);
  await confirmAction(admin, "Deactivate…", "Deactivate");
  await expect(admin.locator("#deactivated")).toBeVisible();
  await checkThemes(admin, "user-deactivated");

  const lost = await admin.goto("/team/00000000-0000-7000-8000-000000000000");
  expect(lost?.status()).toBe(404);
  await expect(admin.getByRole("heading", { level: 1 })).toHaveText("Not found");
});

test.describe("without JavaScript", () => {
  test.use({ javaScriptEnabled: false });

  test("a user is invited, demoted, deactivated, reset and removed", async ({ admin, browser, stack, watch }) => {
    test.setTimeout(120_000);
    watch.expect(/\.wasm was preloaded using link preload but not used/);
    watch.expect(/status of (403|404)/);
    const linkIn = async (path: string) => {
      const text = (await admin.locator(".page-notices").textContent()) ?? "";
      const found = new RegExp(`https?://\\S+${path}\\?token=[\\w-]+`).exec(text)?.[0];
      expect(found, text).toBeTruthy();
      return found ?? "";
    };
    await admin.goto("/team");
    await admin.getByLabel("Name", { exact: true }).fill("Paul Plain");
    await admin.getByRole("radio", { name: /^Operator/ }).check();
    await admin.getByRole("button", { name: "Create link" }).click();
    await expect(rowOf(admin, "Paul Plain").locator(".badge")).toHaveText("Invited");
    const first = await linkIn("/invite");
    await admin.getByRole("button", { name: "New link for Paul Plain" }).click();
    const invitation = await linkIn("/invite");
    expect(invitation).not.toBe(first);
    await screenshot(admin, "no-javascript-team");

    const [context, page] = await openElsewhere(browser, stack, watch, { javaScriptEnabled: false });
    await page.goto(first);
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("This link no longer works");
    await page.goto(invitation);
    await join(page, "paul@example.org");
    const paul = await userOf(context, "Paul Plain", "paul@example.org", FIRST_PASSPHRASE);
    await makeJob(stack.url, paul, { name: "Paul's report", input: shell("true") });

    // The filter.
    await admin.goto("/team");
    await admin.getByRole("searchbox", { name: "Search" }).fill("paul");
    await admin.getByRole("button", { name: "Filter" }).click();
    await expect(admin).toHaveURL(/\/team\?q=paul/);
    await expect(admin.locator("#team tbody tr")).toHaveCount(1);
    await rowOf(admin, "Paul Plain").getByRole("link", { name: "Paul Plain" }).click();

    // The demotion: every other role states its rights.
    await expect(admin.getByRole("heading", { name: "From Operator to Viewer" })).toBeVisible();
    await expect(admin.getByRole("heading", { name: "From Operator to Admin" })).toBeVisible();
    await page.goto("/calendars/new");
    await page.getByLabel("Name", { exact: true }).fill("Paul's holidays");
    await changeRole(admin, "Viewer");
    await expect(admin.getByText("The role is now Viewer.")).toBeVisible();
    await expect(admin.locator("#user-role")).toHaveText("Viewer");
    await page.getByRole("button", { name: "Create" }).click();
    await expect(page.locator("body")).toContainText("You are a Viewer; ask an Admin.");
    await changeRole(admin, "Operator");
    await expect(admin.locator("#user-role")).toHaveText("Operator");

    // The deactivation and the reactivation.
    await admin.locator("summary").filter({ hasText: "Deactivate…" }).click();
    await expect(admin.locator("details").getByRole("link", { name: "Paul's report" })).toBeVisible();
    await screenshot(admin, "no-javascript-user");
    await admin.getByRole("button", { name: "Deactivate", exact: true }).click();
    await expect(admin.getByText("The user is deactivated.")).toBeVisible();
    await expect(admin.locator("#user-state .badge")).toHaveText("Deactivated");
    await page.goto("/jobs");
    await expect(page).toHaveURL(/\/login/);
    await admin.getByRole("button", { name: "Reactivate" }).click();
    await expect(admin.locator("#user-state .badge")).toHaveText("Active");

    // The reset link, which signs the user in.
    await admin.locator("summary").filter({ hasText: "Create reset link…" }).click();
    await admin.getByRole("button", { name: "Create reset link", exact: true }).click();
    const reset = await linkIn("/reset");
    await expect(admin.locator("#open-reset")).toBeVisible();
    await page.goto(reset);
    await page.getByLabel("New passphrase").fill("short");
    await page.getByRole("button", { name: "Set passphrase" }).click();
    await expect(page.locator("#f-passphrase-error")).toBeVisible();
    await page.getByLabel("New passphrase").fill(SECOND_PASSPHRASE);
    await page.getByRole("button", { name: "Set passphrase" }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");

    // The removal, and a session that was open until then.
    await admin.reload();
    await expect(admin.locator("#open-reset")).toHaveCount(0);
    await admin.getByRole("button", { name: /^End the session/ }).first().click();
    await expect(admin.getByText("1 session was ended.")).toBeVisible();
    await admin.locator("summary").filter({ hasText: "Deactivate…" }).click();
    await admin.getByRole("button", { name: "Deactivate", exact: true }).click();
    await admin.locator("summary").filter({ hasText: "Remove user…" }).click();
    await admin.getByRole("button", { name: "Remove user", exact: true }).click();
    await expect(admin).toHaveURL(/\/team$/);
    await expect(admin.getByText("The user is removed.")).toBeVisible();
    await expect(rowOf(admin, "paul@example.org")).toHaveCount(0);
    await context.close();
  });
});
