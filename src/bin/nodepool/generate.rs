//! What packages contain beside the programs, made of what the programs parse: completions, manual pages, the schema.

use std::io::Write;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use nodepool::actors::builder_flags::BuilderFlags;
use nodepool::actors::launcher_flags::LauncherFlags;
use nodepool::model::json_schema;

use crate::args::{Arguments, Made, Program};
use crate::manual;

impl Program {
    pub fn name(self) -> &'static str {
        match self {
            Program::Nodepool => "nodepool",
            Program::NodepoolLauncher => "nodepool-launcher",
            Program::NodepoolBuilder => "nodepool-builder",
        }
    }

    /// Daemons are for administrators.
    pub fn section(self) -> &'static str {
        match self {
            Program::Nodepool => "1",
            Program::NodepoolLauncher | Program::NodepoolBuilder => "8",
        }
    }

    pub fn command(self) -> clap::Command {
        match self {
            // Its display name is a text for `--version`.
            Program::Nodepool => Arguments::command().display_name("nodepool"),
            Program::NodepoolLauncher => LauncherFlags::command().version(env!("CARGO_PKG_VERSION")),
            Program::NodepoolBuilder => BuilderFlags::command().version(env!("CARGO_PKG_VERSION")),
        }
    }
}

/// Returns the status to exit with.
pub fn run(made: &Made) -> u8 {
    let done = match made {
        Made::Completions { shell, program } => completions(*shell, *program),
        Made::Man { directory } => manual::write(directory),
        Made::ConfigSchema => print(format!("{:#}\n", json_schema::of_configuration()).as_bytes()),
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            // Whoever read our output has seen enough.
            if !crate::is_unread(&error) {
                eprintln!("nodepool: error: {error:#}");
            }
            1
        }
    }
}

fn completions(shell: Shell, program: Program) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut program.command(), program.name(), &mut text);
    print(&text)
}

fn print(text: &[u8]) -> anyhow::Result<()> {
    std::io::stdout().write_all(text).context("cannot write to standard output")
}
