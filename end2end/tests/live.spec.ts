// Pages change by themselves, whoever caused the change and wherever it arrived, and a page that missed something finds
// out by itself.

import { makeJob, pauseJob, runJob, shell } from "../fixtures/jobs";
import { Line } from "../fixtures/line";
import { signIn } from "../fixtures/people";
import { hasServices } from "../fixtures/stack";
import { expect, live, open, ready, row, shot, still, test } from "../fixtures/test";

test.use({ scene: "live" });

test("what happens is seen on every open page", async ({ admin, context, stack, person }) => {
  const job = await makeJob(stack.url, person, { name: "Wave", input: shell("sleep 0.5; echo wave") });
  await open(admin, "/occurrences");
  const other = await context.newPage();
  await open(other, `/jobs/${job}`);
  const overview = await context.newPage();
  await open(overview, "/");
  for (const page of [admin, other, overview]) {
    await live(page);
  }
  const run = await runJob(stack.url, person, job);
  for (const page of [admin, other]) {
    await expect(row(page, run)).toHaveAttribute("data-status", "completed");
    await expect(row(page, run)).toHaveClass(/is-new/);
    await expect(row(page, run).locator(".badge")).toHaveText("Completed");
  }
  await expect(overview.locator(".tile").filter({ hasText: "Completed" }).locator(".tile-value")).toHaveText("1");

  await pauseJob(stack.url, person, job);
  await expect(other.getByText("This job is paused")).toBeVisible();
});

test("a list under the reader's hands stands still until they ask", async ({ admin: page, stack, person }) => {
  const job = await makeJob(stack.url, person, { name: "Drip", input: shell("true") });
  const first = await runJob(stack.url, person, job);
  await open(page, `/jobs/${job}`);
  await live(page);
  await expect(row(page, first)).toHaveAttribute("data-status", "completed");
  await row(page, first).locator("a.row-link").focus();
  const later = [await runJob(stack.url, person, job), await runJob(stack.url, person, job)];
  const pill = page.getByRole("button", { name: "2 new occurrences · Show" });
  await expect(pill).toBeVisible();
  await expect(page.locator("#occurrences tbody tr")).toHaveCount(1);
  await shot(page, "job-held");
  await pill.click();
  for (const id of later) {
    await expect(row(page, id)).toHaveAttribute("data-status", "completed");
  }
  await expect(pill).toHaveCount(0);
});

test("a lost connection is shown, found again, and what was missed is caught up on", async ({ context, page, stack, person, watch }) => {
  watch.expect(/net::ERR_/);
  const job = await makeJob(stack.url, person, { name: "Echo", input: shell("sleep 0.3; echo back") });
  const line = await Line.to(stack.url);
  await signIn(context, line.url, person);
  await page.goto(`${line.url}/occurrences`);
  await ready(page);
  await live(page);
  await page.evaluate(() => Object.assign(window, { mark: "still here" }));

  line.cut();
  const pill = page.locator(".live-pill");
  await expect(pill).toHaveAttribute("data-state", "reconnecting");
  await expect(pill).toContainText("Reconnecting");
  const missed = await runJob(stack.url, person, job);
  await shot(page, "occurrences-reconnecting");
  const check = await context.newPage();
  await open(check, `/occurrences/${missed}`);
  await expect(check.locator("#occurrence-status")).toHaveAttribute("data-status", "completed");
  await expect(row(page, missed)).toHaveCount(0);

  line.mend();
  await expect(pill).toHaveAttribute("data-state", "live", { timeout: 20_000 });
  await expect(row(page, missed)).toHaveAttribute("data-status", "completed");
  const after = await runJob(stack.url, person, job);
  await expect(row(page, after)).toHaveAttribute("data-status", "completed");
  expect(await page.evaluate(() => (window as unknown as { mark?: string }).mark)).toBe("still here");
  await line.close();
});

test("a computer without a network says so, and goes on when it is back", async ({ admin: page, context, stack, person, watch }) => {
  watch.expect(/net::ERR_/);
  const job = await makeJob(stack.url, person, { name: "Tunnel", input: shell("true") });
  await open(page, `/jobs/${job}`);
  await live(page);
  await context.setOffline(true);
  const pill = page.locator(".live-pill");
  await expect(pill).toHaveAttribute("data-state", /offline|reconnecting/);
  const missed = await runJob(stack.url, person, job);
  // A change that cannot be sent is told, and nothing pretends that it happened.
  await page.getByRole("button", { name: "Run now: Tunnel" }).click();
  await expect(page.locator(".toast").filter({ hasText: "The server cannot be reached" })).toBeVisible();
  await context.setOffline(false);
  await expect(pill).toHaveAttribute("data-state", "live", { timeout: 20_000 });
  await expect(row(page, missed)).toHaveAttribute("data-status", "completed");
  await expect(page.locator("#occurrences tbody tr")).toHaveCount(1);
});

test("the reader can stop the changes and let them go on", async ({ admin: page, stack, person }) => {
  const job = await makeJob(stack.url, person, { name: "Still life", input: shell("true") });
  await open(page, `/jobs/${job}`);
  await live(page);
  const pill = page.locator(".live-pill");
  await still(page);
  const run = await runJob(stack.url, person, job);
  await expect(pill).toHaveAttribute("aria-pressed", "true");
  await expect(row(page, run)).toHaveCount(0);
  await pill.click();
  await live(page);
  await expect(row(page, run)).toHaveAttribute("data-status", "completed");
});

test("a change through one server is seen on a page of another", async ({ admin: page, stack, person }) => {
  test.skip(!hasServices, "two servers share services, and those of `milvaion run` are private");
  const replica = await stack.replica();
  const job = await makeJob(stack.url, person, { name: "Next door", input: shell("sleep 0.3; echo knock") });
  await page.goto(`${replica.url}/occurrences`);
  await ready(page);
  await live(page);
  const run = await runJob(stack.url, person, job);
  await expect(row(page, run)).toHaveAttribute("data-status", "completed");
  await expect(row(page, run)).toHaveAttribute("data-event-at", /Z$/);
  await row(page, run).locator("a.row-link").click();
  await expect(page.locator(".log-lines")).toContainText("knock");
  const second = await runJob(replica.url, person, job);
  await page.goto(`${stack.url}/occurrences/${second}`);
  await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "completed");
});
