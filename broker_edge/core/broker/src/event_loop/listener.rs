//! Accepts connections, even when the process runs out of file descriptors.
//!
//! The last descriptors are reserved for files of the log, its service and its tools. A connection that would get one
//! of them is accepted and closed. So clients never keep the log from opening a file.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use rustix::io::fcntl_dupfd_cloexec;
use socket2::SockRef;

use crate::descriptors::{RESERVE_MAX, open_files_max, reserve_from};
use crate::transport::{BACKLOG, BoundListener, ListenerProtocol};

/// The most connections accepted in a turn, so that a storm does not delay existing ones.
const ACCEPTS_MAX: usize = 64;
/// What a socket accepts and does not send yet. A client that reads nothing otherwise makes the kernel keep megabytes
/// for it. What is on its way is not limited: that is the speed of a connection over a long line.
const UNSENT_BYTES_MAX: u32 = 128 << 10;
/// When the reserve is used up too, connections wait in the backlog and the listener pauses this long.
const REST: Duration = Duration::from_millis(500);
/// A lack of descriptors is logged at most this often.
const TELL_EVERY: Duration = Duration::from_secs(10);

pub struct Listener {
    listener: TcpListener,
    speaks: Arc<ListenerProtocol>,
    /// Descriptors from this number on are the reserve. The system assigns the lowest free number.
    reserve_from: u64,
    ready: bool,
    accepted: usize,
    rests_until: Option<Instant>,
    told_at: Option<Instant>,
}

impl Listener {
    pub fn new(bound: BoundListener, registry: &Registry, token: Token) -> io::Result<Self> {
        let socket = SockRef::from(&bound.listener);
        // The connections inherit it.
        socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?;
        socket.listen(BACKLOG)?;
        bound.listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(bound.listener);
        registry.register(&mut listener, token, Interest::READABLE)?;
        // Connections from before the registration cause no event.
        Ok(Self {
            listener,
            speaks: Arc::new(bound.speaks),
            reserve_from: reserve_from(open_files_max()),
            ready: true,
            accepted: 0,
            rests_until: None,
            told_at: None,
        })
    }

    /// The protocol layers of its connections.
    pub fn speaks(&self) -> &Arc<ListenerProtocol> {
        &self.speaks
    }

    pub fn ready(&mut self) {
        self.ready = true;
    }

    /// Whether connections may be waiting that will cause no event.
    pub fn has_more(&self) -> bool {
        self.ready && self.rest().is_none_or(|rest| rest.is_zero())
    }

    /// The rest of the listener's pause, if it pauses.
    pub fn rest(&self) -> Option<Duration> {
        let until = self.rests_until?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// The next connection of this turn.
    pub fn accept(&mut self) -> Option<(TcpStream, SocketAddr)> {
        if self.rest().is_some_and(|rest| !rest.is_zero()) {
            return None;
        }
        self.rests_until = None;
        while self.ready && self.accepted < ACCEPTS_MAX {
            self.accepted += 1;
            match self.listener.accept() {
                Ok((stream, _)) if self.is_reserve(&stream) => {
                    self.tell("closed a new connection");
                }
                Ok(accepted) => return Some(accepted),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.ready = false,
                Err(error) if is_out_of_descriptors(&error) => {
                    self.tell("new connections have to wait");
                    self.rests_until = Some(Instant::now() + REST);
                    break;
                }
                // The peer has gone, or a temporary network error occurred.
                Err(error) => tracing::debug!(%error, "could not accept a connection"),
            }
        }
        self.accepted = 0;
        None
    }

    fn is_reserve(&self, stream: &TcpStream) -> bool {
        u64::try_from(stream.as_raw_fd()).is_ok_and(|number| number >= self.reserve_from)
    }

    fn tell(&mut self, what: &str) {
        if self.told_at.is_none_or(|at| at.elapsed() > TELL_EVERY) {
            self.told_at = Some(Instant::now());
            tracing::warn!("{what}: out of file descriptors; raise the limit of open files");
        }
    }
}

/// Grows the process's descriptor table to its full size now. The kernel doubles the table when needed, and each time
/// waits 10 ms or more until no other thread reads the old one. While clients connect, that would stall the loop.
pub fn prepare_descriptors(any: impl AsFd, connections_max: usize) {
    let wanted = u64::try_from(connections_max).unwrap_or(u64::MAX);
    let last = wanted
        .saturating_add(RESERVE_MAX)
        .min(open_files_max().saturating_sub(1));
    // The descriptor is closed at once; the table keeps its size. If the call fails, the table just grows later.
    let _ = fcntl_dupfd_cloexec(any, i32::try_from(last).unwrap_or(i32::MAX));
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_keeps_little_that_is_not_sent() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let bound = BoundListener {
            listener,
            speaks: ListenerProtocol {
                proxy: false,
                tls: None,
                websocket: false,
                origins: Arc::default(),
            },
        };
        let poll = mio::Poll::new().expect("a poll");
        let mut listener = Listener::new(bound, poll.registry(), Token(0)).expect("a listener");
        let _client = std::net::TcpStream::connect(address).expect("it listens");
        let (stream, _) = listener.accept().expect("a connection");
        let unsent = SockRef::from(&stream).tcp_notsent_lowat();
        assert_eq!(unsent.expect("an option of the socket"), UNSENT_BYTES_MAX);
    }

    #[test]
    fn the_table_of_descriptors_has_its_full_size_before_anybody_comes() {
        let any = std::fs::File::open("/proc/self/status").expect("a system with /proc");
        prepare_descriptors(&any, 5_000);
        let status = std::fs::read_to_string("/proc/self/status").expect("of this process");
        let size = status
            .lines()
            .find_map(|line| line.strip_prefix("FDSize:"))
            .expect("the size of its table");
        let size: u64 = size.trim().parse().expect("a number");
        assert!(size >= open_files_max().min(5_000), "{size}");
    }
}
