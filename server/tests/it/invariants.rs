//! The invariants of the architecture, checked by searching the source files.
//!
//! docs/ARCHITECTURE.md lists the seven invariants and their reasons. Most of them say that something does *not* occur
//! somewhere. A compiler does not notice that, a reader of a long change easily misses it, and a search finds it at once.
//! These tests need no service. A test that fails names the file: move the code to the module where it belongs instead of
//! weakening the rule.

use std::fs;

use milvaion_test_support::paths::repository_root;

/// A source file: its path from the repository's root, and its text without comments.
struct SourceFile {
    path: String,
    code: String,
}

fn read(path: &str) -> String {
    fs::read_to_string(repository_root().join(path)).unwrap_or_else(|error| panic!("{path} cannot be read: {error}"))
}

/// Reads the Rust and SQL files below a folder, or one file.
fn sources(path: &str) -> Vec<SourceFile> {
    let (mut found, mut open) = (Vec::new(), vec![repository_root().join(path)]);
    while let Some(next) = open.pop() {
        if next.is_dir() {
            let entries = fs::read_dir(&next).expect("the folder can be listed");
            open.extend(entries.map(|entry| entry.expect("the folder can be listed").path()));
        } else if next.extension().is_some_and(|extension| extension == "rs" || extension == "sql") {
            let path = next.strip_prefix(repository_root()).expect("the file is in the repository");
            let path = path.to_string_lossy().into_owned();
            let code = without_comments(&read(&path));
            found.push(SourceFile { path, code });
        }
    }
    assert!(!found.is_empty(), "{path} contains no Rust file: if it was moved, update the rule");
    found
}

/// Removes comments, which may name what code must not. A `//` that does not follow white space is part of a URL.
fn without_comments(text: &str) -> String {
    let bare =
        |line: &str| match line.match_indices("//").find(|(at, _)| *at == 0 || line[..*at].ends_with([' ', '\t'])) {
            Some((at, _)) => line[..at].to_owned(),
            None => line.to_owned(),
        };
    text.lines().map(bare).collect::<Vec<_>>().join("\n")
}

/// Returns true if `word` occurs as a whole word, not as a part of a longer name.
fn has(code: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let continues_before = word.starts_with(is_part) && code[..at].ends_with(is_part);
        let continues_after = word.ends_with(is_part) && code[at + word.len()..].starts_with(is_part);
        !continues_before && !continues_after
    })
}

/// Checks that no file below `path` contains any of `words`.
#[track_caller]
fn contains_none_of(path: &str, words: &[&str]) {
    let broken: Vec<String> = sources(path)
        .iter()
        .flat_map(|file| {
            words.iter().filter(|word| has(&file.code, word)).map(move |word| format!("{} contains {word}", file.path))
        })
        .collect();
    assert!(broken.is_empty(), "{path} must contain none of {words:?}:\n{}", broken.join("\n"));
}

/// Checks that below `path` only the `allowed` files contain `word`.
#[track_caller]
fn only_in(path: &str, word: &str, allowed: &[&str]) {
    let broken: Vec<String> = sources(path)
        .into_iter()
        .filter(|file| has(&file.code, word) && !allowed.iter().any(|prefix| file.path.starts_with(prefix)))
        .map(|file| file.path)
        .collect();
    assert!(broken.is_empty(), "only {allowed:?} may contain {word}; {broken:?} contain it too");
}

/// Returns the dependencies of a manifest, without its dev-dependencies.
fn dependencies(manifest: &str) -> Vec<String> {
    let text = read(manifest);
    let mut names = Vec::new();
    let mut counts = false;
    for line in text.lines().map(str::trim) {
        if let Some(table) = line.strip_prefix('[') {
            let table = table.trim_end_matches(']');
            // A dependency may also be a table, `[dependencies.name]`.
            let (table, own) =
                table.rsplit_once("dependencies.").map_or((table, None), |(kind, name)| (kind, Some(name)));
            let is_for_tests = table.contains("dev-");
            names.extend(own.filter(|_| !is_for_tests).map(str::to_owned));
            counts = table.ends_with("dependencies") && !is_for_tests;
        } else if counts && !line.starts_with('#') {
            let name: String =
                line.chars().take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).collect();
            if !name.is_empty() {
                names.push(name);
            }
        }
    }
    assert!(!names.is_empty(), "{manifest} names no dependency: there must be one per line");
    names
}

/// Checks that a manifest has none of the `banned` dependencies.
#[track_caller]
fn depends_on_none_of(manifest: &str, banned: &[&str]) {
    let broken: Vec<String> =
        dependencies(manifest).into_iter().filter(|name| banned.contains(&name.as_str())).collect();
    assert!(broken.is_empty(), "{manifest} must not depend on {broken:?}");
}

/// The drivers of the three services.
const DRIVERS: [&str; 3] = ["sqlx", "redis", "lapin"];

/// Crates that do I/O, or wait, or write log lines.
const IO: [&str; 8] = ["sqlx", "redis", "lapin", "tokio", "axum", "reqwest", "leptos", "tracing"];

#[test]
fn crate_dependencies_go_one_way() {
    depends_on_none_of("protocol/Cargo.toml", &IO);
    depends_on_none_of(
        "protocol/Cargo.toml",
        &[
            "milvaion-app",
            "milvaion-server",
            "milvaion-worker",
            "milvaion-schedule",
            "milvaion-api",
            "rand",
            "chrono-tz",
        ],
    );
    for manifest in ["schedule/Cargo.toml", "api/Cargo.toml"] {
        depends_on_none_of(manifest, &IO);
        depends_on_none_of(manifest, &["milvaion-app", "milvaion-server", "milvaion-worker", "rand"]);
    }
    depends_on_none_of("schedule/Cargo.toml", &["milvaion-api"]);
    depends_on_none_of("app/Cargo.toml", &DRIVERS);
    depends_on_none_of("app/Cargo.toml", &["milvaion-server", "milvaion-worker", "tokio", "axum"]);
    // The worker has sqlx for its outbox file. It never reads the URL of the scheduler's database.
    depends_on_none_of("worker/Cargo.toml", &["milvaion-server", "milvaion-app", "milvaion-api", "leptos", "axum"]);
    // Cron expressions of singleton loops are a feature: a program without them compiles no time zones.
    let optional = "milvaion-schedule = { workspace = true, optional = true }";
    assert!(read("worker/Cargo.toml").contains(optional), "worker/Cargo.toml must have {optional:?}");
    contains_none_of("worker/src", &["DATABASE_URL"]);
    // Users of the SDK compile SQLite, and no driver of PostgreSQL: neither by the SDK nor by the workspace's table.
    for manifest in ["worker/Cargo.toml", "Cargo.toml"] {
        let text = read(manifest);
        let sqlx = text.lines().find(|line| line.starts_with("sqlx")).expect("it depends on sqlx");
        assert!(!sqlx.contains("postgres"), "{manifest}: sqlx must not have the PostgreSQL driver");
    }
    // A program of a user compiles the client without any part of the server, or of the commands. These use the API alone.
    for manifest in ["client/Cargo.toml", "cli/Cargo.toml"] {
        depends_on_none_of(manifest, &["sqlx", "redis"]);
        depends_on_none_of(manifest, &["milvaion-server", "milvaion-app", "milvaion-worker", "leptos", "axum"]);
    }
    depends_on_none_of("client/Cargo.toml", &["milvaion-cli", "clap"]);
    depends_on_none_of("cli/Cargo.toml", &["lapin"]);
    // The worker SDK uses the client of the broker alone, and a program that calls the API uses that alone.
    for optional in ["lapin", "reqwest", "milvaion-api", "milvaion-schedule"] {
        let line = format!("{optional} = {{ workspace = true, optional = true }}");
        assert!(read("client/Cargo.toml").contains(&line), "client/Cargo.toml must have {line:?}");
    }
    // The two programs share their log lines and traces, and users of the SDK compile none of it.
    depends_on_none_of("telemetry/Cargo.toml", &DRIVERS);
    depends_on_none_of("telemetry/Cargo.toml", &["milvaion-server", "milvaion-worker", "milvaion-api", "axum"]);
    depends_on_none_of("worker/Cargo.toml", &["milvaion-telemetry", "opentelemetry_sdk", "opentelemetry-otlp"]);
    // The server's tests run a worker. The server does not depend on it.
    depends_on_none_of("server/Cargo.toml", &["milvaion-worker"]);
    // The guard serves the worker and the server, so it belongs to neither.
    let own: Vec<String> = dependencies("worker/address-guard/Cargo.toml");
    assert!(own.iter().all(|name| !name.starts_with("milvaion-")), "the guard must depend on no other crate: {own:?}");
}

#[test]
fn domain_does_no_io() {
    let impure = [".await", "async", "Utc::now", "Instant::now", "SystemTime", "rand", "tracing", "tokio", "std::env"];
    contains_none_of("server/domain/src", &impure);
    // A crate of its own: what its manifest does not name, it cannot use.
    depends_on_none_of("server/domain/Cargo.toml", &IO);
    depends_on_none_of("server/domain/Cargo.toml", &["milvaion-server", "milvaion-app", "milvaion-worker", "rand"]);
    for pure in ["protocol/src", "schedule/src", "api/src"] {
        contains_none_of(pure, &[".await", "async", "Utc::now", "Instant::now", "std::fs", "std::net", "std::env"]);
    }
}

#[test]
fn only_the_clocks_read_the_time() {
    let clocks = ["server/src/clock.rs", "worker/src/clock.rs", "client/src/clock.rs", "cli/src/console.rs"];
    let folders = [
        "protocol/src",
        "schedule/src",
        "api/src",
        "app/src",
        "server/src",
        "worker/src",
        "worker/builtin/src",
        "worker/address-guard/src",
        "timer/src",
        "client/src",
        "cli/src",
    ];
    for folder in folders {
        for word in ["Utc::now", "Local::now", "Uuid::now_v7", "Uuid::new_v4"] {
            only_in(folder, word, &clocks);
        }
    }
}

#[test]
fn pages_start_timers_that_outlive_their_owner() {
    for word in ["set_timeout", "request_animation_frame"] {
        only_in("app/src", word, &["app/src/browser/timers.rs"]);
    }
}

#[test]
fn service_modules_never_call_each_other() {
    let services = ["store", "cache", "broker"];
    for service in services {
        for other in services.iter().filter(|other| **other != service) {
            let path = format!("server/src/{service}");
            contains_none_of(&path, &[&format!("crate::{other}"), &format!("super::{other}")]);
            // A group such as `use crate::{store::Store, …}` names the module without its crate.
            let in_group = [format!("{{{other}::"), format!(" {other}::")];
            contains_none_of(&path, &in_group.each_ref().map(String::as_str));
        }
        let others =
            ["engine", "background", "ingest", "command", "live", "notify", "http", "ui", "lifecycle", "embedded"];
        for other in others {
            contains_none_of(&format!("server/src/{service}"), &[&format!("crate::{other}")]);
        }
    }
    // The dashboard's pages are passed to the HTTP server as a router.
    contains_none_of("server/src/http", &["crate::ui", "{ui::", " ui::"]);
    // Each driver is used in one module; the telemetry names them to set their log levels.
    for (service, driver) in [("store", "sqlx::"), ("cache", "redis::"), ("broker", "lapin::")] {
        let folder = format!("server/src/{service}/");
        only_in("server/src", driver, &[folder.as_str(), "server/src/telemetry.rs"]);
    }
}

#[test]
fn rows_are_committed_before_messages_are_sent() {
    // One module publishes job messages, and one builds them: each caller has committed the row before. The others publish
    // replies, echoes, and what a worker has sent as a dead letter.
    let others = ["server/src/broker/reply.rs", "server/src/broker/consumer.rs", "server/src/broker/echo.rs"];
    let publishers = [&["server/src/broker/publisher.rs"], &others[..]].concat();
    only_in("server/src", "basic_publish", &publishers);
    for (file, row, message) in [
        ("server/src/background/dispatcher/batch.rs", ".create_scheduled_runs(", "self.sender.send_created"),
        ("server/src/background/republisher.rs", ".claim_unsent(", "self.publisher.publish("),
        ("server/src/background/slot_granter.rs", ".release_quarantined(", "self.sender.send_created("),
        ("server/src/command/manual_run.rs", ".insert_manual_run(", "self.send_created("),
        ("server/src/ingest/enqueue.rs", ".enqueue(", ".send_created("),
        ("server/src/http/rest/occurrences.rs", ".enqueue(", ".send_created("),
    ] {
        let code = without_comments(&read(file));
        let position = |what: &str| {
            code.find(what).unwrap_or_else(|| panic!("{file} no longer contains {what}: update this rule"))
        };
        assert!(position(row) < position(message), "{file} sends the message before the row is committed");
    }
    only_in("server/src", "OutgoingMessage {", &["server/src/broker/", "server/src/engine/sender.rs"]);
}

#[test]
fn losing_redis_costs_speed_only() {
    // Reports, decisions and pages never wait for Redis.
    for folder in ["server/src/ingest", "server/domain/src", "server/src/store", "server/src/ui"] {
        contains_none_of(folder, &["cache", "Cache", "redis"]);
    }
}

#[test]
fn statuses_are_written_by_guarded_statements() {
    // Two statements for every birth, of single occurrences and of enqueued ones, one for every end, and one for every change between them.
    for (statement, paths) in [
        (
            "INSERT INTO runs",
            ["server/src/store/create.sql", "server/src/store/enqueue.sql", "server/src/store/advance.sql"].as_slice(),
        ),
        ("INSERT INTO history", &["server/src/store/create.sql", "server/src/store/finish.sql"]),
        ("DELETE FROM runs", &["server/src/store/finish.sql"]),
        ("SET status = excluded.status", &["server/src/store/advance.sql"]),
        ("UPDATE history", &[]),
        ("DELETE FROM history", &[]),
    ] {
        only_in("server/src", statement, paths);
    }
    for file in sources("server/src") {
        for (at, _) in file.code.match_indices("UPDATE runs") {
            let statement = &file.code[at..];
            let columns = &statement[..statement.find("WHERE").unwrap_or(statement.len())];
            let columns = columns.split_whitespace().collect::<Vec<_>>().join(" ");
            let writes = columns.contains("SET status =") || columns.contains(", status =");
            assert!(!writes, "{} writes a status without the guards of advance.sql", file.path);
        }
    }
    let advance = without_comments(&read("server/src/store/advance.sql"));
    for guard in ["WHEN 'running' THEN", "WHEN 'unknown' THEN", "WHEN 'queued' THEN", "ELSE false END"] {
        assert!(advance.contains(guard), "the guard names the statuses it allows: {guard}");
    }
}

#[test]
fn ticks_do_not_wait() {
    let drivers = ["server/src/background/dispatcher", "server/src/background/lease"];
    for wait in ["sleep", "interval", "notified", "select!"] {
        only_in("server/src/background", wait, &drivers);
    }
    for file in sources("server/src/background") {
        for (at, _) in file.code.match_indices("async fn tick(") {
            let inputs = &file.code[at..][..file.code[at..].find(')').expect("a closing parenthesis")];
            assert!(inputs.ends_with("self"), "{}: a tick has no parameter but self", file.path);
        }
    }
}

#[test]
fn release_builds_have_no_crash_points() {
    for manifest in ["server/Cargo.toml", "worker/Cargo.toml"] {
        let text = read(manifest);
        let features =
            text.split("\n[").find_map(|table| table.strip_prefix("features]")).expect("a table of features");
        let naming: Vec<&str> = features
            .lines()
            .filter(|line| !line.starts_with('#') && (has(line, "faults") || has(line, "fail")))
            .collect();
        assert_eq!(
            naming,
            [r#"faults = ["dep:fail", "fail/failpoints"]"#],
            "{manifest}: no other feature may enable the crash points"
        );
        assert!(text.contains("\nfail = { workspace = true, optional = true }\n"), "{manifest}: `fail` is optional");
    }
    // The test harness does not enable them either: only the chaos suite tests programs with crash points.
    let harness = read("end2end/support/Cargo.toml");
    assert!(!harness.lines().any(|line| !line.starts_with('#') && has(line, "faults")), "the harness enables `faults`");
    let commands = read("Makefile").replace("\\\n", " ") + &read("Dockerfile").replace("\\\n", " ");
    let releases: Vec<&str> =
        commands.lines().filter(|line| line.contains("cargo") && line.contains("--release")).collect();
    assert!(!releases.is_empty(), "no command builds a release: update this rule");
    for command in releases {
        // A build of the whole workspace enables the features that any of its members requests.
        for word in ["faults", "--all-features", "--workspace", "--all"] {
            let names =
                command.split_whitespace().any(|part| part.split(['/', ',', '=', '"']).any(|name| name == word));
            assert!(!names, "a release is built with {word}: {command}");
        }
    }
}

#[test]
fn every_fault_is_documented_and_used_once() {
    for folder in ["server/src", "worker/src"] {
        let table = format!("{folder}/faults.rs");
        let text = read(&table);
        let rows = text.lines().filter_map(|line| line.strip_prefix("//! | `")?.split_once("` |"));
        // The table of settings has the same format, with a `=` in its names.
        let names = rows.map(|(name, _)| name.to_owned()).filter(|name| !name.contains('='));
        let mut documented: Vec<String> = names.collect();
        let mut used: Vec<String> = Vec::new();
        for file in sources(folder).into_iter().filter(|file| file.path != table) {
            for call in ["is_sabotaged(\"", "faults::crash_point(\""] {
                let names =
                    file.code.match_indices(call).filter_map(|(at, _)| file.code[at + call.len()..].split_once('"'));
                used.extend(names.map(|(name, _)| name.to_owned()));
            }
        }
        assert!(!documented.is_empty(), "{table} has no table any more");
        documented.sort();
        used.sort();
        assert_eq!(documented, used, "{table}: the code must use each documented fault once, and no other");
    }
}

#[test]
fn search_ignores_comments_and_parts_of_words() {
    let code = without_comments("//! sqlx\nlet a = \"amqp://x\"; // redis\n    /// lapin\nuse crate::cache;");
    assert!(has(&code, "amqp://x") && has(&code, "crate::cache"));
    assert!(!has(&code, "sqlx") && !has(&code, "redis") && !has(&code, "lapin"));
    assert!(!has("brand", "rand") && !has("rand_core", "rand") && has("rand::random", "rand"));
    assert!(dependencies("server/Cargo.toml").contains(&"sqlx".to_owned()));
    assert!(
        !dependencies("server/Cargo.toml").contains(&"milvaion-worker".to_owned()),
        "dev-dependencies do not count"
    );
}
