//! Handlers of a logging file: Python's classes with their arguments, as sinks.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{Section, level};
use crate::format::Format;
use crate::sinks::file::{FilePlan, OpenMode, Rotation, WriteMode};
use crate::sinks::schedule::{ClockZone, Schedule};
use crate::sinks::sink::SinkPlan;
use crate::sinks::syslog::{self, Address};
use crate::{Filter, HandlerPlan, Level};

/// Keys of every handler.
const COMMON_KEYS: [&str; 6] = ["class", "level", "formatter", "filters", "args", "kwargs"];
const FILE_KEYS: [&str; 5] = ["filename", "mode", "encoding", "delay", "errors"];

pub fn handler(
    name: &str,
    section: &Section,
    formats: &BTreeMap<&str, Format>,
    filters: Vec<Filter>,
    notices: &mut Vec<String>,
) -> Result<HandlerPlan, String> {
    let format = match section.get("formatter").filter(|formatter| !formatter.is_empty()) {
        Some(formatter) => formats
            .get(formatter.as_str())
            .cloned()
            .ok_or_else(|| format!("handler `{name}`: there is no formatter `{formatter}`"))?,
        None => Format::message(),
    };
    let level = level(section, &format!("handler `{name}`"))?.unwrap_or(Level::ALL);
    let sink = Arguments { name, section }.sink(notices)?;
    Ok(HandlerPlan { level, format, filters, sink })
}

/// Arguments of one handler, with its name for errors and notices.
struct Arguments<'a> {
    name: &'a str,
    section: &'a Section,
}

impl Arguments<'_> {
    fn get(&self, key: &str) -> &str {
        self.section.get(key).map_or("", String::as_str)
    }

    fn invalid(&self, problem: &str) -> String {
        format!("handler `{}`: {problem}", self.name)
    }

    fn number(&self, key: &str) -> Result<u64, String> {
        match self.get(key).replace('_', "").as_str() {
            "" => Ok(0),
            text => text.parse().map_err(|_| self.invalid(&format!("`{key}` must be a number, not `{text}`"))),
        }
    }

    fn count(&self, key: &str) -> Result<u32, String> {
        Ok(u32::try_from(self.number(key)?).unwrap_or(u32::MAX))
    }

    fn flag(&self, key: &str) -> bool {
        !matches!(self.get(key).to_ascii_lowercase().as_str(), "" | "false" | "no" | "off" | "0")
    }

    fn sink(&self, notices: &mut Vec<String>) -> Result<SinkPlan, String> {
        let factory = self.section.get("()").map_or("", String::as_str);
        let class = if factory.is_empty() { self.get("class") } else { factory };
        let (sink, known): (SinkPlan, &[&str]) = match class.rsplit('.').next().unwrap_or(class) {
            "StreamHandler" => (self.stream(notices), &["stream"]),
            "FileHandler" | "WatchedFileHandler" => (self.file(Rotation::Never, notices)?, &[]),
            "RotatingFileHandler" => {
                let rotation =
                    Rotation::BySize { max_bytes: self.number("maxBytes")?, backups: self.count("backupCount")? };
                (self.file(rotation, notices)?, &["maxBytes", "backupCount"])
            }
            "TimedRotatingFileHandler" => {
                (self.file(self.rotation_by_time()?, notices)?, &["when", "interval", "backupCount", "utc"])
            }
            "SysLogHandler" => (self.syslog()?, &["address", "facility", "socktype"]),
            "NullHandler" => (SinkPlan::Nothing, &[]),
            "" => return Err(self.invalid("`class` is missing")),
            _ => {
                notices.push(self.invalid(&format!("the class `{class}` is not supported; it writes nothing")));
                return Ok(SinkPlan::Nothing);
            }
        };
        let is_file = matches!(sink, SinkPlan::File(_));
        for (key, value) in self.section {
            let is_file_key = is_file && FILE_KEYS.contains(&key.as_str());
            let is_known =
                COMMON_KEYS.contains(&key.as_str()) || known.contains(&key.as_str()) || key == "()" || is_file_key;
            if !is_known && !value.is_empty() {
                notices.push(self.invalid(&format!("`{key}: {value}` is not supported and is ignored")));
            }
        }
        Ok(sink)
    }

    fn stream(&self, notices: &mut Vec<String>) -> SinkPlan {
        match self.get("stream") {
            "ext://sys.stdout" | "sys.stdout" => SinkPlan::Stdout,
            "ext://sys.stderr" | "sys.stderr" | "" => SinkPlan::Stderr,
            other => {
                notices.push(self.invalid(&format!("the stream `{other}` is not supported; standard error is used")));
                SinkPlan::Stderr
            }
        }
    }

    fn file(&self, rotation: Rotation, notices: &mut Vec<String>) -> Result<SinkPlan, String> {
        let path = Some(self.get("filename")).filter(|path| !path.is_empty());
        let path = path.map(PathBuf::from).ok_or_else(|| self.invalid("`filename` is missing"))?;
        let write_mode = match self.get("mode").trim_end_matches(['b', 't', '+']) {
            "" | "a" => WriteMode::Append,
            // A file that is rotated by size is never truncated; Python overrides the mode as well.
            "w" if matches!(rotation, Rotation::BySize { max_bytes: 1.., .. }) => WriteMode::Append,
            "w" => WriteMode::Truncate,
            other => return Err(self.invalid(&format!("`mode` must be `a` or `w`, not `{other}`"))),
        };
        let encoding = self.get("encoding").to_ascii_lowercase();
        if !matches!(encoding.as_str(), "" | "utf-8" | "utf8" | "utf_8" | "ascii" | "us-ascii") {
            notices.push(self.invalid(&format!("files are written in UTF-8, not in {encoding}")));
        }
        let open_mode = if self.flag("delay") { OpenMode::Delayed } else { OpenMode::Immediate };
        Ok(SinkPlan::File(FilePlan { path, write_mode, open_mode, rotation }))
    }

    fn rotation_by_time(&self) -> Result<Rotation, String> {
        let (when, zone) = (self.get("when"), if self.flag("utc") { ClockZone::Utc } else { ClockZone::Local });
        let schedule = Schedule::parse(when, self.count("interval")?, zone)
            .ok_or_else(|| self.invalid(&format!("`when` must be S, M, H, D, midnight or W0 to W6, not `{when}`")))?;
        Ok(Rotation::ByTime { schedule, backups: self.count("backupCount")? })
    }

    fn syslog(&self) -> Result<SinkPlan, String> {
        let name = self.get("facility").rsplit("LOG_").next().unwrap_or_default().to_ascii_lowercase();
        let name = if name.is_empty() { "user" } else { name.as_str() };
        let facility = syslog::facility(name).ok_or_else(|| self.invalid(&format!("unknown facility `{name}`")))?;
        let address = match self.get("address") {
            "" => "localhost,514",
            given => given,
        };
        if address.starts_with('/') {
            return Ok(SinkPlan::Syslog { address: Address::Socket(PathBuf::from(address)), facility });
        }
        let unknown = || self.invalid(&format!("`address` must be a socket or a host and a port, not `{address}`"));
        let (host, port) = address.split_once(',').ok_or_else(unknown)?;
        let (host, port) = (host.trim().to_owned(), port.trim().parse().map_err(|_| unknown())?);
        let address = match self.get("socktype").rsplit(['.', '/']).next().unwrap_or_default() {
            "SOCK_STREAM" | "1" => Address::Tcp(host, port),
            "SOCK_DGRAM" | "2" | "" => Address::Udp(host, port),
            other => return Err(self.invalid(&format!("unknown socktype `{other}`"))),
        };
        Ok(SinkPlan::Syslog { address, facility })
    }
}
