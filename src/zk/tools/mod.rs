//! Tools for the command line: reading all records once, exporting and importing image records.

pub mod scan;
pub mod transfer;
