//! Unusually large trees on Apache ZooKeeper: the mirror reads them and remains usable.

use bytes::Bytes;
use nodepool_zk::Zk;
use nodepool_zk::client::{ConnectOptions, connect};
use nodepool_zk::mirror::mirror::Mirror;
use testkit::real;
use zookeeper_server::types::{CreateMode, Op};

/// Number of directories whose names make a reply of about 2 MB, twice ZooKeeper's maximum for a request.
const DIRECTORIES: usize = 100_000;

async fn connection() -> Zk {
    let server = real::zookeeper::shared().await;
    let address = server.chroot("huge").await;
    let (hosts, chroot) = address.split_once('/').expect("a chroot follows the address");
    let (host, port) = hosts.rsplit_once(':').expect("an address has a port");
    let mut options = ConnectOptions::plain(host, port.parse().expect("a port is a number"));
    options.chroot = format!("/{chroot}");
    connect(options).await.expect("the shared server replies")
}

#[test]
fn a_child_list_larger_than_a_request_may_be_is_read() {
    if real::skipped() {
        return;
    }
    actix_rt::System::new().block_on(async {
        let zk = connection().await;
        for path in ["/nodepool", "/nodepool/requests-lock", "/nodepool/nodes"] {
            zk.create(path, Bytes::new(), CreateMode::Persistent).await.unwrap();
        }
        let numbers: Vec<usize> = (0..DIRECTORIES).collect();
        let batches = numbers.chunks(2000).map(|batch| {
            let path = |number: &usize| format!("/nodepool/requests-lock/200-{number:010}");
            zk.multi(
                batch.iter().map(|number| Op::create(path(number), Bytes::new(), CreateMode::Persistent)).collect(),
            )
        });
        for batch in batches.collect::<Vec<_>>() {
            batch.await.unwrap();
        }
        // A value of the maximum size that is not a record.
        let blob = Bytes::from(vec![b'['; 1_000_000]);
        zk.create("/nodepool/nodes/0000000000", blob, CreateMode::Persistent).await.unwrap();

        let mirror = Mirror::start(zk.clone(), &tokio::runtime::Handle::current()).await.unwrap();
        let snapshot = mirror.snapshot();
        assert_eq!(snapshot.request_locks().count(), DIRECTORIES);
        assert_eq!((snapshot.node_count(), snapshot.unreadable().count()), (0, 1));
        let (_, reason) = snapshot.unreadable().next().unwrap();
        assert!(reason.len() < 300, "the reason is short: {reason}");
    });
}
