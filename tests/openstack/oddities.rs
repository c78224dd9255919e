//! Odd answers of clouds: our driver makes of each what openstacksdk makes of it, or something better.
//!
//! Every case runs both on a simulated cloud with the same knobs. Where both work, they must have called the services
//! at the same addresses. openstacksdk runs in the Python environment of the reference, which `tests/run` provides.

use std::collections::BTreeSet;
use std::sync::Arc;

use nodepool::actors::provider::providers;
use nodepool_driver::error::CloudError;
use nodepool_driver::job::{Job, LaunchOrder, Outcome};
use serde_json::{Value, json};
use testkit::in_process_launcher::on_real_time;
use testkit::openstack_harness::TestCloud;
use testkit::openstack_harness::in_process_driver::InProcessDriver;
use testkit::provider_harness::{ProviderHarness, launch, provider_section};
use testkit::real::{self, python};

/// The project of the simulated cloud.
const PROJECT_ID: &str = "a1b0000000004000800000000000000a";

struct Case {
    name: &'static str,
    flags: Vec<String>,
    /// Changes of the cloud's entry in clouds.yaml; null removes a key, and `@` is the cloud's address.
    entry: Value,
    /// Further settings of the provider's pool.
    pool: &'static str,
    /// The security group of the SDK's server.
    group: Option<&'static str>,
    outcome: Outcomes,
}

enum Outcomes {
    /// Both launch a server, with calls to the same addresses.
    BothWork,
    /// Both refuse, with these words.
    BothRefuse { ours: &'static [&'static str], theirs: &'static str },
    /// Ours works where the SDK refuses with these words.
    OnlyOursWorks { theirs: &'static str },
    /// Ours works; the SDK does at times.
    OursWorks,
}

impl Case {
    fn works(name: &'static str, flags: &[&str]) -> Self {
        let (pool, flags) = ("networks: [private]", flags.iter().map(|flag| (*flag).to_owned()).collect());
        Self { name, flags, entry: json!({}), pool, group: None, outcome: Outcomes::BothWork }
    }

    fn with_entry(self, entry: Value) -> Self {
        Self { entry, ..self }
    }

    fn with_default_group(self) -> Self {
        Self { pool: "networks: [private], security-groups: [default]", group: Some("default"), ..self }
    }

    fn only_ours(self, theirs: &'static str) -> Self {
        Self { outcome: Outcomes::OnlyOursWorks { theirs }, ..self }
    }

    fn refused(self, ours: &'static [&'static str], theirs: &'static str) -> Self {
        Self { outcome: Outcomes::BothRefuse { ours, theirs }, ..self }
    }
}

const LAUNCH_ATTEMPTS: usize = 5;

/// Launches and deletes a server; the reason if the label or the provider is out of service.
async fn use_ours(cloud: &TestCloud, pool: &str) -> Result<(), String> {
    let config = format!(
        "labels: [{{name: small}}]\nproviders:\n  - {{name: odd, driver: openstack, cloud: simulated, \
         cloud-images: [{{name: raw-1M}}], pools: [{{name: main, auto-floating-ip: false, {pool}, \
         labels: [{{name: small, cloud-image: raw-1M, flavor-name: tiny}}]}}]}}\n"
    );
    let (section, drivers) = (provider_section(&config), InProcessDriver(cloud.clouds_yaml.clone()));
    let mut provider = ProviderHarness::new(|deps| providers::start(&section, deps, Some(&drivers)).unwrap());
    provider.run(Job::Refresh).await.map_err(|error| error.to_string())?;
    let facts = provider.facts();
    let labels = facts.launch_config.iter().flat_map(|config| config.labels.values()).flat_map(|pool| pool.values());
    if let Some(unavailable) = labels.into_iter().find_map(|label| label.unavailable.clone()) {
        return Err(unavailable.reason().to_owned());
    }
    let Outcome::Launched(instance) = launched(&mut provider).await.map_err(|error| error.to_string())? else {
        panic!("a launch ends with an instance")
    };
    provider.run(Job::Delete(instance.external_id)).await.map(drop).map_err(|error| error.to_string())
}

/// Launches a server. As a launcher does, it tries again after a connection was closed while the creation was on its
/// way, which a busy machine makes likely.
async fn launched(provider: &mut ProviderHarness) -> Result<Outcome, CloudError> {
    let Job::Launch(order) = launch("np1") else { unreachable!("launch makes a launch") };
    let again = Arc::new(LaunchOrder { may_exist: true, ..LaunchOrder::clone(&order) });
    let mut end = provider.run(Job::Launch(order)).await;
    for _ in 1..LAUNCH_ATTEMPTS {
        if !matches!(end, Err(CloudError::Outage { may_have_worked: true, .. } | CloudError::Failed { .. })) {
            break;
        }
        end = provider.run(Job::Launch(again.clone())).await;
    }
    end
}

/// The addresses below which services were called, and resets the counters.
async fn called_addresses(cloud: &TestCloud) -> BTreeSet<String> {
    let state = cloud.simulation().state().await;
    let mut addresses = BTreeSet::new();
    for (service, calls) in state["calls_by_kind"].as_object().expect("calls are counted by service") {
        for (call, _) in calls.as_object().expect("calls are counted by kind") {
            let path = call.split_once(' ').expect("a kind has a method and a path").1;
            let resources = ["/servers", "/flavors", "/limits", "/images", "/networks"];
            let prefix = resources.iter().find_map(|resource| Some(path.split_once(resource)?.0));
            addresses.extend(prefix.map(|prefix| format!("{service}{prefix}")));
        }
    }
    addresses
}

async fn start(case: &Case) -> TestCloud {
    let flags: Vec<&str> = case.flags.iter().map(String::as_str).collect();
    let cloud = TestCloud::simulated(&flags).await;
    let base = cloud.simulation().base().to_owned();
    let text = case.entry.to_string().replace('@', &base);
    let entry: Value = serde_json::from_str(&text).expect("an address needs no quoting");
    for (key, value) in entry.as_object().expect("the entry is a mapping") {
        cloud.set(key, value.clone());
    }
    cloud
}

/// The difference from the expected outcome, if there is one.
async fn difference(sdk: &mut python::Script, case: &Case) -> Option<String> {
    let (cloud, for_sdk) = tokio::join!(start(case), start(case));
    let command = json!({"do": "use", "clouds_yaml": for_sdk.clouds_yaml, "cloud": "simulated", "group": case.group});
    let (ours, theirs) = tokio::join!(use_ours(&cloud, case.pool), sdk.try_call(&command));
    let agreed = match (&case.outcome, &ours, &theirs) {
        (Outcomes::BothWork, Ok(()), Ok(_)) => {
            let (ours, theirs) = tokio::join!(called_addresses(&cloud), called_addresses(&for_sdk));
            return (ours != theirs).then(|| format!("ours calls {ours:?}, the SDK {theirs:?}"));
        }
        (Outcomes::BothRefuse { ours: words, theirs: other }, Err(ours), Err(theirs)) => {
            words.iter().all(|words| ours.contains(words)) && theirs.contains(other)
        }
        (Outcomes::OnlyOursWorks { theirs: words }, Ok(()), Err(theirs)) => theirs.contains(words),
        (Outcomes::OursWorks, Ok(()), _) => true,
        _ => false,
    };
    (!agreed).then(|| format!("ours   {ours:?}\n  theirs {theirs:?}"))
}

fn check(cases: impl FnOnce() -> Vec<Case>) {
    if real::skipped() {
        return;
    }
    on_real_time(async move {
        let mut sdk = python::spawn(python::Interpreter::Reference, "openstack_oddities.py", &[]);
        let mut differences = Vec::new();
        for case in cases() {
            if let Some(difference) = difference(&mut sdk, &case).await {
                differences.push(format!("{}:\n  {difference}", case.name));
            }
        }
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    });
}

/// A cloud whose version documents have links of this kind.
fn links(name: &'static str, kind: &str) -> Case {
    let links = ["compute", "network", "volume"].map(|service| format!("{service}={kind}")).join(",");
    Case::works(name, &["--document-links", &links])
}

/// The same for Glance, whose address in the catalogue has no version.
fn image_links(name: &'static str, kind: &str) -> Case {
    Case::works(name, &["--document-links", &format!("image={kind}")])
}

#[test]
fn links_of_version_documents_name_only_the_version() {
    check(|| {
        vec![
            links("another host", "other-host"),
            links("another scheme", "other-scheme"),
            links("a path without prefix", "no-prefix"),
            links("a path", "path"),
            links("a relative path", "relative"),
            links("an empty link", "empty"),
            links("no link", "missing"),
            image_links("another host of Glance", "other-host"),
            image_links("another scheme of Glance", "other-scheme"),
            image_links("a path of Glance without prefix", "no-prefix").only_ours("404"),
            image_links("a path of Glance", "path"),
            image_links("a relative path of Glance", "relative"),
            image_links("an empty link of Glance", "empty").only_ours("404"),
            image_links("no link of Glance", "missing").only_ours("any supported versions"),
        ]
    });
}

#[test]
fn useless_version_documents_leave_the_address_of_the_catalogue() {
    check(|| {
        vec![
            Case::works("a page", &["--fault", "page path=^/compute/(v2.1/?)?$"]),
            Case::works("nothing", &["--fault", "empty path=^/compute/(v2.1/?)?$"]),
            Case::works("401", &["--fault", "401 path=^/compute/(v2.1/?)?$"]),
            Case::works("404", &["--fault", "404 path=^/compute/(v2.1/?)?$"]),
            Case::works("500", &["--fault", "500 path=^/compute/(v2.1/?)?$"]),
        ]
    });
}

#[test]
fn the_addresses_of_nova_and_cinder_are_those_of_the_catalogue() {
    check(|| {
        vec![
            Case::works("no version", &["--compute-address", ""]),
            Case::works("version 2", &["--compute-address", "v2"]),
            Case::works("a project", &["--compute-address", "v2.1/PROJECT"]),
            Case::works("version 2 and a project", &["--compute-address", "v2/PROJECT"]),
            Case::works("volumev2", &["--volume-types", "volumev2"]),
            Case::works("all types", &["--volume-types", "volume,volumev2,volumev3"]),
            Case::works("old types", &["--volume-types", "volume,volumev2"]),
            Case::works("block-storage", &["--volume-types", "block-storage"]),
            Case::works("block-store", &["--volume-types", "block-store,volume"]),
        ]
    });
}

#[test]
fn redirects_of_keystone_and_other_services_are_followed() {
    check(|| {
        vec![
            Case::works("301", &["--fault", "301 path=^/identity/"]),
            Case::works("302", &["--fault", "302 path=^/identity/"]),
            Case::works("303", &["--fault", "303 path=^/identity/"]),
            Case::works("307", &["--fault", "redirect path=^/identity/"]),
            Case::works("308", &["--fault", "308 path=^/identity/"]),
            Case::works("all calls", &["--fault", "301 path=^/[cinv]"]),
        ]
    });
}

#[test]
fn keystone_of_version_2_works_without_domains() {
    let login = json!({
        "auth_url": "@/identity/v2.0", "username": "nodepool", "password": "secret", "project_name": "nodepool",
    });
    let with = |key: &str, value: &str| {
        let mut login = login.clone();
        login[key] = json!(value);
        json!({"auth": login})
    };
    let (versioned, root) = (with("auth_url", "@/identity/v2.0/"), with("auth_url", "@/identity"));
    let mut by_type = versioned.clone();
    by_type["auth_type"] = json!("v2password");
    let mut rackspace = versioned.clone();
    (rackspace["profile"], rackspace["compute_service_name"]) = (json!("rackspace"), json!("nova"));
    (rackspace["region_name"], rackspace["regions"]) = (json!("RegionOne"), json!(["RegionOne"]));
    rackspace["block_storage_endpoint_override"] = json!("@/volume/v3/");
    // The profile's address ends with the project's id, which the SDK takes from the entry.
    rackspace["auth"]["project_id"] = json!(PROJECT_ID);
    rackspace["auth"].as_object_mut().expect("a login is a mapping").remove("project_name");
    check(move || {
        let old = |name| Case::works(name, &["--identity-versions", "v2.0"]);
        let both = |name| Case::works(name, &["--identity-versions", "v2.0,v3"]);
        vec![
            old("version 2").with_entry(versioned.clone()),
            old("version 2 at the root").with_entry(root.clone()),
            old("a default domain").with_entry(with("default_domain_name", "Default")),
            old("v2password").with_entry(by_type),
            Case { pool: "networks: []", ..old("rackspace").with_entry(rackspace) },
            old("domains").with_entry(with("user_domain_name", "Default")).refused(
                &["Keystone has no login at", "version 2, which has no domains"],
                "Could not find versioned identity endpoints",
            ),
            both("both versions").with_entry(root),
            both("both versions, with domains"),
            both("both versions, with a default domain")
                .with_entry(json!({"auth": {"auth_url": "@/identity", "username": "nodepool", "password": "secret",
                    "project_name": "nodepool", "default_domain_name": "Default"}})),
        ]
    });
}

#[test]
fn ambiguous_names_are_refused_with_their_ids() {
    check(|| {
        let twice = |name, flags| Case::works(name, flags);
        vec![
            twice("networks", &["--duplicates", "network"]).refused(
                &["several networks are named private, among them", " and "],
                "More than one Network exists with the name 'private'",
            ),
            twice("security groups", &["--duplicates", "security-group"]).with_default_group().refused(
                &["several security groups are named default, among them", " and "],
                "use an ID to be more specific",
            ),
            twice("images", &["--duplicates", "image"]).only_ours("More than one Image exists with the name 'raw-1M'"),
            twice("a role in clouds.yaml", &["--duplicates", "network"])
                .with_entry(json!({"networks": [{"name": "private", "nat_destination": true}]}))
                .refused(&["several networks are named private"], "More than one Network"),
        ]
    });
}

#[test]
fn connections_that_close_without_notice_are_survived() {
    // The SDK fails when a connection is closed at the moment of its reuse.
    let closed = Case::works("closed connections", &["--close-connections"]);
    check(|| vec![Case { outcome: Outcomes::OursWorks, ..closed }]);
}
