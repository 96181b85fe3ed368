//! Charges retained messages to the account of their publisher. The charge starts at the publish, because the record is
//! applied only later, and the publisher may be gone by then.

use super::{AccountId, Kind, Quotas};

/// A retained message that was published and is not applied yet.
#[derive(Debug)]
pub(super) struct Claim {
    account: AccountId,
    count: u64,
    bytes: u64,
    /// Publishes to the topic that are not applied yet.
    outstanding: u32,
    since_ms: u64,
}

/// A claim of this age belongs to a record that the log refused.
const CLAIM_MS_MAX: u64 = 60_000;

impl Quotas {
    /// The quota that a retained message of `bytes` would exceed, if any. `held` is the account and size of the message
    /// that it replaces.
    pub fn refuses_retained(
        &self,
        id: Option<AccountId>,
        topic: &str,
        bytes: u64,
        held: Option<(AccountId, u64)>,
    ) -> Option<Kind> {
        let of = id?;
        let claimed = self.claims.get(topic).filter(|claim| claim.account == of);
        let (claimed, claimed_bytes) = claimed.map_or((0, 0), |claim| (claim.count, claim.bytes));
        let (count, bytes) = growth(of, bytes, held);
        if !self.allows(id, Kind::Retained, count.saturating_sub(claimed)) {
            return Some(Kind::Retained);
        }
        let more = bytes.saturating_sub(claimed_bytes);
        (!self.allows(id, Kind::RetainedBytes, more)).then_some(Kind::RetainedBytes)
    }

    /// A retained message was published and will be applied later.
    pub fn claim(
        &mut self,
        id: AccountId,
        topic: &str,
        bytes: u64,
        held: Option<(AccountId, u64)>,
        now_ms: u64,
    ) {
        let (count, bytes) = growth(id, bytes, held);
        self.add(Some(id), Kind::Retained, count);
        self.add(Some(id), Kind::RetainedBytes, bytes);
        if let Some(account) = self.get_mut(id) {
            account.uses += 1;
        }
        let mut claim = Claim {
            account: id,
            count,
            bytes,
            outstanding: 1,
            since_ms: now_ms,
        };
        if let Some(before) = self.claims.remove(topic) {
            claim.outstanding += before.outstanding;
            self.release(&before);
        }
        self.claims.insert(topic.into(), claim);
    }

    /// A retained message of the topic was applied. Returns its publisher's account, if known.
    pub fn settle(&mut self, topic: &str) -> Option<AccountId> {
        let claim = self.claims.get_mut(topic)?;
        let account = claim.account;
        claim.outstanding -= 1;
        if claim.outstanding == 0
            && let Some(claim) = self.claims.remove(topic)
        {
            // From now on the message itself keeps the account.
            self.add(Some(account), Kind::Retained, 1);
            self.release(&claim);
        } else {
            self.add(Some(account), Kind::Retained, 1);
        }
        Some(account)
    }

    /// Drops the claims of records that the log refused.
    pub fn forget_claims(&mut self, now_ms: u64) {
        let is_old = |claim: &Claim| claim.since_ms + CLAIM_MS_MAX <= now_ms;
        let old: Vec<Box<str>> = self
            .claims
            .iter()
            .filter(|(_, claim)| is_old(claim))
            .map(|(topic, _)| topic.clone())
            .collect();
        for topic in old {
            if let Some(claim) = self.claims.remove(&topic) {
                self.release(&claim);
            }
        }
    }

    fn release(&mut self, claim: &Claim) {
        self.remove(Some(claim.account), Kind::RetainedBytes, claim.bytes);
        self.remove(Some(claim.account), Kind::Retained, claim.count);
        self.close(Some(claim.account));
    }

    #[cfg(test)]
    pub fn claims(&self) -> usize {
        self.claims.len()
    }
}

/// What a retained message adds to its user's usage.
fn growth(id: AccountId, bytes: u64, held: Option<(AccountId, u64)>) -> (u64, u64) {
    match held {
        Some((by, before)) if by == id => (0, bytes.saturating_sub(before)),
        _ => (1, bytes),
    }
}
