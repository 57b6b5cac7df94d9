use chrono::Duration;
use serde_json::json;

use super::*;

fn instance(version: &str, started: i64, schedules: &[(&str, &str)]) -> InstanceDeclaration {
    let schedules = schedules.iter().map(|(name, expression)| {
        let timing = DeclaredTiming::Cron { expression: (*expression).into(), zone: "UTC".into() };
        let rules = JobDefaults { priority: (*name == "urgent").then_some(5), ..JobDefaults::default() };
        let name = (*name).to_owned();
        DeclaredSchedule { name, timing, input: json!({}), display_name: None, rules, timeout_seconds: None }
    });
    let defaults = JobDefaults { max_retries: Some(4), tags: vec!["code".into()], ..JobDefaults::default() };
    let declared = TypeDeclaration { defaults, schedules: schedules.collect() };
    InstanceDeclaration {
        worker_id: "w".into(),
        version: version.into(),
        started_at: DateTime::UNIX_EPOCH + Duration::seconds(started),
        declared: BTreeMap::from([("report".to_owned(), declared)]),
        problems: Vec::new(),
    }
}

/// Carries out changes like the task does, and returns the kinds of them by name.
fn apply(instances: &[InstanceDeclaration], known: &mut Vec<DeclaredJob>) -> Vec<String> {
    let mut done = Vec::new();
    for change in changes(instances, known) {
        match change {
            DeclarationChange::Create { key, definition, version } => {
                done.push(format!("create {}", key.name));
                let declared = serde_json::to_value(definition).ok();
                let job_id = JobId::from_parts(DateTime::UNIX_EPOCH, [known.len() as u8; 10]);
                known.push(DeclaredJob { key, job_id, declared, version, is_retired: false });
            }
            DeclarationChange::Update { job, definition, version } => {
                done.push(format!("update {}", job.key.name));
                let job = known.iter_mut().find(|one| one.key == job.key).expect("known");
                (job.declared, job.version, job.is_retired) = (serde_json::to_value(definition).ok(), version, false);
            }
            DeclarationChange::Retire { job } => {
                done.push(format!("retire {}", job.key.name));
                known.iter_mut().find(|one| one.key == job.key).expect("known").is_retired = true;
            }
        }
    }
    done
}

#[test]
fn schedule_is_created_updated_retired_and_revived() {
    let mut known = Vec::new();
    assert_eq!(
        apply(&[instance("1", 0, &[("a", "0 2 * * *"), ("b", "0 3 * * *")])], &mut known),
        ["create a", "create b"]
    );
    assert!(apply(&[instance("1", 0, &[("a", "0 2 * * *"), ("b", "0 3 * * *")])], &mut known).is_empty());
    assert_eq!(apply(&[instance("2", 1, &[("a", "0 4 * * *")])], &mut known), ["update a", "retire b"]);
    assert!(apply(&[], &mut known).is_empty(), "a worker without instances says nothing");
    assert_eq!(apply(&[instance("3", 2, &[("b", "0 3 * * *")])], &mut known), ["update b", "retire a"]);
}

#[test]
fn highest_version_decides_while_two_run() {
    let old = instance("1.9.2", 9, &[("a", "0 2 * * *"), ("b", "0 3 * * *")]);
    let new = instance("1.10.0", 1, &[("a", "0 4 * * *")]);
    let mut known = Vec::new();
    assert_eq!(apply(std::slice::from_ref(&old), &mut known), ["create a", "create b"]);
    assert_eq!(apply(&[old.clone(), new.clone()], &mut known), ["update a", "retire b"]);
    assert!(apply(&[new, old.clone()], &mut known).is_empty());
    // The new version is rolled back.
    assert_eq!(apply(&[old], &mut known), ["update a", "update b"]);
}

#[test]
fn instances_of_one_version_keep_what_one_of_them_declares() {
    let early = instance("1", 1, &[("a", "0 2 * * *"), ("b", "0 3 * * *")]);
    let late = instance("1", 2, &[("a", "0 4 * * *")]);
    let mut known = Vec::new();
    assert_eq!(apply(std::slice::from_ref(&early), &mut known), ["create a", "create b"]);
    assert_eq!(apply(&[late.clone(), early], &mut known), ["update a"]);
    assert_eq!(apply(&[late], &mut known), ["retire b"]);
}

#[test]
fn refused_schedule_is_left_as_it_is() {
    let mut known = Vec::new();
    apply(&[instance("1", 0, &[("a", "0 2 * * *"), ("b", "0 3 * * *")])], &mut known);
    let mut next = instance("2", 1, &[("b", "0 3 * * *")]);
    next.problems = vec![HelloProblem {
        job_type: Some("report".into()),
        schedule: Some("a".into()),
        text: "the minute 61 does not exist".into(),
    }];
    assert!(apply(&[next], &mut known).is_empty());
}

#[test]
fn rules_of_a_schedule_precede_those_of_its_type() {
    let mut known = Vec::new();
    let key = DeclarationKey { worker_id: "w".into(), job_type: "report".into(), name: String::new() };
    let enqueued =
        DeclaredJob { key, job_id: JobId::default(), declared: None, version: String::new(), is_retired: false };
    known.push(enqueued);
    apply(&[instance("1", 0, &[("a", "0 2 * * *"), ("urgent", "0 3 * * *")])], &mut known);
    let found: Vec<_> = known
        .iter()
        .map(|job| {
            let definition: JobInput =
                serde_json::from_value(job.declared.clone().expect("declared")).expect("a definition");
            (definition.display_name, definition.priority, definition.rules.max_retries, definition.tags)
        })
        .collect();
    let tags = || vec!["code".to_owned()];
    assert_eq!(
        found,
        [
            ("report".to_owned(), 3, 4, tags()),
            ("report: a".to_owned(), 3, 4, tags()),
            ("report: urgent".to_owned(), 5, 4, tags())
        ]
    );
}

#[test]
fn versions_are_compared_by_number() {
    for (lower, higher) in [
        ("1.9.2", "1.10.0"),
        ("1.2", "1.2.1"),
        ("2.0.0-rc1", "2.0.0"),
        ("v1", "2"),
        ("1.0.0-a", "1.0.0-b"),
        ("", "0.1"),
    ] {
        assert_eq!(compare_versions(lower, higher), Ordering::Less, "{lower} {higher}");
        assert_eq!(compare_versions(higher, lower), Ordering::Greater, "{lower} {higher}");
    }
    for (a, b) in [("1.2", "1.2.0"), ("1.0.0+build7", "1.0.0"), ("abc", "abc")] {
        assert_eq!(compare_versions(a, b), Ordering::Equal, "{a} {b}");
    }
}

#[test]
fn job_of_enqueued_occurrences_follows_code_that_declares_rules() {
    let job = |declared: Option<Value>| DeclaredJob {
        key: DeclarationKey { worker_id: "w".into(), job_type: "report".into(), name: String::new() },
        job_id: JobId::from_parts(DateTime::UNIX_EPOCH, [1; 10]),
        declared,
        version: String::new(),
        is_retired: false,
    };
    let mut silent = instance("1", 1, &[]);
    silent.declared.insert("report".to_owned(), TypeDeclaration::default());
    let mut known = vec![job(None)];
    assert!(apply(std::slice::from_ref(&silent), &mut known).is_empty(), "code without rules leaves it to the users");
    assert_eq!(apply(&[instance("1", 1, &[])], &mut known), ["update "]);
    silent.version = "2".into();
    assert_eq!(apply(&[silent], &mut known), ["update "], "the rules are no longer declared");
}

#[test]
fn each_change_is_tried_although_others_stay() {
    let declared = instance("1", 0, &[("b", "0 2 * * *"), ("d", "0 2 * * *"), ("a", "0 2 * * *"), ("c", "0 2 * * *")]);
    let tried_after = |last: Option<&str>| {
        let key = |name: &str| DeclarationKey { worker_id: "w".into(), job_type: "report".into(), name: name.into() };
        let next = next_changes(changes(std::slice::from_ref(&declared), &[]), last.map(key).as_ref(), 3);
        next.iter().map(|change| change.key().name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(tried_after(None), ["a", "b", "c"]);
    assert_eq!(tried_after(Some("c")), ["d", "a", "b"]);
    assert_eq!(tried_after(Some("b2")), ["c", "d", "a"], "the one tried last is settled");
    assert_eq!(tried_after(Some("d")), ["a", "b", "c"]);
}
