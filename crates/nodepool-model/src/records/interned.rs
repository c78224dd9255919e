//! Interned parts of records: each has the size of a pointer, and equal parts can share their content. In thousands of
//! records most of these parts are empty or equal.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// A shared `T`; an empty one is not allocated.
pub struct Interned<T>(Option<Arc<T>>);

pub type Json = Interned<Value>;
pub type JsonMap = Interned<Map<String, Value>>;

/// Types with an empty value.
pub trait EmptyValue: PartialEq + 'static {
    fn empty() -> &'static Self;
}

impl EmptyValue for Value {
    fn empty() -> &'static Self {
        &Value::Null
    }
}

impl EmptyValue for Map<String, Value> {
    fn empty() -> &'static Self {
        static EMPTY: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        &EMPTY
    }
}

impl<T: EmptyValue> Interned<T> {
    /// Shares the allocation of `other` if both are equal.
    pub fn share_with(&mut self, other: &Self) {
        if self == other {
            self.0.clone_from(&other.0);
        }
    }
}

impl<T: EmptyValue> Deref for Interned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::empty())
    }
}

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Clone for Interned<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: EmptyValue> From<T> for Interned<T> {
    fn from(value: T) -> Self {
        Self((value != *T::empty()).then(|| Arc::new(value)))
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Value::from(text).into()
    }
}

impl<T: EmptyValue> PartialEq for Interned<T> {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other) || own == other,
            (own, other) => own.is_none() && other.is_none(),
        }
    }
}

impl<T: EmptyValue + fmt::Debug> fmt::Debug for Interned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: EmptyValue + Serialize> Serialize for Interned<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de, T: EmptyValue + Deserialize<'de>> Deserialize<'de> for Interned<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn equal_values_are_stored_once_and_empty_ones_not_at_all() {
        assert_eq!(std::mem::size_of::<Json>(), std::mem::size_of::<usize>());
        let (one, mut other) = (Json::from(json!({"a": [1]})), Json::from(json!({"a": [1]})));
        assert!(!std::ptr::eq(&*one, &*other));
        other.share_with(&one);
        assert!(std::ptr::eq(&*one, &*other));
        other.share_with(&Json::from(json!(2)));
        assert_eq!(*other, json!({"a": [1]}));
        assert!(Json::from(Value::Null).0.is_none() && JsonMap::from(Map::new()).0.is_none());
        assert_eq!(
            serde_json::to_string(&(JsonMap::default(), Json::default(), one)).unwrap(),
            r#"[{},null,{"a":[1]}]"#
        );
        assert_eq!(serde_json::from_str::<Json>("null").unwrap(), Json::default());
    }
}
