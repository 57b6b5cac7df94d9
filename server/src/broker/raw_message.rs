//! A delivery with its properties, in plain values.

use lapin::{
    message::Delivery,
    types::{AMQPValue, FieldTable},
};
use milvaion_protocol::storable::{clean_text, clean_value};
use serde_json::{Map, Value};

use crate::domain::message::MESSAGE_ID_KEY;

/// The most bytes of headers that are kept, as JSON.
const MAX_HEADER_BYTES: usize = 16 * 1024;
/// The deepest nesting of headers that is kept. The broker's own headers are two levels deep.
const MAX_HEADER_DEPTH: usize = 6;

/// The maximum length of a message id, in bytes, as AMQP 0-9-1 defines it.
const MAX_MESSAGE_ID_BYTES: usize = 255;

/// A message as it was delivered.
#[derive(Clone, Debug, PartialEq)]
pub struct RawMessage {
    /// The body.
    pub body: Vec<u8>,
    /// The headers, or only their names if they are too large, and the message id as [`MESSAGE_ID_KEY`].
    pub headers: Value,
    /// The exchange it was published to.
    pub exchange: String,
    /// The routing key it was published with.
    pub routing_key: String,
}

impl From<&Delivery> for RawMessage {
    fn from(delivery: &Delivery) -> Self {
        let mut all = delivery.properties.headers().as_ref().map_or_else(|| Value::Object(Map::new()), headers);
        let id = delivery.properties.message_id().as_ref().map(|id| clean_text(id.as_str()));
        if let (Value::Object(all), Some(id)) = (&mut all, id.filter(|id| id.len() <= MAX_MESSAGE_ID_BYTES)) {
            all.entry(MESSAGE_ID_KEY).or_insert(Value::String(id));
        }
        Self {
            body: delivery.data.clone(),
            headers: all,
            exchange: clean_text(delivery.exchange.as_str()),
            routing_key: clean_text(delivery.routing_key.as_str()),
        }
    }
}

fn headers(table: &FieldTable) -> Value {
    let all = clean_value(object(table, 0));
    if all.to_string().len() <= MAX_HEADER_BYTES {
        return all;
    }
    let names: Vec<String> =
        table.inner().keys().take(50).map(|name| clean_text(name.as_str()).chars().take(100).collect()).collect();
    serde_json::json!({ "tooLarge": names })
}

fn object(table: &FieldTable, depth: usize) -> Value {
    Value::Object(table.inner().iter().map(|(name, value)| (name.to_string(), json(value, depth + 1))).collect())
}

fn json(value: &AMQPValue, depth: usize) -> Value {
    if depth > MAX_HEADER_DEPTH {
        return Value::String("…".into());
    }
    match value {
        AMQPValue::Boolean(value) => (*value).into(),
        AMQPValue::ShortShortInt(value) => (*value).into(),
        AMQPValue::ShortShortUInt(value) => (*value).into(),
        AMQPValue::ShortInt(value) => (*value).into(),
        AMQPValue::ShortUInt(value) => (*value).into(),
        AMQPValue::LongInt(value) => (*value).into(),
        AMQPValue::LongUInt(value) => (*value).into(),
        AMQPValue::LongLongInt(value) => (*value).into(),
        AMQPValue::Float(value) => (*value).into(),
        AMQPValue::Double(value) => (*value).into(),
        AMQPValue::Timestamp(value) => (*value).into(),
        AMQPValue::ShortString(text) => text.as_str().into(),
        AMQPValue::LongString(text) => String::from_utf8_lossy(text.as_bytes()).into(),
        AMQPValue::ByteArray(bytes) => String::from_utf8_lossy(bytes.as_slice()).into(),
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(|value| json(value, depth + 1)).collect(),
        AMQPValue::FieldTable(table) => object(table, depth),
        AMQPValue::DecimalValue(_) | AMQPValue::Void => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use lapin::types::FieldArray;

    use super::*;

    #[test]
    fn headers_become_plain_values() {
        let mut death = FieldTable::default();
        death.insert("queue".into(), AMQPValue::LongString("q\0".into()));
        death.insert("count".into(), AMQPValue::LongLongInt(2));
        let mut deaths = FieldArray::default();
        deaths.push(AMQPValue::FieldTable(death));
        let mut table = FieldTable::default();
        table.insert("x-death".into(), AMQPValue::FieldArray(deaths));
        assert_eq!(headers(&table), serde_json::json!({"x-death": [{"queue": "q\u{fffd}", "count": 2}]}));
    }

    #[test]
    fn oversized_headers_leave_their_names() {
        let mut table = FieldTable::default();
        table.insert("big".into(), AMQPValue::LongString("x".repeat(MAX_HEADER_BYTES).into()));
        assert_eq!(headers(&table), serde_json::json!({"tooLarge": ["big"]}));
        let mut deep = FieldTable::default();
        for _ in 0..100 {
            let mut outer = FieldTable::default();
            outer.insert("in".into(), AMQPValue::FieldTable(deep));
            deep = outer;
        }
        assert!(headers(&deep).to_string().len() < 100);
    }
}
