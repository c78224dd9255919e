//! Virtual machines: creation, validation, lists and deletion.

use serde_json::{Value, json};

use super::{Azure, COMPUTE, VM_VERSION, changed, refused, vm_body, vm_path};

#[test]
fn a_vm_is_creating_then_succeeded() {
    let mut azure = Azure::new(&["--boot-s", "5"]);
    let created = azure.create("np1");
    assert_eq!(created.json()["properties"]["provisioningState"], "Creating");
    assert_eq!((created.header("Location"), created.header("Retry-After")), ("", "1"));
    assert_eq!(azure.operation(&created)["status"], "InProgress");
    let view = azure.get(&format!("{}&$expand=instanceView", vm_path("np1"))).json();
    let codes = |view: &Value| -> Vec<String> {
        let statuses = view["properties"]["instanceView"]["statuses"].as_array().unwrap();
        statuses.iter().map(|status| status["code"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(codes(&view), ["ProvisioningState/creating"]);
    azure.wait(5.0);
    let operation = azure.operation(&created);
    assert_eq!(operation["status"], "Succeeded");
    assert!(operation["endTime"].is_string() && operation.get("error").is_none());
    let view = azure.get(&format!("{}&$expand=instanceView", vm_path("NP1"))).json();
    assert_eq!(codes(&view), ["ProvisioningState/succeeded", "PowerState/running"]);
    assert_eq!(view["properties"]["provisioningState"], "Succeeded");
    assert_eq!(view["properties"]["storageProfile"]["osDisk"]["diskSizeGB"], 30);
    assert_eq!(view["tags"]["nodepool_node_id"], "np1");
}

#[test]
fn invalid_bodies_are_refused() {
    let mut azure = Azure::new(&[]);
    let (os, disk) = ("/properties/osProfile", "/properties/storageProfile");
    let nic = "/properties/networkProfile/networkInterfaceConfigurations/0";
    let address = format!("{nic}/properties/ipConfigurations/0/properties");
    for (pointer, value, status, code) in [
        ("/location", json!("mars"), 400, "LocationNotAvailableForResourceType"),
        ("/location", Value::Null, 400, "LocationRequired"),
        ("/zones", json!(["4"]), 400, "AvailabilityZoneNotSupported"),
        ("/tags", json!({"a/b": "c"}), 400, "InvalidTagNameCharacters"),
        ("/properties/hardwareProfile/vmSize", json!("Standard_Q1"), 400, "InvalidParameter"),
        ("/properties/userData", json!("no base 64"), 400, "InvalidParameter"),
        ("/properties/priority", json!("Low price"), 400, "InvalidParameter"),
        (&format!("{os}/customData"), json!("%"), 400, "InvalidParameter"),
        (&format!("{os}/adminUsername"), json!("root"), 400, "InvalidParameter"),
        (&format!("{os}/computerName"), Value::Null, 400, "InvalidParameter"),
        (&format!("{os}/adminPassword"), json!("lower"), 400, "InvalidParameter"),
        (&format!("{os}/linuxConfiguration/disablePasswordAuthentication"), json!(false), 400, "InvalidParameter"),
        (&format!("{os}/linuxConfiguration/ssh/publicKeys/0/path"), json!("/root/x"), 400, "InvalidParameter"),
        (&format!("{os}/linuxConfiguration/ssh/publicKeys/0/keyData"), json!("x"), 400, "InvalidParameter"),
        (&format!("{disk}/osDisk/createOption"), json!("Attach"), 400, "InvalidParameter"),
        (&format!("{disk}/osDisk/diskSizeGB"), json!(10), 400, "InvalidParameter"),
        (&format!("{disk}/imageReference/sku"), json!("11"), 404, "PlatformImageNotFound"),
        (&format!("{disk}/imageReference"), json!({"id": super::image_path("x")}), 404, "ImageNotFound"),
        (&format!("{address}/subnet/id"), json!("/subscriptions/x"), 400, "InvalidResourceReference"),
        (
            &format!("{address}/publicIPAddressConfiguration/properties"),
            json!({}),
            400,
            "StandardSkuPublicIPAddressesMustBeStatic",
        ),
        ("/properties/networkProfile/networkApiVersion", Value::Null, 400, "InvalidParameter"),
        (&format!("{nic}/sku"), json!({}), 400, "InvalidRequestContent"),
    ] {
        let answer = azure.put_vm("np1", &changed(vm_body("np1"), pointer, value));
        assert_eq!(answer.error(), refused(status, code), "{pointer}: {}", answer.text);
    }
    let path = vm_path("np1").replace(VM_VERSION, "2023-03-01");
    let answer = azure.call("PUT", &path, &vm_body("np1"));
    assert_eq!(answer.error(), refused(400, "InvalidRequestContent"));
    assert!(answer.text.contains("Could not find member 'tags'"), "{}", answer.text);
    let text = azure.token.clone();
    let header = format!("Bearer {text}");
    let answer = azure.send("PUT", &vm_path("np1"), &[("authorization", &header)], b"{");
    assert_eq!(answer.error(), refused(400, "InvalidRequestContent"));
    assert!(azure.vms().is_empty());
}

#[test]
fn images_of_galleries_and_windows_have_their_own_rules() {
    let flags = ["--shared-image", "shared/one", "--community-image", "public/two", "--gallery-image", "own/three"];
    let mut azure = Azure::new(&flags);
    let gallery = format!("{COMPUTE}/galleries/own/images/three/versions/1.0.0");
    for (index, reference) in [
        json!({"sharedGalleryImageId": "/SharedGalleries/shared/Images/one"}),
        json!({"communityGalleryImageId": "/CommunityGalleries/public/Images/two/Versions/1.2.3"}),
        json!({"id": gallery}),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("np{index}");
        let body = changed(vm_body(&name), "/properties/storageProfile/imageReference", reference);
        assert_eq!(azure.put_vm(&name, &body).status, 201);
    }
    let unknown = json!({"sharedGalleryImageId": "/SharedGalleries/shared/Images/x"});
    let body = changed(vm_body("np9"), "/properties/storageProfile/imageReference", unknown);
    assert_eq!(azure.put_vm("np9", &body).error(), refused(404, "GalleryImageNotFound"));
    let windows = json!({"publisher": "MicrosoftWindowsServer", "offer": "WindowsServer", "sku": "2022-datacenter",
        "version": "latest"});
    let body = changed(vm_body("np9"), "/properties/storageProfile/imageReference", windows);
    let profile = |name: &str| json!({"computerName": name, "adminUsername": "zuul", "adminPassword": "Abcdefg1"});
    let long = changed(body.clone(), "/properties/osProfile", profile("a-name-of-16-chr"));
    assert_eq!(azure.put_vm("np9", &long).error(), refused(400, "InvalidParameter"));
    let answer = azure.put_vm("np9", &changed(body, "/properties/osProfile", profile("np9")));
    assert_eq!(answer.status, 201);
    assert!(!answer.text.contains("Abcdefg1"));
    let history = azure.sim("GET", "/sim/history?action=vm.create");
    assert!(history["calls"][4]["body"].is_object() && !history.to_string().contains("Abcdefg1"));
}

#[test]
fn a_repeated_put_must_not_change_fixed_properties() {
    let mut azure = Azure::new(&[]);
    azure.create("np1");
    let again = azure.put_vm("np1", &changed(vm_body("np1"), "/tags", json!({"new": "tag"})));
    assert_eq!((again.status, &again.json()["tags"]), (200, &json!({"new": "tag"})));
    let other = changed(vm_body("np1"), "/properties/osProfile/computerName", json!("other"));
    let answer = azure.put_vm("np1", &other);
    assert_eq!(answer.error(), refused(409, "PropertyChangeNotAllowed"));
    assert_eq!(answer.json()["error"]["target"], "osProfile.computerName");
    let moved = azure.put_vm("np1", &changed(vm_body("np1"), "/location", json!("westus2")));
    assert_eq!(moved.error(), refused(409, "InvalidResourceLocation"));
    let patched = azure.call("PATCH", &vm_path("np1"), &json!({"tags": {"a": "b"}}));
    assert_eq!(patched.json()["tags"], json!({"a": "b"}));
    assert_eq!(azure.sim("GET", "/sim/state")["counters"]["double_creations"], 0);
}

#[test]
fn a_conditional_put_leaves_an_existing_vm_as_it_is() {
    let mut azure = Azure::new(&[]);
    let authorization = format!("Bearer {}", azure.token);
    let headers = [("authorization", authorization.as_str()), ("if-none-match", "*")];
    let body = changed(vm_body("np1"), "/tags", json!({"new": "tag"})).to_string();
    assert_eq!(azure.send("PUT", &vm_path("np1"), &headers, vm_body("np1").to_string().as_bytes()).status, 201);
    let answer = azure.send("PUT", &vm_path("np1"), &headers, body.as_bytes());
    assert_eq!(answer.error(), refused(412, "PreconditionFailed"));
    assert_ne!(azure.get(&vm_path("np1")).json()["tags"], json!({"new": "tag"}));
}

#[test]
fn lists_have_pages_and_the_subscription_has_all_groups() {
    let mut azure = Azure::new(&["--page", "2", "--resource-group", "nodepool", "--resource-group", "other"]);
    for name in ["np1", "np2", "np3"] {
        azure.create(name);
    }
    azure.sim("POST", "/sim/create?kind=vm&count=2&group=other");
    let group = format!("{COMPUTE}/virtualMachines/?api-version={VM_VERSION}");
    let all = group.replace("/resourceGroups/nodepool", "");
    for (first, expected) in [(group, 3), (all, 5)] {
        let (mut url, mut names) = (first, Vec::new());
        loop {
            let page = azure.get(&url).json();
            let value = page["value"].as_array().unwrap();
            assert!(value.len() <= 2 && !value.is_empty(), "{page}");
            names.extend(value.iter().map(|vm| vm["id"].to_string()));
            let Some(next) = page["nextLink"].as_str() else { break };
            url = next.strip_prefix("http://api").unwrap().to_owned();
        }
        names.dedup();
        assert_eq!(names.len(), expected);
    }
    azure.knobs(json!({"page": 0, "upper_case_groups": true}));
    let listed = azure.get(&format!("{COMPUTE}/virtualMachines?api-version={VM_VERSION}")).json();
    assert!(listed["value"][0]["id"].as_str().unwrap().contains("/resourceGroups/NODEPOOL/"));
}

#[test]
fn a_deleted_vm_takes_its_parts_along() {
    let mut azure = Azure::new(&["--delete-s", "5", "--parts-delete-s", "3"]);
    azure.create("np1");
    let deleted = azure.delete(&vm_path("np1"));
    assert_eq!((deleted.status, deleted.text.as_str()), (202, ""));
    assert!(deleted.header("Location").contains("monitor=true"));
    assert_eq!(azure.get(&vm_path("np1")).json()["properties"]["provisioningState"], "Deleting");
    let again = azure.delete(&vm_path("np1"));
    assert_eq!(again.header("Azure-AsyncOperation"), deleted.header("Azure-AsyncOperation"));
    assert_eq!(azure.put_vm("np1", &vm_body("np1")).error(), refused(409, "OperationNotAllowed"));
    azure.wait(5.0);
    assert_eq!(azure.operation(&deleted)["status"], "Succeeded");
    assert_eq!(azure.get(&vm_path("np1")).error(), refused(404, "ResourceNotFound"));
    assert_eq!((azure.nics().len(), azure.ips().len(), azure.disks().len()), (1, 1, 1));
    azure.wait(3.0);
    assert_eq!((azure.nics().len(), azure.ips().len(), azure.disks().len()), (0, 0, 0));
    assert_eq!(azure.delete(&vm_path("np1")).status, 204);
    let history = azure.sim("GET", "/sim/history");
    let life = &history["vms"][0];
    assert!(life["ended_ms"].as_f64() > life["end_asked_ms"].as_f64(), "{life}");
    assert_eq!((&life["node"], history["nics"].as_array().unwrap().len()), (&json!("np1"), 1));
}
