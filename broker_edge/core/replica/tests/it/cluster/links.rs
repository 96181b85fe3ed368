//! Connections between two nodes: ordered both ways, late, stuck in one direction, or broken with all that is on them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use headwater_cluster::frames::{self, Addressed, Decoded, Frame};
use headwater_cluster::marks::ShardId;
use headwater_replica::Input;

use super::{Checked, Happening, NODES, World, node};

/// As a socket's buffer: batches are read when there is room.
const ON_THE_WAY_MAX: usize = 4;

#[derive(Default)]
struct Pipe {
    /// When each arrives, and its bytes.
    frames: VecDeque<(u64, Vec<u8>)>,
}

#[derive(Default)]
pub(crate) struct Links {
    /// By pair of nodes, the lower first: its number, while there is one.
    up: BTreeMap<(usize, usize), u64>,
    pipes: BTreeMap<(usize, usize), Pipe>,
    /// Directions in which nothing arrives.
    pub stuck: BTreeSet<(usize, usize)>,
    made: u64,
}

fn pair(one: usize, other: usize) -> (usize, usize) {
    (one.min(other), one.max(other))
}

impl Links {
    /// Of the newest connection of the two.
    pub fn number(&self, one: usize, other: usize) -> u64 {
        self.up.get(&pair(one, other)).copied().unwrap_or(self.made)
    }

    pub fn end(&mut self, one: usize, other: usize) {
        self.up.remove(&pair(one, other));
        for way in [(one, other), (other, one)] {
            self.pipes.remove(&way);
        }
    }

    fn is_up(&self, one: usize, other: usize) -> bool {
        self.up.contains_key(&pair(one, other))
    }

    fn is_stuck(&self, one: usize, other: usize) -> bool {
        self.stuck.contains(&(one, other)) || self.stuck.contains(&(other, one))
    }
}

impl World {
    /// Tries to make a connection, and again later if there is none.
    pub(super) fn connect(&mut self, one: usize, other: usize) -> Checked {
        if self.links.is_up(one, other) {
            return Ok(());
        }
        let starts = [one, other].map(|at| {
            let life = self.nodes[at].life.as_ref();
            life.map(|life| {
                (
                    life.replica.me().clone(),
                    life.replica.starts(),
                    life.number,
                )
            })
        });
        let [Some(first), Some(second)] = starts else {
            // Whoever starts tries again; a live host refuses meanwhile.
            for (dead, alive) in [(one, other), (other, one)] {
                if self.nodes[dead].life.is_none() {
                    let member = self.nodes[dead].member();
                    let number = self.nodes[alive].life.as_ref().map(|life| life.number);
                    if let Some(number) = number {
                        self.give(alive, number, Input::Gone { peer: member })?;
                    }
                }
            }
            return Ok(());
        };
        let is_asleep = [one, other]
            .iter()
            .any(|at| self.nodes[*at].paused_until_ms > self.now_ms);
        if self.links.is_stuck(one, other) || is_asleep {
            let delay_ms = self.between(50, 500);
            self.after(delay_ms, Happening::Connect { one, other });
            return Ok(());
        }
        self.links.made += 1;
        self.links.up.insert(pair(one, other), self.links.made);
        for way in [(one, other), (other, one)] {
            self.links.pipes.insert(way, Pipe::default());
        }
        for (at, peer, of_peer, number) in [
            (one, other, &second, first.2),
            (other, one, &first, second.2),
        ] {
            if let Some(life) = &mut self.nodes[at].life {
                life.linked.insert(peer);
            }
            let input = Input::Linked {
                peer: of_peer.0.clone(),
                starts: of_peer.1,
            };
            self.give(at, number, input)?;
        }
        Ok(())
    }

    pub(super) fn give(&mut self, at: usize, life: u64, input: Input) -> Checked {
        self.with_life(at, life, |node, now_ms| {
            node.life
                .as_mut()
                .expect("it lives")
                .replica
                .handle(input, now_ms);
        })
    }

    /// A reset: what is on the connection is lost, and both notice, one after the other.
    pub(super) fn break_link(&mut self, one: usize, other: usize) {
        if !self.links.is_up(one, other) {
            return;
        }
        let link = self.links.number(one, other);
        self.links.end(one, other);
        for (at, peer) in [(one, other), (other, one)] {
            let number = self.nodes[at].life.as_ref().map(|life| life.number);
            if let Some(life) = number {
                let pause_ms = self.nodes[at].paused_until_ms.saturating_sub(self.now_ms);
                let delay_ms = pause_ms + self.between(1, 100);
                self.after(
                    delay_ms,
                    Happening::Unlinked {
                        node: at,
                        life,
                        peer,
                        link,
                    },
                );
            }
        }
        let delay_ms = self.between(50, 600);
        let (one, other) = pair(one, other);
        self.after(delay_ms, Happening::Connect { one, other });
    }

    pub(super) fn unlinked(&mut self, at: usize, life: u64, peer: usize, link: u64) -> Checked {
        let is_newer = self.links.is_up(at, peer) && self.links.number(at, peer) > link;
        if !self.nodes[at].is_alive(life) || is_newer {
            return Ok(());
        }
        if let Some(life) = &mut self.nodes[at].life {
            life.linked.remove(&peer);
        }
        let member = self.nodes[peer].member();
        self.give(at, life, Input::Unlinked { peer: member })?;
        let (one, other) = pair(at, peer);
        let delay_ms = self.between(10, 200);
        self.after(delay_ms, Happening::Connect { one, other });
        Ok(())
    }

    pub(super) fn send(&mut self, from: usize, to: usize, frame: &Frame) {
        if !self.links.is_up(from, to) {
            return;
        }
        let mut bytes = Vec::new();
        let addressed = Addressed {
            shard: ShardId(0),
            frame: frame.clone(),
        };
        frames::encode(&addressed, &mut bytes);
        let delay_ms = match self.random.below(20) {
            0 => self.between(5, 120),
            _ => self.between(0, 3),
        };
        let link = self.links.number(from, to);
        let Some(pipe) = self.links.pipes.get_mut(&(from, to)) else {
            return;
        };
        let after = pipe.frames.back().map_or(0, |last| last.0);
        let at = (self.now_ms + delay_ms).max(after);
        pipe.frames.push_back((at, bytes));
        let delay_ms = at - self.now_ms;
        self.after(delay_ms, Happening::Deliver { from, to, link });
    }

    /// Fills what has room with batches.
    pub(super) fn pump(&mut self, from: usize) {
        for to in (0..NODES).filter(|to| *to != from) {
            let peer = self.nodes[to].member();
            while self
                .links
                .pipes
                .get(&(from, to))
                .is_some_and(|pipe| pipe.frames.len() < ON_THE_WAY_MAX)
            {
                let now_ms = self.now_ms;
                let Some(life) = &mut self.nodes[from].life else {
                    return;
                };
                let Some(frame) = life.replica.next_batches(&peer, now_ms) else {
                    break;
                };
                self.send(from, to, &frame);
            }
        }
    }

    pub(super) fn deliver(&mut self, from: usize, to: usize, link: u64) -> Checked {
        if !self.links.is_up(from, to)
            || self.links.number(from, to) != link
            || self.links.stuck.contains(&(from, to))
        {
            return Ok(());
        }
        let Some(number) = self.nodes[to].life.as_ref().map(|life| life.number) else {
            return Ok(());
        };
        let pause_ms = self.nodes[to].paused_until_ms.saturating_sub(self.now_ms);
        if pause_ms > 0 {
            self.after(pause_ms, Happening::Deliver { from, to, link });
            return Ok(());
        }
        let now_ms = self.now_ms;
        let pipe = self.links.pipes.get_mut(&(from, to));
        let due = pipe.and_then(|pipe| {
            let is_due = pipe.frames.front().is_some_and(|(at, _)| *at <= now_ms);
            if is_due {
                pipe.frames.pop_front()
            } else {
                None
            }
        });
        let Some((_, bytes)) = due else {
            return Ok(());
        };
        let decoded = frames::decode(&bytes, true);
        let Ok(Decoded::Frame(Addressed { frame, .. }, _)) = decoded else {
            return Err(format!("a frame does not read back: {decoded:?}"));
        };
        if self.prints
            && !matches!(
                frame,
                Frame::Beacon { .. } | Frame::BeaconAnswer { .. } | Frame::Batches { .. }
            )
        {
            let text = format!("{frame:?}");
            self.note(|| format!("{} -> {}: {text}", node::name(from), node::name(to)));
        }
        let member = self.nodes[from].member();
        self.give(
            to,
            number,
            Input::Frame {
                from: member,
                frame,
            },
        )?;
        self.pump(from);
        Ok(())
    }

    /// Something arrives again in this direction.
    pub(super) fn free(&mut self, from: usize, to: usize) {
        self.links.stuck.remove(&(from, to));
        let link = self.links.number(from, to);
        let count = self
            .links
            .pipes
            .get(&(from, to))
            .map_or(0, |pipe| pipe.frames.len());
        for _ in 0..count {
            self.after(1, Happening::Deliver { from, to, link });
        }
    }
}
