// Who may do what. Buttons that are not there are courtesy; here the server itself is asked for what it must refuse.

import { form, makeCalendar, makeJob, reached, runJob, shell } from "../fixtures/jobs";
import { call, client, invited, join, type Person, signIn } from "../fixtures/people";
import { expect, open, ready, shot, test } from "../fixtures/test";

test.use({ scene: "roles" });
test.describe.configure({ mode: "serial" });

let job = "";
let calendar = "";
let failed = "";
let viewer: Person;
let operator: Person;

test.beforeAll(async ({ stack, person }) => {
  job = await makeJob(stack.url, person, { name: "Nightly report", input: shell("echo good night") });
  calendar = await makeCalendar(stack.url, person, { name: "Holidays", dates: "2030-12-24 to 2030-12-26" });
  const broken = await makeJob(stack.url, person, { name: "Broken", input: shell("exit 7") });
  failed = await runJob(stack.url, person, broken);
  await reached(stack.url, person, failed, "failed");
});

test("an Admin adds people by one-time links", async ({ admin, browser, stack, watch }) => {
  await open(admin, "/team");
  const links: string[] = [];
  for (const [name, role] of [["Vera Viewer", "Viewer"], ["Oscar Operator", "Operator"]] as const) {
    await admin.getByLabel("Name", { exact: true }).fill(name);
    await admin.getByRole("radio", { name: new RegExp(`^${role}`) }).check();
    await admin.getByRole("button", { name: "Make a link" }).click();
    await expect(admin.getByRole("row").filter({ hasText: name })).toContainText(role);
    await expect(admin.getByLabel("Name", { exact: true })).toHaveValue("");
    const link = await admin.getByLabel("One-time link", { exact: true }).inputValue();
    expect(links).not.toContain(link);
    links.push(link);
  }
  await shot(admin, "team-invited");

  const context = await browser.newContext({ baseURL: stack.url });
  watch.follow(context);
  const page = await context.newPage();
  await page.goto(links[0] ?? "");
  await ready(page);
  await expect(page.getByText("You were invited as Viewer.")).toBeVisible();
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("Vera Viewer");
  await shot(page, "invite");
  await page.getByLabel("E-mail").fill("vera@example.org");
  await page.getByLabel("Passphrase", { exact: true }).fill("eleven quiet harbours");
  await page.getByRole("button", { name: "Create my account" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
  const session = (await context.cookies()).find((cookie) => cookie.name === "milvaion_session")?.value ?? "";
  viewer = { name: "Vera Viewer", email: "vera@example.org", passphrase: "eleven quiet harbours", session };
  await context.close();

  operator = await join(stack.url, links[1] ?? "", "Oscar Operator");
  await open(admin, "/team");
  const people = admin.getByRole("table", { name: "People who can sign in" });
  await expect(people.getByRole("row").filter({ hasText: "Vera Viewer" })).toContainText("Viewer");
  await expect(people.getByRole("row").filter({ hasText: "Oscar Operator" })).toContainText("Operator");
  await expect(admin.getByText("Nobody is invited at the moment.")).toBeVisible();

  // Used up: the page says so, and so does the server to whoever posts the form all the same.
  const again = await client(stack.url);
  const shown = await again.get(links[0] ?? "");
  expect(shown.status()).toBe(404);
  expect(await shown.text()).toContain("This link no longer works");
  await again.dispose();
  const token = new URL(links[0] ?? "").searchParams.get("token") ?? "";
  const forged = { token, page: "invite", name: "Mallory", email: "m@example.org", passphrase: "nine hundred small keys" };
  expect((await call(stack.url, undefined, "accept_invite", forged)).status).toBe(404);
});

test("an invitation is taken back, after a question", async ({ admin, stack }) => {
  await open(admin, "/team");
  await admin.getByLabel("Name", { exact: true }).fill("Never Mind");
  await admin.getByRole("button", { name: "Make a link" }).click();
  const link = await admin.getByLabel("One-time link", { exact: true }).inputValue();
  await admin.getByRole("button", { name: "Take back the invitation of Never Mind" }).click();
  await admin.getByRole("dialog").getByRole("button", { name: "Take back" }).click();
  await expect(admin.locator(".toast")).toContainText("taken back");
  await expect(admin.getByText("Nobody is invited at the moment.")).toBeVisible();
  const token = new URL(link).searchParams.get("token") ?? "";
  const late = { token, page: "invite", name: "Never Mind", email: "n@example.org", passphrase: "seven patient lanterns" };
  expect((await call(stack.url, undefined, "accept_invite", late)).status).toBe(404);
});

test("a Viewer sees everything and finds no button that changes anything", async ({ context, page, person, stack }) => {
  const run = await runJob(stack.url, person, job);
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
  }
  await open(page, `/occurrences/${run}`);
  await expect(page.locator(".log-lines")).toContainText("good night");
});

test("a Viewer's forged requests are refused and change nothing", async ({ context, page, stack, person, watch }) => {
  watch.expect(/status of 403/);
  await signIn(context, stack.url, viewer);
  const run = await runJob(stack.url, person, job);
  await reached(stack.url, person, run, "completed");
  await open(page, `/jobs/${job}`);
  const before = await everything(stack.url, person);
  const invites = { name: "Mallory", role: "admin" };
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
    ["resolve_dead_letters", { "ids[]": "00000000-0000-7000-8000-000000000000" }],
    ["restore_version", { id: job, version: "1", expected: "1" }],
    ["pause_cluster", { reason: "because I can" }],
    ["resume_cluster", {}],
    ["delete_job", { id: job }],
    ["invite_user", invites],
    ["revoke_invite", { id: "00000000-0000-7000-8000-000000000000" }],
  ];
  for (const [name, fields] of forgeries) {
    const fromPage = await page.evaluate(post, { name, fields, accept: "application/json" });
    expect(fromPage, `${name} from the page`).toBe(403);
    const plain = await page.evaluate(post, { name, fields, accept: "text/html" });
    expect(plain, `${name} as a plain form`).toBe(403);
    const raw = await call(stack.url, viewer.session, name, fields);
    expect(raw.status, `${name} with the cookie alone: ${raw.text}`).toBe(403);
  }
  await page.goto("/team");
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Not allowed");
  expect(await everything(stack.url, person)).toEqual(before);
});

test("people who read at the same time each get their own page", async ({ stack, person }) => {
  const run = await runJob(stack.url, person, job);
  const paths = ["/", "/jobs", `/jobs/${job}`, `/occurrences/${run}`, "/workers"];
  const readers = [
    { person, may: true, context: await client(stack.url, person.session) },
    { person: viewer, may: false, context: await client(stack.url, viewer.session) },
  ];
  for (let round = 0; round < 8; round += 1) {
    await Promise.all(
      readers.flatMap(({ person: reader, may, context }) =>
        paths.map(async (path) => {
          const response = await context.get(path);
          const html = await response.text();
          expect(response.status(), path).toBe(200);
          expect(html, path).toContain(reader.email);
          expect(html.includes('href="/team"'), `${path} as ${reader.name}`).toBe(may);
          expect(html.includes("/api/trigger_job"), `${path} as ${reader.name}`).toBe(may && path.startsWith("/jobs"));
          if (path === `/jobs/${job}`) {
            expect(html.includes("Pause job"), `${path} as ${reader.name}`).toBe(may);
          }
        }),
      ),
    );
  }
  await Promise.all(readers.map(({ context }) => context.dispose()));
});

test("an Operator defines and runs jobs, and the rest is refused", async ({ context, page, stack, watch }) => {
  watch.expect(/status of 403/);
  await signIn(context, stack.url, operator);
  const id = await makeJob(stack.url, operator, { name: "Oscar's job", input: shell("echo hello") });
  await open(page, `/jobs/${id}`);
  await page.getByRole("button", { name: "Run now: Oscar's job" }).click();
  await expect(page.locator('#occurrences tr[data-status="completed"]')).toHaveCount(1);
  await expect(page.getByRole("button", { name: "Delete…" })).toHaveCount(0);
  expect((await call(stack.url, operator.session, "delete_job", { id })).status).toBe(403);
  expect((await call(stack.url, operator.session, "invite_user", { name: "Mallory", role: "admin" })).status).toBe(403);

  const team = await page.goto("/team");
  expect(team?.status()).toBe(403);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Not allowed");
  await expect(page.getByRole("main")).toContainText("Only an Admin may see the team.");
  await ready(page);
  await expect(page.getByRole("link", { name: "Team" })).toHaveCount(0);
});

test("a request from elsewhere, or from nowhere, is refused even with an Admin's session", async ({ stack, person }) => {
  const fields = { id: job };
  for (const headers of [
    { origin: "http://evil.example" },
    { origin: "null" },
    { origin: `${stack.url}.evil.example` },
    { origin: "" },
    { "sec-fetch-site": "cross-site" },
    { "sec-fetch-site": "same-site" },
  ]) {
    const answer = await call(stack.url, person.session, "delete_job", fields, headers as unknown as Record<string, string>);
    expect(answer.status, JSON.stringify(headers)).toBe(403);
  }
  // Without any Origin at all, as a script sends it.
  const bare = await fetch(`${stack.url}/api/delete_job`, {
    method: "POST",
    headers: { cookie: `milvaion_session=${person.session}`, "content-type": "application/x-www-form-urlencoded" },
    body: new URLSearchParams(fields).toString(),
  });
  expect(bare.status).toBe(403);
  const still = await client(stack.url, person.session);
  expect((await still.get(`/jobs/${job}`)).status()).toBe(200);
  await still.dispose();
});

test("without a session nothing is to be had", async ({ stack }) => {
  const context = await client(stack.url);
  for (const path of ["/", "/jobs", `/jobs/${job}`, "/occurrences", "/workers", "/team"]) {
    // A browser is led to the sign-in page; a script, which could not use it, is told what is missing.
    expect((await context.get(path, { maxRedirects: 0 })).status(), path).toBe(401);
    const response = await context.get(path, { maxRedirects: 0, headers: { accept: "text/html" } });
    expect(response.status(), path).toBe(302);
    expect(response.headers().location, path).toMatch(/^\/login/);
  }
  expect((await context.get("/events")).status()).toBe(401);
  expect((await context.get(`/api/job?id=${job}`)).status()).toBe(401);
  await context.dispose();
  expect((await call(stack.url, undefined, "trigger_job", { id: job })).status).toBe(401);
});

test("a link for one role gives that role and no other", async ({ stack, person }) => {
  const admin = await invited(stack.url, person, "Anna Admin", "admin");
  const context = await client(stack.url, admin.session);
  expect((await context.get("/team")).status()).toBe(200);
  await context.dispose();
});

/** Posts to a server function from inside the page, with everything a browser adds by itself. */
async function post({ name, fields, accept }: { name: string; fields: Record<string, string>; accept: string }): Promise<number> {
  const response = await fetch(`/api/${name}`, {
    method: "POST",
    headers: { accept },
    body: new URLSearchParams(fields),
    redirect: "manual",
  });
  return response.status;
}

/** What there is, as an Admin reads it. */
async function everything(url: string, person: Person): Promise<unknown> {
  const context = await client(url, person.session);
  const read = async (name: string) => (await context.get(`/api/${name}`)).json() as Promise<unknown>;
  const all = {
    job: await read(`job?id=${job}`),
    jobs: await read("jobs?filter[limit]=50"),
    occurrences: await read("occurrences"),
    failures: await read("failures"),
    versions: await read(`job_history?id=${job}`),
    cluster: await read("cluster"),
    team: (await read("team")) as { users: unknown[]; invites: unknown[] },
  };
  await context.dispose();
  return all;
}
