// The life of a task (SPEC 7): made, listed, claimed, finished, released, stolen, waited for; slots, pauses, and what
// people and clones leave on a board.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import fs from "node:fs";
import { test, type TestContext } from "node:test";
import { claim, claimLater, claimNext, createTask, lastMessages, listTasks, openChannel, wait, type Message, type NewTask, type Presence, type Task } from "../chat.ts";
import { BIN, cleanEnv, listening, random, REFERENCE, rows, sandbox, until, watchChild, type Result, type Running } from "./helpers.ts";

const SEED = Number(process.env["SEED"] ?? Date.now() % 1e9);
const HOUR_MS = 3_600_000;

const board = (t: TestContext, ...tasks: string[]) => {
  const box = sandbox(t);
  const { ok, chat, at } = box;
  ok(["init", "r"]);
  const text = (file: string): string => fs.readFileSync(at("r", file), "utf8");
  const record = (id: string, agent: string): string => at("r", ".tasks", `${id}.${agent}.json`);
  const put = (file: string, body = `do ${file}\n`): void => fs.writeFileSync(at("r", file), body);
  for (const task of tasks) put(task);
  return {
    ...box,
    put,
    text,
    files: () => fs.readdirSync(at("r")).filter((name) => name.startsWith("task-")).sort(),
    list: (...args: string[]) => rows<Task>(ok(["tasks", "r", "--json", ...args])),
    messages: () => lastMessages(openChannel(box.root, "r"), 1000).messages,
    /** Everything in the channel, to see that nothing was changed. */
    all: () =>
      (fs.readdirSync(at("r"), { recursive: true }) as string[])
        .sort()
        .map((name) => `${name} ${fs.lstatSync(at("r", name)).isFile() ? text(name) : ""}`),
    /** Makes a claim, and all that was heard of its owner, so many hours older. */
    age: (id: string, agent: string, hours: number): void => {
      const then = new Date(Date.now() - hours * HOUR_MS);
      const old = JSON.parse(fs.readFileSync(record(id, agent), "utf8")) as object;
      fs.writeFileSync(record(id, agent), JSON.stringify({ ...old, since: then.toISOString() }));
      const cursor = at("r", ".cursors", `${agent}.txt`);
      if (fs.existsSync(cursor)) fs.utimesSync(cursor, then, then);
    },
    /** Runs it and expects this exit code and this error; returns what it says. */
    fails: (status: number, code: string, ...args: string[]): string => {
      const result = chat([...args, "--json"]);
      const { error } = JSON.parse(result.stderr.trim().split("\n").at(-1) ?? "") as { error: { code: string; message: string } };
      assert.deepEqual([result.status, error.code, result.stdout], [status, code, ""], `${args.join(" ")}: ${result.stderr}`);
      return error.message;
    },
  };
};

const HEADER = (fields: Readonly<Record<string, string>>, body = ""): string =>
  `---\n${Object.entries(fields).map(([key, value]) => `${key}: ${value}\n`).join("")}---\n${body}`;

// ---- making

test("task: the file is a header like a message's, then the body", (t) => {
  const { ok, text, at, put } = board(t);
  put("task-3.md");
  put("task-4.md");
  const made = ok(["task", "r", "Fix: the login", "--as", "Alice", "--for", "@Bob,carol", "--after", "3,task-4.md", "--priority", "high", "--body", "and\nmore"]);
  assert.equal(made, `created task-5\n  ${at("r", "task-5.md")}\n`);
  const [head, body] = text("task-5.md").split("\n---\n");
  assert.match(head!, /^---\ntask: 5\nfrom: alice\nts: [\dT:+-]+\ntitle: "Fix: the login"\nfor: bob, carol\nafter: 3, 4\npriority: high$/);
  assert.equal(body, "and\nmore\n");
  ok(["task", "r", "two\nlines \x1b[31m\u2028of it", "--as", "alice", "--body", "-", "--id", "t"], { stdin: "from stdin" });
  assert.match(text("task-t.md"), /\ntitle: "two lines \\u001b\[31m of it"\n---\nfrom stdin\n$/);
  assert.match(ok(["tasks", "r"]), /task-t {2}two lines \\x1b\[31m of it; from alice\n/);
});

test("task: a title may begin with a dash, wherever the options stand", (t) => {
  const { ok, list, fails } = board(t);
  ok(["task", "r", "-5 tests fail", "--as", "alice"]);
  ok(["task", "--as", "alice", "r", "--- a/file=x"]);
  ok(["task", "--priority", "high", "r", "--force is = ignored", "--as", "alice", "--body", "-- b"]);
  ok(["task", "--as", "alice", "r", "--", "--force"]);
  assert.deepEqual(list().map(({ title }) => title), ["-5 tests fail", "--- a/file=x", "--force is = ignored", "--force"]);
  fails(64, "usage", "task", "--as", "alice", "-5 tests", "r", "more");
  fails(64, "bad_name", "task", "--as", "alice", "-5 tests", "r"); // the first is the channel
  fails(64, "usage", "task", "r", "--focre", "--as", "alice");
});

test("task: takes the next number over all states, and is refused while its name is there in any state", (t) => {
  const { ok, put, files, fails, at } = board(t, "task-2.md", "task-7.CLAIMED-bob.md", "task-11.DONE-bob.md", "task-x30.md", "task-12-b.md");
  const make = (...args: string[]): string => ok(["task", "r", "x", "--as", "alice", ...args]).split("\n")[0]!;
  assert.equal(make(), "created task-12");
  put("task-20.CLAIMED-Bob_Odd.md");
  assert.equal(make(), "created task-21");
  put("task-30.txt"); // anything that bears the name
  fs.mkdirSync(at("r", "task-40.d"));
  assert.equal(make(), "created task-41");
  assert.equal(make("--id", "fix-Login"), "created task-fix-Login");
  const before = files();
  for (const id of ["2", "task-7", "11", "12-B", "FIX-login", "30", "40", "task-20.md", "020", "012-b"]) {
    assert.match(fails(1, "task_exists", "task", "r", "x", "--as", "alice", "--id", id), /is there already: .*; nothing was made/);
  }
  assert.deepEqual(files(), before);
});

test("task: bad ids, unknown or cyclic --after, bad names: clear errors, nothing changed", async (t) => {
  const { ok, put, fails, chat, all, root } = board(t, "task-1.md");
  put("task-2.md", HEADER({ after: "3" }));
  put("task-4.md", HEADER({ after: "[2, task-9]" }));
  ok(["task", "r", "the port", "--as", "alice", "--id", "port", "--slot"]);
  ok(["init", "closed", "--members", "alice,bob"]);
  const before = all();
  const make = (status: number, code: string, ...args: string[]): string => fails(status, code, "task", "r", "x", "--as", "alice", ...args);
  for (const option of ["--id", "--after", "--for"]) for (const value of ["", "../x"]) assert.match(make(64, "bad_name", option, value), /is not a/);
  const refused = (code: string, wish: Partial<NewTask>): Promise<void> => assert.rejects(createTask(openChannel(root, "r"), { from: "alice", title: "x", ...wish }), { code }, JSON.stringify(wish));
  for (const id of ["a/b", "-x", "x-", "a b", "con", "x".repeat(65), "a.b", "ü"]) await refused("bad_name", { id });
  for (const after of ["../1", "1 2", ","]) await refused("bad_name", { after: ["1", after] });
  for (const name of ["a b", "con", "n".repeat(41), ""]) await refused("bad_name", { for: ["bob", name] });
  for (const title of ["", " \n\u2028 "]) await refused("bad_value", { title });
  await refused("too_big", { title: "x".repeat(1001) });
  await refused("bad_body", { body: "a\0b" });
  await refused("no_body", { body: " \n" });
  assert.match(make(1, "no_task", "--after", "1,8"), /no task "8" in .*; open: 1/);
  assert.match(make(64, "bad_value", "--id", "3", "--after", "3"), /task-3 would wait for itself; nothing was made/);
  assert.match(make(64, "bad_value", "--id", "3", "--after", "1,2"), /task-3 would wait for itself/); // 2 comes after 3
  assert.match(make(64, "bad_value", "--id", "3", "--after", "4"), /task-3 would wait for itself/); // and 4 after 2
  assert.match(make(64, "bad_value", "--id", "9", "--after", "4"), /task-9 would wait for itself/);
  assert.match(make(64, "bad_value", "--after", "1,port"), /task-port is a slot, and never done; nothing was made/);
  make(64, "bad_value", "--priority", "urgent");
  fails(64, "bad_value", "task", "r", " ", "--as", "alice");
  fails(64, "bad_name", "task", "r", "x", "--as", "al ice");
  fails(64, "no_name", "task", "r", "x");
  fails(1, "unknown_recipient", "task", "closed", "x", "--as", "alice", "--for", "bbo");
  const { stderr } = chat(["task", "closed", "x", "--as", "alice", "--for", "dora"]); // task has no --force
  assert.match(stderr, /"dora" is not known .*\n  try: agent-chat join closed --as dora\b/);
  for (const time of ["2", "0s", ""]) {
    fails(64, "bad_value", "claim", "r", "1", "--as", "alice", "--steal", "--older-than", time);
    fails(64, "bad_value", "tasks", "r", "--stale", time);
  }
  for (const wrong of [["claim", "r"], ["claim", "r", "1", "--next"], ["claim", "r", "1", "--steal"], ["claim", "r", "1", "--timeout", "2"]]) {
    fails(64, "usage", ...wrong, "--as", "alice");
  }
  assert.deepEqual(all(), before);
});

test("task: made by twenty at once they have twenty numbers", async (t) => {
  const { start, files, text } = board(t);
  const made = Array.from({ length: 20 }, (_, i) => start(["task", "r", `title ${i}`, "--as", `w${i}`]).ended);
  const ids = (await Promise.all(made)).map(({ stdout }) => Number(/^created task-(\d+)\n/.exec(stdout)?.[1]));
  assert.deepEqual([...ids].sort((a, b) => a - b), Array.from({ length: 20 }, (_, i) => i + 1));
  assert.deepEqual(files(), ids.map((id) => `task-${id}.md`).sort());
  ids.forEach((id, i) => assert.match(text(`task-${id}.md`), new RegExp(`task: ${id}\nfrom: w${i}\n[^]*title: title ${i}\n`)));
});

// ---- listing

test("task: after one of the last number the next is refused, and one with an id is not", (t) => {
  const { ok, chat, files } = board(t);
  ok(["task", "r", "x", "--as", "alice", "--id", "9999999999999999"]); // of more digits: no number
  ok(["task", "r", "x", "--as", "alice", "--id", "999999999999998"]);
  assert.match(ok(["task", "r", "x", "--as", "alice"]), /^created task-999999999999999\n/);
  const before = files();
  const { status, stderr } = chat(["task", "r", "x", "--as", "alice"]);
  assert.equal(status, 1);
  assert.match(stderr, /has a task of the last number, 999999999999999\n {2}try: give this one an --id\n/);
  assert.deepEqual(files(), before);
  ok(["task", "r", "x", "--as", "alice", "--id", "y"]);
});

test("tasks: ages are those that were recorded, whatever the dates of the files say", (t) => {
  const { ok, age, at, list } = board(t, "task-1.md", "task-2.md");
  for (const [id, as] of [["1", "bob"], ["2", "carol"]] as const) ok(["claim", "r", id, "--as", as]);
  age("1", "bob", 5);
  const old = new Date(Date.now() - 99 * HOUR_MS);
  for (const file of ["task-2.CLAIMED-carol.md", ".tasks/2.carol.json", ".tasks"]) fs.utimesSync(at("r", file), old, old);
  const [one, two] = list().map(({ since }) => (Date.now() - Date.parse(since!)) / HOUR_MS);
  assert.ok(Math.abs(one! - 5) < 0.1 && Math.abs(two!) < 0.1, `${one} ${two}`);
  assert.match(ok(["tasks", "r"]), /task-1 {2}do task-1\.md; bob since .*, 5 h ago/);
  assert.deepEqual(list("--stale", "2h").map(({ task }) => task), ["1"]);
  assert.deepEqual(list("--stale", "6h"), []);
  ok(["done", "r", "1", "--as", "bob"]);
  assert.ok(Date.now() - Date.parse(list()[0]!.since!) < HOUR_MS); // when it was finished
  fs.renameSync(at("r", "task-1.DONE-bob.md"), at("r", "task-1.CLAIMED-bob.md"));
  assert.equal(list()[0]!.since, null, "a record of another state tells nothing of this one");
});

test("tasks: one that two clones claimed is there with both owners, and named", (t) => {
  const { chat, list, files, ok, at } = board(t, "task-6.md", "task-7.CLAIMED-alice.md", "task-7.CLAIMED-bob.md", "task-8.DONE-alice.md", "task-8.CLAIMED-bob.md");
  assert.deepEqual(list().map(({ task, state, owner }) => [task, state, owner]), [
    ["6", "open", null],
    ["7", "claimed", "alice"],
    ["7", "claimed", "bob"],
    ["8", "claimed", "bob"],
    ["8", "done", "alice"],
  ]);
  const { stdout, stderr } = chat(["tasks", "r"]);
  assert.match(stdout, /1 open, 0 blocked, 3 claimed, 1 done/);
  assert.match(stdout, /claimed {2}task-7 .*; alice/);
  assert.match(stdout, /claimed {2}task-7 .*; bob/);
  assert.match(stderr, /task-7 is there 2 times: task-7\.CLAIMED-alice\.md, task-7\.CLAIMED-bob\.md; to settle it: agent-chat release r 7 --as alice$/m);
  assert.match(stderr, /task-8 is there 2 times/);
  const before = files();
  for (const args of [["7"], ["--next", "--steal", "--older-than", "1s"], ["7", "--steal", "--older-than", "1s"]]) chat(["claim", "r", ...args, "--as", "carol"]);
  assert.deepEqual(files(), before.map((name) => name.replace("task-6.md", "task-6.CLAIMED-carol.md"))); // the torn one is nobody's to take
  ok(["release", "r", "7", "--as", "bob"]); // one of them gives in
  assert.equal(chat(["claim", "r", "7", "--as", "carol"]).status, 3);
  ok(["done", "r", "7", "--as", "alice"]);
  assert.deepEqual(list().filter(({ task }) => task === "7").map(({ state, owner }) => [state, owner]), [["done", "alice"]]);
  assert.equal(ok(["tasks", "r", "--open", "--json"]), "");
  const mend = /task-7 is there 2 times: .*; to settle it: rm (.*)$/m.exec(chat(["tasks", "r"]).stderr)![1]!;
  assert.equal(mend, at("r", "task-7.md"));
  fs.rmSync(mend);
  assert.doesNotMatch(chat(["tasks", "r"]).stderr, /task-7/);
});

test("tasks: --json has the keys that SPEC names, and so has every change", (t) => {
  const { ok, list, at, put, messages } = board(t);
  ok(["task", "r", "first", "--as", "alice"]);
  const second = rows(ok(["task", "r", "second", "--as", "alice", "--for", "bob,carol", "--after", "1", "--priority", "low", "--json"]))[0]!;
  const keys = ["channel", "task", "file", "path", "state", "title", "from", "for", "after", "priority", "owner", "since"];
  assert.deepEqual(Object.keys(second), keys);
  put("task-hand.md", "\n# By hand\nmore\n");
  const since = (one: Task | undefined): string => one!.since!;
  const [one, two, hand] = list();
  const path = (file: string): string => at("r", file);
  assert.deepEqual(one, { channel: "r", task: "1", file: "task-1.md", path: path("task-1.md"), state: "open", title: "first", from: "alice", for: [], after: [], priority: "normal", owner: null, since: since(one) });
  assert.deepEqual(two, { channel: "r", task: "2", file: "task-2.md", path: path("task-2.md"), state: "blocked", title: "second", from: "alice", for: ["bob", "carol"], after: ["1"], priority: "low", owner: null, since: since(two) });
  assert.deepEqual(hand, { channel: "r", task: "hand", file: "task-hand.md", path: path("task-hand.md"), state: "open", title: "By hand", from: "", for: [], after: [], priority: "normal", owner: null, since: null });
  const file = "task-1.CLAIMED-bob.md";
  assert.deepEqual(rows(ok(["claim", "r", "1", "--as", "bob", "--json"])), [{ channel: "r", task: "1", file, path: path(file), owner: "bob", already: false, from_file: "task-1.md" }]);
  assert.deepEqual(rows(ok(["claim", "r", "1", "--as", "bob", "--json"])), [{ channel: "r", task: "1", file, path: path(file), owner: "bob", already: true }]);
  ok(["status", "r", "--as", "bob", "--set", "busy"]);
  const [claimed, open] = rows<Task & { presence: Presence }>(ok(["tasks", "r", "--json"]));
  assert.deepEqual([Object.keys(claimed!), Object.keys(open!)], [[...keys, "presence"], keys]);
  assert.deepEqual([claimed!.presence.agent, claimed!.presence.waiting, claimed!.presence.status?.status], ["bob", null, "busy"]);
  const ended = rows<Task & { already: boolean; message: { seq: number; to: string[] } }>(ok(["done", "r", "1", "--as", "bob", "--json"]))[0]!;
  assert.deepEqual(Object.keys(ended), [...keys, "already", "from_file", "message"]);
  assert.equal(rows(ok(["done", "r", "1", "--as", "bob", "--json"]))[0]!["from_file"], undefined);
  assert.deepEqual([ended.state, ended.owner, ended.already, ended.message], ["done", "bob", false, { seq: 1, to: ["alice"] }]);
  assert.deepEqual(messages().map(({ task, status, from, to }) => [task, status, from, to]), [["1", "done", "bob", ["alice"]]]);
  const slot = rows(ok(["task", "r", "port", "--as", "alice", "--id", "port", "--slot", "--json"]))[0]!;
  assert.deepEqual([Object.keys(slot), slot["slot"]], [[...keys, "slot"], true]);
  assert.deepEqual(rows(ok(["pause", "r", "--as", "al", "--body", "why", "--json"])).map(Object.keys), [["channel", "from", "ts", "body"]]);
  assert.deepEqual(rows(ok(["resume", "r", "--json"])), [{ channel: "r", resumed: true }]);
  assert.deepEqual(rows(ok(["resume", "r", "--json"])), [{ channel: "r", resumed: false }]);
});

test("tasks: the filters, and a listing that fits on a screen", async (t) => {
  const { ok, list, put, start, age } = board(t);
  for (let i = 1; i <= 60; i++) put(`task-${i}.md`, HEADER(i > 40 ? { after: "1" } : i === 2 ? { for: "bob" } : {}, `${"long ".repeat(100)}\n`));
  for (let i = 70; i < 90; i++) put(`task-${i}.DONE-bob.md`);
  for (const id of ["3", "4"]) ok(["claim", "r", id, "--as", id === "3" ? "bob" : "carol"]);
  const ids = (...args: string[]): string => list(...args).map(({ task }) => task).join();
  assert.equal(list().length, 80);
  assert.equal(ids("--mine", "--as", "bob"), "2,3");
  assert.equal(ids("--mine", "--as", "dan"), "");
  assert.equal(list("--open").length, 38);
  assert.ok(list("--open").every(({ state }) => state === "open"));
  assert.equal(ids("--open", "--mine", "--as", "bob"), "2");
  const waiter = start(["wait", "r", "--as", "carol", "--timeout", "60"]);
  await listening(waiter);
  await until("carol waits", () => /task-4 .*carol since .* ago; waiting now\n/.test(ok(["tasks", "r"])));
  const lines = ok(["tasks", "r"]).split("\n");
  assert.equal(lines[0], "r: 38 open, 20 blocked, 2 claimed, 20 done");
  assert.ok(lines.length <= 40, `${lines.length} lines`);
  assert.ok(lines.every((line) => line.length <= 160), lines.find((line) => line.length > 160));
  for (const some of [["--mine", "--as", "dan"], ["--open"], ["--stale", "1d"]]) assert.ok(ok(["tasks", "r", ...some]).startsWith(`${lines[0]}\n`), `${some}`); // not as if the board were empty
  assert.match(lines.join("\n"), /\n {2}28 more open, 10 more blocked: --json has all\n$/);
  assert.match(lines.join("\n"), /\n {2}blocked {2}task-41 .*; after 1\n/);
  assert.match(lines.join("\n"), /\n {2}claimed {2}task-3 .*; bob since .* ago\n/); // he was heard of when he took it
  age("3", "bob", 1);
  assert.match(ok(["tasks", "r"]), /\n {2}claimed {2}task-3 .*; bob since .* ago; silent since \d\d:.*\n/);
  assert.match(lines.join("\n"), /\n {2}done {5}task-89 /);
});

test("tasks: hand-made ones are read as they are meant, and what is no file is no task", (t) => {
  const { ok, put, at, list, chat, files } = board(t);
  fs.mkdirSync(at("r", "task-0.md"));
  fs.symlinkSync("/etc/hostname", at("r", "task-00.md"));
  for (const odd of ["x-", "con", "a".repeat(65), "a.b", "-"]) put(`task-${odd}.md`); // no word of ours would finish them
  put("task-1.md", "");
  put("task-2.md", HEADER({ for: "all", priority: "High # now" }, "x\n"));
  put("task-3.md", HEADER({ for: `[a, "@Bob", 'ümlaut']`, after: "[task-1, 2]" }, "# y\n"));
  put("task-4.md", HEADER({ after: "4" }));
  put("task-5.md", "---\nfor:\n- bob\nafter:\n- 99\n---\nz\n");
  put("task-6.md", "\0\x1b[31m\xff".repeat(1000));
  put("task-all.md");
  put("task-7.md", HEADER({ after: "all" }));
  assert.deepEqual(list().map((one) => [one.task, one.state, one.priority, one.for.join(), one.after.join()]), [
    ["1", "open", "normal", "", ""],
    ["2", "open", "high", "", ""],
    ["3", "blocked", "normal", "a,@Bob,ümlaut", "1,2"],
    ["4", "blocked", "normal", "", "4"],
    ["5", "blocked", "normal", "bob", "99"],
    ["6", "open", "normal", "", ""],
    ["7", "blocked", "normal", "", "all"],
    ["all", "open", "normal", "", ""],
  ]);
  assert.ok(!/[\0\x1b]/.test(ok(["tasks", "r"])));
  const next = (): string => ok(["claim", "r", "--next", "--as", "bob"]).split("\n")[0]!;
  assert.equal(next(), "claimed task-2.md -> task-2.CLAIMED-bob.md"); // not the folder, and not the link
  assert.equal(next(), "claimed task-1.md -> task-1.CLAIMED-bob.md");
  for (const id of ["1", "2"]) ok(["done", "r", id, "--as", "bob"]);
  assert.equal(next(), "claimed task-3.md -> task-3.CLAIMED-bob.md");
  assert.equal(next(), "claimed task-6.md -> task-6.CLAIMED-bob.md");
  ok(["done", "r", "6", "--as", "bob"]);
  assert.equal(chat(["claim", "r", "7", "--as", "bob"]).status, 3);
  ok(["claim", "r", "all", "--as", "bob"]);
  ok(["done", "r", "all", "--as", "bob"]);
  assert.equal(next(), "claimed task-7.md -> task-7.CLAIMED-bob.md");
  assert.ok(files().includes("task-0.md") && files().includes("task-00.md"));
});

test("tasks: one that is half-written is for nobody yet, for the rest may say for whom it is", async (t) => {
  const { ok, fails, start, put, list, at } = board(t);
  for (const half of ["---", "---\r\n", "---\ntas", "---\ntask: 1\nfrom: alice\n", "\ufeff---\nfor: carol\n-"]) {
    put("task-1.md", half);
    assert.deepEqual(list().map(({ state, title }) => [state, title]), [["blocked", "(half-written: its header does not end)"]], half);
    fails(1, "no_task", "claim", "r", "--next", "--as", "bob");
    assert.match(fails(3, "blocked", "claim", "r", "1", "--as", "bob"), /^task-1 is half-written, its header does not end: /, half);
    fails(2, "timeout", "wait", "r", "--tasks", "--as", "bob", "--timeout", "0");
  }
  assert.match(ok(["tasks", "r"]), /\n {2}blocked {2}task-1 {2}\(half-written: its header does not end\)\n$/);
  put("task-2.md", "---\ntitle: (half-written: its header does not end)\nafter: 9\n---\n"); // only called so
  assert.match(fails(3, "blocked", "claim", "r", "2", "--as", "bob"), /^task-2 comes after task-9 \(not there\)/);
  const waiting = start(["claim", "r", "1", "--wait", "--as", "carol", "--timeout", "10"]);
  await until("it waits", () => fs.existsSync(at("r", ".cursors", "carol.wait")));
  put("task-1.md", "---\nfor: carol\n---\n");
  assert.equal((await waiting.ended).status, 0);
  for (const whole of ["---\n# no header, a line\n", "-- -\nfrom: x\n", "--- a/file\n+++ b/file\n"]) {
    put("task-2.md", whole);
    assert.equal(list().find(({ task }) => task === "2")?.state, "open", whole);
  }
});

test("tasks: one that cannot be read is said to be so, and is not the next", (t) => {
  const { ok, bash } = board(t, "task-1.md", "task-2.md");
  const { stdout } = bash(`chmod -R a+rwX "$AGENT_CHAT_ROOT"; chmod a+x "$AGENT_CHAT_ROOT/.."; chmod 0 "$AGENT_CHAT_ROOT/r/task-1.md"
    as() { setpriv --reuid 65534 --clear-groups "$@" 2>&1; }
    as true >/dev/null || { echo skip; exit; }
    as "${process.execPath}" "${BIN}" tasks r; as "${process.execPath}" "${BIN}" claim r --next --as bob; as "${process.execPath}" "${BIN}" claim r 1 --as bob`);
  if (stdout === "skip\n") return;
  assert.match(stdout, /blocked {2}task-1 {2}\(could not be read\)\n/);
  assert.match(stdout, /\nclaimed task-2.md -> .*\n.*\n.*could not claim a task of "r": permission denied/);
  assert.match(ok(["tasks", "r"]), /1 open, 0 blocked, 1 claimed/); // for root can read it
});

test("tasks: whoever mistyped their own name is told so before a task is theirs, done, made or waited for", (t) => {
  const { chat } = board(t, "task-1.md");
  chat(["join", "r", "--as", "bob"]);
  const told = /^agent-chat: "bbo" is not a member of "r"; did you mean "bob"\?\n/;
  const commands = [["wait", "r", "--tasks"], ["claim", "r", "1"], ["done", "r", "1"], ["task", "r", "x"], ["release", "r", "2"], ["status", "r", "--set", "busy"]];
  for (const command of commands) {
    assert.match(chat([...command, "--as", "bbo"]).stderr, told, command.join(" "));
    assert.doesNotMatch(chat([...command, "--as", "build-server"]).stderr, /did you mean/, command.join(" "));
  }
});

// ---- done, release

test("done: the task's file takes its last name, and its author is told, once", async (t) => {
  const { ok, start, put, files, text, messages, fails } = board(t);
  ok(["task", "r", "Fix it", "--as", "alice", "--body", "now"]);
  const before = text("task-1.md");
  fails(1, "not_claimed", "done", "r", "1", "--as", "bob");
  fails(1, "no_task", "done", "r", "2", "--as", "bob");
  ok(["claim", "r", "1", "--as", "bob"]);
  const said = ok(["done", "r", "task-1.md", "--as", "bob", "--body", "merged"]);
  assert.match(said, /^done task-1\.CLAIMED-bob\.md -> task-1\.DONE-bob\.md\n {2}.*task-1\.DONE-bob\.md\n {2}posted #1 to alice\n$/);
  assert.deepEqual(files(), ["task-1.DONE-bob.md"]);
  assert.equal(text("task-1.DONE-bob.md"), before);
  const again = await Promise.all(Array.from({ length: 4 }, () => start(["done", "r", "1", "--as", "bob", "--body", "more"]).ended));
  for (const { status, stdout } of again) assert.deepEqual([status, stdout.split(":")[0]], [0, "already so"]);
  const told = messages();
  assert.deepEqual(told.map(({ from, to, status, task, body }) => [from, to, status, task, body]), [["bob", ["alice"], "done", "1", "merged\n"]]);
  for (const [id, from] of [["2", "bob"], ["3", "all"], ["4", "Ö_x"], ["5", ""]]) { // nobody else to tell: everybody
    put(`task-${id}.md`, HEADER({ from: from!, title: "t" }));
    ok(["claim", "r", id!, "--as", "bob"]);
    ok(["done", "r", id!, "--as", "bob"]);
    assert.deepEqual(messages().at(-1)!.to, [], from);
  }
  fails(3, "taken", "release", "r", "1", "--as", "bob"); // what is finished stays so
});

test("done: what a process did not live to tell is told by the next try, once", (t) => {
  const { ok, messages, at, files } = board(t);
  for (const title of ["a", "b"]) ok(["task", "r", title, "--as", "alice"]);
  ok(["claim", "r", "1", "--as", "bob"]);
  ok(["claim", "r", "2", "--as", "bob"]);
  ok(["done", "r", "1", "--as", "bob"]);
  fs.rmSync(messages().map((one) => at("r", fs.readdirSync(at("r")).find((name) => name.startsWith(`000${one.seq}-`))!))[0]!);
  assert.match(ok(["done", "r", "1", "--as", "bob"]), /^already so: [^]*posted #1 to alice/); // killed after the rename
  const record = JSON.stringify({ state: "done", since: new Date().toISOString(), after: 1, id: "x", owner: "bob" });
  fs.writeFileSync(at("r", ".tasks", "2.bob.json"), record); // killed before the rename
  assert.match(ok(["done", "r", "2", "--as", "bob"]), /^done task-2\.CLAIMED-bob\.md/);
  assert.deepEqual(messages().map(({ task, status }) => `${task} ${status}`), ["1 done", "2 done"]);
  assert.deepEqual(files(), ["task-1.DONE-bob.md", "task-2.DONE-bob.md"]);
});

test("release: the task is open again, and the channel is told", (t) => {
  const { ok, files, text, messages, fails, put, all } = board(t);
  ok(["task", "r", "Fix it", "--as", "alice"]);
  const before = text("task-1.md");
  for (const round of [1, 2]) {
    ok(["claim", "r", "1", "--as", "bob"]);
    assert.match(ok(["release", "r", "1", "--as", "bob", "--body", `no time ${round}`]), /^released task-1\.CLAIMED-bob\.md -> task-1\.md\n/);
    assert.match(ok(["release", "r", "1", "--as", "bob", "--body", "again"]), /^already so: task-1\.md/);
  }
  assert.deepEqual([files(), text("task-1.md")], [["task-1.md"], before]);
  const told = messages().map(({ from, to, status, task, body }) => [from, to, status, task, body]);
  assert.deepEqual(told, [1, 2].map((round) => ["bob", [], "released", "1", `no time ${round}\n`]));
  fails(1, "not_claimed", "done", "r", "1", "--as", "bob");
  ok(["claim", "r", "1", "--as", "bob"]);
  put("task-1.md", "made anew by hand");
  const there = all();
  assert.match(fails(1, "task_exists", "release", "r", "1", "--as", "bob"), /in the way: nothing was changed/);
  assert.deepEqual(all(), there);
});

test("done and release: only its owner, or by force with a word to the owner", (t) => {
  const { ok, files, messages, fails, all, put } = board(t);
  for (const title of ["one", "two", "three"]) ok(["task", "r", title, "--as", "alice"]);
  ok(["task", "r", "the port", "--as", "alice", "--id", "port", "--slot"]);
  for (const id of ["1", "2", "port"]) ok(["claim", "r", id, "--as", "bob"]);
  const before = all();
  for (const what of ["done", "release"]) {
    assert.match(fails(3, "taken", what, "r", "1", "--as", "carol"), /task-1 is claimed by bob/);
    fails(3, "taken", what, "r", "port", "--as", "alice");
    fails(1, "not_claimed", what, "r", "3", "--as", "carol", "--force"); // nothing to force
    fails(1, "no_task", what, "r", "9", "--as", "carol", "--force");
  }
  assert.deepEqual(all(), before);
  const last = (): unknown[] => (({ from, to, status, task }) => [from, to, status, task])(messages().at(-1)!);
  ok(["done", "r", "1", "--as", "carol", "--force"]);
  assert.deepEqual(last(), ["carol", ["alice", "bob"], "done", "1"]);
  ok(["release", "r", "2", "--as", "carol", "--force"]);
  assert.deepEqual(last(), ["carol", [], "released", "2"]); // all are told
  ok(["done", "r", "port", "--as", "alice", "--force"]);
  assert.deepEqual(last(), ["alice", ["bob"], "done", "port"]);
  assert.deepEqual(files(), ["task-1.DONE-carol.md", "task-2.md", "task-3.md", "task-port.md"]);
  fails(3, "taken", "done", "r", "1", "--as", "bob", "--force"); // it is finished
  put("task-8.CLAIMED-Odd_Name.md");
  ok(["release", "r", "8", "--as", "carol", "--force"]);
  put("task-9.CLAIMED-Bob.md"); // spelled otherwise, and still bob's
  assert.match(ok(["claim", "r", "task-9.CLAIMED-Bob.md", "--as", "bob"]), /^already yours: task-9\.CLAIMED-Bob\.md/);
  ok(["done", "r", "9", "--as", "bob"]);
});

test("done: where the disk is full nothing is changed, and no lock is left", (t) => {
  const { ok, bash, all, at } = board(t, "task-1.md", "task-2.md");
  ok(["claim", "r", "1", "--as", "bob"]);
  const before = all();
  for (const args of ["done r 1", "release r 1", "claim r 2", "claim r --next", "task r x", "pause r --body x"]) {
    const { stdout, stderr } = bash(`ulimit -f 0; ac ${args} --as bob; echo "exit $?" | cat`);
    assert.equal(stdout, "exit 1\n", args);
    assert.match(stderr, /EFBIG/);
    assert.deepEqual([all(), fs.existsSync(at("r", "_seq.lock"))], [before, false], args);
  }
  fs.mkdirSync(at("r", ".tasks", "1.alice.json")); // nor where the record cannot be put
  assert.match(bash("ac done r 1 --as alice --force; ac done r 1 --as bob").stderr, /could not change task-1: .*EISDIR/);
});

// ---- steal

test("steal: only from an owner who was silent for so long, in one step, and the owner is told", async (t) => {
  const { ok, start, age, at, files, fails, messages, text } = board(t, "task-1.md", "task-2.md", "task-3.md");
  const steal = ["--steal", "--older-than", "2h", "--as", "bob"];
  ok(["claim", "r", "1", "--as", "alice"]);
  assert.match(fails(3, "not_stale", "claim", "r", "1", ...steal), /claimed \d+ s ago; alice: last seen \d+ s ago/);
  age("1", "alice", 1.9);
  fails(3, "not_stale", "claim", "r", "1", ...steal);
  age("1", "alice", 3);
  ok(["post", "r", "--as", "carol", "--body", "hello"]);
  ok(["read", "r", "--as", "alice"]); // she was shown something
  assert.match(fails(3, "not_stale", "claim", "r", "1", ...steal), /claimed 3 h ago; alice: last seen \d+ s ago/);
  age("1", "alice", 3);
  const waits = start(["wait", "r", "--as", "alice", "--timeout", "60"]); // she waits
  await until("alice waits", () => fs.existsSync(at("r", ".cursors", "alice.wait")));
  assert.match(fails(3, "not_stale", "claim", "r", "1", ...steal), /alice: waiting now/);
  waits.child.kill("SIGTERM");
  await waits.ended;
  fails(3, "taken", "claim", "r", "1", "--as", "bob"); // nobody asked to steal
  assert.equal(ok(["claim", "r", "1", ...steal]), `claimed task-1.CLAIMED-alice.md -> task-1.CLAIMED-bob.md\n  ${at("r", "task-1.CLAIMED-bob.md")}\n  alice was told\n`);
  assert.equal(text("task-1.CLAIMED-bob.md"), "do task-1.md\n");
  assert.match(ok(["claim", "r", "1", ...steal]), /^already yours/); // from oneself: nothing
  const told = messages().slice(1);
  assert.deepEqual(told.map(({ from, to, status, task }) => [from, to, status, task]), [["bob", ["alice"], "stolen", "1"]]);
  assert.match(fails(3, "taken", "done", "r", "1", "--as", "alice"), /claimed by bob/);
  ok(["claim", "r", "2", "--as", "dan"]);
  age("2", "dan", 3);
  ok(["post", "r", "--as", "dan", "--body", "still here"]); // he has posted
  fails(3, "not_stale", "claim", "r", "2", ...steal);
  ok(["done", "r", "2", "--as", "dan"]);
  fails(3, "taken", "claim", "r", "2", ...steal);
  assert.deepEqual(files(), ["task-1.CLAIMED-bob.md", "task-2.DONE-dan.md", "task-3.md"]);
});

test("steal: who has claimed, finished or released another task meanwhile was heard of", (t) => {
  const { ok, put, age, fails, at } = board(t, "task-1.md", "task-2.md", "task-3.CLAIMED-alice.md");
  put("task-s.md", HEADER({ slot: "true" })); // about which nothing is posted
  const steal = ["claim", "r", "1", "--steal", "--older-than", "2h", "--as", "bob"];
  ok(["claim", "r", "1", "--as", "alice"]);
  age("1", "alice", 3);
  for (const change of ["claim", "release", "claim", "done"]) {
    ok([change, "r", "s", "--as", "alice"]);
    assert.match(fails(3, "not_stale", ...steal), /claimed 3 h ago; alice: last seen \d+ s ago/, change);
    age("s", "alice", 3);
    assert.match(ok(["tasks", "r"]), /task-1 .*; alice since .*; silent since/, change);
  }
  ok(["claim", "r", "2", "--as", "al"]);
  fails(3, "not_stale", "claim", "r", "3", ...steal.slice(3)); // a record that bob writes for her is no sign of her
  assert.match(fs.readFileSync(at("r", ".tasks", "3.alice.json"), "utf8"), /"by":"bob"/);
  ok(steal);
});

test("post: of an addressee's records of tasks some are read, those of the newest tasks", (t) => {
  const { ok, chat, at } = board(t);
  const record = (since: string): string => JSON.stringify({ state: "done", since, after: 0, id: "x", owner: null });
  fs.mkdirSync(at("r", ".tasks"));
  for (let i = 1; i <= 100; i++) fs.writeFileSync(at("r", ".tasks", `${i}.bob.json`), record("2020-01-01T00:00:00Z"));
  const post = (): string => ok(["post", "r", "--as", "alice", "--to", "bob", "--body", "x", "--force"]);
  assert.match(post(), /bob: last seen \d+ d ago/);
  fs.writeFileSync(at("r", ".tasks", "100.bob.json"), record(new Date().toISOString()));
  assert.match(post(), /bob: last seen \d+ s ago/);
  fs.writeFileSync(at("r", ".tasks", "100.bob.json"), record("2099-01-01T00:00:00Z")); // says nothing
  assert.match(post(), /bob: last seen \d+ d ago/);
  fs.rmSync(at("r", ".tasks"), { recursive: true });
  fs.writeFileSync(at("r", ".tasks"), "");
  assert.match(chat(["post", "r", "--as", "alice", "--to", "bob", "--body", "x", "--force"]).stdout, /bob: never seen here/);
});

test("steal: a time that was recorded stands for its whole second", async (t) => {
  const { ok, age, root } = board(t, "task-1.md");
  ok(["claim", "r", "1", "--as", "alice"]);
  const steal = (): Promise<unknown> => claim(openChannel(root, "r"), "bob", "1", { older: 3600 });
  age("1", "alice", 1);
  await assert.rejects(steal, { code: "not_stale" });
  age("1", "alice", 1 + 1 / 3600);
  await steal();
});

test("steal: --next takes what is open first, and neither a slot nor what is for others or has two owners", (t) => {
  const { ok, put, age, fails, files } = board(t, "task-3.md", "task-5.md", "task-6.md");
  put("task-1.md", HEADER({ slot: "true" }));
  put("task-2.md", HEADER({ for: "alice" }));
  for (const id of ["1", "2", "3", "5"]) {
    ok(["claim", "r", id, "--as", "alice"]);
    age(id, "alice", 3);
  }
  put("task-3.CLAIMED-dora.md"); // as a merge leaves it
  const next = ["--next", "--steal", "--older-than", "2h", "--as", "bob"];
  const taken = (...args: string[]): unknown => (({ file, stolen_from }) => [file, stolen_from])(rows(ok(["claim", "r", ...args, "--json"]))[0]!);
  assert.deepEqual(taken(...next), ["task-6.CLAIMED-bob.md", undefined]);
  assert.deepEqual(taken(...next), ["task-5.CLAIMED-bob.md", "alice"]);
  fails(1, "no_task", "claim", "r", ...next);
  assert.match(fails(3, "reserved", "claim", "r", "2", ...next.slice(1)), /task-2 is for alice/);
  assert.match(fails(3, "taken", "claim", "r", "3", ...next.slice(1)), /claimed by alice and claimed by dora/);
  assert.deepEqual(files().slice(2, 4), ["task-3.CLAIMED-alice.md", "task-3.CLAIMED-dora.md"]);
  assert.deepEqual(taken("1", ...next.slice(1)), ["task-1.CLAIMED-bob.md", "alice"]);
});

test("steal: of twenty at once one has it", async (t) => {
  const { ok, start, age, files, messages, text } = board(t, "task-1.md");
  ok(["claim", "r", "1", "--as", "alice"]);
  age("1", "alice", 3);
  const ends = await Promise.all(Array.from({ length: 20 }, (_, i) => start(["claim", "r", "1", "--steal", "--older-than", "2h", "--as", `w${i}`]).ended));
  const winner = ends.findIndex(({ status }) => status === 0);
  assert.deepEqual(files(), [`task-1.CLAIMED-w${winner}.md`]);
  assert.ok(ends.every(({ status }, i) => status === (i === winner ? 0 : 3)));
  assert.equal(text(files()[0]!), "do task-1.md\n");
  assert.deepEqual(messages().map(({ from, to, status }) => [from, to, status]), [[`w${winner}`, ["alice"], "stolen"]]);
});

test("steal: a claim without a recorded age is recorded, not taken", (t) => {
  const { ok, fails, age, at, files, put, messages } = board(t, "task-1.CLAIMED-alice.md");
  const old = new Date(Date.now() - 99 * HOUR_MS);
  fs.utimesSync(at("r", "task-1.CLAIMED-alice.md"), old, old);
  const steal = ["claim", "r", "1", "--steal", "--older-than", "2h", "--as", "bob"];
  assert.match(fails(3, "not_stale", ...steal), /its age was not recorded, and is from now on/);
  assert.deepEqual(files(), ["task-1.CLAIMED-alice.md"]);
  assert.match(fails(3, "not_stale", ...steal), /claimed \d+ s ago/);
  age("1", "alice", 3);
  ok(steal);
  for (const garbage of ["", "{}", "null", "[1]", '{"state":"claimed","since":"x","after":0}', '{"state":"done","since":"2020-01-01","after":0}']) {
    fs.writeFileSync(at("r", ".tasks", "2.alice.json"), garbage);
    put("task-2.CLAIMED-alice.md");
    assert.match(fails(3, "not_stale", "claim", "r", "2", ...steal.slice(3)), /was not recorded/, garbage);
  }
  put("task-3.CLAIMED-Odd_Name.md"); // no name of ours: nothing can be recorded
  fails(3, "not_stale", "claim", "r", "3", ...steal.slice(3));
  assert.ok(files().includes("task-3.CLAIMED-Odd_Name.md"));
  assert.equal(messages().length, 1);
});

test("steal: the owner is told though the thief died before, by whatever the thief does next", (t) => {
  for (const next of ["claim", "done", "release"]) {
    const { ok, at, messages } = board(t, "task-1.CLAIMED-bob.md");
    fs.mkdirSync(at("r", ".tasks"));
    fs.writeFileSync(at("r", ".tasks", "1.bob.json"), JSON.stringify({ state: "claimed", since: new Date().toISOString(), after: 0, id: "x", owner: "alice" }));
    for (const _ of [1, 2]) ok([next, "r", "1", "--as", "bob"]);
    assert.deepEqual(messages().map(({ seq, to, status }) => [seq, to, status]), [
      [1, ["alice"], "stolen"],
      ...(next === "claim" ? [] : [[2, [], next === "done" ? "done" : "released"]]),
    ]);
  }
});

// ---- claim

test("claim: blocked or reserved for somebody else is exit 3 with the reason", (t) => {
  const { ok, fails, all, files } = board(t);
  ok(["task", "r", "first", "--as", "alice"]);
  ok(["task", "r", "second", "--as", "alice", "--after", "1"]);
  ok(["task", "r", "for bob", "--as", "alice", "--for", "bob,dan"]);
  const before = all();
  assert.match(fails(3, "blocked", "claim", "r", "2", "--as", "carol"), /task-2 comes after task-1, not done yet: .*task-2\.md/);
  assert.match(fails(3, "reserved", "claim", "r", "3", "--as", "carol"), /task-3 is for bob, dan: .*task-3\.md/);
  assert.match(fails(3, "reserved", "claim", "r", "3", "--as", "carol", "--wait", "--timeout", "30"), /is for bob/); // at once
  assert.deepEqual(all(), before);
  ok(["claim", "r", "3", "--as", "Bob"]);
  ok(["claim", "r", "1", "--as", "carol"]);
  fails(3, "blocked", "claim", "r", "2", "--as", "carol"); // claimed is not done
  ok(["release", "r", "1", "--as", "carol"]);
  fails(3, "blocked", "claim", "r", "2", "--as", "carol");
  ok(["claim", "r", "1", "--as", "carol"]);
  ok(["done", "r", "1", "--as", "carol"]);
  ok(["claim", "r", "2", "--as", "carol"]);
  assert.deepEqual(files(), ["task-1.DONE-carol.md", "task-2.CLAIMED-carol.md", "task-3.CLAIMED-bob.md"]);
});

test("claim: what it says to try can be typed, and is for who asks", (t) => {
  const { ok, bash, chat } = board(t, "task-1.md");
  ok(["claim", "r", "1", "--as", "alice"]);
  const tried = (...args: string[]): string | undefined => / {2}try: (.*)\n/.exec(chat(args).stderr)?.[1];
  ok(["task", "r", "for carol", "--as", "alice", "--for", "carol", "--id", "2"]);
  ok(["task", "r", "after it", "--as", "alice", "--after", "2", "--id", "3"]);
  for (const id of ["1", "2", "3"]) assert.equal(tried("claim", "r", id, "--as", "bob"), "agent-chat tasks r", id); // not what is carol's
  ok(["task", "r", "for all", "--as", "alice", "--id", "4"]);
  for (const id of ["1", "2", "3", "9"]) assert.equal(tried("claim", "r", id, "--as", "bob"), "agent-chat claim r 4 --as bob");
  assert.equal(tried("done", "r", "4", "--as", "bob"), "agent-chat claim r 4 --as bob");
  for (const words of [["done", "r", "9"], ["release", "r", "9"], ["wait", "r", "--task", "9"], ["task", "r", "x", "--after", "9"]])
    assert.equal(tried(...words, "--as", "bob"), "agent-chat tasks r", words.join(" "));
  const { status, stdout } = bash("agent-chat() { ac \"$@\"; }; agent-chat claim r 4 --as bob");
  assert.deepEqual([status, stdout.split("\n")[0]], [0, "claimed task-4.md -> task-4.CLAIMED-bob.md"]);
});

test("claim: one that comes after a task that is not there says so", (t) => {
  const { fails, put } = board(t);
  put("task-1.md", HEADER({ after: "9" }));
  assert.match(fails(3, "blocked", "claim", "r", "1", "--as", "bob"), /comes after task-9 \(not there\), not done yet/);
});

test("claim: a wait whose shell has gone takes nothing", { skip: process.platform !== "linux" }, async (t) => {
  const { ok, dir, root, at, files } = board(t, "task-1.md");
  ok(["claim", "r", "1", "--as", "alice"]);
  const env = cleanEnv({ AGENT_CHAT_ROOT: root, NODE: process.execPath, BIN });
  const script = `"$NODE" "$BIN" claim r 1 --wait --as bob --timeout 20 > out 2> err & until [ -e root/r/.cursors/bob.wait ]; do sleep 0.02; done`;
  const shell = spawn("bash", ["-c", script], { cwd: dir, env, stdio: "ignore", detached: true });
  await new Promise((resolve) => shell.once("close", resolve));
  assert.ok(fs.existsSync(at("r", ".cursors", "bob.wait")));
  ok(["release", "r", "1", "--as", "alice"]);
  await until("it says that it ends", () => fs.readFileSync(`${dir}/err`, "utf8").includes("has gone"), 15_000);
  assert.deepEqual([files(), fs.readFileSync(`${dir}/out`, "utf8")], [["task-1.md"], ""]);
});

test("claim: --next takes the first that is open for me, by priority, then by number", (t) => {
  const { ok, put, fails, files } = board(t, "task-10.md", "task-9.md", "task-b.md", "task-a.md", "task-8.CLAIMED-dan.md", "task-8.md");
  put("task-1.md", HEADER({ priority: "low" }));
  put("task-2.md", HEADER({ priority: "high", for: "alice" }));
  put("task-3.md", HEADER({ priority: "high", after: "9" }));
  put("task-4.md", HEADER({ priority: "high", slot: "true" }));
  put("task-12.md", HEADER({ priority: "HIGH", for: "carol, Bob" }));
  const order: string[] = [];
  for (let i = 0; i < 6; i++) order.push(rows<{ task: string }>(ok(["claim", "r", "--next", "--as", "bob", "--json"]))[0]!.task);
  assert.deepEqual(order, ["12", "9", "10", "a", "b", "1"]);
  assert.match(fails(1, "no_task", "claim", "r", "--next", "--as", "bob"), /nothing to claim for bob in .*: 1 blocked, 7 claimed, 1 open for others, 1 free as a slot, by its id/);
  ok(["done", "r", "9", "--as", "bob"]);
  assert.match(ok(["claim", "r", "--next", "--as", "bob"]), /task-3\.CLAIMED-bob/);
  for (const open of ["task-2.md", "task-4.md", "task-8.md"]) assert.ok(files().includes(open));
});

test("claim: --next --wait ends with exit 2 and the reason, or with the task as soon as there is one", async (t) => {
  const { ok, start, fails, put, text } = board(t, "task-1.CLAIMED-alice.md");
  put("task-2.md", HEADER({ for: "alice" }));
  assert.match(fails(2, "timeout", "claim", "r", "--next", "--wait", "--timeout", "0.3", "--as", "bob"), /no task for bob in 0\.3 s; nothing to claim for bob in .*: 0 blocked, 1 claimed, 1 open for others/);
  assert.match(fails(2, "timeout", "claim", "r", "1", "--wait", "--timeout", "0.3", "--as", "bob"), /no task for bob in 0\.3 s; task-1 is claimed by alice/);
  const waiter = start(["claim", "r", "--next", "--wait", "--timeout", "60", "--as", "bob"]);
  await listening(waiter);
  ok(["task", "r", "at last", "--as", "alice", "--for", "bob"]);
  const { status, stdout } = await waiter.ended;
  assert.deepEqual([status, stdout.split("\n")[0]], [0, "claimed task-3.md -> task-3.CLAIMED-bob.md"]);
  assert.match(text("task-3.CLAIMED-bob.md"), /title: at last/);
});

test("claim: a wait for a task that is finished meanwhile ends at once", async (t) => {
  const { ok, start, fails } = board(t, "task-1.md");
  ok(["claim", "r", "1", "--as", "alice"]);
  const waiter = start(["claim", "r", "1", "--wait", "--timeout", "60", "--as", "bob"]);
  await listening(waiter);
  ok(["done", "r", "1", "--as", "alice"]);
  const { status, stderr } = await waiter.ended;
  assert.equal(status, 3);
  assert.match(stderr, /task-1 is finished by alice/);
  fails(3, "taken", "claim", "r", "1", "--wait", "--timeout", "60", "--as", "bob");
  fails(3, "taken", "claim", "r", "1", "--wait", "--timeout", "60", "--as", "alice"); // who finished it too
});

test("claim --wait: another wait of the same agent does not take its place in line", async (t) => {
  const { ok, root, at } = board(t, "task-1.md");
  ok(["claim", "r", "1", "--as", "alice"]);
  const stop = new AbortController();
  const channel = openChannel(root, "r");
  const inLine = claimLater(channel, "bob", "1", { timeout: 60, signal: stop.signal });
  const beat = (): string => fs.readFileSync(at("r", ".cursors", "bob.wait"), "utf8");
  await until("bob stands in line", () => fs.existsSync(at("r", ".cursors", "bob.wait")));
  const before = beat();
  assert.match(before, /"for":"task-1","from":\["alice"\]/);
  for (const how of [{}, { from: ["task-1"] }]) await assert.rejects(wait([channel], "bob", { timeout: 0.1, ...how }), { code: "timeout" });
  await assert.rejects(claimLater(channel, "bob", undefined, { timeout: 0.1 }), { code: "timeout" });
  assert.equal(beat(), before);
  stop.abort(new Error("enough"));
  await assert.rejects(inLine, /enough/);
  assert.ok(!fs.existsSync(at("r", ".cursors", "bob.wait")));
});

test("claim --wait --steal: does not stand behind who waits until the task is freed", async (t) => {
  const { ok, start, age, at } = board(t, "task-1.md");
  ok(["claim", "r", "1", "--as", "alice"]);
  age("1", "alice", 3);
  start(["claim", "r", "1", "--wait", "--timeout", "60", "--as", "bob"]);
  await until("bob stands in line", () => fs.existsSync(at("r", ".cursors", "bob.wait")));
  assert.match(ok(["claim", "r", "1", "--wait", "--steal", "--older-than", "2h", "--timeout", "5", "--as", "carol"]), /alice was told/);
});

test("claim --wait, --steal too: while somebody who was heard of has the task no lock is taken, which would wake all who wait", async (t) => {
  const { ok, root, at } = board(t, "task-1.md");
  ok(["claim", "r", "1", "--as", "alice"]);
  fs.mkdirSync(at("r", ".cursors"), { recursive: true });
  const before = fs.statSync(at("r")).mtimeMs;
  const waiting = (how: object): Promise<unknown> => claimLater(openChannel(root, "r"), "bob", "1", { timeout: 0.3, interval: 0.02, ...how });
  await assert.rejects(waiting({}), { code: "timeout", message: /claimed by alice/ });
  await assert.rejects(waiting({ older: 3600 }), { code: "timeout", message: /claimed \d+ s ago; alice: last seen/ });
  assert.equal(fs.statSync(at("r")).mtimeMs, before);
});

/** A worker as agents are: it claims the next, notes it, finishes it, until nothing comes for two seconds. */
const WORKER = `
const { openChannel, claimLater, finish } = require(process.argv[2]);
const [root, name] = process.argv.slice(3);
const channel = openChannel(root, "r");
(async () => {
  for (;;) {
    const { task } = await claimLater(channel, name, undefined, { timeout: 2 });
    process.stdout.write(task + "\\n");
    await finish(channel, name, task);
  }
})().catch((error) => { process.stderr.write(error.message); process.exit(error.code === "timeout" ? 2 : 1); });
`;

test("claim: ten workers and a hundred tasks: every task has one owner, every worker a fair end", async (t) => {
  const { root, dir, at, files, messages } = board(t);
  fs.writeFileSync(`${dir}/worker.cjs`, WORKER);
  const workers = Array.from({ length: 10 }, (_, i) =>
    watchChild(spawn(process.execPath, [`${dir}/worker.cjs`, BIN, root, `w${i}`], { env: cleanEnv(), stdio: ["ignore", "pipe", "pipe"] })),
  );
  t.after(() => workers.forEach(({ child }) => child.kill("SIGKILL")));
  await until("all of them wait", () => fs.readdirSync(at("r", ".cursors")).filter((name) => name.endsWith(".wait")).length === 10);
  const channel = openChannel(root, "r");
  const texts = new Map<string, string>();
  for (let i = 1; i <= 100; i++) {
    const { task, title } = await createTask(channel, { from: "maker", title: `job ${i}` });
    texts.set(task, title);
  }
  const whole = (): void => {
    for (const { task, title, from } of listTasks(channel)) assert.deepEqual([title, from], [texts.get(task), "maker"]); // though it be renamed meanwhile
  };
  let left = workers.length;
  const all = workers.map(({ ended }) => ended.finally(() => left--));
  await until("all of them have ended", () => (whole(), left === 0), 60_000);
  const ends = await Promise.all(all);
  const had = ends.map(({ stdout }) => stdout.split("\n").filter((line) => line !== ""));
  for (const { status, stderr } of ends) {
    assert.equal(status, 2, stderr);
    assert.match(stderr, /^no task for w\d in 2 s; nothing to claim for w\d in .*: 0 blocked, \d claimed, 0 open for others, \d+ done$/);
  }
  assert.deepEqual(had.flat().sort(), [...texts.keys()].sort());
  assert.deepEqual(files(), had.flatMap((ids, i) => ids.map((id) => `task-${id}.DONE-w${i}.md`)).sort());
  whole();
  assert.deepEqual(messages().map(({ task, from, to, status }) => `${task} ${from} ${to.join()} ${status}`).sort(), had.flatMap((ids, i) => ids.map((id) => `${id} w${i} maker done`)).sort());
});

/** Takes what is first, as the reference does: one rename, and no lock. */
const RIVAL = `
const fs = require("node:fs");
process.chdir(process.argv[2]);
let had = 0;
for (let id = 1; id <= 150; id++) {
  try {
    fs.renameSync("task-" + id + ".md", "task-" + id + ".CLAIMED-rival.md");
    had++;
    for (const until = performance.now() + 4 * Math.random(); performance.now() < until;);
  } catch {}
}
process.stdout.write(String(had));
`;

test("claim: --next goes on to the next where somebody without the lock was quicker", async (t) => {
  const ids = Array.from({ length: 150 }, (_, i) => `${i + 1}`);
  const { root, dir, at, files } = board(t, ...ids.map((id) => `task-${id}.md`));
  fs.writeFileSync(`${dir}/rival.cjs`, RIVAL);
  const rival = watchChild(spawn(process.execPath, [`${dir}/rival.cjs`, at("r")], { stdio: ["ignore", "pipe", "pipe"] }));
  t.after(() => rival.child.kill("SIGKILL"));
  await until("the rival has begun", () => fs.existsSync(at("r", "task-1.CLAIMED-rival.md")));
  const mine: string[] = [];
  const again = async (): Promise<void> => {
    for (;;) mine.push((await claimNext(openChannel(root, "r"), "ours")).task);
  };
  await assert.rejects(again(), { code: "no_task", message: /nothing to claim for ours in .*: 0 blocked, 150 claimed, 0 open/ });
  const { stdout } = await rival.ended;
  assert.equal(mine.length + Number(stdout), 150);
  assert.deepEqual(files().filter((file) => file.endsWith("ours.md")), mine.map((id) => `task-${id}.CLAIMED-ours.md`).sort());
  t.diagnostic(`${mine.length} of 150 were ours`);
});

// ---- slots, pauses, waits

test("slot: done and release both reopen it, and who waits for it gets it in turn", async (t) => {
  const { ok, start, files, text, at, messages, fails } = board(t);
  ok(["task", "r", "The test database", "--as", "alice", "--id", "db", "--slot"]);
  assert.match(text("task-db.md"), /\nslot: true\n---\n/);
  const before = text("task-db.md");
  fails(1, "no_task", "claim", "r", "--next", "--as", "bob"); // by its name only
  ok(["claim", "r", "db", "--as", "bob"]);
  const queue: Running[] = [];
  for (const name of ["zoe", "carol", "abe"]) { // in this order, which is not that of their names
    queue.push(start(["claim", "r", "db", "--wait", "--timeout", "60", "--as", name]));
    await until(`${name} waits`, () => fs.existsSync(at("r", ".cursors", `${name}.wait`)));
  }
  assert.match(ok(["claim", "r", "db", "--wait", "--timeout", "5", "--as", "bob"]), /^already yours/); // in no line for his own
  const ends: string[] = [];
  queue.forEach(({ ended }, i) => void ended.then(({ status }) => ends.push(`${["zoe", "carol", "abe"][i]} ${status}`)));
  const turn = async (end: string, owner: string, number: number): Promise<void> => {
    ok([end, "r", "db", "--as", owner]);
    await until(`waiter ${number} has it`, () => ends.length === number);
  };
  await turn("done", "bob", 1);
  assert.deepEqual(files(), ["task-db.CLAIMED-zoe.md"]);
  await turn("release", "zoe", 2);
  assert.deepEqual(files(), ["task-db.CLAIMED-carol.md"]);
  await turn("done", "carol", 3);
  assert.deepEqual(ends, ["zoe 0", "carol 0", "abe 0"]);
  ok(["done", "r", "db", "--as", "abe", "--body", "left it clean"]);
  assert.deepEqual([files(), text("task-db.md")], [["task-db.md"], before]);
  assert.deepEqual(messages().map(({ from, to, task, body }) => [from, to, task, body]), [["abe", ["alice"], "db", "left it clean\n"]]); // only where there is something to say
});

test("slot: who only watches a task is in no line for it, and who was killed in the line holds nobody up", async (t) => {
  const { ok, start, at, chat } = board(t, "task-1.md", "task-2.CLAIMED-alice.md", "task-3.md");
  const reader = start(["wait", "r", "--from", "task-3", "--as", "ann", "--timeout", "60"]); // an agent of that name
  await until("ann waits", () => fs.existsSync(at("r", ".cursors", "ann.wait")));
  ok(["claim", "r", "3", "--wait", "--timeout", "5", "--as", "bob"]);
  reader.child.kill("SIGTERM");
  assert.match(chat(["done", "r", "3", "--as", "bob", "--body", " "]).stderr, /is blank: nothing was posted\n {2}try: give it a text\n$/);
  const watcher = start(["wait", "r", "--task", "1", "--as", "abe", "--timeout", "60"]);
  const killed = start(["claim", "r", "2", "--wait", "--as", "abby", "--timeout", "60"]);
  for (const name of ["abe", "abby"]) await until(`${name} waits`, () => fs.existsSync(at("r", ".cursors", `${name}.wait`)));
  ok(["claim", "r", "1", "--wait", "--timeout", "10", "--as", "bob"]);
  assert.equal((await watcher.ended).status, 0);
  const waiter = start(["claim", "r", "2", "--wait", "--timeout", "60", "--as", "bob"]);
  await until("bob waits", () => fs.existsSync(at("r", ".cursors", "bob.wait")));
  killed.child.kill("SIGKILL");
  await killed.ended;
  ok(["release", "r", "2", "--as", "alice"]);
  assert.equal((await waiter.ended).status, 0);
});

test("pause: --next takes nothing and says why, exit 3, until resume", async (t) => {
  const { ok, chat, start, fails, files, at, put } = board(t, "task-1.md", "task-2.md", "task-3.md");
  const next = ["claim", "r", "--next", "--as", "bob"];
  const paused = /^paused 'r': no next task until agent-chat resume r --as \w+ --root \S+\n$/;
  assert.match(ok(["pause", "r", "--as", "alice", "--body", "the build\nis broken"]), paused);
  const second = chat(["pause", "r", "--as", "carol", "--body", "me too"]); // the first one stands, and she is told
  assert.match(second.stdout, paused);
  assert.match(second.stderr, /r is paused by alice since [\d:]+: the build is broken\n$/);
  assert.equal(chat(["pause", "r", "--as", "alice", "--body", "the build\nis broken"]).stderr, "");
  assert.match(chat(["tasks", "r", "--json"]).stderr, /^\{"note":"r is paused by alice since [\d:]+: the build is broken"\}\n$/);
  assert.match(fails(3, "paused", ...next), /r is paused by alice since [\d:]+: the build is broken/);
  assert.match(chat(next).stderr, /\n {2}try: agent-chat claim r --next --wait --as bob\n$/); // who paused it ends it
  assert.match(ok(["tasks", "r"]), /\n {2}paused by alice since [\d:]+: the build is broken\n/);
  assert.match(ok(["channels"]), /paused by alice.*: the build is broken\n/);
  fails(2, "timeout", "wait", "r", "--tasks", "--as", "bob", "--timeout", "0"); // or who waits, and then takes the next, would run in circles
  ok(["claim", "r", "1", "--as", "bob"]); // by its name it can be had
  assert.match(fails(2, "timeout", ...next, "--wait", "--timeout", "0.3"), /is paused by alice/);
  const waiter = start([...next, "--wait", "--timeout", "60"]);
  await listening(waiter);
  assert.equal(ok(["resume", "r"]), "resumed 'r'\n");
  assert.match((await waiter.ended).stdout, /^claimed task-2\.md/);
  assert.equal(ok(["resume", "r"]), "'r' was not paused\n");
  for (const garbage of ["", "\n", "garbage", "---\nfrom: x"]) {
    put("_paused.md", garbage);
    assert.match(fails(3, "paused", ...next), garbage === "garbage" ? /^r is paused: garbage$/ : /^r is paused/, garbage);
    assert.match(ok(["tasks", "r"]), /\n {2}paused/);
    ok(["pause", "r", "--as", "alice"]);
    assert.equal(ok(["resume", "r"]), "resumed 'r'\n");
  }
  ok(["pause", "r", "--as", "alice", "--body", "-"], { stdin: "from stdin\n" });
  assert.match(fails(3, "paused", ...next), /: from stdin$/);
  ok(["resume", "r"]);
  fs.mkdirSync(at("r", "_paused.md")); // it is there, whatever it is
  fails(3, "paused", ...next);
  assert.equal(chat(["resume", "r"]).status, 1);
  assert.deepEqual(files(), ["task-1.CLAIMED-bob.md", "task-2.CLAIMED-bob.md", "task-3.md"]);
});

test("wait: --task ends when it changes state, --tasks when there is one that I could claim", async (t) => {
  const { ok, start, at, fails, put, text, dir } = board(t);
  ok(["task", "r", "first", "--as", "alice"]);
  ok(["task", "r", "second", "--as", "alice", "--after", "1"]);
  const after = async (change: () => void, ...args: string[]): Promise<string[][]> => {
    const waiter = start(["wait", "r", ...args, "--as", "watcher", "--timeout", "60", "--json"]);
    await until("it waits", () => fs.existsSync(at("r", ".cursors", "watcher.wait")));
    change();
    const { status, stdout, stderr } = await waiter.ended;
    assert.equal(status, 0, stderr);
    return rows<Task>(stdout).map(({ task, state, owner }) => [task, state, owner ?? ""]);
  };
  assert.deepEqual(await after(() => ok(["claim", "r", "1", "--as", "bob"]), "--task", "1"), [["1", "claimed", "bob"]]);
  assert.deepEqual(await after(() => ok(["release", "r", "1", "--as", "bob"]), "--task", "1"), [["1", "open", ""]]);
  ok(["claim", "r", "1", "--as", "bob"]);
  const freed = after(() => ok(["done", "r", "1", "--as", "bob"]), "--task", "2");
  assert.deepEqual(await freed, [["2", "open", ""]]); // it was blocked
  assert.deepEqual(await after(() => fs.renameSync(at("r", "task-2.md"), `${dir}/away`), "--task", "2"), []);
  put("task-5.md", HEADER({ for: "bob" }));
  put("task-6.md", HEADER({ after: "5" }));
  put("task-7.md", HEADER({ slot: "true" }));
  assert.match(fails(2, "timeout", "wait", "r", "--tasks", "--as", "watcher", "--timeout", "0.3"), /no task to claim for watcher in 0\.3 s/);
  assert.match(fails(2, "timeout", "wait", "r", "--task", "6", "--as", "watcher", "--timeout", "0.3"), /no change of task-6 for watcher/);
  const over = rows<Task>(ok(["wait", "r", "--task", "1", "--as", "watcher", "--timeout", "60", "--json"])); // it was done before
  assert.deepEqual(over.map(({ task, state, owner }) => [task, state, owner]), [["1", "done", "bob"]]);
  ok(["init", "s"]);
  assert.ok(fails(2, "timeout", "wait", "--tasks", "--as", "watcher", "--timeout", "0").endsWith(`; looked at ${at("r")}, ${at("s")}`));
  ok(["pause", "s", "--as", "alice", "--body", "why"]);
  assert.match(fails(2, "timeout", "wait", "s", "--tasks", "--as", "watcher", "--timeout", "0"), /\/s; s is paused by alice since [\d:]+: why$/);
  assert.equal(ok(["wait", "--tasks", "--as", "bob", "--timeout", "0"]), `open     task-5  for bob\n  ${at("r", "task-5.md")}\n`); // in which channel
  assert.deepEqual(await after(() => put("task-8.md"), "--tasks"), [["8", "open", ""]]);
  assert.deepEqual(rows<Task>(ok(["wait", "r", "--tasks", "--as", "bob", "--timeout", "60", "--json"])).map(({ task }) => task), ["5", "8"]); // at once
  fails(1, "no_task", "wait", "r", "--task", "99", "--as", "bob", "--timeout", "60");
  for (const wrong of [["--task", "1", "--tasks"], ["--tasks", "--from", "bob"], ["--task", "1", "--each"]]) fails(64, "usage", "wait", "r", ...wrong, "--as", "bob");
  fails(64, "usage", "wait", "--task", "1", "--as", "bob");
  assert.equal(text("task-8.md"), "do task-8.md\n");
});

// ---- the reference

const python = spawnSync("python3", ["--version"]).status === 0;
const skip = !fs.existsSync(REFERENCE) ? `no reference at ${REFERENCE}` : !python && "no python3 here";

test("tasks: the reference claims from the same board at the same time, and is listed", { skip }, async (t) => {
  const ids = Array.from({ length: 12 }, (_, i) => `${i + 1}`);
  const { start, dir, root, files, list, text, fails, ok } = board(t, ...ids.map((id) => `task-${id}.md`));
  const theirs = (id: string): Running =>
    watchChild(spawn("python3", [REFERENCE, "claim", "r", `task-${id}.md`, "--as", "theirs"], { cwd: dir, env: cleanEnv({ AGENT_CHAT_ROOT: root }), stdio: ["ignore", "pipe", "pipe"] }));
  const runs = ids.flatMap((id) => [theirs(id).ended, start(["claim", "r", "--next", "--as", "ours"]).ended, ...(Number(id) % 3 === 0 ? [start(["claim", "r", id, "--as", "ours"]).ended] : [])]);
  const ends = await Promise.all(runs);
  const won = ends.filter(({ status }) => status === 0).flatMap(({ stdout }) => /-> (task-\S+)/.exec(stdout)?.[1] ?? []);
  assert.deepEqual(won.sort(), files()); // each has the one owner who was told so
  for (const { status, stderr } of ends) assert.ok(status === 0 || (status === 3 && /already claimed|is claimed by/.test(stderr)) || /nothing to claim/.test(stderr), stderr);
  assert.equal(files().length, 12);
  for (const { state, owner, task, file } of list()) {
    assert.ok(state === "claimed" && (owner === "ours" || owner === "theirs"));
    assert.equal(text(file), `do task-${task}.md\n`);
  }
  const one = list().find(({ owner }) => owner === "theirs");
  if (one === undefined) return t.diagnostic("the reference had none of them");
  assert.equal(one.since, null); // it records nothing
  fails(3, "not_stale", "claim", "r", one.task, "--steal", "--older-than", "1s", "--as", "ours");
  ok(["done", "r", one.task, "--as", "theirs"]); // and goes on with ours
});

// ---- races, with kills

interface Run {
  readonly args: readonly string[];
  readonly agent: string;
  readonly killed: boolean;
  readonly result: Result;
}

test("tasks: twenty processes race each change, some killed: one owner, one end, every message once", async (t) => {
  t.diagnostic(`seed ${SEED}`);
  const chance = random(SEED);
  const pick = <T>(list: readonly T[]): T => list[Math.floor(chance() * list.length)]!;
  const ids = ["1", "2", "3", "slot"];
  const { start, at, put, ok, files, text, messages, age, list } = board(t);
  const texts = new Map(ids.map((id) => [id, HEADER({ from: "maker", title: `job ${id}`, ...(id === "slot" && { slot: "true" }) }, `text of ${id}\n`.repeat(20))]));
  for (const [id, body] of texts) put(`task-${id}.md`, body);

  /** Runs them all at once; about a third is killed at some moment. */
  const race = async (commands: readonly (readonly string[])[]): Promise<Run[]> => {
    let two: string | undefined;
    const sampler = setInterval(() => (two ??= twoFiles()), 3);
    const runs = await Promise.all(
      commands.map(async (args): Promise<Run> => {
        const { child, ended } = start([...args, "--json"]);
        const timer = chance() < 0.35 ? setTimeout(() => child.kill("SIGKILL"), chance() * 2500) : undefined;
        const result = await ended;
        clearTimeout(timer);
        return { args, agent: args[args.indexOf("--as") + 1]!, killed: result.signal === "SIGKILL", result };
      }),
    );
    clearInterval(sampler);
    assert.equal(two, undefined, `seed ${SEED}: two files of one task`);
    for (const { killed, result, args } of runs)
      assert.ok(killed || [0, 1, 3].includes(result.status!), `seed ${SEED}: ${args.join(" ")}: ${result.status} ${result.stderr}`);
    assert.deepEqual(files().map((file) => file.split(".")[0]).sort(), ids.map((id) => `task-${id}`).sort(), `seed ${SEED}`);
    for (const id of ids) assert.equal(text(fileOf(id)), texts.get(id), `seed ${SEED}`);
    return runs;
  };
  const twoFiles = (): string | undefined => {
    const names = files().map((file) => file.split(".")[0]!);
    return names.find((name, i) => names.indexOf(name) !== i);
  };
  const fileOf = (id: string): string => files().find((file) => file.startsWith(`task-${id}.`))!;
  const ownerOf = (id: string): string | undefined => /\.(?:CLAIMED|DONE)-(.+)\.md$/.exec(fileOf(id))?.[1];
  const agents = Array.from({ length: 20 }, (_, i) => `w${i}`);
  const done = (runs: readonly Run[], id: string): Run[] => runs.filter(({ args, result }) => args[2] === id && result.status === 0);
  /** The messages of a task and status; each agent's at most once for each change. */
  const told = (id: string, status: string): Message[] => messages().filter((one) => one.task === id && one.status === status);
  const oneOwner = (runs: readonly Run[], id: string): void => {
    const winners = new Set(done(runs, id).map(({ agent }) => agent));
    assert.ok(winners.size <= 1, `seed ${SEED}: task-${id} was ${[...winners].join(" and ")}'s`);
    for (const winner of winners) assert.equal(ownerOf(id), winner, `seed ${SEED}`);
  };

  const claims = await race(agents.map((name, i) => ["claim", "r", ids[i % 4]!, "--as", name]));
  for (const id of ids) {
    oneOwner(claims, id);
    if (ownerOf(id) === undefined) ok(["claim", "r", id, "--as", pick(agents)]); // all five were killed
  }
  const releases = await race(agents.map((_, i) => ["release", "r", ids[i % 4]!, "--as", ownerOf(ids[i % 4]!)!, "--body", "no time"]));
  for (const id of ids) {
    const owner = ownerOf(id) ?? releases.find(({ args }) => args[2] === id)!.agent;
    ok(["release", "r", id, "--as", owner, "--body", "no time"]); // what was not said is said, and nothing twice
    assert.equal(ownerOf(id), undefined);
    assert.deepEqual(told(id, "released").map(({ from, body }) => [from, body]), [[owner, "no time\n"]], `seed ${SEED}`);
    ok(["claim", "r", id, "--as", `old-${id}`]);
    age(id, `old-${id}`, 3);
  }
  const thefts = await race(agents.map((name, i) => ["claim", "r", ids[i % 4]!, "--steal", "--older-than", "2h", "--as", name]));
  for (const id of ids) {
    oneOwner(thefts, id);
    const owner = ownerOf(id)!;
    ok(["claim", "r", id, "--as", owner]);
    const victims = owner.startsWith("old-") ? [] : [[owner, [`old-${id}`]]];
    assert.deepEqual(told(id, "stolen").map(({ from, to }) => [from, to]), victims, `seed ${SEED}`);
  }
  const owners = new Map(ids.map((id) => [id, ownerOf(id)!]));
  await race(agents.map((_, i) => ["done", "r", ids[i % 4]!, "--as", owners.get(ids[i % 4]!)!, "--body", "did it"]));
  for (const id of ids) {
    ok(["done", "r", id, "--as", owners.get(id)!, "--body", "did it"]);
    assert.deepEqual(told(id, "done").map(({ from, to, body }) => [from, to, body]), [[owners.get(id), ["maker"], "did it\n"]], `seed ${SEED}`);
    assert.equal(fileOf(id), id === "slot" ? "task-slot.md" : `task-${id}.DONE-${owners.get(id)}.md`);
  }
  // Everything at once: a slot that is taken, given back by its owner or by force, and finished.
  const before = messages().length;
  const names = agents.slice(0, 6);
  const storm = await race(Array.from({ length: 20 }, (_, i) => [...pick([["claim", "r", "slot"], ["claim", "r", "slot"], ["done", "r", "slot", "--body", "x"], ["release", "r", "slot", "--body", "x", "--force"]]), "--as", names[i % 6]!]));
  const said = messages().slice(before);
  for (const name of names) {
    for (const [what, status] of [["done", "done"], ["release", "released"]]) {
      const mine = storm.filter(({ args, agent }) => agent === name && args[0] === what);
      const changes = mine.filter(({ result }) => result.status === 0 && rows<{ already: boolean }>(result.stdout)[0]?.already === false).length;
      const posts = said.filter((one) => one.from === name && one.status === status).length;
      const unknown = mine.filter(({ killed }) => killed).length;
      assert.ok(posts >= changes && posts <= changes + unknown, `seed ${SEED}: ${name} ${what}: ${changes} changes, ${posts} messages, ${unknown} killed`);
    }
  }
  assert.equal(list().length, 4);
  assert.ok(fs.existsSync(at("r", "_meta.json")));
  ok(["task", "r", "the board is usable", "--as", "maker"]);
  ok(["claim", "r", "--next", "--as", "bob"]);
  assert.ok(!fs.existsSync(at("r", "_seq.lock")));
});

test("claim: what is suggested is open for me, and carries my name", (t) => {
  const { chat, ok } = sandbox(t);
  ok(["init", "r"]);
  ok(["task", "r", "for bob", "--as", "alice", "--for", "bob"]);
  ok(["task", "r", "later", "--as", "alice", "--after", "1"]);
  const tried = (...args: string[]): string | undefined => /try: (.*)/.exec(chat(args).stderr)?.[1];
  for (const id of ["1", "2", "9"]) assert.equal(tried("claim", "r", id, "--as", "alice"), "agent-chat tasks r", id);
  assert.equal(tried("claim", "r", "2", "--as", "bob"), "agent-chat claim r 1 --as bob");
  assert.equal(tried("done", "r", "1", "--as", "bob"), "agent-chat claim r 1 --as bob");
  ok(["claim", "r", "1", "--as", "bob"]);
  ok(["task", "r", "for all", "--as", "alice"]);
  assert.equal(tried("claim", "r", "1", "--as", "alice"), "agent-chat claim r 3 --as alice");
});
