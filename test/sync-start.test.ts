// `sync` for somebody who is new to it: odd values, odd places, what the errors say, and that the second try mends the first.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import { test, type TestContext } from "node:test";
import { BIN, cleanEnv, prepare, REFERENCE, rows } from "./helpers.ts";
import { place } from "./repos.ts";

/** A root with one message, and an empty remote. */
function begun(t: TestContext) {
  const at = place(t);
  prepare(at.dir, "begun", () => {
    at.git(".", "init", "-q", "--bare", "hub.git");
    at.ac("one", "init", "r");
    at.ac("one", "post", "r", "--as", "alice", "--body", "first");
  });
  const made = (): string[] => fs.readdirSync(at.path("one")).filter((name) => name === ".git");
  return { ...at, hub: at.path("hub.git"), made };
}

/** A repository with code in it that has a remote, and a root inside. */
function inCode(t: TestContext, url = "../hub.git") {
  const at = place(t);
  prepare(at.dir, `in code ${url}`, () => {
    at.git(".", "init", "-q", "--bare", "hub.git");
    at.git(".", "init", "-q", "code");
    fs.writeFileSync(at.path("code", "a.c"), "int x;\n");
    at.commit("code");
    at.git("code", "remote", "add", "up", url);
    at.git("code", "push", "-q", "up", "main");
    at.ac("code/.agent-chat", "init", "r");
    at.ac("code/.agent-chat", "post", "r", "--as", "alice", "--body", "first");
  });
  return { ...at, hub: at.path("hub.git") };
}

test("sync: a root without git says so, and names the two ways", (t) => {
  const { fails, path: at } = begun(t);
  const { message, try: mend } = fails("one", 1, "no_repo", "sync");
  assert.equal(message, `${at("one")} is no git work tree of its own; sync --init URL makes it one; in a repository, sync --init origin keeps a branch of that for it`);
  assert.equal(mend, `agent-chat sync --init URL --root ${at("one")}`);
  fails("nowhere", 1, "no_repo", "sync");
  assert.ok(!fs.existsSync(at("nowhere")));
});

test("sync: values that cannot be are wrong usage, and nothing is made", (t) => {
  const { fails, made, hub } = begun(t);
  for (const [option, value, says] of [
    ["--tries", "0", '--tries "0" is not a whole number from 1'],
    ["--tries", "many", '--tries "many" is not a whole number from 1'],
    ["--timeout", "0", '--timeout "0" is no time to wait for a remote'],
    ["--timeout", "-1", '--timeout "-1" is not a number of seconds from 0 to 1000000000'],
    ["--init", "", '--init "" is no URL'],
    ["--init", "--upload-pack=touch x", '--init "--upload-pack=touch x" is no URL'],
    ["--branch", "x", "--branch needs --init"],
  ] as const) {
    const { message, try: mend } = fails("one", 64, message_code(says), "sync", `${option}=${value}`);
    assert.deepEqual([message, mend], [says, "agent-chat sync --help"]);
  }
  for (const branch of ["a b", "-x", "a..b", "HEAD", "", "x.lock", "@{-1}"])
    assert.equal(fails("one", 64, "bad_value", "sync", "--init", hub, `--branch=${branch}`).message, `--branch ${JSON.stringify(branch)} is no name of a branch`);
  fails("one", 64, "usage", "sync", "extra");
  fails("one", 64, "bad_value", "wait", "r", "--as", "b", "--sync", "soon");
  fails("one", 64, "usage", "post", "r", "--as", "b", "--body", "x", "--sync", "yes");
  assert.deepEqual(made(), []);
});

/** Which code a message has. */
const message_code = (says: string): string => (says.includes("needs") ? "usage" : "bad_value");

test("sync: --init with a path that leads nowhere makes nothing, and says how to make a remote there", (t) => {
  const { fails, made, ac, path: at, git } = begun(t);
  const { message, try: mend } = fails("one", 1, "no_remote", "sync", "--init", "../my hub.git");
  const there = at("..", "my hub.git");
  assert.equal(message, `--init "${there}" is neither a git repository, nor a remote of one around ${at("one")}`);
  assert.equal(mend, `git init --bare '${there}'`);
  assert.match(fails("new", 1, "no_remote", "sync", "--init", "origin").try ?? "", /^agent-chat sync --init origin --root \.agent-chat, at the top of /);
  assert.deepEqual([made(), fs.existsSync(at("new"))], [[], false]);
  git(".", "init", "-q", "--bare", "my hub.git");
  assert.equal(ac("one", "sync", "--init", "my hub.git"), `synced ${at("one")} with origin/main: 1 message sent, 0 came\n`);
});

test("sync: --init again mends a URL that was not reached, and names as sent what was committed before", (t) => {
  const { fails, ac, path: at, hub, git } = begun(t);
  const { message, try: mend } = fails("one", 1, "unpushed", "sync", "--init", "http://127.0.0.1:1/x.git");
  assert.match(message, /^git fetch: unable to access .*; what is new here is kept, and not pushed$/);
  assert.equal(mend, "agent-chat sync");
  const [synced] = rows<{ sent: unknown[] }>(ac("one", "sync", "--init", hub, "--json"));
  assert.deepEqual(synced!.sent, [{ channel: "r", seq: 1, file: "0001-alice-first.md" }]);
  assert.match(ac("one", "sync", "--init", hub), /: 0 messages sent, 0 came\n$/);
  git(".", "init", "-q", "--bare", "other.git");
  const second = fails("one", 1, "no_remote", "sync", "--init", "other.git");
  assert.equal(second.message, `${at("one")} has the remote origin already: ${hub}`);
  assert.equal(second.try, `git -C ${at("one")} remote set-url origin ${at("other.git")}`);
  const third = fails("one", 1, "no_remote", "sync", "--remote", "nope");
  assert.equal(third.message, `${at("one")} has no git remote "nope"; there are: origin`);
  assert.equal(third.try, `agent-chat sync --remote origin --root ${at("one")}`);
});

test("sync: what is sent names messages under the numbers that they were pushed with", (t) => {
  const { ac, hub } = begun(t);
  for (const root of ["one", "two"]) ac(root, "sync", "--init", hub);
  ac("one", "post", "r", "--as", "alice", "--body", "A");
  ac("two", "post", "r", "--as", "bob", "--body", "B");
  ac("one", "sync");
  const [synced] = rows<{ sent: { file: string }[]; came: { file: string }[] }>(ac("two", "sync", "--json"));
  assert.deepEqual([synced!.sent.map(({ file }) => file), synced!.came.map(({ file }) => file)], [["0003-bob-b.md"], ["0002-alice-a.md"]]);
});

test("sync: --init --branch again puts the messages on another branch, where the first could not be pushed", (t) => {
  const { git, fails, ac, path: at } = begun(t);
  git(".", "init", "-q", "work");
  fs.writeFileSync(at("work", "README.md"), "x\n");
  git("work", "add", "-A");
  git("work", "commit", "-q", "-m", "x");
  const { message, try: mend } = fails("one", 1, "unpushed", "sync", "--init", "work");
  assert.match(message, /branch is currently checked out/);
  assert.equal(mend, "agent-chat sync --init URL --branch agent-chat");
  assert.match(ac("one", "sync", "--init", "work", "--branch", "agent-chat"), / with origin\/agent-chat: 1 message sent, 0 came\n/);
  assert.deepEqual([git("work", "branch", "--format=%(refname:short)"), git("work", "status", "--short")], ["agent-chat\nmain\n", ""]);
  assert.match(ac("one", "sync"), /: 0 messages sent/);
});

test("sync: a branch of the remote that holds code is refused by name, and --branch is the way", (t) => {
  const { fails, ac } = inCode(t);
  ac("one", "init", "r");
  const { message, try: mend } = fails("one", 1, "no_repo", "sync", "--init", "hub.git");
  assert.equal(message, 'the branch main of origin holds more than channels ("a.c"): it is somebody\'s, and no message is put there');
  assert.equal(mend, "agent-chat sync --init URL --branch agent-chat");
  assert.match(ac("one", "sync", "--init", "hub.git", "--branch", "agent-chat"), /^synced /);
});

test("sync: a root that is committed with the code is left to git, which takes it along", (t) => {
  const { fails, ac, git, commit, path: at } = inCode(t);
  commit("code");
  const { message, try: mend } = fails("code/.agent-chat", 1, "no_repo", "sync");
  assert.match(message, /: \d files of it are on a branch of .*\/code, and travel with that, by git add, commit, pull and push$/);
  assert.equal(mend, `git -C ${at("code")} pull`);
  git("code", "push", "-q", "up", "main");
  git(".", "clone", "-q", "hub.git", "other");
  assert.match(ac("other/.agent-chat", "read", "--as", "bob"), /\nfirst\n/);
});

test("sync: in a repository, a wrong branch or remote leaves it as it was, and the next try works", (t) => {
  const { fails, ac, git, path: at } = inCode(t, "../hub.git");
  const root = "code/.agent-chat";
  const first = fails(root, 1, "no_repo", "sync");
  assert.match(first.message, /: it lies in the work tree .*\/code, and no message is put on somebody's branch; /);
  assert.equal(first.try, `agent-chat sync --init up --root ${at(root)}`);
  const config = fs.readFileSync(at("code", ".git", "config"), "utf8");
  fails(root, 64, "bad_value", "sync", "--init", "up", "--branch", "a b");
  const { message, try: mend } = fails(root, 1, "no_remote", "sync", "--init", "origin");
  assert.equal(message, `--init "origin" is neither a git repository, nor a remote of one around ${at(root)}`);
  assert.equal(mend, "agent-chat sync --init up");
  assert.equal(fails(root, 1, "no_repo", "sync", "--init", "up", "--branch", "main").try, "agent-chat sync --init up --branch agent-chat");
  assert.equal(fs.readFileSync(at("code", ".git", "config"), "utf8"), config);
  assert.match(ac(root, "sync", "--init", "up"), / with up\/agent-chat: 1 message sent, 0 came\n/); // its URL is relative to the repository around
  assert.match(ac(root, "sync", "--init", "up"), /: 0 messages sent, 0 came\n/);
  git(".", "init", "-q", "--bare", "other.git");
  assert.match(fails(root, 1, "no_remote", "sync", "--init", "other.git").message, / has no git remote ".*\/other\.git"; there are: up$/);
  assert.deepEqual([git("code", "remote", "-v").split("\n")[0], git("code", "status", "--short"), git("code", "branch", "--show-current")], ["up\t../hub.git (fetch)", "", "main\n"]);
});

test("sync: refuses a root that is a bare repository, or lies in git's own folder", (t) => {
  const { fails, git, path: at, hub } = begun(t);
  const before = fs.readdirSync(hub).sort();
  assert.equal(fails("hub.git", 1, "no_repo", "sync", "--init", hub).message, `${hub} is, or lies in, git's own folder of a repository`);
  git("one", "init", "-q");
  fails("one/.git/chat", 1, "no_repo", "sync", "--init", hub);
  assert.deepEqual([fs.readdirSync(hub).sort(), fs.existsSync(at("one", ".git", "chat"))], [before, false]);
});

test("sync: a root and a remote may have spaces, umlauts, a leading dash and dots, and the root may be a link", (t) => {
  const { ac, git, path: at, ok } = begun(t);
  git(".", "init", "-q", "--bare", "h\u00fcb 1.git");
  for (const root of ["a b", "\u00fc 'x'", "-dash", "dot.ted"]) {
    ac(root, "init", "my.chan_v2");
    ac(root, "post", "my.chan_v2", "--as", "bob", "--body", root);
    assert.equal(ac(root, "sync", "--init", "h\u00fcb 1.git").split("\n")[0]!.replace(/: .*/, ""), `synced ${at(root)} with origin/main`);
  }
  for (const root of ["a b", "\u00fc 'x'"]) ac(root, "sync");
  assert.deepEqual(rows<{ body: string }>(ac("a b", "read", "--all", "--as", "zed", "--json")).map(({ body }) => body.trim()), ["a b", "\u00fc 'x'", "-dash", "dot.ted"]);
  fs.symlinkSync("a b", at("link"));
  assert.match(ac("link", "sync"), /: 0 messages sent, 0 came\n$/);
  assert.match(ok(["sync", "--root=-dash"]), /^synced .*\/-dash with origin\/main: 0 messages sent, 2 came\n$|^synced .*: 0 messages sent, [12] came\n$/);
});

test("post: --sync, claim, done, ask and read in a root without git do it here, say what was not pushed, and exit 1", (t) => {
  const { fails, try: attempt, ac, files } = begun(t);
  ac("one", "task", "r", "x", "--as", "alice");
  const what = (...args: string[]): string => fails("one", 1, "unpushed", ...args).message.replace(/: .*/, "");
  assert.equal(what("post", "r", "--as", "bob", "--body", "x", "--sync"), "the message of bob to r is posted here, and not pushed");
  assert.equal(what("ask", "r", "--as", "bob", "--to", "alice", "--body", "y", "--sync", "--timeout", "1"), "the message of bob to r is posted here, and not pushed");
  assert.equal(what("claim", "r", "1", "--as", "bob", "--sync"), "task-1 is claimed here, and that is not pushed");
  assert.equal(what("done", "r", "1", "--as", "bob", "--sync"), "task-1 is done here, and that is not pushed");
  const { status, stderr, stdout } = attempt("one", "read", "r", "--as", "bob", "--sync");
  assert.equal(status, 0);
  assert.match(stderr, /^agent-chat: not fetched: .* is no git work tree of its own/);
  assert.match(stdout, /#1 alice/);
  assert.deepEqual(files("one").filter((file) => file.startsWith("task")), ["task-1.DONE-bob.md"]);
});

const nobody = process.getuid?.() !== 0 || spawnSync("setpriv", ["--version"]).status !== 0 ? "needs root and setpriv" : false;

test("sync: a repository of somebody else's, or that may not be written, is named with what mends it", { skip: nobody }, (t) => {
  const { ac, fails, path: at, hub } = begun(t);
  ac("one", "sync", "--init", hub);
  spawnSync("chown", ["-R", "65534", at("one")]);
  const { message, try: mend } = fails("one", 1, "git", "sync");
  assert.match(message, /dubious ownership/);
  assert.equal(mend, `git config --global --add safe.directory ${at("one")}`);
  fs.chmodSync(at(), 0o755);
  spawnSync("chmod", ["-R", "a-w", at("one", ".git")]);
  const run = ["--reuid=65534", "--regid=65534", "--clear-groups", process.execPath, BIN, "sync", "--root", at("one"), "--json"];
  const { stderr, status } = spawnSync("setpriv", run, { encoding: "utf8", env: cleanEnv({ HOME: at(), GIT_CONFIG_GLOBAL: "/dev/null" }) });
  const { error } = JSON.parse(stderr) as { error: { code: string; message: string; try: string } };
  assert.deepEqual([status, error.code], [1, "no_access"], stderr);
  assert.match(error.message, /Unable to create '.*index\.lock': Permission denied/);
  assert.match(error.try, /^choose a root you may write/);
});

test("sync: its help, and that of all that takes --sync, fits 80 columns", (t) => {
  const { ok } = place(t);
  for (const command of ["sync", "renumber", "post", "ask", "claim", "done", "read", "wait", "init"])
    for (const line of ok([command, "--help"]).split("\n")) assert.ok(line.length <= 80, `${command}: ${line}`);
});

const skip = !fs.existsSync(REFERENCE) || spawnSync("python3", ["--version"]).status !== 0 ? "no reference here" : false;

test("reference: posts and reads in a root between syncs; its messages travel, and its cursor hides nothing", { skip }, (t) => {
  const { ac, hub, path: at, news, files } = begun(t);
  const ref = (root: string, ...args: string[]): string => {
    const { status, stdout, stderr } = spawnSync("python3", [REFERENCE, ...args], { env: cleanEnv({ AGENT_CHAT_ROOT: at(root) }), encoding: "utf8" });
    assert.equal(status, 0, stderr);
    return stdout;
  };
  for (const root of ["one", "two"]) ac(root, "sync", "--init", hub);
  ref("one", "post", "r", "--from", "py", "--title", "p1", "--body", "p1");
  ref("two", "post", "r", "--from", "pz", "--title", "p2", "--body", "p2");
  assert.match(ref("two", "read", "r", "--as", "carol"), /seq: 1\n[^]*seq: 2\n/);
  assert.equal(fs.readFileSync(at("two", "r", ".cursors", "carol.txt"), "utf8"), "2");
  for (const root of ["one", "two", "one"]) ac(root, "sync");
  assert.deepEqual([files("one"), files("two")], [["0001-alice-first.md", "0002-py-p1.md", "0003-pz-p2.md"], ["0001-alice-first.md", "0002-py-p1.md", "0003-pz-p2.md"]]);
  assert.deepEqual([news("two", "carol"), news("two", "carol"), news("one", "carol")], [["p1"], [], ["first", "p1", "p2"]]);
  ref("two", "post", "r", "--from", "pz", "--title", "p4", "--body", "p4");
  assert.match(ref("two", "read", "r", "--as", "dave"), /seq: 1\n[^]*seq: 4\n/);
  for (const root of ["two", "one"]) ac(root, "sync");
  assert.match(ref("one", "read", "r", "--as", "carol"), /seq: 4\n/);
  assert.deepEqual(news("two", "dave"), []);
});

test("sync: in a work tree that holds code it touches neither branch nor index, whoever is ahead, and says where a root can be", (t) => {
  const { ac, git, fails, path: at } = inCode(t);
  ac("code", "init", "r");
  git("code", "add", "r");
  git("code", "commit", "-q", "-m", "with a channel");
  git("code", "push", "-q", "up", "main");
  fs.appendFileSync(at("code", "a.c"), "int y;\n");
  git("code", "commit", "-q", "-a", "-m", "more");
  git("code", "push", "-q", "up", "main");
  git("code", "reset", "-q", "--hard", "HEAD~1");
  fs.appendFileSync(at("code", "a.c"), "int z;\n");
  git("code", "add", "a.c");
  const state = (): string[] => [["rev-parse", "HEAD"], ["symbolic-ref", "HEAD"], ["status", "--short"], ["config", "--list", "--local"]].map((args) => git("code", ...args));
  const before = state();
  git(".", "init", "-q", "--bare", "chat.git");
  ac("other", "init", "x");
  ac("other", "sync", "--init", "chat.git");
  for (const args of [[], ["--init", "up"], ["--init", "up", "--branch", "z"], ["--init", "chat.git"], ["--init", "chat.git", "--branch", "z"]]) {
    const { message, try: mend } = fails("code", 1, "no_repo", "sync", ...args);
    assert.equal(message, `the branch main of ${at("code")} holds more than channels ("a.c"): it is somebody's, and no message is put there`);
    assert.equal(mend, `agent-chat sync --init URL --root ${at("code", ".agent-chat")}`);
    assert.deepEqual(state(), before);
  }
  assert.match(ac("code/.agent-chat", "sync", "--init", "chat.git"), /: 1 message sent, 0 came\n/);
  assert.deepEqual(state(), before.map((text) => text.replace("?? .agent-chat/\n", "")));
  git("code", "rm", "-r", "-q", "--cached", "r"); // what is tracked by it already is named
  fs.writeFileSync(at("code", "r", "0001-x-y.md"), "");
  git("code", "add", "-f", "r");
  assert.equal(fails("code/r", 1, "no_repo", "sync", "--init", "chat.git").try, `git -C ${at("code")} rm -r -q --cached ${at("code", "r")}`);
});

test("sync: goes on where something was added to git's index by hand, and changed again", (t) => {
  const { ac, git, hub, path: at } = begun(t);
  ac("one", "sync", "--init", hub);
  ac("one", "join", "r", "--as", "alice");
  git("one", "add", "-A");
  ac("one", "join", "r", "--as", "bob");
  ac("one", "sync");
  ac("two", "sync", "--init", hub);
  assert.equal(fs.readFileSync(at("two", "r", "_meta.json"), "utf8"), fs.readFileSync(at("one", "r", "_meta.json"), "utf8"));
  assert.equal(git("one", "status", "--short"), "");
});
