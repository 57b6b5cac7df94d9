//! Fingerprints that group failures with the same cause.
//!
//! Two exceptions with one cause differ in their details: an order number, a host, a time. These details are replaced
//! by placeholders and the rest is hashed. Exit codes, signals and the names of exception types stay, because they are the
//! cause. The hash is only used for grouping and never shown. It may change between versions; the only harm is that a group
//! then appears twice.

use milvaion_protocol::message::LAST_OUTPUT_HEADING;
use sha2::{Digest, Sha256};

/// Number of lines that identify an exception, and of those that identify its stack trace: the error and the innermost
/// frames, without the outer call stack.
const FINGERPRINT_LINES: usize = 5;
/// Number of characters of each line that are hashed.
const MAX_LINE_CHARS: usize = 400;
/// Number of bytes of the hash that are kept.
const FINGERPRINT_BYTES: usize = 8;
/// The line before the frames of Python, whose innermost frame and error are the last lines.
const PYTHON_TRACE: &str = "Traceback (most recent call last):";
/// The texts before the exit code of a program or the signal that ended it.
const EXIT_WORDS: [&str; 8] = [
    "exit",
    "exit code",
    "exit status",
    "exit_code",
    "exited with",
    "exited with code",
    "exited with status",
    "signal",
];

/// Returns the fingerprint of an exception: 16 hexadecimal characters, equal for failures with the same cause.
#[must_use]
pub fn fingerprint(exception: &str) -> String {
    let hash = Sha256::digest(normal(exception).as_bytes());
    hash.iter().take(FINGERPRINT_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the exception without the details that differ between failures with the same cause.
fn normal(exception: &str) -> String {
    let lines: Vec<&str> = exception.lines().filter(|line| !line.trim().is_empty()).collect();
    let is_head = |line: &&&str| !matches!(line.trim(), LAST_OUTPUT_HEADING | PYTHON_TRACE);
    let head = lines.iter().take_while(is_head).take(FINGERPRINT_LINES);
    let mut normal = String::new();
    for line in head.chain(cause_in_trace(&lines)) {
        let line: String = line.trim().chars().take(MAX_LINE_CHARS).collect();
        normal_line(&line, &mut normal);
        normal.push('\n');
    }
    normal
}

/// Returns the error and the innermost frames of a stack trace that has them after its first lines. A stack trace that begins
/// with them, as those of JavaScript do, needs no search: the head of the exception contains them.
fn cause_in_trace<'a, 'b>(lines: &'a [&'b str]) -> &'a [&'b str] {
    if let Some(trace) = lines.iter().rposition(|line| line.trim() == PYTHON_TRACE) {
        let frames = lines[trace + 1..].iter().take_while(|line| line.starts_with(char::is_whitespace)).count();
        let end = (trace + 1 + frames + 1).min(lines.len());
        return &lines[end.saturating_sub(FINGERPRINT_LINES).max(trace)..end];
    }
    // The last cause of Java and of the errors of Rust, a panic of Rust, and the first goroutine of Go.
    let is_panic = |line: &str| line.starts_with("thread '") && line.contains(" panicked at ");
    let is_cause = |line: &&str| line.starts_with("Caused by:") || is_panic(line);
    let is_goroutine = |line: &&str| line.starts_with("goroutine ") && line.ends_with("]:");
    match lines.iter().rposition(is_cause).or_else(|| lines.iter().position(is_goroutine)) {
        Some(begin) => &lines[begin..(begin + FINGERPRINT_LINES).min(lines.len())],
        None => &[],
    }
}

/// Replaces quoted values by `''`, words with a digit and hexadecimal words by `#`, and white space by one space. Keeps exit
/// codes and the names of exception types.
fn normal_line(line: &str, out: &mut String) {
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        if first.is_whitespace() {
            rest = rest.trim_start();
            out.push(' ');
        } else if let Some(length) = quoted(rest, out.chars().next_back()) {
            let quotation = rest[..length].trim_matches(is_quotation_mark);
            let kept = if is_exception_type(quotation) { quotation } else { "" };
            out.push_str(&format!("'{}'", kept.to_lowercase()));
            rest = &rest[length..];
        } else if first.is_alphanumeric() {
            let length = word(rest);
            let (word, after) = rest.split_at(length);
            if is_value(word) && !is_exit_code(word, out) {
                // `1.2.3`, `10:20:30Z` and a UUID are one value, not several.
                if !out.ends_with('#') {
                    out.push('#');
                }
                rest = joined(after);
            } else {
                out.push_str(&word.to_lowercase());
                rest = after;
            }
        } else {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
}

/// Returns the length in bytes of the quotation at the start of `text`, including its quotation marks. An apostrophe
/// inside a word does not start a quotation.
fn quoted(text: &str, before: Option<char>) -> Option<usize> {
    let mark = text.chars().next()?;
    let end = match mark {
        '"' | '`' => mark,
        '\'' if !before.is_some_and(char::is_alphanumeric) => mark,
        '“' => '”',
        '‘' => '’',
        '«' => '»',
        _ => return None,
    };
    let inside = &text[mark.len_utf8()..];
    Some(mark.len_utf8() + inside.find(end)? + end.len_utf8())
}

fn is_quotation_mark(c: char) -> bool {
    matches!(c, '"' | '`' | '\'' | '“' | '”' | '‘' | '’' | '«' | '»')
}

/// Returns the length in bytes of the word at the start of `text`.
fn word(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())
}

/// Returns true if a word is a value: it contains a digit and does not name an exception type, or it is long and hexadecimal.
fn is_value(word: &str) -> bool {
    (word.contains(|c: char| c.is_numeric()) && !is_exception_type(word))
        || (word.len() >= 8 && word.len().is_multiple_of(4) && word.chars().all(|c| c.is_ascii_hexdigit()))
}

/// Returns true if a number is the exit code of a program or a signal, by the text before it.
fn is_exit_code(word: &str, before: &str) -> bool {
    let before = before.trim_end_matches([' ', ':', '=', '-']);
    word.bytes().all(|b| b.is_ascii_digit()) && EXIT_WORDS.iter().any(|words| before.ends_with(words))
}

/// Returns true if a text is the name of an exception type, as `KeyError`, `java.io.IOException` and `std::runtime_error`
/// are.
fn is_exception_type(name: &str) -> bool {
    name.starts_with(char::is_alphabetic)
        && ["Error", "Exception", "_error"].iter().any(|end| name.ends_with(end))
        && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | ':' | '$' | '\\'))
}

/// Returns the text after a value and after all values that are joined to it by punctuation.
fn joined(after: &str) -> &str {
    let Some(mark) = after.chars().next() else { return after };
    if !matches!(mark, '.' | '-' | ':' | '+' | ',') {
        return after;
    }
    let next = &after[mark.len_utf8()..];
    let length = word(next);
    // The groups of a UUID may contain no digit.
    let is_group = length == 4 && mark == '-' && next[..length].chars().all(|c| c.is_ascii_hexdigit());
    if length > 0 && (is_value(&next[..length]) || is_group) { joined(&next[length..]) } else { after }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_cause_has_same_fingerprint() {
        let table = [
            ("order 17 not found", "order 4711 not found"),
            ("connect to 10.0.0.1:5432 failed", "connect to 10.0.0.27:6543 failed"),
            ("lock 0190a0a0-0000-7000-8000-000000000000 is held", "lock 0190a0a0-dead-beef-8abc-cafe00000fff is held"),
            ("at 2026-11-21T10:20:30.123Z: refused", "at 2025-01-02T03:04:05Z: refused"),
            ("no such file: '/tmp/a b.txt'", "no such file: '/var/c.txt'"),
            ("unexpected \"x\" in input", "unexpected \"some y\" in input"),
            ("/data/run42/part-0007.csv is empty", "/data/run7/part-1234.csv is empty"),
            ("object 0x7ffdeadbeef moved", "object 0x10 moved"),
            ("digest deadbeefcafebabe differs", "digest abad1deaabad1dea differs"),
            ("boom   at line 3\n\n  in f", "boom at line 99\nin f"),
            ("took 1.5s", "took 12s"),
            ("Timeout", "timeout"),
            ("same\na\nb\nc\nd\ncalled from here", "same\na\nb\nc\nd\ncalled from there"),
            (
                "the program ended with exit code 1: no id\nits last output:\ncopied a.txt\nno id",
                "the program ended with exit code 1: no id\nits last output:\ncopied b.txt\nskipped c.txt\nno id",
            ),
            (
                "Traceback (most recent call last):\n  File \"a.py\", line 9, in <module>\n    start()\n  File \"a.py\", line 5, in f\n    g(17)\n  File \"a.py\", line 2, in g\n    h[key]\nKeyError: 'x'",
                "Traceback (most recent call last):\n  File \"b.py\", line 4, in main\n    again()\n  File \"a.py\", line 6, in f\n    g(18)\n  File \"a.py\", line 3, in g\n    h[key]\nKeyError: 'y'",
            ),
        ];
        for (one, other) in table {
            assert_eq!(normal(one), normal(other));
            assert_eq!(fingerprint(one), fingerprint(other));
        }
    }

    #[test]
    fn different_causes_have_different_fingerprints() {
        let table = [
            ("order 17 not found", "customer 17 not found"),
            ("can't connect", "can't resolve"),
            ("can't open 'a' or 'b'", "can't close 'a' or 'b'"),
            ("boom\nin f", "boom\nin g"),
            ("added", "faded"),
            ("", "x"),
            ("the program ended with exit code 137", "the program ended with exit code 1"),
            ("exit status: 1", "exit status: 2"),
            ("ended by signal 9 (SIGKILL)", "ended by signal 15 (SIGTERM)"),
            ("S3Error: refused", "S4Error: refused"),
            ("an instance of 'std::runtime_error'", "an instance of 'std::logic_error'"),
        ];
        for (one, other) in table {
            assert_ne!(fingerprint(one), fingerprint(other), "{one} / {other}");
        }
    }

    /// Each pair has the same outer frames, and the same first lines.
    #[test]
    fn stack_traces_are_told_apart_by_their_innermost_frames() {
        const PYTHON: &str = "Traceback (most recent call last):\n  File \"a.py\", line 9, in <module>\n    main()\n  File \"a.py\", line 7, in main\n    load()\n";
        const JAVA: &str = "java.lang.IllegalStateException: import failed\n\tat Import.run(Import.java:9)\n\tat Import.call(Import.java:8)\n\tat Import.start(Import.java:5)\n\tat Import.main(Import.java:4)\n";
        const SHELL: &str = "the program ended with exit code 2: failed\nits last output:\n";
        let go = |function: &str| {
            format!(
                "panic: no id\n\ngoroutine 1 [running]:\nmain.{function}(...)\n\t/src/main.go:5\nmain.main()\n\t/src/main.go:10 +0x2c\nexit status 2"
            )
        };
        let table = [
            (format!("{PYTHON}KeyError: 'id'"), format!("{PYTHON}OSError: [Errno 2] No such file")),
            (
                format!("{PYTHON}  File \"b.py\", line 2, in load\n    read()\nOSError: gone\n"),
                format!("{PYTHON}  File \"b.py\", line 3, in load\n    write()\nOSError: gone\n"),
            ),
            (
                format!("{JAVA}Caused by: java.io.IOException: gone\n\tat Disk.read(Disk.java:1)\n\t... 1 more"),
                format!("{JAVA}Caused by: java.sql.SQLException: gone\n\tat Base.read(Base.java:1)\n\t... 1 more"),
            ),
            (
                format!("{SHELL}thread 'main' panicked at src/load.rs:2:5:\nno id\nnote: run with `RUST_BACKTRACE=1`"),
                format!("{SHELL}thread 'main' panicked at src/save.rs:2:5:\nno id\nnote: run with `RUST_BACKTRACE=1`"),
            ),
            (format!("{SHELL}{}", go("load")), format!("{SHELL}{}", go("save"))),
        ];
        for (one, other) in table {
            assert_ne!(fingerprint(&one), fingerprint(&other), "{one}\n/\n{other}");
        }
    }

    #[test]
    fn fingerprint_length_is_fixed() {
        for text in ["", "ü", "“", "'", "`a", &"x1 ".repeat(100_000), &"«".repeat(1_000), "١٢٣ 😀", PYTHON_TRACE]
        {
            let mark = fingerprint(text);
            assert_eq!(mark.len(), 16);
            assert!(mark.chars().all(|c| c.is_ascii_hexdigit()));
        }
    }
}
