// The page of API tokens: a token is created, used, rotated and revoked, with and without JavaScript.

import type { Page } from "@playwright/test";

import { checkThemes } from "../fixtures/axe";
import { expect, open, screenshot, test } from "../fixtures/test";
import { inviteUser, signIn } from "../fixtures/users";

test.use({ stackName: "tokens" });

/** Returns the status of a request to the API with a token. */
async function status(url: string, token: string): Promise<number> {
  const answer = await fetch(`${url}/api/v1/account`, { headers: { authorization: `Bearer ${token}` } });
  return answer.status;
}

/** Fills in the form of a new token and sends it. */
async function createToken(page: Page, name: string): Promise<void> {
  await page.getByRole("textbox", { name: "Name" }).fill(name);
  await page.getByRole("button", { name: "Create token" }).click();
}

test("a token is shown once, used, rotated and revoked", async ({ admin: page, stack }) => {
  await open(page, "/tokens");
  await createToken(page, "deploy script");
  const secret = page.getByLabel("Secret", { exact: true });
  await expect(secret).toHaveValue(/^milvaion_[A-Za-z0-9]{40}$/);
  await expect(secret).toBeFocused();
  const first = await secret.inputValue();
  await expect(page.getByLabel("Command that checks the token")).toHaveValue(new RegExp(`Bearer ${first}`));
  await screenshot(page, "tokens-created");
  await checkThemes(page, "tokens-created");
  expect(await status(stack.url, first)).toBe(200);

  await page.reload();
  await expect(page.getByRole("row", { name: /deploy script/ })).toContainText("GET /api/v1/account");
  expect(await page.content()).not.toContain(first);

  await page.getByRole("button", { name: "Rotate token deploy script" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Rotate token" }).click();
  await expect(secret).not.toHaveValue("");
  const second = await secret.inputValue();
  expect([await status(stack.url, first), await status(stack.url, second)]).toEqual([200, 200]);

  // The table is read again after the rotation.
  await expect(page.getByRole("row", { name: /deploy script/ }).filter({ hasText: "Rotated" })).toHaveCount(1);
  const row = page.getByRole("row", { name: /deploy script/ }).filter({ hasText: "Active" });
  await row.getByRole("button", { name: "Revoke token deploy script" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Revoke token" }).click();
  await expect(page.getByRole("row", { name: /deploy script/ }).filter({ hasText: "Revoked" })).toHaveCount(1);
  expect([await status(stack.url, first), await status(stack.url, second)]).toEqual([200, 401]);
});

test("a token is created without JavaScript", async ({ browser, stack, firstAdmin }) => {
  const viewer = await inviteUser(stack.url, firstAdmin, "Vera Viewer", "viewer");
  const context = await browser.newContext({ baseURL: stack.url, javaScriptEnabled: false });
  await signIn(context, stack.url, viewer);
  const page = await context.newPage();
  await page.goto("/tokens");
  await expect(page.getByLabel("Role").getByRole("option")).toHaveText(["Viewer"]);
  await createToken(page, "dashboard reader");
  const secret = /milvaion_[A-Za-z0-9]{40}/.exec(await page.content())?.[0] ?? "";
  expect(await status(stack.url, secret)).toBe(200);
  await page.reload();
  expect(await page.content()).not.toContain(secret);
  await context.close();
});
