//! The rules as a form has them: text by field name, and back.

use std::{collections::BTreeMap, str::FromStr};

use crate::{
    request::FieldError,
    rules::{AutoDisable, Blackout, KeyLimit, Misfire, OnLost, Overlap, Rules},
};

/// The fields that show `rules`.
#[must_use]
pub fn write(rules: &Rules) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let mut put = |name: &str, value: String| {
        fields.insert(name.to_owned(), value);
    };
    put("start_at", rules.start_at.map(|at| at.to_rfc3339()).unwrap_or_default());
    put("end_at", rules.end_at.map(|at| at.to_rfc3339()).unwrap_or_default());
    put("jitter_seconds", rules.jitter_seconds.to_string());
    put("calendars", rules.calendars.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
    put("blackout", rules.blackout.word().into());
    put("misfire", rules.misfire.word().into());
    put("catch_up_limit", rules.catch_up_limit.to_string());
    put("catch_up_window_seconds", rules.catch_up_window_seconds.to_string());
    put("overlap", rules.overlap.word().into());
    put("max_concurrent", rules.max_concurrent.map(|n| n.to_string()).unwrap_or_default());
    put("concurrency_key", rules.key_limit.as_ref().map(|key| key.key.clone()).unwrap_or_default());
    put("concurrency_key_limit", rules.key_limit.as_ref().map(|key| key.limit.to_string()).unwrap_or_default());
    put("max_retries", rules.max_retries.to_string());
    put("base_retry_delay_seconds", rules.base_retry_delay_seconds.to_string());
    put("zombie_timeout_seconds", rules.zombie_timeout_seconds.map(|n| n.to_string()).unwrap_or_default());
    put("on_lost", rules.on_lost.word().into());
    let breaker = rules.auto_disable;
    put("auto_disable_threshold", breaker.map(|b| b.threshold.to_string()).unwrap_or_default());
    put("auto_disable_window_seconds", breaker.map(|b| b.window_seconds.to_string()).unwrap_or_default());
    let cool_down = breaker.and_then(|b| b.cool_down_seconds);
    put("auto_disable_cool_down_seconds", cool_down.map(|n| n.to_string()).unwrap_or_default());
    fields
}

/// Reads the fields; what is absent or empty is as usual.
///
/// # Errors
///
/// The wrong fields, named `rules.NAME`.
pub fn read(fields: &BTreeMap<String, String>) -> Result<Rules, Vec<FieldError>> {
    let mut form = Reader { fields, errors: Vec::new() };
    let usual = Rules::default();
    let key = form.text("concurrency_key").map(ToOwned::to_owned);
    let key_limit = form.number("concurrency_key_limit");
    let key_limit = match (key, key_limit) {
        (Some(key), Some(limit)) => Some(KeyLimit { key, limit }),
        (Some(key), None) => Some(KeyLimit { key, limit: 1 }),
        (None, Some(_)) => {
            form.wrong("concurrency_key", "name the key that the limit is for, or leave the limit empty");
            None
        }
        (None, None) => None,
    };
    let threshold = form.number("auto_disable_threshold");
    let window_seconds = form.number("auto_disable_window_seconds").unwrap_or(3_600);
    let cool_down_seconds = form.number("auto_disable_cool_down_seconds");
    let calendars = form.text("calendars").unwrap_or_default().to_owned();
    let calendars = calendars
        .split(',')
        .map(str::trim)
        .filter(|id| !id.is_empty())
        .filter_map(|id| match id.parse() {
            Ok(id) => Some(id),
            Err(_) => {
                form.wrong("calendars", "choose calendars from the list");
                None
            }
        })
        .collect();
    let rules = Rules {
        start_at: form.instant("start_at"),
        end_at: form.instant("end_at"),
        jitter_seconds: form.number("jitter_seconds").unwrap_or(usual.jitter_seconds),
        calendars,
        blackout: form.word("blackout", Blackout::from_word, Blackout::ALL.iter().map(|b| b.word())),
        misfire: form.word("misfire", Misfire::from_word, Misfire::ALL.iter().map(|m| m.word())),
        catch_up_limit: form.number("catch_up_limit").unwrap_or(usual.catch_up_limit),
        catch_up_window_seconds: form.number("catch_up_window_seconds").unwrap_or(usual.catch_up_window_seconds),
        overlap: form.word("overlap", Overlap::from_word, Overlap::ALL.iter().map(|o| o.word())),
        max_concurrent: form.number("max_concurrent"),
        key_limit,
        max_retries: form.number("max_retries").unwrap_or(usual.max_retries),
        base_retry_delay_seconds: form.number("base_retry_delay_seconds").unwrap_or(usual.base_retry_delay_seconds),
        zombie_timeout_seconds: form.number("zombie_timeout_seconds"),
        on_lost: form.word("on_lost", OnLost::from_word, OnLost::ALL.iter().map(|o| o.word())),
        auto_disable: threshold.map(|threshold| AutoDisable { threshold, window_seconds, cool_down_seconds }),
    };
    if form.errors.is_empty()
        && let Err(wrong) = rules.check()
    {
        for (field, message) in wrong {
            form.wrong(field, &message);
        }
    }
    if form.errors.is_empty() { Ok(rules) } else { Err(form.errors) }
}

struct Reader<'a> {
    fields: &'a BTreeMap<String, String>,
    errors: Vec<FieldError>,
}

impl<'a> Reader<'a> {
    fn wrong(&mut self, field: &str, message: &str) {
        self.errors.push(FieldError::new(format!("rules.{field}"), message));
    }

    fn text(&self, field: &str) -> Option<&'a str> {
        self.fields.get(field).map(|text| text.trim()).filter(|text| !text.is_empty())
    }

    fn number<T: FromStr>(&mut self, field: &str) -> Option<T> {
        let text = self.text(field)?;
        match text.parse() {
            Ok(number) => Some(number),
            Err(_) => {
                let short: String = text.chars().take(40).collect();
                self.wrong(field, &format!("write a whole number: got {short}"));
                None
            }
        }
    }

    fn instant(&mut self, field: &str) -> Option<chrono::DateTime<chrono::Utc>> {
        let text = self.text(field)?;
        match text.parse() {
            Ok(at) => Some(at),
            Err(_) => {
                self.wrong(field, "write a date and time with its offset, as in 2026-11-21T09:00:00Z");
                None
            }
        }
    }

    fn word<T: Default>(
        &mut self,
        field: &str,
        from_word: impl Fn(&str) -> Option<T>,
        all: impl Iterator<Item = &'static str>,
    ) -> T {
        let Some(text) = self.text(field) else { return T::default() };
        from_word(text).unwrap_or_else(|| {
            let all: Vec<_> = all.collect();
            self.wrong(field, &format!("choose one of {}", all.join(", ")));
            T::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let rules = Rules {
            start_at: Some("2026-01-01T00:00:00Z".parse().expect("instant")),
            jitter_seconds: 30,
            misfire: Misfire::CatchUp,
            overlap: Overlap::Replace,
            max_concurrent: Some(3),
            key_limit: Some(KeyLimit { key: "tenant-7".into(), limit: 2 }),
            auto_disable: Some(AutoDisable { threshold: 5, window_seconds: 60, cool_down_seconds: Some(9) }),
            ..Rules::default()
        };
        assert_eq!(read(&write(&rules)), Ok(rules));
        assert_eq!(read(&BTreeMap::new()), Ok(Rules::default()));
    }

    #[test]
    fn a_wrong_field_is_named_with_its_remedy() {
        let fields = BTreeMap::from([
            ("overlap".to_owned(), "both".to_owned()),
            ("max_concurrent".to_owned(), "many".to_owned()),
            ("concurrency_key_limit".to_owned(), "2".to_owned()),
        ]);
        let errors = read(&fields).expect_err("wrong");
        let names: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(names, ["rules.concurrency_key", "rules.overlap", "rules.max_concurrent"]);
        assert!(errors[1].message.contains("allow, skip, queue, replace"));
    }
}
