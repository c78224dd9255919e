//! Assignment of interchangeable candidates to demands: a maximum matching by augmenting paths.
//!
//! Kuhn's algorithm (H. W. Kuhn, "The Hungarian method for the assignment problem", 1955), after a greedy first round,
//! on bipartite graphs where all demands of one kind have the same candidates.

use std::collections::BTreeMap;

/// Kinds that are short together: their demands outnumber their candidates (P. Hall, "On representatives of subsets",
/// 1935).
#[derive(Debug, PartialEq)]
pub struct Shortage<'a, K> {
    pub kinds: Vec<&'a K>,
    pub wanted: usize,
    pub found: usize,
}

/// Assigns each demand a candidate of its kind, each candidate once; or returns a shortage.
///
/// For `n` demands the first `n` candidates of each kind suffice: a demand that needed a later one could swap.
pub fn assign<K: Ord, T: Ord + Clone>(
    demands: &[K],
    candidates: impl Fn(&K, usize) -> Vec<T>,
) -> Result<Vec<T>, Shortage<'_, K>> {
    let mut of_kind: BTreeMap<&K, Vec<T>> = BTreeMap::new();
    for kind in demands {
        of_kind.entry(kind).or_insert_with(|| candidates(kind, demands.len()));
    }
    let mut next: BTreeMap<&K, usize> = BTreeMap::new();
    let mut taken_by: BTreeMap<T, usize> = BTreeMap::new();
    for (demand, kind) in demands.iter().enumerate() {
        let offered = &of_kind[kind];
        let cursor = next.entry(kind).or_insert(0);
        while *cursor < offered.len() && taken_by.contains_key(&offered[*cursor]) {
            *cursor += 1;
        }
        if let Some(candidate) = offered.get(*cursor) {
            taken_by.insert(candidate.clone(), demand);
        } else {
            augment(demand, demands, &of_kind, &mut taken_by)?;
        }
    }
    let mut assigned: Vec<Option<T>> = vec![None; demands.len()];
    for (candidate, demand) in taken_by {
        assigned[demand] = Some(candidate);
    }
    Ok(assigned.into_iter().map(|candidate| candidate.expect("every demand has a candidate")).collect())
}

/// Finds a chain of swaps that frees a candidate for `demand`. Breadth first, so that depth is bounded. If no chain
/// exists, the visited kinds share all their candidates, and each of those is taken.
fn augment<'a, K: Ord, T: Ord + Clone>(
    demand: usize,
    demands: &'a [K],
    of_kind: &BTreeMap<&K, Vec<T>>,
    taken_by: &mut BTreeMap<T, usize>,
) -> Result<(), Shortage<'a, K>> {
    let mut reached_from: BTreeMap<T, usize> = BTreeMap::new();
    let mut queue = std::collections::VecDeque::from([demand]);
    let mut visited_kinds: Vec<&'a K> = Vec::new();
    while let Some(seeker) = queue.pop_front() {
        let kind = &demands[seeker];
        // Demands of one kind reach the same candidates.
        if visited_kinds.contains(&kind) {
            continue;
        }
        visited_kinds.push(kind);
        for candidate in &of_kind[kind] {
            if reached_from.contains_key(candidate) {
                continue;
            }
            reached_from.insert(candidate.clone(), seeker);
            match taken_by.get(candidate) {
                Some(owner) => queue.push_back(*owner),
                None => {
                    swap_along(candidate.clone(), demand, &reached_from, taken_by);
                    return Ok(());
                }
            }
        }
    }
    let wanted = demands.iter().filter(|kind| visited_kinds.contains(kind)).count();
    Err(Shortage { kinds: visited_kinds, wanted, found: reached_from.len() })
}

fn swap_along<T: Ord + Clone>(
    free: T,
    demand: usize,
    reached_from: &BTreeMap<T, usize>,
    taken_by: &mut BTreeMap<T, usize>,
) {
    let mut candidate = free;
    loop {
        let seeker = reached_from[&candidate];
        let released = taken_by.iter().find(|(_, owner)| **owner == seeker).map(|(candidate, _)| candidate.clone());
        taken_by.insert(candidate, seeker);
        match released {
            Some(previous) if seeker != demand => candidate = previous,
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(nodes: &[&str], demands: &[&str], expected: Result<Vec<usize>, (&str, usize, usize)>) {
        let found = assign(demands, |kind, most| {
            let fitting = nodes.iter().enumerate().filter(|(_, labels)| labels.split(' ').any(|label| label == *kind));
            fitting.map(|(index, _)| index).take(most).collect()
        });
        let names = |kinds: Vec<&&str>| kinds.into_iter().copied().collect::<Vec<_>>().join(" ");
        let found = found.map_err(|short| (names(short.kinds), short.wanted, short.found));
        let expected = expected.map_err(|(kinds, wanted, found)| (kinds.to_owned(), wanted, found));
        assert_eq!(found, expected, "{nodes:?} for {demands:?}");
    }

    #[test]
    fn a_node_with_two_labels_is_left_to_the_demand_without_an_alternative() {
        check(&["a b", "a"], &["a", "b"], Ok(vec![1, 0]));
        check(&["a b", "b c", "c"], &["b", "c", "a"], Ok(vec![1, 2, 0]));
        check(&["a b", "a"], &["b", "b"], Err(("b", 2, 1)));
        check(&[], &[], Ok(vec![]));
    }

    #[test]
    fn kinds_that_share_their_candidates_are_short_together() {
        check(&["a b", "a b", "a b"], &["a", "a", "b", "b"], Err(("b a", 4, 3)));
        check(&["a b", "a b", "c", "c"], &["c", "a", "a", "b"], Err(("b a", 3, 2)));
    }

    /// Reference implementation: tries every order.
    fn possible(nodes: &[Vec<u8>], demands: &[u8], used: &mut Vec<bool>) -> bool {
        let Some((first, rest)) = demands.split_first() else { return true };
        (0..nodes.len()).any(|node| {
            if used[node] || !nodes[node].contains(first) {
                return false;
            }
            used[node] = true;
            let found = possible(nodes, rest, used);
            used[node] = false;
            found
        })
    }

    proptest! {
        #[test]
        fn a_matching_is_found_exactly_when_there_is_one(
            nodes in prop::collection::vec(prop::collection::vec(0u8..4, 0..3), 0..6),
            demands in prop::collection::vec(0u8..4, 0..6),
        ) {
            let found = assign(&demands, |kind, most| {
                (0..nodes.len()).filter(|node| nodes[*node].contains(kind)).take(most).collect()
            });
            let expected = possible(&nodes, &demands, &mut vec![false; nodes.len()]);
            prop_assert_eq!(found.is_ok(), expected);
            if let Err(short) = &found {
                let fitting = nodes.iter().filter(|labels| labels.iter().any(|label| short.kinds.contains(&label))).count();
                let wanted = demands.iter().filter(|kind| short.kinds.contains(kind)).count();
                prop_assert_eq!((short.wanted, short.found), (wanted, fitting));
                prop_assert!(fitting < wanted);
            }
            if let Ok(assigned) = found {
                let distinct: std::collections::BTreeSet<&usize> = assigned.iter().collect();
                prop_assert_eq!(distinct.len(), demands.len());
                for (node, demand) in assigned.iter().zip(&demands) {
                    prop_assert!(nodes[*node].contains(demand));
                }
            }
        }
    }
}
