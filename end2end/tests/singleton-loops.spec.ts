// The page of singleton loops: it follows the loops that instances run, and operators control them.

import type { Locator, Page } from "@playwright/test";

import { LoopInstance } from "../fixtures/loop-instance";
import { hasServices } from "../fixtures/stack";
import { expect, open, screenshot, test } from "../fixtures/test";

test.use({ stackName: "runs" });
test.skip(!hasServices, "the test writes to the Redis of the server");

/** The card of a loop. */
function card(page: Page, name: string): Locator {
  return page.locator(`[data-loop="${name}"]`);
}

test("a loop is shown, moved, disabled and enabled", async ({ admin: page, stack, watch }) => {
  watch.expect(/status of 409/);
  const [first, second] = [new LoopInstance(`${stack.prefix}:`, "prices-1"), new LoopInstance(`${stack.prefix}:`, "prices-2")];
  await open(page, "/singleton-loops");
  const recent = JSON.stringify([
    { start: Date.now() - 200, durationMs: 12.5, lateMs: 0.25, outcome: "ok" },
    { start: Date.now() - 100, durationMs: 80, lateMs: 1, outcome: "error" },
  ]);
  const { epoch } = await first.heartbeat("price-feed", 0, { ticks: "12", runs: "1234", recent, lastError: "no price", lastErrorAt: String(Date.now()) });
  // The open page reads it by itself.
  const loop = card(page, "price-feed");
  await expect(loop).toContainText("Running");
  await expect(loop).toContainText("prices-1");
  await expect(loop).toContainText("1,234");
  await expect(loop.getByRole("img", { name: "Last 2 runs, oldest first: 1 succeeded, 1 failed" })).toBeVisible();
  await expect(loop).toContainText("no price");
  await expect(loop.getByRole("button", { name: /^Yield/ })).toBeHidden();
  await screenshot(page, "singleton-loops");

  await second.heartbeat("price-feed");
  await loop.getByRole("button", { name: /^Yield/ }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Yield leadership" }).click();
  await expect(loop).toContainText("The leader is asked to hand the loop over.");
  await first.leave("price-feed", epoch);
  const taken = await second.heartbeat("price-feed");
  expect([taken.result, taken.epoch > epoch]).toEqual([2, true]);
  await expect(loop).toContainText("prices-2");

  await loop.getByRole("button", { name: /^Disable/ }).click();
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByRole("button", { name: "Cancel" })).toBeFocused();
  await dialog.getByRole("button", { name: "Disable loop" }).click();
  await expect(loop).toContainText("Disabled by");
  // The button that was used disappears.
  await expect(loop.getByRole("heading", { name: "price-feed" })).toBeFocused();
  expect((await second.heartbeat("price-feed", taken.epoch)).disabled).toBe(true);
  await loop.getByRole("button", { name: /^Enable/ }).click();
  await expect(loop).toContainText("Running");

  await second.leave("price-feed", taken.epoch);
  await expect(loop).toContainText("Not offered");
  await loop.getByRole("button", { name: /^Forget/ }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Forget loop" }).click();
  await expect(loop).toHaveCount(0);
});
