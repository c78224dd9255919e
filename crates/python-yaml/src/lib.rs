//! YAML as PyYAML reads it (1.1 scalars, its limits), with the position of each value, and diagnostics that name it.

pub mod diagnostics;
pub mod parse;
pub mod scalar;
pub mod tabs;
pub mod text;
pub mod tree;
