//! The options of a loop, their bounds, and their overrides by name.
//!
//! A loop is declared in code. Operators change it without a new build: `MILVAION_SINGLETONS` and the table `singletons` of
//! the configuration file override single options of single loops. An override of a loop that the process does not have
//! is ignored with a warning, because the processes of a fleet share their environment and not their loops.

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use milvaion_protocol::topology::is_valid_name;

use crate::{
    api::error::ConfigErrors,
    singleton::{SingletonLoop, pace::LoopPace},
};

/// Bounds of a period.
const PERIOD_RANGE: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(366 * 24 * 3600);
/// Bounds of a lease. With the longest one, heartbeats are less than the minute apart after which Redis no longer lists an
/// instance.
const LEASE_RANGE: RangeInclusive<Duration> = Duration::from_millis(500)..=Duration::from_secs(120);
/// Lower bound of the time between two heartbeats.
const MIN_HEARTBEAT: Duration = Duration::from_millis(100);
/// Bounds of a timeout.
const TIMEOUT_RANGE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(7 * 24 * 3600);
/// Maximum length of `MILVAION_SINGLETONS` in bytes.
const MAX_OVERRIDES_BYTES: usize = 64 * 1024;

/// The options of a loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoopOptions {
    /// False if this process takes no part in the election.
    pub(crate) enabled: bool,
    /// The maximum random delay of each due time.
    pub(crate) jitter: Duration,
    /// The lease.
    pub(crate) lease: Duration,
    /// The time between two heartbeats, if it is not three tenths of the lease.
    pub(crate) heartbeat: Option<Duration>,
    /// The maximum duration of a run.
    pub(crate) timeout: Option<Duration>,
    /// True if a run is cancelled when the instance stops leading.
    pub(crate) cancel_on_lost_leadership: bool,
    /// True if long runs are logged as warnings.
    pub(crate) warn_on_long_runs: bool,
}

impl Default for LoopOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            jitter: Duration::ZERO,
            lease: Duration::from_secs(10),
            heartbeat: None,
            timeout: None,
            cancel_on_lost_leadership: true,
            warn_on_long_runs: true,
        }
    }
}

impl LoopOptions {
    /// Returns the time between two heartbeats: 3 seconds with the default lease of 10 seconds.
    pub(crate) fn heartbeat(&self) -> Duration {
        self.heartbeat.unwrap_or(self.lease * 3 / 10)
    }
}

/// Overrides of the options of one loop, by its name. An option that is `None` stays as it is in code.
///
/// The same names are used in `MILVAION_SINGLETONS` and in the configuration file; durations are written like `250ms`,
/// `5s` or `1h 30m`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoopOverrides {
    /// `enabled`: whether this process takes part in the election of the loop. A process that does not sends nothing to
    /// Redis for it. Default true.
    pub enabled: Option<bool>,
    /// `period`: the interval or the period of the grid, 10 milliseconds to 366 days. Not for cron loops.
    pub period: Option<Duration>,
    /// `cron`: the expression of a cron loop.
    pub cron: Option<String>,
    /// `zone`: the IANA time zone of a cron loop, such as `Europe/Berlin`.
    pub zone: Option<String>,
    /// `misfire`: the due times of a cron loop that were missed while the leader lived: `skip`, `once` or `all`.
    pub misfire: Option<String>,
    /// `jitter`: see [`LoopBuilder::jitter`](crate::LoopBuilder::jitter).
    pub jitter: Option<Duration>,
    /// `lease`: see [`LoopBuilder::lease`](crate::LoopBuilder::lease).
    pub lease: Option<Duration>,
    /// `heartbeat`: see [`LoopBuilder::heartbeat`](crate::LoopBuilder::heartbeat).
    pub heartbeat: Option<Duration>,
    /// `timeout`: see [`LoopBuilder::timeout`](crate::LoopBuilder::timeout).
    pub timeout: Option<Duration>,
    /// `cancel_on_lost_leadership`: see
    /// [`LoopBuilder::cancel_on_lost_leadership`](crate::LoopBuilder::cancel_on_lost_leadership).
    pub cancel_on_lost_leadership: Option<bool>,
    /// `warn_on_long_runs`: see [`LoopBuilder::warn_on_long_runs`](crate::LoopBuilder::warn_on_long_runs).
    pub warn_on_long_runs: Option<bool>,
}

/// The names of all options.
const OPTION_NAMES: &str = "enabled, period, cron, zone, misfire, jitter, lease, heartbeat, timeout, cancel_on_lost_leadership, warn_on_long_runs";

impl LoopOverrides {
    /// Sets one option from its text. Returns the reason if it cannot be read.
    fn set(&mut self, option: &str, text: &str) -> Result<(), String> {
        let duration = || {
            humantime::parse_duration(text).map(Some).map_err(|_| "give a duration such as 250ms, 5s or 1h".to_owned())
        };
        let flag = || text.parse().map(Some).map_err(|_| "give true or false".to_owned());
        match option {
            "enabled" => self.enabled = flag()?,
            "period" => self.period = duration()?,
            "cron" => self.cron = Some(text.to_owned()),
            "zone" => self.zone = Some(text.to_owned()),
            "misfire" => self.misfire = Some(text.to_owned()),
            "jitter" => self.jitter = duration()?,
            "lease" => self.lease = duration()?,
            "heartbeat" => self.heartbeat = duration()?,
            "timeout" => self.timeout = duration()?,
            "cancel_on_lost_leadership" => self.cancel_on_lost_leadership = flag()?,
            "warn_on_long_runs" => self.warn_on_long_runs = flag()?,
            _ => return Err(format!("use one of {OPTION_NAMES}")),
        }
        Ok(())
    }
}

/// Reads `MILVAION_SINGLETONS`: `loop.option=value`, separated by semicolons.
pub(crate) fn read_overrides(text: &str, errors: &mut ConfigErrors) -> BTreeMap<String, LoopOverrides> {
    let mut overrides = BTreeMap::<String, LoopOverrides>::new();
    if text.len() > MAX_OVERRIDES_BYTES {
        errors.add(format!("MILVAION_SINGLETONS has {} bytes; the maximum is {MAX_OVERRIDES_BYTES}.", text.len()));
        return overrides;
    }
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let target = part.split_once('=').and_then(|(target, value)| {
            let (name, option) = target.trim().rsplit_once('.')?;
            Some((name, option, value.trim()))
        });
        let Some((name, option, value)) = target else {
            errors.add(format!(
                "MILVAION_SINGLETONS has {part:?}: give the name of a loop, an option and its value, such as price-feed.period=250ms."
            ));
            continue;
        };
        if let Err(reason) = overrides.entry(name.to_owned()).or_default().set(option, value) {
            errors.add(format!("MILVAION_SINGLETONS has {part:?}: {reason}."));
        }
    }
    overrides
}

/// Applies the overrides to the loops of this process.
pub(crate) fn apply(
    overrides: &BTreeMap<String, LoopOverrides>,
    loops: &mut [SingletonLoop],
    errors: &mut ConfigErrors,
) {
    for (name, over) in overrides {
        let Some(spec) = loops.iter_mut().find(|spec| *spec.name == **name) else {
            tracing::warn!(
                singleton = name,
                "the configuration overrides singleton loop {name}, which this process does not have; remove it from MILVAION_SINGLETONS if that is a mistake"
            );
            continue;
        };
        let options = &mut spec.options;
        options.enabled = over.enabled.unwrap_or(options.enabled);
        options.jitter = over.jitter.unwrap_or(options.jitter);
        options.lease = over.lease.unwrap_or(options.lease);
        options.heartbeat = over.heartbeat.or(options.heartbeat);
        options.timeout = over.timeout.or(options.timeout);
        options.cancel_on_lost_leadership = over.cancel_on_lost_leadership.unwrap_or(options.cancel_on_lost_leadership);
        options.warn_on_long_runs = over.warn_on_long_runs.unwrap_or(options.warn_on_long_runs);
        apply_pace(over, spec, errors);
    }
}

fn apply_pace(over: &LoopOverrides, spec: &mut SingletonLoop, errors: &mut ConfigErrors) {
    let name = &spec.name;
    if let Some(period) = over.period {
        match &mut spec.pace {
            LoopPace::Interval(current) | LoopPace::FixedRate(current) => *current = period,
            #[cfg(feature = "cron")]
            LoopPace::Cron(_) => errors.add(format!(
                "Singleton loop {name:?} has a cron expression: override its cron, zone or misfire, and not its period."
            )),
        }
    }
    if over.cron.is_none() && over.zone.is_none() && over.misfire.is_none() {
        return;
    }
    match &mut spec.pace {
        #[cfg(feature = "cron")]
        LoopPace::Cron(cron) => {
            let text = over.cron.clone().unwrap_or_else(|| cron.text.clone());
            let zone = over.zone.clone().unwrap_or_else(|| cron.zone.to_string());
            let misfire = match over.misfire.as_deref() {
                None => cron.misfire,
                Some("skip") => super::pace::LoopMisfire::Skip,
                Some("once") => super::pace::LoopMisfire::Once,
                Some("all") => super::pace::LoopMisfire::All,
                Some(other) => {
                    errors.add(format!(
                        "Singleton loop {name:?} has the misfire policy {other:?}: give skip, once or all."
                    ));
                    return;
                }
            };
            match super::pace::CronPace::parse(name, &text, &zone, misfire) {
                Ok(pace) => *cron = pace,
                Err(error) => errors.add(error),
            }
        }
        _ => errors.add(format!(
            "Singleton loop {name:?} has no cron expression: override its period, and not its cron, zone or misfire."
        )),
    }
}

/// Adds an error for each option that is outside its bounds, and for each name that is given twice.
pub(crate) fn check(loops: &[SingletonLoop], errors: &mut ConfigErrors) {
    let maximum = milvaion_protocol::singleton::MAX_LOOPS;
    if loops.len() > maximum {
        errors.add(format!("The worker has {} singleton loops: declare at most {maximum}.", loops.len()));
    }
    for (index, spec) in loops.iter().enumerate() {
        check_loop(spec, errors);
        if loops[..index].iter().any(|other| other.name == spec.name) {
            errors.add(format!("Singleton loop {:?} is declared twice: give each loop its own name.", spec.name));
        }
    }
}

fn check_loop(spec: &SingletonLoop, errors: &mut ConfigErrors) {
    let (name, options) = (&spec.name, &spec.options);
    let maximum = milvaion_protocol::singleton::MAX_LOOP_NAME_BYTES;
    if !is_valid_name(name, maximum) {
        errors.add(format!(
            "Singleton loop {name:?} has an invalid name: give 1 to {maximum} letters, digits, '-', '_' and '.'."
        ));
    }
    let mut refuse = |option: &str, value: Duration, remedy: String| {
        let value = humantime::format_duration(value);
        errors.add(format!("Singleton loop {name:?} has the {option} {value}: {remedy}."));
    };
    if let Some(period) = spec.pace.period() {
        if !PERIOD_RANGE.contains(&period) {
            refuse("period", period, between(&PERIOD_RANGE));
        }
        if options.jitter >= period && !options.jitter.is_zero() {
            refuse("jitter", options.jitter, "give less than its period".to_owned());
        }
    } else if options.jitter > Duration::from_secs(3600) {
        refuse("jitter", options.jitter, "give at most 1h".to_owned());
    }
    if !LEASE_RANGE.contains(&options.lease) {
        refuse("lease", options.lease, between(&LEASE_RANGE));
    }
    let heartbeat = options.heartbeat();
    if heartbeat < MIN_HEARTBEAT || heartbeat > options.lease / 3 {
        let remedy = format!("give {} to a third of the lease", humantime::format_duration(MIN_HEARTBEAT));
        refuse("heartbeat", heartbeat, remedy);
    }
    if let Some(timeout) = options.timeout.filter(|timeout| !TIMEOUT_RANGE.contains(timeout)) {
        refuse("timeout", timeout, between(&TIMEOUT_RANGE));
    }
}

fn between(range: &RangeInclusive<Duration>) -> String {
    format!("give {} to {}", humantime::format_duration(*range.start()), humantime::format_duration(*range.end()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Worker, WorkerError};

    fn declare(name: &str, period: Duration) -> crate::WorkerBuilder {
        Worker::builder().singleton(name).every(period).run(|_| async { Ok(()) })
    }

    fn messages(builder: crate::WorkerBuilder) -> Vec<String> {
        match builder.build() {
            Err(WorkerError::Config(errors)) => errors.messages().to_vec(),
            Err(other) => panic!("another error: {other:?}"),
            Ok(_) => Vec::new(),
        }
    }

    #[test]
    fn option_out_of_bounds_names_the_loop() {
        let wrong = [
            messages(declare("a b", Duration::from_secs(1))),
            messages(declare("fast", Duration::from_millis(9))),
            messages(
                Worker::builder()
                    .singleton("long")
                    .every(Duration::from_secs(1))
                    .lease(Duration::from_millis(499))
                    .run(|_| async { Ok(()) }),
            ),
            messages(
                Worker::builder()
                    .singleton("slow")
                    .fixed_rate(Duration::from_secs(1))
                    .heartbeat(Duration::from_secs(4))
                    .run(|_| async { Ok(()) }),
            ),
            messages(
                Worker::builder()
                    .singleton("late")
                    .fixed_rate(Duration::from_secs(1))
                    .jitter(Duration::from_secs(1))
                    .timeout(Duration::ZERO)
                    .run(|_| async { Ok(()) }),
            ),
        ];
        let expected = [
            vec!["Singleton loop \"a b\" has an invalid name: give 1 to 100 letters, digits, '-', '_' and '.'."],
            vec!["Singleton loop \"fast\" has the period 9ms: give 10ms to 1year 18h."],
            vec!["Singleton loop \"long\" has the lease 499ms: give 500ms to 2m."],
            vec!["Singleton loop \"slow\" has the heartbeat 4s: give 100ms to a third of the lease."],
            vec![
                "Singleton loop \"late\" has the jitter 1s: give less than its period.",
                "Singleton loop \"late\" has the timeout 0s: give 1ms to 7days.",
            ],
        ];
        assert_eq!(wrong.each_ref().map(|list| list.iter().map(String::as_str).collect::<Vec<_>>()), expected);
    }

    #[test]
    fn two_loops_of_one_name_are_refused() {
        let builder = declare("prices", Duration::from_secs(1)).singleton("prices").every(Duration::from_secs(2));
        assert_eq!(
            messages(builder.run(|_| async { Ok(()) })),
            ["Singleton loop \"prices\" is declared twice: give each loop its own name."]
        );
    }

    #[test]
    fn interval_of_more_than_49_days_is_accepted() {
        assert!(messages(declare("yearly", Duration::from_secs(365 * 24 * 3600))).is_empty());
    }

    #[test]
    fn overrides_are_read_by_name() {
        let mut errors = ConfigErrors::default();
        let text = "price-feed.period=250ms; a.b.enabled = false ;report.cron=0 2 * * 1,3;report.lease=15s;";
        let overrides = read_overrides(text, &mut errors);
        assert!(errors.messages().is_empty(), "{errors}");
        assert_eq!(overrides["price-feed"].period, Some(Duration::from_millis(250)));
        assert_eq!(overrides["a.b"].enabled, Some(false));
        assert_eq!(overrides["report"].cron.as_deref(), Some("0 2 * * 1,3"));
        assert_eq!(overrides["report"].lease, Some(Duration::from_secs(15)));
    }

    #[test]
    fn unreadable_overrides_are_refused() {
        let mut errors = ConfigErrors::default();
        read_overrides("price-feed;price-feed.period=soon;price-feed.colour=red;price-feed.enabled=yes", &mut errors);
        assert_eq!(errors.messages().len(), 4, "{errors}");
        assert!(errors.messages()[2].contains("use one of enabled, period"), "{errors}");
    }

    #[test]
    fn override_of_another_rhythm_is_refused() {
        let mut loops = declare("prices", Duration::from_secs(1)).loops();
        let mut errors = ConfigErrors::default();
        apply(&read_overrides("prices.zone=UTC", &mut errors), &mut loops, &mut errors);
        assert_eq!(errors.messages().len(), 1, "{errors}");
    }

    #[test]
    fn override_changes_the_declared_loop() {
        let mut loops = declare("prices", Duration::from_secs(1)).loops();
        let mut errors = ConfigErrors::default();
        let overrides = read_overrides("prices.period=2s;prices.lease=6s;other.period=1s", &mut errors);
        apply(&overrides, &mut loops, &mut errors);
        assert!(errors.messages().is_empty(), "{errors}");
        assert_eq!(loops[0].pace, LoopPace::Interval(Duration::from_secs(2)));
        assert_eq!(loops[0].options.heartbeat(), Duration::from_millis(1800));
    }
}
