//! UNSUBSCRIBE: what a session holds for its filters goes.

use headwater_mqtt::packet::unsubscribe::Unsubscribe;
use headwater_mqtt::{ReasonCode, encode};

use crate::engine::ConnKey;
use crate::engine::delivery::replies::Replies;
use crate::engine::ids::Waiter;
use crate::engine::quotas::Kind;
use crate::engine::routing::position::split_filter;
use crate::engine::session::ack::PacketKind;
use crate::engine::shared_groups::is_shared;
use crate::engine::shared_groups::membership::Membership;

use super::subscribe::Subscribing;

impl Subscribing<'_> {
    /// Handles an UNSUBSCRIBE.
    pub fn unsubscribe(&mut self, key: ConnKey, unsubscribe: &Unsubscribe<'_>) {
        let Some(session_key) = self.clients.session_key(key) else {
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
                self.catch_up.forget_candidates(session_key);
                session.subscriptions.retain(|held| &*held.filter != filter);
                if let Some(extras) = session.extras.present_mut() {
                    extras.replays.retain(|replay| &*replay.filter != filter);
                    extras.retained.retain(|cursor| &*cursor.filter != filter);
                }
                session.forget_assigned();
                if is_shared(filter) {
                    lend!(self => Membership).leave(session_key, filter);
                } else {
                    self.routing.remove(filter, session_key);
                }
                // Records that waited behind its retained messages may be sent.
                let waiter = Waiter::Session(session_key);
                self.catch_up.wake(waiter, self.clients, self.groups);
            }
            codes.push(if held {
                ReasonCode::Success
            } else {
                ReasonCode::NoSubscriptionExisted
            });
        }
        let changed = codes.contains(&ReasonCode::Success);
        self.clients.recount_bytes(session_key, self.quotas);
        let Ok(after) = self.store_change(key, session_key, changed) else {
            return;
        };
        let Some(conn) = self.clients.conn(key) else {
            return;
        };
        let mut bytes = Vec::new();
        encode::unsuback(&mut bytes, conn.version, unsubscribe.packet_id, &[], &codes);
        lend!(self => Replies).queue_packet(key, after, PacketKind::Other, bytes);
    }
}
