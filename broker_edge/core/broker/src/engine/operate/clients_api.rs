//! Requests of operators about clients: list a page of them, show one, or kick one.
//!
//! A page is bounded by the clients examined, not only by the clients found, so that a filter over 100,000 clients does
//! not block a turn. A page may therefore be short; `next` says where the following page begins.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use headwater_mqtt::ReasonCode;
use serde::Serialize;
use tokio::sync::oneshot::Sender;

use crate::engine::Connection;
use crate::engine::clients::Clients;
use crate::engine::clients::rates::Rates;
use crate::engine::delivery::Delivery;
use crate::engine::effects::Cause;
use crate::engine::env::Env;
use crate::engine::ids::PartitionIndex;
use crate::engine::lifecycle::Lifecycle;
use crate::engine::observe::connection_gauges::name_of;
use crate::engine::observe::sys_tree::is_sys;
use crate::engine::session::connection::Traffic;
use crate::engine::session::{NEVER_EXPIRES, Session};
use crate::engine::shared_groups::is_shared;

/// Clients and subscriptions examined for one page.
const STEPS_MAX: usize = 4096;
/// Clients of one page.
pub const PAGE_MAX: usize = 1000;

/// The request; the answer goes to the waiting caller. A caller that no longer waits is no error.
#[derive(Debug)]
pub enum ClientsRequest {
    List {
        query: PageQuery,
        answer: Sender<Page>,
    },
    Show {
        client_id: String,
        answer: Sender<Option<ClientDetail>>,
    },
    Kick {
        client_id: String,
        /// The session ends as well.
        ends_session: bool,
        answer: Sender<Option<Kicked>>,
    },
}

impl ClientsRequest {
    pub fn serve(self, lifecycle: Lifecycle<'_>) {
        let view = lend!(lifecycle => ClientsView);
        match self {
            Self::List { query, answer } => drop(answer.send(view.page(&query))),
            Self::Show { client_id, answer } => drop(answer.send(view.detail(&client_id))),
            Self::Kick {
                client_id,
                ends_session,
                answer,
            } => drop(answer.send(kick(lifecycle, &client_id, ends_session))),
        }
    }
}

/// Selects the clients of a page.
#[derive(Debug, Clone, Default)]
pub struct PageQuery {
    /// Only clients after this id.
    pub after: Option<String>,
    /// At most [`PAGE_MAX`].
    pub limit: usize,
    /// Only clients whose id contains this.
    pub contains: Option<String>,
    /// Only connected clients, or only disconnected ones.
    pub connected: Option<bool>,
}

/// Clients in the order of their ids.
#[derive(Debug, Serialize)]
pub struct Page {
    pub clients: Vec<ClientRow>,
    /// Where the next page begins; `None` after the last client.
    pub next: Option<String>,
}

/// One client: its session and, if it is connected, its connection.
#[derive(Debug, Serialize)]
pub struct ClientRow {
    pub client_id: String,
    pub user: Option<String>,
    pub connected: bool,
    pub address: Option<SocketAddr>,
    pub transport: Option<&'static str>,
    pub version: &'static str,
    /// Unix microseconds: when the client connected, or disconnected.
    pub since_us: Option<i64>,
    pub keep_alive_s: Option<u16>,
    /// How long the session outlives its connection; null if it never expires.
    pub session_expiry_s: Option<u32>,
    pub subscriptions: usize,
    /// Deliveries that the client has not acknowledged.
    pub inflight_out: usize,
    /// Publishes of the client that the broker has not acknowledged.
    pub inflight_in: u16,
    /// Totals of this connection.
    pub total: Traffic,
    pub per_second: Rates,
    /// Records between the session's cursors and the high watermarks, in the partitions that its subscriptions reach.
    pub lag_records: u64,
}

/// Everything known about one client.
#[derive(Debug, Serialize)]
pub struct ClientDetail {
    #[serde(flatten)]
    pub row: ClientRow,
    /// The subscriptions by filter.
    pub filters: Vec<FilterRow>,
    pub cursors: Vec<CursorRow>,
    /// Limit on deliveries that the client accepts unacknowledged.
    pub window_max: u16,
    pub has_will: bool,
    /// Bytes that wait for the socket.
    pub out_bytes: usize,
}

#[derive(Debug, Serialize)]
pub struct FilterRow {
    pub filter: String,
    pub qos: u8,
    pub no_local: bool,
    pub retain_as_published: bool,
    pub identifier: Option<u32>,
    /// The subscription reads older records with a cursor of its own.
    pub replaying: bool,
}

/// The session's cursor in a partition that its subscriptions reach.
#[derive(Debug, Serialize)]
pub struct CursorRow {
    pub partition: u32,
    pub name: String,
    /// The first offset still needed, including unacknowledged deliveries.
    pub next: u64,
    pub high_watermark: u64,
    /// The session follows the live stream in this partition.
    pub live: bool,
}

/// The result of a kick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Kicked {
    pub was_connected: bool,
    pub session_ended: bool,
}

/// What operators are shown of clients.
pub struct ClientsView<'a> {
    pub env: &'a Env,
    pub clients: &'a Clients,
    pub delivery: &'a Delivery,
}

impl ClientsView<'_> {
    /// The clients that the query selects, up to its limit.
    pub fn page(&self, query: &PageQuery) -> Page {
        let limit = query.limit.clamp(1, PAGE_MAX);
        let mut clients = Vec::new();
        let mut steps = 0;
        let mut rest = self.clients.after(query.after.as_deref()).peekable();
        while let Some((client_id, session)) = rest.next() {
            steps += 1;
            if query.wants(session) {
                steps += session.subscriptions.len();
                clients.push(self.row(session));
            }
            if (clients.len() == limit || steps >= STEPS_MAX) && rest.peek().is_some() {
                let next = Some(client_id.to_string());
                return Page { clients, next };
            }
        }
        Page {
            clients,
            next: None,
        }
    }

    fn row(&self, session: &Session) -> ClientRow {
        let key = session.conn;
        let conn = key.and_then(|key| self.clients.conn(key));
        let since_us = match conn {
            Some(conn) => Some(self.env.now.wall_us - self.age_us(u64::from(conn.since_s) * 1000)),
            None => session.offline.as_ref().map(|away| away.since_us),
        };
        ClientRow {
            client_id: session.client_id.to_string(),
            user: session
                .owner()
                .filter(|owner| !owner.is_empty())
                .map(str::to_owned),
            connected: conn.is_some(),
            address: conn.map(|conn| conn.peer.address()),
            transport: conn.map(|conn| conn.peer.transport.name()),
            version: name_of(session.version),
            since_us,
            keep_alive_s: conn.map(|conn| conn.keep_alive_s),
            session_expiry_s: (session.expiry_s != NEVER_EXPIRES).then_some(session.expiry_s),
            subscriptions: session.subscriptions.len(),
            inflight_out: session.window.unacked(),
            inflight_in: conn.map_or(0, |conn| conn.publishes_in_flight),
            total: conn.map_or_else(Traffic::default, |conn| conn.traffic),
            per_second: key.map_or_else(Rates::default, |key| self.clients.rates(key)),
            lag_records: self.lag(session),
        }
    }

    /// Microseconds since a monotonic time.
    fn age_us(&self, then_ms: u64) -> i64 {
        i64::try_from(self.env.now.mono_ms.saturating_sub(then_ms) * 1000).unwrap_or(i64::MAX)
    }

    /// What is known about a client; `None` if it has no session.
    pub fn detail(&self, client_id: &str) -> Option<ClientDetail> {
        let session = self.clients.by_id(client_id)?;
        let conn = session.conn.and_then(|key| self.clients.conn(key));
        let filters = session.subscriptions.iter().map(|held| FilterRow {
            filter: held.filter.to_string(),
            qos: held.options.qos.as_u8(),
            no_local: held.options.no_local,
            retain_as_published: held.options.retain_as_published,
            identifier: (held.options.id != 0).then_some(held.options.id),
            replaying: session.is_replaying(&held.filter),
        });
        let cursors = self.reached(session).into_iter().map(|partition| {
            let stage = &self.env.partitions[partition.index()];
            let live_at = self.delivery.live_at(partition);
            CursorRow {
                partition: stage.id().0,
                name: stage.name().to_owned(),
                next: session.cursor(partition, live_at).0,
                high_watermark: stage.high_watermark().0,
                live: session.behind.is_live(partition),
            }
        });
        Some(ClientDetail {
            row: self.row(session),
            filters: filters.collect(),
            cursors: cursors.collect(),
            window_max: session.window_max,
            has_will: session
                .offline
                .as_ref()
                .is_some_and(|offline| offline.will.is_some())
                || conn.is_some_and(|conn| conn.extras.will.is_some()),
            out_bytes: conn.map_or(0, Connection::out_len),
        })
    }

    /// The partitions that a session's subscriptions reach.
    fn reached(&self, session: &Session) -> BTreeSet<PartitionIndex> {
        let mut reached = BTreeSet::new();
        for subscription in &session.subscriptions {
            let filter = &*subscription.filter;
            // A shared group has its own cursor, and `$SYS` has none.
            if is_shared(filter) || is_sys(filter) {
                continue;
            }
            reached.extend(self.env.partitions_of(filter));
            if filter.contains(['+', '#']) {
                break;
            }
        }
        reached
    }

    fn lag(&self, session: &Session) -> u64 {
        let lag_of = |partition: PartitionIndex| {
            let own = session.behind.next(partition);
            let offset = own.unwrap_or(self.delivery.live_at(partition));
            let replays = session
                .extras
                .replays
                .iter()
                .filter(|replay| !replay.joined);
            let oldest = replays
                .filter_map(|replay| replay.cursors.next(partition))
                .fold(offset, Ord::min);
            let end = self.env.partitions[partition.index()].high_watermark();
            end.0.saturating_sub(oldest.0)
        };
        self.reached(session).into_iter().map(lag_of).sum()
    }
}

/// Closes the client's connection, and ends its session if requested.
fn kick(mut lifecycle: Lifecycle<'_>, client_id: &str, ends_session: bool) -> Option<Kicked> {
    let key = lifecycle.clients.key_by_id(client_id)?;
    let conn = lifecycle.clients.session(key)?.conn;
    if let Some(conn) = conn {
        lifecycle.close_now(conn, Cause::Reason(ReasonCode::AdministrativeAction));
    }
    let session_ended = ends_session || lifecycle.clients.session(key).is_none();
    if ends_session {
        lifecycle.end_session(key);
        lifecycle.drain();
    }
    tracing::info!(client_id, ends_session, "a client was kicked");
    Some(Kicked {
        was_connected: conn.is_some(),
        session_ended,
    })
}

impl PageQuery {
    fn wants(&self, session: &Session) -> bool {
        self.contains
            .as_deref()
            .is_none_or(|part| session.client_id.contains(part))
            && self
                .connected
                .is_none_or(|connected| session.conn.is_some() == connected)
    }
}
