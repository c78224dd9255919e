//! The driver azure on the simulated Azure.

mod driver;
mod leaks;
mod uploads;
