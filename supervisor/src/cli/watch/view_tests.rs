use super::*;
use crate::cli::leases::fixture::{NOW_MS, lease, three};
use acp_shared::protocol::LeaseState;

fn view() -> View {
    let args = WatchArgs { filter: Filter::default(), sort: SortKey::Age, interval: 1_000 };
    let mut view = View::new(&args, true);
    view.update(Ok(three()), NOW_MS);
    view
}

fn press(view: &mut View, code: KeyCode) -> KeyOutcome {
    view.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn type_in(view: &mut View, text: &str) {
    for c in text.chars() {
        assert_eq!(press(view, KeyCode::Char(c)), KeyOutcome::Stay, "{c}");
    }
}

/// Rendered lines, and the index of the selected one.
fn rendered(view: &mut View, width: u16, height: u16) -> (Vec<String>, Option<usize>) {
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    view.draw(&mut buffer);
    let line = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    let chosen = (0..height).find(|y| buffer[(0, *y)].modifier.contains(Modifier::REVERSED));
    ((0..height).map(line).collect(), chosen.map(usize::from))
}

#[test]
fn initial_view_shows_living_leases() {
    let (lines, chosen) = rendered(&mut view(), 100, 8);
    assert_eq!(
        lines,
        [
            "2 living, 1 ended  shown: 2  sort: age↓  2027-01-15T08:00:00Z",
            "LEASE       STATE    KIND   SESSION                GATEWAY   PIDS     UPTIME   MEM  TREE   BUF  RUNG",
            "0190b5f0-0  open     agent  agent:claude:acp:019…  01000000  812/815   1h01m   90M     4  1.4K  R2",
            "0190b5f0-1  closing  term   agent:claude:acp:019…  01000000  812/815   1m01s  2.0M     1     0  R2",
            "",
            "",
            "",
            "↑↓ select  ⏎ details  / filter  s sort  r reverse  a ended too  q quit"
        ]
    );
    assert_eq!(chosen, None);
}

#[test]
fn keys_select_sort_filter_and_leave() {
    let mut view = view();
    let shown = |view: &View| -> String {
        view.filtered_leases().iter().filter_map(|l| l.lease_id.to_string().chars().last()).collect()
    };
    assert_eq!(shown(&view), "12");
    type_in(&mut view, "a");
    assert_eq!(shown(&view), "312");
    type_in(&mut view, "r");
    assert_eq!(shown(&view), "213");
    type_in(&mut view, "rs/CODEX");
    assert_eq!((shown(&view).as_str(), view.order.key), ("3", SortKey::Id));
    press(&mut view, KeyCode::Enter);
    press(&mut view, KeyCode::Esc);
    assert_eq!(shown(&view), "123");
    type_in(&mut view, "jj");
    let (_, chosen) = rendered(&mut view, 100, 20);
    assert_eq!(chosen, Some(3));
    press(&mut view, KeyCode::Enter);
    let (lines, chosen) = rendered(&mut view, 100, 30);
    assert_eq!(chosen, Some(3));
    assert!(
        lines.iter().any(|l| l.contains("of agent      0190b5f0-0000-7000-8000-000000000001")),
        "{lines:#?}"
    );
    assert!(lines.iter().all(|line| !line.contains('\u{1b}')));
    assert_eq!(press(&mut view, KeyCode::Esc), KeyOutcome::Stay);
    assert_eq!(press(&mut view, KeyCode::Esc), KeyOutcome::Leave);
    assert_eq!(press(&mut view, KeyCode::Char('q')), KeyOutcome::Leave);
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(view.key(ctrl_c), KeyOutcome::Interrupted);
    type_in(&mut view, "/q");
    assert_eq!(view.key(ctrl_c), KeyOutcome::Interrupted);
}

#[test]
fn selection_follows_its_lease_and_stays_visible() {
    let mut view = view();
    let many: Vec<_> = (10..60)
        .map(|n| lease(&format!("0190b5f0-0000-7000-8000-0000000000{n}"), 1, "agent:x:acp:1", 100 - n))
        .collect();
    view.update(Ok(many.clone()), NOW_MS);
    rendered(&mut view, 100, 13);
    press(&mut view, KeyCode::PageDown);
    let (lines, chosen) = rendered(&mut view, 100, 13);
    assert!(chosen.is_some_and(|at| lines[at].starts_with("00000020")), "{lines:#?}");
    press(&mut view, KeyCode::End);
    let (lines, chosen) = rendered(&mut view, 100, 13);
    assert!(chosen.is_some_and(|at| lines[at].starts_with("00000059")), "{lines:#?}");
    // A new first lease moves the selected one.
    let mut more = many;
    more.insert(0, lease("0190b5f0-0000-7000-8000-000000000009", 1, "agent:x:acp:1", 900));
    view.update(Ok(more), NOW_MS);
    let (lines, chosen) = rendered(&mut view, 100, 13);
    assert!(chosen.is_some_and(|at| lines[at].starts_with("00000059")), "{lines:#?}");
    for (width, height) in [(1, 1), (5, 2), (20, 3), (300, 100), (0, 0)] {
        rendered(&mut view, width, height);
    }
}

#[test]
fn unreachable_supervisor_is_reported_and_last_view_stays() {
    let mut view = view();
    view.update(Err("gone \u{1b}[2J".into()), NOW_MS + 1_000);
    let (lines, _) = rendered(&mut view, 100, 8);
    assert_eq!(lines[7], "no answer, retrying: gone \\u{1b}[2J");
    assert!(lines[2].contains(LeaseState::Open.as_str()), "{lines:#?}");
}
