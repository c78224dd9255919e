//! Errors of loading a cloud. Every message names file, position and remedy, and no value that could be secret.

use python_yaml::diagnostics::Diagnostic;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CloudsError {
    /// The file exists but cannot be read.
    #[error("{0}")]
    Unreadable(Diagnostic),
    /// The file is not YAML or JSON.
    #[error("{0}")]
    Malformed(Diagnostic),
    #[error("{0}")]
    NoSuchCloud(Diagnostic),
    #[error("{0}")]
    NoSuchRegion(Diagnostic),
    /// This program has no data for the profile, or its cloud no longer exists.
    #[error("{0}")]
    ProfileUnusable(Diagnostic),
    #[error("{0}")]
    AuthTypeUnknown(Diagnostic),
    /// Options that are required for a login are missing.
    #[error("{0}")]
    AuthIncomplete(Diagnostic),
    /// A value is not valid for its key.
    #[error("{0}")]
    Invalid(Diagnostic),
}

impl CloudsError {
    /// The diagnostic, for a caller that collects them.
    pub fn into_diagnostic(self) -> Diagnostic {
        match self {
            Self::Unreadable(problem)
            | Self::Malformed(problem)
            | Self::NoSuchCloud(problem)
            | Self::NoSuchRegion(problem)
            | Self::ProfileUnusable(problem)
            | Self::AuthTypeUnknown(problem)
            | Self::AuthIncomplete(problem)
            | Self::Invalid(problem) => problem,
        }
    }
}
