// The nonce of a page, which the renderer writes into its scripts and the server into its headers. The other headers and the
// session cookie are tested in `server/src/http/headers.rs` and `server/tests/it/users/web.rs`.

import { buildFolder, expect, test } from "../fixtures/test";
import { apiClient } from "../fixtures/users";

test.use({ stackName: "jobs" });

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

test("concurrent requests get separate statuses and nonces", { tag: "@all" }, async ({ stack, firstAdmin }) => {
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
