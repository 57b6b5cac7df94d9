// Cancelling an occurrence, and pausing and resuming the whole cluster.

import { form, jobAction, makeJob, pauseJob, runJob, shell } from "../fixtures/jobs";
import { expect, open, row, screenshot, test, waitForLive } from "../fixtures/test";
import { callServerFunction, inviteUser, signIn } from "../fixtures/users";

test.use({ stackName: "runs" });

test("a queued occurrence is cancelled after confirmation", async ({ context, page, stack, firstAdmin }) => {
  const operator = await inviteUser(stack.url, firstAdmin, "Oscar Operator", "operator");
  await signIn(context, stack.url, operator);
  const job = await makeJob(stack.url, operator, { name: "Absent worker", target: "absent/sweep", input: {} });
  const run = await runJob(stack.url, operator, job);
  const second = await runJob(stack.url, operator, job);
  await open(page, `/occurrences/${run}`);
  await waitForLive(page);
  await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "queued");
  await expect(page.getByText("no live worker offers absent/sweep")).toBeVisible();

  await page.getByRole("button", { name: "Cancel run…" }).click();
  const dialog = page.getByRole("dialog", { name: "Cancel this run of Absent worker?" });
  await expect(dialog.getByRole("button", { name: "Keep run" })).toBeFocused();
  await expect(dialog).toContainText("will not run");
  await screenshot(page, "dialog-cancel");
  await page.keyboard.press("Escape");
  await expect(dialog).toBeHidden();
  await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "queued");

  await page.getByRole("button", { name: "Cancel run…" }).click();
  await dialog.getByLabel("Reason").fill("no such worker");
  await dialog.getByRole("button", { name: "Cancel run" }).click();
  await expect(page.locator(".toast").filter({ hasText: "The occurrence is cancelled." })).toBeVisible();
  await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "cancelled");
  await expect(page.locator("#occurrence-status")).toContainText("Cancelled");
  await expect(page.locator(".timeline li strong")).toHaveText(["Queued", "Cancelled"]);
  await expect(page.getByRole("status").filter({ hasText: "no such worker" })).toBeVisible();
  // A cancelled occurrence has no Cancel button.
  await expect(page.getByRole("button", { name: "Cancel run…" })).toHaveCount(0);
  await expect(page.getByRole("heading", { level: 1 })).toBeFocused();
  await screenshot(page, "occurrence-cancelled");

  // A run that ends elsewhere leaves the open dialog and its reason, without the action.
  await page.locator(".kv").getByRole("link", { name: "Absent worker" }).click();
  await row(page, second).locator("a.row-link").click();
  await page.getByRole("button", { name: "Cancel run…" }).click();
  await dialog.getByLabel("Reason").fill("wrong input");
  const ended = await callServerFunction(stack.url, operator.session, "cancel_occurrence", { id: second });
  expect(ended.status, ended.text).toBe(200);
  await expect(dialog).toContainText("The run has ended and cannot be cancelled.");
  await expect(dialog.getByLabel("Reason")).toHaveValue("wrong input");
  await expect(dialog.getByRole("button", { name: "Cancel run" })).toHaveAttribute("aria-disabled", "true");
  await dialog.getByRole("button", { name: "Keep run" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toBeFocused();
});

test("a cluster pause and its resume are visible to every user", async ({ admin, openBrowser, firstAdmin, stack }) => {
  const operator = await inviteUser(stack.url, firstAdmin, "Olga Operator", "operator");
  const job = await makeJob(stack.url, firstAdmin, { name: "Tick", input: shell("true"), every: 60 });
  // Another user has the same page open.
  const other = await (await openBrowser(operator)).newPage();
  await open(other, "/");
  await waitForLive(other);
  await open(admin, "/");
  await waitForLive(admin);
  await expect(admin.getByText("Paused by")).toHaveCount(0);

  // The other user is about to pause the cluster too.
  await other.getByRole("button", { name: "Pause all schedules…" }).click();
  const late = other.getByRole("dialog", { name: "Pause all schedules?" });
  await late.getByLabel("Reason").fill("the disk is full");
  await admin.getByRole("button", { name: "Pause all schedules…" }).click();
  const dialog = admin.getByRole("dialog", { name: "Pause all schedules?" });
  await screenshot(admin, "dialog-pause-all");
  // The browser does not submit the form without a reason.
  await dialog.getByRole("button", { name: "Pause all schedules" }).click();
  await expect(dialog.getByLabel("Reason")).toBeFocused();
  await expect(dialog).toBeVisible();
  await dialog.getByLabel("Reason").fill("the database is being upgraded");
  await dialog.getByRole("button", { name: "Pause all schedules" }).click();
  await expect(admin.locator(".toast").filter({ hasText: "All schedules are paused." })).toBeVisible();
  await expect(late).toContainText("All schedules are paused already.");
  await expect(late.getByLabel("Reason")).toHaveValue("the disk is full");
  await expect(late.getByRole("button", { name: "Pause all schedules" })).toHaveAttribute("aria-disabled", "true");
  await late.getByRole("button", { name: "Cancel" }).click();
  for (const page of [admin, other]) {
    const banner = page.getByRole("status").filter({ hasText: `Paused by ${firstAdmin.email} since` });
    await expect(banner).toContainText(": the database is being upgraded. No schedule starts a run until the pause ends.");
    await expect(banner.getByRole("button", { name: "Resume" })).toBeVisible();
    await expect(page.getByRole("button", { name: "Pause all schedules…" })).toHaveCount(0);
    await expect(page.getByRole("heading", { level: 1 })).toBeFocused();
  }
  await screenshot(admin, "overview-paused");
  const refused = await callServerFunction(stack.url, operator.session, "trigger_job", { id: job });
  expect(refused.status, refused.text).toBe(409);

  // Any user with the permission can resume, and every open page updates.
  await other.getByRole("button", { name: "Resume" }).click();
  await expect(other.locator(".toast").filter({ hasText: "All schedules are resumed." })).toBeVisible();
  await expect(other.getByRole("heading", { level: 1 })).toBeFocused();
  for (const page of [admin, other]) {
    await expect(page.locator("#paused")).toHaveCount(0);
    await expect(page.getByRole("button", { name: "Pause all schedules…" })).toBeVisible();
  }
  await pauseJob(stack.url, firstAdmin, job);
});

test("a change by another user keeps an open dialog and its reason", { tag: "@all" }, async ({ admin: page, stack, firstAdmin }) => {
  const fields = { name: "Edited meanwhile", input: shell("true") };
  const job = await makeJob(stack.url, firstAdmin, fields);
  await open(page, `/jobs/${job}`);
  await waitForLive(page);
  await page.getByRole("button", { name: "Pause…" }).click();
  const dialog = page.getByRole("dialog", { name: "Pause Edited meanwhile?" });
  await dialog.getByLabel("Reason").fill("new pipes");
  const change = async (version: string, command: string) => {
    const changed = { ...form({ ...fields, input: shell(command), tags: "plumbing" }), "form[id]": job, "form[version]": version };
    const answer = await callServerFunction(stack.url, firstAdmin.session, "save_job", changed);
    expect(answer.status, answer.text).toBe(200);
  };
  await change("1", "echo two");
  await expect(page.locator("main")).toContainText("plumbing");
  await expect(dialog).toBeVisible();
  await expect(dialog.getByLabel("Reason")).toHaveValue("new pipes");
  await dialog.getByRole("button", { name: "Cancel" }).click();

  // A run starts from the input that the job has now. An open dialog keeps its text and offers the new input.
  await jobAction(page, "Run with different input…");
  const run = page.getByRole("dialog", { name: "Run Edited meanwhile with different input" });
  const input = run.getByLabel("Input as JSON");
  await expect(input).toHaveValue(/echo two/);
  await change("2", "echo three");
  await expect(run).toContainText("The input of the job was changed after this text was filled in.");
  await expect(input).toHaveValue(/echo two/);
  await run.getByRole("button", { name: "Use the input of the job" }).click();
  await expect(input).toHaveValue(/echo three/);
  await expect(input).toBeFocused();
});
