//! The differences between two definitions of a job.

use std::collections::BTreeSet;

use milvaion_api::versions::{FieldChange, VersionDiff};
use serde_json::Value;

/// Maximum number of changes in one diff; [`VersionDiff::more`] is true if there are more.
const MAX_DIFF_CHANGES: usize = 200;
/// Maximum depth of comparison, in levels; deeper values are compared as a whole.
const MAX_DIFF_DEPTH: usize = 8;

/// Compares two definitions field by field. Lists are compared as a whole, because an element that moved would
/// otherwise look like a change of every element after it.
#[must_use]
pub fn diff(before: &Value, after: &Value) -> VersionDiff {
    let mut difference = VersionDiff::default();
    compare("", Some(before), Some(after), 0, &mut difference);
    difference
}

fn compare(field: &str, before: Option<&Value>, after: Option<&Value>, depth: usize, found: &mut VersionDiff) {
    if before == after || found.more {
        return;
    }
    if let (Some(Value::Object(before)), Some(Value::Object(after))) = (before, after)
        && depth < MAX_DIFF_DEPTH
    {
        let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        for name in names {
            let path = if field.is_empty() { name.clone() } else { format!("{field}.{name}") };
            compare(&path, before.get(name), after.get(name), depth + 1, found);
        }
        return;
    }
    if found.changes.len() == MAX_DIFF_CHANGES {
        found.more = true;
        return;
    }
    found.changes.push(FieldChange { field: field.to_owned(), before: before.cloned(), after: after.cloned() });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn changes(before: Value, after: Value) -> Vec<(String, Option<Value>, Option<Value>)> {
        diff(&before, &after).changes.into_iter().map(|change| (change.field, change.before, change.after)).collect()
    }

    #[test]
    fn each_changed_field_is_listed() {
        let before = json!({"a": 1, "same": [1], "rules": {"overlap": "skip", "jitter": 3}, "tags": ["x"]});
        let after = json!({"b": null, "same": [1], "rules": {"overlap": "queue", "jitter": 3}, "tags": ["x", "y"]});
        assert_eq!(
            changes(before, after),
            [
                ("a".to_owned(), Some(json!(1)), None),
                ("b".to_owned(), None, Some(json!(null))),
                ("rules.overlap".to_owned(), Some(json!("skip")), Some(json!("queue"))),
                ("tags".to_owned(), Some(json!(["x"])), Some(json!(["x", "y"]))),
            ]
        );
    }

    #[test]
    fn equal_definitions_have_no_changes() {
        let same = json!({"a": {"b": [1, {"c": null}]}});
        assert_eq!(diff(&same, &same.clone()), VersionDiff::default());
    }

    #[test]
    fn a_changed_value_type_is_one_change() {
        assert_eq!(
            changes(json!({"a": {"b": 1}}), json!({"a": 1})),
            [("a".into(), Some(json!({"b": 1})), Some(json!(1)))]
        );
    }

    #[test]
    fn change_count_and_depth_are_bounded() {
        let many: serde_json::Map<String, Value> =
            (0..MAX_DIFF_CHANGES + 1).map(|n| (n.to_string(), json!(n))).collect();
        let difference = diff(&json!({}), &Value::Object(many));
        assert_eq!((difference.changes.len(), difference.more), (MAX_DIFF_CHANGES, true));
        let deep = |end: i32| (0..50).fold(json!(end), |inner, _| json!({ "x": inner }));
        assert_eq!(diff(&deep(1), &deep(2)).changes[0].field, ["x"; MAX_DIFF_DEPTH].join("."));
    }
}
