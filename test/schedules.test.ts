// The lock, cursors and tasks, proven on the real code: every order of steps that a scenario has, or many by chance.
// LONG=1 explores more; SEED=n repeats a sample; REPLAY='...', as a failure prints it, runs one schedule.
import assert from "node:assert/strict";
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { after, test } from "node:test";
import type * as Chat from "../chat.ts";
import { close, DEAD_PID, explore, LONG, PROGRAM, sample, stage } from "./steps.ts";
import type { Actor, Role, Run, Step, Wish } from "./steps.ts";

const chat = createRequire(import.meta.url)(PROGRAM) as typeof Chat;

after(close);

// ---- who takes part ------------------------------------------------------------------------------------------------

type Extra = Partial<Pick<Role, "after" | "kill" | "every" | "pid" | "links" | "torn" | "moving">>;

const NAMES: Readonly<Record<string, string>> = { a: "ann", b: "bob", c: "cid" };

function writer(
  actor: string,
  extra: Extra & { titles?: readonly string[]; as?: string; to?: readonly string[] } = {},
): Role {
  return { actor, does: "post", as: NAMES[actor]!, titles: ["hello"], ...extra };
}

/** Tries to post under one key, whoever else does. */
function keyed(actor: string, extra: Extra & { body?: string } = {}): Role {
  return { actor, does: "once", as: "ann", key: "k", body: "hello", ...extra };
}

function reader(actor: string, extra: Extra & { times?: number; only?: readonly number[] } = {}): Role {
  return { actor, does: "read", as: "rob", ...extra };
}

function waiter(actor: string, as: string, extra: Extra & Wish & { timeout?: number }): Role {
  return { actor, does: "wait", as, timeout: 30, ...extra };
}

function claimer(actor: string, extra: Extra & { as?: string } = {}): Role {
  return { actor, does: "claim", as: NAMES[actor]!, task: "12", ...extra };
}

function message(seq: number, from: string, body: string): string {
  const head = [`seq: ${seq}`, `from: ${from}`, "to: all", "channel: c", "ts: 2026-11-29T12:00:00+00:00"];
  return ["---", ...head, "status: discussion", "title: t", "---", body, ""].join("\n");
}

const TWO_MESSAGES = { "0001-ann-t.md": message(1, "ann", "one"), "0002-ann-t.md": message(2, "ann", "two") };

// ---- what must be true after every schedule ------------------------------------------------------------------------

function actorsWho(run: Run, does: Role["does"]): Actor[] {
  return run.actors.filter(({ role }) => role.does === does);
}

/** Whether an actor came to its end without an error. */
function isDone({ ended }: Actor): boolean {
  return ended !== undefined && !("code" in ended);
}

/** What an actor returned; `undefined` where it was killed. Fails the schedule where it threw. */
function valueOf({ role, ended = {} }: Actor): unknown {
  if ("code" in ended) assert.fail(`${role.actor} failed: ${ended.code}, ${ended.message}`);
  return ended.value;
}

/** Whether a step did something to a file, and it went well. */
function did({ call, result }: Step, op: string, file: RegExp): boolean {
  return result === "ok" && call.op === op && file.test(call.files.at(-1) ?? "");
}

/** Something that others than the suspended actor did. */
function othersDid(op: string, file: RegExp): (run: Run) => boolean {
  return ({ steps, scenario }) => steps.some((step) => step.actor !== scenario.suspend?.actor && did(step, op, file));
}

const PUBLISHED = ["link", /^\d+-/] as const;
const STOLEN = ["rename", /_seq\.lock\./] as const;
const CLAIMED = ["rename", /CLAIMED/] as const;
const MARKED = ["rename", /\.txt$/] as const;

/** Files that were there before, or that somebody without our code put there: they are as they were made. */
function checkForeign(run: Run): string[] {
  const put = actorsWho(run, "put")
    .filter(isDone)
    .flatMap(({ role }) => (role.does === "put" ? [[role.file, role.text] as const] : []));
  const files = [...Object.entries(run.scenario.files ?? {}), ...put].filter(([file]) => /^\d/.test(file));
  for (const [file, text] of files) {
    assert.equal(fs.readFileSync(path.join(run.channel.path, file), "utf8"), text, `${file} was changed`);
  }
  return files.map(([file]) => file);
}

/** Every message is whole, numbered from `first` on without a hole, what its writer was told, and delivered once. */
function checkMessages(run: Run, first: number): void {
  const { messages, notes } = chat.lastMessages(run.channel, Infinity);
  const killed = run.actors.find(({ state }) => state === "killed")?.role;
  if (killed?.links !== false) assert.deepEqual(notes, [], "a file only looks like a message");
  const numbers = messages.map(({ seq }) => seq);
  const linkless = run.actors.some(({ role }) => role.links === false); // a name that is reserved for a moment, empty, may cost its number
  const next = linkless && numbers[0] === first + 1 ? first + 1 : first;
  assert.deepEqual(numbers, messages.map((_, i) => next + i), "numbers are shared or missing");
  const foreign = checkForeign(run);
  const posted = messages.filter(({ file }) => !foreign.includes(file));
  const torn = posted.filter(({ body, title }) => !new RegExp(`^${title} from [a-z]\n$`).test(body));
  assert.deepEqual(torn, [], "a body is not whole");
  const told = actorsWho(run, "post").flatMap((actor) => (valueOf(actor) as string[] | undefined) ?? []);
  const owed = posted.filter(({ body }) => body.at(-2) !== killed?.actor).map(({ file }) => file);
  assert.deepEqual(owed.sort(), told.sort(), "what is there is not what writers were told");
  const delivered = chat.read(run.channel, "zoe").messages.map(({ file }) => file);
  assert.deepEqual(delivered, messages.map(({ file }) => file), "an addressee is not shown every message once");
}

/** Nothing is left behind but, by who was killed, a stolen lock on its way out, which is in nobody's way. */
function checkLeftovers({ channel, actors }: Run): void {
  const names = [channel.path, path.join(channel.path, ".cursors")].flatMap((folder) => fs.readdirSync(folder));
  const moving = path.join(channel.path, ".cursors", ".moving");
  assert.equal(fs.existsSync(moving) ? fs.readFileSync(moving, "utf8") : "", "", "numbers are still being changed");
  const killed = actors.some(({ state }) => state === "killed");
  const due = /^(\d+-.*\.md|task-.*\.md|_meta\.json|\.cursors|\.tasks|[a-z]+\.txt|\.newest|\.moving|\.moved)$/;
  const left = names.filter((name) => !due.test(name) && !(killed && /\.lock\./.test(name)));
  assert.deepEqual(left, [], "something was left behind");
}

/** 5 s pass for nobody, unless an actor was suspended or killed: then once, for the lock that it left. */
function checkPace({ steps, scenario }: Run): void {
  const stopped = scenario.suspend !== undefined || steps.some(({ how }) => how === "kill");
  const jumps = steps.filter(({ how }) => how === "jump").length;
  if (scenario.jumps === undefined) assert.ok(jumps <= (stopped ? 1 : 0), `5 s passed ${jumps} times`);
}

function numbered(first = 1): (run: Run) => void {
  return (run) => {
    checkMessages(run, first);
    checkLeftovers(run);
    checkPace(run);
  };
}

/** One message under the key, whoever tried: told to all who asked for it, and to one of them that it is theirs. */
function postedOnce(run: Run): void {
  const posted = chat.lastMessages(run.channel, Infinity).messages.filter(({ key }) => key === "k");
  assert.equal(posted.length, 1, `${posted.length} messages have the key`);
  const { seq, body } = posted[0]!;
  const [told, refused] = [actorsWho(run, "once").filter(isDone), actorsWho(run, "once").filter((a) => !isDone(a))];
  const answers = told.map((actor) => valueOf(actor) as { seq: number; created: boolean });
  assert.deepEqual(answers.map((answer) => answer.seq), answers.map(() => seq), "another number was told");
  const killed = refused.some(({ state }) => state === "killed");
  const makers = answers.filter(({ created }) => created).length + (killed && didPublish(run, "a") ? 1 : 0);
  assert.equal(makers, 1, `${makers} posters made it`);
  for (const { role, ended = {} } of refused.filter(({ state }) => state === "ended")) {
    assert.ok(role.does === "once" && "code" in ended && ended.code === "other_content", JSON.stringify(ended));
    assert.notEqual(`${role.body}\n`, body, "the same content was refused");
  }
  const others = told.filter(({ role }) => role.does === "once" && `${role.body}\n` !== body);
  assert.deepEqual(others, [], "told that it was posted, and another text was");
  checkLeftovers(run);
  checkPace(run);
}

function didPublish({ steps }: Run, actor: string): boolean {
  return steps.some((step) => step.actor === actor && (did(step, ...PUBLISHED) || did(step, "rename", /^\d+-/)));
}

/** The messages that were shown to a reader, in that order. */
function shownTo({ steps }: Run, reader: Actor): string[] {
  const shows = steps.filter(({ actor, call }) => actor === reader.role.actor && call.op === "show");
  return shows.map(({ call }) => call.files[0]!);
}

/** Each session is shown a message at most once and in order; what it was shown is marked; the rest is unread. */
function delivered(run: Run): void {
  const unread = chat.read(run.channel, "rob").messages.map(({ file }) => file);
  const seen = new Set(unread);
  for (const reader of actorsWho(run, "read")) {
    const shown = shownTo(run, reader);
    assert.deepEqual(shown, [...new Set(shown)].sort(), "a message was shown again, or too late");
    const lost = shown.filter((file) => reader.state === "ended" && unread.includes(file));
    assert.deepEqual(lost, [], "a mark was lost");
    for (const file of shown) seen.add(file);
    valueOf(reader);
  }
  const { messages } = chat.lastMessages(run.channel, Infinity);
  assert.deepEqual([...seen].sort(), messages.map(({ file }) => file), "a message is neither shown nor unread");
  checkLeftovers(run);
  checkPace(run);
}

/** After a reader that was killed: shown again is only what it had shown and not yet marked. */
function deliveredAgain(run: Run): void {
  delivered(run);
  const [first, second] = actorsWho(run, "read").map((reader) => shownTo(run, reader));
  const marked = run.steps.some((step) => step.actor === "r" && did(step, ...MARKED));
  const twice = first!.filter((file) => second!.includes(file));
  assert.deepEqual(twice, marked ? [] : first, "a message was shown twice without need");
}

/** One claimer has the task, and knows it; the others were told so; no text of a task is lost. */
function owned(run: Run): void {
  const names = fs.readdirSync(run.channel.path).filter((name) => name.startsWith("task-"));
  const claims = names.filter((name) => name.includes("CLAIMED"));
  const claimers = actorsWho(run, "claim");
  const told = claimers.filter(isDone).map(valueOf);
  const codes = claimers.flatMap(({ ended }) => (ended !== undefined && "code" in ended ? [ended.code] : []));
  assert.equal(claims.length, 1, `${claims.length} owners: ${names.join(", ")}`);
  assert.deepEqual([...new Set(told)], claims, "who was told that the task is theirs does not have it");
  assert.deepEqual(codes.filter((code) => code !== "taken"), [], "a claimer failed");
  const texts = names.map((name) => fs.readFileSync(path.join(run.channel.path, name), "utf8")).sort();
  const again = actorsWho(run, "put").some(isDone);
  assert.deepEqual(texts, again ? ["again\n", "first\n"] : ["first\n"], "a task was lost or doubled");
  checkLeftovers(run);
  checkPace(run);
}

// ---- numbers -------------------------------------------------------------------------------------------------------

const check = numbered();
const dead = { pid: DEAD_PID };
const unlinked = { links: false };
const end = "(none)"; // no step begins so: a stage that lets an actor go on as long as it can

test("lock: two writers, in every order of their steps, never share a number", async (t) => {
  await explore(t, { title: "two writers", roles: [writer("a"), writer("b")], check });
  const roles = [writer("a", unlinked), writer("b", unlinked)];
  await explore(t, { title: "two writers without hard links", roles, check });
});

test("lock: a writer suspended at any step publishes nothing decided before its lock was stolen", async (t) => {
  const suspend = { actor: "a", until: othersDid(...PUBLISHED) };
  await explore(t, { title: "one of two suspended", roles: [writer("a"), writer("b")], suspend, check });
  await explore(t, { title: "one of two seemingly dead", roles: [writer("a", dead), writer("b")], suspend, check });
  const roles = [writer("a", unlinked), writer("b", unlinked)];
  const renamed = { actor: "a", until: othersDid("rename", /^\d+-/) };
  await explore(t, { title: "one of two suspended without hard links", roles, suspend: renamed, check });
});

test("lock: two writers who steal it from each other at any moment never share a number", async (t) => {
  const thieves = { title: "two thieves", roles: [writer("a", dead), writer("b", dead)], check };
  const sleepers = { title: "two slow thieves", roles: [writer("a"), writer("b")], jumps: 2, check };
  for (const scenario of [thieves, sleepers]) {
    await explore(t, { ...scenario, title: `${scenario.title} in few turns`, preemptions: LONG ? 3 : 2 });
    await sample(t, scenario, LONG ? 20_000 : 150);
  }
});

/** Whose pid is dead is waited for only where its lock has no draft that names it. */
function stolenAtOnce(run: Run): void {
  check(run);
  const left = run.steps.filter(({ actor }) => actor === "a");
  const [made, removed] = ["create", "unlink"].map((op) => left.some((step) => did(step, op, /draft$/)));
  if (made && !removed) assert.ok(run.steps.every(({ how }) => how !== "jump"), "a dead writer was waited for");
}

test("lock: a writer killed at any step costs the next one 5 s at most, and no number", async (t) => {
  const rolesOf = (how: Extra): Role[] => {
    const killed = writer("a", { kill: true, every: true, ...how });
    return [killed, writer("b", { after: "a", ...how })];
  };
  await explore(t, { title: "one killed", roles: rolesOf({}), check });
  await explore(t, { title: "one killed without hard links", roles: rolesOf(unlinked), check });
  await explore(t, { title: "one killed and known dead", roles: rolesOf(dead), check: stolenAtOnce });
  const roles = [writer("a", { kill: true }), writer("b"), writer("c", { after: "ab" })];
  await sample(t, { title: "one of two killed", roles, check }, LONG ? 3_000 : 100);
});

test("lock: three writers never share a number, one of them suspended across a theft or not", async (t) => {
  const roles = [writer("a"), writer("b"), writer("c")];
  const suspend = { actor: "a", until: othersDid(...STOLEN) };
  if (LONG) await explore(t, { title: "three writers in few turns", roles, check, preemptions: 2 });
  if (LONG) await explore(t, { title: "one of three suspended in few turns", roles, suspend, check, preemptions: 2 });
  await sample(t, { title: "three writers", roles, check }, LONG ? 20_000 : 200);
  await sample(t, { title: "one of three suspended", roles, suspend, check }, LONG ? 20_000 : 200);
});

/** For the pinned schedules: there were two drafts in one lock, or the schedule is not the one that was meant. */
function met(run: Run): void {
  check(run);
  const [drafts, most] = [new Set<string>(), { at: 0 }];
  for (const step of run.steps) {
    if (did(step, "create", /draft$/)) drafts.add(step.actor);
    if (did(step, "unlink", /draft$/)) drafts.delete(step.actor);
    if (did(step, ...STOLEN)) drafts.clear();
    most.at = Math.max(most.at, drafts.size);
  }
  assert.equal(most.at, 2, "two drafts have not met");
}

/** The bad orders of shared/lock_model.py without the look: a late rmdir meets a fresh lock, two drafts one folder. */
test("lock: two drafts that meet in one folder do not both publish", async (t) => {
  const two = { title: "two drafts meet", roles: [writer("a"), writer("b")], jumps: 1, check: met };
  const fresh = [["b", "create"], ["a", "create"], ["a", "readdir _seq.lock"], ["b", "readdir _seq.lock"]] as const;
  await stage(t, two, ["a", "link"], ...fresh, ["b", "link"], ["a", "link"], ["a", end], ["b", end]);
  const roles = [writer("a"), writer("b"), writer("c")];
  const three = { title: "a third draft", roles, jumps: 1, check: met };
  const meet = [["c", "create"], ["b", "readdir _seq.lock"], ["c", "readdir _seq.lock"]] as const;
  const both = [["b", "link"], ["c", "link"], ["b", end], ["c", end]] as const;
  await stage(t, three, ["a", "rmdir"], ["b", "create"], ["a", end], ...meet, ...both);
});

test("lock: a writer never replaces a file that takes the name it is about to give", async (t) => {
  const file = "0001-ann-hello.md";
  const git: Role = { actor: "g", does: "put", file, text: message(1, "ann", "by git") };
  await explore(t, { title: "a writer and git", roles: [writer("a"), git], check });
});

test("lock: in a channel too large to list each time, writers never share a number", async (t) => {
  const files = { "50000-old-t.md": message(50_000, "old", "hello") };
  const roles = [writer("a"), writer("b", { titles: ["one", "two"] })];
  const large = { roles, files, newest: 50_000, check: numbered(50_000) };
  await sample(t, { title: "two in a large channel", ...large }, LONG ? 20_000 : 150);
  const suspend = { actor: "a", until: othersDid(...PUBLISHED) };
  await sample(t, { title: "one of two suspended in a large channel", ...large, suspend }, LONG ? 20_000 : 250);
});

// ---- keys ----------------------------------------------------------------------------------------------------------

test("post: two posters of one key, in every order of their steps, make one message and are both told its number", async (t) => {
  const check = postedOnce;
  const other = keyed("b", { body: "goodbye" });
  await explore(t, { title: "one key", roles: [keyed("a"), keyed("b")], check });
  await explore(t, { title: "one key, another content", roles: [keyed("a"), other], check });
  const roles = [keyed("a", unlinked), keyed("b", unlinked)];
  await explore(t, { title: "one key without hard links", roles, check });
  await sample(t, { title: "one key of three", roles: [keyed("a"), other, keyed("c")], check }, LONG ? 20_000 : 100);
  const files = { "50000-ann-t.md": message(50_000, "ann", "hello") };
  const large = { title: "one key in a large channel", roles: [keyed("a"), keyed("b"), writer("c")], files, newest: 50_000, check };
  await sample(t, large, LONG ? 20_000 : 100);
});

test("post: a poster suspended at any step does not make a message anew that the thief of its lock has made", async (t) => {
  const check = postedOnce;
  const suspend = { actor: "a", until: othersDid(...PUBLISHED) };
  const other = keyed("b", { body: "goodbye" });
  await explore(t, { title: "one key, one suspended", roles: [keyed("a"), keyed("b")], suspend, check });
  await explore(t, { title: "one key, another content, one suspended", roles: [keyed("a"), other], suspend, check });
  const roles = [keyed("a", unlinked), keyed("b", unlinked)];
  const renamed = { actor: "a", until: othersDid("rename", /^\d+-/) };
  await explore(t, { title: "one key, one suspended without hard links", roles, suspend: renamed, check });
  const thieves = [keyed("a", dead), keyed("b", dead)];
  await sample(t, { title: "one key and two thieves", roles: thieves, check }, LONG ? 20_000 : 200);
});

test("post: after a poster killed at any step, who tries again under its key finds or makes the one message", async (t) => {
  const ways = { "one key, killed": {}, "one key, killed and known dead": dead, "one key, killed without links": unlinked };
  for (const [title, how] of Object.entries(ways)) {
    const roles = [keyed("a", { kill: true, every: true, ...how }), keyed("b", { after: "a", ...how })];
    await explore(t, { title, roles, check: postedOnce });
  }
});

// ---- delivery ------------------------------------------------------------------------------------------------------

test("cursor: a reader is shown every message once and in order, however it meets a writer", async (t) => {
  const roles = [writer("a", { titles: ["one", "two"] }), reader("r", { times: 2 })];
  await explore(t, { title: "a writer and a reader", roles, check: delivered });
  const torn = [writer("a", { titles: ["one", "two"] }), reader("r", { times: 2, torn: true })];
  await explore(t, { title: "a writer and a reader of torn listings", roles: torn, check: delivered });
});

test("cursor: after a reader killed at any step, only what it had shown and not marked is shown again", async (t) => {
  for (const [title, how] of Object.entries({ "a reader killed": {}, "a reader killed and known dead": dead })) {
    const killed = reader("r", { kill: true, every: true, ...how });
    const roles = [killed, writer("a", { after: "r" }), reader("s", { after: "ra" })];
    await explore(t, { title, roles, files: TWO_MESSAGES, check: deliveredAgain });
  }
});

test("cursor: two readers under one name never undo each other's marks", async (t) => {
  const both = [reader("r"), reader("s")];
  const each = [reader("r", { only: [1] }), reader("s", { only: [2] })];
  const suspend = { actor: "r", until: othersDid(...MARKED) };
  const files = TWO_MESSAGES;
  await explore(t, { title: "two readers", roles: both, files, check: delivered });
  await explore(t, { title: "two readers of one message each", roles: each, files, check: delivered });
  await explore(t, { title: "one of two readers suspended", roles: each, files, suspend, check: delivered });
  // A cursor that is read after the listing which it judges would reach past all that is in there, and not be believed.
  const later = [reader("r"), writer("a"), reader("s", { after: "a" })];
  await explore(t, { title: "a reader suspended while another is shown what is new", roles: later, files, suspend, check: delivered });
  const wrong = { ...files, ".cursors/rob.txt": "99" };
  await explore(t, { title: "two readers with a wrong cursor", roles: each, files: wrong, check: delivered });
});

// ---- numbers that change -------------------------------------------------------------------------------------------

const moving = { moving: true };
const SHARING = {
  "0001-ann-one.md": message(1, "ann", "one"),
  "0002-ann-two.md": message(2, "ann", "two"),
  "0002-bob-three.md": message(2, "bob", "three"),
  "0003-bob-four.md": message(3, "bob", "four"),
};
const bare = (file: string): string => file.replace(/^\d+-/, "");

/** Each message has a number of its own, and whoever read meanwhile was shown each at most once; the rest is unread. */
function renumbered(run: Run): void {
  const files = fs.readdirSync(run.channel.path).filter((name) => /^\d/.test(name)).sort();
  const { messages } = chat.lastMessages(run.channel, Infinity);
  const names = messages.map(({ file }) => bare(file)).sort();
  const told = actorsWho(run, "post").flatMap((actor) => (valueOf(actor) as string[]) ?? []);
  assert.deepEqual(names, [...Object.keys(SHARING), ...told].map(bare).sort(), "a message is not there once");
  const killed = run.actors.some(({ state }) => state === "killed");
  if (!killed) assert.deepEqual(files.map((file) => Number.parseInt(file, 10)), files.map((_, i) => i + 1));
  for (const name of new Set(actorsWho(run, "read").map(({ role }) => ("as" in role ? role.as : "")))) {
    const readers = actorsWho(run, "read").filter(({ role }) => "as" in role && role.as === name);
    readers.forEach(valueOf);
    const unread = chat.read(run.channel, name).messages.map(({ file }) => file);
    const before = run.scenario.files?.[`.cursors/${name}.txt`] === "1" ? ["0001-ann-one.md"] : [];
    const seen = [...before, ...readers.flatMap((reader) => shownTo(run, reader)), ...unread].map(bare);
    assert.deepEqual(seen.sort(), names, `each once to ${name}`);
  }
  if (!killed) checkLeftovers(run);
  checkPace(run);
}

/** Who had been shown all there was is shown only what was posted. */
function wokenByNews(run: Run): void {
  renumbered(run);
  const [waiting] = actorsWho(run, "wait");
  assert.deepEqual((valueOf(waiting!) as string[]).map(bare), ["ann-hello.md"]);
  assert.deepEqual(chat.read(run.channel, "wim").messages, [], "what it was shown is marked");
}

/** Whoever reads is shown no message under two numbers. */
function shownOnce(run: Run): void {
  const shown = actorsWho(run, "read").flatMap((one) => shownTo(run, one)).map(bare);
  assert.deepEqual(shown.sort(), [...Object.keys(SHARING), "0001-zed-five.md"].map(bare).sort());
  checkLeftovers(run);
}

test("renumber: a reader and a poster while numbers change: each message is shown once, none is hidden", async (t) => {
  const renumberer: Role = { actor: "n", does: "renumber", ...moving };
  const roles = [renumberer, reader("r", { times: 2, ...moving }), writer("a", moving)];
  const files = SHARING;
  const known = { ...files, ".cursors/rob.txt": "1" };
  const scenario = { title: "numbers change", roles, files, span: 300, check: renumbered };
  await sample(t, scenario, LONG ? 20_000 : 60);
  await sample(t, { ...scenario, title: "numbers change under a cursor", files: known }, LONG ? 20_000 : 60);
  const two = { ...scenario, title: "numbers change for a reader", roles: roles.slice(0, 2) };
  if (LONG) await explore(t, { ...two, title: `${two.title} in few turns`, preemptions: 1 });
  const shown = { ...files, ".cursors/wim.txt": "1-1,3-3,0002-ann-two.md,0002-bob-three.md" };
  const waiting = [renumberer, waiter("w", "wim", { marks: true, ...moving }), writer("a", moving)];
  const title = "numbers change under a wait";
  await sample(t, { ...scenario, title, roles: waiting, files: shown, check: wokenByNews }, LONG ? 20_000 : 60);
  const suspend = { actor: "n", until: othersDid("rmdir", /_seq\.lock$/) };
  const thief: Role = { ...renumberer, actor: "m" };
  const stolen = { roles: [renumberer, thief, reader("r", { times: 2, ...moving })], files: known, suspend, jumps: 0 };
  await sample(t, { ...scenario, ...stolen, title: "a renumbering suspended" }, LONG ? 20_000 : 60);
  const both = [{ ...renumberer, ...dead }, { actor: "p", does: "put", file: "0001-zed-five.md", text: message(1, "zed", "five") }, thief] as const;
  const late = { ...scenario, title: "a renumbering that ends late", roles: [...both, reader("r", { times: 2, ...moving })], check: shownOnce };
  const last = [["n", "appendFile"], ["n", "rename _seq.lock"]] as const; // about to say that it has ended
  await stage(t, late, ...last, ["p", end], ["m", "unlink 0001-zed"], ["n", end], ["r", end], ["m", end]);
  const killed = [{ ...renumberer, kill: true, ...dead }, reader("r", { times: 2, ...moving }), writer("a", { after: "n", ...moving })];
  await sample(t, { ...scenario, title: "a killed renumbering", roles: killed, files: known }, LONG ? 20_000 : 20);
});

// ---- heartbeats ----------------------------------------------------------------------------------------------------

const beatOf = ({ channel }: Run, name: string): string => path.join(channel.path, ".cursors", `${name}.wait`);
const BEATEN = ["rename", /\.wait$/] as const;
const UNBEATEN = ["unlink", /\.wait$/] as const;

/** The error that an actor's wait ended with; undefined: a message came. */
function codeOf({ ended = {} }: Actor): string | undefined {
  return "code" in ended ? ended.code : undefined;
}

/** A heartbeat is removed only by the session whose it was when that session looked; between the two is what is left. */
function checkRemovals({ steps }: Run): void {
  for (const [i, { actor }] of steps.entries()) {
    if (!did(steps[i]!, ...UNBEATEN)) continue;
    const looked = steps.slice(0, i).findLastIndex((step) => step.actor === actor && did(step, "open", /\.wait$/));
    const owner = steps.slice(0, Math.max(0, looked)).findLast((step) => did(step, ...BEATEN));
    assert.equal(owner?.actor, actor, "another session's heartbeat was removed");
  }
}

/** Whoever waits for a message that is written is shown it at the next look, and leaves no heartbeat. */
function woken(run: Run): void {
  const messages = chat.lastMessages(run.channel, Infinity).messages.map(({ file }) => file);
  for (const actor of actorsWho(run, "wait")) assert.deepEqual(valueOf(actor), messages, "it was not woken");
  checkRemovals(run);
  checkLeftovers(run);
  checkPace(run);
}

/** Of two waits under one name, the one that goes on has taken the heartbeat back before it ends, and none is left. */
function takenBack(run: Run): void {
  const [gone, other] = actorsWho(run, "wait");
  assert.ok(isDone(gone!), codeOf(gone!));
  assert.equal(codeOf(other!), "timeout");
  const lastOf = (actor: string): number => run.steps.findLastIndex((step) => step.actor === actor);
  const later = run.steps.slice(lastOf("r")).filter((step) => step.actor === "s");
  const beats = later.filter((step) => did(step, ...BEATEN) || did(step, ...UNBEATEN));
  assert.ok(beats.length >= 2 && did(beats.at(-1)!, ...UNBEATEN), "it had no heartbeat any more when it ended");
  checkRemovals(run);
  checkLeftovers(run);
}

/** What a killed wait leaves names a process that is gone, and is not believed for that reason alone. */
function disbelieved(run: Run): void {
  const [killed] = actorsWho(run, "wait");
  if (killed!.state !== "killed") assert.equal(codeOf(killed!), "timeout");
  const names = fs.readdirSync(path.dirname(beatOf(run, "rob")));
  const left = names.filter((name) => name !== "rob.wait" && !/^rob\.lock\.\w+$/.test(name));
  assert.deepEqual(left, [], "something was left behind");
  if (killed!.state !== "killed") assert.deepEqual(names, []);
  if (!names.includes("rob.wait")) return;
  const text = fs.readFileSync(beatOf(run, "rob"), "utf8");
  const waits = (pid: number): boolean => {
    fs.writeFileSync(beatOf(run, "rob"), text.replace(`"pid":${DEAD_PID}`, `"pid":${pid}`)); // touched just now
    return chat.presence(run.channel, ["rob"])[0]!.waiting !== null;
  };
  assert.deepEqual([waits(DEAD_PID), waits(process.pid)], [false, true]);
}

/** A wait that had to wait leaves nothing, though one under its name was killed before. */
function leftNothing(run: Run): void {
  assert.equal(codeOf(actorsWho(run, "wait").at(-1)!), "timeout");
  checkLeftovers(run);
}

test("heartbeat: whoever waits goes on to the message, whenever it is written, and leaves no heartbeat", async (t) => {
  const from = ["ann"];
  const roles = [waiter("r", "rob", { from }), writer("a")];
  await explore(t, { title: "a waiter and a writer", roles, check: woken });
  const both = [...roles, waiter("s", "rob", { from: ["ann", "bob"] })];
  const two = { title: "two waiters under one name and a writer", roles: both, check: woken };
  if (LONG) await explore(t, { ...two, title: `${two.title} in few turns`, preemptions: 1 });
  await sample(t, two, LONG ? 20_000 : 200);
});

test("heartbeat: of two waits under one name, the one that goes on has a heartbeat again, and none is left", async (t) => {
  const roles = [waiter("r", "rob", { from: ["ann"] }), writer("a"), waiter("s", "rob", { from: ["bob"], timeout: 12 })];
  const scenario = { title: "two waiters, one goes on", roles, check: takenBack };
  if (LONG) await explore(t, { ...scenario, title: `${scenario.title} in few turns`, preemptions: 1 });
  await sample(t, scenario, LONG ? 20_000 : 200);
});

test("heartbeat: a wait killed at any step leaves at most one that is not believed, and after the next wait none", async (t) => {
  const killed = waiter("r", "rob", { from: ["ann"], timeout: 8, kill: true, every: true, ...dead });
  await explore(t, { title: "a waiter killed", roles: [killed], check: disbelieved });
  const roles = [{ ...killed, timeout: 4 }, waiter("s", "rob", { from: ["ann"], timeout: 4, after: "r" })];
  await explore(t, { title: "a waiter killed, and the next", roles, check: leftNothing });
});

// ---- who waits for whom --------------------------------------------------------------------------------------------

/** Of those who wait for each other alone, one is told; the other then sees that nobody waits any more. */
function toldStuck(run: Run): void {
  const codes = actorsWho(run, "wait").map(codeOf);
  assert.deepEqual(codes.filter((code) => code !== "stuck" && code !== "timeout"), []);
  assert.ok(codes.includes("stuck"), "nobody was told");
  checkLeftovers(run);
}

/** `stuck` was decided, if at all, on a look at the partner's mail before there was any. */
function neverTooLate(run: Run): void {
  const [ann] = actorsWho(run, "wait");
  const isOwn = ({ actor, call }: Step, op: string, file: string) =>
    actor === "a" && call.op === op && call.files[0] === file;
  const opened = run.steps.findLastIndex((step) => isOwn(step, "open", ".cursors/bob.txt"));
  const lastLook = run.steps.findIndex((step, i) => i > opened && isOwn(step, "readdir", ""));
  const posted = run.steps.findIndex((step) => did(step, ...PUBLISHED));
  if (codeOf(ann!) === "stuck") assert.ok(lastLook < posted, "told stuck, and the partner had unread mail");
  else assert.equal(codeOf(ann!), "timeout");
  checkLeftovers(run);
}

const ann = waiter("a", "ann", { from: ["bob"] });

test("stuck: of two who wait for each other, one at least is told, in every order", async (t) => {
  const roles = [ann, waiter("b", "bob", { from: ["ann"] })];
  const scenario = { title: "two who wait for each other", roles, check: toldStuck };
  await explore(t, { ...scenario, title: `${scenario.title} in few turns`, preemptions: 1 });
  await sample(t, { ...scenario, span: 200 }, LONG ? 5_000 : 100);
});

test("stuck: nobody is told so whose partner has unread mail", async (t) => {
  const third = writer("c", { to: ["bob"] });
  const wishes = { "mail that the partner waits for": { status: "discussion", marks: true }, "mail beside it": { from: ["ann"] } };
  for (const [title, wish] of Object.entries(wishes)) {
    const roles = [ann, waiter("b", "bob", wish), third];
    await sample(t, { title, roles, jumps: 4, span: 200, check: neverTooLate }, LONG ? 5_000 : 100);
  }
  const roles = [ann, waiter("b", "bob", wishes["mail that the partner waits for"]), third];
  const scenario = { title: "mail shown between two looks", roles, jumps: 1, check: neverTooLate };
  const looking = [["b", "sleep"], ["a", "sleep"], ["a", "open .cursors/bob.txt"]] as const; // it saw that bob waits
  await stage(t, scenario, ...looking, ["c", end], ["b", end], ["a", end]);
});

// ---- tasks ---------------------------------------------------------------------------------------------------------

const TASK = { "task-12.md": "first\n" };
const again: Role = { actor: "p", does: "put", file: "task-12.md", text: "again\n" };

test("claim: of two claimers one gets the task, and the other is told who has it", async (t) => {
  await explore(t, { title: "two claimers", roles: [claimer("a"), claimer("b")], files: TASK, check: owned });
  const sessions = [claimer("a"), claimer("b", { as: "ann" })];
  const named = { title: "two claimers under one name", roles: sessions, files: TASK, check: owned };
  if (LONG) await explore(t, named);
  await explore(t, { ...named, title: `${named.title} in few turns`, preemptions: 2 });
});

test("claim: a task has one owner, though it is made anew and a claimer suspended at any step", async (t) => {
  const roles = [claimer("a"), claimer("b"), again];
  const task = { roles, files: TASK, check: owned };
  if (LONG) await explore(t, { title: "a task made anew", ...task });
  await explore(t, { title: "a task made anew in few turns", ...task, preemptions: LONG ? 2 : 1 });
  const suspend = { actor: "a", until: othersDid(...CLAIMED) };
  await explore(t, { title: "a task made anew, a claimer suspended", ...task, suspend });
  const thieves = [claimer("a", dead), claimer("b", dead), again];
  const stolen = { title: "a task made anew, and thieves", ...task, roles: thieves };
  await explore(t, { ...stolen, title: `${stolen.title} in few turns`, preemptions: LONG ? 3 : 1 });
  await sample(t, stolen, LONG ? 20_000 : 150);
});

/** For the pinned schedules: both claimers had renamed the task, or the schedule is not the one that was meant. */
function contested(run: Run): void {
  owned(run);
  assert.equal(run.steps.filter((step) => did(step, ...CLAIMED)).length, 2, "the task was not renamed twice");
}

test("claim: a claimer who wakes up to a task that was claimed and made anew gives it back", async (t) => {
  const roles = [claimer("a"), claimer("b"), again];
  const scenario = { title: "a late claim", roles, files: TASK, jumps: 1, check: contested };
  await stage(t, scenario, ["a", "rename task"], ["b", end], ["p", end], ["a", end]);
});

test("claim: two claimers who each find the other's claim do not both give it back", async (t) => {
  const roles = [claimer("a", dead), claimer("b", dead), again];
  const scenario = { title: "two late claims", roles, files: TASK, check: contested };
  const claimed = [["a", "rename task"], ["b", "rename task"], ["b", "exists"], ["p", end], ["a", "exists"]] as const;
  const stolen = [["a", "rename _seq.lock"], ["a", "readdir ."]] as const;
  await stage(t, scenario, ...claimed, ...stolen, ["b", "link task"], ["a", end], ["b", end]);
});
