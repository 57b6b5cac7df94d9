// Every state of every page fits every window: with long names, reasons, tags and log lines nothing scrolls sideways and
// nothing is cut. `pages.spec.ts` measures each page once, at four widths.

import type { Page } from "@playwright/test";

import { findOverflows, PHONE_WIDTH, TABLET_WIDTH } from "../fixtures/layout";
import { createLongData, LONG_TEXT, LONG_WORD, type LongDataIds } from "../fixtures/long-data";
import { expect, open, test, waitForLive } from "../fixtures/test";
import { callServerFunction } from "../fixtures/users";

test.use({ stackName: "widths", contextOptions: { reducedMotion: "reduce" } });

/** Window widths: a phone, a tablet, two laptops and a large screen. */
const WIDTHS = [PHONE_WIDTH, TABLET_WIDTH, 1024, 1280, 1920];

/** A path of the dashboard, with the actions that show its hidden parts. */
interface MeasuredPage {
  path: string;
  prepare?: (page: Page) => Promise<void>;
}

test.describe("in every window", { tag: "@all" }, () => {
  let data: LongDataIds;

  test.beforeAll(async ({ stack, firstAdmin }) => {
    test.setTimeout(180_000);
    data = await createLongData(stack, firstAdmin);
  });

  test("every page fits", async ({ admin }) => {
    test.setTimeout(600_000);
    for (const { path, prepare } of measuredPages(data)) {
      await admin.setViewportSize({ width: 1280, height: 900 });
      await open(admin, path);
      await waitForLive(admin);
      await prepare?.(admin);
      await measure(admin, path);
    }
  });

  test("a page with every banner fits", async ({ admin, stack, firstAdmin }) => {
    test.setTimeout(120_000);
    const paused = await callServerFunction(stack.url, firstAdmin.session, "pause_cluster", { reason: `${LONG_WORD}. ${LONG_TEXT}` });
    expect(paused.status, paused.text).toBe(200);
    try {
      for (const path of ["/", "/jobs"]) {
        await admin.setViewportSize({ width: 1280, height: 900 });
        await open(admin, path);
        await expect(admin.locator("#paused")).toBeVisible();
        await measure(admin, `paused ${path}`);
      }
    } finally {
      const resumed = await callServerFunction(stack.url, firstAdmin.session, "resume_cluster", {});
      expect(resumed.status, resumed.text).toBe(200);
    }
  });

  test("the pages before the sign-in fit", async ({ page, watch }) => {
    watch.expect(/status of 404/);
    for (const path of ["/login", data.invitation, "/invite?token=spent", data.reset, "/reset?token=bad"]) {
      await page.setViewportSize({ width: 1280, height: 900 });
      await open(page, path);
      await measure(page, path.replace(/token=.*/, "token"));
    }
  });
});

/** Measures the page at each width. */
async function measure(page: Page, label: string): Promise<void> {
  for (const width of WIDTHS) {
    expect.soft(await findOverflows(page, width), `${label} at ${width} px`).toEqual([]);
  }
}

/** The pages and their states. */
function measuredPages(data: LongDataIds): MeasuredPage[] {
  const { calendar, job, failing, halted, completed, failed, resolved, cancelled, running, cause, rule, channel, colleague } = data;
  const paths = [
    "/", "/?window=7d", "/jobs", `/jobs/${job}`, `/jobs/${halted}`, `/jobs/${job}?tab=history`, `/jobs/${job}?tab=history&from=2&to=1`,
    `/jobs/${job}/edit`, `/jobs/new?from=${job}`, "/jobs/new?type=local/http-request",
    "/occurrences", `/occurrences?job=${job}`, `/occurrences?status=failed&job=${failing}`,
    `/occurrences/${completed}`, `/occurrences/${failed}`, `/occurrences/${cancelled}`, `/occurrences/${running}`,
    "/failed", `${cause}?state=all`, `/failed/${failed}`, `/failed/${resolved}`, "/failed?tab=dead-letters",
    "/calendars", "/calendars/new", `/calendars/${calendar}/edit`,
    "/alerts", "/alerts?state=all", "/alerts/rules", "/alerts/rules/new", `/alerts/rules/${rule}`,
    "/alerts/channels", "/alerts/channels/new", `/alerts/channels/${channel}`,
    "/workers", "/singleton-loops", "/team", `/team/${colleague}`,
    "/audit", "/account", "/tokens", "/menu", "/help",
  ];
  return [
    ...paths.map((path) => ({ path })),
    { path: cause, prepare: async (page) => page.locator("#failures").getByRole("checkbox").last().check() },
    {
      path: "/calendars/new?measured=windows",
      prepare: async (page) => {
        await page.getByRole("button", { name: "Add a window" }).click();
        await expect(page.getByRole("group", { name: "Window 1" })).toBeVisible();
      },
    },
  ];
}
