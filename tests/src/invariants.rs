//! Invariants of design §6 over a gateway's database, whatever happened to the gateway before.

use rusqlite::Connection;

/// The one list, which is the gateway's own.
const INVARIANTS: &str = include_str!("../../gateway/store/src/invariants.sql");

/// Checks everything that the database alone can show.
///
/// # Panics
/// With the name of the invariant and the rows that break it.
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
    assert!(checked >= 16, "only {checked} rules were read");
}

fn rows(db: &Connection, sql: &str) -> Vec<String> {
    let mut statement = db.prepare(sql).unwrap_or_else(|e| panic!("{e}: {sql}"));
    let found =
        statement.query_map([], |row| row.get::<_, String>(0)).unwrap_or_else(|e| panic!("{e}: {sql}"));
    found.map(|row| row.unwrap_or_else(|e| panic!("{e}: {sql}"))).collect()
}
