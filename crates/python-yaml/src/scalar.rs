//! Resolution of plain scalars as in YAML 1.1 and PyYAML: booleans, numbers, dates, null or text.

/// Line and column in a file, both from 1; line 0 means no position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub line: u32,
    pub column: u32,
}

/// Meaning of an unquoted scalar.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    /// The nearest 64-bit number of a whole number that does not fit.
    HugeInt(i64),
    Float(f64),
    /// A date or a date with a time, as written.
    Date,
    Text,
}

/// Resolves an unquoted scalar; the fallback is text.
pub fn resolve(text: &str) -> Scalar {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Null,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Scalar::Bool(true),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => return Scalar::Bool(false),
        _ => {}
    }
    if !text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.')) {
        return Scalar::Text;
    }
    number(text).unwrap_or(if is_date(text) { Scalar::Date } else { Scalar::Text })
}

fn number(text: &str) -> Option<Scalar> {
    float(text).map(Scalar::Float).or_else(|| integer(text))
}

fn split_sign(text: &str) -> (bool, &str) {
    match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    }
}

fn integer(text: &str) -> Option<Scalar> {
    let (negative, digits) = split_sign(text);
    let magnitude = if digits.contains(':') {
        sexagesimal_integer(digits)?
    } else if let Some(binary) = digits.strip_prefix("0b") {
        in_base(binary, 2)?
    } else if let Some(hexadecimal) = digits.strip_prefix("0x") {
        in_base(hexadecimal, 16)?
    } else if digits == "0" {
        Some(0)
    } else if let Some(octal) = digits.strip_prefix('0') {
        in_base(octal, 8)?
    } else {
        digits.starts_with(|first: char| first.is_ascii_digit()).then_some(())?;
        in_base(digits, 10)?
    };
    Some(match (magnitude.and_then(|magnitude| i64::try_from(magnitude).ok()), negative) {
        (Some(value), false) => Scalar::Int(value),
        (Some(value), true) => Scalar::Int(-value),
        (None, false) => Scalar::HugeInt(i64::MAX),
        (None, true) => Scalar::HugeInt(i64::MIN),
    })
}

/// The outer option is `None` for text that is not such a number, the inner one for a number that does not fit.
fn in_base(digits: &str, base: u32) -> Option<Option<u128>> {
    // `0_` is an octal zero and `0b_` is no number, both as in PyYAML.
    let has_digit = digits.bytes().any(|byte| byte != b'_') || base == 8;
    let all_digits = digits.chars().all(|letter| letter == '_' || letter.is_digit(base));
    if !has_digit || !all_digits {
        return None;
    }
    let mut value: Option<u128> = Some(0);
    for digit in digits.chars().filter_map(|letter| letter.to_digit(base)) {
        value = value.and_then(|value| value.checked_mul(u128::from(base))?.checked_add(u128::from(digit)));
    }
    Some(value)
}

/// `1:30` is ninety: parts after the first are below sixty.
fn sexagesimal_integer(digits: &str) -> Option<Option<u128>> {
    let mut parts = digits.split(':');
    let first = parts.next()?;
    first.starts_with(|letter: char| ('1'..='9').contains(&letter)).then_some(())?;
    let mut value = in_base(first, 10)?;
    for part in parts {
        let part = sixtieths(part)?;
        value = value.and_then(|value| value.checked_mul(60)?.checked_add(u128::from(part)));
    }
    Some(value)
}

fn sixtieths(part: &str) -> Option<u32> {
    let valid = matches!(part.len(), 1 | 2) && part.bytes().all(|byte| byte.is_ascii_digit());
    let value = valid.then(|| part.parse().ok()).flatten()?;
    (value < 60).then_some(value)
}

fn float(text: &str) -> Option<f64> {
    let (negative, digits) = split_sign(text);
    let sign = if negative { -1.0 } else { 1.0 };
    match digits {
        ".inf" | ".Inf" | ".INF" => return Some(sign * f64::INFINITY),
        ".nan" | ".NaN" | ".NAN" if digits == text => return Some(f64::NAN),
        _ => {}
    }
    if digits.contains(':') {
        return sexagesimal_float(digits).map(|value| sign * value);
    }
    let (whole, rest) = digits.split_once('.')?;
    let signed_fraction_only = whole.is_empty() && digits != text;
    let whole_is_number =
        whole.is_empty() || (whole.starts_with(|first: char| first.is_ascii_digit()) && is_digits(whole));
    if !whole_is_number || signed_fraction_only {
        return None;
    }
    let (fraction, exponent) = match rest.find(['e', 'E']) {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (rest, "+0"),
    };
    let fraction_is_number =
        is_digits(fraction) && (!whole.is_empty() || fraction.starts_with(|first: char| first.is_ascii_digit()));
    // PyYAML requires the sign of the exponent: `1.5e3` is text, `1.5e+3` a number.
    let exponent_is_number = exponent.len() > 1
        && exponent.starts_with(['+', '-'])
        && exponent[1..].bytes().all(|byte| byte.is_ascii_digit());
    if !fraction_is_number || !exponent_is_number {
        return None;
    }
    let plain = format!("0{whole}.{fraction}0e{exponent}").replace('_', "");
    plain.parse::<f64>().ok().map(|value| sign * value)
}

fn sexagesimal_float(digits: &str) -> Option<f64> {
    let (parts, fraction) = digits.split_once('.')?;
    let mut parts = parts.split(':');
    let first = parts.next().filter(|first| first.starts_with(|letter: char| letter.is_ascii_digit()))?;
    if !is_digits(first) || !is_digits(fraction) {
        return None;
    }
    let mut value = first.replace('_', "").parse::<f64>().ok()?;
    for part in parts {
        value = value * 60.0 + f64::from(sixtieths(part)?);
    }
    Some(value + format!("0.{fraction}0").replace('_', "").parse::<f64>().ok()?)
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_')
}

/// `2024-01-31`, or that with looser digits and a time: `2024-1-31 12:00:00.5 +01:00`.
fn is_date(text: &str) -> bool {
    let Some((year, rest)) = text.split_once('-') else { return false };
    let Some((month, rest)) = rest.split_once('-') else { return false };
    let day_end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    let (day, time) = rest.split_at(day_end);
    let digits =
        |part: &str, lengths: &[usize]| lengths.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    if time.is_empty() {
        return digits(year, &[4]) && digits(month, &[2]) && digits(day, &[2]);
    }
    digits(year, &[4]) && digits(month, &[1, 2]) && digits(day, &[1, 2]) && is_time(time)
}

fn is_time(text: &str) -> bool {
    let trimmed = text.strip_prefix(['T', 't']).unwrap_or_else(|| text.trim_start_matches([' ', '\t']));
    if trimmed.len() == text.len() {
        return false;
    }
    let clock_end = trimmed.find(|letter: char| !letter.is_ascii_digit() && letter != ':').unwrap_or(trimmed.len());
    let (clock, rest) = trimmed.split_at(clock_end);
    let lengths: Vec<usize> = clock.split(':').map(str::len).collect();
    let zone =
        rest.strip_prefix('.').map_or(rest, |fraction| fraction.trim_start_matches(|c: char| c.is_ascii_digit()));
    matches!(lengths[..], [1 | 2, 2, 2]) && is_zone(zone.trim_start_matches([' ', '\t']))
}

fn is_zone(text: &str) -> bool {
    let Some(offset) = text.strip_prefix(['+', '-']) else { return text.is_empty() || text == "Z" };
    let (hours, minutes) = offset.split_once(':').unwrap_or((offset, "00"));
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    matches!(hours.len(), 1 | 2) && all_digits(hours) && minutes.len() == 2 && all_digits(minutes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Scalar) {
        assert_eq!(resolve(text), expected, "{text}");
    }

    #[test]
    fn words_that_are_not_text() {
        for yes in ["yes", "Yes", "on", "TRUE"] {
            check(yes, Scalar::Bool(true));
        }
        for no in ["no", "OFF", "false"] {
            check(no, Scalar::Bool(false));
        }
        for nothing in ["", "~", "null", "NULL"] {
            check(nothing, Scalar::Null);
        }
        for text in ["y", "n", "yEs", "None", "nUll", "-", "+", ".", "=", "<<"] {
            check(text, Scalar::Text);
        }
    }

    #[test]
    fn whole_numbers_of_yaml_1_1() {
        for (text, value) in [
            ("0", 0),
            ("0755", 493),
            ("00", 0),
            ("0_", 0),
            ("-0x1F", -31),
            ("0b101", 5),
            ("1_000", 1000),
            ("+7", 7),
            ("1:30", 90),
            ("-1:00:00", -3600),
            ("190:20:30", 685_230),
        ] {
            check(text, Scalar::Int(value));
        }
        for text in ["08", "0o7", "1:60", "0:30", "_1", "0x", "0b", "1:", "12a", "1e5", "1:030"] {
            check(text, Scalar::Text);
        }
        check("99999999999999999999", Scalar::HugeInt(i64::MAX));
        check(&format!("-{}", "9".repeat(200)), Scalar::HugeInt(i64::MIN));
    }

    #[test]
    fn floats_of_yaml_1_1() {
        for (text, value) in [
            ("1.5", 1.5),
            ("10.", 10.0),
            (".5", 0.5),
            ("-1_0.2_5", -10.25),
            ("1.5e+3", 1500.0),
            ("09.5", 9.5),
            ("1:30.5", 90.5),
            ("-.inf", f64::NEG_INFINITY),
        ] {
            check(text, Scalar::Float(value));
        }
        assert!(matches!(resolve(".nan"), Scalar::Float(value) if value.is_nan()));
        for text in ["1.5e3", "-.5", "+.nan", "1.2.3", "._1", "1e+3"] {
            check(text, Scalar::Text);
        }
    }

    #[test]
    fn dates_are_not_text() {
        for text in ["2024-01-31", "2024-1-3 1:02:03", "2001-12-14t21:59:43.10-05:00", "2001-12-15 2:59:43 Z"] {
            check(text, Scalar::Date);
        }
        for text in ["2024-1-3", "2024-01-31 ", "2024-01", "24-01-01", "2024-01-31T", "2024-01-31 10:00"] {
            check(text, Scalar::Text);
        }
    }
}
