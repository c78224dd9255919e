//! Documents: links, and the commands that the pages show.

mod commands;
mod pages;
