//! Projects, regions, zones, machine types and images.

use serde_json::json;

use super::{Cloud, PROJECT, reason, refused, text};

#[tokio::test(start_paused = true)]
async fn regions_list_their_zones_and_quotas_as_floats() {
    let cloud = Cloud::new(&["--quotas", "CPUS=24", "--hidden-quota", "N2_CPUS"]);
    let region = cloud.get(&format!("{PROJECT}/regions/us-central1")).await;
    assert_eq!(region["zones"].as_array().unwrap().len(), 4);
    let quotas = region["quotas"].to_string();
    assert!(quotas.contains(r#"{"metric":"CPUS","limit":24.0,"usage":0.0}"#), "{quotas}");
    assert!(!quotas.contains("\"N2_CPUS\""), "{quotas}");
    assert_eq!(cloud.get(&format!("{PROJECT}/zones/europe-west1-b")).await["status"], "UP");
    assert_eq!(cloud.get(&format!("{PROJECT}/zones")).await["items"].as_array().unwrap().len(), 7);
    assert_eq!(cloud.get(PROJECT).await["name"], "simulated");
    for (path, expected) in [
        ("/zones/mars-1a", refused(404, "notFound")),
        ("/regions/mars", refused(404, "notFound")),
        ("/zones/mars-1a/instances", refused(400, "invalid")),
        ("/rockets", refused(404, "notFound")),
    ] {
        assert_eq!(reason(cloud.call("GET", &format!("{PROJECT}{path}"), b"").await), expected, "{path}");
    }
    let zones = |project: &str| format!("/compute/v1/projects/{project}/zones");
    assert_eq!(reason(cloud.call("GET", &zones("none"), b"").await), refused(404, "notFound"));
    assert_eq!(reason(cloud.call("GET", &zones("debian-cloud"), b"").await), refused(403, "forbidden"));
}

#[tokio::test(start_paused = true)]
async fn machine_types_have_cores_and_memory() {
    let cloud = Cloud::new(&[]);
    let uri = format!("{PROJECT}/zones/us-central1-a/machineTypes");
    for (name, cpus, memory_mb) in
        [("n1-standard-2", 2, 7680), ("e2-medium", 2, 4096), ("custom-4-8192", 4, 8192), ("n2-custom-4-8192", 4, 8192)]
    {
        let found = cloud.get(&format!("{uri}/{name}")).await;
        assert_eq!((&found["guestCpus"], &found["memoryMb"]), (&json!(cpus), &json!(memory_mb)), "{name}");
    }
    assert_eq!(reason(cloud.call("GET", &format!("{uri}/e9-huge"), b"").await), refused(404, "notFound"));
    assert!(cloud.get(&uri).await["items"].as_array().unwrap().len() > 20);
}

#[tokio::test(start_paused = true)]
async fn a_family_is_its_newest_image_that_is_not_deprecated() {
    let cloud = Cloud::new(&[]);
    let family = "/compute/v1/projects/debian-cloud/global/images/family/debian-12";
    let first = cloud.get(family).await;
    assert_eq!(first["name"], "debian-12-bookworm-v20260113");
    assert!(text(&first["selfLink"]).starts_with("https://www.googleapis.com/compute/v1/projects/debian-cloud/"));
    cloud.sim("POST", "image?project=debian-cloud&family=debian-12&name=newer&size=12").await;
    let newer = cloud.get(family).await;
    assert_eq!((&newer["name"], &newer["diskSizeGb"]), (&json!("newer"), &json!("12")));
    cloud.sim("POST", "deprecate?project=debian-cloud&name=newer").await;
    assert_eq!(cloud.get(family).await, first);
    cloud.sim("POST", "remove-image?project=debian-cloud&name=newer").await;
    let images = "/compute/v1/projects/debian-cloud/global/images";
    assert_eq!(cloud.call("GET", &format!("{images}/newer"), b"").await.0, 404);
    assert_eq!(cloud.get(images).await["items"].as_array().unwrap().len(), 3);
    let absent = cloud.call("GET", &format!("{images}/family/none"), b"").await;
    assert_eq!(reason(absent), refused(404, "notFound"));
    assert_eq!(cloud.call("POST", "/sim/image?name=nodepool-1", b"").await.0, 409);
}
