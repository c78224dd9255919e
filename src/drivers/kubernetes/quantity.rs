//! Quantities of resources as Kubernetes writes them: `500m`, `2`, `1.5Gi`, `2e3`.

const SUFFIXES: [(&str, f64); 14] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
    ("E", 1e18),
];

/// The number that a quantity stands for: cores of a CPU, bytes of memory.
pub fn parse(text: &str) -> Option<f64> {
    let (number, factor) =
        SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor))).unwrap_or((text, 1.0));
    number
        .trim()
        .parse::<f64>()
        .ok()
        .filter(|number| number.is_finite() && *number >= 0.0)
        .map(|number| number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_numbers_with_decimal_or_binary_suffixes() {
        let cases =
            [("2", 2.0), ("500m", 0.5), ("1Gi", 1_073_741_824.0), ("1.5k", 1500.0), ("2e3", 2000.0), ("0", 0.0)];
        for (text, number) in cases {
            assert_eq!(parse(text), Some(number), "{text}");
        }
        for text in ["", "Gi", "1 GB", "-1", "inf", "two"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
