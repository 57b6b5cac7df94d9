//! Somebody with the page open: hears the live stream, and remembers each end it was told.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use milvaion_api::event::{Envelope, Event};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::{api::Api, reading::word};

/// A listener. It goes from server to server, as a browser behind a balancer does.
#[derive(Debug)]
pub(crate) struct Listener {
    heard: Arc<Mutex<BTreeMap<String, &'static str>>>,
    task: JoinHandle<()>,
}

impl Listener {
    /// Listens from now on.
    pub(crate) fn start(api: Api) -> Self {
        let heard = Arc::<Mutex<BTreeMap<_, _>>>::default();
        let remember = heard.clone();
        let task = tokio::spawn(async move {
            let mut last = None;
            for turn in 0.. {
                let _ = listen(&api, turn % api.servers(), &mut last, &remember).await;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        Self { heard, task }
    }

    /// The ends it was told of.
    pub(crate) fn heard(&self) -> Value {
        serde_json::to_value(&*self.heard.lock().unwrap_or_else(PoisonError::into_inner)).unwrap_or_default()
    }

    /// Listens no longer.
    pub(crate) fn stop(&self) {
        self.task.abort();
    }
}

async fn listen(
    api: &Api,
    server: usize,
    last: &mut Option<String>,
    heard: &Mutex<BTreeMap<String, &'static str>>,
) -> anyhow::Result<()> {
    let mut stream = api.listen(server, last.as_deref()).await?.bytes_stream();
    let mut rest = String::new();
    // A line that is dead without saying so shows by the ping that does not come.
    while let Some(piece) = tokio::time::timeout(Duration::from_secs(20), stream.next()).await? {
        rest.push_str(&String::from_utf8_lossy(&piece?));
        while let Some((line, after)) = rest.split_once('\n') {
            if let Some(data) = line.strip_prefix("data:")
                && let Ok(envelope) = serde_json::from_str::<Envelope>(data.trim())
            {
                if let Event::Occurrences { rows } = &envelope.event {
                    let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
                    for row in rows.iter().filter(|row| row.status.is_final()) {
                        heard.insert(row.id.to_string(), word(row.status));
                    }
                }
                *last = Some(envelope.id);
            }
            rest = after.to_owned();
        }
    }
    Ok(())
}
