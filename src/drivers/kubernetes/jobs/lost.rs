//! Requests of a launch whose response was lost.

use nodepool_model::records::time::Seconds;

/// Number of consecutive requests without a response after which a launch fails, and the delay after the first one.
const MAX_LOST: u32 = 6;
const FIRST_DELAY: Seconds = Seconds(0.2);

/// Consecutive requests without a response.
#[derive(Default)]
pub struct LostRequests(u32);

impl LostRequests {
    /// Delay until the cluster is asked again; `None` if the launch fails.
    pub fn next_delay(&mut self) -> Option<Seconds> {
        self.0 += 1;
        (self.0 < MAX_LOST).then(|| Seconds(FIRST_DELAY.0 * f64::from(1_u32 << (self.0 - 1))))
    }
}
