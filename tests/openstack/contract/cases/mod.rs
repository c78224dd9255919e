//! Cases of the contract, each named after its claim.

mod creation;
mod identity;
mod images;
pub mod networks;
mod servers;
mod volumes;

use std::sync::Arc;

use crate::cloud::Cloud;
use futures::FutureExt;
use futures::future::LocalBoxFuture;

/// Id that no object has.
const UNKNOWN_ID: &str = "99999999-9999-4999-8999-999999999999";

pub fn all(cloud: &Arc<Cloud>) -> Vec<(&'static str, LocalBoxFuture<'static, ()>)> {
    let on = || cloud.clone();
    vec![
        ("a wrong password is 401", identity::wrong_password(on()).boxed_local()),
        ("a bad token is 401 everywhere", identity::bad_token(on()).boxed_local()),
        ("a revoked token is 401", identity::revoked_token(on()).boxed_local()),
        ("a token has an expiry time", identity::token_shape(on()).boxed_local()),
        ("a token can be exchanged for another token", identity::token_for_token(on()).boxed_local()),
        ("every service lists its versions", identity::discovery(on()).boxed_local()),
        ("a server exists from POST until 404", servers::lifecycle(on()).boxed_local()),
        ("a deleted server is not found", servers::not_found(on()).boxed_local()),
        ("lists have pages and links", servers::pages(on()).boxed_local()),
        ("lists are filtered by name and status", servers::filters(on()).boxed_local()),
        ("newer microversions show the flavor", servers::microversions(on()).boxed_local()),
        ("a failed server has a fault", servers::fault(on()).boxed_local()),
        ("a console has output", servers::console(on()).boxed_local()),
        ("flavors, zones, keys and limits are as expected", servers::environment(on()).boxed_local()),
        ("unknown references are 400", creation::unknown_references(on()).boxed_local()),
        ("malformed bodies are 400", creation::malformed(on()).boxed_local()),
        ("an exceeded quota is 403", creation::quota(on()).boxed_local()),
        ("networks are required of newer microversions", creation::networks(on()).boxed_local()),
        ("networks, subnets, routers and groups are as expected", networks::environment(on()).boxed_local()),
        ("groups of one project are listed, ambiguous ones refused", networks::security_groups(on()).boxed_local()),
        ("ports are created and deleted with a server", networks::ports(on()).boxed_local()),
        ("a floating IP exists from POST until 404", networks::floating_ip(on()).boxed_local()),
        ("unknown network objects are 404", networks::not_found(on()).boxed_local()),
        ("limits of volumes are as expected", volumes::limits(on()).boxed_local()),
        ("a boot volume is deleted with its server", volumes::boot_from_volume(on()).boxed_local()),
        ("an image exists from POST until 404", images::lifecycle(on()).boxed_local()),
        ("images are found by name and property, on pages", images::lists(on()).boxed_local()),
    ]
}
