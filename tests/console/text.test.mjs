import assert from "node:assert/strict";
import { test } from "node:test";
import { clean, hasLongLine, head, oneLine } from "../../gateway/console/core/text.js";

test("terminal_sequences_are_removed_and_controls_become_visible", () => {
  const table = [
    ["plain é 😀 \u200d👩", "plain é 😀 \u200d👩"],
    ["\u001b[1;31mred\u001b[0m", "red"],
    ["\u001b]0;title\u0007after", "after"],
    ["\u001b]8;;javascript:x\u001b\\link\u001b]8;;\u001b\\", "link"],
    ["\u009b31mred", "red"],
    ["\u001b", "\u241b"],
    ["a\u0000b\u0007\u007f", "a\u2400b\u2407\u2421"],
    ["50%\r100%\ndone\r\n", "100%\ndone\n"],
    ["abc\u202etxt.exe", "abc\\u{202e}txt.exe"],
    ["a\u2066b\u200b\ufeff", "a\\u{2066}b\\u{200b}\\u{feff}"],
    ["\ud83dx\ude00", "\ufffdx\ufffd"],
    ["tab\tstays", "tab\tstays"],
    [null, ""],
    [7, "7"],
  ];
  for (const [input, want] of table) assert.equal(clean(input), want, JSON.stringify(input));
});

test("cleaned_text_has_nothing_hidden_and_stays_clean", () => {
  let seed = 7;
  const random = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
  const pool = ["\u001b", "[", "3", "m", "]", "\u0007", "\\", "\r", "\n", "a", "\u202e", "\ud83d", "\ude00", "\u200d", "\u009b", "\u0085", "é"];
  for (let round = 0; round < 5_000; round += 1) {
    const text = Array.from({ length: 12 }, () => pool[Math.floor(random() * pool.length)]).join("");
    const out = clean(text);
    assert.doesNotMatch(out, /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/, JSON.stringify(text));
    assert.ok(out.isWellFormed?.() ?? true, JSON.stringify(text));
    assert.equal(clean(out), out, JSON.stringify(text));
  }
});

test("hostile_text_is_cleaned_in_linear_time", () => {
  for (const text of ["\u001b]".repeat(300_000), "\u001b[".repeat(300_000), "\r".repeat(500_000), "\ud800".repeat(500_000), "\u001bP".repeat(300_000)]) {
    const start = performance.now();
    clean(text);
    assert.ok(performance.now() - start < 4_000, `${JSON.stringify(text.slice(0, 2))} took ${performance.now() - start} ms`);
  }
});

test("cuts_never_halve_a_character", () => {
  assert.equal(head("ab😀", 3), "ab");
  assert.equal(head("ab😀", 4), "ab😀");
  assert.equal(oneLine("  a\n b\t c "), "a b c");
  assert.equal(oneLine("x".repeat(5_000_000), 10), `${"x".repeat(9)}…`);
  assert.equal(hasLongLine(`${"x\n".repeat(10_000)}`), false);
  assert.equal(hasLongLine(`a\n${"x".repeat(5_000)}\n`), true);
});
