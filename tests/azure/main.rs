//! The driver azure on the simulated Azure, in our launcher and beside Nodepool 11.

mod driver;
mod images;
mod launcher;
mod leaks;
mod nodepool11;
mod python_client;
mod repeats;
mod tokens;
mod uploads;
