// Every page of the site map, in both themes, on a desk and on a phone: no violation that axe can find, nothing to scroll
// sideways. The console is watched as everywhere.

import { AxeBuilder } from "@axe-core/playwright";
import type { Page } from "@playwright/test";

import { form, makeCalendar, makeJob, pauseJob, reached, runJob, shell } from "../fixtures/jobs";
import { deadLetter } from "../fixtures/letter";
import { call } from "../fixtures/people";
import { hasServices } from "../fixtures/stack";
import { expect, live, open, row, shot, test } from "../fixtures/test";

test.use({ scene: "a11y", contextOptions: { reducedMotion: "reduce" } });

const TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
const DESK = { width: 1280, height: 900 };
const PHONE = { width: 360, height: 740 };

/** What there is to see, made once. */
interface Seen {
  job: string;
  calendar: string;
  paused: string;
  completed: string;
  failed: string;
  running: string;
}
let seen: Seen | undefined;

test("the setup page", async ({ page, stack }) => {
  // Before the first Admin: no other test has asked for one, for each file's tests run in order.
  await judge(page, stack.server.setupLink ?? "", "setup");
});

test.describe("with things to see", () => {
  test.beforeAll(async ({ stack, person }) => {
    seen = await scenery(stack.url, person);
  });

  test("the overview", async ({ admin }) => {
    await judge(admin, "/", "overview", async () => {
      await live(admin);
      await admin.getByText("View as table").click();
    });
  });

  test("the jobs", async ({ admin }) => {
    await judge(admin, "/jobs", "jobs");
    await judge(admin, "/jobs?q=nothing+like+this", "jobs-none");
  });

  test("a job", async ({ admin }) => {
    await judge(admin, `/jobs/${seen?.job}`, "job");
    await judge(admin, `/jobs/${seen?.paused}`, "job-paused-bare");
  });

  test("a job's dialogs", async ({ admin }) => {
    await open(admin, `/jobs/${seen?.job}`);
    for (const [button, name] of [["Delete…", "dialog-delete"], ["Pause…", "dialog-pause"], ["Run with other input…", "dialog-run"]] as const) {
      await admin.getByRole("button", { name: button }).click();
      await expect(admin.getByRole("dialog")).toBeVisible();
      await inEveryLight(admin, name);
      await admin.keyboard.press("Escape");
      await expect(admin.getByRole("dialog")).toBeHidden();
      await expect(admin.getByRole("button", { name: button })).toBeFocused();
    }
    await admin.keyboard.press("?");
    await expect(admin.getByRole("dialog", { name: "Keyboard shortcuts" })).toBeVisible();
    await inEveryLight(admin, "dialog-keys");
  });

  test("a new job", async ({ admin, watch }) => {
    watch.expect(/status of 422/);
    await judge(admin, "/jobs/new", "job-new");
    await judge(admin, "/jobs/new?type=local/http-request", "job-new-http", async () => {
      await admin.getByRole("textbox", { name: "Cron expression" }).fill("0 9 29 2 *");
      await expect(admin.locator(".preview tbody tr")).toHaveCount(5);
      await admin.getByRole("button", { name: "Create", exact: true }).click();
      await expect(admin.locator("#error-summary")).toBeFocused();
    });
  });

  test("an edit", async ({ admin }) => {
    await judge(admin, `/jobs/${seen?.job}/edit`, "job-edit", async () => {
      await admin.getByText("Timeout, priority, tags, description").click();
    });
  });

  test("the calendars", async ({ admin }) => {
    await judge(admin, "/calendars", "calendars");
    await judge(admin, `/calendars/${seen?.calendar}/edit`, "calendar-edit");
  });

  test("a new calendar", async ({ admin, watch }) => {
    watch.expect(/status of 422/);
    await judge(admin, "/calendars/new", "calendar-new", async () => {
      await admin.getByRole("button", { name: "Add a window" }).click();
      await admin.getByRole("group", { name: "Window 1" }).getByLabel("Mon").check();
      await admin.getByLabel("Days (optional)").fill("tomorrow");
      await admin.getByRole("button", { name: "Create" }).click();
      await expect(admin.locator("#error-summary")).toBeFocused();
    });
  });

  test("a calendar's dialog", async ({ admin }) => {
    await open(admin, `/calendars/${seen?.calendar}/edit`);
    await admin.getByRole("button", { name: "Delete…" }).click();
    await expect(admin.getByRole("dialog")).toBeVisible();
    await inEveryLight(admin, "dialog-calendar-delete");
  });

  test("the occurrences", async ({ admin }) => {
    await judge(admin, "/occurrences", "occurrences");
    await judge(admin, "/occurrences?status=timed-out", "occurrences-none");
  });

  test("an occurrence", async ({ admin }) => {
    await judge(admin, `/occurrences/${seen?.completed}`, "occurrence");
    await judge(admin, `/occurrences/${seen?.failed}`, "occurrence-failed");
    await judge(admin, `/occurrences/${seen?.running}`, "occurrence-running");
  });

  test("the failures", async ({ admin }) => {
    await judge(admin, "/failed", "failed");
    await judge(admin, "/failed?cause=lost", "failed-none");
    await judge(admin, `/failed/${seen?.failed}`, "failed-one");
  });

  test("the failures of one cause", async ({ admin }) => {
    const answer = await admin.request.get(`/api/failure?id=${seen?.failed}`);
    const { fingerprint } = (await answer.json()) as { fingerprint: string };
    await judge(admin, `/failed/${fingerprint}?state=all`, "failed-kind", async () => {
      await admin.locator("#failures").getByRole("checkbox").last().check();
    });
    await admin.getByRole("button", { name: /^Retry 1 chosen/ }).click();
    await expect(admin.getByRole("dialog")).toBeVisible();
    await inEveryLight(admin, "dialog-retry");
    await admin.keyboard.press("Escape");
    await expect(admin.getByRole("button", { name: /^Retry 1 chosen/ })).toBeFocused();
  });

  test("the dead letters", async ({ admin, stack }) => {
    await judge(admin, "/failed?tab=dead-letters", "dead-letters-none");
    if (hasServices) {
      const letter = Buffer.from('{"noMessage": "of ours", "at": "all"}\0');
      await deadLetter(process.env.AMQP_URL ?? "", stack.prefix, letter);
      await expect(async () => {
        await admin.reload();
        await expect(admin.locator("#dead-letters > li")).toHaveCount(1, { timeout: 500 });
      }).toPass({ timeout: 20_000 });
      await judge(admin, "/failed?tab=dead-letters", "dead-letters", async () => {
        await admin.getByText("Its content").click();
        await admin.getByRole("checkbox").last().check();
      });
    }
  });

  test("the history of a job", async ({ admin, person, stack }) => {
    const edited = { ...form({ name: "Resumed", input: shell("echo more"), cron: "0 0 1 * *" }), "form[id]": seen?.paused ?? "" };
    const answer = await call(stack.url, person.session, "save_job", { ...edited, "form[version]": "2" });
    expect(answer.status, answer.text).toBe(200);
    await judge(admin, `/jobs/${seen?.paused}?tab=history`, "history");
    await judge(admin, `/jobs/${seen?.paused}?tab=history&from=3&to=1`, "history-compared");
    await admin.getByRole("button", { name: "Restore version 1" }).click();
    await expect(admin.getByRole("dialog")).toBeVisible();
    await inEveryLight(admin, "dialog-restore");
  });

  test("the workers", async ({ admin }) => {
    await judge(admin, "/workers", "workers", async () => {
      await admin.getByText("Input schema").first().click();
    });
  });

  test("the team", async ({ admin }) => {
    await judge(admin, "/team", "team", async () => {
      await admin.getByRole("textbox", { name: "Name" }).fill("Grace");
      await admin.getByRole("button", { name: "Make a link" }).click();
      await expect(admin.getByLabel("One-time link", { exact: true })).toBeVisible();
    });
  });

  test("the help", async ({ admin }) => {
    await judge(admin, "/help", "help");
  });

  test("what is not there, and what is not allowed", async ({ admin, watch }) => {
    watch.expect(/status of 404/);
    await judge(admin, "/nothing/here", "lost");
    await judge(admin, "/jobs/00000000-0000-7000-8000-000000000000", "job-lost");
  });

  test("the doors", async ({ page, stack, person, watch }) => {
    watch.expect(/status of (404|422)/);
    const answer = await call(stack.url, person.session, "invite_user", { name: "Vera", role: "viewer" });
    await judge(page, JSON.parse(answer.text) as string, "invite");
    await judge(page, "/invite?token=spent", "invite-spent");
    await judge(page, "/login", "login", async () => {
      await page.getByLabel("E-mail").fill("nobody@example.org");
      await page.getByLabel("Passphrase", { exact: true }).fill("wrong and wrong again");
      await page.getByRole("button", { name: "Sign in" }).click();
      await expect(page.locator("#f-passphrase-error")).toBeVisible();
    });
  });

  test("the theme and the zone are kept, and are there from the first byte", async ({ admin, context }) => {
    await open(admin, "/occurrences");
    await expect(row(admin, seen?.completed ?? "").locator("time").first()).toContainText(/UTC[−-]\d/);
    for (const theme of ["light", "dark"]) {
      await admin.getByRole("button", { name: new RegExp(`Change to ${theme}$`) }).click();
      await expect(admin.locator("html")).toHaveAttribute("data-theme", theme);
    }
    await admin.getByRole("button", { name: /Time zone: Local/ }).click();
    await expect(row(admin, seen?.completed ?? "").locator("time").first()).toHaveText(/ UTC$/);
    const html = await (await context.request.get("/jobs")).text();
    expect(html).toContain('data-theme="dark"');
    await open(admin, "/occurrences");
    await expect(row(admin, seen?.completed ?? "").locator("time").first()).toHaveText(/ UTC$/);
    await expect(admin.getByRole("button", { name: /Time zone: UTC/ })).toBeVisible();
  });

  test("keys lead around, and not while somebody types", async ({ admin }) => {
    await open(admin, "/");
    const heading = admin.getByRole("heading", { level: 1 });
    for (const [keys, name] of [["gj", "Jobs"], ["gr", "Occurrences"], ["gf", "Failures"], ["gw", "Workers"], ["gc", "Calendars"], ["go", "Overview"], ["gj", "Jobs"]] as const) {
      await admin.keyboard.type(keys);
      await expect(heading).toHaveText(name);
      await expect(heading).toBeFocused();
    }
    await admin.getByLabel("Search jobs").fill("");
    await admin.getByLabel("Search jobs").pressSequentially("gow?n");
    await expect(admin.getByLabel("Search jobs")).toHaveValue("gow?n");
    await expect(heading).toHaveText("Jobs");
    await heading.focus();
    await admin.keyboard.press("n");
    await expect(heading).toHaveText("New job");
  });
});

/** Looks at a page once it is as `prepare` makes it. */
async function judge(page: Page, path: string, name: string, prepare?: () => Promise<void>): Promise<void> {
  await page.setViewportSize(DESK);
  await open(page, path);
  await expect(page.getByRole("heading", { level: 1 })).toHaveCount(1);
  await expect(page).toHaveTitle(/.+ · Milvaion$/);
  await prepare?.();
  await inEveryLight(page, name);
}

/** Both themes on a desk, and one of them on a phone, where only the layout differs. */
async function inEveryLight(page: Page, name: string): Promise<void> {
  for (const [theme, size] of [["light", DESK], ["dark", DESK], ["light", PHONE]] as const) {
    const where = `${name}-${theme}${size === PHONE ? "-360" : ""}`;
    await page.setViewportSize(size);
    await page.locator("html").evaluate((root, value) => root.setAttribute("data-theme", value), theme);
    await shot(page, where);
    const { violations } = await new AxeBuilder({ page }).withTags(TAGS).analyze();
    const found = violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.target.join(" ")}: ${node.failureSummary}`));
    expect.soft(found, where).toEqual([]);
    const sideways = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    expect.soft(sideways, `${where} scrolls sideways`).toBeLessThanOrEqual(0);
  }
  await page.setViewportSize(DESK);
}

/** Some of everything. */
async function scenery(url: string, person: Parameters<typeof makeJob>[1]): Promise<Seen> {
  const calendar = await makeCalendar(url, person, {
    name: "Public holidays and the quiet hours of the warehouse in Warsaw",
    zone: "Europe/Warsaw",
    dates: "2030-12-24 to 2030-12-26\n2031-01-01\n2031-01-06\n2031-05-01 to 2031-05-03",
    windows: [
      { days: ["sat", "sun"], from: "00:00", to: "00:00" },
      { days: ["mon", "tue", "wed", "thu", "fri"], from: "22:00", to: "05:30" },
    ],
  });
  await makeCalendar(url, person, { name: "Over", dates: "2020-01-01" });
  const job = await makeJob(url, person, {
    name: "Nightly report of everything that was sold",
    input: shell("for i in 1 2 3; do echo page $i of the report; done; echo a warning >&2"),
    cron: "30 3 * * MON-FRI",
    zone: "Europe/Warsaw",
    tags: "reports, night",
    calendars: [calendar],
    retries: 3,
  });
  const broken = await makeJob(url, person, { name: "Broken", input: shell("echo oh no >&2; exit 7"), every: 86_400 });
  const slow = await makeJob(url, person, { name: "Slow", input: shell("echo begun; sleep 600") });
  const paused = await makeJob(url, person, { name: "Paused", input: shell("true"), cron: "0 0 1 1 *" });
  await pauseJob(url, person, paused);
  const completed = await runJob(url, person, job);
  const failed = await runJob(url, person, broken);
  const running = await runJob(url, person, slow);
  await reached(url, person, completed, "completed");
  await reached(url, person, failed, "failed");
  await reached(url, person, running, "running");
  return { job, calendar, paused, completed, failed, running };
}
