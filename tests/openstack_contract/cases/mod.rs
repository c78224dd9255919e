//! All cases, by what they claim.

mod creation;
mod identity;
mod images;
mod networks;
mod servers;
mod volumes;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::LocalBoxFuture;

use crate::cloud::Cloud;

/// An id that nothing has.
const UNKNOWN_ID: &str = "99999999-9999-4999-8999-999999999999";

pub fn all(cloud: &Arc<Cloud>) -> Vec<(&'static str, LocalBoxFuture<'static, ()>)> {
    let on = || cloud.clone();
    vec![
        ("a wrong password is 401", identity::wrong_password(on()).boxed_local()),
        ("a bad token is 401 everywhere", identity::bad_token(on()).boxed_local()),
        ("a revoked token is 401", identity::revoked_token(on()).boxed_local()),
        ("a token says when it expires", identity::token_shape(on()).boxed_local()),
        ("a token is good for another token", identity::token_for_token(on()).boxed_local()),
        ("every service says its versions", identity::discovery(on()).boxed_local()),
        ("a server lives from POST to 404", servers::lifecycle(on()).boxed_local()),
        ("a deleted server is not found", servers::not_found(on()).boxed_local()),
        ("lists have pages and links", servers::pages(on()).boxed_local()),
        ("lists are filtered by name and status", servers::filters(on()).boxed_local()),
        ("newer microversions show the flavor", servers::microversions(on()).boxed_local()),
        ("a failed server has a fault", servers::fault(on()).boxed_local()),
        ("a console has output", servers::console(on()).boxed_local()),
        ("flavors, zones, keys and limits are as expected", servers::environment(on()).boxed_local()),
        ("what is unknown is 400", creation::unknown_references(on()).boxed_local()),
        ("what is malformed is 400", creation::malformed(on()).boxed_local()),
        ("a quota that does not suffice is 403", creation::quota(on()).boxed_local()),
        ("networks are required of newer microversions", creation::networks(on()).boxed_local()),
        ("networks, subnets, routers and groups are as expected", networks::environment(on()).boxed_local()),
        ("ports come and go with a server", networks::ports(on()).boxed_local()),
        ("a floating IP lives from POST to 404", networks::floating_ip(on()).boxed_local()),
        ("what is not in the network is 404", networks::not_found(on()).boxed_local()),
        ("limits of volumes are as expected", volumes::limits(on()).boxed_local()),
        ("a volume goes with the server that boots from it", volumes::boot_from_volume(on()).boxed_local()),
        ("an image lives from POST to 404", images::lifecycle(on()).boxed_local()),
        ("images are found by name and property, on pages", images::lists(on()).boxed_local()),
    ]
}
