//! What the engine keeps of one connection: protocol state, owed acknowledgements, bytes not parsed and not sent yet.
//!
//! No socket: the event loop keeps that under the same key. An idle connection holds no buffer.

use headwater_log::ClientIndex;
use headwater_mqtt::{ReasonCode, Version};

use crate::peer::Peer;

use super::SessionKey;
use super::ack::AckFifo;
use super::aliases::OutAliases;
use super::authenticate::AuthStep;
use super::lazy_box::{Blank, LazyBox};
use super::limits::Pace;
use super::out::SharedPayloads;
use super::quotas::AccountId;
use super::rates::Traffic;
use super::stage::PartitionIndex;
use super::topics::TopicId;

/// Where a connection is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// No CONNECT yet.
    New,
    /// A CONNECT that waits for the end of its enhanced authentication.
    Authenticating,
    Open,
    /// Given up: what is in `out` may still be sent, nothing is read.
    Closed,
}

/// A message to publish when the client is lost.
#[derive(Debug, Clone)]
pub struct Will {
    pub topic: Box<str>,
    pub payload: Box<[u8]>,
    /// Encoded and forwardable.
    pub properties: Box<[u8]>,
    pub qos: u8,
    pub retain: bool,
    pub delay_s: u32,
    /// It waits, durably: when it is due in Unix microseconds, and the idempotency key of its record.
    pub waits: Option<(i64, Box<str>)>,
}

/// What a client gave a number to.
#[derive(Debug)]
pub enum Alias {
    Topic {
        name: Box<str>,
        topic: TopicId,
    },
    /// A name to which it may not publish: what comes by its number is refused for the same reason.
    Refused(ReasonCode),
}

/// What was received and not parsed: an incomplete packet, or more when reading is paused.
#[derive(Debug, Default)]
pub struct Unparsed {
    pub bytes: Vec<u8>,
    /// Size of the packet at the front of `bytes`, when its header is complete.
    pub needs: usize,
    /// What of the budget of unparsed bytes is promised to this connection.
    pub reserved: usize,
    /// Since when.
    pub reserved_at_ms: u64,
}

impl Blank for Unparsed {
    const BLANK: &'static Self = &Self {
        bytes: Vec::new(),
        needs: 0,
        reserved: 0,
        reserved_at_ms: 0,
    };

    fn is_blank(&self) -> bool {
        self.bytes.is_empty() && self.needs == 0 && self.reserved == 0
    }
}

/// Parts of the protocol that few clients use.
#[derive(Debug, Default)]
pub struct Extras {
    /// Where authentication stands, as long as there is something to remember of it.
    pub auth: Option<Box<AuthStep>>,
    pub will: Option<Box<Will>>,
    /// Slot n holds alias n + 1.
    pub aliases: Vec<Option<Alias>>,
    /// Numbers of topics in deliveries; nothing for a client that takes none.
    pub out_aliases: Option<Box<OutAliases>>,
    /// How far the client is at its rates, where they are limited.
    pub pace: Option<Pace>,
}

impl Blank for Extras {
    const BLANK: &'static Self = &Self {
        auth: None,
        will: None,
        aliases: Vec::new(),
        out_aliases: None,
        pace: None,
    };

    fn is_blank(&self) -> bool {
        self.auth.is_none()
            && self.will.is_none()
            && self.aliases.is_empty()
            && self.out_aliases.is_none()
            && self.pace.is_none()
    }
}

#[derive(Debug)]
pub struct Connection {
    pub peer: Peer,
    pub phase: Phase,
    pub version: Version,
    pub session: Option<SessionKey>,
    /// Whose connections this one counts among.
    pub account: Option<AccountId>,
    pub extras: LazyBox<Extras>,
    /// Reading is held back until the credentials are checked.
    pub paused_on_auth: bool,
    pub acks: AckFifo,
    /// Publishes of QoS 1 that are not acknowledged yet.
    pub publishes_in_flight: u16,
    /// Reading is held back until `acks` is shorter.
    pub paused_on_acks: bool,
    /// Reading is held back until the client has taken what waits for it.
    pub paused_on_out: bool,
    /// Reading is held back until the budget has room for the packet at the front of `unparsed`.
    pub paused_on_budget: bool,
    /// SUBACKs in `acks`: retained values and replays wait for them.
    pub subacks_pending: u16,
    /// Encoded and not taken by the socket yet, from `out_sent` on.
    pub out: LazyBox<Vec<u8>>,
    pub out_sent: usize,
    /// Large payloads that go between the bytes of `out`.
    pub shares: SharedPayloads,
    /// Some of them have been left over from one turn to the next: it is in the engine's list of those.
    pub holds: bool,
    /// `out` waits until the socket is writable again.
    pub out_blocked: bool,
    /// The session has more to send than fitted into `out`.
    pub wake_when_drained: bool,
    /// In the list of connections to write in this turn.
    pub touched: bool,
    pub unparsed: LazyBox<Unparsed>,
    /// Not read until this partition takes records again.
    pub paused_on: Option<PartitionIndex>,
    /// The client's Maximum Packet Size.
    pub packet_max: u32,
    pub keep_alive_s: u16,
    pub last_read_ms: u64,
    /// When the client's silence is looked at next. A connection has one timer for it, rarely two.
    pub silence_due_ms: u64,
    /// The last topic published to.
    pub topic: TopicId,
    /// Where the client id stands in the `Records` with that stamp.
    pub client: (u64, ClientIndex),
    /// The publisher asked for offsets in its PUBACKs.
    pub stream_ack: bool,
    /// MQTT 5 reason strings are wanted.
    pub problem_info: bool,
    /// Reading is held back because the client is over its rate.
    pub paused_on_rate: bool,
    pub traffic: Traffic,
    /// It is among those that moved lately.
    pub is_active: bool,
    /// When it was opened, in seconds of the monotonic clock.
    pub since_s: u32,
}

impl Connection {
    pub fn new(peer: Peer, now_ms: u64) -> Self {
        Self {
            peer,
            phase: Phase::New,
            version: Version::V311,
            session: None,
            account: None,
            extras: LazyBox::default(),
            paused_on_auth: false,
            acks: AckFifo::default(),
            publishes_in_flight: 0,
            paused_on_acks: false,
            paused_on_out: false,
            paused_on_budget: false,
            subacks_pending: 0,
            out: LazyBox::default(),
            out_sent: 0,
            shares: SharedPayloads::default(),
            holds: false,
            out_blocked: false,
            wake_when_drained: false,
            touched: false,
            unparsed: LazyBox::default(),
            paused_on: None,
            packet_max: u32::MAX,
            keep_alive_s: 0,
            last_read_ms: now_ms,
            silence_due_ms: 0,
            topic: TopicId::default(),
            client: (0, ClientIndex(0)),
            stream_ack: false,
            problem_info: true,
            paused_on_rate: false,
            traffic: Traffic::default(),
            is_active: false,
            since_s: u32::try_from(now_ms / 1000).unwrap_or(u32::MAX),
        }
    }

    /// What authentication had to remember.
    pub fn take_auth(&mut self) -> Option<AuthStep> {
        let step = self.extras.present_mut()?.auth.take()?;
        Some(*step)
    }

    pub fn is_v5(&self) -> bool {
        self.version.is_v5()
    }

    /// Bytes that wait for the socket.
    #[inline]
    pub fn out_len(&self) -> usize {
        self.out.len() - self.out_sent + self.shares.bytes()
    }

    /// Whether reading is held back until the engine says otherwise.
    pub fn is_paused(&self) -> bool {
        self.is_held_back() || self.paused_on_out
    }

    /// Whether it is the broker, and not the client, that holds reading back.
    pub fn is_held_back(&self) -> bool {
        self.paused_on.is_some()
            || self.paused_on_acks
            || self.paused_on_budget
            || self.paused_on_auth
            || self.paused_on_rate
    }
}
