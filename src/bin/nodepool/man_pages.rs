//! Manual pages: `nodepool.1`, a page for each of its commands, and one for each daemon.
//!
//! Names, options and their help are generated from the option parser; the other sections are here.

use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args::Program;

/// A section of a page: its heading, and its entries with their meanings.
type Section = (&'static str, &'static [(&'static str, &'static str)]);

const EXIT_STATUS: Section = (
    "EXIT STATUS",
    &[
        ("0", "Done; also when nothing had to be done"),
        ("1", "Failed; the last line on standard error says why"),
        ("2", "Invalid command line"),
    ],
);
const REQUEST_EXIT_STATUS: Section = (
    "EXIT STATUS",
    &[
        ("0", "The request was fulfilled, the nodes have been released, and COMMAND, if given, exited with 0"),
        ("1", "The request failed, or the nodes were lost during use"),
        ("2", "Invalid command line"),
        ("126, 127", "COMMAND cannot be run, or does not exist"),
        ("other", "Exit status of COMMAND"),
    ],
);
const DAEMON_EXIT_STATUS: Section = (
    "EXIT STATUS",
    &[
        ("0", "Stopped gracefully; in the background: the daemon has started"),
        ("1", "Could not start, or had five panics in ten minutes"),
        ("2", "Invalid command line"),
    ],
);
const DUMP_SIGNAL: (&str, &str) = (
    "SIGUSR2",
    "Write the state of every actor to the log, at level DEBUG; the first signal starts a profile, the second one writes it",
);
const SIGNALS: Section =
    ("SIGNALS", &[("SIGTERM, SIGINT, SIGUSR1", "Stop gracefully, within ten seconds"), DUMP_SIGNAL]);
const BUILDER_SIGNALS: Section = (
    "SIGNALS",
    &[
        (
            "SIGINT",
            "Stop when all running builds have ended, however long they take; a second SIGINT stops as SIGTERM does",
        ),
        ("SIGTERM, SIGUSR1", "Terminate running builds and stop, within ten seconds"),
        DUMP_SIGNAL,
    ],
);
const COMMAND_FILES: Section = (
    "FILES",
    &[
        ("/etc/nodepool/nodepool.yaml", "Configuration, unless -c names another"),
        ("./nodepool-data/nodepool.yaml", "Configuration if the former does not exist; written by nodepool standalone"),
    ],
);
const DAEMON_FILES: Section = (
    "FILES",
    &[
        ("/etc/nodepool/nodepool.yaml", "Configuration, unless -c names another"),
        ("clouds.yaml, secure.yaml", "Logins of OpenStack clouds, in ., ~/.config/openstack or /etc/openstack"),
    ],
);
const COMMAND_ENVIRONMENT: Section = (
    "ENVIRONMENT",
    &[
        ("NODEPOOL_*", "Replaces %(NODEPOOL_...) in configuration files"),
        ("OS_CLIENT_CONFIG_FILE, OS_*", "Location of the logins of OpenStack clouds, as for all OpenStack clients"),
    ],
);
const DAEMON_ENVIRONMENT: Section = (
    "ENVIRONMENT",
    &[
        ("NODEPOOL_*", "Replaces %(NODEPOOL_...) in configuration files"),
        ("OS_CLIENT_CONFIG_FILE, OS_*", "Location of the logins of OpenStack clouds, as for all OpenStack clients"),
        ("STATSD_HOST, STATSD_PORT", "Address to which statistics are sent"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_*", "Address to which traces are sent, if built with the feature otel"),
    ],
);

/// Sections of a page in addition to names and options.
fn sections(name: &str) -> Vec<Section> {
    match name {
        "nodepool-launcher" => vec![DAEMON_EXIT_STATUS, SIGNALS, DAEMON_FILES, DAEMON_ENVIRONMENT],
        "nodepool-builder" => vec![DAEMON_EXIT_STATUS, BUILDER_SIGNALS, DAEMON_FILES, DAEMON_ENVIRONMENT],
        "nodepool-standalone" => vec![DAEMON_EXIT_STATUS, SIGNALS, DAEMON_ENVIRONMENT],
        "nodepool-request" => vec![REQUEST_EXIT_STATUS, COMMAND_FILES, COMMAND_ENVIRONMENT],
        "nodepool-completions" | "nodepool-man" | "nodepool-config-schema" => vec![EXIT_STATUS],
        _ => vec![EXIT_STATUS, COMMAND_FILES, COMMAND_ENVIRONMENT],
    }
}

/// Writes all pages to a directory, which is created if needed, and returns their names.
pub fn write(directory: &Path) -> anyhow::Result<Vec<String>> {
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let mut pages = Vec::new();
    for program in Program::value_variants() {
        let mut command = program.command();
        command.build();
        pages.push(page(directory, command.clone(), program.name(), program.section())?);
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            let name = format!("{}-{}", program.name(), sub.get_name());
            pages.push(page(directory, sub.clone().display_name(name.clone()), &name, program.section())?);
        }
    }
    Ok(pages)
}

fn page(directory: &Path, command: clap::Command, name: &str, section: &str) -> anyhow::Result<String> {
    let text = rendered(command, name, section).context("cannot render a page")?;
    let file = format!("{name}.{section}");
    let path = directory.join(&file);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(file)
}

fn rendered(mut command: clap::Command, name: &str, section: &str) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let usage = command.render_usage().to_string();
    let has_commands = command.has_subcommands();
    let source = format!("Nodepool {}", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command).title(name.to_uppercase()).section(section).source(source).manual("Nodepool");
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    synopsis(&usage).to_writer(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if has_commands {
        page.render_subcommands_section(&mut text)?;
    }
    for section in sections(name) {
        entry_list(section).to_writer(&mut text)?;
    }
    see_also(name).to_writer(&mut text)?;
    Ok(text)
}

/// The usage as in `--help`, which groups options unlike a list of all of them; literal words are bold.
fn synopsis(usage: &str) -> Roff {
    let usage = usage.strip_prefix("Usage: ").unwrap_or(usage).trim_end();
    let is_literal = |word: &&str| word.starts_with(|first: char| first.is_ascii_lowercase());
    let literal: Vec<&str> = usage.split(' ').take_while(is_literal).collect();
    let literal = literal.join(" ");
    let rest = usage.strip_prefix(&literal).unwrap_or_default().to_owned();
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]).text([bold(literal), roman(rest)]);
    roff
}

fn entry_list((heading, entries): Section) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [heading]);
    for (entry, meaning) in entries {
        roff.control("TP", []).text([bold(*entry)]).text([roman(*meaning)]);
    }
    roff
}

fn see_also(name: &str) -> Roff {
    let pages = ["nodepool(1)", "nodepool-launcher(8)", "nodepool-builder(8)"];
    let others = pages.iter().filter(|page| page.split('(').next() != Some(name));
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]).text([roman(others.copied().collect::<Vec<_>>().join(", "))]);
    roff
}
