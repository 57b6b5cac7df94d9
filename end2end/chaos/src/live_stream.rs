//! Somebody with the page open: hears the live stream, and remembers each end it was told.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use milvaion_api::events::{EventEnvelope, LiveEvent};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::{api::ApiClient, final_state::status_name};

/// A listener. It goes from server to server, as a browser behind a balancer does.
#[derive(Debug)]
pub(crate) struct LiveStreamListener {
    ends: Arc<Mutex<BTreeMap<String, &'static str>>>,
    task: JoinHandle<()>,
}

impl LiveStreamListener {
    /// Listens from now on.
    pub(crate) fn start(api: ApiClient) -> Self {
        let ends = Arc::<Mutex<BTreeMap<_, _>>>::default();
        let remember = ends.clone();
        let task = tokio::spawn(async move {
            let mut last = None;
            for turn in 0.. {
                let _ = listen(&api, turn % api.servers(), &mut last, &remember).await;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        Self { ends, task }
    }

    /// The ends it was told of.
    pub(crate) fn ends(&self) -> Value {
        serde_json::to_value(&*self.ends.lock().unwrap_or_else(PoisonError::into_inner)).unwrap_or_default()
    }

    /// Listens no longer.
    pub(crate) fn stop(&self) {
        self.task.abort();
    }
}

async fn listen(
    api: &ApiClient,
    server: usize,
    last: &mut Option<String>,
    ends: &Mutex<BTreeMap<String, &'static str>>,
) -> anyhow::Result<()> {
    let mut stream = api.listen(server, last.as_deref()).await?.bytes_stream();
    let mut rest = String::new();
    // A line that is dead without saying so shows by the ping that does not come.
    while let Some(piece) = tokio::time::timeout(Duration::from_secs(20), stream.next()).await? {
        rest.push_str(&String::from_utf8_lossy(&piece?));
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
