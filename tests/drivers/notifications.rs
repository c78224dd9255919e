//! Notifications: a driver is notified when its nodes are reused or deleted outside its own jobs.
//!
//! The launcher runs in the test's process, in memory and on paused time.

use std::sync::Arc;

use nodepool_driver::job::Notification;
use nodepool_model::records::request::RequestState;
use nodepool_zk::paths;
use testkit::in_process_launcher::{Consumer, InProcessDaemon, on_paused_time, until, zookeeper};
use testkit::instant_driver::{InstantDriver, Notifications, YAML};

#[test]
fn a_driver_is_notified_of_reused_and_deleted_nodes() {
    on_paused_time(async {
        let (zookeeper, received) = (zookeeper(), Notifications::default());
        let consumer = Consumer::of(&zookeeper);
        let mut process = InProcessDaemon::new(YAML);
        Arc::get_mut(&mut process.shared).unwrap().drivers = Some(Box::new(InstantDriver(received.clone())));
        process.run(&zookeeper);
        until("the pool to be registered", async || consumer.count("/nodepool/components/pool").await == 1).await;

        let first = consumer.submit_labels(&["a"]).await;
        let node = consumer.wait_for_end(&first).await.nodes[0].clone();
        consumer.zk.delete(&paths::request(&first), -1).await.unwrap();
        until("the node to be idle", async || consumer.ready_nodes().await == 1).await;
        assert_eq!(*received.lock().unwrap(), []);
        let second = consumer.submit_labels(&["a"]).await;
        let request = consumer.wait_for_end(&second).await;
        assert_eq!((request.state, &request.nodes[0]), (RequestState::Fulfilled, &node));
        let used = consumer.accept(&second).await;
        consumer.use_and_release(used).await;
        let all = [Notification::NodeReused(node.clone()), Notification::NodeDeleted(node.clone())];
        until("both notifications to be received", async || *received.lock().unwrap() == all).await;
    });
}
