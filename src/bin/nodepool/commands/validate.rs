//! `config-validate`: all diagnostics of a configuration file, and whether it can be used.

use std::path::Path;

use anyhow::bail;
use nodepool::actors::process::config_files;
use nodepool::actors::process::context::BUILT_IN_DRIVERS;
use nodepool_model::config::validate::is_headline;
use python_yaml::diagnostics::{Diagnostic, Severity};
use serde_json::json;
use tracing::{error, info, warn};

use crate::output::Output;

/// Scripts search for this logger's lines.
const LOGGER: &str = "nodepool.cmd.config_validator";

pub async fn config_validate(path: &Path, output: &mut Output<'_>) -> anyhow::Result<()> {
    info!(target: LOGGER, "validating {}", path.display());
    let diagnostics = config_files::validate(path, BUILT_IN_DRIVERS).await;
    for diagnostic in &diagnostics {
        match diagnostic.severity {
            Severity::Notice => info!(target: LOGGER, "{diagnostic}"),
            Severity::Warning => warn!(target: LOGGER, "{diagnostic}"),
            Severity::Error => error!(target: LOGGER, "{diagnostic}"),
        }
    }
    let found: Vec<&Diagnostic> = diagnostics.iter().filter(|diagnostic| !is_headline(diagnostic)).collect();
    let errors = found.iter().filter(|diagnostic| diagnostic.is_error()).count();
    let outcome = if errors == 0 { "valid" } else { "invalid" };
    let list: Vec<_> = found.into_iter().map(document).collect();
    output.outcome(json!({"outcome": outcome, "file": path.display().to_string(), "problems": list}))?;
    if errors > 0 {
        bail!("{} is not valid: {errors} error{}", path.display(), if errors == 1 { "" } else { "s" });
    }
    Ok(())
}

fn document(diagnostic: &Diagnostic) -> serde_json::Value {
    json!({
        "severity": severity(diagnostic.severity),
        "file": diagnostic.file,
        "line": diagnostic.at.line,
        "column": diagnostic.at.column,
        "path": diagnostic.path,
        "message": diagnostic.message,
        "help": diagnostic.help,
    })
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Notice => "notice",
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}
