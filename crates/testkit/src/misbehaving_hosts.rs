//! Misbehaving hosts: listeners that violate the SSH protocol, and addresses without a listener.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// An address on which nothing listens.
pub fn free_address(ip: &str) -> SocketAddr {
    TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap()
}

/// Behaviour of a listener towards a connection.
#[derive(Clone, Copy)]
pub enum ListenerBehavior {
    /// Accepts, sends nothing, and reports when the peer has closed the connection.
    Silent,
    /// Sends the SSH banner only.
    BannerOnly,
    /// Closes the connection at once.
    HangsUp,
    /// Sends lines that are not SSH until the peer closes the connection.
    Chatters,
    /// Sends a valid banner and then unstructured bytes in place of a packet.
    Garbage,
}

/// Listens on loopback until the test process ends. Sends a message to `closed` for each connection that the peer
/// closed.
pub fn listen(behavior: ListenerBehavior, closed: std::sync::mpsc::Sender<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let closed = closed.clone();
            std::thread::spawn(move || {
                serve(stream, behavior);
                let _ = closed.send(());
            });
        }
    });
    address
}

fn serve(mut stream: TcpStream, behavior: ListenerBehavior) {
    let bytes: &[u8] = match behavior {
        ListenerBehavior::HangsUp => return,
        ListenerBehavior::Silent => b"",
        ListenerBehavior::BannerOnly => b"SSH-2.0-OpenSSH_9.2\r\n",
        ListenerBehavior::Garbage => {
            b"SSH-2.0-OpenSSH_9.2\r\n\xff\xff\xff\xff\xff\xff\xff\xffgarbage and more garbage\0\0\0"
        }
        ListenerBehavior::Chatters => {
            while stream.write_all(b"220 welcome to the mail service\r\n").is_ok() {}
            return;
        }
    };
    let _ = stream.write_all(bytes);
    let mut buffer = [0; 4096];
    while matches!(stream.read(&mut buffer), Ok(read) if read > 0) {}
}
