//! Texts of errors, with their causes, in one line of limited length; and errors of transport.

use nodepool_driver::error::{CloudError, FailureKind};

/// Longer texts are truncated.
const MAX_CHARS: usize = 500;

/// Error text with its causes, which name the actual problem.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let more = next.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = next.source();
    }
    truncated(&text)
}

/// The text as one line of limited length.
pub fn truncated(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Error of a request without a response, or with an incomplete one: it may have been executed, unless there was no
/// connection. The URL, which may be a secret, is left out.
pub fn transport_error(error: reqwest::Error) -> CloudError {
    let may_have_worked = !error.is_connect() && !error.is_builder();
    CloudError::Outage { detail: with_causes(&error.without_url()), may_have_worked }
}

/// A failure without a kind of its own.
pub fn failed(detail: impl Into<String>) -> CloudError {
    CloudError::Failed { kind: FailureKind::Unknown, detail: detail.into() }
}
