import assert from "node:assert/strict";
import fs from "node:fs";
import { test } from "node:test";
import { openChannel, post } from "../chat.ts";
import { crowd, listening, rows, sandbox, until, watchChild, cleanEnv, BIN } from "./helpers.ts";
import { spawn } from "node:child_process";

const review = (t: Parameters<typeof sandbox>[0]) => {
  const box = sandbox(t);
  box.ok(["init", "review", "--members", "alice,bob"]);
  return box;
};

test("post: prints number and file, for whom, the bytes written, and the absolute path", (t) => {
  const { ok, at } = review(t);
  const lines = ok(["post", "review", "--from", "alice", "--to", "bob", "--title", "schema v0.2", "--body", "a\nbé"]).split("\n");
  assert.equal(lines[0], "posted #1 -> review/0001-alice-schema-v0-2.md");
  assert.equal(lines[1], `  to bob; 5 bytes, 2 lines; ${at("review", "0001-alice-schema-v0-2.md")}`);
});

test("post: an author called as everybody is, or with a comma, is not written to, and a reply to them says that it is for all", (t) => {
  const { ok, chat, at } = sandbox(t);
  ok(["init", "open"]);
  for (const [i, name] of ["null", "x, y", "~"].entries()) {
    fs.writeFileSync(at("open", `000${i + 1}-${["null", "x-y", "msg"][i]}-t.md`), `---\nseq: ${i + 1}\nfrom: ${name}\nto: all\n---\nb\n`);
    if (name.includes(",")) continue; // two, where it is said whom to write to
    for (const command of [["post", "open", "--body", "b", "--to"], ["task", "open", "t", "--for"]])
      assert.notEqual(chat([...command, name, "--as", "alice"]).status, 0, `${command[0]} ${name}`);
  }
  for (const [i, name] of ["null", "x, y", "~"].entries()) {
    const { status, stdout, stderr } = chat(["post", "open", "--as", "alice", "--reply", `${i + 1}`, "--body", "b"]);
    assert.deepEqual([status, /^  to all;/m.test(stdout)], [0, true]);
    assert.equal(stderr, `agent-chat: "${name}" cannot be written to: the reply is for all\n`);
  }
  assert.deepEqual(fs.readdirSync(at("open")).filter((name) => name.startsWith("task")), []);
});

test("post: the file is the header in the reference's order, then the body", (t) => {
  const { ok, at } = review(t);
  ok(["post", "review", "--from", "alice", "--body", "one"]);
  ok(["post", "review", "--from", "bob", "--reply", "1", "--status", "done", "--title", "ok", "--body", "two\n"]);
  const text = fs.readFileSync(at("review", "0002-bob-ok.md"), "utf8");
  const ts = String.raw`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d`;
  const want = `^---\nseq: 2\nfrom: bob\nto: alice\nreply_to: 1\nchannel: review\nts: ${ts}\nstatus: done\ntitle: ok\n---\ntwo\n$`;
  assert.match(text, new RegExp(want));
  const ownTitle = (seq: number, from: string, to: string, title: string): RegExp =>
    new RegExp(`^---\nseq: ${seq}\nfrom: ${from}\nto: ${to}\nchannel: review\nts: ${ts}\nstatus: discussion\ntitle: ${title}\n---\n${title}\n$`);
  assert.match(fs.readFileSync(at("review", "0001-alice-one.md"), "utf8"), ownTitle(1, "alice", "all", "one"));
  ok(["post", "review", "--from", "carol", "--to", "bob,alice", "--priority", "normal", "--body", "three"]);
  assert.match(fs.readFileSync(at("review", "0003-carol-three.md"), "utf8"), ownTitle(3, "carol", "bob, alice", "three"));
});

test("post: ts is local time with its offset", (t) => {
  const { ok } = review(t);
  const before = Date.now();
  ok(["post", "review", "--from", "alice", "--body", "x"], { env: { TZ: "America/St_Johns" } });
  const [message] = rows<{ ts: string }>(ok(["peek", "review", "--json"]));
  assert.match(message!.ts, /-0[23]:30$/);
  assert.ok(Math.abs(Date.parse(message!.ts) - before) < 10_000);
});

test("post, status: a time zone that is a day or more away is written as UTC, which everybody reads", (t) => {
  const { ok } = review(t);
  const env = { TZ: "UTC+25" };
  ok(["post", "review", "--from", "alice", "--body", "x"], { env });
  assert.match(ok(["status", "review", "--as", "alice", "--set", "busy"], { env }), /^alice in review: busy until /);
  const [message] = rows<{ ts: string }>(ok(["peek", "review", "--json"]));
  assert.ok(Math.abs(Date.parse(message!.ts) - Date.now()) < 10_000, message!.ts);
});

test("post: without a title it is the first line of the body, shortened", (t) => {
  const { ok } = review(t);
  ok(["post", "review", "--from", "alice", "--body", `\n## ${"word ".repeat(40)}\nsecond`]);
  const [message] = rows<{ title: string; file: string }>(ok(["peek", "review", "--json"]));
  assert.match(message!.title, /^word word .*\u2026$/);
  assert.ok(message!.title.length <= 72);
  assert.match(message!.file, /^0001-alice-word-word[a-z-]*[a-z]\.md$/);
});

test("post: a title in another script makes the slug msg, and accents are folded", (t) => {
  const { ok } = review(t);
  assert.match(ok(["post", "review", "--from", "alice", "--title", "日本", "--body", "x"]), /0001-alice-msg\.md/);
  assert.match(ok(["post", "review", "--from", "alice", "--title", "Übergabe", "--body", "x"]), /0002-alice-ubergabe\.md/);
  assert.match(ok(["post", "review", "--from", "alice", "--title", "x".repeat(41), "--body", "x"]), /0003-alice-x{40}\.md/);
});

test("post: numbers go on past 9999 without a change of order", (t) => {
  const { ok, at } = review(t);
  ok(["post", "review", "--from", "alice", "--title", "t", "--body", "x"]);
  const text = fs.readFileSync(at("review", "0001-alice-t.md"), "utf8");
  fs.writeFileSync(at("review", "9999-alice-t.md"), text.replace("seq: 1", "seq: 9999"));
  assert.match(ok(["post", "review", "--from", "alice", "--title", "t", "--body", "x"]), /#10000 -> review\/10000-alice-t\.md/);
  assert.match(ok(["post", "review", "--from", "alice", "--title", "t", "--body", "x"]), /#10001/);
});

test("post: the whole text is on disk before its name is there, and the name before it is reported", async (t) => {
  const { root, at } = review(t);
  const steps: string[] = [];
  const open = new Map<number, string>();
  const [openSync, fsyncSync, linkSync] = [fs.openSync, fs.fsyncSync, fs.linkSync];
  const opening = (file: string, flags: string): number => {
    const fd = openSync(file, flags);
    open.set(fd, file);
    return fd;
  };
  t.mock.method(fs, "openSync", opening as never);
  t.mock.method(fs, "fsyncSync", (fd: number) => {
    const file = open.get(fd)!;
    steps.push(file === at("review") ? `folder, lock ${fs.existsSync(at("review", "_seq.lock"))}` : fs.readFileSync(file, "utf8").replace(/^[^]*\n---\n/, ""));
    fsyncSync(fd);
  });
  t.mock.method(fs, "linkSync", (from: string, to: string) => {
    steps.push(to.slice(root.length));
    linkSync(from, to);
  });
  fs.writeFileSync(at("review", "0002-alice-t.md"), ""); // the number goes to the next, and the text is another
  await post(openChannel(root, "review"), { from: "alice", title: "s", body: "one" });
  await post(openChannel(root, "review"), { from: "alice", title: "t", body: "two" });
  const want = (name: string, body: string): string[] => [`${body}\n`, `/review/${name}`, "folder, lock false"];
  assert.deepEqual(steps, [...want("0001-alice-s.md", "one"), ...want("0003-alice-t.md", "two")]);
});

test("post: thirty at once take the numbers 1 to 30, none twice, none skipped", async (t) => {
  const { start, at, ok } = review(t);
  const ends = await Promise.all(Array.from({ length: 30 }, (_, i) => start(["post", "review", "--from", `w${i}`, "--body", `b${i}`]).ended));
  assert.deepEqual(ends.map(({ status }) => status), Array(30).fill(0));
  const numbers = fs.readdirSync(at("review")).filter((name) => /^\d/.test(name)).map((name) => Number(name.slice(0, 4)));
  assert.deepEqual(numbers.sort((a, b) => a - b), Array.from({ length: 30 }, (_, i) => i + 1));
  const messages = rows<{ from: string; body: string }>(ok(["peek", "review", "-n", "30", "--json"]));
  assert.deepEqual(messages.map(({ from, body }) => body === `b${from.slice(1)}\n`), Array(30).fill(true));
  assert.ok(!fs.existsSync(at("review", "_seq.lock")));
});

// ---- bodies

test("post: blank bodies are refused by every path, and nothing is posted", (t) => {
  const { chat, dir, at } = review(t);
  fs.writeFileSync(`${dir}/empty.md`, "\ufeff \n\t\n");
  const paths: [string[], string?][] = [
    [["--body", ""]],
    [["--body", " \n"]],
    [["--body-file", `${dir}/empty.md`]],
    [["--body", "-"], ""],
    [["--body-file", "-"], " \n"],
    [[], ""],
  ];
  for (const [args, stdin] of paths) {
    const { status, stdout, stderr } = chat(["post", "review", "--from", "alice", ...args], { stdin });
    assert.equal(status, 1, args.join(" "));
    assert.equal(stdout, "");
    assert.match(stderr, /the body is blank: nothing was posted/);
  }
  assert.deepEqual(fs.readdirSync(at("review")).filter((name) => /^\d/.test(name)), []);
});

test("post: NUL and invalid UTF-8 are refused by every path", (t) => {
  const { chat, dir, bash } = review(t);
  for (const [bytes, why] of [[Buffer.from("a\0b"), /NUL/], [Buffer.from([0x61, 0xff, 0xfe]), /not valid UTF-8/], [Buffer.from([0xff, 0xfe, 0x00, 0xd8]), /not valid UTF-16/]] as const) {
    fs.writeFileSync(`${dir}/bad`, bytes);
    for (const args of [["--body-file", `${dir}/bad`], ["--body-file", "-"], ["--body", "-"], []]) {
      const { status, stderr } = chat(["post", "review", "--from", "alice", ...args], { stdin: bytes });
      assert.equal(status, 1);
      assert.match(stderr, why);
    }
  }
  const argument = bash(`ac post review --from alice --body $'a\\xffb'; echo "exit $?"`);
  assert.match(argument.stdout, /exit 64/);
  assert.match(argument.stderr, /not valid UTF-8/);
  assert.match(bash(`ac post review --from alice --body $'\\xef\\xbf\\xbd'; echo "exit $?"`).stdout, /exit 0/, "U+FFFD itself is text");
});

test("post: UTF-16 and byte order marks are understood", (t) => {
  const { ok, dir } = review(t);
  const utf16 = Buffer.from("\ufeffgrüße\n", "utf16le");
  fs.writeFileSync(`${dir}/le`, utf16);
  fs.writeFileSync(`${dir}/be`, Buffer.from(utf16).swap16());
  fs.writeFileSync(`${dir}/bom`, "\ufeffgrüße\n");
  for (const file of ["le", "be", "bom"]) ok(["post", "review", "--from", "alice", "--body-file", `${dir}/${file}`]);
  const bodies = rows<{ body: string }>(ok(["peek", "review", "--json"])).map(({ body }) => body);
  assert.deepEqual(bodies, ["grüße\n", "grüße\n", "grüße\n"]);
});

test("post: a body of 1 MiB is taken, one byte more is not, and says how many there were", async (t) => {
  const { chat, dir, ok, root } = review(t);
  fs.writeFileSync(`${dir}/large`, "x".repeat(1024 * 1024 - 1) + "\n");
  ok(["post", "review", "--from", "alice", "--body-file", `${dir}/large`]);
  fs.appendFileSync(`${dir}/large`, "x");
  for (const [args, stdin] of [[["--body-file", `${dir}/large`], ""], [["--body-file", "-"], fs.readFileSync(`${dir}/large`)]] as const) {
    const { status, stderr } = chat(["post", "review", "--from", "alice", ...args], { stdin });
    assert.equal(status, 1);
    assert.match(stderr, /1048577 bytes, more than 1048576/);
  }
  const endless = chat(["post", "review", "--from", "alice"], { stdin: Buffer.alloc(5 << 20, "x") });
  assert.match(endless.stderr, /more than 1048576 bytes: nothing was posted/);
  const wide = post(openChannel(root, "review"), { from: "alice", body: "é".repeat(512 * 1024 + 1) });
  await assert.rejects(wide, { code: "too_big", message: "the body has 1048578 bytes, more than 1048576: nothing was posted" });
  assert.equal(rows(ok(["peek", "review", "--json"])).length, 1);
});

test("post: with --body or --body-file stdin is never touched", async (t) => {
  const { start, dir } = review(t);
  fs.writeFileSync(`${dir}/b`, "from the file");
  for (const args of [["--body", "hi"], ["--body-file", `${dir}/b`]]) {
    const silent = start(["post", "review", "--from", "alice", ...args]); // its stdin stays open and silent
    assert.equal((await silent.ended).status, 0);
  }
});

test("post: a silent pipe is named after 2 s and given up after 10 s", async (t) => {
  const { start, at } = review(t);
  const began = Date.now();
  const { status, stderr } = await start(["post", "review", "--from", "alice", "--title", "t"]).ended;
  const took = Date.now() - began;
  assert.equal(status, 1);
  assert.match(stderr, /waiting for the body on stdin[^]*nothing came on stdin for 10 s/);
  assert.ok(took > 9_500 && took < 13_000, `${took} ms`);
  assert.ok(!fs.existsSync(at("review", "0001-alice-t.md")));
});

test("post: --body - waits for stdin as long as it takes, and a slow first byte does not end the rest", async (t) => {
  const { start, ok } = review(t);
  const asked = start(["post", "review", "--from", "alice", "--body", "-"]);
  setTimeout(() => asked.child.stdin!.end("late"), 10_500);
  const slow = start(["post", "review", "--from", "bob"]);
  slow.child.stdin!.write("first ");
  setTimeout(() => slow.child.stdin!.end("second"), 10_400);
  const [late, parts] = await Promise.all([asked.ended, slow.ended]);
  assert.equal(late.status, 0, late.stderr);
  assert.equal(late.stderr, "");
  assert.equal(parts.status, 0, parts.stderr);
  const bodies = rows<{ body: string }>(ok(["peek", "review", "--json"])).map(({ body }) => body);
  assert.deepEqual(bodies.sort(), ["first second\n", "late\n"]);
});

test("post: values may begin with dashes, joined or apart", (t) => {
  const { ok } = review(t);
  ok(["post", "review", "--from", "alice", "--title", "-5 tests", "--body", "--- a/file\n+++ b/file"]);
  ok(["post", "review", "--from", "alice", "--title=-x", "--body=--- a"]);
  ok(["post", "review", "--from", "alice", "--title", "--", "--body", "---"]);
  const messages = rows<{ title: string; body: string }>(ok(["peek", "review", "--json"]));
  assert.deepEqual(
    messages.map(({ title, body }) => [title, body]),
    [["-5 tests", "--- a/file\n+++ b/file\n"], ["-x", "--- a\n"], ["--", "---\n"]],
  );
});

test("post: --body together with --body-file is wrong usage", (t) => {
  const { chat } = review(t);
  assert.equal(chat(["post", "review", "--from", "alice", "--body", "a", "--body-file", "b"]).status, 64);
});

test("post: a body file that is not there, or a folder, is an error with the quoted name", (t) => {
  const { chat, dir } = review(t);
  for (const file of [`${dir}/none`, dir]) {
    const { status, stderr } = chat(["post", "review", "--from", "alice", "--body-file", file]);
    assert.equal(status, 1);
    assert.ok(stderr.includes(`could not read the body from "${file}"`), stderr);
  }
});

// ---- recipients

test("post: an unknown recipient in a channel with members is refused with the members and the nearest", (t) => {
  const { chat, ok, at } = review(t);
  const { status, stderr } = chat(["post", "review", "--from", "alice", "--to", "bbo", "--title", "t", "--body", "b"]);
  assert.equal(status, 1);
  assert.match(stderr, /"bbo" is not known in "review" .*members: alice, bob; did you mean "bob"\?\n  try: agent-chat post review --from alice --to bob --title t --body b /);
  assert.ok(!fs.existsSync(at("review", "0001-alice-t.md")));
  const two = chat(["post", "review", "--from", "alice", "--to", "bbo,bob", "--body", "b"]).stderr; // bob is meant already
  assert.match(two, /"bbo" is not known in .*members: alice, bob\n  try: send it all the same with --force\n$/);
  const own = chat(["post", "review", "--from", "bob", "--to", "bbo", "--body", "b"]).stderr; // nor oneself
  assert.match(own, /members: alice, bob\n  try: send it all the same with --force\n$/);
  ok(["post", "review", "--from", "alice", "--to", "bbo", "--body", "b", "--force"]);
});

test("post: who has posted, read, made or taken a task in a channel may be written to, member or not", (t) => {
  const { ok, chat } = review(t);
  const outsider = chat(["post", "review", "--from", "carol-x", "--title", "hi", "--body", "b"]);
  assert.equal(outsider.status, 0);
  assert.match(outsider.stderr, /"carol-x" is not a member of "review" \(alice, bob\)/);
  ok(["read", "review", "--as", "dave"]);
  ok(["post", "review", "--from", "alice", "--to", "carol-x,dave", "--body", "b"]);
  ok(["task", "review", "x", "--as", "boss"]);
  ok(["claim", "review", "1", "--as", "erin"]);
  ok(["post", "review", "--from", "alice", "--to", "boss,erin", "--body", "b"]); // who made a task is asked about it
  assert.equal(chat(["post", "review", "--from", "alice", "--to", "carol", "--body", "b"]).status, 1, "carol is not carol-x");
});

test("post: a member is reached however the member list spells the name, and as it spells it", (t) => {
  const { ok, at } = review(t);
  fs.writeFileSync(at("review", "_meta.json"), '{"members": ["Dev", "alice"]}');
  for (const to of ["Dev", "dev", "@DEV"]) {
    assert.match(ok(["post", "review", "--from", "alice", "--to", to, "--body", "b"]), /\n  to Dev;/);
  }
  assert.equal(rows(ok(["read", "review", "--as", "dev", "--json"])).length, 3);
});

test("post: an unknown recipient in an open channel is a note, not a refusal", (t) => {
  const { ok, chat } = sandbox(t);
  ok(["init", "open"]);
  const { status, stderr } = chat(["post", "open", "--from", "alice", "--to", "bob", "--body", "b"]);
  assert.equal(status, 0);
  assert.match(stderr, /"bob" has never posted or read in "open"/);
});

test("post: a reply goes to the author, a word more on one's own message to whom that went", (t) => {
  const { ok } = review(t);
  ok(["post", "review", "--from", "alice", "--to", "bob", "--title", "q", "--body", "b"]);
  ok(["post", "review", "--from", "bob", "--reply", "1", "--body", "a"]);
  ok(["post", "review", "--from", "alice", "--reply", "#1", "--body", "one thing more"]);
  ok(["post", "review", "--from", "bob", "--reply", "2", "--to", "all", "--body", "to all"]);
  const messages = rows<{ to: string[]; reply_to: number; title: string }>(ok(["peek", "review", "-n", "9", "--json"]));
  assert.deepEqual(
    messages.map(({ to, reply_to, title }) => [to, reply_to, title]),
    [[["bob"], null, "q"], [["alice"], 1, "re: q"], [["bob"], 1, "re: q"], [[], 2, "re: q"]],
  );
});

test("post: a reply to what is not there or is no number is refused", (t) => {
  const { chat, at } = review(t);
  for (const [reply, status] of [["7", 1], ["999", 1], ["abc", 64], ["0", 64], ["-1", 64], ["1.5", 64]] as const) {
    const result = chat(["post", "review", "--from", "alice", "--reply", reply, "--body", "b"]);
    assert.equal(result.status, status, reply);
    assert.ok(result.stderr.includes(reply));
  }
  assert.deepEqual(fs.readdirSync(at("review")).filter((name) => /^\d/.test(name)), []);
});

test("post: a message only to oneself is refused, one to all is not shown to its author", (t) => {
  const { chat, ok, at } = review(t);
  assert.match(chat(["post", "review", "--from", "bob", "--to", "Bob,@bob", "--body", "b"]).stderr, /only to "bob"/);
  ok(["post", "review", "--from", "bob", "--to", "all", "--body", "b"]);
  assert.equal(chat(["wait", "review", "--as", "bob", "--timeout", "0"]).status, 2);
  fs.writeFileSync(at("review", "_meta.json"), '{"members":["alice","Bob"]}');
  assert.match(chat(["post", "review", "--from", "bob", "--to", "bob", "--body", "b"]).stderr, /only to "bob"/, "as the list spells it");
});

test("post: no sender, two senders, or a blank recipient are wrong usage", (t) => {
  const { chat } = review(t);
  assert.match(chat(["post", "review", "--body", "b"]).stderr, /who are you[^]*--as NAME/);
  for (const args of [["--as", "alice", "--from", "bob"], ["--from", "alice", "--to", ""], ["--from", "alice", "--to", ","]]) {
    assert.equal(chat(["post", "review", "--body", "b", ...args]).status, 64, args.join(" "));
  }
  assert.equal(chat(["post", "review", "--body", "b", "--from", "bob"], { env: { AGENT_CHAT_NAME: "alice" } }).status, 0);
});

// ---- the folder around it

test("post: a stray file does not take part in the numbering", (t) => {
  const { ok, at } = review(t);
  for (const name of ["20260817-notes.md", "20260817-meeting-notes.md", "0001-alice-x (conflicted copy).md", "0001-alice-x 2.md", "0009-alice-half.md"]) {
    fs.writeFileSync(at("review", name), name.startsWith("0009") ? "---\nseq: 9\nfrom: alice\n" : "");
  }
  fs.mkdirSync(at("review", "0007-a-folder.md"));
  fs.symlinkSync("/etc/passwd", at("review", "0008-a-link.md"));
  assert.match(ok(["post", "review", "--from", "alice", "--body", "b"]), /^posted #1 /);
  assert.match(ok(["post", "review", "--from", "alice", "--body", "b"]), /^posted #2 /);
});

test("post: a file that stands where the message would go costs a number and is not replaced", async (t) => {
  const { ok, at, root } = review(t);
  fs.writeFileSync(at("review", "0001-alice-t.md"), "mine");
  assert.match(ok(["post", "review", "--from", "alice", "--title", "t", "--body", "b"]), /^posted #2 -> review\/0002-alice-t\.md/);
  assert.equal(fs.readFileSync(at("review", "0001-alice-t.md"), "utf8"), "mine");
  const { linkSync } = fs;
  t.mock.method(fs, "linkSync", (from: string, to: string) => {
    if (to === at("review", "0003-alice-t.md")) fs.writeFileSync(to, "theirs"); // after the listing, by who takes no lock
    linkSync(from, to);
  });
  assert.equal((await post(openChannel(root, "review"), { from: "alice", title: "t", body: "b" })).message.seq, 4);
  assert.equal(fs.readFileSync(at("review", "0003-alice-t.md"), "utf8"), "theirs");
});

test("post: a number that was kept is not believed if somebody had the lock, after a pause, or by a coarse clock", async (t) => {
  const { root, at } = review(t);
  const channel = openChannel(root, "review");
  const [lock, newest] = [at("review", "_seq.lock"), at("review", ".cursors", ".newest")];
  const write = (seq: number): void => fs.writeFileSync(at("review", `${seq}-carol-x.md`), `---\nseq: ${seq}\nfrom: carol\n---\nx\n`);
  const keep = (seq: number): void => fs.writeFileSync(newest, `${seq} ${fs.statSync(channel.path, { bigint: true }).mtimeNs}`);
  const { mkdirSync } = fs;
  let before = (): void => {};
  const making = (folder: string, ...rest: []): unknown => {
    if (folder === lock) before();
    before = () => {};
    return mkdirSync(folder, ...rest);
  };
  t.mock.method(fs, "mkdirSync", making as never);
  const posted = async (): Promise<number> => (await post(channel, { from: "alice", body: "b" })).message.seq;
  write(60_000);
  mkdirSync(lock);
  keep(60_000);
  before = () => (write(60_001), fs.rmdirSync(lock)); // as the reference, between our look and our turn
  assert.equal(await posted(), 60_002);
  keep(60_002);
  before = () => (Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20), write(60_003));
  assert.equal(await posted(), 60_004);
  write(60_005);
  fs.utimesSync(channel.path, 1_800_000_000, 1_800_000_000);
  keep(60_004);
  assert.equal(await posted(), 60_006);
});

test("post: in a large channel the number is found without a listing, and a change by others is seen", async (t) => {
  const { ok, root, at } = review(t);
  const channel = openChannel(root, "review");
  const write = (seq: number, from: string): void => fs.writeFileSync(at("review", `${seq}-${from}-x.md`), `---\nseq: ${seq}\nfrom: ${from}\n---\nx\n`);
  write(60_000, "carol");
  fs.writeFileSync(at("review", "x"), "");
  for (let i = 1; i < 50_000; i++) fs.linkSync(at("review", "x"), at("review", `x${i}`)); // another process counts too
  const listed = t.mock.method(fs, "readdirSync");
  const listings = (): number => listed.mock.calls.filter((call) => call.arguments[0] === channel.path).length;
  const next = async (): Promise<number> => (await post(channel, { from: "alice", body: "b" })).message.seq;
  assert.equal(await next(), 60_001);
  assert.equal(listings(), 2, "numbers are missing below: listed twice");
  // Where the machine is busy between two posts, the second one lists, as it must: one of many finds it idle.
  const unlistedAfter = async (who: string, postBefore: () => number | Promise<number>): Promise<void> => {
    for (let tries = 100; tries > 0; tries--) {
      const last = await postBefore();
      const before = listings();
      assert.equal(await next(), last + 1);
      if (listings() === before) return;
    }
    assert.fail(`each of 100 posts after one by ${who} listed the folder`);
  };
  await unlistedAfter("the same process", next);
  await unlistedAfter("another one", () => Number(/^posted #(\d+)/.exec(ok(["post", "review", "--from", "bob", "--body", "b"]))![1]));
  const last = await next();
  await new Promise((resolve) => setTimeout(resolve, 30));
  write(last + 1, "dave"); // by hand: without the lock, and without .newest
  const before = listings();
  assert.equal(await next(), last + 2);
  assert.equal(listings(), before + 2);
  fs.rmSync(at("review", ".cursors"), { recursive: true });
  assert.equal(await next(), last + 3);
  assert.equal(await next(), last + 4);
  assert.equal(listings(), before + 6, "without .cursors there is nowhere to keep it");
});

test("post: another number, or one letter for another, is no slip: no other name is suggested", (t) => {
  const { ok, chat } = sandbox(t);
  ok(["init", "r", "--members", "worker-1,worker-12,a,bob"]);
  const said = (...args: string[]): string => chat([...args, "--as", "a"]).stderr;
  for (const name of ["worker-2", "worker-13", "c", "bob2"]) {
    const stderr = said("post", "r", "--to", name, "--body", "x");
    assert.match(stderr, /is not known in "r" .*\n {2}try: send it all the same with --force\n/, name);
    assert.doesNotMatch(stderr, /did you mean/, name);
  }
  assert.match(said("post", "r", "--to", "wroker-12", "--body", "x"), /did you mean "worker-12"\?\n {2}try: agent-chat post r --to worker-12 /);
  assert.match(said("post", "r", "--to", "boob", "--body", "x"), /did you mean "bob"\?/);
  assert.doesNotMatch(said("post", "r", "--to", "bob,boob", "--body", "x"), /did you mean/, "bob is named already");
  assert.doesNotMatch(chat(["post", "r", "--to", "boob", "--body", "x", "--as", "bob"]).stderr, /did you mean/, "not oneself");
  assert.match(said("peek", "q"), /no channel "q" in \S+; there are: r\n {2}try: agent-chat init q /);
  assert.doesNotMatch(chat(["read", "r", "--as", "worker-2", "--peek"]).stderr, /did you mean/);
});

test("post: a damaged _meta.json is named, and the channel is taken as open", (t) => {
  const { chat, at } = review(t);
  fs.writeFileSync(at("review", "_meta.json"), "<<<<<<< HEAD");
  const { status, stderr } = chat(["post", "review", "--from", "alice", "--to", "bob", "--body", "b"]);
  assert.equal(status, 0);
  assert.match(stderr, /_meta\.json" is not a JSON object: the channel is taken as open/);
});

test("post: when stdout fails, the error says that it was posted", (t) => {
  const { bash, at } = review(t);
  const { stdout, stderr } = bash(`ac post review --from alice --title t --body b > /dev/full; echo "exit $?"`);
  assert.equal(stdout, "exit 1\n");
  assert.match(stderr, /posted #1, but could not write to stdout: no space left/);
  assert.ok(fs.existsSync(at("review", "0001-alice-t.md")));
});

test("post: on a terminal it says how to finish the body", { skip: !fs.existsSync("/usr/bin/script") && "no script(1) here" }, async (t) => {
  const { root, dir, ok } = review(t);
  const command = `'${process.execPath}' '${BIN}' post review --from alice`;
  const typed = watchChild(spawn("script", ["-qec", command, "/dev/null"], { cwd: dir, env: cleanEnv({ AGENT_CHAT_ROOT: root }) }));
  await until("the hint is shown", () => typed.output().includes("Ctrl-D"));
  typed.child.stdin!.write("typed\n\x04");
  assert.equal((await typed.ended).status, 0);
  assert.equal(rows<{ body: string }>(ok(["peek", "review", "--json"]))[0]!.body, "typed\n");
});

test("post: a body that never ends is refused, from a file as from stdin", (t) => {
  const { chat } = review(t);
  const { status, stderr } = chat(["post", "review", "--from", "alice", "--body-file", "/dev/zero"]);
  assert.equal(status, 1);
  assert.match(stderr, /NUL byte|more than 1048576/);
});

test("post: broken UTF-16 is refused, not repaired", (t) => {
  const { chat, dir } = review(t);
  for (const bytes of [[0xff, 0xfe, 0x68], [0xff, 0xfe, 0x00, 0xd8, 0x68, 0x00]]) {
    fs.writeFileSync(`${dir}/bad`, Buffer.from(bytes));
    assert.match(chat(["post", "review", "--from", "alice", "--body-file", `${dir}/bad`]).stderr, /not valid UTF-16/);
  }
});

test("post: a title or status of more than 1,000 characters is refused", (t) => {
  const { chat } = review(t);
  for (const option of ["--title", "--status"]) {
    assert.match(chat(["post", "review", "--from", "alice", "--body", "b", option, "x".repeat(1001)]).stderr, /has 1001 characters, more than 1000/);
  }
});

test("post: the title of an answer is not cut inside a character, and its key finds it again", (t) => {
  const { ok } = review(t);
  ok(["post", "review", "--from", "alice", "--body", "b", "--title", `${"x".repeat(995)}\u{1f600}`]);
  const answer = ["post", "review", "--from", "bob", "--body", "b", "--reply", "1", "--key", "k"];
  ok(answer);
  assert.match(ok(answer), /^posted #2 /);
  assert.match(rows<{ title: string }>(ok(["peek", "review", "--json"])).at(-1)!.title, /^re: x{995}$/);
});

test("post: what is wrong with the address is said before the body is asked for", async (t) => {
  const { start } = review(t);
  const began = Date.now();
  for (const wrong of [["--to", "bbo"], ["--reply", "9"]]) {
    assert.equal((await start(["post", "review", "--from", "alice", ...wrong]).ended).status, 1);
  }
  assert.ok(Date.now() - began < 2000);
});

test("post: after the last number that a name can hold it is refused", (t) => {
  const { chat, at } = review(t);
  fs.writeFileSync(at("review", "999999999999999-z-y.md"), "---\nseq: 999999999999999\nfrom: z\n---\nx");
  const { status, stderr } = chat(["post", "review", "--from", "alice", "--body", "b"]);
  assert.equal(status, 1);
  assert.match(stderr, /has given out its last number/);
});

test("post: in a large channel a number is not given twice when the last message is moved away or replaced", async (t) => {
  const { root, at } = review(t);
  const channel = openChannel(root, "review");
  const write = (seq: number): void => fs.writeFileSync(at("review", `${seq}-dave-x.md`), `---\nseq: ${seq}\nfrom: dave\n---\nx\n`);
  write(60_000);
  crowd(t, at("review"));
  const { message } = await post(channel, { from: "alice", body: "b" });
  await new Promise((resolve) => setTimeout(resolve, 20));
  write(60_002);
  fs.renameSync(message.path, at("moved.md"));
  assert.equal((await post(channel, { from: "alice", body: "b" })).message.seq, 60_003);
});

// ---- priority and key

test("post: a priority is written, read and shown; another word is refused", (t) => {
  const { ok, chat, at } = review(t);
  const post = (...more: string[]): string => ok(["post", "review", "--from", "alice", "--title", "t", "--body", "b", ...more]);
  post("--priority", "high");
  post("--priority", "Low ", "--key", "k");
  post("--priority", "normal");
  post();
  const head = (seq: number): string => fs.readFileSync(at("review", `000${seq}-alice-t.md`), "utf8");
  assert.match(head(1), /\ntitle: t\npriority: high\n---\nb\n$/);
  assert.match(head(2), /\ntitle: t\npriority: low\nkey: k\n---\nb\n$/);
  assert.match(head(3), /\ntitle: t\n---\nb\n$/);
  for (const [seq, line] of [[5, "priority: HIGH "], [6, 'priority: "high"'], [7, "priority: urgent"], [8, "priority:"], [9, "priority: high # now"]] as const)
    fs.writeFileSync(at("review", `000${seq}-carol-t.md`), `---\nseq: ${seq}\nfrom: carol\ntitle: t\n${line}\n---\nb\n`);
  const messages = rows<{ seq: number; priority?: string }>(ok(["read", "review", "--as", "bob", "--peek", "--json"]));
  assert.deepEqual(messages.map(({ priority }) => priority), ["high", "low", undefined, undefined, "high", "high", undefined, undefined, "high"]);
  assert.ok(!("priority" in messages[2]!));
  const text = ok(["read", "review", "--as", "bob"]);
  assert.deepEqual(text.match(/^t  \(.*\)$/gm)!.slice(0, 4), ["t  (discussion, high)", "t  (discussion, low)", "t  (discussion)", "t  (discussion)"]);
  for (const word of ["urgent", "", "1", "high,low", "hihg"]) {
    const { status, stderr } = chat(["post", "review", "--from", "alice", "--body", "b", "--priority", word]);
    assert.equal(status, 64, word);
    assert.match(stderr, /is none of low, normal, high/);
  }
  assert.match(chat(["post", "review", "--from", "alice", "--body", "b", "--priority", "hihg"]).stderr, /try: agent-chat post review --from alice --body b --priority high /);
});

test("post: a key is posted once, by twenty at once as well, and its number is told again", async (t) => {
  const { ok, start, at } = review(t);
  const args = ["post", "review", "--from", "alice", "--to", "bob", "--title", "t", "--body", "b", "--key", "deploy 1: #2"];
  fs.mkdirSync(at("review", "_seq.lock"));
  fs.writeFileSync(at("review", "_seq.lock", "elsewhere.1.x.draft"), ""); // so that all of them come before any has posted
  const posts = Array.from({ length: 20 }, () => start([...args, "--json"]));
  await Promise.all(posts.map(listening));
  fs.rmSync(at("review", "_seq.lock"), { recursive: true, force: true });
  const ends = await Promise.all(posts.map(({ ended }) => ended));
  const posted = ends.map(({ stdout }) => rows<{ seq: number; created: boolean; key: string; file: string; path: string; addressees: unknown[] }>(stdout)[0]!);
  assert.deepEqual(ends.map(({ status }) => status), Array(20).fill(0));
  assert.equal(posted.filter(({ created }) => created).length, 1);
  for (const { seq, key, file, path, addressees } of posted) assert.deepEqual([seq, key, file, path, addressees.length], [1, "deploy 1: #2", "0001-alice-t.md", at("review", "0001-alice-t.md"), 1]);
  const before = fs.readFileSync(at("review", "0001-alice-t.md"), "utf8");
  ok(["post", "review", "--from", "bob", "--body", "between"]);
  const again = ok(args);
  assert.match(again, /^posted #1 -> review\/0001-alice-t\.md  before, under this key\n  to bob; 1 byte, 1 line; /);
  assert.equal(fs.readFileSync(at("review", "0001-alice-t.md"), "utf8"), before);
  assert.deepEqual(fs.readdirSync(at("review")).filter((name) => /^\d/.test(name)), ["0001-alice-t.md", "0002-bob-between.md"]);
  assert.match(ok(args.map((word) => (word === "alice" ? "bob" : word === "bob" ? "alice" : word))), /^posted #3 /, "another sender's key is another key");
  assert.match(ok([...args.slice(0, -1), "deploy 1: #3"]), /^posted #4 /);
  ok(["init", "other"]);
  assert.match(ok(args.map((word) => (word === "review" ? "other" : word))), /^posted #1 -> other/);
});

test("post: a key that was used for another content is refused with exit 4, and nothing is posted", (t) => {
  const { ok, chat, at } = review(t);
  ok(["post", "review", "--from", "bob", "--title", "q", "--body", "b"]);
  const base: Record<string, string> = { "--to": "bob", "--reply": "1", "--status": "done", "--title": "t", "--priority": "high", "--body": "b" };
  const args = (change: Record<string, string | undefined>): string[] =>
    ["post", "review", "--from", "alice", "--key", "k", ...Object.entries({ ...base, ...change }).flatMap(([name, value]) => (value === undefined ? [] : [name, value]))];
  ok(args({}));
  const files = fs.readdirSync(at("review")).sort();
  const changes: Record<string, string | undefined>[] = [{ "--to": "all" }, { "--to": "bob,alice" }, { "--reply": "2" }, { "--reply": undefined }, { "--status": "Done" }, { "--status": undefined }, { "--title": "T" }, { "--title": undefined }, { "--priority": "low" }, { "--priority": undefined }, { "--body": "b\n\n" }, { "--body": "B" }, { "--body": "b\r\n" }];
  for (const change of changes) {
    const { status, stdout, stderr } = chat(args(change));
    assert.equal(status, 4, JSON.stringify(change));
    assert.equal(stdout, "");
    assert.ok(stderr.includes(`"alice" posted another message under the key "k": ${at("review", "0002-alice-t.md")}; nothing was posted`), stderr);
  }
  const { error } = JSON.parse(chat([...args({ "--body": "B" }), "--json"]).stderr) as { error: { code: string; try: string } };
  assert.deepEqual([error.code, error.try], ["other_content", "give this one a key of its own"]);
  assert.deepEqual(fs.readdirSync(at("review")).sort(), files);
  for (const same of [{}, { "--body": "b\n" }, { "--to": "@Bob" }, { "--reply": "#1" }, { "--to": undefined }, { "--priority": "HIGH" }]) assert.match(ok(args(same)), /^posted #2 .* before, under this key/, JSON.stringify(same));
  const numbers = ["alice,bob", "bob,alice"].map((to) => /#\d+/.exec(ok(["post", "review", "--from", "carol", "--to", to, "--key", to === "alice,bob" ? "k" : " k\t", "--body", "b"]))![0]);
  assert.deepEqual(numbers, ["#3", "#3"], "in any order, and without the space around the key");
  for (const other of ["carol-b", "car"]) assert.match(ok(["post", "review", "--from", other, "--key", "k", "--body", "x"]), /^posted #[45] ->/, "a key is the sender's");
  assert.match(ok(["post", "review", "--from", "carol-b", "--key", "k2", "--title", "t", "--body", "x"]), /^posted #6 ->/);
  assert.match(ok(["post", "review", "--from", "carol", "--key", "k2", "--title", "t", "--body", "y"]), /^posted #7 ->/, "though the other's file begins with her name");
});

test("post: any key is told apart from every other and found again, whatever YAML makes of it", (t) => {
  const { ok, chat, at } = review(t);
  const keys = ["a", "A", '"a"', "'a'", "a: b", "a #b", "#", "- a", "[a]", "{a}", "yes", "null", "~", "1", "01", "1.0", "2026-01-01", "---", "...", "*", "&a", "!a", "|", ">", "%", "@", "`", "a\\nb", "a\tb", "\x1b[31m", "é", "e\u0301", "\u202e", "\ud83d\ude00", "a, b", "=", "<<", "x".repeat(1000)];
  const numbers = (): string[] => keys.map((key) => /^posted #(\d+) /.exec(ok(["post", "review", "--from", "alice", "--title", "t", "--body", "b", `--key=${key}`]))![1]!);
  const first = numbers();
  assert.deepEqual(first, keys.map((_, i) => String(i + 1)));
  assert.deepEqual(numbers(), first);
  const written = (seq: number): string => /^key: (.*)$/m.exec(fs.readFileSync(at("review", `${String(seq).padStart(4, "0")}-alice-t.md`), "utf8"))![1]!;
  for (const key of ["a: b", "yes", "1", "#", "2026-01-01", "\x1b[31m"]) assert.equal(written(keys.indexOf(key) + 1), JSON.stringify(key), "as a YAML reader needs it");
  assert.match(ok(["post", "review", "--from", "alice", "--title", "t", "--body", "b", "--key", " \ta\n"]), /^posted #1 /, "space around it is no part of it");
  assert.match(ok(["post", "review", "--from", "alice", "--title", "t", "--body", "b", "--key", "a\x85"]), /^posted #1 /);
  for (const blank of ["", " ", "\n\t", "\x85", "\u2028 "]) assert.equal(chat(["post", "review", "--from", "alice", "--body", "b", "--key", blank]).status, 64, JSON.stringify(blank));
  const long = chat(["post", "review", "--from", "alice", "--body", "b", "--key", "x".repeat(1001)]);
  assert.equal(long.status, 1);
  assert.match(long.stderr, /the key has 1001 characters/);
  const messages = rows<{ key: string }>(ok(["peek", "review", "-n", "99", "--json"]));
  assert.deepEqual(messages.map(({ key }) => key), keys);
  assert.doesNotMatch(ok(["peek", "review", "-n", "99"]), /\x1b/);
});

test("post: for a key only the sender's own files are opened, and odd ones among them are passed over", async (t) => {
  const { root, at, ok } = review(t);
  const channel = openChannel(root, "review");
  for (let seq = 1; seq <= 9; seq++) fs.writeFileSync(at("review", `000${seq}-carol-t.md`), `---\nseq: ${seq}\nfrom: carol\nkey: k\n---\nb\n`);
  fs.writeFileSync(at("review", "0010-alice-ish-t.md"), "---\nseq: 10\nfrom: alice-ish\nkey: k\n---\nb\n");
  fs.mkdirSync(at("review", "0011-alice-t.md"));
  fs.symlinkSync("0001-carol-t.md", at("review", "0012-alice-t.md"));
  fs.writeFileSync(at("review", "0013-alice-t.md"), "---\nseq: 13\nfrom: alice\nkey: k\n"); // half-written
  fs.writeFileSync(at("review", "0014-alice-t.md"), "---\nseq: 15\nfrom: alice\nkey: k\n---\nb\n");
  fs.writeFileSync(at("review", "0015-alice-t.md"), "---\nseq: 15\nfrom: mallory\nkey: k\n---\nb\n");
  const opened = t.mock.method(fs, "openSync");
  const outgoing = { from: "alice", title: "t", body: "b", key: "k" };
  assert.equal((await post(channel, outgoing)).created, true);
  const names = opened.mock.calls.map((call) => String(call.arguments[0])).filter((name) => name.endsWith("-t.md"));
  assert.deepEqual(names.filter((name) => /carol/.test(name)), []);
  assert.equal((await post(channel, outgoing)).created, false);
  opened.mock.restore();
  const open = fs.openSync;
  t.mock.method(fs, "openSync", (...args: Parameters<typeof open>) => {
    if (String(args[0]).endsWith("0015-alice-t.md")) throw Object.assign(new Error("EACCES: permission denied, open"), { code: "EACCES", syscall: "open", path: args[0] });
    return open(...args);
  });
  await assert.rejects(post(channel, { ...outgoing, key: "other" }), { code: "no_access" });
  assert.match(ok(["peek", "review", "-n", "1"]), /#16 alice/, "it may be there, so nothing was posted");
});

test("post: a channel whose cursors are no folder is posted to all the same", (t) => {
  const { ok, chat, at } = review(t);
  ok(["post", "review", "--from", "bob", "--body", "b"]);
  fs.rmSync(at("review", ".cursors"), { recursive: true });
  fs.writeFileSync(at("review", ".cursors"), "a file");
  const { status, stdout, stderr } = chat(["post", "review", "--from", "alice", "--body", "b"]);
  assert.equal(status, 0, stderr);
  assert.match(stdout, /^posted #2 [^]*\nbob: last seen \d+ s ago, 1 unread\n$/);
});
