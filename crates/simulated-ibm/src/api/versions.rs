//! The parameters that every call to the VPC API has: `version` and `generation`.

use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult};
use crate::state::world::World;

const FIRST_VERSION: &str = "2019-01-01";

impl World {
    pub fn check_version(&self, call: &Call) -> ApiResult<()> {
        let version = call.parameter("version").ok_or_else(|| parameter_error("missing_version", "version", ""))?;
        if !is_date(version) {
            return Err(parameter_error("invalid_version", "version", version));
        }
        if version < FIRST_VERSION || version > self.today().as_str() {
            return Err(parameter_error("invalid_version_range", "version", version));
        }
        match call.parameter("generation") {
            Some("2") => Ok(()),
            None => Err(parameter_error("missing_generation_parameter", "generation", "")),
            Some(other) => Err(parameter_error("invalid_generation_parameter", "generation", other)),
        }
    }
}

fn parameter_error(code: &str, name: &str, value: &str) -> ApiError {
    ApiError::parameter(code, name, value)
}

fn is_date(text: &str) -> bool {
    text.parse::<chrono::NaiveDate>().is_ok_and(|date| date.to_string() == text)
}
