//! Reads values as every language writes them.
//!
//! JSON has one kind of number. A program in JavaScript, Lua or PHP may write twelve as `12.0` or `1.2e1`, and JSON Schema
//! counts both as integers. serde refuses them for an integer field, and a refused field costs the whole message. So the
//! fields of the messages use these functions: a number without a fraction is taken where a whole number stands. A measured
//! value, such as a duration, is rounded.
//!
//! A program in Java or Go writes a field without a value as null. In a field with a default that is the same as a missing
//! field.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, Unexpected, Visitor},
};
use serde_json::Value;

/// An integer type of the messages.
pub(crate) trait WholeNumber: Copy {
    /// The smallest value.
    const MIN: i128;
    /// The largest value.
    const MAX: i128;

    /// Converts a number, if it is within the bounds.
    fn convert(number: i128) -> Option<Self>;
}

macro_rules! whole_number {
    ($($name:ident)+) => {
        $(impl WholeNumber for $name {
            const MIN: i128 = $name::MIN as i128;
            const MAX: i128 = $name::MAX as i128;

            fn convert(number: i128) -> Option<Self> {
                Self::try_from(number).ok()
            }
        })+
    };
}

whole_number!(u8 u16 u32 u64 i16 i64);

/// A percentage: a number outside of 0 to 100 is taken as the nearest of the two.
#[derive(Clone, Copy)]
struct Percentage(u8);

impl WholeNumber for Percentage {
    const MIN: i128 = 0;
    const MAX: i128 = 100;

    fn convert(number: i128) -> Option<Self> {
        u8::try_from(number.clamp(Self::MIN, Self::MAX)).ok().map(Self)
    }
}

/// Reads a number; with `ROUNDS`, one with a fraction too.
struct NumberVisitor<T, const ROUNDS: bool>(PhantomData<T>);

impl<T: WholeNumber, const ROUNDS: bool> NumberVisitor<T, ROUNDS> {
    fn take<E: de::Error>(&self, number: i128, given: Unexpected<'_>) -> Result<T, E> {
        T::convert(number).ok_or_else(|| E::invalid_value(given, self))
    }
}

impl<T: WholeNumber, const ROUNDS: bool> Visitor<'_> for NumberVisitor<T, ROUNDS> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if ROUNDS { "number" } else { "whole number" };
        write!(f, "a {kind} from {} to {}", T::MIN, T::MAX)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.take(number.into(), Unexpected::Unsigned(number))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.take(number.into(), Unexpected::Signed(number))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        let whole = number.round();
        if !ROUNDS && whole != number || !whole.is_finite() {
            return Err(E::invalid_value(Unexpected::Float(number), &self));
        }
        // A float outside the range of the type becomes its largest or smallest value, which no field takes.
        #[expect(clippy::cast_possible_truncation, reason = "the value is whole, and the bounds are checked below")]
        self.take(whole as i128, Unexpected::Float(number))
    }
}

/// A whole number, for fields that may be missing.
struct Number<T, const ROUNDS: bool>(T);

impl<'de, T: WholeNumber, const ROUNDS: bool> Deserialize<'de> for Number<T, ROUNDS> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor::<T, ROUNDS>(PhantomData)).map(Self)
    }
}

/// Reads a whole number.
pub(crate) fn number<'de, D: Deserializer<'de>, T: WholeNumber>(deserializer: D) -> Result<T, D::Error> {
    Number::<T, false>::deserialize(deserializer).map(|number| number.0)
}

/// Reads a code. A format without types, such as the query of an address, parses its text for it; JSON takes `12.0` too.
pub(crate) fn code<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i16, D::Error> {
    deserializer.deserialize_i16(NumberVisitor::<i16, false>(PhantomData))
}

/// Reads a whole number; null is the default.
pub(crate) fn number_or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: WholeNumber + Default,
{
    optional(deserializer).map(Option::unwrap_or_default)
}

/// Reads a value; null is the default.
pub(crate) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads a value that only explains something. One that cannot be read counts as missing.
pub(crate) fn readable<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: serde::de::DeserializeOwned,
{
    Value::deserialize(deserializer).map(|value| serde_json::from_value(value).ok())
}

/// Reads a whole number or null.
pub(crate) fn optional<'de, D: Deserializer<'de>, T: WholeNumber>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Number<T, false>>::deserialize(deserializer)?.map(|number| number.0))
}

/// Reads a number or null, and rounds it.
pub(crate) fn rounded<'de, D: Deserializer<'de>, T: WholeNumber>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Number<T, true>>::deserialize(deserializer)?.map(|number| number.0))
}

/// Reads a percentage: rounds it, and takes one outside of 0 to 100 as the nearest of them.
pub(crate) fn percent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    let number = Number::<Percentage, true>::deserialize(deserializer)?.0;
    Ok(number.0)
}

/// Returns the default of an attempt and of the version of the protocol.
pub(crate) const fn one() -> u32 {
    1
}

/// Reads the number of an attempt, from 1; null is 1.
pub(crate) fn attempt<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    optional_attempt(deserializer).map(|attempt| attempt.unwrap_or(1))
}

/// Reads the number of an attempt, from 1, or null.
pub(crate) fn optional_attempt<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    match optional(deserializer)? {
        Some(0) => Err(de::Error::custom("invalid value: attempts are counted from 1")),
        attempt => Ok(attempt),
    }
}

/// Reads the version of the protocol; null is 1.
pub(crate) fn protocol<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    optional(deserializer).map(|number| number.unwrap_or(1))
}

/// Reads a priority; null is the one in the middle.
pub(crate) fn priority<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    optional(deserializer).map(|number| number.unwrap_or(3))
}

/// Reads the name of a time zone; null is UTC.
pub(crate) fn zone<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Option::<String>::deserialize(deserializer).map(|zone| zone.unwrap_or_else(|| "UTC".to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Numbers {
        #[serde(default, deserialize_with = "optional")]
        whole: Option<u32>,
        #[serde(default, deserialize_with = "rounded")]
        round: Option<u64>,
        #[serde(default, deserialize_with = "percent")]
        percent: u8,
    }

    fn read(json: serde_json::Value) -> Result<Numbers, String> {
        serde_json::from_str(&json.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn whole_number_may_have_a_fraction_of_zero() {
        for twelve in [json!(12), json!(12.0), json!(1.2e1)] {
            assert_eq!(read(json!({ "whole": twelve })).expect("a whole number").whole, Some(12));
        }
        assert_eq!(read(json!({ "whole": null })).expect("no number").whole, None);
        for (wrong, text) in [
            (json!(12.5), "floating point `12.5`, expected a whole number from 0 to 4294967295"),
            (json!(-1), "integer `-1`, expected a whole number"),
            (json!(4_294_967_296_u64), "expected a whole number"),
            (json!(1e300), "expected a whole number"),
            (json!("12"), "string \"12\", expected a whole number"),
        ] {
            let error = read(json!({ "whole": wrong })).expect_err("no whole number");
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn measured_value_is_rounded() {
        assert_eq!(read(json!({ "round": 1163.07 })).expect("a number").round, Some(1163));
        assert_eq!(read(json!({ "round": -0.4 })).expect("a number").round, Some(0));
        assert!(read(json!({ "round": -1.5 })).is_err());
        assert!(read(json!({ "round": 1e30 })).is_err());
        for (given, taken) in [(json!(33.4), 33), (json!(140), 100), (json!(-3), 0), (json!(1e300), 100)] {
            assert_eq!(read(json!({ "percent": given })).expect("a percentage").percent, taken);
        }
    }
}
