//! The one place that draws lots: ids that nobody else has. A simulation draws them from its seed.

use std::cell::RefCell;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use uuid::{Builder, Uuid};

thread_local! {
    static SEEDED: RefCell<Option<StdRng>> = const { RefCell::new(None) };
}

/// A random UUID (version 4).
pub fn uuid() -> Uuid {
    SEEDED.with_borrow_mut(|seeded| match seeded {
        Some(dice) => Builder::from_random_bytes(dice.r#gen()).into_uuid(),
        None => Uuid::new_v4(),
    })
}

/// From here on everything that this thread draws follows from this number.
pub fn seed(seed: u64) {
    SEEDED.set(Some(StdRng::seed_from_u64(seed)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_follows_from_the_seed() {
        let unseeded = [uuid(), uuid()];
        assert_ne!(unseeded[0], unseeded[1]);
        let draw = |number| {
            seed(number);
            [uuid(), uuid()]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(draw(7).iter().all(|id| id.get_version_num() == 4));
    }
}
