//! Output for operators of a cloud: `info`, `alien-list`, `alien-image-list`, `delete --now`, the launcher's log, and
//! its statsd metrics.
//!
//! The tests run the real programs against the embedded coordinator and the simulated OpenStack.

use std::process::Output;
use std::sync::Arc;

use nodepool_zk::Connection;
use nodepool_zk::client::RealConnection;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use testkit::daemon_process::{Coordinator, Daemon, PROCESS_TIMEOUT, WorkDir, last_line, text};
use testkit::openstack_harness::client::OpenStackClient;
use testkit::openstack_harness::{TestCloud, harness};
use testkit::real::ports;
use testkit::{programs, wait};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UdpSocket;
use tokio::time::timeout;
use zookeeper_server::types::CreateMode;

/// A simulated cloud, an embedded coordinator, and a directory with a configuration that names both.
struct CloudCommandHarness {
    work_dir: WorkDir,
    coordinator: Coordinator,
    cloud: TestCloud,
    client: OpenStackClient,
    zk: Arc<RealConnection>,
}

impl CloudCommandHarness {
    async fn new() -> CloudCommandHarness {
        let work_dir = WorkDir::new("");
        let coordinator = Coordinator::start(&work_dir.path("store")).await;
        let cloud = TestCloud::simulated(&[]).await;
        let (client, zk) = (cloud.client().await, coordinator.session().await);
        CloudCommandHarness { work_dir, coordinator, cloud, client, zk }
    }

    /// Writes a configuration with these providers and their labels.
    fn configure(&self, providers: &[Value], labels: &Value) {
        let mut file: Value = serde_json::from_str(&harness::configuration(providers)).unwrap();
        file["zookeeper-servers"] = json!([{"host": "127.0.0.1", "port": self.coordinator.port}]);
        for label in file["labels"].as_array_mut().unwrap() {
            let more = labels[label["name"].as_str().unwrap()].as_object().cloned().unwrap_or_default();
            label.as_object_mut().unwrap().extend(more);
        }
        file.as_object_mut().unwrap().shift_remove("diskimages");
        let lines: Vec<String> =
            file.as_object().unwrap().iter().map(|(key, value)| format!("{key}: {value}\n")).collect();
        self.work_dir.configure(&lines.concat());
    }

    fn command(&self, executable: &str, arguments: &[&str]) -> std::process::Command {
        let mut command = self.work_dir.command(executable, &[&["-c", "nodepool.yaml"], arguments].concat());
        command.env("OS_CLIENT_CONFIG_FILE", &self.cloud.clouds_yaml);
        command
    }

    /// Runs `nodepool` until it exits, without blocking the coordinator in this process.
    async fn run(&self, line: &str) -> Output {
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = tokio::process::Command::from(self.command(programs::nodepool(), &words));
        timeout(harness::CLOUD_TIMEOUT, command.output()).await.unwrap().unwrap()
    }

    async fn json(&self, line: &str) -> Value {
        let output = self.run(&format!("{line} -o json")).await;
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }

    fn launcher(&self, arguments: &[&str]) -> Daemon {
        self.work_dir.start_command(self.command(programs::launcher(), &[&["-f"], arguments].concat()))
    }

    async fn put_node(&self, id: &str, record: Value) {
        for path in ["/nodepool", "/nodepool/nodes"] {
            // The path may exist already.
            let _ = self.zk.create(path, Vec::new().into(), CreateMode::Persistent).await;
        }
        let path = format!("/nodepool/nodes/{id}");
        self.zk.create(&path, record.to_string().into(), CreateMode::Persistent).await.unwrap();
    }

    async fn create(&self, service: &str, list: &str, kind: &str, body: Value) -> String {
        let (status, answer) = self.client.call(Method::POST, service, list, Some(json!({kind: body}))).await;
        assert!(status.is_success(), "{answer}");
        answer[kind]["id"].as_str().unwrap().to_owned()
    }

    /// Creates a server with the metadata of a provider and a node, and returns its id.
    async fn server(&self, provider: &str, node: &str) -> String {
        let body = json!({
            "name": node, "metadata": {"nodepool_provider_name": provider, "nodepool_node_id": node},
            "networks": [{"uuid": self.client.id_of("network", "networks", &self.cloud.network).await}],
            "imageRef": self.client.id_of("image", "images", &self.cloud.image).await,
            "flavorRef": self.client.id_of("compute", "flavors", &self.cloud.flavor).await,
        });
        self.create("compute", "/servers", "server", body).await
    }

    /// Creates a floating IP that is not attached, and returns its id.
    async fn floating_ip(&self) -> String {
        let network = self.client.id_of("network", "networks", "outside").await;
        self.create("network", "/floatingips", "floatingip", json!({"floating_network_id": network})).await
    }

    /// Creates a port that outlives its server, and returns the port's id.
    async fn port(&self) -> String {
        self.cloud.simulation().knobs(json!({"port_stays_every": 1})).await;
        let server = self.server("foreign", "0000000097").await;
        self.client.delete_server(&server).await;
        let is_deleted = async || !self.exists("compute", &format!("/servers/{server}")).await;
        wait::until("the server to be deleted", PROCESS_TIMEOUT, is_deleted).await;
        self.cloud.simulation().knobs(json!({"port_stays_every": 0})).await;
        let listed = self.client.get("network", &format!("/ports?device_id={server}")).await;
        listed["ports"][0]["id"].as_str().expect("the port outlives its server").to_owned()
    }

    async fn exists(&self, service: &str, path: &str) -> bool {
        self.client.call(Method::GET, service, path, None).await.0 != StatusCode::NOT_FOUND
    }

    /// Writes a wrong password into clouds.yaml, so that the cloud rejects every login.
    fn invalidate_password(&self) {
        let clouds: Value = serde_yaml::from_str(&std::fs::read_to_string(&self.cloud.clouds_yaml).unwrap()).unwrap();
        let mut auth = clouds["clouds"][&self.cloud.name]["auth"].clone();
        auth["password"] = json!("another password");
        self.cloud.set("auth", auth);
    }
}

/// A row of a table.
fn row(cells: &[&str]) -> String {
    cells.join("|")
}

/// The rows of a table without its frame, with trimmed cells.
fn rows(out: &str) -> Vec<String> {
    let lines = out.lines().filter_map(|line| line.strip_prefix('|')?.strip_suffix('|'));
    lines.map(|line| line.split('|').map(str::trim).collect::<Vec<_>>().join("|")).collect()
}

fn assert_row(out: &str, cells: &[&str]) {
    assert!(rows(out).contains(&row(cells)), "{cells:?} is not in\n{out}");
}

#[tokio::test]
async fn info_and_the_launcher_log_name_unavailable_labels_and_reasons() {
    let harness = CloudCommandHarness::new().await;
    let mut provider = harness.cloud.provider("p");
    let image = json!({"name": "lost", "image-name": "no-such-image", "username": "zuul"});
    provider["cloud-images"].as_array_mut().unwrap().push(image);
    let label =
        |name: &str, image: &str, flavor: &str| json!({"name": name, "cloud-image": image, "flavor-name": flavor});
    let labels = [label("a", "image", "tiny"), label("b", "image", "gigantic"), label("c", "lost", "tiny")];
    provider["pools"][0]["labels"] = json!(labels);
    let mut second = provider["pools"][0].clone();
    (second["name"], second["networks"]) = (json!("second"), json!(["nowhere"]));
    second["labels"] = json!([label("d", "image", "tiny")]);
    provider["pools"].as_array_mut().unwrap().push(second);
    harness.configure(&[provider], &Value::Null);
    let resources = json!({"instances": 1, "cores": 2, "ram": 512});
    harness.put_node("0000000001", json!({"state": "in-use", "provider": "p", "resources": resources})).await;
    harness.server("other", "0000000001").await;

    let reasons = [
        ("main", "b", "Unable to find flavor named gigantic"),
        ("main", "c", "the cloud has no active image no-such-image; the lookup is repeated at the next refresh"),
        ("second", "d", "Unable to find network nowhere"),
    ];
    let info = harness.run("info p").await;
    let out = text(&info.stdout);
    assert_eq!((info.status.code(), text(&info.stderr)), (Some(0), String::new()));
    assert_row(&out, &["Resource", "Limit", "Used By Nodes", "Used By Others", "Free"]);
    assert_row(&out, &["cores", "400", "2", "1", "397"]);
    assert_row(&out, &["instances", "100", "1", "1", "98"]);
    for (pool, label, why) in reasons {
        assert_row(&out, &[pool, label, why]);
    }
    assert!(!rows(&out).iter().any(|row| row.starts_with("main|a|")), "{out}");
    let document = harness.json("info p").await;
    assert_eq!(
        document["cloud"]["resources"]["cores"],
        json!({"limit": 400.0, "nodes": 2.0, "others": 1.0, "free": 397.0})
    );
    assert_eq!(document["cloud"]["unavailable_labels"].as_array().unwrap().len(), 3);

    let launcher = harness.launcher(&[]);
    for (pool, label, why) in reasons {
        let is_logged = |line: &str| {
            ["WARNING", "label is unavailable", "provider=p", &format!("pool={pool}"), &format!("label={label}"), why]
                .iter()
                .all(|part| line.contains(part))
        };
        wait::until(&format!("{label} in the log"), PROCESS_TIMEOUT, async || launcher.log().lines().any(is_logged))
            .await;
    }
}

#[tokio::test]
async fn info_shows_the_data_of_zookeeper_before_the_cloud_responds() {
    let harness = CloudCommandHarness::new().await;
    harness.configure(&[harness.cloud.provider("p")], &Value::Null);
    harness.put_node("0000000001", json!({"state": "ready", "provider": "p", "external_id": "s-1"})).await;
    harness.cloud.simulation().knobs(json!({"faults": ["hang"]})).await;
    let mut command = tokio::process::Command::from(harness.command(programs::nodepool(), &["info", "p"]));
    let mut child = command.stdout(std::process::Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let shown = async { while !lines.next_line().await.unwrap().expect("the table of nodes").contains("| s-1") {} };
    timeout(harness::CLOUD_TIMEOUT, shown).await.unwrap();
    assert_eq!(child.try_wait().unwrap(), None, "the command waits for the cloud");
}

#[tokio::test]
async fn a_wrong_password_is_reported_by_info_log_and_delete_now() {
    let harness = CloudCommandHarness::new().await;
    harness.configure(&[harness.cloud.provider("p")], &Value::Null);
    let server = harness.server("p", "0000000001").await;
    harness.put_node("0000000001", json!({"state": "ready", "provider": "p", "external_id": server})).await;
    harness.invalidate_password();
    let rejected = "cloud simulated: Failed to authenticate";
    let info = harness.run("info p").await;
    assert_eq!(info.status.code(), Some(0));
    let note = last_line(&info);
    assert!(note.starts_with("cannot query the cloud of provider p: ") && note.contains(rejected), "{note}");
    let document = harness.json("info p").await;
    assert!(document["cloud"]["error"].as_str().is_some_and(|error| error.contains(rejected)), "{document}");
    let deletion = harness.run("delete --now 0000000001").await;
    assert_eq!(deletion.status.code(), Some(1));
    let note = last_line(&deletion);
    assert!(
        note.contains(&format!("cannot delete instance {server} of provider p")) && note.contains(rejected),
        "{note}"
    );
    let (locks, _) = harness.zk.children("/nodepool/nodes/0000000001/lock").await.unwrap();
    assert_eq!(locks, Vec::<String>::new(), "the lock is released");
    let (record, _) = harness.zk.get("/nodepool/nodes/0000000001").await.unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    assert_eq!(record["state"], "deleting", "a node whose server may be in deletion is not assigned");
    let aliens = harness.run("alien-list").await;
    assert!(last_line(&aliens).starts_with("WARNING: cannot list the instances of p: "), "{aliens:?}");

    let launcher = harness.launcher(&[]);
    let is_logged =
        |line: &str| line.contains("nodepool.StateMachineProvider.p: refresh failed") && line.contains(rejected);
    wait::until("the rejected login in the log", PROCESS_TIMEOUT, async || launcher.log().lines().any(is_logged)).await;
}

#[tokio::test]
async fn the_console_of_a_server_without_host_keys_is_logged_by_line() {
    let (harness, port) = (CloudCommandHarness::new().await, ports::reserve());
    let mut provider = harness.cloud.provider("p");
    (provider["boot-timeout"], provider["launch-retries"]) = (json!(1), json!(1));
    provider["cloud-images"][0]["connection-port"] = json!(port.number);
    let pool = &mut provider["pools"][0];
    (pool["host-key-checking"], pool["labels"][0]["console-log"]) = (json!(true), json!(true));
    harness.configure(&[provider], &json!({"a": {"min-ready": 1}}));
    let launcher = harness.launcher(&[]);
    let expected = ["Console log from external id ", "FAKE CONSOLE OUTPUT", "ANOTHER", "LAST LINE"];
    wait::until("the console in the log", PROCESS_TIMEOUT, async || {
        let log = launcher.log();
        let mut lines = log.lines().filter(|line| line.contains("nodepool.StateMachineNodeLauncher.p:"));
        expected.iter().all(|text| lines.any(|line| line.contains(text)))
    })
    .await;
}

#[tokio::test]
async fn delete_now_deletes_the_instance_with_its_node() {
    let harness = CloudCommandHarness::new().await;
    harness.configure(&[harness.cloud.provider("p")], &Value::Null);
    let server = harness.server("p", "0000000001").await;
    harness.put_node("0000000001", json!({"state": "in-use", "provider": "p", "external_id": server})).await;
    let output = harness.run("delete --now 0000000001").await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        !harness.exists("compute", &format!("/servers/{server}")).await,
        "the command waits for the end of the deletion"
    );
    assert_eq!(harness.zk.exists("/nodepool/nodes/0000000001").await.unwrap(), None);
}

#[tokio::test]
async fn alien_list_shows_what_a_launcher_would_delete() {
    let harness = CloudCommandHarness::new().await;
    let mut provider = harness.cloud.provider("p");
    harness.configure(&[provider.clone(), harness.cloud.provider("q")], &Value::Null);
    let leaked = harness.server("p", "0000000099").await;
    let duplicate = harness.server("p", "0000000001").await;
    let own = harness.server("p", "0000000001").await;
    harness.put_node("0000000001", json!({"state": "in-use", "provider": "p", "external_id": own})).await;
    let foreign = harness.server("foreign", "0000000098").await;
    let (address, port) = (harness.floating_ip().await, harness.port().await);
    let booted = async || harness.client.server(&own).await["status"] == "ACTIVE";
    wait::until("the server to run", PROCESS_TIMEOUT, booted).await;

    let header = row(&["Provider", "Server ID", "Node ID", "Reason"]);
    let mut expected = vec![
        header,
        row(&["p", &leaked, "0000000099", "its node record does not exist"]),
        row(&["p", &duplicate, "0000000001", "its node has another instance"]),
    ];
    let mut listed = rows(&text(&harness.run("alien-list").await.stdout));
    listed[1..].sort_by_key(|row| row.contains("another"));
    assert_eq!(listed, expected, "unused resources that this provider does not clean are not listed");

    (provider["clean-floating-ips"], provider["port-cleanup-interval"]) = (json!(true), json!(600));
    harness.configure(&[provider, harness.cloud.provider("q")], &Value::Null);
    expected.extend([
        row(&["Provider", "Kind", "ID", "Reason"]),
        row(&["p", "floatingips", &address, "not attached"]),
        row(&["p", "ports", &port, "down and without a server"]),
    ]);
    let mut listed = rows(&text(&harness.run("alien-list").await.stdout));
    listed[1..3].sort_by_key(|row| row.contains("another"));
    assert_eq!(listed, expected);
    let found = harness.json("alien-list p").await;
    let of = |kind: &str| found.as_array().unwrap().iter().find(|entry| entry["kind"] == kind).cloned();
    assert_eq!(of("ports").unwrap()["id"], json!(port));
    assert_eq!(harness.json("alien-list q").await, json!([]));

    for server in [leaked, duplicate, own, foreign] {
        assert!(harness.exists("compute", &format!("/servers/{server}")).await);
    }
    assert!(harness.exists("network", &format!("/floatingips/{address}")).await);
    assert!(harness.exists("network", &format!("/ports/{port}")).await);
}

#[tokio::test]
async fn launches_calls_and_leaks_are_counted_at_the_statsd_server() {
    let harness = CloudCommandHarness::new().await;
    let mut provider = harness.cloud.provider("p");
    (provider["clean-floating-ips"], provider["port-cleanup-interval"]) = (json!(true), json!(1));
    provider["launch-retries"] = json!(1);
    let mut broken = provider["pools"][0]["labels"][0].clone();
    (broken["name"], broken["flavor-name"]) = (json!("b"), json!("broken"));
    provider["pools"][0]["labels"].as_array_mut().unwrap().push(broken);
    harness.configure(&[provider], &json!({"a": {"min-ready": 1}, "b": {"min-ready": 1}}));
    // ZooKeeper must have issued the node id of a leaked server.
    harness.put_node("0000000000", json!({"state": "used", "provider": "p"})).await;
    harness.zk.delete("/nodepool/nodes/0000000000", -1).await.unwrap();
    harness.server("p", "0000000000").await;
    harness.floating_ip().await;
    harness.port().await;
    let statsd = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut command = harness.command(programs::launcher(), &["-f", "--cleanup-interval", "0.3"]);
    command.env("STATSD_HOST", "127.0.0.1").env("STATSD_PORT", statsd.local_addr().unwrap().port().to_string());
    let launcher = harness.work_dir.start_command(command);
    let counters = [
        "nodepool.launch.ready",
        "nodepool.launch.provider.p.ready",
        "nodepool.launch.provider.p.nova.ready",
        "nodepool.launch.requestor.NodePool_min-ready.ready",
        "nodepool.launch.error.status",
        "nodepool.launch.provider.p.error.status",
        "nodepool.task.p.compute.POST.servers",
        "nodepool.task.p.network.DELETE.port",
        "nodepool.provider.p.leaked.instances",
        "nodepool.provider.p.leaked.ports",
        "nodepool.provider.p.leaked.floatingips",
    ];
    let mut wanted: Vec<String> = counters.iter().map(|name| format!("{name}:1|c")).collect();
    // Launches and calls also have a timer.
    let mut timed: Vec<String> = counters[..8].iter().map(|name| format!("{name}:")).collect();
    let receiving = async {
        let mut buffer = [0; 2048];
        while !wanted.is_empty() || !timed.is_empty() {
            let length = statsd.recv(&mut buffer).await.unwrap();
            let datagram = text(&buffer[..length]);
            wanted.retain(|line| !datagram.lines().any(|sent| sent == line));
            timed.retain(|name| !datagram.lines().any(|sent| sent.starts_with(name) && sent.ends_with("|ms")));
        }
    };
    let received = timeout(PROCESS_TIMEOUT, receiving).await;
    assert!(received.is_ok(), "{wanted:?} {timed:?} were not received\n{}", launcher.log());
}

#[tokio::test]
async fn alien_image_list_shows_images_without_a_ready_upload() {
    let harness = CloudCommandHarness::new().await;
    let mut provider = harness.cloud.provider("p");
    provider["diskimages"] = json!([{"name": "debian"}]);
    let file = json!({
        "zookeeper-servers": [{"host": "127.0.0.1", "port": harness.coordinator.port}],
        "labels": [{"name": "a"}], "diskimages": [{"name": "debian"}], "providers": [provider],
    });
    let lines: Vec<String> = file.as_object().unwrap().iter().map(|(key, value)| format!("{key}: {value}\n")).collect();
    harness.work_dir.configure(&lines.concat());
    let image = async |name: &str, marks: Value| {
        let mut record = json!({"name": name, "disk_format": "raw", "container_format": "bare"});
        record.as_object_mut().unwrap().extend(marks.as_object().unwrap().clone());
        let (status, answer) = harness.client.call(Method::POST, "image", "/images", Some(record)).await;
        assert!(status.is_success(), "{answer}");
        answer["id"].as_str().unwrap().to_owned()
    };
    let header = row(&["Provider", "Name", "Image ID"]);
    let nothing = std::slice::from_ref(&header);
    assert_eq!(rows(&text(&harness.run("alien-image-list").await.stdout)), nothing);
    let known = image("known", json!({"nodepool_build_id": "b1"})).await;
    let alien = image("alien", json!({"nodepool_build_id": "b1", "nodepool_upload_id": "0000000009"})).await;
    image("foreign", json!({})).await;
    image("snapshot", json!({"nodepool_build_id": "b1", "base_image_ref": "known"})).await;
    let upload = "/nodepool/images/debian/builds/b1/providers/p/images/0000000001";
    for (at, _) in upload.match_indices('/').skip(1) {
        // The path may exist already.
        let _ = harness.zk.create(&upload[..at], Vec::new().into(), CreateMode::Persistent).await;
    }
    let record = json!({"state": "ready", "state_time": 5.0, "external_id": known}).to_string();
    harness.zk.create(upload, record.into(), CreateMode::Persistent).await.unwrap();
    let listed = rows(&text(&harness.run("alien-image-list").await.stdout));
    assert_eq!(listed, [header.clone(), row(&["p", "alien", &alien])]);
    let found = json!([{"provider": "p", "name": "alien", "image_id": alien}]);
    assert_eq!(harness.json("alien-image-list p").await, found);
    let marks = json!({"nodepool_build_id": "b1", "nodepool_upload_id": "0000000002", "nodepool_provider_name": "p"});
    image("of an unreadable record", marks).await;
    let unreadable = upload.replace("0000000001", "0000000002");
    harness.zk.create(&unreadable, vec![0xff].into(), CreateMode::Persistent).await.unwrap();
    let output = harness.run("alien-image-list").await;
    assert_eq!(rows(&text(&output.stdout)), [header.clone(), row(&["p", "alien", &alien])]);
    assert!(
        text(&output.stderr).contains(&format!("WARNING {unreadable} is skipped, it cannot be read")),
        "{output:?}"
    );
    harness.invalidate_password();
    let output = harness.run("alien-image-list").await;
    assert!(output.status.success());
    assert_eq!(rows(&text(&output.stdout)), nothing);
    assert!(text(&output.stderr).contains("WARNING: Exception listing alien images for p: "), "{output:?}");
}
