//! clouds.yaml as openstacksdk reads it: the settings of one region of one cloud.
//!
//! Providers use `load`; `resolve` is the same without the file system. Both run at each load of the configuration, so
//! a change of a clouds file takes effect at the next reload.

mod auth;
pub mod config_paths;
pub mod error;
pub(crate) mod load;
pub(crate) mod merge;
mod networks;
pub(crate) mod normalize;
mod parse;
mod profiles;
pub mod secret;
mod select;
pub mod settings;

pub use config_paths::{ConfigFiles, ConfigPaths, Environment, FileText};
pub use error::CloudsError;
pub use secret::Secret;
pub use select::CloudSelector;
pub use settings::*;

use python_yaml::diagnostics::Diagnostic;

/// A cloud's settings, and warnings about its files.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedCloud {
    pub settings: CloudSettings,
    /// None of them is an error.
    pub warnings: Vec<Diagnostic>,
}

/// Reads the files and resolves the settings of a cloud.
pub fn load(paths: &ConfigPaths, selector: CloudSelector<'_>) -> Result<LoadedCloud, CloudsError> {
    resolve(&config_paths::read(paths)?, selector)
}

/// Resolves the settings of a cloud from the texts of these files, without I/O.
pub fn resolve(files: &ConfigFiles, selector: CloudSelector<'_>) -> Result<LoadedCloud, CloudsError> {
    let mut warnings = Vec::new();
    let clouds = select::Clouds::new(files, &mut warnings)?;
    let entry = clouds.entry(selector, files, &mut warnings)?;
    let settings = load::settings(entry, &clouds.root, &files.environment, &mut warnings)?;
    Ok(LoadedCloud { settings, warnings })
}

#[cfg(test)]
mod tests;
