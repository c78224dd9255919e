//! Seeded random numbers of a process: `getrandom` returns bytes that are derived from the seed instead of those of the
//! kernel.
//!
//! The product's ids are drawn by `nodepool-rng`. tokio draws which task a `watch` wakes first, and the standard
//! library draws the iteration order of hash maps. Both are seeded with bytes of `getrandom`, which this file replaces.

use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;

/// State of the generator; 0 means `getrandom` of the kernel.
static STATE: AtomicU64 = AtomicU64::new(0);

/// Seeds the draws of all threads of this process. The draws are reproducible only within one thread.
pub fn seed(seed: u64) {
    STATE.store(seed.wrapping_mul(2).wrapping_add(1), Ordering::Relaxed);
}

/// Draws the next number, by SplitMix64.
fn draw() -> u64 {
    let mut z = STATE.fetch_add(0x9e37_79b9_7f4a_7c15 & !1, Ordering::Relaxed);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Replaces the function of the C library: the linker prefers symbols of the program.
///
/// # Safety
/// `buffer` must have room for `length` bytes.
#[unsafe(no_mangle)]
#[allow(unsafe_code)]
unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, flags: libc::c_uint) -> libc::ssize_t {
    if STATE.load(Ordering::Relaxed) == 0 {
        // SAFETY: the arguments are those of the system call, and the caller keeps its contract.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) } as libc::ssize_t;
    }
    // SAFETY: the caller guarantees that `buffer` has room for `length` bytes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer, length) };
    bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&draw().to_le_bytes()[..chunk.len()]));
    length as libc::ssize_t
}
