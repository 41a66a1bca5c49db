//! Keys of the input line.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;

fn editor() -> (tempfile::TempDir, Editor) {
    let dir = tempfile::tempdir().unwrap();
    let editor = Editor::new(&dir.path().join("history"));
    (dir, editor)
}

fn press(editor: &mut Editor, keys: &str) -> Option<String> {
    let mut submitted = None;
    for word in keys.split(' ') {
        let (modifiers, name) = match word.split_once('-') {
            Some(("C", rest)) => (KeyModifiers::CONTROL, rest),
            Some(("M", rest)) => (KeyModifiers::ALT, rest),
            _ => (KeyModifiers::NONE, word),
        };
        let code = match name {
            "Enter" => KeyCode::Enter,
            "Tab" => KeyCode::Tab,
            "Esc" => KeyCode::Esc,
            "Up" => KeyCode::Up,
            "Down" => KeyCode::Down,
            "Left" => KeyCode::Left,
            "Home" => KeyCode::Home,
            "Back" => KeyCode::Backspace,
            "Space" => KeyCode::Char(' '),
            text if modifiers.is_empty() => {
                for c in text.chars() {
                    editor.key(KeyEvent::new(KeyCode::Char(c), modifiers), &data());
                }
                continue;
            }
            text => KeyCode::Char(text.chars().next().unwrap()),
        };
        if let EditorOutcome::Submitted(text) = editor.key(KeyEvent::new(code, modifiers), &data()) {
            submitted = Some(text);
        }
    }
    submitted
}

fn data() -> CompletionData {
    CompletionData { agents: vec!["demo".to_owned(), "devin".to_owned()], ..CompletionData::default() }
}

#[test]
fn keys_edit_the_text() {
    for (keys, want) in [
        ("abc Left X", "abXc"),
        ("one Space two C-w", "one "),
        ("one Space two M-b C-k", "one "),
        ("one C-a C-k two C-y", "twoone"),
        ("abc C-u x", "x"),
        ("abc Back Back", "a"),
        ("abc Home C-d", "bc"),
        ("a M-Enter b", "a\nb"),
        ("a\\ Enter b", "a\nb"),
        ("ab M-Enter cd Up X", "abX\ncd"),
        ("ab M-Enter c Up Home Down X", "ab\nXc"),
        ("/ac Tab sp Tab", "/acp spawn "),
        ("/acp Space spawn Space d Tab", "/acp spawn de"),
        ("/acp Space spawn Space d Tab Tab Tab", "/acp spawn devin"),
        ("nothing Tab", "nothing"),
    ] {
        let (_dir, mut editor) = editor();
        assert_eq!(press(&mut editor, keys), None, "{keys}");
        assert_eq!(editor.text(), want, "{keys}");
    }
}

#[test]
fn enter_submits_and_up_recalls() {
    let (dir, mut editor) = editor();
    assert_eq!(press(&mut editor, "Enter"), None);
    assert_eq!(press(&mut editor, "one Enter").as_deref(), Some("one"));
    assert_eq!(press(&mut editor, "two M-Enter lines C-j").as_deref(), Some("two\nlines"));
    assert_eq!(press(&mut editor, "draft C-p C-p"), None);
    assert_eq!(editor.text(), "one");
    press(&mut editor, "C-n");
    assert_eq!(editor.text(), "two\nlines");
    press(&mut editor, "C-n");
    assert_eq!(editor.text(), "draft");
    // Another chat has the same history, in a file that only its user can read.
    let path = dir.path().join("history");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let mut next = Editor::new(&path);
    press(&mut next, "C-p");
    assert_eq!(next.text(), "two\nlines");
}

#[test]
fn pasted_text_is_inserted_without_control_characters() {
    let (_dir, mut editor) = editor();
    editor.paste("a\r\nb\u{1b}[2J\tc");
    assert_eq!(editor.text(), "a\nb[2J\tc");
}

#[test]
fn layout_shows_the_row_of_the_cursor() {
    let (_dir, mut editor) = editor();
    let texts = |editor: &Editor, width, rows| {
        let (lines, cursor) = editor.layout(width, rows);
        (lines.iter().map(StyledLine::text).collect::<Vec<_>>(), cursor)
    };
    assert_eq!(texts(&editor, 20, 5), (vec!["> ".to_owned()], (0, 2)));
    editor.paste("abcdefgh\n漢");
    let rows = |rows: &[&str]| rows.iter().map(|&row| row.to_owned()).collect::<Vec<_>>();
    assert_eq!(texts(&editor, 8, 5), (rows(&["> abcde", "  fgh", "  漢"]), (2, 4)));
    assert_eq!(texts(&editor, 8, 2), (rows(&["  fgh", "  漢"]), (1, 4)));
    press(&mut editor, "Up Home");
    assert_eq!(texts(&editor, 8, 2), (rows(&["> abcde", "  fgh"]), (0, 2)));
}

#[test]
fn control_r_searches_the_history_for_the_text() {
    let (_dir, mut editor) = editor();
    for line in ["make test", "git status", "make lint"] {
        editor.set(line);
        let _ = editor.take();
    }
    for (keys, want) in [
        ("mak C-r", "make lint"),
        ("C-r", "make test"),
        // The oldest entry stays.
        ("C-r", "make test"),
        ("Esc", "mak"),
        ("C-u C-r", "make lint"),
        ("C-u tus C-r", "git status"),
        // Another key ends the search; the entry can be edited.
        ("! C-r", "git status!"),
    ] {
        press(&mut editor, keys);
        assert_eq!(editor.text(), want, "{keys}");
    }
}
