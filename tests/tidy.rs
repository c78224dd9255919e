//! The rules of doc/architecture.md that a machine can check, each with a test that it can fail.

#[path = "tidy/source.rs"]
mod source;

use source::{Source, Token};
use std::path::Path;

/// No file is longer, its tests included; one that wants to be has two ideas in it.
const LINES: usize = 600;
/// No function of the product is longer: a screen, or a long screen.
const FUNCTION_LINES: usize = 70;

/// Every Rust file of the repository's own, in order.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Vec::new();
    for folder in ["src", "crates", "tests", "benches", "fuzz", "examples"] {
        collect(root, &root.join(folder), &mut sources);
    }
    sources.sort_by(|one, other| one.path.cmp(&other.path));
    source::mark_tests(&mut sources);
    assert!(sources.iter().any(|source| source.path == "src/lib.rs"), "the sources are where the test looks for them");
    sources
}

fn collect(root: &Path, folder: &Path, sources: &mut Vec<Source>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            collect(root, &path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            sources.push(Source::new(&name, &std::fs::read_to_string(&path).unwrap()));
        }
    }
}

fn check(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// Files without their one idea in the first line, and files that are too long.
fn shape(source: &Source) -> Vec<String> {
    let mut complaints = Vec::new();
    let first = source.text.lines().next().unwrap_or_default();
    // Cargo fuzz wants its attribute first.
    let first = if first == "#![no_main]" { source.text.lines().nth(1).unwrap_or_default() } else { first };
    let idea = first.strip_prefix("//! ").unwrap_or_default();
    if idea.len() < 10 {
        complaints.push(format!("{}:1: the first line does not say the file's one idea (`//! …`)", source.path));
    }
    if source.lines() > LINES {
        complaints.push(format!("{}: {} lines, {LINES} are the limit", source.path, source.lines()));
    }
    complaints
}

/// Words that no code of ours contains, in tests either.
fn words(source: &Source) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut forbid = |token: &Token, what: &str| complaints.push(format!("{}:{}: {what}", source.path, token.line));
    for three in source.tokens.windows(3) {
        match [three[0].text.as_str(), three[1].text.as_str(), three[2].text.as_str()] {
            [word @ ("todo" | "unimplemented" | "dbg" | "macro_rules"), "!", _] => {
                forbid(&three[0], &format!("`{word}!`"))
            }
            ["[", "ignore", "]" | "="] => forbid(&three[1], "an ignored test"),
            _ => {}
        }
    }
    for pair in source.product().windows(2) {
        if matches!(pair[0].text.as_str(), "." | "::") && pair[1].text == "unwrap" {
            forbid(&pair[1], "`unwrap` outside tests: `expect` says why it cannot fail");
        }
    }
    for comment in &source.comments {
        let mark = comment.text.trim_start_matches(['/', '*', '!', ' ']);
        if mark.starts_with("TODO") && !mark.contains('#') {
            complaints.push(format!("{}:{}: a TODO without an issue number", source.path, comment.line));
        }
    }
    complaints
}

/// Functions of the product that do not fit a screen.
fn long_functions(source: &Source) -> Vec<String> {
    let tokens = source.product();
    let mut complaints = Vec::new();
    for (start, pair) in tokens.windows(2).enumerate() {
        // `fn(` is the type of a function, not one.
        if pair[0].text != "fn" || pair[1].text == "(" {
            continue;
        }
        let mut depth = 0;
        for token in &tokens[start..] {
            match token.text.as_str() {
                "{" | "(" | "[" => depth += 1,
                ")" | "]" => depth -= 1,
                "}" => depth -= 1,
                _ => {}
            }
            let ends = depth == 0 && (token.text == "}" || token.text == ";");
            if ends {
                let lines = token.line - pair[0].line + 1;
                if lines > FUNCTION_LINES {
                    let place = format!("{}:{}", source.path, pair[0].line);
                    complaints
                        .push(format!("{place}: `{}` has {lines} lines, {FUNCTION_LINES} are the limit", pair[1].text));
                }
                break;
            }
        }
    }
    complaints
}

#[test]
fn every_file_has_a_module_doc_and_is_short() {
    check(sources().iter().flat_map(shape).collect());
}

#[test]
fn no_file_contains_a_forbidden_word() {
    check(sources().iter().flat_map(words).collect());
}

#[test]
fn every_function_is_short() {
    check(sources().iter().flat_map(long_functions).collect());
}

// From here on: the rules themselves are tested, each with what it must refuse and what it must let pass.

#[test]
fn forbidden_words_are_found_where_they_are_code() {
    let found = |text: &str| words(&Source::new("src/model/node.rs", text));
    for text in ["fn f() { todo!() }", "fn f() { dbg!(1); }", "unimplemented!()", "macro_rules! m { () => {} }"] {
        assert_eq!(found(text).len(), 1, "{text}");
    }
    assert_eq!(
        found("\nfn f() { x.unwrap(); }"),
        ["src/model/node.rs:2: `unwrap` outside tests: `expect` says why it cannot fail"]
    );
    assert_eq!(found("fn f() { x.map(Option::unwrap) }").len(), 1);
    assert_eq!(found("#[cfg(test)]\nmod tests {\n#[test]\n#[ignore]\nfn f() {}\n}").len(), 1);
    assert_eq!(found("// TODO later").len(), 1);
    assert_eq!(found("// TODO(#12): later"), Vec::<String>::new());
    assert_eq!(
        found("fn f<'a>(x: &'a str) { x.unwrap_or(\"todo!() .unwrap()\"); '\"'; r#\"\" dbg!()\"# } // x.unwrap()"),
        [""; 0]
    );
    assert_eq!(found("#[cfg(test)]\nmod tests { fn f() { x.unwrap() } }"), [""; 0]);
    assert_eq!(found("#[cfg(test)]\nmod tests;\nfn f() { x.unwrap() }").len(), 1);
}

#[test]
fn files_that_only_tests_include_may_unwrap() {
    let files = [
        ("src/zk/tree/mod.rs", "#[cfg(test)]\nmod cases;\nmod apply;"),
        ("src/zk/tree/cases.rs", "fn f() { x.unwrap() }"),
        ("src/zk/tree/apply.rs", "#[cfg(test)]\nmod one;\nfn f() { x.unwrap() }"),
        ("src/zk/tree/apply/one/more.rs", "fn f() { x.unwrap() }"),
        ("src/zk/cases.rs", "fn f() { x.unwrap() }"),
    ];
    let mut sources: Vec<Source> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
    source::mark_tests(&mut sources);
    let complaints: Vec<String> = sources.iter().flat_map(words).collect();
    assert_eq!(complaints.len(), 2, "{complaints:?}");
    assert!(complaints[0].starts_with("src/zk/tree/apply.rs:3"), "{complaints:?}");
    assert!(complaints[1].starts_with("src/zk/cases.rs:1"), "{complaints:?}");
}

#[test]
fn files_without_a_module_doc_and_long_files_are_found() {
    assert_eq!(shape(&Source::new("src/a.rs", "//! What a node is.\n")), [""; 0]);
    assert_eq!(shape(&Source::new("src/a.rs", "use x;\n")).len(), 1);
    assert_eq!(shape(&Source::new("src/a.rs", "//!\n")).len(), 1);
    let long = format!("//! What a node is.\n{}", "\n".repeat(LINES));
    assert_eq!(shape(&Source::new("src/a.rs", &long)), ["src/a.rs: 601 lines, 600 are the limit"]);
}

#[test]
fn long_functions_are_found() {
    let with =
        |lines: usize| format!("impl A {{\nfn f(g: fn(u8)) -> [u8; 2] {{\n{}}}\nfn g();\n}}", "x();\n".repeat(lines));
    assert_eq!(long_functions(&Source::new("src/a.rs", &with(68))), [""; 0]);
    assert_eq!(long_functions(&Source::new("src/a.rs", &with(69))), ["src/a.rs:2: `f` has 71 lines, 70 are the limit"]);
    let test = format!("#[cfg(test)]\nmod tests {{ {} }}", with(100));
    assert_eq!(long_functions(&Source::new("src/a.rs", &test)), [""; 0]);
}

/// What of a patch does not find its place: each hunk's lines, those of the context and those to go, one after the other in its file.
fn failing_hunks(patch: &str, text_of: impl Fn(&str) -> String) -> Vec<String> {
    let (mut file, mut hunks) = ("", Vec::new());
    for line in patch.lines() {
        match line.as_bytes().first() {
            _ if line.starts_with("--- a/") => file = &line[6..],
            _ if line.starts_with("+++ b/") => {}
            Some(b'@') => hunks.push((file, String::new())),
            Some(b' ' | b'-') if !file.is_empty() => {
                if let Some((_, lines)) = hunks.last_mut() {
                    lines.push_str(&line[1..]);
                    lines.push('\n');
                }
            }
            _ => {}
        }
    }
    assert!(!hunks.is_empty(), "no hunk in {patch}");
    let misfits = hunks.into_iter().filter(|(file, lines)| !text_of(file).contains(lines.as_str()));
    misfits.map(|(file, lines)| format!("{file} has nowhere\n{lines}")).collect()
}

// They are applied one by one, and all of them seldom.
#[test]
fn every_mutant_patch_applies() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text_of = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
    let mut complaints = Vec::new();
    for entry in std::fs::read_dir(root.join("tests/mutants")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "patch") {
            let patch = std::fs::read_to_string(&path).unwrap();
            complaints
                .extend(failing_hunks(&patch, text_of).iter().map(|misfit| format!("{}: {misfit}", path.display())));
        }
    }
    check(complaints);
    let patch = "A mistake.\n\n--- a/one.rs\n+++ b/one.rs\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n";
    assert!(failing_hunks(patch, |_| "zero\none\ntwo\n".to_owned()).is_empty());
    assert_eq!(failing_hunks(patch, |_| "one\n2\n".to_owned()).len(), 1);
}
