//! The key, as a linearizable store that answers late, not at all, or after it has said that it does not know.

use std::collections::BTreeSet;

use headwater_cluster::key::{Revision, ShardKey};
use headwater_cluster::marks::{Epoch, Member};
use headwater_cluster::shard::CasOutcome;
use headwater_replica::Input;

use super::{Checked, Happening, NODES, World, node};

#[derive(Debug, Clone)]
pub(crate) enum Request {
    Cas(Revision, ShardKey),
    Read,
}

#[derive(Debug)]
pub(crate) enum Step {
    /// The request arrives. `answers` is false when nobody waits for it any more.
    Arrives {
        node: usize,
        life: u64,
        request: Request,
        answers: bool,
    },
    Answers {
        node: usize,
        life: u64,
        input: Input,
    },
    /// A watch shows the key as it is now.
    Watched { node: usize },
}

#[derive(Default)]
pub(crate) struct Etcd {
    key: Option<(Revision, ShardKey)>,
    pub away_until_ms: u64,
}

impl Etcd {
    pub fn create(&mut self, replicas: BTreeSet<Member>) {
        let key = ShardKey {
            in_sync: replicas.clone(),
            replicas,
            leader: None,
            epoch: Epoch(0),
            committed: 0,
        };
        self.key = Some((Revision(1), key));
    }

    pub fn in_sync(&self) -> usize {
        self.key.as_ref().map_or(0, |(_, key)| key.in_sync.len())
    }

    pub fn has_in_sync(&self, member: &Member) -> bool {
        let key = self.key.as_ref();
        key.is_some_and(|(_, key)| key.in_sync.contains(member))
    }

    pub fn describe(&self) -> String {
        let Some((revision, key)) = &self.key else {
            return "has no key".to_owned();
        };
        let names = |set: &BTreeSet<Member>| {
            let names = set.iter().map(|member| member.node.as_str());
            names.collect::<Vec<_>>().join(",")
        };
        let leader = key
            .leader
            .as_ref()
            .map(|leader| format!("{}@{}", leader.member.node, leader.starts.0));
        format!(
            "r{} e{} {leader:?} in sync {} committed {}",
            revision.0,
            key.epoch,
            names(&key.in_sync),
            key.committed
        )
    }
}

impl World {
    pub(super) fn etcd_asked(&mut self, at: usize, request: Request) {
        let Some(life) = self.nodes[at].life.as_ref().map(|life| life.number) else {
            return;
        };
        let is_cas = matches!(request, Request::Cas(..));
        let is_lost =
            is_cas && self.plan.faults.etcd && !self.is_healed && self.random.below(12) == 0;
        if is_lost {
            // It is written, or not, before or after the caller is told that this is not known.
            let told_ms = self.between(200, 1200);
            let input = Input::Cas(CasOutcome::Unknown);
            self.after(
                told_ms,
                Happening::Etcd(Step::Answers {
                    node: at,
                    life,
                    input,
                }),
            );
            if self.random.chance(5) {
                let delay_ms = self.between(1, 4000);
                self.after(
                    delay_ms,
                    Happening::Etcd(Step::Arrives {
                        node: at,
                        life,
                        request,
                        answers: false,
                    }),
                );
            }
            return;
        }
        let delay_ms = match self.random.below(10) {
            0 => self.between(10, 400),
            _ => self.between(1, 10),
        };
        self.after(
            delay_ms,
            Happening::Etcd(Step::Arrives {
                node: at,
                life,
                request,
                answers: true,
            }),
        );
    }

    pub(super) fn etcd_step(&mut self, step: Step) -> Checked {
        match step {
            Step::Arrives {
                node,
                life,
                request,
                answers,
            } => {
                self.arrives(node, life, request, answers);
                Ok(())
            }
            Step::Answers { node, life, input } => self.answers(node, life, input),
            Step::Watched { node } => self.watched(node),
        }
    }

    fn arrives(&mut self, at: usize, life: u64, request: Request, answers: bool) {
        let away_ms = self.etcd.away_until_ms.saturating_sub(self.now_ms);
        if away_ms > 0 {
            // A client gives a write up; a read is asked again until it is answered.
            let is_cas = matches!(request, Request::Cas(..));
            let answers = answers && !is_cas;
            if is_cas {
                let input = Input::Cas(CasOutcome::Unknown);
                self.after(
                    1000,
                    Happening::Etcd(Step::Answers {
                        node: at,
                        life,
                        input,
                    }),
                );
            }
            if !is_cas || self.random.chance(2) {
                let delay_ms = away_ms + self.between(1, 300);
                self.after(
                    delay_ms,
                    Happening::Etcd(Step::Arrives {
                        node: at,
                        life,
                        request,
                        answers,
                    }),
                );
            }
            return;
        }
        let Some((revision, key)) = self.etcd.key.clone() else {
            return;
        };
        let input = match request {
            Request::Read => Input::Key {
                revision,
                key,
                was_read: true,
            },
            Request::Cas(expected, wanted) if expected == revision => {
                let revision = Revision(revision.0 + 1);
                // As etcd has it: text that has to read back.
                let read = ShardKey::decode(wanted.encode().as_bytes());
                let Ok(read) = read else {
                    return;
                };
                self.etcd.key = Some((revision, read));
                let described = self.etcd.describe();
                self.note(|| format!("etcd has from {}: {described}", node::name(at)));
                for node in 0..NODES {
                    let delay_ms = self.between(1, 150);
                    self.after(delay_ms, Happening::Etcd(Step::Watched { node }));
                }
                Input::Cas(CasOutcome::Done(revision))
            }
            Request::Cas(..) => Input::Cas(CasOutcome::Conflict(revision, key)),
        };
        if answers {
            let delay_ms = self.between(1, 10);
            self.after(
                delay_ms,
                Happening::Etcd(Step::Answers {
                    node: at,
                    life,
                    input,
                }),
            );
        }
    }

    fn answers(&mut self, at: usize, life: u64, input: Input) -> Checked {
        let pause_ms = self.nodes[at].paused_until_ms.saturating_sub(self.now_ms);
        if pause_ms > 0 {
            self.after(
                pause_ms,
                Happening::Etcd(Step::Answers {
                    node: at,
                    life,
                    input,
                }),
            );
            return Ok(());
        }
        self.give(at, life, input)
    }

    fn watched(&mut self, at: usize) -> Checked {
        let wait_ms = self
            .etcd
            .away_until_ms
            .max(self.nodes[at].paused_until_ms)
            .saturating_sub(self.now_ms);
        if wait_ms > 0 {
            self.after(wait_ms + 1, Happening::Etcd(Step::Watched { node: at }));
            return Ok(());
        }
        let life = self.nodes[at].life.as_ref().map(|life| life.number);
        let (Some((revision, key)), Some(life)) = (self.etcd.key.clone(), life) else {
            return Ok(());
        };
        self.give(
            at,
            life,
            Input::Key {
                revision,
                key,
                was_read: false,
            },
        )
    }
}
