// Bulk actions on failures: their scope never grows beyond what was chosen, and a list in use holds still.

import { randomBytes } from "node:crypto";
import { rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import type { Page } from "@playwright/test";

import { makeJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { expect, open, screenshot, test, waitForHydration, waitForLive } from "../fixtures/test";
import { apiClient, callServerFunction, type TestUser } from "../fixtures/users";

test.use({ stackName: "runs" });

/** Jobs that wait for this file fail until it exists. */
const repair = join(tmpdir(), `milvaion-e2e-${randomBytes(6).toString("hex")}`);

test.afterAll(async () => {
  await rm(repair, { force: true });
});

/** Runs a job `times` times until each run has failed, and returns the occurrences. */
async function fail(url: string, user: TestUser, job: string, times: number): Promise<string[]> {
  const runs: string[] = [];
  for (let n = 0; n < times; n += 1) {
    const run = await runJob(url, user, job);
    await waitForStatus(url, user, run, "failed");
    runs.push(run);
  }
  return runs;
}

/** Returns the fingerprint of a job's failures. */
async function fingerprint(url: string, user: TestUser, job: string): Promise<string> {
  const context = await apiClient(url, user.session);
  const page = (await (await context.get(`/api/failure_groups?filter[jobId]=${job}`)).json()) as { rows: { fingerprint: string }[] };
  await context.dispose();
  return page.rows[0]?.fingerprint ?? "";
}

/** Counts the requests of a page to a server function. */
function countCalls(page: Page, name: string): { calls: string[] } {
  const calls: string[] = [];
  page.on("request", (request) => {
    if (new URL(request.url()).pathname === `/api/${name}`) {
      calls.push(request.postData() ?? "");
    }
  });
  return { calls };
}

test("an open dialog keeps the failures it was opened for", async ({ admin, firstAdmin, stack }) => {
  const script = `test -e ${repair} || { echo "the parts are missing" >&2; exit 7; }`;
  const job = await makeJob(stack.url, firstAdmin, { name: "Assemble", input: shell(script) });
  const runs = await fail(stack.url, firstAdmin, job, 3);
  const chosen = runs[0] ?? "";
  await open(admin, `/failed/${await fingerprint(stack.url, firstAdmin, job)}`);
  await waitForLive(admin);
  const count = admin.locator("#failure-count");
  await expect(count).toHaveText("3 open of 3 failures");
  await admin.locator(`#failures tr[data-id="${chosen}"]`).getByRole("checkbox").check();
  await admin.getByRole("button", { name: "Retry 1 selected…" }).click();
  const dialog = admin.getByRole("dialog", { name: "Retry 1 failure?" });
  await dialog.getByLabel("Reason").fill("the parts are here");

  // The chosen failure is resolved elsewhere, so the selection behind the dialog becomes empty.
  const settled = await callServerFunction(stack.url, firstAdmin.session, "resolve_failures", { "ids[]": chosen });
  expect(settled.status, settled.text).toBe(200);
  await fail(stack.url, firstAdmin, job, 1);
  await expect(count).toHaveText("3 open of 4 failures");
  // The list holds still behind the dialog, and the row states that its failure is settled.
  const settledRow = admin.locator(`#failures tr[data-id="${chosen}"]`);
  await expect(settledRow).toHaveAttribute("data-state", "resolved");
  await expect(settledRow.locator('td[data-label="State"]')).toContainText("Resolved");
  await expect(settledRow.locator("input[type=checkbox]")).toHaveCount(0);
  await expect(admin.locator(".pill")).toContainText("1 new failure · Show");
  await expect(dialog).toBeVisible();

  await writeFile(repair, "");
  const { calls } = countCalls(admin, "retry_failures");
  await dialog.getByRole("button", { name: "Retry" }).click();
  await expect(admin.locator(".toast").filter({ hasText: "1 failure was retried." })).toBeVisible();
  expect(calls).toHaveLength(1);
  expect(calls[0]).toContain("all=false");
  expect(calls[0]).toContain(chosen);
  await expect(count).toHaveText("3 open of 4 failures");
  await expect(admin.getByRole("button", { name: "Retry selected…" })).toHaveAttribute("aria-disabled", "true");
});

test("all is refused when many more failures match", async ({ admin, firstAdmin, stack, watch }) => {
  watch.expect(/status of 409/);
  const job = await makeJob(stack.url, firstAdmin, { name: "Overflow", input: shell("echo too much >&2; exit 9") });
  await fail(stack.url, firstAdmin, job, 2);
  await open(admin, `/failed/${await fingerprint(stack.url, firstAdmin, job)}`);
  await waitForLive(admin);
  const count = admin.locator("#failure-count");
  await admin.getByRole("button", { name: "Resolve all 2…" }).click();
  const dialog = admin.getByRole("dialog", { name: "Resolve all 2 failures?" });
  await expect(dialog).toContainText("Filter: open failures of this cause");
  await expect(dialog).toContainText("of the job Overflow");
  await expect(dialog.locator('[data-scope="all"] li')).toHaveCount(2);
  await screenshot(admin, "dialog-resolve-all");
  await fail(stack.url, firstAdmin, job, 1);
  await expect(count).toHaveText("3 open of 3 failures");
  await dialog.getByRole("button", { name: "Resolve" }).click();
  await expect(dialog.locator(".error-summary")).toContainText("The filter now matches 3 failures; you saw 2.");
  await expect(admin.locator(".toast")).toHaveCount(0);
  await dialog.getByRole("button", { name: "Cancel" }).click();
  await expect(count).toHaveText("3 open of 3 failures");

  await admin.getByRole("button", { name: "Resolve all 3…" }).click();
  const again = admin.getByRole("dialog", { name: "Resolve all 3 failures?" });
  await expect(again.getByRole("alert")).toBeHidden();
  await again.getByRole("button", { name: "Resolve" }).click();
  await expect(admin.locator(".toast").filter({ hasText: "3 failures were resolved." })).toBeVisible();
  await expect(count).toHaveText("0 open of 3 failures");
});

test("a search typed before hydration is kept", { tag: "@all" }, async ({ admin, firstAdmin, stack }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Sought", input: shell("echo sought >&2; exit 4") });
  await fail(stack.url, firstAdmin, job, 1);
  let release = () => {};
  const gate = new Promise<void>((resolve) => (release = resolve));
  await admin.route(/\.wasm(\?|$)/, async (route) => {
    await gate;
    await route.continue();
  });
  await admin.goto("/failed", { waitUntil: "commit" });
  const search = admin.getByLabel("Search failures");
  await search.fill("nowhere to be found");
  release();
  await waitForHydration(admin);
  await expect(search).toHaveValue("nowhere to be found");
  await admin.getByRole("button", { name: "Search" }).click();
  await expect(admin.getByText("No failure matches")).toBeVisible();
  await expect(search).toHaveValue("nowhere to be found");
  await admin.getByRole("link", { name: "Show all open failures" }).click();
  await expect(admin.locator("#failure-groups tbody tr").first()).toBeVisible();
  await expect(search).toHaveValue("");
});

test("groups hold still while one of them has the focus", async ({ admin, firstAdmin, stack }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Steady", input: shell("echo steady >&2; exit 5") });
  const other = await makeJob(stack.url, firstAdmin, { name: "Newcomer", input: shell("echo newcomer >&2; exit 6") });
  await fail(stack.url, firstAdmin, job, 1);
  await open(admin, "/failed");
  await waitForLive(admin);
  const groups = admin.locator("#failure-groups tbody tr");
  const steady = groups.filter({ hasText: "Steady" });
  await expect(steady).toHaveCount(1);
  const before = await groups.count();
  const link = steady.locator("a.row-link");
  await link.focus();

  await fail(stack.url, firstAdmin, other, 1);
  const pill = admin.getByRole("button", { name: "1 new group · Show" });
  await expect(pill).toBeVisible();
  await fail(stack.url, firstAdmin, job, 1);
  await expect(steady.locator("td.num")).toHaveText("2");
  await expect(link).toBeFocused();
  await expect(groups).toHaveCount(before);
  await screenshot(admin, "failures-held");
  await pill.click();
  await expect(admin.getByRole("heading", { level: 1 })).toBeFocused();
  await expect(groups).toHaveCount(before + 1);
  await expect(groups.filter({ hasText: "Newcomer" })).toHaveCount(1);
  await expect(pill).toHaveCount(0);
});

test("a double click resolves a failure once", { tag: "@all" }, async ({ admin, firstAdmin, stack }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Twice", input: shell("echo twice >&2; exit 8") });
  const [run] = await fail(stack.url, firstAdmin, job, 1);
  await open(admin, `/failed/${run}`);
  const { calls } = countCalls(admin, "resolve_failures");
  await admin.getByRole("button", { name: "Resolve", exact: true }).dblclick();
  await expect(admin.locator(".toast").filter({ hasText: "1 failure was resolved." })).toBeVisible();
  await expect(admin.locator("#failure-state")).toContainText("Resolved");
  await expect(admin.getByRole("heading", { name: "Resolve this failure" })).toBeHidden();
  expect(calls).toHaveLength(1);
  await expect(admin.locator(".toast")).toHaveCount(1);
  const again = await callServerFunction(stack.url, firstAdmin.session, "resolve_failures", { "ids[]": run ?? "" });
  expect(JSON.parse(again.text)).toMatchObject({ count: 0, left: 1 });
});

test("a refused resolution is explained beside its button", { tag: "@all" }, async ({ admin, firstAdmin, stack, watch }) => {
  watch.expect(/status of 503|Failed to load resource/);
  const job = await makeJob(stack.url, firstAdmin, { name: "Refused", input: shell("echo refused >&2; exit 2") });
  const [run] = await fail(stack.url, firstAdmin, job, 1);
  await open(admin, `/failed/${run}`);
  await admin.route("**/api/resolve_failures", (route) => route.abort());
  const form = admin.locator('section[aria-labelledby="resolve-title"]');
  await form.getByLabel("Note").fill("kept");
  await form.getByRole("button", { name: "Resolve" }).click();
  await expect(form.getByRole("alert")).toContainText("The server cannot be reached");
  await expect(form.getByLabel("Note")).toHaveValue("kept");
  await expect(admin.locator(".toast")).toHaveCount(0);
  await admin.unroute("**/api/resolve_failures");
  await form.getByRole("button", { name: "Resolve" }).click();
  await expect(admin.locator(".toast").filter({ hasText: "1 failure was resolved." })).toBeVisible();
});

