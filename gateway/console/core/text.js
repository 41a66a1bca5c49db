/**
 * Text of agents and people, made safe to show: without terminal sequences, with control characters that can be seen,
 * without halves of characters. Everything here returns text, never markup.
 */

/** Maximum length of a line that is shown at once, in characters. */
export const LINE_CHARS_MAX = 4_000;
/** Maximum length of a text that is shown at once, in characters. */
export const TEXT_CHARS_MAX = 20_000;

// Sequences of terminals: CSI, OSC and other strings up to their end, then two-character escapes.
const TERMINAL_SEQUENCE = new RegExp(
  [
    "\\u001b\\[[0-?]*[ -/]*[@-~]",
    "\\u009b[0-?]*[ -/]*[@-~]",
    "\\u001b[\\]PX^_][^\\u0007\\u001b\\u009c]{0,4096}(?:\\u0007|\\u001b\\\\|\\u009c)",
    "\\u001b[ -/]*[0-~]",
  ].join("|"),
  "g",
);

// Characters that change the direction of text, or that nobody sees. The joiners of emoji and scripts stay.
const HIDDEN = /[\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]/g;
// Half of a character that needs two code units.
const HALF = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
// eslint-disable-next-line no-control-regex
const CONTROL = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]/g;
// eslint-disable-next-line no-control-regex
const SUSPICIOUS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb]/;

/** @param {string} char */
function escaped(char) {
  return `\\u{${(char.codePointAt(0) ?? 0).toString(16)}}`;
}

/** @param {string} char */
function pictured(char) {
  const code = char.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return escaped(char);
}

/**
 * Returns text with terminal sequences removed, line ends unified, controls and invisible characters made visible.
 *
 * @param {unknown} value
 * @returns {string}
 */
export function clean(value) {
  const text = typeof value === "string" ? value : value == null ? "" : String(value);
  if (!SUSPICIOUS.test(text)) return text;
  return overwritten(text.replace(TERMINAL_SEQUENCE, ""))
    .replace(HALF, "\ufffd")
    .replace(CONTROL, pictured)
    .replace(HIDDEN, escaped);
}

/**
 * Returns the text as a terminal would leave it after carriage returns: what was overwritten is gone.
 *
 * @param {string} text
 */
function overwritten(text) {
  if (!text.includes("\r")) return text;
  return text
    .split("\n")
    .map((line) => {
      let end = line.length;
      while (end > 0 && line.charCodeAt(end - 1) === 13) end -= 1;
      return line.slice(end > 0 ? line.lastIndexOf("\r", end - 1) + 1 : 0, end);
    })
    .join("\n");
}

/**
 * Returns text in one line of at most `max` characters, with an ellipsis for what was cut.
 *
 * @param {unknown} value
 * @param {number} max
 */
export function oneLine(value, max = 200) {
  const text = typeof value === "string" ? value : value == null ? "" : String(value);
  const line = clean(text.slice(0, max * 4)).replace(/\s+/g, " ").trim();
  return line.length > max || text.length > max * 4 ? `${head(line, max - 1)}…` : line;
}

/**
 * Returns the first `max` code units, without the half of a character at the end.
 *
 * @param {string} text
 * @param {number} max
 */
export function head(text, max) {
  if (text.length <= max) return text;
  const code = text.charCodeAt(max - 1);
  return text.slice(0, code >= 0xd800 && code < 0xdc00 ? max - 1 : max);
}

/** True if a line of the text is too long to be laid out at once. @param {string} text */
export function hasLongLine(text) {
  let from = 0;
  while (text.length - from > LINE_CHARS_MAX) {
    const end = text.indexOf("\n", from);
    if (end < 0 || end - from > LINE_CHARS_MAX) return true;
    from = end + 1;
  }
  return false;
}

/**
 * Returns JSON of an agent as indented text; other text as it is.
 *
 * @param {unknown} value
 */
export function prettyJson(value) {
  if (typeof value === "string") {
    const start = value.trimStart().charAt(0);
    if ((start !== "{" && start !== "[") || value.length > 200_000) return value;
    try {
      return JSON.stringify(JSON.parse(value), null, 2);
    } catch {
      return value;
    }
  }
  try {
    return JSON.stringify(value, null, 2) ?? "";
  } catch {
    return "";
  }
}
