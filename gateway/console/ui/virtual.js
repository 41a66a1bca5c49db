/**
 * A list that draws only what is near the window: however many items there are, the number of elements is bounded.
 * Heights are measured when drawn and guessed before. The place of what is read stays when something above changes.
 */
import { html, useEffect, useLayoutEffect, useRef, useState } from "./base.js";

/** A row, and its distance from the window's top. @typedef {{ id: string, offset: number }} Anchor */

/** Distance beyond the window that is drawn, in pixels. */
const MARGIN = 600;
/** Distance from the end that still counts as the end, in pixels. */
const END = 48;

/**
 * Returns the range of items that a window shows, and the heights before and behind it.
 *
 * @param {number[]} heights
 * @param {number} top
 * @param {number} height
 */
export function visibleRange(heights, top, height) {
  let [before, start] = [0, 0];
  while (start < heights.length && before + (heights[start] ?? 0) < top - MARGIN) before += heights[start++] ?? 0;
  let [end, shown] = [start, 0];
  while (end < heights.length && before + shown < top + height + MARGIN) shown += heights[end++] ?? 0;
  let behind = 0;
  for (let at = end; at < heights.length; at += 1) behind += heights[at] ?? 0;
  return { start, end, before, behind };
}

/**
 * @param {{ items: { id: string }[], guess: (item: any) => number, render: (item: any, index: number) => any, label: string,
 *   onTop?: () => void, header?: any, footer?: any, jump?: any }} props
 */
export function VirtualList({ items, guess, render, label, onTop, header, footer, jump }) {
  const list = useScroller(items, onTop, jump);
  const heights = items.map((item) => list.measured.get(item.id) ?? guess(item));
  const { start, end, before, behind } = list.range(heights);
  return html`<div class="scroll-frame">
    <div class="scroll" ref=${list.root} onScroll=${list.onScroll} tabindex="0" role="region" aria-label=${label}>
      <div class="rows">
        ${start === 0 ? header : null}
        <div class="gap" style=${{ height: `${before}px` }}></div>
        ${items.slice(start, end).map((item, offset) => html`<div class="row-slot" key=${item.id} data-row=${item.id}>
          ${render(item, start + offset)}</div>`)}
        <div class="gap" style=${{ height: `${behind}px` }}></div>
        ${footer}
      </div>
    </div>
    ${list.atEnd ? null : html`<button type="button" class="to-end button" onClick=${list.toEnd}>Latest</button>`}
  </div>`;
}

/**
 * The state of scrolling: the place, the heights that were measured, and whether the end is followed.
 *
 * @param {{ id: string }[]} items
 * @param {(() => void) | undefined} onTop
 * @param {any} jump Goes to the end when it changes.
 */
function useScroller(items, onTop, jump) {
  const root = useRef(/** @type {HTMLElement | null} */ (null));
  const measured = useRef(/** @type {Map<string, number>} */ (new Map())).current;
  const follows = useRef(true);
  const anchor = useRef(/** @type {Anchor | null} */ (null));
  const [view, setView] = useState({ top: 1e9, height: 800 });
  const [atEnd, setAtEnd] = useState(true);
  const [, draw] = useState(0);
  const again = () => draw((/** @type {number} */ n) => n + 1);
  const keep = () => keepPlace(/** @type {HTMLElement} */ (root.current), follows.current, anchor);

  useLayoutEffect(() => {
    if (measure(/** @type {HTMLElement} */ (root.current), measured)) again();
    if (measured.size > items.length * 2 + 500) prune(measured, items);
    keep();
  });
  useEffect(() => {
    const list = /** @type {HTMLElement} */ (root.current);
    const observer = new ResizeObserver(() => {
      again();
      keep();
    });
    observer.observe(list);
    // Rows grow when their details are opened.
    const inner = list.querySelector(".rows");
    if (inner) observer.observe(inner);
    return () => observer.disconnect();
  }, []);
  // A short list has nothing to scroll, so that no event would ask for what is older.
  useEffect(() => {
    if ((root.current?.scrollTop ?? 0) < MARGIN) onTop?.();
  }, [items.length]);
  const toEnd = () => {
    follows.current = true;
    setView({ top: 1e9, height: root.current?.clientHeight ?? 800 });
    again();
  };
  useEffect(toEnd, [jump]);

  const onScroll = () => {
    const list = root.current;
    // The browser delivers a scroll that was under way when the list was taken away.
    if (!list) return;
    const { scrollTop: top, clientHeight: height } = list;
    follows.current = list.scrollHeight - top - height < END;
    if (follows.current !== atEnd) setAtEnd(follows.current);
    anchor.current = follows.current ? null : firstVisible(list);
    setView((/** @type {any} */ old) => (Math.abs(old.top - top) < 100 && old.height === height ? old : { top, height }));
    if (top < MARGIN) onTop?.();
  };
  const range = (/** @type {number[]} */ heights) => {
    const total = heights.reduce((sum, height) => sum + height, 0);
    const top = follows.current ? total : topOf(items, heights, anchor.current) ?? view.top;
    return visibleRange(heights, Math.max(0, Math.min(top, total - view.height)), view.height);
  };
  return { root, measured, atEnd, toEnd, onScroll, range };
}

/** Measures the rows that are drawn; true if a height has changed. @param {HTMLElement} list @param {Map<string, number>} measured */
function measure(list, measured) {
  let changed = false;
  for (const row of /** @type {NodeListOf<HTMLElement>} */ (list.querySelectorAll("[data-row]"))) {
    const { height } = row.getBoundingClientRect();
    const id = row.dataset["row"] ?? "";
    if (Math.abs((measured.get(id) ?? -1) - height) <= 0.5) continue;
    measured.set(id, height);
    changed = true;
  }
  return changed;
}

/**
 * Scrolls so that the end stays the end, or the anchor where it was.
 *
 * @param {HTMLElement} list
 * @param {boolean} follows
 * @param {{ current: Anchor | null }} anchor
 */
function keepPlace(list, follows, anchor) {
  if (follows) {
    if (list.scrollHeight - list.scrollTop - list.clientHeight > 1) list.scrollTop = list.scrollHeight;
    return;
  }
  const held = anchor.current;
  const row = held && list.querySelector(`[data-row="${CSS.escape(held.id)}"]`);
  if (!held || !row) {
    anchor.current = firstVisible(list);
    return;
  }
  const offset = row.getBoundingClientRect().top - list.getBoundingClientRect().top;
  if (Math.abs(offset - held.offset) > 1) list.scrollTop += offset - held.offset;
}

/**
 * Returns the distance from the first item to the window, as far as the row that keeps its place tells it.
 *
 * @param {{ id: string }[]} items
 * @param {number[]} heights
 * @param {Anchor | null} anchor
 */
function topOf(items, heights, anchor) {
  const index = anchor ? items.findIndex((item) => item.id === anchor.id) : -1;
  if (!anchor || index < 0) return null;
  let before = 0;
  for (let at = 0; at < index; at += 1) before += heights[at] ?? 0;
  return before - anchor.offset;
}

/** @param {Map<string, number>} measured @param {{ id: string }[]} items */
function prune(measured, items) {
  const known = new Set(items.map((item) => item.id));
  for (const id of measured.keys()) if (!known.has(id)) measured.delete(id);
}

/** Returns the first row in the window and its place. @param {HTMLElement} list */
function firstVisible(list) {
  const { top } = list.getBoundingClientRect();
  for (const row of /** @type {NodeListOf<HTMLElement>} */ (list.querySelectorAll("[data-row]"))) {
    const box = row.getBoundingClientRect();
    if (box.bottom > top + 1) return { id: row.dataset["row"] ?? "", offset: box.top - top };
  }
  return null;
}
