//! Components of messages: rows of buttons, and of modals: rows with a text input, of the documentation's reference on
//! components. Other components (selects, labels, "Components V2") are not modelled and refused.

use super::super::error::FormErrors;
use super::{at, bounded, list};
use serde_json::Value;
use std::collections::BTreeSet;

const ROWS_MAX: usize = 5;
const BUTTONS_MAX: usize = 5;
const CUSTOM_ID_MAX: usize = 100;
const LABEL_MAX: usize = 80;
const MODAL_LABEL_MAX: usize = 45;
const PLACEHOLDER_MAX: usize = 100;
const VALUE_MAX: usize = 4_000;

const ROW: u64 = 1;
const BUTTON: u64 = 2;
const TEXT_INPUT: u64 = 4;

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

/// Checks the data of a modal.
pub fn of_modal(data: &Value, errors: &mut FormErrors) {
    let mut ids = BTreeSet::new();
    custom_id(data, "", &mut BTreeSet::new(), errors);
    bounded(data, "title", "", (1, MODAL_LABEL_MAX), errors);
    let rows = list(data, "components", "components", errors).map_or(&[][..], Vec::as_slice);
    if rows.is_empty() || rows.len() > ROWS_MAX {
        errors.length("components", 1, ROWS_MAX);
    }
    for (n, row) in rows.iter().enumerate() {
        let path = format!("components.{n}");
        let inside = list(row, "components", &at(&path, "components"), errors).map_or(&[][..], Vec::as_slice);
        match inside {
            [input] if kind(row) == ROW && kind(input) == TEXT_INPUT => {
                text_input(input, &format!("{path}.components.0"), &mut ids, errors);
            }
            _ => errors.choice(&at(&path, "type"), "(1,)"),
        }
    }
}

fn text_input(input: &Value, path: &str, ids: &mut BTreeSet<String>, errors: &mut FormErrors) {
    custom_id(input, path, ids, errors);
    bounded(input, "label", path, (1, MODAL_LABEL_MAX), errors);
    bounded(input, "placeholder", path, (0, PLACEHOLDER_MAX), errors);
    bounded(input, "value", path, (0, VALUE_MAX), errors);
    if !matches!(input.get("style").and_then(Value::as_u64), Some(1 | 2)) {
        errors.choice(&at(path, "style"), "(1, 2)");
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
    fn limits_of_modals() {
        let modal = |change: Value| {
            let mut input = json!({"type": 4, "custom_id": "0", "label": "Name", "style": 1});
            if let (Some(members), Value::Object(change)) = (input.as_object_mut(), change) {
                members.extend(change);
            }
            json!({"custom_id": "x", "title": "Who?", "components": [{"type": 1, "components": [input]}]})
        };
        let mistakes = |data: &Value| {
            let mut errors = FormErrors::default();
            of_modal(data, &mut errors);
            errors.finish().err().and_then(|error| error.errors)
        };
        assert_eq!(mistakes(&modal(json!({}))), None);
        let input = "/components/0/components/0";
        for (change, path) in [
            (json!({"label": "x".repeat(46)}), format!("{input}/label/_errors")),
            (json!({"label": null}), format!("{input}/label/_errors")),
            (json!({"placeholder": "x".repeat(101)}), format!("{input}/placeholder/_errors")),
            (json!({"value": "x".repeat(4_001)}), format!("{input}/value/_errors")),
            (json!({"style": 3}), format!("{input}/style/_errors")),
            (json!({"custom_id": ""}), format!("{input}/custom_id/_errors")),
            (json!({"type": 3}), "/components/0/type/_errors".to_owned()),
        ] {
            let found = mistakes(&modal(change.clone())).unwrap_or_else(|| panic!("accepted: {change}"));
            assert!(found.pointer(&path).is_some(), "{found} has no {path}");
        }
        assert!(mistakes(&json!({"custom_id": "x", "title": "x", "components": []})).is_some());
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
