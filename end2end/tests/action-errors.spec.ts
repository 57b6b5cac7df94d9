// The error of an action stays where the action is, until the next try or until the user dismisses it.

import type { Locator, Page } from "@playwright/test";

import { jobAction, makeJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { expect, open, screenshot, test, waitForLive } from "../fixtures/test";
import { callServerFunction, COOKIE } from "../fixtures/users";

test.use({ stackName: "runs" });

const REFUSAL = "PostgreSQL is unreachable. Nothing was changed; try again in a moment.";

/** Answers each call of `name` as a server does whose PostgreSQL is down; with `only`, each call that contains it. */
async function refuse(page: Page, name: string, only = ""): Promise<void> {
  await page.route(`**/api/${name}`, (route) =>
    (route.request().postData() ?? "").includes(only)
      ? route.fulfill({
          status: 503,
          contentType: "application/json",
          headers: { serverfnerror: `/api/${name}` },
          body: JSON.stringify({ unavailable: REFUSAL }),
        })
      : route.continue(),
  );
}

async function allow(page: Page, name: string): Promise<void> {
  await page.unroute(`**/api/${name}`);
}

/** The errors that are shown inside `place`. */
function errors(place: Page | Locator): Locator {
  return place.locator(".action-error .notice");
}

test("an error in a row outlives the toasts of other actions", async ({ admin: page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 503/);
  const refused = await makeJob(stack.url, firstAdmin, { name: "Refused row", input: shell("true") });
  await makeJob(stack.url, firstAdmin, { name: "Allowed row", input: shell("true") });
  await page.clock.install();
  await open(page, "/jobs?q=row");
  await refuse(page, "trigger_job", refused);
  const row = page.locator(`tr[data-id="${refused}"]`);
  const run = row.getByRole("button", { name: "Run now: Refused row" });
  await run.click();
  await expect(errors(row)).toContainText(REFUSAL);
  await screenshot(page, "jobs-action-error");

  for (let round = 0; round < 2; round += 1) {
    const answered = page.waitForResponse("**/api/trigger_job");
    await page.getByRole("button", { name: "Run now: Allowed row" }).click();
    const occurrence = (await (await answered).json()) as string;
    await waitForStatus(stack.url, firstAdmin, occurrence, "completed");
    await expect(page.locator(".toast").filter({ hasText: "Allowed row is queued to run now." }).first()).toBeVisible();
    await expect(errors(row)).toContainText(REFUSAL);
  }
  // The pointer must not be on the toasts, which would stay.
  await page.mouse.move(0, 0);
  // Longer than a toast is shown.
  await page.clock.runFor(20_000);
  await expect(page.locator(".toast")).toHaveCount(0);
  await expect(errors(row)).toContainText(REFUSAL);

  await allow(page, "trigger_job");
  await run.click();
  const queued = page.locator(".toast").filter({ hasText: "Refused row is queued to run now." });
  await expect(queued.getByRole("link", { name: "View run" })).toHaveAttribute("href", /^\/occurrences\/[0-9a-f-]{36}$/);
  await expect(errors(row)).toHaveCount(0);
});

test("an error stays until it is dismissed", { tag: "@all" }, async ({ admin: page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 404/);
  const job = await makeJob(stack.url, firstAdmin, { name: "Deleted elsewhere", input: shell("true") });
  await open(page, `/jobs/${job}`);
  const deleted = await callServerFunction(stack.url, firstAdmin.session, "delete_job", { id: job });
  expect(deleted.status, deleted.text).toBe(200);
  await page.getByRole("button", { name: "Run now: Deleted elsewhere" }).click();
  await expect(errors(page)).toContainText("This job does not exist or was deleted.");
  await expect(page.locator(".toast")).toHaveCount(0);
  await errors(page).getByRole("button", { name: "Dismiss the error" }).click();
  await expect(errors(page)).toHaveCount(0);
});

test("a refused pause keeps its dialog and its reason", async ({ admin: page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 503/);
  const job = await makeJob(stack.url, firstAdmin, { name: "Hard to pause", input: shell("true") });
  await open(page, `/jobs/${job}`);
  await waitForLive(page);
  await refuse(page, "set_job_active");
  await page.getByRole("button", { name: "Pause…" }).click();
  const dialog = page.getByRole("dialog", { name: "Pause Hard to pause?" });
  await dialog.getByLabel("Reason").fill("new pipes");
  await dialog.getByRole("button", { name: "Pause job" }).click();
  await expect(errors(dialog)).toContainText(REFUSAL);
  await expect(dialog.getByLabel("Reason")).toHaveValue("new pipes");
  await expect(page.locator(".toast")).toHaveCount(0);
  await screenshot(page, "dialog-pause-refused");
  // A pause by another user leaves the dialog and the reason, without the action.
  for (const active of [false, true]) {
    const answer = await callServerFunction(stack.url, firstAdmin.session, "set_job_active", { id: job, active: String(active) });
    expect(answer.status, answer.text).toBe(200);
    await expect(dialog.getByText("The job is paused already.")).toHaveCount(active ? 0 : 1);
    await expect(dialog.getByLabel("Reason")).toHaveValue("new pipes");
  }
  await allow(page, "set_job_active");
  await dialog.getByRole("button", { name: "Pause job" }).click();
  await expect(dialog).toHaveCount(0);
  await expect(page.getByText("Reason: new pipes")).toBeVisible();
  const resume = page.getByRole("button", { name: "Resume: Hard to pause" });
  await expect(resume).toBeFocused();

  // A refused undo is shown on the page of its job, which stays paused.
  const toast = page.locator(".toast").filter({ hasText: "Hard to pause is paused." });
  await refuse(page, "set_job_active");
  await toast.getByRole("button", { name: "Undo" }).click();
  await expect(errors(page)).toContainText(REFUSAL);
  await expect(page.getByText("This job is paused")).toBeVisible();
  await expect(page.locator(".toast")).toHaveCount(0);
  await expect(resume).toBeFocused();
  await screenshot(page, "job-action-error");
  await errors(page).getByRole("button", { name: "Dismiss the error" }).click();
  await expect(errors(page)).toHaveCount(0);
  await expect(resume).toBeFocused();
  await allow(page, "set_job_active");
  await resume.click();
  await expect(page.locator(".toast").filter({ hasText: "Hard to pause is resumed." })).toBeVisible();
  await expect(errors(page)).toHaveCount(0);
});

test("a refused undo is shown after its page was left", { tag: "@all" }, async ({ admin: page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 503/);
  const job = await makeJob(stack.url, firstAdmin, { name: "Left behind", input: shell("true") });
  await open(page, `/jobs/${job}`);
  await page.getByRole("button", { name: "Pause…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Pause job" }).click();
  const toast = page.locator(".toast").filter({ hasText: "Left behind is paused." });
  await expect(toast).toBeVisible();
  await page.locator(".sidenav").getByRole("link", { name: "Workers" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Workers");
  await refuse(page, "set_job_active");
  await toast.getByRole("button", { name: "Undo" }).click();
  await expect(page.locator(".page-notices")).toContainText(`“Pause or resume” failed. ${REFUSAL}`);
  await expect(page.locator(".toast")).toHaveCount(0);
  await page.locator(".sidenav").getByRole("link", { name: "Jobs" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Jobs");
  await expect(page.locator(".page-notices .notice")).toHaveCount(0);
});

test("an undone resume restores the reason of the pause", { tag: "@all" }, async ({ admin: page, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Waiting job", input: shell("true") });
  const fields = { id: job, active: "false", reason: "waiting for parts" };
  const paused = await callServerFunction(stack.url, firstAdmin.session, "set_job_active", fields);
  expect(paused.status, paused.text).toBe(200);
  // The list does not contain the reason, and the page of the job does.
  for (const path of ["/jobs?q=Waiting+job", `/jobs/${job}`]) {
    await open(page, path);
    await page.getByRole("button", { name: "Resume: Waiting job" }).click();
    const toast = page.locator(".toast").filter({ hasText: "Waiting job is resumed." });
    await expect(toast).toBeVisible();
    const undone = page.waitForResponse("**/api/set_job_active");
    await toast.getByRole("button", { name: "Undo" }).click();
    expect((await undone).status(), path).toBe(200);
    await open(page, `/jobs/${job}`);
    await expect(page.getByText("Reason: waiting for parts"), path).toBeVisible();
  }
});

test("a refused deletion is shown near its button", { tag: "@all" }, async ({ admin: page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 503/);
  const job = await makeJob(stack.url, firstAdmin, { name: "Stubborn", input: shell("true") });
  await open(page, `/jobs/${job}`);
  const confirm = async () => {
    await jobAction(page, "Delete…");
    const dialog = page.getByRole("dialog", { name: "Delete job Stubborn?" });
    await dialog.getByRole("button", { name: "Delete job" }).click();
  };
  await refuse(page, "delete_job");
  await confirm();
  await expect(errors(page)).toContainText(REFUSAL);
  await expect(page.locator(".toast")).toHaveCount(0);
  await allow(page, "delete_job");
  await confirm();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Jobs");
  await expect(page.locator(".toast").filter({ hasText: "The job Stubborn is deleted." })).toBeVisible();
});

test("a refused cancellation is shown near its button", { tag: "@all" }, async ({ admin: page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 503/);
  const job = await makeJob(stack.url, firstAdmin, { name: "Long run", input: shell("sleep 60") });
  const run = await runJob(stack.url, firstAdmin, job);
  await waitForStatus(stack.url, firstAdmin, run, "running");
  await open(page, `/occurrences/${run}`);
  await waitForLive(page);
  await refuse(page, "cancel_occurrence");
  const dialog = page.getByRole("dialog", { name: "Cancel this run of Long run?" });
  await page.getByRole("button", { name: "Cancel run…" }).click();
  await dialog.getByLabel("Reason").fill("wrong input");
  await dialog.getByRole("button", { name: "Cancel run" }).click();
  await expect(errors(page)).toContainText(REFUSAL);
  await expect(page.locator(".toast")).toHaveCount(0);
  await allow(page, "cancel_occurrence");
  await page.getByRole("button", { name: "Cancel run…" }).click();
  await expect(dialog.getByLabel("Reason")).toHaveValue("wrong input");
  await dialog.getByRole("button", { name: "Cancel run" }).click();
  await expect(page.locator(".toast").filter({ hasText: "A cancel request was sent to the worker." })).toBeVisible();
  await expect(errors(page)).toHaveCount(0);
  await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "cancelled", { timeout: 20_000 });
});

test("a refused resume of the cluster is shown in its banner", { tag: "@all" }, async ({ admin: page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 503/);
  const reason = "the disk is full";
  const paused = await callServerFunction(stack.url, firstAdmin.session, "pause_cluster", { reason });
  expect(paused.status, paused.text).toBe(200);
  await open(page, "/help");
  await waitForLive(page);
  const banner = page.locator(".banners #paused");
  await refuse(page, "resume_cluster");
  await banner.getByRole("button", { name: "Resume" }).click();
  await expect(errors(banner)).toContainText(REFUSAL);
  await expect(page.locator(".toast")).toHaveCount(0);
  await screenshot(page, "banner-action-error");
  await allow(page, "resume_cluster");
  await banner.getByRole("button", { name: "Resume" }).click();
  await expect(page.locator(".toast").filter({ hasText: "All schedules are resumed." })).toBeVisible();
  await expect(banner).toHaveCount(0);
});

test("a refused revocation is shown above the team", { tag: "@all" }, async ({ admin: page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 503/);
  const fields = { name: "Never Mind", role: "viewer" };
  const invited = await callServerFunction(stack.url, firstAdmin.session, "invite_user", fields);
  expect(invited.status, invited.text).toBe(200);
  await open(page, "/team");
  const revoke = async () => {
    await page.getByRole("button", { name: "Revoke the invitation of Never Mind" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
  };
  const main = page.getByRole("main");
  await refuse(page, "revoke_invite");
  await revoke();
  await expect(errors(main)).toContainText(REFUSAL);
  await expect(page.locator(".toast")).toHaveCount(0);
  await allow(page, "revoke_invite");
  await revoke();
  await expect(page.locator(".toast").filter({ hasText: "The invitation is revoked." })).toBeVisible();
  await expect(page.getByRole("row").filter({ hasText: "Never Mind" })).toHaveCount(0);
  await expect(errors(main)).toHaveCount(0);
});

test("a failure is retried once however often its button is clicked", async ({ admin: page, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Impatient", input: shell("exit 7") });
  const run = await runJob(stack.url, firstAdmin, job);
  await waitForStatus(stack.url, firstAdmin, run, "failed");
  await open(page, `/failed/${run}`);
  let calls = 0;
  page.on("request", (request) => {
    calls += new URL(request.url()).pathname === "/api/retry_failure" ? 1 : 0;
  });
  await page.getByRole("button", { name: "Retry" }).evaluate((button: HTMLElement) => {
    // Clicks until the page of the new occurrence has replaced the button.
    const timer = setInterval(() => (button.isConnected ? button.click() : clearInterval(timer)), 1);
  });
  await expect(page).toHaveURL(/\/occurrences\/[0-9a-f-]{36}$/);
  await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "failed");
  expect(calls).toBe(1);
});

test("a signed-out error links to the sign-in page", async ({ admin: page, context, stack, firstAdmin, watch }) => {
  watch.expect(/status of (401|403)/);
  const job = await makeJob(stack.url, firstAdmin, { name: "Locked out", input: shell("true") });
  await open(page, `/jobs/${job}`);
  // A stream that connects without the cookie ends the session of the page before an action can.
  await waitForLive(page);
  await context.clearCookies({ name: COOKIE });
  const address = `/login?next=/jobs/${job}&reason=signed-out`;

  await jobAction(page, "Run with different input…");
  const dialog = page.getByRole("dialog", { name: "Run Locked out with different input" });
  await dialog.getByRole("button", { name: "Run", exact: true }).click();
  await expect(dialog.locator(".error-summary")).toContainText("You are signed out. Sign in and try again.");
  await expect(dialog.locator(".error-summary").getByRole("link", { name: "Sign in" })).toHaveAttribute("href", address);
  await dialog.getByRole("button", { name: "Cancel" }).click();

  await page.getByRole("button", { name: "Run now: Locked out" }).click();
  await expect(errors(page)).toContainText("You are signed out. Sign in and try again.");
  const link = errors(page).getByRole("link", { name: "Sign in" });
  await expect(link).toHaveAttribute("href", address);
  await link.click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Sign in");
  await expect(page.locator("#session-end")).toHaveText("Your session has ended. Sign in to continue.");
});
