// What the tests of git need: a scratch folder with roots and repositories in it.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import type { TestContext } from "node:test";
import { lastMessages, openChannel } from "../chat.ts";
import { cleanEnv, prepare, rows, sandbox, type How, type Result } from "./helpers.ts";

const WHO = ["-c", "user.name=U", "-c", "user.email=u@x", "-c", "init.defaultBranch=main"];
const ENV = { GIT_CONFIG_GLOBAL: "/dev/null", GIT_CONFIG_NOSYSTEM: "1" };

export interface Shown {
  readonly seq: number;
  readonly file: string;
  readonly body: string;
  readonly reply_to: number | null;
}

/** A scratch folder with git in it, and roots by their names. */
export function place(t: TestContext) {
  const box = sandbox(t);
  const tryGit = (cwd: string, ...args: string[]): Result =>
    spawnSync("git", [...WHO, ...args], { cwd: path.join(box.dir, cwd), env: cleanEnv(ENV), encoding: "utf8" });
  const git = (cwd: string, ...args: string[]): string => {
    const { status, stdout, stderr } = tryGit(cwd, ...args);
    assert.equal(status, 0, `git ${args.join(" ")}: ${stdout}${stderr}`);
    return stdout;
  };
  const how = (root: string, more: How = {}): How => ({ ...more, env: { ...ENV, AGENT_CHAT_ROOT: path.join(box.dir, root), ...more.env } });
  const bodies = (text: string): string[] => rows<Shown>(text).map(({ body }) => body.trim()).sort();
  return {
    ...box,
    git,
    tryGit,
    /** Runs the program in a root and expects it to succeed; returns stdout. */
    ac: (root: string, ...args: string[]): string => box.ok(args, how(root)),
    try: (root: string, ...args: string[]): Result => box.chat(args, how(root)),
    start: (root: string, ...args: string[]) => box.start(args, how(root)),
    /** The bodies of what is new for somebody, who is shown it. */
    news: (root: string, name: string): string[] => bodies(box.ok(["read", "r", "--as", name, "--json"], how(root))),
    all: (root: string): Shown[] => lastMessages(openChannel(path.join(box.dir, root), "r"), 1000).messages as unknown as Shown[],
    files: (root: string): string[] => fs.readdirSync(path.join(box.dir, root, "r")).filter((name) => /^\d|^task/.test(name)).sort(),
    path: (...parts: string[]): string => path.join(box.dir, ...parts),
    commit: (root: string, subject = root): void => {
      git(root, "add", "-A");
      git(root, "commit", "-q", "-m", subject);
    },
    /** Runs it and expects this error; returns it, and that --json says the same. */
    fails: (root: string, status: number, code: string, ...args: string[]): { message: string; try: string } => {
      const result = box.chat([...args, "--json"], how(root));
      const { error } = JSON.parse(result.stderr.trim().split("\n").at(-1) ?? "") as { error: { code: string; message: string; try: string } };
      assert.deepEqual([result.status, error.code], [status, code], `${args.join(" ")}: ${result.stderr}`);
      return error;
    },
  };
}

/** Two clones of a root with one message and two tasks, made by hand. */
export function clones(t: TestContext, ...init: string[]) {
  const at = place(t);
  prepare(at.dir, `clones ${init.join(" ")}`, () => {
    at.git(".", "init", "-q", "--bare", "hub.git");
    at.ac("one", "init", "r", ...init);
    at.ac("one", "post", "r", "--as", "alice", "--body", "first");
    for (const id of ["1", "2"]) at.ac("one", "task", "r", `task ${id}`, "--as", "alice", "--id", id);
    at.git("one", "init", "-q");
    at.git("one", "remote", "add", "origin", "../hub.git");
    at.commit("one", "start");
    at.git("one", "push", "-q", "-u", "origin", "main");
    at.git(".", "clone", "-q", "hub.git", "two");
  });
  return at;
}
