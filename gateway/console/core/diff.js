/**
 * Differences of texts, line by line, and the parts of a unified diff.
 *
 * @typedef {{ kind: " " | "+" | "-" | "@", text: string, old?: number, new?: number }} DiffLine
 * @typedef {{ path: string, lines: DiffLine[], added: number, removed: number }} FileDiff
 */

/** Maximum number of edits that are searched; larger changes are shown as a replacement. */
const EDITS_MAX = 400;
/** Unchanged lines around a change. */
const CONTEXT = 3;

/**
 * Compares two texts and returns the changed lines with some context.
 *
 * @param {string | null | undefined} before
 * @param {string} after
 * @returns {DiffLine[]}
 */
export function diffLines(before, after) {
  const a = split(before ?? "");
  const b = split(after);
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const script = edits(a.slice(start, a.length - end), b.slice(start, b.length - end));
  /** @type {DiffLine[]} */
  const all = [];
  let [oldNumber, newNumber] = [1, 1];
  const push = (/** @type {" " | "+" | "-"} */ kind, /** @type {string} */ text) => {
    all.push({ kind, text, ...(kind === "+" ? {} : { old: oldNumber }), ...(kind === "-" ? {} : { new: newNumber }) });
    if (kind !== "+") oldNumber += 1;
    if (kind !== "-") newNumber += 1;
  };
  for (const text of a.slice(0, start)) push(" ", text);
  for (const { kind, text } of script) push(kind, text);
  for (const text of a.slice(a.length - end)) push(" ", text);
  return end === 0 && a.length === 0 && b.length === 0 ? [] : withContext(all);
}

/** @param {string} text */
function split(text) {
  if (text === "") return [];
  const lines = text.split("\n");
  if (lines[lines.length - 1] === "") lines.pop();
  return lines;
}

/** @param {DiffLine[]} all @returns {DiffLine[]} */
function withContext(all) {
  const near = new Uint8Array(all.length);
  all.forEach((line, at) => {
    if (line.kind === " ") return;
    for (let i = Math.max(0, at - CONTEXT); i <= Math.min(all.length - 1, at + CONTEXT); i += 1) near[i] = 1;
  });
  /** @type {DiffLine[]} */
  const out = [];
  let skipped = 0;
  all.forEach((line, at) => {
    if (!near[at]) {
      skipped += 1;
      return;
    }
    if (skipped > 0) out.push({ kind: "@", text: skipped === 1 ? "1 unchanged line" : `${skipped} unchanged lines` });
    skipped = 0;
    out.push(line);
  });
  return out;
}

/**
 * Finds a shortest script of edits with the algorithm of Myers.
 *
 * @param {string[]} a
 * @param {string[]} b
 * @returns {{ kind: " " | "+" | "-", text: string }[]}
 */
function edits(a, b) {
  const replaced = () => [
    ...a.map((text) => ({ kind: /** @type {"-"} */ ("-"), text })),
    ...b.map((text) => ({ kind: /** @type {"+"} */ ("+"), text })),
  ];
  if (a.length === 0 || b.length === 0) return replaced();
  const max = Math.min(EDITS_MAX, a.length + b.length);
  const offset = max + 1;
  const furthest = new Int32Array(2 * max + 3);
  const trace = [];
  for (let d = 0; d <= max; d += 1) {
    trace.push(furthest.slice(offset - d - 1, offset + d + 2));
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && at(furthest, offset + k - 1) < at(furthest, offset + k + 1));
      let x = down ? at(furthest, offset + k + 1) : at(furthest, offset + k - 1) + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x += 1;
      furthest[offset + k] = x;
      if (x >= a.length && x - k >= b.length) return walk(trace, a, b);
    }
  }
  return replaced();
}

/** @param {Int32Array} array @param {number} index */
function at(array, index) {
  return array[index] ?? 0;
}

/** @param {Int32Array[]} trace @param {string[]} a @param {string[]} b */
function walk(trace, a, b) {
  /** @type {{ kind: " " | "+" | "-", text: string }[]} */
  const script = [];
  let [x, y] = [a.length, b.length];
  for (let d = trace.length - 1; d >= 0; d -= 1) {
    const before = /** @type {Int32Array} */ (trace[d]);
    const value = (/** @type {number} */ k) => at(before, k + d + 1);
    const k = x - y;
    const down = k === -d || (k !== d && value(k - 1) < value(k + 1));
    const fromK = down ? k + 1 : k - 1;
    const fromX = d === 0 ? 0 : value(fromK);
    const fromY = d === 0 ? 0 : fromX - fromK;
    while (x > fromX && y > fromY) {
      script.push({ kind: " ", text: a[x - 1] ?? "" });
      [x, y] = [x - 1, y - 1];
    }
    if (d === 0) break;
    if (down) script.push({ kind: "+", text: b[y - 1] ?? "" });
    else script.push({ kind: "-", text: a[x - 1] ?? "" });
    [x, y] = [fromX, fromY];
  }
  return script.reverse();
}

/** Counts the changed lines. @param {DiffLine[]} lines */
export function changes(lines) {
  const of = (/** @type {string} */ kind) => lines.filter((line) => line.kind === kind).length;
  return { added: of("+"), removed: of("-") };
}

/**
 * Splits a unified diff into its files.
 *
 * @param {string} text
 * @returns {FileDiff[]}
 */
export function parseUnified(text) {
  /** @type {FileDiff[]} */
  const files = [];
  /** @type {FileDiff | null} */
  let file = null;
  let [oldNumber, newNumber, left] = [0, 0, 0];
  let before = "";
  for (const line of text.split("\n")) {
    if (left <= 0 && line.startsWith("--- ")) {
      before = pathOf(line);
    } else if (left <= 0 && line.startsWith("+++ ")) {
      const after = pathOf(line);
      file = { path: after === "/dev/null" ? before : after, lines: [], added: 0, removed: 0 };
      files.push(file);
    } else if (left <= 0 && line.startsWith("# ")) {
      file = { path: line.slice(2), lines: [], added: 0, removed: 0 };
      files.push(file);
    } else if (file && line.startsWith("@@")) {
      const numbers = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/.exec(line);
      [oldNumber, newNumber] = [Number(numbers?.[1] ?? 1), Number(numbers?.[3] ?? 1)];
      left = Number(numbers?.[2] ?? 1) + Number(numbers?.[4] ?? 1);
      file.lines.push({ kind: "@", text: line });
    } else if (file && left > 0 && line.startsWith("+")) {
      file.lines.push({ kind: "+", text: line.slice(1), new: newNumber++ });
      file.added += 1;
      left -= 1;
    } else if (file && left > 0 && line.startsWith("-")) {
      file.lines.push({ kind: "-", text: line.slice(1), old: oldNumber++ });
      file.removed += 1;
      left -= 1;
    } else if (file && left > 0 && !line.startsWith("\\")) {
      file.lines.push({ kind: " ", text: line.slice(1), old: oldNumber++, new: newNumber++ });
      left -= 2;
    }
  }
  return files;
}

/** @param {string} line */
function pathOf(line) {
  const path = line.slice(4).replace(/\t.*$/, "").trim();
  return /^[ab]\//.test(path) ? path.slice(2) : path;
}
