//! Schema language: shapes of values, keys of sections, and keys that exclude each other.

/// Kind of value that Nodepool 11's validator accepts. The validator checks values and does not convert them.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    Text,
    /// Booleans count as whole numbers, as in Python.
    Integer,
    /// With a decimal point: `10` is rejected, `10.0` is not.
    Float,
    /// A number, or a text that converts to one.
    Convertible,
    Boolean,
    /// A mapping with any content.
    AnyMap,
    /// A list with any content.
    AnyList,
    List(&'static Shape),
    /// Text keys of the operator's choice.
    TextMap(&'static Shape),
    Map(&'static Section),
    /// The first shape that fits; if none does, the closest one reports its errors.
    Either(&'static [Shape]),
    OneOf(&'static [&'static str]),
    OneOfOrNull(&'static [&'static str]),
    Pattern(&'static Pattern),
}

/// A regular expression for messages, and the same as code.
#[derive(Debug)]
pub struct Pattern {
    pub expression: &'static str,
    pub meaning: &'static str,
    pub matches: fn(&str) -> bool,
}

/// A mapping with known keys.
#[derive(Debug)]
pub struct Section {
    /// Name in messages: `a label`.
    pub title: &'static str,
    /// If several lists contain a key, the first one counts.
    pub keys: &'static [&'static [Key]],
    /// Shape of all other text keys; without it they are rejected.
    pub additional: Option<Shape>,
    pub required_keys: &'static [RequiredKeys],
}

#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub name: &'static str,
    pub shape: Shape,
    pub required: bool,
    /// At most one key of a group may be given.
    pub group: Option<&'static str>,
}

/// At least one of these keys must be given.
#[derive(Debug)]
pub struct RequiredKeys {
    pub keys: &'static [&'static str],
    /// The error message; without one, the first key is reported as missing.
    pub message: Option<&'static str>,
}

/// A key that may be left out.
pub const fn key(name: &'static str, shape: Shape) -> Key {
    Key { name, shape, required: false, group: None }
}

/// A key that must be given.
pub const fn required(name: &'static str, shape: Shape) -> Key {
    Key { name, shape, required: true, group: None }
}

/// A key that excludes the others of its group.
pub const fn exclusive(name: &'static str, group: &'static str, shape: Shape) -> Key {
    Key { name, shape, required: false, group: Some(group) }
}

/// A section that accepts only these keys.
pub const fn section(title: &'static str, keys: &'static [&'static [Key]]) -> Section {
    Section { title, keys, additional: None, required_keys: &[] }
}

impl Section {
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.all_keys().find(|key| key.name == name)
    }

    pub fn all_keys(&self) -> impl Iterator<Item = &'static Key> {
        self.keys.iter().copied().flatten()
    }
}

impl Shape {
    /// Name of the type in Nodepool 11's messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Text => "str",
            Self::Integer => "int",
            Self::Float | Self::Convertible => "float",
            Self::Boolean => "bool",
            Self::AnyMap => "dict",
            Self::AnyList => "list",
            Self::List(_) => "a list",
            Self::Map(_) | Self::TextMap(_) => "a dictionary",
            Self::Either(shapes) => shapes[0].name(),
            Self::OneOf(_) | Self::OneOfOrNull(_) | Self::Pattern(_) => "str",
        }
    }

    /// The accepted values, described for operators.
    pub fn meaning(&self) -> String {
        match self {
            Self::Text => "text (in quotes if it looks like a number, a date or yes/no)".to_owned(),
            Self::Integer => "a whole number".to_owned(),
            Self::Float => "a number with decimals, like 10.0".to_owned(),
            Self::Convertible => "a number".to_owned(),
            Self::Boolean => "true or false".to_owned(),
            Self::AnyMap | Self::Map(_) | Self::TextMap(_) => "a mapping".to_owned(),
            Self::AnyList => "a list".to_owned(),
            Self::List(Shape::Text) => "a list of texts".to_owned(),
            Self::List(_) => "a list".to_owned(),
            Self::Either(shapes) => {
                let meanings: Vec<String> = shapes.iter().map(Shape::meaning).collect();
                meanings.join(", or ")
            }
            Self::OneOf(words) => format!("one of {}", words.join(", ")),
            Self::OneOfOrNull(words) => format!("one of {}, or nothing", words.join(", ")),
            Self::Pattern(pattern) => pattern.meaning.to_owned(),
        }
    }
}
