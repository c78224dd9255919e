//! Chance of a process that lives one seed: whoever asks the kernel for random bytes gets those of the seed.
//!
//! Ids of our own come from `chance.rs`. What is left draws by itself: tokio chooses whom a `watch` wakes first, and the standard
//! library in which order a hash map is gone over. Both begin with bytes of the kernel, which this file takes the place of.

use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;

/// 0 for the kernel's own.
static STATE: AtomicU64 = AtomicU64::new(0);

/// From here on all threads of this process draw from this number. Only what one thread draws can be repeated.
pub fn seed(seed: u64) {
    STATE.store(seed.wrapping_mul(2).wrapping_add(1), Ordering::Relaxed);
}

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
fn draw() -> u64 {
    let mut z = STATE.fetch_add(0x9e37_79b9_7f4a_7c15 & !1, Ordering::Relaxed);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The function of the C library, in its place: the linker prefers those of the program.
///
/// # Safety
/// `buffer` must have room for `length` bytes.
#[unsafe(no_mangle)]
#[allow(unsafe_code)]
unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, flags: libc::c_uint) -> libc::ssize_t {
    if STATE.load(Ordering::Relaxed) == 0 {
        // SAFETY: the arguments are those of the system call, and come from who keeps its contract.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) } as libc::ssize_t;
    }
    // SAFETY: the caller says that there is room.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer, length) };
    bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&draw().to_le_bytes()[..chunk.len()]));
    length as libc::ssize_t
}
