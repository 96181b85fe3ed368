//! Ends a connection when the certificate that its client has presented expires, as for MQTT.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::pass::Pass;
use crate::clock::now_us;

/// Wall clocks jump, so expiry is checked at least this often.
const CHECK_EVERY_MAX: Duration = Duration::from_secs(60 * 60);

/// Dropped with its connection.
pub struct ExpiryWatch(JoinHandle<()>);

impl ExpiryWatch {
    /// Must be called within the runtime.
    pub fn new(pass: Arc<Pass>, expires_us: i64) -> ExpiryWatch {
        ExpiryWatch(tokio::spawn(async move {
            while let Ok(left_us) = u64::try_from(expires_us - now_us()) {
                let left = Duration::from_micros(left_us + 1);
                tokio::time::sleep(left.min(CHECK_EVERY_MAX)).await;
            }
            pass.end("expired");
        }))
    }
}

impl Drop for ExpiryWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}
