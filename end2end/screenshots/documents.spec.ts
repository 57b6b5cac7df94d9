// The pictures in docs/images. `make screenshots` starts a server and a worker, creates jobs as a small team has them, lets
// them run for a while, and takes each picture from the real page. A picture over 150 kB fails: the README loads two.

import { statSync } from "node:fs";
import { join, resolve } from "node:path";

import type { Page } from "@playwright/test";

import { makeCalendar, makeJob, pauseJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { expect, open, test, waitForLive } from "../fixtures/test";

test.use({ stackName: "screenshots", contextOptions: { reducedMotion: "reduce" }, viewport: { width: 1280, height: 800 } });

const FOLDER = resolve(import.meta.dirname, "../../docs/images");
const MAX_BYTES = 150_000;
/** How long the jobs run before the pictures: the overview's chart shows minutes. */
const WARM_UP_MILLIS = 60_000;

async function take(page: Page, name: string, schemes: ("light" | "dark")[]): Promise<void> {
  for (const colorScheme of schemes) {
    await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
    const path = join(FOLDER, `${name}-${colorScheme}.png`);
    await page.screenshot({ path });
    expect(statSync(path).size, `${path} is small enough for a document`).toBeLessThanOrEqual(MAX_BYTES);
  }
}

test("takes the pictures of the documents", async ({ admin: page, stack, firstAdmin }) => {
  const create = (name: string, script: string, more: Partial<Parameters<typeof makeJob>[2]> = {}) =>
    makeJob(stack.url, firstAdmin, { name, input: shell(script), ...more });
  const holidays = await makeCalendar(stack.url, firstAdmin, { name: "Public holidays", dates: "2030-12-25\n2030-12-26" });
  await create("Refresh exchange rates", "echo 214 rates stored; sleep 0.4", { every: 5, tags: "finance" });
  await create("Sync orders", "for n in 1 2 3; do echo page $n; sleep 0.5; done", { every: 10, tags: "shop", retries: 3 });
  await create("Warm the search index", "sleep 6; echo 18432 documents", { cron: "*/15 * * * * *", tags: "search" });
  await create("Nightly report", "echo done", { cron: "0 2 * * *", zone: "Europe/Warsaw", tags: "finance", calendars: [holidays] });
  await create("Invoice run", "echo done", { cron: "0 6 1 * *", zone: "Europe/Berlin", tags: "finance", calendars: [holidays] });
  const flaky = await create("Import supplier prices", "echo connecting to sftp.example.org; echo timed out >&2; exit 3", { tags: "shop" });
  const archive = await create("Archive old carts", "echo done", { cron: "30 3 * * SUN", tags: "shop" });
  await pauseJob(stack.url, firstAdmin, archive);
  const failed = await runJob(stack.url, firstAdmin, flaky);
  await waitForStatus(stack.url, firstAdmin, failed, "failed");
  await page.waitForTimeout(WARM_UP_MILLIS);

  await open(page, "/");
  await waitForLive(page);
  await take(page, "overview", ["light", "dark"]);
  await open(page, "/jobs/new");
  await take(page, "job-form", ["light"]);
  await open(page, `/occurrences/${failed}`);
  await waitForLive(page);
  await take(page, "occurrence", ["light"]);
});
