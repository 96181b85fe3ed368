//! Retained messages on the account of who sets them: from the publish on, because the record is there only later, and who
//! published it may be gone by then.

use super::{AccountId, Kind, Quotas};

/// A retained message that was published and is not there yet.
#[derive(Debug)]
pub(super) struct Claim {
    account: AccountId,
    count: u64,
    bytes: u64,
    /// Such publishes of the topic that are on their way.
    outstanding: u32,
    since_ms: u64,
}

/// A claim that is so old is of a record that the log did not take.
const CLAIM_MS_MAX: u64 = 60_000;

impl Quotas {
    /// The quota that a retained message of `bytes` would exceed, if any. `held` is the account and size of the message that
    /// it replaces.
    pub fn refuses_retained(
        &self,
        id: AccountId,
        topic: &str,
        bytes: u64,
        held: Option<(AccountId, u64)>,
    ) -> Option<Kind> {
        let claimed = self.claims.get(topic).filter(|claim| claim.account == id);
        let (claimed, claimed_bytes) = claimed.map_or((0, 0), |claim| (claim.count, claim.bytes));
        let (count, bytes) = growth(id, bytes, held);
        if !self.allows(id, Kind::Retained, count.saturating_sub(claimed)) {
            return Some(Kind::Retained);
        }
        let more = bytes.saturating_sub(claimed_bytes);
        (!self.allows(id, Kind::RetainedBytes, more)).then_some(Kind::RetainedBytes)
    }

    /// Such a message is on its way.
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

    /// A retained message of the topic is there now: who published it, as far as that is known.
    pub fn settle(&mut self, topic: &str) -> Option<AccountId> {
        let claim = self.claims.get_mut(topic)?;
        let account = claim.account;
        claim.outstanding -= 1;
        if claim.outstanding == 0
            && let Some(claim) = self.claims.remove(topic)
        {
            // What it has from now on keeps the account.
            self.add(Some(account), Kind::Retained, 1);
            self.release(&claim);
        } else {
            self.add(Some(account), Kind::Retained, 1);
        }
        Some(account)
    }

    /// Forgets claims of records that the log did not take.
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
        self.close(claim.account);
    }

    #[cfg(test)]
    pub fn claims(&self) -> usize {
        self.claims.len()
    }
}

/// What a retained message adds to what its user has.
fn growth(id: AccountId, bytes: u64, held: Option<(AccountId, u64)>) -> (u64, u64) {
    match held {
        Some((by, before)) if by == id => (0, bytes.saturating_sub(before)),
        _ => (1, bytes),
    }
}
