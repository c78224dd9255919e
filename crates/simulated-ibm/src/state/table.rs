//! Tables of resources, in the order of their creation, with their ids and names.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

/// A resource: its JSON, and what the API does not show.
pub struct Entry<T> {
    /// The place in the order of creation.
    pub number: u64,
    pub id: String,
    value: Value,
    text: OnceCell<String>,
    pub details: T,
}

impl<T> Entry<T> {
    pub fn value(&self) -> &Value {
        &self.value
    }

    pub fn value_mut(&mut self) -> &mut Value {
        self.text.take();
        &mut self.value
    }

    /// The JSON as text, which is kept until a change: listings need it often.
    pub fn text(&self) -> &str {
        self.text.get_or_init(|| self.value.to_string())
    }

    pub fn name(&self) -> &str {
        self.value["name"].as_str().unwrap_or_default()
    }

    pub fn status(&self) -> &str {
        self.value["status"].as_str().unwrap_or_default()
    }

    pub fn set_status(&mut self, status: &str) {
        self.value_mut()["status"] = json!(status);
    }
}

pub struct Table<T> {
    rows: BTreeMap<u64, Entry<T>>,
    ids: HashMap<String, u64>,
    names: HashMap<String, u64>,
    count: u64,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { rows: BTreeMap::new(), ids: HashMap::new(), names: HashMap::new(), count: 0 }
    }
}

impl<T> Table<T> {
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn get(&self, id: &str) -> Option<&Entry<T>> {
        self.rows.get(self.ids.get(id)?)
    }

    pub fn get_mut(&mut self, id: &str) -> Option<&mut Entry<T>> {
        self.rows.get_mut(self.ids.get(id)?)
    }

    pub fn by_name(&self, name: &str) -> Option<&Entry<T>> {
        self.rows.get(self.names.get(name)?)
    }

    /// Adds a resource, whose name no other one has.
    pub fn insert(&mut self, id: &str, value: Value, details: T) {
        self.count += 1;
        let number = self.count;
        let entry = Entry { number, id: id.to_owned(), value, text: OnceCell::new(), details };
        assert!(self.ids.insert(id.to_owned(), number).is_none(), "a second resource has the id {id}");
        let earlier = self.names.insert(entry.name().to_owned(), number);
        assert!(earlier.is_none(), "a second resource has the name {}", entry.name());
        self.rows.insert(number, entry);
    }

    pub fn remove(&mut self, id: &str) -> Option<Entry<T>> {
        let entry = self.rows.remove(&self.ids.remove(id)?)?;
        self.names.remove(entry.name());
        Some(entry)
    }

    /// Changes the name of a resource to one that no other one has.
    pub fn rename(&mut self, id: &str, name: &str) {
        let Some(number) = self.ids.get(id).copied() else { return };
        let Some(entry) = self.rows.get_mut(&number) else { return };
        self.names.remove(entry.name());
        entry.value_mut()["name"] = json!(name);
        let earlier = self.names.insert(name.to_owned(), number);
        assert!(earlier.is_none(), "a second resource has the name {name}");
    }

    /// In the order of creation.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Entry<T>> {
        self.rows.values()
    }

    /// Newest first, from the resource that was created before the one with this number.
    pub fn newest_before(&self, number: u64) -> impl Iterator<Item = &Entry<T>> {
        self.rows.range(..number).rev().map(|(_, entry)| entry)
    }

    /// Oldest first, from the resource that was created after the one with this number.
    pub fn oldest_after(&self, number: u64) -> impl Iterator<Item = &Entry<T>> {
        self.rows.range(number + 1..).map(|(_, entry)| entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_have_ids_names_and_an_order() {
        let mut table = Table::default();
        for name in ["a", "b", "c"] {
            table.insert(&format!("id-{name}"), json!({"name": name, "status": "pending"}), ());
        }
        table.get_mut("id-b").unwrap().set_status("available");
        assert_eq!(table.by_name("b").unwrap().text(), r#"{"name":"b","status":"available"}"#);
        table.rename("id-b", "d");
        assert!(table.by_name("b").is_none());
        assert_eq!(table.by_name("d").unwrap().id, "id-b");
        table.remove("id-a");
        let newest: Vec<&str> = table.newest_before(u64::MAX).map(Entry::name).collect();
        assert_eq!((newest, table.len(), table.get("id-a").is_none()), (vec!["c", "d"], 2, true));
        assert_eq!(table.oldest_after(2).map(Entry::name).collect::<Vec<_>>(), ["c"]);
    }
}
