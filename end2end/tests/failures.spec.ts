// What fails for good: found by its cause, run again, resolved. And messages that nobody can read.

import { randomBytes } from "node:crypto";
import { rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { makeJob, reached, runJob, shell } from "../fixtures/jobs";
import { deadLetter } from "../fixtures/letter";
import { call, client, type Person } from "../fixtures/people";
import { hasServices } from "../fixtures/stack";
import { expect, live, open, shot, test } from "../fixtures/test";

test.use({ scene: "failures" });
test.describe.configure({ mode: "serial" });

/** The imports fail until this file is there. */
const stock = join(tmpdir(), `milvaion-e2e-${randomBytes(6).toString("hex")}`);

test.afterAll(async () => {
  await rm(stock, { force: true });
});

test("failures of one cause are one line, which grows while one looks", async ({ admin, person, stack, target }) => {
  await open(admin, "/failed");
  await live(admin);
  await expect(admin.getByText("Nothing is open")).toBeVisible();
  await shot(admin, "failures-none");

  const job = await makeJob(stack.url, person, {
    name: "Import orders",
    input: shell(`test -e ${stock} || { echo "the stock list is missing" >&2; exit 7; }`),
  });
  const other = await makeJob(stack.url, person, {
    name: "Call the shop",
    target: "local/http-request",
    input: { url: target.at("/broken") },
  });
  for (const one of [job, job, other, job]) {
    await reached(stack.url, person, await runJob(stack.url, person, one), "failed");
  }
  const rows = admin.locator("#failure-groups tbody tr");
  await expect(rows).toHaveCount(2);
  await expect(rows.first()).toContainText("Import orders");
  await expect(rows.first().locator("td.num")).toHaveText("3");
  await expect(rows.last()).toContainText("Call the shop");
  await shot(admin, "failures");

  await admin.getByLabel("Search failures").fill("shop");
  await admin.getByRole("button", { name: "Search" }).click();
  await expect(admin).toHaveURL(/\?q=shop$/);
  await expect(rows).toHaveCount(1);
  await admin.getByLabel("Cause").selectOption("lost");
  await admin.getByRole("button", { name: "Search" }).click();
  await expect(admin).toHaveURL(/\?cause=lost&q=shop$/);
  await expect(admin.getByText("No failure fits")).toBeVisible();
  await admin.getByRole("link", { name: "Show all open failures" }).click();
  await expect(rows).toHaveCount(2);

  await open(admin, "/");
  const tile = admin.getByRole("link", { name: /Open failures/ });
  await expect(tile.locator(".tile-value")).toHaveText("4");
  await tile.click();
  await expect(admin.getByRole("heading", { level: 1 })).toHaveText("Failures");
});

test("chosen ones are run again, after a question that says how many", async ({ admin }) => {
  await writeFile(stock, "");
  await open(admin, "/failed");
  await live(admin);
  await admin.locator("#failure-groups tbody tr").first().locator("a.row-link").click();
  await expect(admin.locator("#failure-count")).toHaveText("3 open of 3 failures");
  const rows = admin.locator("#failures tbody tr");
  await expect(rows).toHaveCount(3);
  await expect(admin.getByRole("button", { name: "Retry all 3…" })).toBeVisible();
  await rows.nth(0).getByRole("checkbox").check();
  await rows.nth(1).getByRole("checkbox").press("Space");
  await admin.getByRole("button", { name: "Retry 2 chosen…" }).click();
  const dialog = admin.getByRole("dialog", { name: "Retry 2 failures?" });
  await expect(dialog.getByRole("button", { name: "Cancel" })).toBeFocused();
  await shot(admin, "dialog-retry");
  await admin.keyboard.press("Escape");
  await expect(dialog).toBeHidden();
  await expect(rows).toHaveCount(3);

  await admin.getByRole("button", { name: "Retry 2 chosen…" }).click();
  await dialog.getByLabel("Reason").fill("the list is back");
  await dialog.getByRole("button", { name: "Retry" }).click();
  await expect(admin.locator(".toast").filter({ hasText: "2 failures are retried." })).toBeVisible();
  await expect(rows).toHaveCount(1);
  await expect(admin.locator("#failure-count")).toHaveText("1 open of 3 failures");

  await admin.getByRole("link", { name: "All", exact: true }).click();
  await expect(rows).toHaveCount(3);
  await expect(admin.locator('#failures tr[data-state="resolved"]')).toHaveCount(2);
  await shot(admin, "failures-kind");
  await admin.getByRole("link", { name: "as this occurrence" }).first().click();
  await expect(admin.locator("#occurrence-status")).toHaveAttribute("data-status", "completed");
  await expect(admin.locator("#facts").locator("..")).toContainText("the list is back");
});

test("one is run again with another input, and says what became of it", async ({ admin, person, stack, watch }) => {
  watch.expect(/status of 422/);
  const job = await makeJob(stack.url, person, { name: "Greet", input: { argv: ["false"] } });
  const run = await runJob(stack.url, person, job);
  await reached(stack.url, person, run, "failed");
  await open(admin, `/occurrences/${run}`);
  await admin.getByRole("link", { name: "Failure", exact: true }).click();
  await expect(admin).toHaveURL(new RegExp(`/failed/${run}$`));
  await expect(admin.locator("#failure-state")).toHaveText("Open");
  const input = admin.getByLabel("Input as JSON");
  await expect(input).toHaveValue(/"false"/);
  await shot(admin, "failure");
  await input.fill('{"argv": [');
  await admin.getByRole("button", { name: "Retry" }).click();
  await expect(admin.locator("#retry-input-error")).toContainText("not JSON");
  await expect(input).toHaveValue('{"argv": [');
  await input.fill('{"argv": "none"}');
  await admin.getByRole("button", { name: "Retry" }).click();
  await expect(admin.locator("#retry-input-error")).toContainText("argv");
  await input.fill('{"argv": ["echo", "mended"]}');
  await admin.getByRole("button", { name: "Retry" }).click();
  await expect(admin).toHaveURL(/\/occurrences\//);
  const made = admin.url().split("/").at(-1) ?? "";
  expect(made).not.toBe(run);
  await expect(admin.locator("#occurrence-status")).toHaveAttribute("data-status", "completed");
  await expect(admin.locator(".log-lines")).toContainText("mended");
  await expect(admin.getByRole("link", { name: run })).toHaveAttribute("href", `/occurrences/${run}`);

  await admin.goto(`/failed/${run}`);
  await expect(admin.locator("#failure-state")).toContainText("Retried");
  await expect(admin.getByRole("link", { name: "as this occurrence" })).toHaveAttribute("href", `/occurrences/${made}`);
  const again = await call(stack.url, person.session, "retry_failure", { id: run });
  expect(again.status, again.text).toBe(409);
});

test("all of a cause are resolved with a note, but not more than were seen", async ({ admin, person, stack }) => {
  const job = await makeJob(stack.url, person, { name: "Nag", input: shell("echo give up >&2; exit 9") });
  const runs = [];
  for (let n = 0; n < 3; n += 1) {
    runs.push(await runJob(stack.url, person, job));
    await reached(stack.url, person, runs[n] ?? "", "failed");
  }
  const [kind] = await kinds(stack.url, person, job);
  const all = { all: "true", "filter[fingerprint]": kind ?? "", "filter[jobId]": job };
  const many = await call(stack.url, person.session, "resolve_failures", { ...all, seen: "1" });
  expect(many.status, many.text).toBe(409);
  expect(many.text).toContain("There are 3 by now, and 1 were there when you looked.");

  await open(admin, `/failed/${kind}?job=${job}`);
  await admin.getByRole("button", { name: "Resolve all 3…" }).click();
  const dialog = admin.getByRole("dialog", { name: "Resolve all of these 3 failures?" });
  await dialog.getByLabel("Note").fill("known since Monday");
  await dialog.getByLabel("Note").press("Enter");
  await expect(admin.locator(".toast").filter({ hasText: "3 failures are resolved." })).toBeVisible();
  await expect(admin.getByText("None here")).toBeVisible();
  await expect(admin.getByRole("button", { name: "Resolve…" })).toHaveAttribute("aria-disabled", "true");
  await open(admin, `/failed/${runs[0]}`);
  await expect(admin.locator("#failure-state")).toContainText(`Resolved by ${person.email}`);
  await expect(admin.getByText("known since Monday")).toBeVisible();
  await expect(admin.getByRole("heading", { name: "Resolve it" })).toBeHidden();
});

test("a message nobody can read is shown safely and resolved", async ({ admin, stack }) => {
  test.skip(!hasServices, "the broker's address is not known");
  await open(admin, "/failed");
  await admin.getByRole("link", { name: "Dead letters" }).click();
  await expect(admin.getByText("No dead letter")).toBeVisible();
  const bytes = Buffer.concat([Buffer.from("<script>alert(1)</script>\0\x1b[2J "), Buffer.alloc(3_000, "x")]);
  await deadLetter(process.env.AMQP_URL ?? "", stack.prefix, bytes);
  await deadLetter(process.env.AMQP_URL ?? "", stack.prefix, bytes);
  const letters = admin.locator("#dead-letters > li");
  await expect(async () => {
    await admin.reload();
    await expect(letters).toContainText(["The same came 1 time more."], { timeout: 500 });
  }).toPass({ timeout: 20_000 });
  await open(admin, "/failed?tab=dead-letters");
  await expect(letters).toHaveCount(1);
  await expect(letters).toContainText("2.9 KiB");
  await letters.getByText("Its beginning").click();
  await expect(letters.locator("pre").first()).toContainText("<script>alert(1)</script>\\x00\\x1b[2J");
  await shot(admin, "dead-letters");
  await letters.getByRole("checkbox").check();
  await admin.getByRole("button", { name: "Resolve 1 chosen…" }).click();
  const dialog = admin.getByRole("dialog", { name: "Resolve 1 dead letter?" });
  await dialog.getByLabel("Note").fill("somebody's experiment");
  await dialog.getByRole("button", { name: "Resolve" }).click();
  await expect(admin.locator(".toast").filter({ hasText: "1 dead letter is resolved." })).toBeVisible();
  await expect(letters).toHaveCount(0);
  await admin.getByRole("link", { name: "Resolved" }).click();
  await expect(letters).toContainText("somebody's experiment");
});

/** The fingerprints of a job's failures. */
async function kinds(url: string, person: Person, job: string): Promise<string[]> {
  const context = await client(url, person.session);
  const page = (await (await context.get(`/api/failure_groups?filter[jobId]=${job}`)).json()) as { rows: { fingerprint: string }[] };
  await context.dispose();
  return page.rows.map((row) => row.fingerprint);
}
