//! A schema as text, one line for each thing in it, the same from both engines.

use acp_store::db::Db;
use acp_testkit::postgres::Postgres;
use std::collections::BTreeSet;

/// Columns in their order, with type, null, default and whether they are generated. A primary key is never null.
const COLUMNS_OF_SQLITE: &str = "SELECT 'column ' || t.name || ' ' || c.cid || ' ' || c.name || ' ' ||
    CASE c.type WHEN 'INTEGER' THEN 'bigint' WHEN 'BLOB' THEN 'bytea' ELSE 'text' END ||
    CASE WHEN c.\"notnull\" OR c.pk > 0 THEN ' not null' ELSE '' END || coalesce(' default ' || c.dflt_value, '') ||
    CASE c.hidden WHEN 0 THEN '' ELSE ' generated' END
    FROM sqlite_master AS t, pragma_table_xinfo(t.name) AS c WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%'";
const COLUMNS_OF_POSTGRES: &str = "SELECT 'column ' || t.relname || ' ' || a.attnum - 1 || ' ' || a.attname || ' ' ||
    format_type(a.atttypid, NULL) || CASE WHEN a.attcollation NOT IN (0, 'pg_catalog.\"C\"'::regcollation) THEN ' collated'
    ELSE '' END || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END || CASE a.attgenerated WHEN '' THEN
    coalesce(' default ' || replace(pg_get_expr(d.adbin, d.adrelid), '::text', ''), '') ELSE ' generated' END
    FROM pg_class AS t JOIN pg_attribute AS a ON a.attrelid = t.oid LEFT JOIN pg_attrdef AS d ON d.adrelid = t.oid
    AND d.adnum = a.attnum WHERE t.relkind = 'r' AND a.attnum > 0 AND t.relnamespace = current_schema()::regnamespace";

/// Indexes with their columns; those of keys without a name. A rowid has none in SQLite.
const INDEXES_OF_SQLITE: &str = "SELECT CASE i.origin WHEN 'c' THEN 'index ' || i.name ELSE 'key' END || ' on ' || t.name ||
    ' ' || (SELECT group_concat(c.name, ',') FROM (SELECT name FROM pragma_index_info(i.name) ORDER BY seqno) AS c) ||
    CASE WHEN i.\"unique\" THEN ' unique' ELSE '' END || CASE WHEN i.partial THEN ' partial' ELSE '' END
    FROM sqlite_master AS t, pragma_index_list(t.name) AS i WHERE t.type = 'table'";
const INDEXES_OF_POSTGRES: &str = "SELECT CASE WHEN k.oid IS NULL THEN 'index ' || n.relname ELSE 'key' END || ' on ' ||
    t.relname || ' ' || (SELECT string_agg(a.attname, ',' ORDER BY c.no) FROM unnest(i.indkey) WITH ORDINALITY AS c (num, no)
    JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum = c.num) || CASE WHEN i.indisunique THEN ' unique' ELSE '' END ||
    CASE WHEN i.indpred IS NULL THEN '' ELSE ' partial' END
    FROM pg_index AS i JOIN pg_class AS t ON t.oid = i.indrelid JOIN pg_class AS n ON n.oid = i.indexrelid
    LEFT JOIN pg_constraint AS k ON k.conindid = i.indexrelid AND k.conrelid = t.oid AND k.contype IN ('p', 'u')
    WHERE t.relnamespace = current_schema()::regnamespace AND NOT EXISTS (SELECT 1 FROM pg_attribute AS a
    WHERE a.attrelid = t.oid AND a.attnum = i.indkey[0] AND a.attidentity <> '')";

/// Foreign keys: PostgreSQL has none on the journal.
const KEYS_OF_SQLITE: &str =
    "SELECT 'foreign key ' || t.name || '.' || k.\"from\" || ' ' || k.\"table\" || '.' || k.\"to\" ||
    ' ' || k.on_delete FROM sqlite_master AS t, pragma_foreign_key_list(t.name) AS k
    WHERE t.type = 'table' AND t.name <> 'acp_events'";
const KEYS_OF_POSTGRES: &str = "SELECT 'foreign key ' || k.conrelid::regclass || '.' || a.attname || ' ' ||
    k.confrelid::regclass || '.' || b.attname || CASE k.confdeltype WHEN 'c' THEN ' CASCADE' ELSE ' NO ACTION' END
    FROM pg_constraint AS k JOIN pg_attribute AS a ON a.attrelid = k.conrelid AND a.attnum = k.conkey[1]
    JOIN pg_attribute AS b ON b.attrelid = k.confrelid AND b.attnum = k.confkey[1]
    WHERE k.contype = 'f' AND k.connamespace = current_schema()::regnamespace";

const TRIGGERS_OF_SQLITE: &str =
    "SELECT 'trigger ' || name || ' on ' || tbl_name FROM sqlite_master WHERE type = 'trigger'";
const TRIGGERS_OF_POSTGRES: &str = "SELECT 'trigger ' || g.tgname || ' on ' || t.relname FROM pg_trigger AS g
    JOIN pg_class AS t ON t.oid = g.tgrelid WHERE NOT g.tgisinternal AND t.relnamespace = current_schema()::regnamespace";

/// Definitions that hold the words of the checks.
const CHECKS_OF_SQLITE: &str =
    "SELECT name || ' ' || replace(sql, char(10), ' ') FROM sqlite_master WHERE type = 'table'";
const CHECKS_OF_POSTGRES: &str = "SELECT t.relname || ' ' || pg_get_constraintdef(k.oid) FROM pg_constraint AS k
    JOIN pg_class AS t ON t.oid = k.conrelid WHERE k.contype = 'c' AND k.connamespace = current_schema()::regnamespace";

/// Lines for the words of checks in definitions, and for the number of checks of each table.
fn checks(definitions: &[String]) -> impl Iterator<Item = String> {
    let mut found = BTreeSet::new();
    let mut numbers = std::collections::BTreeMap::<&str, usize>::new();
    for (table, text) in definitions.iter().filter_map(|line| line.split_once(' ')) {
        *numbers.entry(table).or_default() += text.matches("CHECK (").count();
        let words = text.split('\'').skip(1).step_by(2);
        let words = words.filter(|word| word.starts_with(|first: char| first.is_ascii_lowercase()));
        found.extend(words.map(|word| format!("word of {table}: {word}")));
    }
    let numbers = numbers.into_iter().filter(|(_, number)| *number > 0);
    found.extend(numbers.map(|(table, number)| format!("checks of {table}: {number}")));
    found.into_iter()
}

/// Lines of a database of SQLite.
pub fn of_sqlite(db: &Db) -> BTreeSet<String> {
    let all = |sql: &str| db.all(sql, &[], |row| row.only::<String>()).unwrap();
    let parts = [COLUMNS_OF_SQLITE, INDEXES_OF_SQLITE, KEYS_OF_SQLITE, TRIGGERS_OF_SQLITE];
    parts.iter().flat_map(|sql| all(sql)).chain(checks(&all(CHECKS_OF_SQLITE))).collect()
}

/// Lines of the schema at an address of a server.
pub fn of_postgres(server: &Postgres, address: &str) -> BTreeSet<String> {
    let all = |sql: &str| -> Vec<String> {
        server.query(address, sql).unwrap().lines().map(str::to_owned).collect()
    };
    let parts = [COLUMNS_OF_POSTGRES, INDEXES_OF_POSTGRES, KEYS_OF_POSTGRES, TRIGGERS_OF_POSTGRES];
    parts.iter().flat_map(|sql| all(sql)).chain(checks(&all(CHECKS_OF_POSTGRES))).collect()
}
