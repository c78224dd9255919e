//! Errors in the middle of jobs: calls that met another operation, lost answers, outages, and what is left afterwards.

use std::time::Duration;

use nodepool::actors::provider::jobs::Drain;
use nodepool_driver::job::{Job, LaunchOrder, Outcome};
use nodepool_model::records::ids::ExternalId;
use serde_json::{Value, json};
use testkit::in_process_launcher::on_real_time;
use testkit::provider_harness::launch_order;
use testkit::wait;

use crate::driver::{Harness, configuration, encode};

/// Errors that pass: the job repeats its call.
const PASSING: [&str; 7] = ["429", "500", "503", "html", "closed", "truncated", "409:AnotherOperationInProgress"];

async fn inject(harness: &Harness, kind: &str, action: &str) {
    harness.cloud.knobs(json!({"faults": [format!("{kind} action={action} times=1")]})).await;
}

#[test]
fn one_passing_error_of_any_call_does_not_fail_a_node() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        let creations = PASSING.iter().chain(&["lost-answer"]).map(|kind| ("vm.create", *kind));
        let lists = [("vm.list", "500"), ("vm.list", "truncated"), ("nic.list", "closed"), ("ip.list", "html")];
        for (number, (action, kind)) in creations.chain(lists).enumerate() {
            inject(&harness, kind, action).await;
            let launched = harness.launch(&format!("{number:010}")).await;
            assert!(launched.is_ok(), "{kind} at {action}: {launched:?}");
        }
        let created = harness.cloud.names("vms").await;
        assert_eq!(created.len(), PASSING.len() + 1 + lists.len(), "{created:?}");
    });
}

/// A node is deleted while the first call of each action has its fault.
fn assert_deletions_pass(faults: &[(&str, &str)]) {
    on_real_time(async {
        let flags = ["--leave-parts", "nic,ip,disk", "--nic-reserved-s", "1"];
        let mut harness = Harness::start(&flags, "", "", "").await;
        for (number, (action, kind)) in faults.iter().enumerate() {
            let name = format!("{number:010}");
            harness.launch(&name).await.unwrap();
            inject(&harness, kind, action).await;
            let deleted = harness.delete(&format!("np{name}")).await;
            assert_eq!(deleted, Ok(Outcome::Deleted), "{kind} at {action}");
            harness.assert_empty().await;
        }
    });
}

#[test]
fn one_passing_error_of_a_machine_does_not_fail_a_deletion() {
    assert_deletions_pass(&["closed", "truncated", "409:AnotherOperationInProgress"].map(|kind| ("vm.delete", kind)));
}

#[test]
fn one_passing_error_of_a_part_does_not_fail_a_deletion() {
    assert_deletions_pass(&[("nic.delete", "closed"), ("ip.delete", "500"), ("disk.delete", "lost-answer")]);
}

#[test]
fn one_passing_error_of_a_list_does_not_fail_a_deletion() {
    assert_deletions_pass(&[("vm.list", "500"), ("nic.list", "429"), ("disk.list", "truncated")]);
}

#[test]
fn a_conflict_is_repeated_until_the_other_operation_has_ended() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        harness.cloud.knobs(json!({"faults": ["OperationPreempted action=vm.create times=2"]})).await;
        harness.launch("0000000001").await.unwrap();
        assert_eq!(harness.cloud.calls("vm.create").await.len(), 3);
    });
}

#[test]
fn a_machine_of_an_earlier_process_is_used_also_if_it_appears_late() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        harness.launch("0000000001").await.unwrap();
        for order in [
            LaunchOrder { may_exist: true, ..launch_order("az", "0000000001", 1) },
            LaunchOrder { may_appear: true, ..launch_order("az", "0000000001", 1) },
            LaunchOrder {
                prior_instance: Some(ExternalId::text("np0000000001")),
                ..launch_order("az", "0000000001", 1)
            },
        ] {
            harness.launch_as(order).await.unwrap();
        }
        assert_eq!(harness.cloud.calls("vm.create").await.len(), 1);
        // Nothing appears, so a machine is created.
        let order = LaunchOrder { may_appear: true, ..launch_order("az", "0000000002", 1) };
        harness.launch_as(order).await.unwrap();
        assert_eq!(harness.cloud.calls("vm.create").await.len(), 2);
    });
}

#[test]
fn nothing_is_called_while_azure_wants_a_pause() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        harness.cloud.control("throttle?calls=1&retry_after_s=7").await;
        harness.launch("0000000001").await.unwrap();
        let calls = harness.cloud.calls_of_all_kinds().await;
        let at = |call: &Value| call["at_ms"].as_f64().unwrap();
        let refused = calls.iter().position(|call| call["status"] == 429).expect("a call was refused");
        let pause = at(&calls[refused + 1]) - at(&calls[refused]);
        assert!(pause >= 7000.0, "{pause} ms");
    });
}

#[test]
fn a_recorded_name_is_no_proof_of_ownership() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        harness.cloud.control("create?kind=vm&count=1&prefix=np0000000001").await;
        let prior_instance = Some(ExternalId::text("np0000000001"));
        let prior = LaunchOrder { prior_instance, ..launch_order("az", "0000000001", 1) };
        for order in [launch_order("az", "0000000001", 1), prior] {
            let error = harness.launch_as(order).await.unwrap_err();
            assert!(error.to_string().contains("another owner"), "{error}");
        }
        let deleted = harness.delete("np0000000001").await;
        assert_eq!(deleted.unwrap_err().kind(), "not-found");
        assert_eq!(harness.cloud.names("vms").await.len(), 1);
    });
}

#[test]
fn a_deletion_leaves_parts_with_similar_names_and_tags() {
    on_real_time(async {
        let flags = ["--leave-parts", "nic,ip,disk", "--nic-reserved-s", "1"];
        let mut harness = Harness::start(&flags, "", "", "").await;
        let provider = encode(r#"{"nodepool_provider_name": "az"}"#);
        let node = r#"{"nodepool_provider_name": "az", "nodepool_node_id": "0000000001", "nodepool_creation": "x"}"#;
        let node = encode(node);
        for other in [
            format!("disk&prefix=np0000000001_OsDisk_1_backup&tags={}", encode(r#"{"owner": "others"}"#)),
            "disk&prefix=np0000000001_disk1_x".to_owned(),
            format!("nic&prefix=np0000000001-nic-spare&tags={provider}"),
            format!("ip&prefix=np0000000001-v4-ip-reserved&tags={node}"),
        ] {
            harness.cloud.control(&format!("create?count=1&kind={other}")).await;
        }
        harness.launch("0000000001").await.unwrap();
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
        assert_eq!(harness.cloud.resources().await.len(), 4);
    });
}

#[test]
fn a_refused_list_of_disks_holds_up_deletions_alone() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        harness.launch("0000000001").await.unwrap();
        harness.cloud.knobs(json!({"faults": ["403 action=disk.list"]})).await;
        harness.provider.submit(1, Job::Delete(ExternalId::text("np0000000001")));
        harness.launch("0000000002").await.unwrap();
        harness.cloud.knobs(json!({"faults": []})).await;
        assert_eq!(harness.provider.wait_for_end().await, (1, Ok(Outcome::Deleted)));
    });
}

#[test]
fn a_pool_that_wants_more_addresses_accepts_an_older_machine() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        harness.launch("0000000001").await.unwrap();
        let wants_ipv6 = configuration("", "public-ipv6: true", "");
        harness.reopen(&wants_ipv6).await;
        let prior_instance = Some(ExternalId::text("np0000000001"));
        let order = LaunchOrder { prior_instance, ..launch_order("az", "0000000001", 1) };
        assert_eq!(harness.launch_as(order).await.unwrap().public_ipv6, None);
    });
}

#[test]
fn jobs_of_a_replaced_provider_end_when_its_credentials_are_refused() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        harness.launch("0000000001").await.unwrap();
        harness.cloud.knobs(json!({"delete_s": "600"})).await;
        harness.provider.submit(1, Job::Delete(ExternalId::text("np0000000001")));
        wait::until("the deletion", Duration::from_secs(60), async || {
            harness.cloud.calls("vm.delete").await.len() == 1
        })
        .await;
        harness.provider.handle.drain.do_send(Drain);
        harness.cloud.knobs(json!({"faults": ["AuthorizationFailed action=vm.list"]})).await;
        let (_, ended) = harness.provider.wait_for_end().await;
        assert!(ended.unwrap_err().to_string().contains("the provider was replaced"));
    });
}
