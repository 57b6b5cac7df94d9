// The team from the invitation to the removal of a user, on the real stack: what an Admin does, and what the open pages of
// the other user show.

import { readFile } from "node:fs/promises";

import type { Locator, Page } from "@playwright/test";

import { makeJob, shell } from "../fixtures/jobs";
import { hasServices } from "../fixtures/stack";
import { expect, leave, open, screenshot, test, waitForHydration, waitForLive } from "../fixtures/test";
import { apiClient, callServerFunction, inviteUser, signIn, whoami } from "../fixtures/users";

test.use({ stackName: "users" });

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

test("an invited user joins", async ({ admin, openBrowser }) => {
  await open(admin, "/team");
  await admin.getByLabel("Name", { exact: true }).fill("Joana Join");
  await admin.getByRole("radio", { name: /^Operator/ }).check();
  await admin.getByRole("button", { name: "Create link" }).click();
  const invitation = await admin.getByLabel("One-time link", { exact: true }).inputValue();
  await expect(rowOf(admin, "Joana Join").locator(".badge")).toHaveText("Invited");
  await expect(rowOf(admin, "Joana Join")).toContainText(/Expires in (2 d 23 h|3 d)/);

  const page = await (await openBrowser()).newPage();
  await page.goto(invitation);
  await waitForHydration(page);
  await expect(page.getByText("You were invited as Operator.")).toBeVisible();
  await page.getByLabel("E-mail").fill("joana@example.org");
  await page.getByLabel("Passphrase", { exact: true }).fill(FIRST_PASSPHRASE);
  await page.getByRole("button", { name: "Create my account" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");

  await open(admin, "/team?q=joana");
  await expect(rowOf(admin, "joana@example.org").locator(".badge")).toHaveText("Active");
  await expect(rowOf(admin, "joana@example.org")).toContainText("1 session");
  await rowOf(admin, "joana@example.org").getByRole("link", { name: "Joana Join" }).click();
  await expect(admin.getByRole("heading", { level: 1 })).toHaveText("Joana Join");
});

test("a changed role keeps the form that its user fills", async ({ admin, openBrowser, stack, firstAdmin, watch }) => {
  // The form of the demoted user is refused.
  watch.expect(/status of 403/);
  const una = await inviteUser(stack.url, firstAdmin, "Una User", "operator");
  await open(admin, `/team/${(await whoami(stack.url, una)).id}`);
  const page = await (await openBrowser(una)).newPage();
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

  // After the promotion the same form can be saved.
  await changeRole(admin, "Operator");
  await expect(toast(page, "Your role is now Operator (was Viewer).")).toBeVisible({ timeout: REACTION_MILLIS });
  await expect(admin.locator("#user-role")).toHaveText("Operator");
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Una's holidays");
  await page.getByRole("button", { name: "Create" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Calendars");
  await expect(page.getByRole("row").filter({ hasText: "Una's holidays" })).toBeVisible();
});

test("a demotion and a deactivation reach the open page", async ({ admin, openBrowser, stack, firstAdmin, watch }) => {
  // The calls of an ended session.
  watch.expect(/status of (401|403)/);
  const user = await inviteUser(stack.url, firstAdmin, "Dara Deactivated", "operator");
  const job = await makeJob(stack.url, user, { name: "Dara's report", input: shell("true") });
  await open(admin, `/team/${(await whoami(stack.url, user)).id}`);
  const page = await (await openBrowser(user)).newPage();

  // A page that the role may no longer open states that.
  await open(page, "/jobs/new");
  await waitForLive(page);
  await changeRole(admin, "Viewer");
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Not allowed", { timeout: REACTION_MILLIS });
  await expect(admin.locator("#user-role")).toHaveText("Viewer");

  await page.getByRole("navigation", { name: "Main", exact: true }).getByRole("link", { name: "Jobs" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Jobs");
  await waitForLive(page);
  await admin.getByRole("button", { name: "Deactivate…" }).click();
  const dialog = admin.getByRole("dialog", { name: "Deactivate Dara Deactivated?" });
  await expect(dialog).toContainText("All sessions and API tokens of the user end at once");
  await expect(dialog).toContainText("This user has created 1 job.");
  await expect(dialog.getByRole("link", { name: "Dara's report" })).toHaveAttribute("href", `/jobs/${job}`);
  await screenshot(admin, "user-deactivate");
  await dialog.getByRole("button", { name: "Deactivate" }).click();
  await expect(page).toHaveURL(/\/login\?.*reason=deactivated/, { timeout: REACTION_MILLIS });
  await expect(page.locator("#session-end")).toContainText("Your account was deactivated.");
  await expect(admin.locator("#deactivated")).toContainText("This user is deactivated");
  await expect(admin.locator("#user-state .badge")).toHaveText("Deactivated");
  await expect(admin.getByText("No session. The user is signed out everywhere.")).toBeVisible();

  await admin.getByRole("button", { name: "Reactivate" }).click();
  await expect(admin.locator("#user-state .badge")).toHaveText("Active");
  await expect(admin.locator("#deactivated")).toHaveCount(0);
});

test("a user sets a passphrase by a reset link and is removed", async ({ admin, openBrowser, stack, firstAdmin, watch }) => {
  // A short passphrase is refused.
  watch.expect(/status of (401|422)/);
  const user = await inviteUser(stack.url, firstAdmin, "Rosa Reset", "operator");
  const job = await makeJob(stack.url, user, { name: "Rosa's report", input: shell("true") });
  const { id } = await whoami(stack.url, user);
  await open(admin, `/team/${id}`);
  await confirmAction(admin, "Create reset link…", "Create reset link");
  const reset = await admin.getByLabel("One-time link", { exact: true }).inputValue();
  expect(reset).toContain("/reset?token=");
  await expect(admin.locator("#open-reset")).toContainText("A reset link is open.");
  await screenshot(admin, "user-reset-link");

  const page = await (await openBrowser()).newPage();
  await page.goto(reset);
  await waitForHydration(page);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Set a new passphrase");
  await expect(page.getByLabel("E-mail")).toHaveValue(user.email);
  await page.getByLabel("New passphrase").fill("short");
  await page.getByRole("button", { name: "Set passphrase" }).click();
  await expect(page.locator("#f-passphrase-error")).toBeVisible();
  await page.getByLabel("New passphrase").fill(SECOND_PASSPHRASE);
  await page.getByRole("button", { name: "Set passphrase" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
  // The removal below ends the session of this page.
  await leave(page);

  await open(admin, `/team/${id}`);
  await expect(admin.locator("#open-reset")).toHaveCount(0);
  await confirmAction(admin, "Deactivate…", "Deactivate");
  await expect(admin.locator("#deactivated")).toBeVisible();
  await confirmAction(admin, "Remove user…", "Remove user");
  await expect(admin).toHaveURL(/\/team$/);
  await expect(toast(admin, "Rosa Reset is removed.")).toBeVisible();
  await expect(rowOf(admin, user.email)).toHaveCount(0);
  // The jobs of the user remain.
  const client = await apiClient(stack.url, firstAdmin.session);
  expect((await client.get(`/jobs/${job}`)).status()).toBe(200);
  await client.dispose();
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

  await admin.getByRole("button", { name: "Revoke the invitation of Never Mind" }).click();
  const dialog = admin.getByRole("dialog", { name: "Revoke the invitation of Never Mind?" });
  await dialog.getByRole("button", { name: "Revoke" }).click();
  await expect(toast(admin, "The invitation is revoked.")).toBeVisible();
  await expect(rowOf(admin, "Never Mind")).toHaveCount(0);
  expect((await client.get(second)).status(), "the revoked link").toBe(404);
  await client.dispose();
});

test("an Admin confirms the loss of the own role", { tag: "@all" }, async ({ context, page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 403/);
  const anna = await inviteUser(stack.url, firstAdmin, "Anna Admin", "admin");
  await signIn(context, stack.url, anna);
  await open(page, `/team/${(await whoami(stack.url, anna)).id}`);
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
});

test("the filter is part of the address and of the CSV file", { tag: "@all" }, async ({ admin, stack, firstAdmin }) => {
  await inviteUser(stack.url, firstAdmin, "Filtered Vera", "viewer");
  await inviteUser(stack.url, firstAdmin, "Filtered Oscar", "operator");
  await open(admin, "/team?q=filtered");
  await expect(admin.locator("#team tbody tr")).toHaveCount(2);
  await admin.evaluate(() => document.documentElement.setAttribute("data-marked", "true"));
  await admin.getByLabel("Name", { exact: true }).fill("Half a name");
  await admin.getByRole("combobox", { name: "Role" }).selectOption("viewer");
  await admin.getByRole("searchbox", { name: "Search" }).fill("FILTERED");
  await admin.getByRole("button", { name: "Filter" }).click();
  await expect(admin).toHaveURL(/\/team\?q=FILTERED&role=viewer$/);
  await expect(rowOf(admin, "Filtered Vera")).toHaveCount(1);
  await expect(admin.locator("#team tbody tr")).toHaveCount(1);
  await expect(admin.locator("html"), "no full load").toHaveAttribute("data-marked", "true");
  await expect(admin.getByLabel("Name", { exact: true })).toHaveValue("Half a name");

  const [download] = await Promise.all([admin.waitForEvent("download"), admin.getByRole("link", { name: "Download CSV" }).click()]);
  const csv = await readFile(await download.path(), "utf8");
  expect(csv).toContain("filtered.vera");
  expect(csv).not.toContain("filtered.oscar");
  expect(csv.trim().split(/\r?\n/), "a header and one row").toHaveLength(2);

  await admin.goBack();
  await expect(admin).toHaveURL(/\/team\?q=filtered$/);
  await expect(admin.locator("#team tbody tr")).toHaveCount(2);
  await expect(admin.getByRole("combobox", { name: "Role" })).toHaveValue("");
  await admin.goForward();
  await expect(admin.locator("#team tbody tr")).toHaveCount(1);
  await expect(admin.getByRole("combobox", { name: "Role" })).toHaveValue("viewer");
  await admin.getByRole("combobox", { name: "State" }).selectOption("deactivated");
  await admin.getByRole("button", { name: "Filter" }).click();
  await expect(admin.getByText("No user or invitation matches")).toBeVisible();
  await admin.getByRole("link", { name: "Show the whole team" }).click();
  await expect(admin).toHaveURL(/\/team$/);
});

test("sessions are ended singly and together", { tag: "@all" }, async ({ admin, stack, firstAdmin }) => {
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
});

test("a locked user is listed and unlocked", { tag: "@all" }, async ({ admin, stack, firstAdmin }) => {
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
    await admin.getByRole("button", { name: "Unlock" }).click();
    await expect(toast(admin, "Lola Locked is unlocked")).toBeVisible();
    await expect(admin.locator("#locked")).toHaveCount(0);
    await expect(admin.locator("#user-state .badge")).toHaveText("Active");
  } finally {
    await stack.sql("delete from sign_in_throttle");
  }
});
