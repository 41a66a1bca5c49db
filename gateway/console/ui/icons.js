/** Icons, drawn with lines on a grid of 24. */
import { html } from "../vendor/preact.js";

/** @type {Record<string, string>} */
const PATHS = {
  alert: "M12 8v5m0 3.2v.1M10.3 4 2.9 17a2 2 0 0 0 1.7 3h14.8a2 2 0 0 0 1.7-3L13.7 4a2 2 0 0 0-3.4 0Z",
  agent: "M12 4v3M7 7h10a3 3 0 0 1 3 3v6a3 3 0 0 1-3 3H7a3 3 0 0 1-3-3v-6a3 3 0 0 1 3-3Zm2 5v2m6-2v2",
  audit: "M8 4h8l4 4v12H4V4h4Zm0 8h8m-8 4h5",
  back: "m14 6-6 6 6 6",
  bell: "M6 16v-5a6 6 0 1 1 12 0v5l1.5 2h-15L6 16Zm4 4.5a2.2 2.2 0 0 0 4 0",
  check: "m5 13 4 4L19 7",
  chevron: "m8 10 4 4 4-4",
  clip: "m19 11-7.5 7.5a4.5 4.5 0 0 1-6.4-6.4L13 4.2a3 3 0 0 1 4.3 4.3l-7.8 7.7a1.5 1.5 0 0 1-2.2-2.1L14 7.5",
  clock: "M12 7v5l3.5 2M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18Z",
  close: "M6 6l12 12M18 6 6 18",
  copy: "M9 9h10v11H9zM5 15V4h10",
  dot: "M12 12v.01",
  down: "M12 5v14m-6-6 6 6 6-6",
  edit: "M4 20h4L19.5 8.500a2.100 2.100 0 0 0-4-4L4 16v4Z",
  file: "M6 3h8l5 5v13H6zM14 3v5h5",
  folder: "M3 6h6l2 2h10v11H3z",
  globe: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18Zm-9 9h18M12 3c3 3 3 15 0 18M12 3c-3 3-3 15 0 18",
  health: "M3 12h4l2.500-6 4 12L16 12h5",
  inbox: "M4 13 6.500 5h11L20 13v6H4v-6Zm0 0h5l1 2h4l1-2h5",
  key: "M14.500 14a5 5 0 1 0-4.600-3.100L3 18v3h3.500v-2.500H9V16l2.500-2.200a5 5 0 0 0 3 .2ZM16 8h.01",
  list: "M8 6h12M8 12h12M8 18h12M4 6h.01M4 12h.01M4 18h.01",
  lock: "M6 11h12v9H6zM8.500 11V8a3.500 3.500 0 0 1 7 0v3",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  out: "M10 4H5v16h5M14 8l4 4-4 4M18 12H9",
  plan: "m4 7 1.500 1.500L8 6m3 1h9M4 13l1.500 1.500L8 12m3 1h9M4 19l1.500 1.500L8 18m3 1h9",
  plus: "M12 5v14M5 12h14",
  process: "M4 4h7v7H4zM13 13h7v7h-7zM7.500 11v5.500H13",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14Zm5 12 4.500 4.500",
  send: "M12 19V5m-6 6 6-6 6 6",
  settings: "M4 7h10m4 0h2M4 17h2m4 0h10M16 4.800v4.400M8 14.800v4.400",
  spinner: "M12 3a9 9 0 1 1-9 9",
  steer: "M5 19c0-8 4-11 13-11m-4-4 4 4-4 4",
  stop: "M7 7h10v10H7z",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8Zm0-5v1.500M12 19.500V21M4.500 12H3m18 0h-1.500M6.500 6.500l-1-1m13 13-1-1m0-11 1-1m-13 13 1-1",
  terminal: "m5 7 5 5-5 5m7 0h7",
  thought: "M9 18h6m-5 3h4M12 3a6 6 0 0 0-3.500 10.900c.6.500 1 1.200 1 2.100h5c0-.9.4-1.600 1-2.100A6 6 0 0 0 12 3Z",
  tool: "M14.500 6.500a4 4 0 0 0-5.300 5L4 16.700 7.300 20l5.200-5.200a4 4 0 0 0 5-5.300L15 12l-3-3 2.500-2.500Z",
  trash: "M5 7h14M9 7V4h6v3m-8 0 1 13h8l1-13",
  user: "M12 4a4 4 0 1 0 0 8 4 4 0 0 0 0-8Zm-7 16c.6-4 3.500-5.500 7-5.500s6.400 1.500 7 5.500",
};

/** @param {{ name: string }} props */
export function Icon({ name }) {
  const isDots = name === "more" || name === "dot";
  return html`<svg class="icon ${name === "spinner" ? "spin" : ""}" viewBox="0 0 24 24" width="20" height="20" fill="none"
    stroke="currentColor" stroke-width=${isDots ? "3" : "1.800"} stroke-linecap="round" stroke-linejoin="round"
      aria-hidden="true" focusable="false">
    <path d=${PATHS[name] ?? PATHS["dot"]} /></svg>`;
}
