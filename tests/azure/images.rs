//! Images of machines, and what the configuration passes to them.

use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::job::LaunchOrder;
use nodepool_model::records::ids::ExternalId;
use serde_json::{Value, json};
use testkit::clouds::simulated_azure::{GROUP, LOCATION};
use testkit::in_process_launcher::on_real_time;
use testkit::provider_harness::launch_order;

use crate::driver::Harness;

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGtra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tr nodepool";
const DEBIAN: &str = "image-reference: {publisher: Debian, offer: debian-12, sku: 12-gen2, version: latest}";

/// A harness whose cloud image is named by these keys.
async fn harness_with(image: &str, flags: &[&str]) -> Harness {
    Harness::start_with(flags, |config| config.replacen(DEBIAN, image, 1)).await
}

/// The image of the only machine, as the request named it.
async fn image_of(harness: &Harness) -> Value {
    let calls = harness.cloud.calls("vm.create").await;
    let [call] = &calls[..] else { panic!("{calls:?}") };
    call["body"]["properties"]["storageProfile"]["imageReference"].clone()
}

fn id(harness: &Harness, image: &str) -> String {
    let subscription = harness.cloud.auth()["subscriptionId"].as_str().unwrap();
    format!("/subscriptions/{subscription}/resourceGroups/{GROUP}/providers/Microsoft.Compute/images/{image}")
}

#[test]
fn an_image_filter_selects_the_matching_image_with_the_highest_name() {
    on_real_time(async {
        let filter = format!("image-filter: {{location: {LOCATION}, tags: {{team: ci}}}}");
        let mut harness = harness_with(&filter, &["--page", "1"]).await;
        match harness.launch("0000000001").await {
            Err(CloudError::Failed { kind: FailureKind::Nodepool, detail }) => {
                assert_eq!(detail, "no image of the resource group matches the image-filter");
            }
            other => panic!("{other:?}"),
        }
        let ours = "tags={%22team%22:%22ci%22}";
        for image in [
            &format!("prefix=debian-1&{ours}"),
            &format!("prefix=debian-2&{ours}"),
            &format!("prefix=debian-4&{ours}&location=westus2"),
            // One without tags is no error.
            "prefix=debian-3",
        ] {
            harness.cloud.control(&format!("create?kind=image&count=1&{image}")).await;
        }
        harness.launch("0000000002").await.unwrap();
        assert_eq!(image_of(&harness).await, json!({"id": id(&harness, "debian-2")}));
    });
}

#[test]
fn an_image_filter_may_name_the_image() {
    on_real_time(async {
        let mut harness = harness_with("image-filter: {name: debian-1}", &[]).await;
        harness.cloud.control("create?kind=image&count=3&prefix=debian-").await;
        harness.launch("0000000001").await.unwrap();
        assert_eq!(image_of(&harness).await, json!({"id": id(&harness, "debian-1")}));
    });
}

#[test]
fn images_of_galleries_are_named_with_their_version_if_there_is_one() {
    on_real_time(async {
        for (image, flag, expected) in [
            (
                "community-gallery-image: {gallery-name: g, name: debian}",
                "--community-image",
                json!({"communityGalleryImageId": "/CommunityGalleries/g/Images/debian"}),
            ),
            (
                "shared-gallery-image: {gallery-name: g, name: debian, version: 1.0.0}",
                "--shared-image",
                json!({"sharedGalleryImageId": "/SharedGalleries/g/Images/debian/Versions/1.0.0"}),
            ),
        ] {
            let mut harness = harness_with(image, &[flag, "g/debian"]).await;
            harness.launch("0000000001").await.unwrap();
            assert_eq!(image_of(&harness).await, expected);
        }
    });
}

#[test]
fn an_image_that_does_not_exist_is_refused() {
    on_real_time(async {
        let mut harness = harness_with("shared-gallery-image: {gallery-name: g, name: debian}", &[]).await;
        let error = harness.launch("0000000001").await.unwrap_err();
        assert_eq!(error.kind(), "denied", "{error}");
        harness.assert_empty().await;
    });
}

#[test]
fn a_node_boots_the_image_of_its_upload() {
    on_real_time(async {
        let disk = |config: String| {
            let config = config.replacen("cloud-image: debian", "diskimage: built", 1);
            config.replacen("diskimages: [{name: built}]", &format!("diskimages: [{{name: built, key: {KEY}}}]"), 1)
        };
        let mut harness = Harness::start_with(&[], disk).await;
        harness.cloud.control("create?kind=image&count=1&prefix=built-1700000001").await;
        let image = Some(ExternalId::text("built-1700000001"));
        harness.launch_as(LaunchOrder { image, ..launch_order("az", "0000000001", 1) }).await.unwrap();
        assert_eq!(image_of(&harness).await, json!({"id": id(&harness, "built-1700000001")}));
        // The name of the user is that of the image's own section.
        let profile = &harness.cloud.calls("vm.create").await[0]["body"]["properties"]["osProfile"];
        assert_eq!(profile["adminUsername"], "zuul");
        // An image that was deleted by hand.
        let image = Some(ExternalId::text("built-1700000000"));
        let order = LaunchOrder { image, ..launch_order("az", "0000000002", 1) };
        assert_eq!(harness.launch_as(order).await.unwrap_err().kind(), "denied");
    });
}

#[test]
fn tags_have_values_of_the_request_and_no_password_is_recorded() {
    on_real_time(async {
        let label = "tags: {team: ci, shift: 1}, dynamic-tags: {tenant: \"{request.tenant_name}\"}, user-data: hello, \
                     custom-data: world";
        let mut harness = Harness::start(&[], "", "", label).await;
        let request = json!({"tenant_name": "tenant-1"}).into();
        harness.launch_as(LaunchOrder { request, ..launch_order("az", "0000000001", 1) }).await.unwrap();
        let body = &harness.cloud.calls("vm.create").await[0]["body"];
        let network = &body["properties"]["networkProfile"]["networkInterfaceConfigurations"][0];
        let address = &network["properties"]["ipConfigurations"][0]["properties"]["publicIPAddressConfiguration"];
        for tags in [&body["tags"], &network["tags"], &address["tags"]] {
            assert_eq!(
                (&tags["team"], &tags["shift"], &tags["tenant"]),
                (&json!("ci"), &json!("1"), &json!("tenant-1"))
            );
            assert_eq!(tags["nodepool_node_id"], "0000000001");
        }
        let profile = &body["properties"]["osProfile"];
        assert_eq!((&body["properties"]["userData"], &profile["customData"]), (&json!("aGVsbG8="), &json!("d29ybGQ=")));
        assert_eq!(profile["adminUsername"], "zuul");
    });
}
