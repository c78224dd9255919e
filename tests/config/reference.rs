//! Configurations compared with Nodepool 11: our validator and loader agree with the reference on every configuration
//! that it ships, and on our test files.
//!
//! NODEPOOL_TEST_REFERENCE, which `tests/run` sets, names a Python with `nodepool==11.0.0` and `cachetools`. Without
//! it, the tests are skipped.

use std::process::Command;
use std::sync::OnceLock;

use nodepool_model::config::resolve::{Source, resolve};
use nodepool_model::config::validate::validate;
use nodepool_model::config::{Config, DiskImage, PoolConfig, ProviderConfig};
use python_yaml::parse::parse;
use serde::Deserialize;
use serde_json::{Value, json};

const ALL_DRIVERS: &[&str] = &[
    "aws",
    "azure",
    "example",
    "fake",
    "gce",
    "ibmvpc",
    "kubernetes",
    "metastatic",
    "openshift",
    "openshiftpods",
    "openstack",
    "static",
    "test",
];

/// The verdict of the reference on one file.
#[derive(Deserialize)]
struct Verdict {
    file: String,
    text: String,
    validator: i32,
    loader: String,
    facts: Value,
}

/// The verdicts on all files; `None` if NODEPOOL_TEST_REFERENCE is not set.
fn reference() -> Option<&'static [Verdict]> {
    static VERDICTS: OnceLock<Option<Vec<Verdict>>> = OnceLock::new();
    VERDICTS.get_or_init(run_reference).as_deref()
}

fn run_reference() -> Option<Vec<Verdict>> {
    let Some(python) = std::env::var_os("NODEPOOL_TEST_REFERENCE") else {
        assert!(std::env::var_os("NODEPOOL_REQUIRE_REAL").is_none(), "NODEPOOL_TEST_REFERENCE is not set");
        eprintln!("SKIPPED: NODEPOOL_TEST_REFERENCE does not name a Python with nodepool==11.0.0");
        return None;
    };
    let own: Vec<_> = std::fs::read_dir("tests/fixtures/config").unwrap().map(|entry| entry.unwrap().path()).collect();
    let own = own.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    let mut verdicts = read_verdicts(Command::new(&python).arg("tests/fixtures/config/reference.py"));
    verdicts.extend(read_verdicts(Command::new(&python).arg("tests/fixtures/config/reference.py").args(own)));
    assert!(verdicts.len() > 180, "only {} files were examined", verdicts.len());
    Some(verdicts)
}

fn read_verdicts(command: &mut Command) -> Vec<Verdict> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_validator_accepts_and_rejects_what_the_reference_does() {
    let Some(verdicts) = reference() else { return };
    let mut differences = Vec::new();
    for verdict in verdicts {
        let problems = validate(&verdict.text, &verdict.file, ALL_DRIVERS);
        let errors: Vec<String> = problems.iter().filter(|p| p.is_error()).map(ToString::to_string).collect();
        // The reference's validator accepts files that its loader rejects; our validator rejects them.
        let expected = verdict.validator != 0 || (!errors.is_empty() && deliberately_stricter(&verdict.file));
        if errors.is_empty() == expected {
            differences.push(format!("{}: reference {}, ours {errors:#?}", verdict.file, verdict.validator));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Whether our stricter check of this file is intended: the file documents such a check, or it is one file of the
/// reference. The latter is meant to be loaded with a secure file, and its ZooKeeper path is unusable.
fn deliberately_stricter(file: &str) -> bool {
    file.starts_with("tests/fixtures/config/stricter") || file == "secure_file_config.yaml"
}

#[test]
fn the_loader_resolves_files_as_the_reference_does() {
    let Some(verdicts) = reference() else { return };
    let mut differences = Vec::new();
    for verdict in verdicts {
        let ours = parse(&verdict.text, &mut Vec::new()).map_err(|problem| vec![problem]).and_then(|root| {
            let resolved = resolve(Source { file: &verdict.file, root: &root }, None, ALL_DRIVERS);
            resolved.config.ok_or(resolved.diagnostics)
        });
        match (ours, verdict.loader.as_str()) {
            (Ok(config), "ok") => {
                let ours = facts(&config);
                let theirs = comparable(verdict.facts.clone(), &ours);
                // Our loader converts values of unexpected types; the reference keeps them until it fails on them.
                if ours != theirs && !verdict.file.ends_with("conversions.yaml") {
                    differences.push(format!("{}:\n  ours   {ours}\n  theirs {theirs}", verdict.file));
                }
            }
            (Err(problems), "ok") if !deliberately_stricter(&verdict.file) => {
                let errors: Vec<String> = problems.iter().filter(|p| p.is_error()).map(ToString::to_string).collect();
                differences.push(format!("{}: only ours rejects it: {errors:#?}", verdict.file));
            }
            // Our drivers read and check clouds.yaml; our loader does not.
            (Ok(_), error) if error.contains("was not found") || error.contains("Auth plugin requires") => {}
            (Ok(_), error) => differences.push(format!("{}: only the reference rejects it: {error}", verdict.file)),
            (Err(_), _) => {}
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Removes the formats that only the reference has: those of clouds.yaml are read by our driver, not by our loader.
fn comparable(mut theirs: Value, ours: &Value) -> Value {
    for (name, image) in theirs["diskimages"].as_object_mut().unwrap() {
        let own = ours["diskimages"][name]["formats"].as_array().cloned().unwrap_or_default();
        image["formats"].as_array_mut().unwrap().retain(|format| own.contains(format));
    }
    // The reference formats a null host as text; our loader omits that server.
    if theirs["zookeeper"] == "None:None" {
        theirs["zookeeper"] = json!("");
    }
    theirs
}

fn facts(config: &Config) -> Value {
    json!({
        "labels": object(config.labels.iter().map(|(name, label)| {
            (name.as_str(), json!([label.min_ready, label.max_ready_age.map_or(0, |age| age.0 as i64)]))
        })),
        "zookeeper": config.zookeeper.connect_string(),
        "timeout": config.zookeeper.session_timeout.0,
        "webapp": [json!(config.webapp.port), json!(config.webapp.listen_address)],
        "diskimages": object(config.diskimages.iter().map(|(name, image)| (name.as_str(), image_facts(image)))),
        "providers": object(config.providers.iter().map(|(name, provider)| (name.as_str(), provider_facts(provider)))),
        "tenants": object(config.tenant_limits.iter().map(|(name, limits)| {
            let known = ["cores", "instances", "ram"].into_iter().chain(limits.names());
            let amount = |name| Some(limits.get(name)).filter(|limit| limit.is_finite()).map(|limit| limit as i64);
            (name.as_str(), object(known.map(|name| (name, json!(amount(name))))))
        })),
    })
}

fn object<'a>(entries: impl Iterator<Item = (&'a str, Value)>) -> Value {
    Value::Object(entries.map(|(name, value)| (name.to_owned(), value)).collect())
}

fn image_facts(image: &DiskImage) -> Value {
    json!({
        "elements": image.elements.join(" "), "formats": image.formats, "env": image.env_vars, "release": image.release,
        "command": image.dib_cmd, "pause": image.pause, "username": image.username,
        "rebuild_age": image.rebuild_age.0 as i64, "timeout": image.build_timeout.0 as i64,
        "metadata": image.metadata, "keep": image.keep_formats, "delete": image.delete_after_upload,
        "python": image.python_path, "shell": image.shell_type,
    })
}

fn provider_facts(provider: &ProviderConfig) -> Value {
    json!({
        "driver": provider.driver,
        "concurrency": provider.max_concurrency,
        "pools": object(provider.pools.iter().map(|(name, pool)| (name.as_str(), pool_facts(pool)))),
    })
}

fn pool_facts(pool: &PoolConfig) -> Value {
    json!({
        "labels": pool.labels, "max_servers": pool.max_servers, "priority": pool.priority,
        "attributes": pool.node_attributes,
    })
}
