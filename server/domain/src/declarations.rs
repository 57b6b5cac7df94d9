//! Decides what the jobs of schedules must become that the code of workers declares.
//!
//! Each instance registers what its code declares, and during a deployment two versions run at once. The rules are plain:
//!
//! - The instances of the highest version decide. Versions are compared number by number, so `1.10.0` is above `1.9.2`, and a
//!   suffix such as `-rc1` is below the version without it.
//! - If instances of one version differ, which a program that never changes its version causes, the one that registered last
//!   decides about a definition, and a schedule is kept as long as one instance declares it.
//! - A schedule that none of them declares is retired. A worker without a live instance says nothing about its schedules.
//! - A schedule that the server could not read or has refused is left as it is, because its author did not remove it.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap, HashSet},
};

use chrono::{DateTime, Utc};
use milvaion_api::{declared_rules::rules_of, requests::JobInput};
use milvaion_protocol::{
    id::JobId,
    message::{DeclaredSchedule, DeclaredTiming, HelloProblem, JobDefaults},
};
use milvaion_schedule::schedule::Schedule;
use serde::Deserialize;
use serde_json::{Value, json};

/// What the code declares for a job type.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TypeDeclaration {
    /// The rules of the job type.
    pub defaults: JobDefaults,
    /// The schedules.
    pub schedules: Vec<DeclaredSchedule>,
}

/// What live instances of one version declare. Instances that declare the same may be one of these.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceDeclaration {
    /// The worker.
    pub worker_id: String,
    /// The version of the program.
    pub version: String,
    /// The time of the latest start among the instances.
    pub started_at: DateTime<Utc>,
    /// The declarations by job type.
    pub declared: BTreeMap<String, TypeDeclaration>,
    /// The parts of the registration that were refused.
    pub problems: Vec<HelloProblem>,
}

/// A job that the server keeps for a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredJob {
    /// What identifies it in the code.
    pub key: DeclarationKey,
    /// The job.
    pub job_id: JobId,
    /// The definition as it was declared last; none before the first time.
    pub declared: Option<Value>,
    /// The version of the program that declared it.
    pub version: String,
    /// True if the code no longer declares it.
    pub is_retired: bool,
}

/// What identifies a schedule in the code of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeclarationKey {
    /// The worker.
    pub worker_id: String,
    /// The job type.
    pub job_type: String,
    /// The name of the schedule. Empty for the job of the occurrences that are enqueued by job type.
    pub name: String,
}

/// A change that makes the jobs be as the code declares.
#[derive(Clone, Debug, PartialEq)]
pub enum DeclarationChange {
    /// The code declares a schedule that has no job.
    Create {
        /// The schedule.
        key: DeclarationKey,
        /// The definition.
        definition: Box<JobInput>,
        /// The version of the program.
        version: String,
    },
    /// The code declares another definition than before, or declares a retired schedule again.
    Update {
        /// The job.
        job: DeclaredJob,
        /// The definition.
        definition: Box<JobInput>,
        /// The version of the program.
        version: String,
    },
    /// The code no longer declares the schedule.
    Retire {
        /// The job.
        job: DeclaredJob,
    },
}

impl DeclarationChange {
    /// Returns what identifies the schedule in the code.
    #[must_use]
    pub fn key(&self) -> &DeclarationKey {
        match self {
            Self::Create { key, .. } => key,
            Self::Update { job, .. } | Self::Retire { job } => &job.key,
        }
    }
}

/// Returns the `limit` changes that follow `last_tried` in the order of their keys; the first key follows the last one. A
/// change that is refused stays among the changes, and would otherwise keep those behind it from being tried.
#[must_use]
pub fn next_changes(
    mut changes: Vec<DeclarationChange>,
    last_tried: Option<&DeclarationKey>,
    limit: usize,
) -> Vec<DeclarationChange> {
    changes.sort_by(|a, b| a.key().cmp(b.key()));
    let tried = changes.partition_point(|change| Some(change.key()) <= last_tried);
    changes.rotate_left(tried);
    changes.truncate(limit);
    changes
}

/// Returns the changes that make the jobs be as the live instances declare.
#[must_use]
pub fn changes(instances: &[InstanceDeclaration], known: &[DeclaredJob]) -> Vec<DeclarationChange> {
    let mut by_worker: HashMap<&str, Vec<&InstanceDeclaration>> = HashMap::new();
    for instance in instances {
        by_worker.entry(&instance.worker_id).or_default().push(instance);
    }
    let known: BTreeMap<&DeclarationKey, &DeclaredJob> = known.iter().map(|job| (&job.key, job)).collect();
    let mut changes = Vec::new();
    let mut mentioned: HashSet<DeclarationKey> = HashSet::new();
    let mut unclear: HashSet<(&str, Option<&str>, Option<&str>)> = HashSet::new();
    for (worker_id, instances) in &by_worker {
        let newest = newest_version(instances);
        for problem in newest.iter().flat_map(|instance| &instance.problems) {
            unclear.insert((worker_id, problem.job_type.as_deref(), problem.schedule.as_deref()));
        }
        for (key, (definition, version)) in desired(worker_id, &newest, &known) {
            match known.get(&key) {
                None => changes.push(DeclarationChange::Create { key: key.clone(), definition, version }),
                Some(job) => {
                    let is_same = job.declared.as_ref() == serde_json::to_value(&definition).ok().as_ref();
                    if job.is_retired || !is_same {
                        changes.push(DeclarationChange::Update { job: (*job).clone(), definition, version });
                    }
                }
            }
            mentioned.insert(key);
        }
    }
    let is_unclear = |key: &DeclarationKey| {
        let (worker, job_type, name) = (key.worker_id.as_str(), key.job_type.as_str(), key.name.as_str());
        [(worker, None, None), (worker, Some(job_type), None), (worker, Some(job_type), Some(name))]
            .iter()
            .any(|part| unclear.contains(part))
    };
    changes.extend(known.values().filter_map(|job| {
        let is_gone = !job.is_retired
            && !job.key.name.is_empty()
            && by_worker.contains_key(job.key.worker_id.as_str())
            && !mentioned.contains(&job.key)
            && !is_unclear(&job.key);
        is_gone.then(|| DeclarationChange::Retire { job: (*job).clone() })
    }));
    changes
}

/// Returns the instances of the highest version, the one that started last at the end.
fn newest_version<'a>(instances: &[&'a InstanceDeclaration]) -> Vec<&'a InstanceDeclaration> {
    let highest = instances.iter().max_by(|a, b| compare_versions(&a.version, &b.version));
    let Some(highest) = highest else { return Vec::new() };
    let is_highest = |one: &&&InstanceDeclaration| compare_versions(&one.version, &highest.version) == Ordering::Equal;
    let mut newest: Vec<_> = instances.iter().filter(is_highest).copied().collect();
    newest.sort_by_key(|instance| instance.started_at);
    newest
}

/// Returns the definitions that instances declare; a later instance replaces those of an earlier one.
fn desired(
    worker_id: &str,
    instances: &[&InstanceDeclaration],
    known: &BTreeMap<&DeclarationKey, &DeclaredJob>,
) -> BTreeMap<DeclarationKey, (Box<JobInput>, String)> {
    let mut desired = BTreeMap::new();
    for instance in instances {
        for (job_type, declared) in &instance.declared {
            let key = |name: &str| DeclarationKey {
                worker_id: worker_id.to_owned(),
                job_type: job_type.clone(),
                name: name.to_owned(),
            };
            for schedule in &declared.schedules {
                let definition = definition(worker_id, job_type, &declared.defaults, Some(schedule));
                desired.insert(key(&schedule.name), (Box::new(definition), instance.version.clone()));
            }
            // The job of enqueued occurrences exists since the first of them. Code that has never declared rules leaves it
            // to the users; code that no longer declares any sets the usual ones.
            let enqueued = known.get(&key(""));
            if enqueued.is_some_and(|job| job.declared.is_some() || !declared.defaults.is_empty()) {
                let definition = definition(worker_id, job_type, &declared.defaults, None);
                desired.insert(key(""), (Box::new(definition), instance.version.clone()));
            }
        }
    }
    desired
}

/// Returns the definition of the job of a schedule, or of the occurrences that are enqueued by job type.
#[must_use]
pub fn definition(
    worker_id: &str,
    job_type: &str,
    defaults: &JobDefaults,
    schedule: Option<&DeclaredSchedule>,
) -> JobInput {
    let declared = schedule.map_or_else(|| defaults.clone(), |schedule| schedule.rules.or(defaults));
    let name = schedule
        .map(|schedule| schedule.display_name.clone().unwrap_or_else(|| format!("{job_type}: {}", schedule.name)));
    let description = match schedule {
        Some(_) => String::new(),
        None => format!("Occurrences of {worker_id}/{job_type} that are enqueued by job type."),
    };
    JobInput {
        display_name: name.unwrap_or_else(|| job_type.to_owned()),
        description,
        worker_id: worker_id.to_owned(),
        job_type: job_type.to_owned(),
        job_data: schedule.map_or_else(|| json!({}), |schedule| schedule.input.clone()),
        tags: declared.tags.clone(),
        priority: declared.priority.unwrap_or(3),
        timeout_seconds: schedule.and_then(|schedule| schedule.timeout_seconds),
        ..JobInput::schedule_only(
            schedule.map_or(Schedule::Manual, |schedule| timing(&schedule.timing)),
            rules_of(&declared),
        )
    }
}

fn timing(timing: &DeclaredTiming) -> Schedule {
    match timing {
        DeclaredTiming::Cron { expression, zone } => {
            Schedule::Cron { expression: expression.clone(), zone: zone.clone() }
        }
        DeclaredTiming::Every { seconds } => Schedule::every(*seconds),
    }
}

/// Compares two versions, number by number and word by word. A version that continues with `-` is below one that ends there.
fn compare_versions(a: &str, b: &str) -> Ordering {
    // What follows a plus sign is no part of a version.
    let parts = |version: &str| {
        let version = version.trim().trim_start_matches('v');
        let version = version.split('+').next().unwrap_or_default();
        let (release, suffix) = version.split_once('-').map_or((version, None), |(a, b)| (a, Some(b.to_owned())));
        (release.to_owned(), suffix)
    };
    let ((release_a, suffix_a), (release_b, suffix_b)) = (parts(a), parts(b));
    compare_parts(&release_a, &release_b).then_with(|| match (suffix_a, suffix_b) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(a), Some(b)) => compare_parts(&a, &b),
    })
}

fn compare_parts(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.split('.'), b.split('.'));
    loop {
        let order = match (a.next(), b.next()) {
            (None, None) => return Ordering::Equal,
            // 1.2 is 1.2.0.
            (None, Some(rest)) => compare_part("0", rest),
            (Some(rest), None) => compare_part(rest, "0"),
            (Some(a), Some(b)) => compare_part(a, b),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

fn compare_part(a: &str, b: &str) -> Ordering {
    match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a), Ok(b)) => a.cmp(&b),
        _ => a.cmp(b),
    }
}

#[cfg(test)]
mod tests;
