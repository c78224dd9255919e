//! The driver aws on moto: launches, lost responses, full places, quotas, deletions and what is left behind.

use std::sync::Arc;

use nodepool::actors::provider::providers;
use nodepool_driver::cloud_resource::CloudResource;
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::instance::Instance;
use nodepool_driver::job::{Job, LaunchOrder, Outcome};
use nodepool_model::records::ids::ExternalId;
use serde_json::{Value, json};
use testkit::clouds::moto::{KEY_NAME, Moto, REGION, Site};
use testkit::clouds::simulated_ec2::in_process_aws;
use testkit::in_process_launcher::on_real_time;
use testkit::provider_harness::{ProviderHarness, launch_order, launched, provider_section};
use testkit::real;

use crate::ec2::Ec2;

pub struct AwsHarness {
    pub moto: Moto,
    pub ec2: Ec2,
    site: Site,
    pub provider: ProviderHarness,
}

impl AwsHarness {
    /// A provider with one label `small`, and these keys of provider, pool and label.
    pub async fn start(provider: &str, pool: &str, label: &str) -> Self {
        let moto = Moto::start().await;
        let site = moto.site().await;
        let harness = Self::provider(&moto, &site, provider, pool, label);
        Self { ec2: Ec2::new(moto.base()), provider: harness, moto, site }
    }

    fn provider(moto: &Moto, site: &Site, provider: &str, pool: &str, label: &str) -> ProviderHarness {
        let config = configuration(site, provider, pool, label);
        let (section, drivers) = (provider_section(&config), in_process_aws(moto.base(), "testing", "testing"));
        ProviderHarness::new(|deps| providers::start(&section, deps, Some(&drivers)).unwrap())
    }

    async fn launch(&mut self, node: &str) -> Result<Instance, CloudError> {
        launched(self.provider.run(order(node, 1)).await)
    }

    async fn delete(&mut self, id: ExternalId) -> Result<Outcome, CloudError> {
        self.provider.run(Job::Delete(id)).await
    }

    /// Numbers of instances that are not terminated, and of volumes.
    async fn usage(&self) -> (usize, usize) {
        let instances = self.ec2.call("DescribeInstances", &[]).await.expect_ok();
        let states = instances.all("instanceState");
        let alive = states.iter().filter(|state| state.text_of("name") != Some("terminated")).count();
        let volumes = self.ec2.call("DescribeVolumes", &[]).await.expect_ok();
        (alive, volumes.find("volumeSet").children("item").len())
    }

    pub async fn rule(&self, rule: Value) {
        self.moto.add_rule(rule).await;
    }

    pub async fn count(&self, action: &str) -> usize {
        self.moto.calls(Some(action)).await.len()
    }
}

fn configuration(site: &Site, provider: &str, pool: &str, label: &str) -> String {
    let comma = |keys: &str| if keys.is_empty() { String::new() } else { format!(", {keys}") };
    let instance = if label.contains("instance-types") || label.contains("fleet") || label.contains("instance-type:") {
        ""
    } else {
        ", instance-type: t3.medium"
    };
    let rate = if provider.contains("rate") { "" } else { ", rate: 1000" };
    let subnet = if pool.contains("subnet") { String::new() } else { format!(", subnet-id: {}", site.subnets[0]) };
    format!(
        "labels: [{{name: small}}]\ndiskimages: [{{name: debian, elements: [vm]}}]\nproviders:\n  - {{name: west, driver: aws, region-name: {REGION}{rate}, cloud-images: \
         [{{name: base, image-id: {}, username: worker}}]{}, pools: [{{name: main, security-group-id: {}{subnet}{}, \
         labels: [{{name: small, cloud-image: base, key-name: {KEY_NAME}{instance}{}}}]}}]}}\n",
        site.image,
        comma(provider),
        site.security_group,
        comma(pool),
        comma(label)
    )
}

pub fn order(node: &str, attempt: u32) -> Job {
    Job::Launch(Arc::new(launch_order("west", node, attempt)))
}

fn instance_id(id: &ExternalId) -> String {
    let ExternalId::Object(parts) = id else { panic!("{id} has no parts") };
    parts["instance"].as_str().unwrap().to_owned()
}

fn error(action: &str, code: &str, times: u32) -> Value {
    json!({"action": action, "times": times, "error": {"code": code}})
}

#[test]
fn an_instance_is_launched_and_deleted_with_its_volumes() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let mut harness = AwsHarness::start("", "", "volume-size: 20, volume-type: gp3").await;
        harness.provider.wait_for_refresh().await;
        let node = harness.launch("0000000001").await.unwrap();
        assert_eq!((node.private_ipv4.as_deref(), node.zone.as_deref()), (Some("127.77.1.4"), Some("us-west-2a")));
        assert_eq!((node.resources.get("L-1216C47A"), node.resources.get("L-7A658B76")), (2.0, 20.0));
        assert_eq!(harness.usage().await, (1, 1));
        assert_eq!(harness.delete(node.external_id).await, Ok(Outcome::Deleted));
        assert_eq!(harness.usage().await, (0, 0));
        // Deleting what does not exist is no error.
        let gone = ExternalId::text("i-0123456789abcdef0");
        assert_eq!(harness.delete(gone).await, Ok(Outcome::Deleted));
    });
}

#[test]
fn a_lost_response_makes_no_second_instance() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let mut harness = AwsHarness::start("", "", "").await;
        harness.rule(json!({"action": "RunInstances", "times": 1, "cut": "after"})).await;
        let node = harness.launch("0000000001").await.unwrap();
        assert_eq!((harness.usage().await.0, harness.count("RunInstances").await), (1, 2));
        // The same creation again, as by a launcher that crashed before it recorded the instance.
        let again = harness.launch("0000000001").await.unwrap();
        assert_eq!((again.external_id, harness.usage().await.0), (node.external_id, 1));
        // The next attempt is another creation.
        let next = harness.provider.run(order("0000000001", 2)).await.unwrap();
        assert!(matches!(next, Outcome::Launched(_)));
        assert_eq!(harness.usage().await.0, 2);
    });
}

#[test]
fn an_instance_of_an_earlier_process_is_found_by_its_tags() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let mut harness = AwsHarness::start("", "", "").await;
        let node = harness.launch("0000000001").await.unwrap();
        let order = LaunchOrder { may_exist: true, may_appear: true, ..launch_order("west", "0000000001", 7) };
        let found = harness.provider.run(Job::Launch(Arc::new(order))).await.unwrap();
        let Outcome::Launched(found) = found else { panic!("{found:?}") };
        assert_eq!((found.external_id, harness.count("RunInstances").await), (node.external_id, 1));
    });
}

#[test]
fn throttling_is_no_failed_attempt() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let mut harness = AwsHarness::start("", "", "").await;
        harness.provider.wait_for_refresh().await;
        harness.rule(error("RunInstances", "RequestLimitExceeded", 2)).await;
        harness.launch("0000000001").await.unwrap();
        let calls = harness.moto.calls(Some("RunInstances")).await;
        let pauses: Vec<f64> = calls.windows(2).map(|pair| pair[1].at_s - pair[0].at_s).collect();
        assert!(pauses.len() == 2 && pauses[0] > 0.9 && pauses[1] > 1.9, "{pauses:?}");
    });
}

#[test]
fn full_places_are_tried_in_turn_and_skipped_afterwards() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let moto = Moto::start().await;
        let site = moto.site().await;
        let pool = format!("subnet-ids: [{}, {}]", site.subnets[0], site.subnets[1]);
        let provider = AwsHarness::provider(&moto, &site, "", &pool, "use-spot: true, spot-fallback: on-demand");
        let mut harness = AwsHarness { ec2: Ec2::new(moto.base()), provider, moto, site };
        // No spot capacity in either subnet, and none on demand in the first.
        harness.rule(error("RunInstances", "InsufficientInstanceCapacity", 3)).await;
        let node = harness.launch("0000000001").await.unwrap();
        assert_eq!((node.zone.as_deref(), &node.node_properties["spot"]), (Some("us-west-2b"), &json!(false)));
        assert_eq!(harness.count("RunInstances").await, 4);
        // The full places are skipped.
        harness.launch("0000000002").await.unwrap();
        assert_eq!(harness.count("RunInstances").await, 5);
    });
}

#[test]
fn refusals_say_what_a_launch_does_next() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let mut harness = AwsHarness::start("", "", "").await;
        for (code, kind) in [
            ("VcpuLimitExceeded", "quota"),
            ("InsufficientFreeAddressesInSubnet", "quota"),
            ("InsufficientInstanceCapacity", "capacity"),
            ("InvalidGroup.NotFound", "denied"),
            ("UnauthorizedOperation", "denied"),
            ("IdempotentParameterMismatch", "failed"),
        ] {
            harness.rule(error("RunInstances", code, 1)).await;
            // A full cloud would refuse the next launch.
            harness.provider = AwsHarness::provider(&harness.moto, &harness.site, "", "", "");
            let refused = harness.launch("0000000001").await.unwrap_err();
            assert_eq!(refused.kind(), kind, "{code}: {refused}");
        }
    });
}

#[test]
fn an_instance_that_ends_while_it_starts_ends_its_attempt() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let mut harness = AwsHarness::start("", "", "").await;
        for (code, expected) in [
            ("Client.VolumeLimitExceeded", "quota"),
            ("Server.SpotInstanceTermination", "capacity"),
            ("Server.InternalError", "failed"),
        ] {
            let end = json!({"state": "terminated", "code": code, "message": "it ended", "times": 1});
            harness.moto.set_knobs(json!({"instances": {"end": end}})).await;
            // A full cloud would refuse the next launch.
            harness.provider = AwsHarness::provider(&harness.moto, &harness.site, "", "", "");
            let ended = harness.launch(code).await.unwrap_err();
            assert_eq!((ended.kind(), ended.to_string().contains("it ended")), (expected, true), "{code}: {ended}");
        }
    });
}

#[test]
fn a_batch_of_deletions_ends_although_one_instance_vanished() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let mut harness = AwsHarness::start("rate: 5", "", "").await;
        let mut ids = Vec::new();
        for number in 0..6 {
            ids.push(harness.launch(&format!("000000000{number}")).await.unwrap().external_id);
        }
        harness.moto.forget_instance(&instance_id(&ids[3])).await;
        for (number, id) in ids.into_iter().enumerate() {
            harness.provider.submit(number as u64, Job::Delete(id));
        }
        for _ in 0..6 {
            let (number, result) = harness.provider.wait_for_end().await;
            assert_eq!(result, Ok(Outcome::Deleted), "{number}");
        }
        // The first one is sent at once, and the others together: once with the one that vanished, and once without.
        assert_eq!((harness.usage().await.0, harness.count("TerminateInstances").await), (0, 3));
    });
}

#[test]
fn no_volume_of_an_image_with_two_devices_is_left() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let moto = Moto::start().await;
        let mut site = moto.site().await;
        site.image = image_with_two_devices(&moto).await;
        let provider = AwsHarness::provider(&moto, &site, "", "", "volume-size: 30");
        let mut harness = AwsHarness { ec2: Ec2::new(moto.base()), provider, moto, site };
        let node = harness.launch("0000000001").await.unwrap();
        assert_eq!(harness.usage().await, (1, 2));
        assert_eq!(harness.delete(node.external_id).await, Ok(Outcome::Deleted));
        assert_eq!(harness.usage().await, (0, 0));
    });
}

async fn image_with_two_devices(moto: &Moto) -> String {
    let ec2 = Ec2::new(moto.base());
    let zone = format!("{REGION}a");
    let volume = ec2.call("CreateVolume", &[("Size", "8"), ("AvailabilityZone", &zone)]).await.expect_ok();
    let volume = volume.find("volumeId").text().to_owned();
    let snapshot = ec2.call("CreateSnapshot", &[("VolumeId", &volume)]).await.expect_ok();
    ec2.call("DeleteVolume", &[("VolumeId", &volume)]).await.expect_ok();
    let snapshot = snapshot.find("snapshotId").text().to_owned();
    let parameters = [
        ("Name", "two-devices"),
        ("RootDeviceName", "/dev/sda1"),
        ("BlockDeviceMapping.1.DeviceName", "/dev/sda1"),
        ("BlockDeviceMapping.1.Ebs.SnapshotId", &snapshot),
        ("BlockDeviceMapping.2.DeviceName", "/dev/sdb"),
        ("BlockDeviceMapping.2.Ebs.SnapshotId", &snapshot),
        ("BlockDeviceMapping.2.Ebs.DeleteOnTermination", "false"),
    ];
    ec2.call("RegisterImage", &parameters).await.expect_ok().find("imageId").text().to_owned()
}

#[test]
fn reads_and_changes_are_spaced_apart() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let mut harness = AwsHarness::start("rate: 4", "", "").await;
        harness.provider.wait_for_refresh().await;
        harness.moto.forget_calls().await;
        for number in 0..4 {
            harness.provider.submit(number, order(&format!("000000000{number}"), 1));
            harness.provider.submit(10 + number, Job::List);
            harness.provider.submit(20 + number, Job::List);
        }
        for _ in 0..12 {
            harness.provider.wait_for_end().await.1.unwrap();
        }
        let calls = harness.moto.calls(None).await;
        let times = |action: &str| -> Vec<f64> {
            calls.iter().filter(|call| call.action == action).map(|call| call.at_s).collect()
        };
        let (changes, reads) = (times("RunInstances"), times("DescribeInstances"));
        let gaps: Vec<f64> = changes.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| *gap > 0.2), "{gaps:?}");
        // Reads do not wait for changes.
        assert!(reads.iter().filter(|at| **at < changes[3]).count() >= 8, "{changes:?} {reads:?}");
    });
}

#[test]
fn repetitions_after_errors_keep_the_rate() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        const LAUNCHES: u64 = 30;
        let mut harness = AwsHarness::start("rate: 10", "", "").await;
        harness.provider.wait_for_refresh().await;
        harness.rule(error("RunInstances", "InternalError", LAUNCHES as u32)).await;
        for number in 0..LAUNCHES {
            harness.provider.submit(number, order(&format!("00000001{number:02}"), 1));
        }
        for _ in 0..LAUNCHES {
            harness.provider.wait_for_end().await.1.unwrap();
        }
        let times: Vec<f64> = harness.moto.calls(Some("RunInstances")).await.iter().map(|call| call.at_s).collect();
        let span = times[times.len() - 1] - times[0];
        // 60 calls take 5.9 s, less the pause of one repetition.
        assert!(times.len() == 60 && span > 4.8, "{} calls in {span} s", times.len());
    });
}

#[test]
fn quotas_are_limits_and_refused_quotas_are_none() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let harness = AwsHarness::start("", "", "").await;
        harness.moto.set_quotas(json!({"applied": {"ec2": {"L-1216C47A": 4.0}, "ebs": {}}})).await;
        let moto = &harness.moto;
        let provider = AwsHarness::provider(moto, &harness.site, "", "", "");
        let facts = provider.wait_for_refresh().await;
        assert_eq!(facts.limits.get("L-1216C47A"), 4.0);
        let label = facts.launch_label(&"main".into(), &"small".into()).unwrap();
        let need = label.need.clone().unwrap();
        assert_eq!((need.get("L-1216C47A"), need.get("cores"), need.get("ram")), (2.0, 1.0, 4096.0));
        moto.set_quotas(json!({"denied": true})).await;
        let mut provider = AwsHarness::provider(moto, &harness.site, "", "", "");
        let facts = provider.wait_for_refresh().await;
        assert_eq!((facts.limits.get("L-1216C47A"), &facts.unavailable), (f64::INFINITY, &None));
        assert_eq!(*facts.refused_queries, ["limits"]);
        assert!(matches!(provider.run(order("0000000001", 1)).await, Ok(Outcome::Launched(_))));
    });
}

#[test]
fn limits_that_cannot_be_read_stop_no_launches() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let harness = AwsHarness::start("", "", "volume-size: 20, volume-type: gp3").await;
        let (moto, label) = (&harness.moto, "volume-size: 20, volume-type: gp3");
        moto.set_quotas(json!({"applied": {"ec2": {"L-1216C47A": 4.0}, "ebs": {}}})).await;
        // The permissions of Nodepool 11 do not name this call. The limits that the account has changed are known.
        moto.add_rule(error("ListAWSDefaultServiceQuotas", "AccessDeniedException", 100)).await;
        let facts = AwsHarness::provider(moto, &harness.site, "", "", label).wait_for_refresh().await;
        let limits = (facts.limits.get("L-1216C47A"), facts.limits.get("L-7A658B76"));
        assert_eq!((limits, &*facts.refused_queries), ((4.0, f64::INFINITY), &[][..]));
        moto.add_rule(error("ListServiceQuotas", "InternalServerException", 100)).await;
        moto.add_rule(error("DescribeVolumes", "UnauthorizedOperation", 100)).await;
        let mut provider = AwsHarness::provider(moto, &harness.site, "", "", label);
        let facts = provider.wait_for_refresh().await;
        assert_eq!((&facts.unavailable, &*facts.failed_queries), (&None, &["volumes", "limits"][..]));
        assert!(matches!(provider.run(order("0000000001", 1)).await, Ok(Outcome::Launched(_))));
    });
}

#[test]
fn an_unknown_type_puts_only_its_label_out_of_service() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let harness = AwsHarness::start("", "", "instance-type: t3.nope").await;
        let facts = harness.provider.wait_for_refresh().await;
        let label = facts.launch_label(&"main".into(), &"small".into()).unwrap();
        let reason = label.unavailable.as_ref().unwrap().reason();
        assert_eq!((reason, &facts.unavailable), ("instance type t3.nope does not exist", &None));
    });
}

#[test]
fn a_fleet_makes_its_template_when_a_launch_needs_it() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let fleet = "fleet: {instance-types: [t3.small, t3.medium], allocation-strategy: prioritized}";
        let mut harness = AwsHarness::start("", "", fleet).await;
        let node = harness.launch("0000000001").await.unwrap();
        assert_eq!(node.node_properties, json!({"fleet": true, "spot": false}).as_object().unwrap().clone());
        let templates = harness.ec2.call("DescribeLaunchTemplates", &[]).await.expect_ok();
        let name = templates.find("launchTemplateName").text().to_owned();
        // A template that another launcher deleted is made again.
        harness.ec2.call("DeleteLaunchTemplate", &[("LaunchTemplateName", &name)]).await.expect_ok();
        harness.launch("0000000002").await.unwrap();
        assert_eq!(harness.count("CreateLaunchTemplate").await, 2);
        // One that was used is not unused.
        let listed = harness.provider.run(Job::ListUnused(vec!["launch_templates"])).await.unwrap();
        let Outcome::Unused(unused) = listed else { panic!("{listed:?}") };
        assert_eq!(unused.found, []);
    });
}

#[test]
fn a_dedicated_host_is_recorded_before_its_instance_and_released_after_it() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let zones = format!("availability-zones: [{REGION}a, {REGION}b]");
        let mut harness = AwsHarness::start("", &zones, "dedicated-host: true").await;
        let node = harness.launch("0000000001").await.unwrap();
        let ExternalId::Object(parts) = &node.external_id else { panic!("{node:?}") };
        assert_eq!(parts.keys().collect::<Vec<_>>(), ["host", "instance"]);
        assert_eq!(harness.delete(node.external_id).await, Ok(Outcome::Deleted));
        let hosts = harness.ec2.call("DescribeHosts", &[]).await.expect_ok();
        let states: Vec<String> = hosts.all("state").iter().map(|state| state.text().to_owned()).collect();
        assert!(states.iter().all(|state| state == "released"), "{states:?}");
        assert_eq!(harness.usage().await.0, 0);
        // A host without an instance: the launch goes on with it, in its zone.
        let mut order = launch_order("west", "0000000002", 1);
        let zone = format!("{REGION}b");
        let parameters = [("InstanceType", "t3.medium"), ("Quantity", "1"), ("AvailabilityZone", &zone)];
        let host = harness.ec2.call("AllocateHosts", &parameters);
        let host = host.await.expect_ok().find("hostIdSet").child("item").text().to_owned();
        order.prior_instance = Some(ExternalId::Object(json!({"host": host}).as_object().unwrap().clone()));
        let launched = harness.provider.run(Job::Launch(Arc::new(order))).await.unwrap();
        let Outcome::Launched(node) = launched else { panic!("{launched:?}") };
        let ExternalId::Object(parts) = &node.external_id else { panic!("{node:?}") };
        assert_eq!(parts["host"], json!(host));
        let calls = harness.moto.calls(Some("RunInstances")).await;
        assert_eq!(calls.last().unwrap().parameters["Placement.AvailabilityZone"], json!(zone));
    });
}

#[test]
fn unattached_volumes_are_listed_with_their_node_and_deleted() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let mut harness = AwsHarness::start("", "", "").await;
        harness.launch("0000000001").await.unwrap();
        let parameters = [
            ("Size", "1"),
            ("AvailabilityZone", "us-west-2a"),
            ("TagSpecification.1.ResourceType", "volume"),
            ("TagSpecification.1.Tag.1.Key", "nodepool_node_id"),
            ("TagSpecification.1.Tag.1.Value", "0000000009"),
        ];
        harness.ec2.call("CreateVolume", &parameters).await.expect_ok();
        let listed = harness.provider.run(Job::ListUnused(vec!["volumes"])).await.unwrap();
        let Outcome::Unused(unused) = listed else { panic!("{listed:?}") };
        let [volume]: [CloudResource; 1] = unused.found.try_into().unwrap();
        assert_eq!(volume.node(), Some("0000000009"));
        assert_eq!(harness.provider.run(Job::DeleteUnused(volume)).await, Ok(Outcome::Deleted));
        assert_eq!(harness.usage().await, (1, 1));
    });
}

#[test]
fn a_failed_call_names_its_error() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let mut harness = AwsHarness::start("", "", "").await;
        let id = harness.launch("0000000001").await.unwrap().external_id;
        let message = "it is protected";
        let rule = json!({"action": "TerminateInstances", "times": 1, "error": {"code": "OperationNotPermitted", "message": message}});
        harness.rule(rule).await;
        let refused = harness.delete(id).await.unwrap_err();
        let detail = "OperationNotPermitted: it is protected".to_owned();
        assert_eq!(refused, CloudError::Failed { kind: FailureKind::Unknown, detail });
    });
}
