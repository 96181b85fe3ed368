//! Writes the output of a turn to the sockets.

use super::EventLoop;
use crate::engine::ConnKey;

impl EventLoop {
    /// Sends the live output of the turn before other sessions catch up, which may take longer than the live output.
    pub(super) fn write_live(&mut self) {
        let live = self.engine.take_touched_before_late();
        self.send_each(&live);
    }

    /// Sends all output, then removes connections that were given up.
    pub(super) fn write(&mut self) {
        let touched = self.engine.take_touched();
        self.send_each(&touched);
        self.engine.return_touched(touched);
        for key in self.engine.take_closed() {
            self.doors.remove(key);
            self.engine.remove(key);
        }
        self.doors.drain_let_go();
    }

    /// One send per connection with output, more if it has more pieces than one send takes.
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

    /// Sends the output of a connection. Returns true when there is more that the socket may accept.
    fn send(&mut self, key: ConnKey) -> bool {
        let out = self.engine.out(key);
        if out.is_empty() {
            return false;
        }
        let len = out.len();
        match self.doors.sockets.send(key, out) {
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
