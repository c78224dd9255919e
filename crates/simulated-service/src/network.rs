//! Networks of IPv4 addresses, and the addresses that are in use there.

use std::collections::VecDeque;
use std::fmt::{self, Display};
use std::net::Ipv4Addr;
use std::str::FromStr;

/// A network of IPv4 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: Ipv4Addr,
    prefix: u8,
}

impl Network {
    /// Number of addresses.
    pub fn size(self) -> u32 {
        1 << (32 - u32::from(self.prefix))
    }

    /// The address with this number.
    pub fn address(self, number: u32) -> Ipv4Addr {
        assert!(number < self.size(), "address {number} is within its network");
        Ipv4Addr::from(u32::from(self.first) + number)
    }

    /// The quarter with this number, 0 to 3.
    pub fn quarter(self, number: u32) -> Self {
        assert!(number < 4, "a network has four quarters");
        Self { first: self.address(number * (self.size() / 4)), prefix: self.prefix + 2 }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("{text} is not a network of 64 addresses or more, such as 127.87.0.0/16");
        let (first, prefix) = text.split_once('/').ok_or_else(error)?;
        let (first, prefix) = (first.parse().map_err(|_| error())?, prefix.parse().map_err(|_| error())?);
        let network = Self { first, prefix };
        match (8..=26).contains(&prefix) && u32::from(first).is_multiple_of(network.size()) {
            true => Ok(network),
            false => Err(error()),
        }
    }
}

impl Display for Network {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.first, self.prefix)
    }
}

/// Numbers of a network's addresses: the lowest one that was never used, then those that were released longest ago.
pub struct Addresses {
    network: Network,
    first: u32,
    next: u32,
    end: u32,
    released: VecDeque<u32>,
}

impl Addresses {
    /// A cloud reserves so many addresses at the beginning and at the end of each network.
    pub fn new(network: Network, reserved: (u32, u32)) -> Self {
        let (first, end) = (reserved.0, network.size() - reserved.1);
        Self { network, first, next: first, end, released: VecDeque::new() }
    }

    pub fn allocate(&mut self) -> Option<u32> {
        if self.next < self.end {
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
    pub fn free(&self) -> u32 {
        self.end - self.next + self.released.len() as u32
    }

    /// Number of addresses that are allocated.
    pub fn used(&self) -> u32 {
        self.next - self.first - self.released.len() as u32
    }

    pub fn network(&self) -> Network {
        self.network
    }

    /// The number of an address.
    pub fn number(&self, address: Ipv4Addr) -> u32 {
        u32::from(address) - u32::from(self.network.first)
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
        let mut addresses = Addresses::new("127.87.1.0/26".parse().unwrap(), (4, 1));
        let all: Vec<u32> = std::iter::from_fn(|| addresses.allocate()).collect();
        assert_eq!((all.len(), addresses.ipv4(all[0]), addresses.free()), (59, "127.87.1.4".to_owned(), 0));
        addresses.release(20);
        addresses.release(7);
        assert_eq!((addresses.free(), addresses.used()), (2, 57));
        assert_eq!((addresses.allocate(), addresses.allocate(), addresses.allocate()), (Some(20), Some(7), None));
    }

    #[test]
    fn a_network_has_64_addresses_or_more() {
        let network: Network = "127.95.0.0/16".parse().unwrap();
        assert_eq!((network.size(), network.quarter(1).to_string()), (65536, "127.95.64.0/18".to_owned()));
        for wrong in ["127.95.0.0", "127.95.0.0/27", "127.95.0.1/16", "x/16"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
