use super::*;
use proptest::prelude::*;

fn form(properties: &Value, required: &Value) -> Value {
    json!({ "sessionId": "s", "mode": "form", "message": "Which?",
        "requestedSchema": { "type": "object", "properties": properties, "required": required } })
}

fn parsed(params: &Value) -> Result<Elicitation, String> {
    parse(&params.to_string())
}

/// Form with one field.
fn one(schema: &Value) -> Elicitation {
    parsed(&form(&json!({ "f": schema }), &json!(["f"]))).unwrap()
}

fn page(url: &str) -> Value {
    json!({ "mode": "url", "message": "Sign in", "url": url, "elicitationId": "p1", "requestId": 3 })
}

fn object(value: Value) -> Map<String, Value> {
    let Value::Object(members) = value else { panic!("{value}") };
    members
}

#[test]
fn every_field_type_is_read_in_the_agents_order() {
    let text = r#"{"mode":"form","message":"m","sessionId":"s","requestedSchema":{"type":"object","required":["z"],
        "properties":{"z":{"type":"string","minLength":1,"maxLength":3,"format":"email","pattern":"^a","title":"Z"},
        "n":{"type":"number","minimum":0.5},"i":{"type":"integer","maximum":9,"default":2,"description":"d"},
        "b":{"type":"boolean"},"e":{"type":"string","enum":["x","y"]},
        "t":{"type":"string","oneOf":[{"const":"x","title":"X","description":"about x"}],"default":"x"},
        "m":{"type":"array","items":{"type":"string","enum":["x"]},"minItems":1},
        "u":{"type":"array","items":{"anyOf":[{"const":"x","title":"X"}]},"default":["x"]},
        "new":{"type":"_colour"}}}}"#;
    let names: Vec<String> = parse(text).unwrap().fields().iter().map(|field| field.name.clone()).collect();
    assert_eq!(
        names,
        ["z", "n", "i", "b", "e", "t", "m", "u"],
        "an unknown type that is optional is left out"
    );
    let shown: Vec<String> = parse(text).unwrap().fields().iter().map(describe).collect();
    assert_eq!(
        shown,
        [
            "email, 1 to 3 characters, like ^a",
            "number, at least 0.5, optional",
            "whole number, at most 9, default 2",
            "yes or no, optional",
            "one of, optional",
            "one of, default x",
            "any of, separated by commas, at least 1 of them, optional",
            "any of, separated by commas, default x",
        ]
    );
    let json = serde_json::to_string(&parse(text).unwrap()).unwrap();
    assert_eq!(serde_json::from_str::<Elicitation>(&json).unwrap(), parse(text).unwrap());
}

#[test]
fn unusable_params_are_refused_with_their_name() {
    let text = json!({ "type": "string" });
    for (params, want) in [
        (json!([]), "params"),
        (json!({ "mode": "form" }), "message"),
        (json!({ "message": "m" }), "mode"),
        (json!({ "message": "m", "mode": "_voice" }), "mode"),
        (json!({ "message": "m", "mode": "form" }), "requestedSchema"),
        (json!({ "message": "m", "mode": "url", "url": "https://a" }), "elicitationId"),
        (page("file:///etc/passwd"), "url"),
        (page("javascript:alert(1)"), "url"),
        (page("https://"), "url"),
        (page("https://a b/"), "url"),
        (page("https://a/\u{202e}"), "url"),
        (page(&format!("https://a/{}", "x".repeat(2_100))), "url"),
        (form(&json!({ "a": text }), &json!(["b"])), "requestedSchema.required"),
        (form(&json!({ "a": text }), &json!("a")), "requestedSchema.required"),
        (form(&json!([]), &json!([])), "requestedSchema.properties"),
        (form(&json!({ "a": 1 }), &json!([])), "requestedSchema.properties.a.type"),
        (form(&json!({ "a": { "type": "object" } }), &json!(["a"])), "requestedSchema.properties.a.type"),
        (form(&json!({ "": text }), &json!([])), "requestedSchema.properties."),
        (form(&json!({ " \u{2003}": text }), &json!([])), "requestedSchema.properties. \u{2003}"),
        (
            form(&json!({ "a": { "type": "string", "minLength": "1" } }), &json!([])),
            "requestedSchema.properties.a.minLength",
        ),
        (
            form(&json!({ "a": { "type": "string", "enum": [] } }), &json!([])),
            "requestedSchema.properties.a.enum",
        ),
        (
            form(&json!({ "a": { "type": "integer", "maximum": 1, "default": 2 } }), &json!([])),
            "requestedSchema.properties.a.default",
        ),
    ] {
        assert_eq!(parsed(&params).unwrap_err(), want, "{params}");
    }
    let many: Map<String, Value> = (0..51).map(|n| (format!("f{n:02}"), text.clone())).collect();
    assert_eq!(parsed(&form(&json!(many), &json!([]))).unwrap_err(), "requestedSchema.properties.f50");
    let twice = r#"{"mode":"form","message":"m","requestedSchema":{"properties":{"a":{"type":"boolean"},"a":{"type":"boolean"}}}}"#;
    assert_eq!(parse(twice).unwrap_err(), "requestedSchema.properties.a");
    assert_eq!(parse(&" ".repeat(70_000)).unwrap_err(), "params (too long)");
}

#[test]
fn values_are_checked_against_the_schema() {
    let text = |more: Value| {
        let mut schema = object(more);
        schema.insert("type".to_owned(), json!("string"));
        Value::from(schema)
    };
    let (number, integer) =
        (json!({ "type": "number", "minimum": 0.5, "maximum": 2 }), json!({ "type": "integer" }));
    let choice = text(json!({ "enum": ["x", "y"] }));
    let choices = json!({ "type": "array", "items": { "type": "string", "enum": ["x", "y"] }, "minItems": 1, "maxItems": 2 });
    for (schema, valid, invalid) in [
        (text(json!({})), vec![json!(""), json!("é")], vec![json!(1), json!(null), json!(["a"])]),
        (
            text(json!({ "minLength": 2, "maxLength": 3 })),
            vec![json!("éé"), json!("abc")],
            vec![json!("é"), json!("abcd")],
        ),
        (
            text(json!({ "format": "email" })),
            vec![json!("a@b.c")],
            vec![json!("a"), json!("a@"), json!("a b@c"), json!("a@b..c")],
        ),
        (
            text(json!({ "format": "uri" })),
            vec![json!("https://a/b?c"), json!("urn:a:b")],
            vec![json!("a"), json!("https://"), json!("1a:b"), json!("a: b")],
        ),
        (
            text(json!({ "format": "date" })),
            vec![json!("2024-02-29")],
            vec![json!("2023-02-29"), json!("2024-13-01"), json!("2024-1-1"), json!("+024-01-01")],
        ),
        (
            text(json!({ "format": "date-time" })),
            vec![json!("2026-11-23T10:00:00Z"), json!("2026-11-23T10:00:00.25+01:00")],
            vec![
                json!("2026-11-23"),
                json!("2026-11-23T25:00:00Z"),
                json!("2026-11-23T10:00:00"),
                json!("2026-11-23T10:00:00.Z"),
            ],
        ),
        (text(json!({ "format": "hostname" })), vec![json!("anything")], vec![]),
        (
            number,
            vec![json!(0.5), json!(2), json!(1.25)],
            vec![json!(0.4), json!(2.1), json!("1"), json!(true)],
        ),
        (integer, vec![json!(-3), json!(2.0)], vec![json!(2.5), json!("2"), json!(1e300)]),
        (
            json!({ "type": "boolean" }),
            vec![json!(true), json!(false)],
            vec![json!("true"), json!(1), json!(null)],
        ),
        (choice, vec![json!("x")], vec![json!("z"), json!(1), json!(["x"])]),
        (
            choices,
            vec![json!(["x"]), json!(["y", "x"])],
            vec![json!([]), json!(["x", "x"]), json!(["z"]), json!("x"), json!([1])],
        ),
    ] {
        let form = one(&schema);
        for value in valid {
            assert_eq!(form.check(&object(json!({ "f": value }))), Ok(()), "{schema} {value}");
        }
        for value in invalid {
            let why = form.check(&object(json!({ "f": value }))).unwrap_err();
            assert!(why.starts_with("Field \"f\": must "), "{schema} {value}: {why}");
        }
        assert_eq!(form.check(&Map::new()).unwrap_err(), "Field \"f\": a value is required.");
        let more = form.check(&object(json!({ "f": 1, "g": 2 })));
        assert_eq!(more.unwrap_err(), "Field \"g\": the form has no such field.");
    }
    let page = parsed(&page("https://a/")).unwrap();
    assert_eq!(page.check(&Map::new()), Ok(()));
    assert!(page.check(&object(json!({ "f": 1 }))).unwrap_err().contains("takes no values"));
}

#[test]
fn typed_words_become_values() {
    let schema = json!({
        "name": { "type": "string", "minLength": 2 },
        "age": { "type": "integer", "minimum": 18 },
        "ratio": { "type": "number" },
        "news": { "type": "boolean", "default": true },
        "colour": { "type": "string", "oneOf": [{ "const": "r", "title": "Red" }, { "const": "g", "title": "Green" }] },
        "days": { "type": "array", "items": { "type": "string", "enum": ["mon", "tue"] } },
    });
    let form = parsed(&form(&schema, &json!(["name", "age"]))).unwrap();
    let read = |words: &[&str]| {
        parse_fields(&form, &words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    };
    for (words, want) in [
        (vec!["name=Ann B=C", "age=20"], json!({ "name": "Ann B=C", "age": 20, "news": true })),
        (
            vec!["age=18", "name=Bo", "ratio=0.5", "news=no", "colour=2", "days=mon, 2"],
            json!({ "name": "Bo", "age": 18, "ratio": 0.5, "news": false, "colour": "g", "days": ["mon", "tue"] }),
        ),
        (
            vec!["age=18", "name=Bo", "ratio=2", "colour=red", "days="],
            json!({ "name": "Bo", "age": 18, "ratio": 2, "news": true, "colour": "r", "days": [] }),
        ),
    ] {
        assert_eq!(read(&words).map(Value::from), Ok(want), "{words:?}");
    }
    for (words, want) in [
        (vec!["name=Ann"], "Field \"age\": a value is required."),
        (vec!["name=Ann", "age=17"], "Field \"age\": must be at least 18."),
        (vec!["name=Ann", "age=x"], "Field \"age\": must be a whole number."),
        (vec!["name=A", "age=18"], "Field \"name\": must have at least 2 characters."),
        (vec!["name=Ann", "age=18", "age=19"], "Field \"age\": it is given twice."),
        (vec!["name=Ann", "age=18", "colour=blue"], "Field \"colour\": must be one of \"r\", \"g\"."),
        (vec!["name=Ann", "age=18", "news=maybe"], "Field \"news\": must be yes or no."),
        (vec!["name=Ann", "age=18", "ratio=inf"], "Field \"ratio\": must be a number."),
    ] {
        assert_eq!(read(&words), Err(want.to_owned()), "{words:?}");
    }
    assert!(
        read(&["Ann"])
            .unwrap_err()
            .starts_with("Field \"Ann\": the form has no such field; use FIELD=VALUE with ")
    );
    let single = one(&json!({ "type": "integer" }));
    assert_eq!(parse_fields(&single, &["7".to_owned()]).map(Value::from), Ok(json!({ "f": 7 })));
}

#[test]
fn options_answer_simple_questions() {
    let ids = |form: &Elicitation| -> Vec<String> {
        form.options().iter().map(|option| format!("{} {}", option.id, option.name)).collect()
    };
    let choice = one(&json!({ "type": "string", "enum": ["slow", "fast"], "default": "fast" }));
    assert_eq!(ids(&choice), ["choice-1 slow", "choice-2 fast (default)", "decline Decline"]);
    let boolean = one(&json!({ "type": "boolean" }));
    assert_eq!(ids(&boolean), ["choice-1 Yes", "choice-2 No", "decline Decline"]);
    assert_eq!(ids(&one(&json!({ "type": "string" }))), ["decline Decline"]);
    let filled = one(&json!({ "type": "string", "default": "x" }));
    assert_eq!(ids(&filled), ["accept Submit the defaults", "decline Decline"]);
    let page = parsed(&page("https://a/")).unwrap();
    assert_eq!(ids(&page), ["accept I will open the page", "decline Decline"]);
    for (form, id, want) in [
        (&choice, "choice-1", Some(json!({ "action": "accept", "content": { "f": "slow" } }))),
        (&boolean, "choice-2", Some(json!({ "action": "accept", "content": { "f": false } }))),
        (&filled, "accept", Some(json!({ "action": "accept", "content": { "f": "x" } }))),
        (&page, "accept", Some(json!({ "action": "accept" }))),
        (&page, "decline", Some(json!({ "action": "decline" }))),
        (&choice, "choice-0", None),
        (&choice, "choice-3", None),
        (&choice, "choice-x", None),
        (&choice, "slow", None),
    ] {
        let answer = form.answer_of(id);
        let got = answer.as_ref().map(|answer| serde_json::from_str::<Value>(&result(answer)).unwrap());
        assert_eq!(got, want, "{id}");
        if let Some(answer) = answer {
            assert_eq!(form.option_of(&answer).as_deref(), Some(id), "the answer names its option");
        }
    }
    assert_eq!(result(&ElicitationAnswer::Cancel), r#"{"action":"cancel"}"#);
    assert_eq!(page.option_of(&ElicitationAnswer::Cancel), None);
}

#[test]
fn host_and_warnings_tell_where_a_page_leads() {
    let none: [&str; 0] = [];
    for (url, host, warnings) in [
        ("https://github.com/login?a=b#c", "github.com", &none[..]),
        ("HTTPS://Example.org:8443", "Example.org", &none),
        ("http://localhost:8080/cb", "localhost", &none),
        ("http://[::1]:8080/cb", "[::1]", &none),
        ("http://example.org/", "example.org", &["The connection is not encrypted."]),
        ("https://github.com@evil.example/", "evil.example", &["The part before @ is not the host."]),
        (
            "https://xn--80ak6aa92e.com/",
            "xn--80ak6aa92e.com",
            &["The host has letters that may look like others."],
        ),
        ("https://a.xn--p1ai/", "a.xn--p1ai", &["The host has letters that may look like others."]),
        ("https://аpple.com/", "аpple.com", &["The host has letters that may look like others."]),
    ] {
        let ElicitationMode::Url { host: got, .. } = parsed(&page(url)).unwrap().mode else {
            panic!("{url}")
        };
        assert_eq!((got.as_str(), url_warnings(url).as_slice()), (host, warnings), "{url}");
    }
}

proptest! {
    #[test]
    fn parse_accepts_any_text(text in "\\PC{0,80}") {
        let _ = parse(&text);
        let _ = parsed(&page(&text));
        let _ = parse_fields(&one(&json!({ "type": "string", "format": "date-time" })), &[text]);
    }

    #[test]
    fn typed_values_that_are_read_pass_the_check(word in "(f=)?[-+0-9.eExy, ]{0,12}") {
        for schema in [
            json!({ "type": "string", "maxLength": 5 }), json!({ "type": "number", "maximum": 10 }),
            json!({ "type": "integer", "minimum": -5 }), json!({ "type": "boolean" }),
            json!({ "type": "array", "items": { "type": "string", "enum": ["x", "y"] } }),
        ] {
            let form = one(&schema);
            if let Ok(content) = parse_fields(&form, std::slice::from_ref(&word)) {
                prop_assert_eq!(form.check(&content), Ok(()));
            }
        }
    }
}
