//! Values of the daemons' flags.

use std::path::PathBuf;

use super::home;
use super::log::LineFormat;
use crate::model::time::Span;

/// Decimals are welcome; a timer needs a span above zero that a clock can count.
pub fn seconds(text: &str) -> Result<Span, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && (0.001..=1e9).contains(&seconds) => Ok(Span(seconds)),
        _ => Err("a number of seconds above 0 is expected, such as 10 or 0.5".to_owned()),
    }
}

/// The same, with 0 for none at all.
pub fn seconds_or_none(text: &str) -> Result<Span, String> {
    match text.parse::<f64>() {
        Ok(0.0) => Ok(Span::ZERO),
        _ => seconds(text).map_err(|error| format!("{error}, or 0")),
    }
}

/// What lines of the log look like.
pub fn line_format(text: &str) -> Result<LineFormat, String> {
    match text {
        "text" => Ok(LineFormat::Text),
        "json" => Ok(LineFormat::Json),
        _ => Err("`text` or `json` is expected".to_owned()),
    }
}

/// With `~` replaced, and independent of the folder, which changes in the background.
pub fn absolute(path: &str) -> PathBuf {
    let expanded = home::expanded(path);
    // Without a current folder there is nothing to make it absolute with; opening it will say so.
    std::path::absolute(&expanded).unwrap_or(expanded)
}
