//! SUBSCRIBE: the subscriptions of a session, their start offsets, and the retained messages they get.

use std::sync::Arc;

use headwater_log::Offset;
use headwater_mqtt::packet::subscribe::{RetainHandling, Subscribe};
use headwater_mqtt::{PacketId, Properties, Property, QoS, ReasonCode, encode};
use parking_lot::Mutex;

use crate::auth::Access;
use crate::engine::catch_up::CatchUp;
use crate::engine::clients::Clients;
use crate::engine::containers::lazy_box::LazyBox;
use crate::engine::delivery::Delivery;
use crate::engine::delivery::replies::Replies;
use crate::engine::effects::{Cause, Effects};
use crate::engine::env::Env;
use crate::engine::ids::PartitionOffset;
use crate::engine::ingest::Ingest;
use crate::engine::observe::Observe;
use crate::engine::observe::sys_tree::is_sys;
use crate::engine::quotas::{Kind, Quotas};
use crate::engine::retained::Retained;
use crate::engine::retained::retained_cursor::RetainedCursor;
use crate::engine::routing::Routing;
use crate::engine::routing::position::{
    Position, Refusal, ResetPolicy, StartOffsets, split_filter,
};
use crate::engine::routing::router::{Options, Subscriber};
use crate::engine::session::Subscription;
use crate::engine::session::ack::PacketKind;
use crate::engine::session::cursors::Cursor;
use crate::engine::session::replay::Replay;
use crate::engine::session_store::Store;
use crate::engine::session_store::checkpoint::Checkpointing;
use crate::engine::shared_groups::Groups;
use crate::engine::shared_groups::membership::Membership;
use crate::engine::{ConnKey, SessionKey};

use super::authorize::check_access;
use super::filters::check_filter;
use super::over_limit::Usage;

/// One filter of a SUBSCRIBE.
struct Wanted<'a> {
    filter: &'a str,
    position: Option<&'a str>,
    options: Options,
    retain_handling: RetainHandling,
    /// Of the whole packet.
    properties: &'a Properties<'a>,
}

/// What the SUBACK reports besides its codes.
#[derive(Default)]
struct Report {
    starts: Vec<PartitionOffset>,
    gaps: Vec<String>,
    sentence: Option<String>,
    /// A start position was given.
    located: bool,
    /// The session has to be stored.
    changed: bool,
}

/// Adds subscriptions to sessions, and removes them.
pub struct Subscribing<'a> {
    pub env: &'a Env,
    pub clients: &'a mut Clients,
    pub routing: &'a mut Routing,
    pub ingest: &'a mut Ingest,
    pub delivery: &'a mut Delivery,
    pub groups: &'a mut Groups,
    pub retained: &'a Arc<Mutex<Retained>>,
    pub store: &'a mut Store,
    pub quotas: &'a mut Quotas,
    pub catch_up: &'a mut CatchUp,
    pub observe: &'a mut Observe,
    pub effects: &'a mut Effects,
}

impl Subscribing<'_> {
    /// Handles a SUBSCRIBE.
    pub fn subscribe(&mut self, key: ConnKey, subscribe: &Subscribe<'_>) {
        let Some(conn) = self.clients.conn(key) else {
            return;
        };
        let is_v5 = conn.is_v5();
        let Some(session) = conn.session else {
            return;
        };
        let properties = &subscribe.properties;
        let id = properties.subscription_identifier().unwrap_or(0);
        let position = properties.user_property("stream-offset");
        debug_assert!(is_v5 || id == 0);
        let mut report = Report::default();
        let mut codes = Vec::with_capacity(subscribe.subscriptions.len());
        for wanted in subscribe.subscriptions.iter() {
            let located = split_filter(wanted.filter);
            let position = located.position.or(position);
            let options = Options {
                qos: wanted.options.qos.min(self.env.settings.mqtt.qos_max()),
                no_local: wanted.options.no_local,
                retain_as_published: wanted.options.retain_as_published,
                id,
                offsets: is_v5 && position.is_some(),
                offset_topics: located.offset_topics,
            };
            let wanted = Wanted {
                filter: located.filter,
                position,
                options,
                retain_handling: wanted.options.retain_handling,
                properties,
            };
            codes.push(match self.add(session, &wanted, &mut report) {
                Ok(()) => match options.qos {
                    QoS::AtMostOnce => ReasonCode::GRANTED_QOS0,
                    QoS::AtLeastOnce => ReasonCode::GrantedQos1,
                    QoS::ExactlyOnce => ReasonCode::GrantedQos2,
                },
                Err(refusal) => {
                    self.observe.refuse("suback", refusal.reason);
                    report.sentence.get_or_insert(refusal.sentence);
                    refusal.reason
                }
            });
        }
        self.clients.recount_bytes(session, self.quotas);
        let Ok(after) = self.store_change(key, session, report.changed) else {
            return;
        };
        self.owe_suback(key, subscribe.packet_id, after, &codes, &report);
    }

    fn owe_suback(
        &mut self,
        key: ConnKey,
        id: PacketId,
        after: Option<Offset>,
        codes: &[ReasonCode],
        report: &Report,
    ) {
        let Some(conn) = self.clients.conn(key) else {
            return;
        };
        let (version, tells, size_max) =
            (conn.version, conn.problem_info, conn.packet_max as usize);
        let (start, end) = (
            self.env.format_offsets(&report.starts),
            self.env.format_offsets(&self.ends_of(&report.starts)),
        );
        let mut properties = Vec::new();
        // Clients that want no problem information get no user properties here either (3.1.2.11.7).
        if tells && report.located && !report.starts.is_empty() {
            properties.push(Property::UserProperty {
                key: "stream-start",
                value: &start,
            });
            properties.push(Property::UserProperty {
                key: "stream-end",
                value: &end,
            });
            properties.extend(report.gaps.iter().map(|gap| Property::UserProperty {
                key: "stream-gap",
                value: gap,
            }));
        }
        if let (Some(sentence), true) = (&report.sentence, tells) {
            properties.push(Property::ReasonString(sentence));
        }
        let mut bytes = Vec::new();
        encode::suback(&mut bytes, version, id, &properties, codes);
        if bytes.len() > size_max {
            bytes.clear();
            encode::suback(&mut bytes, version, id, &[], codes);
        }
        lend!(self => Replies).queue_packet(key, after, PacketKind::Suback, bytes);
    }

    fn ends_of(&self, starts: &[PartitionOffset]) -> Vec<PartitionOffset> {
        starts
            .iter()
            .map(|(partition, _)| (*partition, self.delivery.live_at(*partition)))
            .collect()
    }

    /// Adds one subscription.
    fn add(
        &mut self,
        key: SessionKey,
        wanted: &Wanted<'_>,
        report: &mut Report,
    ) -> Result<(), Refusal> {
        let (filter, handling) = (wanted.filter, wanted.retain_handling);
        let Some(session) = self.clients.session(key) else {
            return Ok(());
        };
        let before = session.subscription(filter);
        let is_same = before.is_some_and(|before| {
            before.options == wanted.options && before.retain_handling == handling
        });
        let shared = check_filter(session, filter, self.groups, self.env)?;
        lend!(self => Usage).check_quotas(key, filter)?;
        check_access(self.clients, self.env, key, filter, Access::Subscribe)?;
        // A group has one cursor, whoever subscribes.
        let is_held = match shared {
            Some(_) => self.groups.meant(session, filter).is_some(),
            None => before.is_some(),
        };
        let start = match wanted.position {
            Some(text) if !is_held => {
                report.located = true;
                let position = Position::parse(text)?;
                if position != Position::Latest {
                    check_access(self.clients, self.env, key, filter, Access::Replay)?;
                }
                let policy = ResetPolicy::of(wanted.properties)?;
                let live = self.delivery.live();
                let filter = shared.unwrap_or(filter);
                Some(position.start_of(filter, policy, live, self.env)?)
            }
            _ => None,
        };
        report.changed |= start.is_some() || !is_same;
        if shared.is_some() {
            let live_at = self.delivery.live();
            lend!(self => Membership).put(
                key,
                filter,
                wanted.options,
                handling,
                start.as_ref(),
                live_at,
            );
        } else {
            let replays = self.put_subscription(key, wanted, start.as_ref());
            let sends_retained = match handling {
                RetainHandling::Send => true,
                RetainHandling::SendIfNew => !is_held,
                RetainHandling::DoNotSend => false,
            };
            if sends_retained && !replays {
                self.owe_retained(key, filter);
            }
        }
        if let Some(start) = start {
            report.starts.extend(start.cursors);
            report.gaps.extend(start.gaps);
        }
        Ok(())
    }

    /// Writes the subscription into the session and the index. Returns whether it replays.
    fn put_subscription(
        &mut self,
        key: SessionKey,
        wanted: &Wanted<'_>,
        start: Option<&StartOffsets>,
    ) -> bool {
        let (filter, options) = (wanted.filter, wanted.options);
        let live_at = self.delivery.live_in(filter, self.env);
        let Some(session) = self.clients.session_mut(key) else {
            return false;
        };
        if let Some(held) = session
            .subscriptions
            .iter_mut()
            .find(|held| &*held.filter == filter)
        {
            let grows = held.options.qos < options.qos && options.qos == QoS::ExactlyOnce;
            held.options = options;
            held.retain_handling = wanted.retain_handling;
            if grows {
                let places: Vec<PartitionOffset> = live_at
                    .iter()
                    .map(|(of, at)| (*of, session.behind.next(*of).unwrap_or(*at)))
                    .collect();
                session.begin_qos2(&places);
            }
        } else {
            self.catch_up.forget_candidates(key);
            // A session that is live in all partitions and will not be stored never reads records from before its
            // subscriptions.
            let needs_since = session.expiry_s > 0 || !session.behind.is_empty();
            self.quotas.add(session.account, Kind::Subscriptions, 1);
            session.subscriptions.push(Subscription {
                filter: filter.into(),
                options,
                retain_handling: wanted.retain_handling,
                since: if needs_since {
                    live_at.into()
                } else {
                    LazyBox::default()
                },
            });
        }
        let is_old = |(of, from): &PartitionOffset| *from < self.delivery.live_at(*of);
        if let Some(start) = start
            && start.cursors.iter().any(is_old)
        {
            let number = session.extras.next_replay;
            session.extras.next_replay = session.extras.next_replay.wrapping_add(1);
            let cursors = start.cursors.iter();
            session.extras.replays.push(Replay {
                number,
                filter: filter.into(),
                cursors: cursors.map(|(of, from)| Cursor::new(*of, *from)).collect(),
                until: Vec::new(),
                joined: false,
            });
        }
        let replaying = session.is_replaying(filter);
        self.routing.insert(
            filter,
            Subscriber {
                session: key,
                options,
                replaying,
            },
        );
        replaying
    }

    fn owe_retained(&mut self, key: SessionKey, filter: &str) {
        if is_sys(filter) {
            if let Some(conn) = self.clients.conn_of(key) {
                self.observe.await_sys(conn, filter, self.env);
            }
            return;
        }
        if !self.retained.lock().may_match(filter) {
            return;
        }
        if let Some(session) = self.clients.session_mut(key) {
            let cursors = &mut session.extras.retained;
            cursors.retain(|cursor| &*cursor.filter != filter);
            let as_of = RetainedCursor::as_of(cursors.back(), self.delivery.live());
            cursors.push_back(RetainedCursor::new(filter, as_of));
        }
    }

    /// Stores the changed subscriptions of a persistent session. Returns the offset for which the acknowledgement has
    /// to wait. If the change cannot be stored the connection is closed, because the change cannot be acknowledged.
    pub(super) fn store_change(
        &mut self,
        key: ConnKey,
        session: SessionKey,
        changed: bool,
    ) -> Result<Option<Offset>, ()> {
        if !changed {
            // A session may be large, and a client may repeat subscriptions that it already has as often as it likes.
            return Ok(self.store.pending());
        }
        if self
            .clients
            .session(session)
            .is_none_or(|session| session.expiry_s == 0)
        {
            return Ok(None);
        }
        lend!(self => Checkpointing).try_store_session(session).map(Some).map_err(|error| {
            if self.observe.may_log_client(self.env.now.mono_ms) {
                tracing::warn!(%error, "subscriptions cannot be stored, the connection is closed");
            }
            let cause = Cause::Reason(ReasonCode::QuotaExceeded);
            self.clients.close(key, cause, self.env, self.effects);
        })
    }
}
