//! Translation of the store's SQL, which is written for SQLite, to PostgreSQL. What the two spell alike stays; functions
//! that PostgreSQL lacks are in the schema.

/// Statement for PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Translated {
    /// Text with `$1`, `$2` and so on.
    pub sql: String,
    /// Names of named parameters, in the order of their numbers.
    pub names: Vec<String>,
}

/// Translates a statement: numbers parameters, and removes hints for SQLite's planner.
pub(super) fn translate(sql: &str) -> Translated {
    let mut out = Translated { sql: String::with_capacity(sql.len()), names: Vec::new() };
    let mut rest = sql;
    while let Some(next) = rest.chars().next() {
        let word = rest.len() - rest.trim_start_matches(is_word).len();
        if next == '\'' || next == '"' {
            let end = rest.get(1..).and_then(|text| text.find(next)).map_or(rest.len(), |end| end + 2);
            rest = take(rest, end, &mut out.sql);
        } else if word > 0 {
            rest = translate_word(rest, word, &mut out.sql);
        } else if next == '?' {
            out.sql.push('$');
            rest = rest.get(1..).unwrap_or_default();
        } else if next == ':' && !rest.starts_with("::") {
            let name = rest.get(1..).unwrap_or_default();
            let end = 1 + name.len() - name.trim_start_matches(is_word).len();
            let name = rest.get(..end).unwrap_or_default();
            let known = out.names.iter().position(|known| known == name);
            let index = known.unwrap_or(out.names.len());
            if known.is_none() {
                out.names.push(name.to_owned());
            }
            out.sql.push_str(&format!("${}", index + 1));
            rest = rest.get(end..).unwrap_or_default();
        } else {
            let end = if rest.starts_with("::") { 2 } else { next.len_utf8() };
            rest = take(rest, end, &mut out.sql);
        }
    }
    out
}

const fn is_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// Copies `end` bytes of `rest`. Returns the text after them.
fn take<'a>(rest: &'a str, end: usize, out: &mut String) -> &'a str {
    out.push_str(rest.get(..end).unwrap_or(rest));
    rest.get(end..).unwrap_or_default()
}

/// Copies the word of `length` bytes at the begin of `rest`, without a hint that begins with it.
fn translate_word<'a>(rest: &'a str, length: usize, out: &mut String) -> &'a str {
    if let Some(after) = rest.strip_prefix("INDEXED BY ") {
        return after.trim_start_matches(is_word);
    }
    if let Some(after) = rest.strip_prefix("CROSS JOIN") {
        out.push_str("JOIN");
        return after;
    }
    if rest.get(..length) == Some("rowid") {
        // The order of insertion, where a table has it as a column.
        out.push_str("ord");
        return rest.get(length..).unwrap_or_default();
    }
    take(rest, length, out)
}

/// Repeats the only row of an INSERT's VALUES, with numbers that go on: `rows` rows of `columns` parameters.
pub(super) fn repeat_row(sql: &str, columns: usize, rows: usize) -> String {
    let head = sql.find("VALUES").and_then(|at| sql.get(..at)).unwrap_or(sql);
    let row = |row: usize| {
        let numbers: Vec<String> =
            (1..=columns).map(|column| format!("${}", row * columns + column)).collect();
        format!("({})", numbers.join(", "))
    };
    format!("{head}VALUES {}", (0..rows).map(row).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_numbered_and_hints_removed() {
        for (sql, want, names) in [
            ("SELECT a FROM t WHERE b = ?1 AND c = ?12", "SELECT a FROM t WHERE b = $1 AND c = $12", &[][..]),
            ("VALUES (:a, :b, :a)", "VALUES ($1, $2, $1)", &[":a", ":b"]),
            ("SELECT ':a ?1', \"?\", x::text", "SELECT ':a ?1', \"?\", x::text", &[]),
            ("SELECT ':' || ?1", "SELECT ':' || $1", &[]),
            ("FROM t AS a INDEXED BY t_x CROSS JOIN u ON 1", "FROM t AS a  JOIN u ON 1", &[]),
            ("SELECT a FROM t ORDER BY rowid DESC", "SELECT a FROM t ORDER BY ord DESC", &[]),
            ("SELECT '✓' -- ?", "SELECT '✓' -- $", &[]),
        ] {
            let got = translate(sql);
            assert_eq!(
                (got.sql.as_str(), got.names.iter().map(String::as_str).collect::<Vec<_>>()),
                (want, names.to_vec())
            );
        }
    }

    #[test]
    fn rows_of_an_insert_are_repeated() {
        let sql = repeat_row("INSERT INTO t (a, b) VALUES (?1, ?2)", 2, 3);
        assert_eq!(sql, "INSERT INTO t (a, b) VALUES ($1, $2), ($3, $4), ($5, $6)");
    }
}
