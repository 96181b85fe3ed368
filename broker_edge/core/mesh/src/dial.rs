//! Finds the address of a peer and connects to it, without blocking the thread of the mesh.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use mio::Waker;

/// An attempt gets this long: for the name of the host, and again for the connection.
pub const CONNECT_MS: u64 = 2_000;

/// A host name on its way to an address.
pub struct Lookup(Receiver<io::Result<SocketAddr>>);

/// The address at once, or who will have it.
pub enum Found {
    Address(SocketAddr),
    Later(Lookup),
}

/// `address`: `host:port`. Names are looked up by a thread, because that may take seconds.
///
/// # Errors
/// The system refuses a thread.
pub fn find(address: &str, waker: &Arc<Waker>) -> io::Result<Found> {
    if let Ok(address) = address.parse() {
        return Ok(Found::Address(address));
    }
    let (tell, answer) = sync_channel(1);
    let (address, waker) = (address.to_owned(), Arc::clone(waker));
    std::thread::Builder::new()
        .name("mesh-lookup".to_owned())
        .spawn(move || {
            // An error means that nobody waits for the answer any more.
            let _ = tell.send(lookup(&address));
            let _ = waker.wake();
        })?;
    Ok(Found::Later(Lookup(answer)))
}

fn lookup(address: &str) -> io::Result<SocketAddr> {
    let none = || io::Error::new(io::ErrorKind::NotFound, format!("{address} has no address"));
    address.to_socket_addrs()?.next().ok_or_else(none)
}

impl Lookup {
    /// The answer, if it is there.
    pub fn answer(&self) -> Option<io::Result<SocketAddr>> {
        match self.0.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(io::Error::other("the lookup ended"))),
        }
    }
}
