//! Raw JSON of fields that are passed through byte for byte, because serializing them again would change them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::json;

/// JSON as it was written. Zuul's trace ids are numbers of 128 bits, which a `Value` would round.
#[derive(Clone, Default)]
pub struct RawJson(Option<Arc<RawValue>>);

impl RawJson {
    /// The JSON text; `null` if there is none.
    pub fn text(&self) -> &str {
        self.0.as_ref().map_or("null", |raw| raw.get())
    }

    /// The parsed value; numbers beyond 64 bits are rounded.
    pub fn value(&self) -> Value {
        serde_json::from_str(self.text()).unwrap_or_default()
    }
}

impl From<Value> for RawJson {
    fn from(value: Value) -> Self {
        let text = String::from_utf8(json::to_bytes(&value)).ok().filter(|_| !value.is_null());
        Self(text.and_then(|text| RawValue::from_string(text).ok()).map(Arc::from))
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self((raw.get() != "null").then(|| Arc::from(raw))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::request::{NodeRequest, SpanInfo};

    #[test]
    fn requestor_data_of_zuul_is_written_back_unchanged() {
        let data = r#"{"span_info": {"name": "RequestNodes", "trace_id": 338953138925153547590470800371487866880, "span_id": 17457386173526127616, "x": 1.50, "\u00fc": "\u00fc"}}"#;
        let text = format!(r#"{{"state": "requested", "node_types": ["a"], "requestor_data": {data}}}"#);
        let request: NodeRequest = json::from_bytes(text.as_bytes()).unwrap();
        assert_eq!(request.requestor_data.text(), data);
        let span = SpanInfo {
            trace_id: 338_953_138_925_153_547_590_470_800_371_487_866_880,
            span_id: 17_457_386_173_526_127_616,
            trace_flags: 0,
        };
        assert_eq!(request.span(), Some(span));
        let written = String::from_utf8(json::to_bytes(&request)).unwrap();
        assert!(written.contains(&format!(r#""requestor_data": {data}"#)), "{written}");
        let bare = NodeRequest { requestor_data: RawJson::default(), ..request };
        assert_eq!((bare.requestor_data.value(), bare.span()), (Value::Null, None));
    }
}
