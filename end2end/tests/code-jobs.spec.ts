// Jobs from code: a schedule that a worker declares becomes a job, an edit detaches it and it is attached again; runs show
// the occurrences that they enqueue; delayed occurrences are counted and cancelled.

import type { Page } from "@playwright/test";

import { checkThemes } from "../fixtures/axe";
import { makeJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { hasServices, type TestStack } from "../fixtures/stack";
import { expect, open, screenshot, test, waitForLive } from "../fixtures/test";
import { apiClient, inviteUser, signIn, type TestUser } from "../fixtures/users";

test.use({ stackName: "code-jobs" });
test.describe.configure({ mode: "serial" });
test.skip(!hasServices, "the workers need the addresses of the services");

/** Opens the list of jobs until it has a job with this name, and then the page of that job. */
async function openJob(page: Page, name: string): Promise<void> {
  const link = page.getByRole("link", { name, exact: true });
  await expect(async () => {
    await page.goto("/jobs");
    await expect(link).toBeVisible({ timeout: 1_000 });
  }).toPass({ timeout: 30_000 });
  const path = await link.getAttribute("href");
  await open(page, path ?? "");
}

/** Sends a request to the API on behalf of a user, which must succeed, and returns the text of the answer. */
async function api(stack: TestStack, user: TestUser, method: string, path: string, data: unknown): Promise<string> {
  const context = await apiClient(stack.url, user.session);
  const answer = await context.fetch(`/api/v1${path}`, { method, data });
  const text = await answer.text();
  expect(answer.ok(), text).toBe(true);
  await context.dispose();
  return text;
}

/** Enqueues delayed occurrences of the job `reminder`. */
async function enqueueDelayed(stack: TestStack, user: TestUser, count: number): Promise<void> {
  const notBefore = new Date(Date.now() + 3_600_000).toISOString();
  const occurrences = Array.from({ length: count }, () => ({ jobKey: "reminder", notBefore }));
  const text = await api(stack, user, "POST", "/occurrences", { occurrences });
  expect(text.match(/"accepted"/g)?.length, text).toBe(count);
}

test("a schedule in code is a job that an edit detaches", async ({ admin: page, stack }) => {
  const worker = stack.exampleWorker("schedule", "reports");
  await openJob(page, "report: nightly");
  const source = page.locator("#job-code");
  await expect(source).toContainText("Schedule nightly in the code of worker reports, job type report.");
  await expect(source).toContainText("An edit here detaches it from the code.");
  await screenshot(page, "code-job");
  await checkThemes(page, "code-job");

  await page.getByRole("link", { name: "Edit" }).click();
  await expect(source).toContainText("A change here detaches it");
  await page.getByLabel("Name", { exact: true }).fill("report: every night");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("report: every night");
  await expect(source).toContainText("It is detached from the code since");
  await expect(source).toContainText("when ada@example.org edited it: a deployment does not change it.");
  await checkThemes(page, "code-job-detached");

  await page.getByRole("button", { name: "Attach to the code" }).click();
  await expect(page.getByText("The job follows the code again.")).toBeVisible();
  await expect(source).toContainText("An edit here detaches it from the code.");
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("report: nightly");
  await expect(page.getByRole("button", { name: "Attach to the code" })).toHaveCount(0);

  // A new job of this type starts with the rules that the code declares, and another type takes them away again.
  const retries = page.getByLabel("Maximum retries");
  const skip = page.locator('input[name="form[rules][overlap]"][value="skip"]');
  const tags = page.getByLabel("Tags");
  await open(page, "/jobs/new?type=reports%2Freport");
  await expect(retries).toHaveValue("3");
  await expect(skip).toBeChecked();
  await expect(tags).toHaveValue("reports");
  await expect(page.getByText("The code of this job type declares rules for its jobs.")).toBeVisible();
  await screenshot(page, "new-job-with-declared-rules");
  await checkThemes(page, "new-job-with-declared-rules");
  await page.getByLabel("First retry delay").fill("30");
  await page.getByRole("radio", { name: "shell-command" }).check();
  await expect(retries).toHaveValue("0");
  await expect(skip).not.toBeChecked();
  await expect(tags).toHaveValue("");
  await page.getByRole("radio", { name: /^report / }).check();
  await expect(retries).toHaveValue("3");
  await expect(page.getByLabel("First retry delay")).toHaveValue("30");
  await worker.stop();
});

test("a run and the occurrences that it enqueues lead to each other", async ({ admin: page, stack, firstAdmin }) => {
  const worker = stack.exampleWorker("enqueue", "mail");
  const input = { addresses: ["ada@example.org", "grace@example.org"] };
  const job = await makeJob(stack.url, firstAdmin, { name: "Newsletter", target: "mail/newsletter", input });
  const parent = await runJob(stack.url, firstAdmin, job);
  await waitForStatus(stack.url, firstAdmin, parent, "completed");
  await open(page, `/occurrences/${parent}`);
  const children = page.getByRole("region", { name: "Enqueued occurrences" });
  await expect(children.getByRole("listitem")).toHaveCount(3);
  await children.getByRole("link", { name: "send-mail" }).first().click();
  await expect(page).not.toHaveURL(new RegExp(parent));
  const back = page.getByRole("link", { name: parent });
  await expect(back).toBeVisible();
  await back.click();
  await expect(page).toHaveURL(new RegExp(`/occurrences/${parent}$`));
  await worker.stop();
});

test("delayed occurrences are counted, listed and cancelled", async ({ admin: page, stack, firstAdmin }) => {
  const schedule = { kind: "manual" };
  const definition = { displayName: "Reminder", workerId: "local", jobType: "shell-command", jobData: shell("true"), schedule };
  await api(stack, firstAdmin, "PUT", "/jobs/by-key/reminder", definition);
  await openJob(page, "Reminder");
  await expect(page.getByRole("button", { name: "Cancel all delayed…" })).toBeHidden();
  await waitForLive(page);
  await enqueueDelayed(stack, firstAdmin, 1);
  await expect(page.getByRole("link", { name: "1 occurrence", exact: true })).toBeVisible();
  await enqueueDelayed(stack, firstAdmin, 40);
  // The open page counts again by itself.
  const count = page.getByRole("link", { name: "41 occurrences" });
  await expect(count).toBeVisible();
  await screenshot(page, "delayed-count");
  await count.click();
  await expect(page).toHaveURL(/\/occurrences\?delayed=true&job=/);
  await expect(page.getByRole("link", { name: "Delayed", exact: true })).toHaveAttribute("aria-current", "true");
  await expect(page.locator("#occurrences tbody tr")).toHaveCount(41);
  await page.goBack();

  await page.getByRole("button", { name: "Cancel all delayed…" }).click();
  const dialog = page.getByRole("dialog");
  await expect(dialog).toContainText("Cancel 41 occurrences of Reminder that are delayed?");
  await expect(dialog.getByRole("button", { name: "Keep occurrences" })).toBeFocused();
  await checkThemes(page, "cancel-delayed-dialog");
  await dialog.getByRole("button", { name: "Cancel occurrences" }).click();
  await expect(page.getByText("41 delayed occurrences are cancelled.")).toBeVisible();
  await expect(page.getByRole("button", { name: "Cancel all delayed…" })).toBeHidden();
  await expect(page.getByRole("link", { name: "41 occurrences" })).toHaveCount(0);
});

test("delayed occurrences are cancelled without JavaScript", async ({ browser, stack, firstAdmin }) => {
  await enqueueDelayed(stack, firstAdmin, 3);
  const operator = await inviteUser(stack.url, firstAdmin, "Oscar Operator", "operator");
  const context = await browser.newContext({ baseURL: stack.url, javaScriptEnabled: false });
  await signIn(context, stack.url, operator);
  const page = await context.newPage();
  await page.goto("/jobs");
  await page.getByRole("link", { name: "Reminder", exact: true }).click();
  await page.getByRole("link", { name: "Cancel all delayed…" }).click();
  await expect(page.getByRole("heading", { name: "Cancel 3 occurrences that are delayed?" })).toBeVisible();
  await page.getByRole("button", { name: "Cancel occurrences" }).click();
  await expect(page.getByText("3 delayed occurrences are cancelled.")).toBeVisible();
  await context.close();
});
