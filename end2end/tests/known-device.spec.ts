// Strangers who guess a passphrase lock the account for themselves, and not for the browser of its user.

import type { Page } from "@playwright/test";

import { hasServices } from "../fixtures/stack";
import { expect, open, test } from "../fixtures/test";
import { callServerFunction, COOKIE, type TestUser } from "../fixtures/users";

test.use({ stackName: "known-device" });

/** The number of wrong passphrases that strangers send. */
const GUESSES = 30;

test("strangers lock an account for unknown devices only", async ({ browser, context, page, stack, firstAdmin, watch }) => {
  test.skip(!hasServices, "the lock is extended in the database");
  // 401: the stream of the page whose session cookie is deleted below.
  watch.expect(/status of (401|422|429)/);
  // The browser of the user becomes a known device, and then signs out.
  await open(page, "/login");
  await fillIn(page, firstAdmin);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
  await context.clearCookies({ name: COOKIE });

  let waits = 0;
  for (let guess = 0; guess < GUESSES; guess += 1) {
    const answer = await callServerFunction(stack.url, undefined, "sign_in", { email: firstAdmin.email, passphrase: `wrong guess ${guess}` });
    expect([422, 429], answer.text).toContain(answer.status);
    waits += answer.status === 429 ? 1 : 0;
  }
  expect(waits).toBeGreaterThan(0);
  // The waits of the first attempts last seconds, which a slow machine needs to open a page.
  await stack.sql("update sign_in_throttle set locked_until = now() + interval '1 hour'");

  const stranger = await browser.newContext({ baseURL: stack.url });
  watch.follow(stranger);
  const other = await stranger.newPage();
  await open(other, "/login");
  await fillIn(other, firstAdmin);
  await expect(other.locator("#error-summary")).toContainText(/Too many attempts\. Wait \d+ seconds, then try again\./);
  await stranger.close();

  await open(page, "/login");
  await fillIn(page, firstAdmin);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
});

/** Sends the sign-in form with the passphrase of a user. */
async function fillIn(page: Page, user: TestUser): Promise<void> {
  await page.getByLabel("E-mail").fill(user.email);
  await page.getByLabel("Passphrase", { exact: true }).fill(user.passphrase);
  await page.getByRole("button", { name: "Sign in" }).click();
}
