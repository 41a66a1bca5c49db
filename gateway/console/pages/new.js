/** The form that starts a session. */
import { asApiError, newKey, query } from "../core/api.js";
import { LABEL_CHARS_MAX } from "../core/format.js";
import { Badge, ErrorNote, Field, Icon, Loading, Name, PageHead, html, useConsole, useEffect, useLoad, useRef, useState } from "../ui/base.js";
import { PERMISSION_MODES } from "../ui/names.js";

/** The form in the session storage: a repeated start after a reload has the same key, so it starts one session. */
const KEPT = "acphost.new";
/** @returns {{ key: string, agent: string, cwd: string, label: string, permission: string, prompt: string }} */
function kept() {
  const empty = { key: newKey(), agent: "", cwd: "", label: "", permission: "", prompt: "" };
  try {
    return { ...empty, ...JSON.parse(sessionStorage.getItem(KEPT) ?? "{}") };
  } catch {
    return empty;
  }
}

export function NewPage() {
  const model = useConsole();
  const agents = useLoad((signal) => model.api.json("/v1/agents", { signal }), []);
  const [form, setForm] = useState(kept);
  // What was filled in last, which may not be drawn yet: other fields and the start must not miss it.
  const latest = useRef(form);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(/** @type {any} */ (null));
  const change = (/** @type {object} */ part) => {
    // Another request needs another key.
    const next = { ...latest.current, ...part, key: newKey() };
    latest.current = next;
    setForm(next);
    sessionStorage.setItem(KEPT, JSON.stringify(next));
  };
  const usable = (agents.data ?? []).filter((/** @type {any} */ agent) => agent.allowed);
  const chosen = form.agent || usable.find((/** @type {any} */ agent) => agent.default && agent.installed)?.name || usable.find((/** @type {any} */ agent) => agent.installed)?.name || "";
  const isNear = (/** @type {any} */ agent) => agent.installed || agent.name === chosen;
  const option = (/** @type {any} */ agent) => html`<${AgentOption} key=${agent.name} agent=${agent}
    isChosen=${agent.name === chosen} onChoose=${() => change({ agent: agent.name })} />`;
  const start = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    const { key, agent, cwd, label, permission, prompt } = latest.current;
    const body = { agent: agent || chosen, ...part("cwd", cwd.trim()), ...part("label", label.trim()), ...part("permission", permission), ...part("prompt", prompt.trim()), interactive: true };
    try {
      const started = await model.api.persist("/v1/sessions", body, { key });
      sessionStorage.removeItem(KEPT);
      await model.readSession(started.session_key);
      location.hash = `#/s/${encodeURIComponent(started.session_key)}`;
    } catch (failure) {
      setError(asApiError(failure));
      setBusy(false);
    }
  };
  if (!model.may("prompt")) return html`<div class="page"><${PageHead} title="New session" back="#/" />
    <p>Your token may read only. It needs the scope <code>prompt</code> to start sessions.</p></div>`;
  return html`<div class="page narrow"><${PageHead} title="New session" back="#/" />
    <${ErrorNote} error=${agents.error} retry=${agents.reload} what="The agents could not be read" />
    ${agents.loading && !agents.data ? html`<${Loading} />` : null}
    <form class="stack" onSubmit=${start}>
      <fieldset class="agents"><legend>Agent</legend>
        ${usable.filter(isNear).map(option)}
        ${usable.every(isNear) ? null : html`<details><summary>
          ${usable.length - usable.filter(isNear).length} other agents</summary><div class="agents-more">
            ${usable.filter((/** @type {any} */ agent) => !isNear(agent)).map(option)}</div></details>`}
        ${agents.data && usable.length === 0 ? html`<p
          class="quiet">No agent is allowed. An operator lists them in <code>acp.allowed_agents</code>.</p>` : null}</fieldset>
      <${Directory} agent=${chosen} value=${form.cwd} onChange=${(/** @type {string} */ cwd) => change({ cwd })} />
      <fieldset class="modes"><legend>Permission requests</legend>
        ${[["", "As configured", "The agent's own setting holds."], ...PERMISSION_MODES].map(([mode, name, text]) => html`<label
          class="mode"><input type="radio" name="permission" value=${mode}
          checked=${form.permission === mode}
            disabled=${(mode === "approve-all" || mode === "approve-reads") && !model.may("approve")}
              onChange=${() => change({ permission: mode })} />
          <span><strong>${name}</strong><small class="quiet">${text}</small></span></label>`)}</fieldset>
      <${Field} id="new-label" label="Name" hint="Optional; without one the directory is the name."><input id="new-label"
        name="label" dir="auto" maxlength=${LABEL_CHARS_MAX} autocomplete="off" aria-describedby="new-label-hint" value=${form.label}
          onInput=${(/** @type {any} */ event) => change({ label: event.target.value })} /></${Field}>
      <${Field} id="new-prompt" label="First prompt" hint="Optional; it is sent as soon as the agent is ready."><textarea
        id="new-prompt" name="prompt" rows="4" dir="auto" aria-describedby="new-prompt-hint" value=${form.prompt}
          onInput=${(/** @type {any} */ event) => change({ prompt: event.target.value })}></textarea></${Field}>
      <${ErrorNote} error=${error} what="The session was not started" />
      <footer class="form-end"><a class="button" href="#/">Cancel</a><button class="button primary" disabled=${busy || !chosen}
        aria-busy=${busy ? "true" : "false"}>${busy ? html`<${Icon} name="spinner" />` : null}Start session</button></footer>
    </form></div>`;
}

/** @param {string} name @param {string} value */
function part(name, value) {
  return value ? { [name]: value } : {};
}

/** @param {{ agent: any, isChosen: boolean, onChoose: () => void }} props */
function AgentOption({ agent, isChosen, onChoose }) {
  return html`<label class="agent-option ${agent.installed ? "" : "missing"}"><input type="radio" name="agent"
    value=${agent.name} checked=${isChosen} disabled=${!agent.installed && !agent.path} onChange=${onChoose} />
    <span><strong><${Name} text=${agent.title} /></strong>${agent.default ? html` <${Badge}>default</${Badge}>` : null}
    <small class="quiet"><code>${agent.name}</code>
    ${agent.installed ? "" : agent.path ? " is fetched at its first start" : ` is not installed. ${agent.note ?? ""}`}</small>
      </span></label>`;
}

/** The working directory, completed while it is typed. @param {{ agent: string, value: string, onChange: (value: string) => void }} props */
function Directory({ agent, value, onChange }) {
  const model = useConsole();
  const [found, setFound] = useState(/** @type {string[]} */ ([]));
  const [open, setOpen] = useState(false);
  const [at, setAt] = useState(-1);
  const box = useRef(/** @type {HTMLInputElement | null} */ (null));
  const known = [...new Set([...model.state.sessions.values()].map((session) => session.cwd))];
  useEffect(() => {
    if (!open) return undefined;
    const abort = new AbortController();
    const timer = setTimeout(() => {
      model.api.json(`/v1/directories${query({ agent, prefix: value })}`, { signal: abort.signal })
        .then((answer) => setFound(answer.directories ?? []), () => setFound([]));
    }, 120);
    return () => { clearTimeout(timer); abort.abort(); };
  }, [agent, value, open]);
  useEffect(() => document.getElementById(`cwd-${at}`)?.scrollIntoView({ block: "nearest" }), [at]);
  const offers = [...new Set([...known.filter((path) => path.startsWith(value)), ...found])].filter((path) => path !== value).slice(0, 12);
  const pick = (/** @type {string} */ path) => { onChange(path); setAt(-1); box.current?.focus(); };
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") setAt((at + (event.key === "ArrowDown" ? 1 : -1) + offers.length + 1) % (offers.length + 1));
    else if ((event.key === "Enter" || event.key === "Tab") && open && offers[at]) pick(/** @type {string} */ (offers[at]));
    else if (event.key === "Escape" && open) setOpen(false);
    else return;
    event.preventDefault();
  };
  const isOpen = open && offers.length > 0;
  return html`<div class="field combo"><label for="cwd">Directory</label>
    <input ref=${box} id="cwd" name="cwd" dir="ltr" role="combobox" autocomplete="off" autocapitalize="off" spellcheck=${false}
      aria-expanded=${isOpen ? "true" : "false"} aria-controls="cwd-list" aria-autocomplete="list"
      aria-activedescendant=${isOpen && at >= 0 ? `cwd-${at}` : undefined} aria-describedby="cwd-hint"
        placeholder="/home/me/project" value=${value} onKeyDown=${onKey} onFocus=${() => setOpen(true)}
          onBlur=${() => setTimeout(() => setOpen(false), 150)}
      onInput=${(/** @type {any} */ event) => { setOpen(true); setAt(-1); onChange(event.target.value); }} />
    <ul id="cwd-list" class="offers" role="listbox" aria-label="Directories" hidden=${!isOpen}>
    ${offers.map((path, index) => html`<li id="cwd-${index}" role="option" aria-selected=${index === at ? "true" : "false"}
      onPointerDown=${(/** @type {Event} */ event) => { event.preventDefault(); pick(path); }}><${Icon} name="folder" /><${Name}
        text=${path} /></li>`)}</ul>
    <p class="hint" id="cwd-hint">Absolute; empty takes the configured default.</p></div>`;
}

