//! Quantities of resources, such as `500m`, `2` and `64Mi`.

/// An amount in thousandths, and the form in which it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantity {
    pub milli: i128,
    is_binary: bool,
}

const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
const DECIMAL: [(&str, u32); 6] = [("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

impl Quantity {
    pub const ZERO: Self = Self { milli: 0, is_binary: false };

    pub fn whole(number: usize) -> Self {
        Self { milli: number as i128 * 1000, is_binary: false }
    }

    /// Parses a quantity; exponents (`1e3`) are supported, thousandths are the smallest unit.
    pub fn parse(text: &str) -> Option<Self> {
        let binary =
            BINARY.iter().find_map(|(suffix, bits)| Some((text.strip_suffix(suffix)?, 1000i128 << bits, true)));
        let decimal = || {
            let scaled = |(suffix, power): &(&str, u32)| {
                text.strip_suffix(suffix).map(|number| (number, 1000 * 10i128.pow(*power), false))
            };
            DECIMAL.iter().find_map(scaled)
        };
        let milli = || text.strip_suffix('m').map(|number| (number, 1, false));
        let exponent = || {
            let (number, power) = text.split_once(['e', 'E'])?;
            let power: u32 = power.trim_start_matches('+').parse().ok().filter(|power| *power <= 18)?;
            Some((number, 1000 * 10i128.pow(power), false))
        };
        let found = binary.or_else(milli).or_else(decimal).or_else(exponent);
        let (number, scale, is_binary) = found.unwrap_or((text, 1000, false));
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()) && part.len() <= 18;
        let unsigned = whole.trim_start_matches(['+', '-']);
        if !is_number(unsigned) || !is_number(fraction) || unsigned.is_empty() && fraction.is_empty() {
            return None;
        }
        let digits: i128 = format!("{unsigned}{fraction}").parse().ok()?;
        let divisor = 10i128.pow(u32::try_from(fraction.len()).ok()?);
        // Real quantities are rounded up as well.
        let milli = (digits * scale + divisor - 1) / divisor;
        Some(Self { milli: if whole.starts_with('-') { -milli } else { milli }, is_binary })
    }

    pub fn is_whole(self) -> bool {
        self.milli % 1000 == 0
    }

    /// The sum, in the form of the other one if this one is zero.
    pub fn plus(self, other: Self) -> Self {
        let is_binary = if self.milli == 0 { other.is_binary } else { self.is_binary };
        Self { milli: self.milli + other.milli, is_binary }
    }

    /// The canonical text.
    pub fn text(self) -> String {
        if !self.is_whole() {
            return format!("{}m", self.milli);
        }
        let whole = self.milli / 1000;
        let units: Vec<(&str, i128)> = match self.is_binary {
            true => BINARY.iter().map(|(suffix, bits)| (*suffix, 1i128 << bits)).collect(),
            false => DECIMAL.iter().map(|(suffix, power)| (*suffix, 10i128.pow(*power))).collect(),
        };
        let fitting = units.into_iter().rev().find(|(_, unit)| whole != 0 && whole % unit == 0);
        fitting.map_or_else(|| whole.to_string(), |(suffix, unit)| format!("{}{suffix}", whole / unit))
    }
}
