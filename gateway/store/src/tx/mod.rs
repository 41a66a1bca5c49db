//! Transactions over several tables.

pub mod claim;
pub mod commit;
pub mod spawn;
