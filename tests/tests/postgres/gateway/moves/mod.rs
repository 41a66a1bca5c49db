//! Moves of a control plane between a file and a cell.

mod foreign;
