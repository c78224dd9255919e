//! Validation of a file for `config-validate`: the steps, their order and their texts.

use std::collections::{BTreeMap, BTreeSet};

use super::diagnostics::Source;
use super::references;
use super::resolve::load;
use super::schema::check;
use python_yaml::diagnostics::{Diagnostic, Severity};
use python_yaml::parse;
use python_yaml::tree::Position;

/// Line before the diagnostics of the schema, which scripts match. It is not a problem of its own.
const HEADLINE: &str = "Schema validation failed";

pub fn is_headline(problem: &Diagnostic) -> bool {
    problem.message == HEADLINE
}

/// All diagnostics for the text of a file after substitution. An error means exit status 1.
pub fn validate(text: &str, file: &str, available_drivers: &[&str]) -> Vec<Diagnostic> {
    let mut problems = Vec::new();
    let root = match parse::parse(text, &mut problems) {
        Ok(root) => root,
        Err(problem) => {
            let cause = format!("{}: {}", problem.message, problem.help);
            problems.push(Diagnostic::error(problem.at, "YAML parsing failed").help(cause));
            return problems.into_iter().map(|problem| problem.in_file(file)).collect();
        }
    };
    let schema_problems = check::check(&root, available_drivers);
    if !schema_problems.is_empty() {
        let help = format!("{} found", schema_problems.len());
        problems.push(Diagnostic::error(Default::default(), HEADLINE).help(help));
        problems.extend(schema_problems);
    }
    problems.extend(references::check(&root));
    let (_, diagnostics) = load(Source { file, root: &root }, None, available_drivers);
    let for_loader = diagnostics.loader_only.into_iter().map(|mut problem| {
        problem.help.push_str("; the daemons refuse to load the file because of this");
        problem.at_most(Severity::Warning)
    });
    // A loader diagnostic is dropped if the schema reported its position already with at least the same severity.
    let mut reported: BTreeMap<Position, Severity> = BTreeMap::new();
    for problem in &problems {
        let worst = reported.entry(problem.at).or_insert(problem.severity);
        *worst = problem.severity.max(*worst);
    }
    let mut seen = BTreeSet::new();
    for problem in diagnostics.items.into_iter().chain(for_loader) {
        let is_new = reported.get(&problem.at).is_none_or(|worst| *worst < problem.severity);
        if is_new && seen.insert((problem.at, problem.message.clone())) {
            problems.push(problem);
        }
    }
    problems.into_iter().map(|problem| problem.in_file(file)).collect()
}
