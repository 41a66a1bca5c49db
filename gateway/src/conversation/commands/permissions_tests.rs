#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use crate::tests::permission_row;
use acp_core::backend::AgentRequestKind;

fn option(id: &str, kind: &str) -> PermissionOption {
    PermissionOption { id: id.to_owned(), name: format!("Name of {id}"), kind: kind.to_owned() }
}

fn pending(at: u64) -> PermissionRow {
    permission_row(&SessionKey::parse("agent:demo:acp:1").unwrap(), at)
}

#[test]
fn options_are_picked_by_kind_number_or_id() {
    let (once, no) = (option("y", "allow_once"), option("n", "reject_once"));
    let both = [option("a", "allow_always"), once, no, option("1", "odd")];
    let always = [option("a", "allow_always"), option("r", "reject_always")];
    let shifted = [option("2", "allow_always"), option("1", "reject_once"), option("7", "allow_once")];
    let by = |text: &str| PermissionChoice::Option(text.to_owned());
    for (case, options, verdict, want) in [
        ("once before always", &both[..], PermissionChoice::Allow, Some("y")),
        ("always when there is no once", &always[..], PermissionChoice::Allow, Some("a")),
        ("deny", &both[..], PermissionChoice::Deny, Some("n")),
        ("permanent deny", &always[..], PermissionChoice::Deny, Some("r")),
        ("no rejecting option", &both[..2], PermissionChoice::Deny, None),
        ("number", &both[..], by("2"), Some("y")),
        ("a position before an id that is a number", &both[..], by("1"), Some("a")),
        ("numbers as ids, shifted", &shifted[..], by("2"), Some("1")),
        ("numbers as ids, shifted", &shifted[..], by("1"), Some("2")),
        ("an id that is no position", &shifted[..], by("7"), Some("7")),
        ("id", &both[..], by("n"), Some("n")),
        ("number zero", &both[..], by("0"), None),
        ("number too high", &both[..], by("5"), None),
        ("no options", &both[..0], PermissionChoice::Allow, None),
    ] {
        let picked = pick_option(options, &verdict, true).ok();
        assert_eq!(picked.map(|option| option.id.as_str()), want, "{case}");
    }
}

#[test]
fn permission_is_picked_by_id_or_if_unique() {
    let rows = [pending(1), pending(12)];
    let id = |at: u64| format!("01890a5d-ac96-774b-bcce-b302099a8057:{at}");
    let pick = |rows: &[PermissionRow], wanted: Option<&str>| {
        pick_permission(rows, wanted).map(|row| row.request.at)
    };
    assert_eq!(pick(&rows[..1], None), Ok(1));
    assert_eq!(pick(&rows, Some(&id(1))), Ok(1));
    assert_eq!(pick(&rows, Some(&id(12))), Ok(12));
    assert_eq!(pick(&rows[1..], Some("01890a5d")), Ok(12));
    // Short ids differ between permissions.
    assert_eq!(pick(&rows, Some(&short_id(&id(12)))), Ok(12));
    assert!(pick(&rows[..1], Some(&short_id(&id(12)))).unwrap_err().starts_with("No pending"), "H4");
    assert_eq!(pick(&[], None), Err("The agent waits for no permission.".to_owned()));
    assert!(pick(&rows, None).unwrap_err().starts_with("Several permissions match."));
    assert!(pick(&rows, Some("x")).unwrap_err().starts_with("No pending permission has that id."));
}

/// H4: the id of a settled permission may be a prefix of the id of a pending one.
#[test]
fn full_id_never_matches_another_permission() {
    let id = |at: u64| format!("01890a5d-ac96-774b-bcce-b302099a8057:{at}");
    let picked = pick_permission(&[pending(12)], Some(&id(1))).map(|row| row.request.at);
    assert!(picked.unwrap_err().starts_with("No pending permission has that id."));
    let lease = "01890a5d-ac96-774b-bcce-b302099a8057:";
    assert_eq!(pick_permission(&[pending(12)], Some(lease)).map(|row| row.request.at), Ok(12));
}

#[test]
fn pending_list_has_option_numbers() {
    let id = short_id("01890a5d-ac96-774b-bcce-b302099a8057:1");
    let want = format!(
        "The agent waits for permission:\n- Write (id {id})\n  1. Option y (allow once)\n  2. Option n \
         (reject once)"
    );
    assert_eq!(pending_text(&[pending(1)], Detail::Subject, true), want);
    assert_eq!(pending_text(&[], Detail::Preview, true), "The agent waits for no permission.");
    // A bare title is followed by the details of the call.
    let mut bare = pending(1);
    bare.request.params =
        r#"{"toolCall":{"title":"Write","rawInput":{"command":"rm -rf build"}}}"#.to_owned();
    for (detail, is_markdown, shown) in [
        (Detail::Subject, true, "  rm -rf build"),
        (Detail::Preview, true, "```sh\nrm -rf build\n```"),
        (Detail::Preview, false, "    rm -rf build"),
    ] {
        let text = pending_text(std::slice::from_ref(&bare), detail, is_markdown);
        let want = format!("The agent waits for permission:\n- Write (id {id})\n{shown}\n  1. ");
        assert!(text.starts_with(&want), "{text}");
    }
    // Names from the agent cannot change the structure of the list.
    let mut hostile = pending(1);
    let options = vec![PermissionOption {
        id: "y".to_owned(),
        name: "**x** @everyone\n  2. <https://a.b>".to_owned(),
        kind: "allow_once".to_owned(),
    }];
    let refused = pick_option(&options, &PermissionChoice::Option("7".to_owned()), true);
    hostile.request.what = AgentRequestKind::Permission {
        title: "`Write`\n- Read".to_owned(),
        tool_kind: None,
        options: options.clone(),
    };
    for (is_markdown, title, name) in [
        (true, "\\`Write\\` - Read", "\\*\\*x\\*\\* \\@everyone   2. \\<https\\://a.b\\>"),
        (false, "`Write` - Read", "**x** @everyone   2. <https://a.b>"),
    ] {
        let want = format!("The agent waits for permission:\n- {title} (id {id})\n  1. {name} (allow once)");
        assert_eq!(pending_text(&[hostile.clone()], Detail::Preview, is_markdown), want);
    }
    let name = "“\\*\\*x\\*\\* \\@everyone   2. \\<https\\://a.b\\>”";
    let want = format!("The agent offers no such option. Use /acp answer with one of: 1. {name}.");
    assert_eq!(refused.unwrap_err(), want);
}

#[test]
fn reply_previews_a_request_only_if_it_is_the_only_one() {
    let rows = [pending(1), pending(2)];
    let details = [&rows[..0], &rows[..1], &rows[..]].map(Detail::of_reply);
    assert_eq!(details, [Detail::Preview, Detail::Preview, Detail::Subject]);
}
