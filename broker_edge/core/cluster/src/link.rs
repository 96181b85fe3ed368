//! One connection to a peer: who it is, its frames in order, and what waits to be sent to it.
//!
//! Bytes in, frames out, and the other way round; the caller has the socket. A connection begins with a `Hello` in both
//! directions. What is wrong on it closes it, because nothing behind wrong bytes can be trusted.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::breaker::WrongPeer;
use crate::frames::{
    Addressed, Decoded, Frame, FrameError, HEAD_BYTES, HELLO_BYTES_MAX, Hello, VERSION, decode,
    encode, encode_but_batches,
};
use crate::marks::{Member, Node, ShardId, Starts};

/// A peer has this long from the connection to its `Hello`.
pub const HELLO_MS: u64 = 3_000;
/// Control frames that wait for a peer that does not read. They are small, and few between two beacons; more than this
/// means that the peer has stopped.
pub const CONTROL_BYTES_MAX: usize = 8 << 20;

/// Why a connection is closed from here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    #[error("it is not the peer that was looked for: {0}")]
    Wrong(#[from] WrongPeer),
    #[error("the peer {peer} sent what no version of this program sends: {reason}")]
    Frame { peer: String, reason: FrameError },
    #[error("the peer {0} sent a second Hello")]
    SecondHello(Node),
    #[error("nothing that names the peer came from {0} within {HELLO_MS} ms")]
    NoHello(String),
    #[error("the peer {0} does not read: {CONTROL_BYTES_MAX} bytes wait for it")]
    DoesNotRead(Node),
}

/// What came from a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Came {
    /// Its `Hello` was accepted. Everything else comes after this.
    Peer {
        member: Member,
        starts: Starts,
        /// Its wall clock when it made the `Hello`.
        clock_ms: u64,
    },
    Frame(ShardId, Frame),
}

/// A connection to a peer, from either side.
#[derive(Debug)]
pub struct Link {
    ours: Hello,
    /// The address, until a `Hello` has named the peer.
    from: String,
    /// The peer that was dialled; `None` if it dialled.
    dialled: Option<Node>,
    opened_ms: u64,
    peer: Option<(Member, Starts)>,
    /// What came is `taken..filled`; behind it is room.
    received: Vec<u8>,
    taken: usize,
    filled: usize,
    control: VecDeque<Vec<u8>>,
    control_bytes: usize,
    /// What the socket is taking, and batches behind it, from `sent` on.
    sending: Vec<u8>,
    batches: Bytes,
    sent: usize,
}

impl Link {
    /// A connection that was just made from or to `from`. Its first bytes are our `Hello`.
    #[must_use]
    pub fn new(ours: Hello, from: String, dialled: Option<Node>, now_ms: u64) -> Self {
        let mut sending = Vec::new();
        let hello = Addressed {
            shard: ShardId(0),
            frame: Frame::Hello(ours.clone()),
        };
        encode(&hello, &mut sending);
        Self {
            ours,
            from,
            dialled,
            opened_ms: now_ms,
            peer: None,
            received: Vec::new(),
            taken: 0,
            filled: 0,
            control: VecDeque::new(),
            control_bytes: 0,
            sending,
            batches: Bytes::new(),
            sent: 0,
        }
    }

    /// Who it is, once it has said so.
    #[must_use]
    pub fn peer(&self) -> Option<&Member> {
        self.peer.as_ref().map(|(member, _)| member)
    }

    /// When it must have sent its `Hello`.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        self.peer.is_none().then_some(self.opened_ms + HELLO_MS)
    }

    /// # Errors
    /// Nothing has named the peer in time.
    pub fn check_time(&self, now_ms: u64) -> Result<(), LinkError> {
        match self.deadline_ms() {
            Some(deadline_ms) if deadline_ms <= now_ms => {
                Err(LinkError::NoHello(self.from.clone()))
            }
            _ => Ok(()),
        }
    }

    /// How many bytes to read at least for the next frame. Before the `Hello` no more than one is buffered.
    #[must_use]
    pub fn wants(&self) -> usize {
        let needs = match decode(self.rest(), self.peer.is_some()) {
            Ok(Decoded::Needs(bytes)) => bytes,
            _ => HEAD_BYTES,
        };
        needs.saturating_sub(self.rest().len()).max(1)
    }

    /// Where the socket puts what comes next, and at most `bytes_max`. Of a peer that is not known no more than a
    /// `Hello` is buffered.
    pub fn room(&mut self, bytes_max: usize) -> &mut [u8] {
        self.received.copy_within(self.taken..self.filled, 0);
        self.filled -= std::mem::take(&mut self.taken);
        let bytes = match self.peer {
            Some(_) => bytes_max,
            None => bytes_max.min(HELLO_BYTES_MAX.saturating_sub(self.filled)),
        };
        let end = self.filled + bytes;
        if self.received.len() < end {
            self.received.resize(end, 0);
        }
        &mut self.received[self.filled..end]
    }

    fn rest(&self) -> &[u8] {
        &self.received[self.taken..self.filled]
    }

    /// So many bytes were put at the begin of [`Self::room`].
    pub fn received(&mut self, bytes: usize) {
        self.filled = (self.filled + bytes).min(self.received.len());
    }

    /// The next of what came, `None` when it is not whole yet.
    ///
    /// # Errors
    /// The connection is to be closed. If the error is [`LinkError::Wrong`], the breaker of the peer opens.
    pub fn take(&mut self) -> Result<Option<Came>, LinkError> {
        let decoded = decode(self.rest(), self.peer.is_some());
        let decoded = decoded.map_err(|reason| LinkError::Frame {
            peer: self.name(),
            reason,
        })?;
        let (addressed, taken) = match decoded {
            Decoded::Needs(_) => return Ok(None),
            Decoded::Frame(addressed, taken) => (addressed, taken),
        };
        self.taken += taken;
        match addressed.frame {
            Frame::Hello(hello) => self.greet(hello).map(Some),
            frame => Ok(Some(Came::Frame(addressed.shard, frame))),
        }
    }

    fn name(&self) -> String {
        match &self.peer {
            Some((member, _)) => member.node.to_string(),
            None => self.from.clone(),
        }
    }

    fn greet(&mut self, hello: Hello) -> Result<Came, LinkError> {
        if let Some((member, _)) = &self.peer {
            return Err(LinkError::SecondHello(member.node.clone()));
        }
        check(&self.ours, &hello, &self.from, self.dialled.as_ref())?;
        let member = Member {
            node: hello.node,
            disk: hello.disk,
        };
        self.peer = Some((member.clone(), hello.starts));
        Ok(Came::Peer {
            member,
            starts: hello.starts,
            clock_ms: hello.clock_ms,
        })
    }

    /// Queues a frame before all batches that are not being sent yet.
    ///
    /// # Errors
    /// Too much waits for this peer.
    pub fn send(&mut self, shard: ShardId, frame: Frame) -> Result<(), LinkError> {
        let mut bytes = Vec::new();
        encode(&Addressed { shard, frame }, &mut bytes);
        if let Some((member, _)) = &self.peer
            && self.control_bytes + bytes.len() > CONTROL_BYTES_MAX
        {
            return Err(LinkError::DoesNotRead(member.node.clone()));
        }
        self.control_bytes += bytes.len();
        self.control.push_back(bytes);
        Ok(())
    }

    /// What the socket is to take next, one behind the other; both empty when there is nothing. `batches`: asked only
    /// when no control frame waits, and not before the peer is known.
    pub fn to_send(&mut self, batches: impl FnOnce() -> Option<(ShardId, Frame)>) -> [&[u8]; 2] {
        if self.sent == self.sending.len() + self.batches.len() {
            self.sending.clear();
            self.batches = Bytes::new();
            self.sent = 0;
            if self.peer.is_some() {
                self.fill(batches);
            }
        }
        let of_batches = self.sent.saturating_sub(self.sending.len());
        let head = self.sent - of_batches;
        [&self.sending[head..], &self.batches[of_batches..]]
    }

    fn fill(&mut self, batches: impl FnOnce() -> Option<(ShardId, Frame)>) {
        while let Some(bytes) = self.control.pop_front() {
            self.control_bytes -= bytes.len();
            self.sending.extend_from_slice(&bytes);
        }
        if self.sending.is_empty()
            && let Some((shard, frame)) = batches()
        {
            self.batches = encode_but_batches(&Addressed { shard, frame }, &mut self.sending);
        }
    }

    /// The socket took this many bytes of [`Self::to_send`].
    pub fn sent(&mut self, bytes: usize) {
        self.sent = (self.sent + bytes).min(self.sending.len() + self.batches.len());
    }
}

/// Whether this is the peer that is looked for, of the same cluster, log and protocol.
fn check(
    ours: &Hello,
    theirs: &Hello,
    from: &str,
    dialled: Option<&Node>,
) -> Result<(), WrongPeer> {
    if theirs.cluster != ours.cluster {
        return Err(WrongPeer::Cluster {
            peer: from.to_owned(),
            theirs: theirs.cluster.clone(),
            ours: ours.cluster.clone(),
        });
    }
    if theirs.log_id != ours.log_id {
        return Err(WrongPeer::Log {
            peer: theirs.node.clone(),
        });
    }
    if theirs.node == ours.node {
        return Err(WrongPeer::OwnName {
            peer: from.to_owned(),
            name: ours.node.clone(),
        });
    }
    if let Some(expected) = dialled
        && *expected != theirs.node
    {
        return Err(WrongPeer::Name {
            peer: from.to_owned(),
            expected: expected.clone(),
            found: theirs.node.clone(),
        });
    }
    if !(theirs.versions.0..=theirs.versions.1).contains(&VERSION) {
        return Err(WrongPeer::Version {
            peer: theirs.node.clone(),
            theirs: theirs.versions,
            ours: ours.versions,
        });
    }
    Ok(())
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
