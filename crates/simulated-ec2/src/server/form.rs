//! The parameters of a call in the EC2 query protocol: `TagSpecification.1.Tag.2.Key=…`.

use std::collections::BTreeMap;

use crate::server::response::{ApiError, ApiResult};

/// All parameters, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Form(pub BTreeMap<String, String>);

/// The parameters below a prefix, such as `TagSpecification.1.`.
#[derive(Clone, Debug)]
pub struct Scope<'a> {
    form: &'a Form,
    prefix: String,
}

impl Form {
    pub fn parse(body: &[u8]) -> Self {
        Self(form_urlencoded::parse(body).into_owned().collect())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub fn required(&self, name: &str) -> ApiResult<&str> {
        self.get(name).ok_or_else(|| missing(name))
    }

    pub fn root(&self) -> Scope<'_> {
        Scope { form: self, prefix: String::new() }
    }

    /// The values of `name.1`, `name.2` and so on.
    pub fn list(&self, name: &str) -> Vec<&str> {
        self.root().list(name)
    }

    pub fn items(&self, name: &str) -> Vec<Scope<'_>> {
        self.root().items(name)
    }

    pub fn number<T: std::str::FromStr>(&self, name: &str) -> ApiResult<Option<T>> {
        self.root().number(name)
    }

    /// The parameters below a prefix, without it.
    pub fn below(&self, prefix: &str) -> Self {
        let all = self.0.range(prefix.to_owned()..).take_while(|(name, _)| name.starts_with(prefix));
        Self(all.map(|(name, value)| (name[prefix.len()..].to_owned(), value.clone())).collect())
    }

    /// The parameters that tell whether a call with the same token is the same call.
    pub fn fingerprint(&self) -> String {
        let ignored = ["Action", "ClientToken", "Version", "DryRun"];
        let pairs = self.0.iter().filter(|(name, _)| !ignored.contains(&name.as_str()));
        pairs.map(|(name, value)| format!("{}:{name}={value}\n", value.len())).collect()
    }
}

impl<'a> Scope<'a> {
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.form.get(&format!("{}{name}", self.prefix))
    }

    pub fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    pub fn number<T: std::str::FromStr>(&self, name: &str) -> ApiResult<Option<T>> {
        let parse = |text: &str| {
            let text = text.strip_suffix(".0").unwrap_or(text);
            let message = || format!("Invalid value '{text}' for {name}. It is not a valid number.");
            text.parse().map_err(|_| ApiError::new("InvalidParameterValue", message()))
        };
        self.get(name).map(parse).transpose()
    }

    pub fn list(&self, name: &str) -> Vec<&'a str> {
        self.numbers(name).into_iter().filter_map(|number| self.get(&format!("{name}.{number}"))).collect()
    }

    pub fn items(&self, name: &str) -> Vec<Scope<'a>> {
        let item = |number| Self { form: self.form, prefix: format!("{}{name}.{number}.", self.prefix) };
        self.numbers(name).into_iter().map(item).collect()
    }

    /// The parameters of this scope, without the prefix.
    pub fn to_form(&self) -> Form {
        self.form.below(&self.prefix)
    }

    /// The indices that occur after a name.
    fn numbers(&self, name: &str) -> Vec<u32> {
        let prefix = format!("{}{name}.", self.prefix);
        let names = self.form.0.range(prefix.clone()..).map(|(name, _)| name);
        let indices = names.take_while(|name| name.starts_with(&prefix)).filter_map(|name| {
            let rest = &name[prefix.len()..];
            rest.split('.').next().and_then(|index| index.parse().ok())
        });
        let mut numbers: Vec<u32> = indices.collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }
}

pub fn missing(name: &str) -> ApiError {
    ApiError::new("MissingParameter", format!("The request must contain the parameter {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_structures_are_found_by_their_indices() {
        let form = Form::parse(b"A.10.B=x&A.2.B=y&A.2.C.1=z&AB.1.B=no&N=3.0");
        let values: Vec<_> = form.items("A").iter().map(|item| (item.get("B"), item.list("C"))).collect();
        assert_eq!(values, [(Some("y"), vec!["z"]), (Some("x"), vec![])]);
        assert_eq!(form.number::<u32>("N").unwrap(), Some(3));
        assert_eq!(form.below("A.2.").0.len(), 2);
    }
}
