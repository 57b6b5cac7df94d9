// The main workflow of a new user, from the setup link to a deleted job. Within a test the page is never reloaded, except when
// the signed-in user changes.

import { randomBytes } from "node:crypto";
import { writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import type { BrowserContext, Page } from "@playwright/test";

import { fillList, jobAction } from "../fixtures/jobs";
import { expect, open, screenshot, test, waitForHydration, waitForLive } from "../fixtures/test";
import { callServerFunction, sessionIn, signIn, type TestUser } from "../fixtures/users";

test.use({ stackName: "journey" });
// Each test continues with the installation that the one before has left.
test.describe.configure({ mode: "serial" });

const USER: TestUser = { name: "Grace Hopper", email: "grace@example.org", passphrase: "paper crane under seven bridges", session: "" };

test("the setup link creates the first Admin", async ({ page, stack, watch }) => {
  // The browser logs each response to an invalid form.
  watch.expect(/status of 422/);
  // A new installation prints the setup link at its start.
  const link = stack.server.setupLink ?? "";
  expect(link).not.toBe("");
  await open(page, link);
  await expect(page).toHaveTitle("Set up Milvaion · Milvaion");
  await screenshot(page, "setup");
  await page.getByLabel("Name").fill(USER.name);
  await page.getByLabel("E-mail").fill(USER.email);
  await page.getByLabel("Passphrase", { exact: true }).fill("too short");
  await page.getByRole("button", { name: "Create the first Admin" }).click();
  await expect(page.locator("#f-passphrase-error")).toContainText("12");
  await expect(page.locator("#f-passphrase")).toHaveAttribute("aria-invalid", "true");
  await expect(page.locator("#f-email")).toHaveValue(USER.email);
  await page.getByLabel("Passphrase", { exact: true }).fill(USER.passphrase);
  await page.getByRole("button", { name: "Create the first Admin" }).click();
  await expect(page).toHaveURL(`${stack.url}/`);
  await waitForHydration(page);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
  await expect(page.locator(".health li")).not.toHaveCount(0);
  await expect(page.getByText("A worker is connected")).toBeVisible();
  await screenshot(page, "overview-empty");
});

test("the sample job reports its error and runs once", async ({ context, page, stack, watch }) => {
  watch.expect(/status of 503/);
  await signInAgain(context, stack.url);
  await open(page, "/");
  const button = page.getByRole("button", { name: "Run a sample job" });
  await expect(button).not.toHaveAttribute("aria-disabled", "true");
  const refusal = "PostgreSQL is unreachable. Nothing was changed; try again in a moment.";
  await page.route("**/api/run_sample_job", (route) =>
    route.fulfill({
      status: 503,
      contentType: "application/json",
      headers: { serverfnerror: "/api/run_sample_job" },
      body: JSON.stringify({ unavailable: refusal }),
    }),
  );
  await button.click();
  await expect(page.locator("form").filter({ has: button }).getByRole("alert")).toContainText(refusal);
  await expect(page.locator(".toast")).toHaveCount(0);
  await screenshot(page, "overview-action-error");
  await page.unroute("**/api/run_sample_job");
  await button.dblclick();
  await expect(page).toHaveURL(/\/occurrences\/[0-9a-f-]{36}$/);
  await expect(page.getByRole("heading", { level: 1 })).toContainText("Sample job");
  await expect(page.locator(".log-lines")).toContainText("step 1 of 10 is done");
  await screenshot(page, "sample-run");
  await nav(page, "Occurrences");
  await expect(page.locator("#occurrences tbody tr")).toHaveCount(1);
  await nav(page, "Jobs");
  await expect(page.getByRole("link", { name: "Sample job" })).toHaveCount(1);
});

test("a job is created by its form and completes", async ({ context, page, stack, target, watch }) => {
  watch.expect(/status of 422/);
  await signInAgain(context, stack.url);
  await open(page, "/jobs");
  await markPage(page);

  await test.step("the job form shows errors and creates the job", async () => {
    await page.getByRole("main").getByRole("link", { name: "New job" }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("New job");
    await page.getByLabel("Name", { exact: true }).fill("Call home");
    await page.getByRole("radio", { name: /^http-request/ }).check();
    await page.getByRole("textbox", { name: /^URL/ }).fill(target.at("/slow/home"));

    // Before the form is sent, the error appears shortly after typing.
    await page.getByLabel("Cron expression", { exact: true }).fill("*/2 * * * 99");
    await expect(page.locator("#f-cron-error")).toBeVisible();
    await expect(page.locator("#f-cron")).toHaveAttribute("aria-invalid", "true");
    await expect(page.locator("#error-summary")).toBeHidden();
    await screenshot(page, "job-form-error");

    // After the form is sent, the error summary appears too and receives the focus.
    await page.getByRole("button", { name: "Create", exact: true }).click();
    await expect(page.locator("#error-summary")).toBeFocused();
    await expect(page.locator("#error-summary").getByRole("link")).toHaveAttribute("href", "#f-cron");
    await expect(page.locator("#f-cron-error")).toBeVisible();
    await expect(page.getByRole("textbox", { name: /^URL/ })).toHaveValue(target.at("/slow/home"));

    await page.getByLabel("Cron expression", { exact: true }).fill("*/2 * * * * *");
    await page.getByLabel("Time zone", { exact: true }).fill("Europe/Warsaw");
    const outcome = page.getByRole("complementary");
    await expect(outcome.locator(".preview-words")).toContainText("2 seconds");
    await expect(outcome.getByRole("columnheader")).toHaveText(["Next runs (Europe/Warsaw)", "Your time (America/New_York)"]);
    await expect(outcome.locator("tbody tr")).toHaveCount(5);
    await expect(outcome.locator("tbody tr").first().locator("td")).toHaveText([/CES?T$/, /E[SD]T$/]);
    await expect(page.locator("#f-cron-error")).toBeHidden();
    await expect(page.locator("#error-summary")).toBeHidden();
    await screenshot(page, "job-form");
    await page.getByRole("button", { name: "Create", exact: true }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Call home");
    await expect(page.locator(".toast")).toContainText("The job is created.");
  });

  await test.step("the first occurrence completes", async () => {
    await expect(page.locator('#occurrences tr[data-status="completed"]').first()).toBeVisible({ timeout: 20_000 });
    expect(target.requests.some((request) => request.method === "GET" && request.path === "/slow/home")).toBe(true);
  });

  await test.step("an occurrence's page shows its facts and its result", async () => {
    await page.locator('#occurrences tr[data-status="completed"] a.row-link').first().click();
    await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "completed");
    await expect(page.locator(".timeline li strong")).toHaveText(["Queued", "Running", "Completed"]);
    await expect(page.locator("#result")).toContainText("You called /slow/home.");
    await expect(fact(page, "Duration")).toHaveText(/\d/);
    await expect(fact(page, "Worker instance")).toHaveText(/local/);
    await expect(fact(page, "Trigger")).toContainText("schedule");
    await expect(page.locator(".log-line")).not.toHaveCount(0);
    await expect(page).toHaveTitle("Completed Call home · Occurrence · Milvaion");
  });
  await expectSamePage(page);
});

test("the occurrence list updates live from Queued to Completed", async ({ context, page, stack }) => {
  await signInAgain(context, stack.url);
  // The job runs every two seconds.
  await open(page, "/occurrences");
  await waitForLive(page);
  const recorded = await recordStatuses(page);
  await expect
    .poll(async () => Object.values(await recorded.evaluate((rows) => rows)).map((statuses) => statuses.join(" ")), { timeout: 30_000 })
    .toContain("queued running completed");
});

test("a log is followed and a failure shows its cause", async ({ context, page, stack }) => {
  await signInAgain(context, stack.url);
  await open(page, "/jobs");
  await markPage(page);

  await test.step("a log is followed while the job runs", async () => {
    const go = join(tmpdir(), `milvaion-e2e-${randomBytes(6).toString("hex")}`);
    const wait = `until test -e ${go}; do sleep 0.1; done; rm ${go}`;
    await defineCommand(page, "Count aloud", `echo line 1; ${wait}; for i in 2 3 4 5 6; do echo line $i; done; echo done >&2`);
    await page.getByRole("button", { name: "Create and run now" }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Count aloud");
    await page.locator("#occurrences a.row-link").first().click();
    const log = page.locator(".log-lines");
    await expect(log).toContainText("line 1");
    await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "running");
    await expect(log).not.toContainText("line 6");
    const before = await page.locator(".log-line").count();
    await writeFile(go, "");
    await expect(log).toContainText("line 6");
    expect(await page.locator(".log-line").count()).toBeGreaterThan(before);
    await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "completed");
    await expect(log).toContainText("done");
    await expect(page.locator("#result")).toContainText('"exitCode": 0');
  });

  await test.step("a failure shows its cause", async () => {
    await nav(page, "Jobs");
    await defineCommand(page, "Fall over", "echo the floor is wet >&2; exit 3");
    await page.getByRole("button", { name: "Create and run now" }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Fall over");
    await expect(page.locator('#occurrences tr[data-status="failed"]')).toHaveCount(1);
    await page.locator("#occurrences a.row-link").first().click();
    await expect(page.locator("#exception")).toContainText("3");
    await expect(page.getByRole("status").filter({ hasText: "Failed: " })).toBeVisible();
    await expect(page.locator(".log-lines")).toContainText("the floor is wet");
    await screenshot(page, "occurrence-failed");
  });

  await test.step("the overview counts the outcomes", async () => {
    await nav(page, "Overview");
    const tile = (word: string) => page.locator(".tile").filter({ hasText: word }).locator(".tile-value");
    await expect(tile("Completed")).toHaveText(/[1-9]/);
    await expect(tile("Failed")).toHaveText("1");
    await expect(tile("Live instances")).toHaveText("1");
    await expect(page.getByRole("region", { name: "Recent failures" })).toContainText("Fall over");
  });
  await expectSamePage(page);
});

test("a job is run with other input, paused and resumed", async ({ context, page, stack, target, watch }) => {
  // The browser logs the 422 response to an input that is no JSON.
  watch.expect(/status of 422/);
  await signInAgain(context, stack.url);
  await open(page, "/jobs");
  await markPage(page);

  await test.step("a job is run now with other input", async () => {
    await page.getByRole("link", { name: "Call home" }).click();
    await jobAction(page, "Run with different input…");
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Input as JSON").fill("{");
    await dialog.getByRole("button", { name: "Run", exact: true }).click();
    await expect(dialog.locator("#run-input-error")).toBeVisible();
    await expect(dialog.getByLabel("Input as JSON")).toBeFocused();
    await dialog.getByLabel("Input as JSON").fill(JSON.stringify({ url: target.at("/other"), method: "POST", body: "hello" }));
    await dialog.getByLabel("Reason").fill("to see whether it works");
    await dialog.getByRole("button", { name: "Run", exact: true }).click();
    await expect(dialog).toBeHidden();
    await expect(page.locator(".toast").filter({ hasText: "queued to run now with this input" })).toBeVisible();
    await expect.poll(() => target.requests.find((request) => request.path === "/other")?.body).toBe("hello");
    await expect(page.locator("#occurrences tr").filter({ hasText: "manual" })).toHaveAttribute("data-status", "completed");
  });

  await test.step("a pause is undone, repeated and resumed", async () => {
    await page.getByRole("button", { name: "Pause…" }).click();
    await page.getByRole("dialog").getByLabel("Reason").fill("the other side is being painted");
    await page.getByRole("dialog").getByRole("button", { name: "Pause job" }).click();
    const toast = page.locator(".toast").filter({ hasText: "Call home is paused." });
    await expect(page.getByText("Reason: the other side is being painted")).toBeVisible();
    await screenshot(page, "job-paused");
    await toast.getByRole("button", { name: "Undo" }).click();
    await expect(page.getByText("This job is paused")).toBeHidden();
    await expect(page.locator("dd .badge[data-status=active]")).toBeVisible();
    const count = target.requests.length;
    await expect.poll(() => target.requests.length, { timeout: 15_000 }).toBeGreaterThan(count);

    await nav(page, "Jobs");
    const job = page.getByRole("row").filter({ has: page.getByRole("link", { name: "Call home" }) });
    await job.getByRole("button", { name: "Pause: Call home" }).click();
    await expect(job.locator(".badge[data-status=paused]")).toBeVisible();
    await expect(page.locator(".toast").filter({ hasText: "Call home is paused." })).toBeVisible();
    await job.getByRole("button", { name: "Resume: Call home" }).click();
    await expect(page.locator(".toast").filter({ hasText: "Call home is resumed." })).toBeVisible();
    await expect(job.locator(".badge[data-status=active]")).toBeVisible();
  });
  await expectSamePage(page);
});

test("a job is edited and deleted", async ({ context, page, stack, target }) => {
  await signInAgain(context, stack.url);
  await open(page, "/jobs");
  await markPage(page);

  await test.step("the job is edited", async () => {
    await page.getByRole("link", { name: "Call home" }).click();
    await jobAction(page, "Edit");
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Edit Call home");
    await expect(page.getByRole("textbox", { name: /^URL/ })).toHaveValue(target.at("/slow/home"));
    await page.getByLabel("Name", { exact: true }).fill("Call home, rarely");
    await page.getByRole("radio", { name: /^Interval/ }).check();
    await page.getByLabel("Interval", { exact: true }).fill("3");
    await page.getByLabel("Unit").selectOption("hours");
    await expect(page.getByRole("complementary").locator(".preview-words")).toContainText("3 hours");
    await page.getByRole("button", { name: "Save" }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Call home, rarely");
    await expect(page.locator(".toast").filter({ hasText: "The job is saved." })).toBeVisible();
    await expect(page.locator("#definition ~ .kv")).toContainText("3 hours");
  });

  await test.step("the job is deleted after confirmation", async () => {
    // The menu opens from the keyboard, and closes with Escape and on a click outside.
    const more = page.locator(".action-menu summary");
    const item = page.getByRole("button", { name: "Delete…" });
    await more.press("Enter");
    await expect(item).toBeVisible();
    await page.keyboard.press("Escape");
    await expect(item).toBeHidden();
    await expect(more).toBeFocused();
    await more.press("Space");
    await expect(item).toBeVisible();
    await page.getByRole("heading", { level: 1 }).click();
    await expect(item).toBeHidden();

    await jobAction(page, "Delete…");
    const dialog = page.getByRole("dialog", { name: "Delete job Call home, rarely?" });
    await expect(dialog.getByRole("button", { name: "Cancel" })).toBeFocused();
    await page.keyboard.press("Escape");
    await expect(dialog).toBeHidden();
    await expect(item).toBeHidden();
    await expect(more).toBeFocused();
    await jobAction(page, "Delete…");
    await dialog.getByRole("button", { name: "Delete job" }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Jobs");
    await expect(page.locator(".toast").filter({ hasText: "Call home, rarely is deleted." })).toBeVisible();
    await expect(page.getByRole("link", { name: "Call home, rarely" })).toHaveCount(0);
    await expect(page.getByRole("link", { name: "Count aloud" })).toBeVisible();
  });
  await expectSamePage(page);
});

test("the user signs out and in again", async ({ context, page, stack, watch }) => {
  watch.expect(/status of 422/);
  await signInAgain(context, stack.url);
  await open(page, "/help");
  await page.locator(".user-menu summary").click();
  await page.getByRole("button", { name: "Sign out" }).click();
  await expect(page).toHaveURL(/\/login/);
  await waitForHydration(page);
  await page.goto("/jobs");
  await expect(page).toHaveURL(/\/login\?next=%2Fjobs|\/login\?next=\/jobs/);
  await waitForHydration(page);
  await page.getByLabel("E-mail").fill(USER.email);
  await page.getByLabel("Passphrase", { exact: true }).fill("paper crane under six bridges");
  await page.getByRole("button", { name: "Sign in" }).click();
  await expect(page.locator("#f-passphrase-error")).toContainText("wrong");
  await page.getByLabel("Passphrase", { exact: true }).fill(USER.passphrase);
  await page.getByRole("button", { name: "Sign in" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Jobs");
  await expect(page.locator(".user-menu summary")).toContainText(USER.name);
});

/** Signs the browser in as the user that the first test has created. */
async function signInAgain(context: BrowserContext, url: string): Promise<void> {
  const answer = await callServerFunction(url, undefined, "sign_in", { email: USER.email, passphrase: USER.passphrase });
  expect(answer.status, answer.text).toBe(200);
  await signIn(context, url, { ...USER, session: sessionIn(answer.response) });
}

/** Marks the page. A reload removes the mark. */
async function markPage(page: Page): Promise<void> {
  await page.evaluate(() => Object.assign(window, { mark: "still here" }));
}

/** Checks that the page was not reloaded since it was marked. */
async function expectSamePage(page: Page): Promise<void> {
  expect(await page.evaluate(() => (window as unknown as { mark?: string }).mark)).toBe("still here");
}

async function nav(page: Page, word: string): Promise<void> {
  await page.getByRole("navigation", { name: "Main", exact: true }).getByRole("link", { name: word }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText(word);
}

/** Returns the value of a label in an occurrence's list of facts. */
function fact(page: Page, word: string) {
  return page.locator(".kv dt", { hasText: new RegExp(`^${word}$`) }).locator("xpath=following-sibling::dd[1]");
}

/** Fills in the form of a manual job that runs a shell command, from the list of jobs. */
async function defineCommand(page: Page, name: string, script: string): Promise<void> {
  await page.getByRole("link", { name: "New job" }).click();
  await page.getByLabel("Name", { exact: true }).fill(name);
  await page.getByRole("radio", { name: /^shell-command/ }).check();
  await fillList(page, "Command", ["sh", "-c", script]);
  await page.getByRole("radio", { name: /^Manual only/ }).check();
}

/** Starts to record the sequence of statuses of every row in the list. */
async function recordStatuses(page: Page) {
  return page.evaluateHandle(() => {
    const recorded: Record<string, string[]> = {};
    const record = () => {
      for (const row of document.querySelectorAll<HTMLElement>("#occurrences tr[data-id]")) {
        const statuses = (recorded[row.dataset.id ?? ""] ??= []);
        const status = row.dataset.status ?? "";
        if (statuses.at(-1) !== status) {
          statuses.push(status);
        }
      }
    };
    record();
    const list = document.querySelector("#occurrences") as HTMLElement;
    new MutationObserver(record).observe(list, { subtree: true, childList: true, attributes: true });
    return recorded;
  });
}
