//! Pages: their links have targets, the book has all of them, and the commands in them exist.
//!
//! The tests read the files of the repository, and run `nodepool COMMAND --help`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::programs;

fn root() -> &'static Path {
    programs::repository()
}

/// README, CONTRIBUTING and all pages, with their text.
fn pages() -> Vec<(PathBuf, String)> {
    let mut found = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    for folder in ["doc", "doc/decisions", "doc/drivers"] {
        let entries = std::fs::read_dir(root().join(folder)).unwrap();
        found.extend(
            entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|end| end == "md")),
        );
    }
    found.sort();
    found.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// The targets in `](…)`.
fn links(text: &str) -> Vec<&str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect()
}

/// The anchor that GitHub and mdBook derive from a heading.
fn anchor(heading: &str) -> String {
    let plain = heading.trim().to_lowercase();
    let characters = plain.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    characters.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let headings = text.lines().filter(|line| {
        is_code ^= line.starts_with("```");
        !is_code && line.starts_with('#')
    });
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

#[test]
fn links_have_targets() {
    let mut broken = Vec::new();
    for (path, text) in pages() {
        for link in links(&text).into_iter().filter(|link| !link.contains("://") && !link.contains(' ')) {
            let (file, fragment) = link.split_once('#').map_or((link, None), |(file, fragment)| (file, Some(fragment)));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let exists = match std::fs::read_to_string(&target) {
                Ok(text) => fragment.is_none_or(|fragment| anchors(&text).contains(fragment)),
                Err(_) => target.is_dir(),
            };
            if !exists {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_book_has_every_page() {
    let summary = std::fs::read_to_string(root().join("doc/SUMMARY.md")).unwrap();
    let listed: BTreeSet<&str> = links(&summary).into_iter().collect();
    let doc = root().join("doc");
    for (path, _) in pages() {
        let Ok(name) = path.strip_prefix(&doc) else { continue };
        let name = name.to_str().unwrap();
        assert!(name == "SUMMARY.md" || listed.contains(name), "doc/SUMMARY.md does not list {name}");
    }
}

/// Command lines that start with `nodepool`, from code blocks and from code within the text.
fn command_lines(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut add = |line: &str| {
        let line = line.trim().trim_start_matches("$ ").trim_start_matches("target/release/");
        let line = line
            .strip_prefix("cargo run --release --bin nodepool -- ")
            .map_or(line.to_owned(), |rest| format!("nodepool {rest}"));
        let words: Vec<String> =
            line.split_whitespace().take_while(|word| !word.starts_with(['#', '|', '>'])).map(str::to_owned).collect();
        if words.len() > 1 && words[0] == "nodepool" {
            found.push(words);
        }
    };
    let mut is_code = false;
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        if is_code || line.starts_with("    ") {
            add(line);
        } else {
            line.split('`').skip(1).step_by(2).for_each(&mut add);
        }
    }
    found
}

/// Every command and option that a page tells users to type is known to the program.
#[test]
fn named_commands_exist() {
    let (mut unknown, mut checked) = (Vec::new(), 0);
    for (path, text) in pages() {
        if path.ends_with("changelog.md") || path.components().any(|part| part.as_os_str() == "decisions") {
            continue;
        }
        for words in command_lines(&text) {
            // Optional parts and placeholders are not typed.
            let typed = |word: &&String| !word.contains(['[', ']', '…', '(', '{', '"', '\'']);
            let words: Vec<&String> = words[1..].iter().filter(typed).collect();
            let command =
                words.iter().find(|word| word.starts_with(|c: char| c.is_ascii_lowercase()) && !word.contains('.'));
            let Some(command) = command else { continue };
            let help = Command::new(programs::nodepool()).args([command.as_str(), "--help"]).output().unwrap();
            let known = String::from_utf8_lossy(&help.stdout).into_owned();
            let own = words.iter().take_while(|word| word.as_str() != "--");
            let options = own.filter(|word| word.starts_with("--") && word.len() > 2);
            let missing: Vec<_> = options.filter(|option| !known.contains(option.split('=').next().unwrap())).collect();
            checked += 1;
            if !help.status.success() || !missing.is_empty() {
                unknown.push(format!("{}: nodepool {words:?} {missing:?}", path.display()));
            }
        }
    }
    assert!(unknown.is_empty() && checked > 40, "{checked} {unknown:#?}");
}

#[test]
fn no_number_placeholder_is_left_in_the_documents() {
    let text = std::fs::read_to_string(root().join("doc/benchmarks.md")).unwrap();
    let cells = text.lines().filter(|line| line.starts_with("| ")).flat_map(|line| line.split('|').map(str::trim));
    let is_placeholder = |cell: &&str| cell.len() > 3 && cell.chars().all(|c| c.is_ascii_uppercase());
    assert_eq!(cells.filter(is_placeholder).collect::<Vec<_>>(), Vec::<&str>::new());
}
