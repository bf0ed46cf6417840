// What every test needs: a scratch root, and the built program run in it.
import assert from "node:assert/strict";
import { spawn, spawnSync, type ChildProcess } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import type { TestContext } from "node:test";

export const REPO = path.resolve(import.meta.dirname, "..");
export const BIN = process.env["AGENT_CHAT_BIN"] ?? path.join(REPO, "dist", "agent-chat.cjs");
export const REFERENCE = path.join(REPO, "..", "shared", "reference", "chat.py");

export interface Result {
  readonly status: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface How {
  readonly stdin?: string | Buffer | undefined;
  readonly env?: Readonly<Record<string, string | undefined>>;
  readonly cwd?: string;
}

/** The environment without what could decide for the program who and where it is. */
export function cleanEnv(extra: How["env"] = {}): NodeJS.ProcessEnv {
  const {
    NODE_EXTRA_CA_CERTS: _,
    AGENT_CHAT_ROOT: _r,
    AGENT_CHAT_NAME: _n,
    AGENT_CHAT_TIMEOUT: _t,
    ...env
  } = process.env;
  return { ...env, ...extra };
}

export interface Sandbox {
  readonly dir: string; // a scratch folder, removed after the test
  readonly root: string; // AGENT_CHAT_ROOT, inside it
  /** Runs the program to its end. */
  chat(args: readonly string[], how?: How): Result;
  /** Runs it and fails the test unless it exits 0; returns stdout. */
  ok(args: readonly string[], how?: How): string;
  /** Starts it and returns at once; killed after the test. */
  start(args: readonly string[], how?: How): Running;
  /** Runs a bash script in which `ac` is the program. */
  bash(script: string, how?: How): Result;
  /** The path of a file in the root. */
  at(...parts: string[]): string;
}

const prepared = new Map<string, { readonly copy: string; readonly from: string }>();

/** Makes what is in a scratch folder, repositories of git too; the next time under this key that is only copied. */
export function prepare(dir: string, key: string, make: () => void): void {
  const before = prepared.get(key);
  if (before === undefined) {
    make();
    const copy = fs.mkdtempSync(path.join(os.tmpdir(), "agent-chat-prepared-"));
    process.on("exit", () => fs.rmSync(copy, { recursive: true, force: true }));
    fs.cpSync(dir, copy, { recursive: true });
    prepared.set(key, { copy, from: dir });
    return;
  }
  fs.cpSync(before.copy, dir, { recursive: true });
  for (const name of fs.readdirSync(dir)) {
    const config = path.join(dir, name, ".git", "config");
    if (fs.existsSync(config)) fs.writeFileSync(config, fs.readFileSync(config, "utf8").replaceAll(before.from, dir));
  }
}

export interface Running {
  readonly child: ChildProcess;
  readonly ended: Promise<Result>;
  output(): string; // stdout so far
}

export function sandbox(t: TestContext): Sandbox {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), "agent-chat-test-"));
  const root = path.join(dir, "root");
  const running: ChildProcess[] = [];
  t.after(() => {
    for (const child of running) child.kill("SIGKILL");
    fs.rmSync(dir, { recursive: true, force: true, maxRetries: 20, retryDelay: 20 }); // a killed process may still write
  });
  const options = ({ env, cwd = dir }: How) => ({ cwd, env: cleanEnv({ AGENT_CHAT_ROOT: root, ...env }) });
  const run = (command: string, args: readonly string[], how: How): Result => {
    const { status, signal, stdout, stderr } = spawnSync(command, args, {
      ...options(how),
      input: how.stdin ?? "",
      encoding: "utf8",
      timeout: 60_000,
      maxBuffer: 1 << 28,
    });
    return { status, signal, stdout, stderr };
  };
  const chat: Sandbox["chat"] = (args, how = {}) => run(process.execPath, [BIN, ...args], how);
  return {
    dir,
    root,
    chat,
    ok(args, how) {
      const result = chat(args, how);
      assert.equal(result.status, 0, `agent-chat ${args.join(" ")}: ${result.stderr}`);
      return result.stdout;
    },
    start(args, how = {}) {
      const child = spawn(process.execPath, [BIN, ...args], { ...options(how), stdio: ["pipe", "pipe", "pipe"] });
      running.push(child);
      if (how.stdin !== undefined) child.stdin.end(how.stdin);
      return watchChild(child);
    },
    bash(script, how = {}) {
      return run("bash", ["-c", `ac() { "${process.execPath}" "${BIN}" "$@"; }\n${script}`], how);
    },
    at: (...parts) => path.join(root, ...parts),
  };
}

export function watchChild(child: ChildProcess): Running {
  let [stdout, stderr] = ["", ""];
  child.stdout?.setEncoding("utf8").on("data", (text: string) => (stdout += text));
  child.stderr?.setEncoding("utf8").on("data", (text: string) => (stderr += text));
  const ended = new Promise<Result>((resolve) =>
    child.on("close", (status, signal) => resolve({ status, signal, stdout, stderr })),
  );
  return { child, ended, output: () => stdout };
}

/** Makes a folder look, to this process, as if it had as many files as make a channel a large one. */
export function crowd(t: TestContext, folder: string): void {
  const [list, more] = [fs.readdirSync, Array.from({ length: 50_000 }, (_, i) => `x${i}`)];
  const crowded = (...args: unknown[]): unknown[] => [...list(...(args as [string])), ...(args[0] === folder ? more : [])];
  t.mock.method(fs, "readdirSync", crowded as never);
}

/** Resolves once `test` is true; rejects after 10 s, naming what was waited for. */
export async function until(what: string, test: () => boolean, limit = 30_000): Promise<void> {
  const deadline = Date.now() + limit;
  while (!test()) {
    if (Date.now() > deadline) throw new Error(`waited ${limit} ms in vain until ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Resolves once a started command catches SIGHUP, as Node by itself does not: it is then waiting, or about to. */
export async function listening({ child }: Running): Promise<void> {
  const caught = (): bigint => BigInt(`0x${/SigCgt:\s*(\w+)/.exec(fs.readFileSync(`/proc/${child.pid}/status`, "utf8"))?.[1] ?? 0}`);
  if (process.platform === "linux") await until("it listens to signals", () => caught() % 2n === 1n);
  else await new Promise((resolve) => setTimeout(resolve, 1000));
}

/** Random numbers that a printed seed brings back: mulberry32. */
export function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** The messages that `--json` printed. */
export function rows<T = Record<string, unknown>>(stdout: string): T[] {
  return stdout
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line) as T);
}
