// The version history of a job: comparison and restore.

import { form, makeJob, shell } from "../fixtures/jobs";
import { expect, open, resumeLive, screenshot, test, waitForLive, waitUntilStable } from "../fixtures/test";
import { callServerFunction, type TestUser } from "../fixtures/users";

test.use({ stackName: "versions" });
test.describe.configure({ mode: "serial" });

const first = { name: "Nightly report", input: shell("echo one"), cron: "30 3 * * *", tags: "night" };
let job = "";

test("the history lists changes and compares versions", async ({ admin, firstAdmin, stack }) => {
  job = await makeJob(stack.url, firstAdmin, first);
  await edit(stack.url, firstAdmin, 1, { ...first, name: "Morning report", cron: "30 6 * * *" });
  await edit(stack.url, firstAdmin, 2, { ...first, name: "Morning report", cron: "30 6 * * *", input: shell("echo two") });
  await open(admin, `/jobs/${job}`);
  await admin.getByRole("navigation", { name: "Job sections" }).getByRole("link", { name: "History" }).click();
  const rows = admin.locator("#versions tbody tr");
  await expect(rows).toHaveCount(3);
  await expect(rows.first()).toContainText("Current");
  await expect(rows.first()).toContainText(firstAdmin.email);
  await expect(rows.nth(1)).toContainText("Name, Schedule: expression");
  await expect(rows.nth(2)).toContainText("Created");
  await rows.first().getByRole("link", { name: "View changes" }).click();
  await expect(admin.getByRole("heading", { name: "From version 2 to version 3 (current)" })).toBeVisible();
  const change = admin.locator('.diff tr[data-field="jobData.argv"]');
  await expect(change.locator("td").first()).toContainText("echo one");
  await expect(change.locator("td").last()).toContainText("echo two");
  await expect(admin.getByRole("button", { name: /^Restore/ })).toHaveCount(0);
  await screenshot(admin, "history");
});

test("a restored version becomes a new version", async ({ admin }) => {
  await open(admin, `/jobs/${job}?tab=history`);
  await admin.locator('#versions tr[data-version="1"]').getByRole("link", { name: "Compare with current / restore" }).click();
  await expect(admin.locator(".diff tbody tr")).toHaveCount(3);
  await admin.getByRole("button", { name: "Restore version 1" }).click();
  const dialog = admin.getByRole("dialog", { name: "Restore version 1 of Morning report?" });
  await expect(dialog.getByRole("button", { name: "Cancel" })).toBeFocused();
  await screenshot(admin, "dialog-restore");
  await dialog.getByRole("button", { name: "Restore version 1" }).click();
  await expect(admin.locator(".toast").filter({ hasText: "Version 1 is restored, as version 4." })).toBeVisible();
  await expect(admin.locator("#versions tbody tr")).toHaveCount(4);
  await expect(admin.getByRole("heading", { level: 1 })).toHaveText("Nightly report");
});

test("a restore from an outdated page is refused", async ({ admin, firstAdmin, stack, watch }) => {
  watch.expect(/status of 409/);
  const late = await callServerFunction(stack.url, firstAdmin.session, "restore_version", { id: job, version: "2", expected: "3" });
  expect(late.status, late.text).toBe(409);

  await open(admin, `/jobs/${job}?tab=history&from=4&to=2`);
  await waitForLive(admin);
  await waitUntilStable(admin);
  await edit(stack.url, firstAdmin, 4, { ...first, name: "Weekly report" });
  await admin.getByRole("button", { name: "Restore version 2" }).click();
  await admin.getByRole("dialog").getByRole("button", { name: "Restore version 2" }).click();
  await expect(admin.getByRole("alert").filter({ hasText: "changed" })).toBeVisible();
  // With live updates resumed, the page shows the change and removes the button.
  await resumeLive(admin);
  await expect(admin.getByText("The job was changed: version 5 is current now.")).toBeVisible();
  await expect(admin.getByRole("button", { name: "Restore version 2" })).toHaveCount(0);
  await admin.getByRole("link", { name: "Show all versions" }).first().click();
  await expect(admin.locator("#versions tbody tr")).toHaveCount(5);
});

/** Saves a change of the job that is based on `version`. */
async function edit(url: string, user: TestUser, version: number, fields: typeof first): Promise<void> {
  const answer = await callServerFunction(url, user.session, "save_job", { ...form(fields), "form[id]": job, "form[version]": String(version) });
  expect(answer.status, answer.text).toBe(200);
}
