//! Drivers: tables of API calls and small machines that decide which call comes next.

pub mod keyscan;
