//! Errors of the REST interface: `{"message", "code", "errors"}`.
//!
//! Codes are from the documentation's page on opcodes and status codes; the format of `errors` is from its
//! reference on error messages.

use serde_json::{Map, Value, json};

/// An error response.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    /// The HTTP status.
    pub status: u16,
    /// The JSON error code.
    pub code: u32,
    /// The message for people.
    pub message: String,
    /// Errors by their path in the body.
    pub errors: Option<Value>,
    /// For a 429: milliseconds until a retry is allowed.
    pub retry_after_ms: Option<u64>,
}

impl ApiError {
    fn new(status: u16, code: u32, message: &str) -> Self {
        Self { status, code, message: message.to_owned(), errors: None, retry_after_ms: None }
    }

    /// The response body.
    #[must_use]
    pub fn body(&self) -> Value {
        let mut body = json!({"message": self.message, "code": self.code});
        if let Some(errors) = &self.errors {
            body["errors"] = errors.clone();
        }
        if let Some(retry_after_ms) = self.retry_after_ms {
            body["retry_after"] = json!(seconds(retry_after_ms));
            body["global"] = json!(false);
        }
        body
    }

    /// A 429 of a resource limit outside of the buckets, as for edits of old messages.
    #[must_use]
    pub fn too_often(code: u32, message: &str, retry_after_ms: u64) -> Self {
        Self { retry_after_ms: Some(retry_after_ms), ..Self::new(429, code, message) }
    }
}

/// Milliseconds as seconds with a fraction, the unit of rate limits in responses.
#[must_use]
pub fn seconds(ms: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of minutes fit")]
    let seconds = ms as f64 / 1000.0;
    seconds
}

/// Defines one constructor for each known error.
macro_rules! refusals {
    ($($name:ident $status:literal $code:literal $message:literal)*) => {
        impl ApiError {
            $(
                #[doc = concat!("Code ", $code, ": ", $message)]
                #[must_use]
                pub fn $name() -> Self {
                    Self::new($status, $code, $message)
                }
            )*
        }
    };
}

refusals! {
    no_route 404 0 "404: Not Found"
    wrong_method 405 0 "405: Method Not Allowed"
    unauthorized 401 0 "401: Unauthorized"
    server_error 500 0 "500: Internal Server Error"
    unknown_application 404 10002 "Unknown Application"
    unknown_channel 404 10003 "Unknown Channel"
    unknown_guild 404 10004 "Unknown Guild"
    unknown_member 404 10007 "Unknown Member"
    unknown_message 404 10008 "Unknown Message"
    unknown_user 404 10013 "Unknown User"
    unknown_emoji 400 10014 "Unknown Emoji"
    unknown_webhook 404 10015 "Unknown Webhook"
    unknown_interaction 404 10062 "Unknown interaction"
    unknown_command 404 10063 "Unknown application command"
    max_webhooks 400 30007 "Maximum number of webhooks reached (15)"
    max_reactions 400 30010 "Maximum number of reactions reached (20)"
    too_large 413 40005 "Request entity too large"
    already_acknowledged 400 40060 "Interaction has already been acknowledged."
    blocked 403 40333 "internal network error"
    missing_access 403 50001 "Missing Access"
    not_author 403 50005 "Cannot edit a message authored by another user"
    empty_message 400 50006 "Cannot send an empty message"
    missing_permissions 403 50013 "Missing Permissions"
    bad_webhook_token 401 50027 "Invalid Webhook Token"
    wrong_channel_type 400 50024 "Cannot execute action on this channel type"
    invalid_json 400 50109 "The request body contains invalid JSON."
    archived 400 50083 "Thread is archived"
    thread_exists 400 160_004 "A thread has already been created for this message"
    locked 400 160_005 "Thread is locked"
    max_active_threads 400 160_006 "Maximum number of active threads reached"
}

/// Errors of a form, by path.
#[derive(Debug, Default)]
pub struct FormErrors {
    found: Map<String, Value>,
}

impl FormErrors {
    /// Adds an error at a path such as `embeds.0.title`.
    pub fn add(&mut self, path: &str, code: &str, message: &str) {
        let mut at = &mut self.found;
        for key in path.split('.') {
            let slot = at.entry(key.to_owned()).or_insert_with(|| json!({}));
            if !slot.is_object() {
                *slot = json!({});
            }
            let Some(inner) = slot.as_object_mut() else { return };
            at = inner;
        }
        let list = at.entry("_errors".to_owned()).or_insert_with(|| json!([]));
        if let Some(list) = list.as_array_mut() {
            list.push(json!({"code": code, "message": message}));
        }
    }

    /// Adds the error of a string that is too long or too short.
    pub fn length(&mut self, path: &str, min: usize, max: usize) {
        let message = format!("Must be between {min} and {max} in length.");
        self.add(path, "BASE_TYPE_BAD_LENGTH", &message);
    }

    /// Adds the error of a string or list that is too long.
    pub fn too_long(&mut self, path: &str, max: usize) {
        self.add(path, "BASE_TYPE_MAX_LENGTH", &format!("Must be {max} or fewer in length."));
    }

    /// Adds the error of a value that is not allowed.
    pub fn choice(&mut self, path: &str, allowed: &str) {
        self.add(path, "BASE_TYPE_CHOICES", &format!("Value must be one of {allowed}."));
    }

    /// Adds the error of a missing member.
    pub fn required(&mut self, path: &str) {
        self.add(path, "BASE_TYPE_REQUIRED", "This field is required");
    }

    /// Adds the error of a member with a wrong type.
    pub fn wrong_type(&mut self, path: &str, what: &str) {
        self.add(path, "BASE_TYPE_BAD_TYPE", &format!("Must be {what}."));
    }

    /// Whether there are no errors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns error 50035 if there are any errors.
    ///
    /// # Errors
    /// When there are any errors.
    pub fn finish(self) -> Result<(), ApiError> {
        if self.found.is_empty() {
            return Ok(());
        }
        let mut error = ApiError::new(400, 50035, "Invalid Form Body");
        error.errors = Some(Value::Object(self.found));
        Err(error)
    }
}

/// Creates error 50035 with a single entry.
#[must_use]
pub fn form_error(path: &str, code: &str, message: &str) -> ApiError {
    let mut errors = FormErrors::default();
    errors.add(path, code, message);
    errors.finish().err().unwrap_or_else(ApiError::server_error)
}
