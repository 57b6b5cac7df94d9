// What every answer tells the browser to refuse, and how the session is kept.

import { get } from "node:http";

import { makeJob, runJob, shell } from "../fixtures/jobs";
import { call, client, COOKIE, type Person, sessionIn } from "../fixtures/people";
import { expect, open, test } from "../fixtures/test";

test.use({ scene: "headers" });

/** Sent with everything, whatever it is. */
const ALWAYS: Record<string, string | RegExp> = {
  "x-content-type-options": "nosniff",
  "x-frame-options": "DENY",
  "referrer-policy": "same-origin",
  "cross-origin-opener-policy": "same-origin",
  "cross-origin-resource-policy": "same-origin",
  "permissions-policy": /camera=\(\)/,
  "content-security-policy": /default-src 'self'.*frame-ancestors 'none'/,
};

function expectProtected(headers: Record<string, string | string[] | undefined>, of: string): void {
  for (const [name, value] of Object.entries(ALWAYS)) {
    expect(headers[name], `${name} of ${of}`).toMatch(value);
  }
}

function nonceOf(policy: string | undefined): string {
  return /script-src 'nonce-([^']+)'/.exec(policy ?? "")?.[1] ?? "";
}

test("a page runs only scripts that carry its own nonce, and no two pages share one", async ({ stack, person }) => {
  const context = await client(stack.url, person.session);
  const nonces = new Set<string>();
  for (const path of ["/", "/", "/jobs", "/login", "/setup?token=x"]) {
    const response = await context.get(path, { maxRedirects: 0 });
    const policy = response.headers()["content-security-policy"];
    expectProtected(response.headers(), path);
    const nonce = nonceOf(policy);
    expect(nonce.length, path).toBeGreaterThanOrEqual(16);
    nonces.add(nonce);
    const [scripts] = /script-src[^;]*/.exec(policy ?? "") ?? [""];
    expect(scripts).not.toContain("unsafe-inline");
    expect(scripts.replace("'wasm-unsafe-eval'", "")).not.toContain("unsafe-eval");
    expect(policy).toContain("object-src 'none'");
    expect(policy).toContain("base-uri 'none'");

    const html = await response.text();
    for (const [tag] of html.matchAll(/<script\b[^>]*>/g)) {
      expect(tag, path).toContain(`nonce="${nonce}"`);
    }
    expect(html, path).not.toMatch(/\son[a-z]+=/i);
    expect(html, path).not.toMatch(/\sstyle=/i);
    expect(response.headers()["cache-control"], path).toBe("no-store");
  }
  expect(nonces.size).toBe(5);
  await context.dispose();
});

test("files, missing pages, refusals and the stream are protected alike", async ({ stack, person }) => {
  const context = await client(stack.url, person.session);
  for (const [path, status] of [
    ["/pkg/app.css", 200],
    ["/pkg/app.js", 200],
    ["/pkg/icons.svg", 200],
    ["/favicon.svg", 200],
    ["/robots.txt", 200],
    ["/nothing/here", 404],
    ["/pkg/nothing.js", 404],
    ["/jobs/00000000-0000-7000-8000-000000000000", 404],
    ["/api/job?id=00000000-0000-7000-8000-000000000000", 404],
    ["/api/nothing", 400],
    ["/health/live", 200],
    ["/health/ready", 200],
  ] as const) {
    const response = await context.get(path);
    expect(response.status(), path).toBe(status);
    expectProtected(response.headers(), path);
  }
  await context.dispose();

  const refused = await call(stack.url, person.session, "sign_out", {}, { origin: "http://evil.example" });
  expect(refused.status).toBe(403);
  expectProtected(refused.response.headers(), "a refusal");

  const stream = await firstFrame(`${stack.url}/events`, person.session);
  expect(stream.headers["content-type"]).toMatch(/^text\/event-stream/);
  expect(stream.headers["x-accel-buffering"]).toBe("no");
  expectProtected(stream.headers, "the stream");
  expect(stream.text).toContain("event: ping");
});

test("what is asked for at once is answered each for itself", async ({ stack, person }) => {
  const context = await client(stack.url, person.session);
  const asked = ["/", "/favicon.svg", "/jobs/00000000-0000-7000-8000-000000000000", "/pkg/app.css", "/jobs", "/robots.txt"] as const;
  const nonces = new Set<string>();
  for (let round = 0; round < 10; round += 1) {
    const answers = await Promise.all([...asked, ...asked, ...asked].map((path) => context.get(path)));
    for (const answer of answers) {
      const path = new URL(answer.url()).pathname;
      const nonce = nonceOf(answer.headers()["content-security-policy"]);
      expect(answer.status(), path).toBe(path.startsWith("/jobs/") ? 404 : 200);
      const isPage = answer.headers()["content-type"]?.startsWith("text/html");
      expect(isPage, path).toBe(!/\.[a-z]+$/.test(path));
      if (isPage) {
        expect(await answer.text(), path).toContain(`nonce="${nonce}"`);
        expect(nonces.has(nonce), path).toBe(false);
        nonces.add(nonce);
      } else {
        expect(nonce, path).toBe("");
      }
    }
  }
  await context.dispose();
});

test("the session cookie is out of reach for scripts and other sites, and new after each sign-in", async ({ stack, person }) => {
  // A session from before signing in: a refused form leaves one.
  const refused = await call(stack.url, undefined, "sign_in", { email: person.email, passphrase: "not this one" }, {
    accept: "text/html",
  });
  const planted = sessionIn(refused.response);
  const first = await signedIn(stack.url, person, planted);
  const second = await signedIn(stack.url, person, first);
  expect(new Set([planted, first, second, person.session]).size).toBe(4);

  // The one before is worth nothing; the new one is signed in, until it is ended.
  expect(await status(stack.url, "/jobs", planted)).toBe(302);
  expect(await status(stack.url, "/jobs", first)).toBe(302);
  expect(await status(stack.url, "/jobs", second)).toBe(200);
  expect((await call(stack.url, second, "sign_out", {})).status).toBe(200);
  expect(await status(stack.url, "/jobs", second)).toBe(302);
});

test("what people write is text wherever it is shown", async ({ admin: page, stack, person, context }) => {
  const nasty = `"><img src=x onerror=alert(1)><script>alert(2)</script>\u202e{{7*7}}`;
  let alerts = 0;
  page.on("dialog", (dialog) => {
    alerts += 1;
    void dialog.dismiss();
  });
  const id = await makeJob(stack.url, person, {
    name: `Job ${nasty}`,
    tags: `<b>tag</b>`,
    input: shell(`printf '%s\\n' '<script>alert(3)</script>' '\\033[31mred\\033[0m'; echo '${nasty}' >&2; exit 1`),
  });
  const run = await runJob(stack.url, person, id);
  await open(page, `/occurrences/${run}`);
  await expect(page.locator("#occurrence-status")).toHaveAttribute("data-status", "failed");
  await expect(page.locator(".log-lines")).toContainText("<script>alert(3)</script>");
  for (const path of [`/occurrences/${run}`, `/jobs/${id}`, `/jobs/${id}/edit`, "/jobs", "/occurrences", "/", `/jobs?q=${encodeURIComponent(nasty)}`]) {
    await open(page, path);
    await expect(page.locator("main img, main script")).toHaveCount(0);
  }
  expect(alerts).toBe(0);
  await context.clearCookies();
});

/** Signs in with a session that exists already and answers the one that follows. */
async function signedIn(url: string, person: Person, session: string): Promise<string> {
  const answer = await call(url, session, "sign_in", { email: person.email, passphrase: person.passphrase });
  expect(answer.status, answer.text).toBe(200);
  const cookie = answer.response.headersArray().find((header) => header.value.startsWith(`${COOKIE}=`))?.value ?? "";
  expect(cookie).toMatch(/; *HttpOnly/i);
  expect(cookie).toMatch(/; *SameSite=(Lax|Strict)/i);
  expect(cookie).toMatch(/; *Path=\//i);
  expect(cookie).not.toMatch(/; *Domain=/i);
  return sessionIn(answer.response);
}

async function status(url: string, path: string, session: string): Promise<number> {
  const context = await client(url, session, { accept: "text/html" });
  const response = await context.get(path, { maxRedirects: 0 });
  await context.dispose();
  return response.status();
}

/** The head and the first frame of a stream that has no end. */
function firstFrame(url: string, session: string) {
  return new Promise<{ headers: Record<string, string | string[] | undefined>; text: string }>((done, fail) => {
    const request = get(url, { headers: { cookie: `${COOKIE}=${session}` } }, (response) => {
      response.setEncoding("utf8").once("data", (text: string) => {
        done({ headers: response.headers, text });
        request.destroy();
      });
    });
    request.once("error", fail);
  });
}
