// Icons are drawn in every load of a page, also after hydration has taken over their elements. `pages.spec.ts` looks at each
// page once.

import { readIcons } from "../fixtures/icons";
import { makeJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { expect, open, test } from "../fixtures/test";

test.use({ stackName: "jobs" });

/** The number of loads. An icon that is missing in one of four loads is found with a probability of 99.7 %. */
const LOADS = 20;

test("every icon is drawn in each load", { tag: "@all" }, async ({ admin: page, stack, firstAdmin }) => {
  test.setTimeout(240_000);
  const job = await makeJob(stack.url, firstAdmin, { name: "Illustrated", input: shell("true"), every: 86_400 });
  await waitForStatus(stack.url, firstAdmin, await runJob(stack.url, firstAdmin, job), "completed");
  for (let load = 1; load <= LOADS; load += 1) {
    await open(page, "/jobs?q=Illustrated");
    const { count, empty } = await readIcons(page);
    expect(empty, `load ${load}`).toEqual([]);
    // The navigation, the top bar, the row's actions and the mark of the run.
    expect(count, `load ${load}`).toBeGreaterThanOrEqual(14);
  }
});
