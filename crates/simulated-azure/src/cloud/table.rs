//! Rows by key, and in the order of their creation, which pages follow.

use std::collections::{BTreeMap, HashMap};

pub struct Table<T> {
    rows: BTreeMap<u64, T>,
    numbers: HashMap<String, u64>,
    next: u64,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { rows: BTreeMap::new(), numbers: HashMap::new(), next: 1 }
    }
}

impl<T> Table<T> {
    pub fn insert(&mut self, key: String, row: T) {
        let earlier = self.numbers.insert(key, self.next);
        assert!(earlier.is_none(), "a second row has the same key");
        self.rows.insert(self.next, row);
        self.next += 1;
    }

    pub fn get(&self, key: &str) -> Option<&T> {
        self.rows.get(self.numbers.get(key)?)
    }

    pub fn get_mut(&mut self, key: &str) -> Option<&mut T> {
        self.rows.get_mut(self.numbers.get(key)?)
    }

    pub fn remove(&mut self, key: &str) -> Option<T> {
        self.rows.remove(&self.numbers.remove(key)?)
    }

    pub fn contains(&self, key: &str) -> bool {
        self.numbers.contains_key(key)
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.rows.values()
    }

    /// Rows that were created after the one with this number.
    pub fn after(&self, number: u64) -> impl Iterator<Item = (u64, &T)> {
        self.rows.range(number + 1..).map(|(number, row)| (*number, row))
    }
}
