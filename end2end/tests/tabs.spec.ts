// The tabs of one browser: one event stream for all of them, and a session that changes under an open page.

import type { BrowserContext, Page } from "@playwright/test";

import { makeJob, runJob, shell } from "../fixtures/jobs";
import { hasServices } from "../fixtures/stack";
import { expect, open, pauseLive, resumeLive, row, test, waitForLive } from "../fixtures/test";
import { callServerFunction, inviteUser, signIn } from "../fixtures/users";

test.use({ stackName: "users" });

test("twenty tabs share one stream", { tag: "@all" }, async ({ admin, context, stack, firstAdmin }) => {
  test.setTimeout(180_000);
  await countStreams(context);
  const job = await makeJob(stack.url, firstAdmin, { name: "Twenty", input: shell("true") });
  const pages = [admin];
  while (pages.length < 20) {
    pages.push(await context.newPage());
  }
  for (const page of pages) {
    await open(page, `/jobs/${job}`);
    await waitForLive(page);
  }
  expect(await openStreams(pages)).toBe(1);
  const run = await runJob(stack.url, firstAdmin, job);
  for (const page of pages) {
    await expect(row(page, run)).toHaveAttribute("data-status", "completed");
  }
});

test("another tab takes over when the leader closes", async ({ admin, context, stack, firstAdmin }) => {
  await countStreams(context);
  const job = await makeJob(stack.url, firstAdmin, { name: "Relay", input: shell("true") });
  await open(admin, `/jobs/${job}`);
  await waitForLive(admin);
  const other = await context.newPage();
  await open(other, `/jobs/${job}`);
  await waitForLive(other);
  expect(await openStreams([admin])).toBe(1);
  expect(await openStreams([other])).toBe(0);
  await admin.close();
  await expect.poll(() => openStreams([other])).toBe(1);
  const run = await runJob(stack.url, firstAdmin, job);
  await expect(row(other, run)).toHaveAttribute("data-status", "completed");
});

test("a hidden tab hands the stream over", async ({ admin, context, stack, firstAdmin }) => {
  await countStreams(context);
  const job = await makeJob(stack.url, firstAdmin, { name: "Backstage", input: shell("true") });
  await open(admin, `/jobs/${job}`);
  await waitForLive(admin);
  const other = await context.newPage();
  await open(other, `/jobs/${job}`);
  await waitForLive(other);
  await setHidden(admin, true);
  await expect.poll(() => openStreams([other])).toBe(1);
  expect(await openStreams([admin])).toBe(0);
  await setHidden(other, true);
  await expect.poll(() => openStreams([admin, other])).toBe(0);
  const missed = await runJob(stack.url, firstAdmin, job);
  await setHidden(admin, false);
  await waitForLive(admin);
  await expect(row(admin, missed)).toHaveAttribute("data-status", "completed");
  expect(await openStreams([admin, other])).toBe(1);
});

test("a paused tab hands over and stays paused", async ({ admin, context, stack, firstAdmin }) => {
  await countStreams(context);
  const job = await makeJob(stack.url, firstAdmin, { name: "Pause", input: shell("true") });
  await open(admin, `/jobs/${job}`);
  await waitForLive(admin);
  const other = await context.newPage();
  await open(other, `/jobs/${job}`);
  await waitForLive(other);
  await pauseLive(admin);
  const run = await runJob(stack.url, firstAdmin, job);
  await expect(row(other, run)).toHaveAttribute("data-status", "completed");
  await expect(row(admin, run)).toHaveCount(0);
  await open(admin, "/help");
  await expect(admin.locator(".live-pill")).toHaveAttribute("data-state", "paused");
  await expect(other.locator(".live-pill")).toHaveAttribute("data-state", "live");
  await resumeLive(admin);
  await waitForLive(admin);
  expect(await openStreams([admin, other])).toBe(1);
});

test("opening an occurrence opens no other stream", async ({ admin: page, context, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Reader", input: shell("echo started; sleep 2; echo ended") });
  await open(page, `/jobs/${job}`);
  await waitForLive(page);
  const run = await runJob(stack.url, firstAdmin, job);
  await expect(row(page, run)).toHaveAttribute("data-status", "running");
  const streams: string[] = [];
  context.on("request", (request) => {
    if (new URL(request.url()).pathname === "/events") {
      streams.push(request.url());
    }
  });
  await row(page, run).locator("a.row-link").click();
  await expect(page.locator(".log-lines")).toContainText("ended");
  expect(streams, "the stream that is open announces the lines of every log").toEqual([]);
});

test("a sign-out ends the session in every tab", async ({ context, page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 401/);
  const user = await inviteUser(stack.url, firstAdmin, "Otto Out", "operator");
  await signIn(context, stack.url, user);
  await open(page, "/jobs");
  const other = await context.newPage();
  await open(other, "/occurrences");
  await waitForLive(page);
  await waitForLive(other);
  expect((await callServerFunction(stack.url, user.session, "sign_out", {})).status).toBeLessThan(400);
  await expect(page).toHaveURL(/\/login/);
  await expect(other).toHaveURL(/\/login/);
});

test("an end that a hidden tab missed is not blamed on another tab", { tag: "@all" }, async ({ context, page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 401/);
  await countStreams(context);
  const user = await inviteUser(stack.url, firstAdmin, "Hana Hidden", "operator");
  await signIn(context, stack.url, user);
  await open(page, "/calendars");
  await waitForLive(page);
  await setHidden(page, true);
  await expect.poll(() => openStreams([page])).toBe(0);
  expect((await callServerFunction(stack.url, user.session, "sign_out", {})).status).toBeLessThan(400);
  await setHidden(page, false);
  await expect(page).toHaveURL(/\/login\?.*reason=signed-out$/);
});

test("a sign-out reaches a paused tab", { tag: "@all" }, async ({ context, page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 401/);
  const user = await inviteUser(stack.url, firstAdmin, "Paula Pause", "operator");
  await signIn(context, stack.url, user);
  const other = await context.newPage();
  for (const tab of [page, other]) {
    await open(tab, "/jobs");
    await waitForLive(tab);
    await tab.locator(".live-pill").click();
    await expect(tab.locator(".live-pill")).toHaveAttribute("data-state", "paused");
  }
  await page.locator(".user-menu summary").click();
  await page.getByRole("button", { name: "Sign out" }).click();
  await expect(page).toHaveURL(/\/login$/);
  await expect(other).toHaveURL(/\/login\?.*reason=signed-out-elsewhere$/);
});

test("a changed role changes the open page", { tag: "@all" }, async ({ context, page, stack, firstAdmin }) => {
  test.skip(!hasServices, "the role is changed in a shared database");
  const user = await inviteUser(stack.url, firstAdmin, "Rita Role", "operator");
  const job = await makeJob(stack.url, firstAdmin, { name: "Guarded", input: shell("true") });
  await signIn(context, stack.url, user);
  await open(page, `/jobs/${job}`);
  await waitForLive(page);
  const other = await context.newPage();
  await open(other, `/jobs/${job}`);
  await waitForLive(other);
  await expect(page.getByRole("button", { name: "Run now: Guarded" })).toBeVisible();
  await stack.sql(`update users set role = 'viewer' where email = '${user.email}'`);
  for (const tab of [page, other]) {
    await expect(tab.locator(".toast")).toContainText("Your role is now Viewer (was Operator).");
    await expect(tab.getByRole("button", { name: "Run now: Guarded" })).toHaveCount(0);
  }
});

test("a changed role keeps a form that is in use", async ({ context, page, stack, firstAdmin }) => {
  test.skip(!hasServices, "the role is changed in a shared database");
  const user = await inviteUser(stack.url, firstAdmin, "Fay Form", "operator");
  await signIn(context, stack.url, user);
  await open(page, "/jobs/new");
  await waitForLive(page);
  const name = page.getByLabel("Name", { exact: true });
  await name.fill("Half a job");
  await expect(name).toBeFocused();
  await stack.sql(`update users set role = 'admin' where email = '${user.email}'`);
  await expect(page.locator(".toast")).toContainText("Your role is now Admin (was Operator).");
  const notice = page.getByText("Your role is now Admin. Reload the page to apply it.");
  await expect(notice).toBeVisible();
  await expect(name).toHaveValue("Half a job");
  await expect(name).toBeFocused();

  // The next page follows the new role.
  await page.getByRole("main").getByRole("link", { name: "Cancel" }).click();
  await page.getByRole("dialog", { name: "Discard changes?" }).getByRole("button", { name: "Discard" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Jobs");
  await expect(notice).toHaveCount(0);
  await expect(page.getByRole("navigation", { name: "Main", exact: true }).getByRole("link", { name: "Team" })).toBeVisible();
});

/** Counts the streams that pages of this context open from now on. */
async function countStreams(context: BrowserContext): Promise<void> {
  await context.addInitScript(() => {
    const sources: EventSource[] = [];
    Object.assign(window, { sources });
    const Native = window.EventSource;
    window.EventSource = class extends Native {
      constructor(url: string | URL, init?: EventSourceInit) {
        super(url, init);
        sources.push(this);
      }
    };
  });
}

/** The number of streams that these pages hold open. */
async function openStreams(pages: Page[]): Promise<number> {
  const counts = pages.map((page) =>
    page.evaluate(() => {
      const { sources } = window as unknown as { sources: EventSource[] };
      return sources.filter((source) => source.readyState !== EventSource.CLOSED).length;
    }),
  );
  return (await Promise.all(counts)).reduce((sum, count) => sum + count, 0);
}

/** Makes a page believe that its tab is hidden or visible; all pages of a headless browser are visible. */
async function setHidden(page: Page, isHidden: boolean): Promise<void> {
  await page.evaluate((hidden) => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange", { bubbles: true }));
  }, isHidden);
}
