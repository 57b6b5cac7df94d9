// The history of a job: what was changed, and the way back.

import { form, makeJob, shell } from "../fixtures/jobs";
import { call, type Person } from "../fixtures/people";
import { expect, live, open, shot, still, test } from "../fixtures/test";

test.use({ scene: "versions" });
test.describe.configure({ mode: "serial" });

const first = { name: "Nightly report", input: shell("echo one"), cron: "30 3 * * *", tags: "night" };
let job = "";

test("a history tells who changed what, and two versions are compared", async ({ admin, person, stack }) => {
  job = await makeJob(stack.url, person, first);
  await edit(stack.url, person, 1, { ...first, name: "Morning report", cron: "30 6 * * *" });
  await edit(stack.url, person, 2, { ...first, name: "Morning report", cron: "30 6 * * *", input: shell("echo two") });
  await open(admin, `/jobs/${job}`);
  await admin.getByRole("navigation", { name: "Parts of this job" }).getByRole("link", { name: "History" }).click();
  const rows = admin.locator("#versions tbody tr");
  await expect(rows).toHaveCount(3);
  await expect(rows.first()).toContainText("Present");
  await expect(rows.first()).toContainText(person.email);
  await expect(rows.nth(1)).toContainText("Name, Schedule: expression");
  await expect(rows.nth(2)).toContainText("Created");
  await rows.first().getByRole("link", { name: "What it changed" }).click();
  await expect(admin.getByRole("heading", { name: "From version 2 to version 3, the present one" })).toBeVisible();
  const change = admin.locator('.diff tr[data-field="jobData.argv"]');
  await expect(change.locator("td").first()).toContainText("echo one");
  await expect(change.locator("td").last()).toContainText("echo two");
  await expect(admin.getByRole("button", { name: /^Restore/ })).toHaveCount(0);
  await shot(admin, "history");
});

test("a version is restored after a question, and becomes a new one", async ({ admin }) => {
  await open(admin, `/jobs/${job}?tab=history`);
  await admin.locator('#versions tr[data-version="1"]').getByRole("link", { name: "With the present, or restore" }).click();
  await expect(admin.locator(".diff tbody tr")).toHaveCount(3);
  await admin.getByRole("button", { name: "Restore version 1" }).click();
  const dialog = admin.getByRole("dialog", { name: "Restore version 1 of Morning report?" });
  await expect(dialog.getByRole("button", { name: "Cancel" })).toBeFocused();
  await shot(admin, "dialog-restore");
  await dialog.getByRole("button", { name: "Restore version 1" }).click();
  await expect(admin.locator(".toast").filter({ hasText: "Version 1 is restored, as version 4." })).toBeVisible();
  await expect(admin.locator("#versions tbody tr")).toHaveCount(4);
  await expect(admin.getByRole("heading", { level: 1 })).toHaveText("Nightly report");
});

test("whoever is not looking at the present one is told so", async ({ admin, person, stack, watch }) => {
  watch.expect(/status of 409/);
  const late = await call(stack.url, person.session, "restore_version", { id: job, version: "2", expected: "3" });
  expect(late.status, late.text).toBe(409);

  await open(admin, `/jobs/${job}?tab=history&from=4&to=2`);
  await live(admin);
  await still(admin);
  await edit(stack.url, person, 4, { ...first, name: "Weekly report" });
  await admin.getByRole("button", { name: "Restore version 2" }).click();
  await admin.getByRole("dialog").getByRole("button", { name: "Restore version 2" }).click();
  await expect(admin.getByRole("alert").filter({ hasText: "changed" })).toBeVisible();
  // With the stream on again, the page sees it by itself and takes the button away.
  await admin.getByRole("button", { name: "pause live changes" }).click();
  await expect(admin.getByText("The job has been changed meanwhile: it is version 5 now.")).toBeVisible();
  await expect(admin.getByRole("button", { name: "Restore version 2" })).toHaveCount(0);
  await admin.getByRole("link", { name: "Show all versions" }).first().click();
  await expect(admin.locator("#versions tbody tr")).toHaveCount(5);
});

/** Saves the job anew, made from `version`. */
async function edit(url: string, person: Person, version: number, fields: typeof first): Promise<void> {
  const answer = await call(url, person.session, "save_job", { ...form(fields), "form[id]": job, "form[version]": String(version) });
  expect(answer.status, answer.text).toBe(200);
}
