//! Weighs topics before a Flight producer appends their records. Clients choose their filters, so finding the receivers
//! of one topic may take as long as usual for thousands. The live stream finds those of all topics of a batch at once: a
//! producer that knows what its topics cost makes smaller batches. What is found here is kept for the live stream.

use tokio::sync::oneshot::Sender;

use crate::engine::clients::Clients;
use crate::engine::delivery::matches::matches;
use crate::engine::env::Env;
use crate::engine::routing::Routing;
use crate::engine::routing::topics::Topic;
use crate::engine::shared_groups::Groups;

/// Limit on the topics of one request.
pub const TOPICS_MAX: usize = 256;
/// After so much work for one request its other topics are not weighed, nor other requests in this turn. The unit is a
/// visited node of the subscription index.
const REQUEST_WORK_MAX: u64 = 1 << 12;

/// Topics of records on their way into the log.
#[derive(Debug)]
pub struct WeighRequest {
    /// At most [`TOPICS_MAX`].
    pub topics: Vec<String>,
    /// The work for each of the first topics. The others have to be asked for again; so has the first one, if finding its
    /// receivers takes more than a part of a turn.
    pub answer: Sender<Vec<u64>>,
}

impl WeighRequest {
    /// Sends the answer, and returns whether that took much work. A requester that no longer waits is no error.
    pub(in crate::engine) fn serve(
        self,
        env: &Env,
        routing: &mut Routing,
        clients: &Clients,
        groups: &Groups,
    ) -> bool {
        routing.take_work();
        let mut works = Vec::with_capacity(self.topics.len());
        let mut is_unfinished = false;
        for topic in &self.topics {
            let id = routing.intern(topic, &env.log);
            if matches(routing, id, |key| clients.session(key), groups).is_none() {
                is_unfinished = true;
                break;
            }
            works.push(routing.topic(id).map_or(0, Topic::work));
            if routing.work() > REQUEST_WORK_MAX {
                break;
            }
        }
        let _ = self.answer.send(works);
        is_unfinished || routing.take_work() > REQUEST_WORK_MAX
    }
}
