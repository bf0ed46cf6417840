// Machines that share a root through git: each has a root of its own, and all have one bare repository on disk.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import type { TestContext } from "node:test";
import { BIN, cleanEnv, prepare, rows, sandbox, type How, type Result, type Running, type Sandbox } from "./helpers.ts";

/** git says what it always says, whatever the machine that runs the tests has configured. */
const INHERITED = Object.keys(process.env).filter((name) => name.startsWith("GIT_"));
const PLAIN: NonNullable<How["env"]> = {
  ...Object.fromEntries(INHERITED.map((name) => [name, undefined])),
  GIT_CONFIG_GLOBAL: "/dev/null",
  GIT_CONFIG_NOSYSTEM: "1",
};
const IDENTITY = ["-c", "user.name=tester", "-c", "user.email=tester@example.org"];

export interface Machine {
  readonly root: string;
  chat(args: readonly string[], how?: How): Result;
  ok(args: readonly string[], how?: How): string;
  start(args: readonly string[], how?: How): Running;
  /** Posts, and returns the number. */
  post(from: string, title: string, ...args: string[]): number;
  /** Runs git in the root and fails the test unless it exits 0; returns stdout. */
  git(...args: string[]): string;
  /** The path of a file in the root. */
  at(...parts: string[]): string;
  /** Syncs, and returns what `--json` says. */
  sync(...args: string[]): Synced;
  /** The titles an agent is shown, in order. */
  read(agent: string, channel?: string): string[];
  /** The names of the messages of a channel. */
  files(channel?: string): string[];
}

export interface Synced {
  readonly commit: string | null;
  readonly sent: { readonly seq: number; readonly file: string }[];
  readonly came: { readonly seq: number; readonly file: string }[];
  readonly renumbered: { readonly was: number; readonly seq: number; readonly reply_to: number | null }[];
  readonly lost: { readonly task: string; readonly agent: string; readonly owner: string }[];
  readonly left_out: { readonly path: string; readonly reason: string }[];
  readonly notes: string[];
}

export interface Fleet {
  readonly box: Sandbox;
  readonly remote: string; // the bare repository
  machine(name: string, env?: How["env"]): Machine; // its root does not exist yet
  /** A machine with an empty root that is synced with the remote. */
  joined(name: string): Machine;
  /** Runs git anywhere; fails the test unless it exits 0. */
  git(cwd: string, ...args: string[]): string;
  /** What the branch has, by git's own log: the subjects, newest first. */
  log(): string[];
}

export function runGit(cwd: string, args: readonly string[], input: string | Buffer = ""): string {
  const ran = spawnSync("git", [...IDENTITY, ...args], { cwd, env: cleanEnv(PLAIN), input, encoding: "utf8" });
  assert.equal(ran.status, 0, `git ${args.join(" ")}: ${ran.stderr}`);
  return ran.stdout;
}

export function fleet(t: TestContext): Fleet {
  const box = sandbox(t);
  const remote = path.join(box.dir, "remote.git");
  const git: Fleet["git"] = (cwd, ...args) => runGit(cwd, args);
  git(box.dir, "init", "-q", "--bare", "-b", "main", remote);
  const machine: Fleet["machine"] = (name, extra = {}) => openMachine(box, path.join(box.dir, name), extra);
  return {
    box,
    remote,
    machine,
    joined(name) {
      const one = machine(name);
      one.ok(["sync", "--init", remote]);
      return one;
    },
    git,
    log: () => git(remote, "log", "--format=%s", "main").trim().split("\n"),
  };
}

function openMachine(box: Sandbox, root: string, extra: How["env"]): Machine {
  const how = ({ env, ...others }: How = {}): How => ({
    ...others,
    env: { ...PLAIN, AGENT_CHAT_ROOT: root, ...extra, ...env },
  });
  const ok: Machine["ok"] = (args, given) => box.ok(args, how(given));
  return {
    root,
    chat: (args, given) => box.chat(args, how(given)),
    ok,
    start: (args, given) => box.start(args, how(given)),
    post(from, title, ...args) {
      const body = args.includes("--body") ? [] : ["--body", title];
      const words = ["post", "review", "--as", from, "--title", title, "--json", ...body, ...args];
      return rows<{ seq: number }>(ok(words))[0]!.seq;
    },
    git: (...args) => runGit(root, args),
    at: (...parts) => path.join(root, ...parts),
    sync: (...args) => rows<Synced>(ok(["sync", "--json", ...args]))[0]!,
    read: (agent, channel = "review") =>
      rows<{ title: string }>(ok(["read", channel, "--as", agent, "--json"])).map(({ title }) => title),
    files: (channel = "review") =>
      fs
        .readdirSync(path.join(root, channel))
        .filter((name) => /^\d+-/.test(name))
        .sort(),
  };
}

/** A folder for PATH with a `git` that runs a bash script first, which has its arguments. */
export function gitThatFirst(box: Pick<Sandbox, "dir">, script: string): string {
  const folder = fs.mkdtempSync(path.join(box.dir, "bin-"));
  const real = spawnSync("bash", ["-c", "command -v git"], { encoding: "utf8" }).stdout.trim();
  const text = `#!/bin/bash\n${script}\nexec ${real} "$@"\n`;
  fs.writeFileSync(path.join(folder, "git"), text, { mode: 0o755 });
  return `${folder}:${process.env["PATH"]}`;
}

export const AC = `"${process.execPath}" "${BIN}"`;

/** Two machines with one channel that both have. */
export function pair(net: Fleet): [Machine, Machine] {
  prepare(net.box.dir, "a pair", () => {
    const here = net.joined("here");
    here.ok(["init", "review"]);
    here.sync();
    net.joined("there");
  });
  return [net.machine("here"), net.machine("there")];
}

/** That the remote has one line of commits, without merges. */
export function assertLinear({ git, remote }: Fleet): void {
  assert.equal(git(remote, "rev-list", "--min-parents=2", "main"), "");
}
