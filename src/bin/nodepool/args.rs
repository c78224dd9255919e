//! The command-line parser: global options, commands and their options.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use nodepool::actors::process::flags::line_format;
use python_logging::LineFormat;
use serde_json::json;

/// Manage short-lived test nodes for CI systems: inspect and change Nodepool's state in ZooKeeper
#[derive(Debug, Parser)]
#[command(
    name = "nodepool",
    // `--version` prints the name before the version; scripts parse this text.
    display_name = "Nodepool version:",
    version,
    disable_version_flag = true,
    disable_help_subcommand = true,
    infer_long_args = true,
    // As in Nodepool 11, the last occurrence of an option applies.
    args_override_self = true
)]
pub struct Arguments {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Debug, Args)]
pub struct Global {
    /// Configuration file [default: /etc/nodepool/nodepool.yaml, else ./nodepool-data/nodepool.yaml]
    #[arg(short = 'c', value_name = "CONFIG")]
    pub config: Option<PathBuf>,
    /// Secure file, whose values are merged into the configuration
    #[arg(short = 's', value_name = "SECURE")]
    pub secure: Option<PathBuf>,
    /// Logging configuration file
    #[arg(short = 'l', value_name = "LOGCONFIG")]
    pub logconfig: Option<String>,
    /// Log everything
    #[arg(long)]
    pub debug: bool,
    /// Output format of results
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "table", global = true)]
    pub output: OutputFormat,
    /// Fail if ZooKeeper cannot be reached within this time [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, global = true)]
    pub timeout: Option<Duration>,
    /// Print the version
    #[arg(long, action = clap::ArgAction::Version)]
    version: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    Table,
    Json,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List nodes
    List {
        /// Show all columns
        #[arg(long)]
        detail: bool,
    },
    /// Show ZooKeeper data and cloud resources of a provider
    Info { provider: String },
    /// List node requests
    RequestList,
    /// Mark a node for deletion
    Delete {
        /// Delete it in this process instead of marking it for its launcher
        #[arg(long)]
        now: bool,
        id: String,
    },
    /// Keep a node for inspection
    Hold { id: String },
    /// Give a backing node of a metastatic provider no more nodes, and release it when it is empty
    Retire { node: String },
    /// Remove the ZooKeeper data of a provider, without contacting its cloud
    Erase {
        /// Do not ask for confirmation
        #[arg(long)]
        force: bool,
        provider: String,
    },
    /// List unused cloud resources that a launcher would delete, with the reason
    AlienList { provider: Option<String> },
    /// List images in clouds that carry a builder's metadata and have no upload record
    AlienImageList { provider: Option<String> },
    /// List builds of images
    DibImageList,
    /// List uploads of images
    ImageList,
    /// Show paused images and requested builds
    ImageStatus,
    /// Request a build of an image
    ImageBuild {
        /// Wait until the build has ended
        #[arg(long)]
        wait: bool,
        /// Also wait until the build is uploaded to all providers that use the image
        #[arg(long, requires = "wait")]
        uploads: bool,
        image: String,
    },
    /// Show the log of the newest build of an image, on the host of its builder
    BuildLog {
        /// Follow the log until the build has ended
        #[arg(long)]
        follow: bool,
        image: String,
    },
    /// Pause builds of an image
    ImagePause { image: String },
    /// Resume builds of an image
    ImageUnpause { image: String },
    /// Mark a build for deletion, with its uploads and files
    DibImageDelete { id: String },
    /// Mark an upload for deletion
    ImageDelete {
        /// Provider of the upload
        #[arg(long)]
        provider: String,
        /// Diskimage of the upload
        #[arg(long)]
        image: String,
        /// Build id, the part after the image's name in dib-image-list
        #[arg(long)]
        build_id: String,
        /// Upload id, as in image-list
        #[arg(long)]
        upload_id: String,
    },
    /// Export image data from ZooKeeper to a file
    ExportImageData { path: PathBuf },
    /// Import a file of export-image-data into ZooKeeper, while no daemon runs
    ImportImageData { path: PathBuf },
    /// Check a configuration file
    ConfigValidate,
    /// Request nodes, use them, and release them
    Request(RequestArguments),
    /// Explain why a request waits or failed
    Why { request: String },
    /// Show the state of every actor of the launcher on this machine
    Dump {
        /// Record a profile of this length first: CPU time by actor, mailboxes, functions
        #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
        profile: Option<Duration>,
    },
    /// Show nodes, requests and images as they change; without a terminal, one JSON document per change
    Watch,
    #[command(flatten)]
    Generate(GenerateCommand),
    /// Run launcher, web server and coordinator in one process, for one machine
    Standalone(StandaloneArguments),
}

/// Commands that generate files from the option parser and the schema; they need neither configuration nor ZooKeeper.
#[derive(Debug, Subcommand)]
pub enum GenerateCommand {
    /// Print the JSON Schema of configuration files, for editors
    ConfigSchema,
    /// Print the completion script of a program for a shell
    Completions {
        shell: Shell,
        #[arg(default_value = "nodepool")]
        program: Program,
    },
    /// Write the manual pages of all programs to a directory
    Man { directory: PathBuf },
}

/// The programs of this package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Program {
    Nodepool,
    NodepoolLauncher,
    NodepoolBuilder,
}

#[derive(Debug, Args)]
pub struct StandaloneArguments {
    /// Configuration file; without it two slots on this machine serve the label "local"
    #[arg(short = 'c', value_name = "CONFIG")]
    pub config: Option<PathBuf>,
    /// Secure file, whose values are merged into the configuration
    #[arg(short = 's', value_name = "SECURE")]
    pub secure: Option<PathBuf>,
    /// Directory for the coordinator's data and the configuration for clients
    #[arg(long, value_name = "DIRECTORY", default_value = "./nodepool-data")]
    pub data_dir: PathBuf,
    /// Run without a builder
    #[arg(long)]
    pub no_builder: bool,
    /// Format of log lines: text or json [default: text; json with -o json]
    #[arg(long, value_name = "FORMAT", value_parser = line_format)]
    pub log_format: Option<LineFormat>,
}

#[derive(Debug, Args)]
pub struct RequestArguments {
    /// Label of a node; repeat the option for each node
    #[arg(long, required = true, value_name = "LABEL", value_parser = NonEmptyStringValueParser::new())]
    pub label: Vec<String>,
    /// Give up if the request is not fulfilled in time [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    pub wait: Option<Duration>,
    /// Tenant that the nodes are charged to
    #[arg(long, value_name = "TENANT")]
    pub tenant: Option<String>,
    /// Provider to prefer
    #[arg(long, value_name = "PROVIDER")]
    pub provider: Option<String>,
    /// Precedence among all requests: high, normal, low, or three digits (lower is served earlier)
    #[arg(long, value_name = "PRIORITY", default_value = "normal", value_parser = priority)]
    pub priority: String,
    /// Command to run with the nodes; without it they are shown and held until Enter or Ctrl-C
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Maximum of a duration, ten years: larger numbers overflow the clock.
const MAX_DURATION: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Parses a duration in seconds, with decimals.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if seconds > MAX_DURATION.as_secs_f64() {
        return Err(format!("more than ten years, which are {} seconds", MAX_DURATION.as_secs()));
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| "not a valid duration in seconds".to_owned())
}

/// Parses the precedence as in request ids: always three digits, because Zuul parses the id by them.
fn priority(text: &str) -> Result<String, String> {
    match text {
        "high" => Ok("100".to_owned()),
        "normal" => Ok("200".to_owned()),
        "low" => Ok("300".to_owned()),
        digits if digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit()) => Ok(digits.to_owned()),
        _ => Err("neither high, normal, low nor three digits".to_owned()),
    }
}

/// Parses a command line; an error has the text to print and the exit status.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<(Global, Command), UsageError> {
    let words: Vec<OsString> = words.into_iter().collect();
    let arguments =
        Arguments::try_parse_from(&words).map_err(|error| UsageError::from_clap(error, requested_format(&words)))?;
    match arguments.command {
        Some(command) => Ok((arguments.global, command)),
        None => Err(UsageError { status: 1, stdout: help(), stderr: String::new() }),
    }
}

/// The requested output format of a command line that cannot be parsed as a whole.
fn requested_format(words: &[OsString]) -> OutputFormat {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).take_while(|word| *word != "--").collect();
    // Long options may be abbreviated.
    let is_long = |word: &str| word.len() > 2 && "--output".starts_with(word);
    let is_separate = |pair: &[&str]| pair[1] == "json" && (pair[0] == "-o" || is_long(pair[0]));
    let is_joined = |word: &&str| match word.split_once('=') {
        Some((option, format)) => format == "json" && (option == "-o" || is_long(option)),
        None => *word == "-ojson",
    };
    match words.windows(2).any(is_separate) || words.iter().any(is_joined) {
        true => OutputFormat::Json,
        false => OutputFormat::Table,
    }
}

#[derive(Debug)]
pub struct UsageError {
    pub status: u8,
    pub stdout: String,
    pub stderr: String,
}

impl UsageError {
    fn from_clap(error: clap::Error, format: OutputFormat) -> Self {
        match error.kind() {
            ErrorKind::DisplayVersion | ErrorKind::DisplayHelp => {
                let text = error.render().to_string();
                UsageError { status: 0, stdout: text.replace("Nodepool version:-", "nodepool "), stderr: String::new() }
            }
            _ => {
                let stderr = format_usage_error(&error.render().to_string());
                let message = stderr.lines().last().and_then(|line| line.strip_prefix("nodepool: error: "));
                let stdout = match format {
                    OutputFormat::Table => String::new(),
                    OutputFormat::Json => format!("{}\n", json!({"outcome": "failed", "message": message})),
                };
                UsageError { status: 2, stdout, stderr }
            }
        }
    }
}

fn help() -> String {
    Arguments::command().render_help().to_string()
}

/// Formats a usage error: the usage first, then hints, and the error on the last line, with the prefix that scripts
/// search for.
fn format_usage_error(rendered: &str) -> String {
    let (message, rest) = rendered.split_once("\nUsage: ").unwrap_or((rendered, ""));
    let usage = rest.lines().next().unwrap_or("nodepool [OPTIONS] [COMMAND]");
    let mut paragraphs = message.split("\n\n").map(|lines| lines.split_whitespace().collect::<Vec<_>>().join(" "));
    let error = paragraphs.next().unwrap_or_default();
    let hints: String = paragraphs.filter(|hint| hint.starts_with("tip: ")).map(|hint| hint + "\n").collect();
    format!("usage: {usage}\n{hints}nodepool: error: {}\n", error.strip_prefix("error: ").unwrap_or(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<(Global, Command), UsageError> {
        parse(line.split_whitespace().map(Into::into))
    }

    #[test]
    fn the_version_is_printed_in_nodepool_11s_format() {
        for line in ["nodepool --version", "nodepool --vers"] {
            let error = parse_line(line).unwrap_err();
            assert_eq!((error.status, error.stdout.as_str()), (0, "Nodepool version: 12.0.0\n"));
        }
    }

    #[test]
    fn an_empty_line_prints_help_and_an_invalid_one_ends_with_the_reason() {
        let error = parse_line("nodepool").unwrap_err();
        assert_eq!(error.status, 1);
        assert!(error.stdout.contains("config-validate"), "{}", error.stdout);
        for line in ["nodepool frobnicate", "nodepool list --frob", "nodepool delete", "nodepool hold 1 2"] {
            let error = parse_line(line).unwrap_err();
            let last = error.stderr.lines().last().unwrap();
            assert!(error.status == 2 && last.starts_with("nodepool: error: "), "{line}: {}", error.stderr);
            assert!(error.stderr.starts_with("usage: nodepool"), "{line}: {}", error.stderr);
        }
        for (line, reason) in [
            (
                "request --label a --wait -1",
                "invalid value '-1' for '--wait <SECONDS>': not a valid duration in seconds",
            ),
            (
                "list --timeout 1e19",
                "invalid value '1e19' for '--timeout <SECONDS>': more than ten years, which are 315360000 seconds",
            ),
            (
                "dump --profile inf",
                "invalid value 'inf' for '--profile <SECONDS>': more than ten years, which are 315360000 seconds",
            ),
            (
                "request --label a --wait nan",
                "invalid value 'nan' for '--wait <SECONDS>': not a valid duration in seconds",
            ),
            ("list -o yaml", "invalid value 'yaml' for '--output <FORMAT>' [possible values: table, json]"),
            ("standalone --data-dir", "a value is required for '--data-dir <DIRECTORY>' but none was supplied"),
        ] {
            let text = parse_line(&format!("nodepool {line}")).unwrap_err().stderr;
            assert_eq!(text.lines().last(), Some(format!("nodepool: error: {reason}").as_str()), "{text}");
        }
        let hinted = parse_line("nodepool list --detial").unwrap_err().stderr;
        assert!(hinted.contains("\ntip: a similar argument exists: '--detail'\nnodepool: error: "), "{hinted}");
    }

    #[test]
    fn help_names_the_program_by_its_name() {
        let text =
            parse_line("nodepool --help").unwrap_err().stdout + &parse_line("nodepool list --help").unwrap_err().stdout;
        assert!(text.contains("Usage: nodepool") && !text.contains("Nodepool version:"), "{text}");
    }

    #[test]
    fn long_options_may_be_abbreviated_and_the_format_may_be_anywhere() {
        let (_, command) = parse_line("nodepool list --det").unwrap();
        assert!(matches!(command, Command::List { detail: true }));
        for line in ["nodepool -o json list", "nodepool list -o json", "nodepool list --out json"] {
            assert_eq!(parse_line(line).unwrap().0.output, OutputFormat::Json, "{line}");
        }
    }

    #[test]
    fn usage_errors_are_printed_in_the_requested_format() {
        for (line, is_json) in [
            ("-o json bogus", true),
            ("-ojson bogus", true),
            ("-o=json bogus", true),
            ("--out json bogus", true),
            ("list --outp=json --bogus", true),
            ("list --bogus", false),
            ("-o table bogus", false),
            ("request --bogus -- x -o json", false),
        ] {
            let error = parse_line(&format!("nodepool {line}")).unwrap_err();
            assert_eq!(error.stdout.starts_with(r#"{"outcome":"failed""#), is_json, "{line}: {}", error.stdout);
        }
    }

    #[test]
    fn standalone_takes_its_configuration_before_or_after_its_name() {
        let (_, command) = parse_line("nodepool standalone -c np.yaml --data-dir /srv/np").unwrap();
        let Command::Standalone(arguments) = command else { panic!("another command") };
        assert_eq!(arguments.config, Some("np.yaml".into()));
        assert_eq!(arguments.data_dir, PathBuf::from("/srv/np"));
        let (global, command) = parse_line("nodepool -c np.yaml standalone").unwrap();
        let Command::Standalone(arguments) = command else { panic!("another command") };
        assert_eq!((global.config, arguments.config), (Some("np.yaml".into()), None));
        assert_eq!(arguments.data_dir, PathBuf::from("./nodepool-data"));
    }

    #[test]
    fn a_command_for_the_nodes_is_passed_on_verbatim() {
        let (_, command) = parse_line("nodepool request --label a --label b --priority high -- sh -c --label").unwrap();
        let Command::Request(request) = command else { panic!("another command") };
        assert_eq!((request.label.len(), request.priority.as_str()), (2, "100"));
        assert_eq!(request.command, ["sh", "-c", "--label"]);
        for line in
            ["nodepool request", "nodepool request --label a --wait soon", "nodepool request --label a --wait -1"]
        {
            assert_eq!(parse_line(line).unwrap_err().status, 2, "{line}");
        }
    }
}
