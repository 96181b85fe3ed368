//! A leader that gives the log to the node that an operator has named. As at a stop, what clients left is stored first,
//! so nothing that they had confirmed comes again; but the process goes on, as a follower, or as the leader if the other
//! node does not take over in time.

use std::sync::mpsc::SyncSender;

use headwater_cluster::marks::{Member, Node as Name};
use headwater_replica::Input;

use super::leaving::{SUCCESSOR_MS, successors};
use super::node::Node;

/// What an operator asks for, and whom to tell whether it was begun.
pub struct Asked {
    pub to: Name,
    pub answer: SyncSender<Result<Begun, Refusal>>,
}

/// It goes on behind the answer: who leads in the end is seen in the reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    pub from: Name,
    /// Of the leader that gives the log away; the other one leads in a higher epoch.
    pub epoch: u64,
}

/// Why the log is not given away.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0} is no node of this cluster")]
    NoNode(Name),
    #[error("this node does not lead; ask {}", .0.as_ref().map_or("when a node leads", Name::as_str))]
    NotLeader(Option<Name>),
    #[error("{0} leads already")]
    Leads(Name),
    #[error("{0} is not in sync, so it may lack records; wait until it is")]
    NotInSync(Name),
    #[error("{0} is not linked with the leader; look at its log")]
    NotLinked(Name),
    #[error("this node is giving the log to another one already")]
    Busy,
}

#[derive(Debug)]
pub(super) struct Transfer {
    to: Member,
    /// When it was asked to lead. Before that clients are sent away.
    asked_ms: Option<u64>,
}

impl Node {
    pub(super) fn begin_transfer(&mut self, asked: &Asked) {
        let begun = self.may_transfer(&asked.to).map(|to| {
            tracing::info!(to = %to.node, "an operator has asked to give the log to another node");
            self.transfer = Some(Transfer { to, asked_ms: None });
            self.reopening.cancel();
            // Where the leader will be, if all goes well.
            self.tell_elsewhere();
            if self.parts.desk.is_busy() {
                self.parts.desk.store();
            }
            Begun {
                from: self.parts.replica.me().node.clone(),
                epoch: self.parts.replica.shard().epoch().0,
            }
        });
        // An error means that nobody waits for it any more.
        let _ = asked.answer.try_send(begun);
    }

    fn may_transfer(&self, to: &Name) -> Result<Member, Refusal> {
        let parts = &self.parts;
        let (shard, name) = (parts.replica.shard(), to.clone());
        let key = shard.key().ok_or(Refusal::NotLeader(None))?;
        if !key.replicas.iter().any(|member| member.node == *to) {
            return Err(Refusal::NoNode(name));
        }
        if !shard.is_leading() || parts.replica.is_over() {
            let leader = self.leader.as_ref();
            return Err(Refusal::NotLeader(leader.map(|leader| leader.node.clone())));
        }
        if parts.replica.me().node == *to {
            return Err(Refusal::Leads(name));
        }
        if self.gives_away() {
            return Err(Refusal::Busy);
        }
        if !key.in_sync.iter().any(|member| member.node == *to) {
            return Err(Refusal::NotInSync(name));
        }
        let mut ready = successors(parts).filter(|member| member.node == *to);
        ready.next().ok_or(Refusal::NotLinked(name))
    }

    /// Does what is due of it.
    pub(super) fn transfer_step(&mut self, now: u64) {
        let Some(transfer) = &mut self.transfer else {
            return;
        };
        match transfer.asked_ms {
            None if self.parts.desk.is_busy() => {}
            None => {
                transfer.asked_ms = Some(now);
                let to = transfer.to.clone();
                tracing::info!(to = %to.node, "gives the log to another node");
                self.give(Input::HandOver { to }, now);
            }
            Some(at) if now >= at + SUCCESSOR_MS => self.end_transfer(),
            Some(_) => {}
        }
    }

    /// The other node did not take over in time, or cannot: this one goes on.
    fn end_transfer(&mut self) {
        if let Some(transfer) = self.transfer.take() {
            tracing::warn!(to = %transfer.to.node, "the other node did not take over the log, so this one goes on");
            self.tell_elsewhere();
            self.parts.desk.open();
        }
    }

    /// Who is to lead next, while the log is given away.
    pub(super) fn transfers_to(&self) -> Option<&Member> {
        self.transfer.as_ref().map(|transfer| &transfer.to)
    }
}
