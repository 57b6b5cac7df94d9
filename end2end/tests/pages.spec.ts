// Every page, loaded once: axe finds no violation, the page fits four windows, its icons are drawn, texts are escaped, and it
// loads few files. As in all tests, unexpected console messages fail the test. Further states, the dark theme and other roles
// have the tag @all, in `a11y.spec.ts`, `a11y-roles.spec.ts` and `widths.spec.ts`.

import type { Page } from "@playwright/test";

import { checkLight, DESKTOP } from "../fixtures/axe";
import { readIcons } from "../fixtures/icons";
import { findOverflows, PHONE_WIDTH, TABLET_WIDTH } from "../fixtures/layout";
import { createLongData, type LongDataIds } from "../fixtures/long-data";
import { expect, open, test, waitForLive } from "../fixtures/test";

test.use({ stackName: "pages", contextOptions: { reducedMotion: "reduce" } });

const WIDTHS = [PHONE_WIDTH, TABLET_WIDTH, 1280, 1920];
/** The highest number of requests of a page. Eight are WebAssembly and script at most. */
const MAX_REQUESTS = 40;
/** The highest number of bytes of a page with an empty cache, also with the WebAssembly of a development build. */
const MAX_BYTES = 4_000_000;
/** The icons of the navigation and the top bar. */
const MIN_ICONS = 8;

/** The objects that the pages show. */
let data: LongDataIds | undefined;

test("the setup page is accessible and fits every window", async ({ page, stack }) => {
  // The setup link works only before the first Admin exists. Tests of a file run in order, and no earlier test creates one.
  await checkPage(page, stack.server.setupLink ?? "", "setup");
});

test.describe("with long names", () => {
  let ids: LongDataIds;

  test.beforeEach(async ({ stack, firstAdmin }) => {
    // The first test creates the objects, and after a failed test the next one does so on a new stack.
    ids = data ??= await createLongData(stack, firstAdmin);
  });

  test("long names and markup are accepted", () => {
    expect(Object.values(ids)).not.toContain("");
  });

  /** The pages behind the sign-in, by the name of their test, with the names of their screenshots. */
  const groups: Record<string, (ids: LongDataIds) => Record<string, string>> = {
    "the menu, the help and a page that does not exist": () => ({ menu: "/menu", help: "/help", lost: "/nothing/here" }),
    "the overview and the jobs": () => ({ overview: "/", jobs: "/jobs" }),
    "the occurrences and the workers": () => ({ occurrences: "/occurrences", workers: "/workers" }),
    "the pages of a job": ({ job }) => ({ job: `/jobs/${job}`, "job-history": `/jobs/${job}?tab=history&from=2&to=1` }),
    "the forms of a job": ({ job }) => ({
      "job-edit": `/jobs/${job}/edit`,
      "job-new": "/jobs/new?type=local/http-request",
    }),
    "a run and the failures": ({ completed }) => ({ occurrence: `/occurrences/${completed}`, failed: "/failed" }),
    "the pages of a failure": ({ failed, cause }) => ({
      "failed-cause": `${cause}?state=all`,
      "failed-one": `/failed/${failed}`,
      "dead-letters": "/failed?tab=dead-letters",
    }),
    "the calendars and the loops": () => ({ calendars: "/calendars", loops: "/singleton-loops" }),
    "the forms of a calendar": ({ calendar }) => ({
      "calendar-new": "/calendars/new",
      "calendar-edit": `/calendars/${calendar}/edit`,
    }),
    "the alerts and the list of rules": () => ({ alerts: "/alerts?state=all", "alert-rules": "/alerts/rules" }),
    "the forms of a rule": ({ rule }) => ({
      "alert-rule-new": "/alerts/rules/new",
      "alert-rule": `/alerts/rules/${rule}`,
    }),
    "the channels": ({ channel }) => ({
      "alert-channels": "/alerts/channels",
      "alert-channel-new": "/alerts/channels/new",
      "alert-channel": `/alerts/channels/${channel}`,
    }),
    "the users and the tokens": ({ colleague }) => ({ team: "/team", user: `/team/${colleague}`, tokens: "/tokens" }),
    "the audit log and the account": () => ({ audit: "/audit", account: "/account" }),
  };
  for (const [name, paths] of Object.entries(groups)) {
    test(`${name} are accessible and fit every window`, async ({ admin: page, watch }) => {
      watch.expect(/status of 404 .*\/nothing\/here/);
      for (const [label, path] of Object.entries(paths(ids))) {
        await checkPage(page, path, label, label !== "lost");
      }
    });
  }

  test("the pages before the sign-in are accessible and fit every window", async ({ page }) => {
    for (const [label, path] of Object.entries({ login: "/login", invite: ids.invitation, reset: ids.reset })) {
      await checkPage(page, path, label);
    }
  });
});

/** Opens a page and checks it. With `isLive`, it has a navigation and receives live updates. */
async function checkPage(page: Page, path: string, label: string, isLive = false): Promise<void> {
  await page.setViewportSize(DESKTOP);
  await open(page, path);
  if (isLive) {
    await waitForLive(page);
  }
  await expect(page.getByRole("heading", { level: 1 })).toHaveCount(1);
  await expect(page).toHaveTitle(/.+ · Milvaion$/);
  const loaded = await readLoad(page);
  expect.soft(loaded.requests, `requests of ${label}`).toBeLessThanOrEqual(MAX_REQUESTS);
  expect.soft(loaded.bytes, `bytes of ${label}`).toBeLessThanOrEqual(MAX_BYTES);
  await checkLight(page, label);
  const icons = await readIcons(page);
  expect.soft(icons.empty, `icons of ${label}`).toEqual([]);
  expect.soft(icons.count, `icons of ${label}`).toBeGreaterThanOrEqual(isLive ? MIN_ICONS : 0);
  await expect.soft(page.locator("main img, main script"), `markup in ${label}`).toHaveCount(0);
  // A table that is shown as cards loses its roles, so the markup must state them.
  const bare = await page
    .locator("table.table-cards, table.table-cards :is(tr, th, td)")
    .evaluateAll((all) => all.filter((element) => !element.hasAttribute("role")).map((element) => element.outerHTML.slice(0, 120)));
  expect.soft(bare, `roles of ${label}`).toEqual([]);
  for (const width of WIDTHS) {
    expect.soft(await findOverflows(page, width), `${label} at ${width} px`).toEqual([]);
  }
}

/** Returns the number of requests of the page and their bytes. Files in the browser's cache have none. */
async function readLoad(page: Page): Promise<{ requests: number; bytes: number }> {
  return page.evaluate(() => {
    const entries = ["navigation", "resource"].flatMap((type) => performance.getEntriesByType(type)) as PerformanceResourceTiming[];
    return { requests: entries.length, bytes: entries.reduce((sum, entry) => sum + entry.transferSize, 0) };
  });
}
