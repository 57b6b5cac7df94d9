//! Settings for metrics.

use std::net::SocketAddr;

use super::EnvReader;

/// The address of the metrics, and their labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetricsConfig {
    /// `METRICS_ADDR`: IP address and port at which `/metrics` is served without authentication, as in `127.0.0.1:9464`;
    /// only Prometheus should reach it. Default none: `/metrics` on the main address, with an API token.
    pub address: Option<SocketAddr>,
    /// `METRICS_JOB_LABELS`: `true` adds metrics with the name of the job as a label, for the first 500 jobs that run.
    /// Default `false`.
    pub job_labels: bool,
}

impl MetricsConfig {
    /// Reads the settings from the environment.
    pub(super) fn read(read: &mut EnvReader) -> Self {
        let address = match read.text("METRICS_ADDR").map(|text| text.parse().map_err(|_| text)) {
            None => None,
            Some(Ok(address)) => Some(address),
            Some(Err(text)) => {
                let reason = format!("give an IP address and a port such as 127.0.0.1:9464, not {text:?}");
                read.add_error("METRICS_ADDR", &reason);
                None
            }
        };
        let job_labels = match read.text("METRICS_JOB_LABELS").as_deref() {
            None | Some("false") => false,
            Some("true") => true,
            Some(text) => {
                read.add_error("METRICS_JOB_LABELS", &format!("give true or false, not {text:?}"));
                false
            }
        };
        Self { address, job_labels }
    }
}
