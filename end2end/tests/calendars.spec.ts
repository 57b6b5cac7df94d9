// From a day off to a job that keeps to it: a calendar is made, a job chooses it, and what is shown is what will happen.

import type { Page } from "@playwright/test";

import { makeCalendar, makeJob, shell } from "../fixtures/jobs";
import { call } from "../fixtures/people";
import { expect, open, shot, test } from "../fixtures/test";

test.use({ scene: "calendars" });

/** The date of the day that is `days` from today, in UTC. */
function day(days: number): string {
  return new Date(Date.now() + days * 86_400_000).toISOString().slice(0, 10);
}

/** The rows of the schedule's preview: a date for each that runs, and what becomes of the others. */
async function fires(page: Page): Promise<string[]> {
  return page.locator(".preview tbody tr").evaluateAll((rows) =>
    rows.map((row) => {
      const date = /\d{4}-\d{2}-\d{2}/.exec(row.querySelector("time")?.textContent ?? "")?.[0] ?? "?";
      return `${date} ${row.querySelector(".preview-note")?.textContent?.trim() ?? "runs"}`;
    }),
  );
}

test("a calendar is made, a job keeps to it, and its next runs skip the blackout day", async ({ admin: page, stack, person, watch }) => {
  // A calendar that a job keeps to is not deleted.
  watch.expect(/status of 409/);
  const job = await makeJob(stack.url, person, { name: "Daily report", input: shell("true"), cron: "0 12 * * *" });

  await test.step("a calendar is made from dates and weekly hours", async () => {
    await open(page, "/jobs");
    await page.getByRole("navigation", { name: "Main", exact: true }).getByRole("link", { name: "Calendars" }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Calendars");
    await expect(page.getByText("No calendars yet")).toBeVisible();
    await page.getByRole("link", { name: "New calendar" }).click();
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
    await shot(page, "calendar-filled");
    await page.getByRole("button", { name: "Create" }).click();
    await expect(page.locator(".toast").filter({ hasText: "The calendar is made." })).toBeVisible();
    const row = page.getByRole("row").filter({ hasText: "Days off" });
    await expect(row).toContainText(`Every day 03:00–04:00; ${day(2)} to ${day(3)}`);
    await expect(row).toContainText("No job");
  });

  await test.step("a job keeps to it: the day is left out, then postponed", async () => {
    await open(page, `/jobs/${job}/edit`);
    await expect.poll(() => fires(page)).toHaveLength(5);
    await page.getByText("Calendars, and what becomes of fires in a blackout").click();
    await page.getByRole("checkbox", { name: /^Days off/ }).check();
    const left = `${day(2)} This and 1 more left out: Days off`;
    await expect.poll(() => fires(page)).toContain(left);
    await expect.poll(() => fires(page)).toContain(`${day(4)} runs`);
    expect(await fires(page)).not.toContain(`${day(2)} runs`);
    await shot(page, "job-form-blackout");
    await page.getByRole("radio", { name: "Run when the blackout ends" }).check();
    await expect.poll(() => fires(page)).toContain(`${day(2)} This and 1 more postponed, as one: Days off`);
    await page.getByRole("radio", { name: "Leave the fire out" }).check();
    await expect.poll(() => fires(page)).toContain(left);
  });

  await test.step("and it is tried again when it fails", async () => {
    await expect(page.locator("#retries")).toContainText("Not tried again");
    await page.getByLabel("Retries").fill("3");
    await expect(page.locator("#retries")).toHaveText("Tried up to 3 times more: after 5 s, 10 s and 20 s.");
    await page.getByLabel("Pause before the first retry").fill("60");
    await expect(page.locator("#retries")).toHaveText("Tried up to 3 times more: after 60 s, 2 min and 4 min.");
    await page.getByLabel("Shorten each pause by up to").fill("20");
    const told = "Tried up to 3 times more: after 60 s, 2 min and 4 min, each up to 20 % sooner";
    await expect(page.locator("#retries")).toHaveText(`${told}.`);
    await page.getByLabel("Retries").fill("101");
    await expect(page.locator("#retries")).toBeHidden();
    await expect(page.locator("#f-rules-max_retries-error")).toContainText("from 0 to 100");
    await page.getByLabel("Retries").fill("3");
    await page.getByRole("button", { name: "Save" }).click();
  });

  await test.step("the job's page says all of it", async () => {
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Daily report");
    await expect(page.locator("#definition ~ .kv")).toContainText("2 min and 4 min, each up to 20 % sooner");
    await expect(page.locator("#definition ~ .kv")).toContainText("A fire in a blackout is left out");
    expect(await fires(page)).toContain(`${day(2)} This and 1 more left out: Days off`);
    await shot(page, "job-blackout");
    await page.locator("#definition ~ .kv").getByRole("link", { name: "Days off" }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Edit Days off");
  });

  await test.step("in use it is not deleted; out of use it is", async () => {
    await page.getByRole("button", { name: "Delete…" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Delete calendar" }).click();
    await expect(page.locator("#error-summary")).toContainText("Daily report still keeps to Days off");
    await page.getByRole("complementary").getByRole("link", { name: "Daily report" }).click();
    await page.getByRole("link", { name: "Edit" }).click();
    await page.getByRole("checkbox", { name: /^Days off/ }).uncheck();
    await expect.poll(() => fires(page)).toContain(`${day(2)} runs`);
    await page.getByRole("button", { name: "Save" }).click();
    await expect(page.locator("#definition ~ .kv")).not.toContainText("Days off");
    await open(page, "/calendars");
    await page.getByRole("link", { name: "Days off" }).click();
    await page.getByRole("button", { name: "Delete…" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Delete calendar" }).click();
    await expect(page.locator(".toast").filter({ hasText: "The calendar Days off is deleted." })).toBeVisible();
    await expect(page.getByText("No calendars yet")).toBeVisible();
  });
});

test("a calendar that was made in another tab can be chosen, and what was ticked stays", async ({ admin: page, stack, person }) => {
  await makeCalendar(stack.url, person, { name: "First", dates: day(10) });
  await open(page, "/jobs/new?type=local/shell-command");
  await page.getByText("Calendars, and what becomes of fires in a blackout").click();
  await page.getByRole("checkbox", { name: /^First/ }).check();
  await makeCalendar(stack.url, person, { name: "A second", dates: day(11) });
  await page.evaluate(() => window.dispatchEvent(new Event("focus")));
  await expect(page.getByRole("checkbox", { name: /^A second/ })).not.toBeChecked();
  await expect(page.getByRole("checkbox", { name: /^First/ })).toBeChecked();
});

test("of two people who change a calendar the second is told, and loses nothing", async ({ admin: page, stack, person, watch }) => {
  watch.expect(/status of (409|422)/);
  const id = await makeCalendar(stack.url, person, { name: "Contested", dates: day(20) });
  await open(page, `/calendars/${id}/edit`);
  await page.getByLabel("Name", { exact: true }).fill("Mine");
  const theirs = { "form[id]": id, "form[version]": "1", "form[name]": "Theirs", "form[zone]": "UTC", "form[dates]": day(21) };
  expect((await call(stack.url, person.session, "save_calendar", theirs)).status).toBe(200);
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.locator("#error-summary")).toContainText("Somebody else changed this calendar meanwhile");
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Mine");
  await makeCalendar(stack.url, person, { name: "Taken", dates: day(22) });
  await open(page, `/calendars/${id}/edit`);
  await page.getByLabel("Name", { exact: true }).fill("Taken");
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.locator("#f-name-error")).toContainText("Another calendar has this name");
});
