import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import fs from "node:fs";
import { describe, test, type TestContext } from "node:test";
import { ask, claimLater, wait, waitForTasks, openChannel, post, ChatError } from "../chat.ts";
import { BIN, cleanEnv, listening, rows, sandbox, until, watchChild } from "./helpers.ts";

const channel = (t: TestContext) => {
  const box = sandbox(t);
  box.ok(["init", "r", "--members", "alice,bob"]);
  return { ...box, send: (body: string) => box.ok(["post", "r", "--from", "alice", "--to", "bob", "--title", "t"], { stdin: body }) };
};
const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
const left = (at: (...parts: string[]) => string): string[] => [...fs.readdirSync(at("r")), ...fs.readdirSync(at("r", ".cursors"))].sort();

test("wait: what is there already is shown at once", (t) => {
  const { send, ok } = channel(t);
  send("x");
  assert.match(ok(["wait", "r", "--as", "bob"]), /x\n/);
  assert.equal(ok(["read", "r", "--as", "bob"]), "");
});

test("wait: wakes within a tick or two of the post, shows it and marks it", async (t) => {
  const { start, send, at } = channel(t);
  const waiting = start(["wait", "r", "--as", "bob"]);
  await listening(waiting);
  send("now");
  const posted = Date.now();
  const { status, stdout } = await waiting.ended;
  assert.equal(status, 0);
  assert.match(stdout, /now\n/);
  assert.ok(Date.now() - posted < 1000);
  assert.equal(fs.readFileSync(at("r", ".cursors", "bob.txt"), "utf8"), "1");
});

test("wait: exit 2 in time, with how long, the newest number, the path, and the command to run again", (t) => {
  const { chat, send, ok, at, root } = channel(t);
  send("x");
  ok(["read", "r", "--as", "bob"]);
  const began = Date.now();
  const { status, stdout, stderr } = chat(["wait", "r", "--as", "bob", "--timeout", "0.5"]);
  assert.deepEqual([status, stdout], [2, ""]);
  assert.ok(Date.now() - began >= 500);
  assert.equal(stderr, `agent-chat: nothing new for bob in 0.5 s; looked at ${at("r")} (newest #1)\n  try: agent-chat wait r --as bob --timeout 0.5 --root ${root}\n`);
  const json = chat(["wait", "r", "--as", "bob", "--timeout", "0", "--json"]);
  assert.deepEqual([json.status, json.stdout, JSON.parse(json.stderr).error.code], [2, "", "timeout"]);
});

test("wait: AGENT_CHAT_TIMEOUT sets another time-out, and the default is below 120 s", (t) => {
  const { chat, ok } = channel(t);
  assert.match(chat(["wait", "r", "--as", "bob"], { env: { AGENT_CHAT_TIMEOUT: "0.1" } }).stderr, /in 0\.1 s/);
  assert.match(ok(["wait", "--help"]), /--timeout S +seconds until exit 2 \(100,/);
});

test("wait: a time that is no number, or has no end, is refused before anything is done, in code as well", async (t) => {
  const { ok, at } = channel(t);
  const review = openChannel(at(), "r");
  const isRefused = { code: "bad_value", message: /is not a number of seconds from 0 to 1000000000/ };
  for (const bad of [NaN, Infinity, -1, 1e10]) {
    for (const how of [{ timeout: bad }, { timeout: 0.01, interval: bad }]) {
      await assert.rejects(wait([review], "bob", how), isRefused);
      await assert.rejects(ask(review, { from: "bob", to: ["alice"], body: "b" }, how), isRefused);
      await assert.rejects(claimLater(review, "bob", undefined, how), isRefused);
      await assert.rejects(waitForTasks([review], "bob", undefined, how), isRefused);
    }
  }
  assert.match(ok(["roster", "r"]), /messages: 0\n/);
});

test("wait: bad numbers are wrong usage, and an interval is never longer than the time left", (t) => {
  const { chat } = channel(t);
  for (const args of [["--timeout", "inf"], ["--timeout", "abc"], ["--timeout", "-1"], ["--timeout", ""], ["--timeout", "NaN"], ["--timeout", "1e10"], ["--interval", "x"], ["--interval", "-1"], ["--max-bytes", "0"]]) {
    assert.equal(chat(["wait", "r", "--as", "bob", ...args]).status, 64, args.join(" "));
  }
  for (const interval of ["0", "1e9"]) {
    const began = Date.now();
    assert.equal(chat(["wait", "r", "--as", "bob", "--timeout", "0.3", "--interval", interval]).status, 2);
    assert.ok(Date.now() - began < 2000);
  }
});

test("wait: one of several channels, or one that is made while it waits for all", async (t) => {
  const { start, ok } = channel(t);
  ok(["init", "s"]);
  const both = start(["wait", "r", "s", "--as", "bob", "--json"]);
  const all = start(["wait", "--as", "bob", "--json"]);
  await Promise.all([listening(both), listening(all)]);
  ok(["init", "later"]);
  ok(["post", "later", "--from", "alice", "--body", "x"]);
  assert.equal(rows<{ channel: string }>((await all.ended).stdout)[0]!.channel, "later");
  ok(["post", "s", "--from", "alice", "--body", "y"]);
  assert.equal(rows<{ channel: string }>((await both.ended).stdout)[0]!.channel, "s");
});

test("wait: an unknown channel is an error at once, with the known ones and the root", (t) => {
  const { chat, root } = channel(t);
  const { status, stderr } = chat(["wait", "nochan", "--as", "bob"]);
  assert.equal(status, 1);
  assert.ok(stderr.includes(`no channel "nochan" in ${root}; there are: r`), stderr);
});

test("wait: a channel's folder that vanishes or is replaced is an error", async (t) => {
  const { start, at } = channel(t);
  const gone = start(["wait", "r", "--as", "bob"]);
  const replaced = start(["wait", "r", "--as", "bob"]);
  await Promise.all([listening(gone), listening(replaced)]);
  await pause(100);
  fs.renameSync(at("r"), at("r2"));
  const first = await gone.ended;
  assert.equal(first.status, 1);
  assert.match(first.stderr, /the channel's folder .*\/r is gone while waiting/);
  assert.equal((await replaced.ended).status, 1);
  fs.renameSync(at("r2"), at("r"));
  const again = start(["wait", "r", "--as", "bob", "--interval", "0.5"]);
  await listening(again);
  await pause(100);
  fs.renameSync(at("r"), at("r2"));
  fs.mkdirSync(at("r"));
  assert.match((await again.ended).stderr, /was replaced by another while waiting/);
});

test("wait: SIGINT, SIGTERM and SIGHUP end it with 130, 143 and 129, nothing marked, nothing left", async (t) => {
  const { start, at } = channel(t);
  for (const [name, code] of [["SIGINT", 130], ["SIGTERM", 143], ["SIGHUP", 129]] as const) {
    const waiting = start(["wait", "r", "--as", "bob"]);
    await listening(waiting);
    waiting.child.kill(name);
    const { status, stdout, stderr } = await waiting.ended;
    assert.deepEqual([status, stdout], [code, ""]);
    assert.match(stderr, new RegExp(`stopped by ${name}`));
  }
  assert.deepEqual(left(at), [".cursors", "_meta.json"]);
});

test("wait: a message that arrives between the showing and the marking stays unread", async (t) => {
  const { start, send, ok } = channel(t);
  send("x".repeat(200_000)); // more than a pipe holds: the wait is stopped in the middle of showing it
  const waiting = start(["wait", "r", "--as", "bob", "--max-bytes", "1000000"]);
  waiting.child.stdout!.pause();
  await pause(500);
  send("second");
  waiting.child.stdout!.resume();
  const { status, stdout } = await waiting.ended;
  assert.equal(status, 0);
  assert.doesNotMatch(stdout, /second/);
  assert.match(ok(["read", "r", "--as", "bob"]), /second/);
});

test("wait: a half-written message is waited for, named if it stays so, and shown when it is whole", async (t) => {
  const { start, at } = channel(t);
  const waiting = start(["wait", "r", "--as", "bob"]);
  fs.writeFileSync(at("r", "0001-a-x.md"), "---\nseq: 1\nfrom: a\nto: bob\n");
  let talk = "";
  waiting.child.stderr!.on("data", (text: string) => (talk += text));
  await until("the file is named", () => talk.includes("has no closed header"));
  fs.appendFileSync(at("r", "0001-a-x.md"), "---\nwhole\n");
  const { status, stdout, stderr } = await waiting.ended;
  assert.equal(status, 0);
  assert.match(stdout, /whole/);
  assert.equal(stderr.split("has no closed header").length, 2, "once");
});

// ---- who is listening

const orphans: [string, string][] = [
  ["a shell's background job whose shell has gone before it began", `bash -c '"$NODE" "$BIN" wait r --as bob --timeout 20 > out 2> err &'`],
  ["one whose shell goes while it waits", `bash -c '"$NODE" "$BIN" wait r --as bob --timeout 20 > out 2> err & sleep 0.5'`],
  ["one in a session of its own", `setsid bash -c '"$NODE" "$BIN" wait r --as bob --timeout 20 > out 2> err & sleep 0.5'`],
  ["a wrapper around it that loses its parent", `bash -c 'timeout 60 "$NODE" "$BIN" wait r --as bob --timeout 20 > out 2> err & sleep 0.5'`],
  ["one in a subshell whose shell goes", `bash -c '( "$NODE" "$BIN" wait r --as bob --timeout 20; true ) > out 2> err & sleep 0.5'`],
  ["one behind a pipe whose shell has gone before it began", `bash -c 'sleep 30 | "$NODE" "$BIN" wait r --as bob --timeout 20 > out 2> err &'`],
];
describe("orphans", { concurrency: true }, () => {
  for (const [what, script] of orphans) {
    test(`wait: ${what} ends without marking`, async (t) => {
      const { dir, root, send, ok } = channel(t);
      const env = cleanEnv({ AGENT_CHAT_ROOT: root, NODE: process.execPath, BIN });
      // In a session of its own, as agents start their shells: where process 1 is in the session, as in a container, an
      // orphan from before the start looks like its child.
      spawn("bash", ["-c", script], { cwd: dir, env, stdio: "ignore", detached: true });
      const err = (): string => (fs.existsSync(`${dir}/err`) ? fs.readFileSync(`${dir}/err`, "utf8") : "");
      await until("it says that it ends", () => err().includes("has gone: nothing was marked"), 15_000);
      send("kept");
      assert.match(ok(["read", "r", "--as", "bob"]), /kept/);
      assert.equal(fs.readFileSync(`${dir}/out`, "utf8"), "");
    });
  }
});

test("wait: --detached goes on without its parent", async (t) => {
  const { dir, root, send } = channel(t);
  const env = cleanEnv({ AGENT_CHAT_ROOT: root, NODE: process.execPath, BIN });
  spawn("bash", ["-c", `bash -c '"$NODE" "$BIN" wait r --as bob --timeout 20 --detached > out &'`], { cwd: dir, env, stdio: "ignore" });
  await pause(1500);
  send("for whoever reads out");
  await until("it was shown", () => fs.readFileSync(`${dir}/out`, "utf8").includes("for whoever reads out"));
  await until("it was marked", () => fs.readdirSync(`${root}/r/.cursors`).join() === "bob.txt");
});

test("wait: one whose reader has gone ends early on a socket, on a pipe with the message, and marks nothing", async (t) => {
  const { start, dir, root, send, ok } = channel(t);
  const socket = start(["wait", "r", "--as", "bob", "--timeout", "20"]); // node gives its children sockets
  const script = `"$NODE" "$BIN" wait r --as bob --timeout 20 | true; echo "exit \${PIPESTATUS[0]}"`;
  const env = cleanEnv({ AGENT_CHAT_ROOT: root, NODE: process.execPath, BIN });
  const pipe = watchChild(spawn("bash", ["-c", script], { cwd: dir, env, stdio: ["ignore", "pipe", "pipe"] }));
  await pause(500);
  socket.child.stdout!.destroy();
  assert.equal((await socket.ended).status, 0);
  send("kept");
  assert.deepEqual(await pipe.ended, { status: 0, signal: null, stdout: "exit 0\n", stderr: "" });
  assert.match(ok(["read", "r", "--as", "bob"]), /kept/);
});

test("wait: ordinary ways to start one are no orphans", async (t) => {
  const { bash, dir, root, send } = channel(t);
  const env = cleanEnv({ AGENT_CHAT_ROOT: root, NODE: process.execPath, BIN });
  const started = (way: string) => watchChild(spawn("bash", ["-c", `ac() { "$NODE" "$BIN" "$@"; }\n${way}`], { cwd: dir, env }));
  const ways = [
    `ac wait r --as bob --timeout 1.5; echo "exit $?"`,
    `ac wait r --as bob --timeout 1.5 < /dev/null; echo "exit $?"`,
    `ac wait r --as bob --timeout 1.5 & wait $!; echo "exit $?"`,
    `timeout 10 "$NODE" "$BIN" wait r --as bob --timeout 1.5 < /dev/null; echo "exit $?"`,
    `ac wait r --as bob --timeout 1.5 < /dev/null | cat; echo "exit \${PIPESTATUS[0]}"`,
    `setsid -w "$NODE" "$BIN" wait r --as bob --timeout 1.5 < /dev/null; echo "exit $?"`,
    `set -m; true | ac wait r --as bob --timeout 1.5 < /dev/null; echo "exit $?"`,
    `sh -c '"$NODE" "$BIN" wait r --as bob --timeout 1.5; echo "exit $?"' < /dev/null`,
    `echo r | xargs -I{} "$NODE" "$BIN" wait {} --as bob --timeout 1.5; [ $? = 123 ] && echo "exit 2"`,
  ];
  const inside = `sh -c '"$NODE" "$BIN" wait r --as bob --timeout 1.5 < /dev/null; echo "exit $?"'`; // as sandboxes do
  for (const space of ["unshare -rpf --mount-proc", "unshare -rpf"])
    if (bash(`${space} true 2> /dev/null || echo no`).stdout === "") ways.push(`${space} ${inside}`);
  await Promise.all(ways.map(async (way) => assert.equal((await started(way).ended).stdout, "exit 2\n", way)));
  const detached = spawn(process.execPath, [BIN, "wait", "r", "--as", "bob"], { cwd: dir, env: cleanEnv({ AGENT_CHAT_ROOT: root }), stdio: ["ignore", "pipe", "pipe"], detached: true });
  const running = watchChild(detached);
  await pause(1500);
  send("heard");
  assert.match((await running.ended).stdout, /heard/);
});

test("wait: a file that is no message is named when the time is over, not taken for silence", (t) => {
  const { chat, at } = channel(t);
  fs.mkdirSync(at("r", "0001-a-x.md"));
  const { status, stderr } = chat(["wait", "r", "--as", "bob", "--timeout", "0"]);
  assert.equal(status, 2);
  assert.match(stderr, /0001-a-x\.md" is a folder\n/);
});

test("wait: --detached survives a hang-up, as nohup means it", async (t) => {
  const { start, send } = channel(t);
  const waiting = start(["wait", "r", "--as", "bob", "--detached"]);
  await listening(waiting);
  waiting.child.kill("SIGHUP");
  await pause(200);
  send("still there");
  assert.match((await waiting.ended).stdout, /still there/);
});

test("wait: an interval beyond every timer does not spin", (t) => {
  const { chat } = channel(t);
  const { status, stderr } = chat(["wait", "r", "--as", "bob", "--timeout", "0.5", "--interval", "3e6"]);
  assert.equal(status, 2);
  assert.doesNotMatch(stderr, /TimeoutOverflowWarning/);
});

// ---- the library's wait

test("wait: the wall clock decides nothing", async (t) => {
  const { root } = channel(t);
  const real = Date.now;
  t.after(() => (Date.now = real));
  Date.now = () => real() + 3_600_000;
  const began = process.hrtime.bigint();
  const waiting = wait([openChannel(root, "r")], "bob", { timeout: 0.6 });
  setTimeout(() => (Date.now = () => real() - 3_600_000), 200);
  await assert.rejects(waiting, { code: "timeout" });
  const took = Number(process.hrtime.bigint() - began) / 1e6;
  assert.ok(took >= 600 && took < 2000, `${took} ms`);
});

test("wait: rejects with the signal's reason, and posts nothing to the console", async (t) => {
  const { root } = channel(t);
  const stop = new AbortController();
  setTimeout(() => stop.abort(new Error("enough")), 100);
  await assert.rejects(wait([openChannel(root, "r")], "bob", { signal: stop.signal }), { message: "enough" });
  await assert.rejects(wait([openChannel(root, "r")], "bob", { signal: stop.signal }), { message: "enough" });
  await assert.rejects(post(openChannel(root, "r"), { from: "alice", body: "x" }, { signal: stop.signal }), { message: "enough" });
  assert.ok(!fs.existsSync(`${root}/r/_seq.lock`));
});

test("wait: an idle tick is one stat, and headers are parsed once", async (t) => {
  const { root, at } = channel(t);
  for (let i = 1; i <= 50; i++) fs.writeFileSync(at("r", `${String(i).padStart(4, "0")}-a-x.md`), `---\nseq: ${i}\nfrom: a\nto: carol\n---\nx\n`);
  fs.utimesSync(at("r"), new Date(Date.now() - 60_000), new Date(Date.now() - 60_000));
  const count = { statSync: 0, readdirSync: 0, openSync: 0 };
  for (const name of ["statSync", "readdirSync", "openSync"] as const) {
    const real = fs[name] as unknown as (...args: never[]) => never;
    (fs as unknown as Record<string, unknown>)[name] = (...args: never[]) => {
      if (name === "openSync" || args[0] === at("r")) count[name]++;
      return real(...args);
    };
    t.after(() => ((fs as unknown as Record<string, unknown>)[name] = real));
  }
  const sleeps = t.mock.method(globalThis, "setTimeout");
  await assert.rejects(wait([openChannel(root, "r")], "bob", { timeout: 1, interval: 0.1 }), ChatError);
  assert.ok(count.statSync > 2);
  assert.equal(count.statSync, sleeps.mock.callCount() + 1);
  assert.equal(count.readdirSync, 1);
  assert.ok(count.openSync <= 58, JSON.stringify(count)); // each message once, the cursor, the newest once more, the heartbeat
});

test("wait: a folder that has just changed is listed at every look: its mtime may be too coarse for a second change", async (t) => {
  const { root, at } = channel(t);
  const now = new Date();
  fs.utimesSync(at("r"), now, now);
  const waiting = wait([openChannel(root, "r")], "bob", { timeout: 3, interval: 0.02 });
  fs.writeFileSync(at("r", "0001-a-x.md"), "---\nseq: 1\nfrom: a\n---\nx\n");
  fs.utimesSync(at("r"), now, now); // within one tick of the disk's clock
  assert.equal((await waiting)[0]!.messages.length, 1);
});

/** Lets the monotonic clock run twenty times as fast; returns it, in seconds. */
function hurry(t: TestContext): () => number {
  const [real, began] = [process.hrtime, process.hrtime()];
  const hrtime = (): [number, number] => {
    const [seconds, nanos] = real(began);
    const nano = (seconds * 1e9 + nanos) * 20;
    return [Math.floor(nano / 1e9), nano % 1e9];
  };
  process.hrtime = Object.assign(hrtime, { bigint: real.bigint });
  t.after(() => Object.assign(process, { hrtime: real }));
  return () => process.hrtime()[0] + process.hrtime()[1] / 1e9;
}

for (const { when, names, seconds } of [{ when: "after 5 s", names: 0, seconds: 5 }, { when: "later if it is large", names: 7_000, seconds: 7 }])
  test(`wait: a folder whose mtime does not tell is listed again, ${when}`, async (t) => {
    const { root, at } = channel(t);
    for (let i = 0; i < names; i++) fs.writeFileSync(at("r", `x${i}`), "");
    const old = new Date(Date.now() - 60_000);
    fs.utimesSync(at("r"), old, old);
    const now = hurry(t);
    const waiting = wait([openChannel(root, "r")], "bob", { timeout: 30, interval: 0.02 });
    const listed = now();
    fs.writeFileSync(at("r", "0001-a-x.md"), "---\nseq: 1\nfrom: a\n---\nx\n");
    fs.utimesSync(at("r"), old, old); // as if nothing had happened
    assert.equal((await waiting)[0]!.messages.length, 1);
    const took = now() - listed;
    assert.ok(took > seconds - 0.5 && took < seconds + 3, `${took} s`);
  });
