//! Configuration files: read, substitute the environment, resolve, and notice that they changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use tracing::{error, warn};

use super::files::{self, ConfigFileSource, FileStamp};
use nodepool_model::config::Config;
use nodepool_model::config::resolve::{Source, resolve};
use nodepool_model::records::ids::ProviderName;
use nodepool_zk::client::ConnectOptions;
use python_yaml::diagnostics::{Diagnostic, Severity};
use python_yaml::parse;
use python_yaml::tree::{Position, YamlNode, YamlValue};

/// The logger of the process as a whole.
const LOG_TARGET: &str = "nodepool.NodePool";
/// Somebody may be replacing the file at this very moment.
const READ_ATTEMPTS: u32 = 3;

/// A configuration in force, the warnings about it, and the files it came from.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    pub config: Arc<Config>,
    pub problems: Vec<Diagnostic>,
    pub stamp: ConfigStamp,
}

impl LoadedConfig {
    /// Puts the warnings into the log.
    pub fn log_warnings(&self) {
        for problem in &self.problems {
            warn!(target: LOG_TARGET, "{problem}");
        }
    }
}

impl LoadError {
    /// Puts into the log why what is in force stays in force.
    pub fn log(&self) {
        for problem in &self.problems {
            error!(target: LOG_TARGET, "Exception in main loop: {problem}");
        }
        error!(target: LOG_TARGET, "the configuration cannot be loaded, the running one stays in force");
    }
}

/// Everything that is wrong with the files, errors and warnings, in the order of the files.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot load {}: {}", file.display(), summary(problems))]
pub struct LoadError {
    pub file: PathBuf,
    pub problems: Vec<Diagnostic>,
    /// A later stamp that equals this one means that nobody has touched the files yet.
    pub stamp: ConfigStamp,
}

/// One state of the main and the secure file. Any difference is a reason to load again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigStamp {
    main: Option<FileStamp>,
    secure: Option<FileStamp>,
}

/// Loads the main file and, where there is one, the secure file. `built` names the drivers of this program.
pub async fn load(
    files: &ConfigFileSource,
    main: &Path,
    secure: Option<&Path>,
    built: &[&str],
) -> Result<LoadedConfig, LoadError> {
    load_with(files, main, secure, built, environment()).await
}

/// The state of the files now, to compare with that of the last attempt to load them.
pub async fn stamp(files: &ConfigFileSource, main: &Path, secure: Option<&Path>) -> ConfigStamp {
    let main = files.read(main, 1).await.ok().map(|file| file.stamp);
    let secure = match secure {
        Some(path) => files.read(path, 1).await.ok().map(|file| file.stamp),
        None => None,
    };
    ConfigStamp { main, secure }
}

/// The top-level sections of a file but for some, as YAML that says the same.
pub async fn sections(main: &Path, without: &[&str]) -> Result<String, LoadError> {
    let name = main.display().to_string();
    let mut problems = Vec::new();
    let root = match ConfigFileSource::OnDisk.read(main, READ_ATTEMPTS).await {
        Ok(file) => parse(&name, &substitute(&file.text, &environment()), &mut problems),
        Err(problem) => {
            problems.push(problem);
            None
        }
    };
    let Some(YamlNode { value: YamlValue::Map(entries), .. }) = root else {
        return Err(LoadError { file: main.to_owned(), problems, stamp: ConfigStamp::default() });
    };
    let kept = entries.iter().filter(|(key, _)| !without.contains(&key.text.as_str()));
    // A JSON text is a YAML text.
    Ok(kept.map(|(key, node)| format!("{}: {}\n", Value::from(&*key.text), node.to_json())).collect())
}

/// What `config-validate` has to say; the secure file is none of its business.
pub async fn validate(main: &Path, built: &[&str]) -> Vec<Diagnostic> {
    let name = main.display().to_string();
    match ConfigFileSource::OnDisk.read(main, READ_ATTEMPTS).await {
        Ok(file) => {
            let text = substitute(&file.text, &environment());
            let built: Vec<String> = built.iter().map(|name| (*name).to_owned()).collect();
            files::run_on_blocking_pool(move || {
                let built: Vec<&str> = built.iter().map(String::as_str).collect();
                let mut problems = nodepool_model::config::validate::validate(&text, &name, &built);
                // What the schema allows may still be refused by the driver.
                if let (Some(config), _) = resolve_texts(&name, &text, None, &built) {
                    check_with_drivers(&config, &name, &mut problems);
                    if let Err(error) = ConnectOptions::from_config(&config.zookeeper) {
                        let problem = Diagnostic::error(Position::default(), error.to_string());
                        let problem = problem.help("nodepool-launcher would not start with this file");
                        problems.push(problem.at_most(Severity::Warning).in_file(&name));
                    }
                }
                problems
            })
            .await
        }
        Err(problem) => {
            let cause =
                format!("{}{}{}", problem.message, if problem.help.is_empty() { "" } else { ": " }, problem.help);
            vec![Diagnostic::error(Position::default(), "YAML parsing failed").help(cause).in_file(&name)]
        }
    }
}

async fn load_with(
    files: &ConfigFileSource,
    main: &Path,
    secure: Option<&Path>,
    built: &[&str],
    variables: Vec<(String, String)>,
) -> Result<LoadedConfig, LoadError> {
    let mut stamp = ConfigStamp::default();
    let mut problems = Vec::new();
    let main_text = match files.read(main, READ_ATTEMPTS).await {
        Ok(file) => {
            stamp.main = Some(file.stamp);
            Some(file.text)
        }
        Err(problem) => {
            problems.push(problem);
            None
        }
    };
    let mut secure_text = None;
    if let Some(path) = secure {
        match files.read(path, READ_ATTEMPTS).await {
            Ok(file) => {
                stamp.secure = Some(file.stamp);
                secure_text = Some((path.display().to_string(), file.text));
            }
            Err(problem) => problems.push(problem),
        }
    }
    let Some(main_text) = main_text.filter(|_| problems.is_empty()) else {
        return Err(LoadError { file: main.to_owned(), problems, stamp });
    };
    let main_name = main.display().to_string();
    let built: Vec<String> = built.iter().map(|name| (*name).to_owned()).collect();
    // Half a second of work for the largest files, and other actors share this thread.
    let resolved = files
        .run_cpu_bound(move || {
            let built: Vec<&str> = built.iter().map(String::as_str).collect();
            let main_text = substitute(&main_text, &variables);
            let secure = secure_text.map(|(name, text)| (name, substitute(&text, &variables)));
            let secure = secure.as_ref().map(|(name, text)| (name.as_str(), text.as_str()));
            let (config, mut problems) = resolve_texts(&main_name, &main_text, secure, &built);
            let config = config.map(|config| {
                let refused = check_with_drivers(&config, &main_name, &mut problems);
                put_out_of_service(config, refused)
            });
            (config, problems)
        })
        .await;
    match resolved {
        (Some(config), problems) => Ok(LoadedConfig { config, problems, stamp }),
        (None, problems) => Err(LoadError { file: main.to_owned(), problems, stamp }),
    }
}

/// A provider whose driver refuses its section harms no other: it is out of service, and everybody can see why.
fn put_out_of_service(mut config: Arc<Config>, refused: BTreeMap<ProviderName, String>) -> Arc<Config> {
    if !refused.is_empty() {
        let config = Arc::make_mut(&mut config);
        config.providers.retain(|name, _| !refused.contains_key(name));
        config.out_of_service.extend(refused);
    }
    config
}

/// Tells what the drivers say against their sections, as warnings; returns who cannot be used, and why.
fn check_with_drivers(config: &Config, file: &str, problems: &mut Vec<Diagnostic>) -> BTreeMap<ProviderName, String> {
    let mut refused = BTreeMap::new();
    for (name, section) in &config.providers {
        let (mut reasons, mut reported) = (Vec::new(), Vec::new());
        for mut problem in nodepool_drivers::diagnostics(section) {
            if problem.is_error() {
                let out = format!("with this the provider {name} is out of service");
                problem.help = if problem.help.is_empty() { out } else { format!("{}; {out}", problem.help) };
                reasons.push(problem.clone().in_file(file).to_string());
            }
            reported.push(problem.at_most(Severity::Warning).in_file(file));
        }
        // What was said of a place already, in the words of the schema, need not be said again in those of a driver.
        reported.retain(|problem| !problems.iter().any(|reported| reported.at == problem.at));
        problems.extend(reported);
        if !reasons.is_empty() {
            refused.insert(name.clone(), reasons.join("; "));
        }
    }
    refused
}

fn resolve_texts(
    main_name: &str,
    main_text: &str,
    secure: Option<(&str, &str)>,
    built: &[&str],
) -> (Option<Arc<Config>>, Vec<Diagnostic>) {
    let mut problems = Vec::new();
    let main_root = parse(main_name, main_text, &mut problems);
    let secure_root = secure.and_then(|(name, text)| parse_secure(name, text, &mut problems));
    let (Some(main_root), Some(secure_root)) = (main_root, secure_root.map(Some).or(secure.is_none().then_some(None)))
    else {
        return (None, problems);
    };
    let main = Source { file: main_name, root: &main_root };
    let secure = secure.zip(secure_root.as_ref()).map(|((file, _), root)| Source { file, root });
    let resolved = resolve(main, secure, built);
    problems.extend(resolved.diagnostics);
    (resolved.config, problems)
}

fn parse(name: &str, text: &str, problems: &mut Vec<Diagnostic>) -> Option<YamlNode> {
    let mut found = Vec::new();
    let root = parse::parse(text, &mut found).map_err(|problem| found.push(problem)).ok();
    problems.extend(found.into_iter().map(|problem| problem.in_file(name)));
    root
}

/// A syntax error may quote what it stumbled over, so of a secure file only the place is told.
fn parse_secure(name: &str, text: &str, problems: &mut Vec<Diagnostic>) -> Option<YamlNode> {
    let parsed = parse::parse(text, &mut Vec::new());
    parsed
        .map_err(|problem| {
            let reported = Diagnostic::error(problem.at, "YAML parsing failed");
            problems.push(reported.help("the secure file is not YAML at or before this place").in_file(name));
        })
        .ok()
}

/// The variables that a file may refer to.
fn environment() -> Vec<(String, String)> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).filter(|(name, _)| name.starts_with("NODEPOOL_")).collect()
}

/// Replaces each `%(NAME)` by the value of that variable, one variable after another, before YAML sees the text.
fn substitute(text: &str, variables: &[(String, String)]) -> String {
    let mut text = text.to_owned();
    for (name, value) in variables {
        let placeholder = format!("%({name})");
        if text.contains(&placeholder) {
            text = text.replace(&placeholder, value);
        }
    }
    text
}

fn summary(problems: &[Diagnostic]) -> String {
    let errors: Vec<&Diagnostic> = problems.iter().filter(|problem| problem.is_error()).collect();
    match errors[..] {
        [] => "nothing was found wrong".to_owned(),
        [only] => only.to_string(),
        [first, ..] => format!("{} errors, the first: {first}", errors.len()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use python_yaml::parse::MAX_BYTES;

    const BUILT: &[&str] = &["static"];

    fn write(directory: &tempfile::TempDir, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = directory.path().join(name);
        std::fs::write(&path, contents).unwrap();
        path
    }

    fn no_variables() -> Vec<(String, String)> {
        Vec::new()
    }

    #[tokio::test]
    async fn a_file_loads_with_its_stamp() {
        let directory = tempfile::tempdir().unwrap();
        let main = write(&directory, "np.yaml", "labels: [{name: a}]\n");
        let loaded = load_with(&ConfigFileSource::OnDisk, &main, None, BUILT, no_variables()).await.unwrap();
        assert!(loaded.config.labels.contains_key("a"));
        assert_eq!(stamp(&ConfigFileSource::OnDisk, &main, None).await, loaded.stamp);
    }

    #[tokio::test]
    async fn every_change_of_either_file_changes_the_stamp() {
        let directory = tempfile::tempdir().unwrap();
        let main = write(&directory, "np.yaml", "a: 1\n");
        let secure = write(&directory, "secure.yaml", "a: 1\n");
        let first = stamp(&ConfigFileSource::OnDisk, &main, Some(&secure)).await;
        let time = std::fs::metadata(&main).unwrap().modified().unwrap();
        write(&directory, "np.yaml", "a: 2\n");
        std::fs::File::options().write(true).open(&main).unwrap().set_modified(time).unwrap();
        let second = stamp(&ConfigFileSource::OnDisk, &main, Some(&secure)).await;
        assert_ne!(first, second, "same time and size, other contents");
        let touched = std::fs::File::options().write(true).open(&secure).unwrap();
        touched.set_modified(time - Duration::from_nanos(1)).unwrap();
        let third = stamp(&ConfigFileSource::OnDisk, &main, Some(&secure)).await;
        assert_ne!(second, third, "touched, and back in time at that");
        std::fs::remove_file(&secure).unwrap();
        assert_ne!(third, stamp(&ConfigFileSource::OnDisk, &main, Some(&secure)).await);
    }

    // config.md check 48
    #[tokio::test]
    async fn an_empty_secure_file_is_no_reason_to_reload() {
        let directory = tempfile::tempdir().unwrap();
        let main = write(&directory, "np.yaml", "labels: [{name: a}]\n");
        let secure = write(&directory, "secure.yaml", "");
        let loaded = load_with(&ConfigFileSource::OnDisk, &main, Some(&secure), BUILT, no_variables()).await.unwrap();
        assert_eq!(loaded.stamp, stamp(&ConfigFileSource::OnDisk, &main, Some(&secure)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn file_that_reappears_between_attempts_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("np.yaml");
        let loading = load_with(&ConfigFileSource::OnDisk, &path, None, BUILT, no_variables());
        let writing = async {
            tokio::time::sleep(Duration::from_millis(700)).await;
            std::fs::write(&path, "labels: []\n").unwrap();
        };
        let (loaded, ()) = tokio::join!(loading, writing);
        loaded.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn unreadable_file_is_reported_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("gone.yaml");
        let error = load_with(&ConfigFileSource::OnDisk, &missing, None, BUILT, no_variables()).await.unwrap_err();
        assert!(error.to_string().contains("[Errno 2] No such file or directory: '"), "{error}");
        let error =
            load_with(&ConfigFileSource::OnDisk, directory.path(), None, BUILT, no_variables()).await.unwrap_err();
        assert!(error.to_string().contains("not a file"), "{error}");
        let binary = write(&directory, "np.yaml", b"a: 1\nb: \xff\xfe\n");
        let error = load_with(&ConfigFileSource::OnDisk, &binary, None, BUILT, no_variables()).await.unwrap_err();
        assert!(error.to_string().contains("file is not UTF-8") && error.to_string().contains("line 2"), "{error}");
        let huge = write(&directory, "huge.yaml", vec![b' '; MAX_BYTES + 1]);
        let error = load_with(&ConfigFileSource::OnDisk, &huge, None, BUILT, no_variables()).await.unwrap_err();
        assert!(error.to_string().contains("file is too large"), "{error}");
    }

    #[tokio::test]
    async fn errors_of_a_secure_file_do_not_quote_it() {
        let directory = tempfile::tempdir().unwrap();
        let main = write(&directory, "np.yaml", "labels: []\n");
        for text in
            ["password: *hunter2\n", "a: hunter2: b\n", "diskimages: hunter2\n", "hunter2\n", "zookeeper-tls: hunter2"]
        {
            let secure = write(&directory, "secure.yaml", text);
            let error =
                load_with(&ConfigFileSource::OnDisk, &main, Some(&secure), BUILT, no_variables()).await.unwrap_err();
            assert!(error.to_string().contains("secure.yaml"), "{error}");
            assert!(!format!("{error:?} {error}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn only_set_variables_are_replaced() {
        let variables = [("NODEPOOL_A", "x%(NODEPOOL_B)"), ("NODEPOOL_B", "8005")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let check = |text: &str, expected: &str| assert_eq!(substitute(text, &variables), expected);
        check("port: %(NODEPOOL_B)", "port: 8005");
        check("'%(NODEPOOL_A)' %(NODEPOOL_B)s", "'x8005' 8005s");
        check("%(NODEPOOL_C) %(HOME) %NODEPOOL_B", "%(NODEPOOL_C) %(HOME) %NODEPOOL_B");
    }
}
