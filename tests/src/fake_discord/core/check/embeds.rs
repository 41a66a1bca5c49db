//! Embeds: limits of the documentation's page on messages, "Embed Limits".

use super::super::error::FormErrors;
use super::{at, bounded, chars};
use serde_json::Value;

/// Embeds of a message.
const EMBEDS_MAX: usize = 10;
/// Characters of all embeds together.
const TOTAL_MAX: usize = 6000;
const FIELDS_MAX: usize = 25;
const TITLE_MAX: usize = 256;
const DESCRIPTION_MAX: usize = 4096;
const FIELD_NAME_MAX: usize = 256;
const FIELD_VALUE_MAX: usize = 1024;
const FOOTER_MAX: usize = 2048;
const AUTHOR_MAX: usize = 256;

/// Checks a list of embeds.
pub fn check(embeds: &[Value], errors: &mut FormErrors) {
    if embeds.len() > EMBEDS_MAX {
        errors.too_long("embeds", EMBEDS_MAX);
    }
    let mut total = 0;
    for (n, embed) in embeds.iter().enumerate() {
        let path = format!("embeds.{n}");
        if !embed.is_object() {
            errors.add(&path, "DICT_TYPE_CONVERT", "Only dictionaries may be used in a DictType");
            continue;
        }
        total += one(embed, &path, errors);
    }
    if total > TOTAL_MAX {
        errors.add("embeds", "MAX_EMBED_SIZE_EXCEEDED", "Embed size exceeds maximum size of 6000");
    }
}

/// Checks one embed, and counts its characters.
fn one(embed: &Value, path: &str, errors: &mut FormErrors) -> usize {
    let mut total = 0;
    let mut take =
        |object: &Value, key: &str, path: &str, min: usize, max: usize, errors: &mut FormErrors| {
            total += bounded(object, key, path, (min, max), errors).map_or(0, chars);
        };
    take(embed, "title", path, 0, TITLE_MAX, errors);
    take(embed, "description", path, 0, DESCRIPTION_MAX, errors);
    if let Some(footer) = embed.get("footer").filter(|footer| footer.is_object()) {
        take(footer, "text", &at(path, "footer"), 0, FOOTER_MAX, errors);
    }
    if let Some(author) = embed.get("author").filter(|author| author.is_object()) {
        take(author, "name", &at(path, "author"), 0, AUTHOR_MAX, errors);
    }
    let fields = embed.get("fields").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if fields.len() > FIELDS_MAX {
        errors.too_long(&at(path, "fields"), FIELDS_MAX);
    }
    for (n, field) in fields.iter().enumerate() {
        let path = format!("{path}.fields.{n}");
        take(field, "name", &path, 1, FIELD_NAME_MAX, errors);
        take(field, "value", &path, 1, FIELD_VALUE_MAX, errors);
    }
    if let Some(color) = embed.get("color").filter(|color| !color.is_null())
        && color.as_u64().is_none_or(|color| color > 0xFF_FFFF)
    {
        errors.add(
            &at(path, "color"),
            "NUMBER_TYPE_MAX",
            "int value should be less than or equal to 16777215.",
        );
    }
    if let Some(url) = embed.get("url").and_then(Value::as_str)
        && !url.starts_with("http://")
        && !url.starts_with("https://")
    {
        let message = "Scheme must be one of ('http', 'https').";
        errors.add(&at(path, "url"), "URL_TYPE_INVALID_SCHEME", message);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn mistakes(embeds: &Value) -> Option<Value> {
        let mut errors = FormErrors::default();
        check(embeds.as_array().map_or(&[][..], Vec::as_slice), &mut errors);
        errors.finish().err().and_then(|error| error.errors)
    }

    #[test]
    fn limits_of_embeds() {
        let long = |n: usize| "x".repeat(n);
        assert_eq!(mistakes(&json!([{"title": long(256), "description": long(4096)}])), None);
        for (embeds, path) in [
            (json!([{"title": long(257)}]), "/embeds/0/title/_errors"),
            (json!([{"description": long(4097)}]), "/embeds/0/description/_errors"),
            (json!([{"footer": {"text": long(2049)}}]), "/embeds/0/footer/text/_errors"),
            (json!([{"author": {"name": long(257)}}]), "/embeds/0/author/name/_errors"),
            (json!([{"fields": vec![json!({"name": "a", "value": "b"}); 26]}]), "/embeds/0/fields/_errors"),
            (json!([{"fields": [{"name": "", "value": "b"}]}]), "/embeds/0/fields/0/name/_errors"),
            (json!([{"fields": [{"name": "a"}]}]), "/embeds/0/fields/0/value/_errors"),
            (json!([{"fields": [{"name": "a", "value": long(1025)}]}]), "/embeds/0/fields/0/value/_errors"),
            (json!([{"description": long(3001)}, {"description": long(3000)}]), "/embeds/_errors"),
            (json!(vec![json!({"title": "a"}); 11]), "/embeds/_errors"),
            (json!([{"title": 5}]), "/embeds/0/title/_errors"),
            (json!([{"color": 0x100_0000}]), "/embeds/0/color/_errors"),
            (json!([{"url": "ftp://x"}]), "/embeds/0/url/_errors"),
            (json!(["x"]), "/embeds/0/_errors"),
        ] {
            let found = mistakes(&embeds).unwrap_or_else(|| panic!("accepted: {embeds}"));
            assert!(found.pointer(path).is_some(), "{found} has no {path}");
        }
    }
}
