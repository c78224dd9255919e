//! Columns of lists: a row is a line of a table for people, and a JSON object for programs.

use std::borrow::Cow;

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::table::{Table, python_mapping, python_text};
use crate::records::ids::{ExternalId, Id};
use crate::records::json;

/// One column of a list: the key in JSON, the header in a table, and the value of a row.
pub struct Column<R: 'static> {
    pub key: &'static str,
    pub header: &'static str,
    pub value: fn(&R) -> Cell<'_>,
}

/// One value of a row. It borrows from the row, because lists have thousands of values and are rebuilt each second.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell<'a> {
    Null,
    Bool(bool),
    Number(i64),
    Text(Cow<'a, str>),
    Texts(Vec<&'a str>),
    /// A value of a record.
    Json(&'a Value),
    Mapping(&'a Map<String, Value>),
}

impl<'a> Cell<'a> {
    pub fn texts(texts: impl IntoIterator<Item = &'a (impl AsRef<str> + ?Sized + 'a)>) -> Self {
        Self::Texts(texts.into_iter().map(AsRef::as_ref).collect())
    }

    /// Empty for null, the entries of a list joined with commas, any other value as Python prints it.
    fn text(&self) -> String {
        match self {
            Cell::Null => String::new(),
            Cell::Bool(value) => if *value { "True" } else { "False" }.to_owned(),
            Cell::Number(number) => number.to_string(),
            Cell::Text(text) => text.to_string(),
            Cell::Texts(texts) => texts.join(","),
            Cell::Json(Value::Null) => String::new(),
            Cell::Json(Value::Array(items)) => items.iter().map(python_text).collect::<Vec<_>>().join(","),
            Cell::Json(other) => python_text(other),
            Cell::Mapping(mapping) => python_mapping(mapping),
        }
    }
}

impl<'a> From<&'a str> for Cell<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Cell<'_> {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl<'a> From<&'a String> for Cell<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text.as_str().into())
    }
}

impl<'a, K> From<&'a Id<K>> for Cell<'a> {
    fn from(id: &'a Id<K>) -> Self {
        Self::Text(id.as_str().into())
    }
}

impl<'a> From<&'a ExternalId> for Cell<'a> {
    fn from(id: &'a ExternalId) -> Self {
        match id {
            ExternalId::Text(text) => text.into(),
            ExternalId::Object(object) => Cell::Mapping(object),
        }
    }
}

impl<'a, T> From<&'a Option<T>> for Cell<'a>
where
    &'a T: Into<Cell<'a>>,
{
    fn from(value: &'a Option<T>) -> Self {
        value.as_ref().map_or(Cell::Null, Into::into)
    }
}

impl<'a> From<&'a Value> for Cell<'a> {
    fn from(value: &'a Value) -> Self {
        Self::Json(value)
    }
}

impl Serialize for Cell<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Cell::Null => serializer.serialize_unit(),
            Cell::Bool(value) => serializer.serialize_bool(*value),
            Cell::Number(number) => serializer.serialize_i64(*number),
            Cell::Text(text) => serializer.serialize_str(text),
            Cell::Texts(texts) => texts.serialize(serializer),
            Cell::Json(value) => value.serialize(serializer),
            Cell::Mapping(mapping) => mapping.serialize(serializer),
        }
    }
}

/// One row as an object, its keys in the order of the columns.
pub struct Object<'a, R: 'static>(pub &'a [Column<R>], pub &'a R);

impl<R> Serialize for Object<'_, R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for column in self.0 {
            map.serialize_entry(column.key, &(column.value)(self.1))?;
        }
        map.end()
    }
}

/// A list as an array of objects.
pub struct Objects<'a, R: 'static>(pub &'a [Column<R>], pub &'a [R]);

impl<R> Serialize for Objects<'_, R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut array = serializer.serialize_seq(Some(self.1.len()))?;
        for row in self.1 {
            array.serialize_element(&Object(self.0, row))?;
        }
        array.end()
    }
}

/// A list as a table.
pub fn table<R>(columns: &[Column<R>], rows: &[R]) -> Table {
    table_of(&columns.iter().collect::<Vec<_>>(), rows)
}

/// A table with only the columns of these keys, in their usual order.
pub fn table_with<R>(columns: &[Column<R>], keys: &[&str], rows: &[R]) -> Table {
    table_of(&columns.iter().filter(|column| keys.contains(&column.key)).collect::<Vec<_>>(), rows)
}

fn table_of<R>(columns: &[&Column<R>], rows: &[R]) -> Table {
    let mut table = Table::new(columns.iter().map(|column| column.header));
    for row in rows {
        table.push(columns.iter().map(|column| (column.value)(row).text()));
    }
    table
}

pub fn empty_table<R>(columns: &[Column<R>]) -> Table {
    table(columns, &[])
}

/// One row of a table of the given columns.
pub fn cells<R>(columns: &[Column<R>], row: &R) -> impl Iterator<Item = String> {
    columns.iter().map(|column| (column.value)(row).text())
}

/// A list as Python's `json.dumps` writes it.
pub fn python_json<R>(columns: &[Column<R>], rows: &[R]) -> Vec<u8> {
    json::to_bytes(&Objects(columns, rows))
}
