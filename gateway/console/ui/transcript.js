/** Items of a transcript as elements. */
import { clock, count, duration } from "../core/format.js";
import { clean, oneLine, prettyJson } from "../core/text.js";
import { Badge, Icon, LongText, Name, html, shared } from "./base.js";
import { Markdown } from "./markdown.js";
import { PermissionCard } from "./permission.js";
import { Content, ToolCard } from "./tool.js";

/** @typedef {import("../core/transcript.js").Item} Item */

/** Items that are drawn; the others are for machines. @param {Item} item */
export function isShown(item) {
  if (item.kind === "other") return !item.data?.hidden;
  if (item.kind === "notice") return !item.data?.quiet;
  return true;
}

/** Height of an item before it is measured, in pixels. @param {Item} item */
export function guessHeight(item) {
  if (item.kind === "message" || item.kind === "user") return 40 + Math.ceil((item.text?.length ?? 0) / 80) * 24;
  if (item.kind === "permission") return item.data.settled ? 44 : 180;
  return item.kind === "tool" && Array.isArray(item.data.content) && item.data.content.length ? 160 : 44;
}

/** Items of the agent, before the first of which in each turn its name is shown. */
const OF_AGENT = new Set(["message", "thought", "content", "tool", "plan", "permission"]);

/** Returns the ids of the items with which the agent begins. @param {Item[]} items */
export function begins(items) {
  const ids = new Set();
  let isNew = true;
  for (const item of items) {
    if (item.kind === "user" && !item.data.steer) isNew = true;
    else if (isNew && OF_AGENT.has(item.kind)) {
      ids.add(item.id);
      isNew = false;
    }
  }
  return ids;
}

/** @param {{ item: Item, starts: boolean, agent: string, isLast: boolean, session: string }} props */
export function TranscriptItem(props) {
  if (!props.starts) return body(props);
  return html`<p class="who agent-name"><${Icon} name="agent" /><${Name} text=${props.agent} /></p>${body(props)}`;
}

/** @param {{ item: Item, agent: string, isLast: boolean, session: string }} props */
function body({ item, agent, isLast, session }) {
  switch (item.kind) {
    case "user": return html`<${UserItem} item=${item} />`;
    case "message": return html`<article class="item agent ${item.continues ? "continues" : ""}" aria-label="Message of ${agent}">
      <${Markdown} text=${item.text ?? ""} fence=${item.fence} ended=${!isLast} /></article>`;
    case "thought": return html`<details class="item thought"><summary><${Icon} name="thought" />
      ${isLast ? "Thinking…" : "Thought"}
      <span class="quiet"><${Name} text=${oneLine(item.text, 90)} /></span></summary><${LongText} text=${item.text ?? ""} />
      </details>`;
    case "content": return html`<article class="item agent"><${Content} content=${item.data.content} /></article>`;
    case "tool": return html`<div class="item"><${ToolCard} item=${item} /></div>`;
    case "plan": return html`<div class="item"><${Plan} entries=${item.data.entries} /></div>`;
    case "permission": return html`<div class="item"><${PermissionItem} item=${item} session=${session} /></div>`;
    case "effect": return html`<${Effect} item=${item} />`;
    case "gap": return html`<p class="item note warning" role="note"><${Icon} name="alert" />
      <span>Output of the agent is missing here. <${Name} text=${item.text} /></span></p>`;
    case "end": return html`<${End} item=${item} />`;
    case "notice": return html`<p class="item notice"><${Name} text=${oneLine(item.text, 600)} /></p>`;
    default: return html`<details class="item other"><summary>${clean(item.data?.name)}</summary><pre tabindex="0" dir="ltr">
      <${LongText} text=${prettyJson(item.data?.event)} mono=${true} /></pre></details>`;
  }
}

/** @param {{ item: Item }} props */
function UserItem({ item }) {
  const files = shared.console.sentFiles.get(item.run ?? "");
  return html`<article class="item user" aria-label="Prompt of ${clean(item.data.author)}">
    <p class="who"><${Name} text=${item.data.author || "Somebody"} />
    ${item.data.steer ? html`<${Badge}>steered</${Badge}>` : null}
      <time datetime=${new Date(item.at).toISOString()}>${clock(item.at, Date.now())}</time></p>
    <div class="bubble"><${LongText} text=${item.text ?? ""} />${files ? html`<p class="quiet">
      <${Icon} name="clip" /> ${files.map((name) => clean(name)).join(", ")}</p>` : null}</div></article>`;
}

/** A prompt that is under way. @param {{ entry: import("../core/outbox.js").Outgoing }} props */
export function OutgoingItem({ entry }) {
  const model = shared.console;
  const back = () => {
    model.discard(entry.key);
    document.dispatchEvent(new CustomEvent("acphost-edit", { detail: { text: entry.text, files: entry.files } }));
  };
  return html`<article class="item user pending" aria-label="Prompt under way">
    <p class="who"><${Name} text=${model.login?.name ?? "You"} />${entry.state === "failed" ? html`<${Badge}
      tone="failed">not sent</${Badge}>`
      : html`<span class="quiet"><${Icon} name="spinner" />${entry.state === "accepted" ? "accepted" : "sending"}…</span>`}</p>
    <div class="bubble"><${LongText} text=${entry.text} />${entry.files.length ? html`<p class="quiet"><${Icon}
      name="clip" /> ${entry.files.map((file) => clean(file.name)).join(", ")}</p>` : null}</div>
    ${entry.error ? html`<div class="note error" role="alert"><${Icon} name="alert" /><div class="note-body"><p>
      ${entry.error.message}</p><p class="quiet"><code>${entry.error.code}</code> ${entry.error.nextStep}</p></div>
      <div class="answers"><button type="button" class="button" onClick=${back}>Edit</button>
      ${entry.error.code === "ACP_RESUME_UNAVAILABLE" ? html`<button type="button" class="button primary" onClick=${() => {
        model.discard(entry.key);
        model.sendPrompt(entry.session, { text: entry.text, files: entry.files, newConversation: true });
      }}>Send in a new conversation</button>` : null}</div></div>` : null}
  </article>`;
}

/** @type {Record<string, string>} */
const PLAN_MARKS = { completed: "✓", in_progress: "▸", pending: "○" };

/** @param {{ entries: any[] }} props */
function Plan({ entries }) {
  const done = entries.filter((entry) => entry?.status === "completed").length;
  return html`<details class="plan" open><summary><${Icon} name="plan" /> Plan <span class="quiet">${done} of ${entries.length}
    </span></summary>
    <ol>${entries.slice(0, 200).map((entry) => html`<li class=${entry?.status}><span class="plan-mark" role="img"
      aria-label=${clean(entry?.status).replace("_", " ")}>${PLAN_MARKS[entry?.status] ?? "○"}</span>
      <${Name} text=${oneLine(entry?.content, 500)} /></li>`)}</ol></details>`;
}

/** @param {{ item: Item, session: string }} props */
function PermissionItem({ item, session }) {
  const { data } = item;
  const pending = shared.console.state.permissions.get(data.permission_id);
  if (!data.settled && pending) return html`<${PermissionCard} row=${pending} key=${data.permission_id} />`;
  if (!data.settled) return html`<p class="settled"><${Icon} name="lock" /><${Name} text=${oneLine(data.title, 200)} /> <span
    class="quiet">asked, no longer pending</span></p>`;
  const { outcome, option, by, without } = data.settled;
  const refused = outcome !== "selected" && outcome !== "accepted" ? true : kindOf(data, option).startsWith("reject");
  const who = by ? html`by <strong><${Name} text=${by} /></strong>` : without ? html`<span
    class="quiet">(${clean(without).replaceAll("_", " ")})</span>` : null;
  return html`<p class="settled ${refused ? "refused" : "allowed"}" data-session=${session}><${Icon}
    name=${refused ? "close" : "check"} />
    <span><${Name} text=${oneLine(data.title || "Permission", 200)} />: <${Name} text=${oneLine(option ?? outcome, 80)} /> ${who}
    </span></p>`;
}

/** Kind of the chosen option. @param {any} data @param {string | null} option */
function kindOf(data, option) {
  const found = (data.options ?? []).find((/** @type {any} */ one) => one.name === option || one.option_id === option);
  return String(found?.kind ?? option ?? "").toLowerCase();
}

/** @param {{ item: Item }} props */
function Effect({ item }) {
  const { effect, outcome, path, command, reason, message } = item.data;
  const what = command ? (Array.isArray(command) ? command.join(" ") : command) : path ?? effect;
  const good = outcome === "allowed" || outcome === "done";
  return html`<p class="item effect ${good ? "" : "refused"}"><${Icon} name=${command ? "terminal" : "file"} /><span>
    ${clean(effect).replaceAll("_", " ")}
    <code><${Name} text=${oneLine(what, 200)} /></code> ${good ? null : html`<${Badge} tone="failed">${clean(outcome)}
    </${Badge}> <${Name} text=${oneLine(message ?? reason, 200)} />`}</span></p>`;
}

/** @type {Record<string, string>} */
const STOPS = { end_turn: "Done", cancelled: "Stopped", max_tokens: "Stopped: token limit", max_turn_requests: "Stopped: request limit", refusal: "The agent refused" };

/** @param {{ item: Item }} props */
function End({ item }) {
  const { type, stop_reason: stop, usage, took, code, message, reason } = item.data;
  if (type === "closed") return html`<p class="item end"><span>Closed${reason ? html`: <${Name}
    text=${oneLine(reason, 200)} />` : null}</span></p>`;
  if (type === "error") {
    return html`<div class="item note error" role="note"><${Icon} name="alert" /><div class="note-body"><p>
      <strong>The turn failed. </strong><${Name} text=${message} /></p>
      <p class="quiet"><code>${clean(code)}</code></p></div></div>`;
  }
  const tokens = tokensOf(usage);
  const parts = [STOPS[stop] ?? clean(stop), took ? duration(took) : "", tokens].filter(Boolean);
  return html`<p class="item end"><span>${parts.join(" · ")}</span></p>`;
}

/** @param {any} usage */
export function tokensOf(usage) {
  if (!usage || typeof usage !== "object") return "";
  const total = usage.totalTokens ?? usage.total_tokens ?? (usage.inputTokens ?? 0) + (usage.outputTokens ?? 0);
  return total > 0 ? `${count(total)} tokens` : "";
}
