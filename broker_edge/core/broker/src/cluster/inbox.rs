//! What other threads have for the thread of a node: the newest value of each kind, so that nothing can pile up.

use std::collections::BTreeMap;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock};

use headwater_cluster::key::{Revision, ShardKey};
use headwater_cluster::marks::Node;
use headwater_cluster::shard::CasOutcome;
use mio::Waker;
use parking_lot::Mutex;

use super::keys::NodeKey;
use super::report::Report;
use super::transfer;

/// Reports that may be asked for at once; more are refused.
const ASKED_MAX: usize = 16;

/// How far the end of a node has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ending {
    #[default]
    None,
    /// Give the shard away, and have nobody wait for this replica.
    HandOver,
    Stop,
}

#[derive(Default)]
pub struct News {
    /// The replica has one compare-and-swap on its way.
    pub cas: Option<CasOutcome>,
    pub read: Option<(Revision, ShardKey)>,
    pub watched: Option<(Revision, ShardKey)>,
    /// All that are registered at present.
    pub nodes: Option<BTreeMap<Node, NodeKey>>,
    pub reaches_etcd: Option<bool>,
    /// The office could not be opened.
    pub has_failed: bool,
    pub ending: Ending,
    /// A second one while this waits is refused.
    pub transfer: Option<transfer::Asked>,
    pub asked: Vec<SyncSender<Report>>,
}

#[derive(Default)]
pub struct Inbox {
    news: Mutex<News>,
    waker: OnceLock<Arc<Waker>>,
}

impl Inbox {
    /// Wakes this from now on.
    pub fn wakes(&self, waker: Arc<Waker>) {
        // It is set once, by the thread of the node.
        let _ = self.waker.set(waker);
    }

    pub fn put(&self, change: impl FnOnce(&mut News)) {
        change(&mut self.news.lock());
        self.wake();
    }

    pub fn wake(&self) {
        if let Some(waker) = self.waker.get()
            && let Err(error) = waker.wake()
        {
            tracing::error!(%error, "could not wake the thread of the node");
        }
    }

    /// Asks for a report. The answer is missing when too many wait, or the node has ended.
    pub fn ask(&self, answer: SyncSender<Report>) {
        self.put(|news| {
            if news.asked.len() < ASKED_MAX {
                news.asked.push(answer);
            }
        });
    }

    /// Asks to give the log to another node. The answer is missing when another request waits, or the node has ended.
    pub fn transfer(&self, asked: transfer::Asked) {
        self.put(|news| {
            news.transfer.get_or_insert(asked);
        });
    }

    /// Everything that came. An end that was asked for stays so.
    pub fn take(&self) -> News {
        let mut news = self.news.lock();
        let ending = news.ending;
        std::mem::replace(
            &mut *news,
            News {
                ending,
                ..News::default()
            },
        )
    }
}
