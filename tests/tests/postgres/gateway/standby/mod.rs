//! Gateways that stand by for a cell.

mod foreign;
