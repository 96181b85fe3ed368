//! What a turn has to send goes to the sockets.

use super::EventLoop;
use crate::engine::ConnKey;

impl EventLoop {
    /// Sends what the turn has for the live stream before others catch up, which may take longer than all of it.
    pub(super) fn write_live(&mut self) {
        let live = self.engine.take_touched_before_late();
        self.send_each(&live);
    }

    /// Sends what there is, then forgets connections that were given up.
    pub(super) fn write(&mut self) {
        let touched = self.engine.take_touched();
        self.send_each(&touched);
        self.engine.return_touched(touched);
        for key in self.engine.take_closed() {
            self.sockets.remove(key, self.poll.registry());
            self.per_address.closed(key);
            self.engine.remove(key);
        }
        self.sockets.drain(&mut self.buffer);
    }

    /// One send per connection with something to say, more where it has more pieces than one send takes.
    fn send_each(&mut self, keys: &[ConnKey]) {
        let mut unfinished: Vec<ConnKey> = Vec::new();
        for key in keys {
            if self.send(*key) {
                unfinished.push(*key);
            }
        }
        while !unfinished.is_empty() {
            unfinished.retain(|key| self.send(*key));
        }
    }

    /// Sends what is due of a connection. True when there is more that the socket may take.
    fn send(&mut self, key: ConnKey) -> bool {
        let out = self.engine.out(key);
        if out.is_empty() {
            return false;
        }
        let len = out.len();
        match self.sockets.send(key, out) {
            Ok(sent) if sent.is_full || sent.count == len => self.engine.written(key, sent.count),
            Ok(sent) => {
                self.engine.written_part(key, sent.count);
                return true;
            }
            Err(error) => {
                tracing::debug!(%error, "a send failed");
                self.engine.lost(key);
            }
        }
        false
    }
}
