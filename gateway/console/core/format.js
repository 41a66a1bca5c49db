/** Numbers, times and paths for people. */

/** Maximum length of a session's name, as the gateway has it. */
export const LABEL_CHARS_MAX = 100;

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/**
 * Formats how long ago something was: `now`, `5 min`, `3 h`, `2 d`, else the date.
 *
 * @param {number} at Milliseconds since the epoch.
 * @param {number} now
 */
export function ago(at, now) {
  const gone = Math.max(0, now - at);
  if (gone < MINUTE) return "now";
  if (gone < HOUR) return `${Math.floor(gone / MINUTE)} min`;
  if (gone < DAY) return `${Math.floor(gone / HOUR)} h`;
  if (gone < 7 * DAY) return `${Math.floor(gone / DAY)} d`;
  return new Date(at).toLocaleDateString();
}

/** Formats a duration: `0.4 s`, `12 s`, `3 min 5 s`, `2 h 10 min`. @param {number} ms */
export function duration(ms) {
  if (ms < 10_000) return `${(Math.max(0, ms) / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return seconds % 60 ? `${minutes} min ${seconds % 60} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** Formats a count with three digits: `950`, `12.3k`, `4.1M`. @param {number} count */
export function count(count) {
  if (!Number.isFinite(count)) return "–";
  if (count < 1000) return String(count);
  const [size, unit] = count < 1_000_000 ? [count / 1000, "k"] : [count / 1_000_000, "M"];
  return `${size < 100 ? Number(size.toFixed(1)) : Math.round(size)}${unit}`;
}

/** Formats a size: `512 B`, `3.2 KiB`, `7 MiB`. @param {number} bytes */
export function bytes(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  let size = bytes;
  for (const unit of ["KiB", "MiB", "GiB", "TiB"]) {
    size /= 1024;
    if (size < 1024) return `${size < 10 ? Number(size.toFixed(1)) : Math.round(size)} ${unit}`;
  }
  return `${Math.round(size / 1024)} PiB`;
}

/** Formats a time of day today, else with the date. @param {number} at @param {number} now */
export function clock(at, now) {
  const date = new Date(at);
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return date.toDateString() === new Date(now).toDateString() ? time : `${date.toLocaleDateString()} ${time}`;
}

/** Formats date and time in full. @param {number | null | undefined} at */
export function dateTime(at) {
  return at ? new Date(at).toLocaleString() : "–";
}

/** Returns the last name of a path. @param {string} path */
export function baseName(path) {
  const trimmed = path.replace(/\/+$/, "");
  return trimmed.slice(trimmed.lastIndexOf("/") + 1) || "/";
}

/** Shortens a path from its start, since its end names the file. @param {string} path @param {number} max */
export function shortPath(path, max = 48) {
  return path.length <= max ? path : `…${path.slice(path.length - max + 1)}`;
}

/** @param {number} count @param {string} one @param {string} [many] */
export function plural(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}
