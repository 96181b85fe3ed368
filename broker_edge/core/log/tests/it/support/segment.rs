//! Where the batches of a segment file lie, read without the log's own code.

use std::ops::Range;

pub const SEGMENT_HEADER: usize = 4096;
pub const BATCH_HEADER: usize = 64;

/// Batches that stand one after the other from the start of a segment, as far as their lengths lead.
pub fn batches(bytes: &[u8]) -> Vec<Range<usize>> {
    let (mut at, mut found) = (SEGMENT_HEADER, Vec::new());
    while at + BATCH_HEADER <= bytes.len() {
        let length = bytes[at..at + 4].try_into().expect("four bytes");
        let end = at + 4 + u32::from_le_bytes(length) as usize;
        if end < at + BATCH_HEADER || end > bytes.len() {
            break;
        }
        found.push(at..end);
        at = end;
    }
    found
}
