// Builds the tests of a checkout of acpx into its dist-test, with a program under test in place of the compiled cli.js: imports
// get the original, a run executes $ACPX_UNDER_TEST with the same arguments.
// Usage: node build.mjs CHECKOUT
import fs from "node:fs";
import path from "node:path";
import { stripTypeScriptTypes } from "node:module";

const root = process.argv[2];
const out = path.join(root, "dist-test");
fs.rmSync(out, { recursive: true, force: true });
for (const file of fs.readdirSync(root, { recursive: true })) {
  if (!/^(src|test)\/.*\.ts$/.test(file)) continue;
  const target = path.join(out, file.replace(/ts$/, "js"));
  fs.mkdirSync(path.dirname(target), { recursive: true });
  const text = fs.readFileSync(path.join(root, file), "utf8");
  fs.writeFileSync(target, stripTypeScriptTypes(text, { mode: "transform" }));
}
fs.copyFileSync(path.join(root, "package.json"), path.join(out, "package.json"));
const cli = path.join(out, "src/cli.js");
fs.renameSync(cli, path.join(out, "src/cli-original.js"));
fs.writeFileSync(cli, `import { spawn } from "node:child_process";
import { realpathSync } from "node:fs";
import { fileURLToPath } from "node:url";
export * from "./cli-original.js";
if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  const [program, ...words] = process.env.ACPX_UNDER_TEST.split("\\n");
  const child = spawn(program, [...words, ...process.argv.slice(2)], { stdio: "inherit" });
  for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => child.kill(signal));
  child.on("close", (code, signal) => (signal ? process.kill(process.pid, signal) : process.exit(code)));
}
`);
