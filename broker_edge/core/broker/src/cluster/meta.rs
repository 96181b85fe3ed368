//! The thread of etcd: watches the keys of the cluster, carries out the compare-and-swaps of the replica, and keeps the
//! lease of this node's address.
//!
//! The service's threads give way to everything else, so etcd has its own. When it is away, records are acknowledged
//! on; what waits is said once.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use headwater_cluster::key::{Revision, ShardKey};
use headwater_cluster::marks::Member;
use headwater_cluster::shard;
use headwater_etcd::{
    CasOutcome, Error, Fault, KeyValue, LeaseId, MetaStore, Renewal, Update, Watch,
};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc, watch};

use super::inbox::Inbox;
use super::join::LEASE;
use super::keys::{Keys, Meta};
use super::replicas::{Step, step};

/// After a request that failed, so that one that is refused at once is not repeated at once.
const PAUSE: Duration = Duration::from_millis(200);
const RENEW_EVERY: Duration = Duration::from_secs(3);
/// The end of the lease is told to etcd so long; else it ends by itself.
const REVOKE_WITHIN: Duration = Duration::from_secs(1);
/// The replica has one compare-and-swap on its way.
const CAS_MAX: usize = 1;

/// What the thread knows of its node.
pub struct Place {
    pub keys: Keys,
    pub meta: Meta,
    pub me: Member,
    /// It has taken no record in its life.
    pub is_new: bool,
    /// The value of `nodes/<node>`.
    pub address: Vec<u8>,
    pub lease: LeaseId,
}

/// Dropping it ends the thread and the lease.
pub struct MetaThread {
    asker: Asker,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// Asks the thread, from the thread of the node.
#[derive(Clone)]
pub struct Asker {
    cas: mpsc::Sender<(Revision, ShardKey)>,
    read: Arc<Notify>,
}

impl Asker {
    pub fn cas(&self, expected: Revision, key: ShardKey) {
        if self.cas.try_send((expected, key)).is_err() {
            tracing::error!("a second compare-and-swap was asked for while one is on its way");
        }
    }

    /// Several that wait are one.
    pub fn read(&self) {
        self.read.notify_one();
    }
}

impl MetaThread {
    /// # Errors
    /// The system refuses a thread.
    pub fn start<S: MetaStore>(
        runtime: Runtime,
        store: S,
        place: Place,
        inbox: Arc<Inbox>,
    ) -> std::io::Result<Self> {
        let (cas, asked) = mpsc::channel(CAS_MAX);
        let (stop, stopping) = watch::channel(false);
        let read = Arc::new(Notify::new());
        let asker = Asker {
            cas,
            read: Arc::clone(&read),
        };
        let work = Work {
            store,
            lease: Cell::new(place.lease),
            is_away: Cell::new(false),
            has_shard: Cell::new(false),
            place,
            inbox,
        };
        let thread = std::thread::Builder::new()
            .name("headwater-etcd".to_owned())
            .spawn(move || runtime.block_on(work.run(asked, &read, stopping)))?;
        Ok(Self {
            asker,
            stop,
            thread: Some(thread),
        })
    }

    pub fn asker(&self) -> Asker {
        self.asker.clone()
    }
}

impl Drop for MetaThread {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of etcd has panicked");
        }
    }
}

struct Work<S> {
    store: S,
    place: Place,
    inbox: Arc<Inbox>,
    lease: Cell<LeaseId>,
    is_away: Cell<bool>,
    /// Whether the newest look at all keys has shown that of the shard.
    has_shard: Cell<bool>,
}

impl<S: MetaStore> Work<S> {
    async fn run(
        self,
        asked: mpsc::Receiver<(Revision, ShardKey)>,
        read: &Notify,
        mut stopping: watch::Receiver<bool>,
    ) {
        let all = async {
            tokio::join!(
                self.watching(),
                self.writing(asked),
                self.reading(read),
                self.leasing()
            )
        };
        tokio::select! {
            _ = all => {}
            _ = stopping.wait_for(|stop| *stop) => {}
        }
        let revoked = self.store.revoke(self.lease.get());
        let revoked = tokio::time::timeout(REVOKE_WITHIN, revoked).await;
        if !matches!(revoked, Ok(Ok(()))) {
            tracing::debug!("the lease of this node ends by itself");
        }
    }

    fn heard(&self, error: Option<&Error>) {
        let was_away = self.is_away.replace(error.is_some());
        match error {
            Some(error) if !was_away => tracing::warn!(
                "{error}; records are acknowledged as before, but a change of the leader or of the in-sync set and the \
                 start of a node wait until etcd is back"
            ),
            None if was_away => tracing::info!("etcd is back; nothing waits for it any more"),
            _ => return,
        }
        let reaches = error.is_none();
        self.inbox.put(|news| news.reaches_etcd = Some(reaches));
    }

    async fn failed(&self, error: &Error) {
        self.heard(Some(error));
        tokio::time::sleep(PAUSE).await;
    }

    async fn writing(&self, mut asked: mpsc::Receiver<(Revision, ShardKey)>) {
        let name = self.place.keys.shard();
        while let Some((expected, key)) = asked.recv().await {
            let value = key.encode().into_bytes();
            let outcome = match self.store.cas(&name, expected, value, None).await {
                CasOutcome::Done(revision) => {
                    self.heard(None);
                    shard::CasOutcome::Done(revision)
                }
                CasOutcome::Conflict(found) => {
                    self.heard(None);
                    match found.and_then(|found| self.shard_key(&found)) {
                        Some((revision, key)) => shard::CasOutcome::Conflict(revision, key),
                        // What is wrong with the key is said where all keys are seen.
                        None => {
                            tokio::time::sleep(PAUSE).await;
                            shard::CasOutcome::Unknown
                        }
                    }
                }
                CasOutcome::NotDone(error) | CasOutcome::Unknown(error) => {
                    self.failed(&error).await;
                    shard::CasOutcome::Unknown
                }
            };
            self.inbox.put(|news| news.cas = Some(outcome));
        }
    }

    async fn reading(&self, wanted: &Notify) {
        loop {
            wanted.notified().await;
            loop {
                match self.store.get(&self.place.keys.shard()).await {
                    Ok(read) => {
                        self.heard(None);
                        let key = read.found.and_then(|found| self.shard_key(&found));
                        // Without one the replica waits; the watch says that it is gone, and shows when it is back.
                        if let Some(key) = key {
                            self.inbox.put(|news| news.read = Some(key));
                        }
                        break;
                    }
                    Err(error) => self.failed(&error).await,
                }
            }
        }
    }

    fn shard_key(&self, found: &KeyValue) -> Option<(Revision, ShardKey)> {
        match ShardKey::decode(&found.value) {
            Ok(key) => Some((found.revision, key)),
            Err(error) => {
                tracing::error!(key = found.key, %error, "the value of the shard's key in etcd is not used");
                None
            }
        }
    }

    async fn watching(&self) {
        let mut watch = self.store.watch(self.place.keys.prefix());
        let mut known: BTreeMap<String, KeyValue> = BTreeMap::new();
        let (mut is_replica, mut said) = (false, String::new());
        loop {
            match watch.next().await {
                Update::All { listing, .. } => {
                    known = listing
                        .keys
                        .into_iter()
                        .map(|one| (one.key.clone(), one))
                        .collect();
                }
                Update::Changes(changes) => {
                    for change in changes {
                        let key = change.key.clone();
                        match change.value {
                            None => known.remove(&key),
                            Some(value) => known.insert(
                                key,
                                KeyValue {
                                    key: change.key,
                                    revision: change.revision,
                                    value,
                                    lease: None,
                                },
                            ),
                        };
                    }
                }
                Update::Failed(error) => {
                    self.failed(&error).await;
                    continue;
                }
            }
            self.heard(None);
            self.tell(&known);
            if !is_replica {
                is_replica = self.join(&known, &mut said).await;
            }
        }
    }

    fn tell(&self, known: &BTreeMap<String, KeyValue>) {
        let keys = &self.place.keys;
        let found = known.get(&keys.shard());
        self.note_shard(found.is_some());
        let shard = found.and_then(|found| self.shard_key(found));
        let nodes = keys.nodes(known.values());
        self.inbox.put(|news| {
            news.nodes = Some(nodes);
            if shard.is_some() {
                news.watched = shard;
            }
        });
    }

    /// Says once that the key of the shard is gone. A new cluster has none yet.
    fn note_shard(&self, is_there: bool) {
        let was_there = self.has_shard.replace(is_there);
        if was_there && !is_there {
            tracing::error!(
                key = self.place.keys.shard(),
                "etcd no longer has this key: records are acknowledged as before, but the leader and the in-sync set \
                 cannot change; was etcd emptied? Restore it from its backup"
            );
        }
    }

    /// Whether this node is one of the replicas. What it writes here comes back by the watch.
    async fn join(&self, known: &BTreeMap<String, KeyValue>, said: &mut String) -> bool {
        let found: Vec<_> = known.values().cloned().collect();
        let place = &self.place;
        match step(&place.keys, &place.meta, &place.me, place.is_new, &found) {
            Step::Done => return true,
            Step::Wait(why) => {
                if *said != why {
                    tracing::info!("this node is no replica yet: {why}");
                    *said = why;
                }
            }
            Step::Write { expected, key } => {
                let (name, value) = (place.keys.shard(), key.encode().into_bytes());
                // After an attempt whose outcome is unknown this is refused, or written once.
                while let CasOutcome::NotDone(error) | CasOutcome::Unknown(error) =
                    self.store.cas(&name, expected, value.clone(), None).await
                {
                    self.failed(&error).await;
                }
            }
        }
        false
    }

    async fn leasing(&self) {
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            match self.store.renew(self.lease.get()).await {
                Ok(Renewal::Alive(_)) => self.heard(None),
                Ok(Renewal::Expired)
                | Err(Error {
                    fault: Fault::NoLease,
                    ..
                }) => self.lease_again().await,
                Err(error) => self.failed(&error).await,
            }
        }
    }

    /// The address of this node is gone, or is about to go: writes it again. An error is seen by the next renewal.
    async fn lease_again(&self) {
        let name = self.place.keys.node(&self.place.me.node);
        let Ok(lease) = self.store.grant(LEASE).await else {
            return;
        };
        let Ok(read) = self.store.get(&name).await else {
            return;
        };
        let expected = match &read.found {
            None => Revision(0),
            Some(found) if found.value == self.place.address => found.revision,
            Some(_) => {
                tracing::error!(node = %self.place.me.node, "another node has taken this name; stop one of them");
                return;
            }
        };
        let address = self.place.address.clone();
        let written = self.store.cas(&name, expected, address, Some(lease)).await;
        if matches!(written, CasOutcome::Done(_)) {
            self.lease.set(lease);
            self.heard(None);
        }
    }
}
