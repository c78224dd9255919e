//! YAML parser: text to a tree, with anchors, merge keys, duplicate keys, and limits that no regular file reaches.

use std::collections::HashMap;

use granit_parser::{ErrorKind, Event, Marker, Parser, ScalarStyle, Tag};

use crate::diagnostics::Diagnostic;
use crate::scalar::{Position, Scalar, resolve};
use crate::tabs::QuotedRanges;
use crate::tree::{KeyKind, YamlKey, YamlNode, YamlValue};

/// Maximum bytes of a file. The largest real ones, with ten thousand static hosts, have five million.
pub const MAX_BYTES: usize = 32 << 20;
/// Maximum values of a file after alias expansion.
const MAX_NODES: usize = 2_000_000;
/// Maximum bytes of text after alias expansion.
const MAX_TEXT: usize = 128 << 20;
/// Maximum nesting depth; pod specifications have about fifteen levels.
const MAX_DEPTH: usize = 100;

/// Reads the one document of a text. An empty text is null. Warnings are added to `problems`.
pub fn parse(text: &str, problems: &mut Vec<Diagnostic>) -> Result<YamlNode, Diagnostic> {
    if text.len() > MAX_BYTES {
        let help = format!("the file has {} bytes, the limit is {MAX_BYTES}", text.len());
        return Err(Diagnostic::error(Position::default(), "file is too large").help(help));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    reject_control_characters(text)?;
    let open_end = text.ends_with(|last: char| !last.is_whitespace()).then(|| text.chars().count());
    let mut builder =
        Builder { open: Vec::new(), anchors: HashMap::new(), root: None, total_size: Size::default(), problems };
    let with_tabs: Option<Vec<char>> = text.contains('\t').then(|| text.chars().collect());
    let mut quoted_ranges = QuotedRanges::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| match (error.kind(), position_of(error.marker())) {
            (ErrorKind::RecursionLimitExceeded, position) => too_deep(position),
            (kind, position) => Diagnostic::error(position, kind.to_string()).help(syntax_help(text, position)),
        })?;
        if let (Some(letters), Event::Scalar(_, style, ..)) = (&with_tabs, &event) {
            let (start, end) = (span.start.index(), span.end.index());
            match style {
                ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => quoted_ranges.quoted(start, end),
                ScalarStyle::Literal | ScalarStyle::Folded => quoted_ranges.block(letters, start, end),
                ScalarStyle::Plain => {}
            }
        }
        let ends_unbroken = open_end == Some(span.end.index());
        builder.on_event(if ends_unbroken { without_last_break(event) } else { event }, position_of(&span.start))?;
    }
    if let Some(letters) = with_tabs {
        quoted_ranges.reject_other_tabs(&letters)?;
    }
    Ok(builder.root.unwrap_or(YamlNode::new(Position { line: 1, column: 1 }, YamlValue::Null)))
}

/// Removes the last line break of a block scalar that ends with the file: PyYAML adds none there.
fn without_last_break(event: Event<'_>) -> Event<'_> {
    match event {
        Event::Scalar(text, style @ (ScalarStyle::Literal | ScalarStyle::Folded), anchor, tag) => {
            let unbroken = text.strip_suffix('\n').map(str::to_owned);
            Event::Scalar(unbroken.map_or(text, Into::into), style, anchor, tag)
        }
        other => other,
    }
}

/// Help for two frequent mistakes: an unset environment variable in a substitution, and tabs as indentation.
fn syntax_help(text: &str, position: Position) -> String {
    let line = text.lines().nth(position.line.saturating_sub(1) as usize).unwrap_or_default();
    if line.contains("%(") {
        return "is the environment variable in %(…) set? Only names that start with NODEPOOL_ are replaced".to_owned();
    }
    if line.trim_start_matches(' ').starts_with('\t') {
        return "indent with spaces; YAML does not allow tabs there".to_owned();
    }
    "invalid YAML at or before this position".to_owned()
}

fn position_of(marker: &Marker) -> Position {
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    Position { line: number(marker.line()), column: number(marker.col().saturating_add(1)) }
}

fn reject_control_characters(text: &str) -> Result<(), Diagnostic> {
    let forbidden = |letter: &char| {
        letter.is_control() && !matches!(letter, '\t' | '\n' | '\r' | '\u{85}')
            || matches!(letter, '\u{fffe}' | '\u{ffff}')
    };
    let Some(at) = text.find(|letter| forbidden(&letter)) else { return Ok(()) };
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    let position = Position { line: line as u32, column: column as u32 };
    Err(Diagnostic::error(position, "special characters are not allowed").help("the text contains a control character"))
}

/// Size of a value: number of nodes, bytes of text, and depth.
#[derive(Clone, Copy, Default)]
struct Size {
    nodes: usize,
    text: usize,
    depth: usize,
}

impl Size {
    fn scalar(text: &str) -> Self {
        Self { nodes: 1, text: text.len(), depth: 0 }
    }

    fn add_child(&mut self, inner: Size) {
        self.nodes += inner.nodes;
        self.text += inner.text;
        self.depth = self.depth.max(inner.depth + 1);
    }
}

/// A value that is not attached to its list or map yet.
struct PendingValue {
    node: YamlNode,
    size: Size,
    /// An unquoted `<<`, which merges if it is a key.
    merges: bool,
}

enum Collection {
    List(Vec<YamlNode>),
    Map { entries: Vec<(PendingValue, YamlNode)>, key: Option<PendingValue> },
}

struct Frame {
    at: Position,
    anchor: usize,
    size: Size,
    collection: Collection,
}

struct Builder<'a> {
    open: Vec<Frame>,
    /// `None` while the anchored collection is still open.
    anchors: HashMap<usize, Option<(YamlNode, Size)>>,
    root: Option<YamlNode>,
    /// Size of everything built so far; an alias counts each time it is used.
    total_size: Size,
    problems: &'a mut Vec<Diagnostic>,
}

impl Builder<'_> {
    fn on_event(&mut self, event: Event<'_>, at: Position) -> Result<(), Diagnostic> {
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                let help = "a second document starts here; put everything into one document";
                Err(Diagnostic::error(at, "expected a single document in the stream").help(help))
            }
            Event::Scalar(text, style, anchor, tag) => {
                let merges = text == "<<" && style == ScalarStyle::Plain && tag.is_none();
                let value = self.scalar(&text, style, tag.as_deref(), at)?;
                let pending = PendingValue { node: YamlNode::new(at, value), size: Size::scalar(&text), merges };
                self.add_size(pending.size, at)?;
                self.attach(pending, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                expect_tag(tag.as_deref(), "seq", at)?;
                self.start(at, anchor, Collection::List(Vec::new()))
            }
            Event::MappingStart(_, anchor, tag) => {
                expect_tag(tag.as_deref(), "map", at)?;
                self.start(at, anchor, Collection::Map { entries: Vec::new(), key: None })
            }
            Event::SequenceEnd | Event::MappingEnd => self.finish(),
            Event::Alias(anchor) => {
                let Some(Some((node, size))) = self.anchors.get(&anchor).cloned() else {
                    return Err(Diagnostic::error(at, "found unconstructable recursive node")
                        .help("the alias refers to a value that contains it"));
                };
                self.add_size(size, at)?;
                self.attach(PendingValue { node, size, merges: false }, 0)
            }
            _ => Ok(()),
        }
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        at: Position,
    ) -> Result<YamlValue, Diagnostic> {
        let meaning = match tag {
            None if style == ScalarStyle::Plain => resolve(text),
            None => Scalar::Text,
            Some(tag) => tagged(tag, text, at)?,
        };
        Ok(match meaning {
            Scalar::Null => YamlValue::Null,
            Scalar::Bool(value) => YamlValue::Bool(value),
            Scalar::Int(value) => YamlValue::Int(value),
            Scalar::HugeInt(value) => {
                let help = format!("read as {value}, the nearest number this program can hold");
                self.problems.push(Diagnostic::warning(at, "number is beyond 64 bits").help(help));
                YamlValue::Int(value)
            }
            Scalar::Float(value) => YamlValue::Float(value),
            Scalar::Date => YamlValue::Date(text.to_owned()),
            Scalar::Text => YamlValue::Text(text.to_owned()),
        })
    }

    fn start(&mut self, at: Position, anchor: usize, collection: Collection) -> Result<(), Diagnostic> {
        if self.open.len() >= MAX_DEPTH {
            return Err(too_deep(at));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, None);
        }
        let size = Size { nodes: 1, text: 0, depth: 0 };
        self.open.push(Frame { at, anchor, size, collection });
        self.add_size(size, at)
    }

    fn finish(&mut self) -> Result<(), Diagnostic> {
        let frame = self.open.pop().expect("the parser closes only what it opened");
        let value = match frame.collection {
            Collection::List(items) => YamlValue::List(items),
            Collection::Map { entries, .. } => YamlValue::Map(self.merged(entries)?),
        };
        let pending = PendingValue { node: YamlNode::new(frame.at, value), size: frame.size, merges: false };
        self.attach(pending, frame.anchor)
    }

    /// Attaches a finished value, whose size is already counted, to its parent.
    fn attach(&mut self, pending: PendingValue, anchor: usize) -> Result<(), Diagnostic> {
        if pending.size.depth + self.open.len() > MAX_DEPTH {
            return Err(too_deep(pending.node.at));
        }
        if anchor != 0 {
            self.add_size(pending.size, pending.node.at)?;
            self.anchors.insert(anchor, Some((pending.node.clone(), pending.size)));
        }
        let Some(frame) = self.open.last_mut() else {
            self.root = Some(pending.node);
            return Ok(());
        };
        frame.size.add_child(pending.size);
        match &mut frame.collection {
            Collection::List(items) => items.push(pending.node),
            Collection::Map { entries, key } => match key.take() {
                Some(key) => entries.push((key, pending.node)),
                None => *key = Some(pending),
            },
        }
        Ok(())
    }

    fn add_size(&mut self, size: Size, at: Position) -> Result<(), Diagnostic> {
        self.total_size.nodes += size.nodes;
        self.total_size.text += size.text;
        if self.total_size.nodes > MAX_NODES || self.total_size.text > MAX_TEXT {
            let help = "nested aliases expand to too many values; use fewer of them";
            return Err(Diagnostic::error(at, "file expands to too many values").help(help));
        }
        Ok(())
    }

    /// Resolves merge keys and duplicates: own keys win over merged ones, later ones over earlier ones.
    fn merged(&mut self, entries: Vec<(PendingValue, YamlNode)>) -> Result<Vec<(YamlKey, YamlNode)>, Diagnostic> {
        let mut result = Entries::default();
        let mut own = Vec::with_capacity(entries.len());
        for (key, node) in entries {
            if !key.merges {
                own.push((key_of(key.node)?, node));
                continue;
            }
            for (key, node) in merge_sources(node)?.into_iter().rev().flatten() {
                result.set(key, node);
            }
        }
        let mut seen: HashMap<(String, KeyKind), Position> = HashMap::with_capacity(own.len());
        for (key, node) in own {
            if let Some(first) = seen.insert((key.text.clone(), key.kind), key.at) {
                let message = format!("duplicate key {}", key.in_path());
                let help = format!("already given in line {}; the last one counts", first.line);
                self.problems.push(Diagnostic::warning(key.at, message).help(help));
            }
            result.set(key, node);
        }
        Ok(result.entries)
    }
}

/// Entries in order of first appearance, with the last value of each.
#[derive(Default)]
struct Entries {
    entries: Vec<(YamlKey, YamlNode)>,
    index: HashMap<(String, KeyKind), usize>,
}

impl Entries {
    fn set(&mut self, key: YamlKey, node: YamlNode) {
        let next = self.entries.len();
        let at = *self.index.entry((key.text.clone(), key.kind)).or_insert(next);
        if at == next { self.entries.push((key, node)) } else { self.entries[at] = (key, node) }
    }
}

/// The maps that a merge key names, in descending precedence.
fn merge_sources(node: YamlNode) -> Result<Vec<Vec<(YamlKey, YamlNode)>>, Diagnostic> {
    let at = node.at;
    let nodes = if let YamlValue::List(items) = node.value { items } else { vec![node] };
    let entries = nodes.into_iter().map(|node| match node.value {
        YamlValue::Map(entries) => Ok(entries),
        other => Err(Diagnostic::error(at, "expected a mapping or list of mappings for merging")
            .help(format!("<< cannot be {}", other.type_name()))),
    });
    entries.collect()
}

fn key_of(node: YamlNode) -> Result<YamlKey, Diagnostic> {
    let (text, kind) = match node.value {
        YamlValue::Text(text) => (text, KeyKind::Text),
        YamlValue::Date(text) => (text, KeyKind::Number),
        YamlValue::Int(value) => (value.to_string(), KeyKind::Number),
        YamlValue::Float(value) => (format!("{value:?}"), KeyKind::Number),
        YamlValue::Bool(value) => (value.to_string(), KeyKind::Bool),
        YamlValue::Null => ("null".to_owned(), KeyKind::Null),
        YamlValue::List(_) | YamlValue::Map(_) => {
            return Err(Diagnostic::error(node.at, "found unhashable key")
                .help("a key must be a scalar, not a list or a mapping"));
        }
    };
    Ok(YamlKey { at: node.at, text, kind })
}

/// A scalar with an explicit tag such as `!!str`.
fn tagged(tag: &Tag, text: &str, at: Position) -> Result<Scalar, Diagnostic> {
    let meaning = match tag.core_suffix() {
        Some("str") => Some(Scalar::Text),
        Some("null") => Some(Scalar::Null),
        Some("bool") => Some(resolve(text)).filter(|meaning| matches!(meaning, Scalar::Bool(_))),
        Some("int") => Some(resolve(text)).filter(|meaning| matches!(meaning, Scalar::Int(_) | Scalar::HugeInt(_))),
        Some("float") => match resolve(text) {
            Scalar::Int(value) => Some(Scalar::Float(value as f64)),
            meaning => Some(meaning).filter(|meaning| matches!(meaning, Scalar::Float(_))),
        },
        // `! text` is text; every other tag constructs an object of a programming language.
        _ if tag.original() == "!" => Some(Scalar::Text),
        _ => return Err(unknown_tag(at)),
    };
    meaning.ok_or_else(|| Diagnostic::error(at, "value does not fit its tag").help("drop the !! before it"))
}

fn expect_tag(tag: Option<&Tag>, expected: &str, at: Position) -> Result<(), Diagnostic> {
    match tag {
        Some(tag) if !tag.is_yaml_core_schema_tag(expected) && tag.original() != "!" => Err(unknown_tag(at)),
        _ => Ok(()),
    }
}

fn unknown_tag(at: Position) -> Diagnostic {
    Diagnostic::error(at, "could not determine a constructor for the tag")
        .help("tags (words after !) are not supported")
}

fn too_deep(at: Position) -> Diagnostic {
    Diagnostic::error(at, "nested too deeply").help(format!("more than {MAX_DEPTH} nested lists and mappings"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> String {
        match parse(text, &mut Vec::new()) {
            Ok(node) => node.to_json().to_string(),
            Err(problem) => format!("{}:{} {}", problem.at.line, problem.at.column, problem.message),
        }
    }

    fn check(text: &str, expected: &str) {
        assert_eq!(json(text), expected, "{text}");
    }

    // Results and positions are PyYAML's.
    #[test]
    fn tabs_are_allowed_in_quotes_and_comments_only() {
        check("a: 'x\ty'", r#"{"a":"x\ty"}"#);
        check("a: \"x\n \ty\"", r#"{"a":"x y"}"#);
        check("a: |\n  x\ty\n", r#"{"a":"x\ty\n"}"#);
        check("a: |\n  x\n  #\tc\nb: 1", r##"{"a":"x\n#\tc\n","b":1}"##);
        for text in ["a: x # c\t", "# c\tc\na: x", "a: x\n#\tc\n", "a: 'x' #\tc"] {
            check(text, r#"{"a":"x"}"#);
        }
        check("a: | # c\tc\n  x\n", r#"{"a":"x\n"}"#);
        let refused = |text: &str, line, column| {
            let problem = parse(text, &mut Vec::new()).expect_err(text);
            assert!(problem.message.contains("'\\t' that cannot start any token"), "{text:?}: {}", problem.message);
            assert_eq!((problem.at.line, problem.at.column), (line, column), "{text:?}");
        };
        for (text, column) in [
            ("a:\tx", 3),
            ("a: x\t", 5),
            ("a: x\t# c", 5),
            ("a: x\ty", 5),
            ("-\ta", 2),
            ("a: [1,\t2]", 7),
            ("a: {b:\t1}", 7),
            ("a: &x\t1", 6),
            ("a:\t|\n  x", 3),
            ("a: 1\t\n# c\n", 5),
            ("a: 'x'\t", 7),
            ("a: x#\ty", 6),
        ] {
            refused(text, 1, column);
        }
        refused("- a\n \t\n- b", 2, 2);
        refused("a: x\n\t# c\n", 2, 1);
        refused("a: |\n  x\n\nb:\t1", 4, 3);
    }

    #[test]
    fn values_are_read_as_pyyaml_reads_them() {
        check("", "null");
        check("# only a comment\n", "null");
        check(
            "a: yes\nb: 'yes'\nc: 0755\nd: 1:30\ne: 1_000\nf: 1e3\n",
            r#"{"a":true,"b":"yes","c":493,"d":90,"e":1000,"f":"1e3"}"#,
        );
        check(
            "a: !!str 5\nb: !!int '7'\nc: !!float 2\nd: ! 5",
            r#"{"a":"5","b":"7","c":2.0,"d":"5"}"#.replace("\"7\"", "7").as_str(),
        );
        check("on: 1\n5: 2\n~: 3\n", r#"{"true":1,"5":2,"null":3}"#);
        check("\u{feff}a: 1\r\nb: 2\r\n", r#"{"a":1,"b":2}"#);
        check("a: |\n  x\n  y\n", r#"{"a":"x\ny\n"}"#);
        check("a: |\n  x\n  y", r#"{"a":"x\ny"}"#);
        check("a: |\n  x\n  y\nb: z", r#"{"a":"x\ny\n","b":"z"}"#);
    }

    #[test]
    fn every_value_and_key_has_its_position() {
        let node = parse("a:\n  - b: 1\n    c: x\n", &mut Vec::new()).unwrap();
        let (key, value) = &node.get("a").unwrap().items()[0].entries()[1];
        assert_eq!(key.at, Position { line: 3, column: 5 });
        assert_eq!(value.at, Position { line: 3, column: 8 });
    }

    #[test]
    fn merge_keys_give_way_to_own_keys_and_earlier_sources_win() {
        check("a: &a {x: 1, y: 2}\nb: {y: 3, <<: *a}", r#"{"a":{"x":1,"y":2},"b":{"x":1,"y":3}}"#);
        check("- &a {x: 1}\n- &b {x: 2, z: 3}\n- {<<: [*a, *b]}", r#"[{"x":1},{"x":2,"z":3},{"x":1,"z":3}]"#);
        check("{'<<': 1}", r#"{"<<":1}"#);
        check("{<<: 1}", "1:6 expected a mapping or list of mappings for merging");
    }

    #[test]
    fn the_last_duplicate_key_wins_and_a_warning_names_both() {
        let mut problems = Vec::new();
        let node = parse("a: 1\nb: 2\na: 3\n", &mut problems).unwrap();
        assert_eq!(node.to_json().to_string(), r#"{"a":3,"b":2}"#);
        assert_eq!(
            problems[0].to_string(),
            "duplicate key 'a' (line 3, column 1): already given in line 1; the last one counts"
        );
        let mut problems = Vec::new();
        parse("a: &a {x: 1}\nb: {<<: *a, x: 2}", &mut problems).unwrap();
        assert_eq!(problems, [], "overriding a merged key is what merging is for");
    }

    #[test]
    fn anything_but_one_yaml_document_is_rejected_with_its_position() {
        check("a: [1", "1:4 unclosed bracket '['");
        check("a: 1\n---\nb: 2\n", "2:1 expected a single document in the stream");
        check("a: !!python/object:os.system {}", "1:30 could not determine a constructor for the tag");
        check("[1]: 2", "1:1 found unhashable key");
        check("a: *gone", "1:4 while parsing node, found unknown anchor");
        check("a: &a [*a]", "1:8 found unconstructable recursive node");
        check("a: \u{7}", "1:4 special characters are not allowed");
        let problem = parse("port: %(NODEPOOL_PORT)\n", &mut Vec::new()).unwrap_err();
        assert!(problem.to_string().contains("NODEPOOL_"), "{problem}");
    }

    #[test]
    fn alias_bombs_are_rejected() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
        }
        assert!(json(&bomb).ends_with("file expands to too many values"));
        let mut chain = "a0: &a0 [x]\n".to_owned();
        for level in 1..500 {
            chain.push_str(&format!("a{level}: &a{level} [*a{}]\n", level - 1));
        }
        assert!(json(&chain).ends_with("nested too deeply"));
        assert!(json(&"[".repeat(100_000)).contains("nested too deeply"));
        assert!(json(&"- ".repeat(100_000)).contains("nested too deeply"));
        assert!(json(&"x".repeat(MAX_BYTES + 1)).ends_with("file is too large"));
    }
}
