//! Interfaces, public IPs and disks of virtual machines: addresses, tags, leftovers and the order of deletions.

use serde_json::json;

use super::{
    Azure, NETWORK, NETWORK_VERSION, changed, disk_path, ip_configuration, ip_path, nic_path, refused, vm_body, vm_path,
};

#[test]
fn parts_have_tags_ids_and_addresses() {
    let mut azure = Azure::new(&["--address-s", "1", "--public-address-s", "2"]);
    let addresses = "/properties/networkProfile/networkInterfaceConfigurations/0/properties/ipConfigurations";
    let both = json!([ip_configuration("np1-v4", "IPv4"), ip_configuration("np1-v6", "IPv6")]);
    let vm = azure.put_vm("np1", &changed(vm_body("np1"), addresses, both)).json();
    let reference = &vm["properties"]["networkProfile"]["networkInterfaces"][0];
    let nic = azure.get(&nic_path("np1-nic")).json();
    assert_eq!((&nic["id"], &nic["tags"]), (&reference["id"], &json!({"part": "nic"})));
    assert_eq!(reference["properties"], json!({"primary": true, "deleteOption": "Delete"}));
    assert_eq!(nic["properties"]["virtualMachine"]["id"], vm["id"]);
    let first = &nic["properties"]["ipConfigurations"][0]["properties"];
    assert_eq!(first.get("privateIPAddress"), None);
    assert_eq!(first["publicIPAddress"]["properties"]["publicIPAddressVersion"], "IPv4");
    azure.wait(1.0);
    let nic = azure.get(&nic_path("np1-nic")).json();
    let address = |index: usize| nic["properties"]["ipConfigurations"][index]["properties"]["privateIPAddress"].clone();
    assert_eq!((address(0), address(1)), (json!("127.87.0.4"), json!("fd00:0:0:1::1")));
    assert_eq!(azure.get(&ip_path("np1-v4-ip")).json()["properties"].get("ipAddress"), None);
    azure.wait(1.0);
    let ip = azure.get(&ip_path("np1-v4-ip")).json();
    assert_eq!((&ip["properties"]["ipAddress"], &ip["tags"]), (&json!("127.88.0.4"), &json!({"part": "ip"})));
    assert_eq!(ip["properties"]["ipConfiguration"]["id"], nic["properties"]["ipConfigurations"][0]["id"]);
    assert_eq!(azure.get(&ip_path("np1-v6-ip")).json()["properties"]["ipAddress"], "fd00:0:0:2::2");
    let disk = azure.disks().remove(0);
    assert!(disk.starts_with("np1_OsDisk_1_"), "{disk}");
    assert_eq!(azure.get(&disk_path(&disk)).json()["managedBy"], vm["id"]);
    azure.knobs(json!({"nested_public_ip": "id"}));
    let nic = azure.get(&nic_path("np1-nic")).json();
    let nested = &nic["properties"]["ipConfigurations"][0]["properties"]["publicIPAddress"];
    assert_eq!(nested, &json!({"id": ip["id"]}));
}

#[test]
fn parts_may_appear_later_and_all_ipv6_addresses_may_be_one() {
    let mut azure = Azure::new(&["--parts-s", "1", "--boot-s", "3", "--ipv6-address", "::1"]);
    let addresses = "/properties/networkProfile/networkInterfaceConfigurations/0/properties/ipConfigurations";
    azure.put_vm("np1", &changed(vm_body("np1"), addresses, json!([ip_configuration("np1-v6", "IPv6")])));
    assert_eq!((azure.vms().len(), azure.nics().len()), (1, 0));
    azure.wait(1.0);
    let nic = azure.get(&nic_path("np1-nic")).json();
    assert_eq!(nic["properties"]["ipConfigurations"][0]["properties"]["privateIPAddress"], "::1");
}

#[test]
fn used_parts_cannot_be_deleted() {
    let mut azure = Azure::new(&[]);
    azure.create("np1");
    let disk = azure.disks().remove(0);
    assert_eq!(azure.delete(&nic_path("np1-nic")).error(), refused(400, "NicInUse"));
    assert_eq!(azure.delete(&ip_path("np1-v4-ip")).error(), refused(400, "PublicIPAddressCannotBeDeleted"));
    assert_eq!(azure.delete(&disk_path(&disk)).error(), refused(409, "OperationNotAllowed"));
    for absent in [nic_path("x"), ip_path("x"), disk_path("x"), super::image_path("x")] {
        let answer = azure.delete(&absent);
        assert_eq!((answer.status, answer.headers.len()), (204, 0));
    }
}

#[test]
fn a_half_deleted_vm_leaves_parts_that_go_in_order() {
    let mut azure = Azure::new(&["--leave-parts", "nic,ip,disk", "--leave-parts-every", "2"]);
    for name in ["np1", "np2"] {
        azure.create(name);
        azure.delete(&vm_path(name));
    }
    assert_eq!((azure.nics(), azure.ips()), (vec!["np2-nic".to_owned()], vec!["np2-v4-ip".to_owned()]));
    let disk = azure.disks().remove(0);
    assert_eq!(azure.get(&disk_path(&disk)).json().get("managedBy"), None);
    assert_eq!(azure.delete(&ip_path("np2-v4-ip")).error(), refused(400, "PublicIPAddressCannotBeDeleted"));
    let reserved = azure.delete(&nic_path("np2-nic"));
    assert_eq!(reserved.error(), refused(400, "NicReservedForAnotherVm"));
    assert!(reserved.text.contains("for 180 seconds"), "{}", reserved.text);
    azure.wait(180.0);
    assert_eq!(azure.delete(&nic_path("np2-nic")).status, 202);
    assert_eq!(azure.nics().len(), 0);
    assert_eq!(azure.delete(&ip_path("np2-v4-ip")).status, 202);
    assert_eq!(azure.delete(&disk_path(&disk)).status, 202);
    assert_eq!((azure.ips().len(), azure.disks().len()), (0, 0));
}

#[test]
fn a_vm_that_is_removed_by_hand_leaves_its_parts() {
    let mut azure = Azure::new(&["--nic-reserved-s", "10"]);
    azure.create("np1");
    azure.sim("POST", "/sim/remove-vm?vm=np1&delete=disk");
    assert_eq!((azure.vms().len(), azure.nics().len(), azure.ips().len(), azure.disks().len()), (0, 1, 1, 0));
    assert_eq!(azure.delete(&nic_path("np1-nic")).error(), refused(400, "NicReservedForAnotherVm"));
    let taken =
        changed(vm_body("np2"), "/properties/networkProfile/networkInterfaceConfigurations/0/name", json!("np1-nic"));
    assert_eq!(azure.put_vm("np2", &taken).error(), refused(400, "NicReservedForAnotherVm"));
    // The machine that the interface is reserved for gets it.
    azure.create("np1");
    assert_eq!((azure.nics().len(), azure.ips().len()), (1, 1));
    azure.delete(&vm_path("np1"));
    assert_eq!((azure.nics().len(), azure.ips().len()), (0, 0));
}

#[test]
fn resources_of_others_are_created_in_bulk() {
    let mut azure = Azure::new(&[]);
    for kind in ["vm", "nic", "ip", "disk", "image"] {
        let created = azure.sim("POST", &format!("/sim/create?kind={kind}&count=3&tags=%7B%22a%22:%22b%22%7D"));
        assert_eq!(created["created"], 3);
    }
    assert_eq!(azure.sim("POST", "/sim/create?kind=nic&count=3")["created"], 0);
    let nics = azure.get(&format!("{NETWORK}/networkInterfaces/?api-version={NETWORK_VERSION}")).json();
    assert_eq!(nics["value"][2]["tags"], json!({"a": "b"}));
    let state = azure.sim("GET", "/sim/state");
    assert_eq!((&state["nics"], &state["vms"]), (&json!({"free": 3}), &json!({"Succeeded": 3})));
    azure.sim("POST", "/sim/vm?vm=foreign-0&state=Migrating&power=stopped&code=Code");
    assert_eq!(azure.get(&vm_path("foreign-0")).json()["properties"]["provisioningState"], "Migrating");
    azure.delete(&vm_path("foreign-0"));
    azure.delete(&nic_path("foreign-1"));
    assert_eq!((azure.vms().len(), azure.nics().len()), (2, 2));
}
