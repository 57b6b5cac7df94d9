//! JSON values as parameters of the types that PostgreSQL reports.

use std::{fmt::Display, str::FromStr};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::Value;
use sqlx::{
    Arguments, Either, Encode, Postgres, Statement, Type, TypeInfo,
    postgres::{PgArguments, PgHasArrayType, PgStatement, PgTypeInfo, PgTypeKind},
    types::{
        BigDecimal, Json, Uuid,
        chrono::{DateTime, FixedOffset, NaiveDate, NaiveDateTime, NaiveTime},
    },
};

use crate::context::BuiltinError;

/// Converts `values` to the parameters of `statement`.
///
/// # Errors
/// Returns a permanent error if their number differs, or one that names the value that cannot be bound.
pub(super) fn bind(statement: &PgStatement, values: &[Value]) -> Result<PgArguments, BuiltinError> {
    let kinds = match statement.parameters() {
        Some(Either::Left(kinds)) => kinds,
        _ => &[],
    };
    if kinds.len() != values.len() {
        return Err(BuiltinError::permanent(format!(
            "the statement has {} parameters and `parameters` has {} entries; give one for each",
            kinds.len(),
            values.len()
        )));
    }
    let mut arguments = PgArguments::default();
    for (index, (value, kind)) in values.iter().zip(kinds).enumerate() {
        // The value is not repeated, because it may be a secret.
        add(&mut arguments, value, kind).map_err(|reason| {
            BuiltinError::permanent(format!(
                "`parameters[{index}]` cannot be bound as {}: {reason}; give another value, or cast in the statement, as in ${}::text",
                kind.name().to_lowercase(),
                index + 1
            ))
        })?;
    }
    Ok(arguments)
}

fn add(arguments: &mut PgArguments, value: &Value, kind: &PgTypeInfo) -> Result<(), String> {
    if value.is_null() {
        // NULL is the same for every type.
        return put(arguments, None::<String>);
    }
    if matches!(kind.kind(), PgTypeKind::Enum(_)) {
        return put(arguments, text(value)?.to_owned());
    }
    match kind.name() {
        "BOOL" => put(arguments, value.as_bool().ok_or("it is not true or false")?),
        "INT2" => put(arguments, number::<i16>(value)?),
        "INT4" => put(arguments, number::<i32>(value)?),
        "INT8" => put(arguments, number::<i64>(value)?),
        "FLOAT4" => put(arguments, number::<f32>(value)?),
        "FLOAT8" => put(arguments, number::<f64>(value)?),
        "NUMERIC" => put(arguments, number::<BigDecimal>(value)?),
        "TEXT" | "VARCHAR" | "CHAR" | "NAME" | "CITEXT" | "XML" | "UNKNOWN" => put(arguments, text(value)?.to_owned()),
        "UUID" => put(arguments, read::<Uuid>(value)?),
        "JSON" | "JSONB" => put(arguments, Json(value.clone())),
        "TIMESTAMPTZ" => put(arguments, instant(value)?),
        "TIMESTAMP" => put(arguments, read::<NaiveDateTime>(value)?),
        "DATE" => put(arguments, read::<NaiveDate>(value)?),
        "TIME" => put(arguments, read::<NaiveTime>(value)?),
        "BYTEA" => put(arguments, BASE64_STANDARD.decode(text(value)?).map_err(|_| "it is not base64")?),
        "BOOL[]" => {
            list(arguments, value, |item| item.as_bool().ok_or_else(|| "an entry is not true or false".to_owned()))
        }
        "INT4[]" => list(arguments, value, number::<i32>),
        "INT8[]" => list(arguments, value, number::<i64>),
        "FLOAT8[]" => list(arguments, value, number::<f64>),
        "NUMERIC[]" => list(arguments, value, number::<BigDecimal>),
        "TEXT[]" => list(arguments, value, |item| text(item).map(str::to_owned)),
        "UUID[]" => list(arguments, value, read::<Uuid>),
        "TIMESTAMPTZ[]" => list(arguments, value, instant),
        _ => Err("this type is not supported".to_owned()),
    }
}

fn put<T: for<'a> Encode<'a, Postgres> + Type<Postgres> + 'static>(
    arguments: &mut PgArguments,
    value: T,
) -> Result<(), String> {
    arguments.add(value).map_err(|error| error.to_string())
}

fn list<T>(arguments: &mut PgArguments, value: &Value, read: impl Fn(&Value) -> Result<T, String>) -> Result<(), String>
where
    T: for<'a> Encode<'a, Postgres> + Type<Postgres> + 'static + PgHasArrayType,
{
    let items = value.as_array().ok_or("it is not an array")?;
    let items = items.iter().map(|item| if item.is_null() { Ok(None) } else { read(item).map(Some) });
    put(arguments, items.collect::<Result<Vec<Option<T>>, _>>()?)
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| "it is not a string".to_owned())
}

/// Parses a number, or a string that spells one. Large numbers are written as strings, so that no JSON parser rounds
/// them.
fn number<T: FromStr>(value: &Value) -> Result<T, String> {
    let read = |text: &str| text.parse().map_err(|_| "it is not a number of this type".to_owned());
    match value {
        Value::Number(number) => read(&number.to_string()),
        Value::String(text) => read(text),
        _ => Err("it is not a number".to_owned()),
    }
}

fn read<T: FromStr<Err: Display>>(value: &Value) -> Result<T, String> {
    text(value)?.parse().map_err(|error| format!("it is invalid ({error})"))
}

fn instant(value: &Value) -> Result<DateTime<FixedOffset>, String> {
    DateTime::parse_from_rfc3339(text(value)?)
        .map_err(|_| "it is not a time with an offset, such as 2026-11-21T12:00:00Z".to_owned())
}
