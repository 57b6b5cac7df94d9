//! The absences this house rests on, checked by reading its files.
//!
//! docs/ARCHITECTURE.md lists the seven invariants and why each is worth having. Most say that something does *not*
//! occur somewhere; a compiler does not notice such a thing, a reader of a long change easily misses it, and a search
//! finds it at once. No service is needed here. A test that fails names the file: move what is there to the room it
//! belongs to, rather than weakening the rule.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A file of ours: where it is, seen from the top of the tree, and what it says without its comments.
struct SourceFile {
    path: String,
    code: String,
}

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(top().join(path)).unwrap_or_else(|error| panic!("{path} cannot be read: {error}"))
}

/// Every Rust file below a folder, or one file.
fn sources(path: &str) -> Vec<SourceFile> {
    let (mut found, mut open) = (Vec::new(), vec![top().join(path)]);
    while let Some(next) = open.pop() {
        if next.is_dir() {
            let entries = fs::read_dir(&next).expect("a folder of ours can be listed");
            open.extend(entries.map(|entry| entry.expect("a folder of ours can be listed").path()));
        } else if next.extension().is_some_and(|extension| extension == "rs" || extension == "sql") {
            let path = next.strip_prefix(top()).expect("it lies below the top").to_string_lossy().into_owned();
            let code = without_comments(&read(&path));
            found.push(SourceFile { path, code });
        }
    }
    assert!(!found.is_empty(), "{path} holds no Rust file: has it been moved? Then move its rule too");
    found
}

/// Comments may name what code may not. A `//` after anything but a blank is part of an address.
fn without_comments(text: &str) -> String {
    let bare =
        |line: &str| match line.match_indices("//").find(|(at, _)| *at == 0 || line[..*at].ends_with([' ', '\t'])) {
            Some((at, _)) => line[..at].to_owned(),
            None => line.to_owned(),
        };
    text.lines().map(bare).collect::<Vec<_>>().join("\n")
}

/// Whether `word` occurs on its own, not as a part of a longer name.
fn has(code: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let goes_on_before = word.starts_with(is_part) && code[..at].ends_with(is_part);
        let goes_on_after = word.ends_with(is_part) && code[at + word.len()..].starts_with(is_part);
        !goes_on_before && !goes_on_after
    })
}

/// Checks that no file below `path` says any of `words`, and says which does.
#[track_caller]
fn knows_nothing_of(path: &str, words: &[&str]) {
    let broken: Vec<String> = sources(path)
        .iter()
        .flat_map(|file| {
            words.iter().filter(|word| has(&file.code, word)).map(move |word| format!("{} says {word}", file.path))
        })
        .collect();
    assert!(broken.is_empty(), "{path} must know nothing of {words:?}:\n{}", broken.join("\n"));
}

/// Checks that below `path` only these files say `word`.
#[track_caller]
fn only_in(path: &str, word: &str, allowed: &[&str]) {
    let broken: Vec<String> = sources(path)
        .into_iter()
        .filter(|file| has(&file.code, word) && !allowed.iter().any(|place| file.path.starts_with(place)))
        .map(|file| file.path)
        .collect();
    assert!(broken.is_empty(), "only {allowed:?} may say {word}; so do {broken:?}");
}

/// The crates a manifest depends on to be built, without those of its tests.
fn dependencies(manifest: &str) -> Vec<String> {
    let text = read(manifest);
    let mut names = Vec::new();
    let mut counts = false;
    for line in text.lines().map(str::trim) {
        if let Some(table) = line.strip_prefix('[') {
            let table = table.trim_end_matches(']');
            // A dependency may also be a table of its own, `[dependencies.name]`.
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
    assert!(!names.is_empty(), "{manifest} names no dependency: is it still written as one for each line?");
    names
}

#[track_caller]
fn depends_on_none_of(manifest: &str, banned: &[&str]) {
    let broken: Vec<String> =
        dependencies(manifest).into_iter().filter(|name| banned.contains(&name.as_str())).collect();
    assert!(broken.is_empty(), "{manifest} must not depend on {broken:?}");
}

/// The drivers of the three services and the web server, which only the server has all of.
const DRIVERS: [&str; 3] = ["sqlx", "redis", "lapin"];

#[test]
fn one_arrows_between_crates_go_one_way() {
    let io = ["sqlx", "redis", "lapin", "tokio", "axum", "reqwest", "leptos", "tracing"];
    depends_on_none_of("protocol/Cargo.toml", &io);
    depends_on_none_of(
        "protocol/Cargo.toml",
        &[
            "milvaion-app",
            "milvaion-server",
            "milvaion-worker",
            "milvaion-schedule",
            "milvaion-api",
            "rand",
            "croner",
            "chrono-tz",
        ],
    );
    for manifest in ["schedule/Cargo.toml", "api/Cargo.toml"] {
        depends_on_none_of(manifest, &io);
        depends_on_none_of(manifest, &["milvaion-app", "milvaion-server", "milvaion-worker", "rand"]);
    }
    depends_on_none_of("schedule/Cargo.toml", &["milvaion-api"]);
    depends_on_none_of("app/Cargo.toml", &DRIVERS);
    depends_on_none_of("app/Cargo.toml", &["milvaion-server", "milvaion-worker", "tokio", "axum"]);
    // It has sqlx for a file of its own; the scheduler's database has one address, which the worker never reads.
    depends_on_none_of(
        "worker/Cargo.toml",
        &["milvaion-server", "milvaion-app", "milvaion-api", "milvaion-schedule", "leptos", "axum"],
    );
    knows_nothing_of("worker/src", &["DATABASE_URL"]);
    // The server's tests run a worker; the server does not.
    depends_on_none_of("server/Cargo.toml", &["milvaion-worker"]);
}

#[test]
fn two_the_domain_decides_and_does_nothing() {
    let deeds = [".await", "async", "Utc::now", "Instant::now", "SystemTime", "rand", "tracing", "tokio", "std::env"];
    knows_nothing_of("server/src/domain", &deeds);
    knows_nothing_of("server/src/domain", &DRIVERS);
    // Nor anything of ours but the words of `protocol`.
    knows_nothing_of("server/src/domain", &["crate::store", "crate::cache", "crate::broker", "crate::clock", "app"]);
    for pure in ["protocol/src", "schedule/src", "api/src"] {
        knows_nothing_of(pure, &[".await", "async", "Utc::now", "Instant::now", "std::fs", "std::net", "std::env"]);
    }
}

#[test]
fn two_only_the_clocks_read_the_time_of_day() {
    let clocks = ["server/src/clock.rs", "worker/src/clock.rs"];
    for room in ["protocol/src", "schedule/src", "api/src", "app/src", "server/src", "worker/src", "worker/builtin/src"]
    {
        for word in ["Utc::now", "Local::now", "Uuid::now_v7", "Uuid::new_v4"] {
            only_in(room, word, &clocks);
        }
    }
}

#[test]
fn three_the_services_never_call_each_other() {
    let rooms = ["store", "cache", "broker"];
    for room in rooms {
        for other in rooms.iter().filter(|other| **other != room) {
            let path = format!("server/src/{room}");
            knows_nothing_of(&path, &[&format!("crate::{other}"), &format!("super::{other}")]);
            // A group such as `use crate::{store::Store, …}` names the room without its crate.
            let in_group = [format!("{{{other}::"), format!(" {other}::")];
            knows_nothing_of(&path, &in_group.each_ref().map(String::as_str));
        }
        let others = ["background", "ingest", "command", "live", "http", "ui", "lifecycle", "embedded"];
        for other in others {
            knows_nothing_of(&format!("server/src/{room}"), &[&format!("crate::{other}")]);
        }
    }
    // And each driver is known in one room, beside the one that starts private services and asks whether they answer.
    for (room, driver) in [("store", "sqlx::"), ("cache", "redis::"), ("broker", "lapin::")] {
        let room = format!("server/src/{room}/");
        only_in("server/src", driver, &[&room, "server/src/embedded/", "server/src/telemetry.rs"]);
    }
}

#[test]
fn four_a_row_exists_before_a_message_does() {
    // One place publishes work, and four hand to it: each after the row it speaks of is committed. The other one answers
    // questions.
    only_in("server/src", "basic_publish", &["server/src/broker/publisher.rs", "server/src/broker/reply.rs"]);
    for (file, row, message) in [
        ("server/src/background/dispatcher.rs", ".create_scheduled_runs(", "self.sender.send("),
        ("server/src/background/republisher.rs", ".unsent_occurrences(", "self.publisher.publish("),
        ("server/src/background/slot_granter.rs", ".grant_slots(", "self.sender.send("),
        ("server/src/command/manual_run.rs", ".insert_manual_run(", "self.send_created("),
    ] {
        let code = without_comments(&read(file));
        let place =
            |what: &str| code.find(what).unwrap_or_else(|| panic!("{file} no longer says {what}: mend this rule"));
        assert!(place(row) < place(message), "{file} sends before the row is committed");
    }
    only_in(
        "server/src",
        "OutgoingMessage {",
        &[
            "server/src/broker/",
            "server/src/background/dispatcher.rs",
            "server/src/background/slot_granter.rs",
            "server/src/background/republisher.rs",
            "server/src/command/manual_run.rs",
        ],
    );
}

#[test]
fn five_losing_redis_loses_speed_only() {
    // What a worker reports, what the domain decides and what a page shows never waits for Redis.
    for room in ["server/src/ingest", "server/src/domain", "server/src/store", "server/src/ui"] {
        knows_nothing_of(room, &["cache", "Cache", "redis"]);
    }
}

#[test]
fn six_a_status_is_written_by_guarded_statements_only() {
    // One for each who may speak: workers, people, the server itself when a worker has fallen
    // silent, and the dead letter queue.
    let guarded = [
        ("server/src/store/apply.sql", "o.status IN (0, 1, 6)"),
        ("server/src/store/cancel.rs", "o.status IN (0, 6)"),
        ("server/src/store/lost_runs.rs", "o.status = r.was"),
        ("server/src/store/dead_letters.rs", "l.was IN (0, 6)"),
    ];
    for file in sources("server/src") {
        for (at, _) in file.code.match_indices("UPDATE occurrences") {
            let statement = &file.code[at..];
            let columns = &statement[..statement.find("WHERE").unwrap_or(statement.len())];
            let columns = columns.split_whitespace().collect::<Vec<_>>().join(" ");
            let writes = columns.contains("SET status =") || columns.contains(", status =");
            let may = guarded.iter().any(|(path, _)| file.path == *path);
            assert!(!writes || may, "{} writes a status of its own", file.path);
        }
    }
    for (path, guard) in guarded {
        let code = without_comments(&read(path));
        assert_eq!(code.matches("SET status =").count(), 1, "{path}: one statement, so that there is one guard");
        assert!(code.contains(guard), "{path}: the guard names the states it allows");
    }
    // Occurrences are born in three ways: by the schedule, by a person, and as the retry of a failed one.
    let births = ["server/src/store/fire.sql", "server/src/store/manual_runs.rs", "server/src/store/failures.rs"];
    only_in("server/src", "INSERT INTO occurrences", &births);
}

#[test]
fn seven_a_loop_separates_waiting_from_working() {
    let drivers =
        ["server/src/background/driver.rs", "server/src/background/dispatcher.rs", "server/src/background/lease.rs"];
    for wait in ["sleep", "interval", "notified", "select!"] {
        only_in("server/src/background", wait, &drivers);
    }
    for file in sources("server/src/background") {
        for (at, _) in file.code.match_indices("async fn tick(") {
            let inputs = &file.code[at..][..file.code[at..].find(')').expect("it closes")];
            assert!(inputs.ends_with("self"), "{}: a tick takes no input", file.path);
        }
    }
}

#[test]
fn a_released_program_has_no_crash_points() {
    for manifest in ["server/Cargo.toml", "worker/Cargo.toml"] {
        let text = read(manifest);
        let features = text.split("\n[").find_map(|table| table.strip_prefix("features]")).expect("it has features");
        let naming: Vec<&str> = features
            .lines()
            .filter(|line| !line.starts_with('#') && (has(line, "faults") || has(line, "fail")))
            .collect();
        assert_eq!(
            naming,
            [r#"faults = ["dep:fail", "fail/failpoints"]"#],
            "{manifest}: no other feature may bring in the crash points"
        );
        assert!(text.contains("\nfail = { workspace = true, optional = true }\n"), "{manifest}: `fail` is optional");
    }
    let commands = read("Makefile").replace("\\\n", " ") + &read("Dockerfile").replace("\\\n", " ");
    let releases: Vec<&str> =
        commands.lines().filter(|line| line.contains("cargo") && line.contains("--release")).collect();
    assert!(!releases.is_empty(), "no command builds a release: mend this rule");
    for command in releases {
        // A build of the whole workspace takes the features anybody in it asks for.
        for word in ["faults", "--all-features", "--workspace", "--all"] {
            let names =
                command.split_whitespace().any(|part| part.split(['/', ',', '=', '"']).any(|name| name == word));
            assert!(!names, "a release is built with {word}: {command}");
        }
    }
}

#[test]
fn every_fault_stands_in_its_table_and_in_one_place() {
    for room in ["server/src", "worker/src"] {
        let essay = format!("{room}/faults.rs");
        let text = read(&essay);
        let rows = text.lines().filter_map(|line| line.strip_prefix("//! | `")?.split_once("` |"));
        // How they are armed is a table too, but says `=`.
        let mut told: Vec<String> = rows.map(|(name, _)| name.to_owned()).filter(|name| !name.contains('=')).collect();
        let mut placed: Vec<String> = Vec::new();
        for file in sources(room).into_iter().filter(|file| file.path != essay) {
            for call in ["faults::point(\"", "faults::sabotaged(\""] {
                let names =
                    file.code.match_indices(call).filter_map(|(at, _)| file.code[at + call.len()..].split_once('"'));
                placed.extend(names.map(|(name, _)| name.to_owned()));
            }
        }
        assert!(!told.is_empty(), "{essay} has no table any more");
        told.sort();
        placed.sort();
        assert_eq!(told, placed, "{essay}: what the tables name, and what the code holds once each");
    }
}

#[test]
fn the_reader_of_files_sees_what_it_should() {
    let code = without_comments("//! sqlx\nlet a = \"amqp://x\"; // redis\n    /// lapin\nuse crate::cache;");
    assert!(has(&code, "amqp://x") && has(&code, "crate::cache"));
    assert!(!has(&code, "sqlx") && !has(&code, "redis") && !has(&code, "lapin"));
    assert!(!has("brand", "rand") && !has("rand_core", "rand") && has("rand::random", "rand"));
    assert!(dependencies("server/Cargo.toml").contains(&"sqlx".to_owned()));
    assert!(!dependencies("server/Cargo.toml").contains(&"schemars".to_owned()), "tests' dependencies do not count");
}
