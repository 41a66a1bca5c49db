/** The list of sessions, in groups; questions are answered here. */
import { duration, plural, shortPath } from "../core/format.js";
import { GROUPS, groupOf, grouped } from "../core/state.js";
import { oneLine } from "../core/text.js";
import { Badge, Button, Empty, Icon, Loading, Name, Time, attempt, html, shared, useConsole, useEffect, useNow, useRef, useState } from "../ui/base.js";
import { PermissionCard, keepFocus } from "../ui/permission.js";
import { titleOf } from "../ui/names.js";

/** @typedef {import("../core/types.js").SessionView} SessionView */
/** @typedef {import("../core/state.js").Group} Group */

/** Sessions of a group that are shown at first. */
const SHOWN = 40;

/** @param {{ current?: string }} props */
export function SessionList({ current }) {
  const model = useConsole();
  const now = useNow(15_000);
  const [filter, setFilter] = useState(/** @type {{ text: string, agent: string, group: Group | "" }} */ ({ text: "", agent: "", group: "" }));
  const { state } = model;
  useEffect(() => {
    if (filter.group === "closed") void attempt(() => model.listClosed(), "The closed sessions could not be read");
  }, [filter.group]);
  const groups = grouped(state, filter);
  const agents = [...new Set([...state.sessions.values()].map((session) => session.agent))].sort();
  const change = (/** @type {object} */ part) => setFilter({ ...filter, ...part });
  const shown = GROUPS.filter(({ id }) => (id === "closed" ? filter.group === "closed" : (groups.get(id)?.length ?? 0) > 0));
  const isEmpty = shown.every(({ id }) => (groups.get(id)?.length ?? 0) === 0);
  return html`<div class="sessions">
    <div class="list-head">
      <${current ? "h2" : "h1"} tabindex="-1">Sessions</${current ? "h2" : "h1"}>
      ${model.may("prompt") ? html`<a class="button primary" href="#/new" title="New session (n)"><${Icon}
        name="plus" />New</a>` : null}
    </div>
    <${Filters} filter=${filter} agents=${agents} counts=${countsOf(state)} onChange=${change} />
    ${!state.loaded ? html`<${Loading} what="Reading the sessions" />` : null}
    ${state.loaded && isEmpty ? html`<${NoSessions} filter=${filter}
      onClear=${() => setFilter({ text: "", agent: "", group: "" })} />` : null}
    ${shown.map(({ id, title }) => html`<${GroupList} key=${id} id=${id} title=${title} sessions=${groups.get(id) ?? []}
      current=${current} now=${now} />`)}
  </div>`;
}

/** @param {import("../core/state.js").State} state */
function countsOf(state) {
  const asking = new Set([...state.permissions.values()].map((row) => row.session_key));
  /** @type {Record<string, number>} */
  const counts = {};
  for (const session of state.sessions.values()) {
    const group = groupOf(session, asking.has(session.session_key));
    counts[group] = (counts[group] ?? 0) + 1;
  }
  return counts;
}

/** @param {{ filter: any, agents: string[], counts: Record<string, number>, onChange: (part: object) => void }} props */
function Filters({ filter, agents, counts, onChange }) {
  return html`<div class="filters" role="search">
    <div class="search"><${Icon} name="search" /><input type="search" id="search" name="search" aria-label="Search sessions"
      placeholder="Search name, directory, agent" value=${filter.text}
      autocomplete="off" onInput=${(/** @type {any} */ event) => onChange({ text: event.target.value })} /></div>
    <div class="chips" role="group" aria-label="Filter by state">
      ${[{ id: "", title: "All" }, ...GROUPS].map(({ id, title }) => html`<button type="button" class="chip ${id}"
        aria-pressed=${filter.group === id ? "true" : "false"}
        onClick=${() => onChange({ group: id })}>${title}${id && id !== "closed" && counts[id] ? html` <span class="chip-count">
          ${counts[id]}</span>` : null}</button>`)}
      ${agents.length > 1 ? html`<select aria-label="Filter by agent" value=${filter.agent}
        onChange=${(/** @type {any} */ event) => onChange({ agent: event.target.value })}>
        <option value="">All agents</option>${agents.map((agent) => html`<option value=${agent}>${agent}</option>`)}
        </select>` : null}
    </div>
  </div>`;
}

/** @param {{ filter: any, onClear: () => void }} props */
function NoSessions({ filter, onClear }) {
  if (filter.text || filter.agent || filter.group) {
    const group = GROUPS.find(({ id }) => id === filter.group);
    return html`<${Empty} icon="search"
      title=${!filter.text && !filter.agent && group ? group.empty : "No session matches the filter."}><${Button}
        onClick=${onClear}>Show all</${Button}></${Empty}>`;
  }
  return html`<${Empty} icon="agent" title="No sessions yet"><p
    class="quiet">A session is a conversation with an agent in one directory.</p>
    ${shared.console.may("prompt") ? html`<a class="button primary" href="#/new"><${Icon}
      name="plus" />Start a session</a>` : null}</${Empty}>`;
}

/** @param {{ id: Group, title: string, sessions: SessionView[], current: string | undefined, now: number }} props */
function GroupList({ id, title, sessions, current, now }) {
  const [all, showAll] = useState(false);
  const list = all ? sessions : sessions.slice(0, SHOWN);
  return html`<section class="group ${id}" aria-labelledby="group-${id}">
    <h2 id="group-${id}"><span class="dot ${id}" aria-hidden="true"></span>${title} <span class="quiet">${sessions.length}</span></h2>
    <ul>${list.map((session) => html`<${SessionRow} key=${session.session_key} session=${session} group=${id}
      isCurrent=${session.session_key === current} now=${now} />`)}</ul>
    ${list.length < sessions.length ? html`<${Button} kind="ghost"
      onClick=${() => showAll(true)}>Show ${sessions.length - list.length} more</${Button}>` : null}
  </section>`;
}

/** @param {{ session: SessionView, group: Group, isCurrent: boolean, now: number }} props */
function SessionRow({ session, group, isCurrent, now }) {
  const { state } = shared.console;
  const asked = [...state.permissions.values()].filter((row) => row.session_key === session.session_key);
  const [open, setOpen] = useState(true);
  const link = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => keepFocus(link.current, session.session_key));
  return html`<li class="session-row ${isCurrent ? "current" : ""}">
    <a ref=${link} class="row-link" href="#/s/${encodeURIComponent(session.session_key)}" aria-current=${isCurrent ? "page" : undefined}>
      <span class="dot ${group}" aria-hidden="true"></span>
      <span class="row-text">
        <span class="row-title"><${Name} text=${oneLine(titleOf(session), 100)} />${session.queued_runs ? html`<${Badge}>
        ${plural(session.queued_runs, "queued prompt")}</${Badge}>` : null}</span>
        <span class="row-sub"><${Name} text=${session.agent} /> <span class="dir"><${Name} text=${shortPath(session.cwd, 44)} />
        </span></span>
        <${Activity} session=${session} group=${group} now=${now} />
      </span>
      <span class="row-time quiet"><${Time} at=${session.last_activity_at_ms} now=${now} /></span>
    </a>
    ${asked.length > 0 ? html`<div class="row-asks">
      ${open ? asked.slice(0, 5).map((row) => html`<${PermissionCard} key=${row.permission_id} row=${row}
        compact=${true} />`) : null}
      ${asked.length > 1 || !open ? html`<${Button} kind="ghost small" aria-expanded=${open ? "true" : "false"}
        onClick=${() => setOpen(!open)}>${open ? "Hide" : "Show"} ${plural(asked.length, "request")}</${Button}>` : null}
    </div>` : null}
  </li>`;
}

/** @param {{ session: SessionView, group: Group, now: number }} props */
function Activity({ session, group, now }) {
  if (group === "failed" && session.last_error) return html`<span class="row-activity failed"><${Name}
    text=${oneLine(session.last_error.message, 140)} /></span>`;
  const activity = shared.console.state.activity.get(session.session_key);
  if (group === "running") {
    return html`<span class="row-activity"><span class="pulse" aria-hidden="true"></span><${Name}
      text=${oneLine(activity?.text || "Working…", 140)} />
      ${activity && now - activity.at > 60_000 ? html`<span class="quiet"> · silent for ${duration(now - activity.at)}
        </span>` : null}</span>`;
  }
  return activity ? html`<span class="row-activity"><${Name} text=${oneLine(activity.text, 140)} /></span>` : null;
}
