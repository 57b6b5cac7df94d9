//! Asks for things as people do, and notes what was asked and what was answered.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use milvaion_api::request::JobForm;
use milvaion_protocol::id::JobId;
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    api::{Api, Reply},
    evidence::{Evidence, now},
    stand::Defined,
    workload::{Plan, When},
};

/// How often something that got no answer is asked again.
const TRIES: usize = 60;
/// The pause before.
const PAUSE: Duration = Duration::from_millis(500);

/// Somebody at the dashboard. Clones are the same person.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    pub(crate) api: Api,
    evidence: Arc<Evidence>,
    jobs: Arc<Mutex<Vec<Defined>>>,
    /// Which server is asked next.
    turn: Arc<AtomicUsize>,
}

impl Driver {
    pub(crate) fn new(api: Api, evidence: Arc<Evidence>) -> Self {
        Self { api, evidence, jobs: Arc::default(), turn: Arc::default() }
    }

    /// Every job that was defined.
    pub(crate) fn jobs(&self) -> Vec<Defined> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The first job of a type that runs when it is asked for.
    pub(crate) fn manual(&self, kind: &str) -> anyhow::Result<String> {
        let jobs = self.jobs();
        let job = jobs.iter().find(|job| job.plan.kind == kind && matches!(job.plan.when, When::Manual));
        Ok(job.with_context(|| format!("there is no manual job of type {kind}"))?.id.clone())
    }

    /// Defines jobs. Everything must answer: this is before any fault.
    pub(crate) async fn define(&self, plans: Vec<Plan>) -> anyhow::Result<()> {
        #[derive(Serialize)]
        struct Save {
            form: JobForm,
        }
        for plan in plans {
            let number = self.jobs().len() + 1;
            let name = format!("{} {number}", plan.kind);
            let mut form = JobForm::from_job(JobId::default(), 0, &plan.input(&name));
            (form.id, form.version, form.input_mode) = (String::new(), String::new(), "json".into());
            let invoked = now();
            let reply = self.api.post(0, "save_job", &Save { form }).await;
            let Reply::Done(id) = &reply else { bail!("{name} cannot be defined: {reply:?}") };
            let line = json!({
                "op": "define", "job": id, "occurrence": null, "key": null, "invoked": invoked, "returned": now(),
                "outcome": "ok",
            });
            self.evidence.note("jobs.jsonl", &plan.evidence(id, &name));
            self.evidence.note("ops.jsonl", &line);
            let id = id.as_str().context("an id is a text")?.to_owned();
            self.jobs.lock().unwrap_or_else(PoisonError::into_inner).push(Defined { id, plan });
        }
        Ok(())
    }

    /// Asks for a run, again with the same key until somebody answers. Returns the occurrence, if somebody did.
    pub(crate) async fn trigger(&self, job: &str, key: &str) -> Option<String> {
        let form = json!({ "id": job, "idempotency_key": key });
        let reply = self.insist("trigger", "trigger_job", job, None, Some(key), &form).await;
        match reply {
            Reply::Done(Value::String(occurrence)) => Some(occurrence),
            _ => None,
        }
    }

    /// Cancels an occurrence, until somebody answers.
    pub(crate) async fn cancel(&self, job: &str, occurrence: &str) -> Reply {
        let form = json!({ "id": occurrence });
        self.insist("cancel", "cancel_occurrence", job, Some(occurrence), None, &form).await
    }

    /// Pauses or resumes a job, until somebody answers.
    pub(crate) async fn set_active(&self, op: &'static str, job: &str) -> anyhow::Result<()> {
        let form = json!({ "id": job, "active": op == "enable" });
        match self.insist(op, "set_job_active", job, None, None, &form).await {
            Reply::Done(_) => Ok(()),
            reply => bail!("{op} {job}: {reply:?}"),
        }
    }

    /// Takes every job that is still in the schedule out of it.
    pub(crate) async fn retire(&self) -> anyhow::Result<()> {
        for job in self.jobs() {
            if !matches!(job.plan.when, When::Manual) {
                self.set_active("retire", &job.id).await?;
            }
        }
        Ok(())
    }

    /// Asks for a run each `period` until told to stop; every fifth of an `obedient` job is left to run into its own end,
    /// the others are cancelled.
    pub(crate) fn keep_asking(
        &self,
        kind: &'static str,
        period: Duration,
        stop: &CancellationToken,
    ) -> anyhow::Result<Asking> {
        let (driver, job, until) = (self.clone(), self.manual(kind)?, stop.clone());
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

    /// Asks one server after the other until one says yes or no, and notes each time.
    async fn insist(
        &self,
        op: &'static str,
        endpoint: &str,
        job: &str,
        occurrence: Option<&str>,
        key: Option<&str>,
        form: &Value,
    ) -> Reply {
        let mut tries = 0;
        loop {
            let server = self.turn.fetch_add(1, Ordering::Relaxed) % self.api.servers();
            let invoked = now();
            let reply = self.api.post(server, endpoint, form).await;
            let answered = match &reply {
                Reply::Done(Value::String(id)) if op == "trigger" => Some(id.as_str()),
                _ => None,
            };
            let detail = match &reply {
                Reply::Done(_) => None,
                Reply::Refused(text) | Reply::Unknown(text) => Some(text),
            };
            let line = json!({
                "op": op, "job": job, "occurrence": answered.or(occurrence), "key": key, "invoked": invoked,
                "returned": if matches!(reply, Reply::Unknown(_)) { Value::Null } else { now().into() },
                "outcome": reply.word(), "detail": detail,
            });
            self.evidence.note("ops.jsonl", &line);
            tries += 1;
            if !matches!(reply, Reply::Unknown(_)) || tries == TRIES {
                return reply;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Somebody who goes on asking.
pub(crate) type Asking = tokio::task::JoinHandle<()>;
