//! Jobs and calendars as files: planned, applied, pruned and exported.

mod apply;
mod cli;
mod generated;
mod prune;
mod rights;
mod round_trip;
mod sources;

use serde_json::{Value, json};

use crate::rest::harness::{Answer, ApiHarness};

/// Returns the document of a manual job.
fn job(key: &str) -> Value {
    json!({
        "kind": "Job", "key": key, "displayName": format!("Job {key}"), "workerId": "w", "jobType": "echo",
        "jobData": { "say": "hello" }, "schedule": { "kind": "manual" },
    })
}

/// Returns the document of a job with tags.
fn tagged(key: &str, tags: &[&str]) -> Value {
    with(job(key), "tags", json!(tags))
}

/// Returns the document of a calendar.
fn calendar(name: &str) -> Value {
    json!({ "kind": "Calendar", "name": name, "zone": "Europe/Warsaw", "dates": ["2030-12-24", "2030-12-25"] })
}

/// Returns a document with a field.
fn with(mut document: Value, field: &str, value: Value) -> Value {
    document[field] = value;
    document
}

/// Returns a request for one file.
fn file(name: &str, documents: &[Value]) -> Value {
    json!({ "files": [{ "name": name, "documents": documents }] })
}

/// The files of a test on a running server.
struct Files {
    harness: ApiHarness,
    token: String,
}

impl Files {
    async fn new() -> Self {
        let harness = ApiHarness::new().await;
        let token = harness.token(&harness.admin).await;
        Self { harness, token }
    }

    async fn plan(&self, request: &Value) -> Answer {
        self.harness.call(&self.token, "POST", "/files/plan", request.clone()).await
    }

    async fn apply(&self, request: &Value) -> Answer {
        self.harness.call(&self.token, "POST", "/files/apply", request.clone()).await
    }

    /// Returns the job with a key.
    async fn stored(&self, key: &str) -> Answer {
        self.harness.call(&self.token, "GET", &format!("/jobs/by-key/{key}"), Value::Null).await
    }

    /// Returns the keys that begin with `start`, in the order of the jobs' names. The steps of a test share a server, so
    /// each uses keys of its own.
    async fn keys(&self, start: &str) -> Vec<String> {
        let jobs = self.harness.call(&self.token, "GET", "/jobs?limit=200", Value::Null).await.ok();
        let jobs = jobs["items"].as_array().expect("a list");
        let keys = jobs.iter().filter_map(|job| job["key"].as_str());
        keys.filter(|key| key.starts_with(start)).map(str::to_owned).collect()
    }

    async fn stop(self) {
        self.harness.server.stop().await;
    }
}

/// Returns the outcomes of all documents.
fn outcomes(plan: &Value) -> Vec<String> {
    let files = plan["files"].as_array().expect("files");
    let documents = files.iter().flat_map(|file| file["documents"].as_array().expect("documents"));
    documents
        .map(|document| format!("{} {}", document["outcome"].as_str().unwrap_or_default(), document["name"]))
        .collect()
}
