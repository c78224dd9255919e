//! Usages, limits and SKUs.

use serde_json::{Value, json};

use super::{Azure, LOCATION, changed, refused, vm_body, vm_path};

fn usages(azure: &mut Azure, provider: &str) -> Value {
    let path = LOCATION.replace("Microsoft.Compute", provider);
    let version = if provider == "Microsoft.Compute" { "2020-12-01" } else { "2020-11-01" };
    let answer = azure.get(&format!("{path}/usages?api-version={version}")).json();
    let all = answer["value"].as_array().unwrap();
    all.iter().map(|one| (one["name"]["value"].as_str().unwrap().to_owned(), one["currentValue"].clone())).collect()
}

#[test]
fn usages_count_existing_machines_and_those_of_others() {
    let mut azure = Azure::new(&["--foreign-usage", "cores=7"]);
    azure.create("np1");
    azure.put_vm("np2", &changed(vm_body("np2"), "/properties/priority", json!("Spot")));
    let compute = usages(&mut azure, "Microsoft.Compute");
    assert_eq!((&compute["cores"], &compute["standardDSv3Family"]), (&json!(9), &json!(2)));
    assert_eq!((&compute["lowPriorityCores"], &compute["virtualMachines"]), (&json!(2), &json!(2)));
    let network = usages(&mut azure, "Microsoft.Network");
    assert_eq!((&network["PublicIPAddresses"], &network["NetworkInterfaces"]), (&json!(2), &json!(2)));
    azure.delete(&vm_path("np1"));
    azure.vms();
    assert_eq!(usages(&mut azure, "Microsoft.Compute")["cores"], 7);
}

#[test]
fn a_limit_refuses_at_once_or_in_the_operation() {
    let mut azure = Azure::new(&["--limits", "standardDSv3Family=3"]);
    azure.create("np1");
    let answer = azure.put_vm("np2", &vm_body("np2"));
    assert_eq!(answer.error(), refused(409, "OperationNotAllowed"));
    assert!(answer.text.contains("exceeding approved standardDSv3Family Cores quota"), "{}", answer.text);
    azure.knobs(json!({"quota_in_operation": true}));
    let created = azure.create("np2");
    assert_eq!(azure.operation(&created)["error"]["code"], "OperationNotAllowed");
    assert_eq!(azure.get(&vm_path("np2")).json()["properties"]["provisioningState"], "Failed");
    azure.delete(&vm_path("np2"));
    assert_eq!(usages(&mut azure, "Microsoft.Compute")["standardDSv3Family"], 2);
    azure.knobs(json!({"limits": "PublicIPAddresses=1", "quota_in_operation": false}));
    assert_eq!(azure.put_vm("np3", &vm_body("np3")).error(), refused(400, "PublicIPCountLimitReached"));
}

#[test]
fn skus_are_filtered_by_location_and_may_be_blocked() {
    let mut azure = Azure::new(&["--blocked-sku", "Standard_D2s_v3@eastus", "--extra-skus", "1000", "--page", "1000"]);
    let path =
        "/subscriptions/cccccccc-0000-4000-8000-000000000003/providers/Microsoft.Compute/skus/?api-version=2019-04-01";
    let (mut url, mut skus) = (format!("{path}&$filter=location%20eq%20%27eastus%27"), Vec::new());
    loop {
        let page = azure.get(&url).json();
        skus.extend(page["value"].as_array().unwrap().iter().cloned());
        let Some(next) = page["nextLink"].as_str() else { break };
        url = next.strip_prefix("http://api").unwrap().to_owned();
    }
    assert!(skus.len() > 1000 && skus.iter().all(|sku| sku["locations"] == json!(["eastus"])));
    let sku = skus.iter().find(|sku| sku["name"] == "Standard_D2s_v3").unwrap();
    assert_eq!(sku["restrictions"][0]["reasonCode"], "NotAvailableForSubscription");
    let has = |name: &str, value: &str| {
        sku["capabilities"].as_array().unwrap().contains(&json!({"name": name, "value": value}))
    };
    assert!(has("vCPUs", "2") && has("MemoryGB", "8"));
    assert_eq!(azure.put_vm("np1", &vm_body("np1")).error(), refused(409, "SkuNotAvailable"));
    assert_eq!(azure.get(&format!("{path}&$filter=x")).error(), refused(400, "InvalidParameter"));
}
