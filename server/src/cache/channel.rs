//! The channels between servers, for schedule changes and live events.

use futures::{Stream, StreamExt};
use redis::{AsyncCommands, RedisError};

use super::{Cache, within_limit};

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

    /// Returns the messages of all servers until the connection breaks, as `(is_event, text)`.
    pub async fn listen(&self) -> Result<impl Stream<Item = (bool, String)> + Send + use<>, RedisError> {
        let (mut sink, messages) = self.subscriber().await?.split();
        let events = self.keys.events_channel();
        within_limit(sink.subscribe(&[events.clone(), self.keys.wake_channel()])).await?;
        Ok(super::messages(sink, messages).map(move |message| {
            let is_event = message.get_channel_name() == events;
            (is_event, message.get_payload().unwrap_or_default())
        }))
    }
}
