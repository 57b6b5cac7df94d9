//! The commands on files against a fake server: the plan, the question before a deletion, and exit codes.

use serde_json::{Value, json};

use crate::{
    fake::{FakeServer, document, problem},
    samples::JOB,
    shell::Shell,
};

const REPORT: &str = "kind: Job\nkey: report\n---\nkind: Job\nkey: old\n";

fn plan(deleted: &[&str]) -> Value {
    let entry = |name: &str, outcome: &str| json!({ "kind": "Job", "name": name, "outcome": outcome, "changes": [], "more": false, "takenFrom": null, "edited": null });
    let mut changed = entry("report", "changed");
    changed["changes"] =
        json!([{ "field": "rules.maxRetries", "after": 3 }, { "field": "tags", "before": [], "after": ["\u{1b}[2J"] }]);
    changed["more"] = true.into();
    changed["warnings"] = json!(["schedule.at has passed"]);
    changed["edited"] = json!({ "at": "2026-11-25T10:00:00Z", "by": "ann@example.com" });
    let mut taken = entry("old", "unchanged");
    taken["takenFrom"] = "dashboard".into();
    let deleted: Vec<_> =
        deleted.iter().map(|key| json!({ "id": JOB, "key": key, "displayName": "Gone", "file": "a.yaml" })).collect();
    json!({
        "files": [{ "name": "standard input", "documents": [changed, taken] }], "deleted": deleted,
        "warnings": ["1 job has no document."],
    })
}

#[tokio::test]
async fn plan_shows_fields_edits_and_deletions() {
    let server = FakeServer::start(|_, _| document(200, &plan(&["gone"]))).await;
    let arguments = ["diff", "-f", "-", "--prune", "--selector", "tag=x"];
    let outcome = Shell::signed_in(&server.url).with_input(REPORT).run(&arguments).await;
    assert_eq!(
        outcome.output,
        "standard input\n  ~ job report\n      rules.maxRetries: default -> 3\n      tags: [] -> [\"\\u001b[2J\"]\n      and further \
         fields\n      Warning: schedule.at has passed\n      edited by ann@example.com at 2026-11-25 10:00:00 (2 h ago): the file overwrites the edit\n  = job old\n      \
         defined in the dashboard until now, from now on by this file\nDeleted, because no file has them:\n  - job gone (\"Gone\", \
         from a.yaml)\nWarning: 1 job has no document.\n"
    );
    assert_eq!((outcome.code, outcome.messages.as_str()), (1, "0 created, 1 changed, 1 deleted, 1 unchanged.\n"));
    let request = server.received().pop().expect("a request");
    assert_eq!(request.line(), "POST /api/v1/files/plan");
    assert_eq!(
        request.json(),
        json!({
            "files": [{ "name": "standard input", "documents": [{ "kind": "Job", "key": "report" }, { "kind": "Job", "key": "old" }] }],
            "prune": { "tag": "x" },
        })
    );
    let mut shell = Shell::signed_in(&server.url).with_input(REPORT);
    shell.console.is_output_terminal = true;
    let colored = shell.run(&["diff", "-f", "-", "--selector", "tag=x"]).await.output;
    let request = server.received().pop().expect("a request").json();
    assert_eq!((&request["tag"], &request["prune"]), (&json!("x"), &Value::Null), "without --prune for warnings only");
    assert!(colored.contains("\x1b[33m~ job report\x1b[0m") && colored.contains("\x1b[31m- job gone"), "{colored}");
}

#[tokio::test]
async fn deletion_of_jobs_needs_consent() {
    let server = FakeServer::start(|_, _| document(200, &plan(&["gone"]))).await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.yaml");
    std::fs::write(&path, REPORT).expect("written");
    let arguments = ["apply", "-f", path.to_str().expect("UTF-8"), "--prune", "--selector", "tag=x"];
    let script = Shell::signed_in(&server.url).run(&arguments).await;
    assert_eq!(script.code, 2);
    for (command, input) in [("apply", ""), ("apply", "# kind: Job\n---\n"), ("diff", "")] {
        let empty = [command, "-f", "-", "--prune", "--selector", "tag=x"];
        let refused = Shell::signed_in(&server.url).with_input(input).run(&empty).await;
        assert_eq!(refused.code, 2);
        assert!(refused.messages.contains("The files have no documents"), "{}", refused.messages);
    }
    assert_eq!(server.received().len(), 1, "an empty input is not sent");
    let refused = Shell::signed_in(&server.url).with_answer("\n").run(&arguments).await;
    assert_eq!(refused.code, 1);
    assert!(refused.messages.contains("Delete 1 job that no file has? [y/N]"), "{}", refused.messages);
    assert!(server.lines().iter().all(|line| line == "POST /files/plan"), "nothing was applied");
    let agreed = Shell::signed_in(&server.url).with_answer("y\n").run(&arguments).await;
    assert_eq!(agreed.code, 0, "{agreed:?}");
    let request = server.received().pop().expect("a request");
    assert_eq!(
        (request.line().as_str(), &request.json()["prune"]["expected"]),
        ("POST /api/v1/files/apply", &json!(1))
    );
}

#[tokio::test]
async fn failed_comparison_is_no_difference() {
    let server = FakeServer::start(|_, _| problem(500, "The server failed.")).await;
    let run = async |command: &str| Shell::signed_in(&server.url).with_input(REPORT).run(&[command, "-f", "-"]).await;
    assert_eq!((run("diff").await.code, run("apply").await.code), (2, 1));
    assert!(run("diff").await.messages.contains("The server failed."));
}
