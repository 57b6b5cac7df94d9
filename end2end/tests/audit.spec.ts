// The audit log on the real stack: what is recorded, the filter in the address, pages, downloads, and the slices on other
// pages.

import { readFile } from "node:fs/promises";

import type { Locator, Page } from "@playwright/test";

import { checkThemes } from "../fixtures/axe";
import { form, makeCalendar, makeJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { expect, open, screenshot, test } from "../fixtures/test";
import { callServerFunction, inviteUser, signIn, type TestUser } from "../fixtures/users";

test.use({ stackName: "audit" });
test.describe.configure({ mode: "serial" });

const ROWS_PER_PAGE = 50;
/** The job that the tests change. */
const REPORT = { name: "Nightly report", input: shell("echo one") };

let job = "";
let run = "";
let operator: TestUser;
let viewer: TestUser;

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

/** Returns the records of a CSV text as objects. */
function parseCsv(text: string): Record<string, string>[] {
  const records: string[][] = [[]];
  let field = "";
  let isQuoted = false;
  const endField = () => {
    records.at(-1)?.push(field);
    field = "";
  };
  for (let index = 0; index < text.length; index += 1) {
    const letter = text[index];
    if (isQuoted) {
      if (letter === '"' && text[index + 1] === '"') {
        field += '"';
        index += 1;
      } else if (letter === '"') {
        isQuoted = false;
      } else {
        field += letter;
      }
    } else if (letter === '"') {
      isQuoted = true;
    } else if (letter === ",") {
      endField();
    } else if (letter === "\n") {
      endField();
      records.push([]);
    } else if (letter !== "\r" && letter !== "\ufeff") {
      field += letter;
    }
  }
  const [names = [], ...rest] = records.filter((record) => record.length > 0);
  return rest.map((record) => Object.fromEntries(names.map((name, column) => [name, record[column] ?? ""])));
}

/** Follows a download link and returns the file's text. */
async function download(page: Page, name: string): Promise<string> {
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("link", { name }).click()]);
  return readFile(await file.path(), "utf8");
}

test.beforeAll(async ({ stack, firstAdmin }) => {
  const { url } = stack;
  operator = await inviteUser(url, firstAdmin, "Oscar Operator", "operator");
  viewer = await inviteUser(url, firstAdmin, "Vera Viewer", "viewer");
  job = await makeJob(url, firstAdmin, REPORT);
  const changed = { ...form({ ...REPORT, retries: 3 }), "form[id]": job, "form[version]": "1" };
  const edited = await callServerFunction(url, firstAdmin.session, "save_job", changed);
  expect(edited.status, edited.text).toBe(200);
  run = await runJob(url, firstAdmin, job);
  await waitForStatus(url, firstAdmin, run, "completed");
  expect(await setActive(url, firstAdmin, job, false, "the disk is full")).toBe(200);
  await makeCalendar(url, firstAdmin, { name: "Holidays", dates: "2030-12-24" });
  for (let attempt = 0; attempt < 3; attempt += 1) {
    const refused = await callServerFunction(url, undefined, "sign_in", { email: operator.email, passphrase: "not this one" });
    expect(refused.status).toBe(422);
  }
  expect(await setActive(url, viewer, job, true)).toBe(403);
});

test("actions are listed with actor, words, object, result, reason and change", async ({ admin, firstAdmin }) => {
  await open(admin, "/audit");
  await expect(admin.getByRole("heading", { level: 1 })).toHaveText("Audit log");

  const pause = rowOf(admin, "job.pause");
  await expect(pause).toContainText("Paused the job");
  await expect(pause).toContainText("the disk is full");
  await expect(pause.locator(".badge")).toHaveText("Done");
  await expect(pause.getByRole("link", { name: REPORT.name })).toHaveAttribute("href", `/jobs/${job}`);
  await expect(pause.getByRole("link", { name: firstAdmin.email })).toBeVisible();
  await expect(pause).toContainText("127.0.0.1");

  await expect(rowOf(admin, "job.create")).toContainText("Created the job");
  await expect(rowOf(admin, "calendar.create").getByRole("link", { name: "Holidays" })).toHaveAttribute("href", /^\/calendars\/.+\/edit$/);
  await expect(rowOf(admin, "invite.accept")).toContainText("Accepted the invitation");
  const update = rowOf(admin, "job.update");
  await expect(update.locator("dl")).toBeHidden();
  await update.locator(".audit-changes > summary").click();
  const retries = update.locator('[data-field="rules.maxRetries"]');
  // A rule with its default value is not part of a definition.
  await expect(retries.locator('[data-side="before"]')).toHaveCount(0);
  await expect(retries.locator('[data-side="after"]')).toContainText("3");
  await expect(update.locator('[data-field="displayName"]')).toHaveCount(0);
  await screenshot(admin, "audit-change");

  const started = rowOf(admin, "job.run");
  await started.locator(".audit-changes > summary").click();
  await expect(started.getByRole("link", { name: run })).toHaveAttribute("href", `/occurrences/${run}`);

  const refused = admin.locator('#audit tr[data-action="sign-in.refuse"]');
  await expect(refused.first()).toContainText("Failed to sign in");
  await expect(refused.first().locator(".badge")).toHaveText("Refused");
  // Refusals of one hour are one row; an hour may have ended between them.
  const texts = await refused.allTextContents();
  const counts = texts.map((text) => Number(/×(\d+)/.exec(text)?.[1] ?? "1"));
  expect(counts.reduce((sum, count) => sum + count, 0)).toBe(3);

  const denied = rowOf(admin, "refuse");
  await expect(denied).toContainText(viewer.email);
  await expect(denied).toContainText("Tried to change jobs");
  await expect(denied.locator(".badge")).toHaveText("Refused");

  await started.getByRole("link", { name: REPORT.name }).click();
  await expect(admin.getByRole("heading", { level: 1 })).toHaveText(REPORT.name);
});

test("each filter narrows the list and is in the address", async ({ admin, watch }) => {
  watch.expect(/status of 400/);
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
  await expect(admin).toHaveURL(/\/audit\?who=vera\.viewer%40example\.org$/);
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
  await expect(rowOf(admin, "calendar.create")).toBeVisible();

  await admin.getByLabel("Action", { exact: true }).selectOption({ label: "All of jobs" });
  await apply();
  await expect(admin).toHaveURL(/\/audit\?action=job\.$/);
  await expect(admin.locator('#audit tbody tr:not([data-action^="job."])')).toHaveCount(0);
  await expect(rowOf(admin, "job.create")).toBeVisible();
  await admin.getByLabel("Action", { exact: true }).selectOption({ label: "Paused the job" });
  await apply();
  await expect(admin).toHaveURL(/\/audit\?action=job\.pause$/);
  await expect(rows(admin)).toHaveCount(1);

  await admin.getByLabel("Action", { exact: true }).selectOption({ label: "Any action" });
  await admin.getByLabel("Object", { exact: true }).fill(`job:${job}`);
  await admin.getByLabel("First day (UTC)").fill(day(-1));
  await admin.getByLabel("Last day (UTC)").fill(day(1));
  await apply();
  await expect(admin).toHaveURL(new RegExp(`object=job%3A${job}&since=${day(-1)}&until=${day(1)}$`));
  await expect(rows(admin).filter({ hasNotText: REPORT.name })).toHaveCount(0);
  await expect(rows(admin)).not.toHaveCount(0);
  await admin.getByLabel("Last day (UTC)").fill(day(-1));
  await apply();
  await expect(admin.getByText("No entry matches this filter")).toBeVisible();
  expect(navigations, "no filter loads the whole page").toEqual([]);

  await admin.getByLabel("Object", { exact: true }).fill("nonsense");
  await apply();
  await expect(admin.locator('#filter-error [data-parameter="object"]')).toContainText("nonsense");
  await expect(rows(admin)).toHaveCount(0);
  await admin.getByRole("link", { name: "Remove the invalid filter" }).click();
  await expect(admin).toHaveURL(/\/audit\?since=.*&until=.*$/);
  expect((await admin.goto("/audit?result=maybe"))?.status()).toBe(400);
});

test("pages follow each other without gap or repetition", async ({ admin, firstAdmin, stack }) => {
  test.setTimeout(120_000);
  for (let change = 0; change < ROWS_PER_PAGE + 10; change += 1) {
    expect(await setActive(stack.url, firstAdmin, job, change % 2 === 0)).toBe(200);
  }
  await open(admin, `/audit?object=job%3A${job}`);
  await expect(rows(admin)).toHaveCount(ROWS_PER_PAGE);
  const times = (page: Page) => rows(page).locator("th time").evaluateAll((all) => all.map((time) => time.getAttribute("datetime") ?? ""));
  const first = await times(admin);
  await admin.getByRole("link", { name: "Older" }).click();
  await expect(admin).toHaveURL(/before=\d+-\d+$/);
  await expect(admin.getByRole("link", { name: "Newest" })).toBeVisible();
  const second = await times(admin);
  expect(second.length).toBeGreaterThan(10);
  const all = [...first, ...second];
  expect(all).toEqual([...all].sort().reverse());
  await expect(rowOf(admin, "job.create")).toBeVisible();
  await admin.goBack();
  await expect(rows(admin)).toHaveCount(ROWS_PER_PAGE);
  expect(await times(admin)).toEqual(first);
});

test("the refresh button shows new entries and keeps an open change", async ({ admin, firstAdmin, stack }) => {
  await open(admin, "/audit?action=job.run");
  const details = admin.locator("#audit tbody tr").last().locator("details.audit-changes");
  await details.locator("summary").click();
  const before = await rows(admin).count();
  expect(await setActive(stack.url, firstAdmin, job, true)).toBe(200);
  await runJob(stack.url, firstAdmin, job);
  await admin.getByRole("button", { name: "Refresh" }).click();
  await expect(rows(admin)).toHaveCount(before + 1);
  await expect(details).toHaveAttribute("open", "");
});

test("the downloads hold the rows of the filter", async ({ admin }) => {
  await open(admin, "/audit?action=calendar.");
  await expect(rows(admin)).toHaveCount(1);
  for (const path of ["/audit?action=calendar.", `/audit?who=${encodeURIComponent(viewer.email)}&result=refused`]) {
    await open(admin, path);
    const shown = await rows(admin).evaluateAll((all) =>
      all.map((row) => `${row.getAttribute("data-action")} ${row.getAttribute("data-result")}`),
    );
    const key = (row: Record<string, unknown>) => `${row.action} ${row.result}`;
    const csv = parseCsv(await download(admin, "Download CSV"));
    expect(csv.map(key), path).toEqual(shown);
    const lines = (await download(admin, "Download NDJSON")).trim().split("\n");
    const json = lines.map((line) => JSON.parse(line) as Record<string, unknown>);
    expect(json.map(key), path).toEqual(shown);
    expect(json.map((row) => row.who), path).toEqual(csv.map((row) => row.who));
  }
  await expect(admin).toHaveURL(/\/audit\?who=/);
  await open(admin, "/audit?action=audit.export");
  await expect(rowOf(admin, "audit.export")).toContainText("Exported the audit log");
});

test("an Operator reads the changes of a job and of an occurrence, without addresses", async ({ context, page, stack, watch }) => {
  watch.expect(/status of 403/);
  await signIn(context, stack.url, operator);
  const answer = await callServerFunction(stack.url, operator.session, "trigger_job", {
    id: await makeJob(stack.url, operator, { name: "Long job", input: shell("sleep 30") }),
  });
  const long = JSON.parse(answer.text) as string;
  await open(page, `/occurrences/${long}`);
  const slice = page.locator("#audit-slice");
  await expect(slice.locator("table")).toBeHidden();
  await callServerFunction(stack.url, operator.session, "cancel_occurrence", { id: long, reason: "not needed" });
  await slice.locator("summary").first().click();
  await expect(slice.locator("tbody tr").first()).toContainText("not needed");
  await expect(slice.locator("tbody tr").first()).toContainText(operator.email);

  await open(page, `/jobs/${job}?tab=history`);
  await slice.locator("summary").first().click();
  await expect(slice.locator("tbody tr")).toHaveCount(ROWS_PER_PAGE);
  await slice.getByRole("button", { name: "Show older entries" }).click();
  await expect(slice.locator('tr[data-action="job.create"]')).toBeVisible();
  await expect(slice.getByRole("columnheader", { name: "Address" })).toHaveCount(0);
  await expect(slice).not.toContainText("127.0.0.1");
  await expect(slice.getByRole("link", { name: "Open in the audit log" })).toHaveCount(0);
  await screenshot(page, "audit-slice-job");

  expect((await page.goto("/audit"))?.status()).toBe(403);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Not allowed");
});

test("an Admin opens the whole log of a job from its page", async ({ admin }) => {
  await open(admin, `/jobs/${job}?tab=history`);
  await admin.locator("#audit-slice summary").first().click();
  await admin.getByRole("link", { name: "Open in the audit log" }).click();
  await expect(admin).toHaveURL(new RegExp(`/audit\\?object=job%3A${job}$`));
  await expect(rows(admin)).toHaveCount(ROWS_PER_PAGE);
});

test("a Viewer gets neither the page nor the slices", async ({ context, page, stack, watch }) => {
  watch.expect(/status of 403/);
  await signIn(context, stack.url, viewer);
  const reads: string[] = [];
  page.on("request", (request) => {
    if (request.url().includes("_audit")) {
      reads.push(request.url());
    }
  });
  for (const path of [`/jobs/${job}?tab=history`, `/occurrences/${run}`]) {
    await open(page, path);
    await expect(page.locator("#audit-slice")).toHaveCount(0);
  }
  expect(reads).toEqual([]);
  expect((await page.goto("/audit"))?.status()).toBe(403);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Not allowed");
  expect((await page.request.get("/export/audit.csv")).status()).toBe(403);
  expect((await page.request.get(`/api/object_audit?object=job%3A${job}`)).status()).toBe(403);
});

test("the page works without JavaScript", async ({ browser, firstAdmin, stack }) => {
  const context = await browser.newContext({ baseURL: stack.url, javaScriptEnabled: false });
  await signIn(context, stack.url, firstAdmin);
  const page = await context.newPage();
  await page.goto("/audit");
  await page.getByLabel("Object", { exact: true }).fill(`job:${job}`);
  await page.getByLabel("Action", { exact: true }).selectOption({ label: "All of jobs" });
  await page.getByRole("button", { name: "Apply" }).click();
  await expect(page).toHaveURL(/action=job\./);
  await expect(rows(page)).toHaveCount(ROWS_PER_PAGE);
  await expect(page.getByLabel("Object", { exact: true })).toHaveValue(`job:${job}`);
  await expect(page.getByRole("button", { name: "Refresh" })).toBeHidden();
  await page.getByRole("link", { name: "Older" }).click();
  const update = rowOf(page, "job.update");
  await update.locator(".audit-changes > summary").click();
  await expect(update.locator('[data-field="rules.maxRetries"]')).toBeVisible();
  await page.goto(`/occurrences/${run}`);
  await expect(page.locator("#audit-slice")).toHaveCount(1);
  await context.close();
});

test("the page and the slices are accessible and fit a phone", async ({ admin }) => {
  test.setTimeout(120_000);
  const openAll = async () => {
    for (const summary of await admin.locator(".audit-changes > summary").all()) {
      await summary.click();
    }
  };
  await open(admin, "/audit?action=job.update");
  await openAll();
  await checkThemes(admin, "audit-changes");
  await open(admin, "/audit");
  await checkThemes(admin, "audit");
  await open(admin, "/audit?until=2020-01-01");
  await checkThemes(admin, "audit-none");
  await open(admin, `/jobs/${job}?tab=history`);
  await admin.locator("#audit-slice summary").first().click();
  await expect(admin.locator("#audit-slice tbody tr").first()).toBeVisible();
  await checkThemes(admin, "audit-slice");
});
