// Lists and job pages stay true while they are open: due times, heartbeats, filters, and rows that the user works with.

import { randomUUID } from "node:crypto";
import { rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import type { Locator, Page } from "@playwright/test";

import { makeJob, pauseJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { expect, open, row, screenshot, test, waitForHydration, waitForLive } from "../fixtures/test";
import { callServerFunction } from "../fixtures/users";

test.use({ stackName: "runs" });

/** The row of a job in the jobs list. */
function jobRow(page: Page, id: string): Locator {
  return page.locator(`#job-rows tr[data-id="${id}"]`);
}

/** Waits until the `datetime` of the first matching time differs from its present value. */
async function expectNewTime(time: Locator): Promise<void> {
  const read = () => time.first().getAttribute("datetime");
  await expect(time.first()).toHaveAttribute("datetime", /^\d{4}-/);
  const before = await read();
  // A time that disappears is not a new one.
  const isNew = async () => {
    const now = await read();
    return now !== before && /^\d{4}-/.test(now ?? "");
  };
  await expect.poll(isNew, { timeout: 30_000 }).toBe(true);
}

test("an open workers page follows heartbeats", { tag: "@all" }, async ({ admin: page, stack, firstAdmin }) => {
  // The worker has registered once it has run something.
  const job = await makeJob(stack.url, firstAdmin, { name: "Pulse", input: shell("true") });
  await waitForStatus(stack.url, firstAdmin, await runJob(stack.url, firstAdmin, job), "completed");
  await open(page, "/workers");
  await waitForLive(page);
  const schema = page.locator("details").filter({ hasText: "Input schema" }).first();
  await schema.locator("summary").click();
  await expect(schema).toHaveAttribute("open", "");
  const instance = page.locator("tr[data-instance]").first();
  await expect(instance.locator('td[data-label="State"]')).toHaveText("Active");
  await expect(instance.locator('td[data-label="Running"]')).toHaveText(/^\d+ of \d+$/);
  await expectNewTime(instance.locator('td[data-label="Last heartbeat"] time'));
  // The refresh patched the page and did not replace it.
  await expect(schema).toHaveAttribute("open", "");
});

test("due times move on after a due time passes", async ({ admin: page, context, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Metronome", input: shell("true"), every: 3 });
  await open(page, "/jobs?q=Metronome");
  await waitForLive(page);
  const jobPage = await context.newPage();
  await open(jobPage, `/jobs/${job}`);
  await waitForLive(jobPage);
  await expectNewTime(jobPage.locator(".preview tbody time"));
  await page.bringToFront();
  const due = jobRow(page, job).locator('td[data-label="Next run"] time');
  await expectNewTime(due);
  await expect(jobRow(page, job).locator('td[data-label="Next run"]')).not.toContainText("ago");
  await pauseJob(stack.url, firstAdmin, job);
});

test("a search typed before hydration is kept", async ({ admin: page }) => {
  let release = () => {};
  const held = new Promise<void>((resolve) => (release = resolve));
  await page.route(/\.wasm/, async (route) => {
    await held;
    await route.continue();
  });
  await page.goto("/jobs?q=old", { waitUntil: "domcontentloaded" });
  const box = page.getByLabel("Search jobs");
  await box.fill("typed early");
  await expect(page.locator("html")).not.toHaveAttribute("data-ready", "true");
  release();
  await waitForHydration(page);
  await expect(box).toHaveValue("typed early");
  await box.press("Enter");
  await expect(page).toHaveURL(/[?&]q=typed(%20|\+)early/);
});

test("a focused row stays until the focus leaves", async ({ admin: page, stack, firstAdmin }) => {
  const flag = join(tmpdir(), `milvaion-freshness-${randomUUID()}`);
  const input = shell(`while [ ! -e ${flag} ]; do sleep 0.1; done`);
  const job = await makeJob(stack.url, firstAdmin, { name: "Patient", input });
  const run = await runJob(stack.url, firstAdmin, job);
  await waitForStatus(stack.url, firstAdmin, run, "running");
  await open(page, "/occurrences?status=running");
  await waitForLive(page);
  await row(page, run).locator("a.row-link").focus();
  await writeFile(flag, "");
  await expect(row(page, run)).toHaveAttribute("data-status", "completed");
  await expect(row(page, run)).toHaveClass(/is-leaving/);
  await expect(row(page, run)).toContainText("No longer in this list");
  await expect(row(page, run).locator("a.row-link")).toBeFocused();
  await screenshot(page, "occurrences-leaving-row");
  await page.locator("a.skip-link").focus();
  await expect(row(page, run)).toHaveCount(0);
  await rm(flag);
});

test("a new mark in the strip keeps the focus", { tag: "@all" }, async ({ admin: page, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Marks", input: shell("true") });
  const first = await runJob(stack.url, firstAdmin, job);
  await waitForStatus(stack.url, firstAdmin, first, "completed");
  await open(page, "/jobs?q=Marks");
  await waitForLive(page);
  const mark = jobRow(page, job).locator(`.strip a[href="/occurrences/${first}"]`);
  await mark.focus();
  const second = await runJob(stack.url, firstAdmin, job);
  await expect(jobRow(page, job).locator(`.strip a[href="/occurrences/${second}"]`)).toHaveAttribute("data-status", "completed");
  await expect(mark).toBeFocused();
});

test("new jobs wait while the user is in the table", async ({ admin: page, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Shelf B", input: shell("true") });
  await open(page, "/jobs?q=Shelf");
  await waitForLive(page);
  await jobRow(page, job).locator("a.row-link").focus();
  const earlier = await makeJob(stack.url, firstAdmin, { name: "Shelf A", input: shell("true") });
  const pill = page.getByRole("button", { name: "The list has changed · Show" });
  await expect(pill).toBeVisible();
  await expect(jobRow(page, earlier)).toHaveCount(0);
  await page.locator("a.skip-link").focus();
  await expect(jobRow(page, earlier)).toBeVisible();
  await expect(pill).toHaveCount(0);
});

test("a paused cluster promises no start", async ({ admin: page, context, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Held", input: shell("true"), every: 3_000 });
  await open(page, "/jobs?q=Held");
  await waitForLive(page);
  const next = jobRow(page, job).locator('td[data-label="Next run"]');
  await expect(next).toContainText(/in \d+ min/);
  const paused = await callServerFunction(stack.url, firstAdmin.session, "pause_cluster", { reason: "freshness" });
  expect(paused.status, paused.text).toBe(200);
  try {
    await expect(next).toContainText("When the cluster resumes");
    await expect(next).not.toContainText(/in \d+ min/);
    const jobPage = await context.newPage();
    await open(jobPage, `/jobs/${job}`);
    await expect(jobPage.locator("#schedule-held")).toBeVisible();
    await jobPage.close();
    await page.bringToFront();
  } finally {
    const resumed = await callServerFunction(stack.url, firstAdmin.session, "resume_cluster", {});
    expect(resumed.status, resumed.text).toBe(200);
  }
  await expect(next).toContainText(/in \d+ min/);
});

test("the jobs table fits every window", { tag: "@all" }, async ({ admin: page, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, {
    name: "Monthly reconciliation of the customer ledger",
    input: shell("true"),
    cron: "0 9 1,15 * MON-FRI",
    zone: "America/Argentina/Buenos_Aires",
    tags: "finance, month-end",
  });
  for (let index = 0; index < 10; index += 1) {
    await runJob(stack.url, firstAdmin, job);
  }
  await open(page, "/jobs?q=reconciliation");
  await expect(jobRow(page, job).locator(".strip a")).toHaveCount(10);
  for (const width of [360, 768, 1024, 1280, 1920]) {
    await page.setViewportSize({ width, height: 900 });
    const wrap = page.locator("#job-rows");
    const hidden = await wrap.evaluate((element) => element.scrollWidth - element.clientWidth);
    expect(hidden, `hidden pixels at ${width}`).toBeLessThanOrEqual(0);
    const button = await jobRow(page, job).locator(".row-actions button").last().boundingBox();
    const frame = await wrap.boundingBox();
    expect((button?.x ?? 0) + (button?.width ?? 0), `right edge at ${width}`).toBeLessThanOrEqual((frame?.x ?? 0) + (frame?.width ?? 0));
    await screenshot(page, `jobs-${width}`);
  }
});
