//! The names of statements in metrics and traces.
//!
//! A name is made from the text of the statement, so that none of two hundred statements has to be named by hand and none
//! can have a wrong name: the verb and the table that it changes, or else the first table that it reads. A long statement
//! with a file of its own names itself in its first line, as in `-- finish_runs: Ends occurrences …`.

/// The most characters of a name.
const MAX_NAME_CHARS: usize = 60;

/// Returns the name of a statement, as in `insert runs`.
pub(super) fn statement_name(sql: &str) -> String {
    let mut name = own_name(sql).map_or_else(|| described(sql), str::to_owned);
    name.truncate(name.char_indices().nth(MAX_NAME_CHARS).map_or(name.len(), |(end, _)| end));
    name
}

/// Returns the name in the first line.
fn own_name(sql: &str) -> Option<&str> {
    let (name, _) = sql.strip_prefix("-- ")?.lines().next()?.split_once(':')?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    is_name.then_some(name)
}

/// Returns the verb and the table of a statement.
fn described(sql: &str) -> String {
    let words = words(sql);
    let word = |at: usize| words.get(at).copied().unwrap_or_default();
    let is = |at: usize, keyword: &str| word(at).eq_ignore_ascii_case(keyword);
    let table = |at: usize| Some(word(at)).filter(|word| is_identifier(word));
    let mut common: Vec<&str> = Vec::new();
    let mut read = None;
    for at in 0..words.len() {
        let before = at.wrapping_sub(1);
        let changed = if is(at, "INSERT") && is(at + 1, "INTO") {
            table(at + 2).map(|table| ("insert", table))
        } else if is(at, "DELETE") && is(at + 1, "FROM") {
            table(at + 2).map(|table| ("delete", table))
        } else if is(at, "UPDATE") && !is(at + 1, "SET") && !is(before, "FOR") && !is(before, "KEY") {
            // Neither a lock nor an upsert.
            table(at + 1).map(|table| ("update", table))
        } else {
            None
        };
        if let Some((verb, table)) = changed {
            return format!("{verb} {}", table.to_ascii_lowercase());
        }
        let is_common = is(at + 2, "(") || (is(at + 2, "MATERIALIZED") && is(at + 3, "("));
        if is(at + 1, "AS") && is_common {
            common.push(word(at));
        } else if read.is_none() && (is(at, "FROM") || is(at, "JOIN")) && !is(at + 1, "LATERAL") && !is(at + 2, "(") {
            // Neither a subquery, nor a function, nor a part of the same statement.
            read = table(at + 1).filter(|table| !common.contains(table));
        }
    }
    match read {
        Some(table) => format!("select {}", table.to_ascii_lowercase()),
        None => words.first().map_or_else(|| "empty".to_owned(), |word| word.to_ascii_lowercase()),
    }
}

fn is_identifier(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
}

/// Splits a statement into words and parentheses, without comments and texts.
fn words(sql: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = sql;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("--") {
            rest.find('\n').unwrap_or(rest.len())
        } else if first == '\'' {
            rest[1..].find('\'').map_or(rest.len(), |end| end + 2)
        } else if first.is_ascii_alphanumeric() || first == '_' {
            let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            words.push(&rest[..length]);
            length
        } else {
            if first == '(' {
                words.push(&rest[..1]);
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statement_is_named_by_what_it_changes_or_reads() {
        for (sql, expected) in [
            ("SELECT id FROM jobs WHERE id = $1 FOR NO KEY UPDATE", "select jobs"),
            (
                "select min(e.at) FROM (VALUES (5)) AS p (priority) CROSS JOIN LATERAL (SELECT at FROM job_due) e",
                "select job_due",
            ),
            ("WITH r AS (SELECT * FROM unnest($1::uuid[])) SELECT * FROM r JOIN runs o ON o.id = r.id", "select runs"),
            (
                "WITH taken AS (DELETE FROM stats_deltas RETURNING *) INSERT INTO stats_folded SELECT * FROM taken",
                "delete stats_deltas",
            ),
            ("INSERT INTO workers (id) VALUES ($1) ON CONFLICT (id) DO UPDATE SET id = excluded.id", "insert workers"),
            ("UPDATE runs SET note = 'FROM x -- y' WHERE id = $1", "update runs"),
            ("-- create_runs: Creates occurrences.\nWITH w AS (SELECT 1) SELECT * FROM w", "create_runs"),
            ("-- Why: a comment.\nSELECT 1 FROM leases", "select leases"),
            ("SELECT pg_is_in_recovery()", "select"),
            ("COMMIT", "commit"),
            ("", "empty"),
        ] {
            assert_eq!(statement_name(sql), expected, "{sql}");
        }
    }

    #[test]
    fn name_is_bounded() {
        assert!(statement_name(&format!("SELECT * FROM {}", "x".repeat(500))).len() <= MAX_NAME_CHARS);
    }
}
