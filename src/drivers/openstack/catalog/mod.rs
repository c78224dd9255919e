//! State of one cloud that is kept between jobs: flavors, images, networks, and the timings of its API.

pub(crate) mod catalog;
pub(crate) mod shared;
pub(crate) mod timings;
