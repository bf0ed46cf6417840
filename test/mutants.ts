// Breaks chat.ts in one place at a time, in a copy, and shows that a test notices. Exits 1 when one goes unnoticed.
// Run: npm run mutants [-- word ...]; words choose the mutants whose names hold one of them.
import { spawn, spawnSync, type ChildProcess } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { cleanEnv, REPO } from "./helpers.ts";

/** One breakage: `from` stands exactly once in chat.ts. */
interface Mutant {
  readonly name: string;
  readonly from: string;
  readonly to: string;
  readonly tests: readonly string[]; // those that should notice, run first
}

const MUTANTS: readonly Mutant[] = [
  {
    name: "no lock: every writer makes one of its own",
    from: "const draft = takeLock(lock);",
    to: "const draft = takeLock(`${lock}.${nonce()}`);",
    tests: ["schedules", "post", "lock"],
  },
  {
    name: "no fence: the draft lies outside of the lock, where no thief takes it away",
    from: "const file = path.join(lock, `${HOST}.${process.pid}.${nonce()}.draft`);",
    to: "const file = path.join(lock, `../${HOST}.${process.pid}.${nonce()}.draft`);",
    tests: ["schedules", "lock"],
  },
  {
    name: "no look for a second draft in the lock",
    from: "if (draftsIn(lock).every((name) => name === path.basename(draft.path))) return draft;",
    to: "if (draftsIn(lock).length > 0) return draft;",
    tests: ["schedules", "lock"],
  },
  {
    name: "a robbed writer fails instead of starting over",
    from: "if (!isStolen(error, lock) && isHeld(draft)) throw error;",
    to: "throw error;",
    tests: ["schedules", "lock"],
  },
  {
    name: "stale by the date of the lock, not by watching it",
    from: "return monotonic() - sight.since >= STALE_MS;",
    to: "return Date.now() - Number(stat.mtimeMs) >= STALE_MS;",
    tests: ["lock", "faults"],
  },
  {
    name: "stale as soon as one of its writers is dead",
    from: "drafts.length > 0 && drafts.every(isDead)",
    to: "drafts.length > 0 && drafts.some(isDead)",
    tests: ["lock"],
  },
  {
    name: "a message that is seen before it is on disk",
    from: "writeAll(draft.fd, formatMessage(message));\n    fs.fsyncSync(draft.fd);",
    to: "writeAll(draft.fd, formatMessage(message));",
    tests: ["post"],
  },
  {
    name: "a folder of a channel loses the bit that hands its group on",
    from: "fs.chmodSync(to, (own & ~bits) | (mode & bits));",
    to: "fs.chmodSync(to, mode & bits);",
    tests: ["channels"],
  },
  {
    name: "rename instead of link: what has the name is replaced",
    from: "fs.linkSync(from, to);",
    to: "fs.renameSync(from, to);",
    tests: ["post", "channels", "schedules"],
  },
  {
    name: "no second listing where numbers are missing",
    from: "if (!hasHoles(listing.entries)) return listing;",
    to: "if (names.length >= 0) return listing;",
    tests: ["library", "schedules", "faults"],
  },
  {
    name: "the newest number that was kept is believed, though the folder has changed",
    from: "return since < 0n || since > TICK_NS || coarse ? undefined : Number(seq);",
    to: "return Number(seq);",
    tests: ["hostile", "post", "schedules"],
  },
  {
    name: "no comparison of the header's number with the name's",
    from: "if (Number(number) !== seq) return",
    to: "if (seq < 0) return",
    tests: ["post", "read", "cursor"],
  },
  {
    name: "cursor taken from a second listing, not from what was shown",
    from: "let marked = cursorOf([...passed, ...shown], shared);",
    to: "let marked = cursorOf([...listMessages(channel).entries, ...passed, ...shown], shared);",
    tests: ["read", "wait", "schedules"],
  },
  {
    name: "cursor written over what another session marked",
    from: "formatCursor(union(doubted ? NOTHING : disk.cursor, shownNow(batch, shown, now)))",
    to: "formatCursor(union(doubted ? NOTHING : batch.cursor.cursor, shownNow(batch, shown, now)))",
    tests: ["cursor", "schedules"],
  },
  {
    name: "cursor read after the listing that it judges",
    from: "const { entries, strays, size } = listing;\n",
    to: "const { entries, strays, size } = listing;\n  if (!reader.believed) reader.cursor = cursorOrProblem(channel, agent);\n",
    tests: ["schedules"],
  },
  {
    name: "cursor written under no lock of its own",
    from: "await withLock(cursorLock(channel, agent), signal, (draft) => {",
    to: "await withLock(`${cursorLock(channel, agent)}.${nonce()}`, signal, (draft) => {",
    tests: ["schedules"],
  },
  {
    name: "cursor that reaches past the newest message by a file name is believed",
    from: "const top = topOf(file.cursor);",
    to: "const top = file.cursor.ranges.at(-1)?.[1] ?? 0;",
    tests: ["cursor", "hostile"],
  },
  {
    name: "cursor: of two messages with one number, the one that was shown is marked by the number",
    from: "own.map(({ seq }) => [seq, seq]),",
    to: "entries.map(({ seq }) => [seq, seq]),",
    tests: ["cursor"],
  },
  {
    name: "marked before shown",
    from: "const shown = new Set(await show(messages, call.json, budget));",
    to: "for (const batch of peek ? [] : batches) await mark(batch, batch.messages);\n  const shown = new Set(await show(messages, call.json, budget));",
    tests: ["read", "failures", "crash"],
  },
  {
    name: "budget ignored",
    from: "(json ? Infinity : BUDGET)",
    to: "Infinity",
    tests: ["read", "hostile"],
  },
  {
    name: "line breaks in a header value not folded",
    from: 'return text.replace(LINE_BREAKS, " ").toWellFormed();',
    to: "return text.toWellFormed();",
    tests: ["hostile", "cli"],
  },
  {
    name: "borders without a token of the run",
    from: "const token = nonce().slice(0, TOKEN_LIKE.length);",
    to: 'const token = "abcd1234";',
    tests: ["hostile", "read"],
  },
  {
    name: "claim without a look for who has the task",
    from: "if (others.length > 0 && left === undefined) throw refusal(channel, id, others, name);",
    to: "",
    tests: ["claim", "schedules"],
  },
  {
    name: "claim that does not ask whether the lock was held to the end",
    from: "renamed);\n      assertHeld(draft);",
    to: "renamed);",
    tests: ["schedules", "claim"],
  },
  {
    name: "claim --wait that asks who is first in line only before it has the lock",
    from: "takeTask(channel, name, decide, how)",
    to: "claim(channel, name, id, how)",
    tests: ["task-schedules"],
  },
  {
    name: "claim --wait that takes the lock while others have the task",
    from: "if (other !== undefined && (older === undefined || another)) throw refusal(channel, id, others, undefined);",
    to: "",
    tests: ["tasks"],
  },
  {
    name: "claim --wait in no line",
    from: "if (other === undefined) return assertFirstInLine(waiter, channel);",
    to: "if (other === undefined) return;",
    tests: ["task-schedules", "tasks"],
  },
  {
    name: "done and release: recorded after the rename, not before",
    from: "const record = writeRecord(turn, state, had.owner);\n        moveEnded(had.path, path.join(channel.path, to));",
    to: "moveEnded(had.path, path.join(channel.path, to));\n        const record = writeRecord(turn, state, had.owner);",
    tests: ["task-schedules", "tasks"],
  },
  {
    name: "done and release that do not ask whether the lock was held to the end",
    from: "assertHeld(draft);\n        ended.sure = true;",
    to: "ended.sure = true;",
    tests: ["task-schedules", "schedules"],
  },
  {
    name: "steal that keeps a claim which the owner made anew meanwhile",
    from: "return others.length > 0 || (left !== undefined && readRecord(channel, id, left)?.id !== record);",
    to: "return others.length > 0;",
    tests: ["task-schedules"],
  },
  {
    name: "told again whenever it is asked for",
    from: "if (told !== undefined) return { message: told, now: false };",
    to: "",
    tests: ["task-schedules", "failures", "tasks"],
  },
  {
    name: "done and release that do not look whether their file's name is free",
    from: "if (fs.lstatSync(to, { throwIfNoEntry: false }) === undefined) return;",
    to: "if (from !== to) return;",
    tests: ["task-schedules", "tasks"],
  },
  {
    name: "a text of the holder's, as a task's record, placed from somebody else's lock",
    from: "assertHeld(draft);\n    persistently(() => place(made, to));",
    to: "persistently(() => place(made, to));",
    tests: ["task-schedules"],
  },
  {
    name: "a record that cannot be read is none",
    from: "if (isCode(error, \"ENOENT\", \"ENOTDIR\")) return undefined;\n    throw error;\n  }\n}\n\nfunction parseRecord",
    to: "return undefined;\n  }\n}\n\nfunction parseRecord",
    tests: ["failures"],
  },
  {
    name: "steal from an owner who was heard of",
    from: "if (since !== undefined && wasSilent(channel, since, owner, older)) return;",
    to: "if (since !== undefined) return;",
    tests: ["task-schedules", "tasks"],
  },
  {
    name: "claim of a task that comes after one that is not done",
    from: "if (first.length === 0) return;",
    to: "if (first.length >= 0) return;",
    tests: ["tasks"],
  },
  {
    name: "claim --next that ignores priorities",
    from: "return open.sort((a, b) => PRIORITIES.indexOf(b.priority) - PRIORITIES.indexOf(a.priority));",
    to: "return open;",
    tests: ["tasks"],
  },
  {
    name: "who waits for a task gets it, whoever came before",
    from: "if (theirs < mine || (theirs === mine && other < myself))",
    to: "if (theirs < mine && other === myself)",
    tests: ["tasks"],
  },
  {
    name: "wait that believes the mtime of a folder that has just changed",
    from: "const FRESH_MS = 2_000;",
    to: "const FRESH_MS = 0;",
    tests: ["wait"],
  },
  {
    name: "wait that does not notice that its parent has gone",
    from: "if (orphan || moved || process.ppid !== parent) {",
    to: "if (orphan && !orphan) {",
    tests: ["wait", "faults"],
  },
  {
    name: "key: looked up before the lock is taken, not under it",
    from: `    const publishing = (draft: Draft, seen: Glance | undefined): Message => {
      const unnumbered = nowAnswering(channel, addressed, numbers);
      const before = postedBefore(channel, unnumbered);
`,
    to: `    const before = postedBefore(channel, addressed);
    const publishing = (draft: Draft, seen: Glance | undefined): Message => {
      const unnumbered = nowAnswering(channel, addressed, numbers);
`,
    tests: ["schedules", "post"],
  },
  {
    name: "key: not looked up at all",
    from: "const before = postedBefore(channel, unnumbered);",
    to: "const before = undefined as Message | undefined;",
    tests: ["failures", "schedules", "post"],
  },
  {
    name: "key: another content is taken for the same",
    from: "if (before === undefined || contentOf(before) === contentOf(unnumbered)) return before;",
    to: "if (before === undefined || contentOf(before) !== '') return before;",
    tests: ["schedules", "post"],
  },
  {
    name: "filter: what rests beside is marked as not for the agent",
    from: "else if (!asked) resting.add(message.file);",
    to: "else if (!asked) passed.add(message.file);",
    tests: ["failures", "waiting", "reference"],
  },
  {
    name: "filter: ack and fyi wake",
    from: "if (!isFiltered(filter)) return !QUIET.includes(foldName(status));",
    to: "if (!isFiltered(filter)) return foldName(status) !== '';",
    tests: ["waiting"],
  },
  {
    name: "ask: its position is taken after the post",
    from: `  openWatches(waiter);
  const before = numbering(channel);
  const posted = await post(channel, { ...outgoing, status: "question" }, how);
  await how.onPosted?.(posted);
`,
    to: `  const before = numbering(channel);
  const posted = await post(channel, { ...outgoing, status: "question" }, how);
  await how.onPosted?.(posted);
  openWatches(waiter);
`,
    tests: ["waiting"],
  },
  {
    name: "heartbeat: believed although its process is dead",
    from: "const running = beat.host !== HOST || isAlive(beat.pid);",
    to: "const running = beat.pid > 0;",
    tests: ["schedules", "presence", "waiting"],
  },
  {
    name: "heartbeat: believed although it is old",
    from: " && Math.abs(now - found.stat.mtimeMs) < BEAT_STALE_MS ?",
    to: " && Number.isFinite(now - found.stat.mtimeMs) ?",
    tests: ["presence", "waiting"],
  },
  {
    name: "heartbeat: left when the wait ends",
    from: 'if (beat !== "") removeBeat(reader.channel, reader.agent, beat);',
    to: 'if (beat === " ") removeBeat(reader.channel, reader.agent, beat);',
    tests: ["failures", "schedules", "waiting"],
  },
  {
    name: "heartbeat: removed although another session's",
    from: "if (readIfPossible(file, SAID_MAX) === text) removeAtLast",
    to: 'if (text !== "") removeAtLast',
    tests: ["schedules"],
  },
  {
    name: "heartbeat: who else waits cannot be told, and the wait fails",
    from: "const waits = whoSurelyWaits(waiter);",
    to: "const waits = whoWaits(waiter);",
    tests: ["failures"],
  },
  {
    name: "stuck: a wait for whatever comes",
    from: "if (!isFiltered(waiter.how) || now < waiter.doubtAt) return;",
    to: "if (now < waiter.doubtAt) return;",
    tests: ["waiting"],
  },
  {
    name: "stuck: without a look at what is unread",
    from: "if (near === undefined || [...near.keys()].some((name) => hasUnread(channel, name as Name))) return undefined;",
    to: "if (near === undefined) return undefined;",
    tests: ["schedules", "waiting"],
  },
  {
    name: "stuck: without a second look at who waits, after what is unread",
    from: "const waits = waitingOn(waiter, channel, now, () => agentsOf(channel));",
    to: "const waits = near;",
    tests: ["schedules"],
  },
  {
    name: "stuck: at the second look, not after 3 s",
    from: "else if (now - waiter.suspicion.since >= STUCK_MS)",
    to: "else if (now - waiter.suspicion.since >= 0)",
    tests: ["failures", "waiting"],
  },
  {
    name: "receipts: made of what could not be read",
    from: "repliesTo(channel, asked, entries, inspectReadable);",
    to: "repliesTo(channel, asked, entries);",
    tests: ["failures"],
  },
  {
    name: "renumber: cursors stay as they are",
    from: "return [[agent, formatCursor(translated(doubt(file, newest).cursor, transit))]];",
    to: "return [[agent, formatCursor(file.cursor)]];",
    tests: ["git", "schedules", "sync"],
  },
  {
    name: "renumber: what was looked at under old numbers is marked under them",
    from: "if (!isBrought(batch, change.id)) marked = translated(marked, change);",
    to: "void change;",
    tests: ["schedules", "kills", "machines"],
  },
  {
    name: "renumber: what a dead process decided is not finished",
    from: "if (transit === undefined) return body(draft, seen);",
    to: "if (transit?.id !== \"\") return body(draft, seen);",
    tests: ["kills", "schedules"],
  },
  {
    name: "renumber: a reader does not look again where numbers changed under it",
    from: "if (left <= 1 || isSameNumbering(now, numbering(reader.channel))) return batch;",
    to: "if (left > 0) return batch;",
    tests: ["schedules", "kills"],
  },
  {
    name: "renumber: one marks while it is decided on the cursors",
    from: "return now.under !== undefined || text ===",
    to: "return text ===",
    tests: ["schedules", "git"],
  },
  {
    name: "renumber: the numbers that a message had are believed, though git alone brought it",
    from: "if (left > 1 && hasDoubts(reader)) continue;",
    to: "if (left < 1) continue;",
    tests: ["git"],
  },
  {
    name: "renumber: answers with a lower number than the message has now are none",
    from: "return Math.min(seq, ...was);",
    to: "return Math.min(seq, seq + was.length);",
    tests: ["git"],
  },
  {
    name: "renumber: the answers stay with the first",
    from: "return left.length > 1 ? reply_to : toEntry(files.get(first!.file) ?? first!.file).seq;",
    to: "return reply_to ?? toEntry(files.get(first!.file) ?? first!.file).seq;",
    tests: ["git", "sync"],
  },
  {
    name: "sync: what was not pushed keeps its numbers",
    from: "if (unpushed.some(({ seq }) => seq <= next))",
    to: "if (next < 0)",
    tests: ["sync", "machines"],
  },
  {
    name: "sync --init: what a branch has, and a new work tree of it has not, is taken for deleted",
    from: "if (how === NONE_HERE && oid === run.here) {",
    to: 'if (how === "") {',
    tests: ["sync-init"],
  },
  {
    name: "sync: what is taken in is not written down before",
    from: "writeWhole(incomingPath(repo), `${theirs}\\n`);",
    to: "",
    tests: ["sync-failures", "kills"],
  },
  {
    name: "sync: what was renumbered elsewhere is taken for something new",
    from: "return new Map(ids.filter(([id]) => were.has(id)));",
    to: "return new Map(ids.slice(ids.length + were.size));",
    tests: ["sync-clones", "sync"],
  },
  {
    name: "sync: who lost a task is not told",
    from: "if (untold?.agent !== agent || untold.task !== task) tellLost(taking, task, agent, owner);",
    to: "void untold;",
    tests: ["sync-flags"],
  },
  {
    name: "sync: a number that comes late stays in the cursors",
    from: "return late.filter((seq) => cursors.some((cursor) => holds(cursor, { seq, file: \"\" }, none)));",
    to: "return late.filter(() => cursors.length < 0 && holds(NOTHING, { seq: 1, file: \"\" }, none));",
    tests: ["sync-failures"],
  },
  {
    name: "sync: a link of the remote is taken for a file",
    from: "if (/^100/.test(mode)) return false;",
    to: "if (/^1[02]0/.test(mode)) return false;",
    tests: ["sync-failures"],
  },
  {
    name: "sync: a .gitignore that lets git carry cursors is taken all the same",
    from: "if (run.leftOut.has(row.path)) return [];",
    to: "",
    tests: ["sync-failures"],
  },
  {
    name: "sync: what a surrounding git says is taken over",
    from: "!name.startsWith(\"GIT_\") || GIT_KEPT.test(name)",
    to: "name !== \"\" || GIT_KEPT.test(name)",
    tests: ["sync-failures"],
  },
  {
    name: "sync: the branch is not asked whose it is",
    from: "if (foreign === undefined) return others.length > 0;",
    to: "if (foreign?.name !== \"\") return true;",
    tests: ["sync-init", "sync-start"],
  },
  {
    name: "sync: pushed by force",
    from: "`${here}:${repo.upstream}`",
    to: "`+${here}:${repo.upstream}`",
    tests: ["sync-flags", "machines"],
  },
];

const LIMIT_MS = 600_000; // of one test file

/** The text of chat.ts with one mutation; throws unless there is exactly one place for it. */
function mutate(source: string, { name, from, to }: Mutant): string {
  const parts = source.split(from);
  if (parts.length !== 2) throw new Error(`mutant "${name}": ${from} stands ${parts.length - 1} times in chat.ts`);
  return parts.join(to);
}

/** A copy that can be built and tested: with the modules, the reference beside it, and a git of its own. */
function copyProject(scratch: string, name: string): string {
  const project = path.join(scratch, name);
  const left = [".git", "dist", "node_modules"].map((entry) => path.join(REPO, entry));
  fs.cpSync(REPO, project, { recursive: true, filter: (file) => !left.includes(file) });
  fs.symlinkSync(path.join(REPO, "node_modules"), path.join(project, "node_modules"));
  spawnSync("git", ["init", "-q"], { cwd: project });
  spawnSync("git", ["add", "-A"], { cwd: project });
  return project;
}

function build(project: string, source: string): void {
  fs.writeFileSync(path.join(project, "chat.ts"), source);
  const { status, stderr } = spawnSync(process.execPath, ["build.mjs"], { cwd: project, encoding: "utf8" });
  if (status !== 0) throw new Error(`the copy cannot be built: ${stderr}`);
}

/** Ends a test run with all that it started; it leads a process group of its own. */
function end(run: ChildProcess): void {
  try {
    process.kill(-run.pid!, "SIGKILL");
  } catch {
    // it has ended by itself
  }
}

/** Runs one test file until its first failure; resolves with that test's name, or undefined if all passed. */
function firstFailure(project: string, file: string): Promise<string | undefined> {
  const env = cleanEnv({
    TMPDIR: path.join(project, "..", "t"),
    AGENT_CHAT_BIN: undefined,
    NODE_TEST_CONTEXT: undefined,
  });
  const args = ["--import", "tsx", "--test", "--test-reporter=tap", file];
  const run = spawn(process.execPath, args, { cwd: project, env, detached: true, stdio: ["ignore", "pipe", "ignore"] });
  return new Promise((resolve) => {
    const settle = (failure: string | undefined): void => {
      clearTimeout(timer);
      end(run);
      resolve(failure);
    };
    const timer = setTimeout(settle, LIMIT_MS, `${file} took over ${LIMIT_MS / 1000} s`);
    let output = "";
    run.stdout.setEncoding("utf8").on("data", (text: string) => {
      const failed = /^\s*not ok \d+ - (.*)\n/m.exec((output += text));
      if (failed !== null) settle(failed[1]);
    });
    run.once("close", (code) => settle(code === 0 ? undefined : `${file} exited ${code}`));
  });
}

/** The test files, expected ones first. */
function ordered(files: readonly string[], { tests }: Mutant): string[] {
  const rank = (file: string): number => tests.indexOf(path.basename(file, ".test.ts")) + 1 || Infinity;
  return [...files].sort((a, b) => (rank(a) === rank(b) ? 0 : rank(a) - rank(b)));
}

/** Runs test files for a mutant until one fails; a file that fails without any mutant proves nothing and is an error. */
async function kill(
  copies: { broken: string; whole: string },
  files: readonly string[],
  trusted: Set<string>,
): Promise<string | undefined> {
  for (const file of files) {
    const failure = await firstFailure(copies.broken, file);
    if (failure === undefined) continue;
    const sound = trusted.has(file) ? undefined : await firstFailure(copies.whole, file);
    if (sound !== undefined) throw new Error(`${file} fails without any mutant: ${sound}`);
    trusted.add(file);
    return failure;
  }
  return undefined;
}

function chosen(words: readonly string[]): readonly Mutant[] {
  return MUTANTS.filter(({ name }) => words.length === 0 || words.some((word) => name.includes(word)));
}

async function tryAll(scratch: string, words: readonly string[]): Promise<number> {
  const source = fs.readFileSync(path.join(REPO, "chat.ts"), "utf8");
  const mutated = new Map(MUTANTS.map((mutant) => [mutant, mutate(source, mutant)]));
  const shared = path.join(REPO, "..", "shared");
  if (fs.existsSync(shared)) fs.symlinkSync(shared, path.join(scratch, "shared"));
  fs.mkdirSync(path.join(scratch, "t"));
  const copies = { broken: copyProject(scratch, "broken"), whole: copyProject(scratch, "whole") };
  build(copies.whole, source);
  const files = fs
    .readdirSync(path.join(REPO, "test"))
    .filter((file) => file.endsWith(".test.ts") && file !== "package.test.ts") // which asks git, and a copy has none
    .map((file) => `test/${file}`);
  const trusted = new Set<string>();
  let survived = 0;
  console.log("| mutant | killed by |\n| --- | --- |");
  for (const mutant of chosen(words)) {
    build(copies.broken, mutated.get(mutant)!);
    const killer = await kill(copies, ordered(files, mutant), trusted);
    if (killer === undefined) survived += 1;
    console.log(`| ${mutant.name} | ${killer ?? "SURVIVED"} |`);
  }
  return survived;
}

const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "mutants-"));
fs.chmodSync(scratch, 0o755); // a test becomes somebody without rights, who runs the program all the same
try {
  process.exitCode = (await tryAll(scratch, process.argv.slice(2))) === 0 ? 0 : 1;
} finally {
  fs.rmSync(scratch, { recursive: true, force: true });
}
