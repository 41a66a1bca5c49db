import assert from "node:assert/strict";
import { test } from "node:test";
import { visibleRange } from "../../gateway/console/ui/virtual.js";

test("the_range_covers_the_window_and_little_more", () => {
  const heights = Array.from({ length: 10_000 }, (_, i) => 20 + (i * 7919) % 90);
  const total = heights.reduce((sum, height) => sum + height, 0);
  for (let top = 0; top < total; top += 9_973) {
    const { start, end, before, behind } = visibleRange(heights, top, 800);
    const shown = heights.slice(start, end).reduce((sum, height) => sum + height, 0);
    assert.equal(before + shown + behind, total);
    assert.ok(before <= top && before + shown >= Math.min(total, top + 800), `${top}`);
    assert.ok(end - start < 130, `${end - start} rows`);
  }
  assert.deepEqual(visibleRange([], 0, 800), { start: 0, end: 0, before: 0, behind: 0 });
});
