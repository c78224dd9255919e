//! Times at which a log file is rotated, and names of the rotated files, as in Python's TimedRotatingFileHandler.

use chrono::{DateTime, Datelike, Days, Local, NaiveDateTime, NaiveTime, TimeDelta, TimeZone, Utc};

/// The times at which a file is rotated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    unit: RotationInterval,
    /// Seconds between two rotations. A rotated file is named after its start, which is this long before the rotation.
    interval: i64,
    zone: ClockZone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RotationInterval {
    Second,
    Minute,
    Hour,
    Day,
    Midnight,
    /// At the midnight that ends this day; 0 is Monday.
    Week(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockZone {
    Local,
    Utc,
}

impl Schedule {
    /// `when` and `interval` as in a logging file; `None` if Python has no such `when`.
    pub fn parse(when: &str, interval: u32, zone: ClockZone) -> Option<Self> {
        let when = if when.is_empty() { "H".to_owned() } else { when.to_ascii_uppercase() };
        let unit = match when.as_str() {
            "S" => RotationInterval::Second,
            "M" => RotationInterval::Minute,
            "H" => RotationInterval::Hour,
            "D" => RotationInterval::Day,
            "MIDNIGHT" => RotationInterval::Midnight,
            other => match other.strip_prefix('W')?.parse() {
                Ok(day @ 0..=6) => RotationInterval::Week(day),
                _ => return None,
            },
        };
        Some(Self { unit, interval: unit.seconds() * i64::from(interval.max(1)), zone })
    }

    /// The next rotation after a time, in seconds since 1970.
    pub fn next(&self, after: i64) -> i64 {
        match self.unit {
            RotationInterval::Second | RotationInterval::Minute | RotationInterval::Hour | RotationInterval::Day => {
                after + self.interval
            }
            RotationInterval::Midnight => self.midnight(after, |_| true),
            RotationInterval::Week(day) => {
                self.midnight(after, |date| date.weekday().num_days_from_monday() == (day + 1) % 7)
            }
        }
    }

    fn midnight(&self, after: i64, is_selected: impl Fn(&NaiveDateTime) -> bool) -> i64 {
        let civil_time = self.civil_time(after);
        let mut midnight = civil_time.date().and_time(NaiveTime::MIN) + Days::new(1);
        while !is_selected(&midnight) {
            midnight = midnight + Days::new(1);
        }
        match self.zone {
            ClockZone::Utc => midnight.and_utc().timestamp(),
            // A midnight that daylight saving time skips is an hour later.
            ClockZone::Local => Local
                .from_local_datetime(&midnight)
                .earliest()
                .or_else(|| Local.from_local_datetime(&(midnight + TimeDelta::hours(1))).earliest())
                .map_or(after + self.interval, |time| time.timestamp()),
        }
    }

    /// The local time in the schedule's zone.
    fn civil_time(&self, time: i64) -> NaiveDateTime {
        let time = DateTime::<Utc>::from_timestamp(time, 0).unwrap_or_default();
        match self.zone {
            ClockZone::Utc => time.naive_utc(),
            ClockZone::Local => time.with_timezone(&Local).naive_local(),
        }
    }

    /// Suffix of the file that is rotated at this time: the start of its interval.
    pub fn suffix(&self, rotation: i64) -> String {
        let rotation = self.civil_time(rotation);
        // An interval of millions of years would overflow; the suffix is then the rotation itself.
        let begin = rotation.checked_sub_signed(TimeDelta::seconds(self.interval)).unwrap_or(rotation);
        begin.format(self.unit.suffix()).to_string()
    }

    /// Whether this is the suffix of a rotated file, possibly compressed later.
    pub fn is_suffix(&self, text: &str) -> bool {
        let (time, extension) = text.split_once('.').map_or((text, None), |(time, ending)| (time, Some(ending)));
        let pattern = self.unit.suffix();
        let template = pattern.replace("%Y", "0000").replace("%m", "00").replace("%d", "00");
        let template = template.replace("%H", "00").replace("%M", "00").replace("%S", "00");
        let matches_template =
            |(found, expected): (char, char)| found == expected || (expected == '0' && found.is_ascii_digit());
        let is_word = |ending: &str| !ending.is_empty() && ending.chars().all(|c| c.is_alphanumeric() || c == '_');
        time.len() == template.len()
            && time.chars().zip(template.chars()).all(matches_template)
            && extension.is_none_or(is_word)
    }
}

impl RotationInterval {
    fn seconds(self) -> i64 {
        match self {
            RotationInterval::Second => 1,
            RotationInterval::Minute => 60,
            RotationInterval::Hour => 3600,
            RotationInterval::Day | RotationInterval::Midnight => 86_400,
            RotationInterval::Week(_) => 7 * 86_400,
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            RotationInterval::Second => "%Y-%m-%d_%H-%M-%S",
            RotationInterval::Minute => "%Y-%m-%d_%H-%M",
            RotationInterval::Hour => "%Y-%m-%d_%H",
            RotationInterval::Day | RotationInterval::Midnight | RotationInterval::Week(_) => "%Y-%m-%d",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Saturday, 2024-02-03 04:05:06 UTC.
    const SATURDAY: i64 = 1_706_933_106;

    fn schedule(when: &str, interval: u32) -> Schedule {
        Schedule::parse(when, interval, ClockZone::Utc).unwrap()
    }

    #[test]
    fn rotations_are_at_the_same_times_as_pythons() {
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
        assert_eq!(Schedule::parse("W7", 1, ClockZone::Utc), None);
        assert_eq!(Schedule::parse("yearly", 1, ClockZone::Utc), None);
    }

    #[test]
    fn rotated_files_are_recognised_by_their_suffix() {
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
