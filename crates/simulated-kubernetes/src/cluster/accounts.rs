//! Users, their tokens, and the rights that roles give them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::cluster::cluster::Cluster;
use crate::cluster::resources::Kind;
use crate::cluster::store::Object;

/// The caller of the API.
#[derive(Clone, Debug)]
pub struct User {
    pub name: String,
    groups: Vec<String>,
    /// A member of `system:masters`, who may do everything.
    is_admin: bool,
}

/// The users of the kubeconfig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Login {
    Admin,
    Nodepool,
}

#[derive(Clone)]
enum Holder {
    Login(Login),
    Secret { namespace: String, name: String, uid: String, account: String },
}

struct Token {
    holder: Holder,
    expires: Option<Duration>,
}

#[derive(Default)]
pub struct Tokens {
    by_text: HashMap<String, Token>,
    /// Texts by the uid of their secret.
    by_secret: HashMap<String, String>,
}

impl Tokens {
    pub fn forget_secret(&mut self, uid: &str) {
        if let Some(text) = self.by_secret.remove(uid) {
            self.by_text.remove(&text);
        }
    }

    /// Revokes the tokens of the kubeconfig's users; those of secrets stay valid.
    pub fn revoke_logins(&mut self) {
        self.by_text.retain(|_, token| !matches!(token.holder, Holder::Login(_)));
    }
}

/// An access that is allowed or forbidden.
pub struct Access<'a> {
    pub verb: &'a str,
    pub group: &'a str,
    /// The plural, with its subresource: `pods/log`.
    pub resource: &'a str,
    /// Empty for the cluster scope.
    pub namespace: &'a str,
    pub name: &'a str,
}

impl User {
    fn account(namespace: &str, name: &str) -> Self {
        let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}"), "system:authenticated"];
        let groups = groups.into_iter().map(str::to_owned).collect();
        Self { name: format!("system:serviceaccount:{namespace}:{name}"), groups, is_admin: false }
    }

    pub fn is_anonymous(&self) -> bool {
        self.name == "system:anonymous"
    }

    fn is_subject(&self, subject: &Value, binding_namespace: &str) -> bool {
        let name = subject["name"].as_str().unwrap_or_default();
        match subject["kind"].as_str() {
            Some("ServiceAccount") => {
                let namespace = subject["namespace"].as_str().unwrap_or(binding_namespace);
                self.name == format!("system:serviceaccount:{namespace}:{name}")
            }
            Some("Group") => self.groups.iter().any(|group| group == name),
            _ => self.name == name,
        }
    }
}

impl Access<'_> {
    fn is_in(&self, rule: &Value) -> bool {
        let contains = |key: &str, wanted: &str| {
            let values = rule[key].as_array().into_iter().flatten().filter_map(Value::as_str);
            values.into_iter().any(|value| value == "*" || value == wanted)
        };
        let is_named = rule["resourceNames"].as_array().is_none_or(|names| names.iter().any(|name| name == self.name));
        contains("apiGroups", self.group)
            && contains("resources", self.resource)
            && contains("verbs", self.verb)
            && is_named
    }
}

impl Cluster {
    /// A new token for a user of the kubeconfig, and the time at which it expires.
    pub fn issue_login(&mut self, login: Login) -> (String, Option<Duration>) {
        let lifetime = Some(self.knobs.token_lifetime_s).filter(|lifetime| *lifetime > 0.0);
        let expires = lifetime.map(|lifetime| self.now + Duration::from_secs_f64(lifetime));
        let text = token_text(&json!({"sub": format!("{login:?}").to_lowercase()}));
        self.stats.tokens_issued += 1;
        self.tokens.by_text.insert(text.clone(), Token { holder: Holder::Login(login), expires });
        (text, expires)
    }

    /// A new token of a service account, valid while its secret and its account exist.
    pub fn issue_account_token(&mut self, secret: &Object, account: &Object) -> String {
        let prefix = "kubernetes.io/serviceaccount";
        let text = token_text(&json!({
            "iss": prefix,
            format!("{prefix}/namespace"): secret.namespace,
            format!("{prefix}/secret.name"): secret.name,
            format!("{prefix}/service-account.name"): account.name,
            format!("{prefix}/service-account.uid"): account.uid,
            "sub": format!("system:serviceaccount:{}:{}", secret.namespace, account.name),
        }));
        let holder = Holder::Secret {
            namespace: secret.namespace.clone(),
            name: secret.name.clone(),
            uid: secret.uid.clone(),
            account: account.name.clone(),
        };
        self.stats.tokens_issued += 1;
        self.tokens.by_secret.insert(secret.uid.clone(), text.clone());
        self.tokens.by_text.insert(text.clone(), Token { holder, expires: None });
        text
    }

    /// The user of a token; `None` for an invalid one. A call without a token is anonymous.
    pub fn user(&self, token: Option<&str>) -> Option<User> {
        let Some(token) = token else {
            let groups = vec!["system:unauthenticated".to_owned()];
            return Some(User { name: "system:anonymous".to_owned(), groups, is_admin: false });
        };
        let token = self.tokens.by_text.get(token)?;
        if token.expires.is_some_and(|expires| expires <= self.now) {
            return None;
        }
        match &token.holder {
            Holder::Login(Login::Admin) => {
                let groups = vec!["system:masters".to_owned(), "system:authenticated".to_owned()];
                Some(User { name: "admin".to_owned(), groups, is_admin: true })
            }
            Holder::Login(Login::Nodepool) => Some(User::account("default", "nodepool")),
            Holder::Secret { namespace, name, uid, account } => {
                let secret = self.store.get(Kind::Secret, namespace, name)?;
                let account = self.store.get(Kind::ServiceAccount, namespace, account)?;
                (secret.uid == *uid).then(|| User::account(namespace, &account.name))
            }
        }
    }

    /// Whether a role that is bound to the user allows the access.
    pub fn allows(&self, user: &User, access: &Access<'_>) -> bool {
        if user.is_admin {
            return true;
        }
        let in_cluster = self.store.list(Kind::ClusterRoleBinding, "");
        let bound = |binding: &&Arc<Object>| self.binding_allows(binding, user, access);
        in_cluster.into_iter().any(|binding| bound(&binding))
            || !access.namespace.is_empty()
                && self.store.list(Kind::RoleBinding, access.namespace).any(|binding| bound(&binding))
    }

    fn binding_allows(&self, binding: &Object, user: &User, access: &Access<'_>) -> bool {
        let subjects = binding.value["subjects"].as_array().into_iter().flatten();
        if !subjects.into_iter().any(|subject| user.is_subject(subject, &binding.namespace)) {
            return false;
        }
        let role = &binding.value["roleRef"];
        let name = role["name"].as_str().unwrap_or_default();
        let role = match role["kind"].as_str() {
            Some("Role") => self.store.get(Kind::Role, &binding.namespace, name),
            _ => self.store.get(Kind::ClusterRole, "", name),
        };
        let rules = role.and_then(|role| role.value["rules"].as_array()).into_iter().flatten();
        rules.into_iter().any(|rule| access.is_in(rule))
    }
}

/// A text in the form of a JSON web token, with a random signature.
fn token_text(claims: &Value) -> String {
    let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let header = json!({"alg": "RS256", "kid": "simulated"}).to_string();
    let signature = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
    format!("{}.{}.{}", encode(&header), encode(&claims.to_string()), encode(&signature))
}
