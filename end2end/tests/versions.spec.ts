// The version history of a job: a version is restored, and a page that shows an outdated history cannot restore one.

import { form, makeJob, shell } from "../fixtures/jobs";
import { expect, open, resumeLive, screenshot, test, waitForLive, waitUntilStable } from "../fixtures/test";
import { callServerFunction, type TestUser } from "../fixtures/users";

test.use({ stackName: "jobs" });

const first = { name: "Nightly report", input: shell("echo one"), cron: "30 3 * * *", tags: "night" };

/** Saves a change of the job that is based on `version`. */
async function edit(url: string, user: TestUser, job: string, version: number, fields: typeof first): Promise<void> {
  const answer = await callServerFunction(url, user.session, "save_job", { ...form(fields), "form[id]": job, "form[version]": String(version) });
  expect(answer.status, answer.text).toBe(200);
}

test("a compared version is restored as a new version", async ({ admin, firstAdmin, stack }) => {
  const job = await makeJob(stack.url, firstAdmin, first);
  await edit(stack.url, firstAdmin, job, 1, { ...first, name: "Morning report", cron: "30 6 * * *", input: shell("echo two") });
  await open(admin, `/jobs/${job}`);
  await admin.getByRole("navigation", { name: "Job sections" }).getByRole("link", { name: "History" }).click();
  await admin.locator('#versions tr[data-version="1"]').getByRole("link", { name: "Compare with current / restore" }).click();
  await expect(admin.locator(".diff tbody tr")).toHaveCount(3);
  await screenshot(admin, "history");
  await admin.getByRole("button", { name: "Restore version 1" }).click();
  const dialog = admin.getByRole("dialog", { name: "Restore version 1 of Morning report?" });
  await expect(dialog.getByRole("button", { name: "Cancel" })).toBeFocused();
  await screenshot(admin, "dialog-restore");
  await dialog.getByRole("button", { name: "Restore version 1" }).click();
  await expect(admin.locator(".toast").filter({ hasText: "Version 1 is restored, as version 3." })).toBeVisible();
  await expect(admin.locator("#versions tbody tr")).toHaveCount(3);
  await expect(admin.getByRole("heading", { level: 1 })).toHaveText("Nightly report");
});

test("a restore from an outdated page is refused", { tag: "@all" }, async ({ admin, firstAdmin, stack, watch }) => {
  watch.expect(/status of 409/);
  const job = await makeJob(stack.url, firstAdmin, first);
  await edit(stack.url, firstAdmin, job, 1, { ...first, name: "Morning report" });
  await open(admin, `/jobs/${job}?tab=history&from=2&to=1`);
  await waitForLive(admin);
  await waitUntilStable(admin);
  await edit(stack.url, firstAdmin, job, 2, { ...first, name: "Weekly report" });
  await admin.getByRole("button", { name: "Restore version 1" }).click();
  await admin.getByRole("dialog").getByRole("button", { name: "Restore version 1" }).click();
  await expect(admin.getByRole("alert").filter({ hasText: "changed" })).toBeVisible();
  // With live updates resumed, the page shows the change and removes the button.
  await resumeLive(admin);
  await expect(admin.getByText("The job was changed: version 3 is current now.")).toBeVisible();
  await expect(admin.getByRole("button", { name: "Restore version 1" })).toHaveCount(0);
  await admin.getByRole("link", { name: "Show all versions" }).first().click();
  await expect(admin.locator("#versions tbody tr")).toHaveCount(3);
});
