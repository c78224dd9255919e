//! Content negotiation: response formats by the headers `Accept` and `Accept-Encoding`.

use actix_web::HttpRequest;
use actix_web::http::header::{Accept, AcceptEncoding, Encoding, Header, Quality};

/// Format of the lists.
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

    /// JSON if the client prefers JSON to both kinds of text; otherwise text, even if the client accepts none of the
    /// three.
    pub fn of(request: &HttpRequest) -> Self {
        let accept = accept(request);
        let json = quality(&accept, "application", "json");
        let text = quality(&accept, "text", "html").max(quality(&accept, "text", "plain"));
        if json > text { ListFormat::Json } else { ListFormat::Text }
    }
}

/// Format of error responses; plain text if the client names neither HTML nor JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorFormat {
    Html,
    Json,
    Text,
}

impl ErrorFormat {
    pub fn of(request: &HttpRequest) -> Self {
        let accept = accept(request);
        let (html, json) = (quality(&accept, "text", "html"), quality(&accept, "application", "json"));
        match (html, json) {
            (Quality::ZERO, Quality::ZERO) => ErrorFormat::Text,
            _ if html >= json => ErrorFormat::Html,
            _ => ErrorFormat::Json,
        }
    }
}

/// Whether the response may be compressed with gzip.
pub fn accepts_gzip(request: &HttpRequest) -> bool {
    let gzip = Encoding::gzip();
    AcceptEncoding::parse(request).is_ok_and(|accept| accept.negotiate(std::iter::once(&gzip)).as_ref() == Some(&gzip))
}

/// The parsed `Accept` header; empty if it is missing or not ASCII. Invalid entries are dropped.
fn accept(request: &HttpRequest) -> Accept {
    Accept::parse(request).unwrap_or(Accept(Vec::new()))
}

/// Quality of a media type, from the most specific entry that matches the type; zero if no entry matches.
fn quality(accept: &Accept, kind: &str, subtype: &str) -> Quality {
    let ranges = ["*/*".to_owned(), format!("{kind}/*"), format!("{kind}/{subtype}")];
    let specificity = |entry: &str| ranges.iter().position(|range| range == entry);
    let matching = accept.iter().filter_map(|entry| Some((specificity(entry.item.essence_str())?, entry.quality)));
    matching.max_by_key(|(specificity, _)| *specificity).map_or(Quality::ZERO, |(_, quality)| quality)
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::http::header;
    use actix_web::test::TestRequest;

    fn list_format(accept: &str) -> ListFormat {
        ListFormat::of(&TestRequest::default().insert_header((header::ACCEPT, accept)).to_http_request())
    }

    #[test]
    fn json_is_sent_if_preferred_to_text() {
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
            assert_eq!(list_format(accept), ListFormat::Json, "{accept}");
        }
        for accept in text {
            assert_eq!(list_format(accept), ListFormat::Text, "{accept}");
        }
        assert_eq!(ListFormat::of(&TestRequest::default().to_http_request()), ListFormat::Text);
    }

    #[test]
    fn errors_are_text_unless_html_or_json_is_accepted() {
        let cases = [
            ("text/html", ErrorFormat::Html),
            ("*/*", ErrorFormat::Html),
            ("application/json", ErrorFormat::Json),
            ("application/json, text/*;q=0.5", ErrorFormat::Json),
            ("image/png", ErrorFormat::Text),
        ];
        for (accept, expected) in cases {
            let request = TestRequest::default().insert_header((header::ACCEPT, accept)).to_http_request();
            assert_eq!(ErrorFormat::of(&request), expected, "{accept}");
        }
        assert_eq!(ErrorFormat::of(&TestRequest::default().to_http_request()), ErrorFormat::Text);
    }

    #[test]
    fn gzip_is_sent_only_if_accepted() {
        let cases = [("gzip", true), ("br, GZIP;q=0.5", true), ("gzip;q=0", false), ("identity", false)];
        for (accept, expected) in cases {
            let request = TestRequest::default().insert_header((header::ACCEPT_ENCODING, accept)).to_http_request();
            assert_eq!(accepts_gzip(&request), expected, "{accept}");
        }
        assert!(!accepts_gzip(&TestRequest::default().to_http_request()));
    }
}
