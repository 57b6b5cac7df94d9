// The audit log: the filter in the address, a refresh, a download, and the older entries of a slice. What is recorded and who
// may read it is tested in `server/tests/it/audit` and `app/tests/audit`.

import { readFile } from "node:fs/promises";

import type { Locator, Page } from "@playwright/test";

import { form, makeJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { expect, open, screenshot, test } from "../fixtures/test";
import { callServerFunction, inviteUser, type TestUser } from "../fixtures/users";

test.use({ stackName: "users" });

const ROWS_PER_PAGE = 50;

/** The rows of the table. */
function rows(page: Page): Locator {
  return page.locator("#audit tbody tr");
}

/** The newest row with this action. */
function rowOf(page: Page, action: string): Locator {
  return page.locator(`#audit tr[data-action="${action}"]`).first();
}

/** Pauses or resumes a job. */
async function setActive(url: string, user: TestUser, id: string, active: boolean, reason = ""): Promise<number> {
  return (await callServerFunction(url, user.session, "set_job_active", { id, active: String(active), reason })).status;
}

/** Returns the day that is `days` days from today, in UTC. */
function day(days: number): string {
  return new Date(Date.now() + days * 86_400_000).toISOString().slice(0, 10);
}

test("each filter narrows the list and is in the address", async ({ admin, stack, firstAdmin }) => {
  const viewer = await inviteUser(stack.url, firstAdmin, "Vera Viewer", "viewer");
  const job = await makeJob(stack.url, firstAdmin, { name: "Audited report", input: shell("true") });
  expect(await setActive(stack.url, firstAdmin, job, false, "the disk is full")).toBe(200);
  expect(await setActive(stack.url, viewer, job, true)).toBe(403);
  await open(admin, "/audit");
  const navigations: string[] = [];
  admin.on("request", (request) => {
    if (request.isNavigationRequest()) {
      navigations.push(request.url());
    }
  });
  const apply = () => admin.getByRole("button", { name: "Apply" }).click();

  await admin.getByLabel("User", { exact: true }).fill(viewer.email);
  await apply();
  await expect(admin).toHaveURL(/\/audit\?who=vera\.viewer[^&]*%40example\.org$/);
  await expect(rows(admin).filter({ hasNotText: viewer.email })).toHaveCount(0);
  await expect(rowOf(admin, "refuse")).toBeVisible();

  await admin.getByLabel("Result", { exact: true }).selectOption({ label: "Refused" });
  await apply();
  await expect(admin).toHaveURL(/who=.*&result=refused$/);
  await expect(rows(admin)).toHaveCount(1);

  await admin.goBack();
  await expect(admin).toHaveURL(/\/audit\?who=[^&]*$/);
  await expect(admin.getByLabel("Result", { exact: true })).toHaveValue("");
  await expect(rowOf(admin, "invite.accept")).toBeVisible();

  await admin.getByRole("link", { name: "Clear filters" }).click();
  await expect(admin).toHaveURL(/\/audit$/);
  await expect(admin.getByLabel("User", { exact: true })).toHaveValue("");
  await expect(rowOf(admin, "job.pause")).toContainText("the disk is full");

  await admin.getByLabel("Object", { exact: true }).fill(`job:${job}`);
  await admin.getByLabel("First day (UTC)").fill(day(-1));
  await admin.getByLabel("Last day (UTC)").fill(day(1));
  await apply();
  await expect(admin).toHaveURL(new RegExp(`object=job%3A${job}&since=${day(-1)}&until=${day(1)}$`));
  await expect(rows(admin).filter({ hasNotText: "Audited report" })).toHaveCount(0);
  await expect(rows(admin)).not.toHaveCount(0);
  await admin.getByLabel("Last day (UTC)").fill(day(-1));
  await apply();
  await expect(admin.getByText("No entry matches this filter")).toBeVisible();
  expect(navigations, "no filter loads the whole page").toEqual([]);
});

test("the refresh button shows new entries and keeps an open change", async ({ admin, firstAdmin, stack }) => {
  const report = { name: "Refreshed report", input: shell("true") };
  const job = await makeJob(stack.url, firstAdmin, report);
  const edited = { ...form({ ...report, retries: 3 }), "form[id]": job, "form[version]": "1" };
  expect((await callServerFunction(stack.url, firstAdmin.session, "save_job", edited)).status).toBe(200);
  await open(admin, `/audit?object=job%3A${job}`);
  const details = rowOf(admin, "job.update").locator("details.audit-changes");
  await details.locator("summary").click();
  const before = await rows(admin).count();
  expect(await setActive(stack.url, firstAdmin, job, false)).toBe(200);
  await admin.getByRole("button", { name: "Refresh" }).click();
  await expect(rows(admin)).toHaveCount(before + 1);
  await expect(details).toHaveAttribute("open", "");
  await screenshot(admin, "audit-change");
});

test("the download holds the rows of the filter", async ({ admin, stack, firstAdmin }) => {
  const viewer = await inviteUser(stack.url, firstAdmin, "Dora Download", "viewer");
  await open(admin, `/audit?who=${encodeURIComponent(viewer.email)}`);
  await expect(rows(admin)).toHaveCount(1);
  const [file] = await Promise.all([admin.waitForEvent("download"), admin.getByRole("link", { name: "Download CSV" }).click()]);
  const csv = await readFile(await file.path(), "utf8");
  expect(csv.trim().split("\n"), "a header and one row").toHaveLength(2);
  expect(csv).toContain(viewer.email);
  // The link left the page in place.
  await expect(admin).toHaveURL(/\/audit\?who=/);
});

test("a slice shows older entries on request", { tag: "@all" }, async ({ admin, stack, firstAdmin, watch }) => {
  watch.expect(/net::ERR_FAILED/);
  const job = await makeJob(stack.url, firstAdmin, { name: "Often paused", input: shell("true") });
  for (let change = 0; change < ROWS_PER_PAGE + 10; change += 1) {
    expect(await setActive(stack.url, firstAdmin, job, change % 2 === 1)).toBe(200);
  }
  const run = await runJob(stack.url, firstAdmin, job);
  await waitForStatus(stack.url, firstAdmin, run, "completed");
  await open(admin, `/jobs/${job}?tab=history`);
  const slice = admin.locator("#audit-slice");
  await expect(slice.locator("table")).toBeHidden();
  // The slice is read again when it is opened, and states if that fails.
  const summary = slice.locator("summary").first();
  await admin.route("**/api/object_audit*", (route) => route.abort());
  await summary.click();
  await expect(slice.locator(".action-error")).toContainText("The server cannot be reached.");
  await expect(slice.locator("tbody tr")).toHaveCount(ROWS_PER_PAGE);
  await admin.unroute("**/api/object_audit*");
  await summary.click();
  await summary.click();
  await expect(slice.locator(".action-error .notice")).toHaveCount(0);
  await expect(slice.locator("tbody tr")).toHaveCount(ROWS_PER_PAGE);
  await slice.getByRole("button", { name: "Show older entries" }).click();
  await expect(slice.locator('tr[data-action="job.create"]')).toBeVisible();
  await expect(summary).toBeFocused();
  await admin.getByRole("link", { name: "Open in the audit log" }).click();
  await expect(admin).toHaveURL(new RegExp(`/audit\\?object=job%3A${job}$`));
  await expect(rows(admin)).toHaveCount(ROWS_PER_PAGE);
});
