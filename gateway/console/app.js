/** Entry of the console: routes, frame, shortcuts, and what connects the page with the browser. */
import { render } from "./vendor/preact.js";
import { Console } from "./core/console.js";
import { clean, oneLine } from "./core/text.js";
import { Button, Dialog, Icon, Loading, Name, html, shared, useConsole, useEffect, useErrorBoundary, useLayoutEffect, useNow, useRef, useState } from "./ui/base.js";
import { LoginPage } from "./pages/login.js";
import { SessionList } from "./pages/sessions.js";
import { titleOf } from "./ui/names.js";

/**
 * Pages that the list does not wait for: each is loaded when it is shown, or soon after the list. Many browsers remember a failed
 * module by its address, so a repetition has a query.
 */
const LATER = {
  session: (query = "") => import(`./pages/session.js${query}`),
  files: (query = "") => import(`./pages/files.js${query}`),
  new: (query = "") => import(`./pages/new.js${query}`),
  operate: (query = "") => import(`./pages/operate.js${query}`),
};

/** Delay before the other pages are loaded, in milliseconds. */
const LATER_MS = 500;

/** @typedef {{ name: string, id?: string }} Route */

/** @returns {Route} */
function routeOf(hash = location.hash) {
  const parts = hash.replace(/^#\/?/, "").split("/");
  if (parts[0] === "s" && parts[1]) return { name: parts[2] === "files" ? "files" : "session", id: decode(parts[1]) };
  return { name: parts[0] || "sessions" };
}

/** @param {string} text */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** @typedef {{ name: string, title: string, icon: string, scope: import("./core/types.js").Scope, aboutAll?: boolean, consoleOnly?: boolean }} Place */

/** Pages in the navigation. Those about all agents are not for a token of some. @type {Place[]} */
const PLACES = [
  { name: "sessions", title: "Sessions", icon: "list", scope: "read" },
  { name: "agents", title: "Agents", icon: "agent", scope: "read" },
  { name: "processes", title: "Processes", icon: "process", scope: "read", aboutAll: true },
  { name: "health", title: "Health", icon: "health", scope: "read", aboutAll: true },
  { name: "audit", title: "Answers", icon: "audit", scope: "read" },
  { name: "tokens", title: "Tokens", icon: "key", scope: "admin", consoleOnly: true },
];

/** @param {Console} model */
function places(model) {
  return PLACES.filter((place) => model.may(place.scope) && !(place.aboutAll && model.login?.isLimited) && (!place.consoleOnly || model.login?.console));
}

/** @type {[string, string][]} */
const SHORTCUTS = [
  ["?", "Show the shortcuts"], ["/", "Search the sessions"], ["n", "New session"], ["j, k", "Next and previous session or request"], ["Enter", "Open the session; press the button"],
  ["i", "Write a prompt"], ["Esc", "Leave the field; back to the list"], ["g s", "Sessions"], ["g a", "Agents"], ["g p", "Processes"], ["g h", "Health"],
  ["Tab", "Next control"], ["Enter, Shift+Enter", "Send the prompt; begin a new line"],
];

function App() {
  const model = useConsole();
  const [route, setRoute] = useState(routeOf);
  const [help, setHelp] = useState(false);
  const isFirst = useRef(true);
  // Listens before the first frame: the address may change with it.
  useLayoutEffect(() => {
    const changed = () => {
      setRoute(routeOf());
      setHelp(false);
    };
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  useEffect(() => {
    // A reader of the screen begins at the heading of the new page.
    if (!isFirst.current) /** @type {HTMLElement | null} */ (document.querySelector("main h1, [role=main] h1"))?.focus({ preventScroll: true });
    isFirst.current = false;
  }, [route.name, route.id, model.login === null]);
  useEffect(() => {
    const onKey = shortcuts(() => setHelp(true));
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const name = nameOf(model, route);
  useEffect(() => badge(model.state.permissions.size, name), [model.state.permissions.size, name]);
  const [crash, reset] = useErrorBoundary();
  if (crash) return html`<main id="main" class="page"><h1>The page has failed</h1><p>${clean(crash.message)}</p><${Button}
    kind="primary" onClick=${() => { reset(); location.hash = "#/"; }}>Back to the sessions</${Button}></main>`;
  if (!model.login) return html`<${LoginPage} /><${Toasts} />`;
  return html`<div class="frame route-${route.name}">
    <button type="button" class="skip" onClick=${() => document.getElementById("main")?.focus()}>Skip to the content</button>
    <${Navigation} route=${route} onHelp=${() => setHelp(true)} />
    <${ConnectionBar} />
    ${route.name === "sessions" || route.id ? html`<${ListPane} key="list" current=${route.id} />` : null}
    ${route.name === "sessions" ? html`<section class="detail" aria-label="Session"><${Welcome} /></section>`
      : html`<main id="main" tabindex="-1" class="detail"><${Page} route=${route} /></main>`}
    <${Toasts} /><div class="sr" aria-live="polite" role="status">${clean(model.announcement)}</div>
    ${help ? html`<${Dialog} title="Keyboard shortcuts" onClose=${() => setHelp(false)}><dl class="shortcuts">
      ${SHORTCUTS.map(([keys, text]) => html`<dt><kbd>${keys}</kbd></dt><dd>${text}</dd>`)}</dl></${Dialog}>` : null}
  </div>`;
}

/** Module and component of each page. @type {Record<string, [keyof typeof LATER, string]>} */
const PAGES = {
  session: ["session", "SessionPage"], files: ["files", "FilesPage"], new: ["new", "NewPage"], agents: ["operate", "AgentsPage"],
  processes: ["operate", "ProcessesPage"], health: ["operate", "HealthPage"], audit: ["operate", "AuditPage"],
  tokens: ["operate", "TokensPage"],
};

/** @param {{ route: Route }} props */
function Page({ route }) {
  if (route.name === "more") return html`<${More} />`;
  const page = PAGES[route.name];
  if (!page) return html`<div class="page"><h1 tabindex="-1">There is no such page</h1><p><a href="#/">Back to the sessions</a></p></div>`;
  return html`<${LaterPage} key=${`${route.name} ${route.id}`} page=${page} id=${route.id ?? ""} />`;
}

/** @type {Map<string, any>} */
const loaded = new Map();

/** Shows a page as soon as its module is there. @param {{ page: [keyof typeof LATER, string], id: string }} props */
function LaterPage({ page: [name, component], id }) {
  const [error, setError] = useState(/** @type {any} */ (null));
  const [, draw] = useState(0);
  // In the task that has drawn: a module that came before an effect after the frame would not be drawn.
  useLayoutEffect(() => {
    if (loaded.has(name)) return undefined;
    let tries = 0;
    const load = () => void LATER[name](tries++ ? `?${tries}` : "").then((module) => { loaded.set(name, module); draw(1); }, setError);
    load();
    // Again when the gateway is back.
    shared.console.gapListeners.add(load);
    return () => void shared.console.gapListeners.delete(load);
  }, []);
  const Component = loaded.get(name)?.[component];
  if (Component) return html`<${Component} id=${id} />`;
  if (!error) return html`<div class="page"><${Loading} /></div>`;
  return html`<div class="page"><h1 tabindex="-1">The page cannot be loaded</h1><p>The gateway may have been updated or is away.</p>
    <p><${Button} kind="primary" onClick=${() => location.reload()}>Reload</${Button}></p></div>`;
}

/** Loads the other pages while nothing else is to be done. */
function loadLater() {
  for (const name of /** @type {(keyof typeof LATER)[]} */ (Object.keys(LATER))) {
    LATER[name]().then((module) => loaded.set(name, module), () => undefined);
  }
}

/** The list, as the page or beside a session; it keeps its place and its filter. @param {{ current: string | undefined }} props */
function ListPane({ current }) {
  const pane = useRef(/** @type {HTMLElement | null} */ (null));
  const top = useRef(0);
  useEffect(() => { if (pane.current) pane.current.scrollTop = top.current; }, [current === undefined]);
  return html`<div ref=${pane} class="list-pane" tabindex="-1" role=${current ? "complementary" : "main"}
    id=${current ? undefined : "main"} aria-label="Sessions"
    onScroll=${() => { if (pane.current?.offsetParent) top.current = pane.current.scrollTop; }}><${SessionList}
      current=${current} /></div>`;
}

function Welcome() {
  return html`<div class="page welcome"><${Icon} name="inbox" /><p>Choose a session, or start one.</p></div>`;
}

/** @param {{ route: Route, onHelp: () => void }} props */
function Navigation({ route, onHelp }) {
  const model = useConsole();
  const here = route.name === "session" || route.name === "files" ? "sessions" : route.name;
  const waiting = model.state.permissions.size;
  const all = places(model);
  const link = (/** @type {Place} */ place) => html`<a key=${place.name} class="nav-link nav-${place.name}"
    href=${place.name === "sessions" ? "#/" : `#/${place.name}`} aria-current=${here === place.name ? "page" : undefined}>
    <${Icon} name=${place.icon} /><span>${place.title}</span>${place.name === "sessions" && waiting ? html`<span class="count"
      aria-label="${waiting} waiting for you">${waiting}</span>` : null}</a>`;
  return html`<nav class="rail" aria-label="Main"><p class="brand"><span class="logo" aria-hidden="true"></span>acp-host</p>
    <div class="nav-links">${all.map(link)}<a class="nav-link nav-more" href="#/more"
      aria-current=${["more", "audit", "tokens", "processes"].includes(here) ? "page" : undefined}><${Icon} name="more" />
        <span>More</span></a></div>
    <div class="nav-end"><${NotifyButton} /><${ThemeButton} /><button type="button" class="nav-link" onClick=${onHelp}><${Icon}
      name="plan" /><span>Shortcuts</span></button><${Account} /></div></nav>`;
}

function Account() {
  const model = useConsole();
  return html`<div class="account"><span class="account-name"><${Icon} name="user" /><span><${Name} text=${model.login?.name} />
    <small class="quiet">${model.login?.scope}</small></span></span>
    <${Button} kind="ghost" icon="out" label="Sign out" onClick=${() => void model.signOut()} /></div>`;
}

function NotifyButton() {
  const model = useConsole();
  const [state, set] = useState(model.canNotify ? Notification.permission : "denied");
  if (!model.canNotify || state !== "default") return null;
  const ask = async () => set(await Notification.requestPermission());
  return html`<button type="button" class="nav-link" onClick=${ask}><${Icon} name="bell" /><span>Notify me</span></button>`;
}

const THEMES = ["system", "light", "dark"];

function ThemeButton() {
  const [theme, set] = useState(localStorage.getItem("acphost.theme") ?? "system");
  const next = () => {
    const name = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? "system";
    localStorage.setItem("acphost.theme", name);
    setTheme(name);
    set(name);
  };
  return html`<button type="button" class="nav-link" onClick=${next}><${Icon} name="sun" /><span>Theme: ${theme}</span></button>`;
}

/** @param {string} theme */
function setTheme(theme) {
  document.documentElement.dataset["theme"] = theme;
}

/** The places that a narrow navigation has no room for. */
function More() {
  const model = useConsole();
  return html`<div class="page more"><header class="page-head"><h1 tabindex="-1">More</h1></header>
    <ul class="menu-page">
    ${places(model).filter(({ name }) => !["sessions", "agents", "health"].includes(name)).map((place) => html`<li><a
      href="#/${place.name}"><${Icon} name=${place.icon} />${place.title}</a></li>`)}</ul>
    <div class="more-end"><${NotifyButton} /><${ThemeButton} /><${Account} /></div></div>`;
}

/** Says that the page is not live. */
function ConnectionBar() {
  const model = useConsole();
  const { phase, retryAt, error } = model.state.connection;
  const [shown, show] = useState(false);
  const isOpen = phase === "open";
  const now = useNow(1_000);
  // A short interruption is not worth a bar.
  useEffect(() => {
    if (isOpen) return show(false);
    const timer = setTimeout(() => show(true), 400);
    return () => clearTimeout(timer);
  }, [isOpen]);
  if (isOpen || !shown) return html`<div role="status" class="sr"></div>`;
  const seconds = retryAt ? Math.max(0, Math.ceil((retryAt - now) / 1000)) : 0;
  return html`<div class="connection" role="status"><${Icon} name="spinner" /><span><strong>
    ${navigator.onLine ? "Reconnecting…" : "You are offline."}</strong>
    ${phase === "waiting" && seconds > 1 ? ` Next attempt in ${seconds} s.` : ""} ${error && error.status ? html`<span
      class="quiet">${clean(error.message)}</span>` : null}</span>
    <${Button} kind="small" onClick=${() => model.wake()}>Try now</${Button}></div>`;
}

function Toasts() {
  const model = useConsole();
  return html`<div class="toasts" role="region" aria-label="Messages" aria-live="polite">${model.toasts.map((toast) => html`<div
    key=${toast.id} class="toast ${toast.tone}" role=${toast.tone === "error" ? "alert" : "status"}>
    <${Icon} name=${toast.tone === "error" ? "alert" : "check"} /><div><p><${Name} text=${toast.text} /></p>
    ${toast.detail ? html`<p class="quiet">${toast.detail}</p>` : null}</div>
    <${Button} kind="ghost small" icon="close" label="Dismiss" onClick=${() => model.dropToast(toast.id)} /></div>`)}</div>`;
}

/** Name of a page for the title. @param {Console} model @param {Route} route */
function nameOf(model, route) {
  const session = route.id ? model.state.sessions.get(route.id) : undefined;
  if (session) return oneLine(titleOf(session), 60);
  return PLACES.find((place) => place.name === route.name)?.title ?? (route.name === "new" ? "New session" : "");
}

/** Shows in the title how many requests wait. @param {number} waiting @param {string} name */
function badge(waiting, name) {
  document.title = `${waiting > 0 ? `(${waiting}) ` : ""}${name ? `${name} · ` : ""}acp-host`;
  const app = /** @type {any} */ (navigator);
  if (waiting > 0) app.setAppBadge?.(waiting)?.catch?.(() => undefined);
  else app.clearAppBadge?.()?.catch?.(() => undefined);
}

/** @param {() => void} onHelp */
function shortcuts(onHelp) {
  let afterG = 0;
  return (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.closest("input, textarea, select, [contenteditable]")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    const isAfterG = Date.now() - afterG < 1_200;
    afterG = event.key === "g" ? Date.now() : 0;
    if (run(event.key, isAfterG, onHelp)) event.preventDefault();
  };
}

/** Does what a key stands for. @param {string} key @param {boolean} isAfterG @param {() => void} onHelp */
function run(key, isAfterG, onHelp) {
  const pages = /** @type {Record<string, string>} */ ({ s: "#/", a: "#/agents", p: "#/processes", h: "#/health" });
  if (isAfterG && pages[key]) location.hash = pages[key];
  else if (key === "?") onHelp();
  else if (key === "n") location.hash = "#/new";
  else if (key === "/") focus("#search");
  else if (key === "i") focus("#prompt");
  else if (key === "j" || key === "k") step(key === "j" ? 1 : -1);
  else if (key === "Escape" && location.hash.startsWith("#/s/")) location.hash = "#/";
  else return false;
  return true;
}

/** @param {string} selector */
function focus(selector) {
  /** @type {HTMLElement | null} */ (document.querySelector(selector))?.focus();
}

/** Moves the focus among sessions and the answers of their requests. @param {number} by */
function step(by) {
  const all = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(".list-pane .row-link, .list-pane .answers .button:first-child")]).filter((element) => element.offsetParent);
  const at = all.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  all[Math.min(all.length - 1, Math.max(0, at + by))]?.focus();
}

function begin() {
  setTheme(localStorage.getItem("acphost.theme") ?? "system");
  const code = /^#code=(.+)$/.exec(location.hash)?.[1] ?? null;
  // The code does not stay in the history.
  if (code) history.replaceState(null, "", location.pathname);
  const model = new Console();
  shared.console = model;
  addEventListener("online", () => model.wake());
  addEventListener("offline", () => model.draw());
  addEventListener("pageshow", () => model.wake());
  document.addEventListener("visibilitychange", () => document.hidden || model.wake());
  // A file that misses its field must not replace the page.
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => event.preventDefault());
  void model.begin(code ? decode(code) : null).then(() => {
    const root = /** @type {HTMLElement} */ (document.getElementById("app"));
    root.replaceChildren();
    render(html`<${App} />`, root);
    setTimeout(loadLater, LATER_MS);
  });
}

begin();
