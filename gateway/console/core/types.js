/**
 * Types of the API that several modules use. Members are those of `/v1/openapi.json`; agents may leave out what they
 * do not know.
 *
 * @typedef {"creating" | "idle" | "running" | "cancelling" | "error" | "closed"} SessionState
 * @typedef {{ code: string, message: string, retryable?: boolean, detail_code?: string }} Failure
 * @typedef {{ current?: string, values?: string[] }} Choices
 * @typedef {Choices & { id: string, category?: string, is_boolean?: boolean }} ConfigOption
 * @typedef {{ name: string, description?: string, hint?: string }} AgentCommand
 * @typedef {{ modes?: Choices, models?: Choices, options?: ConfigOption[], commands?: AgentCommand[] }} AgentSettings
 *
 * @typedef {object} RunView
 * @property {string} run_id
 * @property {"prompt" | "steer"} mode
 * @property {"queued" | "running" | "completed" | "failed" | "cancelled"} state
 * @property {number} [position]
 * @property {string} text
 * @property {string} author
 * @property {number} created_at_ms
 * @property {number | null} [started_at_ms]
 * @property {number | null} [ended_at_ms]
 *
 * @typedef {object} SessionView
 * @property {string} session_key
 * @property {string} agent
 * @property {SessionState} state
 * @property {string} [ending]
 * @property {string | null} [label]
 * @property {string} cwd
 * @property {string} mode
 * @property {string} permission
 * @property {string} [voting]
 * @property {string | null} [mode_id]
 * @property {string | null} [model]
 * @property {AgentSettings} [agent_settings]
 * @property {string[]} [additional_directories]
 * @property {string | null} [parent_session_key]
 * @property {string | null} [spawned_by]
 * @property {string | null} [lease_id]
 * @property {boolean} [resumable]
 * @property {number} last_session_seq
 * @property {number} [pruned_seq]
 * @property {number} created_at_ms
 * @property {number} last_activity_at_ms
 * @property {Failure | null} [last_error]
 * @property {string | null} [active_run]
 * @property {number} [queued_runs]
 * @property {{ channel: string, conversation_id: string, status: string }[]} [bindings]
 * @property {RunView[]} [runs]
 * @property {PermissionView[]} [permissions]
 *
 * @typedef {{ option_id: string, name?: string | null, kind?: string | null }} OptionView
 *
 * @typedef {object} FormField
 * @property {string} name
 * @property {string} type
 * @property {string} [title]
 * @property {string} [description]
 * @property {boolean} required
 * @property {unknown} [default]
 * @property {string} [format]
 * @property {number} [min_length]
 * @property {number} [max_length]
 * @property {number} [minimum]
 * @property {number} [maximum]
 * @property {{ value: string, title?: string, description?: string }[]} [choices]
 *
 * @typedef {{ message: string, mode: "form" | "url", fields?: FormField[], url?: string, host?: string }} Elicitation
 *
 * @typedef {object} PermissionView
 * @property {string} permission_id
 * @property {string} [session_key]
 * @property {string | null} [run_id]
 * @property {string} title
 * @property {string | null} [subject]
 * @property {string | null} [kind]
 * @property {any} [tool_call]
 * @property {OptionView[]} options
 * @property {Elicitation} [form]
 * @property {number} created_at_ms
 * @property {number | null} [deadline_at_ms]
 *
 * @typedef {Record<string, any> & { session_key: string, session_seq: number, run_id: string | null, type: string,
 *   created_at_ms: number }} EventLine
 *
 * @typedef {"read" | "prompt" | "approve" | "admin"} Scope
 * @typedef {{ token: string, name: string, scope: Scope, expires_at_ms: number | null, console: boolean,
 *   isLimited: boolean }} Login
 */
export {};
