// Navigation: focus and scroll position after a page change, the user menu, the menu of a phone, the narrow side
// navigation, the shortcuts, the theme and the time zone.

import type { Page } from "@playwright/test";

import { makeJob, runJob, shell } from "../fixtures/jobs";
import { expect, open, row, screenshot, test } from "../fixtures/test";
import { inviteUser, signIn } from "../fixtures/users";

test.use({ stackName: "jobs" });

/** The heading of the page. */
function title(page: Page) {
  return page.getByRole("heading", { level: 1 });
}

/** A link of the side navigation. */
function sideLink(page: Page, name: string) {
  return page.getByRole("navigation", { name: "Main", exact: true }).getByRole("link", { name, exact: true });
}

/** The vertical scroll position of the page, in CSS pixels. */
function scrollTop(page: Page): Promise<number> {
  return page.evaluate(() => window.scrollY);
}

test("Back restores the scroll position of a list", async ({ admin: page, stack, firstAdmin }) => {
  for (let number = 10; number < 26; number += 1) {
    await makeJob(stack.url, firstAdmin, { name: `Listed ${number}`, input: shell("true") });
  }
  await page.setViewportSize({ width: 1280, height: 500 });
  await open(page, "/jobs?q=Listed");
  const last = page.getByRole("link", { name: "Listed 25", exact: true });
  await last.scrollIntoViewIfNeeded();
  const before = await scrollTop(page);
  expect(before).toBeGreaterThan(200);

  await last.click();
  await expect(title(page)).toHaveText("Listed 25");
  await expect(title(page)).toBeFocused();
  await expect.poll(() => scrollTop(page)).toBe(0);

  await page.goBack();
  await expect(title(page)).toHaveText("Jobs");
  await expect(title(page)).toBeFocused();
  await expect.poll(async () => Math.abs((await scrollTop(page)) - before)).toBeLessThanOrEqual(1);

  // A link opens the list at its top.
  await last.click();
  await expect(title(page)).toHaveText("Listed 25");
  await sideLink(page, "Jobs").click();
  await expect(title(page)).toHaveText("Jobs");
  await expect(title(page)).toBeFocused();
  await expect.poll(() => scrollTop(page)).toBe(0);
});

test("a full load restores the position of an earlier page", { tag: "@all" }, async ({ admin: page }) => {
  await page.setViewportSize({ width: 1280, height: 400 });
  await open(page, "/help");
  await page.getByRole("heading", { name: "Times" }).scrollIntoViewIfNeeded();
  const before = await scrollTop(page);
  expect(before).toBeGreaterThan(200);
  await sideLink(page, "Jobs").click();
  await expect(title(page)).toHaveText("Jobs");
  await open(page, "/workers");
  await page.evaluate(() => window.history.go(-2));
  await expect(title(page)).toHaveText("Help");
  await expect.poll(async () => Math.abs((await scrollTop(page)) - before)).toBeLessThanOrEqual(1);
});

test("the link of a pager moves the focus to the heading", async ({ admin: page, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Paged", input: shell("true") });
  const run = await runJob(stack.url, firstAdmin, job);
  await open(page, `/occurrences?before=${run}`);
  const newest = page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name: "Newest" });
  await newest.click();
  await expect(row(page, run)).toBeVisible();
  await expect(page).toHaveURL(/\/occurrences$/);
  // The link that was followed is gone.
  await expect(newest).toHaveCount(0);
  await expect(title(page)).toBeFocused();
});

test("the user menu closes when it is left", async ({ admin: page }) => {
  await open(page, "/jobs");
  const menu = page.locator(".user-menu");
  const button = menu.locator("summary");
  await button.click();
  await expect(menu).toHaveAttribute("open", "");
  await page.keyboard.press("Tab");
  await expect(menu.getByRole("link", { name: "Workers" })).toBeFocused();
  await page.keyboard.press("Escape");
  await expect(menu).not.toHaveAttribute("open", "");
  await expect(button).toBeFocused();

  await button.click();
  await expect(menu).toHaveAttribute("open", "");
  await title(page).click();
  await expect(menu).not.toHaveAttribute("open", "");

  await button.click();
  await menu.getByRole("link", { name: "Workers" }).click();
  await expect(title(page)).toHaveText("Workers");
  await expect(menu).not.toHaveAttribute("open", "");
});

test("More on a phone lists the pages of a Viewer", { tag: "@all" }, async ({ context, page, stack, firstAdmin }) => {
  await signIn(context, stack.url, await inviteUser(stack.url, firstAdmin, "Petra Phone", "viewer"));
  await page.setViewportSize({ width: 390, height: 800 });
  await open(page, "/");
  const more = page.getByRole("navigation", { name: "Main, compact" }).getByRole("link", { name: "More" });
  await expect(more).not.toHaveAttribute("aria-current", "page");
  await more.click();
  await expect(title(page)).toHaveText("Menu");
  const pages = page.getByRole("navigation", { name: "All pages" }).getByRole("link");
  await expect(pages).toHaveText(["Overview", "Jobs", "Occurrences", "Failures", "Alerts", "Workers", "Singleton loops", "Calendars", "Account", "API tokens", "Help"]);
  await expect(page.getByRole("main").getByRole("button", { name: "Sign out" })).toBeVisible();
  await screenshot(page, "menu-390");
  await pages.filter({ hasText: "Calendars" }).click();
  await expect(title(page)).toHaveText("Calendars");
  await expect(more).toHaveAttribute("aria-current", "page");
});

test("the icons of the narrow side navigation have names", { tag: "@all" }, async ({ admin: page }) => {
  await page.setViewportSize({ width: 900, height: 800 });
  await open(page, "/");
  const workers = sideLink(page, "Workers");
  const tooltip = workers.getByTitle("Workers");
  await expect(tooltip).toBeVisible();
  // Screen readers read the name once.
  await expect(workers).toHaveAccessibleDescription("");
  await screenshot(page, "side-navigation-900");
  await tooltip.click();
  await expect(title(page)).toHaveText("Workers");
  await page.setViewportSize({ width: 1280, height: 800 });
  await expect(tooltip).toBeHidden();
});

test("the shortcut of a new job does nothing for a Viewer", { tag: "@all" }, async ({ context, page, stack, firstAdmin }) => {
  await signIn(context, stack.url, await inviteUser(stack.url, firstAdmin, "Katja Keys", "viewer"));
  await open(page, "/jobs");
  await page.keyboard.press("n");
  await page.keyboard.press("?");
  const dialog = page.getByRole("dialog", { name: "Keyboard shortcuts" });
  await expect(dialog).toContainText("New job, on the jobs page (Operator or Admin)");
  await expect(page).toHaveURL(/\/jobs$/);
  await expect(title(page)).toHaveText("Jobs");
});

test("theme and zone persist and apply to the server's HTML", async ({ admin: page, context, stack, firstAdmin }) => {
  const run = await runJob(stack.url, firstAdmin, await makeJob(stack.url, firstAdmin, { name: "Themed", input: shell("true") }));
  await open(page, "/occurrences");
  const time = row(page, run).locator("time").first();
  await expect(time).toContainText(/UTC[−-]\d/);
  for (const theme of ["light", "dark"]) {
    await page.getByRole("button", { name: new RegExp(`Change to ${theme}$`) }).click();
    await expect(page.locator("html")).toHaveAttribute("data-theme", theme);
  }
  await page.getByRole("button", { name: /Time zone: Local/ }).click();
  await expect(time).toHaveText(/ UTC$/);
  const html = await (await context.request.get("/jobs")).text();
  expect(html).toContain('data-theme="dark"');
  await open(page, "/occurrences");
  await expect(time).toHaveText(/ UTC$/);
  await expect(page.getByRole("button", { name: /Time zone: UTC/ })).toBeVisible();
});

test("shortcuts navigate, except while the user types", async ({ admin }) => {
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
