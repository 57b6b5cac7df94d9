//! What a program writes: line by line into the log, and its end into the result.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use milvaion_worker::LogLevel;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::context::BuiltinContext;

/// The most bytes of a line; what is more is left out, so that a program without line breaks cannot fill the memory.
const MAX_LINE_BYTES: usize = 8_000;
/// The most bytes of a run that are logged.
const MAX_LOGGED_BYTES: usize = 4 * 1024 * 1024;
/// The most bytes of the result.
const MAX_TAIL_BYTES: usize = 16 * 1024;

/// Takes the lines of one run.
pub(super) struct OutputCapture<'a> {
    context: &'a BuiltinContext,
    /// How many bytes of a line have to be seen so that no secret is cut in two.
    window: usize,
    state: Mutex<CaptureState>,
}

#[derive(Default)]
struct CaptureState {
    lines: u64,
    logged: usize,
    tail: VecDeque<String>,
    tail_bytes: usize,
}

impl<'a> OutputCapture<'a> {
    pub(super) fn new(context: &'a BuiltinContext) -> Self {
        Self { context, window: MAX_LINE_BYTES + context.redactor().longest_pattern(), state: Mutex::default() }
    }

    /// Logs each line of `stream` as it is written.
    pub(super) async fn capture(&self, stream: Option<impl AsyncRead + Unpin>, level: LogLevel) {
        let Some(mut stream) = stream else { return };
        let mut line = Vec::new();
        let mut left_out = 0;
        let mut buffer = vec![0; 16 * 1024];
        // An error on a pipe means the same as its end.
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            for piece in buffer[..read].split_inclusive(|byte| *byte == b'\n') {
                let (text, is_end) = match piece.strip_suffix(b"\n") {
                    Some(text) => (text, true),
                    None => (piece, false),
                };
                let room = self.window - line.len();
                line.extend_from_slice(&text[..text.len().min(room)]);
                left_out += text.len().saturating_sub(room);
                if is_end {
                    self.line(&line, left_out, level);
                    line.clear();
                    left_out = 0;
                }
            }
        }
        if !line.is_empty() {
            self.line(&line, left_out, level);
        }
    }

    fn line(&self, line: &[u8], left_out: usize, level: LogLevel) {
        let text = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
        let mut cleaned = self.context.redactor().redact_start(&text, MAX_LINE_BYTES).into_owned();
        let beyond = (text.len() + left_out).saturating_sub(MAX_LINE_BYTES);
        if beyond > 0 {
            cleaned.push_str(&format!(" [{beyond} more bytes]"));
        }
        let mut state = self.lock();
        state.lines += 1;
        let was_within = state.logged <= MAX_LOGGED_BYTES;
        state.logged += cleaned.len();
        if state.logged <= MAX_LOGGED_BYTES {
            self.context.log(level, &cleaned);
        } else if was_within {
            self.context.warn(format!(
                "the command has written more than {MAX_LOGGED_BYTES} bytes; what follows is not logged"
            ));
        }
        state.tail_bytes += cleaned.len() + 1;
        state.tail.push_back(cleaned);
        while state.tail_bytes > MAX_TAIL_BYTES {
            let Some(oldest) = state.tail.pop_front() else { break };
            state.tail_bytes -= oldest.len() + 1;
        }
    }

    /// How many lines there were.
    pub(super) fn lines(&self) -> u64 {
        self.lock().lines
    }

    /// The last lines, at most 16 KiB of them and no more than `most`, without secrets.
    pub(super) fn tail(&self, most: usize) -> String {
        let state = self.lock();
        let skipped = state.tail.len().saturating_sub(most);
        state.tail.iter().skip(skipped).map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    fn lock(&self) -> MutexGuard<'_, CaptureState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
