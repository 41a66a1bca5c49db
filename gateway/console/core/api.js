/**
 * Client of `/v1`. Errors keep the code of the gateway and say the next step.
 */

/** @typedef {{ method?: string, body?: unknown, key?: string, signal?: AbortSignal, headers?: Record<string, string>, token?: string | null }} RequestOptions */

/** Next steps by code, for people. @type {Record<string, string>} */
const NEXT_STEPS = {
  ACP_AUTH_REQUIRED: "Sign the agent in on the gateway's machine, then send the prompt again.",
  ACP_AGENT_NOT_ALLOWED: "Choose another agent, or add it to acp.allowed_agents in the configuration.",
  ACP_CWD_NOT_ALLOWED: "Choose a directory beneath one of the allowed roots (acp.allowed_roots).",
  ACP_LIMIT_REACHED: "Wait for a turn to end or close a session, then try again.",
  ACP_SESSION_CLOSED: "Start a new session; the history of this one stays readable.",
  ACP_RESUME_UNAVAILABLE: "Begin a new conversation in this session, then send the prompt again.",
  ACP_IDEMPOTENCY_CONFLICT: "Reload the page to see what was sent, then send the changed text again.",
  ACP_DISPATCH_DISABLED: "An operator must set acp.dispatch.enabled.",
  ACP_NOT_OWNER: "Sign in with a token of a wider scope.",
  ACP_STORE_UNAVAILABLE: "Free disk space on the gateway's machine; see Health.",
  ACP_BACKEND_UNAVAILABLE: "Look at Health; the gateway retries by itself.",
  ACP_SESSION_INIT_FAILED: "Read the agent's log on the session's page, then send a prompt to retry.",
  ACP_UNCERTAIN: "Look at the transcript to see if the agent did it, before you send it again.",
  CURSOR_PRUNED: "Older events were pruned; reload the page.",
  NO_SESSION: "Go back to the list; the session may have been deleted.",
  GATEWAY_UNAVAILABLE: "Wait a moment; the page reconnects by itself.",
  PERMISSION_NOT_PENDING: "Somebody else, or the deadline, has answered it.",
  UNREACHABLE: "Check the network and that the gateway runs; the page retries by itself.",
};

export class ApiError extends Error {
  /**
   * @param {number} status HTTP status; 0 if there was no response.
   * @param {string} code
   * @param {string} message
   * @param {{ retryable?: boolean, detail?: string, retryAfterMs?: number }} [more]
   */
  constructor(status, code, message, more = {}) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.detail = more.detail ?? null;
    this.retryable = more.retryable ?? false;
    this.retryAfterMs = more.retryAfterMs ?? null;
  }

  /** True if it is unknown whether the request had its effect, or if it had none and may be repeated. */
  get isTransient() {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 502 || this.retryable;
  }

  /** Next step for a person; empty if there is none. */
  get nextStep() {
    return NEXT_STEPS[this.detail ?? ""] ?? NEXT_STEPS[this.code] ?? (this.isTransient ? "Try again in a moment." : "");
  }
}

/** @param {unknown} error @returns {ApiError} */
export function asApiError(error) {
  if (error instanceof ApiError) return error;
  const message = error instanceof Error ? error.message : String(error);
  return new ApiError(0, "UNREACHABLE", `The gateway cannot be reached: ${message}`, { retryable: true });
}

/** @param {Response} response */
async function errorOf(response) {
  /** @type {any} */
  let body = null;
  try {
    body = await response.json();
  } catch {
    // A proxy's page, or nothing.
  }
  const seconds = Number(response.headers.get("retry-after"));
  return new ApiError(
    response.status,
    body?.code ?? `HTTP_${response.status}`,
    body?.message ?? `The gateway answered ${response.status} ${response.statusText}.`.trim(),
    {
      retryable: body?.retryable === true,
      detail: body?.detail_code,
      ...(seconds > 0 ? { retryAfterMs: seconds * 1000 } : {}),
    },
  );
}

export class ApiClient {
  /** @param {{ token: () => string | null, onRefused: () => void, fetch?: typeof fetch }} options */
  constructor({ token, onRefused, fetch: fetcher }) {
    this.token = token;
    this.onRefused = onRefused;
    this.fetcher = fetcher ?? ((/** @type {any} */ input, /** @type {any} */ init) => fetch(input, init));
  }

  /**
   * Sends a request and returns the response, whatever its body.
   *
   * @param {string} path
   * @param {RequestOptions} [options]
   * @returns {Promise<Response>}
   */
  async send(path, { method = "GET", body, key, signal, headers = {}, token } = {}) {
    /** @type {Record<string, string>} */
    const all = { ...headers };
    const bearer = token === undefined ? this.token() : token;
    if (bearer) all["authorization"] = `Bearer ${bearer}`;
    if (key) all["idempotency-key"] = key;
    if (body !== undefined) all["content-type"] = "application/json";
    let response;
    try {
      const text = body === undefined ? null : JSON.stringify(body);
      response = await this.fetcher(path, {
        method, headers: all, body: text, cache: "no-store", credentials: "omit", redirect: "error",
        referrerPolicy: "no-referrer", ...(signal ? { signal } : {}),
      });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw asApiError(error);
    }
    if (response.ok) return response;
    const failure = await errorOf(response);
    // A late refusal of a former token says nothing about the present one.
    if (response.status === 401 && token === undefined && bearer === this.token()) this.onRefused();
    throw failure;
  }

  /**
   * Sends a request and returns its JSON.
   *
   * @param {string} path
   * @param {RequestOptions} [options]
   * @returns {Promise<any>}
   */
  async json(path, options = {}) {
    const response = await this.send(path, options);
    if (response.status === 204) return null;
    try {
      return await response.json();
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw asApiError(error);
    }
  }

  /** @param {string} path @param {unknown} body @param {string} [key] */
  post(path, body, key = newKey()) {
    return this.json(path, { method: "POST", body, key });
  }

  /**
   * Sends a modifying request until it is answered: repeated with the same key, it has one effect.
   *
   * @param {string} path
   * @param {unknown} body
   * @param {{ method?: string, key?: string, attempts?: number, signal?: AbortSignal }} [options]
   */
  async persist(path, body, { method = "POST", key = newKey(), attempts = 5, signal } = {}) {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await this.json(path, { method, body, key, ...(signal ? { signal } : {}) });
      } catch (error) {
        const failure = asApiError(error);
        if (!failure.isTransient || attempt >= attempts) throw failure;
        await new Promise((done) => setTimeout(done, failure.retryAfterMs ?? 300 * 2 ** attempt));
      }
    }
  }
}

/** Returns a path below `/v1/sessions`. @param {string} key @param {string} [rest] */
export function sessionPath(key, rest = "") {
  return `/v1/sessions/${encodeURIComponent(key)}${rest}`;
}

/** Returns a query string; members that are undefined are left out. @param {Record<string, unknown>} values */
export function query(values) {
  const pairs = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return pairs.length ? `?${new URLSearchParams(pairs.map(([name, value]) => [name, String(value)]))}` : "";
}

/** Returns 128 random bits as a key. Works without a secure context, too. */
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `console-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
