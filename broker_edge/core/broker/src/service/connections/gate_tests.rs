//! Tests how the gate assigns its slots, without sockets.

use std::net::SocketAddr;

use super::super::slots::QuotaScope;
use super::*;
use crate::auth::{Authority, users::Fingerprint};

const FAR: u64 = 1000;

fn gate(connections: u16, pending: u16, change: impl FnOnce(&mut Limits)) -> Arc<Gate> {
    let share = Share {
        connections: 1000,
        below: FAR,
    };
    let timeout = Duration::from_secs(10);
    let mut limits = Limits::new(share, connections, pending, None, None, timeout);
    change(&mut limits);
    Gate::new(ListenerKind::Flight, limits, Arc::default())
}

fn from(site: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, site], 9))
}

fn enter(gate: &Arc<Gate>, site: u8) -> Arc<Pass> {
    let (pass, _) = gate.enter(from(site), 9).expect("there is a place");
    pass
}

fn user(name: &str) -> Arc<Identity> {
    Authority::password_identity(name, Fingerprint(7), i64::MAX)
}

fn is_open(pass: &Pass) -> bool {
    pass.state() != PassState::Closed
}

#[test]
fn a_flood_of_one_address_closes_its_own_connections_only() {
    let gate = gate(100, 8, |_| {});
    let others = [enter(&gate, 1), enter(&gate, 2), enter(&gate, 3)];
    let flood: Vec<_> = (0..1000).map(|_| enter(&gate, 9)).collect();
    assert!(others.iter().all(|pass| is_open(pass)));
    assert_eq!(flood.iter().filter(|pass| is_open(pass)).count(), 5);
    assert!(
        flood[995..].iter().all(|pass| is_open(pass)),
        "the oldest go first"
    );
    // A connection from a new address also replaces one of the flood.
    let late = enter(&gate, 4);
    assert!(is_open(&late) && others.iter().all(|pass| is_open(pass)));
}

#[test]
fn one_that_has_spoken_outlives_those_that_have_not_and_one_that_is_checked_both() {
    let gate = gate(100, 4, |_| {});
    let (spoken, checked) = (enter(&gate, 1), enter(&gate, 1));
    spoken.spoke();
    checked.spoke();
    let checking = checked.begin_check();
    let second = Duration::from_secs(1);
    let silent: Vec<_> = (1..=10)
        .map(|n| gate.enter_at(from(1), 9, spoken.came + n * second))
        .map(|entered| entered.expect("there is a place").0)
        .collect();
    assert!(is_open(&spoken) && is_open(&checked));
    assert_eq!(silent.iter().filter(|pass| is_open(pass)).count(), 2);
    silent.iter().for_each(|pass| pass.spoke());
    let next = gate.enter_at(from(1), 9, spoken.came + 11 * second);
    let (next, _) = next.expect("there is a place");
    assert!(!is_open(&spoken) && is_open(&checked) && is_open(&next));
    drop(checking);
}

#[test]
fn a_new_request_outlives_the_unfinished_requests_that_came_before() {
    let gate = gate(100, 4, |_| {});
    let unfinished: Vec<_> = (0..4).map(|_| enter(&gate, 1)).collect();
    unfinished.iter().for_each(|pass| pass.spoke());
    let probe = enter(&gate, 1);
    let next: Vec<_> = (0..3).map(|_| enter(&gate, 1)).collect();
    assert!(is_open(&probe) && next.iter().all(|pass| is_open(pass)));
    assert!(
        !unfinished.iter().any(|pass| is_open(pass)),
        "the oldest go first"
    );
}

#[test]
fn a_health_probe_has_a_slot_when_all_others_are_taken() {
    let gate = gate(4, 4, |limits| limits.per_user = 4);
    let users: Vec<_> = (0..4).map(|_| enter(&gate, 1)).collect();
    for pass in &users {
        pass.let_in(&user("ann"), None, true)
            .expect("within the limit");
    }
    assert!(gate.is_full());
    let probes: Vec<_> = (0..9)
        .filter_map(|_| gate.enter_for_health(from(2), 9))
        .collect();
    assert_eq!(probes.len(), HEALTH_SLOTS);
    assert!(users.iter().chain(&probes).all(|pass| is_open(pass)));
    probes[0].leave();
    assert!(gate.enter_for_health(from(2), 9).is_some());
}

#[test]
fn addresses_that_hold_alike_leave_each_other_time() {
    let gate = gate(100, 4, |_| {});
    let first: Vec<_> = (0..4).map(|site| enter(&gate, site)).collect();
    assert_eq!(gate.enter(from(9), 9).err(), Some(Refused::Later));
    assert!(first.iter().all(|pass| is_open(pass)));
    first[2].leave();
    assert!(is_open(&enter(&gate, 9)));
}

#[test]
fn an_ipv6_network_is_one_address() {
    let gate = gate(100, 8, |limits| limits.per_site = Some(2));
    let enter = |text: &str| gate.enter(SocketAddr::new(text.parse().unwrap(), 9), 9);
    assert!(enter("2001:db8:1:2::1").is_ok() && enter("2001:db8:1:2::2").is_ok());
    let refused = enter("2001:db8:1:2:ffff::3").err();
    assert_eq!(refused, Some(Refused::For(Closed::PerAddress)));
    assert!(enter("2001:db8:1:3::1").is_ok());
}

#[test]
fn who_was_let_in_counts_against_the_user_and_no_more_against_the_address() {
    let gate = gate(8, 4, |limits| limits.per_site = Some(1));
    let mut held = Vec::new();
    for _ in 0..4 {
        let pass = enter(&gate, 1);
        pass.let_in(&user("ann"), None, true).expect("half of all");
        held.push(pass);
    }
    let fifth = enter(&gate, 1);
    assert!(fifth.let_in(&user("ann"), None, true).is_err());
    assert_eq!(fifth.state(), PassState::Pending);
    fifth
        .let_in(&user("bob"), None, true)
        .expect("another user");
    held[0].leave();
    let again = enter(&gate, 1);
    again
        .let_in(&user("ann"), None, true)
        .expect("a place is free");
    // A second call on the same connection does not count again.
    again
        .let_in(&user("ann"), None, true)
        .expect("it has its place");
}

#[test]
fn the_users_of_a_tenant_have_half_of_all_together() {
    let gate = gate(8, 4, |limits| limits.per_user = 2);
    let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
    let mut held = Vec::new();
    for name in ["a", "a", "b", "b"] {
        let pass = enter(&gate, 1);
        pass.let_in(&user(name), Some(&one), true).expect("half");
        held.push(pass);
    }
    let late = enter(&gate, 1);
    let refused = late.let_in(&user("c"), Some(&one), true).unwrap_err();
    assert_eq!((refused.of, refused.max), (QuotaScope::Tenant, 4));
    late.let_in(&user("d"), Some(&other), true)
        .expect("another");
    held[3].leave();
    enter(&gate, 1)
        .let_in(&user("c"), Some(&one), true)
        .expect("a place is free");
}

#[test]
fn clients_without_credentials_are_like_one_user_unless_all_are() {
    let guarded = gate(4, 4, |_| {});
    let passes: Vec<_> = (0..3).map(|site| enter(&guarded, site)).collect();
    let nobody = Arc::new(Identity::default());
    let taken: Vec<_> = passes
        .iter()
        .map(|pass| pass.let_in(&nobody, None, true).is_ok())
        .collect();
    assert_eq!(taken, [true, true, false]);
    // A connection that shows credentials frees its anonymous slot.
    passes[0].let_in(&user("ann"), None, true).expect("a user");
    assert!(passes[2].let_in(&nobody, None, true).is_ok());
    let open = gate(4, 4, |_| {});
    let all: Vec<_> = (0..4).map(|_| enter(&open, 1)).collect();
    assert!(
        all.iter()
            .all(|pass| pass.let_in(&nobody, None, false).is_ok())
    );
}

#[test]
fn descriptors_of_others_are_not_taken() {
    let gate = gate(100, 8, |_| {});
    let refused = gate.enter(from(1), FAR).err();
    assert_eq!(refused, Some(Refused::For(Closed::Descriptors)));
    assert!(gate.enter(from(1), FAR - 1).is_ok());
}

#[test]
fn connections_of_a_user_that_is_gone_have_to_show_other_credentials() {
    let gate = gate(100, 8, |_| {});
    let (pass, other) = (enter(&gate, 1), enter(&gate, 1));
    pass.let_in(&user("ann"), None, true).expect("a place");
    gate.review(&Authority::open());
    assert_eq!(
        (pass.state(), other.state()),
        (PassState::Pending, PassState::Pending)
    );
    assert!(gate.state.lock().users.is_empty());
    pass.let_in(&user("bob"), None, true).expect("a place");
    assert_eq!(pass.state(), PassState::In);
}

#[test]
fn nothing_is_left_of_connections_that_are_gone() {
    let gate = gate(100, 8, |_| {});
    for site in 0..50 {
        let pass = enter(&gate, site);
        match site % 3 {
            0 => pass.let_in(&user("ann"), None, true).expect("a place"),
            1 => pass.let_in(&Arc::default(), None, true).expect("a place"),
            _ => {}
        }
        pass.leave();
        pass.leave();
    }
    let state = gate.state.lock();
    assert!(state.passes.is_empty() && state.sites.is_empty() && state.users.is_empty());
    assert!(state.unknown.is_empty() && state.tenants.is_empty());
    assert_eq!((state.pending, state.anonymous), (0, 0));
}
