//! The web console without a mouse and without a screen: paths by keyboard alone, and names of all controls.

use crate::actions_foreign::{FORM, two_agents};
use crate::foreign::{Desk, check, go, go_to_session, hash_of};
use crate::quality_foreign::{ask, cancel, furnish, places, visit};
use acp_tests::browser::Page;
use acp_tests::wait::{SOON, eventually, until};
use acp_tests::world::repository;
use serde_json::json;
use std::collections::BTreeSet;

/// Waits until the focus is on an element of the page, which is not lost with what was operated.
fn keeps_focus(page: &Page<'_>) {
    page.until("the focus has a place", "document.activeElement !== document.body");
}

fn focused(page: &Page<'_>, role: &str, name: &str) {
    eventually(SOON, name, || Some(()).filter(|()| page.focused() == (role.to_owned(), name.to_owned())));
}

/// Sign-in, new session with a completed directory, an answer from the list, queue and stop, rename, settings, files,
/// shortcuts, close and sign-out.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn main_paths_work_by_keyboard_alone() {
    let Some(desk) = Desk::new(&[]) else { return };
    let project = desk.house.world.dir("work/keyboard");
    let browser = desk.browser();
    let page = browser.page(1280, 800);
    page.open(&format!("http://{}/", desk.at));
    page.tab_to("textbox", "Token");
    page.write(&desk.token("ann", &["--scope", "admin"]));
    page.press("Enter");
    page.until("the list", "document.querySelector('.sessions')");
    keeps_focus(&page);

    page.press("n");
    page.tab_to("combobox", "Directory");
    page.write(project.to_str().unwrap().trim_end_matches("board"));
    page.until("the directory is offered", "document.querySelector('.offers li')?.offsetParent");
    page.press("ArrowDown");
    page.press("Enter");
    page.until("it is taken", &format!("document.querySelector('#cwd').value === {}", json!(project)));
    page.tab_to("textbox", "Name");
    page.write("By keys");
    page.tab_to("textbox", "First prompt");
    page.write("permission Delete everything\npermission Delete the rest\nsay after the answers");
    page.tab_to("button", "Start session");
    page.press("Enter");
    page.until(
        "the request",
        "document.querySelector('.list-pane .permission') && document.querySelector('main .permission')",
    );
    page.tab_to("button", "allow once");
    page.press("Enter");
    focused(&page, "region", "Transcript");
    page.press("Escape");
    focused(&page, "heading", "Sessions");
    page.until(
        "the next request",
        "document.querySelector('.list-pane .permission')?.innerText.includes('Delete the rest')",
    );
    page.tab_to("button", "allow once");
    page.press("Enter");
    eventually(SOON, "the row has the focus", || {
        Some(()).filter(|()| page.focused().1.starts_with("By keys"))
    });

    page.press("Enter");
    focused(&page, "heading", "By keys");
    page.shows("after the answers");
    page.press("i");
    focused(&page, "textbox", "Prompt for scripted");
    page.write("wait_cancel");
    page.press("Control+Enter");
    page.until("a running turn", "document.querySelector('.stop')");
    page.write("say queued");
    page.press("Control+Enter");
    page.tab_to("button", "Remove from the queue");
    page.press("Enter");
    page.until("the queue is empty", "!document.querySelector('.queue')");
    keeps_focus(&page);
    page.tab_to("button", "Stop");
    page.press("Enter");
    page.until("the turn has ended", "!document.querySelector('.stop')");
    keeps_focus(&page);
    assert_eq!(desk.house.prompts_received("say queued"), 0);
    name_and_settings(&desk, &page);
    files_and_end(&page);
    check(&page);
    drop(page);
    drop(browser);
    desk.house.end();
}

/// The menu, the dialog with the name and the settings of the session that is shown.
fn name_and_settings(desk: &Desk, page: &Page<'_>) {
    page.tab_to("button", "More actions");
    page.press("Enter");
    focused(page, "menuitem", "Rename");
    page.press("Enter");
    page.tab_to("textbox", "Name");
    let _ = page.eval("document.activeElement.setSelectionRange(99, 99)");
    page.write(" alone");
    page.press("Enter");
    page.until("the name", "document.querySelector('.session-title h1').innerText === 'By keys alone'");
    focused(page, "button", "More actions");
    page.tab_to("button", "Settings of the session");
    page.press("Enter");
    page.tab_to("combobox", "Permission requests");
    page.press("ArrowDown");
    let sessions = || desk.house.verb(&["sessions", "list"]);
    until(SOON, "the setting", || sessions()[0]["permission"] == "approve-reads");
    page.press("Escape");
    focused(page, "button", "Settings of the session");
}

/// The pages of files, the shortcuts, and the end of the session and of the sign-in.
fn files_and_end(page: &Page<'_>) {
    page.press("Escape");
    focused(page, "heading", "Sessions");
    page.press("j");
    page.press("Enter");
    page.tab_to("link", "Files and changes");
    page.press("Enter");
    page.tab_to("tab", "Changes");
    page.press("ArrowRight");
    focused(page, "tab", "Files");
    page.until("the directory", "document.querySelector('.entries')");
    page.press("Escape");
    page.press("/");
    page.write("nothing of this name");
    page.shows("No session matches the filter.");
    page.tab_to("button", "Show all");
    page.press("Enter");
    page.press("?");
    page.shows("Keyboard shortcuts");
    page.press("Escape");
    page.until("no dialog", "!document.querySelector('dialog')");
    page.press("j");
    page.press("Enter");
    page.tab_to("button", "More actions");
    page.press("Enter");
    focused(page, "menuitem", "Rename");
    page.press("ArrowUp");
    page.press("ArrowUp");
    focused(page, "menuitem", "Close");
    page.press("Enter");
    page.tab_to("button", "Close");
    page.press("Enter");
    page.shows("This session is closed.");
    page.tab_to("button", "Sign out");
    page.press("Enter");
    page.shows("You are signed out.");
}

/// Rows of the list of actions: the page, and the control as role and name, in which `*` is any text.
fn listed() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(repository().join("docs/design/requirements.md")).unwrap();
    let part = text.split_once("\n<!-- console -->\n").unwrap().1.split_once("\n<!-- end -->\n").unwrap().0;
    let rows = part.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let controls = rows.flat_map(|(page, rest)| {
        let cell = rest.split(" | ").nth(1).unwrap_or_default();
        cell.split('`').skip(1).step_by(2).map(move |control| (page.to_owned(), control.to_owned()))
    });
    controls.collect()
}

/// True if a control is of the kind that a row names.
fn is_of(control: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => control == pattern,
        Some((head, tail)) => control.strip_prefix(head).is_some_and(|rest| {
            tail.is_empty() || (0..=rest.len()).any(|at| rest.get(at..).is_some_and(|rest| is_of(rest, tail)))
        }),
    }
}

/// Controls of a page that have no name, or are not in the list.
fn unlisted(
    page: &Page<'_>,
    place: &str,
    list: &[(String, String)],
    used: &mut BTreeSet<String>,
) -> Vec<String> {
    let pages = ["every page", "sessions", place];
    let mut unlisted = Vec::new();
    for (role, name) in page.controls() {
        let control = format!("{role} {}", name.trim());
        let of_place = list.iter().filter(|(page, _)| pages.contains(&page.as_str()));
        let found: Vec<&String> =
            of_place.map(|(_, pattern)| pattern).filter(|it| is_of(&control, it)).collect();
        if found.is_empty() || name.trim().is_empty() {
            unlisted.push(format!("{place}: {control}"));
        }
        used.extend(found.into_iter().cloned());
    }
    unlisted
}

/// Each control that assistive programs see has a name and a row in the list of actions, and each row has a control.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn every_control_has_a_name_and_is_in_the_list_of_actions() {
    let Some(desk) = Desk::planned(|listen| two_agents(listen, &["--options"])) else { return };
    let (desk, key, asking) = furnish(desk);
    let second = desk.house.world.spawn("gateway", "second", "work/website");
    let filling = ask(&desk, &second, FORM);
    let (list, mut used) = (listed(), BTreeSet::new());
    let console = crate::open(&desk.house, &[]);
    let browser = desk.browser();
    let page = browser.page(1280, 900);
    let mut found = Vec::new();
    let mut look = |page: &Page<'_>, place: &str| found.extend(unlisted(page, place, &list, &mut used));
    page.open(&format!("http://{}/", desk.at));
    page.until("the sign-in", "document.querySelector('#token')");
    look(&page, "sign-in");
    page.open("about:blank");
    page.open(&format!("http://{}/#code={}", console.at, console.code));
    page.until("the list of sessions", "document.querySelector('.row-link')");
    for place in places(&key) {
        visit(&page, &place);
        let _ = page.eval("document.querySelectorAll('details').forEach(it => { it.open = true; })");
        page.until("what was folded", "!document.querySelector('main .loading')");
        look(&page, place.0);
    }
    page.click("button", "Add a device");
    look(&page, "tokens");
    page.click("button", "Done");
    page.click("button", "Shortcuts");
    look(&page, "every page");
    page.press("Escape");
    go(&page, "#/");
    page.until("the list", "document.querySelector('.group.idle .row-link')");
    let _ = page.eval("document.querySelector('.group.idle .row-link').click()");
    page.until("a session that rests", "document.querySelector('main .send[aria-label=Send]')");
    look(&page, "session");
    go_to_session(&page, &key);
    page.fill("textbox", "Prompt for scripted", "say queued");
    let file = desk.house.world.write("outside/notes.md", "notes");
    page.choose_files(".composer input[type=file]", &[file.as_path()]);
    page.shows("notes.md");
    let up = "(list => { if (list) list.scrollTop = 0; return document.querySelector('.to-end'); })";
    page.until("the way to the end", &format!("{up}(document.querySelector('.scroll'))"));
    look(&page, "session");
    page.press("Control+Enter");
    page.until("the queue", "document.querySelector('.queue')");
    page.click("button", "Settings of the session");
    look(&page, "session");
    page.click("button", "Done");
    for entry in ["Rename", "Log of the agent", "New conversation", "Close", "Delete"] {
        page.click("button", "More actions");
        look(&page, "session");
        page.click("menuitem", entry);
        page.until(entry, "document.querySelector('dialog[open]')");
        look(&page, "session");
        page.press("Escape");
        page.until("no dialog", "!document.querySelector('dialog')");
    }
    go(&page, &format!("{}/files", hash_of(&key)));
    page.click("tab", "Files");
    page.click("button", "parser.rs 14 B");
    page.until("the file", "document.querySelector('.file pre')");
    look(&page, "files");
    page.resize(390, 844);
    go(&page, "#/more");
    page.until("the other places", "document.querySelector('.menu-page')");
    look(&page, "more");
    let unused: Vec<&String> =
        list.iter().map(|(_, control)| control).filter(|it| !used.contains(*it)).collect();
    assert!(found.is_empty(), "not in the list of actions:\n{}", found.join("\n"));
    assert_eq!(unused, Vec::<&String>::new(), "of the list of actions, but on no page that was looked at");
    check(&page);
    drop(page);
    drop(browser);
    drop(console);
    cancel(&desk, &second, filling);
    cancel(&desk, &key, asking);
    desk.house.end();
}
