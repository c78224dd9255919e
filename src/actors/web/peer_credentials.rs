//! Who is at the other end of a connection on this machine: the user whose process opened it.

use std::net::{IpAddr, SocketAddr};

use nix::unistd::Uid;

/// Both ends of a connection; addresses of IPv4 in their own form.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    pub client: SocketAddr,
    pub ours: SocketAddr,
}

impl Ends {
    pub fn new(client: SocketAddr, ours: SocketAddr) -> Self {
        let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        Self { client: plain(client), ours: plain(ours) }
    }
}

/// By the kernel's own table of connections (proc_net(5)), in which both ends of a connection within one machine are; `None`
/// where there is no such table.
pub fn user_of(client: SocketAddr, ours: SocketAddr) -> Option<Uid> {
    let tables = match client.ip() {
        // A socket of IPv6 may speak IPv4.
        IpAddr::V4(_) => ["/proc/self/net/tcp", "/proc/self/net/tcp6"].as_slice(),
        IpAddr::V6(_) => ["/proc/self/net/tcp6"].as_slice(),
    };
    tables.iter().find_map(|path| user_in(&std::fs::read_to_string(path).ok()?, client, ours))
}

fn user_in(table: &str, client: SocketAddr, ours: SocketAddr) -> Option<Uid> {
    let ends = [(plain(client), plain(ours)), (mapped(client), mapped(ours))];
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, remote) = (words.next()?, words.next()?);
        let is_it = ends.iter().any(|(client, ours)| local == client && remote == ours);
        // State, queues, timer and retransmissions stand before it.
        is_it.then(|| words.nth(4)?.parse().ok().map(Uid::from_raw)).flatten()
    })
}

fn plain(end: SocketAddr) -> String {
    match end.ip() {
        IpAddr::V4(ip) => format!("{}:{:04X}", words(&ip.octets()), end.port()),
        IpAddr::V6(ip) => format!("{}:{:04X}", words(&ip.octets()), end.port()),
    }
}

fn mapped(end: SocketAddr) -> String {
    match end.ip() {
        IpAddr::V4(ip) => format!("{}:{:04X}", words(&ip.to_ipv6_mapped().octets()), end.port()),
        IpAddr::V6(_) => plain(end),
    }
}

/// As the kernel prints them: words of 32 bits in the order of bytes of this machine.
fn words(octets: &[u8]) -> String {
    octets
        .chunks_exact(4)
        .map(|word| format!("{:08X}", u32::from_ne_bytes([word[0], word[1], word[2], word[3]])))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_user_of_a_connection_is_found_in_both_families() {
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let port = listener.local_addr().unwrap().port();
            let to = if address == "[::1]:0" { format!("[::1]:{port}") } else { format!("127.0.0.1:{port}") };
            let client = TcpStream::connect(to).unwrap();
            let (taken, peer) = listener.accept().unwrap();
            let ends = Ends::new(peer, taken.local_addr().unwrap());
            assert_eq!(user_of(ends.client, ends.ours), Some(nix::unistd::geteuid()), "{address}");
            // Our own end is not the client's.
            assert_eq!(user_of("127.0.0.1:1".parse().unwrap(), ends.ours), None);
            drop(client);
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_line_of_the_table_is_understood() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            \x20  0: 0100007F:1F45 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1\n\
            \x20  1: 0100007F:C350 0100007F:1F45 01 00000000:00000000 02:00000A21 00000000  1001        0 2 2\n\
            \x20  2: nonsense\n";
        let (client, ours) = ("127.0.0.1:50000".parse().unwrap(), "127.0.0.1:8005".parse().unwrap());
        assert_eq!(user_in(table, client, ours), Some(Uid::from_raw(1001)));
        assert_eq!(user_in(table, ours, client), None);
    }
}
