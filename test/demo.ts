// The main job on real input: two agents, each its own process, hand work to each other through a scratch folder.
// Everything that is printed is what the agents ran and saw, as it happened.
import { spawn } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { BIN, cleanEnv } from "./helpers.ts";

const root = fs.mkdtempSync(path.join(os.tmpdir(), "agent-chat-demo-"));
const TASK = "Find out why the parser drops the last line, and fix it.\n";
const FINDING = "The loop stopped at the last newline.\nFixed: it now runs to the end of the text.\n";

/** Runs agent-chat as one agent and prints what is typed and what comes back. */
function agent(name: string): (args: string[], body?: string) => Promise<string> {
  const say = (text: string): void => void process.stdout.write(text.replace(/^(?=.)/gm, `${name.padEnd(6)}| `));
  return (args, body) => {
    const words = args.map((arg) => (/^[\w.,/=-]+$/.test(arg) ? arg : `'${arg}'`)).join(" ");
    say(`$ agent-chat ${words}${body === undefined ? "" : ` <<'END'\n${body}END`}\n`);
    const child = spawn(process.execPath, [BIN, ...args], {
      env: cleanEnv({ AGENT_CHAT_ROOT: root, AGENT_CHAT_NAME: name }),
      stdio: ["pipe", "pipe", "inherit"],
    });
    child.stdin.end(body ?? "");
    return new Promise((resolve, reject) => {
      let output = "";
      child.stdout.setEncoding("utf8").on("data", (text: string) => (output += text));
      child.on("close", (status) => {
        say(output);
        if (status === 0) resolve(output);
        else reject(new Error(`${name}: agent-chat ${words} exited ${status}`));
      });
    });
  };
}

async function alice(run: ReturnType<typeof agent>): Promise<void> {
  await run(["task", "build", "The parser drops the last line", "--body", "-"], TASK);
  await run(["post", "build", "--to", "bob", "--title", "task-1 is yours if you want it"], "It is about `input.txt`.\nWhat to do is in task-1.md.\n");
  await run(["wait", "build", "--timeout", "30"]);
}

async function bob(run: ReturnType<typeof agent>): Promise<void> {
  await run(["wait", "build", "--timeout", "30"]);
  await run(["claim", "build", "1"]);
  await run(["done", "build", "1", "--body", "-"], FINDING);
}

try {
  await agent("alice")(["init", "build", "--members", "alice,bob"]);
  const second = bob(agent("bob")); // waits first, so that the post wakes it
  await new Promise((resolve) => setTimeout(resolve, 500));
  await Promise.all([alice(agent("alice")), second]);
  process.stdout.write(`\nThe folder they leave behind:\n${fs.readdirSync(path.join(root, "build")).map((name) => `  build/${name}\n`).join("")}`);
} finally {
  fs.rmSync(root, { recursive: true, force: true });
}
