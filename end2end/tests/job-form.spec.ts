// The job form: fields of nested input, the schedule builder, copies of jobs, and the input of the last run.

import type { Page } from "@playwright/test";

import { fillList, form, jobAction, makeJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { expect, open, test, waitForHydration } from "../fixtures/test";
import { callServerFunction } from "../fixtures/users";

test.use({ stackName: "jobs" });

const http = "/jobs/new?type=local/http-request";

test("fields stand in the order of the input type", { tag: "@all" }, async ({ admin, firstAdmin, stack }) => {
  await waitForWorker(stack.url, firstAdmin);
  await open(admin, http);
  const names = await admin.locator('#f-input [name^="form[input]["]').evaluateAll((controls) => {
    const first = (name: string) => name.slice("form[input][".length).split(/[/~\]]/)[0];
    return [...new Set(controls.map((control) => first(control.getAttribute("name") ?? "")))];
  });
  expect(names).toEqual([
    "url", "method", "query", "headers", "body", "auth", "expectedStatus", "retryStatus", "expectBody", "followRedirects", "timeoutSeconds",
  ]);
});

test("nested fields become the input and come back", async ({ admin, firstAdmin, stack }) => {
  await waitForWorker(stack.url, firstAdmin);
  await open(admin, http);
  await admin.getByLabel("Name", { exact: true }).fill("Nested");
  await admin.getByRole("textbox", { name: /^URL/ }).fill("http://localhost:9/nested");
  await admin.getByRole("button", { name: "Add to Headers" }).click();
  await expect(admin.getByRole("textbox", { name: "Headers 1: name" })).toBeFocused();
  await admin.getByRole("textbox", { name: "Headers 1: name" }).fill("X-One");
  await admin.getByRole("textbox", { name: "Headers 1: value" }).fill("1");
  await admin.getByRole("combobox", { name: "Authentication: variant" }).selectOption({ label: "Bearer" });
  await expect(admin.getByRole("combobox", { name: "Authentication: variant" })).toBeFocused();
  await admin.getByRole("group", { name: /^Authentication/ }).getByRole("textbox", { name: /^Token/ }).fill("abc");
  await fillList(admin, "Expected statuses", ["200", "204", "301"]);
  await admin.getByRole("button", { name: "Move up: Expected statuses 3" }).click();
  await expect(admin.getByRole("button", { name: "Move up: Expected statuses 2" })).toBeFocused();
  await admin.getByRole("button", { name: "Remove: Expected statuses 1" }).click();
  await expect(admin.getByRole("textbox", { name: "Expected statuses 1" })).toHaveValue("301");
  await admin.getByRole("radio", { name: /^Manual only/ }).check();
  await admin.getByRole("button", { name: "Create", exact: true }).click();
  await expect(admin.getByRole("heading", { level: 1 })).toHaveText("Nested");

  await open(admin, `${new URL(admin.url()).pathname}/edit`);
  await expect(admin.getByRole("textbox", { name: "Headers 1: name" })).toHaveValue("X-One");
  await expect(admin.getByRole("combobox", { name: "Authentication: variant" })).toHaveValue("1");
  await admin.getByRole("radio", { name: "JSON" }).check();
  expect(await inputJson(admin)).toEqual({
    url: "http://localhost:9/nested",
    headers: { "X-One": "1" },
    auth: { type: "bearer", token: "abc" },
    expectedStatus: ["301", "204"],
  });
});

test("fields and JSON convert without loss", async ({ admin, firstAdmin, stack }) => {
  await waitForWorker(stack.url, firstAdmin);
  await open(admin, http);
  const input = { url: "http://localhost:9/", unknown: { deep: [null] }, body: null, timeoutSeconds: "5", headers: { A: "", B: "two\nlines" } };
  await admin.getByRole("radio", { name: "JSON" }).check();
  await admin.getByLabel("Input as JSON").fill(JSON.stringify(input));
  await admin.getByRole("radio", { name: "Fields" }).check();
  await expect(admin.getByRole("textbox", { name: /^URL/ })).toHaveValue("http://localhost:9/");
  await expect(admin.getByRole("textbox", { name: /^Other properties/ })).toHaveValue(/unknown/);
  await admin.getByRole("radio", { name: "JSON" }).check();
  expect(await inputJson(admin)).toEqual(input);
});

test("an optional yes or no keeps three states", { tag: "@all" }, async ({ admin, firstAdmin, stack }) => {
  await waitForWorker(stack.url, firstAdmin);
  await open(admin, http);
  const url = "http://localhost:9/redirects";
  const follow = admin.getByRole("combobox", { name: /^Follow redirects/ });
  const [fields, json] = [admin.getByRole("radio", { name: "Fields" }), admin.getByRole("radio", { name: "JSON" })];
  await admin.getByLabel("Name", { exact: true }).fill("Explicit no");
  await admin.getByRole("textbox", { name: /^URL/ }).fill(url);
  await expect(follow.locator("option:checked")).toHaveText("Default (No)");
  await json.check();
  expect(await inputJson(admin)).toEqual({ url });
  await fields.check();
  await expect(follow).toHaveValue("");
  await follow.selectOption({ label: "No" });
  await json.check();
  expect(await inputJson(admin)).toEqual({ url, followRedirects: false });
  await fields.check();
  await expect(follow).toHaveValue("false");
  await admin.getByRole("radio", { name: /^Manual only/ }).check();
  await admin.getByRole("button", { name: "Create", exact: true }).click();
  await expect(admin.getByRole("heading", { level: 1 })).toHaveText("Explicit no");

  await open(admin, `${new URL(admin.url()).pathname}/edit`);
  await expect(follow).toHaveValue("false");
  await json.check();
  expect(await inputJson(admin)).toEqual({ url, followRedirects: false });
});

test("a number with too many digits is refused", { tag: "@all" }, async ({ admin, firstAdmin, stack }) => {
  await waitForWorker(stack.url, firstAdmin);
  await open(admin, http);
  await admin.getByRole("radio", { name: "JSON" }).check();
  const editor = admin.getByLabel("Input as JSON");
  await editor.fill('{"url": "http://localhost:9/", "order": {"id": 12345678901234567890123}}');
  // The form stays with the JSON, so the radio button does not stay checked.
  await admin.getByRole("radio", { name: "Fields" }).click();
  await expect(admin.getByRole("radio", { name: "JSON" })).toBeChecked();
  await expect(admin.locator("#f-input_json-error")).toContainText("/order/id: 12345678901234567890123 would be rounded");
  await editor.fill('{"url": "http://localhost:9/", "order": {"id": "12345678901234567890123"}}');
  await admin.getByRole("radio", { name: "Fields" }).check();
  await expect(admin.getByRole("textbox", { name: /^Other properties/ })).toHaveValue(/"12345678901234567890123"/);
});

test("input chosen before the script runs counts", async ({ admin: page, firstAdmin, stack }) => {
  await waitForWorker(stack.url, firstAdmin);
  let release: () => void = () => undefined;
  const held = new Promise<void>((done) => (release = done));
  await page.route(/\.wasm/, async (route) => {
    await held;
    await route.continue();
  });
  await page.goto(http, { waitUntil: "commit" });
  const follow = page.getByRole("combobox", { name: /^Follow redirects/ });
  await follow.selectOption({ label: "No" });
  await page.getByRole("combobox", { name: "Authentication: variant" }).selectOption({ label: "Bearer" });
  // Without a script the page has spare rows.
  await page.getByRole("textbox", { name: "Headers 1: name" }).fill("X-Early");
  await page.getByRole("textbox", { name: "Headers 1: value" }).fill("1");
  await expect(page.locator("html")).not.toHaveAttribute("data-ready", "true");
  release();
  await waitForHydration(page);

  await expect(follow).toHaveValue("false");
  await expect(page.getByRole("textbox", { name: "Headers 1: name" })).toHaveValue("X-Early");
  await page.getByRole("group", { name: /^Authentication/ }).getByRole("textbox", { name: /^Token/ }).fill("abc");
  await page.getByRole("radio", { name: "JSON" }).check();
  expect(await inputJson(page)).toEqual({
    headers: { "X-Early": "1" },
    auth: { type: "bearer", token: "abc" },
    followRedirects: false,
  });
});

test("one check reports all errors", { tag: "@all" }, async ({ admin, firstAdmin, stack, watch }) => {
  watch.expect(/status of 422/);
  await waitForWorker(stack.url, firstAdmin);
  await open(admin, http);
  await admin.getByRole("textbox", { name: /^Request timeout/ }).fill("0");
  await admin.getByRole("combobox", { name: "Authentication: variant" }).selectOption({ label: "Bearer" });
  await admin.getByRole("radio", { name: /^Manual only/ }).check();
  await admin.getByRole("button", { name: "Create", exact: true }).click();
  const links = admin.locator("#error-summary").getByRole("link");
  await expect(links).toHaveCount(4);
  const targets = await links.evaluateAll((all) => all.map((link) => link.getAttribute("href")));
  expect(targets.sort()).toEqual(["#f-display_name", "#f-input-auth-token", "#f-input-timeoutSeconds", "#f-input-url"]);
  await expect(admin.locator("#f-input-auth-token")).toHaveAttribute("aria-invalid", "true");
});

test("the schedule builder and the expression agree", async ({ admin, watch }) => {
  watch.expect(/net::ERR_FAILED/);
  await open(admin, "/jobs/new");
  const cron = admin.getByRole("textbox", { name: "Cron expression" });
  const repeats = admin.getByLabel("Repeats");
  await expect(repeats).toHaveValue("custom");
  await cron.fill("30 6 * * MON-FRI");
  await expect(repeats).toHaveValue("weekly");
  await expect(admin.getByLabel("Time", { exact: true })).toHaveValue("06:30");
  await admin.getByRole("checkbox", { name: "Friday" }).uncheck();
  await expect(cron).toHaveValue("30 6 * * 1,2,3,4");
  await expect(admin.locator(".preview-words")).toContainText("06:30");
  await repeats.selectOption("monthly");
  await admin.getByLabel("Day of month").selectOption({ label: "Last day" });
  await expect(cron).toHaveValue("30 6 L * *");
  await admin.getByLabel("Time", { exact: true }).fill("22:05");
  await admin.getByLabel("Time", { exact: true }).blur();
  await expect(cron).toHaveValue("5 22 L * *");
  await cron.fill("*/5 * * * *");
  await expect(repeats).toHaveValue("custom");
  await expect(admin.getByLabel("Time", { exact: true })).toHaveCount(0);

  // The preview is marked until the changed expression is checked, and offers another try after a failure.
  const preview = admin.locator(".checked-preview");
  await expect(preview).not.toHaveAttribute("data-outdated");
  let fail: () => void = () => undefined;
  const held = new Promise<void>((done) => (fail = done));
  await admin.route("**/api/check_job", async (route) => {
    await held;
    await route.abort();
  });
  await cron.fill("0 4 * * *");
  await expect(preview).toHaveAttribute("data-outdated", "true");
  await expect(preview.getByText("The form has changed. Checking…")).toBeVisible();
  fail();
  await expect(preview).toContainText("Could not check the form, so this preview is outdated. The server cannot be reached.");
  await expect(preview).toHaveAttribute("data-outdated", "true");
  await admin.unroute("**/api/check_job");
  await preview.getByRole("button", { name: "Try again" }).click();
  await expect(admin.locator("#form-summary")).toBeFocused();
  await expect(admin.locator(".preview-words")).toContainText("04:00");
  await expect(preview).not.toHaveAttribute("data-outdated");
});

test("the preview names lost and repeated local times", { tag: "@all" }, async ({ admin }) => {
  await open(admin, "/jobs/new");
  await admin.getByLabel("Time zone", { exact: true }).fill("Europe/Warsaw");
  await admin.getByRole("textbox", { name: "Cron expression" }).fill("30 2 * * *");
  const preview = admin.locator(".preview");
  await expect(preview).toContainText(/02:30:00 does not exist in Europe\/Warsaw.* runs at 03:00:00/);
  await expect(preview).toContainText(/02:30:00 occurs twice in Europe\/Warsaw.* the first time only/);
  await admin.getByRole("textbox", { name: "Cron expression" }).fill("30 9 * * *");
  await expect(preview).not.toContainText("does not exist");
});

test("a copy of a job is created only on request", { tag: "@all" }, async ({ admin, firstAdmin, stack }) => {
  const id = await makeJob(stack.url, firstAdmin, { name: "Original", input: shell("echo one"), cron: "30 3 * * *", zone: "Asia/Tokyo", tags: "night" });
  await open(admin, `/jobs/${id}`);
  await jobAction(admin, "Duplicate");
  await expect(admin.getByRole("heading", { level: 1 })).toHaveText("New job");
  await expect(admin.getByLabel("Name", { exact: true })).toHaveValue("Copy of Original");
  await expect(admin.getByRole("textbox", { name: "Cron expression" })).toHaveValue("30 3 * * *");
  await expect(admin.getByLabel("Time zone", { exact: true })).toHaveValue("Asia/Tokyo");
  await expect(admin.getByRole("textbox", { name: "Command 3" })).toHaveValue("echo one");
  await admin.getByRole("button", { name: "Create", exact: true }).click();
  await expect(admin.getByRole("heading", { level: 1 })).toHaveText("Copy of Original");
  expect(new URL(admin.url()).pathname).not.toBe(`/jobs/${id}`);
});

test("the input of the last run is inserted", { tag: "@all" }, async ({ admin, firstAdmin, stack }) => {
  const id = await makeJob(stack.url, firstAdmin, { name: "Repeated", input: shell("echo one") });
  const run = await runJob(stack.url, firstAdmin, id, shell("echo other"));
  await waitForStatus(stack.url, firstAdmin, run, "completed");
  await open(admin, `/jobs/${id}/edit`);
  await expect(admin.getByRole("textbox", { name: "Command 3" })).toHaveValue("echo one");
  await admin.getByRole("button", { name: "Use input of last run" }).click();
  await expect(admin.getByRole("textbox", { name: "Command 3" })).toHaveValue("echo other");

  await open(admin, `/jobs/${id}`);
  await jobAction(admin, "Run with different input…");
  const dialog = admin.getByRole("dialog");
  await dialog.getByRole("button", { name: "Use input of last run" }).click();
  await expect(dialog.getByLabel("Input as JSON")).toHaveValue(/echo other/);
});

test("a single date keeps its time zone", { tag: "@all" }, async ({ admin, firstAdmin, stack }) => {
  const fields = { ...form({ name: "Ceremony", input: shell("true"), zone: "Asia/Tokyo" }), "form[kind]": "once", "form[once]": "2031-05-01T09:00:00" };
  await waitForWorker(stack.url, firstAdmin);
  const answer = await callServerFunction(stack.url, firstAdmin.session, "save_job", fields);
  expect(answer.status, answer.text).toBe(200);
  await open(admin, `/jobs/${JSON.parse(answer.text).id}`);
  await expect(admin.getByText("Once at 2031-05-01 09:00:00, Asia/Tokyo").first()).toBeVisible();
  await open(admin, `/jobs/${JSON.parse(answer.text).id}/edit`);
  await expect(admin.getByLabel("Date and time", { exact: true })).toHaveValue(/^2031-05-01T09:00/);
  await expect(admin.getByLabel("Time zone", { exact: true })).toHaveValue("Asia/Tokyo");
});

/** Returns the text of the JSON editor as a value. */
async function inputJson(page: Page): Promise<unknown> {
  return JSON.parse(await page.getByLabel("Input as JSON").inputValue());
}

/** Waits until the worker has registered its job types, by creating a job. */
async function waitForWorker(url: string, user: Parameters<typeof makeJob>[1]): Promise<void> {
  await makeJob(url, user, { name: "Present", input: shell("true") });
}
