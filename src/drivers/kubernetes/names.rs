//! Names and labels that Kubernetes accepts. A rejected one fails each launch, so it is reported when a file is loaded.

/// The longest name of a namespace, pod or container, and the longest value of a label.
const MAX_LENGTH: usize = 63;
/// The longest prefix of a label's key.
const MAX_PREFIX_LENGTH: usize = 253;

/// Whether this is a label of DNS, as names of namespaces and containers must be (RFC 1123).
pub fn is_dns_label(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= MAX_LENGTH && !name.is_empty() && name.bytes().all(is_inner) && !has_edge(name, &['-'])
}

/// Whether a label may have this value.
pub fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_qualified_name(value)
}

/// Whether a label or annotation may have this key: a name, or a domain and a name.
pub fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        None => is_qualified_name(key),
        Some((prefix, name)) => {
            prefix.len() <= MAX_PREFIX_LENGTH && prefix.split('.').all(is_dns_label) && is_qualified_name(name)
        }
    }
}

fn is_qualified_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    name.len() <= MAX_LENGTH && !name.is_empty() && name.bytes().all(is_inner) && !has_edge(name, &['-', '_', '.'])
}

fn has_edge(name: &str, edges: &[char]) -> bool {
    name.starts_with(edges) || name.ends_with(edges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules_of_the_api() {
        let longest = "a".repeat(63);
        for name in ["fedora-28", "0", longest.as_str()] {
            assert!(is_dns_label(name), "{name}");
        }
        for name in ["", "Fedora", "fedora_28", "-a", "a-", "a.b", &"a".repeat(64)] {
            assert!(!is_dns_label(name), "{name}");
        }
        for value in ["", "Fedora_28", "a.b-c", longest.as_str()] {
            assert!(is_label_value(value), "{value}");
        }
        for value in ["a b", "_a", "a.", "ä", &"a".repeat(64)] {
            assert!(!is_label_value(value), "{value}");
        }
        for key in ["environment", "example.com/Tier_1"] {
            assert!(is_label_key(key), "{key}");
        }
        for key in ["", "a/b/c", "/a", "Example.com/a", "a/"] {
            assert!(!is_label_key(key), "{key}");
        }
    }
}
