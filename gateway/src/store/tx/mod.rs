//! Transactions over several tables.

pub(crate) mod claim;
pub(crate) mod commit;
pub(crate) mod spawn;
