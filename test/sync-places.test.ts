// `sync` in repositories that are not as most are: of other ids, on other branches, moved, copied, sparse, in a conflict.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import { test, type TestContext } from "node:test";
import { gitThatFirst } from "./machines.ts";
import { place } from "./repos.ts";

const META = "r/_meta.json";

/** A root with one message, synced with a remote whose own branch, by git's default, is another one. */
function synced(t: TestContext) {
  const at = place(t);
  at.git(".", "init", "-q", "--bare", "-b", "master", "hub.git");
  at.ac("one", "init", "r");
  at.ac("one", "post", "r", "--as", "alice", "--body", "first");
  at.ac("one", "sync", "--init", at.path("hub.git"));
  const enter = (root: string): string => at.ac(root, "sync", "--init", at.path("hub.git"));
  const there = (file: string): string => at.git("hub.git", "show", `main:${file}`);
  const names = (): string[] => at.git("hub.git", "ls-tree", "-r", "--name-only", "-z", "main").split("\0");
  const push = (root: string, file: string, text: string): void => {
    fs.writeFileSync(at.path(root, file), text);
    at.commit(root);
    at.git(root, "push", "-q", "origin", "HEAD:main");
  };
  return { ...at, enter, there, names, push };
}

/** A repository of code that has a remote, and beside the code a root that is synced. */
function inCode(t: TestContext, ...before: string[][]) {
  const at = place(t);
  at.git(".", "init", "-q", "--bare", "hub.git");
  at.git(".", "init", "-q", "code");
  fs.mkdirSync(at.path("code", "src"));
  fs.writeFileSync(at.path("code", "src", "a.c"), "int x;\n");
  at.commit("code");
  at.git("code", "remote", "add", "origin", at.path("hub.git"));
  for (const args of before) at.git("code", ...args);
  at.ac("code/chat", "init", "r");
  at.ac("code/chat", "post", "r", "--as", "alice", "--body", "first");
  at.ac("code/chat", "sync", "--init", "origin");
  return at;
}

const sha256 = spawnSync("git", ["init", "-q", "--bare", "--object-format=sha256", "/dev/null/x"], {
  encoding: "utf8",
});
const skip = /unknown (option|hash)/.test(sha256.stderr) && "this git has no other ids";

test(
  "sync: where git's ids are longer all is sent, taken and taken away; --init makes a root like its remote",
  { skip },
  (t) => {
    const at = place(t);
    at.git(".", "init", "-q", "--bare", "--object-format=sha256", "hub.git");
    at.ac("one", "init", "r");
    fs.writeFileSync(at.path("one", "r", "notes.txt"), "x\n");
    at.ac("one", "sync", "--init", at.path("hub.git"));
    at.ac("two", "sync", "--init", `file://${at.path("hub.git")}`);
    fs.rmSync(at.path("one", "r", "notes.txt"));
    at.ac("one", "sync");
    at.ac("two", "post", "r", "--as", "bob", "--body", "hello", "--sync");
    at.ac("one", "sync");
    assert.deepEqual([at.news("one", "alice"), at.news("one", "alice")], [["hello"], []]);
    assert.equal(fs.existsSync(at.path("two", "r", "notes.txt")), false);
  },
);

test("sync: a lock of the remote, or a branch in the way, is named, and not taken for others who pushed first", (t) => {
  const { ac, git, path: at, fails, names } = synced(t);
  const lock = at("hub.git", "refs", "heads", "main.lock");
  ac("one", "post", "r", "--as", "alice", "--body", "second");
  fs.writeFileSync(lock, "");
  const locked = fails("one", 1, "unpushed", "sync", "--tries", "2");
  assert.ok(locked.message.includes("main.lock") && /^rm .*main\.lock$/.test(locked.try), JSON.stringify(locked));
  assert.equal(spawnSync("sh", ["-c", locked.try]).status, 0);
  ac("one", "sync");
  assert.ok(names().includes("r/0002-alice-second.md"));
  git("hub.git", "branch", "other/below", "main");
  const { message } = fails("one", 1, "unpushed", "sync", "--init", at("hub.git"), "--branch", "other");
  assert.match(message, /other\/below/);
});

test("sync: a branch that the remote protects is named without colours, and --branch is the way", (t) => {
  const { ac, git, path: at, fails } = synced(t);
  const script =
    "#!/bin/sh\nwhile read a b ref; do case $ref in */main) echo 'error: Protected branch' >&2; exit 1; esac; done\n";
  fs.writeFileSync(at("hub.git", "hooks", "pre-receive"), script, { mode: 0o755 });
  git("one", "config", "color.ui", "always");
  ac("one", "post", "r", "--as", "alice", "--body", "second");
  const { message, try: mend } = fails("one", 1, "unpushed", "sync");
  assert.match(message, /remote: error: Protected branch/);
  assert.match(mend, /^agent-chat sync --init URL --branch agent-chat/);
  ac("one", "sync", "--init", at("hub.git"), "--branch", "agent-chat");
  assert.match(git("hub.git", "ls-tree", "-r", "--name-only", "agent-chat"), /0002-alice-second/);
});

test("sync: a revert under way is named; a conflict in _meta.json that a stash left is not sent", (t) => {
  const { ac, git, tryGit, path: at, fails, there } = synced(t);
  ac("one", "join", "r", "--as", "alice");
  ac("one", "sync");
  const good = there(META);
  ac("one", "join", "r", "--as", "bob");
  git("one", "stash", "-q");
  ac("one", "join", "r", "--as", "carol");
  git("one", "add", "-A");
  git("one", "commit", "-q", "-m", "carol");
  assert.match(tryGit("one", "stash", "pop").stdout, /CONFLICT/);
  const { left_out } = JSON.parse(ac("one", "sync", "--json")) as { left_out: { path: string }[] };
  assert.deepEqual(
    left_out.map(({ path: file }) => file),
    [META],
  );
  assert.deepEqual((JSON.parse(there(META)) as { members: string[] }).members, ["alice", "carol"]);
  git("one", "checkout", "-q", "HEAD", "--", META);
  assert.notEqual(tryGit("one", "revert", "--no-edit", "HEAD~1").status, 0);
  const { message, try: mend } = fails("one", 1, "no_repo", "sync");
  assert.match(message, /a revert is under way/);
  fs.mkdirSync(at("one", ".git", "rebase-apply"), { recursive: true });
  fs.writeFileSync(at("one", ".git", "rebase-apply", "applying"), "");
  assert.match(fails("one", 1, "no_repo", "sync").try, / am --continue$/);
  fs.rmSync(at("one", ".git", "rebase-apply"), { recursive: true });
  fs.writeFileSync(at("one", META), good);
  git("one", "add", META);
  assert.equal(
    spawnSync("sh", ["-c", mend], {
      env: { ...process.env, GIT_EDITOR: "true", GIT_COMMITTER_NAME: "u", GIT_COMMITTER_EMAIL: "u@x" },
    }).status,
    0,
  );
  ac("one", "sync");
  assert.equal(there(META), good);
});

test("sync: a damaged _meta.json of the remote hides no channel, changes none, and the next good one is taken", (t) => {
  const { ac, git, enter, push, news, path: at } = synced(t);
  enter("two");
  git(".", "clone", "-q", "-b", "main", "hub.git", "hand");
  push("hand", META, "<<<<<<< \n");
  const before = fs.readFileSync(at("two", META), "utf8");
  ac("two", "sync");
  assert.equal(fs.readFileSync(at("two", META), "utf8"), before);
  enter("three");
  assert.deepEqual(news("three", "carol"), ["first"]);
  push("hand", META, '{"channel": "r", "members": ["dave"]}\n');
  for (const root of ["two", "three"]) {
    ac(root, "sync");
    assert.match(fs.readFileSync(at(root, META), "utf8"), /dave/);
  }
});

test("sync: what is left out of the remote stays there, though others push meanwhile and files here are left out too", (t) => {
  const { ac, git, enter, path: at, names, dir, chat } = synced(t);
  enter("two");
  git(".", "clone", "-q", "-b", "main", "hub.git", "hand");
  fs.writeFileSync(at("hand", "r", "big.bin"), Buffer.alloc(11_000_000));
  git("hand", "add", "-A");
  git("hand", "commit", "-q", "-m", "big");
  fs.writeFileSync(at("two", "r", "0009-eve-torn.md"), "---\nseq: 9\n");
  ac("two", "post", "r", "--as", "bob", "--body", "mine");
  const first = `if [[ " $* " == *" push "* && ! -e "${dir}/done" ]]; then touch "${dir}/done"; git -C "${at("hand")}" push -q origin HEAD:main; fi`;
  const { stdout } = chat(["sync", "--root", at("two"), "--json"], {
    env: { PATH: gitThatFirst({ dir }, first), GIT_CONFIG_GLOBAL: "/dev/null" },
  });
  const { left_out } = JSON.parse(stdout) as { left_out: { path: string }[] };
  assert.deepEqual(left_out.map(({ path: file }) => file).sort(), ["r/0009-eve-torn.md", "r/big.bin"]);
  ac("two", "sync");
  assert.deepEqual(
    names().filter((name) => /big|mine/.test(name)),
    ["r/0002-bob-mine.md", "r/big.bin"],
  );
});

test("sync: what of here was left out is sent once it is good, though others pushed meanwhile; what is removed there is not left out", (t) => {
  const { ac, git, enter, path: at, there, dir, chat } = synced(t);
  enter("two");
  git(".", "clone", "-q", "-b", "main", "hub.git", "hand");
  fs.writeFileSync(at("hand", "_odd"), "x\n");
  git("hand", "add", "-A");
  git("hand", "commit", "-q", "-m", "more");
  const good = fs.readFileSync(at("two", META), "utf8");
  fs.writeFileSync(at("two", META), "{");
  ac("two", "post", "r", "--as", "bob", "--body", "mine");
  const first = `if [[ " $* " == *" push "* && ! -e "${dir}/done" ]]; then touch "${dir}/done"; git -C "${at("hand")}" push -q origin HEAD:main; fi`;
  const env = { PATH: gitThatFirst({ dir }, first), GIT_CONFIG_GLOBAL: "/dev/null" };
  const leftOut = (text: string): string[] => (JSON.parse(text) as { left_out: { path: string }[] }).left_out.map((one) => one.path);
  assert.deepEqual(leftOut(chat(["sync", "--root", at("two"), "--json"], { env }).stdout), ["_odd", META]);
  fs.writeFileSync(at("two", META), good.replace('"members": []', '"members": ["bob"]'));
  ac("two", "sync");
  assert.match(there(META), /bob/);
  git("hand", "pull", "-q", "origin", "main");
  git("hand", "rm", "-q", "_odd");
  git("hand", "commit", "-q", "-m", "less");
  git("hand", "push", "-q", "origin", "HEAD:main");
  assert.deepEqual(leftOut(ac("two", "sync", "--json")), []);
});

test("sync: files here that not every machine could have are named, as is a repository in a channel", (t) => {
  const { ac, git, path: at } = synced(t);
  for (const name of ["a: b.txt", "two\nlines.txt", "_notes.md", ".hidden"])
    fs.writeFileSync(at("one", "r", name), "x\n");
  git("one/r", "init", "-q", "inner");
  fs.writeFileSync(at("one", "r", "inner", "f"), "x\n");
  const { left_out } = JSON.parse(ac("one", "sync", "--json")) as { left_out: { path: string; reason: string }[] };
  assert.deepEqual(left_out.map(({ path: file }) => file).sort(), [
    "r/_notes.md",
    "r/a: b.txt",
    "r/inner/",
    "r/two\nlines.txt",
  ]);
});

test("sync: a clone on a branch that the remote does not have goes with the one that holds channels", (t) => {
  const { ac, git, tryGit, news, path: at } = synced(t);
  tryGit(".", "clone", "-q", "hub.git", "two");
  git(".", "init", "-q", "-b", "trunk", "three");
  git("three", "remote", "add", "origin", at("hub.git"));
  ac("three", "init", "r");
  for (const root of ["two", "three"]) assert.match(ac(root, "sync"), /origin\/main/);
  ac("three", "post", "r", "--as", "carol", "--body", "hello", "--sync");
  ac("two", "sync");
  assert.deepEqual(news("two", "bob"), ["first", "hello"]);
  git("two", "switch", "-q", "-c", "apart");
  assert.match(ac("two", "sync"), /origin\/apart/, "it has what main has, and was made on purpose");
  ac("four", "sync", "--init", at("hub.git"), "--branch", "mine");
  ac("four", "init", "other");
  assert.match(ac("four", "sync"), /origin\/mine/);
  assert.deepEqual(git("hub.git", "for-each-ref", "--format=%(refname:short)").split("\n"), [
    "apart",
    "main",
    "mine",
    "",
  ]);
});

test("sync: --branch holds for a root that is begun already, and --remote NAME once is no move to that one", (t) => {
  const { ac, git, path: at, fails } = synced(t);
  git(".", "init", "-q", "-b", "notes", "two");
  git("two", "remote", "add", "origin", at("nowhere.git"));
  ac("two", "init", "r");
  fails("two", 1, "unpushed", "sync");
  git("two", "remote", "remove", "origin");
  assert.match(ac("two", "sync", "--init", at("hub.git"), "--branch", "notes"), /origin\/notes/);
  git(".", "init", "-q", "--bare", "copies.git");
  ac("three", "init", "other");
  ac("three", "sync", "--init", at("copies.git"));
  git("one", "branch", "-q", "-m", "main", "mine");
  for (const root of ["one", "two"]) git(root, "remote", "add", "copies", at("copies.git"));
  const config = git("two", "config", "--get-regexp", "^branch");
  assert.match(ac("two", "sync", "--remote", "copies"), /copies\/notes/);
  assert.equal(git("two", "config", "--get-regexp", "^branch"), config);
  assert.match(ac("one", "sync", "--remote", "copies"), /copies\/mine/);
  assert.match(ac("one", "sync"), /origin\/main/, "it goes on where it was");
});

test("sync: on no branch, as a submodule is, it names one that has the commit", (t) => {
  const { ac, git, path: at, fails } = synced(t);
  git(".", "init", "-q", "super");
  git("super", "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "-b", "main", at("hub.git"), "chat");
  git("super/chat", "checkout", "-q", "--detach");
  git("super/chat", "branch", "-q", "-D", "main");
  const { try: mend } = fails("super/chat", 1, "no_repo", "sync");
  assert.equal(spawnSync("sh", ["-c", mend]).status, 0, mend);
  ac("super/chat", "post", "r", "--as", "bob", "--body", "hello", "--sync");
  ac("one", "sync");
});

test("sync: on no branch, with commits that none has, what it says keeps them", (t) => {
  const { ac, git, fails, enter } = synced(t);
  enter("two");
  for (const key of ["name", "email"]) git("two", "config", `user.${key}`, "u@x");
  const commitOne = (body: string): void => {
    git("two", "checkout", "-q", "--detach");
    ac("two", "post", "r", "--as", "bob", "--body", body);
    git("two", "add", "-A");
    git("two", "commit", "-q", "-m", "by hand");
  };
  const mended = (): void => {
    const { try: mend } = fails("two", 1, "no_repo", "sync");
    assert.equal(spawnSync("sh", ["-c", mend]).status, 0, mend);
    ac("two", "sync");
    ac("one", "sync");
    assert.deepEqual(git("two", "rev-parse", "main"), git("one", "rev-parse", "main"));
  };
  commitOne("ahead");
  mended();
  commitOne("beside");
  git("two", "checkout", "-q", "main");
  git("two", "commit", "-q", "--allow-empty", "-m", "by hand");
  git("two", "checkout", "-q", "--detach", "@{-1}");
  mended();
  assert.match(ac("one", "peek", "r", "-n", "9"), /\nahead\n[^]*\nbeside\n/);
});

test("sync: a sparse clone, which would hide messages, is named, and what it says mends it", (t) => {
  const { ac, git, news, fails } = synced(t);
  git(".", "clone", "-q", "--sparse", "-b", "main", "hub.git", "two");
  const { try: mend } = fails("two", 1, "no_repo", "sync");
  assert.equal(spawnSync("sh", ["-c", mend]).status, 0, mend);
  ac("two", "sync");
  assert.deepEqual(news("two", "bob"), ["first"]);
});

test("sync: a work tree beside code that was moved with it is named, and what it says mends it", (t) => {
  const { ac, path: at, fails, git } = inCode(t);
  fs.renameSync(at("code"), at("moved"));
  ac("moved/chat", "post", "r", "--as", "bob", "--body", "second");
  for (const args of [["sync"], ["sync", "--init", "origin"]]) {
    const { try: mend } = fails("moved/chat", 1, "no_repo", ...args);
    if (args.length > 1) assert.equal(spawnSync("sh", ["-c", mend]).status, 0, mend);
  }
  ac("moved/chat", "sync");
  assert.match(git("hub.git", "ls-tree", "-r", "--name-only", "agent-chat"), /0002-bob-second/);
});

test("sync: a copy of a work tree beside code does nothing to the first, and what it says makes it one of its own", (t) => {
  const { ac, path: at, fails, git, news } = inCode(t);
  fs.cpSync(at("code"), at("copy"), { recursive: true });
  ac("copy/chat", "task", "r", "from the copy", "--as", "bob");
  const { message, try: mend } = fails("copy/chat", 1, "no_repo", "sync");
  assert.ok(message.includes(at("code", "chat")), message);
  assert.equal(spawnSync("sh", ["-c", mend]).status, 0, mend);
  ac("copy/chat", "sync", "--init", "origin");
  ac("code/chat", "post", "r", "--as", "alice", "--body", "second", "--sync");
  ac("copy/chat", "sync");
  assert.deepEqual(news("copy/chat", "bob"), ["first", "second"]);
  assert.match(git("hub.git", "ls-tree", "-r", "--name-only", "agent-chat"), /task-1/);
});

test("sync --init in a sparse work tree of code: a pull by hand brings what others posted", (t) => {
  const { ac, git, news, path: at } = inCode(t, ["sparse-checkout", "set", "src"]);
  git(".", "clone", "-q", "-b", "agent-chat", "hub.git", "two");
  ac("two", "post", "r", "--as", "bob", "--body", "second", "--sync");
  git("code/chat", "pull", "-q");
  assert.deepEqual(news("code/chat", "carol"), ["first", "second"]);
  assert.deepEqual([git("code", "status", "--porcelain"), fs.existsSync(at("code", "src", "a.c"))], ["", true]);
});

test("sync: a tag with the name of the branch changes nothing", (t) => {
  const { ac, git, enter } = synced(t);
  enter("two");
  git("two", "tag", "main");
  ac("two", "post", "r", "--as", "bob", "--body", "second", "--sync");
  assert.equal(git("two", "status", "--porcelain"), "");
  assert.deepEqual(git("hub.git", "for-each-ref", "--format=%(refname)").trim().split("\n"), ["refs/heads/main"]);
  ac("one", "sync");
});

test("sync: a damaged index is named with what mends it; without it nothing that was left out is taken off the remote", (t) => {
  const { ac, git, enter, path: at, fails, names } = synced(t);
  enter("two");
  git(".", "clone", "-q", "-b", "main", "hub.git", "hand");
  fs.writeFileSync(at("hand", "r", "big.bin"), Buffer.alloc(11_000_000));
  fs.writeFileSync(at("hand", "r", "0009-eve-torn.md"), "---\nseq: 9\n");
  fs.writeFileSync(at("hand", "r", "notes.txt"), "x\n");
  git("hand", "add", "-A");
  git("hand", "commit", "-q", "-m", "big");
  git("hand", "push", "-q", "origin", "HEAD:main");
  ac("two", "sync");
  for (const junk of ["x", "x".repeat(200)]) {
    fs.writeFileSync(at("two", ".git", "index"), junk);
    const { try: mend } = fails("two", 1, "git", "sync");
    assert.equal(spawnSync("sh", ["-c", mend]).status, 0, mend);
    fs.rmSync(at("two", "r", "notes.txt"), { force: true });
    ac("two", "sync");
  }
  assert.deepEqual(
    names().filter((name) => /big|torn|notes/.test(name)),
    ["r/0009-eve-torn.md", "r/big.bin"],
  );
  fs.writeFileSync(at("two", ".git", "refs", "heads", "main"), "x\n");
  const { message } = fails("two", 1, "git", "sync");
  assert.doesNotMatch(message, /on no branch/);
});
