//! Parts of a record as others wrote them. Of thousands of records most have none, or the same one: each takes the room of a
//! pointer, and copies share what is behind it.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// `T`, or nothing where it would be blank.
pub struct Shared<T>(Option<Arc<T>>);

pub type Json = Shared<Value>;
pub type JsonMap = Shared<Map<String, Value>>;

/// What has a value that says nothing.
pub trait Blank: PartialEq + 'static {
    fn blank() -> &'static Self;
}

impl Blank for Value {
    fn blank() -> &'static Self {
        &Value::Null
    }
}

impl Blank for Map<String, Value> {
    fn blank() -> &'static Self {
        static EMPTY: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        &EMPTY
    }
}

impl<T: Blank> Shared<T> {
    /// One place for what is the same in both.
    pub fn share_with(&mut self, other: &Self) {
        if self == other {
            self.0.clone_from(&other.0);
        }
    }
}

impl<T: Blank> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::blank())
    }
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Blank> From<T> for Shared<T> {
    fn from(value: T) -> Self {
        Self((value != *T::blank()).then(|| Arc::new(value)))
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Value::from(text).into()
    }
}

impl<T: Blank> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other) || own == other,
            (own, other) => own.is_none() && other.is_none(),
        }
    }
}

impl<T: Blank + fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Blank + Serialize> Serialize for Shared<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de, T: Blank + Deserialize<'de>> Deserialize<'de> for Shared<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_the_same_is_kept_once_and_nothing_takes_no_room() {
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
