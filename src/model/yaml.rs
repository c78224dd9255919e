//! YAML with the place of every value: scalars as YAML 1.1 reads them, line and column at every node; nothing resolved.

/// Line and column in a file, both from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub line: u32,
    pub column: u32,
}

/// A value and where it stands. Two nodes are equal when their values are, wherever they stand.
#[derive(Clone, Debug)]
pub struct YamlNode {
    pub at: Place,
    pub value: YamlValue,
}

#[derive(Clone, Debug, PartialEq)]
pub enum YamlValue {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<YamlNode>),
    Map(Vec<(YamlKey, YamlNode)>),
}

#[derive(Clone, Debug)]
pub struct YamlKey {
    pub at: Place,
    pub text: String,
}
impl PartialEq for YamlNode {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}
impl PartialEq for YamlKey {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}
