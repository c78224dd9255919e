//! Knobs: settings of a simulation that calls to `/sim/knobs` change while it runs.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// These knobs with some of them changed.
pub fn updated<T: Serialize + DeserializeOwned>(knobs: &T, change: Value) -> Result<T, String> {
    let Value::Object(change) = change else { return Err("the knobs must be a JSON object".to_owned()) };
    let mut all = serde_json::to_value(knobs).expect("knobs are plain data");
    for (knob, value) in change {
        all[knob] = value;
    }
    serde_json::from_value(all).map_err(|error| error.to_string())
}

/// Checks knobs that are times in seconds.
pub fn check_times(times: &[f64]) -> Result<(), String> {
    match times.iter().all(|time| (0.0..1e9).contains(time)) {
        true => Ok(()),
        false => Err("a time must be a number of seconds, 0 or more and less than 1e9".to_owned()),
    }
}

/// Whether a knob that says "every" hits the n-th operation, counted from 1.
pub fn is_nth(every: u64, number: u64) -> bool {
    every > 0 && number.is_multiple_of(every)
}
