//! A record as a page shows it (docs/console.md): plain JSON with the payload in base64, cut where it is long.

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_log::{Batch, Epoch, Offset, Partition, ReadError, RecordView};
use serde::Serialize;

use crate::filter::Filters;
use crate::service::arrow::headers::for_each_header;
use crate::service::error::Refusal;
use crate::service::request;

/// Of the values of the headers of one record, together.
const HEADERS_BYTES_MAX: usize = 16 << 10;

#[derive(Debug, Serialize)]
pub struct Shown {
    partition: u32,
    offset: u64,
    time_us: i64,
    topic: String,
    client_id: String,
    qos: u8,
    retain: bool,
    /// Bytes of the payload.
    size: usize,
    /// None if it is hidden.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    is_cut: bool,
    headers: Vec<(String, String)>,
    /// The caller may not see the contents.
    #[serde(skip_serializing_if = "is_false")]
    is_hidden: bool,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde asks with a reference"
)]
fn is_false(flag: &bool) -> bool {
    !flag
}

impl Shown {
    fn new(partition: &Partition, record: &RecordView<'_>, value_bytes_max: usize) -> Shown {
        let size = record.payload.len();
        let mut headers = Vec::new();
        let mut room = HEADERS_BYTES_MAX;
        for_each_header(record, &mut |name, value| {
            let taken = name.len() + value.len();
            if taken <= room {
                room -= taken;
                headers.push((name.to_owned(), STANDARD.encode(value)));
            } else {
                room = 0;
            }
        });
        Shown {
            partition: partition.id().0,
            offset: record.offset.0,
            time_us: record.time_us,
            topic: record.topic.to_owned(),
            client_id: record.client_id.to_owned(),
            qos: record.qos,
            retain: record.retain,
            size,
            value: Some(STANDARD.encode(&record.payload[..size.min(value_bytes_max)])),
            is_cut: size > value_bytes_max || room == 0,
            headers,
            is_hidden: false,
        }
    }

    /// Without its contents.
    fn hidden(self) -> Shown {
        Shown {
            value: None,
            headers: Vec::new(),
            is_hidden: true,
            ..self
        }
    }

    pub fn topic(&self) -> &str {
        &self.topic
    }

    pub fn client_id(&self) -> &str {
        &self.client_id
    }

    /// About what it takes in an answer.
    fn bytes(&self) -> usize {
        let headers: usize = self
            .headers
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        200 + self.topic.len()
            + self.client_id.len()
            + self.value.as_ref().map_or(0, String::len)
            + headers
    }
}

/// How much of a partition to show.
#[derive(Clone, Copy)]
pub struct Room {
    pub records: usize,
    /// Of an answer.
    pub bytes: usize,
    /// Of the log, for one look.
    pub scan_bytes: usize,
    /// Of one payload.
    pub value_bytes: usize,
}

/// Wanted records of a partition and where to look next.
pub struct Piece {
    pub records: Vec<Shown>,
    pub next: Offset,
    /// Offsets that are lost on the disk, right before `next`.
    pub gap: Option<(Offset, Offset)>,
}

/// Looks from `from` on, up to `until`, until the room is used.
///
/// # Errors
/// The offsets are not there, the disk fails, or the filters cost too much.
pub fn look(
    partition: &Partition,
    filters: &Filters,
    (from, until): (Offset, Offset),
    room: Room,
) -> Result<Piece, Refusal> {
    let mut piece = Piece {
        records: Vec::new(),
        next: from,
        gap: None,
    };
    let mut left = room;
    while piece.next < until {
        filters.work_anew();
        // A purged record has no topic left. It has nothing to show either.
        let read = partition.read_matching(piece.next, until, left.scan_bytes, &|topic| {
            filters.wants(topic)
        });
        let (batches, looked_at) = match read {
            Ok(read) => read,
            Err(ReadError::Damaged { range }) => {
                piece.gap = Some((range.start, range.end));
                piece.next = range.end.min(until);
                return Ok(piece);
            }
            Err(error) => return Err(Refusal::from_read(partition, error)),
        };
        request::check_work(filters)?;
        left.scan_bytes = left.scan_bytes.saturating_sub(Batch::kept_bytes(&batches));
        for batch in &batches {
            if !take(partition, filters, batch, until, &mut left, &mut piece)? {
                return Ok(piece);
            }
        }
        piece.next = looked_at.min(until).max(piece.next);
        if left.scan_bytes == 0 {
            break;
        }
    }
    Ok(piece)
}

/// Adds the wanted records of a batch. Returns false when the room is used; the piece then ends before the next wanted
/// record.
fn take(
    partition: &Partition,
    filters: &Filters,
    batch: &Batch,
    until: Offset,
    left: &mut Room,
    piece: &mut Piece,
) -> Result<bool, Refusal> {
    let wanted: Vec<bool> = batch
        .topics()
        .map(|topic| filters.wants(topic.topic))
        .collect();
    request::check_work(filters)?;
    let base = batch.base_offset().0;
    let first = usize::try_from(piece.next.0.saturating_sub(base)).unwrap_or(usize::MAX);
    for place in first..batch.len() {
        let offset = Offset(base + place as u64);
        if offset >= until {
            break;
        }
        if !wanted[usize::from(batch.topic_index(place))] {
            continue;
        }
        let record = batch.record(place);
        if record.purged {
            continue;
        }
        // Before the copy of a record that has no room.
        if left.records == 0 {
            piece.next = offset;
            return Ok(false);
        }
        let shown = Shown::new(partition, &record, left.value_bytes);
        let bytes = shown.bytes();
        if bytes > left.bytes && !piece.records.is_empty() {
            piece.next = offset;
            return Ok(false);
        }
        left.records -= 1;
        left.bytes = left.bytes.saturating_sub(bytes);
        piece.records.push(shown);
        piece.next = Offset(offset.0 + 1);
    }
    Ok(true)
}

/// The batch of the record at an offset and the record's place in it, or those of the next record that can be read.
/// `None` if there is no such record.
///
/// # Errors
/// The offset is not there, or the disk fails.
pub fn batch_at(
    partition: &Partition,
    offset: Offset,
) -> Result<Option<(Batch, usize)>, ReadError> {
    let batches = partition.read(offset, 1)?;
    Ok(batches.into_iter().next().and_then(|batch| {
        let place = usize::try_from(offset.0.saturating_sub(batch.base_offset().0)).ok()?;
        let last = batch.len().checked_sub(1)?;
        Some((batch, place.min(last)))
    }))
}

/// One record, and the batch in which it lies.
pub struct One {
    /// None if its contents were purged.
    pub record: Option<Shown>,
    pub batch: Range<Offset>,
    pub epoch: Epoch,
    /// The routing level of its topic, or the key that it was given.
    pub key: String,
}

/// The record at an offset, without its contents unless `may_replay` allows its topic.
///
/// # Errors
/// The offset is not there, or the disk fails.
pub fn one(
    partition: &Partition,
    offset: Offset,
    value_bytes_max: usize,
    may_replay: &dyn Fn(&str) -> bool,
) -> Result<One, Refusal> {
    let found =
        batch_at(partition, offset).map_err(|error| Refusal::from_read(partition, error))?;
    let is_it = |(batch, place): &(Batch, usize)| batch.record(*place).offset == offset;
    let Some((batch, place)) = found.filter(is_it) else {
        return Err(Refusal::out_of_range(partition, offset.0));
    };
    let record = batch.record(place);
    let shown = (!record.purged).then(|| Shown::new(partition, &record, value_bytes_max));
    let is_seen = may_replay(record.topic);
    Ok(One {
        record: shown.map(|shown| if is_seen { shown } else { shown.hidden() }),
        batch: batch.base_offset()..batch.next_offset(),
        epoch: batch.epoch(),
        key: String::from_utf8_lossy(record.key).into_owned(),
    })
}
