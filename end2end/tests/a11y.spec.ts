// Accessibility of every page and state of an Admin in both themes, on a desktop and on a phone: axe finds no violation and no
// page scrolls sideways. `pages.spec.ts` checks each page once in the light theme, `a11y-roles.spec.ts` the pages of the other
// roles, and `a11y-states.spec.ts` further states. As in all tests, unexpected console messages fail the test.

import type { Page } from "@playwright/test";

import { checkThemes, DESKTOP } from "../fixtures/axe";
import { publishDeadLetter } from "../fixtures/dead-letter";
import { form, jobAction, openMenu, shell } from "../fixtures/jobs";
import { createSamples, type SampleIds } from "../fixtures/samples";
import { hasServices } from "../fixtures/stack";
import { expect, open, test, waitForLive } from "../fixtures/test";
import { callServerFunction, inviteUser, whoami } from "../fixtures/users";

test.use({ stackName: "a11y", contextOptions: { reducedMotion: "reduce" } });

/** The sample objects, which are created once. */
let samples: SampleIds | undefined;

test("the setup page is accessible", { tag: "@all" }, async ({ page, stack }) => {
  // The setup link works only before the first Admin exists. Tests of a file run in order, and no earlier test creates one.
  await checkPage(page, stack.server.setupLink ?? "", "setup");
});

test.describe("with sample data", { tag: "@all" }, () => {
  test.describe.configure({ timeout: 120_000 });

  test.beforeAll(async ({ stack, firstAdmin }) => {
    samples = await createSamples(stack.url, firstAdmin);
  });

  test("the overview is accessible", async ({ admin }) => {
    await checkPage(admin, "/", "overview", async () => {
      await waitForLive(admin);
      await admin.getByText("View as table").click();
    });
  });

  test("the jobs page is accessible", async ({ admin }) => {
    await checkPage(admin, "/jobs", "jobs");
    await checkPage(admin, "/jobs?q=nothing+like+this", "jobs-none");
  });

  test("a job's page is accessible", async ({ admin }) => {
    await checkPage(admin, `/jobs/${samples?.job}`, "job");
    await openMenu(admin);
    await checkThemes(admin, "job-menu");
    await checkPage(admin, `/jobs/${samples?.paused}`, "job-paused-bare");
  });

  test("a job's dialogs are accessible", async ({ admin }) => {
    await open(admin, `/jobs/${samples?.job}`);
    const pause = admin.getByRole("button", { name: "Pause…" });
    const more = admin.locator(".action-menu summary");
    for (const [ask, name, opener] of [
      [() => jobAction(admin, "Delete…"), "dialog-delete", more],
      [() => pause.click(), "dialog-pause", pause],
      [() => jobAction(admin, "Run with different input…"), "dialog-run", more],
    ] as const) {
      await ask();
      await expect(admin.getByRole("dialog")).toBeVisible();
      await checkThemes(admin, name);
      await admin.keyboard.press("Escape");
      await expect(admin.getByRole("dialog")).toBeHidden();
      await expect(opener).toBeFocused();
    }
    await admin.keyboard.press("?");
    await expect(admin.getByRole("dialog", { name: "Keyboard shortcuts" })).toBeVisible();
    await checkThemes(admin, "dialog-keys");
  });

  test("the form of a new job is accessible", async ({ admin, watch }) => {
    watch.expect(/status of 422/);
    await checkPage(admin, "/jobs/new", "job-new");
    await checkPage(admin, "/jobs/new?type=local/http-request", "job-new-http", async () => {
      await admin.getByRole("textbox", { name: "Cron expression" }).fill("0 9 29 2 *");
      await expect(admin.locator(".preview tbody tr")).toHaveCount(5);
      await admin.getByRole("button", { name: "Create", exact: true }).click();
      await expect(admin.locator("#error-summary")).toBeFocused();
    });
  });

  test("the form of an existing job is accessible", async ({ admin }) => {
    await checkPage(admin, `/jobs/${samples?.job}/edit`, "job-edit", async () => {
      await admin.getByText("Timeout, priority, tags, description").click();
    });
  });

  test("the calendars page and a calendar's form are accessible", async ({ admin }) => {
    await checkPage(admin, "/calendars", "calendars");
    await checkPage(admin, `/calendars/${samples?.calendar}/edit`, "calendar-edit");
  });

  test("the form of a new calendar is accessible", async ({ admin, watch }) => {
    watch.expect(/status of 422/);
    await checkPage(admin, "/calendars/new", "calendar-new", async () => {
      await admin.getByRole("button", { name: "Add a window" }).click();
      await admin.getByRole("group", { name: "Window 1" }).getByLabel("Mon").check();
      await admin.getByLabel("Days (optional)").fill("tomorrow");
      await admin.getByRole("button", { name: "Create" }).click();
      await expect(admin.locator("#error-summary")).toBeFocused();
    });
  });

  test("a calendar's dialog is accessible", async ({ admin }) => {
    await open(admin, `/calendars/${samples?.calendar}/edit`);
    await admin.getByRole("button", { name: "Delete…" }).click();
    await expect(admin.getByRole("dialog")).toBeVisible();
    await checkThemes(admin, "dialog-calendar-delete");
  });

  test("the occurrences page is accessible", async ({ admin }) => {
    await checkPage(admin, "/occurrences", "occurrences");
    await checkPage(admin, "/occurrences?status=timed-out", "occurrences-none");
  });

  test("an occurrence's page is accessible", async ({ admin }) => {
    await checkPage(admin, `/occurrences/${samples?.completed}`, "occurrence");
    await checkPage(admin, `/occurrences/${samples?.failed}`, "occurrence-failed");
    await checkPage(admin, `/occurrences/${samples?.running}`, "occurrence-running");
  });

  test("the failures pages are accessible", async ({ admin }) => {
    await checkPage(admin, "/failed", "failed");
    await checkPage(admin, "/failed?cause=lost", "failed-none");
    await checkPage(admin, `/failed/${samples?.failed}`, "failed-one");
  });

  test("the failures of one cause are accessible", async ({ admin }) => {
    const answer = await admin.request.get(`/api/failure?id=${samples?.failed}`);
    const { fingerprint } = (await answer.json()) as { fingerprint: string };
    await checkPage(admin, `/failed/${fingerprint}?state=all`, "failed-kind", async () => {
      await admin.locator("#failures").getByRole("checkbox").last().check();
    });
    await admin.getByRole("button", { name: /^Retry 1 selected/ }).click();
    await expect(admin.getByRole("dialog")).toBeVisible();
    await checkThemes(admin, "dialog-retry");
    await admin.keyboard.press("Escape");
    await expect(admin.getByRole("button", { name: /^Retry 1 selected/ })).toBeFocused();
  });

  test("the dead letters are accessible", async ({ admin, stack }) => {
    await checkPage(admin, "/failed?tab=dead-letters", "dead-letters-none");
    if (hasServices) {
      const body = Buffer.from('{"noMessage": "of ours", "at": "all"}\0');
      await publishDeadLetter(process.env.AMQP_URL ?? "", stack.prefix, body);
      await expect(async () => {
        await admin.reload();
        await expect(admin.locator("#dead-letters > li")).toHaveCount(1, { timeout: 500 });
      }).toPass({ timeout: 20_000 });
      await checkPage(admin, "/failed?tab=dead-letters", "dead-letters", async () => {
        await admin.getByText("Message body").click();
        await admin.getByRole("checkbox").last().check();
      });
    }
  });

  test("a job's history is accessible", async ({ admin, firstAdmin, stack }) => {
    const edited = { ...form({ name: "Resumed", input: shell("echo more"), cron: "0 0 1 * *" }), "form[id]": samples?.paused ?? "" };
    const answer = await callServerFunction(stack.url, firstAdmin.session, "save_job", { ...edited, "form[version]": "2" });
    expect(answer.status, answer.text).toBe(200);
    await checkPage(admin, `/jobs/${samples?.paused}?tab=history`, "history");
    await checkPage(admin, `/jobs/${samples?.paused}?tab=history&from=3&to=1`, "history-compared");
    await admin.getByRole("button", { name: "Restore version 1" }).click();
    await expect(admin.getByRole("dialog")).toBeVisible();
    await checkThemes(admin, "dialog-restore");
  });

  test("the workers page is accessible", async ({ admin }) => {
    await checkPage(admin, "/workers", "workers", async () => {
      await admin.getByText("Input schema").first().click();
    });
  });

  test("the singleton loops page is accessible", async ({ admin }) => {
    await checkPage(admin, "/singleton-loops", "singleton-loops-none");
  });

  test("the alerts pages are accessible", async ({ admin }) => {
    for (const path of ["/alerts", "/alerts?state=all", "/alerts/rules", "/alerts/channels"]) {
      await checkPage(admin, path, path.replaceAll(/\W+/g, "-"));
    }
  });

  test("the team page is accessible", async ({ admin }) => {
    await checkPage(admin, "/team", "team", async () => {
      await admin.getByRole("textbox", { name: "Name" }).fill("Grace");
      await admin.getByRole("button", { name: "Create link" }).click();
      await expect(admin.getByLabel("One-time link", { exact: true })).toBeVisible();
    });
  });

  test("a user's page is accessible", async ({ admin, firstAdmin, stack }) => {
    const { id } = await whoami(stack.url, await inviteUser(stack.url, firstAdmin, "Una User", "operator"));
    await checkPage(admin, `/team/${id}`, "user");
  });

  test("the audit log is accessible", async ({ admin }) => {
    await checkPage(admin, "/audit", "audit");
    await checkPage(admin, "/audit?who=nobody@example.org", "audit-none");
  });

  test("the account page is accessible", async ({ admin }) => {
    await checkPage(admin, "/account", "account");
  });

  test("the menu page is accessible", async ({ admin }) => {
    await checkPage(admin, "/menu", "menu");
  });

  test("the help page is accessible", async ({ admin }) => {
    await checkPage(admin, "/help", "help");
  });

  test("the not found pages are accessible", async ({ admin, watch }) => {
    watch.expect(/status of 404/);
    await checkPage(admin, "/nothing/here", "lost");
    await checkPage(admin, "/jobs/00000000-0000-7000-8000-000000000000", "job-lost");
  });

  test("the invite, reset and sign-in pages are accessible", async ({ page, stack, firstAdmin, watch }) => {
    watch.expect(/status of (404|422)/);
    const answer = await callServerFunction(stack.url, firstAdmin.session, "invite_user", { name: "Vera", role: "viewer" });
    await checkPage(page, JSON.parse(answer.text) as string, "invite");
    await checkPage(page, "/invite?token=spent", "invite-spent");
    await checkPage(page, "/reset?token=bad", "reset-spent");
    await checkPage(page, "/login", "login", async () => {
      await page.getByLabel("E-mail").fill("unknown@example.org");
      await page.getByLabel("Passphrase", { exact: true }).fill("wrong and wrong again");
      await page.getByRole("button", { name: "Sign in" }).click();
      await expect(page.locator("#f-passphrase-error")).toBeVisible();
    });
  });
});

/** Opens a page, runs `prepare` and checks it in all themes and sizes. */
async function checkPage(page: Page, path: string, name: string, prepare?: () => Promise<void>): Promise<void> {
  await page.setViewportSize(DESKTOP);
  await open(page, path);
  await expect(page.getByRole("heading", { level: 1 })).toHaveCount(1);
  await expect(page).toHaveTitle(/.+ · Milvaion$/);
  await prepare?.();
  await checkThemes(page, name);
}
