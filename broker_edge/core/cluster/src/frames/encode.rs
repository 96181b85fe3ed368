//! Frames to bytes.

use bytes::Bytes;

use super::{
    Addressed, CHUNK_BYTES_MAX, FRAME_BYTES_MAX, Frame, Hello, PARTITIONS_MAX, Told, VERSION,
};
use crate::marks::{Node, Stamp};

struct Out<'a>(&'a mut Vec<u8>);

impl Out<'_> {
    fn u8(&mut self, number: u8) {
        self.0.push(number);
    }

    fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn name(&mut self, name: &Node) {
        // A name has at most 63 bytes.
        self.u8(name.as_str().len() as u8);
        self.0.extend_from_slice(name.as_str().as_bytes());
    }

    fn stamp(&mut self, stamp: &Stamp) {
        self.u64(stamp.epoch.0);
        self.u64(stamp.starts.0);
        self.u64(stamp.follow.0);
    }

    fn told(&mut self, told: &Told) {
        self.u64(told.high_watermark.0);
        self.u64(told.log_start.0);
    }

    fn each<T>(&mut self, parts: &[T], mut put: impl FnMut(&mut Self, &T)) {
        assert!(
            parts.len() <= PARTITIONS_MAX,
            "more partitions than a shard has"
        );
        self.u32(parts.len() as u32);
        for part in parts {
            put(self, part);
        }
    }
}

/// Appends the bytes of a frame.
///
/// # Panics
/// If the frame is longer than a peer accepts. Callers know the limits, so this is a mistake in the code.
pub fn encode(addressed: &Addressed, out: &mut Vec<u8>) {
    let batches = encode_but_batches(addressed, out);
    out.extend_from_slice(&batches);
}

/// Appends a frame but the bytes of its batches. They come behind it, and are not copied.
///
/// # Panics
/// As [`encode`].
pub fn encode_but_batches(addressed: &Addressed, out: &mut Vec<u8>) -> Bytes {
    let batches = match &addressed.frame {
        Frame::Batches { bytes, .. } => bytes.clone(),
        _ => Bytes::new(),
    };
    let at = out.len();
    out.extend_from_slice(&[0; 8]);
    out.push(addressed.frame.kind());
    out.push(VERSION);
    out.extend_from_slice(&addressed.shard.0.to_le_bytes());
    body(&addressed.frame, &mut Out(out));
    let whole = out.len() - at + batches.len();
    assert!(whole <= FRAME_BYTES_MAX, "a frame within its limit");
    let length = (whole - 4) as u32;
    let sum = crc32c::crc32c_append(crc32c::crc32c(&out[at + 8..]), &batches);
    out[at..at + 4].copy_from_slice(&length.to_le_bytes());
    out[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
    batches
}

fn body(frame: &Frame, out: &mut Out<'_>) {
    match frame {
        Frame::Hello(hello) => self::hello(hello, out),
        Frame::Beacon {
            epoch,
            sent_ms,
            is_stuck,
            told,
        } => {
            out.u64(epoch.0);
            out.u64(*sent_ms);
            out.u8((*is_stuck).into());
            out.each(told, Out::told);
        }
        Frame::BeaconAnswer {
            epoch,
            sent_ms,
            reaches_etcd,
        } => {
            out.u64(epoch.0);
            out.u64(*sent_ms);
            out.u8((*reaches_etcd).into());
        }
        Frame::Follow {
            stamp,
            trust,
            credit_bytes,
            parts,
        } => {
            out.stamp(stamp);
            out.u8(*trust as u8);
            out.u32(*credit_bytes);
            out.each(parts, |out, part| {
                out.u64(part.log_start.0);
                out.u64(part.end.0);
                // At most 128.
                out.u8(part.history.entries().len() as u8);
                for (epoch, first) in part.history.entries() {
                    out.u64(epoch.0);
                    out.u64(first.0);
                }
            });
        }
        Frame::Align {
            stamp,
            doubt,
            parts,
        } => {
            out.stamp(stamp);
            out.u8((*doubt).into());
            out.each(parts, |out, part| {
                out.u8(part.restart.into());
                out.u64(part.from.0);
                out.u64(part.log_start.0);
                out.u64(part.high_watermark.0);
            });
        }
        Frame::Batches {
            stamp,
            partition,
            told,
            edges,
            bytes,
        } => {
            assert!(bytes.len() <= CHUNK_BYTES_MAX, "a chunk within its limit");
            out.stamp(stamp);
            out.u32(partition.0);
            out.told(told);
            out.u8(u8::from(edges.first) | (u8::from(edges.last) << 1));
            out.u32(bytes.len() as u32);
        }
        Frame::Synced {
            stamp,
            has_room,
            credit_bytes,
            parts,
        } => {
            out.stamp(stamp);
            out.u8((*has_room).into());
            out.u32(*credit_bytes);
            out.each(parts, |out, (partition, offset)| {
                out.u32(partition.0);
                out.u64(offset.0);
            });
        }
        Frame::Sound { stamp } => out.stamp(stamp),
        Frame::Ask {
            epoch,
            number,
            leader_resigned,
        } => {
            out.u64(epoch.0);
            out.u64(number.0);
            out.u8((*leader_resigned).into());
        }
        Frame::Answer {
            epoch,
            number,
            trust,
            still_led,
            marks,
        } => {
            out.u64(epoch.0);
            out.u64(number.0);
            out.u8(*trust as u8);
            out.u8((*still_led).into());
            out.each(marks, |out, (epoch, end)| {
                out.u64(epoch.0);
                out.u64(end.0);
            });
        }
        Frame::Refused { epoch } | Frame::Resign { epoch } => out.u64(epoch.0),
        Frame::Gap {
            stamp,
            partition,
            from,
            to,
        } => {
            out.stamp(stamp);
            out.u32(partition.0);
            out.u64(from.0);
            out.u64(to.0);
        }
    }
}

fn hello(hello: &Hello, out: &mut Out<'_>) {
    out.u8(hello.versions.0);
    out.u8(hello.versions.1);
    out.0.extend_from_slice(&hello.log_id);
    out.name(&hello.cluster);
    out.name(&hello.node);
    out.u64(hello.disk.0);
    out.u64(hello.starts.0);
    out.u64(hello.clock_ms);
}
