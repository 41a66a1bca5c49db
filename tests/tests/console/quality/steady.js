// Runs before the console in the test of pictures: what differs between machines and runs becomes the same as it arrives.
// `__ROOT__` is the directory of the test as a string.
(() => {
  const fetched = window.fetch;
  const HOURS_MS = 2.1 * 3_600_000;
  const begin = Date.now();
  let user = null;

  const agent = (name, title, path, command, note) => ({
    name, title, path, command, note, installed: false, allowed: true, default: false, origin: "catalog",
  });
  const AGENTS = [
    agent("claude", "Claude Code", "/usr/bin/npx", ["/usr/bin/npx", "-y", "@agentclientprotocol/claude-agent-acp"], "not installed; downloaded on first use"),
    agent("codex", "Codex", "/usr/bin/npx", ["/usr/bin/npx", "-y", "@agentclientprotocol/codex-acp"], "not installed; downloaded on first use"),
    agent("goose", "Goose", null, ["goose", "acp"], "not installed"),
  ];
  const finding = (name, detail) => ({ name, detail, verdict: "ok" });
  const FINDINGS = [
    finding("configuration", "/home/ann/gateway.toml"), finding("programs", "acp-supervisor, and /usr/bin/acp-wrapper"),
    finding("state directory", "/home/ann/s"), finding("socket directory", "private"), finding("supervisor", "answers"),
  ];

  /** Changes of answers, by path. */
  const CHANGES = {
    "/v1/login": (login) => { user = login.name; },
    "/v1/agents": (list) => void list.splice(0, list.length, ...list.filter((one) => ["scripted", "demo"].includes(one.name)), ...AGENTS),
    "/v1/doctor": (list) => void list.splice(0, list.length, ...FINDINGS),
    "/v1/leases": (list) => list.forEach((lease, at) => Object.assign(lease, {
      lease_id: `01a22191-ec8d-71b9-bb3c-8a35382133d${at}`, adapter_pid: 4711 + at, tree_size: 2, memory_bytes: 6_500_000, rung: "R1",
      cgroup_path: `/acp-supervisor/01a22191-ec8d-71b9-bb3c-8a35382133d${at}`, started_at_ms: Date.now() - HOURS_MS,
    })),
    "/v1/tokens": (list) => list.forEach((token) => { token.expires_at_ms = null; }),
    "/v1/status": (status) => {
      status.started_at_ms = Date.now() - HOURS_MS;
      Object.assign(status.store, { bytes: 1_150_000, log_bytes: 0 });
    },
  };

  const text = (value) => value.replaceAll(__ROOT__, "/home/ann").replace(/127\.0\.0\.1:\d+/g, "127.0.0.1:7941")
    .replace(/\/[^\s"]*\/(?=(?:acp-gateway|acp-supervisor|acp-wrapper|fake-agent)\b)/g, "/usr/bin/");
  const value = (_, one) => (typeof one !== "string" ? one : one === user ? "ann" : one === `console:${user}` ? "console:ann" : text(one));

  window.fetch = async (...request) => {
    const response = await fetched(...request);
    if (!response.headers.get("content-type")?.includes("json")) return response;
    const body = await response.json();
    const { pathname } = new URL(response.url);
    CHANGES[pathname]?.(body);
    // Each row 0.4 s behind the one before.
    if (pathname.endsWith("/events")) body.events?.forEach((row) => { row.created_at_ms = begin + row.session_seq * 400; });
    return new Response(JSON.stringify(JSON.parse(JSON.stringify(body), value)), response);
  };
  Object.defineProperty(Notification, "permission", { get: () => "default" });
  document.addEventListener("DOMContentLoaded", () => {
    document.documentElement.style.setProperty("--font", '"DejaVu Sans"');
    document.documentElement.style.setProperty("--mono", '"DejaVu Sans Mono"');
  });

  /** Sets times and durations of what is drawn, and stops what moves. */
  window.steady = () => {
    document.querySelectorAll("time").forEach((it) => { it.textContent = "1 min"; });
    const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (nodes.nextNode()) {
      const was = nodes.currentNode.data;
      const is = was.replace(/\b\d+ min \d+ s\b/g, "9 min 50 s").replace(/\b\d+\.\d s\b/g, "0.4 s");
      if (is !== was) nodes.currentNode.data = is;
    }
    document.querySelectorAll(".pulse, .spinner").forEach((it) => { it.style.animation = "none"; });
  };
})();
