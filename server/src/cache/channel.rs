//! Channels on which servers tell each other things: that the schedule changed, and what browsers should hear.

use futures::{Stream, StreamExt};
use redis::{AsyncCommands, RedisError};

use super::Cache;

impl Cache {
    /// Tells every server that the schedule changed.
    ///
    /// # Errors
    ///
    /// When Redis does not answer.
    pub async fn announce_schedule_change(&self) -> Result<(), RedisError> {
        self.connection().publish(self.keys.wake_channel(), "").await
    }

    /// Tells every server, this one included, what browsers should hear.
    ///
    /// # Errors
    ///
    /// When Redis does not answer.
    pub async fn publish_events(&self, envelopes: &[String]) -> Result<(), RedisError> {
        let mut pipe = redis::pipe();
        for envelope in envelopes {
            pipe.publish(self.keys.events_channel(), envelope).ignore();
        }
        pipe.query_async(&mut self.connection()).await
    }

    /// What other servers say, until the connection breaks: `(is_event, text)`.
    ///
    /// # Errors
    ///
    /// When Redis does not answer.
    pub async fn listen(&self) -> Result<impl Stream<Item = (bool, String)> + Send + use<>, RedisError> {
        let mut subscriber = self.subscriber().await?;
        let events = self.keys.events_channel();
        subscriber.subscribe(&[events.clone(), self.keys.wake_channel()]).await?;
        Ok(subscriber.into_on_message().map(move |message| {
            let is_event = message.get_channel_name() == events;
            (is_event, message.get_payload().unwrap_or_default())
        }))
    }
}
