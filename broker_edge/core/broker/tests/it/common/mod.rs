//! A real broker on free ports and a small blocking MQTT client.

mod client;
mod got;
pub mod http;
pub mod numbers;

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use headwater_broker::Broker;
use headwater_broker::config::Config;

pub use client::Client;
pub use got::{Got, Message};

/// The longest time that a test waits for an expected event.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Raises the limit of open files to the hard limit, as `headwaterd` does, and returns it: all tests of this program
/// share it, and with many cores many of them run at a time. `None` is no limit.
pub fn raise_open_files() -> Option<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("the hard limit is allowed");
    limit.current
}

/// A broker with its data in `dir`.
pub fn start(dir: &Path) -> Broker {
    start_with(dir, |_| {})
}

pub fn start_with(dir: &Path, change: impl FnOnce(&mut Config)) -> Broker {
    try_start_with(dir, change)
        .expect("the broker starts on an empty folder or on what it left there")
}

pub fn try_start_with(
    dir: &Path,
    change: impl FnOnce(&mut Config),
) -> Result<Broker, headwater_broker::StartError> {
    raise_open_files();
    let mut config = Config {
        data_dir: dir.to_owned(),
        ..Config::default()
    };
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    config.listeners.mqtt.bind.0 = vec![free];
    config.listeners.flight.bind.0 = free;
    config.listeners.admin.bind.0 = free;
    change(&mut config);
    Broker::start(config)
}

/// A TCP connection on which every read has a deadline.
pub fn tcp(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the broker listens");
    stream
        .set_read_timeout(Some(DEADLINE))
        .expect("a timeout above zero");
    stream.set_nodelay(true).expect("an open socket");
    stream
}
