//! The numbers and names of the protocol. Plain values.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Place of a record in its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Offset(pub u64);

/// Term of one leader of one shard. 0 is before the first leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

/// Global number of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PartitionId(pub u32);

/// Number of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ShardId(pub u16);

/// How often the node with this disk has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Starts(pub u64);

/// Number of a `Follow` among those of one life of a follower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FollowNumber(pub u64);

/// Names a data folder: random, made with it. An emptied or replaced folder is another disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DiskId(pub u64);

/// One start of one disk. What an earlier life said does not bind a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Life {
    pub disk: DiskId,
    pub starts: Starts,
}

/// What the frames between `Follow` and the next one carry, so that older ones are recognised and dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp {
    pub epoch: Epoch,
    /// Of the follower.
    pub starts: Starts,
    pub follow: FollowNumber,
}

/// What a replica may be counted for. Kept on disk, and taken back only by `Sound` or an office of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum Trust {
    #[default]
    Sound = 0,
    /// Started without a clean stop before: its disk may have lost a tail without a trace.
    Unproven = 1,
    /// Known to have lost bytes, or not known not to have.
    Suspect = 2,
}

impl Trust {
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Sound, Self::Unproven, Self::Suspect]
            .into_iter()
            .find(|trust| *trust as u8 == number)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("{0:?} is not a node name: use 1 to 63 letters, digits, '-', '_' or '.'")]
    Node(String),
    #[error("{0:?} is not a member: expected NODE/DISK, where DISK has 16 hexadecimal digits")]
    Member(String),
}

/// Name of a node, as in its certificate: 1 to [`Node::BYTES_MAX`] letters, digits, `-`, `_` or `.`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(Arc<str>);

impl Node {
    pub const BYTES_MAX: usize = 63;

    /// # Errors
    /// A name that is empty, too long, or has other characters.
    pub fn new(name: &str) -> Result<Self, NameError> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > Self::BYTES_MAX || !name.bytes().all(fits) {
            return Err(NameError::Node(name.chars().take(80).collect()));
        }
        Ok(Self(name.into()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A replica as keys name it: `NODE/DISK`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    pub node: Node,
    pub disk: DiskId,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node, self.disk)
    }
}

impl FromStr for Member {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let wrong = || NameError::Member(text.chars().take(120).collect());
        let (node, disk) = text.split_once('/').ok_or_else(wrong)?;
        let digits = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if disk.len() != 16 || !disk.bytes().all(digits) {
            return Err(wrong());
        }
        let disk = u64::from_str_radix(disk, 16).map_err(|_| wrong())?;
        Ok(Self {
            node: Node::new(node)?,
            disk: DiskId(disk),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_reads_back_its_own_text() {
        let member = Member {
            node: Node::new("n-1.site_a").expect("a name"),
            disk: DiskId(0x0123_4567_89ab_cdef),
        };
        assert_eq!(member.to_string(), "n-1.site_a/0123456789abcdef");
        assert_eq!(member.to_string().parse(), Ok(member));
    }

    #[test]
    fn wrong_members_and_names_are_refused() {
        let long = "n".repeat(64);
        for name in ["", "a b", "a/b", "é", long.as_str()] {
            assert!(Node::new(name).is_err(), "{name}");
        }
        for text in [
            "",
            "n1",
            "n1/",
            "n1/123",
            "n1/0123456789ABCDEF",
            "n1/+123456789abcdef",
            "/0123456789abcdef",
        ] {
            assert!(text.parse::<Member>().is_err(), "{text}");
        }
    }
}
