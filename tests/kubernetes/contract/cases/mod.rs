//! Cases of the contract, each named after its claim.

mod access;
mod accounts;
mod lists;
mod namespaces;
mod objects;
mod pods;
mod quotas;
mod watches;

use std::sync::Arc;

use super::cluster::Cluster;
use futures::FutureExt;
use futures::future::LocalBoxFuture;

pub fn all(cluster: &Arc<Cluster>) -> Vec<(&'static str, LocalBoxFuture<'static, ()>)> {
    let on = || cluster.clone();
    vec![
        ("a namespace exists from POST until 404", namespaces::lifecycle(on()).boxed_local()),
        ("names and labels are validated", namespaces::invalid(on()).boxed_local()),
        ("labels that are no strings are 400", namespaces::undecodable(on()).boxed_local()),
        ("malformed bodies are 400", namespaces::malformed(on()).boxed_local()),
        ("a namespace in deletion takes no content", namespaces::terminating(on()).boxed_local()),
        ("pods end before their namespace", namespaces::with_pods(on()).boxed_local()),
        ("a finalizer holds a namespace", namespaces::finalizer(on()).boxed_local()),
        ("a token secret is filled", accounts::token_secret(on()).boxed_local()),
        ("a token secret without its account is deleted", accounts::orphan_secret(on()).boxed_local()),
        ("an account takes its token secrets along", accounts::deleted_account(on()).boxed_local()),
        ("secrets are returned in base64", accounts::plain_secret(on()).boxed_local()),
        ("the role of a namespace gives its rights", access::namespace_role(on()).boxed_local()),
        ("the restricted role does not create pods", access::restricted_role(on()).boxed_local()),
        ("the user has the rights of a driver only", access::nodepool(on()).boxed_local()),
        ("calls without a valid token are refused", access::strangers(on()).boxed_local()),
        ("unknown paths are 404", access::unknown_paths(on()).boxed_local()),
        ("the server describes its API", access::discovery(on()).boxed_local()),
        ("a pod becomes Running", pods::running(on()).boxed_local()),
        ("a pod is deleted after its grace period", pods::deletion(on()).boxed_local()),
        ("pods are validated", pods::invalid(on()).boxed_local()),
        ("a pod needs its account", pods::unknown_account(on()).boxed_local()),
        ("a pod may be unschedulable", pods::unschedulable(on()).boxed_local()),
        ("containers may wait for ever", pods::waiting(on()).boxed_local()),
        ("a crash loop has the phase Running", pods::crash_loop(on()).boxed_local()),
        ("a pod may fail or succeed", pods::ended(on()).boxed_local()),
        ("logs and exec are reached, and have no container", pods::streams(on()).boxed_local()),
        ("an exceeded quota is 403", quotas::exceeded(on()).boxed_local()),
        ("a quota needs requests", quotas::unspecified(on()).boxed_local()),
        ("lists are selected by labels and fields", lists::selectors(on()).boxed_local()),
        ("lists have pages", lists::pages(on()).boxed_local()),
        ("pods of all namespaces are one list", lists::all_namespaces(on()).boxed_local()),
        ("a watch has all events in order", watches::events(on()).boxed_local()),
        ("a watch without a version begins with all objects", watches::initial(on()).boxed_local()),
        ("a label that changes ends in a selection", watches::selection(on()).boxed_local()),
        ("a watch ends after its timeout", watches::timeout(on()).boxed_local()),
        ("changes have versions and preconditions", objects::conflicts(on()).boxed_local()),
        ("a dry run changes nothing", objects::dry_run(on()).boxed_local()),
        ("a collection is deleted at once", objects::collection(on()).boxed_local()),
    ]
}
