//! Retained messages count for the user who published them.

use headwater_log::RecordView;

use crate::engine::ids::PartitionIndex;
use crate::engine::quotas::{AccountId, Kind, Quotas};

use super::{RecordRef, Retained, RetainedEntry, bytes_of};

impl Retained {
    /// The account and the bytes of a topic's retained message, if its user is known.
    fn charged(&self, topic: &str) -> Option<(AccountId, u64)> {
        let entry = self.by_topic.get(topic)?;
        Some((entry.account?, entry.bytes))
    }

    /// The quota of its user that a retained message would exceed, if any.
    pub fn over_quota(
        &self,
        quotas: &Quotas,
        account: Option<AccountId>,
        (topic, payload_bytes): (&str, usize),
    ) -> Option<Kind> {
        let bytes = bytes_of(topic, payload_bytes);
        quotas.refuses_retained(account, topic, bytes, self.charged(topic))
    }

    /// A retained message is on its way into the log.
    pub fn claim(
        &self,
        quotas: &mut Quotas,
        account: Option<AccountId>,
        (topic, payload_bytes): (&str, usize),
        now_ms: u64,
    ) {
        if let Some(account) = account {
            let bytes = bytes_of(topic, payload_bytes);
            quotas.claim(account, topic, bytes, self.charged(topic), now_ms);
        }
    }

    /// Applies a record with the retain flag, charged to its publisher's account. Returns the entry it replaced.
    pub fn apply_charged(
        &mut self,
        quotas: &mut Quotas,
        record: &RecordView<'_>,
        partition: PartitionIndex,
    ) -> Option<RetainedEntry> {
        if !quotas.is_used() {
            return self.apply(record, partition);
        }
        let before = self.by_topic.get(record.topic).copied();
        let account = if record.payload.is_empty() {
            None
        } else {
            quotas.settle(record.topic)
        };
        let replaced = self.apply(record, partition);
        let at = RecordRef::new(partition, record.offset);
        match self.by_topic.get_mut(record.topic) {
            Some(entry) if entry.at == at => {
                // The value exists already; its bytes count from now on.
                entry.account = account;
                quotas.add(account, Kind::RetainedBytes, entry.bytes);
            }
            _ => quotas.remove(account, Kind::Retained, 1),
        }
        let now = self.by_topic.get(record.topic);
        if let Some(before) = before.filter(|before| now.is_none_or(|now| now.at != before.at)) {
            quotas.remove(before.account, Kind::RetainedBytes, before.bytes);
            quotas.remove(before.account, Kind::Retained, 1);
        }
        replaced
    }
}
