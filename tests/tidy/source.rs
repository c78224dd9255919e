//! A source file as tokens: comments and texts taken out, test modules set apart.

/// A word, a number, a `::` or one sign, and the line it stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub text: String,
    pub line: usize,
}

/// A file of the repository, named relative to its root.
pub struct Source {
    pub path: String,
    pub text: String,
    /// All tokens, tests included.
    pub tokens: Vec<Token>,
    pub comments: Vec<Token>,
    /// Whether the whole file is test code.
    pub is_test: bool,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Source {
        let (tokens, comments) = tokens(text);
        let is_test = !path.starts_with("src/") && !path.starts_with("crates/");
        Source { path: path.to_owned(), text: text.to_owned(), tokens, comments, is_test }
    }

    /// The files, without their ending, that this file declares as `#[cfg(test)] mod name;`.
    fn test_modules(&self) -> Vec<String> {
        let (folder, name) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        let folder = match name {
            "mod.rs" | "lib.rs" | "main.rs" => folder,
            _ => self.path.trim_end_matches(".rs"),
        };
        let declared = self.tokens.windows(TEST_MARK.len() + 3).filter(|window| begins_with_mark(window));
        let declared = declared.filter_map(|window| match &window[TEST_MARK.len()..] {
            [word, name, end] if word.text == "mod" && end.text == ";" => Some(name.text.as_str()),
            _ => None,
        });
        declared.map(|name| format!("{folder}/{name}")).collect()
    }

    /// The tokens outside `#[cfg(test)]` items.
    pub fn product(&self) -> Vec<Token> {
        if self.is_test { Vec::new() } else { without_tests(&self.tokens) }
    }

    pub fn lines(&self) -> usize {
        self.text.lines().count()
    }
}

/// The tokens and the comments.
fn tokens(text: &str) -> (Vec<Token>, Vec<Token>) {
    let signs: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let mut comments = Vec::new();
    let mut line = 1;
    let mut at = 0;
    while at < signs.len() {
        let start = at;
        let rest = &signs[at..];
        if let Some(length) = uncounted(rest) {
            at += length;
            if matches!(rest, ['/', ..]) {
                comments.push(Token { text: rest[..length].iter().collect(), line });
            }
        } else if is_word(rest[0]) {
            at += rest.iter().take_while(|sign| is_word(**sign)).count();
            found.push(Token { text: rest[..at - start].iter().collect(), line });
        } else if rest.starts_with(&[':', ':']) {
            at += 2;
            found.push(Token { text: "::".to_owned(), line });
        } else {
            at += 1;
            found.push(Token { text: rest[0].to_string(), line });
        }
        line += signs[start..at].iter().filter(|sign| **sign == '\n').count();
    }
    (found, comments)
}

fn is_word(sign: char) -> bool {
    sign.is_alphanumeric() || sign == '_'
}

/// The length of the white space, comment, text, character or lifetime that begins here.
fn uncounted(rest: &[char]) -> Option<usize> {
    let find = |from: usize, end: &[char]| {
        let position = rest[from..].windows(end.len()).position(|window| window == end);
        position.map_or(rest.len(), |position| from + position + end.len())
    };
    match rest {
        [sign, ..] if sign.is_whitespace() => Some(1),
        ['/', '/', ..] => Some(find(2, &['\n'])),
        ['/', '*', ..] => Some(block_comment(rest)),
        ['"', ..] => Some(quoted(rest, 1)),
        ['b' | 'c', '"', ..] => Some(quoted(rest, 2)),
        ['b', '\'', ..] => Some(character(rest, 2)),
        // A lifetime: a quote, a word, and no closing quote.
        ['\'', first, after, ..] if is_word(*first) && *after != '\'' => {
            Some(1 + rest[1..].iter().take_while(|sign| is_word(**sign)).count())
        }
        ['\'', ..] => Some(character(rest, 1)),
        ['r' | 'b' | 'c', ..] => {
            let prefix = if rest.starts_with(&['b', 'r']) || rest.starts_with(&['c', 'r']) { 2 } else { 1 };
            let hashes = rest[prefix.min(rest.len())..].iter().take_while(|sign| **sign == '#').count();
            let is_raw = rest[prefix - 1] == 'r' && rest.get(prefix + hashes) == Some(&'"');
            let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
            is_raw.then(|| find(prefix + hashes + 1, &end))
        }
        _ => None,
    }
}

fn block_comment(rest: &[char]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn quoted(rest: &[char], from: usize) -> usize {
    let mut at = from;
    while at < rest.len() && rest[at] != '"' {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

fn character(rest: &[char], from: usize) -> usize {
    // At least one sign lies between the quotes, and it may be an escaped quote.
    let mut at = from + if rest.get(from) == Some(&'\\') { 2 } else { 1 };
    while at < rest.len() && rest[at] != '\'' {
        at += 1;
    }
    (at + 1).min(rest.len())
}

const TEST_MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];

fn begins_with_mark(tokens: &[Token]) -> bool {
    tokens.len() > TEST_MARK.len() && TEST_MARK.iter().zip(tokens).all(|(mark, token)| token.text == *mark)
}

/// Marks the files that others declare as test modules, and what lies in their folders.
pub fn mark_tests(sources: &mut [Source]) {
    let modules: Vec<String> = sources.iter().flat_map(Source::test_modules).collect();
    for source in sources {
        let inside = |module: &String| {
            source.path.strip_prefix(module.as_str()).is_some_and(|rest| rest.starts_with(['.', '/']))
        };
        source.is_test |= modules.iter().any(inside);
    }
}

fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if begins_with_mark(&tokens[at..]) {
            at = end_of_item(tokens, at + TEST_MARK.len());
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// Where the item that begins here ends: behind its `;`, or behind the `}` that closes its first `{`.
fn end_of_item(tokens: &[Token], from: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(from) {
        match token.text.as_str() {
            "{" | "(" | "[" => depth += 1,
            ")" | "]" => depth -= 1,
            "}" => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            ";" if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}
