//! A store in memory, for simulators and tests. It has no clock: leases end when it is told so, and a lost answer is
//! unknown at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::error::{Error, Fault};
use crate::store::{
    CasOutcome, Change, KeyValue, LeaseId, Listing, MetaStore, Read, Renewal, Revision, Update,
    Watch, Why,
};

/// What happens to a compare-and-swap whose outcome stays unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// It never arrives.
    Request,
    /// It is carried out.
    Answer,
    /// It is carried out at the next [`FakeStore::land`], whatever was written until then.
    Late,
}

#[derive(Debug, Clone, Default)]
pub struct FakeStore {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Sent to when something has changed that a watch waits for.
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct State {
    revision: Revision,
    /// Changes up to here are not in `changes`.
    compacted: Revision,
    keys: BTreeMap<String, KeyValue>,
    changes: Vec<Change>,
    leases: BTreeMap<LeaseId, Duration>,
    last_lease: i64,
    losses: VecDeque<Loss>,
    late: Vec<Cas>,
    is_away: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            // As etcd's: 0 is the revision of a key that does not exist.
            revision: Revision(1),
            compacted: Revision(0),
            keys: BTreeMap::new(),
            changes: Vec::new(),
            leases: BTreeMap::new(),
            last_lease: 0,
            losses: VecDeque::new(),
            late: Vec::new(),
            is_away: false,
        }
    }
}

#[derive(Debug)]
struct Cas {
    key: String,
    expected: Revision,
    value: Vec<u8>,
    lease: Option<LeaseId>,
}

impl FakeStore {
    /// Loses the next compare-and-swap that is not yet told to be lost.
    pub fn lose(&self, loss: Loss) {
        self.shared.state.lock().losses.push_back(loss);
    }

    /// Carries out what was [`Loss::Late`], in its order.
    pub fn land(&self) {
        let mut state = self.shared.state.lock();
        for cas in std::mem::take(&mut state.late) {
            // Nobody waits for the outcome any more.
            let _ = state.cas(cas);
        }
        self.changed();
    }

    /// While it is away nothing is carried out and watches see nothing.
    pub fn set_away(&self, is_away: bool) {
        self.shared.state.lock().is_away = is_away;
        self.changed();
    }

    /// Forgets all changes up to now.
    pub fn compact(&self) {
        let mut state = self.shared.state.lock();
        state.compacted = state.revision;
        state.changes.clear();
    }

    /// Ends a lease, as when nobody has renewed it in time.
    pub fn expire(&self, lease: LeaseId) {
        self.shared.state.lock().end(lease);
        self.changed();
    }

    /// Deletes a key, as an operator can.
    pub fn delete(&self, key: &str) {
        self.shared
            .state
            .lock()
            .remove(BTreeSet::from([key.to_owned()]));
        self.changed();
    }

    fn changed(&self) {
        // Fails when nobody watches.
        let _ = self.shared.changed.send(());
    }

    fn reached<T>(&self, act: impl FnOnce(&mut State) -> T) -> Result<T, Error> {
        let mut state = self.shared.state.lock();
        if state.is_away {
            return Err(away());
        }
        Ok(act(&mut state))
    }
}

fn away() -> Error {
    Fault::Unreachable("it is away".to_owned()).at(&"fake")
}

impl State {
    fn listing(&self, prefix: &str) -> Listing {
        let from = self.keys.range(prefix.to_owned()..);
        let keys = from.take_while(|(key, _)| key.starts_with(prefix));
        Listing {
            revision: self.revision,
            keys: keys.map(|(_, found)| found.clone()).collect(),
        }
    }

    fn cas(&mut self, cas: Cas) -> CasOutcome {
        let found = self.keys.get(&cas.key);
        if found.map_or(Revision(0), |found| found.revision) != cas.expected {
            return CasOutcome::Conflict(found.cloned());
        }
        if cas
            .lease
            .is_some_and(|lease| !self.leases.contains_key(&lease))
        {
            return CasOutcome::NotDone(Fault::NoLease.at(&"fake"));
        }
        self.revision.0 += 1;
        let written = KeyValue {
            key: cas.key.clone(),
            revision: self.revision,
            value: cas.value.clone(),
            lease: cas.lease,
        };
        self.keys.insert(cas.key.clone(), written);
        self.changes.push(Change {
            key: cas.key,
            revision: self.revision,
            value: Some(cas.value),
        });
        CasOutcome::Done(self.revision)
    }

    /// Deletes the keys of a lease, all in one revision.
    fn end(&mut self, lease: LeaseId) {
        if self.leases.remove(&lease).is_none() {
            return;
        }
        let is_of_lease = |found: &&KeyValue| found.lease == Some(lease);
        let keys: BTreeSet<_> = self
            .keys
            .values()
            .filter(is_of_lease)
            .map(|found| found.key.clone())
            .collect();
        self.remove(keys);
    }

    fn remove(&mut self, keys: BTreeSet<String>) {
        self.revision.0 += u64::from(!keys.is_empty());
        for key in keys {
            self.keys.remove(&key);
            self.changes.push(Change {
                key,
                revision: self.revision,
                value: None,
            });
        }
    }
}

impl MetaStore for FakeStore {
    type Watch = FakeWatch;

    async fn get(&self, key: &str) -> Result<Read, Error> {
        self.reached(|state| Read {
            revision: state.revision,
            found: state.keys.get(key).cloned(),
        })
    }

    async fn get_all(&self, prefix: &str) -> Result<Listing, Error> {
        self.reached(|state| state.listing(prefix))
    }

    async fn cas(
        &self,
        key: &str,
        expected: Revision,
        value: Vec<u8>,
        lease: Option<LeaseId>,
    ) -> CasOutcome {
        let key = key.to_owned();
        let cas = Cas {
            key,
            expected,
            value,
            lease,
        };
        let done = self.reached(|state| {
            let loss = state.losses.pop_front();
            let lost = Fault::Lost("as told".to_owned()).at(&"fake");
            match loss {
                None => return state.cas(cas),
                Some(Loss::Request) => {}
                Some(Loss::Answer) => drop(state.cas(cas)),
                Some(Loss::Late) => state.late.push(cas),
            }
            CasOutcome::Unknown(lost)
        });
        self.changed();
        done.unwrap_or_else(CasOutcome::NotDone)
    }

    fn watch(&self, prefix: &str) -> FakeWatch {
        FakeWatch {
            store: self.clone(),
            changed: self.shared.changed.subscribe(),
            prefix: prefix.to_owned(),
            seen: None,
            is_away: false,
        }
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, Error> {
        self.reached(|state| {
            state.last_lease += 1;
            let lease = LeaseId(state.last_lease);
            state.leases.insert(lease, ttl);
            lease
        })
    }

    async fn renew(&self, lease: LeaseId) -> Result<Renewal, Error> {
        self.reached(|state| match state.leases.get(&lease) {
            Some(ttl) => Renewal::Alive(*ttl),
            None => Renewal::Expired,
        })
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        let done = self.reached(|state| state.end(lease));
        self.changed();
        done
    }
}

/// A watch of a [`FakeStore`].
#[derive(Debug)]
pub struct FakeWatch {
    store: FakeStore,
    changed: watch::Receiver<()>,
    prefix: String,
    seen: Option<Revision>,
    /// It has said that the store is away.
    is_away: bool,
}

impl FakeWatch {
    fn poll(&mut self) -> Option<Update> {
        let state = self.store.shared.state.lock();
        if state.is_away {
            return (!std::mem::replace(&mut self.is_away, true)).then(|| Update::Failed(away()));
        }
        self.is_away = false;
        let before = self.seen.replace(state.revision);
        let Some(seen) = before.filter(|seen| *seen >= state.compacted) else {
            let why = before.map_or(Why::First, |_| Why::Missed);
            let listing = state.listing(&self.prefix);
            return Some(Update::All { why, listing });
        };
        let newer = state.changes.iter().filter(|change| change.revision > seen);
        let changes: Vec<_> = newer
            .filter(|change| change.key.starts_with(&self.prefix))
            .cloned()
            .collect();
        (!changes.is_empty()).then_some(Update::Changes(changes))
    }
}

impl Watch for FakeWatch {
    async fn next(&mut self) -> Update {
        loop {
            self.changed.mark_unchanged();
            if let Some(update) = self.poll() {
                return update;
            }
            let changed = self.changed.changed().await;
            changed.expect("the watch holds the sender");
        }
    }
}
