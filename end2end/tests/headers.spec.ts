// Security headers, the session cookie and the escaping of user input.

import { get } from "node:http";

import { makeJob, runJob, shell } from "../fixtures/jobs";
import { buildFolder, expect, open, test } from "../fixtures/test";
import { apiClient, callServerFunction, COOKIE, sessionIn, type TestUser } from "../fixtures/users";

test.use({ stackName: "headers" });

/** Headers of every response. */
const COMMON_HEADERS: Record<string, string | RegExp> = {
  "x-content-type-options": "nosniff",
  "x-frame-options": "DENY",
  "referrer-policy": "same-origin",
  "cross-origin-opener-policy": "same-origin",
  "cross-origin-resource-policy": "same-origin",
  "permissions-policy": /camera=\(\)/,
  "content-security-policy": /default-src 'self'.*frame-ancestors 'none'/,
};

function expectProtected(headers: Record<string, string | string[] | undefined>, of: string): void {
  for (const [name, value] of Object.entries(COMMON_HEADERS)) {
    expect(headers[name], `${name} of ${of}`).toMatch(value);
  }
}

function nonceOf(policy: string | undefined): string {
  return /script-src 'nonce-([^']+)'/.exec(policy ?? "")?.[1] ?? "";
}

test("each page runs only scripts with its own nonce", async ({ stack, firstAdmin }) => {
  const context = await apiClient(stack.url, firstAdmin.session);
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

test("files, errors and the event stream carry the security headers", async ({ stack, firstAdmin }) => {
  const context = await apiClient(stack.url, firstAdmin.session);
  const pkg = await buildFolder(stack.url);
  for (const [path, status] of [
    [`${pkg}/app.css`, 200],
    [`${pkg}/app.js`, 200],
    ["/favicon.svg", 200],
    ["/robots.txt", 200],
    ["/nothing/here", 404],
    ["/pkg/nothing.js", 404],
    [`${pkg}/nothing.js`, 404],
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

  const refused = await callServerFunction(stack.url, firstAdmin.session, "sign_out", {}, { origin: "http://evil.example" });
  expect(refused.status).toBe(403);
  expectProtected(refused.response.headers(), "a refused request");

  const stream = await firstChunk(`${stack.url}/events`, firstAdmin.session);
  expect(stream.headers["content-type"]).toMatch(/^text\/event-stream/);
  expect(stream.headers["x-accel-buffering"]).toBe("no");
  expectProtected(stream.headers, "the stream");
  expect(stream.text).toContain("event: ping");
});

test("concurrent requests get separate statuses and nonces", async ({ stack, firstAdmin }) => {
  const context = await apiClient(stack.url, firstAdmin.session);
  const pkg = await buildFolder(stack.url);
  const paths = ["/", "/favicon.svg", "/jobs/00000000-0000-7000-8000-000000000000", `${pkg}/app.css`, "/jobs", "/robots.txt"] as const;
  const nonces = new Set<string>();
  for (let round = 0; round < 10; round += 1) {
    const answers = await Promise.all([...paths, ...paths, ...paths].map((path) => context.get(path)));
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

test("the session cookie is protected and renewed at each sign-in", async ({ stack, firstAdmin }) => {
  // A rejected form post creates a session before any sign-in.
  const refused = await callServerFunction(stack.url, undefined, "sign_in", { email: firstAdmin.email, passphrase: "not this one" }, {
    accept: "text/html",
  });
  const preset = sessionIn(refused.response);
  const first = await signInAgain(stack.url, firstAdmin, preset);
  const second = await signInAgain(stack.url, firstAdmin, first);
  expect(new Set([preset, first, second, firstAdmin.session]).size).toBe(4);

  // Earlier sessions are invalid; the newest is valid until it signs out.
  expect(await status(stack.url, "/jobs", preset)).toBe(302);
  expect(await status(stack.url, "/jobs", first)).toBe(302);
  expect(await status(stack.url, "/jobs", second)).toBe(200);
  expect((await callServerFunction(stack.url, second, "sign_out", {})).status).toBe(200);
  expect(await status(stack.url, "/jobs", second)).toBe(302);
});

test("user input is escaped on every page", async ({ admin: page, stack, firstAdmin, context }) => {
  const nasty = `"><img src=x onerror=alert(1)><script>alert(2)</script>\u202e{{7*7}}`;
  let alerts = 0;
  page.on("dialog", (dialog) => {
    alerts += 1;
    void dialog.dismiss();
  });
  const id = await makeJob(stack.url, firstAdmin, {
    name: `Job ${nasty}`,
    tags: `<b>tag</b>`,
    input: shell(`printf '%s\\n' '<script>alert(3)</script>' '\\033[31mred\\033[0m'; echo '${nasty}' >&2; exit 1`),
  });
  const run = await runJob(stack.url, firstAdmin, id);
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

/** Signs in with an existing session and returns the new session. */
async function signInAgain(url: string, user: TestUser, session: string): Promise<string> {
  const answer = await callServerFunction(url, session, "sign_in", { email: user.email, passphrase: user.passphrase });
  expect(answer.status, answer.text).toBe(200);
  const cookie = answer.response.headersArray().find((header) => header.value.startsWith(`${COOKIE}=`))?.value ?? "";
  expect(cookie).toMatch(/; *HttpOnly/i);
  expect(cookie).toMatch(/; *SameSite=(Lax|Strict)/i);
  expect(cookie).toMatch(/; *Path=\//i);
  expect(cookie).not.toMatch(/; *Domain=/i);
  return sessionIn(answer.response);
}

async function status(url: string, path: string, session: string): Promise<number> {
  const context = await apiClient(url, session, { accept: "text/html" });
  const response = await context.get(path, { maxRedirects: 0 });
  await context.dispose();
  return response.status();
}

/** Returns the headers and the first chunk of an endless stream. */
function firstChunk(url: string, session: string) {
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

test("files of a build are cached for a year", async ({ stack, firstAdmin }) => {
  const context = await apiClient(stack.url, firstAdmin.session);
  const pkg = await buildFolder(stack.url);
  const file = await context.get(`${pkg}/app.css`);
  expect(file.headers()["cache-control"]).toBe("public, max-age=31536000, immutable");
  const missing = await context.get(`${pkg}/nothing.js`);
  expect(missing.headers()["cache-control"]).toBe("no-store");
  await context.dispose();
});
