//! Addresses of a network: the lowest one that was never used, then those that were released longest ago.

use std::collections::VecDeque;

use crate::options::Network;

pub struct Addresses {
    pub network: Network,
    next: u32,
    released: VecDeque<u32>,
    used: u32,
}

/// Addresses at the beginning of each subnet that AWS reserves; the fifth is the last one.
const RESERVED: u32 = 4;

impl Addresses {
    pub fn new(network: Network) -> Self {
        Self { network, next: RESERVED, released: VecDeque::new(), used: 0 }
    }

    /// Number of free addresses; `limit` is the size of the network, 0 its own size.
    pub fn free(&self, limit: u32) -> u32 {
        let own = self.network.size() - RESERVED - 1;
        let size = if limit == 0 { own } else { own.min(limit) };
        size.saturating_sub(self.used)
    }

    pub fn allocate(&mut self) -> Option<u32> {
        let number = if self.next < self.network.size() - 1 {
            self.next += 1;
            self.next - 1
        } else {
            self.released.pop_front()?
        };
        self.used += 1;
        Some(number)
    }

    pub fn release(&mut self, number: u32) {
        assert!(self.used > 0, "address {number} was not allocated");
        self.used -= 1;
        self.released.push_back(number);
    }

    pub fn ipv4(&self, number: u32) -> String {
        self.network.address(number).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_addresses_are_used_after_all_others() {
        let mut addresses = Addresses::new("127.77.1.0/26".parse().unwrap());
        let all: Vec<u32> = std::iter::from_fn(|| addresses.allocate()).collect();
        assert_eq!((all.len(), addresses.ipv4(all[0])), (59, "127.77.1.4".to_owned()));
        assert_eq!(addresses.free(0), 0);
        addresses.release(20);
        addresses.release(7);
        assert_eq!((addresses.free(0), addresses.allocate(), addresses.allocate()), (2, Some(20), Some(7)));
    }
}
