//! Rules of doc/architecture.md that neither cargo nor clippy can check, each with a test that it can fail.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use testkit::programs;

/// Lines of a file, tests included: a longer one holds two ideas.
const FILE_LINES: usize = 600;
/// Lines of a function outside tests: a long screen.
const FUNCTION_LINES: usize = 70;
/// Letters of a test's name: a longer claim does not fit a line of a report.
const TEST_NAME_LETTERS: usize = 70;
/// Columns of a line with a comment.
const COMMENT_COLUMNS: usize = 120;
/// Files of a source folder: a fuller one hides the architecture.
const FOLDER_FILES: usize = 16;
/// Crates that only tests use.
const SUPPORT: [&str; 2] = ["crates/testkit/", "crates/simulator/"];
/// Crates without I/O and clock, below the folders that hold them.
const PURE: [&str; 2] = ["crates/nodepool-model/", "crates/nodepool-policy/"];
/// Parts of the standard library that are I/O or a clock.
const IO: [&str; 8] = ["fs", "net", "env", "process", "thread", "os", "time::SystemTime", "time::Instant"];
/// Data types among them.
const PLAIN: [&str; 4] = ["net::IpAddr", "net::Ipv4Addr", "net::Ipv6Addr", "net::SocketAddr"];
/// What programs reach only through actors.
const BELOW_ACTORS: [&str; 2] = ["nodepool_policy", "nodepool_drivers"];
/// Metaphors that standard terms replaced (doc/glossary.md).
const METAPHORS: [&str; 23] = [
    "mind",
    "minds",
    "brain",
    "brains",
    "picture",
    "pictures",
    "errand",
    "errands",
    "bakery",
    "oven",
    "studio",
    "desk",
    "chronicle",
    "tally",
    "echoes",
    "bell",
    "standing",
    "leavings",
    "news",
    "roll_call",
    "rollcall",
    "witness",
    "crowd",
];
/// Other uses of these words: a facility of syslog.
const NO_METAPHORS: [(&str, &str); 1] = [("crates/python-logging/src/sinks/syslog.rs", "news")];
/// Subjects that hide a component's name in a comment.
const ANONYMOUS: [&str; 4] = ["somebody", "nobody", "whoever", "everybody"];

/// First words of comments that postpone the subject, or have none.
const OPENINGS: [&str; 7] = ["Of", "Who", "Whoever", "Nor", "What", "Which", "How"];
/// Folders whose files comments may name.
const FOLDERS: [&str; 9] = ["benches", "contrib", "crates", "doc", "examples", "fuzz", "src", "tests", "web"];

/// A Rust file of the repository, named relative to its root.
struct Source {
    path: String,
    text: String,
    /// Whether the whole file is test code.
    is_test: bool,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        let is_product = path.starts_with("src/") || path.starts_with("crates/");
        let is_test = !is_product || SUPPORT.iter().any(|folder| path.starts_with(folder));
        Self { path: path.to_owned(), text: text.to_owned(), is_test }
    }

    fn parsed(&self) -> syn::File {
        syn::parse_file(&self.text).unwrap_or_else(|error| panic!("{}: {error}", self.path))
    }

    /// Paths, without their ending, of the files that this file declares as `#[cfg(test)] mod name;`.
    fn test_modules(&self) -> Vec<String> {
        let (folder, name) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        let folder = match name {
            "mod.rs" | "lib.rs" | "main.rs" => folder,
            _ => self.path.trim_end_matches(".rs"),
        };
        let declared = self.parsed().items.into_iter().filter_map(|item| match item {
            syn::Item::Mod(module) if module.content.is_none() && is_for_tests(&module.attrs) => Some(module.ident),
            _ => None,
        });
        declared.map(|name| format!("{folder}/{name}")).collect()
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

/// Files that only tests include are test code, and so are the files below them.
fn mark_tests(sources: &mut [Source]) {
    let modules: BTreeSet<String> = sources.iter().flat_map(Source::test_modules).collect();
    for source in sources {
        let path = source.path.trim_end_matches(".rs");
        source.is_test |=
            path.match_indices('/').any(|(end, _)| modules.contains(&path[..end])) || modules.contains(path);
    }
}

/// Every Rust file of the repository, in order of their paths.
fn sources() -> Vec<Source> {
    let root = programs::repository();
    let mut sources = Vec::new();
    for folder in ["src", "crates", "tests", "benches", "fuzz", "examples"] {
        collect(root, &root.join(folder), &mut sources);
    }
    sources.sort_by(|one, other| one.path.cmp(&other.path));
    mark_tests(&mut sources);
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

/// What one file does against the rules.
fn violations(source: &Source) -> Vec<String> {
    let mut visitor = Visitor { source, violations: Vec::new() };
    visitor.check_lines();
    visitor.visit_file(&source.parsed());
    visitor.violations
}

struct Visitor<'a> {
    source: &'a Source,
    violations: Vec<String>,
}

impl Visitor<'_> {
    fn report(&mut self, line: usize, what: &str) {
        self.violations.push(format!("{}:{line}: {what}", self.source.path));
    }

    fn check_lines(&mut self) {
        let lines: Vec<&str> = self.source.text.lines().collect();
        // Cargo fuzz needs its attribute first.
        let first = lines.iter().find(|line| **line != "#![no_main]").copied().unwrap_or_default();
        if first.strip_prefix("//! ").unwrap_or_default().len() < 10 {
            self.report(1, "the first line does not say what the file is (`//! …`)");
        }
        if lines.len() > FILE_LINES {
            self.report(1, &format!("{} lines, {FILE_LINES} are the limit", lines.len()));
        }
        for (index, line) in lines.iter().enumerate() {
            // This file holds the lists and the examples.
            if self.source.path == "tests/tidy/main.rs" {
                break;
            }
            let comment = line.split_once("//").map_or("", |(_, comment)| comment.trim_start_matches(['/', '!', ' ']));
            if comment.starts_with("TODO") && !comment.contains('#') {
                self.report(index + 1, "a TODO without an issue number");
            }
            self.check_words(line, comment, index + 1);
            self.check_comment(line, comment, index + 1);
        }
    }

    fn check_words(&mut self, line: &str, comment: &str, number: usize) {
        let words = |text: &str| -> Vec<String> {
            let words = text.split(|sign: char| !sign.is_alphanumeric() && sign != '_');
            words.map(str::to_ascii_lowercase).collect()
        };
        for word in words(line) {
            let is_excepted = NO_METAPHORS.contains(&(self.source.path.as_str(), word.as_str()));
            if METAPHORS.contains(&word.as_str()) && !is_excepted {
                self.report(number, &format!("`{word}`: doc/glossary.md has the term for it"));
            }
        }
        for word in words(comment) {
            if ANONYMOUS.contains(&word.as_str()) {
                self.report(number, &format!("`{word}`: name the component"));
            }
        }
    }

    fn check_comment(&mut self, line: &str, comment: &str, number: usize) {
        let is_comment = line.trim_start().starts_with("//");
        if is_comment && OPENINGS.iter().any(|word| comment.split(' ').next() == Some(word)) {
            self.report(number, "a comment without a subject: name the thing first");
        }
        if is_comment && line.chars().count() > COMMENT_COLUMNS {
            self.report(number, &format!("a comment of more than {COMMENT_COLUMNS} columns"));
        }
        let names = comment.split(|sign: char| !sign.is_alphanumeric() && !"_-./".contains(sign));
        for name in names.map(|name| name.trim_end_matches(['.', '/'])).filter(|_| is_comment) {
            let is_path = name.split_once('/').is_some_and(|(folder, _)| FOLDERS.contains(&folder));
            if is_path && name.contains('.') && !programs::repository().join(name).exists() {
                self.report(number, &format!("{name} does not exist"));
            }
        }
    }

    fn check_test_name(&mut self, attributes: &[syn::Attribute], name: &syn::Ident) {
        let is_test = attributes
            .iter()
            .any(|attribute| attribute.path().segments.last().is_some_and(|last| last.ident == "test"));
        if is_test && name.to_string().len() > TEST_NAME_LETTERS {
            self.report(
                name.span().start().line,
                &format!("the name of a test has more than {TEST_NAME_LETTERS} letters"),
            );
        }
    }

    fn check_function(&mut self, name: &syn::Ident, start: usize, body: &syn::Block) {
        let lines = body.brace_token.span.close().end().line + 1 - start;
        if lines > FUNCTION_LINES && !self.source.is_test {
            self.report(start, &format!("`{name}` has {lines} lines, {FUNCTION_LINES} are the limit"));
        }
    }

    fn check_path(&mut self, path: &[String], line: usize) {
        let is_pure = PURE.iter().any(|crate_path| self.source.path.starts_with(crate_path));
        if let [root, rest @ ..] = path {
            let rest = rest.join("::");
            let is_in = |list: &[&str]| {
                list.iter()
                    .any(|part| rest.strip_prefix(part).is_some_and(|end| end.is_empty() || end.starts_with("::")))
            };
            if is_pure && !self.source.is_test && root == "std" && is_in(&IO) && !is_in(&PLAIN) {
                self.report(line, &format!("std::{rest} is I/O or a clock, and this crate is pure"));
            }
            if self.source.path.starts_with("src/bin/") && BELOW_ACTORS.contains(&root.as_str()) {
                self.report(line, &format!("a program names {root}, which is below the actors"));
            }
        }
    }

    fn check_use(&mut self, tree: &syn::UseTree, path: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(inner) => {
                path.push(inner.ident.to_string());
                self.check_use(&inner.tree, path);
                path.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.check_use(item, path)),
            syn::UseTree::Name(_) | syn::UseTree::Rename(_) | syn::UseTree::Glob(_) => {
                let name = match tree {
                    syn::UseTree::Name(name) => Some(&name.ident),
                    syn::UseTree::Rename(rename) => Some(&rename.ident),
                    _ => None,
                };
                path.extend(name.map(ToString::to_string));
                self.check_path(path, tree.span().start().line);
                path.truncate(path.len() - usize::from(name.is_some()));
            }
        }
    }

    fn check_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (index, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => self.check_tokens(group.stream()),
                TokenTree::Ident(name) if name == "unwrap" => {
                    let is_call =
                        index > 0 && matches!(&tokens[index - 1], TokenTree::Punct(dot) if dot.as_char() == '.');
                    if is_call {
                        self.report_unwrap(name.span().start().line);
                    }
                }
                _ => {}
            }
        }
    }

    fn report_unwrap(&mut self, line: usize) {
        if !self.source.is_test {
            self.report(line, "`unwrap` outside tests: `expect` says why it cannot fail");
        }
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Mod(module) => &module.attrs,
            syn::Item::Fn(function) => &function.attrs,
            syn::Item::Impl(block) => &block.attrs,
            syn::Item::Use(import) => &import.attrs,
            _ => return visit::visit_item(self, item),
        };
        if attributes.iter().any(|attribute| attribute.path().is_ident("ignore")) {
            self.report(item.span().start().line, "an ignored test");
        }
        // What only tests compile is no part of the product.
        if is_for_tests(attributes) && !self.source.is_test {
            let tests = Source { path: self.source.path.clone(), text: String::new(), is_test: true };
            let mut visitor = Visitor { source: &tests, violations: Vec::new() };
            visit::visit_item(&mut visitor, item);
            self.violations.extend(visitor.violations);
        } else {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.check_function(&function.sig.ident, function.sig.span().start().line, &function.block);
        self.check_test_name(&function.attrs, &function.sig.ident);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.check_function(&function.sig.ident, function.sig.span().start().line, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.check_function(&function.sig.ident, function.sig.span().start().line, body);
        }
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_item_use(&mut self, import: &'ast syn::ItemUse) {
        self.check_use(&import.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.check_path(&segments, path.span().start().line);
        if segments.len() > 1 && segments.last().is_some_and(|last| last == "unwrap") {
            self.report_unwrap(path.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if call.method == "unwrap" {
            self.report_unwrap(call.method.span().start().line);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.check_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        if item.mac.path.is_ident("macro_rules") {
            self.report(item.span().start().line, "a macro of our own");
        }
        visit::visit_item_macro(self, item);
    }
}

/// Folders of sources with too many files.
fn full_folders(sources: &[Source]) -> Vec<String> {
    let mut files: BTreeMap<&str, usize> = BTreeMap::new();
    for (folder, _) in sources.iter().filter_map(|source| source.path.rsplit_once('/')) {
        if folder.starts_with("src") || folder.starts_with("crates") {
            *files.entry(folder).or_default() += 1;
        }
    }
    let full = files.into_iter().filter(|(_, files)| *files > FOLDER_FILES);
    full.map(|(folder, files)| format!("{folder}: {files} files, {FOLDER_FILES} are the limit")).collect()
}

fn check(violations: Vec<String>) {
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
}

#[test]
fn every_file_follows_the_rules() {
    check(sources().iter().flat_map(violations).collect());
}

#[test]
fn no_folder_is_too_full() {
    check(full_folders(&sources()));
}

/// Hunks of a patch that do not apply: context and removed lines have to follow each other in the file.
fn rejected_hunks(patch: &str, text_of: impl Fn(&str) -> String) -> Vec<String> {
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
    let rejected = hunks.into_iter().filter(|(file, lines)| !text_of(file).contains(lines.as_str()));
    rejected.map(|(file, lines)| format!("{file} does not contain\n{lines}")).collect()
}

// Mutants are applied one by one, and all of them seldom.
#[test]
fn every_mutant_patch_applies() {
    let root = programs::repository();
    let text_of = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
    let mut rejected = Vec::new();
    for entry in std::fs::read_dir(root.join("tests/mutants")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "patch") {
            let patch = std::fs::read_to_string(&path).unwrap();
            rejected.extend(rejected_hunks(&patch, text_of).iter().map(|hunk| format!("{}: {hunk}", path.display())));
        }
    }
    check(rejected);
    let patch = "A mutant.\n\n--- a/one.rs\n+++ b/one.rs\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n";
    assert!(rejected_hunks(patch, |_| "zero\none\ntwo\n".to_owned()).is_empty());
    assert_eq!(rejected_hunks(patch, |_| "one\n2\n".to_owned()).len(), 1);
}

// From here on: each rule refuses what it must refuse and accepts what it must accept.

fn found(path: &str, code: &str) -> Vec<String> {
    violations(&Source::new(path, &format!("//! An example.\n{code}")))
}

#[test]
fn files_without_a_purpose_and_long_files_are_found() {
    let found = |text: &str| violations(&Source::new("src/a.rs", text));
    assert_eq!(found("//! A node of a pool.\n"), [""; 0]);
    assert_eq!(found("#![no_main]\n//! A node of a pool.\n"), [""; 0]);
    assert_eq!(found("use x;\n").len(), 1);
    assert_eq!(found("//!\n").len(), 1);
    let long = format!("//! A node of a pool.\n{}", "\n".repeat(FILE_LINES));
    assert_eq!(found(&long), ["src/a.rs:1: 601 lines, 600 are the limit"]);
}

#[test]
fn long_functions_are_found() {
    let with = |lines: usize| format!("impl A {{\nfn f(g: fn(u8)) -> [u8; 2] {{\n{}}}\n}}", "x();\n".repeat(lines));
    assert_eq!(found("src/a.rs", &with(68)), [""; 0]);
    assert_eq!(found("src/a.rs", &with(69)), ["src/a.rs:3: `f` has 71 lines, 70 are the limit"]);
    assert_eq!(found("src/a.rs", &format!("#[cfg(test)]\nmod tests {{ {} }}", with(100))), [""; 0]);
    assert_eq!(found("tests/a.rs", &with(100)), [""; 0]);
}

#[test]
fn unwrap_macros_ignored_tests_and_stray_todos_are_found() {
    let product = "src/a.rs";
    for code in [
        "fn f() { x.unwrap(); }",
        "fn f() { x.map(Option::unwrap) }",
        "fn f() { assert!(x.unwrap()) }",
        "macro_rules! m { () => {} }",
        "#[cfg(test)]\nmod tests {\n#[test]\n#[ignore]\nfn f() {}\n}",
        "// TODO later\nfn f() {}",
    ] {
        assert_eq!(found(product, code).len(), 1, "{code}");
    }
    for code in [
        "// TODO(#12): later\nfn f() {}",
        "fn f<'a>(x: &'a str) { x.unwrap_or(\"todo!() .unwrap()\"); }",
        "#[cfg(test)]\nmod tests { fn f() { x.unwrap() } }",
    ] {
        assert_eq!(found(product, code), [""; 0], "{code}");
    }
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
    let example = |(path, code): &(&str, &str)| Source::new(path, &format!("//! An example.\n{code}"));
    let mut sources: Vec<Source> = files.iter().map(example).collect();
    mark_tests(&mut sources);
    let found: Vec<String> = sources.iter().flat_map(violations).collect();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("src/zk/tree/apply.rs:4") && found[1].starts_with("src/zk/cases.rs:2"), "{found:?}");
}

#[test]
fn pure_crates_use_no_io_and_no_clock() {
    let pure = "crates/nodepool-model/src/a.rs";
    for code in [
        "use std::{collections::BTreeMap, fs};",
        "fn f() -> std::env::Args { g() }",
        "use std::time::{Duration, Instant};",
        "use std::net::{IpAddr, TcpStream};",
    ] {
        assert_eq!(found(pure, code).len(), 1, "{code}");
        assert_eq!(found("src/zk/a.rs", code), [""; 0], "{code}");
    }
    assert_eq!(found(pure, "use std::time::Duration;\n#[cfg(test)]\nmod tests { use std::fs; }"), [""; 0]);
}

#[test]
fn programs_reach_decisions_and_drivers_through_actors() {
    assert_eq!(found("src/bin/nodepool/nodes.rs", "use nodepool_policy::pool::Pool;").len(), 1);
    assert_eq!(found("src/bin/nodepool/nodes.rs", "fn f() { nodepool_drivers::open() }").len(), 1);
    assert_eq!(found("src/bin/nodepool/nodes.rs", "use nodepool::actors::process;\nuse nodepool_zk::Zk;"), [""; 0]);
}

#[test]
fn metaphors_and_full_folders_are_found() {
    assert_eq!(found("src/a.rs", "// The mirror's Picture.\nfn roll_call() {}").len(), 2);
    assert_eq!(found("src/a.rs", "// Nobody reads it.\nfn f() { g(\"nobody\") }").len(), 1);
    assert_eq!(found("src/a.rs", "// The mirror's snapshot, pictured_elsewhere.\nfn f() {}"), [""; 0]);
    let folder = |count: usize| (0..count).map(|n| Source::new(&format!("src/a/f{n}.rs"), "")).collect::<Vec<_>>();
    assert_eq!(full_folders(&folder(16)), [""; 0]);
    assert_eq!(full_folders(&folder(17)), ["src/a: 17 files, 16 are the limit"]);
}

#[test]
fn comments_without_subject_or_target_and_long_names_are_found() {
    for code in [
        "/// How nodes are launched.\nfn f() {}",
        "/// See doc/decisions/9999-nothing.md.\nfn f() {}",
        &format!("// {}\nfn f() {{}}", "long ".repeat(30)),
        &format!("#[test]\nfn {}() {{}}", "a".repeat(71)),
        &format!("#[tokio::test]\nasync fn {}() {{}}", "a".repeat(71)),
    ] {
        assert_eq!(found("src/a.rs", code).len(), 1, "{code}");
    }
    for code in [
        "/// Nodes are launched. How often is configured: see `doc/architecture.md` and tests/tidy/main.rs.\nfn f() {}",
        "fn f() { g(\"// How\") }",
        &format!("#[test]\nfn {}() {{}}\nfn {}() {{}}", "a".repeat(70), "b".repeat(80)),
    ] {
        assert_eq!(found("src/a.rs", code), [""; 0], "{code}");
    }
}

fn rust_version(text: &str) -> Vec<u32> {
    text.split('.').filter_map(|part| part.parse().ok()).collect()
}

/// Crates that need a newer Rust than we do. `metadata` is the output of `cargo metadata`.
fn needs_newer_rust(metadata: &serde_json::Value, ours: &str) -> Vec<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let newer = packages.filter_map(|package| {
        let theirs = package["rust_version"].as_str()?;
        let is_newer = rust_version(theirs) > rust_version(ours);
        is_newer.then(|| format!("{} needs Rust {theirs}", package["name"].as_str().unwrap_or_default()))
    });
    newer.collect()
}

#[test]
fn no_crate_needs_a_newer_rust_than_ours() {
    let arguments =
        ["metadata", "--format-version=1", "--locked", "--offline", "--filter-platform=x86_64-unknown-linux-gnu"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(programs::repository()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata = serde_json::from_slice(&output.stdout).unwrap();
    let ours = env!("CARGO_PKG_RUST_VERSION");
    check(needs_newer_rust(&metadata, ours));
    let oldest = needs_newer_rust(&metadata, "1.0");
    assert!(oldest.len() > 100, "{oldest:?}");
    for file in ["README.md", "tests/run"] {
        let text = std::fs::read_to_string(programs::repository().join(file)).unwrap();
        assert!(text.contains(ours), "{file} does not name Rust {ours}");
    }
}
