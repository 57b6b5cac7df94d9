//! The parts of a registration that are refused alone, and those that refuse the whole.

use milvaion_protocol::{
    message::RegistrationMessage,
    reading::{MAX_HELLO_PROBLEMS, RegistrationReading},
};
use serde_json::{Value, json};

use super::*;

fn hello(job_types: Vec<JobTypeInfo>) -> InstanceHello {
    InstanceHello {
        worker_id: "w".repeat(100),
        instance_id: "w-1".into(),
        protocol: PROTOCOL_VERSION,
        job_types,
        ..InstanceHello::default()
    }
}

fn job_type(name: &str) -> JobTypeInfo {
    JobTypeInfo { job_type: name.into(), schema: json!({ "type": "object" }), ..JobTypeInfo::default() }
}

fn schedule(name: &str) -> DeclaredSchedule {
    DeclaredSchedule {
        name: name.into(),
        timing: DeclaredTiming::Every { seconds: 60 },
        input: json!({}),
        display_name: None,
        rules: JobDefaults::default(),
        timeout_seconds: None,
    }
}

/// Returns the accepted job types with their schedules, and the problems as text.
fn outcome(hello: InstanceHello) -> (Vec<(String, Vec<String>)>, Vec<String>) {
    let CheckedHello { accepted, problems } = check(hello, HelloProblems::default());
    let names = |info: &JobTypeInfo| info.schedules.iter().map(|schedule| schedule.name.clone()).collect();
    let accepted = accepted.expect("the registration is accepted");
    let types = accepted.job_types.iter().map(|info| (info.job_type.clone(), names(info))).collect();
    let text = |problem: HelloProblem| {
        format!("{}/{}: {}", problem.job_type.unwrap_or_default(), problem.schedule.unwrap_or_default(), problem.text)
    };
    (types, problems.into_iter().map(text).collect())
}

#[test]
fn bad_job_type_is_refused_alone() {
    let fat = JobTypeInfo { schema: json!({ "description": "x".repeat(MAX_SCHEMA_BYTES) }), ..job_type("fat") };
    let nul = JobTypeInfo { schema: json!({ "description": "a\0b" }), ..job_type("nul") };
    let types = vec![job_type("echo"), fat, nul, job_type("not a name"), job_type(&"_".repeat(100)), job_type("ECHO")];
    let (accepted, problems) = outcome(hello(types));
    assert_eq!(accepted, [("echo".to_owned(), Vec::new())]);
    for (problem, text) in
        problems.iter().zip(["131090 bytes", "NUL", "letters, digits", "too long together", "differs in case only"])
    {
        assert!(problem.contains(text), "{problem}");
    }
    assert_eq!(problems.len(), 5);
}

#[test]
fn bad_schedule_is_refused_alone() {
    let cron = |expression: &str| DeclaredSchedule {
        timing: DeclaredTiming::Cron { expression: expression.into(), zone: "UTC".into() },
        ..schedule("cron")
    };
    let large = DeclaredSchedule { input: json!("x".repeat(MAX_JOB_DATA_BYTES)), ..schedule("large") };
    let late = DeclaredSchedule { timeout_seconds: Some(86_401), ..schedule("late") };
    let schedules = vec![schedule("a"), schedule("a"), schedule("b c"), cron("61 * * * *"), large, late];
    let (accepted, problems) = outcome(hello(vec![JobTypeInfo { schedules, ..job_type("echo") }]));
    assert_eq!(accepted, [("echo".to_owned(), vec!["a".to_owned(), "late".to_owned()])]);
    assert_eq!(problems.len(), 5, "{problems:?}");
    assert!(problems[0].starts_with("echo/a: the schedule is left out: another schedule"), "{problems:?}");
    assert!(problems[2].starts_with("echo/cron: the schedule is left out: cron: "), "{problems:?}");
    assert_eq!(problems[4], "echo/late: timeoutSeconds: 86401 is not within 1 to 86400, and is left out");
}

#[test]
fn rules_out_of_bounds_are_left_out() {
    let defaults = JobDefaults {
        max_retries: Some(101),
        start_within_seconds: Some(0),
        priority: Some(5),
        overlap: Some("sometimes".into()),
        misfire: Some("skip".into()),
        tags: vec!["a,b".into(), "good".into()],
        ..JobDefaults::default()
    };
    let checked = check(hello(vec![JobTypeInfo { defaults, ..job_type("echo") }]), HelloProblems::default());
    let kept = checked.accepted.expect("accepted").job_types.remove(0).defaults;
    let expected = JobDefaults {
        priority: Some(5),
        misfire: Some("skip".into()),
        tags: vec!["good".into()],
        ..JobDefaults::default()
    };
    assert_eq!(kept, expected);
    assert_eq!(checked.problems.len(), 4);
}

#[test]
fn counts_are_bounded() {
    let schedules = |count: usize| (0..count).map(|n| schedule(&format!("s{n}"))).collect::<Vec<_>>();
    let types = (0..21).map(|n| JobTypeInfo { schedules: schedules(101), ..job_type(&format!("t{n}")) }).collect();
    let (accepted, problems) = outcome(hello(types));
    assert_eq!(accepted.iter().map(|(_, schedules)| schedules.len()).sum::<usize>(), MAX_SCHEDULES);
    assert_eq!(problems.len(), MAX_HELLO_PROBLEMS);
    assert!(problems[MAX_HELLO_PROBLEMS - 1].contains("More parts"), "{problems:?}");
    let (accepted, problems) = outcome(hello((0..501).map(|n| job_type(&format!("t{n}"))).collect()));
    assert_eq!((accepted.len(), problems.len()), (MAX_JOB_TYPES, 1));
    let features = (0..101).map(|n| format!("f{n}")).chain(["not a name".to_owned()]).collect();
    let checked = check(InstanceHello { features, ..hello(Vec::new()) }, HelloProblems::default());
    assert_eq!((checked.accepted.expect("accepted").features.len(), checked.problems.len()), (MAX_FEATURES, 2));
}

#[test]
fn unusable_identity_refuses_the_whole() {
    for (worker_id, instance_id) in [("not a name", "w-1"), ("w", ""), ("w", "a\0b"), ("w", &"i".repeat(201))] {
        let hello = InstanceHello { worker_id: worker_id.into(), instance_id: instance_id.into(), ..hello(Vec::new()) };
        let checked = check(hello, HelloProblems::default());
        assert_eq!((checked.accepted, checked.problems.len()), (None, 1), "{worker_id} {instance_id}");
    }
}

#[test]
fn newer_protocol_is_accepted_with_a_note() {
    let checked =
        check(InstanceHello { protocol: PROTOCOL_VERSION + 1, ..hello(Vec::new()) }, HelloProblems::default());
    assert!(checked.accepted.is_some());
    assert!(checked.problems[0].text.contains("upgrade the server"), "{:?}", checked.problems);
}

#[test]
fn registration_vectors_are_read_in_parts() {
    let vectors: Value =
        serde_json::from_str(include_str!("../../../../docs/protocol/vectors/registration-message.json"))
            .expect("JSON");
    let read = |vector: &Value| RegistrationReading::of(vector["body"].to_string().as_bytes());
    for vector in vectors["partly"].as_array().expect("a list") {
        let name = &vector["name"];
        let left_out: Vec<&str> =
            vector["leftOut"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        let RegistrationReading { message, problems } = read(vector).expect("readable in parts");
        let problems = match message {
            RegistrationMessage::Hello(hello) => {
                let checked = check(hello, problems);
                assert_eq!(checked.accepted.expect("accepted").job_types[0].job_type, "report", "{name}");
                checked.problems
            }
            RegistrationMessage::Heartbeat(beat) => {
                let problem = &problems.0[0].text;
                assert_eq!((beat.running.len(), problem.starts_with(left_out[0])), (1, true), "{name}: {problem}");
                continue;
            }
            RegistrationMessage::Goodbye { .. } => panic!("{name}: a goodbye has no parts"),
        };
        let parts: Vec<String> = problems
            .iter()
            .map(|problem| [problem.job_type.clone(), problem.schedule.clone()])
            .map(|names| names.into_iter().flatten().collect::<Vec<_>>().join("/"))
            .collect();
        assert_eq!(parts, left_out, "{name}");
    }
    for vector in vectors["reject"].as_array().expect("a list") {
        let unreadable = read(vector).expect_err("rejected as a whole");
        let is_hello = vector["body"]["kind"] == "hello";
        let is_named = unreadable.reason.starts_with(vector["field"].as_str().expect("a field"));
        assert_eq!((unreadable.is_hello, is_named || !is_hello), (is_hello, true), "{}", unreadable.reason);
    }
}
