//! Paths of the clouds files, and the only function that reads them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::error::CloudsError;
use python_yaml::diagnostics::Diagnostic;
use python_yaml::tree::Position;

const SUFFIXES: [&str; 3] = ["yaml", "yml", "json"];

/// Candidates for each file, in descending precedence, and the environment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfigPaths {
    pub clouds: Vec<PathBuf>,
    pub secure: Vec<PathBuf>,
    pub vendors: Vec<PathBuf>,
    pub environment: Environment,
}

/// The relevant part of the environment.
#[derive(Clone, Default, PartialEq)]
pub struct Environment {
    /// `OS_…` and `STATSD_…`.
    pub variables: BTreeMap<String, String>,
    /// The home directory, for `~`.
    pub home: Option<PathBuf>,
}

/// Shows no values, because `OS_PASSWORD` is among the variables.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.variables.keys().collect();
        f.debug_struct("Environment").field("variables", &names).field("home", &self.home).finish()
    }
}

/// The text of each file in effect.
#[derive(Clone, Default)]
pub struct ConfigFiles {
    pub clouds: Option<FileText>,
    pub secure: Option<FileText>,
    pub vendors: Option<FileText>,
    /// Searched paths, for the error if no cloud is found.
    pub searched: Vec<PathBuf>,
    pub environment: Environment,
}

#[derive(Clone)]
pub struct FileText {
    pub path: PathBuf,
    pub text: String,
}

impl ConfigPaths {
    /// Candidates: first the files that environment variables name, then those in these directories.
    pub fn new(directories: &[PathBuf], environment: Environment) -> Self {
        let list = |variable: &str, stem: &str| {
            let named = environment.variables.get(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
            let in_directory = |directory: &PathBuf| SUFFIXES.map(|suffix| directory.join(format!("{stem}.{suffix}")));
            named.into_iter().chain(directories.iter().flat_map(in_directory)).collect()
        };
        Self {
            clouds: list("OS_CLIENT_CONFIG_FILE", "clouds"),
            secure: list("OS_CLIENT_SECURE_FILE", "secure"),
            vendors: list("OS_CLIENT_VENDOR_FILE", "clouds-public"),
            environment,
        }
    }

    /// All candidates.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.clouds.iter().chain(&self.secure).chain(&self.vendors)
    }

    /// Paths for the environment of this process.
    pub fn from_process() -> Self {
        let variables =
            env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let variables: BTreeMap<String, String> = variables.collect();
        let directories = directories(&variables, env::current_dir().ok(), env::home_dir());
        let is_relevant = |name: &String| name.starts_with("OS_") || name.starts_with("STATSD_");
        let variables = variables.into_iter().filter(|(name, _)| is_relevant(name)).collect();
        Self::new(&directories, Environment { variables, home: env::home_dir() })
    }
}

/// The current directory, the user's and the site's configuration directories, and `/etc/openstack`.
pub fn directories(
    variables: &BTreeMap<String, String>,
    current: Option<PathBuf>,
    home: Option<PathBuf>,
) -> Vec<PathBuf> {
    let absolute = |path: &str| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let variable = |name: &str| variables.get(name).map_or("", String::as_str);
    // Inside a snap, HOME is not the user's home directory.
    let real_home = Some(variable("SNAP_REAL_HOME")).filter(|path| !path.is_empty()).map(PathBuf::from);
    let user = home.as_ref().map(|home| home.join(".config"));
    let real_user = real_home.or(home).map(|home| home.join(".config"));
    let mut site: Vec<PathBuf> = variable("XDG_CONFIG_DIRS").split(':').filter_map(absolute).collect();
    if site.is_empty() {
        site.push(PathBuf::from("/etc/xdg"));
    }
    let users = [absolute(variable("XDG_CONFIG_HOME")).or(user), real_user];
    let mut directories: Vec<PathBuf> = current.into_iter().collect();
    directories.extend(users.into_iter().flatten().chain(site).map(|directory| directory.join("openstack")));
    directories.push(PathBuf::from("/etc/openstack"));
    directories
}

/// Reads the first existing file of each kind. An unreadable one is an error, because another file in its place would
/// be unexpected.
pub fn read(paths: &ConfigPaths) -> Result<ConfigFiles, CloudsError> {
    Ok(ConfigFiles {
        clouds: read_first(&paths.clouds)?,
        secure: read_first(&paths.secure)?,
        vendors: read_first(&paths.vendors)?,
        searched: paths.clouds.clone(),
        environment: paths.environment.clone(),
    })
}

fn read_first(paths: &[PathBuf]) -> Result<Option<FileText>, CloudsError> {
    let Some(path) = paths.iter().find(|path| path.exists()) else { return Ok(None) };
    let text = fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
    Ok(Some(FileText { path: path.clone(), text }))
}

fn unreadable(path: &Path, error: &std::io::Error) -> CloudsError {
    let help = format!("{error}; make it readable for this program's user and encode it as UTF-8, or move it away");
    let problem = Diagnostic::error(Position::default(), "cannot read the file").help(help);
    CloudsError::Unreadable(problem.in_file(&path.display().to_string()))
}
