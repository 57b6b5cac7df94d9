//! The system to which an outbox belongs.
//!
//! Several systems can share a machine and a user: staging and production, or two installations. A worker of one system
//! must not send the reports of another one: its server does not know their runs and ignores the reports, and they would
//! be erased as confirmed. A file therefore contains the system for which it was written, and its name has a hash of it.

use std::fmt;

use lapin::uri::AMQPUri;
use sha2::{Digest, Sha256};

/// Number of bytes of the hash in the name of a file.
const HASH_BYTES: usize = 4;

/// A broker, and the names that one server and its workers use on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OutboxSystem {
    /// Host and port of the broker, in lower case.
    pub(super) broker: String,
    /// The virtual host.
    pub(super) vhost: String,
    /// The prefix of the names of exchanges and queues.
    pub(super) prefix: String,
}

impl OutboxSystem {
    /// Returns the system that a worker with these settings belongs to.
    pub(crate) fn new(amqp: &AMQPUri, prefix: &str) -> Self {
        let broker = format!("{}:{}", amqp.authority.host.to_lowercase(), amqp.authority.port);
        Self { broker, vhost: amqp.vhost.clone(), prefix: prefix.to_owned() }
    }

    /// Returns the hash in the names of its files.
    pub(super) fn hash(&self) -> String {
        let Self { broker, vhost, prefix } = self;
        let digest = Sha256::digest(format!("{broker}\n{vhost}\n{prefix}"));
        digest.iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns true if a part of a name can be the hash of a system.
    pub(super) fn is_hash(text: &str) -> bool {
        text.len() == 2 * HASH_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

impl fmt::Display for OutboxSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broker {}, virtual host {:?}, prefix {:?}", self.broker, self.vhost, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_vhost_and_prefix_distinguish_systems() {
        let system = |url: &str, prefix| OutboxSystem::new(&url.parse().expect("valid"), prefix);
        let production = system("amqp://user:secret@Mq.example.com:5672/%2f", "milvaion");
        assert_eq!(production, system("amqp://other@mq.example.com/%2f", "milvaion"));
        for other in [
            system("amqp://mq.example.com:5673/%2f", "milvaion"),
            system("amqp://staging.example.com/%2f", "milvaion"),
            system("amqp://mq.example.com/staging", "milvaion"),
            system("amqp://mq.example.com/%2f", "staging"),
        ] {
            assert_ne!(other, production);
            assert_ne!(other.hash(), production.hash());
        }
        assert!(OutboxSystem::is_hash(&production.hash()));
        assert!(!production.to_string().contains("secret"));
    }
}
