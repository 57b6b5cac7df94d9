//! The frames of AMQP 0-9-1, as far as the kit reads them.

/// The sender of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameOrigin {
    /// The worker.
    Client,
    /// The broker.
    Service,
}

/// The length of the header that opens a connection.
const PROTOCOL_HEADER: usize = 8;
/// The bytes of a frame before its payload: type, channel and size.
const FRAME_HEADER: usize = 7;
const METHOD_FRAME: u8 = 1;
const HEADER_FRAME: u8 = 2;
const BODY_FRAME: u8 = 3;
/// The last byte of each frame.
const FRAME_END: u8 = 0xCE;

/// Returns the frame with which a broker says that it reads no more of a connection, for a reason of up to 255 bytes.
pub(super) fn connection_blocked(reason: &str) -> Vec<u8> {
    let length = u8::try_from(reason.len()).unwrap_or(u8::MAX);
    let mut payload = vec![0, 10, 0, 60, length];
    payload.extend_from_slice(&reason.as_bytes()[..usize::from(length)]);
    connection_frame(&payload)
}

/// Returns the frame with which a broker says that it reads a connection again.
pub(super) fn connection_unblocked() -> Vec<u8> {
    connection_frame(&[0, 10, 0, 61])
}

fn connection_frame(payload: &[u8]) -> Vec<u8> {
    // Channel 0 is the connection.
    let mut bytes = vec![METHOD_FRAME, 0, 0];
    bytes.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes.push(FRAME_END);
    bytes
}

/// The bytes of one direction of a connection, from which whole frames are taken.
pub(super) struct FrameBuffer {
    bytes: Vec<u8>,
    /// True until the client has sent the header of the protocol.
    expects_header: bool,
}

/// A whole frame, or the header of the protocol.
pub(super) struct AmqpFrame(Vec<u8>);

/// A method that the kit reads.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AmqpMethod {
    /// The publisher confirms of a channel are on.
    ConfirmSelect,
    /// A message is published.
    Publish { exchange: String, is_mandatory: bool },
    /// A message is delivered.
    Deliver { tag: u64, exchange: String, routing_key: String },
    /// Deliveries are acknowledged.
    Ack { tag: u64, multiple: bool },
    /// Deliveries are returned or rejected.
    Nack { tag: u64, multiple: bool, requeue: bool },
    /// A channel ends.
    CloseChannel,
}

impl FrameBuffer {
    pub(super) const fn new(origin: FrameOrigin) -> Self {
        Self { bytes: Vec::new(), expects_header: matches!(origin, FrameOrigin::Client) }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next whole frame.
    pub(super) fn next(&mut self) -> Option<AmqpFrame> {
        let length = if self.expects_header {
            PROTOCOL_HEADER
        } else {
            let size = self.bytes.get(3..FRAME_HEADER)?;
            FRAME_HEADER + u32::from_be_bytes(size.try_into().ok()?) as usize + 1
        };
        if self.bytes.len() < length {
            return None;
        }
        self.expects_header = false;
        let rest = self.bytes.split_off(length);
        Some(AmqpFrame(std::mem::replace(&mut self.bytes, rest)))
    }
}

impl AmqpFrame {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn channel(&self) -> u16 {
        self.0.get(1..3).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Returns true if the frame is an acknowledgement. From the broker, that is a publisher confirm.
    pub(super) fn is_confirm(&self) -> bool {
        matches!(self.method(), Some(AmqpMethod::Ack { .. }))
    }

    /// Returns true if the frame begins a published message.
    pub(super) fn is_publish(&self) -> bool {
        matches!(self.method(), Some(AmqpMethod::Publish { .. }))
    }

    /// Returns true if the client opens the connection with this frame, and wants to be notified when it is blocked.
    pub(super) fn announces_blocked(&self) -> bool {
        let (name, bytes) = (b"connection.blockedt\x01", &self.0);
        bytes.get(FRAME_HEADER..FRAME_HEADER + 4) == Some(&[0, 10, 0, 11])
            && bytes.windows(name.len()).any(|window| window == name)
    }

    /// Returns true if the frame has the properties or a part of the body of a message.
    pub(super) fn is_content(&self) -> bool {
        matches!(self.0.first(), Some(&(HEADER_FRAME | BODY_FRAME)))
    }

    /// Reads the method of the frame. None for other frames and for methods that the kit does not read.
    pub(super) fn method(&self) -> Option<AmqpMethod> {
        if *self.0.first()? != METHOD_FRAME {
            return None;
        }
        let mut fields = FieldReader(self.0.get(FRAME_HEADER..)?);
        match (fields.short()?, fields.short()?) {
            (85, 10) => Some(AmqpMethod::ConfirmSelect),
            (20, 40 | 41) => Some(AmqpMethod::CloseChannel),
            (60, 40) => {
                fields.short()?;
                let (exchange, _) = (fields.text()?, fields.text()?);
                Some(AmqpMethod::Publish { exchange, is_mandatory: fields.octet()? & 1 == 1 })
            }
            (60, 60) => {
                fields.text()?;
                let (tag, _) = (fields.long_long()?, fields.octet()?);
                Some(AmqpMethod::Deliver { tag, exchange: fields.text()?, routing_key: fields.text()? })
            }
            (60, 80) => Some(AmqpMethod::Ack { tag: fields.long_long()?, multiple: fields.octet()? & 1 == 1 }),
            (60, 90) => {
                Some(AmqpMethod::Nack { tag: fields.long_long()?, multiple: false, requeue: fields.octet()? & 1 == 1 })
            }
            (60, 120) => {
                let (tag, bits) = (fields.long_long()?, fields.octet()?);
                Some(AmqpMethod::Nack { tag, multiple: bits & 1 == 1, requeue: bits & 2 == 2 })
            }
            _ => None,
        }
    }
}

/// Reads the fields of a method in their order.
struct FieldReader<'a>(&'a [u8]);

impl FieldReader<'_> {
    fn octet(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn short(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.octet()?, self.octet()?]))
    }

    fn long_long(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*bytes))
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::from(self.octet()?);
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(String::from_utf8_lossy(text).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![METHOD_FRAME, 0, 3];
        bytes.extend_from_slice(&u32::try_from(payload.len()).expect("it is short").to_be_bytes());
        bytes.extend_from_slice(payload);
        bytes.push(0xCE);
        bytes
    }

    #[test]
    fn frames_are_read_across_chunks() {
        let ack = frame(&[0, 60, 0, 80, 0, 0, 0, 0, 0, 0, 0, 7, 1]);
        let mut buffer = FrameBuffer::new(FrameOrigin::Client);
        buffer.push(b"AMQP\0\0\x09\x01");
        buffer.push(&ack[..5]);
        assert_eq!(buffer.next().expect("the header").bytes().len(), PROTOCOL_HEADER);
        assert!(buffer.next().is_none());
        buffer.push(&ack[5..]);
        let read = buffer.next().expect("the acknowledgement");
        assert_eq!((read.channel(), read.method()), (3, Some(AmqpMethod::Ack { tag: 7, multiple: true })));
    }

    #[test]
    fn notices_of_a_blocked_connection_are_whole_frames() {
        let mut buffer = FrameBuffer::new(FrameOrigin::Service);
        for notice in [connection_blocked(&"x".repeat(300)), connection_unblocked()] {
            buffer.push(&notice);
            let frame = buffer.next().expect("a whole frame");
            assert_eq!((frame.bytes(), frame.channel()), (notice.as_slice(), 0));
        }
    }

    #[test]
    fn rejection_is_a_return_without_requeue() {
        let mut buffer = FrameBuffer::new(FrameOrigin::Service);
        buffer.push(&frame(&[0, 60, 0, 90, 0, 0, 0, 0, 0, 0, 0, 2, 0]));
        let expected = AmqpMethod::Nack { tag: 2, multiple: false, requeue: false };
        assert_eq!(buffer.next().and_then(|frame| frame.method()), Some(expected));
    }
}
