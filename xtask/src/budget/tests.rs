//! The budget on small samples of its input.

use super::*;

/// Returns a report that reaches every limit and exceeds none.
fn full_report() -> TestRunReport {
    let names = BUDGET.steps.iter().flat_map(|(names, _)| names.iter());
    let steps = names.map(|name| StepTime { name: (*name).into(), wall: 1.0, busy: 2.0 }).collect();
    let counts = BUDGET.counts.iter().map(|(key, _, limit, _)| ((*key).into(), *limit)).collect();
    let tests = vec![TestTime { name: "fast".into(), seconds: 0.1, is_browser: false }];
    TestRunReport { is_limited: true, steps, counts, tests }
}

#[test]
fn steps_over_their_budget_are_only_warnings() {
    let mut report = full_report();
    assert!(report.failures().is_empty() && report.warnings().is_empty());
    let text = "install\t65.4\t30.0\nlints and build\t840\t1500\nrust\t1\t1\nchaos\t1\t1\nbrowser\t1\t1\nother\t9\t1\n";
    report.steps = parse_steps(text).unwrap();
    assert_eq!(report.warnings(), ["install + lints and build took 905 s, the budget is 900 s"]);
    assert!(report.failures().is_empty());
    let table = report.to_string();
    assert!(table.contains(" 65     30     900 for install + lints and build\n"), "{table}");
    assert!(table.contains(" 9      1\n") && table.contains(" 917   1534    2100\n"), "{table}");
    report.steps.remove(0);
    assert!(report.failures()[0].contains("no time of install"));
    assert!(parse_steps("build\t1\t2\nbuild\t1\t2\n").is_err() && parse_steps("build 1 2\n").is_err());
}

#[test]
fn exceeded_count_names_value_limit_and_remedy() {
    let mut report = full_report();
    report.counts.extend(parse_counts("stack\nserver\nserver\n"));
    assert!(report.failures().is_empty());
    report.counts.insert("server".into(), 181);
    report.counts.remove("axe-scan");
    let failures = report.failures();
    assert!(failures[0].starts_with("181 servers of Rust tests, the limit is 180: share a server"), "{failures:?}");
    assert!(failures[1].starts_with("0 axe scans") && failures.len() == 2, "{failures:?}");
}

#[test]
fn slow_rust_test_fails_by_name_and_remedy() {
    let junit = r#"<testsuites name="all"><testsuite name="milvaion-server::it" tests="2" time="13.000">
        <testcase name="lease::taken" classname="milvaion-server::it" timestamp="2026" time="0.5">
        <failure type="test failure">&lt;testcase name=</failure></testcase>
        <testcase name="lease::lost" classname="milvaion-server::it" timestamp="2026" time="12.500"/>
        </testsuite></testsuites>"#;
    let report = TestRunReport { tests: parse_rust_tests(junit).unwrap(), ..full_report() };
    let expected = "milvaion-server::it lease::lost took 12.5 s, the limit is 10 s: shorten its waits or its data, \
                    or move it to `mod exhaustive`";
    assert_eq!(report.failures(), [expected]);
    let (table, slowest) = (report.to_string(), "12.5  milvaion-server::it lease::lost\n");
    assert!(table.contains(slowest) && table.ends_with("0.5  milvaion-server::it lease::taken"), "{table}");
    // The same time passes if the whole step took 1.3 times its budget, and fails if another step did.
    for (slow, failures) in [("rust", 0), ("browser", 1)] {
        let mut report = TestRunReport { tests: parse_rust_tests(junit).unwrap(), ..full_report() };
        let budget = BUDGET.steps.iter().find(|(names, _)| *names == [slow]).unwrap().1;
        report.steps.iter_mut().find(|step| step.name == slow).unwrap().wall = 1.3 * budget;
        assert_eq!(report.failures().len(), failures, "{slow}");
    }
    assert!(parse_rust_tests("<testsuites/>").unwrap().is_empty());
    assert!(parse_rust_tests(&junit.replace("time=", "times=")).is_err());
}

#[test]
fn nested_browser_tests_are_found_without_skipped() {
    let json = r#"{"suites": [{"title": "live.spec.ts", "specs": [
            {"title": "a", "tests": [{"results": [{"status": "passed", "duration": 900}]}]},
            {"title": "b", "tests": [{"results": [{"status": "skipped", "duration": 0}]}, {"results": []}]}],
        "suites": [{"title": "twice", "specs": [{"title": "c", "tests": [{"results": [
            {"status": "failed", "duration": 9000}, {"status": "passed", "duration": 7000}]}]}]}]}]}"#;
    let report = TestRunReport { tests: parse_browser_tests(json).unwrap(), ..full_report() };
    assert_eq!((report.tests.len(), report.tests[0].name.as_str()), (2, "live.spec.ts › a"));
    let failures = report.failures();
    assert!(failures[0].starts_with("live.spec.ts › twice › c took 16.0 s, the limit is 15 s"), "{failures:?}");
    assert!(failures[0].ends_with("or tag it with `@all`") && failures.len() == 1, "{failures:?}");
}

#[test]
fn nominal_seconds_are_added_and_required() {
    let seconds = r#"[{"scenario": "a", "nominal_seconds": 60}, {"scenario": "b", "nominal_seconds": 70.2}]"#;
    assert_eq!(parse_nominal_seconds(seconds).unwrap(), 131);
    let error = parse_nominal_seconds(r#"[{"scenario": "a"}]"#).unwrap_err().to_string();
    assert!(error.ends_with(r#"has no nominal_seconds for "a""#), "{error}");
}

#[test]
fn missing_file_names_its_command() {
    let error = TestRunReport::read(Path::new("/does-not-exist"), false).err().unwrap().to_string();
    assert_eq!(error, "target/budget/steps.tsv is missing: run `make test-all`, in which each step writes it");
}
