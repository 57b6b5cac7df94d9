//! The evidence folder of one scenario: its jobs, requests, faults and observations. `EVIDENCE.md` specifies each file.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use milvaion_protocol::status::OccurrenceStatus;
use serde::Serialize;
use serde_json::{Value, json};

/// Returns the current time in microseconds since 1970, in UTC.
pub(crate) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// Returns the name of a status in the evidence.
pub(crate) fn status_name(status: OccurrenceStatus) -> &'static str {
    match status {
        OccurrenceStatus::Queued => "queued",
        OccurrenceStatus::Running => "running",
        OccurrenceStatus::Completed => "completed",
        OccurrenceStatus::Failed => "failed",
        OccurrenceStatus::Cancelled => "cancelled",
        OccurrenceStatus::TimedOut => "timed-out",
        OccurrenceStatus::Unknown => "unknown",
        OccurrenceStatus::Skipped => "skipped",
    }
}

/// A writer of one evidence folder.
#[derive(Debug)]
pub(crate) struct EvidenceWriter {
    folder: PathBuf,
    files: Mutex<HashMap<&'static str, File>>,
}

/// A fault that has begun. It is recorded when it ends, by [`EvidenceWriter::end_fault`].
#[derive(Debug)]
#[must_use = "a fault that is never ended is never recorded"]
pub(crate) struct OngoingFault {
    kind: &'static str,
    target: String,
    detail: String,
    began: i64,
}

impl EvidenceWriter {
    /// Creates an empty folder, and deletes the one of an earlier run.
    pub(crate) fn open(folder: PathBuf) -> anyhow::Result<Self> {
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).with_context(|| format!("{} cannot be created", folder.display()))?;
        let evidence = Self { folder, files: Mutex::default() };
        // The checker requires every file, even an empty one.
        for name in
            ["jobs.jsonl", "ops.jsonl", "witness.jsonl", "nemesis.jsonl", "sql.jsonl", "api.jsonl", "loglines.jsonl"]
        {
            evidence.touch(name)?;
        }
        Ok(evidence)
    }

    /// Returns the folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the file that says which release a worker runs; without the file, its code declares no schedule.
    pub(crate) fn release_file(&self, process: &str) -> PathBuf {
        self.folder.join(format!("{process}.release"))
    }

    /// Appends a line to one of the files.
    pub(crate) fn append(&self, file: &'static str, line: &impl Serialize) {
        let mut text = serde_json::to_vec(line).expect("evidence is plain JSON");
        text.push(b'\n');
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let file = files.get_mut(file).expect("the file was opened at the beginning");
        // Panics, because missing evidence would look like a correct scheduler.
        file.write_all(&text).expect("the evidence file is writable");
    }

    /// Writes a whole file.
    pub(crate) fn write(&self, file: &str, value: &Value) -> anyhow::Result<()> {
        fs::write(self.folder.join(file), serde_json::to_vec_pretty(value)?)
            .with_context(|| format!("{file} cannot be written"))
    }

    /// Begins a fault.
    pub(crate) fn begin_fault(
        &self,
        kind: &'static str,
        target: impl Into<String>,
        detail: impl Into<String>,
    ) -> OngoingFault {
        let (target, detail) = (target.into(), detail.into());
        OngoingFault { kind, target, detail, began: now() }
    }

    /// Ends a fault and records it.
    pub(crate) fn end_fault(&self, fault: OngoingFault) {
        let OngoingFault { kind, target, detail, began } = fault;
        let line = json!({"fault": kind, "target": target, "detail": detail, "began": began, "ended": now()});
        self.append("nemesis.jsonl", &line);
    }

    /// Records a fault that takes no time.
    pub(crate) fn record_fault(&self, kind: &'static str, target: impl Into<String>, detail: impl Into<String>) {
        let fault = self.begin_fault(kind, target, detail);
        self.end_fault(fault);
    }

    fn touch(&self, name: &'static str) -> anyhow::Result<()> {
        let path = self.folder.join(name);
        let file = File::create(&path).with_context(|| format!("{} cannot be created", path.display()))?;
        self.files.lock().unwrap_or_else(PoisonError::into_inner).insert(name, file);
        Ok(())
    }
}
