// Runs the packed program on every Node it claims, and says what happens on those it does not.
// The other versions come from the npm package `node`, into a scratch folder.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { cleanEnv, REPO, type Result } from "./helpers.ts";

const BIN_RUNS = ["20", "22", "24", "26"];
const FILE_RUNS = ["22.18", "24", "26"]; // chat.ts alone, in an empty folder
const BIN_REFUSES = ["16", "18"];
const FILE_REFUSES = ["18", "20", "22.14"];

const dir = fs.mkdtempSync(path.join(os.tmpdir(), "agent-chat-nodes-"));

function run(command: string, args: readonly string[], cwd: string): Result {
  return spawnSync(command, args, { cwd, env: cleanEnv({ AGENT_CHAT_ROOT: path.join(cwd, "root") }), encoding: "utf8" });
}

/** Installs all versions side by side; returns the path of each node. */
function install(versions: readonly string[]): Map<string, string> {
  const folder = path.join(dir, "nodes");
  fs.mkdirSync(folder);
  fs.writeFileSync(path.join(folder, "package.json"), '{"private":true}');
  const specs = versions.map((version) => `node-${version}@npm:node@${version}`);
  const { status, stderr } = run("npm", ["install", "--silent", ...specs], folder);
  assert.equal(status, 0, stderr);
  return new Map(versions.map((version) => [version, path.join(folder, "node_modules", `node-${version}`, "bin", "node")]));
}

/** One round of the main job; every step must end well and say nothing on stderr. */
function works(node: string, program: string, cwd: string): void {
  const chat = (...args: string[]): string => {
    const { status, stdout, stderr } = run(node, [program, ...args], cwd);
    assert.deepEqual([status, stderr], [0, ""], `${args.join(" ")}: ${stderr}`);
    return stdout;
  };
  assert.match(chat("--help"), /exit codes/);
  chat("init", "r", "--members", "alice,bob");
  assert.match(chat("post", "r", "--as", "alice", "--to", "bob", "--body", "--- a/file"), /^posted #1 /);
  assert.match(chat("wait", "r", "--as", "bob"), /--- a\/file/);
  fs.writeFileSync(path.join(cwd, "root", "r", "task-1.md"), "");
  assert.match(chat("claim", "r", "1", "--as", "bob"), /^claimed /);
  assert.match(chat("channels", "--as", "alice"), /1 message/);
  const at = (...parts: string[]): string => path.join(cwd, "root", "r", ...parts);
  fs.writeFileSync(at("0001-bob-x.md"), fs.readFileSync(at("0001-alice-a-file.md"), "utf8").replace("alice", "bob"));
  fs.mkdirSync(at("_files", "0001", "d"), { recursive: true });
  fs.writeFileSync(at("_files", "0001", "d", "x.txt"), "X");
  assert.match(chat("renumber", "r"), /^renumbered 0001-bob-x\.md -> 0002-bob-x\.md/);
  assert.equal(fs.readFileSync(at("_files", "0002", "d", "x.txt"), "utf8"), "X");
}

function refuses(node: string, program: string, cwd: string, message: RegExp): void {
  const { status, stdout, stderr } = run(node, [program, "--help"], cwd);
  assert.notEqual(status, 0);
  assert.equal(stdout, "");
  assert.match(stderr, message);
}

function scratch(name: string, file: string): { cwd: string; program: string } {
  const cwd = fs.mkdtempSync(path.join(dir, `${name}-`));
  fs.copyFileSync(path.join(REPO, file), path.join(cwd, path.basename(file)));
  return { cwd, program: path.basename(file) };
}

try {
  const nodes = install([...new Set([...BIN_RUNS, ...FILE_RUNS, ...BIN_REFUSES, ...FILE_REFUSES])]);
  const each = (versions: readonly string[], file: string, what: string, check: (node: string, program: string, cwd: string) => void): void => {
    for (const version of versions) {
      const { cwd, program } = scratch(`${path.basename(file)}-${version}`, file);
      check(nodes.get(version)!, program, cwd);
      console.log(`ok - ${path.basename(file)} ${what} on ${run(nodes.get(version)!, ["--version"], cwd).stdout.trim()}`);
    }
  };
  each(BIN_RUNS, "dist/agent-chat.cjs", "works", works);
  each(FILE_RUNS, "chat.ts", "works", works);
  each(FILE_RUNS, "chat.ts", "works as a skill in a project of CommonJS, and in one that says nothing", (node, program, cwd) => {
    for (const type of ["commonjs", undefined]) {
      const project = path.join(cwd, `project-${type}`);
      const skill = path.join(project, ".claude", "skills", "agent-chat");
      fs.mkdirSync(skill, { recursive: true });
      fs.writeFileSync(path.join(project, "package.json"), JSON.stringify({ name: "project", type }));
      for (const file of [program, "package.json"]) fs.copyFileSync(path.join(REPO, file), path.join(skill, file));
      works(node, path.join(skill, program), project);
    }
  });
  each(BIN_REFUSES, "dist/agent-chat.cjs", "says what it needs", (node, program, cwd) => refuses(node, program, cwd, /^agent-chat needs Node 20 or later; this is v\d+/));
  each(FILE_REFUSES, "chat.ts", "says what it needs", (node, program, cwd) => refuses(node, program, cwd, /needs Node 22\.18 or later/));
} finally {
  fs.rmSync(dir, { recursive: true, force: true });
}
