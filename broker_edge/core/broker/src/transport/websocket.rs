//! WebSocket frames as a layer of a byte stream (RFC 6455, server side), without a socket.
//!
//! MQTT packets and frames need not coincide, so frames are not assembled: bytes are unmasked in place and passed on,
//! and a frame of any length costs no memory. Only headers and the payloads of control frames (125 bytes) are stored.

use std::io::Cursor;

use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};

/// The longest header: two bytes, eight of length, four of mask.
const HEADER_BYTES_MAX: usize = 14;
const CONTROL_BYTES_MAX: u64 = 125;
/// The largest MQTT packet; longer frames are never needed.
const FRAME_BYTES_MAX: u64 = 268_435_460;
/// A longer send is split into several frames, for clients that assemble frames.
const SENT_FRAME_BYTES_MAX: usize = 1 << 20;

/// Why a WebSocket ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseCode {
    Normal = 1000,
    Protocol = 1002,
    /// A text frame: MQTT is binary.
    Unsupported = 1003,
    TooLarge = 1009,
}

/// The state of the frame being received.
#[derive(Debug)]
enum FrameState {
    /// Between frames: the received part of the next header.
    Header {
        bytes: [u8; HEADER_BYTES_MAX],
        len: u8,
    },
    Data {
        left: u64,
        mask: [u8; 4],
        /// Unmasked bytes of this frame, modulo four.
        turn: u8,
    },
    Control {
        kind: Control,
        left: u8,
        mask: [u8; 4],
        payload: Vec<u8>,
    },
}

const BETWEEN: FrameState = FrameState::Header {
    bytes: [0; HEADER_BYTES_MAX],
    len: 0,
};

#[derive(Debug)]
pub struct WebSocket {
    inside: FrameState,
    /// A message of several frames is in progress.
    is_continued: bool,
    /// The peer has sent a close frame.
    is_closed: bool,
    said_goodbye: bool,
    /// Headers and control frames to send before anything else.
    unsent: Vec<u8>,
    /// A control frame to send after the frame in progress. At most one: the answer to the latest ping.
    answer: Vec<u8>,
    /// Unsent payload of the frame whose header was sent last.
    frame_left: usize,
}

impl Default for WebSocket {
    fn default() -> Self {
        Self {
            inside: BETWEEN,
            is_continued: false,
            is_closed: false,
            said_goodbye: false,
            unsent: Vec::new(),
            answer: Vec::new(),
            frame_left: 0,
        }
    }
}

impl WebSocket {
    /// Extracts the payload of data frames and moves it to the front of `bytes`; returns how many bytes of MQTT it has.
    ///
    /// # Errors
    /// The code with which to close the connection.
    pub fn decode(&mut self, bytes: &mut [u8]) -> Result<usize, CloseCode> {
        let mut from = 0;
        let mut count = 0;
        while from < bytes.len() && !self.is_closed {
            match &mut self.inside {
                FrameState::Header { .. } => from += self.take_header(&bytes[from..])?,
                FrameState::Data { left, mask, turn } => {
                    let here =
                        (bytes.len() - from).min(usize::try_from(*left).unwrap_or(usize::MAX));
                    unmask(&mut bytes[from..from + here], *mask, usize::from(*turn));
                    bytes.copy_within(from..from + here, count);
                    *turn = ((usize::from(*turn) + here) % 4) as u8;
                    *left -= here as u64;
                    if *left == 0 {
                        self.inside = BETWEEN;
                    }
                    from += here;
                    count += here;
                }
                FrameState::Control { .. } => from += self.take_control(&mut bytes[from..]),
            }
        }
        Ok(count)
    }

    /// Completes a header; returns how many bytes it took.
    fn take_header(&mut self, bytes: &[u8]) -> Result<usize, CloseCode> {
        let FrameState::Header { bytes: kept, len } = &mut self.inside else {
            return Ok(0);
        };
        let had = usize::from(*len);
        let more = bytes.len().min(HEADER_BYTES_MAX - had);
        kept[had..had + more].copy_from_slice(&bytes[..more]);
        let mut cursor = Cursor::new(&kept[..had + more]);
        let parsed = FrameHeader::parse(&mut cursor).map_err(|_| CloseCode::Protocol)?;
        let Some((header, length)) = parsed else {
            *len = (had + more) as u8;
            return Ok(more);
        };
        let header_len = usize::try_from(cursor.position()).unwrap_or(HEADER_BYTES_MAX);
        self.begin_received(&header, length)?;
        Ok(header_len - had)
    }

    fn begin_received(&mut self, header: &FrameHeader, length: u64) -> Result<(), CloseCode> {
        let mask = header.mask.ok_or(CloseCode::Protocol)?;
        if header.rsv1 || header.rsv2 || header.rsv3 {
            return Err(CloseCode::Protocol);
        }
        let begins = match header.opcode {
            OpCode::Control(kind) => {
                if matches!(kind, Control::Reserved(_))
                    || !header.is_final
                    || length > CONTROL_BYTES_MAX
                {
                    return Err(CloseCode::Protocol);
                }
                self.inside = FrameState::Control {
                    kind,
                    left: length as u8,
                    mask,
                    payload: Vec::new(),
                };
                if length == 0 {
                    self.take_control(&mut []);
                }
                return Ok(());
            }
            OpCode::Data(Data::Binary) => true,
            OpCode::Data(Data::Continue) => false,
            OpCode::Data(Data::Text) => return Err(CloseCode::Unsupported),
            OpCode::Data(Data::Reserved(_)) => return Err(CloseCode::Protocol),
        };
        // A first frame must come when no message is open, a continuation frame when one is.
        if begins == self.is_continued {
            return Err(CloseCode::Protocol);
        }
        if length > FRAME_BYTES_MAX {
            return Err(CloseCode::TooLarge);
        }
        self.is_continued = !header.is_final;
        self.inside = if length == 0 {
            BETWEEN
        } else {
            FrameState::Data {
                left: length,
                mask,
                turn: 0,
            }
        };
        Ok(())
    }

    /// Completes a control frame and handles it; returns how many bytes it took.
    fn take_control(&mut self, bytes: &mut [u8]) -> usize {
        let FrameState::Control {
            kind,
            left,
            mask,
            payload,
        } = &mut self.inside
        else {
            return 0;
        };
        let here = bytes.len().min(usize::from(*left));
        unmask(&mut bytes[..here], *mask, payload.len() % 4);
        payload.extend_from_slice(&bytes[..here]);
        *left -= here as u8;
        if *left > 0 {
            return here;
        }
        let (kind, payload) = (*kind, std::mem::take(payload));
        self.inside = BETWEEN;
        match kind {
            Control::Ping => self.answer(Control::Pong, &payload),
            Control::Close => {
                self.is_closed = true;
                // The answer carries the same code, or none if there was none.
                let code = payload.get(..2).unwrap_or_default().to_vec();
                self.goodbye(&code);
            }
            Control::Pong | Control::Reserved(_) => {}
        }
        here
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub fn has_said_goodbye(&self) -> bool {
        self.said_goodbye
    }

    /// Sends a close frame, once.
    pub fn close(&mut self, code: CloseCode) {
        self.goodbye(&(code as u16).to_be_bytes());
    }

    fn goodbye(&mut self, payload: &[u8]) {
        // Within a frame it would be read as payload.
        if !self.said_goodbye && self.frame_left == 0 {
            self.answer(Control::Close, payload);
        }
        self.said_goodbye = true;
    }

    fn answer(&mut self, kind: Control, payload: &[u8]) {
        if self.said_goodbye {
            return;
        }
        let mut frame = Vec::with_capacity(2 + payload.len());
        write_header(&mut frame, OpCode::Control(kind), payload.len());
        frame.extend_from_slice(payload);
        if self.frame_left == 0 && self.unsent.is_empty() {
            self.unsent = frame;
        } else {
            self.answer = frame;
        }
    }

    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The bytes to send before the payload.
    pub fn unsent(&self) -> &[u8] {
        &self.unsent
    }

    /// Prepares to send `offered` bytes of MQTT; returns how many of them may follow [`unsent`](Self::unsent) now.
    pub fn begin_frame(&mut self, offered: usize) -> usize {
        if self.frame_left == 0 {
            if !self.answer.is_empty() {
                let answer = std::mem::take(&mut self.answer);
                self.unsent.extend_from_slice(&answer);
            }
            if self.said_goodbye {
                return 0;
            }
            if offered > 0 {
                self.frame_left = offered.min(SENT_FRAME_BYTES_MAX);
                let binary = OpCode::Data(Data::Binary);
                write_header(&mut self.unsent, binary, self.frame_left);
            }
        }
        self.frame_left.min(offered)
    }

    /// Notes that `sent` bytes of [`unsent`](Self::unsent) and the payload after it were sent; returns how many of them
    /// were payload.
    pub fn advance(&mut self, sent: usize) -> usize {
        let head = sent.min(self.unsent.len());
        if head == self.unsent.len() {
            // An idle connection must hold no buffer.
            self.unsent = Vec::new();
        } else {
            self.unsent.drain(..head);
        }
        self.frame_left -= sent - head;
        sent - head
    }
}

fn write_header(out: &mut Vec<u8>, opcode: OpCode, length: usize) {
    let header = FrameHeader {
        opcode,
        ..FrameHeader::default()
    };
    header
        .format(length as u64, out)
        .expect("writing to memory does not fail");
}

/// Applies the mask to bytes that begin at position `turn` of the mask.
fn unmask(bytes: &mut [u8], mut mask: [u8; 4], turn: usize) {
    mask.rotate_left(turn % 4);
    let word = u32::from_ne_bytes(mask);
    let mut words = bytes.chunks_exact_mut(4);
    for chunk in &mut words {
        let value = u32::from_ne_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]) ^ word;
        chunk.copy_from_slice(&value.to_ne_bytes());
    }
    for (byte, mask) in words.into_remainder().iter_mut().zip(mask) {
        *byte ^= mask;
    }
}

#[cfg(test)]
#[path = "websocket_tests.rs"]
mod tests;
