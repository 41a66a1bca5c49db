// Runs `acp-gateway acpx` with the commands of the suite's agents replaced by names that the gateway knows: it runs no
// commands of a caller. $SUITE_AGENTS is a JSON object from command to name, $SUITE_GATEWAY the program and its first arguments.
import { spawn } from "node:child_process";

const VALUES =
  /^--(cwd|format|auth-policy|non-interactive-permissions|timeout|ttl|model|mcp-config|policy|prompt-retries|max-turns)$/;
const names = JSON.parse(process.env.SUITE_AGENTS);
const args = process.argv.slice(2);
const at = args.indexOf("--agent");
const name = at >= 0 ? names[args[at + 1]] : undefined;
if (name) {
  args.splice(at, 2);
  let verb = 0;
  while (args[verb]?.startsWith("--")) verb += VALUES.test(args[verb]) ? 2 : 1;
  args.splice(verb, 0, name);
}
const [program, ...words] = process.env.SUITE_GATEWAY.split("\n");
const child = spawn(program, [...words, ...args], { stdio: "inherit" });
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => child.kill(signal));
child.on("close", (code, signal) => (signal ? process.kill(process.pid, signal) : process.exit(code)));
