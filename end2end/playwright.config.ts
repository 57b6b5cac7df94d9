import { defineConfig } from "@playwright/test";

// One browser and one test at a time: each file starts a server, a worker and, without service URLs, their services, and
// measurements must not share the machine with the load of another file. One test at a time uses more than one core, most
// of it for the browser. The headless shell renders the same pages with half of the work of the full browser.
export default defineConfig({
  testDir: "tests",
  outputDir: "test-results",
  fullyParallel: false,
  workers: 1,
  retries: 0,
  forbidOnly: true,
  reporter: [["list"]],
  timeout: 60_000,
  expect: { timeout: 10_000 },
  use: {
    // Neither UTC nor the zone of any schedule in these tests, so that the three zones are distinguishable.
    timezoneId: "America/New_York",
    locale: "en-GB",
    viewport: { width: 1280, height: 900 },
    actionTimeout: 10_000,
    screenshot: "only-on-failure",
    // A trace costs every test a fifth of its time, because only its end tells whether the trace is needed.
    trace: process.env.TRACE ? "retain-on-failure" : "off",
    launchOptions: {
      executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium-headless-shell",
      args: [
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
      ],
    },
  },
});
