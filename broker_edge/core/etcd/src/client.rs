//! etcd as a [`MetaStore`]: which member is asked, what is asked again, and which answers are believed.
//!
//! One connection is used until it fails; then the next member is asked. A read is asked again at the next member. A
//! write is asked again only when it is certain that it was not carried out.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prost::Message;

use crate::belief::Belief;
use crate::connect::{Connection, answered};
use crate::error::{Error, Fault};
use crate::options::{Endpoint, Options, OptionsError};
use crate::proto::{self, Answer};
use crate::status::Failure;
use crate::store::{
    CasOutcome, KEYS_MAX, LISTING_BYTES_MAX, LeaseId, Listing, MetaStore, Read, Renewal, Revision,
};
use crate::watch::EtcdWatch;
use crate::wire::{compare_and_swap, key_value, revision};

/// Keys in one answer: as many as the largest answer has room for.
const PAGE_KEYS: i64 = 100;

/// A client of etcd. Clones share its connection.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    live: Option<Arc<Connection>>,
    /// Index of the endpoint that is asked next.
    next: usize,
    belief: Belief,
}

/// An error, and whether the request may have been carried out nevertheless.
#[derive(Debug)]
struct Failed {
    error: Error,
    may_be_done: bool,
}

impl Client {
    /// Does not connect yet.
    ///
    /// # Errors
    /// The endpoints and TLS do not fit together.
    pub fn new(options: Options) -> Result<Self, OptionsError> {
        options.check()?;
        let state = Mutex::default();
        Ok(Self {
            shared: Arc::new(Shared { options, state }),
        })
    }

    /// The id of the cluster, once an answer has named it.
    #[must_use]
    pub fn cluster_id(&self) -> Option<u64> {
        self.shared.state.lock().belief.cluster_id()
    }

    /// The member that is asked, if there is a connection.
    #[must_use]
    pub fn member(&self) -> Option<Endpoint> {
        let state = self.shared.state.lock();
        state.live.as_ref().map(|live| live.endpoint.clone())
    }

    pub(crate) fn patience(&self) -> crate::Patience {
        self.shared.options.patience
    }

    /// The connection in use, or a new one to the first member that is well.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, Error> {
        let endpoints = &self.shared.options.endpoints;
        let mut worst: Option<Error> = None;
        for _ in endpoints {
            let index = {
                let state = self.shared.state.lock();
                if let Some(live) = &state.live {
                    return Ok(Arc::clone(live));
                }
                state.next
            };
            let opened = Connection::open(&endpoints[index], &self.shared.options).await;
            match opened.and_then(|connection| self.adopt(connection)) {
                Ok(connection) => return Ok(connection),
                Err(error) => {
                    let mut state = self.shared.state.lock();
                    if state.next == index {
                        state.next = (index + 1) % endpoints.len();
                    }
                    drop(state);
                    worse(&mut worst, error);
                }
            }
        }
        Err(worst.expect("there is an endpoint"))
    }

    fn adopt(&self, connection: Connection) -> Result<Arc<Connection>, Error> {
        let mut state = self.shared.state.lock();
        if connection.cluster_id != 0 {
            let checked = state.belief.check_cluster(connection.cluster_id);
            checked.map_err(|fault| fault.at(&connection.endpoint))?;
        }
        let connection = Arc::new(connection);
        state.live = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Ends the use of a connection: what is under way on it may still be answered.
    pub(crate) fn give_up(&self, connection: &Arc<Connection>) {
        let mut state = self.shared.state.lock();
        if state
            .live
            .as_ref()
            .is_some_and(|live| Arc::ptr_eq(live, connection))
        {
            state.live = None;
            state.next = (state.next + 1) % self.shared.options.endpoints.len();
        }
    }

    /// Sends a request until it is answered or may have been carried out, at most once to each member and once more.
    async fn write<Q, A>(&self, path: &'static str, ask: Q) -> Result<(A, String), Failed>
    where
        Q: Message + Clone + 'static,
        A: Answer + 'static,
    {
        self.repeat(
            |connection, patience| {
                let ask = ask.clone();
                async move { connection.ask(path, ask, patience).await }
            },
            false,
        )
        .await
    }

    /// Sends a request that changes nothing when it is carried out twice.
    async fn read<Q, A>(&self, path: &'static str, ask: Q) -> Result<(A, String), Error>
    where
        Q: Message + Clone + 'static,
        A: Answer + 'static,
    {
        let answer = self.repeat(
            |connection, patience| {
                let ask = ask.clone();
                async move { connection.ask(path, ask, patience).await }
            },
            true,
        );
        answer.await.map_err(|failed| failed.error)
    }

    async fn repeat<A, F>(
        &self,
        ask: impl Fn(Arc<Connection>, Duration) -> F,
        may_repeat: bool,
    ) -> Result<(A, String), Failed>
    where
        A: Answer,
        F: Future<Output = Result<A, Failure>>,
    {
        let mut worst = None;
        for _ in 0..=self.shared.options.endpoints.len() {
            let certain = |error| Failed {
                error,
                may_be_done: false,
            };
            let connection = self.connection().await.map_err(certain)?;
            let endpoint = connection.endpoint.to_string();
            let known = self.shared.state.lock().belief.newest();
            let answer = ask(Arc::clone(&connection), self.patience().request).await;
            let failure = match answer {
                Ok(answer) => match self.believe(&answer, known) {
                    Ok(()) => return Ok((answer, endpoint)),
                    Err(fault) => Failure {
                        fault,
                        may_be_done: true,
                        is_token_refused: false,
                    },
                },
                Err(failure) => failure,
            };
            // Authentication was enabled after this connection was made.
            let lacks_token = failure.fault == Fault::NoUser && self.shared.options.user.is_some();
            let goes_on = failure.is_token_refused || lacks_token || failure.fault.is_of_member();
            if goes_on {
                self.give_up(&connection);
            }
            let (error, may_be_done) = (failure.fault.at(&endpoint), failure.may_be_done);
            if !goes_on || (may_be_done && !may_repeat) {
                return Err(Failed { error, may_be_done });
            }
            worse(&mut worst, error);
        }
        Err(Failed {
            error: worst.expect("there was an attempt"),
            may_be_done: false,
        })
    }

    pub(crate) fn believe(&self, answer: &impl Answer, known: Revision) -> Result<(), Fault> {
        self.shared.state.lock().belief.check(answer, known)
    }

    async fn page(
        &self,
        prefix: &str,
        from: Vec<u8>,
        at: i64,
    ) -> Result<(proto::RangeAnswer, String), Error> {
        let ask = proto::RangeAsk {
            key: from,
            range_end: proto::range_end(prefix),
            limit: PAGE_KEYS,
            revision: at,
        };
        self.read(proto::RANGE, ask).await
    }

    async fn keep_alive(
        &self,
        lease: LeaseId,
    ) -> Result<(proto::LeaseKeepAliveAnswer, String), Failed> {
        self.repeat(
            |connection, patience| async move {
                let ask = tokio_stream::once(proto::LeaseAsk { id: lease.0 });
                let mut answers = connection
                    .stream(proto::LEASE_KEEP_ALIVE, ask, patience)
                    .await?;
                let missing = || tonic::Status::unavailable("the stream has ended");
                answered(patience, async {
                    answers.message().await?.ok_or_else(missing)
                })
                .await
            },
            true,
        )
        .await
    }
}

impl MetaStore for Client {
    type Watch = EtcdWatch;

    async fn get(&self, key: &str) -> Result<Read, Error> {
        let ask = proto::RangeAsk {
            key: key.into(),
            limit: 1,
            ..Default::default()
        };
        let (answer, endpoint): (proto::RangeAnswer, _) = self.read(proto::RANGE, ask).await?;
        let revision = revision(answer.header.unwrap_or_default().revision);
        let found = answer.kvs.into_iter().next().map(key_value).transpose();
        let found = found.map_err(|fault| fault.at(&endpoint))?;
        Ok(Read { revision, found })
    }

    async fn get_all(&self, prefix: &str) -> Result<Listing, Error> {
        let (mut page, mut endpoint) = self.page(prefix, prefix.into(), 0).await?;
        // The next pages are of the same revision.
        let at = page.header.clone().unwrap_or_default().revision;
        let (mut keys, mut bytes) = (Vec::new(), 0);
        loop {
            let last = page.kvs.last().map(|pair| pair.key.clone());
            for pair in page.kvs {
                bytes += pair.key.len() + pair.value.len();
                keys.push(key_value(pair).map_err(|fault| fault.at(&endpoint))?);
            }
            if keys.len() > KEYS_MAX || bytes > LISTING_BYTES_MAX {
                let prefix = prefix.to_owned();
                return Err(Fault::ManyKeys { prefix }.at(&endpoint));
            }
            let Some(mut next) = last.filter(|_| page.more) else {
                let revision = revision(at);
                return Ok(Listing { revision, keys });
            };
            next.push(0);
            (page, endpoint) = self.page(prefix, next, at).await?;
        }
    }

    async fn cas(
        &self,
        key: &str,
        expected: Revision,
        value: Vec<u8>,
        lease: Option<LeaseId>,
    ) -> CasOutcome {
        let ask = compare_and_swap(key, expected, value, lease);
        let answered = self.write::<_, proto::TxnAnswer>(proto::TXN, ask).await;
        let (answer, endpoint) = match answered {
            Ok(answered) => answered,
            Err(failed) if failed.may_be_done => return CasOutcome::Unknown(failed.error),
            Err(failed) => return CasOutcome::NotDone(failed.error),
        };
        if answer.succeeded {
            return CasOutcome::Done(revision(answer.header.unwrap_or_default().revision));
        }
        let ranges = answer.responses.into_iter().filter_map(|one| one.range);
        match ranges.flat_map(|range| range.kvs).next().map(key_value) {
            None => CasOutcome::Conflict(None),
            Some(Ok(found)) => CasOutcome::Conflict(Some(found)),
            Some(Err(fault)) => CasOutcome::NotDone(fault.at(&endpoint)),
        }
    }

    fn watch(&self, prefix: &str) -> EtcdWatch {
        EtcdWatch::new(self.clone(), prefix)
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, Error> {
        let ttl_s = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        let ask = proto::LeaseGrantAsk { ttl_s };
        // A lease that is granted twice costs nothing: the one that nobody knows ends by itself.
        let (answer, _): (proto::LeaseGrantAnswer, _) = self.read(proto::LEASE_GRANT, ask).await?;
        Ok(LeaseId(answer.id))
    }

    async fn renew(&self, lease: LeaseId) -> Result<Renewal, Error> {
        match self.keep_alive(lease).await {
            Ok((answer, _)) => Ok(match u64::try_from(answer.ttl_s) {
                Ok(ttl_s) if ttl_s > 0 => Renewal::Alive(Duration::from_secs(ttl_s)),
                _ => Renewal::Expired,
            }),
            Err(failed) if failed.error.fault == Fault::NoLease => Ok(Renewal::Expired),
            Err(failed) => Err(failed.error),
        }
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        let ask = proto::LeaseAsk { id: lease.0 };
        let asked: Result<(proto::LeaseRevokeAnswer, _), Error> =
            self.read(proto::LEASE_REVOKE, ask).await;
        match asked {
            Err(error) if error.fault != Fault::NoLease => Err(error),
            _ => Ok(()),
        }
    }
}

fn worse(worst: &mut Option<Error>, error: Error) {
    let weight = |error: &Error| error.fault.weight();
    if worst
        .as_ref()
        .is_none_or(|worst| weight(worst) < weight(&error))
    {
        *worst = Some(error);
    }
}
