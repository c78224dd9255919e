//! Upload of a file in parts: those that were not stored are sent again.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::object_store::FilePart;
use nodepool_driver::error::CloudError;
use nodepool_model::config::upload_config::UploadOrder;
use nodepool_model::records::time::Seconds;

/// So many calls in a row may store nothing.
pub const MAX_FAILURES: u32 = 5;
/// Pause before a call is repeated.
pub const REPEAT_PAUSE: Seconds = Seconds(2.0);

/// The identifications of the parts that a call has stored, and the first error of the others.
pub type Stored = (BTreeMap<u32, String>, Option<String>);

pub struct PartUpload {
    order: Arc<UploadOrder>,
    pending: BTreeMap<u32, FilePart>,
    /// Identifications of the parts that were stored.
    pub stored: BTreeMap<u32, String>,
    /// Calls in a row without an effect.
    pub failures: u32,
}

impl PartUpload {
    pub fn new(order: Arc<UploadOrder>, parts: BTreeMap<u32, FilePart>) -> Self {
        Self { order, pending: parts, stored: BTreeMap::new(), failures: 0 }
    }

    /// At most so many parts for the next call; none if all are stored.
    pub fn next(&self, most: usize) -> Vec<(u32, FilePart)> {
        self.pending.iter().take(most).map(|(number, part)| (*number, part.clone())).collect()
    }

    /// Records what a call has stored. Returns the pause before the next call.
    pub fn on_sent(&mut self, result: Result<Stored, CloudError>) -> Result<Seconds, CloudError> {
        let (stored, error) = match result {
            Ok(sent) => sent,
            Err(error) => return self.may_repeat(error),
        };
        self.failures = 0;
        self.pending.retain(|number, _| !stored.contains_key(number));
        self.stored.extend(stored);
        let left: u64 = self.pending.values().map(|part| part.length).sum();
        self.order.progress.set(self.order.size.saturating_sub(left));
        Ok(if error.is_some() { REPEAT_PAUSE } else { Seconds::ZERO })
    }

    /// The pause before a call that failed is repeated; its error if it is final.
    pub fn may_repeat(&mut self, error: CloudError) -> Result<Seconds, CloudError> {
        self.failures += 1;
        let may_pass = matches!(error, CloudError::Failed { .. } | CloudError::Deadline | CloudError::Outage { .. });
        if may_pass && self.failures <= MAX_FAILURES { Ok(REPEAT_PAUSE) } else { Err(error) }
    }
}
