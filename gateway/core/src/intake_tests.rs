use super::*;
use proptest::prelude::*;
use serde_json::Value;
use serde_json::value::RawValue;

fn repair(line: &str) -> String {
    AgentLine::repair(line.as_bytes()).text().to_owned()
}

#[test]
fn lone_surrogates_become_replacement_characters() {
    for (line, want) in [
        (r#""\ud83d""#, r#""\ufffd""#),
        (r#""\ude00""#, r#""\ufffd""#),
        (r#""\uD83D\uDE00""#, r#""\uD83D\uDE00""#),
        (r#""\ud83d\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#),
        (r#""\ude00\ud83d""#, r#""\ufffd\ufffd""#),
        (r#""\\ud83d""#, r#""\\ud83d""#),
        (r#""\\\ud83d\n""#, r#""\\\ufffd\n""#),
        (r#"{"\udc00":["\ud800x"]}"#, r#"{"\ufffd":["\ufffdx"]}"#),
        (r#""\ud83d\n\ude00""#, r#""\ufffd\n\ufffd""#),
        (r#""\ud83"#, r#""\ud83"#),
        (r#""\ud83d"#, r#""\ufffd"#),
        ("", ""),
    ] {
        assert_eq!(repair(line), want, "{line}");
    }
}

#[test]
fn invalid_utf8_becomes_replacement_characters() {
    let line = AgentLine::repair(b"{\"a\":\"\xf0\x9f\x98\",\"b\":\"\xed\xa0\xbd\"}");
    assert!(line.is_repaired());
    let value: Value = serde_json::from_str(line.text()).unwrap();
    assert_eq!(value["a"], "\u{fffd}");
    assert!(value["b"].as_str().unwrap().chars().all(|c| c == '\u{fffd}'));
    assert!(!AgentLine::repair("{\"a\":\"😀\"}".as_bytes()).is_repaired());
}

#[test]
fn unrepresentable_values_become_strings() {
    for (line, want) in [
        (r#"{"n":1e999,"m":-2E+400}"#.to_owned(), r#"{"n":"1e999","m":"-2E+400"}"#.to_owned()),
        (r#"[1e308,-0.0,1E-999,12]"#.to_owned(), r#"[1e308,-0.0,1E-999,12]"#.to_owned()),
        (format!("[{}]", "9".repeat(400)), format!("[\"{}\"]", "9".repeat(400))),
        (r#"["1e999"]"#.to_owned(), r#"["1e999"]"#.to_owned()),
    ] {
        assert_eq!(repair(&line), want, "{line}");
    }
    let deep = format!("{}1,\"\\ud800\"{}", "[".repeat(5_000), "]".repeat(5_000));
    let want = format!("{}{TOO_DEEP}{}", "[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX));
    assert_eq!(repair(&deep), want);
    let fits = format!("{}1{}", "[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX));
    assert_eq!(repair(&fits), fits);
}

#[test]
fn a_long_number_is_found_at_every_offset() {
    let number = format!("-9.{}", "9".repeat(LONG_NUMBER_BYTES - 3));
    for spaces in 0..LONG_NUMBER_BYTES {
        assert!(may_need_repair(format!("[{}{number}]", " ".repeat(spaces)).as_bytes()), "{spaces}");
    }
    let usual = r#"{"jsonrpc":"2.0","method":"session/update","params":{"text":"one\n{[two]}","n":12.5}}"#;
    assert!(!may_need_repair(usual.as_bytes()));
}

#[test]
fn an_escape_and_an_exponent_are_found_at_every_offset() {
    for (value, spaces) in
        ["\"\\ud800\"", "1e999", "1E+999"].into_iter().flat_map(|value| (0..200).map(move |n| (value, n)))
    {
        let line = format!("[{}{value}]", " ".repeat(spaces));
        assert!(may_need_repair(line.as_bytes()), "{value} after {spaces}");
        assert!(matches!(readable_payload(&line), Cow::Owned(_)), "{value} after {spaces}");
    }
}

#[test]
fn an_exponent_in_an_id_needs_no_scan() {
    for (line, want) in [
        (r#"{"id":"01a22-7a-91e22"}"#, false),
        (r#"{"id":"1e999"}"#, false),
        (r#"{"id":"a1e999"}"#, false),
        (r#"{"n":1e9}"#, false),
        ("1e999", true),
        (r#"{"n":-1.5E+400}"#, true),
        ("[ 1e999]", true),
        ("[0,1e999]", true),
        ("[0,\n1e999]", true),
    ] {
        assert_eq!(may_need_repair(line.as_bytes()), want, "{line}");
    }
    let long = format!("[{}.5e99]", "9".repeat(250));
    assert!(may_need_repair(long.as_bytes()));
}

#[test]
fn surrogates_at_string_ends_are_kept() {
    let source = r#"{"t":"\ude00 a \ud83d","u":"\ud83d","v":"\\ud83d"}"#;
    let line = AgentLine::repair(source.as_bytes());
    let literal = |name: &str| {
        let members = crate::jsonrpc::ObjectMembers::parse(line.text()).unwrap();
        members.get(name).unwrap()
    };
    assert_eq!(line.leading_half(literal("t")), Some(0xde00));
    assert_eq!(line.trailing_half(literal("t")), Some(0xd83d));
    assert_eq!((line.leading_half(literal("u")), line.trailing_half(literal("u"))), (None, Some(0xd83d)));
    assert_eq!((line.leading_half(literal("v")), line.trailing_half(literal("v"))), (None, None));
    assert_eq!(rejoin_surrogates(literal("t"), Some((0xd83d, 0xde00)), true), "\"😀 a \"");
    assert_eq!(rejoin_surrogates(literal("u"), None, true), "\"\"");
    // Replacement characters written by the agent are not surrogates.
    let line = AgentLine::repair(br#"["\ufffd","\ud83d"]"#);
    assert_eq!(line.trailing_half(line.text().get(1..9).unwrap()), None);
}

/// Arbitrary JSON with raw or escaped characters, and lone surrogates.
fn json() -> impl Strategy<Value = String> {
    let unit = prop_oneof![
        4 => "[a-z\\\\\" ]".prop_map(|text| {
            let literal = serde_json::to_string(&text).unwrap();
            literal.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap().to_owned()
        }),
        2 => any::<u16>().prop_map(|unit| format!("\\u{unit:04x}")),
        3 => (0xd7f0_u16..0xe010).prop_map(|unit| format!("\\u{unit:04X}")),
        1 => any::<char>().prop_filter("raw", |c| !c.is_control() && *c != '"' && *c != '\\').prop_map(String::from),
        1 => Just("\\\\u".to_owned()),
        1 => Just("\\n".to_owned()),
    ];
    let text = prop::collection::vec(unit, 0..8).prop_map(|units| format!("\"{}\"", units.concat()));
    let number = prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        (1_u32..9, 0_i32..2_000).prop_map(|(n, e)| format!("{n}e{e}")),
        (any::<f64>()).prop_filter("finite", |n| n.is_finite()).prop_map(|n| format!("{n:?}")),
    ];
    let leaf = prop_oneof![3 => text.clone(), 1 => number, 1 => Just("null".to_owned())];
    leaf.prop_recursive(4, 64, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(|list| format!("[{}]", list.join(","))),
            prop::collection::vec((text.clone(), inner.clone()), 0..5).prop_map(|members| {
                let members: Vec<_> =
                    members.into_iter().map(|(name, value)| format!("{name} :{value}")).collect();
                format!("{{{}}}", members.join(", "))
            }),
            (inner, 0_usize..200)
                .prop_map(|(value, depth)| { format!("{}{value}{}", "[".repeat(depth), "]".repeat(depth)) }),
        ]
    })
}

/// Greatest nesting of JSON text.
fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest, mut is_string, mut bytes) = (0, 0, false, text.bytes());
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => is_string = !is_string,
            b'\\' if is_string => drop(bytes.next()),
            b'[' | b'{' if !is_string => depth += 1,
            b']' | b'}' if !is_string => depth -= 1,
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

#[test]
fn only_the_value_beyond_the_maximum_nesting_is_replaced() {
    let nested = |value: &str| format!("{}{{\"a\" :{value}}}{}", "[".repeat(95), "]".repeat(95));
    let deepest = nested("[[[[0]]]]");
    assert_eq!((nesting(&deepest), repair(&deepest)), (DEPTH_MAX, deepest));
    assert_eq!(repair(&nested("[[[[[\"]\"]]]]]")), nested("[[[[\"(nested too deeply)\"]]]]"));
}

proptest! {
    /// Repaired raw JSON is strict JSON; strict JSON stays unchanged.
    #[test]
    fn repaired_json_is_strict_json(line in json()) {
        prop_assert!(serde_json::from_str::<&RawValue>(&line).is_ok(), "{}", line);
        let fixed = repair(&line);
        prop_assert!(serde_json::from_str::<Value>(&fixed).is_ok(), "{} became {}", line, fixed);
        if serde_json::from_str::<Value>(&line).is_ok() && nesting(&line) <= DEPTH_MAX {
            prop_assert_eq!(&fixed, &line);
        }
        prop_assert_eq!(repair(&fixed), fixed.clone());
        prop_assert_eq!(readable_payload(&line).into_owned(), fixed);
        let mut scanner = Scanner::new(&line);
        scanner.run();
        prop_assert!(may_need_repair(line.as_bytes()) || scanner.finish().0.is_none(), "{} is not scanned", line);
    }

    #[test]
    fn repair_accepts_any_bytes(bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'"'), Just(b'\\'), Just(b'u'), Just(b'd')], 0..60)) {
        let line = AgentLine::repair(&bytes);
        if let Ok(text) = std::str::from_utf8(&bytes) {
            let was_json = serde_json::from_str::<&RawValue>(text).is_ok();
            prop_assert_eq!(serde_json::from_str::<&RawValue>(line.text()).is_ok(), was_json);
        }
    }
}
