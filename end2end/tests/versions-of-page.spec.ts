// The page that the server sent and the page that runs: times that hydration does not change, an update of the server
// under an open page, and a script that stops.

import type { BrowserContext, Page } from "@playwright/test";

import { makeJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { expect, open, test, waitForHydration, waitForLive } from "../fixtures/test";

test.use({ stackName: "jobs" });

/** Changes the documents that `target` loads until the returned function is called. */
async function alterDocuments(target: BrowserContext | Page, alter: (html: string) => string): Promise<() => Promise<void>> {
  const isPage = (url: URL) => !/^\/(pkg|api|events)(\/|$)/.test(url.pathname);
  await target.route(isPage, async (route) => {
    if (route.request().resourceType() !== "document") {
      return route.fallback();
    }
    const response = await route.fetch();
    const body = await response.text();
    const altered = alter(body);
    expect(altered, "the document contains what the test changes").not.toBe(body);
    return route.fulfill({ response, body: altered });
  });
  return () => target.unroute(isPage);
}

/** Gives the document the name of another build, as if the server had been updated since. */
function withOldBuild(html: string): string {
  return html.replace(/(<meta name="milvaion-build" content=")[^"]*/, "$1build-before-update");
}

/** The link of the main navigation with this name. */
function mainLink(page: Page, name: string) {
  return page.getByRole("navigation", { name: "Main", exact: true }).getByRole("link", { name });
}

test("hydration changes no time of the second page", async ({ admin: page, context, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Timekeeper", input: shell("echo tick") });
  const run = await runJob(stack.url, firstAdmin, job);
  await waitForStatus(stack.url, firstAdmin, run, "completed");
  const path = `/occurrences/${run}`;
  // The first page stores the zone of the browser.
  await open(page, path);
  await expect(page.locator(".log-lines")).toContainText("tick");
  await expect(page.locator(".log-zone")).toHaveText("Times in America/New_York");

  const html = await (await context.request.get(path)).text();
  expect(html).toContain('data-zone="America/New_York"');
  const sent = await page.evaluate((text) => {
    const parsed = new DOMParser().parseFromString(text, "text/html");
    const texts = (selector: string) => [...parsed.querySelectorAll(selector)].map((found) => found.textContent ?? "");
    return { times: texts("time"), zone: texts(".log-zone") };
  }, html);
  expect(sent.zone).toEqual(["Times in America/New_York"]);
  expect(sent.times.filter((time) => /UTC−[45]$/.test(time))).not.toHaveLength(0);
  expect(sent.times.filter((time) => / UTC$/.test(time))).toEqual([]);
  await open(page, path);
  expect(await page.locator("time").allTextContents()).toEqual(sent.times);
});

test("a zone that the browser has left is replaced", { tag: "@all" }, async ({ admin: page, context, stack, firstAdmin }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Traveller", input: shell("echo tick") });
  const run = await runJob(stack.url, firstAdmin, job);
  await waitForStatus(stack.url, firstAdmin, run, "completed");
  const path = `/occurrences/${run}`;
  await context.addCookies([{ name: "zone", value: "Asia/Tokyo", url: stack.url, sameSite: "Lax" }]);
  expect(await (await context.request.get(path)).text()).toContain("Times in Asia/Tokyo");
  await open(page, path);
  await expect(page.locator(".log-zone")).toHaveText("Times in America/New_York");
  await expect(page.locator("time").filter({ hasText: "UTC+9" })).toHaveCount(0);
  await expect(page.locator("time").filter({ hasText: /UTC−[45]$/ })).not.toHaveCount(0);
  expect(await (await context.request.get(path)).text()).toContain("Times in America/New_York");
});

test("a new version is announced in every tab and keeps typed text", async ({ admin: page, context }) => {
  const restore = await alterDocuments(context, withOldBuild);
  await open(page, "/jobs/new");
  const name = page.getByLabel("Name", { exact: true });
  await name.fill("Typed before the update");
  const banner = page.locator("#new-version");
  await expect(banner).toContainText("A new version of Milvaion is running. Reload to use it.");
  await expect(name).toHaveValue("Typed before the update");

  // The second tab has no stream of its own.
  const other = await context.newPage();
  await open(other, "/occurrences");
  await expect(other.locator("#new-version")).toBeVisible();
  await mainLink(other, "Workers").click();
  await expect(other.getByRole("heading", { level: 1 })).toHaveText("Workers");
  await expect(other.locator("#new-version")).toBeVisible();

  await restore();
  await other.locator("#new-version").getByRole("button", { name: "Reload" }).click();
  await expect(other.locator('meta[name="milvaion-build"]')).not.toHaveAttribute("content", "build-before-update");
  await waitForHydration(other);
  await waitForLive(other);
  await expect(other.getByRole("heading", { level: 1 })).toHaveText("Workers");
  await expect(other.locator("#new-version")).toHaveCount(0);
  await expect(banner, "another tab is not reloaded").toBeVisible();
  await expect(name).toHaveValue("Typed before the update");
});

test("a page whose module is gone offers to reload", async ({ admin: page, watch }) => {
  watch.expect(/status of 404/);
  watch.expect(/WebAssembly/);
  await open(page, "/jobs");
  const modules = /\.wasm(\?|$)/;
  await page.route(modules, (route) => route.fulfill({ status: 404, contentType: "text/html", body: "Not found" }));
  await mainLink(page, "Workers").click();
  const heading = page.getByRole("heading", { level: 1 });
  await expect(heading).toHaveText("Page not loaded");
  await expect(page.locator("#page-not-loaded")).toContainText("Reload to open the page.");
  await expect(page).toHaveURL(/\/workers$/);

  // The rest of the page works, and the next visit tries again.
  await mainLink(page, "Jobs").click();
  await expect(heading).toHaveText("Jobs");
  await mainLink(page, "Workers").click();
  await expect(heading).toHaveText("Page not loaded");
  await page.unroute(modules);
  await page.locator("#page-not-loaded").getByRole("button", { name: "Reload" }).click();
  await expect(heading).toHaveText("Workers");
  await waitForHydration(page);
});

test("a panic shows a notice and keeps typed text", async ({ admin: page, stack, firstAdmin, watch }) => {
  watch.expect(/panicked at/);
  // Each later event finds a stopped script.
  watch.expect(/^uncaught: /);
  // A development build explains the mismatch first.
  watch.expect(/hydration error/i);
  await makeJob(stack.url, firstAdmin, { name: "Yearly", input: shell("true"), cron: "0 3 1 1 *" });
  // Hydration expects a text inside each time, and a document without it is an error that it cannot recover from.
  const restore = await alterDocuments(page, (html) => html.replace(/(<time\b[^>]*>)[^<]*/g, "$1"));
  await page.goto("/jobs");
  const notice = page.locator("#crash-notice");
  await expect(notice).toContainText("This page stopped working. Reload it.");
  await expect(notice).toHaveAttribute("role", "alert");
  await expect(notice).toHaveCount(1);
  await page.getByLabel("Search jobs").fill("typed into a stopped page");
  await expect(page.getByLabel("Search jobs")).toHaveValue("typed into a stopped page");

  await restore();
  await notice.getByRole("button", { name: "Reload" }).click();
  await waitForHydration(page);
  await expect(notice).toHaveCount(0);
});
