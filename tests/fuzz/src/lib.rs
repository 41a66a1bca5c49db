//! Structure-aware mutation: changes a few values of an input and keeps the rest valid.
#![forbid(unsafe_code)]

use fastrand::Rng;
use serde_json::{Value, json};

/// Position of the JSON documents in an input. Each follows a prefix of so many bytes.
#[derive(Debug, Clone, Copy)]
pub enum Layout {
    /// One document.
    Whole(usize),
    /// One document on each line.
    Lines(usize),
    /// Documents, each behind its length as a big-endian `u64`.
    Framed(usize),
}

/// Mutates `data[..size]` in place and returns its new size: half of the time with `change`, which returns `None` for an
/// input that it cannot read, else by bytes. See `LLVMFuzzerCustomMutator` of libFuzzer.
pub fn mutate(
    data: &mut [u8],
    (size, max_size, seed): (usize, usize, u32),
    change: impl FnOnce(&[u8], &mut Rng) -> Option<Vec<u8>>,
) -> usize {
    let mut rng = Rng::with_seed(seed.into());
    let changed = if rng.bool() { data.get(..size).and_then(|data| change(data, &mut rng)) } else { None };
    match changed {
        Some(changed) if changed.len() <= max_size => {
            data[..changed.len()].copy_from_slice(&changed);
            changed.len()
        }
        _ => libfuzzer_sys::fuzzer_mutate(data, size, max_size),
    }
}

impl Layout {
    /// Returns the input with values changed; `None` if it is not of this layout.
    pub fn change(self, data: &[u8], rng: &mut Rng) -> Option<Vec<u8>> {
        let (Self::Whole(prefix) | Self::Lines(prefix) | Self::Framed(prefix)) = self;
        let (prefix, rest) = data.split_at_checked(prefix)?;
        let mut documents: Vec<Vec<u8>> = match self {
            Self::Whole(_) => vec![rest.to_vec()],
            Self::Lines(_) => rest.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect(),
            Self::Framed(_) => frames(rest)?,
        };
        for _ in 0..changes(rng) {
            let document = rng.choice(&mut documents)?;
            let Ok(mut value) = serde_json::from_slice(document) else { continue };
            change(&mut value, rng);
            *document = value.to_string().into_bytes();
        }
        let rest = match self {
            Self::Framed(_) => {
                documents.iter().flat_map(|one| [&one.len().to_be_bytes()[..], one].concat()).collect()
            }
            Self::Whole(_) | Self::Lines(_) => documents.join(&b'\n'),
        };
        Some([prefix, &rest].concat())
    }
}

fn frames(mut rest: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut frames = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk() {
        let (frame, after) = after.split_at_checked(usize::try_from(u64::from_be_bytes(*length)).ok()?)?;
        frames.push(frame.to_vec());
        rest = after;
    }
    Some(frames)
}

/// Returns a number of changes to make at once.
pub fn changes(rng: &mut Rng) -> u32 {
    1 << rng.u32(..4)
}

/// Changes one value in a document.
pub fn change(document: &mut Value, rng: &mut Rng) {
    let count = values(document);
    let donor = nth(document, &mut rng.usize(..count)).cloned().unwrap_or_default();
    let Some(value) = nth(document, &mut rng.usize(..count)) else { return };
    if rng.u8(..4) == 0 {
        *value = donor;
        return;
    }
    match value {
        Value::Null => *value = json!("a"),
        Value::Bool(flag) => *flag = !*flag,
        Value::Number(_) => {
            let edges =
                [json!(-1), json!(0.5), json!(i64::MIN), json!(i64::MAX), json!(u64::MAX), json!(1e300)];
            *value = rng.choice(edges).filter(|_| rng.bool()).unwrap_or_else(|| json!(rng.u8(..16)));
        }
        Value::String(text) => {
            let pieces = ["\u{1b}[2J", "\n", "\u{202e}", "\u{1f600}", "```", "@", "/", "..", "\0", "", "a"];
            let at = text.floor_char_boundary(rng.usize(..=text.len()));
            text.insert_str(at, rng.choice(pieces).unwrap_or_default());
        }
        Value::Array(items) => match rng.choice(0..items.len()) {
            Some(at) if rng.bool() => drop(items.remove(at)),
            Some(at) if rng.bool() => items.insert(at, items[at].clone()),
            _ => items.push(donor),
        },
        Value::Object(fields) => match rng.choice(fields.keys().cloned().collect::<Vec<_>>()) {
            Some(key) if rng.bool() => drop(fields.remove(&key)),
            Some(key) => drop(fields.insert(key, donor)),
            None => drop(fields.insert("a".to_owned(), donor)),
        },
    }
}

/// Number of values in a document, itself included.
fn values(document: &Value) -> usize {
    1 + match document {
        Value::Array(items) => items.iter().map(values).sum(),
        Value::Object(fields) => fields.values().map(values).sum(),
        _ => 0,
    }
}

/// The value with this number, counted as in [`values`]; `number` is counted down on the way.
fn nth<'a>(document: &'a mut Value, number: &mut usize) -> Option<&'a mut Value> {
    if *number == 0 {
        return Some(document);
    }
    *number -= 1;
    match document {
        Value::Array(items) => items.iter_mut().find_map(|item| nth(item, number)),
        Value::Object(fields) => fields.values_mut().find_map(|field| nth(field, number)),
        _ => None,
    }
}
