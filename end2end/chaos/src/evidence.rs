//! The folder of a run: what was asked for, what was done to it, what was seen. `EVIDENCE.md` says what each file holds.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use serde::Serialize;
use serde_json::{Value, json};

/// Now, in microseconds since 1970.
pub(crate) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// The evidence of one run.
#[derive(Debug)]
pub(crate) struct EvidenceWriter {
    folder: PathBuf,
    files: Mutex<HashMap<&'static str, File>>,
}

/// A fault that goes on. It is noted when it is over: [`EvidenceWriter::end_fault`].
#[derive(Debug)]
#[must_use = "a fault that is never over is never noted"]
pub(crate) struct OngoingFault {
    kind: &'static str,
    target: String,
    detail: String,
    began: i64,
}

impl EvidenceWriter {
    /// An empty folder; what an earlier run left there is deleted.
    pub(crate) fn open(folder: PathBuf) -> anyhow::Result<Self> {
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
        let evidence = Self { folder, files: Mutex::default() };
        // The checker wants every file, also of what never happened.
        for name in
            ["jobs.jsonl", "ops.jsonl", "witness.jsonl", "nemesis.jsonl", "sql.jsonl", "api.jsonl", "loglines.jsonl"]
        {
            evidence.touch(name)?;
        }
        Ok(evidence)
    }

    /// Where it lies.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Adds a line to one of the files.
    pub(crate) fn append(&self, file: &'static str, line: &impl Serialize) {
        let mut text = serde_json::to_vec(line).expect("evidence is plain JSON");
        text.push(b'\n');
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let file = files.get_mut(file).expect("the file was opened at the beginning");
        // A full disk must not be taken for an innocent scheduler.
        file.write_all(&text).expect("the evidence can be written");
    }

    /// Writes a whole file.
    pub(crate) fn write(&self, file: &str, value: &Value) -> anyhow::Result<()> {
        fs::write(self.folder.join(file), serde_json::to_vec_pretty(value)?)
            .with_context(|| format!("{file} cannot be written"))
    }

    /// A fault begins.
    pub(crate) fn begin_fault(
        &self,
        kind: &'static str,
        target: impl Into<String>,
        detail: impl Into<String>,
    ) -> OngoingFault {
        let (target, detail) = (target.into(), detail.into());
        OngoingFault { kind, target, detail, began: now() }
    }

    /// It is over.
    pub(crate) fn end_fault(&self, fault: OngoingFault) {
        let OngoingFault { kind, target, detail, began } = fault;
        let line = json!({"fault": kind, "target": target, "detail": detail, "began": began, "ended": now()});
        self.append("nemesis.jsonl", &line);
    }

    /// A fault that takes no time.
    pub(crate) fn record_fault(&self, kind: &'static str, target: impl Into<String>, detail: impl Into<String>) {
        let fault = self.begin_fault(kind, target, detail);
        self.end_fault(fault);
    }

    fn touch(&self, name: &'static str) -> anyhow::Result<()> {
        let path = self.folder.join(name);
        let file = File::create(&path).with_context(|| format!("{} cannot be made", path.display()))?;
        self.files.lock().unwrap_or_else(PoisonError::into_inner).insert(name, file);
        Ok(())
    }
}
