//! Typed access to the members of an untrusted JSON object.

use serde_json::{Map, Value};

/// Maximum length of a text, in bytes.
const TEXT_BYTES_MAX: usize = 16 * 1024;

/// Members of an object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// Members of a value.
    ///
    /// # Errors
    /// The value is no object.
    pub(super) fn of(value: &'a Value) -> Result<Self, String> {
        value.as_object().map(Self).ok_or_else(|| "it is not an object".to_owned())
    }

    fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// Text of a member; `None` if it is absent, null or empty.
    ///
    /// # Errors
    /// The member is no text, too long, or has control characters other than line ends and tabs.
    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, String> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let text = value.as_str().ok_or_else(|| format!("`{name}` is not a text"))?;
        if text.len() > TEXT_BYTES_MAX {
            return Err(format!("`{name}` is longer than {TEXT_BYTES_MAX} bytes"));
        }
        if text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t')) {
            return Err(format!("`{name}` has control characters"));
        }
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    /// Text of the first member that is present.
    ///
    /// # Errors
    /// As [`Fields::text`].
    pub(super) fn first_text(&self, names: &[&str]) -> Result<Option<&'a str>, String> {
        for name in names {
            if let Some(text) = self.text(name)? {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    /// Text of a required member.
    ///
    /// # Errors
    /// As [`Fields::text`]; the member is absent.
    pub(super) fn required(&self, name: &str) -> Result<&'a str, String> {
        self.text(name)?.ok_or_else(|| format!("`{name}` is missing"))
    }

    /// Text of a member that may also be a whole number, as ids are in old files.
    ///
    /// # Errors
    /// As [`Fields::text`].
    pub(super) fn id(&self, name: &str) -> Result<Option<String>, String> {
        match self.get(name) {
            Some(Value::Number(number)) if number.is_u64() => Ok(Some(number.to_string())),
            _ => Ok(self.text(name)?.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())),
        }
    }

    /// Whole number of a member.
    ///
    /// # Errors
    /// The member is no whole number.
    pub(super) fn number(&self, name: &str) -> Result<Option<i64>, String> {
        let Some(value) = self.get(name) else { return Ok(None) };
        #[expect(clippy::cast_possible_truncation, reason = "checked: the number is whole and within 2^53")]
        let whole = |float: f64| (float.fract() == 0.0 && float.abs() < 9e15).then_some(float as i64);
        let number = value.as_i64().or_else(|| value.as_f64().and_then(whole));
        number.map(Some).ok_or_else(|| format!("`{name}` is not a whole number"))
    }

    /// Time of a member, milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// The member is no number of milliseconds.
    pub(super) fn time(&self, name: &str) -> Result<Option<u64>, String> {
        let Some(number) = self.number(name)? else { return Ok(None) };
        u64::try_from(number).map(Some).map_err(|_error| format!("`{name}` is negative"))
    }

    /// Flag of a member; absent is false.
    ///
    /// # Errors
    /// The member is neither a flag nor 0 or 1.
    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, String> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(Value::Number(number)) if matches!(number.as_i64(), Some(0 | 1)) => {
                Ok(Some(number.as_i64() == Some(1)))
            }
            Some(_) => Err(format!("`{name}` is not true or false")),
        }
    }

    /// Object of a member.
    ///
    /// # Errors
    /// The member is no object.
    pub(super) fn object(&self, name: &str) -> Result<Option<Self>, String> {
        let Some(value) = self.get(name) else { return Ok(None) };
        Self::of(value).map(Some).map_err(|_why| format!("`{name}` is not an object"))
    }

    /// Array of a member.
    ///
    /// # Errors
    /// The member is no array.
    pub(super) fn list(&self, name: &str) -> Result<Option<&'a Vec<Value>>, String> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_array().map(Some).ok_or_else(|| format!("`{name}` is not an array"))
    }
}

/// Parses the JSON text of a column; `None` if the column is absent or empty.
///
/// # Errors
/// The text is no JSON.
pub(super) fn column(fields: Fields<'_>, name: &str) -> Result<Option<Value>, String> {
    let Some(value) = fields.get(name) else { return Ok(None) };
    let text = value.as_str().ok_or_else(|| format!("`{name}` is not a text"))?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    let parsed: Value = serde_json::from_str(text).map_err(|_error| format!("`{name}` is not JSON"))?;
    Ok(Some(parsed).filter(|value| !value.is_null()))
}

/// Members of a file of version 1 that has its records under `name`.
///
/// # Errors
/// The file is no such object, or has another version.
pub(super) fn records<'a>(file: &'a Value, name: &str) -> Result<&'a Value, String> {
    let fields = Fields::of(file)?;
    match fields.number("version")? {
        Some(1) => {}
        Some(other) => return Err(format!("it has version {other}; only version 1 is read")),
        None => return Err("it has no `version`; only version 1 is read".to_owned()),
    }
    fields.get(name).ok_or_else(|| format!("`{name}` is missing"))
}
