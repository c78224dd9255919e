//! Command line of `nodepool-builder`.

use clap::Parser;

use super::{CommonFlags, seconds, seconds_or_none};
use nodepool_model::records::time::Seconds;

/// Node pool image builder.
#[derive(Parser)]
#[command(name = "nodepool-builder", disable_version_flag = true, infer_long_args = true, args_override_self = true)]
pub struct BuilderFlags {
    #[command(flatten)]
    pub common: CommonFlags,
    /// path to pid file
    #[arg(short = 'p', value_name = "PIDFILE", default_value = "/var/run/nodepool/nodepool-builder.pid")]
    pub pid_file: String,
    /// number of build workers
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(0..=1000), allow_negative_numbers = true, default_value = "1")]
    pub build_workers: u16,
    /// number of upload workers
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(0..=1000), allow_negative_numbers = true, default_value = "4")]
    pub upload_workers: u16,
    /// create small files instead of images
    #[arg(long)]
    pub fake: bool,
    /// seconds before a failed build is retried
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "10")]
    pub build_interval: Seconds,
    /// seconds between checks whether a running build is still needed
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "30")]
    pub build_poll_timeout: Seconds,
    /// seconds before a failed upload is retried
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "10")]
    pub upload_interval: Seconds,
    /// seconds between two uploads of a worker
    #[arg(long, value_name = "SECONDS", value_parser = seconds_or_none, allow_negative_numbers = true, default_value = "0")]
    pub image_upload_sleep: Seconds,
    /// time limit of a post-upload-hook in seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "3600")]
    pub hook_timeout: Seconds,
    /// seconds between clean-ups of builds, uploads and files; 0: never
    #[arg(long, value_name = "SECONDS", value_parser = seconds_or_none, allow_negative_numbers = true, default_value = "60")]
    pub cleanup_interval: Seconds,
}
