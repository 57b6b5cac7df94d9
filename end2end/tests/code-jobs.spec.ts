// Jobs from code: a schedule that a worker declares becomes a job, an edit detaches it and it is attached again; runs show
// the occurrences that they enqueue; delayed occurrences are counted and cancelled.

import type { Page } from "@playwright/test";

import type { ExampleWorker } from "../fixtures/example-worker";
import { jobAction, makeDelayed, makeJob, openMenu, runJob, waitForStatus } from "../fixtures/jobs";
import { hasServices } from "../fixtures/stack";
import { expect, open, screenshot, test, waitForLive } from "../fixtures/test";

test.use({ stackName: "jobs" });
test.skip(!hasServices, "the workers need the addresses of the services");

/** Opens the list of jobs until it has a job with this name, and then the page of that job. */
async function openJob(page: Page, name: string): Promise<void> {
  const link = page.getByRole("link", { name, exact: true });
  await expect(async () => {
    await page.goto(`/jobs?q=${encodeURIComponent(name)}`);
    await expect(link).toBeVisible({ timeout: 1_000 });
  }).toPass({ timeout: 30_000 });
  const path = await link.getAttribute("href");
  await open(page, path ?? "");
}

test.describe("with a worker that declares a schedule", () => {
  let worker: ExampleWorker;

  test.beforeAll(({ stack }) => {
    worker = stack.exampleWorker("schedule", "reports");
  });

  test.afterAll(async () => {
    await worker.stop();
  });

  test("a schedule in code is a job that an edit detaches", async ({ admin: page }) => {
    await openJob(page, "report: nightly");
    const source = page.locator("#job-code");
    await expect(source).toContainText("Schedule nightly in the code of worker reports, job type report.");
    await expect(source).toContainText("An edit here detaches it from the code.");
    await screenshot(page, "code-job");

    await jobAction(page, "Edit");
    await expect(source).toContainText("A change here detaches it");
    await page.getByLabel("Name", { exact: true }).fill("report: every night");
    await page.getByRole("button", { name: "Save", exact: true }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("report: every night");
    await expect(source).toContainText("It is detached from the code since");
    await expect(source).toContainText("when ada@example.org edited it: a deployment does not change it.");

    await page.getByRole("button", { name: "Attach to the code" }).click();
    await expect(page.getByText("The job follows the code again.")).toBeVisible();
    await expect(source).toContainText("An edit here detaches it from the code.");
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("report: nightly");
    await expect(page.getByRole("button", { name: "Attach to the code" })).toHaveCount(0);
  });

  test("a new job starts with the rules that the code declares", { tag: "@all" }, async ({ admin: page }) => {
    await openJob(page, "report: nightly");
    const retries = page.getByLabel("Maximum retries");
    const skip = page.locator('input[name="form[rules][overlap]"][value="skip"]');
    const tags = page.getByLabel("Tags");
    await open(page, "/jobs/new?type=reports%2Freport");
    await expect(retries).toHaveValue("3");
    await expect(skip).toBeChecked();
    await expect(tags).toHaveValue("reports");
    await expect(page.getByText("The code of this job type declares rules for its jobs.")).toBeVisible();
    await screenshot(page, "new-job-with-declared-rules");
    // Another type takes the rules away again, and keeps what the user typed.
    await page.getByLabel("First retry delay").fill("30");
    await page.getByRole("radio", { name: "shell-command" }).check();
    await expect(retries).toHaveValue("0");
    await expect(skip).not.toBeChecked();
    await expect(tags).toHaveValue("");
    await page.getByRole("radio", { name: /^report / }).check();
    await expect(retries).toHaveValue("3");
    await expect(page.getByLabel("First retry delay")).toHaveValue("30");
  });
});

test("a run and the occurrences that it enqueues lead to each other", { tag: "@all" }, async ({ admin: page, stack, firstAdmin }) => {
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
  const path = `/jobs/${await makeDelayed(stack.url, firstAdmin, "reminder", 0)}`;
  await open(page, path);
  const cancelAll = page.getByRole("button", { name: "Cancel all delayed…" });
  await openMenu(page);
  await expect(page.getByRole("button", { name: "Delete…" })).toBeVisible();
  await expect(cancelAll).toBeHidden();
  await page.keyboard.press("Escape");
  await waitForLive(page);
  await makeDelayed(stack.url, firstAdmin, "reminder", 1);
  await expect(page.getByRole("link", { name: "1 occurrence", exact: true })).toBeVisible();
  await makeDelayed(stack.url, firstAdmin, "reminder", 40);
  // The open page counts again by itself.
  const count = page.getByRole("link", { name: "41 occurrences" });
  await expect(count).toBeVisible();
  await screenshot(page, "delayed-count");
  await count.click();
  await expect(page).toHaveURL(/\/occurrences\?delayed=true&job=/);
  await expect(page.getByRole("link", { name: "Delayed", exact: true })).toHaveAttribute("aria-current", "true");
  await expect(page.locator("#occurrences tbody tr")).toHaveCount(41);
  await page.goBack();

  await jobAction(page, "Cancel all delayed…");
  const dialog = page.getByRole("dialog");
  await expect(dialog).toContainText("Cancel 41 occurrences of reminder that are delayed?");
  await expect(dialog.getByRole("button", { name: "Keep occurrences" })).toBeFocused();
  await dialog.getByRole("button", { name: "Cancel occurrences" }).click();
  await expect(page.getByText("41 delayed occurrences are cancelled.")).toBeVisible();
  await openMenu(page);
  await expect(page.getByRole("button", { name: "Delete…" })).toBeVisible();
  await expect(cancelAll).toBeHidden();
  await expect(page.getByRole("link", { name: "41 occurrences" })).toHaveCount(0);
});
