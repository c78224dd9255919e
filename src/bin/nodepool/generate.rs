//! What packages contain beside the programs, made of what the programs parse: completions, manual pages, the schema.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use clap::{CommandFactory, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;
use nodepool::actors::builder_flags::BuilderFlags;
use nodepool::actors::launcher_flags::LauncherFlags;
use nodepool::model::json_schema;

use crate::args::{Arguments, Made, Program};

impl Program {
    fn name(self) -> &'static str {
        match self {
            Program::Nodepool => "nodepool",
            Program::NodepoolLauncher => "nodepool-launcher",
            Program::NodepoolBuilder => "nodepool-builder",
        }
    }

    /// Daemons are for administrators.
    fn section(self) -> &'static str {
        match self {
            Program::Nodepool => "1",
            Program::NodepoolLauncher | Program::NodepoolBuilder => "8",
        }
    }

    fn command(self) -> clap::Command {
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
        Made::Man { directory } => manual(directory),
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

/// `nodepool.1`, a page for each of its commands, and one for each daemon.
fn manual(directory: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    for program in Program::value_variants() {
        let mut command = program.command();
        command.build();
        page(directory, command.clone(), program.name(), program.section())?;
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            let name = format!("{}-{}", program.name(), sub.get_name());
            page(directory, sub.clone().display_name(name.clone()), &name, program.section())?;
        }
    }
    Ok(())
}

fn page(directory: &Path, command: clap::Command, name: &str, section: &str) -> anyhow::Result<()> {
    let mut text = Vec::new();
    let source = format!("Nodepool {}", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command).title(name.to_uppercase()).section(section).source(source).manual("Nodepool");
    page.render(&mut text).context("a page cannot be made")?;
    let path = directory.join(format!("{name}.{section}"));
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}
