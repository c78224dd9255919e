//! Decisions of the functional core, on hand-made, recorded and random inputs.

#[path = "policy/clock_steps.rs"]
mod clock_steps;
mod fixtures;
#[path = "policy/host_check_rate.rs"]
mod host_check_rate;
#[path = "policy/launches.rs"]
mod launches;
#[path = "policy/leaks.rs"]
mod leaks;
#[path = "policy/liveness.rs"]
mod liveness;
#[path = "policy/plans.rs"]
mod plans;
#[path = "policy/properties.rs"]
mod properties;
#[path = "policy/rejected_repairs.rs"]
mod rejected_repairs;
#[path = "policy/resume.rs"]
mod resume;
#[path = "policy/slots.rs"]
mod slots;
#[path = "policy/tenants.rs"]
mod tenants;
