//! Inserts: the fields that they check, the ids of requests, and names that exist.

use serde_json::{Value, json};

use super::{Cloud, INSTANCES, body, pass, plain, reason, refused, text};

const UUID: &str = "6c3a2bd4-2d2e-4e5e-9a3b-0d9f7fb6d6a1";

fn boot_disk(params: Value) -> Value {
    json!({"disks": [{"boot": true, "initializeParams": params}]})
}

#[tokio::test(start_paused = true)]
async fn invalid_fields_are_refused() {
    let cloud = Cloud::new(&[]);
    let image = "projects/debian-cloud/global/images/family/debian-12";
    for changes in [
        json!({"name": "One"}),
        json!({"name": "a".repeat(64)}),
        json!({"name": "one-"}),
        json!({"machineType": "zones/us-central1-a/machineTypes/e9-huge"}),
        json!({"machineType": "zones/us-central1-b/machineTypes/e2-small"}),
        json!({"machineType": "e2-small"}),
        json!({"disks": []}),
        boot_disk(json!({})),
        boot_disk(json!({"sourceImage": "global/images/none"})),
        boot_disk(json!({"sourceImage": "projects/none/global/images/one"})),
        boot_disk(json!({"sourceImage": "https://example.com/one"})),
        boot_disk(json!({"sourceImage": image, "diskSizeGb": 9})),
        boot_disk(json!({"sourceImage": image, "diskSizeGb": "65537"})),
        boot_disk(json!({"sourceImage": image, "diskType": "zones/us-central1-a/diskTypes/tape"})),
        boot_disk(json!({"sourceImage": image, "diskType": "pd-ssd"})),
        json!({"networkInterfaces": []}),
        json!({"networkInterfaces": [{"network": "global/networks/none"}]}),
        json!({"networkInterfaces": [{"subnetwork": "regions/europe-west1/subnetworks/default"}]}),
        json!({"networkInterfaces": [{"accessConfigs": [{"type": "DIRECT"}]}]}),
        json!({"metadata": {"items": [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]}}),
        json!({"metadata": {"items": [{"key": "a b", "value": "1"}]}}),
        json!({"labels": {"Team": "ci"}}),
        json!({"labels": {"team": "C I"}}),
        json!({"tags": {"items": ["SSH"]}}),
        json!({"tags": {"items": ["ssh", "ssh"]}}),
        json!({"serviceAccounts": [{"email": "one"}]}),
        json!({"scheduling": {"provisioningModel": "CHEAP"}}),
        json!({"scheduling": {"provisioningModel": "SPOT", "automaticRestart": true}}),
        json!({"scheduling": {"provisioningModel": "SPOT", "onHostMaintenance": "MIGRATE"}}),
        json!({"scheduling": {"instanceTerminationAction": "DELETE"}}),
    ] {
        assert_eq!(reason(cloud.insert(&body("one", changes.clone())).await), refused(400, "invalid"), "{changes}");
    }
    for changes in [json!({"flavor": "small"}), json!({"name": 1}), boot_disk(json!({"image": image}))] {
        assert_eq!(reason(cloud.insert(&body("one", changes.clone())).await), refused(400, "badRequest"), "{changes}");
    }
    assert_eq!(reason(cloud.call("POST", INSTANCES, b"{").await), refused(400, "parseError"));
    assert_eq!(cloud.sim("GET", "state").await["counters"]["operations"], 0);
}

#[tokio::test(start_paused = true)]
async fn a_disk_takes_any_form_of_an_image_and_a_size() {
    let cloud = Cloud::new(&["--project", "simulated", "--project", "other"]);
    for (index, image) in [
        "https://www.googleapis.com/compute/v1/projects/debian-cloud/global/images/debian-12-bookworm-v20260113",
        "https://compute.googleapis.com/compute/v1/projects/debian-cloud/global/images/family/debian-12",
        "projects/debian-cloud/global/images/debian-11-bullseye-v20260113",
        "projects/other/global/images/family/nodepool",
        "global/images/nodepool-1",
        "global/images/family/nodepool",
    ]
    .into_iter()
    .enumerate()
    {
        let size = if index % 2 == 0 { json!("30") } else { json!(30) };
        let disk = boot_disk(json!({"sourceImage": image, "diskSizeGb": size}));
        cloud.inserted(&body(&format!("one-{index}"), disk)).await;
        let instance = cloud.get(&format!("{INSTANCES}/one-{index}")).await;
        assert_eq!(instance["disks"][0]["diskSizeGb"], "30", "{image}");
    }
    cloud.inserted(&body("large", boot_disk(json!({"sourceImage": "global/images/large"})))).await;
    assert_eq!(cloud.get(&format!("{INSTANCES}/large")).await["disks"][0]["diskSizeGb"], "100");
    assert_eq!(cloud.usage("DISKS_TOTAL_GB").await, 280.0);
}

#[tokio::test(start_paused = true)]
async fn an_instance_has_the_fields_of_its_insert() {
    let cloud = Cloud::new(&[]);
    let changes = json!({
        "machineType": "https://compute.googleapis.com/compute/v1/projects/simulated/zones/us-central1-a/machineTypes/\
                        n2-custom-4-8192",
        "metadata": {"items": [{"key": "nodepool_node_id", "value": "7"}]}, "labels": {"team": "ci"},
        "tags": {"items": ["ssh"]}, "scheduling": {"provisioningModel": "SPOT"},
        "serviceAccounts": [{"email": "default", "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}],
    });
    cloud.inserted(&body("one", changes)).await;
    let one = cloud.get(&format!("{INSTANCES}/one")).await;
    assert!(text(&one["machineType"]).starts_with("https://www.googleapis.com/compute/v1/projects/simulated/zones/"));
    assert_eq!(one["metadata"]["items"], json!([{"key": "nodepool_node_id", "value": "7"}]));
    assert_eq!((&one["labels"], &one["tags"]["items"]), (&json!({"team": "ci"}), &json!(["ssh"])));
    assert_eq!(one["serviceAccounts"][0]["email"], "1000000000001-compute@developer.gserviceaccount.com");
    let scheduling = json!({
        "onHostMaintenance": "TERMINATE", "automaticRestart": false, "preemptible": true, "provisioningModel": "SPOT",
        "instanceTerminationAction": "STOP",
    });
    assert_eq!(one["scheduling"], scheduling);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_answers_the_same_operation() {
    let cloud = Cloud::new(&["--requests-kept-s", "100"]);
    let uri = format!("{INSTANCES}?requestId={UUID}");
    let insert = plain("one").to_string();
    let (_, first) = cloud.call("POST", &uri, insert.as_bytes()).await;
    pass(2.0).await;
    let (status, again) = cloud.call("POST", &uri, insert.as_bytes()).await;
    assert_eq!((status, &again["name"], &again["status"]), (200, &first["name"], &json!("DONE")));
    let other = cloud.call("POST", &uri, plain("two").to_string().as_bytes()).await;
    assert_eq!(reason(other), refused(400, "invalid"));
    for wrong in ["1", "00000000-0000-0000-0000-000000000000", "6c3a2bd42d2e4e5e9a3b0d9f7fb6d6a1"] {
        let uri = format!("{INSTANCES}?requestId={wrong}");
        assert_eq!(reason(cloud.call("POST", &uri, insert.as_bytes()).await), refused(400, "invalid"), "{wrong}");
    }
    let uri_of_deletion = format!("{INSTANCES}/one?requestId={}", UUID.replace("6c3a", "7d4b"));
    let (_, deletion) = cloud.call("DELETE", &uri_of_deletion, b"").await;
    let (status, again) = cloud.call("DELETE", &uri_of_deletion, b"").await;
    assert_eq!((status, &again["name"]), (200, &deletion["name"]));
    pass(200.0).await;
    assert_eq!(cloud.sim("GET", "state").await["counters"]["requests_repeated"], 2);
    let (_, forgotten) = cloud.call("POST", &uri, insert.as_bytes()).await;
    assert_ne!(forgotten["name"], first["name"]);
}

#[tokio::test(start_paused = true)]
async fn an_existing_name_is_refused() {
    let cloud = Cloud::new(&[]);
    cloud.inserted(&plain("one")).await;
    let (status, json) = cloud.insert(&plain("one")).await;
    let message = "The resource 'projects/simulated/zones/us-central1-a/instances/one' already exists";
    assert_eq!((status, &json["error"]["message"]), (409, &json!(message)));
    assert_eq!(json["error"]["errors"][0]["domain"], "global");
}
