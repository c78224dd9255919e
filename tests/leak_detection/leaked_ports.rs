//! Leaked ports of the fake cloud: deleted after two listings, unless they exceed the budget.

use std::sync::Arc;

use nodepool::actors::telemetry::samples::SampleSink;
use nodepool_driver::job::{Job, Outcome};
use nodepool_model::config::unused_resources::CleanMode;
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
fn ports_are_kept_after_one_listing_or_if_too_many() {
    testkit::provider_harness::on_paused_time(async {
        let mut provider =
            ProviderHarness::of_config(&small_label_configuration("    port-cleanup-interval: 7\n", "", ""));
        assert_eq!(provider.facts().launch_config.as_ref().unwrap().unused_resources.ports, Some(Seconds(7.0)));
        let clean = async |provider: &mut ProviderHarness, ports: bool, mode: CleanMode| {
            let Ok(Outcome::CleanedUnused(done)) = provider.run(Job::CleanUnused { ports, mode }).await else {
                panic!("the clean-up failed")
            };
            assert!(done.failed.is_empty(), "{done:?}");
            done
        };
        let delete_unused = async |provider: &mut ProviderHarness, ports: bool, budget: usize| {
            let done = clean(provider, ports, CleanMode::Delete { budget }).await;
            (done.deleted.get("ports").copied(), done.exceeded.get("ports").copied())
        };
        assert_eq!(delete_unused(&mut provider, true, 5).await, (None, None), "the first listing");
        assert_eq!(delete_unused(&mut provider, true, 1).await, (None, Some(2)));
        assert_eq!(delete_unused(&mut provider, false, 5).await, (None, None));
        assert_eq!(clean(&mut provider, true, CleanMode::DryRun).await.unused["ports"].len(), 2);
        assert_eq!(delete_unused(&mut provider, true, 5).await, (Some(2), None));
        assert_eq!(delete_unused(&mut provider, true, 5).await, (None, None));
    });
}
