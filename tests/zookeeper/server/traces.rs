//! Comparison with Apache ZooKeeper: random requests go to both servers, and every reply and watch event must be the
//! same, including the transaction ids.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use testkit::embedded_zk::raw_client::{RawClient, RawReply, op};
use testkit::real::{self, zookeeper};
use zookeeper_server::jute::{Malformed, Reader, Writer};

/// Session 0 uses one-shot watches, session 1 persistent ones. In ZooKeeper 3.8 the two kinds replace each other if one
/// session has both on a path; 3.9 corrected that, and the embedded server does not copy the error. No step uses
/// `checkWatches`, because 3.8 finds the watches of all sessions, not only those of the caller.
const SESSIONS: usize = 2;
const STEPS: usize = 1_500;

enum Step {
    Send {
        session: usize,
        operation: i32,
        body: Vec<u8>,
    },
    /// Closes the session and opens another.
    Close {
        session: usize,
    },
    /// Drops the connection and resumes the session.
    Reconnect {
        session: usize,
    },
}

impl std::fmt::Display for Step {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Step::Send { session, operation, body } => {
                let body: String = body.iter().take(120).flat_map(|byte| byte.escape_ascii()).map(char::from).collect();
                write!(formatter, "session {session} sends {operation} {body}")
            }
            Step::Close { session } => write!(formatter, "session {session} closes"),
            Step::Reconnect { session } => write!(formatter, "session {session} reconnects"),
        }
    }
}

#[tokio::test]
async fn replies_and_events_match_apache_zookeeper() {
    if real::skipped() {
        return;
    }
    for seed in 1..=2 {
        let mut options = zookeeper::Options::default();
        options.settings.push("forceSync=no".into());
        let apache = zookeeper::Server::start(options).await;
        let directory = tempfile::tempdir().unwrap();
        let embedded = testkit::embedded_zk::start(directory.path()).await;
        let mut ours = TracedServer::open(embedded.address()).await;
        let mut theirs = TracedServer::open(apache.address().parse().unwrap()).await;
        let mut random = StdRng::seed_from_u64(seed);
        let mut recent = Vec::new();
        for number in 0..STEPS {
            let step = StepGenerator { random: &mut random, zxid: ours.zxid }.step();
            let line = format!("{number}: {step}");
            let (left, right) = (ours.apply(&step).await, theirs.apply(&step).await);
            recent.push(format!("{line}\n    {left}"));
            let tail = recent.len().saturating_sub(12);
            assert_eq!(left, right, "seed {seed}, ours left, after\n{}", recent[tail..].join("\n"));
        }
        embedded.stop().await;
    }
}

/// One of the two servers with the sessions on it.
struct TracedServer {
    address: SocketAddr,
    clients: Vec<RawClient>,
    /// Session names by id, numbered in the order of their creation.
    names: BTreeMap<i64, String>,
    zxid: i64,
}

impl TracedServer {
    async fn open(address: SocketAddr) -> Self {
        let mut side = TracedServer { address, clients: Vec::new(), names: BTreeMap::new(), zxid: 0 };
        for _ in 0..SESSIONS {
            let client = side.open_session().await;
            side.clients.push(client);
        }
        side
    }

    async fn open_session(&mut self) -> RawClient {
        let client = RawClient::open(self.address, 30_000).await;
        self.names.insert(client.session, format!("session{}", self.names.len()));
        client
    }

    /// Executes a step, and describes its reply and events.
    async fn apply(&mut self, step: &Step) -> String {
        let mut sorted = false;
        let answer = match step {
            Step::Send { session, operation, body } => {
                let answer = self.clients[*session].request(*operation, |writer| writer.raw(body)).await;
                self.zxid = answer.zxid.max(self.zxid);
                let shown = self
                    .describe_reply(*operation, body, &answer)
                    .unwrap_or_else(|error| format!("unreadable: {error}"));
                // The zxid in the header of the reply to `auth` is 0 in Apache ZooKeeper; no client uses it.
                format!("zxid {} code {} {shown}", answer.zxid, answer.code)
            }
            Step::Close { session } => {
                sorted = true; // Apache ZooKeeper deletes ephemerals in hash order
                let answer = self.clients[*session].request(op::CLOSE, |_| {}).await;
                self.clients[*session] = self.open_session().await;
                format!("zxid {} code {}", answer.zxid, answer.code)
            }
            Step::Reconnect { session } => {
                let (id, password) = (self.clients[*session].session, self.clients[*session].password.clone());
                let resumed = RawClient::resume(self.address, 30_000, id, &password, self.zxid).await;
                self.clients[*session] = resumed.expect("the session is alive");
                "resumed".into()
            }
        };
        let mut text = answer;
        for (index, client) in self.clients.iter_mut().enumerate() {
            let ping = client.ping().await;
            let mut events = std::mem::take(&mut client.events);
            if sorted {
                events.sort();
            }
            text += &format!("; session {index} at {} received {events:?}", ping.zxid);
        }
        text
    }

    fn describe_reply(&self, operation: i32, request: &[u8], answer: &RawReply) -> Result<String, Malformed> {
        let mut reader = Reader::new(&answer.body);
        if answer.code != 0 {
            return Ok(format!("{:?}", answer.body));
        }
        let text = match operation {
            op::MULTI | op::MULTI_READ => {
                let mut steps = Vec::new();
                loop {
                    let (operation, done, code) = (reader.int()?, reader.flag()?, reader.int()?);
                    if done {
                        break;
                    }
                    let body = if operation == op::CHECK {
                        String::new()
                    } else {
                        self.describe_body(operation, &mut reader)?
                    };
                    steps.push(format!("{operation} {code} {body}"));
                }
                format!("{steps:?}")
            }
            other => self.describe_body(other, &mut reader)?,
        };
        assert!(reader.is_empty(), "bytes left over in the reply to {operation} {request:?}");
        Ok(text)
    }

    fn describe_body(&self, operation: i32, reader: &mut Reader<'_>) -> Result<String, Malformed> {
        Ok(match operation {
            -1 => format!("error {}", reader.int()?),
            op::CREATE | op::SYNC => reader.text()?,
            op::CREATE_2 => format!("{} {}", reader.text()?, self.describe_stat(reader)?),
            op::EXISTS | op::SET_DATA | op::SET_ACL => self.describe_stat(reader)?,
            op::GET_DATA => format!("{:?} {}", reader.buffer()?, self.describe_stat(reader)?),
            op::GET_CHILDREN | op::GET_CHILDREN_2 => {
                let mut names = reader.list(Reader::text)?;
                names.sort();
                let stat = if operation == op::GET_CHILDREN_2 { self.describe_stat(reader)? } else { String::new() };
                format!("{names:?} {stat}")
            }
            op::GET_ACL => {
                let acl = reader.list(|reader| Ok((reader.int()?, reader.text()?, reader.text()?)))?;
                format!("{acl:?} {}", self.describe_stat(reader)?)
            }
            op::ADD_WATCH => reader.int()?.to_string(),
            _ => String::new(),
        })
    }

    /// Describes a stat without its times, which differ, and with the session's name.
    fn describe_stat(&self, reader: &mut Reader<'_>) -> Result<String, Malformed> {
        let (czxid, mzxid) = (reader.long()?, reader.long()?);
        let (ctime, mtime) = (reader.long()?, reader.long()?);
        assert!(ctime <= mtime);
        let versions = (reader.int()?, reader.int()?, reader.int()?);
        let owner = reader.long()?;
        let owner = self.names.get(&owner).cloned().unwrap_or_else(|| owner.to_string());
        let (length, children, pzxid) = (reader.int()?, reader.int()?, reader.long()?);
        Ok(format!("({czxid} {mzxid} {pzxid} {versions:?} {owner} {length} {children})"))
    }
}

/// Generates random steps.
struct StepGenerator<'a> {
    random: &'a mut StdRng,
    zxid: i64,
}

impl StepGenerator<'_> {
    fn step(&mut self) -> Step {
        let session = self.random.gen_range(0..SESSIONS);
        if self.random.gen_ratio(1, 40) {
            return if self.random.gen_bool(0.5) { Step::Close { session } } else { Step::Reconnect { session } };
        }
        let watch = session == 0 && self.random.gen_bool(0.5);
        let mut writer = Writer::new();
        let operation = *[
            op::CREATE,
            op::CREATE,
            op::CREATE_2,
            op::CREATE_2,
            op::DELETE,
            op::DELETE,
            op::EXISTS,
            op::GET_DATA,
            op::SET_DATA,
            op::SET_DATA,
            op::GET_ACL,
            op::SET_ACL,
            op::GET_CHILDREN,
            op::GET_CHILDREN_2,
            op::SYNC,
            op::MULTI,
            op::MULTI,
            op::MULTI,
            op::MULTI_READ,
            op::REMOVE_WATCHES,
            op::ADD_WATCH,
            op::SET_WATCHES,
            op::SET_WATCHES_2,
        ]
        .choose(self.random)
        .expect("the list is not empty");
        match operation {
            op::EXISTS | op::GET_DATA | op::GET_CHILDREN | op::GET_CHILDREN_2 => {
                let path = if watch { self.existing_path() } else { self.path() };
                writer.text(path).flag(watch);
            }
            op::GET_ACL => drop_ref(writer.text(self.path())),
            op::SYNC => drop_ref(writer.text(self.existing_path())),
            op::REMOVE_WATCHES => drop_ref(writer.text(self.existing_path()).int(3)),
            op::ADD_WATCH => {
                let path = self.existing_path();
                let session_ok = session == 1;
                if !session_ok {
                    return self.step();
                }
                writer.text(path).int(mode_of(path));
            }
            op::SET_WATCHES | op::SET_WATCHES_2 => self.set_watches(&mut writer, session, operation),
            op::MULTI => {
                for _ in 0..self.random.gen_range(0..5) {
                    let step = *[op::CREATE, op::CREATE_2, op::DELETE, op::SET_DATA, op::CHECK]
                        .choose(self.random)
                        .expect("the list is not empty");
                    writer.int(step).flag(false).int(-1);
                    self.write(&mut writer, step);
                }
                writer.int(-1).flag(true).int(-1);
            }
            op::MULTI_READ => {
                for _ in 0..self.random.gen_range(0..4) {
                    let step = if self.random.gen_bool(0.5) { op::GET_DATA } else { op::GET_CHILDREN };
                    writer.int(step).flag(false).int(-1).text(self.path()).flag(false);
                }
                writer.int(-1).flag(true).int(-1);
            }
            single => self.write(&mut writer, single),
        }
        Step::Send { session, operation, body: writer.finish() }
    }

    fn write(&mut self, writer: &mut Writer, operation: i32) {
        writer.text(self.path());
        match operation {
            op::CREATE | op::CREATE_2 => {
                writer.buffer(self.data());
                self.acl(writer);
                writer.int(self.random.gen_range(0..4));
            }
            op::SET_DATA => drop_ref(writer.buffer(self.data()).int(self.version())),
            op::SET_ACL => {
                self.acl(writer);
                writer.int(self.version());
            }
            _ => drop_ref(writer.int(self.version())),
        }
    }

    fn set_watches(&mut self, writer: &mut Writer, session: usize, operation: i32) {
        writer.long(self.zxid - self.random.gen_range(0..6));
        for kind in 0..if operation == op::SET_WATCHES { 3 } else { 5 } {
            let mut paths: Vec<&str> = (0..self.random.gen_range(0..3)).map(|_| self.existing_path()).collect();
            paths.retain(|path| match kind {
                0..=2 => session == 0,
                persistent => session == 1 && mode_of(path) == persistent - 3,
            });
            writer.count(paths.len());
            for path in paths {
                writer.text(path);
            }
        }
    }

    fn acl(&mut self, writer: &mut Writer) {
        let open = (31, "world", "anyone");
        let lists: [&[(i32, &str, &str)]; 7] = [
            &[open],
            &[open, (1, "digest", "user:hash")],
            &[open, open, (3, "ip", "127.0.0.1"), open],
            &[],
            &[(31, "world", "unknown")],
            &[open, (31, "nonsense", "x")],
            &[open, (31, "digest", "nocolon")],
        ];
        let list = if self.random.gen_bool(0.8) { lists[0] } else { *lists.choose(self.random).expect("not empty") };
        writer.count(list.len());
        for (permissions, scheme, id) in list {
            writer.int(*permissions).text(scheme).text(id);
        }
    }

    fn existing_path(&mut self) -> &'static str {
        ["/", "/a", "/b", "/a/x", "/a/y", "/a/x/z", "/b/n0000000000", "/zookeeper"]
            .choose(self.random)
            .expect("not empty")
    }

    fn path(&mut self) -> &'static str {
        let unusual = [
            "",
            "a",
            "/a/",
            "//",
            "/a//x",
            "/a/../b",
            "/.",
            "/a\u{1}",
            "/\u{1f600}",
            "/a\0b",
            "/\u{e000}",
            "/a/x/z/deep",
            "/b/n",
            "/b/",
            "/missing/none",
            "/\u{fff0}",
            "/a/\u{7f}",
            "/zookeeper/quota",
        ];
        if self.random.gen_bool(0.8) { self.existing_path() } else { unusual.choose(self.random).expect("not empty") }
    }

    fn version(&mut self) -> i32 {
        *[-1, -1, -1, 0, 0, 1, 2, 7, -2].choose(self.random).expect("the list is not empty")
    }

    fn data(&mut self) -> &'static [u8] {
        [&b""[..], b"x", b"some data", &[0xff; 300]].choose(self.random).expect("the list is not empty")
    }
}

/// The persistent watch mode that session 1 uses on a path, as the modes replace each other in ZooKeeper 3.8, too.
fn mode_of(path: &str) -> i32 {
    i32::from(path.len() % 4 < 2)
}

/// Ends a chain of writes.
fn drop_ref(_: &mut Writer) {}
