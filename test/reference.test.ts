import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import fs from "node:fs";
import { test, type TestContext } from "node:test";
import { openChannel, post, read } from "../chat.ts";
import { cleanEnv, REFERENCE, rows, sandbox, until, watchChild, type Running } from "./helpers.ts";

const python = spawnSync("python3", ["--version"]).status === 0;
const skip = !fs.existsSync(REFERENCE) ? `no reference at ${REFERENCE}` : !python && "no python3 here";

function both(t: TestContext) {
  const box = sandbox(t);
  const ref = (args: readonly string[]): Running =>
    watchChild(spawn("python3", [REFERENCE, ...args], { cwd: box.dir, env: cleanEnv({ AGENT_CHAT_ROOT: box.root }), stdio: ["ignore", "pipe", "pipe"] }));
  return { ...box, ref, cursor: (name: string) => fs.readFileSync(box.at("r", ".cursors", `${name}.txt`), "utf8") };
}
const ended = async (run: Running): Promise<string> => {
  const { status, stdout, stderr } = await run.ended;
  assert.equal(status, 0, stderr);
  return stdout;
};

test("reference: both post at the same time, and numbers are unique and without holes", { skip }, async (t) => {
  const { start, ref, ok, at } = both(t);
  await ended(ref(["init", "r", "--members", "alice,bob"]));
  const posts: Promise<string>[] = [];
  for (let i = 0; i < 24; i++) {
    posts.push(ended(start(["post", "r", "--from", "ours", "--title", `o${i}`, "--body", `o${i}`])));
    posts.push(ended(ref(["post", "r", "--from", "theirs", "--title", `t${i}`, "--body", `t${i}`])));
    if (i % 6 === 5) await Promise.all(posts.slice(-6)); // six pairs at a time on two cores
  }
  const printed = (await Promise.all(posts)).map((line) => Number(/^posted #(\d+) /.exec(line)![1]));
  assert.deepEqual(printed.sort((a, b) => a - b), Array.from({ length: 48 }, (_, i) => i + 1));
  const messages = rows<{ seq: number; title: string; body: string; from: string }>(ok(["read", "r", "--all", "--json"]));
  assert.deepEqual(messages.map(({ seq }) => seq), Array.from({ length: 48 }, (_, i) => i + 1));
  assert.ok(messages.every(({ title, body, from }) => body === `${title}\n` && from === (title[0] === "o" ? "ours" : "theirs")));
  assert.ok(!fs.existsSync(at("r", "_seq.lock")));
});

test("reference: each reads the other's sender, recipients, reply and title", { skip }, async (t) => {
  const { ok, ref } = both(t);
  ok(["init", "r", "--members", "alice,bob,carol"]);
  ok(["post", "r", "--from", "alice", "--to", "bob,carol", "--title", "a: b # c", "--body", "one"]);
  await ended(ref(["post", "r", "--from", "bob", "--to", "alice,carol", "--reply", "1", "--title", '"quoted" no: "yes"', "--status", "done", "--body", "two"]));
  await ended(ref(["post", "r", "--from", "bob", "--title", '"q"', "--body=---\nthree\n---"]));
  const [, second, third] = rows<Record<string, unknown>>(ok(["read", "r", "--all", "--json"]));
  assert.deepEqual([second!["from"], second!["to"], second!["reply_to"], second!["title"], second!["status"]], ["bob", ["alice", "carol"], 1, '"quoted" no: "yes"', "done"]);
  assert.deepEqual([third!["to"], third!["title"], third!["body"]], [[], '"q"', "---\nthree\n---\n"]);
  assert.match(await ended(ref(["read", "r", "--as", "carol"])), /from: alice\nto: bob, carol\n[^]*one[^]*two[^]*three/);
  assert.match(await ended(ref(["read", "r", "--as", "alice"])), /^=+\n---\nseq: 2\n[^]*seq: 3\n/);
  assert.doesNotMatch(await ended(ref(["read", "r", "--as", "dave"])), /seq: [12]\n/);
});

test("reference: each respects the other's cursor", { skip }, async (t) => {
  const { ok, ref, cursor } = both(t);
  ok(["init", "r"]);
  for (const body of ["one", "two"]) ok(["post", "r", "--from", "alice", "--body", body]);
  ok(["read", "r", "--as", "bob"]);
  assert.match(await ended(ref(["read", "r", "--as", "bob"])), /no new messages for bob/);
  ok(["post", "r", "--from", "alice", "--body", "three"]);
  assert.match(await ended(ref(["read", "r", "--as", "bob"])), /three/);
  assert.equal(cursor("bob"), "3");
  assert.equal(ok(["read", "r", "--as", "bob"]), "");
});

test("reference: each wakes the other's wait", { skip }, async (t) => {
  const { ok, ref, start } = both(t);
  ok(["init", "r"]);
  const ours = start(["wait", "r", "--as", "bob"]);
  const theirs = ref(["wait", "r", "--as", "alice", "--interval", "0.2", "--timeout", "20"]);
  await new Promise((resolve) => setTimeout(resolve, 600));
  await ended(ref(["post", "r", "--from", "alice", "--title", "t", "--body", "to ours"]));
  assert.match((await ours.ended).stdout, /to ours/);
  ok(["post", "r", "--from", "bob", "--body", "to theirs"]);
  assert.match(await ended(theirs), /to theirs/);
});

test("reference: twenty claims from both leave one owner", { skip }, async (t) => {
  const { ok, ref, start, at } = both(t);
  ok(["init", "r"]);
  fs.writeFileSync(at("r", "task-1.md"), "");
  const claims = Array.from({ length: 20 }, (_, i) => (i % 2 ? ref(["claim", "r", "task-1.md", "--as", `w${i}`]) : start(["claim", "r", "task-1.md", "--as", `w${i}`])));
  const ends = await Promise.all(claims.map((claim) => claim.ended));
  assert.deepEqual(ends.map(({ status }) => status).sort(), [0, ...Array(19).fill(3)]);
  const winner = ends.findIndex(({ status }) => status === 0);
  assert.deepEqual(fs.readdirSync(at("r")).filter((name) => name.startsWith("task")), [`task-1.CLAIMED-w${winner}.md`]);
});

test("reference: each waits for the other's lock", { skip }, async (t) => {
  const { ok, ref, start, at } = both(t);
  ok(["init", "r"]);
  fs.mkdirSync(at("r", "_seq.lock")); // as the reference holds it: an empty folder
  const ours = start(["post", "r", "--from", "alice", "--title", "t", "--body", "b"]);
  await new Promise((resolve) => setTimeout(resolve, 500));
  assert.ok(!fs.existsSync(at("r", "0001-alice-t.md")));
  fs.rmdirSync(at("r", "_seq.lock"));
  assert.equal((await ours.ended).status, 0);
  fs.mkdirSync(at("r", "_seq.lock"));
  fs.writeFileSync(at("r", "_seq.lock", "host.1.abc.draft"), "");
  const theirs = ref(["post", "r", "--from", "bob", "--title", "t", "--body", "b"]);
  await new Promise((resolve) => setTimeout(resolve, 500));
  assert.ok(!fs.existsSync(at("r", "0002-bob-t.md")));
  fs.rmSync(at("r", "_seq.lock"), { recursive: true });
  await ended(theirs);
});

test("reference: a channel of the older kinds, with names of its own, is read and answered", { skip }, async (t) => {
  const { ok, ref, chat } = both(t);
  await ended(ref(["init", "r", "--members", "Dev.A,bob"]));
  await ended(ref(["post", "r", "--from", "Dev.A", "--to", "bob", "--title", "hi", "--body", "b"]));
  assert.match(ok(["read", "r", "--as", "bob"]), /Dev\.A -> bob/);
  assert.match(ok(["post", "r", "--from", "bob", "--reply", "1", "--body", "back"]), /to Dev\.A;/);
  assert.match(ok(["post", "r", "--from", "bob", "--to", "Dev.A", "--body", "again"]), /to Dev\.A;/);
  assert.match(await ended(ref(["read", "r", "--as", "Dev.A"])), /back[^]*again/);
  assert.equal(chat(["post", "r", "--from", "bob", "--to", "Dev.B", "--body", "x"]).status, 64);
  await until("the roster is read", () => ok(["roster", "r"]).includes("Dev.A, bob"));
});

test("reference: a channel with priorities, keys, statuses, waits and members who came and went is used as before", { skip }, async (t) => {
  const { ok, ref, start, at, cursor } = both(t);
  await ended(ref(["init", "r", "--members", "Alice,bob", "--topic", "T"]));
  ok(["join", "r", "--as", "carol"]);
  ok(["leave", "r", "--as", "bob"]);
  ok(["post", "r", "--from", "alice", "--to", "bob", "--force", "--priority", "high", "--key", "a: b", "--title", "t", "--body", "one"]);
  ok(["post", "r", "--from", "alice", "--to", "bob", "--force", "--priority", "high", "--key", "a: b", "--title", "t", "--body", "one"]);
  ok(["status", "r", "--as", "bob", "--set", "busy", "--note", "n: #"]);
  const waiting = start(["wait", "r", "--as", "carol", "--reply-to", "1"]);
  await until("it waits", () => fs.existsSync(at("r", ".cursors", "carol.wait")));
  assert.match(await ended(ref(["roster", "r"])), /Alice[^]*carol/);
  assert.match(await ended(ref(["channels"])), /^r     1  Alice,carol\n  +last: #1 alice: t\n/m);
  assert.match(await ended(ref(["read", "r", "--as", "bob"])), /seq: 1\nfrom: alice\nto: bob\n[^]*title: t\npriority: high\nkey: "a: b"\n---\none\n/);
  await ended(ref(["post", "r", "--from", "bob", "--to", "alice,carol", "--reply", "1", "--title", "re", "--body", "two"]));
  assert.equal((await waiting.ended).status, 0);
  assert.match(ok(["receipts", "r", "1"]), /shown to    : bob\n  not shown to: nobody\n  replied     : bob #2\n/);
  ok(["cursor", "r", "--as", "alice", "--set", "2"]);
  assert.equal(cursor("alice"), "2");
  assert.match(await ended(ref(["read", "r", "--as", "alice"])), /no new messages for alice in 'r'; cursor at #2/);
  ok(["cursor", "r", "--as", "bob", "--set", "none"]);
  assert.match(await ended(ref(["read", "r", "--as", "bob"])), /one/);
  fs.writeFileSync(at("r", "task-1.md"), "");
  await ended(ref(["claim", "r", "task-1.md", "--as", "bob"]));
  assert.match(ok(["roster", "r"]), /^  bob: .*; has task-1; busy until [\d: -]+: n: #$/m);
});

test("reference: a message that it is still writing is not shown in part", (t) => {
  const { ok, at, root } = sandbox(t);
  ok(["init", "r"]);
  const [channel, lock, file] = [openChannel(root, "r"), at("r", "_seq.lock"), at("r", "0001-a-x.md")];
  fs.mkdirSync(lock); // as the reference holds it while it writes
  fs.writeFileSync(file, "---\nseq: 1\nfrom: a\ntitle: x\n---\nfirst half");
  const real = fs.readdirSync;
  let looks = 0;
  t.mock.method(fs, "readdirSync", (name: string, ...rest: []) => {
    if (name !== lock || ++looks !== 3) return real(name, ...rest);
    fs.appendFileSync(file, " second half\n");
    fs.rmdirSync(lock);
    return real(name, ...rest);
  });
  assert.equal(read(channel, "bob").messages[0]!.body, "first half second half\n");
});

/** Priorities, keys, quiet messages, members, a cursor with gaps, a status, and bob's heartbeat. */
async function furnish({ ok, start, at }: ReturnType<typeof both>): Promise<Running> {
  ok(["init", "r", "--members", "alice,bob,dave", "--topic", "all of it"]);
  const meta = JSON.parse(fs.readFileSync(at("r", "_meta.json"), "utf8")) as object;
  fs.writeFileSync(at("r", "_meta.json"), JSON.stringify({ ...meta, more: { kept: true } }));
  ok(["join", "r", "--as", "carol"]);
  ok(["leave", "r", "--as", "dave"]);
  const first = ["post", "r", "--as", "alice", "--title", "t: 1", "--priority", "high", "--key", "k: 1", "--body", "one"];
  assert.match(ok(first), /^posted #1 /);
  assert.match(ok(first), /^posted #1 .*before, under this key/);
  ok(["post", "r", "--as", "alice", "--to", "carol", "--status", "ack", "--body", "two"]);
  ok(["post", "r", "--as", "alice", "--status", "fyi", "--priority", "low", "--body", "three"]);
  ok(["cursor", "r", "--as", "carol", "--set", "1-1,3-3"]);
  ok(["status", "r", "--as", "bob", "--set", "busy", "--until", "1h"]);
  fs.writeFileSync(at("r", "task-1.md"), "to be done\n");
  const waiting = start(["wait", "r", "--as", "bob", "--from", "carol"]);
  await until("bob's heartbeat is there", () => fs.existsSync(at("r", ".cursors", "bob.wait")));
  return waiting;
}

test("reference: it lists, reads, and waits in a channel that uses all of it", { skip }, async (t) => {
  const box = both(t);
  await furnish(box);
  const roster = await ended(box.ref(["roster", "r"]));
  assert.match(roster, /topic +: all of it\nmembers : alice, bob, carol\nmessages: 3\n/);
  assert.match(await ended(box.ref(["channels"])), /r +3 +alice,bob,carol\n.*#3 alice: three/);
  const read = await ended(box.ref(["read", "r", "--as", "bob"]));
  assert.match(read, /title: "t: 1"\npriority: high\nkey: "?k: 1"?\n---\none\n[^]*status: fyi\ntitle: three\npriority: low\n---\nthree/);
  assert.doesNotMatch(read, /two/);
  assert.equal(box.cursor("bob"), "3");
  assert.match(await ended(box.ref(["wait", "r", "--as", "carol", "--interval", "0.1", "--timeout", "20"])), /one[^]*two[^]*three/);
  assert.equal(box.cursor("carol"), "3", "it takes a cursor with gaps for 0, and writes its own");
  assert.match(await ended(box.ref(["peek", "r", "-n", "1"])), /three/);
  const meta = JSON.parse(fs.readFileSync(box.at("r", "_meta.json"), "utf8")) as { more: unknown; members: unknown };
  assert.deepEqual([meta.more, meta.members], [{ kept: true }, ["alice", "bob", "carol"]]);
});

test("reference: in a channel that uses all of it, what it posts and claims is heard, answered and counted", { skip }, async (t) => {
  const box = both(t);
  const { ok, ref, at, chat } = box;
  const waiting = await furnish(box);
  assert.match(await ended(ref(["post", "r", "--from", "alice", "--to", "bob", "--title", "beside", "--body", "four"])), /#4/);
  assert.match(await ended(ref(["post", "r", "--from", "carol", "--to", "bob", "--title", "go", "--reply", "1", "--body", "five"])), /#5/);
  const heard = await waiting.ended;
  assert.deepEqual([heard.status, /five/.test(heard.stdout), /one|three|four/.test(heard.stdout)], [0, true, false], heard.stderr);
  assert.ok(!fs.existsSync(at("r", ".cursors", "bob.wait")), "a heartbeat is left");
  assert.equal(box.cursor("bob"), "2-2,5-5", "what the wait was not for stays unread");
  const [receipt] = rows<Record<string, unknown>>(ok(["receipts", "r", "1", "--json"]));
  assert.deepEqual(receipt!["replied"], [{ from: "carol", seq: 5, file: "0005-carol-go.md" }]);
  assert.deepEqual([receipt!["shown"], receipt!["unshown"]], [["carol"], ["bob"]]);
  await ended(ref(["claim", "r", "task-1.md", "--as", "carol"]));
  assert.equal(chat(["claim", "r", "1", "--as", "bob"]).status, 3);
  type Agent = { agent: string; tasks: string[]; status: { status: string } | null; waiting: unknown };
  const [roster] = rows<{ agents: Agent[] }>(ok(["roster", "r", "--json"]));
  const facts = roster!.agents.map(({ agent, tasks, status, waiting }) => [agent, tasks, status?.status ?? null, waiting]);
  assert.deepEqual(facts, [["alice", [], null, null], ["bob", [], "busy", null], ["carol", ["1"], null, null]]);
  const again = ["post", "r", "--as", "alice", "--title", "t: 1", "--priority", "high", "--key", "k: 1", "--body", "one"];
  assert.match(ok(again), /^posted #1 .*before, under this key/);
  assert.match(await ended(ref(["post", "r", "--from", "dave", "--title", "t", "--body", "six"])), /#6/);
});

test("reference: roster and receipts know who wrote and read under a name that only it takes", { skip }, async (t) => {
  const { ok, ref } = both(t);
  await ended(ref(["init", "r", "--members", "Zo\u00e9,\u65e5\u672c,Dev_B,bob"]));
  for (const name of ["Zo\u00e9", "\u65e5\u672c"]) await ended(ref(["post", "r", "--from", name, "--title", "t", "--body", "b"]));
  await ended(ref(["read", "r", "--as", "Dev_B"]));
  const roster = ok(["roster", "r"]);
  assert.match(roster, /^  Zo\u00e9: last post #1 .*\n(.*\n)*  \u65e5\u672c: last post #2 /m);
  assert.match(roster, /^  Dev_B: seen /m);
  assert.match(ok(["receipts", "r", "1"]), /shown to    : Dev_B\n/);
});

test("reference: a number that it marked with nothing under it is given to no message", { skip }, async (t) => {
  const { ok, ref, at, cursor } = both(t);
  ok(["init", "r"]);
  ok(["post", "r", "--as", "alice", "--body", "one"]);
  fs.writeFileSync(at("r", "0002-alice-t.md"), ""); // as it leaves one on a full disk, or for a title that is no UTF-8
  await ended(ref(["read", "r", "--as", "bob"]));
  assert.equal(cursor("bob"), "2");
  assert.match(ok(["post", "r", "--as", "alice", "--body", "after it"]), /^posted #3 /);
  assert.match(ok(["read", "r", "--as", "bob", "--peek"]), /after it/);
  assert.match(await ended(ref(["read", "r", "--as", "bob"])), /after it/);
});

test("reference: who is written to by any form of a name in an open channel is written as they spell themselves", { skip }, async (t) => {
  const { ok, chat, ref } = both(t);
  await ended(ref(["init", "r"]));
  for (const name of ["Bob", "Dev.B"]) await ended(ref(["post", "r", "--from", name, "--title", "t", "--body", "here"]));
  assert.match(ok(["post", "r", "--as", "carol", "--to", "bob,dev.b", "--body", "to both"]), /^  to Bob, Dev\.B;/m);
  for (const name of ["Bob", "Dev.B"]) assert.match(await ended(ref(["read", "r", "--as", name])), /to both/);
  ok(["post", "r", "--as", "bob", "--body", "from now on in small letters"]);
  assert.match(ok(["post", "r", "--as", "carol", "--to", "Bob", "--body", "b"]), /^  to bob;/m);
  assert.match(ok(["task", "r", "t", "--as", "carol", "--for", "dev.b"]), /^created task-1/);
  assert.equal(chat(["post", "r", "--as", "carol", "--to", "Dev.C", "--body", "b"]).status, 64);
});

test("reference: a cursor that it is still writing is not taken for an empty one", (t) => {
  const { ok, at, root } = sandbox(t);
  ok(["init", "r"]);
  for (const body of ["one", "two"]) ok(["post", "r", "--as", "alice", "--body", body]);
  const file = at("r", ".cursors", "bob.txt");
  fs.writeFileSync(file, ""); // as it is until the number is written
  const real = fs.openSync;
  let looks = 0;
  t.mock.method(fs, "openSync", (name: string, ...rest: [number]) => {
    if (name === file && ++looks === 3) fs.writeFileSync(file, "1");
    return real(name, ...rest);
  });
  const { messages, notes } = read(openChannel(root, "r"), "bob");
  assert.deepEqual([messages.map(({ seq }) => seq), notes], [[2], []]);
  fs.writeFileSync(file, ""); // and as who was killed left it
  fs.utimesSync(file, 1, 1);
  looks = 3;
  assert.equal(read(openChannel(root, "r"), "bob").messages.length, 2);
  assert.equal(looks, 4, "nobody waits for that");
});

test("reference: where numbers are high and messages few, no number is given twice", { skip }, async (t) => {
  const { ok, root, at, dir } = both(t);
  ok(["init", "r"]);
  fs.writeFileSync(at("r", "60000-alice-x.md"), "---\nseq: 60000\nfrom: alice\n---\nx\n"); // after 59999-notes.md, say
  const many = `import sys, runpy, time, random
post = runpy.run_path(sys.argv[1])["main"]
for i in range(100):
    post(["--root", sys.argv[2], "post", "r", "--from", "theirs", "--title", "t", "--body", "b"])
    time.sleep(random.random() * 0.004)`;
  const theirs = [1, 2].map(() => watchChild(spawn("python3", ["-c", many, REFERENCE, root], { cwd: dir })));
  const channel = openChannel(root, "r");
  await until("it posts", () => theirs.every((run) => run.output() !== "") || fs.readdirSync(at("r")).length > 4);
  const numbers: number[] = [];
  for (let i = 0; i < 200; i++) numbers.push((await post(channel, { from: "ours", body: "b" })).message.seq);
  for (const printed of await Promise.all(theirs.map(ended)))
    for (const [, seq] of printed.matchAll(/^posted #(\d+)/gm)) numbers.push(Number(seq));
  assert.deepEqual(numbers.sort((a, b) => a - b), Array.from({ length: 400 }, (_, i) => 60_001 + i));
});
