//! Accepting connections, also when the process has run out of file descriptors.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};

/// Connections accepted in a turn, so that a storm of them does not hold up those that are there.
const ACCEPTS_MAX: usize = 256;
/// Without a descriptor even to close waiting connections, the listener rests this long.
const REST: Duration = Duration::from_millis(500);
/// A lack of descriptors is told at most this often.
const TELL_EVERY: Duration = Duration::from_secs(10);

pub struct Listener {
    listener: TcpListener,
    /// Given up for a moment to accept and close a connection when no descriptor is left: otherwise the connection would
    /// stay in the backlog and the listener would never be ready again.
    spare: Option<File>,
    ready: bool,
    accepted: usize,
    rests_until: Option<Instant>,
    told_at: Option<Instant>,
}

impl Listener {
    pub fn new(
        listener: std::net::TcpListener,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        registry.register(&mut listener, token, Interest::READABLE)?;
        // Connections that came before the registration make no event.
        Ok(Self {
            listener,
            spare: spare(),
            ready: true,
            accepted: 0,
            rests_until: None,
            told_at: None,
        })
    }

    pub fn ready(&mut self) {
        self.ready = true;
    }

    /// Whether connections may wait although no event will tell.
    pub fn has_more(&self) -> bool {
        self.ready && self.rests_until.is_none()
    }

    /// How long connections wait at most before the listener has to be asked again.
    pub fn rest(&self) -> Option<Duration> {
        let until = self.rests_until?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// The next connection of this turn.
    pub fn accept(&mut self) -> Option<TcpStream> {
        if self.rest().is_some_and(|rest| !rest.is_zero()) {
            return None;
        }
        self.rests_until = None;
        while self.ready && self.accepted < ACCEPTS_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    self.accepted += 1;
                    return Some(stream);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.ready = false,
                Err(error) if is_out_of_descriptors(&error) => self.shed(&error),
                // The peer went away in between, or a passing error of the network.
                Err(error) => {
                    self.accepted += 1;
                    tracing::debug!(%error, "a connection could not be accepted");
                }
            }
        }
        self.accepted = 0;
        None
    }

    /// Closes one waiting connection with the spare descriptor.
    fn shed(&mut self, error: &io::Error) {
        if self.told_at.is_none_or(|at| at.elapsed() > TELL_EVERY) {
            self.told_at = Some(Instant::now());
            tracing::warn!(%error, "no file descriptor for a new connection; raise the limit of open files");
        }
        self.accepted += 1;
        match self.spare.take() {
            Some(file) => {
                drop(file);
                if let Ok((stream, _)) = self.listener.accept() {
                    drop(stream);
                }
                self.spare = spare();
            }
            None => {
                self.spare = spare();
                if self.spare.is_none() {
                    self.rests_until = Some(Instant::now() + REST);
                }
                self.accepted = ACCEPTS_MAX;
            }
        }
    }
}

fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}
