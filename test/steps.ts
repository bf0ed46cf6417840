// Stepped schedules: the real functions in worker threads, and every call into `fs` is a step that waits until it is
// let go. One step runs at a time, so a schedule is a list of names, and the same list gives the same run.
import { once } from "node:events";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import type { TestContext } from "node:test";
import { Worker } from "node:worker_threads";
import { BIN, random } from "./helpers.ts";

export const PROGRAM = path.resolve(process.env["AGENT_CHAT_BIN"] ?? BIN);
export const LONG = process.env["LONG"] !== undefined;
const REPLAY = process.env["REPLAY"]; // "title: a a b+ c!": one schedule of one scenario, as a failure prints it
const SEED = Number(process.env["SEED"] ?? Date.now() % 1e9);

/** A pid that no system gives out (they end at 2^22; on Windows they are even): who has it left its drafts and died. */
export const DEAD_PID = 5_000_001;

const JUMP_MS = 5_000; // what a jump of the clock lets pass: a lock seen before it is stale after it
const NAP_MS = 10; // what every other sleep takes
const ROUNDS = 3; // sleeps of one actor that are still woven in between the steps of others
const CRASH_MS = 10_000; // an actor that takes longer over one step will not answer any more
const STEPS_MAX = 1_000; // somebody who never sleeps runs in circles

interface Part {
  readonly actor: string; // one letter
  readonly after?: string; // starts once all these actors have ended or were killed
  readonly kill?: boolean; // may be killed before any of its steps; one actor in a schedule is
  readonly every?: boolean; // all its calls are steps, those that nobody else can notice too
  readonly pid?: number; // the pid that its drafts name
  readonly links?: boolean; // false: its file system has no hard links
  readonly torn?: boolean; // its listings of the channel are no snapshots
  readonly moving?: boolean; // numbers change: what it looks at of messages are steps too
}

/** What a wait is for. */
export interface Wish {
  readonly marks?: boolean; // what came
  readonly from?: readonly string[];
  readonly status?: string;
}

/** What one actor does; step-worker.cjs has the functions. */
export type Role = Part &
  (
    | { readonly does: "post"; readonly as: string; readonly titles: readonly string[]; readonly to?: readonly string[] }
    | { readonly does: "once"; readonly as: string; readonly key: string; readonly body: string }
    | { readonly does: "read"; readonly as: string; readonly times?: number; readonly only?: readonly number[] }
    | ({ readonly does: "wait"; readonly as: string; readonly timeout: number } & Wish)
    | { readonly does: "claim"; readonly as: string; readonly task: string }
    | { readonly does: "renumber" }
    | { readonly does: "put"; readonly file: string; readonly text: string }
    | TaskRole
  );

/** The life of a task; these actors' looks at tasks and records are steps as well. */
export type TaskRole =
  | { readonly does: "create"; readonly as: string; readonly title: string; readonly id?: string }
  | { readonly does: "take"; readonly as: string; readonly task?: string; readonly older?: number } // no task: the next
  | { readonly does: "line"; readonly as: string; readonly task: string; readonly timeout: number; readonly older?: number }
  | { readonly does: "end"; readonly as: string; readonly task: string; readonly state: "done" | "released"; readonly force?: boolean };

export interface Scenario {
  readonly title: string; // names it in REPLAY
  readonly roles: readonly Role[];
  readonly files?: Readonly<Record<string, string>>; // in the channel before anything runs
  readonly newest?: number; // as the last writer in a channel too large to list each time has left it
  /** Somebody who, once another has gone on after its first step, is suspended until something has happened. */
  readonly suspend?: { readonly actor: string; readonly until: (run: Run) => boolean };
  readonly jumps?: number; // how often 5 s may pass for a sleeper although somebody could go on
  readonly span?: number; // of a schedule by chance: about how many steps it has
  readonly preemptions?: number; // how often one who could go on may have to stop for another
  readonly check: (run: Run) => void; // throws where a schedule came out wrong
}

/** A call that waits for leave. */
interface Call {
  readonly op: string; // mkdir, create, open, ... or sleep, show
  readonly files: readonly string[]; // relative to the channel
}

/** What an actor returned, or the error it threw. */
type Ended = { readonly value?: unknown } | { readonly code: string; readonly message: string };
type Answer = { readonly result: string } & (Call | { readonly ended: Ended });

/** A choice of the scheduler: who goes on, and how. */
interface Choice {
  readonly actor: string;
  readonly how: "go" | "jump" | "kill"; // jump: 5 s pass in its sleep
}

/** A choice, carried out. */
export interface Step extends Choice {
  readonly call: Call;
  readonly result: string; // ok, or the system's code
  readonly preempts: boolean;
}

export interface Actor {
  readonly role: Role;
  readonly seat: number;
  state: "unborn" | "alive" | "ended" | "killed";
  call: Call; // what it waits for, while alive
  ended: Ended | undefined;
  seen: number | undefined; // the changes there had been when it first looked after its last sleep
  sleeps: number;
}

export interface Run {
  readonly scenario: Scenario;
  readonly channel: { readonly root: string; readonly name: string; readonly path: string };
  readonly actors: readonly Actor[];
  readonly steps: Step[]; // those that were chosen
}

// ---- the actors' threads -------------------------------------------------------------------------------------------

const [TURN, LENGTH] = [0, 1]; // of `control`
const [ACTOR, SCHEDULER] = [0, 1]; // whose turn it is
const NOW = 0; // of `clock`

/** A thread that plays one role after the other. */
interface Seat {
  readonly worker: Worker;
  readonly control: Int32Array;
  readonly text: Uint8Array;
}

const clock = new Float64Array(new SharedArrayBuffer(16));
const seats: Seat[] = [];

async function openSeat(): Promise<Seat> {
  const [control, text] = [new Int32Array(new SharedArrayBuffer(8)), new Uint8Array(new SharedArrayBuffer(1 << 16))];
  control[TURN] = SCHEDULER;
  const file = path.join(import.meta.dirname, "step-worker.cjs");
  const worker = new Worker(file, { workerData: { control, text, clock, bin: PROGRAM }, execArgv: [] });
  await once(worker, "online");
  return { worker, control, text };
}

/** For the end of a test file: ends the threads. */
export async function close(): Promise<void> {
  for (const { worker } of seats.splice(0)) await worker.terminate();
  if (REPLAY !== undefined && !replayed) throw new Error(`REPLAY names no scenario here: ${REPLAY}`);
}

/** Hands the turn to an actor, and sleeps until it has come to its next step or to its end. */
function tell({ control, text }: Seat, message: object): Answer {
  control[LENGTH] = new TextEncoder().encodeInto(JSON.stringify(message), text).written;
  Atomics.store(control, TURN, ACTOR);
  Atomics.notify(control, TURN);
  // Not one wait: the notify that belongs to the actor's last answer may come late, and would end it too soon.
  for (let woken = ""; Atomics.load(control, TURN) === ACTOR; woken = Atomics.wait(control, TURN, ACTOR, CRASH_MS)) {
    if (woken === "timed-out") throw new Error("an actor does not answer: it has crashed");
  }
  return JSON.parse(new TextDecoder().decode(text.slice(0, control[LENGTH]))) as Answer;
}

// ---- one schedule --------------------------------------------------------------------------------------------------

const MEMORY = fs.existsSync("/dev/shm") ? "/dev/shm" : os.tmpdir(); // thousands of channels are made, and none is kept
const scratch = fs.mkdtempSync(path.join(MEMORY, "agent-chat-steps-"));
process.on("exit", () => fs.rmSync(scratch, { recursive: true, force: true }));
for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => process.exit(1));

/** Who chooses. */
interface Policy {
  choose(choices: readonly Choice[], run: Run): Choice | undefined; // undefined: the schedule is not worth going on
  chosen?(step: Step, run: Run): void; // the choice was carried out
}

/** Runs one schedule in a fresh channel and checks it; false where the policy gave it up. */
async function perform(scenario: Scenario, policy: Policy): Promise<boolean> {
  await new Promise(setImmediate); // all else here is synchronous: signals come through between two schedules
  const run = begin(scenario);
  try {
    for (let choices = choicesOf(run); choices.length > 0; choices = choicesOf(run)) {
      const choice = policy.choose(choices, run);
      if (choice === undefined) return false;
      const step = await carryOut(run, choice);
      policy.chosen?.(step, run);
      if (run.steps.length === STEPS_MAX) throw new Error(`${STEPS_MAX} steps are taken, and no end`);
    }
    scenario.check(run);
    return true;
  } catch (error) {
    throw new Error(`${(error as Error).message}\n${describe(run)}`, { cause: error });
  } finally {
    for (const actor of run.actors) if (actor.state === "alive") tell(seats[actor.seat]!, { abandon: true });
    fs.rmSync(run.channel.path, { recursive: true });
  }
}

function keepNewest(folder: string, newest: number): void {
  fs.utimesSync(folder, 1.0000005, 1.0000005); // just before the first step changes it
  const { mtimeNs } = fs.statSync(folder, { bigint: true });
  fs.writeFileSync(path.join(folder, ".cursors", ".newest"), `${newest} ${mtimeNs}`);
}

function begin(scenario: Scenario): Run {
  const channel = { root: scratch, name: "c", path: path.join(scratch, "c") };
  fs.mkdirSync(path.join(channel.path, ".cursors"), { recursive: true });
  const files = Object.entries({ "_meta.json": "{}", ...scenario.files });
  for (const [file, text] of files) {
    fs.mkdirSync(path.dirname(path.join(channel.path, file)), { recursive: true });
    fs.writeFileSync(path.join(channel.path, file), text);
  }
  if (scenario.newest !== undefined) keepNewest(channel.path, scenario.newest);
  clock.fill(0);
  const call = { op: "", files: [] };
  const fresh = { state: "unborn", call, ended: undefined, seen: undefined, sleeps: 0 } as const;
  return { scenario, channel, actors: scenario.roles.map((role, seat) => ({ role, seat, ...fresh })), steps: [] };
}

/** Starts whom nothing holds back, ends the sleeps that may end, and tells what can be done next. */
function choicesOf(run: Run): Choice[] {
  const { actors, steps, scenario } = run;
  for (const actor of actors) if (mayStart(run, actor)) heed(actor, { ...actor.role, channel: run.channel });
  for (const actor of actors) if (mayNap(run, actor)) sleep(actor, NAP_MS);
  const awake = actors.filter((actor) => isAwake(run, actor));
  const asleep = actors.filter((actor) => isAsleep(actor) && !isSuspended(run, actor));
  const mayJump = awake.length === 0 || steps.filter(({ how }) => how === "jump").length < (scenario.jumps ?? 0);
  const victims = steps.some(({ how }) => how === "kill") ? [] : awake.filter(({ role }) => role.kill === true);
  return [...offer(mayGoOn(run, awake), "go"), ...offer(mayJump ? asleep : [], "jump"), ...offer(victims, "kill")];
}

function offer(actors: readonly Actor[], how: Choice["how"]): Choice[] {
  return actors.map(({ role }) => ({ actor: role.actor, how }));
}

const isAsleep = ({ state, call }: Actor): boolean => state === "alive" && call.op === "sleep";
const isOver = ({ state }: Actor): boolean => state === "ended" || state === "killed";

function mayStart({ actors }: Run, { state, role: { after = "" } }: Actor): boolean {
  return state === "unborn" && actors.every((other) => !after.includes(other.role.actor) || isOver(other));
}

/**
 * What bounds the retry loops: a sleep ends by itself only if something has changed since the sleeper looked, because
 * before that it would see the same again; and after some rounds only once nobody else can go on.
 */
function mayNap(run: Run, actor: Actor): boolean {
  if (!isAsleep(actor) || run.steps.filter(changed).length === actor.seen) return false;
  return actor.sleeps < ROUNDS || !run.actors.some((other) => isAwake(run, other));
}

function isAwake(run: Run, actor: Actor): boolean {
  return actor.state === "alive" && !isAsleep(actor) && !isSuspended(run, actor);
}

function isSuspended(run: Run, { role: { actor } }: Actor): boolean {
  const { suspend } = run.scenario;
  if (suspend?.actor !== actor || suspend.until(run)) return false;
  const begun = run.steps.findIndex((step) => step.actor === actor);
  const others = run.actors.some((other) => other.role.actor !== actor && other.state === "alive");
  return others && begun >= 0 && run.steps.slice(begun).some((step) => step.actor !== actor);
}

/** Once all preemptions are used up, the one who went on last goes on as long as it can. */
function mayGoOn({ scenario, steps }: Run, awake: readonly Actor[]): readonly Actor[] {
  const last = awake.filter(({ role }) => role.actor === steps.at(-1)?.actor);
  const used = steps.filter(({ preempts }) => preempts).length;
  return last.length > 0 && used >= (scenario.preemptions ?? Infinity) ? last : awake;
}

// ---- one step ------------------------------------------------------------------------------------------------------

async function carryOut(run: Run, choice: Choice): Promise<Step> {
  const { actors, steps } = run;
  const actor = actors.find(({ role }) => role.actor === choice.actor)!;
  const last = actors.find(({ role }) => role.actor === steps.at(-1)?.actor);
  const preempts = last !== undefined && last !== actor && last.state === "alive" && !isAsleep(last);
  const begun: Step = { ...choice, call: actor.call, result: "unanswered", preempts };
  const at = steps.push(begun) - 1;
  const step = { ...begun, result: await resultOf(run, actor, choice.how) };
  return (steps[at] = step);
}

async function resultOf(run: Run, actor: Actor, how: Choice["how"]): Promise<string> {
  if (how === "kill") return kill(actor);
  if (how === "jump") return sleep(actor, JUMP_MS);
  actor.seen ??= run.steps.filter(changed).length;
  return heed(actor, {});
}

/** Lets an actor run up to its next step; returns what came of this one. */
function heed(actor: Actor, message: object): string {
  const answer = tell(seats[actor.seat]!, message);
  if ("ended" in answer) Object.assign(actor, { state: "ended", ended: answer.ended });
  else Object.assign(actor, { state: "alive", call: { op: answer.op, files: answer.files } });
  return answer.result;
}

function sleep(actor: Actor, ms: number): string {
  Object.assign(actor, { seen: undefined, sleeps: actor.sleeps + 1 });
  clock[NOW]! += ms;
  return heed(actor, {});
}

/** The thread ends where it stands, like a process that was killed: nothing of it runs any more, not even `finally`. */
async function kill(actor: Actor): Promise<string> {
  actor.state = "killed";
  await seats[actor.seat]!.worker.terminate();
  seats[actor.seat] = await openSeat();
  return "killed";
}

const CHANGING = ["mkdir", "create", "unlink", "rmdir", "rename", "link", "rm", "writeFile", "appendFile"];

function changed({ how, call, result }: Step): boolean {
  return how === "go" && result === "ok" && CHANGING.includes(call.op);
}

const word = ({ actor, how }: Choice): string => actor + { go: "", jump: "+", kill: "!" }[how];

/** What an actor is about to do: `link _seq.lock/draft 0001-a-hello.md`. */
function label({ op, files }: Call): string {
  return [op, ...files.map((file) => file.replace(/[^/]*\.(draft|record)$/, "$1") || ".")].join(" ");
}

function describe({ scenario, steps, actors }: Run): string {
  const line = (step: Step): string => `${word(step).padEnd(2)} ${label(step.call)}: ${step.result}`;
  const lines = steps.map((step, i) => `${String(i + 1).padStart(4)} ${line(step)}`);
  const ends = actors.map(({ role, state, ended }) => `     ${role.actor} ${state} ${JSON.stringify(ended) ?? ""}`);
  const words = `${scenario.title}: ${steps.map(word).join(" ")}`;
  const again = `REPLAY='${words}' node --import tsx --test ${path.relative("", process.argv[1]!)}`;
  return ["the schedule:", ...lines, ...ends, again].join("\n");
}

// ---- which steps commute -------------------------------------------------------------------------------------------

/** The places that a step reads and writes. */
interface Footprint {
  readonly actor: string;
  readonly reads: readonly string[];
  readonly writes: readonly string[] | "everything";
}

/**
 * Two steps of two actors commute where neither writes what the other reads or writes. A step that failed has only
 * read. A jump of the clock and a kill commute with nothing.
 */
function footprint({ actors }: Run, step: Step): Footprint {
  const { actor, how, call } = step;
  const drafts = /^(readdir|l?stat|rmdir)$/.test(call.op) ? actors.map(({ role }) => role.actor) : [actor];
  const reads = call.files.flatMap((file) => placesOf(file, drafts));
  if (call.op === "stat" && call.files.includes("")) reads.push("_seq.lock"); // it comes and goes in this folder
  if (how !== "go") return { actor, reads, writes: "everything" };
  const files = changed(step) ? call.files.slice(call.op === "link" ? 1 : 0) : [];
  const writes = files.flatMap((file) => placesOf(file, [actor]).slice(/\.lock\//.test(file) ? 1 : 0));
  return { actor, reads, writes };
}

/**
 * A lock is one place, each actor's draft in it another. Listings of the channel are never searched for the lock, those
 * of the cursors only for stolen locks and for heartbeats.
 */
function placesOf(file: string, drafts: readonly string[]): string[] {
  if (file === "") return ["messages", "tasks", "graves"];
  if (file === ".cursors") return ["graves", "heartbeats"];
  if (file.endsWith(".wait")) return [file, "heartbeats"];
  if (/\.lock\.[^/]*$/.test(file)) return ["graves"]; // stolen locks, and what goes with them
  if (/^\d+-/.test(file)) return ["messages"];
  if (/^task-|^_paused/.test(file)) return ["tasks"];
  const lock = /^(.*\.lock)(\/.*)?$/.exec(file)?.[1];
  return lock === undefined ? [file] : [lock, ...drafts.map((actor) => `${lock}/${actor}`)];
}

function commute(a: Footprint, b: Footprint): boolean {
  const [written, meant] = [a.writes, b.writes];
  if (a.actor === b.actor || written === "everything" || meant === "everything") return false;
  const meet = (places: readonly string[], others: readonly string[]) => places.some((place) => others.includes(place));
  return !meet(written, [...b.reads, ...meant]) && !meet(meant, a.reads);
}

// ---- which schedules -----------------------------------------------------------------------------------------------

/** A point where there was a choice. */
interface Fork {
  readonly choices: readonly Choice[];
  readonly asleep: Map<string, Footprint>; // choices that would only repeat, in another order, what has been run
  at: number; // which choice is being run
  taken: Footprint | undefined; // what that choice came to
}

/**
 * Every schedule, depth first; of those that differ only in the order of commuting steps, one. These are Godefroid's
 * sleep sets: a choice tried at a fork sleeps in the fork's later branches, until a step that does not commute with it.
 * Where preemptions are bounded nothing sleeps: the order that is left might be the one with too many of them.
 */
function everySchedule(): Policy & { next(): boolean } {
  const forks: Fork[] = [];
  let [depth, asleep] = [0, new Map<string, Footprint>()];
  const settle = (fork: Fork): boolean => {
    while (fork.at < fork.choices.length && fork.asleep.has(word(fork.choices[fork.at]!))) fork.at++;
    return fork.at < fork.choices.length;
  };
  return {
    choose(choices) {
      const fork = (forks[depth] ??= { choices, asleep, at: 0, taken: undefined });
      if (fork.choices.map(word).join() !== choices.map(word).join()) throw new Error("a replay went another way");
      return settle(fork) ? fork.choices[fork.at] : undefined;
    },
    chosen(step, run) {
      const [fork, taken] = [forks[depth++]!, footprint(run, step)];
      fork.taken = taken;
      const stays = run.scenario.preemptions === undefined ? [...fork.asleep] : [];
      asleep = new Map(stays.filter(([, other]) => commute(other, taken)));
    },
    next() {
      [depth, asleep] = [0, new Map()];
      for (let fork = forks.at(-1); fork !== undefined; fork = forks.at(-1)) {
        if (settle(fork)) fork.asleep.set(word(fork.choices[fork.at]!), fork.taken!);
        if (settle(fork)) return true;
        forks.pop();
      }
      return false;
    },
  };
}

/**
 * One schedule by chance: of those who can go on, the one of the highest rank does; at a few steps, drawn beforehand,
 * it falls to the lowest. So long suspensions come up, as they never do where every step is a toss of a coin
 * (Burckhardt et al., A randomized scheduler with probabilistic guarantees of finding bugs, 2010).
 */
function byChance(chance: () => number, steps = 60): Policy {
  const ranks = new Map<string, number>();
  const span = 8 + chance() * steps;
  const falls = new Set(Array.from({ length: 5 }, () => Math.floor(chance() * span)));
  const rank = (actor: string): number => ranks.get(actor) ?? ranks.set(actor, chance()).get(actor)!;
  const highest = (choices: readonly Choice[]): string =>
    choices.reduce((a, b) => (rank(b.actor) > rank(a.actor) ? b : a)).actor;
  return {
    choose(choices, { steps }) {
      if (falls.has(steps.length)) ranks.set(highest(choices), -steps.length);
      const own = choices.filter(({ actor }) => actor === highest(choices));
      return own.find(({ how }) => how === "kill" && chance() < 0.05) ?? own[0];
    },
  };
}

/** One schedule as REPLAY lists it; after its end, whoever comes first goes on. */
function listed(words: readonly string[]): Policy {
  return {
    choose(choices, { steps }) {
      const wanted = words[steps.length];
      const found = wanted === undefined ? choices[0] : choices.find((choice) => word(choice) === wanted);
      if (found === undefined) throw new Error(`step ${steps.length + 1}, ${wanted}, cannot be done`);
      return found;
    },
  };
}

/** Lets an actor go on until it is about to do something that begins so, or can do no more. */
type Stage = readonly [actor: string, until: string];

function staged(stages: readonly Stage[]): Policy {
  const left = [...stages];
  const isReached = ({ actors }: Run, [name, until]: Stage): boolean =>
    actors.some(({ role, call }) => role.actor === name && label(call).startsWith(until));
  return {
    choose(choices, run) {
      const nextOf = ([name]: Stage) => choices.find(({ actor, how }) => actor === name && how !== "kill");
      while (left[0] !== undefined && (isReached(run, left[0]) || nextOf(left[0]) === undefined)) left.shift();
      return left[0] === undefined ? choices[0] : nextOf(left[0]);
    },
  };
}

// ---- explorations --------------------------------------------------------------------------------------------------

let replayed = false;

/** Whether a scenario is to be explored now; with REPLAY set, the one schedule is run, and nothing else. */
async function isWanted(t: TestContext, scenario: Scenario): Promise<boolean> {
  while (seats.length < scenario.roles.length) seats.push(await openSeat());
  if (REPLAY === undefined) return true;
  const [title, words = ""] = REPLAY.split(": ");
  if (title !== scenario.title) return false;
  replayed = true;
  await perform(scenario, listed(words.split(" ").filter((text) => text !== "")));
  t.diagnostic(`replayed: ${scenario.title}`);
  return false;
}

/** Every schedule of a scenario, as `everySchedule` understands it. */
export async function explore(t: TestContext, scenario: Scenario): Promise<void> {
  if (!(await isWanted(t, scenario))) return;
  const [policy, count, since] = [everySchedule(), { whole: 0, repeated: 0 }, Date.now()];
  do count[(await perform(scenario, policy)) ? "whole" : "repeated"]++;
  while (policy.next());
  const bound = scenario.preemptions;
  const all = `all, commuting steps in one order only (${count.repeated} begun in another were given up)`;
  report(t, scenario, count.whole, bound === undefined ? all : `all with at most ${bound} preemptions`, since);
}

/** Schedules of a scenario by chance, where there are too many for all. */
export async function sample(t: TestContext, scenario: Scenario, schedules: number): Promise<void> {
  if (!(await isWanted(t, scenario))) return;
  const [chance, since] = [random(SEED), Date.now()];
  for (let left = schedules; left > 0; left--) await perform(scenario, byChance(chance, scenario.span));
  report(t, scenario, schedules, `sampled, SEED=${SEED}`, since);
}

function report(t: TestContext, { title }: Scenario, schedules: number, which: string, since: number): void {
  const bound = `${ROUNDS} sleeps of an actor woven in at most`;
  t.diagnostic(`${title}: ${schedules} schedules, ${which}; ${bound}; ${((Date.now() - since) / 1000).toFixed(1)} s`);
}

/** The one schedule that a bug is known to need. */
export async function stage(t: TestContext, scenario: Scenario, ...stages: readonly Stage[]): Promise<void> {
  if (!(await isWanted(t, scenario))) return;
  await perform(scenario, staged(stages));
  t.diagnostic(`${scenario.title}: 1 schedule, pinned`);
}
