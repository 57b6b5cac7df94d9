//! The line of a program's output that names its failure.

/// Beginnings of lines that runtimes write after the error: the hint of Rust, the version of Node.js and the signal of Go.
const TRAILER_PREFIXES: [&str; 3] = ["note: ", "Node.js v", "[signal "];

/// Returns the last line that is not empty and not part of a stack trace, trimmed; if there is none, the last line that is
/// not empty.
pub(super) fn headline<'a>(lines: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (mut last, mut headline) = (None, None);
    let mut is_in_dump = false;
    for line in lines {
        // Of progress that overwrites its line, the last state counts. The text before it would hide the exit code on pages.
        let line = line.rsplit('\r').find(|state| !state.trim().is_empty()).unwrap_or_default();
        let text = line.trim();
        if text.is_empty() {
            is_in_dump = false;
            continue;
        }
        last = Some(text);
        // Go lists the frames of a goroutine up to an empty line.
        is_in_dump |= text.starts_with("goroutine ") && text.ends_with("]:");
        if !is_in_dump && is_message(line) {
            headline = Some(text);
        }
    }
    headline.or(last)
}

/// Returns false for a frame, which is indented in most languages and numbered in PHP, for a line that announces others with
/// a colon at its end, for one without letters or digits, and for one that a runtime adds to an error.
fn is_message(line: &str) -> bool {
    let is_numbered = line.strip_prefix('#').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    !line.starts_with(char::is_whitespace)
        && !is_numbered
        && !line.trim_end().ends_with(':')
        && line.contains(char::is_alphanumeric)
        && !TRAILER_PREFIXES.iter().any(|prefix| line.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overwritten_line_counts_in_its_last_state() {
        assert_eq!(headline("start\r\n10%\r20%\rdisk is full\r\n\r\n".split('\n')), Some("disk is full"));
    }

    #[test]
    fn headline_names_the_error_of_each_language() {
        let table = [
            (
                "Python",
                "Traceback (most recent call last):\n  File \"a.py\", line 5, in <module>\n    main()\n    ~~~~^^\n  File \"a.py\", line 2, in main\n    return {}[\"id\"]\n           ~~^^^^^^\nKeyError: 'id'\n",
                "KeyError: 'id'",
            ),
            (
                "Java",
                "Exception in thread \"main\" java.lang.IllegalStateException: import failed\n\tat Import.run(Import.java:9)\n\tat Import.main(Import.java:4)\nCaused by: java.io.FileNotFoundException: in.csv (No such file or directory)\n\tat java.base/java.io.FileInputStream.open0(Native Method)\n\t... 1 more\n",
                "Caused by: java.io.FileNotFoundException: in.csv (No such file or directory)",
            ),
            (
                "Rust",
                "\nthread 'main' (4711) panicked at src/main.rs:3:20:\nindex out of bounds: the len is 3 but the index is 9\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n",
                "index out of bounds: the len is 3 but the index is 9",
            ),
            (
                "Rust with a backtrace",
                "thread 'main' panicked at src/main.rs:2:5:\nno milk\nstack backtrace:\n   0: std::panicking::begin_panic\n   1: shop::main\n             at ./src/main.rs:2:5\nnote: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.\n",
                "no milk",
            ),
            (
                "anyhow",
                "Error: cannot read the orders\n\nCaused by:\n    No such file or directory (os error 2)\n",
                "Error: cannot read the orders",
            ),
            (
                "Go",
                "panic: assignment to entry in nil map\n\ngoroutine 1 [running]:\nmain.fill(...)\n\t/src/main.go:5\nmain.main()\n\t/src/main.go:10 +0x2c\nexit status 2\n",
                "panic: assignment to entry in nil map",
            ),
            (
                "Go with a signal",
                "panic: runtime error: invalid memory address or nil pointer dereference\n[signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x45]\n\ngoroutine 1 [running]:\nmain.main()\n\t/src/main.go:6 +0x4\n",
                "panic: runtime error: invalid memory address or nil pointer dereference",
            ),
            (
                "Node.js",
                "/srv/a.js:3\nthrow new TypeError('no id')\n^\n\nTypeError: no id\n    at main (/srv/a.js:3:7)\n    at node:internal/main/run_main_module:28:49 {\n  code: 'E_ID'\n}\n\nNode.js v22.4.0\n",
                "TypeError: no id",
            ),
            (
                "PHP",
                "PHP Fatal error:  Uncaught Exception: no id in /srv/a.php:3\nStack trace:\n#0 /srv/a.php(7): f()\n#1 {main}\n  thrown in /srv/a.php on line 3\n",
                "PHP Fatal error:  Uncaught Exception: no id in /srv/a.php:3",
            ),
            (
                "bash",
                "+ cd /srv\nbash: line 2: backup-all: command not found\n",
                "bash: line 2: backup-all: command not found",
            ),
            ("only frames", "\tat a.b(C.java:1)\n\tat a.c(C.java:2)\n\n", "at a.c(C.java:2)"),
            ("blank last lines", "disk is full\n \n\n", "disk is full"),
        ];
        for (name, output, expected) in table {
            assert_eq!(headline(output.lines()), Some(expected), "{name}");
        }
        assert_eq!(headline("\n  \n".lines()), None);
    }
}
