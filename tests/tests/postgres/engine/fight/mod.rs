//! Ownership of a cell: see [`foreign`].

mod foreign;
