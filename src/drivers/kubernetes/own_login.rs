//! The login of the launcher's own account, which openshiftpods hands out with each pod: jobs can use tokens only.

use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::DateTime;
use kube::config::AuthInfo;
use serde_json::Value;

use super::client::merged_kubeconfig;
use super::config::Settings;
use nodepool_model::config::ProviderConfig;
use nodepool_model::config::diagnostics::Diagnostics;

/// Checks the account of the context. A kubeconfig that cannot be read yet is no error: it is looked for again.
pub fn check(section: &ProviderConfig, settings: &Settings, files: &[PathBuf], diagnostics: &mut Diagnostics) {
    let (Some(name), Ok(Some(kubeconfig))) = (&settings.context, merged_kubeconfig(files)) else { return };
    let context = kubeconfig.contexts.iter().find(|named| named.name == *name).and_then(|named| named.context.as_ref());
    let user = context.and_then(|context| {
        kubeconfig.auth_infos.iter().find(|named| Some(&named.name) == context.user.as_ref())?.auth_info.as_ref()
    });
    let Some(user) = user else { return };
    let at = section.section.get("context").map_or(section.section.at, |context| context.at);
    if let Some(only) = credentials_without_token(user) {
        let problem =
            format!("the account of context {name} has {only} and no token, so no job could log in to its pods");
        diagnostics.error(at, problem, "give the user of the context a token");
    } else if let Some(source) = changing_token(user) {
        let problem = format!("the token of context {name} comes from {source}, and may end while a job uses its pod");
        diagnostics.warning(at, problem, "use the token of a secret of type kubernetes.io/service-account-token");
    }
}

fn credentials_without_token(user: &AuthInfo) -> Option<&'static str> {
    let has_token =
        user.token.is_some() || user.token_file.is_some() || user.exec.is_some() || user.auth_provider.is_some();
    let has_certificate = user.client_certificate.is_some() || user.client_certificate_data.is_some();
    match (has_token, has_certificate, user.username.is_some()) {
        (true, ..) => None,
        (false, true, _) => Some("a client certificate"),
        (false, false, true) => Some("a password"),
        (false, false, false) => Some("no credentials"),
    }
}

fn changing_token(user: &AuthInfo) -> Option<&'static str> {
    match user {
        user if user.token.is_some() => None,
        user if user.exec.is_some() => Some("an exec plugin"),
        user if user.token_file.is_some() => Some("a file"),
        _ => None,
    }
}

/// The end of a JSON web token (RFC 7519), if it has one.
pub fn end_of(token: &str) -> Option<String> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    Some(DateTime::from_timestamp(claims["exp"].as_i64()?, 0)?.to_rfc3339())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_when_it_ends() {
        let token = |claims: &str| format!("head.{}.signature", URL_SAFE_NO_PAD.encode(claims));
        assert_eq!(end_of(&token(r#"{"exp": 1700000000}"#)).as_deref(), Some("2023-11-14T22:13:20+00:00"));
        for endless in [token(r#"{"sub": "system:serviceaccount:default:nodepool"}"#), "opaque".to_owned()] {
            assert_eq!(end_of(&endless), None);
        }
    }
}
