// An installation whose only Admin forgot the passphrase is recovered with `milvaion admin` on the server's machine.

import { expect, open, screenshot, test, waitForHydration } from "../fixtures/test";
import { apiClient, callServerFunction } from "../fixtures/users";

test.use({ stackName: "recovery" });
test.describe.configure({ mode: "serial" });

const NEW_PASSPHRASE = "seven patient lanterns";

test("the commands name the Admins", async ({ stack, firstAdmin }) => {
  const list = await stack.command("admin", "list");
  expect(list.code, list.stderr).toBe(0);
  expect(list.stdout).toMatch(/^E-MAIL +NAME +ROLE +STATE +LAST SIGN-IN \(UTC\)\n/);
  expect(list.stdout).toMatch(/^ada@example\.org +Ada +admin +active +\S/m);
  expect(firstAdmin.email).toBe("ada@example.org");

  const unknown = await stack.command("admin", "reset-passphrase", "eve@example.org");
  expect(unknown.code).toBe(1);
  expect(unknown.stdout).toBe("");
  expect(unknown.stderr).toContain('There is no user with the e-mail address "eve@example.org".');
  expect(unknown.stderr).toContain("The Admins are: ada@example.org.");
});

test("the only Admin gets a new passphrase from the shell", async ({ context, page, stack, firstAdmin, watch }) => {
  // A sign-in with the old passphrase is refused.
  watch.expect(/status of 422/);
  const replaced = await stack.command("admin", "reset-passphrase", firstAdmin.email);
  // The address is compared without regard to case.
  const result = await stack.command("admin", "reset-passphrase", firstAdmin.email.toUpperCase());
  expect(result.code, result.stderr).toBe(0);
  expect(result.stdout).toContain("Ada (Admin) chooses a new passphrase there.");
  const link = /^\/reset\?token=\S+/m.exec(result.stdout)?.[0] ?? "";
  expect(link, result.stdout).not.toBe("");

  // A newer link replaces the older one.
  const client = await apiClient(stack.url);
  expect((await client.get(/^\/reset\?token=\S+/m.exec(replaced.stdout)?.[0] ?? "")).status()).toBe(404);
  await client.dispose();

  await open(page, link);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Set a new passphrase");
  await expect(page.getByLabel("E-mail")).toHaveValue(firstAdmin.email);
  await screenshot(page, "recovery");
  await page.getByLabel("New passphrase").fill(NEW_PASSPHRASE);
  await page.getByRole("button", { name: "Set passphrase" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
  await waitForHydration(page);

  // The link works once, and the sessions from before have ended.
  const old = await apiClient(stack.url, firstAdmin.session);
  expect((await old.get(link)).status()).toBe(404);
  expect((await old.get("/jobs", { maxRedirects: 0 })).status()).toBe(401);
  await old.dispose();

  // The audit log names the command line as the author.
  await open(page, "/audit?action=user.create-reset-link");
  await expect(page.locator('#audit tr[data-action="user.create-reset-link"]')).toHaveCount(2);
  await expect(page.locator('#audit tr[data-action="user.create-reset-link"]').first()).toContainText("system");

  // The old passphrase no longer signs in; the new one does.
  await context.clearCookies();
  await open(page, "/login");
  await page.getByLabel("E-mail").fill(firstAdmin.email);
  await page.getByLabel("Passphrase", { exact: true }).fill(firstAdmin.passphrase);
  await page.getByRole("button", { name: "Sign in" }).click();
  await expect(page.locator("#f-passphrase-error")).toContainText("The e-mail address or the passphrase is wrong.");
  await page.getByLabel("Passphrase", { exact: true }).fill(NEW_PASSPHRASE);
  await page.getByRole("button", { name: "Sign in" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
});

test("the list shows the sign-in after the recovery", async ({ stack, firstAdmin }) => {
  const answer = await callServerFunction(stack.url, undefined, "sign_in", { email: firstAdmin.email, passphrase: NEW_PASSPHRASE });
  expect(answer.status, answer.text).toBe(200);
  const list = await stack.command("admin", "list");
  expect(list.stdout).toMatch(/^ada@example\.org +Ada +admin +active +\d{4}-\d{2}-\d{2} \d{2}:\d{2}$/m);
});
