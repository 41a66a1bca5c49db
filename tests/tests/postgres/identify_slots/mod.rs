//! Identify slots of cells for sessions of one Discord application.

mod foreign;
