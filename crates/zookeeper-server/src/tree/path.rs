//! Validation of znode paths by ZooKeeper's rules, and their split into parent and name.

use super::Failure;

/// Checks a path by ZooKeeper's rules, which are stated in UTF-16 units. Characters outside the basic plane and those
/// of the private use area are refused: in UTF-16 they are surrogates or belong to the same refused range.
pub fn validate(path: &str) -> Result<(), Failure> {
    let refuse = |reason: &str| Err(Failure::BadArguments(format!("path {path:?}: {reason}")));
    if path.is_empty() {
        return refuse("is empty");
    }
    if !path.starts_with('/') {
        return refuse("does not start with a slash");
    }
    if path == "/" {
        return Ok(());
    }
    if path.ends_with('/') {
        return refuse("ends with a slash");
    }
    if is_plain(path.as_bytes()) {
        return Ok(());
    }
    for name in path[1..].split('/') {
        match name {
            "" => return refuse("has an empty element"),
            "." | ".." => return refuse("has a relative element"),
            _ => {}
        }
    }
    if let Some(character) = path.chars().find(|&character| is_refused(character)) {
        return refuse(&format!("has the character U+{:04X}", character as u32));
    }
    Ok(())
}

/// Whether a path needs no closer check. The loop has no early exit, so that the compiler can vectorise it.
fn is_plain(path: &[u8]) -> bool {
    let has_plain_bytes = path.iter().fold(true, |plain, byte| plain & matches!(byte, b' '..=b'~'));
    let is_odd = |pair: &[u8]| (pair[0] == b'/') & ((pair[1] == b'/') | (pair[1] == b'.'));
    has_plain_bytes & path.windows(2).fold(true, |plain, pair| plain & !is_odd(pair))
}

fn is_refused(character: char) -> bool {
    matches!(character as u32, 0..=0x1f | 0x7f..=0x9f | 0xd800..=0xf8ff | 0xfff0..)
}

/// Parent and name, split at the last slash. The parent of a top-level path is the empty text, which ZooKeeper treats
/// as the root.
pub fn split(path: &str) -> Result<(&str, &str), Failure> {
    if path.contains('\0') {
        return Err(Failure::BadArguments(format!("path {path:?}: has the character U+0000")));
    }
    path.rsplit_once('/').ok_or_else(|| Failure::BadArguments(format!("path {path:?}: has no slash")))
}

/// The key of a path in the tree. The empty text is another path of the root.
pub fn key(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

/// The path and then each of its ancestors, up to the root.
pub fn upwards(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| match path.rsplit_once('/') {
        Some(("", "")) | None => None,
        Some(("", _)) => Some("/"),
        Some((parent, _)) => Some(parent),
    })
}

/// The path of a child.
pub fn join(parent: &str, name: &str) -> String {
    if parent == "/" { format!("/{name}") } else { format!("{parent}/{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_refused_where_zookeeper_refuses_them() {
        for good in ["/", "/a", "/a/b", "/...", "/a..", "/.a", "/a b", "/é", "/\u{d7ff}", "/\u{f900}", "/\u{ffef}"] {
            assert_eq!(validate(good), Ok(()), "{good:?}");
        }
        let bad = [
            "",
            "a",
            "a/b",
            "/a/",
            "//",
            "//a",
            "/a//b",
            "/.",
            "/..",
            "/a/./b",
            "/a/../b",
            "/a/..",
            "/\u{0}",
            "/\u{1}",
            "/\u{7f}",
            "/\u{9f}",
            "/\u{e000}",
            "/\u{f8ff}",
            "/\u{fff0}",
            "/\u{ffff}",
            "/\u{1f600}",
        ];
        for path in bad {
            assert!(validate(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn upwards_ends_at_the_root() {
        assert_eq!(upwards("/a/b/c").collect::<Vec<_>>(), ["/a/b/c", "/a/b", "/a", "/"]);
        assert_eq!(upwards("/").collect::<Vec<_>>(), ["/"]);
    }
}
