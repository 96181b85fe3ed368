//! What one user and one tenant may use of shared limits, and that usage is counted correctly whatever happens.

mod cost;
mod counted;
mod shares;

use std::collections::BTreeMap;

use crate::engine::clients::charges::UNCOUNTED_BYTES;

use super::super::quotas::{Counts, Kind};
use super::super::session::Session;
use super::guarded::Guarded;
use super::member::V5;
use super::*;

const EXPIRY: &[Property<'static>] = &[Property::SessionExpiryInterval(60)];
const ACL: &str = "user ann\ntopic readwrite #\nuser bob\ntopic readwrite #\n";

fn broker() -> Guarded {
    let mut broker = Guarded::new(|_| {});
    broker.write("acl", ACL);
    broker.auth_service.reload().expect("the file is right");
    broker.rig.turn();
    broker
}

fn limited(kinds: &[(Kind, u64)]) -> Guarded {
    let mut broker = broker();
    let mut limits = QuotaLimits::default();
    for (kind, limit) in kinds {
        limits.user[*kind as usize] = *limit;
        limits.tenant[*kind as usize] = *limit;
    }
    broker.rig.engine.quotas.limit(limits);
    broker
}

fn fields<'a>(user: &'a str, client_id: &'a str, lasts: bool) -> ConnectFields<'a> {
    let mut fields = ConnectFields::new(V5, client_id);
    fields.username = Some(user);
    fields.password = Some(if user == "ann" { b"pw-a" } else { b"pw-b" });
    fields.clean_start = false;
    fields.keep_alive_s = 0;
    if lasts {
        fields.properties = EXPIRY;
    }
    fields
}

/// The counted bytes that a session holds for its client.
fn bytes_of(engine: &Engine, session: &Session) -> usize {
    let conn = session.conn.and_then(|key| engine.clients.conn(key));
    let waiting = session.offline.as_ref().and_then(|away| away.will.as_ref());
    let wills = [
        conn.and_then(|conn| conn.extras.will.as_deref()),
        waiting.map(|(_, will)| &**will),
    ];
    let wills = wills.into_iter().flatten();
    let will: usize = wills
        .map(|will| will.topic.len() + will.payload.len() + will.properties.len())
        .sum();
    let filters: usize = session
        .subscriptions
        .iter()
        .map(|held| held.filter.len())
        .sum();
    (session.client_id.len() + will + filters).saturating_sub(UNCOUNTED_BYTES as usize)
}

/// The usage of all users, recounted from the engine's state.
fn recount(engine: &Engine) -> Vec<(String, Counts)> {
    let mut users: BTreeMap<String, Counts> = BTreeMap::new();
    let mut groups: BTreeMap<String, std::collections::BTreeSet<_>> = BTreeMap::new();
    let quotas = &engine.quotas;
    let mut add = |account, kind: Kind, count: usize| {
        let name = format!("{:?}", quotas.user_of(account));
        users.entry(name).or_default()[kind as usize] += count as u64;
    };
    for (_, session) in engine.clients.sessions() {
        let Some(account) = session.account else {
            continue;
        };
        add(account, Kind::Sessions, usize::from(session.stored));
        add(account, Kind::Subscriptions, session.subscriptions.len());
        add(account, Kind::SharedMembers, session.groups().len());
        add(account, Kind::SessionBytes, bytes_of(engine, session));
        let name = format!("{:?}", quotas.user_of(account));
        groups
            .entry(name)
            .or_default()
            .extend(session.groups().iter().copied());
    }
    for (_, conn) in engine.clients.connections() {
        if let Some(account) = conn.account {
            add(account, Kind::Connections, 1);
        }
    }
    for (account, bytes) in engine.retained.lock().charges() {
        add(account, Kind::Retained, 1);
        add(account, Kind::RetainedBytes, bytes as usize);
    }
    let sessions = engine.clients.sessions();
    let bytes: usize = sessions.map(|(_, session)| bytes_of(engine, session)).sum();
    assert_eq!(
        engine.quotas.session_bytes(),
        bytes as u64,
        "of all together"
    );
    for (name, groups) in groups {
        users.entry(name).or_default()[Kind::SharedGroups as usize] = groups.len() as u64;
    }
    users.retain(|_, counts| counts.iter().any(|count| *count > 0));
    users.into_iter().collect()
}

/// The usage according to the quotas, without topics.
fn ledger(engine: &Engine) -> Vec<(String, Counts)> {
    let (mut users, _) = engine.quotas.held();
    for (_, counts) in &mut users {
        counts[Kind::Topics as usize] = 0;
    }
    users.retain(|(_, counts)| counts.iter().any(|count| *count > 0));
    users
}

/// Runs turns until nothing is in progress.
fn settle(broker: &mut Guarded) {
    for _ in 0..1000 {
        broker.rig.turn();
        let is_quiet = broker.rig.quiet_at().is_some() && !broker.rig.engine.is_behind_log();
        if is_quiet && !broker.rig.engine.has_more() && broker.rig.engine.quotas.claims() == 0 {
            return;
        }
        if !broker.rig.engine.has_more() {
            broker.rig.wait_for_disk();
        }
    }
    panic!("it does not come to rest");
}
