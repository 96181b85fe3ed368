//! Reading one record: from memory, else as little of its batch as can be checked.
//!
//! A small batch is read whole and checked by its own checksum. Of a large one, the first such read keeps the head
//! (`heads.rs`), and the next ones read a payload.

use std::sync::Arc;

use crate::batch::buffers::Chunk;
use crate::batch::decode::Batch;
use crate::batch::view::RecordView;
use crate::error::ReadError;
use crate::ids::Offset;
use crate::read::batch_headers::Head;
use crate::read::batch_positions::BatchPosition;
use crate::segment::header::Segment;
use crate::state::core::Core;
use crate::vfs::files::read_full;

/// Batches from this size on are kept as heads: to read and check one whole costs more than a second look-up.
const LARGE_BYTES_MIN: usize = 8 << 10;

/// One record, with all that it needs of its batch.
#[derive(Clone)]
pub struct Record(Kind);

#[derive(Clone)]
enum Kind {
    Whole {
        batch: Batch,
        index: usize,
    },
    Apart {
        head: Arc<Head>,
        index: usize,
        payload: Vec<u8>,
    },
}

impl Record {
    fn of(batch: Batch, offset: Offset) -> Option<Self> {
        let index = usize::try_from(offset.0.checked_sub(batch.base_offset().0)?).ok()?;
        (index < batch.len()).then_some(Self(Kind::Whole { batch, index }))
    }

    #[must_use]
    pub fn view(&self) -> RecordView<'_> {
        match &self.0 {
            Kind::Whole { batch, index } => batch.record(*index),
            Kind::Apart {
                head,
                index,
                payload,
            } => head.batch().record_with(*index, payload),
        }
    }

    /// The payload, without looking at anything else.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        match &self.0 {
            Kind::Whole { batch, index } => batch.payload(*index),
            Kind::Apart { payload, .. } => payload,
        }
    }
}

impl Core {
    pub(crate) fn read_record(&self, offset: Offset) -> Result<Record, ReadError> {
        let high_watermark = self.check_range(offset)?;
        if offset == high_watermark {
            return Err(self.out_of_range(offset));
        }
        let in_memory = self.tail.find(self.id(), offset, high_watermark);
        if let Some(record) = in_memory.and_then(|batch| Record::of(batch, offset)) {
            return Ok(record);
        }
        if let Some(record) = self.read_known(offset) {
            return Ok(record);
        }
        let batches = self.read(offset, 1)?;
        let batch = batches.into_iter().next();
        let batch = batch.filter(|batch| batch.base_offset() <= offset);
        let Some(batch) = batch else {
            // Retention took it between the two looks.
            return Err(self.out_of_range(offset));
        };
        if batch.bytes_len() >= LARGE_BYTES_MIN {
            self.keep_head(&batch);
        }
        Record::of(batch, offset).ok_or_else(|| self.out_of_range(offset))
    }

    fn keep_head(&self, batch: &Batch) {
        let place = self.places.lock().find(batch.base_offset());
        if let Some(place) = place
            .filter(|place| place.offset == batch.base_offset() && place.bytes == batch.bytes_len())
        {
            let head = Head::of(batch, place.block.0, place.position);
            self.heads.keep(self.id(), head);
        }
    }

    /// A record of which is known where it stands; None where anything is not as it was, and the long way tells why.
    fn read_known(&self, offset: Offset) -> Option<Record> {
        let (segment, _) = self.segment_for(offset).ok()?;
        if self.is_lost(&segment, offset) {
            return None;
        }
        if let Some(head) = self.heads.find(self.id(), offset) {
            let base = head.batch().base_offset();
            let record = self.read_payload(&segment, head, offset);
            if record.is_none() {
                self.heads.forget(self.id(), base);
            }
            return record;
        }
        let place = self.places.lock().find(offset)?;
        if place.bytes >= LARGE_BYTES_MIN {
            return None;
        }
        let batch = self.read_batch_at(&segment, &place)?;
        Record::of(batch, offset)
    }

    /// Whether the offset is in a gap that was reported.
    fn is_lost(&self, segment: &Segment, offset: Offset) -> bool {
        let holds = |(first, next): (Offset, Offset)| first <= offset && offset < next;
        let in_hole = segment.sealed.get().is_some_and(|summary| {
            let mut holes = summary.holes.iter();
            holes.any(|hole| holds((hole.first, hole.next)))
        });
        let found = self.found.lock();
        in_hole || found.iter().any(|gap| gap.range.contains(&offset))
    }

    fn read_payload(&self, segment: &Segment, head: Arc<Head>, offset: Offset) -> Option<Record> {
        if head.segment != segment.base {
            return None;
        }
        let index = usize::try_from(offset.0 - head.batch().base_offset().0).ok()?;
        let (position, bytes) = head.payload_place(index);
        let mut payload = vec![0; bytes];
        if bytes > 0 {
            let file = self.open_segment(segment).ok()?;
            let read = read_full(&*file, &mut payload, position).ok()?;
            if read != bytes {
                return None;
            }
        }
        head.is_payload(index, &payload)
            .then_some(Record(Kind::Apart {
                head,
                index,
                payload,
            }))
    }

    fn read_batch_at(&self, segment: &Segment, place: &BatchPosition) -> Option<Batch> {
        if place.block.0 != segment.base {
            return None;
        }
        let file = self.open_segment(segment).ok()?;
        let mut bytes = vec![0; place.bytes];
        let read = read_full(&*file, &mut bytes, place.position).ok()?;
        if read != place.bytes {
            return None;
        }
        let bytes = Arc::new(Chunk::from(bytes));
        let batch = Batch::decode(&bytes, 0, &self.context.identity).ok()?;
        (batch.base_offset() == place.offset).then_some(batch)
    }
}
