// The main job, as a stranger does it: from the setup link to finished occurrences, on one page that never reloads by
// itself or by hand, apart from the moments in which who reads changes.

import { randomBytes } from "node:crypto";
import { writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import type { Page } from "@playwright/test";

import { expect, live, ready, shot, test } from "../fixtures/test";

test.use({ scene: "journey" });
test.describe.configure({ mode: "serial" });

const NAME = "Grace Hopper";
const EMAIL = "grace@example.org";
const PASSPHRASE = "paper crane under seven bridges";

test("from the setup link to finished occurrences, seen as they happen", async ({ page, stack, target, watch }) => {
  test.setTimeout(180_000);
  // A wrong form is answered with 422, which the browser mentions.
  watch.expect(/status of 422/);
  // The setup link is the first thing a new installation prints.
  expect(stack.server.setupLink).toBeTruthy();
  const began = Date.now();

  await test.step("the setup link makes the first Admin", async () => {
    await page.goto(stack.server.setupLink ?? "");
    await ready(page);
    await expect(page).toHaveTitle("Set up Milvaion · Milvaion");
    await shot(page, "setup");
    await page.getByLabel("Name").fill(NAME);
    await page.getByLabel("E-mail").fill(EMAIL);
    await page.getByLabel("Passphrase", { exact: true }).fill("too short");
    await page.getByRole("button", { name: "Create the first Admin" }).click();
    await expect(page.locator("#f-passphrase-error")).toContainText("12");
    await expect(page.locator("#f-passphrase")).toHaveAttribute("aria-invalid", "true");
    await expect(page.locator("#f-email")).toHaveValue(EMAIL);
    await page.getByLabel("Passphrase", { exact: true }).fill(PASSPHRASE);
    await page.getByRole("button", { name: "Create the first Admin" }).click();
    await expect(page).toHaveURL(`${stack.url}/`);
    await ready(page);
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
    await expect(page.locator(".health li")).not.toHaveCount(0);
    await expect(page.getByText("A worker is connected")).toBeVisible();
    await shot(page, "overview-empty");
  });
  // From here on nothing reloads the page: this mark would be gone.
  await page.evaluate(() => Object.assign(window, { mark: "still here" }));

  await test.step("a job is defined, and told what is wrong with it", async () => {
    await page.getByRole("link", { name: "Create your first job" }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("New job");
    await page.getByLabel("Name", { exact: true }).fill("Call home");
    await page.getByRole("radio", { name: /^http-request/ }).check();
    await page.getByRole("textbox", { name: /^Address/ }).fill(target.at("/slow/home"));

    // Before it is sent: a moment after the field was typed in.
    await page.getByLabel("Cron expression", { exact: true }).fill("*/2 * * * 99");
    await expect(page.locator("#f-cron-error")).toBeVisible();
    await expect(page.locator("#f-cron")).toHaveAttribute("aria-invalid", "true");
    await expect(page.locator("#error-summary")).toBeHidden();
    await shot(page, "job-form-error");

    // After it was sent: above the form too, with the focus there.
    await page.getByRole("button", { name: "Create", exact: true }).click();
    await expect(page.locator("#error-summary")).toBeFocused();
    await expect(page.locator("#error-summary").getByRole("link")).toHaveAttribute("href", "#f-cron");
    await expect(page.locator("#f-cron-error")).toBeVisible();
    await expect(page.getByRole("textbox", { name: /^Address/ })).toHaveValue(target.at("/slow/home"));

    await page.getByLabel("Cron expression", { exact: true }).fill("*/2 * * * * *");
    await page.getByLabel("Time zone", { exact: true }).fill("Europe/Warsaw");
    const outcome = page.getByRole("complementary");
    await expect(outcome.locator(".preview-words")).toContainText("2 seconds");
    await expect(outcome.getByRole("columnheader")).toHaveText(["Next, Europe/Warsaw", "Yours, America/New_York"]);
    await expect(outcome.locator("tbody tr")).toHaveCount(5);
    await expect(outcome.locator("tbody tr").first().locator("td")).toHaveText([/CES?T$/, /E[SD]T$/]);
    await expect(page.locator("#f-cron-error")).toBeHidden();
    await expect(page.locator("#error-summary")).toBeHidden();
    await shot(page, "job-form");
    await page.getByRole("button", { name: "Create", exact: true }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Call home");
    await expect(page.locator(".toast")).toContainText("The job is created.");
  });

  await test.step("its first occurrence completes", async () => {
    await expect(page.locator('#occurrences tr[data-status="completed"]').first()).toBeVisible({ timeout: 20_000 });
    console.log(`figure: setup link to first Completed occurrence: ${((Date.now() - began) / 1000).toFixed(1)} s`);
    expect(target.calls.some((call) => call.method === "GET" && call.path === "/slow/home")).toBe(true);
  });

  await test.step("the list of occurrences changes by itself, from Queued to Running to Completed", async () => {
    await nav(page, "Occurrences");
    await live(page);
    const lives = await livesOfRows(page);
    await expect
      .poll(async () => Object.values(await lives.evaluate((seen) => seen)).map((life) => life.join(" ")), { timeout: 30_000 })
      .toContain("queued running completed");
  });

  await test.step("an occurrence shows what it is and what came of it", async () => {
    await page.locator('#occurrences tr[data-status="completed"] a.row-link').first().click();
    await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "completed");
    await expect(page.locator(".timeline li")).toHaveCount(3);
    await expect(page.locator(".timeline li strong")).toHaveText(["Queued", "Running", "Completed"]);
    await expect(page.locator("#result")).toContainText("You called /slow/home.");
    await expect(fact(page, "Duration")).toHaveText(/\d/);
    await expect(fact(page, "Worker instance")).toHaveText(/local/);
    await expect(fact(page, "Trigger")).toContainText("schedule");
    await expect(page.locator(".log-line")).not.toHaveCount(0);
    await expect(page).toHaveTitle("Completed Call home · Occurrence · Milvaion");
  });

  await test.step("a log is read while it is written", async () => {
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

  await test.step("a failure tells its cause", async () => {
    await defineCommand(page, "Fall over", "echo the floor is wet >&2; exit 3");
    await page.getByRole("button", { name: "Create and run now" }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Fall over");
    await expect(page.locator('#occurrences tr[data-status="failed"]')).toHaveCount(1);
    await page.locator("#occurrences a.row-link").first().click();
    await expect(page.locator("#exception")).toContainText("3");
    await expect(page.getByRole("status").filter({ hasText: "Failed: " })).toBeVisible();
    await expect(page.locator(".log-lines")).toContainText("the floor is wet");
    await shot(page, "occurrence-failed");
  });

  await test.step("a job runs now with another input", async () => {
    await nav(page, "Jobs");
    await page.getByRole("link", { name: "Call home" }).click();
    await page.getByRole("button", { name: "Run with other input…" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Input as JSON").fill("{");
    await dialog.getByRole("button", { name: "Run" }).click();
    await expect(dialog.locator("#run-input-error")).toBeVisible();
    await expect(dialog.getByLabel("Input as JSON")).toBeFocused();
    await dialog.getByLabel("Input as JSON").fill(JSON.stringify({ url: target.at("/other"), method: "POST", body: "hello" }));
    await dialog.getByLabel("Reason").fill("to see whether it works");
    await dialog.getByRole("button", { name: "Run" }).click();
    await expect(dialog).toBeHidden();
    await expect(page.locator(".toast").filter({ hasText: "queued to run now with this input" })).toBeVisible();
    await expect.poll(() => target.calls.find((call) => call.path === "/other")?.body).toBe("hello");
    await expect(page.locator("#occurrences tr").filter({ hasText: "manual" })).toHaveAttribute("data-status", "completed");
  });

  await test.step("it is paused, that is taken back, and it is resumed", async () => {
    await page.getByRole("button", { name: "Pause…" }).click();
    await page.getByRole("dialog").getByLabel("Reason").fill("the other side is being painted");
    await page.getByRole("dialog").getByRole("button", { name: "Pause job" }).click();
    const toast = page.locator(".toast").filter({ hasText: "Call home is paused." });
    await expect(page.getByText("Reason: the other side is being painted")).toBeVisible();
    await shot(page, "job-paused");
    await toast.getByRole("button", { name: "Undo" }).click();
    await expect(page.getByText("This job is paused")).toBeHidden();
    await expect(page.locator("dd .badge[data-status=active]")).toBeVisible();
    const calls = target.calls.length;
    await expect.poll(() => target.calls.length, { timeout: 15_000 }).toBeGreaterThan(calls + 1);

    await nav(page, "Jobs");
    const job = page.getByRole("row").filter({ has: page.getByRole("link", { name: "Call home" }) });
    await job.getByRole("button", { name: "Pause: Call home" }).click();
    await expect(job.locator(".badge[data-status=paused]")).toBeVisible();
    await expect(page.locator(".toast").filter({ hasText: "Call home is paused." })).toBeVisible();
    await job.getByRole("button", { name: "Resume: Call home" }).click();
    await expect(page.locator(".toast").filter({ hasText: "Call home is resumed." })).toBeVisible();
    await expect(job.locator(".badge[data-status=active]")).toBeVisible();
  });

  await test.step("it is edited", async () => {
    await page.getByRole("link", { name: "Call home" }).click();
    await page.getByRole("link", { name: "Edit" }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Edit Call home");
    await expect(page.getByRole("textbox", { name: /^Address/ })).toHaveValue(target.at("/slow/home"));
    await page.getByLabel("Name", { exact: true }).fill("Call home, rarely");
    await page.getByRole("radio", { name: /^Every so often/ }).check();
    await page.getByLabel("Every", { exact: true }).fill("3");
    await page.getByLabel("Unit").selectOption("hours");
    await expect(page.getByRole("complementary").locator(".preview-words")).toContainText("3 hours");
    await page.getByRole("button", { name: "Save" }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Call home, rarely");
    await expect(page.locator(".toast").filter({ hasText: "The job is saved." })).toBeVisible();
    await expect(page.locator("#definition ~ .kv")).toContainText("3 hours");
  });

  await test.step("it is deleted, after a question", async () => {
    await page.getByRole("button", { name: "Delete…" }).click();
    const dialog = page.getByRole("dialog", { name: "Delete job Call home, rarely?" });
    await expect(dialog.getByRole("button", { name: "Cancel" })).toBeFocused();
    await page.keyboard.press("Escape");
    await expect(dialog).toBeHidden();
    await page.getByRole("button", { name: "Delete…" }).click();
    await dialog.getByRole("button", { name: "Delete job" }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Jobs");
    await expect(page.locator(".toast").filter({ hasText: "Call home, rarely is deleted." })).toBeVisible();
    await expect(page.getByRole("link", { name: "Call home, rarely" })).toHaveCount(0);
    await expect(page.getByRole("link", { name: "Count aloud" })).toBeVisible();
  });

  await test.step("the overview counts what happened", async () => {
    await nav(page, "Overview");
    const tile = (word: string) => page.locator(".tile").filter({ hasText: word }).locator(".tile-value");
    await expect(tile("Completed")).toHaveText(/[1-9]/);
    await expect(tile("Failed")).toHaveText("1");
    await expect(tile("Workers alive")).toHaveText("1");
    await expect(page.getByRole("region", { name: "Last failures" })).toContainText("Fall over");
  });

  await test.step("nothing of this reloaded the page", async () => {
    expect(await page.evaluate(() => (window as unknown as { mark?: string }).mark)).toBe("still here");
  });

  await test.step("signing out and in again", async () => {
    await page.locator(".user-menu summary").click();
    await page.getByRole("button", { name: "Sign out" }).click();
    await expect(page).toHaveURL(/\/login/);
    await ready(page);
    await page.goto("/jobs");
    await expect(page).toHaveURL(/\/login\?next=%2Fjobs|\/login\?next=\/jobs/);
    await ready(page);
    await page.getByLabel("E-mail").fill(EMAIL);
    await page.getByLabel("Passphrase", { exact: true }).fill("paper crane under six bridges");
    await page.getByRole("button", { name: "Sign in" }).click();
    await expect(page.locator("#f-passphrase-error")).toContainText("wrong");
    await page.getByLabel("Passphrase", { exact: true }).fill(PASSPHRASE);
    await page.getByRole("button", { name: "Sign in" }).click();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Jobs");
    await expect(page.locator(".user-menu summary")).toContainText(NAME);
  });
});

test("the setup link is good only once", async ({ page, stack, watch }) => {
  watch.expect(/status of 404/);
  await page.goto(stack.server.setupLink ?? "");
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("This link no longer works");
});

async function nav(page: Page, word: string): Promise<void> {
  await page.getByRole("navigation", { name: "Main", exact: true }).getByRole("link", { name: word }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText(word);
}

/** The value beside a word in an occurrence's list of facts. */
function fact(page: Page, word: string) {
  return page.locator(".kv dt", { hasText: new RegExp(`^${word}$`) }).locator("xpath=following-sibling::dd[1]");
}

/** Fills the form for a shell command that is only run by hand. */
async function defineCommand(page: Page, name: string, script: string): Promise<void> {
  await nav(page, "Jobs");
  await page.getByRole("link", { name: "New job" }).click();
  await page.getByLabel("Name", { exact: true }).fill(name);
  await page.getByRole("radio", { name: /^shell-command/ }).check();
  await page.getByRole("textbox", { name: /^Command/ }).fill(["sh", "-c", script].join("\n"));
  await page.getByRole("radio", { name: /^Only by hand/ }).check();
}

/** Begins to write down, for every row of the list, which statuses it shows one after the other. */
async function livesOfRows(page: Page) {
  return page.evaluateHandle(() => {
    const seen: Record<string, string[]> = {};
    const look = () => {
      for (const row of document.querySelectorAll<HTMLElement>("#occurrences tr[data-id]")) {
        const life = (seen[row.dataset.id ?? ""] ??= []);
        const status = row.dataset.status ?? "";
        if (life.at(-1) !== status) {
          life.push(status);
        }
      }
    };
    look();
    const list = document.querySelector("#occurrences") as HTMLElement;
    new MutationObserver(look).observe(list, { subtree: true, childList: true, attributes: true });
    return seen;
  });
}
