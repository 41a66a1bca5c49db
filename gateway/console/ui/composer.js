/** The field for prompts: text, files by paste or drop, commands of the agent, queue, steer and stop. */
import { asApiError } from "../core/api.js";
import { bytes } from "../core/format.js";
import { clean, oneLine } from "../core/text.js";
import { Button, Icon, Name, attempt, focusTranscript, html, shared, useEffect, useLayoutEffect, useRef, useState } from "./base.js";

/** Limits of the gateway for the files of a prompt. */
const FILES_MAX = 10;
const BYTES_MAX = 8 * 1024 * 1024;

/** @typedef {{ name: string, mime: string, base64: string, size: number, url: string | null }} Attached */

/** @param {{ session: import("../core/types.js").SessionView, onSent: () => void }} props */
export function Composer({ session, onSent }) {
  const model = shared.console;
  const key = session.session_key;
  const [text, setText] = useDraft(key);
  const [steer, setSteer] = useState(false);
  const { files, setFiles, isOver, attach, restore, ...drops } = useAttachments(key);
  const area = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const running = ["running", "cancelling", "creating"].includes(session.state) || Boolean(session.active_run);
  useGrowth(area, text);
  useEffect(() => {
    const edit = (/** @type {any} */ event) => {
      // What is being written stays.
      const { text: taken, files: kept = [] } = event.detail;
      setText([taken, area.current?.value ?? ""].filter((part) => part.trim()).join("\n\n"));
      restore(kept);
      area.current?.focus();
    };
    document.addEventListener("acphost-edit", edit);
    return () => document.removeEventListener("acphost-edit", edit);
  }, [key]);

  const send = () => {
    // The field and not what was drawn last: a key that follows at once would miss the end of the text, or send it again.
    const chosen = attached.get(key) ?? [];
    const prompt = (area.current?.value ?? text).trim() || (chosen.length ? "Look at the attached files." : "");
    if (!prompt) return;
    model.sendPrompt(key, {
      text: prompt, mode: running && steer ? "steer" : "prompt", files: chosen.map(({ name, mime, base64 }) => ({ name, mime, base64 })),
    });
    if (area.current) area.current.value = "";
    setText("");
    chosen.forEach(forget);
    setFiles([]);
    onSent();
    area.current?.focus();
  };
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    const fine = matchMedia("(pointer: fine)").matches;
    if (event.shiftKey || !(fine || event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    send();
  };
  if (session.state === "closed") return html`<div class="composer closed"><p
    class="quiet">This session is closed. Its history stays readable.</p></div>`;
  if (!model.may("prompt")) return html`<div class="composer closed"><p
    class="quiet">Your token may read only. It needs the scope <code>prompt</code> to send.</p></div>`;
  return html`<form class="composer ${isOver ? "drop" : ""}" aria-label="Prompt"
    onSubmit=${(/** @type {Event} */ event) => { event.preventDefault(); send(); }}
      onDragOver=${drops.onDragOver} onDragLeave=${drops.onDragLeave} onDrop=${drops.onDrop}>
    <${Commands} text=${text} commands=${session.agent_settings?.commands ?? []}
      onPick=${(/** @type {string} */ name) => { setText(`/${name} `); area.current?.focus(); }} />
    <${Files} files=${files}
      onRemove=${(/** @type {Attached} */ file) => { forget(file); setFiles(files.filter((one) => one !== file)); }} />
    <textarea ref=${area} id="prompt" name="prompt" rows="1" dir="auto" aria-label=${`Prompt for ${session.agent}`} value=${text}
      onKeyDown=${onKey} onPaste=${drops.onPaste}
      placeholder=${isOver ? "Drop files here" : running ? (steer ? "Tell the agent now…" : "Add to the queue…") : "Write a prompt…"}
      onInput=${(/** @type {any} */ event) => setText(event.target.value)}></textarea>
    <div class="composer-bar">
      <label class="button ghost" title="Attach files"><${Icon} name="clip" /><span class="sr">Attach files</span>
        <input class="sr" type="file" multiple
          onChange=${(/** @type {any} */ event) => { void attach([...event.target.files]); event.target.value = ""; }} /></label>
      ${running ? html`<label class="switch"><input type="checkbox" role="switch" checked=${steer}
        onChange=${(/** @type {any} */ event) => setSteer(event.target.checked)} />
        <span>Steer<span class="desktop"> the running turn</span></span></label>` : html`<span
          class="hint desktop">Enter sends, Shift+Enter makes a new line</span>`}
      <span class="spacer"></span>
      ${running ? html`<${Stop} session=${session} />` : null}
      <button class="button primary send" aria-label=${running && !steer ? "Queue the prompt" : "Send"} title="Send"
        disabled=${!text.trim() && files.length === 0}><${Icon} name=${running && steer ? "steer" : "send"} /></button>
    </div>
  </form>`;
}

/** Files of prompts that are being written, by session: they stay while another page is shown. @type {Map<string, Attached[]>} */
const attached = new Map();

/** Files of the next prompt, and the handlers that take them. @param {string} key Session. */
function useAttachments(key) {
  const [files, show] = useState(attached.get(key) ?? []);
  const [isOver, setOver] = useState(false);
  const setFiles = (/** @type {Attached[]} */ next) => {
    attached.set(key, next);
    show(next);
  };
  const failed = (/** @type {unknown} */ error) => shared.console.toast(error instanceof Error ? error.message : String(error), "error");
  const attach = async (/** @type {Iterable<File>} */ list) => {
    try {
      const added = await Promise.all([...list].map(readFile));
      // Others may have come while these were read.
      setFiles(withFiles(attached.get(key) ?? [], added));
    } catch (error) {
      failed(error);
    }
  };
  /** Takes the files of a prompt that was not sent. @param {import("../core/outbox.js").Outgoing["files"]} list */
  const restore = (list) => {
    try {
      if (list.length) setFiles(withFiles(attached.get(key) ?? [], list.map((file) => ({ ...file, size: sizeOf(file.base64), url: null }))));
    } catch (error) {
      failed(error);
    }
  };
  return {
    files, setFiles, isOver, attach, restore,
    onDragLeave: () => setOver(false),
    onDragOver: (/** @type {Event} */ event) => {
      event.preventDefault();
      setOver(true);
    },
    onDrop: (/** @type {DragEvent} */ event) => {
      event.preventDefault();
      setOver(false);
      if (event.dataTransfer?.files.length) void attach(event.dataTransfer.files);
    },
    onPaste: (/** @type {ClipboardEvent} */ event) => {
      const pasted = event.clipboardData?.files;
      if (!pasted?.length) return;
      event.preventDefault();
      void attach(pasted);
    },
  };
}

/** Frees the picture of a file. @param {Attached} file */
function forget(file) {
  if (file.url) URL.revokeObjectURL(file.url);
}

/** Text that survives a reload of the page. @param {string} key @returns {[string, (text: string) => void]} */
function useDraft(key) {
  const name = `acphost.draft.${key}`;
  const [text, set] = useState("");
  useEffect(() => set(sessionStorage.getItem(name) ?? ""), [key]);
  return [text, (next) => {
    set(next);
    try {
      if (next) sessionStorage.setItem(name, next);
      else sessionStorage.removeItem(name);
    } catch {
      // The storage is full: the text stays in the page.
    }
  }];
}

/** Makes the field as high as its text, within limits of the style sheet. @param {{ current: HTMLTextAreaElement | null }} area @param {string} text */
function useGrowth(area, text) {
  useLayoutEffect(() => {
    const element = area.current;
    if (!element) return;
    element.style.height = "auto";
    element.style.height = `${element.scrollHeight + 2}px`;
  }, [text]);
}

/** @param {{ session: import("../core/types.js").SessionView }} props */
function Stop({ session }) {
  const [busy, set] = useState(false);
  const stop = async () => {
    set(true);
    await attempt(() => shared.console.act(session.session_key, "/cancel"), "The turn could not be stopped");
    set(false);
  };
  useEffect(() => () => void setTimeout(focusTranscript), []);
  const stopping = session.state === "cancelling";
  return html`<${Button} kind="danger-plain stop" icon="stop" busy=${busy || stopping} onClick=${stop}>
    ${stopping ? "Stopping" : "Stop"}</${Button}>`;
}

/** @param {{ files: Attached[], onRemove: (file: Attached) => void }} props */
function Files({ files, onRemove }) {
  if (files.length === 0) return null;
  return html`<ul class="attached" aria-label="Attached files">${files.map((file) => html`<li>
    ${file.url ? html`<img src=${file.url} alt="" />` : html`<${Icon} name="file" />`}<span><${Name}
      text=${oneLine(file.name, 40)} /><small class="quiet">${bytes(file.size)}</small></span>
    <${Button} kind="ghost small" icon="close" label=${`Remove ${clean(file.name)}`} onClick=${() => onRemove(file)} /></li>`)}</ul>`;
}

/** Commands of the agent that begin with the text. @param {{ text: string, commands: import("../core/types.js").AgentCommand[], onPick: (name: string) => void }} props */
function Commands({ text, commands, onPick }) {
  const typed = /^\/([^\s]*)$/.exec(text)?.[1];
  if (typed === undefined) return null;
  const found = commands.filter((command) => command.name.startsWith(typed)).slice(0, 8);
  if (found.length === 0) return null;
  return html`<ul class="commands" aria-label="Commands of the agent">${found.map((command) => html`<li><button type="button"
    onClick=${() => onPick(command.name)}>
    <code>/<${Name} text=${command.name} /></code><span class="quiet"><${Name}
      text=${oneLine(command.description ?? command.hint ?? "", 100)} /></span></button></li>`)}</ul>`;
}

/** @param {Attached[]} before @param {Attached[]} added @returns {Attached[]} */
function withFiles(before, added) {
  if (before.length + added.length > FILES_MAX) throw new Error(`A prompt can have ${FILES_MAX} files. Remove some first.`);
  const total = [...before, ...added].reduce((sum, file) => sum + file.size, 0);
  if (total > BYTES_MAX) throw new Error(`The files have ${bytes(total)}; a prompt can have ${bytes(BYTES_MAX)}. Remove some, or name their paths instead.`);
  return [...before, ...added];
}

/** Size of what is encoded, in bytes. @param {string} base64 */
function sizeOf(base64) {
  return Math.floor((base64.replace(/=+$/, "").length * 3) / 4);
}

/** @param {File} file @param {number} index @returns {Promise<Attached>} */
async function readFile(file, index) {
  if (file.size > BYTES_MAX) throw new Error(`${oneLine(file.name, 60)} has ${bytes(file.size)}; a prompt can have ${bytes(BYTES_MAX)}. Name its path instead.`);
  return {
    name: file.name || `pasted-${index + 1}`, mime: file.type, size: file.size, base64: await base64Of(file),
    url: /^image\/(png|jpeg|gif|webp)$/.test(file.type) ? URL.createObjectURL(file) : null,
  };
}

/** @param {File} file @returns {Promise<string>} */
function base64Of(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result).replace(/^[^,]*,/, ""));
    reader.onerror = () => reject(new Error(`The file ${file.name} cannot be read: ${reader.error?.message ?? "unknown reason"}`));
    reader.readAsDataURL(file);
  });
}

/** Prompts that wait for the running turn. @param {{ session: import("../core/types.js").SessionView }} props */
export function Queue({ session }) {
  const [error, setError] = useState(/** @type {any} */ (null));
  const queued = (session.runs ?? []).filter((run) => run.state === "queued");
  const before = useRef(0);
  useEffect(() => {
    if (queued.length < before.current) focusTranscript();
    before.current = queued.length;
  }, [queued.length]);
  if (queued.length === 0) return null;
  const drop = async (/** @type {import("../core/types.js").RunView} */ run, /** @type {boolean} */ edit) => {
    setError(null);
    try {
      const cancelled = await shared.console.act(session.session_key, "/cancel", { run_id: run.run_id });
      // In the field again, a prompt that has run would be sent a second time.
      if (!cancelled.run_id) shared.console.toast("Too late: this prompt has run already.", "error");
      else if (edit) document.dispatchEvent(new CustomEvent("acphost-edit", { detail: { text: run.text } }));
    } catch (failure) {
      setError(asApiError(failure));
    }
  };
  return html`<section class="queue" aria-label="Queue"><h2>Queued <span class="quiet">${queued.length}</span></h2>
    <ol>${queued.map((run) => html`<li key=${run.run_id}><span class="queue-text"><${Name}
      text=${oneLine(run.text, 160)} /> <small class="quiet"><${Name} text=${run.author} /></small></span>
      ${shared.console.may("prompt") ? html`<${Button} kind="ghost small" icon="edit" label="Take back and edit"
        onClick=${() => drop(run, true)} />
      <${Button} kind="ghost small" icon="close" label="Remove from the queue" onClick=${() => drop(run, false)} />` : null}
      </li>`)}</ol>
    ${error ? html`<p class="quiet">${error.message}</p>` : null}</section>`;
}
