//! Images imported by Glance tasks (`image_api_use_tasks`). Few clouds offer such tasks, so an HTTP server in the same
//! process simulates one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use nodepool_driver::error::CloudError;
use nodepool_driver::job::{Job, Outcome};
use nodepool_drivers::{OpenDriver, openstack};
use nodepool_model::config::upload_config::{Progress, UploadOrder};
use nodepool_model::records::ids::ExternalId;
use openstack_clouds::{ConfigPaths, Environment};
use serde_json::{Value, json};
use testkit::provider_harness::{ProviderHarness, on_real_time, provider_section};

/// State of the simulated cloud: its objects, its image, and the calls that it received.
#[derive(Default)]
struct Cloud {
    objects: BTreeMap<String, Vec<u8>>,
    image: Value,
    polls: usize,
    /// The status of every finished import.
    final_status: &'static str,
    calls: Vec<String>,
}

type SharedCloud = web::Data<Arc<Mutex<Cloud>>>;

fn catalog(base: &str) -> Value {
    let service = |kind: &str, url: String| json!({"type": kind, "name": kind, "endpoints": [{"interface": "public", "region": "R", "region_id": "R", "url": url}]});
    json!([
        service("identity", format!("{base}/identity/v3")),
        service("compute", format!("{base}/compute/v2.1")),
        service("image", format!("{base}/image")),
        service("object-store", format!("{base}/swift/v1/AUTH_p")),
    ])
}

async fn serve(cloud: SharedCloud, request: HttpRequest, body: web::Bytes) -> HttpResponse {
    let mut cloud = cloud.lock().unwrap();
    let base = format!("http://{}", request.connection_info().host());
    let (method, path) = (request.method().as_str().to_owned(), request.path().to_owned());
    if !path.starts_with("/identity") {
        cloud.calls.push(format!("{method} {path}"));
    }
    let read = || serde_json::from_slice::<Value>(&body).unwrap();
    match (method.as_str(), path.as_str()) {
        ("GET", "/identity/v3" | "/identity/v3/" | "/identity") => {
            HttpResponse::Ok().json(json!({"version": {"id": "v3.14", "status": "stable", "links": [{"rel": "self", "href": format!("{base}/identity/v3/")}]}}))
        }
        ("POST", "/identity/v3/auth/tokens") => {
            let token = json!({"token": {
                "catalog": catalog(&base), "expires_at": "2099-01-01T00:00:00.000000Z", "issued_at": "2026-01-01T00:00:00.000000Z",
                "methods": ["password"], "user": {"id": "u", "name": "u", "domain": {"id": "default", "name": "Default"}},
                "project": {"id": "p", "name": "p", "domain": {"id": "default", "name": "Default"}},
            }});
            HttpResponse::Created().insert_header(("x-subject-token", "t")).json(token)
        }
        ("GET", "/image" | "/image/") => {
            let version = json!({"id": "v2.9", "status": "CURRENT", "links": [{"rel": "self", "href": format!("{base}/image/v2/")}]});
            HttpResponse::Ok().json(json!({"versions": [version]}))
        }
        ("PUT", "/swift/v1/AUTH_p/images") => HttpResponse::Created().finish(),
        ("PUT", object) if object.starts_with("/swift/v1/AUTH_p/images/") => {
            assert_eq!(request.headers().get("x-delete-after").unwrap(), "86400");
            cloud.objects.insert(object.rsplit('/').next().unwrap().to_owned(), body.to_vec());
            HttpResponse::Created().finish()
        }
        ("DELETE", object) if object.starts_with("/swift/v1/AUTH_p/images/") => {
            cloud.objects.remove(object.rsplit('/').next().unwrap());
            HttpResponse::NoContent().finish()
        }
        ("POST", "/image/v2/tasks") => {
            let task = read();
            let expected = json!({"type": "import", "input": {"import_from": "images/debian-5", "image_properties": {
                "name": "debian-5", "nodepool_build_id": "b", "nodepool_upload_id": "0000000001"}}});
            assert_eq!(task, expected);
            cloud.image = json!({"id": "image-7", "name": "debian-5", "status": "active"});
            HttpResponse::Created().json(json!({"id": "task-1", "status": "pending"}))
        }
        ("GET", "/image/v2/tasks/task-1") => {
            cloud.polls += 1;
            let status = if cloud.polls == 1 { "processing" } else { cloud.final_status };
            HttpResponse::Ok().json(json!({"id": "task-1", "status": status, "message": "no space", "result": {"image_id": "image-7"}}))
        }
        ("PATCH", "/image/v2/images/image-7") => {
            assert_eq!(request.headers().get("content-type").unwrap(), "application/openstack-images-v2.1-json-patch");
            for change in read().as_array().unwrap() {
                assert_eq!(change["op"], "add");
                let key = change["path"].as_str().unwrap().trim_start_matches('/').to_owned();
                cloud.image[key] = change["value"].clone();
            }
            HttpResponse::Ok().json(&cloud.image)
        }
        ("GET", "/image/v2/images/image-7") => HttpResponse::Ok().json(&cloud.image),
        ("GET", "/image/v2/images") => HttpResponse::Ok().json(json!({"images": [cloud.image]})),
        ("DELETE", "/image/v2/images/image-7") => HttpResponse::NoContent().finish(),
        _ => HttpResponse::NotFound().finish(),
    }
}

struct StartTaskManager(nodepool::actors::provider::task_manager::TaskManagerDeps);

impl OpenDriver for StartTaskManager {
    type Out = nodepool::actors::provider::jobs::ProviderHandle;

    fn with<D: nodepool_driver::driver::Driver>(self, driver: D) -> Self::Out {
        nodepool::actors::provider::task_manager::TaskManager::launch("lab".into(), driver, self.0)
    }
}

/// A cloud whose imports end with this status, and a provider on it.
fn start(end: &'static str, folder: &std::path::Path) -> (Arc<Mutex<Cloud>>, ProviderHarness) {
    let cloud = Arc::new(Mutex::new(Cloud { final_status: end, ..Cloud::default() }));
    let data = web::Data::new(cloud.clone());
    let server = HttpServer::new(move || App::new().app_data(data.clone()).default_service(web::to(serve)));
    let server = server.workers(1).disable_signals().bind(("127.0.0.1", 0)).unwrap();
    let base = format!("http://{}", server.addrs()[0]);
    actix_rt::spawn(server.run());
    let clouds = json!({"clouds": {"c": {
        "auth": {"auth_url": format!("{base}/identity/v3"), "username": "u", "password": "secret", "project_name": "p"},
        "image_api_use_tasks": true, "region_name": "R",
    }}});
    let file = folder.join("clouds.yaml");
    std::fs::write(&file, clouds.to_string()).unwrap();
    let variables = BTreeMap::from([("OS_CLIENT_CONFIG_FILE".to_owned(), file.display().to_string())]);
    let places = ConfigPaths::new(&[], Environment { variables, home: None });
    let section = provider_section(
        "zookeeper-servers: [{host: localhost}]\nlabels: []\ndiskimages: [{name: debian}]\nproviders:\n  \
         - {name: lab, driver: openstack, cloud: c, pools: [], diskimages: [{name: debian}]}\n",
    );
    let driver = openstack::open_with(&section, &places).unwrap();
    let provider = ProviderHarness::new(|mut deps| {
        deps.refresh_mode = nodepool::actors::provider::task_manager::RefreshMode::Never;
        StartTaskManager(deps).with(driver)
    });
    (cloud, provider)
}

fn order(folder: &std::path::Path, may_exist: bool) -> Job {
    let file = folder.join("debian.vhd");
    std::fs::write(&file, "an image").unwrap();
    Job::Upload(Arc::new(UploadOrder {
        image: "debian".into(),
        name: "debian-5".to_owned(),
        file,
        size: 8,
        format: "vhd".to_owned(),
        meta: BTreeMap::from([("colour".to_owned(), json!("blue"))]),
        marks: [("nodepool_build_id", "b"), ("nodepool_upload_id", "0000000001")]
            .map(|(mark, value)| (mark.to_owned(), value.to_owned()))
            .into(),
        md5: Some("0123".to_owned()),
        sha256: None,
        may_exist,
        progress: Progress::default(),
    }))
}

#[test]
fn an_image_is_imported_through_the_object_store() {
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let (cloud, mut provider) = start("success", folder.path());
        let uploaded = provider.run(order(folder.path(), false)).await;
        assert_eq!(uploaded, Ok(Outcome::Uploaded(ExternalId::text("image-7"))));
        let cloud = cloud.lock().unwrap();
        assert!(cloud.objects.is_empty(), "{:?}", cloud.objects.keys());
        let image = &cloud.image;
        assert_eq!((&image["colour"], &image["nodepool_build_id"]), (&json!("blue"), &json!("b")));
        assert_eq!(image["owner_specified.openstack.md5"], "0123");
        let calls: Vec<&str> =
            cloud.calls.iter().map(String::as_str).filter(|call| !call.starts_with("GET /image/ ")).collect();
        let first = ["PUT /swift/v1/AUTH_p/images", "PUT /swift/v1/AUTH_p/images/debian-5", "POST /image/v2/tasks"];
        let start = calls.iter().position(|call| *call == first[0]).unwrap();
        assert_eq!(calls[start..start + 2], first[..2], "{calls:?}");
    });
}

#[test]
fn a_failed_import_has_a_reason_and_is_cleaned_up_on_retry() {
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let (cloud, mut provider) = start("failure", folder.path());
        cloud.lock().unwrap().image =
            json!({"id": "image-7", "nodepool_build_id": "b", "nodepool_upload_id": "0000000001"});
        let uploaded = provider.run(order(folder.path(), true)).await;
        let Err(CloudError::Failed { detail, .. }) = uploaded else { panic!("{uploaded:?}") };
        assert_eq!(detail, "the import task failed: no space");
        assert!(cloud.lock().unwrap().objects.is_empty());
        let calls = cloud.lock().unwrap().calls.clone();
        assert!(calls.contains(&"DELETE /image/v2/images/image-7".to_owned()), "{calls:?}");
    });
}
