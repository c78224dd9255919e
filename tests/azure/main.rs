//! The driver azure on the simulated Azure, in our launcher and beside Nodepool 11.

mod driver;
mod leaks;
mod python_client;
mod uploads;
