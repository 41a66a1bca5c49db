/** A session: transcript, composer, and its settings. */
import { sessionPath } from "../core/api.js";
import { SessionFeed } from "../core/feed.js";
import { LABEL_CHARS_MAX, count, shortPath } from "../core/format.js";
import { oneLine } from "../core/text.js";
import { Composer, Queue } from "../ui/composer.js";
import { Button, Confirm, Dialog, Empty, ErrorNote, Field, Icon, Loading, Menu, Name, attempt, html, shared, useConsole, useEffect, useMemo, useRef, useState } from "../ui/base.js";
import { PERMISSION_MODES, StateBadge, titleOf } from "../ui/names.js";
import { OutgoingItem, TranscriptItem, begins, guessHeight, isShown, tokensOf } from "../ui/transcript.js";
import { VirtualList } from "../ui/virtual.js";

/** @typedef {import("../core/types.js").SessionView} SessionView */

/** @param {{ id: string }} props */
export function SessionPage({ id }) {
  const model = useConsole();
  const feed = useFeed(id);
  const session = model.state.sessions.get(id);
  const [dialog, setDialog] = useState("");
  const [sent, setSent] = useState(0);
  useEffect(() => { void model.readSession(id).catch(() => undefined); }, [id]);
  useEffect(() => setDialog(""), [id]);
  if (!session) {
    const gone = model.state.gone.has(id) ? { code: "NO_SESSION", message: "The session is no longer there.", nextStep: "" } : null;
    if (gone || feed?.status.error) return html`<div class="page"><h1 tabindex="-1" class="sr">Session</h1><${ErrorNote}
      error=${gone ?? feed?.status.error} what="The session cannot be shown" /><p><a href="#/">Back to the sessions</a></p></div>`;
    return html`<div class="page"><${Loading} what="Reading the session" /></div>`;
  }
  return html`<div class="session">
    <${Head} session=${session} usage=${feed?.transcript.usage} onDialog=${setDialog} />
    <${Transcript} key=${id} feed=${feed} session=${session} sent=${sent} />
    <div class="dock"><${Queue} session=${session} /><${Composer} key=${id} session=${session}
      onSent=${() => setSent(sent + 1)} /></div>
    <${Dialogs} name=${dialog} session=${session} onClose=${() => setDialog("")} />
  </div>`;
}

/** Follows a session while it is shown. @param {string} id @returns {SessionFeed | null} */
function useFeed(id) {
  const [, draw] = useState(0);
  const [feed, set] = useState(/** @type {SessionFeed | null} */ (null));
  useEffect(() => {
    const model = shared.console;
    let frame = 0;
    const changed = () => {
      frame ||= requestAnimationFrame(() => { frame = 0; draw((/** @type {number} */ n) => n + 1); });
    };
    const made = new SessionFeed(model.api, id, changed, (events) => model.sawRows(events));
    const take = made.take.bind(made);
    const gap = (/** @type {boolean} */ isGap) => {
      if (isGap || made.status.phase === "failed") void made.catchUp();
    };
    model.eventListeners.add(take);
    model.gapListeners.add(gap);
    set(made);
    void made.start();
    return () => {
      made.stop();
      cancelAnimationFrame(frame);
      model.eventListeners.delete(take);
      model.gapListeners.delete(gap);
    };
  }, [id]);
  return feed?.key === id ? feed : null;
}

/** @param {{ session: SessionView, usage: any, onDialog: (name: string) => void }} props */
function Head({ session, usage, onDialog }) {
  const model = shared.console;
  const may = model.may("prompt");
  const open = session.state !== "closed";
  const files = `#/s/${encodeURIComponent(session.session_key)}/files`;
  return html`<header class="session-head">
    <a class="button ghost back" href="#/" aria-label="Back to the sessions"><${Icon} name="back" /></a>
    <div class="session-title">
      <h1 tabindex="-1"><${Name} text=${oneLine(titleOf(session), 120)} /></h1>
      <p class="quiet"><${StateBadge} session=${session} /><span><${Name} text=${session.agent} /></span><span class="dir"
        title=${session.cwd}><${Name} text=${shortPath(session.cwd, 60)} /></span>
        <${Usage} usage=${usage} />${(session.bindings ?? []).map((bound) => html`<span><${Name}
          text=${`${bound.channel} ${bound.conversation_id}`} /></span>`)}</p>
    </div>
    <div class="session-actions">
      <a class="button" href=${files}><${Icon} name="folder" /><span class="desktop">Files and changes</span><span
        class="sr phone">Files and changes</span></a>
      ${open && may ? html`<${Button} icon="settings" label="Settings of the session"
        onClick=${() => onDialog("settings")} />` : null}
      <${Menu} label="More actions" items=${[
        may && open ? { label: "Rename", icon: "edit", onSelect: () => onDialog("rename") } : null,
        { label: "Export as Markdown", icon: "file", onSelect: () => void exportSession(session, "md") },
        { label: "Export as JSON lines", icon: "file", onSelect: () => void exportSession(session, "jsonl") },
        { label: "Log of the agent", icon: "terminal", onSelect: () => onDialog("log") },
        may && open ? { label: "New conversation", icon: "plus", onSelect: () => onDialog("new") } : null,
        may && open && session.lease_id ? { label: "End the agent's process", icon: "process", onSelect: () => void attempt(() => model.act(session.session_key, "/release"), "The process was not ended") } : null,
        may && open ? { label: "Close", icon: "close", danger: true, onSelect: () => onDialog("close") } : null,
        may ? { label: "Delete", icon: "trash", danger: true, onSelect: () => onDialog("delete") } : null,
      ]} />
    </div>
    ${session.last_error && session.state === "error" ? html`<div class="head-note"><${ErrorNote}
      error=${{ ...session.last_error, nextStep: "The next prompt tries again." }} what="The agent cannot be used" />
        </div>` : null}
  </header>`;
}

/** @param {{ usage: any }} props */
function Usage({ usage }) {
  if (!usage || !usage.size) return usage?.used ? html`<span>${count(usage.used)} tokens in context</span>` : null;
  const share = Math.min(100, Math.round((usage.used / usage.size) * 100));
  const cost = usage.cost?.amount ? ` · ${Number(usage.cost.amount).toFixed(2)} ${usage.cost.currency ?? ""}` : "";
  return html`<span class="usage" title="${count(usage.used)} of ${count(usage.size)} tokens in context"><meter min="0" max="100"
    high="80" value=${share} aria-label="Context in use"></meter> ${share}%<span class="desktop">${cost}</span></span>`;
}

/** @param {{ feed: SessionFeed | null, session: SessionView, sent: number }} props */
function Transcript({ feed, session, sent }) {
  const model = shared.console;
  const items = useMemo(() => (feed?.transcript.items ?? []).filter(isShown), [feed?.transcript]);
  const starts = useMemo(() => begins(items), [items]);
  useAnnounced(items, session);
  if (!feed || feed.status.phase === "loading") return html`<div class="scroll-frame"><${Loading}
    what="Reading the transcript" /></div>`;
  if (feed.status.phase === "failed") return html`<div class="scroll-frame pad"><${ErrorNote} error=${feed.status.error}
    retry=${() => void feed.restart()} what="The transcript cannot be read" /></div>`;
  const outgoing = model.state.outbox.filter((entry) => entry.session === session.session_key && !hasArrived(entry, items));
  const asks = [...model.state.permissions.values()].some((row) => row.session_key === session.session_key);
  const busy = Boolean(session.active_run) || session.state === "running" || session.state === "creating";
  return html`<${VirtualList} items=${items} label="Transcript" guess=${guessHeight} jump=${sent} onTop=${() => void feed.older()}
    render=${(/** @type {any} */ item, /** @type {number} */ at) => html`<${Memo} item=${item} starts=${starts.has(item.id)}
      agent=${session.agent}
      isLast=${at === items.length - 1} session=${session.session_key}
        mark=${item.kind === "permission" ? model.state.permissions : item.kind === "user" ? model.sentFiles.get(item.run) : null} />`}
    header=${html`<${Older} feed=${feed} session=${session} isEmpty=${items.length + outgoing.length === 0} />`}
    footer=${html`<div class="tail">${outgoing.map((entry) => html`<${OutgoingItem} key=${entry.key} entry=${entry} />`)}
      ${busy ? html`<p class="working" role="status"><span class="pulse" aria-hidden="true"></span>
        ${asks ? "Waiting for an answer" : session.state === "creating" ? "The agent is starting" : "Working"}…</p>` : null}
          </div>`} />`;
}

/** True if the row of a prompt came before the response to its request. @param {import("../core/outbox.js").Outgoing} entry @param {any[]} items */
function hasArrived(entry, items) {
  for (let at = items.length - 1; at >= Math.max(0, items.length - 60); at -= 1) {
    const item = items[at];
    if (item.kind === "user" && (item.run === entry.run || (entry.run === null && entry.state === "sending" && item.text === entry.text && item.at >= entry.at - 2_000))) return true;
  }
  return false;
}

/** Draws an item again only when it has changed. @param {any} props */
function Memo(props) {
  const kept = useRef(/** @type {any} */ (null));
  const old = kept.current?.props;
  const same = old && old.item === props.item && old.isLast === props.isLast && old.mark === props.mark && old.agent === props.agent
    && old.starts === props.starts;
  if (!same) kept.current = { props, drawn: html`<${TranscriptItem} ...${props} />` };
  return kept.current.drawn;
}

/** @param {{ feed: SessionFeed, session: SessionView, isEmpty: boolean }} props */
function Older({ feed, session, isEmpty }) {
  if (feed.isFull && feed.hasOlder) return html`<p
    class="older quiet">Older events are not kept in this page. The export has all of them.</p>`;
  if (feed.hasOlder) return html`<p class="older"><${Button} kind="ghost" busy=${feed.status.loadingOlder}
    onClick=${() => void feed.older()}>Earlier events</${Button}></p>`;
  if (feed.prunedSeq > 0) return html`<p class="older quiet">Events before number ${feed.prunedSeq + 1} were pruned.</p>`;
  if (isEmpty) return html`<${Empty} icon="agent" title="Nothing has been said yet"><p class="quiet">Write a prompt; <${Name}
    text=${session.agent} /> works in <code><${Name} text=${session.cwd} /></code>.</p></${Empty}>`;
  return html`<p class="older quiet">Beginning of the session</p>`;
}

/** Tells screen readers about ends of turns, with the last words. @param {any[]} items @param {SessionView} session */
function useAnnounced(items, session) {
  const told = useRef("");
  const last = items[items.length - 1];
  useEffect(() => {
    if (!last || told.current === last.id) return;
    const first = told.current === "";
    told.current = last.id;
    if (first || last.kind !== "end") return;
    const words = items.slice(-6).reverse().find((item) => item.kind === "message")?.text ?? "";
    shared.console.announce(last.data.type === "error" ? `The turn failed: ${oneLine(last.data.message, 200)}` : `${session.agent} has finished. ${oneLine(words, 300)} ${tokensOf(last.data.usage)}`);
  }, [last?.id]);
}

/** @param {SessionView} session @param {"md" | "jsonl"} format */
async function exportSession(session, format) {
  await attempt(async () => {
    const response = await shared.console.api.send(sessionPath(session.session_key, `/export?format=${format}`));
    const url = URL.createObjectURL(await response.blob());
    const link = document.createElement("a");
    link.href = url;
    link.download = `${titleOf(session).replace(/[^\p{L}\p{N}._-]+/gu, "-")}.${format}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }, "The export failed");
}

/** @param {{ name: string, session: SessionView, onClose: () => void }} props */
function Dialogs({ name, session, onClose }) {
  const model = shared.console;
  const key = session.session_key;
  const leave = (/** @type {string} */ verb, /** @type {string} */ what) => async () => {
    if (!(await attempt(() => model.act(key, verb), what))) return;
    if (verb === "/delete") model.dispatch({ type: "missing", key });
    if (verb === "/delete") location.hash = "#/";
  };
  switch (name) {
    case "rename": return html`<${Rename} session=${session} onClose=${onClose} />`;
    case "settings": return html`<${Settings} session=${session} onClose=${onClose} />`;
    case "log": return html`<${AgentLog} session=${session} onClose=${onClose} />`;
    case "new": return html`<${Confirm} title="Begin a new conversation" action="Begin anew" onClose=${onClose}
      onConfirm=${leave("/new", "No new conversation was begun")}
      text="The next prompt starts a new conversation with the agent, which forgets what was said. The transcript stays." />`;
    case "close": return html`<${Confirm} title="Close the session" action="Close" onClose=${onClose}
      onConfirm=${leave("/close", "The session was not closed")}
      text="The running turn stops, the agent's process ends, and no more prompts are taken. The transcript stays readable." />`;
    case "delete": return html`<${Confirm} title="Delete the session" action="Delete" onClose=${onClose}
      onConfirm=${leave("/delete", "The session was not deleted")}
      text="The session is closed and hidden from lists. This cannot be undone." />`;
    default: return null;
  }
}

/** @param {{ session: SessionView, onClose: () => void }} props */
function Rename({ session, onClose }) {
  const save = async (/** @type {any} */ event) => {
    event.preventDefault();
    const label = String(new FormData(event.target).get("label") ?? "").trim();
    if (await attempt(() => shared.console.act(session.session_key, "", { label: label || null }, "PATCH"), "The name was not changed")) onClose();
  };
  return html`<${Dialog} title="Rename" onClose=${onClose}><form onSubmit=${save}>
    <${Field} id="label" label="Name" hint="Empty shows the name of the directory."><input id="label" name="label"
      maxlength=${LABEL_CHARS_MAX} dir="auto" autocomplete="off" aria-describedby="label-hint" defaultValue=${session.label ?? ""} />
        </${Field}>
    <footer><${Button} onClick=${onClose}>Cancel</${Button}><button class="button primary">Save</button></footer></form>
    </${Dialog}>`;
}

/** @param {{ session: SessionView, onClose: () => void }} props */
function AgentLog({ session, onClose }) {
  const [log, set] = useState(/** @type {any} */ (null));
  useEffect(() => {
    shared.console.api.json(sessionPath(session.session_key, "/log?lines=400")).then(set, (error) => set({ error }));
  }, []);
  return html`<${Dialog} wide title="Log of the agent" onClose=${onClose}>
    ${!log ? html`<${Loading} />` : log.error ? html`<${ErrorNote} error=${log.error} />` : html`<pre class="log" tabindex="0"
      dir="ltr"><${Name} text=${log.text ?? (log.lines ?? []).join("\n")} /></pre>`}
  </${Dialog}>`;
}

/** @param {{ session: SessionView, onClose: () => void }} props */
function Settings({ session, onClose }) {
  const key = session.session_key;
  const [busy, setBusy] = useState(false);
  const set = async (/** @type {any} */ body) => {
    setBusy(true);
    await attempt(async () => {
      const status = await shared.console.act(key, "/options", body);
      if (status?.setting?.text) shared.console.toast(status.setting.text);
    }, "The setting was not changed");
    setBusy(false);
  };
  const settings = session.agent_settings ?? {};
  const options = settings.options ?? [];
  const byCategory = (/** @type {string} */ name) => options.find((option) => option.category === name);
  const modes = settings.modes ?? byCategory("mode");
  const models = settings.models ?? byCategory("model") ?? options.find((option) => option.id === "model");
  const others = options.filter((option) => option !== modes && option !== models);
  return html`<${Dialog} title="Settings of the session" onClose=${onClose}><div class="settings"
    aria-busy=${busy ? "true" : "false"}>
    <${Choice} id="set-mode" label="Mode of the agent" choices=${modes} own=${session.mode_id}
      onChoose=${(/** @type {string} */ mode) => set({ mode })} />
    <${Choice} id="set-model" label="Model" choices=${models} own=${session.model}
      onChoose=${(/** @type {string} */ model) => set({ model })} />
    ${others.map((option) => html`<${Choice} key=${option.id} id=${`set-${option.id}`} label=${option.id}
      choices=${option.is_boolean ? { current: option.current, values: ["true", "false"] } : option}
      onChoose=${(/** @type {string} */ value) => set({ config: { id: option.id, value } })} />`)}
    <${Field} id="set-permission" label="Permission requests"
      hint=${PERMISSION_MODES.find(([mode]) => mode === session.permission)?.[2]}><select id="set-permission"
        value=${session.permission} aria-describedby="set-permission-hint"
      onChange=${(/** @type {any} */ event) => set({ permission: event.target.value })}>
        ${PERMISSION_MODES.map(([mode, name]) => html`<option value=${mode}
          disabled=${!shared.console.may("approve") && mode !== "deny-all" && mode !== "ask"}>${name}</option>`)}</select>
            </${Field}>
    <${Field} id="set-voting" label="Who may answer questions"><select id="set-voting" value=${session.voting ?? "first"}
      onChange=${(/** @type {any} */ event) => set({ voting: event.target.value })}>
      <option value="first">Everyone; the first answer counts</option><option
        value="local">People on the gateway's machine</option><option value="owner">The sender of the prompt</option></select>
          </${Field}>
    </div><footer><${Button} kind="primary" onClick=${onClose}>Done</${Button}></footer></${Dialog}>`;
}

/** @param {{ id: string, label: string, choices: import("../core/types.js").Choices | undefined, own?: string | null, onChoose: (value: string) => void }} props */
function Choice({ id, label, choices, own, onChoose }) {
  const values = choices?.values ?? [];
  if (values.length === 0) return null;
  const current = choices?.current ?? own ?? "";
  return html`<${Field} id=${id} label=${label}><select id=${id} value=${current}
    onChange=${(/** @type {any} */ event) => onChoose(event.target.value)}>
    ${values.includes(current) ? null : html`<option value=${current}>${current || "–"}</option>`}
    ${values.map((value) => html`<option value=${value}>${oneLine(value, 80)}</option>`)}</select></${Field}>`;
}
