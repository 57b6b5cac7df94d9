//! A minimal parser of AMQP 0-9-1. It finds publisher confirms and deliveries in the bytes of a broker, and published
//! messages in the bytes of a process.
//!
//! A frame is one byte of type, two of channel, four of length, the payload, and an end mark. In a method frame the
//! first four bytes of the payload are class and method. A broker's `basic.ack` is always a publisher confirm, because
//! only clients acknowledge deliveries. A process begins with a protocol header of eight bytes, which is no frame.

use std::sync::{
    PoisonError,
    atomic::{AtomicU32, Ordering},
};

use super::{LinkDirection, LinkState};

const FRAME_HEADER_LEN: usize = 7;
const METHOD_FRAME: u8 = 1;
const PROTOCOL_HEADER_LEN: usize = 8;
const BASIC_PUBLISH: [u8; 4] = [0, 60, 0, 40];
const BASIC_DELIVER: [u8; 4] = [0, 60, 0, 60];
const BASIC_ACK: [u8; 4] = [0, 60, 0, 80];

/// A filter of one direction of a connection.
pub(super) struct FrameFilter {
    direction: LinkDirection,
    /// The bytes of the protocol header that have not arrived yet.
    header_left: usize,
    /// The received part of an incomplete frame.
    partial: Vec<u8>,
}

/// The bytes that may pass.
pub(super) struct FilteredBytes {
    pub(super) bytes: Vec<u8>,
    /// True if the connection ends after them.
    pub(super) is_last: bool,
}

impl FrameFilter {
    pub(super) fn new(direction: LinkDirection) -> Self {
        let header_left = if direction == LinkDirection::Up { PROTOCOL_HEADER_LEN } else { 0 };
        Self { direction, header_left, partial: Vec::new() }
    }

    /// Takes the next bytes of the connection. Returns all complete frames except the ones to be dropped.
    pub(super) fn pass(&mut self, bytes: &[u8], state: &LinkState) -> FilteredBytes {
        let (header, bytes) = bytes.split_at(self.header_left.min(bytes.len()));
        self.header_left -= header.len();
        self.partial.extend_from_slice(bytes);
        let mut passed = FilteredBytes { bytes: header.to_vec(), is_last: false };
        let mut read = 0;
        while let Some(frame) = first_frame(&self.partial[read..]) {
            read += frame.len();
            match (self.direction, method(frame)) {
                (LinkDirection::Up, Some(BASIC_PUBLISH)) if take_one(&state.to_swallow) => {
                    state.swallowed.fetch_add(1, Ordering::SeqCst);
                    passed.is_last = true;
                    break;
                }
                (LinkDirection::Down, Some(BASIC_ACK)) if take_one(&state.to_drop) => {
                    state.dropped.fetch_add(1, Ordering::SeqCst);
                    if state.to_drop.load(Ordering::SeqCst) == 0 {
                        passed.is_last = true;
                        break;
                    }
                    continue;
                }
                (LinkDirection::Down, Some(BASIC_DELIVER)) => count_delivery(frame, state),
                _ => {}
            }
            passed.bytes.extend_from_slice(frame);
        }
        self.partial.drain(..read);
        passed
    }
}

/// Returns the first frame, if it is complete.
fn first_frame(bytes: &[u8]) -> Option<&[u8]> {
    let length = bytes.get(3..FRAME_HEADER_LEN)?;
    let length = u32::from_be_bytes(length.try_into().ok()?) as usize;
    bytes.get(..FRAME_HEADER_LEN + length + 1)
}

/// Returns class and method of a method frame.
fn method(frame: &[u8]) -> Option<[u8; 4]> {
    (frame[0] == METHOD_FRAME).then(|| frame.get(FRAME_HEADER_LEN..FRAME_HEADER_LEN + 4)?.try_into().ok()).flatten()
}

/// Decrements a count, and returns true unless it was zero.
fn take_one(count: &AtomicU32) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

/// Counts a delivery by the occurrence at the end of its routing key. Before the key are the consumer tag, the delivery
/// tag, the redelivered flag, and the exchange.
fn count_delivery(frame: &[u8], state: &LinkState) {
    let short_string = |bytes: &[u8]| Some(1 + usize::from(*bytes.first()?));
    let occurrence = (|| {
        let mut rest = frame.get(FRAME_HEADER_LEN + 4..)?;
        rest = rest.get(short_string(rest)? + 9..)?;
        rest = rest.get(short_string(rest)?..)?;
        let key = std::str::from_utf8(rest.get(1..short_string(rest)?)?).ok()?;
        key.rsplit_once('.').map(|(_, occurrence)| occurrence.to_owned())
    })();
    if let Some(occurrence) = occurrence {
        *state.delivered.lock().unwrap_or_else(PoisonError::into_inner).entry(occurrence).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn state(to_drop: u32) -> LinkState {
        LinkState { amqp: true, to_drop: AtomicU32::new(to_drop), ..LinkState::default() }
    }

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        [&[kind, 0, 1], &length[..], payload, &[0xce]].concat()
    }

    fn ack(number: u8) -> Vec<u8> {
        frame(METHOD_FRAME, &[0, 60, 0, 80, 0, 0, 0, 0, 0, 0, 0, number, 0])
    }

    fn deliver(key: &str) -> Vec<u8> {
        let mut payload = vec![0, 60, 0, 60, 3];
        payload.extend(b"tag");
        payload.extend([0; 9]);
        payload.push(4);
        payload.extend(b"jobs");
        payload.push(u8::try_from(key.len()).expect("short"));
        payload.extend(key.as_bytes());
        frame(METHOD_FRAME, &payload)
    }

    #[test]
    fn split_frames_pass_whole_and_in_order() {
        let sent = [frame(8, &[]), ack(1), frame(3, b"a body"), ack(2)].concat();
        let (mut frames, state) = (FrameFilter::new(LinkDirection::Down), state(0));
        let got: Vec<u8> = sent.chunks(3).flat_map(|piece| frames.pass(piece, &state).bytes).collect();
        assert_eq!(got, sent);
    }

    #[test]
    fn last_dropped_confirm_ends_the_connection() {
        let (mut frames, state) = (FrameFilter::new(LinkDirection::Down), state(2));
        let one = frames.pass(&[frame(8, &[]), ack(1)].concat(), &state);
        assert_eq!((one.bytes, one.is_last), (frame(8, &[]), false));
        let two = frames.pass(&[ack(2), ack(3)].concat(), &state);
        assert_eq!((two.bytes, two.is_last), (Vec::new(), true));
        assert_eq!(state.dropped.into_inner(), 2);
    }

    #[test]
    fn dropped_message_ends_the_connection() {
        let (mut frames, state) = (FrameFilter::new(LinkDirection::Up), state(0));
        state.to_swallow.store(1, Ordering::SeqCst);
        let publish = frame(METHOD_FRAME, &[0, 60, 0, 40, 0, 0, 4]);
        let sent = [b"AMQP\x00\x00\x09\x01".to_vec(), ack(1), publish.clone(), frame(3, b"a body")].concat();
        let (mut got, mut is_over) = (Vec::new(), false);
        for piece in sent.chunks(5) {
            let passed = frames.pass(piece, &state);
            got.extend(passed.bytes);
            if passed.is_last {
                is_over = true;
                break;
            }
        }
        assert!(is_over);
        assert_eq!(got, sent[..sent.len() - publish.len() - frame(3, b"a body").len()]);
        assert_eq!(state.swallowed.load(Ordering::SeqCst), 1);
        let next = FrameFilter::new(LinkDirection::Up).pass(&sent, &state);
        assert_eq!((next.bytes, next.is_last), (sent, false), "the next message passes");
    }

    #[test]
    fn deliveries_are_counted_by_occurrence() {
        let (mut frames, state) = (FrameFilter::new(LinkDirection::Down), state(0));
        frames.pass(&[deliver("w.quick.01"), deliver("w.quick.02"), deliver("w.quick.01")].concat(), &state);
        let counted = state.delivered.into_inner().expect("the mutex is not poisoned");
        assert_eq!(counted, HashMap::from([("01".to_owned(), 2), ("02".to_owned(), 1)]));
    }
}
