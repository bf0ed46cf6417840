import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { COMMANDS, VERSION } from "../chat.ts";
import { BIN, rows, sandbox } from "./helpers.ts";

test("cli: unknown commands, options, stray words and missing ones are wrong usage, exit 64, on stderr", (t) => {
  const { chat, ok } = sandbox(t);
  ok(["init", "r"]);
  const wrong: [string[], RegExp][] = [
    [[], /no command was given\n  try: agent-chat --help/],
    [["reed", "r"], /"reed" is not a command[^]*try: agent-chat read/],
    [["post", "r", "hello", "--from", "a", "--title", "t", "--body", "b"], /"hello" is one word too many for post/],
    [["post"], /post needs <channel>/],
    [["claim", "r", "--as", "a"], /claim needs <task>/],
    [["channels", "r"], /"r" is one word too many/],
    [["read", "r", "--as", "bob", "--lmit", "3"], /unknown option "--lmit"/],
    [["wait", "r", "--as", "bob", "--timeuot", "3"], /unknown option "--timeuot"; did you mean --timeout\?/],
    [["wait", "r", "-x"], /unknown option "-x"/],
    [["post", "r", "--from", "a", "--title"], /--title needs a value: TEXT/],
    [["post", "r", "--from", "a", "--title", "--body", "b"], /--title needs a value/],
    [["post", "r", "--from", "a", "--to", "x", "--to", "y", "--body", "b"], /--to is given twice/],
    [["read", "r", "--as", "a", "--json=yes"], /json/],
    [["read", "r"], /who are you\? no name was given\n  try: add --as NAME/],
    [["read", "r", "--as", ""], /--as "" is not a name/],
    [["read", "--root", "", "--as", "a"], /root "" names no folder/],
  ];
  for (const [args, message] of wrong) {
    const { status, stdout, stderr } = chat(args);
    assert.deepEqual([status, stdout], [64, ""], args.join(" "));
    assert.match(stderr, message);
    assert.doesNotMatch(stderr, /\n    at /);
  }
});

test("cli: a stray name that is no channel is an error, and nothing is read", (t) => {
  const { chat, ok } = sandbox(t);
  ok(["init", "r"]);
  ok(["post", "r", "--from", "alice", "--body", "x"]);
  assert.equal(chat(["read", "r", "bob", "--as", "bob"]).status, 1);
  assert.match(ok(["read", "r", "--as", "bob"]), /x/);
});

test("cli: --root, --as and --json stand before or after the command", (t) => {
  const { ok, dir } = sandbox(t);
  const root = path.join(dir, "other");
  ok(["--root", root, "init", "r"]);
  ok(["--as", "alice", "--root", root, "post", "r", "--body", "b"]);
  ok(["post", "r", "--root", root, "--as=alice", "--body", "b"]);
  assert.equal(rows(ok(["--json", "--root", root, "--as", "bob", "read"])).length, 2);
});

test("cli: help that was asked for goes to stdout with 0, for every command, under 80 wide", (t) => {
  const { chat } = sandbox(t);
  for (const args of [["--help"], ["-h"], ...Object.keys(COMMANDS).flatMap((name) => [[name, "--help"], ["--help", name], [name, "x", "y", "z", "-h"]])]) {
    const { status, stdout, stderr } = chat(args);
    assert.deepEqual([status, stderr], [0, ""], args.join(" "));
    for (const line of stdout.split("\n")) assert.ok(line.length < 80, line);
  }
});

test("cli: a command's help names its operands, every option with its placeholder, and an example", (t) => {
  const { ok } = sandbox(t);
  for (const [name, { operands, options, summary, examples }] of Object.entries(COMMANDS)) {
    const help = ok([name, "--help"]);
    assert.ok(help.startsWith(`agent-chat ${name}${operands && ` ${operands}`} [options]\n${summary}\n`));
    for (const [option, { value }] of Object.entries(options as Record<string, { value?: string }>)) {
      assert.ok(help.includes(option === "n" ? `-n ${value}` : `--${option}${value === undefined ? "" : ` ${value}`}`), option);
    }
    for (const example of examples) assert.ok(help.includes(example));
    assert.match(help, /--root DIR[^]*--as NAME[^]*--json/);
  }
});

test("cli: the general help lists every command, the exit codes, and long bodies from a quoted heredoc first", (t) => {
  const { ok } = sandbox(t);
  const help = ok(["--help"]);
  for (const [name, { summary }] of Object.entries(COMMANDS)) assert.match(help.replace(/\s+/g, " "), new RegExp(`${name} .*${summary.slice(0, 20)}`));
  for (const code of [0, 1, 2, 3, 64, 129, 130, 143]) assert.match(help, new RegExp(`\\b${code}  \\w`));
  assert.match(help, /<<'END'/);
  assert.ok(ok(["post", "--help"]).indexOf("<<'END'") < ok(["post", "--help"]).indexOf("--body 'yes'"));
});

test("cli: --version is the package's version", (t) => {
  const { ok } = sandbox(t);
  const { version } = JSON.parse(fs.readFileSync(path.join(import.meta.dirname, "../package.json"), "utf8"));
  assert.equal(VERSION, version);
  assert.equal(ok(["--version"]), `${version}\n`);
});

test("cli: errors with --json are one object on stderr, with a stable code and what to try", (t) => {
  const { chat, ok } = sandbox(t);
  ok(["init", "r"]);
  const cases: [string[], string, number][] = [
    [["peek", "none", "--json"], "no_channel", 1],
    [["read", "r", "--json"], "no_name", 64],
    [["--json"], "usage", 64],
    [["post", "r", "--as", "a", "--body", " ", "--json"], "no_body", 1],
    [["wait", "r", "--as", "a", "--timeout", "0", "--json"], "timeout", 2],
    [["init", "r", "--json"], "channel_exists", 1],
    [["init", "con", "--json"], "bad_name", 64],
    [["peek", "r", "-n", "x", "--json"], "bad_value", 64],
  ];
  for (const [args, code, status] of cases) {
    const result = chat(args);
    assert.equal(result.status, status);
    assert.equal(result.stdout, "");
    const { error } = JSON.parse(result.stderr);
    assert.deepEqual(Object.keys(error), ["code", "message", "try"]);
    assert.equal(error.code, code);
  }
});

test("cli: notes with --json are objects on stderr, and stdout is only data", (t) => {
  const { chat, ok } = sandbox(t);
  ok(["init", "r"]);
  const { stdout, stderr } = chat(["post", "r", "--as", "alice", "--to", "bob", "--body", "b", "--json"]);
  assert.equal(rows(stdout).length, 1);
  assert.match(JSON.parse(stderr).note, /"bob" has never posted or read/);
});

test("cli: --json rows carry the documented keys", (t) => {
  const { ok, at } = sandbox(t);
  const keys = (stdout: string): string => Object.keys(rows(stdout)[0]!).join(" ");
  assert.equal(keys(ok(["init", "r", "--json"])), "channel path members topic created");
  fs.writeFileSync(at("r", "task-1.md"), "");
  assert.equal(keys(ok(["post", "r", "--as", "alice", "--body", "b", "--json"])), "channel seq file path from to reply_to ts status title created bytes lines addressees");
  assert.equal(keys(ok(["read", "r", "--as", "bob", "--json"])), "channel seq file path from to reply_to ts status title body");
  assert.equal(keys(ok(["channels", "--as", "bob", "--json"])), "channel path messages members topic created newest unread");
  assert.equal(keys(ok(["roster", "r", "--json"])), "channel path messages members topic created newest agents");
  assert.equal(keys(ok(["claim", "r", "1", "--as", "bob", "--json"])), "channel task file path owner already from_file");
  assert.equal(keys(ok(["join", "r", "--as", "bob", "--json"])), "channel path agent members changed");
  assert.equal(keys(ok(["leave", "r", "--as", "bob", "--json"])), "channel path agent members changed");
  assert.equal(keys(ok(["cursor", "r", "--as", "bob", "--json"])), "channel agent path shown newest unread");
  assert.equal(keys(ok(["status", "r", "--as", "bob", "--set", "busy", "--json"])), "channel agent status");
  assert.equal(keys(ok(["receipts", "r", "1", "--json"])), "channel seq file path from title for shown unshown replied");
  assert.equal(keys(ok(["whoami", "--json"])), "name name_from root root_from exists");
  const addressee = "agent member last_post seen unread counted waiting status";
  const [{ agents }] = rows<{ agents: object[] }>(ok(["roster", "r", "--json"])) as [{ agents: object[] }];
  for (const agent of agents) assert.equal(Object.keys(agent).join(" "), `${addressee} tasks`);
  const more = ["--priority", "high", "--key", "k", "--body", "b", "--json"];
  const [{ addressees }] = rows<{ addressees: object[] }>(ok(["post", "r", "--as", "alice", "--to", "bob", ...more])) as [{ addressees: object[] }];
  for (const agent of addressees) assert.equal(Object.keys(agent).join(" "), addressee);
  assert.equal(keys(ok(["read", "r", "--as", "bob", "--json"])), "channel seq file path from to reply_to ts status title priority key body");
  const task = "channel task file path state title from for after priority owner since";
  assert.equal(keys(ok(["task", "r", "t", "--as", "alice", "--json"])), task);
  const tasks = rows(ok(["tasks", "r", "--json"])).map((row) => Object.keys(row).join(" "));
  assert.deepEqual(tasks, [`${task} presence`, task]);
  assert.equal(keys(ok(["release", "r", "1", "--as", "bob", "--json"])), `${task} already from_file message`);
  ok(["claim", "r", "1", "--as", "bob"]);
  assert.equal(keys(ok(["done", "r", "1", "--as", "bob", "--json"])), `${task} already from_file message`);
  assert.equal(keys(ok(["pause", "r", "--as", "bob", "--body", "why", "--json"])), "channel from ts body");
  assert.equal(keys(ok(["channels", "--json"])), "channel path messages members topic created newest paused");
  assert.equal(keys(ok(["resume", "r", "--as", "bob", "--json"])), "channel resumed");
  fs.copyFileSync(at("r", "0001-alice-b.md"), at("r", "0001-carol-b.md"));
  assert.equal(keys(ok(["renumber", "r", "--json"])), "channel from file was seq reply_to");
  const asked = rows(ok(["read", "r", "--as", "dave", "--json"])).at(-1)!;
  assert.equal(Object.keys(asked).join(" "), "channel seq file path from to reply_to ts status title was body");
});

test("cli: a command that is suggested can be pasted", (t) => {
  const { bash } = sandbox(t);
  const { stdout, stderr } = bash(`
    agent-chat() { ac "$@"; }
    fix() { eval "$(grep -o 'agent-chat .*' | tail -1)"; }
    ac init "it's a channel" 2>&1 | fix
    ac post nochan --as alice --body b 2>&1 | fix
    ac post nochan --as alice --body b`);
  assert.match(stdout, /created channel 'it-s-a-channel'[^]*created channel 'nochan'[^]*posted #1/, stderr);
});

const mayBeOthers = process.getuid?.() === 0 && spawnSync("setpriv", ["--version"]).status === 0;

// ---- who and where

test("root: --root, else $AGENT_CHAT_ROOT, else the nearest .agent-chat, else ~/agent-chat; always absolute", (t) => {
  const { dir, ok, chat } = sandbox(t);
  const env = { AGENT_CHAT_ROOT: undefined, HOME: path.join(dir, "home") };
  fs.mkdirSync(path.join(dir, "home"));
  fs.mkdirSync(path.join(dir, "work", "deep"), { recursive: true });
  const where = (args: string[], how: object): string => / at (.*?)\/\w+  members/.exec(ok(["init", ...args], how))![1]!;
  const real = fs.realpathSync(dir);
  assert.equal(where(["a"], { env, cwd: path.join(dir, "work", "deep") }), path.join(dir, "home", "agent-chat"));
  fs.mkdirSync(path.join(dir, "work", ".agent-chat"));
  assert.equal(where(["b"], { env, cwd: path.join(dir, "work", "deep") }), path.join(real, "work", ".agent-chat"));
  assert.equal(where(["c"], { env: { ...env, AGENT_CHAT_ROOT: path.join(dir, "env") }, cwd: path.join(dir, "work") }), path.join(dir, "env"));
  const both = { ...env, AGENT_CHAT_ROOT: path.join(dir, "env") };
  for (const [i, set] of [env, both].entries())
    assert.equal(where([`d${i}`, "--root", "given"], { env: set, cwd: path.join(dir, "work") }), path.join(real, "work", "given"));
  assert.equal(where(["e", "--root", "~/x"], { env, cwd: dir }), path.join(dir, "home", "x"));
  assert.equal(where(["f"], { env: { ...env, AGENT_CHAT_ROOT: "~/y" }, cwd: dir }), path.join(dir, "home", "y"));
  assert.equal(chat(["channels"], { env: { ...env, AGENT_CHAT_ROOT: "" }, cwd: path.join(dir, "work") }).stdout.includes(".agent-chat"), true, "empty is unset");
});

test("root: a relative $AGENT_CHAT_ROOT is used, and warned of with what it means here", (t) => {
  const { dir, chat } = sandbox(t);
  fs.mkdirSync(path.join(dir, "a"));
  const { status, stderr } = chat(["init", "r"], { env: { AGENT_CHAT_ROOT: ".chat" }, cwd: path.join(dir, "a") });
  assert.equal(status, 0);
  assert.ok(stderr.includes(`AGENT_CHAT_ROOT is relative, so it depends on the folder you are in: now ${path.join(fs.realpathSync(dir), "a", ".chat")}`), stderr);
  const named = (root: string): string => chat(["whoami"], { env: { AGENT_CHAT_ROOT: root, HOME: dir } }).stderr;
  assert.match(named("~bob/chat"), /AGENT_CHAT_ROOT is relative/, "a home that no shell has put in its place");
  for (const root of ["~", "~/chat", "", " "]) assert.equal(named(root), "", root);
});

test("root: bytes that are no UTF-8, in it or in the folder one is in, are refused, and no other folder is taken", (t) => {
  const { bash, dir } = sandbox(t);
  const odd = `"$(printf '${dir}/nu\\xff')"`;
  const { stdout, stderr } = bash(`mkdir -p ${odd}/.agent-chat; export HOME="${dir}"
    AGENT_CHAT_ROOT=${odd} ac init r; echo $?; ac init r --root ${odd}; echo $?; unset AGENT_CHAT_ROOT; cd ${odd}; ac init r; echo $?
    ac init r --root sub; echo $?; cd /; HOME=${odd} ac init r; echo $?; HOME=${odd} ac init r --root '~/x'; echo $?; ac init r --root "${dir}/ok" | cut -c1-7`);
  assert.equal(stdout, "64\n64\n64\n64\n64\n64\ncreated\n", stderr);
  assert.equal(stderr.match(/ is not valid UTF-8/g)?.length, 6, stderr);
  assert.deepEqual(fs.readdirSync(dir).sort().map((name) => name.slice(0, 2)), ["nu", "ok"], "no other folder");
});

test("root: where there is no home, or no folder one is in, a root that is given is taken; else what to do is said", { skip: mayBeOthers ? false : "needs root and setpriv" }, (t) => {
  const { bash, dir, at } = sandbox(t);
  const { stdout, stderr } = bash(`chmod 755 "${dir}"; ac init r > /dev/null; unset AGENT_CHAT_ROOT HOME
    as() { setpriv --reuid 54321 --clear-groups "${process.execPath}" "${BIN}" "$@"; echo "exit $?"; }
    cd /; as channels --root "${at()}" | grep exit; AGENT_CHAT_ROOT="${at()}" as channels | grep exit; as channels; HOME=x as channels
    mkdir "${dir}/gone"; cd "${dir}/gone"; rmdir "${dir}/gone"; ac channels --root "${at()}" | grep -c "^r "; ac channels`);
  assert.equal(stdout, "exit 0\nexit 0\nexit 1\nexit 1\n1\n", stderr);
  assert.deepEqual(stderr.match(/(?<=try: ).*/g), [
    "give --root DIR, or set HOME",
    "give --root DIR, or set HOME",
    "the folder you are in was removed: cd to another, then run it again",
  ]);
});

test("root: one that is a file is an error with its path, not a stack", (t) => {
  const { dir, chat } = sandbox(t);
  fs.writeFileSync(path.join(dir, "file"), "");
  for (const args of [["init", "r"], ["channels"], ["read", "--as", "a"]]) {
    const { status, stderr } = chat([...args, "--root", path.join(dir, "file")]);
    assert.equal(status, 1, args[0]);
    assert.ok(stderr.includes(path.join(dir, "file")) && !/\n    at /.test(stderr), stderr);
  }
});

test("names: a leading @ is dropped and case is folded, at every door", (t) => {
  const { ok } = sandbox(t);
  ok(["init", "r", "--members", "Alice,@BOB"]);
  ok(["post", "r", "--from", "ALICE", "--to", " @Bob ", "--body", "b"]);
  assert.equal(rows(ok(["read", "r", "--as", "bOb", "--json"])).length, 1);
  ok(["post", "r", "--as", "@bob", "--to", "ALL", "--body", "b"]);
  const [message] = rows<{ from: string; to: string[] }>(ok(["read", "r", "--as", "alice", "--json"]));
  assert.deepEqual([message!.from, message!.to], ["bob", []]);
});

test("names: AGENT_CHAT_NAME says who you are", (t) => {
  const { ok, chat } = sandbox(t);
  ok(["init", "r"]);
  ok(["post", "r", "--body", "b"], { env: { AGENT_CHAT_NAME: "Alice" } });
  assert.match(ok(["read", "r"], { env: { AGENT_CHAT_NAME: "bob" } }), /alice -> all/);
  assert.equal(ok(["read", "r", "--as", "alice"], { env: { AGENT_CHAT_NAME: "carol" } }), "", "her own");
  assert.match(chat(["read", "r"], { env: { AGENT_CHAT_NAME: "b b" } }).stderr, /AGENT_CHAT_NAME "b b" is not a name/);
  assert.match(chat(["post", "r", "--body", "b b"], { env: { AGENT_CHAT_NAME: "b b" } }).stderr, /try: use "b-b"\n/, "not another body");
});

test("names: a line break or control character in a field stays one line, or is refused", (t) => {
  const { ok, chat, at } = sandbox(t);
  ok(["init", "r"]);
  const evil = "x\nto: all\rfrom: boss\u2028seq: 9\u0085---\u000b\u000c\u001c\u001d\u001ey";
  ok(["post", "r", "--from", "a", "--to", "bob", "--title", evil, "--status", evil, "--body", "b"]);
  const file = fs.readdirSync(at("r")).find((name) => name.startsWith("0001"))!;
  const head = fs.readFileSync(at("r", file), "utf8").split("\n---\n")[0]!;
  assert.equal(head.split("\n").length, 8);
  const [message] = rows<{ from: string; to: string[]; title: string; status: string }>(ok(["read", "r", "--as", "bob", "--json"]));
  const folded = "x to: all from: boss seq: 9 --- y";
  assert.deepEqual({ from: message!.from, to: message!.to, title: message!.title, status: message!.status }, { from: "a", to: ["bob"], title: folded, status: folded });
  for (const option of ["--from", "--to", "--as"]) assert.equal(chat(["post", "r", "--body", "b", option, evil]).status, 64);
  assert.equal(chat(["init", "s", "--members", evil]).status, 64);
});

test("root: a folder that was removed, or may not be searched, is no stack trace", (t) => {
  const { bash } = sandbox(t);
  const { stdout, stderr } = bash(`mkdir gone && cd gone && rmdir ../gone; unset AGENT_CHAT_ROOT; ac channels; echo "exit $?"; ac channels --root x --json; echo "exit $?"`);
  assert.equal(stdout, "exit 1\nexit 1\n");
  assert.match(stderr, /could not find the root/);
  assert.doesNotMatch(stderr, /\n    at /);
});

test("root: one that can never be made is an error, not a loop", { skip: !fs.existsSync("/proc/self") && "needs /proc" }, (t) => {
  const { chat } = sandbox(t);
  const { status, stderr } = chat(["init", "r", "--root", "/proc/zz"]);
  assert.equal(status, 1);
  assert.match(stderr, /could not create channel "r"/);
});

test("cli: what is suggested keeps the root, the name and the other options", (t) => {
  const { dir, chat, ok } = sandbox(t);
  const root = path.join(dir, "other");
  assert.match(chat(["init", "A B", "--members", "alice", "--root", root]).stderr, new RegExp(`try: agent-chat init a-b --members alice --root ${root}`));
  ok(["init", "r", "--root", root]);
  assert.match(chat(["claim", "r", "12", "--as", "bob", "--root", root]).stderr, /no task "12"/);
  assert.match(chat(["post", "r", "--as", "bob", "--body", "b", "--reply", "9", "--root", root]).stderr, new RegExp(`try: agent-chat peek r --root ${root}`));
  const timeout = chat(["wait", "r", "--timeout", "0"], { env: { AGENT_CHAT_NAME: "bob", AGENT_CHAT_ROOT: root } }).stderr;
  assert.match(timeout, new RegExp(`try: agent-chat wait r --timeout 0 --as bob --root ${root}`));
});

test("cli: what is suggested changes the word that is wrong, and no title, body or channel that says the same", (t) => {
  const { chat, ok } = sandbox(t);
  ok(["init", "r", "--members", "alice,bob"]);
  const tried = (...args: string[]): string => /try: (.*)/.exec(chat([...args, "--as", "alice"]).stderr)![1]!;
  assert.match(tried("post", "r", "--to", "bbo", "--body", "hi"), /^agent-chat post r --to bob --body hi --as alice --root /);
  assert.match(tried("post", "r", "--to=bbo", "--body", "hi"), /^agent-chat post r --to=bob --body hi /);
  assert.match(tried("post", "r", "--to", "alice,bbo", "--body", "hi"), /^agent-chat post r --to alice,bob --body hi /);
  for (const said of [["--body", "bbo"], ["--body=bbo"], ["--body", "hi", "--title", "bbo"], ["--body", "hi", "--title=bbo"]])
    assert.equal(tried("post", "r", "--to", "bbo", ...said), "--to bob", said.join(" "));
  assert.equal(tried("post", "rr", "--body", "rr"), 'use "r"');
});

test("cli: what is suggested stays an option where the line has --, and where a value looks like --root or a command", (t) => {
  const { bash } = sandbox(t);
  const { stdout, stderr } = bash(`
    agent-chat() { ac "$@"; }
    try() { sed -n 's/.*try: //p' | tail -1; }
    again() { env="$AGENT_CHAT_ROOT"; line="$(try)"; unset AGENT_CHAT_ROOT; eval "$line"; echo "exit $?"; export AGENT_CHAT_ROOT="$env"; }
    ac init r > /dev/null
    AGENT_CHAT_NAME=bob ac wait --timeout 0 -- r 2>&1 | again
    ac init -- 'A B' 2>&1 | again
    ac wait r --as bob --timeout 0 --status '--root-cause' 2>&1 | again
    ac --root peek post r --as bob --as carol 2>&1 | try`);
  assert.match(stdout, /^exit 2\ncreated channel 'a-b'.*\nexit 0\nexit 2\nagent-chat post --help\n$/, stderr);
});

test("cli: commands named in notes and answers work in another root", (t) => {
  const { dir, bash } = sandbox(t);
  const { stdout, stderr } = bash(`
    agent-chat() { ac "$@"; }
    cd "${dir}"; unset AGENT_CHAT_ROOT; export HOME="${dir}"
    ac init r --root here > /dev/null; ac post r --root here --as alice --body one > /dev/null
    ac read r --as bob --root here > /dev/null
    eval "$(ac read r --as bob --root here 2>&1 | grep -o 'agent-chat peek .*')"
    eval "$(ac pause r --as bob --root here | grep -o 'agent-chat resume .*')"
    sed 's/alice/carol/' here/r/0001-*.md > here/r/0001-carol-one.md
    eval "$(ac channels --root here 2>&1 | grep -o 'agent-chat renumber .*')"
    ac post r --root here --as alice --status ack --body thanks > /dev/null
    eval "$(ac wait r --as dave --from bob --timeout 0 --root here 2>&1 | grep -o 'agent-chat read [^;]*')"`);
  assert.match(stdout, /\none\n[^]*resumed 'r'\nrenumbered 0001-carol-one\.md[^]*\nthanks\n/, stderr);
});

test("names: reserved words say that they are reserved", (t) => {
  const { chat, ok } = sandbox(t);
  for (const name of ["all", "con", "null"]) assert.match(chat(["read", "--as", name]).stderr, /that word is reserved/);
  for (const name of ["con", "nul.txt"]) assert.match(chat(["init", name]).stderr, /that word is reserved/);
  ok(["init", "r", "--members", "alice,bob"]);
  for (const name of ["null", "~", "bob,null"]) assert.equal(chat(["post", "r", "--as", "alice", "--to", name, "--body", "b"]).status, 64, name);
  assert.match(chat(["read", "r", "--as", "bob"]).stderr, /nothing new/, "what a script left empty is not for everybody");
});

test("cli: started through a link it does what it is told, with --preserve-symlinks-main too", (t) => {
  const { dir, at } = sandbox(t);
  const link = path.join(dir, "agent-chat");
  fs.symlinkSync(BIN, link);
  const run = spawnSync(process.execPath, ["--preserve-symlinks-main", link, "init", "r", "--root", at()], { encoding: "utf8" });
  assert.deepEqual([run.stderr, run.status], ["", 0]);
  assert.match(run.stdout, /^created channel 'r'/);
});

test("cli: what Node's permission model forbids is said, without a stack, and leaves nothing behind", (t) => {
  const { ok, at } = sandbox(t);
  ok(["init", "r"]);
  ok(["post", "r", "--from", "alice", "--body", "one"]);
  const flag = process.allowedNodeEnvironmentFlags.has("--permission") ? "--permission" : "--experimental-permission";
  const limited = (allow: readonly string[], ...args: string[]) => {
    const { status, stderr } = spawnSync(process.execPath, ["--no-warnings", flag, ...allow, BIN, ...args, "--root", at()], { encoding: "utf8" });
    assert.doesNotMatch(stderr, /^ +at /m, stderr);
    return `${status} ${stderr}`;
  };
  const said = /ERR_ACCESS_DENIED.*\n {2}try: run it without Node's --permission/;
  for (const allow of [["--allow-fs-read=*"], ["--allow-fs-read=*", "--allow-fs-write=*"]])
    assert.match(limited(allow, "post", "r", "--from", "bob", "--body", "two"), new RegExp(`^1 agent-chat: could not post.*${said.source}`));
  assert.match(limited(["--allow-fs-read=*"], "read", "r", "--as", "bob"), new RegExp(`^0 agent-chat: could not mark.*${said.source}`));
  assert.match(limited([`--allow-fs-read=${at()}`, `--allow-fs-read=${BIN}`], "wait", "r", "--as", "alice", "--timeout", "0"), /^2 /);
  assert.deepEqual(fs.readdirSync(at("r")).sort(), [".cursors", "0001-alice-one.md", "_meta.json"]);
});
