//! The line of the members of a group.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn effective() -> Rc<EffectiveOptions> {
    Rc::new(EffectiveOptions::of(std::iter::empty()))
}

fn key(n: u64) -> SessionKey {
    SessionKey::from_bits(n)
}

#[test]
fn members_take_turns_and_one_without_room_is_not_looked_at_until_it_has_some() {
    let mut members = Members::new(0);
    for n in 0..3 {
        members.join(key(n), effective(), 0, 1);
        members.arrive(key(n), 0, 1);
    }
    let mut fair_queue = Vec::new();
    for n in 0..6 {
        if n == 3 {
            members.park(key(1));
        }
        let next = members.front().expect("they are there");
        fair_queue.push(next.to_bits());
        members.pass_turn(next);
    }
    assert_eq!(fair_queue, [0, 1, 2, 0, 2, 0]);
    members.unpark(key(1));
    assert_eq!(members.line().collect::<Vec<_>>(), [key(2), key(0), key(1)]);
    for n in 0..3 {
        members.park(key(n));
    }
    assert!(members.front().is_none() && members.has_full() && members.line.is_empty());
}

#[test]
fn i7_who_comes_and_goes_does_not_make_the_line_grow() {
    let mut members = Members::new(0);
    for n in 0..2 {
        members.join(key(n), effective(), 0, 1);
        members.arrive(key(n), 0, 1);
    }
    for _ in 0..10_000 {
        members.park(key(1));
        members.unpark(key(1));
        members.remove(key(1));
        members.join(key(1), effective(), 0, 1);
        members.arrive(key(1), 0, 1);
    }
    assert!(members.line.len() <= 24, "{}", members.line.len());
    assert_eq!(members.line().count(), 2);
}

proptest! {
    #[test]
    fn whatever_happens_the_line_has_each_that_is_ready_once(
        steps in prop::collection::vec((0u8..8, 0u64..5), 0..200),
    ) {
        let mut members = Members::new(0);
        // Whether each is leaving, present and ready.
        let mut model: BTreeMap<u64, (bool, bool, bool)> = BTreeMap::new();
        for (act, n) in steps {
            let known = model.contains_key(&n);
            match act {
                0 => {
                    members.join(key(n), effective(), 0, 1);
                    model.entry(n).or_insert((false, false, false)).0 = false;
                }
                1 => {
                    members.begin_leaving(key(n));
                    if known {
                        model.insert(n, (true, false, false));
                    }
                }
                2 => {
                    members.remove(key(n));
                    model.remove(&n);
                }
                3 => {
                    members.arrive(key(n), 0, 1);
                    if let Some(member) = model.get_mut(&n)
                        && !member.0 && !member.1
                    {
                        *member = (false, true, true);
                    }
                }
                4 => {
                    members.depart(key(n));
                    if let Some(member) = model.get_mut(&n) {
                        (member.1, member.2) = (false, false);
                    }
                }
                5 => {
                    members.park(key(n));
                    if let Some(member) = model.get_mut(&n) {
                        member.2 = false;
                    }
                }
                6 => {
                    members.unpark(key(n));
                    if let Some(member) = model.get_mut(&n) {
                        member.2 = member.1;
                    }
                }
                _ => members.pass_turn(key(n)),
            }
            let sorted = |keys: Vec<SessionKey>| {
                let mut bits: Vec<u64> = keys.iter().map(|key| key.to_bits()).collect();
                bits.sort_unstable();
                bits
            };
            let of = |is: fn(&(bool, bool, bool)) -> bool| -> Vec<u64> {
                model.iter().filter(|(_, member)| is(member)).map(|(n, _)| *n).collect()
            };
            prop_assert_eq!(sorted(members.line().collect()), of(|member| member.2));
            prop_assert_eq!(sorted(members.present().to_vec()), of(|member| member.1));
            prop_assert_eq!(sorted(members.away().collect()), of(|member| !member.0 && !member.1));
            prop_assert_eq!(sorted(members.leavers()), of(|member| member.0));
            prop_assert_eq!(members.ready(), of(|member| member.2).len());
            prop_assert_eq!(members.front(), members.line().next());
            prop_assert_eq!(members.is_over(), model.values().all(|member| member.0));
        }
    }
}
