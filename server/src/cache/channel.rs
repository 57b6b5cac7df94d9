//! The channels between servers, for schedule changes and live events.
//!
//! A server whose pages show the log of an occurrence subscribes to a channel of that occurrence, on which nothing is
//! published. The subscription is the announcement: Redis counts the subscribers for every server that has log lines, and
//! drops the subscription of a server that is gone.

use std::{collections::HashSet, future::Future};

use futures::{Stream, StreamExt};
use milvaion_protocol::{id::OccurrenceId, topology::RedisKeys};
use redis::{AsyncCommands, RedisError, aio::PubSubSink};

use super::{Cache, RESPONSE_TIMEOUT};

/// The announcements of the logs that pages of this server show. They end with the connection.
#[derive(Debug)]
pub struct LogWatchAnnouncer {
    sink: PubSubSink,
    keys: RedisKeys,
}

impl LogWatchAnnouncer {
    /// Announces that pages of this server show these logs. Every server that asks Redis afterwards is told so.
    pub async fn announce(&mut self, ids: &[OccurrenceId]) -> Result<(), RedisError> {
        answered(self.sink.subscribe(self.channels(ids))).await
    }

    /// Withdraws announcements.
    pub async fn withdraw(&mut self, ids: &[OccurrenceId]) -> Result<(), RedisError> {
        answered(self.sink.unsubscribe(self.channels(ids))).await
    }

    fn channels(&self, ids: &[OccurrenceId]) -> Vec<String> {
        ids.iter().map(|id| self.keys.log_watch_channel(*id)).collect()
    }
}

impl Cache {
    /// Notifies every server that the schedule has changed.
    pub async fn announce_schedule_change(&self) -> Result<(), RedisError> {
        self.connection().publish(self.keys.wake_channel(), "").await
    }

    /// Publishes live events to every server, this one included.
    pub async fn publish_events(&self, envelopes: &[String]) -> Result<(), RedisError> {
        let mut pipe = redis::pipe();
        for envelope in envelopes {
            pipe.publish(self.keys.events_channel(), envelope).ignore();
        }
        pipe.query_async(&mut self.connection()).await
    }

    /// Returns those of the occurrences whose log a page of any server shows.
    pub async fn watched_logs(&self, ids: &[OccurrenceId]) -> Result<HashSet<OccurrenceId>, RedisError> {
        let mut command = redis::cmd("PUBSUB");
        command.arg("NUMSUB");
        for id in ids {
            command.arg(self.keys.log_watch_channel(*id));
        }
        let counts: Vec<(String, u64)> = command.query_async(&mut self.connection()).await?;
        Ok(ids.iter().zip(counts).filter(|(_, (_, servers))| *servers > 0).map(|(id, _)| *id).collect())
    }

    /// Returns the messages of all servers until the connection breaks, as `(is_event, text)`, and the announcer of
    /// the logs that pages of this server show.
    pub async fn listen(
        &self,
    ) -> Result<(LogWatchAnnouncer, impl Stream<Item = (bool, String)> + Send + use<>), RedisError> {
        let (mut sink, messages) = self.subscriber().await?.split();
        let events = self.keys.events_channel();
        answered(sink.subscribe(&[events.clone(), self.keys.wake_channel()])).await?;
        let messages = super::messages(sink.clone(), messages).map(move |message| {
            let is_event = message.get_channel_name() == events;
            (is_event, message.get_payload().unwrap_or_default())
        });
        Ok((LogWatchAnnouncer { sink, keys: self.keys.clone() }, messages))
    }
}

/// Waits for the answer to a subscription, which has no timeout of its own.
async fn answered(request: impl Future<Output = Result<(), RedisError>>) -> Result<(), RedisError> {
    tokio::time::timeout(RESPONSE_TIMEOUT, request).await.unwrap_or_else(|_| Err(super::too_slow()))
}
