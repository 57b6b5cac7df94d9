//! The output of a program: its lines go to the log, and its end to the result.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use milvaion_worker::LogLevel;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::headline::headline;
use crate::context::BuiltinContext;

/// Maximum size of a line. The rest is dropped, so that a program without line breaks cannot fill the memory.
const MAX_LINE_BYTES: usize = 8_000;
/// Maximum size of the output in the result.
const MAX_TAIL_BYTES: usize = 16 * 1024;

/// Collects the output of one run.
pub(super) struct OutputCapture<'a> {
    context: &'a BuiltinContext,
    /// Bytes of a line that are kept until it is redacted, so that no secret is cut in two.
    window: usize,
    state: Mutex<CaptureState>,
}

#[derive(Default)]
struct CaptureState {
    lines: u64,
    tail: OutputTail,
    /// The last lines of standard error alone.
    error_tail: OutputTail,
}

/// The last lines of an output, at most [`MAX_TAIL_BYTES`] bytes.
#[derive(Default)]
struct OutputTail {
    lines: VecDeque<String>,
    bytes: usize,
}

impl OutputTail {
    fn push(&mut self, line: String) {
        self.bytes += line.len() + 1;
        self.lines.push_back(line);
        while self.bytes > MAX_TAIL_BYTES {
            let Some(oldest) = self.lines.pop_front() else { break };
            self.bytes -= oldest.len() + 1;
        }
    }

    fn headline(&self) -> Option<&str> {
        headline(self.lines.iter().map(String::as_str))
    }
}

impl<'a> OutputCapture<'a> {
    pub(super) fn new(context: &'a BuiltinContext) -> Self {
        Self { context, window: MAX_LINE_BYTES + context.redactor().longest_pattern(), state: Mutex::default() }
    }

    /// Logs each line of `stream` as it is written. The level of standard error is [`LogLevel::Warn`].
    pub(super) async fn capture(&self, stream: Option<impl AsyncRead + Unpin>, level: LogLevel) {
        let Some(mut stream) = stream else { return };
        let mut line = Vec::new();
        let mut dropped = 0;
        let mut buffer = vec![0; 16 * 1024];
        // An error on a pipe means the same as its end.
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            for piece in buffer[..read].split_inclusive(|byte| *byte == b'\n') {
                let (text, is_end) = match piece.strip_suffix(b"\n") {
                    Some(text) => (text, true),
                    None => (piece, false),
                };
                let space = self.window - line.len();
                line.extend_from_slice(&text[..text.len().min(space)]);
                dropped += text.len().saturating_sub(space);
                if is_end {
                    self.add_line(&line, dropped, level);
                    line.clear();
                    dropped = 0;
                }
            }
        }
        if !line.is_empty() {
            self.add_line(&line, dropped, level);
        }
    }

    fn add_line(&self, line: &[u8], dropped: usize, level: LogLevel) {
        let text = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
        let mut redacted = self.context.redactor().redact_start(&text, MAX_LINE_BYTES).into_owned();
        let beyond = (text.len() + dropped).saturating_sub(MAX_LINE_BYTES);
        if beyond > 0 {
            redacted.push_str(&format!(" [{beyond} more bytes]"));
        }
        let mut state = self.lock();
        state.lines += 1;
        // The SDK bounds the log of an attempt.
        self.context.log(level, &redacted);
        if level == LogLevel::Warn {
            state.error_tail.push(redacted.clone());
        }
        state.tail.push(redacted);
    }

    /// Returns the number of lines.
    pub(super) fn lines(&self) -> u64 {
        self.lock().lines
    }

    /// Returns the last lines, redacted: at most 16 KiB, and at most `max_lines` lines.
    pub(super) fn tail(&self, max_lines: usize) -> String {
        let state = self.lock();
        let skipped = state.tail.lines.len().saturating_sub(max_lines);
        state.tail.lines.iter().skip(skipped).map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Returns the [`headline`] of standard error, or of standard output if standard error is empty.
    pub(super) fn headline(&self) -> Option<String> {
        let state = self.lock();
        state.error_tail.headline().or_else(|| state.tail.headline()).map(str::to_owned)
    }

    fn lock(&self) -> MutexGuard<'_, CaptureState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
