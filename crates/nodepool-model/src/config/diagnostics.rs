//! Collector of configuration diagnostics: resolving continues after an error, so that all errors are reported at once.

use python_yaml::diagnostics::Diagnostic;
use python_yaml::tree::{Position, YamlNode, python_quoted};

/// A parsed file and its name in messages.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    pub file: &'a str,
    pub root: &'a YamlNode,
}

/// Diagnostics of a loader.
#[derive(Debug, Default)]
pub struct Diagnostics {
    pub items: Vec<Diagnostic>,
    /// Errors that prevent loading although Nodepool 11's validator accepts the file; warnings in `config-validate`.
    pub loader_only: Vec<Diagnostic>,
}

impl Diagnostics {
    pub fn error(&mut self, at: Position, message: impl Into<String>, help: impl Into<String>) {
        self.items.push(Diagnostic::error(at, message).help(help));
    }

    pub fn warning(&mut self, at: Position, message: impl Into<String>, help: impl Into<String>) {
        self.items.push(Diagnostic::warning(at, message).help(help));
    }

    pub fn notice(&mut self, at: Position, message: impl Into<String>, help: impl Into<String>) {
        self.items.push(Diagnostic::notice(at, message).help(help));
    }

    pub fn loader_error(&mut self, at: Position, message: impl Into<String>, help: impl Into<String>) {
        self.loader_only.push(Diagnostic::error(at, message).help(help));
    }

    /// The value of a result. After an error, the diagnostic is recorded and the default is returned.
    pub fn or_default<T: Default>(&mut self, result: Result<T, Diagnostic>) -> T {
        result.unwrap_or_else(|diagnostic| {
            self.items.push(diagnostic);
            T::default()
        })
    }

    /// The text at a required key.
    pub fn required(&mut self, section: &YamlNode, key: &str, what: &str) -> Option<String> {
        match section.text(key) {
            Ok(Some(text)) => Some(text),
            Ok(None) => {
                self.missing_key(section.at, key, format!("{what} needs `{key}`"));
                None
            }
            Err(diagnostic) => {
                self.items.push(diagnostic);
                None
            }
        }
    }

    /// Reports a missing key, for which Nodepool 11 stops with a bare `KeyError`.
    pub fn missing_key(&mut self, at: Position, key: &str, help: impl Into<String>) {
        self.error(at, format!("KeyError: {}", python_quoted(key)), help);
    }

    /// Reports a name that does not exist, for which Nodepool 11 stops with the same error. Its validator checks few of
    /// these names.
    pub fn unknown_name(&mut self, at: Position, name: &str, help: impl Into<String>) {
        self.loader_error(at, format!("KeyError: {}", python_quoted(name)), help);
    }

    /// The mappings in a list; any other item is an error.
    pub fn mappings<'a>(&mut self, section: &'a YamlNode, key: &str, what: &str) -> Vec<&'a YamlNode> {
        let items = match section.list(key) {
            Ok(items) => items,
            Err(problem) => {
                self.items.push(problem);
                return Vec::new();
            }
        };
        let mut mappings = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            if matches!(item.value, python_yaml::tree::YamlValue::Map(_)) {
                mappings.push(item);
                continue;
            }
            let path = format!("data[{}][{index}]", python_quoted(key));
            let help = format!("{what} must be a mapping, not {}", item.value.type_name());
            self.items
                .push(Diagnostic::error(item.at, format!("expected a dictionary @ {path}")).path(path).help(help));
        }
        mappings
    }
}
