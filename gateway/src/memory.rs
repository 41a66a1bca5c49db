//! The allocator's settings. glibc raises its threshold for `mmap` to the largest block that was freed, up to 32 MiB, and
//! keeps what lies below that in one arena for each thread: after one long line of an agent a process stays as large
//! as it ever was. With a fixed threshold, large blocks go back to the system when they are freed.

#![expect(unsafe_code, reason = "no safe wrapper of mallopt is in the tree")]

#[cfg(target_env = "gnu")]
use nix::libc;

/// Blocks from this size on are mappings of their own, in bytes.
#[cfg(target_env = "gnu")]
const MMAP_THRESHOLD: libc::c_int = 128 * 1024;
/// Free memory at the top of the heap beyond this is given back, in bytes.
#[cfg(target_env = "gnu")]
const TRIM_THRESHOLD: libc::c_int = 256 * 1024;
/// Arenas of all threads together.
#[cfg(target_env = "gnu")]
const ARENAS_MAX: libc::c_int = 2;

/// Has the allocator give memory back. Called once, before there are other threads.
#[cfg(target_env = "gnu")]
pub(crate) fn configure_allocator() {
    for (name, value) in [
        (libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD),
        (libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD),
        (libc::M_ARENA_MAX, ARENAS_MAX),
    ] {
        // SAFETY: mallopt takes two numbers and has no precondition; glibc takes its own lock.
        let _ = unsafe { libc::mallopt(name, value) };
    }
}

/// Other C libraries have no such settings.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn configure_allocator() {}
