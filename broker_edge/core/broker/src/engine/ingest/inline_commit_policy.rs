//! Decides whether to commit on the loop's thread: only while commits are likely to be fast, judged by the last ones.
//!
//! One slow sync says little: the disk was busy, or the thread had to wait for a processor. Several among the last
//! eight mean that the disk is slow. Then commits are left to the writer's thread, and one is tried here now and then.

use std::time::Duration;

/// Commits slower than this delay all clients of the loop.
const SLOW: Duration = Duration::from_millis(2);
/// This many slow commits among the last eight are too many.
const SLOW_MAX: u32 = 3;
/// The number of commits then left to the writer's thread. It doubles each time the next one here is slow again.
const LEFT_MIN: u32 = 8;
const LEFT_MAX: u32 = 256;

#[derive(Debug, Default)]
pub struct InlineCommitPolicy {
    /// One bit for each of the last commits, the newest lowest; set for a slow one.
    slow: u8,
    /// Commits still left to the writer's thread.
    left: u32,
    /// The number left the last time; falls with each fast commit.
    last_left: u32,
}

impl InlineCommitPolicy {
    /// Whether the next commit may be made on this thread.
    pub fn is_likely(&self) -> bool {
        self.left == 0
    }

    /// A commit was left to the writer's thread.
    pub fn note_left(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// A commit was made on this thread and took this long.
    pub fn note(&mut self, took: Duration) {
        let is_slow = took > SLOW;
        self.slow = self.slow << 1 | u8::from(is_slow);
        if self.slow.count_ones() >= SLOW_MAX {
            self.last_left = (self.last_left * 2).clamp(LEFT_MIN, LEFT_MAX);
            self.left = self.last_left;
            // If the next commit here is slow too, the limit is reached again.
            self.slow = (1 << (SLOW_MAX - 1)) - 1;
        } else if !is_slow {
            self.last_left /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_micros(100);
    const LONG: Duration = Duration::from_millis(20);

    /// Of `commits` on a disk that takes `took`, the number made on this thread.
    fn made_here(inline_commits: &mut InlineCommitPolicy, commits: usize, took: Duration) -> usize {
        let mut made = 0;
        for _ in 0..commits {
            if inline_commits.is_likely() {
                inline_commits.note(took);
                made += 1;
            } else {
                inline_commits.note_left();
            }
        }
        made
    }

    #[test]
    fn a_slow_sync_now_and_then_changes_nothing() {
        let mut inline_commits = InlineCommitPolicy::default();
        for _ in 0..100 {
            assert_eq!(made_here(&mut inline_commits, 1, LONG), 1);
            assert_eq!(made_here(&mut inline_commits, 9, QUICK), 9);
        }
    }

    #[test]
    fn a_slow_disk_is_left_to_the_writer_and_a_quick_one_comes_back() {
        let mut inline_commits = InlineCommitPolicy::default();
        let made = made_here(&mut inline_commits, 10_000, LONG);
        assert!(
            (20..60).contains(&made),
            "{made} of 10,000 held up the loop"
        );
        made_here(&mut inline_commits, LEFT_MAX as usize, QUICK);
        assert_eq!(made_here(&mut inline_commits, 1000, QUICK), 1000);
    }
}
