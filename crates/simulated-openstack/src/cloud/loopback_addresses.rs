//! Loopback addresses, allocated sequentially, so that any process of this machine can serve as a simulated server.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The hosts of one network of 65,536 addresses; the first ones are reserved for gateways.
pub struct AddressPool {
    second_octet: u8,
    next: u16,
    allocated: HashSet<u16>,
}

const FIRST: u16 = 10;
const LAST: u16 = u16::MAX - 1;

impl AddressPool {
    /// 127.80.0.0/16 for the first network of the project, 127.81.0.0/16 for the next.
    pub fn internal(index: u8) -> Self {
        Self { second_octet: 80 + index, next: FIRST, allocated: HashSet::new() }
    }

    pub fn external() -> Self {
        Self { second_octet: 90, next: FIRST, allocated: HashSet::new() }
    }

    /// Allocates the next free address; `None` if all are allocated.
    pub fn allocate(&mut self) -> Option<u16> {
        if self.allocated.len() > usize::from(LAST - FIRST) {
            return None;
        }
        loop {
            let host = self.next;
            self.next = if host == LAST { FIRST } else { host + 1 };
            if self.allocated.insert(host) {
                return Some(host);
            }
        }
    }

    pub fn release(&mut self, host: u16) {
        assert!(self.allocated.remove(&host), "address {host} was not allocated");
    }

    pub fn ipv4(&self, host: u16) -> String {
        let [third, fourth] = host.to_be_bytes();
        Ipv4Addr::new(127, self.second_octet, third, fourth).to_string()
    }

    pub fn ipv6(&self, host: u16) -> String {
        Ipv6Addr::new(0xfd00, hexadecimal(self.second_octet), 0, 0, 0, 0, 0, host).to_string()
    }
}

/// 80 as 0x80, so that fd00:80:: reads like 127.80.
pub fn hexadecimal(octet: u8) -> u16 {
    u16::from(octet / 10) * 16 + u16::from(octet % 10)
}
