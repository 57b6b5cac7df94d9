//! Answers to those who asked over the broker.

use lapin::{BasicProperties, options::BasicPublishOptions};

use super::consumer::{Channel, Delivery};

/// Whether somebody waits for an answer to a delivery.
#[must_use]
pub fn is_requested(delivery: &Delivery) -> bool {
    delivery.properties.reply_to().is_some()
}

/// Sends an answer to whoever the delivery names, with its own correlation id. It is not confirmed: whoever hears nothing
/// asks again.
///
/// # Errors
///
/// When the channel is gone.
pub async fn send(channel: &Channel, to: &Delivery, body: &[u8]) -> Result<(), lapin::Error> {
    let Some(queue) = to.properties.reply_to().clone() else { return Ok(()) };
    let mut properties = BasicProperties::default().with_content_type("application/json".into());
    if let Some(id) = to.properties.correlation_id().clone() {
        properties = properties.with_correlation_id(id);
    }
    channel.basic_publish("".into(), queue, BasicPublishOptions::default(), body, properties).await.map(drop)
}
