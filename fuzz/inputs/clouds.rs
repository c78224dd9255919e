//! Arbitrary text as clouds.yaml, secure.yaml, profiles and variables: the result is settings or an error with its
//! position, and neither contains a secret.

use std::collections::BTreeMap;
use std::path::PathBuf;

use openstack_clouds::{CloudSelector, ConfigFiles, Environment, FileText, resolve};

/// No output may contain this text if the input has it only as the value of a password or another secret key.
const SECRET: &str = "hunter2";
const KEYS: [&str; 5] = ["password", "token", "auth_token", "application_credential_secret", "OS_PASSWORD"];

// Input: clouds.yaml; then sections that begin with a line of their name: the other files, variables as `NAME=VALUE`,
// and cloud and region in a line each.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut parts: BTreeMap<&str, String> = BTreeMap::new();
    let mut part = "";
    for line in text.split_inclusive('\n') {
        match line.trim_end() {
            name @ ("#secure" | "#vendors" | "#environment" | "#wanted" | "#json") => part = name,
            _ => parts.entry(part).or_default().push_str(line),
        }
    }
    let suffix = if parts.contains_key("#json") { "json" } else { "yaml" };
    let file = |part: &str, name: &str| {
        parts.get(part).map(|text| FileText { path: PathBuf::from(format!("/c/{name}.{suffix}")), text: text.clone() })
    };
    let variables = parts.get("#environment").into_iter().flat_map(|text| text.lines());
    let variables = variables.filter_map(|line| line.split_once('='));
    let variables = variables.filter(|(name, _)| name.starts_with("OS_") || name.starts_with("STATSD_"));
    let files = ConfigFiles {
        clouds: file("", "clouds").or_else(|| file("#json", "clouds")),
        secure: file("#secure", "secure"),
        vendors: file("#vendors", "clouds-public"),
        searched: vec![PathBuf::from("/c/clouds.yaml")],
        environment: Environment {
            variables: variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            home: Some(PathBuf::from("/home/zuul")),
        },
    };
    let mut lines = parts.get("#wanted").map_or("", String::as_str).lines().filter(|line| !line.is_empty());
    let wanted = CloudSelector { cloud: lines.next(), region: lines.next() };
    let found = resolve(&files, wanted);
    assert_eq!(found, resolve(&files, wanted), "loading is deterministic");
    let shown = match &found {
        Ok(loaded) => {
            assert!(loaded.warnings.iter().all(|warning| !warning.is_error()), "{:?}", loaded.warnings);
            let warnings = loaded.warnings.iter().map(|warning| format!("{warning}\n"));
            warnings.collect::<String>() + &format!("{:?}", loaded.settings)
        }
        Err(error) => {
            let diagnostic = error.clone().into_diagnostic();
            assert!(diagnostic.is_error() && !diagnostic.message.is_empty(), "{diagnostic:?}");
            format!("{diagnostic} {error:?}")
        }
    };
    assert!(!shown.contains(SECRET) || !is_secret(text), "{shown}");
}

/// Whether each occurrence of `SECRET` follows a secret key.
fn is_secret(text: &str) -> bool {
    text.match_indices(SECRET).all(|(at, _)| {
        let before = text[..at].trim_end_matches(['\'', '"', ' ']);
        let before = before.strip_suffix([':', '=']).unwrap_or("").trim_end_matches(['\'', '"', ' ']);
        KEYS.iter().any(|key| before.ends_with(key))
    })
}
