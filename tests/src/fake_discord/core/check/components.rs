//! Components of messages: rows of buttons, of the documentation's reference on components. Other components (selects,
//! modals, "Components V2") are not modelled and refused.

use super::super::error::FormErrors;
use super::{at, bounded, list};
use serde_json::Value;
use std::collections::BTreeSet;

const ROWS_MAX: usize = 5;
const BUTTONS_MAX: usize = 5;
const CUSTOM_ID_MAX: usize = 100;
const LABEL_MAX: usize = 80;

const ROW: u64 = 1;
const BUTTON: u64 = 2;

fn kind(component: &Value) -> u64 {
    component.get("type").and_then(Value::as_u64).unwrap_or(0)
}

/// Checks the components of a message.
pub fn of_message(rows: &[Value], errors: &mut FormErrors) {
    if rows.len() > ROWS_MAX {
        errors.too_long("components", ROWS_MAX);
    }
    let mut ids = BTreeSet::new();
    for (n, row) in rows.iter().enumerate() {
        let path = format!("components.{n}");
        if kind(row) != ROW {
            errors.choice(&at(&path, "type"), "(1,)");
            continue;
        }
        let inside = list(row, "components", &at(&path, "components"), errors).map_or(&[][..], Vec::as_slice);
        row_of_message(inside, &path, &mut ids, errors);
    }
}

fn row_of_message(inside: &[Value], path: &str, ids: &mut BTreeSet<String>, errors: &mut FormErrors) {
    let path = at(path, "components");
    if inside.is_empty() || inside.len() > BUTTONS_MAX {
        errors.length(&path, 1, BUTTONS_MAX);
    }
    for (n, component) in inside.iter().enumerate() {
        let path = format!("{path}.{n}");
        match kind(component) {
            BUTTON => button(component, &path, ids, errors),
            _ => errors.choice(&at(&path, "type"), "(2,)"),
        }
    }
}

fn custom_id(component: &Value, path: &str, ids: &mut BTreeSet<String>, errors: &mut FormErrors) {
    let found = bounded(component, "custom_id", path, (1, CUSTOM_ID_MAX), errors);
    if let Some(id) = found
        && !ids.insert(id.to_owned())
    {
        let message = "Component custom id cannot be duplicated";
        errors.add(&at(path, "custom_id"), "COMPONENT_CUSTOM_ID_DUPLICATED", message);
    }
}

fn button(component: &Value, path: &str, ids: &mut BTreeSet<String>, errors: &mut FormErrors) {
    let label = bounded(component, "label", path, (0, LABEL_MAX), errors);
    let emoji = component.get("emoji").filter(|emoji| !emoji.is_null());
    if label.is_none_or(str::is_empty) && emoji.is_none() {
        errors.add(path, "BUTTON_COMPONENT_INVALID", "A button must have a label or an emoji");
    }
    match component.get("style").and_then(Value::as_u64) {
        Some(1..=4) => {
            if component.get("url").is_some_and(|url| !url.is_null()) {
                let message = "A url is only for link buttons";
                errors.add(path, "BUTTON_COMPONENT_CUSTOM_ID_URL_MUTUALLY_EXCLUSIVE", message);
            }
            custom_id(component, path, ids, errors);
        }
        _ => errors.choice(&at(path, "style"), "(1, 2, 3, 4)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn mistakes(rows: &Value) -> Option<Value> {
        let mut errors = FormErrors::default();
        of_message(rows.as_array().map_or(&[][..], Vec::as_slice), &mut errors);
        errors.finish().err().and_then(|error| error.errors)
    }

    fn row(components: &Value) -> Value {
        json!([{"type": 1, "components": components}])
    }

    fn good(n: usize) -> Value {
        json!({"type": 2, "style": 1, "label": "yes", "custom_id": format!("id{n}")})
    }

    #[test]
    fn limits_of_message_components() {
        let with = |change: Value| {
            let mut button = good(1);
            if let (Some(members), Value::Object(change)) = (button.as_object_mut(), change) {
                members.extend(change);
            }
            row(&json!([button]))
        };
        assert_eq!(mistakes(&row(&json!([good(1), good(2)]))), None);
        let first = "/components/0/components/0";
        for (rows, path) in [
            (json!(vec![row(&json!([good(1)]))[0].clone(); 6]), "/components/_errors".to_owned()),
            (json!([good(1)]), "/components/0/type/_errors".to_owned()),
            (row(&json!([])), "/components/0/components/_errors".to_owned()),
            (row(&(0..6).map(good).collect()), "/components/0/components/_errors".to_owned()),
            (row(&json!([good(1), good(1)])), "/components/0/components/1/custom_id/_errors".to_owned()),
            (with(json!({"custom_id": ""})), format!("{first}/custom_id/_errors")),
            (with(json!({"custom_id": "x".repeat(101)})), format!("{first}/custom_id/_errors")),
            (with(json!({"label": "x".repeat(81)})), format!("{first}/label/_errors")),
            (with(json!({"label": null})), format!("{first}/_errors")),
            (with(json!({"style": 9})), format!("{first}/style/_errors")),
            (with(json!({"style": 5})), format!("{first}/style/_errors")),
            (with(json!({"url": "https://x"})), format!("{first}/_errors")),
            (with(json!({"type": 3})), format!("{first}/type/_errors")),
        ] {
            let found = mistakes(&rows).unwrap_or_else(|| panic!("accepted: {rows}"));
            assert!(found.pointer(&path).is_some(), "{found} has no {path}");
        }
    }
}
