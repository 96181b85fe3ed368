//! The time in which this node serves clients. What was appended in it is acknowledged in it or not at all, because the
//! next leader may give the same offset to another record.

use std::sync::Arc;

use headwater_log::Offset;
use tokio::sync::watch;

use super::progress::Progress;
use crate::service::error::Refusal;

/// The Flight address of the node that serves clients, if it is known.
pub type Leader = Option<Arc<str>>;

/// A time in which this node serves clients. It has ended when the channel has a leader, known or not.
#[derive(Clone)]
pub struct Tenure(watch::Receiver<Option<Leader>>);

impl Tenure {
    pub fn of(ended: watch::Receiver<Option<Leader>>) -> Self {
        Self(ended)
    }

    /// Completes when the time is over.
    pub async fn over(&self) -> Refusal {
        let mut ended = self.0.clone();
        // An error means that the broker stops.
        let leader = ended.wait_for(Option::is_some).await;
        let leader = leader.ok().and_then(|leader| leader.clone());
        Refusal::not_leader(leader.flatten().as_deref())
    }

    fn check(&self) -> Result<(), Refusal> {
        match &*self.0.borrow() {
            None => Ok(()),
            Some(leader) => Err(Refusal::not_leader(leader.as_deref())),
        }
    }

    /// Waits until everything below `end`, which was appended in this time, is durable.
    ///
    /// # Errors
    /// The time is over, the broker stops, or there is no space.
    pub async fn reach(&self, progress: &Progress, end: Offset) -> Result<(), Refusal> {
        tokio::select! {
            reached = progress.reach(end) => {
                reached?;
                // In this order: a later leader's records move the high watermark only after the time is over.
                self.check()
            }
            refusal = self.over() => Err(refusal),
        }
    }
}

#[cfg(test)]
mod tests {
    use headwater_log::{Log, LogConfig, Seams};
    use tonic::Status;

    use super::*;

    /// A wait for a record of one time in office does not end with a record of another.
    #[tokio::test]
    async fn what_waits_is_refused_when_the_time_is_over_even_if_the_offset_is_reached() {
        let dir = tempfile::tempdir().expect("a folder");
        let (log, _) = Log::open(LogConfig::new(dir.path()), Seams::system()).expect("a log");
        let partition = log.by_name("telemetry-0").expect("of every log");
        let progress = Progress::of(partition);
        let (ends, tenure) = watch::channel(None);
        let tenure = Tenure(tenure);
        let reached = partition.high_watermark();
        assert!(tenure.reach(&progress, reached).await.is_ok());

        let (own, waited) = (tenure.clone(), progress.clone());
        let waiting = tokio::spawn(async move {
            own.reach(&waited, reached.plus(1))
                .await
                .map_err(Status::from)
        });
        ends.send_replace(Some(Some(Arc::from("grpc://b:8815"))));
        let refused = waiting
            .await
            .expect("it ends")
            .expect_err("nothing was appended");
        assert!(
            refused.message().contains(r#""leader":"grpc://b:8815""#),
            "{refused}"
        );
        assert!(tenure.reach(&progress, reached).await.is_err());
    }
}
