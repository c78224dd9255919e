//! Cases of the contract, each named after its claim.

mod devices;
mod fleets;
mod hosts;
mod images;
mod imports;
mod instances;
mod objects;
mod quotas;
mod snapshots;
mod types;

use std::sync::Arc;

use super::peer::Peer;
use futures::FutureExt;
use futures::future::LocalBoxFuture;

pub fn all(peer: &Arc<Peer>) -> Vec<(&'static str, LocalBoxFuture<'static, ()>)> {
    let on = || peer.clone();
    vec![
        ("an instance exists from RunInstances until it is terminated", instances::lifecycle(on()).boxed_local()),
        ("an instance has tags, addresses and a zone", instances::description(on()).boxed_local()),
        ("a public address is given on demand", instances::public_address(on()).boxed_local()),
        ("an unknown id fails a whole call", instances::unknown_ids(on()).boxed_local()),
        ("unknown resources of an instance are refused", instances::unknown_resources(on()).boxed_local()),
        ("instances are selected by filters", instances::filters(on()).boxed_local()),
        ("instances have pages", instances::pages(on()).boxed_local()),
        ("a terminated instance keeps its tags", instances::tags_after_termination(on()).boxed_local()),
        ("an IPv6 address is given on demand", instances::ipv6_address(on()).boxed_local()),
        ("an instance has a console", instances::console(on()).boxed_local()),
        ("a client token is used once", instances::client_token(on()).boxed_local()),
        ("a spot instance has its lifecycle", instances::spot(on()).boxed_local()),
        ("IMDS options are kept", instances::metadata_options(on()).boxed_local()),
        ("a root device has what its mapping says", devices::root(on()).boxed_local()),
        ("devices of an image are merged with those of a request", devices::merged(on()).boxed_local()),
        ("a volume that is not deleted becomes available", devices::kept(on()).boxed_local()),
        ("a volume exists from CreateVolume until DeleteVolume", devices::volume(on()).boxed_local()),
        ("volumes have pages", devices::pages(on()).boxed_local()),
        ("a host exists until it is released", hosts::lifecycle(on()).boxed_local()),
        ("an occupied host is not released", hosts::occupied(on()).boxed_local()),
        ("an unknown host is named in the answer to its release", hosts::unknown(on()).boxed_local()),
        ("a client token of a host is used once", hosts::client_token(on()).boxed_local()),
        ("a launch template exists once", fleets::templates(on()).boxed_local()),
        ("a fleet has an instance of its template", fleets::on_demand(on()).boxed_local()),
        ("an interface of a template is in the subnet of its override", fleets::interface(on()).boxed_local()),
        ("a fleet takes the first of its priorities", fleets::priorities(on()).boxed_local()),
        ("a fleet without an instance has errors", fleets::errors(on()).boxed_local()),
        ("a fleet may be of spot instances", fleets::spot(on()).boxed_local()),
        ("a fleet needs its template", fleets::unknown_template(on()).boxed_local()),
        ("a client token of a fleet is used once", fleets::client_token(on()).boxed_local()),
        ("an image keeps its parameters", images::lifecycle(on()).boxed_local()),
        ("an image is found by its owner, name and tags", images::filters(on()).boxed_local()),
        ("unknown images are refused", images::unknown(on()).boxed_local()),
        ("a snapshot of an image is in use", images::snapshot_in_use(on()).boxed_local()),
        ("images, snapshots and launch templates have pages", images::pages(on()).boxed_local()),
        ("an object is imported as a snapshot", imports::snapshot(on()).boxed_local()),
        ("an object is imported as an image", imports::image(on()).boxed_local()),
        ("a client token of an import is used once", imports::client_token(on()).boxed_local()),
        ("an unknown task is refused", imports::unknown(on()).boxed_local()),
        ("blocks become a snapshot", snapshots::written(on()).boxed_local()),
        ("blocks are checked", snapshots::checked(on()).boxed_local()),
        ("a token of a snapshot is used once", snapshots::client_token(on()).boxed_local()),
        ("an object has its tags", objects::lifecycle(on()).boxed_local()),
        ("an object is uploaded in parts", objects::parts(on()).boxed_local()),
        ("objects have pages", objects::pages(on()).boxed_local()),
        ("unknown objects and buckets are refused", objects::unknown(on()).boxed_local()),
        ("an instance type has cores, CPUs and memory", types::known(on()).boxed_local()),
        ("an unknown instance type is refused", types::unknown(on()).boxed_local()),
        ("quotas have values and pages", quotas::values(on()).boxed_local()),
        ("quotas of an unknown service are refused", quotas::unknown(on()).boxed_local()),
    ]
}
