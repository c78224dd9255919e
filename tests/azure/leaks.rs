//! Parts that a machine leaves: the driver lists and deletes them, and waits while an interface is reserved.

use nodepool_driver::cloud_resource::CloudResource;
use nodepool_driver::job::{Job, Outcome};
use testkit::in_process_launcher::on_real_time;

use crate::driver::Harness;

async fn unused(harness: &mut Harness) -> Vec<CloudResource> {
    match harness.provider.run(Job::ListUnused(vec!["nics", "pips", "disks"])).await.unwrap() {
        Outcome::Unused(unused) => unused.found,
        other => panic!("{other:?}"),
    }
}

#[test]
fn parts_of_a_vanished_machine_are_found_with_their_node_and_deleted() {
    on_real_time(async {
        let mut harness = Harness::start(&["--nic-reserved-s", "6"], "", "", "").await;
        harness.launch("0000000001").await.unwrap();
        assert_eq!(unused(&mut harness).await, Vec::new());
        harness.cloud.control("remove-vm?vm=np0000000001").await;
        let found = unused(&mut harness).await;
        assert_eq!(found.iter().map(|one| one.kind).collect::<Vec<_>>(), ["nics", "pips", "disks"]);
        for resource in found {
            // The disk has no tags of its own.
            assert_eq!(resource.node(), Some("0000000001"), "{resource:?}");
            assert_eq!(harness.provider.run(Job::DeleteUnused(resource)).await, Ok(Outcome::Deleted));
        }
        harness.assert_empty().await;
    });
}

#[test]
fn a_deletion_also_deletes_what_azure_leaves() {
    on_real_time(async {
        let flags = ["--leave-parts", "nic,ip,disk", "--nic-reserved-s", "3"];
        let mut harness = Harness::start(&flags, "", "", "").await;
        harness.launch("0000000001").await.unwrap();
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
        harness.assert_empty().await;
    });
}
