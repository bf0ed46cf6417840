import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { test, type TestContext } from "node:test";
import * as chat from "../chat.ts";
import { BIN, REPO, sandbox, type Result } from "./helpers.ts";

const text = (file: string): string => fs.readFileSync(path.join(REPO, file), "utf8");
const DOCUMENTS = ["README.md", "SKILL.md", "SPEC.md"];

/** The fenced blocks of one language. */
function blocks(document: string, language: string): string[] {
  return [...document.matchAll(/^```(\w*)\n([^]*?)^```$/gm)].filter(([, tag]) => tag === language).map(([, , body]) => body!);
}

/** A scratch home in which a channel, a message, a task and a file stand ready. */
function scratch(t: TestContext) {
  const { dir, root, bash, ok, at } = sandbox(t);
  ok(["init", "review", "--members", "alice,bob"]);
  ok(["post", "review", "--from", "alice", "--to", "bob", "--title", "first", "--body", "first"]);
  fs.writeFileSync(at("review", "task-12.md"), "");
  fs.writeFileSync(path.join(dir, "notes.md"), "notes\n");
  bash("git init -q --bare chat.git");
  const shim = `agent-chat() { "${process.execPath}" "${BIN}" "$@"; }\nnpx() { "$@"; }\nset -e\n`;
  const once = { AGENT_CHAT_TIMEOUT: "0" }; // a wait looks once
  const git = { GIT_AUTHOR_NAME: "a", GIT_AUTHOR_EMAIL: "a@b", GIT_COMMITTER_NAME: "a", GIT_COMMITTER_EMAIL: "a@b" };
  return (script: string): Result => {
    const shared = / (--)?sync\b/.test(script) && !script.includes("--init");
    if (shared) ok(["sync", "--init", "chat.git"], { cwd: dir });
    return bash(shim + script, { cwd: dir, env: { HOME: dir, AGENT_CHAT_ROOT: root, ...once, ...git } });
  };
}

// ---- sessions

interface Step {
  readonly name: string;
  readonly command: string;
  readonly output: string;
}

/** `alice$ command`, lines of a heredoc behind `> `, then the output up to the next prompt. */
function steps(session: string): Step[] {
  return session.split(/^(?=\w*\$ )/m).map((part) => {
    const lines = part.split("\n");
    const [, name, first] = /^(\w*)\$ (.*)$/.exec(lines[0]!)!;
    const rest = lines.slice(1);
    const more = rest.slice(0, rest.findIndex((line) => !line.startsWith("> ")));
    return { name: name!, command: [first, ...more.map((line) => line.slice(2))].join("\n"), output: rest.slice(more.length).join("\n") };
  });
}

/** What differs from run to run made alike: the token, the time, the home. */
function alike(output: string, home: string): string {
  return output
    .replaceAll(home, "/home/you")
    .replace(/^\[\w{8}\]/gm, "[token]")
    .replace(/\b\d+ (s|min|h|d) ago/g, "<age> ago")
    .replace(/since ([\d-]{10} )?\d\d:\d\d:\d\d/g, "since <clock>")
    .replace(/until ([\d-]{10} )?\d\d:\d\d:\d\d/g, "until <clock>")
    .replace(/\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d/g, "<time>");
}

test("docs: the sessions in README are real output", (t) => {
  const { dir, bash } = sandbox(t);
  const sessions = blocks(text("README.md"), "console");
  assert.ok(sessions.length > 0);
  for (const { name, command, output } of sessions.flatMap(steps)) {
    const script = `agent-chat() { "${process.execPath}" "${BIN}" "$@"; }\n${command}`;
    const result = bash(script, { env: { HOME: dir, AGENT_CHAT_ROOT: undefined, AGENT_CHAT_NAME: name } });
    assert.equal(alike(result.stdout + result.stderr, dir), alike(output, dir), command);
  }
});

// ---- every command line

/** Shell commands, heredocs with theirs; a comment is no command. */
function commands(block: string): string[] {
  const found: string[] = [];
  let end: string | undefined;
  for (const line of block.split("\n")) {
    if (end !== undefined) found[found.length - 1] += `\n${line}`;
    else if (line !== "" && !line.startsWith("#")) found.push(line);
    end = end === undefined ? /<<'(\w+)'/.exec(line)?.[1] : line === end ? undefined : end;
  }
  return found;
}

/** Commands between backticks that are whole: they name a command, and no placeholder. */
function inline(document: string): string[] {
  const prose = document.replace(/^```[^]*?^```$/gm, "");
  return [...prose.matchAll(/`(?:npx )?(agent-chat [a-z]+[^`]*)`/g)].map(([, command]) => command!).filter((command) => !/[<[]|\.\.\./.test(command));
}

const soon = (command: string): string => command.replace(/--timeout \d+/, "--timeout 0");
const isFine = (command: string, status: number | null): boolean => status === 0 || (status === 2 && /agent-chat (wait|ask) /.test(command)); // nothing came
const OURS = (command: string): boolean => !command.startsWith("npm "); // the two commands of a fresh clone run this very test

for (const file of DOCUMENTS) {
  test(`docs: every command line in ${file} works in a scratch root`, (t) => {
    const lines = [...blocks(text(file), "sh").flatMap(commands).filter(OURS), ...inline(text(file))];
    assert.ok(lines.length > 0 || file === "SPEC.md");
    for (const line of lines) {
      const { status, stderr } = scratch(t)(soon(line).replace(/^git diff \| /, "echo diff | ").replace("init review", "init other"));
      assert.ok(isFine(line, status), `${line}\n${stderr}`);
    }
  });
}

test("docs: every example in --help works in a scratch root", (t) => {
  const examples = Object.values(chat.COMMANDS).flatMap(({ examples }) => [...examples]);
  assert.ok(examples.length >= Object.keys(chat.COMMANDS).length);
  for (const example of examples) {
    const { status, stderr } = scratch(t)(soon(example).replace("init review", "init other"));
    assert.ok(isFine(example, status), `${example}\n${stderr}`);
  }
});

test("docs: .ci/run calls the test command that README gives", () => {
  const [demo, tests] = blocks(text("README.md"), "sh")[0]!.trim().split("\n");
  assert.equal(demo, "npm ci && npm run demo");
  assert.ok(text(".ci/run").split("\n").includes(tests!));
});

test("docs: every command and option that a document names exists", () => {
  for (const file of DOCUMENTS) {
    const named = [...text(file).matchAll(/agent-chat ([a-z]+) [^`\n]*/g)].filter(([, name]) => name! in chat.COMMANDS);
    for (const [line, name] of named) {
      const { options } = chat.COMMANDS[name as keyof typeof chat.COMMANDS];
      for (const [, option] of line.matchAll(/ --([a-z-]+)/g)) {
        assert.ok(option! in options || ["root", "as", "json", "help", "version"].includes(option!), `${file}: ${line}`);
      }
    }
  }
});

// ---- tables that restate code

const table = (document: string, heading: string): string[][] => {
  const lines = document.slice(document.indexOf(heading)).split("\n");
  const start = lines.findIndex((line) => line.startsWith("|---"));
  const rows = lines.slice(start + 1);
  return rows.slice(0, rows.findIndex((line) => !line.startsWith("|"))).map((row) => row.slice(2, -2).split(" | "));
};

test("docs: README's table of commands is the program's", () => {
  const rows = table(text("README.md"), "## The commands").map(([command, does]) => [command, does]);
  const entries = Object.entries(chat.COMMANDS).map(([name, { operands, summary }]) => [`\`${`${name} ${operands}`.trim()}\``, summary.split(";")[name === "post" ? 0 : -1] ?? summary]);
  assert.deepEqual(rows, entries);
});

test("docs: SPEC's exit codes and error codes are the program's", () => {
  const general = new Map(table(text("SPEC.md"), "8.1 Exit codes").map(([code, meaning]) => [Number(code), meaning]));
  const help = sandboxless(["--help"]);
  for (const [code, meaning] of general) assert.match(help, new RegExp(`\\b${code}  ${meaning}\\b`));
  const codes = table(text("SPEC.md"), "8.3 Error codes").map(([code, exit]) => [code, Number(exit)]);
  assert.deepEqual(Object.fromEntries(codes), { ...chat.EXIT });
  assert.deepEqual(new Set(codes.map(([, exit]) => exit)), new Set([...general.keys()].filter((code) => code !== 0)));
});

function sandboxless(args: string[]): string {
  let output = "";
  const real = fs.writeSync;
  fs.writeSync = ((fd: number, bytes: Buffer, ...rest: []) => (fd === 1 ? ((output += bytes.toString()), bytes.length) : real(fd, bytes, ...rest))) as typeof fs.writeSync;
  void chat.main(args);
  fs.writeSync = real;
  return output;
}

test("docs: SPEC's file name pattern is the program's", () => {
  assert.ok(text("SPEC.md").includes(`\`${/const ENTRY = \/(.*)\/;/.exec(text("chat.ts"))![1]!}\``));
});

test("docs: SPEC's expressions for what is quoted are the program's", () => {
  const [, plain] = /if \(\/(.*)\/\.test\(text\)\) return true;\n  if/.exec(text("chat.ts"))!;
  const words = [...text("chat.ts").matchAll(/^const YAML_\w+ =\s+\/(.*)\/;$/gm)].map(([, pattern]) => pattern!);
  assert.equal(words.length, 3);
  for (const pattern of [plain!, ...words]) assert.ok(text("SPEC.md").includes(`\n${pattern}\n`), pattern);
});

test("docs: every MUST in SPEC names a test, and every test it names exists", () => {
  const titles = fs.readdirSync(path.join(REPO, "test")).filter((name) => name.endsWith(".test.ts")).map((name) => text(`test/${name}`)).join("\n");
  const clauses = text("SPEC.md").split(/^(?=\d+\.\d+ )/m).filter((clause) => /^\d+\.\d+ /.test(clause));
  assert.ok(clauses.length > 30);
  for (const clause of clauses) {
    const named = [...clause.matchAll(/^→ (.*)$/gm)].map(([, name]) => name!);
    if (/\bMUST\b/.test(clause) && !/MUST, MUST NOT and MAY/.test(clause)) assert.ok(named.length > 0, clause);
    for (const name of named) assert.ok(isTitle(titles, name), name);
  }
});

/** A title as written, or made from a table by a template such as `lock: one ${what} is taken over`. */
function isTitle(titles: string, name: string): boolean {
  if (titles.includes(`"${name}"`) || titles.includes(`'${name}'`)) return true;
  const templates = [...titles.matchAll(/test\(`([^`]*\$\{[^`]*)`/g)].map(([, template]) => template!.split(/\$\{[^}]*\}/));
  const parts = templates.find(([first, last]) => name.startsWith(first!) && name.endsWith(last!));
  return parts !== undefined && titles.includes(name.slice(parts[0]!.length, name.length - parts[1]!.length));
}

test("docs: chat.ts cites only clauses that SPEC has", () => {
  const clauses = new Set([...text("SPEC.md").matchAll(/^(\d+(?:\.\d+)?)\.? /gm)].map(([, number]) => number));
  const cited = [...text("chat.ts").matchAll(/SPEC (\d+(?:\.\d+)?)(?: to (\d+\.\d+))?/g)].flatMap(([, from, to]) => [from, to]).filter((number) => number !== undefined);
  assert.ok(cited.length > 5);
  for (const number of cited) assert.ok(clauses.has(number) || clauses.has(`${number}.1`), `SPEC ${number}`);
});

test("docs: SKILL is a skill: its name, a description in bounds, under 100 lines", () => {
  const skill = text("SKILL.md");
  const [, front] = /^---\n([^]*?)\n---\n/.exec(skill)!;
  const field = (name: string): string => new RegExp(`^${name}: (.*)$`, "m").exec(front!)![1]!;
  assert.equal(field("name"), "agent-chat");
  assert.ok(field("description").length <= 1024 && field("compatibility").length <= 500);
  assert.doesNotMatch(field("description"), /: |#/, "plain YAML");
  assert.ok(skill.split("\n").length < 100);
});

test("docs: no function in chat.ts is over 40 lines but the table, and nothing is left to do", () => {
  const source = text("chat.ts");
  for (const [whole] of source.matchAll(/^(?:export )?(?:async )?function [^]*?\n}$/gm)) assert.ok(whole.split("\n").length <= 40, whole.split("\n")[0]);
  assert.doesNotMatch(source, /TODO|FIXME|XXX|for now/);
  assert.doesNotMatch(source, /[^\x00-\x7f]/, "one-byte source compiles faster");
  const banners = [...source.matchAll(/^\/\/ ---- (.*?) -+$/gm)].map(([, name]) => name);
  assert.deepEqual(banners, ["types", "errors", "names", "message text", "files", "lock", "channels", "messages", "cursors", "renumbering", "delivery", "presence", "waiting", "tasks", "git", "sync", "output", "the process around us", "commands", "help", "main"]);
});
