//! Cells of PostgreSQL as JSON.
//!
//! What JSON cannot hold exactly is text: numeric, dates and times (ISO 8601), bytea (base64).

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

/// The cell at `place`.
pub(super) fn cell(row: &PgRow, place: usize) -> Result<Value, BuiltinError> {
    let raw = row.try_get_raw(place).map_err(classify_error)?;
    if raw.is_null() {
        return Ok(Value::Null);
    }
    let kind = raw.type_info();
    if matches!(kind.kind(), PgTypeKind::Enum(_)) {
        return raw.as_str().map(Value::from).map_err(|_| unread(row, place, kind.name()));
    }
    match kind.name() {
        "BOOL" => get::<bool>(row, place),
        "INT2" => get::<i16>(row, place),
        "INT4" => get::<i32>(row, place),
        "INT8" => get::<i64>(row, place),
        "FLOAT4" => one(row, place, |number: f32| float(number.into())),
        "FLOAT8" => one(row, place, float),
        "NUMERIC" => one(row, place, plain),
        "TEXT" | "VARCHAR" | "CHAR" | "NAME" | "CITEXT" | "XML" | "UNKNOWN" => {
            raw.as_str().map(Value::from).map_err(|_| unread(row, place, kind.name()))
        }
        "UUID" => one(row, place, |id: Uuid| id.to_string()),
        "JSON" | "JSONB" => one(row, place, |value: Value| value),
        "TIMESTAMPTZ" => one(row, place, instant),
        "TIMESTAMP" => one(row, place, |time: NaiveDateTime| time.format("%Y-%m-%dT%H:%M:%S%.f").to_string()),
        "DATE" => one(row, place, |date: NaiveDate| date.to_string()),
        "TIME" => one(row, place, |time: NaiveTime| time.to_string()),
        "INTERVAL" => one(row, place, interval),
        "BYTEA" => one(row, place, |bytes: Vec<u8>| BASE64_STANDARD.encode(bytes)),
        "BOOL[]" => list(row, place, |value: bool| value),
        "INT2[]" => list(row, place, |value: i16| value),
        "INT4[]" => list(row, place, |value: i32| value),
        "INT8[]" => list(row, place, |value: i64| value),
        "FLOAT8[]" => list(row, place, float),
        "NUMERIC[]" => list(row, place, plain),
        "TEXT[]" | "VARCHAR[]" => list(row, place, |value: String| value),
        "UUID[]" => list(row, place, |id: Uuid| id.to_string()),
        "TIMESTAMPTZ[]" => list(row, place, instant),
        other => Err(unread(row, place, other)),
    }
}

fn unread(row: &PgRow, place: usize, kind: &str) -> BuiltinError {
    let name = row.column(place).name();
    BuiltinError::permanent(format!(
        "the column {name:?} has the type {}, which is not read; cast it in the statement, as in {name}::text",
        kind.to_lowercase()
    ))
}

fn get<'r, T: Decode<'r, Postgres> + Type<Postgres> + Into<Value>>(
    row: &'r PgRow,
    place: usize,
) -> Result<Value, BuiltinError> {
    row.try_get::<T, _>(place).map(Into::into).map_err(classify_error)
}

fn one<'r, T: Decode<'r, Postgres> + Type<Postgres>, V: Into<Value>>(
    row: &'r PgRow,
    place: usize,
    show: impl Fn(T) -> V,
) -> Result<Value, BuiltinError> {
    row.try_get::<T, _>(place).map(|value| show(value).into()).map_err(classify_error)
}

fn list<'r, T, V: Into<Value>>(row: &'r PgRow, place: usize, show: impl Fn(T) -> V) -> Result<Value, BuiltinError>
where
    Vec<Option<T>>: Decode<'r, Postgres> + Type<Postgres>,
{
    let items = row.try_get::<Vec<Option<T>>, _>(place).map_err(classify_error)?;
    Ok(items.into_iter().map(|item| item.map_or(Value::Null, |item| show(item).into())).collect())
}

/// JSON has no infinity and no NaN; they are texts.
fn float(number: f64) -> Value {
    serde_json::Number::from_f64(number).map_or_else(|| Value::from(number.to_string()), Value::Number)
}

/// The value counts and not how it was written: sqlx fills up the digits behind the point with zeros.
fn plain(number: BigDecimal) -> String {
    number.normalized().to_plain_string()
}

fn instant(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::AutoSi, true)
}

/// ISO 8601, in the three parts PostgreSQL keeps apart.
fn interval(interval: PgInterval) -> String {
    let PgInterval { months, days, microseconds } = interval;
    let sign = if microseconds < 0 { "-" } else { "" };
    let (seconds, rest) = (microseconds.unsigned_abs() / 1_000_000, microseconds.unsigned_abs() % 1_000_000);
    format!("P{months}M{days}DT{sign}{seconds}.{rest:06}S")
}
