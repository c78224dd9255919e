//! Random number generator for unique ids. In a simulation, the ids follow from its seed.

use std::cell::RefCell;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use uuid::{Builder, Uuid};

thread_local! {
    static SEEDED_RNG: RefCell<Option<StdRng>> = const { RefCell::new(None) };
}

/// A random UUID (version 4).
pub fn uuid() -> Uuid {
    SEEDED_RNG.with_borrow_mut(|seeded| match seeded {
        Some(rng) => Builder::from_random_bytes(rng.r#gen()).into_uuid(),
        None => Uuid::new_v4(),
    })
}

/// Seeds the generator of this thread, which determines all later ids.
pub fn seed(seed: u64) {
    SEEDED_RNG.set(Some(StdRng::seed_from_u64(seed)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_follow_from_the_seed() {
        let unseeded = [uuid(), uuid()];
        assert_ne!(unseeded[0], unseeded[1]);
        let generate = |number| {
            seed(number);
            [uuid(), uuid()]
        };
        assert_eq!(generate(7), generate(7));
        assert_ne!(generate(7), generate(8));
        assert!(generate(7).iter().all(|id| id.get_version_num() == 4));
    }
}
