//! What leaves the connections: the buffers of what they send, and the large payloads that they hold.

use crate::engine::containers::lazy_box::LazyBox;
use crate::engine::containers::once_queue::OnceQueue;
use crate::engine::env::Env;
use crate::engine::session::out::Out;
use crate::engine::session::pauses::Pause;
use crate::engine::{ConnKey, Connection, SessionKey};

use super::Clients;

/// Limits on the pool of out buffers: their number, and the size of one.
const POOL_MAX: usize = 1024;
const POOL_BUFFER_MAX: usize = 16 << 10;
/// Bytes of batches read between two checks of the payloads that connections hold: the memory held beyond the log's own
/// is at most twice this.
const HELD_BYTES_MAX: u64 = 4 << 20;

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
    /// Counts bytes read from the log.
    pub fn note_read(&mut self, bytes: usize) {
        self.payload_holders.read_bytes += bytes as u64;
    }

    /// The bytes a connection has to send.
    pub(in crate::engine) fn out(&mut self, key: ConnKey) -> Out<'_> {
        let conn = self.touched.take_up(key, &mut self.conns);
        conn.map_or(Out::EMPTY, |conn| Out::of(conn))
    }

    /// Takes off what the socket took. Returns the session that has more to send than there was room for.
    pub(in crate::engine) fn note_sent(
        &mut self,
        key: ConnKey,
        count: usize,
        is_full: bool,
        env: &Env,
    ) -> Option<SessionKey> {
        let (conn, marks) = self.conns.get_marked(key)?;
        let holders = &mut self.payload_holders;
        conn.advance_out(count, is_full, || {
            let is_new = holders.keys.push(key, marks);
            is_new.then_some(holders.read_bytes)
        });
        let left = conn.out_len();
        if left > 0 {
            conn.out_blocked = is_full;
        } else {
            conn.wake_when_drained |= std::mem::take(&mut conn.out_blocked);
            conn.out_sent = 0;
            let buffer = std::mem::take(&mut conn.out);
            recycle(&mut self.pool, buffer);
        }
        let is_paused = conn.pauses.has(Pause::Out);
        if is_paused && count > 0 {
            conn.last_read_ms = env.now.mono_ms;
        }
        if left > env.settings.mqtt.out_buffer_bytes.as_usize() / 2 {
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
        let holds = |conn: &mut Connection| conn.copy_payloads_held_before(before);
        holders.keys.retain(&mut self.conns, holds);
    }

    /// Forgets a connection and keeps its buffer for others.
    pub(in crate::engine) fn remove(&mut self, key: ConnKey) {
        if let Some(conn) = self.conns.remove(key) {
            recycle(&mut self.pool, conn.out);
        }
    }
}

fn recycle(pool: &mut Vec<LazyBox<Vec<u8>>>, mut buffer: LazyBox<Vec<u8>>) {
    if (1..=POOL_BUFFER_MAX).contains(&buffer.capacity()) && pool.len() < POOL_MAX {
        buffer.clear();
        pool.push(buffer);
    }
}
