//! Addresses of a network: the lowest one that was never used, then those that were released longest ago.

use std::collections::VecDeque;

use crate::options::Network;

pub struct Addresses {
    network: Network,
    next: u32,
    released: VecDeque<u32>,
}

impl Addresses {
    /// IBM reserves the first four addresses of a subnet and the last one.
    pub fn new(network: Network) -> Self {
        Self { network, next: 4, released: VecDeque::new() }
    }

    pub fn allocate(&mut self) -> Option<u32> {
        if self.next < self.network.size() - 1 {
            self.next += 1;
            return Some(self.next - 1);
        }
        self.released.pop_front()
    }

    pub fn release(&mut self, number: u32) {
        assert!(number < self.next, "address {number} was not allocated");
        self.released.push_back(number);
    }

    /// Number of addresses that can be allocated.
    pub fn free(&self) -> usize {
        (self.network.size() - 1 - self.next) as usize + self.released.len()
    }

    pub fn network(&self) -> Network {
        self.network
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
        let mut addresses = Addresses::new("127.95.1.0/26".parse().unwrap());
        let all: Vec<u32> = std::iter::from_fn(|| addresses.allocate()).collect();
        assert_eq!((all.len(), addresses.ipv4(all[0])), (59, "127.95.1.4".to_owned()));
        addresses.release(20);
        addresses.release(7);
        assert_eq!((addresses.allocate(), addresses.allocate(), addresses.allocate()), (Some(20), Some(7), None));
    }
}
