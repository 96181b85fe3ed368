//! What leaves the connections: which of them have something to write, the buffers of what they send, and the large
//! payloads that they hold.

use crate::engine::containers::lazy_box::LazyBox;
use crate::engine::containers::once_queue::OnceQueue;
use crate::engine::containers::slab::Marks;
use crate::engine::env::Env;
use crate::engine::observe::{Count, Observe};
use crate::engine::session::connection::Traffic;
use crate::engine::session::out::{HeldPayloads, Out};
use crate::engine::session::pauses::Pause;
use crate::engine::{ConnKey, Connection, Session, SessionKey};

use super::Clients;

/// Limits on the pool of out buffers: their number, and the size of one.
const POOL_MAX: usize = 1024;
const POOL_BUFFER_MAX: usize = 16 << 10;
/// Bytes of batches read between two checks of the payloads that connections hold: the memory held beyond the log's own
/// is at most twice this.
const HELD_BYTES_MAX: u64 = 4 << 20;

/// Connections with bytes to write, and buffers that none of them uses.
#[derive(Default)]
pub struct Outgoing {
    touched: OnceQueue<Connection, 0>,
    pool: Vec<LazyBox<Vec<u8>>>,
}

impl Outgoing {
    /// Gives a connection a buffer to append to, which is written at the end of the turn.
    #[inline]
    fn begin(&mut self, key: ConnKey, conn: &mut Connection, marks: &mut Marks) {
        if conn.out.capacity() == 0
            && let Some(buffer) = self.pool.pop()
        {
            conn.out = buffer;
        }
        self.touched.push(key, marks);
    }

    /// Keeps the buffer of a connection for others.
    fn recycle(&mut self, mut buffer: LazyBox<Vec<u8>>) {
        if (1..=POOL_BUFFER_MAX).contains(&buffer.capacity()) && self.pool.len() < POOL_MAX {
            buffer.clear();
            self.pool.push(buffer);
        }
    }
}

/// A connection that may get more to write.
pub struct Writer<'a> {
    key: ConnKey,
    pub conn: &'a mut Connection,
    marks: &'a mut Marks,
    outgoing: &'a mut Outgoing,
}

impl<'a> Writer<'a> {
    /// The connection with a buffer to append to, which is written at the end of the turn.
    #[inline]
    pub fn begin(self) -> &'a mut Connection {
        self.outgoing.begin(self.key, self.conn, self.marks);
        self.conn
    }
}

/// Connections that hold payloads from one turn to the next.
#[derive(Debug, Default)]
pub struct PayloadHolders {
    /// Some may hold nothing any more.
    keys: OnceQueue<Connection, 1>,
    /// Bytes of batches that were read.
    read_bytes: u64,
    looked_at: u64,
}

impl Clients {
    /// The connection and a buffer to append to, which is written at the end of the turn.
    #[inline]
    pub(in crate::engine) fn writer(&mut self, key: ConnKey) -> Option<&mut Connection> {
        let (conn, marks) = self.conns.get_marked(key)?;
        self.outgoing.begin(key, conn, marks);
        Some(conn)
    }

    /// A session and its connection, for which nothing is written before [`Writer::begin`].
    #[inline]
    pub(in crate::engine) fn writing_pair(
        &mut self,
        session: SessionKey,
        key: ConnKey,
    ) -> Option<(&mut Session, Writer<'_>)> {
        let session = self.sessions.get_mut(session)?;
        let (conn, marks) = self.conns.get_marked(key)?;
        let outgoing = &mut self.outgoing;
        let writer = Writer {
            key,
            conn,
            marks,
            outgoing,
        };
        Some((session, writer))
    }

    /// Adds a connection to the list of connections to write.
    pub(in crate::engine) fn touch(&mut self, key: ConnKey) {
        if let Some((_, marks)) = self.conns.get_marked(key) {
            self.outgoing.touched.push(key, marks);
        }
    }

    /// The socket of a connection is writable again.
    pub(in crate::engine) fn touch_blocked(&mut self, key: ConnKey) {
        if self.conn(key).is_some_and(|conn| conn.out_blocked) {
            self.touch(key);
        }
    }

    /// Takes the connections to write.
    pub(in crate::engine) fn take_touched(&mut self) -> Vec<ConnKey> {
        self.outgoing.touched.take()
    }

    /// Takes those of them whose sessions have nothing to send besides the live stream.
    pub(in crate::engine) fn take_touched_live(&mut self) -> Vec<ConnKey> {
        let touched = self.outgoing.touched.take().into_iter();
        let is_late = |key: &ConnKey| self.session_of(*key).is_some_and(Session::has_work);
        let (late, live) = touched.partition(is_late);
        self.outgoing.touched.put_back(late);
        live
    }

    /// Keeps the memory of a list that was taken, for the next turn.
    pub(in crate::engine) fn return_touched(&mut self, mut list: Vec<ConnKey>) {
        list.clear();
        self.outgoing.touched.put_back(list);
    }

    /// Counts bytes read from the log.
    pub fn note_read(&mut self, bytes: usize) {
        self.payload_holders.read_bytes += bytes as u64;
    }

    /// The bytes a connection has to send.
    pub(in crate::engine) fn out(&mut self, key: ConnKey) -> Out<'_> {
        let conn = self.outgoing.touched.take_up(key, &mut self.conns);
        conn.map_or(Out::EMPTY, |conn| Out::of(conn))
    }

    /// Counts what the socket took, and takes it off. Returns the session that has more to send than there was room for.
    pub(in crate::engine) fn note_sent(
        &mut self,
        key: ConnKey,
        count: usize,
        is_full: bool,
        (env, observe): (&Env, &mut Observe),
    ) -> Option<SessionKey> {
        observe.count(Count::BytesSent, count as u64);
        let (conn, marks) = self.conns.get_marked(key)?;
        let add = |traffic: &mut Traffic| traffic.sent_bytes += count as u64;
        self.active_rates.count(key, (conn, marks), add);
        let holders = &mut self.payload_holders;
        conn.advance_out(count, is_full, || {
            let is_new = holders.keys.push(key, marks);
            is_new.then_some(holders.read_bytes)
        });
        let left = conn.out_len();
        self.send_budget.recount(conn, left);
        if left > 0 {
            conn.out_blocked = is_full;
        } else {
            conn.wake_when_drained |= std::mem::take(&mut conn.out_blocked);
            conn.out_sent = 0;
            let buffer = std::mem::take(&mut conn.out);
            self.outgoing.recycle(buffer);
        }
        let is_paused = conn.pauses.has(Pause::Out);
        if is_paused && count > 0 {
            conn.last_read_ms = env.now.mono_ms;
        }
        if left > self.send_budget.room(env) / 2 {
            return None;
        }
        let wakes = std::mem::take(&mut conn.wake_when_drained);
        let session = conn.session.filter(|_| wakes);
        if is_paused {
            self.resume(key, Pause::Out, env);
        }
        session
    }

    /// Copies the payloads that connections hold for longer than the log would keep them in memory.
    pub(in crate::engine) fn copy_held_payloads(&mut self) {
        let holders = &mut self.payload_holders;
        if holders.keys.is_empty() || holders.read_bytes - holders.looked_at < HELD_BYTES_MAX {
            return;
        }
        let before = std::mem::replace(&mut holders.looked_at, holders.read_bytes);
        let mut held = HeldPayloads::default();
        holders.keys.retain(&mut self.conns, |conn| {
            conn.add_held(&mut held);
            true
        });
        let holds = |conn: &mut Connection| conn.copy_payloads_held_before(before, &held);
        holders.keys.retain(&mut self.conns, holds);
    }

    /// Forgets a connection and keeps its buffer for others.
    pub(in crate::engine) fn remove(&mut self, key: ConnKey) {
        if let Some(mut conn) = self.conns.remove(key) {
            self.send_budget.recount(&mut conn, 0);
            self.outgoing.recycle(conn.out);
        }
    }
}
