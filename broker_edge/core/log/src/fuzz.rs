//! The readers of the files of a data folder, each as one function of bytes that panics when a promise does not hold.
//! The checksums of an input are made right first, so that the code behind them is reached.
//!
//! `make fuzz` calls them with inputs that coverage guides, the tests with the corpus (`broker_edge/core/fuzz`). Whole
//! folders are changed and opened in `tests/fuzz`.

use std::path::Path;
use std::sync::Arc;

use crate::batch::buffers::Chunk;
use crate::batch::layout::{Header, Identity, u32_at};
use crate::batch::record_batch::Batch;
use crate::ids::{LogId, PartitionId, Secret};
use crate::index::format::{FIXED_BYTES, Head, Section, StoredKeys};
use crate::index::key_pages::entries;
use crate::index::model::Index;
use crate::recovery::checkpoint::Checkpoint;
use crate::recovery::meta::Meta;
use crate::segment::header::{HeaderFound, SegmentHeader};

/// A reader and the name of its corpus.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: &[Target] = &[
    ("batch", batch),
    ("index", index),
    ("segment_header", segment_header),
    ("mark", mark),
    ("log_meta", log_meta),
];

const IDENTITY: Identity = Identity {
    log_id: LogId::from_bytes([3; 16]),
    partition: PartitionId(2),
    secret: Secret::from_bytes([5; 8]),
};

fn put(bytes: &mut [u8], at: usize, number: u32) {
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

fn batch(input: &[u8]) {
    let mut bytes = input.to_vec();
    if let Ok(header) = Header::parse(input)
        && let Some(whole) = input.get(..header.total())
    {
        put(&mut bytes, 4, IDENTITY.checksum(whole));
    }
    let batch = match Batch::decode(&Arc::new(Chunk::from(bytes.clone())), 0, &IDENTITY) {
        Ok(batch) => batch,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(batch.bytes(), &bytes[..batch.bytes_len()]);
    let (mut next, mut payload_bytes) = (batch.base_offset(), 0);
    for (at, record) in batch.records().enumerate() {
        assert_eq!(record.offset, next);
        next = next.plus(1);
        payload_bytes += record.payload.len();
        assert!(batch.records_of(record.topic, at).next() == Some(at));
        let headers = record.headers.map(|(name, value)| name.len() + value.len());
        assert!(headers.sum::<usize>() + record.properties.len() <= input.len());
    }
    assert_eq!(
        (next, payload_bytes),
        (batch.next_offset(), batch.payloads().len())
    );
}

/// Makes the checksums of the head, of the tables and of the pages right, and the keys sorted.
fn with_checksums(input: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = input.to_vec();
    let head_bytes = Head::bytes(input)?;
    bytes.get(..head_bytes)?;
    bytes[16..32].copy_from_slice(IDENTITY.log_id.as_bytes());
    put(&mut bytes, 32, IDENTITY.partition.0);
    let head = seal_head(&mut bytes, head_bytes)?;
    let range = |section: Section| {
        let at = usize::try_from(section.position).ok()?;
        Some(at..at.checked_add(section.bytes)?)
    };
    let page_table = range(head.page_table)?;
    let mut page_at = page_table.end;
    bytes.get(page_table.clone())?;
    for row in page_table.clone().step_by(20) {
        let end = page_at.checked_add(u32_at(&bytes, row + 12) as usize)?;
        let checksum = crc32c::crc32c(bytes.get(page_at..end)?);
        put(&mut bytes, row + 16, checksum);
        page_at = end;
    }
    // The pages' checksums are in their table, which has its own.
    let mut tables = vec![(range(head.blocks)?, 116), (page_table, 124)];
    if let StoredKeys::Flat(keys) = head.keys {
        tables.push((range(keys)?, 120));
    }
    for (table, checksum_at) in tables {
        let checksum = crc32c::crc32c(bytes.get(table)?);
        put(&mut bytes, checksum_at, checksum);
    }
    if let StoredKeys::Pages(table) = seal_head(&mut bytes, head_bytes)?.keys {
        let range = usize::try_from(table.position).ok()?..usize::try_from(table.end()).ok()?;
        let mut keys: Vec<_> = entries(bytes.get(range.clone())?)
            .take(table.count)
            .collect();
        keys.sort_unstable();
        bytes[range].copy_from_slice(&table.write(&keys));
    }
    Some(bytes)
}

fn seal_head(bytes: &mut [u8], head_bytes: usize) -> Option<Head> {
    let checksum = crc32c::crc32c(&bytes[16..head_bytes]);
    put(bytes, 12, checksum);
    Head::parse(&bytes[..head_bytes], &IDENTITY)
}

fn index(input: &[u8]) {
    let bytes = with_checksums(input).unwrap_or_else(|| input.to_vec());
    assert!(bytes.len() >= FIXED_BYTES || Head::bytes(&bytes).is_none());
    if let Some(index) = Index::from_bytes(&bytes, &IDENTITY) {
        let again = Index::from_bytes(&index.to_bytes(&IDENTITY), &IDENTITY);
        assert_eq!(again.as_ref(), Some(&index), "what was written is read");
    }
}

fn segment_header(input: &[u8]) {
    let mut bytes = input.to_vec();
    if bytes.len() >= 72 {
        let checksum = crc32c::crc32c(&bytes[16..72]);
        put(&mut bytes, 12, checksum);
    }
    if let HeaderFound::Good(header) = SegmentHeader::parse(&bytes) {
        assert_eq!(
            SegmentHeader::parse(&header.to_bytes()),
            HeaderFound::Good(header)
        );
    }
}

fn mark(input: &[u8]) {
    let mut bytes = input.to_vec();
    if bytes.len() >= 52 {
        let checksum = IDENTITY.checksum_of(&bytes[..48]);
        put(&mut bytes, 48, checksum);
    }
    if let Some(checkpoint) = Checkpoint::from_bytes(&bytes, &IDENTITY) {
        assert_eq!(
            checkpoint.to_bytes(&IDENTITY).as_slice(),
            bytes,
            "a mark has one form"
        );
    }
}

/// The line with the JSON; the line with its checksum is added.
fn log_meta(input: &[u8]) {
    let line = input
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let mut bytes = line.strip_suffix(b"\r").unwrap_or(line).to_vec();
    bytes.extend_from_slice(format!("\n{:08x}\n", crc32c::crc32c(&bytes)).as_bytes());
    match Meta::parse(Path::new("log.meta"), bytes) {
        Ok(meta) => {
            let _ = meta.log_id(Path::new("."));
            let json = serde_json::to_string(&meta).expect("numbers and text");
            assert_eq!(
                serde_json::from_str::<Meta>(&json).expect("its own text"),
                meta
            );
        }
        Err(error) => assert!(error.to_string().contains("log.meta")),
    }
}

#[cfg(test)]
#[path = "../../fuzz/src/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::{TARGETS, replay};

    #[test]
    fn every_reader_of_a_file_keeps_its_promises_on_its_corpus_and_on_changed_inputs() {
        for (name, read) in TARGETS {
            replay::replay(name, *read);
        }
    }
}
