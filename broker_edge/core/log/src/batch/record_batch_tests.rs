//! A batch that was encoded decodes to the same records; anything else decodes to an error.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::batch::assembler::{BATCH_BYTES_MAX, BatchAssembler, BatchStamp, seal};
use crate::batch::buffers::Chunk;
use crate::batch::layout::{DecodeError, HEADER_BYTES, Identity};
use crate::batch::records::{RecordMeta, Records};
use crate::batch::view::PublishId;
use crate::ids::{LogId, PartitionId, Secret};

#[derive(Debug, Clone)]
struct Model {
    topic: usize,
    client: usize,
    qos: u8,
    retain: bool,
    key: Option<Vec<u8>>,
    idempotency_key: Option<String>,
    properties: Vec<u8>,
    headers: Vec<(String, Vec<u8>)>,
    payload: Vec<u8>,
}

pub(crate) fn identity() -> Identity {
    Identity {
        log_id: LogId::from_bytes([3; 16]),
        partition: PartitionId(2),
        secret: Secret::from_bytes([5; 8]),
    }
}

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..max)
}

fn record() -> impl Strategy<Value = Model> {
    let headers = proptest::collection::vec(("[a-zé]{0,6}", bytes(6)), 0..3);
    let keys = (
        proptest::option::of(bytes(8)),
        proptest::option::of("[a-z/ü]{0,8}"),
    );
    (
        0..3_usize,
        0..2_usize,
        0..3_u8,
        any::<bool>(),
        keys,
        bytes(8),
        headers,
        bytes(40),
    )
        .prop_map(
            |(topic, client, qos, retain, (key, idempotency_key), properties, headers, payload)| {
                Model {
                    topic,
                    client,
                    qos,
                    retain,
                    key,
                    idempotency_key,
                    properties,
                    headers,
                    payload,
                }
            },
        )
}

impl Model {
    /// Follows from the rest: every record of QoS 2 has one.
    fn publish_id(&self) -> Option<PublishId> {
        (self.qos == 2).then_some(PublishId {
            session: u64::MAX - self.payload.len() as u64,
            packet_id: self.topic as u16 + 1,
        })
    }
}

const TOPICS: [&str; 3] = ["devices/é/telemetry", "", "plain"];
const CLIENTS: [&str; 2] = ["", "client"];

fn build(models: &[Model]) -> Records {
    let mut records = Records::new();
    let topics = TOPICS.map(|topic| records.topic(topic, 0..topic.len() as u16).expect("room"));
    let clients = CLIENTS.map(|client| records.client(client).expect("room"));
    for model in models {
        let headers: Vec<(&str, &[u8])> = model
            .headers
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_slice()))
            .collect();
        let meta = RecordMeta {
            topic: topics[model.topic],
            client: clients[model.client],
            qos: model.qos,
            retain: model.retain,
            key: model.key.as_deref(),
            idempotency_key: model.idempotency_key.as_deref(),
            properties: &model.properties,
            headers: &headers,
            publish_id: model.publish_id(),
        };
        records.push(meta, &model.payload).expect("room");
    }
    records
}

fn place(base_offset: u64, epoch: u64) -> BatchStamp {
    BatchStamp {
        base_offset: Offset(base_offset),
        epoch: Epoch(epoch),
        flags: 0,
    }
}

fn encode(appends: &[Records]) -> Vec<u8> {
    let mut plan = BatchAssembler::default();
    for (at, records) in appends.iter().enumerate() {
        assert_eq!(plan.take(records, 0, 1000 + at as i64), records.len());
    }
    let bytes = plan.encode(&identity(), &place(40, 7), Vec::new());
    assert_eq!(bytes.len(), plan.bytes());
    bytes
}

/// Fills empty records of one topic and one client with these payloads.
pub(crate) fn fill<P: AsRef<[u8]>>(
    mut records: Records,
    payloads: impl IntoIterator<Item = P>,
) -> Records {
    let topic = records.topic("topic", 0..5).expect("room");
    let client = records.client("client").expect("room");
    for payload in payloads {
        let meta = RecordMeta::new(topic, client, 1);
        records.push(meta, payload.as_ref()).expect("room");
    }
    records
}

/// A batch of records with these payloads, as a file would give it.
pub(crate) fn batch_of(base: Offset, payloads: &[&[u8]]) -> Batch {
    let records = fill(Records::new(), payloads);
    let mut plan = BatchAssembler::default();
    plan.take(&records, 0, 1000);
    decode(plan.encode(&identity(), &place(base.0, 7), Vec::new())).expect("whole")
}

fn decode(bytes: Vec<u8>) -> Result<Batch, DecodeError> {
    Batch::decode(&Arc::new(Chunk::from(bytes)), 0, &identity())
}

fn check(record: &RecordView<'_>, model: &Model) {
    assert_eq!(record.topic, TOPICS[model.topic]);
    assert_eq!(record.client_id, CLIENTS[model.client]);
    let flags = (record.qos, record.retain, record.purged);
    assert_eq!(flags, (model.qos, model.retain, false));
    let key = model.key.as_deref().unwrap_or(record.topic.as_bytes());
    assert_eq!(record.key, key);
    assert_eq!(record.idempotency_key, model.idempotency_key.as_deref());
    assert_eq!(record.properties, model.properties);
    let headers: Vec<_> = record
        .headers
        .map(|(key, value)| (key.to_owned(), value.to_vec()))
        .collect();
    assert_eq!(headers, model.headers);
    assert_eq!(record.publish_id, model.publish_id());
    assert_eq!(record.payload, model.payload);
}

fn sample() -> Vec<u8> {
    let model = Model {
        topic: 0,
        client: 1,
        qos: 1,
        retain: true,
        key: Some(b"k".to_vec()),
        idempotency_key: Some("id".to_owned()),
        properties: vec![1, 2],
        headers: vec![("h".to_owned(), vec![9])],
        payload: b"payload".to_vec(),
    };
    encode(&[build(&[model.clone(), model])])
}

#[test]
fn the_records_of_a_topic_are_those_that_a_look_at_each_one_finds() {
    let names: Vec<String> = (0..500).map(|n| format!("plants/d{n}/data")).collect();
    let mut records = Records::new();
    let client = records.client("client").expect("room");
    for number in 0..4000 {
        let name = &names[number * 7919 % names.len()];
        // With two keys, and so in the table twice.
        let key = if number % 3 == 0 { 0..6 } else { 0..7 };
        let topic = records.topic(name, key).expect("room");
        let meta = RecordMeta::new(topic, client, 1);
        records.push(meta, b"x").expect("room");
    }
    let batch = decode(encode(&[records])).expect("whole");
    assert!(batch.topics().len() > names.len());
    for name in names
        .iter()
        .map(String::as_str)
        .chain(["", "plants/d500/data"])
    {
        for from in [0, 1, 2500, 3999, 4000] {
            let mut found: Vec<usize> = batch.records_of(name, from).collect();
            found.sort_unstable();
            let wanted = (from..batch.len()).filter(|index| batch.record(*index).topic == name);
            assert_eq!(found, wanted.collect::<Vec<_>>(), "{name} from {from}");
        }
    }
}

#[test]
fn an_entry_that_names_what_is_not_in_its_table_is_refused() {
    let bytes = sample();
    let header = Header::parse(&bytes).expect("whole");
    let entries_at = HEADER_BYTES + (header.topics_bytes + header.clients_bytes) as usize;
    for (field, count) in [(0, header.topics), (2, header.clients)] {
        for index in [count - 1, count, u16::MAX] {
            let mut bytes = bytes.clone();
            bytes[entries_at + field..][..2].copy_from_slice(&index.to_le_bytes());
            seal(&identity(), &mut bytes);
            let what = format!("{index} of {count} at {field}");
            assert_eq!(decode(bytes).is_ok(), index < count, "{what}");
        }
    }
}

#[test]
fn bytes_that_belong_to_no_record_are_refused() {
    let bytes = sample();
    let header = Header::parse(&bytes).expect("whole");
    let tables = (header.topics_bytes + header.clients_bytes) as usize;
    let last_at = HEADER_BYTES + tables + (header.records as usize - 1) * ENTRY_BYTES;
    let mut entry = Entry::from_bytes(&bytes[last_at..]);
    entry.payload_end -= 1;
    let mut bytes = bytes;
    bytes[last_at..][..ENTRY_BYTES].copy_from_slice(&entry.to_bytes());
    seal(&identity(), &mut bytes);
    let what = "record ends";
    assert_eq!(decode(bytes).err(), Some(DecodeError::Malformed { what }));
}

proptest! {
    #[test]
    fn records_read_back_as_they_were_given(appends in proptest::collection::vec(proptest::collection::vec(record(), 1..8), 1..5)) {
        let built: Vec<Records> = appends.iter().map(|models| build(models)).collect();
        let batch = decode(encode(&built)).expect("a batch");
        let models: Vec<(usize, &Model)> =
            appends.iter().enumerate().flat_map(|(at, models)| models.iter().map(move |model| (at, model))).collect();
        prop_assert_eq!(batch.len(), models.len());
        for (index, (append, model)) in models.iter().enumerate() {
            let record = batch.record(index);
            prop_assert_eq!(record.offset, Offset(40 + index as u64));
            prop_assert_eq!(record.time_us, 1000 + *append as i64);
            prop_assert_eq!(batch.topic(batch.topic_index(index)).topic, record.topic);
            check(&record, model);
        }
    }

    #[test]
    fn splitting_and_leaving_out_keep_each_record(models in proptest::collection::vec(record(), 2..12), drops in proptest::collection::vec(any::<bool>(), 12)) {
        let records = build(&models);
        let kept: Vec<&Model> = models.iter().zip(&drops).filter(|(_, drop)| !**drop).map(|(model, _)| model).collect();
        prop_assume!(!kept.is_empty());
        let records = records.without(&drops[..models.len()]);
        let batch = decode(encode(std::slice::from_ref(&records))).expect("a batch");
        prop_assert_eq!(batch.len(), kept.len());
        for (index, model) in kept.iter().enumerate() {
            check(&batch.record(index), model);
            prop_assert_eq!(records.idempotency_key(index), model.idempotency_key.as_deref());
        }
    }

    #[test]
    fn arbitrary_bytes_are_refused_without_a_panic(bytes in bytes(400)) {
        prop_assert!(decode(bytes).is_err());
    }

    /// With the checksum made to fit, so that the checks behind it are reached.
    #[test]
    fn lying_counts_and_lengths_are_refused_or_harmless(changes in proptest::collection::vec((0..200_usize, any::<u8>()), 1..4)) {
        let mut bytes = sample();
        let length = bytes.len();
        for (at, value) in changes {
            bytes[8 + at % (length - 8)] = value;
        }
        seal(&identity(), &mut bytes);
        if let Ok(batch) = decode(bytes) {
            for record in batch.records() {
                prop_assert!(record.payload.len() <= length && record.headers.count() <= length);
            }
            prop_assert!(batch.topics().len() * 6 <= length);
        }
    }
}

#[test]
fn any_flipped_bit_is_noticed() {
    let bytes = sample();
    assert!(decode(bytes.clone()).is_ok());
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(flipped).is_err(), "bit {bit}");
    }
}

#[test]
fn a_batch_of_another_log_partition_or_secret_is_refused() {
    let bytes = Arc::new(Chunk::from(sample()));
    let mut others = [identity(); 3];
    others[0].log_id = LogId::from_bytes([4; 16]);
    others[1].partition = PartitionId(3);
    others[2].secret = Secret::from_bytes([4; 8]);
    for other in others {
        let refused = Batch::decode(&bytes, 0, &other);
        assert!(matches!(refused, Err(DecodeError::Checksum { .. })));
    }
}

#[test]
fn every_shorter_prefix_is_refused() {
    let bytes = sample();
    for length in 0..bytes.len() {
        assert!(decode(bytes[..length].to_vec()).is_err(), "{length} bytes");
    }
}

#[test]
fn a_batch_takes_no_more_than_its_limit_and_the_rest_goes_on() {
    let records = fill(Records::new(), vec![vec![7_u8; 1 << 18]; 6]);
    let mut first = 0;
    let mut sizes = Vec::new();
    while first < records.len() {
        let mut plan = BatchAssembler::default();
        first = plan.take(&records, first, 0);
        let bytes = plan.encode(&identity(), &place(0, 1), Vec::new());
        assert!(bytes.len() <= BATCH_BYTES_MAX);
        sizes.push(decode(bytes).expect("a batch").len());
    }
    assert_eq!(sizes, [3, 3]);
}

#[test]
fn a_full_topic_table_is_an_error_and_not_a_panic() {
    let mut records = Records::new();
    for _ in 0..u16::MAX {
        records.topic("t", 0..1).expect("room");
    }
    assert!(records.topic("t", 0..1).is_err());
}

/// Every batch of an append that is split has all names of the append.
#[test]
fn names_that_fill_a_batch_are_not_most_of_what_is_written() {
    for name_bytes in [300, 349, 350, 1000] {
        let mut records = Records::new();
        let client = records.client("c").expect("room");
        for number in 0..3000 {
            let topic = format!("{number:0name_bytes$}");
            let topic = records.topic(&topic, 0..1).expect("room");
            let meta = RecordMeta::new(topic, client, 0);
            records.push(meta, &[7; 30]).expect("room");
        }
        let (mut first, mut written) = (0, 0);
        while first < records.len() {
            let mut plan = BatchAssembler::default();
            first = plan.take(&records, first, 0);
            written += plan.bytes();
        }
        let given = records.bytes();
        assert!(written < 3 * given, "{written} for {given}, {name_bytes}");
    }
}
