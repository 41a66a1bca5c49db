//! The OpenAPI document of the API, from the types of its bodies and queries and a table of its operations.

mod operations;
#[cfg(test)]
mod tests;

use crate::api::web_files::{self, WebFile};
use acp_core::api::{ErrorBody, WebhookBody};
use acp_core::jsonrpc::put;
use axum::extract::Request;
use axum::response::Response;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;
use utoipa::ToSchema;
use utoipa::openapi::path::Parameter;

use operations::OPERATIONS;

/// Path of the document.
pub(crate) const OPENAPI_PATH: &str = "/v1/openapi.json";

const ABOUT: &str = "Sessions with coding agents: start them, prompt them, follow them, answer their permission requests.\n\n\
    Modifying requests take an `Idempotency-Key`: a repetition gets the first response and has no second effect. Errors are \
    JSON with `type: error`, a stable `code` and a `message`. A path that does not exist is answered with 404, a method that a \
    path does not have with 405. Event streams are server-sent events; `Last-Event-ID` continues after the last event \
    received. New members may be added to responses at any time.";

/// Named schemas of the document.
type Schemas = Map<String, Value>;
/// Function that adds the schemas of a type and returns a reference to it.
type SchemaOf = fn(&mut Schemas) -> Value;

/// One operation of the API.
struct Operation {
    method: &'static str,
    path: &'static str,
    id: &'static str,
    summary: &'static str,
    /// Parameters of the query.
    query: Option<fn() -> Vec<Parameter>>,
    body: Option<SchemaOf>,
    answer: Answer,
    /// Statuses of errors in addition to those of every operation of its kind.
    errors: &'static [u16],
}

/// Content of a successful response.
enum Answer {
    Json(SchemaOf),
    /// JSON of a page of sessions, with the header of the next one.
    JsonPage(SchemaOf),
    /// JSON, or server-sent events if the client accepts them.
    JsonOrEvents(SchemaOf),
    Events,
    /// Text of these media types.
    Text(&'static [&'static str]),
}

/// `GET /v1/openapi.json`. Compressed, because every console loads the document.
pub(crate) async fn document(request: Request) -> Response {
    static FILE: LazyLock<WebFile> =
        LazyLock::new(|| WebFile::new("application/json", render().into_bytes()));
    web_files::respond(&FILE, &request, "no-cache")
}

/// Returns the document as text.
pub(crate) fn render() -> String {
    // A value of JSON always has a text.
    let mut text = serde_json::to_string_pretty(&build()).unwrap_or_default();
    text.push('\n');
    text
}

fn build() -> Value {
    let mut schemas = Schemas::new();
    let mut paths: Map<String, Value> = Map::new();
    for operation in OPERATIONS {
        let methods = paths.entry(operation.path).or_insert_with(|| json!({}));
        put(methods, operation.method, operation.describe(&mut schemas));
    }
    let error = named::<ErrorBody>(&mut schemas);
    let webhook = named::<WebhookBody>(&mut schemas);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "acp-host gateway",
            "description": ABOUT,
            "version": "1",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        // Over the Unix socket no token is needed.
        "security": [{}, { "token": [] }],
        "paths": paths,
        "webhooks": { "notify": { "post": {
            "operationId": "notify",
            "summary": "Event of a session, for a target of [[notify]]",
            "requestBody": { "required": true, "content": { "application/json": { "schema": webhook } } },
            "responses": { "2XX": { "description": "Received; any other answer is retried." } },
        } } },
        "components": {
            "schemas": schemas,
            "responses": { "Error": {
                "description": "Error: nothing was done, unless the code says otherwise.",
                "content": { "application/json": { "schema": error } },
            } },
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

/// Adds the schemas of a type, and returns a reference to it.
fn named<T: ToSchema>(schemas: &mut Schemas) -> Value {
    let mut found = Vec::new();
    T::schemas(&mut found);
    schemas.extend(found.into_iter().map(|(name, schema)| (name, value(schema))));
    schemas.insert(T::name().into_owned(), value(T::schema()));
    json!({ "$ref": format!("#/components/schemas/{}", T::name()) })
}

/// As [`named`], for a list.
fn list<T: ToSchema>(schemas: &mut Schemas) -> Value {
    json!({ "type": "array", "items": named::<T>(schemas) })
}

/// Any object.
fn object(_: &mut Schemas) -> Value {
    json!({ "type": "object" })
}

fn value(part: impl Serialize) -> Value {
    // Schemas are made of texts, numbers and lists.
    serde_json::to_value(part).unwrap_or_default()
}

impl Operation {
    fn describe(&self, schemas: &mut Schemas) -> Value {
        let mut responses = Map::new();
        responses.insert("200".to_owned(), self.success(schemas));
        for status in self.statuses() {
            responses.insert(status.to_string(), json!({ "$ref": "#/components/responses/Error" }));
        }
        let mut out = json!({ "operationId": self.id, "summary": self.summary, "responses": responses });
        let parameters = self.parameters();
        if !parameters.is_empty() {
            put(&mut out, "parameters", parameters.into());
        }
        if let Some(body) = self.body {
            let content = json!({ "application/json": { "schema": body(schemas) } });
            put(&mut out, "requestBody", json!({ "content": content }));
        }
        if self.is_open() {
            put(&mut out, "security", json!([]));
        }
        out
    }

    fn is_modifying(&self) -> bool {
        self.method != "get"
    }

    fn parameters(&self) -> Vec<Value> {
        let header = |name: &str, about: &str, schema: Value| json!({ "name": name, "in": "header", "description": about, "required": false, "schema": schema });
        let names = self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let text = json!({ "type": "string", "minLength": 1 });
        let path = names.map(|name| json!({ "name": name, "in": "path", "required": true, "schema": text }));
        let mut all: Vec<Value> = path.collect();
        all.extend(self.query.map(|query| query()).unwrap_or_default().into_iter().map(value));
        if self.body.is_some() && !self.is_sign_in() {
            let about = "Repetitions with the same key get the first response.";
            all.push(header(
                "Idempotency-Key",
                about,
                json!({ "type": "string", "minLength": 1, "maxLength": 200 }),
            ));
        }
        let about =
            "Session or agent for which the client asks: the response is what that agent may see and do.";
        let name = json!({ "type": "string", "minLength": 1, "maxLength": 200 });
        all.extend((!self.is_open()).then(|| header("Acp-As", about, name)));
        if self.is_stream() && !self.is_modifying() {
            let about = "Streams only: id of the last event received.";
            all.push(header("Last-Event-ID", about, json!({ "type": "integer", "minimum": 0 })));
        }
        all
    }

    /// True for a request that needs no token.
    fn is_open(&self) -> bool {
        ["/health", "/v1/login", "/v1/owner"].contains(&self.path)
    }

    /// True for a request that has an effect each time.
    fn is_sign_in(&self) -> bool {
        ["/v1/login", "/v1/console/open"].contains(&self.path)
    }

    const fn is_stream(&self) -> bool {
        matches!(self.answer, Answer::JsonOrEvents(_) | Answer::Events)
    }

    /// Statuses of the errors, in order.
    fn statuses(&self) -> Vec<u16> {
        // Identity, a failure of the gateway, and a gateway that cannot serve now.
        let mut all = vec![401, 403, 500, 503];
        let has_parameters = self.query.is_some() || self.path.contains('{') || self.is_modifying();
        all.extend(has_parameters.then_some(400));
        if !self.is_open() {
            // An unknown agent or session for which the client asks.
            all.extend([400, 404]);
        }
        if self.body.is_some() {
            all.extend([408, 413, 415]);
        }
        if self.is_modifying() {
            // A used idempotency key, a session in another state, a limit, an agent that fails or does not answer.
            all.extend([409, 429, 502, 504]);
        }
        // Too many streams.
        all.extend(self.is_stream().then_some(429));
        all.extend(self.errors);
        all.sort_unstable();
        all.dedup();
        all
    }

    fn success(&self, schemas: &mut Schemas) -> Value {
        let json = |schema: Value| json!({ "application/json": { "schema": schema } });
        let events = json!({ "schema": { "type": "string", "description": "Server-sent events; data is an event line." } });
        let content = match &self.answer {
            Answer::Json(schema) | Answer::JsonPage(schema) => json(schema(schemas)),
            Answer::JsonOrEvents(schema) => {
                let mut content = json(schema(schemas));
                put(&mut content, "text/event-stream", events);
                content
            }
            Answer::Events => json!({ "text/event-stream": events }),
            Answer::Text(types) => types
                .iter()
                .map(|kind| ((*kind).to_owned(), json!({ "schema": { "type": "string" } })))
                .collect(),
        };
        let mut out = json!({ "description": self.summary, "content": content });
        if matches!(self.answer, Answer::JsonPage(_)) {
            let about = "Value of cursor for the next page; absent after the last one.";
            let header = json!({ "description": about, "schema": { "type": "string" } });
            put(&mut out, "headers", json!({ "Next-Cursor": header }));
        }
        out
    }
}
