// `sync` and `renumber` killed before each thing they change, one after the other: whoever reads or posts then sees every
// message, each once, and the next sync finishes the job.
//
// SEED=n makes the same choices again; LONG=1 kills at every step, not only at some.
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { test, type TestContext } from "node:test";
import * as chat from "../chat.ts";
import { BIN, cleanEnv, random, sandbox, type Result } from "./helpers.ts";

const LONG = process.env["LONG"] === "1";
const SEED = Number(process.env["SEED"] ?? Date.now() % 1_000_000);
const PRELOAD = path.join(import.meta.dirname, "kill-at.cjs");
const READERS = ["ann", "bob", "cat", "dan", "eve"];
const STEPS_MAX = 400; // more than any of them takes

/** What each message is called, who wrote it and whom it is for; its id is its title and begins its body. */
interface Letter {
  readonly id: string;
  readonly from: string;
  readonly to?: readonly string[];
}

/** Who was shown what. */
type Shown = Map<string, string[]>;

const talk = (root: string): chat.Channel => chat.openChannel(root, "talk");
const git = (cwd: string, ...args: string[]): string => execFileSync("git", args, { cwd, encoding: "utf8" }).trim();

function runAt(root: string, args: readonly string[], env: Record<string, string> = {}): Result {
  const preload = env["KILL_AT"] === undefined ? [] : ["-r", PRELOAD];
  const how = { cwd: root, env: cleanEnv(env), encoding: "utf8", timeout: 60_000 } as const;
  const { status, signal, stdout, stderr } = spawnSync(process.execPath, [...preload, BIN, ...args, "--root", root], how);
  return { status, signal, stdout, stderr };
}

function succeed(root: string, ...args: string[]): void {
  const { status, stderr } = runAt(root, args);
  assert.equal(status, 0, `${args.join(" ")}: ${stderr}`);
}

/** Posts, with an answer to a message by its id, and an attachment. */
async function write(root: string, { id, from, to }: Letter, answers?: string, attachment?: string): Promise<void> {
  const reply = answers === undefined ? undefined : find(root, answers).seq;
  const next = String((chat.listMessages(talk(root)).entries.at(-1)?.seq ?? 0) + 1).padStart(4, "0");
  const attached = attachment === undefined ? "" : `\nsee _files/${next}/plan.txt`;
  if (attachment !== undefined) {
    fs.mkdirSync(path.join(root, "talk", "_files", next), { recursive: true });
    fs.writeFileSync(path.join(root, "talk", "_files", next, "plan.txt"), attachment);
  }
  const body = `${id}${attached}\nthe end`;
  await chat.post(talk(root), { from, to: to ?? ["all"], title: id, body, reply, force: true });
}

function find(root: string, id: string): chat.Message {
  const found = chat.lastMessages(talk(root), 100).messages.filter(({ title }) => title === id);
  assert.equal(found.length, 1, `${id} is there ${found.length} times`);
  return found[0]!;
}

/** Shows a reader what is new, and marks it; noted. */
async function show(root: string, name: string, shown: Shown): Promise<void> {
  const batch = chat.read(talk(root), name);
  shown.set(name, [...(shown.get(name) ?? []), ...batch.messages.map(({ title }) => title)]);
  await chat.mark(batch, batch.messages);
}

const isFor = (name: string, { from, to }: Letter): boolean => from !== name && (to === undefined || to.includes(name));

/** What each reader would be shown now: all that is certainly there, and nothing twice. */
function assertReadable(root: string, there: readonly Letter[], all: readonly Letter[], shown: Shown, when: string): void {
  for (const name of READERS) {
    const { messages } = chat.read(talk(root), name);
    for (const { body } of messages) assert.ok(body.endsWith("\nthe end\n") || /^task-/.test(body), `${when}: ${body} is torn`);
    const now = [...(shown.get(name) ?? []), ...messages.map(({ title }) => title)];
    for (const letter of all) {
      const times = now.filter((id) => id === letter.id).length;
      const least = isFor(name, letter) && there.includes(letter) ? 1 : 0;
      const most = isFor(name, letter) ? 1 : 0;
      assert.ok(times >= least && times <= most, `${when}: ${letter.id} to ${name} ${times} times`);
    }
  }
}

/** The numbers of the steps at which to kill. */
function* steps(sample: number): Generator<number> {
  const dice = random(SEED);
  for (let n = 1; n < STEPS_MAX; n += LONG ? 1 : 1 + Math.floor(dice() * 2 * sample)) yield n;
}

// ---- sync ----------------------------------------------------------------------------------------------------------

const SHARED: Letter[] = [{ id: "s1", from: "ann" }, { id: "s2", from: "bob", to: ["ann"] }];
const THEIRS: Letter[] = [{ id: "r3", from: "bob" }, { id: "r4", from: "eve", to: ["cat", "ann"] }, { id: "r5", from: "bob" }];
const OURS: Letter[] = [{ id: "l3", from: "ann" }, { id: "l4", from: "cat", to: ["ann", "dan"] }, { id: "l5", from: "dan" }];
const LATE: Letter = { id: "late", from: "cat", to: ["dan"] };

/** Two machines with news of their own, from the same start. */
async function twoMachines(dir: string): Promise<Shown> {
  const [a, b] = [path.join(dir, "a"), path.join(dir, "b")];
  git(dir, "init", "-q", "--bare", "-b", "main", "chat.git");
  fs.mkdirSync(b);
  await chat.createChannel(a, "talk");
  for (const letter of SHARED) await write(a, letter);
  await chat.createTask(talk(a), { from: "ann", title: "first", body: "the first" });
  succeed(a, "sync", "--init", "../chat.git");
  succeed(b, "sync", "--init", "../chat.git");
  await write(b, THEIRS[0]!, undefined, "theirs");
  await write(b, THEIRS[1]!, "r3");
  await write(b, THEIRS[2]!, "s1");
  await chat.claim(talk(b), "bob", "1");
  await chat.createTask(talk(b), { from: "bob", title: "second", body: "made there" });
  succeed(b, "sync");
  const shown: Shown = new Map();
  await show(a, "cat", shown);
  await write(a, OURS[0]!, "s2", "ours");
  await write(a, OURS[1]!, "l3");
  await show(a, "ann", shown);
  await write(a, OURS[2]!, "l4");
  await show(a, "bob", shown);
  await chat.claim(talk(a), "ann", "1");
  await chat.createTask(talk(a), { from: "ann", title: "second", body: "made here" });
  return shown;
}

async function afterTheKill(root: string, all: readonly Letter[], shown: Shown): Promise<void> {
  await show(root, "dan", shown);
  await show(root, "eve", shown);
  await write(root, LATE, "l5");
  await show(root, "cat", shown);
  assert.ok(all.includes(LATE));
}

function assertSynced(root: string, all: readonly Letter[], when: string): void {
  assert.equal(git(root, "status", "--porcelain"), "", when);
  assert.equal(git(root, "rev-parse", "HEAD"), git(path.join(root, "..", "chat.git"), "rev-parse", "main"), when);
  assert.equal(git(root, "log", "--merges", "--oneline"), "", when);
  const at = (id: string): chat.Message => find(root, id);
  const numbers = chat.listMessages(talk(root)).entries.map(({ seq }) => seq);
  assert.deepEqual(numbers, numbers.map((_, i) => i + 1), `${when}: numbers`);
  const first = ["s1", "s2", "r3", "r4", "r5", "l3", "l4", "l5"].map((id) => at(id).seq);
  assert.deepEqual(first, [1, 2, 3, 4, 5, 6, 7, 8], when);
  const answers = ["r4", "r5", "l3", "l4", "l5"].map((id) => at(id).reply_to);
  assert.deepEqual(answers, [3, 1, 2, 6, 7], `${when}: replies`);
  if (all.includes(LATE)) assert.equal(at("late").reply_to, 8, `${when}: the reply of who came after`);
  for (const [id, text] of [["r3", "theirs"], ["l3", "ours"]] as const) {
    const file = /_files\/\S+/.exec(at(id).body)?.[0];
    assert.equal(fs.readFileSync(path.join(root, "talk", file!), "utf8"), text, `${when}: the attachment of ${id}`);
  }
  const tasks = fs.readdirSync(path.join(root, "talk")).filter((file) => file.startsWith("task-"));
  assert.deepEqual(tasks.sort(), ["task-1.CLAIMED-bob.md", "task-2.md", "task-3.md"], when);
  const told = chat.lastMessages(talk(root), 100).messages.filter(({ status }) => status === "lost");
  assert.deepEqual(told.map(({ to, task }) => [to, task]), [[["ann"], "1"]], `${when}: ann is told`);
}

async function killSyncAt(t: TestContext, n: number, built: string, given: Shown, env: Record<string, string> = {}): Promise<boolean> {
  const dir = path.join(sandbox(t).dir, "copy");
  fs.cpSync(built, dir, { recursive: true });
  const root = path.join(dir, "a");
  git(root, "remote", "set-url", "origin", path.join(dir, "chat.git"));
  const when = `SEED=${SEED}, killed before step ${n}`;
  const shown: Shown = new Map(given);
  const { signal, status, stderr } = runAt(root, ["sync"], { KILL_AT: String(n), ...env });
  const killed = signal === "SIGKILL";
  assert.ok(killed || status === 0, `${when}: ${stderr}`);
  const all = [...SHARED, ...THEIRS, ...OURS, ...(n % 2 === 1 ? [LATE] : [])];
  assertReadable(root, killed ? [...SHARED, ...OURS] : all.filter((one) => one !== LATE), all, shown, when);
  if (n % 2 === 1) await afterTheKill(root, all, shown);
  for (let left = 3; ; left--) {
    const result = runAt(root, ["sync"]);
    if (result.status === 0) break;
    const lock = env["KILL_GIT"] && /rm '?(\S+\.lock)'?/.exec(result.stderr)?.[1]; // a git that was killed leaves it
    assert.ok(lock && left > 0, `${when}: ${result.stderr}`);
    fs.rmSync(lock);
  }
  assertReadable(root, all, all, shown, `${when}, after the next sync`);
  assertSynced(root, all, when);
  fs.rmSync(dir, { recursive: true });
  return killed;
}

async function killSyncs(t: TestContext, sample: number, least: number, env?: Record<string, string>): Promise<void> {
  const built = path.join(sandbox(t).dir, "built");
  fs.mkdirSync(built);
  const shown = await twoMachines(built);
  let last = 0;
  for (const n of steps(sample)) {
    if (!(await killSyncAt(t, n, built, shown, env))) break;
    last = n;
  }
  t.diagnostic(`SEED=${SEED}, last killed before step ${last}`);
  assert.ok(last > least && last < STEPS_MAX - 50, `it has some steps: ${last}`);
}

test("sync: killed before any of its steps, hides and tears nothing, and the next one finishes", (t) => killSyncs(t, 24, 80));

test("sync: killed with the git that it runs, leaves at most a lock that is named", (t) => killSyncs(t, 8, 8, { KILL_GIT: "1" }));

/** A repository of code with a remote, and below it a root; its branch may be there already, with a message that was not pushed. */
function besideCode(dir: string, isBegun: boolean): void {
  const [code, root] = [path.join(dir, "code"), path.join(dir, "code", ".agent-chat")];
  git(dir, "init", "-q", "--bare", "-b", "main", "chat.git");
  git(dir, "init", "-q", "-b", "main", "code");
  fs.writeFileSync(path.join(code, "a.c"), "int x;\n");
  git(code, "add", ".");
  git(code, "-c", "user.name=U", "-c", "user.email=u@x", "commit", "-q", "-m", "code");
  git(code, "remote", "add", "origin", "../chat.git");
  git(code, "push", "-q", "origin", "main");
  fs.mkdirSync(root);
  succeed(root, "init", "talk");
  succeed(root, "post", "talk", "--as", "ann", "--body", "one");
  if (!isBegun) return;
  succeed(root, "sync", "--init", "origin");
  succeed(root, "post", "talk", "--as", "ann", "--body", "two");
  succeed(root, "task", "talk", "three", "--as", "ann");
  fs.renameSync(path.join(dir, "chat.git"), path.join(dir, "away"));
  assert.equal(runAt(root, ["sync"]).status, 1);
  fs.renameSync(path.join(dir, "away"), path.join(dir, "chat.git"));
  fs.rmSync(root, { recursive: true });
  fs.mkdirSync(root); // where the next one runs
}

/** What is left in the repository of code, and in the root. */
function tracesIn(root: string): unknown[] {
  const code = path.dirname(root);
  const trees = git(code, "worktree", "list", "--porcelain").match(/^(branch|detached).*/gm);
  const config = git(code, "config", "--get-regexp", "^branch").split("\n").filter((row) => !/agentchat true/.test(row)).sort();
  const names = fs.readdirSync(root).filter((name) => !/^\.git(ignore|attributes)?(\.\w{10})?$/.test(name)); // or a draft of one
  const talked = fs.readdirSync(path.join(root, "talk")).filter((name) => name.endsWith(".md"));
  return [trees, config, names, talked, git(code, "status", "--porcelain"), git(code, "ls-tree", "-r", "--name-only", "origin/agent-chat")];
}

test("sync --init NAME: killed before any of its steps, makes the same once it is run again, and leaves nothing behind", (t) => {
  for (const isBegun of [false, true]) {
    const { dir } = sandbox(t);
    fs.mkdirSync(path.join(dir, "built"));
    besideCode(path.join(dir, "built"), isBegun);
    const rootIn = (name: string): string => {
      fs.cpSync(path.join(dir, "built"), path.join(dir, name), { recursive: true });
      return path.join(dir, name, "code", ".agent-chat");
    };
    const whole = rootIn("whole");
    succeed(whole, "sync", "--init", "origin");
    let last = 0;
    for (const n of steps(14)) {
      const root = rootIn(`killed-${n}`);
      const { signal } = runAt(root, ["sync", "--init", "origin"], { KILL_AT: String(n) });
      if (signal !== "SIGKILL") break;
      last = n;
      succeed(root, "sync", "--init", "origin");
      assert.deepEqual(tracesIn(root), tracesIn(whole), `SEED=${SEED}, killed before step ${n}`);
    }
    t.diagnostic(`SEED=${SEED}, last killed before step ${last}`);
    assert.ok(last > 15, `it has some steps: ${last}`);
  }
});

test("sync --init NAME: of three at once all end well, and there is one work tree", async (t) => {
  const { dir, start } = sandbox(t);
  besideCode(dir, false);
  const [code, root] = [path.join(dir, "code"), path.join(dir, "code", ".agent-chat")];
  const all = await Promise.all([1, 2, 3].map(() => start(["sync", "--init", "origin", "--root", root], { cwd: code }).ended));
  assert.deepEqual(all.map(({ status }) => status), [0, 0, 0], all.map(({ stderr }) => stderr).join(""));
  const [trees, , names] = tracesIn(root);
  assert.deepEqual([trees, names], [["branch refs/heads/main", "branch refs/heads/agent-chat"], ["talk"]]);
});

test("sync: two at once of one root both end well, and what is new is carried by one commit", async (t) => {
  const { dir, start } = sandbox(t);
  const shown = await twoMachines(dir);
  const root = path.join(dir, "a");
  const both = await Promise.all([1, 2].map(() => start(["sync", "--root", root]).ended));
  assert.deepEqual(both.map(({ status }) => status), [0, 0], both.map(({ stderr }) => stderr).join(""));
  const all = [...SHARED, ...THEIRS, ...OURS];
  assertReadable(root, all, all, shown, "after two at once");
  assertSynced(root, all, "two at once");
  assert.equal(git(root, "log", "--oneline").split("\n").length, 3, "one commit for each sync that had news");
});

test("post: an answer is to the message that had the number when it was given, though numbers change before its turn", async (t) => {
  const { root } = sandbox(t);
  const channel = await chat.createChannel(root, "talk");
  for (const letter of SHARED) await write(root, letter);
  const lock = path.join(channel.path, "_seq.lock");
  fs.mkdirSync(lock); // another, who gives numbers anew
  fs.writeFileSync(path.join(lock, `elsewhere.1.x.draft`), "");
  const posting = chat.post(channel, { from: "cat", body: "yes", reply: 2, force: true });
  const [from, to] = ["0002-bob-s2.md", "0003-bob-s2.md"].map((file) => path.join(channel.path, file)) as [string, string];
  fs.writeFileSync(to, fs.readFileSync(from, "utf8").replace("seq: 2", "seq: 3"));
  fs.writeFileSync(from, fs.readFileSync(from, "utf8").replace("title: s2", "title: other"));
  fs.renameSync(from, path.join(channel.path, "0002-eve-other.md"));
  const moves = [{ from: "0002-bob-s2.md", to: "0003-bob-s2.md", reply: null, files: [], keep: false }];
  fs.writeFileSync(path.join(channel.path, ".cursors", ".moved"), `\n${JSON.stringify({ id: "x", moves, shared: [], fresh: [] })}`);
  fs.rmSync(lock, { recursive: true });
  const { message } = await posting;
  assert.deepEqual([message.seq, message.reply_to, message.to, message.title], [4, 3, ["bob"], "re: s2"]);
  assert.match(fs.readFileSync(message.path, "utf8"), /^reply_to: 3$/m);
});

// ---- renumber ------------------------------------------------------------------------------------------------------

const BOTH: Letter[] = [
  { id: "s1", from: "ann" },
  { id: "a2", from: "ann" },
  { id: "b2", from: "bob" },
  { id: "a3", from: "cat", to: ["ann", "dan"] },
  { id: "b3", from: "eve", to: ["bob", "cat"] },
];

/** One folder, as git leaves it where two clones that posted on their own are merged. */
async function mergedByHand(dir: string): Promise<Shown> {
  const [a, b] = [path.join(dir, "a"), path.join(dir, "b")];
  await chat.createChannel(a, "talk");
  await write(a, BOTH[0]!);
  fs.cpSync(a, b, { recursive: true });
  const shown: Shown = new Map();
  await show(a, "dan", shown);
  await write(a, BOTH[1]!);
  await write(a, BOTH[3]!, "a2");
  await write(b, BOTH[2]!, "s1", "theirs");
  await write(b, BOTH[4]!, "b2");
  fs.cpSync(b, a, { recursive: true, filter: (file) => !file.includes(".cursors") && !file.endsWith("_meta.json") });
  const batch = chat.read(talk(a), "cat"); // was shown one of two that have a number
  const some = batch.messages.filter(({ title }) => ["s1", "b2"].includes(title));
  shown.set("cat", some.map(({ title }) => title));
  await chat.mark(batch, some);
  await show(a, "ann", shown);
  return shown;
}

async function killRenumberAt(t: TestContext, n: number, built: string, given: Shown): Promise<boolean> {
  const dir = path.join(sandbox(t).dir, "copy");
  fs.cpSync(built, dir, { recursive: true });
  const root = path.join(dir, "a");
  const when = `killed before step ${n}`;
  const shown: Shown = new Map(given);
  const { signal, status, stderr } = runAt(root, ["renumber", "talk"], { KILL_AT: String(n) });
  assert.ok(signal === "SIGKILL" || status === 0, `${when}: ${stderr}`);
  assertReadable(root, BOTH, BOTH, shown, when);
  const all = [...BOTH, ...(n % 3 === 0 ? [] : [LATE])];
  if (n % 3 === 1) for (const name of ["dan", "cat", "bob"]) await show(root, name, shown);
  if (n % 3 !== 0) await write(root, LATE, "b3");
  assertReadable(root, all, all, shown, `${when}, and others came`);
  succeed(root, "renumber", "talk");
  assertReadable(root, all, all, shown, `${when}, after the next renumber`);
  const numbers = chat.listMessages(talk(root)).entries.map(({ seq }) => seq);
  assert.deepEqual(numbers, numbers.map((_, i) => i + 1), when);
  const pairs = [["a3", "a2"], ["b3", "b2"], ["b2", "s1"]] as const;
  for (const [id, to] of pairs) assert.equal(find(root, id).reply_to, find(root, to).seq, `${when}: ${id} answers ${to}`);
  const file = /_files\/\S+/.exec(find(root, "b2").body)?.[0];
  assert.equal(fs.readFileSync(path.join(root, "talk", file!), "utf8"), "theirs", when);
  const moving = path.join(root, "talk", ".cursors", ".moving");
  assert.ok(!fs.existsSync(moving) || fs.statSync(moving).size === 0, when);
  fs.rmSync(dir, { recursive: true });
  return signal === "SIGKILL";
}

test("renumber: killed before any of its steps, hides and tears nothing for those who come then", async (t) => {
  const built = path.join(sandbox(t).dir, "built");
  fs.mkdirSync(built);
  const shown = await mergedByHand(built);
  let last = 0;
  for (const n of steps(10)) {
    if (!(await killRenumberAt(t, n, built, shown))) break;
    last = n;
  }
  t.diagnostic(`SEED=${SEED}, last killed before step ${last}`);
  assert.ok(last > 15 && last < STEPS_MAX - 50, `it has some steps: ${last}`);
});
