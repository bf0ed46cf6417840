import assert from "node:assert/strict";
import fs from "node:fs";
import { test, type TestContext } from "node:test";
import { parseTask } from "../chat.ts";
import { rows, sandbox } from "./helpers.ts";

const board = (t: TestContext, ...tasks: string[]) => {
  const box = sandbox(t);
  box.ok(["init", "r"]);
  for (const task of tasks) fs.writeFileSync(box.at("r", task), `do ${task}\n`);
  return { ...box, files: () => fs.readdirSync(box.at("r")).filter((name) => name.startsWith("task-")).sort() };
};

test("claim: the task's file takes the owner's name, and its text stays", (t) => {
  const { ok, files, at } = board(t, "task-12.md");
  const [first, second] = ok(["claim", "r", "task-12.md", "--as", "alice"]).split("\n");
  assert.equal(first, "claimed task-12.md -> task-12.CLAIMED-alice.md");
  assert.equal(second, `  ${at("r", "task-12.CLAIMED-alice.md")}`);
  assert.deepEqual(files(), ["task-12.CLAIMED-alice.md"]);
  assert.equal(fs.readFileSync(at("r", "task-12.CLAIMED-alice.md"), "utf8"), "do task-12.md\n");
});

test("claim: whoever comes second is told who has it, exit 3", (t) => {
  const { ok, chat } = board(t, "task-12.md");
  ok(["claim", "r", "12", "--as", "alice"]);
  const { status, stdout, stderr } = chat(["claim", "r", "12", "--as", "bob"]);
  assert.deepEqual([status, stdout], [3, ""]);
  assert.match(stderr, /task-12 is claimed by alice/);
  assert.equal(JSON.parse(chat(["claim", "r", "12", "--as", "bob", "--json"]).stderr).error.code, "taken");
});

test("claim: the owner who asks again is told that it is already theirs, exit 0", (t) => {
  const { ok } = board(t, "task-12.md");
  ok(["claim", "r", "12", "--as", "alice"]);
  assert.match(ok(["claim", "r", "12", "--as", "Alice"]), /^already yours: task-12\.CLAIMED-alice\.md/);
  assert.equal(rows<{ already: boolean }>(ok(["claim", "r", "12", "--as", "alice", "--json"]))[0]!.already, true);
});

test("claim: twenty at once leave one owner and nineteen who know the owner", async (t) => {
  const { start, files } = board(t, "task-1.md");
  const ends = await Promise.all(Array.from({ length: 20 }, (_, i) => start(["claim", "r", "task-1.md", "--as", `w${i}`]).ended));
  const winner = ends.findIndex(({ status }) => status === 0);
  assert.deepEqual(files(), [`task-1.CLAIMED-w${winner}.md`]);
  const losers = ends.filter((_, i) => i !== winner);
  assert.ok(losers.every(({ status, stderr }) => status === 3 && stderr.includes(`claimed by w${winner}`)));
});

test("claim: a task that comes back while somebody has it is refused, and so is one that was finished", (t) => {
  const { ok, chat, at, files } = board(t, "task-1.md", "task-2.DONE-carol.md", "task-2.md");
  ok(["claim", "r", "1", "--as", "alice"]);
  fs.writeFileSync(at("r", "task-1.md"), "again");
  const { status, stderr } = chat(["claim", "r", "1", "--as", "bob"]);
  assert.equal(status, 3);
  assert.match(stderr, /claimed by alice/);
  for (const name of ["bob", "carol"]) assert.match(chat(["claim", "r", "2", "--as", name]).stderr, /task-2 is finished by carol/);
  assert.deepEqual(files(), ["task-1.CLAIMED-alice.md", "task-1.md", "task-2.DONE-carol.md", "task-2.md"]);
});

test("claim: two owners that a merge brought together are both named", (t) => {
  const { chat } = board(t, "task-1.CLAIMED-alice.md", "task-1.CLAIMED-bob.md");
  for (const name of ["alice", "carol"]) {
    const { status, stderr } = chat(["claim", "r", "1", "--as", name]);
    assert.equal(status, 3);
    assert.match(stderr, name === "alice" ? /claimed by bob/ : /claimed by alice and claimed by bob/);
  }
});

test("claim: 12, task-12, task-12.md and ./task-12.md are one task", () => {
  for (const form of ["12", "task-12", "task-12.md", "./task-12.md", " 12 ", "task-12.CLAIMED-bob.md", "task-12.DONE-bob.md"]) assert.equal(parseTask(form), "12");
  assert.equal(parseTask("fix_Login-2"), "fix_Login-2");
  for (const form of ["", ".", "..", "../12", "a/b", "a\\b", "task-", "12.txt", "1 2", "-x", "a\nb", "a\0b", "con", "x".repeat(65), "C:x", "_meta", ".cursors"]) {
    assert.throws(() => parseTask(form), { code: "bad_name" }, JSON.stringify(form));
  }
});

test("claim: a task that is not there is an error that lists the open ones", (t) => {
  const { chat, files } = board(t, "task-7.md", "task-8.CLAIMED-bob.md");
  const { status, stderr } = chat(["claim", "r", "9", "--as", "alice"]);
  assert.equal(status, 1);
  assert.match(stderr, /no task "9" in .*; open: 7\n  try: agent-chat claim r 7/);
  assert.deepEqual(files(), ["task-7.md", "task-8.CLAIMED-bob.md"]);
});

test("claim: an id that is only spelled otherwise gets the task that was meant suggested, never another", (t) => {
  const { chat, at } = board(t, "task-1.md", "task-test-db.md", "task-12.CLAIMED-bob.md");
  const typed = (...args: string[]): string => / {2}try: (.*?)( --root .*)?\n$/.exec(chat(args).stderr)?.[1] ?? "";
  for (const id of ["TEST-DB", "testdb", "test_db", "Task-test-db"]) assert.equal(typed("claim", "r", id, "--as", "alice"), "agent-chat claim r test-db --as alice", id);
  assert.equal(typed("claim", "r", "task-TEST-DB", "--as", "alice"), "agent-chat tasks r");
  for (const id of ["012", "Task-12", "task12"]) assert.equal(typed("done", "r", id, "--as", "bob"), "agent-chat done r 12 --as bob", id);
  assert.equal(typed("wait", "r", "--task", "Task-1", "--as", "bob"), "agent-chat wait r --task 1 --as bob");
  assert.equal(typed("task", "r", "x", "--as", "bob", "--after", "1,TEST-DB"), "agent-chat task r x --as bob --after 1,test-db");
  fs.writeFileSync(at("r", "task-007.md"), "");
  assert.equal(typed("claim", "r", "7", "--as", "alice"), "agent-chat claim r 007 --as alice");
  fs.rmSync(at("r", "task-007.md"));
  for (const id of ["2", "13", "11"]) assert.doesNotMatch(chat(["claim", "r", id, "--as", "alice"]).stderr, /did you mean/, id); // one number is not near another
  for (let i = 20; i < 40; i++) fs.writeFileSync(at("r", `task-${i}.md`), "");
  assert.match(chat(["claim", "r", "99", "--as", "alice"]).stderr, /; open: 1, 20, .*, 28, and 12 more\n/);
});

test("claim: a task that is a link or a folder is not taken", (t) => {
  const { chat, at } = board(t);
  fs.symlinkSync("/etc/hostname", at("r", "task-1.md"));
  fs.mkdirSync(at("r", "task-2.md"));
  for (const id of ["1", "2"]) {
    const { status, stderr } = chat(["claim", "r", id, "--as", "alice"]);
    assert.equal(status, 1);
    assert.match(stderr, /is not a regular file/);
  }
});

test("claim: a file in the place of a folder is said, with what to do about it", (t) => {
  const { chat, at } = board(t, "task-1.md");
  fs.writeFileSync(at("r", ".tasks"), "");
  fs.rmSync(at("r", ".cursors"), { recursive: true });
  fs.writeFileSync(at("r", ".cursors"), "");
  for (const command of [["claim", "r", "1"], ["cursor", "r", "--set", "all"], ["status", "r", "--set", "busy"]]) {
    const { status, stderr } = chat([...command, "--as", "bob"]);
    assert.equal(status, 1);
    assert.match(stderr, /\/r\/\.(tasks|cursors)"\)\n {2}try: give another path, or move away what is there in the place of a folder/);
  }
});

test("claim: it is decided under the channel's lock", (t) => {
  const { chat, at, bash } = board(t, "task-1.md");
  fs.mkdirSync(at("r", "_seq.lock"));
  assert.match(bash(`timeout -s TERM 1 "${process.execPath}" "$BIN" claim r 1 --as alice; echo "exit $?"`, { env: { BIN: `${import.meta.dirname}/../dist/agent-chat.cjs` } }).stdout, /exit (124|143)/);
  assert.ok(fs.existsSync(at("r", "task-1.md")));
  fs.rmdirSync(at("r", "_seq.lock"));
  assert.equal(chat(["claim", "r", "1", "--as", "alice"]).status, 0);
});
