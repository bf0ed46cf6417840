// Failing system calls: whichever one fails, nothing is lost, torn, numbered twice or claimed twice, and it is said.
//
// The first part runs the real code in this process, on a file system whose every call can be made to fail and on a
// clock that does not make us wait. The second part runs real processes whose stdout is full, closed, or slow.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import { createRequire } from "node:module";
import os from "node:os";
import path from "node:path";
import { after, test, type TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import type { Batch, Channel } from "../chat.ts";
import { BIN, cleanEnv, sandbox, type Result } from "./helpers.ts";

// ---- a file system that can be made to fail ------------------------------------------------------------------------

type SystemCall = (...args: unknown[]) => unknown;
/** Decides of the n-th call of an operation how it fails: with which error, "SHORT", "LATE ..." or not at all. */
type Plan = (name: string, n: number) => string | undefined;

const SHORT = "SHORT"; // a read or a write that does only a part
const LATE = "LATE "; // an error after the call was carried out, as NFS gives when an answer was lost on the way
const ERRORS = ["ENOSPC", "EIO", "EACCES", "EPERM", "EBUSY", "EROFS", "EMFILE"];
const NEVER: Plan = () => undefined;

let plan: Plan | undefined; // none: the tests' own calls
let nested = false; // a call that Node makes inside another is no call of ours
let calls: string[] = []; // what the operation called
let failed: string[] = []; // what of that was made to fail, as "call 7, openSync"
let standard: readonly number[] = []; // the files that stand in for stdin, stdout and stderr
let whenAsleep: ((slept: number) => void) | undefined; // what others do while an operation sleeps

function wrapped(name: string, real: SystemCall): SystemCall {
  return (first, ...rest) => {
    if (plan === undefined || nested) return real(first, ...rest);
    const args = [typeof first === "number" ? (standard[first] ?? first) : first, ...rest];
    nested = true;
    try {
      const code = plan(name, calls.push(name));
      return code === undefined ? real(...args) : fail(name, real, args, code);
    } finally {
      nested = false;
    }
  };
}

function fail(name: string, real: SystemCall, args: unknown[], code: string): unknown {
  if (code === SHORT) return shorten(name, real, args);
  if (code.startsWith(LATE)) real(...args);
  code = code.replace(LATE, "");
  failed.push(`call ${calls.length}, ${name} ${typeof args[0] === "string" ? args[0] : ""}`);
  if (name === "existsSync") return false; // its way to fail
  if (name === "closeSync") real(...args); // Linux closes the file even where it reports an error
  if (name === "writeFileSync" && ["ENOSPC", "EIO"].includes(code)) real(args[0], half(String(args[1])), args[2]);
  const [syscall, file] = [name.replace("Sync", ""), typeof args[0] === "string" ? { path: args[0] } : {}];
  const errno = -os.constants.errno[code as keyof typeof os.constants.errno];
  throw Object.assign(new Error(`${code}: made to fail, ${syscall}`), { code, errno, syscall, ...file });
}

function shorten(name: string, real: SystemCall, args: unknown[]): unknown {
  if (name !== "writeSync" && name !== "readSync") return real(...args);
  failed.push(`call ${calls.length}, ${name}`);
  const [fd, data, offset = 0, length, position] = args as [number, string | Buffer, number?, number?, number?];
  if (typeof data === "string") return real(fd, half(data));
  return real(fd, data, offset, Math.ceil((length ?? data.length - offset) / 2), position);
}

function half(text: string): string {
  return text.slice(0, Math.ceil(text.length / 2));
}

const system = fs as unknown as Record<string, SystemCall>;
system["fsyncSync"] = () => undefined; // what the disk does is not under test, and it takes most of the time
for (const name of Object.keys(fs).filter((key) => key.endsWith("Sync")))
  system[name] = Object.assign(wrapped(name, system[name]!), system[name]);

type Core = typeof import("../chat.ts");
const core = createRequire(import.meta.url)(path.resolve(BIN)) as Core;

for (const name of ["AGENT_CHAT_ROOT", "AGENT_CHAT_NAME", "AGENT_CHAT_TIMEOUT"]) delete process.env[name];

const real = { hrtime: process.hrtime, setTimeout: globalThis.setTimeout };

/** Runs an operation under a plan, on a clock that every sleep sets forward instead of sleeping. */
async function underPlan<T>(how: Plan, body: () => Promise<T>): Promise<T> {
  let slept = 0; // milliseconds
  const hrtime = (): [number, number] => [
    real.hrtime()[0] + Math.floor(slept / 1000),
    real.hrtime()[1] + (slept % 1000) * 1e6,
  ];
  process.hrtime = Object.assign(hrtime, { bigint: real.hrtime.bigint });
  globalThis.setTimeout = ((step: () => void, ms = 0) => {
    slept += ms;
    offPlan(() => whenAsleep?.(slept));
    return setImmediate(step);
  }) as unknown as typeof setTimeout;
  [plan, calls, failed] = [how, [], []];
  try {
    return await body();
  } finally {
    [plan, whenAsleep] = [undefined, undefined];
    Object.assign(process, { hrtime: real.hrtime });
    globalThis.setTimeout = real.setTimeout;
  }
}

const cleanly = <T>(body: () => Promise<T>): Promise<T> => underPlan(NEVER, body);

// ---- a channel to work on ------------------------------------------------------------------------------------------

const TEXT = `${"All work and no play makes Jack a dull boy.\n".repeat(300)}The end.\n`; // the body of every message
const HOST = os
  .hostname()
  .replace(/[^A-Za-z0-9-]+/g, "-")
  .slice(0, 60);
const NOBODY = 2 ** 22 + 1; // a process number that Linux never gives

const MEMORY = fs.existsSync("/dev/shm") ? "/dev/shm" : os.tmpdir(); // thousands of channels are made, and none is kept
const scratch = fs.mkdtempSync(path.join(MEMORY, "agent-chat-failures-"));
after(() => fs.rmSync(scratch, { recursive: true, force: true }));

interface World {
  readonly root: string;
  readonly folder: string; // of the channel "talk"
  readonly channel: Channel;
  readonly output: string; // where stdout and stderr of a command go
  readonly last: number; // the number of its newest message
}

let worlds = 0;

function makeWorld({ last = 4 }: Pick<Operation, "last">): World {
  const output = path.join(scratch, String(++worlds));
  const root = path.join(output, "root");
  const folder = path.join(root, "talk");
  fs.mkdirSync(output);
  return { root, folder, channel: { root, name: "talk", path: folder }, output, last };
}

/** A channel with members, where bob has been shown #1; #2 and #4 are new for him, #3 is not for him. */
function fillWorld(world: World): void {
  makeChannel(world);
  addMessage(world, 1, "alice", "bob");
  addMessage(world, 2, "erin", "bob");
  addMessage(world, 3, "alice", "carol");
  addMessage(world, 4, "alice", "all");
}

/** A channel so large that posts are numbered without listing it, if all goes well. */
async function fillLargeWorld(world: World): Promise<void> {
  makeChannel(world);
  addMessage(world, world.last - 1, "alice", "bob");
  await cleanly(() => core.post(world.channel, { from: "alice", to: ["bob"], title: "hello", body: TEXT }));
  const modified = fs.statSync(world.folder, { bigint: true }).mtimeNs; // as one that is full of files is left behind
  fs.writeFileSync(path.join(world.folder, ".cursors", ".newest"), `${world.last} ${modified}`);
}

function makeChannel(world: World): void {
  fs.mkdirSync(path.join(world.folder, ".cursors"), { recursive: true });
  const meta = { channel: "talk", members: ["alice", "bob", "carol"], topic: "", created: "" };
  fs.writeFileSync(path.join(world.folder, "_meta.json"), JSON.stringify(meta));
  fs.writeFileSync(path.join(world.folder, "task-1.md"), "to be done\n");
  fs.writeFileSync(path.join(world.output, "body.md"), TEXT);
  fs.writeFileSync(cursorFile(world), "1");
}

function addMessage({ folder }: World, seq: number, from: string, to: string, reply?: number): void {
  const answered = reply === undefined ? "" : `reply_to: ${reply}\n`;
  const head = `---\nseq: ${seq}\nfrom: ${from}\nto: ${to}\n${answered}channel: talk\nts: 2026-01-02T03:04:05+00:00\nstatus: discussion\ntitle: Hello\n---\n`;
  fs.writeFileSync(path.join(folder, `${String(seq).padStart(4, "0")}-${from}-hello.md`), head + TEXT);
}

const cursorFile = ({ folder }: World): string => path.join(folder, ".cursors", "bob.txt");
const cursorLock = ({ folder }: World): string => path.join(folder, ".cursors", "bob.lock");
const numberLock = ({ folder }: World): string => path.join(folder, "_seq.lock");

/** A lock as a writer leaves it that was killed while it wrote. */
function plantLock(lock: string): void {
  fs.mkdirSync(lock);
  fs.writeFileSync(path.join(lock, `${HOST}.${NOBODY}.abcdefghij.draft`), "---\nseq: 5\n");
}

/** The newest message's number; fails where a message is torn, or a number given twice or missing. */
function newest({ folder }: World): number {
  const files = fs
    .readdirSync(folder)
    .filter((name) => /^\d/.test(name))
    .sort();
  const found = files.map((file) => {
    const [, seq, body] =
      /^---\nseq: (\d+)\n(?:\w+: .*\n)+---\n([^]*)$/.exec(fs.readFileSync(path.join(folder, file), "utf8")) ?? [];
    assert.ok(body === TEXT && Number(seq) === parseInt(file, 10), `${file} is torn or empty`);
    return Number(seq);
  });
  assert.deepEqual(
    found,
    found.map((_, i) => found[0]! + i),
    "a number is missing or was given twice",
  );
  return found.at(-1) ?? 0;
}

/** Locks and drafts in their places; a stolen lock, under another name, is in nobody's way. */
function leftLocks({ folder }: World): string[] {
  if (!fs.existsSync(folder)) return [];
  return fs
    .readdirSync(folder, { recursive: true, encoding: "utf8" })
    .filter((name) => /(_seq|\.cursors.\w+)\.lock($|[/\\])/.test(name));
}

/** What this process has open below the root; Node opens and closes things of its own. */
function openFiles({ root }: World): string[] {
  if (process.platform !== "linux") return [];
  const links = fs.readdirSync("/proc/self/fd").map((fd) => {
    try {
      return fs.readlinkSync(`/proc/self/fd/${fd}`);
    } catch {
      return ""; // the folder that was listed
    }
  });
  return links.filter((file) => file.startsWith(root));
}

// ---- operations ----------------------------------------------------------------------------------------------------

/** What an operation said. */
interface Report {
  failure?: { readonly code: string; readonly message: string };
  seq?: number; // of what was posted
  already?: boolean; // of what was claimed
  created?: boolean; // of what was posted under a key
  waited?: boolean; // the wait has come to its end
  rows?: readonly unknown[]; // that a command printed
  slept?: number; // milliseconds
  seen: readonly string[]; // the files of the messages that were shown
  notes: string;
}

interface Operation {
  readonly name: string;
  readonly last?: number; // the number of the newest message at the start: 4
  readonly locked?: boolean; // a lock may be left: it was there before, or cannot be removed
  prepare(world: World): void | Promise<void>;
  act(world: World): Promise<Report>;
  /** Fails unless what is on disk agrees with what was said, and goes on with the next clean call. */
  judge(world: World, report: Report): Promise<void>;
}

/** Uses the functions that the file exports; everything they throw must be a `ChatError`. */
function library(body: (world: World, report: Report) => Promise<void>): Operation["act"] {
  return async (world) => {
    const report: Report = { seen: [], notes: "" };
    try {
      await body(world, report);
    } catch (error) {
      if (!(error instanceof core.ChatError)) throw error;
      report.failure = error;
    }
    return report;
  };
}

/** Runs a command line in this process, its stdin, stdout and stderr being files. */
function commandLine(args: (world: World) => string[]): Operation["act"] {
  return async (world) => {
    const files = ["stdin", "stdout", "stderr"].map((name) => path.join(world.output, name));
    await offPlan(() => (standard = files.map((file) => fs.openSync(file, "w+"))));
    try {
      const exit = await core.main([...args(world), "--root", world.root, "--json"]);
      return offPlan(() => reportOf(exit, fs.readFileSync(files[1]!, "utf8"), fs.readFileSync(files[2]!, "utf8")));
    } finally {
      offPlan(() => standard.forEach((fd) => fs.closeSync(fd)));
      standard = [];
    }
  };
}

function offPlan<T>(body: () => T): T {
  const how = plan;
  plan = undefined;
  try {
    return body();
  } finally {
    plan = how;
  }
}

/** What a command said with its exit code, its stdout and its stderr; whole lines only. */
function reportOf(exit: number, stdout: string, stderr: string): Report {
  const rows = wholeLines(stdout) as { file?: string; seq?: number; already?: boolean }[];
  const error = (wholeLines(stderr) as { error?: { code: string; message: string } }[]).find(
    (line) => line.error !== undefined,
  )?.error;
  const report: Report = { ...rows.at(-1), rows, seen: rows.flatMap(({ file }) => file ?? []), notes: stderr };
  if (exit === 0) assert.equal(error, undefined, "an error and exit 0");
  else assert.equal(exit, 1, `exit ${exit}: ${stderr}`);
  if (exit !== 0) assert.ok(error !== undefined, `exit ${exit} without an error: ${stderr}`);
  return error === undefined ? report : { ...report, failure: error };
}

function wholeLines(text: string): unknown[] {
  return text
    .split("\n")
    .slice(0, -1)
    .map((line) => JSON.parse(line) as unknown);
}

/** Whether an operation has been done: it succeeded, or its error says that it was done all the same. */
function wasDone({ failure }: Report): boolean {
  return failure === undefined || /^(posted #\d|created |claimed |already yours).*, but /.test(failure.message);
}

async function judgePost(world: World, report: Report): Promise<void> {
  const there = newest(world);
  assert.equal(there, wasDone(report) ? world.last + 1 : world.last, "what is there is not what was said");
  assert.equal(report.seq ?? there, there, "another number was said than given");
  await judgeNumber(world, there + 1);
  const fresh = fs.readdirSync(world.folder).filter((name) => /^\d/.test(name) && !/^000[13]-|-bob-/.test(name));
  assert.deepEqual(await show(world, 9), fresh.sort());
}

/** The next clean post gets the next number, and frees the lock. */
async function judgeNumber(world: World, seq: number): Promise<void> {
  const next = await cleanly(() =>
    core.post(world.channel, { from: "bob", to: ["carol"], title: "hello", body: TEXT }),
  );
  assert.equal(next.message.seq, seq, "the next post's number");
  assert.equal(newest(world), seq);
  assert.ok(!fs.existsSync(numberLock(world)), "a lock was left by a clean post");
}

/** Shows bob what is new for him, as often as there is something, and marks up to so many messages each time. */
async function show(world: World, atOnce: number): Promise<string[]> {
  const seen: string[] = [];
  for (;;) {
    const batch = core.read(world.channel, "bob");
    if (batch.messages.length === 0) return seen;
    const shown = batch.messages.slice(0, atOnce);
    assert.ok(
      shown.every(({ body }) => body === TEXT),
      "a torn message was shown",
    );
    seen.push(...shown.map(({ file }) => file));
    await cleanly(() => core.mark(batch, shown));
  }
}

/** Nothing is hidden; what was marked is not shown again, and all else is, with nothing marked. */
async function judgeRead(world: World, { failure, seen, notes }: Report, fresh: readonly string[]): Promise<void> {
  const marked = failure === undefined && !notes.includes("shown these again") ? seen : [];
  if (marked !== seen)
    assert.equal(
      fs.readFileSync(cursorFile(world), "utf8"),
      "1",
      "the cursor has moved, and it was said that nothing was marked",
    );
  const doubted = /cursor .*(could not be read|not believed)/.test(notes);
  assert.deepEqual(
    seen.filter((file) => !fresh.includes(file) && !doubted),
    [],
    "shown, and not new",
  );
  const again = await show(world, 1);
  assert.deepEqual(
    [...new Set([...marked, ...again])].filter((file) => fresh.includes(file)).sort(),
    fresh,
    "not all were shown",
  );
  assert.deepEqual(
    again.filter((file) => !fresh.includes(file) || marked.includes(file)),
    [],
    "shown again",
  );
}

async function judgeClaim(world: World, report: Report): Promise<void> {
  const tasks = (): string[] => fs.readdirSync(world.folder).filter((name) => name.startsWith("task-"));
  assert.deepEqual(
    tasks(),
    [wasDone(report) ? "task-1.CLAIMED-bob.md" : "task-1.md"],
    "what is there is not what was said",
  );
  assert.ok(report.already !== true, "it was open, and is said to have been taken before");
  const next = await cleanly(() => core.claim(world.channel, "bob", "1"));
  assert.equal(next.already, wasDone(report));
  await assert.rejects(
    cleanly(() => core.claim(world.channel, "carol", "1")),
    { code: "taken" },
  );
  assert.deepEqual(tasks(), ["task-1.CLAIMED-bob.md"]);
}

async function judgeInit(world: World, report: Report): Promise<void> {
  const meta = path.join(world.folder, "_meta.json");
  assert.equal(fs.existsSync(meta), wasDone(report), "what is there is not what was said");
  const next = cleanly(() => core.createChannel(world.root, "talk", { members: ["bob"] }));
  if (wasDone(report)) await assert.rejects(next, { code: "channel_exists" });
  else await next;
  const { members } = JSON.parse(fs.readFileSync(meta, "utf8")) as { members: string[] };
  assert.deepEqual(members, ["bob"]);
  assert.deepEqual(gitFiles(world), wholeGitFiles, "what tells git which files to leave alone is torn");
  const { message } = await cleanly(() => core.post(world.channel, { from: "bob", body: TEXT }));
  assert.equal(message.seq, 1);
}

const gitFiles = ({ root }: World): string[] =>
  [".gitignore", ".gitattributes"].map((name) => fs.readFileSync(path.join(root, name), "utf8"));

/** What a clean call writes. */
const wholeGitFiles = await cleanly(async () => {
  const world = makeWorld({});
  await core.createChannel(world.root, "talk");
  return gitFiles(world);
});

const NEW = ["0002-erin-hello.md", "0004-alice-hello.md"];

const post: Operation = {
  name: "post",
  prepare: fillWorld,
  act: library(async ({ channel }, report) => {
    report.seq = (await core.post(channel, { from: "alice", to: ["bob"], title: "hello", body: TEXT })).message.seq;
  }),
  judge: judgePost,
};

const reply: Operation = {
  ...post,
  name: "a reply to somebody who only ever posted",
  act: library(async ({ channel }, report) => {
    report.seq = (await core.post(channel, { from: "alice", to: ["erin", "bob"], reply: 2, body: TEXT })).message.seq;
  }),
};

const postLarge: Operation = {
  ...post,
  name: "post to a channel of 60,000 messages",
  last: 60_000,
  prepare: fillLargeWorld,
};

const postCommand: Operation = {
  ...post,
  name: "agent-chat post",
  act: commandLine(({ output }) => [
    ..."post talk --as alice --to bob --body-file".split(" "),
    path.join(output, "body.md"),
  ]),
};

const read: Operation = {
  name: "read and mark",
  prepare: fillWorld,
  act: library(({ channel }, report) => showAndMark(core.read(channel, "bob"), report)),
  async judge(world, report) {
    await judgeRead(world, report, NEW);
    await judgeNumber(world, world.last + 1);
  },
};

async function showAndMark(batch: Batch, report: Report): Promise<void> {
  assert.ok(
    batch.messages.every(({ body }) => body === TEXT),
    "a torn message was shown",
  );
  Object.assign(report, { seen: batch.messages.map(({ file }) => file), notes: batch.notes.join("\n") });
  await core.mark(batch, batch.messages);
}

const readCommand: Operation = {
  ...read,
  name: "agent-chat read",
  act: commandLine(() => ["read", "talk", "--as", "bob"]),
};

/** The folder was last changed long ago: what could not be read at first is found by a later look all the same. */
const wait: Operation = {
  ...read,
  name: "wait and mark",
  prepare(world) {
    fillWorld(world);
    fs.utimesSync(world.folder, 1e9, 1e9);
  },
  act: library(async ({ channel }, report) => {
    const [batch] = await core.wait([channel], "bob", { timeout: 60, onNote: (note) => (report.notes += `${note}\n`) });
    await showAndMark(batch!, report);
  }),
};

const waitCommand: Operation = {
  ...wait,
  name: "agent-chat wait",
  act: commandLine(() => ["wait", "talk", "--as", "bob", "--timeout", "60"]),
};

/** Two clones gave out one number, and git merged them; room for one message at a time. */
const readShared: Operation = {
  name: "agent-chat read --max-bytes where two messages have one number",
  prepare(world) {
    fillWorld(world);
    addMessage(world, 2, "carol", "bob");
  },
  act: commandLine(() => ["read", "talk", "--as", "bob", "--max-bytes", String(TEXT.length + 1000)]),
  judge: (world, report) => judgeRead(world, report, ["0002-carol-hello.md", ...NEW]),
};

const claim: Operation = {
  name: "claim",
  prepare: fillWorld,
  act: library(async ({ channel }, report) => {
    report.already = (await core.claim(channel, "bob", "1")).already;
  }),
  judge: judgeClaim,
};

const claimCommand: Operation = {
  ...claim,
  name: "agent-chat claim",
  act: commandLine(() => ["claim", "talk", "1", "--as", "bob"]),
};

const init: Operation = {
  name: "createChannel",
  prepare() {},
  act: library(async ({ root }) => {
    await core.createChannel(root, "talk", { members: ["bob"] });
  }),
  judge: judgeInit,
};

const initCommand: Operation = {
  ...init,
  name: "agent-chat init",
  act: commandLine(() => ["init", "talk", "--members", "bob"]),
};

// ---- keys, questions, members, presence ----------------------------------------------------------------------------

const KEYED = { from: "alice", to: ["bob"], title: "hello", body: TEXT, key: "k" };

const postKeyed = library(async ({ channel }, report) => {
  const { message, created } = await core.post(channel, KEYED);
  Object.assign(report, { seq: message.seq, created });
});

/** Whatever became of the first try, the next under the same key leaves one message, and says which it is. */
async function judgeKey(world: World, report: Report): Promise<void> {
  const there = newest(world);
  assert.equal(there, wasDone(report) ? 5 : world.last, "what is there is not what was said");
  const again = await cleanly(() => core.post(world.channel, KEYED));
  assert.deepEqual([again.message.seq, again.created], [5, there === 4]);
  await judgeNumber(world, 6);
}

const postKey: Operation = { name: "post with a key", prepare: fillWorld, act: postKeyed, judge: judgeKey };

const postKeyAgain: Operation = {
  name: "post with a key, again",
  last: 5,
  async prepare(world) {
    fillWorld(world);
    await cleanly(() => core.post(world.channel, KEYED));
  },
  act: postKeyed,
  async judge(world, report) {
    assert.ok(report.failure !== undefined || report.created === false, "it is said to be new");
    await judgeKey(world, report);
  },
};

/** A question of bob's to alice, whose answer is there before he looks, or comes while he waits. */
function askOf(name: string, when: "at once" | "later"): Operation {
  return {
    name,
    prepare: fillWorld,
    act: library(async (world, report) => {
      const onPosted = ({ message }: { message: { seq: number } }): void => {
        Object.assign(report, { seq: message.seq, waited: false });
        const answer = (): void => addMessage(world, message.seq + 1, "alice", "bob", message.seq);
        if (when === "at once") offPlan(answer);
        else whenAsleep = (slept) => slept >= 2000 && !report.waited && !answered(world) && answer();
      };
      const how = { timeout: 60, interval: 2, onPosted, onNote: (note: string) => (report.notes += `${note}\n`) };
      const question = { from: "bob", to: ["alice"], title: "hello", body: TEXT };
      await showWaited(await core.ask(world.channel, question, how), report);
    }),
    async judge(world, report) {
      await judgeWait(world, report, answered(world) ? [...NEW, "0006-alice-hello.md"] : NEW);
      if (answered(world)) await judgeNumber(world, 7);
      else await judgeNumber(world, report.seq === undefined ? 5 : 6);
    },
  };
}

const answered = ({ folder }: World): boolean => fs.existsSync(path.join(folder, "0006-alice-hello.md"));

async function showWaited(batches: readonly Batch[], report: Report): Promise<void> {
  report.waited = true;
  const { notes } = report;
  for (const batch of batches) await showAndMark(batch, report);
  report.notes += notes;
}

/** A wait with a filter, which first keeps a heartbeat; what it is for comes after it has touched it once. */
const waitFiltered: Operation = {
  name: "a filtered wait that first has to wait",
  prepare: fillWorld,
  act: library(async (world, report) => {
    report.waited = false;
    whenAsleep = (slept) => {
      const late = slept >= 6000 && !fs.existsSync(path.join(world.folder, "0005-carol-hello.md"));
      if (late) addMessage(world, 5, "carol", "bob");
    };
    const how = { from: ["carol"], timeout: 60, interval: 2, onNote: (note: string) => (report.notes += `${note}\n`) };
    await showWaited(await core.wait([world.channel], "bob", how), report);
  }),
  async judge(world, report) {
    const came = fs.existsSync(path.join(world.folder, "0005-carol-hello.md"));
    await judgeWait(world, report, came ? [...NEW, "0005-carol-hello.md"] : NEW);
    await judgeNumber(world, came ? 6 : 5);
  },
};

/** Carol waits for bob, and has nothing unread. */
const waitStuck: Operation = {
  name: "a wait that ends stuck",
  prepare(world) {
    fillWorld(world);
    const cursors = path.join(world.folder, ".cursors");
    const beat = { pid: process.pid, host: HOST, since: "", until: "", channels: ["talk"], for: "bob", from: ["bob"] };
    fs.writeFileSync(path.join(cursors, "carol.txt"), "4");
    fs.writeFileSync(path.join(cursors, "carol.wait"), JSON.stringify(beat));
  },
  act: library(async ({ channel }, report) => {
    report.waited = false;
    whenAsleep = (slept) => (report.slept = slept);
    const onNote = (note: string): string => (report.notes += `${note}\n`);
    await core.wait([channel], "bob", { from: ["carol"], timeout: 60, interval: 1, onNote });
  }),
  async judge(world, report) {
    assert.ok(report.failure !== undefined, "it ended as if something had come");
    assert.ok(report.failure.code !== "stuck" || report.slept! >= 2900, `stuck after ${report.slept} ms`);
    assert.ok(fs.existsSync(path.join(world.folder, ".cursors", "carol.wait")), "another's heartbeat was removed");
    await judgeWait(world, report, NEW);
    await judgeNumber(world, 5);
  },
};

/** What a wait does for others' sake: its heartbeat, and the look at who else waits. */
const isCourtesy = (what: string): boolean => /\.(wait|txt)$|bob\.lock\.\w{10}$|\.cursors$/.test(what);

async function judgeWait(world: World, report: Report, fresh: readonly string[]): Promise<void> {
  const { failure, waited } = report;
  const excused = failed.some((what) => !isCourtesy(what)) || waited !== false; // not before the wait, nor after it
  if (!excused) assert.ok(failure === undefined || failure.code === "stuck", `a heartbeat failed it: ${failure?.message}`);
  judgeBeat(world, failed);
  await judgeRead(world, report, fresh);
}

/** No heartbeat is left but one that could not be removed, and its process is all that makes it believed. */
function judgeBeat({ channel, folder }: World, broken: readonly string[]): void {
  const cursors = path.join(folder, ".cursors");
  const left = fs.readdirSync(cursors).filter((name) => /^bob\.(wait|lock\.\w+)$/.test(name));
  if (left.length === 0) return;
  const kept = /(open|unlink)Sync .*bob\.(wait|lock\.\w+)$|(fstat|read|close)Sync $/; // it could not be looked at or removed
  assert.ok(broken.some((what) => kept.test(what)), `${left.join()} is left`);
  for (const name of left) {
    if (name !== "bob.wait") assert.ok(broken.some((what) => what.includes("unlink")), `${name} is left`);
    else {
      const beat = fs.readFileSync(path.join(cursors, name), "utf8");
      fs.writeFileSync(path.join(cursors, name), beat.replace(`"pid":${process.pid}`, `"pid":${NOBODY}`));
      assert.equal(core.presence(channel, ["bob"])[0]!.waiting, null, "a dead heartbeat is believed");
    }
  }
}

/** Changes who is a member; all else in the file stays. */
function membership(name: "join" | "leave", agent: string, members: readonly string[]): Operation {
  const whole = { channel: "talk", members: ["alice", "bob", "carol"], topic: "", created: "", more: { kept: true } };
  return {
    name,
    prepare(world) {
      fillWorld(world);
      fs.writeFileSync(path.join(world.folder, "_meta.json"), JSON.stringify(whole));
    },
    act: library(async ({ channel }) => {
      await core[name](channel, agent);
    }),
    async judge(world, report) {
      const there = (): unknown => JSON.parse(fs.readFileSync(path.join(world.folder, "_meta.json"), "utf8"));
      assert.deepEqual(there(), wasDone(report) ? { ...whole, members } : whole, "what is there is not what was said");
      await cleanly(() => core[name](world.channel, agent));
      assert.deepEqual(there(), { ...whole, members });
      await judgeNumber(world, 5);
    },
  };
}

const join = membership("join", "dave", ["alice", "bob", "carol", "dave"]);
const leave = membership("leave", "alice", ["bob", "carol"]);

const setCursor: Operation = {
  name: "setCursor",
  prepare: fillWorld,
  act: library(({ channel }) => core.setCursor(channel, "bob", "1-2,4")),
  async judge(world, report) {
    assert.equal(fs.readFileSync(cursorFile(world), "utf8"), wasDone(report) ? "1-2,4-4" : "1", "not what was said");
    await cleanly(() => core.setCursor(world.channel, "bob", "none"));
    assert.deepEqual(await show(world, 1), ["0001-alice-hello.md", ...NEW]);
  },
};

const BUSY = { status: "busy", note: "tests", seconds: 3600 };

const setStatus: Operation = {
  name: "setStatus",
  prepare: fillWorld,
  act: library(async ({ channel }) => {
    await core.setStatus(channel, "bob", BUSY);
  }),
  async judge({ channel }, report) {
    assert.equal(core.currentStatus(channel, "bob")?.note, wasDone(report) ? "tests" : undefined, "not what was said");
    await cleanly(() => core.setStatus(channel, "bob", { ...BUSY, note: "again" }));
    assert.equal(core.currentStatus(channel, "bob")?.note, "again");
  },
};

const takeBack: Operation = {
  name: "taking a status back",
  async prepare(world) {
    fillWorld(world);
    await cleanly(() => core.setStatus(world.channel, "bob", BUSY));
  },
  act: library(async ({ channel }) => {
    await core.setStatus(channel, "bob", undefined);
  }),
  async judge({ channel }, report) {
    assert.equal(core.currentStatus(channel, "bob") === undefined, wasDone(report), "not what was said");
    await cleanly(() => core.setStatus(channel, "bob", undefined));
    assert.equal(core.currentStatus(channel, "bob"), undefined);
  },
};

/** A command that only looks: it changes nothing, and tells what is so, or that it could not. */
function looking(command: string, factsOf: (row: any) => unknown): Operation {
  const args = command.split(" ");
  const files = ({ folder }: World): string[] => fs.readdirSync(folder, { recursive: true, encoding: "utf8" }).sort();
  return {
    name: `agent-chat ${args[0]}`,
    prepare(world) {
      fillWorld(world);
      addMessage(world, 5, "bob", "alice", 4);
    },
    last: 5,
    act: commandLine(() => args),
    async judge(world, report) {
      const { rows = [], failure, notes } = await cleanly(() => commandLine(() => args)(world));
      assert.deepEqual([rows.length, failure, notes], [1, undefined, ""]);
      const facts = (report.rows ?? []).map(factsOf);
      if (report.failure === undefined && report.notes === "") assert.deepEqual(facts, rows.map(factsOf), "not so, and nothing was said");
      assert.equal(files(world).filter((name) => /^bob|^_seq|\.lock/.test(name)).length, 0, "something was left");
      await judgeNumber(world, 6);
    },
  };
}

const receipts = looking("receipts talk 4", (row) => row);
const roster = looking("roster talk", ({ channel, members, topic }) => [channel, members, topic]);
const whoami = looking("whoami --as bob", ({ name, root }) => [name, root]);

const NEWER = [askOf("ask, answered at once", "at once"), askOf("ask, answered later", "later"), waitFiltered, waitStuck];

/** The same where somebody was killed who held a lock. */
function afterCrash(operation: Operation, lock: (world: World) => string): Operation {
  return {
    ...operation,
    locked: true,
    name: `${operation.name}, where a killed process left its lock`,
    async prepare(world) {
      await operation.prepare(world);
      plantLock(lock(world));
    },
  };
}

// ---- every call in turn --------------------------------------------------------------------------------------------

const CODES: Readonly<Record<string, string>> = {
  ENOSPC: "no_space",
  EACCES: "no_access",
  EPERM: "no_access",
  EROFS: "no_access",
};

interface Attempt {
  readonly called: readonly string[];
  readonly wrong: readonly string[]; // empty: all is well
}

/** Does an operation under a plan and judges what came of it. */
async function attempt(operation: Operation, how: Plan, code: string): Promise<Attempt> {
  const world = makeWorld(operation);
  await operation.prepare(world);
  const acting = underPlan(how, () => operation.act(world));
  const [called, broken] = [calls, failed];
  try {
    const report = await acting;
    if (broken.length > 0) await judge(operation, world, report, code);
    assert.deepEqual(openFiles(world), [], "a file was left open");
    return { called, wrong: [] };
  } catch (error) {
    return { called, wrong: [`${code} from ${broken.slice(0, 3).join("; ")}: ${String(error).replace(/\s+/g, " ")}`] };
  } finally {
    fs.rmSync(world.output, { recursive: true, force: true });
  }
}

async function judge(operation: Operation, world: World, report: Report, code: string): Promise<void> {
  judgeFailure(report, code);
  if (operation.locked !== true) assert.deepEqual(leftLocks(world), [], "a lock was left");
  await operation.judge(world, report);
}

/** A system error has its stable code and names itself; a wait that could read nothing has said so meanwhile. */
function judgeFailure({ failure, notes }: Report, code: string): void {
  if (failure === undefined || failure.code === "stuck" || (failure.code === "timeout" && notes.includes(`could not be read (${code})`))) return;
  assert.match(failure.message, new RegExp(`could not .*\\(${code}[,)]`));
  const unreadable = failure.message.includes(`could not be read (${code})`);
  assert.equal(failure.code, unreadable ? "io" : (CODES[code] ?? "io"), failure.message);
}

function assertNone(wrong: readonly string[]): void {
  if (wrong.length > 0) assert.fail(`${wrong.length} times it went wrong:\n- ${wrong.join("\n- ")}`);
}

/** Makes the first call fail, then the second, and so on until there are fewer; in every way a call can fail. */
async function sweep(operation: Operation, always: Plan = NEVER): Promise<void> {
  const wrong: string[] = [];
  for (const code of [...ERRORS, SHORT]) {
    for (let at = 1, last = false; !last; at++) {
      const result = await attempt(operation, (name, n) => (n === at ? code : always(name, n)), code);
      wrong.push(...result.wrong);
      last = result.called.length < at;
    }
  }
  assertNone(wrong);
}

const everyLink =
  (code: string): Plan =>
  (name) =>
    name === "linkSync" ? code : undefined;

async function works(operation: Operation, how: Plan): Promise<void> {
  const world = makeWorld(operation);
  await operation.prepare(world);
  const report = await underPlan(how, () => operation.act(world));
  assert.equal(report.failure, undefined);
  await operation.judge(world, report);
}

const REMOVALS = ["rmdirSync", "unlinkSync"];

/** Makes every call of one kind fail, one kind after the other. */
async function persist(operation: Operation): Promise<void> {
  const { called } = await attempt(operation, NEVER, "");
  const wrong: string[] = [];
  for (const kind of new Set(called)) {
    for (const code of [...ERRORS, SHORT]) {
      if (kind === "existsSync") continue; // what other calls can see does not stay unseen
      if (kind === "linkSync" && code === "EPERM") continue; // there is a way round
      const how: Plan = (name) => (name === kind ? code : undefined);
      const result = await attempt({ ...operation, locked: REMOVALS.includes(kind) }, how, code);
      wrong.push(...result.wrong);
    }
  }
  assertNone(wrong);
}

for (const operation of [post, reply, postLarge, postCommand, afterCrash(post, numberLock)]) {
  test(`${operation.name}: whichever system call fails, it is posted whole or said not to be, and the next post gets the next number`, () =>
    sweep(operation));
}
for (const operation of [read, readCommand, readShared, wait, waitCommand, afterCrash(read, cursorLock)]) {
  test(`${operation.name}: whichever system call fails, no message is hidden, torn, or shown again once marked`, () =>
    sweep(operation));
}
for (const operation of [claim, claimCommand, afterCrash(claim, numberLock)]) {
  test(`${operation.name}: whichever system call fails, the task has one name, and it is the one that was said`, () =>
    sweep(operation));
}
for (const operation of [postKey, postKeyAgain]) {
  test(`${operation.name}: whichever system call fails, there is one message once it was tried again`, () =>
    sweep(operation));
}
for (const operation of NEWER) {
  test(`${operation.name}: whichever system call fails, no message is lost, and a heartbeat's failure fails nothing`, () =>
    sweep(operation));
}
for (const operation of [join, leave, setCursor, setStatus, takeBack]) {
  test(`${operation.name}: whichever system call fails, it is done or not, as was said, and nothing else is changed`, () =>
    sweep(operation));
}
for (const operation of [roster, receipts, whoami]) {
  test(`${operation.name}: whichever system call fails, it tells what is so or what it could not, and changes nothing`, () =>
    sweep(operation));
}
for (const operation of [init, initCommand]) {
  test(`${operation.name}: whichever system call fails, the channel is there whole or can be made by the next call`, () =>
    sweep(operation));
}
for (const operation of [post, init]) {
  test(`${operation.name}: where there are no hard links (EPERM, ENOTSUP), it works all the same`, async () => {
    for (const code of ["EPERM", "ENOTSUP"]) await works(operation, everyLink(code));
  });
  test(`${operation.name}: where there are no hard links and any other call fails besides, nothing is half-done`, () =>
    sweep(operation, everyLink("EPERM")));
}
test("post: where a link was made and is reported to have failed (NFS: a lost answer), the message is posted once and stays as it is", async () => {
  for (const code of ["EIO", "EEXIST", "EPERM"]) await works(post, everyLink(LATE + code));
});
for (const operation of [post, reply, postLarge, read, wait, claim, init, postKey, waitFiltered, join, setCursor, setStatus]) {
  test(`${operation.name}: where every call of one kind fails, it is done or its error says why it is not, and once that is over the next call goes on`, () =>
    persist(operation));
}

// ---- the life of a task --------------------------------------------------------------------------------------------

const AGES_AGO = "2026-01-01T12:00:00+00:00";
const TASK_TEXT = "---\ntask: 1\nfrom: alice\nts: 2026-01-01T12:00:00+00:00\ntitle: First\n---\nto be done\n";

/** What there is of tasks: the file of each, with its text; fails where a text is not the one that was given. */
function taskNames({ folder }: World): string[] {
  const names = fs.readdirSync(folder).filter((name) => name.startsWith("task-")).sort();
  for (const name of names) {
    const text = fs.readFileSync(path.join(folder, name), "utf8");
    const whole = name.startsWith("task-1.") ? text === TASK_TEXT : text === "second\n" || /^---\ntask: (\d+)\n[^]*\n---\nnew\n$/.test(text);
    assert.ok(whole, `${name} has another text: ${text}`);
  }
  return names;
}

/** How often a change of a task was told. */
function told({ channel }: World, status: string): number {
  return core.lastMessages(channel, Infinity).messages.filter((message) => message.status === status).length;
}

/** An open channel with a task that is open, or bob's since long ago, and one more; records and texts as ours. */
function fillTasks(world: World, claimed: boolean): void {
  fs.mkdirSync(path.join(world.folder, ".cursors"), { recursive: true });
  fs.writeFileSync(path.join(world.folder, "_meta.json"), "{}");
  fs.writeFileSync(path.join(world.folder, claimed ? "task-1.CLAIMED-bob.md" : "task-1.md"), TASK_TEXT);
  fs.writeFileSync(path.join(world.folder, "task-2.md"), "second\n");
  if (!claimed) return;
  fs.mkdirSync(path.join(world.folder, ".tasks"));
  const record = { state: "claimed", since: AGES_AGO, after: 0, id: "original", owner: null };
  fs.writeFileSync(path.join(world.folder, ".tasks", "1.bob.json"), JSON.stringify(record));
}

/** A change of a task: what it makes of the files, and what tells of it. */
interface Change {
  readonly name: string;
  readonly claimed: boolean; // task-1 is bob's before
  readonly files: readonly string[]; // after it
  readonly status?: string; // of the message that tells of it
  readonly makes?: boolean; // a new task: each call makes one more
  act(channel: Channel): Promise<unknown>;
}

const CHANGES: readonly Change[] = [
  {
    name: "createTask",
    claimed: false,
    makes: true,
    files: ["task-1.md", "task-2.md", "task-3.md"],
    act: (channel) => core.createTask(channel, { from: "alice", title: "New", body: "new" }),
  },
  {
    name: "claim of a task with a header",
    claimed: false,
    files: ["task-1.CLAIMED-bob.md", "task-2.md"],
    act: (channel) => core.claim(channel, "bob", "1"),
  },
  {
    name: "claimNext",
    claimed: false,
    files: ["task-1.CLAIMED-bob.md", "task-2.md"],
    act: (channel) => core.claimNext(channel, "bob"),
  },
  {
    name: "claimLater",
    claimed: false,
    files: ["task-1.CLAIMED-bob.md", "task-2.md"],
    act: (channel) => core.claimLater(channel, "bob", "1", { timeout: 60 }),
  },
  {
    name: "finish",
    claimed: true,
    files: ["task-1.DONE-bob.md", "task-2.md"],
    status: "done",
    act: (channel) => core.finish(channel, "bob", "1"),
  },
  {
    name: "release",
    claimed: true,
    files: ["task-1.md", "task-2.md"],
    status: "released",
    act: (channel) => core.release(channel, "bob", "1"),
  },
  {
    name: "steal",
    claimed: true,
    files: ["task-1.CLAIMED-carol.md", "task-2.md"],
    status: "stolen",
    act: (channel) => core.claim(channel, "carol", "1", { older: 3600 }),
  },
];

/**
 * What is there is what was said, or, where the change was made and could not be told or confirmed, what was to come; the
 * next clean call does or tells the rest, once. Where a record could not be read a claim's age is not known: not stolen.
 */
async function judgeChange(world: World, { failure }: Report, change: Change): Promise<void> {
  const { name, files, status, act, makes } = change;
  const before = [change.claimed ? "task-1.CLAIMED-bob.md" : "task-1.md", "task-2.md"];
  taskNames(world);
  const there = core.listTasks(world.channel).map(({ file }) => file).join(); // of two names of one file, the new one
  const passed = name === "claimNext" && there === "task-1.md,task-2.CLAIMED-bob.md"; // the first could not be read
  if (passed) assert.equal(failure, undefined);
  else if (failure === undefined) assert.equal(there, files.join(), "it is not what was said");
  else assert.ok([before.join(), files.join()].includes(there), `it is neither as it was nor as it was to be: ${there}`);
  if (status !== undefined && there === before.join()) assert.equal(told(world, status), 0, "told, and it did not happen");
  if (status !== undefined && failure === undefined) assert.equal(told(world, status), 1, "it happened, and was not told");
  const next = cleanly(() => act(world.channel));
  if (name === "claimNext" && (passed || there === files.join())) {
    await next;
    assert.deepEqual(taskNames(world), ["task-1.CLAIMED-bob.md", "task-2.CLAIMED-bob.md"]);
  } else if (makes === true && there === files.join()) {
    await next;
    assert.deepEqual(taskNames(world), [...files, "task-4.md"]);
  } else {
    await next;
    assert.deepEqual(taskNames(world), files, "the next call does not do it");
  }
  if (status !== undefined) assert.equal(told(world, status), 1, "told once after the next call");
  const hidden = path.join(world.folder, ".tasks");
  const odd = fs.existsSync(hidden) ? fs.readdirSync(hidden).filter((file) => !/^\w+\.[a-z]+\.json$|\.old$/.test(file)) : [];
  assert.deepEqual(odd, [], "something was left in .tasks");
}

function changing(change: Change): Operation {
  return {
    name: change.name,
    prepare: (world) => fillTasks(world, change.claimed),
    act: library(async ({ channel }) => void (await change.act(channel))),
    judge: (world, report) => judgeChange(world, report, change),
  };
}

const pauseOperation: Operation = {
  name: "pauseTasks",
  prepare: (world) => fillTasks(world, false),
  act: library(async ({ channel }) => void (await core.pauseTasks(channel, "alice", "Lunch."))),
  async judge({ channel, folder }, { failure }) {
    const pause = core.currentPause(channel);
    if (failure === undefined) assert.equal(pause?.body, "Lunch.\n");
    else if (pause !== undefined) assert.equal(pause.body, "Lunch.\n", "a torn pause");
    assert.equal((await cleanly(() => core.pauseTasks(channel, "alice", "Lunch."))).body, "Lunch.\n");
    await assert.rejects(cleanly(() => core.claimNext(channel, "bob")), { code: "paused" });
    await cleanly(() => core.resumeTasks(channel));
    assert.ok(!fs.existsSync(path.join(folder, "_paused.md")));
  },
};

const resumeOperation: Operation = {
  name: "resumeTasks",
  async prepare(world) {
    fillTasks(world, false);
    await cleanly(() => core.pauseTasks(world.channel, "alice", "Lunch."));
  },
  act: library(async ({ channel }) => void (await core.resumeTasks(channel))),
  async judge({ channel, folder }, { failure }) {
    if (failure === undefined) assert.ok(!fs.existsSync(path.join(folder, "_paused.md")), "it is paused still");
    await cleanly(() => core.resumeTasks(channel));
    assert.equal((await cleanly(() => core.claimNext(channel, "bob"))).task, "1");
  },
};

const listOperation: Operation = {
  name: "listTasks",
  prepare: (world) => fillTasks(world, true),
  act: library(async ({ channel }) => {
    assert.deepEqual(core.listTasks(channel).map(({ file }) => file), ["task-1.CLAIMED-bob.md", "task-2.md"]);
  }),
  judge: async (world) => assert.deepEqual(taskNames(world), ["task-1.CLAIMED-bob.md", "task-2.md"]),
};

const waitOperation: Operation = {
  name: "waitForTasks",
  prepare: (world) => fillTasks(world, false),
  act: library(async ({ channel }, report) => {
    const onNote = (note: string): unknown => (report.notes += `${note}\n`);
    const tasks = await core.waitForTasks([channel], "bob", undefined, { timeout: 60, onNote });
    assert.match(tasks.map(({ task }) => task).join(), /^(1|2|1,2)$/); // what cannot be read is not known to be for bob
  }),
  async judge(world) {
    assert.deepEqual(taskNames(world), ["task-1.md", "task-2.md"]);
    assert.equal((await cleanly(() => core.waitForTasks([world.channel], "bob", undefined, { timeout: 60 }))).length, 2);
  },
};

for (const operation of CHANGES.map(changing)) {
  test(`${operation.name}: whichever system call fails, the task has one file, and the next call does and tells what is left, once`, () =>
    sweep(operation));
}
for (const operation of [pauseOperation, resumeOperation, listOperation, waitOperation]) {
  test(`${operation.name}: whichever system call fails, it is done or its error says why it is not, and the next call goes on`, () =>
    sweep(operation));
}
for (const operation of CHANGES.filter(({ name }) => /createTask|finish|release|steal/.test(name)).map(changing)) {
  test(`${operation.name}: where there are no hard links and any other call fails besides, it is told once, and no text is lost`, () =>
    sweep(operation, everyLink("EPERM")));
  test(`${operation.name}: where every call of one kind fails, the next call does and tells what is left, once`, () =>
    persist(operation));
}

// ---- stdout --------------------------------------------------------------------------------------------------------

const BIG = "x".repeat(60).concat("\n").repeat(5000); // 300 KB, more than any pipe holds
const SHOW_BIG = `read talk --as bob --max-bytes ${2 * BIG.length}`;

/** A root with the channel "talk", and a shell in which `ac` is the program. */
function shell(t: TestContext, body: string): (script: string) => Result {
  const box = sandbox(t);
  const run = (script: string, stdin = ""): Result => box.bash(script, { stdin });
  const made = run("ac init talk && ac post talk --as alice --title first --body-file -", body);
  assert.equal(made.status, 0, made.stderr);
  return run;
}

function assertNoStack({ stderr }: Result): void {
  assert.doesNotMatch(stderr, /^ +at |Error:/m);
}

/** What a script that shows to nobody says, and then that bob is shown the message all the same. */
function assertShownLater(
  run: (script: string) => Result,
  script: string,
  expected: { status: number; says: RegExp },
): void {
  const { status, stderr } = run(script);
  assert.equal(status, expected.status, `${script}: ${stderr}`);
  assert.match(stderr, expected.says);
  assertNoStack({ stderr } as Result);
  assert.match(run("ac read talk --as bob --peek").stdout, /end of #1/);
}

const FULL = { skip: !fs.existsSync("/dev/full") && "there is no /dev/full" };
const DESCRIPTORS = { skip: process.platform !== "linux" && "descriptors cannot be looked at" };

test("read, wait: where stdout is full, they exit 1, say so, and mark nothing", FULL, (t) => {
  const run = shell(t, "hello");
  for (const command of ["read talk --as bob", "read talk --as bob --json", "wait talk --as bob", SHOW_BIG]) {
    assertShownLater(run, `ac ${command} > /dev/full`, { status: 1, says: /could not write to stdout.*ENOSPC/ });
  }
});

test("post, claim, init: where stdout is full, they exit 1, and say what was done all the same", FULL, (t) => {
  const run = shell(t, "hello");
  run('echo work > "$AGENT_CHAT_ROOT/talk/task-7.md"');
  for (const [command, says] of [
    ["post talk --as alice --body two", /posted #2, but/],
    ["claim talk 7 --as bob", /claimed task-7.*, but/],
    ["init other", /created .*, but/],
  ] as const) {
    const result = run(`ac ${command} > /dev/full`);
    assert.equal(result.status, 1);
    assert.match(result.stderr, says);
    assertNoStack(result);
  }
  assert.match(run("ac post talk --as alice --body three").stdout, /posted #3/);
});

test("read, wait: where stdout is closed, they exit 1, say so, and mark nothing", (t) => {
  const run = shell(t, "hello");
  for (const command of ["read talk --as bob", "wait talk --as bob"]) {
    assertShownLater(run, `ac ${command} >&-`, { status: 1, says: /stdout is closed/ });
    assertShownLater(run, `ac ${command} >&- 2>&-`, { status: 1, says: /^$/ });
  }
});

test("post: where stdout, stdin and stderr are closed, it posts, once", (t) => {
  const run = shell(t, "hello");
  assert.equal(run("ac post talk --as alice --body two >&- <&- 2>&-").status, 0);
  assert.match(run("ac post talk --as alice --body three").stdout, /posted #3/);
});

test("read: where the reader of its output leaves early, it is quiet, exits 0, and marks nothing", (t) => {
  const run = shell(t, BIG);
  for (const command of [SHOW_BIG, `${SHOW_BIG} --json`]) {
    assertShownLater(run, `ac ${command} | head -c 10 > /dev/null; exit \${PIPESTATUS[0]}`, { status: 0, says: /^$/ });
  }
});

test("read: where the reader of its output pauses after 64 KiB, a body of 300 KB arrives whole", (t) => {
  const { stdout, stderr } = shell(t, BIG)(`ac ${SHOW_BIG} | { head -c 65536; sleep 1; cat; }`);
  assert.equal(stderr, "");
  assert.ok(stdout.includes(BIG) && /end of #1\]?\n$/.test(stdout));
});

test(
  "read: where stdout is a pipe that does not block, and its reader pauses, a body of 300 KB arrives whole",
  DESCRIPTORS,
  (t) => {
    const run = shell(t, BIG);
    // Whoever shares the pipe makes it non-blocking for all.
    const other = `"${process.execPath}" -e 'process.stdout; setTimeout(() => {}, 2500)' &`;
    const { stdout, stderr } = run(
      `{ ${other} sleep 0.5; ac ${SHOW_BIG}; cat "/proc/$BASHPID/fdinfo/1" >&2; } | { head -c 65536; sleep 1; cat; }`,
    );
    assert.match(stderr, /flags:\s+\d*[4-7]\d{3}\n/, "the pipe blocks: this tests nothing");
    assert.ok(stdout.includes(BIG) && /end of #1\n$/.test(stdout));
  },
);

test("read: where a program started it and is slow to read, a body of 300 KB arrives whole, and is marked", async (t) => {
  const box = sandbox(t);
  box.ok(["init", "talk"]);
  box.ok(["post", "talk", "--as", "alice", "--body", "-"], { stdin: BIG });
  const env = cleanEnv({ AGENT_CHAT_ROOT: box.root });
  const child = spawn(process.execPath, [BIN, ...SHOW_BIG.split(" ")], { env, stdio: ["ignore", "pipe", "inherit"] });
  let text = "";
  child.stdout
    .setEncoding("utf8")
    .on("data", (part: string) => (text += part))
    .pause();
  await sleep(1000);
  child.stdout.resume();
  const [status] = (await once(child, "close")) as [number];
  assert.equal(status, 0);
  assert.ok(text.includes(BIG));
  assert.equal(fs.readFileSync(box.at("talk", ".cursors", "bob.txt"), "utf8"), "1");
});
