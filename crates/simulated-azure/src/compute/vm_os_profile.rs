//! The rules of `osProfile`: names, keys, passwords and data for the operating system.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::server::response::{ApiError, ApiResult};

/// Names that no administrator may have.
const RESERVED_NAMES: [&str; 12] =
    ["administrator", "admin", "user", "user1", "test", "user2", "test1", "root", "guest", "1", "123", "a"];

/// Maximum number of bytes of custom data and user data before their encoding.
const MAX_DATA: usize = 65_535;

/// Checks the profile for an operating system, `Linux` or `Windows`.
pub fn check_os_profile(profile: &Value, os_type: &str) -> ApiResult<()> {
    let text = |name: &str| profile[name].as_str().filter(|text| !text.is_empty());
    let is_windows = os_type == "Windows";
    let computer = text("computerName").ok_or_else(|| missing("osProfile.computerName", "computerName"))?;
    check_computer_name(computer, is_windows)?;
    let user = text("adminUsername").ok_or_else(|| missing("adminUsername", "adminUsername"))?;
    if RESERVED_NAMES.contains(&user.to_ascii_lowercase().as_str()) {
        let message = "The Admin Username specified is not allowed. For more information about disallowed usernames, \
                       see https://aka.ms/vmosprofile";
        return Err(ApiError::invalid("adminUsername", message));
    }
    let keys = profile.pointer("/linuxConfiguration/ssh/publicKeys").and_then(Value::as_array);
    let keys = keys.map(Vec::as_slice).unwrap_or_default();
    if is_windows && !profile["linuxConfiguration"].is_null() {
        let message = "Linux configuration cannot be set for a virtual machine with a Windows image.";
        return Err(ApiError::invalid("linuxConfiguration", message));
    }
    for key in keys {
        check_key(key, user)?;
    }
    let is_password_disabled = profile["linuxConfiguration"]["disablePasswordAuthentication"] == true;
    match text("adminPassword") {
        Some(password) => check_password(password, is_windows)?,
        None if is_windows => return Err(missing("adminPassword", "adminPassword")),
        None if keys.is_empty() || !is_password_disabled => {
            let message =
                "Authentication using either SSH or by user name and password must be enabled in Linux profile.";
            return Err(ApiError::invalid("linuxConfiguration", message));
        }
        None => {}
    }
    check_data(&profile["customData"], "customData", "Custom data in OSProfile")
}

pub fn check_data(data: &Value, target: &str, name: &str) -> ApiResult<()> {
    let is_valid = match data {
        Value::Null => true,
        Value::String(text) => STANDARD.decode(text).is_ok_and(|bytes| bytes.len() <= MAX_DATA),
        _ => false,
    };
    let message = || format!("{name} must be in Base64 encoding and with a maximum length of 87380 characters.");
    if is_valid { Ok(()) } else { Err(ApiError::invalid(target, message())) }
}

pub fn missing(target: &str, parameter: &str) -> ApiError {
    ApiError::invalid(target, format!("Required parameter '{parameter}' is missing (null)."))
}

fn check_computer_name(name: &str, is_windows: bool) -> ApiResult<()> {
    let max = if is_windows { 15 } else { 64 };
    let is_valid = name.len() <= max
        && name.chars().all(|sign| sign.is_ascii_alphanumeric() || "-._".contains(sign))
        && !name.ends_with(['-', '.'])
        && !(is_windows && name.chars().all(|sign| sign.is_ascii_digit()));
    if is_valid {
        return Ok(());
    }
    let os = if is_windows { "Windows" } else { "Linux" };
    let message = format!(
        "{os} computer name '{name}' cannot be more than {max} characters long, be entirely numeric, or contain the \
         following characters: ` ~ ! @ # $ % ^ & * ( ) = + _ [ ] {{ }} \\ | ; : . ' \" , < > / ?."
    );
    Err(ApiError::invalid("computerName", message))
}

fn check_key(key: &Value, user: &str) -> ApiResult<()> {
    let path = format!("/home/{user}/.ssh/authorized_keys");
    if key["path"] != path {
        let message = format!(
            "Destination path for SSH public keys is currently limited to its default value {path} due to a known \
             issue in Linux provisioning agent."
        );
        return Err(ApiError::invalid("linuxConfiguration.ssh.publicKeys.path", message));
    }
    let data = key["keyData"].as_str().unwrap_or_default();
    let mut words = data.split_whitespace();
    let is_type = words.next().is_some_and(|word| word.starts_with("ssh-") || word.starts_with("ecdsa-"));
    if is_type && words.next().is_some_and(|word| STANDARD.decode(word).is_ok()) {
        return Ok(());
    }
    let message = "The value of parameter linuxConfiguration.ssh.publicKeys.keyData is invalid.";
    Err(ApiError::invalid("linuxConfiguration.ssh.publicKeys.keyData", message))
}

fn check_password(password: &str, is_windows: bool) -> ApiResult<()> {
    let (min, max) = if is_windows { (8, 123) } else { (6, 72) };
    let has = |class: fn(char) -> bool| usize::from(password.contains(class));
    let classes = has(|sign| sign.is_ascii_lowercase())
        + has(|sign| sign.is_ascii_uppercase())
        + has(|sign| sign.is_ascii_digit())
        + has(|sign| !sign.is_ascii_alphanumeric());
    if (min..=max).contains(&password.chars().count()) && classes >= 3 {
        return Ok(());
    }
    let message = format!(
        "The supplied password must be between {min}-{max} characters long and must satisfy at least 3 of password \
         complexity requirements from the following:\r\n1) Contains an uppercase character\r\n2) Contains a lowercase \
         character\r\n3) Contains a numeric digit\r\n4) Contains a special character\r\n5) Control characters are not \
         allowed"
    );
    Err(ApiError::invalid("adminPassword", message))
}
