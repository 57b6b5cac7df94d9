//! A driver that acts as users of the dashboard do, and records each request with its outcome.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use futures::{StreamExt, TryStreamExt, stream};
use milvaion_api::requests::JobForm;
use milvaion_protocol::id::JobId;
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    api::{ApiClient, ApiReply},
    evidence::{EvidenceWriter, now},
    workload::{JobPlan, JobTiming},
};

/// The number of times a request without a response is sent.
const MAX_REQUEST_ATTEMPTS: usize = 60;
/// The number of jobs that are defined or disabled at once.
const CONCURRENT_REQUESTS: usize = 8;
/// The pause before a request is sent again.
const REQUEST_RETRY_DELAY: Duration = Duration::from_millis(500);

/// A defined job.
#[derive(Clone, Debug)]
pub(crate) struct DefinedJob {
    pub(crate) id: String,
    pub(crate) plan: JobPlan,
}

/// A signed-in user. Clones share the list of jobs and the order of servers.
#[derive(Clone, Debug)]
pub(crate) struct WorkloadDriver {
    pub(crate) api: ApiClient,
    evidence: Arc<EvidenceWriter>,
    jobs: Arc<Mutex<Vec<DefinedJob>>>,
    /// The number of requests sent so far, modulo the number of servers the index of the next one.
    turn: Arc<AtomicUsize>,
}

impl WorkloadDriver {
    /// Returns a driver that has defined no jobs yet.
    pub(crate) fn new(api: ApiClient, evidence: Arc<EvidenceWriter>) -> Self {
        Self { api, evidence, jobs: Arc::default(), turn: Arc::default() }
    }

    /// Returns the jobs defined so far.
    pub(crate) fn jobs(&self) -> Vec<DefinedJob> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the id of the first job of a type that has no schedule.
    pub(crate) fn manual_job(&self, kind: &str) -> anyhow::Result<String> {
        let jobs = self.jobs();
        let job = jobs.iter().find(|job| job.plan.kind == kind && matches!(job.plan.timing, JobTiming::Manual));
        Ok(job.with_context(|| format!("there is no manual job of type {kind}"))?.id.clone())
    }

    /// Defines jobs, some at once. Each request must succeed, because no fault has been injected yet.
    pub(crate) async fn define(&self, plans: Vec<JobPlan>) -> anyhow::Result<()> {
        let first = self.jobs().len() + 1;
        let mut defined = stream::iter(plans.into_iter().enumerate())
            .map(|(number, plan)| self.define_job(first + number, plan))
            .buffered(CONCURRENT_REQUESTS);
        while let Some(job) = defined.try_next().await? {
            self.jobs.lock().unwrap_or_else(PoisonError::into_inner).push(job);
        }
        Ok(())
    }

    /// Defines a job through the first server. Its name has its number.
    async fn define_job(&self, number: usize, plan: JobPlan) -> anyhow::Result<DefinedJob> {
        #[derive(Serialize)]
        struct SaveJobRequest {
            form: JobForm,
        }
        let name = format!("{} {number}", plan.kind);
        let mut form = JobForm::from_job(JobId::default(), 0, &plan.input(&name));
        (form.id, form.version, form.input_mode) = (String::new(), String::new(), "json".into());
        let invoked = now();
        let reply = self.api.post(0, "save_job", &SaveJobRequest { form }).await;
        let ApiReply::Done(saved) = &reply else { bail!("{name} cannot be defined: {reply:?}") };
        let id = &saved["id"];
        let line = json!({
            "op": "define", "job": id, "occurrence": null, "key": null, "invoked": invoked, "returned": now(),
            "outcome": "ok",
        });
        self.evidence.append("jobs.jsonl", &plan.evidence(id, &name));
        self.evidence.append("ops.jsonl", &line);
        let id = id.as_str().context("the job id is not a string")?.to_owned();
        Ok(DefinedJob { id, plan })
    }

    /// Triggers a run, and repeats the request with the same key until a server responds. Returns the occurrence, if a
    /// response named it.
    pub(crate) async fn trigger(&self, job: &str, key: &str) -> Option<String> {
        let form = json!({ "id": job, "idempotency_key": key });
        let reply = self.request("trigger", "trigger_job", job, None, Some(key), &form).await;
        match reply {
            ApiReply::Done(Value::String(occurrence)) => Some(occurrence),
            _ => None,
        }
    }

    /// Cancels an occurrence, and repeats the request until a server responds.
    pub(crate) async fn cancel(&self, job: &str, occurrence: &str) -> ApiReply {
        let form = json!({ "id": occurrence });
        self.request("cancel", "cancel_occurrence", job, Some(occurrence), None, &form).await
    }

    /// Enables or disables a job, and repeats the request until a server responds.
    pub(crate) async fn set_active(&self, op: &'static str, job: &str) -> anyhow::Result<()> {
        let form = json!({ "id": job, "active": op == "enable" });
        match self.request(op, "set_job_active", job, None, None, &form).await {
            ApiReply::Done(_) => Ok(()),
            reply => bail!("{op} {job}: {reply:?}"),
        }
    }

    /// Disables every job that has a schedule, some at once.
    pub(crate) async fn retire_all(&self) -> anyhow::Result<()> {
        let jobs = self.jobs();
        let scheduled = jobs.iter().filter(|job| !matches!(job.plan.timing, JobTiming::Manual));
        stream::iter(scheduled)
            .map(|job| self.set_active("retire", &job.id))
            .buffer_unordered(CONCURRENT_REQUESTS)
            .try_collect::<()>()
            .await
    }

    /// Starts a task that triggers a run of the manual job of a type each `period`, until `stop` is cancelled. Runs of
    /// the `obedient` job are cancelled after 0.3 to 1.9 s.
    pub(crate) fn spawn_request_loop(
        &self,
        kind: &'static str,
        period: Duration,
        stop: &CancellationToken,
    ) -> anyhow::Result<RequestLoop> {
        let (driver, job, until) = (self.clone(), self.manual_job(kind)?, stop.clone());
        Ok(tokio::spawn(async move {
            let mut number = 0;
            loop {
                tokio::select! {
                    () = until.cancelled() => return,
                    () = tokio::time::sleep(period) => {}
                }
                number += 1;
                let key = format!("{kind}-{number}");
                let Some(occurrence) = driver.trigger(&job, &key).await else { continue };
                if kind == "obedient" {
                    tokio::time::sleep(Duration::from_millis(300 + number % 5 * 400)).await;
                    driver.cancel(&job, &occurrence).await;
                }
            }
        }))
    }

    /// Sends a request to one server after the other until one accepts or refuses it. Records each request.
    async fn request(
        &self,
        op: &'static str,
        endpoint: &str,
        job: &str,
        occurrence: Option<&str>,
        key: Option<&str>,
        form: &Value,
    ) -> ApiReply {
        let mut tries = 0;
        loop {
            let server = self.turn.fetch_add(1, Ordering::Relaxed) % self.api.servers();
            let invoked = now();
            let reply = self.api.post(server, endpoint, form).await;
            let returned_id = match &reply {
                ApiReply::Done(Value::String(id)) if op == "trigger" => Some(id.as_str()),
                _ => None,
            };
            let detail = match &reply {
                ApiReply::Done(_) => None,
                ApiReply::Refused(text) | ApiReply::Unknown(text) => Some(text),
            };
            let line = json!({
                "op": op, "job": job, "occurrence": returned_id.or(occurrence), "key": key, "invoked": invoked,
                "returned": if matches!(reply, ApiReply::Unknown(_)) { Value::Null } else { now().into() },
                "outcome": reply.outcome(), "detail": detail,
            });
            self.evidence.append("ops.jsonl", &line);
            tries += 1;
            if !matches!(reply, ApiReply::Unknown(_)) || tries == MAX_REQUEST_ATTEMPTS {
                return reply;
            }
            tokio::time::sleep(REQUEST_RETRY_DELAY).await;
        }
    }
}

/// The task of [`WorkloadDriver::spawn_request_loop`].
pub(crate) type RequestLoop = tokio::task::JoinHandle<()>;
