//! Decisions of the functional core: on hand-made inputs, on plans and on random inputs.

mod clock_steps;
mod full_cloud;
mod host_check_rate;
mod launches;
mod liveness;
mod plans;
mod properties;
mod tenants;
