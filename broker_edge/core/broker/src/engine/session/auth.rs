//! What a connection remembers while its client is authenticated.

use std::cell::Cell;
use std::rc::Rc;

use crate::auth::Answer;
use crate::auth::scram::Exchange;
use crate::auth::users::Fingerprint;

/// The authentication state of a connection. Most connections store none.
#[derive(Debug)]
pub enum AuthStep {
    /// A thread checks the credentials. The connection is not read, and the bytes it has sent are kept.
    Checking(Option<Charge>),
    Answered(Answer),
    /// Enhanced authentication, in progress or done.
    Enhanced(Exchanging),
}

/// Bytes kept for a client that is not admitted yet, counted against one limit for all such clients.
#[derive(Debug)]
pub struct Charge {
    bytes: usize,
    total: Rc<Cell<usize>>,
}

impl Charge {
    /// `None` if the limit would be exceeded.
    pub fn take(total: &Rc<Cell<usize>>, bytes: usize, bytes_max: usize) -> Option<Self> {
        let sum = total.get() + bytes;
        (sum <= bytes_max).then(|| {
            total.set(sum);
            Self {
                bytes,
                total: Rc::clone(total),
            }
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.total.set(self.total.get() - self.bytes);
    }
}

/// The exchange of one connection.
#[derive(Debug)]
pub enum Exchanging {
    /// A CONNECT waits for it.
    Connecting {
        pending: Pending,
        connect: Box<[u8]>,
        _charge: Charge,
    },
    /// The exchange has ended; the client may start another.
    Done,
    Again {
        pending: Pending,
    },
}

/// A running exchange, and the stored keys it uses.
#[derive(Debug)]
pub struct Pending {
    pub exchange: Exchange,
    /// `None` for a user that does not exist: no proof will be accepted.
    pub keys: Option<Fingerprint>,
}
