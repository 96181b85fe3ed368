//! Decoding of a batch: checks the checksum and then every count and length against the given bytes, so that nothing is
//! allocated for a count that the bytes do not cover.

use std::sync::{Arc, OnceLock};

use crate::batch::buffers::Chunk;
use crate::batch::layout::{
    CODEC_NONE, DecodeError, ENTRY_BYTES, FLAG_EXTENSION, HEADER_BYTES, Header, Identity,
};
use crate::batch::name_table::{Name, parse_names};
use crate::batch::record_batch::{Batch, Inner};
use crate::batch::view::Extension;

impl Batch {
    /// The batch at `start` of `bytes`, which may hold more after it.
    pub(crate) fn decode(
        bytes: &Arc<Chunk>,
        start: usize,
        identity: &Identity,
    ) -> Result<Self, DecodeError> {
        let available = bytes.get(start..).unwrap_or_default();
        let header = Header::parse(available)?;
        let batch = available.get(..header.total()).ok_or(DecodeError::Short {
            needed: header.total(),
            available: available.len(),
        })?;
        let computed = identity.checksum(batch);
        if computed != header.checksum && !crate::faults::trusts_checksums() {
            return Err(DecodeError::Checksum {
                stored: header.checksum,
                computed,
            });
        }
        let batch = Self::parse(Arc::clone(bytes), start, header)?;
        batch.check_entries()?;
        Ok(batch)
    }

    /// The batches that fill `bytes`, one after the other.
    pub(crate) fn decode_all(
        bytes: &Arc<Chunk>,
        identity: &Identity,
    ) -> Result<Vec<Self>, DecodeError> {
        let (mut batches, mut start) = (Vec::new(), 0);
        while start < bytes.len() {
            let batch = Self::decode(bytes, start, identity)?;
            start += batch.bytes_len();
            batches.push(batch);
        }
        Ok(batches)
    }

    /// A batch that this process has just encoded.
    pub(crate) fn from_encoded(bytes: Arc<Chunk>, start: usize) -> Self {
        let header =
            Header::parse(&bytes[start..]).expect("a batch that was just encoded has a header");
        Self::parse(bytes, start, header).expect("the tables come from Records")
    }

    fn parse(bytes: Arc<Chunk>, start: usize, header: Header) -> Result<Self, DecodeError> {
        let codec = header.codec;
        if codec != CODEC_NONE {
            return Err(DecodeError::Codec { codec });
        }
        let clients_at = HEADER_BYTES + header.topics_bytes as usize;
        let entries_at = clients_at + header.clients_bytes as usize;
        let extensions_at = entries_at + header.records as usize * ENTRY_BYTES;
        let payloads_at = extensions_at + header.extensions_bytes as usize;
        let batch = &bytes[start..start + header.total()];
        let mut names = Vec::new();
        let topics = &batch[HEADER_BYTES..clients_at];
        let topics = parse_names(topics, header.topics, true, &mut names)
            .ok_or(DecodeError::malformed("topics"))?;
        let clients = &batch[clients_at..entries_at];
        let clients = parse_names(clients, header.clients, false, &mut names)
            .ok_or(DecodeError::malformed("client ids"))?;
        let names = String::from_utf8(names).map_err(|_| DecodeError::malformed("names"))?;
        let name_is_text = |name: &Name| names.is_char_boundary(name.start as usize);
        if !topics.iter().chain(&clients).all(name_is_text) {
            return Err(DecodeError::malformed("names"));
        }
        Ok(Self(Arc::new(Inner {
            topics: topics.into(),
            clients: clients.into(),
            bytes,
            start,
            header,
            names,
            entries_at,
            extensions_at,
            payloads_at,
            by_topic: OnceLock::new(),
        })))
    }

    fn check_entries(&self) -> Result<(), DecodeError> {
        let header = &self.0.header;
        let extensions = &self.bytes()[self.0.extensions_at..self.0.payloads_at];
        let (mut payload_end, mut extension_end) = (0, 0);
        for index in 0..self.len() {
            let entry = self.entry(index);
            if entry.topic >= header.topics || entry.client >= header.clients {
                return Err(DecodeError::malformed("topic and client indexes"));
            }
            let grows = payload_end <= entry.payload_end && extension_end <= entry.extension_end;
            if !grows
                || entry.payload_end > header.payloads_bytes
                || entry.extension_end > header.extensions_bytes
            {
                return Err(DecodeError::malformed("record ends"));
            }
            let extension = &extensions[extension_end as usize..entry.extension_end as usize];
            if extension.is_empty() == (entry.flags & FLAG_EXTENSION != 0)
                || !Extension::is_well_formed(extension)
            {
                return Err(DecodeError::malformed("extensions"));
            }
            (payload_end, extension_end) = (entry.payload_end, entry.extension_end);
        }
        if payload_end != header.payloads_bytes || extension_end != header.extensions_bytes {
            return Err(DecodeError::malformed("record ends"));
        }
        Ok(())
    }
}
