import assert from "node:assert/strict";
import fs from "node:fs";
import { test, type TestContext } from "node:test";
import { formatCursor, parseCursor } from "../chat.ts";
import { listening, rows, sandbox, until } from "./helpers.ts";

const channel = (t: TestContext, count = 5) => {
  const box = sandbox(t);
  box.ok(["init", "r"]);
  for (let i = 1; i <= count; i++) box.ok(["post", "r", "--from", "alice", "--title", "t", "--body", `body ${i}`]);
  const file = box.at("r", ".cursors", "bob.txt");
  const seqs = (...args: string[]): number[] => rows<{ seq: number }>(box.ok(["read", "r", "--as", "bob", "--json", ...args])).map(({ seq }) => seq);
  return { ...box, file, seqs, cursor: () => fs.readFileSync(file, "utf8") };
};
const message = (seq: number, from = "carol", more = "") => `---\nseq: ${seq}\nfrom: ${from}\nto: all\n${more}title: late\n---\nlate ${from}\n`;

test("cursor: a number alone is 1 to that number, as the reference writes it, without a newline", (t) => {
  const { seqs, file, cursor } = channel(t);
  fs.writeFileSync(file, "3");
  assert.deepEqual(seqs(), [4, 5]);
  assert.equal(cursor(), "5");
});

test("cursor: a set with a gap delivers the gap", (t) => {
  const { seqs, file, cursor } = channel(t);
  fs.writeFileSync(file, "1-1,3-4");
  assert.deepEqual(seqs(), [2, 5]);
  assert.equal(cursor(), "5");
});

test("cursor: what can be written can be read, and comes out in one form", () => {
  const forms = { "12": "12", "0": "0", "1-8,10-12": "1-8,10-12", "10-12,1-8": "1-8,10-12", "1-3,4-6": "6", "2-2": "2-2", "1-5,0006-a-x.md,0006-b-x.md": "1-5,0006-a-x.md,0006-b-x.md", "1,3": "1-1,3-3", "5\n": "5" };
  for (const [text, form] of Object.entries(forms)) assert.equal(formatCursor(parseCursor(text)!), form, text);
  for (const text of ["", "abc", "3,", "-3", "3-", "5-3", "1.5", "<<<<<<< HEAD\n3\n=======\n7\n>>>>>>> x", "0-3", "../x.md", "1 2"]) {
    assert.equal(parseCursor(text), undefined, JSON.stringify(text));
  }
});

test("cursor: one that is empty, garbage, in conflict, a link or a folder is named, and everything is delivered", (t) => {
  const { seqs, chat, file, cursor } = channel(t, 2);
  const damage: [() => void, RegExp][] = [
    [() => fs.writeFileSync(file, ""), /holds ""/],
    [() => fs.writeFileSync(file, "abc"), /holds "abc"/],
    [() => fs.writeFileSync(file, "<<<<<<< HEAD\n3\n=======\n7\n>>>>>>> other\n"), /holds "<<<<<<< HEAD\\n3/],
    [() => fs.symlinkSync("/etc/hostname", file), /is a link/],
  ];
  for (const [make, reason] of damage) {
    fs.rmSync(file, { force: true });
    make();
    const { stderr, stdout, status } = chat(["read", "r", "--as", "bob"]);
    assert.equal(status, 0);
    assert.match(stderr, reason);
    assert.match(stderr, /is not believed, everything counts as unread/);
    assert.match(stdout, /body 1[^]*body 2/);
    assert.equal(cursor(), "2", "and it is mended");
    assert.deepEqual(seqs(), []);
  }
  assert.ok(!fs.lstatSync(file).isSymbolicLink());
});

test("cursor: one that reaches past the newest message is not believed", (t) => {
  const { ok, chat, file, cursor } = channel(t, 3);
  fs.writeFileSync(file, "99");
  ok(["post", "r", "--from", "alice", "--title", "n", "--body", "n"]);
  const { stdout, stderr } = chat(["read", "r", "--as", "bob"]);
  assert.match(stderr, /reaches #99, and the newest message is #4: it is not believed/);
  assert.match(stdout, /body 1[^]*#4 /);
  assert.equal(cursor(), "4");
});

test("cursor: one that reaches past the newest message by a file name hides none that gets that name", (t) => {
  const { ok, chat, file, cursor } = channel(t, 3);
  fs.writeFileSync(file, "1-3,0004-alice-t.md,0004-carol-late.md"); // two clones' #4, which git has taken back
  const { stdout, stderr } = chat(["read", "r", "--as", "bob"]);
  assert.match(stderr, /reaches #4, and the newest message is #3: it is not believed/);
  assert.match(stdout, /body 1[^]*body 3/);
  assert.equal(cursor(), "3");
  ok(["post", "r", "--from", "alice", "--title", "t", "--body", "the next"]);
  assert.match(ok(["read", "r", "--as", "bob"]), /the next/);
});

test("cursor: one that reaches past the newest is not excused by a file that only claims a high number", (t) => {
  const { at, chat, file } = channel(t, 2);
  fs.writeFileSync(at("r", "0099-a-x.md"), "no header");
  fs.writeFileSync(file, "99");
  assert.match(chat(["read", "r", "--as", "bob"]).stdout, /body 1[^]*body 2/);
});

test("cursor: what is not believed is delivered within the budget, not replayed at once", (t) => {
  const box = channel(t, 0);
  for (let i = 0; i < 4; i++) box.ok(["post", "r", "--from", "alice", "--body", "x".repeat(10_000)]);
  fs.writeFileSync(box.file, "abc");
  assert.match(box.ok(["read", "r", "--as", "bob"]), /2 more unread/);
  assert.equal(box.cursor(), "2");
  assert.deepEqual(box.seqs(), [3, 4]);
});

test("cursor: a message that comes late with a low number is shown, once, whatever its date", (t) => {
  const { ok, at, seqs, cursor } = channel(t, 3);
  fs.rmSync(at("r", "0002-alice-t.md"));
  assert.deepEqual(seqs(), [1, 3]);
  assert.equal(cursor(), "1-1,3-3");
  ok(["post", "r", "--from", "alice", "--body", "next"]);
  assert.deepEqual(seqs(), [4]);
  fs.writeFileSync(at("r", "0002-carol-late.md"), message(2));
  fs.utimesSync(at("r", "0002-carol-late.md"), 1, 1);
  assert.deepEqual(seqs(), [2]);
  assert.equal(cursor(), "4");
  assert.deepEqual(seqs(), []);
});

test("cursor: two messages with one number are both shown, then neither, and the number is named", (t) => {
  const { chat, at, cursor, seqs, ok } = channel(t, 1);
  assert.deepEqual(seqs(), [1]);
  fs.writeFileSync(at("r", "0001-carol-late.md"), message(1));
  const { stdout, stderr } = chat(["read", "r", "--as", "bob"]);
  assert.match(stdout, /late carol/);
  assert.match(stderr, /2 messages are #1/);
  assert.equal(cursor(), "1-1,0001-alice-t.md,0001-carol-late.md");
  assert.deepEqual(seqs(), []);
  fs.writeFileSync(at("r", "0001-dave-late.md"), message(1, "dave"));
  assert.match(ok(["read", "r", "--as", "bob"]), /late dave/);
  assert.deepEqual(seqs(), []);
  const reply = chat(["post", "r", "--from", "bob", "--reply", "1", "--body", "which?"]);
  assert.match(reply.stderr, /3 messages are #1: 0001-alice-t\.md, 0001-carol-late\.md, 0001-dave-late\.md/);
  assert.match(reply.stdout, /to alice, carol, dave;/);
});

test("cursor: of two messages with one number the one that was not shown stays new, though the other is taken away", (t) => {
  const { at, cursor, seqs, ok } = channel(t, 1);
  fs.writeFileSync(at("r", "0001-carol-late.md"), message(1));
  assert.match(ok(["read", "r", "--as", "bob", "--max-bytes", "200"]), /body 1/);
  assert.equal(cursor(), "0001-alice-t.md");
  fs.rmSync(at("r", "0001-alice-t.md"));
  assert.deepEqual(seqs(), [1]);
});

test("cursor: a file that only shares the number is not a second message", (t) => {
  const { at, seqs, cursor } = channel(t, 1);
  assert.deepEqual(seqs(), [1]);
  fs.writeFileSync(at("r", "0001-carol-late.md"), message(7));
  assert.deepEqual(seqs(), []);
  assert.equal(cursor(), "1");
});

test("cursor: names that were one file in the reference are two here", (t) => {
  const { ok, chat } = channel(t, 1);
  assert.match(ok(["read", "r", "--as", "dev-a"]), /body 1/);
  for (const name of ["dev.a", "dév", "开发", "a--b", "a b", "x".repeat(41), "all", "null", "~", "con", "-a", "a-", ""]) {
    const { status, stderr } = chat(["read", "r", "--as", name]);
    assert.equal(status, 64, name);
    assert.ok(stderr.includes(`"${name}" is not a name of an agent`), stderr);
  }
  assert.match(chat(["read", "r", "--as", "dev.a"]).stderr, /try: agent-chat read r --as dev-a /);
});

test("cursor: two sessions under one name both show what is new, and neither undoes the other", async (t) => {
  const { start, cursor, seqs } = channel(t, 0);
  const waits = [start(["wait", "r", "--as", "bob", "--json"]), start(["wait", "r", "--as", "bob", "--json"])];
  await Promise.all(waits.map(listening));
  await new Promise((resolve) => setTimeout(resolve, 100));
  start(["post", "r", "--from", "alice", "--body", "x"]);
  const ends = await Promise.all(waits.map(({ ended }) => ended));
  for (const { status, stdout } of ends) assert.deepEqual([status, rows(stdout).length], [0, 1]);
  assert.equal(cursor(), "1");
  assert.deepEqual(seqs(), []);
});

test("cursor: twenty sessions that each show a different part leave the whole", async (t) => {
  const { start, at, cursor } = channel(t, 0);
  for (let i = 1; i <= 20; i++) fs.writeFileSync(at("r", `${String(i).padStart(4, "0")}-a-x.md`), message(i, "a"));
  const parts = Array.from({ length: 20 }, () => start(["read", "r", "--as", "bob", "--max-bytes", "1"]).ended);
  for (const { status } of await Promise.all(parts)) assert.equal(status, 0);
  await until("all was marked", () => {
    start(["read", "r", "--as", "bob"]);
    return cursor() === "20";
  });
});

// ---- by hand

test("cursor: shows the set and moves it by hand, to a set, to all and to none", (t) => {
  const { ok, file, seqs, cursor, at } = channel(t);
  assert.equal(ok(["cursor", "r", "--as", "bob"]), `bob in r: shown 0; newest #5; 5 unread; ${file}\n`);
  assert.ok(!fs.existsSync(file), "showing it moves nothing");
  assert.equal(ok(["cursor", "r", "--as", "bob", "--set", "1-2,4"]), `bob in r: shown 1-2,4-4; newest #5; 2 unread; ${file}\n`);
  assert.equal(cursor(), "1-2,4-4");
  assert.deepEqual(seqs(), [3, 5]);
  ok(["cursor", "r", "--as", "bob", "--set", "none"]);
  assert.equal(cursor(), "0");
  assert.deepEqual(seqs("--peek"), [1, 2, 3, 4, 5]);
  ok(["cursor", "r", "--as", "bob", "--set", " all "]);
  assert.equal(cursor(), "5");
  assert.deepEqual(seqs(), []);
  ok(["cursor", "r", "--as", "bob", "--set", "1-3"]);
  assert.equal(cursor(), "3", "as the reference writes it");
  assert.deepEqual(rows(ok(["cursor", "r", "--as", "bob", "--json"])), [{ channel: "r", agent: "bob", path: file, shown: "3", newest: 5, unread: 2 }]);
  ok(["cursor", "r", "--as", "bob", "--set", "0"]);
  assert.deepEqual(seqs("--peek"), [1, 2, 3, 4, 5]);
  assert.deepEqual(fs.readdirSync(at("r", ".cursors")), ["bob.txt"]);
});

test("cursor: what is no set, or reaches past the newest message, is refused and moves nothing", (t) => {
  const { chat, ok, cursor, at, file } = channel(t, 3);
  ok(["cursor", "r", "--as", "bob", "--set", "1-2"]);
  fs.writeFileSync(at("r", "0099-a-x.md"), "no header");
  for (const set of ["", " ", "x", "1-", "-3", "3-1", "1.5", "ALLES", "1;2", "../x", "1-4", "4", "1-99", "2,4", "999999999999999", "9999999999999999999", "0004-alice-t.md", "1-2,0099-a-x.md", "\u0661"]) {
    const { status, stderr, stdout } = chat(["cursor", "r", "--as", "bob", "--set", set, "--json"]);
    assert.equal(status, 64, JSON.stringify(set));
    assert.equal(stdout, "");
    assert.match(stderr, /"code":"bad_value"/);
  }
  assert.equal(cursor(), "2");
  assert.equal(chat(["cursor", "r", "--set", "all"]).status, 64, "nobody said whose");
  fs.rmSync(file);
  fs.mkdirSync(file);
  assert.equal(chat(["cursor", "r", "--as", "bob", "--set", "all"]).status, 1);
});

test("cursor: all is every message there is, and not what only looks like one", (t) => {
  const { ok, chat, at, cursor, seqs } = channel(t, 3);
  fs.writeFileSync(at("r", "0099-a-x.md"), "no header");
  fs.writeFileSync(at("r", "0002-carol-late.md"), "---\nseq: 2\nfrom: carol\n");
  ok(["cursor", "r", "--as", "bob", "--set", "all"]);
  assert.equal(cursor(), "3");
  assert.doesNotMatch(chat(["read", "r", "--as", "bob"]).stderr, /not believed/);
  fs.writeFileSync(at("r", "0002-carol-late.md"), message(2));
  ok(["cursor", "r", "--as", "bob", "--set", "all"]);
  assert.equal(cursor(), "1-1,3-3,0002-alice-t.md,0002-carol-late.md");
  assert.deepEqual(seqs(), []);
  fs.rmSync(at("r", "0001-alice-t.md"));
  ok(["cursor", "r", "--as", "bob", "--set", "all"]);
  fs.writeFileSync(at("r", "0001-dave-late.md"), message(1, "dave"));
  assert.deepEqual(seqs(), [1], "what comes later is new");
});

test("cursor: one that is not believed is said, and mended by hand", (t) => {
  const { ok, chat, file, cursor } = channel(t, 2);
  for (const [text, why] of [["abc", /holds "abc": it is not believed/], ["99", /reaches #99, and the newest message is #2/]] as const) {
    fs.writeFileSync(file, text);
    const { status, stdout, stderr } = chat(["cursor", "r", "--as", "bob"]);
    assert.equal(status, 0);
    assert.match(stdout, /shown 0; newest #2; 2 unread/);
    assert.match(stderr, why);
    assert.equal(cursor(), text);
    assert.equal(chat(["cursor", "r", "--as", "bob", "--set", "all"]).stderr, "");
    assert.equal(cursor(), "2");
  }
  ok(["read", "r", "--as", "bob"]);
});

test("cursor: moved by hand while others read, it is one of the sets that were asked for, grown", async (t) => {
  const { start, cursor, seqs, ok } = channel(t, 4);
  const moves = ["1-2", "3", "all", "none", "2-3"].map((set) => start(["cursor", "r", "--as", "bob", "--set", set]).ended);
  const reads = Array.from({ length: 8 }, () => start(["read", "r", "--as", "bob", "--max-bytes", "1"]).ended);
  for (const { status, stderr } of await Promise.all([...moves, ...reads])) assert.equal(status, 0, stderr);
  assert.notEqual(parseCursor(cursor()), undefined);
  ok(["cursor", "r", "--as", "bob", "--set", "1-3"]);
  assert.deepEqual(seqs(), [4]);
});

test("cursor: somebody new in a channel of more than two budgets is told once how to skip it", (t) => {
  const { ok, chat, file } = channel(t, 0);
  const hint = /messages? of [\d,]+ bytes came before you; to count them as shown: agent-chat cursor r --set all --as bob --root /;
  const read = (...args: string[]): string => chat(["read", "r", "--as", "bob", ...args]).stderr;
  const post = (bytes: number, ...more: string[]): string => ok(["post", "r", "--from", "alice", "--title", "t", "--body", "x".repeat(bytes - 1), ...more]);
  for (let i = 0; i < 2; i++) post(24_000);
  assert.doesNotMatch(read("--peek"), /came before you/, "two budgets are not more than two");
  post(24_000, "--to", "carol");
  assert.doesNotMatch(read("--peek"), /came before you/, "what is for others is not read");
  post(2);
  assert.match(read("--peek"), /agent-chat: 3 messages of 48,002 bytes came before you/);
  assert.match(read("--peek"), hint);
  assert.doesNotMatch(read("--peek", "--json"), /came before you/, "a program is shown all of it");
  assert.doesNotMatch(chat(["read", "r", "--all", "--as", "bob"]).stderr + chat(["wait", "r", "--as", "dave", "--timeout", "0"]).stderr, /came before you/);
  assert.doesNotMatch(read("--peek", "--max-bytes", "30000"), /came before you/, "a larger budget was asked for");
  const command = hint.exec(read())![0].replace(/^.*agent-chat /, "").replace(/ --root $/, "");
  assert.ok(fs.existsSync(file));
  assert.doesNotMatch(read("--peek"), /came before you/, "who has read is not new");
  ok(command.split(" "));
  assert.match(read(), /nothing new for bob/);
  fs.rmSync(file);
  ok(["cursor", "r", "--as", "bob", "--set", "none"]);
  assert.doesNotMatch(read("--peek"), /came before you/, "who asked to see it all is not new");
  fs.rmSync(file);
  assert.match(read("--peek", "--max-bytes", "20000"), hint);
});
