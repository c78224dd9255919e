//! Properties of IBM's clients: `KEY=value` lines of a credentials file, or environment variables.
//!
//! <https://github.com/IBM/ibm-cloud-sdk-common#using-external-configuration>

use std::collections::HashMap;
use std::path::{Path, PathBuf};

const FILE_NAME: &str = "ibm-credentials.env";
const FILE_VARIABLE: &str = "IBM_CREDENTIALS_FILE";
/// Prefixes of the services whose properties are read.
const VPC: &str = "VPC";
const RESOURCE_MANAGER: &str = "RESOURCE_MANAGER";

/// Properties of a provider. Their values may be secrets, so they are not shown.
#[derive(Clone, Default)]
pub struct Properties(HashMap<String, String>);

impl Properties {
    /// The properties of a provider. A file that has properties of a service hides the variables for this service.
    pub fn find(credentials_file: Option<&Path>) -> Self {
        let text = file(credentials_file).and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        let of_file: Vec<(String, String)> = pairs(&text).collect();
        let mut found = HashMap::new();
        for service in [VPC, RESOURCE_MANAGER] {
            let is_own = |(key, _): &&(String, String)| key.starts_with(service);
            let mut own: HashMap<String, String> = of_file.iter().filter(is_own).cloned().collect();
            if own.is_empty() {
                let variables: Vec<(String, String)> = std::env::vars_os()
                    .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
                    .collect();
                own = variables.iter().filter(is_own).cloned().collect();
            }
            found.extend(own);
        }
        Self(found)
    }

    /// A property of the VPC API, such as `APIKEY`.
    pub fn vpc(&self, name: &str) -> Option<&str> {
        self.get(VPC, name)
    }

    pub fn resource_manager_url(&self) -> Option<&str> {
        self.get(RESOURCE_MANAGER, "URL")
    }

    fn get(&self, service: &str, name: &str) -> Option<&str> {
        self.0.get(&format!("{service}_{name}")).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// The credentials file that IBM's clients would read: that of the section or the environment, or one in the working
/// directory or the home.
pub fn file(credentials_file: Option<&Path>) -> Option<PathBuf> {
    let named = std::env::var_os(FILE_VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
    if let Some(named) = credentials_file.map(Path::to_owned).or(named) {
        return Some(named);
    }
    places().into_iter().find(|path| path.is_file())
}

/// Files whose change matters.
pub fn files(credentials_file: Option<&Path>) -> Vec<PathBuf> {
    let named = std::env::var_os(FILE_VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
    match credentials_file.map(Path::to_owned).or(named) {
        Some(named) => vec![named],
        None => places(),
    }
}

fn places() -> Vec<PathBuf> {
    [std::env::current_dir().ok(), std::env::home_dir()].into_iter().flatten().map(|dir| dir.join(FILE_NAME)).collect()
}

fn pairs(text: &str) -> impl Iterator<Item = (String, String)> {
    let lines = text.lines().filter_map(|line| line.trim().split_once('='));
    lines.map(|(key, value)| (key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credentials_file_is_read_as_ibms_clients_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ibm.env");
        std::fs::write(&path, "# a comment\n VPC_APIKEY=a=b \nVPC_AUTH_TYPE=IAM\nCOS_APIKEY=c\n").unwrap();
        let properties = Properties::find(Some(&path));
        assert_eq!((properties.vpc("APIKEY"), properties.vpc("AUTH_TYPE")), (Some("a=b"), Some("IAM")));
        assert_eq!((properties.vpc("URL"), properties.resource_manager_url()), (None, None));
    }
}
