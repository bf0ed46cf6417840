import assert from "node:assert/strict";
import fs from "node:fs";
import { test, type TestContext } from "node:test";
import * as chat from "../chat.ts";
import { sandbox } from "./helpers.ts";

async function channel(t: TestContext): Promise<chat.Channel> {
  const { root } = sandbox(t);
  return chat.createChannel(root, "r", { members: ["alice", "bob"] });
}

test("library: post, read, mark, wait and claim do what the commands do", async (t) => {
  const review = await channel(t);
  assert.deepEqual(chat.listChannels(review.root), [review]);
  assert.deepEqual(chat.openChannel(review.root, "R"), review);
  const { message, bytes, lines, notes } = await chat.post(review, { from: "alice", to: ["bob"], title: "t", body: "hi\nyou" });
  assert.deepEqual([message.seq, message.file, bytes, lines, notes], [1, "0001-alice-t.md", 6, 2, []]);
  const batch = chat.read(review, "bob");
  assert.deepEqual(batch.messages.map(({ body }) => body), ["hi\nyou\n"]);
  assert.equal(chat.read(review, "bob").messages.length, 1, "read marks nothing");
  await chat.mark(batch, batch.messages);
  assert.equal(chat.read(review, "bob").messages.length, 0);
  const waiting = chat.wait([review], "bob", { timeout: 5, interval: 0.02 });
  await chat.post(review, { from: "alice", body: "again" });
  assert.equal((await waiting)[0]!.messages[0]!.title, "again");
  fs.writeFileSync(`${review.path}/task-1.md`, "");
  assert.equal((await chat.claim(review, "bob", "1")).file, "task-1.CLAIMED-bob.md");
  assert.equal(chat.lastMessages(review, 1).messages[0]!.seq, 2);
});

test("library: everything that cannot be done is a ChatError with a stable code", async (t) => {
  const review = await channel(t);
  const cases: [() => unknown, chat.ErrorCode][] = [
    [() => chat.openChannel(review.root, "none"), "no_channel"],
    [() => chat.openChannel(review.root, "../r"), "bad_name"],
    [() => chat.createChannel(review.root, "r"), "channel_exists"],
    [() => chat.post(review, { from: "a b", body: "x" }), "bad_name"],
    [() => chat.post(review, { from: "alice", body: " " }), "no_body"],
    [() => chat.post(review, { from: "alice", body: "a\ud800" }), "bad_body"],
    [() => chat.post(review, { from: "alice", body: "x".repeat(1048577) }), "too_big"],
    [() => chat.post(review, { from: "alice", body: "x", to: ["bbo"] }), "unknown_recipient"],
    [() => chat.post(review, { from: "alice", body: "x", to: ["alice"] }), "only_self"],
    [() => chat.post(review, { from: "alice", body: "x", reply: 9 }), "no_message"],
    [() => chat.wait([review], "bob", { timeout: 0 }), "timeout"],
    [() => chat.claim(review, "bob", "9"), "no_task"],
    [() => chat.read({ ...review, path: `${review.path}x` }, "bob"), "gone"],
    [() => chat.post({ ...review, path: `${review.path}x` }, { from: "alice", body: "x" }), "gone"],
  ];
  for (const [action, code] of cases) {
    await assert.rejects(async () => action(), (error) => error instanceof chat.ChatError && error.code === code && error.message !== "", code);
  }
  assert.deepEqual(fs.readdirSync(review.path).sort(), [".cursors", "_meta.json"]);
});

test("library: nothing is written to stdout or stderr", async (t) => {
  const review = await channel(t);
  const written: unknown[] = [];
  const real = fs.writeSync;
  t.mock.method(process.stdout, "write", (text: string) => written.push(text) > 0);
  t.mock.method(process.stderr, "write", (text: string) => written.push(text) > 0);
  t.mock.method(fs, "writeSync", ((fd: number, ...rest: [Uint8Array]) => (fd < 3 ? written.push(fd) : real(fd, ...rest))) as typeof fs.writeSync);
  fs.writeFileSync(`${review.path}/0001-a-x.md`, "torn");
  await chat.post(review, { from: "carol", to: ["bob"], body: "x" });
  await chat.mark(chat.read(review, "bob"), []);
  await assert.rejects(chat.claim(review, "bob", "9"));
  t.mock.restoreAll();
  assert.deepEqual(written, []);
});

test("library: a signal that is already aborted stops a post before anything is done", async (t) => {
  const review = await channel(t);
  await assert.rejects(chat.post(review, { from: "alice", body: "x" }, { signal: AbortSignal.abort(new Error("no")) }), { message: "no" });
  assert.equal(chat.lastMessages(review, 9).messages.length, 0);
});

test("library: a listing that missed an entry is taken once more", async (t) => {
  const review = await channel(t);
  for (const body of ["1", "2", "3"]) await chat.post(review, { from: "alice", body });
  const real = fs.readdirSync;
  let calls = 0;
  t.mock.method(fs, "readdirSync", ((folder: string) => {
    const names = real(folder);
    return folder === review.path && calls++ === 0 ? names.filter((name) => !name.startsWith("0002")) : names;
  }) as typeof fs.readdirSync);
  const batch = chat.read(review, "bob");
  t.mock.restoreAll();
  assert.deepEqual([calls, batch.messages.map(({ seq }) => seq)], [2, [1, 2, 3]]);
});

test("library: where there are no hard links a post still appears whole, numbered, and replaces nothing", async (t) => {
  const review = await channel(t);
  t.mock.method(fs, "linkSync", () => {
    throw Object.assign(new Error("EPERM: operation not permitted, link"), { code: "EPERM", syscall: "link" });
  });
  fs.writeFileSync(`${review.path}/0001-alice-t.md`, "mine");
  const posted = await Promise.all(["a", "b", "c"].map((body) => chat.post(review, { from: "alice", title: "t", body })));
  t.mock.restoreAll();
  assert.deepEqual(posted.map(({ message }) => message.seq).sort(), [2, 3, 4]);
  assert.equal(fs.readFileSync(`${review.path}/0001-alice-t.md`, "utf8"), "mine");
  assert.deepEqual(chat.lastMessages(review, 9).messages.map(({ body }) => body).sort(), ["a\n", "b\n", "c\n"]);
});
