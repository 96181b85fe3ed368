//! How a starting broker restores the stored sessions.

use std::sync::Arc;

use headwater_mqtt::packet::subscribe::RetainHandling;
use headwater_mqtt::{QoS, Version};

use crate::auth::Authority;
use crate::engine::clients::timers::Timer;
use crate::engine::routing::router::Options;
use crate::engine::session::cursors::Cursor;
use crate::engine::session::replay::Replay;
use crate::engine::session::{NEVER_EXPIRES, Offline, Session, Subscription};
use crate::engine::shared_groups::is_shared;
use crate::engine::shared_groups::membership::Membership;
use crate::engine::stored::{self, Names, decode, share};

use super::checkpoint::Checkpointing;

impl Checkpointing<'_> {
    /// Restores the sessions of the state store. `authority` knows the rights of their owners.
    pub fn restore_sessions(&mut self, authority: &Arc<Authority>) {
        let mut found = Vec::new();
        self.store
            .state
            .for_each_prefix(stored::session::PREFIX, |key, value| {
                let client_id = &key[stored::session::PREFIX.len()..];
                found.push((client_id.to_owned(), value.clone()));
            });
        for (client_id, value) in found {
            let session = match decode::<stored::session::Session>(&value) {
                Ok(session) => session,
                Err(error) => {
                    tracing::error!(%error, client_id, "a stored session cannot be read and is skipped");
                    continue;
                }
            };
            let cursors = self.store.get(&stored::cursors::key(&client_id));
            let cursors = cursors
                .and_then(|value| decode(&value).ok())
                .unwrap_or_default();
            self.restore(&client_id, session, &cursors, authority);
        }
        self.groups.skip_restored(self.clients);
        self.forget_left_groups();
    }

    fn restore(
        &mut self,
        client_id: &str,
        stored: stored::session::Session,
        cursors: &stored::cursors::Cursors,
        authority: &Arc<Authority>,
    ) {
        let life = if stored.life == 0 {
            self.store.unique_number()
        } else {
            stored.life
        };
        let mut session = Session::new(client_id.into(), Version::V311, life);
        session.stored = true;
        session.rights = stored.user.map(|user| authority.stored_rights(&user));
        self.quotas.note_stored(None, true);
        session.expiry_s = stored.expiry_s.unwrap_or(NEVER_EXPIRES);
        let now = self.env.now;
        let away_since_us = stored.away_since_us.unwrap_or(now.wall_us).min(now.wall_us);
        let mut away = Offline::since(away_since_us);
        let names = Names(&self.env.partitions);
        for partition in self.env.data_partitions() {
            // A partition added after the session was stored is read from its beginning.
            let next = cursors.cursors.get(&names.of(partition)).copied();
            let next = names.within_log(partition, next.unwrap_or(0));
            session.behind.fall_behind(Cursor::new(partition, next));
        }
        session.subscriptions = stored
            .subscriptions
            .iter()
            .map(|held| self.restored_subscription(held))
            .collect();
        let joined = &cursors.joined;
        for (number, (filter, cursors)) in (0..).zip(&cursors.replays) {
            let Some(subscription) = session.subscription(filter) else {
                continue;
            };
            let has_joined = joined.contains(filter);
            let until = if has_joined {
                subscription.since.to_vec()
            } else {
                Vec::new()
            };
            session.extras.replays.push(Replay {
                number,
                filter: filter.as_str().into(),
                cursors: names
                    .by_partition(cursors)
                    .into_iter()
                    .map(|(of, next)| Cursor::new(of, next))
                    .collect(),
                joined: has_joined && until.is_empty(),
                until,
            });
            session.extras.next_replay = number + 1;
        }
        for held in &stored.subscriptions {
            if is_shared(&held.filter) {
                let user = session.owner().map(str::to_owned);
                self.restore_group(&held.filter, held.tenant.as_deref(), user.as_deref());
            }
        }
        self.restore_sent(&mut session);
        let away_ms = u64::try_from(now.wall_us - away_since_us).unwrap_or(0) / 1000;
        let expiry_ms = u64::from(session.expiry_s) * 1000;
        let expires = session.expiry_s != NEVER_EXPIRES;
        let held: Vec<(Box<str>, Options)> = session
            .subscriptions
            .iter()
            .map(|held| (held.filter.clone(), held.options))
            .collect();
        let due_ms = now.mono_ms + expiry_ms.saturating_sub(away_ms);
        away.expiry_due_ms = due_ms;
        session.offline = Some(away);
        session.is_unlisted = true;
        let key = self.clients.insert(session);
        for (of, (filter, options)) in stored.subscriptions.iter().zip(held) {
            if is_shared(&filter) {
                let name = (&*filter, of.tenant.as_deref());
                lend!(self => Membership).join_restored(key, name, options);
            } else {
                self.routing.insert_away(&filter);
            }
        }
        self.restore_will(key);
        self.clients.recount_bytes(key, self.quotas);
        if expires {
            self.clients.set_timer(due_ms, Timer::Expiry(key));
        }
    }

    /// Creates the group of a subscription that is being restored. It begins at its stored cursors.
    fn restore_group(&mut self, shown: &str, tenant: Option<&str>, user: Option<&str>) {
        let Some((id, is_new)) = lend!(self => Membership).group_of(shown, tenant, user) else {
            tracing::error!(
                name = shown,
                "a stored shared group exceeds the limit and is skipped"
            );
            return;
        };
        let group = self.groups.get(id).filter(|_| is_new);
        let value = group.and_then(|group| self.store.get(&share::key(group.name())));
        if let Some(value) = value {
            self.groups.restore_cursors(id, &value, self.env);
        }
    }

    /// Removes the cursors of groups without members.
    fn forget_left_groups(&mut self) {
        let keys = self.groups.keys();
        let mut left = Vec::new();
        self.store.state.for_each_prefix(share::PREFIX, |key, _| {
            if !keys.contains(key) {
                left.push((key.to_owned(), Vec::new()));
            }
        });
        if !left.is_empty() {
            let failure =
                "cursors of ended shared groups cannot be removed from the state store now";
            self.store.try_write(&left, failure);
        }
    }

    fn restored_subscription(&self, held: &stored::session::Subscription) -> Subscription {
        Subscription {
            filter: held.filter.as_str().into(),
            options: Options {
                qos: QoS::from_u8(held.qos).unwrap_or(QoS::AtLeastOnce),
                no_local: held.no_local,
                retain_as_published: held.retain_as_published,
                id: held.id,
                offsets: held.offsets,
                offset_topics: held.offset_topics,
            },
            retain_handling: match held.retain_handling {
                1 => RetainHandling::SendIfNew,
                2 => RetainHandling::DoNotSend,
                _ => RetainHandling::Send,
            },
            since: Names(&self.env.partitions).by_partition(&held.since).into(),
        }
    }
}
