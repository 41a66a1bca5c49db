//! A real Chromium without a window, driven over its DevTools protocol: what a person sees, clicks and types, and what the
//! browser complains about.

use crate::processes;
use crate::wait::{LONG, SOON, eventually, until};
use crate::world::World;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

/// Notes violations of the content security policy and tasks that block the page, from the beginning of each page.
const WATCH: &str = "window.violations = []; window.longTasks = [];
    document.addEventListener('securitypolicyviolation', event =>
        window.violations.push(`${event.effectiveDirective} ${event.blockedURI}`));
    new PerformanceObserver(list => list.getEntries().forEach(task => window.longTasks.push(task.duration)))
        .observe({ type: 'longtask' });";

/// Number of presses of Tab after which an element counts as out of reach.
const TABS_MAX: usize = 120;
/// Number of presses of Tab after which the element is looked up again.
const TABS_PER_QUERY: usize = 20;
/// Roles of elements that people operate.
const CONTROLS: &[&str] = &[
    "DisclosureTriangle",
    "button",
    "checkbox",
    "combobox",
    "link",
    "menuitem",
    "radio",
    "searchbox",
    "spinbutton",
    "switch",
    "tab",
    "textbox",
];

/// Directory of `tests/browser/install.sh`; `None`, aloud, if no browser could be installed on this machine.
///
/// # Panics
/// When there is none in CI, or the script was not run.
#[must_use]
pub fn browser_dir() -> Option<PathBuf> {
    let base = std::env::var_os("ACP_FOREIGN_DIR").map(PathBuf::from);
    let dir =
        base.unwrap_or_else(|| panic!("ACP_FOREIGN_DIR is not set: run `make test-browser`")).join("browser");
    let Ok(why) = std::fs::read_to_string(dir.join("missing")) else {
        assert!(
            dir.join("bin/chromium").is_file(),
            "no browser in {}: run `make test-browser`",
            dir.display()
        );
        return Some(dir);
    };
    assert!(std::env::var_os("CI").is_none(), "no browser: {why}");
    println!("SKIPPED: no browser: {why}");
    None
}

/// A running browser. Dropping it kills it, and waits for its helpers.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    /// Directory of its profile, and its `HOME`.
    profile: PathBuf,
    /// Connection to the browser, and events that nobody has read yet.
    wire: RefCell<(WebSocket<TcpStream>, Vec<Value>)>,
    next_id: AtomicU64,
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its own child, which is not reaped yet; its helpers notice its end.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let home = self.profile.display().to_string();
        let helpers = || processes::list_under_or_with_env(&self.profile, "HOME", &home);
        if !std::thread::panicking() {
            until(SOON, "the helpers of the browser have ended", || helpers().is_empty());
        }
    }
}

impl Browser {
    /// Starts a browser with a new profile in this world.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(dir: &Path, world: &World) -> Self {
        let (profile, log) = (world.dir("browser"), world.path("log/browser.stderr"));
        let stderr = std::fs::File::create(&log).unwrap_or_else(|e| panic!("{}: {e}", log.display()));
        let mut command = Command::new(dir.join("bin/chromium"));
        // Without a sandbox of its own, because in a container root may not make one.
        command.args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ]);
        command.args(["--remote-debugging-port=0", "--no-first-run", "--disable-background-networking"]);
        command.args(["--force-color-profile=srgb", "--font-render-hinting=none", "--disable-lcd-text"]);
        command.arg(format!("--user-data-dir={}", profile.display())).arg("about:blank");
        command
            .env("HOME", &profile)
            .envs([world.env_mark()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        let child = command.spawn().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        let url = eventually(LONG, "the browser listens", || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("DevTools listening on "))?;
            Some(line.trim().to_owned())
        });
        let authority = url.trim_start_matches("ws://").split('/').next().unwrap_or_default().to_owned();
        let stream = TcpStream::connect(&authority).unwrap_or_else(|e| panic!("{authority}: {e}"));
        let limited = stream.set_read_timeout(Some(LONG)).and_then(|()| stream.set_nodelay(true));
        limited.unwrap_or_else(|e| panic!("{e}"));
        let (socket, _) = tungstenite::client(&url, stream).unwrap_or_else(|e| panic!("{url}: {e}"));
        Self { child, profile, wire: RefCell::new((socket, Vec::new())), next_id: AtomicU64::new(1) }
    }

    /// Calls a method and returns its result.
    fn call(&self, session: Option<&str>, method: &str, params: Value) -> Result<Value, String> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut request = json!({"id": id, "method": method, "params": params});
        if let Some(session) = session {
            request["sessionId"] = session.into();
        }
        let mut wire = self.wire.borrow_mut();
        wire.0.send(Message::Text(request.to_string())).unwrap_or_else(|e| panic!("{method}: {e}"));
        loop {
            let message = wire.0.read().unwrap_or_else(|e| panic!("no answer to {method}: {e}"));
            let Message::Text(text) = message else { continue };
            let mut message: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
            if message["id"] != id {
                wire.1.push(message);
                continue;
            }
            return match message["error"]["message"].as_str() {
                Some(why) => Err(format!("{method}: {why}")),
                None => Ok(message["result"].take()),
            };
        }
    }

    /// Opens an empty page of this size that shares nothing with other pages.
    ///
    /// # Panics
    /// When the browser refuses.
    #[must_use]
    pub fn page(&self, width: u32, height: u32) -> Page<'_> {
        let call = |method, params| self.call(None, method, params).unwrap_or_else(|e| panic!("{e}"));
        let context = call("Target.createBrowserContext", json!({}))["browserContextId"].take();
        let target = call("Target.createTarget", json!({"url": "about:blank", "browserContextId": context}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session =
            call("Target.attachToTarget", attach)["sessionId"].as_str().unwrap_or_default().to_owned();
        let page = Page { browser: self, session, context };
        for domain in ["Page", "Runtime", "Log", "Network", "DOM", "Accessibility", "Audits"] {
            page.call(&format!("{domain}.enable"), json!({}));
        }
        page.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": WATCH}));
        page.resize(width, height);
        page
    }
}

/// A page of a browser, with storage and caches of its own.
#[derive(Debug)]
pub struct Page<'b> {
    browser: &'b Browser,
    session: String,
    context: Value,
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = self.browser.call(
                None,
                "Target.disposeBrowserContext",
                json!({"browserContextId": self.context}),
            );
        }
    }
}

impl Page<'_> {
    /// Calls a method of the DevTools protocol for this page.
    ///
    /// # Panics
    /// When the browser refuses.
    pub fn call(&self, method: &str, params: Value) -> Value {
        self.browser.call(Some(&self.session), method, params).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Sets the size of the page; below 600 pixels of width it is a phone's.
    pub fn resize(&self, width: u32, height: u32) {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Opens an address and waits until it is loaded.
    ///
    /// # Panics
    /// When it cannot be loaded.
    pub fn open(&self, url: &str) {
        let answer = self.call("Page.navigate", json!({"url": url}));
        assert!(answer["errorText"].is_null(), "{url}: {answer}");
        self.until("the page is loaded", "document.readyState === 'complete'");
    }

    /// Runs JavaScript in the page and returns its value; a promise is awaited.
    ///
    /// # Panics
    /// When it throws.
    #[must_use]
    pub fn eval(&self, script: &str) -> Value {
        self.try_eval(script).unwrap_or_else(|why| panic!("{script}: {why}"))
    }

    fn try_eval(&self, script: &str) -> Result<Value, String> {
        let params =
            json!({"expression": script, "awaitPromise": true, "returnByValue": true, "userGesture": true});
        let mut answer = self.browser.call(Some(&self.session), "Runtime.evaluate", params)?;
        match answer["exceptionDetails"]["exception"]["description"].as_str() {
            Some(why) => Err(why.to_owned()),
            None => Ok(answer["result"]["value"].take()),
        }
    }

    /// Waits until a JavaScript expression is true. While a page is loaded it may fail.
    ///
    /// # Panics
    /// When it does not become true in time; the message has the text of the page.
    pub fn until(&self, what: &str, script: &str) {
        let end = std::time::Instant::now() + SOON;
        eventually(SOON + SOON, what, || {
            let found = self.try_eval(&format!("Boolean({script})"));
            let in_time = std::time::Instant::now() < end;
            assert!(in_time, "{what}: {script} is {found:?}\n{}", self.text());
            (found == Ok(Value::Bool(true))).then_some(())
        });
    }

    /// Waits until the page shows a text.
    ///
    /// # Panics
    /// When it does not in time.
    pub fn shows(&self, text: &str) {
        self.until(
            &format!("the page shows {text:?}"),
            &format!("document.body.innerText.includes({})", json!(text)),
        );
    }

    /// Text of the page as a person sees it.
    #[must_use]
    pub fn text(&self) -> String {
        self.try_eval("document.body?.innerText ?? ''")
            .ok()
            .and_then(|text| Some(text.as_str()?.to_owned()))
            .unwrap_or_default()
    }

    /// Nodes of the elements that assistive programs see with this role and name.
    fn query(&self, role: &str, name: &str) -> Vec<Value> {
        let root = self.call("DOM.getDocument", json!({"depth": 0}));
        let query =
            json!({"backendNodeId": root["root"]["backendNodeId"], "role": role, "accessibleName": name});
        // The document may be replaced meanwhile.
        let found = self.browser.call(Some(&self.session), "Accessibility.queryAXTree", query).ok();
        let nodes = found.as_ref().and_then(|found| found["nodes"].as_array());
        let seen = nodes.into_iter().flatten().filter(|node| node["ignored"] == false);
        seen.map(|node| node["backendDOMNodeId"].clone()).collect()
    }

    /// Waits for the element that assistive programs see with this role and name, and returns its node.
    fn find(&self, role: &str, name: &str) -> Value {
        let end = std::time::Instant::now() + SOON;
        eventually(SOON + SOON, &format!("{role} {name:?}"), || {
            let node = self.query(role, name).into_iter().next();
            assert!(std::time::Instant::now() < end, "no {role} {name:?} in the page\n{}", self.text());
            node
        })
    }

    /// True if assistive programs see an element with this role and name.
    #[must_use]
    pub fn has(&self, role: &str, name: &str) -> bool {
        !self.query(role, name).is_empty()
    }

    /// Clicks the element with this role and name, at its middle, once it stands still and is enabled: what lies over it gets
    /// the click.
    ///
    /// # Panics
    /// When there is none in time, or it has no place on the page.
    pub fn click(&self, role: &str, name: &str) {
        let mut before = Vec::new();
        let quad = eventually(SOON, &format!("a place of {role} {name:?}"), || {
            let node = json!({"backendNodeId": self.find(role, name)});
            self.browser.call(Some(&self.session), "DOM.scrollIntoViewIfNeeded", node.clone()).ok()?;
            let described = self.browser.call(Some(&self.session), "DOM.describeNode", node.clone()).ok()?;
            let attributes = described["node"]["attributes"].as_array();
            let is_enabled = !attributes.into_iter().flatten().step_by(2).any(|name| name == "disabled");
            let quads = self.browser.call(Some(&self.session), "DOM.getContentQuads", node).ok()?;
            let quad: Vec<f64> =
                quads["quads"].get(0)?.as_array()?.iter().filter_map(Value::as_f64).collect();
            let is_still = quad == before;
            before.clone_from(&quad);
            (quad.len() == 8 && is_still && is_enabled).then_some(quad)
        });
        let middle = |from: usize| quad.iter().skip(from).step_by(2).sum::<f64>() / 4.0;
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            let pressed = kind != "mouseMoved";
            self.call(
                "Input.dispatchMouseEvent",
                json!({"type": kind, "x": middle(0), "y": middle(1), "button": if pressed { "left" } else { "none" }, "clickCount": u8::from(pressed)}),
            );
        }
    }

    /// Replaces the text of a field.
    ///
    /// # Panics
    /// When there is no such field in time.
    pub fn fill(&self, role: &str, name: &str, text: &str) {
        self.call("DOM.focus", json!({"backendNodeId": self.find(role, name)}));
        let _ = self.eval("document.activeElement.select?.()");
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Presses a key such as `Enter`, `Tab`, `Escape` or `ArrowDown`, also with `Control+` or `Shift+` before it.
    pub fn press(&self, key: &str) {
        let modified = [("Control+", 2), ("Shift+", 8)];
        let found = modified.iter().find_map(|(prefix, bit)| Some((key.strip_prefix(prefix)?, *bit)));
        let (key, modifiers) = found.unwrap_or((key, 0));
        let (code, text) = match key {
            "Enter" => (13, "\r"),
            "Tab" => (9, ""),
            "Escape" => (27, ""),
            "ArrowLeft" => (37, ""),
            "ArrowUp" => (38, ""),
            "ArrowRight" => (39, ""),
            "ArrowDown" => (40, ""),
            " " => (32, " "),
            _ => (0, key),
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event =
                json!({"type": kind, "key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers});
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = text.into();
            }
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Types a text where the focus is.
    pub fn write(&self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Role and name of the element with the focus, as assistive programs see it.
    #[must_use]
    pub fn focused(&self) -> (String, String) {
        let found = self.call("Runtime.evaluate", json!({"expression": "document.activeElement"}));
        let of = json!({"objectId": found["result"]["objectId"], "fetchRelatives": false});
        let tree = self.call("Accessibility.getPartialAXTree", of);
        let text = |what: &str| tree["nodes"][0][what]["value"].as_str().unwrap_or_default().to_owned();
        (text("role"), text("name"))
    }

    /// Presses Tab until the focus is on an element with this role and name.
    ///
    /// # Panics
    /// When Tab does not get there.
    pub fn tab_to(&self, role: &str, name: &str) {
        let _ = self.find(role, name);
        let mut targets = Vec::new();
        for pressed in 0..TABS_MAX {
            // Elements may be drawn anew.
            if pressed.is_multiple_of(TABS_PER_QUERY) {
                let nodes = self.query(role, name).into_iter();
                let resolve = |node| {
                    let of = json!({"backendNodeId": node});
                    let found = self.browser.call(Some(&self.session), "DOM.resolveNode", of).ok()?;
                    Some(json!({"objectId": found["object"]["objectId"]}))
                };
                targets = nodes.filter_map(resolve).collect();
            }
            let script = "function (...targets) { return targets.includes(document.activeElement); }";
            let on = targets.first().map(|target| &target["objectId"]);
            let asked = json!({"functionDeclaration": script, "objectId": on, "arguments": targets, "returnByValue": true});
            if on.is_some() && self.call("Runtime.callFunctionOn", asked)["result"]["value"] == true {
                return;
            }
            self.press("Tab");
        }
        panic!("Tab does not reach {role} {name:?}; the focus is on {:?}\n{}", self.focused(), self.text());
    }

    /// Role and name of every control, as assistive programs see them.
    #[must_use]
    pub fn controls(&self) -> Vec<(String, String)> {
        let tree = self.call("Accessibility.getFullAXTree", json!({}));
        let nodes = tree["nodes"].as_array().cloned().unwrap_or_default();
        let text = |node: &Value, what: &str| node[what]["value"].as_str().unwrap_or_default().to_owned();
        let seen = nodes.iter().filter(|node| node["ignored"] == false);
        let all = seen.map(|node| (text(node, "role"), text(node, "name")));
        all.filter(|(role, _)| CONTROLS.contains(&role.as_str())).collect()
    }

    /// Calls a method of the browser for the context of this page, which other pages do not share.
    ///
    /// # Panics
    /// When the browser refuses.
    pub fn call_context(&self, method: &str, mut params: Value) {
        params["browserContextId"] = self.context.clone();
        let _ = self.browser.call(None, method, params).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Puts files into the field that a selector finds, as if they had been chosen.
    pub fn choose_files(&self, selector: &str, files: &[&Path]) {
        let root = self.call("DOM.getDocument", json!({"depth": 0}));
        let query = json!({"nodeId": root["root"]["nodeId"], "selector": selector});
        let node = self.call("DOM.querySelector", query);
        self.call("DOM.setFileInputFiles", json!({"files": files, "nodeId": node["nodeId"]}));
    }

    /// Drops files from outside of the browser on the middle of the element that a selector finds.
    pub fn drop_files(&self, selector: &str, files: &[&Path]) {
        let middle = format!(
            "(box => [box.x + box.width / 2, box.y + box.height / 2])(document.querySelector({}).getBoundingClientRect())",
            json!(selector)
        );
        let at = self.eval(&middle);
        let data = json!({"items": [], "files": files, "dragOperationsMask": 1});
        for kind in ["dragEnter", "dragOver", "drop"] {
            let event = json!({"type": kind, "x": at[0], "y": at[1], "data": data});
            self.call("Input.dispatchDragEvent", event);
        }
    }

    /// Holds requests for addresses of this pattern, where `*` is any text, until [`Page::release`]. A wider pattern than
    /// needed would hold the event stream too.
    pub fn hold(&self, pattern: &str) {
        self.call("Fetch.enable", json!({"patterns": [{"urlPattern": pattern}]}));
    }

    /// Waits until a request is held, and returns all that are.
    #[must_use]
    pub fn until_held(&self) -> Vec<Value> {
        eventually(SOON, "a held request", || {
            Some(self.events("Fetch.requestPaused")).filter(|held| !held.is_empty())
        })
    }

    /// Lets these requests go on, and holds no more.
    pub fn release(&self, held: &[Value]) {
        for request in held {
            self.call("Fetch.continueRequest", json!({"requestId": request["requestId"]}));
        }
        self.call("Fetch.disable", json!({}));
    }

    /// Picture of the page as PNG in base64.
    ///
    /// # Panics
    /// When the browser makes none.
    #[must_use]
    pub fn picture(&self) -> String {
        let answer = self.call("Page.captureScreenshot", json!({"format": "png"}));
        answer["data"].as_str().unwrap_or_else(|| panic!("no picture")).to_owned()
    }

    /// Events of this page with this method since the last call.
    #[must_use]
    pub fn events(&self, method: &str) -> Vec<Value> {
        // A call reads what the browser has sent before its answer.
        let _ = self.try_eval("1");
        let mut wire = self.browser.wire.borrow_mut();
        let ours = |event: &Value| event["sessionId"] == self.session.as_str() && event["method"] == method;
        let (found, rest) = std::mem::take(&mut wire.1).into_iter().partition(ours);
        wire.1 = rest;
        drop(wire);
        let found: Vec<Value> = found;
        found.into_iter().map(|mut event| event["params"].take()).collect()
    }

    /// Uncaught errors, violations of the policy, and errors in the console except of refused requests.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut all: Vec<String> = self
            .events("Runtime.exceptionThrown")
            .iter()
            .map(|event| event["exceptionDetails"].to_string())
            .collect();
        let logged = self.events("Log.entryAdded");
        let bad = logged.iter().map(|event| &event["entry"]);
        let bad = bad.filter(|entry| entry["source"] != "network" && entry["level"] == "error");
        all.extend(bad.map(|entry| text(&entry["text"])));
        let written = self.events("Runtime.consoleAPICalled");
        all.extend(written.iter().filter(|event| event["type"] == "error").map(ToString::to_string));
        let issues = self.events("Audits.issueAdded");
        let policy = issues.iter().map(|event| &event["issue"]);
        let policy = policy.filter(|issue| issue["code"] == "ContentSecurityPolicyIssue");
        all.extend(policy.map(ToString::to_string));
        let violations = self.try_eval("window.violations ?? []").unwrap_or_default();
        all.extend(violations.as_array().into_iter().flatten().map(text));
        all
    }
}
