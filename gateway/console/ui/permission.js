/** A question of an agent, with its answers. */
import { duration } from "../core/format.js";
import { asApiError } from "../core/api.js";
import { diffLines } from "../core/diff.js";
import { clean, prettyJson } from "../core/text.js";
import { Badge, Button, ErrorNote, Icon, LongText, Name, focusOn, html, shared, useNow, useRef, useState } from "./base.js";
import { DiffTable, ToolContent } from "./tool.js";
import { safeUrl } from "./markdown.js";

/** @typedef {import("../core/types.js").PermissionView} PermissionView */
/** @typedef {import("../core/types.js").FormField} FormField */

/** @type {Record<string, string>} */
const TONES = { allow_once: "primary", allow_always: "plain", reject_once: "danger-plain", reject_always: "danger-plain" };
/** @type {Record<string, string>} */
const NOTES = { allow_always: "always", reject_always: "always" };

/** @param {{ row: PermissionView, compact?: boolean }} props */
export function PermissionCard({ row, compact = false }) {
  const [busy, setBusy] = useState(/** @type {string | null} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const card = useRef(/** @type {HTMLElement | null} */ (null));
  const shownAt = useRef(performance.now());
  const [isEarly, setEarly] = useState(false);
  const mayAnswer = shared.console.may("approve");
  const answer = async (/** @type {string} */ name, /** @type {Record<string, unknown>} */ body) => {
    setBusy(name);
    setError(null);
    // The stream may take the card away before the response is there.
    const place = card.current?.closest(".scroll");
    try {
      await shared.console.answer(row, body);
      // The buttons go away, and with them the focus.
      if (compact) answered = { session: row.session_key ?? "", at: Date.now() };
      else focusOn(place);
    } catch (failure) {
      setError(asApiError(failure));
      setBusy(null);
    }
  };
  /** Calls `run` for a click that was meant for the request. @param {MouseEvent} event @param {() => unknown} run */
  const aimed = (event, run) => {
    if (!isUnaimed(event, shownAt.current)) return void run();
    event.preventDefault();
    setEarly(true);
  };
  const heading = compact ? "h3" : "h2";
  return html`<section ref=${card} class="permission" aria-label="Permission request${compact ? " in the list" : ""}: ${clean(row.title)}">
    <header><${Icon} name="lock" /><${heading} class="ask-title"><${Name} text=${row.title || "The agent asks for permission"} />
    </${heading}>
      <span class="ask-facts">${row.kind ? html`<${Badge}>${clean(row.kind)}</${Badge}>` : null}<${Deadline}
        at=${row.deadline_at_ms} /></span></header>
    <${Subject} row=${row} compact=${compact} />
    ${row.form ? html`<${Form} place=${compact ? "list" : "page"} row=${row} form=${row.form} busy=${busy} disabled=${!mayAnswer}
      aimed=${aimed} onAnswer=${answer} />`
      : html`<div class="answers">${row.options.map((option) => html`<${Button} key=${option.option_id}
          kind=${TONES[option.kind ?? ""] ?? "plain"} busy=${busy === option.option_id}
          disabled=${!mayAnswer || (busy !== null && busy !== option.option_id)}
          onClick=${(/** @type {MouseEvent} */ event) => aimed(event, () => answer(option.option_id, { option_id: option.option_id }))}>
          <${Name} text=${option.name || option.option_id} />${noteOf(option)}</${Button}>`)}</div>`}
    ${isEarly ? html`<p class="hint" role="status">The request appeared in the moment of the click. Choose again.</p>` : null}
    ${mayAnswer ? null : html`<p class="hint">Your token may not answer. It needs the scope <code>approve</code>.</p>`}
    <${ErrorNote} error=${error} what="The answer was not taken" />
  </section>`;
}

/** Time after the appearance of a request in which a click was meant for something else, in milliseconds. */
const UNAIMED_MS = 500;

/** True for a click of a pointer on a request that has just appeared below it, such as the second one of a double click. @param {MouseEvent} event @param {number} shownAt */
function isUnaimed(event, shownAt) {
  return event.detail > 0 && performance.now() - shownAt < UNAIMED_MS;
}

/** Time after an answer in which the row of its session may take the focus, in milliseconds. */
const FOCUS_MS = 3_000;
let answered = { session: "", at: 0 };

/** Gives a row of the list the focus that was lost with the buttons of its answered request. @param {HTMLElement | null} link @param {string} session */
export function keepFocus(link, session) {
  if (answered.session !== session || Date.now() - answered.at > FOCUS_MS || document.activeElement !== document.body) return;
  focusOn(link);
}

/** Says that an answer lasts, if its name does not. @param {import("../core/types.js").OptionView} option */
function noteOf(option) {
  const note = NOTES[option.kind ?? ""];
  return note && !/always|session|from now on/i.test(option.name ?? "") ? html` <small>(${note})</small>` : null;
}

/** @param {{ at: number | null | undefined }} props */
function Deadline({ at }) {
  const now = useNow(1_000);
  if (!at) return null;
  return html`<span class="quiet deadline"><${Icon} name="clock" />${at > now ? duration(at - now) : "ending"}</span>`;
}

/** What the agent wants to do. @param {{ row: PermissionView, compact: boolean }} props */
function Subject({ row, compact }) {
  const call = row.tool_call ?? {};
  const command = commandOf(call.rawInput) ?? row.subject;
  const diffs = (Array.isArray(call.content) ? call.content : []).filter((/** @type {any} */ part) => part?.type === "diff");
  const others = (Array.isArray(call.content) ? call.content : []).filter((/** @type {any} */ part) => part?.type !== "diff");
  const input = call.rawInput === undefined || commandOf(call.rawInput) ? "" : prettyJson(call.rawInput);
  return html`<div class="subject">
    ${command ? html`<pre tabindex="0" class="command" dir="ltr"><${LongText} text=${command} limit=${compact ? 600 : 4000}
      mono=${true} /></pre>` : null}
    ${diffs.length || others.length || input ? html`<details open=${!compact && diffs.length > 0}>
      <summary>Details</summary>
      ${diffs.map((/** @type {any} */ part) => html`<${DiffTable} path=${part.path}
        lines=${diffLines(part.oldText, part.newText ?? "")} />`)}
      <${ToolContent} content=${others} />
      ${input && input !== command ? html`<pre tabindex="0" dir="ltr"><${LongText} text=${input} mono=${true} /></pre>` : null}
    </details>` : null}
  </div>`;
}

/** @param {any} input */
export function commandOf(input) {
  if (!input || typeof input !== "object") return null;
  const command = input.command ?? input.cmd;
  if (typeof command === "string") return command;
  return Array.isArray(command) ? command.map(String).join(" ") : null;
}

/**
 * @param {{ place: string, row: PermissionView, form: import("../core/types.js").Elicitation, busy: string | null, disabled: boolean,
 *   aimed: (event: MouseEvent, run: () => unknown) => void, onAnswer: (name: string, body: Record<string, unknown>) => void }} props
 */
function Form({ place, row, form, busy, disabled, aimed, onAnswer }) {
  const end = (/** @type {string} */ action) => (/** @type {MouseEvent} */ event) => aimed(event, () => onAnswer(action, { action }));
  const fields = form.fields ?? [];
  const submit = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    onAnswer("accept", { action: "accept", ...(form.mode === "form" ? { content: valuesOf(/** @type {HTMLFormElement} */ (event.target), fields) } : {}) });
  };
  const url = form.mode === "url" ? safeUrl(form.url) : null;
  return html`<form class="elicitation" onSubmit=${submit}>
    ${form.message.trim() === row.title ? null : html`<${LongText} text=${form.message} />`}
    ${form.mode === "url" ? html`<p class="note"><${Icon} name="globe" /> <span>The agent wants you to open a page on <strong>
      <${Name} text=${form.host} /></strong>:<br />
      ${url ? html`<a href=${url} target="_blank" rel="noopener noreferrer">${clean(form.url)}</a>` : html`<code>
        ${clean(form.url)}</code>`}</span></p>` : null}
    ${fields.map((field) => html`<${FormInput} key=${field.name} field=${field} of=${`${place}-${row.permission_id}`} />`)}
    <div class="answers">
      <button class="button primary" disabled=${disabled || busy !== null}
        onClick=${(/** @type {MouseEvent} */ event) => aimed(event, () => undefined)}>${form.mode === "url" ? "Accept" : "Submit"}</button>
      <${Button} kind="danger-plain" disabled=${disabled || busy !== null} onClick=${end("decline")}>Decline</${Button}>
      <${Button} disabled=${disabled || busy !== null} onClick=${end("cancel")}>Dismiss</${Button}>
    </div>
  </form>`;
}

/** @param {{ field: FormField, of: string }} props */
function FormInput({ field, of }) {
  const id = `field-${of}-${field.name}`;
  const label = html`<${Name} text=${field.title ?? field.name} />${field.required ? html`<span
    aria-hidden="true"> *</span>` : null}`;
  const hint = field.description ? html`<p class="hint" id="${id}-hint"><${Name} text=${field.description} /></p>` : null;
  const common = { id, name: field.name, required: field.required && field.type !== "boolean", "aria-describedby": field.description ? `${id}-hint` : undefined };
  const chosen = (/** @type {string} */ value) => (Array.isArray(field.default) ? field.default.includes(value) : field.default === value);
  if (field.type === "boolean") {
    return html`<div class="field"><label class="check"><input type="checkbox" ...${common}
      defaultChecked=${field.default === true} /> ${label}</label>${hint}</div>`;
  }
  if (field.type === "choices") {
    return html`<fieldset class="field"><legend>${label}</legend>${(field.choices ?? []).map((choice) => html`<label
      class="check">
      <input type="checkbox" name=${field.name} value=${choice.value} defaultChecked=${chosen(choice.value)} /> <${Name}
        text=${choice.title ?? choice.value} /></label>`)}${hint}</fieldset>`;
  }
  if (field.type === "choice") {
    return html`<div class="field"><label for=${id}>${label}</label><select ...${common}>
      ${field.required ? null : html`<option value="">–</option>`}
      ${(field.choices ?? []).map((choice) => html`<option value=${choice.value} selected=${chosen(choice.value)}>
        ${clean(choice.title ?? choice.value)}</option>`)}</select>${hint}</div>`;
  }
  const isNumber = field.type === "number" || field.type === "integer";
  const kinds = /** @type {Record<string, string>} */ ({ email: "email", uri: "url", date: "date" });
  return html`<div class="field"><label for=${id}>${label}</label><input
    type=${isNumber ? "number" : kinds[field.format ?? ""] ?? "text"} ...${common}
    step=${field.type === "integer" ? "1" : isNumber ? "any" : undefined} min=${field.minimum} max=${field.maximum}
      minlength=${field.min_length}
    maxlength=${field.max_length} defaultValue=${field.default === undefined ? "" : String(field.default)} autocomplete="off" />
      ${hint}</div>`;
}

/** @param {HTMLFormElement} form @param {FormField[]} fields */
function valuesOf(form, fields) {
  const data = new FormData(form);
  /** @type {Record<string, unknown>} */
  const values = {};
  for (const field of fields) {
    if (field.type === "boolean") values[field.name] = data.has(field.name);
    else if (field.type === "choices") values[field.name] = data.getAll(field.name);
    else {
      const text = String(data.get(field.name) ?? "");
      if (text === "" && !field.required) continue;
      values[field.name] = field.type === "number" || field.type === "integer" ? Number(text) : text;
    }
  }
  return values;
}
