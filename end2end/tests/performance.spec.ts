// Performance measurements. The results are printed, and only implausible values fail the test, because the speed of the
// machine is not a property of the program.

import { get } from "node:http";
import { brotliDecompressSync } from "node:zlib";

import { makeJob, pauseJob, shell } from "../fixtures/jobs";
import { expect, open, test, waitForLive } from "../fixtures/test";

test.use({ stackName: "performance" });

/** The number of status changes to measure. */
const CHANGES = 300;

test("the delay from a status change to its paint is plausible", async ({ admin: page, stack, firstAdmin }) => {
  const jobs: string[] = [];
  for (let n = 0; n < 8; n += 1) {
    jobs.push(await makeJob(stack.url, firstAdmin, { name: `Tick ${n}`, input: shell("sleep 0.1"), cron: "* * * * * *" }));
  }
  await open(page, "/occurrences");
  await waitForLive(page);
  const lags = await page.evaluate(async (wanted) => {
    const list = document.querySelector("#occurrences") as HTMLElement;
    const lags: number[] = [];
    const shown = new Map<string, string>();
    const clock = () => performance.timeOrigin + performance.now();
    const record = (isCounted: boolean) => {
      for (const row of list.querySelectorAll<HTMLElement>("tr[data-event-at]")) {
        const { id = "", status = "", eventAt = "" } = row.dataset;
        const state = `${status} ${eventAt}`;
        if (shown.get(id) !== state) {
          shown.set(id, state);
          if (isCounted) {
            // The frame that paints the change.
            requestAnimationFrame(() => lags.push(clock() - Date.parse(eventAt)));
          }
        }
      }
    };
    record(false);
    const observer = new MutationObserver(() => record(true));
    observer.observe(list, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-status", "data-event-at"] });
    await new Promise<void>((done) => {
      const wait = () => (lags.length >= wanted ? done() : requestAnimationFrame(wait));
      wait();
    });
    observer.disconnect();
    return lags;
  }, CHANGES);
  for (const job of jobs) {
    await pauseJob(stack.url, firstAdmin, job);
  }
  const sorted = lags.toSorted((a, b) => a - b);
  const at = (share: number) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
  console.log(
    `figure: status change to paint over ${sorted.length} changes: p50 ${at(0.5).toFixed(0)} ms, p99 ${at(0.99).toFixed(0)} ms`,
  );
  expect(sorted.length).toBeGreaterThanOrEqual(100);
  expect(at(0.5)).toBeGreaterThan(0);
  expect(at(0.5)).toBeLessThan(2_000);
  expect(at(0.99)).toBeLessThan(10_000);
});

test("WebAssembly and script are compressed", async ({ stack }) => {
  let raw = 0;
  let sent = 0;
  for (const name of ["app.wasm", "app.js"]) {
    const answer = await fetchEncoded(`${stack.url}/pkg/${name}`);
    const plain = answer.encoding === "br" ? brotliDecompressSync(answer.body) : answer.body;
    const encoding = answer.encoding ?? "not compressed";
    console.log(`figure: ${name}: ${kilobytes(plain.length)} raw, ${kilobytes(answer.body.length)} sent (${encoding})`);
    raw += plain.length;
    sent += answer.body.length;
    expect(answer.type).toMatch(name === "app.wasm" ? /^application\/wasm/ : /javascript/);
  }
  console.log(`figure: wasm and script: ${kilobytes(raw)} raw, ${kilobytes(sent)} sent`);
  expect(sent).toBeGreaterThan(10_000);
});

function kilobytes(bytes: number): string {
  return `${(bytes / 1_000).toFixed(0)} kB`;
}

/** Requests a file with a browser's `accept-encoding` and returns the body without decoding it. */
function fetchEncoded(url: string) {
  return new Promise<{ encoding: string | undefined; type: string | undefined; body: Buffer }>((done, fail) => {
    get(url, { headers: { "accept-encoding": "gzip, br" } }, (response) => {
      const parts: Buffer[] = [];
      response.on("data", (part: Buffer) => parts.push(part));
      response.on("end", () => {
        const { "content-encoding": encoding, "content-type": type } = response.headers;
        done({ encoding, type, body: Buffer.concat(parts) });
      });
      response.once("error", fail);
    }).once("error", fail);
  });
}
