//! Why a cloud's settings cannot be had. Every message names file, place and remedy, and no value that could be secret.

use python_yaml::diagnostics::Problem;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CloudsError {
    /// The file is there and cannot be read.
    #[error("{0}")]
    Unreadable(Problem),
    /// It is no YAML or JSON.
    #[error("{0}")]
    Malformed(Problem),
    #[error("{0}")]
    NoSuchCloud(Problem),
    #[error("{0}")]
    NoSuchRegion(Problem),
    /// The profile is one that this program has no data of, or its cloud is gone.
    #[error("{0}")]
    ProfileUnusable(Problem),
    #[error("{0}")]
    AuthTypeUnknown(Problem),
    /// Options without which nobody can log in.
    #[error("{0}")]
    AuthIncomplete(Problem),
    /// A value that means nothing where it stands.
    #[error("{0}")]
    Wrong(Problem),
}

impl CloudsError {
    /// For whoever collects problems.
    pub fn into_problem(self) -> Problem {
        match self {
            Self::Unreadable(problem)
            | Self::Malformed(problem)
            | Self::NoSuchCloud(problem)
            | Self::NoSuchRegion(problem)
            | Self::ProfileUnusable(problem)
            | Self::AuthTypeUnknown(problem)
            | Self::AuthIncomplete(problem)
            | Self::Wrong(problem) => problem,
        }
    }
}
