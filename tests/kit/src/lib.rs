//! What this machine lets tests do, and the few system calls that they need for it. A test that needs an ability
//! begins with [`possible!`]: where the machine lacks it, the test says what was tried and what came of it.
//!
//! A package of its own, below all others, so that the tests of each of them can use it.

pub mod ability;
pub mod pace;
pub mod sys;

/// Returns from a test when an [`ability::Ability`] is missing, and prints what the probe saw.
#[macro_export]
macro_rules! possible {
    ($($ability:expr),+ $(,)?) => {
        $(if let Err(why) = $crate::ability::has($ability) {
            println!("not possible here: {:?}: {why}", $ability);
            return;
        })+
    };
}
