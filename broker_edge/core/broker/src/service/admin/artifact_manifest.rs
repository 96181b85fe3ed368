//! The parts of an artifact's manifest that the broker needs to serve the bytes (docs/artifacts.md, section 2).
//!
//! A user with the right to write the topic can write anything into it, so every field is checked before use. Digests
//! and signature are for devices; the broker checks neither.

use headwater_log::{Offset, Partition};
use serde::Deserialize;
use serde::de::IgnoredAny;

const MANIFEST_BYTES_MAX: usize = 1 << 20;
const NAME_BYTES_MAX: usize = 64;
const CHUNKS_MAX: u64 = 8_192;
const CHUNK_BYTES_MAX: u64 = 960 << 10;
const DIGEST_BYTES: usize = 64;
/// Bytes of the log that one step of the search for a manifest reads.
const READ_BYTES: usize = 1 << 20;

/// Whether `text` is valid as the name or the version of an artifact.
pub fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    text.len() <= NAME_BYTES_MAX
        && text.bytes().all(is_allowed)
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
}

#[derive(Debug, Deserialize)]
struct Body {
    v: u32,
    artifact: ArtifactBody,
    place: LocationBody,
}

#[derive(Debug, Deserialize)]
struct ArtifactBody {
    name: String,
    version: String,
    size: u64,
    sha256: String,
    chunk_size: u64,
    chunks: Vec<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct LocationBody {
    number: u32,
    runs: Vec<(u64, u64)>,
}

/// The fields of a manifest that locate the bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Manifest {
    pub size: u64,
    pub sha256: String,
    pub chunk_size: u64,
    /// Partition of the chunks, by its global number.
    pub partition: u32,
    /// First offset and number of chunks of each run; ascending, at least one chunk each.
    runs: Vec<(u64, u64)>,
}

impl Manifest {
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(payload: &[u8], name: &str, version: &str) -> Result<Manifest, String> {
        if payload.len() > MANIFEST_BYTES_MAX {
            return Err(format!("it is larger than {MANIFEST_BYTES_MAX} bytes"));
        }
        let body: Body = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
        let (artifact, place) = (body.artifact, body.place);
        if body.v != 1 {
            return Err(format!("format version {} is unknown", body.v));
        }
        if (&*artifact.name, &*artifact.version) != (name, version) {
            return Err(format!(
                "it belongs to {:.64} {:.64}",
                artifact.name, artifact.version
            ));
        }
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if artifact.sha256.len() != DIGEST_BYTES || !artifact.sha256.bytes().all(is_hex) {
            return Err("its digest is not a sha256".to_owned());
        }
        if !(1..=CHUNK_BYTES_MAX).contains(&artifact.chunk_size) || artifact.size == 0 {
            return Err("its size or chunk size is out of range".to_owned());
        }
        let chunks = artifact.size.div_ceil(artifact.chunk_size);
        if chunks > CHUNKS_MAX || chunks != artifact.chunks.len() as u64 {
            return Err("its size does not match its number of chunks".to_owned());
        }
        let mut end = 0;
        let mut placed = 0_u64;
        for (first, count) in &place.runs {
            let next = first.checked_add(*count).filter(|_| *count <= CHUNKS_MAX);
            let Some(next) = next.filter(|next| *first >= end && next > first) else {
                return Err("the offsets of its chunks are not ascending".to_owned());
            };
            end = next;
            placed = placed.saturating_add(*count);
        }
        if placed != chunks {
            return Err("the number of offsets differs from the number of chunks".to_owned());
        }
        Ok(Manifest {
            size: artifact.size,
            sha256: artifact.sha256,
            chunk_size: artifact.chunk_size,
            partition: place.number,
            runs: place.runs,
        })
    }

    /// The offset of a chunk. Every index below the number of chunks has one.
    pub fn offset_of(&self, mut index: u64) -> Option<Offset> {
        for (first, count) in &self.runs {
            if index < *count {
                return Some(Offset(first + index));
            }
            index -= count;
        }
        None
    }

    /// The size of a chunk in bytes.
    pub fn bytes_of(&self, index: u64) -> u64 {
        self.size
            .saturating_sub(index.saturating_mul(self.chunk_size))
            .min(self.chunk_size)
    }
}

/// The payload of the newest record of a topic; empty if it was removed. Reads the disk.
///
/// # Errors
/// Why it could not be read.
pub fn newest(partition: &Partition, topic: &str) -> Result<Option<Vec<u8>>, String> {
    let topics = partition.topics().map_err(|error| error.to_string())?;
    let found = topics.binary_search_by(|range| range.topic.as_str().cmp(topic));
    let Some(range) = found.ok().map(|at| &topics[at]) else {
        return Ok(None);
    };
    // The last offset of the range nearly always is the record; otherwise the whole range is searched.
    let last = Offset(range.next.0.saturating_sub(1)).max(range.first);
    match newest_from(partition, topic, last, range.next)? {
        None if last > range.first => newest_from(partition, topic, range.first, range.next),
        found => Ok(found),
    }
}

fn newest_from(
    partition: &Partition,
    topic: &str,
    mut from: Offset,
    until: Offset,
) -> Result<Option<Vec<u8>>, String> {
    let mut newest = None;
    while from < until {
        let read = partition.read_matching(from, until, READ_BYTES, &|name| name == topic);
        let (batches, scanned) = read.map_err(|error| error.to_string())?;
        for batch in &batches {
            let records = batch.records().filter(|record| {
                record.topic == topic && record.offset >= from && record.offset < until
            });
            if let Some(record) = records.last() {
                newest = Some(record.payload.to_vec());
            }
        }
        from = scanned.max(from.plus(1));
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Manifest, is_name};

    fn body() -> Value {
        json!({
            "v": 1,
            "artifact": {"name": "fw", "version": "1", "size": 2500, "sha256": "ab".repeat(32), "chunk_size": 1024, "chunks": ["", "", ""]},
            "signature": null,
            "place": {"log_id": "l", "partition": "artifacts-0", "number": 2, "runs": [[7, 2], [20, 1]]},
            "pushed_us": 0,
        })
    }

    fn parse(body: &Value) -> Result<Manifest, String> {
        Manifest::parse(body.to_string().as_bytes(), "fw", "1")
    }

    #[test]
    fn chunks_are_where_the_runs_say() {
        let manifest = parse(&body()).unwrap();
        let offsets: Vec<_> = (0..4)
            .map(|index| manifest.offset_of(index).map(|offset| offset.0))
            .collect();
        assert_eq!(offsets, [Some(7), Some(8), Some(20), None]);
        assert_eq!((manifest.bytes_of(0), manifest.bytes_of(2)), (1024, 452));
    }

    #[test]
    fn a_manifest_that_cannot_be_is_refused_in_words() {
        let wrong = |path: &str, value: Value, said: &str| {
            let mut body = body();
            *body.pointer_mut(path).unwrap() = value;
            let error = parse(&body).unwrap_err();
            assert!(error.contains(said), "{path}: {error}");
        };
        wrong("/v", json!(2), "unknown");
        wrong("/artifact/name", json!("other"), "belongs to other");
        wrong("/artifact/sha256", json!("x\r\ny"), "not a sha256");
        wrong("/artifact/size", json!(0), "out of range");
        wrong("/artifact/size", json!(u64::MAX), "does not match");
        wrong("/artifact/chunk_size", json!(0), "out of range");
        wrong("/artifact/chunks", json!([]), "does not match");
        wrong("/place/runs", json!([[7, 1]]), "differs");
        wrong("/place/runs", json!([[7, 2], [8, 1]]), "not ascending");
        wrong("/place/runs", json!([[7, 0], [8, 3]]), "not ascending");
        wrong("/place/runs", json!([[u64::MAX, 3]]), "not ascending");
        wrong("/place/number", json!(-1), "invalid");
        assert!(Manifest::parse(b"", "fw", "1").is_err());
        assert!(Manifest::parse(&vec![b' '; 2 << 20], "fw", "1").is_err());
    }

    #[test]
    fn names_cannot_leave_their_level() {
        for name in ["fw", "1.4.0", "a_b-c", "7"] {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "+",
            "#",
            "-a",
            "a b",
            "ü",
            &"a".repeat(65),
        ] {
            assert!(!is_name(name), "{name}");
        }
    }
}
