//! Clouds files, variables and profiles: our loader resolves them to the same settings as openstacksdk.
//!
//! Our loader runs in process. openstacksdk runs in the Python environment of the reference, which `tests/run`
//! provides.

mod cases;
mod settings_json;

use std::collections::BTreeMap;
use std::path::Path;

use cases::{CASES, Case, Outcome};
use openstack_clouds::{CloudSelector, ConfigPaths, Environment, config_paths};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::real::{self, python};

/// The directory and environment of one case. `@` in its texts stands for the directory.
struct CloudsReferenceHarness {
    directory: TempDir,
    variables: BTreeMap<String, String>,
}

impl CloudsReferenceHarness {
    fn new(case: &Case<'_>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_str().unwrap();
        for folder in ["work", "home"] {
            std::fs::create_dir(directory.path().join(folder)).unwrap();
        }
        for (path, text) in case.files {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text.replace('@', root)).unwrap();
        }
        let own = case.variables.iter().chain(&[("HOME", "@/home")]);
        let variables = own.map(|(name, value)| ((*name).to_owned(), value.replace('@', root))).collect();
        Self { directory, variables }
    }

    fn path(&self, folder: &str) -> std::path::PathBuf {
        self.directory.path().join(folder)
    }

    fn ours(&self, case: &Case<'_>) -> Result<Value, String> {
        let directories = config_paths::directories(&self.variables, Some(self.path("work")), Some(self.path("home")));
        let environment = Environment { variables: self.variables.clone(), home: Some(self.path("home")) };
        let selector = CloudSelector { cloud: case.cloud, region: case.region };
        let loaded = openstack_clouds::load(&ConfigPaths::new(&directories, environment), selector);
        loaded.map(|loaded| settings_json::json_of(&loaded.settings)).map_err(|error| error.to_string())
    }

    async fn theirs(&self, sdk: &mut python::Script, case: &Case<'_>) -> Result<Value, String> {
        let mut wanted = json!({});
        for (key, value) in [("cloud", case.cloud), ("region-name", case.region)] {
            if let Some(value) = value {
                wanted[key] = json!(value);
            }
        }
        let command = json!({
            "do": "get_one", "directory": self.path("work"), "variables": self.variables, "wanted": wanted,
        });
        sdk.try_call(&command).await
    }
}

/// The difference from the expected outcome, if there is one.
async fn difference(sdk: &mut python::Script, case: &Case<'_>) -> Option<String> {
    let harness = CloudsReferenceHarness::new(case);
    let ours = harness.ours(case);
    let theirs = harness.theirs(sdk, case).await;
    let agreed = match (&case.outcome, &ours, &theirs) {
        (Outcome::Same, Ok(ours), Ok(theirs)) => return first_difference("", ours, theirs),
        (Outcome::SameExcept(exceptions), Ok(ours), Ok(theirs)) => {
            let mut expected = theirs.clone();
            for exception in exceptions.iter() {
                let value: Value = serde_json::from_str(exception.ours).unwrap();
                let field =
                    expected.pointer_mut(exception.at).unwrap_or_else(|| panic!("the SDK has no {}", exception.at));
                assert_ne!(*field, value, "{} is no longer an exception: {}", exception.at, exception.why);
                *field = value;
            }
            return first_difference("", ours, &expected);
        }
        (Outcome::BothReject { ours: text, theirs: other }, Err(ours), Err(theirs)) => {
            ours.contains(text) && theirs.contains(other)
        }
        (Outcome::OnlyOursRejects { ours: text, .. }, Err(ours), Ok(_)) => ours.contains(text),
        (Outcome::OnlySdkRejects { theirs: text, .. }, Ok(_), Err(theirs)) => theirs.contains(text),
        _ => false,
    };
    (!agreed).then(|| format!("ours   {ours:?}\n  theirs {theirs:?}\n  expected {:?}", case.outcome))
}

/// The first field in which two values differ.
fn first_difference(at: &str, ours: &Value, theirs: &Value) -> Option<String> {
    if let (Value::Object(ours), Value::Object(theirs)) = (ours, theirs) {
        let keys = ours.keys().chain(theirs.keys().filter(|key| !ours.contains_key(*key)));
        let null = &Value::Null;
        let value = |of: &serde_json::Map<String, Value>, key| of.get(key).unwrap_or(null).clone();
        return keys
            .clone()
            .find_map(|key| first_difference(&format!("{at}/{key}"), &value(ours, key), &value(theirs, key)));
    }
    (ours != theirs).then(|| format!("{at}: ours {ours}, theirs {theirs}"))
}

fn sdk() -> python::Script {
    python::spawn(python::Interpreter::Reference, "clouds.py", &[])
}

#[tokio::test]
async fn every_case_resolves_as_openstacksdk_does() {
    if real::skipped() {
        return;
    }
    assert!(!Path::new("/etc/openstack").exists(), "/etc/openstack would be read in every case");
    let mut sdk = sdk();
    let mut differences = Vec::new();
    for case in CASES {
        if let Some(difference) = difference(&mut sdk, case).await {
            differences.push(format!("{}:\n  {difference}", case.name));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[tokio::test]
async fn every_built_in_profile_resolves_as_openstacksdk_does() {
    if real::skipped() {
        return;
    }
    let mut sdk = sdk();
    let profiles = sdk.call(json!({"do": "profiles"})).await;
    let profiles = profiles.as_object().unwrap();
    assert!(profiles.len() > 20, "{profiles:?}");
    let mut differences = Vec::new();
    for (name, profile) in profiles {
        let regions: Vec<Option<&str>> = match profile["regions"].as_array() {
            Some(regions) => regions.iter().map(|region| region["name"].as_str().or(region.as_str())).collect(),
            None => vec![None],
        };
        for region in regions {
            let found = profile_difference(&mut sdk, name, profile, region).await;
            differences.extend(found.map(|found| format!("{name} {region:?}:\n  {found}")));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

async fn profile_difference(
    sdk: &mut python::Script,
    name: &str,
    profile: &Value,
    region: Option<&str>,
) -> Option<String> {
    let outcome = match name {
        // The SDK fetches these two profiles from their vendors.
        _ if profile.get("profile").is_some() => return None,
        "otc-swiss" => Outcome::SameExcept(cases::OTC_SWISS),
        _ if profile["status"] == "shutdown" => {
            Outcome::BothReject { ours: "a cloud that no longer exists", theirs: "no longer exists" }
        }
        _ => Outcome::Same,
    };
    let auth = match profile.get("auth") {
        Some(_) => "{username: u, password: p, project_id: i}",
        None => "{username: u, password: p, project_id: i, auth_url: 'https://keystone'}",
    };
    let text = format!("clouds: {{c: {{profile: {name}, auth: {auth}}}}}");
    let files: &[(&str, &str)] = &[("work/clouds.yaml", &text)];
    difference(sdk, &Case { name, files, variables: &[], cloud: Some("c"), region, outcome }).await
}
