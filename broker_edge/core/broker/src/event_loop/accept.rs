//! Accepts connections, and passes those with a complete CONNECT to the engine.

use super::EventLoop;
use super::arrivals::Opened;
use crate::metrics::ConnectFailure;

impl EventLoop {
    pub(super) fn accept(&mut self) {
        let now_ms = self.turn_ms;
        self.arrivals.expire(now_ms, &mut self.per_address);
        for index in 0..self.listeners.len() {
            while self.accepts_from_ms <= now_ms {
                let listener = &mut self.listeners[index];
                if !listener.has_more()
                    || listener.speaks().tls.is_some() && self.arrivals.is_storm()
                {
                    break;
                }
                let places = self.connections_max.min(self.connections_room);
                self.arrivals
                    .share(places.saturating_sub(self.engine.connections()));
                let room = self.arrivals.has_room(now_ms).and_then(|()| {
                    let token = self.rate.take(now_ms);
                    token.map_err(|wait_ms| now_ms + wait_ms)
                });
                if let Err(from_ms) = room {
                    self.accepts_from_ms = from_ms;
                    return;
                }
                let Some((stream, address)) = listener.accept() else {
                    self.rate.give_back();
                    break;
                };
                self.arrivals.make_room(&mut self.per_address);
                if self.engine.connections() + self.arrivals.len() >= self.connections_max {
                    self.engine.count_refused();
                    self.arrivals.count(ConnectFailure::Limit, address);
                    continue;
                }
                let inserted = self.arrivals.insert(
                    stream,
                    address,
                    listener.speaks(),
                    now_ms,
                    self.poll.registry(),
                    &mut self.per_address,
                );
                if let Err(error) = inserted {
                    tracing::warn!(%error, "could not register a connection");
                }
            }
        }
    }

    /// Advances connections before their CONNECT, and passes those with a complete CONNECT to the engine.
    pub(super) fn promote(&mut self) {
        if !self.arrivals.has_work() {
            return;
        }
        let now_ms = self.turn_ms;
        let mut turn = self.arrivals.begin_turn();
        while let Some(opened) =
            self.arrivals
                .next(&mut turn, &mut self.buffer, now_ms, &mut self.per_address)
        {
            self.open(opened);
        }
        self.arrivals.forget_gone();
        for stream in self.arrivals.take_answered() {
            self.sockets.let_go(stream);
        }
    }

    fn open(&mut self, opened: Opened) {
        let Opened { arrival, len, more } = opened;
        let is_ending = arrival.is_ending;
        let (stream, peer) = arrival.into_stream();
        let ip = peer.address().ip();
        let key = self.engine.open(peer);
        self.per_address.opened(key, ip);
        if let Err(error) = self.sockets.insert(key, stream, self.poll.registry()) {
            tracing::warn!(%error, "could not register a connection");
            self.per_address.closed(key);
            return self.engine.remove(key);
        }
        self.engine.count_received(key, len);
        self.engine.receive(key, &self.buffer[..len], true);
        if is_ending {
            self.sockets.mark_ending(key);
        }
        if more || is_ending {
            self.want_read(key);
        }
    }
}
