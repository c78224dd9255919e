//! As few faults as are needed: first large parts are left out, then small ones (ddmin; Zeller and Hildebrandt: Simplifying and Isolating
//! Failure-Inducing Input, 2002).

/// Of so many, those that are left when none can be left out any more; each time fewer of them are enough, that is told.
pub fn fewest(number: usize, mut are_enough: impl FnMut(&[usize]) -> bool) -> Vec<usize> {
    let mut left: Vec<usize> = (0..number).collect();
    let mut parts = 2;
    while !left.is_empty() {
        let size = left.len().div_ceil(parts).max(1);
        let shorter = (0..left.len()).step_by(size).find_map(|from| {
            let numbers = left.iter().enumerate().filter(|(at, _)| !(from..from + size).contains(at));
            let kept: Vec<usize> = numbers.map(|(_, number)| *number).collect();
            are_enough(&kept).then_some(kept)
        });
        match shorter {
            Some(kept) => (left, parts) = (kept, parts.saturating_sub(1).max(2)),
            None if size > 1 => parts = (parts * 2).min(left.len()),
            None => break,
        }
    }
    left
}
