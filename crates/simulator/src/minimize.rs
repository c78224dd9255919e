//! Minimization of faults by delta debugging (ddmin): removes large parts first, then small ones.

/// A minimal subset of `0..number` for which `still_fails` is true: without any one element it is false.
pub fn minimize(number: usize, mut still_fails: impl FnMut(&[usize]) -> bool) -> Vec<usize> {
    let mut remaining: Vec<usize> = (0..number).collect();
    let mut parts = 2;
    while !remaining.is_empty() {
        let size = remaining.len().div_ceil(parts).max(1);
        let shorter = (0..remaining.len()).step_by(size).find_map(|from| {
            let numbers = remaining.iter().enumerate().filter(|(at, _)| !(from..from + size).contains(at));
            let candidate: Vec<usize> = numbers.map(|(_, number)| *number).collect();
            still_fails(&candidate).then_some(candidate)
        });
        match shorter {
            Some(candidate) => (remaining, parts) = (candidate, parts.saturating_sub(1).max(2)),
            None if size > 1 => parts = (parts * 2).min(remaining.len()),
            None => break,
        }
    }
    remaining
}
