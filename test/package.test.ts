import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { after, test } from "node:test";
import { cleanEnv, REPO, sandbox, type Result } from "./helpers.ts";

/** Runs a command in a folder, with a root of its own. */
function run(cwd: string, command: string, args: readonly string[]): Result {
  const env = cleanEnv({ AGENT_CHAT_ROOT: path.join(cwd, "root") });
  return spawnSync(command, args, { cwd, env, encoding: "utf8" });
}

/** A folder in which the packed tarball is installed, as a user would. */
const dir = fs.mkdtempSync(path.join(os.tmpdir(), "agent-chat-package-"));
after(() => fs.rmSync(dir, { recursive: true }));
const packed = run(REPO, "npm", ["pack", "--silent", "--ignore-scripts", "--pack-destination", dir]);
assert.equal(packed.status, 0, packed.stderr);
fs.writeFileSync(path.join(dir, "package.json"), '{"name":"scratch","private":true}');
const install = run(dir, "npm", ["install", "--silent", "--offline", path.join(dir, packed.stdout.trim())]);
assert.equal(install.status, 0, install.stderr);

test("package: the installed tarball runs as a command and by npx, and depends on nothing", () => {
  assert.deepEqual(fs.readdirSync(path.join(dir, "node_modules")).filter((name) => !name.startsWith(".")), ["agent-chat"]);
  const bin = path.join(dir, "node_modules", ".bin", "agent-chat");
  assert.match(run(dir, bin, ["init", "r"]).stdout, /^created channel 'r'/);
  const post = run(dir, "npx", ["agent-chat", "post", "r", "--as", "alice", "--body", "b"]);
  assert.match(post.stdout, /^posted #1 -> r\/0001-alice-b\.md/, post.stderr);
  assert.equal(post.stderr, "");
  assert.match(run(dir, bin, ["wait", "r", "--as", "bob"]).stdout, /b\n/);
});

test("package: it holds one plain CommonJS file, its types, chat.ts and the documents", () => {
  const folder = path.join(dir, "node_modules", "agent-chat");
  const files = fs.readdirSync(folder, { recursive: true }).map(String).filter((name) => fs.statSync(path.join(folder, name)).isFile());
  assert.deepEqual(files.sort(), ["LICENSE", "README.md", "SKILL.md", "SPEC.md", "chat.ts", "dist/agent-chat.cjs", "dist/agent-chat.d.cts", "package.json"]);
  assert.match(fs.readFileSync(path.join(folder, "dist/agent-chat.cjs"), "utf8"), /^#!\/usr\/bin\/env node\n/);
  const { dependencies, engines } = JSON.parse(fs.readFileSync(path.join(folder, "package.json"), "utf8"));
  assert.deepEqual([dependencies, engines], [undefined, { node: ">=20" }]);
});

test("package: the library imports by name, as a module, by require, and with types", () => {
  const names = "openChannel, createChannel, listChannels, post, read, mark, wait, claim, lastMessages, ChatError";
  fs.writeFileSync(path.join(dir, "a.mjs"), `import { ${names} } from "agent-chat"; console.log([${names}].every((f) => typeof f === "function"));`);
  fs.writeFileSync(path.join(dir, "a.cjs"), `const { ${names} } = require("agent-chat"); console.log([${names}].every((f) => typeof f === "function"));`);
  for (const file of ["a.mjs", "a.cjs"]) assert.deepEqual([run(dir, process.execPath, [file]).stdout, run(dir, process.execPath, [file]).stderr], ["true\n", ""]);
  fs.writeFileSync(
    path.join(dir, "a.mts"),
    `import { openChannel, post, wait, ChatError, type Batch } from "agent-chat";
     const posted = await post(openChannel("/x", "r"), { from: "a", body: "b" });
     const n: number = posted.message.seq;
     const batches: Batch[] = await wait([], "a", { timeout: 1, signal: AbortSignal.timeout(1) });
     // @ts-expect-error a post needs a body
     await post(openChannel("/x", "r"), { from: "a" });
     console.log(n, batches, new ChatError("usage", "x").code);`,
  );
  const tsc = run(dir, path.join(REPO, "node_modules", ".bin", "tsc"), ["--noEmit", "--strict", "--module", "nodenext", "--target", "es2023", "--types", "node", "--typeRoots", path.join(REPO, "node_modules", "@types"), "a.mts"]);
  assert.equal(tsc.status, 0, tsc.stdout);
});

test("package: with SKILL.md its one file is a skill, whatever kind of module the project around it says", (t) => {
  const { at } = sandbox(t);
  const from = path.join(dir, "node_modules", "agent-chat");
  for (const type of ["commonjs", "module", undefined]) {
    const project = path.join(at(), `project-${type}`);
    const skill = path.join(project, ".claude", "skills", "agent-chat");
    fs.mkdirSync(skill, { recursive: true });
    fs.writeFileSync(path.join(project, "package.json"), JSON.stringify({ name: "project", type }));
    for (const file of ["SKILL.md", "dist/agent-chat.cjs"]) fs.copyFileSync(path.join(from, file), path.join(skill, path.basename(file)));
    const chat = (...args: string[]): Result => run(project, process.execPath, [".claude/skills/agent-chat/agent-chat.cjs", ...args]);
    assert.match(chat("init", "r").stdout, /^created channel 'r'/);
    assert.match(chat("post", "r", "--as", "alice", "--body", "b").stdout, /^posted #1 /);
    const { stdout, stderr } = chat("wait", "r", "--as", "bob");
    assert.deepEqual([/\nb\n/.test(stdout), stderr], [true, ""]);
  }
});

test("package: importing it runs nothing, even from a script of the same name", () => {
  fs.writeFileSync(path.join(dir, "chat.mjs"), `import "agent-chat"; console.log("only me");`);
  assert.deepEqual(run(dir, process.execPath, ["chat.mjs", "--help"]).stdout, "only me\n");
});

test("package: chat.ts alone says in one line which Node it needs where that cannot run it", { skip: Number(process.versions.node.split(".")[0]) >= 22 && "this Node can" }, (t) => {
  const { dir } = sandbox(t);
  fs.copyFileSync(path.join(REPO, "chat.ts"), path.join(dir, "chat.ts"));
  const { status, stderr } = run(dir, process.execPath, ["chat.ts", "--help"]);
  assert.notEqual(status, 0);
  assert.match(stderr, /chat\.ts needs Node 22\.18 or later; on Node 20 use: npx agent-chat/);
});

test("package: no file in the repository names a registry or a path of one machine", () => {
  const files = spawnSync("git", ["ls-files", "-co", "--exclude-standard"], { cwd: REPO, encoding: "utf8" }).stdout.split("\n").filter((file) => file !== "");
  assert.ok(files.length > 10);
  for (const file of files) {
    const text = fs.readFileSync(path.join(REPO, file), "utf8");
    assert.doesNotMatch(text, new RegExp(["registry", "npmjs"].join("\\.") + "|\"resolved\"|" + ["/work", "main"].join("/")), file);
  }
});
