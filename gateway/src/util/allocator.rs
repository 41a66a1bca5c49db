//! Settings of the allocator. glibc raises its `mmap` threshold to the largest block that was freed, up to 32
//! MiB, and keeps smaller blocks in per-thread arenas: after one long line of an agent, a process would stay
//! at its peak size. With a fixed threshold, large blocks return to the system when they are freed. The batches of
//! rows of a busy session stay below the thresholds: their pages stay mapped.

#![expect(unsafe_code, reason = "no safe wrapper of mallopt is in the tree")]

#[cfg(target_env = "gnu")]
use nix::libc;

/// Minimum size of a block with a separate mapping, in bytes.
#[cfg(target_env = "gnu")]
const MMAP_THRESHOLD: libc::c_int = 1024 * 1024;
/// Free memory at the top of the heap above which memory is returned to the system, in bytes.
#[cfg(target_env = "gnu")]
const TRIM_THRESHOLD: libc::c_int = 2 * 1024 * 1024;
/// Maximum number of arenas of all threads together.
#[cfg(target_env = "gnu")]
const ARENAS_MAX: libc::c_int = 2;

/// Makes the allocator return memory to the system. Call it once, before other threads exist.
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
