//! The driver ibmvpc on the simulated IBM VPC, beside IBM's own clients and the driver of Nodepool 11.

mod api;
mod driver;
mod launcher;
mod leaks;
mod nodepool11;
mod python_client;
mod tokens;
mod uploads;
