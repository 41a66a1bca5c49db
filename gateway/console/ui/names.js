/** Names of sessions, states and modes for people. */
import { baseName } from "../core/format.js";
import { groupOf } from "../core/state.js";
import { Badge, html, shared } from "./base.js";

/** @typedef {import("../core/types.js").SessionView} SessionView */

/** @type {Record<string, [string, string]>} */
const STATES = {
  needs: ["needs", "needs you"], running: ["running", "running"], idle: ["neutral", "idle"], failed: ["failed", "failed"], closed: ["neutral", "closed"],
};

/** Name of a session for people. @param {SessionView} session */
export function titleOf(session) {
  return session.label || baseName(session.cwd);
}

/** @param {{ session: SessionView }} props */
export function StateBadge({ session }) {
  const asks = [...shared.console.state.permissions.values()].some((row) => row.session_key === session.session_key);
  const group = groupOf(session, asks);
  const [tone, name] = STATES[group] ?? ["neutral", group];
  return html`<${Badge} tone=${tone}>
    ${session.state === "cancelling" ? "stopping" : session.state === "creating" ? "starting" : name}</${Badge}>`;
}

/** Permission modes with what they mean. @type {[string, string, string][]} */
export const PERMISSION_MODES = [
  ["ask", "Ask", "You decide about every request."],
  ["approve-reads", "Allow reading", "Reading and searching are allowed; you decide the rest."],
  ["approve-all", "Allow everything", "Every request is allowed without a question."],
  ["deny-all", "Deny everything", "Every request is denied without a question."],
];
