//! The pause that a response asks for.

use chrono::{DateTime, Utc};
use nodepool_model::records::time::Seconds;
use reqwest::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};

/// The pause in the header `Retry-After`: a number of seconds, or the time from the date of the response to a later one
/// ([RFC 9110](https://www.rfc-editor.org/rfc/rfc9110#field.retry-after)).
pub fn retry_after(headers: &HeaderMap) -> Option<Seconds> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let header = text(RETRY_AFTER)?;
    if let Ok(seconds) = header.parse::<f64>() {
        return (seconds.is_finite() && seconds >= 0.0).then_some(Seconds(seconds));
    }
    let until = DateTime::parse_from_rfc2822(header).ok()?;
    let now = text(DATE).and_then(|date| DateTime::parse_from_rfc2822(date).ok());
    let now = now.map_or_else(Utc::now, |now| now.with_timezone(&Utc));
    Some(Seconds((until.with_timezone(&Utc) - now).num_seconds().max(0) as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_a_number_or_a_date() {
        let delay = |lines: &[(&str, &str)]| {
            let parsed =
                lines.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()));
            retry_after(&parsed.collect()).map(|wait| wait.0)
        };
        let date = ("date", "Wed, 21 Oct 2015 07:28:00 GMT");
        assert_eq!(delay(&[("retry-after", "120")]), Some(120.0));
        assert_eq!(delay(&[date, ("retry-after", "Wed, 21 Oct 2015 07:29:30 GMT")]), Some(90.0));
        // Without a Date header, this host's clock is used, by which the date is long past.
        assert_eq!(delay(&[("retry-after", "Wed, 21 Oct 2015 07:29:30 GMT")]), Some(0.0));
        assert_eq!(delay(&[("retry-after", "soon")]), None);
        assert_eq!(delay(&[("retry-after", "-5")]), None);
        assert_eq!(delay(&[("retry-after", "inf")]), None);
        assert_eq!(delay(&[date]), None);
    }
}
