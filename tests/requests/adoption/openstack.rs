//! Adoption of booting servers of an OpenStack cloud.
//!
//! Tested in real time on the simulated cloud, and on a real one if OS_CLIENT_CONFIG_FILE and OS_CLOUD name it.

use testkit::in_process_launcher::on_real_time;
use testkit::openstack_harness::clouds;
use testkit::openstack_harness::harness::{CLOUD_TIMEOUT, server_of, with_launcher};
use testkit::wait;

#[test]
fn booting_servers_are_adopted_after_a_restart() {
    on_real_time(async {
        for cloud in clouds(&["--boot-time-s", "3"]).await {
            with_launcher(
                &cloud,
                |name| vec![cloud.provider(name)],
                async |harness| {
                    let id = harness.consumer.submit_labels(&["a", "a"]).await;
                    let mut known = Vec::new();
                    wait::until("the servers of the request to be recorded", CLOUD_TIMEOUT, async || {
                        let nodes = harness.consumer.nodes().await;
                        known =
                            nodes.iter().filter_map(|(_, node)| node.external_id.as_str().map(str::to_owned)).collect();
                        known.len() == 2
                    })
                    .await;
                    harness.restart(&cloud).await;
                    let nodes = harness.wait_until_fulfilled(&id).await;
                    assert_eq!(nodes.iter().map(server_of).collect::<Vec<_>>(), known);
                    assert_eq!(harness.client.servers_of(&harness.provider).await.len(), 2);
                    harness.accept_and_release(&id).await;
                    harness.wait_until_empty().await;
                },
            )
            .await;
        }
    });
}
