//! Resources that stay behind by a knob.

use serde_json::json;

use super::{Cloud, code, pass, refused, text};

#[tokio::test(start_paused = true)]
async fn a_boot_volume_stays_and_its_name_makes_the_next_creation_fail() {
    let cloud = Cloud::new(&["--volumes-stay-every", "2"]);
    for (name, volumes) in [("one", 0), ("two", 1)] {
        let id = text(&cloud.created(name).await["id"]);
        pass(2.0).await;
        cloud.delete(&format!("instances/{id}")).await;
        pass(2.0).await;
        assert_eq!((cloud.status(&id).await, cloud.count("volumes").await), (String::new(), volumes));
    }
    assert_eq!(cloud.count("volumes?attachment_state=unattached").await, 1);
    assert_eq!(code(cloud.create("two", json!({})).await), refused(400, "validation_unique_failed"));
    let id = cloud.id("volumes", "two").await;
    assert_eq!(cloud.delete(&format!("volumes/{id}")).await.0, 204);
    assert_eq!(cloud.create("two", json!({})).await.0, 201);
    assert_eq!(cloud.sim("GET", "state").await["counters"]["left_behind"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_volume_stays_if_its_creation_says_so() {
    let cloud = Cloud::new(&[]);
    let volume = json!({"name": "kept", "profile": {"name": "general-purpose"}});
    let attachment = json!({"volume": volume, "delete_volume_on_instance_delete": false});
    let (_, created) = cloud.create("one", json!({"boot_volume_attachment": attachment})).await;
    let volume = cloud.id("volumes", "kept").await;
    assert_eq!(code(cloud.delete(&format!("volumes/{volume}")).await), refused(409, "volume_in_use"));
    pass(2.0).await;
    cloud.delete(&format!("instances/{}", text(&created["id"]))).await;
    pass(2.0).await;
    assert_eq!(cloud.get(&format!("volumes/{volume}")).await["volume_attachments"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn a_floating_ip_stays_although_its_deletion_was_accepted() {
    let cloud = Cloud::new(&["--floating-ips-stay-every", "1"]);
    let created = cloud.post("floating_ips", json!({"zone": {"name": "us-south-1"}})).await;
    let path = format!("floating_ips/{}", text(&created["id"]));
    pass(1.0).await;
    assert_eq!(cloud.delete(&path).await.0, 204);
    pass(9.0).await;
    assert_eq!(cloud.get(&path).await["status"], "available");
    cloud.knobs(json!({"floating_ips_stay_every": 0})).await;
    cloud.delete(&path).await;
    pass(1.0).await;
    assert_eq!(cloud.count("floating_ips").await, 0);
}

#[tokio::test(start_paused = true)]
async fn an_instance_stays_deleting_until_it_is_removed_by_hand() {
    let cloud = Cloud::new(&["--stuck-deleting-every", "1"]);
    let id = text(&cloud.created("one").await["id"]);
    pass(2.0).await;
    cloud.delete(&format!("instances/{id}")).await;
    pass(100.0).await;
    assert_eq!(cloud.status(&id).await, "deleting");
    cloud.sim("POST", &format!("remove?id={id}")).await;
    assert_eq!(cloud.status(&id).await, "");
}
