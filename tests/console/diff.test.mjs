import assert from "node:assert/strict";
import { test } from "node:test";
import { changes, diffLines, parseUnified } from "../../gateway/console/core/diff.js";

const shown = (lines) => lines.map((line) => `${line.kind}${line.text}`).join("\n");

test("changed_lines_are_found_with_their_context", () => {
  const before = Array.from({ length: 20 }, (_, i) => `line ${i}`).join("\n");
  const after = before.replace("line 10", "line ten").replace("line 2\n", "");
  const lines = diffLines(before, after);
  assert.deepEqual(changes(lines), { added: 1, removed: 2 });
  assert.match(shown(lines), /-line 10\n\+line ten/);
  assert.match(shown(lines), /^ line 0\n line 1\n-line 2/);
  assert.match(shown(lines), /@1 unchanged line$/m);
  assert.equal(shown(diffLines(null, "a\nb\n")), "+a\n+b");
  assert.equal(shown(diffLines("a\n", "")), "-a");
  assert.deepEqual(diffLines("", ""), []);
  assert.deepEqual(diffLines("same\n", "same\n"), []);
});

/** Applies a diff without skipped lines. */
function applied(lines, kinds) {
  return lines.filter((line) => kinds.includes(line.kind)).map((line) => line.text);
}

test("any_diff_leads_from_the_old_text_to_the_new_one", () => {
  let seed = 3;
  const random = (n) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
  for (let round = 0; round < 500; round += 1) {
    const a = Array.from({ length: random(6) }, () => "abc"[random(3)]);
    const b = Array.from({ length: random(6) }, () => "abc"[random(3)]);
    const lines = diffLines(a.join("\n"), b.join("\n"));
    if (lines.length === 0) {
      assert.deepEqual(a, b);
      continue;
    }
    if (lines.some((line) => line.kind === "@")) continue;
    assert.deepEqual([applied(lines, " -"), applied(lines, " +")], [a, b], `${a} → ${b}`);
  }
});

test("a_large_change_is_a_replacement_in_bounded_time", () => {
  const text = (name) => Array.from({ length: 20_000 }, (_, i) => `${name} ${i * 7919 % 1000}`).join("\n");
  const start = performance.now();
  assert.deepEqual(changes(diffLines(text("a"), text("b"))), { added: 20_000, removed: 20_000 });
  assert.ok(performance.now() - start < 2_000);
});

test("a_unified_diff_is_split_into_files", () => {
  const files = parseUnified("--- /dev/null\n+++ b/n\n@@ -0,0 +1,2 @@\n+one\n+--- two\n--- a/w/a\n+++ b/w/a\n@@ -2,2 +2,2 @@\n same\n-old\n+new\n\\ No newline at end of file\n# /big: 3 changes left out\n");
  assert.deepEqual(files.map(({ path, added, removed }) => [path, added, removed]), [["n", 2, 0], ["w/a", 1, 1], ["/big: 3 changes left out", 0, 0]]);
  assert.deepEqual(files[1].lines[1], { kind: " ", text: "same", old: 2, new: 2 });
  assert.equal(files[0].lines[2].text, "--- two");
  assert.deepEqual(parseUnified(""), []);
});
