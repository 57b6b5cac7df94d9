// What people stop by hand: one occurrence that is cancelled, and everything at once.

import { makeJob, pauseJob, reached, runJob, shell } from "../fixtures/jobs";
import { call, invited, type Person, signIn } from "../fixtures/people";
import { expect, live, open, shot, test } from "../fixtures/test";

test.use({ scene: "stops" });
test.describe.configure({ mode: "serial" });

let operator: Person;

test.beforeAll(async ({ stack, person }) => {
  operator = await invited(stack.url, person, "Oscar Operator", "operator");
});

test("what waits for a worker that is absent is cancelled, after a question", async ({ context, page, stack }) => {
  await signIn(context, stack.url, operator);
  const job = await makeJob(stack.url, operator, { name: "Wait for nobody", target: "absent/sweep", input: {} });
  const run = await runJob(stack.url, operator, job);
  await open(page, `/occurrences/${run}`);
  await live(page);
  await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "queued");
  await expect(page.getByText("no live worker offers absent/sweep")).toBeVisible();

  await page.getByRole("button", { name: "Cancel…" }).click();
  const dialog = page.getByRole("dialog", { name: "Cancel this occurrence of Wait for nobody?" });
  await expect(dialog.getByRole("button", { name: "Keep it" })).toBeFocused();
  await expect(dialog).toContainText("will not run");
  await shot(page, "dialog-cancel");
  await page.keyboard.press("Escape");
  await expect(dialog).toBeHidden();
  await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "queued");

  await page.getByRole("button", { name: "Cancel…" }).click();
  await dialog.getByLabel("Reason").fill("nobody will come");
  await dialog.getByRole("button", { name: "Cancel occurrence" }).click();
  await expect(page.locator(".toast").filter({ hasText: "The occurrence is cancelled." })).toBeVisible();
  await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "cancelled");
  await expect(page.locator("#occurrence-status")).toContainText("Cancelled");
  await expect(page.locator(".timeline li strong")).toHaveText(["Queued", "Cancelled"]);
  await expect(page.getByRole("status").filter({ hasText: "nobody will come" })).toBeVisible();
  // There is nothing left to cancel.
  await expect(page.getByRole("button", { name: "Cancel…" })).toHaveCount(0);
  await shot(page, "occurrence-cancelled");

  // Whoever asks too late is told so.
  const late = await call(stack.url, operator.session, "cancel_occurrence", { id: run });
  expect(late.status, late.text).toBe(409);
  expect(late.text).toContain("has ended already");
});

test("what runs is asked to end, and ends", async ({ context, page, stack }) => {
  await signIn(context, stack.url, operator);
  const job = await makeJob(stack.url, operator, { name: "Sleep long", input: shell("echo good night; sleep 60") });
  const run = await runJob(stack.url, operator, job);
  await reached(stack.url, operator, run, "running");
  await open(page, `/occurrences/${run}`);
  await page.getByRole("button", { name: "Cancel…" }).click();
  const dialog = page.getByRole("dialog", { name: "Cancel this occurrence of Sleep long?" });
  await expect(dialog).toContainText("Its worker is asked to end it");
  await dialog.getByRole("button", { name: "Cancel occurrence" }).click();
  await expect(page.locator(".toast").filter({ hasText: "The worker was asked to end it." })).toBeVisible();
  await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "cancelled", { timeout: 20_000 });
});

test("everything is paused with a reason, everybody sees it, and it is resumed", async ({ admin, browser, person, stack, watch }) => {
  const job = await makeJob(stack.url, person, { name: "Tick", input: shell("true"), every: 1 });
  // Somebody else looks at the same page meanwhile.
  const elsewhere = await browser.newContext({ baseURL: stack.url });
  watch.follow(elsewhere);
  await signIn(elsewhere, stack.url, operator);
  const other = await elsewhere.newPage();
  await open(other, "/");
  await live(other);
  await open(admin, "/");
  await live(admin);
  await expect(admin.getByText("Paused by")).toHaveCount(0);

  await admin.getByRole("button", { name: "Pause all schedules…" }).click();
  const dialog = admin.getByRole("dialog", { name: "Pause all schedules?" });
  await shot(admin, "dialog-pause-all");
  // Without a reason the browser itself keeps the form back.
  await dialog.getByRole("button", { name: "Pause all schedules" }).click();
  await expect(dialog.getByLabel("Reason")).toBeFocused();
  await expect(dialog).toBeVisible();
  await dialog.getByLabel("Reason").fill("the cellar is under water");
  await dialog.getByRole("button", { name: "Pause all schedules" }).click();
  await expect(admin.locator(".toast").filter({ hasText: "All schedules are paused." })).toBeVisible();
  for (const seen of [admin, other]) {
    const banner = seen.getByRole("status").filter({ hasText: `Paused by ${person.email} since` });
    await expect(banner).toContainText(": the cellar is under water. Nothing is fired until somebody resumes.");
    await expect(banner.getByRole("button", { name: "Resume" })).toBeVisible();
    await expect(seen.getByRole("button", { name: "Pause all schedules…" })).toHaveCount(0);
  }
  await shot(admin, "overview-paused");
  const refused = await call(stack.url, operator.session, "trigger_job", { id: job });
  expect(refused.status, refused.text).toBe(409);

  // Anybody who may can let it go on, and everybody sees that too.
  await other.getByRole("button", { name: "Resume" }).click();
  await expect(other.locator(".toast").filter({ hasText: "All schedules are resumed." })).toBeVisible();
  for (const seen of [admin, other]) {
    await expect(seen.locator("#paused")).toHaveCount(0);
    await expect(seen.getByRole("button", { name: "Pause all schedules…" })).toBeVisible();
  }
  await pauseJob(stack.url, person, job);
  await elsewhere.close();
});
