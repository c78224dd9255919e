//! Conversion of the `auth` section to an identity: options of each auth type, required options, and their values.

use crate::error::CloudsError;
use crate::merge::{Map, Origin};
use crate::secret::Secret;
use crate::settings::{Auth, Credential, Domain, Domains, Identity, IdentityApi, Scope, User};
use python_yaml::diagnostics::nearest;

#[derive(Clone, Copy, PartialEq)]
enum AuthKind {
    Password,
    Token,
    ApplicationCredential,
}

/// The auth types of this version.
const TYPES: [(&str, AuthKind, IdentityApi); 6] = [
    ("password", AuthKind::Password, IdentityApi::Discovered),
    ("token", AuthKind::Token, IdentityApi::Discovered),
    ("v2password", AuthKind::Password, IdentityApi::V2),
    ("v3password", AuthKind::Password, IdentityApi::V3),
    ("v3token", AuthKind::Token, IdentityApi::V3),
    ("v3applicationcredential", AuthKind::ApplicationCredential, IdentityApi::V3),
];

const COMMON_OPTIONS: [&str; 4] = ["auth_url", "project_id", "project_name", "trust_id"];
/// Options that version 2 lacks.
const COMMON_OPTIONS_OF_V3: [&str; 5] =
    ["system_scope", "domain_id", "domain_name", "project_domain_id", "project_domain_name"];
const DISCOVERED_OPTIONS: [&str; 2] = ["default_domain_id", "default_domain_name"];
const USER_OPTIONS: [&str; 2] = ["user_id", "username"];
const USER_OPTIONS_OF_V3: [&str; 2] = ["user_domain_id", "user_domain_name"];
const DOMAIN_OPTIONS: [&str; 6] =
    ["domain_id", "domain_name", "project_domain_id", "project_domain_name", "user_domain_id", "user_domain_name"];
const APPLICATION_CREDENTIAL_OPTIONS: [&str; 3] =
    ["application_credential_id", "application_credential_name", "application_credential_secret"];

/// The options of one cloud, and the origin for diagnostics about missing ones.
struct Options<'a> {
    map: Map,
    api: IdentityApi,
    origin: &'a Origin,
    /// `the cloud NAME`.
    cloud: String,
}

/// Removes all login settings from an entry and converts them to an identity.
pub fn identity(entry: &mut Map, cloud: Option<&str>, origin: &Origin) -> Result<Identity, CloudsError> {
    let (kind, api) = auth_type(entry, origin)?;
    let cloud =
        cloud.map_or_else(|| "the environment (no cloud is named)".to_owned(), |name| format!("the cloud {name}"));
    let options = Options { map: options(entry, kind, api)?, api, origin, cloud };
    let url = options.text("auth_url")?;
    let missing = options.missing(kind)?;
    if !missing.is_empty() {
        let names: Vec<String> = missing.iter().map(|name| format!("auth.{name}")).collect();
        let message = format!("Auth plugin requires parameters which were not given: {}", missing.join(", "));
        let help = format!("add {} to {}, or to its entry in secure.yaml", names.join(" and "), options.cloud);
        return Err(CloudsError::AuthIncomplete(origin.diagnostic(message, help)));
    }
    let (auth, scope, domains) = (options.auth(kind)?, options.scope()?, options.domains());
    Ok(Identity { auth_url: url.unwrap_or_default(), api, auth, scope, domains })
}

fn auth_type(entry: &mut Map, origin: &Origin) -> Result<(AuthKind, IdentityApi), CloudsError> {
    let node = entry.remove("auth_type");
    let name = node.as_ref().map(|node| node.scalar("auth_type")).transpose()?.flatten();
    let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| "none".to_owned());
    if let Some((_, kind, api)) = TYPES.iter().find(|(own, ..)| *own == name) {
        return Ok((*kind, *api));
    }
    let known: Vec<&str> = TYPES.iter().map(|(name, ..)| *name).collect();
    let at = node.as_ref().map_or(origin, |node| &node.origin);
    let message = format!("the auth type {name} is not part of this version");
    let help = format!("the auth types are: {}", known.join(", "));
    Err(CloudsError::AuthTypeUnknown(at.diagnostic(message, help)))
}

fn option_names(kind: AuthKind, api: IdentityApi) -> Vec<&'static str> {
    let mut names = COMMON_OPTIONS.to_vec();
    if api != IdentityApi::V2 {
        names.extend(COMMON_OPTIONS_OF_V3);
    }
    if api == IdentityApi::Discovered {
        names.extend(DISCOVERED_OPTIONS);
    }
    if kind != AuthKind::Token {
        names.extend(USER_OPTIONS);
        names.extend(USER_OPTIONS_OF_V3.iter().filter(|_| api != IdentityApi::V2));
    }
    match kind {
        AuthKind::Password => names.push("password"),
        AuthKind::Token => names.push("token"),
        AuthKind::ApplicationCredential => names.extend(APPLICATION_CREDENTIAL_OPTIONS),
    }
    names
}

/// The values of the options, each from `auth` or else from the entry itself.
fn options(entry: &mut Map, kind: AuthKind, api: IdentityApi) -> Result<Map, CloudsError> {
    let mut auth = entry.map("auth")?;
    entry.remove("auth");
    let names = option_names(kind, api);
    let mut result = Map::default();
    for name in &names {
        // `user_name` is an old name of this option.
        let spellings: &[&str] = if *name == "username" { &["username", "user_name"] } else { &[name] };
        let mut value = None;
        for map in [&mut auth, &mut *entry] {
            let mut own = None;
            for spelling in spellings {
                let node = map.remove(spelling);
                own = own.or(node);
            }
            let own = own.filter(
                |node| !matches!(node.scalar(name), Ok(text) if text.as_deref().unwrap_or_default().is_empty()),
            );
            value = value.or(own);
        }
        if let Some(node) = value {
            result.set(name, node);
        }
    }
    if let Some((key, node)) = auth.0.iter().find(|(_, node)| !node.is_null()) {
        let suggestion =
            nearest(key, names.iter().copied()).map_or_else(String::new, |near| format!("did you mean {near}? "));
        let help = format!("{suggestion}the options are: {}", names.join(", "));
        return Err(node.origin.invalid(format!("auth has an option {key} that this auth type does not have"), help));
    }
    Ok(result)
}

impl Options<'_> {
    fn text(&self, name: &str) -> Result<Option<String>, CloudsError> {
        self.map.text(name)
    }

    fn has(&self, name: &str) -> bool {
        self.map.given(name).is_some()
    }

    fn secret(&self, name: &str) -> Result<Secret, CloudsError> {
        Ok(Secret::new(self.text(name)?.unwrap_or_default()))
    }

    fn missing(&self, kind: AuthKind) -> Result<Vec<&'static str>, CloudsError> {
        let has_user = self.has("user_id") || self.has("username");
        let needed: Vec<(&'static str, bool)> = match kind {
            AuthKind::Password => vec![("username", has_user), ("password", self.has("password"))],
            AuthKind::Token => vec![("token", self.has("token"))],
            AuthKind::ApplicationCredential => {
                let by_id = self.has("application_credential_id");
                let by_name = self.has("application_credential_name");
                vec![
                    ("application_credential_id", by_id || by_name),
                    ("username", by_id || !by_name || has_user),
                    ("application_credential_secret", self.has("application_credential_secret")),
                ]
            }
        };
        let all = [("auth_url", self.has("auth_url"))].into_iter().chain(needed);
        Ok(all.filter(|(_, given)| !given).map(|(name, _)| name).collect())
    }

    fn auth(&self, kind: AuthKind) -> Result<Auth, CloudsError> {
        Ok(match kind {
            AuthKind::Password => Auth::Password { user: self.user()?, password: self.secret("password")? },
            AuthKind::Token => Auth::Token { token: self.secret("token")? },
            AuthKind::ApplicationCredential => {
                let id = self.text("application_credential_id")?;
                let credential = match (id, self.text("application_credential_name")?) {
                    (Some(id), _) => Credential::Id(id),
                    (None, name) => Credential::Name { name: name.unwrap_or_default(), user: self.user()? },
                };
                Auth::ApplicationCredential { credential, secret: self.secret("application_credential_secret")? }
            }
        })
    }

    fn user(&self) -> Result<User, CloudsError> {
        if let Some(id) = self.text("user_id")? {
            return Ok(User::Id(id));
        }
        let domain = self.domain("user_domain")?;
        self.require_domain("username", &domain)?;
        Ok(User::Name { name: self.text("username")?.unwrap_or_default(), domain })
    }

    fn scope(&self) -> Result<Scope, CloudsError> {
        let domain = match (self.text("domain_id")?, self.text("domain_name")?) {
            (Some(id), _) => Some(Domain::Id(id)),
            (None, name) => name.map(Domain::Name),
        };
        let project = match (self.text("project_id")?, self.text("project_name")?) {
            (Some(id), _) => Some(Scope::ProjectId(id)),
            (None, None) => None,
            (None, Some(name)) => {
                let domain = self.domain("project_domain")?;
                self.require_domain("project_name", &domain)?;
                Some(Scope::ProjectName { name, domain })
            }
        };
        let system = self.text("system_scope")?;
        if system.as_deref().is_some_and(|scope| scope != "all") {
            return Err(self.origin.invalid("system_scope is not `all`", "`all` is the only system scope"));
        }
        let trust = self.text("trust_id")?.map(Scope::Trust);
        let scopes = [domain.map(Scope::Domain), project, trust, system.map(|_| Scope::System)];
        let mut scopes = scopes.into_iter().flatten();
        let scope = scopes.next().unwrap_or(Scope::Default);
        match scopes.next() {
            None => Ok(scope),
            Some(_) => {
                let help = "keep one of project, domain, trust_id and system_scope";
                Err(self.origin.invalid(format!("{} has more than one scope", self.cloud), help))
            }
        }
    }

    /// The domain of user or project; an id takes precedence over a name.
    fn domain(&self, of: &str) -> Result<Option<Domain>, CloudsError> {
        let or_default = |kind: &str| -> Result<Option<String>, CloudsError> {
            let own = self.text(&format!("{of}_{kind}"))?;
            if own.is_some() { Ok(own) } else { self.text(&format!("default_domain_{kind}")) }
        };
        if let Some(id) = or_default("id")? {
            return Ok(Some(Domain::Id(id)));
        }
        Ok(or_default("name")?.map(Domain::Name))
    }

    fn domains(&self) -> Domains {
        let has_one = |names: &[&str]| names.iter().any(|name| self.has(name));
        match () {
            () if has_one(&DOMAIN_OPTIONS) => Domains::Given,
            () if has_one(&DISCOVERED_OPTIONS) => Domains::Default,
            () => Domains::Absent,
        }
    }

    /// Rejects a name without its domain for the `v3…` types: names are unique only within a domain, and these types
    /// have no default domain.
    fn require_domain(&self, name: &str, domain: &Option<Domain>) -> Result<(), CloudsError> {
        if domain.is_some() || self.api != IdentityApi::V3 {
            return Ok(());
        }
        let key = if name == "username" { "user_domain" } else { "project_domain" };
        let message = format!("{name} is given without its domain");
        let help = format!("add auth.{key}_name or auth.{key}_id to {}; `Default` is a common name", self.cloud);
        Err(CloudsError::AuthIncomplete(self.origin.diagnostic(message, help)))
    }
}
