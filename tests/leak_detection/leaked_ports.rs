//! Leaked ports of the fake cloud: listed, and deleted after two listings.

use std::sync::Arc;

use nodepool::actors::telemetry::samples::SampleSink;
use nodepool_driver::error::CloudError;
use nodepool_driver::job::{Job, Outcome};
use nodepool_model::records::time::Seconds;
use testkit::in_process_launcher::fake_cloud::small_label_configuration;
use testkit::in_process_launcher::{InProcessDaemon, on_paused_time, started_as, until};
use testkit::provider_harness::ProviderHarness;

#[test]
fn leaked_ports_are_deleted_after_two_listings() {
    on_paused_time(async {
        let (sink, mut samples) = SampleSink::channel();
        let mut process = InProcessDaemon::new(&small_label_configuration("    port-cleanup-interval: 2\n", "", ""));
        Arc::get_mut(&mut process.shared).unwrap().samples = sink;
        let (_consumer, _process) = started_as(process).await;
        let mut counted = 0.0;
        until("both ports to be counted", async || {
            while let Ok(sample) = samples.try_recv() {
                if sample.name == "nodepool.provider.lab.leaked.ports" {
                    counted += sample.value;
                }
            }
            counted == 2.0
        })
        .await;
    });
}

#[test]
fn unused_ports_are_listed_until_they_are_deleted() {
    testkit::provider_harness::on_paused_time(async {
        let mut provider =
            ProviderHarness::of_config(&small_label_configuration("    port-cleanup-interval: 7\n", "", ""));
        let kinds = provider.facts().launch_config.as_ref().unwrap().resource_kinds.clone();
        assert_eq!(kinds.iter().map(|kind| (kind.name, kind.interval)).collect::<Vec<_>>(), [("ports", Seconds(7.0))]);
        let list = async |provider: &mut ProviderHarness| {
            let Ok(Outcome::Unused(listing)) = provider.run(Job::ListUnused(vec!["ports"])).await else {
                panic!("the listing failed")
            };
            assert!(listing.failed.is_empty(), "{listing:?}");
            listing.found
        };
        let found = list(&mut provider).await;
        assert_eq!(found.len(), 2);
        for port in found {
            assert_eq!(provider.run(Job::DeleteUnused(port.clone())).await, Ok(Outcome::Deleted));
            let again = provider.run(Job::DeleteUnused(port)).await;
            assert!(matches!(again, Err(CloudError::NotFound(_))), "{again:?}");
        }
        assert!(list(&mut provider).await.is_empty());
    });
}
