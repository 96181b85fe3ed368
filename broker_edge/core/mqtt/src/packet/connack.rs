//! CONNACK, as a client reads it.

use crate::error::DecodeError;
use crate::property::{PacketProperties, Properties};
use crate::reason::{ConnectReturnCode, ReasonCode};
use crate::version::Version;
use crate::wire::Reader;

/// The answer to a CONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connack<'a> {
    pub session_present: bool,
    pub code: ConnackCode,
    pub properties: Properties<'a>,
}

/// The result code of a CONNACK, by protocol version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnackCode {
    V3(ConnectReturnCode),
    V5(ReasonCode),
}

impl ConnackCode {
    #[must_use]
    pub const fn is_accepted(self) -> bool {
        matches!(
            self,
            Self::V3(ConnectReturnCode::Accepted) | Self::V5(ReasonCode::Success)
        )
    }
}

pub(super) fn decode(version: Version, body: &[u8]) -> Result<Connack<'_>, DecodeError> {
    let mut reader = Reader::new(body);
    let flags = reader.u8()?;
    if flags > 1 {
        return Err(DecodeError::malformed(
            "reserved bits of the CONNACK flags are set",
        ));
    }
    let code = reader.u8()?;
    let unknown = DecodeError::protocol("a code that is not allowed in a CONNACK");
    let (code, properties) = if version.is_v5() {
        let code = ReasonCode::from_u8(code)
            .filter(|code| *code == ReasonCode::Success || code.is_error())
            .ok_or(unknown)?;
        (
            ConnackCode::V5(code),
            Properties::read(&mut reader, PacketProperties::Connack)?,
        )
    } else {
        (
            ConnackCode::V3(ConnectReturnCode::from_u8(code).ok_or(unknown)?),
            Properties::EMPTY,
        )
    };
    if !reader.is_empty() {
        return Err(DecodeError::malformed(
            "a CONNACK is longer than its fields",
        ));
    }
    Ok(Connack {
        session_present: flags == 1,
        code,
        properties,
    })
}
