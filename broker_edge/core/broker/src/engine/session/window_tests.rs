//! The window alone: packet ids, acknowledgements in any order, and what is restored.

use super::*;

fn sent(offset: u64) -> Inflight {
    Inflight {
        offset: Offset(offset),
        partition: PartitionIndex(1),
        source: Source::Cursor,
        receipt: false,
    }
}

fn push(window: &mut Window, offset: u64) -> u16 {
    window.push(sent(offset), InflightState::AwaitsPuback)
}

#[test]
fn restored_deliveries_keep_their_ids_and_new_ones_follow_them() {
    let mut window = Window::default();
    assert!(window.restore(65_535, sent(7), InflightState::AwaitsPubcomp));
    assert!(window.restore(3, sent(9), InflightState::AwaitsPubrec));
    assert!(
        !window.restore(2, sent(9), InflightState::AwaitsPubrec),
        "backwards"
    );
    assert_eq!(window.unacked(), 2);
    assert_eq!(window.flight(1), None);
    assert_eq!(
        window.flight(65_535),
        Some((sent(7), InflightState::AwaitsPubcomp))
    );
    assert_eq!(push(&mut window, 10), 4);
    assert_eq!(window.finish(65_535), Some(sent(7)));
    assert_eq!(window.front(), Some(3));
}

#[test]
fn acknowledgements_in_any_order_free_the_window_and_keep_the_oldest_offset() {
    let mut window = Window::default();
    let ids: Vec<u16> = (0..4).map(|n| push(&mut window, n)).collect();
    assert_eq!(ids, [1, 2, 3, 4]);
    assert_eq!(window.finish(2), Some(sent(1)));
    assert_eq!(window.finish(2), None, "twice");
    assert_eq!(
        window.oldest(PartitionIndex(1), Source::Cursor),
        Some(Offset(0))
    );
    assert_eq!(window.oldest(PartitionIndex(2), Source::Cursor), None);
    assert_eq!(window.finish(1), Some(sent(0)));
    assert_eq!(
        window.oldest(PartitionIndex(1), Source::Cursor),
        Some(Offset(2))
    );
    assert_eq!(window.unacked(), 2);
    assert_eq!(window.finish(0), None);
    assert_eq!(window.finish(5), None);
    let left: Vec<u16> = window.unacked_from(1).map(|(id, _, _)| id).collect();
    assert_eq!(left, [3, 4]);
    assert_eq!(window.unacked_from(4).count(), 1);
}

#[test]
fn packet_ids_go_round_without_zero_and_without_meeting_one_in_flight() {
    let mut window = Window::default();
    let stuck = push(&mut window, 0);
    let mut pushed = 0;
    while window.room(u16::MAX) > 0 {
        let id = push(&mut window, 1);
        assert_ne!(id, stuck);
        assert_ne!(id, 0);
        assert!(window.finish(id).is_some());
        pushed += 1;
    }
    assert!(pushed > 30_000);
    assert!(window.finish(stuck).is_some());
    for _ in 0..200_000 {
        let id = push(&mut window, 2);
        assert_ne!(id, 0);
        assert!(window.finish(id).is_some());
    }
    assert!(window.is_empty());
}
