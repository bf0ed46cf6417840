// Real crashes: processes that write and read one channel are killed and suspended at random moments, and started again.
//
// SEED=n makes the same choices again (what happens between them, the machine decides); LONG=1 runs 30 s of them.
import assert from "node:assert/strict";
import { spawn, spawnSync, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { test, type TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { BIN, cleanEnv, random, rows, sandbox, until } from "./helpers.ts";

const LONG = process.env["LONG"] === "1";
const SEED = Number(process.env["SEED"] ?? Date.now() % 1_000_000);
const FIRST = SEED % 2 === 0 ? 1 : 60_000; // the first number: in a large channel, posts are numbered in another way
const CHAOS_MS = LONG ? 30_000 : 5_000;
const STALE_MS = 5_000; // how long the lock of a suspended writer is respected
const MARGIN_MS = 2_500;

// ---- those who write and read --------------------------------------------------------------------------------------

/** Writers say on stdout "posted #N of ID" once the post has been acknowledged; an ID ends with its body's size. */
const WRITER = `
const [root, bin, name, life] = process.argv.slice(1);
const core = require(bin);
const channel = core.openChannel(root, "talk");
(async () => {
  for (let n = 1; ; n++) {
    const size = Math.floor(Math.random() ** 8 * 60_000);
    const id = [name, life, n, size].join(".");
    const to = [["ann"], ["cat", "ben"], [], []][n % 4];
    const { message } = await core.post(channel, { from: name, to, title: "x", body: id + "\\n" + "x".repeat(size) + "\\nend of " + id + "\\n" });
    require("node:fs").writeSync(1, "posted #" + message.seq + " of " + id + "\\n");
    await new Promise((resolve) => setTimeout(resolve, Math.random() * 40));
  }
})();`;

/** Readers print each message as --json does, and once it is marked, since when they had been looking. */
const READER = `
const [root, bin, name] = process.argv.slice(1);
const core = require(bin);
const say = (row) => require("node:fs").writeSync(1, JSON.stringify(row) + "\\n");
(async () => {
  for (;;) {
    const began = Date.now();
    const [batch] = await core.wait([core.openChannel(root, "talk")], name, { timeout: 1e6, interval: 0.05 });
    batch.messages.forEach(say);
    await new Promise((resolve) => setTimeout(resolve, Math.random() * 40));
    await core.mark(batch, batch.messages);
    say({ began, marked: Date.now() });
  }
})();`;

/** One process, from its start to its end. */
interface Life {
  readonly actor: Actor;
  readonly child: ChildProcess;
  readonly log: string; // its stdout, a file: what is in there, the system has taken
  readonly began: number;
  ended: number;
  killed: boolean;
}

interface Actor {
  readonly name: string;
  readonly command: boolean; // agent-chat itself, not a script that uses it
  readonly reads: boolean;
}

const AGENTS = ["ann", "ben", "cat", "cat"]; // two are one
const READERS: Actor[] = AGENTS.map((name, i) => ({ name, command: i % 2 === 1, reads: true }));
const WRITERS: Actor[] = Array.from({ length: 8 }, (_, i) => ({ name: `w${i + 1}`, command: i >= 6, reads: false }));

const WATCHER = WRITERS[0]; // never killed: only who lives for 5 s sees that a lock without a draft is stale

interface Run {
  readonly root: string;
  readonly folder: string; // of the channel
  readonly logs: string;
  readonly lives: Life[];
  over: boolean; // nobody is started again
}

function argumentsOf({ name, command, reads }: Actor, { root, lives }: Run): string[] {
  if (!command) return ["-e", reads ? READER : WRITER, root, BIN, name, String(lives.length)];
  if (reads) return [BIN, "wait", "talk", "--as", name, "--json", "--timeout", "2"];
  const id = `${name}.${lives.length}.1.0`;
  return [BIN, "post", "talk", "--as", name, "--title", "x", "--body", `${id}\n\nend of ${id}\n`];
}

function startLife(run: Run, actor: Actor, args = argumentsOf(actor, run)): Life {
  const log = path.join(run.logs, String(run.lives.length));
  const [out, err] = [fs.openSync(log, "w"), fs.openSync(`${log}.err`, "w")];
  const began = Date.now();
  const child = spawn(process.execPath, args, {
    env: cleanEnv({ AGENT_CHAT_ROOT: run.root }),
    stdio: ["ignore", out, err],
  });
  [out, err].forEach((fd) => fs.closeSync(fd));
  const life: Life = { actor, child, log, began, ended: Infinity, killed: false };
  child.once("exit", () => (life.ended = Date.now()));
  run.lives.push(life);
  return life;
}

/** Starts an actor again and again. */
async function keepAlive(run: Run, actor: Actor): Promise<void> {
  while (!run.over) {
    await once(startLife(run, actor).child, "exit");
    await sleep(30);
  }
}

const alive = ({ lives }: Run): Life[] => lives.filter(({ ended, killed }) => ended === Infinity && !killed);

function kill(life: Life): void {
  life.killed = true;
  life.child.kill("SIGKILL");
}

/** Kills one, or suspends it for a while; now and then for longer than a lock is respected. */
async function strike(run: Run, chance: () => number): Promise<void> {
  const living = alive(run);
  const life = living[Math.floor(chance() * living.length)];
  const [dies, ms] = [chance() < 0.5, LONG && chance() < 0.02 ? STALE_MS + 1500 : 20 + chance() * 600];
  if (life === undefined) return;
  if (dies && life.actor !== WATCHER) return kill(life);
  life.child.kill("SIGSTOP");
  await sleep(ms);
  life.child.kill("SIGCONT");
}

async function chaos(run: Run): Promise<void> {
  const chance = random(SEED);
  const strikes: Promise<void>[] = [];
  const start = Date.now();
  while (Date.now() < start + CHAOS_MS || fs.readdirSync(run.folder).length < 60) {
    strikes.push(strike(run, chance));
    await sleep(10 + chance() * 80);
    assert.ok(Date.now() < start + CHAOS_MS + 20_000, "hardly anything was posted");
  }
  await Promise.all(strikes); // nobody is suspended any more
}

/** Suspends a writer while it holds the lock. */
async function suspendHolder(run: Run): Promise<Life> {
  const deadline = Date.now() + 10_000;
  while (Date.now() < deadline) {
    const draft = draftsOf(run)[0];
    const life = alive(run).find(({ child }) => child.pid === Number(draft?.split(".")[1]));
    life?.child.kill("SIGSTOP");
    await sleep(3); // a call under way still returns
    if (life !== undefined && draft === draftsOf(run)[0]) return life;
    life?.child.kill("SIGCONT");
  }
  throw new Error("no writer was met while it held the lock");
}

function draftsOf({ folder }: Run): string[] {
  try {
    return fs.readdirSync(path.join(folder, "_seq.lock"));
  } catch {
    return []; // free
  }
}

// ---- what must be true afterwards ----------------------------------------------------------------------------------

interface Message {
  readonly seq: number;
  readonly id: string;
  readonly to: string;
  readonly body: string;
}

/** The messages in the folder; fails where one is torn, or a number is missing or given twice. */
function messagesIn({ folder }: Run): Message[] {
  const files = fs
    .readdirSync(folder)
    .filter((name) => /^\d/.test(name))
    .sort((a, b) => parseInt(a, 10) - parseInt(b, 10));
  const messages = files.map((file) => {
    const text = fs.readFileSync(path.join(folder, file), "utf8");
    const [, seq, to = "", body = ""] =
      /^---\nseq: (\d+)\nfrom: .*\nto: (.*)\n(?:\w+: .*\n)+---\n([^]*)$/.exec(text) ?? [];
    assert.equal(Number(seq), parseInt(file, 10), `${file} is no message`);
    return { seq: Number(seq), id: idOf(body, file), to, body };
  });
  assert.deepEqual(
    messages.map(({ seq }) => seq),
    messages.map((_, i) => FIRST + i),
    "a number is missing or was given twice",
  );
  assert.equal(new Set(messages.map(({ id }) => id)).size, messages.length, "something was posted twice");
  return messages;
}

/** What a body says it is; fails unless all of it is there. */
function idOf(body: string, file: string): string {
  const [, id = "", size, filling] = /^(\S+\.(\d+))\n(x*)\nend of \1\n$/.exec(body) ?? [];
  assert.ok(id !== "" && filling?.length === Number(size), `${file} is torn`);
  return id;
}

/** Of a script, the ID is on its stdout; a command has posted but one message. */
function assertAcknowledged({ lives }: Run, messages: readonly Message[]): void {
  let count = 0;
  for (const { actor, log } of lives.filter((life) => !life.actor.reads)) {
    const lines = fs.readFileSync(log, "utf8").split("\n");
    for (const line of lines.filter((text) => text.startsWith("posted #"))) {
      const [, seq, id] = /^posted #(\d+)(?: of (.*)| -> .*)$/.exec(line) ?? [];
      const found = messages[Number(seq) - FIRST]?.id;
      assert.equal(found, id ?? `${actor.name}.${path.basename(log)}.1.0`, `not there: ${line}`);
      count++;
    }
  }
  assert.ok(count > 20, `only ${count} posts were acknowledged: this tested nothing`);
}

type Shown = Pick<Message, "seq" | "body">;

/** What one look showed; `marked` is when that was over, Infinity if it never was. */
interface Look {
  readonly life: Life;
  readonly began: number;
  readonly marked: number;
  readonly shown: readonly Shown[];
}

type Row = Shown | Pick<Look, "began" | "marked">;

/** What a reader's log tells; a command looks once, and has marked what it showed if it exits 0. */
function looksOf(life: Life): Look[] {
  const text = fs.readFileSync(life.log, "utf8");
  const told = rows<Row>(text.slice(0, text.lastIndexOf("\n") + 1));
  if (life.child.exitCode === 0) told.push({ began: life.began, marked: life.ended });
  const looks: Look[] = [];
  let shown: Shown[] = [];
  for (const row of told) {
    if ("seq" in row) {
      shown.push(row);
    } else {
      looks.push({ life, ...row, shown });
      shown = [];
    }
  }
  return [...looks, { life, began: life.began, marked: Infinity, shown }];
}

function assertShown({ lives }: Run, messages: readonly Message[]): void {
  for (const name of new Set(AGENTS)) {
    const looks = lives.filter(({ actor }) => actor.reads && actor.name === name).flatMap(looksOf);
    const seen = looks.flatMap(({ shown }) => shown);
    for (const { seq, body } of seen)
      assert.ok(body === messages[seq - FIRST]?.body, `${name} was shown a torn #${seq}`);
    const mine = messages.filter(({ to }) => to === "all" || to.split(", ").includes(name)).map(({ seq }) => seq);
    const found = [...new Set(seen.map(({ seq }) => seq))].sort((a, b) => a - b);
    assert.deepEqual(found, mine, `what ${name} was shown is not what was for ${name}`);
    assertNotAgain(name, looks);
  }
}

/** Once per process, and never in a look that began when the message had been marked. */
function assertNotAgain(name: string, looks: readonly Look[]): void {
  const marked = new Map<number, number>(); // since when
  for (const { shown, marked: at } of looks)
    shown.forEach(({ seq }) => marked.set(seq, Math.min(at, marked.get(seq) ?? Infinity)));
  const seen = new Set<string>();
  for (const { life, began, shown } of looks) {
    for (const { seq } of shown) {
      const showing = `${life.log} ${seq}`;
      assert.ok(!seen.has(showing), `one process was shown #${seq} twice, as ${name}`);
      assert.ok(
        began <= marked.get(seq)!,
        `#${seq} had been marked ${began - marked.get(seq)!} ms ago, and ${name} was shown it again`,
      );
      seen.add(showing);
    }
  }
}

/** Whoever was not killed has done what it should. */
function assertNoFailure({ lives }: Run): void {
  for (const { actor, child, log } of lives.filter((life) => !life.killed)) {
    const complaint = fs.readFileSync(`${log}.err`, "utf8");
    const timeout = actor.reads && child.exitCode === 2;
    assert.ok(
      actor.command && (child.exitCode === 0 || timeout),
      `${actor.name} ended with ${child.exitCode}: ${complaint}`,
    );
    assert.doesNotMatch(complaint, /^ +at |shown these again/m);
  }
}

// ---- the run -------------------------------------------------------------------------------------------------------

function begin(t: TestContext): Run {
  const box = sandbox(t);
  const run: Run = { root: box.root, folder: box.at("talk"), logs: path.join(box.dir, "logs"), lives: [], over: false };
  fs.mkdirSync(run.logs);
  t.after(() => run.lives.forEach(({ child }) => child.kill("SIGKILL")));
  const made = spawnSync(process.execPath, [BIN, "init", "talk", "--root", run.root], { encoding: "utf8" });
  assert.equal(made.status, 0, made.stderr);
  const head = `---\nseq: ${FIRST}\nfrom: w0\nto: nobody\nchannel: talk\nts: \nstatus: \ntitle: x\n---\n`;
  fs.writeFileSync(
    path.join(run.folder, `${String(FIRST).padStart(4, "0")}-w0-x.md`),
    `${head}w0.0.0.0\n\nend of w0.0.0.0\n`,
  );
  return run;
}

/** Runs a command to its end, as one more of the lives; returns how many milliseconds it took. */
async function finish(run: Run, actor: Actor, ...args: string[]): Promise<number> {
  const life = startLife(run, actor, args.length > 0 ? [BIN, ...args] : argumentsOf(actor, run));
  await once(life.child, "exit");
  assert.equal(life.child.exitCode, 0, fs.readFileSync(`${life.log}.err`, "utf8"));
  return life.ended - life.began;
}

async function killAll(lives: readonly Life[]): Promise<void> {
  lives.forEach(kill);
  await until("all had ended", () => lives.every(({ ended }) => ended < Infinity));
}

/** In every lock a draft, as a process leaves it that is killed. */
function plantLocks({ folder }: Run): void {
  const host = os
    .hostname()
    .replace(/[^A-Za-z0-9-]+/g, "-")
    .slice(0, 60);
  for (const lock of ["_seq.lock", ".cursors/ann.lock", ".cursors/ben.lock", ".cursors/cat.lock"]) {
    fs.mkdirSync(path.join(folder, lock), { recursive: true });
    fs.writeFileSync(path.join(folder, lock, `${host}.${2 ** 22 + 1}.abcdefghij.draft`), "");
  }
}

const JUDGE: Actor = { name: "judge", command: true, reads: false };

/** A writer is suspended in the worst moment: others wait no longer than they must, and when it wakes, it posts. */
async function outliveHolder(run: Run): Promise<void> {
  WRITERS.slice(0, 3).forEach((actor) => startLife(run, actor));
  const holder = await suspendHolder(run);
  await killAll(alive(run).filter((life) => life !== holder));
  const ms = await finish(run, JUDGE);
  assert.ok(ms < STALE_MS + MARGIN_MS, `a fresh post took ${ms} ms`);
  const before = fs.statSync(holder.log).size;
  holder.child.kill("SIGCONT");
  await until("the writer went on", () => fs.statSync(holder.log).size > before);
  await killAll([holder]);
}

/** One more post, and everybody is shown all there is; then nothing of those who were killed is left. */
async function settle(run: Run): Promise<void> {
  plantLocks(run);
  await finish(run, JUDGE);
  for (const { name } of READERS) {
    const reader = { name, command: true, reads: true };
    await finish(run, reader, "read", "talk", "--as", name, "--json");
  }
  const left = fs.readdirSync(run.folder, { recursive: true, encoding: "utf8" });
  assert.deepEqual(
    left.filter((name) => /lock|draft/.test(name)),
    [],
    "locks or drafts were left",
  );
}

test(`8 writers and 4 readers, killed and suspended at random (SEED=${SEED}): no post is lost, no number given twice, no message torn, hidden, or shown again once marked`, async (t) => {
  const run = begin(t);
  const actors = [...WRITERS, ...READERS].map((actor) => keepAlive(run, actor));
  await chaos(run);
  run.over = true;
  await killAll(alive(run));
  await Promise.all(actors);
  messagesIn(run);
  plantLocks(run);
  await outliveHolder(run);
  await settle(run);
  const messages = messagesIn(run);
  assertAcknowledged(run, messages);
  assertShown(run, messages);
  assertNoFailure(run);
  const kills = run.lives.filter(({ killed }) => killed).length;
  t.diagnostic(`${messages.length} messages, ${run.lives.length} processes, ${kills} of them killed; seed ${SEED}`);
});
