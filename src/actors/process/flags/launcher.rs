//! Command line of `nodepool-launcher`.

use clap::Parser;

use super::{CommonFlags, seconds};
use nodepool_model::records::time::Seconds;

/// Node pool launcher.
#[derive(Parser)]
#[command(name = "nodepool-launcher", disable_version_flag = true, infer_long_args = true, args_override_self = true)]
pub struct LauncherFlags {
    #[command(flatten)]
    pub common: CommonFlags,
    /// path to pid file
    #[arg(short = 'p', value_name = "PIDFILE", default_value = "/var/run/nodepool/nodepool.pid")]
    pub pid_file: String,
    /// do not serve HTTP
    #[arg(long)]
    pub no_webapp: bool,
    /// seconds between two periodic checks
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "10")]
    pub watermark_sleep: Seconds,
    /// seconds between two cleanups
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "60")]
    pub cleanup_interval: Seconds,
    /// seconds between two checks for nodes to delete
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "5")]
    pub delete_interval: Seconds,
    /// age in seconds at which the lock of a deleted request is removed
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "28800")]
    pub lock_cleanup: Seconds,
    /// concurrent API calls per provider
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1000), allow_negative_numbers = true, default_value = "10")]
    pub api_concurrency: u16,
    /// seconds between two checks for a missing cloud image
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "300")]
    pub image_check_timeout: Seconds,
}
