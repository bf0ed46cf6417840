// How a root becomes one that is shared through git: empty or not, alone or inside a repository of code.
import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { assertLinear, fleet, pair, type Fleet, type Machine } from "./machines.ts";

/** Everything of a code repository that a sync must leave as it is. */
function snapshot({ git }: Fleet, code: string): string[] {
  const questions = ["status --porcelain", "rev-parse HEAD", "symbolic-ref HEAD", "ls-files -s", "stash list"];
  const files = fs.readdirSync(code).map((name) => `${name} ${fs.lstatSync(path.join(code, name)).size}`);
  return [
    ...questions.map((question) => git(code, ...question.split(" "))),
    files.filter((row) => !/^chat |^.git /.test(row)).join(),
  ];
}

/** A repository with a commit on main, and a change that is not committed. */
function codeRepository(net: Fleet): { code: string; origin: string } {
  const [code, origin] = [path.join(net.box.dir, "code"), path.join(net.box.dir, "code.git")];
  net.git(net.box.dir, "init", "-q", "--bare", "-b", "main", origin);
  net.git(net.box.dir, "init", "-q", "-b", "main", code);
  fs.writeFileSync(path.join(code, "main.c"), "int main;\n");
  fs.writeFileSync(path.join(code, "other.c"), "int other;\n");
  net.git(code, "add", ".");
  net.git(code, "commit", "-q", "-m", "code");
  net.git(code, "remote", "add", "origin", origin);
  net.git(code, "push", "-q", "origin", "main");
  fs.writeFileSync(path.join(code, "main.c"), "int changed;\n");
  fs.writeFileSync(path.join(code, "other.c"), "int staged;\n");
  net.git(code, "add", "other.c");
  return { code, origin };
}

test("sync --init: an empty root and an empty remote; what is posted there comes to the next root", (t) => {
  const net = fleet(t);
  const here = net.machine("here");
  assert.equal(here.sync("--init", net.remote).sent.length, 0);
  here.ok(["init", "review", "--members", "ann,bob"]);
  here.post("ann", "hello", "--to", "bob");
  assert.deepEqual(
    here.sync().sent.map(({ seq }) => seq),
    [1],
  );
  const there = net.machine("there");
  const synced = there.sync("--init", net.remote);
  assert.deepEqual([synced.came.map(({ file }) => file), synced.left_out], [["0001-ann-hello.md"], []]);
  assert.deepEqual(
    fs.readFileSync(there.at("review", "0001-ann-hello.md")),
    fs.readFileSync(here.at("review", "0001-ann-hello.md")),
  );
  assert.deepEqual([there.read("bob"), there.read("bob"), there.git("status", "--porcelain")], [["hello"], [], ""]);
  assert.equal(there.sync("--init", net.remote).commit, synced.commit, "once more, it is no error and changes nothing");
});

test("sync --init --branch: names the branch; what git takes for no name is exit 64", (t) => {
  const net = fleet(t);
  const here = net.machine("here");
  here.ok(["init", "review"]);
  here.post("ann", "hello");
  here.ok(["sync", "--init", net.remote, "--branch", "talk"]);
  assert.match(net.git(net.remote, "ls-tree", "-r", "--name-only", "talk"), /review\/0001-ann-hello\.md/);
  assert.equal(net.machine("odd").chat(["sync", "--init", net.remote, "--branch", "no..name"]).status, 64);
});

test("sync --init: two filled roots that never met have all of both, and members of both, in one line of commits", (t) => {
  const net = fleet(t);
  const [here, there] = [net.machine("here"), net.machine("there")];
  here.ok(["init", "review", "--members", "ann,bob", "--topic", "here"]);
  there.ok(["init", "review", "--members", "bob,cat", "--topic", "there"]);
  there.ok(["init", "only-there"]);
  for (const title of ["a", "b"]) here.post("ann", title, "--to", "all");
  for (const title of ["x", "y", "z"]) there.post("cat", title, "--to", "all");
  assert.deepEqual(there.read("bob"), ["x", "y", "z"]);
  here.sync("--init", net.remote);
  const { renumbered, came } = there.sync("--init", net.remote);
  assert.deepEqual(
    renumbered.map(({ was, seq }) => [was, seq]),
    [
      [1, 3],
      [2, 4],
      [3, 5],
    ],
  );
  assert.deepEqual(came.map(({ seq }) => seq).sort(), [1, 2]);
  here.sync();
  assert.deepEqual(here.files(), there.files());
  const members = (one: Machine): unknown =>
    (JSON.parse(fs.readFileSync(one.at("review", "_meta.json"), "utf8")) as { members: unknown }).members;
  assert.deepEqual(
    [members(here), members(there)],
    [
      ["ann", "bob", "cat"],
      ["ann", "bob", "cat"],
    ],
  );
  assert.deepEqual(
    [there.read("bob"), here.read("bob")],
    [
      ["a", "b"],
      ["a", "b", "x", "y", "z"],
    ],
    "bob was shown x, y, z there",
  );
  assert.ok(fs.existsSync(here.at("only-there", "_meta.json")));
  assertLinear(net);
});

test("sync --init NAME in a code repository: a work tree of a branch of it; its own branch, index and files stay", (t) => {
  const net = fleet(t);
  const { code, origin } = codeRepository(net);
  const before = snapshot(net, code);
  const here = net.machine("code/chat");
  here.ok(["init", "review"]);
  here.post("ann", "hello");
  here.ok(["sync", "--init", "origin"], { cwd: code });
  here.post("ann", "more");
  here.sync();
  assert.deepEqual(snapshot(net, code), before);
  assert.equal(fs.lstatSync(here.at(".git")).isFile(), true, "a work tree, no repository");
  assert.equal(net.git(origin, "rev-parse", "main"), before[1]);
  assert.match(net.git(origin, "ls-tree", "-r", "--name-only", "agent-chat"), /0002-ann-more/);
  assert.doesNotMatch(net.git(origin, "ls-tree", "-r", "--name-only", "agent-chat"), /main\.c/);
  net.git(code, "worktree", "prune");
  net.git(code, "gc", "-q", "--prune=now");
  assert.equal(here.git("status", "--porcelain"), "");
  const clone = net.machine("clone/.agent-chat");
  net.git(net.box.dir, "clone", "-q", origin, "clone");
  clone.ok(["sync", "--init", origin], { cwd: path.join(net.box.dir, "clone") }); // by the URL
  assert.equal(fs.lstatSync(clone.at(".git")).isFile(), true);
  assert.deepEqual(clone.read("bob"), ["hello", "more"]);
  clone.post("bob", "answer");
  clone.sync();
  here.sync();
  assert.deepEqual(here.read("ann"), ["answer"]);
  assert.deepEqual(snapshot(net, code), before);
});

test("sync --init in a code repository, after its work tree was deleted: all comes back, and nothing is taken off the remote", (t) => {
  const net = fleet(t);
  const { code, origin } = codeRepository(net);
  const here = net.machine("code/chat");
  here.ok(["init", "review"]);
  here.post("ann", "hello");
  here.ok(["task", "review", "work", "--as", "ann"]);
  here.ok(["sync", "--init", "origin"], { cwd: code });
  const tree = net.git(origin, "ls-tree", "-r", "agent-chat");
  fs.rmSync(here.root, { recursive: true });
  here.ok(["init", "review"]); // by who does not know that it is there
  here.ok(["sync", "--init", "origin"], { cwd: code });
  here.ok(["sync"]);
  assert.deepEqual([here.files(), fs.existsSync(here.at("review", "task-1.md"))], [["0001-ann-hello.md"], true]);
  assert.equal(net.git(origin, "ls-tree", "-r", "agent-chat"), tree);
  const second = net.machine("code/second");
  const refused = second.chat(["sync", "--init", "origin"], { cwd: code });
  assert.equal(refused.status, 1, "two work trees of one branch would move it under each other");
  assert.match(refused.stderr, /chat/);
  assert.equal(net.git(origin, "ls-tree", "-r", "agent-chat"), tree);
});

test("sync --init URL in a code repository: a repository of its own in it; that one stays as it is", (t) => {
  const net = fleet(t);
  const { code } = codeRepository(net);
  const before = snapshot(net, code);
  const here = net.machine("code/chat");
  here.ok(["init", "review"]);
  here.post("ann", "hello");
  here.ok(["sync", "--init", net.remote], { cwd: code });
  assert.deepEqual(snapshot(net, code), before);
  assert.equal(fs.lstatSync(here.at(".git")).isDirectory(), true);
  assert.match(net.git(net.remote, "ls-tree", "-r", "--name-only", "main"), /0001-ann-hello/);
});

test("sync: in somebody's code branch it refuses, changes nothing and names the two ways", (t) => {
  const net = fleet(t);
  const { code, origin } = codeRepository(net);
  const [below, top] = [net.machine("code/chat"), net.machine("code")];
  below.ok(["init", "review"]);
  const before = snapshot(net, code);
  const refused = below.chat(["sync", "--json"]);
  assert.deepEqual(
    [refused.status, (JSON.parse(refused.stderr) as { error: { code: string } }).error.code],
    [1, "no_repo"],
  );
  assert.match(refused.stderr, /sync --init URL.*sync --init origin/s);
  net.git(code, "add", "chat"); // messages on a branch of code
  assert.match(below.chat(["sync", "--init", "origin"]).stderr, /rm -r -q --cached/);
  net.git(code, "rm", "-rq", "--cached", "chat");
  assert.deepEqual(snapshot(net, code), before);
  top.ok(["init", "talk"]); // the root is the code's work tree itself
  const all = snapshot(net, code);
  assert.match(top.chat(["sync"]).stderr, /try: agent-chat sync --init URL --root \S+\/\.agent-chat/);
  const { status, stderr } = top.chat(["sync"]);
  assert.equal(status, 1, stderr);
  assert.match(stderr, /it is somebody's/);
  net.git(net.box.dir, "clone", "-q", origin, "other");
  net.git(`${net.box.dir}/other`, "commit", "-q", "--allow-empty", "-m", "more code");
  net.git(`${net.box.dir}/other`, "push", "-q", "origin", "main");
  assert.equal(top.chat(["read", "talk", "--as", "bob", "--sync"]).status, 0);
  assert.equal(top.chat(["sync"]).status, 1);
  assert.deepEqual(snapshot(net, code), all, "neither the index nor the branch, though the remote is ahead");
  net.git(code, "remote", "remove", "origin");
  assert.match(top.chat(["sync", "--init", net.remote]).stderr, /it is somebody's/);
  assert.equal(net.git(code, "remote"), "");
});

test("sync --init: what is staged for a first commit in the root is somebody's, and stays staged", (t) => {
  const net = fleet(t);
  const here = net.machine("here");
  here.ok(["init", "review"]);
  here.git("init", "-q", "-b", "main");
  fs.writeFileSync(here.at("main.c"), "int main;\n");
  here.git("add", "main.c");
  const refused = here.chat(["sync", "--init", net.remote]);
  assert.deepEqual([refused.status, /it is somebody's/.test(refused.stderr)], [1, true], refused.stderr);
  assert.equal(here.git("ls-files"), "main.c\n");
});

test("sync --init in a code repository: a folder whose name is a pattern to git is left alone by that too", (t) => {
  const net = fleet(t);
  const { code } = codeRepository(net);
  const before = snapshot(net, code)[0];
  const here = net.machine("code/a [chat]*");
  here.ok(["init", "review"]);
  here.post("ann", "hello");
  here.ok(["sync", "--init", net.remote], { cwd: code });
  assert.equal(net.git(code, "status", "--porcelain"), before);
});

test("sync --init: a remote whose branch is code is refused, and --branch makes one beside it", (t) => {
  const net = fleet(t);
  const { origin } = codeRepository(net);
  const head = net.git(origin, "rev-parse", "main");
  const here = net.machine("here");
  here.ok(["init", "review"]);
  assert.match(here.chat(["sync", "--init", origin]).stderr, /it is somebody's/);
  assert.deepEqual([fs.existsSync(here.at("main.c")), net.git(origin, "rev-parse", "main")], [false, head]);
  const other = net.machine("other");
  other.ok(["init", "review"]);
  other.ok(["sync", "--init", origin, "--branch", "agent-chat"]);
  assert.deepEqual(net.git(origin, "rev-parse", "main"), head);
});

test("sync --init: against a history that has nothing in common, after a rewrite, nothing is lost either", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  here.post("ann", "a");
  here.sync();
  const other = net.machine("other");
  other.ok(["init", "review"]);
  other.post("cat", "x");
  net.git(net.remote, "update-ref", "-d", "refs/heads/main");
  other.ok(["sync", "--init", net.remote]);
  here.sync();
  there.sync();
  assert.deepEqual(
    [here.files(), there.files()],
    [
      ["0001-cat-x.md", "0002-ann-a.md"],
      ["0001-cat-x.md", "0002-ann-a.md"],
    ],
  );
});

test("init --shared-cursors: what was shown on one machine is not shown again on the other", (t) => {
  const net = fleet(t);
  const here = net.machine("here");
  here.ok(["init", "review", "--shared-cursors"]);
  for (const title of ["a", "b"]) here.post("ann", title);
  assert.deepEqual(here.read("bob"), ["a", "b"]);
  here.post("ann", "c");
  here.sync("--init", net.remote);
  const there = net.joined("there");
  assert.deepEqual([there.read("bob"), there.read("bob")], [["c"], []]);
  there.sync();
  here.sync();
  assert.deepEqual(here.read("bob"), []);
});
