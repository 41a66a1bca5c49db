/** Elements that all pages share. */
import { html, useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { asApiError } from "../core/api.js";
import { ago, dateTime } from "../core/format.js";
import { LINE_CHARS_MAX, TEXT_CHARS_MAX, clean, head } from "../core/text.js";
import { Icon } from "./icons.js";

export { html, useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState, Icon };

/** @typedef {import("../core/console.js").Console} Console */

/** The model, set once by `app.js`. @type {{ console: Console }} */
export const shared = { console: /** @type {any} */ (null) };

/** Returns the model, and draws the component again when it changes. @returns {Console} */
export function useConsole() {
  const [, draw] = useState(0);
  // An effect after the frame would miss a change before it.
  useLayoutEffect(() => shared.console.subscribe(() => draw((/** @type {number} */ n) => n + 1)), []);
  return shared.console;
}

/** Draws again at an interval. @param {number} ms */
export function useNow(ms = 30_000) {
  const [now, set] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => set(Date.now()), ms);
    return () => clearInterval(timer);
  }, [ms]);
  return now;
}

/**
 * Loads something, and again when `deps` change.
 *
 * @param {(signal: AbortSignal) => Promise<any>} load
 * @param {unknown[]} deps
 */
export function useLoad(load, deps) {
  const [result, set] = useState(/** @type {any} */ ({ loading: true, data: null, error: null }));
  const [turn, again] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    set((/** @type {any} */ before) => ({ ...before, loading: true }));
    load(abort.signal).then(
      (data) => abort.signal.aborted || set({ loading: false, data, error: null }),
      (error) => abort.signal.aborted || set((/** @type {any} */ before) => ({ ...before, loading: false, error: asApiError(error) })),
    );
    return () => abort.abort();
  }, [...deps, turn]);
  // What failed while the gateway was away is loaded when the page is live again.
  useEffect(() => {
    if (!result.error?.isTransient) return undefined;
    const live = () => again((/** @type {number} */ n) => n + 1);
    shared.console.gapListeners.add(live);
    return () => void shared.console.gapListeners.delete(live);
  }, [result.error]);
  return { ...result, reload: () => again((/** @type {number} */ n) => n + 1) };
}

/** A button. A busy one does nothing, and keeps the focus, which a disabled one would lose. @param {any} props */
export function Button({ kind = "plain", icon, busy, children, label, onClick, ...rest }) {
  return html`<button type="button" class="button ${kind}" aria-label=${label} title=${label}
    aria-busy=${busy ? "true" : undefined} aria-disabled=${busy ? "true" : undefined}
    ...${rest} onClick=${busy ? undefined : onClick}>${icon ? html`<${Icon} name=${busy ? "spinner" : icon} />` : null}${children}
      </button>`;
}

/** @param {any} props */
export function Badge({ tone = "neutral", children }) {
  return html`<span class="badge ${tone}">${children}</span>`;
}

/** A name or another short text of agents and people, isolated from the text around it. @param {{ text: unknown }} props */
export function Name({ text }) {
  return html`<bdi>${clean(text)}</bdi>`;
}

/** @param {{ at: number | null | undefined, now?: number }} props */
export function Time({ at, now = Date.now() }) {
  if (!at) return html`<span>–</span>`;
  return html`<time datetime=${new Date(at).toISOString()} title=${dateTime(at)}>${ago(at, now)}</time>`;
}

/** @param {{ error: any, retry?: () => void, what?: string }} props */
export function ErrorNote({ error, retry, what }) {
  if (!error) return null;
  return html`<div class="note error" role="alert">
    <${Icon} name="alert" />
    <div class="note-body">
      <p>${what ? html`<strong>${what}. </strong>` : null}<${Name} text=${error.message} /></p>
      <p class="quiet"><code>${error.code}</code> ${error.nextStep}</p>
    </div>
    ${retry ? html`<${Button} onClick=${retry}>Try again</${Button}>` : null}
  </div>`;
}

/** @param {{ what?: string }} props */
export function Loading({ what = "Loading" }) {
  return html`<p class="loading" role="status"><${Icon} name="spinner" /> ${what}…</p>`;
}

/** @param {{ icon?: string, title: string, children?: any }} props */
export function Empty({ icon = "inbox", title, children }) {
  return html`<div class="empty"><${Icon} name=${icon} /><p class="empty-title">${title}</p>${children}</div>`;
}

/**
 * Text without markup. A long one is cut, and shown on in pieces.
 *
 * @param {{ text: unknown, class?: string, limit?: number, mono?: boolean }} props
 */
export function LongText({ text, class: name = "", limit, mono = false }) {
  const whole = typeof text === "string" ? text : String(text ?? "");
  const first = limit ?? (whole.indexOf("\n") < 0 ? LINE_CHARS_MAX : TEXT_CHARS_MAX);
  const [pieces, more] = useState(0);
  const shown = useMemo(() => {
    const parts = [];
    let from = 0;
    for (let piece = 0; piece <= pieces && from < whole.length; piece += 1) {
      const part = head(whole.slice(from, from + TEXT_CHARS_MAX + 1), piece === 0 ? first : TEXT_CHARS_MAX);
      parts.push(clean(part));
      from += Math.max(1, part.length);
    }
    return { parts, from };
  }, [whole, pieces, first]);
  const left = whole.length - shown.from;
  return html`<span class="long-text ${name} ${mono ? "mono" : ""}" dir="auto">
    ${shown.parts.map((part, index) => html`<span key=${index}>${part}</span>`)}
    ${left > 0 ? html`<span class="cut"> … <button type="button" class="link" onClick=${() => more(pieces + 1)}>
      Show ${Math.min(left, TEXT_CHARS_MAX).toLocaleString()} of ${left.toLocaleString()} more characters</button></span>` : null}
  </span>`;
}

/** @param {{ text: string, label?: string }} props */
export function CopyButton({ text, label = "Copy" }) {
  const [done, set] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      set(true);
      setTimeout(() => set(false), 1500);
    } catch {
      shared.console.toast("The browser did not let the page copy. Select the text instead.", "error");
    }
  };
  return html`<button type="button" class="button ghost small copy" aria-label=${done ? "Copied" : label} onClick=${copy}>
    <${Icon} name=${done ? "check" : "copy"} /></button>`;
}

/**
 * A modal dialog.
 *
 * @param {{ title: string, onClose: () => void, children?: any, wide?: boolean }} props
 */
export function Dialog({ title, onClose, children, wide = false }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const id = useMemo(() => `dialog-${Math.random().toString(36).slice(2)}`, []);
  useLayoutEffect(() => {
    const element = dialog.current;
    if (element && !element.open) element.showModal();
    return () => element?.close();
  }, []);
  return html`<dialog ref=${dialog} class="dialog ${wide ? "wide" : ""}" aria-labelledby=${id}
      onCancel=${(/** @type {Event} */ event) => { event.preventDefault(); onClose(); }}
      onClick=${(/** @type {MouseEvent} */ event) => event.target === dialog.current && onClose()}>
    <div class="dialog-body">
      <header><h2 id=${id}>${title}</h2><${Button} kind="ghost" icon="close" label="Close the dialog" onClick=${onClose} /></header>
      ${children}
    </div>
  </dialog>`;
}

/**
 * A question before something that cannot be undone.
 *
 * @param {{ title: string, text: string, action: string, onConfirm: () => unknown, onClose: () => void, children?: any }} props
 */
export function Confirm({ title, text, action, onConfirm, onClose, children }) {
  const [busy, set] = useState(false);
  const confirm = async () => {
    set(true);
    await onConfirm();
    onClose();
  };
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <p>${text}</p>${children}
    <footer><${Button} onClick=${onClose}>Keep</${Button}><${Button} kind="danger" busy=${busy} onClick=${confirm}>${action}
    </${Button}></footer>
  </${Dialog}>`;
}

/**
 * A button with a menu.
 *
 * @param {{ label: string, icon?: string, items: ({ label: string, icon?: string, danger?: boolean, onSelect: () => void } | null)[] }} props
 */
export function Menu({ label, icon = "more", items }) {
  const [open, set] = useState(false);
  const root = useRef(/** @type {HTMLElement | null} */ (null));
  const button = () => root.current?.querySelector("button");
  useEffect(() => {
    if (!open) return undefined;
    /** @type {HTMLElement | null | undefined} */ (root.current?.querySelector("[role=menuitem]"))?.focus();
    const outside = (/** @type {Event} */ event) => root.current?.contains(/** @type {Node} */ (event.target)) || set(false);
    document.addEventListener("pointerdown", outside);
    return () => document.removeEventListener("pointerdown", outside);
  }, [open]);
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    if (!open) return;
    const entries = [...(root.current?.querySelectorAll("[role=menuitem]") ?? [])];
    const at = entries.indexOf(/** @type {Element} */ (document.activeElement));
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step) /** @type {HTMLElement} */ (entries[(at + step + entries.length) % entries.length]).focus();
    else if (event.key === "Escape" || event.key === "Tab") { set(false); button()?.focus(); }
    else return;
    if (event.key !== "Tab") event.preventDefault();
    event.stopPropagation();
  };
  return html`<div class="menu" ref=${root} onKeyDown=${onKey}>
    <${Button} kind="ghost" icon=${icon} label=${label} aria-haspopup="menu" aria-expanded=${open ? "true" : "false"}
      onClick=${() => set(!open)} />
    ${open ? html`<div class="menu-list" role="menu" aria-label=${label}>${items.map((item) => item && html`
      <button type="button" role="menuitem" tabindex="-1" class="menu-item ${item.danger ? "danger" : ""}"
        onClick=${() => { set(false); button()?.focus(); item.onSelect(); }}>
        <${Icon} name=${item.icon ?? "dot"} />${item.label}</button>`)}</div>` : null}
  </div>`;
}

/** @param {{ label: string, hint?: string, id: string, children?: any }} props */
export function Field({ label, hint, id, children }) {
  return html`<div class="field"><label for=${id}>${label}</label>${children}${hint ? html`<p class="hint" id="${id}-hint">
    ${hint}</p>` : null}</div>`;
}

/** The heading of a page. @param {{ title: string, children?: any, back?: string }} props */
export function PageHead({ title, children, back }) {
  return html`<header class="page-head">
    ${back ? html`<a class="button ghost back" href=${back} aria-label="Back"><${Icon} name="back" /></a>` : null}
    <h1 tabindex="-1">${title}</h1><div class="page-actions">${children}</div>
  </header>`;
}

/** Gives the transcript the focus that was lost with an element. */
export function focusTranscript() {
  if (document.activeElement === document.body) focusOn(document.querySelector("main .scroll"));
}

/** @param {Element | null | undefined} element */
export function focusOn(element) {
  /** @type {HTMLElement | null | undefined} */ (element)?.focus({ preventScroll: true });
}

/** Runs something that a person asked for, and tells if it fails. @param {() => Promise<unknown>} run @param {string} what */
export async function attempt(run, what) {
  try {
    await run();
    return true;
  } catch (error) {
    shared.console.failed(error, what);
    return false;
  }
}
