//! The clock and the time zone of the browser.

use std::cell::OnceCell;

use js_sys::{Array, Object, Reflect};
use wasm_bindgen::JsValue;

#[cfg(feature = "hydrate")]
pub use self::zone::zone_offset;
use super::{IN_BROWSER, window};

/// Returns the browser's clock, in milliseconds since 1970; 0 on the server.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "a browser's clock fits into 53 bits")]
pub fn now_millis() -> i64 {
    if IN_BROWSER { js_sys::Date::now() as i64 } else { 0 }
}

/// Returns the browser's clock at which the first byte of this page arrived, in milliseconds since 1970.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "a browser's clock fits into 53 bits")]
pub fn page_arrived_millis() -> i64 {
    let performance = window().and_then(|window| window.performance());
    performance.map_or_else(now_millis, |performance| performance.timing().response_start() as i64)
}

/// Returns the browser's clock at the request of this document, in milliseconds since 1970.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "a browser's clock fits into 53 bits")]
pub fn requested_millis() -> i64 {
    let performance = window().and_then(|window| window.performance());
    performance.map_or_else(now_millis, |performance| performance.time_origin() as i64)
}

/// Returns the IANA name of the user's zone. The server reads the cookie `zone` instead.
#[must_use]
pub fn zone_name() -> Option<String> {
    thread_local! {
        static OWN_ZONE: OnceCell<Option<String>> = const { OnceCell::new() };
    }
    let read = || {
        let options = js_sys::Intl::DateTimeFormat::new(&Array::new(), &Object::new()).resolved_options();
        Reflect::get(&options, &JsValue::from_str("timeZone")).ok()?.as_string()
    };
    if IN_BROWSER { OWN_ZONE.with(|zone| zone.get_or_init(read).clone()) } else { None }
}

/// Generates a unique idempotency key for a request that may be sent twice. It is empty in a plain form, which the
/// browser sends once.
#[must_use]
pub fn random_key() -> String {
    if !IN_BROWSER {
        return String::new();
    }
    let random = || js_sys::Math::random().to_bits();
    format!("{:x}-{:016x}-{:016x}", now_millis(), random(), random())
}

/// Returns the distance of a zone from UTC at an instant, in minutes; `None` if there is no such zone. The result is
/// the browser's, because hydration must find the same text.
#[cfg(not(feature = "hydrate"))]
#[must_use]
pub fn zone_offset(zone: &str, at: chrono::DateTime<chrono::Utc>) -> Option<i32> {
    use chrono::Offset;

    let local = at.with_timezone(&milvaion_schedule::schedule::parse_zone(zone).ok()?);
    Some(local.offset().fix().local_minus_utc() / 60)
}

/// The distance of a zone from UTC, from the browser's table of zones.
#[cfg(feature = "hydrate")]
mod zone {
    use std::cell::RefCell;

    use chrono::{DateTime, NaiveDate, Utc};
    use js_sys::{Array, Function, Object, Reflect};
    use wasm_bindgen::{JsCast, JsValue};

    /// A zone and the function that formats an instant in it; none if the browser does not know the zone.
    type ZoneFormat = (String, Option<Function>);

    thread_local! {
        /// The last other zone, because its creation takes much longer than its use.
        static ZONE_FORMAT: RefCell<Option<ZoneFormat>> = const { RefCell::new(None) };
    }

    /// Returns the distance of a zone from UTC at an instant, in minutes; `None` if the browser does not know the zone.
    #[must_use]
    pub fn zone_offset(zone: &str, at: DateTime<Utc>) -> Option<i32> {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit into 53 bits")]
        let millis = JsValue::from_f64(at.timestamp_millis() as f64);
        if super::zone_name().as_deref() == Some(zone) {
            #[expect(clippy::cast_possible_truncation, reason = "a zone is at most a day away from UTC")]
            return Some(-js_sys::Date::new(&millis).get_timezone_offset() as i32);
        }
        let text = ZONE_FORMAT.with_borrow_mut(|last| {
            if last.as_ref().is_none_or(|(name, _)| name != zone) {
                *last = Some((zone.to_owned(), zone_format(zone)));
            }
            let (_, format) = last.as_ref()?;
            format.as_ref()?.call1(&JsValue::UNDEFINED, &millis).ok()?.as_string()
        })?;
        // `11/21/2026, 14:02:05`.
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok());
        let mut next = || numbers.next();
        let (month, day, year) = (next()?, next()?, next()?);
        let (hour, minute, second) = (next()?, next()?, next()?);
        let date = NaiveDate::from_ymd_opt(i32::try_from(year).ok()?, month, day)?;
        let local = date.and_hms_opt(hour, minute, second)?.and_utc();
        i32::try_from((local.timestamp() - at.timestamp()) / 60).ok()
    }

    /// Returns a function that formats an instant in a zone. The constructor is called by name, because it throws if the
    /// browser does not know the zone.
    fn zone_format(zone: &str) -> Option<Function> {
        let intl = Reflect::get(&js_sys::global(), &JsValue::from_str("Intl")).ok()?;
        let constructor: Function = Reflect::get(&intl, &JsValue::from_str("DateTimeFormat")).ok()?.dyn_into().ok()?;
        let options = Object::new();
        let parts = [
            ("timeZone", zone),
            ("hourCycle", "h23"),
            ("year", "numeric"),
            ("month", "2-digit"),
            ("day", "2-digit"),
            ("hour", "2-digit"),
            ("minute", "2-digit"),
            ("second", "2-digit"),
        ];
        for (name, value) in parts {
            Reflect::set(&options, &JsValue::from_str(name), &JsValue::from_str(value)).ok()?;
        }
        let arguments = Array::of2(&JsValue::from_str("en-US"), &options);
        let formatter = Reflect::construct(&constructor, &arguments).ok()?;
        Reflect::get(&formatter, &JsValue::from_str("format")).ok()?.dyn_into().ok()
    }
}
