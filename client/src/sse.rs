//! The frames of an event stream, `text/event-stream`.
//!
//! A network delivers bytes in any pieces: a frame, a line or a character may arrive in two. The parser keeps what is
//! incomplete. A frame that is cut off by the end of the stream is dropped, as the specification requires, because the
//! server repeats it to the next request.

/// The maximum size of an incomplete frame, in bytes. The largest frame is an occurrence with its notes.
const MAX_FRAME_BYTES: usize = 8 * 1024 * 1024;

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The name.
    pub(crate) event: String,
    /// The data.
    pub(crate) data: String,
}

/// The parser of one stream.
#[derive(Debug, Default)]
pub(crate) struct FrameParser {
    line: Vec<u8>,
    frame: Frame,
}

impl FrameParser {
    /// Adds bytes and returns the frames that are now complete.
    ///
    /// # Errors
    ///
    /// Returns the reason if this is no event stream: a frame is too large.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<Frame>, String> {
        let mut frames = Vec::new();
        for byte in bytes {
            if *byte != b'\n' {
                self.line.push(*byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let line = String::from_utf8_lossy(&line);
            let line = line.strip_suffix('\r').unwrap_or(&line);
            if !line.is_empty() {
                self.field(line);
            } else if !self.frame.event.is_empty() || !self.frame.data.is_empty() {
                frames.push(std::mem::take(&mut self.frame));
            }
        }
        if self.line.len() + self.frame.data.len() > MAX_FRAME_BYTES {
            return Err(format!("an event has more than {} MiB", MAX_FRAME_BYTES / 1024 / 1024));
        }
        Ok(frames)
    }

    fn field(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "event" => value.clone_into(&mut self.frame.event),
            "data" => {
                if !self.frame.data.is_empty() {
                    self.frame.data.push('\n');
                }
                self.frame.data.push_str(value);
            }
            // Comments are pings. The id of a line is in its data too.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(event: &str, data: &str) -> Frame {
        Frame { event: event.into(), data: data.into() }
    }

    #[test]
    fn pieces_of_any_size_give_the_same_frames() {
        let stream =
            ": ping\n\nevent: line\nid: 7\ndata: {\"ä\":1}\n\nevent:end\r\ndata:\r\n\r\ndata: a\ndata: b\n\nevent: cut";
        let expected = [frame("line", "{\"ä\":1}"), frame("end", ""), frame("", "a\nb")];
        for size in 1..stream.len() {
            let mut parser = FrameParser::default();
            let frames: Vec<_> =
                stream.as_bytes().chunks(size).flat_map(|piece| parser.push(piece).expect("small frames")).collect();
            assert_eq!(frames, expected, "{size}");
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut parser = FrameParser::default();
        assert!(parser.push(&vec![b'x'; MAX_FRAME_BYTES]).is_ok());
        assert!(parser.push(b"x").is_err());
    }
}
