//! The value of `members/<node>` in etcd: which disk a node has and how often it has started with it.
//!
//! At a start a node counts its starts up on its disk first, then here by compare-and-swap. So the disk is never behind
//! the key, unless its folder was rolled back or copied.

use serde::{Deserialize, Serialize};

use crate::key::Revision;
use crate::marks::{DiskId, Member, Node, Starts};

pub const BYTES_MAX: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemberKey {
    pub disk: DiskId,
    pub starts: Starts,
}

/// Why the value of a key is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemberKeyError {
    #[error("it has {0} bytes; a member's key has at most {BYTES_MAX}")]
    Length(usize),
    #[error("it is not the JSON of a member's key: {0}")]
    Json(String),
    #[error("it is the key of {0}")]
    Node(Node),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    member: String,
    starts: u64,
}

impl MemberKey {
    /// The value to write below the name of this node.
    #[must_use]
    pub fn encode(&self, node: &Node) -> String {
        let (node, disk) = (node.clone(), self.disk);
        let wire = Wire {
            member: Member { node, disk }.to_string(),
            starts: self.starts.0,
        };
        serde_json::to_string(&wire).expect("a string and a number")
    }

    /// # Errors
    /// A value that [`encode`](Self::encode) does not make for this node.
    pub fn decode(value: &[u8], node: &Node) -> Result<Self, MemberKeyError> {
        if value.len() > BYTES_MAX {
            return Err(MemberKeyError::Length(value.len()));
        }
        let wire: Wire = serde_json::from_slice(value)
            .map_err(|error| MemberKeyError::Json(error.to_string()))?;
        let member: Member = wire
            .member
            .parse()
            .map_err(|error: crate::marks::NameError| MemberKeyError::Json(error.to_string()))?;
        if member.node != *node {
            return Err(MemberKeyError::Node(member.node));
        }
        Ok(Self {
            disk: member.disk,
            starts: Starts(wire.starts),
        })
    }
}

/// What a node that starts does about its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registration {
    /// Write this if the key still has this revision; 0: if there is none.
    Write {
        expected: Revision,
        key: MemberKey,
    },
    /// The key is this life's own: an earlier write of it had an unknown outcome.
    Done,
    Refused(RegistrationError),
}

/// Why a node may not start with this folder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistrationError {
    #[error(
        "the folder has started {} times and its key in etcd says {}: it was rolled back or copied; \
         stop the copy, or empty the folder and join anew",
        stored.0, key.0
    )]
    WentBack { stored: Starts, key: Starts },
    #[error(
        "the key in etcd belongs to disk {key}, and this folder is disk {here}: another node has this name, \
         or the folder was replaced"
    )]
    OtherDisk { key: DiskId, here: DiskId },
}

/// `mine` is what this life has written to its disk: one start more than it found there. `found` is the key as read
/// linearizably. `has_tried`: this life has sent a write whose outcome it does not know.
#[must_use]
pub fn register(
    mine: MemberKey,
    found: Option<(Revision, MemberKey)>,
    has_tried: bool,
) -> Registration {
    let Some((expected, key)) = found else {
        return Registration::Write {
            expected: Revision(0),
            key: mine,
        };
    };
    if key.disk != mine.disk {
        return Registration::Refused(RegistrationError::OtherDisk {
            key: key.disk,
            here: mine.disk,
        });
    }
    if key.starts < mine.starts {
        return Registration::Write {
            expected,
            key: mine,
        };
    }
    if key.starts == mine.starts && has_tried {
        return Registration::Done;
    }
    Registration::Refused(RegistrationError::WentBack {
        stored: Starts(mine.starts.0.saturating_sub(1)),
        key: key.starts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(starts: u64) -> MemberKey {
        MemberKey {
            disk: DiskId(7),
            starts: Starts(starts),
        }
    }

    fn node(name: &str) -> Node {
        Node::new(name).expect("a name")
    }

    #[test]
    fn a_key_reads_back_below_its_own_name_only() {
        let value = key(u64::MAX).encode(&node("n1"));
        assert_eq!(
            value,
            r#"{"member":"n1/0000000000000007","starts":18446744073709551615}"#
        );
        let read = |value: &[u8], name| MemberKey::decode(value, &node(name));
        assert_eq!(read(value.as_bytes(), "n1"), Ok(key(u64::MAX)));
        let other = MemberKeyError::Node(node("n1"));
        assert_eq!(read(value.as_bytes(), "n2"), Err(other));
        let long = vec![b' '; BYTES_MAX + 1];
        assert_eq!(read(&long, "n1"), Err(MemberKeyError::Length(1025)));
        for wrong in [r#"{}"#, r#"{"member":"n1","starts":1}"#, "[]", ""] {
            let error = read(wrong.as_bytes(), "n1").expect_err(wrong);
            assert!(matches!(error, MemberKeyError::Json(_)), "{error}");
        }
    }

    fn register_at(mine: u64, found: Option<u64>, has_tried: bool) -> Registration {
        let found = found.map(|starts| (Revision(9), key(starts)));
        register(key(mine), found, has_tried)
    }

    fn write(expected: u64, mine: u64) -> Registration {
        Registration::Write {
            expected: Revision(expected),
            key: key(mine),
        }
    }

    #[test]
    fn each_start_is_written_over_the_one_before() {
        assert_eq!(register_at(1, None, false), write(0, 1));
        assert_eq!(register_at(2, Some(1), false), write(9, 2));
        // A crash between the two writes, once and several times.
        assert_eq!(register_at(1, None, true), write(0, 1));
        assert_eq!(register_at(5, Some(1), false), write(9, 5));
    }

    #[test]
    fn an_own_write_with_an_unknown_outcome_is_recognised() {
        assert_eq!(register_at(2, Some(2), true), Registration::Done);
        assert_eq!(register_at(2, Some(1), true), write(9, 2));
    }

    #[test]
    fn a_folder_that_was_rolled_back_is_refused() {
        // One start back: the number that it counts up to is already there.
        for (mine, found, has_tried) in [(2, 2, false), (2, 3, false), (2, 3, true)] {
            let refused = register_at(mine, Some(found), has_tried);
            let error = RegistrationError::WentBack {
                stored: Starts(mine - 1),
                key: Starts(found),
            };
            assert_eq!(refused, Registration::Refused(error));
        }
    }

    #[test]
    fn a_key_of_another_disk_is_not_overwritten() {
        let other = MemberKey {
            disk: DiskId(8),
            starts: Starts(1),
        };
        let refused = register(key(5), Some((Revision(9), other)), true);
        let (key, here) = (DiskId(8), DiskId(7));
        let error = RegistrationError::OtherDisk { key, here };
        assert!(
            error.to_string().contains("disk 0000000000000008"),
            "{error}"
        );
        assert_eq!(refused, Registration::Refused(error));
    }

    /// Any history of starts, crashes and unknown outcomes of one folder is never taken for a rollback.
    #[test]
    fn crashes_alone_never_look_like_a_rollback() {
        use proptest::prelude::*;
        proptest!(|(lives in proptest::collection::vec((0_u8..4, any::<bool>()), 1..30))| {
            let (mut disk, mut etcd) = (0, None);
            for (end, is_written) in lives {
                disk += 1;
                let mut has_tried = false;
                // Ends: before the key was read; after an unknown write; registered; registered at the second attempt.
                for _ in 0..end {
                    match register_at(disk, etcd, has_tried) {
                        Registration::Write { key, .. } => {
                            has_tried = true;
                            if is_written || end > 1 {
                                etcd = Some(key.starts.0);
                            }
                        }
                        Registration::Done => {}
                        Registration::Refused(error) => prop_assert!(false, "{}", error),
                    }
                }
            }
        });
    }
}
