//! The engine's state of one connection: protocol state, pending acknowledgements, bytes not parsed and bytes not sent.
//!
//! No socket: the event loop keeps it under the same key. An idle connection holds no buffer.

use headwater_log::ClientIndex;
use headwater_mqtt::packet::connect;
use headwater_mqtt::{ReasonCode, Version};
use serde::Serialize;

use crate::engine::SessionKey;
use crate::engine::containers::lazy_box::{Blank, LazyBox};
use crate::engine::quotas::AccountId;
use crate::engine::routing::topics::TopicId;
use crate::peer::Peer;

use super::ack::AckFifo;
use super::aliases::OutAliases;
use super::auth::AuthStep;
use super::limits::Pace;
use super::out::SharedPayloads;
use super::pauses::PauseSet;

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// No CONNECT yet.
    New,
    /// A CONNECT waits for the end of its enhanced authentication.
    Authenticating,
    Open,
    /// Closed: what is in `out` may still be sent, and nothing is read.
    Closed,
}

/// The message to publish if the client is lost.
#[derive(Debug, Clone)]
pub struct Will {
    pub topic: Box<str>,
    pub payload: Box<[u8]>,
    /// Encoded; only properties that are forwarded.
    pub properties: Box<[u8]>,
    pub qos: u8,
    pub retain: bool,
    pub delay_s: u32,
    /// Set while the will waits, which is stored: when it is due in Unix microseconds, and the idempotency key of its
    /// record.
    pub waits: Option<(i64, Box<str>)>,
    /// It comes from the state store: an earlier start may have published it.
    pub is_restored: bool,
    /// Set while the will waits: whether the files alone decide if a later start publishes it.
    pub is_by_files: bool,
}

impl Will {
    pub fn of(will: &connect::Will<'_>) -> Self {
        let mut properties = Vec::new();
        will.properties.copy_forwardable(&mut properties);
        Self {
            topic: will.topic.into(),
            payload: will.payload.into(),
            properties: properties.into(),
            qos: will.qos.as_u8(),
            retain: will.retain,
            delay_s: will.properties.will_delay_interval().unwrap_or(0),
            waits: None,
            is_restored: false,
            is_by_files: false,
        }
    }
}

/// What a client's topic alias stands for.
#[derive(Debug)]
pub enum Alias {
    Topic {
        name: Box<str>,
        topic: TopicId,
    },
    /// A topic to which the client may not publish: PUBLISHes that use this alias get the same reason code.
    Refused(ReasonCode),
}

/// Received bytes that are not parsed: an incomplete packet, or more while reading is paused.
#[derive(Debug, Default)]
pub struct Unparsed {
    pub bytes: Vec<u8>,
    /// Size of the packet at the front of `bytes`, when its header is complete.
    pub needs: usize,
    /// Bytes reserved for this connection in the budget of unparsed bytes.
    pub reserved: usize,
    /// When they were reserved.
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
    /// The authentication state, while there is any to remember.
    pub auth: Option<Box<AuthStep>>,
    pub will: Option<Box<Will>>,
    /// Slot n holds alias n + 1.
    pub aliases: Vec<Option<Alias>>,
    /// Topic aliases of deliveries; `None` for a client that accepts none.
    pub out_aliases: Option<Box<OutAliases>>,
    /// The client's progress against its rate limits, if it has any.
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

/// Totals of one connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// Publishes.
    pub received_messages: u64,
    pub sent_messages: u64,
}

impl Traffic {
    /// Whether any message was transferred. Before the first one no rate is worth keeping: connecting, subscribing and
    /// pings transfer next to nothing, and thousands of clients may do so at once.
    #[inline]
    pub fn has_messages(&self) -> bool {
        self.received_messages | self.sent_messages != 0
    }
}

#[derive(Debug)]
pub struct Connection {
    pub peer: Peer,
    pub phase: Phase,
    pub version: Version,
    pub session: Option<SessionKey>,
    /// The account that this connection counts against.
    pub account: Option<AccountId>,
    pub extras: LazyBox<Extras>,
    pub pauses: PauseSet,
    pub acks: AckFifo,
    /// Publishes of QoS 1 that are not acknowledged yet.
    pub publishes_in_flight: u16,
    /// SUBACKs in `acks`: retained values and replays wait for them.
    pub subacks_pending: u16,
    /// Encoded bytes that the socket has not taken yet, from `out_sent` on.
    pub out: LazyBox<Vec<u8>>,
    pub out_sent: u32,
    /// Large payloads sent between the bytes of `out`.
    pub shares: SharedPayloads,
    /// What the budget for all connections counts of `out` and `shares`.
    pub waiting_bytes: u32,
    /// `out` waits until the socket is writable again.
    pub out_blocked: bool,
    /// The session has more to send than `out` had room for.
    pub wake_when_drained: bool,
    pub unparsed: LazyBox<Unparsed>,
    /// The client's Maximum Packet Size.
    pub packet_max: u32,
    pub keep_alive_s: u16,
    pub last_read_ms: u64,
    /// When the keep-alive is checked next. A connection has one timer for it, rarely two.
    pub silence_due_ms: u64,
    /// The last topic published to.
    pub topic: TopicId,
    /// The index of the client id in the `Records` with this stamp.
    pub client: ClientIndex,
    pub client_stamp: u64,
    /// The publisher asked for offsets in its PUBACKs.
    pub stream_ack: bool,
    /// The client wants MQTT 5 reason strings.
    pub problem_info: bool,
    pub traffic: Traffic,
    /// When the connection was opened, in seconds of the monotonic clock.
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
            pauses: PauseSet::default(),
            acks: AckFifo::default(),
            publishes_in_flight: 0,
            subacks_pending: 0,
            out: LazyBox::default(),
            out_sent: 0,
            shares: SharedPayloads::default(),
            waiting_bytes: 0,
            out_blocked: false,
            wake_when_drained: false,
            unparsed: LazyBox::default(),
            packet_max: u32::MAX,
            keep_alive_s: 0,
            last_read_ms: now_ms,
            silence_due_ms: 0,
            topic: TopicId::default(),
            client: ClientIndex(0),
            client_stamp: 0,
            stream_ack: false,
            problem_info: true,
            traffic: Traffic::default(),
            since_s: u32::try_from(now_ms / 1000).unwrap_or(u32::MAX),
        }
    }

    /// Takes the remembered authentication state.
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
        self.out.len() - self.out_sent as usize + self.shares.bytes()
    }

    /// Whether as much as `room` waits for the socket; its session then continues when that was sent.
    #[inline]
    pub fn lacks_room(&mut self, room: usize) -> bool {
        let is_full = self.out_len() >= room;
        self.wake_when_drained |= is_full;
        is_full
    }
}
