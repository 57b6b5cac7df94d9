// Performance measurements. The results are printed, and only implausible values fail the test, because the speed of the
// machine is not a property of the program. The layout shift is one: nothing may move, however slowly a page loads. The tests
// run after all others, and the compressed files are those of the release.

import { get } from "node:http";
import { brotliDecompressSync } from "node:zlib";

import { makeJob, pauseJob, runJob, shell } from "../fixtures/jobs";
import { buildFolder, expect, open, test, waitForLive } from "../fixtures/test";
import { callServerFunction } from "../fixtures/users";

test.use({ stackName: "performance" });

/** The number of status changes to measure. */
const CHANGES = 300;

test("the delay from a status change to its paint is plausible", { tag: "@all" }, async ({ admin: page, stack, firstAdmin }) => {
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
  expect(at(0.5)).toBeGreaterThan(0);
  expect(at(0.5)).toBeLessThan(2_000);
  expect(at(0.99)).toBeLessThan(10_000);
});

test("WebAssembly and script are compressed", { tag: "@all" }, async ({ stack }) => {
  const pkg = await buildFolder(stack.url);
  for (const name of ["app.wasm", "app.js"]) {
    const answer = await fetchEncoded(`${stack.url}${pkg}/${name}`);
    expect(answer.encoding).toBe("br");
    const plain = brotliDecompressSync(answer.body);
    console.log(`figure: ${name}: ${kilobytes(plain.length)} raw, ${kilobytes(answer.body.length)} sent`);
    expect(answer.body.length).toBeLessThan(plain.length / 2);
    expect(answer.type).toMatch(name === "app.wasm" ? /^application\/wasm/ : /javascript/);
  }
});

/** The pages whose load is measured, with the elements that the user waits for. */
const MEASURED_PAGES = ["/", "/occurrences", "an occurrence with a live log"] as const;

/** The network of the browser's "fast 4G" preset. */
const FAST_4G = { offline: false, latency: 165, downloadThroughput: 1_012_500, uploadThroughput: 168_750 };

test("the load of pages on a slow device is measured", { tag: "@all" }, async ({ admin: page, stack, firstAdmin }) => {
  test.setTimeout(180_000);
  const chatty = await makeJob(stack.url, firstAdmin, {
    name: "Chatty",
    input: shell("for n in $(seq 600); do echo line $n; sleep 0.1; done"),
  });
  const run = await runJob(stack.url, firstAdmin, chatty);
  await page.addInitScript(() => {
    const figures = { lcp: 0, cls: 0, inp: 0, ready: 0 };
    Object.assign(window, { figures });
    new MutationObserver(() => (figures.ready ||= performance.now())).observe(document, {
      subtree: true,
      attributeFilter: ["data-ready"],
    });
    const observe = (type: string, use: (entry: PerformanceEntry) => void, more = {}) =>
      new PerformanceObserver((list) => list.getEntries().forEach(use)).observe({ type, buffered: true, ...more });
    observe("largest-contentful-paint", (entry) => (figures.lcp = entry.startTime));
    observe("layout-shift", (entry) => {
      const shift = entry as PerformanceEntry & { value: number; hadRecentInput: boolean };
      figures.cls += shift.hadRecentInput ? 0 : shift.value;
    });
    observe("event", (entry) => (figures.inp = Math.max(figures.inp, entry.duration)), { durationThreshold: 16 });
  });
  const devtools = await page.context().newCDPSession(page);
  await devtools.send("Network.enable");
  await devtools.send("Network.emulateNetworkConditions", FAST_4G);
  await devtools.send("Emulation.setCPUThrottlingRate", { rate: 4 });
  for (const name of MEASURED_PAGES) {
    const path = name.startsWith("/") ? name : `/occurrences/${run}`;
    await devtools.send("Network.clearBrowserCache");
    let bytes = 0;
    const count = (event: { encodedDataLength: number }) => (bytes += event.encodedDataLength);
    devtools.on("Network.loadingFinished", count);
    await open(page, path);
    await waitForLive(page);
    devtools.off("Network.loadingFinished", count);
    // The theme button repaints the whole page, which makes it the slowest click of a page.
    await page.getByRole("button", { name: /^Theme:/ }).click();
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    const figures = await page.evaluate(() => (window as unknown as { figures: Record<string, number> }).figures);
    console.log(
      `figure: ${name} on fast 4G with a quarter of the processor: LCP ${figures.lcp?.toFixed(0)} ms, ` +
        `INP ${figures.inp?.toFixed(0)} ms, CLS ${figures.cls?.toFixed(3)}, hydrated after ${figures.ready?.toFixed(0)} ms, ${kilobytes(bytes)} transferred`,
    );
    expect(figures.lcp).toBeGreaterThan(0);
    expect(figures.cls, `layout shift of ${name}`).toBeLessThanOrEqual(0.02);
  }
  const cancelled = await callServerFunction(stack.url, firstAdmin.session, "cancel_occurrence", { id: run });
  expect(cancelled.status, cancelled.text).toBe(200);
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
