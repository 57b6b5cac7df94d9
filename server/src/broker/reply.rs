//! Replies to requests that arrive over the broker.

use lapin::{BasicProperties, options::BasicPublishOptions};

use super::consumer::{Channel, Delivery};

/// Returns true if the sender of a delivery expects a reply.
#[must_use]
pub fn is_requested(delivery: &Delivery) -> bool {
    delivery.properties.reply_to().is_some()
}

/// Publishes a reply to the queue that the delivery names, with its correlation id. The reply is not confirmed, because
/// a sender without a reply repeats its request.
///
/// # Errors
///
/// Returns an error if the channel is closed.
pub async fn send(channel: &Channel, to: &Delivery, body: &[u8]) -> Result<(), lapin::Error> {
    let Some(queue) = to.properties.reply_to().clone() else { return Ok(()) };
    let mut properties = BasicProperties::default().with_content_type("application/json".into());
    if let Some(id) = to.properties.correlation_id().clone() {
        properties = properties.with_correlation_id(id);
    }
    channel.basic_publish("".into(), queue, BasicPublishOptions::default(), body, properties).await.map(drop)
}
