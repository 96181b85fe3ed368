//! Recognizes a health probe before it has a slot, so that clients which hold every slot cannot make the broker look dead.
//!
//! It peeks at the first bytes and takes none. Only a complete request counts: an unfinished one would hold the slot.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The requests that are probes, up to the end of their path.
const PROBES: [&[u8]; 4] = [
    b"GET /healthz ",
    b"GET /readyz ",
    b"HEAD /healthz ",
    b"HEAD /readyz ",
];
const HEAD_END: &[u8] = b"\r\n\r\n";
/// The longest head of a probe; longer ones are treated like other requests.
const HEAD_BYTES_MAX: usize = 2048;
/// The time for the whole head.
const LOOK: Duration = Duration::from_millis(100);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Connections that are looked at at the same time; further ones are treated like other requests.
const LOOKS_MAX: usize = 16;

/// The free places of connections that are looked at.
pub struct Looks(Arc<Semaphore>);

impl Default for Looks {
    fn default() -> Self {
        Looks(Arc::new(Semaphore::new(LOOKS_MAX)))
    }
}

impl Looks {
    pub fn begin(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_owned().ok()
    }
}

/// Whether the connection has sent a complete health probe.
pub async fn is_asked(stream: &TcpStream) -> bool {
    let look = async {
        let mut head = [0; HEAD_BYTES_MAX];
        loop {
            let Ok(count) = stream.peek(&mut head).await else {
                return false;
            };
            match found_in(&head[..count]) {
                // The rest of the probe is on its way. A peek returns at once as long as there are bytes.
                None if count > 0 => tokio::time::sleep(LOOK_AGAIN).await,
                found => return found.unwrap_or(false),
            }
        }
    };
    tokio::time::timeout(LOOK, look).await.unwrap_or(false)
}

/// `None` while it may still become a probe.
fn found_in(head: &[u8]) -> Option<bool> {
    let begins = |probe: &[u8]| {
        let common = probe.len().min(head.len());
        probe[..common] == head[..common]
    };
    if !PROBES.iter().any(|probe| begins(probe)) || head.len() >= HEAD_BYTES_MAX {
        return Some(false);
    }
    head.ends_with(HEAD_END).then_some(true)
}

#[cfg(test)]
mod tests {
    use super::found_in;

    #[test]
    fn only_a_complete_probe_gets_a_slot_of_its_own() {
        for (head, found) in [
            ("", None),
            ("GET /he", None),
            ("GET /healthz HTTP/1.1\r\nHost: a\r\n", None),
            ("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", Some(true)),
            ("HEAD /readyz HTTP/1.1\r\n\r\n", Some(true)),
            ("GET /healthzz HTTP/1.1\r\n\r\n", Some(false)),
            ("GET /metrics HTTP/1.1\r\n\r\n", Some(false)),
            ("PUT /api/v1/drain HTTP/1.1\r\n", Some(false)),
        ] {
            assert_eq!(found_in(head.as_bytes()), found, "{head:?}");
        }
        let endless = format!("GET /healthz HTTP/1.1\r\nA: {}", "x".repeat(3000));
        assert_eq!(found_in(endless.as_bytes()), Some(false));
    }
}
