//! Replies to requests that arrive over the broker.
//!
//! A reply goes to the sender's direct reply-to address only. The broker writes this address into the request when a
//! sender asks for it with `amq.rabbitmq.reply-to`. Any other address could name a queue that the sender itself may not
//! publish to, so the server would act with its own rights for a worker that has fewer.

use lapin::{BasicProperties, Channel, message::Delivery, options::BasicPublishOptions, types::ShortString};

/// The start of each address that the broker creates for direct reply-to.
const DIRECT_REPLY_PREFIX: &str = "amq.rabbitmq.reply-to.";

/// Returns true if a delivery names a direct reply-to address.
#[must_use]
pub fn is_requested(delivery: &Delivery) -> bool {
    address(&delivery.properties).is_some()
}

fn address(properties: &BasicProperties) -> Option<&ShortString> {
    properties.reply_to().as_ref().filter(|queue| queue.as_str().starts_with(DIRECT_REPLY_PREFIX))
}

/// Publishes a reply to the direct reply-to address of the delivery, with its correlation id; without such an address,
/// does nothing. The reply is not confirmed, because a sender without a reply repeats its request.
///
/// # Errors
///
/// Returns an error if the channel is closed.
pub async fn send(channel: &Channel, to: &Delivery, body: &[u8]) -> Result<(), lapin::Error> {
    let Some(queue) = address(&to.properties).cloned() else { return Ok(()) };
    let mut properties = BasicProperties::default().with_content_type("application/json".into());
    if let Some(id) = to.properties.correlation_id().clone() {
        properties = properties.with_correlation_id(id);
    }
    channel.basic_publish("".into(), queue, BasicPublishOptions::default(), body, properties).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_direct_reply_to_addresses_are_answered() {
        let is_answered = |queue: &str| address(&BasicProperties::default().with_reply_to(queue.into())).is_some();
        assert!(is_answered("amq.rabbitmq.reply-to.g1h2AA5yZXBseUA0NjI1MzYwNQAAAmMAAAAA.abc=="));
        for queue in ["", "amq.rabbitmq.reply-to", "milvaion.jobs.mail.send", "milvaion.status", "amq.gen-x"] {
            assert!(!is_answered(queue), "{queue}");
        }
        assert_eq!(address(&BasicProperties::default()), None);
    }
}
