//! Other job systems on the same services, measured by `end2end/bench/peers.py`.

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::{harness::BenchHarness, settings};

/// What measures them, in the repository.
const PEERS_SCRIPT: &str = "end2end/bench/peers.py";
/// How long all of them may take.
const PEERS_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Measures all of them. Returns their figures, or their errors in place of figures.
pub(crate) async fn run(harness: &BenchHarness) -> anyhow::Result<BTreeMap<String, Value>> {
    ensure!(
        std::path::Path::new(PEERS_SCRIPT).exists(),
        "{PEERS_SCRIPT} is not here: run this in the repository's first folder"
    );
    let python = settings::text("PYTHON").unwrap_or_else(|| "python3".to_owned());
    let out = harness.folder.join("peers.json");
    let mut child = tokio::process::Command::new(&python)
        .arg(PEERS_SCRIPT)
        .args(["--peer", "all", "--figure", "drain", "--figure", "latency", "--runs"])
        .arg(harness.settings.runs.to_string())
        .arg("--out")
        .arg(&out)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("{python} cannot be started"))?;
    let status = tokio::time::timeout(PEERS_TIMEOUT, child.wait())
        .await
        .with_context(|| format!("the peers were not done within {} s", PEERS_TIMEOUT.as_secs()))??;
    ensure!(status.success(), "{PEERS_SCRIPT} ended with {status}");
    Ok(serde_json::from_str(&fs::read_to_string(&out)?)?)
}
