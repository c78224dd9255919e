//! Configuration files: reading, substitution of environment variables, resolution, and detection of changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use tracing::{error, warn};

use super::context::LauncherOptions;
use super::files::{self, ConfigFileSource, FileStamp};
use nodepool_model::config::Config;
use nodepool_model::config::resolve::{Source, resolve};
use nodepool_model::records::ids::ProviderName;
use nodepool_zk::client::ConnectOptions;
use python_yaml::diagnostics::{Diagnostic, Severity};
use python_yaml::parse;
use python_yaml::tree::{Position, YamlNode, YamlValue};

/// Logger of the process as a whole.
const LOG_TARGET: &str = "nodepool.NodePool";
/// Attempts to read a file, which may be missing while it is being replaced.
const READ_ATTEMPTS: u32 = 3;

/// A usable configuration, the warnings about it, and the state of its files.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    pub config: Arc<Config>,
    pub diagnostics: Vec<Diagnostic>,
    pub stamp: ConfigStamp,
}

impl LoadedConfig {
    /// Logs the warnings.
    pub fn log_warnings(&self) {
        for diagnostic in &self.diagnostics {
            warn!(target: LOG_TARGET, "{diagnostic}");
        }
    }
}

impl LoadError {
    /// Logs why the active configuration is kept.
    pub fn log(&self) {
        for diagnostic in &self.diagnostics {
            error!(target: LOG_TARGET, "Exception in main loop: {diagnostic}");
        }
        error!(target: LOG_TARGET, "cannot load the configuration; keeping the active one");
    }
}

/// A load that failed: all errors and warnings, in the order of the files.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot load {}: {}", file.display(), summary(diagnostics))]
pub struct LoadError {
    pub file: PathBuf,
    pub diagnostics: Vec<Diagnostic>,
    /// A later stamp that equals this one means that the files have not changed.
    pub stamp: ConfigStamp,
}

/// State of the main and the secure file. Any difference triggers a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigStamp {
    main: Option<FileStamp>,
    secure: Option<FileStamp>,
}

impl ConfigStamp {
    /// Whether no file is missing. A missing file may be about to be replaced.
    pub fn is_complete(&self, options: &LauncherOptions) -> bool {
        self.main.is_some() && self.secure.is_some() == options.secure.is_some()
    }
}

/// Loads the main file and the secure file, if any. `built` names the drivers of this program.
pub async fn load(
    files: &ConfigFileSource,
    main: &Path,
    secure: Option<&Path>,
    built: &[&str],
) -> Result<LoadedConfig, LoadError> {
    load_with(files, main, secure, built, environment()).await
}

/// Current state of the files, for a comparison with the last load.
pub async fn stamp(files: &ConfigFileSource, main: &Path, secure: Option<&Path>) -> ConfigStamp {
    let main = files.read(main, 1).await.ok().map(|file| file.stamp);
    let secure = match secure {
        Some(path) => files.read(path, 1).await.ok().map(|file| file.stamp),
        None => None,
    };
    ConfigStamp { main, secure }
}

/// Current state of a process's files.
pub async fn stamp_of(options: &LauncherOptions) -> ConfigStamp {
    stamp(&options.files, &options.config, options.secure.as_deref()).await
}

/// The top-level sections of a file except those in `without`, as equivalent YAML.
pub async fn sections(main: &Path, without: &[&str]) -> Result<String, LoadError> {
    let name = main.display().to_string();
    let mut diagnostics = Vec::new();
    let root = match ConfigFileSource::OnDisk.read(main, READ_ATTEMPTS).await {
        Ok(file) => parse(&name, &substitute(&file.text, &environment()), &mut diagnostics),
        Err(diagnostic) => {
            diagnostics.push(diagnostic);
            None
        }
    };
    let Some(YamlNode { value: YamlValue::Map(entries), .. }) = root else {
        return Err(LoadError { file: main.to_owned(), diagnostics, stamp: ConfigStamp::default() });
    };
    let selected = entries.iter().filter(|(key, _)| !without.contains(&key.text.as_str()));
    // JSON is a subset of YAML.
    Ok(selected.map(|(key, node)| format!("{}: {}\n", Value::from(&*key.text), node.to_json())).collect())
}

/// Diagnostics of `config-validate`, which does not read the secure file.
pub async fn validate(main: &Path, built: &[&str]) -> Vec<Diagnostic> {
    let name = main.display().to_string();
    match ConfigFileSource::OnDisk.read(main, READ_ATTEMPTS).await {
        Ok(file) => {
            let text = substitute(&file.text, &environment());
            let built: Vec<String> = built.iter().map(|name| (*name).to_owned()).collect();
            files::run_on_blocking_pool(move || {
                let built: Vec<&str> = built.iter().map(String::as_str).collect();
                let mut diagnostics = nodepool_model::config::validate::validate(&text, &name, &built);
                // The driver may reject what the schema allows.
                if let (Some(config), _) = resolve_texts(&name, &text, None, &built) {
                    check_with_drivers(&config, &name, &mut diagnostics);
                    if let Err(error) = ConnectOptions::from_config(&config.zookeeper) {
                        let diagnostic = Diagnostic::error(Position::default(), error.to_string());
                        let diagnostic = diagnostic.help("nodepool-launcher would not start with this file");
                        diagnostics.push(diagnostic.at_most(Severity::Warning).in_file(&name));
                    }
                }
                diagnostics
            })
            .await
        }
        Err(diagnostic) => {
            let cause = format!(
                "{}{}{}",
                diagnostic.message,
                if diagnostic.help.is_empty() { "" } else { ": " },
                diagnostic.help
            );
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
    let mut diagnostics = Vec::new();
    let main_text = match files.read(main, READ_ATTEMPTS).await {
        Ok(file) => {
            stamp.main = Some(file.stamp);
            Some(file.text)
        }
        Err(diagnostic) => {
            diagnostics.push(diagnostic);
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
            Err(diagnostic) => diagnostics.push(diagnostic),
        }
    }
    let Some(main_text) = main_text.filter(|_| diagnostics.is_empty()) else {
        return Err(LoadError { file: main.to_owned(), diagnostics, stamp });
    };
    let main_name = main.display().to_string();
    let built: Vec<String> = built.iter().map(|name| (*name).to_owned()).collect();
    // The largest files take half a second, and other actors share this thread.
    let resolved = files
        .run_cpu_bound(move || {
            let built: Vec<&str> = built.iter().map(String::as_str).collect();
            let main_text = substitute(&main_text, &variables);
            let secure = secure_text.map(|(name, text)| (name, substitute(&text, &variables)));
            let secure = secure.as_ref().map(|(name, text)| (name.as_str(), text.as_str()));
            let (config, mut diagnostics) = resolve_texts(&main_name, &main_text, secure, &built);
            let config = config.map(|config| {
                let refused = check_with_drivers(&config, &main_name, &mut diagnostics);
                disable_providers(config, refused)
            });
            (config, diagnostics)
        })
        .await;
    match resolved {
        (Some(config), diagnostics) => Ok(LoadedConfig { config, diagnostics, stamp }),
        (None, diagnostics) => Err(LoadError { file: main.to_owned(), diagnostics, stamp }),
    }
}

/// A provider whose driver rejects its section does not affect the others: it is out of service, with the reason
/// recorded.
fn disable_providers(mut config: Arc<Config>, refused: BTreeMap<ProviderName, String>) -> Arc<Config> {
    if !refused.is_empty() {
        let config = Arc::make_mut(&mut config);
        config.providers.retain(|name, _| !refused.contains_key(name));
        config.out_of_service.extend(refused);
    }
    config
}

/// Adds the diagnostics of the drivers, as warnings. Returns the providers that cannot be used, with the reason.
fn check_with_drivers(
    config: &Config,
    file: &str,
    diagnostics: &mut Vec<Diagnostic>,
) -> BTreeMap<ProviderName, String> {
    let mut refused = BTreeMap::new();
    for (name, section) in &config.providers {
        let (mut reasons, mut reported) = (Vec::new(), Vec::new());
        for mut diagnostic in nodepool_drivers::diagnostics(section) {
            if diagnostic.is_error() {
                let consequence = format!("provider {name} is out of service because of this error");
                diagnostic.help = if diagnostic.help.is_empty() {
                    consequence
                } else {
                    format!("{}; {consequence}", diagnostic.help)
                };
                reasons.push(diagnostic.clone().in_file(file).to_string());
            }
            reported.push(diagnostic.at_most(Severity::Warning).in_file(file));
        }
        // A position that the schema check already reported is not reported again by the driver.
        reported.retain(|diagnostic| !diagnostics.iter().any(|reported| reported.at == diagnostic.at));
        diagnostics.extend(reported);
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
    let mut diagnostics = Vec::new();
    let main_root = parse(main_name, main_text, &mut diagnostics);
    let secure_root = secure.and_then(|(name, text)| parse_secure(name, text, &mut diagnostics));
    let (Some(main_root), Some(secure_root)) = (main_root, secure_root.map(Some).or(secure.is_none().then_some(None)))
    else {
        return (None, diagnostics);
    };
    let main = Source { file: main_name, root: &main_root };
    let secure = secure.zip(secure_root.as_ref()).map(|((file, _), root)| Source { file, root });
    let resolved = resolve(main, secure, built);
    diagnostics.extend(resolved.diagnostics);
    (resolved.config, diagnostics)
}

fn parse(name: &str, text: &str, diagnostics: &mut Vec<Diagnostic>) -> Option<YamlNode> {
    let mut found = Vec::new();
    let root = parse::parse(text, &mut found).map_err(|diagnostic| found.push(diagnostic)).ok();
    diagnostics.extend(found.into_iter().map(|diagnostic| diagnostic.in_file(name)));
    root
}

/// A syntax error may quote the text of the file, so only its position is reported for a secure file.
fn parse_secure(name: &str, text: &str, diagnostics: &mut Vec<Diagnostic>) -> Option<YamlNode> {
    let parsed = parse::parse(text, &mut Vec::new());
    parsed
        .map_err(|diagnostic| {
            let reported = Diagnostic::error(diagnostic.at, "YAML parsing failed");
            diagnostics.push(reported.help("the secure file is not YAML at or before this position").in_file(name));
        })
        .ok()
}

/// Environment variables that a configuration file may refer to.
fn environment() -> Vec<(String, String)> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).filter(|(name, _)| name.starts_with("NODEPOOL_")).collect()
}

/// Replaces each `%(NAME)` by the value of that variable, one variable after another, before the text is parsed as
/// YAML.
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

fn summary(diagnostics: &[Diagnostic]) -> String {
    let errors: Vec<&Diagnostic> = diagnostics.iter().filter(|diagnostic| diagnostic.is_error()).collect();
    match errors[..] {
        [] => "no errors".to_owned(),
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
        assert_ne!(second, third, "touched, with an earlier time");
        std::fs::remove_file(&secure).unwrap();
        assert_ne!(third, stamp(&ConfigFileSource::OnDisk, &main, Some(&secure)).await);
    }

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
    async fn a_provider_that_its_driver_rejects_is_out_of_service() {
        let directory = tempfile::tempdir().unwrap();
        let node = "{name: h, labels: a, connection-port: 0}";
        let provider = format!("{{name: p, driver: static, pools: [{{name: main, nodes: [{node}]}}]}}");
        let main = write(&directory, "np.yaml", format!("labels: [{{name: a}}]\nproviders: [{provider}]\n"));
        let loaded = load_with(&ConfigFileSource::OnDisk, &main, None, BUILT, no_variables()).await.unwrap();
        let reason = &loaded.config.out_of_service["p"];
        assert!(
            reason.ends_with(": it is 0, expected 1 to 65535; provider p is out of service because of this error"),
            "{reason}"
        );
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
