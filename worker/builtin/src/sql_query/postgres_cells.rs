//! PostgreSQL values as JSON.
//!
//! Values that JSON cannot represent exactly become strings: numeric, dates and times (ISO 8601), bytea (base64).

use base64::{Engine, prelude::BASE64_STANDARD};
use chrono::SecondsFormat;
use serde_json::Value;
use sqlx::{
    Column, Decode, Postgres, Row, Type, TypeInfo, ValueRef,
    postgres::{PgRow, PgTypeKind, types::PgInterval},
    types::{
        BigDecimal, Uuid,
        chrono::{DateTime, NaiveDate, NaiveDateTime, NaiveTime, Utc},
    },
};

use super::error_class::classify_error;
use crate::context::BuiltinError;

/// Returns the cell at `index` as JSON.
///
/// # Errors
/// Returns a permanent error that names the column if its type is not supported.
pub(super) fn cell(row: &PgRow, index: usize) -> Result<Value, BuiltinError> {
    let raw = row.try_get_raw(index).map_err(classify_error)?;
    if raw.is_null() {
        return Ok(Value::Null);
    }
    let kind = raw.type_info();
    if matches!(kind.kind(), PgTypeKind::Enum(_)) {
        return raw.as_str().map(Value::from).map_err(|_| unsupported(row, index, kind.name()));
    }
    match kind.name() {
        "BOOL" => get::<bool>(row, index),
        "INT2" => get::<i16>(row, index),
        "INT4" => get::<i32>(row, index),
        "INT8" => get::<i64>(row, index),
        "FLOAT4" => one(row, index, |number: f32| float(number.into())),
        "FLOAT8" => one(row, index, float),
        "NUMERIC" => one(row, index, plain),
        "TEXT" | "VARCHAR" | "CHAR" | "NAME" | "CITEXT" | "XML" | "UNKNOWN" => {
            raw.as_str().map(Value::from).map_err(|_| unsupported(row, index, kind.name()))
        }
        "UUID" => one(row, index, |id: Uuid| id.to_string()),
        "JSON" | "JSONB" => one(row, index, |value: Value| value),
        "TIMESTAMPTZ" => one(row, index, instant),
        "TIMESTAMP" => one(row, index, |time: NaiveDateTime| time.format("%Y-%m-%dT%H:%M:%S%.f").to_string()),
        "DATE" => one(row, index, |date: NaiveDate| date.to_string()),
        "TIME" => one(row, index, |time: NaiveTime| time.to_string()),
        "INTERVAL" => one(row, index, interval),
        "BYTEA" => one(row, index, |bytes: Vec<u8>| BASE64_STANDARD.encode(bytes)),
        "BOOL[]" => list(row, index, |value: bool| value),
        "INT2[]" => list(row, index, |value: i16| value),
        "INT4[]" => list(row, index, |value: i32| value),
        "INT8[]" => list(row, index, |value: i64| value),
        "FLOAT8[]" => list(row, index, float),
        "NUMERIC[]" => list(row, index, plain),
        "TEXT[]" | "VARCHAR[]" => list(row, index, |value: String| value),
        "UUID[]" => list(row, index, |id: Uuid| id.to_string()),
        "TIMESTAMPTZ[]" => list(row, index, instant),
        other => Err(unsupported(row, index, other)),
    }
}

fn unsupported(row: &PgRow, index: usize, kind: &str) -> BuiltinError {
    let name = row.column(index).name();
    BuiltinError::permanent(format!(
        "the column {name:?} has the type {}, which is not supported; cast it in the statement, as in {name}::text",
        kind.to_lowercase()
    ))
}

fn get<'r, T: Decode<'r, Postgres> + Type<Postgres> + Into<Value>>(
    row: &'r PgRow,
    index: usize,
) -> Result<Value, BuiltinError> {
    row.try_get::<T, _>(index).map(Into::into).map_err(classify_error)
}

fn one<'r, T: Decode<'r, Postgres> + Type<Postgres>, V: Into<Value>>(
    row: &'r PgRow,
    index: usize,
    show: impl Fn(T) -> V,
) -> Result<Value, BuiltinError> {
    row.try_get::<T, _>(index).map(|value| show(value).into()).map_err(classify_error)
}

fn list<'r, T, V: Into<Value>>(row: &'r PgRow, index: usize, show: impl Fn(T) -> V) -> Result<Value, BuiltinError>
where
    Vec<Option<T>>: Decode<'r, Postgres> + Type<Postgres>,
{
    let items = row.try_get::<Vec<Option<T>>, _>(index).map_err(classify_error)?;
    Ok(items.into_iter().map(|item| item.map_or(Value::Null, |item| show(item).into())).collect())
}

/// Converts a number to JSON. Infinity and NaN, which JSON lacks, become strings.
fn float(number: f64) -> Value {
    serde_json::Number::from_f64(number).map_or_else(|| Value::from(number.to_string()), Value::Number)
}

/// Formats a number by its value and not as it was written, because sqlx pads the fraction with zeros.
fn plain(number: BigDecimal) -> String {
    number.normalized().to_plain_string()
}

fn instant(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::AutoSi, true)
}

/// Formats an interval by ISO 8601, in the three parts that PostgreSQL stores.
fn interval(interval: PgInterval) -> String {
    let PgInterval { months, days, microseconds } = interval;
    let sign = if microseconds < 0 { "-" } else { "" };
    let (seconds, rest) = (microseconds.unsigned_abs() / 1_000_000, microseconds.unsigned_abs() % 1_000_000);
    format!("P{months}M{days}DT{sign}{seconds}.{rest:06}S")
}
