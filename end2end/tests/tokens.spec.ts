// The page of API tokens: a token is created, used, rotated and revoked.

import type { Page } from "@playwright/test";

import { expect, open, screenshot, test } from "../fixtures/test";

test.use({ stackName: "users" });

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
