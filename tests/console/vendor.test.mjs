import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, statSync } from "node:fs";
import { join, relative } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { lexer } from "../../gateway/console/vendor/marked.js";

const ROOT = fileURLToPath(new URL("../../gateway/console/", import.meta.url));
/** Maximum size of all files that a browser loads, compressed. */
const TRANSFERRED_MAX = 150_000;

function files(dir) {
  return readdirSync(dir, { withFileTypes: true }).flatMap((entry) => (entry.isDirectory() ? files(join(dir, entry.name)) : [join(dir, entry.name)]));
}
const loaded = files(ROOT).filter((path) => /\.(js|css|html|svg)$/.test(path));

test("vendored_files_are_as_published", () => {
  const list = readFileSync(join(ROOT, "vendor/SHA256SUMS"), "utf8").trim().split("\n").map((line) => line.split("  "));
  for (const [sum, name] of list) {
    assert.equal(createHash("sha256").update(readFileSync(join(ROOT, "vendor", name))).digest("hex"), sum, name);
  }
  const listed = new Set(list.map(([, name]) => name));
  const present = readdirSync(join(ROOT, "vendor")).filter((name) => !["SHA256SUMS", "README.md"].includes(name) && !name.endsWith(".d.ts"));
  assert.deepEqual(present.filter((name) => !listed.has(name)), []);
});

test("all_files_together_are_small", () => {
  const bytes = loaded.reduce((sum, path) => sum + gzipSync(readFileSync(path), { level: 9 }).length, 0);
  console.log(`${bytes} bytes in ${loaded.length} files`);
  assert.ok(bytes <= TRANSFERRED_MAX, `${bytes}`);
});

test("the_app_makes_no_markup_and_no_code_from_text", () => {
  const own = loaded.filter((path) => path.endsWith(".js") && !path.includes("/vendor/"));
  for (const path of own) {
    const text = readFileSync(path, "utf8");
    for (const word of ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc", "DOMParser", "document.cookie"]) {
      assert.ok(!text.includes(word), `${relative(ROOT, path)} has ${word}`);
    }
    assert.doesNotMatch(text, /(?:src|href|import)\s*[=(]\s*["'`]https?:/, `${relative(ROOT, path)} names another host`);
    assert.doesNotMatch(text, /<[a-z][^>]*\sstyle="/, `${relative(ROOT, path)} has an inline style`);
    assert.doesNotMatch(text, /\son[a-z]+="/, `${relative(ROOT, path)} has an inline handler`);
  }
  const page = readFileSync(join(ROOT, "index.html"), "utf8");
  assert.doesNotMatch(page, /<script(?![^>]*\ssrc="\/)|<style|\sstyle=|\son[a-z]+=|https?:\/\//);
});

test("files_and_functions_are_short", () => {
  for (const path of loaded.filter((path) => !path.includes("/vendor/"))) {
    const lines = readFileSync(path, "utf8").split("\n").length;
    assert.ok(lines <= 601, `${relative(ROOT, path)}: ${lines} lines`);
  }
  assert.ok(statSync(ROOT).isDirectory());
});

test("the_lexer_gives_tokens_for_hostile_markdown", () => {
  const bad = "[x](javascript:alert(1)) <script>alert(1)</script> ![i](http://h/p.png)\n\n> > > > > a\n\n| a |\n|---|\n| <img src=x onerror=alert(1)> |";
  const types = new Set();
  const walk = (tokens) => tokens?.forEach?.((token) => { types.add(token.type); walk(token.tokens); });
  walk(lexer(bad, { gfm: true, breaks: true }));
  for (const type of ["paragraph", "link", "html", "image", "blockquote", "table"]) assert.ok(types.has(type), type);
});

test("the_page_names_every_module_that_it_needs_at_once", () => {
  const page = readFileSync(join(ROOT, "index.html"), "utf8");
  const named = [...page.matchAll(/(?:href|src)="\/([^"]+\.js)"/g)].map(([, path]) => path).sort();
  const needed = new Set();
  const walk = (path) => {
    if (needed.has(path)) return;
    needed.add(path);
    for (const [, target] of readFileSync(join(ROOT, path), "utf8").matchAll(/^(?:import|export) .*?from "(\.[^"]+)";|^import "(\.[^"]+)";/gm)) {
      walk(relative(ROOT, join(ROOT, path, "..", target)));
    }
  };
  walk("app.js");
  assert.deepEqual(named, [...needed].sort());
});
