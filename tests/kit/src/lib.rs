//! Probes of this machine's abilities, and the few system calls that tests need. A test that needs an ability
//! begins with [`possible!`]: if the machine lacks it, the test prints the attempt and its result.
//!
//! A separate package without dependencies on the others, so that the tests of all packages can use it.

pub mod ability;
pub mod disk_fault;
pub mod pace;
pub mod processes;
pub mod sys;

/// Returns from a test when an [`ability::Ability`] is missing, and prints the result of the probe.
#[macro_export]
macro_rules! possible {
    ($($ability:expr),+ $(,)?) => {
        $(if let Err(why) = $crate::ability::has($ability) {
            println!("not possible here: {:?}: {why}", $ability);
            return;
        })+
    };
}
