//! Tests how the gate assigns its slots, without sockets.

use std::net::SocketAddr;
use std::time::Duration;

use super::super::pass::PassState;
use super::super::slots::QuotaScope;
use super::*;
use crate::auth::{Authority, users::Fingerprint};
use crate::descriptors::Share;

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

/// A gate with this many entry slots, whose other slots users hold.
fn full_gate(entry: usize, change: impl FnOnce(&mut Limits)) -> (Arc<Gate>, Vec<Arc<Pass>>) {
    let gate = gate(4, 4, |limits| {
        (limits.per_user, limits.entry) = (4, entry);
        change(limits);
    });
    let users: Vec<_> = (0..4).map(|_| enter(&gate, 1)).collect();
    for pass in &users {
        pass.let_in(&user("ann"), None, true)
            .expect("within the limit");
    }
    (gate, users)
}

#[test]
fn a_new_connection_has_an_entry_slot_when_users_hold_all_others() {
    let (gate, users) = full_gate(8, |_| {});
    let new: Vec<_> = (0..1000).map(|_| enter(&gate, 2)).collect();
    assert!(new[992..].iter().chain(&users).all(|pass| is_open(pass)));
    assert_eq!(new.iter().filter(|pass| is_open(pass)).count(), 8);
    // A request that is no probe waits for another slot.
    let now = Instant::now();
    let last = &new[999];
    assert_eq!(gate.move_from_entry(last, now), Err(Refused::Later));
    users[0].leave();
    assert_eq!(gate.move_from_entry(last, now), Ok(()));
    assert_eq!(gate.move_from_entry(last, now), Ok(()), "it has its slot");
    assert_eq!(gate.state.lock().entry, 7);
}

#[test]
fn an_entry_slot_is_left_by_the_address_with_the_most_and_there_by_the_oldest_quiet_one() {
    let (gate, _users) = full_gate(4, |_| {});
    let others = [enter(&gate, 2), enter(&gate, 3)];
    let busy = enter(&gate, 4);
    let at = |after_ms| busy.came + Duration::from_millis(after_ms);
    let quiet = gate.enter_at(from(4), 9, at(10)).expect("an entry slot").0;
    busy.spoke_at(at(15));
    let next = gate.enter_at(from(4), 9, at(20)).expect("an entry slot").0;
    assert!(!is_open(&quiet) && is_open(&busy));
    let last = gate
        .enter_at(from(5), 9, at(1000))
        .expect("an entry slot")
        .0;
    assert!(!is_open(&busy) && is_open(&next) && is_open(&last));
    assert!(others.iter().all(|pass| is_open(pass)));
}

#[test]
fn a_flood_passes_from_the_entry_slots_to_the_others_and_closes_its_oldest() {
    let gate = gate(100, 8, |limits| limits.entry = 4);
    let quiet = enter(&gate, 2);
    let flood: Vec<_> = (0..300).map(|_| enter(&gate, 3)).collect();
    assert!(is_open(&quiet), "of another address");
    assert!(!flood.iter().take(280).any(|pass| is_open(pass)));
    assert!(flood[296..].iter().all(|pass| is_open(pass)));
}

#[test]
fn an_address_at_its_limit_has_entry_slots_and_no_other() {
    let gate = gate(100, 8, |limits| {
        (limits.per_site, limits.entry) = (Some(1), 4)
    });
    let (first, probe) = (enter(&gate, 1), enter(&gate, 1));
    assert!(is_open(&first) && is_open(&probe));
    let refused = gate.move_from_entry(&probe, Instant::now());
    assert_eq!(refused, Err(Refused::For(Closed::PerAddress)));
    let limit = gate.limits().behind(Closed::PerAddress);
    assert_eq!(limit, (1, "max_connections_per_ip"));
    assert_eq!(gate.state.lock().pending, 1);
}

#[test]
fn networks_that_hold_alike_leave_each_other_time() {
    let gate = gate(100, 4, |_| {});
    let far = |network: u8| SocketAddr::from(([198, 51, network, 7], 9));
    let enter = |network| gate.enter(far(network), 9).map(|(pass, _)| pass);
    let first: Vec<_> = (0..4).map(|n| enter(n).expect("a place")).collect();
    assert_eq!(enter(9).err(), Some(Refused::Later));
    assert!(first.iter().all(|pass| is_open(pass)));
    first[2].leave();
    assert!(is_open(&enter(9).expect("a place")));
}

/// The addresses of one network that a flood comes from: /24, the same mapped, and /48 with a /64 for each connection.
fn networks() -> [fn(u16) -> SocketAddr; 3] {
    [
        |n| SocketAddr::from(([203, 0, 113, n.to_be_bytes()[1]], 9)),
        |n| SocketAddr::from(([0, 0, 0, 0, 0, 0xffff, 0xcb00, 0x7100 | (n & 255)], 9)),
        |n| SocketAddr::from(([0x2001, 0xdb8, 7, n, 0, 0, 0, 1], 9)),
    ]
}

#[test]
fn a_flood_of_one_network_closes_its_own_connections_only_and_keeps_nobody_waiting() {
    for network in networks() {
        let gate = gate(10_000, 64, |_| {});
        let honest: Vec<_> = (1..=10).map(|site| enter(&gate, site)).collect();
        let mut flood = Vec::new();
        for number in 0..1000 {
            let entered = gate.enter(network(number), 9);
            let (pass, _) = entered.expect("nobody waits behind the flood");
            // One byte: it is not silent.
            pass.spoke();
            flood.push(pass);
            if number % 100 == 0 {
                let site = u8::try_from(number / 100).expect("small") + 20;
                let late = gate.enter(from(site), 9).expect("nor does an honest one");
                late.0.leave();
            }
        }
        assert!(honest.iter().all(|pass| is_open(pass)));
        assert!(
            flood[950..].iter().all(|pass| is_open(pass)),
            "the oldest go"
        );
        assert_eq!(flood.iter().filter(|pass| is_open(pass)).count(), 54);
    }
}

#[test]
fn an_entry_slot_is_left_by_the_network_with_the_most() {
    for network in networks() {
        let (gate, users) = full_gate(16, |_| {});
        // Two connections of one address, which is more than any of the flood holds.
        let honest = [enter(&gate, 2), enter(&gate, 2)];
        let flood: Vec<_> = (0..200)
            .map(|number| gate.enter(network(number), 9).expect("an entry slot").0)
            .collect();
        assert!(honest.iter().chain(&users).all(|pass| is_open(pass)));
        assert_eq!(flood.iter().filter(|pass| is_open(pass)).count(), 14);
    }
}

#[test]
fn in_a_network_the_address_with_the_most_closes_its_own_oldest() {
    let gate = gate(100, 8, |_| {});
    let neighbours: Vec<_> = (1..=3).map(|site| enter(&gate, site)).collect();
    let flood: Vec<_> = (0..5).map(|_| enter(&gate, 9)).collect();
    // Of another network, of a neighbour, and of the flood.
    let other = gate.enter(networks()[0](1), 9).expect("a place").0;
    let neighbour = enter(&gate, 4);
    let last = enter(&gate, 9);
    let open: Vec<bool> = flood.iter().map(|pass| is_open(pass)).collect();
    assert_eq!(open, [false, false, false, true, true]);
    let kept = neighbours.iter().chain([&other, &neighbour, &last]);
    assert!(kept.into_iter().all(|pass| is_open(pass)));
}

#[test]
fn the_network_with_the_most_pays_for_its_next_connection_even_with_less_than_half() {
    let gate = gate(100, 8, |_| {});
    let honest: Vec<_> = (0..5)
        .map(|n| gate.enter(SocketAddr::from(([198, 51, n, 7], 9)), 9))
        .map(|entered| entered.expect("a place").0)
        .collect();
    let flood: Vec<_> = (1..=100).map(|site| enter(&gate, site)).collect();
    assert!(honest.iter().all(|pass| is_open(pass)));
    assert_eq!(flood.iter().filter(|pass| is_open(pass)).count(), 3);
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
