//! Raw client of ZooKeeper's protocol: sends frames that a proper client would not send, and returns every byte of the
//! replies.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zookeeper_server::jute::{Reader, Writer};

const DEADLINE: Duration = Duration::from_secs(20);

/// Operation numbers.
pub mod op {
    pub const CREATE: i32 = 1;
    pub const DELETE: i32 = 2;
    pub const EXISTS: i32 = 3;
    pub const GET_DATA: i32 = 4;
    pub const SET_DATA: i32 = 5;
    pub const GET_ACL: i32 = 6;
    pub const SET_ACL: i32 = 7;
    pub const GET_CHILDREN: i32 = 8;
    pub const SYNC: i32 = 9;
    pub const PING: i32 = 11;
    pub const GET_CHILDREN_2: i32 = 12;
    pub const CHECK: i32 = 13;
    pub const MULTI: i32 = 14;
    pub const CREATE_2: i32 = 15;
    pub const CHECK_WATCHES: i32 = 17;
    pub const REMOVE_WATCHES: i32 = 18;
    pub const MULTI_READ: i32 = 22;
    pub const CLOSE: i32 = -11;
    pub const AUTH: i32 = 100;
    pub const SET_WATCHES: i32 = 101;
    pub const SET_WATCHES_2: i32 = 105;
    pub const ADD_WATCH: i32 = 106;
    pub const WHO_AM_I: i32 = 107;
}

pub struct RawClient {
    pub stream: TcpStream,
    pub session: i64,
    pub password: Vec<u8>,
    pub timeout_ms: i32,
    /// Kind and path of each event, in their order.
    pub events: Vec<(i32, String)>,
    next_xid: i32,
}

#[derive(Debug)]
pub struct RawReply {
    pub xid: i32,
    pub zxid: i64,
    pub code: i32,
    pub body: Vec<u8>,
}

impl RawClient {
    /// Opens a new session.
    pub async fn open(address: SocketAddr, timeout_ms: i32) -> RawClient {
        Self::resume(address, timeout_ms, 0, &[0; 16], 0).await.expect("the server grants a new session")
    }

    /// Resumes a session; `None` if it has expired.
    pub async fn resume(
        address: SocketAddr,
        timeout_ms: i32,
        session: i64,
        password: &[u8],
        last_zxid: i64,
    ) -> Option<RawClient> {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut connect_request = Writer::frame();
        connect_request.int(0).long(last_zxid).int(timeout_ms).long(session).buffer(password).flag(false);
        stream.write_all(&connect_request.finish_frame()).await.unwrap();
        let frame = frame(&mut stream).await.expect("the server replies to the connect request");
        let mut reader = Reader::new(&frame);
        assert_eq!(reader.int(), Ok(0));
        let (timeout_ms, session, password) =
            (reader.int().unwrap(), reader.long().unwrap(), reader.buffer().unwrap().to_vec());
        (session != 0).then_some(RawClient { stream, session, password, timeout_ms, events: Vec::new(), next_xid: 1 })
    }

    pub async fn send(&mut self, operation: i32, body: impl FnOnce(&mut Writer)) -> i32 {
        let xid = match operation {
            op::PING => -2,
            op::AUTH => -4,
            op::SET_WATCHES | op::SET_WATCHES_2 => -8,
            _ => self.next_xid,
        };
        self.next_xid += 1;
        let mut writer = Writer::frame();
        writer.int(xid).int(operation);
        body(&mut writer);
        self.stream.write_all(&writer.finish_frame()).await.unwrap();
        xid
    }

    /// The next reply; events before it are stored. `None` if the server closed the connection.
    pub async fn read_reply(&mut self) -> Option<RawReply> {
        loop {
            let frame = frame(&mut self.stream).await?;
            let mut reader = Reader::new(&frame);
            let (xid, zxid, code) = (reader.int().unwrap(), reader.long().unwrap(), reader.int().unwrap());
            if xid != -1 {
                return Some(RawReply { xid, zxid, code, body: frame[16..].to_vec() });
            }
            let (kind, state, path) = (reader.int().unwrap(), reader.int().unwrap(), reader.text().unwrap());
            assert_eq!((zxid, code, state), (-1, 0, 3));
            self.events.push((kind, path));
        }
    }

    pub async fn request(&mut self, operation: i32, body: impl FnOnce(&mut Writer)) -> RawReply {
        let xid = self.send(operation, body).await;
        let reply = self.read_reply().await.expect("the server replies before it closes the connection");
        assert_eq!(reply.xid, xid, "replies arrive in the order of the requests");
        reply
    }

    pub async fn create(&mut self, path: &str, flags: i32) -> RawReply {
        self.request(op::CREATE, |writer| write_create(writer, path, b"", flags)).await
    }

    /// Error code of `exists` with a watch.
    pub async fn exists_and_watch(&mut self, path: &str) -> i32 {
        self.request(op::EXISTS, |writer| {
            writer.text(path).flag(true);
        })
        .await
        .code
    }

    pub async fn ping(&mut self) -> RawReply {
        self.request(op::PING, |_| {}).await
    }

    /// Waits until the server closes the connection, and ignores replies before that.
    pub async fn is_closed(&mut self) -> bool {
        while self.read_reply().await.is_some() {}
        true
    }
}

/// The next frame, or `None` at the end of the connection.
pub async fn frame(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let read = async {
        let mut length = [0; 4];
        stream.read_exact(&mut length).await.ok()?;
        let mut body = vec![0; usize::try_from(i32::from_be_bytes(length)).expect("a length is not negative")];
        stream.read_exact(&mut body).await.ok()?;
        Some(body)
    };
    tokio::time::timeout(DEADLINE, read).await.expect("the server neither replies nor closes the connection")
}

pub fn write_create(writer: &mut Writer, path: &str, data: &[u8], flags: i32) {
    writer.text(path).buffer(data).int(1).int(31).text("world").text("anyone").int(flags);
}
