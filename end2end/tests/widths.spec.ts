// Every page fits every window: with long names, reasons, tags and log lines nothing scrolls sideways and nothing is cut.

import type { Page } from "@playwright/test";

import { publishDeadLetter } from "../fixtures/dead-letter";
import { form, makeCalendar, makeJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { findOverflows } from "../fixtures/layout";
import { hasServices, type TestStack } from "../fixtures/stack";
import { expect, open, test, waitForLive } from "../fixtures/test";
import { apiClient, callServerFunction, inviteUser, type TestUser, whoami } from "../fixtures/users";

test.use({ stackName: "widths", contextOptions: { reducedMotion: "reduce" } });

/** Window widths: a phone, a tablet, two laptops and a large screen. */
const WIDTHS = [360, 768, 1024, 1280, 1920];
/** The width from which on every table fits its box. */
const TABLET = 768;

const LONG_WORD = "nightly_reconciliation_of_the_customer_ledger_with_the_warehouse_and_the_archive_of_2031";
const LONG_TEXT = "The storage behind the archive is being moved to another building, which takes until the end of the week. ".repeat(3).trim();
const LONG_TYPE = "reconcile.customer-ledger.with-warehouse-and-archive.in-monthly-batches_of_the_finance_department_v9";

/** A path of the dashboard, with the actions that show its hidden parts. */
interface MeasuredPage {
  path: string;
  prepare?: (page: Page) => Promise<void>;
}
let pages: MeasuredPage[];

test.beforeAll(async ({ stack, firstAdmin }) => {
  test.setTimeout(180_000);
  pages = await fillInstallation(stack, firstAdmin);
});

test("every page fits every window", async ({ admin }) => {
  test.setTimeout(600_000);
  for (const { path, prepare } of pages) {
    await admin.setViewportSize({ width: 1280, height: 900 });
    await open(admin, path);
    await waitForLive(admin);
    await prepare?.(admin);
    await measure(admin, path);
  }
});

test("a page with every banner fits every window", async ({ admin, stack, firstAdmin }) => {
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

test("the pages before the sign-in fit every window", async ({ page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 404/);
  const invited = await callServerFunction(stack.url, firstAdmin.session, "invite_user", { name: `Ida ${LONG_WORD}`, role: "viewer" });
  expect(invited.status, invited.text).toBe(200);
  for (const path of ["/login", JSON.parse(invited.text) as string, "/invite?token=spent", "/reset?token=bad"]) {
    await page.setViewportSize({ width: 1280, height: 900 });
    await open(page, path);
    await measure(page, path.replace(/token=.*/, "token"));
  }
});

/** Measures the page at each width. */
async function measure(page: Page, label: string): Promise<void> {
  // Tables and schemas in closed sections are measured too.
  await page.evaluate(() => document.querySelectorAll<HTMLDetailsElement>("main details").forEach((section) => (section.open = true)));
  for (const width of WIDTHS) {
    await page.setViewportSize({ width, height: 900 });
    // Two frames later the page is laid out for the new width.
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    expect.soft(await findOverflows(page, width >= TABLET), `${label} at ${width} px`).toEqual([]);
  }
}

/** Fills the installation with data of unusual lengths and returns the pages that show it. */
async function fillInstallation(stack: TestStack, user: TestUser): Promise<MeasuredPage[]> {
  const call = async (name: string, fields: Record<string, string>) => {
    const answer = await callServerFunction(stack.url, user.session, name, fields);
    expect(answer.status, `${name}: ${answer.text}`).toBe(200);
    return answer.text;
  };
  const calendar = await makeCalendar(stack.url, user, {
    name: `calendar_${LONG_WORD}`,
    zone: "America/Argentina/Buenos_Aires",
    dates: "2030-12-24 to 2030-12-26\n2031-01-01\n2031-01-06\n2031-05-01 to 2031-05-03",
    windows: [
      { days: ["sat", "sun"], from: "00:00", to: "00:00" },
      { days: ["mon", "tue", "wed", "thu", "fri"], from: "22:00", to: "05:30" },
    ],
  });
  // A blackout that is in force now.
  await makeCalendar(stack.url, user, { name: "Moving house", zone: "America/Argentina/Buenos_Aires", dates: "2026-01-01 to 2030-12-31" });
  const fields = {
    name: `${LONG_WORD}_production`,
    input: shell(`for i in 1 2 3; do echo page $i; done; head -c 5000 /dev/zero | tr '\\0' x; echo; echo ${LONG_TEXT} ${LONG_TEXT}`),
    cron: "0 9 1,15 * MON-FRI",
    zone: "America/Argentina/Buenos_Aires",
    tags: `finance, month-end, warehouse, archive, eu-central-1, on-call, ${LONG_WORD.slice(0, 50)}`,
    calendars: [calendar],
    retries: 3,
  };
  const job = await makeJob(stack.url, user, fields);
  const description = `${LONG_TEXT} ${LONG_WORD}`;
  await call("save_job", { ...form({ ...fields, tags: "finance" }), "form[id]": job, "form[version]": "1", "form[description]": description });
  const failing = await makeJob(stack.url, user, {
    name: `failing_${LONG_WORD}`,
    input: shell(`echo ${LONG_WORD}${LONG_WORD}${LONG_WORD} >&2; exit 7`),
    every: 86_400,
  });
  const sleeps = shell("echo begun; sleep 900");
  const slow = await makeJob(stack.url, user, { name: "Monthly reconciliation of the ledger with the archive", input: sleeps });
  const halted = await makeJob(stack.url, user, { name: `halted_${LONG_WORD}`, input: shell("true"), cron: "0 0 1 1 *", tags: "finance" });
  await call("set_job_active", { id: halted, active: "false", reason: `${LONG_WORD} ${LONG_TEXT}` });

  const completed = JSON.parse(await call("trigger_job", { id: job, input_json: "", reason: `${LONG_WORD} ${LONG_TEXT}` })) as string;
  const runs: string[] = [];
  for (let n = 0; n < 3; n += 1) {
    runs.push(await runJob(stack.url, user, failing));
  }
  const cancelled = await runJob(stack.url, user, slow);
  const busy = await makeJob(stack.url, user, { name: `running_${LONG_WORD}`, input: sleeps });
  const running = await runJob(stack.url, user, busy);
  await waitForStatus(stack.url, user, completed, "completed");
  for (const run of runs) {
    await waitForStatus(stack.url, user, run, "failed");
  }
  await waitForStatus(stack.url, user, cancelled, "running");
  await call("cancel_occurrence", { id: cancelled, reason: `${LONG_WORD} ${LONG_TEXT}` });
  await waitForStatus(stack.url, user, cancelled, "cancelled");
  await waitForStatus(stack.url, user, running, "running");
  const [failed = "", resolved = ""] = runs;
  await call("resolve_failures", { "ids[]": resolved, note: `${LONG_WORD} ${LONG_TEXT}` });

  const bob = await inviteUser(stack.url, user, `Bob ${LONG_WORD.slice(0, 40)}`, "operator");
  const { id: colleague } = await whoami(stack.url, bob);
  await makeJob(stack.url, bob, { name: `Bob's ${LONG_WORD}`, input: shell("true") });
  await call("create_reset_link", { id: colleague });
  await call("invite_user", { name: `Eve ${LONG_WORD}`, role: "operator" });
  if (hasServices) {
    await stack.sql(`update jobs set job_type = '${LONG_TYPE}' where id = '${halted}'`);
    await stack.sql(
      `insert into worker_job_types (worker_id, job_type, description, schema, announced_at)
       select worker_id, '${LONG_TYPE}', '${LONG_TEXT}', schema, now() from worker_job_types where job_type = 'http-request'`,
    );
    await publishDeadLetter(process.env.AMQP_URL ?? "", stack.prefix, Buffer.from(`{"${LONG_WORD}": "${LONG_WORD.repeat(9)}"`), completed);
  }

  const client = await apiClient(stack.url, user.session);
  const failure = (await (await client.get(`/api/failure?id=${failed}`)).json()) as { fingerprint: string };
  await client.dispose();
  const cause = `/failed/${failure.fingerprint}`;
  const paths = [
    "/", "/?window=7d", "/jobs", `/jobs/${job}`, `/jobs/${halted}`, `/jobs/${job}?tab=history`, `/jobs/${job}?tab=history&from=2&to=1`,
    `/jobs/${job}/edit`, `/jobs/new?from=${job}`, "/jobs/new?type=local/http-request",
    "/occurrences", `/occurrences?job=${job}`, `/occurrences?status=failed&job=${failing}`,
    `/occurrences/${completed}`, `/occurrences/${failed}`, `/occurrences/${cancelled}`, `/occurrences/${running}`,
    "/failed", `${cause}?state=all`, `/failed/${failed}`, `/failed/${resolved}`, "/failed?tab=dead-letters",
    "/calendars", "/calendars/new", `/calendars/${calendar}/edit`, "/alerts", "/alerts?state=all", "/alerts/rules", "/alerts/rules/new", "/alerts/channels", "/alerts/channels/new",
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
