//! The log files of child processes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The size above which a log is renamed at the next start, so that logs do not fill the disk over the years.
const MAX_LOG_BYTES: u64 = 16 << 20;

/// The number of bytes at the end of a log that are read for an error message.
const LOG_TAIL_BYTES: u64 = 8 << 10;

/// The most characters of an excerpt.
const MAX_EXCERPT_CHARS: usize = 400;

/// Opens a log for appending and returns its length. Creates its folder. Only our user and group can read the file. A
/// log above [`MAX_LOG_BYTES`] is renamed to `….1` first.
pub(super) fn open(path: &Path) -> io::Result<(File, u64)> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    if fs::metadata(path).is_ok_and(|meta| meta.len() > MAX_LOG_BYTES) {
        let mut renamed = path.as_os_str().to_owned();
        renamed.push(".1");
        fs::rename(path, renamed)?;
    }
    let file = OpenOptions::new().create(true).append(true).mode(0o640).open(path)?;
    let length = file.metadata()?.len();
    Ok((file, length))
}

/// Reads the end of a log, but nothing before the position `from`.
pub(super) fn read_tail(path: &Path, from: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    let end = file.metadata()?.len();
    file.seek(SeekFrom::Start(from.max(end.saturating_sub(LOG_TAIL_BYTES))))?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the last three lines that contain a letter or a digit, joined into one short line.
pub(super) fn excerpt(tail: &str) -> String {
    let lines: Vec<&str> = tail.lines().map(str::trim).filter(|line| line.chars().any(char::is_alphanumeric)).collect();
    let joined = lines[lines.len().saturating_sub(3)..].join(" / ");
    let plain: String = joined.chars().filter(|c| !c.is_control()).collect();
    match plain.char_indices().nth(MAX_EXCERPT_CHARS) {
        Some((cut, _)) => format!("{}…", &plain[..cut]),
        None => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_one_short_line() {
        assert_eq!(excerpt("a\n\nb\n ---- \nc\nd\n"), "b / c / d");
        assert_eq!(excerpt(""), "");
        assert_eq!(excerpt(&"x".repeat(1000)).chars().count(), MAX_EXCERPT_CHARS + 1);
    }
}
