// Icons are drawn in every load of a page, also after hydration has taken over their elements.

import type { Page } from "@playwright/test";

import { makeJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { expect, open, test } from "../fixtures/test";

test.use({ stackName: "icons" });

/** The number of loads. An icon that is missing in one of four loads is found with a probability of 99.7 %. */
const LOADS = 20;

/** The icons of a page: their number, and those that are visible elements without a drawing. */
interface IconReport {
  count: number;
  empty: string[];
}

/** Looks at each visible icon. A line may have no height, so an icon is empty only if it has no size at all. */
async function readIcons(page: Page): Promise<IconReport> {
  return page.evaluate(() => {
    const visible = [...document.querySelectorAll<SVGUseElement>("svg use")].filter((use) => {
      const svg = use.ownerSVGElement as SVGSVGElement;
      return svg.checkVisibility() && !svg.closest("symbol");
    });
    const empty = visible.flatMap((use) => {
      const address = use.getAttribute("href") ?? "";
      const symbol = address.startsWith("#") ? document.getElementById(address.slice(1)) : null;
      const frame = (use.ownerSVGElement as SVGSVGElement).getBoundingClientRect();
      const drawing = use.getBBox();
      const isDrawn = symbol !== null && symbol.childElementCount > 0 && (drawing.width > 0 || drawing.height > 0);
      const place = use.closest("a, button, td, li")?.outerHTML.slice(0, 120);
      return isDrawn && frame.width > 0 && frame.height > 0 ? [] : [`${address} in ${place}`];
    });
    return { count: visible.length, empty };
  });
}

test("every icon is drawn in each load", async ({ admin: page, stack, firstAdmin }) => {
  test.setTimeout(240_000);
  const job = await makeJob(stack.url, firstAdmin, { name: "Illustrated", input: shell("true"), every: 86_400 });
  await waitForStatus(stack.url, firstAdmin, await runJob(stack.url, firstAdmin, job), "completed");
  for (let load = 1; load <= LOADS; load += 1) {
    await open(page, "/jobs");
    const { count, empty } = await readIcons(page);
    expect(empty, `load ${load}`).toEqual([]);
    // The navigation, the top bar, the row's actions and the mark of the run.
    expect(count, `load ${load}`).toBeGreaterThanOrEqual(14);
  }
});
