//! Profiles of public clouds, from clouds-public.yaml or built in.

use crate::config_paths::ConfigFiles;
use crate::error::CloudsError;
use crate::merge::{Map, Node};
use crate::parse::{built_in, parse};
use python_yaml::diagnostics::{Diagnostic, Severity, nearest};

const BUILT_IN: &str = include_str!("built_in.yaml");

/// Default settings of a cloud.
pub fn defaults() -> Map {
    built_in_table("the SDK's defaults", "defaults")
}

fn built_in_table(name: &str, key: &str) -> Map {
    built_in(name, BUILT_IN).map(key).expect("the built-in table has both parts")
}

/// The profile that a node names. An unknown name results in an empty profile and a warning, as in the SDK.
pub fn profile(named: &Node, files: &ConfigFiles, warnings: &mut Vec<Diagnostic>) -> Result<Map, CloudsError> {
    let name = named.scalar("profile")?.unwrap_or_default();
    if name.is_empty() {
        return Ok(Map::default());
    }
    if let Some(file) = &files.vendors {
        let own = parse(file, warnings)?.map("public-clouds")?;
        if let Some(profile) = own.get(&name) {
            return profile.map(&name);
        }
    }
    if name.contains("://") {
        let help = "profiles are not downloaded; put the content of the URL into clouds-public.yaml";
        let message = format!("the profile {name} is a URL");
        return Err(CloudsError::ProfileUnusable(named.origin.diagnostic(message, help)));
    }
    let known = built_in_table("the built-in profiles", "profiles");
    let Some(profile) = known.get(&name) else {
        let names: Vec<&str> = known.0.iter().map(|(name, _)| name.as_str()).collect();
        let suggestion =
            nearest(&name, names.iter().copied()).map_or_else(String::new, |near| format!("; did you mean {near}?"));
        let help = format!("an empty profile is used{suggestion} (built-in profiles: {})", names.join(", "));
        let warning = named.origin.diagnostic(format!("there is no profile {name}"), help);
        warnings.push(warning.at_most(Severity::Warning));
        return Ok(Map::default());
    };
    let mut profile = profile.map(&name)?;
    // `status` belongs to the profile, not to the settings of the cloud.
    let status = profile.remove("status").map(|status| status.scalar("status")).transpose()?.flatten();
    match status.as_deref() {
        Some("shutdown") => {
            let help = "choose another cloud, or describe this one yourself without `profile`";
            let message = format!("the profile {name} is of a cloud that no longer exists");
            Err(CloudsError::ProfileUnusable(named.origin.diagnostic(message, help)))
        }
        Some("deprecated") => {
            let warning =
                named.origin.diagnostic(format!("the profile {name} is of a cloud that no longer answers"), "");
            warnings.push(warning.at_most(Severity::Warning));
            Ok(profile)
        }
        _ => Ok(profile),
    }
}
