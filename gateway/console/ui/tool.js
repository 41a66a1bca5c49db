/** Tool calls: what an agent does, with its diffs and output. */
import { changes, diffLines } from "../core/diff.js";
import { duration, shortPath } from "../core/format.js";
import { clean, oneLine, prettyJson } from "../core/text.js";
import { Badge, Icon, LongText, Name, html, useMemo, useState } from "./base.js";
import { Markdown } from "./markdown.js";
import { commandOf } from "./permission.js";

/** Lines of a diff that are shown at once. */
const DIFF_LINES = 120;

/** @type {Record<string, [string, string]>} */
const STATES = {
  pending: ["neutral", "waiting"], in_progress: ["running", "running"], completed: ["good", "done"], failed: ["failed", "failed"],
  unfinished: ["failed", "not finished"],
};
/** @type {Record<string, string>} */
const ICONS = { read: "file", edit: "edit", delete: "trash", move: "file", search: "search", execute: "terminal", think: "thought", fetch: "globe" };

/** @param {{ item: import("../core/transcript.js").Item }} props */
export function ToolCard({ item }) {
  const call = item.data;
  const content = Array.isArray(call.content) ? call.content : [];
  const diffs = content.filter((/** @type {any} */ part) => part?.type === "diff");
  const [open, setOpen] = useState(/** @type {boolean | null} */ (null));
  // A question about the call shows the same changes.
  const isOpen = open ?? (diffs.length > 0 && call.status !== "pending");
  const [tone, state] = STATES[call.status ?? "pending"] ?? ["neutral", clean(call.status)];
  const input = call.raw_input ?? call.arguments_text;
  const took = call.updated > item.at && call.status === "completed" ? duration(call.updated - item.at) : "";
  return html`<details class="tool ${tone}" open=${isOpen}
    onToggle=${(/** @type {any} */ event) => event.target.open !== isOpen && setOpen(event.target.open)}>
    <summary>
      <${Icon} name=${ICONS[call.kind] ?? "tool"} />
      <span class="tool-title"><${Name} text=${oneLine(call.title ?? call.name ?? "Tool call", 300)} /></span>
      <${Counts} diffs=${diffs} />
      <span class="tool-state"><${Badge} tone=${tone}>${state}</${Badge}>${took ? html`<span class="quiet">${took}
      </span>` : null}</span>
    </summary>
    ${isOpen ? html`<div class="tool-body"><${ToolBody} call=${call} content=${content} input=${input} /></div>` : null}
  </details>`;
}

/** @param {{ call: any, content: any[], input: unknown }} props */
function ToolBody({ call, content, input }) {
  const command = commandOf(typeof input === "string" ? parsed(input) : input);
  const output = outputOf(call);
  const nothing = !command && !input && content.length === 0 && !output;
  return html`
    <${Locations} locations=${call.locations} />
    ${command ? html`<pre tabindex="0" class="command" dir="ltr"><${LongText} text=${command} mono=${true} /></pre>`
      : input && !isEmpty(input) ? html`<details class="raw"><summary>Input</summary><pre tabindex="0" dir="ltr"><${LongText}
        text=${prettyJson(input)} mono=${true} /></pre></details>` : null}
    <${ToolContent} content=${content} meta=${call.meta} />
    ${output ? html`<${Terminal} text=${output} />` : null}
    ${nothing ? html`<p class="quiet">The agent reported no details.</p>` : null}`;
}

/** @param {unknown} input */
function isEmpty(input) {
  return input === "{}" || (typeof input === "object" && input !== null && Object.keys(input).length === 0);
}

/** @param {string} text */
function parsed(text) {
  if (!text.startsWith("{") || text.length > 200_000) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Output that the call's content does not show. @param {any} call */
function outputOf(call) {
  const raw = call.raw_output;
  if (raw === undefined || raw === null) return "";
  if (Array.isArray(call.content) && call.content.some((/** @type {any} */ part) => part?.type === "content")) return "";
  if (typeof raw === "string") return raw;
  const parts = [raw.stdout, raw.stderr, raw.output, raw.text].filter((part) => typeof part === "string" && part !== "");
  if (parts.length > 0) return parts.join("\n");
  return Array.isArray(call.content) && call.content.length > 0 ? "" : prettyJson(raw);
}

/** @param {{ diffs: any[] }} props */
function Counts({ diffs }) {
  const sum = useMemo(() => diffs.map((part) => changes(diffLines(part.oldText, String(part.newText ?? ""))))
    .reduce((all, one) => ({ added: all.added + one.added, removed: all.removed + one.removed }), { added: 0, removed: 0 }), [diffs.length]);
  if (diffs.length === 0) return null;
  return html`<span class="counts"><span class="added">+${sum.added}</span> <span class="removed">−${sum.removed}</span></span>`;
}

/** @param {{ locations: any }} props */
function Locations({ locations }) {
  if (!Array.isArray(locations) || locations.length === 0) return null;
  return html`<ul class="locations">${locations.slice(0, 20).map((one) => html`<li><${Icon} name="file" /><code
    title=${clean(one?.path)}><${Name} text=${shortPath(clean(one?.path), 70)} />${one?.line ? `:${one.line}` : ""}</code>
      </li>`)}</ul>`;
}

/** @param {{ content: any[], meta?: any }} props */
export function ToolContent({ content, meta }) {
  return html`${content.map((part) => {
    if (part?.type === "diff") return html`<${DiffTable} path=${part.path}
      lines=${diffLines(part.oldText, String(part.newText ?? ""))} />`;
    if (part?.type === "terminal") return html`<${Terminal} text=${meta?.terminal_output?.data ?? ""} id=${part.terminalId} />`;
    if (part?.type === "content") return html`<${Content} content=${part.content} />`;
    return html`<pre tabindex="0" dir="ltr"><${LongText} text=${prettyJson(part)} mono=${true} /></pre>`;
  })}`;
}

/** Images that are shown; SVG is not among them. */
const IMAGES = /^image\/(png|jpeg|gif|webp|avif)$/;

/** A content block. @param {{ content: any }} props */
export function Content({ content }) {
  switch (content?.type) {
    case "text":
      return isTerminalText(content.text) ? html`<${Terminal} text=${content.text} />` : html`<${Markdown}
        text=${String(content.text ?? "")} />`;
    case "image":
      return IMAGES.test(content.mimeType) && /^[A-Za-z0-9+/=\s]+$/.test(content.data ?? "")
        ? html`<img class="content-image" alt="Image from the agent" src="data:${content.mimeType};base64,${content.data}" />`
        : html`<p class="quiet">An image of the type ${clean(content.mimeType)} is not shown.</p>`;
    case "resource_link":
      return html`<p><${Icon} name="file" /> <${Name} text=${content.title ?? content.name ?? content.uri} /> <code>
        ${clean(content.uri)}</code></p>`;
    case "resource":
      return html`<figure class="code"><figcaption><span><${Name} text=${content.resource?.uri} /></span></figcaption>
        <pre tabindex="0" dir="auto"><${LongText} text=${content.resource?.text ?? "(binary)"} mono=${true} /></pre></figure>`;
    default:
      return html`<pre tabindex="0" dir="ltr"><${LongText} text=${prettyJson(content)} mono=${true} /></pre>`;
  }
}

/** @param {unknown} text */
function isTerminalText(text) {
  // eslint-disable-next-line no-control-regex
  return typeof text === "string" && (/\u001b\[/.test(text.slice(0, 4000)) || (text.length > 12_000));
}

/** Output of a command. @param {{ text: string, id?: string }} props */
function Terminal({ text, id }) {
  return html`<figure class="terminal"><figcaption><${Icon} name="terminal" /> Output${id ? html` <code>${clean(id).slice(0, 12)}
    </code>` : null}</figcaption>
    ${text ? html`<pre tabindex="0" dir="ltr"><${LongText} text=${text.trimEnd()} mono=${true} /></pre>` : html`<p
      class="quiet">The agent keeps this output to itself.</p>`}</figure>`;
}

/** @param {{ path: unknown, lines: import("../core/diff.js").DiffLine[] }} props */
export function DiffTable({ path, lines }) {
  const [all, showAll] = useState(false);
  const { added, removed } = changes(lines);
  const shown = all ? lines.slice(0, 5_000) : lines.slice(0, DIFF_LINES);
  return html`<figure class="diff">
    <figcaption><${Icon} name="file" /><span class="path" title=${clean(path)}><${Name} text=${shortPath(clean(path), 80)} /></span>
      <span class="counts"><span class="added">+${added}</span> <span class="removed">−${removed}</span></span></figcaption>
    <div class="diff-scroll" tabindex="0" role="region" aria-label="Changes of ${clean(path)}"><table><tbody>
      ${shown.map((line, index) => html`<tr key=${index}
        class=${line.kind === "+" ? "added" : line.kind === "-" ? "removed" : line.kind === "@" ? "hunk" : ""}>
        <td class="number" aria-hidden="true">${line.new ?? line.old ?? ""}</td>
        <td class="mark">${line.kind === "+" ? "+" : line.kind === "-" ? "−" : ""}</td>
        <td class="line"><${LongText} text=${line.text || " "} limit=${2_000} mono=${true} /></td></tr>`)}
    </tbody></table></div>
    ${lines.length > shown.length ? html`<button type="button" class="link more"
      onClick=${() => showAll(true)}>Show ${lines.length - shown.length} more lines</button>` : null}
  </figure>`;
}
