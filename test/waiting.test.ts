// Waits for the right message: filters, questions, heartbeats, and waits that can never end well.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import { test, type TestContext } from "node:test";
import { ask, openChannel } from "../chat.ts";
import { listening, rows, sandbox, until, type Result, type Sandbox } from "./helpers.ts";

interface Row {
  readonly seq: number;
  readonly from: string;
  readonly body: string;
}

const channel = (t: TestContext, members = "alice,bob,carol,dave") => {
  const box = sandbox(t);
  box.ok(["init", "r", "--members", members]);
  const post = (from: string, to: string, body: string, ...more: string[]) => void box.ok(["post", "r", "--from", from, "--to", to, "--body", body, ...more]);
  const unread = (agent: string) => seqs(box.chat(["read", "r", "--as", agent, "--peek", "--json"]));
  const wait = (agent: string, ...args: string[]) => box.chat(["wait", "r", "--as", agent, "--timeout", "0", "--json", ...args]);
  const waiting = (agent: string, ...args: string[]) => box.start(["wait", "r", "--as", agent, "--json", ...(args.includes("--timeout") ? [] : ["--timeout", "40"]), ...args]);
  return { ...box, post, unread, wait, waiting };
};
const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
const seqs = ({ stdout }: { stdout: string }): number[] => rows<Row>(stdout).map(({ seq }) => seq);
const seen = (result: Result): [number | null, number[]] => [result.status, seqs(result)];
/** What an error with `--json` tells to type, as the function `ac` of `bash`. */
const tried = ({ stderr }: Result): string => {
  const { error } = rows<{ error?: { try: string } }>(stderr).at(-1)!;
  assert.ok(error, stderr);
  return error.try.replace(/^agent-chat/, "ac");
};
const told = ({ stderr }: Result): string => rows<{ error?: { message: string } }>(stderr).at(-1)?.error?.message ?? "";

// ---- filters

test("wait: a filter decides when it ends and what it shows; what does not match stays unread", async (t) => {
  const { at, ok, post, unread, wait, waiting } = channel(t);
  post("bob", "all", "q");
  post("alice", "bob", "2", "--reply", "1", "--status", "done");
  post("carol", "bob", "3", "--priority", "high");
  post("carol", "bob", "4", "--reply", "1", "--status", "Question");
  post("dave", "alice", "5", "--reply", "1", "--status", "question"); // not for bob
  const cases: [string[], number[]][] = [
    [["--from", "alice"], [2]],
    [["--from", " @Carol,alice"], [2, 3, 4]],
    [["--reply-to", "#1"], [2, 4]],
    [["--status", "question"], [4]],
    [["--priority", "high"], [3]],
    [["--priority", "normal"], [2, 4]],
    [["--from", "carol", "--reply-to", "1"], [4]],
    [["--from", "alice", "--priority", "high"], []],
    [["--reply-to", "3"], []],
  ];
  for (const [filter, want] of cases) {
    fs.rmSync(at("r", ".cursors", "bob.txt"), { force: true });
    const result = wait("bob", ...filter);
    assert.deepEqual(seen(result), [want.length > 0 ? 0 : 2, want], filter.join(" "));
    assert.deepEqual(unread("bob"), [2, 3, 4].filter((seq) => !want.includes(seq)), filter.join(" "));
    if (want.length === 0) assert.match(told(result), /3 unread besides: agent-chat read r --as bob --root /);
  }
  ok(["read", "r", "--as", "bob"]);
  const live = waiting("bob", "--from", "alice", "--status", "done");
  await listening(live);
  post("carol", "bob", "6", "--status", "done");
  post("alice", "bob", "7");
  post("alice", "bob", "8", "--status", "done");
  assert.deepEqual(seen(await live.ended), [0, [8]]);
  assert.deepEqual(unread("bob"), [6, 7]);
  fs.writeFileSync(at("r", "0009-eve-x.md"), "---\nseq: 9\nfrom: Eve\nto: Bob\nstatus: x\n---\nof the older kinds\n");
  assert.deepEqual(seen(wait("bob", "--from", "eve")), [0, [9]]);
});

test("wait: what cannot be waited for is refused at once", (t) => {
  const { wait, post } = channel(t);
  post("alice", "bob", "x");
  const cases: [string[], number, RegExp][] = [
    [["--from", "bob"], 64, /cannot wait for/],
    [["--from", "alice,@BOB"], 64, /cannot wait for/],
    [["--from", "all"], 64, /all/],
    [["--from", ""], 64, /name/],
    [["--from", ","], 64, /name/],
    [["--reply-to", "2"], 1, /no message #2/],
    [["--reply-to", "0"], 64, /whole number/],
    [["--reply-to", "-1"], 64, /whole number/],
    [["--reply-to", "1e9"], 64, /whole number/],
    [["--reply-to", "999999999999999"], 1, /no message/],
    [["--reply-to", "9999999999999999"], 64, /whole number/],
    [["--status", " "], 64, /blank/],
    [["--priority", "urgent"], 64, /priority/],
    [["--each"], 64, /whom to wait for/],
    [["--each", "--status", "done"], 64, /whom to wait for/],
    [["--any"], 64, /without a filter/],
  ];
  for (const [args, status, message] of cases) {
    const result = wait("bob", ...args);
    assert.equal(result.status, status, `${args.join(" ")}: ${result.stderr}`);
    assert.match(told(result), message);
  }
});

test("wait: --any shows everything unread once the filter has matched", async (t) => {
  const { post, unread, wait, waiting } = channel(t);
  post("alice", "bob", "1");
  post("dave", "carol", "2");
  assert.deepEqual(seen(wait("bob", "--from", "carol", "--any")), [2, []]);
  assert.deepEqual(seen(wait("bob", "--from", "carol,dave", "--each", "--any")), [2, []]);
  assert.deepEqual(unread("bob"), [1]);
  const live = waiting("bob", "--from", "carol", "--any");
  await listening(live);
  post("alice", "bob", "3", "--status", "ack");
  post("carol", "bob", "4");
  assert.deepEqual(seen(await live.ended), [0, [1, 3, 4]]);
  assert.deepEqual(unread("bob"), []);
});

test("wait: --each ends when every one has written, and says who is missing", async (t) => {
  const { bash, post, unread, wait, waiting } = channel(t);
  post("bob", "all", "1");
  post("alice", "bob", "2");
  const early = wait("bob", "--each", "--from", "alice,@Carol,dave");
  assert.deepEqual([...seen(early), unread("bob")], [2, [2], []]);
  assert.match(told(early), /missing: carol, dave;/);
  assert.match(tried(early), /--from carol,dave /);
  const live = waiting("bob", "--each", "--from", "carol,dave");
  await listening(live);
  post("carol", "bob", "3");
  post("alice", "bob", "4");
  post("carol", "bob", "5");
  post("dave", "carol", "6"); // not for bob
  await pause(300);
  assert.equal(live.child.exitCode, null);
  post("dave", "bob", "7");
  assert.deepEqual(seen(await live.ended), [0, [3, 5, 7]]);
  assert.deepEqual(unread("bob"), [4]);
  post("carol", "bob", "8");
  post("dave", "all", "9");
  assert.deepEqual(seen(bash(tried(early))), [0, [8, 9]]);
  post("alice", "bob", "10", "--status", "done");
  post("carol", "bob", "11");
  const half = wait("bob", "--each", "--from", "alice,carol", "--status", "done", "--any");
  assert.deepEqual(seen(half), [2, [4, 10, 11]]);
  assert.match(tried(half), / --from carol /); // what is shown beside it is not what it waits for
});

test("wait: --each with --reply-to counts the answers that were shown before", async (t) => {
  const { ok, post, unread, wait, waiting } = channel(t);
  post("alice", "bob,carol,dave", "1");
  post("bob", "alice", "2", "--reply", "1");
  ok(["read", "r", "--as", "alice"]);
  const early = wait("alice", "--reply-to", "1", "--each");
  assert.deepEqual(seen(early), [2, []]);
  assert.match(told(early), /missing: carol, dave;/);
  const live = waiting("alice", "--reply-to", "1", "--each");
  await listening(live);
  post("dave", "alice", "3");
  post("carol", "dave", "4", "--reply", "1"); // an answer, though not for alice to see
  post("dave", "alice", "5", "--reply", "1");
  assert.deepEqual(seen(await live.ended), [0, [5]]);
  assert.deepEqual(unread("alice"), [3]);
  const again = wait("alice", "--reply-to", "1", "--each");
  assert.deepEqual(seen(again), [0, []]);
  assert.match(again.stderr, /have written/);
  const verdicts = wait("alice", "--reply-to", "1", "--each", "--status", "done"); // none of these is one
  assert.equal(verdicts.status, 2);
  assert.match(told(verdicts), /missing: bob, carol, dave;/);
  post("alice", "all", "6");
  post("bob", "alice", "7", "--reply", "6");
  post("carol", "alice", "8", "--reply", "6", "--status", "fyi");
  assert.match(told(wait("alice", "--reply-to", "6", "--each")), /missing: dave;/);
  assert.match(told(wait("alice", "--reply-to", "6", "--each", "--from", "dave,eve")), /missing: dave, eve;/);
  assert.match(told(wait("dave", "--reply-to", "6", "--each", "--status", "done")), /missing: bob, carol;/, "not who waits");
});

test("wait: what the budget leaves over of a filtered wait, the command that is told shows", (t) => {
  const { bash, post, chat, unread } = channel(t);
  const rest = ({ stdout, stderr }: Result): string => /more unread: run it again: (.*)\n/.exec(stdout + stderr)![1]!.replace("agent-chat", "ac");
  post("alice", "bob", "a".repeat(600));
  post("carol", "bob", "b".repeat(600));
  post("dave", "bob", "c", "--status", "ack");
  const wait = (...args: string[]): Result => chat(["wait", "r", "--as", "bob", "--timeout", "0", "--max-bytes", "800", ...args]);
  for (const args of [["--each", "--from", "alice,carol"], ["--from", "alice", "--any"], ["--from=alice,carol"]]) {
    chat(["cursor", "r", "--as", "bob", "--set", "none"]);
    const first = wait(...args);
    assert.match(first.stdout, /aaa[^]*1 more unread|aaa[^]*2 more unread/);
    assert.deepEqual([first.status, unread("bob")], [0, [2, 3]]);
    const second = bash(rest(first));
    assert.deepEqual([second.status, unread("bob")], [0, [3]], `${args.join(" ")}: ${second.stderr}`);
  }
  const late = wait("--each", "--from", "carol,alice");
  assert.equal(late.status, 2);
  chat(["cursor", "r", "--as", "bob", "--set", "1"]);
  const all = wait(); // the ack is left over, and would wake no wait
  assert.equal(bash(rest(all)).status, 0);
  assert.deepEqual(unread("bob"), []);
});

test("wait: ack and fyi wake nobody, and are shown beside what does", async (t) => {
  const { ok, post, unread, wait, waiting } = channel(t);
  post("alice", "bob", "1", "--status", "ack");
  post("alice", "bob", "2", "--status", "FYI");
  const idle = wait("bob");
  assert.deepEqual(seen(idle), [2, []]);
  assert.match(told(idle), /2 unread of status ack or fyi/);
  assert.deepEqual(unread("bob"), [1, 2]);
  assert.deepEqual(seen(wait("bob", "--status", "ack")), [0, [1]]);
  const live = waiting("bob");
  await listening(live);
  post("alice", "bob", "3", "--status", "fyi");
  post("alice", "bob", "4", "--status", "done");
  assert.deepEqual(seen(await live.ended), [0, [2, 3, 4]]);
  post("alice", "bob", "5", "--status", "ack");
  assert.deepEqual(seqs({ stdout: ok(["read", "r", "--as", "bob", "--json"]) }), [5]);
});

// ---- ask

test("ask: an instant answer counts, though another session under the same name is shown it first", async (t) => {
  const { ok, post, root, unread } = channel(t);
  const onPosted = (): void => {
    post("bob", "alice", "2", "--reply", "1");
    post("bob", "alice", "3"); // no answer
    ok(["read", "r", "--as", "alice"]);
    assert.deepEqual(unread("alice"), []);
  };
  const batches = await ask(openChannel(root, "r"), { from: "alice", to: ["bob"], body: "q" }, { timeout: 5, onPosted });
  assert.deepEqual(batches.flatMap(({ messages }) => messages.map(({ seq }) => seq)), [2]);
});

test("ask: --json prints what was posted, then the answers", async (t) => {
  const { at, post, start } = channel(t);
  const asking = start(["ask", "r", "--as", "alice", "--to", "bob,carol", "--body", "q", "--json"]);
  await until("the question is there", () => fs.existsSync(at("r", "0001-alice-q.md")));
  post("bob", "alice", "2");
  post("carol", "alice", "3", "--reply", "1");
  const { status, stdout } = await asking.ended;
  const [posted, answer, ...more] = rows<Row & { status: string; addressees: { agent: string }[]; created: boolean }>(stdout);
  assert.deepEqual([status, more], [0, []]);
  assert.deepEqual([posted!.seq, posted!.status, posted!.created, "body" in posted!], [1, "question", true, false]);
  assert.deepEqual(posted!.addressees.map(({ agent }) => agent), ["bob", "carol"]);
  assert.deepEqual([answer!.seq, answer!.body], [3, "3\n"]);
});

test("ask: on time-out the question stands, and the command to go on waiting can be pasted", (t) => {
  const { bash, chat, post, unread } = channel(t);
  const asked = chat(["ask", "r", "--as", "alice", "--to", "bob", "--body", "q", "--timeout", "0"]);
  assert.equal(asked.status, 2);
  assert.match(asked.stdout, /^posted #1 /);
  const [, line] = /\n  try: agent-chat (wait r --reply-to 1 --timeout 0 .*)\n$/.exec(asked.stderr)!;
  assert.deepEqual(unread("bob"), [1]);
  post("bob", "alice", "other");
  post("bob", "alice", "yes", "--reply", "1");
  const more = bash(`ac ${line} --json`, { env: { AGENT_CHAT_ROOT: undefined } });
  assert.deepEqual(seen(more), [0, [3]]);
  assert.deepEqual(unread("alice"), [2]);
});

test("ask: --each waits for all whom it asks, and goes on for those who are missing", (t) => {
  const { bash, chat, post } = channel(t);
  const asked = chat(["ask", "r", "--as", "alice", "--to", "bob,@Carol,dave", "--body", "q", "--each", "--timeout", "0", "--json"]);
  assert.deepEqual(seen(asked), [2, [1]]);
  assert.match(told(asked), /missing: bob, carol, dave;/);
  post("bob", "alice", "2", "--reply", "1");
  post("dave", "alice", "3", "--reply", "1");
  const more = bash(tried(asked));
  assert.deepEqual(seen(more), [2, [2, 3]]);
  assert.match(told(more), /^nothing more for alice .* missing: carol;/); // two came
  post("carol", "alice", "4", "--reply", "1");
  assert.deepEqual(seen(bash(tried(asked))), [0, [4]]);
});

test("ask: with a key it is asked once, and tried again it takes the answer to the first", (t) => {
  const { at, chat, post } = channel(t);
  const ask = (body: string): Result => chat(["ask", "r", "--as", "alice", "--to", "bob", "--body", body, "--key", "k", "--timeout", "0", "--json"]);
  assert.deepEqual(seen(ask("q")), [2, [1]]);
  post("bob", "alice", "2", "--reply", "1");
  assert.deepEqual(seen(ask("q")), [0, [1, 2]]);
  assert.equal(ask("another").status, 4);
  assert.deepEqual(fs.readdirSync(at("r")).filter((name) => name.endsWith(".md")), ["0001-alice-q.md", "0002-bob-re-q.md"]);
});

test("ask: a signal ends it; the question stands, nothing is marked, nothing is left", async (t) => {
  const { at, post, start, unread } = channel(t);
  const asking = start(["ask", "r", "--as", "alice", "--to", "bob", "--body", "q"]);
  await until("it waits", () => fs.existsSync(at("r", ".cursors", "alice.wait")));
  asking.child.kill("SIGINT");
  const { status, stdout, stderr } = await asking.ended;
  assert.equal(status, 130, stderr);
  assert.match(stdout, /^posted #1 /);
  post("bob", "alice", "2", "--reply", "1");
  assert.deepEqual([unread("bob"), unread("alice")], [[1], [2]]);
  assert.deepEqual(fs.readdirSync(at("r", ".cursors")), []);
});

test("ask: what is wrong with it is said before anything is posted", (t) => {
  const { at, chat, ok } = channel(t);
  ok(["init", "open"]);
  ok(["status", "open", "--as", "bob", "--set", "here"]); // whom no message has asked
  const cases = [
    ["r", "--to", "bob", "--timeout", "x"],
    ["r", "--to", "bob", "--interval", "x"],
    ["r", "--to", "bob", "--max-bytes", "0"],
    ["r", "--to", "bob", "--priority", "urgent"],
    ["r", "--to", "bob", "--status", "done"],
    ["r", "--to", "bob", "--reply-to", "1"],
    ["r", "--to", "bob", "--key", " "],
    ["r", "--to", "bob", "--reply", "9"],
    ["r", "--to", "nobody"],
    ["r", "--to", "alice"],
    ["open", "--each"],
    ["open", "--to", "all", "--each"],
  ];
  for (const args of cases) {
    const { status, stdout, stderr } = chat(["ask", ...args, "--as", "alice", "--body", "q"]);
    assert.ok([1, 64].includes(status!), `${args.join(" ")}: ${status} ${stderr}`);
    assert.equal(stdout, "");
  }
  for (const name of ["r", "open"]) assert.deepEqual(fs.readdirSync(at(name)).sort(), [".cursors", "_meta.json"]);
});

// ---- heartbeats

const beat = { pid: process.pid, host: "elsewhere", since: "2026-01-01T10:20:30+00:00", until: "2026-01-01T11:00:00+00:00", channels: ["r"], for: "alice", from: ["alice"] };
const HERE = os.hostname().replace(/[^A-Za-z0-9-]/g, "-");
const forge = ({ at }: Pick<Sandbox, "at">, agent: string, change: object | string, age = 0): void => {
  const file = at("r", ".cursors", `${agent}.wait`);
  fs.writeFileSync(file, typeof change === "string" ? change : JSON.stringify({ ...beat, ...change }));
  fs.utimesSync(file, Date.now() / 1000 - age, Date.now() / 1000 - age);
};
const keepFresh = (t: TestContext, box: Pick<Sandbox, "at">, agent: string, change: object | string): void => {
  forge(box, agent, change);
  const timer = setInterval(() => forge(box, agent, change), 500);
  t.after(() => clearInterval(timer));
};

test("wait: keeps a heartbeat while it waits, and leaves none, however it ends", async (t) => {
  const box = channel(t);
  const { at, dir, ok, post, start, waiting } = box;
  const file = at("r", ".cursors", "bob.wait");
  const there = (): boolean => fs.existsSync(file);
  const whole = (): boolean => there() && fs.readFileSync(file, "utf8").endsWith("}");
  const isWaiting = (): unknown => rows<{ agents: { agent: string; waiting: { for: string } | null }[] }>(ok(["roster", "r", "--json"]))[0]!.agents.find(({ agent }) => agent === "bob")!.waiting;
  const [late, stuck] = [channel(t), channel(t)];
  keepFresh(t, stuck, "alice", { for: "bob", from: ["bob"] });
  const timed = late.waiting("bob", "--timeout", "6", "--from", "alice");
  const told = stuck.waiting("bob", "--from", "alice");
  box.wait("bob");
  assert.ok(!there(), "one look is no wait");

  const ends = [() => post("alice", "bob", "x"), (kill: (name: NodeJS.Signals) => void) => kill("SIGINT"), (kill: (name: NodeJS.Signals) => void) => kill("SIGTERM"), (kill: (name: NodeJS.Signals) => void) => kill("SIGHUP")];
  for (const [i, end] of ends.entries()) {
    const live = waiting("bob", "--from", "alice,carol", "--status", "done");
    await until("it says that it waits", whole);
    const { pid, host, since, until: last, ...what } = JSON.parse(fs.readFileSync(file, "utf8")) as typeof beat;
    assert.deepEqual([pid, host, what], [live.child.pid, HERE, { channels: ["r"], for: "alice, carol, status done", from: ["alice", "carol"] }]);
    assert.ok(Math.abs(Date.parse(last) - Date.parse(since) - 40_000) <= 2000, `${since} ${last}`);
    if (i === 0) assert.equal((isWaiting() as { for: string }).for, "alice, carol, status done");
    end((name) => live.child.kill(name));
    if (i === 0) post("alice", "bob", "y", "--status", "done");
    await live.ended;
    assert.ok(!there(), `end ${i}`);
  }

  const lateFile = late.at("r", ".cursors", "bob.wait");
  const first = Date.parse((JSON.parse(fs.readFileSync(lateFile, "utf8")) as typeof beat).since);
  const touched = new Set<number>();
  await until("it is touched again", () => Math.max(...touched.add(fs.statSync(lateFile).mtimeMs)) > first + 4500);
  assert.ok(touched.size <= 2, [...touched].join());
  assert.deepEqual([(await timed.ended).status, fs.readdirSync(late.at("r", ".cursors"))], [2, []]);
  assert.deepEqual([(await told.ended).status, fs.readdirSync(stuck.at("r", ".cursors"))], [5, ["alice.wait"]]);

  const killed = start(["wait", "r", "--as", "bob", "--from", "dave"]);
  await until("it waits", whole);
  assert.notEqual(isWaiting(), null);
  killed.child.kill("SIGKILL");
  await killed.ended;
  assert.ok(there());
  assert.equal(isWaiting(), null);
  const git = (...args: string[]) => spawnSync("git", args, { cwd: dir + "/root", encoding: "utf8" }).stdout;
  git("init", "-q");
  git("add", "-A");
  assert.match(git("ls-files"), /_meta\.json/);
  assert.doesNotMatch(git("ls-files"), /\.wait/);
});

test("wait: of two sessions under one name, the one that ends leaves the other's heartbeat", async (t) => {
  const { at, waiting } = channel(t);
  const text = (): string => (fs.existsSync(at("r", ".cursors", "bob.wait")) ? fs.readFileSync(at("r", ".cursors", "bob.wait"), "utf8") : "");
  const first = waiting("bob", "--from", "alice");
  await until("the first waits", () => text().includes('"for":"alice"'));
  const second = waiting("bob", "--from", "carol");
  await until("the second waits", () => text().includes('"for":"carol"'));
  first.child.kill("SIGTERM");
  await first.ended;
  assert.match(text(), /"for":"carol"/);
  second.child.kill("SIGTERM");
  await second.ended;
  assert.equal(text(), "");
});

test("wait: a heartbeat that cannot be written stops nobody", async (t) => {
  const ways: [string, (file: string, target: string) => void][] = [
    ["a folder", (file) => fs.mkdirSync(file)],
    ["a link", (file, target) => fs.symlinkSync(target, file)],
    ["a link to nothing", (file, target) => fs.symlinkSync(`${target}2`, file)],
    ["a link to itself", (file) => fs.symlinkSync(file, file)],
    ["a pipe", (file) => void spawnSync("mkfifo", [file])],
    ["a file in the place of .cursors", (file) => fs.rmSync(file.replace("/bob.wait", ""), { recursive: true })],
  ];
  await Promise.all(
    ways.map(async ([what, make]) => {
      const { at, dir, post, waiting } = channel(t);
      fs.writeFileSync(`${dir}/target`, "kept");
      make(at("r", ".cursors", "bob.wait"), `${dir}/target`);
      if (!fs.existsSync(at("r", ".cursors"))) fs.writeFileSync(at("r", ".cursors"), "");
      if (what === "a folder") keepFresh(t, { at }, "alice", { for: "bob", from: ["bob"] }); // so that it looks who waits
      const live = waiting("bob", "--from", "alice");
      await listening(live);
      await pause(1500);
      if (/link|pipe/.test(what)) assert.ok(fs.lstatSync(at("r", ".cursors", "bob.wait")).isFile(), `${what} is replaced, not followed`);
      post("alice", "bob", "heard");
      const result = await live.ended;
      assert.deepEqual(seen(result), [0, [1]], `${what}: ${result.stderr}`);
      assert.equal(fs.readFileSync(`${dir}/target`, "utf8"), "kept", what);
      assert.ok(!fs.existsSync(`${dir}/target2`), what);
    }),
  );
});

// ---- nobody would write

test("stuck: two who wait for each other: one is told at once, exit 5, who waits for whom and since when", async (t) => {
  const [box, asking] = [channel(t), channel(t)];
  const both = [box.waiting("alice", "--from", "bob"), box.waiting("bob", "--from", "Alice", "--status", "done")];
  // A question each: alice has bob's unread, so that she is told, and bob, whom she can still answer, is not.
  const alice = asking.start(["ask", "r", "--as", "alice", "--to", "bob", "--body", "q", "--json"]);
  await until("it waits", () => fs.existsSync(asking.at("r", ".cursors", "alice.wait")));
  asking.ok(["read", "r", "--as", "bob"]);
  const bob = asking.start(["ask", "r", "--as", "bob", "--to", "alice", "--body", "why", "--json"]);
  const began = Date.now();
  const [first, which] = await Promise.race(both.map(async (one, i) => [await one.ended, i] as const));
  assert.ok(Date.now() - began < 30_000);
  const aims = ["alice", "bob, status done"];
  assert.deepEqual([first.status, first.stdout], [5, ""]);
  const [me, other, aim] = which === 0 ? ["alice", "bob", "alice, status done"] : ["bob", "alice", "bob"];
  assert.match(told(first), new RegExp(`^no one will answer ${me}; ${other} waits for ${aim} since \\d\\d:\\d\\d:\\d\\d$`), aims[which]);
  assert.match(tried(first), new RegExp(`post r --as ${me} --to ${other}`));
  box.post(me, other, "go on", "--status", "done");
  assert.ok([0, 5].includes((await both[1 - which]!.ended).status!));
  const ended = await alice.ended;
  assert.deepEqual(seen(ended), [5, [1]]);
  assert.match(told(ended), /bob waits for a reply to #2 since .*; 1 unread besides: /);
  assert.match(tried(ended), /^ac read r --as alice/);
  await pause(1500);
  assert.equal(bob.child.exitCode, null);
  asking.post("alice", "bob", "3", "--reply", "2");
  assert.deepEqual(seen(await bob.ended), [0, [2, 3]]);
});

test("stuck: with --each it shows what came, and tells what mends it", async (t) => {
  const box = channel(t);
  box.post("carol", "alice", "1");
  keepFresh(t, box, "bob", {});
  const result = await box.waiting("alice", "--each", "--from", "bob,carol").ended;
  assert.deepEqual(seen(result), [5, [1]]);
  assert.match(tried(result), /^ac post r --as alice --to bob/);
});

test("stuck: three in a ring are told, and a chain whose end works is not", async (t) => {
  const [ring, chain, two] = [channel(t), channel(t), channel(t, "alice,bob,carol")];
  const round = [ring.waiting("alice", "--from", "bob"), ring.waiting("bob", "--from", "carol"), ring.waiting("carol", "--from", "alice")];
  const [alice, bob] = [chain.waiting("alice", "--from", "bob"), chain.waiting("bob", "--from", "carol")];
  // Whoever waits for any answer could hear from anybody: told once everybody waits, and one of them not for work alone.
  const any = [two.waiting("alice", "--status", "done"), two.waiting("bob", "--from", "carol"), two.waiting("carol")];
  const first = await Promise.race(round.map(({ ended }) => ended));
  assert.equal(first.status, 5);
  assert.equal(told(first).match(/ waits for (alice|bob|carol) since /g)!.length, 2, told(first));
  const told2 = await Promise.race(any.slice(0, 2).map(({ ended }) => ended));
  assert.equal(told2.status, 5, told2.stderr);
  assert.match(told(told2), /carol waits for work since/);
  await pause(1000);
  assert.deepEqual([alice.child.exitCode, bob.child.exitCode, any[2]!.child.exitCode], [null, null, null]);
  chain.post("carol", "bob", "1");
  chain.post("bob", "alice", "2");
  assert.deepEqual([seen(await bob.ended), seen(await alice.ended)], [[0, [1]], [0, [2]]]);
});

test("stuck: never from a stale heartbeat, nor while one has unread mail, nor for a wait for work alone", async (t) => {
  const dead = spawnSync("true").pid;
  const none: [string, (box: ReturnType<typeof channel>) => void][] = [
    ["a dead pid on this host", (box) => keepFresh(t, box, "bob", { pid: dead, host: HERE })],
    ["one not touched for 20 s", (box) => forge(box, "bob", {}, 20)],
    ["one in the future", (box) => forge(box, "bob", {}, -3600)],
    ["garbage", (box) => keepFresh(t, box, "bob", "garbage")],
    ["null", (box) => keepFresh(t, box, "bob", "null")],
    ["half", (box) => keepFresh(t, box, "bob", JSON.stringify(beat).slice(0, 60))],
    ["names that are none", (box) => keepFresh(t, box, "bob", { from: ["../../x"] })],
    ["no list", (box) => keepFresh(t, box, "bob", { from: "alice" })],
    ["another channel", (box) => keepFresh(t, box, "bob", { channels: ["r", "s"] })],
    ["one of two", (box) => keepFresh(t, box, "bob", { from: ["alice", "carol"] })],
    ["a link", (box) => (forge(box, "carol", {}), keepFresh(t, box, "carol", {}), fs.symlinkSync("carol.wait", box.at("r", ".cursors", "bob.wait")))],
    ["unread mail", (box) => (box.post("carol", "bob", "x"), void box.waiting("bob", "--from", "alice"))],
    ["unread mail of status ack", (box) => (box.post("carol", "bob", "x", "--status", "ack"), keepFresh(t, box, "bob", {}))],
    ["work alone", (box) => void box.waiting("bob")],
    ["its own old file, and one as old", (box) => (fs.mkdirSync(box.at("r", ".cursors", "alice.wait")), fs.utimesSync(box.at("r", ".cursors", "alice.wait"), 1e9, 1e9), forge(box, "bob", {}, Date.now() / 1000 - 1e9))],
  ];
  const waits = none.map(([what, make]) => {
    const box = channel(t, what === "work alone" ? "alice,bob" : undefined); // else a third could write
    make(box);
    return [what, box.waiting("alice", "--from", "bob", "--timeout", "6")] as const;
  });
  const [fresh, idle] = [channel(t), channel(t, "alice,bob")];
  keepFresh(t, fresh, "bob", {});
  keepFresh(t, idle, "bob", {});
  waits.push(["a wait without a filter, for which another waits", idle.waiting("alice", "--timeout", "6")]);
  const { status, stderr } = await fresh.waiting("alice", "--from", "bob").ended;
  assert.equal(status, 5, stderr);
  for (const [what, { ended }] of waits) assert.equal((await ended).status, 2, `${what}: ${(await ended).stderr}`);
});
