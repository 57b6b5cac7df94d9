//! `milvaion export`, `diff` and `apply`, as a user types them.

use std::{fs, path::PathBuf};

use milvaion_test_support::paths;
use serde_json::Value;

use super::{Files, file, tagged};
use crate::remote_cli::Shell;

/// Returns a user of the server of a test.
pub(super) fn shell(files: &Files) -> Shell<'_> {
    let home = std::env::temp_dir().join("milvaion-no-credentials");
    Shell { harness: &files.harness, token: files.token.clone(), home }
}

const HOLIDAYS: &str = "kind: Calendar\nname: Holidays\nzone: Europe/Warsaw\ndates: [2030-12-24, 2030-12-25]\n";
const REPORT: &str = "\
kind: Job
key: report
displayName: Report
workerId: w
jobType: echo
jobData:
  say: hello
tags: [night]
schedule:
  kind: cron
  expression: 0 3 * * *
  zone: Europe/Warsaw
rules:
  maxRetries: 3
  calendars: [Holidays]
";

/// A folder of a test, deleted at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("milvaion-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("more")).expect("created");
        Self(folder)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).expect("written");
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_line_applies_files() {
    let files = Files::new().await;
    folder_is_compared_applied_and_pruned(&files).await;
    errors_name_file_document_and_line(&files).await;
    files.stop().await;
}

async fn folder_is_compared_applied_and_pruned(files: &Files) {
    let shell = shell(files);
    let folder = Folder::new("folder");
    folder.write("b.yaml", REPORT);
    folder.write("more/a.yml", &format!("---\n{HOLIDAYS}---\n{}", REPORT.replace("report", "report-too")));
    folder.write("more/.hidden.yaml", "not: ours");
    folder.write("notes.txt", "not: ours");
    let run = async |arguments: &[&str]| {
        let output = shell.run(&[arguments, &["-f", folder.path()]].concat()).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text, summary) = run(&["diff"]).await;
    assert_eq!(code, Some(1), "{text} {summary}");
    assert!(
        text.contains("/b.yaml\n  + job report\n") && text.contains("  + calendar Holidays\n  + job report-too\n"),
        "{text}"
    );
    assert_eq!(summary, "3 created, 0 changed, 0 deleted, 0 unchanged.\n");
    let (code, text, _) = run(&["apply", "--dry-run"]).await;
    assert_eq!((code, text.contains("+ job report")), (Some(0), true));
    assert!(files.keys("report").await.is_empty(), "a dry run changes nothing");
    let (code, text, summary) = run(&["apply"]).await;
    assert_eq!(code, Some(0), "{text} {summary}");
    assert!(text.contains("+ job report"), "the plan is shown first: {text}");
    assert!(summary.ends_with("Applied: 3 created, 0 changed, 0 deleted, 0 unchanged.\n"), "{summary}");
    assert_eq!(run(&["diff"]).await.0, Some(0));

    folder.write("b.yaml", &REPORT.replace("maxRetries: 3", "maxRetries: 5"));
    fs::remove_file(folder.0.join("more/a.yml")).expect("deleted");
    folder.write("more/a.yml", HOLIDAYS);
    let (code, text, _) = run(&["diff", "--prune", "--selector", "tag=night"]).await;
    assert_eq!(code, Some(1));
    assert!(text.contains("  ~ job report\n      rules.maxRetries: 3 -> 5\n"), "{text}");
    assert!(text.contains("Deleted, because no file has them:\n  - job report-too (\"Report\", from "), "{text}");
    let (code, _, errors) = run(&["apply", "--prune", "--selector", "tag=night"]).await;
    assert_eq!(code, Some(2), "a deletion needs consent: {errors}");
    assert_eq!(files.keys("report").await.len(), 2);
    let (code, text, errors) = run(&["apply", "--prune", "--selector", "tag=night", "--yes", "-o", "json"]).await;
    assert_eq!(code, Some(0), "{errors}");
    let plan: Value = serde_json::from_str(&text).expect("one document");
    assert_eq!(plan["deleted"][0]["key"], "report-too");
    assert_eq!(files.keys("report").await, ["report"]);
    assert_eq!(run(&["apply", "--prune"]).await.0, Some(2), "there is no prune without a selector");
}

async fn errors_name_file_document_and_line(files: &Files) {
    let shell = shell(files);
    let folder = Folder::new("errors");
    let bad = REPORT.replace("report", "bad").replace("maxRetries: 3", "maxRetry: 3").replace("[Holidays]", "[]");
    folder.write("jobs.yaml", &format!("{HOLIDAYS}---\n{bad}"));
    let path = folder.0.join("jobs.yaml");
    let path = path.to_str().expect("UTF-8");
    for (command, code) in [("diff", 2), ("apply", 1)] {
        let output = shell.run(&[command, "-f", path]).await;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{errors}");
        let expected = format!("{path}, document 2 (bad), line 19: rules.maxRetry is not a field of this object");
        assert!(errors.contains(&expected), "{errors}");
    }
    folder.write("jobs.yaml", "kind: Job\nkey: [a\n");
    let output = shell.run(&["diff", "-f", path]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not valid YAML"));
    assert_eq!(shell.code(&["apply", "-f", "/no/such/file.yaml"]).await, Some(1));
    assert!(files.keys("bad").await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_exported_and_shown() {
    let files = Files::new().await;
    export_takes_jobs_of_a_tag(&files).await;
    examples_can_be_applied(&files).await;
    page_of_a_job_names_its_file(&files).await;
    files.stop().await;
}

async fn export_takes_jobs_of_a_tag(files: &Files) {
    files.apply(&file("a.yaml", &[tagged("export-1", &["x"]), tagged("export-2", &["y"])])).await.ok();
    let shell = shell(files);
    let text = shell.ok(&["export", "--selector", "tag=x"]).await;
    let port = files.harness.server.address.port();
    let head = format!(
        "# yaml-language-server: $schema=http://127.0.0.1:{port}/api/jobs-file.schema.json\n---\nkind: Job\nkey: export-1\n"
    );
    assert!(text.starts_with(&head), "{text}");
    assert!(!text.contains("key: export-2"), "{text}");
    let json: Value = serde_json::from_str(&shell.ok(&["export", "-o", "json"]).await).expect("JSON");
    let documents = json.as_array().expect("documents");
    let is_own = |document: &&Value| document["key"].as_str().is_some_and(|key| key.starts_with("export-"));
    assert_eq!(documents.iter().filter(is_own).count(), 2);
    // A fresh installation has 12 alert rules.
    assert!(documents.iter().filter(|document| document["kind"] == "AlertRule").count() >= 12, "{json}");
    assert_eq!(shell.code(&["export", "--selector", "x"]).await, Some(2));
}

async fn examples_can_be_applied(files: &Files) {
    let folder = paths::repository_root().join("examples/jobs");
    let folder = folder.to_str().expect("UTF-8");
    let shell = shell(files);
    shell.ok(&["apply", "-f", folder]).await;
    assert_eq!(shell.code(&["diff", "-f", folder]).await, Some(0));
    assert!(!files.keys("nightly-demo").await.is_empty());
}

async fn page_of_a_job_names_its_file(files: &Files) {
    files.apply(&file("jobs/a.yaml", &[tagged("page", &[])])).await.ok();
    let id = files.stored("page").await.ok()["id"].as_str().expect("an id").to_owned();
    let cookie = files.harness.cookie(&files.harness.admin).await;
    let port = files.harness.server.address.port();
    let page = async |path: &str| {
        let request = reqwest::Client::new().get(format!("http://127.0.0.1:{port}{path}")).header("cookie", &cookie);
        request.send().await.expect("a response").text().await.expect("a page")
    };
    let text = page(&format!("/jobs/{id}")).await;
    assert!(text.contains("job-file") && text.contains("jobs/a.yaml"), "{text}");
    assert!(page(&format!("/jobs/{id}/edit")).await.contains("overwrites what you change here"));
    assert!(!page(&format!("/jobs/new?from={id}")).await.contains("job-file"), "a copy comes from no file");
}
