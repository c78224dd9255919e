//! Long operations: styles, statuses, failures and cancellation.

use serde_json::json;

use super::{Azure, changed, disk_path, nic_path, refused, vm_body, vm_path};

#[test]
fn the_style_knob_chooses_the_headers() {
    let mut azure = Azure::new(&["--poll-after-s", "7"]);
    for (style, has_async, has_location) in [("async", true, false), ("location", false, true), ("both", true, true)] {
        azure.knobs(json!({"operation_style": style}));
        azure.create("np1");
        let deleted = azure.delete(&vm_path("np1"));
        assert_eq!(!deleted.header("Azure-AsyncOperation").is_empty(), has_async, "{style}");
        assert_eq!(!deleted.header("Location").is_empty(), has_location, "{style}");
        assert_eq!(deleted.header("Retry-After"), "7");
        azure.vms();
    }
}

#[test]
fn a_location_answers_202_and_then_the_resource_without_status() {
    let mut azure = Azure::new(&["--operation-style", "location", "--boot-s", "2", "--delete-s", "2"]);
    let created = azure.create("np1");
    let url = created.header("Location").strip_prefix("http://api").unwrap().to_owned();
    let running = azure.get(&url);
    assert_eq!((running.status, running.text.as_str(), running.header("Retry-After")), (202, "", "1"));
    assert_eq!(running.header("Location"), created.header("Location"));
    azure.wait(2.0);
    let done = azure.get(&url);
    assert_eq!((done.status, &done.json()["name"], done.json().get("status")), (200, &json!("np1"), None));
    let deleted = azure.delete(&vm_path("np1"));
    let url = deleted.header("Location").strip_prefix("http://api").unwrap().to_owned();
    azure.wait(2.0);
    assert_eq!(azure.get(&url).status, 204);
}

#[test]
fn statuses_before_the_end_are_those_of_the_knob() {
    let mut azure = Azure::new(&["--boot-s", "10", "--operation-statuses", "InProgress,Updating"]);
    let created = azure.create("np1");
    assert_eq!(azure.operation(&created)["status"], "InProgress");
    azure.wait(6.0);
    assert_eq!(azure.operation(&created)["status"], "Updating");
    azure.wait(4.0);
    assert_eq!(azure.operation(&created)["status"], "Succeeded");
}

#[test]
fn an_accepted_creation_fails_with_its_reason() {
    let fault = "AllocationFailed in=operation times=1 size=Standard_D2s_v3 zone=1";
    let mut azure = Azure::new(&["--fault", fault]);
    azure.create("np0");
    let created = azure.put_vm("np1", &changed(vm_body("np1"), "/zones", json!(["1"])));
    assert_eq!(created.status, 201);
    let operation = azure.operation(&created);
    assert_eq!((&operation["status"], &operation["error"]["code"]), (&json!("Failed"), &json!("AllocationFailed")));
    let vm = azure.get(&format!("{}&$expand=instanceView", vm_path("np1"))).json();
    assert_eq!(vm["properties"]["provisioningState"], "Failed");
    let status = &vm["properties"]["instanceView"]["statuses"][0];
    assert_eq!(status["code"], "ProvisioningState/failed/AllocationFailed");
    assert!(status["message"].as_str().unwrap().starts_with("Allocation failed."));
    assert_eq!(azure.delete(&nic_path("np1-nic")).error(), refused(400, "NicReservedForAnotherVm"));
    assert_eq!(azure.sim("GET", "/sim/state")["counters"]["failures_by_code"], json!({"AllocationFailed": 1}));
    let again = azure.put_vm("np1", &changed(vm_body("np1"), "/zones", json!(["1"])));
    assert_eq!((again.status, &again.json()["properties"]["provisioningState"]), (200, &json!("Updating")));
    assert_eq!(azure.get(&vm_path("np1")).json()["properties"]["provisioningState"], "Succeeded");
}

#[test]
fn a_failed_creation_may_leave_only_parts_or_nothing() {
    let mut azure = Azure::new(&[
        "--failed-creation",
        "parts",
        "--fault",
        "InternalExecutionError in=operation action=vm.create times=2",
    ]);
    azure.create("np1");
    assert_eq!((azure.vms().len(), azure.nics().len(), azure.ips().len(), azure.disks().len()), (0, 1, 1, 1));
    assert_eq!(azure.delete(&nic_path("np1-nic")).error(), refused(400, "NicReservedForAnotherVm"));
    azure.knobs(json!({"failed_creation": "nothing"}));
    azure.create("np2");
    assert_eq!((azure.vms().len(), azure.nics().len(), azure.disks().len()), (0, 1, 1));
    azure.create("np3");
    assert_eq!(azure.vms(), ["np3"]);
}

#[test]
fn a_deletion_preempts_the_creation() {
    let mut azure = Azure::new(&["--boot-s", "100", "--delete-s", "1"]);
    let created = azure.create("np1");
    azure.delete(&vm_path("np1"));
    let operation = azure.operation(&created);
    assert_eq!((&operation["status"], &operation["error"]["code"]), (&json!("Canceled"), &json!("OperationPreempted")));
    azure.wait(1.0);
    assert!(azure.vms().is_empty());
    azure.create("np1");
    azure.wait(99.0);
    assert_eq!(azure.get(&vm_path("np1")).json()["properties"]["provisioningState"], "Creating");
}

#[test]
fn a_failed_deletion_leaves_the_resource() {
    let mut azure = Azure::new(&["--fault", "InternalExecutionError in=operation method=DELETE times=2"]);
    azure.create("np1");
    let deleted = azure.delete(&vm_path("np1"));
    assert_eq!(azure.operation(&deleted)["error"]["code"], "InternalExecutionError");
    assert_eq!(azure.get(&vm_path("np1")).json()["properties"]["provisioningState"], "Failed");
    azure.sim("POST", "/sim/create?kind=disk&prefix=d");
    azure.delete(&disk_path("d"));
    assert_eq!(azure.get(&disk_path("d")).json()["properties"]["provisioningState"], "Failed");
    azure.delete(&disk_path("d"));
    azure.delete(&vm_path("np1"));
    assert_eq!((azure.vms().len(), azure.disks().len()), (0, 0));
}
