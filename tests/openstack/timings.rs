//! Timings of the calls to a cloud, which are sent to the statsd server in clouds.yaml. Runs on the simulated cloud and
//! on a real one.

use std::path::Path;

use serde_json::json;
use testkit::in_process_launcher::on_real_time;
use testkit::openstack_harness::harness::{CLOUD_TIMEOUT, with_launcher};
use testkit::openstack_harness::{TestCloud, clouds};
use tokio::net::UdpSocket;

/// Adds a statsd server of this cloud to clouds.yaml, and a general one that must not be used.
fn with_statsd(cloud: &mut TestCloud, folder: &Path, statsd: &UdpSocket) {
    let (name, port) = (cloud.name.clone(), statsd.local_addr().unwrap().port());
    cloud.copy_clouds_yaml(folder, |file| {
        file["metrics"] = json!({"statsd": {"prefix": "of.all", "host": "nowhere.invalid"}});
        file["clouds"][name]["metrics"] = json!({"statsd": {"host": "127.0.0.1", "port": port, "prefix": "of.one"}});
    });
}

#[test]
fn statsd_receives_timings_of_each_kind_of_call() {
    on_real_time(async {
        for mut cloud in clouds(&[]).await {
            let (folder, statsd) = (tempfile::tempdir().unwrap(), UdpSocket::bind("127.0.0.1:0").await.unwrap());
            with_statsd(&mut cloud, folder.path(), &statsd);
            with_launcher(
                &cloud,
                |name| vec![cloud.provider(name)],
                async |harness| {
                    let (id, _) = harness.obtain_nodes(&["a"]).await;
                    harness.accept_and_release(&id).await;
                    harness.wait_until_empty().await;
                },
            )
            .await;
            let mut wanted = vec![
                "of.one.identity.POST.tokens.201:1|c",
                "of.one.identity.POST.tokens.attempted:1|c",
                "of.one.identity.GET.discovery.200:1|c",
                "of.one.identity.GET.discovery.attempted:1|c",
                "of.one.compute.GET.flavors_detail.200:1|c",
                "of.one.compute.GET.flavors_detail.attempted:1|c",
                "of.one.compute.POST.servers.202:1|c",
                "of.one.compute.GET.servers_detail.200:1|c",
                "of.one.compute.DELETE.server.204:1|c",
            ];
            let (mut buffer, mut is_timed) = ([0; 2048], false);
            while !wanted.is_empty() || !is_timed {
                let received = tokio::time::timeout(CLOUD_TIMEOUT, statsd.recv(&mut buffer)).await;
                let length = received.unwrap_or_else(|_| panic!("{}: not received: {wanted:?}", cloud.name)).unwrap();
                let datagram = std::str::from_utf8(&buffer[..length]).unwrap();
                assert!(datagram.lines().all(|line| line.starts_with("of.one.")), "{datagram}");
                wanted.retain(|line| !datagram.lines().any(|sent| sent == *line));
                is_timed |= datagram
                    .lines()
                    .any(|line| line.starts_with("of.one.compute.POST.servers.202:") && line.ends_with("|ms"));
            }
        }
    });
}
