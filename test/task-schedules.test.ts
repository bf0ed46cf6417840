// The life of a task, proven on the real code in stepped schedules (steps.ts): whatever stops or dies when, a task has
// one file and one owner, no text is lost, and every change is told once.
import assert from "node:assert/strict";
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { after, test } from "node:test";
import type * as Chat from "../chat.ts";
import { close, DEAD_PID, explore, LONG, PROGRAM, sample, stage } from "./steps.ts";
import type { Actor, Role, Run } from "./steps.ts";

const chat = createRequire(import.meta.url)(PROGRAM) as typeof Chat;

after(close);

// ---- who takes part ------------------------------------------------------------------------------------------------

type Extra = Partial<Pick<Role, "after" | "kill" | "every" | "pid">>;
interface Taken extends Chat.Claim {}
interface Ended {
  readonly from: string;
  readonly already: boolean;
  readonly file: string;
  readonly seq: number | undefined;
}

const AGES_AGO = "1969-01-01T12:00:00+00:00"; // the scheduler's clock begins with 1970
const HOUR = 3600;
const TEXT = "---\ntask: 1\nfrom: zoe\ntitle: first\n---\nfirst\n";
const AGAIN = "again\n";

/** Ann has it since long ago, and has not been heard of. */
const CLAIMED = { "task-1.CLAIMED-ann.md": TEXT, ".tasks/1.ann.json": record("claimed", "original") };

function record(state: string, id: string): string {
  return JSON.stringify({ state, since: AGES_AGO, after: 0, id, owner: null });
}

function end(actor: string, as: string, state: "done" | "released", extra: Extra & { force?: boolean } = {}): Role {
  return { actor, does: "end", as, task: "1", state, ...extra };
}

function take(actor: string, as: string, extra: Extra & { task?: string; older?: number } = { task: "1" }): Role {
  return { actor, does: "take", as, ...extra };
}

const thief = (actor: string, as: string, extra: Extra = {}): Role => take(actor, as, { task: "1", older: HOUR, ...extra });

function put(file = "task-1.md"): Role {
  return { actor: "p", does: "put", file, text: AGAIN };
}

// ---- what must be true after every schedule ------------------------------------------------------------------------

function valuesOf<T>(run: Run, does: Role["does"]): T[] {
  return run.actors.flatMap(({ role, ended }) =>
    role.does === does && ended !== undefined && !("code" in ended) ? [ended.value as T] : [],
  );
}

function isFine({ ended }: Actor): boolean {
  return ended !== undefined && !("code" in ended);
}

const killed = ({ actors }: Run): boolean => actors.some(({ state }) => state === "killed");

function filesOf({ channel }: Run): string[] {
  return fs.readdirSync(channel.path).filter((name) => name.startsWith("task-")).sort();
}

const stateOf = (file: string): string => /\.(CLAIMED|DONE)-/.exec(file)?.[1] ?? "open";

/** Nothing renames without replacing: what a person writes in the very step between the last look and the rename is lost. */
function isBlind({ steps }: Run): boolean {
  const [put, move] = [steps.findIndex(({ actor }) => actor === "p"), steps.findIndex(({ call }) => call.op === "rename" && call.files[1] === "task-1.md")];
  const mover = steps[move]?.actor;
  const looked = steps.findLastIndex(({ actor, call }, i) => i < move && actor === mover && call.op === "lstat" && call.files[0] === "task-1.md");
  return put >= 0 && looked < put && put < move;
}

/** Every text that was ever there is there, once. */
function checkTexts(run: Run): void {
  if (isBlind(run)) return;
  const read = (file: string): string => fs.readFileSync(path.join(run.channel.path, file), "utf8");
  const before = Object.entries(run.scenario.files ?? {}).flatMap(([file, text]) => (file.startsWith("task-") ? [text] : []));
  const again = run.actors.filter((actor) => actor.role.does === "put" && isFine(actor)).map(() => AGAIN);
  const made = valuesOf<string>(run, "create").map((file) => read(filesOf(run).find((name) => name.startsWith(file.replace(/md$/, "")))!));
  const there = filesOf(run).map(read);
  const due = [...before, ...again, ...made];
  if (killed(run)) return assert.deepEqual(due.filter((text) => !there.includes(text)), [], "a text was lost");
  assert.deepEqual(there.sort(), due.sort(), `a text was lost or doubled: ${filesOf(run).join(", ")}`);
}

/** A task has one file; one that a person made anew may lie open beside that. */
function checkFiles(run: Run): void {
  const again = run.actors.some((actor) => actor.role.does === "put" && isFine(actor));
  const ids = filesOf(run).map((file) => /^task-([^.]+)/.exec(file)![1]!);
  for (const id of new Set(ids)) {
    const files = filesOf(run).filter((file) => file.startsWith(`task-${id}.`));
    const taken = files.filter((file) => stateOf(file) !== "open");
    assert.ok(taken.length <= 1, `two owners: ${files.join(", ")}`);
    if (!again) assert.equal(files.length, 1, `two files: ${files.join(", ")}`);
  }
}

function messagesOf(run: Run, status?: string): Chat.Message[] {
  const { messages, notes } = chat.lastMessages(run.channel, Infinity);
  assert.deepEqual(notes, [], "a file only looks like a message");
  assert.deepEqual(messages.map(({ seq }) => seq), messages.map((_, i) => i + 1), "numbers are shared or missing");
  return messages.filter((message) => status === undefined || message.status === status);
}

/** How often a claim was ended so: its file was renamed by somebody who ends claims. */
function changesTo({ steps, actors }: Run, state: "done" | "released"): number {
  const enders = actors.filter(({ role }) => role.does === "end" && role.state === state).map(({ role }) => role.actor);
  const isEnd = ({ call, result }: Run["steps"][number]): boolean => call.op === "rename" && /^task-.*CLAIMED/.test(call.files[0]!) && result === "ok";
  return steps.filter((step) => enders.includes(step.actor) && isEnd(step)).length;
}

/** What was said to have happened is told, by one message for each change; and nothing else is. */
function checkTold(run: Run): void {
  const ends = run.actors.flatMap((actor) =>
    actor.role.does === "end" && isFine(actor) ? [{ ...actor.role, ...(actor.ended as { value: Ended }).value }] : [],
  );
  for (const state of ["done", "released"] as const) {
    const told = messagesOf(run, state);
    const ok = ends.filter((one) => one.state === state);
    assert.deepEqual([...new Set(ok.map(({ seq }) => seq))].sort(), told.map(({ seq }) => seq), `told of "${state}"`);
    for (const { seq, from } of told) {
      const by = ok.filter((one) => one.seq === seq);
      assert.ok(by.every(({ as }) => as === from), `#${seq} tells of somebody else's`);
      if (!killed(run)) assert.ok(by.some(({ already }) => !already), `#${seq} tells of no change`);
    }
    if (!killed(run)) assert.equal(told.length, changesTo(run, state), `changes to "${state}", and messages`);
  }
  const stolen = valuesOf<Taken>(run, "take").filter(({ stolen_from }) => stolen_from !== null);
  const told = messagesOf(run, "stolen").map(({ from, to }) => `${from} ${to.join()}`);
  const due = stolen.map(({ file, stolen_from }) => `${/CLAIMED-(.*)\.md/.exec(file)![1]} ${stolen_from}`);
  if (!killed(run)) assert.deepEqual(told.sort(), due.sort(), "told of thefts");
  assert.equal(new Set(told).size, told.length, "a theft was told twice");
}

/** Who ended well has what it wanted, unless somebody who ended well changed it since. */
function checkOwners(run: Run): void {
  const takes = [...valuesOf<Taken>(run, "take"), ...valuesOf<Taken>(run, "line")].map(({ file }) => file);
  const ends = valuesOf<Ended>(run, "end").map(({ file }) => file);
  const known = [...Object.keys(run.scenario.files ?? {}), ...takes, ...ends];
  const odd = filesOf(run).filter((file) => stateOf(file) !== "open" && !known.includes(file));
  if (!killed(run)) assert.deepEqual(odd, [], "somebody has it who was not told so");
}

function checkCodes(run: Run, codes: readonly string[]): void {
  for (const { role, ended } of run.actors) {
    if (ended === undefined || !("code" in ended) || role.does === "put") continue;
    assert.ok(codes.includes(ended.code), `${role.actor} failed: ${ended.code}, ${ended.message}`);
  }
}

/** Nothing is left behind but, by who was killed, its lock. */
function checkLeftovers(run: Run): void {
  const list = (folder: string): string[] => (fs.existsSync(folder) ? fs.readdirSync(folder) : []);
  const names = [".", ".cursors", ".tasks"].flatMap((folder) => list(path.join(run.channel.path, folder)));
  const due = /^(\d+-.*\.md|task-.*\.md|_meta\.json|\.cursors|\.tasks|[a-z]+\.txt|\.newest|\w+\.[a-z]+\.json)$/;
  const left = names.filter((name) => !due.test(name) && !(killed(run) && /\.lock($|\.)/.test(name)));
  assert.deepEqual(left, [], "something was left behind");
}

/** All of the above; `codes` are the errors that somebody may get, and `more` what else is true. */
function sound(codes: readonly string[] = [], more: (run: Run, files: string[]) => void = () => {}): (run: Run) => void {
  return (run) => {
    checkCodes(run, codes);
    checkTexts(run);
    checkFiles(run);
    checkTold(run);
    checkOwners(run);
    checkLeftovers(run);
    more(run, filesOf(run));
  };
}

// ---- how many ------------------------------------------------------------------------------------------------------

type Scenario = Parameters<typeof explore>[1];

/** Every schedule in which each is stopped once at any step (LONG: twice), where two take part; others by chance. */
async function weave(t: Parameters<typeof explore>[0], scenario: Scenario, sampled = 25): Promise<void> {
  const few = { ...scenario, title: `${scenario.title} in few turns`, preemptions: 1 };
  if (LONG || scenario.roles.length === 2 || scenario.suspend !== undefined) await explore(t, few);
  if (LONG && scenario.roles.length === 2) await sample(t, { ...few, title: `${scenario.title} in some turns`, preemptions: 2 }, 3_000);
  await sample(t, scenario, LONG ? sampled * 100 : sampled);
}

/** By chance only, but where there is time. */
async function draw(t: Parameters<typeof explore>[0], scenario: Scenario, sampled = 25): Promise<void> {
  if (LONG) await weave(t, scenario, sampled);
  else await sample(t, scenario, sampled);
}

const dead = { pid: DEAD_PID };
const robbed = { jumps: 1 }; // once, 5 s may pass while somebody could go on: its lock is stolen

// ---- making --------------------------------------------------------------------------------------------------------

test("task: of two made at once each has a number and a text, and one id is given once", async (t) => {
  const maker = (actor: string, as: string, id?: string): Role => ({ actor, does: "create", as, title: "t", ...(id && { id }) });
  const two = [maker("a", "ann"), maker("b", "bob")];
  const numbers = sound([], (_, files) => assert.deepEqual(files, ["task-1.md", "task-2.md"]));
  await weave(t, { title: "two made", roles: two, check: numbers, ...robbed });
  const codesOf = ({ actors }: Run): string[] => actors.flatMap(({ ended }) => (ended && "code" in ended ? [ended.code] : []));
  const once = sound(["task_exists"], (run, files) => {
    assert.deepEqual(files, ["task-x.md"]);
    assert.deepEqual(codesOf(run), ["task_exists"]);
  });
  await draw(t, { title: "two made with one id", roles: [maker("a", "ann", "x"), maker("b", "bob", "x")], check: once, ...robbed });
  await weave(t, { title: "made while a person does", roles: [maker("a", "ann"), put()], check: sound() });
  const named = [maker("a", "ann", "1"), put()];
  await weave(t, { title: "made with an id that a person takes", roles: named, check: sound(["task_exists"]) });
});

// ---- finishing and releasing ---------------------------------------------------------------------------------------

test("done, release: by two sessions of its owner, one changes the task and one message tells of it", async (t) => {
  const done = sound([], (run, files) => {
    assert.deepEqual(files, ["task-1.DONE-ann.md"]);
    assert.equal(messagesOf(run, "done").length, 1);
  });
  const roles = [end("a", "ann", "done"), end("b", "ann", "done")];
  await weave(t, { title: "two finish", roles, files: CLAIMED, check: done, ...robbed });
  const late = { title: "a record in the lock of a thief", roles, files: CLAIMED, check: done, ...robbed };
  const stolen = [["a", "lstat task-1.DONE"], ["b", "lstat task-1.DONE"], ["a", "readdir ."]] as const;
  await stage(t, late, ...stolen, ["b", "unlink _seq.lock/draft"], ["a", "(none)"], ["b", "(none)"]);
  const released = sound([], (run, files) => {
    assert.deepEqual(files, ["task-1.md"]);
    assert.equal(messagesOf(run, "released").length, 1);
  });
  const two = [end("a", "ann", "released"), end("b", "ann", "released")];
  await draw(t, { title: "two release", roles: two, files: CLAIMED, check: released, ...robbed });
  const both = [end("a", "ann", "done"), end("b", "ann", "released")];
  await draw(t, { title: "one finishes, one releases", roles: both, files: CLAIMED, check: sound(["taken", "not_claimed"]), ...robbed });
  const forced = [end("a", "ann", "done"), end("b", "bob", "released", { force: true })];
  await draw(t, { title: "finished and released by force", roles: forced, files: CLAIMED, check: sound(["taken", "not_claimed"]), ...robbed });
});

test("claim: against done and release by its owner's two sessions", async (t) => {
  for (const state of ["done", "released"] as const) {
    const roles = [end("a", "ann", state), end("b", "ann", state), take("c", "cid")];
    const check = sound(["taken", "no_task", "not_claimed"]);
    await weave(t, { title: `claimed while two say ${state}`, roles, files: CLAIMED, check, ...robbed }, 60);
  }
});

test("done, release: killed at any step, and once more by another process: done once and told once", async (t) => {
  for (const state of ["done", "released"] as const) {
    for (const [word, how] of Object.entries({ "": {}, ...(LONG && { " and known dead": dead }) })) {
      const roles = [end("a", "ann", state, { kill: true, every: true, ...how }), end("b", "ann", state, { after: "a" })];
      const check = sound([], (run, files) => {
        assert.deepEqual(files, [state === "done" ? "task-1.DONE-ann.md" : "task-1.md"]);
        assert.equal(messagesOf(run, state).length, 1, "told once");
      });
      await explore(t, { title: `killed saying ${state}${word}`, roles, files: CLAIMED, check });
    }
  }
});

// ---- stealing ------------------------------------------------------------------------------------------------------

test("steal: of two at once one has it, and its owner is told once", async (t) => {
  const check = sound(["taken", "not_stale"], (run) => assert.equal(messagesOf(run, "stolen").length, 1));
  const roles = [thief("b", "bob"), thief("c", "cid")];
  await weave(t, { title: "two steal", roles, files: CLAIMED, check, ...robbed });
});

test("steal: against its owner's done and release, stopped at any step", async (t) => {
  for (const state of ["done", "released"] as const) {
    const roles = [end("a", "ann", state), thief("b", "bob")];
    const check = sound(["taken", "not_stale", "not_claimed"]);
    await weave(t, { title: `stolen while it is ${state}`, roles, files: CLAIMED, check, ...robbed }, 60);
  }
});

test("steal: a thief that sleeps while the owner releases it and claims it anew gives it back", async (t) => {
  const suspend = { actor: "b", until: ({ actors }: Run) => actors.every(({ role, state }) => role.actor === "b" || state === "ended") };
  const roles = [thief("b", "bob"), end("a", "ann", "released"), take("c", "ann", { task: "1", after: "a" })];
  const check = sound(["taken", "not_stale"], (run, files) => {
    const [released, anew] = ["a", "c"].map((name) => run.actors.some((actor) => actor.role.actor === name && isFine(actor)));
    if (released && anew) assert.match(files.join(), /^task-1\.(CLAIMED|DONE)-ann\.md$/, "the fresh claim was lost");
  });
  await weave(t, { title: "a thief suspended", roles, files: CLAIMED, suspend, check, ...robbed }, 60);
  const more = [...roles, end("d", "ann", "done", { after: "c" })];
  await draw(t, { title: "a thief suspended till it is done", roles: more, files: CLAIMED, suspend, check, ...robbed }, 60);
});

test("steal: killed at any step, and once more by another process: taken once and told once", async (t) => {
  const check = sound([], (run, files) => {
    assert.deepEqual(files, ["task-1.CLAIMED-bob.md"]);
    assert.equal(messagesOf(run, "stolen").length, 1, "told once");
  });
  const roles = [thief("b", "bob", { kill: true, every: true }), thief("c", "bob", { after: "b" })];
  await explore(t, { title: "a thief killed", roles, files: CLAIMED, check });
});

test("release: one that sleeps while the same name releases the task and claims it anew is told if it came about", async (t) => {
  for (const state of ["done", "released"] as const) {
    const suspend = { actor: "a", until: ({ actors }: Run) => actors.every(({ role, state }) => role.actor === "a" || state === "ended") };
    const roles = [end("a", "ann", state), end("b", "ann", "released"), take("c", "ann", { task: "1", after: "b" })];
    const check = sound(["taken", "not_claimed", "no_task"]);
    await weave(t, { title: `${state} late by an owner suspended`, roles, files: CLAIMED, suspend, check, ...robbed });
  }
});

// ---- made anew by hand ---------------------------------------------------------------------------------------------

test("a task that a person makes anew is not replaced, whenever that was before the last look, and no text is lost", async (t) => {
  for (const state of ["done", "released"] as const) {
    const roles = [end("a", "ann", state), put()];
    await weave(t, { title: `made anew while it is ${state}`, roles, files: CLAIMED, check: sound(["task_exists"]), ...robbed });
    const two = [...roles, end("b", "ann", state)];
    const check = sound(["task_exists", "not_claimed", "taken"]);
    await weave(t, { title: `made anew while two say ${state}`, roles: two, files: CLAIMED, check, ...robbed }, 60);
  }
  await weave(t, { title: "made anew while it is stolen", roles: [thief("b", "bob"), put()], files: CLAIMED, check: sound(), ...robbed });
});

// ---- the next ------------------------------------------------------------------------------------------------------

const TWO = { "task-1.md": TEXT, "task-2.md": "second\n" };

test("claim --next: two over two tasks have one each, also where one of them is killed", async (t) => {
  const each = sound([], (_, files) => assert.deepEqual(files.map(stateOf), ["CLAIMED", "CLAIMED"]));
  await draw(t, { title: "two take the next", roles: [take("a", "ann", {}), take("b", "bob", {})], files: TWO, check: each, ...robbed });
  const roles = [take("a", "ann", { kill: true, every: true }), take("b", "bob", {})];
  const check = sound([], (_, files) => assert.ok(files.some((file) => file.includes("CLAIMED-bob"))));
  await sample(t, { title: "two take the next, one killed", roles, files: TWO, check }, LONG ? 2_000 : 40);
});

// ---- in line -------------------------------------------------------------------------------------------------------

/** Waits in line. All begin at once: then the order of their names is that of the line. */
function line(actor: string, as: string, extra: Extra & { older?: number } = {}): Role {
  return { actor, does: "line", as, task: "1", timeout: 12, ...extra };
}

/** Who stood in line when the task was freed has it before all who are behind, unless its wait has ended since. */
function checkLine(run: Run): void {
  const moves = run.steps.map(({ call, result }) => (result === "ok" ? `${call.op} ${call.files.join(" ")}` : ""));
  const names = run.actors.flatMap(({ role }) => (role.does === "line" ? [role.as] : [])).sort();
  for (const [at, move] of moves.entries()) {
    const as = /^rename task-1\.md task-1\.CLAIMED-(\w+)\.md$/.exec(move)?.[1];
    const freed = moves.findLastIndex((other, i) => i < at && /^rename .* task-1\.md$/.test(other));
    for (const name of names.slice(0, Math.max(0, names.indexOf(as ?? "")))) {
      const began = moves.findIndex((other) => other.startsWith("rename") && other.endsWith(` .cursors/${name}.wait`));
      const left = moves.findIndex((other, i) => i > began && other === `unlink .cursors/${name}.wait`);
      const stood = began >= 0 && began < freed && (left < 0 || left > at);
      assert.ok(!stood, `${as} overtook ${name}`);
    }
  }
}

const inLine = sound(["timeout", "taken", "not_claimed"], checkLine);

test("claim --wait: of those who stood in line when the task was released the first has it, whoever is stopped", async (t) => {
  const freed = end("a", "ann", "released");
  const roles = [freed, line("b", "bob"), line("c", "cid")];
  const late = { title: "freed while the second decides", roles, files: CLAIMED, check: inLine };
  await stage(t, late, ["c", "mkdir _seq.lock"], ["b", "sleep"], ["a", "(none)"], ["c", "(none)"]);
  const twice = [freed, take("d", "dan", { task: "1", after: "a" }), end("e", "dan", "released", { after: "d" }), ...roles.slice(1)];
  const between = { title: "freed twice while the second decides", roles: twice, files: CLAIMED, check: inLine };
  await stage(t, between, ["a", "(none)"], ["c", "mkdir _seq.lock"], ["d", "(none)"], ["b", "sleep"], ["e", "(none)"], ["c", "(none)"]);
  if (LONG) await explore(t, { title: "two in line, in few turns", roles, files: CLAIMED, check: inLine, preemptions: 1 });
  await sample(t, { title: "two in line", roles, files: CLAIMED, check: inLine, span: 120 }, LONG ? 10_000 : 500);
});
