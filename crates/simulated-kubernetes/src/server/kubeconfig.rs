//! The kubeconfig of the cluster: one context per user.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A kubeconfig with the contexts `admin` (current) and `nodepool`. It contains the authority if there is one.
pub fn kubeconfig(base: &str, authority: Option<&str>, admin_token: &str, nodepool_token: &str) -> String {
    let authority = authority.map(|pem| format!("    certificate-authority-data: {}\n", STANDARD.encode(pem)));
    let authority = authority.unwrap_or_default();
    let context =
        |user| format!("- name: {user}\n  context: {{cluster: simulated, namespace: default, user: {user}}}\n");
    let user = |name, token| format!("- name: {name}\n  user:\n    token: {token}\n");
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: admin\nclusters:\n- name: simulated\n  cluster:\n    server: \
         {base}\n{authority}contexts:\n{}{}users:\n{}{}",
        context("admin"),
        context("nodepool"),
        user("admin", admin_token),
        user("nodepool", nodepool_token)
    )
}
