// The dashboard without JavaScript. `app/tests/forms` posts every form as such a browser does; these tests follow the links
// and forms of one workflow on the real server.

import type { Page } from "@playwright/test";

import { fillList, jobAction, makeJob, shell } from "../fixtures/jobs";
import { expect, screenshot, test } from "../fixtures/test";
import { inviteUser } from "../fixtures/users";

test.use({ stackName: "jobs", javaScriptEnabled: false });

test.beforeEach(({ watch }) => {
  // The page preloads the WebAssembly, which is never used without scripts.
  watch.expect(/\.wasm was preloaded using link preload but not used/);
});

test("the sign-in page works without JavaScript", async ({ page, stack, firstAdmin }) => {
  const olga = await inviteUser(stack.url, firstAdmin, "Olga Operator", "operator");
  await page.goto("/jobs?state=active");
  await expect(page).toHaveURL(/\/login\?next=/);
  await expect(page).toHaveTitle("Sign in · Milvaion");
  await page.getByLabel("E-mail").fill(olga.email);
  await page.getByLabel("Passphrase", { exact: true }).fill("not the passphrase");
  await page.getByRole("button", { name: "Sign in" }).click();
  await expect(page.locator("#f-passphrase-error")).toContainText("wrong");
  await expect(page.getByLabel("E-mail")).toHaveValue(olga.email);
  await expect(page.getByLabel("Passphrase", { exact: true })).toHaveValue("");
  await page.getByLabel("Passphrase", { exact: true }).fill(olga.passphrase);
  await page.getByRole("button", { name: "Sign in" }).click();
  await expect(page).toHaveURL(/\/jobs\?state=active$/);
  await page.locator(".user-menu summary").click();
  await page.getByRole("button", { name: "Sign out" }).click();
  await expect(page).toHaveURL(/\/login$/);
  await page.goto("/");
  await expect(page).toHaveURL(/\/login/);
});

test("a job is created, run, paused and deleted without JavaScript", async ({ admin: page, stack, firstAdmin }) => {
  await makeJob(stack.url, firstAdmin, { name: "Registers the types for a plain form", input: shell("true") });
  await test.step("a rejected form shows its errors and keeps the input", async () => {
    await page.goto("/jobs/new");
    await page.getByRole("link", { name: "shell-command on local" }).click();
    await expect(page.getByRole("radio", { name: /^shell-command/ })).toBeChecked();
    await page.getByLabel("Name", { exact: true }).fill("Sweep the floor");
    await fillList(page, "Command", ["echo", "swept <b>twice</b>"]);
    await page.getByRole("radio", { name: /^Cron expression/ }).check();
    await page.getByRole("textbox", { name: "Cron expression" }).fill("61 * * * *");
    await page.getByRole("button", { name: "Create", exact: true }).click();
    await expect(page.locator("#error-summary")).toContainText("1 problem needs attention");
    await expect(page.locator("#f-cron-error")).toContainText("61");
    await expect(page.getByRole("textbox", { name: "Command 2" })).toHaveValue("swept <b>twice</b>");
    await screenshot(page, "no-javascript-job-form");
    await page.getByRole("textbox", { name: "Cron expression" }).fill("0 9 * * MON-FRI");
    await page.getByRole("button", { name: "Create", exact: true }).click();
    await expect(page.getByText("The job is created.")).toBeVisible();
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Sweep the floor");
  });

  await test.step("the job is run", async () => {
    const address = page.url();
    await page.getByRole("button", { name: "Run now: Sweep the floor" }).click();
    await expect(page.getByText("The job is queued to run now.")).toBeVisible();
    await reloadUntilCompleted(page);
    await expect(page.locator(".log-lines")).toContainText("swept <b>twice</b>");
    await expect(page.locator(".timeline li")).toHaveCount(3);
    await expect(page.locator("time").first()).toContainText("UTC");
    await screenshot(page, "no-javascript-occurrence");
    await page.goto(address);
  });

  await test.step("the job is paused, resumed and deleted", async () => {
    await page.locator("summary").filter({ hasText: "Pause" }).click();
    await page.locator("#plain-pause-reason").fill("holidays");
    await page.getByRole("button", { name: "Pause job" }).click();
    await expect(page.getByText("The job is paused.")).toBeVisible();
    await expect(page.getByText("Reason: holidays")).toBeVisible();
    await page.getByRole("button", { name: "Resume: Sweep the floor" }).click();
    await expect(page.getByText("The job is resumed.", { exact: true })).toBeVisible();
    await jobAction(page, "Delete…");
    await expect(page.getByRole("heading", { name: "Delete job Sweep the floor?" })).toBeVisible();
    await page.getByRole("button", { name: "Delete job" }).click();
    await expect(page.getByText("The job Sweep the floor is deleted.")).toBeVisible();
  });
});

/** Reloads the page of an occurrence until it has completed. */
async function reloadUntilCompleted(page: Page): Promise<void> {
  await expect(page).toHaveURL(/\/occurrences\/[0-9a-f-]{36}/);
  await expect(async () => {
    await page.reload();
    await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "completed", { timeout: 200 });
  }).toPass({ timeout: 20_000, intervals: [200] });
}
