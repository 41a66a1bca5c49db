use super::*;
use proptest::prelude::*;

fn request<'a>(id: &'a str, method: &'a str, params: Option<&'a str>) -> RpcMessage<'a> {
    RpcMessage::Request { id, method: method.into(), params }
}

#[test]
fn messages_are_classified() {
    let notification =
        |method: &'static str, params| RpcMessage::Notification { method: method.into(), params };
    let response = |id, outcome| RpcMessage::Response { id, outcome };
    let table = [
        (r#"{"jsonrpc":"2.0","id":0,"method":"a"}"#, Ok(request("0", "a", None))),
        (r#"{"id":"0","method":"a","params":{}}"#, Ok(request("\"0\"", "a", Some("{}")))),
        (r#"{"id":null,"method":"a","params":null}"#, Ok(request("null", "a", Some("null")))),
        (r#"{"id":1.50,"method":"a"}"#, Ok(request("1.50", "a", None))),
        (r#"{"method":"a\u0062","params":[1]}"#, Ok(notification("ab", Some("[1]")))),
        (r#"{"id":0,"result":null}"#, Ok(response(Some("0"), Ok("null")))),
        (r#"{"id":"x","result":{},"error":null}"#, Ok(response(Some("\"x\""), Ok("{}")))),
        (r#"{"id":null,"error":{"code":1}}"#, Ok(response(Some("null"), Err(r#"{"code":1}"#)))),
        (r#"{"error":{}}"#, Ok(response(None, Err("{}")))),
        (r#"{"id":1,"id":2,"method":"a"}"#, Ok(request("2", "a", None))),
        (r#" {"id":1,"method":"a"} "#, Ok(request("1", "a", None))),
        (r#"{"id":1,"method":7}"#, Err(RpcParseError::NoMessage)),
        (r#"{"id":1}"#, Err(RpcParseError::NoMessage)),
        ("{}", Err(RpcParseError::NoMessage)),
        (r#"[{"id":1,"method":"a"}]"#, Err(RpcParseError::Batch)),
        ("[]", Err(RpcParseError::Batch)),
        ("7", Err(RpcParseError::NotObject)),
        ("\"{}\"", Err(RpcParseError::NotObject)),
        ("", Err(RpcParseError::NotJson)),
        ("[", Err(RpcParseError::NotJson)),
        ("{} {}", Err(RpcParseError::NotJson)),
        ("Loading model…", Err(RpcParseError::NotJson)),
    ];
    for (line, want) in table {
        assert_eq!(RpcMessage::parse(line), want, "{line}");
    }
}

#[test]
fn object_members_keep_order_duplicates_and_spelling() {
    let text = r#"{ "b" : 12345678901234567890123,"a":1e3, "b":{"x":[1 ,2]} ,"t":"t" }"#;
    let members = ObjectMembers::parse(text).unwrap();
    let want = [("b", "12345678901234567890123"), ("a", "1e3"), ("b", r#"{"x":[1 ,2]}"#), ("t", "\"t\"")];
    assert!(members.iter().eq(want));
    assert_eq!(members.get("b"), Some(r#"{"x":[1 ,2]}"#));
}

#[test]
fn deeply_nested_message_is_parsed() {
    let deep = format!("{{\"method\":\"a\",\"params\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(matches!(RpcMessage::parse(&deep), Ok(RpcMessage::Notification { .. })));
}

#[test]
fn sent_messages_are_one_line_and_round_trip() {
    let line = String::from_utf8(super::request("new:1", "session/new", r#"{"cwd":"/"}"#)).unwrap();
    let body = line.strip_suffix('\n').unwrap();
    assert_eq!(RpcMessage::parse(body), Ok(request("\"new:1\"", "session/new", Some(r#"{"cwd":"/"}"#))));
    let answers = [
        (Ok("{\n\"a\":1}".to_owned()), "{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{ \"a\":1}}\n"),
        (
            Err(RpcError { code: -32602, message: "no \"path\"\n".into() }),
            "{\"jsonrpc\":\"2.0\",\"id\":0,\"error\":{\"code\":-32602,\"message\":\"no \\\"path\\\"\\n\"}}\n",
        ),
        (
            Ok("{".to_owned()),
            "{\"jsonrpc\":\"2.0\",\"id\":0,\"error\":{\"code\":-32603,\"message\":\"the answer could not be written as JSON\"}}\n",
        ),
    ];
    for (outcome, want) in answers {
        let line = String::from_utf8(reply("0", &outcome)).unwrap();
        assert_eq!(line, want);
        assert!(matches!(RpcMessage::parse(line.trim_end()), Ok(RpcMessage::Response { id: Some("0"), .. })));
    }
    for id in ["null", "\"x\""] {
        let line = String::from_utf8(reply(id, &Ok("{}".to_owned()))).unwrap();
        assert!(matches!(RpcMessage::parse(line.trim_end()), Ok(RpcMessage::Response { .. })), "{line}");
    }
}

fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("-0.0e+7".to_owned()),
        any::<i64>().prop_map(|n| n.to_string()),
        "\\PC{0,12}".prop_map(|s| quoted(&s)),
        Just("\"\\u0041\\n\"".to_owned()),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let space = "[ \t\n]{0,2}";
        prop_oneof![
            (prop::collection::vec(inner.clone(), 0..4), space)
                .prop_map(|(list, space)| format!("[{space}{}]", list.join(","))),
            (prop::collection::vec(("[ab\"]{0,3}", inner), 0..4), space).prop_map(|(list, space)| {
                let list: Vec<_> =
                    list.into_iter().map(|(k, v)| format!("{}{space}:{v}", quoted(&k))).collect();
                format!("{{{}{space}}}", list.join(","))
            }),
        ]
    })
}

proptest! {
    #[test]
    fn members_round_trip_byte_for_byte(
        members in prop::collection::vec(("[a-c\"é]{0,4}", json()), 0..6),
        space in "[ \t]{0,2}",
    ) {
        let list: Vec<_> =
            members.iter().map(|(k, v)| format!("{space}{}{space}:{v}{space}", quoted(k))).collect();
        let text = format!("{{{}}}", list.join(","));
        let read = ObjectMembers::parse(&text).unwrap();
        let same: Vec<_> = read.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        prop_assert_eq!(same, members);
    }

    #[test]
    fn length_of_quoted_text_is_computed_without_it(text in any::<String>()) {
        prop_assert_eq!(quoted_len(&text), quoted(&text).len());
    }

    #[test]
    fn parser_accepts_any_text(text in "[{}\\[\\]\",:0-9a-z\\\\ un]{0,80}") {
        let _ = RpcMessage::parse(&text);
    }
}
