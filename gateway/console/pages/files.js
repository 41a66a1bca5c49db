/** Files and changes of a session, to read. */
import { query, sessionPath } from "../core/api.js";
import { parseUnified } from "../core/diff.js";
import { baseName, bytes } from "../core/format.js";
import { clean, oneLine } from "../core/text.js";
import { Button, CopyButton, Empty, ErrorNote, Icon, Loading, LongText, Name, PageHead, html, useConsole, useLoad, useMemo, useState } from "../ui/base.js";
import { DiffTable } from "../ui/tool.js";
import { titleOf } from "../ui/names.js";

/** @param {{ id: string }} props */
export function FilesPage({ id }) {
  const model = useConsole();
  const session = model.state.sessions.get(id);
  const [tab, setTab] = useState("changes");
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    const other = tab === "changes" ? "files" : "changes";
    setTab(other);
    document.getElementById(`tab-${other}`)?.focus();
  };
  return html`<div class="page"><${PageHead} title=${session ? `Files of ${oneLine(titleOf(session), 60)}` : "Files"}
    back="#/s/${encodeURIComponent(id)}" />
    <div class="tabs" role="tablist" aria-label="Files and changes">
    ${[["changes", "Changes"], ["files", "Files"]].map(([name = "", title]) => html`<button type="button" role="tab"
      id="tab-${name}" aria-controls="panel" aria-selected=${tab === name ? "true" : "false"}
      tabindex=${tab === name ? 0 : -1} onClick=${() => setTab(name)}
        onKeyDown=${onKey}>${title}</button>`)}</div>
    <div id="panel" role="tabpanel" aria-labelledby="tab-${tab}" tabindex="0">${tab === "changes" ? html`<${Changes} id=${id}
      session=${session} />` : html`<${Browser} id=${id} />`}</div></div>`;
}

/** @param {{ id: string, session: any }} props */
function Changes({ id, session }) {
  const model = useConsole();
  const [run, setRun] = useState("");
  const diff = useLoad((signal) => model.api.json(sessionPath(id, `/diff${query({ run })}`), { signal }), [id, run]);
  const files = useMemo(() => merged(parseUnified(diff.data?.diff ?? "")), [diff.data]);
  const runs = (session?.runs ?? []).filter((/** @type {any} */ one) => one.mode === "prompt").reverse();
  return html`<div class="stack">
    <div class="bar"><label for="diff-run">Changes of</label><select id="diff-run" value=${run}
      onChange=${(/** @type {any} */ event) => setRun(event.target.value)}>
      <option value="">the whole session</option>${runs.map((/** @type {any} */ one) => html`<option
        value=${one.run_id}>“${clean(one.text).slice(0, 50)}”</option>`)}</select>
      <${Button} kind="ghost" icon="down" busy=${diff.loading} onClick=${diff.reload}>Read again</${Button}></div>
    <${ErrorNote} error=${diff.error} retry=${diff.reload} what="The changes could not be read" />
    ${diff.loading && !diff.data ? html`<${Loading} />` : null}
    ${diff.data && files.length === 0 ? html`<${Empty} icon="file" title="No changes were reported"><p
      class="quiet">Changes by commands are not among them.</p></${Empty}>` : null}
    ${files.map((file) => html`<${DiffTable} key=${file.path} path=${below(file.path, session?.cwd ?? "")} lines=${file.lines} />`)}
    ${files.length > 0 ? html`<p
      class="quiet">As the agent reported them with its tool calls; changes by commands are not among them.</p>` : null}</div>`;
}

/** Puts the changes of one file together. @param {import("../core/diff.js").FileDiff[]} files */
function merged(files) {
  /** @type {Map<string, import("../core/diff.js").FileDiff>} */
  const byPath = new Map();
  for (const file of files) {
    const before = byPath.get(file.path);
    if (before) before.lines.push(...file.lines);
    else byPath.set(file.path, file);
  }
  return [...byPath.values()];
}

/** Shortens a path of a diff, which has no slash at its begin, to what is below the directory of the session. @param {string} path @param {string} cwd */
function below(path, cwd) {
  return cwd && `/${path}`.startsWith(`${cwd}/`) ? `/${path}`.slice(cwd.length + 1) : path;
}

/** @param {{ id: string }} props */
function Browser({ id }) {
  const model = useConsole();
  const roots = useLoad((signal) => model.api.json(sessionPath(id, "/files"), { signal }), [id]);
  const [path, setPath] = useState("");
  const [file, setFile] = useState("");
  const here = path || roots.data?.roots?.[0] || "";
  const open = (/** @type {any} */ event) => {
    event.preventDefault();
    const value = String(new FormData(event.target).get("path") ?? "").trim();
    if (value) setFile(value.startsWith("/") ? value : `${here.replace(/\/$/, "")}/${value}`);
  };
  return html`<div class="stack">
    <${ErrorNote} error=${roots.error} retry=${roots.reload} what="The directories could not be read" />
    ${roots.data ? html`<ul class="roots" aria-label="Directories of the session">
      ${roots.data.roots.map((/** @type {string} */ root) => html`<li><button type="button" class="link"
        onClick=${() => setPath(root)}><${Icon} name="folder" /><code>${root}</code></button></li>`)}</ul>` : null}
    <form class="bar" onSubmit=${open}><label for="path">File</label><input id="path" name="path" dir="ltr" autocomplete="off"
      spellcheck=${false} placeholder="src/main.rs" /><button class="button">Open</button></form>
    ${here ? html`<${Entries} id=${id} path=${here} roots=${roots.data?.roots ?? []} onPath=${setPath}
      onFile=${setFile} />` : null}
    ${file ? html`<${FileView} key=${file} id=${id} path=${file} />` : null}</div>`;
}

/** @param {{ id: string, path: string, roots: string[], onPath: (path: string) => void, onFile: (path: string) => void }} props */
function Entries({ id, path, roots, onPath, onFile }) {
  const model = useConsole();
  const list = useLoad((signal) => model.api.json(sessionPath(id, `/files/entries${query({ path })}`), { signal }), [id, path]);
  const parent = path.slice(0, path.lastIndexOf("/"));
  const hasParent = !roots.includes(path) && roots.some((root) => path.startsWith(`${root}/`));
  return html`<div><p class="path"><code>${path}</code></p><${ErrorNote} error=${list.error} retry=${list.reload}
    what="The directory could not be read" />
    <ul class="entries" aria-label="Entries of ${path}">${hasParent ? html`<li><button type="button"
      onClick=${() => onPath(parent)}><${Icon} name="back" />Parent directory</button></li>` : null}
    ${(list.data?.entries ?? []).map((/** @type {any} */ entry) => html`<li key=${entry.name}><button type="button"
      onClick=${() => (entry.is_directory ? onPath : onFile)(`${path.replace(/\/$/, "")}/${entry.name}`)}>
      <${Icon} name=${entry.is_directory ? "folder" : "file"} /><${Name} text=${entry.name} />
      ${entry.size !== undefined && !entry.is_directory ? html`<small class="quiet">${bytes(entry.size)}</small>` : null}
        </button></li>`)}</ul></div>`;
}

/** @param {{ id: string, path: string }} props */
function FileView({ id, path }) {
  const model = useConsole();
  const file = useLoad(async (signal) => {
    const response = await model.api.send(sessionPath(id, `/files/content${query({ path })}`), { signal });
    return response.text();
  }, [id, path]);
  return html`<figure class="code file"><figcaption><span title=${path}><${Name} text=${baseName(path)} /></span>
    ${file.data !== null ? html`<${CopyButton} text=${file.data} label="Copy the file" />` : null}</figcaption>
    ${file.loading ? html`<${Loading} />` : null}<${ErrorNote} error=${file.error} retry=${file.reload}
      what="The file cannot be shown" />
    ${file.data !== null ? html`<pre tabindex="0" dir="ltr"><${LongText} text=${file.data} limit=${40_000} mono=${true} />
      </pre>` : null}</figure>`;
}
