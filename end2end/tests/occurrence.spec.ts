// The page of an occurrence: its log with gaps and times, and a cancel request until the run ends.

import { existsSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { makeJob, runJob, shell } from "../fixtures/jobs";
import { expect, open, resumeLive, row, screenshot, test, waitForLive, waitUntilStable } from "../fixtures/test";
import { apiClient, type TestUser } from "../fixtures/users";

test.use({ stackName: "runs" });

/** The folder of the files that the jobs wait for. */
let folder: string;

test.beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "milvaion-occurrence-"));
});

test.afterAll(async () => {
  await rm(folder, { recursive: true, force: true });
});

/** Returns a shell command that waits until a file exists. */
function waitFor(file: string): string {
  return `while [ ! -e ${join(folder, file)} ]; do sleep 0.1; done`;
}

/** Creates a file that a job waits for. */
async function create(file: string): Promise<void> {
  await writeFile(join(folder, file), "");
}

/** Returns the number of stored log lines of an occurrence. */
async function storedLines(url: string, user: TestUser, id: string): Promise<number> {
  const client = await apiClient(url, user.session);
  try {
    const answer = await client.get(`/api/occurrence?id=${id}&log_after=-1`);
    expect(answer.status(), await answer.text()).toBe(200);
    const view = (await answer.json()) as { log: unknown[]; logSkipped: number };
    return view.log.length + view.logSkipped;
  } finally {
    await client.dispose();
  }
}

test("missed log lines are stated and loaded by range", async ({ admin: page, firstAdmin, stack }) => {
  const script = [
    "echo ready",
    waitFor("write"),
    'i=0; while [ $i -lt 1300 ]; do echo "line $i"; i=$((i+1)); done',
    waitFor("end"),
    "echo done",
  ].join("; ");
  const job = await makeJob(stack.url, firstAdmin, { name: "Talkative", input: shell(script) });
  const run = await runJob(stack.url, firstAdmin, job);
  await open(page, `/occurrences/${run}`);
  await waitForLive(page);
  await expect(page.locator(".log-lines")).toContainText("ready");
  await waitUntilStable(page);
  const before = await storedLines(stack.url, firstAdmin, run);
  await expect(page.locator(".log-line")).toHaveCount(before);

  await create("write");
  await expect.poll(() => storedLines(stack.url, firstAdmin, run), { timeout: 30_000 }).toBe(before + 1_300);
  await expect(page.locator(".log-line")).toHaveCount(before);

  await resumeLive(page);
  await waitForLive(page);
  const gap = page.locator(".log-gap");
  await expect(gap).toContainText("800 lines not loaded");
  await expect(page.locator(".log-line")).toHaveCount(before + 500);
  await expect(page.locator(".log-tools")).toContainText(`${before + 500} lines loaded`);
  await screenshot(page, "occurrence-log-gap");
  // The lines after the gap are the newest ones.
  await expect(page.locator(".log-text").last()).toHaveText("line 1299");

  await gap.getByRole("button", { name: "Load the next 500" }).click();
  await expect(gap).toContainText("300 lines not loaded");
  await gap.getByRole("button", { name: "Load them" }).click();
  await expect(gap).toHaveCount(0);
  await expect(page.locator(".log-line")).toHaveCount(before + 1_300);
  const texts = await page.locator(".log-text").allTextContents();
  expect(texts.filter((text) => text.startsWith("line "))).toEqual(Array.from({ length: 1_300 }, (_, i) => `line ${i}`));

  await create("end");
  await expect(page.locator(".log-lines")).toContainText("done");
  await expect(gap).toHaveCount(0);
  await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "completed", { timeout: 20_000 });
});

test("log times state their zone and follow its switch", { tag: "@all" }, async ({ admin: page, firstAdmin, stack }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Clockwork", input: shell("echo tick") });
  const run = await runJob(stack.url, firstAdmin, job);
  await open(page, `/occurrences/${run}`);
  await waitForLive(page);
  const line = page.locator(".log-line").filter({ hasText: "tick" });
  const time = line.locator("time");
  await expect(page.locator(".log-zone")).toHaveText("Times in America/New_York");
  await expect(time).toHaveAttribute("datetime", /Z$/);
  await expect(time).toHaveAttribute("title", / UTC$/);
  const utc = ((await time.getAttribute("datetime")) ?? "").slice(11, 23);
  await expect(time).not.toHaveText(utc);

  await page.getByRole("button", { name: "Time zone: Local" }).click();
  await expect(page.locator(".log-zone")).toHaveText("Times in UTC");
  await expect(time).toHaveText(utc);
});

test("a cancel request is shown until the run ends", async ({ admin: page, context, firstAdmin, stack }) => {
  // The worker stands still while the request is stored, so that it cannot end the run meanwhile.
  const script = [
    "echo ready",
    waitFor("stop"),
    `kill -STOP $PPID; touch ${join(folder, "stopped")}`,
    waitFor("continue"),
    "kill -CONT $PPID",
    waitFor("never"),
  ].join("; ");
  const job = await makeJob(stack.url, firstAdmin, { name: "Stubborn", input: shell(script) });
  const run = await runJob(stack.url, firstAdmin, job);
  const list = await context.newPage();
  await open(list, "/occurrences");
  await waitForLive(list);
  await open(page, `/occurrences/${run}`);
  await waitForLive(page);
  await expect(page.locator(".log-lines")).toContainText("ready");
  await create("stop");
  const badge = page.locator("#occurrence-status .badge");
  const explanation = page.locator("#occurrence-explanation");
  try {
    await expect.poll(() => existsSync(join(folder, "stopped"))).toBe(true);
    await page.getByRole("button", { name: "Cancel run…" }).click();
    const dialog = page.getByRole("dialog", { name: "Cancel this run of Stubborn?" });
    await dialog.getByLabel("Reason").fill("wrong input");
    await dialog.getByRole("button", { name: "Cancel run" }).click();
    await expect(badge).toHaveText("Cancelling…");
    await expect(explanation).toContainText(`Cancelling, requested by ${firstAdmin.email}: wrong input.`);
    await expect(explanation).toContainText("has not reported the end of the run yet");
    await expect(page.getByRole("button", { name: "Cancel run…" })).toHaveAttribute("aria-disabled", "true");
    await expect(page.locator(".timeline li strong")).toHaveText(["Queued", "Running", "Cancel requested"]);
    await expect(row(list, run).locator(".badge")).toHaveText("Cancelling…");
    await screenshot(page, "occurrence-cancelling");
  } finally {
    await create("continue");
  }
  await expect(badge).toHaveText("Cancelled", { timeout: 20_000 });
  await expect(row(list, run).locator(".badge")).toHaveText("Cancelled");
  await expect(explanation).toContainText("wrong input");
  await expect(page.locator(".timeline li strong")).toHaveText(["Queued", "Running", "Cancel requested", "Cancelled"]);
  // The reason is stated in the explanation and at the request, not again as a note and as an exception.
  await expect(page.getByRole("main").getByText("wrong input")).toHaveCount(2);
  await expect(page.getByRole("button", { name: "Cancel run…" })).toHaveCount(0);
});
