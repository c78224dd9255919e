//! The controllers of service accounts and their secrets.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::cluster::cluster::Cluster;
use crate::cluster::resources::Kind;
use crate::cluster::store::Object;
use crate::cluster::timers::Work;

pub const TOKEN_SECRET: &str = "kubernetes.io/service-account-token";
pub const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";

impl Cluster {
    /// Lets the controllers react to a new object.
    pub fn start_controllers(&mut self, object: &Object) {
        let (namespace, name, uid) = (object.namespace.clone(), object.name.clone(), object.uid.clone());
        match object.kind {
            Kind::Namespace => {
                let work = Work::CreateDefaultAccounts { namespace: name, uid };
                self.after(self.knobs.default_account_s, work);
            }
            Kind::ServiceAccount if self.options.account_secrets || self.options.openshift => {
                let work = Work::CreateAccountSecret { namespace, account: name, uid };
                self.after(self.knobs.secret_fill_s, work);
            }
            Kind::Secret if object.value["type"] == TOKEN_SECRET && object.value["data"]["token"].is_null() => {
                self.after(self.knobs.secret_fill_s, Work::FillSecret { namespace, name, uid });
            }
            _ => {}
        }
    }

    pub fn run_work(&mut self, work: Work) {
        match work {
            Work::FillSecret { namespace, name, uid } => self.fill_secret(&namespace, &name, &uid),
            Work::CreateAccountSecret { namespace, account, uid } => self.create_secrets(&namespace, &account, &uid),
            Work::CreateDefaultAccounts { namespace, uid } => self.create_default_accounts(&namespace, &uid),
            Work::PodStep { uid, number } => self.run_pod_step(&uid, number),
            Work::ClearNamespace { name, uid } => self.clear_namespace(&name, &uid),
            Work::FinishNamespace { name, uid } => self.finish_namespace(&name, &uid),
        }
    }

    fn create_default_accounts(&mut self, namespace: &str, uid: &str) {
        let is_active = self.store.get(Kind::Namespace, "", namespace);
        if !is_active.is_some_and(|found| found.uid == uid && !found.is_being_deleted()) {
            return;
        }
        let names: &[&str] = if self.options.openshift { &["default", "builder", "deployer"] } else { &["default"] };
        for name in names {
            if self.store.get(Kind::ServiceAccount, namespace, name).is_none() {
                self.create(Kind::ServiceAccount, json!({"metadata": {"name": name, "namespace": namespace}}));
            }
        }
    }

    /// Fills a token secret, or deletes it if its account does not exist.
    fn fill_secret(&mut self, namespace: &str, name: &str, uid: &str) {
        let Some(secret) = self.store.get(Kind::Secret, namespace, name).filter(|one| one.uid == uid).cloned() else {
            return;
        };
        let account = secret.metadata()["annotations"][ACCOUNT_NAME].as_str().unwrap_or_default();
        let Some(account) = self.store.get(Kind::ServiceAccount, namespace, account).cloned() else {
            self.erase(&secret);
            return;
        };
        let data = self.token_data(&secret, &account);
        self.change(&secret, |value| {
            value["metadata"]["annotations"][ACCOUNT_UID] = json!(account.uid);
            value["data"] = data;
        });
    }

    fn token_data(&mut self, secret: &Object, account: &Object) -> Value {
        let token = self.issue_account_token(secret, account);
        json!({
            "ca.crt": STANDARD.encode(&self.authority), "namespace": STANDARD.encode(&secret.namespace),
            "token": STANDARD.encode(token),
        })
    }

    /// Creates the secrets that old versions and OpenShift add to each account.
    fn create_secrets(&mut self, namespace: &str, account: &str, uid: &str) {
        let found = self.store.get(Kind::ServiceAccount, namespace, account).filter(|one| one.uid == uid);
        let Some(account) = found.cloned() else { return };
        let suffix = random_suffix();
        let is_fixture = self.fixtures.contains(&account.uid);
        let metadata = |kind: &str| {
            let annotations = json!({ACCOUNT_NAME: account.name, ACCOUNT_UID: account.uid});
            let name = format!("{}-{kind}-{suffix}", account.name);
            json!({"name": name, "namespace": namespace, "annotations": annotations})
        };
        let (mut created, mut secrets, mut pull_secrets) = (Vec::new(), Vec::new(), Vec::new());
        if self.options.openshift {
            let value = json!({
                "metadata": metadata("dockercfg"), "type": "kubernetes.io/dockercfg",
                "data": {".dockercfg": STANDARD.encode("{}")},
            });
            let secret = self.create(Kind::Secret, value);
            created.push(secret.uid.clone());
            secrets.push(json!({"name": secret.name}));
            pull_secrets.push(json!({"name": secret.name}));
        }
        if self.options.account_secrets {
            // The marker keeps the secret from being filled a second time.
            let value = json!({"metadata": metadata("token"), "type": TOKEN_SECRET, "data": {"token": ""}});
            let secret = self.create(Kind::Secret, value);
            created.push(secret.uid.clone());
            let data = self.token_data(&secret, &account);
            self.change(&secret, |value| value["data"] = data);
            secrets.push(json!({"name": secret.name}));
        }
        if is_fixture {
            self.fixtures.extend(created);
        }
        self.change(&account, |value| {
            value["secrets"] = json!(secrets);
            if !pull_secrets.is_empty() {
                value["imagePullSecrets"] = json!(pull_secrets);
            }
        });
    }

    /// Whether a pod of this account would get a token: always, unless tokens are secrets that have to be created.
    pub fn has_token(&self, account: &Object) -> bool {
        let secrets = account.value["secrets"].as_array().into_iter().flatten();
        let is_token = |secret: &Value| {
            let secret = self.store.get(Kind::Secret, &account.namespace, secret["name"].as_str().unwrap_or_default());
            secret.is_some_and(|secret| secret.value["type"] == TOKEN_SECRET)
        };
        !self.options.account_secrets || secrets.into_iter().any(is_token)
    }

    /// Erases the token secrets of an account that no longer exists.
    pub fn erase_account_secrets(&mut self, account: &Object) {
        let secrets: Vec<_> = self.store.list(Kind::Secret, &account.namespace).cloned().collect();
        for secret in secrets {
            if secret.metadata()["annotations"][ACCOUNT_NAME] == account.name.as_str() {
                self.erase(&secret);
            }
        }
    }
}

/// Five random letters and digits, as in generated names.
pub fn random_suffix() -> String {
    uuid::Uuid::new_v4().simple().to_string()[..5].to_owned()
}
