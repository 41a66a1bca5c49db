//! Checks the invariants of design §6 on a gateway's database. They hold even after a crash.

use rusqlite::Connection;

/// The gateway's own list of invariants.
const INVARIANTS: &str = include_str!("../../gateway/store/src/invariants.sql");

/// Checks all invariants that can be verified from the database alone.
///
/// # Panics
/// When an invariant is violated; the message names it and the rows.
pub fn check(db: &Connection) {
    let mut checked = 0;
    for block in INVARIANTS.split("\n\n") {
        let Some((head, sql)) = block.trim().strip_prefix("-- I").and_then(|rest| rest.split_once('\n'))
        else {
            continue;
        };
        let broken = rows(db, sql);
        assert!(broken.is_empty(), "I{head}: {broken:#?}");
        checked += 1;
    }
    assert!(checked >= 16, "only {checked} invariants were checked");
}

fn rows(db: &Connection, sql: &str) -> Vec<String> {
    let mut statement = db.prepare(sql).unwrap_or_else(|e| panic!("{e}: {sql}"));
    let found =
        statement.query_map([], |row| row.get::<_, String>(0)).unwrap_or_else(|e| panic!("{e}: {sql}"));
    found.map(|row| row.unwrap_or_else(|e| panic!("{e}: {sql}"))).collect()
}
