//! Reloads files while the broker runs, on SIGHUP and on request of the admin API.
//!
//! Each part reads all its files and keeps the old contents if one of them is invalid, so a mistake changes nothing.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::metrics::Metrics;

/// Reloads a part; an error is one sentence that names the file.
type Part = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

#[derive(Default)]
pub struct Reloads {
    parts: Mutex<Vec<Part>>,
    metrics: Arc<Metrics>,
}

impl Reloads {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            parts: Mutex::default(),
            metrics,
        }
    }

    pub fn add(&self, part: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        self.parts.lock().push(Box::new(part));
    }

    /// Reloads everything. An invalid part keeps its old contents; the others are replaced.
    ///
    /// # Errors
    /// What is wrong, one sentence per invalid part.
    pub fn run(&self) -> Result<(), String> {
        let bad: Vec<String> = self
            .parts
            .lock()
            .iter()
            .filter_map(|part| part().err())
            .collect();
        self.metrics.auth.count_reload(bad.is_empty());
        if bad.is_empty() {
            tracing::info!("reloaded all files");
            return Ok(());
        }
        let reason = bad.join("; ");
        tracing::error!(
            reason,
            "some files were not reloaded; their old contents stay in use"
        );
        Err(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_part_is_named_and_does_not_keep_the_others_from_being_replaced() {
        let reloads = Reloads::default();
        let done = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&done);
        reloads.add(|| Err("acl.txt, line 3: no".to_owned()));
        reloads.add(move || {
            *counted.lock() += 1;
            Ok(())
        });
        assert_eq!(reloads.run(), Err("acl.txt, line 3: no".to_owned()));
        assert_eq!(*done.lock(), 1);
    }
}
