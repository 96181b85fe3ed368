//! DoPut: messages of Arrow IPC, and the rows in them.

use arrow_flight::FlightData;
use arrow_flight::utils::batches_to_flight_data;
use bytes::Bytes;
use tonic::Status;

use super::check_sentence;
use crate::config::Config;
use crate::service::arrow::ipc::Decoder;
use crate::service::error::Refusal;
use crate::service::ingest::rows::Rows;
use crate::service::limits::Limits;

fn refused(refusal: Refusal) {
    check_sentence(Status::from(refusal).message(), 8_000);
}

/// Takes a part with its length in two bytes before it; what is missing is not there.
fn part<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = input.split_first_chunk::<2>()?;
    let (part, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
    *input = rest;
    Some(part)
}

/// Messages of a header and a body. The decoder's own guard against panics is left out.
pub fn arrow_put(mut input: &[u8]) {
    let limits = Limits::of(&Config::default());
    let mut decoder = Decoder::default();
    while let Some(header) = part(&mut input) {
        let message = FlightData {
            data_header: Bytes::copy_from_slice(header),
            data_body: Bytes::copy_from_slice(part(&mut input).unwrap_or_default()),
            ..FlightData::default()
        };
        let batch = match decoder.decode_checked(&message) {
            Ok(None) => continue,
            Ok(Some(batch)) => batch,
            Err(refusal) => return refused(refusal),
        };
        let rows = match Rows::of(&batch, &limits) {
            Ok(rows) => rows,
            Err(refusal) => return refused(refusal),
        };
        for row in 0..rows.len() {
            let _ = (rows.key(row), rows.retain(row), rows.idempotency_key(row));
            rows.for_each_header(row, |name, _| assert!(name.len() <= usize::from(u16::MAX)));
        }
        let again = batches_to_flight_data(&batch.schema(), [&batch]).expect("good rows encode");
        let mut decoder = Decoder::default();
        let found = again.iter().filter_map(|message| {
            decoder
                .decode_checked(message)
                .expect("good rows are decoded")
        });
        assert_eq!(found.collect::<Vec<_>>(), std::slice::from_ref(&batch));
    }
}
