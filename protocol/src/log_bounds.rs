//! How much of a run's log is kept.
//!
//! The start of a log says how a run was called, and its end says how it ended. So a log that exceeds its bounds loses lines
//! between the two. Worker and server apply the same rule: the worker to send less, and the server because a worker in
//! another language may send all lines.

/// The bounds of the log of one attempt. Of a longer log, the first fifth of them and the last four fifths are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptLogBounds {
    /// The maximum number of lines.
    pub lines: i64,
    /// The maximum size of their texts and fields, in bytes.
    pub bytes: i64,
}

impl Default for AttemptLogBounds {
    fn default() -> Self {
        Self::new(Self::DEFAULT_LINES, Self::DEFAULT_MEBIBYTES)
    }
}

impl AttemptLogBounds {
    /// The maximum number of lines, if it is not set.
    pub const DEFAULT_LINES: u32 = 10_000;
    /// The maximum size, in MiB, if it is not set.
    pub const DEFAULT_MEBIBYTES: u32 = 4;

    /// Creates bounds.
    #[must_use]
    pub const fn new(lines: u32, mebibytes: u32) -> Self {
        Self { lines: lines as i64, bytes: mebibytes as i64 * 1024 * 1024 }
    }

    /// Returns the bounds of the first lines.
    #[must_use]
    pub const fn head(self) -> Self {
        Self { lines: self.lines / 5, bytes: self.bytes / 5 }
    }

    /// Returns the bounds of the last lines.
    #[must_use]
    pub const fn tail(self) -> Self {
        let head = self.head();
        Self { lines: self.lines - head.lines, bytes: self.bytes - head.bytes }
    }
}
