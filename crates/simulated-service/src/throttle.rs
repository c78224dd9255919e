//! Throttling: every n-th call is rejected, and calls above a rate, second by second.

use std::time::Duration;

use crate::knobs::is_nth;

#[derive(Default)]
pub struct Throttle {
    /// The current second, and the number of calls accepted in it.
    window: (u64, u64),
}

impl Throttle {
    /// Whether to reject the call with this number. Otherwise the call counts as accepted; 0 per second is no limit.
    pub fn rejects(&mut self, now: Duration, number: u64, every: u64, above_per_s: u64) -> bool {
        let second = now.as_secs();
        if self.window.0 != second {
            self.window = (second, 0);
        }
        let is_above = above_per_s > 0 && self.window.1 >= above_per_s;
        if is_above || is_nth(every, number) {
            return true;
        }
        self.window.1 += 1;
        false
    }
}
