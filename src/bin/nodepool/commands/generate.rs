//! Generated files of the packages: completions, manual pages and the configuration schema.

use anyhow::Context;
use clap::CommandFactory;
use nodepool::actors::process::flags::builder::BuilderFlags;
use nodepool::actors::process::flags::launcher::LauncherFlags;
use nodepool_model::config::schema::json_schema;
use serde_json::json;

use crate::args::{Arguments, GenerateCommand, OutputFormat, Program};
use crate::man_pages;
use crate::output::Output;

impl Program {
    pub fn name(self) -> &'static str {
        match self {
            Program::Nodepool => "nodepool",
            Program::NodepoolLauncher => "nodepool-launcher",
            Program::NodepoolBuilder => "nodepool-builder",
        }
    }

    /// Manual section: 8 for daemons, which administrators run.
    pub fn section(self) -> &'static str {
        match self {
            Program::Nodepool => "1",
            Program::NodepoolLauncher | Program::NodepoolBuilder => "8",
        }
    }

    pub fn command(self) -> clap::Command {
        match self {
            // Its own display name is the text of `--version`.
            Program::Nodepool => Arguments::command().display_name("nodepool"),
            Program::NodepoolLauncher => LauncherFlags::command().version(env!("CARGO_PKG_VERSION")),
            Program::NodepoolBuilder => BuilderFlags::command().version(env!("CARGO_PKG_VERSION")),
        }
    }
}

/// The schema is JSON in both formats; the others are texts, which JSON output wraps in an object.
pub fn run(command: &GenerateCommand, output: &mut Output<'_>) -> anyhow::Result<()> {
    match command {
        GenerateCommand::Completions { shell, program } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut program.command(), program.name(), &mut script);
            let script = String::from_utf8(script).context("the completion script is not UTF-8")?;
            output.print_raw(&script)?;
            output.outcome(json!({"shell": shell.to_string(), "program": program.name(), "script": script}))?;
        }
        GenerateCommand::Man { directory } => {
            let pages = man_pages::write(directory)?;
            output.outcome(json!({"outcome": "written", "directory": directory, "pages": pages}))?;
        }
        GenerateCommand::ConfigSchema => match output.format {
            OutputFormat::Table => output.print_raw(&format!("{:#}\n", json_schema::configuration_schema()))?,
            OutputFormat::Json => output.outcome(json_schema::configuration_schema())?,
        },
    }
    Ok(())
}
