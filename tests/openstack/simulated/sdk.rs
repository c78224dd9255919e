//! openstacksdk, the library of Nodepool 11, on the simulated cloud: it uses all services, as on any other cloud. Needs
//! the Python environment of `tests/run`.

use std::time::Duration;

use super::start;
use serde_json::json;
use testkit::real::{self, python, python::Interpreter};

#[tokio::test]
async fn openstacksdk_uses_the_simulated_cloud_like_any_other() {
    if real::skipped() {
        return;
    }
    let (simulated, _cloud) = start(&["--boot-time-s", "0.2", "--delete-time-s", "0.2"]).await;
    let file = simulated.clouds_yaml();
    for name in ["simulated", "simulated-appcred"] {
        let arguments = [name, file.to_str().expect("a temporary file has a plain name")];
        let report =
            python::run(Interpreter::Reference, "openstack_cloud.py", &arguments, Duration::from_secs(120)).await;
        let expected = json!({
            "limits": [100, 400, 819_200], "volume_limits": 100, "flavor": [2, 4096], "image": "active",
            "zones": ["nova"], "server": ["ACTIVE", "0000000042", true, ""], "listed": 1, "floating_ip": [1, "ACTIVE"],
            "ports": ["ACTIVE"], "console": true, "deleted": true, "left": [0, 0], "deleted_again": false,
            "uploaded": ["active", "0000000007", 20], "image_deleted": true, "unknown_flavor": true,
        });
        assert_eq!(report, [expected]);
    }
    let state = simulated.state().await;
    assert_eq!(
        (&state["servers"], &state["floating_ips"], &state["double_creates"]),
        (&json!(0), &json!(0), &json!(0))
    );
}
