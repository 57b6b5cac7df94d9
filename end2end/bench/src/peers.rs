//! The figures of other job systems on the same services, measured by `end2end/bench/peers.py`.

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::{harness::BenchHarness, settings};

/// The script that measures the peers, relative to the workspace.
const PEERS_SCRIPT: &str = "end2end/bench/peers.py";
/// The maximum duration of the script.
const PEERS_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Measures all peers. Returns their figures, with an error in place of a figure that could not be measured.
pub(crate) async fn run(harness: &BenchHarness) -> anyhow::Result<BTreeMap<String, Value>> {
    ensure!(
        std::path::Path::new(PEERS_SCRIPT).exists(),
        "{PEERS_SCRIPT} does not exist: run this in the folder of the workspace"
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
        .with_context(|| format!("{PEERS_SCRIPT} did not end within {} s", PEERS_TIMEOUT.as_secs()))??;
    ensure!(status.success(), "{PEERS_SCRIPT} failed ({status}): see its messages above");
    Ok(serde_json::from_str(&fs::read_to_string(&out)?)?)
}
