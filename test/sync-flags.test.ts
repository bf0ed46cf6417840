// Tasks on several machines, and the commands that are not done until they are pushed.
import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { sync } from "../chat.ts";
import { listening, rows, until } from "./helpers.ts";
import { AC, assertLinear, fleet, gitThatFirst, pair } from "./machines.ts";

test("read --sync and wait --sync: they fetch, and say so where they cannot", async (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  here.post("ann", "first");
  here.sync();
  assert.deepEqual(
    rows<{ title: string }>(there.ok(["read", "review", "--as", "bob", "--sync", "--json"])).map(({ title }) => title),
    ["first"],
  );
  const waiting = there.start(["wait", "review", "--as", "bob", "--sync", "1", "--timeout", "20", "--json"]);
  await listening(waiting);
  here.post("ann", "second");
  here.sync();
  const { stdout } = await waiting.ended;
  assert.deepEqual(
    rows<{ title: string }>(stdout).map(({ title }) => title),
    ["second"],
  );
  fs.renameSync(net.remote, `${net.remote}.away`);
  there.post("ann", "local", "--to", "bob");
  const offline = there.chat(["read", "review", "--as", "bob", "--sync"]);
  assert.deepEqual([offline.status, /local/.test(offline.stdout), /not fetched/.test(offline.stderr)], [0, true, true]);
});

test("sync: a task that both took is the remote's; who lost it is told, once, and it is done by one", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  here.ok(["task", "review", "work", "--as", "ann"]);
  here.sync();
  there.sync();
  here.ok(["claim", "review", "1", "--as", "ann"]);
  there.ok(["claim", "review", "1", "--as", "bob"]);
  here.sync();
  const { lost } = there.sync();
  assert.deepEqual(
    lost.map(({ task, agent, owner }) => [task, agent, owner]),
    [["1", "bob", "ann"]],
  );
  there.sync();
  here.sync();
  for (const one of [here, there]) assert.ok(fs.existsSync(one.at("review", "task-1.CLAIMED-ann.md")));
  assert.equal(fs.readdirSync(there.at("review")).filter((name) => name.startsWith("task-")).length, 1);
  assert.deepEqual(there.read("bob"), ["task-1 is ann's"]);
  assert.equal(there.chat(["done", "review", "1", "--as", "bob"]).status, 3);
  here.ok(["done", "review", "1", "--as", "ann", "--sync"]);
  there.sync();
  assert.ok(fs.existsSync(there.at("review", "task-1.DONE-ann.md")));
});

test("claim --sync: lost on the way to the remote it is undone here and exits 3, without a message", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  here.ok(["task", "review", "work", "--as", "ann"]);
  here.sync();
  there.sync();
  here.ok(["claim", "review", "1", "--as", "ann"]);
  const once = path.join(net.box.dir, "once");
  fs.writeFileSync(once, "");
  const PATH = gitThatFirst(
    net.box,
    `if [[ " $* " == *" push "* ]] && rm "${once}" 2>/dev/null; then ${AC} sync --root "${here.root}" >&2; fi`,
  );
  const lost = there.chat(["claim", "review", "1", "--as", "bob", "--sync", "--json"], { env: { PATH } });
  assert.equal(fs.existsSync(once), false, "ann was first");
  assert.deepEqual([lost.status, lost.stdout], [3, ""], lost.stderr);
  assert.match(lost.stderr, /"taken"/);
  assert.ok(fs.existsSync(there.at("review", "task-1.CLAIMED-ann.md")));
  assert.deepEqual([there.read("bob"), there.files()], [[], []]);
  const late = there.chat(["claim", "review", "1", "--as", "cat", "--sync"]);
  assert.equal(late.status, 3);
  assertLinear(net);
});

test("sync: a task done on both sides is whose the remote says; one taken and done by the same agent is done", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  for (const title of ["one", "two", "three"]) here.ok(["task", "review", title, "--as", "ann"]);
  here.sync();
  there.sync();
  here.ok(["claim", "review", "3", "--as", "ann"]);
  there.ok(["claim", "review", "3", "--as", "bob"]); // who was first has it, though the other has done it
  there.ok(["done", "review", "3", "--as", "bob"]);
  here.ok(["claim", "review", "1", "--as", "ann"]);
  here.ok(["done", "review", "1", "--as", "ann"]);
  here.ok(["claim", "review", "2", "--as", "ann"]);
  there.ok(["claim", "review", "1", "--as", "bob"]);
  there.ok(["done", "review", "1", "--as", "bob"]);
  there.ok(["claim", "review", "2", "--as", "ann"]);
  there.ok(["done", "review", "2", "--as", "ann"]);
  here.sync();
  const { lost } = there.sync();
  assert.deepEqual(
    lost.map(({ task, agent, owner }) => [task, agent, owner]),
    [["1", "bob", "ann"], ["3", "bob", "ann"]],
  );
  here.sync();
  for (const one of [here, there])
    assert.deepEqual(
      fs
        .readdirSync(one.at("review"))
        .filter((name) => name.startsWith("task-"))
        .sort(),
      ["task-1.DONE-ann.md", "task-2.DONE-ann.md", "task-3.CLAIMED-ann.md"],
    );
});

test("sync: one number made for two tasks: the one that was not pushed gets another, and what comes after it follows", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  here.ok(["task", "review", "theirs", "--as", "ann"]);
  there.ok(["task", "review", "mine", "--as", "bob"]);
  there.ok(["task", "review", "later", "--as", "bob", "--id", "later", "--after", "1"]);
  here.sync();
  const { notes } = there.sync();
  assert.match(notes.join("\n"), /task-1 was made on both sides.*task-2/);
  here.sync();
  for (const one of [here, there]) {
    const tasks = rows<{ task: string; title: string; after: string[] }>(one.ok(["tasks", "review", "--json"]));
    assert.deepEqual(tasks.map(({ task, title, after }) => [task, title, after.join()]).sort(), [
      ["1", "theirs", ""],
      ["2", "mine", ""],
      ["later", "later", "2"],
    ]);
  }
});

test("post --sync: offline it is kept, exits 1 as unpushed, and the next sync sends it", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  fs.renameSync(net.remote, `${net.remote}.away`);
  const kept = here.chat(["post", "review", "--as", "ann", "--title", "kept", "--body", "kept", "--sync", "--json"]);
  const { error } = JSON.parse(kept.stderr) as { error: { code: string } };
  assert.deepEqual([kept.status, error.code, rows<{ seq: number }>(kept.stdout)[0]!.seq], [1, "unpushed", 1]);
  assert.equal(here.chat(["sync"]).status, 1);
  here.post("ann", "too");
  const claimed = here.chat(["post", "review", "--as", "ann", "--title", "third", "--body", "third", "--sync"]);
  assert.match(claimed.stderr, /not pushed/);
  fs.renameSync(`${net.remote}.away`, net.remote);
  there.post("bob", "first on the remote");
  there.sync();
  here.sync();
  there.sync();
  assert.deepEqual([here.files(), there.files().length], [there.files(), 4]);
  assert.deepEqual(there.read("cat"), ["first on the remote", "kept", "too", "third"]);
  here.ok(["post", "review", "--as", "ann", "--title", "online", "--body", "x", "--sync"]);
  assert.match(net.log()[0]!, /review: #5 from ann/);
  assertLinear(net);
});

test("ask --sync: offline it is told what number the question has, so that it can be waited for and is not asked twice", (t) => {
  const net = fleet(t);
  const [here] = pair(net);
  fs.renameSync(net.remote, `${net.remote}.away`);
  const { status, stdout, stderr } = here.chat(["ask", "review", "--as", "ann", "--body", "q", "--sync", "--timeout", "0", "--json"]);
  assert.equal(status, 1);
  assert.deepEqual(rows<{ seq: number; title: string }>(stdout).map(({ seq, title }) => [seq, title]), [[1, "q"]]);
  assert.equal(JSON.parse(stderr.trim().split("\n").at(-1)!).error.code, "unpushed");
});

test("sync: one commit for one sync, none where nothing is new; its subject says what went", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  here.post("ann", "a");
  here.post("ann", "b");
  here.post("bob", "c");
  here.ok(["task", "review", "work", "--as", "ann"]);
  const before = net.log().length;
  here.sync();
  assert.equal(net.log().length, before + 1);
  assert.match(net.log()[0]!, /^review: .*#1 #2 from ann/);
  assert.match(net.log()[0]!, /#3 from bob/);
  assert.match(net.log()[0]!, /task-1 open/);
  here.sync();
  there.sync();
  there.sync();
  assert.equal(net.log().length, before + 1);
  assert.equal(net.git(net.remote, "log", "-1", "--format=%B", "main").trim().includes("\n"), false);
  assertLinear(net);
});

test("sync: while others push first it tries again, --tries often", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  const count = path.join(net.box.dir, "count");
  const first = `if [[ " $* " == *" push "* && -z $IN ]]; then export IN=1; n=$(cat "${count}" 2>/dev/null || echo 0)
if (( n < 3 )); then echo $((n + 1)) > "${count}"; ${AC} post review --root "${there.root}" --as eve --title "n$n" --body x --sync >&2; fi; fi`;
  const PATH = gitThatFirst(net.box, first);
  here.post("ann", "last");
  const few = here.chat(["sync", "--tries", "2", "--json"], { env: { PATH } });
  assert.deepEqual([few.status, /"unpushed"/.test(few.stderr)], [1, true], few.stderr);
  here.ok(["sync"], { env: { PATH } });
  there.sync();
  assert.deepEqual(there.files(), ["0001-eve-n0.md", "0002-eve-n1.md", "0003-eve-n2.md", "0004-ann-last.md"]);
  assert.deepEqual(here.files(), there.files());
  assertLinear(net);
});

test("post --sync: from several machines and processes at once, each message is there once and all agree", async (t) => {
  const net = fleet(t);
  const machines = [...pair(net), net.joined("third")];
  const posts = machines.flatMap((machine, i) =>
    [1, 2].map((n) =>
      machine.start(["post", "review", "--as", `m${i}-${n}`, "--title", `${i} ${n}`, "--body", "x", "--sync"]),
    ),
  );
  for (const { ended } of posts) {
    const { status, stderr } = await ended;
    assert.equal(status, 0, stderr);
  }
  for (const machine of machines) machine.sync();
  const [first, ...others] = machines.map((machine) => machine.files());
  assert.deepEqual(
    first!.map((file) => Number.parseInt(file, 10)),
    [1, 2, 3, 4, 5, 6],
  );
  for (const other of others) assert.deepEqual(other, first);
  for (const machine of machines)
    assert.deepEqual(machine.read("reader").sort(), ["0 1", "0 2", "1 1", "1 2", "2 1", "2 2"]);
  assertLinear(net);
});

test("claim --sync and done --sync: offline they are kept here, and exit 1 as unpushed", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  here.ok(["task", "review", "work", "--as", "ann"]);
  here.sync();
  there.sync();
  fs.renameSync(net.remote, `${net.remote}.away`);
  for (const words of [
    ["claim", "review", "1"],
    ["done", "review", "1"],
  ]) {
    const { status, stderr } = there.chat([...words, "--as", "bob", "--sync", "--json"]);
    assert.deepEqual([status, /"unpushed"/.test(stderr)], [1, true], stderr);
  }
  fs.renameSync(`${net.remote}.away`, net.remote);
  there.sync();
  here.sync();
  assert.ok(fs.existsSync(here.at("review", "task-1.DONE-bob.md")));
});

test("sync: members who joined or left on either side, and keys nobody here knows, are as both sides made them", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  type Meta = Record<string, unknown> & { members: string[] };
  const change = (one: typeof here, how: (meta: Meta) => object): void => {
    const file = one.at("review", "_meta.json");
    fs.writeFileSync(file, JSON.stringify(how(JSON.parse(fs.readFileSync(file, "utf8")) as Meta)));
  };
  for (const name of ["ann", "bob", "cat"]) here.ok(["join", "review", "--as", name]);
  change(here, (meta) => ({ ...meta, here: 1, there: 1 }));
  here.sync();
  there.sync();
  change(here, ({ here: _, ...meta }) => meta);
  here.ok(["leave", "review", "--as", "ann"]);
  here.ok(["join", "review", "--as", "dan"]);
  there.ok(["join", "review", "--as", "eve"]);
  there.ok(["leave", "review", "--as", "cat"]);
  change(there, ({ there: _, ...meta }) => ({ ...meta, extra: { a: 1 } }));
  here.sync();
  there.sync();
  here.sync();
  for (const one of [here, there])
    change(one, (meta) => {
      assert.deepEqual(Object.keys(meta).sort(), ["channel", "created", "extra", "members", "topic"]);
      assert.deepEqual([meta.members.sort(), meta["extra"]], [["bob", "dan", "eve"], { a: 1 }]);
      return meta;
    });
});

test("sync: its lock is touched while a remote is slow, so that it does not look left", async (t) => {
  const net = fleet(t);
  const [here] = pair(net);
  const slow = here.start(["sync"], { env: { PATH: gitThatFirst(net.box, `case "$*" in *fetch*) sleep 4;; esac`) } });
  const lock = here.at("_sync.lock");
  await until("it holds the lock", () => fs.existsSync(lock));
  const { mtimeMs } = fs.statSync(lock);
  await until("it touches it twice", () => (fs.statSync(lock, { throwIfNoEntry: false })?.mtimeMs ?? 0) > mtimeMs + 1500);
  assert.equal((await slow.ended).status, 0);
});

test("sync: what comes is put in place from the highest down: who posts meanwhile, over a stolen lock, is after all of it", async (t) => {
  const [here, there] = pair(fleet(t));
  for (const title of ["a", "b", "c"]) here.post("ann", title);
  here.sync();
  const placed: string[] = [];
  const real = fs.linkSync;
  t.after(() => (fs.linkSync = real));
  fs.linkSync = (from, to) => (placed.push(path.basename(String(to))), real(from, to));
  await sync(there.root);
  assert.deepEqual(placed.filter((name) => /^\d/.test(name)), ["0003-ann-c.md", "0002-ann-b.md", "0001-ann-a.md"]);
});

test("sync: a --timeout longer than a timer can be is no time-out at once, and a library's numbers are checked", async (t) => {
  const [here] = pair(fleet(t));
  here.post("ann", "first");
  const { status, stderr } = here.chat(["sync", "--timeout", "9999999"]);
  assert.deepEqual([status, stderr], [0, ""]);
  for (const how of [{ tries: 0 }, { tries: NaN }, { timeout: NaN }, { timeout: -1 }])
    await assert.rejects(sync(here.root, how), { code: "bad_value" });
});
