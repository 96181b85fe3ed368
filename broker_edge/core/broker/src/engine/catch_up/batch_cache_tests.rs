//! Which session reads first, what a grant allows, and how long a batch is held.

use super::*;

const P: PartitionIndex = PartitionIndex(1);

fn session(number: u64) -> Waiter {
    Waiter::Session(SessionKey::from_bits(number))
}

#[test]
fn the_lowest_read_first_and_now_and_then_one_that_the_round_has_come_to() {
    let mut cache = BatchCache::default();
    for number in 1..=8 {
        cache.wait(session(number), (P, Offset(100 * number)));
    }
    cache.rotation = (P, Offset(650));
    let order: Vec<_> = (0..8).map(|_| cache.next(0)).collect();
    let expected = [1, 2, 3, 7, 4, 5, 6, 8];
    assert_eq!(order, expected.map(|number| Some(session(number))));
    assert_eq!(cache.next(0), None);
}

#[test]
fn a_grant_is_for_one_session_and_one_read() {
    let mut cache = BatchCache::default();
    cache.wait(session(1), (P, Offset(5)));
    assert_eq!(cache.next(0), Some(session(1)));
    assert!(!cache.take_grant(session(2)));
    assert!(cache.take_grant(session(1)) && !cache.take_grant(session(1)));
    cache.wait(session(1), (P, Offset(5)));
    assert_eq!(cache.next(0), Some(session(1)));
    cache.revoke_grant();
    assert!(!cache.take_grant(session(1)));
}

#[test]
fn how_long_a_batch_is_held_follows_how_long_clients_take() {
    let mut cache = BatchCache::default();
    for _ in 0..20 {
        cache.learn(600);
    }
    assert!((1100..=1200).contains(&cache.idle_ms), "{}", cache.idle_ms);
    for _ in 0..2000 {
        cache.learn(1);
    }
    assert!(cache.idle_ms < 400, "{}", cache.idle_ms);
}

#[test]
fn those_that_wait_for_the_same_batch_are_found_together() {
    let mut cache = BatchCache::default();
    for (number, offset) in [(1, 99), (2, 100), (3, 149), (4, 150)] {
        cache.wait(session(number), (P, Offset(offset)));
    }
    cache.wait(session(5), (PartitionIndex(2), Offset(120)));
    let together = cache.take_waiting(P, Offset(100), Offset(150));
    assert_eq!(together, [session(2), session(3)]);
    assert_eq!(cache.lowest_waiting(), Some((P, Offset(99))));
    assert_eq!(cache.waiting.len(), 3);
}
