//! Tells the service manager how far this process is: that it is ready, that it stops, and that it is alive
//! (sd_notify(3), sd_watchdog_enabled(3)).

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

pub const READY: &str = "READY=1";
pub const STOPPING: &str = "STOPPING=1";
const ALIVE: &str = "WATCHDOG=1";
/// In the time after which the manager ends a process that does not say that it is alive.
const SIGNS: u32 = 4;

/// The service manager, if there is one that wants to know.
pub struct Notify {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// How often it wants a sign of life.
    pub every: Option<Duration>,
}

impl Notify {
    /// As `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` say.
    pub fn from_environment() -> Self {
        let number = |name| env::var(name).ok()?.parse::<u64>().ok();
        let is_meant =
            number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let limit = number("WATCHDOG_USEC").filter(|_| is_meant);
        let name = env::var_os("NOTIFY_SOCKET");
        Self::new(name.as_deref(), limit.map(Duration::from_micros))
    }

    fn new(name: Option<&OsStr>, limit: Option<Duration>) -> Self {
        let socket = name.and_then(|name| match open(name) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(%error, ?name, "cannot tell the service manager anything: NOTIFY_SOCKET is unusable");
                None
            }
        });
        let every = limit.filter(|limit| !limit.is_zero() && socket.is_some());
        Self {
            socket,
            every: every.map(|limit| limit / SIGNS),
        }
    }

    pub fn say(&self, state: &str) {
        if let Some((socket, manager)) = &self.socket
            && let Err(error) = socket.send_to_addr(state.as_bytes(), manager)
        {
            tracing::warn!(%error, state, "cannot tell the service manager");
        }
    }

    /// Says that it is alive, if it `responds`. Otherwise nothing is said, and the manager ends it after a while.
    pub fn sign(&self, responds: impl FnOnce(Duration) -> bool) {
        let Some(every) = self.every else { return };
        match responds(every) {
            true => self.say(ALIVE),
            false => tracing::error!(
                "the MQTT loop does not answer; the service manager is not told that it is alive"
            ),
        }
    }
}

/// A path, or after `@` the name of an abstract socket.
fn open(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let manager = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that takes nothing must not hold up the broker.
    socket.set_nonblocking(true)?;
    Ok((socket, manager))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(manager: &UnixDatagram) -> Option<String> {
        manager.set_nonblocking(true).unwrap();
        let mut text = [0; 64];
        let size = manager.recv(&mut text).ok()?;
        Some(String::from_utf8(text[..size].to_vec()).unwrap())
    }

    #[test]
    fn a_manager_hears_of_it_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        Notify::new(Some(path.as_os_str()), None).say(READY);
        assert_eq!(said(&manager).as_deref(), Some("READY=1"));

        let name = format!("headwater-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        Notify::new(Some(OsStr::new(&format!("@{name}"))), None).say(STOPPING);
        assert_eq!(said(&manager).as_deref(), Some("STOPPING=1"));
    }

    #[test]
    fn only_a_loop_that_answers_is_alive() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notify = Notify::new(Some(path.as_os_str()), Some(Duration::from_secs(8)));
        assert_eq!(notify.every, Some(Duration::from_secs(2)));
        notify.sign(|_| false);
        assert_eq!(said(&manager), None);
        notify.sign(|within| within == Duration::from_secs(2));
        assert_eq!(said(&manager).as_deref(), Some("WATCHDOG=1"));
    }

    #[test]
    fn without_a_manager_nothing_happens() {
        for name in [
            None,
            Some(OsStr::new("")),
            Some(OsStr::new("/nowhere/at/all")),
        ] {
            let notify = Notify::new(name, Some(Duration::from_secs(1)));
            notify.say(READY);
            notify.sign(|_| true);
        }
        assert_eq!(Notify::new(None, Some(Duration::from_secs(1))).every, None);
    }
}
