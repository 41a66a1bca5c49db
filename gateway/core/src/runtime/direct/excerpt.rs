//! Excerpts of JSON for state of limited size: the beginning of every text and list, with a note about the rest.

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::borrow::Cow;
use std::fmt;

/// Maximum size of a text that is kept whole while there is any room, in bytes of JSON.
const SHORT_BYTES: usize = 256;
/// Minimum room for one more entry, in bytes of JSON.
const ENTRY_BYTES_MIN: usize = 64;
/// Name of the member that stands for omitted members.
const REST: &str = "…";

/// Note in place of what was left out.
pub(super) fn left_out(what: &str) -> String {
    format!("… ({what} left out; `acp-gateway sessions history --json` has all of it)")
}

/// Parses raw JSON, and keeps an excerpt of about `bytes_max` bytes if it is larger. Neither the time nor the
/// memory for what is left out grows with its structure.
pub(super) fn excerpt(raw: &str, bytes_max: usize) -> Value {
    let mut room = if raw.len() <= bytes_max { usize::MAX } else { bytes_max };
    let mut reader = serde_json::Deserializer::from_str(raw);
    Excerpt { room: &mut room }.deserialize(&mut reader).unwrap_or(Value::Null)
}

/// Reader of one value within the room that is left.
struct Excerpt<'r> {
    room: &'r mut usize,
}

impl Excerpt<'_> {
    fn take(&mut self, bytes: usize) {
        *self.room = self.room.saturating_sub(bytes);
    }

    /// Returns the start of a text: all of it if it is short, otherwise up to a quarter of the room, so that
    /// members behind it are not lost.
    fn start_of<'t>(&mut self, text: &'t str) -> &'t str {
        let max = (*self.room / 4).max(SHORT_BYTES);
        let mut size = 2;
        let end = text.char_indices().find(|(_, c)| {
            size += json_bytes(*c);
            size > max
        });
        self.take(size.min(max));
        end.map_or(text, |(at, _)| text.get(..at).unwrap_or_default())
    }
}

/// Size of a character in a JSON string, in bytes.
const fn json_bytes(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' => 2,
        '\0'..='\u{1f}' => 6,
        _ => c.len_utf8(),
    }
}

impl<'de> DeserializeSeed<'de> for Excerpt<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Excerpt<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(mut self) -> Result<Value, E> {
        self.take(4);
        Ok(Value::Null)
    }

    fn visit_bool<E>(mut self, value: bool) -> Result<Value, E> {
        self.take(5);
        Ok(value.into())
    }

    fn visit_u64<E>(mut self, value: u64) -> Result<Value, E> {
        self.take(20);
        Ok(value.into())
    }

    fn visit_i64<E>(mut self, value: i64) -> Result<Value, E> {
        self.take(20);
        Ok(value.into())
    }

    fn visit_f64<E>(mut self, value: f64) -> Result<Value, E> {
        self.take(25);
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(mut self, text: &str) -> Result<Value, E> {
        let start = self.start_of(text);
        if start.len() == text.len() {
            return Ok(text.into());
        }
        let note = left_out(&format!("{} bytes", text.len() - start.len()));
        self.take(note.len());
        Ok(format!("{start}{note}").into())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while *self.room >= ENTRY_BYTES_MIN {
            let Some(entry) = list.next_element_seed(Excerpt { room: self.room })? else {
                return Ok(Value::Array(out));
            };
            self.take(1);
            out.push(entry);
        }
        let mut rest: usize = 0;
        while list.next_element::<IgnoredAny>()?.is_some() {
            rest += 1;
        }
        if rest > 0 {
            let note = left_out(&format!("{rest} entries"));
            self.take(note.len());
            out.push(note.into());
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        let mut rest: usize = 0;
        while let Some(name) = members.next_key::<Cow<'_, str>>()?.map(Cow::into_owned) {
            let bytes = ENTRY_BYTES_MIN + name.chars().map(json_bytes).sum::<usize>();
            if bytes > *self.room {
                members.next_value::<IgnoredAny>()?;
                rest += 1;
                continue;
            }
            self.take(bytes - ENTRY_BYTES_MIN + 4);
            let value = members.next_value_seed(Excerpt { room: self.room })?;
            out.insert(name, value);
        }
        if rest > 0 {
            let note = left_out(&format!("{rest} members"));
            self.take(note.len());
            out.insert(REST.to_owned(), note.into());
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn an_excerpt_keeps_short_members_and_counts_the_rest() {
        let note = |what: &str| left_out(what);
        let whole = json!({"path": "/a", "n": [1, -2, 1.5, true, null]});
        assert_eq!(excerpt(&whole.to_string(), 1_000), whole);
        // The path stands behind the long text.
        let raw = format!(r#"{{"type":"diff","newText":"{}","path":"/w/a.txt"}}"#, "x".repeat(10_000));
        let cut = excerpt(&raw, 1_000);
        assert_eq!(cut["path"], "/w/a.txt");
        assert_eq!(cut["type"], "diff");
        let text = cut["newText"].as_str().unwrap();
        assert!(
            text.starts_with("xxx")
                && text.ends_with(&note(&format!("{} bytes", 10_000 - text.matches('x').count()))),
            "{text}"
        );
        let list = excerpt(&json!(vec!["entry"; 1_000]).to_string(), 200);
        let kept = list.as_array().unwrap().len() - 1;
        assert!(kept > 5, "{list}");
        assert_eq!(list[kept], note(&format!("{} entries", 1_000 - kept)));
        let members: Map<String, Value> = (0..1_000).map(|n| (format!("m{n:04}"), json!(n))).collect();
        let object = excerpt(&Value::Object(members).to_string(), 200);
        let kept = object.as_object().unwrap().len() - 1;
        assert_eq!(object[REST], note(&format!("{} members", 1_000 - kept)));
        assert_eq!(excerpt("{", 1), Value::Null);
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "\\PC{0,400}".prop_map(Value::from),
            "[\\x00-\\x1f]{0,400}".prop_map(Value::from),
        ];
        leaf.prop_recursive(8, 200, 20, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..20).prop_map(Value::from),
                prop::collection::btree_map("[a-z]{0,300}", inner, 0..20)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn an_excerpt_is_bounded(value in any_json(), max in 500usize..5_000) {
            let raw = value.to_string();
            let cut = excerpt(&raw, max);
            if raw.len() <= max {
                prop_assert_eq!(&cut, &serde_json::from_str::<Value>(&raw).unwrap());
            }
            // Each level may add one text and one note beyond the limit.
            prop_assert!(cut.to_string().len() <= max + 8 * 600, "{}", cut);
        }
    }
}
