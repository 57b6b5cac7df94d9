// Permissions by role. Hidden buttons are only a convenience, so these tests send the forbidden requests to the server.

import { form, makeCalendar, makeJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { expect, open, screenshot, test, waitForHydration } from "../fixtures/test";
import { acceptInvite, apiClient, callServerFunction, inviteUser, signIn, type TeamRow, type TestUser, whoami } from "../fixtures/users";

test.use({ stackName: "roles" });
test.describe.configure({ mode: "serial" });

let job = "";
let calendar = "";
let failed = "";
let viewer: TestUser;
let operator: TestUser;

test.beforeAll(async ({ stack, firstAdmin }) => {
  job = await makeJob(stack.url, firstAdmin, { name: "Nightly report", input: shell("echo good night") });
  calendar = await makeCalendar(stack.url, firstAdmin, { name: "Holidays", dates: "2030-12-24 to 2030-12-26" });
  const broken = await makeJob(stack.url, firstAdmin, { name: "Broken", input: shell("exit 7") });
  failed = await runJob(stack.url, firstAdmin, broken);
  await waitForStatus(stack.url, firstAdmin, failed, "failed");
});

test("an Admin adds users by one-time links", async ({ admin, browser, stack, watch }) => {
  await open(admin, "/team");
  const links: string[] = [];
  for (const [name, role] of [["Vera Viewer", "Viewer"], ["Oscar Operator", "Operator"]] as const) {
    await admin.getByLabel("Name", { exact: true }).fill(name);
    await admin.getByRole("radio", { name: new RegExp(`^${role}`) }).check();
    await admin.getByRole("button", { name: "Create link" }).click();
    await expect(admin.getByRole("row").filter({ hasText: name })).toContainText(role);
    await expect(admin.getByLabel("Name", { exact: true })).toHaveValue("");
    const link = await admin.getByLabel("One-time link", { exact: true }).inputValue();
    expect(links).not.toContain(link);
    links.push(link);
  }
  await screenshot(admin, "team-invited");

  const context = await browser.newContext({ baseURL: stack.url });
  watch.follow(context);
  const page = await context.newPage();
  await page.goto(links[0] ?? "");
  await waitForHydration(page);
  await expect(page.getByText("You were invited as Viewer.")).toBeVisible();
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Vera Viewer");
  await screenshot(page, "invite");
  await page.getByLabel("E-mail").fill("vera@example.org");
  await page.getByLabel("Passphrase", { exact: true }).fill("eleven quiet harbours");
  await page.getByRole("button", { name: "Create my account" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
  const session = (await context.cookies()).find((cookie) => cookie.name === "milvaion_session")?.value ?? "";
  viewer = { name: "Vera Viewer", email: "vera@example.org", passphrase: "eleven quiet harbours", session };
  await context.close();

  operator = await acceptInvite(stack.url, links[1] ?? "", "Oscar Operator");
  await open(admin, "/team");
  const team = admin.getByRole("table", { name: "Users and invitations by name" });
  await expect(team.getByRole("row").filter({ hasText: "vera@example.org" })).toContainText("Viewer");
  await expect(team.getByRole("row").filter({ hasText: "oscar.operator@example.org" })).toContainText("Operator");
  await expect(team.locator('[data-state="invited"]')).toHaveCount(0);

  // A used link is rejected by the page and by the server function.
  const again = await apiClient(stack.url);
  const shown = await again.get(links[0] ?? "");
  expect(shown.status()).toBe(404);
  expect(await shown.text()).toContain("This link no longer works");
  await again.dispose();
  const token = new URL(links[0] ?? "").searchParams.get("token") ?? "";
  const forged = { token, page: "invite", name: "Mallory", email: "m@example.org", passphrase: "nine hundred small keys" };
  expect((await callServerFunction(stack.url, undefined, "accept_invite", forged)).status).toBe(404);
});

test("an invitation is revoked after confirmation", async ({ admin, stack }) => {
  await open(admin, "/team");
  await admin.getByLabel("Name", { exact: true }).fill("Never Mind");
  await admin.getByRole("button", { name: "Create link" }).click();
  const link = await admin.getByLabel("One-time link", { exact: true }).inputValue();
  await admin.getByRole("button", { name: "Revoke the invitation of Never Mind" }).click();
  await admin.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
  await expect(admin.locator(".toast")).toContainText("revoked");
  await expect(admin.getByRole("row").filter({ hasText: "Never Mind" })).toHaveCount(0);
  const token = new URL(link).searchParams.get("token") ?? "";
  const late = { token, page: "invite", name: "Never Mind", email: "n@example.org", passphrase: "seven patient lanterns" };
  expect((await callServerFunction(stack.url, undefined, "accept_invite", late)).status).toBe(404);
});

test("a Viewer reads every page without action buttons", async ({ context, page, firstAdmin, stack }) => {
  const run = await runJob(stack.url, firstAdmin, job);
  await signIn(context, stack.url, viewer);
  for (const path of ["/", "/jobs", `/jobs/${job}`, "/occurrences", `/occurrences/${run}`, `/jobs/${job}?tab=history`, "/failed",
    `/failed/${failed}`, "/failed?tab=dead-letters", "/calendars", "/workers", "/help"]) {
    await open(page, path);
    await expect(page.getByRole("heading", { level: 1 })).toBeVisible();
    await expect(page.locator('main form[method="post"]')).toHaveCount(0);
    const changes = /^(run (now|job|with)|pause|resume|cancel|delete|edit|new job|create|retry|resolve|restore)\b/i;
    await expect(page.getByRole("main").getByRole("button", { name: changes })).toHaveCount(0);
    await expect(page.getByRole("main").getByRole("link", { name: changes })).toHaveCount(0);
    await expect(page.getByRole("link", { name: "Team" })).toHaveCount(0);
    await expect(page.getByRole("link", { name: "Audit log" })).toHaveCount(0);
  }
  // The own account is the one page with forms.
  await open(page, "/account");
  await expect(page.getByRole("heading", { level: 1 })).toBeVisible();
  await expect(page.getByRole("button", { name: "Save name" })).toBeVisible();
  await open(page, `/occurrences/${run}`);
  await expect(page.locator(".log-lines")).toContainText("good night");
});

test("forged requests of a Viewer are refused", async ({ context, page, stack, firstAdmin, watch }) => {
  watch.expect(/status of 403/);
  await signIn(context, stack.url, viewer);
  const run = await runJob(stack.url, firstAdmin, job);
  await waitForStatus(stack.url, firstAdmin, run, "completed");
  await open(page, `/jobs/${job}`);
  const before = await readState(stack.url, firstAdmin);
  const invites = { name: "Mallory", role: "admin" };
  const admin = await whoami(stack.url, firstAdmin);
  const forgeries: [string, Record<string, string>][] = [
    ["save_job", form({ name: "Mine now", input: shell("true") })],
    ["save_job", { ...form({ name: "Mine now", input: shell("true") }), "form[id]": job, "form[version]": "1" }],
    ["check_job", form({ name: "Mine now", input: shell("true") })],
    ["trigger_job", { id: job }],
    ["set_job_active", { id: job, active: "false" }],
    ["save_calendar", { "form[name]": "Never", "form[dates]": "2030-01-01" }],
    ["check_calendar", { "form[name]": "Never", "form[dates]": "2030-01-01" }],
    ["delete_calendar", { id: calendar }],
    ["cancel_occurrence", { id: run }],
    ["retry_failure", { id: failed }],
    ["retry_failures", { "ids[]": failed }],
    ["resolve_failures", { all: "true", seen: "1000" }],
    ["resolve_dead_letters", { "ids[]": UNKNOWN_ID }],
    ["restore_version", { id: job, version: "1", expected: "1" }],
    ["pause_cluster", { reason: "because I can" }],
    ["resume_cluster", {}],
    ["run_sample_job", { idempotency_key: "forged" }],
    ["delete_job", { id: job }],
    ["invite_user", invites],
    ["renew_invite", { id: UNKNOWN_ID }],
    ["revoke_invite", { id: UNKNOWN_ID }],
    ["change_role", { id: admin.id, role: "viewer", confirm_self: "true" }],
    ["set_user_active", { id: admin.id, active: "false" }],
    ["remove_user", { id: admin.id }],
    ["create_reset_link", { id: admin.id }],
    ["revoke_reset_link", { id: admin.id }],
    ["unlock_user", { id: admin.id }],
    ["end_user_sessions", { id: admin.id }],
  ];
  for (const [name, fields] of forgeries) {
    const fromPage = await page.evaluate(post, { name, fields, accept: "application/json" });
    expect(fromPage, `${name} from the page`).toBe(403);
    const plain = await page.evaluate(post, { name, fields, accept: "text/html" });
    expect(plain, `${name} as a plain form`).toBe(REDIRECTED);
    const raw = await callServerFunction(stack.url, viewer.session, name, fields);
    expect(raw.status, `${name} with the cookie alone: ${raw.text}`).toBe(403);
  }
  // A page that is left while its modules load reports their abortion, so each is hydrated before the next.
  await page.reload();
  await waitForHydration(page);
  await expect(page.locator(".page-notices")).toContainText("You are a Viewer; ask an Admin.");
  for (const path of ["/team", `/team/${admin.id}`, "/audit"]) {
    expect((await page.goto(path))?.status(), path).toBe(403);
    await waitForHydration(page);
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Not allowed");
  }
  expect(await readState(stack.url, firstAdmin)).toEqual(before);
});

test("concurrent users each get their own page", async ({ stack, firstAdmin }) => {
  const run = await runJob(stack.url, firstAdmin, job);
  const paths = ["/", "/jobs", `/jobs/${job}`, `/occurrences/${run}`, "/workers"];
  const readers = [
    { user: firstAdmin, may: true, context: await apiClient(stack.url, firstAdmin.session) },
    { user: viewer, may: false, context: await apiClient(stack.url, viewer.session) },
  ];
  for (let round = 0; round < 8; round += 1) {
    await Promise.all(
      readers.flatMap(({ user, may, context }) =>
        paths.map(async (path) => {
          const response = await context.get(path);
          const html = await response.text();
          expect(response.status(), path).toBe(200);
          expect(html, path).toContain(user.email);
          expect(html.includes('href="/team"'), `${path} as ${user.name}`).toBe(may);
          expect(html.includes("/api/trigger_job"), `${path} as ${user.name}`).toBe(may && path.startsWith("/jobs"));
          if (path === `/jobs/${job}`) {
            expect(html.includes("Pause job"), `${path} as ${user.name}`).toBe(may);
          }
        }),
      ),
    );
  }
  await Promise.all(readers.map(({ context }) => context.dispose()));
});

test("an Operator defines and runs jobs but cannot administer", async ({ context, page, stack, watch }) => {
  watch.expect(/status of 403/);
  await signIn(context, stack.url, operator);
  const id = await makeJob(stack.url, operator, { name: "Oscar's job", input: shell("echo hello") });
  await open(page, `/jobs/${id}`);
  await page.getByRole("button", { name: "Run now: Oscar's job" }).click();
  await expect(page.locator('#occurrences tr[data-status="completed"]')).toHaveCount(1);
  await expect(page.getByRole("button", { name: "Delete…" })).toHaveCount(0);
  expect((await callServerFunction(stack.url, operator.session, "delete_job", { id })).status).toBe(403);
  expect((await callServerFunction(stack.url, operator.session, "invite_user", { name: "Mallory", role: "admin" })).status).toBe(403);

  const { id: self } = await whoami(stack.url, operator);
  const forgeries: [string, Record<string, string>][] = [
    ["renew_invite", { id: UNKNOWN_ID }],
    ["revoke_invite", { id: UNKNOWN_ID }],
    ["change_role", { id: self, role: "admin", confirm_self: "true" }],
    ["set_user_active", { id: self, active: "true" }],
    ["remove_user", { id: UNKNOWN_ID }],
    ["create_reset_link", { id: self }],
    ["revoke_reset_link", { id: self }],
    ["unlock_user", { id: self }],
    ["end_user_sessions", { id: self }],
  ];
  for (const [name, fields] of forgeries) {
    expect((await callServerFunction(stack.url, operator.session, name, fields)).status, name).toBe(403);
  }

  const audit = await page.goto("/audit");
  expect(audit?.status()).toBe(403);
  // A page that is left while its modules load reports their abortion.
  await waitForHydration(page);
  const team = await page.goto("/team");
  expect(team?.status()).toBe(403);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Not allowed");
  await expect(page.getByRole("main")).toContainText("Only an Admin may view the team.");
  await waitForHydration(page);
  await expect(page.getByRole("link", { name: "Team" })).toHaveCount(0);
});

test("a request without our origin is refused", async ({ stack, firstAdmin }) => {
  const fields = { id: job };
  for (const headers of [
    { origin: "http://evil.example" },
    { origin: "null" },
    { origin: `${stack.url}.evil.example` },
    { origin: "" },
    { "sec-fetch-site": "cross-site" },
    { "sec-fetch-site": "same-site" },
  ]) {
    const answer = await callServerFunction(stack.url, firstAdmin.session, "delete_job", fields, headers as unknown as Record<string, string>);
    expect(answer.status, JSON.stringify(headers)).toBe(403);
  }
  // Without an Origin header, as a script sends it.
  const bare = await fetch(`${stack.url}/api/delete_job`, {
    method: "POST",
    headers: { cookie: `milvaion_session=${firstAdmin.session}`, "content-type": "application/x-www-form-urlencoded" },
    body: new URLSearchParams(fields).toString(),
  });
  expect(bare.status).toBe(403);
  const reader = await apiClient(stack.url, firstAdmin.session);
  expect((await reader.get(`/jobs/${job}`)).status()).toBe(200);
  await reader.dispose();
});

test("every page and API call requires a session", async ({ stack }) => {
  const context = await apiClient(stack.url);
  for (const path of ["/", "/jobs", `/jobs/${job}`, "/occurrences", "/workers", "/team", "/audit", "/account"]) {
    // A browser is redirected to the sign-in page; a script gets status 401.
    expect((await context.get(path, { maxRedirects: 0 })).status(), path).toBe(401);
    const response = await context.get(path, { maxRedirects: 0, headers: { accept: "text/html" } });
    expect(response.status(), path).toBe(302);
    expect(response.headers().location, path).toMatch(/^\/login/);
  }
  expect((await context.get("/events")).status()).toBe(401);
  expect((await context.get(`/api/job?id=${job}`)).status()).toBe(401);
  await context.dispose();
  expect((await callServerFunction(stack.url, undefined, "trigger_job", { id: job })).status).toBe(401);
});

test("an invitation grants its role", async ({ stack, firstAdmin }) => {
  const admin = await inviteUser(stack.url, firstAdmin, "Anna Admin", "admin");
  const context = await apiClient(stack.url, admin.session);
  expect((await context.get("/team")).status()).toBe(200);
  await context.dispose();
});

/** The id of no object. */
const UNKNOWN_ID = "00000000-0000-7000-8000-000000000000";

/** The status that a script sees of a redirect. A refused plain form is redirected to its page, which states the reason. */
const REDIRECTED = 0;

/** Posts to a server function from inside the page, with the headers that the browser adds. */
async function post({ name, fields, accept }: { name: string; fields: Record<string, string>; accept: string }): Promise<number> {
  const response = await fetch(`/api/${name}`, {
    method: "POST",
    headers: { accept },
    body: new URLSearchParams(fields),
    redirect: "manual",
  });
  return response.status;
}

/** Returns the state that the requests could have changed, as an Admin reads it. */
async function readState(url: string, user: TestUser): Promise<unknown> {
  const context = await apiClient(url, user.session);
  const read = async (name: string) => (await context.get(`/api/${name}`)).json() as Promise<unknown>;
  const all = {
    job: await read(`job?id=${job}`),
    jobs: await read("jobs?filter[limit]=50"),
    occurrences: await read("occurrences"),
    failures: await read("failures"),
    versions: await read(`job_history?id=${job}`),
    cluster: ((await read("cluster_status")) as { pause: unknown }).pause,
    // Without the times, which change by reading.
    team: ((await read("team")) as { rows: TeamRow[] }).rows.map(({ id, name, role, state }) => ({ id, name, role, state })),
  };
  await context.dispose();
  return all;
}
