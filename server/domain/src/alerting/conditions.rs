//! The conditions that last, found in a picture of the open occurrences and the workers.
//!
//! The picture is bounded: it holds the oldest open occurrences, because an occurrence that is late or waits too long is
//! among them. A newer one is found when the older ones have ended.

use std::collections::{BTreeMap, HashMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};
use milvaion_api::alerts::AlertCondition;
use milvaion_protocol::id::{JobId, OccurrenceId};

use super::{ActiveRule, AlertJob, Finding};

/// An open occurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRun {
    /// Identifier.
    pub id: OccurrenceId,
    /// Its job.
    pub job: AlertJob,
    /// Worker that runs it.
    pub worker_id: String,
    /// Job type.
    pub job_type: String,
    /// Due time.
    pub scheduled_for: DateTime<Utc>,
    /// Time at which the server stored that the attempt runs; none while it is queued.
    pub begun_at: Option<DateTime<Utc>>,
    /// Time at which the broker confirmed its message; none while it is unsent.
    pub published_at: Option<DateTime<Utc>>,
    /// True if it may run now: it is not delayed and does not wait for a slot.
    pub is_ready: bool,
    /// True if it is delayed, as a retry is.
    pub is_delayed: bool,
    /// Attempt in force, from 1.
    pub attempt: i32,
}

/// The ended occurrences of a job within a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRate {
    /// The job.
    pub job: AlertJob,
    /// Number of occurrences that completed, failed or timed out.
    pub ended: i64,
    /// Number of those that failed or timed out.
    pub failed: i64,
}

/// A worker instance that stopped sending heartbeats without an orderly stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoneInstance {
    /// Identifier.
    pub id: String,
    /// Its worker.
    pub worker_id: String,
    /// Its last heartbeat.
    pub last_heartbeat_at: DateTime<Utc>,
}

/// What the conditions are looked for in.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// The oldest open occurrences.
    pub open: Vec<OpenRun>,
    /// The job types with a live instance, each with its worker.
    pub live_types: HashSet<(String, String)>,
    /// The median duration of the job's last completed runs, of the jobs whose runs are looked at.
    pub medians: HashMap<JobId, TimeDelta>,
    /// The rates of failing jobs, by the window in minutes.
    pub rates: HashMap<u32, Vec<JobRate>>,
    /// The instances that are gone.
    pub gone: Vec<GoneInstance>,
}

/// Returns what the rules find in a picture at `now`, at most one finding for each rule and group key.
#[must_use]
pub fn find(rules: &[ActiveRule], picture: &Picture, now: DateTime<Utc>) -> Vec<Finding> {
    rules.iter().flat_map(|rule| find_one(rule, picture, now)).collect()
}

fn find_one(rule: &ActiveRule, picture: &Picture, now: DateTime<Utc>) -> Vec<Finding> {
    let finder = Finder { rule, now };
    match &rule.definition.condition {
        AlertCondition::LateStart { seconds } => finder.late_starts(picture, *seconds),
        AlertCondition::NoLiveWorker { seconds } => finder.absent_workers(picture, *seconds),
        AlertCondition::QueueAge { seconds } => finder.old_queues(picture, *seconds),
        AlertCondition::LongRun { times_median, limit_seconds } => {
            finder.long_runs(picture, *times_median, *limit_seconds)
        }
        AlertCondition::FailureRate { percent, window_minutes, minimum_runs } => {
            finder.failure_rates(picture, *percent, *window_minutes, *minimum_runs)
        }
        AlertCondition::WorkerGone {} => finder.gone_instances(picture),
        AlertCondition::OccurrenceFailed { .. }
        | AlertCondition::Misfire {}
        | AlertCondition::LostRun {}
        | AlertCondition::AutoDisabled {}
        | AlertCondition::DeadLetter {}
        | AlertCondition::ServiceUnhealthy {}
        | AlertCondition::LoopWithoutLeader { .. } => Vec::new(),
    }
}

struct Finder<'a> {
    rule: &'a ActiveRule,
    now: DateTime<Utc>,
}

impl Finder<'_> {
    fn finding(&self, group_key: String, title: String, detail: String) -> Finding {
        Finding {
            rule_id: self.rule.id,
            group_key,
            title,
            detail,
            job: None,
            occurrence_id: None,
            count: 1,
            first_at: self.now,
            last_at: self.now,
        }
    }

    fn selects(&self, job: &AlertJob) -> bool {
        self.rule.definition.selects(job.id, job.key.as_deref(), &job.tags)
    }

    /// Groups occurrences. Returns the oldest of each group with the size of the group.
    fn oldest_by<'r>(
        &self,
        runs: impl Iterator<Item = &'r OpenRun>,
        key: impl Fn(&OpenRun) -> String,
    ) -> Vec<(String, &'r OpenRun, usize)> {
        let mut groups: BTreeMap<String, (&OpenRun, usize)> = BTreeMap::new();
        for run in runs.filter(|run| self.selects(&run.job)) {
            let group = groups.entry(key(run)).or_insert((run, 0));
            group.1 += 1;
            if run.scheduled_for < group.0.scheduled_for {
                group.0 = run;
            }
        }
        groups.into_iter().map(|(key, (run, count))| (key, run, count)).collect()
    }

    fn late_starts(&self, picture: &Picture, seconds: u32) -> Vec<Finding> {
        let is_late = |run: &&OpenRun| {
            run.begun_at.is_none()
                && run.attempt == 1
                && !run.is_delayed
                && age(run.scheduled_for, self.now) >= seconds.into()
        };
        let groups = self.oldest_by(picture.open.iter().filter(is_late), |run| format!("job:{}", run.job.id));
        let report = |(key, run, count): (String, &OpenRun, usize)| {
            let reason = if !run.is_ready {
                "it waits for a slot"
            } else if run.published_at.is_none() {
                "its message is not sent yet"
            } else {
                "no worker has begun it"
            };
            let detail = format!("Due at {}, and {reason}.{}", instant(run.scheduled_for), others(count));
            Finding {
                job: Some((run.job.id, run.job.name.clone())),
                occurrence_id: Some(run.id),
                ..self.finding(key, format!("Job {} starts late", run.job.name), detail)
            }
        };
        groups.into_iter().map(report).collect()
    }

    fn absent_workers(&self, picture: &Picture, seconds: u32) -> Vec<Finding> {
        let has_no_worker = |run: &&OpenRun| {
            run.begun_at.is_none()
                && run.is_ready
                && age(run.scheduled_for, self.now) >= seconds.into()
                && !picture.live_types.contains(&(run.worker_id.clone(), run.job_type.clone()))
        };
        let groups = self.oldest_by(picture.open.iter().filter(has_no_worker), type_key);
        let report = |(key, run, count): (String, &OpenRun, usize)| {
            let title = format!("No live instance of worker {} has job type {}", run.worker_id, run.job_type);
            let detail = format!(
                "An occurrence of job {} has been due since {}.{} Start a worker with this job type.",
                run.job.name,
                instant(run.scheduled_for),
                others(count)
            );
            Finding { occurrence_id: Some(run.id), ..self.finding(key, title, detail) }
        };
        groups.into_iter().map(report).collect()
    }

    fn old_queues(&self, picture: &Picture, seconds: u32) -> Vec<Finding> {
        let waiting_since = |run: &OpenRun| run.published_at.map(|at| at.max(run.scheduled_for));
        let is_old = |run: &&OpenRun| {
            let is_waiting = run.begun_at.is_none() && run.is_ready;
            is_waiting && waiting_since(run).is_some_and(|since| age(since, self.now) >= seconds.into())
        };
        let groups = self.oldest_by(picture.open.iter().filter(is_old), type_key);
        let report = |(key, run, count): (String, &OpenRun, usize)| {
            let title = format!("The queue of {}/{} is old", run.worker_id, run.job_type);
            let since = waiting_since(run).unwrap_or(run.scheduled_for);
            let detail = format!("Its oldest occurrence has waited since {}.{}", instant(since), others(count));
            Finding { occurrence_id: Some(run.id), ..self.finding(key, title, detail) }
        };
        groups.into_iter().map(report).collect()
    }

    fn long_runs(&self, picture: &Picture, times: Option<u32>, limit: Option<u32>) -> Vec<Finding> {
        let mut findings = Vec::new();
        for run in picture.open.iter().filter(|run| self.selects(&run.job)) {
            let Some(begun_at) = run.begun_at else { continue };
            let took = self.now - begun_at;
            let median = picture.medians.get(&run.job.id).copied();
            let exceeds_limit = limit.is_some_and(|limit| took >= TimeDelta::seconds(limit.into()));
            let exceeds_median = times
                .zip(median)
                .and_then(|(times, median)| median.checked_mul(i32::try_from(times).ok()?))
                .is_some_and(|most| took >= most);
            if !exceeds_limit && !exceeds_median {
                continue;
            }
            let usual = median.map(|median| format!(" The median of its runs is {}.", duration(median)));
            let detail = format!("It has run since {}.{}", instant(begun_at), usual.unwrap_or_default());
            findings.push(Finding {
                job: Some((run.job.id, run.job.name.clone())),
                occurrence_id: Some(run.id),
                ..self.finding(format!("run:{}", run.id), format!("A run of job {} takes long", run.job.name), detail)
            });
        }
        findings
    }

    fn failure_rates(&self, picture: &Picture, percent: u32, window: u32, minimum: u32) -> Vec<Finding> {
        let rates = picture.rates.get(&window).map(Vec::as_slice).unwrap_or_default();
        let is_high =
            |rate: &&JobRate| rate.ended >= minimum.into() && rate.failed * 100 >= rate.ended * i64::from(percent);
        let report = |rate: &JobRate| {
            let detail = format!(
                "{} of {} occurrences failed within {window} min: {}%.",
                rate.failed,
                rate.ended,
                rate.failed * 100 / rate.ended.max(1)
            );
            Finding {
                job: Some((rate.job.id, rate.job.name.clone())),
                ..self.finding(format!("job:{}", rate.job.id), format!("Job {} fails often", rate.job.name), detail)
            }
        };
        rates.iter().filter(|rate| self.selects(&rate.job)).filter(is_high).map(report).collect()
    }

    fn gone_instances(&self, picture: &Picture) -> Vec<Finding> {
        let report = |gone: &GoneInstance| {
            let title = format!("Instance {} of worker {} is gone", gone.id, gone.worker_id);
            let detail = format!("Its last heartbeat was at {}.", instant(gone.last_heartbeat_at));
            self.finding(format!("instance:{}", gone.id.chars().take(200).collect::<String>()), title, detail)
        };
        picture.gone.iter().map(report).collect()
    }
}

fn type_key(run: &OpenRun) -> String {
    format!("type:{}/{}", run.worker_id, run.job_type)
}

/// Returns the time from `since` to `now` in whole seconds.
fn age(since: DateTime<Utc>, now: DateTime<Utc>) -> i64 {
    (now - since).num_seconds()
}

fn others(count: usize) -> String {
    match count - 1 {
        0 => String::new(),
        1 => " One more occurrence waits as well.".into(),
        more => format!(" {more} more occurrences wait as well."),
    }
}

fn instant(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

fn duration(time: TimeDelta) -> String {
    let millis = time.num_milliseconds();
    if millis < 10_000 { format!("{millis} ms") } else { format!("{} s", millis / 1_000) }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::rule, *};

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(second)
    }

    fn run(number: u8, due: i64) -> OpenRun {
        OpenRun {
            id: OccurrenceId::from_parts(at(due), [number; 10]),
            job: AlertJob { name: "mail".into(), ..AlertJob::default() },
            worker_id: "w".into(),
            job_type: "send".into(),
            scheduled_for: at(due),
            begun_at: None,
            published_at: Some(at(due)),
            is_ready: true,
            is_delayed: false,
            attempt: 1,
        }
    }

    fn found(condition: AlertCondition, picture: &Picture, now: i64) -> Vec<(String, String)> {
        let found = find(&[rule(1, condition)], picture, at(now));
        found.into_iter().map(|finding| (finding.title, finding.detail)).collect()
    }

    #[test]
    fn late_start_names_its_reason_and_leaves_out_retries() {
        let late = AlertCondition::LateStart { seconds: 60 };
        let picture = |run| Picture { open: vec![run], ..Picture::default() };
        assert_eq!(found(late.clone(), &picture(run(1, 0)), 59), []);
        let detail = |run| found(late.clone(), &picture(run), 60)[0].1.clone();
        assert_eq!(detail(run(1, 0)), "Due at 1970-01-01 00:00:00 UTC, and no worker has begun it.");
        assert!(detail(OpenRun { published_at: None, ..run(1, 0) }).contains("its message is not sent yet"));
        assert!(detail(OpenRun { is_ready: false, ..run(1, 0) }).contains("it waits for a slot"));
        for other in [
            OpenRun { attempt: 2, ..run(1, 0) },
            OpenRun { is_delayed: true, is_ready: false, ..run(1, 0) },
            OpenRun { begun_at: Some(at(1)), ..run(1, 0) },
        ] {
            assert_eq!(found(late.clone(), &picture(other), 600), []);
        }
    }

    #[test]
    fn absent_worker_is_one_finding_for_its_job_type() {
        let absent = AlertCondition::NoLiveWorker { seconds: 60 };
        let mut picture = Picture { open: vec![run(1, 30), run(2, 0), run(3, 100)], ..Picture::default() };
        let expected = (
            "No live instance of worker w has job type send".to_owned(),
            "An occurrence of job mail has been due since 1970-01-01 00:00:00 UTC. One more occurrence waits as well. Start a worker with this job type."
                .to_owned(),
        );
        assert_eq!(found(absent.clone(), &picture, 120), [expected]);
        picture.live_types.insert(("w".into(), "send".into()));
        assert_eq!(found(absent, &picture, 120), []);
    }

    #[test]
    fn queue_age_counts_from_the_time_at_which_a_worker_could_begin() {
        let old = AlertCondition::QueueAge { seconds: 60 };
        let picture = |run| Picture { open: vec![run], ..Picture::default() };
        let sent_late = OpenRun { published_at: Some(at(50)), ..run(1, 0) };
        assert_eq!(found(old.clone(), &picture(sent_late.clone()), 100), []);
        assert_eq!(found(old.clone(), &picture(sent_late), 110)[0].0, "The queue of w/send is old");
        assert_eq!(found(old, &picture(OpenRun { published_at: None, ..run(1, 0) }), 600), []);
    }

    #[test]
    fn long_run_exceeds_a_limit_or_a_multiple_of_the_median() {
        let running = OpenRun { begun_at: Some(at(0)), ..run(1, 0) };
        let mut picture = Picture { open: vec![running], ..Picture::default() };
        let rule = |times_median, limit_seconds| AlertCondition::LongRun { times_median, limit_seconds };
        assert_eq!(found(rule(None, Some(30)), &picture, 29), []);
        assert_eq!(found(rule(None, Some(30)), &picture, 30).len(), 1);
        assert_eq!(found(rule(Some(3), None), &picture, 600), [], "without a median nothing is unusual");
        picture.medians.insert(JobId::default(), TimeDelta::seconds(10));
        assert_eq!(found(rule(Some(3), None), &picture, 29), []);
        let detail = "It has run since 1970-01-01 00:00:00 UTC. The median of its runs is 10 s.";
        assert_eq!(found(rule(Some(3), Some(3_600)), &picture, 30)[0].1, detail);
    }

    #[test]
    fn failure_rate_needs_enough_ended_occurrences() {
        let rate = |percent, minimum_runs| AlertCondition::FailureRate { percent, window_minutes: 10, minimum_runs };
        let job = AlertJob { name: "mail".into(), ..AlertJob::default() };
        let rates = vec![JobRate { job, ended: 8, failed: 4 }];
        let picture = Picture { rates: HashMap::from([(10, rates)]), ..Picture::default() };
        assert_eq!(found(rate(50, 9), &picture, 0), []);
        assert_eq!(found(rate(51, 8), &picture, 0), []);
        assert_eq!(found(rate(50, 8), &picture, 0)[0].1, "4 of 8 occurrences failed within 10 min: 50%.");
    }

    #[test]
    fn each_gone_instance_is_a_finding() {
        let gone = |id: &str| GoneInstance { id: id.into(), worker_id: "w".into(), last_heartbeat_at: at(0) };
        let picture = Picture { gone: vec![gone("w-1"), gone("w-2")], ..Picture::default() };
        let titles: Vec<_> =
            found(AlertCondition::WorkerGone {}, &picture, 20).into_iter().map(|(title, _)| title).collect();
        assert_eq!(titles, ["Instance w-1 of worker w is gone", "Instance w-2 of worker w is gone"]);
    }
}
