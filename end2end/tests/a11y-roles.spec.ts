// Accessibility of the pages that an Operator and a Viewer see, and of states that appear only while a page is open:
// banners, notices, dialogs and gaps. `a11y.spec.ts` checks the pages of an Admin.

import { randomUUID } from "node:crypto";
import { rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { makeRule } from "../fixtures/alerts";
import { checkLight, checkThemes } from "../fixtures/axe";
import { makeJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { createSamples, type SampleIds } from "../fixtures/samples";
import { expect, leave, open, pauseLive, resumeLive, test, waitForLive } from "../fixtures/test";
import { apiClient, callServerFunction, COOKIE, inviteUser, signIn, type TestUser } from "../fixtures/users";

test.use({ stackName: "a11y-roles", contextOptions: { reducedMotion: "reduce" } });

let samples: SampleIds;
/** The address of the failures of one cause. */
let cause: string;
let rule: string;
let users: Record<"operator" | "viewer", TestUser>;

test.beforeAll(async ({ stack, firstAdmin }) => {
  samples = await createSamples(stack.url, firstAdmin);
  const client = await apiClient(stack.url, firstAdmin.session);
  const failure = (await (await client.get(`/api/failure?id=${samples.failed}`)).json()) as { fingerprint: string };
  await client.dispose();
  cause = `/failed/${failure.fingerprint}`;
  rule = await makeRule(stack.url, firstAdmin, "Report failed", samples.job);
  users = {
    operator: await inviteUser(stack.url, firstAdmin, "Oscar Operator", "operator"),
    viewer: await inviteUser(stack.url, firstAdmin, "Vera Viewer", "viewer"),
  };
});

/** The addresses of all pages behind the sign-in. */
function pages(): string[] {
  const { job, calendar, completed, failed, running } = samples;
  return [
    "/", "/jobs", `/jobs/${job}`, `/jobs/${job}?tab=history`, `/jobs/${job}/edit`, "/jobs/new",
    "/occurrences", `/occurrences/${completed}`, `/occurrences/${failed}`, `/occurrences/${running}`,
    "/failed", `${cause}?state=all`, `/failed/${failed}`, "/failed?tab=dead-letters",
    "/calendars", `/calendars/${calendar}/edit`, "/calendars/new", "/alerts?state=all", "/alerts/rules", "/alerts/rules/new", `/alerts/rules/${rule}`,
    "/alerts/channels", "/alerts/channels/new", "/workers", "/team", "/audit", "/account", "/tokens", "/help",
  ];
}

/** Returns an address as part of a file name. */
function slug(path: string): string {
  return path.replaceAll(/\W+/g, "-");
}

for (const role of ["operator", "viewer"] as const) {
  test(`every page of a user with the role ${role} is accessible`, { tag: "@all" }, async ({ context, page, stack, watch }) => {
    test.setTimeout(300_000);
    // The pages that this role may not see state that.
    watch.expect(/status of 403/);
    await signIn(context, stack.url, users[role]);
    for (const path of pages()) {
      await open(page, path);
      await expect(page.getByRole("heading", { level: 1 })).toHaveCount(1);
      await expect(page).toHaveTitle(/.+ · Milvaion$/);
      // They consist of the elements that an Admin's pages have, which are checked in both themes and on a phone.
      await checkLight(page, `${role}${slug(path)}`);
    }
  });
}

test("the banners of a paused cluster are accessible", { tag: "@all" }, async ({ admin, context, stack, firstAdmin }) => {
  test.setTimeout(120_000);
  const paused = await callServerFunction(stack.url, firstAdmin.session, "pause_cluster", { reason: "The storage is being moved." });
  expect(paused.status, paused.text).toBe(200);
  try {
    for (const path of ["/", "/jobs", `/jobs/${samples.job}`]) {
      await open(admin, path);
      await expect(admin.locator("#paused")).toBeVisible();
      await checkThemes(admin, `paused${slug(path)}`);
    }
    await waitForLive(admin);
    await pauseLive(admin);
    await expect(admin.locator("#updates-paused")).toBeVisible();
    await checkThemes(admin, "paused-updates");
    await resumeLive(admin);
    await leave(admin);
    await signIn(context, stack.url, users.viewer);
    await open(admin, "/");
    await expect(admin.locator("#paused")).toBeVisible();
    await checkThemes(admin, "paused-viewer");
  } finally {
    const resumed = await callServerFunction(stack.url, firstAdmin.session, "resume_cluster", {});
    expect(resumed.status, resumed.text).toBe(200);
  }
});

test("the notice of an ended session is accessible", { tag: "@all" }, async ({ admin, context, watch }) => {
  watch.expect(/status of (401|403)/);
  await open(admin, "/calendars/new");
  await admin.getByLabel("Name", { exact: true }).fill("Kept");
  await context.clearCookies({ name: COOKIE });
  await admin.getByRole("button", { name: "Create" }).click();
  await expect(admin.locator("#session-end")).toContainText("You are signed out.");
  await checkThemes(admin, "signed-out");
});

test("the question before a filled form is left is accessible", { tag: "@all" }, async ({ admin }) => {
  await open(admin, "/jobs/new");
  await admin.getByLabel("Name", { exact: true }).fill("Half a job");
  await admin.getByRole("navigation", { name: "Main", exact: true }).getByRole("link", { name: "Workers" }).click();
  await expect(admin.getByRole("dialog", { name: "Discard changes?" })).toBeVisible();
  await checkThemes(admin, "leave");
});

test("the dialogs of bulk actions are accessible", { tag: "@all" }, async ({ admin }) => {
  await open(admin, cause);
  for (const verb of ["Retry", "Resolve"]) {
    const button = admin.getByRole("button", { name: `${verb} all 1…` });
    await button.click();
    await expect(admin.getByRole("dialog")).toBeVisible();
    await checkThemes(admin, `dialog-${verb}-all`);
    await admin.keyboard.press("Escape");
    await expect(button).toBeFocused();
  }
});

test("the gap of a log is accessible", { tag: "@all" }, async ({ admin, stack, firstAdmin }) => {
  test.setTimeout(120_000);
  const flag = join(tmpdir(), `milvaion-a11y-${randomUUID()}`);
  const script = `echo ready; while [ ! -e ${flag} ]; do sleep 0.1; done; i=0; while [ $i -lt 1300 ]; do echo line $i; i=$((i+1)); done`;
  const run = await runJob(stack.url, firstAdmin, await makeJob(stack.url, firstAdmin, { name: "Talkative", input: shell(script) }));
  await open(admin, `/occurrences/${run}`);
  await waitForLive(admin);
  await expect(admin.locator(".log-lines")).toContainText("ready");
  await pauseLive(admin);
  await writeFile(flag, "");
  await waitForStatus(stack.url, firstAdmin, run, "completed");
  await expect.poll(() => storedLines(stack.url, firstAdmin, run), { timeout: 30_000 }).toBeGreaterThan(1_300);
  await resumeLive(admin);
  await expect(admin.locator(".log-gap")).toBeVisible();
  await checkThemes(admin, "log-gap");
  await rm(flag);
});

/** Returns the number of stored log lines of an occurrence. */
async function storedLines(url: string, user: TestUser, id: string): Promise<number> {
  const client = await apiClient(url, user.session);
  const view = (await (await client.get(`/api/occurrence?id=${id}&log_after=-1`)).json()) as { log: unknown[]; logSkipped: number };
  await client.dispose();
  return view.log.length + view.logSkipped;
}
