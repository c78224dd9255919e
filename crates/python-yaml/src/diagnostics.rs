//! Diagnostics for a file: severity, position, message (that of Nodepool 11 if it has one), and remedy.

use std::fmt;

use crate::scalar::Position;

/// Consequence of a diagnostic for its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Information; nothing is wrong.
    Notice,
    /// The file works, but perhaps not as intended.
    Warning,
    /// The file is rejected.
    Error,
}

/// One diagnostic for a configuration file. It never contains a value that could be a secret.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    pub severity: Severity,
    /// Empty until `in_file` sets it.
    pub file: String,
    /// Line 0 is the file as a whole.
    pub at: Position,
    /// Path of the key as scripts know it, e.g. `data['labels'][0]['min-ready']`; may be empty.
    pub path: String,
    /// The text that scripts match: that of Nodepool 11 if it has one.
    pub message: String,
    /// The value found, the value expected, and the remedy; may be empty.
    pub help: String,
}

impl Diagnostic {
    pub fn new(severity: Severity, at: Position, message: impl Into<String>) -> Self {
        Self { severity, file: String::new(), at, path: String::new(), message: message.into(), help: String::new() }
    }

    pub fn error(at: Position, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, at, message)
    }

    pub fn warning(at: Position, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, at, message)
    }

    pub fn notice(at: Position, message: impl Into<String>) -> Self {
        Self::new(Severity::Notice, at, message)
    }

    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = path.into();
        self
    }

    /// Sets the name of the file, unless it is set already.
    pub fn in_file(mut self, file: &str) -> Self {
        if self.file.is_empty() {
            self.file = file.to_owned();
        }
        self
    }

    /// The same diagnostic, with its severity limited.
    pub fn at_most(mut self, severity: Severity) -> Self {
        self.severity = self.severity.min(severity);
        self
    }

    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// `<message> (<file>:<line>:<column>): <help>`, without unknown parts.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match (self.file.is_empty(), self.at.line) {
            (true, 0) => {}
            (true, line) => write!(f, " (line {line}, column {})", self.at.column)?,
            (false, 0) => write!(f, " ({})", self.file)?,
            (false, line) => write!(f, " ({}:{line}:{})", self.file, self.at.column)?,
        }
        if self.help.is_empty() { Ok(()) } else { write!(f, ": {}", self.help) }
    }
}

/// The known word nearest to a misspelt one, if it is near enough.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = simplified(word);
    let allowed = (word.chars().count() / 3).clamp(1, 3);
    known
        .into_iter()
        .filter(|candidate| candidate.len().abs_diff(word.len()) <= 3 * allowed)
        .map(|candidate| (distance(&plain, &simplified(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= allowed && *distance < candidate.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Ignores case and the difference between `-` and `_`, the least significant mistakes in a word.
/// Only the first 64 characters are compared; no key is longer.
fn simplified(word: &str) -> Vec<char> {
    word.chars().take(64).flat_map(char::to_lowercase).map(|letter| if letter == '_' { '-' } else { letter }).collect()
}

/// Number of insertions, deletions, replacements and swaps of neighbours between two words.
fn distance(left: &[char], right: &[char]) -> usize {
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (row, letter) in left.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, other) in right.iter().enumerate() {
            let replaced = last[column] + usize::from(letter != other);
            let mut best = replaced.min(last[column + 1] + 1).min(current[column] + 1);
            let swapped = row > 0 && column > 0 && left[row - 1] == *other && *letter == right[column - 1];
            if swapped {
                best = best.min(before_last[column - 1] + 1);
            }
            current.push(best);
        }
        before_last = std::mem::replace(&mut last, current);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_known_word_is_offered_only_if_it_is_near() {
        let known = ["name", "min-ready", "max-ready-age"];
        let check = |word: &str, expected: Option<&str>| assert_eq!(nearest(word, known), expected, "{word}");
        check("min_ready", Some("min-ready"));
        check("min-redy", Some("min-ready"));
        check("Name", Some("name"));
        check("nmae", Some("name"));
        check("max-age-ready", None);
        check("zz", None);
        check("", None);
    }

    #[test]
    fn a_diagnostic_reads_message_position_help() {
        let at = Position { line: 3, column: 5 };
        let problem = Diagnostic::error(at, "extra keys not allowed @ data['x']").help("unknown key");
        assert_eq!(problem.to_string(), "extra keys not allowed @ data['x'] (line 3, column 5): unknown key");
        let named = problem.in_file("np.yaml");
        assert_eq!(named.to_string(), "extra keys not allowed @ data['x'] (np.yaml:3:5): unknown key");
        assert_eq!(Diagnostic::error(Position::default(), "gone").in_file("np.yaml").to_string(), "gone (np.yaml)");
    }
}
