import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import { describe, test, type TestContext } from "node:test";
import { openChannel, read } from "../chat.ts";
import { BIN, listening, rows, sandbox, until } from "./helpers.ts";

const channel = (t: TestContext) => {
  const box = sandbox(t);
  box.ok(["init", "r"]);
  return { ...box, lock: box.at("r", "_seq.lock"), post: (from = "alice") => box.chat(["post", "r", "--from", from, "--title", "t", "--body", "b"]) };
};
const HOST = os.hostname().replace(/[^A-Za-z0-9-]+/g, "-").slice(0, 60);
const deadPid = (): number => spawnSync("true").pid;
const timed = <T>(action: () => T): [T, number] => {
  const began = Date.now();
  return [action(), Date.now() - began];
};
const mayBeOthers = process.getuid?.() === 0 && spawnSync("setpriv", ["--version"]).status === 0;
const mayOverlay =
  spawnSync("unshare", ["-rm", "bash", "-c", `cd /tmp; mount -t tmpfs none .; mkdir a b c; mount -t overlay -o lowerdir=a,upperdir=b,workdir=c,userxattr none a`])
    .status === 0;

test("lock: one whose writer is dead on this host is taken over at once, with its draft", (t) => {
  const { lock, post, at } = channel(t);
  fs.mkdirSync(lock);
  fs.writeFileSync(`${lock}/${HOST}.${deadPid()}.abc.draft`, "half");
  const [{ status, stdout }, took] = timed(post);
  assert.equal(status, 0);
  assert.match(stdout, /^posted #1 /);
  assert.ok(took < 1500, `${took} ms`);
  assert.deepEqual(fs.readdirSync(at("r")).sort(), [".cursors", "0001-alice-t.md", "_meta.json"]);
});

describe("stale locks", { concurrency: true }, () => {
  for (const [what, make] of [
    ["left empty, in the future", (lock: string) => (fs.mkdirSync(lock), fs.utimesSync(lock, Date.now() / 1e3 + 7200, Date.now() / 1e3 + 7200))],
    ["left empty, long ago", (lock: string) => (fs.mkdirSync(lock), fs.utimesSync(lock, 1, 1))],
    ["with a foreign file in it", (lock: string) => (fs.mkdirSync(lock), fs.writeFileSync(`${lock}/.DS_Store`, ""), fs.utimesSync(lock, 1, 1))],
    ["with a foreign folder in it", (lock: string) => fs.mkdirSync(`${lock}/deep/er`, { recursive: true })],
    ["that is a plain file", (lock: string) => fs.writeFileSync(lock, "")],
    ["that is a link to nowhere", (lock: string) => fs.symlinkSync("/nowhere", lock)],
    ["of a dead pid on another host", (lock: string) => (fs.mkdirSync(lock), fs.writeFileSync(`${lock}/other-host.${deadPid()}.abc.draft`, ""))],
    ["of a dead writer and one that stopped", (lock: string) => (fs.mkdirSync(lock), [deadPid(), process.pid].forEach((pid) => fs.writeFileSync(`${lock}/${HOST}.${pid}.abc.draft`, "")))],
    ["of a live pid on this host that stopped", (lock: string) => (fs.mkdirSync(lock), fs.writeFileSync(`${lock}/${HOST}.${process.pid}.abc.draft`, ""))],
  ] as const) {
    test(`lock: one ${what} is taken over after 5 s of being watched, not before and not much later`, async (t) => {
      const { lock, start, at } = channel(t);
      make(lock);
      const began = Date.now();
      const { status, stderr } = await start(["post", "r", "--from", "alice", "--title", "t", "--body", "b"]).ended;
      const took = Date.now() - began;
      assert.equal(status, 0, stderr);
      assert.ok(took >= 5000 && took < 8000, `${took} ms`);
      assert.deepEqual(fs.readdirSync(at("r")).sort(), [".cursors", "0001-alice-t.md", "_meta.json"]);
    });
  }
});

test("lock: one of another user, who lets nobody look into it, is waited for, and taken over after 5 s", { skip: !mayBeOthers && "needs root and setpriv" }, (t) => {
  const { lock, at, dir, bash } = channel(t);
  for (const folder of [dir, at(), at("r")]) fs.chmodSync(folder, 0o777);
  const { stdout, stderr } = bash(`umask 077
    hold() { mkdir "${lock}"; touch "${lock}/other-host.1.abc.draft"; }
    post() { setpriv --reuid 65534 --clear-groups "${process.execPath}" "${BIN}" post r --from alice --title t --body b > /dev/null; echo "exit $?"; }
    hold; (sleep 0.5; rm -r "${lock}") & post; wait
    hold; post; ls "${lock}" 2>&1 | cut -c1-10
    umask 0; mkdir "${lock}"; touch "${lock}/${HOST}.${process.pid}.abc.draft"
    (sleep 1; ls "${lock}" | wc -l; rm -r "${lock}") & post; wait`);
  assert.deepEqual([stdout, stderr], ["exit 0\nexit 0\nls: cannot\n1\nexit 0\n", ""], "a process that one may not signal is alive");
  assert.equal(fs.readdirSync(at("r")).filter((name) => name.endsWith(".md")).length, 3);
});

test("lock: one that came with the image of a container, whose folder cannot be renamed, is taken over", { skip: !mayOverlay && "needs overlayfs" }, (t) => {
  const { lock, at, dir } = channel(t);
  fs.mkdirSync(lock);
  fs.writeFileSync(`${lock}/${HOST}.${deadPid()}.abc.draft`, "half");
  const script = `mkdir "${dir}/m"; mount -t tmpfs none "${dir}/m"; cd "${dir}/m"; mkdir up work all
    mount -t overlay -o lowerdir="${at()}",upperdir=up,workdir=work,userxattr none all
    for i in 1 2; do "${process.execPath}" "${BIN}" post r --root all --from alice --title t --body b > /dev/null; done; ls all/r`;
  const { stdout, stderr } = spawnSync("unshare", ["-rm", "bash", "-c", script], { encoding: "utf8" });
  assert.deepEqual([stdout, stderr], ["0001-alice-t.md\n0002-alice-t.md\n_meta.json\n", ""]);
});

test("lock: one that changes while it is watched is not stale", async (t) => {
  const { lock, start, at } = channel(t);
  fs.mkdirSync(lock);
  const posting = start(["post", "r", "--from", "alice", "--title", "t", "--body", "b"]);
  for (let i = 0; i < 4; i++) {
    fs.writeFileSync(`${lock}/other-host.1.${i}.draft`, "");
    await new Promise((resolve) => setTimeout(resolve, 2000));
    assert.ok(fs.existsSync(`${lock}/other-host.1.${i}.draft`), "it was not stolen");
  }
  fs.rmSync(lock, { recursive: true });
  assert.equal((await posting.ended).status, 0);
  assert.ok(fs.existsSync(at("r", "0001-alice-t.md")));
});

test("lock: a hundred posts through stale locks by sixteen writers never share a number", async (t) => {
  const { lock, start, at } = channel(t);
  for (let round = 0; round < 6; round++) {
    fs.mkdirSync(lock);
    fs.writeFileSync(`${lock}/${HOST}.${deadPid()}.abc.draft`, "");
    const ends = await Promise.all(Array.from({ length: 16 }, (_, i) => start(["post", "r", "--from", `w${i}`, "--body", "b"]).ended));
    assert.ok(ends.every(({ status }) => status === 0));
  }
  const numbers = fs.readdirSync(at("r")).filter((name) => /^\d/.test(name)).map((name) => Number(name.slice(0, 4)));
  assert.deepEqual(numbers.sort((a, b) => a - b), Array.from({ length: 96 }, (_, i) => i + 1));
  assert.deepEqual(fs.readdirSync(at("r")).filter((name) => name.startsWith("_seq")), []);
});

test("lock: a writer that was suspended while it was stolen publishes nothing under its old number", async (t) => {
  const { lock, start, at, ok, post } = channel(t);
  let caught: ReturnType<typeof start> | undefined;
  for (let i = 0; i < 40 && caught === undefined; i++) {
    const posting = start(["post", "r", "--from", `slow${i}`, "--body", "b"]);
    const deadline = Date.now() + 2000;
    while (!fs.existsSync(lock) && Date.now() < deadline && posting.child.exitCode === null) await new Promise(setImmediate);
    posting.child.kill("SIGSTOP");
    await new Promise((resolve) => setTimeout(resolve, 20));
    if (fs.existsSync(lock)) caught = posting;
    else {
      posting.child.kill("SIGCONT");
      await posting.ended;
    }
  }
  if (caught === undefined) return t.skip("no writer could be stopped inside its lock; the stepped schedules cover it");
  assert.equal(post("quick").status, 0, "it waits 5 s and takes the lock over");
  caught.child.kill("SIGCONT");
  assert.equal((await caught.ended).status, 0);
  const seqs = rows<{ seq: number }>(ok(["peek", "r", "-n", "99", "--json"])).map(({ seq }) => seq);
  assert.deepEqual(seqs, Array.from({ length: seqs.length }, (_, i) => i + 1));
  assert.ok(!fs.existsSync(at("r", "_seq.lock")));
});

test("lock: one that cannot be had in 20 s is an error that names the path to remove, and loses nothing", async (t) => {
  const { lock, start, at } = channel(t);
  fs.mkdirSync(lock);
  const renewing = setInterval(() => {
    fs.writeFileSync(`${lock}/other.1.${Math.random()}.draft`, ""); // it never stands unchanged
  }, 500);
  t.after(() => clearInterval(renewing));
  const began = Date.now();
  const { status, stdout, stderr } = await start(["post", "r", "--from", "alice", "--title", "t", "--body", "b"]).ended;
  const took = Date.now() - began;
  assert.deepEqual([status, stdout], [1, ""]);
  assert.ok(stderr.includes(`the lock "${lock}" was not free for 20 s\n  try: rm -r ${lock}`), stderr);
  assert.ok(took >= 20_000 && took < 22_000, `${took} ms`);
  assert.ok(!fs.existsSync(at("r", "0001-alice-t.md")));
});

test("lock: waiting for it costs next to no CPU", { skip: process.platform !== "linux" && "needs /proc" }, async (t) => {
  const { lock, start } = channel(t);
  fs.mkdirSync(lock);
  const posting = start(["post", "r", "--from", "alice", "--body", "b"]);
  await new Promise((resolve) => setTimeout(resolve, 3500));
  const ticks = fs.readFileSync(`/proc/${posting.child.pid}/stat`, "utf8").split(" ").slice(13, 15).reduce((sum, n) => sum + Number(n), 0);
  assert.ok(ticks < 60, `${ticks} hundredths of a second`);
  assert.equal((await posting.ended).status, 0);
});

test("lock: SIGINT and SIGTERM while waiting for it end the post with nothing posted and the lock as it was", async (t) => {
  const { lock, start, at } = channel(t);
  fs.mkdirSync(lock);
  for (const [name, code] of [["SIGINT", 130], ["SIGTERM", 143]] as const) {
    const posting = start(["post", "r", "--from", "alice", "--title", "t", "--body", "b"]);
    await listening(posting);
    posting.child.kill(name);
    assert.equal((await posting.ended).status, code);
  }
  assert.deepEqual(fs.readdirSync(at("r")).sort(), [".cursors", "_meta.json", "_seq.lock"]);
});

test("lock: a storm of SIGTERM leaves no lock, no draft, and every number it said it posted", async (t) => {
  const { start, at } = channel(t);
  const posted: string[] = [];
  for (let i = 0; i < 30; i++) {
    const posting = start(["post", "r", "--from", "alice", "--title", `t${i}`, "--body", "b"]);
    setTimeout(() => posting.child.kill("SIGTERM"), 18 + i / 2);
    const { stdout } = await posting.ended;
    posted.push(...(/r\/(\S+)/.exec(stdout)?.slice(1) ?? []));
  }
  assert.ok(!fs.existsSync(at("r", "_seq.lock")));
  const files = fs.readdirSync(at("r")).filter((name) => /^\d/.test(name));
  for (const file of posted) assert.ok(files.includes(file), file);
  assert.deepEqual(files.map((name) => Number(name.slice(0, 4))), Array.from({ length: files.length }, (_, i) => i + 1));
});

test("lock: SIGHUP, SIGINT and SIGTERM while it is held leave neither lock nor draft, and the next goes on", async (t) => {
  const { lock, start, at, ok, post } = channel(t);
  post();
  fs.writeFileSync(at("r", "0001-bob-t.md"), fs.readFileSync(at("r", "0001-alice-t.md"), "utf8").replace("from: alice", "from: bob"));
  const other = at("r", ".cursors", "carol.lock");
  fs.mkdirSync(other);
  for (const [name, code] of [["SIGHUP", 129], ["SIGINT", 130], ["SIGTERM", 143]] as const) {
    fs.writeFileSync(`${other}/elsewhere.1.${name}.draft`, ""); // for which it waits, under the channel's lock
    const renumbering = start(["renumber", "r"]);
    await until("it has decided", () => fs.existsSync(lock) && fs.existsSync(at("r", ".cursors", ".moving")));
    renumbering.child.kill(name);
    assert.equal((await renumbering.ended).status, code);
    assert.deepEqual(fs.readdirSync(at("r")).sort(), [".cursors", "0001-alice-t.md", "0001-bob-t.md", "_meta.json"]);
  }
  fs.rmSync(other, { recursive: true });
  ok(["renumber", "r"]);
  assert.deepEqual(fs.readdirSync(at("r")).sort(), [".cursors", "0001-alice-t.md", "0002-bob-t.md", "_meta.json"]);
});

test("lock: readers work while it is held", async (t) => {
  const { lock, post, chat } = channel(t);
  post();
  fs.mkdirSync(lock);
  for (const args of [["peek", "r"], ["channels"], ["roster", "r"], ["read", "r", "--as", "bob"], ["wait", "r", "--as", "bob", "--timeout", "0"]]) {
    const [{ status, stderr }, took] = timed(() => chat(args));
    assert.ok(status === 0 || status === 2, stderr);
    assert.ok(took < 2000, `${args[0]} ${took} ms`);
  }
  await until("the lock is untouched", () => fs.existsSync(lock));
});

test("lock: a reader waits a moment for an empty one to go, as the reference holds it, and for none with a draft", async (t) => {
  const { lock, post, root } = channel(t);
  post();
  fs.mkdirSync(lock);
  let looks = 0;
  const real = fs.readdirSync;
  t.after(() => (fs.readdirSync = real));
  fs.readdirSync = ((name: string, ...rest: []) => ((looks += Number(name === lock)), real(name, ...rest))) as typeof real;
  assert.equal(read(openChannel(root, "r"), "bob").messages.length, 1);
  assert.ok(looks > 1 && looks <= 10, `${looks} looks, 5 ms apart`);
  fs.writeFileSync(`${lock}/elsewhere.1.x.draft`, "");
  looks = 0;
  read(openChannel(root, "r"), "bob");
  assert.equal(looks, 1);
});
