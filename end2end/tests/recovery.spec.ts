// A user who forgot the passphrase gets a link from `milvaion admin` on the server's machine. The command itself is tested in
// `server/tests/it/admin_cli.rs`.

import { expect, leave, open, screenshot, test, waitForHydration } from "../fixtures/test";
import { inviteUser } from "../fixtures/users";

test.use({ stackName: "users" });

const NEW_PASSPHRASE = "seven patient lanterns";

test("an Admin gets a new passphrase from the shell", { tag: "@all" }, async ({ context, page, stack, firstAdmin, watch }) => {
  // A sign-in with the old passphrase is refused.
  watch.expect(/status of 422/);
  const user = await inviteUser(stack.url, firstAdmin, "Fay Forgetful", "admin");
  const result = await stack.command("admin", "reset-passphrase", user.email);
  expect(result.code, result.stderr).toBe(0);
  expect(result.stdout).toContain("Fay Forgetful (Admin) chooses a new passphrase there.");
  const link = /^\/reset\?token=\S+/m.exec(result.stdout)?.[0] ?? "";
  expect(link, result.stdout).not.toBe("");

  await open(page, link);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Set a new passphrase");
  await expect(page.getByLabel("E-mail")).toHaveValue(user.email);
  await screenshot(page, "recovery");
  await page.getByLabel("New passphrase").fill(NEW_PASSPHRASE);
  await page.getByRole("button", { name: "Set passphrase" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
  await waitForHydration(page);

  // The old passphrase no longer signs in; the new one does.
  await leave(page);
  await context.clearCookies();
  await open(page, "/login");
  await page.getByLabel("E-mail").fill(user.email);
  await page.getByLabel("Passphrase", { exact: true }).fill(user.passphrase);
  await page.getByRole("button", { name: "Sign in" }).click();
  await expect(page.locator("#f-passphrase-error")).toContainText("The e-mail address or the passphrase is wrong.");
  await page.getByLabel("Passphrase", { exact: true }).fill(NEW_PASSPHRASE);
  await page.getByRole("button", { name: "Sign in" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
});
