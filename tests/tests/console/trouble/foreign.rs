//! The web console in a real browser when something is in the way: files that come late or never, a gateway that is away, a
//! revoked token, a copied tab, little room.

use crate::foreign::{Desk, check, go, go_to_session, hash_of, send};
use crate::quality_foreign::{cancel, furnished, places, visit};
use acp_tests::browser::Page;
use acp_tests::wait::{SOON, until};
use serde_json::{Value, json};

/// A token that is revoked while the page is open, with a text in the field, a file beside it and a prompt under way.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn revoked_token_loses_nothing_that_was_written() {
    let Some(desk) = Desk::new(&[]) else { return };
    let key = desk.house.spawn();
    let file = desk.house.world.write("outside/notes.md", "content of the notes");
    let browser = desk.browser();
    let page = browser.page(1280, 800);
    desk.sign_in(&page, &desk.token("phone", &["--scope", "prompt"]));
    go_to_session(&page, &key);
    let other = desk.house.world.write("outside/plan.md", "content of the plan");
    page.choose_files(".composer input[type=file]", &[other.as_path()]);
    page.shows("plan.md");
    page.hold("*/prompt");
    send(&page, "say under way");
    let held = page.until_held();
    page.until("the field is empty", "!document.querySelector('.attached')");
    page.fill("textbox", "Prompt for scripted", "say half written");
    page.choose_files(".composer input[type=file]", &[file.as_path()]);
    page.shows("notes.md");
    let _ = desk.house.verb(&["token", "revoke", "phone"]);
    page.shows("the token has expired or was revoked");
    page.until("the focus is at the sign-in", "document.activeElement === document.querySelector('h1')");
    page.fill("textbox", "Token", &desk.token("laptop", &["--scope", "prompt"]));
    page.press("Enter");
    page.until("the same page", "document.querySelector('#prompt')?.value === 'say half written'");
    page.shows("notes.md");
    page.shows("The sign-in changed while this was being sent.");
    // The response to the old token comes late, and ends the new sign-in as little.
    page.release(&held);
    page.until(
        "the response",
        "performance.getEntriesByType('resource').some(it => it.name.endsWith('/prompt'))",
    );
    assert_eq!(desk.house.received("session/prompt").len(), 0);
    page.click("button", "Send");
    until(SOON, "the prompt", || desk.house.received("session/prompt").len() == 1);
    let prompt = desk.house.received("session/prompt")[0].to_string();
    assert!(prompt.contains("say half written") && prompt.contains("content of the notes"), "{prompt}");
    // Rows that come would move what is clicked: the agent takes the lines of the file for directives, and refuses them.
    page.shows("ACP_TURN_FAILED");
    page.until("the end of the turn", "!document.querySelector('.stop, .working')");
    page.click("button", "Edit");
    page.until("the text comes back", "document.querySelector('#prompt').value === 'say under way'");
    page.until("and its file", "document.querySelector('.attached')?.innerText.includes('plan.md')");
    check(&page);
    drop(page);
    drop(browser);
    desk.house.end();
}

/// Effects of the page wait for frames and timers, which this holds; `letGo()` makes them go on.
const HELD: &str = "(() => { const [frame, timer, held] = [requestAnimationFrame, setTimeout, []]; \
    window.requestAnimationFrame = run => held.push(run); \
    window.setTimeout = (run, ms, ...rest) => (ms > 300 ? timer(run, ms, ...rest) : held.push(run)); \
    window.letGo = () => { window.requestAnimationFrame = frame; window.setTimeout = timer; held.splice(0).forEach(run => run()); }; })()";

/// The module of a page comes between its first drawing and the effects of that drawing.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn late_module_is_drawn() {
    let Some(desk) = Desk::new(&[]) else { return };
    let browser = desk.browser();
    let page = browser.page(1280, 800);
    // Narrow: a wider pattern would hold the event stream too.
    page.hold("*/pages/operate.js");
    desk.sign_in(&page, &desk.token("ann", &["--scope", "read"]));
    let held = page.until_held();
    let _ = page.eval(HELD);
    go(&page, "#/agents");
    page.until("the page waits for its module", "document.querySelector('main .loading')");
    page.release(&held);
    let module = "import(document.querySelector('script[type=module]').src.replace('app.js', 'pages/operate.js')).then(() => true)";
    assert_eq!(page.eval(module), true);
    let _ = page.eval("window.letGo()");
    page.until("the page", "document.querySelector('main h1')?.innerText === 'Agents'");
    page.shows("Installed");
    check(&page);
    drop(page);
    drop(browser);
    desk.house.end();
}

/// A file of the first view that does not come.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn page_whose_files_do_not_come_says_so() {
    let Some(desk) = Desk::new(&[]) else { return };
    let browser = desk.browser();
    let page = browser.page(400, 800);
    page.hold("*/core/console.js");
    page.call("Page.navigate", json!({"url": format!("http://{}/", desk.at)}));
    let held = page.until_held();
    let hidden = "getComputedStyle(document.querySelector('.late')).visibility === 'hidden'";
    page.until("no hint at first", hidden);
    page.call("Animation.enable", json!({}));
    page.call("Animation.setPlaybackRate", json!({"playbackRate": 20}));
    page.shows("load the page again");
    page.release(&held);
    page.until("the sign-in", "document.querySelector('#token')");
    check(&page);
    drop(page);
    drop(browser);
    desk.house.end();
}

/// What could not be read while the gateway was away is read when it is back, without a click.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn pages_recover_when_the_gateway_is_back() {
    let Some(mut desk) = Desk::new(&[]) else { return };
    let key = desk.house.spawn();
    let browser = desk.browser();
    let (page, other) = (browser.page(1280, 800), browser.page(400, 800));
    let token = desk.token("ann", &["--scope", "admin"]);
    for page in [&page, &other] {
        desk.sign_in(page, &token);
        go(page, "#/agents");
        page.shows("Installed");
        // With the modules that it imports.
        page.until("the module of a session", "(window.asked ??= import(document.querySelector('script[type=module]').src.replace('app.js', 'pages/session.js')).then(() => { window.isLoaded = true; }), window.isLoaded)");
    }
    desk.house.kill_gateway();
    page.shows("Reconnecting");
    go(&page, "#/audit");
    page.shows("The answers could not be read");
    go(&other, &hash_of(&key));
    other.shows("The transcript cannot be read");
    desk.house.start_gateway();
    page.shows("No request has been answered yet");
    other.until("the transcript", "document.querySelector('main .scroll')");

    // The gateway is away when the page begins: its files come from the browser's memory.
    page.call("Network.setBlockedURLs", json!({"urls": ["*/v1/*", "*/pages/new.js"]}));
    go(&page, "#/");
    page.call("Page.reload", json!({}));
    page.shows("Reading the sessions");
    page.shows("Reconnecting");
    go(&page, "#/new");
    page.shows("The page cannot be loaded");
    page.call("Network.setBlockedURLs", json!({"urls": []}));
    page.until("its module", "document.querySelector('main h1')?.innerText === 'New session'");
    go(&page, "#/");
    page.until("the list", "document.querySelector('.row-link')");
    check(&page);
    check(&other);
    drop((page, other));
    drop(browser);
    desk.house.end();
}

#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn session_deleted_elsewhere_takes_no_prompts_and_leaves_the_list() {
    let Some(desk) = Desk::new(&[]) else { return };
    let (key, other) = (desk.house.spawn(), desk.house.spawn());
    let token = desk.token("ann", &["--scope", "admin"]);
    let browser = desk.browser();
    let page = browser.page(1280, 800);
    desk.sign_in(&page, &token);
    go_to_session(&page, &key);
    page.fill("textbox", "Prompt for scripted", "say never sent");
    let path = format!("/v1/sessions/{key}/delete");
    assert_eq!(crate::ask(desk.at, "POST", &path, &token, "{}").0, 200);
    page.shows("This session is closed.");
    page.until("the other alone is listed", "document.querySelectorAll('.row-link').length === 1");
    go_to_session(&page, &other);
    go(&page, "#/s/agent%3Ascripted%3Aacp%3Anone");
    page.shows("The session cannot be shown");
    check(&page);
    drop(page);
    drop(browser);
    desk.house.end();
}

/// Keys that come faster than the page draws: the text is sent as it is written, and once.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn fast_keys_send_the_whole_prompt_once() {
    let Some(desk) = Desk::new(&[]) else { return };
    let key = desk.house.spawn();
    let browser = desk.browser();
    let page = browser.page(1280, 800);
    desk.sign_in(&page, &desk.token("ann", &["--scope", "prompt"]));
    go_to_session(&page, &key);
    page.fill("textbox", "Prompt for scripted", "say in");
    page.until("drawn", "!document.querySelector('.send').disabled");
    let keys = "(area => { area.value += ' time'; area.dispatchEvent(new Event('input', { bubbles: true })); \
        for (const _ of [1, 2]) area.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', ctrlKey: true, bubbles: true, cancelable: true })); })";
    let _ = page.eval(&format!("{keys}(document.querySelector('#prompt'))"));
    send(&page, "say next");
    until(SOON, "the prompts", || desk.house.prompts_received("say next") == 1);
    assert_eq!(
        (desk.house.prompts_received("say in time"), desk.house.received("session/prompt").len()),
        (1, 2)
    );
    check(&page);
    drop(page);
    drop(browser);
    desk.house.end();
}

/// A tab that the browser copies has the prompts of its original that are under way.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn copied_tab_sends_a_prompt_once() {
    let Some(desk) = Desk::new(&[]) else { return };
    let key = desk.house.spawn();
    let browser = desk.browser();
    let (page, copy) = (browser.page(1280, 800), browser.page(1280, 800));
    desk.sign_in(&page, &desk.token("ann", &["--scope", "prompt"]));
    go_to_session(&page, &key);
    page.hold("*/prompt");
    send(&page, "say only once");
    let held = page.until_held();
    let storage = page.eval("JSON.stringify(Object.entries(sessionStorage))");
    let copied = format!(
        "if (location.host === {} && sessionStorage.length === 0) for (const [name, value] of JSON.parse({storage})) sessionStorage.setItem(name, value);",
        json!(desk.at.to_string())
    );
    copy.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": copied}));
    copy.open(&desk.session_url(&key));
    let answered =
        "[...document.querySelectorAll('.item.agent')].some(it => it.innerText.includes('only once'))";
    copy.until("the answer", answered);
    page.until("the answer", answered);
    page.release(&held);
    for page in [&page, &copy] {
        let shown =
            "document.querySelectorAll('.item.user').length === 1 && !document.querySelector('.pending')";
        page.until("one prompt", shown);
        check(page);
    }
    assert_eq!(desk.house.prompts_received("say only once"), 1);
    drop((page, copy));
    drop(browser);
    desk.house.end();
}

/// Elements that reach beyond the window, except within what scrolls by itself.
const BEYOND: &str = "(() => { const bad = [...document.querySelectorAll('a, button, input, select, textarea, h1, h2, h3, .card, .note')] \
    .filter(it => !it.closest('.sr, .skip, .chips, pre, .table-scroll, .diff-scroll, [hidden]') && it.getClientRects().length > 0) \
    .filter(it => { const box = it.getBoundingClientRect(); return box.left < -1 || box.right > innerWidth + 1; }) \
    .map(it => it.outerHTML.slice(0, 120)); \
    if (document.documentElement.scrollWidth > innerWidth) bad.push(`${document.documentElement.scrollWidth} wide`); return bad; })()";

/// 320 pixels of width, and 1280 × 900 enlarged to 200 % and 400 %, with long names; nothing moves for who wants that.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn narrow_and_enlarged_pages_fit_and_nothing_moves() {
    let Some((desk, key, asking)) = furnished(&[]) else { return };
    let _ = desk.house.verb(&["sessions", "label", &key, &"Averylongname".repeat(7)]);
    std::fs::write(desk.house.cwd().join("f".repeat(200)), "x").unwrap();
    let console = crate::open(&desk.house, &[]);
    let browser = desk.browser();
    let (page, signed_out) = (browser.page(320, 568), browser.page(320, 568));
    signed_out.open(&format!("http://{}/", console.at));
    signed_out.until("the sign-in", "document.querySelector('#token')");
    let still = json!({"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]});
    page.call("Emulation.setEmulatedMedia", still);
    page.open(&format!("http://{}/#code={}", console.at, console.code));
    page.until("the list of sessions", "document.querySelector('.row-link')");
    let mut found = Vec::new();
    for (width, height, scale) in [(320, 568, 1), (640, 450, 2), (320, 225, 4)] {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600});
        for page in [&page, &signed_out] {
            page.call("Emulation.setDeviceMetricsOverride", metrics.clone());
        }
        let mut look = |page: &Page<'_>, name: &str| {
            let bad = page.eval(BEYOND);
            found.extend(bad.as_array().unwrap().iter().map(|it| format!("{name} {width} × {scale}: {it}")));
            let moving = page.eval("document.getAnimations().filter(it => it.effect.getKeyframes().some(frame => 'transform' in frame || 'left' in frame || 'top' in frame)).length");
            assert_eq!(moving, 0, "{name}");
        };
        look(&signed_out, "sign-in");
        for place in places(&key) {
            visit(&page, &place);
            look(&page, place.0);
        }
        visit(&page, &places(&key)[2]);
        page.click("tab", "Files");
        page.until("the files", "document.querySelector('.entries')");
        look(&page, "directory");
        go(&page, "#/more");
        page.until("the other places", "document.querySelector('.menu-page')");
        look(&page, "more");
    }
    assert_eq!(found, Vec::<String>::new());
    let moves = page.eval("getComputedStyle(document.querySelector('.nav-link')).transitionDuration");
    assert_eq!(moves, "0s");
    check(&page);
    drop((page, signed_out));
    drop(browser);
    drop(console);
    cancel(&desk, &key, asking);
    desk.house.end();
}

/// The check of every test sees a violation of the policy, in the page and in the reports of the browser.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn violation_of_the_policy_is_reported() {
    let Some(desk) = Desk::new(&[]) else { return };
    let browser = desk.browser();
    let page = browser.page(400, 800);
    page.open(&format!("http://{}/", desk.at));
    page.until("the sign-in", "document.querySelector('#token')");
    check(&page);
    let _ = page.eval("new Promise(done => { const image = new Image(); image.onerror = () => setTimeout(done, 50); image.src = 'http://127.0.0.1:9/a.png'; })");
    let problems = page.problems();
    let of = |mark: &str| problems.iter().filter(|it| it.contains(mark)).count();
    assert!(of("img-src http") == 1 && of("ContentSecurityPolicyIssue") == 1, "{problems:?}");
    assert_eq!(page.problems().len(), 1, "the page keeps its own list");
    assert_eq!(page.eval("window.violations.length"), Value::from(1));
    drop(page);
    drop(browser);
    desk.house.end();
}
