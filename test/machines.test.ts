// Three machines that share a channel through one bare repository: agents post, read, claim and finish while syncs run,
// are killed at random moments, and the remote comes and goes.
//
// SEED=n makes the same choices again (what happens between them, the machine decides); LONG=1 runs 60 s of them.
import assert from "node:assert/strict";
import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { test, type TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { BIN, cleanEnv, random, rows, sandbox, watchChild, type Result } from "./helpers.ts";

const LONG = process.env["LONG"] === "1";
const SEED = Number(process.env["SEED"] ?? Date.now() % 1_000_000);
const CHAOS_MS = LONG ? 60_000 : 4_500;
const NAMES = [
  ["ann", "ben"],
  ["ann", "cat"],
  ["ben", "dan"],
] as const; // who is on which machine: ann and ben are on two
const EVERYBODY = ["ann", "ben", "cat", "dan"];

interface Machine {
  readonly id: number;
  readonly root: string;
  readonly remote: string; // a link to the repository, taken away while the machine is offline
  readonly syncs: Set<ChildProcess>;
}

/** A message that its poster has been told of. */
interface Posted {
  readonly id: string; // the first word of its body
  readonly from: string;
  readonly to: readonly string[];
  readonly answers: string | undefined; // the id of what it answers; undefined: nothing, or it cannot be told which
}

interface World {
  readonly dir: string;
  readonly machines: readonly Machine[];
  readonly posted: Posted[];
  readonly tasks: string[]; // ids of those whose making was acknowledged
  readonly shown: Map<string, string[]>; // ids of messages by machine and reader
  readonly counts: Record<string, number>;
  over: boolean;
}

type Dice = () => number;
const pick = <T>(dice: Dice, all: readonly T[]): T => all[Math.floor(dice() * all.length)]!;
const count = ({ counts }: World, what: string): unknown => (counts[what] = (counts[what] ?? 0) + 1);
const idIn = (text: string): string | undefined => /\bid-[\w-]+/.exec(text)?.[0];

function launch({ root }: Machine, args: readonly string[]): { child: ChildProcess; ended: Promise<Result> } {
  const child = spawn(process.execPath, [BIN, ...args, "--root", root], {
    cwd: root,
    env: cleanEnv(),
    stdio: ["ignore", "pipe", "pipe"],
  });
  return watchChild(child);
}

const run = (machine: Machine, args: readonly string[]): Promise<Result> => launch(machine, args).ended;

function messageFiles(root: string, channel = "talk"): string[] {
  const names = fs.readdirSync(path.join(root, channel));
  return names.filter((name) => /^\d+-.*\.md$/.test(name) && !name.startsWith("task-")).sort();
}

/** The messages of a folder by id: number and text; what goes or moves meanwhile is not in it. */
function messagesIn(root: string): Map<string, { seq: number; text: string; file: string }> {
  const found = messageFiles(root).flatMap((file) => {
    try {
      const text = fs.readFileSync(path.join(root, "talk", file), "utf8");
      const id = idIn(text);
      return id === undefined ? [] : [[id, { seq: Number.parseInt(file, 10), text, file }] as const];
    } catch {
      return [];
    }
  });
  return new Map(found);
}

// ---- what agents do ------------------------------------------------------------------------------------------------

async function postOne(world: World, machine: Machine, name: string, n: number, dice: Dice): Promise<void> {
  const id = `id-${machine.id}-${name}-${n}`;
  const to = dice() < 0.4 ? [pick(dice, EVERYBODY.filter((other) => other !== name))] : [];
  const before = messagesIn(machine.root);
  const [target, at] = dice() < 0.4 ? (pick(dice, [...before]) ?? []) : [];
  const body = `${id}\n\n${"x".repeat(Math.floor(dice() ** 6 * 20_000))}\nend of ${id}\n`;
  const reply = at === undefined ? [] : ["--reply", String(at.seq)];
  const args = ["--as", name, "--to", to[0] ?? "all", "--title", `t ${n % 3}`, "--body", body, "--force", ...reply];
  const pushes = dice() < 0.15;
  const { status, stderr } = await run(machine, ["post", "talk", ...args, ...(pushes ? ["--sync"] : [])]);
  const sure = target !== undefined && messagesIn(machine.root).get(target)?.seq === at!.seq;
  if (status === 1 && /no message #\d+ .*; what was .* is .* now/.test(stderr)) return; // it got another number
  const kept = pushes && status === 1 && /and not pushed/.test(stderr);
  assert.ok(status === 0 || kept, `post: ${stderr}`);
  world.posted.push({ id, from: name, to, answers: sure ? target : undefined });
  count(world, "posts");
}

const READING = [["read"], ["read"], ["read", "--sync"], ["wait", "--timeout", "1"]] as const;

async function readAll(world: World, machine: Machine, name: string, how: readonly string[] = ["read"]): Promise<void> {
  const [verb, ...more] = how as [string, ...string[]];
  const args = [verb, "talk", "--as", name, "--json", "--max-bytes", "10000000", ...more];
  const { status, stdout, stderr } = await run(machine, args);
  if (verb === "wait" && status === 2) return; // nothing came
  assert.equal(status, 0, `${verb}: ${stderr}`);
  const key = `${machine.id}/${name}`;
  const said = rows<{ body: string; from: string }>(stdout).flatMap(({ body }) => idIn(body) ?? []);
  world.shown.set(key, [...(world.shown.get(key) ?? []), ...said]);
  count(world, "reads");
}

async function work(world: World, machine: Machine, name: string, n: number, dice: Dice): Promise<void> {
  const what = dice();
  if (what < 0.3) {
    const id = `id-task-${machine.id}-${name}-${n}`;
    const { status, stderr } = await run(machine, ["task", "talk", "work", "--as", name, "--body", id]);
    assert.equal(status, 0, `task: ${stderr}`);
    world.tasks.push(id);
    return;
  }
  const tasks = fs.readdirSync(path.join(machine.root, "talk")).filter((file) => file.startsWith("task-"));
  const [, id] = /^task-(\d+)\./.exec(pick(dice, tasks) ?? "") ?? [];
  if (id === undefined) return;
  const [verb, ...more] = what < 0.7 ? ["claim"] : ["done", "--body", "it is done"];
  const { status, stderr } = await run(machine, [verb!, "talk", id, "--as", name, ...more]);
  assert.ok(status === 0 || status === 1 || status === 3, `${verb}: ${status} ${stderr}`);
  if (status === 0) count(world, verb!);
}

async function agent(world: World, machine: Machine, name: string, dice: Dice): Promise<void> {
  for (let n = 1; !world.over; n++) {
    const what = dice();
    if (what < 0.5) await postOne(world, machine, name, n, dice);
    else if (what < 0.75) await readAll(world, machine, name, pick(dice, READING));
    else await work(world, machine, name, n, dice);
    await sleep(dice() * 200);
  }
}

// ---- what befalls them ---------------------------------------------------------------------------------------------

/** The git that a sync runs leads a group of its own, and outlives it. */
function childrenOf(pid: number): number[] {
  try {
    const text = fs.readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8");
    return text.split(" ").filter((word) => word !== "").map(Number);
  } catch {
    return []; // ended, or no Linux
  }
}

function killSync(child: ChildProcess, withGit: boolean): void {
  const gits = withGit && child.exitCode === null ? childrenOf(child.pid!) : [];
  child.kill("SIGKILL");
  for (const pid of gits)
    try {
      process.kill(-pid, "SIGKILL");
    } catch {
      // it has ended, or has no group yet
    }
}

/** A git that was killed leaves its locks; who is told of one removes it, as the error says. */
function heed({ root }: Machine, { stderr }: Result): boolean {
  const lock = /rm '?(\S+\.lock)'?/.exec(stderr)?.[1];
  if (lock === undefined) return false;
  assert.ok(lock.startsWith(path.join(root, ".git")), stderr);
  fs.rmSync(lock, { force: true });
  return true;
}

async function syncer(world: World, machine: Machine, dice: Dice): Promise<void> {
  while (!world.over) {
    const { child, ended } = launch(machine, ["sync", "--json"]);
    machine.syncs.add(child);
    const [dies, withGit, after] = [dice() < 0.35, dice() < 0.5, dice() * 500];
    if (dies) setTimeout(() => killSync(child, withGit), after);
    const result = await ended;
    machine.syncs.delete(child);
    count(world, result.signal !== null ? "killed syncs" : result.status === 0 ? "syncs" : "failed syncs");
    if (result.status !== 0 && result.signal === null && !heed(machine, result))
      assert.match(result.stderr, /"code":"(unpushed|remote)"/, result.stderr);
    await sleep(dice() * 150);
  }
}

async function weather(world: World, machine: Machine, dice: Dice): Promise<void> {
  while (!world.over) {
    await sleep(500 + dice() * 1500);
    fs.renameSync(machine.remote, `${machine.remote}.away`);
    await sleep(dice() * 800);
    fs.renameSync(`${machine.remote}.away`, machine.remote);
  }
}

// ---- what holds at the end -----------------------------------------------------------------------------------------

function filesOf(root: string): Map<string, string> {
  const all = fs.readdirSync(root, { recursive: true, withFileTypes: true });
  const files = all
    .filter((entry) => entry.isFile())
    .map((entry) => path.relative(root, path.join(entry.parentPath, entry.name)))
    .filter((file) => !/^\.git[\\/]|\.cursors|\.lock/.test(file));
  return new Map(files.sort().map((file) => [file, fs.readFileSync(path.join(root, file), "latin1")]));
}

async function settle(machine: Machine): Promise<void> {
  for (let left = 5; ; left--) {
    const result = await run(machine, ["sync", "--json"]);
    if (result.status === 0) return;
    assert.ok(left > 0 && heed(machine, result), `sync of machine ${machine.id}: ${result.stderr}`);
  }
}

function checkMessages({ machines, posted }: World): void {
  const { root } = machines[0]!;
  const files = messageFiles(root);
  assert.deepEqual(
    files.map((file) => Number.parseInt(file, 10)),
    files.map((_, i) => i + 1),
    "numbers have no holes, and none is twice",
  );
  const texts = files.map((file) => fs.readFileSync(path.join(root, "talk", file), "utf8"));
  const byId = messagesIn(root);
  for (const { id, from, answers } of posted) {
    assert.equal(texts.filter((text) => text.includes(`\n${id}\n`)).length, 1, `${id} is there once`);
    const { text, seq, file } = byId.get(id)!;
    assert.ok(text.endsWith(`end of ${id}\n`), `${id} is whole`);
    assert.match(text, RegExp(`^seq: ${seq}$`, "m"), file);
    assert.ok(file.includes(`-${from}-`), file);
    const reply = /^reply_to: (.*)$/m.exec(text)?.[1];
    if (answers !== undefined) assert.equal(reply, String(byId.get(answers)!.seq), `${file} answers ${answers}`);
  }
}

function checkShown({ machines, posted, shown }: World): void {
  for (const { id: machine } of machines)
    for (const name of NAMES[machine]!) {
      const meant = posted.filter(({ from, to }) => from !== name && (to.length === 0 || to.includes(name)));
      const got = shown.get(`${machine}/${name}`) ?? [];
      const odd = [...new Set([...meant.map(({ id }) => id), ...got])].flatMap((id) => {
        const [times, wanted] = [got.filter((other) => other === id).length, meant.some((one) => one.id === id) ? 1 : 0];
        return times === wanted ? [] : [`${id} ${times} times`];
      });
      assert.deepEqual(odd, [], `shown to ${name} on machine ${machine}`);
    }
}

function checkTasks({ machines, tasks }: World): void {
  const { root } = machines[0]!;
  const files = fs.readdirSync(path.join(root, "talk")).filter((file) => file.startsWith("task-"));
  const ids = files.map((file) => file.split(".")[0]);
  assert.equal(new Set(ids).size, ids.length, `one file for each task: ${files.join(" ")}`);
  const texts = files.map((file) => fs.readFileSync(path.join(root, "talk", file), "utf8"));
  for (const id of tasks) assert.equal(texts.filter((text) => text.includes(`${id}\n`)).length, 1, `${id} is there once`);
}

function checkHistory({ dir, machines }: World): void {
  const git = (cwd: string, ...args: string[]): string => execFileSync("git", args, { cwd, encoding: "utf8" });
  assert.equal(git(path.join(dir, "chat.git"), "log", "--merges", "--oneline", "main"), "", "one line of commits");
  for (const { root } of machines) {
    assert.equal(git(root, "status", "--porcelain"), "", `nothing is left to be committed in ${root}`);
    const moving = path.join(root, "talk", ".cursors", ".moving");
    assert.equal(fs.existsSync(moving) ? fs.readFileSync(moving, "utf8") : "", "");
  }
}

function build(t: TestContext): World {
  const { dir } = sandbox(t);
  const bare = path.join(dir, "chat.git");
  execFileSync("git", ["init", "-q", "--bare", "-b", "main", bare]);
  const machines = NAMES.map((_, id): Machine => {
    const [root, remote] = [path.join(dir, `m${id}`), path.join(dir, `remote${id}`)];
    fs.symlinkSync(bare, remote);
    fs.mkdirSync(root);
    return { id, root, remote, syncs: new Set() };
  });
  return { dir, machines, posted: [], tasks: [], shown: new Map(), counts: {}, over: false };
}

test("sync: three machines post, read and take tasks; syncs are killed, the remote comes and goes", async (t) => {
  t.diagnostic(`SEED=${SEED}`);
  const world = build(t);
  const { machines } = world;
  const ok = async (machine: Machine, args: readonly string[]): Promise<void> => {
    const { status, stderr } = await run(machine, args);
    assert.equal(status, 0, `${args.join(" ")}: ${stderr}`);
  };
  await ok(machines[0]!, ["init", "talk"]);
  for (const machine of machines) await ok(machine, ["sync", "--init", machine.remote]);
  const chaos = machines.flatMap((machine) => {
    const dice = (part: number): Dice => random(SEED * 97 + machine.id * 10 + part);
    const agents = NAMES[machine.id]!.map((name, i) => agent(world, machine, name, dice(i)));
    return [...agents, syncer(world, machine, dice(5)), weather(world, machine, dice(6))];
  });
  const failed = Promise.all(chaos).finally(() => (world.over = true));
  await Promise.race([failed, sleep(CHAOS_MS)]);
  world.over = true;
  await failed;
  for (let round = 0; round < 2; round++) for (const machine of machines) await settle(machine);
  const [first, ...others] = machines.map(({ root }) => filesOf(root));
  for (const other of others) assert.deepEqual(other, first, "all folders are equal");
  for (const machine of machines) for (const name of NAMES[machine.id]!) await readAll(world, machine, name);
  t.diagnostic(JSON.stringify(world.counts));
  checkMessages(world);
  checkShown(world);
  checkTasks(world);
  checkHistory(world);
});
