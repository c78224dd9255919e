//! Peer credentials of a TCP connection on this machine: the user whose process opened it.

use std::net::{IpAddr, SocketAddr};

use nix::unistd::Uid;

/// Both addresses of a connection; IPv4-mapped addresses are converted to IPv4.
#[derive(Clone, Copy, Debug)]
pub struct SocketPair {
    pub client: SocketAddr,
    pub local: SocketAddr,
}

impl SocketPair {
    pub fn new(client: SocketAddr, local: SocketAddr) -> Self {
        let plain = |socket: SocketAddr| SocketAddr::new(socket.ip().to_canonical(), socket.port());
        Self { client: plain(client), local: plain(local) }
    }
}

/// Looks up the user in the kernel's table of connections (proc_net(5)), which contains both ends of a local
/// connection; `None` without such a table.
pub fn user_of(client: SocketAddr, local: SocketAddr) -> Option<Uid> {
    let tables = match client.ip() {
        // An IPv6 socket may have an IPv4 connection.
        IpAddr::V4(_) => ["/proc/self/net/tcp", "/proc/self/net/tcp6"].as_slice(),
        IpAddr::V6(_) => ["/proc/self/net/tcp6"].as_slice(),
    };
    tables.iter().find_map(|path| user_in(&std::fs::read_to_string(path).ok()?, client, local))
}

fn user_in(table: &str, client: SocketAddr, local: SocketAddr) -> Option<Uid> {
    let pairs = [(hex_address(client), hex_address(local)), (hex_mapped_address(client), hex_mapped_address(local))];
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, remote) = (words.next()?, words.next()?);
        let is_connection = pairs.iter().any(|(client, ours)| local == client && remote == ours);
        // The user id follows state, queues, timer and retransmissions.
        is_connection.then(|| words.nth(4)?.parse().ok().map(Uid::from_raw)).flatten()
    })
}

fn hex_address(socket: SocketAddr) -> String {
    match socket.ip() {
        IpAddr::V4(ip) => format!("{}:{:04X}", hex_words(&ip.octets()), socket.port()),
        IpAddr::V6(ip) => format!("{}:{:04X}", hex_words(&ip.octets()), socket.port()),
    }
}

fn hex_mapped_address(socket: SocketAddr) -> String {
    match socket.ip() {
        IpAddr::V4(ip) => format!("{}:{:04X}", hex_words(&ip.to_ipv6_mapped().octets()), socket.port()),
        IpAddr::V6(_) => hex_address(socket),
    }
}

/// Address as the kernel prints it: 32-bit words in native byte order.
fn hex_words(octets: &[u8]) -> String {
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
            let (accepted, peer) = listener.accept().unwrap();
            let sockets = SocketPair::new(peer, accepted.local_addr().unwrap());
            assert_eq!(user_of(sockets.client, sockets.local), Some(nix::unistd::geteuid()), "{address}");
            // No client has port 1.
            assert_eq!(user_of("127.0.0.1:1".parse().unwrap(), sockets.local), None);
            drop(client);
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn user_is_read_from_the_connection_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            \x20  0: 0100007F:1F45 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1\n\
            \x20  1: 0100007F:C350 0100007F:1F45 01 00000000:00000000 02:00000A21 00000000  1001        0 2 2\n\
            \x20  2: nonsense\n";
        let (client, local) = ("127.0.0.1:50000".parse().unwrap(), "127.0.0.1:8005".parse().unwrap());
        assert_eq!(user_in(table, client, local), Some(Uid::from_raw(1001)));
        assert_eq!(user_in(table, local, client), None);
    }
}
