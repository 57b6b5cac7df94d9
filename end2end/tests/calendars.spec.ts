// Blackout calendars: creating and deleting one, using it in a job, and the preview of the resulting runs.

import type { Page } from "@playwright/test";

import { makeCalendar, makeJob, shell } from "../fixtures/jobs";
import { expect, open, screenshot, test } from "../fixtures/test";
import { callServerFunction } from "../fixtures/users";

test.use({ stackName: "jobs" });

/** Returns the UTC date `days` days from today. */
function day(days: number): string {
  return new Date(Date.now() + days * 86_400_000).toISOString().slice(0, 10);
}

/** Returns the rows of the schedule's preview: each date with `runs` or the reason why nothing runs. */
async function previewRows(page: Page): Promise<string[]> {
  return page.locator(".preview tbody tr").evaluateAll((rows) =>
    rows.map((row) => {
      const date = /\d{4}-\d{2}-\d{2}/.exec(row.querySelector("time")?.textContent ?? "")?.[0] ?? "?";
      return `${date} ${row.querySelector(".preview-note")?.textContent?.trim() ?? "runs"}`;
    }),
  );
}

test("a calendar is created from dates and weekly windows", async ({ admin: page, watch }) => {
  // The page of the calendar may hear of its deletion, and read it again, before it is left.
  watch.expect(/status of 404/);
  await open(page, "/jobs");
  await page.getByRole("navigation", { name: "Main", exact: true }).getByRole("link", { name: "Calendars" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Calendars");
  await page.getByRole("main").getByRole("link", { name: "New calendar" }).first().click();
  await page.getByLabel("Name", { exact: true }).fill("Days off");
  await page.getByLabel("Time zone", { exact: true }).fill("UTC");
  await page.getByLabel("First day").fill(day(2));
  await page.getByLabel("Last day").fill(day(3));
  await page.getByRole("button", { name: "Add to the list" }).click();
  await expect(page.getByLabel("Days (optional)")).toHaveValue(`${day(2)} to ${day(3)}`);
  await expect(page.locator("#falls li")).toHaveText([new RegExp(`${day(2)} to .*${day(3)}`)]);

  await page.getByRole("button", { name: "Add a window" }).click();
  const first = page.getByRole("group", { name: "Window 1" });
  await first.getByLabel("From").fill("03:00");
  await first.getByLabel("To", { exact: true }).fill("04:00");
  await expect(first.locator(".field-error")).toContainText("Choose at least one day");
  for (const name of ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]) {
    await first.getByLabel(name).check();
  }
  await expect(page.locator("#falls li")).toHaveCount(5);
  await page.getByRole("button", { name: "Add a window" }).click();
  await page.getByRole("button", { name: "Remove window 2" }).click();
  await expect(page.getByRole("group", { name: /^Window/ })).toHaveCount(1);
  await screenshot(page, "calendar-filled");
  await page.getByRole("button", { name: "Create" }).click();
  await expect(page.locator(".toast").filter({ hasText: "The calendar is created." })).toBeVisible();
  const row = page.getByRole("row").filter({ hasText: "Days off" });
  await expect(row).toContainText(`Every day 03:00–04:00; ${day(2)} to ${day(3)}`);
  await expect(row).toContainText("No job");

  await page.getByRole("link", { name: "Days off" }).click();
  await page.getByRole("button", { name: "Delete…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete calendar" }).click();
  await expect(page.locator(".toast").filter({ hasText: "The calendar Days off is deleted." })).toBeVisible();
  await expect(row).toHaveCount(0);
});

test("a job's preview follows its calendar and its retry settings", async ({ admin: page, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Daily report", input: shell("true"), cron: "0 12 * * *" });
  await makeCalendar(stack.url, firstAdmin, { name: "Time off", dates: `${day(2)} to ${day(3)}` });

  await test.step("the job skips the blackout, then postpones it", async () => {
    await open(page, `/jobs/${job}/edit`);
    await expect.poll(() => previewRows(page)).toHaveLength(5);
    await page.getByText("Blackout calendars and blackout policy").click();
    await page.getByRole("checkbox", { name: /^Time off/ }).check();
    const left = `${day(2)} This and 1 more skipped: Time off`;
    await expect.poll(() => previewRows(page)).toContain(left);
    await expect.poll(() => previewRows(page)).toContain(`${day(4)} runs`);
    expect(await previewRows(page)).not.toContain(`${day(2)} runs`);
    await screenshot(page, "job-form-blackout");
    await page.getByRole("radio", { name: "Run when the blackout ends" }).check();
    await expect.poll(() => previewRows(page)).toContain(`${day(2)} This and 1 more postponed to one run: Time off`);
    await page.getByRole("radio", { name: "Skip the due time" }).check();
    await expect.poll(() => previewRows(page)).toContain(left);
  });

  await test.step("the retry preview follows the retry settings", async () => {
    await expect(page.locator("#retries")).toContainText("No retries");
    await page.getByLabel("Maximum retries").fill("3");
    await expect(page.locator("#retries")).toHaveText("Up to 3 retries, after 5 s, 10 s and 20 s.");
    await page.getByLabel("First retry delay (seconds)").fill("60");
    await expect(page.locator("#retries")).toHaveText("Up to 3 retries, after 60 s, 2 min and 4 min.");
    await page.getByLabel("Retry jitter (%)").fill("20");
    const told = "Up to 3 retries, after 60 s, 2 min and 4 min, each up to 20 % sooner";
    await expect(page.locator("#retries")).toHaveText(`${told}.`);
    await page.getByLabel("Maximum retries").fill("101");
    await expect(page.locator("#retries")).toBeHidden();
    await expect(page.locator("#f-rules-max_retries-error")).toContainText("from 0 to 100");
    await page.getByLabel("Maximum retries").fill("3");
    await page.getByRole("button", { name: "Save" }).click();
  });

  await test.step("the job's page shows retries and blackouts", async () => {
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Daily report");
    await expect(page.locator("#definition ~ .kv")).toContainText("2 min and 4 min, each up to 20 % sooner");
    await expect(page.locator("#definition ~ .kv")).toContainText("Runs due in a blackout are skipped");
    expect(await previewRows(page)).toContain(`${day(2)} This and 1 more skipped: Time off`);
    await screenshot(page, "job-blackout");
    await page.locator("#definition ~ .kv").getByRole("link", { name: "Time off" }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Edit Time off");
    await expect(page.locator("#calendar-applied")).toHaveText("The last change is applied to all jobs.");
  });
});

test("a calendar from another tab appears and the selection is kept", { tag: "@all" }, async ({ admin: page, stack, firstAdmin }) => {
  await makeCalendar(stack.url, firstAdmin, { name: "First of two", dates: day(10) });
  await open(page, "/jobs/new?type=local/shell-command");
  await page.getByText("Blackout calendars and blackout policy").click();
  await page.getByRole("checkbox", { name: /^First of two/ }).check();
  await makeCalendar(stack.url, firstAdmin, { name: "Second of two", dates: day(11) });
  await page.evaluate(() => window.dispatchEvent(new Event("focus")));
  await expect(page.getByRole("checkbox", { name: /^Second of two/ })).not.toBeChecked();
  await expect(page.getByRole("checkbox", { name: /^First of two/ })).toBeChecked();
});

test("a conflicting calendar edit is refused and its input kept", { tag: "@all" }, async ({ admin: page, stack, firstAdmin, watch }) => {
  watch.expect(/status of (409|422)/);
  const id = await makeCalendar(stack.url, firstAdmin, { name: "Contested", dates: day(20) });
  await open(page, `/calendars/${id}/edit`);
  await page.getByLabel("Name", { exact: true }).fill("Mine");
  const theirs = { "form[id]": id, "form[version]": "1", "form[name]": "Theirs", "form[zone]": "UTC", "form[dates]": day(21) };
  expect((await callServerFunction(stack.url, firstAdmin.session, "save_calendar", theirs)).status).toBe(200);
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.locator("#error-summary")).toContainText("This calendar was changed in the meantime");
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Mine");
  await makeCalendar(stack.url, firstAdmin, { name: "Taken", dates: day(22) });
  await open(page, `/calendars/${id}/edit`);
  // The refused values are kept as a draft, on the version that the page has now.
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Mine");
  await expect(page.locator("#draft-notice")).toContainText("The calendar has been changed since then");
  await page.getByRole("button", { name: "Discard them" }).click();
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Theirs");
  await page.getByLabel("Name", { exact: true }).fill("Taken");
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.locator("#f-name-error")).toContainText("Another calendar has this name");
});
