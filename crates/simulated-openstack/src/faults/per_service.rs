//! A knob with one value for all services, or one per service: `20`, `compute=20,network=5`.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::call::Service;

/// Values by service; `None` is the default of all other services.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(
    try_from = "String",
    into = "String",
    bound(serialize = "T: Clone + Display", deserialize = "T: FromStr<Err = String>")
)]
pub struct PerService<T>(BTreeMap<Option<Service>, T>);

impl<T> PerService<T> {
    pub fn get(&self, service: Service) -> Option<&T> {
        self.0.get(&Some(service)).or_else(|| self.0.get(&None))
    }
}

impl<T: FromStr<Err = String>> FromStr for PerService<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut values = BTreeMap::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (service, value) = match part.split_once('=') {
                Some((service, value)) => (Some(service.parse()?), value),
                None => (None, part),
            };
            values.insert(service, value.parse()?);
        }
        Ok(Self(values))
    }
}

impl<T: FromStr<Err = String>> TryFrom<String> for PerService<T> {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl<T: Display> From<PerService<T>> for String {
    fn from(values: PerService<T>) -> Self {
        values.to_string()
    }
}

impl<T: Display> Display for PerService<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (service, value)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            match service {
                Some(service) => write!(formatter, "{separator}{}={value}", service.name())?,
                None => write!(formatter, "{separator}{value}")?,
            }
        }
        Ok(())
    }
}
