//! The page of the manual about more than one machine.

mod foreign;
