// Live updates: open pages show changes from any user and any server, and recover from missed events.

import { makeJob, pauseJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { CuttableProxy } from "../fixtures/proxy";
import { hasServices } from "../fixtures/stack";
import {
  CONNECTION_LOST, expect, open, resumeLive, row, screenshot, test, waitForHydration, waitForLive, waitUntilStable,
} from "../fixtures/test";
import { signIn } from "../fixtures/users";

test.use({ stackName: "runs" });

test("every open page shows a change", async ({ admin, context, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Wave", input: shell("sleep 0.5; echo wave") });
  await open(admin, "/occurrences");
  const other = await context.newPage();
  await open(other, `/jobs/${job}`);
  const overview = await context.newPage();
  await open(overview, "/");
  for (const page of [admin, other, overview]) {
    await waitForLive(page);
  }
  const completed = overview.locator('.tile[data-status="completed"] .tile-value');
  const number = async () => Number((await completed.textContent())?.replaceAll(",", ""));
  const before = await number();
  const run = await runJob(stack.url, firstAdmin, job);
  for (const page of [admin, other]) {
    await expect(row(page, run)).toHaveAttribute("data-status", "completed");
    await expect(row(page, run)).toHaveClass(/is-new/);
    await expect(row(page, run).locator(".badge")).toHaveText("Completed");
  }
  await expect.poll(number).toBeGreaterThan(before);

  await pauseJob(stack.url, firstAdmin, job);
  await expect(other.getByText("This job is paused")).toBeVisible();
});

test("a new page is not read twice", async ({ admin: page, context, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Once", input: shell("true") });
  await context.addInitScript(() => {
    const events: string[] = [];
    Object.assign(window, { events });
    const Native = window.EventSource;
    window.EventSource = class extends Native {
      constructor(url: string | URL, init?: EventSourceInit) {
        super(url, init);
        this.addEventListener("message", (event) => events.push(String(event.data)));
      }
    };
  });
  const requests: string[] = [];
  page.on("request", (request) => requests.push(request.url()));
  await open(page, `/jobs/${job}`);
  await waitForLive(page);
  const stream = requests.find((url) => new URL(url).pathname === "/events");
  expect(stream, "the stream starts at the position of the document").toContain("last=");
  // A resync would be the first event, so none follows this one.
  await pauseJob(stack.url, firstAdmin, job);
  await expect(page.getByText("This job is paused")).toBeVisible();
  const events = await page.evaluate(() => (window as unknown as { events: string[] }).events);
  expect(events.filter((event) => event.includes('"event":"resync"'))).toEqual([]);
  expect(requests.filter((url) => new URL(url).pathname === "/api/occurrences")).toEqual([]);
});

test("new rows are deferred while the user works in the list", async ({ admin: page, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Drip", input: shell("true") });
  const first = await runJob(stack.url, firstAdmin, job);
  await open(page, `/jobs/${job}`);
  await waitForLive(page);
  await expect(row(page, first)).toHaveAttribute("data-status", "completed");
  await row(page, first).locator("a.row-link").focus();
  const later = [await runJob(stack.url, firstAdmin, job), await runJob(stack.url, firstAdmin, job)];
  const pill = page.getByRole("button", { name: "2 new occurrences · Show" });
  await expect(pill).toBeVisible();
  // Announced beside the button, so that a screen reader does not read each number under load.
  await expect(page.getByRole("status").filter({ hasText: /^[12] new occurrences?$/ })).toHaveCount(1);
  await expect(page.getByRole("status").filter({ has: pill })).toHaveCount(0);
  await expect(page.locator("#occurrences tbody tr")).toHaveCount(1);
  await screenshot(page, "job-deferred-rows");
  await pill.click();
  await expect(page.getByRole("heading", { name: "Occurrences", level: 2 })).toBeFocused();
  for (const id of later) {
    await expect(row(page, id)).toHaveAttribute("data-status", "completed");
  }
  await expect(pill).toHaveCount(0);
});

test("a lost connection is reopened and missed changes appear", async ({ context, page, stack, firstAdmin, watch }) => {
  watch.expect(CONNECTION_LOST);
  const job = await makeJob(stack.url, firstAdmin, { name: "Echo", input: shell("sleep 0.3; echo back") });
  const proxy = await CuttableProxy.to(stack.url);
  await signIn(context, proxy.url, firstAdmin);
  await page.goto(`${proxy.url}/occurrences`);
  await waitForHydration(page);
  await waitForLive(page);
  await page.evaluate(() => Object.assign(window, { mark: "still here" }));

  proxy.cut();
  const pill = page.locator(".live-pill");
  await expect(pill).toHaveAttribute("data-state", "reconnecting");
  await expect(pill).toContainText("Reconnecting");
  const missed = await runJob(stack.url, firstAdmin, job);
  await screenshot(page, "occurrences-reconnecting");
  const check = await context.newPage();
  await open(check, `/occurrences/${missed}`);
  await expect(check.locator("#occurrence-status")).toHaveAttribute("data-status", "completed");
  await expect(row(page, missed)).toHaveCount(0);

  proxy.restore();
  await expect(pill).toHaveAttribute("data-state", "live", { timeout: 20_000 });
  await expect(row(page, missed)).toHaveAttribute("data-status", "completed");
  const after = await runJob(stack.url, firstAdmin, job);
  await expect(row(page, after)).toHaveAttribute("data-status", "completed");
  expect(await page.evaluate(() => (window as unknown as { mark?: string }).mark)).toBe("still here");
  await proxy.close();
});

test("an offline browser is shown as offline and recovers", async ({ admin: page, context, stack, firstAdmin, watch }) => {
  watch.expect(CONNECTION_LOST);
  const job = await makeJob(stack.url, firstAdmin, { name: "Tunnelled", input: shell("true") });
  await open(page, `/jobs/${job}`);
  await waitForLive(page);
  await context.setOffline(true);
  const pill = page.locator(".live-pill");
  await expect(pill).toHaveAttribute("data-state", /offline|reconnecting/);
  const missed = await runJob(stack.url, firstAdmin, job);
  // A request that cannot be sent is reported, and the page does not show it as done.
  await page.getByRole("button", { name: "Run now: Tunnelled" }).click();
  await expect(page.locator(".action-error").filter({ hasText: "The server cannot be reached" })).toBeVisible();
  await context.setOffline(false);
  await expect(pill).toHaveAttribute("data-state", "live", { timeout: 20_000 });
  await expect(row(page, missed)).toHaveAttribute("data-status", "completed");
  await expect(page.locator("#occurrences tbody tr")).toHaveCount(1);
});

test("live updates can be paused and resumed", async ({ admin: page, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Still life", input: shell("true") });
  await open(page, `/jobs/${job}`);
  await waitForLive(page);
  const pill = page.locator(".live-pill");
  await waitUntilStable(page);
  // The tab remembers the pause, and pausing again must not resume.
  await page.reload();
  await waitForHydration(page);
  await waitUntilStable(page);
  const run = await runJob(stack.url, firstAdmin, job);
  // A page that is not paused shows the run before its end.
  await waitForStatus(stack.url, firstAdmin, run, "completed");
  await expect(pill).toHaveAttribute("aria-pressed", "true");
  await expect(row(page, run)).toHaveCount(0);
  await resumeLive(page);
  await waitForLive(page);
  await expect(row(page, run)).toHaveAttribute("data-status", "completed");
});

test("a change made on one server appears on another", { tag: "@all" }, async ({ admin: page, stack, firstAdmin }) => {
  test.skip(!hasServices, "a second server needs shared services");
  const replica = await stack.replica();
  const job = await makeJob(stack.url, firstAdmin, { name: "Next door", input: shell("sleep 0.3; echo knock") });
  await page.goto(`${replica.url}/occurrences`);
  await waitForHydration(page);
  await waitForLive(page);
  const run = await runJob(stack.url, firstAdmin, job);
  await expect(row(page, run)).toHaveAttribute("data-status", "completed");
  await expect(row(page, run)).toHaveAttribute("data-event-at", /Z$/);
  await row(page, run).locator("a.row-link").click();
  await expect(page.locator(".log-lines")).toContainText("knock");
  const second = await runJob(replica.url, firstAdmin, job);
  await page.goto(`${stack.url}/occurrences/${second}`);
  await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "completed");
  await stack.stopReplica(replica);
});
