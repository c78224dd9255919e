//! Process metrics: CPU, memory, threads, open files, from `/proc` and the kernel's accounting. A value that cannot be
//! read is not exported.

use std::fs;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeVal;
use nix::unistd::{SysconfVar, sysconf};

use nodepool_model::metrics::prometheus_metrics;
use nodepool_model::metrics::prometheus_text::PrometheusText;

pub fn export(out: &mut PrometheusText) {
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        out.unlabeled(&prometheus_metrics::CPU, seconds(usage.user_time()) + seconds(usage.system_time()));
    }
    if let Some(stat) = fs::read_to_string("/proc/self/stat").ok().and_then(|text| ProcessStat::parse(&text)) {
        out.unlabeled(&prometheus_metrics::VIRTUAL, stat.virtual_bytes as f64);
        out.unlabeled(&prometheus_metrics::THREADS, stat.threads as f64);
        if let Some(page) = system_value(SysconfVar::PAGE_SIZE) {
            out.unlabeled(&prometheus_metrics::RESIDENT, stat.resident_pages as f64 * page);
        }
        if let (Some(boot), Some(ticks)) = (boot_time(), system_value(SysconfVar::CLK_TCK)) {
            out.unlabeled(&prometheus_metrics::STARTED, boot + stat.started_ticks as f64 / ticks);
        }
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        out.unlabeled(&prometheus_metrics::OPEN_FILES, open.count() as f64);
    }
    if let Ok((limit, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
        out.unlabeled(&prometheus_metrics::MAX_OPEN_FILES, limit as f64);
    }
}

/// The fields of `/proc/self/stat` that are exported (proc_pid_stat(5)).
#[derive(Debug, PartialEq)]
struct ProcessStat {
    threads: u64,
    /// Start of the process, in clock ticks since boot.
    started_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl ProcessStat {
    fn parse(text: &str) -> Option<Self> {
        // The second field is the name of the program in parentheses, which may contain spaces and parentheses.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse().ok();
        Some(Self {
            threads: field(20)?,
            started_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// Boot time of the system, in seconds since the Unix epoch.
fn boot_time() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("btime ")).and_then(|seconds| seconds.trim().parse().ok())
}

fn system_value(variable: SysconfVar) -> Option<f64> {
    sysconf(variable).ok().flatten().map(|value| value as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_program_may_look_like_fields() {
        let text = "7 (a b) 1 2) S 1 7 7 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 3 0 900 4096 12 18446744073709551615 1";
        let expected = ProcessStat { threads: 3, started_ticks: 900, virtual_bytes: 4096, resident_pages: 12 };
        assert_eq!(ProcessStat::parse(text), Some(expected));
        assert_eq!(ProcessStat::parse("7 (a) S 1"), None);
        assert_eq!(ProcessStat::parse(""), None);
    }

    #[test]
    fn every_process_metric_is_exported() {
        let mut out = PrometheusText::default();
        export(&mut out);
        let text = out.text();
        for metric in [
            &prometheus_metrics::CPU,
            &prometheus_metrics::VIRTUAL,
            &prometheus_metrics::RESIDENT,
            &prometheus_metrics::THREADS,
            &prometheus_metrics::STARTED,
            &prometheus_metrics::OPEN_FILES,
            &prometheus_metrics::MAX_OPEN_FILES,
        ] {
            assert!(text.lines().any(|line| line.starts_with(&format!("{} ", metric.name))), "{}: {text}", metric.name);
        }
    }
}
