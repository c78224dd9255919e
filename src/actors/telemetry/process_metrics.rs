//! Process metrics from `/proc`: CPU, memory, threads, open files. A value that cannot be read is not exported.

use nodepool_model::metrics::prometheus_metrics;
use nodepool_model::metrics::prometheus_text::PrometheusText;

pub fn export(out: &mut PrometheusText) {
    let Ok(process) = procfs::process::Process::myself() else { return };
    if let Ok(stat) = process.stat() {
        let ticks = procfs::ticks_per_second() as f64;
        out.unlabeled(&prometheus_metrics::CPU, (stat.utime + stat.stime) as f64 / ticks);
        out.unlabeled(&prometheus_metrics::VIRTUAL, stat.vsize as f64);
        out.unlabeled(&prometheus_metrics::RESIDENT, (stat.rss * procfs::page_size()) as f64);
        out.unlabeled(&prometheus_metrics::THREADS, stat.num_threads as f64);
        if let Ok(boot) = procfs::boot_time_secs() {
            out.unlabeled(&prometheus_metrics::STARTED, boot as f64 + stat.starttime as f64 / ticks);
        }
    }
    if let Ok(open) = process.fd_count() {
        out.unlabeled(&prometheus_metrics::OPEN_FILES, open as f64);
    }
    if let Ok(limits) = process.limits()
        && let procfs::process::LimitValue::Value(limit) = limits.max_open_files.soft_limit
    {
        out.unlabeled(&prometheus_metrics::MAX_OPEN_FILES, limit as f64);
    }
}
