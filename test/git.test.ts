// Roots that git carries: clones merged by hand, and what settles numbers that two messages have: `renumber`.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import { test, type TestContext } from "node:test";
import * as chat from "../chat.ts";
import { BIN, cleanEnv, rows, until } from "./helpers.ts";
import { clones, place, type Shown } from "./repos.ts";

/** A channel with these messages, as clones leave it: number, sender, title, second, and more of the header. */
function written(t: TestContext, ...messages: (readonly [number, string, string, number, string?, string?])[]) {
  const at = place(t);
  at.ac("one", "init", "r");
  for (const [seq, from, title, second, header = "to: all\n", body = `${from} ${title} ${second}`] of messages) {
    const ts = `2026-01-01T00:00:${String(second).padStart(2, "0")}+00:00`;
    const text = `---\nseq: ${seq}\nfrom: ${from}\n${header}channel: r\nts: ${ts}\nstatus: discussion\ntitle: ${/:/.test(title) ? `"${title}"` : title}\n---\n${body}\n`;
    fs.writeFileSync(at.path("one", "r", `${String(seq).padStart(4, "0")}-${from}-${title.replace(/\W+/g, "-")}.md`), text);
  }
  const cursor = (name: string, text?: string): string => {
    const file = at.path("one", "r", ".cursors", `${name}.txt`);
    if (text !== undefined) fs.writeFileSync(file, text);
    return fs.readFileSync(file, "utf8");
  };
  const replies = (): unknown[] => at.all("one").filter(({ reply_to }) => reply_to !== null).map(({ file, reply_to }) => [file, reply_to]);
  return { ...at, cursor, replies, renumber: (...more: string[]) => at.try("one", "renumber", "r", ...more) };
}

// ---- by hand

for (const way of ["--no-rebase", "--rebase"]) {
  test(`git: two clones that post, claim, read and make tasks are merged without a conflict (pull ${way})`, async (t) => {
    const { ac, git, commit, news, files, start, path: at, try: attempt } = clones(t);
    for (const [root, name, task] of [["one", "alice", "1"], ["two", "bob", "2"]] as const) {
      for (const body of ["A", "B"]) ac(root, "post", "r", "--as", name, "--body", `${name} ${body}`);
      ac(root, "claim", "r", task, "--as", name);
      ac(root, "task", "r", "mine", "--as", name, "--id", `of-${name}`);
      ac(root, "status", "--as", name, "--set", "busy", "--note", "merging");
      news(root, name);
    }
    const waiting = start("two", "wait", "r", "--as", "waiter", "--from", "nobody", "--timeout", "60");
    await until("it waits", () => fs.existsSync(at("two", "r", ".cursors", "waiter.wait")));
    fs.mkdirSync(at("two", "r", "_seq.lock"));
    fs.writeFileSync(at("two", "r", "_seq.lock", "draft"), "half");
    for (const root of ["one", "two"]) commit(root);
    fs.rmSync(at("two", "r", "_seq.lock"), { recursive: true });
    waiting.child.kill("SIGTERM");
    await waiting.ended;
    git("one", "push", "-q");
    git("two", "pull", "-q", way, "--no-edit");
    git("two", "push", "-q");
    git("one", "pull", "-q", "--ff-only");
    const carried = git("two", "ls-files").trim().split("\n").sort();
    assert.deepEqual(carried.filter((file) => !/^r\/(\d{4}-[^/]*|task-[^/]*|_meta\.json|\.tasks\/[12]\..*\.json)$/.test(file)), [".gitattributes", ".gitignore"]);
    for (const root of ["one", "two"]) {
      assert.deepEqual(files(root).filter((file) => file.startsWith("task")), ["task-1.CLAIMED-alice.md", "task-2.CLAIMED-bob.md", "task-of-alice.md", "task-of-bob.md"]);
      assert.deepEqual(news(root, "carol"), ["alice A", "alice B", "bob A", "bob B", "first"]);
      assert.deepEqual([news(root, "alice"), news(root, "bob")], root === "one" ? [["bob A", "bob B"], ["alice A", "alice B", "first"]] : [["bob A", "bob B"], ["alice A", "alice B"]]);
      for (const name of ["carol", "alice", "bob"]) assert.deepEqual(news(root, name), []);
    }
    assert.match(attempt("two", "channels").stderr, /"r": messages that share a number: 0002-alice-alice-a\.md, 0002-bob-bob-a\.md, 0003-alice-alice-b\.md, 0003-bob-bob-b\.md; to settle it: agent-chat renumber r --root \S+\n/);
    ac("two", "renumber", "r");
    assert.equal(attempt("two", "channels").stderr, "");
    for (const name of ["carol", "alice", "bob"]) assert.deepEqual(news("two", name), []);
    assert.deepEqual(news("two", "dave"), ["alice A", "alice B", "bob A", "bob B", "first"]);
  });
}

test("git: who read one of two messages with one number before the merge is shown both, then neither", (t) => {
  const { ac, git, commit, news } = clones(t);
  ac("one", "post", "r", "--as", "alice", "--body", "A");
  ac("two", "post", "r", "--as", "bob", "--body", "B");
  assert.deepEqual(news("two", "carol"), ["B", "first"]);
  for (const root of ["one", "two"]) commit(root);
  git("one", "push", "-q");
  git("two", "pull", "-q", "--no-rebase", "--no-edit");
  assert.deepEqual(news("two", "carol"), ["A", "B"]);
  assert.deepEqual(news("two", "carol"), []);
});

test("init: --shared-cursors lets git carry cursors and statuses, and neither locks nor heartbeats", (t) => {
  const { ac, git, news, commit, path: at } = clones(t, "--shared-cursors");
  assert.deepEqual(news("one", "bob"), ["first"]);
  ac("one", "status", "--as", "bob", "--set", "busy", "--note", "x");
  for (const name of ["bob.wait", "bob.lock", ".moving", ".moved"]) fs.writeFileSync(at("one", "r", ".cursors", name), "");
  commit("one");
  git("one", "push", "-q");
  git("two", "pull", "-q");
  assert.deepEqual(git("two", "ls-files", "r/.cursors").trim().split("\n"), ["r/.cursors/bob.status", "r/.cursors/bob.txt"]);
  assert.deepEqual([news("two", "bob"), news("two", "carol")], [[], ["first"]]);
});

test("post: a reply to a number that two messages have says so, and goes to both", (t) => {
  const { try: attempt, all } = written(t, [1, "alice", "a", 1], [1, "bob", "b", 2]);
  const { status, stderr, stdout } = attempt("one", "post", "r", "--as", "carol", "--reply", "1", "--body", "which?");
  assert.equal(status, 0);
  assert.match(stderr, /2 messages are #1: 0001-alice-a\.md, 0001-bob-b\.md\n/);
  assert.match(stdout, /^posted #2 [^]* {2}to alice, bob; /);
  assert.equal(all("one").at(-1)!.reply_to, 1);
});

test("git: of one task that both clones claimed both files are there after the merge, and tasks notes it", (t) => {
  const { ac, git, tryGit, commit, files, try: attempt } = clones(t);
  ac("one", "claim", "r", "1", "--as", "alice");
  ac("two", "claim", "r", "1", "--as", "bob");
  for (const root of ["one", "two"]) commit(root);
  git("one", "push", "-q");
  assert.match(tryGit("two", "pull", "--no-rebase", "--no-edit").stdout, /CONFLICT \(rename\/rename\)/);
  commit("two", "both");
  assert.deepEqual(files("two").filter((file) => file.startsWith("task-1")), ["task-1.CLAIMED-alice.md", "task-1.CLAIMED-bob.md"]);
  const { stderr, stdout } = attempt("two", "tasks", "r");
  assert.match(stderr, /task-1 is there 2 times: task-1\.CLAIMED-alice\.md, task-1\.CLAIMED-bob\.md/);
  assert.match(stdout, /task 1; alice since [^]*task 1; bob since/);
  assert.equal(attempt("two", "claim", "r", "1", "--as", "carol").status, 3);
});

test("git: tasks that both clones gave one number are a conflict, and git names the file", (t) => {
  const { ac, git, tryGit, commit, files } = clones(t);
  ac("one", "task", "r", "of one", "--as", "alice");
  ac("two", "task", "r", "of two", "--as", "bob");
  for (const root of ["one", "two"]) commit(root);
  git("one", "push", "-q");
  assert.match(tryGit("two", "pull", "--no-rebase", "--no-edit").stdout, /CONFLICT \(add\/add\): Merge conflict in r\/task-3\.md/);
  git("two", "checkout", "-q", "--theirs", "r/task-3.md");
  commit("two", "theirs");
  assert.match(ac("two", "tasks", "r"), /open {5}task-3 {2}of one; from alice/);
  assert.deepEqual(files("two").filter((file) => file.startsWith("task")), ["task-1.md", "task-2.md", "task-3.md"]);
});

// ---- renumber

test("renumber: of three with one number, and of several such numbers, the later ones go to the end as they were written", (t) => {
  const { renumber, files, all, news } = written(t, [1, "a", "x", 1], [2, "b", "x", 9], [2, "c", "x", 3], [2, "d", "x", 5], [3, "e", "x", 4], [3, "f", "x", 4], [4, "g", "x", 2]);
  const before = all("one").map(({ body }) => body).sort();
  const { status, stdout, stderr } = renumber("--json");
  assert.deepEqual([status, stderr], [0, ""]);
  assert.deepEqual(rows(stdout).map((row) => [row["from"], row["file"], row["was"], row["seq"], row["reply_to"], row["channel"]]), [
    ["0002-b-x.md", "0007-b-x.md", 2, 7, null, "r"],
    ["0002-d-x.md", "0006-d-x.md", 2, 6, null, "r"],
    ["0003-f-x.md", "0005-f-x.md", 3, 5, null, "r"],
  ]);
  assert.deepEqual(files("one"), ["0001-a-x.md", "0002-c-x.md", "0003-e-x.md", "0004-g-x.md", "0005-f-x.md", "0006-d-x.md", "0007-b-x.md"]);
  assert.deepEqual(all("one").map(({ seq }) => seq), [1, 2, 3, 4, 5, 6, 7]);
  assert.deepEqual(all("one").map(({ body }) => body).sort(), before);
  assert.equal(news("one", "zed").length, 7);
});

test("renumber: a reply follows its message by its title, its recipient or its time; one that does not tell is left and noted", (t) => {
  const { renumber, replies } = written(
    t,
    [1, "ann", "plan", 10],
    [1, "bob", "ship it", 20],
    [2, "cy", "re: plan", 30, "to: ann, bob\nreply_to: 1\n"],
    [3, "cy", "re: ship it", 30, "to: ann, bob\nreply_to: 1\n"],
    [4, "cy", "yes", 30, "to: bob\nreply_to: 1\n"],
    [5, "cy", "early", 15, "to: all\nreply_to: 1\n"],
    [6, "cy", "dunno", 30, "to: all\nreply_to: 1\n"],
    [7, "cy", "other", 30, "to: all\nreply_to: 2\n"],
  );
  const { status, stdout, stderr } = renumber();
  assert.equal(status, 0);
  assert.equal(stdout, "renumbered 0001-bob-ship-it.md -> 0008-bob-ship-it.md  now #8\n0003-cy-re-ship-it.md answers #8 now\n0004-cy-yes.md answers #8 now\n");
  assert.equal(stderr, 'agent-chat: "0006-cy-dunno.md" answers #1, and does not tell which: it still does\n');
  assert.deepEqual(replies(), [["0002-cy-re-plan.md", 1], ["0003-cy-re-ship-it.md", 8], ["0004-cy-yes.md", 8], ["0005-cy-early.md", 1], ["0006-cy-dunno.md", 1], ["0007-cy-other.md", 2]]);
});

test("renumber: answers from before still count, for receipts, a wait for each, and a question that is asked again", (t) => {
  const question = "to: bob\nstatus: question\nkey: k\n";
  const { try: attempt, renumber } = written(t, [1, "alice", "one", 1], [1, "carol", "q", 2, question], [2, "bob", "re: q", 3, "to: carol\nreply_to: 1\n"]);
  assert.equal(renumber().status, 0);
  const [receipt] = rows<{ replied: object[] }>(attempt("one", "receipts", "r", "3", "--json").stdout);
  assert.deepEqual(receipt!.replied, [{ from: "bob", seq: 2, file: "0002-bob-re-q.md" }]);
  assert.equal(attempt("one", "read", "r", "--as", "carol").status, 0);
  const each = attempt("one", "wait", "r", "--as", "carol", "--reply-to", "3", "--each", "--timeout", "0");
  assert.equal(each.status, 0, each.stderr);
  const again = attempt("one", "ask", "r", "--as", "carol", "--to", "bob", "--title", "q", "--body", "carol q 2", "--key", "k", "--timeout", "0", "--json");
  assert.deepEqual([again.status, rows<Shown>(again.stdout).map(({ seq }) => seq)], [0, [3, 2]], again.stderr);
});

test("renumber: attachments are there under both numbers, and the text names its own", (t) => {
  const { renumber, path: at, all } = written(t, [1, "a", "x", 1, "to: all\n", "see _files/0001/d/x.txt"], [1, "b", "x", 2, "to: all\n", "see _files/0001/d/x.txt, not _files/00011/d"]);
  fs.mkdirSync(at("one", "r", "_files", "0001", "d"), { recursive: true });
  fs.writeFileSync(at("one", "r", "_files", "0001", "d", "x.txt"), "X");
  assert.equal(renumber().status, 0);
  assert.deepEqual(all("one").map(({ body }) => body.trim()), ["see _files/0001/d/x.txt", "see _files/0002/d/x.txt, not _files/00011/d"]);
  for (const number of ["0001", "0002"]) assert.equal(fs.readFileSync(at("one", "r", "_files", number, "d", "x.txt"), "utf8"), "X");
});

test("renumber: attachments are found where a folder's entries do not name their folder, as from Node 24 on", async (t) => {
  const { path: at } = written(t, [1, "a", "x", 1], [1, "b", "x", 2]);
  fs.mkdirSync(at("one", "r", "_files", "0001", "d"), { recursive: true });
  fs.writeFileSync(at("one", "r", "_files", "0001", "d", "x.txt"), "X");
  fs.symlinkSync(".", at("one", "r", "_files", "0001", "loop"));
  const real = fs.readdirSync as (...args: unknown[]) => unknown[];
  t.mock.method(fs, "readdirSync", (...args: unknown[]) => {
    const entries = real(...args);
    for (const entry of entries) if (entry instanceof fs.Dirent) Reflect.deleteProperty(entry, "path");
    return entries;
  });
  assert.deepEqual((await chat.renumber(chat.openChannel(at("one"), "r"))).map(({ file }) => file), ["0002-b-x.md"]);
  assert.deepEqual(fs.readdirSync(at("one", "r", "_files", "0002")), ["d"]);
  assert.equal(fs.readFileSync(at("one", "r", "_files", "0002", "d", "x.txt"), "utf8"), "X");
});

test("renumber: who was shown a message is not shown it again, whatever way the cursor says so; who was not, gets it once", (t) => {
  const { renumber, cursor, news } = written(t, [1, "a", "x", 1], [2, "b", "x", 2], [2, "c", "x", 3], [3, "d", "x", 4]);
  const before = {
    number: ["1-1,3-3", ["b x 2", "c x 3"]],
    reference: ["3", ["b x 2", "c x 3"]], // it cannot tell which #2 was shown: both, rather than neither
    earlier: ["1,3,0002-b-x.md", ["c x 3"]],
    later: ["1,0002-c-x.md", ["b x 2", "d x 4"]],
    both: ["1-3,0002-b-x.md,0002-c-x.md", []],
    high: ["99", ["a x 1", "b x 2", "c x 3", "d x 4"]], // reaches past the newest: not believed
    odd: ["<<<<<<<", ["a x 1", "b x 2", "c x 3", "d x 4"]],
  } as const;
  for (const [name, [text]] of Object.entries(before)) cursor(name, text);
  assert.equal(renumber().status, 0);
  assert.deepEqual([cursor("number"), cursor("earlier"), cursor("later"), cursor("both"), cursor("odd")], ["1-1,3-3", "3", "1-1,4-4", "4", "<<<<<<<"]);
  for (const [name, [, left]] of Object.entries(before)) assert.deepEqual([news("one", name), news("one", name)], [left, []], name);
});

test("renumber: leaves alone what only looks like a message, and channels does not name it", (t) => {
  const { renumber, path: at, files, try: attempt } = written(t, [1, "a", "x", 1], [1, "b", "x", 2], [2, "c", "x", 3]);
  fs.writeFileSync(at("one", "r", "0001-eve-half.md"), "---\nseq: 1\nfrom: eve\n");
  fs.writeFileSync(at("one", "r", "0002-eve-other.md"), "---\nseq: 7\nfrom: eve\n---\nx\n");
  fs.symlinkSync("0002-c-x.md", at("one", "r", "0002-eve-link.md"));
  assert.match(attempt("one", "channels").stderr, /: 0001-a-x\.md, 0001-b-x\.md; to settle it: agent-chat renumber r --root \S+\n/);
  assert.equal(renumber().stdout, "renumbered 0001-b-x.md -> 0003-b-x.md  now #3\n");
  assert.deepEqual(files("one"), ["0001-a-x.md", "0001-eve-half.md", "0002-c-x.md", "0002-eve-link.md", "0002-eve-other.md", "0003-b-x.md"]);
});

test("renumber: nothing to do is no failure; an unknown channel and too many words are", (t) => {
  const { renumber, fails, files } = written(t, [1, "a", "x", 1], [2, "b", "x", 2]);
  assert.deepEqual(Object.values(renumber()).slice(0, 4), [0, null, "", "agent-chat: each message of 'r' has a number of its own\n"]);
  assert.deepEqual([renumber("--json").stdout, renumber("--json").status], ["", 0]);
  const { message, try: mend } = fails("one", 1, "no_channel", "renumber", "elsewhere");
  assert.match(message, /^no channel "elsewhere" in .*; there are: r$/);
  assert.match(mend, /^agent-chat init elsewhere --root /);
  fails("one", 64, "usage", "renumber", "r", "s");
  fails("one", 64, "usage", "renumber");
  assert.deepEqual(files("one"), ["0001-a-x.md", "0002-b-x.md"]);
});

test("renumber: a folder that cannot be written is left as it is, and named", { skip: process.getuid?.() === 0 && spawnSync("setpriv", ["--version"]).status !== 0 }, (t) => {
  const { path: at, files } = written(t, [1, "a", "x", 1], [1, "b", "x", 2]);
  for (const folder of [at("one", "r", ".cursors"), at("one", "r")]) fs.chmodSync(folder, 0o555);
  fs.chmodSync(at(), 0o755);
  const run = [process.execPath, BIN, "renumber", "r", "--root", at("one")];
  const command = process.getuid?.() === 0 ? ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", ...run] : run;
  const { status, stderr } = spawnSync(command[0]!, command.slice(1), { encoding: "utf8", env: cleanEnv() });
  for (const folder of [at("one", "r"), at("one", "r", ".cursors")]) fs.chmodSync(folder, 0o755);
  assert.equal(status, 1, stderr);
  assert.match(stderr, /could not renumber "r": permission denied \(EACCES, mkdir ".*_seq\.lock"\)\n {2}try: /);
  assert.deepEqual(files("one"), ["0001-a-x.md", "0001-b-x.md"]);
});

test("renumber: where another user's cursor or attachments could not follow it is not begun, and stops nobody", { skip: (process.getuid?.() !== 0 || spawnSync("setpriv", ["--version"]).status !== 0) && "needs root and setpriv" }, (t) => {
  const { path: at, files } = written(t, [1, "a", "x", 1], [1, "b", "x", 2]);
  const run = (...args: string[]) => {
    const command = ["--reuid=65534", "--regid=65534", "--clear-groups", process.execPath, BIN, ...args, "--root", at("one")];
    const { status, stderr } = spawnSync("setpriv", command, { encoding: "utf8", env: cleanEnv() });
    return `${status} ${stderr}`;
  };
  fs.mkdirSync(at("one", "r", "_files", "0001"), { recursive: true });
  fs.writeFileSync(at("one", "r", "_files", "0001", "y"), "", { mode: 0o600 });
  fs.appendFileSync(at("one", "r", "0001-b-x.md"), "_files/0001/y\n");
  for (const folder of [at(), at("one"), at("one", "r"), at("one", "r", ".cursors"), at("one", "r", "_files")]) fs.chmodSync(folder, 0o777);
  assert.match(run("renumber", "r"), /^1 .*could not renumber "r": permission denied \(EACCES, access ".*0001\/y"\)/);
  fs.chmodSync(at("one", "r", "_files", "0001", "y"), 0o644);
  fs.writeFileSync(at("one", "r", ".cursors", "zed.txt"), "1", { mode: 0o600 });
  assert.match(run("renumber", "r"), /^1 .*could not renumber "r": permission denied \(EACCES, access ".*zed\.txt"\)/);
  assert.deepEqual([files("one"), fs.readdirSync(at("one", "r", ".cursors"))], [["0001-a-x.md", "0001-b-x.md"], ["zed.txt"]]);
  assert.equal(run("post", "r", "--from", "c", "--body", "goes on"), "0 ");
  fs.chmodSync(at("one", "r", ".cursors", "zed.txt"), 0o644);
  for (const folder of [at("one", "r", ".cursors"), at("one", "r")]) {
    fs.chmodSync(folder, 0o1777);
    assert.match(run("renumber", "r"), /^1 .*(zed\.txt|0001-b-x\.md)" belongs to another user, and the sticky bit .*\n.*chmod -t/);
    assert.equal(run("post", "r", "--from", "c", "--key", "again", "--body", "still goes on"), "0 ");
    fs.chmodSync(folder, 0o777);
  }
  assert.equal(run("renumber", "r"), "0 ");
  assert.deepEqual(files("one").filter((name) => !name.includes("-c-")), ["0001-a-x.md", "0004-b-x.md"]);
});

test("renumber, join, claim: by a user with a closed umask, what is open to others stays so, and they go on", { skip: (process.getuid?.() !== 0 || spawnSync("setpriv", ["--version"]).status !== 0) && "needs root and setpriv" }, (t) => {
  const { path: at, files } = written(t, [1, "a", "x", 1], [1, "b", "x", 2], [2, "c", "re: x", 3, "to: b\nreply_to: 1\n"]);
  const as = (user: number, umask: string, ...args: string[]): string => {
    const command = `umask ${umask}; exec setpriv --reuid ${user} --clear-groups "${process.execPath}" "${BIN}" "$@" --root "${at("one")}"`;
    const { status, stdout, stderr } = spawnSync("bash", ["-c", command, "-", ...args], { encoding: "utf8", env: cleanEnv() });
    assert.equal(status, 0, stderr);
    assert.doesNotMatch(stderr, /EACCES/, args.join(" "));
    return stdout;
  };
  for (const folder of [at(), at("one"), at("one", "r"), at("one", "r", ".cursors")]) fs.chmodSync(folder, 0o777);
  fs.writeFileSync(at("one", "r", ".cursors", "zed.txt"), "1-1");
  as(54321, "077", "renumber", "r");
  as(54321, "077", "join", "r", "--as", "zed");
  assert.match(as(65534, "022", "read", "r", "--as", "zed"), /#3 b -> all/);
  assert.match(as(65534, "022", "roster", "r"), /members : zed/);
  fs.copyFileSync(at("one", "r", "0003-b-x.md"), at("one", "r", "0003-d-x.md"));
  as(65534, "022", "renumber", "r");
  assert.deepEqual(files("one"), ["0001-a-x.md", "0002-c-re-x.md", "0003-b-x.md", "0004-d-x.md"]);
  const mode = (...parts: string[]): number => fs.statSync(at("one", "r", ...parts)).mode & 0o777;
  assert.deepEqual([...files("one").map((file) => mode(file)), mode(".cursors", ".moving"), mode(".cursors", ".moved")], [0o644, 0o644, 0o644, 0o644, 0o666, 0o666]);
  for (const id of [1, 2]) fs.writeFileSync(at("one", "r", `task-${id}.md`), "");
  as(54321, "077", "claim", "r", "1", "--as", "b"); // it makes the folder of the records
  as(65534, "022", "claim", "r", "2", "--as", "c");
  assert.match(as(65534, "022", "tasks", "r"), /r: 0 open, 0 blocked, 2 claimed/);
});

test("renumber: posting, reading and waiting go on meanwhile, and everybody is shown everything once", async (t) => {
  const { start, all, news } = written(t, [1, "a", "x", 1], [1, "b", "x", 2], [2, "c", "x", 3], [2, "d", "x", 4]);
  assert.equal(news("one", "zed").length, 4);
  const waiting = start("one", "wait", "r", "--as", "zed", "--json", "--timeout", "20");
  const running = [0, 1, 2, 3].map((n) => start("one", "post", "r", "--as", "p", "--body", `post ${n}`));
  const moving = [start("one", "renumber", "r"), start("one", "renumber", "r"), start("one", "read", "r", "--as", "yan", "--json")];
  const results = await Promise.all([...running, ...moving].map(({ ended }) => ended));
  assert.deepEqual(results.map(({ status }) => status), results.map(() => 0), JSON.stringify(results));
  assert.deepEqual(all("one").map(({ seq }) => seq), [1, 2, 3, 4, 5, 6, 7, 8]);
  const first = rows<Shown>((await waiting.ended).stdout).map(({ body }) => body.trim());
  const posts = ["post 0", "post 1", "post 2", "post 3"];
  assert.deepEqual([...first, ...news("one", "zed")].sort(), posts);
  const seen = rows<Shown>(results.at(-1)!.stdout).map(({ body }) => body.trim());
  assert.deepEqual([...seen, ...news("one", "yan")].sort(), ["a x 1", "b x 2", "c x 3", "d x 4", ...posts]);
});

test("renumber: who reads for the first time while it waits for the cursors of others is shown nothing twice", async (t) => {
  const { start, news, cursor, path: at } = written(t, [1, "a", "x", 1], [1, "b", "x", 2], [2, "c", "x", 3]);
  cursor("old", "1");
  fs.mkdirSync(at("one", "r", ".cursors", "old.lock"));
  const moving = start("one", "renumber", "r");
  await until("it has decided", () => fs.existsSync(at("one", "r", ".cursors", ".moving")));
  const reading = start("one", "read", "r", "--as", "yan", "--json");
  await until("it has shown all", () => rows(reading.output()).length === 3); // and may not mark yet
  fs.rmdirSync(at("one", "r", ".cursors", "old.lock"));
  assert.deepEqual(rows<Shown>((await reading.ended).stdout).map(({ body }) => body.trim()).sort(), ["a x 1", "b x 2", "c x 3"]);
  assert.equal((await moving.ended).stdout, "renumbered 0001-b-x.md -> 0003-b-x.md  now #3\n");
  assert.deepEqual([news("one", "yan"), cursor("yan")], [[], "3"]);
});

test("renumber: where git alone brings it to another machine nothing is hidden", (t) => {
  const { ac, git, commit, news, path: at } = clones(t);
  ac("one", "post", "r", "--as", "ann", "--body", "mine");
  ac("two", "post", "r", "--as", "bob", "--body", "other");
  assert.deepEqual(news("two", "cat"), ["first", "other"]);
  for (const root of ["two", "one"]) {
    commit(root);
    git(root, "pull", "-q", "--no-rebase", "--no-edit");
    git(root, "push", "-q");
  }
  ac("one", "renumber", "r");
  commit("one", "renumbered");
  git("one", "push", "-q");
  git("two", "pull", "-q");
  assert.match(fs.readFileSync(at("two", "r", "0003-bob-other.md"), "utf8"), /^was: 2$/m);
  assert.ok(news("two", "cat").includes("mine"), "it has the number of one that was shown");
  assert.deepEqual([news("two", "cat"), fs.readFileSync(at("two", "r", ".cursors", "cat.txt"), "utf8")], [[], "3"]);
  assert.deepEqual(news("two", "dan"), ["first", "mine", "other"]);
});
