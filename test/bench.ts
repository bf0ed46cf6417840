// Measures what README claims, against node itself, against other sizes, and against the Python reference if it is there.
// Run: npm run bench [-- --quick] [starts|sizes|waking|idling|contention|syncing ...]. Prints a table in markdown; what is
// compared is measured in turns, in one run. The reference does not flush what it posts to the disk, we do.
import { spawn, spawnSync, type ChildProcess, type SpawnSyncReturns } from "node:child_process";
import fs from "node:fs";
import { createRequire } from "node:module";
import os from "node:os";
import path from "node:path";
import type { Channel } from "../chat.ts";
import { BIN, cleanEnv, REFERENCE } from "./helpers.ts";

const chat = createRequire(import.meta.url)(BIN) as typeof import("../chat.ts");
const QUICK = process.argv.includes("--quick");
const ROOT = fs.mkdtempSync(path.join(os.tmpdir(), "agent-chat-bench-"));
const ENV = cleanEnv({ AGENT_CHAT_ROOT: ROOT });
const PYTHON = fs.existsSync(REFERENCE) && spawnSync("python3", ["--version"]).status === 0 ? "python3" : undefined;

// ---- numbers -------------------------------------------------------------------------------------------------------

/** One comparison, as a row of the table. */
interface Row {
  readonly what: string;
  readonly ours: string;
  readonly against: string;
  readonly ratio: string;
  readonly target: string;
}

type Target = (value: number) => string;

const verdict = (met: boolean): string => (met ? "met" : "MISSED");
const atMost =
  (limit: number): Target =>
  (value) =>
    `at most ${limit}: ${verdict(value <= limit)}`;
const atLeast =
  (limit: number): Target =>
  (value) =>
    `at least ${limit}: ${verdict(value >= limit)}`;
const none: Target = () => "";

function quantile(values: readonly number[], part: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  const at = part * (sorted.length - 1);
  const [low, high] = [sorted[Math.floor(at)]!, sorted[Math.ceil(at)]!];
  return low + (high - low) * (at % 1);
}

const median = (values: readonly number[]): number => quantile(values, 0.5);

function rounded(value: number): string {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(value >= 0.1 ? 2 : 3);
}

/** Ratios of what was measured in the same turn; where there were not as many turns, to the other's median. */
function ratios(ours: readonly number[], other: readonly number[]): number[] {
  const middle = median(other);
  return ours.map((value, i) => value / (ours.length === other.length ? other[i]! : middle));
}

/** What was measured of two sides, in one unit. */
interface Pair {
  readonly what: string;
  readonly unit: string;
  readonly ours: readonly number[];
  readonly label: string;
  readonly other: readonly number[];
}

function compare({ what, unit, ours, label, other }: Pair, target: Target = none): Row {
  const all = ratios(ours, other);
  const spread = `${rounded(quantile(all, 0.25))}-${rounded(quantile(all, 0.75))}`;
  return {
    what,
    ours: `${rounded(median(ours))} ${unit}`,
    against: `${label}: ${rounded(median(other))} ${unit}`,
    ratio: `${rounded(median(all))} (${spread})`,
    target: target(median(all)),
  };
}

/** A row about a value as such. */
function state(what: string, unit: string, ours: readonly number[], target: Target): Row {
  const spread = `${rounded(quantile(ours, 0.25))}-${rounded(quantile(ours, 0.75))}`;
  return {
    what,
    ours: `${rounded(median(ours))} ${unit} (${spread})`,
    against: "",
    ratio: "",
    target: target(median(ours)),
  };
}

// ---- running -------------------------------------------------------------------------------------------------------

type Command = readonly [string, ...string[]];

const ours = (...args: string[]): Command => [process.execPath, BIN, ...args];
const reference = (...args: string[]): Command => ["python3", REFERENCE, "--root", ROOT, ...args];

function run([program, ...args]: Command): SpawnSyncReturns<string> {
  const done = spawnSync(program, args, { env: ENV, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  if (done.status !== 0 && done.status !== 2) throw new Error(`${program} ${args.join(" ")}: ${done.stderr}`);
  return done;
}

/** Milliseconds of a whole process. */
function timed(command: Command): number {
  const start = performance.now();
  run(command);
  return performance.now() - start;
}

/** Runs all commands in turns, each turn in another order, so that what slows the machine slows all of them. */
function inTurns<K extends string>(turns: number, commands: Readonly<Record<K, Command>>): Record<K, number[]> {
  const names = Object.keys(commands) as K[];
  const times = Object.fromEntries(names.map((name) => [name, []])) as unknown as Record<K, number[]>;
  for (let turn = -1; turn < turns; turn++) {
    for (const [i] of names.entries()) {
      const name = names[(i + turn + names.length) % names.length]!;
      const took = timed(commands[name]);
      if (turn >= 0) times[name].push(took); // the first turn only fills the caches
    }
  }
  return times;
}

/** A channel with messages in it, written as files. `bob` has been shown all that are for everybody. */
function fill(name: string, count: number, to = "all"): Channel {
  const channel: Channel = { root: ROOT, name, path: path.join(ROOT, name) };
  fs.mkdirSync(path.join(channel.path, ".cursors"), { recursive: true });
  fs.writeFileSync(
    path.join(channel.path, "_meta.json"),
    JSON.stringify({ channel: name, members: [], topic: "", created: "" }),
  );
  for (let seq = 1; seq <= count; seq++) {
    const head = `seq: ${seq}\nfrom: alice\nto: ${to}\nchannel: ${name}\nts: 2026-08-17T12:00:00+00:00\nstatus: discussion\ntitle: t`;
    fs.writeFileSync(
      path.join(channel.path, `${String(seq).padStart(4, "0")}-alice-t.md`),
      `---\n${head}\n---\nbody ${seq}\n`,
    );
  }
  if (to === "all") fs.writeFileSync(path.join(channel.path, ".cursors", "bob.txt"), String(count));
  fs.utimesSync(channel.path, 0, 0); // nothing has happened here for long
  return channel;
}

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
const progress = (text: string): void => console.error(`bench: ${text}`);
const ended = (child: ChildProcess): Promise<unknown> => new Promise((resolve) => child.once("close", resolve));

// ---- starts --------------------------------------------------------------------------------------------------------

const postTo = (name: string): string[] => ["post", name, "--from", "alice", "--title", "t", "--body", "x"];
const readFrom = (name: string): string[] => ["read", name, "--as", "bob"];

const TITLES: Readonly<Record<string, string>> = {
  version: "`--version`, whole process",
  "post, compiled": "`post` with NODE_COMPILE_CACHE",
  file: "`post` by `node chat.ts`",
  "file, compiled": "`post` by `node chat.ts` with NODE_COMPILE_CACHE",
};

function measureStarts(): Row[] {
  progress("whole processes");
  for (const name of ["start", "start-reference"]) fill(name, 0);
  const nothing: Command = [process.execPath, "-e", "0"];
  const mine = { version: ours("--version"), post: ours(...postTo("start")), read: ours(...readFrom("start")) };
  const [theirPost, theirRead] = [postTo, readFrom].map((args) => reference(...args("start-reference")));
  const file = (...args: string[]): Command => [process.execPath, path.join(path.dirname(BIN), "..", "chat.ts"), ...args];
  const kept = (command: Command): Command => ["env", `NODE_COMPILE_CACHE=${path.join(ROOT, ".compiled")}`, ...command];
  const compiled = { "post, compiled": kept(mine.post), "file, compiled": kept(file(...postTo("start"))) };
  const strips = "typescript" in process.features && { file: file(...postTo("start")), ...compiled };
  const theirs = { "their help": reference("--help"), "their post": theirPost!, "their read": theirRead! };
  const times = inTurns<string>(QUICK ? 15 : 40, { nothing, ...mine, ...strips, ...(PYTHON && theirs) });
  const row = (name: string, label: string, other: string, target?: Target): Row[] => {
    if (times[name] === undefined || times[other] === undefined) return [];
    const what = TITLES[name] ?? `\`${name}\`, whole process`;
    return [compare({ what, unit: "ms", ours: times[name], label, other: times[other] }, target)];
  };
  return [
    ...row("version", "`node -e 0`", "nothing"),
    ...row("post", "`node -e 0`", "nothing", atMost(1.15)),
    ...row("read", "`node -e 0`", "nothing", atMost(1.15)),
    ...row("post, compiled", "`node -e 0`", "nothing"),
    ...row("file", "`node -e 0`", "nothing"),
    ...row("file, compiled", "`node -e 0`", "nothing"),
    ...row("version", "reference `--help`", "their help"),
    ...row("post", "reference", "their post"),
    ...row("read", "reference", "their read"),
  ];
}

// ---- sizes ---------------------------------------------------------------------------------------------------------

const SIZES = QUICK ? [0, 1_000, 10_000] : [0, 1_000, 10_000, 100_000];
const counted = (size: number): string => size.toLocaleString("en-US");

function measureSizes(): Row[] {
  progress(`channels of up to ${counted(SIZES.at(-1)!)} messages`);
  for (const size of SIZES) for (const name of PYTHON ? ["size", "reference"] : ["size"]) fill(`${name}-${size}`, size);
  return [...measureSize("post", postTo, atMost(1.5)), ...measureSize("read", readFrom, none)];
}

function measureSize(what: string, command: (channel: string) => string[], target: Target): Row[] {
  const mine = SIZES.map((size) => [`${size}`, ours(...command(`size-${size}`))] as const);
  const theirs = SIZES.map((size) => [`reference ${size}`, reference(...command(`reference-${size}`))] as const);
  const times = inTurns<string>(QUICK ? 5 : 15, Object.fromEntries([...mine, ...(PYTHON ? theirs : [])]));
  return SIZES.flatMap((size) => {
    const base = { what: `\`${what}\` among ${counted(size)}`, unit: "ms", ours: times[`${size}`]! };
    const grown = compare({ ...base, label: "among 0", other: times["0"]! }, size === SIZES.at(-1) ? target : none);
    const other = times[`reference ${size}`];
    return [...(size === 0 ? [] : [grown]), ...(other ? [compare({ ...base, label: "reference", other })] : [])];
  });
}

// ---- waking --------------------------------------------------------------------------------------------------------

/** Seconds from the end of a post to the end of the wait that it ends. */
async function wake(channel: Channel, [program, ...args]: Command, settle: number): Promise<number> {
  const child = spawn(program, args, { env: ENV, stdio: ["ignore", "pipe", "inherit"] });
  child.stdout.resume();
  const end = ended(child);
  await sleep(settle);
  await chat.post(channel, { from: "alice", body: "wake up" });
  const start = performance.now();
  await end;
  return (performance.now() - start) / 1000;
}

async function measureWaking(): Promise<Row[]> {
  progress("waking");
  const mine: number[] = [];
  for (let i = 0; i < (QUICK ? 5 : 25); i++) {
    mine.push(await wake(fill(`wake-${i}`, 3), ours("wait", `wake-${i}`, "--as", "bob"), 1000 + Math.random() * 400));
  }
  const rows = [state("`wait` ends after a post ends", "s", mine, atMost(0.15))];
  if (PYTHON === undefined) return rows;
  // Its interval is 5 s, so it sleeps most of the time: all at once, each in a channel of its own and another phase.
  const others = Array.from({ length: QUICK ? 4 : 10 }, async (_, i, turns = QUICK ? 4 : 10) => {
    const name = `wake-reference-${i}`;
    return wake(fill(name, 3), reference("wait", name, "--as", "bob"), 1500 + (5000 * i) / turns);
  });
  const other = await Promise.all(others);
  return [...rows, compare({ what: "the same", unit: "s", ours: mine, label: "reference (every 5 s)", other })];
}

// ---- idling --------------------------------------------------------------------------------------------------------

const IDLE_S = QUICK ? 5 : 20;
const IDLE_TURNS = 3;

/** What a process used from its start to its end. */
interface Usage {
  readonly cpu: number; // seconds, user and system
  readonly peak: number; // MB
}

// Loaded into each process; it writes down at the end what the system says of it.
const WITNESS = `
const fs = require("node:fs");
process.on("exit", () => {
  const { user, system } = process.cpuUsage();
  const peak = Number(/VmHWM:\\s+(\\d+)/.exec(fs.readFileSync("/proc/self/status", "utf8"))[1]) / 1024;
  fs.writeFileSync(process.env.WITNESS, JSON.stringify({ cpu: (user + system) / 1e6, peak }));
});
`;

const HOOK = path.join(ROOT, "witness.cjs");
let witnessed = 0;

async function usage([program, ...args]: Command): Promise<Usage> {
  const file = path.join(ROOT, `witness-${witnessed++}.json`);
  const env = { ...ENV, NODE_OPTIONS: `--require=${HOOK}`, WITNESS: file };
  const child = spawn(program, args, { env, stdio: ["ignore", "pipe", "ignore"] });
  child.stdout.resume();
  await ended(child);
  return JSON.parse(fs.readFileSync(file, "utf8")) as Usage;
}

/** Several runs of a command that idles, beside as many of the same that ends at once, which is what starting costs. */
async function idle(idling: Command, ending: Command): Promise<{ percent: number[]; peak: number[] }> {
  const starts: number[] = [];
  for (let turn = 0; turn < IDLE_TURNS; turn++) starts.push((await usage(ending)).cpu);
  const used = await Promise.all(Array.from({ length: IDLE_TURNS }, () => usage(idling)));
  const percent = used.map(({ cpu }) => Math.max(0, ((cpu - median(starts)) / IDLE_S) * 100));
  return { percent, peak: used.map(({ peak }) => peak) };
}

const waiting = (name: string, seconds: number, filter: readonly string[]): Command =>
  ours("wait", name, "--as", "bob", "--timeout", String(seconds), ...filter);

async function measureIdling(): Promise<Row[]> {
  if (process.platform !== "linux") return [];
  progress(`idle for ${IDLE_S} s`);
  fs.writeFileSync(HOOK, WITNESS);
  const channels = {
    "0 messages": fill("idle-0", 0),
    "10,000 messages": fill("idle-1", 10_000),
    "10,000 unread messages for others": fill("idle-2", 10_000, "carol"),
    "10,000 unread messages that do not match": { ...fill("idle-3", 10_000, "bob"), filter: ["--from", "carol"] },
  };
  const nothing = idle(
    [process.execPath, "-e", `setTimeout(() => {}, ${IDLE_S * 1000})`],
    [process.execPath, "-e", "0"],
  );
  const waits = Object.entries<{ name: string; filter?: string[] }>(channels).map(
    async ([what, { name, filter = [] }]) => ({
      what,
      ...(await idle(waiting(name, IDLE_S, filter), waiting(name, 0, filter))),
    }),
  );
  const { percent: none, peak: base } = await nothing;
  const rows = (await Promise.all(waits)).map(({ what, percent, peak }): Row[] => [
    {
      ...state(`idle \`wait\`, ${what}: CPU`, "% of a core", percent, atMost(0.3)),
      against: `idle \`node\`: ${rounded(median(none))} %`,
    },
    compare(
      { what: `idle \`wait\`, ${what}: peak memory`, unit: "MB", ours: peak, label: "idle `node`", other: base },
      atMost(1.1),
    ),
  ]);
  return rows.flat();
}

// ---- contention ----------------------------------------------------------------------------------------------------

const CONTEND_MS = QUICK ? 1_000 : 3_000;

// Both post as fast as they can between two times, through the functions of their program, and print how often.
const NODE_POSTER = `
const [, folder, bin, name, from, to] = process.argv;
const { openChannel, post } = require(bin);
const channel = openChannel(folder, name);
setTimeout(async () => {
  let count = 0;
  for (; Date.now() < Number(to); count++) await post(channel, { from: "w" + process.pid, title: "t", body: "x" });
  console.log(count);
}, Number(from) - Date.now());
`;
const PYTHON_POSTER = `
import argparse, contextlib, importlib.util, os, pathlib, sys, time
folder, program, name, start, end = sys.argv[1:]
spec = importlib.util.spec_from_file_location("chat", program)
chat = importlib.util.module_from_spec(spec)
spec.loader.exec_module(chat)
args = argparse.Namespace(channel=name, sender=f"w{os.getpid()}", to=None, title="t", reply=None, status="s", body="x", body_file=None)
time.sleep(max(0, int(start) / 1000 - time.time()))
count = 0
with contextlib.redirect_stdout(open(os.devnull, "w")), contextlib.suppress(SystemExit):
    while time.time() * 1000 < int(end):
        chat.cmd_post(pathlib.Path(folder), args)
        count += 1
print(count)
`;

let contests = 0;

/** Posts per second of some processes in one fresh channel. A process that gives up counts what it had posted. */
async function contend(
  processes: number,
  poster: (name: string, from: number, to: number) => Command,
): Promise<number> {
  const { name } = fill(`contend-${contests++}`, 0);
  const from = Date.now() + 1500; // all have started by then
  const counts = Array.from({ length: processes }, async () => {
    const [program, ...args] = poster(name, from, from + CONTEND_MS);
    const child = spawn(program, args, { env: ENV, stdio: ["ignore", "pipe", "ignore"] });
    let output = "";
    child.stdout.setEncoding("utf8").on("data", (text: string) => (output += text));
    await ended(child);
    return Number(output);
  });
  return (await Promise.all(counts)).reduce((sum, count) => sum + count, 0) / (CONTEND_MS / 1000);
}

async function measureContention(): Promise<Row[]> {
  progress("posting as fast as it goes");
  const mine = (name: string, from: number, to: number): Command => [
    process.execPath,
    "-e",
    NODE_POSTER,
    ROOT,
    BIN,
    name,
    `${from}`,
    `${to}`,
  ];
  const other = (name: string, from: number, to: number): Command => [
    "python3",
    "-c",
    PYTHON_POSTER,
    ROOT,
    REFERENCE,
    name,
    `${from}`,
    `${to}`,
  ];
  const rates: Record<string, number[]> = { mine8: [], other8: [], mine1: [], other1: [] };
  for (let turn = 0; turn < (QUICK ? 1 : 5); turn++) {
    for (const processes of [8, 1]) {
      rates[`mine${processes}`]!.push(await contend(processes, mine));
      if (PYTHON !== undefined) rates[`other${processes}`]!.push(await contend(processes, other));
    }
  }
  return [8, 1].map((processes) => {
    const what = `posts per second, ${processes === 1 ? "1 process" : `${processes} processes`}`;
    const [ours, other] = [rates[`mine${processes}`]!, rates[`other${processes}`]!];
    if (other.length === 0) return state(what, "/s", ours, none);
    return compare({ what, unit: "/s", ours, label: "reference", other }, processes === 8 ? atLeast(1.5) : none);
  });
}

// ---- syncing -------------------------------------------------------------------------------------------------------

// Loaded into a sync; it writes down how long it waited for git, from each start to each end.
const GIT_CLOCK = `
const child = require("node:child_process");
const { spawn } = child;
let [spent, count] = [0, 0];
child.spawn = (...args) => {
  const begun = process.hrtime.bigint();
  const started = spawn(...args);
  started.once("close", () => (spent += Number(process.hrtime.bigint() - begun) / 1e6, count++));
  return started;
};
process.on("exit", () => require("node:fs").writeFileSync(process.env.GIT_CLOCK, JSON.stringify({ spent, count })));
`;

/** Two roots that share a bare repository. */
function machines(name: string, messages: number): string[] {
  const at = (end: string): string => path.join(ROOT, `${name}-${end}`);
  run(["git", "init", "-q", "--bare", at("hub")]);
  fs.mkdirSync(at("one"));
  fs.renameSync(fill(name, messages).path, at("one/talk"));
  for (const root of [at("one"), at("two")]) run(ours("sync", "--init", at("hub"), "--root", root));
  return [at("one"), at("two")];
}

/** The time of a whole sync with ten new messages, and of the git commands it runs. */
async function measureTenNew(turns: number): Promise<Row> {
  const [root = ""] = machines("ten", 10_000);
  const [hook, clock] = [path.join(ROOT, "git-clock.cjs"), path.join(ROOT, "git-clock.json")];
  fs.writeFileSync(hook, GIT_CLOCK);
  const [whole, inGit]: [number[], number[]] = [[], []];
  for (let turn = -1; turn < turns; turn++) {
    for (let i = 0; i < 10; i++)
      await chat.post(chat.openChannel(root, "talk"), { from: "alice", body: `${turn} ${i}` });
    const start = performance.now();
    const env = { ...ENV, GIT_CLOCK: clock, NODE_OPTIONS: `--require ${hook}` };
    const { status, stderr } = spawnSync(process.execPath, [BIN, "sync", "--root", root], { env, encoding: "utf8" });
    if (status !== 0) throw new Error(stderr);
    if (turn < 0) continue; // the first has all to do that later ones need not
    whole.push(performance.now() - start);
    inGit.push((JSON.parse(fs.readFileSync(clock, "utf8")) as { spent: number }).spent);
  }
  const what = "`sync`, 10 new among 10,000";
  return compare({ what, unit: "ms", ours: whole, label: "its git commands", other: inGit }, atMost(1.5));
}

/** Messages a second of two machines that post, each pushed before the next. */
async function measurePushing(posts: number): Promise<Row> {
  const roots = machines("push", 3);
  const start = performance.now();
  const poster = async (root: string, from: string): Promise<void> => {
    for (let i = 0; i < posts; i++)
      await beside(["post", "talk", "--root", root, "--as", from, "--body", `${i}`, "--sync"]);
  };
  await Promise.all(roots.map((root, i) => poster(root, ["alice", "bob"][i]!)));
  return state(
    "`post --sync` by two machines through one remote",
    "messages/s",
    [(2 * posts * 1000) / (performance.now() - start)],
    none,
  );
}

/** Runs a command beside others; when it ended, by the clock of this process. */
function beside(args: readonly string[]): Promise<number> {
  const child = spawn(process.execPath, [BIN, ...args], { env: ENV, stdio: ["ignore", "pipe", "inherit"] });
  child.stdout.resume();
  return new Promise((resolve, reject) => {
    child.once("close", (code) => (code === 0 ? resolve(performance.now()) : reject(new Error(args.join(" ")))));
  });
}

/** Seconds from the end of a post on one machine to the end of a wait on the other. */
async function measureCrossing(turns: number): Promise<Row> {
  const [one = "", two = ""] = machines("cross", 3);
  run(ours("read", "--root", two, "--as", "bob"));
  const took: number[] = [];
  for (let i = 0; i < turns; i++) {
    const waiting = beside(["wait", "talk", "--root", two, "--as", "bob", "--sync", "1"]);
    await sleep(1500 + Math.random() * 1000);
    const posted = await beside(["post", "talk", "--root", one, "--as", "alice", "--body", `${i}`, "--sync"]);
    took.push(((await waiting) - posted) / 1000);
  }
  return state("`wait --sync 1` ends after `post --sync` elsewhere", "s", took, none);
}

async function measureSyncing(): Promise<Row[]> {
  progress("syncing");
  return [
    await measureTenNew(QUICK ? 3 : 9),
    await measurePushing(QUICK ? 5 : 20),
    await measureCrossing(QUICK ? 3 : 9),
  ];
}

// ---- main ----------------------------------------------------------------------------------------------------------

function table(rows: readonly Row[]): string {
  const lines = rows.map(
    ({ what, ours, against, ratio, target }) => `| ${what} | ${ours} | ${against} | ${ratio} | ${target} |`,
  );
  return [
    "| | agent-chat | against | ratio, median (p25-p75) | target |",
    "| --- | --- | --- | --- | --- |",
    ...lines,
  ].join("\n");
}

const SECTIONS: Readonly<Record<string, () => Row[] | Promise<Row[]>>> = {
  starts: measureStarts,
  sizes: measureSizes,
  waking: measureWaking,
  idling: measureIdling,
  contention: measureContention,
  syncing: measureSyncing,
};

async function main(): Promise<void> {
  const words = process.argv.slice(2).filter((word) => !word.startsWith("--"));
  const rows: Row[] = [];
  for (const [name, measure] of Object.entries(SECTIONS)) {
    if (words.length === 0 || words.includes(name)) rows.push(...(await measure()));
  }
  const python = PYTHON === undefined ? "no reference" : `reference on ${run([PYTHON, "--version"]).stdout.trim()}`;
  const machine = `${os.cpus().length} cores, ${process.platform}, Node ${process.version}, ${python}`;
  console.log(`${machine}${QUICK ? ", --quick" : ""}\n\n${table(rows)}`);
}

try {
  await main();
} finally {
  fs.rmSync(ROOT, { recursive: true, force: true });
}
