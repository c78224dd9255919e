//! Normalization of old spellings and positions of settings, in the order of the SDK.

use crate::error::CloudsError;
use crate::merge::{Map, Node, Origin, Value};
use python_yaml::diagnostics::{Diagnostic, Severity};

/// Options of `auth` with all their names. The last given name counts; a value next to `auth` wins over one in it.
const AUTH_OPTION_SPELLINGS: [(&str, &[&str]); 10] = [
    ("domain_id", &["domain_id", "domain-id"]),
    ("domain_name", &["domain_name", "domain-name"]),
    ("user_domain_id", &["user_domain_id", "user-domain-id"]),
    ("user_domain_name", &["user_domain_name", "user-domain-name"]),
    ("project_domain_id", &["project_domain_id", "project-domain-id"]),
    ("project_domain_name", &["project_domain_name", "project-domain-name"]),
    ("token", &["auth-token", "auth_token", "token"]),
    ("passcode", &["passcode"]),
    ("project_id", &["tenant_id", "tenant-id", "project_id", "project-id"]),
    ("project_name", &["tenant_name", "tenant-name", "project_name", "project-name"]),
];

/// Options that a single domain sets if there is a project.
const SHARED_DOMAIN_OPTIONS: [(&str, [&str; 2]); 2] = [
    ("domain_id", ["user_domain_id", "project_domain_id"]),
    ("domain_name", ["user_domain_name", "project_domain_name"]),
];

/// Converts the merged entry of a cloud to the form that the loader reads.
pub fn normalized(entry: Map, cloud: &Origin, warnings: &mut Vec<Diagnostic>) -> Result<Map, CloudsError> {
    let mut entry = rename_endpoint_types(merge_timeouts(entry));
    // `auth_type` has a default, which takes precedence over its other names.
    for name in ["auth_plugin", "auth-type"] {
        if let Some(node) = entry.remove(name) {
            let problem = node.origin.diagnostic(format!("{name} has no effect"), "write auth_type");
            warnings.push(problem.at_most(Severity::Warning));
        }
    }
    let origin = entry.get("auth").map_or_else(|| cloud.clone(), |auth| auth.origin.clone());
    let mut auth = entry.map("auth")?;
    move_auth_options(&mut entry, &mut auth)?;
    apply_shared_domains(&mut entry, &mut auth);
    if let Some(url) = auth.given("auth_url") {
        let interpolated = entry.interpolate("auth_url", &url.scalar("auth_url")?.unwrap_or_default(), &url.origin)?;
        let interpolated = Node::text(&url.origin, interpolated);
        auth.set("auth_url", interpolated);
    }
    entry.set("auth", Node { origin, value: Value::Map(auth) });
    Ok(entry.with_underscores())
}

/// Merges the timeouts of services into `api_timeout`: each applies to all services, and the last one counts.
fn merge_timeouts(entry: Map) -> Map {
    let mut result = Map::default();
    let mut of_service = None;
    for (key, node) in entry.0 {
        let own = key == "timeout" || key == "api_timeout";
        if key.ends_with("timeout") && !own { of_service = Some(node) } else { result.set(&key, node) }
    }
    if let Some(node) = of_service.filter(|node| !node.is_null()) {
        result.set("api_timeout", node);
    }
    result
}

/// Renames `endpoint_type`, the old name of `interface`.
fn rename_endpoint_types(entry: Map) -> Map {
    let mut result = Map::default();
    for (key, node) in entry.0 {
        let prefix = key.strip_suffix("endpoint_type");
        result.set(&prefix.map_or_else(|| key.clone(), |prefix| format!("{prefix}interface")), node);
    }
    result
}

fn move_auth_options(entry: &mut Map, auth: &mut Map) -> Result<(), CloudsError> {
    for (target, names) in AUTH_OPTION_SPELLINGS {
        let mut found = None;
        for name in names {
            for node in [auth.remove(name), entry.remove(name)].into_iter().flatten() {
                if let Some(text) = node.scalar(name)? {
                    found = Some(Node::text(&node.origin, text));
                }
            }
        }
        if let Some(node) = found.filter(|node| !matches!(&node.value, Value::Text(text) if text.is_empty())) {
            auth.set(target, node);
        }
    }
    Ok(())
}

/// With a project, a single domain is that of the user and of the project; without one, it is the token's scope.
fn apply_shared_domains(entry: &mut Map, auth: &mut Map) {
    let of_project = auth.get("project_id").is_some() || auth.get("project_name").is_some();
    for (single, both) in SHARED_DOMAIN_OPTIONS {
        if !of_project {
            continue;
        }
        if let Some(node) = auth.remove(single) {
            for key in both.into_iter().filter(|key| auth.get(key).is_none()).collect::<Vec<_>>() {
                auth.set(key, node.clone());
            }
        }
        entry.remove(single);
    }
}
