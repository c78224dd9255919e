//! Configuration: `nodepool.yaml`, `clouds.yaml` and logging files, as Nodepool 11 and openstacksdk read them.

mod clouds;
mod load;
mod logging;
mod reference;
mod schema;
mod validate;
