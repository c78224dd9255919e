//! A connection to a small cloud that goes wrong in one way, case by case.

use std::sync::Mutex;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::openstack::calls::{self, What};

/// An answer: its status, further lines of its head, its body.
struct Said(u16, &'static str, String);

/// In place of a status: there is no answer.
const SILENT: u16 = 0;

/// What a call such as `GET /compute/` is answered, where that is not the usual.
type Odd = dyn Fn(&str) -> Option<Said> + Send + Sync;

struct Cloud {
    base: String,
    asked: Mutex<Vec<String>>,
    /// What the catalogue has.
    services: Mutex<Vec<&'static str>>,
    /// The version of Nova, in its path.
    nova: Mutex<&'static str>,
    odd: Box<Odd>,
}

impl Cloud {
    async fn start(odd: impl Fn(&str) -> Option<Said> + Send + Sync + 'static) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let cloud = Arc::new(Self {
            base,
            asked: Mutex::default(),
            services: Mutex::new(vec!["compute", "network"]),
            nova: Mutex::new("v2.1"),
            odd: Box::new(odd),
        });
        let serving = cloud.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        cloud
    }

    fn connection(&self) -> Connection {
        let mut settings = crate::openstack::test_settings::cloud_with("");
        settings.identity.auth_url = format!("{}/identity/v3", self.base);
        let timings = Arc::new(Timings::new(&settings));
        Connection::new(Arc::new(settings), timings).unwrap()
    }

    /// How often calls of this beginning came.
    fn count(&self, call: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|asked| asked.starts_with(call)).count()
    }

    async fn serve(self: Arc<Self>, mut stream: TcpStream) {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            if stream.read_exact(&mut byte).await.is_err() {
                return;
            }
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let length =
            head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
        stream.read_exact(&mut vec![0; length.unwrap_or(0)]).await.unwrap();
        let call: Vec<&str> = head.split(' ').take(2).collect();
        let call = call.join(" ");
        self.asked.lock().unwrap().push(call.clone());
        let Said(status, lines, body) = (self.odd)(&call).unwrap_or_else(|| self.usual(&call));
        if status == SILENT {
            return std::future::pending().await;
        }
        let length = body.len();
        let text = format!("HTTP/1.1 {status} x\r\n{lines}connection: close\r\ncontent-length: {length}\r\n\r\n{body}");
        let _ = stream.write_all(text.as_bytes()).await;
    }

    fn usual(&self, call: &str) -> Said {
        let base = &self.base;
        let versions = |id: &str, path: &str| {
            let links = json!([{"rel": "self", "href": format!("{base}{path}")}]);
            json!({"versions": [{"id": id, "status": "CURRENT", "version": "2.93", "min_version": "2.1", "links": links}]})
        };
        match call {
            "POST /identity/v3/auth/tokens" => {
                let service = |kind: &str| {
                    let url = format!("{base}/{kind}/");
                    json!({"type": kind, "endpoints": [{"interface": "public", "url": url}]})
                };
                let catalogue: Vec<_> = self.services.lock().unwrap().iter().map(|kind| service(kind)).collect();
                let token = json!({"token": {"catalog": catalogue, "project": {"id": "p"}}});
                let secrets = ["x-subject-token: secret-1\r\n", "x-subject-token: secret-2\r\n"];
                Said(201, secrets[self.count(call) % 2], token.to_string())
            }
            "GET /compute/" => {
                Said(200, "", versions("v2.1", &format!("/compute/{}/", self.nova.lock().unwrap())).to_string())
            }
            "GET /image/" => Said(200, "", versions("v2.15", "/image/v2/").to_string()),
            "GET /network/" => Said(200, "", versions("v2.0", "/network/v2.0/").to_string()),
            _ => Said(200, "", "{}".to_owned()),
        }
    }
}

fn servers() -> Request {
    Request::new(Api::Compute, Method::GET, &["servers"])
}

fn text_of(failure: &Failure) -> String {
    failure.error.to_string()
}

#[tokio::test]
async fn a_version_document_whose_link_is_no_url_is_a_failure_of_this_cloud_alone() {
    let cloud = Cloud::start(|call| {
        let links = json!([{"rel": "self", "href": "cloud.example.com:8774/v2.1/"}]);
        let versions = json!({"versions": [{"id": "v2.1", "status": "CURRENT", "links": links}]});
        (call == "GET /compute/").then(|| Said(200, "", versions.to_string()))
    })
    .await;
    let connection = cloud.connection();
    let (discovered, sent) = (connection.discover().await, connection.send(&servers(), &Gate::open()).await);
    for failure in [discovered.unwrap_err(), sent.unwrap_err()] {
        let text = text_of(&failure);
        assert!(matches!(failure.error, CloudError::Failed { .. }) && !failure.may_have_worked, "{text}");
        assert!(text.contains("cloud c:") && text.contains("Compute service"), "{text}");
    }
    // What is known of other services is of use all the same.
    connection.send(&Request::new(Api::Network, Method::GET, &["ports"]), &Gate::open()).await.unwrap();
}

#[tokio::test]
async fn a_creation_that_is_answered_by_a_busy_gateway_may_have_worked() {
    let cloud = Cloud::start(|call| {
        (call == "POST /compute/v2.1/servers").then(|| Said(503, "retry-after: 7\r\n", String::new()))
    })
    .await;
    let What::Send(request, _) = calls::create_server(json!({}), None).what else { panic!("it is sent") };
    let failure = cloud.connection().send(&request, &Gate::open()).await.unwrap_err();
    assert!(failure.may_have_worked && matches!(failure.error, CloudError::Failed { .. }), "{failure:?}");
}

/// Waits on real time until so many calls of this beginning have come; from then on time goes by itself.
async fn wait_until_received(cloud: &Cloud, call: &str, times: usize) {
    while cloud.count(call) < times {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::pause();
}

#[tokio::test]
async fn who_gets_no_token_or_no_version_document_waits_for_a_minute_at_most() {
    for silent in ["POST /identity/v3/auth/tokens", "GET /compute/"] {
        let cloud = Cloud::start(move |call| (call == silent).then(|| Said(SILENT, "", String::new()))).await;
        let (connection, request, gate) = (cloud.connection(), servers(), Gate::open());
        let sending = tokio::time::timeout(Duration::from_secs(3600), connection.send(&request, &gate));
        let received = async {
            wait_until_received(&cloud, silent, 1).await;
            tokio::time::Instant::now()
        };
        let (ended, began) = tokio::join!(sending, received);
        let failure = ended.expect("it ends").unwrap_err();
        assert!(!failure.may_have_worked && text_of(&failure).starts_with("cloud c: "), "{failure:?}");
        assert!(began.elapsed() <= PREPARE_TIMEOUT + Duration::from_secs(1), "{silent}: {:?}", began.elapsed());
        tokio::time::resume();
    }
}

#[tokio::test]
async fn a_silent_keystone_is_left_in_time_for_the_next_call() {
    let cloud = Cloud::start(|call| call.starts_with("POST").then(|| Said(SILENT, "", String::new()))).await;
    let connection = cloud.connection();
    let asking = connection.keystone.token(&connection.client);
    let ended = async {
        wait_until_received(&cloud, "POST", 1).await;
        tokio::time::sleep(Duration::from_secs(3600)).await;
    };
    tokio::select! {
        answer = asking => assert_eq!(answer.unwrap_err().kind(), ErrorKind::ProtocolError),
        () = ended => panic!("the lock of the token is held for ever"),
    }
}

#[tokio::test]
async fn of_the_refusals_of_a_version_document_only_those_that_pass_are_waited_for() {
    for (status, is_passing) in [(408, true), (413, true), (429, true), (400, false), (405, false), (410, false)] {
        let cloud = Cloud::start(move |call| {
            (call == "GET /compute/").then(|| Said(status, "", r#"{"message": "not like this"}"#.to_owned()))
        })
        .await;
        let failure = cloud.connection().discover().await.unwrap_err();
        let is_throttled = matches!(failure.error, CloudError::Throttled { .. });
        assert_eq!(is_throttled, is_passing, "{status}: {failure:?}");
        let text = text_of(&failure);
        assert!(is_passing || text.contains("not like this") && text.contains(&status.to_string()), "{text}");
    }
}

#[tokio::test]
async fn each_discovery_sees_where_services_are_now() {
    let cloud = Cloud::start(|_| None).await;
    let connection = cloud.connection();
    for path in ["v2.1", "v2.9"] {
        *cloud.nova.lock().unwrap() = path;
        assert_eq!(connection.discover().await.unwrap().microversion, Some((2, 93)));
        connection.send(&servers(), &Gate::open()).await.unwrap();
        assert_eq!(cloud.count(&format!("GET /compute/{path}/servers")), 1);
    }
}

#[tokio::test]
async fn what_the_catalogue_lacked_is_there_when_it_has_been_added() {
    let cloud = Cloud::start(|_| None).await;
    let connection = cloud.connection();
    *cloud.services.lock().unwrap() = vec!["compute"];
    assert!(!connection.discover().await.unwrap().network);
    *cloud.services.lock().unwrap() = vec!["compute", "network", "volume"];
    let services = connection.discover().await.unwrap();
    assert!(services.network && services.block_storage, "{services:?}");

    let images = Request::new(Api::Image, Method::GET, &["images"]);
    let failure = connection.send(&images, &Gate::open()).await.unwrap_err();
    assert!(matches!(failure.error, CloudError::Denied(_)), "{failure:?}");
    cloud.services.lock().unwrap().push("image");
    connection.send(&images, &Gate::open()).await.unwrap();

    // Nothing is missing any more, so the token is kept.
    let tokens = cloud.count("POST");
    connection.discover().await.unwrap();
    connection.discover().await.unwrap();
    assert_eq!(cloud.count("POST"), tokens);
}

#[tokio::test]
async fn a_token_serves_until_there_is_another_one() {
    let is_down = Arc::new(Mutex::new(false));
    let down = is_down.clone();
    let keystone =
        move |call: &str| (call.starts_with("POST") && *down.lock().unwrap()).then(|| Said(500, "", String::new()));
    let cloud = Cloud::start(keystone).await;
    let connection = cloud.connection();
    *cloud.services.lock().unwrap() = vec!["compute"];
    connection.discover().await.unwrap();
    *is_down.lock().unwrap() = true;
    let tokens = cloud.count("POST");
    assert!(!connection.discover().await.unwrap().network);
    assert_eq!(cloud.count("POST"), tokens + 1, "it was asked for what had been missing");
    connection.send(&servers(), &Gate::open()).await.unwrap();
}

#[tokio::test]
async fn a_service_beside_nova_that_is_out_of_order_is_as_it_was() {
    let is_down = Arc::new(Mutex::new(true));
    let down = is_down.clone();
    let neutron =
        move |call: &str| (call == "GET /network/" && *down.lock().unwrap()).then(|| Said(502, "", String::new()));
    let cloud = Cloud::start(neutron).await;
    let connection = cloud.connection();
    *cloud.services.lock().unwrap() = vec!["compute", "network", "volume"];
    connection.discover().await.expect_err("nobody knows yet");
    *is_down.lock().unwrap() = false;
    let services = connection.discover().await.unwrap();
    *is_down.lock().unwrap() = true;
    assert_eq!(connection.discover().await.unwrap(), services);
    assert!(services.network);
}

#[tokio::test]
async fn a_service_that_speaks_other_versions_than_it_did_is_asked_which() {
    let cloud = Cloud::start(|call| (call == "GET /compute/v2.1/servers").then(|| Said(406, "", String::new()))).await;
    let connection = cloud.connection();
    connection.send(&servers(), &Gate::open()).await.unwrap_err();
    *cloud.nova.lock().unwrap() = "v2.9";
    connection.send(&servers(), &Gate::open()).await.unwrap();
}

#[tokio::test]
async fn a_token_that_a_version_document_does_not_take_is_replaced() {
    let refusals = Arc::new(Mutex::new(1));
    let left = refusals.clone();
    let cloud = Cloud::start(move |call| {
        let mut left = left.lock().unwrap();
        let is_refused = call == "GET /compute/" && *left > 0;
        *left -= i32::from(is_refused);
        is_refused.then(|| Said(401, "", String::new()))
    })
    .await;
    let connection = cloud.connection();
    connection.discover().await.unwrap();
    *refusals.lock().unwrap() = i32::MAX;
    let failure = connection.discover().await.unwrap_err();
    assert!(matches!(failure.error, CloudError::Denied(_)), "{failure:?}");
}

/// Lets this time pass.
async fn later(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_keystone_that_refuses_us_is_asked_again_after_a_rest() {
    for status in [401, 403] {
        let is_wrong = Arc::new(Mutex::new(true));
        let wrong = is_wrong.clone();
        let cloud = Cloud::start(move |call| {
            let is_refused = call.starts_with("POST") && *wrong.lock().unwrap();
            is_refused.then(|| Said(status, "", r#"{"error": {"message": "The password is wrong."}}"#.to_owned()))
        })
        .await;
        let connection = cloud.connection();
        // One may be a mistake.
        connection.send(&servers(), &Gate::open()).await.unwrap_err();
        later(1).await;
        let mut tries = 1;
        for rest in [30, 60, 60] {
            tries += 1;
            for _ in 0..3 {
                let failure = connection.send(&servers(), &Gate::open()).await.unwrap_err();
                assert!(matches!(failure.error, CloudError::Denied(_)), "{failure:?}");
                assert!(text_of(&failure).contains("The password is wrong."), "{failure:?}");
                connection.discover().await.unwrap_err();
                assert_eq!(cloud.count("POST"), tries);
            }
            later(rest - 5).await;
            connection.send(&servers(), &Gate::open()).await.unwrap_err();
            assert_eq!(cloud.count("POST"), tries);
            later(5).await;
        }
        *is_wrong.lock().unwrap() = false;
        connection.send(&servers(), &Gate::open()).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_prepared_goes_out_without_another_call_before_it() {
    let cloud = Cloud::start(|_| None).await;
    let connection = cloud.connection();
    connection.prepare(&servers()).await.unwrap();
    assert_eq!(cloud.count("GET /compute/v2.1/"), 0);
    let before = cloud.count("");
    connection.send(&servers(), &Gate::open()).await.unwrap();
    assert_eq!((cloud.count(""), cloud.count("GET /compute/v2.1/servers")), (before + 1, 1));
}

#[tokio::test]
async fn a_change_that_goes_out_once_more_passes_the_gate_with_its_new_token() {
    let cloud = Cloud::start({
        let first = Mutex::new(true);
        move |call| {
            let is_refused = call.starts_with("DELETE") && std::mem::take(&mut *first.lock().unwrap());
            is_refused.then(|| Said(401, "", String::new()))
        }
    })
    .await;
    let connection = cloud.connection();
    let counts = Arc::new(Mutex::new(Vec::new()));
    let (seen, asked) = (counts.clone(), cloud.clone());
    let gate = Gate::new(move || {
        seen.lock().unwrap().push((asked.count("POST"), asked.count("DELETE")));
        futures::future::ready(()).boxed()
    });
    let deletion = Request::new(Api::Compute, Method::DELETE, &["servers", "s"]);
    connection.prepare(&deletion).await.unwrap();
    connection.send(&deletion, &gate).await.unwrap();
    assert_eq!(*counts.lock().unwrap(), [(2, 1)], "there is another token, and it has been refused once");
    assert_eq!(cloud.count("DELETE"), 2);
}
