import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
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

/** What a caller without types may give. */
function untyped(review: chat.Channel): [() => unknown, string][] {
  const call = chat as unknown as Record<string, (...args: unknown[]) => unknown>;
  return [
    [() => call["post"]!(review, { from: "alice", body: "x", to: "bob" }), "bad_value"],
    [() => call["post"]!(review, { from: "alice" }), "no_body"],
    [() => call["post"]!(review, { body: "x" }), "bad_name"],
    [() => call["post"]!(review, { from: "alice", body: "x", to: [7] }), "bad_value"],
    [() => call["read"]!(review), "bad_name"],
    [() => call["wait"]!([review], "bob", { from: "alice", timeout: 0 }), "bad_value"],
    [() => call["createChannel"]!(review.root, "q", { members: "alice" }), "bad_value"],
    [() => call["claim"]!(review, "bob", 9), "no_task"],
    [() => call["claim"]!(review, "bob", {}), "bad_name"],
  ];
}

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
    [() => chat.openChannel("", "r"), "bad_value"],
    [() => chat.createChannel(" ", "q"), "bad_value"],
    [() => chat.setStatus(review, "bob", { status: " ", seconds: 10 }), "bad_value"],
    ...(untyped(review) as [() => unknown, chat.ErrorCode][]),
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
  const failing = (code: string, syscall: string): never => {
    throw Object.assign(new Error(`${code}: not so, ${syscall}`), { code, syscall });
  };
  t.mock.method(fs, "linkSync", (_: string, to: string) => {
    if (path.basename(to) === "0001-alice-t.md") fs.writeFileSync(to, "mine"); // after the listing, by who takes no lock
    failing("EPERM", "link");
  });
  const posted = await Promise.all(["a", "b", "c"].map((body) => chat.post(review, { from: "alice", title: "t", body })));
  const { renameSync } = fs;
  t.mock.method(fs, "renameSync", (from: string, to: string) => (/0005/.test(to) ? failing("EIO", "rename") : renameSync(from, to)));
  await assert.rejects(chat.post(review, { from: "alice", title: "t", body: "d" }), { code: "io" });
  assert.ok(!fs.existsSync(`${review.path}/0005-alice-t.md`), "the name that was reserved is free again");
  t.mock.restoreAll();
  assert.deepEqual(posted.map(({ message }) => message.seq).sort(), [2, 3, 4]);
  assert.equal(fs.readFileSync(`${review.path}/0001-alice-t.md`, "utf8"), "mine");
  assert.deepEqual(chat.lastMessages(review, 9).messages.map(({ body }) => body).sort(), ["a\n", "b\n", "c\n"]);
});

test("library: a signal's reason is what is thrown, whatever it is, and an aborted createChannel makes nothing", async (t) => {
  const review = await channel(t);
  const reasons = [null, "no", new Error("no")];
  for (const reason of reasons) {
    const signal = AbortSignal.abort(reason);
    for (const action of [
      () => chat.post(review, { from: "alice", body: "x" }, { signal }),
      () => chat.createChannel(review.root, "new", { signal }),
      () => chat.wait([review], "bob", { signal }),
    ]) {
      const thrown = await action().then(() => "nothing", (error: unknown) => error);
      assert.equal(thrown, reason, String(action));
    }
  }
  assert.deepEqual(fs.readdirSync(review.root).sort(), [".gitattributes", ".gitignore", "r"]);
});

test("library: channels made at once in a root that is not there yet are all made", async (t) => {
  const { root } = sandbox(t);
  const real = fs.mkdirSync;
  t.mock.method(fs, "mkdirSync", ((folder: string) => {
    real(folder);
    if (!folder.endsWith(".lock")) real(folder); // somebody else was quicker by this much: EEXIST
  }) as typeof fs.mkdirSync);
  const made = await chat.createChannel(`${root}/a/b`, "r");
  t.mock.restoreAll();
  assert.deepEqual(chat.listChannels(`${root}/a/b`), [made]);
});

test("library: a channel has the name of its folder, where the disk takes other cases and forms for the same", async (t) => {
  const review = await channel(t);
  fs.cpSync(review.path, `${review.root}/Cafe\u0301`, { recursive: true });
  const real = fs.lstatSync;
  t.mock.method(fs, "lstatSync", ((file: string, how?: fs.StatSyncOptions) =>
    real(file.replace("/R/", "/r/").replace(/\/caf\u00e9\//i, "/Cafe\u0301/"), how)) as typeof fs.lstatSync);
  const names = ["R", "r", "Caf\u00e9", "CAF\u00c9"].map((name) => chat.openChannel(review.root, name).name);
  t.mock.restoreAll();
  assert.deepEqual(names, ["r", "r", "Cafe\u0301", "Cafe\u0301"]);
});

test("library: a time that is no number of seconds is a bad_value, and neither steals nor says anything", async (t) => {
  const review = await channel(t);
  await chat.createTask(review, { from: "alice", title: "t" });
  await chat.claim(review, "alice", "1");
  for (const time of [NaN, -1, Infinity, 1e300]) {
    const actions = [
      () => chat.setStatus(review, "bob", { status: "busy", seconds: time }),
      () => chat.claim(review, "bob", "1", { older: time }),
      () => chat.claimNext(review, "bob", { older: time }),
      () => chat.claimLater(review, "bob", "1", { older: time, timeout: 0 }),
      () => chat.wait([review], "bob", { timeout: time }),
    ];
    for (const action of actions) await assert.rejects(action, { code: "bad_value" }, `${time} ${action}`);
  }
  assert.equal(chat.listTasks(review)[0]!.owner, "alice");
  assert.equal(chat.currentStatus(review, "bob"), undefined);
  const long = 999_999 * 86_400; // what commands take
  await assert.rejects(chat.claim(review, "bob", "1", { older: long }), { code: "not_stale" });
  assert.match((await chat.setStatus(review, "bob", { status: "busy", seconds: long }))!.until, /^4\d{3}-/);
});

/** A channel in which two messages had #1, settled. */
async function renumbered(t: TestContext): Promise<chat.Channel> {
  const review = await channel(t);
  const text = (body: string): Buffer => Buffer.concat([Buffer.from("---\nseq: 1\nfrom: bob\n---\n"), Buffer.from(body, "latin1")]);
  fs.writeFileSync(`${review.path}/0001-bob-a.md`, text("a\n"));
  fs.writeFileSync(`${review.path}/0001-bob-b.md`, text("\xc3\xa9 \xff _files/0001/x\n"));
  await chat.renumber(review);
  return review;
}

test("renumber: a body that is not UTF-8 keeps its bytes", async (t) => {
  const review = await renumbered(t);
  const bytes = fs.readFileSync(`${review.path}/0002-bob-b.md`, "latin1");
  assert.equal(bytes, "---\nseq: 2\nfrom: bob\nwas: 1\n---\n\xc3\xa9 \xff _files/0001/x\n");
});

test("renumber: what was moved twice is named by where it is now", async (t) => {
  const review = await renumbered(t);
  fs.writeFileSync(`${review.path}/0002-bob-a.md`, "---\nseq: 2\nfrom: bob\n---\na\n");
  await chat.renumber(review);
  const { notes } = await chat.post(review, { from: "alice", body: "x", reply: 1 });
  assert.deepEqual(notes, ["what was 0001-bob-b.md is 0003-bob-b.md now"]);
});

test("renumber: one under way that cannot be read stops who gives numbers or marks, and no reader", async (t) => {
  const review = await channel(t);
  await chat.post(review, { from: "alice", body: "x" });
  const batch = chat.read(review, "bob");
  fs.writeFileSync(`${review.path}/.cursors/.moving`, JSON.stringify({ id: "i", moves: [], shared: [], fresh: [] }));
  const real = fs.openSync;
  const read = fs.readFileSync;
  const refuse = (file: unknown): void => {
    if (!String(file).endsWith(".moving")) return;
    throw Object.assign(new Error("EACCES: permission denied, open"), { code: "EACCES", syscall: "open", path: String(file) });
  };
  t.mock.method(fs, "openSync", ((...args: Parameters<typeof fs.openSync>) => (refuse(args[0]), real(...args))) as typeof fs.openSync);
  t.mock.method(fs, "readFileSync", ((...args: Parameters<typeof fs.readFileSync>) => (refuse(args[0]), read(...args))) as typeof fs.readFileSync);
  const seen = chat.read(review, "bob").messages.length;
  const actions = [
    () => chat.post(review, { from: "alice", body: "y" }),
    () => chat.mark(batch, batch.messages),
    () => chat.setCursor(review, "bob", "all"),
    () => chat.renumber(review),
  ];
  for (const action of actions) await assert.rejects(action, { code: "no_access" }, String(action));
  t.mock.restoreAll();
  assert.equal(seen, 1);
  assert.deepEqual(fs.readdirSync(review.path).sort(), ["0001-alice-x.md", ".cursors", "_meta.json"].sort());
  assert.deepEqual(fs.readdirSync(`${review.path}/.cursors`), [".moving"]);
});

test("library: a record of changes that cannot be read is a ChatError for readers", async (t) => {
  const review = await renumbered(t);
  const real = fs.readFileSync;
  t.mock.method(fs, "readFileSync", ((...args: Parameters<typeof fs.readFileSync>) => {
    if (!String(args[0]).endsWith(".moved")) return real(...args);
    throw Object.assign(new Error("EIO: i/o error, read"), { code: "EIO", syscall: "read" });
  }) as typeof fs.readFileSync);
  fs.writeFileSync(`${review.path}/.cursors/bob.txt`, "1");
  const actions = [() => chat.read(review, "carol"), () => chat.position(review, "carol")];
  fs.writeFileSync(`${review.path}/.cursors/carol.txt`, "1");
  for (const action of actions) assert.throws(action, { code: "io" });
  t.mock.restoreAll();
});

test("post: a file that bears a recipient's name and cannot be read stops neither a post to them nor a wait for them", async (t) => {
  const { root } = sandbox(t);
  const open = await chat.createChannel(root, "open");
  await chat.post(open, { from: "carl", body: "x" });
  const real = fs.openSync;
  t.mock.method(fs, "openSync", ((...args: Parameters<typeof fs.openSync>) => {
    if (!String(args[0]).includes("-carl-")) return real(...args);
    throw Object.assign(new Error("EACCES: permission denied, open"), { code: "EACCES", syscall: "open" });
  }) as typeof fs.openSync);
  const { message, notes } = await chat.post(open, { from: "alice", to: ["carl"], body: "y" });
  const other = await chat.post(open, { from: "alice", to: ["dora"], body: "y" });
  t.mock.restoreAll();
  assert.deepEqual([message.seq, message.to, notes], [2, ["carl"], []]);
  assert.deepEqual(other.notes, ['"dora" has never posted or read in "open"']);
});

test("library: one signal may stop any number of calls, and Node warns of nothing", async (t) => {
  const review = await channel(t);
  const warned = t.mock.method(process, "emitWarning", () => {});
  const stop = new AbortController();
  fs.mkdirSync(`${review.path}/_seq.lock`);
  const posts = Array.from({ length: 20 }, () => chat.post(review, { from: "alice", body: "x" }, { signal: stop.signal }));
  const waits = Array.from({ length: 20 }, () => chat.wait([review], "bob", { signal: stop.signal }));
  setTimeout(() => stop.abort(), 10);
  for (const { status } of await Promise.allSettled([...posts, ...waits])) assert.equal(status, "rejected");
  t.mock.restoreAll();
  assert.deepEqual(warned.mock.calls.map(({ arguments: [warning] }) => String(warning)), []);
});
