//! The driver gce on the simulated Compute Engine, beside Google's own client and the driver of Nodepool 11.

mod driver;
mod launcher;
mod nodepool11;
mod python_client;
mod tokens;
