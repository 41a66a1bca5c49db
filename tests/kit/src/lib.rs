//! Probes of the machine's abilities, and system calls for tests. A test begins with [`skip_unless!`] if it needs an
//! ability.
//!
//! A package without dependencies on the others, usable by the tests of all packages.

pub mod ability;
pub mod certificates;
pub mod disk_fault;
pub mod network;
pub mod pace;
pub mod postgres;
pub mod processes;
pub mod sys;

/// Prints the result of the probe and returns from a test if an [`ability::Ability`] is missing.
#[macro_export]
macro_rules! skip_unless {
    ($($ability:expr),+ $(,)?) => {
        $(if let Err(why) = $crate::ability::has($ability) {
            println!("skipped: {:?}: {why}", $ability);
            return;
        })+
    };
}
