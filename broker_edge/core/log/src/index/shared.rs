//! The parts of a partition that its reader, its writer and its retention share.

use std::sync::Arc;

use crate::ids::Offset;
use crate::index::catalog::TopicCatalog;
use crate::index::segment::Segment;
use crate::index::store::SegmentStore;
use crate::state::context::Context;
use crate::state::status::Status;

#[derive(Clone)]
pub(crate) struct Shared {
    pub context: Arc<Context>,
    /// How far the partition is, and whether it takes appends.
    pub status: Arc<Status>,
    pub segments: Arc<SegmentStore>,
    pub topics: Arc<TopicCatalog>,
}

impl Shared {
    /// Of these segments, the last of which is the active one. All of their records, up to `next`, are durable, and
    /// those below the high watermark are committed.
    pub fn new(
        context: Context,
        segments: Vec<Arc<Segment>>,
        high_watermark: Offset,
        next: Offset,
    ) -> Self {
        let context = Arc::new(context);
        let status = Arc::new(Status::new(
            &context.name,
            segments[0].base,
            high_watermark,
            next,
        ));
        let segments = Arc::new(SegmentStore::new(&context, segments));
        let topics = Arc::new(TopicCatalog::new(&context, &status, &segments));
        Self {
            context,
            status,
            segments,
            topics,
        }
    }
}
