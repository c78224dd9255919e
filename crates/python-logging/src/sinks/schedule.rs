//! When a log file is rotated by time and what the old one is called then, as Python's TimedRotatingFileHandler has it.

use chrono::{DateTime, Datelike, Days, Local, NaiveDateTime, NaiveTime, TimeDelta, TimeZone, Utc};

/// The moments at which a file is put aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    every: Every,
    /// Seconds between two rotations, which the name of an old file reaches back by.
    interval: i64,
    zone: Zone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Every {
    Second,
    Minute,
    Hour,
    Day,
    Midnight,
    /// At the midnight that ends this day; 0 is Monday.
    Week(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zone {
    Local,
    Utc,
}

impl Schedule {
    /// `when` and `interval` as in a logging file; `None` where Python knows no such `when`.
    pub fn parse(when: &str, interval: u32, zone: Zone) -> Option<Self> {
        let when = if when.is_empty() { "H".to_owned() } else { when.to_ascii_uppercase() };
        let every = match when.as_str() {
            "S" => Every::Second,
            "M" => Every::Minute,
            "H" => Every::Hour,
            "D" => Every::Day,
            "MIDNIGHT" => Every::Midnight,
            other => match other.strip_prefix('W')?.parse() {
                Ok(day @ 0..=6) => Every::Week(day),
                _ => return None,
            },
        };
        Some(Self { every, interval: every.seconds() * i64::from(interval.max(1)), zone })
    }

    /// The next rotation after a moment, in seconds since 1970.
    pub fn next(&self, after: i64) -> i64 {
        match self.every {
            Every::Second | Every::Minute | Every::Hour | Every::Day => after + self.interval,
            Every::Midnight => self.midnight(after, |_| true),
            Every::Week(day) => self.midnight(after, |date| date.weekday().num_days_from_monday() == (day + 1) % 7),
        }
    }

    fn midnight(&self, after: i64, is_meant: impl Fn(&NaiveDateTime) -> bool) -> i64 {
        let clock = self.clock(after);
        let mut midnight = clock.date().and_time(NaiveTime::MIN) + Days::new(1);
        while !is_meant(&midnight) {
            midnight = midnight + Days::new(1);
        }
        match self.zone {
            Zone::Utc => midnight.and_utc().timestamp(),
            // A midnight that the summer time skips is an hour later.
            Zone::Local => Local
                .from_local_datetime(&midnight)
                .earliest()
                .or_else(|| Local.from_local_datetime(&(midnight + TimeDelta::hours(1))).earliest())
                .map_or(after + self.interval, |time| time.timestamp()),
        }
    }

    /// What the clock of the schedule's zone shows.
    fn clock(&self, time: i64) -> NaiveDateTime {
        let time = DateTime::<Utc>::from_timestamp(time, 0).unwrap_or_default();
        match self.zone {
            Zone::Utc => time.naive_utc(),
            Zone::Local => time.with_timezone(&Local).naive_local(),
        }
    }

    /// What follows the name of the file that is put aside at a rotation: the beginning of its time.
    pub fn suffix(&self, rotation: i64) -> String {
        let rotation = self.clock(rotation);
        // An interval of millions of years is as good as none.
        let begin = rotation.checked_sub_signed(TimeDelta::seconds(self.interval)).unwrap_or(rotation);
        begin.format(self.every.suffix()).to_string()
    }

    /// Whether this follows the name of a file that was put aside, perhaps compressed later.
    pub fn is_suffix(&self, text: &str) -> bool {
        let (time, ending) = text.split_once('.').map_or((text, None), |(time, ending)| (time, Some(ending)));
        let pattern = self.every.suffix();
        let shape = pattern.replace("%Y", "0000").replace("%m", "00").replace("%d", "00");
        let shape = shape.replace("%H", "00").replace("%M", "00").replace("%S", "00");
        let fits = |(found, wanted): (char, char)| found == wanted || (wanted == '0' && found.is_ascii_digit());
        let is_word = |ending: &str| !ending.is_empty() && ending.chars().all(|c| c.is_alphanumeric() || c == '_');
        time.len() == shape.len() && time.chars().zip(shape.chars()).all(fits) && ending.is_none_or(is_word)
    }
}

impl Every {
    fn seconds(self) -> i64 {
        match self {
            Every::Second => 1,
            Every::Minute => 60,
            Every::Hour => 3600,
            Every::Day | Every::Midnight => 86_400,
            Every::Week(_) => 7 * 86_400,
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Every::Second => "%Y-%m-%d_%H-%M-%S",
            Every::Minute => "%Y-%m-%d_%H-%M",
            Every::Hour => "%Y-%m-%d_%H",
            Every::Day | Every::Midnight | Every::Week(_) => "%Y-%m-%d",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Saturday, 2024-02-03 04:05:06 UTC.
    const SATURDAY: i64 = 1_706_933_106;

    fn schedule(when: &str, interval: u32) -> Schedule {
        Schedule::parse(when, interval, Zone::Utc).unwrap()
    }

    #[test]
    fn rotations_are_where_python_has_them() {
        let cases = [
            ("s", 5, SATURDAY + 5, "2024-02-03_04-05-06"),
            ("M", 2, SATURDAY + 120, "2024-02-03_04-05"),
            ("h", 1, SATURDAY + 3600, "2024-02-03_04"),
            ("D", 1, SATURDAY + 86_400, "2024-02-03"),
            ("midnight", 1, 1_707_004_800, "2024-02-03"),
            ("W0", 1, 1_707_177_600, "2024-01-30"),
            ("W6", 1, 1_707_091_200, "2024-01-29"),
        ];
        for (when, interval, expected, suffix) in cases {
            let schedule = schedule(when, interval);
            assert_eq!((schedule.next(SATURDAY), schedule.suffix(expected)), (expected, suffix.to_owned()), "{when}");
        }
        assert_eq!(schedule("midnight", 1).next(1_707_004_800), 1_707_004_800 + 86_400);
        assert_eq!(Schedule::parse("W7", 1, Zone::Utc), None);
        assert_eq!(Schedule::parse("yearly", 1, Zone::Utc), None);
    }

    #[test]
    fn old_files_are_known_by_their_names() {
        let hourly = schedule("H", 1);
        for (text, expected) in [
            ("2024-02-03_04", true),
            ("2024-02-03_04.gz", true),
            ("2024-02-03", false),
            ("2024-02-03_0x", false),
            ("2024-02-03_04.tar.gz", false),
        ] {
            assert_eq!(hourly.is_suffix(text), expected, "{text}");
        }
    }
}
