// Roots on several machines that share one through a git remote: what each reader sees, and what becomes of numbers.
import assert from "node:assert/strict";
import fs from "node:fs";
import { test } from "node:test";
import { listening, rows, until } from "./helpers.ts";
import { assertLinear, fleet, pair } from "./machines.ts";

test("sync: what was not pushed is put after what was, with its answers, its attachments and every cursor", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  here.post("ann", "first");
  here.sync();
  there.sync();
  assert.deepEqual(there.read("bob"), ["first"]);
  here.post("ann", "theirs"); // #2
  fs.mkdirSync(here.at("review", "_files", "0002"), { recursive: true });
  fs.writeFileSync(here.at("review", "_files", "0002", "log.txt"), "theirs\n");
  there.post("cat", "mine", "--body", "see _files/0002/log.txt"); // #2 too
  fs.mkdirSync(there.at("review", "_files", "0002", "deep"), { recursive: true });
  fs.writeFileSync(there.at("review", "_files", "0002", "log.txt"), "mine\n");
  fs.writeFileSync(there.at("review", "_files", "0002", "deep", "x.bin"), Buffer.from([0, 255, 13, 10]));
  there.post("dan", "answer", "--reply", "2", "--to", "all"); // #3
  there.post("dan", "to the first", "--reply", "1", "--to", "all"); // #4
  assert.deepEqual(there.read("bob"), ["mine", "answer", "to the first"]);
  here.sync();
  const { renumbered } = there.sync();
  assert.deepEqual(
    renumbered.map(({ was, seq, reply_to }) => [was, seq, reply_to]),
    [
      [2, 3, null],
      [3, 4, 3],
      [4, 5, 1],
    ],
  );
  here.sync();
  const names = [
    "0001-ann-first.md",
    "0002-ann-theirs.md",
    "0003-cat-mine.md",
    "0004-dan-answer.md",
    "0005-dan-to-the-first.md",
  ];
  for (const one of [here, there]) {
    assert.deepEqual(one.files(), names);
    const text = (...parts: string[]): string => fs.readFileSync(one.at("review", ...parts), "latin1");
    assert.match(text("0003-cat-mine.md"), /^seq: 3$[^]*see _files\/0003\/log\.txt/m);
    assert.match(text("0004-dan-answer.md"), /^seq: 4$[^]*^reply_to: 3$/m);
    assert.deepEqual(
      [text("_files", "0002", "log.txt"), text("_files", "0003", "log.txt"), text("_files", "0003", "deep", "x.bin")],
      ["theirs\n", "mine\n", "\x00\xff\r\n"],
    );
    assert.equal(fs.existsSync(one.at("review", "_files", "0002", "deep")), false);
  }
  assert.deepEqual(
    [there.read("bob"), there.read("bob"), here.read("bob")],
    [["theirs"], [], ["first", "theirs", "mine", "answer", "to the first"]],
  );
  assertLinear(net);
});

test("sync: a number that the reference marked with nothing under it does not hide the message that gets it", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  here.post("ann", "theirs"); // #1
  there.post("cat", "mine"); // #1 too
  for (const file of ["0002-dan-x.md", "0003-dan-y.md"]) fs.writeFileSync(there.at("review", file), "");
  fs.mkdirSync(there.at("review", ".cursors"), { recursive: true });
  fs.writeFileSync(there.at("review", ".cursors", "bob.txt"), "3");
  there.post("cat", "more"); // #4
  here.sync();
  there.sync();
  assert.ok(there.files().includes("0003-cat-more.md"));
  assert.deepEqual([there.read("bob"), there.read("bob")], [["theirs", "more"], []]);
});

test("sync: a title in two places at once keeps both messages, and who posts meanwhile is after all of them", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  here.post("ann", "same", "--body", "one");
  there.post("ann", "same", "--body", "other"); // the very same file name
  here.sync();
  there.sync();
  here.sync();
  assert.deepEqual(
    [here.files(), there.files()],
    [
      ["0001-ann-same.md", "0002-ann-same.md"],
      ["0001-ann-same.md", "0002-ann-same.md"],
    ],
  );
  assert.match(fs.readFileSync(here.at("review", "0001-ann-same.md"), "utf8"), /\none\n/);
  assert.match(fs.readFileSync(here.at("review", "0002-ann-same.md"), "utf8"), /\nother\n/);
  assert.equal(there.post("bob", "next"), 3);
});

test("sync: a wait, and one for an answer, go on over new numbers: each message is shown once", async (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  there.post("bob", "question"); // #1, and #2 after the sync
  const waits = [
    there.start(["wait", "review", "--as", "bob", "--reply-to", "1", "--json", "--timeout", "20"]),
    there.start(["wait", "review", "--as", "dan", "--from", "eve", "--json", "--timeout", "20"]),
  ];
  await Promise.all(waits.map(listening));
  here.post("ann", "theirs");
  here.post("ann", "not an answer to it", "--reply", "1");
  here.sync();
  there.sync();
  here.sync();
  here.post("ann", "the answer", "--reply", "3"); // theirs are #1 and #2
  here.post("eve", "to all");
  here.sync();
  there.sync();
  const [answer, news] = await Promise.all(waits.map(({ ended }) => ended));
  const shown = (out: string): unknown[] =>
    rows<{ title: string; reply_to: unknown }>(out).map(({ title, reply_to }) => [title, reply_to]);
  assert.deepEqual([answer!.status, shown(answer!.stdout)], [0, [["the answer", 3]]], answer!.stderr);
  assert.deepEqual([news!.status, shown(news!.stdout)], [0, [["to all", null]]], news!.stderr);
  assert.deepEqual(there.read("bob"), ["theirs", "not an answer to it", "to all"]);
  assert.deepEqual(there.read("dan"), ["theirs", "not an answer to it", "question"]);
});

test("ask --sync: a question that got another number is answered by that one, and the wait says so", async (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  here.post("ann", "before it");
  here.sync();
  const asked = there.start([
    "ask",
    "review",
    "--as",
    "bob",
    "--to",
    "ann",
    "--body",
    "ready?",
    "--timeout",
    "20",
    "--json",
  ]);
  const synced = there.start([
    "ask",
    "review",
    "--as",
    "cat",
    "--to",
    "ann",
    "--body",
    "and now?",
    "--sync",
    "--timeout",
    "20",
    "--json",
  ]);
  await until("both are asked", () => /"seq":/.test(synced.output()) && /"seq":/.test(asked.output()));
  there.sync();
  here.sync();
  const numberOf = (from: string): string =>
    String(
      Number.parseInt(
        here.files().find((file) => file.includes(`-${from}-`))!,
        10,
      ),
    );
  assert.deepEqual([numberOf("bob"), numberOf("cat")].sort(), ["2", "3"]);
  here.post("ann", "yes, bob", "--reply", numberOf("bob"));
  here.post("ann", "yes, cat", "--reply", numberOf("cat"));
  here.sync();
  there.sync();
  for (const [{ ended }, title] of [
    [asked, "yes, bob"],
    [synced, "yes, cat"],
  ] as const) {
    const { status, stdout, stderr } = await ended;
    assert.equal(status, 0, stderr);
    assert.equal(rows<{ title?: string }>(stdout).at(-1)?.title, title);
  }
  const late = ["ask", "review", "--as", "bob", "--to", "ann", "--body", "and later?", "--sync", "--timeout", "0"];
  const { stderr } = await there.start(late).ended;
  assert.match(stderr, /\n {2}try: agent-chat wait review --reply-to \d+ --timeout 0 --sync 15 --as bob/); // it has to fetch too
});

test("sync: a message deleted by hand, here or there, is put back; so is a channel", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  here.ok(["init", "other"]);
  here.ok(["post", "other", "--as", "ann", "--title", "o", "--body", "o"]);
  for (const title of ["a", "b"]) here.post("ann", title);
  here.sync();
  there.sync();
  fs.unlinkSync(here.at("review", "0001-ann-a.md"));
  fs.rmSync(here.at("other"), { recursive: true });
  const { notes } = here.sync();
  assert.match(notes.join("\n"), /0001-ann-a\.md had been deleted here/);
  assert.deepEqual([here.files(), here.files("other")], [["0001-ann-a.md", "0002-ann-b.md"], ["0001-ann-o.md"]]);
  assert.ok(fs.existsSync(here.at("other", "_meta.json")));
  there.git("rm", "-q", "review/0002-ann-b.md");
  there.git("commit", "-q", "-m", "by hand");
  there.git("push", "-q", "origin", "HEAD:main");
  here.sync();
  there.sync();
  assert.deepEqual(
    [here.files(), there.files()],
    [
      ["0001-ann-a.md", "0002-ann-b.md"],
      ["0001-ann-a.md", "0002-ann-b.md"],
    ],
  );
  fs.rmSync(there.at("review"), { recursive: true });
  fs.rmSync(there.at("other"), { recursive: true });
  there.sync();
  assert.deepEqual([there.files(), there.files("other")], [here.files(), here.files("other")]);
});

test("sync: a message deleted there is not taken for a later one that says the same", (t) => {
  const [here, there] = pair(fleet(t));
  for (const title of ["ok", "b"]) here.post("ann", title);
  here.sync();
  there.sync();
  const text = fs.readFileSync(there.at("review", "0001-ann-ok.md"), "utf8");
  fs.writeFileSync(there.at("review", "0003-ann-ok.md"), text.replace("seq: 1", "seq: 3").replace(/^ts: .*$/m, "ts: 2030-01-01T00:00:00+00:00"));
  there.git("rm", "-q", "review/0001-ann-ok.md");
  there.git("add", "-A");
  there.git("commit", "-q", "-m", "by hand");
  there.git("push", "-q", "origin", "HEAD:main");
  here.sync();
  assert.deepEqual(here.files(), ["0001-ann-ok.md", "0002-ann-b.md", "0003-ann-ok.md"]);
});

test("sync: another file is as the side that changed or deleted it has it; of two that both changed one, both are there", (t) => {
  const [here, there] = pair(fleet(t));
  const folder = (one: typeof here): string => one.at("review", "_files", "0001");
  const write = (one: typeof here, text: string, ...names: string[]): void => names.forEach((name) => fs.writeFileSync(`${folder(one)}/${name}.txt`, text));
  const remove = (one: typeof here, ...names: string[]): void => names.forEach((name) => fs.unlinkSync(`${folder(one)}/${name}.txt`));
  here.post("ann", "one");
  fs.mkdirSync(folder(here), { recursive: true });
  write(here, "before", "a", "b", "c", "d", "e", "f");
  here.sync();
  there.sync();
  remove(there, "a", "b");
  write(there, "there", "c", "d", "f");
  there.ok(["pause", "review", "--as", "bob", "--body", "there"]);
  there.sync();
  write(here, "here", "b", "c");
  remove(here, "e", "f");
  here.ok(["pause", "review", "--as", "ann", "--body", "here"]);
  assert.match(here.sync().notes.join(), /c\.txt was changed on both sides: yours is \S+ now/);
  there.sync();
  for (const one of [here, there]) {
    const files = fs.readdirSync(folder(one)).map((name) => `${name[0]} ${fs.readFileSync(`${folder(one)}/${name}`, "utf8")}`);
    assert.deepEqual(files.sort(), ["b here", "c here", "c there", "d there", "f there"]);
    assert.equal(fs.readFileSync(`${folder(one)}/c.txt`, "utf8"), "there", "the remote's stands");
    assert.deepEqual(fs.readdirSync(one.at("review")).filter((name) => name.startsWith("_paused")), ["_paused.md"]);
    assert.match(fs.readFileSync(one.at("review", "_paused.md"), "utf8"), /there/);
  }
});

test("sync: a shallow clone whose branch has another name than the remote's is one as well", (t) => {
  const net = fleet(t);
  const [here] = pair(net);
  here.post("ann", "a");
  here.sync();
  net.git(net.box.dir, "clone", "-q", "--depth", "1", `file://${net.remote}`, "shallow");
  const shallow = net.machine("shallow");
  shallow.git("branch", "-m", "master");
  here.post("ann", "b");
  here.sync();
  shallow.post("bob", "s");
  assert.match(shallow.ok(["sync"]), /origin\/main: 1 message sent, 1 came, 1 renumbered/);
  here.sync();
  assert.deepEqual(here.files(), ["0001-ann-a.md", "0002-ann-b.md", "0003-bob-s.md"]);
  assert.deepEqual(shallow.files(), here.files());
  assert.equal(net.git(net.remote, "branch", "--format=%(refname:short)"), "main\n");
});

test("sync: commits made by hand that diverged are put after the remote's, in one line", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  here.post("ann", "theirs");
  here.sync();
  there.post("bob", "mine");
  there.git("add", "-A");
  there.git("commit", "-q", "-m", "by hand 1");
  there.post("bob", "more", "--reply", "1");
  there.git("add", "-A");
  there.git("commit", "-q", "-m", "by hand 2");
  there.sync();
  here.sync();
  assert.deepEqual(here.files(), ["0001-ann-theirs.md", "0002-bob-mine.md", "0003-bob-more.md"]);
  assert.match(fs.readFileSync(here.at("review", "0003-bob-more.md"), "utf8"), /^reply_to: 2$/m);
  assert.equal(there.git("status", "--porcelain"), "");
  assertLinear(net);
});

test("sync: a remote branch that was rewritten, set back or deleted loses nothing of what is here", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  const empty = net.git(net.remote, "rev-parse", "main").trim();
  for (const title of ["a", "b"]) {
    here.post("ann", title);
    here.sync();
  }
  there.sync();
  net.git(net.remote, "update-ref", "refs/heads/main", empty); // set back
  there.post("bob", "c");
  there.sync();
  assert.deepEqual(
    [net.git(net.remote, "ls-tree", "--name-only", "main:review").match(/\d+-\w+-\w+/g), there.files().length],
    [["0001-ann-a", "0002-ann-b", "0003-bob-c"], 3],
  );
  net.git(net.remote, "update-ref", "refs/heads/main", empty);
  const other = net.joined("other");
  other.post("cat", "x");
  other.sync(); // rewritten: another #1
  here.sync();
  there.sync();
  here.sync();
  other.sync();
  assert.deepEqual([here.files(), there.files()], [other.files(), other.files()]);
  assert.deepEqual(other.read("dan").sort(), ["a", "b", "c", "x"]);
  net.git(net.remote, "update-ref", "-d", "refs/heads/main"); // deleted
  here.sync();
  assert.equal(net.git(net.remote, "rev-parse", "main"), here.git("rev-parse", "HEAD"));
});

test("sync: what a remote had before it was set back is there once, though each machine looks before the others push it again", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  const empty = net.git(net.remote, "rev-parse", "main").trim();
  for (const title of ["a", "b"]) here.post("ann", title);
  here.ok(["task", "review", "work", "--as", "ann"]);
  here.sync();
  there.sync();
  assert.deepEqual(there.read("dan"), ["a", "b"]);
  net.git(net.remote, "update-ref", "refs/heads/main", empty);
  const other = net.joined("other");
  there.ok(["read", "review", "--as", "dan", "--sync"]); // it fetches a branch that has lost them
  there.git("fetch", "-q");
  other.post("cat", "x");
  other.sync();
  here.ok(["claim", "review", "1", "--as", "ann"]);
  for (const machine of [here, there, here, other]) machine.sync();
  assert.deepEqual(other.files(), ["0001-cat-x.md", "0002-ann-a.md", "0003-ann-b.md"]);
  assert.deepEqual([here.files(), there.files()], [other.files(), other.files()]);
  assert.deepEqual(there.read("dan"), ["x"]);
  const tasks = fs.readdirSync(there.at("review")).filter((file) => file.startsWith("task-"));
  assert.deepEqual(tasks, ["task-1.CLAIMED-ann.md"]);
});

test("sync: a message that was committed and could not be pushed is put back, though others pushed meanwhile", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  here.post("ann", "mine");
  here.git("add", "-A");
  here.git("commit", "-q", "-m", "by hand");
  fs.unlinkSync(here.at("review", "0001-ann-mine.md"));
  there.post("bob", "theirs");
  there.sync();
  assert.match(here.sync().notes.join("\n"), /0001-ann-mine\.md had been deleted here: it was put back/);
  there.sync();
  assert.deepEqual(here.files(), ["0001-bob-theirs.md", "0002-ann-mine.md"]);
  assert.deepEqual(there.files(), here.files());
});

test("sync: a message that was edited by hand there is kept as it was, once, however many machines had it", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  const other = net.joined("other");
  here.post("ann", "a");
  for (const machine of [here, there, other]) machine.sync();
  fs.appendFileSync(here.at("review", "0001-ann-a.md"), "and more\n");
  for (const machine of [here, there, other, here, there]) machine.sync();
  assert.deepEqual(other.files(), ["0001-ann-a.md", "0002-ann-a.md"]);
  assert.deepEqual([here.files(), there.files()], [other.files(), other.files()]);
});
