//! The AsyncAPI 3 document of the protocol, for `docs/protocol`: exchanges, queues, channels and messages from the
//! viewpoint of a worker.
//!
//! Names and arguments come from [`topology`](crate::topology), payloads refer to the JSON Schemas beside the document. What
//! a document of this kind cannot express (claims, acknowledgements, the order of steps) is on the page.

use serde_json::{Map, Value, json};

use crate::{
    message::PROTOCOL_VERSION,
    topology::{MAX_PRIORITY, RedisKeys, Topology},
};

/// A message: its name, the schemas of its payload and of its headers, and its title.
const MESSAGES: [(&str, &str, Option<&str>, &str); 12] = [
    ("job", "job-message", Some("job-headers"), "Run one attempt of an occurrence"),
    ("jobBundle", "job-bundle", None, "Run the first attempts of several occurrences"),
    ("deadLetter", "job-message", Some("dead-letter-headers"), "A job message that a worker gives up"),
    ("status", "status-message", None, "Status reports of attempts"),
    ("log", "log-message", None, "Log lines of an occurrence"),
    ("registration", "registration-message", None, "Hello, heartbeat or goodbye of an instance"),
    ("helloReply", "hello-reply", None, "The answer to a hello"),
    ("claimRequest", "claim-request", None, "May this attempt start?"),
    ("claimReply", "claim-reply", None, "The answer to a claim check"),
    ("ingest", "ingest-message", None, "New occurrences"),
    ("ingestReply", "ingest-reply", None, "The answer to new occurrences"),
    ("cancel", "cancel-message", None, "End an attempt"),
];

/// The exchanges to which workers publish: the name of the channel, its message, and the message of the answer.
const PUBLISHED: [(&str, &str, Option<&str>); 5] = [
    ("status", "status", None),
    ("logs", "log", None),
    ("registration", "registration", Some("helloReply")),
    ("claims", "claimRequest", Some("claimReply")),
    ("ingest", "ingest", Some("ingestReply")),
];

/// Returns the document.
#[must_use]
pub fn document() -> Value {
    let (names, keys) = (Topology::default(), RedisKeys::default());
    let mut channels = Map::new();
    let mut operations = Map::new();

    let jobs = names.jobs_exchange();
    for (channel, end, title, operation, summary) in [
        (
            "jobs",
            "",
            "The queue of a job type",
            "receiveJob",
            "Run an attempt, or those of a bundle, for a worker that announces bundles. Acknowledge it by hand; reject without \
             requeue what cannot be read, and a bundle that is redelivered.",
        ),
        (
            "criticalJobs",
            ".critical",
            "The queue of the critical runs of a job type, which an instance declares that announces criticalSlots",
            "receiveCriticalJob",
            "Run attempts of the priority 5 in reserved slots. Everything else is as for the queue of the job type.",
        ),
    ] {
        let address = format!("{jobs}.{{worker}}.{{type}}{end}");
        channels.insert(channel.into(), json!({
            "address": address,
            "title": title,
            "description": format!(
                "Bound to the topic exchange {jobs} with the key {{worker}}.{{type}}.*{end}. Arguments: x-max-priority \
                 {MAX_PRIORITY}, x-dead-letter-exchange {}, x-queue-type classic.",
                names.dead_letter_exchange()
            ),
            "servers": [reference("servers", "rabbitmq")],
            "parameters": {
                "worker": { "description": "The worker id as one word: lower case, `_` doubled, `.` replaced by `_d`." },
                "type": { "description": "The job type, converted in the same way." },
            },
            "messages": {
                "job": reference("components/messages", "job"),
                "jobBundle": reference("components/messages", "jobBundle"),
            },
            "bindings": { "amqp": queue(&address) },
        }));
        let messages = format!("channels/{channel}/messages");
        operations.insert(
            operation.into(),
            json!({
                "action": "receive",
                "channel": reference("channels", channel),
                "summary": summary,
                "messages": [reference(&messages, "job"), reference(&messages, "jobBundle")],
                "bindings": { "amqp": { "ack": true, "bindingVersion": "0.3.0" } },
            }),
        );
    }

    for (channel, message, answer) in PUBLISHED {
        let name = match channel {
            "status" => names.status(),
            "logs" => names.logs(),
            "registration" => names.registration(),
            "claims" => names.claims(),
            _ => names.ingest(),
        };
        channels.insert(
            channel.into(),
            json!({
                "address": name,
                "description": "A direct exchange with a queue of the same name, bound with that name.",
                "servers": [reference("servers", "rabbitmq")],
                "messages": { (message): reference("components/messages", message) },
                "bindings": { "amqp": exchange(&name, "direct") },
            }),
        );
        let mut operation = json!({
            "action": "send",
            "channel": reference("channels", channel),
            "messages": [reference(&format!("channels/{channel}/messages"), message)],
        });
        // A claim check that is lost is sent again, so it needs neither.
        if channel != "claims" {
            operation["bindings"] =
                json!({ "amqp": { "deliveryMode": 2, "mandatory": true, "bindingVersion": "0.3.0" } });
        }
        if let Some(answer) = answer {
            let replies = format!("{channel}Replies");
            operation["reply"] = json!({
                "address": {
                    "location": "$message.header#/replyTo",
                    "description": "The property reply_to, set to amq.rabbitmq.reply-to.",
                },
                "channel": reference("channels", &replies),
                "messages": [reference(&format!("channels/{replies}/messages"), answer)],
            });
            channels.insert(
                replies,
                json!({
                    "address": null,
                    "description": "The direct reply-to address of the sender, with the correlation_id of the request.",
                    "servers": [reference("servers", "rabbitmq")],
                    "messages": { (answer): reference("components/messages", answer) },
                }),
            );
        }
        operations.insert(format!("send{}{}", channel[..1].to_uppercase(), &channel[1..]), operation);
    }

    let dead = names.dead_letter_exchange();
    channels.insert(
        "deadLetters".into(),
        json!({
            "address": dead,
            "description": format!("A fanout exchange with the queue {}.", names.dead_letter_queue()),
            "servers": [reference("servers", "rabbitmq")],
            "messages": { "deadLetter": reference("components/messages", "deadLetter") },
            "bindings": { "amqp": exchange(&dead, "fanout") },
        }),
    );
    operations.insert(
        "sendDeadLetter".into(),
        json!({
            "action": "send",
            "channel": reference("channels", "deadLetters"),
            "summary": "Give up an occurrence; a report Failed with permanent says the same more simply.",
            "messages": [reference("channels/deadLetters/messages", "deadLetter")],
            "bindings": { "amqp": { "deliveryMode": 2, "mandatory": true, "bindingVersion": "0.3.0" } },
        }),
    );
    channels.insert(
        "cancellations".into(),
        json!({
            "address": keys.cancellation_channel(),
            "description": "A channel of Redis. The key of the occurrence has the same message.",
            "servers": [reference("servers", "redis")],
            "messages": { "cancel": reference("components/messages", "cancel") },
        }),
    );
    operations.insert(
        "receiveCancellation".into(),
        json!({
            "action": "receive",
            "channel": reference("channels", "cancellations"),
            "messages": [reference("channels/cancellations/messages", "cancel")],
        }),
    );

    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Milvaion worker protocol",
            "version": PROTOCOL_VERSION.to_string(),
            "description": "The messages between Milvaion's server and its workers, from the viewpoint of a worker. README.md \
                            beside this file has the rules that a worker follows.",
        },
        "defaultContentType": "application/json",
        "servers": {
            "rabbitmq": { "host": "localhost:5672", "protocol": "amqp", "description": "RabbitMQ" },
            "redis": { "host": "localhost:6379", "protocol": "redis", "description": "Redis, for claims and cancellations" },
        },
        "channels": channels,
        "operations": operations,
        "components": { "messages": messages() },
    })
}

fn messages() -> Value {
    let schema = |file: &str| {
        json!({
            "schemaFormat": "application/schema+json;version=draft-2020-12",
            "schema": { "$ref": format!("./{file}.schema.json") },
        })
    };
    let message = |(name, payload, headers, title): &(&str, &str, Option<&str>, &str)| {
        let mut message = json!({ "name": name, "title": title, "payload": schema(payload) });
        if let Some(headers) = headers {
            message["headers"] = schema(headers);
        }
        ((*name).to_owned(), message)
    };
    MESSAGES.iter().map(message).collect::<Map<String, Value>>().into()
}

fn reference(section: &str, name: &str) -> Value {
    json!({ "$ref": format!("#/{section}/{name}") })
}

fn exchange(name: &str, kind: &str) -> Value {
    json!({
        "is": "routingKey",
        "exchange": { "name": name, "type": kind, "durable": true, "autoDelete": false },
        "bindingVersion": "0.3.0",
    })
}

fn queue(name: &str) -> Value {
    json!({
        "is": "queue",
        "queue": { "name": name, "durable": true, "exclusive": false, "autoDelete": false },
        "bindingVersion": "0.3.0",
    })
}
