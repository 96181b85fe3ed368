//! What goes to the peers: frames that are queued, and batches as far as the sockets take them.

use std::io;

use headwater_cluster::frames::Frame;
use headwater_cluster::marks::{Member, ShardId};
use mio::Token;

use super::{Mesh, TURN_BYTES_MAX};

impl Mesh {
    /// Queues a frame for a peer, before all batches. Without a link to this life it is dropped.
    pub fn send(&mut self, to: &Member, shard: ShardId, frame: Frame, now_ms: u64) {
        let Some(token) = self.token_of(to) else {
            return;
        };
        if let Some(conn) = self.conns.get_mut(&token)
            && let Err(error) = conn.link.send(shard, frame)
        {
            self.fail(token, error, now_ms);
        }
    }

    /// Closes the link to a peer; a new one is made.
    pub fn disconnect(&mut self, peer: &Member, now_ms: u64) {
        if let Some(token) = self.token_of(peer) {
            self.end(token, "it begins anew", now_ms);
        }
    }

    fn token_of(&self, member: &Member) -> Option<Token> {
        let (token, linked) = self.peers.get(&member.node)?.link.as_ref()?;
        (linked == member).then_some(*token)
    }

    /// Gives the sockets what waits. `batches`: the next batches for a peer, asked only when nothing else waits for it
    /// and its socket takes more. Returns whether a peer may take more at once.
    pub fn flush(
        &mut self,
        now_ms: u64,
        mut batches: impl FnMut(&Member) -> Option<(ShardId, Frame)>,
    ) -> bool {
        let mut has_more = false;
        for token in self.tokens() {
            match self.flush_one(token, &mut batches) {
                Ok(more) => has_more |= more,
                Err(error) => self.end(token, &error.to_string(), now_ms),
            }
        }
        has_more
    }

    fn flush_one(
        &mut self,
        token: Token,
        batches: &mut impl FnMut(&Member) -> Option<(ShardId, Frame)>,
    ) -> io::Result<bool> {
        let Some(conn) = self.conns.get_mut(&token) else {
            return Ok(false);
        };
        if conn.connect_by_ms.is_some() || !conn.is_writable {
            return Ok(false);
        }
        conn.socket.flush()?;
        let mut left = TURN_BYTES_MAX;
        while left > 0 {
            let member = conn.link.peer().cloned();
            let parts = conn.link.to_send(|| batches(member.as_ref()?));
            let offered = parts.map(<[u8]>::len).iter().sum();
            if offered == 0 {
                return Ok(false);
            }
            let taken = conn.socket.write(parts)?;
            conn.link.sent(taken);
            left = left.saturating_sub(taken);
            if taken < offered {
                // A full socket tells when it takes more; a handshake goes on with what is read.
                conn.is_writable = conn.socket.is_handshaking();
                return Ok(false);
            }
        }
        Ok(true)
    }
}
