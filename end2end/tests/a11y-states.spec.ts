// Accessibility of states that a user reaches by an action: refused forms, dialogs, one-time secrets, muted rules and jobs from
// code. `a11y.spec.ts` checks the pages as they are opened.

import type { Page } from "@playwright/test";

import { makeRule } from "../fixtures/alerts";
import { checkThemes, PHONE } from "../fixtures/axe";
import { form, jobAction, makeDelayed, makeJob, openMenu, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { findOverflows } from "../fixtures/layout";
import { LoopInstance } from "../fixtures/loop-instance";
import { hasServices } from "../fixtures/stack";
import { expect, open, test, waitForLive } from "../fixtures/test";
import { callServerFunction, inviteUser, signIn, whoami } from "../fixtures/users";

test.use({ stackName: "a11y-states", contextOptions: { reducedMotion: "reduce" } });

/** Opens a dialog, checks it and closes it. */
async function checkDialog(page: Page, button: string | RegExp, name: string): Promise<void> {
  await page.getByRole("button", { name: button }).first().click();
  await expect(page.getByRole("dialog")).toBeVisible();
  await checkThemes(page, name);
  await page.keyboard.press("Escape");
  await expect(page.getByRole("dialog")).toBeHidden();
}

test.describe("states after an action", { tag: "@all" }, () => {
  test.describe.configure({ timeout: 240_000 });

  test("the account page and its dialogs are accessible", async ({ context, page, stack, firstAdmin, watch }) => {
    watch.expect(/status of 422/);
    const user = await inviteUser(stack.url, firstAdmin, "Vera Viewer", "viewer");
    const again = await callServerFunction(stack.url, undefined, "sign_in", { email: user.email, passphrase: user.passphrase });
    expect(again.status, again.text).toBe(200);
    await signIn(context, stack.url, user);
    await open(page, "/account");
    await waitForLive(page);
    await expect(page.locator("#sessions tbody tr")).toHaveCount(2);
    await checkThemes(page, "account");
    await checkDialog(page, /^End the session/, "account-dialog-one");
    await checkDialog(page, "End all other sessions…", "account-dialog-others");
    await page.getByLabel("Current passphrase", { exact: true }).fill("not the old one");
    await page.getByLabel("New passphrase", { exact: true }).fill("seven lanterns drift past the harbour");
    await page.getByRole("button", { name: "Change passphrase" }).click();
    await expect(page.locator("#f-current-error")).toBeVisible();
    await checkThemes(page, "account-refused");
    expect(await findOverflows(page, PHONE.width)).toEqual([]);
    // Every section is reached by its link.
    for (const name of ["Profile", "Passphrase", "Sessions", "Security log", "Preferences"]) {
      await page.getByRole("navigation", { name: "Sections of the page" }).getByRole("link", { name }).click();
      await expect(page.getByRole("heading", { name, level: 2 })).toBeInViewport();
    }
  });

  test("refused alert forms, a channel and a muted rule are accessible", async ({ admin: page, target, watch }) => {
    watch.expect(/status of 422/);
    await open(page, "/alerts/channels/new");
    await page.getByLabel("Kind").selectOption("webhook");
    await page.getByLabel("Address", { exact: true }).fill("ftp://example.org");
    await page.getByRole("button", { name: "Create" }).click();
    await expect(page.locator("#error-summary")).toBeFocused();
    await checkThemes(page, "alert-channel-refused");
    await page.getByLabel("Name", { exact: true }).fill("Hook");
    await page.getByLabel("Address", { exact: true }).fill(target.at("/alerts"));
    await page.getByRole("button", { name: "Create" }).click();
    await page.getByRole("button", { name: "Send a test" }).click();
    await expect(page.locator("#test-result")).toContainText("The receiver accepted the test message.");
    await checkThemes(page, "alert-channel");

    await open(page, "/alerts/rules/new");
    await page.getByLabel("Condition", { exact: true }).selectOption("failure_rate");
    await page.getByLabel("Failed occurrences (%)").fill("200");
    await page.getByRole("button", { name: "Create" }).click();
    await expect(page.locator("#error-summary")).toBeFocused();
    await checkThemes(page, "alert-rule-refused");
    await page.getByLabel("Name", { exact: true }).fill("Many failures");
    await page.getByLabel("Failed occurrences (%)").fill("20");
    await page.getByRole("button", { name: "Create" }).click();
    await page.getByRole("link", { name: "Many failures" }).click();
    await page.getByLabel("Mute for").selectOption("8h");
    await page.getByRole("button", { name: "Mute", exact: true }).click();
    await expect(page.locator("#unmute")).toContainText("Muted until");
    await checkThemes(page, "alert-rule-muted");
  });

  test("a firing alert is accessible", async ({ admin: page, stack, firstAdmin }) => {
    const job = await makeJob(stack.url, firstAdmin, { name: "Import orders", input: shell("exit 7") });
    await makeRule(stack.url, firstAdmin, "Order watch", job);
    await waitForStatus(stack.url, firstAdmin, await runJob(stack.url, firstAdmin, job), "failed");
    await open(page, "/alerts");
    await expect(page.locator("#alerts").getByRole("row").filter({ hasText: "Order watch" })).toBeVisible({ timeout: 30_000 });
    await checkThemes(page, "alerts-firing");
  });

  test("the audit log with open changes is accessible", async ({ admin: page, stack, firstAdmin }) => {
    const report = { name: "Nightly report", input: shell("echo one") };
    const job = await makeJob(stack.url, firstAdmin, report);
    const edited = { ...form({ ...report, retries: 3 }), "form[id]": job, "form[version]": "1" };
    const saved = await callServerFunction(stack.url, firstAdmin.session, "save_job", edited);
    expect(saved.status, saved.text).toBe(200);
    await open(page, "/audit?action=job.update");
    for (const summary of await page.locator(".audit-changes > summary").all()) {
      await summary.click();
    }
    await checkThemes(page, "audit-changes");
    await open(page, "/audit?until=2020-01-01");
    await checkThemes(page, "audit-none");
    await open(page, `/jobs/${job}?tab=history`);
    await page.locator("#audit-slice summary").first().click();
    await expect(page.locator("#audit-slice tbody tr").first()).toBeVisible();
    await checkThemes(page, "audit-slice");
  });

  test("a job from code, detached and with delayed occurrences, is accessible", async ({ admin: page, stack, firstAdmin }) => {
    test.skip(!hasServices, "the workers need the addresses of the services");
    const worker = stack.exampleWorker("schedule", "reports");
    const link = page.getByRole("link", { name: "report: nightly", exact: true });
    await expect(async () => {
      await page.goto("/jobs");
      await expect(link).toBeVisible({ timeout: 1_000 });
    }).toPass({ timeout: 30_000 });
    const path = (await link.getAttribute("href")) ?? "";
    await open(page, path);
    await checkThemes(page, "code-job");
    await jobAction(page, "Edit");
    await page.getByLabel("Name", { exact: true }).fill("report: every night");
    await page.getByRole("button", { name: "Save", exact: true }).click();
    await expect(page.locator("#job-code")).toContainText("It is detached from the code since");
    await checkThemes(page, "code-job-detached");
    await open(page, "/jobs/new?type=reports%2Freport");
    await expect(page.getByText("The code of this job type declares rules for its jobs.")).toBeVisible();
    await checkThemes(page, "new-job-with-declared-rules");
    await worker.stop();

    const reminder = await makeDelayed(stack.url, firstAdmin, "reminder", 2);
    await open(page, `/jobs/${reminder}`);
    await openMenu(page);
    await checkDialog(page, "Cancel all delayed…", "cancel-delayed-dialog");
  });

  test("singleton loops and their dialogs are accessible", async ({ admin: page, stack }) => {
    test.skip(!hasServices, "the test writes to the Redis of the server");
    const instance = new LoopInstance(`${stack.prefix}:`, "prices-1");
    const recent = JSON.stringify([
      { start: Date.now() - 200, durationMs: 12.5, lateMs: 0.25, outcome: "ok" },
      { start: Date.now() - 100, durationMs: 80, lateMs: 1, outcome: "error" },
    ]);
    const state = { ticks: "12", runs: "1234", recent, lastError: "no price", lastErrorAt: String(Date.now()) };
    const { epoch } = await instance.heartbeat("price-feed", 0, state);
    await open(page, "/singleton-loops");
    await expect(page.locator('[data-loop="price-feed"]')).toContainText("Running");
    await checkThemes(page, "singleton-loops");
    await checkDialog(page, /^Disable/, "singleton-loops-dialog");
    await instance.leave("price-feed", epoch);
  });

  test("a new token is accessible", async ({ admin: page }) => {
    await open(page, "/tokens");
    await page.getByRole("textbox", { name: "Name" }).fill("deploy script");
    await page.getByRole("button", { name: "Create token" }).click();
    await expect(page.getByLabel("Secret", { exact: true })).toBeFocused();
    await checkThemes(page, "tokens-created");
  });

  test("the team with a new link is accessible", async ({ admin: page, stack, firstAdmin }) => {
    const invited = await callServerFunction(stack.url, firstAdmin.session, "invite_user", { name: "Nora New", role: "viewer" });
    expect(invited.status, invited.text).toBe(200);
    await open(page, "/team");
    await page.getByRole("button", { name: "New link for Nora New" }).click();
    await expect(page.getByLabel("One-time link", { exact: true })).toBeVisible();
    await checkThemes(page, "team-list");
    await open(page, "/team?q=nothing");
    await checkThemes(page, "team-none");
  });

  test("a user's page, its dialogs and the reset link are accessible", async ({ admin: page, stack, firstAdmin, watch }) => {
    watch.expect(/status of 404/);
    const grace = await inviteUser(stack.url, firstAdmin, "Grace Guest", "operator");
    await makeJob(stack.url, grace, { name: "Grace's report", input: shell("true") });
    const { id } = await whoami(stack.url, grace);
    await open(page, `/team/${id}`);
    await page.getByRole("radio", { name: /^Admin/ }).check();
    await expect(page.locator("#rights [data-rights=gained]")).toContainText("delete jobs");
    await checkThemes(page, "user");
    await checkDialog(page, "Deactivate…", "user-dialog");
    await expect(page.getByRole("button", { name: "Deactivate…" })).toBeFocused();
    await confirm(page, "Create reset link…", "Create reset link");
    const link = new URL(await page.getByLabel("One-time link", { exact: true }).inputValue());
    await expect(page.locator("#open-reset")).toBeVisible();
    await checkThemes(page, "user-link");
    await open(page, `${link.pathname}${link.search}`);
    await checkThemes(page, "reset");
    await open(page, `/team/${id}`);
    await page.getByRole("button", { name: "Revoke link" }).click();
    await expect(page.locator("#open-reset")).toHaveCount(0);
    await open(page, `${link.pathname}${link.search}`);
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("This link no longer works");
    await checkThemes(page, "reset-spent");
    await open(page, `/team/${id}`);
    await confirm(page, "Deactivate…", "Deactivate");
    await expect(page.locator("#deactivated")).toBeVisible();
    await checkThemes(page, "user-deactivated");
  });

  test("a locked user's page is accessible", async ({ admin: page, stack, firstAdmin }) => {
    test.skip(!hasServices, "the sign-in limit is set in a shared database");
    const { id } = await whoami(stack.url, await inviteUser(stack.url, firstAdmin, "Lola Locked", "viewer"));
    await stack.sql(
      `insert into sign_in_throttle (kind, slot, failures, last_at, locked_until)
       select 'account', slot, 20, now(), now() + interval '10 minutes' from generate_series(0, 65535) slot
       on conflict (kind, slot) do update set failures = 20, last_at = now(), locked_until = now() + interval '10 minutes'`,
    );
    try {
      await open(page, `/team/${id}`);
      await expect(page.locator("#locked")).toContainText("Sign-ins from unknown devices are refused until");
      await checkThemes(page, "user-locked");
    } finally {
      await stack.sql("delete from sign_in_throttle");
    }
  });
});

/** Opens the dialog of an action and confirms it. */
async function confirm(page: Page, button: string, verb: string): Promise<void> {
  await page.getByRole("button", { name: button }).click();
  await page.getByRole("dialog").getByRole("button", { name: verb, exact: true }).click();
}
