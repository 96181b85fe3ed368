//! Keeps retained messages whose segments are removed: the state store takes their values over before.

use std::ops::Range;
use std::sync::Arc;

use headwater_log::{Class, Offset, Partition, RemovalGuard};
use parking_lot::Mutex;

use crate::engine::ids::PartitionIndex;
use crate::engine::stored::{self, encode, to_hex};
use crate::state::StateStore;

use super::{RecordRef, Retained};

/// Makes retention wait until the retained values of a segment are in the state store, for as long as the guards live.
pub fn guard(
    partitions: &[Partition],
    retained: &Arc<Mutex<Retained>>,
    state: &Arc<StateStore>,
) -> Vec<RemovalGuard> {
    let data = partitions
        .iter()
        .filter(|partition| partition.class() != Class::Internal);
    let guard_one = |partition: &Partition| {
        let (retained, state, own) = (Arc::clone(retained), Arc::clone(state), partition.clone());
        partition.before_delete(Arc::new(move |range| {
            take_over(&retained, &state, &own, &range)
        }))
    };
    data.map(guard_one).collect()
}

fn take_over(
    retained: &Mutex<Retained>,
    state: &StateStore,
    partition: &Partition,
    range: &Range<Offset>,
) -> bool {
    let index = PartitionIndex::of(partition.id());
    let Some(records) = retained.lock().within(index, range) else {
        return false;
    };
    for (topic, at) in records {
        if !store(retained, state, partition, &topic, at) {
            return false;
        }
    }
    // The values just stored have to survive a crash before the segment may go.
    state.durable() >= state.end()
}

/// Stores the value of a retained message. Returns false if that is impossible now.
fn store(
    retained: &Mutex<Retained>,
    state: &StateStore,
    partition: &Partition,
    topic: &str,
    at: RecordRef,
) -> bool {
    let Some(value) = stored_value(partition, at) else {
        return false;
    };
    let key = stored::retained::key(topic);
    if let Err(error) = state.put(&key, &encode(&value)) {
        tracing::warn!(%error, topic, "a retained message cannot be stored, so its segment stays");
        return false;
    }
    let payload_bytes = value.payload.len() / 2;
    let is_current = retained.lock().mark_stored(topic, at, payload_bytes);
    // The loop removes the stored values of replaced messages, but this was not marked as stored when it looked.
    is_current || state.delete(&key).is_ok()
}

fn stored_value(partition: &Partition, at: RecordRef) -> Option<stored::retained::Value> {
    let batches = partition.read(at.offset, 1).ok()?;
    let batch = batches.first()?;
    let record =
        batch.record(usize::try_from(at.offset.0.checked_sub(batch.base_offset().0)?).ok()?);
    Some(stored::retained::Value {
        partition: at.partition.0,
        offset: at.offset.0,
        time_us: record.time_us,
        client_id: record.client_id.to_owned(),
        qos: record.qos,
        properties: to_hex(record.properties),
        payload: to_hex(record.payload),
    })
}

#[cfg(test)]
mod tests {
    use headwater_log::{Log, LogConfig, RecordMeta, Records, Seams};

    use super::*;

    #[test]
    fn a_value_that_is_replaced_while_it_is_stored_is_removed_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let (log, _) = Log::open(LogConfig::new(dir.path()), Seams::system()).expect("a log");
        let state = StateStore::open(&log, u64::MAX).expect("an empty store");
        let partition = log.by_name("telemetry-0").expect("by default");
        let append = |payload: &[u8]| {
            let mut records = Records::new();
            let topic = records.topic("t", 0..1).expect("room");
            let client = records.client("c").expect("room");
            let meta = RecordMeta {
                retain: true,
                ..RecordMeta::new(topic, client, 1)
            };
            records.push(meta, payload).expect("room");
            let range = partition.append_inline(records).expect("taken");
            assert_eq!(partition.high_watermark(), range.end);
        };
        append(b"old");
        let limits = (usize::MAX, u64::MAX);
        let retained = Retained::load(&log, &state, limits).expect("it is read");
        let index = PartitionIndex::of(partition.id());
        let old = RecordRef::new(index, Offset(0));
        let retained = Mutex::new(retained);
        assert!(store(&retained, &state, partition, "t", old));
        let stored = || state.get(&stored::retained::key("t"));
        assert!(stored().is_some());
        append(b"");
        *retained.lock() = Retained::load(&log, &state, limits).expect("it is read");
        assert!(store(&retained, &state, partition, "t", old));
        assert!(stored().is_none(), "the next start would bring it back");
    }
}
