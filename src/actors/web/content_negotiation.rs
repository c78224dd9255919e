//! What a client accepts, by its headers.

use actix_web::http::header::{self, HeaderMap};

/// How lists are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListFormat {
    Text,
    Json,
}

impl ListFormat {
    pub fn content_type(self) -> &'static str {
        match self {
            ListFormat::Text => "text/plain; charset=UTF-8",
            ListFormat::Json => "application/json",
        }
    }

    /// JSON only for who prefers it to both kinds of text; whoever accepts none of the three gets text.
    pub fn from_headers(headers: &HeaderMap) -> Self {
        let accepted = text(headers).unwrap_or("*/*");
        let json = quality(accepted, "application", "json");
        let text = quality(accepted, "text", "html").max(quality(accepted, "text", "plain"));
        if json > text { ListFormat::Json } else { ListFormat::Text }
    }
}

/// How failures are answered: whoever names no preference gets plain text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorFormat {
    Html,
    Json,
    Text,
}

impl ErrorFormat {
    pub fn from_headers(headers: &HeaderMap) -> Self {
        let accepted = text(headers).unwrap_or("");
        let (html, json) = (quality(accepted, "text", "html"), quality(accepted, "application", "json"));
        match (html, json) {
            (0, 0) => ErrorFormat::Text,
            _ if html >= json => ErrorFormat::Html,
            _ => ErrorFormat::Json,
        }
    }
}

/// Whether an answer may be packed.
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or("");
    let entry = accepted.split(',').find(|entry| is_named(entry, "gzip"));
    entry.is_some_and(|entry| weight(entry.split(';').skip(1)) > 0)
}

fn is_named(entry: &str, name: &str) -> bool {
    entry.split(';').next().is_some_and(|given| given.trim().eq_ignore_ascii_case(name))
}

fn text(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::ACCEPT).and_then(|value| value.to_str().ok())
}

/// How welcome a type is, in thousandths: the most specific entry of the `Accept` header counts.
fn quality(accepted: &str, kind: &str, subtype: &str) -> u32 {
    let entries = accepted.split(',').filter_map(|entry| {
        let mut parts = entry.split(';');
        let (entry_kind, entry_subtype) = parts.next()?.trim().split_once('/')?;
        let is = |given: &str, wanted: &str| given.eq_ignore_ascii_case(wanted);
        let specificity = match (entry_kind, entry_subtype) {
            (left, right) if is(left, kind) && is(right, subtype) => 2,
            (left, "*") if is(left, kind) => 1,
            ("*", "*") => 0,
            _ => return None,
        };
        Some((specificity, weight(parts)))
    });
    entries.max_by_key(|(specificity, _)| *specificity).map_or(0, |(_, weight)| weight)
}

/// The parameter `q` of an entry, in thousandths.
fn weight<'a>(mut parameters: impl Iterator<Item = &'a str>) -> u32 {
    let given = parameters.find_map(|parameter| parameter.trim().strip_prefix("q="));
    let weight: f64 = given.map_or(1.0, |text| text.trim().parse().unwrap_or(0.0));
    (weight.clamp(0.0, 1.0) * 1000.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::http::header::HeaderValue;

    fn headers(accept: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_str(accept).unwrap());
        headers
    }

    // operations.md 3.3
    #[test]
    fn json_is_for_who_prefers_it_to_both_texts() {
        let json = ["application/json", "application/json, text/plain;q=0.9", "APPLICATION/JSON;q=0.5, image/png"];
        let text = [
            "application/json, text/plain, */*",
            "text/html,application/xhtml+xml,*/*;q=0.8",
            "*/*",
            "application/json;q=0, */*",
            "image/png",
            "application/json;q=nonsense",
            ",;/,,",
        ];
        for accept in json {
            assert_eq!(ListFormat::from_headers(&headers(accept)), ListFormat::Json, "{accept}");
        }
        for accept in text {
            assert_eq!(ListFormat::from_headers(&headers(accept)), ListFormat::Text, "{accept}");
        }
    }

    #[test]
    fn packed_is_what_the_client_can_unpack() {
        for (accepted, expected) in [("gzip", true), ("br, GZIP;q=0.5", true), ("gzip;q=0", false), ("identity", false)]
        {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(accepted));
            assert_eq!(accepts_gzip(&headers), expected, "{accepted}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }
}
