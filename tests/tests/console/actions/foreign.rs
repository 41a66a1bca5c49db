//! Actions of the web console in a real browser, page by page. The list of all is in docs/design/requirements.md.

use crate::foreign::{Desk, check, choose, go, go_to_session, hash_of, send};
use crate::open;
use crate::quality_foreign::{ask, cancel, run};
use acp_tests::browser::Page;
use acp_tests::house::{AGENT, Plan, scripted};
use acp_tests::wait::{LONG, SOON, eventually, until};
use acp_tests::world::{Agent, World, bin};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Clicks an entry of the menu of a session.
fn click_in_menu(page: &Page<'_>, entry: &str) {
    page.click("button", "More actions");
    page.click("menuitem", entry);
}

/// Directories are listed, files and changes shown as text; the page asks for nothing that writes.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn files_and_changes_are_read_and_never_written() {
    let Some(desk) = Desk::new(&[]) else { return };
    let key = desk.house.spawn();
    let cwd = desk.house.cwd();
    std::fs::create_dir_all(cwd.join("deep/er")).unwrap();
    let content = "first line\n<script>window.hacked = 1</script>\n";
    std::fs::write(cwd.join("deep/page.html"), content).unwrap();
    run(&desk, &key, "tool write hello.txt one\\ntwo\\n");
    run(&desk, &key, "tool write hello.txt one\\nthree\\n");
    let browser = desk.browser();
    let page = browser.page(1280, 800);
    desk.sign_in(&page, &desk.token("ann", &["--scope", "read"]));
    let _ = page.events("Network.requestWillBeSent");
    go(&page, &hash_of(&key));
    page.click("link", "Files and changes");
    page.until("both changes as one", "document.querySelectorAll('.diff tr.added').length === 2");
    assert_eq!(page.eval("document.querySelector('.diff .path').innerText"), "hello.txt");
    let last =
        "[...document.querySelectorAll('#diff-run option')].find(it => it.innerText.includes('three')).value";
    choose(&page, "#diff-run", page.eval(last).as_str().unwrap());
    page.until("the changes of one turn", "document.querySelectorAll('.diff tr.added').length === 1");
    assert_eq!(page.eval("document.querySelector('.diff tr.removed .line').innerText.trim()"), "two");
    page.click("button", "Read again");

    page.click("tab", "Files");
    page.until("the directory", "document.querySelector('.entries')?.innerText.includes('hello.txt')");
    page.click("button", "deep");
    page.click("button", &format!("page.html {} B", content.len()));
    page.until("the file", "document.querySelector('.file pre')");
    let shown = page.eval("document.querySelector('.file pre').innerText");
    assert_eq!(shown.as_str().unwrap().trim(), content.trim());
    page.click("button", "er");
    page.click("button", "Parent directory");
    page.until("the directory above", "document.querySelector('.entries')?.innerText.includes('page.html')");
    page.click("button", cwd.to_str().unwrap());
    page.fill("textbox", "File", "hello.txt");
    page.click("button", "Open");
    page.until("the typed file", "document.querySelector('.file pre')?.innerText.includes('three')");
    for outside in ["/etc/hostname", "../../gateway.toml"] {
        page.fill("textbox", "File", outside);
        page.click("button", "Open");
        page.shows("The file cannot be shown");
    }
    let asked = page.events("Network.requestWillBeSent");
    let methods: Vec<&Value> = asked.iter().map(|event| &event["request"]["method"]).collect();
    assert!(methods.len() > 8 && methods.iter().all(|method| **method == "GET"), "{methods:?}");
    check(&page);
    drop(page);
    drop(browser);
    desk.house.end();
}

/// Pastes files of this name and size, each with an event of its own, in one task of the page.
fn paste(page: &Page<'_>, files: &[(&str, &str, u64)]) {
    let script = "(files => { for (const [name, type, size] of files) { const data = new DataTransfer(); \
        data.items.add(new File([`content of ${name} `.padEnd(size, '.')], name, { type })); \
        document.querySelector('#prompt').dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true })); } })";
    let _ = page.eval(&format!("{script}({})", json!(files)));
}

/// Text of the files that wait for the next prompt.
fn attached(page: &Page<'_>) -> String {
    let text = page.eval("document.querySelector('.attached')?.innerText ?? ''");
    text.as_str().unwrap().to_owned()
}

#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn files_arrive_by_paste_drop_and_choice() {
    let Some(desk) = Desk::new(&[]) else { return };
    let key = desk.house.spawn();
    let dropped = desk.house.world.write("outside/dropped.md", "content of dropped.md");
    let chosen = desk.house.world.write("outside/chosen.md", "content of chosen.md");
    let browser = desk.browser();
    let page = browser.page(1280, 800);
    desk.sign_in(&page, &desk.token("ann", &["--scope", "prompt"]));
    go_to_session(&page, &key);
    // The second comes while the first is read.
    paste(&page, &[("one.txt", "text/plain", 0), ("dot.png", "image/png", 0)]);
    page.until("both pasted files", "document.querySelectorAll('.attached li').length === 2");
    page.until("the image as a picture", "document.querySelector('.attached img')");
    page.drop_files(".composer", &[dropped.as_path()]);
    page.shows("dropped.md");
    page.choose_files(".composer input[type=file]", &[chosen.as_path()]);
    page.shows("chosen.md");
    paste(&page, &[("unwanted.txt", "text/plain", 0)]);
    page.click("button", "Remove unwanted.txt");
    page.until("four files", "document.querySelectorAll('.attached li').length === 4");

    // A file that misses the field opens no other page, and other pages keep the files.
    page.drop_files(".scroll", &[dropped.as_path()]);
    page.click("link", "Files and changes");
    go(&page, &hash_of(&key));
    page.until("the prompt", "document.querySelector('#prompt')");
    let kept = attached(&page);
    assert!(["one.txt", "dot.png", "dropped.md", "chosen.md"].iter().all(|it| kept.contains(it)), "{kept}");
    paste(&page, &[("big.bin", "", 9 << 20)]);
    page.shows("a prompt can have 8");
    let many: Vec<(String, &str, u64)> = (0..7).map(|n| (format!("{n}.txt"), "text/plain", 0)).collect();
    let many: Vec<(&str, &str, u64)> =
        many.iter().map(|(name, kind, size)| (name.as_str(), *kind, *size)).collect();
    paste(&page, &many);
    page.shows("A prompt can have 10 files");
    assert_eq!(page.eval("document.querySelectorAll('.attached li').length"), 10);

    page.click("button", "Send");
    let first = || desk.house.received("session/prompt").into_iter().next();
    let sent = eventually(SOON, "the prompt", first)["params"]["prompt"].to_string();
    for name in ["one.txt", "dropped.md", "chosen.md"] {
        assert!(sent.contains(&format!("content of {name}")), "{name}: {sent}");
    }
    // The scripted agent takes no images.
    assert!(sent.contains("The file dot.png was left out"), "{sent}");
    page.until("the field is empty", "!document.querySelector('.attached')");
    check(&page);
    drop(page);
    drop(browser);
    desk.house.end();
}

/// File that the browser saves in a directory.
fn saved(dir: &Path, name: &str) -> String {
    eventually(SOON, name, || std::fs::read_to_string(dir.join(name)).ok().filter(|text| !text.is_empty()))
}

/// Settings, and the menu of a session: exports, log, new conversation, end of the process, end of the session.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn session_is_configured_exported_and_deleted() {
    let Some(desk) = Desk::new(&["--options"]) else { return };
    let key = desk.house.spawn();
    let _ = desk.house.verb(&["sessions", "label", &key, "Work / 1"]);
    run(&desk, &key, "say hello there\nstderr a line of the log");
    let browser = desk.browser();
    let page = browser.page(1280, 800);
    let downloads = desk.house.world.dir("downloads");
    let allow = json!({"behavior": "allow", "downloadPath": downloads});
    page.call_context("Browser.setDownloadBehavior", allow);
    desk.sign_in(&page, &desk.token("ann", &["--scope", "admin"]));
    go_to_session(&page, &key);
    page.click("button", "Settings of the session");
    for (field, value) in [("#set-model", "big"), ("#set-permission", "deny-all"), ("#set-voting", "owner")] {
        choose(&page, field, value);
        page.until("the setting is made", "!document.querySelector('.settings[aria-busy=true]')");
    }
    page.click("button", "Done");
    let shown = eventually(SOON, "the model", || {
        Some(desk.house.verb(&["sessions", "show", &key])).filter(|it| {
            it["agent_settings"]["models"]["current"] == "big"
                || it["agent_settings"].to_string().contains(r#""current":"big""#)
        })
    });
    assert_eq!((&shown["permission"], &shown["voting"]), (&json!("deny-all"), &json!("owner")), "{shown}");

    click_in_menu(&page, "Export as Markdown");
    let text = saved(&downloads, "Work-1.md");
    assert!(text.contains("hello there") && text.contains("say hello there"), "{text}");
    click_in_menu(&page, "Export as JSON lines");
    let lines = saved(&downloads, "Work-1.jsonl");
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = &desk.house.verb(&["sessions", "show", &key])["last_session_seq"];
    assert_eq!(&rows.last().unwrap()["session_seq"], last);
    click_in_menu(&page, "Log of the agent");
    page.shows("a line of the log");
    page.click("button", "Close the dialog");
    let lease = desk.house.lease(&key);
    click_in_menu(&page, "End the agent's process");
    desk.house.wait_for_lease_end(&lease);
    click_in_menu(&page, "New conversation");
    page.click("button", "Begin anew");
    send(&page, "say in a new conversation");
    page.until("the answer", "[...document.querySelectorAll('.item.agent')].some(it => it.innerText.includes('in a new conversation'))");
    assert_eq!(desk.house.received("session/new").len(), 2, "the agent forgot what was said");
    click_in_menu(&page, "Delete");
    page.click("button", "Delete");
    page.shows("No sessions yet");
    let left = desk.house.verb(&["sessions", "list"]);
    assert_eq!(left, json!([]));
    check(&page);
    drop(page);
    drop(browser);
    desk.house.end();
}

#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn queued_prompts_are_taken_back_and_removed() {
    let Some(desk) = Desk::new(&[]) else { return };
    let key = desk.house.spawn();
    let browser = desk.browser();
    let page = browser.page(1280, 800);
    desk.sign_in(&page, &desk.token("ann", &["--scope", "prompt"]));
    go_to_session(&page, &key);
    send(&page, "wait_cancel");
    page.until("a running turn", "document.querySelector('.stop')");
    for (text, length) in [("say first", 1), ("say second", 2), ("say third", 3)] {
        send(&page, text);
        page.until(text, &format!("document.querySelectorAll('.queue li').length === {length}"));
    }
    // What is being written meanwhile stays.
    page.fill("textbox", "Prompt for scripted", "half written");
    page.click("button", "Take back and edit");
    page.until("two are left", "document.querySelectorAll('.queue li').length === 2");
    page.until(
        "its text in the field",
        "document.querySelector('#prompt').value === 'say first\\n\\nhalf written'",
    );
    page.click("button", "Remove from the queue");
    page.until("one is left", "document.querySelectorAll('.queue li').length === 1");
    page.until("a place of the focus", "document.activeElement !== document.body");
    send(&page, "say fourth");
    page.click("button", "Stop");
    until(LONG, "the queue runs", || desk.house.prompts_received("say fourth") == 1);
    let received = ["say first", "say second", "say third"].map(|text| desk.house.prompts_received(text));
    assert_eq!(received, [0, 0, 1]);
    page.until("the end", "!document.querySelector('.stop') && !document.querySelector('.queue')");

    // Taken back too late: it has run, and is not offered to be sent again.
    send(&page, "wait_cancel");
    page.until("a running turn", "document.querySelector('.stop')");
    send(&page, "say fifth");
    page.hold("*/cancel");
    page.click("button", "Take back and edit");
    let held = page.until_held();
    let _ = desk.house.verb(&["sessions", "cancel", &key]);
    until(LONG, "the queue runs", || desk.house.prompts_received("say fifth") == 1);
    page.until("the end", "!document.querySelector('.stop') && !document.querySelector('.queue')");
    page.release(&held);
    page.shows("Too late: this prompt has run already.");
    assert_eq!(page.eval("document.querySelector('#prompt').value"), "");
    check(&page);
    drop(page);
    drop(browser);
    desk.house.end();
}

/// A house with an agent that wants a sign-in, one that does not start, and one that a package runner fetches.
fn agents(listen: &str) -> acp_tests::house::House {
    let world = World::new();
    let fetched = format!(
        "#!/bin/sh\necho \"$@\" >>'{}'\nexec '{}' --log '{}'\n",
        world.path("fetched").display(),
        bin("fake-agent").display(),
        world.path("fetched.log").display()
    );
    let runner = world.write("programs/npx", &fetched);
    std::fs::set_permissions(runner, std::fs::Permissions::from_mode(0o755)).unwrap();
    let roots = format!("{listen}[agents.qwen]\ncwd_roots = [\"{}\"]\n", world.path("").display());
    let signed_out = scripted(&world, &["--auth-required".to_owned()], "ask");
    let agents = BTreeMap::from([(AGENT, signed_out), ("broken", Agent::new(&["/bin/false"]))]);
    Plan::default().gateway(&roots).build_in(world, &agents)
}

#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn agents_are_fetched_signed_in_and_tested() {
    let Some(desk) = Desk::planned(agents) else { return };
    let browser = desk.browser();
    let page = browser.page(1280, 900);
    desk.sign_in(&page, &desk.token("bob", &["--scope", "prompt"]));
    go(&page, "#/agents");
    page.click("button", "Test scripted");
    page.shows("ACP_AUTH_REQUIRED");
    assert!(!page.has("button", "Sign in: Key"), "a token of the scope prompt signs no agent in");
    page.click("button", "Sign out");
    page.shows("You are signed out.");

    desk.sign_in(&page, &desk.token("ann", &["--scope", "admin"]));
    go(&page, "#/agents");
    page.click("button", "Fetch Qwen Code");
    page.shows("It starts and opens a session.");
    let fetched = std::fs::read_to_string(desk.house.world.path("fetched")).unwrap();
    assert_eq!(fetched.trim(), "-y @qwen-code/qwen-code --acp");
    page.click("button", "Test broken");
    page.until("its failure", "document.querySelector('.note.error')");
    assert!(!page.text().contains("Sign in:"), "{}", page.text());
    page.click("button", "Test scripted");
    page.click("button", "Sign in: Key");
    page.shows("You are signed in.");
    assert_eq!(desk.house.received("authenticate").len(), 1);
    let sessions = || desk.house.verb(&["sessions", "list"]);
    until(SOON, "no session is left", || sessions() == json!([]));
    page.click("button", "Read again");
    page.click("link", "New session with scripted");
    page.until("the agent is chosen", "document.querySelector('[name=agent]:checked')?.value === 'scripted'");
    check(&page);
    drop(page);
    drop(browser);
    desk.house.end();
}

/// Remembers notifications, and lets the page believe that it is hidden.
const NOTIFIED: &str = "window.notified = []; { const Real = window.Notification; \
    window.Notification = class extends Real { \
    constructor(title, options) { super(title, options); window.notified.push({ title, body: options.body, self: this, closed: false }); } \
    close() { window.notified.find(it => it.self === this).closed = true; super.close(); } }; }";

#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn background_request_notifies_and_marks_the_title() {
    let Some(desk) = Desk::new(&[]) else { return };
    let (key, other) = (desk.house.spawn(), desk.house.spawn());
    let _ = desk.house.verb(&["sessions", "label", &key, "Work \u{202e}krow"]);
    let browser = desk.browser();
    let page = browser.page(1280, 800);
    page.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": NOTIFIED}));
    desk.sign_in(&page, &desk.token("ann", &["--scope", "approve"]));
    assert_eq!(
        (page.eval("Notification.permission"), page.has("button", "Notify me")),
        (json!("default"), true)
    );
    let first = ask(&desk, &other, "permission Seen in front");
    page.shows("Seen in front");
    page.until("the title", "document.title.startsWith('(1) ')");
    // The person allows it. A page in front needs no notification.
    page.call_context("Browser.grantPermissions", json!({"permissions": ["notifications"]}));
    page.click("button", "Notify me");
    page.until("the button goes", "!document.body.innerText.includes('Notify me')");
    let second = ask(&desk, &key, "permission Delete everything");
    page.shows("Delete everything");
    assert_eq!(page.eval("window.notified.length"), 0);
    cancel(&desk, &key, second);
    let _ = page.eval("Object.defineProperty(document, 'hidden', { get: () => true, configurable: true })");
    let third = ask(&desk, &key, "permission Delete the rest");
    page.until("a notification", "window.notified.length === 1");
    let told = page.eval("[window.notified[0].title, window.notified[0].body]");
    assert_eq!(told, json!(["Work \\u{202e}krow needs you", "Delete the rest"]));
    page.until("the title", "document.title.startsWith('(2) ')");
    let _ = page.eval("void window.notified[0].self.onclick()");
    page.until(
        "it leads to its session",
        "document.querySelector('main .permission')?.innerText.includes('Delete the rest')",
    );
    cancel(&desk, &key, third);
    cancel(&desk, &other, first);
    page.until("the title without a number", "!/^[(]/.test(document.title)");
    page.until("an answered request has no notification", "window.notified[0].closed");
    check(&page);
    drop(page);
    drop(browser);
    desk.house.end();
}

/// Clicks the first answer of the next request as soon as it is there, as the second click of a double click does.
fn click_what_appears(page: &Page<'_>) {
    let _ = page.eval(
        "void new MutationObserver((_, observer) => { const button = document.querySelector('.permission .answers button'); \
         if (!button) return; observer.disconnect(); \
         button.dispatchEvent(new MouseEvent('click', { bubbles: true, cancelable: true, detail: 2 })); \
         }).observe(document.body, { childList: true, subtree: true })",
    );
}

pub(crate) const FORM: &str = r#"elicit {"mode":"form","message":"Who are you?","requestedSchema":{"type":"object","properties":{"name":{"type":"string","minLength":2},"age":{"type":"integer","minimum":18},"news":{"type":"boolean","default":true}},"required":["name"]}}"#;
const CHOICE: &str = r#"elicit {"mode":"form","message":"How fast?","requestedSchema":{"type":"object","properties":{"how":{"type":"string","oneOf":[{"const":"s","title":"Slow"},{"const":"f","title":"Fast"}]}},"required":["how"]}}"#;
const ADDRESS: &str =
    r#"elicit {"mode":"url","message":"Sign in","url":"https://login.example/x?y=1","elicitationId":"p1"}"#;

/// Waits until a request that has just appeared takes clicks.
fn at_rest(page: &Page<'_>) {
    let _ = page.eval("void (window.seenAt = performance.now())");
    page.until("the request is at rest", "window.seenAt + 600 < performance.now()");
}

/// Forms of an agent are filled in, declined and dismissed in the list. One that does not fit, or was hit by a click that was
/// meant for something else, is not sent.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn forms_of_an_agent_are_answered_in_the_list() {
    let Some(desk) = Desk::new(&[]) else { return };
    let key = desk.house.spawn();
    let browser = desk.browser();
    let page = browser.page(1280, 900);
    desk.sign_in(&page, &desk.token("ann", &["--scope", "approve"]));
    go_to_session(&page, &key);
    let answered = |text: &str| {
        let said = format!(
            "[...document.querySelectorAll('.item.agent')].some(it => it.innerText.includes({}))",
            json!(text)
        );
        page.until(text, &said);
    };
    let next = |shown: &str| {
        page.until(
            shown,
            &format!(
                "document.querySelector('.list-pane .permission')?.innerText.includes({})",
                json!(shown)
            ),
        );
        at_rest(&page);
    };
    click_what_appears(&page);
    send(&page, &format!("{FORM}\n{CHOICE}\n{ADDRESS}\n{ADDRESS}"));
    page.until(
        "the click is not taken",
        "[...document.querySelectorAll('.permission')].some(it => it.innerText.includes('Choose again'))",
    );
    next("Who are you?");
    page.fill("textbox", "name", "A");
    page.click("button", "Submit");
    page.until(
        "the browser names the field",
        "document.querySelector('.list-pane [name=name]:user-invalid')",
    );
    page.fill("textbox", "name", "Ann Lee");
    page.fill("spinbutton", "age", "20");
    page.click("checkbox", "news");
    page.click("button", "Submit");
    answered(r#"elicit: accept {"age":20,"name":"Ann Lee","news":false}"#);
    next("How fast?");
    choose(&page, ".list-pane .permission select", "f");
    page.click("button", "Submit");
    answered(r#"elicit: accept {"how":"f"}"#);
    next("Sign in");
    assert_eq!(
        page.eval("document.querySelector('.list-pane .permission a').href"),
        "https://login.example/x?y=1"
    );
    page.click("button", "Decline");
    answered("elicit: decline");
    next("Sign in");
    page.click("button", "Dismiss");
    answered("elicit: cancel");
    check(&page);
    drop(page);
    drop(browser);
    desk.house.end();
}

/// The pages of those who look after a gateway. An answer is taken only from a click that was meant for it.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn answers_health_processes_and_tokens_are_shown() {
    let Some(mut desk) = Desk::new(&[]) else { return };
    let key = desk.house.spawn();
    let phone = desk.token("phone", &["--scope", "approve"]);
    let browser = desk.browser();
    let (page, other) = (browser.page(1280, 900), browser.page(400, 800));
    desk.sign_in(&other, &phone);
    let console = open(&desk.house, &[]);
    page.open(&format!("http://{}/#code={}", console.at, console.code));
    page.until("the list of sessions", "document.querySelector('.sessions')");
    click_what_appears(&other);
    let turn = ask(&desk, &key, "permission Delete everything");
    other.until(
        "the click is not taken",
        "document.querySelector('.permission')?.innerText.includes('Choose again')",
    );
    at_rest(&other);
    other.click("button", "reject once");
    let _ = turn.finish(LONG);
    page.click("link", "Answers");
    page.until("who answered", "document.querySelector('.audit tbody tr')?.innerText.includes('phone')");
    let row = page.eval("document.querySelector('.audit tbody tr').innerText");
    let row = row.as_str().unwrap();
    assert!(row.contains("Delete everything") && row.contains("reject once"), "{row}");
    page.click("button", "Read again");

    page.click("link", "Processes");
    page.click("DisclosureTriangle", "Evidence and processes");
    page.until("the verdict", "document.querySelector('.lease details .badge')?.innerText === 'ours'");
    let lease = desk.house.lease(&key);
    page.shows(lease.id());
    page.click("link", "project");
    page.until("the session of the process", "document.querySelector('#prompt')");

    page.click("link", "Tokens");
    page.click("button", "Add a device");
    page.fill("textbox", "Name", "my tablet");
    choose(&page, "#scope", "read");
    page.shows("acp-gateway token add my-tablet --scope read --expires 30d");
    page.click("button", "Done");
    page.click("button", "Revoke phone");
    page.click("button", "Revoke");
    other.shows("the token has expired or was revoked");
    page.until("it is gone", "!document.querySelector('.cards').innerText.includes('phone')");
    page.click("switch", "Expired and revoked");
    page.until("it is shown as revoked", "document.querySelector('.cards').innerText.includes('revoked')");

    page.click("link", "Health");
    page.shows("Everything works.");
    page.until("the checks of doctor", "document.querySelectorAll('.check-row').length > 8");
    desk.house.kill_supervisor();
    page.click("button", "Check again");
    page.shows("attention.");
    page.until(
        "the supervisor",
        "[...document.querySelectorAll('.check-row.failed')].some(it => it.innerText.includes('Supervisor'))",
    );
    desk.house.start_supervisor();
    check(&page);
    drop((page, other));
    drop(browser);
    drop(console);
    desk.house.end();
}

/// A house with two scripted agents, the first with these flags.
pub(crate) fn two_agents(listen: &str, flags: &[&str]) -> acp_tests::house::House {
    let world = World::new();
    let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let agents = [(AGENT, scripted(&world, &flags, "ask")), ("second", scripted(&world, &[], "ask"))];
    Plan::default().gateway(listen).build_in(world, &BTreeMap::from(agents))
}

/// Search, filters by state and by agent, and closed sessions.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn sessions_are_searched_and_filtered() {
    let Some(desk) = Desk::planned(|listen| two_agents(listen, &[])) else { return };
    let (one, closed) = (desk.house.spawn(), desk.house.spawn());
    let _ = desk.house.world.spawn("gateway", "second", "work/website");
    let failed = desk.house.world.spawn("gateway", AGENT, "work/broken");
    let _ = desk.house.cli(&["prompt", &failed, "error -32603 the model does not answer"]);
    for (key, label) in [(&one, "Parser"), (&closed, "Over")] {
        let _ = desk.house.verb(&["sessions", "label", key, label]);
    }
    let _ = desk.house.verb(&["sessions", "close", &closed]);
    let browser = desk.browser();
    let page = browser.page(1280, 800);
    desk.sign_in(&page, &desk.token("ann", &["--scope", "read"]));
    let shows = |page: &Page<'_>, titles: &[&str]| {
        let listed = "[...document.querySelectorAll('.row-title bdi')].map(it => it.innerText).sort().join()";
        page.until(&format!("{titles:?}"), &format!("{listed} === {}", json!(titles.join(","))));
    };
    shows(&page, &["Parser", "broken", "website"]);
    choose(&page, "[aria-label='Filter by agent']", "second");
    shows(&page, &["website"]);
    choose(&page, "[aria-label='Filter by agent']", AGENT);
    shows(&page, &["Parser", "broken"]);
    choose(&page, "[aria-label='Filter by agent']", "");
    for (state, titles) in [
        ("Failed 1", &["broken"][..]),
        ("Idle 2", &["Parser", "website"]),
        ("Closed", &["Over"]),
        ("Running", &[]),
    ] {
        page.click("button", state);
        shows(&page, titles);
    }
    page.shows("No session is running.");
    page.click("button", "All");
    page.fill("searchbox", "Search sessions", "scripted PARS");
    shows(&page, &["Parser"]);
    page.fill("searchbox", "Search sessions", "nowhere");
    page.click("button", "Show all");
    shows(&page, &["Parser", "broken", "website"]);
    check(&page);
    drop(page);
    drop(browser);
    desk.house.end();
}

#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn theme_is_kept_by_the_browser() {
    let Some(desk) = Desk::new(&[]) else { return };
    let browser = desk.browser();
    let page = browser.page(1280, 800);
    desk.sign_in(&page, &desk.token("ann", &["--scope", "read"]));
    let background = "getComputedStyle(document.body).backgroundColor";
    page.click("button", "Theme: system");
    let light = page.eval(background);
    page.click("button", "Theme: light");
    page.until("the dark colours", &format!("{background} !== {light}"));
    page.call("Page.reload", json!({}));
    page.until("the theme is kept", "document.documentElement.dataset.theme === 'dark'");
    page.click("button", "Theme: dark");
    assert!(page.has("button", "Theme: system"));
    check(&page);
    drop(page);
    drop(browser);
    desk.house.end();
}
