//! A client of the live stream, which records the final status it received for each occurrence.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use milvaion_api::events::{EventEnvelope, LiveEvent};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::{api::ApiClient, evidence::status_name};

/// A listener that changes to the next server after each disconnect, as a browser behind a load balancer does.
#[derive(Debug)]
pub(crate) struct LiveStreamListener {
    ends: Arc<Mutex<BTreeMap<String, &'static str>>>,
    task: JoinHandle<()>,
}

impl LiveStreamListener {
    /// Connects, and reconnects until [`LiveStreamListener::stop`] is called.
    pub(crate) fn start(api: ApiClient) -> Self {
        let ends = Arc::<Mutex<BTreeMap<_, _>>>::default();
        let received = ends.clone();
        let task = tokio::spawn(async move {
            let mut last = None;
            for turn in 0.. {
                let _ = listen(&api, turn % api.servers(), &mut last, &received).await;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        Self { ends, task }
    }

    /// Returns the final statuses received so far, by occurrence.
    pub(crate) fn ends(&self) -> Value {
        serde_json::to_value(&*self.ends.lock().unwrap_or_else(PoisonError::into_inner)).unwrap_or_default()
    }

    /// Stops listening.
    pub(crate) fn stop(&self) {
        self.task.abort();
    }
}

/// Reads one connection until it ends. `last` is the id of the last event, from which the next connection continues.
async fn listen(
    api: &ApiClient,
    server: usize,
    last: &mut Option<String>,
    ends: &Mutex<BTreeMap<String, &'static str>>,
) -> anyhow::Result<()> {
    let mut stream = api.listen(server, last.as_deref()).await?.bytes_stream();
    let mut rest = String::new();
    // A half-open connection is detected by its missing ping.
    while let Some(chunk) = tokio::time::timeout(Duration::from_secs(20), stream.next()).await? {
        rest.push_str(&String::from_utf8_lossy(&chunk?));
        while let Some((line, after)) = rest.split_once('\n') {
            if let Some(data) = line.strip_prefix("data:")
                && let Ok(envelope) = serde_json::from_str::<EventEnvelope>(data.trim())
            {
                if let LiveEvent::Occurrences { rows } = &envelope.event {
                    let mut ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
                    for row in rows.iter().filter(|row| row.status.is_final()) {
                        ends.insert(row.id.to_string(), status_name(row.status));
                    }
                }
                *last = Some(envelope.id);
            }
            rest = after.to_owned();
        }
    }
    Ok(())
}
