/** Pages about the gateway itself: agents, processes, health, tokens, answers. */
import { baseName, bytes, count, dateTime, duration, plural } from "../core/format.js";
import { clean, oneLine } from "../core/text.js";
import { Badge, Button, Confirm, CopyButton, Dialog, Empty, ErrorNote, Icon, Loading, Name, PageHead, Time, attempt, html, useConsole, useLoad, useNow, useState } from "../ui/base.js";

/** @param {{ result: any, what: string, children?: any }} props */
function Loaded({ result, what, children }) {
  return html`<${ErrorNote} error=${result.error} retry=${result.reload} what="${what} could not be read" />
    ${result.loading && !result.data ? html`<${Loading} />` : null}${result.data ? children : null}`;
}

/** @param {{ result: any }} props */
function Reload({ result }) {
  return html`<${Button} icon="down" busy=${result.loading} onClick=${result.reload}>Read again</${Button}>`;
}

export function AgentsPage() {
  const model = useConsole();
  const agents = useLoad((signal) => model.api.json("/v1/agents", { signal }), []);
  const list = agents.data ?? [];
  const groups = [
    ["Installed", list.filter((/** @type {any} */ agent) => agent.installed)],
    ["Can be fetched", list.filter((/** @type {any} */ agent) => !agent.installed && agent.path)],
    ["Not installed", list.filter((/** @type {any} */ agent) => !agent.installed && !agent.path)],
  ];
  return html`<div class="page"><${PageHead} title="Agents"><${Reload} result=${agents} /></${PageHead}>
    <${Loaded} result=${agents} what="The agents">${groups.map(([title, some]) => (some.length ? html`<section><h2>${title} <span
      class="quiet">${some.length}</span></h2>
      <ul class="cards">${some.map((/** @type {any} */ agent) => html`<${AgentCard} key=${agent.name} agent=${agent} />`)}</ul>
      </section>` : null))}</${Loaded}></div>`;
}

/** @param {{ agent: any }} props */
function AgentCard({ agent }) {
  const model = useConsole();
  const command = (agent.command ?? []).join(" ");
  const usable = agent.allowed && agent.path && model.may("prompt");
  return html`<li class="card"><header><h3><${Name} text=${agent.title} /></h3>
      ${agent.default ? html`<${Badge}>default</${Badge}>` : null}${agent.allowed ? null : html`<${Badge}
        tone="failed">not allowed</${Badge}>`}${agent.origin === "configured" ? html`<${Badge}>configured</${Badge}>` : null}
          </header>
    <p class="quiet"><code>${clean(agent.name)}</code></p>
    <p class="command-line"><code dir="ltr">${clean(command)}</code></p>
    ${agent.note ? html`<p class="quiet"><${Name} text=${agent.note} /></p>` : null}
    ${usable ? html`<${AgentTrial} agent=${agent} />` : null}</li>`;
}

/** Buttons that start the agent: in a new session, or once to see if it works and is signed in. @param {{ agent: any }} props */
function AgentTrial({ agent }) {
  const model = useConsole();
  const [busy, setBusy] = useState("");
  const [result, setResult] = useState(/** @type {any} */ (null));
  const run = async (/** @type {string} */ method) => {
    setBusy(method || "test");
    setResult(null);
    const done = await attempt(async () => setResult(await tryAgent(model, agent.name, method)), `${agent.title} was not started`);
    if (!done) setResult(null);
    setBusy("");
  };
  return html`${result ? html`<div class="note ${result.ok ? "good" : "error"}" role="status"><${Icon}
    name=${result.ok ? "check" : "alert"} /><div class="note-body"><p><${Name} text=${result.text} /></p>
      ${result.code ? html`<p class="quiet"><code>${result.code}</code></p>` : null}</div></div>` : null}
    ${(result?.methods ?? []).length && !result.ok && model.may("admin") ? html`<div class="answers">
      ${result.methods.map((/** @type {any} */ method) => html`<${Button} icon="key" busy=${busy === method.id}
        disabled=${busy !== "" && busy !== method.id} onClick=${() => run(method.id)}>Sign in: <${Name} text=${method.name ?? method.id} />
          </${Button}>`)}</div>` : null}
    <footer><a class="button" href="#/new" aria-label=${`New session with ${clean(agent.title)}`} onClick=${() => choose(agent.name)}><${Icon} name="plus" />New session</a>
      <${Button} icon="health" label=${`${agent.installed ? "Test" : "Fetch"} ${clean(agent.title)}`} busy=${busy === "test"}
        disabled=${busy !== "" && busy !== "test"} onClick=${() => run("")}>
      ${agent.installed ? "Test" : "Fetch"}</${Button}></footer>`;
}

/**
 * Starts an agent in a session that ends at once.
 *
 * @param {import("../core/console.js").Console} model
 * @param {string} agent
 * @param {string} method Sign-in method; empty for none.
 */
async function tryAgent(model, agent, method) {
  const body = { agent, mode: "oneshot", wait_s: 120, label: null, ...(method ? { auth_method: method } : {}) };
  const started = await model.api.persist("/v1/sessions", body, { attempts: 2 });
  const key = started.session_key;
  try {
    if (started.opening === "open") return { ok: true, text: method ? "You are signed in." : "It starts and opens a session." };
    const { error } = started;
    return { ok: false, text: error?.message ?? "It did not open a session in two minutes.", code: error?.code, methods: error?.sign_in_methods };
  } finally {
    await model.api.persist(`/v1/sessions/${encodeURIComponent(key)}/delete`, { reason: "test of the agent", discard: true }, { attempts: 3 }).catch(() => undefined);
  }
}

/** Chooses an agent in the form of a new session. @param {string} agent */
function choose(agent) {
  const form = JSON.parse(sessionStorage.getItem("acphost.new") ?? "{}");
  delete form.key;
  sessionStorage.setItem("acphost.new", JSON.stringify({ ...form, agent }));
}

export function ProcessesPage() {
  const model = useConsole();
  const now = useNow(10_000);
  const leases = useLoad((signal) => model.api.json("/v1/leases", { signal }), []);
  const list = leases.data ?? [];
  return html`<div class="page"><${PageHead} title="Processes"><${Reload} result=${leases} /></${PageHead}>
    <p class="quiet">Leases of this gateway: each is one agent process with its tree, contained by the supervisor.</p>
    <${Loaded} result=${leases} what="The leases">
      ${list.length === 0 ? html`<${Empty} icon="process" title="No agent process is running"><p
        class="quiet">A process starts with the next prompt of a session.</p></${Empty}>` : null}
      <h2 class="sr">Leases</h2><ul class="cards wide">${list.map((/** @type {any} */ lease) => html`<${LeaseCard}
        key=${lease.lease_id} lease=${lease} now=${now} />`)}</ul></${Loaded}></div>`;
}

/** @param {{ lease: any, now: number }} props */
function LeaseCard({ lease, now }) {
  const model = useConsole();
  const [open, setOpen] = useState(false);
  const session = model.state.sessions.get(lease.session_key);
  const alive = ["reserved", "bound", "open"].includes(lease.state);
  return html`<li class="card lease"><header><h3><a href="#/s/${encodeURIComponent(lease.session_key)}"><${Name}
    text=${session ? session.label || baseName(session.cwd) : lease.session_key} /></a></h3>
      <${Badge}>${clean(lease.kind)}</${Badge}><${Badge}
        tone=${alive ? "running" : lease.state === "lost" ? "failed" : "neutral"}>${clean(lease.state)}</${Badge}></header>
    <dl class="facts"><dt>Agent</dt><dd><${Name} text=${session?.agent ?? "–"} /></dd><dt>Lease</dt><dd><code>
    ${clean(lease.lease_id)}</code></dd>
      <dt>Processes</dt><dd>${lease.tree_size ?? "–"}${lease.adapter_pid ? html` <span class="quiet">pid ${lease.adapter_pid}
      </span>` : null}</dd><dt>Memory</dt><dd>
      ${lease.memory_bytes === null || lease.memory_bytes === undefined ? "–" : bytes(lease.memory_bytes)}</dd>
      <dt>Containment</dt><dd>${clean(lease.rung)}${lease.cgroup_path ? html` <code>${clean(lease.cgroup_path)}</code>` : null}
      </dd><dt>Running for</dt><dd>${duration(now - lease.started_at_ms)}</dd>
      ${lease.buffered_bytes ? html`<dt>Held output</dt><dd>${bytes(lease.buffered_bytes)}</dd>` : null}
        ${lease.state_reason ? html`<dt>Reason</dt><dd><${Name} text=${lease.state_reason} /></dd>` : null}</dl>
    <details open=${open} onToggle=${(/** @type {any} */ event) => setOpen(event.target.open)}>
    <summary>Evidence and processes</summary>${open ? html`<${Evidence} id=${lease.lease_id} />` : null}</details></li>`;
}

/** Verdicts for people. @type {Record<string, [string, string]>} */
const VERDICTS = { owned: ["good", "ours"], gone: ["neutral", "gone"], not_ours: ["failed", "not ours"], unknown: ["needs", "unknown"] };

/** What was recorded about the processes, beside what they show now. @param {{ id: string }} props */
function Evidence({ id }) {
  const model = useConsole();
  const evidence = useLoad((signal) => model.api.json(`/v1/leases/${encodeURIComponent(id)}`, { signal }), [id]);
  const { verdict, why, facts = [], tree = [] } = evidence.data ?? {};
  const [tone, name] = VERDICTS[verdict] ?? ["neutral", clean(verdict)];
  return html`<${Loaded} result=${evidence} what="The evidence"><p><${Badge} tone=${tone}>${name}</${Badge}> <${Name}
    text=${why} /></p>
    <div class="table-scroll" tabindex="0" role="region" aria-label="Facts"><table class="audit"><thead><tr><th
      scope="col">Fact</th><th scope="col">Recorded</th><th scope="col">Now</th></tr></thead>
      <tbody>${facts.map((/** @type {any} */ fact) => html`<tr><td>
      ${clean(fact.subject)} ${clean(fact.name).replaceAll("_", " ")}</td><td><code>${oneLine(fact.recorded, 120) || "–"}</code></td>
        <td><code>${oneLine(fact.live, 120) || "–"}</code> ${fact.agrees === null ? null : html`<${Badge}
          tone=${fact.agrees ? "good" : "failed"}>${fact.agrees ? "agrees" : "differs"}</${Badge}>`}</td></tr>`)}</tbody></table></div>
    <h4>Processes of the tree</h4><ul class="tree">${tree.map((/** @type {any} */ process) => html`<li><code>${process.pid}
    </code> <${Name} text=${process.name} /></li>`)}${tree.length ? null : html`<li class="quiet">none</li>`}</ul></${Loaded}>`;
}

export function HealthPage() {
  const model = useConsole();
  const status = useLoad((signal) => model.api.json("/v1/status", { signal }), []);
  const doctor = useLoad((signal) => model.api.json("/v1/doctor", { signal }), []);
  const now = useNow(10_000);
  return html`<div class="page"><${PageHead} title="Health"><${Button} icon="down" busy=${status.loading || doctor.loading}
    onClick=${() => { status.reload(); doctor.reload(); }}>Check again</${Button}></${PageHead}>
    <${Loaded} result=${status} what="The status"><${Verdict} checks=${checksOf(status.data)} findings=${doctor.data} />
    <${Status} status=${status.data} now=${now} /></${Loaded}>
    <section><h2>Doctor</h2><${Loaded} result=${doctor} what="The findings"><${Findings} list=${doctor.data ?? []} /></${Loaded}>
    </section></div>`;
}

/** @param {{ ok: boolean, name: string, text: string, next?: string, state?: string }} props */
function Check({ ok, name, text, next, state }) {
  const tone = ok ? "good" : state === "warning" ? "warning" : "failed";
  return html`<li class="check-row ${tone}"><${Icon} name=${ok ? "check" : "alert"} /><span class="sr">
    ${ok ? "Well" : state === "warning" ? "Warning" : "Failed"}:</span>
    <span><strong><${Name} text=${name} /></strong> <${Name} text=${text} />${next ? html`<span class="next"><${Name}
      text=${next} /></span>` : null}</span></li>`;
}

/** What the gateway knows about itself. @param {any} status */
function checksOf(status) {
  if (!status) return [];
  const store = status.store ?? {};
  return [
    { name: "Supervisor", ok: status.supervisor?.connected, text: status.supervisor?.detail },
    { name: "Dispatch", ok: status.dispatch_enabled, text: status.dispatch_enabled ? "prompts are sent to agents" : "prompts are held back (acp.dispatch.enabled)" },
    { name: "Database", ok: store.health === "well", text: `${store.health === "well" ? "commits work" : store.health}, ${bytes((store.bytes ?? 0) + (store.log_bytes ?? 0))}, durability ${status.durability}` },
    { name: "Actors", ok: !store.actors_stuck && !(store.still ?? []).length, text: store.actors_stuck ? `${store.actors_stuck} are stuck` : (store.still ?? []).join("; ") || "none is stuck" },
    ...(status.backends ?? []).map((/** @type {any} */ one) => ({ name: `Backend ${one.id}`, ok: one.ok, text: one.details })),
    ...(status.accounts ?? []).map((/** @type {any} */ one) => ({ name: `${one.channel} ${one.account}`, ok: one.ok, text: one.details })),
    ...(status.listeners ?? []).map((/** @type {any} */ one) => ({ name: `Listener ${one.address}`, ok: one.ok, text: one.details, state: "warning" })),
  ];
}

/** @param {{ checks: any[], findings: any[] | null }} props */
function Verdict({ checks, findings }) {
  const bad = checks.filter((check) => !check.ok).length + (findings ?? []).filter((one) => one.verdict === "failed").length;
  const text = bad ? `${plural(bad, "check needs", "checks need")} attention.` : findings ? "Everything works." : "The gateway works; the other checks are running…";
  return html`<div class="note ${bad ? "error" : "good"}" role="status"><${Icon} name=${bad ? "alert" : "check"} /><p><strong>
    ${text}</strong></p></div>`;
}

/** @param {{ status: any, now: number }} props */
function Status({ status, now }) {
  if (!status) return null;
  const store = status.store ?? {};
  return html`<div class="tiles"><${Tile} value=${count(store.sessions_open ?? 0)} name="open sessions" /><${Tile}
    value=${count(store.runs_queued ?? 0)} name="queued prompts" />
      <${Tile} value=${duration(now - status.started_at_ms)} name="running since start" /><${Tile} value=${status.version}
        name="version" /></div>
    <ul class="checks">${checksOf(status).map((check) => html`<${Check} key=${check.name} ...${check}
      ok=${Boolean(check.ok)} />`)}</ul>
    <details class="card"><summary>About this gateway</summary><dl class="facts"><dt>Instance</dt><dd><code>
    ${clean(status.gateway_instance_id)}</code></dd><dt>Process</dt><dd>${status.pid}</dd><dt>State directory</dt><dd><code>
      ${clean(status.state_dir)}</code></dd>
      <dt>Configuration</dt><dd><code>${clean(status.config?.file ?? "none")}</code></dd><dt>Started</dt><dd>
      ${dateTime(status.started_at_ms)}</dd></dl></details>`;
}

/** @param {{ value: any, name: string }} props */
function Tile({ value, name }) {
  return html`<div class="tile"><strong>${value}</strong><span class="quiet">${name}</span></div>`;
}

/** @param {{ list: any[] }} props */
function Findings({ list }) {
  if (list.length === 0) return html`<p class="quiet">No findings.</p>`;
  return html`<ul class="checks">${list.map((one) => {
    return html`<${Check} ok=${one.verdict === "ok"} state=${one.verdict === "note" ? "warning" : "failed"} name=${one.name}
      text=${one.detail} />`;
  })}</ul>`;
}

export function TokensPage() {
  const model = useConsole();
  const now = useNow();
  const [all, setAll] = useState(false);
  const [revoking, setRevoking] = useState(/** @type {any} */ (null));
  const [adding, setAdding] = useState(false);
  const tokens = useLoad((signal) => model.api.json("/v1/tokens", { signal }), []);
  const list = (tokens.data ?? []).filter((/** @type {any} */ token) => all || token.state === "valid");
  const revoke = async () => {
    if (await attempt(() => model.api.json(`/v1/tokens/${encodeURIComponent(revoking.token_id)}`, { method: "DELETE" }), "The token was not revoked")) tokens.reload();
  };
  return html`<div class="page"><${PageHead} title="Tokens and devices"><label class="switch"><input type="checkbox"
    role="switch" checked=${all} onChange=${(/** @type {any} */ event) => setAll(event.target.checked)} />
      <span>Expired and revoked</span></label>
      <${Button} kind="primary" icon="plus" onClick=${() => setAdding(true)}>Add a device</${Button}></${PageHead}>
    <${Loaded} result=${tokens} what="The tokens">
      ${list.length === 0 ? html`<${Empty} icon="key" title="No tokens"><p
        class="quiet">A token signs a device or a program in.</p></${Empty}>` : html`<h2 class="sr">Tokens</h2><ul
          class="cards wide">${list.map((/** @type {any} */ token) => html`<li class="card token" key=${token.token_id}>
        <header><h3><${Name} text=${token.name} /></h3><${Badge}>${token.scope}</${Badge}>
        ${token.console ? html`<${Badge}>console</${Badge}>` : null}${token.state === "valid" ? null : html`<${Badge}
          tone="failed">${token.state}</${Badge}>`}</header>
        <p class="quiet">${token.agents?.length ? html`Agents: <code>${token.agents.join(", ")}
        </code>. ` : "All agents. "}Added <${Time} at=${token.created_at_ms}
          now=${now} /> ago${token.revoked_at_ms ? html`, revoked ${dateTime(token.revoked_at_ms)}` : token.expires_at_ms ? html`, valid until ${dateTime(token.expires_at_ms)}` : ", valid until it is revoked"}.</p>
        ${token.state === "valid" ? html`<footer><${Button} kind="danger-plain" icon="trash"
          label=${`Revoke ${clean(token.name)}`} onClick=${() => setRevoking(token)}>Revoke</${Button}></footer>` : null}</li>`)}</ul>`}</${Loaded}>
    ${revoking ? html`<${Confirm} title="Revoke the token" action="Revoke"
      text=${`“${clean(revoking.name)}” is refused from now on; its running requests and streams end.`} onConfirm=${revoke}
        onClose=${() => setRevoking(null)} />` : null}
    ${adding ? html`<${AddDevice} onClose=${() => setAdding(false)} />` : null}</div>`;
}

/** Tokens are created on the gateway's machine only, so that a leaked one cannot make others. @param {{ onClose: () => void }} props */
function AddDevice({ onClose }) {
  const [name, setName] = useState("phone");
  const [scope, setScope] = useState("approve");
  const safe = name.replace(/[^\p{L}\p{N}._-]/gu, "-") || "phone";
  const command = `acp-gateway token add ${safe} --scope ${scope} --expires 30d`;
  return html`<${Dialog} title="Add a device" onClose=${onClose}>
    <p>Tokens are made on the gateway's machine only, so that one that leaked cannot make others. Run this there, and paste the token on the device:</p>
    <div class="field"><label for="device">Name</label><input id="device" value=${name}
      onInput=${(/** @type {any} */ event) => setName(event.target.value)} /></div>
    <div class="field"><label for="scope">May</label><select id="scope" value=${scope}
      onChange=${(/** @type {any} */ event) => setScope(event.target.value)}><option value="read">read sessions</option><option
        value="prompt">and send prompts</option><option value="approve">and answer permission requests</option><option
          value="admin">everything</option></select></div>
    <figure class="code"><figcaption><span>shell</span><${CopyButton} text=${command} /></figcaption><pre tabindex="0" dir="ltr">
    <code>${command}</code></pre></figure>
    <footer><${Button} kind="primary" onClick=${onClose}>Done</${Button}></footer></${Dialog}>`;
}

export function AuditPage() {
  const model = useConsole();
  const now = useNow();
  const audit = useLoad((signal) => model.api.json("/v1/audit", { signal }), []);
  const list = audit.data ?? [];
  return html`<div class="page"><${PageHead} title="Answers"><${Reload} result=${audit} /></${PageHead}><p
    class="quiet">Who answered which permission request, the newest first.</p>
    <${Loaded} result=${audit} what="The answers">${list.length === 0 ? html`<${Empty} icon="audit"
      title="No request has been answered yet" />` : html`<div class="table-scroll" tabindex="0" role="region"
        aria-label="Answers"><table class="audit">
      <thead><tr><th scope="col">Asked</th><th scope="col">Request</th><th scope="col">Answer</th><th scope="col">By</th></tr></thead>
      <tbody>${list.map((/** @type {any} */ one) => html`<tr><td><${Time} at=${one.created_at_ms} now=${now} /></td>
        <td><a href="#/s/${encodeURIComponent(one.session_key)}"><${Name} text=${oneLine(one.title, 120)} /></a>
        ${one.subject ? html`<br /><code class="quiet">${oneLine(one.subject, 100)}</code>` : null}</td>
        <td><${Badge} tone=${kindOf(one).startsWith("allow") ? "good" : "neutral"}>
        ${oneLine(one.option_name ?? one.option_id ?? one.state, 60)}</${Badge}></td>
        <td>${one.by ? html`<strong><${Name} text=${one.by} /></strong>` : html`<span class="quiet">
        ${clean(one.without ?? "").replaceAll("_", " ")}</span>`}</td></tr>`)}</tbody></table></div>`}</${Loaded}></div>`;
}

/** Kind of the chosen option. @param {any} answer */
function kindOf(answer) {
  return String((answer.options ?? []).find((/** @type {any} */ one) => one.option_id === answer.option_id)?.kind ?? "");
}
