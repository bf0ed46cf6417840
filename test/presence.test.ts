import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import { test, type TestContext } from "node:test";
import { agentsOf, currentStatus, openChannel, presence, receipts, setStatus, type Presence, type Receipt } from "../chat.ts";
import { BIN, rows, sandbox, until } from "./helpers.ts";

const HOUR = 3_600_000;

/** A channel of alice, bob and carol, in which time can be made to pass. */
function team(t: TestContext, members = "alice,bob,carol") {
  const box = sandbox(t);
  box.ok(["init", "r", "--members", members]);
  const say = (from: string, ...more: string[]): string => box.ok(["post", "r", "--from", from, "--title", "t", "--body", "b", ...more]);
  const line = (agent: string): string => new RegExp(`^  ${agent}: (.*)$`, "m").exec(box.ok(["roster", "r"]))![1]!;
  const json = (): Record<string, Presence & { tasks: string[] }> => {
    const [row] = rows<{ agents: (Presence & { tasks: string[] })[] }>(box.ok(["roster", "r", "--json"]));
    return Object.fromEntries(row!.agents.map((one) => [one.agent, one]));
  };
  const write = (seq: number, from: string, more = "", body = "b"): void =>
    fs.writeFileSync(box.at("r", `${String(seq).padStart(4, "0")}-${from.toLowerCase()}-t.md`), `---\nseq: ${seq}\nfrom: ${from}\n${more}title: t\n---\n${body}\n`);
  return { ...box, say, line, json, write, ago, cursors: (name: string): string => box.at("r", ".cursors", name) };
}

const stamp = (time: number): string => `${new Date(time).toISOString().slice(0, 19)}+00:00`;
const ago = (ms: number): string => `ts: ${stamp(Date.now() - ms)}\n`;
const backdate = (file: string, ms: number): void => fs.utimesSync(file, (Date.now() - ms) / 1000, (Date.now() - ms) / 1000);

// ---- roster

test("roster: tells of each agent the last post, what is unread, and since when it is silent", (t) => {
  const { ok, write, line, json, cursors } = team(t);
  write(1, "alice", ago(3 * HOUR));
  write(2, "bob", ago(26 * HOUR));
  write(3, "alice", ago(70 * 1000));
  ok(["read", "r", "--as", "bob"]);
  backdate(cursors("bob.txt"), 3 * HOUR);
  write(4, "alice", ago(65 * 1000));
  assert.match(line("alice"), /^last post #4 1 min ago; 1 unread$/);
  assert.match(line("bob"), /^silent since [\d: -]+, 3 h ago; last post #2 26 h ago; 1 unread$/);
  assert.equal(line("carol"), "never seen here; 4 unread");
  for (const who of ["alice", "bob", "carol"]) assert.doesNotMatch(line(who), /online/);
  const { alice, bob, carol } = json();
  assert.deepEqual([alice!.last_post!.seq, alice!.unread, bob!.unread, carol!.unread], [4, 1, 1, 4]);
  assert.deepEqual(carol, { agent: "carol", member: true, last_post: null, seen: null, unread: 4, counted: true, waiting: null, status: null, tasks: [] });
  assert.ok(Math.abs(Date.now() - 3 * HOUR - Date.parse(bob!.seen!)) < 60_000);
});

test("roster: who was heard of 14 minutes ago is seen, after 15 minutes silent", (t) => {
  const { line, cursors } = team(t);
  fs.writeFileSync(cursors("bob.txt"), "0");
  backdate(cursors("bob.txt"), 14 * 60_000);
  assert.equal(line("bob"), "seen 14 min ago; 0 unread");
  backdate(cursors("bob.txt"), 15 * 60_000);
  assert.match(line("bob"), /^silent since [\d: -]+, 15 min ago; 0 unread$/);
  backdate(cursors("bob.txt"), 49 * HOUR);
  assert.match(line("bob"), /, 2 d ago; /);
  backdate(cursors("bob.txt"), -HOUR); // by a clock that is wrong
  assert.equal(line("bob"), "never seen here; 0 unread");
});

test("roster: shows a wait that runs, for what and until when, and the tasks that are held", async (t) => {
  const { start, line, json, at, ok, cursors } = team(t);
  for (const id of ["1", "2", "3", "4"]) fs.writeFileSync(at("r", `task-${id}.md`), "");
  for (const id of ["1", "2"]) ok(["claim", "r", id, "--as", "bob"]);
  ok(["claim", "r", "4", "--as", "dave"]);
  fs.renameSync(at("r", "task-2.CLAIMED-bob.md"), at("r", "task-2.DONE-bob.md"));
  const waiting = start(["wait", "r", "--as", "bob", "--from", "alice", "--timeout", "3000"]);
  await until("the wait is known", () => fs.existsSync(cursors("bob.wait")) && fs.readFileSync(cursors("bob.wait"), "utf8").endsWith("}"));
  assert.match(line("bob"), /^0 unread; waiting since [\d:]{8} until [\d: -]+ for alice; has task-1$/);
  const { bob, dave } = json();
  assert.equal(bob!.waiting!.for, "alice");
  assert.ok(Math.abs(Date.parse(bob!.waiting!.until) - Date.parse(bob!.waiting!.since) - 3_000_000) < 10_000);
  assert.deepEqual([bob!.tasks, dave!.tasks, dave!.member], [["1"], ["4"], false]);
  waiting.child.kill("SIGTERM");
  assert.equal((await waiting.ended).status, 143);
  assert.match(line("bob"), /^seen \d+ s ago; 0 unread; has task-1$/); // he took it
});

test("roster: one channel, several, or all, each with the agents it knows", (t) => {
  const { ok, chat } = sandbox(t);
  ok(["init", "a", "--members", "alice"]);
  ok(["init", "b", "--members", "bob"]);
  ok(["init", "c"]);
  ok(["post", "c", "--from", "carol", "--body", "b"]);
  const names = (...args: string[]): string[][] => rows<{ channel: string; agents: Presence[] }>(ok(["roster", ...args, "--json"])).map(({ channel, agents }) => [channel, ...agents.map(({ agent }) => agent)]);
  assert.deepEqual(names(), [["a", "alice"], ["b", "bob"], ["c", "carol"]]);
  assert.deepEqual(names("c"), [["c", "carol"]]);
  assert.deepEqual(names("b", "a", "b"), [["b", "bob"], ["a", "alice"]]);
  assert.equal(chat(["roster", "a", "d"]).status, 1);
});

test("roster: knows who only read, waited or said a status, and marks nothing", (t) => {
  const { ok, write, json, cursors } = team(t, "alice");
  write(1, "zoe", ago(0));
  ok(["read", "r", "--as", "bob"]);
  ok(["status", "r", "--as", "carol", "--set", "away"]);
  fs.writeFileSync(cursors("dora.wait"), "{}"); // left over, and nothing in it
  const before = fs.readdirSync(cursors("")).sort();
  assert.deepEqual(Object.keys(json()), ["alice", "bob", "carol", "dora", "zoe"]);
  assert.deepEqual([json()["carol"]!.unread, json()["dora"]!.seen], [1, null]);
  assert.ok(json()["carol"]!.seen! >= json()["carol"]!.status!.since, "who said a status was seen then");
  assert.deepEqual(fs.readdirSync(cursors("")).sort(), before);
});

test("roster: names of the older kinds, with capitals, have their own cursor, posts and unread", (t) => {
  const { ok, at, write, line, cursors, say } = team(t);
  fs.writeFileSync(at("r", "_meta.json"), '{"members": ["Bob", "alice"]}');
  write(1, "alice", `to: Bob\n${ago(HOUR)}`);
  write(2, "Bob", `to: alice\n${ago(HOUR)}`);
  write(3, "alice", `to: bob\n${ago(HOUR)}`);
  write(4, "alice", `to: carol\n${ago(HOUR)}`);
  assert.match(line("Bob"), /last post #2 1 h ago; 2 unread$/);
  fs.writeFileSync(cursors("Bob.txt"), "1");
  assert.match(line("Bob"), /^last post #2 1 h ago; seen \d+ s ago; 1 unread$/);
  assert.match(say("alice", "--to", "bob"), /^Bob: last seen \d+ s ago, 2 unread$/m);
  const [receipt] = rows<Receipt>(ok(["receipts", "r", "1", "--json"]));
  assert.deepEqual([receipt!.for, receipt!.shown], [["Bob"], ["Bob"]]);
  assert.equal(Object.keys(agentsOf(openChannel(at(), "r"))).length, 2, "Bob and bob are one");
});

test("roster: a message without a date, or with an impossible one, does not spoil the line", (t) => {
  const { write, line } = team(t);
  write(1, "alice");
  assert.equal(line("alice"), "never seen here; last post #1 at an unknown time; 0 unread");
  write(2, "bob", "ts: yesterday\n");
  assert.doesNotMatch(line("bob"), /NaN|Invalid/);
  write(3, "carol", "ts: +275760-09-13T00:00:00Z\n");
  assert.doesNotMatch(line("carol"), /NaN|Invalid/);
});

// ---- what a sender is told

test("post: ends with one line for each addressee: waiting, last seen, or never seen here", async (t) => {
  const { ok, start, say, write, cursors } = team(t);
  write(1, "alice", ago(4 * HOUR));
  ok(["read", "r", "--as", "bob"]);
  backdate(cursors("bob.txt"), 3 * HOUR);
  assert.equal(say("alice").split("\n").slice(2).join("\n"), "bob: last seen 3 h ago, 1 unread\ncarol: never seen here\n");
  assert.equal(say("alice", "--to", "carol").split("\n").slice(2).join("\n"), "carol: never seen here\n");
  ok(["read", "r", "--as", "bob"]);
  const waiting = start(["wait", "r", "--as", "bob", "--reply-to", "1"]);
  await until("the wait is known", () => fs.existsSync(cursors("bob.wait")) && fs.readFileSync(cursors("bob.wait"), "utf8").endsWith("}"));
  assert.match(say("alice", "--to", "bob,carol"), /\nbob: waiting now, for a reply to #1\ncarol: never seen here\n$/);
  waiting.child.kill("SIGTERM");
  await waiting.ended;
  const [row] = rows<{ addressees: Presence[] }>(say("alice", "--to", "bob", "--json"));
  assert.deepEqual(row!.addressees.map(({ agent, unread, waiting: now, status }) => [agent, unread, now, status]), [["bob", 2, null, null]]);
});

test("post: a wait for whatever comes is waiting now, and ask says it too", async (t) => {
  const { start, say, ok, chat, cursors } = team(t, "alice,bob");
  const waiting = start(["wait", "r", "--as", "bob"]);
  await until("the wait is known", () => fs.existsSync(cursors("bob.wait")) && fs.readFileSync(cursors("bob.wait"), "utf8").endsWith("}"));
  assert.match(say("alice"), /\nbob: waiting now\n$/);
  assert.equal((await waiting.ended).status, 0);
  ok(["status", "r", "--as", "bob", "--set", "busy", "--note", "tests"]);
  const asked = chat(["ask", "r", "--as", "alice", "--to", "bob", "--body", "q", "--timeout", "0"]);
  assert.equal(asked.status, 2);
  assert.match(asked.stdout, /\nbob: last seen \d+ s ago, 1 unread; busy until [\d:]{8}: tests\n$/);
});

test("post: to everybody in an open channel names nobody; to some, those", (t) => {
  const { ok } = sandbox(t);
  ok(["init", "r"]);
  ok(["post", "r", "--from", "bob", "--body", "b"]);
  assert.deepEqual(rows<{ addressees: unknown[] }>(ok(["post", "r", "--from", "alice", "--body", "b", "--json"]))[0]!.addressees, []);
  assert.equal(ok(["post", "r", "--from", "alice", "--body", "b"]).split("\n").length, 3);
  assert.match(ok(["post", "r", "--from", "alice", "--to", "bob", "--body", "b"]), /\nbob: last seen \d+ s ago, 3 unread\n$/);
});

test("post: what somebody with 5,000 unread has not seen is bounded, not opened", async (t) => {
  const { say, root, write, cursors } = team(t, "alice,bob");
  for (let seq = 1; seq <= 5000; seq++) write(seq, "dave");
  fs.writeFileSync(cursors("bob.txt"), "1");
  assert.match(say("alice", "--key", "k"), /\nbob: last seen \d+ s ago, up to 5,000 unread\n$/);
  const opened = t.mock.method(fs, "openSync");
  const messages = (): number => opened.mock.calls.filter((call) => String(call.arguments[0]).endsWith(".md")).length;
  const [bob] = presence(openChannel(root, "r"), ["bob"], 5001);
  assert.deepEqual([bob!.unread, bob!.counted, messages()], [5000, false, 0]);
  assert.equal(presence(openChannel(root, "r"), ["bob"])[0]!.unread, 5000);
  assert.ok(messages() >= 5000, "a roster counts");
  for (let seq = 5002; seq <= 5200; seq++) write(seq, "dave");
  assert.match(say("alice", "--key", "k"), /before, under this key[^]*\nbob: last seen \d+ s ago, up to 5,199 unread\n$/);
  fs.writeFileSync(cursors("bob.txt"), "5150");
  assert.match(say("alice", "--key", "k"), /\nbob: last seen \d+ s ago, 50 unread\n$/);
});

test("post: where numbers are high and messages few, what is unread is counted", (t) => {
  const { say, write, cursors } = team(t, "alice,bob");
  write(20_261_130, "dave");
  fs.writeFileSync(cursors("bob.txt"), "0");
  assert.match(say("alice"), /\nbob: last seen \d+ s ago, 2 unread\n$/);
  assert.match(say("alice"), /\nbob: last seen \d+ s ago, 3 unread\n$/);
});

test("post: what cannot be found out about the others is a note, not an error: it is posted", (t) => {
  const { chat, at, cursors } = team(t);
  fs.writeFileSync(at("r", "_meta.json"), JSON.stringify({ members: ["alice", "../../x", "a\0b", "x".repeat(5000), "", " ", 7, null, "C:\\x", "__proto__", "constructor", "\x1b[31mred", "..", "-rf"] }));
  fs.writeFileSync(at("x.txt"), "1");
  fs.rmSync(cursors(""), { recursive: true });
  for (const args of [["post", "r", "--from", "alice", "--body", "b"], ["roster", "r"], ["receipts", "r", "1"], ["channels"]]) {
    const { status, stdout, stderr } = chat(args);
    assert.equal(status, 0, stderr);
    assert.doesNotMatch(stdout + stderr, /\x1b|at Object|TypeError/);
    assert.doesNotMatch(stdout, /x: (last|seen|silent)/, "a file outside is no cursor");
  }
});

// ---- status

test("status: is shown by roster, post and time-outs until it expires, and posts nothing", async (t) => {
  const { ok, chat, say, line, root, json, at, cursors } = team(t, "alice,bob");
  const before = fs.readdirSync(at("r"));
  assert.match(ok(["status", "r", "--as", "bob", "--set", "busy", "--until", "20m", "--note", "running the suite"]), /^bob in r: busy until [\d: -]+: running the suite\n$/);
  assert.deepEqual(fs.readdirSync(at("r")), before, "nothing was posted");
  const { since, until: end, ...rest } = JSON.parse(fs.readFileSync(cursors("bob.status"), "utf8"));
  assert.deepEqual(rest, { status: "busy", note: "running the suite" });
  assert.equal(Date.parse(end) - Date.parse(since), 20 * 60_000);
  const words = /busy until [\d: -]+: running the suite/;
  assert.match(line("bob"), words);
  assert.deepEqual(json()["bob"]!.status, { status: "busy", note: "running the suite", since, until: end });
  assert.match(say("alice"), new RegExp(`\nbob: .*; ${words.source}\n$`));
  for (const wish of [[], ["--from", "bob"]]) {
    const late = chat(["wait", "r", "--as", "alice", "--timeout", "0", ...wish]);
    assert.equal(late.status, 2);
    assert.match(late.stderr, new RegExp(`bob: .*; ${words.source}`));
  }
  ok(["status", "r", "--as", "bob", "--set", "back"]);
  assert.doesNotMatch(line("bob") + say("alice"), /busy/);
  assert.ok(!fs.existsSync(cursors("bob.status")));
  ok(["status", "r", "--as", "bob", "--set", "back"]);
  ok(["status", "r", "--as", "bob", "--set", "busy", "--until", "1s"]);
  await until("it has expired", () => currentStatus(openChannel(root, "r"), "bob") === undefined);
  assert.doesNotMatch(line("bob") + say("alice") + chat(["wait", "r", "--as", "alice", "--timeout", "0"]).stderr, /busy/);
  assert.equal(ok(["status", "r", "--as", "bob"]), "bob in r: no status\n");
});

test("status: lengths of time, blanks and options that make no sense are refused, and nothing is written", (t) => {
  const { chat, cursors } = team(t);
  const refused = ["0s", "-5m", "20", "m", "", " ", "1e3s", "1h30m", "20M", "14:30", "1000000d", "Infinitys", "0.0s", "2026-01-01", "1\u0662m"].map((time) => ["--set", "busy", "--until", time]);
  const other = [["--set", ""], ["--set", " \n"], ["--set", "\x85"], ["--until", "1m"], ["--note", "x"], ["--set", "back", "--until", "1m"], ["--set", "Back", "--note", "x"], ["--set", "busy", "--set", "back"], ["--set"]];
  for (const args of [...refused, ...other]) assert.equal(chat(["status", "r", "--as", "bob", ...args]).status, 64, JSON.stringify(args));
  assert.equal(chat(["status", "r", "--set", "busy"]).status, 64, "nobody said who");
  for (const option of ["--set", "--note"]) {
    const { status, stderr } = chat(["status", "r", "--as", "bob", "--set", "busy", "--note", "n"].map((word, i, all) => (all[i - 1] === option ? "x".repeat(1001) : word)));
    assert.equal(status, 1);
    assert.match(stderr, /has 1001 characters, more than 1000/);
  }
  assert.deepEqual(fs.readdirSync(cursors("")), []);
});

test("status: lengths of time are taken as they are said", (t) => {
  const { ok } = team(t);
  for (const [time, seconds] of [["90s", 90], ["20m", 1200], ["2h", 7200], ["1d", 86_400], [" 1.5h ", 5400], ["999999d", 999_999 * 86_400]] as const) {
    const [row] = rows<Presence>(ok(["status", "r", "--as", "bob", "--set", "busy", "--until", time, "--json"]));
    assert.equal((Date.parse(row!.status!.until) - Date.parse(row!.status!.since)) / 1000, seconds, time);
  }
  const [row] = rows<Presence>(ok(["status", "r", "--as", "bob", "--set", "busy", "--json"]));
  assert.equal(Date.parse(row!.status!.until) - Date.parse(row!.status!.since), HOUR);
});

test("status: line breaks and control characters reach neither the file's lines nor a terminal", (t) => {
  const { ok, line, say } = team(t, "alice,bob");
  const bad = "a\n  alice: waiting now\r\x1b[2Jb\u2028c\x85\u202e";
  ok(["status", "r", "--as", "bob", "--set", `${bad}S`, "--note", `${bad}N`]);
  for (const text of [line("bob"), say("alice"), ok(["status", "r", "--as", "bob"])]) {
    assert.doesNotMatch(text, /[\x1b\r\x85\u2028\u202e]|^  alice: waiting now/m);
    assert.match(text, /a   alice: waiting now \\x1b\[2Jb c/);
  }
});

test("status: in all channels of the root when none is named; twenty at once leave one whole", async (t) => {
  const { ok, start, root, cursors } = team(t);
  ok(["init", "other"]);
  assert.deepEqual(rows<{ channel: string }>(ok(["status", "--as", "bob", "--set", "away", "--json"])).map(({ channel }) => channel), ["other", "r"]);
  const ends = await Promise.all(Array.from({ length: 20 }, (_, i) => start(["status", "r", "--as", "bob", "--set", `s${i}`, "--note", "x".repeat(i * 40)]).ended));
  assert.deepEqual(ends.map(({ status }) => status), Array(20).fill(0));
  const { status, note } = currentStatus(openChannel(root, "r"), "bob")!;
  assert.equal(note.length, Number(status.slice(1)) * 40);
  assert.deepEqual(fs.readdirSync(cursors("")), ["bob.status"]);
});

test("status: it is written as cursors are, under the agent's own lock", async (t) => {
  const { root, cursors } = team(t);
  const channel = openChannel(root, "r");
  fs.mkdirSync(cursors("bob.lock"));
  fs.writeFileSync(cursors("bob.lock/elsewhere.1.x.draft"), "");
  const setting = setStatus(channel, "bob", { status: "busy", seconds: 60 });
  assert.ok(!fs.existsSync(cursors("bob.status")));
  await setStatus(channel, "carol", { status: "busy", seconds: 60 });
  assert.equal(currentStatus(channel, "bob"), undefined);
  fs.rmSync(cursors("bob.lock"), { recursive: true });
  await setting;
  assert.equal(currentStatus(channel, "bob")!.status, "busy");
  assert.deepEqual(fs.readdirSync(cursors("")).sort(), ["bob.status", "carol.status"]);
});

test("status: where it cannot be shown, it is not said to have been set unless it was", (t) => {
  const { ok, bash } = sandbox(t);
  ok(["init", "r"]);
  const { stderr } = bash(`ac status r --as bob >/dev/full; ac status r --as bob --set busy >/dev/full`);
  assert.deepEqual(stderr.match(/the status [a-z ]+, but could not write/g), ["the status stands, but could not write", "the status was set, but could not write"]);
});

test("status: a channel that has vanished is not made anew", async (t) => {
  const { root, at } = team(t);
  const channel = openChannel(root, "r");
  fs.rmSync(at("r"), { recursive: true });
  await assert.rejects(setStatus(channel, "bob", { status: "busy", seconds: 60 }), { code: "gone" });
  await setStatus(channel, "bob", undefined);
  assert.ok(!fs.existsSync(at("r")));
});

// ---- hostile files

test("presence: hostile .status and .wait files are nothing, and nothing in them acts on a terminal", (t) => {
  const { ok, chat, line, say, cursors, json, at } = team(t, "alice,bob");
  const later = stamp(Date.now() + HOUR);
  const beat = { pid: process.pid, host: "elsewhere", since: later, until: later, channels: ["r"], for: "x", from: [] };
  const evil = "\x1b[31m\n  alice: waiting now\x07\u202e";
  const nothing: (string | (() => void))[] = [
    "", "garbage", "null", "[]", "3", '"x"', "{}", "\0\x01\xff", '{"status":1,"note":2}', `{"status":"a","note":"b","since":"${later}","until":"never"}`,
    JSON.stringify({ status: "busy", note: "x", since: later, until: stamp(Date.now() - 1000) }),
    JSON.stringify({ status: "busy", note: "y".repeat(70_000), since: later, until: later }), JSON.stringify({ ...beat, for: "y".repeat(70_000) }),
    JSON.stringify({ ...beat, pid: "1" }), JSON.stringify({ ...beat, channels: "r" }), JSON.stringify({ ...beat, from: [1] }), JSON.stringify({ ...beat, host: null }), JSON.stringify({ ...beat, pid: -1 }),
  ];
  const make = (name: string): (string | (() => void))[] => [
    ...nothing,
    () => fs.symlinkSync("/etc/passwd", cursors(name)),
    () => fs.symlinkSync(cursors(name), cursors(name)),
    () => fs.mkdirSync(cursors(name)),
    () => void spawnSync("mkfifo", [cursors(name)]),
    () => (fs.writeFileSync(cursors(name), "{"), fs.truncateSync(cursors(name), 3 * 2 ** 30)),
    () => fs.writeFileSync(cursors(name), "[".repeat(1_000_000)),
  ];
  for (const name of ["bob.status", "bob.wait"]) {
    for (const content of make(name)) {
      fs.rmSync(cursors(name), { recursive: true, force: true });
      if (typeof content === "string") fs.writeFileSync(cursors(name), content);
      else content();
      const [bob] = presence(openChannel(at(), "r"), ["bob"]);
      assert.deepEqual([bob!.seen, bob!.status, bob!.waiting], [null, null, null], String(content));
    }
    assert.equal(line("bob"), "never seen here; 0 unread");
    fs.rmSync(cursors(name), { recursive: true });
  }
  fs.writeFileSync(cursors("bob.status"), JSON.stringify({ status: evil, note: `${evil}${"y".repeat(60_000)}`, since: later, until: later }));
  fs.writeFileSync(cursors("bob.wait"), JSON.stringify({ ...beat, since: evil, until: evil, for: evil }));
  fs.writeFileSync(cursors("eve\n  alice: waiting now\x1b[31m.txt"), "1");
  const outputs = [ok(["roster", "r"]), say("alice"), ok(["status", "r", "--as", "bob"]), chat(["wait", "r", "--as", "alice", "--timeout", "0"]).stderr, chat(["wait", "r", "--as", "alice", "--timeout", "0", "--from", "bob"]).stderr];
  for (const text of outputs) {
    assert.doesNotMatch(text, /[\x1b\x07\u202e]/);
    assert.doesNotMatch(text, /^\s*alice: waiting now/m);
    assert.match(text, /\\x1b\[31m/);
    assert.ok(text.length < 6000, `${text.length} characters`);
  }
  assert.doesNotMatch(ok(["roster", "r", "--json"]), /[\x1b\x07]/);
  assert.deepEqual(agentsOf(openChannel(at(), "r")), ["alice", "bob"]);
  assert.equal(json()["bob"]!.seen === null, false);
});

// ---- receipts

test("receipts: for whom it was, who was shown it, who was not, and who replied", (t) => {
  const { ok, say, chat, cursors } = team(t, "alice,bob,carol,dave");
  say("alice");
  say("alice", "--to", "bob,carol");
  ok(["read", "r", "--as", "bob"]);
  say("bob", "--reply", "2");
  say("carol", "--reply", "2");
  say("bob", "--reply", "1");
  const receipt = (seq: string): Omit<Receipt, "path"> => {
    const [{ path: _, ...one }] = rows<Receipt>(ok(["receipts", "r", seq, "--json"])) as [Receipt];
    return one;
  };
  assert.deepEqual(receipt("2"), {
    channel: "r", seq: 2, file: "0002-alice-t.md", from: "alice", title: "t",
    for: ["bob", "carol"], shown: ["bob"], unshown: ["carol"],
    replied: [{ from: "bob", seq: 3, file: "0003-bob-t.md" }, { from: "carol", seq: 4, file: "0004-carol-t.md" }],
  });
  assert.deepEqual([receipt("#1").for, receipt("1").shown, receipt("1").replied.map(({ seq }) => seq)], [["bob", "carol", "dave"], ["bob"], [5]]);
  assert.equal(
    ok(["receipts", "r", "2"]),
    "#2 alice -> bob, carol  r/0002-alice-t.md\nt\n  shown to    : bob\n  not shown to: carol\n  replied     : bob #3, carol #4\n",
  );
  assert.match(ok(["receipts", "r", "1"]), /not shown to: carol, dave \(never seen here\)\n/);
  const before = fs.readdirSync(cursors(""));
  for (const [seq, status] of [["9", 1], ["0", 64], ["x", 64], ["-1", 64], ["1.5", 64], ["", 64], ["99999999999999999999", 64]] as const) assert.equal(chat(["receipts", "r", "--", seq]).status, status, seq);
  assert.deepEqual(fs.readdirSync(cursors("")), before, "no new state");
  fs.writeFileSync(cursors("bob.txt"), "99");
  assert.deepEqual(receipt("2").unshown, ["bob", "carol"], "a cursor that is not believed has seen nothing");
  fs.writeFileSync(cursors("carol.txt"), "1-1,3-5");
  fs.writeFileSync(cursors("bob.txt"), "2-2");
  assert.deepEqual([receipt("2").shown, receipt("1").shown], [["bob"], ["carol"]]);
});

test("receipts: two messages with one number have one each, told apart by file name", (t) => {
  const { ok, write, cursors } = team(t);
  write(1, "alice", "to: bob\n");
  ok(["read", "r", "--as", "bob"]);
  write(1, "carol", "to: bob, alice\n");
  const both = (): string[][] => rows<Receipt>(ok(["receipts", "r", "1", "--json"])).map(({ from, shown, unshown }) => [from, shown.join(), unshown.join()]);
  assert.deepEqual(both(), [["alice", "", "bob"], ["carol", "", "bob,alice"]]);
  ok(["read", "r", "--as", "bob"]);
  assert.deepEqual(both(), [["alice", "bob", ""], ["carol", "bob", "alice"]]);
  fs.writeFileSync(cursors("bob.txt"), "0001-carol-t.md");
  assert.deepEqual(both(), [["alice", "", "bob"], ["carol", "bob", "alice"]]);
});

test("receipts: in an open channel a message to all is for everybody who was ever there", (t) => {
  const { ok, chat } = sandbox(t);
  ok(["init", "r"]);
  ok(["post", "r", "--from", "alice", "--body", "b"]);
  assert.match(ok(["receipts", "r", "1"]), /^#1 alice -> nobody known yet  [^]*shown to    : nobody\n  not shown to: nobody\n  replied     : nobody\n/);
  ok(["read", "r", "--as", "bob"]);
  ok(["post", "r", "--from", "carol", "--body", "b"]);
  const [receipt] = rows<Receipt>(ok(["receipts", "r", "1", "--json"]));
  assert.deepEqual([receipt!.shown, receipt!.unshown], [["bob"], ["carol"]]);
  assert.equal(chat(["receipts", "r"]).status, 64);
});

test("receipts: who reads while they are made was shown what the cursor says", (t) => {
  const { at, write, cursors } = team(t, "alice,bob");
  write(1, "alice");
  fs.writeFileSync(cursors("bob.txt"), "1");
  const open = fs.openSync;
  let raced = false;
  t.mock.method(fs, "openSync", (...args: Parameters<typeof open>) => {
    if (String(args[0]).endsWith("bob.txt") && !raced) {
      raced = true;
      write(2, "alice");
      fs.writeFileSync(cursors("bob.txt"), "2");
    }
    return open(...args);
  });
  assert.deepEqual(receipts(openChannel(at(), "r"), 1)[0]!.shown, ["bob"]);
  assert.ok(raced);
});

test("receipts: control characters in a title or a name act on no terminal", (t) => {
  const { ok, write } = team(t);
  write(1, "alice", 'to: "\x1b[31mbob", carol\n');
  write(2, "\x1b[2Jcarol", "reply_to: 1\n");
  assert.doesNotMatch(ok(["receipts", "r", "1"]) + ok(["roster", "r"]), /\x1b/);
});

// ---- whoami

test("whoami: the name and the root, and where each comes from", (t) => {
  const { chat, ok, root, dir } = sandbox(t);
  const home = { HOME: dir, AGENT_CHAT_ROOT: undefined };
  const who = (args: string[], env: Record<string, string | undefined> = {}, cwd = dir): (string | null | boolean)[] => {
    const [row] = rows<Record<"name" | "name_from" | "root" | "root_from", string | null> & { exists: boolean }>(ok(["whoami", "--json", ...args], { env, cwd }));
    return [row!.name, row!.name_from, row!.root, row!.root_from, row!.exists];
  };
  assert.deepEqual(who([]), [null, null, root, "AGENT_CHAT_ROOT", false]);
  assert.equal(ok(["whoami"]), `name: (none): add --as NAME, or set AGENT_CHAT_NAME\nroot: ${root} (AGENT_CHAT_ROOT), not there yet\n`);
  ok(["init", "r"]);
  assert.deepEqual(who(["--as", "@Bob"]), ["bob", "--as", root, "AGENT_CHAT_ROOT", true]);
  assert.deepEqual(who([], { AGENT_CHAT_NAME: "Carol" }), ["carol", "AGENT_CHAT_NAME", root, "AGENT_CHAT_ROOT", true]);
  assert.deepEqual(who(["--as", "bob"], { AGENT_CHAT_NAME: "carol" }), ["bob", "--as", root, "AGENT_CHAT_ROOT", true]);
  assert.deepEqual(who(["--root", "elsewhere"]), [null, null, `${dir}/elsewhere`, "--root", false]);
  assert.equal(who([], home)[2], `${dir}/agent-chat`);
  fs.mkdirSync(`${dir}/p/.agent-chat`, { recursive: true });
  fs.mkdirSync(`${dir}/p/deep`);
  const [, , near, from, there] = who([], home, `${dir}/p/deep`);
  assert.deepEqual([near, there], [`${dir}/p/.agent-chat`, true]);
  assert.notEqual(from, who([], home)[3]);
  assert.equal(ok(["whoami", "--as", "bob"]), `name: bob (--as)\nroot: ${root} (AGENT_CHAT_ROOT)\n`);
  assert.equal(chat(["whoami"], { env: { AGENT_CHAT_NAME: "a b" } }).status, 64);
  fs.writeFileSync(`${dir}/file`, "");
  assert.match(ok(["whoami", "--root", "file"]), /\/file \(--root\), which is no folder\n$/);
});

test("receipts: a cursor that is not believed, or cannot be read, is named; roster says it too", (t) => {
  const { chat, ok, at, bash } = sandbox(t);
  ok(["init", "r", "--members", "alice,bob"]);
  ok(["post", "r", "--from", "alice", "--body", "b"]);
  fs.writeFileSync(at("r", ".cursors", "bob.txt"), "1");
  for (const command of [["receipts", "r", "1"], ["roster", "r"]]) assert.equal(chat(command).stderr, "");
  for (const text of ["", "abc", "9"]) {
    fs.writeFileSync(at("r", ".cursors", "bob.txt"), text);
    for (const command of [["receipts", "r", "1"], ["roster", "r"]])
      assert.match(chat(command).stderr, /^agent-chat: the cursor ".*bob\.txt" (holds|reaches) [^\n]*: it is not believed, everything counts as unread\n$/, text);
  }
  const { stdout, stderr } = bash(`chmod 755 "$AGENT_CHAT_ROOT" "$AGENT_CHAT_ROOT/.."; chmod 700 "$AGENT_CHAT_ROOT/r/.cursors"
    setpriv --reuid 65534 --clear-groups true 2>/dev/null || { echo skip; exit; }
    for command in "receipts r 1" "roster r"; do setpriv --reuid 65534 --clear-groups "${process.execPath}" "${BIN}" $command > /dev/null; done`);
  if (stdout !== "skip\n") assert.equal(stderr.match(/bob\.txt" could not be read \(EACCES\)/g)?.length, 2, stderr);
});
