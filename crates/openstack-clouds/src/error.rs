//! Why a cloud's settings cannot be had. Every message names file, place and remedy, and no value that could be secret.

use python_yaml::diagnostics::Diagnostic;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CloudsError {
    /// The file is there and cannot be read.
    #[error("{0}")]
    Unreadable(Diagnostic),
    /// It is no YAML or JSON.
    #[error("{0}")]
    Malformed(Diagnostic),
    #[error("{0}")]
    NoSuchCloud(Diagnostic),
    #[error("{0}")]
    NoSuchRegion(Diagnostic),
    /// The profile is one that this program has no data of, or its cloud is gone.
    #[error("{0}")]
    ProfileUnusable(Diagnostic),
    #[error("{0}")]
    AuthTypeUnknown(Diagnostic),
    /// Options without which nobody can log in.
    #[error("{0}")]
    AuthIncomplete(Diagnostic),
    /// A value that means nothing where it stands.
    #[error("{0}")]
    Invalid(Diagnostic),
}

impl CloudsError {
    /// For whoever collects problems.
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
