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
/// Members of a diff block with both sides of a change.
const SIDES: [&str; 2] = ["oldText", "newText"];
/// Member of a diff block in place of a change that is left out.
const NOTE: &str = "note";

/// Note in place of what was left out.
pub(super) fn left_out(what: &str) -> String {
    format!("… ({what} left out; `acp-gateway sessions history --json` has all of it)")
}

/// Parses raw JSON, and keeps an excerpt of about `bytes_max` bytes if it is larger. Neither the time nor the
/// memory for what is left out grows with its structure.
pub(super) fn excerpt(raw: &str, bytes_max: usize) -> Value {
    let mut room = if raw.len() <= bytes_max { usize::MAX } else { bytes_max };
    let mut reader = serde_json::Deserializer::from_str(raw);
    Excerpt { room: &mut room, is_whole: false }.deserialize(&mut reader).unwrap_or(Value::Null)
}

/// Reader of one value within the room that is left.
struct Excerpt<'r> {
    room: &'r mut usize,
    /// True if a text is read whole, to be cut later.
    is_whole: bool,
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

    /// Reads both sides of a diff block. The start of one side must not be compared with the start of the
    /// other: a change keeps only its different lines if it is large, and becomes a note if these are.
    fn read_change(&mut self, block: &mut Map<String, Value>, old: &str, new: &str) {
        let max = (*self.room / 2).max(SHORT_BYTES);
        let bytes = |text: &str| text.chars().map(json_bytes).sum::<usize>();
        let is_small = |old: &str, new: &str| bytes(old) + bytes(new) <= max;
        let (line, (old, new)) = if is_small(old, new) { (1, (old, new)) } else { different_lines(old, new) };
        if is_small(old, new) {
            self.take(bytes(old) + bytes(new));
            block.extend(SIDES.map(str::to_owned).into_iter().zip([old, new].map(Value::from)));
        } else if old.is_empty() || new.is_empty() {
            let sides = [old, new].map(|side| Value::from(self.cut(side)));
            block.extend(SIDES.map(str::to_owned).into_iter().zip(sides));
        } else {
            let (old, new) = (old.len(), new.len());
            let note = left_out(&format!("a change of {old} bytes to {new} bytes from line {line} on"));
            self.take(note.len());
            block.insert(NOTE.to_owned(), note.into());
        }
    }

    /// Returns the start of a text, with a note about the rest.
    fn cut(&mut self, text: &str) -> String {
        let start = self.start_of(text);
        if start.len() == text.len() {
            return text.to_owned();
        }
        let note = left_out(&format!("{} bytes", text.len() - start.len()));
        self.take(note.len());
        format!("{start}{note}")
    }
}

/// Drops the common first and last lines. Returns the number of the first different line, and both sides.
fn different_lines<'t>(old: &'t str, new: &'t str) -> (usize, (&'t str, &'t str)) {
    let both = || old.split_inclusive('\n').zip(new.split_inclusive('\n'));
    let same = both().take_while(|(one, other)| one == other);
    let (count, bytes) = same.fold((0, 0), |(count, bytes), (line, _)| (count + 1, bytes + line.len()));
    let rest = |text: &'t str| text.get(bytes..).unwrap_or_default();
    let (old, new) = (rest(old), rest(new));
    let ends = old.split_inclusive('\n').rev().zip(new.split_inclusive('\n').rev());
    let bytes: usize = ends.take_while(|(one, other)| one == other).map(|(line, _)| line.len()).sum();
    let start = |text: &'t str| text.get(..text.len() - bytes).unwrap_or_default();
    (count + 1, (start(old), start(new)))
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
        Ok(if self.is_whole { text.into() } else { self.cut(text).into() })
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        let mut rest: usize = 0;
        while *self.room >= ENTRY_BYTES_MIN {
            let Some(entry) = list.next_element_seed(Excerpt { room: self.room, is_whole: false })? else {
                break;
            };
            self.take(1);
            if entry.get(REST).is_some() {
                // Without some of its members an entry may mean something else, or nothing.
                rest += 1;
            } else {
                out.push(entry);
            }
        }
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
            // Old and new text are read whole and cut after the other members, which keep their room.
            let is_whole = SIDES.contains(&name.as_str());
            let value = members.next_value_seed(Excerpt { room: self.room, is_whole })?;
            out.insert(name, value);
        }
        let sides = SIDES.map(|side| match out.get_mut(side) {
            Some(Value::String(text)) => Some(std::mem::take(text)),
            _ => None,
        });
        if let ([Some(old), Some(new)], Some("diff")) = (&sides, out.get("type").and_then(Value::as_str)) {
            out.retain(|name, _| !SIDES.contains(&name.as_str()));
            self.read_change(&mut out, old, new);
        } else {
            for (side, text) in SIDES.into_iter().zip(sides) {
                if let Some(text) = text {
                    out.insert(side.to_owned(), self.cut(&text).into());
                }
            }
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

    fn lines(mark: &str, count: usize) -> String {
        (0..count).map(|n| format!("{mark} line number {n}\n")).collect()
    }

    #[test]
    fn sides_of_a_large_change_are_never_cut_apart() {
        let (same, end) = (lines("same", 400), lines("end", 400));
        let of = |old: &str, new: &str| {
            // Both sides stand in front of the path.
            let raw = format!(
                r#"{{"newText":{},"oldText":{},"path":"/w/a.txt","type":"diff"}}"#,
                json!(new),
                json!(old)
            );
            excerpt(&raw, 8 * 1_024)
        };
        let block = |old: &str, new: &str| json!({"type": "diff", "path": "/w/a.txt", "oldText": old, "newText": new});
        let change = of(&format!("{same}old\n{end}"), &format!("{same}new\nmore\n{end}"));
        assert_eq!(change, block("old\n", "new\nmore\n"), "common lines are dropped");
        let change = of(&lines("old", 100), &lines("new", 300));
        assert_eq!(change.get("oldText").or(change.get("newText")), None, "{change}");
        let (old, new) = (lines("old", 300), lines("new", 400));
        let note =
            left_out(&format!("a change of {} bytes to {} bytes from line 401 on", old.len(), new.len()));
        let want = json!({"type": "diff", "path": "/w/a.txt", "note": note});
        assert_eq!(of(&format!("{same}{old}{end}"), &format!("{same}{new}{end}")), want);
        // One side alone is cut.
        let change = of(&format!("{same}{end}"), &format!("{same}{new}{end}"));
        let added = change["newText"].as_str().unwrap();
        assert_eq!(change["oldText"], "");
        assert!(added.starts_with("new line number 0\nnew") && added.contains(" bytes left out"), "{added}");
        // Input of a tool is shown as it is.
        let input = excerpt(&json!({"oldText": same, "newText": same}).to_string(), 8 * 1_024);
        for side in ["oldText", "newText"] {
            let text = input[side].as_str().unwrap();
            assert!(text.starts_with("same line number 0\n") && text.contains(" bytes left out"), "{input}");
        }
    }

    #[test]
    fn an_entry_without_all_its_members_is_counted_as_left_out() {
        let text = "x".repeat(300);
        let block = json!({"newText": text, "oldText": null, "path": "/w/a.txt", "type": "diff"});
        for max in 600..2_000 {
            let list = excerpt(&json!(vec![&block; 40]).to_string(), max);
            let (last, kept) = list.as_array().unwrap().split_last().unwrap();
            assert_eq!(last, &json!(left_out(&format!("{} entries", 40 - kept.len()))), "{max}");
            assert!(kept.iter().all(|kept| kept["path"] == "/w/a.txt" && kept["type"] == "diff"), "{list}");
        }
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
