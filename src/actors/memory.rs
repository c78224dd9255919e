//! How the C library hands out memory: sparingly, because a launcher computes little and keeps much.

/// One pool of memory for all threads, to be chosen before any of them is started. Left to itself glibc gives each
/// thread a pool of its own, and what a thread frees there, such as the text and tree of a large file, serves no other:
/// with 10,000 hosts in the configuration that is a third of the process. The threads rarely meet at the one pool; the
/// benchmarks show no difference. Other C libraries are left as they are.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
pub fn share_one_pool() {
    use nix::libc::{M_ARENA_MAX, mallopt};
    // SAFETY: this sets a number that the allocator reads; where it is not known, nothing happens.
    unsafe { mallopt(M_ARENA_MAX, 1) };
}

#[cfg(not(target_env = "gnu"))]
pub fn share_one_pool() {}
