//! What sessions hold, charged to the accounts of their users. Whoever changes what a session holds reports it here.
//!
//! The bytes are those of filters with the names of shared groups, the will (including a delayed one), and the client
//! id: limits on the number of sessions and subscriptions do not limit memory by themselves. A session is counted again
//! after each change, from its current state; publishes and deliveries count nothing.

use std::sync::Arc;

use headwater_mqtt::Connect;
use headwater_mqtt::packet::connect;

use crate::auth::Rights;
use crate::engine::SessionKey;
use crate::engine::ids::GroupId;
use crate::engine::quotas::{Kind, Quotas};
use crate::engine::session::Session;
use crate::engine::session::connection::Will;

use super::Clients;

/// The first bytes of each session are not counted: the limits on sessions and connections bound them. So an ordinary
/// device, with a short will and a few filters, is admitted even when others have used up the bytes for all.
pub const UNCOUNTED_BYTES: u64 = 256;

impl Clients {
    /// Charges a session with everything it has to the account of its current user.
    pub(in crate::engine) fn charge(
        &mut self,
        key: SessionKey,
        rights: Option<&Arc<Rights>>,
        quotas: &mut Quotas,
    ) {
        let account = quotas.open(rights);
        let Some(session) = self.session_mut(key) else {
            return;
        };
        let before = std::mem::replace(&mut session.account, account);
        if before == account {
            // The account was opened a second time.
            return quotas.close(account);
        }
        let groups: &[GroupId] = session.groups();
        for group in groups {
            quotas.join(account, *group);
            quotas.leave(before, *group);
        }
        for (kind, count) in [
            (Kind::Sessions, u64::from(session.stored)),
            (Kind::Subscriptions, session.subscriptions.len() as u64),
            (Kind::SessionBytes, session.extras.counted_bytes),
        ] {
            quotas.add(account, kind, count);
            quotas.remove(before, kind, count);
        }
        quotas.close(before);
    }

    /// Charges all sessions again: restored sessions get their owner once the rights are known, and a user's tenant may
    /// have changed.
    pub(in crate::engine) fn charge_all(&mut self, quotas: &mut Quotas) {
        for key in self.session_keys() {
            let session = self.session(key);
            let rights = session.and_then(|session| session.rights.clone());
            self.charge(key, rights.as_ref(), quotas);
        }
    }

    /// Counts a session again: its filters or its will may have changed.
    pub(in crate::engine) fn recount_bytes(&mut self, key: SessionKey, quotas: &mut Quotas) {
        let Some(session) = self.session(key) else {
            return;
        };
        let bytes = self.counted(session, 0);
        let before = session.extras.counted_bytes;
        if bytes != before
            && let Some(session) = self.session_mut(key)
        {
            quotas.resize_session(session.account, before, bytes);
            session.extras.counted_bytes = bytes;
            session.extras.trim();
        }
    }

    /// The counted bytes that one more filter adds to a session.
    pub(in crate::engine) fn growth_by_filter(&self, session: &Session, filter: &str) -> u64 {
        let bytes = self.counted(session, filter.len());
        bytes.saturating_sub(session.extras.counted_bytes)
    }

    /// The counted bytes that a connecting client adds: to those of a session that it continues, or anew.
    pub(in crate::engine) fn growth_by_connect(&self, connect: &Connect<'_>) -> u64 {
        let held = self.by_id(connect.client_id);
        let stays = held.filter(|session| !connect.clean_start && session.expiry_s > 0);
        let filters = stays.map_or(0, filter_bytes);
        let will = connect.will.as_ref().map_or(0, wanted_bytes);
        let before = held.map_or(0, |session| session.extras.counted_bytes);
        above_uncounted(connect.client_id.len() + filters + will).saturating_sub(before)
    }

    fn counted(&self, session: &Session, more: usize) -> u64 {
        let will = self.will_of(session).map_or(0, will_bytes);
        above_uncounted(session.client_id.len() + filter_bytes(session) + will + more)
    }

    /// The will of a connected client, or the one that waits for its delay.
    fn will_of<'a>(&'a self, session: &'a Session) -> Option<&'a Will> {
        let waiting = session.offline.as_ref().and_then(|away| away.will.as_ref());
        let conn = session.conn.and_then(|key| self.conn(key));
        waiting
            .map(|(_, will)| &**will)
            .or_else(|| conn?.extras.will.as_deref())
    }
}

/// A session is gone; its groups and its stored state were discharged before.
pub(in crate::engine) fn discharge(session: &Session, quotas: &mut Quotas) {
    let (account, subscriptions) = (session.account, session.subscriptions.len() as u64);
    quotas.remove(account, Kind::Subscriptions, subscriptions);
    quotas.resize_session(account, session.extras.counted_bytes, 0);
    quotas.close(account);
}

fn above_uncounted(bytes: usize) -> u64 {
    (bytes as u64).saturating_sub(UNCOUNTED_BYTES)
}

fn filter_bytes(session: &Session) -> usize {
    let held = session.subscriptions.iter();
    held.map(|held| held.filter.len()).sum()
}

fn will_bytes(will: &Will) -> usize {
    will.topic.len() + will.payload.len() + will.properties.len()
}

/// The same for a will that is not accepted yet.
fn wanted_bytes(will: &connect::Will<'_>) -> usize {
    let mut properties = Vec::new();
    will.properties.copy_forwardable(&mut properties);
    will.topic.len() + will.payload.len() + properties.len()
}
