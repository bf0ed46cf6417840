// Text, files and arguments that chance or malice could send. SEED=n plays a run again, LONG=1 plays many more rounds,
// AGENT_CHAT_BIN=file tries another build.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { test, type TestContext } from "node:test";
import type { Channel, Message } from "../chat.ts";
import { BIN, cleanEnv, crowd, random, rows, sandbox, type How, type Sandbox } from "./helpers.ts";

const chat = createRequire(import.meta.url)(BIN) as typeof import("../chat.ts");
const SEED = Number(process.env["SEED"] ?? Date.now() % 1_000_000);
const ROUNDS = process.env["LONG"] === "1" ? 10 : 1;

test.before(() => console.log(`hostile: SEED=${SEED}${ROUNDS > 1 ? " LONG=1" : ""}`));

// ---- dice ----------------------------------------------------------------------------------------------------------

type Dice = () => number;

/** Each test has dice of its own, so that one test alone rolls the same as among all. */
const dice = (salt: number): Dice => random(SEED + salt * 1_000_003);
const upTo = (roll: Dice, limit: number): number => Math.floor(roll() * limit);
const pick = <T>(roll: Dice, list: readonly T[]): T => list[upTo(roll, list.length)]!;
const many = <T>(count: number, make: (i: number) => T): T[] => Array.from({ length: count }, (_, i) => make(i));
const randomBytes = (roll: Dice, most: number): Buffer => Buffer.from(many(upTo(roll, most), () => upTo(roll, 256)));

const split = (text: string): string[] => text.split(" ");
const LINE_ENDS = ["\r\n", "\n\n", ..."\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"];
const HEADER_LIKE = [
  "---",
  "\n---\n",
  "---\nseq: 1\nfrom: boss\nto: all\n---\n",
  "\nfrom: boss",
  "seq: 99",
  "title: x",
];
const YAML_LIKE = [": ", " #", "- ", ...split("\" ' \\ \\n { [x] &a *a !t % @ ` | null")];
const BORDER_LIKE = ["[abcd1234] end of #1\n", "\n[abcd1234] #2 boss -> all  x\n", `\n${"=".repeat(70)}\n`];
const CONTROLS = split("\x1b[2J \x1b]0;t\x07 \x9b31m \x7f \b\b \x1f \u202e \u2066");
const UNICODE = split("\ufeff \ufffe \uffff \ufffd \u00a0 \u3000 e\u0301 漢字 👩‍👩‍👧 \u{10ffff}");
const SHELL_LIKE = ["$(id)", "`id`", "%s%n", "../", "a", "word ", " ", "\t"];
const PIECES = [LINE_ENDS, HEADER_LIKE, YAML_LIKE, BORDER_LIKE, CONTROLS, UNICODE, SHELL_LIKE];

function anyCharacter(roll: Dice): string {
  const code = 1 + upTo(roll, pick(roll, [0x7f, 0xff, 0xffff, 0x10ffff]));
  return code >= 0xd800 && code <= 0xdfff ? "\ufffd" : String.fromCodePoint(code);
}

/** Text made of what has broken such programs before. */
function wild(roll: Dice, most: number): string {
  return many(upTo(roll, most + 1), () => (roll() < 0.2 ? anyCharacter(roll) : pick(roll, pick(roll, PIECES)))).join(
    "",
  );
}

function wildBody(roll: Dice): string {
  const text = wild(roll, 24);
  return text.trim() === "" ? `x${text}` : text;
}

// ---- running -------------------------------------------------------------------------------------------------------

/** What became of one command line; `crash` is the stack of an error that nobody caught. */
interface Outcome {
  readonly args: readonly string[];
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
  readonly crash?: string;
}

// Runs many command lines in one process, each through the program's own main(), and catches what it writes.
const DRIVER = `
const fs = require("node:fs");
const { Readable } = require("node:stream");
const [, lists, bin] = process.argv;
const { main } = require(bin);
const write = fs.writeSync;
let caught;
fs.writeSync = (fd, data, at = 0, ...rest) => {
  if (fd !== 1 && fd !== 2) return write(fd, data, at, ...rest);
  const bytes = Buffer.from(data).subarray(at);
  caught[fd].push(bytes);
  return bytes.length;
};
Object.defineProperty(process, "stdin", { get: () => Readable.from([]) });
const hung = () => new Promise((_, reject) => setTimeout(reject, 15000, new Error("still running after 15 s")).unref());
const run = async (args) => {
  caught = { 1: [], 2: [] };
  const end = await Promise.race([main(args), hung()]).then((code) => ({ code }), (error) => ({ code: null, crash: String(error?.stack ?? error) }));
  return { args, ...end, stdout: Buffer.concat(caught[1]).toString(), stderr: Buffer.concat(caught[2]).toString() };
};
(async () => {
  const outcomes = [];
  for (const args of JSON.parse(fs.readFileSync(lists, "utf8"))) outcomes.push(await run(args));
  process.stdout.write(JSON.stringify(outcomes));
})();
`;

/** What becomes of many command lines, one after another. */
function drive(box: Sandbox, lists: readonly (readonly string[])[], { env = {} }: How = {}): Outcome[] {
  const file = path.join(box.dir, "lists.json");
  fs.writeFileSync(file, JSON.stringify(lists));
  const options = { cwd: box.dir, env: cleanEnv({ AGENT_CHAT_ROOT: box.root, ...env }), timeout: 300_000 };
  const limits = { encoding: "utf8", maxBuffer: 1 << 28 } as const;
  const { stdout, stderr } = spawnSync(process.execPath, ["-e", DRIVER, file, BIN], { ...options, ...limits });
  assert.ok(stdout.startsWith("["), `the driver died: ${stderr}`);
  return JSON.parse(stdout) as Outcome[];
}

function cli(box: Sandbox, args: readonly string[], how?: How): Outcome {
  const { status, stdout, stderr } = box.chat(args, how);
  return { args, code: status, stdout, stderr };
}

const DOCUMENTED = [0, 1, 2, 3, 64];
const STACK = /^\s+at .*[:)]|node:internal|Warning:/m;
// Acts on a terminal, or shows text in another order than it has.
const ACTS = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]/;

function assertOrderly({ args, code, stdout, stderr, crash }: Outcome): void {
  const what = `SEED=${SEED} ${JSON.stringify(args)}`;
  assert.equal(crash, undefined, what);
  assert.ok(DOCUMENTED.includes(code ?? -1), `${what}: exit code ${code}`);
  assert.doesNotMatch(stderr, STACK, what);
  if (args.includes("--json")) return; // data for a program, not for a terminal
  assert.doesNotMatch(stdout, ACTS, what);
  assert.doesNotMatch(stderr, ACTS, what);
}

/** A channel in a root of its own. */
function makeChannel(t: TestContext): Promise<{ box: Sandbox; channel: Channel }> {
  const box = sandbox(t);
  return chat.createChannel(box.root, "wild").then((channel) => ({ box, channel }));
}

// ---- text ----------------------------------------------------------------------------------------------------------

type Text = Pick<Message, "title" | "status" | "body">;

const wildText = (roll: Dice): Text => ({ title: wild(roll, 9), status: wild(roll, 4), body: wildBody(roll) });
const folded = (text: string): string => text.replace(/[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+/g, " ");
const textOf = ({ title, status, body }: Text): Text => ({ title, status, body });

/** What must come back: one line of title and status, the body as it was plus at most a final newline. */
function returned({ title, status, body }: Text): Text {
  const bare = body.replace(/^\ufeff/, ""); // a byte order mark is no part of the text
  return { title: folded(title), status: folded(status), body: bare.endsWith("\n") ? bare : `${bare}\n` };
}

async function postAll(channel: Channel, texts: readonly Text[]): Promise<void> {
  for (const text of texts) await chat.post(channel, { from: "alice", ...text });
}

test("text: what goes in through the library comes out of read --json byte for byte", async (t) => {
  const { box, channel } = await makeChannel(t);
  const roll = dice(1);
  const texts = many(150 * ROUNDS, () => wildText(roll));
  await postAll(channel, texts);
  const out = rows<Message>(box.ok(["read", "--as", "bob", "--json"]));
  assert.deepEqual(out.map(textOf), texts.map(returned));
  for (const [i, { seq, from, to, reply_to }] of out.entries()) {
    assert.deepEqual({ seq, from, to, reply_to }, { seq: i + 1, from: "alice", to: [], reply_to: null });
  }
});

test("text: what goes in on the command line, from a file and from stdin comes out the same", async (t) => {
  const { box } = await makeChannel(t);
  const roll = dice(2);
  const file = path.join(box.dir, "body.md");
  const texts = many(8 * ROUNDS, () => wildText(roll));
  for (const [i, { title, status, body }] of texts.entries()) {
    fs.writeFileSync(file, body);
    const ways = [["--body", body], ["--body-file", file], ["--body", "-"], []];
    box.ok(["post", "wild", "--as", "alice", "--title", title, "--status", status, ...ways[i % 4]!], { stdin: body });
  }
  const out = rows<Message>(box.ok(["read", "wild", "--as", "bob", "--json"]));
  assert.deepEqual(out.map(textOf), texts.map(returned));
});

test("text: a body that cannot be kept as it is is refused, and nothing is posted", async (t) => {
  const { box, channel } = await makeChannel(t);
  const roll = dice(3);
  const broken = ["\0", "\ud800", "\udfff"];
  const blank = ["", " ", "\n\t\r\n", "\ufeff", "\u00a0\u3000\u2028"];
  for (const body of [...blank, ...many(60, () => `${wild(roll, 5)}x${pick(roll, broken)}y${wild(roll, 5)}`)]) {
    await assert.rejects(chat.post(channel, { from: "alice", body }), { name: "ChatError", code: /^(no|bad)_body$/ });
  }
  for (const stdin of [Buffer.from("caf\xe9", "latin1"), Buffer.from([0xc3]), Buffer.from("a\0b"), Buffer.alloc(9)]) {
    const outcome = cli(box, ["post", "wild", "--as", "alice"], { stdin });
    assertOrderly(outcome);
    assert.equal(outcome.code, 1);
  }
  assert.deepEqual(chat.listMessages(channel).entries, []);
});

// ---- border --------------------------------------------------------------------------------------------------------

/** One message as `read` printed it, between its two borders. */
interface Printed {
  readonly seq: number;
  readonly head: string;
  readonly lines: readonly string[]; // title, empty, body ..., empty
}

/** Takes apart what `read` printed, by the token in its very first line; nothing may stand outside of the borders. */
function takeApart(stdout: string): Printed[] {
  const token = /^\[([a-z0-9]{8,})\] #/.exec(stdout)?.[1];
  assert.ok(token, `no border at the start of ${JSON.stringify(stdout.slice(0, 200))}`);
  const [start, end] = [new RegExp(`^\\[${token}\\] (#(\\d+) .*)`), new RegExp(`^\\[${token}\\] end of #(\\d+)$`)];
  const printed: Printed[] = [];
  let lines = stdout.split("\n");
  assert.equal(lines.pop(), "", "the last line is ended");
  while (lines.length > 0) {
    const [, head, seq] = start.exec(lines[0]!) ?? [];
    assert.ok(head, `outside of every message: ${JSON.stringify(lines[0])}`);
    const last = lines.findIndex((line) => end.test(line));
    assert.equal(end.exec(lines[last] ?? "")?.[1], seq, `the end of ${head}`);
    printed.push({ seq: Number(seq), head, lines: lines.slice(1, last) });
    lines = lines.slice(last + 1);
  }
  return printed;
}

/** Whether `shown` is `text` with everything that acts on a terminal written out. */
function isWrittenOut(shown: string, text: string): boolean {
  const runs = text.replace(/\r\n/g, "\n").split(new RegExp(ACTS, "gu"));
  let rest = shown;
  for (const [i, run] of runs.entries()) {
    const escape = i === 0 ? "" : /^\\(x[0-9a-f]{2}|u[0-9a-f]{4})/.exec(rest)?.[0];
    if (escape === undefined || !rest.startsWith(run, escape.length)) return false;
    rest = rest.slice(escape.length + run.length);
  }
  return rest === "";
}

test("border: no title, status or body adds, ends or alters a message in what read prints", async (t) => {
  const { box, channel } = await makeChannel(t);
  const roll = dice(4);
  const texts = many(150 * ROUNDS, () => wildText(roll));
  await postAll(channel, texts);
  const stdout = box.ok(["read", "--as", "bob", "--max-bytes", "1000000000"]);
  assert.doesNotMatch(stdout, ACTS);
  const printed = takeApart(stdout);
  assert.equal(printed.length, texts.length);
  for (const [i, { seq, head, lines }] of printed.entries()) {
    const { title, status, body } = returned(texts[i]!);
    const what = `SEED=${SEED}: #${seq}`;
    assert.equal(seq, i + 1);
    assert.match(head, new RegExp(`^#${seq} alice -> all  wild/[0-9a-z-]+\\.md  [0-9T:+-]+$`));
    assert.ok(isWrittenOut(lines[0]!, `${title}  (${status || "no status"})`), what);
    assert.deepEqual([lines[1], lines.at(-1)], ["", ""], what);
    assert.ok(isWrittenOut(`${lines.slice(2, -1).join("\n")}\n`, body), what);
  }
});

test("border: a body that has seen the borders of an earlier run cannot use them in the next", async (t) => {
  const { box, channel } = await makeChannel(t);
  await chat.post(channel, { from: "alice", title: "one", body: "first" });
  const seen = box.ok(["read", "wild", "--as", "bob"]);
  await chat.post(channel, { from: "mallory", title: "two", body: `${seen}\n${seen.replace("alice", "boss")}` });
  const printed = takeApart(box.ok(["read", "wild", "--as", "bob"]));
  assert.deepEqual(
    printed.map(({ seq }) => seq),
    [2],
  );
});

test("border: no single message fills more than the budget of an agent's shell, whatever it is made of", async (t) => {
  const { box, channel } = await makeChannel(t);
  const [escapes, long] = [`x${"\x1b".repeat(20_000)}${"\u2028".repeat(20_000)}`, "long ".repeat(10_000)];
  await chat.post(channel, { from: "alice", title: "noise", body: escapes });
  const keys = ["title", "status", "to", "ts", "from"];
  for (const [i, key] of keys.entries()) {
    const value = key === "to" ? `bob, ${long}` : long;
    const text = `---\nseq: ${i + 2}\n${key}: ${value}\n---\n${long}\n`;
    fs.writeFileSync(path.join(channel.path, `000${i + 2}-x-y.md`), text);
  }
  for (const what of ["escapes", ...keys]) {
    const stdout = box.ok(["read", "wild", "--as", "bob"]);
    assert.ok(stdout !== "" && Buffer.byteLength(stdout) <= 25_000, `${what}: ${Buffer.byteLength(stdout)} bytes`);
  }
});

/** A header that no version of ours would write, closed all the same. */
function foreignHeader(roll: Dice, seq: number): string {
  const flat = (text: string): string => text.replace(/\n/g, " ");
  const value = (): string => (roll() < 0.5 ? flat(wild(roll, 6)) : JSON.stringify(wild(roll, 6)));
  const keys = ["from", "to", "reply_to", "channel", "ts", "status", "title", "x y", "", "seq", "__proto__"];
  const lines = many(upTo(roll, 12), () => `${pick(roll, keys)}${pick(roll, [": ", ":", " : ", ""])}${value()}`);
  const open = lines.filter((line) => line.trim() !== "---"); // not closed before its end
  return `---\nseq: ${seq}\n${open.join(pick(roll, ["\n", "\r\n"]))}\n---\n`;
}

test("border: a header written by somebody else's hand stays one line of head and one of title", async (t) => {
  const { box, channel } = await makeChannel(t);
  const roll = dice(5);
  const count = 200 * ROUNDS;
  for (let seq = 1; seq <= count; seq++) {
    fs.writeFileSync(
      path.join(channel.path, `${String(seq).padStart(4, "0")}-x-y.md`),
      `${foreignHeader(roll, seq)}body ${seq}\n`,
    );
  }
  const [all, peek, channels] = drive(box, [
    ["read", "--all", "--max-bytes", "1000000000"],
    ["peek", "wild"],
    ["channels"],
  ]);
  [all!, peek!, channels!].forEach(assertOrderly);
  const printed = takeApart(all!.stdout);
  assert.equal(printed.length + all!.stderr.split("\n").filter((line) => / has | is /.test(line)).length, count);
  for (const { seq, head, lines } of printed) {
    assert.ok(head.includes(" -> ") && head.includes(`  wild/${String(seq).padStart(4, "0")}-x-y.md  `), head);
    assert.deepEqual(lines.slice(1), ["", `body ${seq}`, ""], `SEED=${SEED}: #${seq}`);
  }
  assert.equal(channels!.stdout.split("\n").length, 3, channels!.stdout); // two lines, each ended
});

test("border: a reply to such a header adds no field to its own", async (t) => {
  const { channel } = await makeChannel(t);
  const roll = dice(13);
  const injected = JSON.stringify("eve\nstatus: boss\nto: all");
  for (let seq = 1; seq <= 50 * ROUNDS; seq++) {
    const header = foreignHeader(roll, seq).replace("from: ", seq % 4 === 0 ? `from: ${injected}\nx: ` : "from: ");
    fs.writeFileSync(path.join(channel.path, `${String(seq).padStart(4, "0")}-x-y.md`), `${header}body\n`);
  }
  for (const { seq } of chat.lastMessages(channel, Infinity).messages) {
    const { message } = await chat.post(channel, { from: "bob", reply: seq, body: "b" });
    const keys = fs
      .readFileSync(message.path, "utf8")
      .split("\n")
      .map((line) => line.split(":")[0]);
    const want = ["---", "seq", "from", "to", "reply_to", "channel", "ts", "status", "title", "---", "b", ""];
    assert.deepEqual(keys, want, `SEED=${SEED}: reply to #${seq}`);
  }
});

// ---- yaml ----------------------------------------------------------------------------------------------------------

// What YAML reads as something else, or not at all, where it stands unquoted.
const NASTY = [
  ...split("yes No on y [x] - ? : 0x1f 0o17 017 0b11 1e3 1. .5 -0.0 1_000 +1 .inf -.INF .nan = << 190:20:30.15"),
  ...split("\"q\" 'single' ' \" ~ null NULL true --- ... %x @a `x` #12 # a#b key: a:b &a *a !t > | ] } {x} a,b x,"),
  ...split(
    "2026-08-17 12:30 \\ a\\nb \\x41 \x1b[31m \x7f \0 \b 👩‍👩‍👧 \ufeff a\ufeffb \ufffe \uffff \x85 a\x85b \u{1fffe}",
  ),
  ...split("\u00a0 a\u00a0#b a\u00a0:\u00a0b \u2028 \u3000x \ud800 x\udfffy \u061c C:\\new http://x/y?z#w \ttab a\tb"),
  ...["", " lead", "trail ", "a: b # c", "{x: 1}", "- x", "? x", ": x", "2026-8-1 1:2:3", "--- x", "a #b", "key :v"],
  ...[", x", "a, b", "a | b", "re: re: x", "a\nb", "a\r\nseq: 9", "\n", "x".repeat(1000)],
];

// Reads each file's header with PyYAML, as strings only; prints one object per file.
const READ_YAML = `
import json, sys, yaml
for path in json.load(sys.stdin):
    head = open(path, encoding="utf-8", newline="").read().split("\\n---\\n", 1)[0]
    found = yaml.safe_load(head + "\\n")
    print(json.dumps({"keys": list(found), **{key: found[key] for key in ("title", "status", "key", "channel")}}))
`;

test("yaml: a real parser reads every title, status, key and channel back as the same string, and no more", async (t) => {
  if (spawnSync("python3", ["-c", "import yaml"]).status !== 0) return t.skip("needs python3 with PyYAML");
  const { box } = await makeChannel(t);
  const roll = dice(6);
  const titles = [...NASTY, ...many(60 * ROUNDS, () => wild(roll, 8))];
  const channel = await chat.createChannel(box.root, "1.0"); // a number, to YAML
  const files: string[] = [];
  for (const [i, title] of titles.entries()) {
    const key = folded(title).trim() === "" ? "null" : title;
    files.push((await chat.post(channel, { from: `a${i}`, title, status: title, key, body: "b" })).message.path);
  }
  const { stdout, stderr } = spawnSync("python3", ["-c", READ_YAML], {
    input: JSON.stringify(files),
    encoding: "utf8",
    maxBuffer: 1 << 28,
  });
  assert.equal(stderr, "");
  const keys = ["seq", "from", "to", "channel", "ts", "status", "title", "key"];
  const want = titles.map((text) => {
    const title = folded(text).toWellFormed();
    return { title, status: title, key: title.trim() || "null", channel: "1.0" };
  });
  assert.deepEqual(
    rows(stdout),
    want.map((values) => ({ keys, ...values })),
  );
  assert.deepEqual(
    chat.lastMessages(channel, Infinity).messages.map(({ title, status, key, channel }) => ({ title, status, key, channel })),
    want,
    "and so do we",
  );
});

// ---- names ---------------------------------------------------------------------------------------------------------

const NAME_PIECES = [
  ...split(".. ../ / \\ C: con nul aux.md lpt1 - -- . _ @ ALL * , ~ \n \0 \x1b[2J \x85 \u2028 é ﬁ İ 漢 👩‍👩‍👧"),
  ...[" ", "dev", "a", "B", "0", "x".repeat(39), "task-", ".md", ".CLAIMED-b"],
];

const wildName = (roll: Dice): string => many(1 + upTo(roll, 4), () => pick(roll, NAME_PIECES)).join("");

/** What a function returns, or undefined where it refuses with an error of ours. */
async function unlessRefused<T>(what: string, run: () => T | Promise<T>): Promise<T | undefined> {
  try {
    return await run();
  } catch (error) {
    assert.ok(error instanceof chat.ChatError, `SEED=${SEED} ${JSON.stringify(what)}: ${String(error)}`);
    return undefined;
  }
}

test("names: whatever is typed is refused, or is one legal name, and nothing leaves the root", async (t) => {
  const box = sandbox(t);
  const roll = dice(7);
  for (const text of many(300 * ROUNDS, () => wildName(roll))) {
    const name = await unlessRefused(text, () => chat.parseName("agent", text));
    if (name !== undefined) assert.match(name, /^(?=.{1,40}$)[a-z0-9]+(-[a-z0-9]+)*$/);
    const task = await unlessRefused(text, () => chat.parseTask(text));
    if (task !== undefined) assert.match(task, /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/);
    const made = await unlessRefused(text, () => chat.createChannel(box.root, text, { members: [text] }));
    if (made !== undefined) assert.match(made.name, /^(?=.{1,64}$)[a-z0-9]+([._-][a-z0-9]+)*$/);
    const found = await unlessRefused(text, () => chat.openChannel(box.root, text));
    if (found !== undefined) assert.equal(found.path, path.join(box.root, path.basename(found.path)));
  }
  assert.deepEqual(
    fs.readdirSync(box.dir).filter((name) => name !== "root"),
    [],
  );
  const made = fs.readdirSync(box.root).filter((name) => !name.startsWith(".git"));
  assert.deepEqual(
    chat
      .listChannels(box.root)
      .map(({ name }) => name)
      .sort(),
    made.sort(),
  );
});

test("names: a folder whose name could act on a terminal is no channel", async (t) => {
  const { box } = await makeChannel(t);
  for (const name of ["\x1b[2J", "a\x85b", "\x9b2J", "a\x7f", "a\nb"]) {
    fs.mkdirSync(box.at(name));
    fs.writeFileSync(path.join(box.at(name), "_meta.json"), "{}");
    assert.throws(() => chat.openChannel(box.root, name), { code: "bad_name" }, JSON.stringify(name));
  }
  assert.deepEqual(
    chat.listChannels(box.root).map(({ name }) => name),
    ["wild"],
  );
});

test("names: a sender is refused, or has posted one message under its one legal name", async (t) => {
  const { channel } = await makeChannel(t);
  const roll = dice(8);
  let count = 0;
  for (const text of many(200 * ROUNDS, () => wildName(roll))) {
    const posted = await unlessRefused(text, () => chat.post(channel, { from: text, body: "b" }));
    if (posted === undefined) continue;
    count += 1;
    assert.equal(posted.message.from, chat.parseName("sender", text));
    assert.equal(posted.message.file, `${String(count).padStart(4, "0")}-${posted.message.from}-b.md`);
  }
  const { messages, notes } = chat.lastMessages(channel, Infinity);
  assert.deepEqual([messages.length, notes], [count, []]);
});

// ---- files ---------------------------------------------------------------------------------------------------------

const GOOD = many(5, (i) => `good ${i + 1}`);

/** Copies of a channel with five messages and a task; `spoil` does its worst to each. */
async function spoiled(
  t: TestContext,
  count: number,
  spoil: (folder: string, i: number) => void,
): Promise<{ box: Sandbox; names: string[] }> {
  const { box, channel } = await makeChannel(t);
  for (const body of GOOD) await chat.post(channel, { from: "alice", title: body, body });
  fs.writeFileSync(path.join(channel.path, "task-12.md"), "do it\n");
  const names = many(count, (i) => `c${i}`);
  for (const [i, name] of names.entries()) {
    fs.cpSync(channel.path, box.at(name), { recursive: true });
    spoil(box.at(name), i);
  }
  return { box, names };
}

/** Every command once, on one channel; `wait` marks what it shows, the last `read` shows what was posted in between. */
function everyCommand(name: string): string[][] {
  const as = ["--as", "bob"];
  return [
    ["read", name, ...as, "--peek", "--json"],
    ["read", name, "--all", "--max-bytes", "1000000"],
    ["peek", name, "-n", "99"],
    ["roster", name],
    ["claim", name, "12", ...as],
    ["wait", name, ...as, "--timeout", "0", "--json"],
    ["post", name, "--as", "alice", "--body", "afterwards"],
    ["read", name, ...as, "--json"],
  ];
}

const bodies = ({ stdout }: Outcome): string[] => rows<Message>(stdout).map(({ body }) => body.trimEnd());
const goodOf = (outcome: Outcome): string[] =>
  bodies(outcome)
    .filter((body) => GOOD.includes(body))
    .sort();

/** The outcomes of `everyCommand` for each channel. */
function driveAll(box: Sandbox, names: readonly string[]): Outcome[][] {
  const outcomes = drive(box, [...names.flatMap(everyCommand), ["channels"], ["channels", "--as", "bob", "--json"]]);
  outcomes.forEach(assertOrderly);
  const each = everyCommand("").length;
  return names.map((_, i) => outcomes.slice(i * each, (i + 1) * each));
}

const FILE_NUMBERS = split("0000 0001 0003 0005 0006 0009 00012 9999 10000 99999999999999999999 7");
const FILE_NAMES = split("-a-b.md -x.md -alice-good-1.md -A.md .md -a-b.md.tmp -\x1b[2J.md -a\nb.md -é.md");
const TASK_OWNERS = ["bob", "Bob", "\x1b[2J", "\x9b2J", "a\nb", "漢"];

const wildFileName = (roll: Dice): string => `${pick(roll, FILE_NUMBERS)}${pick(roll, FILE_NAMES)}`;

/** A good message with bytes changed, cut, doubled or pushed in. */
function damaged(roll: Dice, good: Buffer): Buffer {
  const [a, b] = [upTo(roll, good.length), upTo(roll, good.length)];
  const junk = randomBytes(roll, 12);
  const ways = [
    good.subarray(0, a),
    Buffer.concat([good.subarray(0, a), junk, good.subarray(Math.min(a, b))]),
    Buffer.concat([good, good]),
    Buffer.from(good.map((byte, i) => (i === a ? byte ^ (1 << upTo(roll, 8)) : byte))),
    Buffer.concat([Buffer.from("\ufeff"), good]),
    Buffer.from(good.toString().replace(/\n/g, "\r\n")),
    Buffer.from(
      good.toString().replace(/seq: \d+/, `seq: ${pick(roll, ["6", "9", "9999", "-1", "1e3", "0x6", "", "6 7"])}`),
    ),
  ];
  return pick(roll, ways);
}

function spoilMessages(roll: Dice, folder: string): void {
  const good = fs.readFileSync(path.join(folder, "0005-alice-good-5.md"));
  if (roll() < 0.2)
    fs.writeFileSync(path.join(folder, `task-12.${pick(roll, ["CLAIMED", "DONE"])}-${pick(roll, TASK_OWNERS)}.md`), "");
  for (let left = 1 + upTo(roll, 5); left > 0; left--) {
    const file = path.join(folder, wildFileName(roll));
    if (fs.lstatSync(file, { throwIfNoEntry: false }) !== undefined) continue; // the good ones stay good
    const kind = roll();
    if (kind < 0.3) fs.writeFileSync(file, randomBytes(roll, 400));
    else if (kind < 0.8) fs.writeFileSync(file, damaged(roll, good));
    else if (kind < 0.9) fs.symlinkSync(pick(roll, ["/etc/passwd", "0001-alice-good-1.md", "nowhere", "."]), file);
    else fs.mkdirSync(file);
  }
}

test("files: no bytes under a message's name crash a command or hide another message", async (t) => {
  const roll = dice(9);
  const { box, names } = await spoiled(t, 40 * ROUNDS, (folder) => spoilMessages(roll, folder));
  for (const [i, [peeked, , , , , waited, posted, after]] of driveAll(box, names).entries()) {
    const what = `SEED=${SEED} ${names[i]}: ${fs.readdirSync(box.at(names[i]!)).join(" ")}`;
    // A damaged copy of #5 may be a message with the same words: count each of the good ones once at least.
    assert.deepEqual([...new Set(goodOf(peeked!))], GOOD, what);
    assert.deepEqual(bodies(waited!), bodies(peeked!), what);
    assert.equal(posted!.code, 0, what);
    assert.deepEqual(bodies(after!), ["afterwards"], what);
  }
});

test("files: a message whose number nothing can follow does not make the next one vanish", async (t) => {
  const { box, channel } = await makeChannel(t);
  fs.writeFileSync(
    path.join(channel.path, "999999999999999-mallory-x.md"),
    "---\nseq: 999999999999999\nfrom: mallory\n---\nhigh\n",
  );
  const posted = cli(box, ["post", "wild", "--as", "alice", "--body", "afterwards"]);
  assertOrderly(posted);
  const shown = bodies(cli(box, ["read", "wild", "--as", "bob", "--json"]));
  assert.deepEqual(shown, posted.code === 0 ? ["high", "afterwards"] : ["high"]);
});

test("files: whatever lies where the newest number is kept, the next post takes the next number", async (t) => {
  const { channel } = await makeChannel(t);
  const roll = dice(14);
  fs.writeFileSync(path.join(channel.path, "60000-mallory-x.md"), "---\nseq: 60000\nfrom: mallory\n---\nx\n");
  crowd(t, channel.path);
  const kept = path.join(channel.path, ".cursors", ".newest");
  const now = (): bigint => fs.statSync(channel.path, { bigint: true }).mtimeNs;
  const write = (text: string | Buffer) => (): void => fs.writeFileSync(kept, text);
  const ways = [
    ...many(20, () => write(randomBytes(roll, 30))),
    ...["", "10000", "\ufeff10000 1", "10000 99999999999999999999", `${"9".repeat(15)} 0`].map(write),
    (): void => fs.writeFileSync(kept, `10000 ${now() - 1_000_000_000n}`),
    (): void => fs.writeFileSync(kept, `10000 ${now() + 1_000_000_000n}`),
    (): void => fs.writeFileSync(kept, `10000 ${now()} `),
    (): void => fs.symlinkSync("../_meta.json", kept),
    (): void => void fs.mkdirSync(kept),
  ];
  for (const [i, lay] of ways.entries()) {
    fs.rmSync(kept, { force: true });
    lay();
    const { message } = await chat.post(channel, { from: "alice", body: "b" });
    assert.equal(message.seq, 60_001 + i, `SEED=${SEED}: way ${i}`);
  }
});

// ---- cursor files --------------------------------------------------------------------------------------------------

const CURSOR_NUMBERS = split(`0 1 2 3 4 5 6 05 99 ${"9".repeat(15)} ${"9".repeat(20)} -1 1e1`);

function wildCursor(roll: Dice): string {
  const number = (): string => pick(roll, CURSOR_NUMBERS);
  const item = (): string =>
    pick(roll, [number(), `${number()}-${number()}`, "0002-alice-good-2.md", "0009-x-y.md", ""]);
  const list = many(1 + upTo(roll, 4), item).join(pick(roll, [",", ",", ",", " ", "\n", ", "]));
  const before = pick(roll, ["", "", "\ufeff", " "]);
  return `${before}${list}${pick(roll, ["", "", "\n", "\r\n", "\0", "<<<<<<< HEAD\n"])}`;
}

/** Which of five messages a cursor has, by the rule itself: none where it cannot be believed. */
function heldBy(text: string): number[] {
  const items = /^\d+$/.test(text.trim()) ? [`1-${text.trim()}`] : text.trim().split(",");
  const held = new Set<number>();
  for (const item of items) {
    const [, low, high = low] = /^(\d+)(?:-(\d+))?$/.exec(item) ?? [];
    if (item === "0002-alice-good-2.md") held.add(2);
    else if (low === undefined || Number(low) < 1 || Number(low) > Number(high) || Number(high) > 5) return [];
    else for (let seq = Number(low); seq <= Number(high); seq++) held.add(seq);
  }
  return [...held];
}

test("cursors: whatever a cursor file holds, what it does not believably name is delivered, once", async (t) => {
  const roll = dice(10);
  const texts = many(60 * ROUNDS, () => (roll() < 0.3 ? randomBytes(roll, 60) : Buffer.from(wildCursor(roll))));
  const { box, names } = await spoiled(t, texts.length, (folder, i) =>
    fs.writeFileSync(path.join(folder, ".cursors", "bob.txt"), texts[i]!),
  );
  for (const [i, [peeked, , , , , waited, , after]] of driveAll(box, names).entries()) {
    const held = heldBy(texts[i]!.toString());
    const want = GOOD.filter((_, at) => !held.includes(at + 1));
    const what = `SEED=${SEED} cursor ${JSON.stringify(texts[i]!.toString())}`;
    assert.deepEqual([goodOf(peeked!), goodOf(waited!), bodies(after!)], [want, want, ["afterwards"]], what);
  }
});

test("cursors: a cursor that is a folder or a link hides nothing and is not followed", async (t) => {
  const kinds = [
    (file: string): void => void fs.mkdirSync(path.join(file, "full"), { recursive: true }),
    (file: string): void => fs.symlinkSync("../_meta.json", file),
    (file: string): void => fs.symlinkSync("nowhere", file),
  ];
  const { box, names } = await spoiled(t, kinds.length, (folder, i) =>
    kinds[i]!(path.join(folder, ".cursors", "bob.txt")),
  );
  for (const [i, [peeked, , , , , waited]] of driveAll(box, names).entries()) {
    assert.deepEqual([goodOf(peeked!), goodOf(waited!)], [GOOD, GOOD], names[i]);
    assert.equal(chat.readMeta(chat.openChannel(box.root, names[i]!)).problem, undefined);
  }
});

// ---- _meta.json ----------------------------------------------------------------------------------------------------

function wildJson(roll: Dice, depth = 0): unknown {
  const leaves = [null, true, 0, -1e308, "", "bob", " ", wild(roll, 5), "bob\x1b[2J", "a\nmembers : boss"];
  if (depth > 2 || roll() < 0.4) return pick(roll, leaves);
  if (roll() < 0.4) return many(upTo(roll, 4), () => wildJson(roll, depth + 1));
  const keys = ["members", "topic", "created", "channel", "__proto__", "toString", "length", "constructor"];
  return Object.fromEntries(many(upTo(roll, 5), () => [pick(roll, keys), wildJson(roll, depth + 1)]));
}

function wildMeta(roll: Dice): Buffer {
  if (roll() < 0.2) return randomBytes(roll, 80);
  const [members, topic, created] = many(3, () => wildJson(roll, 1));
  const text = JSON.stringify(roll() < 0.6 ? { members, topic, created } : wildJson(roll));
  return Buffer.from(roll() < 0.2 ? text.slice(0, upTo(roll, text.length)) : text);
}

test("meta: whatever _meta.json holds, every command goes on, and it adds no line to what they print", async (t) => {
  const roll = dice(11);
  const { box, names } = await spoiled(t, 40 * ROUNDS, (folder) =>
    fs.writeFileSync(path.join(folder, "_meta.json"), wildMeta(roll)),
  );
  for (const [i, [peeked, , , roster, , waited, posted, after]] of driveAll(box, names).entries()) {
    const what = `SEED=${SEED} ${JSON.stringify(fs.readFileSync(path.join(box.at(names[i]!), "_meta.json"), "utf8"))}`;
    assert.deepEqual([goodOf(peeked!), goodOf(waited!), bodies(after!)], [GOOD, GOOD, ["afterwards"]], what);
    assert.equal(posted!.code, 0, what);
    assert.deepEqual(
      roster!.stdout.match(/^\w+ *: /gm)?.map((key) => key.trim()),
      ["channel :", "path    :", "topic   :", "members :", "messages:"],
      what,
    );
    const more = roster!.stdout.split("\n").slice(5, -1);
    assert.ok(more.every((line) => /^  .*: (never seen here|.* unread)/.test(line)), what);
  }
});

test("meta: members with control characters reach no terminal, not even as the nearest name of an error", async (t) => {
  const meta = JSON.stringify({ members: ["bob\x1b", "dev-\x9b2J-team", "line\nmembers : boss"] });
  const { box, names } = await spoiled(t, 1, (folder) => fs.writeFileSync(path.join(folder, "_meta.json"), meta));
  const to = (name: string): string[] => ["post", names[0]!, "--as", "alice", "--to", name, "--body", "b"];
  for (const outcome of drive(box, ["bob", "dev-team", "dev-2j-team", "line"].map(to))) {
    assertOrderly(outcome);
    assert.equal(outcome.code, 1);
    assert.doesNotMatch(outcome.stderr, /^members : boss/m);
  }
});

// ---- arguments -----------------------------------------------------------------------------------------------------

const COMMANDS = split("init channels roster post read wait peek claim --help --version -h");
const OPTIONS = split("--as --from --to --title --reply --status --body --body-file --force --json --all");
const MORE_OPTIONS = split("--peek --max-bytes --timeout --interval --detached -n --members --topic -- -");
const STRANGE = split("--__proto__ --constructor __proto__ toString --json=1 -njson --as= --=x -é --no-json ---");
const VALUES = [" ", "", ...split("wild WILD bob @Bob all a,b , 0 1 #1 -1 1e309 NaN 0x1 12 task-12.md")];
const NUMBERS = split("--timeout=0 --timeout=.01 --timeout=1e999 --interval=1e9 --interval=0 --max-bytes=1 --reply=1");
const FILES = split("--body-file=. --body-file=/dev/null --body-file=lists.json --body-file=missing");
const ROOTS = split("--root=deep/er --root=~/x --root=\x1b[2J\x9b2J --root=");

/** Words that stay in the sandbox: nothing absolute, nothing that climbs out of it, no NUL, which no system passes on. */
function wildWord(roll: Dice): string {
  const groups = [COMMANDS, OPTIONS, OPTIONS, MORE_OPTIONS, STRANGE, VALUES, VALUES, NUMBERS, FILES, ROOTS];
  if (roll() < 0.85) return pick(roll, pick(roll, groups));
  const text = roll() < 0.1 ? "x".repeat(5000) : wild(roll, 4);
  return text.replace(/^[/~]|\.\.|\0/g, "x");
}

/** A command line that the table of commands allows, with values that nobody expects. */
function lawfulArguments(roll: Dice): string[] {
  const [name, { operands, options }] = pick(roll, Object.entries(chat.COMMANDS));
  const expected = [pick(roll, ["wild", "wild", `made${upTo(roll, 99)}`]), pick(roll, ["12", "task-12.md"])];
  const words = operands.split(" ").map((_, i) => (roll() < 0.8 ? expected[i]! : wildWord(roll)));
  const given = Object.entries(options).flatMap(([key, option]: [string, object]) => {
    if (roll() < 0.8) return [];
    if (!("value" in option)) return [`--${key}`];
    return [`--${key}`, key === "timeout" ? pick(roll, ["0", ".01", "1e999", "x"]) : wildWord(roll)];
  });
  const root = roll() < 0.1 ? [pick(roll, ROOTS)] : [];
  return [...root, name, ...(operands === "" ? [] : words), ...(roll() < 0.9 ? ["--as", "bob"] : []), ...given];
}

/** A good command line, or one with words changed, lost or pushed in, or any words at all. */
function wildArguments(roll: Dice): string[] {
  if (roll() < 0.2) return many(upTo(roll, 9), () => wildWord(roll));
  const args = lawfulArguments(roll);
  if (roll() < 0.7) return args;
  args.splice(upTo(roll, args.length + 1), upTo(roll, 2), wildWord(roll));
  return args;
}

// A home in the sandbox, and no wait longer than a look unless the arguments ask for one.
const SAFE = (box: Sandbox): How => ({ env: { HOME: box.dir, USERPROFILE: box.dir, AGENT_CHAT_TIMEOUT: "0" } });

/** No wait of seconds: they would add up. */
const isShort = (args: readonly string[]): boolean =>
  args.every((word, i) => word !== "--timeout" || !/^\d*[1-9]/.test(args[i + 1] ?? ""));

test("arguments: no list of words crashes; the exit code is a documented one", async (t) => {
  const { box, channel } = await makeChannel(t);
  await postAll(
    channel,
    many(3, (i) => ({ title: `t${i}`, status: "s", body: `b${i}` })),
  );
  const roll = dice(12);
  const lists = many(1500 * ROUNDS, () => wildArguments(roll)).filter(isShort);
  drive(box, lists, SAFE(box)).forEach(assertOrderly);
  for (const args of lists.slice(0, 20 * ROUNDS)) assertOrderly(cli(box, args, SAFE(box)));
});

test("arguments: whoever imports the library may have been started with any arguments", () => {
  for (const word of ["no such file", "\x1b", "-", "x".repeat(5000)]) {
    const { stdout, stderr } = spawnSync(
      process.execPath,
      ["-p", `require(${JSON.stringify(BIN)}).VERSION`, "--", word],
      {
        encoding: "utf8",
      },
    );
    assert.deepEqual([stdout.trim(), stderr], [chat.VERSION, ""]);
  }
});

test("arguments: a wait of years sleeps; it neither spins nor warns", async (t) => {
  const { channel } = await makeChannel(t);
  const warnings: string[] = [];
  const onWarning = ({ name }: Error): void => void warnings.push(name);
  process.on("warning", onWarning);
  t.after(() => process.off("warning", onWarning));
  const years = { timeout: 1e9, interval: 1e9, signal: AbortSignal.timeout(200) };
  await assert.rejects(chat.wait([channel], "bob", years), { name: "TimeoutError" });
  assert.deepEqual(warnings, []);
});
