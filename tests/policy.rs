//! What the brains decide, on worlds made by hand, from files and at random.

#[path = "policy/clocks.rs"]
mod clocks;
#[path = "policy/launches.rs"]
mod launches;
#[path = "policy/leaks.rs"]
mod leaks;
#[path = "policy/left.rs"]
mod left;
#[path = "policy/plans.rs"]
mod plans;
#[path = "policy/props.rs"]
mod props;
#[path = "policy/refused.rs"]
mod refused;
#[path = "policy/retries.rs"]
mod retries;
#[path = "policy/slots.rs"]
mod slots;
#[path = "policy/stuck.rs"]
mod stuck;
#[path = "policy/tenants.rs"]
mod tenants;
mod worlds;
