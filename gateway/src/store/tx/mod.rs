//! The transactions that touch several tables, all or nothing.

pub(crate) mod claim;
pub(crate) mod commit;
pub(crate) mod spawn;
