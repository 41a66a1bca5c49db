//! Turns of cells to identify sessions of one Discord application.

mod foreign;
