//! Which answers are believed: those of one cluster, which never goes back.

use crate::error::Fault;
use crate::proto::Answer;
use crate::store::Revision;
use crate::wire::revision;

#[derive(Debug, Default)]
pub struct Belief {
    /// Of the first answer. All others have to come from the same cluster.
    cluster_id: Option<u64>,
    /// The highest that any answer named. A later request is answered with at least this.
    newest: Revision,
}

impl Belief {
    pub fn cluster_id(&self) -> Option<u64> {
        self.cluster_id
    }

    pub fn newest(&self) -> Revision {
        self.newest
    }

    pub fn check_cluster(&mut self, found: u64) -> Result<(), Fault> {
        match *self.cluster_id.get_or_insert(found) {
            expected if expected == found => Ok(()),
            expected => Err(Fault::OtherCluster { expected, found }),
        }
    }

    /// Refuses the answers of another cluster, and those that are older than what was known when they were asked for.
    pub fn check<A: Answer>(&mut self, answer: &A, known: Revision) -> Result<(), Fault> {
        let Some(header) = answer.header() else {
            return Err(Fault::NotEtcd("its answer has no header".to_owned()));
        };
        self.check_cluster(header.cluster_id)?;
        let found = revision(header.revision);
        if A::IS_LINEARIZABLE && found < known {
            return Err(Fault::WentBack { known, found });
        }
        self.newest = self.newest.max(found);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Header, LeaseKeepAliveAnswer, RangeAnswer};

    fn header(revision: i64) -> Option<Header> {
        let cluster_id = 7;
        Some(Header {
            cluster_id,
            revision,
        })
    }

    fn range(revision: i64) -> RangeAnswer {
        RangeAnswer {
            header: header(revision),
            ..Default::default()
        }
    }

    #[test]
    fn an_answer_is_not_older_than_what_was_known_before_its_request() {
        let mut belief = Belief::default();
        assert_eq!(belief.check(&range(5), Revision(0)), Ok(()));
        assert_eq!(belief.newest(), Revision(5));
        let went_back = Fault::WentBack {
            known: Revision(5),
            found: Revision(4),
        };
        assert_eq!(belief.check(&range(4), Revision(5)), Err(went_back));
        // It was asked for before the other one was answered.
        assert_eq!(belief.check(&range(4), Revision(4)), Ok(()));
        assert_eq!(belief.newest(), Revision(5));
    }

    #[test]
    fn a_renewed_lease_may_name_a_revision_of_a_member_that_lags() {
        let mut belief = Belief::default();
        let answer = LeaseKeepAliveAnswer {
            header: header(4),
            ttl_s: 60,
        };
        assert_eq!(belief.check(&answer, Revision(5)), Ok(()));
    }
}
