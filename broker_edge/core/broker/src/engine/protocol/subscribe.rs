//! SUBSCRIBE and UNSUBSCRIBE: the subscriptions of a session, their start offsets, and the retained messages they get.

use headwater_log::Offset;
use headwater_mqtt::packet::subscribe::{RetainHandling, Subscribe};
use headwater_mqtt::packet::unsubscribe::Unsubscribe;
use headwater_mqtt::topic::parse_shared;
use headwater_mqtt::{PacketId, Property, QoS, ReasonCode, encode};

use crate::auth::Access;
use crate::engine::containers::lazy_box::LazyBox;
use crate::engine::effects::Cause;
use crate::engine::ids::PartitionIndex;
use crate::engine::operate::sys::is_sys;
use crate::engine::quotas::Kind;
use crate::engine::retained::retained_cursor::RetainedCursor;
use crate::engine::routing::position::{
    Position, PositionedFilter, Refusal, ResetPolicy, StartOffsets, split_filter,
};
use crate::engine::routing::router::{Options, Subscriber};
use crate::engine::session::ack::PacketKind;
use crate::engine::session::{Replay, Subscription};
use crate::engine::shared_groups::{filter_of, is_shared};
use crate::engine::{ConnKey, Engine, SessionKey};

/// The parts of one SUBSCRIBE that apply to all its filters.
struct Common<'a> {
    id: u32,
    position: Option<&'a str>,
    policy: Result<ResetPolicy, Refusal>,
    is_v5: bool,
}

/// What the SUBACK reports besides its codes.
#[derive(Default)]
struct Report {
    starts: Vec<(PartitionIndex, Offset)>,
    gaps: Vec<String>,
    sentence: Option<String>,
    /// A start position was given.
    located: bool,
    /// The session has to be stored.
    changed: bool,
}

impl Engine {
    pub(super) fn handle_subscribe(&mut self, key: ConnKey, subscribe: &Subscribe<'_>) {
        let Some((session, is_v5)) = self.session_of(key) else {
            return;
        };
        let common = Common {
            id: subscribe.properties.subscription_identifier().unwrap_or(0),
            position: subscribe.properties.user_property("stream-offset"),
            policy: ResetPolicy::of(&subscribe.properties),
            is_v5,
        };
        let mut report = Report::default();
        let mut codes = Vec::with_capacity(subscribe.subscriptions.len());
        for wanted in subscribe.subscriptions.iter() {
            let located = split_filter(wanted.filter);
            let options = Options {
                qos: wanted.options.qos.min(self.env.settings.mqtt.qos_max()),
                no_local: wanted.options.no_local,
                retain_as_published: wanted.options.retain_as_published,
                id: common.id,
                offsets: is_v5 && (common.position.is_some() || located.position.is_some()),
                offset_topics: located.offset_topics,
            };
            match self.subscribe(
                session,
                &located,
                options,
                wanted.options.retain_handling,
                &common,
                &mut report,
            ) {
                Ok(()) => codes.push(match options.qos {
                    QoS::AtMostOnce => ReasonCode::GRANTED_QOS0,
                    QoS::AtLeastOnce => ReasonCode::GrantedQos1,
                    QoS::ExactlyOnce => ReasonCode::GrantedQos2,
                }),
                Err(refusal) => {
                    self.observe.turn_metrics.refuse("suback", refusal.reason);
                    codes.push(refusal.reason);
                    report.sentence.get_or_insert(refusal.sentence);
                }
            }
        }
        self.recount_bytes(session);
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
            self.format_offsets(&report.starts),
            self.format_offsets(&self.ends_of(&report.starts)),
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
        self.queue_packet(key, after, PacketKind::Suback, bytes);
    }

    fn ends_of(&self, starts: &[(PartitionIndex, Offset)]) -> Vec<(PartitionIndex, Offset)> {
        starts
            .iter()
            .map(|(partition, _)| (*partition, self.delivery.dispatched[partition.index()]))
            .collect()
    }

    /// Adds one subscription.
    fn subscribe(
        &mut self,
        key: SessionKey,
        located: &PositionedFilter<'_>,
        options: Options,
        retain_handling: RetainHandling,
        common: &Common<'_>,
        report: &mut Report,
    ) -> Result<(), Refusal> {
        let filter = located.filter;
        self.check_filter(key, filter)?;
        self.check_quotas(key, filter)?;
        self.check_access(key, filter, Access::Subscribe)?;
        let position = located.position.or(common.position);
        let shared = filter_of(filter);
        // A group has one cursor, whoever subscribes.
        let held = match shared {
            Some(_) => {
                let name = self.group_name(key, filter);
                self.groups.by_name(&name).is_some()
            }
            None => self
                .clients
                .session(key)
                .is_some_and(|session| session.subscription(filter).is_some()),
        };
        let start = match position {
            Some(text) if !held => {
                report.located = true;
                let position = Position::parse(text)?;
                if position != Position::Latest {
                    self.check_access(key, filter, Access::Replay)?;
                }
                let policy = common.policy.as_ref().map_err(|refusal| Refusal {
                    reason: refusal.reason,
                    sentence: refusal.sentence.clone(),
                })?;
                Some(self.start_of(shared.unwrap_or(filter), &position, *policy)?)
            }
            _ => None,
        };
        let before = self
            .clients
            .session(key)
            .and_then(|session| session.subscription(filter));
        report.changed |= start.is_some()
            || before.is_none_or(|held| {
                held.options != options || held.retain_handling != retain_handling
            });
        if shared.is_some() {
            self.put_shared(key, filter, options, retain_handling, start.as_ref());
            if let Some(start) = start {
                report.starts.extend(start.cursors);
                report.gaps.extend(start.gaps);
            }
            return Ok(());
        }
        let sends_retained = match retain_handling {
            RetainHandling::Send => true,
            RetainHandling::SendIfNew => !held,
            RetainHandling::DoNotSend => false,
        };
        let replays = self.put_subscription(key, filter, options, retain_handling, start, report);
        if sends_retained && !replays {
            self.owe_retained(key, filter);
        }
        debug_assert!(common.is_v5 || common.id == 0);
        Ok(())
    }

    /// Why nobody may subscribe to this filter, if there is a reason.
    fn check_filter(&self, key: SessionKey, filter: &str) -> Result<(), Refusal> {
        let refuse = |reason, sentence: String| Err(Refusal { reason, sentence });
        let inner = match parse_shared(filter) {
            Ok(shared) => shared.map_or(filter, |shared| shared.filter),
            Err(error) => return refuse(ReasonCode::TopicFilterInvalid, error.to_string()),
        };
        if is_shared(filter) {
            self.check_group(&self.group_name(key, filter))?;
        }
        if headwater_mqtt::topic::check_filter(inner.as_bytes()).is_err() {
            return refuse(
                ReasonCode::TopicFilterInvalid,
                "there is no filter after the position".to_owned(),
            );
        }
        let levels = 1 + inner.bytes().filter(|byte| *byte == b'/').count();
        let levels_max = usize::from(self.env.settings.mqtt.max_topic_levels);
        if levels > levels_max {
            return refuse(
                ReasonCode::TopicFilterInvalid,
                format!("a filter has at most {levels_max} levels"),
            );
        }
        let limits = &self.env.settings.mqtt;
        if filter.len() > limits.max_topic_bytes as usize {
            let sentence = format!("a filter has at most {} bytes", limits.max_topic_bytes);
            return refuse(ReasonCode::TopicFilterInvalid, sentence);
        }
        if !limits.wildcard_available && filter.contains(['+', '#']) {
            let sentence = "wildcards are not available".to_owned();
            return refuse(ReasonCode::WildcardSubscriptionsNotSupported, sentence);
        }
        let subscriptions_max = self.env.settings.mqtt.max_subscriptions as usize;
        let full = self.clients.session(key).is_some_and(|session| {
            session.subscriptions.len() >= subscriptions_max
                && session.subscription(filter).is_none()
        });
        if full {
            let sentence = format!("a session has at most {subscriptions_max} subscriptions");
            return refuse(ReasonCode::QuotaExceeded, sentence);
        }
        let bytes_max = self.env.settings.mqtt.max_filter_bytes.as_usize();
        let is_long = self.clients.session(key).is_some_and(|session| {
            let held = session.subscriptions.iter();
            session.subscription(filter).is_none()
                && held.map(|held| held.filter.len()).sum::<usize>() + filter.len() > bytes_max
        });
        if is_long {
            let sentence = format!("the filters of a session have at most {bytes_max} bytes");
            return refuse(ReasonCode::QuotaExceeded, sentence);
        }
        Ok(())
    }

    /// Whether the client may subscribe to a filter, or replay what it matches.
    fn check_access(&self, key: SessionKey, filter: &str, access: Access) -> Result<(), Refusal> {
        if self.may_filter(key, access, filter) {
            return Ok(());
        }
        let what = match access {
            Access::Replay => "replaying",
            _ => "subscribing to",
        };
        self.env.metrics.auth.subscriptions_denied.inc();
        if let Some(conn) = self.clients.conn_of(key) {
            self.audit(conn, "subscribe", "acl");
        }
        Err(Refusal {
            reason: ReasonCode::NotAuthorized,
            sentence: format!("{what} this filter is not allowed"),
        })
    }

    /// Writes the subscription into the session and the index. Returns whether it replays.
    fn put_subscription(
        &mut self,
        key: SessionKey,
        filter: &str,
        options: Options,
        retain_handling: RetainHandling,
        start: Option<StartOffsets>,
        report: &mut Report,
    ) -> bool {
        let live_at = self.live_at(filter);
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
            held.retain_handling = retain_handling;
            if grows {
                let places: Vec<(PartitionIndex, Offset)> = live_at
                    .iter()
                    .map(|(partition, at)| (*partition, session.read_offset(*partition, *at)))
                    .collect();
                session.begin_qos2(&places);
            }
        } else {
            self.catch_up.candidate_cache.forget(key);
            // A session that is live in all partitions and will not be stored never reads records from before its
            // subscriptions.
            let needs_since = session.expiry_s > 0 || !session.behind.is_empty();
            self.quotas.add(session.account, Kind::Subscriptions, 1);
            session.subscriptions.push(Subscription {
                filter: filter.into(),
                options,
                retain_handling,
                since: if needs_since {
                    live_at.into()
                } else {
                    LazyBox::default()
                },
            });
        }
        if let Some(start) = start {
            let dispatched = &self.delivery.dispatched;
            if start
                .cursors
                .iter()
                .any(|(partition, from)| *from < dispatched[partition.index()])
            {
                let number = session.next_replay;
                session.next_replay = session.next_replay.wrapping_add(1);
                let cursors = start.cursors.clone();
                session.replays.push(Replay {
                    number,
                    filter: filter.into(),
                    cursors,
                    until: Vec::new(),
                    joined: false,
                });
            }
            report.starts.extend(start.cursors);
            report.gaps.extend(start.gaps);
        }
        let replaying = session.is_replaying(filter);
        self.routing.router.insert(
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
            return self.queue_sys(key, filter);
        }
        if !self.retained.lock().may_match(filter) {
            return;
        }
        if let Some(session) = self.clients.session_mut(key) {
            let cursors = &mut session.extras.retained;
            cursors.retain(|cursor| &*cursor.filter != filter);
            let as_of = RetainedCursor::as_of(cursors.back(), &self.delivery.dispatched);
            cursors.push_back(RetainedCursor::new(filter, as_of));
        }
    }

    pub(super) fn handle_unsubscribe(&mut self, key: ConnKey, unsubscribe: &Unsubscribe<'_>) {
        let Some((session_key, _)) = self.session_of(key) else {
            return;
        };
        let mut codes = Vec::with_capacity(unsubscribe.filters.len());
        for filter in unsubscribe.filters.iter() {
            let filter = split_filter(filter).filter;
            let Some(session) = self.clients.session_mut(session_key) else {
                return;
            };
            let held = session.subscription(filter).is_some();
            if held {
                self.quotas.remove(session.account, Kind::Subscriptions, 1);
                self.catch_up.candidate_cache.forget(session_key);
                session.subscriptions.retain(|held| &*held.filter != filter);
                session.replays.retain(|replay| &*replay.filter != filter);
                session.forget_assigned();
                if let Some(extras) = session.extras.present_mut() {
                    extras.retained.retain(|cursor| &*cursor.filter != filter);
                }
                if is_shared(filter) {
                    self.leave_group(session_key, filter);
                } else {
                    self.routing.router.remove(filter, session_key);
                }
                // Records that waited behind its retained messages may be sent.
                self.wake_session(session_key);
            }
            codes.push(if held {
                ReasonCode::Success
            } else {
                ReasonCode::NoSubscriptionExisted
            });
        }
        let changed = codes.contains(&ReasonCode::Success);
        self.recount_bytes(session_key);
        let Ok(after) = self.store_change(key, session_key, changed) else {
            return;
        };
        let Some(conn) = self.clients.conn(key) else {
            return;
        };
        let mut bytes = Vec::new();
        encode::unsuback(&mut bytes, conn.version, unsubscribe.packet_id, &[], &codes);
        self.queue_packet(key, after, PacketKind::Other, bytes);
    }

    fn session_of(&self, key: ConnKey) -> Option<(SessionKey, bool)> {
        let conn = self.clients.conn(key)?;
        Some((conn.session?, conn.is_v5()))
    }

    /// Stores the changed subscriptions of a persistent session. Returns the offset for which the acknowledgement has
    /// to wait. If the change cannot be stored the connection is closed, because the change cannot be acknowledged.
    fn store_change(
        &mut self,
        key: ConnKey,
        session: SessionKey,
        changed: bool,
    ) -> Result<Option<Offset>, ()> {
        if !changed {
            // A session may be large, and a client may repeat subscriptions that it already has as often as it likes.
            return Ok(self.state_pending());
        }
        if self
            .clients
            .session(session)
            .is_none_or(|session| session.expiry_s == 0)
        {
            return Ok(None);
        }
        self.try_store_session(session).map(Some).map_err(|error| {
            if self.may_log_client() {
                tracing::warn!(%error, "subscriptions cannot be stored, the connection is closed");
            }
            self.close(key, Cause::Reason(ReasonCode::QuotaExceeded));
        })
    }
}
