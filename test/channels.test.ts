import assert from "node:assert/strict";
import fs from "node:fs";
import { test } from "node:test";
import { join, openChannel } from "../chat.ts";
import { BIN, rows, sandbox } from "./helpers.ts";

test("init: makes the channel, its cursors, and what git needs to know at the root", (t) => {
  const { ok, at, root } = sandbox(t);
  const line = ok(["init", "review", "--members", "alice, @Bob,alice", "--topic", "schema\nv2"]);
  assert.equal(line, `created channel 'review' at ${at("review")}  members=alice, bob\n`);
  const { created, ...meta } = JSON.parse(fs.readFileSync(at("review", "_meta.json"), "utf8"));
  assert.deepEqual(meta, { channel: "review", members: ["alice", "bob"], topic: "schema v2" });
  assert.match(created, /^\d{4}-\d\d-\d\dT[\d:]+[+-]\d\d:\d\d$/);
  assert.deepEqual(fs.readdirSync(root).sort(), [".gitattributes", ".gitignore", "review"]);
  assert.deepEqual(fs.readdirSync(at("review")).sort(), [".cursors", "_meta.json"]);
  assert.match(ok(["init", "open"]), /  members=\(open\)\n$/);
  assert.deepEqual(rows<{ members: string[] }>(ok(["init", "third", "--json"]))[0]!.members, []);
});

test("init: git ignores the lock and keeps the messages, as bytes", (t) => {
  const { ok, bash, at } = sandbox(t);
  ok(["init", "r"]);
  ok(["post", "r", "--from", "alice", "--title", "t", "--body", "a\r\nb"]);
  fs.mkdirSync(at("r", "_seq.lock"));
  fs.writeFileSync(at("r", "_seq.lock", "x.draft"), "");
  fs.mkdirSync(at("r", "_seq.lock.abc"));
  fs.writeFileSync(at("r", "_seq.lock.abc", "x.draft"), "");
  fs.mkdirSync(at("r", ".cursors", "bob.lock"));
  fs.writeFileSync(at("r", ".cursors", "bob.lock", "x.draft"), "");
  fs.writeFileSync(at("r", ".cursors", "bob.wait"), "");
  for (const lock of ["_sync.lock", "_sync.lock.abc"]) {
    fs.mkdirSync(at(lock));
    fs.writeFileSync(at(lock, "x.draft"), "");
  }
  const { stdout } = bash(`cd "$AGENT_CHAT_ROOT" && git init -q && git config core.autocrlf true && git add -A 2>/dev/null && git ls-files && git show :r/0001-alice-t.md | tail -2 | od -c | head -1`);
  assert.match(stdout, /^\.gitattributes\n\.gitignore\nr\/0001-alice-t\.md\nr\/_meta\.json\n0000000   a  \\r  \\n   b  \\n\n/);
});

test("init: a channel that is there in other case is not made a second time", (t) => {
  const { chat, root, at } = sandbox(t);
  fs.mkdirSync(at("Team"), { recursive: true });
  fs.writeFileSync(at("Team", "_meta.json"), "{}"); // as the reference keeps the case
  for (const name of ["Team", "team", "TEAM"]) {
    const { status, stderr } = chat(["init", name]);
    assert.equal(status, 1);
    assert.ok(stderr.includes(`channel "Team" already exists at ${at("Team")}`), stderr);
  }
  assert.deepEqual(fs.readdirSync(root), ["Team"]);
});

test("init: leaves a .gitignore alone that is there, and exits 1 for a channel that is there", (t) => {
  const { chat, root, at } = sandbox(t);
  fs.mkdirSync(root);
  fs.writeFileSync(at(".gitignore"), "mine\n");
  const missing = "_seq.lock*  _sync.lock*  */.cursors/*";
  const added = (told: string): string => /\.gitignore" was there; .*, add to it: (.*)$/m.exec(told)?.[1] ?? "";
  assert.equal(added(chat(["init", "r", "--topic", "first"]).stderr), missing);
  assert.equal(added(chat(["init", "s", "--shared-cursors"]).stderr), `${missing}  !*/.cursors/*.txt  !*/.cursors/*.status`);
  assert.equal(fs.readFileSync(at(".gitignore"), "utf8"), "mine\n");
  fs.writeFileSync(at(".gitignore"), `mine\n${missing.replaceAll("  ", "\n")}\n`);
  assert.equal(chat(["init", "t"]).stderr, "");
  assert.match(chat(["init", "u", "--topic", "x".repeat(1001)]).stderr, /the topic has 1001 characters, more than 1000: nothing was done/);
  assert.ok(!fs.existsSync(at("u")));
  const { status, stderr } = chat(["init", "R", "--topic", "second"]);
  assert.equal(status, 1);
  assert.ok(stderr.includes(`channel "r" already exists at ${at("r")}`));
  assert.match(fs.readFileSync(at("r", "_meta.json"), "utf8"), /first/);
});

test("init: ten at once make the channel once", async (t) => {
  const { start, at } = sandbox(t);
  const ends = await Promise.all(Array.from({ length: 10 }, (_, i) => start(["init", "r", "--topic", `t${i}`]).ended));
  const winner = ends.findIndex(({ status }) => status === 0);
  assert.deepEqual(ends.map(({ status }) => status).sort(), [0, ...Array(9).fill(1)]);
  assert.match(fs.readFileSync(at("r", "_meta.json"), "utf8"), new RegExp(`"t${winner}"`));
  assert.ok(!fs.existsSync(at("r", "_seq.lock")));
});

const BAD = ["../x", "a/b", "a\\b", "C:x", ".cursors", "_meta", "", "..", ".", "a\nb", "x.", "x ", "con", "CON", "nul.txt", "lpt1", "x".repeat(300), "*", "a?b", "\x1b[31m"];

test("init: names that some system cannot keep are refused everywhere, with the nearest that it can", (t) => {
  const { chat, root } = sandbox(t);
  for (const name of [...BAD.filter((bad) => bad !== "x "), "-x", "a b", "é", "--", "a..b"]) {
    const { status, stderr } = chat(["init", "--", name]);
    assert.equal(status, 64, JSON.stringify(name));
    assert.match(stderr, /is not a name for a channel/);
  }
  assert.match(chat(["init", "A b"]).stderr, /try: agent-chat init a-b --root /);
  assert.equal(chat(["init", "x".repeat(65)]).status, 64);
  assert.ok(!fs.existsSync(root), "nothing was made");
  assert.equal(chat(["init", "x".repeat(64)]).status, 0);
});

test("channels: a folder made in one is as open as it is, through a link too, and hands its group on", { skip: process.platform === "win32" && "no modes there" }, (t) => {
  const { ok, at, dir } = sandbox(t);
  ok(["init", "r"]);
  fs.renameSync(at("r"), `${dir}/r`);
  fs.symlinkSync(`${dir}/r`, at("r"));
  const modes: number[] = [];
  for (const mode of [0o750, 0o2770]) {
    for (const name of [".cursors", ".tasks"]) fs.rmSync(at("r", name), { recursive: true, force: true });
    fs.chmodSync(`${dir}/r`, mode);
    ok(["task", "r", "t", "--as", "alice"]);
    ok(["claim", "r", "--next", "--as", "bob"]);
    ok(["read", "r", "--as", "bob", "--all"]);
    ok(["status", "r", "--as", "bob", "--set", "busy"]);
    modes.push(...[".cursors", ".tasks"].map((name) => fs.statSync(at("r", name)).mode & 0o7777));
  }
  assert.deepEqual(modes, [0o750, 0o750, 0o2770, 0o2770]);
});

test("channels: names that would leave the root are refused by every command", (t) => {
  const { ok, chat } = sandbox(t);
  ok(["init", "r"]);
  for (const name of [...BAD, " x", "-x"]) {
    for (const args of [["post", "--from", "a", "--body", "b"], ["read", "--as", "a"], ["wait", "--as", "a"], ["peek"], ["roster"]]) {
      assert.equal(chat([...args, "--", name]).status, 64, `${args[0]} ${JSON.stringify(name)}`);
    }
    assert.equal(chat(["claim", "--as", "a", "--", name, "1"]).status, 64);
  }
});

test("channels: one made by hand or by the reference opens under any safe name; case is folded", (t) => {
  const { ok, at, chat } = sandbox(t);
  ok(["init", "r"]);
  fs.cpSync(at("r"), at("My Channel"), { recursive: true });
  assert.match(ok(["post", "My Channel", "--from", "alice", "--body", "b"]), /-> My Channel\/0001/);
  assert.match(ok(["post", "R", "--from", "alice", "--body", "b"]), /-> r\/0001/);
  assert.match(chat(["read", "--as", "bob"]).stdout, /My Channel\/0001[^]*r\/0001/);
});

test("channels: a name that is not there lists those that are, the root, and the nearest", (t) => {
  const { ok, chat, root } = sandbox(t);
  ok(["init", "review"]);
  ok(["init", "build"]);
  const { status, stderr } = chat(["post", "reveiw", "--from", "a", "--body", "b"]);
  assert.equal(status, 1);
  assert.ok(stderr.includes(`no channel "reveiw" in ${root}; there are: build, review\n  try: agent-chat post review --from a --body b --root ${root}\n`), stderr);
  assert.match(chat(["peek", "zzz"]).stderr, new RegExp(`try: agent-chat init zzz --root ${root}`));
  assert.match(chat(["peek", "zzz --as bob"]).stderr, new RegExp(`try: agent-chat channels --root ${root}\n`)); // init would refuse it
});

test("channels: lists messages, members, newest and, with a name, what is unread; nothing is marked", (t) => {
  const { ok, at, chat } = sandbox(t);
  assert.match(chat(["channels"]).stderr, /no channels in .*root; make one/);
  ok(["init", "b", "--members", "alice,bob", "--topic", "T"]);
  ok(["init", "a"]);
  ok(["post", "b", "--from", "alice", "--to", "bob", "--title", "hi", "--body", "x"]);
  ok(["post", "b", "--from", "bob", "--title", "own", "--body", "x"]);
  fs.writeFileSync(at("b", "20260817-some-notes.md"), "");
  assert.equal(ok(["channels", "--as", "bob"]), `a  0 messages, 0 unread  (open)  ${at("a")}\n  no message yet\nb  2 messages, 1 unread  alice, bob  ${at("b")}\n  last: #2 bob: own\n`);
  const [, row] = rows<{ created: string; newest: { ts: string } }>(ok(["channels", "--json"]));
  assert.deepEqual({ ...row, created: "", newest: { ...row!.newest, ts: "" } }, { channel: "b", path: at("b"), messages: 2, members: ["alice", "bob"], topic: "T", created: "", newest: { seq: 2, from: "bob", title: "own", ts: "" } });
});

test("roster: members, topic, messages and the absolute path", (t) => {
  const { ok, at } = sandbox(t);
  ok(["init", "r", "--members", "alice,bob", "--topic", "T"]);
  assert.equal(ok(["roster", "r"]), `channel : r\npath    : ${at("r")}\ntopic   : T\nmembers : alice, bob\nmessages: 0\n  alice: never seen here; 0 unread\n  bob: never seen here; 0 unread\n`);
  assert.deepEqual(rows<{ members: string[] }>(ok(["roster", "r", "--json"]))[0]!.members, ["alice", "bob"]);
});

test("channels: random _meta.json never hides a channel or a message", (t) => {
  const { ok, at, chat } = sandbox(t);
  ok(["init", "r"]);
  ok(["post", "r", "--from", "alice", "--title", "t", "--body", "x"]);
  const said = (text: string, command: readonly string[], problem: string): void => {
    fs.writeFileSync(at("r", "_meta.json"), text);
    const { status, stderr } = chat(command);
    const note = problem && `agent-chat: "${at("r", "_meta.json")}" ${problem}: the channel is taken as open\n`;
    assert.deepEqual([status, stderr], [0, note], `${command.join(" ")} ${text}`);
  };
  const understood = ['{"topic":{"a":1}}', "\ufeff{}", '{"members":["__proto__"]}'];
  const odd = ['{"members":"alice"}', '{"members":[1,null,{}]}'];
  for (const text of ["", "null", "[]", "3", '"x"', "\0\x01", ...odd, ...understood]) {
    const problem = odd.includes(text) ? "has members that are no names" : "is not a JSON object";
    for (const command of [["channels"], ["roster", "r"]]) said(text, command, understood.includes(text) ? "" : problem);
    for (const command of [["peek", "r"], ["read", "r", "--as", "bob", "--peek"]]) said(text, command, "");
  }
});

// ---- members

test("init: makes no one a member but those who are named", (t) => {
  const { ok, at } = sandbox(t);
  const env = { AGENT_CHAT_NAME: "alice" };
  const members = (name: string, ...more: string[]): string[] => {
    ok(["init", name, ...more], { env });
    return JSON.parse(fs.readFileSync(at(name, "_meta.json"), "utf8")).members;
  };
  assert.deepEqual(members("a"), []);
  assert.deepEqual(members("b", "--members", "bob,carol"), ["bob", "carol"]);
  assert.deepEqual(members("c", "--as", "dave", "--members", "bob,carol"), ["bob", "carol", "dave"]);
  assert.deepEqual(members("d", "--as", "bob", "--members", "@Bob"), ["bob"]);
  assert.deepEqual(members("e", "--as", "dave"), [], "open stays open");
  assert.deepEqual(members("f", "--members", ""), []);
});

test("join: twenty at once are all members, and unknown keys of _meta.json stay", async (t) => {
  const { ok, at, start } = sandbox(t);
  ok(["init", "r", "--members", "alice", "--topic", "T"]);
  const { created } = JSON.parse(fs.readFileSync(at("r", "_meta.json"), "utf8"));
  const before = { policy: { "a b": [1, null, "\u00fc\u2028"] }, channel: "r", members: ["alice"], __proto: 0, topic: "T", created };
  fs.writeFileSync(at("r", "_meta.json"), `\ufeff${JSON.stringify(before).replace("__proto", "__proto__")}`);
  const names = Array.from({ length: 20 }, (_, i) => `w${i}`);
  const ends = await Promise.all(names.map((name) => start(["join", "r", "--as", name, "--json"]).ended));
  assert.deepEqual(ends.map(({ status }) => status), Array(20).fill(0));
  for (const [i, { stdout }] of ends.entries()) {
    const [row] = rows<{ agent: string; members: string[]; changed: boolean }>(stdout);
    assert.deepEqual([row!.agent, row!.members.includes(names[i]!), row!.changed], [names[i], true, true]);
  }
  const text = fs.readFileSync(at("r", "_meta.json"), "utf8");
  const { members, ...rest } = JSON.parse(text);
  assert.deepEqual(members.sort(), ["alice", ...names].sort());
  const { members: _, ...kept } = JSON.parse(JSON.stringify(before).replace("__proto", "__proto__"));
  assert.deepEqual(rest, kept);
  assert.deepEqual(Object.keys(JSON.parse(text)), Object.keys(JSON.parse(JSON.stringify(before).replace("__proto", "__proto__"))), "in their order");
  assert.ok(text.startsWith("{\n") && text.endsWith("}\n"));
  const gone = await Promise.all(names.map((name) => start(["leave", "r", "--as", name]).ended));
  assert.deepEqual(gone.map(({ status }) => status), Array(20).fill(0));
  assert.deepEqual(JSON.parse(fs.readFileSync(at("r", "_meta.json"), "utf8")).members, ["alice"]);
  assert.deepEqual(fs.readdirSync(at("r")).sort(), [".cursors", "_meta.json"]);
});

test("join: a _meta.json that is not understood is left as it is", (t) => {
  const { ok, chat, at } = sandbox(t);
  ok(["init", "r", "--members", "alice"]);
  const file = at("r", "_meta.json");
  const texts = ["", "<<<<<<< HEAD\n{}\n=======\n{}\n>>>>>>> x\n", "null", "[]", '["alice"]', "3", '"x"', "{", '{"members":["alice"]', '{"members":"alice"}', '{"members":{"alice":1}}', '{"members":["alice",1]}', '{"members":[null]}', '{"members":[{"name":"alice"}]}', '{"members":5}'];
  for (const text of [...texts.map((one) => Buffer.from(one)), Buffer.from([...Buffer.from('{"topic":"'), 0xff, ...Buffer.from('"}')]), Buffer.from("\ufeff{}", "utf16le")]) {
    fs.writeFileSync(file, text);
    for (const args of [["join", "r", "--as", "carol"], ["leave", "r", "--as", "alice"]]) {
      const { status, stdout, stderr } = chat([...args, "--json"]);
      assert.equal(status, 1, `${args[0]} ${text}`);
      assert.equal(stdout, "");
      assert.match(stderr, /"code":"bad_meta".*nothing was changed/);
      assert.ok(fs.readFileSync(file).equals(text));
    }
  }
  assert.deepEqual(fs.readdirSync(at("r")).sort(), [".cursors", "_meta.json"], "and no lock is left");
});

test("join: in another case, again, and by one who is no member, nothing changes", (t) => {
  const { ok, at, chat } = sandbox(t);
  ok(["init", "r"]);
  const text = '{"members": ["Bob", "@Carol", "alice"], "x": 1}';
  fs.writeFileSync(at("r", "_meta.json"), text);
  for (const args of [["join", "r", "--as", "bob"], ["join", "r", "--as", "@BOB"], ["join", "R", "--as", "carol"], ["leave", "r", "--as", "dave"]]) {
    assert.match(ok(args), / already at .*members=Bob, @Carol, alice\n$/);
    assert.equal(rows<{ changed: boolean }>(ok([...args, "--json"]))[0]!.changed, false);
    assert.equal(fs.readFileSync(at("r", "_meta.json"), "utf8"), text);
  }
  assert.equal(ok(["leave", "r", "--as", "bob"]), `bob is no member of 'r' at ${at("r")}  members=@Carol, alice\n`);
  assert.equal(ok(["join", "r", "--as", "bob"]), `bob is a member of 'r' at ${at("r")}  members=@Carol, alice, bob\n`);
  for (const [args, status] of [[["join", "r"], 64], [["leave", "r"], 64], [["join", "r", "--as", "a b"], 64], [["join", "none", "--as", "bob"], 1], [["join", "--as", "bob"], 64]] as const) assert.equal(chat(args).status, status, args.join(" "));
  assert.equal(chat(["join", "r"], { env: { AGENT_CHAT_NAME: "eve" } }).status, 0, "who asks to join is named");
});

test("join: the first makes a list of an open channel, and says so; when the last leaves it is open again", (t) => {
  const { ok, chat, at } = sandbox(t);
  ok(["init", "r"]);
  const first = chat(["join", "r", "--as", "alice"]);
  assert.match(first.stderr, /"r" was open to all; from now on its members are alice\n/);
  assert.equal(chat(["join", "r", "--as", "bob"]).stderr, "");
  assert.equal(chat(["post", "r", "--from", "alice", "--to", "carol-x", "--body", "b"]).status, 1);
  ok(["leave", "r", "--as", "alice"]);
  assert.match(ok(["leave", "r", "--as", "bob"]), /  members=\(open\)\n$/);
  assert.equal(chat(["post", "r", "--from", "alice", "--to", "carol-x", "--body", "b"]).status, 0);
  fs.writeFileSync(at("r", "_meta.json"), '{"topic": "no list"}');
  ok(["leave", "r", "--as", "bob"]);
  assert.equal(fs.readFileSync(at("r", "_meta.json"), "utf8"), '{"topic": "no list"}');
  ok(["join", "r", "--as", "bob"]);
  assert.deepEqual(JSON.parse(fs.readFileSync(at("r", "_meta.json"), "utf8")), { topic: "no list", members: ["bob"] });
});

test("join: a _meta.json that is a link is not written through", (t) => {
  const { ok, at, chat, dir } = sandbox(t);
  ok(["init", "r", "--members", "alice"]);
  const channel = openChannel(at(), "r");
  fs.renameSync(at("r", "_meta.json"), `${dir}/meta`);
  fs.symlinkSync(`${dir}/meta`, at("r", "_meta.json"));
  const before = fs.readFileSync(`${dir}/meta`, "utf8");
  assert.equal(chat(["join", "r", "--as", "bob"]).status, 1);
  return assert.rejects(join(channel, "bob"), { code: "bad_meta" }).then(() => assert.equal(fs.readFileSync(`${dir}/meta`, "utf8"), before));
});

test("peek: the last three, whoever they are for, or as many as -n says; an empty channel is said", (t) => {
  const { ok, chat } = sandbox(t);
  ok(["init", "r"]);
  assert.match(chat(["peek", "r"]).stderr, /no messages in/);
  for (let i = 1; i <= 5; i++) ok(["post", "r", "--from", "alice", "--body", `b${i}`]);
  const seqs = (...args: string[]): number[] => rows<{ seq: number }>(ok(["peek", "r", "--json", ...args])).map(({ seq }) => seq);
  assert.deepEqual(seqs(), [3, 4, 5]);
  assert.deepEqual(seqs("-n", "1"), [5]);
  assert.deepEqual(seqs("-n99"), [1, 2, 3, 4, 5]);
  for (const bad of ["0", "-1", "x", "1.5", ""]) assert.equal(chat(["peek", "r", "-n", bad]).status, 64, bad);
});

test("channels: members of a wrong type are named, and who can be understood is one", (t) => {
  const { chat, ok, at } = sandbox(t);
  ok(["init", "r"]);
  for (const [members, said] of [['"alice"', "the channel is taken as open"], ['{"a":1}', "the channel is taken as open"], ["[7,null]", "the channel is taken as open"], ['["alice",7]', "of its members only alice can be understood"]] as const) {
    fs.writeFileSync(at("r", "_meta.json"), `{"members":${members}}`);
    for (const command of [["channels"], ["roster", "r"]]) {
      const { status, stderr } = chat(command);
      assert.deepEqual([status, stderr], [0, `agent-chat: "${at("r", "_meta.json")}" has members that are no names: ${said}\n`], members);
    }
    assert.match(chat(["join", "r", "--as", "bob"]).stderr, /has members that are no names: nothing was changed\n  try: mend the file first: one JSON object, with members that are a list of names\n/);
  }
  for (const members of ["null", "[]", '["alice"]']) {
    fs.writeFileSync(at("r", "_meta.json"), `{"members":${members}}`);
    assert.equal(chat(["roster", "r"]).stderr, "", members);
  }
});

test("channels: a _meta.json that is no regular file is named, and init is not suggested", (t) => {
  const { chat, ok, at } = sandbox(t);
  ok(["init", "r"]);
  fs.rmSync(at("r", "_meta.json"));
  fs.symlinkSync("nowhere", at("r", "_meta.json"));
  for (const command of [["roster", "r"], ["read", "R", "--as", "bob"]]) {
    const { status, stderr } = chat(command);
    assert.deepEqual([status, stderr], [1, `agent-chat: no channel "${command[1]}": "${at("r", "_meta.json")}" is no regular file\n`]);
  }
});

test("channels: a root whose channels may not be looked into does not look empty", (t) => {
  const { ok, bash } = sandbox(t);
  ok(["init", "r"]);
  const { stdout, stderr } = bash(`chmod 755 "$AGENT_CHAT_ROOT" "$AGENT_CHAT_ROOT/.."; chmod 700 "$AGENT_CHAT_ROOT/r"
    setpriv --reuid 65534 --clear-groups true 2>/dev/null || { echo skip; exit; }
    for command in "read --as bob" channels; do setpriv --reuid 65534 --clear-groups "${process.execPath}" "${BIN}" $command; echo "exit $?"; done`);
  if (stdout === "skip\n") return;
  assert.equal(stdout, "exit 1\nexit 0\n");
  assert.match(stderr, /could not be looked into \(EACCES\)\nagent-chat: no channel in \S+ can be looked into\n  try: choose a root/);
  assert.doesNotMatch(stderr, /no channels in|init/);
});

test("channels: a folder made in one is as open as what is there, also behind a link, and keeps the group for its files", (t) => {
  const { ok, at } = sandbox(t);
  for (const [name, mode] of [["shared", 0o2775], ["linked", 0o750]] as const) {
    fs.mkdirSync(at("..", name), { recursive: true });
    fs.writeFileSync(at("..", name, "_meta.json"), "{}");
    fs.chmodSync(at("..", name), mode);
    fs.mkdirSync(at(), { recursive: true });
    if (name === "shared") fs.renameSync(at("..", name), at(name));
    else fs.symlinkSync(at("..", name), at(name));
    ok(["cursor", name, "--as", "bob", "--set", "all"]);
    const made = (bits: number): number => fs.statSync(at(name, ".cursors")).mode & bits;
    assert.equal(made(0o777), mode & 0o777, name);
    if (process.platform === "linux") assert.equal(made(0o2000), mode & 0o2000, name);
  }
});

test("read: a link to nowhere in the place of the cursors is not taken for a channel that is gone", (t) => {
  const { ok, chat, at } = sandbox(t);
  ok(["init", "r"]);
  ok(["post", "r", "--as", "alice", "--body", "b"]);
  fs.rmdirSync(at("r", ".cursors"));
  fs.symlinkSync("nowhere", at("r", ".cursors"));
  const { stdout, stderr } = chat(["read", "r", "--as", "bob"]);
  assert.match(stdout, /#1 alice -> all/);
  assert.match(stderr, /could not mark .* \(ENOENT, \w+ "\S+\/\.cursors"\); you will be shown these again/);
});

test("init: makes a channel in a root that may be written, and not listed", (t) => {
  const { ok, bash } = sandbox(t);
  ok(["init", "r"]);
  const { stdout, stderr } = bash(`chmod 733 "$AGENT_CHAT_ROOT"; chmod 755 "$AGENT_CHAT_ROOT/.."
    as() { setpriv --reuid 65534 --clear-groups "$@"; }
    as true 2>/dev/null || { echo skip; exit; }
    for name in r new; do as "${process.execPath}" "${BIN}" init $name; echo "exit $?"; done`);
  if (stdout === "skip\n") return;
  assert.match(stdout, /^exit 1\ncreated channel 'new' .*\nexit 0\n$/);
  assert.match(stderr, /channel "r" already exists/);
});

test("channels, roster: a message that cannot be read, or is none, does not look like no message", (t) => {
  const { ok, chat, at } = sandbox(t);
  ok(["init", "r"]);
  fs.writeFileSync(at("r", "0001-alice-x.md"), "---\nseq: 1\nfrom: alice\n");
  for (const command of [["channels"], ["channels", "--as", "bob"], ["roster", "r"]]) {
    const { status, stderr } = chat(command);
    assert.equal(status, 0);
    assert.equal(stderr.match(/0001-alice-x\.md" /g)?.length, 1, command.join(" "));
  }
});

test("channels: one that may not be listed hides no other, in no command that looks at all of them", (t) => {
  const { ok, bash } = sandbox(t);
  for (const name of ["a", "b"]) ok(["init", name]);
  ok(["post", "b", "--as", "alice", "--body", "text of b"]);
  ok(["task", "b", "task of b", "--as", "alice"]);
  const { stdout } = bash(`chmod -R a+rwX "$AGENT_CHAT_ROOT"; chmod a+x "$AGENT_CHAT_ROOT/.."; chmod 311 "$AGENT_CHAT_ROOT/a"
    as() { setpriv --reuid 65534 --clear-groups "$@" 2>&1; }
    as true >/dev/null || { echo skip; exit; }
    for command in channels roster tasks "read --all" "wait --as bob --tasks --timeout 0" "read --as bob" "tasks a" "roster a"; do
      as "${process.execPath}" "${BIN}" $command; echo "exit $? $command"; done
    chmod 311 "$AGENT_CHAT_ROOT/b"
    for command in roster tasks "read --as bob"; do as "${process.execPath}" "${BIN}" $command; echo "exit $? all $command"; done
    chmod 777 "$AGENT_CHAT_ROOT/a"
    for command in roster tasks; do as "${process.execPath}" "${BIN}" $command; echo "exit $? last $command"; done`);
  if (stdout === "skip\n") return;
  const outputs = new Map(stdout.split(/(?<=\nexit .*\n)/).map((text) => [/exit (.*)\n$/.exec(text)![1]!, text]));
  for (const one of ["channels", "roster", "tasks", "read --all", "wait --as bob --tasks --timeout 0", "read --as bob"]) {
    assert.match(outputs.get(`0 ${one}`) ?? "", /could not list "\S+\/a": permission denied[^]*(channel : b|b {2}1 message|b: 1 open|of b)/, one);
  }
  for (const one of ["last roster", "last tasks"]) assert.match(outputs.get(`0 ${one}`) ?? "", /could not list "\S+\/b": permission denied/, one);
  for (const one of ["tasks a", "roster a", "all roster", "all tasks", "all read --as bob"]) {
    assert.match(outputs.get(`1 ${one}`) ?? "", /could not list "\S+": permission denied.*\n {2}try: choose a root/, one);
    assert.doesNotMatch(outputs.get(`1 ${one}`) ?? "", /nothing new/, one);
  }
});
