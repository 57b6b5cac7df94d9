import { defineConfig } from "@playwright/test";

// Two test files at a time, each on a server and a worker of its own, and the tests of a file in order. `make test` leaves out
// the tests with the tag @all. The headless shell renders the same pages with half of the work of the full browser.
export default defineConfig({
  testDir: "tests",
  outputDir: "test-results",
  fullyParallel: false,
  workers: 2,
  retries: 0,
  forbidOnly: true,
  // `cargo xtask budget` reads the times of the tests from the report.
  reporter: [["list"], ["json", { outputFile: "../target/budget/browser.json" }]],
  timeout: 60_000,
  expect: { timeout: 10_000 },
  projects: [
    { name: "browser", testIgnore: "performance.spec.ts" },
    // Measurements must not share the machine with other tests, so they run after them. With --no-deps they run alone.
    { name: "performance", testMatch: "performance.spec.ts", dependencies: ["browser"] },
  ],
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
