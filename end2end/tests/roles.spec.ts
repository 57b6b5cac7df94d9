// What a Viewer finds on hydrated pages. Which calls each role may make is tested in `server/tests/it/access_matrix.rs` and
// `app/tests/forms`, and a changed role under an open page in `tabs.spec.ts` and `team.spec.ts`.

import { makeJob, runJob, shell, waitForStatus } from "../fixtures/jobs";
import { expect, open, test } from "../fixtures/test";
import { apiClient, inviteUser, signIn } from "../fixtures/users";

test.use({ stackName: "users" });

test("a Viewer finds no action on hydrated pages", async ({ context, page, firstAdmin, stack }) => {
  const job = await makeJob(stack.url, firstAdmin, { name: "Broken report", input: shell("echo good night; exit 7") });
  const run = await runJob(stack.url, firstAdmin, job);
  await waitForStatus(stack.url, firstAdmin, run, "failed");
  await signIn(context, stack.url, await inviteUser(stack.url, firstAdmin, "Vera Viewer", "viewer"));
  for (const path of [`/jobs/${job}`, `/failed/${run}`, `/occurrences/${run}`]) {
    await open(page, path);
    await expect(page.getByRole("heading", { level: 1 })).toBeVisible();
    await expect(page.locator('main form[method="post"]')).toHaveCount(0);
    const changes = /^(run (now|job|with)|pause|resume|cancel|delete|edit|new job|create|retry|resolve|restore)\b/i;
    await expect(page.getByRole("main").getByRole("button", { name: changes })).toHaveCount(0);
    await expect(page.getByRole("main").getByRole("link", { name: changes })).toHaveCount(0);
    await expect(page.getByRole("link", { name: "Team" })).toHaveCount(0);
    await expect(page.getByRole("link", { name: "Audit log" })).toHaveCount(0);
  }
  await expect(page.locator(".log-lines")).toContainText("good night");
});

test("concurrent users each get their own page", { tag: "@all" }, async ({ stack, firstAdmin }) => {
  const viewer = await inviteUser(stack.url, firstAdmin, "Cora Concurrent", "viewer");
  const job = await makeJob(stack.url, firstAdmin, { name: "Read by two", input: shell("true") });
  const run = await runJob(stack.url, firstAdmin, job);
  const paths = ["/", "/jobs?q=Read+by+two", `/jobs/${job}`, `/occurrences/${run}`, "/workers"];
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
