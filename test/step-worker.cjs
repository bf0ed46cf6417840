// One actor of the stepped schedules (steps.ts): the built program in a worker thread, whose every call that another
// actor could notice waits until the scheduler lets it go. Clock, sleep, chance and pid are the scheduler's too.
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const { workerData } = require("node:worker_threads");

const { control, text, clock, bin } = workerData;
const [TURN, LENGTH] = [0, 1]; // of `control`, which this actor and the scheduler share
const [ACTOR, SCHEDULER] = [0, 1]; // whose turn it is
const [NOW, CHANGES] = [0, 1]; // of `clock`, which all actors share
const real = { ...fs };
const waitFor = Atomics.wait;

let role; // what this actor does; undefined between two schedules
let inside = false; // a real call is running: what it calls itself is part of the same step
let abandoned = false; // the schedule was given up: nothing may touch the disk any more
let result = "ok"; // of the last step

// ---- turns ---------------------------------------------------------------------------------------------------------

/** Hands the turn to the scheduler with a message, and sleeps until it comes back with the answer. */
function ask(message) {
  control[LENGTH] = new TextEncoder().encodeInto(JSON.stringify(message), text).written;
  Atomics.store(control, TURN, SCHEDULER);
  Atomics.notify(control, TURN);
  return listen();
}

function listen() {
  while (Atomics.load(control, TURN) === SCHEDULER) waitFor(control, TURN, SCHEDULER);
  return JSON.parse(new TextDecoder().decode(text.slice(0, control[LENGTH]))); // shared memory itself is not decoded
}

/** The gate: returns once the scheduler lets this call go. */
function step(op, ...paths) {
  const files = paths.map((file) => path.relative(role.channel.path, file).replaceAll(path.sep, "/"));
  if (!abandoned) abandoned = ask({ op, files, result }).abandon;
  if (abandoned) throw new Error("this schedule was given up");
  result = "ok";
}

// ---- the file system -----------------------------------------------------------------------------------------------

/**
 * What no other actor can notice, and nothing that others do can change, needs no gate: it commutes with every step.
 * - Calls on an open file: it is the actor's own draft, or a file that is never written to once it has its name.
 * - Opening a message, `_meta.json` or a folder to read: these are never replaced or removed here (but a message that
 *   is only a reserved name, where there are no hard links, is).
 * - Making `.cursors`, which is there from the start.
 * - A reader's look at the lock: it only decides how long the reader pauses.
 * - Looks for what numbers changed, where no actor changes any.
 * A task's file and its record do come and go; who works on tasks looks at them in steps. So do messages while numbers
 * change.
 */
function isPrivate(op, [file, how]) {
  if (typeof file === "number") return true;
  if (!role.moving && /\.cursors[/\\]\.mov(ing|ed)$/.test(file)) return true;
  const shared = role.moving
    ? /\.(txt|newest|wait|md|moving|moved)$/
    : TASK_ROLES.includes(role.does)
    ? /\.(txt|newest|wait|json)$|task-[^/\\]*$/
    : role.links === false
      ? /\.(txt|newest|wait|md)$/
      : /\.(txt|newest|wait)$/;
  if (op === "openSync") return how !== "wx" && !shared.test(file);
  if (op === "readdirSync") return /^(read|wait)$/.test(role.does) && file === path.join(role.channel.path, "_seq.lock");
  return /^(mkdir|stat)Sync$/.test(op) && path.basename(file) === ".cursors";
}

const TASK_ROLES = ["create", "take", "line", "end"];

function gate(op) {
  return (...args) => {
    if (role === undefined || inside) return real[op](...args);
    if (role.every !== true && isPrivate(op, args)) return real[op](...args);
    if (op === "readdirSync" && role.torn && args[0] === role.channel.path) return tornListing(args);
    const two = op === "renameSync" || op === "linkSync";
    const paths = args.slice(0, two ? 2 : 1).filter((file) => typeof file === "string");
    step(op === "openSync" && args[1] === "wx" ? "create" : op.slice(0, -"Sync".length), ...paths);
    return perform(op, args, paths);
  };
}

function perform(op, args, paths) {
  inside = true;
  try {
    if (op === "linkSync" && role.links === false) throw Object.assign(new Error("no links"), { code: "ENOTSUP" });
    const value = real[op](...args);
    stamp(op, args, paths);
    if (typeof value?.ctimeNs === "bigint") value.ctimeNs = value.mtimeNs;
    return value;
  } catch (error) {
    result = error.code;
    throw error;
  } finally {
    inside = false;
  }
}

/** Times on disk follow the scheduler's clock, and each change is later than the one before: a replay sees the same. */
function stamp(op, [, flag], paths) {
  if (!/^(mkdir|unlink|rmdir|rename|link|rm|writeFile|appendFile)Sync$/.test(op) && flag !== "wx") return;
  const time = 1 + clock[NOW] / 1e3 + ++clock[CHANGES] / 1e6;
  const made = /^(mkdir|rename)Sync$/.test(op) ? paths.slice(-1) : [];
  const changed = [...made, ...paths.map((file) => path.dirname(file))].filter((file) => real.existsSync(file));
  for (const file of changed) real.utimesSync(file, time, time); // rm may have found nothing, not even the folder
}

/** A listing is no snapshot: this one sees the first message as it was before, and the others as they are after. */
function tornListing(args) {
  const isEarly = (name) => name < "0002";
  step("readdir", args[0]);
  const early = perform("readdirSync", args, []).filter(isEarly);
  step("readdir", args[0]);
  return [...early, ...perform("readdirSync", args, []).filter((name) => !isEarly(name))];
}

// ---- the process ---------------------------------------------------------------------------------------------------

/** Random numbers that come out the same whenever an actor of this name starts: xorshift. */
function dice(seed) {
  let state = seed;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
}

/** Puts the scheduler's world around the program, before the program is loaded. */
function patch() {
  real.rmSync(`${bin}.absent`, { force: true }); // loads the parts it is made of while they are not gates yet
  for (const op of Object.keys(real).filter((name) => name.endsWith("Sync"))) fs[op] = gate(op);
  const [sleep, pid] = [globalThis.setTimeout, process.pid];
  globalThis.setTimeout = (callback, ms) => {
    if (role === undefined) return sleep(callback, ms);
    step("sleep");
    queueMicrotask(callback);
  };
  Atomics.wait = (...args) => (role === undefined ? waitFor(...args) : "timed-out"); // a pause lets time pass, no more
  const Day = Date;
  const today = (given) => (role === undefined || given.length > 0 ? given : [1e3 + clock[NOW]]); // as `stamp` has it
  globalThis.Date = class extends Day {
    constructor(...given) {
      super(...today(given));
    }
    static now = () => (role === undefined ? Day.now() : today([])[0]);
  };
  process.hrtime = () => [Math.floor(clock[NOW] / 1e3), Math.round((clock[NOW] % 1e3) * 1e6)];
  Object.defineProperty(process, "pid", { get: () => role?.pid ?? pid });
}

// ---- roles ---------------------------------------------------------------------------------------------------------

const ROLES = {
  /** Posts messages; returns their files. */
  async post(chat) {
    const files = [];
    for (const title of role.titles) {
      const { as: from, to, actor } = role;
      const outgoing = { from, to, title, body: `${title} from ${actor}`, force: true };
      files.push((await chat.post(role.channel, outgoing)).message.file);
    }
    return files;
  },
  /** Posts a message under a key; returns its number, and whether this call made it. */
  async once(chat) {
    const { as: from, key, body } = role;
    const { message, created } = await chat.post(role.channel, { from, key, body });
    return { seq: message.seq, created };
  },
  /** Shows what is new, or only the messages with the numbers in `only`, and marks it; as often as asked. */
  async read(chat) {
    for (let left = role.times ?? 1; left > 0; left--) {
      const batch = chat.read(role.channel, role.as);
      const shown = batch.messages.filter(({ seq }) => role.only?.includes(seq) ?? true);
      for (const message of shown) step("show", message.path);
      await chat.mark(batch, shown);
    }
  },
  /** Waits, with a filter or without; returns the files of what came, marked where it is to be. */
  async wait(chat) {
    const { from, status, timeout } = role;
    const batches = await chat.wait([role.channel], role.as, { from, status, timeout });
    for (const batch of role.marks ? batches : []) await chat.mark(batch, batch.messages);
    return batches.flatMap(({ messages }) => messages.map(({ file }) => file));
  },
  /** Takes a task; returns its file. */
  async claim(chat) {
    return (await chat.claim(role.channel, role.as, role.task)).file;
  },
  /** Makes a task; returns its file. */
  async create(chat) {
    const body = `${role.title} from ${role.actor}`;
    return (await chat.createTask(role.channel, { from: role.as, title: role.title, body, id: role.id })).file;
  },
  /** Takes a task, or the next; from an owner, if that is asked for. */
  async take(chat) {
    const how = { older: role.older };
    if (role.task === undefined) return chat.claimNext(role.channel, role.as, how);
    return chat.claim(role.channel, role.as, role.task, how);
  },
  /** Waits in line for a task, and takes it. */
  async line(chat) {
    const { timeout, older } = role;
    return chat.claimLater(role.channel, role.as, role.task, { timeout, older });
  },
  /** Finishes or releases a task; returns the number of the message that tells of it. */
  async end(chat) {
    const change = role.state === "done" ? chat.finish : chat.release;
    const { from, already, message, task } = await change(role.channel, role.as, role.task, { force: role.force });
    return { from, already, file: task.file, seq: message?.seq };
  },
  /** Gives messages that share a number each one of its own. */
  async renumber(chat) {
    return (await chat.renumber(role.channel)).map(({ file }) => file);
  },
  /** A person, git or the reference: makes a file unless it is there, and heeds no lock. */
  async put() {
    fs.writeFileSync(path.join(role.channel.path, role.file), role.text, { flag: "wx" });
  },
};

async function play(chat) {
  try {
    return { value: await ROLES[role.does](chat) };
  } catch (error) {
    return { code: error.code ?? "a bug", message: error.message };
  }
}

async function serve() {
  patch();
  const chat = require(bin);
  for (let next = listen(); ; ) {
    [role, abandoned, result] = [next, false, "ok"];
    Math.random = dice(role.actor.charCodeAt(0));
    const ended = await play(chat);
    role = undefined;
    next = ask({ ended, result });
  }
}

void serve();
