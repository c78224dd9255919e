//! Port reservation: ports that no other test process on this machine uses at the same time.

use std::{
    fs::File,
    net::{IpAddr, Ipv4Addr, TcpListener},
    sync::atomic::{AtomicU32, Ordering},
};

use nix::fcntl::{Flock, FlockArg};

/// Below the range of ephemeral ports of Linux and macOS, so that a restarted server finds its port free.
const FIRST: u32 = 17_000;
const COUNT: u32 = 15_000;

/// A port that is reserved until this value is dropped, whether a server listens on it or not.
pub struct Port {
    pub number: u16,
    // The lock is held by this open file, so it is released when the process ends in any way.
    _reservation: Flock<File>,
}

/// Reserves a port on which nothing listens on 127.0.0.1.
pub fn reserve() -> Port {
    reserve_at(Ipv4Addr::LOCALHOST.into())
}

/// Reserves a port on which nothing listens on this address.
pub fn reserve_at(address: IpAddr) -> Port {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let directory = std::env::temp_dir().join(format!("nodepool-test-ports-{}", nix::unistd::getuid()));
    std::fs::create_dir_all(&directory).expect("the temporary directory is writable");
    // Test processes start at different offsets, so they rarely try the same ports.
    let start = std::process::id().wrapping_mul(211);
    for _ in 0..COUNT {
        let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let number = u16::try_from(FIRST + offset).expect("the range ends below 65536");
        let path = directory.join(number.to_string());
        let file = File::create(&path).unwrap_or_else(|error| panic!("cannot create {}: {error}", path.display()));
        let Ok(reservation) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { continue };
        if TcpListener::bind((address, number)).is_ok() {
            return Port { number, _reservation: reservation };
        }
    }
    panic!("no free port from {FIRST} to {} on {address}", FIRST + COUNT - 1);
}
