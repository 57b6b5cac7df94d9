// Banners: every page names what is wrong and labels data that cannot be read again.

import type { BrowserContext, Locator, Page } from "@playwright/test";

import { makeJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { CuttableProxy } from "../fixtures/proxy";
import { hasServices, type TestStack } from "../fixtures/stack";
import {
  CONNECTION_LOST, expect, open, pauseLive, resumeLive, row, screenshot, test, waitForHydration, waitForLive,
} from "../fixtures/test";
import { apiClient, callServerFunction, type TestUser } from "../fixtures/users";

test.use({ stackName: "runs" });

/** A date and a time of day with its zone, as the banners show them. */
const TIME = /\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2} UTC/;

const READ_ERROR = "PostgreSQL is unreachable. Nothing was changed; try again in a moment.";

/** Answers every read of `name` as a server does whose PostgreSQL is down. */
async function failReads(page: Page, name: string): Promise<void> {
  await page.route(`**/api/${name}*`, (route) =>
    route.fulfill({
      status: 503,
      contentType: "application/json",
      headers: { serverfnerror: `/api/${name}` },
      body: JSON.stringify({ unavailable: READ_ERROR }),
    }),
  );
}

/** Creates a completed run, so that every page has data. */
async function completedRun(stack: TestStack, user: TestUser, name: string): Promise<{ job: string; run: string }> {
  const job = await makeJob(stack.url, user, { name, input: shell("true") });
  const run = await runJob(stack.url, user, job);
  await waitForStatus(stack.url, user, run, "completed");
  return { job, run };
}

/** Returns the number of a tile, in which a comma separates thousands. */
async function tileNumber(tile: Locator): Promise<number> {
  return Number((await tile.textContent())?.replaceAll(",", ""));
}

/** Opens a path of a server in a browser of its own, because a browser limits the connections to one server. */
async function openAlone(context: BrowserContext, url: string, path: string): Promise<Page> {
  const page = await context.newPage();
  await page.goto(`${url}${path}`);
  await waitForHydration(page);
  return page;
}

test("a cluster pause is shown and ended on any page", async ({ admin: page, stack, firstAdmin }) => {
  const { job, run } = await completedRun(stack, firstAdmin, "Anywhere");
  const paused = await callServerFunction(stack.url, firstAdmin.session, "pause_cluster", { reason: "the disk is full" });
  expect(paused.status, paused.text).toBe(200);
  const banner = page.locator(".banners #paused");
  // `app/tests/forms/cancel_and_pause.rs` reads all pages.
  for (const path of [`/jobs/${job}/edit`, `/occurrences/${run}`]) {
    await open(page, path);
    await expect(banner).toContainText(`Paused by ${firstAdmin.email} since`);
    await expect(banner).toContainText(TIME);
    await expect(banner).toContainText("the disk is full. No schedule starts a run until the pause ends.");
  }
  // Navigation inside the app keeps the banner, and every page receives the end of the pause.
  await page.getByRole("link", { name: "Jobs" }).first().click();
  await expect(page).toHaveURL(/\/jobs$/);
  await waitForLive(page);
  await banner.getByRole("button", { name: "Resume" }).click();
  await expect(page.locator(".toast").filter({ hasText: "All schedules are resumed." })).toBeVisible();
  await expect(banner).toHaveCount(0);
  await callServerFunction(stack.url, firstAdmin.session, "pause_cluster", { reason: "again" });
  await expect(banner).toContainText("again.");
  await callServerFunction(stack.url, firstAdmin.session, "resume_cluster", {});
  await expect(banner).toHaveCount(0);
});

test("a failed read labels the data until one succeeds", async ({ admin: page, stack, firstAdmin, watch }) => {
  watch.expect(/503/);
  const { job, run } = await completedRun(stack, firstAdmin, "Patchy");
  await open(page, `/jobs/${job}`);
  await waitForLive(page);
  await expect(row(page, run)).toBeVisible();
  await failReads(page, "job");
  const paused = await callServerFunction(stack.url, firstAdmin.session, "set_job_active", { id: job, active: "false" });
  expect(paused.status, paused.text).toBe(200);
  const banner = page.locator("#stale-data");
  await expect(banner).toContainText(`Could not read the latest data (${READ_ERROR.replace(/\.$/, "")}). The page shows data from`);
  await expect(banner).toContainText(TIME);
  await expect(row(page, run)).toBeVisible();
  await screenshot(page, "job-failed-read");
  await page.unroute("**/api/job*");
  await banner.getByRole("button", { name: "Try again" }).click();
  await expect(banner).toHaveCount(0);
  await expect(page.getByText("This job is paused")).toBeVisible();
});

test("a failed read is repeated without the user", { tag: "@all" }, async ({ admin: page, stack, firstAdmin, watch }) => {
  watch.expect(/503/);
  const { job } = await completedRun(stack, firstAdmin, "Selfheal");
  await open(page, `/jobs/${job}`);
  await waitForLive(page);
  await failReads(page, "job");
  await callServerFunction(stack.url, firstAdmin.session, "set_job_active", { id: job, active: "false" });
  await expect(page.locator("#stale-data")).toBeVisible();
  await page.unroute("**/api/job*");
  await expect(page.locator("#stale-data")).toHaveCount(0, { timeout: 15_000 });
  await expect(page.getByText("This job is paused")).toBeVisible();
});

test("an offline page labels its data with a time", { tag: "@all" }, async ({ admin: page, context, stack, firstAdmin, watch }) => {
  watch.expect(CONNECTION_LOST);
  await completedRun(stack, firstAdmin, "Tunnel");
  await open(page, "/occurrences");
  await waitForLive(page);
  await context.setOffline(true);
  const banner = page.locator("#stale-data");
  await expect(banner).toContainText("No connection. The page shows data from");
  await expect(banner).toContainText(TIME);
  await context.setOffline(false);
  await expect(page.locator(".live-pill")).toHaveAttribute("data-state", "live", { timeout: 20_000 });
  await expect(banner).toHaveCount(0);
});

test("a lost connection is announced once, and its return too", { tag: "@all" }, async ({ admin: page, context, watch }) => {
  watch.expect(/net::ERR_/);
  await page.clock.install();
  await open(page, "/calendars");
  await waitForLive(page);
  await context.setOffline(true);
  await expect(page.locator("#stale-data")).toContainText("No connection.");
  // Longer than the delay of an announcement.
  await page.clock.runFor(3_000);
  await expect(page.locator("#live-announcement")).toHaveText("");
  await context.setOffline(false);
  await expect(page.locator(".live-pill")).toHaveAttribute("data-state", "live", { timeout: 20_000 });
  await page.clock.runFor(3_000);
  await expect(page.locator("#live-announcement")).toHaveText("Live updates are on again.");
});

test("a pause of live updates is stated and ended", async ({ admin: page, stack, firstAdmin }) => {
  const { job } = await completedRun(stack, firstAdmin, "Freeze");
  await open(page, "/occurrences");
  await waitForLive(page);
  await expect(page.locator("#updates-paused")).toHaveCount(0);
  await pauseLive(page);
  const banner = page.locator("#updates-paused");
  await expect(banner).toContainText("Live updates are paused. The page shows data from");
  await expect(banner).toContainText(TIME);
  const run = await runJob(stack.url, firstAdmin, job);
  await waitForStatus(stack.url, firstAdmin, run, "completed");
  await banner.getByRole("button", { name: "Resume live updates" }).click();
  await waitForLive(page);
  await expect(banner).toHaveCount(0);
  await expect(row(page, run)).toHaveAttribute("data-status", "completed");
});

test("a read that ends during a pause changes nothing", async ({ admin: page, stack, firstAdmin }) => {
  const { job } = await completedRun(stack, firstAdmin, "Late answer");
  await open(page, "/");
  await waitForLive(page);
  const completed = page.locator('.tile[data-status="completed"] .tile-value');
  const before = await tileNumber(completed);
  // The next read of the overview begins before the pause. It is answered with the new number when the test releases it.
  let release = (): void => undefined;
  const released = new Promise<void>((resolve) => (release = resolve));
  let hold = (): void => undefined;
  const held = new Promise<void>((resolve) => (hold = resolve));
  await page.route("**/api/overview*", async (route) => {
    hold();
    await released;
    await route.continue();
  });
  const run = await runJob(stack.url, firstAdmin, job);
  await held;
  await waitForStatus(stack.url, firstAdmin, run, "completed");
  await pauseLive(page);
  await expect(page.locator("#updates-paused")).toBeVisible();
  const answered = page.waitForResponse("**/api/overview*");
  release();
  await (await answered).finished();
  // Two frames after the answer, the page has painted whatever it caused.
  const twoFrames = () =>
    page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(undefined)))));
  await twoFrames();
  expect(await tileNumber(completed)).toBe(before);
  await page.unrouteAll({ behavior: "wait" });
  await resumeLive(page);
  await expect.poll(() => tileNumber(completed)).toBeGreaterThan(before);
});

test("timers of the page read nothing during a pause", async ({ admin: page, stack, firstAdmin }) => {
  const { job } = await completedRun(stack, firstAdmin, "Timer");
  await page.clock.install();
  await open(page, "/");
  await waitForLive(page);
  const completed = page.locator('.tile[data-status="completed"] .tile-value');
  const before = await tileNumber(completed);
  await pauseLive(page);
  await expect(page.locator("#updates-paused")).toBeVisible();
  await page.waitForLoadState("networkidle");
  const run = await runJob(stack.url, firstAdmin, job);
  await waitForStatus(stack.url, firstAdmin, run, "completed");
  const reads: string[] = [];
  page.on("request", (request) => {
    if (/\/api\/(overview|cluster_status)/.test(request.url())) {
      reads.push(request.url());
    }
  });
  // Two of the longest polling intervals.
  await page.clock.runFor(61_000);
  expect(reads).toEqual([]);
  expect(await tileNumber(completed)).toBe(before);
  await resumeLive(page);
  await expect.poll(() => tileNumber(completed)).toBeGreaterThan(before);
});

test("open pages report an outage of PostgreSQL", { tag: "@all" }, async ({ openBrowser, stack, firstAdmin, watch }) => {
  test.skip(!hasServices, "a second server needs shared services");
  test.setTimeout(240_000);
  watch.expect(/50[34]/);
  watch.expect(CONNECTION_LOST);
  const { job, run } = await completedRun(stack, firstAdmin, "Blackout");
  const through = new URL(stack.databaseUrl);
  through.port ||= "5432";
  const proxy = await CuttableProxy.to(through.href);
  through.hostname = "127.0.0.1";
  through.port = String(proxy.port);
  const replica = await stack.replica({ DATABASE_URL: through.href });
  const paths = ["/", "/jobs", `/jobs/${job}`, "/occurrences", `/occurrences/${run}`, "/failed", "/workers", "/calendars", "/team"];
  const pages: Page[] = [];
  for (const path of paths) {
    pages.push(await openAlone(await openBrowser(firstAdmin), replica.url, path));
  }

  proxy.cut();
  for (const page of pages) {
    const banner = page.locator('.banners [data-part="PostgreSQL"]');
    await expect(banner).toContainText("PostgreSQL does not respond or is read-only; no data can be read or changed", { timeout: 60_000 });
    await expect(banner).toContainText("First noticed at");
    await expect(banner).toContainText(TIME);
    await expect(page.locator("#stale-data")).toContainText("The page shows data from");
    await expect(page.locator("#stale-data")).toContainText(TIME);
    // The outage is stated once.
    await expect(page.locator("#stale-data")).not.toContainText("Could not read the latest data");
  }
  await expect(pages[0]!.locator('.health li[data-state="down"]').filter({ hasText: "PostgreSQL" })).toBeVisible();
  await screenshot(pages[0]!, "overview-database-down");

  // A new page explains the outage instead of its data, and loads its data when the outage ends.
  const fresh = await openAlone(await openBrowser(firstAdmin), replica.url, "/jobs");
  await expect(fresh.getByRole("heading", { name: "Service unavailable" })).toBeVisible();
  await expect(fresh.locator("main")).toContainText("Runs that have started continue on their workers");
  await expect(fresh.locator('.banners [data-part="PostgreSQL"]')).toBeVisible();
  await screenshot(fresh, "jobs-database-down");
  const client = await apiClient(replica.url, firstAdmin.session);
  const answer = await client.get("/jobs");
  expect(answer.status()).toBe(503);
  expect(answer.headers()["retry-after"]).toBe("5");
  await client.dispose();

  proxy.restore();
  for (const page of pages) {
    await expect(page.locator('[data-part="PostgreSQL"]')).toHaveCount(0, { timeout: 60_000 });
    await expect(page.locator("#stale-data")).toHaveCount(0, { timeout: 30_000 });
  }
  await expect(fresh.getByRole("heading", { name: "Jobs", exact: true })).toBeVisible({ timeout: 60_000 });
  await expect(fresh.getByText("Blackout").first()).toBeVisible();
  for (const page of [...pages, fresh]) {
    await page.context().close();
  }
  await stack.stopReplica(replica);
  await proxy.close();
});
