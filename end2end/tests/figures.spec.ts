// Figures, for people to read. They are printed, and only what would be absurd is refused: how fast a machine is today is
// no property of the program.

import { get } from "node:http";
import { brotliDecompressSync } from "node:zlib";

import { makeJob, pauseJob, shell } from "../fixtures/jobs";
import { expect, live, open, test } from "../fixtures/test";

test.use({ scene: "figures" });

/** How many status changes are looked at. */
const CHANGES = 300;

test("from a status change to its paint", async ({ admin: page, stack, person }) => {
  const jobs: string[] = [];
  for (let n = 0; n < 8; n += 1) {
    jobs.push(await makeJob(stack.url, person, { name: `Tick ${n}`, input: shell("sleep 0.1"), cron: "* * * * * *" }));
  }
  await open(page, "/occurrences");
  await live(page);
  const lags = await page.evaluate(async (wanted) => {
    const list = document.querySelector("#occurrences") as HTMLElement;
    const lags: number[] = [];
    const shown = new Map<string, string>();
    const clock = () => performance.timeOrigin + performance.now();
    const look = (isCounted: boolean) => {
      for (const row of list.querySelectorAll<HTMLElement>("tr[data-event-at]")) {
        const { id = "", status = "", eventAt = "" } = row.dataset;
        const state = `${status} ${eventAt}`;
        if (shown.get(id) !== state) {
          shown.set(id, state);
          if (isCounted) {
            // The frame in which the change can be seen.
            requestAnimationFrame(() => lags.push(clock() - Date.parse(eventAt)));
          }
        }
      }
    };
    look(false);
    const observer = new MutationObserver(() => look(true));
    observer.observe(list, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-status", "data-event-at"] });
    await new Promise<void>((done) => {
      const wait = () => (lags.length >= wanted ? done() : requestAnimationFrame(wait));
      wait();
    });
    observer.disconnect();
    return lags;
  }, CHANGES);
  for (const job of jobs) {
    await pauseJob(stack.url, person, job);
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

test("what a first visit loads", async ({ stack }) => {
  let raw = 0;
  let sent = 0;
  for (const name of ["app.wasm", "app.js"]) {
    const answer = await fetched(`${stack.url}/pkg/${name}`);
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

/** A file as a browser asks for it, with the body as it came. */
function fetched(url: string) {
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
