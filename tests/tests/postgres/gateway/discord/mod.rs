//! Discord at gateways with one cell.

mod foreign;
