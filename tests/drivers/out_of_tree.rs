//! Out-of-tree driver: the example `gce`, tested on a small Compute Engine over HTTP.
//!
//! Launcher and Compute Engine run in the test's process and in real time, with a ZooKeeper in memory.

#[allow(dead_code)] // `main` of the example
#[path = "../../examples/gce.rs"]
mod gce;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use actix_web::dev::ServerHandle;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use nodepool::actors::process::config_files;
use nodepool::actors::provider::jobs::ProviderHandle;
use nodepool::actors::provider::providers::{ExtraDrivers, StartProvider};
use nodepool_drivers::BUILT_IN_DRIVERS;
use nodepool_model::config::ProviderConfig;
use nodepool_model::records::request::RequestState;
use python_yaml::diagnostics::Diagnostic;
use serde_json::{Value, json};
use testkit::in_process_launcher::{Consumer, InProcessDaemon, on_real_time, until, zookeeper};

/// State of the Compute Engine: its instances by name, the number of creations, and the received tokens.
#[derive(Default)]
struct Engine {
    instances: BTreeMap<String, Value>,
    creations: usize,
    tokens: Vec<String>,
}

type SharedEngine = web::Data<Arc<Mutex<Engine>>>;

async fn serve(engine: SharedEngine, request: HttpRequest, body: web::Bytes) -> HttpResponse {
    let mut engine = engine.lock().unwrap();
    let token = request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
    engine.tokens.extend(token);
    let path = request
        .path()
        .strip_prefix("/compute/v1/projects/lab/")
        .expect("the path is below the driver's project")
        .to_owned();
    let below = path.strip_prefix("zones/z1/instances");
    match (request.method().as_str(), below) {
        ("GET", None) => HttpResponse::Ok().json(json!({"quotas": [{"metric": "INSTANCES", "limit": 2.0}]})),
        ("GET", Some(_)) => {
            // One instance per page; every listing advances the instances.
            let page: usize = request.query_string().trim_start_matches("pageToken=").parse().unwrap_or(0);
            let (count, item) = (engine.instances.len(), engine.instances.values_mut().nth(page));
            let items: Vec<Value> = item
                .map(|item| {
                    let shown = item.clone();
                    item["status"] = json!("RUNNING");
                    shown
                })
                .into_iter()
                .collect();
            let next = if page + 1 < count { json!((page + 1).to_string()) } else { Value::Null };
            HttpResponse::Ok().json(json!({"items": items, "nextPageToken": next}))
        }
        ("POST", Some(_)) => {
            let mut instance: Value = serde_json::from_slice(&body).unwrap();
            let name = instance["name"].as_str().unwrap().to_owned();
            engine.creations += 1;
            if engine.creations == 1 {
                return HttpResponse::TooManyRequests().insert_header(("retry-after", "1")).json(json!({}));
            }
            if engine.instances.len() == 2 {
                let error = json!({"message": "Quota 'INSTANCES' exceeded", "errors": [{"reason": "quotaExceeded"}]});
                return HttpResponse::Forbidden().json(json!({"error": error}));
            }
            instance["status"] = json!("STAGING");
            instance["networkInterfaces"][0]["networkIP"] = json!("10.0.0.2");
            instance["networkInterfaces"][0]["accessConfigs"][0]["natIP"] = json!("fake-address");
            engine.instances.insert(name, instance);
            HttpResponse::Ok().json(json!({"kind": "compute#operation"}))
        }
        ("DELETE", Some(name)) => match engine.instances.remove(name.trim_start_matches('/')) {
            Some(_) => HttpResponse::Ok().json(json!({"kind": "compute#operation"})),
            None => HttpResponse::NotFound().json(json!({"error": {"message": "not found"}})),
        },
        (method, _) => panic!("{method} {path}"),
    }
}

const CONFIG: &str = "zookeeper-servers: [{host: localhost}]
labels: [{name: a}]
providers:
  - name: compute
    driver: gce
    project: lab
    region: r1
    zone: z1
    cloud-images: [{name: debian, image-family: debian-12, image-project: debian-cloud, username: zuul}]
    pools:
      - name: main
        labels: [{name: a, cloud-image: debian, instance-type: n1-standard-1}]
";

/// Starts a Compute Engine. Returns its state, a driver for it, and the handle of its HTTP server.
fn start() -> (Arc<Mutex<Engine>>, gce::GceDriver, ServerHandle) {
    let engine = Arc::new(Mutex::new(Engine::default()));
    let data = web::Data::new(engine.clone());
    let server = HttpServer::new(move || App::new().app_data(data.clone()).default_service(web::to(serve)));
    let server = server.workers(1).disable_signals().bind(("127.0.0.1", 0)).unwrap();
    let endpoint = format!("http://{}", server.addrs()[0]);
    let server = server.run();
    let handle = server.handle();
    actix_rt::spawn(server);
    (engine, gce::GceDriver { endpoint, token: Some("secret".to_owned()) }, handle)
}

#[test]
fn an_out_of_tree_driver_launches_and_deletes_nodes() {
    on_real_time(async {
        let (engine, drivers, handle) = start();
        let mut process = InProcessDaemon::with(CONFIG, |options| options.extra_drivers = vec!["gce"]);
        Arc::get_mut(&mut process.shared).unwrap().drivers = Some(Box::new(drivers));
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        process.run(&zookeeper);
        until("the pool to be registered", async || consumer.count("/nodepool/components/pool").await == 1).await;

        let id = consumer.submit_labels(&["a", "a"]).await;
        let request = consumer.wait_for_end(&id).await;
        assert_eq!((request.state, request.nodes.len()), (RequestState::Fulfilled, 2));
        for id in &request.nodes {
            let node = consumer.node(id).await.unwrap();
            assert_eq!(*node.external_id, json!(format!("np{id}")));
            assert_eq!(node.interface_ip.as_deref(), Some("fake-address"));
            assert_eq!((node.username.as_deref(), node.host_keys.len()), (Some("zuul"), 1));
            let engine = engine.lock().unwrap();
            let item = &engine.instances[&format!("np{id}")];
            let source = &item["disks"][0]["initializeParams"]["sourceImage"];
            assert_eq!(source, "projects/debian-cloud/global/images/family/debian-12");
            assert!(
                item["metadata"]["items"]
                    .as_array()
                    .unwrap()
                    .contains(&json!({"key": "nodepool_node_id", "value": id}))
            );
        }
        assert!(engine.lock().unwrap().tokens.iter().all(|token| token == "Bearer secret"));

        // The limit of the region makes the next request wait for capacity.
        let second = consumer.submit_labels(&["a"]).await;
        let nodes = consumer.accept(&id).await;
        let is_pending = async || consumer.request(&second).await.unwrap().state == RequestState::Pending;
        until("the request to wait for capacity", is_pending).await;
        consumer.use_and_release(nodes).await;
        assert_eq!(consumer.wait_for_end(&second).await.state, RequestState::Fulfilled);
        let nodes = consumer.accept(&second).await;
        consumer.use_and_release(nodes).await;
        until("all instances to be deleted", async || engine.lock().unwrap().instances.is_empty()).await;
        until("all nodes to be deleted", async || consumer.nodes().await.is_empty()).await;
        process.stop();
        handle.stop(false).await;
    });
}

/// The same driver under a name that Nodepool 11 does not have.
struct AcmeDrivers(gce::GceDriver);

impl ExtraDrivers for AcmeDrivers {
    fn names(&self) -> Vec<&'static str> {
        vec!["acme"]
    }

    fn open(&self, section: &ProviderConfig, start: StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>> {
        assert_eq!((section.driver.as_str(), section.section.integer("warp-factor")), ("acme", Ok(Some(9))));
        self.0.open(section, start)
    }
}

// Regression: an out-of-tree driver could only replace a driver of Nodepool 11, not add a name.
#[test]
fn an_out_of_tree_driver_adds_its_name_and_keys() {
    on_real_time(async {
        let (_engine, drivers, handle) = start();
        let config = CONFIG.replace("driver: gce", "driver: acme\n    warp-factor: 9");
        let mut process = InProcessDaemon::with(&config, |options| options.extra_drivers = vec!["acme"]);
        Arc::get_mut(&mut process.shared).unwrap().drivers = Some(Box::new(AcmeDrivers(drivers)));
        assert_eq!(process.shared.options.load().await.unwrap().diagnostics, []);
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        process.run(&zookeeper);
        until("the pool to be registered", async || consumer.count("/nodepool/components/pool").await == 1).await;
        let id = consumer.submit_labels(&["a"]).await;
        assert_eq!(consumer.wait_for_end(&id).await.state, RequestState::Fulfilled);
        let nodes = consumer.accept(&id).await;
        consumer.use_and_release(nodes).await;
        until("the node to be deleted", async || consumer.nodes().await.is_empty()).await;

        // A program without the driver rejects its name; a program with only that driver rejects unknown names.
        for (known, driver, help) in
            [(BUILT_IN_DRIVERS, "acme", "the drivers are aws, "), (&["acme"], "akme", "did you mean acme?")]
        {
            std::fs::write(&process.file, config.replace("acme", driver)).unwrap();
            let problems = config_files::validate(&process.file, known).await;
            let unknown = problems.iter().find(|problem| problem.message == format!("{driver}: unknown driver"));
            assert!(unknown.is_some_and(|problem| problem.is_error() && problem.help.contains(help)), "{problems:?}");
        }
        process.stop();
        handle.stop(false).await;
    });
}

#[test]
fn the_developer_guide_contains_the_whole_shelf_driver() {
    let guide = include_str!("../../doc/devguide.md");
    assert!(
        guide.contains(include_str!("../../examples/shelf.rs")),
        "examples/shelf.rs and its copy in doc/devguide.md differ: update the guide"
    );
}
