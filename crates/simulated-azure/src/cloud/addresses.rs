//! Addresses of a network: the lowest one that was never used, then those that were released longest ago.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use crate::options::Network;

pub struct Addresses {
    network: Network,
    next: u32,
    released: VecDeque<u32>,
}

/// Addresses at the beginning of each subnet that Azure reserves; a fifth one is the last.
const RESERVED: u32 = 4;

impl Addresses {
    pub fn new(network: Network) -> Self {
        Self { network, next: RESERVED, released: VecDeque::new() }
    }

    pub fn allocate(&mut self) -> Option<Ipv4Addr> {
        let number = if self.next < self.network.size() - 1 {
            self.next += 1;
            self.next - 1
        } else {
            self.released.pop_front()?
        };
        Some(self.network.address(number))
    }

    pub fn release(&mut self, address: Ipv4Addr) {
        let number = u32::from(address) - u32::from(self.network.address(0));
        assert!(number < self.next, "address {address} was not allocated");
        self.released.push_back(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_addresses_are_used_after_all_others() {
        let mut addresses = Addresses::new("127.87.1.0/26".parse().unwrap());
        let all: Vec<Ipv4Addr> = std::iter::from_fn(|| addresses.allocate()).collect();
        assert_eq!((all.len(), all[0].to_string()), (59, "127.87.1.4".to_owned()));
        addresses.release(all[20]);
        addresses.release(all[7]);
        assert_eq!((addresses.allocate(), addresses.allocate()), (Some(all[20]), Some(all[7])));
        assert_eq!(addresses.allocate(), None);
    }
}
