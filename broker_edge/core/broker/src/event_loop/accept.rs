//! Accepts connections, and passes those with a complete CONNECT to the engine.

use super::EventLoop;
use super::arrivals::Opened;

impl EventLoop {
    pub(super) fn accept(&mut self) {
        let refused = self.doors.accept(self.engine.connections());
        if refused > 0 {
            self.engine.count_refused(refused);
        }
    }

    /// Advances connections before their CONNECT, and passes those with a complete CONNECT to the engine.
    pub(super) fn promote(&mut self) {
        let Some(mut turn) = self.doors.begin_arrivals() else {
            return;
        };
        while let Some(opened) = self.doors.next_opened(&mut turn) {
            self.open(opened);
        }
        self.doors.end_arrivals();
    }

    fn open(&mut self, opened: Opened) {
        let Opened { arrival, len, more } = opened;
        let is_ending = arrival.is_ending;
        let (stream, peer) = arrival.into_stream();
        let ip = peer.address().ip();
        let key = self.engine.open(peer);
        self.doors.per_address.opened(key, ip);
        if let Err(error) = self.doors.insert(key, stream) {
            tracing::warn!(%error, "could not register a connection");
            self.doors.per_address.closed(key);
            return self.engine.remove(key);
        }
        self.engine.count_received(key, len);
        self.engine.receive(key, &self.doors.buffer[..len], true);
        if is_ending {
            self.doors.sockets.mark_ending(key);
        }
        if more || is_ending {
            self.want_read(key);
        }
    }
}
