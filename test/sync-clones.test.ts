// `sync` among clones that were merged and renumbered by hand: they follow, and nobody is shown anything twice.
import assert from "node:assert/strict";
import fs from "node:fs";
import { test, type TestContext } from "node:test";
import { clones } from "./repos.ts";

/** Two clones merged by hand, so that two messages are #2 in both; carol has read it all in both, bob and alice too. */
function merged(t: TestContext) {
  const at = clones(t);
  at.ac("one", "post", "r", "--as", "alice", "--body", "A");
  at.ac("two", "post", "r", "--as", "bob", "--body", "B");
  for (const root of ["one", "two"]) at.commit(root);
  at.git("one", "push", "-q");
  at.git("two", "pull", "-q", "--no-rebase", "--no-edit");
  at.git("two", "push", "-q");
  at.git("one", "pull", "-q", "--ff-only");
  for (const root of ["one", "two"]) for (const name of ["alice", "bob", "carol"]) at.news(root, name);
  return at;
}

test("sync: follows what was renumbered elsewhere, and shows nothing twice", (t) => {
  const { ac, news, files } = merged(t);
  ac("one", "renumber", "r");
  ac("one", "sync");
  assert.match(ac("two", "sync"), /0 messages sent, 0 came, 1 renumbered\n {2}renumbered 0002-\w+-\w\.md -> 0003-\w+-\w\.md {2}now #3\n$/);
  assert.deepEqual(files("two"), files("one"));
  for (const root of ["one", "two"]) {
    for (const name of ["alice", "bob", "carol"]) assert.deepEqual(news(root, name), [], `${root} ${name}`);
    assert.deepEqual(news(root, "dave"), ["A", "B", "first"]);
  }
  assert.match(ac("two", "sync"), /: 0 messages sent, 0 came\n$/);
});

test("sync: who read a message under a number that has gone to another since is shown that other one, and only that", (t) => {
  const { ac, git, commit, news } = clones(t);
  ac("one", "post", "r", "--as", "alice", "--body", "A");
  ac("two", "post", "r", "--as", "bob", "--body", "B");
  assert.deepEqual(news("two", "carol"), ["B", "first"]);
  for (const root of ["one", "two"]) commit(root);
  git("two", "push", "-q");
  git("one", "pull", "-q", "--no-rebase", "--no-edit");
  ac("one", "renumber", "r");
  ac("one", "sync");
  ac("two", "sync");
  assert.deepEqual([news("two", "carol"), news("two", "carol")], [["A"], []]);
});

test("sync: two machines that settle the same pair, and not alike, agree on what was pushed first", (t) => {
  const { ac, news, files, git } = merged(t);
  ac("two", "post", "r", "--as", "bob", "--body", "more");
  assert.match(ac("one", "renumber", "r") + ac("two", "renumber", "r"), /now #3\n[^]*now #4\n$/);
  for (const root of ["one", "two", "one"]) ac(root, "sync");
  assert.deepEqual(files("one"), files("two"));
  assert.deepEqual(git("one", "rev-parse", "HEAD"), git("two", "rev-parse", "HEAD"));
  for (const root of ["one", "two"]) {
    for (const name of ["alice", "carol"]) assert.deepEqual([news(root, name), news(root, name)], [["more"], []], `${root} ${name}`);
    assert.deepEqual([news(root, "bob"), news(root, "dave")], [[], ["A", "B", "first", "more"]]);
  }
});

test("sync: carries two messages that still share a number; renumber and the next sync settle it", (t) => {
  const { ac, news, files, try: attempt } = merged(t);
  for (const root of ["one", "two"]) assert.match(ac(root, "sync"), /0 messages sent, 0 came\n$/);
  assert.match(attempt("two", "channels").stderr, /share a number/);
  ac("two", "post", "r", "--as", "bob", "--body", "after");
  ac("two", "renumber", "r");
  for (const root of ["two", "one"]) ac(root, "sync");
  assert.deepEqual(files("one"), files("two"));
  assert.deepEqual([news("one", "carol"), news("two", "carol")], [["after"], ["after"]]);
});

test("sync: a merge or rebase by hand that met a conflict is named; given up, the sync settles what both claimed", (t) => {
  for (const way of ["--no-rebase", "--rebase"]) {
    const { ac, git, tryGit, commit, files, fails, path: at, news } = clones(t);
    ac("one", "claim", "r", "1", "--as", "alice");
    ac("two", "claim", "r", "1", "--as", "bob");
    for (const root of ["one", "two"]) commit(root);
    git("one", "push", "-q");
    assert.equal(tryGit("two", "pull", way, "--no-edit").status, 1);
    const what = way === "--rebase" ? "rebase" : "merge";
    const { message, try: mend } = fails("two", 1, "no_repo", "sync");
    assert.deepEqual([message, mend], [`a ${what} is under way in ${at("two")}: finish it, or give it up with --abort`, `git -C ${at("two")} ${what} --continue`]);
    git("two", what, "--abort");
    ac("two", "sync");
    assert.deepEqual(files("two").filter((file) => file.startsWith("task-1")), ["task-1.CLAIMED-alice.md"]);
    assert.match(news("two", "bob").join(), /task-1 is not yours: on the remote alice has it/);
  }
});

test("sync: members that joined on both sides, a conflict by hand, are all members then", (t) => {
  const { ac, git, tryGit, commit, path: at } = clones(t, "--members", "alice");
  ac("one", "join", "r", "--as", "carol");
  ac("two", "join", "r", "--as", "dave");
  for (const root of ["one", "two"]) commit(root);
  git("one", "push", "-q");
  assert.match(tryGit("two", "pull", "--no-rebase", "--no-edit").stdout, /CONFLICT \(content\): Merge conflict in r\/_meta\.json/);
  git("two", "merge", "--abort");
  for (const root of ["two", "one"]) {
    ac(root, "sync");
    const { members } = JSON.parse(fs.readFileSync(at(root, "r", "_meta.json"), "utf8")) as { members: string[] };
    assert.deepEqual(members, ["alice", "carol", "dave"]);
  }
});
