//! Arbitrary text as a configuration, with or without a secure file: loading may fail, but not panic, hang or reveal a
//! secret.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use nodepool::actors::process::config_files::{LoadError, LoadedConfig, load};
use nodepool::actors::process::files::ConfigFileSource;
use nodepool_model::config::validate::validate;
use python_yaml::diagnostics::Diagnostic;
use tokio::runtime::Builder;

/// The drivers of this version, and some whose sections are only read.
const DRIVERS: &[&str] =
    &["aws", "example", "fake", "kubernetes", "metastatic", "openshiftpods", "openstack", "static", "test"];
/// The text after this line is the secure file.
const SEPARATOR: &str = "\n#secure\n";
/// No output may contain this text if only the secure file contains it.
const SECRET: &str = "hunter2";
const MAIN: &str = "np.yaml";
const SECURE: &str = "secure.yaml";

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (main, secure) = text.split_once(SEPARATOR).map_or((text, None), |(main, secure)| (main, Some(secure)));
    let diagnostics = validate(main, MAIN, DRIVERS);
    check_diagnostics(&diagnostics, main, secure);
    let (first, second) = (loaded(main, secure), loaded(main, secure));
    match (first, second) {
        (Ok(first), Ok(second)) => {
            assert_eq!(first.config, second.config, "two loads of one file are equal");
            assert_eq!(first.stamp, second.stamp, "stamps are deterministic");
            assert!(first.diagnostics.iter().all(|diagnostic| !diagnostic.is_error()), "{:?}", first.diagnostics);
            check_diagnostics(&first.diagnostics, main, secure);
            let refused = first.config.out_of_service.iter();
            refused.for_each(|(_, reason)| assert!(!leaks_secret(reason, main, secure), "{reason}"));
        }
        (Err(first), Err(second)) => {
            assert!(first.diagnostics.iter().any(Diagnostic::is_error), "a failed load has an error");
            assert_eq!(first.diagnostics, second.diagnostics, "diagnostics are deterministic");
            assert!(!leaks_secret(&first.to_string(), main, secure), "{first}");
            check_diagnostics(&first.diagnostics, main, secure);
        }
        _ => panic!("one load succeeds and another one fails"),
    }
}

/// Loads the configuration like a daemon.
fn loaded(main: &str, secure: Option<&str>) -> Result<LoadedConfig, LoadError> {
    let texts = [(MAIN, Some(main)), (SECURE, secure)];
    let texts = texts.into_iter().filter_map(|(name, text)| Some((PathBuf::from(name), text?.to_owned())));
    let files = ConfigFileSource::InMemory(Arc::new(Mutex::new(BTreeMap::from_iter(texts))));
    let runtime = Builder::new_current_thread().build().expect("a runtime without any I/O");
    runtime.block_on(load(&files, Path::new(MAIN), secure.map(|_| Path::new(SECURE)), DRIVERS))
}

fn check_diagnostics(diagnostics: &[Diagnostic], main: &str, secure: Option<&str>) {
    for diagnostic in diagnostics {
        let shown = diagnostic.to_string();
        assert!(!diagnostic.message.is_empty() && shown.len() < 100_000, "{shown}");
        let text = match diagnostic.file.as_str() {
            MAIN => main,
            SECURE => secure.expect("a diagnostic names an existing file"),
            other => panic!("a diagnostic of the unknown file {other:?}: {shown}"),
        };
        // The end of the text counts as one more line.
        let lines = text.split(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).count() + 1;
        assert!(diagnostic.at.line as usize <= lines, "{shown} is beyond the last of {lines} lines");
        assert!(!leaks_secret(&shown, main, secure), "{shown}");
    }
}

/// Whether a text reveals the secret; keys and names are not secret.
fn leaks_secret(shown: &str, main: &str, secure: Option<&str>) -> bool {
    let is_value = |at: usize, text: &str| {
        let is_key = text[at + SECRET.len()..].trim_start_matches(['\'', '"', ' ']).starts_with(':');
        let is_name = text[..at].trim_end_matches(['\'', '"', ' ']).ends_with("name:");
        !is_key && !is_name
    };
    let is_secret = |text: &str| {
        let mut places = text.match_indices(SECRET).map(|(at, _)| at).peekable();
        places.peek().is_some() && places.all(|at| is_value(at, text))
    };
    shown.contains(SECRET) && !main.contains(SECRET) && secure.is_some_and(is_secret)
}
