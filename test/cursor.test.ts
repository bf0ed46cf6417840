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
  for (const name of ["dev.a", "dév", "开发", "a--b", "a b", "x".repeat(41), "all", "con", "-a", "a-", ""]) {
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
