//! The system log: its local socket, or that of another machine by UDP or TCP, in the format of Python's SysLogHandler.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, socket};
use tokio::time::Instant;

use crate::Level;

/// Facilities with their numbers.
const FACILITIES: [(&str, u8); 24] = [
    ("kern", 0),
    ("user", 1),
    ("mail", 2),
    ("daemon", 3),
    ("auth", 4),
    ("security", 4),
    ("syslog", 5),
    ("lpr", 6),
    ("news", 7),
    ("uucp", 8),
    ("cron", 9),
    ("authpriv", 10),
    ("ftp", 11),
    ("ntp", 12),
    ("console", 14),
    ("solaris-cron", 15),
    ("local0", 16),
    ("local1", 17),
    ("local2", 18),
    ("local3", 19),
    ("local4", 20),
    ("local5", 21),
    ("local6", 22),
    ("local7", 23),
];

/// Bounds how long a thread waits for a daemon or a network that accepts no line.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// Back-off after a server was unreachable or slow. Lines logged meanwhile are lost for this server.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Socket(PathBuf),
    Udp(String, u16),
    Tcp(String, u16),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Socket(path) => path.display().fmt(f),
            Address::Udp(host, port) => write!(f, "{host}:{port} (UDP)"),
            Address::Tcp(host, port) => write!(f, "{host}:{port} (TCP)"),
        }
    }
}

pub enum SyslogConnection {
    /// Each datagram is addressed, so a restarted daemon is found again.
    Local {
        datagrams: UnixDatagram,
        path: PathBuf,
        backoff: Backoff,
    },
    LocalStream {
        stream: Option<UnixStream>,
        path: PathBuf,
        backoff: Backoff,
    },
    Udp(UdpSocket, SocketAddr),
    Tcp {
        stream: Option<TcpStream>,
        address: SocketAddr,
        backoff: Backoff,
    },
}

/// End of the pause after a failure, so that many lines together do not wait long for an unreachable server.
#[derive(Default)]
pub struct Backoff(Option<Instant>);

impl Backoff {
    fn start(&mut self) {
        self.0 = Some(Instant::now() + RETRY_INTERVAL);
    }

    /// A failure that took no time may be retried at once.
    fn start_after(&mut self, error: &io::Error) {
        if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
            self.start();
        }
    }

    /// Fails during the back-off: a line that is not sent is lost.
    fn check(&self) -> io::Result<()> {
        match self.0 {
            Some(end) if Instant::now() < end => Err(io::Error::other("backing off after a failed write")),
            _ => Ok(()),
        }
    }
}

/// The number of a facility, which is given by name or by number.
pub fn facility(text: &str) -> Option<u8> {
    let known = FACILITIES.iter().find(|(name, number)| *name == text || number.to_string() == text);
    known.map(|(_, number)| *number)
}

impl Address {
    pub fn open(&self) -> io::Result<SyslogConnection> {
        let resolved = |host: &str, port: u16| {
            let found = (host, port).to_socket_addrs()?.next();
            found.ok_or_else(|| io::Error::other(format!("{host} has no address")))
        };
        Ok(match self {
            Address::Socket(path) => {
                let datagrams = UnixDatagram::unbound()?;
                match datagrams.connect(path) {
                    // The socket accepts streams only.
                    Err(error) if error.raw_os_error() == Some(nix::errno::Errno::EPROTOTYPE as i32) => {
                        SyslogConnection::LocalStream { stream: None, path: path.clone(), backoff: Backoff::default() }
                    }
                    // The daemon may start later.
                    _ => {
                        let datagrams = UnixDatagram::unbound()?;
                        datagrams.set_write_timeout(Some(SEND_TIMEOUT))?;
                        SyslogConnection::Local { datagrams, path: path.clone(), backoff: Backoff::default() }
                    }
                }
            }
            Address::Udp(host, port) => {
                let address = resolved(host, *port)?;
                let own: SocketAddr = match address {
                    SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                    SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
                };
                SyslogConnection::Udp(UdpSocket::bind(own)?, address)
            }
            Address::Tcp(host, port) => {
                let address = resolved(host, *port)?;
                SyslogConnection::Tcp { stream: Some(connect(address)?), address, backoff: Backoff::default() }
            }
        })
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, SEND_TIMEOUT)?;
    stream.set_write_timeout(Some(SEND_TIMEOUT))?;
    Ok(stream)
}

/// Sets the timeout before connecting: a daemon that accepts no connection would block the connect as well.
fn connect_local(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::from(socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?);
    stream.set_write_timeout(Some(SEND_TIMEOUT))?;
    nix::sys::socket::connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(stream)
}

impl SyslogConnection {
    pub fn send(&mut self, facility: u8, level: Level, line: &str) -> io::Result<()> {
        let message = format!("<{}>{}\0", u32::from(facility) * 8 + severity(level), line.trim_end_matches('\n'));
        let message = message.as_bytes();
        match self {
            SyslogConnection::Local { datagrams, path, backoff } => {
                backoff.check()?;
                datagrams.send_to(message, path).map(drop).inspect_err(|error| backoff.start_after(error))
            }
            SyslogConnection::Udp(socket, address) => socket.send_to(message, *address).map(drop),
            SyslogConnection::LocalStream { stream, path, backoff } => {
                send_through(stream, backoff, || connect_local(path), message)
            }
            SyslogConnection::Tcp { stream, address, backoff } => {
                send_through(stream, backoff, || connect(*address), message)
            }
        }
    }
}

fn send_through<S: Write>(
    open: &mut Option<S>,
    backoff: &mut Backoff,
    connect: impl FnOnce() -> io::Result<S>,
    message: &[u8],
) -> io::Result<()> {
    let stream = match open {
        Some(stream) => stream,
        None => {
            backoff.check()?;
            backoff.start();
            open.insert(connect()?)
        }
    };
    stream.write_all(message).inspect_err(|error| {
        *open = None;
        backoff.start_after(error);
    })
}

fn severity(level: Level) -> u32 {
    match level {
        level if level >= Level::CRITICAL => 2,
        level if level >= Level::ERROR => 3,
        level if level >= Level::WARNING => 4,
        level if level >= Level::INFO => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc;

    /// Sends a hundred long lines, within a few seconds. Returns which of them were sent.
    fn send_with_deadline(mut open: SyslogConnection) -> Vec<bool> {
        let (outcome, outcomes) = mpsc::channel();
        std::thread::spawn(move || {
            let line = "x".repeat(4096);
            outcome.send((0..100).map(|_| open.send(3, Level::INFO, &line).is_ok()).collect()).unwrap();
        });
        outcomes.recv_timeout(Duration::from_secs(5)).expect("no line waits long")
    }

    #[test]
    fn a_local_daemon_that_reads_nothing_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("datagrams");
        let _unread = UnixDatagram::bind(&path).unwrap();
        let sent = send_with_deadline(Address::Socket(path).open().unwrap());
        assert!(sent[0] && !sent[99], "{sent:?}");
        let path = folder.path().join("streams");
        let _unread = UnixListener::bind(&path).unwrap();
        let sent = send_with_deadline(Address::Socket(path).open().unwrap());
        assert!(sent[0] && !sent[99], "{sent:?}");
    }

    #[test]
    fn a_local_daemon_that_accepts_no_connection_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let unread = UnixListener::bind(&path).unwrap();
        nix::sys::socket::listen(&unread, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
        // Fills the backlog.
        let _first = UnixStream::connect(&path).unwrap();
        let sent = send_with_deadline(Address::Socket(path).open().unwrap());
        assert!(sent.iter().all(|sent| !sent), "{sent:?}");
    }

    #[test]
    fn lines_that_cannot_be_sent_are_errors() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut open = Address::Tcp("127.0.0.1".to_owned(), server.local_addr().unwrap().port()).open().unwrap();
        drop(server);
        let mut lost = (0..1000).skip_while(|_| open.send(3, Level::INFO, "lost\n").is_ok());
        assert!(lost.next().is_some());
        // Refused by the machine, then by the back-off.
        for _ in 0..2 {
            assert!(open.send(3, Level::INFO, "lost\n").is_err());
        }
    }

    #[test]
    fn a_local_socket_receives_facility_and_severity() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut open = Address::Socket(path.clone()).open().unwrap();
        assert!(open.send(3, Level::ERROR, "no server yet\n").is_err());
        let server = UnixDatagram::bind(&path).unwrap();
        open.send(3, Level::ERROR, "hello\n").unwrap();
        let mut buffer = [0; 64];
        let length = server.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"<27>hello\0");
    }

    #[test]
    fn remote_machines_receive_the_same_by_udp_or_tcp() {
        let mut buffer = [0; 64];
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut open = Address::Udp("127.0.0.1".to_owned(), server.local_addr().unwrap().port()).open().unwrap();
        open.send(16, Level::INFO, "by udp\n").unwrap();
        let length = server.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"<134>by udp\0");

        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut open = Address::Tcp("127.0.0.1".to_owned(), server.local_addr().unwrap().port()).open().unwrap();
        open.send(16, Level::DEBUG, "by tcp\n").unwrap();
        let length = server.accept().unwrap().0.read(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"<135>by tcp\0");
    }
}
