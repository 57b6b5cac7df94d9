// The page of the own account: name, passphrase, sessions, and the preferences of the browser.

import type { Page } from "@playwright/test";

import { makeJob, runJob, shell } from "../fixtures/jobs";
import { expect, open, row, screenshot, test, waitForLive } from "../fixtures/test";
import { apiClient, callServerFunction, inviteUser, sessionIn, signIn, type TestUser } from "../fixtures/users";

test.use({ stackName: "users", timezoneId: "America/New_York", contextOptions: { reducedMotion: "reduce" } });

const NEW_PASSPHRASE = "seven lanterns drift past the harbour";

/** Signs the user in once more, as on another device. */
async function signInAgain(url: string, user: TestUser): Promise<TestUser> {
  const answer = await callServerFunction(url, undefined, "sign_in", { email: user.email, passphrase: user.passphrase, next: "/" });
  expect(answer.status, answer.text).toBe(200);
  return { ...user, session: sessionIn(answer.response) };
}

/** Returns true if the session is valid. */
async function isSignedIn(url: string, session: string): Promise<boolean> {
  const client = await apiClient(url, session);
  try {
    return (await (await client.get("/api/whoami")).text()) !== "null";
  } finally {
    await client.dispose();
  }
}

/** Fills in the passphrase form and sends it. */
async function changePassphrase(page: Page, current: string, passphrase: string): Promise<void> {
  await page.getByLabel("Current passphrase", { exact: true }).fill(current);
  await page.getByLabel("New passphrase", { exact: true }).fill(passphrase);
  await page.getByRole("button", { name: "Change passphrase" }).click();
}

/** The rows of all sessions but the current one. */
function otherSessions(page: Page) {
  return page.locator("#sessions tbody tr").filter({ hasNotText: "This session" });
}

test("a new name shows at once", async ({ context, page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 422/);
  const user = await inviteUser(stack.url, firstAdmin, "Nina Name", "viewer");
  await signIn(context, stack.url, user);
  await open(page, "/account");
  await expect(page.locator("#profile")).toContainText("An Admin can change your role.");
  await page.getByLabel("Name", { exact: true }).fill(" ");
  await page.getByRole("button", { name: "Save name" }).click();
  await expect(page.locator("#f-name-error")).toBeVisible();
  await page.getByLabel("Name", { exact: true }).fill("Nina Neu");
  await page.getByRole("button", { name: "Save name" }).click();
  await expect(page.locator(".toast")).toContainText("Your name is changed.");
  await expect(page.locator(".user-menu summary")).toContainText("Nina Neu");
  await expect(page.locator("#f-name-error")).toBeHidden();
  // The saved name is no unsaved change.
  await page.locator(".sidenav").getByRole("link", { name: "Jobs" }).click();
  await expect(page).toHaveURL(/\/jobs$/);
  await page.reload();
  await expect(page.locator(".user-menu summary")).toContainText("Nina Neu");
});

test("a read during the change of the passphrase states its reason", { tag: "@all" }, async ({ openBrowser, context, page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 401/);
  const user = await inviteUser(stack.url, firstAdmin, "Rita Read", "viewer");
  const elsewhere = await signInAgain(stack.url, user);
  const other = await openBrowser(elsewhere);
  const theirs = await other.newPage();
  await open(theirs, "/jobs");
  await waitForLive(theirs);
  // The page's next read reaches the server when the session has just ended.
  const list = /\/api\/jobs(\?|$)/;
  let release = () => {};
  const isEnded = new Promise<void>((resolve) => {
    release = resolve;
  });
  await theirs.route(list, async (route) => {
    await isEnded;
    await route.continue();
  });
  const read = theirs.waitForRequest(list);
  await makeJob(stack.url, firstAdmin, { name: "Read the list again", input: shell("true") });
  await read;

  await signIn(context, stack.url, user);
  await open(page, "/account");
  await waitForLive(page);
  const refused = theirs.waitForResponse((response) => list.test(response.url()) && response.status() === 401);
  await changePassphrase(page, user.passphrase, NEW_PASSPHRASE);
  await expect.poll(() => isSignedIn(stack.url, elsewhere.session)).toBe(false);
  release();
  await refused;
  await expect(theirs).toHaveURL(/\/login\?.*reason=passphrase-changed/);
  await expect(theirs.locator("#session-end")).toContainText("Your passphrase was changed.");
});

test("a refused passphrase is reported beside its field", async ({ context, page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 422/);
  const user = await inviteUser(stack.url, firstAdmin, "Rita Refused", "viewer");
  const elsewhere = await signInAgain(stack.url, user);
  await signIn(context, stack.url, user);
  await open(page, "/account");
  await waitForLive(page);
  await changePassphrase(page, "not the old one", NEW_PASSPHRASE);
  await expect(page.locator("#f-current-error")).toBeVisible();
  await expect(page.locator("#f-passphrase-error")).toBeHidden();
  await expect(page.locator("#passphrase-errors")).toBeFocused();
  await changePassphrase(page, user.passphrase, "too short");
  await expect(page.locator("#f-passphrase-error")).toBeVisible();
  await expect(page.locator("#f-current-error")).toBeHidden();
  expect(await isSignedIn(stack.url, elsewhere.session)).toBe(true);
});

test("a new passphrase ends all other sessions", async ({ context, page, stack, firstAdmin }) => {
  const user = await inviteUser(stack.url, firstAdmin, "Petra Pass", "viewer");
  const elsewhere = await signInAgain(stack.url, user);
  await signIn(context, stack.url, user);
  await open(page, "/account");
  await waitForLive(page);
  const tab = await context.newPage();
  await open(tab, "/occurrences");
  await waitForLive(tab);

  await changePassphrase(page, user.passphrase, NEW_PASSPHRASE);
  await expect(page.locator(".toast")).toContainText("Passphrase changed. All other sessions were ended.");
  await expect(page.getByLabel("Current passphrase", { exact: true })).toHaveValue("");
  await expect(page.getByLabel("New passphrase", { exact: true })).toHaveValue("");
  await expect(otherSessions(page)).toHaveCount(0);
  expect(await isSignedIn(stack.url, elsewhere.session)).toBe(false);

  // This browser stays signed in under a new session, in every tab.
  expect(await isSignedIn(stack.url, user.session)).toBe(false);
  const job = await makeJob(stack.url, firstAdmin, { name: "After the change", input: shell("true") });
  const run = await runJob(stack.url, firstAdmin, job);
  await expect(row(tab, run)).toBeVisible();
  await expect(page).toHaveURL(/\/account$/);
});

test("a stolen session is ended from another device", async ({ openBrowser, context, page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 401/);
  const user = await inviteUser(stack.url, firstAdmin, "Stella Stolen", "operator");
  const stolen = await signInAgain(stack.url, user);
  const thief = await openBrowser(stolen);
  const theirs = await thief.newPage();
  await open(theirs, "/jobs");
  await waitForLive(theirs);

  await signIn(context, stack.url, user);
  await open(page, "/account");
  await expect(page.locator("#sessions tbody tr").first()).toContainText("This session");
  await expect(otherSessions(page)).toHaveCount(1);
  await otherSessions(page).getByRole("button", { name: /^End the session/ }).click();
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByRole("button", { name: "Cancel" })).toBeFocused();
  await screenshot(page, "account-end-session");
  await dialog.getByRole("button", { name: "Cancel" }).click();
  await expect(otherSessions(page)).toHaveCount(1);
  expect(await isSignedIn(stack.url, stolen.session)).toBe(true);

  await otherSessions(page).getByRole("button", { name: /^End the session/ }).click();
  await dialog.getByRole("button", { name: "End session" }).click();
  await expect(theirs).toHaveURL(/\/login\?.*reason=revoked/, { timeout: 2_000 });
  await expect(theirs.locator("#session-end")).toContainText("Your session was ended from another device");
  expect(await isSignedIn(stack.url, stolen.session)).toBe(false);
  await expect(otherSessions(page)).toHaveCount(0);
  await expect(page.locator(".toast")).toContainText("The session is ended.");
  await theirs.goto("/jobs");
  await expect(theirs).toHaveURL(/\/login/);
});

test("all other sessions are ended at once", { tag: "@all" }, async ({ context, page, stack, firstAdmin }) => {
  const user = await inviteUser(stack.url, firstAdmin, "Olaf Others", "viewer");
  const others = [await signInAgain(stack.url, user), await signInAgain(stack.url, user)];
  await signIn(context, stack.url, user);
  await open(page, "/account");
  await expect(otherSessions(page)).toHaveCount(2);
  await page.getByRole("button", { name: "End all other sessions…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "End all other sessions" }).click();
  await expect(page.locator(".toast")).toContainText("2 other sessions are ended.");
  await expect(otherSessions(page)).toHaveCount(0);
  await expect(page.getByRole("button", { name: "End all other sessions…" })).toBeHidden();
  for (const { session } of others) {
    expect(await isSignedIn(stack.url, session)).toBe(false);
  }
  // The current one is ended by signing out.
  await page.locator("#sessions").getByRole("button", { name: "Sign out" }).click();
  await expect(page).toHaveURL(/\/login$/);
  expect(await isSignedIn(stack.url, user.session)).toBe(false);
});

test("a new session appears when the user returns to the page", { tag: "@all" }, async ({ context, page, stack, firstAdmin }) => {
  const user = await inviteUser(stack.url, firstAdmin, "Nora New", "viewer");
  await signIn(context, stack.url, user);
  await open(page, "/account");
  await expect(otherSessions(page)).toHaveCount(0);
  await page.getByLabel("Name", { exact: true }).fill("Typed");
  await signInAgain(stack.url, user);
  await page.evaluate(() => document.dispatchEvent(new Event("visibilitychange")));
  await expect(otherSessions(page)).toHaveCount(1);
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Typed");
});

test("preferences apply at once and stay after a reload", async ({ context, page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 422/);
  const user = await inviteUser(stack.url, firstAdmin, "Prim Prefers", "viewer");
  await signIn(context, stack.url, user);
  await open(page, "/account");
  const form = page.locator("#preferences");
  const joined = page.locator("#profile time");
  const seen = page.locator("#sessions tbody time").last();
  await expect(form.getByLabel("The zone of this browser")).toBeChecked();
  await expect(joined).toContainText(/UTC−[45]$/);
  await expect(seen).toContainText(/ago|now/);

  await form.getByLabel("Dark").check();
  await form.getByLabel("The time zone below").check();
  await form.getByLabel("Time zone", { exact: true }).fill("Nowhere/Town");
  await form.getByLabel("Always exact").check();
  await form.getByLabel(/^12 hours/).check();
  await form.getByLabel("Enable keyboard shortcuts").uncheck();
  await form.getByRole("button", { name: "Save preferences" }).click();
  await expect(page.locator("#f-zone-error")).toContainText("is not a time zone");
  await expect(page.locator("html")).not.toHaveAttribute("data-theme", "dark");
  await form.getByLabel("Time zone", { exact: true }).fill("Asia/Kathmandu");
  await form.getByRole("button", { name: "Save preferences" }).click();
  await expect(page.locator(".toast")).toContainText("The preferences are saved.");

  const applied = async () => {
    await expect(page.locator("html")).toHaveAttribute("data-theme", "dark");
    await expect(page.getByRole("button", { name: /^Theme: dark/ })).toBeVisible();
    await expect(page.getByRole("button", { name: "Time zone: Chosen" })).toBeVisible();
    await expect(joined).toContainText(/ [AP]M UTC\+5:45$/);
    await expect(seen).toContainText(/ [AP]M UTC\+5:45$/);
  };
  await applied();
  await page.keyboard.press("Escape");
  await page.locator("h1").click();
  await page.keyboard.press("?");
  await page.keyboard.press("g");
  await page.keyboard.press("j");
  await expect(page.getByRole("dialog")).toHaveCount(0);
  await expect(page).toHaveURL(/\/account$/);

  // The server renders the same text as the browser, so hydration changes nothing.
  const text = await joined.textContent();
  const html = await (await page.request.get("/account")).text();
  expect(html).toContain(text ?? "no text");
  await open(page, "/account");
  await applied();
  await expect(joined).toHaveText(text ?? "no text");
  await expect(form.getByLabel("Dark")).toBeChecked();
  await expect(form.getByLabel("The time zone below")).toBeChecked();
  await expect(form.getByLabel("Always exact")).toBeChecked();
  await expect(form.getByLabel(/^12 hours/)).toBeChecked();
  await expect(form.getByLabel("Enable keyboard shortcuts")).not.toBeChecked();
  const cookies = await context.cookies();
  for (const name of ["theme", "zone_mode", "zone_chosen", "time_style", "clock", "shortcuts"]) {
    const expires = cookies.find((cookie) => cookie.name === name)?.expires ?? 0;
    expect(expires, name).toBeGreaterThan(Date.now() / 1_000 + 360 * 86_400);
  }

  // The buttons of the top bar change the form too.
  await page.getByRole("button", { name: /^Theme: dark/ }).click();
  await expect(form.getByLabel("As the operating system")).toBeChecked();
  await page.getByRole("button", { name: "Time zone: Chosen" }).click();
  await expect(form.getByLabel("UTC", { exact: true })).toBeChecked();
  await expect(joined).toContainText(/ [AP]M UTC$/);
  await page.getByRole("button", { name: "Time zone: UTC" }).click();
  await expect(form.getByLabel("The time zone below")).toBeChecked();
  await expect(joined).toContainText("UTC+5:45");

  await form.getByLabel("The zone of this browser").check();
  await form.getByLabel("Enable keyboard shortcuts").check();
  await form.getByRole("button", { name: "Save preferences" }).click();
  await expect(page.getByRole("button", { name: "Time zone: Local" })).toBeVisible();
  await expect(joined).toContainText(/UTC−[45]$/);
  await page.locator("h1").click();
  await page.keyboard.press("?");
  await expect(page.getByRole("dialog")).toBeVisible();
});

test("a failed sign-out is reported beside its button", { tag: "@all" }, async ({ context, page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 503/);
  const user = await inviteUser(stack.url, firstAdmin, "Fay Failed", "viewer");
  await signIn(context, stack.url, user);
  await open(page, "/help");
  await page.route("**/api/sign_out", (route) =>
    route.fulfill({
      status: 503,
      headers: { "content-type": "application/json", serverfnerror: "/api/sign_out" },
      body: JSON.stringify({ unavailable: "The session cannot be ended. Try again in a moment." }),
    }),
  );
  await page.locator(".user-menu summary").click();
  await page.locator(".user-menu").getByRole("button", { name: "Sign out" }).click();
  await expect(page.locator(".user-menu .action-error")).toContainText("The session cannot be ended.");
  await expect(page).toHaveURL(/\/help$/);
  await page.unroute("**/api/sign_out");
  await page.locator(".user-menu").getByRole("button", { name: "Sign out" }).click();
  await expect(page).toHaveURL(/\/login$/);
});
