//! Generated definitions: every field with values that are hard to write as YAML, the same for each seed.

use milvaion_schedule::printable::check_printable;
use serde_json::{Map, Number, Value, json};

/// Texts that a careless writer of YAML turns into something else.
const TEXTS: [&str; 36] = [
    "yes",
    "null",
    "~",
    "1e3",
    "0x1F",
    "0o17",
    "1_000",
    "2026-01-01",
    "22:00:00",
    " leading and trailing ",
    "a: b",
    "# no comment",
    "- item",
    "two\nlines\n",
    "trailing\n\n\n",
    "  indented\n    more\n",
    "tab\tulator",
    "é日本🎉",
    "it's \"quoted\"",
    "back\\slash \\n",
    "%TAG !x",
    "@at",
    "`tick`",
    "{a: b}",
    "[c, d]",
    "&anchor *alias",
    "!tag",
    "? key",
    "|",
    ">-",
    "",
    "---\n...\n",
    "\r\nwindows\r\n",
    "line\u{2028}separator\u{85}",
    "\u{1}\u{7f}\u{feff}",
    "<<",
];
/// A text that a writer may fold into several lines.
const LONG_TEXT: &str = "A description that is longer than one line of a file, with  two spaces, a colon: and a # sign, so \
                         that it is folded somewhere in the middle of this sentence, and unfolded to the same text.";

/// Time zones with clock changes of different kinds.
const ZONES: [&str; 4] = ["UTC", "Europe/Warsaw", "Pacific/Auckland", "America/St_Johns"];

/// A source of numbers that depend on the seed only.
pub(super) struct Generator(u64);

impl Generator {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    fn maybe(&mut self) -> bool {
        self.below(2) == 0
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        let index = usize::try_from(self.below(all.len() as u64)).expect("a small number");
        &all[index]
    }

    fn text(&mut self) -> String {
        if self.below(8) == 0 { LONG_TEXT.to_owned() } else { (*self.one_of(&TEXTS)).to_owned() }
    }

    fn number(&mut self) -> Value {
        let floats = [0.1, 2.5, -1e-7, 1e21, 123_456.789, f64::MAX, f64::MIN_POSITIVE];
        let integers = [0, -1, i64::MAX, i64::MIN, 1_000_000];
        match self.below(3) {
            0 => Number::from_f64(*self.one_of(&floats)).map_or(Value::Null, Value::Number),
            1 => (*self.one_of(&integers)).into(),
            _ => u64::MAX.into(),
        }
    }

    fn value(&mut self, depth: u64) -> Value {
        match self.below(if depth > 3 { 4 } else { 6 }) {
            0 => Value::Null,
            1 => self.maybe().into(),
            2 => self.number(),
            3 => self.text().into(),
            4 => (0..self.below(4)).map(|_| self.value(depth + 1)).collect(),
            _ => self.object(depth + 1),
        }
    }

    fn object(&mut self, depth: u64) -> Value {
        let mut fields = Map::new();
        for _ in 0..self.below(5) {
            let name = self.text();
            // Two spellings of a key that YAML takes for a merge are out of scope.
            if name != "<<" {
                fields.insert(name, self.value(depth));
            }
        }
        Value::Object(fields)
    }

    fn instant(&mut self) -> String {
        let fraction = *self.one_of(&["", ".5", ".123456", ".123456789"]);
        format!(
            "20{}-0{}-1{}T0{}:30:15{fraction}Z",
            self.between(30, 60),
            self.between(1, 9),
            self.below(9),
            self.below(9)
        )
    }

    fn schedule(&mut self) -> Value {
        match self.below(4) {
            0 => {
                let expression =
                    *self.one_of(&["0 3 * * *", "*/5 * * * *", "30 0 9 * * 1-5", "0 0 L * *", "0 12 * * MON#2"]);
                json!({ "kind": "cron", "expression": expression, "zone": self.zone() })
            }
            1 => {
                json!({ "kind": "every", "seconds": self.between(60, 31_622_400), "from": self.one_of(&["fire", "end"]) })
            }
            2 => json!({ "kind": "once", "at": self.instant(), "zone": self.zone() }),
            _ => json!({ "kind": "manual" }),
        }
    }

    fn zone(&mut self) -> &'static str {
        let zone: &&'static str = self.one_of(&ZONES);
        zone
    }

    fn rules(&mut self, calendars: &[Value]) -> Value {
        let mut rules = Map::new();
        let mut add = |is_given: bool, name: &str, value: Value| {
            if is_given {
                rules.insert(name.into(), value);
            }
        };
        let wanted: Vec<bool> = (0..18).map(|_| self.maybe()).collect();
        add(
            wanted[0],
            "startAt",
            format!("2029-01-01T00:00:00{}Z", self.one_of(&["", ".000001", ".123456789"])).into(),
        );
        add(wanted[1], "endAt", format!("20{}-01-01T00:00:00Z", self.between(61, 99)).into());
        add(wanted[2], "jitterSeconds", self.below(86_400).into());
        add(wanted[3] && !calendars.is_empty(), "calendars", vec![self.one_of(calendars).clone()].into());
        add(wanted[4], "blackout", (*self.one_of(&["skip", "postpone"])).into());
        add(wanted[5], "misfire", (*self.one_of(&["fire_once", "skip", "catch_up"])).into());
        add(wanted[6], "catchUpLimit", self.between(1, 10_000).into());
        add(wanted[7], "catchUpWindowSeconds", self.between(1, 2_592_000).into());
        add(wanted[8], "overlap", (*self.one_of(&["allow", "skip", "queue", "replace"])).into());
        add(wanted[9], "maxConcurrent", self.between(1, 10_000).into());
        add(
            wanted[10],
            "keyLimit",
            json!({ "key": self.one_of(&["db", "yes", "a: b"]), "limit": self.between(1, 10_000) }),
        );
        add(wanted[11], "maxRetries", self.below(101).into());
        add(wanted[12], "baseRetryDelaySeconds", self.between(1, 86_400).into());
        add(wanted[13], "retryJitterPercent", self.below(101).into());
        add(wanted[14], "heartbeatTimeoutSeconds", self.between(15, 86_400).into());
        add(wanted[15], "unreachableTimeoutSeconds", self.between(15, 86_400).into());
        add(wanted[17], "startWithinSeconds", self.between(1, 2_592_000).into());
        add(wanted[16], "onLost", (*self.one_of(&["requeue", "fail"])).into());
        let mut auto_disable =
            json!({ "threshold": self.between(1, 100), "windowSeconds": self.between(1, 2_592_000) });
        if self.maybe() {
            auto_disable["coolDownSeconds"] = self.between(1, 2_592_000).into();
        }
        if self.maybe() {
            rules.insert("autoDisable".into(), auto_disable);
        }
        Value::Object(rules)
    }

    /// Returns the definition of a job, with a key or without one. `calendars` are ids.
    pub(super) fn job(&mut self, number: u64, calendars: &[Value]) -> Value {
        let name = self.text();
        let is_name = !name.trim().is_empty() && check_printable(&name).is_ok();
        let name = if is_name { name } else { "Report".to_owned() };
        let tags: Vec<String> =
            (0..self.below(4)).map(|n| format!("{} {n}", self.one_of(&["no", "x", "2026-01-01"]))).collect();
        let mut job = json!({
            "displayName": name,
            "description": self.text(),
            "tags": tags,
            "workerId": self.one_of(&["w", "null", "1.5"]),
            "jobType": self.one_of(&["echo", "true", "2026-01-01"]),
            "jobData": if self.maybe() { self.object(0) } else { self.value(0) },
            "schedule": self.schedule(),
            "isActive": self.below(4) > 0,
            "priority": self.between(1, 5),
            "rules": self.rules(calendars),
        });
        if self.maybe() {
            job["timeoutSeconds"] = self.between(1, 86_400).into();
        }
        if self.maybe() {
            job["key"] = format!("{}{number}", self.one_of(&["job-", "0", "n.", "1e"])).into();
        }
        job
    }

    /// Returns a calendar.
    pub(super) fn calendar(&mut self, number: u64) -> Value {
        let windows: Vec<_> = (0..self.below(3))
            .map(|day| json!({ "weekday": day, "from": "22:00:00", "to": self.one_of(&["06:00:00", "23:30:15", "00:00:00"]) }))
            .collect();
        let dates: Vec<_> =
            (0..self.between(1, 5)).map(|_| format!("20{}-0{}-15", self.between(30, 60), self.between(1, 9))).collect();
        let name = *self.one_of(&["Holidays", "yes", "22:00", "a: b # c", "日本"]);
        json!({ "name": format!("{name} {number}"), "zone": self.zone(), "dates": dates, "windows": windows })
    }
}
