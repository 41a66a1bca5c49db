//! Components of messages and modals: rows of buttons, selects and text inputs, of the documentation's reference on
//! components. The newer layout components ("Components V2") are not modelled and refused.

use super::super::error::FormErrors;
use super::{at, bounded, chars, list, text};
use serde_json::Value;
use std::collections::BTreeSet;

const ROWS_MAX: usize = 5;
const BUTTONS_MAX: usize = 5;
const CUSTOM_ID_MAX: usize = 100;
const LABEL_MAX: usize = 80;
const URL_MAX: usize = 512;
const OPTIONS_MAX: usize = 25;
const OPTION_TEXT_MAX: usize = 100;
const PLACEHOLDER_MAX: usize = 150;
const INPUT_LABEL_MAX: usize = 45;
const INPUT_TEXT_MAX: u64 = 4000;

const ROW: u64 = 1;
const BUTTON: u64 = 2;
const STRING_SELECT: u64 = 3;
const TEXT_INPUT: u64 = 4;
const LABEL: u64 = 18;

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
    let selects = inside.iter().filter(|component| matches!(kind(component), 3 | 5..=8)).count();
    if selects > 0 && inside.len() > 1 {
        errors.add(
            &path,
            "COMPONENT_LAYOUT_WIDTH_EXCEEDED",
            "The specified component exceeds the maximum width",
        );
    }
    for (n, component) in inside.iter().enumerate() {
        let path = format!("{path}.{n}");
        match kind(component) {
            BUTTON => button(component, &path, ids, errors),
            STRING_SELECT | 5..=8 => select(component, &path, ids, errors),
            _ => errors.choice(&at(&path, "type"), "(2, 3, 5, 6, 7, 8)"),
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
        Some(5) => {
            if component.get("custom_id").is_some_and(|id| !id.is_null()) {
                let message = "A custom id and url cannot both be specified";
                errors.add(path, "BUTTON_COMPONENT_CUSTOM_ID_URL_MUTUALLY_EXCLUSIVE", message);
            }
            bounded(component, "url", path, (1, URL_MAX), errors);
        }
        _ => errors.choice(&at(path, "style"), "(1, 2, 3, 4, 5)"),
    }
}

fn select(component: &Value, path: &str, ids: &mut BTreeSet<String>, errors: &mut FormErrors) {
    custom_id(component, path, ids, errors);
    bounded(component, "placeholder", path, (0, PLACEHOLDER_MAX), errors);
    for (key, least) in [("min_values", 0), ("max_values", 1)] {
        let number = component.get(key).filter(|number| !number.is_null());
        if number.is_some_and(|number| !number.as_u64().is_some_and(|number| (least..=25).contains(&number)))
        {
            errors.add(&at(path, key), "NUMBER_TYPE_MAX", "int value should be less than or equal to 25.");
        }
    }
    if kind(component) != STRING_SELECT {
        return;
    }
    let path = at(path, "options");
    let options = list(component, "options", &path, errors).map_or(&[][..], Vec::as_slice);
    if options.is_empty() || options.len() > OPTIONS_MAX {
        errors.length(&path, 1, OPTIONS_MAX);
    }
    let mut values = BTreeSet::new();
    for (n, option) in options.iter().enumerate() {
        let path = format!("{path}.{n}");
        bounded(option, "label", &path, (1, OPTION_TEXT_MAX), errors);
        bounded(option, "description", &path, (0, OPTION_TEXT_MAX), errors);
        let value = bounded(option, "value", &path, (1, OPTION_TEXT_MAX), errors);
        if value.is_some_and(|value| !values.insert(value)) {
            let message = "The specified option value is already used";
            errors.add(&at(&path, "value"), "SELECT_COMPONENT_OPTION_VALUE_DUPLICATED", message);
        }
    }
}

/// Checks a modal: title, custom id, one to five rows or labels with one text input each.
pub fn of_modal(modal: &Value, errors: &mut FormErrors) {
    bounded(modal, "custom_id", "data", (1, CUSTOM_ID_MAX), errors);
    bounded(modal, "title", "data", (1, INPUT_LABEL_MAX), errors);
    let rows = list(modal, "components", "data.components", errors).map_or(&[][..], Vec::as_slice);
    if rows.is_empty() || rows.len() > ROWS_MAX {
        errors.length("data.components", 1, ROWS_MAX);
    }
    let mut ids = BTreeSet::new();
    for (n, row) in rows.iter().enumerate() {
        let path = format!("data.components.{n}");
        match kind(row) {
            ROW => {
                let inside = row.get("components").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let [input] = inside else {
                    errors.length(&at(&path, "components"), 1, 1);
                    continue;
                };
                let path = format!("{path}.components.0");
                bounded(input, "label", &path, (1, INPUT_LABEL_MAX), errors);
                text_input(input, &path, &mut ids, errors);
            }
            LABEL => {
                bounded(row, "label", &path, (1, INPUT_LABEL_MAX), errors);
                let input = row.get("component").unwrap_or(&Value::Null);
                text_input(input, &at(&path, "component"), &mut ids, errors);
            }
            _ => errors.choice(&at(&path, "type"), "(1, 18)"),
        }
    }
}

fn text_input(input: &Value, path: &str, ids: &mut BTreeSet<String>, errors: &mut FormErrors) {
    if kind(input) != TEXT_INPUT {
        errors.choice(&at(path, "type"), "(4,)");
        return;
    }
    custom_id(input, path, ids, errors);
    if !matches!(input.get("style").and_then(Value::as_u64), Some(1 | 2)) {
        errors.choice(&at(path, "style"), "(1, 2)");
    }
    bounded(input, "placeholder", path, (0, 100), errors);
    let value_path = at(path, "value");
    let value = text(input, "value", &value_path, errors).map_or(0, chars) as u64;
    let bound = |key: &str, otherwise| input.get(key).and_then(Value::as_u64).unwrap_or(otherwise);
    let (min, max) = (bound("min_length", 0), bound("max_length", INPUT_TEXT_MAX));
    if min > INPUT_TEXT_MAX || max > INPUT_TEXT_MAX || max == 0 || min > max {
        errors.add(
            &at(path, "max_length"),
            "NUMBER_TYPE_MAX",
            "int value should be less than or equal to 4000.",
        );
    }
    if value > max {
        errors.too_long(&value_path, usize::try_from(max).unwrap_or(usize::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn mistakes(check: impl Fn(&mut FormErrors)) -> Option<Value> {
        let mut errors = FormErrors::default();
        check(&mut errors);
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
        let long = |n: usize| "x".repeat(n);
        let option = json!({"label": "a", "value": "b"});
        let select = |options: Value| row(&json!([{"type": 3, "custom_id": "s", "options": options}]));
        let options: Vec<Value> = (0..26).map(|n| json!({"label": "a", "value": n.to_string()})).collect();
        let fine =
            row(&json!([good(1), good(2), {"type": 2, "style": 5, "label": "go", "url": "https://x"}]));
        let check = |rows: &Value| {
            mistakes(|errors| of_message(rows.as_array().map_or(&[][..], Vec::as_slice), errors))
        };
        assert_eq!(check(&fine), None);
        assert_eq!(check(&select(json!([option]))), None);
        for (rows, path) in [
            (json!(vec![row(&json!([good(1)]))[0].clone(); 6]), "/components/_errors"),
            (json!([good(1)]), "/components/0/type/_errors"),
            (row(&json!([])), "/components/0/components/_errors"),
            (row(&(0..6).map(good).collect()), "/components/0/components/_errors"),
            (row(&json!([good(1), good(1)])), "/components/0/components/1/custom_id/_errors"),
            (
                row(&json!([{"type": 2, "style": 1, "label": "a", "custom_id": ""}])),
                "/components/0/components/0/custom_id/_errors",
            ),
            (
                row(&json!([{"type": 2, "style": 1, "label": "a", "custom_id": long(101)}])),
                "/components/0/components/0/custom_id/_errors",
            ),
            (
                row(&json!([{"type": 2, "style": 1, "label": long(81), "custom_id": "a"}])),
                "/components/0/components/0/label/_errors",
            ),
            (row(&json!([{"type": 2, "style": 1, "custom_id": "a"}])), "/components/0/components/0/_errors"),
            (
                row(&json!([{"type": 2, "style": 9, "label": "a", "custom_id": "a"}])),
                "/components/0/components/0/style/_errors",
            ),
            (
                row(&json!([{"type": 2, "style": 5, "label": "a", "custom_id": "a", "url": "https://x"}])),
                "/components/0/components/0/_errors",
            ),
            (row(&json!([{"type": 2, "style": 5, "label": "a"}])), "/components/0/components/0/url/_errors"),
            (select(json!(options)), "/components/0/components/0/options/_errors"),
            (select(json!([])), "/components/0/components/0/options/_errors"),
            (select(json!([option, option])), "/components/0/components/0/options/1/value/_errors"),
            (
                row(&json!([{"type": 3, "custom_id": "s", "options": [option]}, good(1)])),
                "/components/0/components/_errors",
            ),
            (row(&json!([{"type": 10, "content": "x"}])), "/components/0/components/0/type/_errors"),
        ] {
            let found = check(&rows).unwrap_or_else(|| panic!("accepted: {rows}"));
            assert!(found.pointer(path).is_some(), "{found} has no {path}");
        }
    }

    #[test]
    fn limits_of_modals() {
        let input = |id: &str| json!({"type": 4, "custom_id": id, "style": 1, "label": "why"});
        let modal = |rows: Value| json!({"custom_id": "m", "title": "t", "components": rows});
        let rows = |n: usize| {
            (0..n).map(|n| json!({"type": 1, "components": [input(&n.to_string())]})).collect::<Value>()
        };
        let check = |modal: &Value| mistakes(|errors| of_modal(modal, errors));
        assert_eq!(check(&modal(rows(5))), None);
        let label =
            json!([{"type": 18, "label": "why", "component": {"type": 4, "custom_id": "a", "style": 2}}]);
        assert_eq!(check(&modal(label)), None);
        for (modal, path) in [
            (modal(rows(0)), "/data/components/_errors"),
            (modal(rows(6)), "/data/components/_errors"),
            (
                json!({"custom_id": "m", "title": "t".repeat(46), "components": rows(1)}),
                "/data/title/_errors",
            ),
            (json!({"title": "t", "components": rows(1)}), "/data/custom_id/_errors"),
            (
                modal(json!([{"type": 1, "components": [input("a"), input("b")]}])),
                "/data/components/0/components/_errors",
            ),
            (modal(json!([{"type": 2}])), "/data/components/0/type/_errors"),
            (
                modal(
                    json!([{"type": 1, "components": [{"type": 4, "custom_id": "a", "style": 3, "label": "x"}]}]),
                ),
                "/data/components/0/components/0/style/_errors",
            ),
        ] {
            let found = check(&modal).unwrap_or_else(|| panic!("accepted: {modal}"));
            assert!(found.pointer(path).is_some(), "{found} has no {path}");
        }
    }
}
