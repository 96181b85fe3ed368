//! Bytes to frames. A peer's lengths and counts are compared with the bytes at hand before anything is allocated.

use bytes::Bytes;

use super::{
    Addressed, AlignPart, CHUNK_BYTES_MAX, Edges, FRAME_BYTES_MAX, FollowPart, Frame, HEAD_BYTES,
    HELLO_BYTES_MAX, Hello, PARTITIONS_MAX, Told, VERSION,
};
use crate::divergence::{History, HistoryError};
use crate::marks::{
    DiskId, Epoch, FollowNumber, NameError, Node, Offset, PartitionId, ShardId, Stamp, Starts,
    Trust,
};

/// Why a connection is closed: nothing after these bytes can be trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {bytes} bytes came; here it has {HEAD_BYTES} to {bytes_max}")]
    Length { bytes: u64, bytes_max: usize },
    #[error("the checksum of a frame does not match")]
    Checksum,
    #[error("a frame of version {0} came; this build speaks version {VERSION}")]
    Version(u8),
    #[error("a frame of the unknown kind {0} came")]
    Kind(u8),
    #[error("the first frame of a connection has kind {0}; it must be a Hello")]
    NotHello(u8),
    #[error("a frame of kind {kind} ends before its fields do")]
    Short { kind: u8 },
    #[error("a frame of kind {kind} has {bytes} bytes behind its fields")]
    Rest { kind: u8, bytes: usize },
    #[error("a frame of kind {kind} counts {count}; at most {count_max} fit")]
    Count {
        kind: u8,
        count: u32,
        count_max: usize,
    },
    #[error("a frame of kind {kind} has {value} in a field that cannot have it")]
    Value { kind: u8, value: u64 },
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    History(#[from] HistoryError),
}

/// What the bytes begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded {
    /// The frame needs this many bytes, whole.
    Needs(usize),
    /// A frame, and how many bytes it took.
    Frame(Addressed, usize),
}

/// Reads the frame at the beginning of `bytes`. `greeted` is false until the peer's `Hello` was read.
///
/// # Errors
/// Bytes that no build of this version sends. A length over the limit is refused as soon as its four bytes are here.
pub fn decode(bytes: &[u8], greeted: bool) -> Result<Decoded, FrameError> {
    let bytes_max = if greeted {
        FRAME_BYTES_MAX
    } else {
        HELLO_BYTES_MAX
    };
    let Some(length) = bytes.first_chunk().map(|four| u32::from_le_bytes(*four)) else {
        return Ok(Decoded::Needs(HEAD_BYTES));
    };
    let whole = u64::from(length) + 4;
    if whole < HEAD_BYTES as u64 || whole > bytes_max as u64 {
        return Err(FrameError::Length {
            bytes: whole,
            bytes_max,
        });
    }
    let whole = whole as usize;
    let Some(frame) = bytes.get(..whole) else {
        return Ok(Decoded::Needs(whole));
    };
    let mut fields = In {
        kind: frame[8],
        rest: &frame[4..],
    };
    if fields.u32()? != crc32c::crc32c(&frame[8..]) {
        return Err(FrameError::Checksum);
    }
    let (kind, version, shard) = (
        fields.u8()?,
        fields.u8()?,
        u16::from_le_bytes(fields.array()?),
    );
    if version != VERSION {
        return Err(FrameError::Version(version));
    }
    if !greeted && kind != 1 {
        return Err(FrameError::NotHello(kind));
    }
    let frame = body(kind, &mut fields)?;
    if !fields.rest.is_empty() {
        return Err(FrameError::Rest {
            kind,
            bytes: fields.rest.len(),
        });
    }
    Ok(Decoded::Frame(
        Addressed {
            shard: ShardId(shard),
            frame,
        },
        whole,
    ))
}

struct In<'a> {
    kind: u8,
    rest: &'a [u8],
}

impl<'a> In<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], FrameError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(FrameError::Short { kind: self.kind })?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (taken, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(FrameError::Short { kind: self.kind })?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, FrameError> {
        self.array::<1>().map(|one| one[0])
    }

    fn u32(&mut self) -> Result<u32, FrameError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, FrameError> {
        self.array().map(u64::from_le_bytes)
    }

    fn value(&self, value: impl Into<u64>) -> FrameError {
        FrameError::Value {
            kind: self.kind,
            value: value.into(),
        }
    }

    fn flag(&mut self) -> Result<bool, FrameError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.value(other)),
        }
    }

    fn trust(&mut self) -> Result<Trust, FrameError> {
        let number = self.u8()?;
        Trust::from_number(number).ok_or_else(|| self.value(number))
    }

    fn name(&mut self) -> Result<Node, FrameError> {
        let length = self.u8()?.into();
        let bytes = self.bytes(length)?;
        Ok(Node::new(&String::from_utf8_lossy(bytes))?)
    }

    fn offset(&mut self) -> Result<Offset, FrameError> {
        self.u64().map(Offset)
    }

    fn epoch(&mut self) -> Result<Epoch, FrameError> {
        self.u64().map(Epoch)
    }

    fn partition(&mut self) -> Result<PartitionId, FrameError> {
        self.u32().map(PartitionId)
    }

    fn stamp(&mut self) -> Result<Stamp, FrameError> {
        Ok(Stamp {
            epoch: self.epoch()?,
            starts: Starts(self.u64()?),
            follow: FollowNumber(self.u64()?),
        })
    }

    fn told(&mut self) -> Result<Told, FrameError> {
        Ok(Told {
            high_watermark: self.offset()?,
            log_start: self.offset()?,
        })
    }

    /// `bytes_least` is what one of them takes at least.
    fn each<T>(
        &mut self,
        bytes_least: usize,
        take: impl Fn(&mut Self) -> Result<T, FrameError>,
    ) -> Result<Vec<T>, FrameError> {
        let count = self.u32()?;
        let count_max = PARTITIONS_MAX.min(self.rest.len() / bytes_least);
        if count as usize > count_max {
            return Err(FrameError::Count {
                kind: self.kind,
                count,
                count_max,
            });
        }
        let mut all = Vec::with_capacity(count as usize);
        for _ in 0..count {
            all.push(take(self)?);
        }
        Ok(all)
    }

    fn history(&mut self) -> Result<History, FrameError> {
        let count = usize::from(self.u8()?);
        if count > History::LENGTH_MAX {
            return Err(HistoryError::Length { found: count }.into());
        }
        let entries: Result<Vec<_>, FrameError> = (0..count)
            .map(|_| Ok((self.epoch()?, self.offset()?)))
            .collect();
        Ok(History::new(entries?)?)
    }
}

fn body(kind: u8, from: &mut In<'_>) -> Result<Frame, FrameError> {
    Ok(match kind {
        1 => Frame::Hello(Hello {
            versions: (from.u8()?, from.u8()?),
            log_id: from.array()?,
            cluster: from.name()?,
            node: from.name()?,
            disk: DiskId(from.u64()?),
            starts: Starts(from.u64()?),
            clock_ms: from.u64()?,
        }),
        2 => Frame::Beacon {
            epoch: from.epoch()?,
            sent_ms: from.u64()?,
            is_stuck: from.flag()?,
            told: from.each(16, In::told)?,
        },
        3 => Frame::BeaconAnswer {
            epoch: from.epoch()?,
            sent_ms: from.u64()?,
            reaches_etcd: from.flag()?,
        },
        4 => Frame::Follow {
            stamp: from.stamp()?,
            trust: from.trust()?,
            credit_bytes: from.u32()?,
            parts: from.each(17, |from| {
                Ok(FollowPart {
                    log_start: from.offset()?,
                    end: from.offset()?,
                    history: from.history()?,
                })
            })?,
        },
        5 => Frame::Align {
            stamp: from.stamp()?,
            doubt: from.flag()?,
            parts: from.each(25, |from| {
                Ok(AlignPart {
                    restart: from.flag()?,
                    from: from.offset()?,
                    log_start: from.offset()?,
                    high_watermark: from.offset()?,
                })
            })?,
        },
        6 => batches(from)?,
        7 => Frame::Synced {
            stamp: from.stamp()?,
            has_room: from.flag()?,
            credit_bytes: from.u32()?,
            parts: from.each(12, |from| Ok((from.partition()?, from.offset()?)))?,
        },
        8 => Frame::Sound {
            stamp: from.stamp()?,
        },
        9 => Frame::Ask {
            epoch: from.epoch()?,
            number: FollowNumber(from.u64()?),
            leader_resigned: from.flag()?,
        },
        10 => Frame::Answer {
            epoch: from.epoch()?,
            number: FollowNumber(from.u64()?),
            trust: from.trust()?,
            still_led: from.flag()?,
            marks: from.each(16, |from| Ok((from.epoch()?, from.offset()?)))?,
        },
        11 => Frame::Refused {
            epoch: from.epoch()?,
        },
        12 => Frame::Resign {
            epoch: from.epoch()?,
        },
        13 => Frame::Gap {
            stamp: from.stamp()?,
            partition: from.partition()?,
            from: from.offset()?,
            to: from.offset()?,
        },
        other => return Err(FrameError::Kind(other)),
    })
}

fn batches(from: &mut In<'_>) -> Result<Frame, FrameError> {
    let (stamp, partition, told) = (from.stamp()?, from.partition()?, from.told()?);
    let edges = match from.u8()? {
        bits @ 0..=3 => Edges {
            first: bits & 1 != 0,
            last: bits & 2 != 0,
        },
        other => return Err(from.value(other)),
    };
    let count = from.u32()?;
    if count as usize > CHUNK_BYTES_MAX {
        return Err(FrameError::Count {
            kind: 6,
            count,
            count_max: CHUNK_BYTES_MAX,
        });
    }
    let bytes = Bytes::copy_from_slice(from.bytes(count as usize)?);
    Ok(Frame::Batches {
        stamp,
        partition,
        told,
        edges,
        bytes,
    })
}
