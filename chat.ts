#!/usr/bin/env node
// agent-chat - coding agents leave each other numbered messages in a folder, and wait for the answers
//
//   <root>/review/                          a channel: any folder with a _meta.json
//   <root>/review/0007-alice-schema.md      a message: header, body; never changed once it is there
//   <root>/review/.cursors/bob.txt          a cursor: which messages bob has been shown
//   <root>/review/task-12.md                a task: open; renamed to task-12.CLAIMED-bob.md by its owner
//   <root>/review/_seq.lock/<draft>         held for the milliseconds in which a number is handed out
//
// - A message appears whole or not at all: it is written and flushed inside the lock folder, then linked into place.
// - The lock is fenced: who steals it takes the draft away, so a writer that slept through the theft has nothing left
//   to publish and starts over. A number is never given twice, whoever stops or dies when.
// - Every decision is made on one listing, taken after the cursor was read.
// - Shown, then marked: a cursor takes a message in only after the system has taken its bytes.
// - What cannot be done is said, with the command that mends it. SPEC.md has all of it in numbered clauses.

// A Node that cannot strip types stops at this line and prints it; `export` here would make it look further.
type NeedsNode = "chat.ts needs Node 22.18 or later; on Node 20 use: npx agent-chat";

import { isUtf8 } from "node:buffer"; // No module? {"type":"module"} is missing in a package.json beside chat.ts.
import { setMaxListeners } from "node:events";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";

export type { NeedsNode };
export const VERSION = "0.1.0";

// ---- types ---------------------------------------------------------------------------------------------------------

/** An agent's name in its one legal form: a-z, 0-9 and single hyphens, at most 40 characters (SPEC 3.1). */
export type Name = string & { readonly __name: true };

/** How much a message presses; none in the header: normal (SPEC 4.9). */
export type Priority = (typeof PRIORITIES)[number];

const PRIORITIES = ["low", "normal", "high"] as const;

/** A folder of messages. */
export interface Channel {
  readonly root: string; // absolute
  readonly name: string;
  readonly path: string; // absolute
}

/** What `_meta.json` says of a channel. */
export interface Meta {
  readonly members: readonly string[]; // empty: open to all
  readonly topic: string;
  readonly created: string;
  readonly problem: string | undefined; // why the file could not be understood
}

/** One message, with the keys that `--json` prints. */
export interface Message {
  readonly channel: string;
  readonly seq: number; // its place in the channel, from 1
  readonly file: string; // 0007-alice-schema.md
  readonly path: string; // absolute
  readonly from: string;
  readonly to: readonly string[]; // empty: everybody
  readonly reply_to: number | null;
  readonly ts: string; // ISO-8601, local time with its offset
  readonly status: string;
  readonly title: string;
  readonly priority?: Priority | undefined; // only where the header has one
  readonly key?: string | undefined; // only where the header has one
  readonly task?: string | undefined; // what it tells of; only where the header has one
  readonly was?: readonly number[] | undefined; // the numbers it had before; only where the header has any
  readonly body: string;
}

/** What to post. */
export interface Outgoing {
  readonly from: string;
  readonly body: string;
  readonly to?: readonly string[] | undefined; // empty: everybody; none: the author of what is replied to, else everybody
  readonly title?: string | undefined; // none: the first line of the body
  readonly reply?: number | undefined; // the number of the message this answers
  readonly status?: string | undefined; // a free label; none: discussion
  readonly priority?: Priority | undefined; // none: normal
  readonly key?: string | undefined; // posted once under this key, however often it is tried
  readonly task?: string | undefined; // the task that it tells of
  readonly force?: boolean | undefined; // take recipients who are not known here
}

/** What was posted. */
export interface Posted {
  readonly message: Message;
  readonly created: boolean; // false: it was there already, under its key
  readonly bytes: number; // of the body, as written
  readonly lines: number;
  readonly notes: readonly string[]; // what the sender should know
}

/** What one look at a channel found for one agent; give it to `mark` once it has been shown. */
export interface Batch {
  readonly channel: Channel;
  readonly agent: Name;
  readonly messages: readonly Message[]; // for the agent, and not shown yet
  readonly passed: readonly Entry[]; // not shown yet, and not for the agent
  readonly newest: number; // the highest number in the channel, 0: no messages
  readonly shared: Shared; // numbers that two messages have
  readonly cursor: CursorFile;
  readonly notes: readonly string[];
  readonly numbering: number | undefined; // as of which change of numbers
  readonly known: string | undefined; // and with which one beyond
  readonly brought: ReadonlyMap<string, readonly number[]>; // messages that git brought under new numbers, and their old ones
}

/** A task, taken. */
export interface Claim {
  readonly task: string; // its id: 12
  readonly from: string; // task-12.md
  readonly file: string; // task-12.CLAIMED-bob.md
  readonly path: string; // absolute
  readonly already: boolean; // it was the agent's before
  readonly stolen_from: string | null; // whose it was
}

/** Where something is said beside the data. */
export type Note = (text: string) => void;

/** How a blocking function is stopped: it rejects with the signal's reason. */
export interface Blocking {
  readonly signal?: AbortSignal | undefined;
}

/** A file whose name is a message's name; whether it is a message, only its header tells. */
export interface Entry {
  readonly seq: number;
  readonly file: string;
}

/** Numbers that more than one message has. */
export type Shared = { has(seq: number): boolean };

/** A set of shown messages: ranges of numbers, and file names where a number is shared (SPEC 6.2). */
export interface Cursor {
  readonly ranges: readonly (readonly [number, number])[]; // ascending, apart
  readonly files: ReadonlySet<string>;
}

/** A cursor as it was found on disk. */
export interface CursorFile {
  readonly text: string | undefined; // undefined: there is none
  readonly cursor: Cursor; // empty where the text is not believed
  readonly moved: Date | undefined;
  readonly problem: string | undefined; // why the text is not believed
}

type Finding =
  | { readonly kind: "message"; readonly message: Message }
  | { readonly kind: "odd"; readonly reason: string } // not a message: neither blocks nor counts
  | { readonly kind: "unreadable"; readonly reason: string; readonly error: unknown } // perhaps a message: its number is not given again
  | { readonly kind: "gone" };

// ---- errors --------------------------------------------------------------------------------------------------------

/** The exit code of each error code. */
export const EXIT = {
  usage: 64,
  bad_name: 64,
  bad_value: 64,
  no_name: 64,
  timeout: 2,
  taken: 3,
  reserved: 3,
  blocked: 3,
  paused: 3,
  not_stale: 3,
  other_content: 4,
  stuck: 5,
  no_channel: 1,
  bad_meta: 1,
  channel_exists: 1,
  no_message: 1,
  no_task: 1,
  task_exists: 1,
  not_claimed: 1,
  unknown_recipient: 1,
  only_self: 1,
  no_body: 1,
  bad_body: 1,
  too_big: 1,
  full: 1,
  locked: 1,
  gone: 1,
  orphaned: 1,
  closed: 1,
  no_git: 1,
  no_repo: 1,
  no_remote: 1,
  remote: 1,
  git: 1,
  unpushed: 1,
  no_access: 1,
  no_space: 1,
  io: 1,
  sighup: 129,
  sigint: 130,
  sigterm: 143,
} as const;

/** The stable codes of `ChatError`; SPEC 8.3 lists them. */
export type ErrorCode = keyof typeof EXIT;

/** Thrown for everything that could not be done: a stable `code`, a sentence, and the one command that mends it. */
export class ChatError extends Error {
  readonly code: ErrorCode;
  readonly remedy: string | undefined;
  readonly swap: readonly [string, string] | undefined; // the word that was wrong, and the one to type instead

  constructor(code: ErrorCode, message: string, remedy?: string, swap?: readonly [string, string]) {
    super(message);
    this.name = "ChatError";
    this.code = code;
    this.remedy = remedy;
    this.swap = swap;
  }
}

function isCode(error: unknown, ...codes: string[]): boolean {
  return error instanceof Error && codes.includes(codeOf(error));
}

function codeOf(error: unknown): string {
  return (error as NodeJS.ErrnoException).code ?? String(error);
}

const NO_ACCESS = "choose a root you may write (--root DIR inside the workspace), or allow this folder in the sandbox";
const IN_THE_WAY = "give another path, or move away what is there in the place of a folder, then run it again";
const DENIED = "ERR_ACCESS_DENIED"; // by Node itself, run with --permission, which forbids every fsync
const NO_HOME = "give --root DIR, or set HOME";
const SYSTEM: Readonly<Record<string, readonly [ErrorCode, string | undefined]>> = {
  uv_cwd: ["io", "the folder you are in was removed: cd to another, then run it again"],
  uv_os_homedir: ["io", NO_HOME],
  uv_os_get_passwd: ["io", NO_HOME],
  [DENIED]: ["no_access", "run it without Node's --permission (perhaps in NODE_OPTIONS): that allows no fsync"],
  EACCES: ["no_access", NO_ACCESS],
  EPERM: ["no_access", NO_ACCESS],
  EROFS: ["no_access", NO_ACCESS],
  ENOSPC: ["no_space", "free some space, then run it again"],
  EDQUOT: ["no_space", "free some space, then run it again"],
  ENOTDIR: ["io", IN_THE_WAY],
  EEXIST: ["io", IN_THE_WAY],
  EMFILE: ["io", "raise the limit of open files (ulimit -n), then run it again"],
  EFBIG: ["io", "raise the limit of a file's size (ulimit -f), then run it again"],
  EIO: ["io", "run it again"],
  EBUSY: ["io", "run it again"],
};

/** Says of a system error what could not be done; every other error passes as it is. */
function explained(error: unknown, what: string): unknown {
  if (!(error instanceof Error) || error instanceof ChatError) return error;
  const {
    code = "",
    syscall = code === DENIED ? "Node" : undefined,
    path: file,
    message,
  } = error as NodeJS.ErrnoException;
  if (syscall === undefined) return error;
  const reason = message.replace(/^\w+: /, "").split(", ")[0];
  const where = file === undefined ? "" : ` ${quoted(file)}`;
  const [known, remedy] = SYSTEM[syscall] ?? SYSTEM[code] ?? ["io", undefined];
  return new ChatError(known, `could not ${what}: ${reason} (${code}, ${syscall}${where})`, remedy);
}

function explaining<T>(what: string, body: () => T): T {
  try {
    return body();
  } catch (error) {
    throw explained(error, what);
  }
}

async function explainingLater<T>(what: string, body: () => Promise<T>): Promise<T> {
  try {
    return await body();
  } catch (error) {
    throw explained(error, what);
  }
}

/** Text that may hold anything, for one line of talk: quoted, and nothing in it acts on a terminal. */
function quoted(text: string): string {
  return `"${visible(text).replace(/\n/g, "\\n")}"`;
}

/** Shows control characters, and those that turn text around, instead of obeying them; tab and newline stay. */
function visible(text: string): string {
  return text
    .replace(/\r\n/g, "\n")
    .replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f]/g, (c) => `\\x${c.charCodeAt(0).toString(16).padStart(2, "0")}`)
    .replace(/[\u2028-\u202e\u2066-\u2069]/g, (c) => `\\u${c.charCodeAt(0).toString(16)}`);
}

/** A number for people: 1,234. Intl would cost a third of a start. */
function count(number: number): string {
  return String(number).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** Words on one line, without the empty ones. */
function listed(words: readonly string[], between: string): string {
  return words.filter((word) => word !== "").join(between);
}

/** A word as a shell would need it typed; with control characters in it, as bash would. */
function shellWord(text: string): string {
  if (/^[\w@%+=:,./~-]+$/.test(text)) return text;
  if (visible(text) === text) return `'${text.replace(/'/g, "'\\''")}'`;
  return `$'${visible(text.replace(/[\\']/g, "\\$&"))}'`;
}

// ---- names ---------------------------------------------------------------------------------------------------------

const NAME_MAX = 40; // so that the file name of a message stays under every limit
const CHANNEL_MAX = 64;
const DEVICE = /^(con|prn|aux|nul|com\d|lpt\d)(\.|$)/; // Windows opens a device for these, with any ending
const EVERYBODY = ["all", "*", "null", "~"]; // in a header; the last two are what YAML calls nothing

/** The form in which names are compared: no leading @, no case, no space around. */
function foldName(text: string): string {
  return text.trim().replace(/^@/, "").toLowerCase();
}

/**
 * The one form of an agent's name (SPEC 3.1): a leading `@` is dropped and case is folded, all else is refused.
 * Throws `bad_name` with the nearest legal form.
 */
export function parseName(what: string, text: string): Name {
  if (typeof text !== "string") throw new ChatError("bad_name", `${what} ${quoted(String(text))} is no text`); // untyped
  const name = foldName(text);
  if (isName(name)) return name;
  const reserved = DEVICE.test(name) || EVERYBODY.includes(name);
  const rule = reserved ? "that word is reserved" : `use a-z, 0-9 and single hyphens, at most ${NAME_MAX}`;
  const near = DEVICE.test(name) ? `${asciiSlug(name, NAME_MAX)}-1` : asciiSlug(name, NAME_MAX);
  const mend = isName(near) ? `use ${quoted(near)}` : undefined;
  const swap = mend === undefined || what === "AGENT_CHAT_NAME" ? undefined : ([text, near] as const);
  throw new ChatError("bad_name", `${what} ${quoted(text)} is not a name of an agent: ${rule}`, mend, swap);
}

function isName(text: string): text is Name {
  const legal = /^[a-z0-9]+(-[a-z0-9]+)*$/.test(text) && text.length <= NAME_MAX;
  return legal && !DEVICE.test(text) && !EVERYBODY.includes(text);
}

function asciiSlug(text: string, max: number): string {
  return dashed(text.normalize("NFKD").replace(/[\u0300-\u036f]/g, ""), max);
}

/** What the reference makes of a name, in the names of its messages, cursors and claims. */
function referenceSlug(name: string): string {
  return dashed(name, NAME_MAX) || "msg";
}

function dashed(text: string, max: number): string {
  return text
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-+/, "")
    .slice(0, max)
    .replace(/-+$/, "");
}

/** Whether a word is one path segment that every system can keep (SPEC 3.3). */
function isSafeSegment(text: string): boolean {
  return (
    !/[/\\:*?"<>|\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]|^[._ -]|[. ]$|^$/.test(text) &&
    !DEVICE.test(text.toLowerCase()) &&
    Buffer.byteLength(text) <= 200
  );
}

function isNewChannel(name: string): boolean {
  return /^[a-z0-9]+([._-][a-z0-9]+)*$/.test(name) && name.length <= CHANNEL_MAX && isSafeSegment(name);
}

function parseNewChannel(text: string): string {
  const name = foldName(text);
  if (isNewChannel(name)) return name;
  const near = asciiSlug(name, CHANNEL_MAX);
  const legal = `use a-z, 0-9 and single . _ or - inside, at most ${CHANNEL_MAX}`;
  const rule = DEVICE.test(name) ? "that word is reserved" : legal;
  const swap = near === "" || !isSafeSegment(near) ? undefined : ([text, near] as const);
  const mend = swap && `agent-chat init ${near}`;
  throw new ChatError("bad_name", `${quoted(text)} is not a name for a channel: ${rule}`, mend, swap);
}

/** The known word that is nearest to a mistyped one, if one is near: another number, or another letter alone, is not. */
function nearest(word: string, known: Iterable<string>): string | undefined {
  const digits = (text: string): string => text.replace(/\D/g, "");
  const alike = [...known].filter((k) => digits(k) === digits(word));
  const [best] = alike.map((k) => [distance(word, foldName(k)), k] as const).sort((a, b) => a[0] - b[0]);
  const most = Math.min(Math.max(1, Math.floor(word.length / 3)), word.length - 1);
  return best !== undefined && best[0] <= most ? best[1] : undefined;
}

/** Edit distance; two letters that changed places count once. */
function distance(a: string, b: string): number {
  let [before, row] = [[] as number[], Array.from({ length: b.length + 1 }, (_, j) => j)];
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const swap = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1] ? before[j - 2]! + 1 : Infinity;
      const change = row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1);
      next.push(Math.min(row[j]! + 1, next[j - 1]! + 1, change, swap));
    }
    [before, row] = [row, next];
  }
  return row[b.length]!;
}

// ---- message text --------------------------------------------------------------------------------------------------

const BODY_MAX = 1024 * 1024; // bytes
const LINE_MAX = 1000; // characters of a title or status
const TITLE_FROM_BODY = 72; // characters of a title taken from the body

/** Every character that some reader takes for a line break; a header value holds none of them (SPEC 4.4). */
const LINE_BREAKS = /[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+/g;

function oneLine(text: string): string {
  return text.replace(LINE_BREAKS, " ").toWellFormed();
}

/** What may be longer, at a length that a header can hold; it is not cut inside a character of two units. */
function shortLine(text: string): string {
  return oneLine(text)
    .slice(0, LINE_MAX)
    .replace(/[\ud800-\udbff]$/, "");
}

/** A header value as a YAML scalar: quoted only where a YAML reader would take it for something else (SPEC 4.5). */
function formatValue(text: string): string {
  if (!needsQuotes(text)) return text;
  return JSON.stringify(text).replace(
    /[\x7f-\x9f\ufeff\ufffe\uffff]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

const YAML_WORD = /^(~|null|true|false|yes|no|on|off|y|n|=|<<)$/;
const YAML_NUMBER =
  /^[-+]?(0b[01_]+|0o?[0-7_]+|0x[\da-f_]+|\d[\d_]*(:[0-5]?\d)*(\.[\d_]*)?(e[-+]?\d+)?|\.\d[\d_]*(e[-+]?\d+)?|\.inf|\.nan)$/;
const YAML_DATE = /^\d{4}-\d\d?-\d\d?([t\s].*)?$/;

function needsQuotes(text: string): boolean {
  if (text === "" || text !== text.trim()) return true;
  if (/^[-?:](\s|$)|^[,[\]{}#&*!|>'"%@`]|^(---|\.\.\.)|:(\s|$)|\s#/.test(text)) return true;
  if (/[\x00-\x1f\x7f-\x9f\ufeff\ufffe\uffff]/.test(text)) return true;
  const word = text.toLowerCase();
  return YAML_WORD.test(word) || YAML_NUMBER.test(word) || YAML_DATE.test(word);
}

/** Only what `formatValue` would have quoted is unquoted: the reference writes `"q"` and means the quotes. */
function parseValue(text: string): string {
  if (!/^".*"$/.test(text)) return text;
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "string" && formatValue(value) === text ? value : text;
  } catch {
    return text; // not a quoted scalar of ours: the text is the value
  }
}

function formatMessage(message: Message): string {
  const { seq, from, to, reply_to, channel, ts, status, title, priority, key, task, body } = message;
  const head = ["---", `seq: ${seq}`, `from: ${from}`, `to: ${to.join(", ") || "all"}`];
  if (reply_to !== null) head.push(`reply_to: ${reply_to}`);
  head.push(
    `channel: ${formatValue(channel)}`,
    `ts: ${ts}`,
    `status: ${formatValue(status)}`,
    `title: ${formatValue(title)}`,
  );
  if (priority !== undefined) head.push(`priority: ${priority}`);
  if (key !== undefined) head.push(`key: ${formatValue(key)}`);
  if (task !== undefined) head.push(`task: ${task}`);
  head.push("---");
  return `${head.join("\n")}\n${body}${body.endsWith("\n") ? "" : "\n"}`;
}

/** The header's fields and the body, or undefined where the text does not start with a closed header (SPEC 4.2). */
function splitMessage(text: string): { fields: Map<string, string>; body: string } | undefined {
  const fields = new Map<string, string>();
  let last = "";
  for (let at = text.startsWith("\ufeff") ? 1 : 0, count = 0; at < text.length; count++) {
    const newline = text.indexOf("\n", at);
    const end = newline < 0 ? text.length : newline;
    const line = text.slice(at, end).trim();
    at = end + 1;
    if (line === "---" && count > 0) return { fields, body: text.slice(at) };
    if (count === 0 && line !== "---") return undefined;
    last = addField(fields, line, last);
  }
  return undefined;
}

/** Adds `key: value`, or an item of a list below its key as people write it; returns the key. */
function addField(fields: Map<string, string>, line: string, last: string): string {
  const item = /^- +(.*)$/.exec(line)?.[1];
  if (item !== undefined && fields.has(last)) fields.set(last, oneLine(`${fields.get(last)},${item}`));
  const colon = item === undefined ? line.indexOf(":") : -1;
  const key = line.slice(0, Math.max(0, colon)).trim();
  if (colon <= 0 || fields.has(key)) return item === undefined ? "" : last;
  fields.set(key, oneLine(parseValue(line.slice(colon + 1).trim())));
  return key;
}

/** A name or number as people write it: without quotes, or a comment behind it. */
function bare(text: string): string {
  return text
    .replace(/\s#.*$/, "")
    .trim()
    .replace(/^(["'])(.*)\1$/, "$2");
}

function parseRecipients(text: string): string[] {
  const names = parseList(text);
  return names.some(isEverybody) ? [] : names;
}

/** The words of a header's list, each once. */
function parseList(text: string): string[] {
  const list = bare(text)
    .replace(/^\[(.*)\]$/, "$1")
    .split(",")
    .map(bare);
  return [...new Set(list.filter((word) => word !== ""))];
}

function isEverybody(name: string): boolean {
  return EVERYBODY.includes(foldName(name));
}

function isPriority(word: string): word is Priority {
  return (PRIORITIES as readonly string[]).includes(word);
}

function parsePriority(text: string): Priority {
  const word = text.trim().toLowerCase();
  if (isPriority(word)) return word;
  const near = nearest(word, PRIORITIES);
  const swap = near === undefined ? undefined : ([text, near] as const);
  throw new ChatError("bad_value", `--priority ${quoted(text)} is none of ${PRIORITIES.join(", ")}`, undefined, swap);
}

/** A message from its text, or why the text is not that message. */
function parseMessage(channel: Channel, { seq, file }: Entry, text: string): Message | string {
  const split = splitMessage(text);
  if (split === undefined) return "has no closed header (half-written?)";
  const get = (key: string): string => split.fields.get(key) ?? "";
  const number = bare(get("seq"));
  if (!/^\d{1,16}$/.test(number)) return "has a header without a seq";
  if (Number(number) !== seq) return `has a header that says seq ${Number(number)}`;
  const reply = /^#?(\d{1,15})$/.exec(bare(get("reply_to")));
  const [priority, key] = [bare(get("priority")).toLowerCase(), split.fields.get("key")];
  const task = bare(get("task"));
  const was = (get("was").match(/\d{1,15}/g) ?? []).map(Number);
  return {
    channel: channel.name,
    seq,
    file,
    path: path.join(channel.path, file),
    from: bare(get("from")),
    to: parseRecipients(get("to")),
    reply_to: reply === null ? null : Number(reply[1]),
    ts: get("ts"),
    status: get("status"),
    title: get("title"),
    ...(isPriority(priority) && { priority }),
    ...(key !== undefined && { key }),
    ...(task !== "" && { task }),
    ...(was.length > 0 && { was }),
    body: split.body,
  };
}

/** Local time with its offset, to the second: 2026-11-29T14:03:22+01:00. */
function timestamp(now = new Date()): string {
  const two = (n: number): string => String(Math.floor(Math.abs(n))).padStart(2, "0");
  const offset = -now.getTimezoneOffset();
  if (Math.abs(offset) >= 24 * 60) return now.toISOString().replace(/\.\d+Z$/, "+00:00"); // TZ=UTC+25: unreadable
  const date = `${now.getFullYear()}-${two(now.getMonth() + 1)}-${two(now.getDate())}`;
  const time = `${two(now.getHours())}:${two(now.getMinutes())}:${two(now.getSeconds())}`;
  return `${date}T${time}${offset < 0 ? "-" : "+"}${two(offset / 60)}:${two(offset % 60)}`;
}

/** To the millisecond: of those who wait for one thing, who began first has it first. */
function timestampMs(now: Date): string {
  return timestamp(now).replace(/(?=.\d\d:\d\d$)/, `.${String(now.getMilliseconds()).padStart(3, "0")}`);
}

/** A body as it may be posted, or `no_body`, `bad_body`, `too_big` (SPEC 4.6). */
function checkBody(text: string): string {
  if (typeof text !== "string")
    throw new ChatError("no_body", `the body is ${typeof text}, no text: nothing was posted`);
  const body = text.replace(/^\ufeff/, "");
  const size = Buffer.byteLength(body);
  if (/^[\s\u200b-\u200f\u2060\ufeff]*$/.test(body))
    throw new ChatError("no_body", "the body is blank: nothing was posted", "give it a text");
  if (body.includes("\0"))
    throw new ChatError(
      "bad_body",
      "the body holds a NUL byte: nothing was posted",
      "send text, or a path to the file",
    );
  if (!body.isWellFormed()) throw new ChatError("bad_body", "the body is not valid Unicode: nothing was posted");
  if (size <= BODY_MAX) return body;
  const message = `the body has ${size} bytes, more than ${BODY_MAX}: nothing was posted`;
  throw new ChatError("too_big", message, "post a path to the file instead");
}

/** Text from the bytes of a file or a pipe: UTF-8, or UTF-16 that says so; throws `bad_body` for anything else. */
function decodeBody(bytes: Uint8Array): string {
  const mark = `${bytes[0]},${bytes[1]}`;
  if (mark === "255,254" || mark === "254,255") {
    try {
      return new TextDecoder(mark === "255,254" ? "utf-16le" : "utf-16be", { fatal: true }).decode(bytes);
    } catch {
      throw new ChatError("bad_body", "the body is not valid UTF-16: nothing was posted");
    }
  }
  if (isUtf8(bytes)) return Buffer.from(bytes).toString("utf8");
  const message = "the body is not valid UTF-8: nothing was posted";
  throw new ChatError("bad_body", message, "convert it first: iconv -f latin1 -t utf-8");
}

function titleFrom(body: string): string {
  const line = body.split(/[\r\n]/).find((text) => text.trim() !== "") ?? "";
  const text = oneLine(line)
    .replace(/^\s*#+\s+/, "")
    .trim();
  const letters = [...text];
  return letters.length <= TITLE_FROM_BODY
    ? text
    : `${letters
        .slice(0, TITLE_FROM_BODY - 1)
        .join("")
        .trimEnd()}\u2026`;
}

// ---- files ---------------------------------------------------------------------------------------------------------

const TRIES = 5; // of a step that Windows refuses for a moment while another process has the file open

/** Milliseconds on a clock that nobody sets; `performance` would cost a millisecond of every start. */
function monotonic(): number {
  const [seconds, nanos] = process.hrtime();
  return seconds * 1e3 + nanos / 1e6;
}

function nonce(): string {
  return Math.random().toString(36).slice(2, 12).padEnd(10, "0");
}

/** Sleeps without letting anything else of this process run; for moments only. */
function pause(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

/** A folder and those above it; Node's own recursive mkdir never returns below /proc. */
function makeFolder(folder: string): void {
  try {
    makeOneFolder(folder);
  } catch (error) {
    if (!isCode(error, "ENOENT") || folder === path.dirname(folder)) throw error;
    makeFolder(path.dirname(folder));
    makeOneFolder(folder);
  }
}

/** Whether it was made; false where it was there. */
function makeOneFolder(folder: string): boolean {
  try {
    fs.mkdirSync(folder);
    return true;
  } catch (error) {
    if (!isCode(error, "EEXIST") || !fs.statSync(folder).isDirectory()) throw error; // else somebody else was quicker
    return false;
  }
}

function isFolder(folder: string): boolean {
  try {
    return fs.statSync(folder).isDirectory();
  } catch {
    return false; // not there, or not for us to see
  }
}

function isThere(file: string): boolean {
  try {
    return fs.lstatSync(file, { throwIfNoEntry: false }) !== undefined;
  } catch {
    return false; // not for us to see
  }
}

/** Throws `bad_value` for a blank path, which would be the folder one happens to be in. */
function absolute(folder: string): string {
  if (folder.trim() === "") throw new ChatError("bad_value", `root ${quoted(folder)} names no folder`);
  return path.resolve(expanded(folder));
}

/** `~` is one's own home; `~bob` is for a shell to know. */
function expanded(folder: string): string {
  return folder.replace(/^~(?=$|[/\\])/, home); // asked for only where it is needed: not every user has one
}

/** An empty or relative HOME would be another folder wherever we are. */
function home(): string {
  const given = os.homedir();
  return path.isAbsolute(given) ? given : os.userInfo().homedir;
}

/** Repeats a rename, link or removal that a virus scanner or indexer got in the way of; the last failure is thrown. */
function persistently<T>(step: () => T): T {
  for (let left = TRIES; ; left--) {
    try {
      return step();
    } catch (error) {
      if (left <= 1 || !isCode(error, "EBUSY", "EPERM", "EACCES") || process.platform !== "win32") throw error;
      pause(10);
    }
  }
}

function writeAll(fd: number, text: string | Uint8Array): void {
  const bytes = Buffer.from(text);
  for (let done = 0; done < bytes.length;) done += fs.writeSync(fd, bytes, done, bytes.length - done, done);
}

/** From where a file stands, or as a pipe says it; up to `size` bytes. */
function readAll(fd: number, size: number): Buffer {
  const bytes = Buffer.allocUnsafe(size);
  let done = 0;
  for (let got = -1; done < size && got !== 0; done += got) got = fs.readSync(fd, bytes, done, size - done, null);
  return bytes.subarray(0, done);
}

/** The bytes of a regular file, or its first; never follows a link, never waits on a pipe. Throws the system's error. */
function readRegular(
  file: string,
  most = Infinity,
): { bytes: Buffer; stat: fs.Stats } | "folder" | "link" | "special file" {
  const { O_RDONLY, O_NOFOLLOW = 0, O_NONBLOCK = 0 } = fs.constants;
  let fd: number;
  try {
    if (process.platform === "win32" && fs.lstatSync(file).isSymbolicLink()) return "link"; // no O_NOFOLLOW there
    fd = fs.openSync(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  } catch (error) {
    if (isCode(error, "ELOOP", "EMLINK")) return "link";
    if (isCode(error, "ENXIO", "EOPNOTSUPP")) return "special file"; // a socket
    if (isCode(error, "EISDIR")) return "folder";
    throw error;
  }
  try {
    const stat = fs.fstatSync(fd);
    if (!stat.isFile()) return stat.isDirectory() ? "folder" : "special file";
    return { bytes: readAll(fd, Math.min(stat.size, most)), stat };
  } finally {
    fs.closeSync(fd);
  }
}

/** The text of a file that nothing depends on; empty where there is none. */
function readIfPossible(file: string, most?: number): string {
  return readOrUndefined(file, most) ?? "";
}

/** The same, told apart from an empty file; what is no file has no text. */
function readOrUndefined(file: string, most?: number): string | undefined {
  try {
    const found = readRegular(file, most);
    return typeof found === "string" ? "" : found.bytes.toString();
  } catch {
    return undefined;
  }
}

/** Puts a finished file under a name that must not exist; throws EEXIST. `from` is the arbiter: gone means stolen. */
function moveIntoPlace(from: string, to: string): void {
  try {
    fs.linkSync(from, to);
  } catch (error) {
    if (isSameFile(from, to)) return; // done: NFS lost the answer, and asked again
    if (!isCode(error, "EPERM", "ENOSYS", "ENOTSUP", "EOPNOTSUPP", "EMLINK", "EXDEV", "EINVAL")) throw error;
    moveWithoutLinks(from, to);
  }
}

/** Whether two names are those of one file. */
function isSameFile(one: string, other: string): boolean {
  const [a, b] = [one, other].map((file) => fs.lstatSync(file, { bigint: true, throwIfNoEntry: false }));
  return a !== undefined && b !== undefined && a.ino === b.ino && a.dev === b.dev;
}

/** Where there are no hard links: an empty file reserves the name, and only who made it may put the whole over it. */
function moveWithoutLinks(from: string, to: string): void {
  const fd = fs.openSync(to, "wx");
  try {
    fs.closeSync(fd);
    persistently(() => fs.renameSync(from, to));
  } catch (error) {
    fs.unlinkSync(to);
    throw error;
  }
}

/**
 * Makes a file, or with all `bits` a folder, as open to others as another is, whatever our umask. A link stands for what
 * it leads to, and the bit that hands a folder's group on stays; some disks know no modes.
 */
function copyMode(from: string, to: string, bits = 0o666): void {
  try {
    const [mode, own] = [fs.statSync(from).mode, fs.lstatSync(to).mode & 0o7777];
    if (((mode ^ own) & bits) !== 0) fs.chmodSync(to, (own & ~bits) | (mode & bits));
  } catch (error) {
    const unknown = isCode(error, "ENOENT", "ENOTDIR", "ELOOP", "EACCES"); // of a link, what it leads to
    if (!unknown && !isCode(error, "EPERM", "ENOSYS", "ENOTSUP", "EOPNOTSUPP")) throw error;
  }
}

/** A rename over a file, as open to others as that was. */
function replaceFile(from: string, to: string): void {
  copyMode(to, from);
  fs.renameSync(from, to);
}

/** A rename over a file that is everybody's: as open to others as its folder. */
function replaceShared(from: string, to: string): void {
  copyMode(path.dirname(to), from);
  fs.renameSync(from, to);
}

/** Asks the disk to keep many files; one after the other that would take several times as long. */
async function flushFiles(files: readonly string[]): Promise<void> {
  const left = [...files];
  const some = async (): Promise<void> => {
    for (let file = left.pop(); file !== undefined; file = left.pop()) await flushFile(file);
  };
  await Promise.all(Array.from({ length: 16 }, some));
}

async function flushFile(file: string): Promise<void> {
  const handle = await fs.promises.open(file, "r+").catch((error: unknown) => {
    if (!isCode(error, "ENOENT", "EACCES", "EPERM")) throw error; // it has another number by now, or nobody may write it
  });
  await handle?.sync().finally(() => handle.close());
}

/** Asks the disk to keep a folder's entries; false where it would not say so. Windows has no such call. */
function flushFolder(folder: string): boolean {
  if (process.platform === "win32") return true;
  try {
    const fd = fs.openSync(folder, "r");
    try {
      fs.fsyncSync(fd);
    } finally {
      fs.closeSync(fd);
    }
    return true;
  } catch (error) {
    return isCode(error, "EINVAL", "ENOTSUP", "EOPNOTSUPP"); // a file system that keeps them by itself
  }
}

function removeIfPresent(remove: (file: string) => void, file: string): void {
  try {
    persistently(() => remove(file));
  } catch (error) {
    if (!isCode(error, "ENOENT", "ENOTEMPTY", "EEXIST", "ENOTDIR")) throw error;
  }
}

const TIMER_MAX_MS = 2 ** 31 - 1; // a longer timer fires at once

function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  if (signal !== undefined) setMaxListeners(0, signal); // many may share one: no leak, of which Node would warn
  return new Promise((resolve, reject) => {
    const stop = (): void => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(
      () => {
        signal?.removeEventListener("abort", stop);
        resolve();
      },
      Math.min(ms, TIMER_MAX_MS),
    );
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}

// ---- lock ----------------------------------------------------------------------------------------------------------

const STALE_MS = 5_000; // a writer holds the lock for milliseconds; one that stands this long has stopped
const PATIENCE_MS = 20_000; // longer than stale, or one crash would fail everybody else
const RETRY_MS = 24; // at most, and at least 1
const HOST =
  os
    .hostname()
    .replace(/[^A-Za-z0-9-]+/g, "-")
    .slice(0, 60) || "host";

/** The file in the lock folder that shows whose lock it is, and holds what is about to be published. */
interface Draft {
  readonly lock: string;
  readonly path: string;
  readonly fd: number;
}

/** A channel's folder as it was while nobody held its lock, and when that was seen. */
interface Glance {
  readonly at: number;
  readonly modified: bigint; // nanoseconds
}

/** How long a lock has stood unchanged, on this process's monotonic clock. */
interface Sight {
  look: string;
  since: number;
}

/**
 * Runs `body` while holding the lock (SPEC 5.1 to 5.5). What it decides must be carried out from the draft, or by a
 * rename followed by `assertHeld`: once the lock was stolen these fail, and `body` is run again under a new lock; as after
 * every other error then, since a refusal may come from what the thief did.
 * Throws `locked` after 20 s, naming the path to remove.
 */
async function withLock<T>(
  lock: string,
  signal: AbortSignal | undefined,
  body: (draft: Draft, seen: Glance | undefined) => T | Promise<T>,
  glance?: () => Glance | undefined, // taken just before each try
  patience = PATIENCE_MS,
): Promise<T> {
  const deadline = monotonic() + patience;
  const sight: Sight = { look: "", since: 0 };
  for (;;) {
    signal?.throwIfAborted();
    const seen = glance?.();
    const draft = takeLock(lock);
    if (draft === undefined) {
      if (isStale(lock, sight)) steal(lock);
    } else {
      try {
        return await body(draft, seen);
      } catch (error) {
        if (!isStolen(error, lock) && isHeld(draft)) throw error; // what failed under a stolen lock is decided again
      } finally {
        letGo(draft);
      }
    }
    if (monotonic() >= deadline) {
      const held = `the lock ${quoted(lock)} was not free for ${patience / 1000} s`;
      throw new ChatError("locked", held, `rm -r ${shellWord(lock)}`);
    }
    await sleep(1 + Math.random() * RETRY_MS, signal);
  }
}

/** Makes the lock folder and a draft in it; undefined where somebody else has it. */
function takeLock(lock: string): Draft | undefined {
  try {
    fs.mkdirSync(lock);
  } catch (error) {
    if (isCode(error, "EEXIST") || (process.platform === "win32" && isCode(error, "EPERM", "EBUSY"))) return undefined;
    if (isCode(error, "ENOENT"))
      throw new ChatError("gone", `the folder ${path.dirname(lock)} is gone`, "agent-chat channels");
    throw error;
  }
  const draft = openDraft(lock);
  if (draft === undefined) return undefined;
  try {
    if (draftsIn(lock).every((name) => name === path.basename(draft.path))) return draft;
  } catch (error) {
    letGo(draft);
    throw error;
  }
  // A former holder's late rmdir took our empty folder away, another writer made it anew, and we met in there.
  letGo(draft);
  return undefined;
}

function openDraft(lock: string): Draft | undefined {
  const file = path.join(lock, `${HOST}.${process.pid}.${nonce()}.draft`);
  try {
    return { lock, path: file, fd: fs.openSync(file, "wx") };
  } catch (error) {
    if (isCode(error, "ENOENT")) return undefined; // the folder is gone: a former holder's late rmdir
    removeIfPresent(fs.rmdirSync, lock);
    throw error;
  }
}

function draftsIn(lock: string): string[] {
  try {
    return fs.readdirSync(lock).filter((name) => name.endsWith(".draft"));
  } catch (error) {
    if (isCode(error, "ENOENT")) return [];
    throw error;
  }
}

/** Lets go of the lock, if it is still ours. Never fails: what is done is done, and what stays is stolen soon. */
function letGo(draft: Draft): void {
  closeAnyway(draft.fd);
  removeAtLast(fs.unlinkSync, draft.path);
  removeAtLast(fs.rmdirSync, draft.lock);
}

function closeAnyway(fd: number): void {
  try {
    fs.closeSync(fd);
  } catch {
    // closed all the same; a second try could close somebody else's
  }
}

function removeAtLast(remove: (file: string) => void, file: string): void {
  for (let left = TRIES; left > 0; left--) {
    try {
      return remove(file);
    } catch (error) {
      if (isCode(error, "ENOENT", "ENOTEMPTY", "EEXIST")) return; // stolen, or another's by now
      if (process.platform === "win32") pause(10); // as in `persistently`
    }
  }
}

function isHeld(draft: Draft): boolean {
  return fs.existsSync(draft.path);
}

/** After a rename decided under the lock: was the lock ours all the time? If not, the decision is made again. */
function assertHeld(draft: Draft): void {
  if (!isHeld(draft)) startOver(draft);
}

/** Puts a text in its place as the holder of a lock: it is made in the lock's folder, so that a thief takes it away. */
function placeHeld(
  draft: Draft,
  text: string | Uint8Array,
  to: string,
  place: (from: string, to: string) => void,
  flush = true,
): void {
  const made = draft.path.replace(/draft$/, "made");
  try {
    const fd = fs.openSync(made, "wx");
    try {
      writeAll(fd, text);
      if (flush) fs.fsyncSync(fd);
    } finally {
      fs.closeSync(fd);
    }
    assertHeld(draft);
    persistently(() => place(made, to));
  } finally {
    removeAtLast(fs.unlinkSync, made);
  }
}

/** Who holds another lock inside this one leaves that first: only the holder of this one can decide again. */
function startOver(held?: Draft): never {
  throw Object.assign(new Error("the lock was stolen"), { code: "ESTOLEN", lock: held?.lock });
}

function isStolen(error: unknown, lock: string): boolean {
  if (!isCode(error, "ESTOLEN")) return false;
  const { lock: stolen = lock } = error as { lock?: string };
  return stolen === lock;
}

/** Stale: its writers are dead on this host, or it has stood unchanged for 5 s while we watched (SPEC 5.4). */
function isStale(lock: string, sight: Sight): boolean {
  const stat = fs.lstatSync(lock, { bigint: true, throwIfNoEntry: false });
  if (stat === undefined) return false;
  const drafts = stat.isDirectory() ? draftsSeen(lock) : [];
  if (drafts.length > 0 && drafts.every(isDead)) return true;
  const look = `${stat.ino} ${stat.mtimeNs} ${drafts.join(" ")}`;
  if (look !== sight.look) Object.assign(sight, { look, since: monotonic() });
  return monotonic() - sight.since >= STALE_MS;
}

/** The drafts in somebody else's lock: another user's may not be for us to look into, and is watched from outside. */
function draftsSeen(lock: string): string[] {
  try {
    return draftsIn(lock);
  } catch (error) {
    if (isCode(error, "EACCES", "EPERM")) return [];
    throw error;
  }
}

function isDead(draft: string): boolean {
  const [host, pid] = draft.split(".");
  return host === HOST && /^\d+$/.test(pid ?? "") && !isAlive(Number(pid));
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return !isCode(error, "ESRCH");
  }
}

/** Takes a lock away, with the drafts in it: one rename, so that of two thieves one finds nothing. */
function steal(lock: string): void {
  try {
    persistently(() => moveAside(lock));
  } catch (error) {
    // What is busy is waited for; the deadline's error names it. Windows refuses while the draft in it is open.
    const busy = isCode(error, "ENOENT", "EBUSY", "ENOTEMPTY");
    if (busy || (process.platform === "win32" && isCode(error, "EPERM", "EACCES"))) return;
    throw error;
  }
  const folder = path.dirname(lock);
  const graves = namesIn(folder).filter((name) => name.startsWith(`${path.basename(lock)}.`));
  for (const name of graves) removeGrave(path.join(folder, name));
}

function moveAside(lock: string): void {
  try {
    fs.renameSync(lock, `${lock}.${nonce()}`);
  } catch (error) {
    if (!isCode(error, "EXDEV")) throw error;
    // overlayfs renames no folder of a lower layer. As good: a writer whose draft has gone starts over
    fs.rmSync(lock, { recursive: true, force: true });
  }
}

/** Never fails: nobody waits for what was moved aside, and the next thief tries again. */
function removeGrave(grave: string): void {
  try {
    fs.rmSync(grave, { recursive: true, force: true });
  } catch {
    // another user's, or open on Windows
  }
}

// ---- channels ------------------------------------------------------------------------------------------------------

const IGNORED = "# agent-chat: this machine's, never committed\n_seq.lock*\n_sync.lock*\n*/.cursors/*\n";
const SHARED_CURSORS = "!*/.cursors/*.txt\n!*/.cursors/*.status\n"; // so that a reader may go on on another machine
const ATTRIBUTES = "# agent-chat: a message is bytes, not text to convert\n*.md -text\n";

const metaPath = (folder: string): string => path.join(folder, "_meta.json");
const numberLock = (channel: Channel): string => path.join(channel.path, "_seq.lock");

const channelIn = (root: string, name: string): Channel => ({ root, name, path: path.join(root, name) });

function isChannel(folder: string): boolean {
  try {
    return fs.lstatSync(metaPath(folder)).isFile();
  } catch (error) {
    if (isCode(error, "ENOENT", "ENOTDIR", "ELOOP")) return false;
    throw error;
  }
}

/**
 * All channels of a root, by name; none where the root does not exist. One that cannot be looked into is told to
 * `onNote` and left out. Throws `no_access` or `io` for the root itself.
 */
export function listChannels(root: string, onNote?: Note): Channel[] {
  return explaining(`list the channels of ${quoted(root)}`, () => {
    const channels: Channel[] = [];
    for (const name of namesIn(root).filter(isSafeSegment).sort()) {
      const channel = channelIn(root, name);
      try {
        if (isChannel(channel.path)) channels.push(channel);
      } catch (error) {
        onNote?.(`${quoted(channel.path)} could not be looked into (${codeOf(error)})`);
      }
    }
    return channels;
  });
}

function namesIn(folder: string): string[] {
  try {
    return fs.readdirSync(folder);
  } catch (error) {
    if (isCode(error, "ENOENT")) return [];
    throw error;
  }
}

/**
 * Finds a channel by its name, which may be any safe path segment, in the given or in folded case (SPEC 3.3).
 * `root` is made absolute. Throws `bad_name`, `no_channel` with the channels there are, `no_access` or `io`.
 */
export function openChannel(root: string, name: string): Channel {
  const base = absolute(root);
  if (!isSafeSegment(name))
    throw new ChatError("bad_name", `${quoted(name)} is not a name of a channel`, "agent-chat channels");
  const spelled = [name, foldName(name)];
  const found = explaining(`open channel ${quoted(name)}`, () => spelled.find((n) => isChannel(path.join(base, n))));
  if (found !== undefined) return channelIn(base, asOnDisk(base, found));
  const odd = spelled.map((n) => metaPath(path.join(base, n))).find(isThere); // init would not make the channel either
  if (odd !== undefined)
    throw new ChatError("no_channel", `no channel ${quoted(name)}: ${quoted(odd)} is no regular file`);
  const known = listChannels(base).map((channel) => channel.name);
  const near = nearest(foldName(name), known);
  const there = known.length === 0 ? "there are none" : `there are: ${known.join(", ")}`;
  const other = isNewChannel(foldName(name)) ? `init ${shellWord(name)}` : "channels"; // init would not take every name
  const mend = near === undefined ? `agent-chat ${other} --root ${shellWord(base)}` : `use ${quoted(near)}`;
  const swap = near === undefined ? undefined : ([name, near] as const);
  throw new ChatError("no_channel", `no channel ${quoted(name)} in ${base}; ${there}`, mend, swap);
}

/** A folder's name as it is spelled there: some disks find it under other cases and forms of its letters too. */
function asOnDisk(base: string, name: string): string {
  const plain = (text: string): string => text.normalize("NFC").toLowerCase();
  try {
    const names = fs.readdirSync(base);
    return names.includes(name) ? name : (names.find((other) => plain(other) === plain(name)) ?? name);
  } catch {
    return name; // not for us to list
  }
}

const NO_META: Meta = { members: [], topic: "", created: "", problem: undefined };

/**
 * What a channel says of itself; a `_meta.json` that is damaged or cannot be read makes an open channel, with `problem`
 * saying why. Throws `gone`.
 */
export function readMeta(channel: Channel): Meta {
  try {
    return metaIn(metaFile(channel));
  } catch (error) {
    if (error instanceof ChatError) throw error;
    return { ...NO_META, problem: `could not be read (${codeOf(error)})` };
  }
}

/** The file that says it, as found. Throws `gone`, or the system's error. */
function metaFile(channel: Channel): ReturnType<typeof readRegular> {
  try {
    return readRegular(metaPath(channel.path));
  } catch (error) {
    if (!isCode(error, "ENOENT")) throw error;
    throw new ChatError("gone", `the channel ${channel.path} is gone`, "agent-chat channels");
  }
}

function metaIn(found: ReturnType<typeof readRegular>): Meta {
  return typeof found === "string" ? { ...NO_META, problem: `is a ${found}` } : parseMeta(found.bytes.toString());
}

function parseMeta(text: string): Meta {
  try {
    const { members, topic, created } = parseObject(text);
    const names = stringsIn(members).filter((name) => name.trim() !== "");
    const line = (value: unknown): string => (typeof value === "string" ? oneLine(value) : "");
    return {
      members: [...new Set(names.map(oneLine))],
      topic: line(topic),
      created: line(created),
      problem: isListOfStrings(members ?? []) ? undefined : NO_NAMES,
    };
  } catch {
    return { ...NO_META, problem: NO_OBJECT };
  }
}

const NO_OBJECT = "is not a JSON object";
const NO_NAMES = "has members that are no names";

/** Why a text is no `_meta.json` that anybody could do anything with; odd members do not make it one. */
function damageOf(text: string): string | undefined {
  return objectIn(text) === undefined ? NO_OBJECT : undefined;
}

function stringsIn(list: unknown): string[] {
  return Array.isArray(list) ? list.filter((item) => typeof item === "string") : [];
}

function isListOfStrings(list: unknown): list is string[] {
  return Array.isArray(list) && stringsIn(list).length === list.length;
}

/** Whoever calls without types may give one name for a list; throws `bad_value`. */
function assertList(what: string, list: readonly string[]): void {
  if (isListOfStrings(list)) return;
  throw new ChatError("bad_value", `${what} ${quoted(String(list))}: this has to be a list of names`);
}

/** Throws where a text is not one JSON object. */
function parseObject(text: string): Record<string, unknown> {
  const value: unknown = JSON.parse(text.replace(/^\ufeff/, ""));
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error("no object");
  return value as Record<string, unknown>;
}

function objectIn(text: string): Record<string, unknown> | undefined {
  try {
    return parseObject(text);
  } catch {
    return undefined;
  }
}

/** A line of talk for a `_meta.json` that could not be understood. */
function metaNotes(channel: Channel, meta: Meta): string[] {
  if (meta.problem === undefined) return [];
  const members = meta.members.join(", ");
  const taken = members === "" ? "the channel is taken as open" : `of its members only ${members} can be understood`;
  return [`${quoted(metaPath(channel.path))} ${meta.problem}: ${taken}`];
}

/** How to make a channel. */
export interface NewChannel extends Blocking {
  readonly members?: readonly string[] | undefined; // none: open to all
  readonly topic?: string | undefined;
  readonly sharedCursors?: boolean | undefined; // git is to carry them too, where the root has no .gitignore yet
}

/**
 * Makes a channel, and its root where there is none. Names are folded to their legal form.
 * Throws `bad_name`, `too_big`, `channel_exists`, `locked`, `no_access`, `no_space` or `io`.
 */
export async function createChannel(
  root: string,
  name: string,
  { members = [], topic = "", sharedCursors = false, signal }: NewChannel = {},
): Promise<Channel> {
  const base = absolute(root);
  const legal = parseNewChannel(name);
  const channel = channelIn(base, legal);
  assertList("members", members);
  const names = [...new Set(members.map((member) => parseName("member", member)))];
  const text = JSON.stringify(
    { channel: legal, members: names, topic: headerLine("topic", topic), created: timestamp() },
    null,
    2,
  );
  signal?.throwIfAborted();
  await explainingLater(`create channel ${quoted(legal)}`, async () => {
    const there = isChannel(channel.path) ? channel : channelLike(base, legal);
    if (there !== undefined) throw existsAlready(there); // two of one name in other case would be two mailboxes
    makeFolder(path.join(channel.path, ".cursors"));
    tellGit(base, sharedCursors);
    await withNumbers(channel, signal, (draft) => placeMeta(channel, draft, text));
    flushFolder(channel.path);
  });
  return channel;
}

/** One whose name differs in case only, as far as the root may be listed. */
function channelLike(root: string, name: string): Channel | undefined {
  try {
    return listChannels(root).find((other) => foldName(other.name) === name);
  } catch (error) {
    if (isCode(error, "no_access")) return undefined;
    throw error;
  }
}

/** What git is to leave out, and to leave as it is. Files that are there stay. */
function tellGit(root: string, sharedCursors: boolean): void {
  writeIfAbsent(path.join(root, ".gitignore"), sharedCursors ? IGNORED + SHARED_CURSORS : IGNORED);
  writeIfAbsent(path.join(root, ".gitattributes"), ATTRIBUTES);
}

/** What a .gitignore that was there before lacks, for git to carry what it should and nothing else. */
function gitNotes(root: string, shared: boolean): string[] {
  const file = path.join(root, ".gitignore");
  const lines = readIfPossible(file).split(/\r?\n/);
  const wanted = (shared ? IGNORED + SHARED_CURSORS : IGNORED).trim().split("\n").slice(1);
  const lacking = wanted.filter((line) => !lines.includes(line));
  if (lacking.length === 0 || !fs.existsSync(file)) return [];
  return [`${quoted(file)} was there; so that git carries messages and no locks, add to it: ${lacking.join("  ")}`];
}

/** Whether git carries the cursors of a root: only where its .gitignore takes them in again. */
function sharesCursors(root: string): boolean {
  return takesCursors(readIfPossible(path.join(root, ".gitignore")));
}

function takesCursors(ignored: string): boolean {
  const lines = ignored.split(/\r?\n/);
  return (
    lines.includes("!*/.cursors/*.txt") || (lines.includes("*/.cursors/*.lock*") && !lines.includes("*/.cursors/*"))
  );
}

function placeMeta(channel: Channel, draft: Draft, text: string): void {
  writeAll(draft.fd, `${text}\n`);
  fs.fsyncSync(draft.fd);
  try {
    moveIntoPlace(draft.path, metaPath(channel.path));
  } catch (error) {
    if (!isCode(error, "EEXIST")) throw error;
    if (isChannel(channel.path)) throw existsAlready(channel);
    throw new ChatError("io", `${quoted(metaPath(channel.path))} is in the way, and no regular file`);
  }
}

/**
 * Adds an agent to a channel's members; everything else in its `_meta.json` stays.
 * Throws `bad_name`, `bad_meta`, `locked`, `gone`, `no_access`, `no_space` or `io`.
 */
export async function join(channel: Channel, agent: string, { signal }: Blocking = {}): Promise<Meta> {
  const name = parseName("member", agent);
  const added = (members: readonly string[]): readonly string[] =>
    members.some((member) => foldName(member) === name) ? members : [...members, name];
  return changeMembers(channel, added, signal);
}

/** Takes an agent off a channel's members; without any the channel is open to all. Throws like `join`. */
export async function leave(channel: Channel, agent: string, { signal }: Blocking = {}): Promise<Meta> {
  const name = parseName("member", agent);
  return changeMembers(channel, (members) => members.filter((member) => foldName(member) !== name), signal);
}

async function changeMembers(
  channel: Channel,
  change: (members: readonly string[]) => readonly string[],
  signal: AbortSignal | undefined,
): Promise<Meta> {
  return explainingLater(`change the members of ${quoted(channel.name)}`, () =>
    withNumbers(channel, signal, (draft) => {
      const whole = wholeMeta(channel);
      const members = change(whole.members);
      const text = JSON.stringify({ ...whole, members }, null, 2);
      if (members.length === whole.members.length) return parseMeta(text);
      writeAll(draft.fd, `${text}\n`);
      fs.fsyncSync(draft.fd);
      persistently(() => replaceFile(draft.path, metaPath(channel.path)));
      return parseMeta(text);
    }),
  );
}

/** All of a `_meta.json`, for those who write it anew: throws `bad_meta` where any of it would be lost. */
function wholeMeta(channel: Channel): Record<string, unknown> & { readonly members: readonly string[] } {
  const bad = (problem: string): never => {
    const message = `${quoted(metaPath(channel.path))} ${problem}: nothing was changed`;
    throw new ChatError(
      "bad_meta",
      message,
      "mend the file first: one JSON object, with members that are a list of names",
    );
  };
  const found = metaFile(channel);
  const { problem } = metaIn(found);
  if (typeof found === "string" || problem !== undefined) return bad(problem!);
  if (!isUtf8(found.bytes)) return bad("is not valid UTF-8");
  const whole = parseObject(found.bytes.toString());
  return { ...whole, members: (whole["members"] ?? []) as string[] };
}

function existsAlready({ root, name, path: folder }: Channel): ChatError {
  const mend = `agent-chat roster ${name} --root ${shellWord(root)}`;
  return new ChatError("channel_exists", `channel ${quoted(name)} already exists at ${folder}`, mend);
}

function writeIfAbsent(file: string, text: string): void {
  const draft = `${file}.${nonce()}`;
  try {
    fs.writeFileSync(draft, text, { flag: "wx" });
    moveIntoPlace(draft, file);
  } catch (error) {
    if (!isCode(error, "EEXIST")) throw error;
  } finally {
    removeIfPresent(fs.unlinkSync, draft);
  }
}

// ---- messages ------------------------------------------------------------------------------------------------------

const ENTRY = /^(\d{4}|[1-9]\d{4,14})-[a-z0-9][a-z0-9-]*\.md$/;

const padded = (seq: number): string => String(seq).padStart(4, "0");

/** What one look into a channel's folder found: names only. */
export interface Listing {
  readonly entries: readonly Entry[]; // by number, then by name
  readonly strays: readonly string[]; // almost messages
  readonly size: number; // of the folder
}

/**
 * The one place that lists a channel's messages. A folder's listing is no snapshot: an entry added behind the reader's
 * position is missed while a later one is seen; so where numbers are missing, it looks once more (SPEC 5.7).
 * Throws `gone` where the folder is no longer there, `no_access` or `io`.
 */
export function listMessages(channel: Channel): Listing {
  const names = listNames(channel);
  const listing = parseNames(names);
  if (!hasHoles(listing.entries)) return listing;
  return parseNames([...new Set([...names, ...listNames(channel)])]);
}

function hasHoles(entries: readonly Entry[]): boolean {
  let distinct = 0;
  for (let i = 0; i < entries.length; i++) if (entries[i]!.seq !== entries[i - 1]?.seq) distinct++;
  return distinct < (entries.at(-1)?.seq ?? 0);
}

function listNames(channel: Channel): string[] {
  try {
    return fs.readdirSync(channel.path);
  } catch (error) {
    if (!isCode(error, "ENOENT", "ENOTDIR")) throw explained(error, `list ${quoted(channel.path)}`);
    throw new ChatError("gone", `the channel's folder ${channel.path} is gone`, "agent-chat channels");
  }
}

function parseNames(names: readonly string[]): Listing {
  const [entries, strays]: [Entry[], string[]] = [[], []];
  let sorted = true; // as most systems list them: then there is nothing to sort
  for (const file of names) {
    if (ENTRY.test(file) && !file.startsWith("0000-")) {
      const seq = Number.parseInt(file, 10);
      const last = entries.at(-1);
      sorted &&= last === undefined || last.seq < seq || (last.seq === seq && last.file < file);
      entries.push({ seq, file });
    } else if (/^\d/.test(file) && file.endsWith(".md")) strays.push(file); // looks like a message, and is named when it is none
  }
  if (!sorted) entries.sort((a, b) => a.seq - b.seq || (a.file < b.file ? -1 : 1));
  return { entries, strays, size: names.length };
}

/** Opens a file that has a message's name: a message only if it is a regular file whose closed header agrees. */
function inspect(channel: Channel, entry: Entry): Finding {
  try {
    const found = readRegular(path.join(channel.path, entry.file));
    if (typeof found === "string") return { kind: "odd", reason: `is a ${found}` };
    const message = parseMessage(channel, entry, found.bytes.toString());
    return typeof message === "string" ? { kind: "odd", reason: message } : { kind: "message", message };
  } catch (error) {
    if (isCode(error, "ENOENT")) return { kind: "gone" };
    return { kind: "unreadable", error, reason: `could not be read (${codeOf(error)})` };
  }
}

/** The same; throws the system's error where the file cannot be read. */
function inspectReadable(channel: Channel, entry: Entry): Finding {
  const finding = inspect(channel, entry);
  if (finding.kind === "unreadable") throw finding.error;
  return finding;
}

/** The highest number in use, 0 for none: a file that only claims a high number does not count (SPEC 5.6). */
function highest(channel: Channel, entries: readonly Entry[]): number {
  for (let i = entries.length - 1; i >= 0; i--) {
    const { kind } = inspect(channel, entries[i]!);
    if (kind === "message" || kind === "unreadable") return entries[i]!.seq;
  }
  return 0;
}

/**
 * The number behind which the next one comes. What is no message takes none; but one that is next in turn is passed over:
 * the reference shows and marks such a file, so that a message under its number would be hidden from who reads by it.
 */
function lastTaken(channel: Channel, entries: readonly Entry[]): number {
  let last = highest(channel, entries);
  for (const { seq } of entries) if (seq === last + 1) last = seq;
  return last;
}

/** The messages with a number; throws `no_message`, and `io` where one of them cannot be read. */
function findMessages(channel: Channel, seq: number): Message[] {
  const { listing, open } = listedNow(channel);
  const found = listing.entries
    .filter((entry) => entry.seq === seq)
    .flatMap((entry) => {
      const finding = open(channel, entry);
      if (finding.kind !== "unreadable") return finding.kind === "message" ? [finding.message] : [];
      throw new ChatError("io", `${quoted(path.join(channel.path, entry.file))} ${finding.reason}`);
    });
  if (found.length > 0) return found;
  const message = [`no message #${seq} in ${channel.path}`, ...movedNotes(channel, seq)].join("; ");
  throw new ChatError("no_message", message, `agent-chat peek ${shellWord(channel.name)}`);
}

/**
 * The last `count` messages, oldest first, and notes on what only looks like one. Marks nothing. Throws like
 * `listMessages`.
 */
export function lastMessages(channel: Channel, count: number): { messages: Message[]; notes: string[] } {
  const { listing, open } = listedNow(channel);
  return lastOf(channel, listing, count, open);
}

/** With the numbers that a renumbering under way gives, or one whose process died; its decision is read first. */
function listedNow(channel: Channel): { listing: Listing; open: typeof inspect } {
  const under = readTransit(channel);
  return throughTransit(listMessages(channel), under, inspect);
}

function lastOf(
  channel: Channel,
  { entries, strays }: Listing,
  count: number,
  open = inspect,
): { messages: Message[]; notes: string[] } {
  const [messages, notes]: [Message[], string[]] = [[], oddities(channel, strays)];
  for (let i = entries.length - 1; i >= 0 && messages.length < count; i--) {
    const finding = open(channel, entries[i]!);
    if (finding.kind === "message") messages.push(finding.message);
    else notes.push(...oddity(channel, entries[i]!, finding));
  }
  return { messages: messages.reverse(), notes };
}

function oddity(channel: Channel, { file }: Entry, finding: Finding): string[] {
  return "reason" in finding ? [`${quoted(path.join(channel.path, file))} ${finding.reason}`] : [];
}

function oddities(channel: Channel, strays: readonly string[]): string[] {
  return strays.map((name) => `${quoted(path.join(channel.path, name))} does not have the name of a message`);
}

/**
 * Numbers and publishes a message (SPEC 5.6): on disk before anybody can see it, visible whole or not at all.
 * Throws `bad_name`, `no_body`, `bad_body`, `too_big`, `no_message`, `unknown_recipient`, `only_self`, `locked`, `gone`,
 * `no_access`, `no_space` or `io`; then nothing was posted.
 */
export async function post(channel: Channel, outgoing: Outgoing, { signal }: Blocking = {}): Promise<Posted> {
  return explainingLater(`post to ${quoted(channel.name)}`, async () => {
    const notes: string[] = [];
    const body = checkBody(outgoing.body);
    const numbers = numbering(channel);
    const addressed = address(channel, outgoing, body, notes);
    let created = true;
    const publishing = (draft: Draft, seen: Glance | undefined): Message => {
      const unnumbered = nowAnswering(channel, addressed, numbers);
      const before = postedBefore(channel, unnumbered);
      created = before === undefined;
      return before ?? publish(channel, draft, seen, unnumbered);
    };
    const message = await withNumbers(channel, signal, publishing, () => glanceAt(channel));
    if (!flushFolder(channel.path)) notes.push("the disk did not confirm the new entry: a power cut now could lose it");
    const lines = body.replace(/\n$/, "").split("\n").length;
    return { message, created, bytes: Buffer.byteLength(body), lines, notes };
  });
}

/** What is wrong with a message before it has a body. Throws like `post`. */
function checkAddress(channel: Channel, unwritten: Omit<Outgoing, "body">): void {
  explaining(`post to ${quoted(channel.name)}`, () => address(channel, { ...unwritten, body: "" }, "", []));
}

/** Everything of a message but its number and file; says in `notes` what the sender should know. */
function address(channel: Channel, outgoing: Outgoing, body: string, notes: string[]): Message {
  const from = parseName("sender", outgoing.from);
  const meta = readMeta(channel);
  const answered = outgoing.reply === undefined ? [] : repliedTo(channel, outgoing.reply, notes);
  const to = outgoing.to === undefined ? replyAddress(from, answered, notes) : recipients(channel, meta, outgoing.to);
  if (to.length > 0 && to.every((name) => foldName(name) === from)) {
    const message = `a message from "${from}" only to "${from}" would never be shown to anybody`;
    throw new ChatError("only_self", message, "--to another agent, or all");
  }
  notes.push(...metaNotes(channel, meta));
  if (outgoing.force !== true && outgoing.to !== undefined) checkRecipients(channel, meta, from, to, notes);
  if (isStranger(meta, from)) {
    notes.push(`"${from}" is not a member of "${channel.name}" (${meta.members.join(", ")})`);
  }
  const title = headerLine("title", outgoing.title ?? titleFor(answered[0], body));
  const status = headerLine("status", outgoing.status ?? "discussion");
  const task = outgoing.task === undefined ? {} : { task: parseTask(outgoing.task) };
  const more = { ...priorityOf(outgoing), ...keyOf(outgoing), ...task };
  const reply_to = outgoing.reply ?? null;
  return {
    channel: channel.name,
    seq: 0,
    file: "",
    path: "",
    from,
    to,
    reply_to,
    ts: "",
    status,
    title,
    ...more,
    body,
  };
}

function titleFor(answered: Message | undefined, body: string): string {
  return answered === undefined ? titleFrom(body) : shortLine(`re: ${answered.title.replace(/^re: /i, "")}`);
}

/** Normal is what a message without the key has, so it is not written. */
function priorityOf({ priority }: { readonly priority?: Priority | undefined }): { priority?: Priority } {
  const parsed = parsePriority(priority ?? "normal");
  return parsed === "normal" ? {} : { priority: parsed };
}

function keyOf({ key }: Outgoing): { key?: string } {
  if (key === undefined) return {};
  const line = headerLine("key", key).trim();
  if (line === "") throw new ChatError("bad_value", "the key is blank: nothing was posted");
  return { key: line };
}

function headerLine(what: string, text: string): string {
  if (text.length <= LINE_MAX) return oneLine(text);
  const message = `the ${what} has ${text.length} characters, more than ${LINE_MAX}: nothing was done`;
  throw new ChatError("too_big", message, `shorten the ${what}`);
}

/** The message that its sender posted under the same key before. Throws `other_content` where that one says another thing. */
function postedBefore(channel: Channel, unnumbered: Message): Message | undefined {
  const { from, key } = unnumbered;
  if (key === undefined) return undefined;
  const before = firstBy(channel, listMessages(channel).entries, from, (message) => message.key === key);
  if (before === undefined || contentOf(before) === contentOf(unnumbered)) return before;
  const message = `${quoted(from)} posted another message under the key ${quoted(key)}: ${before.path}; nothing was posted`;
  throw new ChatError("other_content", message, "give this one a key of its own");
}

/** All that a sender says of a message; not where and when it was posted. */
function contentOf({ to, reply_to, status, title, priority = "normal", body }: Message): string {
  const text = body.endsWith("\n") ? body : `${body}\n`; // as it is in the file
  return JSON.stringify([to.map(foldName).sort(), reply_to, status, title, priority, text]);
}

/** Writes the numbered text into the draft and links it into place; a name that something else has costs a number. */
function publish(channel: Channel, draft: Draft, seen: Glance | undefined, unnumbered: Message): Message {
  const { last, isCrowded } = lastNumber(channel, seen);
  for (let seq = last + 1; seq <= SEQ_MAX; seq++) {
    const message = numbered(channel, unnumbered, seq);
    writeAll(draft.fd, formatMessage(message));
    fs.fsyncSync(draft.fd);
    try {
      if (seq < LARGE) moveIntoPlace(draft.path, message.path);
      else moveAndKeepNumber(channel, draft, message, isCrowded);
      return message;
    } catch (error) {
      if (!isCode(error, "EEXIST")) throw error;
      assertHeld(draft); // else the file may be that of the name: NFS lost the answer before the theft
      fs.ftruncateSync(draft.fd);
    }
  }
  throw new ChatError("full", `${channel.path} has given out its last number, ${SEQ_MAX}`, "agent-chat init --help");
}

function numbered(channel: Channel, unnumbered: Message, seq: number): Message {
  const file = `${padded(seq)}-${unnumbered.from}-${asciiSlug(unnumbered.title, 40) || "msg"}.md`;
  return { ...unnumbered, seq, file, path: path.join(channel.path, file), ts: timestamp() };
}

const SEQ_MAX = 999_999_999_999_999; // 15 digits, as file names may have
const LARGE = 50_000; // from this number on, listing the folder would cost more than all the rest of a post
const TICK_NS = 12_000_000n; // two times this near may be one tick of the kernel's clock
const GLANCE_MS = 5;

const newestPath = (channel: Channel): string => path.join(channel.path, ".cursors", ".newest");

/**
 * The highest number of a large channel without listing it (SPEC 5.9). `.newest` says the number we gave last and the
 * folder's mtime at that moment, just before the release; if the folder has not changed since, no message has come. The
 * reference changes the folder without touching `.newest`, but between its mkdir and its rmdir it lists the folder,
 * which takes far longer here than a tick, or than the glance may have taken.
 */
function knownHighest(channel: Channel, seen: Glance | undefined): number | undefined {
  if (seen === undefined || monotonic() - seen.at > GLANCE_MS) return undefined;
  const [, seq, modified] = /^(\d{5,15}) (\d+)$/.exec(readIfPossible(newestPath(channel))) ?? [];
  if (modified === undefined) return undefined;
  const since = seen.modified - BigInt(modified);
  const coarse = seen.modified % 1_000_000n === 0n; // a file system that keeps whole seconds hides changes
  return since < 0n || since > TICK_NS || coarse ? undefined : Number(seq);
}

/** Only a folder that takes long to list is worth it, and safe: in a small one the reference posts within a tick. */
function lastNumber(channel: Channel, seen: Glance | undefined): { last: number; isCrowded: boolean } {
  const known = knownHighest(channel, seen);
  if (known !== undefined) return { last: known, isCrowded: true };
  const { entries, size } = listMessages(channel);
  return { last: lastTaken(channel, entries), isCrowded: size >= LARGE };
}

function glanceAt(channel: Channel): Glance | undefined {
  if (!fs.existsSync(newestPath(channel))) return undefined;
  const at = monotonic();
  if (fs.existsSync(numberLock(channel))) return undefined;
  return { at, modified: fs.statSync(channel.path, { bigint: true }).mtimeNs };
}

/** Before the next message appears. Where it cannot be removed, it is old enough to be disbelieved after a tick. */
function forgetNewest(channel: Channel): void {
  try {
    removeIfPresent(fs.unlinkSync, newestPath(channel));
  } catch {
    pause(Number(TICK_NS / 1_000_000n) + 1);
  }
}

/**
 * Publishes in a large channel. What becomes `.newest` is made in the lock folder before the message is linked: a thief
 * takes it away with the draft, so that a writer who slept through a theft cannot put an old number there.
 */
function moveAndKeepNumber(channel: Channel, draft: Draft, message: Message, isCrowded: boolean): void {
  forgetNewest(channel);
  if (!isCrowded) return moveIntoPlace(draft.path, message.path);
  const made = draft.path.replace(/draft$/, "newest");
  const fd = openIfPossible(made);
  try {
    moveIntoPlace(draft.path, message.path);
    if (fd !== undefined) keepNewest(channel, fd, made, message.seq);
  } finally {
    if (fd !== undefined) closeAnyway(fd);
    removeAtLast(fs.unlinkSync, made);
  }
}

function openIfPossible(file: string): number | undefined {
  try {
    return fs.openSync(file, "wx");
  } catch {
    return undefined; // it only saves time: without it the next post lists
  }
}

function keepNewest(channel: Channel, fd: number, made: string, seq: number): void {
  try {
    writeAll(fd, `${seq} ${fs.statSync(channel.path, { bigint: true }).mtimeNs}`);
    fs.renameSync(made, newestPath(channel));
  } catch {
    // stolen, or no .cursors folder
  }
}

function repliedTo(channel: Channel, seq: number, notes: string[]): Message[] {
  notes.push(...movedNotes(channel, seq));
  const found = findMessages(channel, seq);
  if (found.length > 1)
    notes.push(`${found.length} messages are #${seq}: ${found.map((message) => message.file).join(", ")}`);
  return found;
}

/** A reply goes to who wrote it; a word more on one's own message to whom that went. */
function replyAddress(from: Name, answered: readonly Message[], notes: string[]): string[] {
  const to = answered.flatMap((message) => (foldName(message.from) === from ? message.to : [message.from]));
  const possible = [...new Set(to.filter(isAddress))];
  if (to.length > 0 && possible.length === 0)
    notes.push(`${quoted(to.join())} cannot be written to: the reply is for all`);
  return possible;
}

/**
 * A member as the member list spells it, an author as the newest of their messages does, because the reference compares
 * exactly; everybody else by a legal name.
 */
function recipients(channel: Channel, { members }: Meta, words: readonly string[]): string[] {
  assertList("recipients", words);
  if (words.some((word) => ["all", "*"].includes(foldName(word)))) return []; // not null: that was an accident
  const member = (word: string): string | undefined => members.find((name) => foldName(name) === foldName(word));
  let listed: readonly Entry[] | undefined;
  const newestFirst = (): readonly Entry[] => (listed ??= listMessages(channel).entries.toReversed());
  const spelled = (word: string): string => {
    const name = member(word) ?? authorLike(channel, newestFirst, word);
    return isAddress(name) ? name : parseName("recipient", word);
  };
  return [...new Set(words.map(spelled))];
}

/** An author as they spell themselves. Where a listing would cost more than the post, who writes a legal name means it. */
function authorLike(channel: Channel, newestFirst: () => readonly Entry[], word: string): string | undefined {
  if (isName(word) && fs.existsSync(newestPath(channel))) return undefined;
  try {
    return firstBy(channel, newestFirst(), word, () => true)?.from;
  } catch {
    return undefined; // nothing to fail for
  }
}

/** Whether a name, written into `to`, is read there as this one, and not as several or as everybody. */
function isAddress(name: string | undefined): name is string {
  return name !== undefined && name !== "" && !/[,[\]]/.test(name) && !isEverybody(name);
}

function isStranger({ members }: Meta, name: string): boolean {
  return members.length > 0 && !members.some((member) => foldName(member) === foldName(name));
}

/** Refuses, or in an open channel notes, recipients who are no members and of whom nothing is there (SPEC 3.4). */
function checkRecipients(
  channel: Channel,
  meta: Meta,
  from: Name,
  to: readonly string[],
  notes: string[],
  mend: (name: string) => string = () => "send it all the same with --force",
): void {
  for (const { name, near, hint } of strangersAmong(channel, meta, to, [from])) {
    if (meta.members.length === 0) notes.push(`"${name}" has never posted or read in "${channel.name}"${hint}`);
    else refuseRecipient(channel, meta, { name, near, hint }, mend(name));
  }
}

/** A name that nobody here is known by, and the nearest that somebody is. */
interface Stranger {
  readonly name: string;
  readonly near: string | undefined;
  readonly hint: string;
}

/** Of those who are named, whom nobody knows; `besides` is not who was meant. */
function strangersAmong(
  channel: Channel,
  { members }: Meta,
  names: readonly string[],
  besides: readonly Name[],
): Stranger[] {
  if (names.length === 0) return [];
  const known = [...members, ...cursorNames(channel)];
  const isAmong = (name: string, all: readonly string[]): boolean =>
    all.some((other) => foldName(other) === foldName(name));
  const unknown = names.filter((name) => !isAmong(name, known));
  const entries = unknown.length === 0 ? [] : listMessages(channel).entries;
  const silent = unknown.filter((name) => !hasPosted(channel, entries, name));
  // who has made or taken a task is told of its end, and can be asked about it
  const workers = silent.length === 0 ? [] : listTasks(channel).flatMap(({ from, owner }) => [from, owner ?? ""]);
  const strangers = silent.filter((name) => !isAmong(name, workers));
  const others = known.filter((other) => !isAmong(other, [...names, ...besides])); // nobody is meant twice
  return strangers.map((name) => {
    const near = nearest(name, others);
    return { name, near, hint: near === undefined ? "" : `; did you mean "${near}"?` };
  });
}

function refuseRecipient(channel: Channel, { members }: Meta, { name, near, hint }: Stranger, other: string): never {
  const message = `"${name}" is not known in "${channel.name}" at ${channel.path}; members: ${members.join(", ")}${hint}`;
  const mend = near === undefined ? other : `--to ${near}`;
  throw new ChatError("unknown_recipient", visible(message), mend, near === undefined ? undefined : [name, near]);
}

function hasPosted(channel: Channel, entries: readonly Entry[], name: string): boolean {
  try {
    return firstBy(channel, entries, name, () => true) !== undefined;
  } catch {
    return true; // a file that bears the name, and cannot be read: it may be theirs, and is nothing to fail for
  }
}

/** The first of an agent's messages that is as asked; only files that bear its name are opened. Throws the system's error. */
function firstBy(
  channel: Channel,
  entries: Iterable<Entry>,
  name: string,
  isAsked: (message: Message) => boolean,
  open = inspect,
): Message | undefined {
  const slug = referenceSlug(name);
  for (const entry of entries) {
    if (!entry.file.startsWith(`${slug}-`, entry.file.indexOf("-") + 1)) continue;
    const finding = open(channel, entry);
    if (finding.kind === "unreadable") throw finding.error;
    if (finding.kind === "message" && foldName(finding.message.from) === foldName(name) && isAsked(finding.message))
      return finding.message;
  }
  return undefined;
}

// ---- cursors -------------------------------------------------------------------------------------------------------

const NOTHING: Cursor = { ranges: [], files: new Set() };
const WRITING_MS = 50; // the reference writes a cursor, or a message, in far less

const cursorPath = (channel: Channel, agent: Name): string => path.join(channel.path, ".cursors", `${agent}.txt`);
const cursorLock = (channel: Channel, agent: string): string => path.join(channel.path, ".cursors", `${agent}.lock`);

/** The agents who have a cursor in a channel, or another file beside it. */
function cursorNames(channel: Channel, ending = ".txt"): string[] {
  try {
    const names = fs.readdirSync(path.join(channel.path, ".cursors"));
    const agents = names.filter((name) => name.endsWith(ending)).map((name) => name.slice(0, -ending.length));
    return agents.filter(isSafeSegment);
  } catch (error) {
    if (isCode(error, "ENOENT", "ENOTDIR", "EACCES")) return [];
    throw error;
  }
}

/** `12` is 1 to 12, as the reference writes it; `1-8,10-12` lacks 9; undefined where it is no cursor (SPEC 6.2). */
export function parseCursor(text: string): Cursor | undefined {
  const whole = text.trim();
  if (/^\d{1,15}$/.test(whole)) return toCursor([[1, Number(whole)]], []);
  const [ranges, files]: [[number, number][], string[]] = [[], []];
  for (const item of whole.split(",")) {
    const range = /^(\d{1,15})(?:-(\d{1,15}))?$/.exec(item);
    if (range !== null && Number(range[1]) > 0) ranges.push([Number(range[1]), Number(range[2] ?? range[1])]);
    else if (ENTRY.test(item)) files.push(item);
    else return undefined;
  }
  return ranges.some(([low, high]) => low > high) ? undefined : toCursor(ranges, files);
}

/** The one form in which a cursor is written (SPEC 6.2). */
export function formatCursor({ ranges, files }: Cursor): string {
  const [first] = ranges;
  if (ranges.length + files.size === 0) return "0";
  if (ranges.length === 1 && first![0] === 1 && files.size === 0) return String(first![1]);
  return [...ranges.map(([low, high]) => `${low}-${high}`), ...[...files].sort()].join(",");
}

/** Ranges sorted, and those that meet made one. */
function toCursor(ranges: Iterable<readonly [number, number]>, files: Iterable<string>): Cursor {
  const merged: [number, number][] = [];
  for (const [low, high] of [...ranges].sort((a, b) => a[0] - b[0])) {
    const last = merged.at(-1);
    if (last !== undefined && low <= last[1] + 1) last[1] = Math.max(last[1], high);
    else if (high >= low) merged.push([low, high]);
  }
  return { ranges: merged, files: new Set(files) };
}

function union(a: Cursor, b: Cursor): Cursor {
  return toCursor([...a.ranges, ...b.ranges], [...a.files, ...b.files]);
}

/** How many numbers up to the newest a cursor has. */
function sizeOf({ ranges }: Cursor, newest: number): number {
  return ranges.reduce((sum, [low, high]) => sum + Math.max(0, Math.min(high, newest) - low + 1), 0);
}

/** The messages from which a cursor grows: by number, by file name where two share a number. */
function cursorOf(entries: readonly Entry[], shared: Shared): Cursor {
  const [own, both] = [entries.filter(({ seq }) => !shared.has(seq)), entries.filter(({ seq }) => shared.has(seq))];
  return toCursor(
    own.map(({ seq }) => [seq, seq]),
    both.map(({ file }) => file),
  );
}

function holds({ ranges, files }: Cursor, { seq, file }: Entry, shared: Shared): boolean {
  if (files.has(file)) return true;
  if (shared.has(seq)) return false;
  let [low, high] = [0, ranges.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ranges[middle]![1] < seq) low = middle + 1;
    else high = middle;
  }
  return low < ranges.length && ranges[low]![0] <= seq;
}

/** The cursor on disk; throws the system's error where it cannot be read. Only whether it can be parsed is judged here; whether it is too high needs a listing. */
function readCursor(channel: Channel, agent: Name): CursorFile {
  const none: CursorFile = { text: undefined, cursor: NOTHING, moved: undefined, problem: undefined };
  if (!isSafeSegment(agent)) return none; // a member may be called anything; nobody reads under such a name
  try {
    const found = readWritten(cursorPath(channel, agent));
    if (typeof found === "string") return { ...none, text: "", problem: `is a ${found}` };
    const text = found.bytes.toString();
    const cursor = parseCursor(text);
    if (cursor !== undefined) return { text, cursor, moved: found.stat.mtime, problem: undefined };
    return { ...none, text, moved: found.stat.mtime, problem: `holds ${quoted(text.slice(0, 40))}` };
  } catch (error) {
    if (isCode(error, "ENOENT", "ENOTDIR")) return none;
    throw error;
  }
}

/**
 * The reference empties a cursor before it writes it: one that has just been emptied is looked at again for a moment (SPEC
 * 6.10). One that stays empty, as of a writer who was killed, delays nobody.
 */
function readWritten(file: string): ReturnType<typeof readRegular> {
  for (let waited = 0; ; waited += 5) {
    const found = readRegular(file);
    if (typeof found === "string" || found.bytes.length > 0 || waited >= WRITING_MS) return found;
    if (Math.abs(Date.now() - found.stat.mtimeMs) >= FRESH_MS) return found;
    pause(5);
  }
}

/**
 * Adds what was shown, and what was not for the agent, to its cursor. Two sessions under one name never undo each
 * other: what is on disk is read again and united, under a lock of the cursor's own (SPEC 6.4).
 * Throws `locked`, `gone`, `no_access`, `no_space` or `io`; then nothing was marked and all of it will be shown again.
 */
export async function mark(batch: Batch, shown: readonly Entry[], { signal }: Blocking = {}): Promise<void> {
  const { channel, agent } = batch;
  await explainingLater(`mark messages as shown to ${agent}`, async () => {
    await settleBrought(batch, signal);
    for (let settled = false; !settled;) {
      if (isMoving(channel)) await withNumbers(channel, signal, () => {});
      let now = numbering(channel);
      const grown = (): string | undefined => {
        now = numbering(channel);
        const disk = readCursor(channel, agent);
        const doubted = batch.cursor.problem !== undefined && disk.text === batch.cursor.text;
        const text = formatCursor(union(doubted ? NOTHING : disk.cursor, shownNow(batch, shown, now)));
        return now.under !== undefined || text === (disk.text ?? "0").trim() ? undefined : text;
      };
      if (grown() !== undefined) await rewrite(channel, agent, cursorPath(channel, agent), grown, signal);
      settled = now.under === undefined && isSameNumbering(now, numbering(channel));
    }
  });
}

/** What is to be marked, with the numbers of now. */
function shownNow(batch: Batch, shown: readonly Entry[], now: Numbering): Cursor {
  const { channel, passed, shared, numbering: then, known } = batch;
  let marked = cursorOf([...passed, ...shown], shared);
  for (const change of changesSince(channel, then, known, now))
    if (!isBrought(batch, change.id)) marked = translated(marked, change);
  return marked;
}

/** Where an agent stands in a channel. */
export interface Position {
  readonly channel: string;
  readonly agent: string;
  readonly path: string; // of the cursor's file
  readonly shown: string; // the set, as the file would say it
  readonly newest: number;
  readonly unread: number;
}

/**
 * Moves a cursor by hand: to a set such as `1-8,10-12`, to `all` that is there, or to `none`.
 * Throws `bad_value` for what is no set, or reaches past the newest message; `bad_name`, `locked`, `gone`, `no_access`,
 * `no_space` or `io`.
 */
export async function setCursor(channel: Channel, agent: string, to: string, { signal }: Blocking = {}): Promise<void> {
  const name = parseName("agent", agent);
  const set = (): string => formatCursor(cursorFrom(channel, to.replace(/\s/g, "")));
  await explainingLater(`move the cursor of ${name}`, async () => {
    if (isMoving(channel)) await withNumbers(channel, signal, () => {});
    await rewrite(channel, name, cursorPath(channel, name), set, signal);
  });
}

function cursorFrom(channel: Channel, to: string): Cursor {
  const { entries } = listMessages(channel);
  if (to === "all") return cursorOfAll(channel, entries);
  const cursor = to === "none" ? NOTHING : parseCursor(to);
  const newest = highest(channel, entries);
  if (cursor === undefined)
    throw new ChatError("bad_value", `${quoted(to)} is no set of messages`, "write 1-12, 1-8,10-12, all or none");
  if (topOf(cursor) <= newest) return cursor;
  throw new ChatError("bad_value", `${quoted(to)} reaches past the newest message, #${newest}`, "--set all");
}

/** A channel made by hand may have no folder of cursors. */
const makeCursors = (channel: Channel): void => makeWithin(channel, ".cursors");

/** A folder of a channel, as open to others as that is; a channel that has vanished is not made anew. */
function makeWithin(channel: Channel, name: string): void {
  const folder = path.join(channel.path, name);
  try {
    if (makeOneFolder(folder)) copyMode(channel.path, folder, 0o777);
  } catch (error) {
    if (!isCode(error, "ENOENT", "ENOTDIR") || isThere(folder)) throw error; // a link that leads nowhere
    throw new ChatError("gone", `the channel's folder ${channel.path} is gone`, "agent-chat channels");
  }
}

/** Every message there is; what only looks like one may become one later, and is not in it. */
function cursorOfAll(channel: Channel, entries: readonly Entry[]): Cursor {
  const messages = entries.filter((entry) => inspect(channel, entry).kind === "message");
  return cursorOf(messages, sharedNumbers(channel, messages));
}

function topOf({ ranges, files }: Cursor): number {
  return Math.max(0, ranges.at(-1)?.[1] ?? 0, ...[...files].map((file) => Number.parseInt(file, 10)));
}

/** Replaces a file of an agent's under a lock of its own, by what `text` says then; undefined leaves it alone. */
async function rewrite(
  channel: Channel,
  agent: Name,
  file: string,
  text: () => string | undefined,
  signal: AbortSignal | undefined,
): Promise<void> {
  makeCursors(channel);
  await withLock(cursorLock(channel, agent), signal, (draft) => {
    const next = text();
    if (next === undefined) return;
    writeAll(draft.fd, next);
    persistently(() => fs.renameSync(draft.path, file));
  });
}

// ---- renumbering ----------------------------------------------------------------------------------------------------

/** What becomes of one message where numbers are given anew. */
interface Move {
  readonly from: string; // 0005-bob-ping.md
  readonly to: string; // 0007-bob-ping.md; the same: it keeps its number
  readonly reply: number | null; // what it answers from now on
  readonly files: readonly string[]; // its attachments, in _files/0005/
  readonly keep: boolean; // they stay there too: another message has that number
  readonly told?: true; // its header tells, for those whom git brings it, what number it had
}

/** What is to be done to the numbers of a channel. */
interface Renumbering {
  readonly moves: readonly Move[]; // the highest first
  readonly shared: readonly number[]; // numbers that two messages had
  readonly fresh: readonly number[]; // numbers below others that get their message only now: nobody was shown it
  readonly known?: readonly string[]; // messages whose former numbers are settled here
}

/** The same, decided: should its writer die, who holds the lock next carries it out (SPEC 5.10). */
interface Transit extends Renumbering {
  readonly id: string;
  readonly cursors?: Readonly<Record<string, string>>; // as they will be, decided once nobody marks any more
}

/** What a reader compares before and after a look, to see whether numbers changed under it. */
interface Numbering {
  readonly size: number | undefined; // of the record of what was carried out; undefined: it cannot be seen now
  readonly under: Transit | undefined; // what is being carried out
}

const transitPath = (channel: Channel): string => path.join(channel.path, ".cursors", ".moving");
const movedPath = (channel: Channel): string => path.join(channel.path, ".cursors", ".moved");
const filesPath = (channel: Channel, seq: number): string => path.join(channel.path, "_files", padded(seq));
const toEntry = (file: string): Entry => ({ seq: Number.parseInt(file, 10), file });

/** What is under way is looked at first: were it finished in between, the record would have grown. */
function numbering(channel: Channel): Numbering {
  const under = readTransit(channel);
  return { under, size: sizeIfSeen(movedPath(channel)) };
}

function sizeIfSeen(file: string): number | undefined {
  try {
    return fs.statSync(file, { throwIfNoEntry: false })?.size ?? 0;
  } catch {
    return undefined;
  }
}

function isSameNumbering(a: Numbering, b: Numbering): boolean {
  return a.size === b.size && a.under?.id === b.under?.id;
}

const isMoving = (channel: Channel): boolean => (sizeIfSeen(transitPath(channel)) ?? 0) > 0;

/** What is being carried out, for readers: one that they may not look into stops none of them. */
function readTransit(channel: Channel): Transit | undefined {
  return isMoving(channel) ? parseTransit(readIfPossible(transitPath(channel))) : undefined;
}

function parseTransit(text: string): Transit | undefined {
  try {
    return JSON.parse(text) as Transit;
  } catch {
    return undefined; // the beginning of one: it was never decided, or is recorded again
  }
}

/** What was carried out since the record had a size, and what is under way, but for what is known already. */
function changesSince(
  channel: Channel,
  size: number | undefined,
  known: string | undefined,
  now: Numbering,
): Transit[] {
  if (now.size === size && (now.under === undefined || now.under.id === known)) return [];
  if (now.size === undefined || size === undefined) return []; // where nobody may look, nobody renumbers either
  const text = now.size > size ? fs.readFileSync(movedPath(channel)).subarray(size).toString() : "";
  const all = [...text.split("\n").map(parseTransit), now.under];
  const distinct = new Map(all.flatMap((change) => (change === undefined ? [] : [[change.id, change]])));
  return [...distinct.values()].filter(({ id }) => id !== known);
}

/** A cursor with the numbers of now: who was shown a message was shown it, whatever its number. */
function translated(cursor: Cursor, { moves, shared, fresh }: Renumbering): Cursor {
  const both = new Set(shared);
  const shown = moves.filter(({ from }) => holds(cursor, toEntry(from), both));
  const names = new Set(moves.map(({ from }) => from));
  const numbers = [...fresh, ...moves.flatMap(({ from, to }) => [toEntry(from).seq, toEntry(to).seq])];
  const added = shown.map(({ to }) => [toEntry(to).seq, toEntry(to).seq] as const);
  const files = [...cursor.files].filter((name) => !names.has(name));
  return toCursor([...without(cursor.ranges, numbers), ...added], files);
}

function without(ranges: Cursor["ranges"], numbers: readonly number[]): [number, number][] {
  const left: [number, number][] = [];
  const sorted = [...new Set(numbers)].sort((a, b) => a - b);
  for (let [low, high] of ranges) {
    for (const number of sorted) {
      if (number < low || number > high) continue;
      if (number > low) left.push([low, number - 1]);
      low = number + 1;
    }
    if (low <= high) left.push([low, high]);
  }
  return left;
}

/**
 * Runs `body` under the lock of a channel, once what a killed renumbering left has been finished. Throws where that
 * cannot be read: the numbers that it gives are taken (SPEC 5.10).
 */
function withNumbers<T>(
  channel: Channel,
  signal: AbortSignal | undefined,
  body: (draft: Draft, seen: Glance | undefined) => T | Promise<T>,
  glance?: () => Glance | undefined,
): Promise<T> {
  const settled = (draft: Draft, seen: Glance | undefined): T | Promise<T> => {
    const transit = isMoving(channel) ? parseTransit(fs.readFileSync(transitPath(channel), "utf8")) : undefined;
    if (transit === undefined) return body(draft, seen);
    return finishTransit(channel, draft, transit, signal).then(() => body(draft, seen));
  };
  return withLock(numberLock(channel), signal, settled, glance);
}

/** From the decision on nobody marks; whoever was about to is waited for, and then the cursors hold still. */
async function finishTransit(
  channel: Channel,
  draft: Draft,
  transit: Transit,
  signal: AbortSignal | undefined,
): Promise<void> {
  const marking = cursorNames(channel, ".lock"); // listed first: who has let go since has a cursor
  const agents = [...new Set([...marking, ...cursorNames(channel)])] as Name[]; // the reference's may have any name
  await withCursors(channel, agents, signal, () =>
    carryOut(channel, draft, withCursorsOf(channel, draft, transit, agents)),
  );
}

/** Decides on the cursors, unless who died had done so: then some of them may be changed already. */
function withCursorsOf(channel: Channel, draft: Draft, transit: Transit, agents: readonly Name[]): Transit {
  if (transit.cursors !== undefined) return transit;
  const newest = highest(channel, listMessages(channel).entries);
  const cursors = agents.flatMap((agent): [string, string][] => {
    const file = readCursor(channel, agent);
    if (file.text === undefined || file.problem !== undefined) return [];
    return [[agent, formatCursor(translated(doubt(file, newest).cursor, transit))]];
  });
  const whole = { ...transit, cursors: Object.fromEntries(cursors) };
  placeHeld(draft, JSON.stringify(whole), transitPath(channel), replaceShared);
  return whole;
}

/** Runs `body` while nobody can mark; always in the order of the names, and after the channel's own lock. */
function withCursors(
  channel: Channel,
  agents: readonly string[],
  signal: AbortSignal | undefined,
  body: () => void | Promise<void>,
): Promise<void> {
  const [first, ...rest] = [...agents].sort();
  if (first === undefined) return Promise.resolve(body());
  return withLock(cursorLock(channel, first), signal, () => withCursors(channel, rest, signal, body));
}

/**
 * Gives messages other numbers, under the channel's lock: each is seen once by whoever reads meanwhile, and every cursor
 * follows. Decided by one rename, then carried out, by this process or the next.
 */
async function renumberAll(
  channel: Channel,
  draft: Draft,
  plan: Renumbering,
  signal: AbortSignal | undefined,
  id = nonce(),
): Promise<void> {
  if (plan.moves.length + plan.fresh.length + (plan.known?.length ?? 0) === 0) return;
  forgetNewest(channel);
  makeCursors(channel);
  assertMovable(channel, plan.moves);
  fs.appendFileSync(movedPath(channel), "");
  copyMode(path.dirname(movedPath(channel)), movedPath(channel));
  const transit: Transit = { id, ...plan };
  placeHeld(draft, JSON.stringify(transit), transitPath(channel), replaceShared);
  await finishTransit(channel, draft, transit, signal);
}

/** What another user keeps closed could not follow, and a change once decided stops everybody until it could. */
function assertMovable(channel: Channel, moves: readonly Move[]): void {
  const { F_OK, R_OK, W_OK } = fs.constants;
  const cursors = path.join(channel.path, ".cursors");
  for (const name of namesIn(cursors)) if (name.endsWith(".txt")) assertAllowed(path.join(cursors, name), R_OK, true);
  for (const { from, files, keep } of moves) {
    assertAllowed(path.join(channel.path, from), R_OK, true);
    for (const file of files) {
      const source = path.join(filesPath(channel, toEntry(from).seq), file);
      assertAllowed(source, keep ? R_OK : F_OK, !keep);
      if (!keep) assertAllowed(path.dirname(source), W_OK);
    }
  }
}

function assertAllowed(file: string, mode: number, moves = false): void {
  try {
    fs.accessSync(file, mode);
    if (moves) assertNotKept(file);
  } catch (error) {
    if (!isCode(error, "ENOENT")) throw error; // what is not there is passed over
  }
}

/** From a folder with the sticky bit only the owner of a file, or of the folder, may move it. */
function assertNotKept(file: string): void {
  const folder = path.dirname(file);
  const { mode, uid } = fs.statSync(folder);
  if ((mode & 0o1000) === 0 || [0, uid, fs.lstatSync(file).uid].includes(process.geteuid?.() ?? 0)) return;
  const message = `${quoted(file)} belongs to another user, and the sticky bit of its folder keeps it where it is`;
  throw new ChatError("no_access", message, `let its owner run it, or chmod -t ${shellWord(folder)}`);
}

/** Every step may have been done before, by who died after it. */
function carryOut(channel: Channel, draft: Draft, transit: Transit): void {
  for (const move of transit.moves) carry(channel, draft, move);
  for (const [agent, text] of Object.entries(transit.cursors ?? {}))
    placeHeld(draft, text, cursorPath(channel, agent as Name), replaceFile);
  flushFolder(channel.path);
  const { cursors: _, ...done } = transit;
  assertHeld(draft);
  fs.appendFileSync(movedPath(channel), `\n${JSON.stringify(done)}`);
  // Emptied, not removed: a removal that comes late, after a theft of the lock, would be that of another's decision.
  placeHeld(draft, "", transitPath(channel), replaceShared, false);
}

/** The new name is there before the old one goes: a reader who sees both knows from what is under way. */
function carry(channel: Channel, draft: Draft, move: Move): void {
  const [old, next] = [path.join(channel.path, move.from), path.join(channel.path, move.to)];
  if (fs.existsSync(old)) {
    const before = fs.readFileSync(old);
    const text = Buffer.from(readdressed(before.toString("latin1"), move), "latin1");
    if (move.from !== move.to) {
      const place = (made: string, to: string): void => (copyMode(old, made), moveIntoPlace(made, to));
      if (!placeOnce(draft, text, next, place)) return; // something else has that name: both stay
      removeIfPresent(fs.unlinkSync, old);
    } else if (!text.equals(before)) placeHeld(draft, text, old, replaceFile);
  }
  if (move.from !== move.to) moveFiles(channel, move);
}

/** Puts a text where there is nothing yet; false where there is something else. */
function placeOnce(draft: Draft, text: string | Uint8Array, to: string, place = moveIntoPlace, flush = true): boolean {
  try {
    placeHeld(draft, text, to, place, flush);
    return true;
  } catch (error) {
    if (!isCode(error, "EEXIST")) throw error;
    return fs.readFileSync(to).equals(Buffer.from(text));
  }
}

/** A message with its new number, in its header and in the paths of its attachments; each character is a byte. */
function readdressed(text: string, { from, to, reply, files, told }: Move): string {
  const [was, seq] = [toEntry(from).seq, toEntry(to).seq];
  const end = /\n\s*---\s*(\n|$)/.exec(text)?.index ?? text.length;
  const head = text
    .slice(0, end)
    .replace(/^(\s*seq\s*:).*?(\r?)$/m, `$1 ${seq}$2`)
    .replace(/^(\s*reply_to\s*:).*?(\r?)$/m, reply === null ? "$&" : `$1 ${reply}$2`);
  const before = /^was\s*:(.*)$/m.exec(head)?.[1];
  const marked = !told
    ? head
    : `${head.replace(/\nwas\s*:.*/, "")}\nwas: ${before === undefined ? "" : `${before.trim()}, `}${was}`;
  const body = text.slice(end);
  return marked + (files.length === 0 ? body : body.replaceAll(`_files/${padded(was)}/`, `_files/${padded(seq)}/`));
}

function moveFiles(channel: Channel, { from, to, files, keep }: Move): void {
  const [old, next] = [from, to].map((file) => filesPath(channel, toEntry(file).seq)) as [string, string];
  for (const file of files) {
    const [source, target] = [path.join(old, file), path.join(next, file)];
    if (!fs.existsSync(source) || fs.existsSync(target)) continue;
    makeFolder(path.dirname(target));
    if (keep) fs.copyFileSync(source, target);
    else persistently(() => fs.renameSync(source, target));
  }
  if (keep) return;
  for (const file of ["x", ...files])
    for (let at = path.dirname(path.join(old, file)); at.length >= old.length; at = path.dirname(at))
      removeIfPresent(fs.rmdirSync, at);
}

/** The attachments of a number: paths below its folder. */
function attachments(channel: Channel, seq: number): string[] {
  const folder = filesPath(channel, seq);
  if (!isFolder(folder)) return [];
  return filesBelow(folder);
}

/** Walks by itself: what a recursive listing calls the folder of an entry differs from Node 20 to Node 24. */
function filesBelow(folder: string, under = ""): string[] {
  return fs.readdirSync(path.join(folder, under), { withFileTypes: true }).flatMap((entry) => {
    const file = path.join(under, entry.name);
    return entry.isDirectory() ? filesBelow(folder, file) : entry.isFile() ? [file] : [];
  });
}

/** A message with the number it has now. */
function nowPosted(channel: Channel, posted: Posted, before: Numbering, now = numbering(channel)): Posted {
  let { file } = posted.message;
  for (const { moves } of changesSince(channel, before.size, before.under?.id, now))
    file = moves.find(({ from }) => from === file)?.to ?? file;
  const { seq } = toEntry(file);
  return { ...posted, message: { ...posted.message, seq, file, path: path.join(channel.path, file) } };
}

/** A message that answers another, by the number that one has now; what two had is left. */
function nowAnswering(channel: Channel, message: Message, before: Numbering): Message {
  let { reply_to } = message;
  if (reply_to === null) return message;
  for (const { moves } of changesSince(channel, before.size, before.under?.id, numbering(channel))) {
    const [only, other] = moves.filter(({ from }) => toEntry(from).seq === reply_to);
    if (only !== undefined && other === undefined) reply_to = toEntry(only.to).seq;
  }
  return { ...message, reply_to };
}

/** What had a number before numbers changed, for who still knows it by that one. */
function movedNotes(channel: Channel, seq: number): string[] {
  const gone = new Map<string, string>();
  for (const { moves } of changesSince(channel, 0, undefined, numbering(channel))) {
    const names = new Map(moves.map(({ from, to }) => [from, to]));
    for (const [was, is] of gone) gone.set(was, names.get(is) ?? is);
    for (const [from, to] of names) if (from !== to && toEntry(from).seq === seq) gone.set(from, to);
  }
  return [...gone].map(([was, is]) => `what was ${was} is ${is} now`);
}

/** A message that got another number, or, with the same one, now answers another. */
export interface Renumbered {
  readonly channel: string;
  readonly from: string; // 0005-bob-ping.md
  readonly file: string; // 0007-bob-ping.md
  readonly was: number;
  readonly seq: number;
  readonly reply_to: number | null;
}

/**
 * Settles numbers that two messages have, as clones give out that are merged by hand: the later by `ts`, then by name,
 * gets the next free number, its answers follow, and who was not shown it gets it once. What answers one of two, and
 * does not tell which, is left and noted. Throws `locked`, `gone`, `no_access`, `no_space` or `io`.
 */
export async function renumber(
  channel: Channel,
  { signal, onNote }: Blocking & { readonly onNote?: Note | undefined } = {},
): Promise<Renumbered[]> {
  return explainingLater(`renumber ${quoted(channel.name)}`, () =>
    withNumbers(channel, signal, async (draft) => {
      const { plan, notes } = planRenumbering(channel);
      await renumberAll(channel, draft, plan, signal);
      notes.forEach((note) => onNote?.(note));
      const changed = plan.moves.filter(
        (move) => move.from !== move.to || !plan.shared.includes(toEntry(move.from).seq),
      );
      return changed.reverse().map((move) => renumbered(channel, move));
    }),
  );
}

function renumbered(channel: Channel, { from, to, reply }: Move): Renumbered {
  const [was, seq] = [toEntry(from).seq, toEntry(to).seq];
  return { channel: channel.name, from, file: to, was, seq, reply_to: reply };
}

function planRenumbering(channel: Channel): { plan: Renumbering; notes: string[] } {
  const { entries } = listMessages(channel);
  const shared = [...sharedNumbers(channel, entries).keys()];
  const messages = shared.length === 0 ? [] : messagesOf(channel, entries);
  const groups = shared.map((seq) => messages.filter((message) => message.seq === seq).sort(byTime));
  let next = lastTaken(channel, entries);
  const files = new Map<string, string>(); // the new names
  for (const message of groups.flatMap(([_, ...later]) => later).sort(byTime))
    files.set(message.file, message.file.replace(/^\d+/, padded(++next)));
  const notes: string[] = [];
  const moves = messages.flatMap((message): Move[] => {
    const to = files.get(message.file) ?? message.file;
    const reply = answered(message, groups, files, notes);
    if (!shared.includes(message.seq) && reply === message.reply_to) return [];
    const attached = to === message.file ? [] : attachments(channel, message.seq);
    return [{ from: message.file, to, reply, files: attached, keep: true, ...(to !== message.file && { told: true }) }];
  });
  return { plan: { moves: moves.reverse(), shared, fresh: [] }, notes };
}

function messagesOf(channel: Channel, entries: readonly Entry[]): Message[] {
  return entries.flatMap((entry) => {
    const finding = inspectReadable(channel, entry);
    return finding.kind === "message" ? [finding.message] : [];
  });
}

function byTime(a: Message, b: Message): number {
  const [x, y] = [a, b].map(({ ts }) => Date.parse(ts) || 0) as [number, number];
  return x - y || (a.file < b.file ? -1 : 1);
}

/** Which of the messages that had a number another answers: by its time, its title, whom it is for. */
function answered(
  { reply_to, ts, title, to, file }: Message,
  groups: readonly (readonly Message[])[],
  files: ReadonlyMap<string, string>,
  notes: string[],
): number | null {
  let left = groups.find(([first]) => first?.seq === reply_to);
  if (left === undefined) return reply_to;
  const signs: ((one: Message) => boolean)[] = [
    (one) => one.file !== file,
    (one) => !(Date.parse(one.ts) > Date.parse(ts)),
    (one) => title.replace(/^re: /i, "") === one.title.replace(/^re: /i, ""),
    (one) => to.some((name) => foldName(name) === foldName(one.from)),
  ];
  for (const sign of signs) left = left.some(sign) ? left.filter(sign) : left;
  if (left.length > 1) notes.push(`${quoted(file)} answers #${reply_to}, and does not tell which: it still does`);
  const [first] = left;
  return left.length > 1 ? reply_to : toEntry(files.get(first!.file) ?? first!.file).seq;
}

// ---- delivery -------------------------------------------------------------------------------------------------------

/** One agent's view of one channel: the cursor as first read, and what has been judged since. */
interface Reader {
  readonly channel: Channel;
  readonly agent: Name;
  cursor: CursorFile;
  believed: boolean; // the cursor was compared with the newest message
  size: number; // how many names the last listing had
  readonly passed: Set<string>; // files judged not to be for the agent: their headers are parsed once
  readonly resting: Set<string>; // files for the agent, but not what it waits for: they stay unread
  readonly wanted: Map<string, Message>; // by file, what it waits for: a wait for several goes on with it
  readonly heard: Set<string>; // who has written what it waits for
  readonly renumbered: Map<number, number>; // where messages are now that had another number when it was opened
  numbering: number | undefined; // the size of the record of changes that it knows
  known: string | undefined; // the last of them, which may not be recorded yet
  readonly brought: Map<string, readonly number[]>; // as in a batch
  readonly renamed: Message[]; // those of the last look that tell of another number
}

const LOOKS = 20; // while numbers change all the time

/** The cursor is read before anything is listed, so that all it names can be seen in the listing. */
function openReader(channel: Channel, agent: Name): Reader {
  let [before, cursor, now] = [numbering(channel), cursorOrProblem(channel, agent), numbering(channel)];
  for (let left = LOOKS; left > 1 && !isSameNumbering(before, now); left--)
    [before, cursor, now] = [now, cursorOrProblem(channel, agent), numbering(channel)];
  const { size: known, under } = now;
  const decided = under?.cursors?.[agent]; // not yet: then what was read is what it was before
  if (decided !== undefined) cursor = { ...cursor, cursor: parseCursor(decided) ?? NOTHING };
  else if (under !== undefined) cursor = { ...cursor, cursor: translated(cursor.cursor, under) };
  return {
    channel,
    agent,
    cursor,
    believed: false,
    size: 0,
    passed: new Set(),
    resting: new Set(),
    wanted: new Map(),
    heard: new Set(),
    renumbered: new Map(),
    numbering: known,
    known: under?.id,
    brought: new Map(),
    renamed: [],
  };
}

function cursorOrProblem(channel: Channel, agent: Name): CursorFile {
  try {
    return readCursor(channel, agent);
  } catch (error) {
    const problem = `could not be read (${codeOf(error)})`;
    return { text: undefined, cursor: NOTHING, moved: undefined, problem }; // deliver; marking will say it again
  }
}

/** Numbers that changed since a reader was opened change for it too; nothing it knew by name is sure then. */
function follow(reader: Reader, now: Numbering): void {
  const { channel, renumbered } = reader;
  const changes = changesSince(channel, reader.numbering, reader.known, now).filter(({ id }) => !isBrought(reader, id));
  for (const change of changes) {
    reader.cursor = { ...reader.cursor, cursor: translated(reader.cursor.cursor, change) };
    const moved = new Map(change.moves.map(({ from, to }) => [toEntry(from).seq, toEntry(to).seq]));
    for (const [was, is] of renumbered) renumbered.set(was, moved.get(is) ?? is);
    for (const [was, is] of moved) if (was !== is && !renumbered.has(was)) renumbered.set(was, is);
  }
  if (changes.length > 0) for (const judged of [reader.passed, reader.resting, reader.wanted]) judged.clear();
  Object.assign(reader, { numbering: now.size ?? reader.numbering, known: changes.at(-1)?.id ?? reader.known });
}

/** One listing, judged by the cursor and a filter; without one, everything for the agent is wanted. */
function look(reader: Reader, filter?: Filter, open = inspect): Batch {
  for (let left = LOOKS; ; left--) {
    const now = numbering(reader.channel);
    follow(reader, now);
    const batch = lookOnce(reader, now.under, filter, open);
    if (left > 1 && hasDoubts(reader)) continue;
    if (left <= 1 || isSameNumbering(now, numbering(reader.channel))) return batch;
  }
}

function lookOnce(
  reader: Reader,
  under: Transit | undefined,
  filter: Filter | undefined,
  inspectOne: typeof inspect,
): Batch {
  const { channel, agent, passed, resting, wanted } = reader;
  const { listing, open } = throughTransit(listMessages(channel), under, inspectOne);
  const { entries, strays, size } = listing;
  reader.size = size;
  const newest = under === undefined ? highest(channel, entries) : (entries.at(-1)?.seq ?? 0);
  if (!reader.believed) Object.assign(reader, { believed: true, cursor: doubt(reader.cursor, newest) });
  const shared = sharedNumbers(channel, entries);
  const [messages, notes]: [Message[], string[]] = [[], oddities(channel, strays)];
  const judged = ({ file }: Entry): boolean => passed.has(file) || resting.has(file);
  const fresh = entries.filter((entry) => !judged(entry) && !holds(reader.cursor.cursor, entry, shared));
  if (fresh.length > 0) letWriterFinish(channel);
  for (const entry of fresh) {
    const known = wanted.get(entry.file);
    const finding: Finding = known === undefined ? open(channel, entry) : { kind: "message", message: known };
    if (finding.kind !== "message") notes.push(...oddity(channel, entry, finding));
    else if (isWanted(reader, finding.message, filter)) messages.push(finding.message);
    if (finding.kind === "message" && finding.message.was !== undefined) reader.renamed.push(finding.message);
  }
  const others = entries.filter(({ file }) => passed.has(file));
  notes.push(...cursorNotes(reader), ...sharedNotes(shared, messages));
  const { cursor, numbering, known, brought } = reader;
  return { channel, agent, messages, passed: others, newest, shared, cursor, notes, numbering, known, brought };
}

/**
 * Where git brought a message that got another number elsewhere, a cursor's old number may be that message's, or that of
 * the one which has it now: it is forgotten, so that both are shown (SPEC 11.2).
 */
function hasDoubts(reader: Reader): boolean {
  const { channel, cursor, brought, renamed } = reader;
  const none: Shared = new Set<number>();
  const isHeld = (seq: number): boolean => holds(cursor.cursor, { seq, file: "" }, none);
  const doubted = renamed.splice(0).filter(({ file, was }) => was!.some(isHeld) && !brought.has(file));
  const fresh = doubted.filter(({ file }) => !isSettled(channel, file));
  for (const { file, was } of fresh) brought.set(file, was!);
  if (fresh.length === 0) return false;
  const change = { moves: [], shared: [], fresh: fresh.flatMap(({ was }) => was!) };
  reader.cursor = { ...cursor, cursor: translated(cursor.cursor, change) };
  return true;
}

const broughtId = (file: string): string => `brought ${file}`;

function isBrought({ brought }: Pick<Batch, "brought">, id: string): boolean {
  return [...brought.keys()].some((file) => broughtId(file) === id);
}

/** Whether a message's former numbers have been settled here: it was renumbered here, or came by a sync. */
function isSettled(channel: Channel, file: string): boolean {
  const changes = changesSince(channel, 0, undefined, numbering(channel));
  return changes.some(({ moves, known }) => known?.includes(file) || moves.some(({ to }) => to === file));
}

/** The same for every cursor on this machine, once, before anything is marked. */
async function settleBrought({ channel, brought }: Batch, signal: AbortSignal | undefined): Promise<void> {
  for (const [file, fresh] of brought)
    await withNumbers(channel, signal, async (draft) => {
      if (isSettled(channel, file)) return;
      await renumberAll(channel, draft, { moves: [], shared: [], fresh, known: [file] }, signal, broughtId(file));
    });
}

/** A listing as it will be once what is under way has been carried out. */
function throughTransit(
  listing: Listing,
  under: Transit | undefined,
  open: typeof inspect,
): { listing: Listing; open: typeof inspect } {
  if (under === undefined) return { listing, open };
  const there = new Set(listing.entries.map(({ file }) => file));
  const going = new Map(under.moves.filter(({ from, to }) => from !== to).map((move) => [move.from, move]));
  const coming = new Map<string, Move>();
  const kept = listing.entries.filter(({ file }) => {
    const move = going.get(file);
    if (move !== undefined && !there.has(move.to)) coming.set(move.to, move);
    return move === undefined;
  });
  const entries = [...kept, ...[...coming.keys()].map(toEntry)].sort(
    (a, b) => a.seq - b.seq || (a.file < b.file ? -1 : 1),
  );
  const openMoved: typeof inspect = (channel, entry) => {
    const move = coming.get(entry.file);
    const finding = open(channel, move === undefined ? entry : toEntry(move.from));
    if (move === undefined || finding.kind !== "message") return finding;
    const message = { ...finding.message, ...entry, path: path.join(channel.path, entry.file), reply_to: move.reply };
    return { kind: "message", message };
  };
  return { listing: { ...listing, entries }, open: openMoved };
}

/** Whether a message is for the agent, and what it waits for; what is not, is not opened again. */
function isWanted(
  { agent, passed, resting, wanted, heard, renumbered }: Reader,
  message: Message,
  filter: Filter | undefined,
): boolean {
  const reply = filter?.reply === undefined ? undefined : (renumbered.get(filter.reply) ?? filter.reply);
  const [mine, asked] = [isFor(message, agent), filter === undefined || matches({ ...filter, reply }, message)];
  if (asked && (mine || filter?.reply !== undefined)) heard.add(foldName(message.from));
  if (!mine) passed.add(message.file);
  else if (!asked) resting.add(message.file);
  else wanted.set(message.file, message);
  return mine && asked;
}

/** Which messages a wait is for: all that is given must be so. Nothing given: everything but `ack` and `fyi` (SPEC 6.11). */
export interface Filter {
  readonly from?: readonly string[] | undefined; // by one of these
  readonly reply?: number | undefined; // an answer to the message with this number
  readonly status?: string | undefined;
  readonly priority?: Priority | undefined;
}

const QUIET = ["ack", "fyi"]; // they ask for nothing, and an answer to them would be answered

function isFiltered({ from, reply, status, priority }: Filter): boolean {
  return [from, reply, status, priority].some((wish) => wish !== undefined);
}

function matches(filter: Filter, { from, reply_to, status, priority = "normal" }: Message): boolean {
  if (!isFiltered(filter)) return !QUIET.includes(foldName(status));
  return (
    (filter.from === undefined || filter.from.some((name) => foldName(name) === foldName(from))) &&
    (filter.reply === undefined || filter.reply === reply_to) &&
    (filter.status === undefined || foldName(filter.status) === foldName(status)) &&
    (filter.priority === undefined || filter.priority === priority)
  );
}

/**
 * The reference writes its messages in place while it holds the lock, an empty folder. What was listed is whole once
 * that lock is gone; a lock that is left over from a crash is waited for only this long (SPEC 6.10).
 */
function letWriterFinish(channel: Channel): void {
  for (let waited = 0; waited < WRITING_MS && isReferenceWriting(channel); waited += 5) pause(5);
}

function isReferenceWriting(channel: Channel): boolean {
  try {
    return fs.readdirSync(numberLock(channel)).length === 0;
  } catch {
    return false; // no lock, or not for us to see
  }
}

/** For the agent: addressed to it or to everybody, and not its own. */
function isFor({ from, to }: Message, agent: Name): boolean {
  return foldName(from) !== agent && (to.length === 0 || to.some((name) => foldName(name) === agent));
}

/** A cursor that reaches past the newest message is not believed: what it has would be given again (SPEC 6.3). */
function doubt(file: CursorFile, newest: number): CursorFile {
  const top = topOf(file.cursor);
  if (top <= newest) return file;
  return { ...file, cursor: NOTHING, problem: `reaches #${top}, and the newest message is #${newest}` };
}

function cursorNotes({ channel, agent, cursor }: Reader): string[] {
  if (cursor.problem === undefined) return [];
  return [
    `the cursor ${quoted(cursorPath(channel, agent))} ${cursor.problem}: it is not believed, everything counts as unread`,
  ];
}

/** Numbers that more than one message has, as two clones give out that git then merges; with how many have it. */
function sharedNumbers(channel: Channel, entries: readonly Entry[]): Map<number, number> {
  const twice = entries.filter((entry, i) => entry.seq === entries[i - 1]?.seq || entry.seq === entries[i + 1]?.seq);
  const count = new Map<number, number>();
  for (const entry of twice) {
    const { kind } = inspect(channel, entry);
    if (kind === "message" || kind === "unreadable") count.set(entry.seq, (count.get(entry.seq) ?? 0) + 1);
  }
  return new Map([...count].filter(([, n]) => n > 1));
}

/** Which messages have one number, and what settles it. */
function twiceNotes(channel: Channel, entries: readonly Entry[]): string[] {
  const shared = sharedNumbers(channel, entries);
  if (shared.size === 0) return [];
  const isOne = (entry: Entry): boolean => ["message", "unreadable"].includes(inspect(channel, entry).kind);
  const names = entries.filter((entry) => shared.has(entry.seq) && isOne(entry)).map(({ file }) => file);
  const mend = `agent-chat renumber ${shellWord(channel.name)} --root ${shellWord(channel.root)}`;
  return [`${quoted(channel.name)}: messages that share a number: ${names.join(", ")}; to settle it: ${mend}`];
}

function sharedNotes(shared: ReadonlyMap<number, number>, messages: readonly Message[]): string[] {
  const concerned = [...shared].filter(([number]) => messages.some(({ seq }) => seq === number));
  return concerned.map(([seq, count]) => `${count} messages are #${seq}: each is shown to whom it is for`);
}

/**
 * What is new for an agent in a channel. Marks nothing: give the batch, and what of it was shown, to `mark`.
 * Needs neither the lock nor write access. Throws `bad_name`, `gone`, `no_access` or `io`.
 */
export function read(channel: Channel, agent: string): Batch {
  const name = parseName("agent", agent);
  return explaining(`read ${quoted(channel.name)}`, () => look(openReader(channel, name)));
}

/** Where an agent stands in a channel: what it has been shown, and how much it has not. Throws like `read`. */
export function position(channel: Channel, agent: string, onNote?: Note): Position {
  const { agent: name, cursor, newest, messages, notes } = read(channel, agent);
  notes.forEach((note) => onNote?.(note));
  const shown = formatCursor(cursor.cursor);
  return {
    channel: channel.name,
    agent: name,
    path: cursorPath(channel, name),
    shown,
    newest,
    unread: messages.length,
  };
}

// ---- presence -------------------------------------------------------------------------------------------------------

const BEAT_MS = 5_000; // between two touches of a heartbeat
const BEAT_STALE_MS = 15_000; // one that was not touched for so long is nobody's
const SAID_MAX = 64 * 1024; // bytes of a heartbeat or status; a longer one is nobody's
const SILENT_MS = 15 * 60_000; // who has not been heard of for so long is silent

/** What a running wait says of itself, in `.cursors/<agent>.wait` (SPEC 6.12). */
interface Heartbeat {
  readonly pid: number;
  readonly host: string;
  readonly since: string;
  readonly until: string;
  readonly channels: readonly string[]; // where it looks
  readonly for: string; // in words; empty: whatever comes
  readonly from: readonly string[]; // whom it could hear from; empty: anybody
}

const beatPath = (channel: Channel, agent: string): string => path.join(channel.path, ".cursors", `${agent}.wait`);

/**
 * Writes a heartbeat, or touches it by writing it anew; whole or not at all, as two sessions under one name may meet.
 * A place in line for a task stays, though another session under the name waits for something else. Returns when, by the
 * clock that dates it, which may be a server's. It is a courtesy: where it cannot be, nothing is said. Who dies here
 * leaves what goes with the next stolen cursor lock.
 */
function writeBeat(channel: Channel, agent: Name, beat: Heartbeat): number | undefined {
  const file = beatPath(channel, agent);
  const draft = path.join(path.dirname(file), `${agent}.lock.${nonce()}`);
  try {
    makeCursors(channel);
    fs.writeFileSync(draft, JSON.stringify(beat), { flag: "wx" });
    const stays = lineOf(beat) === undefined && lineOf(liveBeat(channel, agent)) !== undefined;
    if (!stays) persistently(() => fs.renameSync(draft, file));
    const { mtimeMs } = fs.lstatSync(stays ? draft : file);
    if (stays) fs.unlinkSync(draft);
    return mtimeMs;
  } catch {
    removeAtLast(fs.unlinkSync, draft);
    return undefined; // not for us to write, or no space: the wait goes on
  }
}

/** For which task a wait stands in line, by what it is for; an agent may have such a name, and be waited for. */
function lineOf(beat: Heartbeat | undefined): string | undefined {
  return beat !== undefined && TASK_LINE.test(beat.for) && !beat.from.includes(beat.for) ? beat.for : undefined;
}

function removeBeat(channel: Channel, agent: Name, text: string): void {
  const file = beatPath(channel, agent);
  if (readIfPossible(file, SAID_MAX) === text) removeAtLast(fs.unlinkSync, file);
}

/**
 * An agent's heartbeat, if its wait is surely running: touched less than 15 s before `now`, in milliseconds, and on
 * this host by a process that is there.
 */
function liveBeat(channel: Channel, agent: string, now = Date.now()): Heartbeat | undefined {
  if (!isName(agent)) return undefined;
  try {
    const found = readRegular(beatPath(channel, agent), SAID_MAX);
    if (typeof found === "string") return undefined;
    const beat = parseBeat(found.bytes.toString());
    const running = beat.host !== HOST || isAlive(beat.pid);
    return running && Math.abs(now - found.stat.mtimeMs) < BEAT_STALE_MS ? beat : undefined;
  } catch {
    return undefined; // none, or half-written
  }
}

function parseBeat(text: string): Heartbeat {
  const beat = JSON.parse(text) as Heartbeat;
  const lists: unknown[] = [beat.channels, beat.from];
  const sound =
    [beat.host, beat.since, beat.until, beat.for].every((value) => typeof value === "string") &&
    lists.every((list) => Array.isArray(list) && list.every((item) => typeof item === "string")) &&
    Number.isInteger(beat.pid) &&
    beat.pid > 0;
  if (!sound) throw new Error("no heartbeat");
  const { pid, host, since, until, channels, from } = beat;
  return { pid, host, since: shortLine(since), until: shortLine(until), channels, for: shortLine(beat.for), from };
}

/** What an agent says of itself, in `.cursors/<agent>.status`, until it expires (SPEC 6.14). */
export interface Status {
  readonly status: string; // busy, away ...
  readonly note: string;
  readonly since: string;
  readonly until: string;
}

const statusPath = (channel: Channel, agent: string): string => path.join(channel.path, ".cursors", `${agent}.status`);

/**
 * Says what an agent is doing, for so many seconds; undefined takes it back. Nothing is posted.
 * Throws `bad_name`, `bad_value`, `too_big`, `gone`, `locked`, `no_access`, `no_space` or `io`.
 */
export async function setStatus(
  channel: Channel,
  agent: string,
  said: { status: string; note?: string; seconds: number } | undefined,
  { signal }: Blocking = {},
): Promise<Status | undefined> {
  const name = parseName("agent", agent);
  if (said === undefined) {
    explaining(`take back the status of ${name}`, () => removeIfPresent(fs.unlinkSync, statusPath(channel, name)));
    return undefined;
  }
  assertSeconds("how long a status holds,", String(said.seconds), said.seconds, AGE_MAX_S);
  const now = Date.now();
  const [since, until] = [timestamp(new Date(now)), timestamp(new Date(now + said.seconds * 1000))];
  const status = headerLine("status", said.status);
  if (status.trim() === "") throw new ChatError("bad_value", "the status is blank", "--set back takes it back");
  const whole: Status = { status, note: headerLine("note", said.note ?? ""), since, until };
  await explainingLater(`write the status of ${name}`, () =>
    rewrite(channel, name, statusPath(channel, name), () => JSON.stringify(whole), signal),
  );
  return whole;
}

/** What an agent has said of itself, if it has not expired. Throws nothing. */
export function currentStatus(channel: Channel, agent: string): Status | undefined {
  if (!isName(agent)) return undefined;
  try {
    const { status, note, since, until } = JSON.parse(readIfPossible(statusPath(channel, agent), SAID_MAX)) as Status;
    const sound = [status, note, since, until].every((value) => typeof value === "string");
    if (!sound || !(Date.parse(until) > Date.now())) return undefined;
    return { status: shortLine(status), note: shortLine(note), since: shortLine(since), until: shortLine(until) };
  } catch {
    return undefined; // none, or nonsense
  }
}

/** What is known of an agent in a channel: facts that the folder holds. */
export interface Presence {
  readonly agent: string;
  readonly member: boolean;
  readonly last_post: { readonly seq: number; readonly ts: string } | null;
  readonly seen: string | null; // when it last posted, was shown something, waited, said a status or changed a task
  readonly unread: number | null; // null: its name is no name of ours, so no cursor tells
  readonly counted: boolean; // false: `unread` is only a bound
  readonly waiting: { readonly since: string; readonly until: string; readonly for: string } | null;
  readonly status: Status | null;
}

const AHEAD_MS = 60_000; // a time further in the future says nothing
const COUNTED_MAX = 100; // messages that are opened to tell a sender how many somebody has not been shown
const RECORDS_MAX = 8; // records of the newest tasks that are opened to tell a sender when somebody was seen

/**
 * What is known of these agents. For a sender who has just posted number `newest`, long counts are only bounded, and a
 * large channel is not listed where other files tell enough. A cursor that is not believed is told to `onNote`.
 * Throws `gone`, `no_access` or `io`.
 */
export function presence(channel: Channel, agents: readonly string[], newest?: number, onNote?: Note): Presence[] {
  if (agents.length === 0) return [];
  const [open, { members }] = [remembering(), readMeta(channel)];
  let listed: readonly Entry[] | undefined;
  let records: readonly string[] | undefined;
  const newestFirst = (): readonly Entry[] => (listed ??= listMessages(channel).entries.toReversed());
  const most = newest === undefined ? Infinity : RECORDS_MAX;
  const recorded = (name: string): number => lastRecord(channel, (records ??= recordNames(channel)), name, most);
  return explaining(`see who is in ${quoted(channel.name)}`, () =>
    agents.map((agent) => ({
      agent,
      member: members.some((member) => foldName(member) === foldName(agent)),
      ...sightOf(channel, agent, newestFirst, recorded, open, newest, onNote),
    })),
  );
}

function sightOf(
  channel: Channel,
  agent: string,
  newestFirst: () => readonly Entry[],
  recorded: (name: string) => number,
  open: typeof inspect,
  newest: number | undefined,
  onNote: Note | undefined,
): Omit<Presence, "agent" | "member"> {
  const name = foldName(agent);
  const [beat, status] = [liveBeat(channel, name), currentStatus(channel, name)];
  const reader = { ...openReader(channel, cursorNameOf(channel, name)), agent: name as Name };
  const files = [beat && Date.now(), reader.cursor.moved?.getTime(), Date.parse(status?.since ?? "")];
  const quick = newest !== undefined && files.some((time) => time) && fs.existsSync(newestPath(channel)); // 5.9
  const post = quick ? undefined : firstBy(channel, newestFirst(), agent, () => true, open);
  const most = quick ? Infinity : newestFirst().length; // numbers may be high where messages are few
  const bound = newest === undefined ? 0 : Math.min(most, newest - sizeOf(reader.cursor.cursor, newest));
  const counted = !quick && bound <= COUNTED_MAX;
  const times = [...files, quick ? 0 : recorded(name), Date.parse(post?.ts ?? "")].map((time) => time || 0);
  const seen = Math.max(0, ...times.filter((time) => time < Date.now() + AHEAD_MS));
  const unread = !isName(name) ? null : counted ? look(reader, undefined, open).messages.length : bound;
  cursorNotes(reader).forEach((note) => onNote?.(note));
  return {
    last_post: post === undefined ? null : { seq: post.seq, ts: post.ts },
    seen: seen > 0 ? timestamp(new Date(seen)) : null,
    unread,
    counted,
    waiting: beat === undefined ? null : { since: beat.since, until: beat.until, for: beat.for },
    status: status ?? null,
  };
}

function recordNames(channel: Channel): string[] {
  try {
    return fs.readdirSync(path.join(channel.path, ".tasks"));
  } catch (error) {
    if (!isCode(error, "ENOENT", "ENOTDIR")) throw error;
    return [];
  }
}

/** When an agent last claimed, finished or released a task, as `most` of its own records tell; 0: never. */
function lastRecord(channel: Channel, files: readonly string[], name: string, most: number): number {
  const own = files.filter((file) => file.slice(file.indexOf(".")) === `.${name}.json`); // ids have no dots
  const newest = own.length > most ? own.sort((a, b) => (parseInt(b) || 0) - (parseInt(a) || 0)).slice(0, most) : own;
  const times = newest.map((file) => {
    const record = parseRecord(readIfPossible(path.join(channel.path, ".tasks", file)));
    return record === undefined || record.by !== undefined ? 0 : Date.parse(record.since);
  });
  return times.reduce((last, time) => (time < Date.now() + AHEAD_MS ? Math.max(last, time) : last), 0);
}

/** What a sender or a wait is told of another agent, on one line. */
function presenceLine({ agent, seen, unread, counted, waiting, status }: Presence): string {
  const rest = unread === null ? "" : `, ${counted ? "" : "up to "}${count(unread)} unread`;
  const last = seen === null ? "never seen here" : `last seen ${age(seen)}${rest}`;
  const now = waiting === null ? last : `waiting now${waiting.for && `, for ${field(waiting.for)}`}`;
  return `${field(agent)}: ${now}${status === null ? "" : `; ${statusWords(status)}`}`;
}

function statusWords({ status, note, until }: Status): string {
  return `${field(status)} until ${clockTime(until)}${note && `: ${field(note)}`}`;
}

/** How long ago, in the largest unit that fits. */
function age(ts: string): string {
  const seconds = Math.max(0, (Date.now() - Date.parse(ts)) / 1000);
  if (Number.isNaN(seconds)) return "at an unknown time"; // people write dates of every kind
  const units = [
    [86_400 * 2, 86_400, "d"],
    [3600, 3600, "h"],
    [60, 60, "min"],
  ] as const;
  const [, size, unit] = units.find(([from]) => seconds >= from) ?? [0, 1, "s"];
  return `${Math.floor(seconds / size)} ${unit} ago`;
}

/** The time of a timestamp, with its day if that is another one. */
function clockTime(ts: string): string {
  const date = new Date(ts);
  if (Number.isNaN(date.getTime())) return field(ts);
  const local = timestamp(date);
  return local.slice(0, 10) === timestamp().slice(0, 10) ? local.slice(11, 19) : local.slice(0, 19).replace("T", " ");
}

/** Opens each file once, and keeps no bodies; one that cannot be read tells nothing of anybody. */
function remembering(): typeof inspect {
  const known = new Map<string, Finding>();
  return (channel, entry) => {
    const finding = known.get(entry.file) ?? slim(inspect(channel, entry));
    known.set(entry.file, finding);
    return finding;
  };
}

function slim(finding: Finding): Finding {
  if (finding.kind === "message") return { ...finding, message: { ...finding.message, body: "" } };
  return finding.kind === "unreadable" ? { kind: "odd", reason: finding.reason } : finding;
}

/** The name of an agent's cursor. What is no name here reads by the reference alone, which has its own form of it. */
function cursorNameOf(channel: Channel, name: string): Name {
  const names = cursorNames(channel);
  const found = names.find((other) => other === name) ?? names.find((other) => foldName(other) === name);
  return (found ?? (isName(name) ? name : referenceSlug(name))) as Name;
}

/** Those who are members, or have been shown something here, or wait. */
function readersOf(channel: Channel): string[] {
  return [...readMeta(channel).members, ...cursorNames(channel), ...cursorNames(channel, ".wait").filter(isName)];
}

/** The tasks that an agent has taken. */
function tasksOf(channel: Channel, agent: string): string[] {
  const isTheirs = ({ state, owner }: TaskFile): boolean => state === "claimed" && foldName(owner) === foldName(agent);
  return [...taskFiles(channel)].filter(([, files]) => files.some(isTheirs)).map(([id]) => id);
}

/**
 * Everybody who is a member, or has posted, read, waited, said a status or taken a task here; by name.
 * Throws `gone`, `no_access` or `io`.
 */
export function agentsOf(channel: Channel): string[] {
  return explaining(`see who is in ${quoted(channel.name)}`, () => {
    const authors = listMessages(channel).entries.flatMap((entry) => {
      const finding = inspect(channel, entry);
      return finding.kind === "message" && finding.message.from !== "" ? [finding.message.from] : [];
    });
    const owners = [...taskFiles(channel).values()].flat().map(({ owner }) => owner);
    const said = cursorNames(channel, ".status").filter(isName);
    const all = [...readersOf(channel), ...authors, ...said, ...owners.filter((owner) => isName(foldName(owner)))];
    const spelled = new Map(all.toReversed().map((name) => [foldName(name), name]));
    return [...spelled.values()].sort();
  });
}

/** Whom a message is for: its recipients, else the members; in an open channel those who were ever there. */
function addressees(channel: Channel, { from, to }: Message, { members } = readMeta(channel)): string[] {
  const all = to.length > 0 ? to : members.length > 0 ? members : agentsOf(channel);
  return all.filter((name) => foldName(name) !== foldName(from));
}

/** What became of one message. */
export interface Receipt {
  readonly channel: string;
  readonly seq: number;
  readonly file: string;
  readonly path: string;
  readonly from: string;
  readonly title: string;
  readonly for: readonly string[];
  readonly shown: readonly string[];
  readonly unshown: readonly string[];
  readonly replied: readonly { readonly from: string; readonly seq: number; readonly file: string }[];
}

/**
 * For whom the messages with a number were, who has been shown them, and who replied; one receipt for each of them.
 * A cursor that is not believed is told to `onNote`. Throws `no_message`, `gone`, `no_access` or `io`.
 */
export function receipts(channel: Channel, seq: number, onNote?: Note): Receipt[] {
  return explaining(`see who was shown #${seq}`, () => {
    const meta = metaIn(metaFile(channel)); // what cannot be read is an error here: it would be taken for a fact
    const asked = findMessages(channel, seq);
    const found = asked.map((message) => {
      const all = addressees(channel, message, meta);
      return { message, all, readers: all.map((name) => openReader(channel, cursorNameOf(channel, foldName(name)))) };
    });
    const { entries } = listMessages(channel); // after the cursors, which it is to judge
    const [shared, newest] = [sharedNumbers(channel, entries), highest(channel, entries)];
    const replies = repliesTo(channel, asked, entries, inspectReadable);
    const replied = replies.map(({ from, seq, file }) => ({ from, seq, file }));
    return found.map(({ message, all, readers }) => {
      const { file, path: full, from, title } = message;
      for (const reader of readers) reader.cursor = doubt(reader.cursor, newest);
      readers.flatMap(cursorNotes).forEach((note) => onNote?.(note));
      const wasShown = (_: string, i: number): boolean => holds(readers[i]!.cursor.cursor, message, shared);
      const shown = all.filter(wasShown);
      const unshown = all.filter((name, i) => !wasShown(name, i));
      return { channel: channel.name, seq, file, path: full, from, title, for: all, shown, unshown, replied };
    });
  });
}

/** The answers to the messages that have one number: they have higher ones. */
function repliesTo(
  channel: Channel,
  asked: readonly Message[],
  entries: readonly Entry[],
  open: typeof inspect = inspect,
): Message[] {
  const first = Math.min(...asked.map(firstNumber));
  return entries.flatMap((entry) => {
    const finding = entry.seq > first ? open(channel, entry) : undefined;
    if (finding?.kind !== "message") return [];
    return asked.some(({ seq }) => seq === finding.message.reply_to) ? [finding.message] : [];
  });
}

/** The number under which a message could first be answered: one that got another keeps the answers from before. */
function firstNumber({ seq, was = [] }: Message): number {
  return Math.min(seq, ...was);
}

// ---- waiting --------------------------------------------------------------------------------------------------------

const TIMEOUT_S = 100; // agents' shells kill a command at 120 s unless told otherwise
const INTERVAL_S = 0.2;
const SECONDS_MAX = 1e9; // every wait has an end, and one that a date can tell
const AGE_MAX_S = 1e11; // what is said to last, or to have lasted: a million days, and a year of four digits
const INTERVAL_MIN_S = 0.02;
const INTERVAL_MAX_S = 60;
const FRESH_MS = 2_000; // an mtime may be this coarse: one so young may hide a second change
const RELIST_MS = 5_000; // for file systems whose mtime does not tell; in a large folder 1 for each name, which costs less
const OWNER_MS = 5_000; // between looks at who started a wait
const HALF_WRITTEN_MS = 2_000; // a file that is still no message after this long is named
const DOUBT_MS = 1_000; // between looks at who else waits
const DOUBT_SHARE = 30; // and so many times as long as the last look took
const STUCK_MS = 3_000; // so long everybody must have been waiting

/** How to wait, and what for. */
export interface Waiting extends Blocking, Filter {
  readonly timeout?: number | undefined; // seconds; 0 looks once
  readonly interval?: number | undefined; // seconds between looks
  readonly any?: boolean | undefined; // once the filter has matched, give everything unread
  readonly each?: boolean | undefined; // until each of `from`, or all those asked by `reply`, have written
  readonly onNote?: Note | undefined; // told once of each file that stays odd
}

function assertSeconds(what: string, given: string, seconds: number, most = SECONDS_MAX): void {
  if (seconds >= 0 && seconds <= most) return;
  throw new ChatError("bad_value", `${what} ${quoted(given)} is not a number of seconds from 0 to ${most}`);
}

/** Thrown by `wait`: `timeout`, or `stuck` where nobody would ever write. */
export class WaitEnded extends ChatError {
  readonly came: readonly Batch[]; // with `each`: what had come by then
  readonly missing: readonly string[]; // with `each`: who had not written

  constructor(
    code: ErrorCode,
    message: string,
    remedy: string | undefined,
    came: readonly Batch[],
    missing: readonly string[],
  ) {
    super(code, message, remedy);
    this.came = came;
    this.missing = missing;
  }
}

/** A channel that a wait looks at. */
interface Watch {
  readonly reader: Reader;
  readonly notes: Map<string, number>; // when each was first seen
  readonly told: Set<string>;
  readonly doing: string; // what an error in a look says; made once, as a tick is to cost nothing
  folder: number | undefined; // its inode: a replaced folder is another channel
  modified: number;
  settled: boolean; // by its mtime nothing came since it was last listed
  listedAt: number;
  batch: Batch | undefined; // what the last listing had
  beat: string; // the heartbeat as written, empty: none
  dated: number | undefined; // its mtime; undefined: it could not be written
}

/** One wait. */
interface Waiter {
  readonly agent: Name;
  readonly channels: () => readonly Channel[];
  readonly named: boolean; // its channels were named, and must be there
  readonly watches: Map<string, Watch>; // by the channel's path
  readonly since: string;
  how: Waiting;
  aim: string; // what it is for, in words; empty: whatever comes
  hears: readonly string[]; // whom it could hear from; empty: anybody
  beatAt: number; // when the heartbeats were last touched
  doubtAt: number; // when to look next who else waits
  suspicion: { readonly who: string; readonly since: number } | undefined; // who waits for whom, unchanged since
}

/**
 * Blocks until there is something new for an agent in one of the channels; a function is asked for them at each look.
 * A tick is one `stat`; it lists only where something may have changed. Marks nothing, like `read`.
 * Throws `timeout`; `stuck` where everybody it could hear from waits too (SPEC 6.13); `gone` where a folder vanishes or
 * is replaced; `no_message`, `bad_value` and `usage` for what cannot be waited for; rejects with the signal's reason.
 */
export async function wait(
  channels: readonly Channel[] | (() => readonly Channel[]),
  agent: string,
  how: Waiting = {},
): Promise<Batch[]> {
  const waiter = openWaiter(channels, parseName("agent", agent), how);
  openWatches(waiter);
  aim(waiter, how);
  return keepReading(waiter);
}

/** What `ask` takes beside the message. */
export interface Asking extends Omit<Waiting, keyof Filter> {
  readonly onPosted?: ((posted: Posted) => void | Promise<void>) | undefined; // before it waits
}

/**
 * Posts a question and waits for the answers to it. The position is taken before the post: an answer that comes at once
 * counts, though another session under this name be shown it first. Throws like `post`, then like `wait`.
 */
export async function ask(channel: Channel, outgoing: Outgoing, how: Asking = {}): Promise<Batch[]> {
  const waiter = openWaiter([channel], parseName("sender", outgoing.from), how);
  if (how.each) assertAsks(channel, outgoing, waiter.agent);
  openWatches(waiter);
  const before = numbering(channel);
  const posted = await post(channel, { ...outgoing, status: "question" }, how);
  await how.onPosted?.(posted);
  const { message } = renumberedTo(waiter, posted, before);
  if (!posted.created) forgetAfter(waiter, firstNumber(message));
  aim(waiter, { ...how, reply: message.seq });
  return keepReading(waiter);
}

/** The question with the number it has by now; from here on the wait counts by these numbers. */
function renumberedTo({ watches }: Waiter, posted: Posted, before: Numbering): Posted {
  const [watch] = watches.values();
  const { channel, renumbered } = watch!.reader;
  const now = numbering(channel);
  follow(watch!.reader, now);
  renumbered.clear();
  return nowPosted(channel, posted, before, now);
}

/** A question that is asked again shows its answers again: the first try may have ended while it showed them. */
function forgetAfter({ watches }: Waiter, seq: number): void {
  for (const { reader } of watches.values()) {
    const { ranges, files } = reader.cursor.cursor;
    const before = ranges.map(([low, high]) => [low, Math.min(high, seq)] as const);
    reader.cursor = { ...reader.cursor, cursor: toCursor(before, files) };
  }
}

/** Whether a question is to anybody who is known, before it is posted. */
function assertAsks(channel: Channel, outgoing: Outgoing, agent: Name): void {
  const unnumbered = explaining(`post to ${quoted(channel.name)}`, () => address(channel, outgoing, "", []));
  if (askedBy(channel, [unnumbered], agent).length === 0) throw unknownEach();
}

function openWaiter(
  channels: readonly Channel[] | (() => readonly Channel[]),
  agent: Name,
  how: Waiting,
  aim = "",
): Waiter {
  for (const what of ["timeout", "interval"] as const) assertSeconds(what, String(how[what]), how[what] ?? 0);
  return {
    agent,
    channels: typeof channels === "function" ? channels : () => channels,
    named: typeof channels !== "function",
    watches: new Map(),
    since: timestampMs(new Date()),
    how,
    aim,
    hears: [],
    beatAt: -Infinity,
    doubtAt: -Infinity,
    suspicion: undefined,
  };
}

function openWatches({ agent, channels, watches }: Waiter): void {
  for (const channel of channels()) {
    if (!watches.has(channel.path)) watches.set(channel.path, openWatch(channel, agent));
  }
}

function openWatch(channel: Channel, agent: Name): Watch {
  return {
    reader: openReader(channel, agent),
    notes: new Map(),
    told: new Set(),
    doing: `watch ${quoted(channel.path)}`,
    folder: undefined,
    modified: NaN,
    settled: false,
    listedAt: -Infinity,
    batch: undefined,
    beat: "",
    dated: undefined,
  };
}

/** Says what a wait is for, and finds out whom it could hear from. Throws where that can be nobody. */
function aim(waiter: Waiter, how: Waiting): void {
  const { agent, watches } = waiter;
  const [watch] = watches.values();
  const from = how.from === undefined ? undefined : authors(how.from, agent);
  if (how.status?.trim() === "") throw new ChatError("bad_value", "the status to wait for is blank");
  Object.assign(waiter, { how: { ...how, from }, hears: from ?? [], aim: aimOf({ ...how, from }) });
  if (how.reply !== undefined) {
    if (!waiter.named || watches.size !== 1 || watch === undefined)
      throw new ChatError("usage", "a wait for replies needs the one channel that has the message");
    aimAtReplies(waiter, watch, how.reply);
  }
  if (how.each && waiter.hears.length === 0) throw unknownEach();
  if (how.any && !isFiltered(how)) throw new ChatError("usage", "without a filter everything unread is shown anyway");
}

function unknownEach(): ChatError {
  return new ChatError("usage", "whom to wait for is not known: each needs names, or a message to several");
}

/** Those whose messages are waited for: of any form that files have (SPEC 3.2), but somebody, and not who waits. */
function authors(names: readonly string[], agent: Name): string[] {
  assertList("from", names);
  if (names.length === 0) throw new ChatError("bad_value", "nobody is named to wait for");
  const isNobody = (name: string): boolean => /^[@,\s]*$/.test(name) || isEverybody(name);
  const folded = names.map((name) => (isNobody(name) ? parseName("author", name) : foldName(name)));
  if (folded.includes(agent)) throw new ChatError("bad_value", `"${agent}" cannot wait for "${agent}"`);
  return [...new Set(folded)];
}

function aimAtReplies(waiter: Waiter, { reader }: Watch, seq: number): void {
  const { channel } = reader;
  const asked = findMessages(channel, seq);
  if (waiter.hears.length === 0) waiter.hears = askedBy(channel, asked, waiter.agent);
  if (!waiter.how.each) return;
  for (const message of repliesTo(channel, asked, listMessages(channel).entries))
    if (matches({ ...waiter.how, reply: seq }, message)) reader.heard.add(foldName(message.from));
}

/** Whom messages ask, but for who waits: their recipients, else the members; an open channel does not tell. */
function askedBy(channel: Channel, asked: readonly Message[], agent: Name): string[] {
  const known = asked.some(({ to }) => to.length > 0) || readMeta(channel).members.length > 0;
  const names = known ? asked.flatMap((message) => addressees(channel, message)).map(foldName) : [];
  return [...new Set(names)].filter((name) => name !== agent);
}

/** Looks until there is something, and says meanwhile that this agent waits; `late` says that nothing came. */
async function keepWaiting<T>(
  waiter: Waiter,
  lookNow: () => T | undefined | Promise<T | undefined>,
  late: (timeout: number) => ChatError,
): Promise<T> {
  const { timeout = TIMEOUT_S, interval = INTERVAL_S, signal } = waiter.how;
  const deadline = monotonic() + timeout * 1000;
  try {
    for (;;) {
      signal?.throwIfAborted();
      const found = await lookNow();
      if (found !== undefined) return found;
      const left = deadline - monotonic();
      if (left <= 0) throw late(timeout);
      keepBeat(waiter, left);
      assertHope(waiter);
      await sleep(Math.min(left, Math.max(interval, INTERVAL_MIN_S) * 1000), signal);
    }
  } finally {
    for (const { reader, beat } of waiter.watches.values())
      if (beat !== "") removeBeat(reader.channel, reader.agent, beat);
  }
}

/** Waits for messages. */
async function keepReading(waiter: Waiter): Promise<Batch[]> {
  const lookNow = (): Batch[] | undefined => {
    openWatches(waiter);
    for (const watch of waiter.watches.values()) tick(waiter, watch);
    return hasCome(waiter) ? batchesOf(waiter) : undefined;
  };
  return keepWaiting(waiter, lookNow, (timeout) => timeoutError(waiter, timeout));
}

/** One look at one channel. */
function tick(waiter: Waiter, watch: Watch): void {
  unlessDenied(waiter, watch, () => {
    if (hasChanged(watch)) lookAgain(watch, waiter.how);
  });
}

/** Looks into a channel. One that was not named and cannot be read is only noted. */
function unlessDenied({ how, named }: Waiter, watch: Watch, look: () => void): void {
  try {
    explaining(watch.doing, look);
  } catch (error) {
    if (named || !(error instanceof ChatError) || error.code !== "no_access") throw error;
    tell(watch, error.message, how.onNote);
  }
}

/** One `stat`: whether the folder may have changed. Throws `gone`. */
function hasMoved(watch: Watch): boolean {
  const { channel } = watch.reader;
  const stat = fs.statSync(channel.path, { throwIfNoEntry: false });
  if (stat === undefined || (watch.folder ?? stat.ino) !== stat.ino) {
    const what = stat === undefined ? "is gone" : "was replaced by another";
    throw new ChatError("gone", `the channel's folder ${channel.path} ${what} while waiting`, "agent-chat channels");
  }
  watch.settled = stat.mtimeMs === watch.modified && Math.abs(Date.now() - stat.mtimeMs) >= FRESH_MS;
  if (watch.settled && monotonic() - watch.listedAt < Math.max(RELIST_MS, watch.reader.size)) return false;
  Object.assign(watch, { folder: stat.ino, modified: stat.mtimeMs, listedAt: monotonic() });
  return true;
}

/** Whether there may be something new to read. Where the mtime says no, a count tells whether it lied. */
function hasChanged(watch: Watch): boolean {
  if (!hasMoved(watch)) return false;
  return !watch.settled || watch.notes.size > 0 || listNames(watch.reader.channel).length !== watch.reader.size;
}

/** A file that is being written is not yet odd: it is named once it has stayed so, or when the wait ends. */
function lookAgain(watch: Watch, how: Waiting): void {
  const batch = look(watch.reader, how);
  watch.batch = batch;
  const now = monotonic();
  const before = new Map(watch.notes);
  watch.notes.clear();
  for (const note of batch.notes) watch.notes.set(note, before.get(note) ?? now);
  for (const [note, since] of watch.notes) {
    if (batch.messages.length > 0 || now - since >= HALF_WRITTEN_MS) tell(watch, note, how.onNote);
  }
}

function tell({ told }: Watch, note: string, onNote: Note | undefined): void {
  if (!told.has(note)) onNote?.(note);
  told.add(note);
}

function hasCome(waiter: Waiter): boolean {
  return waiter.how.each ? missing(waiter).length === 0 : hasMatched(waiter);
}

function hasMatched({ watches }: Waiter): boolean {
  return [...watches.values()].some(({ batch }) => batch !== undefined && batch.messages.length > 0);
}

/** Of those whom a wait could hear from, who has not written. */
function missing({ hears, watches }: Pick<Waiter, "hears" | "watches">): string[] {
  return hears.filter((name) => ![...watches.values()].some(({ reader }) => reader.heard.has(name)));
}

/** What has come; and what rested beside it, where all of it is wanted. */
function batchesOf({ how, watches }: Waiter): Batch[] {
  const all = how.any === true || !isFiltered(how);
  const batches = [...watches.values()].map(({ reader, batch }) => {
    if (!all || reader.resting.size === 0) return batch;
    reader.resting.clear();
    return look(reader);
  });
  return batches.filter((batch) => batch !== undefined && batch.messages.length > 0) as Batch[];
}

/** Says that this agent waits, now that there was nothing at once; again every 5 s. */
function keepBeat(waiter: Waiter, left: number): void {
  const { agent, how, aim, watches, since } = waiter;
  if (monotonic() - waiter.beatAt < BEAT_MS) return;
  waiter.beatAt = monotonic();
  const until = timestamp(new Date(Date.now() + left));
  const channels = [...watches.values()].map(({ reader }) => reader.channel.name);
  const from = how.each ? missing(waiter) : waiter.hears;
  const beat: Heartbeat = { pid: process.pid, host: HOST, since, until, channels, for: aim, from };
  for (const watch of watches.values()) {
    watch.beat = JSON.stringify(beat);
    watch.dated = writeBeat(watch.reader.channel, agent, beat);
  }
}

/** What a wait is for, in words; empty: whatever comes. */
function aimOf({ from, reply, status, priority, each }: Waiting): string {
  const words = [
    reply === undefined ? "" : `a reply to #${reply}`,
    from === undefined ? "" : `${each ? "each of " : ""}${from.join(", ")}`,
    status === undefined ? "" : `status ${oneLine(status)}`,
    priority === undefined ? "" : `priority ${priority}`,
  ];
  return listed(words, ", ");
}

/** Throws `stuck` once nobody would write: everybody this wait could hear from has been waiting for 3 s (SPEC 6.13). */
function assertHope(waiter: Waiter): void {
  const now = monotonic();
  if (!isFiltered(waiter.how) || now < waiter.doubtAt) return;
  const waits = whoSurelyWaits(waiter);
  waiter.doubtAt = monotonic() + Math.max(DOUBT_MS, DOUBT_SHARE * (monotonic() - now)); // a long channel costs little
  const who = waits && JSON.stringify([...waits].map(([name, { pid, since }]) => [name, pid, since]));
  if (who === undefined) waiter.suspicion = undefined;
  else if (waiter.suspicion?.who !== who) waiter.suspicion = { who, since: now };
  else if (now - waiter.suspicion.since >= STUCK_MS) throw stuckError(waiter, waits!);
}

/** The same as `whoWaits`, and undefined where that cannot be found out: for that no wait fails. */
function whoSurelyWaits(waiter: Waiter): ReturnType<typeof whoWaits> {
  try {
    return explaining("see who waits", () => whoWaits(waiter));
  } catch (error) {
    if (!(error instanceof ChatError)) throw error;
    return undefined; // what does not pass is said by the next look at the channel
  }
}

/** Who waits for whom, where nobody is left who could write first; undefined as long as somebody may. */
function whoWaits(waiter: Waiter): Map<string, Heartbeat> | undefined {
  const all = new Map<string, Heartbeat>();
  for (const { reader, dated } of waiter.watches.values()) {
    const { channel } = reader;
    if (dated === undefined) return undefined; // no clock to judge the others by
    const now = dated + monotonic() - waiter.beatAt;
    const near = waitingOn(waiter, channel, now, () => readersOf(channel)); // without opening every message
    if (near === undefined || [...near.keys()].some((name) => hasUnread(channel, name as Name))) return undefined;
    // Once more, or somebody might have been shown a message, and ended its wait, before we looked what is unread.
    const waits = waitingOn(waiter, channel, now, () => agentsOf(channel));
    if (waits === undefined || [...waits.keys()].some((name) => !near.has(name))) return undefined;
    for (const [name, other] of waits) all.set(name, other);
  }
  return all;
}

/**
 * The heartbeats of all whom a wait depends on, directly or through those who wait themselves; undefined if one of them
 * does not wait, or looks at a channel that this wait does not see, or if all of them wait for work alone.
 */
function waitingOn(
  { agent, how, hears, watches }: Waiter,
  channel: Channel,
  now: number,
  everybody: () => readonly string[],
): Map<string, Heartbeat> | undefined {
  const reach = (names: readonly string[]): readonly string[] => (names.length > 0 ? names : everybody());
  const seen = new Set([...watches.values()].map(({ reader }) => reader.channel.name));
  const waits = new Map<string, Heartbeat>();
  const queue = [...reach(how.each ? missing({ hears, watches }) : hears)];
  for (const word of queue) {
    const name = foldName(word);
    if (name === agent || waits.has(name)) continue;
    const beat = liveBeat(channel, name, now);
    if (beat === undefined || !beat.channels.every((other) => seen.has(other))) return undefined;
    waits.set(name, beat);
    queue.push(...reach(beat.from));
  }
  return [...waits.values()].some((beat) => beat.for !== "") ? waits : undefined;
}

function hasUnread(channel: Channel, agent: Name): boolean {
  return look(openReader(channel, agent)).messages.length > 0;
}

function timeoutError(waiter: Waiter, timeout: number): WaitEnded {
  const { agent, how, aim, watches } = waiter;
  for (const watch of watches.values()) for (const note of watch.notes.keys()) tell(watch, note, how.onNote);
  const seen = [...watches.values()].map(
    ({ reader, batch }) => [reader.channel, `newest #${batch?.newest ?? 0}`] as const,
  );
  const what = hasMatched(waiter) ? "nothing more" : "nothing new";
  const words = [
    `${what} for ${agent}${aim && ` (${aim})`} in ${timeout} s; looked at ${placesText(seen)}`,
    ...(how.each ? [`missing: ${missing(waiter).join(", ")}`] : []),
    ...restingWords(waiter),
    ...[...watches.values()].flatMap(({ reader }) => othersAround(waiter, reader.channel)),
  ];
  return ended("timeout", waiter, words.join("; "), undefined);
}

const PLACES_MAX = 5; // channels in a line of talk: it is read, and paid for, at each look

/** Where there was nothing, with words to each; of many channels only how many, and in which root. */
function placesText(places: readonly (readonly [Channel, words: string])[]): string {
  if (places.length > PLACES_MAX) return `${places.length} channels of ${places[0]![0].root}`;
  return places.map(([channel, words]) => channel.path + (words && ` (${words})`)).join(", ");
}

function ended(code: "timeout" | "stuck", waiter: Waiter, message: string, remedy: string | undefined): WaitEnded {
  const absent = waiter.how.each ? missing(waiter) : []; // before all that is unread is looked at
  const came = hasMatched(waiter) ? batchesOf(waiter) : [];
  return new WaitEnded(code, visible(message), remedy, came, absent);
}

function restingWords({ agent, how, watches }: Waiter): string[] {
  const resting = [...watches.values()].map(({ reader }) => reader).filter((reader) => reader.resting.size > 0);
  const [first] = resting;
  if (first === undefined) return [];
  const count = resting.reduce((sum, reader) => sum + reader.resting.size, 0);
  const where = resting.length === 1 ? ` ${shellWord(first.channel.name)}` : "";
  const command = `agent-chat read${where} --as ${agent} --root ${shellWord(first.channel.root)}`;
  return [`${count} unread ${isFiltered(how) ? "besides" : "of status ack or fyi"}: ${command}`];
}

/** Those whom a wait could hear from; for one that takes what comes, those who wait or have said a status. */
function othersAround({ agent, how, hears }: Waiter, channel: Channel): string[] {
  try {
    if (isFiltered(how)) return presence(channel, hears.slice(0, PRESENCE_MAX)).map(presenceLine);
    const near = [...new Set([...readersOf(channel), ...cursorNames(channel, ".status").filter(isName)].map(foldName))];
    const others = near.filter((name) => name !== agent);
    const around = others.filter((name) => liveBeat(channel, name) ?? currentStatus(channel, name));
    const all =
      around.length > 0 && others.every((name) => liveBeat(channel, name)) ? ["everybody else waits too"] : [];
    return [...all, ...presence(channel, around.slice(0, PRESENCE_MAX)).map(presenceLine)];
  } catch {
    return []; // said beside something else
  }
}

const PRESENCE_MAX = 5; // agents in a line of talk

/** The wait cannot end well: who waits for whom, since when; and what to do about it. */
function stuckError(waiter: Waiter, waits: ReadonlyMap<string, Heartbeat>): WaitEnded {
  const { agent, watches } = waiter;
  const who = [...waits].map(
    ([name, beat]) => `${name} waits for ${field(beat.for) || "work"} since ${clockTime(beat.since)}`,
  );
  const onUs = [...waits].find(([, beat]) => beat.from.some((name) => foldName(name) === agent));
  const [first] = onUs ?? [...waits.keys()];
  const [watch] = [...watches.values()];
  const channel = shellWord(watch!.reader.channel.name);
  const unread = [...watches.values()].some(({ reader }) => reader.resting.size > 0);
  const mend = unread
    ? `agent-chat read ${channel} --as ${agent}`
    : `agent-chat post ${channel} --as ${agent} --to ${first}`;
  return ended("stuck", waiter, [`no one will answer ${agent}`, ...who, ...restingWords(waiter)].join("; "), mend);
}

// ---- tasks ---------------------------------------------------------------------------------------------------------

/** A task, as its file's name and header tell; the keys that `--json` prints. */
export interface Task {
  readonly channel: string;
  readonly task: string; // its id: 12
  readonly file: string;
  readonly path: string; // absolute
  readonly state: "open" | "blocked" | "claimed" | "done";
  readonly title: string;
  readonly from: string; // who made it; empty: made by hand
  readonly for: readonly string[]; // who may take it; empty: anybody
  readonly after: readonly string[]; // the tasks that have to be done first
  readonly priority: Priority;
  readonly owner: string | null;
  readonly since: string | null; // when it was made, taken or finished, as far as that was recorded
  readonly slot?: true; // something to be held, not to be done
}

/** A task to be made. */
export interface NewTask {
  readonly from: string;
  readonly title: string;
  readonly body?: string | undefined;
  readonly for?: readonly string[] | undefined;
  readonly after?: readonly string[] | undefined;
  readonly priority?: Priority | undefined;
  readonly id?: string | undefined; // none: the next free number
  readonly slot?: boolean | undefined;
}

const TASK_ID = "[A-Za-z0-9](?:[A-Za-z0-9_-]{0,62}[A-Za-z0-9])?";
const TASK_WORD = RegExp(`^(?:\\.[/\\\\])?(?:task-|#)?(${TASK_ID})(?:\\.(?:CLAIMED|DONE)-[^/\\\\\\s]+)?(?:\\.md)?$`);
const TASK_LINE = RegExp(`^task-${TASK_ID}$`);
const TASK = RegExp(`^task-(${TASK_ID})(?:\\.(CLAIMED|DONE)-(.+))?\\.md$`);

/** The id in `12`, `task-12`, `task-12.md` or the name of a taken task's file; throws `bad_name`. */
export function parseTask(text: string): string {
  const match = TASK_WORD.exec(String(text).trim()); // without types it may be a number
  if (match !== null && !DEVICE.test(match[1]!.toLowerCase())) return match[1]!;
  throw new ChatError("bad_name", `${quoted(String(text))} is not a task: write 12, task-12 or task-12.md`);
}

interface TaskFile {
  readonly id: string;
  readonly file: string;
  readonly state: "open" | "claimed" | "done";
  readonly owner: string;
}

function taskFiles(channel: Channel): Map<string, TaskFile[]> {
  const tasks = new Map<string, TaskFile[]>();
  for (const file of listNames(channel)) {
    const [, id, mark, owner = ""] = TASK.exec(file) ?? [];
    if (id === undefined || DEVICE.test(id.toLowerCase())) continue; // no word would name it
    const state = mark === undefined ? "open" : mark === "CLAIMED" ? "claimed" : "done";
    tasks.set(id, [...(tasks.get(id) ?? []), { id, file, state, owner }]);
  }
  return tasks;
}

function filesOf(channel: Channel, id: string): TaskFile[] {
  return taskFiles(channel).get(id) ?? [];
}

/**
 * All tasks of a channel, by number, then by name; a task that two clones took apart is there once for each of them.
 * Throws `gone`, `no_access` or `io`.
 */
export function listTasks(channel: Channel): Task[] {
  return explaining(`list the tasks of ${quoted(channel.name)}`, () => {
    for (let left = LISTINGS; ; left--) {
      const files = taskFiles(channel);
      const found = [...files.values()].flat();
      const tasks = found.filter((file) => isTask(channel, file)).map((file) => readTask(channel, file, files));
      const again = [...taskFiles(channel).values()].flat();
      // What is renamed meanwhile may be listed twice or not at all, and cannot be read by its old name (5.7).
      if (left <= 1 || namesOf(found) === namesOf(again)) return tasks.sort(byId);
    }
  });
}

const LISTINGS = 20; // of a board that changes all the time, until one holds still

function namesOf(files: readonly { readonly file: string }[]): string {
  return files.map(({ file }) => file).join(", ");
}

/** An open one must be a regular file to be taken; what has another state stands in the way, whatever it is. */
function isTask(channel: Channel, { file, state }: TaskFile): boolean {
  if (state !== "open") return true;
  return fs.lstatSync(path.join(channel.path, file), { throwIfNoEntry: false })?.isFile() === true;
}

function byId(a: { task: string }, b: { task: string }): number {
  const [x, y] = [Number(a.task), Number(b.task)].map((n) => (Number.isNaN(n) ? Infinity : n)) as [number, number];
  return x === y ? (a.task < b.task ? -1 : a.task > b.task ? 1 : 0) : x - y;
}

/** The files of one task, to decide on it: throws the system's error where its text cannot be read, for it is not known then. */
function tasksNamed(channel: Channel, id: string): Task[] {
  const files = taskFiles(channel);
  return (files.get(id) ?? []).map((file) => {
    try {
      const found = readRegular(path.join(channel.path, file.file));
      return readTask(channel, file, files, typeof found === "string" ? "" : found.bytes.toString());
    } catch (error) {
      throw isCode(error, "ENOENT") ? startOver() : error; // renamed since it was listed, by who heeds no lock or is late
    }
  });
}

function readTask(
  channel: Channel,
  { id, file, state, owner }: TaskFile,
  files: Map<string, TaskFile[]>,
  text = readOrUndefined(path.join(channel.path, file)),
): Task {
  const unknown = text === undefined ? UNREADABLE : isHalfWritten(text) ? HALF_WRITTEN : "";
  const { fields, body } = splitMessage(text ?? "") ?? { fields: new Map<string, string>(), body: text ?? "" };
  const get = (key: string): string => fields.get(key) ?? "";
  const after = parseList(get("after")).map(taskIdOr);
  const priority = bare(get("priority")).toLowerCase();
  const record = state === "open" ? undefined : parseRecord(readIfPossible(recordPath(channel, id, owner)));
  const since = state === "open" ? get("ts") : record?.state === state ? record.since : "";
  const blocked = state === "open" && (unknown !== "" || after.some((other) => !isDone(files, other)));
  return {
    channel: channel.name,
    task: id,
    file,
    path: path.join(channel.path, file),
    state: blocked ? "blocked" : state,
    title: unknown || get("title") || titleFrom(body),
    from: bare(get("from")),
    for: parseRecipients(get("for")),
    after,
    priority: isPriority(priority) ? priority : "normal",
    owner: state === "open" ? null : owner,
    since: since || null,
    ...(bare(get("slot")) === "true" && { slot: true }),
  };
}

const UNREADABLE = "(could not be read)"; // in the place of a title: whom it is for, and after what, is not known
const HALF_WRITTEN = "(half-written: its header does not end)";

/** A header that begins with a key and has no end: the rest is still to come, and may say that it is for somebody. */
function isHalfWritten(text: string): boolean {
  return /^\ufeff?---[ \t]*(\r?\n(\w*$|\w+:)|$)/.test(text) && splitMessage(text) === undefined;
}

/** The id in a word of `after`, as people write it: 3, task-3 or #3; what is none stays, and is never done. */
function taskIdOr(word: string): string {
  try {
    return parseTask(word);
  } catch {
    return word;
  }
}

function isDone(files: Map<string, TaskFile[]>, id: string): boolean {
  const found = files.get(id) ?? [];
  return found.length > 0 && found.every(({ state }) => state === "done");
}

/**
 * Makes a task, open to be claimed. Throws `task_exists`, `no_task` for an `after` that is not there, `bad_value` for
 * one that would wait for itself, and what `post` throws for names and texts; then nothing was made.
 */
export async function createTask(channel: Channel, task: NewTask, { signal }: Blocking = {}): Promise<Task> {
  return explainingLater(`make a task in ${quoted(channel.name)}`, async () => {
    const meta = readMeta(channel);
    const wanted = task.id === undefined ? undefined : parseTask(task.id);
    const names = recipients(channel, meta, task.for ?? []);
    const mend = (name: string): string => `agent-chat join ${shellWord(channel.name)} --as ${name}`;
    checkRecipients(channel, meta, parseName("author", task.from), names, [], mend);
    const after = (task.after ?? []).map(parseTask);
    const text = formatTask(task, names, after);
    const made = await withNumbers(channel, signal, (draft) => {
      const id = wanted ?? nextTaskId(channel);
      if (wanted !== undefined) assertUnused(channel, wanted);
      checkAfter(channel, id, after);
      const [file, files] = [`task-${id}.md`, taskFiles(channel)];
      const whole = text(id);
      placeTask(channel, draft, file, whole); // the last call that can fail: it is there
      return readTask(channel, { id, file, state: "open", owner: "" }, files, whole);
    });
    flushFolder(channel.path);
    return made;
  });
}

/** The text of a task, once its id is known. */
function formatTask(task: NewTask, names: readonly string[], after: readonly string[]): (id: string) => string {
  const title = headerLine("title", task.title).trim();
  if (title === "") throw new ChatError("bad_value", "the title of the task is blank: nothing was made");
  const body = task.body === undefined ? "" : checkBody(task.body);
  const from = parseName("author", task.from);
  const { priority } = priorityOf(task);
  return (id) =>
    [
      "---",
      `task: ${id}`,
      `from: ${from}`,
      `ts: ${timestamp()}`,
      `title: ${formatValue(title)}`,
      ...(names.length > 0 ? [`for: ${names.join(", ")}`] : []),
      ...(after.length > 0 ? [`after: ${after.join(", ")}`] : []),
      ...(priority === undefined ? [] : [`priority: ${priority}`]),
      ...(task.slot === true ? ["slot: true"] : []),
      "---",
      body.endsWith("\n") || body === "" ? body : `${body}\n`,
    ].join("\n");
}

const TASK_NAME = /^task-([^.]+)\./i; // anything that bears a task's name

const TASK_NUMBER_MAX = 999_999_999_999_999; // an id of more digits is a word, and none comes after it

/** One more than the highest number of a task here, and in other names of files. */
function nextTaskId(channel: Channel, others: Iterable<string> = []): string {
  const numbers = [...listNames(channel), ...others].map((name) =>
    Number(/^\d{1,15}$/.exec(TASK_NAME.exec(name)?.[1] ?? "")?.[0] ?? 0),
  );
  const next = Math.max(0, ...numbers) + 1;
  if (next <= TASK_NUMBER_MAX) return String(next);
  throw new ChatError("full", `${channel.path} has a task of the last number, ${next - 1}`, "give this one an --id");
}

function assertUnused(channel: Channel, id: string): void {
  const other = listNames(channel).find((name) => plainId(TASK_NAME.exec(name)?.[1] ?? "") === plainId(id));
  if (other === undefined) return;
  const message = `task-${id} is there already: ${path.join(channel.path, other)}; nothing was made`;
  throw new ChatError("task_exists", message, "give it another --id, or none");
}

function placeTask(channel: Channel, draft: Draft, file: string, text: string): void {
  writeAll(draft.fd, text);
  fs.fsyncSync(draft.fd);
  try {
    moveIntoPlace(draft.path, path.join(channel.path, file));
  } catch (error) {
    throw isCode(error, "EEXIST") ? startOver() : error; // a person's, who heeds no lock: it has another number, or none
  }
}

/** Refuses a task that would come after one that is not there, or, over others, after itself. */
function checkAfter(channel: Channel, id: string, after: readonly string[]): void {
  const files = taskFiles(channel);
  const all = after.length === 0 ? [] : [...files.values()].flat().map((file) => readTask(channel, file, files));
  const seen = new Set<string>();
  const queue = [...after];
  for (const next of queue) {
    if (next === id) {
      const message = `--after ${quoted(after.join())}: task-${id} would wait for itself; nothing was made`;
      throw new ChatError("bad_value", message);
    }
    if (seen.has(next)) continue;
    seen.add(next);
    queue.push(...all.filter(({ task }) => task === next).flatMap((task) => task.after));
  }
  const missing = after.find((other) => !files.has(other));
  if (missing !== undefined) throw noTask(channel, missing);
  const slot = all.find(({ task, slot }) => slot && after.includes(task));
  if (slot !== undefined)
    throw new ChatError("bad_value", `--after: task-${slot.task} is a slot, and never done; nothing was made`);
}

/** Says what there is instead; what is only spelled otherwise is what was meant, and no other is suggested then. */
function noTask(channel: Channel, id: string, mend?: string): ChatError {
  const tasks = listTasks(channel);
  const open = openOf(tasks).map(({ task }) => task);
  const near = nearestTask(
    id,
    tasks.map(({ task }) => task),
  );
  const more = open.length > OPEN_NAMED ? `, and ${count(open.length - OPEN_NAMED)} more` : "";
  const there = open.length === 0 ? "no task is open" : `open: ${open.slice(0, OPEN_NAMED).join(", ")}${more}`;
  const message = `no task "${id}" in ${channel.path}; ${there}`;
  const look = `agent-chat tasks ${shellWord(channel.name)}`;
  if (near === undefined) return new ChatError("no_task", message, mend ?? look);
  return new ChatError("no_task", `${message}; did you mean ${quoted(near)}?`, look, [id, near]);
}

const OPEN_NAMED = 10; // tasks in one line of talk

/** The task that an id which is not there was meant for. */
function nearestTask(id: string, ids: readonly string[]): string | undefined {
  const word = plainId(id).replace(/^task[-_]?/, "");
  return ids.find((other) => plainId(other) === plainId(word)) ?? nearest(word, ids);
}

/** Ids that look like one and the same: `DB` and `db`, `1` and `01`. */
function plainId(id: string): string {
  return id.toLowerCase().replace(/^0+(?=\d)/, "");
}

/**
 * What an agent did last with a task, in `.tasks/<id>.<agent>.json`: written under the lock before the file is renamed,
 * so that its age is known on every machine, and what has to be told is told though a process dies between (SPEC 7.5).
 */
interface TaskRecord {
  readonly state: "claimed" | "done" | "released";
  readonly since: string;
  readonly after: number; // the highest message then: what this tells has a higher number
  readonly id: string; // tells it from the same agent's next
  readonly owner: string | null; // whose it was
  readonly by?: Name | undefined; // another wrote it, who found a claim without a record: it shows no sign of the agent
}

const recordPath = (channel: Channel, id: string, agent: string): string =>
  path.join(channel.path, ".tasks", `${id}.${foldName(agent)}.json`);

/** Throws the system's error where there is one that cannot be read: nothing is decided without it. */
function readRecord(channel: Channel, id: string, agent: string): TaskRecord | undefined {
  if (!isName(foldName(agent))) return undefined;
  try {
    const found = readRegular(recordPath(channel, id, agent));
    return typeof found === "string" ? undefined : parseRecord(found.bytes.toString());
  } catch (error) {
    if (isCode(error, "ENOENT", "ENOTDIR")) return undefined;
    throw error;
  }
}

function parseRecord(text: string): TaskRecord | undefined {
  try {
    const record = JSON.parse(text) as TaskRecord;
    const sound = ["claimed", "done", "released"].includes(record.state) && !Number.isNaN(Date.parse(record.since));
    return sound && Number.isInteger(record.after) ? record : undefined;
  } catch {
    return undefined; // none, as of a claim of the reference's, or nonsense
  }
}

/** An agent's turn at a task, under the channel's lock. */
interface Turn {
  readonly channel: Channel;
  readonly draft: Draft;
  readonly id: string;
  readonly name: Name;
}

function writeRecord(
  { channel, draft, id, name }: Turn,
  state: TaskRecord["state"],
  owner: string | null,
  by?: Name,
): TaskRecord {
  const after = highest(channel, listMessages(channel).entries);
  const record: TaskRecord = { state, since: timestamp(), after, id: nonce(), owner, by };
  makeWithin(channel, ".tasks");
  placeHeld(draft, JSON.stringify(record), recordPath(channel, id, name), fs.renameSync, false);
  return record;
}

/** How to claim. */
export interface Claiming extends Blocking {
  readonly older?: number | undefined; // seconds: take it from an owner who was silent for so long
}

/**
 * Takes a task: one rename, decided under the channel's lock (SPEC 7). Asked again by its owner: `already`.
 * Throws `taken` naming the owner, `blocked`, `reserved`, `not_stale`, `no_task` naming the open ones, `bad_name`,
 * `bad_value`, `locked`, `gone`, `no_access`, `no_space` or `io`.
 */
export async function claim(channel: Channel, agent: string, task: string, how: Claiming = {}): Promise<Claim> {
  const [name, id] = [parseName("agent", agent), parseTask(task)];
  return takeTask(channel, name, () => id, how);
}

/**
 * Takes the first task that is open for an agent, by priority, then by number; with `older`, one that was left by its
 * owner if none is open. Throws `no_task` where there is none, `paused`, and what `claim` throws.
 */
export async function claimNext(channel: Channel, agent: string, how: Claiming = {}): Promise<Claim> {
  const name = parseName("agent", agent);
  for (;;) {
    try {
      return await takeTask(channel, name, () => nextTask(channel, name, how.older), how);
    } catch (error) {
      if (!isCode(error, "taken")) throw error; // the reference took it in between: then the next one
      await sleep(1, how.signal);
    }
  }
}

/** Decides and renames under one lock; `choose` says which. */
async function takeTask(
  channel: Channel,
  name: Name,
  choose: () => string,
  { older, signal }: Claiming,
): Promise<Claim> {
  assertSeconds("older", String(older), older ?? 0, AGE_MAX_S);
  const renamed: Renamed = { id: undefined, here: false, kept: false };
  return explainingLater(`claim a task of ${quoted(channel.name)}`, () =>
    withNumbers(channel, signal, (draft) => {
      const id = renamed.here ? renamed.id! : choose();
      renamed.id = id;
      const turn: Turn = { channel, draft, id, name };
      const { own, others } = sidesOf(turn, renamed);
      const mine = own?.file ?? `task-${id}.CLAIMED-${name}.md`;
      const left = own === undefined ? abandoned(turn, others, older) : undefined;
      if (others.length > 0 && left === undefined) throw refusal(channel, id, others, name);
      if (own === undefined) take(turn, left, mine, renamed);
      assertHeld(draft);
      tellRobbed(turn, renamed.own);
      return {
        task: id,
        from: renamed.from ?? `task-${id}.md`,
        file: mine,
        path: path.join(channel.path, mine),
        already: !renamed.here,
        stolen_from: renamed.left ?? null,
      };
    }),
  );
}

/** The claim of one's own, and what others have of a task; a rename of our own that came too late is taken back first. */
function sidesOf({ channel, id, name }: Turn, renamed: Renamed): { own: TaskFile | undefined; others: TaskFile[] } {
  const files = filesOf(channel, id);
  if (files.length === 0) throw noTask(channel, id, claimAnother(channel, name));
  const own = files.find(({ state, owner }) => state === "claimed" && foldName(owner) === name);
  const others = files.filter((file) => file.state !== "open" && file !== own);
  renamed.here &&= own !== undefined; // or somebody else has changed it since
  if (!renamed.here) Object.assign(renamed, { from: undefined, left: undefined, own: undefined }); // as if never
  if (renamed.here && !renamed.kept && isTooLate(channel, id, others, renamed)) {
    giveBack(path.join(channel.path, own!.file), path.join(channel.path, renamed.from!), renamed);
    startOver();
  }
  return { own, others };
}

/** A rename that came after a theft of the lock stands, unless somebody decided otherwise in between. */
function isTooLate(channel: Channel, id: string, others: readonly TaskFile[], { left, record }: Renamed): boolean {
  return others.length > 0 || (left !== undefined && readRecord(channel, id, left)?.id !== record);
}

/** What one claim has done so far, over all the locks it had. */
interface Renamed {
  id: string | undefined; // the task that was chosen
  here: boolean; // its file carries our name, by our doing
  kept: boolean; // and it could not be given back: the task was made anew with another text
  from?: string | undefined; // the file's name before
  left?: string | undefined; // who had left it
  record?: string | undefined; // that claim's
  own?: TaskRecord | undefined; // of the rename
}

function take(turn: Turn, left: TaskFile | undefined, mine: string, renamed: Renamed): void {
  const { channel, id, name } = turn;
  if (left === undefined) assertFree(channel, id, name);
  else assertOpenTo(channel, readTask(channel, left, taskFiles(channel)), name);
  const from = left?.file ?? `task-${id}.md`;
  const record = left && readRecord(channel, id, left.owner)?.id;
  const own = writeRecord(turn, "claimed", left?.owner ?? null);
  try {
    persistently(() => fs.renameSync(path.join(channel.path, from), path.join(channel.path, mine)));
    Object.assign(renamed, { here: true, from, left: left?.owner, record, own });
  } catch (error) {
    if (!isCode(error, "ENOENT")) throw error;
    startOver(); // the reference renames without our lock, and was a moment quicker
  }
}

/** Throws where a task is not there to be taken by this agent: `no_task`, `reserved`, `blocked`. */
function assertFree(channel: Channel, id: string, name: Name): void {
  const from = path.join(channel.path, `task-${id}.md`);
  const stat = fs.lstatSync(from, { throwIfNoEntry: false });
  if (stat === undefined) startOver(); // it was listed: somebody without our lock was quicker
  if (!stat.isFile()) throw new ChatError("no_task", `${quoted(from)} is not a regular file`);
  const files = taskFiles(channel);
  const task = tasksNamed(channel, id).find(({ owner }) => owner === null) ?? startOver();
  assertOpenTo(channel, task, name);
  if (task.state === "blocked" && isHalfWritten(readIfPossible(from))) {
    const mend = "where nobody is writing it any more, end its header with a line ---";
    throw new ChatError("blocked", `task-${id} is half-written, its header does not end: ${from}`, mend);
  }
  const first = task.after.filter((other) => !isDone(files, other));
  if (first.length === 0) return;
  const names = first.map((other) => `task-${other}${files.has(other) ? "" : " (not there)"}`);
  const message = `task-${id} comes after ${visible(names.join(", "))}, not done yet: ${from}`;
  throw new ChatError("blocked", message, claimAnother(channel, name));
}

function assertOpenTo(channel: Channel, task: Task, name: Name): void {
  if (isOpenTo(task, name)) return;
  const message = `task-${task.task} is for ${visible(task.for.join(", "))}: ${task.path}`;
  throw new ChatError("reserved", message, claimAnother(channel, name));
}

function isOpenTo({ for: names }: Task, name: Name): boolean {
  return names.length === 0 || names.some((other) => foldName(other) === name);
}

/** What to type for the first task that an agent can have, or to see why there is none. */
function claimAnother(channel: Channel, name: Name): string {
  const [first] = claimable(listTasks(channel), name);
  return first === undefined ? `agent-chat tasks ${shellWord(channel.name)}` : claimCommand(channel, first.task, name);
}

function claimCommand(channel: Channel, id: string, name: Name): string {
  return `agent-chat claim ${shellWord(channel.name)} ${id} --as ${name}`;
}

function refusal(channel: Channel, id: string, others: readonly TaskFile[], name: Name | undefined): ChatError {
  const who = others.map(({ state, owner }) => `${state === "done" ? "finished by" : "claimed by"} ${visible(owner)}`);
  const message = `task-${id} is ${who.join(" and ")}: ${path.join(channel.path, others[0]!.file)}`;
  const mend = name && claimAnother(channel, name);
  return new ChatError("taken", message, mend);
}

/** The task for `claimNext`. Throws `paused`, and `no_task` with what there is instead. */
function nextTask(channel: Channel, name: Name, older: number | undefined): string {
  const pause = currentPause(channel);
  if (pause !== undefined) {
    const mend = `agent-chat claim ${shellWord(channel.name)} --next --wait --as ${name}`; // who paused it resumes it
    throw new ChatError("paused", `${channel.name} is ${pauseWords(pause)}`, mend);
  }
  const tasks = listTasks(channel);
  const [open] = claimable(tasks, name);
  const owned = (id: string): number => tasks.filter(({ task, owner }) => task === id && owner !== null).length;
  const isWanted = (task: Task): boolean => !task.slot && isOpenTo(task, name) && owned(task.task) === 1;
  const left =
    open ?? tasks.find((task) => older !== undefined && isWanted(task) && isLeft(channel, task, name, older));
  if (left !== undefined) return left.task;
  const count = (state: Task["state"]): number => tasks.filter((task) => task.state === state).length;
  const slots = tasks.filter((task) => task.slot && task.state === "open" && isOpenTo(task, name)).length;
  const counts = [
    `${count("blocked")} blocked`,
    `${count("claimed")} claimed`,
    `${openOf(tasks).length} open for others`,
    ...(slots > 0 ? [`${slots} free as a slot, by its id`] : []),
    `${count("done")} done`,
  ];
  throw new ChatError("no_task", `nothing to claim for ${name} in ${channel.path}: ${counts.join(", ")}`);
}

/** What an agent could claim next, the first of it first; a slot is taken by its name only. */
function claimable(tasks: readonly Task[], name: Name): Task[] {
  const open = openOf(tasks).filter((task) => isOpenTo(task, name));
  return open.sort((a, b) => PRIORITIES.indexOf(b.priority) - PRIORITIES.indexOf(a.priority));
}

/** What can be claimed: not what was made anew while another has it, and no slots. */
function openOf(tasks: readonly Task[]): Task[] {
  const spare = sparesOf(tasks);
  return tasks.filter((task) => task.state === "open" && !task.slot && !spare.includes(task));
}

/** Open files of tasks that somebody has, or has finished, as a merge by hand or a copy leaves them: nobody can claim them. */
function sparesOf(tasks: readonly Task[]): Task[] {
  const taken = new Set(tasks.filter(({ owner }) => owner !== null).map(({ task }) => task));
  return tasks.filter(({ task, state }) => state === "open" && taken.has(task));
}

/** The file of an owner who left it, if it may be taken; undefined where it is not asked. Throws `not_stale`. */
function abandoned(turn: Turn, others: readonly TaskFile[], older: number | undefined): TaskFile | undefined {
  const [other] = others;
  if (older === undefined || other?.state !== "claimed" || others.length > 1) return undefined;
  const { channel, id } = turn;
  const { owner } = other;
  const since = claimedAt(channel, id, owner);
  const name = foldName(owner);
  if (since === undefined && isName(name)) writeRecord({ ...turn, name }, "claimed", null, turn.name);
  assertLeft(channel, id, owner, since, older);
  return other;
}

/** Throws `not_stale` unless the owner of a task has not been heard of for so many seconds since it was claimed. */
function assertLeft(channel: Channel, id: string, owner: string, since: string | undefined, older: number): void {
  if (since !== undefined && wasSilent(channel, since, owner, older)) return;
  const [one] = presence(channel, [owner]);
  const mend = isName(foldName(owner)) ? "is from now on" : "cannot be: release it with --force";
  const how = since === undefined ? `its age was not recorded, and ${mend}` : `claimed ${age(since)}`;
  throw new ChatError("not_stale", `task-${id} was not left by its owner: ${how}; ${presenceLine(one!)}`);
}

function claimedAt(channel: Channel, id: string, owner: string): string | undefined {
  const record = readRecord(channel, id, owner);
  return record?.state === "claimed" ? record.since : undefined;
}

/** Whether the owner of a task has not been heard of for so many seconds: claiming it, or later, until the end of that second. */
function wasSilent(channel: Channel, since: string, owner: string, seconds: number): boolean {
  const [one] = presence(channel, [owner]);
  const last = Math.max(Date.parse(since), Date.parse(one?.seen ?? since)) + 999; // recorded times have no parts of a second
  return last <= Date.now() - seconds * 1000;
}

function isLeft(channel: Channel, { task, state, owner }: Task, name: Name, older: number): boolean {
  if (state !== "claimed" || owner === null || foldName(owner) === name) return false;
  const since = claimedAt(channel, task, owner);
  return since !== undefined && wasSilent(channel, since, owner, older);
}

/** Undoes a rename that came after a theft, too late. If the other's did too, both give back, and one gets it anew. */
function giveBack(mine: string, before: string, renamed: Renamed): void {
  try {
    moveIntoPlace(mine, before);
  } catch (error) {
    if (!isCode(error, "EEXIST")) throw error;
    renamed.kept = !fs.readFileSync(mine).equals(fs.readFileSync(before));
  }
  if (renamed.kept) return;
  removeIfPresent(fs.unlinkSync, mine);
  renamed.here = false;
}

/** Tells the former owner, once, though the claim be repeated, or its process died before; whether it was now. */
function tellRobbed(turn: Turn, record = readRecord(turn.channel, turn.id, turn.name)): boolean {
  const { id, name } = turn;
  if (record?.state !== "claimed" || record.owner === null) return false;
  const body = `${name} has taken task-${id} over: you had it, and had not been heard of. Do not go on with it.`;
  return tellOnce(turn, record, { to: [record.owner], title: `task-${id} is ${name}'s now`, body, status: "stolen" })
    .now;
}

/** Posts what a change of a task has to tell, under the lock in which it was made; not what was told before. */
function tellOnce(
  { channel, draft, id, name }: Turn,
  { after }: TaskRecord,
  said: Omit<Outgoing, "from" | "task">,
): { message: Message; now: boolean } {
  const later = listMessages(channel).entries.filter(({ seq }) => seq > after);
  const told = firstBy(channel, later, name, ({ task, status }) => task === id && status === said.status);
  if (told !== undefined) return { message: told, now: false };
  const unnumbered = address(channel, { ...said, from: name, task: id, force: true }, said.body, []);
  return { message: publish(channel, draft, undefined, unnumbered), now: true };
}

/** How to finish or release a task. */
export interface Ending extends Blocking {
  readonly body?: string | undefined; // what there is to say of it
  readonly force?: boolean | undefined; // though another has it
}

/** A task, finished or released. */
export interface Ended {
  readonly task: Task; // as it is now
  readonly from: string; // task-12.CLAIMED-bob.md
  readonly already: boolean; // it was so before
  readonly message: Message | null; // what was posted; null for a slot with nothing to say
}

/**
 * Says that a task is done, and tells who made it; a slot is open again. Throws `taken` where another has it, `not_claimed`,
 * `no_task`, `task_exists` where a new task is in its way, and what `post` throws.
 */
export async function finish(channel: Channel, agent: string, task: string, how: Ending = {}): Promise<Ended> {
  return endClaim(channel, parseName("agent", agent), parseTask(task), "done", how);
}

/** Gives a task back, open to all whom it is for, and says so in the channel. Throws like `finish`. */
export async function release(channel: Channel, agent: string, task: string, how: Ending = {}): Promise<Ended> {
  return endClaim(channel, parseName("agent", agent), parseTask(task), "released", how);
}

async function endClaim(
  channel: Channel,
  name: Name,
  id: string,
  state: "done" | "released",
  { body, force = false, signal }: Ending,
): Promise<Ended> {
  const text = body === undefined ? undefined : checkBody(body);
  let ended: { from: string; record: TaskRecord; sure: boolean } | undefined; // over all the locks it had
  return explainingLater(`change task-${id}`, async () => {
    const whole = await withNumbers(channel, signal, (draft): Ended => {
      const turn: Turn = { channel, draft, id, name };
      const had = ended === undefined ? toEnd(turn, state, force) : undefined;
      if (had !== undefined) {
        const to = state === "done" && !had.slot ? `task-${id}.DONE-${name}.md` : `task-${id}.md`;
        if (foldName(had.owner ?? "") === name && tellRobbed(turn)) startOver(); // a draft is one message
        assertAbsent(path.join(channel.path, to), had.path);
        const record = writeRecord(turn, state, had.owner);
        moveEnded(had.path, path.join(channel.path, to));
        ended = { from: had.file, record, sure: false };
        assertHeld(draft);
        ended.sure = true;
      }
      const tasks = tasksNamed(channel, id);
      const task = tasks.find((one) => isEnded(one, name, state)) ?? tasks[0]; // it was ended, and may have gone on since
      if (task === undefined) throw noTask(channel, id);
      if (ended?.sure === false && isEnded(task, name, state) && readRecord(channel, id, name)?.state !== state)
        ended.record = writeRecord(turn, state, ended.record.owner); // it ended a later claim of ours
      const record = ended?.record ?? readRecord(channel, id, name);
      const message = record && tellEnd(turn, task, record, text);
      return { task, from: ended?.from ?? task.file, already: ended === undefined, message: message ?? null };
    });
    flushFolder(channel.path);
    return whole;
  });
}

/**
 * The file's last step under the lock, replacing nothing that was there a moment before. Where it is not there itself, a
 * late thief has it, and will give it back.
 */
function moveEnded(from: string, to: string): void {
  assertAbsent(to, from);
  try {
    persistently(() => fs.renameSync(from, to));
  } catch (error) {
    throw isCode(error, "ENOENT") ? startOver() : error; // decided again, and then perhaps refused
  }
}

function assertAbsent(to: string, from: string): void {
  if (fs.lstatSync(to, { throwIfNoEntry: false }) === undefined) return;
  if (fs.lstatSync(from, { throwIfNoEntry: false }) === undefined) startOver(); // who is late has just ended the same claim
  throw new ChatError("task_exists", `${quoted(to)} is in the way: nothing was changed`);
}

/** Whether a task is as its owner wanted it to be. */
function isEnded({ state, slot, owner }: Task, name: Name, wanted: "done" | "released"): boolean {
  if (wanted === "done" && !slot) return state === "done" && foldName(owner ?? "") === name;
  return state === "open" || state === "blocked";
}

/** The task that is to be ended, as it is; undefined where it was ended before. */
function toEnd({ channel, name, id }: Turn, state: "done" | "released", force: boolean): Task | undefined {
  const tasks = tasksNamed(channel, id);
  const claimed = tasks.filter((task) => task.state === "claimed");
  const mine = claimed.find(({ owner }) => foldName(owner ?? "") === name);
  if (mine !== undefined) return mine;
  if (tasks.length === 0) throw noTask(channel, id);
  const before = readRecord(channel, id, name);
  if (before?.state === state && tasks.some((task) => isEnded(task, name, state))) return undefined;
  if (force && claimed[0] !== undefined) return claimed[0];
  const others = filesOf(channel, id).filter((file) => file.state !== "open");
  if (others.length > 0) throw refusal(channel, id, others, name);
  throw new ChatError("not_claimed", `task-${id} is open: nobody has claimed it`, claimCommand(channel, id, name));
}

/** A finished task is told to who made it, a released one to all; and to the owner from whom it was forced. */
function tellEnd(turn: Turn, ended: Task, record: TaskRecord, body: string | undefined): Message | undefined {
  const { id, name } = turn;
  const { title, from, slot } = ended;
  if (slot && body === undefined && foldName(record.owner ?? name) === name) return undefined;
  const others = [record.state === "done" ? from : "", record.owner ?? ""].filter((other) => foldName(other) !== name);
  const to = record.state === "done" ? others.filter((other) => isName(foldName(other))) : [];
  const text = body ?? `task-${id}${title && ` (${title})`} is ${record.state === "done" ? "done" : "open again"}.`;
  const about = shortLine(`task-${id} ${record.state}${title && `: ${title}`}`);
  return tellOnce(turn, record, { to, title: about, body: text, status: record.state }).message;
}

/** Why nobody is to take the next task. */
export interface Pause {
  readonly from: string;
  readonly ts: string;
  readonly body: string;
}

const pausePath = (channel: Channel): string => path.join(channel.path, "_paused.md");

/** The pause of a channel, if there is one. Throws `no_access` or `io`. */
export function currentPause(channel: Channel): Pause | undefined {
  const look = (): fs.Stats | undefined => fs.lstatSync(pausePath(channel), { throwIfNoEntry: false });
  if (explaining("see whether tasks are paused", look) === undefined) return undefined;
  const text = readIfPossible(pausePath(channel)); // made by hand it may be empty, or no file at all
  const { fields, body } = splitMessage(text) ?? { fields: new Map<string, string>(), body: text };
  return { from: fields.get("from") ?? "", ts: fields.get("ts") ?? "", body };
}

/** A pause on one line; one that was made by hand says less. */
function pauseWords({ from, ts, body }: Pause): string {
  const who = `paused${from && ` by ${visible(from)}`}${ts && ` since ${clockTime(ts)}`}`;
  return body.trim() === "" ? who : `${who}: ${field(body.trim())}`;
}

/** Lets nobody take the next task until `resume`; returns the pause that is there. Throws like `post`. */
export async function pauseTasks(channel: Channel, agent: string, why = "", { signal }: Blocking = {}): Promise<Pause> {
  const name = parseName("agent", agent);
  const body = why === "" ? "" : checkBody(why);
  await explainingLater(`pause ${quoted(channel.name)}`, () =>
    withNumbers(channel, signal, (draft) => {
      if (currentPause(channel) !== undefined) return;
      writeAll(draft.fd, `---\nfrom: ${name}\nts: ${timestamp()}\n---\n${body}${/(^|\n)$/.test(body) ? "" : "\n"}`);
      fs.fsyncSync(draft.fd);
      moveIntoPlace(draft.path, pausePath(channel));
    }),
  );
  return currentPause(channel) ?? { from: name, ts: timestamp(), body };
}

/** Ends a pause; returns it, or undefined where there was none. Throws `locked`, `gone`, `no_access`, `no_space` or `io`. */
export async function resumeTasks(channel: Channel, { signal }: Blocking = {}): Promise<Pause | undefined> {
  return explainingLater(`resume ${quoted(channel.name)}`, () =>
    withNumbers(channel, signal, () => {
      const pause = currentPause(channel);
      removeIfPresent(fs.unlinkSync, pausePath(channel));
      return pause;
    }),
  );
}

/** How to wait for tasks. */
export interface WaitingForTasks extends Claiming, Pick<Waiting, "timeout" | "interval" | "onNote"> {
  readonly onTry?: (() => void) | undefined; // called before each try to claim: what it throws ends the wait
}

/**
 * Claims a task as soon as it is free, or without one the next for this agent. Those who wait for one task get it in the
 * order in which they came. Throws `timeout` with the reason, and at once what no waiting will change.
 */
export async function claimLater(
  channel: Channel,
  agent: string,
  task: string | undefined,
  how: WaitingForTasks = {},
): Promise<Claim> {
  const [name, id] = [parseName("agent", agent), task === undefined ? undefined : parseTask(task)];
  assertSeconds("older", String(how.older), how.older ?? 0, AGE_MAX_S);
  const waiter = openWaiter([channel], name, how, id === undefined ? "" : `task-${id}`);
  openWatches(waiter);
  let why = "";
  const decide = (): string => {
    // Under the lock: since the look before the task may have been taken, and freed for somebody else.
    assertTurn(waiter, channel, id!, takenBy(channel, id!, name), how.older);
    return id!;
  };
  const tryNow = async (): Promise<Claim | undefined> => {
    const [watch] = waiter.watches.values();
    if (!hasMoved(watch!)) return undefined;
    const others = id === undefined ? [] : takenBy(channel, id, name);
    waiter.hears = others.map(({ owner }) => foldName(owner));
    try {
      if (id === undefined) nextTask(channel, name, how.older);
      else assertTurn(waiter, channel, id, others, how.older);
      how.onTry?.();
      return await (id === undefined ? claimNext(channel, name, how) : takeTask(channel, name, decide, how));
    } catch (error) {
      if (!isCode(error, ...LATER) && !(id === undefined && isCode(error, "no_task"))) throw error;
      why = (error as ChatError).message;
      if (isCode(error, "not_first", "not_stale")) watch!.modified = NaN; // time and heartbeats change nothing here
      return undefined;
    }
  };
  const late = (timeout: number): ChatError => new ChatError("timeout", `no task for ${name} in ${timeout} s; ${why}`);
  return explainingLater(`wait for a task of ${quoted(channel.name)}`, () => keepWaiting(waiter, tryNow, late));
}

const LATER = ["taken", "blocked", "paused", "not_stale", "not_first"];

/** The files of others who have a task now. Throws `taken` where it was finished: no waiting will change that. */
function takenBy(channel: Channel, id: string, name: Name): TaskFile[] {
  const files = filesOf(channel, id);
  const finished = files.filter(({ state }) => state === "done");
  if (finished.length > 0) throw refusal(channel, id, finished, name);
  return files.filter(({ state, owner }) => state === "claimed" && foldName(owner) !== name);
}

/**
 * Whether to try for a task that others have, or wait for too: who has it already need not. What is known without the
 * lock is said without it: to take the lock would wake all who wait here. Throws `taken`, `not_stale` or `not_first`.
 */
function assertTurn(
  waiter: Waiter,
  channel: Channel,
  id: string,
  others: readonly TaskFile[],
  older: number | undefined,
): void {
  const { agent } = waiter;
  if (filesOf(channel, id).some(({ state, owner }) => state === "claimed" && foldName(owner) === agent)) return;
  const [other, another] = others;
  if (other !== undefined && (older === undefined || another)) throw refusal(channel, id, others, undefined);
  if (other === undefined) return assertFirstInLine(waiter, channel);
  const since = claimedAt(channel, id, other.owner);
  if (since !== undefined) assertLeft(channel, id, other.owner, since, older!); // stolen it heeds no line: it is not freed
}

/** Of those who wait for the same task, who came first has it first. */
function assertFirstInLine({ agent, aim, since }: Waiter, channel: Channel): void {
  const place = (beat: { since: string }, name: string): [number, string] => [Date.parse(beat.since), name];
  const [mine, myself] = place({ since }, agent);
  for (const name of cursorNames(channel, ".wait")) {
    const beat = name === agent ? undefined : liveBeat(channel, name);
    if (beat === undefined || lineOf(beat) !== aim) continue;
    const [theirs, other] = place(beat, name);
    if (theirs < mine || (theirs === mine && other < myself))
      throw Object.assign(new Error(`${name} came before`), { code: "not_first" });
  }
}

/**
 * Blocks until a task has another state than at the start, or is done, or without one until there is one that this
 * agent could claim; returns those. Throws `no_task`, `timeout` and `gone`.
 */
export async function waitForTasks(
  channels: readonly Channel[] | (() => readonly Channel[]),
  agent: string,
  task: string | undefined,
  how: WaitingForTasks = {},
): Promise<Task[]> {
  const [name, id] = [parseName("agent", agent), task === undefined ? undefined : parseTask(task)];
  const waiter = openWaiter(channels, name, how, id === undefined ? "" : `news of task-${id}`); // in no line for it
  const found = new Map<Watch, Task[]>(); // as last listed
  let first: string | undefined;
  const check = (): Task[] | undefined => {
    openWatches(waiter);
    for (const watch of waiter.watches.values()) {
      const { channel } = watch.reader;
      unlessDenied(waiter, watch, () => {
        if (!hasMoved(watch)) return;
        const tasks = id === undefined && currentPause(channel) !== undefined ? [] : listTasks(channel); // none is next then
        found.set(watch, id === undefined ? claimable(tasks, name) : tasks.filter((one) => one.task === id));
      });
    }
    const all = [...found.values()].flat();
    if (id === undefined) return all.length > 0 ? all : undefined;
    if (first === undefined && all.length === 0) throw noTask([...waiter.watches.values()][0]!.reader.channel, id);
    if (all.every(({ state }) => state === "done")) return all; // no waiting will change that
    const now = all.map(({ file, state }) => `${file} ${state}`).join();
    return (first ??= now) === now ? undefined : all;
  };
  const what = id === undefined ? "no task to claim" : `no change of task-${id}`;
  const late = (timeout: number): ChatError =>
    new ChatError("timeout", `${what} for ${name} in ${timeout} s; looked at ${placesOf(waiter, id === undefined)}`);
  return explainingLater("wait for a task", () => keepWaiting(waiter, check, late));
}

/** Where a wait looked for tasks; where there is a pause, that is why there was none to take. */
function placesOf({ watches }: Waiter, next: boolean): string {
  const channels = [...watches.values()].map(({ reader }) => reader.channel);
  const paused = channels.flatMap((channel) => {
    const pause = next ? currentPause(channel) : undefined;
    return pause === undefined ? [] : [`${channel.name} is ${pauseWords(pause)}`];
  });
  return [visible(placesText(channels.map((channel) => [channel, ""]))), ...paused].join("; ");
}

// ---- git -----------------------------------------------------------------------------------------------------------

const SILENCE_S = 30; // a remote that says nothing for so long is given up
const GIT_LOCK_MS = 5_000; // git holds its own locks for moments
const GIT_END_MS = 3_000; // and ends within one or two, when it is told to

/** Where git is run, and how long for. */
interface GitPlace {
  readonly cwd: string;
  readonly env: NodeJS.ProcessEnv;
  readonly signal: AbortSignal | undefined;
  readonly silence: number; // seconds, for what talks to a remote
}

/** A root that is a git work tree of its own. */
interface Repo extends GitPlace {
  readonly dir: string; // git's folder for this work tree
  readonly branch: string; // main
  readonly remote: string; // origin
  readonly url: string; // how it is called: its name, or where it is
  readonly upstream: string; // refs/heads/main, there
  readonly tracking: string; // refs/remotes/origin/main, what is known of it here
  readonly ours: boolean; // the branch was found to hold channels and no code
  readonly settled: boolean; // which one of the remote is its own: it was asked for
}

/** What git's configuration says. */
type Config = ReadonlyMap<string, string>;

interface Ran {
  readonly code: number;
  readonly out: Buffer;
  readonly err: string;
}

/** No hook of a surrounding repository runs, no file is read as anything but bytes, and what git says is plain. */
const SETTINGS = ["core.hooksPath=/dev/null", "core.fsmonitor=false", "color.ui=false"];
const GIT_OPTIONS = [...SETTINGS.flatMap((setting) => ["-c", setting]), "--literal-pathspecs"];
const GIT_KEPT =
  /^GIT_(SSH|SSH_COMMAND|SSH_VARIANT|PROXY_COMMAND|EXEC_PATH|ALLOW_PROTOCOL|(SSL|HTTP|CURL)_\w+|TRACE\w*|CONFIG_(GLOBAL|SYSTEM|NOSYSTEM)|(AUTHOR|COMMITTER)_(NAME|EMAIL))$/;

/** Nothing of what a surrounding git says of its own repository; and nobody is ever asked anything. */
function gitEnvironment(config: Config = new Map()): NodeJS.ProcessEnv {
  const kept = Object.entries(process.env).filter(([name]) => !name.startsWith("GIT_") || GIT_KEPT.test(name));
  const env: NodeJS.ProcessEnv = Object.fromEntries(kept);
  const ssh = env["GIT_SSH_COMMAND"] ?? config.get("core.sshcommand") ?? (env["GIT_SSH"] ? undefined : "ssh");
  const batch = ssh === undefined ? {} : { GIT_SSH_COMMAND: `${ssh} -o BatchMode=yes` };
  const quiet = { GIT_TERMINAL_PROMPT: "0", GIT_ASKPASS: "", SSH_ASKPASS: "", GCM_INTERACTIVE: "never", LC_ALL: "C" };
  const [name, email] = [config.get("user.name") ?? "agent-chat", config.get("user.email") ?? `agent-chat@${HOST}`];
  const author = { GIT_AUTHOR_NAME: name, GIT_AUTHOR_EMAIL: email };
  const committer = { GIT_COMMITTER_NAME: name, GIT_COMMITTER_EMAIL: email };
  return { ...author, ...committer, ...env, ...batch, ...quiet };
}

/** Runs git to its end, whatever that is; a lock of git's own is waited for. Throws `no_git`, and `remote` for silence. */
async function tryGit(place: GitPlace, args: readonly string[], how: Talk = {}): Promise<Ran> {
  for (const deadline = monotonic() + GIT_LOCK_MS; ;) {
    const ran = await runGit(place, args, how);
    if (ran.code === 0 || !/\.lock': File exists/.test(ran.err) || monotonic() >= deadline) return ran;
    await sleep(50 + Math.random() * 100, place.signal);
  }
}

interface Talk {
  readonly input?: string | Buffer | undefined;
  readonly remote?: boolean | undefined; // it talks to one
}

async function runGit({ cwd, env, signal, silence }: GitPlace, args: readonly string[], how: Talk): Promise<Ran> {
  signal?.throwIfAborted();
  const { spawn } = await import("node:child_process");
  const group = process.platform !== "win32"; // of its own, to be ended with all it started
  const child = spawn("git", [...GIT_OPTIONS, ...args], { cwd, env, detached: group, stdio: "pipe" });
  const [out, err]: [Buffer[], Buffer[]] = [[], []];
  return new Promise<Ran>((resolve, reject) => {
    let [reason, last]: [unknown, NodeJS.Timeout | undefined] = [undefined, undefined];
    const stop = (why: unknown): void => {
      reason ??= why;
      endAll(child, group, "SIGTERM"); // it takes its locks away
      last ??= setTimeout(() => endAll(child, group, "SIGKILL"), GIT_END_MS);
    };
    const quiet = new ChatError("remote", `the remote said nothing for ${silence} s (git ${args[0]})`);
    const timer = how.remote ? setInterval(() => stop(quiet), Math.min(silence * 1000, TIMER_MAX_MS)) : undefined;
    const onAbort = (): void => stop(signal?.reason);
    signal?.addEventListener("abort", onAbort, { once: true });
    child.stdout.on("data", (bytes: Buffer) => (out.push(bytes), timer?.refresh()));
    child.stderr.on("data", (bytes: Buffer) => (err.push(bytes), timer?.refresh()));
    child.stdin.on("error", () => {}); // git may end before it has read all: its exit code says why
    child.stdin.end(how.input ?? "");
    child.once("error", (error) => reject(noGit(error, cwd)));
    child.once("close", (code) => {
      clearInterval(timer);
      clearTimeout(last);
      signal?.removeEventListener("abort", onAbort);
      if (reason !== undefined) reject(reason);
      else resolve({ code: code ?? -1, out: Buffer.concat(out), err: Buffer.concat(err).toString() });
    });
  });
}

type Child = Pick<import("node:child_process").ChildProcess, "pid" | "kill">;

function endAll(child: Child, group: boolean, how: "SIGTERM" | "SIGKILL"): void {
  try {
    if (group && child.pid !== undefined) process.kill(-child.pid, how);
    else child.kill(how);
  } catch {
    // it has ended
  }
}

function noGit(error: unknown, cwd: string): unknown {
  if (!isCode(error, "ENOENT") || !isFolder(cwd)) return explained(error, "run git");
  return new ChatError("no_git", "git is not installed, or not in PATH", "install git");
}

/** The same; throws `git`, `remote`, `no_space` or `locked` where git fails. */
async function git(place: GitPlace, args: readonly string[], how: Talk = {}): Promise<Buffer> {
  const ran = await tryGit(place, args, how);
  if (ran.code !== 0) throw gitError(place, args, ran, how.remote === true);
  return ran.out;
}

function gitError({ cwd }: GitPlace, args: readonly string[], { code, err }: Ran, remote: boolean): ChatError {
  const lines = err.split(/[\r\n]+/).filter((line) => line.trim() !== "");
  const said = lines.filter((line) => /^(fatal|error|remote|ssh|.*denied|.*rejected)/i.test(line.trim()));
  const words = (said.length > 0 ? said : lines).slice(-3).map((line) => line.trim().replace(/^(fatal|error): /, ""));
  const message = `git ${args[0]}: ${words.join("; ") || `ended with ${code}`}`;
  const [, lock] = /Unable to create '(.*\.lock)': File exists/.exec(err) ?? [];
  if (lock !== undefined) {
    const mend = `rm ${shellWord(lock)}`;
    return new ChatError("locked", `another git has held ${quoted(lock)} for ${GIT_LOCK_MS / 1000} s, or died`, mend);
  }
  if (/No space left on device/i.test(err))
    return new ChatError("no_space", message, "free some space, then run it again");
  const [, owned] = /dubious ownership in repository at '(.*)'/.exec(err) ?? [];
  if (owned !== undefined)
    return new ChatError("git", message, `git config --global --add safe.directory ${shellWord(owned)}`);
  const [, index = /index file corrupt/.test(err) ? ".git/index" : ""] =
    /^fatal: (.*index): index file/m.exec(err) ?? [];
  if (index !== "") return new ChatError("git", message, `rm ${shellWord(path.resolve(cwd, index))}`);
  if (!remote && /Permission denied|insufficient permission/i.test(err))
    return new ChatError("no_access", message, NO_ACCESS);
  return new ChatError(remote ? "remote" : "git", message, remote ? remedyOf(cwd, err) : undefined);
}

function remedyOf(cwd: string, err: string): string | undefined {
  const asked =
    /terminal prompts disabled|Authentication failed|Permission denied [(,]|Host key verification|could not read (User|Pass)/i;
  if (asked.test(err)) return `git -C ${shellWord(cwd)} fetch`; // which asks
  if (/branch is currently checked out|protected branch/i.test(err)) return ELSEWHERE;
  const wrong = /not appear to be a git repo|not found|is not a git command|transport '.*' not allowed/i;
  return wrong.test(err) ? "agent-chat sync --init URL" : undefined;
}

/** What git says, on one line. Throws like `git`. */
async function gitLine(place: GitPlace, args: readonly string[], how: Talk = {}): Promise<string> {
  return (await git(place, args, how)).toString().trim();
}

/** The same; undefined where git fails. */
async function tryGitLine(place: GitPlace, args: readonly string[]): Promise<string | undefined> {
  const { code, out } = await tryGit(place, args);
  return code === 0 ? out.toString().trim() : undefined;
}

function oidOf(place: GitPlace, name: string): Promise<string | undefined> {
  return tryGitLine(place, ["rev-parse", "-q", "--verify", `${name}^{commit}`]);
}

/** The branch that HEAD is on, if it is on one; what git calls its short name is another one where a tag is called so too. */
async function currentBranch(place: GitPlace): Promise<string | undefined> {
  return (await tryGitLine(place, ["symbolic-ref", "-q", "HEAD"]))?.replace(/^refs\/heads\//, "");
}

/** The commits that the branch is at, here and as far as known on the remote. */
async function ends(repo: Repo): Promise<{ here: string | undefined; there: string | undefined }> {
  const own = `refs/heads/${repo.branch}`;
  const out = await git(repo, ["for-each-ref", "--format=%(refname) %(objectname)", own, repo.tracking]);
  const rows = out.toString().split("\n");
  const oids = new Map(rows.map((row) => row.split(" ") as [string, string]));
  return { here: oids.get(own), there: oids.get(repo.tracking) };
}

async function gitConfig(place: GitPlace): Promise<Config> {
  const { out } = await tryGit(place, ["config", "-z", "--get-regexp", "^(remote|branch|user|core)\\."]);
  return new Map(splitRows(out).map((row) => [row.split("\n")[0]!, row.slice(row.indexOf("\n") + 1)]));
}

/** The work tree that a folder is in, and git's folder for it. */
async function workTree(place: GitPlace): Promise<{ top: string; dir: string } | undefined> {
  const ran = await tryGit(place, ["rev-parse", "--show-toplevel", "--absolute-git-dir"]);
  const [top, dir] = ran.out.toString().split("\n");
  if (ran.code === 0 && top && dir) {
    const tree = { top: path.resolve(top), dir: path.resolve(dir) };
    assertNoCopy(tree);
    return tree;
  }
  const [, lost] = /not a git repository: (.*)/.exec(ran.err) ?? [];
  if (lost !== undefined) throw movedAway(place.cwd, lost);
  if (ran.code === 0 || /not a git repository|must be run in a work tree/.test(ran.err)) return undefined;
  throw gitError(place, ["rev-parse"], ran, false); // a repository of somebody else's, or a damaged one
}

function movedAway(root: string, lost: string): ChatError {
  const message = `${root} is in a work tree whose repository, ${lost}, is not there: it was moved or deleted`;
  const mend = `git -C ${shellWord(path.dirname(root))} worktree repair ${shellWord(root)}`;
  return new ChatError("no_repo", message, mend);
}

/** A work tree that was copied with its `.git` is still the first one's: each would lack what the other has, as if deleted. */
function assertNoCopy({ top, dir }: { top: string; dir: string }): void {
  const own = path.join(top, ".git");
  const first = path.resolve(dir, readIfPossible(path.join(dir, "gitdir")).trim());
  if (first === dir || !fs.existsSync(first) || isSameFile(first, own)) return;
  if (readIfPossible(first) !== readIfPossible(own)) return; // this one was moved, and something else is there now
  const message = `${top} is a copy, and its .git is still that of ${path.dirname(first)}; without it, sync --init goes on`;
  throw new ChatError("no_repo", message, `rm ${shellWord(own)}`);
}

/** The repository of a root. Throws `no_repo` where the root is no work tree of its own, `no_remote`, `no_git`, `git`. */
async function openRepo(root: string, { remote, signal, timeout = SILENCE_S }: Syncing): Promise<Repo> {
  const bare: GitPlace = { cwd: root, env: gitEnvironment(), signal, silence: timeout };
  if (!isFolder(root)) throw twoWays(root, undefined);
  const [tree, config, branch] = await Promise.all([workTree(bare), gitConfig(bare), currentBranch(bare)]);
  if (tree === undefined) throw twoWays(root, undefined);
  if (tree.top !== realFolder(root)) throw (await goesWithCode(bare, tree.top)) ?? twoWays(root, tree.top, config);
  const place = { ...bare, env: gitEnvironment(config) };
  assertIdle(root, tree.dir); // before the branch: a rebase is on none
  if (config.get("core.sparsecheckout") === "true") throw sparse(root);
  if (branch === undefined) throw await onNone(bare);
  const names = remotesIn(config);
  const usual = config.get(`branch.${branch}.remote`) ?? (names.includes("origin") ? "origin" : names[0]);
  const chosen = remote ?? usual;
  if (chosen === undefined || !names.includes(chosen)) throw noRemote(root, chosen, names);
  const merge = config.get(`branch.${branch}.remote`) === chosen ? config.get(`branch.${branch}.merge`) : undefined;
  const upstream = merge ?? `refs/heads/${branch}`;
  const tracking = `refs/remotes/${chosen}/${upstream.replace(/^refs\/heads\//, "")}`;
  const url = urlOf(root, chosen, config.get(`remote.${chosen}.url`)!, tree.dir);
  const says = (key: string): boolean => config.get(`branch.${branch}.${key}`) === "true";
  const isAsked = chosen !== usual || upstream !== `refs/heads/${branch}`;
  const [ours, settled] = [says("agentchat"), says("agentchatkeep") || isAsked];
  return { ...place, dir: tree.dir, branch, remote: chosen, url, upstream, tracking, ours, settled };
}

/** What git keeps back looks like what was left out of a remote: it would be hidden without a word. */
function sparse(root: string): ChatError {
  const message = `${root} is a sparse checkout: git keeps back messages and channels that are there`;
  return new ChatError("no_repo", message, `git -C ${shellWord(root)} sparse-checkout disable`);
}

/** Named is a branch that has the commit, if there is one: as after `submodule update`. Else what was committed is kept. */
async function onNone(place: GitPlace): Promise<ChatError> {
  const args = ["for-each-ref", "--format=%(refname)", "--contains", "HEAD", "refs/heads", "refs/remotes"];
  const ran = await tryGit(place, args);
  if (ran.code !== 0) return gitError(place, args, ran, false); // the branch is damaged
  const branch = /^refs\/(?:heads|remotes\/[^/]+)\/(?!HEAD$)(.+)$/m.exec(ran.out.toString())?.[1];
  const at = `git -C ${shellWord(place.cwd)}`;
  const mend = branch === undefined ? await toNone(place, at) : `${at} switch ${shellWord(branch)}`;
  return new ChatError("no_repo", `${place.cwd} is on no branch`, mend);
}

/** How a branch gets a commit that none has. */
async function toNone(place: GitPlace, at: string): Promise<string> {
  const branches = async (...which: string[]): Promise<string | undefined> =>
    (await tryGitLine(place, ["for-each-ref", "--format=%(refname:lstrip=2)", ...which, "refs/heads"]))?.split("\n")[0];
  const before = await branches("--merged", "HEAD");
  if (before) return `${at} switch -C ${shellWord(before)}`; // nothing of it goes
  const other = await branches();
  const oid = await gitLine(place, ["rev-parse", "--short", "HEAD"]);
  return other ? `${at} switch ${shellWord(other)} && ${at} merge ${oid}` : `${at} switch -c main`;
}

/** A relative path is meant from the repository, and git takes it from the work tree. */
function urlOf(root: string, remote: string, url: string, dir: string): string {
  const common = readIfPossible(path.join(dir, "commondir")).trim(); // only a work tree beside others has it
  if (common === "" || !/^\.\.?[/\\]/.test(url)) return remote;
  return path.resolve(path.dirname(path.resolve(root, dir, common)), url);
}

function realFolder(folder: string): string | undefined {
  try {
    return fs.realpathSync(folder);
  } catch {
    return undefined; // not there
  }
}

/** A root whose files somebody committed beside the code: git itself takes them along. */
async function goesWithCode(place: GitPlace, outer: string): Promise<ChatError | undefined> {
  const files = splitRows(await git(place, ["ls-files", "-z"]));
  if (files.length === 0) return undefined;
  const what = `${plural(files.length, "file")} of it are on a branch of ${outer}, and travel with that`;
  const message = `${place.cwd} is no git work tree of its own: ${what}, by git add, commit, pull and push`;
  return new ChatError("no_repo", message, `git -C ${shellWord(outer)} pull`);
}

function twoWays(root: string, outer: string | undefined, config: Config = new Map()): ChatError {
  const where =
    outer === undefined ? "" : `: it lies in the work tree ${outer}, and no message is put on somebody's branch`;
  const ways = "sync --init URL makes it one; in a repository, sync --init origin keeps a branch of that for it";
  const mend = `agent-chat sync --init ${shellWord(remotesIn(config)[0] ?? "URL")} --root ${shellWord(root)}`;
  return new ChatError("no_repo", `${root} is no git work tree of its own${where}; ${ways}`, mend);
}

function noRemote(root: string, asked: string | undefined, names: readonly string[]): ChatError {
  const what = asked === undefined ? `${root} has no git remote` : `${root} has no git remote ${quoted(asked)}`;
  const there = names.length === 0 ? "" : `; there are: ${names.join(", ")}`;
  const [first] = names;
  const mend = first === undefined ? "sync --init URL" : `sync --remote ${shellWord(first)}`;
  return new ChatError("no_remote", what + there, `agent-chat ${mend} --root ${shellWord(root)}`);
}

/** A merge or rebase that somebody began by hand is theirs to finish. */
function assertIdle(root: string, dir: string): void {
  const begun = {
    MERGE_HEAD: "merge",
    "rebase-merge": "rebase",
    "rebase-apply/applying": "am",
    "rebase-apply": "rebase",
    CHERRY_PICK_HEAD: "cherry-pick",
    REVERT_HEAD: "revert",
  };
  for (const [file, what] of Object.entries(begun)) {
    if (!fs.existsSync(path.join(dir, file))) continue;
    const mend = `git -C ${shellWord(root)} ${what} --continue`;
    throw new ChatError("no_repo", `a ${what} is under way in ${root}: finish it, or give it up with --abort`, mend);
  }
}

/**
 * Refuses a branch that holds somebody's code: at its top there are only channels, and what says how to treat them.
 * Returns whether there are any.
 */
async function assertOurs(place: GitPlace, rev: string, what: string, mend = ELSEWHERE): Promise<boolean> {
  const rows = splitRows(await git(place, ["ls-tree", "-z", rev])).map(treeRow);
  const others = rows.filter(({ name }) => !/^\.|^(readme|licen[cs]e|copying|notice)\b/i.test(name));
  const asked = others.map(({ name }) => `${rev}:${name.replaceAll("\n", "/")}/_meta.json\n`);
  const input = asked.join("");
  const found = input === "" ? [] : (await git(place, ["cat-file", "--batch-check"], { input })).toString().split("\n");
  const foreign = others.find(({ mode }, i) => mode !== "040000" || !/^\S+ blob \d+$/.test(found[i]!));
  if (foreign === undefined) return others.length > 0;
  throw somebodys(what, foreign.name, mend);
}

const ELSEWHERE = "agent-chat sync --init URL --branch agent-chat";
const below = (root: string): string =>
  `agent-chat sync --init URL --root ${shellWord(path.join(root, ".agent-chat"))}`;

function somebodys(what: string, name: string, mend: string): ChatError {
  const message = `${what} holds more than channels (${quoted(name)}): it is somebody's, and no message is put there`;
  return new ChatError("no_repo", message, mend);
}

function splitRows(out: Buffer): string[] {
  return out
    .toString()
    .split("\0")
    .filter((row) => row !== "");
}

/** A row of `ls-tree -z`: mode, type, id, name. */
function treeRow(row: string): { mode: string; oid: string; name: string } {
  const [mode = "", , oid = ""] = row.slice(0, row.indexOf("\t")).split(" ");
  return { mode, oid, name: row.slice(row.indexOf("\t") + 1) };
}

/** Where a root is to be made a work tree. What cannot be is told before anything is made. */
async function initPlace(
  root: string,
  url: string,
  { branch, signal, timeout = SILENCE_S }: Syncing,
): Promise<GitPlace> {
  const before = isFolder(root);
  makeFolder(root);
  const place: GitPlace = { cwd: root, env: gitEnvironment(), signal, silence: timeout };
  try {
    const outer = await workTree(place);
    await assertPossible(place, url, branch, outer?.top === realFolder(root));
  } catch (error) {
    if (!before) removeIfPresent(fs.rmdirSync, root);
    throw error;
  }
  return place;
}

/**
 * Makes a root a work tree of its own: a repository, or, where the URL is that of a remote of the repository around it, a
 * work tree of that for a branch of messages. Neither touches a branch, the index or a file of the repository around.
 */
async function initRepo(place: GitPlace, url: string, branch: string | undefined): Promise<void> {
  const root = place.cwd;
  tellGit(root, false);
  fs.rmSync(path.join(root, NEW_TREE), { recursive: true, force: true }); // of a sync that was killed
  const outer = await workTree(place);
  const config: Config = outer === undefined ? new Map() : await gitConfig(place);
  if (outer !== undefined && outer.top === realFolder(root)) return reinit(place, url, branch, config);
  if (outer !== undefined) await keepOut(place, outer.top);
  const remote = remoteNamed(config, url);
  if (remote !== undefined) return addWorkTree(place, remote, branch ?? "agent-chat", config);
  const { main, format } = await lookAt(place, url);
  await git(place, ["init", "-q", ...format]);
  await git(place, ["remote", "add", "origin", url]);
  await trackRemote(place, branch ?? main ?? "main", "origin", branch !== undefined);
}

/**
 * The branch that a remote calls its own, if it has one: who began by hand may have named it otherwise. And the form of its
 * ids, for git takes no others; an empty remote tells only where it is a folder.
 */
async function lookAt(place: GitPlace, url: string): Promise<{ main: string | undefined; format: string[] }> {
  const out = (await tryGit(place, listing(url), { remote: true })).out.toString();
  const local = out === "" ? await tryGit(place, ["-C", url, "rev-parse", "--show-object-format"]) : undefined;
  const long = /^[0-9a-f]{64}\t/m.test(out) || local?.out.toString().trim() === "sha256";
  return { main: mainIn(out), format: long ? ["--object-format=sha256"] : [] };
}

const listing = (url: string): string[] => ["ls-remote", "--symref", url, "HEAD", "refs/heads/*"];
const mainIn = (listed: string): string | undefined => /^ref: refs\/heads\/(\S+)\tHEAD$/m.exec(listed)?.[1];

/** A mistyped path would stay as the remote. */
async function assertPossible(place: GitPlace, url: string, branch: string | undefined, own: boolean): Promise<void> {
  const root = place.cwd;
  if (branch !== undefined && (await tryGitLine(place, ["check-ref-format", "--branch", branch])) !== branch)
    throw new ChatError("bad_value", `--branch ${quoted(branch)} is no name of a branch`);
  if (url.trim() === "" || url.startsWith("-")) throw new ChatError("bad_value", `--init ${quoted(url)} is no URL`);
  if ((await tryGitLine(place, ["rev-parse", "--is-inside-git-dir"])) === "true")
    throw new ChatError("no_repo", `${root} is, or lies in, git's own folder of a repository`, "choose another --root");
  const config = await gitConfig(place);
  if (/^[^/\\]*:/.test(url) || remoteNamed(config, url) !== undefined) return; // host:path, scheme://
  const { code } = await tryGit(place, ["ls-remote", "-q", url, "HEAD"], { remote: true });
  if (code === 0) return;
  const message = `--init ${quoted(url)} is neither a git repository, nor a remote of one around ${root}`;
  const [first] = remotesIn(config);
  const mend = first === undefined || own ? initHint(url) : `agent-chat sync --init ${shellWord(first)}`;
  throw new ChatError("no_remote", message, mend);
}

/** A word alone is meant for the name of a remote, by who forgot that the root must lie in that repository. */
const initHint = (url: string): string =>
  /^\w+$/.test(url)
    ? `agent-chat sync --init ${url} --root .agent-chat, at the top of the repository that has it`
    : `git init --bare ${shellWord(url)}`;

const remotesIn = (config: Config): string[] =>
  [...config.keys()].flatMap((key) => /^remote\.(.*)\.url$/.exec(key)?.[1] ?? []);

/** The remote that has a name or a URL. */
function remoteNamed(config: Config, url: string): string | undefined {
  const isIt = ([key, value]: [string, string]): boolean =>
    key === `remote.${url}.url` || (/^remote\..*\.url$/.test(key) && value === url);
  return [...config].find(isIt)?.[0].slice("remote.".length, -".url".length);
}

/** Points HEAD to a branch, and that to the remote. */
async function trackRemote(place: GitPlace, branch: string, remote: string, chosen: boolean): Promise<void> {
  await git(place, ["symbolic-ref", "HEAD", `refs/heads/${branch}`]);
  await setUpstream(place, branch, remote, `refs/heads/${branch}`);
  if (chosen) await git(place, ["config", `branch.${branch}.agentchatkeep`, "true"]);
}

async function setUpstream(place: GitPlace, branch: string, remote: string, upstream: string): Promise<void> {
  await git(place, ["config", `branch.${branch}.remote`, remote]);
  await git(place, ["config", `branch.${branch}.merge`, upstream]);
}

/** As long as nothing came from a remote or went there, its URL may still be mended. */
async function reinit(place: GitPlace, url: string, branch: string | undefined, config: Config): Promise<void> {
  const here = await oidOf(place, "HEAD");
  const now = await currentBranch(place);
  const begun = here !== undefined;
  if (begun) await assertOurs(place, here, `the branch ${now} of ${place.cwd}`, below(place.cwd));
  const remote = remoteNamed(config, url);
  if (remote === undefined) await mendRemote(place, url, config);
  if (begun && (branch === undefined || now === undefined)) return;
  if (branch !== undefined && branch !== now) {
    await assertNowhereElse(place, branch);
    if (begun) await git(place, ["branch", "-m", branch]);
  }
  const before = config.has(`branch.${now}.remote`) ? now : undefined; // by a sync that was ended before its first commit
  await trackRemote(place, branch ?? before ?? "main", remote ?? "origin", branch !== undefined);
}

async function mendRemote(place: GitPlace, url: string, config: Config): Promise<void> {
  const root = place.cwd;
  const around = !isFolder(path.join(root, ".git")); // then its remotes are somebody's
  if (around) throw noRemote(root, url, remotesIn(config));
  const before = config.get("remote.origin.url");
  const known = (await git(place, ["for-each-ref", "--count=1", "refs/remotes"])).length > 0;
  const command = `git -C ${shellWord(root)} remote set-url origin ${shellWord(url)}`;
  if (before !== undefined && known)
    throw new ChatError("no_remote", `${root} has the remote origin already: ${before}`, command);
  await git(place, ["remote", before === undefined ? "add" : "set-url", "origin", url]);
}

/** The repository around is to leave the root alone, and must not have anything of it. */
async function keepOut(place: GitPlace, top: string): Promise<void> {
  const root = place.cwd;
  const tracked = splitRows(await git(place, ["ls-files", "-z"]));
  if (tracked.length > 0) {
    const message = `${plural(tracked.length, "file")} of ${root} are on a branch of ${top}: take them off it first`;
    throw new ChatError("no_repo", message, `git -C ${shellWord(top)} rm -r -q --cached ${shellWord(root)}`);
  }
  const exclude = path.resolve(root, await gitLine(place, ["rev-parse", "--git-path", "info/exclude"]));
  const inside = path.relative(top, realFolder(root)!).split(path.sep).join("/");
  const line = `/${inside.replace(/[\\*?[]/g, "\\$&")}/`;
  if (readIfPossible(exclude).split("\n").includes(line)) return;
  makeFolder(path.dirname(exclude));
  fs.appendFileSync(exclude, `${line}\n`);
}

const NEW_TREE = ".new-work-tree";

/** A work tree at a folder that is not empty: made in one inside it, and moved once it is whole. */
async function addWorkTree(place: GitPlace, remote: string, branch: string, config: Config): Promise<void> {
  const root = place.cwd;
  if ((await currentBranch(place)) === branch) {
    const mend = `agent-chat sync --init ${remote} --branch agent-chat`;
    throw new ChatError("no_repo", `${quoted(branch)} is the branch you work on`, mend);
  }
  await assertNowhereElse(place, branch);
  const before = await oidOf(place, `refs/heads/${branch}`);
  if (before !== undefined) await assertOurs(place, before, `the branch ${branch}`);
  const start = before ?? (await commitTree(place, await gitLine(place, ["mktree"]), [], "nothing yet"));
  const inside = path.join(root, NEW_TREE);
  try {
    // With -f twice git forgets the one of a sync that was killed.
    await git(place, ["worktree", "add", "-f", "-f", "-q", "--no-checkout", "--detach", inside, start]);
    const { dir } = (await workTree({ ...place, cwd: inside }))!;
    if (before !== undefined) writeWhole(incomingPath({ dir }), `${before} ${NONE_HERE}\n`);
    await readyWorkTree({ ...place, cwd: inside }, remote, branch, config);
    fs.renameSync(path.join(inside, ".git"), path.join(root, ".git"));
    fs.writeFileSync(path.join(dir, "gitdir"), `${path.join(realFolder(root)!, ".git")}\n`);
  } finally {
    fs.rmSync(inside, { recursive: true, force: true });
  }
}

async function readyWorkTree(place: GitPlace, remote: string, branch: string, config: Config): Promise<void> {
  await trackRemote(place, branch, remote, true);
  // Of a sparse work tree git makes a sparse one: a pull by hand would leave no message there.
  if (config.get("core.sparsecheckout") === "true")
    await git(place, ["config", "--worktree", "core.sparseCheckout", "false"]);
  await git(place, ["read-tree", "--empty"]);
}

/** Two work trees of one branch would move it under each other. */
async function assertNowhereElse(place: GitPlace, branch: string): Promise<void> {
  const list = (await git(place, ["worktree", "list", "--porcelain"])).toString().split("\n\n");
  const common = path.resolve(place.cwd, await gitLine(place, ["rev-parse", "--git-common-dir"]));
  for (const rows of list.map((one) => one.split("\n"))) {
    const tree = path.resolve(rows[0]!.replace(/^worktree /, ""));
    if (!rows.includes(`branch refs/heads/${branch}`) || tree === realFolder(place.cwd)) continue;
    if (!isTreeOf(tree, common)) continue; // deleted, or of the repository that this one is a copy of
    const message = `the branch ${quoted(branch)} is that of ${tree}: each root needs one of its own`;
    throw new ChatError("no_repo", message, `agent-chat sync --root ${shellWord(tree)}`);
  }
}

/** Whether git's folder for a work tree is in that of a repository. */
function isTreeOf(tree: string, common: string): boolean {
  const [link, real] = [path.join(tree, ".git"), realFolder(common)];
  const [, dir] = /^gitdir: (.*)/.exec(readIfPossible(link)) ?? [];
  const there = dir === undefined ? realFolder(link) : realFolder(path.resolve(tree, dir));
  return there !== undefined && (there === real || there.startsWith(`${real}${path.sep}`));
}

async function commitTree(place: GitPlace, tree: string, parents: readonly string[], subject: string): Promise<string> {
  const args = ["commit-tree", tree, ...parents.flatMap((parent) => ["-p", parent])];
  return gitLine(place, args, { input: `${subject}\n` });
}

// ---- sync ----------------------------------------------------------------------------------------------------------

const ROOT_FILES = [".gitignore", ".gitattributes"]; // of what is no channel, only these are carried
const FILE_MAX = 10 * 1024 * 1024; // bytes of a file that is carried; a message has its own limit
const MESSAGE_MAX = BODY_MAX + 64 * 1024; // with its header
const SYNC_TRIES = 10;
const SYNC_PATIENCE_MS = 600_000; // another sync of this root may talk to a slow remote
const TOUCH_MS = 1_000; // well below what makes a lock stale

/** How to sync. */
export interface Syncing extends Blocking {
  readonly remote?: string | undefined; // none: the branch's, else origin
  readonly init?: string | undefined; // a URL, or the name of a remote of the repository around: makes the root a work tree
  readonly branch?: string | undefined; // with init
  readonly tries?: number | undefined; // while others push first
  readonly timeout?: number | undefined; // seconds without a word of the remote
  readonly pull?: boolean | undefined; // only fetch, and take in
  readonly untold?: { readonly task: string; readonly agent: string } | undefined; // who finds out otherwise
}

/** A message that went or came. */
export interface Carried {
  readonly channel: string;
  readonly seq: number;
  readonly file: string;
}

/** A task that somebody elsewhere had first. */
export interface Lost {
  readonly channel: string;
  readonly task: string;
  readonly agent: string; // who had it here
  readonly owner: string; // who has it; empty: nobody
}

/** What a sync did. */
export interface Synced {
  readonly root: string;
  readonly remote: string; // origin/main
  readonly commit: string | null; // where both are now
  readonly sent: readonly Carried[];
  readonly came: readonly Carried[];
  readonly renumbered: readonly Renumbered[];
  readonly lost: readonly Lost[];
  readonly left_out: readonly { readonly path: string; readonly reason: string }[];
  readonly notes: readonly string[];
}

/** One sync under way. */
interface Sync {
  readonly root: string;
  repo: Repo;
  readonly how: Syncing;
  readonly sent: Carried[];
  readonly came: Map<string, Carried>; // by path
  readonly renumbered: Renumbered[];
  readonly lost: Lost[];
  readonly leftOut: Map<string, string>; // path: why; of the remote
  readonly unsent: Map<string, string>; // and of what is here
  readonly hidden: Set<string>; // paths that were left out before
  readonly notes: Set<string>;
  here: string | undefined; // the commit of the branch
  there: string | undefined; // that of the remote's
  incoming: string; // the one that is being taken in
  last: string | undefined; // where the remote was when all of it was here
  gone: readonly TreeRow[]; // what it had then, and has no more, or not as it was: it may have another number
}

/** A file of a commit that differs in another. */
interface Change {
  readonly path: string;
  readonly place: Place;
  readonly before: string | undefined; // git's id of what it was; undefined: it was not there
  readonly after: string | undefined; // and of what it is
  readonly bytes: Buffer | undefined; // of that
}

/** What a path below a root is to agent-chat. */
interface Place {
  readonly channel: string;
  readonly name: string; // below the channel
  readonly kind: "message" | "task" | "meta" | "cursor" | "file";
}

/**
 * Takes in what the remote has, puts what was not pushed after it, and pushes; the remote decides what came first.
 * Throws `no_git`, `no_repo`, `no_remote`, `remote`, `unpushed` where something stays here for the next sync, `git`,
 * `bad_value`, `locked`, `no_access`, `no_space` or `io`; then the next sync goes on from there.
 */
export async function sync(root: string, how: Syncing = {}): Promise<Synced> {
  const base = absolute(root);
  parseCount("tries", String(how.tries ?? SYNC_TRIES));
  assertSeconds("timeout", String(how.timeout), how.timeout ?? 0);
  return explainingLater(`sync ${quoted(base)}`, async () => {
    const { init, branch, signal } = how;
    if (init !== undefined) {
      const place = await initPlace(base, init, how);
      await withSync(base, signal, () => initRepo(place, init, branch)); // of two at once the second finds it made
    }
    const repo = await openRepo(base, how);
    return withSync(base, signal, async () => {
      const lists = {
        sent: [],
        came: new Map(),
        renumbered: [],
        lost: [],
        leftOut: new Map<string, string>(),
        unsent: new Map<string, string>(),
        hidden: new Set<string>(),
        notes: new Set<string>(),
      };
      const none = { here: undefined, there: undefined, last: undefined };
      const run: Sync = { root: base, repo, how, ...lists, ...none, incoming: "", gone: [] };
      await syncNow(run);
      return outcome(run);
    });
  });
}

function outcome({ root, repo, sent, came, renumbered, lost, leftOut, unsent, notes, here }: Sync): Synced {
  const left_out = [...new Map([...leftOut, ...unsent])].map(([path, reason]) => ({ path, reason }));
  const remote = repo.tracking.replace(/^refs\/remotes\//, "");
  const all = { sent, came: [...came.values()], renumbered, lost, left_out, notes: [...notes] };
  return { root, remote, commit: here ?? null, ...all };
}

/** One sync of a root at a time. Its lock is touched all the time, for it is held as long as the remote takes. */
function withSync<T>(root: string, signal: AbortSignal | undefined, body: () => Promise<T>): Promise<T> {
  const lock = path.join(root, "_sync.lock");
  const held = async (): Promise<T> => {
    const timer = setInterval(() => touch(lock), TOUCH_MS);
    try {
      return await body();
    } finally {
      clearInterval(timer);
    }
  };
  return withLock(lock, signal, held, undefined, SYNC_PATIENCE_MS);
}

function touch(file: string): void {
  try {
    fs.utimesSync(file, new Date(), new Date());
  } catch {
    // stolen: who did goes on
  }
}

async function syncNow(run: Sync): Promise<void> {
  const { repo, how } = run;
  const { tries = SYNC_TRIES } = how;
  Object.assign(run, await ends(repo));
  run.last = await lastKnown(run);
  await assertOursHere(run);
  if (run.here === undefined) await git(repo, ["read-tree", "--empty"]);
  else await indexAsHead(run);
  await finishIncoming(run);
  for (let left = tries; ; left--) {
    const offline = await fetchNews(run);
    if (how.pull) {
      if (offline !== undefined) throw offline;
      return;
    }
    await commitHere(run);
    if (offline !== undefined) throw unpushed(run, offline);
    if (await push(run)) return;
    if (left <= 1)
      throw new ChatError("unpushed", `others pushed first, ${tries} times: it stays here`, "agent-chat sync");
    await sleep(50 * 2 ** Math.min(tries - left, 6) * (0.5 + Math.random()), how.signal);
  }
}

function fetching({ url, upstream, tracking }: Repo): string[] {
  const options = ["--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--progress"];
  return ["fetch", ...options, url, `+${upstream}:${tracking}`];
}

/** Fetches, and takes in what came; returns why the remote could not be reached. */
async function fetchNews(run: Sync): Promise<ChatError | undefined> {
  const { repo } = run;
  const args = fetching(repo);
  const ran = await tryGit(repo, args, { remote: true }).catch((error: unknown) => {
    if (error instanceof ChatError && error.code === "remote") return error;
    throw error;
  });
  if (ran instanceof ChatError) return ran;
  if (ran.code !== 0 && !/couldn't find remote ref/.test(ran.err)) {
    const error = gitError(repo, args, ran, true);
    if (error.code !== "remote") throw error;
    return error;
  }
  Object.assign(run, await ends(repo));
  if (ran.code === 0) await takeIn(run, run.there!);
  else if (await meet(run)) return fetchNews(run);
  else await forgetRemote(run);
  return undefined;
}

/** Where the remote does not have the branch of a new root, that goes with one that holds channels: they would never meet. */
async function meet(run: Sync): Promise<boolean> {
  const { repo } = run;
  if (repo.settled || run.last !== undefined) return false;
  const listed = (await git(repo, listing(repo.url), { remote: true })).toString();
  const heads = [...listed.matchAll(/^\S+\trefs\/heads\/(.*)$/gm)].map(([, name]) => name!);
  const likely = new Set([mainIn(listed), "main", "agent-chat", ...(heads.length === 1 ? heads : [])]);
  for (const name of likely) {
    if (name === undefined || !heads.includes(name)) continue;
    const [upstream, tracking] = [`refs/heads/${name}`, `refs/remotes/${repo.remote}/${name}`];
    const other: Repo = { ...repo, upstream, tracking, settled: true };
    await git(repo, fetching(other), { remote: true });
    if (!(await holdsChannels(repo, tracking))) continue;
    if (run.here !== undefined && (await baseOf(repo, run.here, tracking)) !== undefined) continue; // left on purpose
    await setUpstream(repo, repo.branch, repo.remote, upstream);
    run.notes.add(`${repo.remote} has no branch ${repo.branch}, but channels on ${name}: this root goes with that one`);
    run.repo = other;
    return true;
  }
  return false;
}

async function holdsChannels(repo: Repo, rev: string): Promise<boolean> {
  try {
    return await assertOurs(repo, rev, rev);
  } catch (error) {
    if (error instanceof ChatError && error.code === "no_repo") return false;
    throw error;
  }
}

/** The remote has no such branch, or not any more: all of it is to be pushed. */
async function forgetRemote(run: Sync): Promise<void> {
  await git(run.repo, ["update-ref", "-d", run.repo.tracking]);
  run.there = undefined;
}

function unpushed({ here, there }: Sync, offline: ChatError): ChatError {
  if (here === there) return offline;
  const message = `${offline.message}; what is new here is kept, and not pushed`;
  return new ChatError("unpushed", message, offline.remedy ?? "agent-chat sync");
}

const PUSHED_FIRST =
  /non-fast-forward|fetch first|cannot lock ref|failed to update ref|incorrect old value|reference already exists/;

/** False where somebody pushed first. */
async function push(run: Sync): Promise<boolean> {
  const { repo, here, there } = run;
  if (here === undefined) return true;
  if (here === there) return (keepKnown(repo, here), true);
  run.sent.splice(0, Infinity, ...(await messagesSince(run, there, here)));
  const args = ["push", "--no-verify", "--no-signed", "--progress", repo.url, `${here}:${repo.upstream}`];
  const ran = await tryGit(repo, args, { remote: true }).catch((error: unknown) => {
    if (error instanceof ChatError && error.code === "remote")
      return { code: -1, out: Buffer.alloc(0), err: error.message };
    throw error;
  });
  if (ran.code === 0) {
    await git(repo, ["update-ref", repo.tracking, here]);
    run.there = here;
    keepKnown(repo, here);
    return true;
  }
  const inTheWay = /Unable to create|cannot create|Permission denied/.test(ran.err);
  if (PUSHED_FIRST.test(ran.err) && !inTheWay) return false;
  throw unpushed(run, gitError(repo, args, ran, true));
}

/** The messages of a commit that another does not have, or only something else by their name. */
async function messagesSince(
  { repo, root, hidden }: Sync,
  there: string | undefined,
  here: string,
): Promise<Carried[]> {
  const rows = await rowsOf(repo, there, here);
  return rows.flatMap(({ path: file, before, after }) => {
    const place = after !== undefined && (before === undefined || hidden.has(file)) ? placeOf(root, file) : undefined;
    return place?.kind === "message" ? [carried(place.channel, place.name)] : [];
  });
}

const carried = (channel: string, file: string): Carried => ({ channel, ...toEntry(file) });

// What is being taken in is written down before the first file changes: a process that dies leaves files of a commit that
// the branch does not have yet, and they must not be taken for what somebody here did.
const incomingPath = ({ dir }: { readonly dir: string }): string => path.join(dir, "agent-chat-incoming");

const NONE_HERE = "none of it is here"; // of a branch that a work tree was made for: it is taken in as if it came

// Where the remote was when all of it was here. What git keeps of it goes back with a remote that is set back; what was
// pushed before would be taken for new by every machine that has it, and be sent by each under another number.
const knownPath = ({ dir }: { readonly dir: string }): string => path.join(dir, "agent-chat-known");

async function lastKnown({ repo, there }: Sync): Promise<string | undefined> {
  const oid = readIfPossible(knownPath(repo)).trim();
  return oid === "" || oid === there ? there : ((await oidOf(repo, oid)) ?? there);
}

function keepKnown(repo: Repo, oid: string): void {
  if (readIfPossible(knownPath(repo)).trim() !== oid) writeWhole(knownPath(repo), `${oid}\n`);
}

async function finishIncoming(run: Sync): Promise<void> {
  const [, oid, how] = /^([0-9a-f]{40,64})(?: (.*))?$/m.exec(readIfPossible(incomingPath(run.repo))) ?? [];
  if (oid === undefined) return;
  if (how === NONE_HERE && oid === run.here) {
    await git(run.repo, ["update-ref", "-d", `refs/heads/${run.repo.branch}`, oid]);
    run.here = undefined;
  }
  if ((await oidOf(run.repo, oid)) !== undefined) await takeIn(run, oid);
  removeIfPresent(fs.unlinkSync, incomingPath(run.repo));
}

/** Brings the files, and then the branch, from where they are to a commit of the remote. */
async function takeIn(run: Sync, theirs: string): Promise<void> {
  const { repo, here } = run;
  if (here === theirs) return;
  const base = here === undefined ? undefined : await baseOf(repo, here, theirs);
  if (base === theirs) return;
  if (base === undefined)
    await assertOurs(repo, theirs, `the branch ${repo.upstream.replace("refs/heads/", "")} of ${repo.remote}`);
  run.incoming = theirs;
  writeWhole(incomingPath(repo), `${theirs}\n`);
  for (const file of hiddenIn(splitRows(await git(repo, ["ls-files", "-t", "-z"])))) run.hidden.add(file);
  const rows = await rowsOf(repo, base, theirs);
  const since = run.last === undefined || run.last === base ? rows : await rowsOf(repo, run.last, theirs);
  run.gone = since.filter(({ before }) => before !== undefined);
  if (here !== undefined && base !== here) await putBackOwn(run, base, here);
  const changes = await changesOf(run, rows, theirs);
  for (const channel of new Set(changes.map(({ place }) => place.channel))) {
    const own = changes.filter(({ place }) => place.channel === channel);
    if (channel === "") for (const change of own) takeRootFile(run, change.place.name, change.bytes);
    else await takeChannel(run, channel, own, theirs);
  }
  await moveBranch(run, theirs);
  await readIndex(run);
  const isAfter = run.last === undefined || run.last === base || (await baseOf(repo, run.last, theirs)) === run.last;
  if (isAfter) keepKnown(repo, theirs);
  removeIfPresent(fs.unlinkSync, incomingPath(repo));
}

/** Brings the branch to another commit; fails where somebody else has moved it. */
async function moveBranch(run: Sync, to: string): Promise<void> {
  const before = run.here ?? "0".repeat(to.length);
  await git(run.repo, ["update-ref", "-m", "agent-chat sync", `refs/heads/${run.repo.branch}`, to, before]);
  run.here = to;
}

/** Before anything is touched, and asked once: whatever comes later to a branch of messages, it is one. */
async function assertOursHere({ repo, root, here }: Sync): Promise<void> {
  if (repo.ours) return;
  if (here === undefined) return assertNoneStaged(repo, root);
  await assertOurs(repo, here, `the branch ${repo.branch} of ${root}`, below(root));
  await tryGit(repo, ["config", `branch.${repo.branch}.agentchat`, "true"]);
}

/** What somebody is about to commit first is theirs. */
async function assertNoneStaged(repo: Repo, root: string): Promise<void> {
  const isOurs = (file: string): boolean => file.startsWith(".") || isChannel(path.join(root, file.split("/")[0]!));
  const staged = splitRows(await git(repo, ["ls-files", "-z"])).find((file) => !isOurs(file));
  if (staged !== undefined) throw somebodys(`what is to be committed in ${root}`, staged, below(root));
}

async function baseOf(repo: Repo, one: string, other: string): Promise<string | undefined> {
  return (await tryGitLine(repo, ["merge-base", one, other]))?.split("\n")[0];
}

function writeWhole(file: string, text: string | Uint8Array): void {
  const draft = `${file}.${nonce()}`;
  fs.writeFileSync(draft, text);
  persistently(() => fs.renameSync(draft, file));
}

/** What git knows of unchanged files stays; the work tree, which may be ahead of it, is not asked. */
async function indexAsHead({ repo, root }: Sync): Promise<void> {
  const args = ["read-tree", "--reset", "-i", "HEAD"];
  const ran = await tryGit(repo, args);
  if (ran.code === 0) return;
  if (!/invalid path/.test(ran.err)) throw gitError(repo, args, ran, false);
  // Somebody pushed names that no git takes into an index, as ../x: it goes on without them, as does the next commit.
  const rows = splitRows(await git(repo, ["ls-tree", "-r", "-z", "HEAD"]));
  const good = rows.filter((row) => placeOf(root, treeRow(row).name) !== undefined);
  await git(repo, ["read-tree", "--empty"]);
  await git(repo, ["update-index", "-z", "--index-info"], { input: good.map((row) => `${row}\0`).join("") });
}

/** Makes the index that of the branch; what is left out is not looked for. */
async function readIndex(run: Sync): Promise<void> {
  const { repo, leftOut } = run;
  await indexAsHead(run);
  await tryGit(repo, ["update-index", "-q", "--refresh"]);
  if (leftOut.size === 0) return;
  const tracked = splitRows(await git(repo, ["ls-files", "-z"])); // git marks none where one of them is only here
  const paths = tracked.filter((file) => leftOut.has(file) && !file.includes("\ufffd")).map((file) => `${file}\0`);
  if (paths.length > 0)
    await tryGit(repo, ["update-index", "-z", "--skip-worktree", "--stdin"], { input: paths.join("") });
}

/** What was left out, of the rows of `ls-files -t`. */
function hiddenIn(index: readonly string[]): string[] {
  return index.flatMap((row) => (row.startsWith("S ") ? [row.slice(2)] : []));
}

/** Messages here whose very name was left out: they are sent in place of that. */
async function unhidden({ repo, root, hidden }: Sync, index: readonly string[]): Promise<Set<string>> {
  const isHere = (file: string): boolean => {
    const { channel = "", name = "", kind } = placeOf(root, file) ?? {};
    if (kind !== "message" || !fs.existsSync(path.join(root, file))) return false;
    return inspect(channelIn(root, channel), toEntry(name)).kind === "message";
  };
  const files = hiddenIn(index).filter(isHere);
  const input = files.map((file) => `${file}\0`).join("");
  for (const file of files) hidden.add(file);
  if (files.length > 0) await git(repo, ["update-index", "-z", "--no-skip-worktree", "--stdin"], { input });
  return new Set(files);
}

/** What differs between two commits, as far as it is to be taken in: nothing of it is trusted. */
async function changesOf(run: Sync, rows: readonly TreeRow[], theirs: string): Promise<Change[]> {
  for (const { path: file } of rows) run.leftOut.delete(file); // it may be gone or good by now
  await takeIgnored(run, rows);
  const [plain, channels] = [plainFolders(run.root), await channelsOf(run, rows, theirs)];
  const wanted = rows.flatMap((row) => {
    if (run.leftOut.has(row.path)) return []; // a .gitignore
    const place = channels.has(row.path.split("/")[0]!) ? placeOf(run.root, row.path) : undefined;
    const bad = place === undefined ? "is nothing of a channel" : reasonOf(row.mode);
    const reason = row.after !== undefined && (bad || (!plain(row.path) && "is below what is no folder here"));
    const isOfOneMachine = row.path.includes("/.cursors/"); // committed by an older agent-chat, or by hand
    if (reason && !isOfOneMachine) run.leftOut.set(row.path, reason);
    return place === undefined || reason ? [] : [{ ...row, place }];
  });
  const oids = wanted.flatMap(({ after }) => after ?? []);
  const contents = await blobs(run, oids);
  return wanted.flatMap(({ path: file, place, before, after }): Change[] => {
    const bytes = after === undefined ? undefined : contents.get(after);
    const reason = after === undefined ? undefined : badContent(run, place, bytes);
    if (reason !== undefined) run.leftOut.set(file, reason);
    return reason === undefined ? [{ path: file, place, before, after, bytes }] : [];
  });
}

interface TreeRow {
  readonly mode: string;
  readonly path: string;
  readonly before: string | undefined; // as in Change
  readonly after: string | undefined;
}

/** The files that differ between two commits; of a channel that is new, all. */
async function rowsOf(repo: Repo, base: string | undefined, theirs: string): Promise<TreeRow[]> {
  const all = async (...folders: string[]): Promise<TreeRow[]> =>
    splitRows(await git(repo, ["ls-tree", "-r", "-z", theirs, "--", ...folders]))
      .map(treeRow)
      .map(({ mode, oid, name }) => ({ mode, path: name, before: undefined, after: oid }));
  if (base === undefined) return all();
  const rows = diffRows(splitRows(await git(repo, ["diff-tree", "-r", "-z", "--no-renames", base, theirs])));
  const isNew = ({ path: file, before }: TreeRow): boolean => before === undefined && /^[^/]+\/_meta\.json$/.test(file);
  const folders = rows.filter(isNew).map(({ path: file }) => file.replace(/_meta\.json$/, ""));
  if (folders.length === 0) return rows;
  const isOther = ({ path: file }: TreeRow): boolean => !folders.some((folder) => file.startsWith(folder));
  return [...rows.filter(isOther), ...(await all(...folders))];
}

/** Which folders are channels, here or there; and what lies beside them and is ours. */
async function channelsOf(run: Sync, rows: readonly TreeRow[], theirs: string): Promise<Set<string>> {
  const names = [...new Set(rows.map(({ path: file }) => file.split("/")[0]!))].filter(isSafeSegment);
  const input = names.map((name) => `${theirs}:${name}/_meta.json\n`).join("");
  const found = (await git(run.repo, ["cat-file", "--batch-check"], { input })).toString().split("\n");
  const there = names.filter((name, i) => / blob \d+$/.test(found[i]!) || isChannel(path.join(run.root, name)));
  return new Set([...ROOT_FILES, ...there]);
}

/** Whether cursors are carried, the remote's .gitignore says: it is taken before anything is judged by it. */
async function takeIgnored(run: Sync, rows: readonly TreeRow[]): Promise<void> {
  const row = rows.find(({ path: file, mode }) => file === ".gitignore" && reasonOf(mode) === false);
  const bytes = row?.after === undefined ? undefined : (await blobs(run, [row.after])).get(row.after);
  if (bytes === undefined) return;
  if (row!.before === undefined || sharesCursors(run.root) || !takesCursors(bytes.toString()))
    takeRootFile(run, ".gitignore", bytes);
  else run.leftOut.set(".gitignore", "would let git carry cursors, with which somebody could hide messages");
}

/** Whether all folders above a path are folders, or not there yet: a link in a clone leads out of the root. */
function plainFolders(root: string): (file: string) => boolean {
  const known = new Map<string, boolean>([[".", true]]);
  const isPlain = (folder: string): boolean => {
    const before = known.get(folder);
    if (before !== undefined) return before;
    const stat = fs.lstatSync(path.join(root, folder), { throwIfNoEntry: false });
    const plain = isPlain(path.posix.dirname(folder)) && (stat?.isDirectory() ?? true);
    known.set(folder, plain);
    return plain;
  };
  return (file) => isPlain(path.posix.dirname(file));
}

/** Rows of `diff-tree -z`: `:mode mode id id status`, then the path. */
function diffRows(rows: readonly string[]): TreeRow[] {
  return rows.flatMap((row, i) => {
    if (i % 2 === 1) return [];
    const [, mode = "", before = "", after = ""] = row.split(" ");
    const id = (oid: string): string | undefined => (/^0+$/.test(oid) ? undefined : oid);
    return [{ mode, path: rows[i + 1]!, before: id(before), after: id(after) }];
  });
}

function reasonOf(mode: string): string | false {
  if (/^100/.test(mode)) return false;
  return mode === "120000" ? "is a link" : "is no regular file";
}

function placeOf(root: string, file: string): Place | undefined {
  if (ROOT_FILES.includes(file)) return { channel: "", name: file, kind: "file" };
  const [channel = "", first = "", ...more] = file.split("/");
  const name = [first, ...more].join("/");
  if (first === "" || /\ufffd|(^|\/)git~\d/i.test(file) || !isSafeSegment(channel) || more.length > 8) return undefined;
  const is = (kind: Place["kind"]): Place => ({ channel, name, kind });
  if (first === ".cursors")
    return more.length === 1 && /^[a-z0-9-]+\.(txt|status)$/.test(more[0]!) && sharesCursors(root)
      ? is("cursor")
      : undefined;
  if (first === ".tasks")
    return more.length === 1 && /^[\w-]+\.[a-z0-9-]+\.json$/.test(more[0]!) ? is("file") : undefined;
  if (first === "_meta.json" || first === "_paused.md")
    return more.length > 0 ? undefined : is(first === "_meta.json" ? "meta" : "file");
  if (![...(first === "_files" ? [] : [first]), ...more].every(isSafeSegment)) return undefined;
  if (more.length === 0 && ENTRY.test(name) && !name.startsWith("0000-")) return is("message");
  return is(more.length === 0 && TASK.test(name) ? "task" : "file");
}

function badContent({ root }: Sync, place: Place, bytes: Buffer | undefined): string | undefined {
  const { channel, name, kind } = place;
  if (bytes === undefined || bytes.length > mostOf(place)) return `has more than ${count(mostOf(place))} bytes`;
  if (kind === "meta" && isChannel(path.join(root, channel))) return damageOf(bytes.toString());
  if (kind !== "message") return undefined;
  const parsed = parseMessage(channelIn(root, channel), toEntry(name), bytes.toString());
  return typeof parsed === "string" ? parsed : undefined;
}

/** The contents of git's objects by their ids; without those that are too large. */
async function blobs({ repo }: Sync, oids: readonly string[]): Promise<Map<string, Buffer>> {
  const found = new Map<string, Buffer>();
  const ask = (names: readonly string[], how: string): Promise<Buffer> =>
    names.length === 0
      ? Promise.resolve(Buffer.alloc(0))
      : git(repo, ["cat-file", how], { input: `${names.join("\n")}\n` });
  const sizes = (await ask([...new Set(oids)], "--batch-check")).toString().split("\n");
  const small = sizes.flatMap((line) => {
    const [oid, type, size] = line.split(" ");
    return type === "blob" && Number(size) <= FILE_MAX ? [oid!] : [];
  });
  const out = await ask(small, "--batch");
  for (let at = 0; at < out.length;) {
    const newline = out.indexOf("\n", at);
    const [oid, , size] = out.toString("latin1", at, newline).split(" ");
    const end = newline + 1 + Number(size);
    found.set(oid!, out.subarray(newline + 1, end));
    at = end + 1;
  }
  return found;
}

/** git's id of a file here; undefined where there is none. */
async function blobId(file: string, like: string | undefined): Promise<string | undefined> {
  const { createHash } = await import("node:crypto");
  try {
    const found = readRegular(file);
    if (typeof found === "string") return found;
    const hash = createHash((like?.length ?? 40) > 40 ? "sha256" : "sha1");
    return hash.update(`blob ${found.bytes.length}\0`).update(found.bytes).digest("hex");
  } catch (error) {
    if (isCode(error, "ENOENT", "ENOTDIR")) return undefined;
    throw error;
  }
}

function takeRootFile({ root }: Sync, name: string, bytes: Buffer | undefined): void {
  const file = path.join(root, name);
  if (bytes !== undefined && readIfPossible(file) !== bytes.toString()) writeWhole(file, bytes);
}

/** The taking in of one channel, under its lock. */
interface Taking {
  readonly run: Sync;
  readonly channel: Channel;
  readonly draft: Draft;
  readonly pushed: ReadonlySet<string>; // the files that the remote has in it
}

/** Takes in what changed in one channel, decided and carried out under its lock. */
async function takeChannel(run: Sync, name: string, changes: readonly Change[], theirs: string): Promise<void> {
  const channel = channelIn(run.root, name);
  const tree = await tryGit(run.repo, ["ls-tree", "-z", "--name-only", `${theirs}:${name}`]);
  const pushed = new Set(tree.code === 0 ? splitRows(tree.out) : []);
  makeFolder(channel.path);
  await withNumbers(channel, run.how.signal, async (draft) => {
    const taking: Taking = { run, channel, draft, pushed };
    letWriterFinish(channel);
    forgetNewest(channel);
    await takeMessages(taking, changes);
    for (const [id, own] of byTask(changes)) await takeTaskChanges(taking, id, own);
    for (const change of changes) await takeOther(taking, change);
  });
  const came = changes.filter(({ place, bytes }) => place.kind === "message" && bytes !== undefined);
  await flushFiles(came.map(({ place }) => path.join(channel.path, place.name)));
  flushFolder(channel.path);
}

/** Messages of the remote keep their numbers; what is not there yet is put after them. */
async function takeMessages(taking: Taking, changes: readonly Change[]): Promise<void> {
  const { run, channel, draft } = taking;
  const news = changes.filter(({ place, bytes }) => place.kind === "message" && bytes !== undefined);
  if (news.length === 0) return;
  const coming = new Map(news.map(({ place, bytes }) => [place.name, parsedMessage(channel, place.name, bytes!)]));
  const moved = await renumberedThere(run, channel, coming);
  const { plan, notes } = planTakeIn(taking, changes, coming, moved);
  const known = [...coming.values()].filter(({ was }) => was !== undefined).map(({ file }) => file); // nobody here had it
  await renumberAll(channel, draft, { ...plan, known }, run.how.signal);
  notes.forEach((note) => run.notes.add(note));
  const moves = plan.moves.filter(({ from, to }) => from !== to).reverse();
  run.renumbered.push(...moves.map((move) => renumbered(channel, move)));
  news.sort((a, b) => toEntry(b.place.name).seq - toEntry(a.place.name).seq); // whoever posts meanwhile is after the highest
  for (const { path: file, place, bytes } of news) {
    const to = path.join(channel.path, place.name);
    const there = fs.existsSync(to);
    if (there && fs.readFileSync(to).equals(bytes!)) continue;
    if (there) placeHeld(draft, bytes!, to, replaceFile);
    else if (!placeOnce(draft, bytes!, to, moveIntoPlace, false)) startOver(); // git has it too, until all of them are flushed
    if (!plan.moves.some((move) => move.to === place.name) && !there)
      run.came.set(file, carried(channel.name, place.name));
  }
}

/** The messages that somebody else gave another number: by what they say, for their number is new. */
async function renumberedThere(
  run: Sync,
  channel: Channel,
  coming: ReadonlyMap<string, Message>,
): Promise<ReadonlyMap<string, string>> {
  const gone = run.gone.flatMap(({ path: file, before }) => {
    const place = placeOf(run.root, file);
    return place?.kind === "message" && place.channel === channel.name ? [{ place, before: before! }] : [];
  });
  const oids = gone.map(({ before }) => before);
  const contents = await blobs(run, oids);
  const were = new Set(gone.map(({ place, before }) => identityIn(channel, place.name, contents.get(before))));
  const ids = [...coming.values()].map((message) => [identityOf(message), message.file] as const);
  return new Map(ids.filter(([id]) => were.has(id)));
}

function parsedMessage(channel: Channel, file: string, bytes: Buffer): Message {
  return parseMessage(channel, toEntry(file), bytes.toString()) as Message;
}

/** All of a message but its number and what it answers: by that it is known again under another number. */
function identityOf({ from, ts, status, title, key, task, body, to, priority }: Message): string {
  const text = body.trimEnd().replace(/_files\/\d+\//g, "_files/");
  return JSON.stringify([from, to, ts, status, title, key, task, priority, text]);
}

/** That of a message in a file; undefined where there is none. */
function identityIn(channel: Channel, file: string, bytes: Buffer | undefined): string | undefined {
  const parsed = bytes && parseMessage(channel, toEntry(file), bytes.toString());
  return typeof parsed === "object" ? identityOf(parsed) : undefined;
}

/** Which of the messages here have to make room, or have got their number elsewhere. */
function planTakeIn(
  { run, channel, pushed }: Taking,
  changes: readonly Change[],
  coming: ReadonlyMap<string, Message>,
  moved: ReadonlyMap<string, string>,
): { plan: Renumbering; notes: string[] } {
  const { entries } = listMessages(channel);
  const isOther = ({ file, seq }: Entry): boolean => {
    const theirs = coming.get(file);
    if (theirs === undefined) return !pushed.has(file);
    const finding = inspectReadable(channel, { file, seq });
    return finding.kind === "message" && identityOf(finding.message) !== identityOf(theirs);
  };
  const others = new Set(entries.filter(isOther));
  const local = messagesOf(channel, [...others]); // not pushed, or pushed and taken away there
  const here = new Set(entries.filter((entry) => !others.has(entry)).map(({ file }) => file));
  const twins = new Map([...moved].filter(([, file]) => !here.has(file)));
  const files = new Map<string, string>(); // the new names
  for (const message of local) {
    const twin = twins.get(identityOf(message));
    if (twin !== undefined && twin !== message.file && twins.delete(identityOf(message))) files.set(message.file, twin);
  }
  const theirs = [...pushed].filter((file) => ENTRY.test(file) && !run.leftOut.has(`${channel.name}/${file}`));
  const numbers = new Set(theirs.map((file) => toEntry(file).seq));
  const wasPushed = new Set(changes.filter(({ before }) => before !== undefined).map(({ place }) => place.name));
  const unpushed = local.filter(({ file, seq }) => !files.has(file) && (!wasPushed.has(file) || numbers.has(seq)));
  let next = highestOf(run, channel, theirs, coming);
  if (unpushed.some(({ seq }) => seq <= next))
    for (const { file } of unpushed) files.set(file, file.replace(/^\d+/, padded(++next)));
  const arriving = [...coming.keys()].filter((file) => !here.has(file)).map((file) => toEntry(file).seq);
  return movesFor(channel, local, files, entries, arriving);
}

/** The highest number of the remote; what was left out, now or before, has none. */
function highestOf(
  { hidden }: Sync,
  channel: Channel,
  files: readonly string[],
  coming: ReadonlyMap<string, Message>,
): number {
  const sorted = files.map(toEntry).sort((a, b) => b.seq - a.seq);
  const isNone = (entry: Entry): boolean =>
    hidden.has(`${channel.name}/${entry.file}`) || (!coming.has(entry.file) && inspect(channel, entry).kind === "odd");
  return sorted.find((entry) => !isNone(entry))?.seq ?? 0;
}

function movesFor(
  channel: Channel,
  local: readonly Message[],
  files: ReadonlyMap<string, string>,
  entries: readonly Entry[],
  arriving: readonly number[],
): { plan: Renumbering; notes: string[] } {
  const notes: string[] = [];
  const moving = new Set([...files.keys()].map((file) => toEntry(file).seq));
  const having = (seq: number): Entry[] => entries.filter((entry) => entry.seq === seq);
  const groups = [...moving].map((seq) => messagesOf(channel, having(seq)));
  const shared = groups.filter(({ length }) => length > 1).map(([first]) => first!.seq);
  const moves = local.flatMap((message): Move[] => {
    const to = files.get(message.file) ?? message.file;
    const reply = answered(message, groups, files, notes);
    if (to === message.file && reply === message.reply_to) return [];
    const keep = shared.includes(message.seq);
    return [
      { from: message.file, to, reply, files: to === message.file ? [] : attachments(channel, message.seq), keep },
    ];
  });
  const staying = groups
    .flat()
    .filter((message) => shared.includes(message.seq) && !moves.some(({ from }) => from === message.file));
  const still = staying.map(({ file, reply_to }): Move => ({
    from: file,
    to: file,
    reply: reply_to,
    files: [],
    keep: true,
  }));
  const all = [...moves, ...still].sort((a, b) => toEntry(b.to).seq - toEntry(a.to).seq);
  return { plan: { moves: all, shared, fresh: heldTooEarly(channel, arriving, entries) }, notes };
}

/** Numbers that come only now, and that some cursor has already: as the reference writes them, or as they were set by hand. */
function heldTooEarly(channel: Channel, arriving: readonly number[], entries: readonly Entry[]): number[] {
  if (sharesCursors(channel.root)) return []; // then a cursor may come with what it names
  const there = new Set(entries.map(({ seq }) => seq));
  const late = arriving.filter((seq) => !there.has(seq));
  if (late.length === 0) return [];
  const none: Shared = new Set<number>();
  const cursors = cursorNames(channel).map((agent) => readCursor(channel, agent as Name).cursor);
  return late.filter((seq) => cursors.some((cursor) => holds(cursor, { seq, file: "" }, none)));
}

function byTask(changes: readonly Change[]): Map<string, Change[]> {
  const tasks = new Map<string, Change[]>();
  for (const change of changes) {
    const id = change.place.kind === "task" ? TASK.exec(change.place.name)?.[1] : undefined;
    if (id !== undefined) tasks.set(id, [...(tasks.get(id) ?? []), change]);
  }
  return tasks;
}

/** A task that changed there and not here is as it is there; where both changed it, the remote's stands. */
async function takeTaskChanges(taking: Taking, id: string, changes: readonly Change[]): Promise<void> {
  const { run, channel, pushed } = taking;
  const [before, after, mine] = [new Map<string, string>(), new Map<string, string>(), new Map<string, string>()];
  for (const { place, before: was, after: is } of changes) {
    if (was !== undefined) before.set(place.name, was);
    if (is !== undefined) after.set(place.name, is);
  }
  const touched = new Set(changes.map(({ place }) => place.name));
  for (const { file } of filesOf(channel, id)) {
    if (pushed.has(file) && !touched.has(file)) continue; // there and here alike
    mine.set(file, (await blobId(path.join(channel.path, file), changes[0]!.after ?? changes[0]!.before))!);
  }
  if (isSameMap(mine, after)) return;
  const changedHere = !isSameMap(mine, before);
  const isSame = [...mine.values()].some((oid) => [...after.values()].includes(oid)); // its text never changes
  if (changedHere && before.size === 0 && mine.size > 0 && !isSame) {
    const to = renameTask(taking, id, [...mine.keys()]);
    run.notes.add(`${channel.name}: task-${id} was made on both sides: the one from here is task-${to} now`);
    mine.clear();
  }
  if (changedHere && mine.size > 0 && isFurther([...mine.keys()], [...after.keys()])) return;
  if (changedHere) tellLosers(taking, id, [...mine.keys()], [...after.keys()]); // before it is done: whoever dies tells it again
  replaceTask(taking, changes, [...mine.keys()]);
}

function isSameMap(a: ReadonlyMap<string, string>, b: ReadonlyMap<string, string>): boolean {
  return a.size === b.size && [...a].every(([key, value]) => b.get(key) === value);
}

const ownersIn = (files: readonly string[]): string[] =>
  files.flatMap((file) => TASK.exec(file)?.[3] ?? []).map(foldName);

/** Whether the same agent has a task on both sides, and has finished it here. */
function isFurther(mine: readonly string[], theirs: readonly string[]): boolean {
  const [own, other] = [ownersIn(mine), ownersIn(theirs)];
  const done =
    mine.some((file) => TASK.exec(file)?.[2] === "DONE") && !theirs.some((file) => TASK.exec(file)?.[2] === "DONE");
  return own.length === 1 && own[0] === other[0] && other.length === 1 && done;
}

function tellLosers(taking: Taking, task: string, mine: readonly string[], theirs: readonly string[]): void {
  const { run, channel } = taking;
  const [owner = ""] = ownersIn(theirs);
  for (const agent of ownersIn(mine).filter((name) => name !== owner && isName(name))) {
    run.lost.push({ channel: channel.name, task, agent, owner });
    const { untold } = run.how;
    if (untold?.agent !== agent || untold.task !== task) tellLost(taking, task, agent, owner);
    removeIfPresent(fs.unlinkSync, recordPath(channel, task, agent));
  }
}

/** Once, however often the sync has to begin anew. */
function tellLost({ run, channel, draft }: Taking, task: string, agent: string, owner: string): void {
  const has = owner === "" ? "it is open again there" : `${owner} has it`;
  const body = `task-${task} is not yours: on the remote ${has}, and that stands. You had it here: do not go on with it.`;
  const title = `task-${task} is ${owner === "" ? "not yours" : `${owner}'s`}`;
  const key = `lost ${task} ${run.incoming.slice(0, 16)}`;
  const from = isName(owner) ? owner : "sync";
  const outgoing = { from, to: [agent], title, body, status: "lost", task, key, force: true };
  const unnumbered = address(channel, outgoing, body, []);
  if (postedBefore(channel, unnumbered) !== undefined) return;
  const message = numbered(channel, unnumbered, lastTaken(channel, listMessages(channel).entries) + 1);
  if (!placeOnce(draft, formatMessage(message), message.path)) startOver();
}

/** The file is renamed where that is all, so that a task is never seen twice, nor missed. */
function replaceTask({ channel, draft }: Taking, changes: readonly Change[], mine: readonly string[]): void {
  const after = changes.filter(({ bytes }) => bytes !== undefined);
  const at = (name: string): string => path.join(channel.path, name);
  const gone = mine.filter((file) => !after.some(({ place }) => place.name === file));
  const [from] = gone;
  const [to] = after.map(({ place }) => place.name).filter((name) => !mine.includes(name));
  assertHeld(draft);
  if (from !== undefined && to !== undefined && !fs.existsSync(at(to))) fs.renameSync(at(from), at(to));
  for (const { place, bytes } of after)
    if (readIfPossible(at(place.name)) !== bytes!.toString() || !fs.existsSync(at(place.name)))
      placeHeld(draft, bytes!, at(place.name), replaceFile);
  for (const file of gone) removeIfPresent(fs.unlinkSync, at(file));
}

/** Gives a task that is only here the next free number, and those that come after it that too. */
function renameTask({ channel, draft, pushed }: Taking, id: string, files: readonly string[]): string {
  const to = nextTaskId(channel, pushed);
  for (const [other, own] of taskFiles(channel))
    for (const { file } of own)
      if (other !== id && !pushed.has(file)) comeAfter(path.join(channel.path, file), draft, id, to);
  for (const file of files) renameTaskFile(channel, draft, file, id, to);
  return to;
}

/** The name changes last: should this process die before, it is all done again, and after it nothing is left to do. */
function renameTaskFile(channel: Channel, draft: Draft, file: string, id: string, to: string): void {
  const next = file.replace(`task-${id}.`, `task-${to}.`);
  const [owner] = ownersIn([file]);
  const record = owner === undefined ? undefined : recordPath(channel, id, owner);
  const old = path.join(channel.path, file);
  const text = fs.readFileSync(old, "utf8");
  const changed = text.replace(/^task:.*$/m, `task: ${to}`);
  if (changed !== text) placeHeld(draft, changed, old, replaceFile);
  if (record !== undefined && fs.existsSync(record)) fs.copyFileSync(record, recordPath(channel, to, owner!));
  assertHeld(draft);
  fs.renameSync(old, path.join(channel.path, next));
  if (record !== undefined) removeIfPresent(fs.unlinkSync, record);
}

function comeAfter(file: string, draft: Draft, id: string, to: string): void {
  const text = readIfPossible(file);
  const changed = text.replace(/^after:.*$/m, (line) =>
    line.replace(RegExp(`(?<![\\w-])(task-|#)?${id}(?![\\w-])`), to),
  );
  if (changed !== text) placeHeld(draft, changed, file, replaceFile);
}

/** Everything that is neither message nor task. */
async function takeOther(taking: Taking, change: Change): Promise<void> {
  const { run, channel, draft } = taking;
  const { place, before, after, bytes } = change;
  if (place.kind === "message" || place.kind === "task") return;
  const to = path.join(channel.path, place.name);
  const mine = await blobId(to, after ?? before);
  if (mine === after) return;
  if (place.kind === "meta") return takeMeta(taking, change);
  if (place.kind === "cursor" && mine !== undefined) return takeCursor(taking, change);
  if (bytes === undefined) {
    if (mine === before) removeIfPresent(fs.unlinkSync, to);
    return;
  }
  if (mine !== undefined && mine !== before && !place.name.startsWith(".") && place.name !== "_paused.md") {
    const { dir, name, ext } = path.parse(place.name);
    const kept = path.join(dir, `${name}.${HOST.toLowerCase()}-${nonce()}${ext}`);
    fs.renameSync(to, path.join(channel.path, kept));
    run.notes.add(`${channel.name}/${place.name} was changed on both sides: yours is ${kept} now`);
  }
  makeFolder(path.dirname(to));
  placeHeld(draft, bytes, to, replaceFile);
}

/** Members of both sides; another key as the side that changed it has it, else as the remote. */
async function takeMeta({ run, channel, draft }: Taking, { before, bytes }: Change): Promise<void> {
  if (bytes === undefined) return; // a channel is not taken away by a sync
  const theirs = objectIn(bytes.toString());
  if (theirs === undefined) return void placeOnce(draft, bytes, metaPath(channel.path)); // open to all, and not hidden
  const mine = objectIn(readIfPossible(metaPath(channel.path))) ?? theirs; // none, or damaged: the remote's
  const base = before === undefined ? "" : ((await blobs(run, [before])).get(before)?.toString() ?? "");
  const merged = mergeMeta(objectIn(base) ?? {}, mine, theirs);
  const isTheirs = JSON.stringify(merged) === JSON.stringify(theirs);
  placeHeld(draft, isTheirs ? bytes : `${JSON.stringify(merged, null, 2)}\n`, metaPath(channel.path), replaceFile);
}

function mergeMeta(
  base: Record<string, unknown>,
  mine: Record<string, unknown>,
  theirs: Record<string, unknown>,
): Record<string, unknown> {
  const merged = { ...theirs };
  const differs = (a: unknown, b: unknown): boolean => JSON.stringify(a) !== JSON.stringify(b);
  for (const [key, value] of Object.entries(mine))
    if (differs(value, base[key]) && (!differs(theirs[key], base[key]) || theirs[key] === undefined))
      merged[key] = value;
  for (const key of Object.keys(base)) if (!(key in mine) && !differs(theirs[key], base[key])) delete merged[key];
  const membersIn = ({ members }: Record<string, unknown>): string[] =>
    Array.isArray(members) ? members.map(String) : [];
  const [old, own, other] = [membersIn(base), membersIn(mine), membersIn(theirs)];
  const has = (names: readonly string[], name: string): boolean =>
    names.some((one) => foldName(one) === foldName(name));
  const stay = other.filter((name) => has(own, name) || !has(old, name));
  const added = own.filter((name) => !has(other, name) && !has(old, name));
  if (Array.isArray(theirs["members"]) || added.length > 0) merged["members"] = [...stay, ...added];
  return merged;
}

/** A cursor that git carries grows by what was shown elsewhere. */
async function takeCursor({ run, channel }: Taking, { place, bytes }: Change): Promise<void> {
  const agent = path.basename(place.name).replace(/\.txt$/, "") as Name;
  const theirs = bytes === undefined ? undefined : parseCursor(bytes.toString());
  if (theirs === undefined || !place.name.endsWith(".txt")) return;
  const grown = (): string => formatCursor(union(readCursor(channel, agent).cursor, theirs));
  await rewrite(channel, agent, cursorPath(channel, agent), grown, run.how.signal);
}

/** Commits what is new here, on top of the branch. */
async function commitHere(run: Sync): Promise<void> {
  const { repo, root, here } = run;
  const channels = listChannels(root, (note) => run.notes.add(note));
  for (let left = LISTINGS; ; left--) {
    const before = await settledNumbers(channels, run.how.signal);
    const found = await changedHere(run, channels);
    const ids = await hashed(repo, found.added);
    const changed = channels.some((channel, i) => !isSameNumbering(before[i]!, numbering(channel)));
    if ((ids === undefined || changed) && left > 1) continue; // a task was renamed in between, or numbers changed
    if (ids === undefined || changed)
      throw new ChatError("io", `the files of ${root} do not hold still`, "agent-chat sync");
    if (found.added.length + found.removed.length === 0) return;
    const rows = found.added.map((file, i) => `100644 ${ids[i]}\t${file}\0`);
    const zero = "0".repeat((ids[0] ?? here)!.length);
    rows.push(...found.removed.map((file) => `0 ${zero}\t${file}\0`));
    await git(repo, ["update-index", "-z", "--index-info"], { input: rows.join("") });
    const tree = await gitLine(repo, ["write-tree"]);
    const commit = await commitTree(repo, tree, here === undefined ? [] : [here], subjectOf(run, found));
    await moveBranch(run, commit);
    await tryGit(repo, ["update-index", "-q", "--refresh"]);
    return;
  }
}

/** A message that is being given another number has two names until that is done. */
async function settledNumbers(channels: readonly Channel[], signal: AbortSignal | undefined): Promise<Numbering[]> {
  for (const channel of channels) if (readTransit(channel) !== undefined) await withNumbers(channel, signal, () => {});
  return channels.map(numbering);
}

/** git's ids of files, now kept by it; undefined where one of them has just gone. */
async function hashed(repo: Repo, files: readonly string[]): Promise<string[] | undefined> {
  if (files.length === 0) return [];
  const input = `${files.join("\n")}\n`;
  const { code, out, err } = await tryGit(repo, ["hash-object", "-w", "--no-filters", "--stdin-paths"], { input });
  if (code === 0) return out.toString().trim().split("\n");
  if (/could not open|No such file/.test(err) && !/No space/.test(err)) return undefined;
  throw gitError(repo, ["hash-object"], { code, out, err }, false);
}

/** What is to be committed: paths below the root. */
interface News {
  readonly added: string[]; // and those that changed
  readonly changed: Set<string>;
  readonly removed: string[];
}

/** What differs here from the branch. A message that is gone is put back, unless it has another number now. */
async function changedHere(run: Sync, channels: readonly Channel[]): Promise<News> {
  const { repo, root, here } = run;
  const found: News = { added: [], changed: new Set(), removed: [] };
  const folders = channels.map(({ name }) => `${name}/`);
  run.unsent.clear(); // it is looked at anew
  channels.forEach(letWriterFinish);
  const index = splitRows(await git(repo, ["ls-files", "-t", "-z"]));
  const spoilt = await unhidden(run, index);
  const untracked = folders.length === 0 ? Buffer.alloc(0) : git(repo, ["ls-files", "-o", "-z", "--", ...folders]);
  const out = await Promise.all([untracked, git(repo, ["diff-files", "-z", "--name-status"])]);
  const [fresh, rows] = out.map(splitRows) as [string[], string[]];
  const tracked = new Set(index.map((row) => row.slice(2)));
  found.added.push(...ROOT_FILES.filter((name) => !tracked.has(name) && fs.existsSync(path.join(root, name))));
  found.added.push(...fresh.filter((file) => isToSend(run, file)));
  const gone: string[] = [];
  for (let i = 0; i + 1 < rows.length; i += 2) {
    const [status, file] = [rows[i]!, rows[i + 1]!];
    if (spoilt.has(file)) found.added.push(file);
    else if (status === "D" && placeOf(root, file) !== undefined) gone.push(file);
    else if (status === "M" && isToSend(run, file) && !isSpoilt(run, file) && (await isChanged(run, file, here)))
      found.changed.add(file);
  }
  found.added.push(...found.changed);
  await putBack(run, gone, found, here);
  return found;
}

async function isChanged({ repo, root }: Sync, file: string, here: string | undefined): Promise<boolean> {
  const before = (await tryGitLine(repo, ["rev-parse", "-q", "--verify", `${here}:${file}`])) ?? "";
  return (await blobId(path.join(root, file), before)) !== before;
}

/** A `_meta.json` with which nobody could do anything, as a conflict leaves it: the one that was sent before stands. */
function isSpoilt({ root, unsent }: Sync, file: string): boolean {
  if (placeOf(root, file)?.kind !== "meta") return false;
  const damage = damageOf(readIfPossible(path.join(root, file)));
  if (damage !== undefined) unsent.set(file, damage);
  return damage !== undefined;
}

/** Whether a file here is one to be sent; what looks like one and is not is noted. */
function isToSend({ root, unsent }: Sync, file: string): boolean {
  const place = placeOf(root, file);
  if (place === undefined) {
    if (file.endsWith("/")) unsent.set(file, "is a git repository of its own");
    else if (!/\/(\.|_seq\.lock)/.test(file)) unsent.set(file, "has a name that not every machine can have");
    return false;
  }
  const stat = fs.lstatSync(path.join(root, file), { throwIfNoEntry: false });
  if (stat === undefined) return false;
  const reason = badFile(root, place, stat);
  if (reason !== undefined) unsent.set(file, reason);
  return reason === undefined;
}

function badFile(root: string, place: Place, stat: fs.Stats): string | undefined {
  if (!stat.isFile()) return "is no regular file";
  if (stat.size > mostOf(place)) return `has more than ${count(mostOf(place))} bytes`;
  if (place.kind !== "message") return undefined;
  const finding = inspect(channelIn(root, place.channel), toEntry(place.name));
  return "reason" in finding ? finding.reason : undefined;
}

const mostOf = ({ kind }: Place): number => (kind === "message" ? MESSAGE_MAX : FILE_MAX);

/** Messages, and all of a channel that is gone; what else is gone here is taken off there. */
async function putBack(run: Sync, gone: readonly string[], found: News, here: string | undefined): Promise<void> {
  const { root, repo } = run;
  const kindOf = (file: string): Place["kind"] | undefined => placeOf(root, file)?.kind;
  const channels = new Set(gone.flatMap((file) => (kindOf(file) === "meta" ? [file.split("/")[0]] : [])));
  const isMissed = (file: string): boolean => kindOf(file) === "message" || channels.has(file.split("/")[0]);
  if (gone.length === 0) return;
  const names = new Set(gone); // which may be too many for a command line
  const all = splitRows(await git(repo, ["ls-tree", "-r", "-z", here!]))
    .map(treeRow)
    .filter(({ name }) => names.has(name));
  const oids = all.map(({ oid }) => oid);
  const contents = await blobs(run, oids);
  const wasHere = ({ mode, oid, name: file }: (typeof all)[number]): boolean =>
    reasonOf(mode) === false && badContent(run, placeOf(root, file)!, contents.get(oid)) === undefined;
  const rows = all.filter(wasHere); // what was left out is not gone, though the index has forgotten that it was
  found.removed.push(...rows.filter(({ name }) => !isMissed(name)).map(({ name }) => name));
  const missed = rows.filter(({ name }) => isMissed(name));
  const folders = [...new Set(missed.map(({ name }) => name.split("/")[0]!))].map((name) => channelIn(root, name));
  const there = folders
    .filter(({ path: folder }) => isFolder(folder))
    .flatMap((channel) => messagesOf(channel, listMessages(channel).entries));
  const moved = new Set(there.map((message) => `${message.channel} ${identityOf(message)}`));
  for (const { oid, name: file } of missed) {
    const [bytes, { channel, name, kind }] = [contents.get(oid), placeOf(root, file)!];
    const id = kind === "message" ? identityIn(channelIn(root, channel), name, bytes) : file;
    if (id !== undefined && moved.has(`${channel} ${id}`)) found.removed.push(file);
    else if (id !== undefined && bytes !== undefined) await putBackOne(run, channelIn(root, channel), file, bytes);
  }
}

/** A message that was committed here, not pushed, and is gone: no side has it any more once the branch is theirs. */
async function putBackOwn(run: Sync, base: string | undefined, here: string): Promise<void> {
  const rows = await rowsOf(run.repo, base, here);
  const isGone = ({ path: file, after }: TreeRow): boolean =>
    after !== undefined && placeOf(run.root, file)?.kind === "message" && !fs.existsSync(path.join(run.root, file));
  const gone = rows.filter(isGone).map(({ path: file }) => file);
  await putBack(run, gone, { added: [], changed: new Set(), removed: [] }, here);
}

async function putBackOne(run: Sync, channel: Channel, file: string, bytes: Buffer): Promise<void> {
  const to = path.join(run.root, file);
  makeFolder(path.dirname(to));
  await withNumbers(channel, run.how.signal, (draft) => void placeOnce(draft, bytes, to));
  run.notes.add(`${file} had been deleted here: it was put back`);
}

/** `review: #12 #13 from alice; task-7 claimed` */
function subjectOf({ root }: Sync, { added, changed, removed }: News): string {
  const said = new Map<string, { readonly by: Map<string, string[]>; readonly more: string[] }>(); // by channel
  for (const file of added) {
    const { channel, name, kind } = placeOf(root, file)!;
    const { by, more } = said.get(channel) ?? { by: new Map<string, string[]>(), more: [] };
    const [, id, mark] = TASK.exec(name) ?? [];
    const from = kind === "message" ? senderOf(path.join(root, file)) : "";
    if (kind === "message") by.set(from, [...(by.get(from) ?? []), `#${toEntry(name).seq}`]);
    else if (id !== undefined) more.push(`task-${id} ${mark?.toLowerCase() ?? "open"}`);
    else if (kind === "meta") more.push(changed.has(file) ? "members" : "a new channel");
    if (by.size + more.length > 0) said.set(channel, { by, more });
  }
  const parts = [...said].map(([channel, { by, more }]) => {
    const words = [...by].map(([from, numbers]) => `${abridged(numbers, " ")} from ${from}`);
    return `${channel}: ${listed([...words, abridged(more, "; ")], "; ")}`;
  });
  return parts.join(" | ") || plural(added.length + removed.length, "file");
}

const SUBJECT_WORDS = 12;

function abridged(words: readonly string[], between: string): string {
  const more = words.length - SUBJECT_WORDS;
  return words.slice(0, SUBJECT_WORDS).join(between) + (more > 0 ? ` and ${more} more` : "");
}

function senderOf(file: string): string {
  return bare(splitMessage(readIfPossible(file))?.fields.get("from") ?? "");
}

// ---- output --------------------------------------------------------------------------------------------------------

const BUDGET = 24_000; // bytes shown at a time: agents' shells cut output at about 30,000 characters

const talk =
  (json: boolean): Note =>
  (text) =>
    complain(json ? JSON.stringify({ note: text }) : `agent-chat: ${visible(text)}`);

function complain(line: string): void {
  try {
    const bytes = Buffer.from(`${line}\n`);
    for (let done = 0; done < bytes.length;) done += fs.writeSync(2, bytes, done);
  } catch {
    // nobody listens, and there is nowhere left to say so
  }
}

/** Writes all of a text to stdout; resolves once the system has taken it. Throws `closed`, `no_space` or `io`. */
async function print(text: string): Promise<void> {
  const bytes = Buffer.from(text);
  for (let done = 0; done < bytes.length;) {
    try {
      done += fs.writeSync(1, bytes, done);
    } catch (error) {
      if (isCode(error, "EAGAIN")) await sleep(5);
      else if (isCode(error, "EPIPE", "EOF")) throw new ChatError("closed", "the reader of the output has gone");
      else throw explained(error, "write to stdout");
    }
  }
}

/** What a command answers: the data as JSON, or the text. */
const answer = (json: boolean, data: object, text: string): string =>
  `${json ? JSON.stringify(data) : visible(text)}\n`;

/** Says what was done; where stdout fails, the error still says that it was done, so that nobody does it again. */
async function printDone(done: string, text: string | (() => string)): Promise<void> {
  try {
    await print(typeof text === "string" ? text : text());
  } catch (error) {
    if (!(error instanceof ChatError) || error.code === "closed") throw error;
    throw new ChatError(error.code, `${done}, but ${error.message}`); // and nothing to try: it is done
  }
}

const TOKEN_LIKE = "........"; // as long as one

/** One message between two marks with a token of this run, which no body can know: its border cannot be forged. */
function render(message: Message, token: string, body: string): string {
  const { seq, from, to, channel, file, ts, reply_to, status, title, priority = "normal", task } = message;
  const marks = [
    field(status) || "no status",
    priority === "normal" ? "" : priority,
    task === undefined ? "" : `task-${task}`,
    reply_to === null ? "" : `reply to #${reply_to}`,
  ];
  const who = `${field(from) || "(nobody)"} -> ${field(to.join(", ")) || "all"}`;
  const head = `[${token}] #${seq} ${who}  ${field(`${channel}/${file}  ${ts}`)}`;
  const about = `${field(title)}  (${listed(marks, ", ")})`;
  return `${head}\n${about}\n\n${visible(body)}${body.endsWith("\n") ? "" : "\n"}\n[${token}] end of #${seq}\n`;
}

/** A header's value on one line, and of a bearable length. */
function field(text: string): string {
  const line = visible(text).replace(/\n/g, " ");
  return line.length <= LINE_MAX ? line : `${shortLine(line)}...`;
}

const CUT_MIN = 200; // bytes of a body: it is marked, so some of it is to be seen

/** A message that is larger than the whole budget: its beginning, and where the rest is. */
function renderCut(message: Message, token: string, budget: number): string {
  const head = render(message, token, "");
  const whole = Buffer.from(visible(message.body));
  const room = Math.max(CUT_MIN, budget - Buffer.byteLength(head));
  if (whole.length <= room) return render(message, token, message.body);
  const part = whole
    .subarray(0, room)
    .toString()
    .replace(/\ufffd+$/, "");
  const where = `[${token}] cut: ${count(Buffer.byteLength(part))} of ${count(whole.length)} bytes shown; all of it: ${visible(message.path)}`;
  return `${head.slice(0, head.indexOf("\n\n") + 2)}${part}\n${where}\n[${token}] end of #${message.seq}\n`;
}

function textOf(message: Message, json: boolean, token: string): string {
  return json ? `${JSON.stringify(message)}\n` : render(message, token, message.body);
}

/** The newest messages that fit into a budget of bytes, at least one. */
function newestWithin(messages: readonly Message[], json: boolean, budget: number): readonly Message[] {
  let [first, left] = [messages.length, budget];
  while (first > 0 && (left -= Buffer.byteLength(textOf(messages[first - 1]!, json, TOKEN_LIKE))) >= 0) first--;
  return messages.slice(Math.min(first, messages.length - 1));
}

/** Shows whole messages up to a budget of bytes, at least one; returns those whose bytes the system has taken. */
async function show(messages: readonly Message[], json: boolean, budget: number): Promise<Message[]> {
  const token = nonce().slice(0, TOKEN_LIKE.length);
  const shown: Message[] = [];
  let left = budget;
  for (const message of messages) {
    let text = textOf(message, json, token);
    if (Buffer.byteLength(text) > left && shown.length > 0) break;
    if (Buffer.byteLength(text) > left && !json) text = renderCut(message, token, budget);
    await print(text);
    left -= Buffer.byteLength(text);
    shown.push(message);
  }
  return shown;
}

// ---- the process around us -----------------------------------------------------------------------------------------

const SIGNALS = { SIGHUP: "sighup", SIGINT: "sigint", SIGTERM: "sigterm" } as const;

/**
 * Runs `body` with a signal that SIGHUP, SIGINT and SIGTERM abort, so that it can let go of what it holds. `detached`
 * goes on after a SIGHUP: Node undoes what nohup did.
 */
async function interruptible<T>(
  body: (signal: AbortSignal, stop: AbortController) => Promise<T>,
  detached = false,
): Promise<T> {
  const stop = new AbortController();
  const onSignal = (name: keyof typeof SIGNALS): void => {
    if (!detached || name !== "SIGHUP") stop.abort(new ChatError(SIGNALS[name], `stopped by ${name}`));
  };
  const names = Object.keys(SIGNALS) as (keyof typeof SIGNALS)[];
  for (const name of names) process.on(name, onSignal);
  try {
    return await body(stop.signal, stop);
  } finally {
    for (const name of names) process.off(name, onSignal);
  }
}

function isNullDevice(fd: number): boolean {
  try {
    return process.platform !== "win32" && fs.fstatSync(fd).rdev === fs.statSync("/dev/null").rdev;
  } catch {
    return false; // no such device here
  }
}

/** Node puts a /dev/null it can read in the place of a closed stdout; `> /dev/null` can only be written. */
function assertOutput(): void {
  if (!isNullDevice(1)) return;
  try {
    fs.readSync(1, Buffer.alloc(1));
  } catch {
    return;
  }
  const message = "stdout is closed or ignored: nothing was shown, nothing was marked";
  throw new ChatError("closed", message, "read it where the output goes somewhere");
}

/** Whether the reader of a socket on stdout has gone; of a pipe, the system tells only when something is written. */
function isOutputClosed(): boolean {
  try {
    if (fs.fstatSync(1).isSocket()) fs.writeSync(1, Buffer.alloc(0));
    return false;
  } catch (error) {
    return isCode(error, "EPIPE");
  }
}

interface Process {
  readonly pid: number;
  readonly name: string;
  readonly parent: number;
  readonly group: number;
  readonly session: number;
}

/** The first bytes of a file that does not tell its size; Node's own readers would set 64 KB aside for it. */
function readStart(file: string): string {
  const fd = fs.openSync(file, "r");
  try {
    const bytes = Buffer.alloc(1024);
    return bytes.toString("latin1", 0, fs.readSync(fd, bytes, 0, bytes.length, 0));
  } finally {
    fs.closeSync(fd);
  }
}

/** What Linux says of a process; undefined elsewhere, and when it has ended. */
function inspectProcess(pid: number): Process | undefined {
  try {
    const stat = readStart(`/proc/${pid}/stat`);
    const [, parent, group, session] = stat
      .slice(stat.lastIndexOf(")") + 2)
      .split(" ")
      .map(Number);
    const name = stat.slice(stat.indexOf("(") + 1, stat.lastIndexOf(")"));
    return { pid, name, parent: parent!, group: group!, session: session! };
  } catch {
    return undefined;
  }
}

/** This process and those above it in its session: if one of them loses its parent, nobody reads what we show. */
function ancestry(): Process[] {
  const chain: Process[] = [];
  if (!isProcOurs()) return chain;
  for (let at = inspectProcess(process.pid); at !== undefined && chain.length < 20; at = inspectProcess(at.parent)) {
    if (at.pid === 1 || at.session !== (chain[0]?.session ?? at.session)) break;
    chain.push(at);
  }
  return chain;
}

/** In a pid namespace of its own a process may see the /proc of another. */
function isProcOurs(): boolean {
  try {
    return fs.readlinkSync("/proc/self") === String(process.pid);
  } catch {
    return false;
  }
}

const WRAPPERS = /^(timeout|env|nice|stdbuf|xargs|npm.*)$/; // they read nothing of what we show

/** Whether the parent had gone before we could look: then another process took its place. */
function wasOrphaned(chain: readonly Process[]): boolean {
  let i = 0;
  while (i + 1 < chain.length && isWrapped(chain, i)) i++;
  const outer = chain[i];
  if (outer === undefined) return !isThere("/proc/self") && process.ppid === 1 && isNullDevice(0);
  if (outer.pid === outer.session) return false; // it left its parent's session by itself
  const parent = inspectProcess(outer.parent);
  if (parent === undefined) return false;
  if (parent.session !== outer.session) return true; // a child is born into its parent's session
  const isLeft = outer.group > 0 && inspectProcess(outer.group) === undefined; // 0: led from outside a pid namespace
  return parent.pid === 1 && isNullDevice(0) && isLeft;
}

function isWrapped(chain: readonly Process[], i: number): boolean {
  const [parent, above] = [chain[i + 1]!, chain[i + 2]];
  return WRAPPERS.test(parent.name) || (parent.name === "sh" && above !== undefined && above.name.startsWith("npm"));
}

/** Only what says so is taken for it: where the number of open files is at its limit, nothing has been learned. */
function hasLeft(pid: number, parent: number): boolean {
  const now = inspectProcess(pid);
  return now === undefined ? !isThere(`/proc/${pid}`) : now.parent !== parent;
}

/** Returns a check that throws once nobody can be reading what a wait would show: then it must not be marked. */
function watchOwner(): () => void {
  const chain = ancestry();
  const parent = process.ppid;
  const orphan = wasOrphaned(chain);
  return () => {
    const moved = chain.some(({ pid, parent }) => hasLeft(pid, parent));
    if (orphan || moved || process.ppid !== parent) {
      const message = "the process that started this wait has gone: nothing was marked";
      throw new ChatError("orphaned", message, "start it again; wait and ask can be --detached");
    }
    if (isOutputClosed()) throw new ChatError("closed", "the reader of the output has gone");
  };
}

const HINT_MS = 2_000;
const SILENCE_MS = 10_000;

/** The bytes of stdin. Not asked for by name, it may be an open pipe that never says anything: that gets 10 s. */
function readStdin(asked: boolean, note: Note): Promise<Buffer> {
  const { stdin } = process;
  const timers: NodeJS.Timeout[] = [];
  const chunks: Buffer[] = [];
  const reading = new Promise<Buffer>((resolve, reject) => {
    let size = 0;
    const silence = new ChatError(
      "no_body",
      "no body: nothing came on stdin for 10 s, nothing was posted",
      "use --body TEXT, --body-file FILE, or --body - to wait for stdin",
    );
    if (stdin.isTTY) note("type the body, then Ctrl-D on a line of its own");
    else if (!asked)
      timers.push(
        setTimeout(() => note("waiting for the body on stdin (or use --body, --body-file)"), HINT_MS),
        setTimeout(() => reject(silence), SILENCE_MS),
      );
    stdin.on("data", (chunk: Buffer) => {
      timers.forEach(clearTimeout);
      chunks.push(chunk);
      if ((size += chunk.length) > 2 * BODY_MAX + 2)
        reject(new ChatError("too_big", `the body on stdin has more than ${BODY_MAX} bytes: nothing was posted`));
    });
    stdin.once("end", () => resolve(Buffer.concat(chunks)));
    stdin.once("error", (error) => reject(explained(error, "read stdin")));
  });
  return reading.finally(() => {
    timers.forEach(clearTimeout);
    stdin.destroy();
  });
}

/** A value, and where it came from. */
interface Found<T> {
  readonly value: T;
  readonly from: string;
}

/** Where the root is: --root, else $AGENT_CHAT_ROOT, else the nearest .agent-chat here or above, else ~/agent-chat. */
function findRoot(option: string | undefined, note: Note): Found<string> {
  if (option !== undefined) return { value: nameable(absolute(option)), from: "--root" };
  const given = process.env["AGENT_CHAT_ROOT"];
  if (!given?.trim()) return nearestRoot();
  if (!path.isAbsolute(expanded(given))) {
    note(`AGENT_CHAT_ROOT is relative, so it depends on the folder you are in: now ${absolute(given)}`);
  }
  return { value: nameable(absolute(given)), from: "AGENT_CHAT_ROOT" };
}

/** What is not UTF-8 in a path reaches us changed: it would be another folder. */
function nameable(folder: string): string {
  if (!folder.includes("\ufffd")) return folder;
  const message = `${quoted(folder)} is not valid UTF-8: no root can be there, or be looked for from there`;
  throw new ChatError("bad_value", message, "give --root DIR, absolute and in UTF-8");
}

function nearestRoot(): Found<string> {
  for (let folder = nameable(process.cwd()); ; folder = path.dirname(folder)) {
    const near = path.join(folder, ".agent-chat");
    if (isFolder(near)) return { value: near, from: "the nearest .agent-chat" };
    if (folder === path.dirname(folder)) return { value: nameable(absolute("~/agent-chat")), from: "the default" };
  }
}

// ---- commands ------------------------------------------------------------------------------------------------------

/** An option of a command, as the table declares it. */
interface Option {
  readonly value?: string; // the placeholder of its value; none: a switch
  readonly short?: string;
  readonly caller?: true; // its value says who is calling
  readonly help: string;
}

type Options = Readonly<Record<string, Option>>;
type Given<O extends Options> = { readonly [K in keyof O]?: O[K] extends { value: string } ? string : true };

/** What every command gets: where, who, and how to talk. */
interface Call {
  readonly root: string;
  readonly rootFrom: string; // who said so
  readonly operands: readonly string[];
  readonly json: boolean;
  readonly again: string; // the command line to type for the same once more
  readonly rest: string; // and for what the budget left over
  readonly instead: (words: readonly string[]) => string; // another one, in the same root and under the same name
  readonly note: Note;
  readonly agent: () => Name; // throws no_name
  readonly name: Name | undefined; // whoever it is, if said
  readonly nameFrom: string; // who said so
}

interface Command<O extends Options = Options> {
  readonly summary: string;
  readonly operands: string; // <required> [optional] [repeated...]
  readonly options: O;
  readonly examples: readonly string[];
  run(call: Call, given: Given<O>): Promise<void>;
}

const command = <const O extends Options>(entry: Command<O>): Command<O> => entry;

const AS = { value: "NAME", caller: true, help: "who you are (else $AGENT_CHAT_NAME)" } as const;
const MAX_BYTES = { value: "N", help: `show whole messages up to N bytes (${BUDGET}; with --json no limit)` } as const;

const POSTING = {
  from: { value: "NAME", caller: true, help: "who you are, like --as" },
  to: { value: "A,B|all", help: "for whom (the author of --reply N, else all)" },
  title: { value: "TEXT", help: "one line (else the first line of the body)" },
  reply: { value: "N", help: "the number of the message this answers" },
  priority: { value: "P", help: "low, normal or high (normal)" },
  key: { value: "K", help: "safe to try again: one message for each key of yours, whatever became of the first try" },
  "body-file": { value: "FILE", help: "the body from a file; - is stdin" },
  body: { value: "TEXT", help: "the body; - is stdin" },
  force: { help: "send to a name that is not known here" },
} as const satisfies Options;

const SYNC = { help: "not done until it is pushed; else it is kept here, and the exit code is 1" } as const;
const SYNC_EVERY_S = 15;

const WAITING = {
  timeout: {
    value: "S",
    help: `seconds until exit 2 (${TIMEOUT_S}, or $AGENT_CHAT_TIMEOUT; 0 looks once); agents' shells end a command at 120 s unless told otherwise`,
  },
  interval: { value: "S", help: `seconds between looks (${INTERVAL_S})` },
  detached: { help: "go on when the process that started it has gone" },
  "max-bytes": MAX_BYTES,
} as const satisfies Options;

const FILTERS = {
  from: { value: "A,B", help: "only what these wrote" },
  "reply-to": { value: "N", help: "only answers to message N" },
  status: { value: "S", help: "only messages with this label" },
  priority: { value: "P", help: "only messages of this priority: low, normal or high" },
  any: { help: "once such a message is there, show everything unread" },
  each: { help: "until each of --from, or everybody whom message N asked, has written" },
  task: { value: "ID", help: "not for messages: until this task has another state, or is done" },
  tasks: { help: "not for messages: until there is a task that you could claim" },
} as const satisfies Options;

const ENDING = {
  "body-file": { value: "FILE", help: "what there is to say, from a file; - is stdin" },
  body: { value: "TEXT", help: "what there is to say; - is stdin" },
  force: { help: "though another has it: the owner is told" },
} as const satisfies Options;

const EVERYWHERE = {
  root: { value: "DIR", help: "the folder of channels (else $AGENT_CHAT_ROOT, the nearest .agent-chat, ~/agent-chat)" },
  as: AS,
  json: { help: "one JSON object per line" },
  help: { short: "h", help: "show this" },
  version: { help: "show the version" },
} as const satisfies Options;

/** The one table: parsing, dispatch, help and usage errors all come from it. */
export const COMMANDS = {
  init: command({
    summary: "make a channel",
    operands: "<channel>",
    options: {
      members: { value: "A,B", help: "who belongs to it, beside --as; none: open to all" },
      topic: { value: "TEXT", help: "what it is about" },
      "shared-cursors": { help: "let git carry who has been shown what too (a new root's .gitignore leaves it out)" },
    },
    examples: ["agent-chat init review --members alice,bob --topic 'schema v2'"],
    async run({ root, operands, json, name, nameFrom, note }, { members, topic = "", "shared-cursors": shared }) {
      const named = members === undefined || members.trim() === "" ? [] : words(members);
      const given = named.length > 0 && name !== undefined && nameFrom === "--as" ? [...named, name] : named;
      const channel = await interruptible((signal) =>
        createChannel(root, operands[0]!, { members: given, topic, sharedCursors: shared, signal }),
      );
      gitNotes(root, shared === true).forEach(note);
      await printDone(`created ${channel.path}`, () => {
        const { members: names, topic: about, created } = readMeta(channel);
        const line = `created channel '${channel.name}' at ${channel.path}  members=${names.join(", ") || "(open)"}`;
        const data = { channel: channel.name, path: channel.path, members: names, topic: about, created };
        return answer(json, data, line);
      });
    },
  }),
  channels: command({
    summary: "list the channels, what is newest, what is unread",
    operands: "",
    options: {},
    examples: ["agent-chat channels", "agent-chat channels --as bob --json"],
    async run({ root, json, note, name }) {
      let hidden = 0;
      const channels = listChannels(root, (text) => (hidden++, note(text)));
      if (channels.length + hidden === 0)
        note(`no channels in ${root}; make one: agent-chat init NAME --root ${shellWord(root)}`);
      for (const row of channels.flatMap((channel) => orNote(note, () => describe(channel, name, note)))) {
        await print(answer(json, row, channelLines(row)));
      }
    },
  }),
  roster: command({
    summary: "show who is in a channel, who waits for what, and what is unread",
    operands: "[channel...]",
    options: {},
    examples: ["agent-chat roster review", "agent-chat roster --json"],
    async run(call) {
      for (const [channel, { newest, ...row }] of ofEach(
        call,
        chosen(call),
        (one) => [one, describe(one, undefined, call.note)] as const,
      )) {
        const agents = presence(channel, agentsOf(channel), undefined, call.note).map((one) => ({
          ...one,
          tasks: tasksOf(channel, one.agent),
        }));
        const lines = [
          `channel : ${row.channel}`,
          `path    : ${row.path}`,
          `topic   : ${row.topic || "(none)"}`,
          `members : ${row.members.join(", ") || "(open)"}`,
          `messages: ${row.messages}${newest === null ? "" : `, newest #${newest.seq}`}`,
          ...agents.map(rosterLine),
        ];
        await print(answer(call.json, { ...row, newest, agents }, lines.join("\n")));
      }
    },
  }),
  join: command({
    summary: "become a member of a channel",
    operands: "<channel>",
    options: {},
    examples: ["agent-chat join review --as carol"],
    run: (call) => changeMembership(call, join),
  }),
  leave: command({
    summary: "be no member of a channel any more",
    operands: "<channel>",
    options: {},
    examples: ["agent-chat leave review --as bob"],
    run: (call) => changeMembership(call, leave),
  }),
  post: command({
    summary: "number and publish a message; the body comes from a file, stdin or --body",
    operands: "<channel>",
    options: {
      ...POSTING,
      status: { value: "S", help: "a free label: question, done, ack ... (discussion)" },
      sync: SYNC,
    },
    examples: [
      "agent-chat post review --as alice --to bob --title 'schema v2' <<'END'\nDoes `id` stay a string? $HOME is not expanded here.\nEND",
      "agent-chat post review --as alice --body-file notes.md",
      "agent-chat post review --as bob --reply 1 --status done --body 'yes'",
    ],
    async run(call, given) {
      const { channel, outgoing } = await composed(call, given);
      const posting = (signal: AbortSignal): Promise<Posted> => post(channel, outgoing, { signal });
      if (given.sync) return postAndSync(call, channel, posting);
      await printPosted(call, channel, await interruptible(posting));
    },
  }),
  read: command({
    summary: "show what is new for you, and mark it as shown",
    operands: "[channel...]",
    options: {
      all: { help: "show the whole thread; mark nothing" },
      peek: { help: "show what is new; mark nothing" },
      "max-bytes": MAX_BYTES,
      sync: { help: "fetch first" },
    },
    examples: ["agent-chat read review --as bob", "agent-chat read --as bob --peek --json"],
    async run(call, { all, peek, "max-bytes": bytes, sync: fetching }) {
      if (fetching) await pullOrNote(call);
      const channels = chosen(call);
      const budget = budgetOf(call, bytes);
      if (all) return showThreads(call, channels, budget);
      const agent = call.agent();
      if (!peek) assertOutput();
      const look = (channel: Channel): Batch => (noteStranger(call, channel, agent), read(channel, agent));
      const batches = ofEach(call, channels, look);
      new Set(batches.flatMap(({ notes }) => notes)).forEach(call.note);
      await deliver(call, batches, budget, peek === true);
      batches.forEach((batch) => suggestCursor(call, batch, budget));
      if (batches.every(({ messages }) => messages.length === 0)) call.note(nothingNew(call, agent, batches));
    },
  }),
  wait: command({
    summary: "block until something is new for you, then show it and mark it",
    operands: "[channel...]",
    options: { ...FILTERS, ...WAITING, sync: { value: "S", help: "fetch every S seconds while waiting" } },
    examples: [
      "agent-chat wait review --as bob",
      "agent-chat wait --as bob --timeout 540",
      "agent-chat wait review --as alice --reply-to 1 --each --timeout 540",
      "agent-chat wait review --as bob --from carol --priority high",
      "agent-chat wait --as bob --sync 15 --timeout 540",
    ],
    async run(call, given) {
      const agent = call.agent();
      const filter: Waiting = {
        from: given.from === undefined ? undefined : words(given.from),
        reply: given["reply-to"] === undefined ? undefined : parseNumber("--reply-to", given["reply-to"]),
        status: given.status,
        priority: given.priority === undefined ? undefined : parsePriority(given.priority),
        any: given.any,
        each: given.each,
      };
      const named = chosen(call);
      const channels = call.operands.length > 0 ? named : () => listChannels(call.root, once(call.note));
      const every = given.sync === undefined ? undefined : parseSeconds("--sync", given.sync);
      if (every !== undefined) await openRepo(call.root, {}); // what no waiting mends is said at once
      for (const channel of named) noteStranger(call, channel, agent);
      if (given.task !== undefined || given.tasks)
        return pulling(call, every, () => waitAndShowTasks(call, given, channels));
      for (const channel of named) noteUnknown(call, channel, filter.from ?? []);
      const narrow = isFiltered(filter) && !filter.any; // the rest of it would end such a wait at once
      const rest = narrow
        ? call.instead([
            "wait",
            ...call.operands,
            ...typed(given, "from", "reply-to", "status", "priority", "max-bytes"),
          ])
        : call.instead(["read", ...call.operands, ...typed(given, "max-bytes")]);
      const waiting = (how: Waiting): Promise<Batch[]> => wait(channels, agent, { ...filter, ...how });
      await pulling(call, every, () => waitAndShow(() => ({ ...call, rest }), given, waiting, given.from));
    },
  }),
  ask: command({
    summary: "post a question, and wait for the answers to it",
    operands: "<channel>",
    options: {
      ...POSTING,
      each: { help: "until everybody whom it asks has answered" },
      ...WAITING,
      sync: { help: `push the question, and fetch every ${SYNC_EVERY_S} s while waiting` },
    },
    examples: ["agent-chat ask review --as alice --to bob --body 'is it ready?' --timeout 540"],
    async run(call, given) {
      const { channel, outgoing } = await composed(call, given);
      let later = call;
      const before = numbering(channel);
      const onPosted = async (posted: Posted): Promise<void> => {
        const { message } = given.sync
          ? await syncAndPrint(call, channel, posted, before)
          : nowPosted(channel, posted, before);
        const words = ["wait", channel.name, "--reply-to", String(message.seq), ...typed(given, "max-bytes")];
        const sync = given.sync ? ["--sync", String(SYNC_EVERY_S)] : []; // or an answer from elsewhere would never come
        const more = [...typed(given, "each", "timeout", "interval", "detached"), ...sync];
        later = { ...call, again: call.instead([...words, ...more]), rest: call.instead(words) };
        if (!given.sync) await printPosted(call, channel, { ...posted, message });
      };
      const asking = (how: Waiting): Promise<Batch[]> => ask(channel, outgoing, { ...how, each: given.each, onPosted });
      const every = given.sync ? SYNC_EVERY_S : undefined;
      await pulling(call, every, () => waitAndShow(() => later, given, asking));
    },
  }),
  peek: command({
    summary: "show the last messages, whoever they are for; mark nothing",
    operands: "<channel>",
    options: { n: { short: "n", value: "N", help: "how many (3)" }, "max-bytes": MAX_BYTES },
    examples: ["agent-chat peek review -n 1"],
    async run(call, { n = "3", "max-bytes": bytes }) {
      const { root, operands, json, note } = call;
      const channel = openChannel(root, operands[0]!);
      const budget = budgetOf(call, bytes);
      const { messages, notes } = lastMessages(channel, parseCount("-n", n));
      notes.forEach(note);
      if (messages.length === 0) note(`no messages in ${channel.path}`);
      const newest = newestWithin(messages, json, budget);
      await show(newest, json, budget);
      if (newest.length < messages.length)
        note(`${messages.length - newest.length} older ones not shown: raise --max-bytes`);
    },
  }),
  task: command({
    summary: "make a task, open to be claimed",
    operands: "<channel> <title>",
    options: {
      id: { value: "ID", help: "its name (else the next number)" },
      for: { value: "A,B", help: "only these may take it" },
      after: { value: "ID,ID", help: "only once these are done" },
      priority: { value: "P", help: "low, normal or high (normal)" },
      slot: { help: "something to be held, not to be done: a port, the merge queue" },
      "body-file": { value: "FILE", help: "more text from a file; - is stdin" },
      body: { value: "TEXT", help: "more text; - is stdin" },
    },
    examples: [
      "agent-chat task review 'Fix the login' --as alice --for bob --priority high",
      "agent-chat task review 'The test database' --as alice --id test-db --slot",
    ],
    async run(call, given) {
      const channel = openChannel(call.root, call.operands[0]!);
      const from = call.agent();
      noteStranger(call, channel, from);
      const wish = {
        from,
        title: call.operands[1]!,
        body: await bodyIfAny(given, call.note),
        for: given.for === undefined ? undefined : words(given.for),
        after: given.after === undefined ? undefined : words(given.after),
        priority: given.priority === undefined ? undefined : parsePriority(given.priority),
        id: given.id,
        slot: given.slot,
      };
      const task = await interruptible((signal) => createTask(channel, wish, { signal }));
      const line = `created task-${task.task}`;
      await printDone(line, answer(call.json, task, `${line}\n  ${task.path}`));
    },
  }),
  tasks: command({
    summary: "list the tasks: open, blocked, claimed by whom and since when, done",
    operands: "[channel...]",
    options: {
      mine: { help: "those that are yours, and those that wait for you alone" },
      open: { help: "those that can be claimed" },
      stale: { value: "T", help: "those whose owners have not been heard of for so long: 90s, 20m, 2h, 1d" },
    },
    examples: [
      "agent-chat tasks",
      "agent-chat tasks review --mine --as bob",
      "agent-chat tasks review --stale 2h --json",
    ],
    async run(call, { mine, open, stale }) {
      const isWanted = taskFilter(mine === true ? call.agent() : undefined, open === true, stale);
      for (const [channel, all] of ofEach(call, chosen(call), (one) => [one, listTasks(one)] as const)) {
        const spare = sparesOf(all);
        const whole = all.filter((task) => !spare.includes(task));
        const tasks = whole.filter((task) => isWanted(channel, task));
        torn(channel, all).forEach(call.note);
        const pause = currentPause(channel);
        if (call.json && pause !== undefined) call.note(`${channel.name} is ${pauseWords(pause)}`);
        const text = call.json ? boardRows(channel, tasks) : `${visible(boardText(channel, whole, tasks))}\n`;
        if (text !== "") await print(text);
      }
    },
  }),
  claim: command({
    summary: "take a task before anybody else does",
    operands: "<channel> [task]",
    options: {
      next: { help: "the first that is open for you, by priority, then by number" },
      wait: { help: "until it is free, or until there is one" },
      steal: { help: "from an owner who has not been heard of for as long as --older-than says" },
      "older-than": { value: "T", help: "with --steal: 90s, 20m, 2h, 1d" },
      timeout: { value: "S", help: `with --wait: seconds until exit 2 (${TIMEOUT_S}, or $AGENT_CHAT_TIMEOUT)` },
      sync: { help: "fetch first; not yours until it is pushed: lost to somebody elsewhere it is exit 3" },
    },
    examples: [
      "agent-chat claim review 12 --as bob || echo 'somebody else has it'",
      "agent-chat claim review --next --wait --timeout 540 --as bob",
      "agent-chat claim review 12 --steal --older-than 2h --as bob",
    ],
    async run(call, given) {
      const channel = openChannel(call.root, call.operands[0]!);
      const [task, older] = [call.operands[1], olderThan(given)];
      const next = given.next === true || (given.steal === true && task === undefined);
      if ((task === undefined) !== next) {
        throw new ChatError("usage", task === undefined ? "claim needs <task>, or --next" : "give a task, or --next");
      }
      if (given.timeout !== undefined && !given.wait) throw new ChatError("usage", "--timeout needs --wait");
      const [name, timeout] = [call.agent(), waitingTime(given.timeout)];
      noteStranger(call, channel, name);
      const claiming = (signal: AbortSignal): Promise<Claim> =>
        task === undefined
          ? claimNext(channel, name, { older, signal })
          : claim(channel, name, task, { older, signal });
      const waiting = (signal: AbortSignal, onTry: () => void): Promise<Claim> =>
        claimLater(channel, name, task, { timeout, older, signal, onNote: call.note, onTry });
      if (given.sync) await pullOrNote(call);
      const claimed = await (given.wait ? owned(waiting) : interruptible(claiming));
      if (given.sync) await syncTask(call, channel, claimed.task, "claimed");
      await printClaim(call, channel, claimed);
    },
  }),
  done: command({
    summary: "say that your task is done, and tell who made it; a slot is free again",
    operands: "<channel> <task>",
    options: { ...ENDING, sync: SYNC },
    examples: ["agent-chat done review 12 --as bob --body 'merged' || echo 'it is not mine'"],
    run: (call, given) => endTask(call, given, finish),
  }),
  release: command({
    summary: "give your task back, and say so in the channel",
    operands: "<channel> <task>",
    options: ENDING,
    examples: ["agent-chat release review 12 --as bob --body 'no time' || echo 'it is not mine'"],
    run: (call, given) => endTask(call, given, release),
  }),
  pause: command({
    summary: "let nobody take the next task until resume",
    operands: "<channel>",
    options: { body: { value: "TEXT", help: "why; - is stdin" } },
    examples: ["agent-chat pause review --as alice --body 'the build is broken'"],
    async run(call, given) {
      const channel = openChannel(call.root, call.operands[0]!);
      const [name, why] = [call.agent(), (await bodyIfAny(given, call.note)) ?? ""];
      const pause = await interruptible((signal) => pauseTasks(channel, name, why, { signal }));
      if (pause.from !== name || pause.body.trim() !== why.trim())
        call.note(`what stands is who came first: ${channel.name} is ${pauseWords(pause)}`);
      const line = `paused '${channel.name}': no next task until ${call.instead(["resume", channel.name])}`;
      await printDone("paused", answer(call.json, { channel: channel.name, ...pause }, line));
    },
  }),
  resume: command({
    summary: "end a pause",
    operands: "<channel>",
    options: {},
    examples: ["agent-chat resume review"],
    async run({ root, operands, json }) {
      const channel = openChannel(root, operands[0]!);
      const pause = await interruptible((signal) => resumeTasks(channel, { signal }));
      const line = pause === undefined ? `'${channel.name}' was not paused` : `resumed '${channel.name}'`;
      await printDone(line, answer(json, { channel: channel.name, resumed: pause !== undefined }, line));
    },
  }),
  renumber: command({
    summary: "give each of two messages with one number its own; cursors and answers follow",
    operands: "<channel>",
    options: {},
    examples: ["agent-chat renumber review"],
    async run({ root, operands, json, note }) {
      const channel = openChannel(root, operands[0]!);
      const rows = await interruptible((signal) => renumber(channel, { signal, onNote: note }));
      if (rows.length === 0) return note(`each message of '${channel.name}' has a number of its own`);
      await printDone("renumbered", rows.map((row) => answer(json, row, renumberedLine(row))).join(""));
    },
  }),
  sync: command({
    summary: "take in what a git remote has, and push what is new here",
    operands: "",
    options: {
      remote: { value: "NAME", help: "which remote (the branch's, else origin)" },
      init: {
        value: "URL",
        help: "first make the root a repository with this remote; or, by the name of a remote of the repository around it, a work tree for a branch there",
      },
      branch: {
        value: "NAME",
        help: "with --init: which branch (the remote's own, else main; beside code: agent-chat)",
      },
      tries: { value: "N", help: `how often, while others push first (${SYNC_TRIES})` },
      timeout: { value: "S", help: `seconds until a remote that says nothing is given up (${SILENCE_S})` },
    },
    examples: ["agent-chat sync", "agent-chat sync --init chat.git --branch main"],
    async run({ root, json, note }, { remote, init, branch, tries, timeout }) {
      if (branch !== undefined && init === undefined) throw new ChatError("usage", "--branch needs --init");
      const how = {
        remote,
        init: init !== undefined && (/^\.\.?[/\\]/.test(init) || fs.existsSync(init)) ? path.resolve(init) : init,
        branch,
        tries: tries === undefined ? undefined : parseCount("--tries", tries),
        timeout: timeout === undefined ? undefined : parsePositive("--timeout", timeout),
      };
      const synced = await interruptible((signal) => sync(root, { ...how, signal }));
      syncNotes(synced).forEach(note);
      await printDone("synced", answer(json, synced, syncedLines(synced)));
    },
  }),
  receipts: command({
    summary: "show who has been shown a message, who has not, and who replied",
    operands: "<channel> <number>",
    options: {},
    examples: ["agent-chat receipts review 1"],
    async run({ root, operands, json, note }) {
      const channel = openChannel(root, operands[0]!);
      for (const receipt of receipts(channel, parseNumber("number", operands[1]!), once(note)))
        await print(answer(json, receipt, receiptLines(channel, receipt)));
    },
  }),
  cursor: command({
    summary: "show what you have been shown, or move your cursor by hand",
    operands: "<channel>",
    options: { set: { value: "SET", help: "what counts as shown: 1-12, 1-8,10-12, all or none" } },
    examples: ["agent-chat cursor review --as bob", "agent-chat cursor review --as bob --set all"],
    async run({ root, operands, json, agent, note }, { set }) {
      const [channel, name] = [openChannel(root, operands[0]!), agent()];
      if (set !== undefined) await interruptible((signal) => setCursor(channel, name, set.trim(), { signal }));
      const at = position(channel, name, note);
      const line = `${name} in ${channel.name}: shown ${at.shown}; newest #${at.newest}; ${count(at.unread)} unread; ${at.path}`;
      await printDone(set === undefined ? "the cursor stands" : "the cursor was moved", answer(json, at, line));
    },
  }),
  status: command({
    summary: "say what you are doing, without a message; others see it until it expires",
    operands: "[channel...]",
    options: {
      set: { value: "S", help: "busy, away ...; back takes it back" },
      until: { value: "T", help: "how long: 90s, 20m, 2h, 1d (1h)" },
      note: { value: "TEXT", help: "one line more" },
    },
    examples: [
      "agent-chat status --as bob --set busy --until 20m --note 'running tests'",
      "agent-chat status --as bob --set back",
      "agent-chat status --as bob",
    ],
    async run(call, given) {
      const name = call.agent();
      const said = parseStatus(given);
      for (const channel of chosen(call)) {
        noteStranger(call, channel, name);
        if (given.set !== undefined) await interruptible((signal) => setStatus(channel, name, said, { signal }));
        const status = currentStatus(channel, name);
        const line = `${name} in ${channel.name}: ${status === undefined ? "no status" : statusWords(status)}`;
        const data = { channel: channel.name, agent: name, status: status ?? null };
        await printDone(`the status ${given.set === undefined ? "stands" : "was set"}`, answer(call.json, data, line));
      }
    },
  }),
  whoami: command({
    summary: "show your name and your root, and where each comes from",
    operands: "",
    options: {},
    examples: ["agent-chat whoami"],
    async run({ root, rootFrom, name, nameFrom, json }) {
      const there = isFolder(root);
      const data = {
        name: name ?? null,
        name_from: name === undefined ? null : nameFrom,
        root,
        root_from: rootFrom,
        exists: there,
      };
      const lines = [
        `name: ${name === undefined ? "(none): add --as NAME, or set AGENT_CHAT_NAME" : `${name} (${nameFrom})`}`,
        `root: ${root} (${rootFrom})${there ? "" : isThere(root) ? ", which is no folder" : ", not there yet"}`,
      ];
      await print(answer(json, data, lines.join("\n")));
    },
  }),
} as const;

function plural(number: number, noun: string): string {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

function parseCount(what: string, text: string): number {
  if (/^\d{1,15}$/.test(text) && Number(text) > 0) return Number(text);
  throw new ChatError("bad_value", `${what} ${quoted(text)} is not a whole number from 1`);
}

function parseNumber(what: string, text: string): number {
  return parseCount(what, text.replace(/^#/, ""));
}

const UNITS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3600, d: 86_400 };

/** Seconds from 90s, 20m, 2h or 1d. */
function parseDuration(what: string, text: string): number {
  const [, number, unit] = /^(\d{1,6}(?:\.\d+)?)([smhd])$/.exec(text.trim()) ?? [];
  if (number !== undefined && Number(number) > 0) return Number(number) * UNITS[unit!]!;
  throw new ChatError("bad_value", `${what} ${quoted(text)} is no length of time: write 90s, 20m, 2h or 1d`);
}

/** The status that is to be set; undefined takes it back. */
function parseStatus(given: {
  set?: string;
  until?: string;
  note?: string;
}): { status: string; note: string; seconds: number } | undefined {
  const { set, until, note = "" } = given;
  const more = until !== undefined || given.note !== undefined;
  if (set === undefined && more) throw new ChatError("usage", "--until and --note need --set");
  if (set === undefined) return undefined;
  if (foldName(set) === "back" && !more) return undefined;
  if (foldName(set) === "back")
    throw new ChatError("usage", "back takes the status back: it has no --until and no --note");
  return { status: set.trim(), note: note.trim(), seconds: parseDuration("--until", until ?? "1h") };
}

function parseSeconds(what: string, text: string): number {
  const seconds = /^\d*\.?\d+(e[-+]?\d+)?$/i.test(text) ? Number(text) : NaN;
  assertSeconds(what, text, seconds);
  return seconds;
}

function waitingTime(option: string | undefined): number {
  const environment = process.env["AGENT_CHAT_TIMEOUT"];
  if (option !== undefined || !environment) return parseSeconds("--timeout", option ?? String(TIMEOUT_S));
  return parseSeconds("AGENT_CHAT_TIMEOUT", environment);
}

function waitingInterval(option: string | undefined): number {
  return Math.min(parseSeconds("--interval", option ?? String(INTERVAL_S)), INTERVAL_MAX_S);
}

function budgetOf({ json }: Call, bytes: string | undefined): number {
  return bytes === undefined ? (json ? Infinity : BUDGET) : parseCount("--max-bytes", bytes);
}

/** The words of a list with commas; of a blank one the blank, so that it is refused as a name. */
function words(list: string): string[] {
  const parts = list.split(",").filter((word) => word.trim() !== "");
  return parts.length > 0 ? parts : [list];
}

/** Options with their values as they were given, to be typed again. */
function typed(given: Readonly<Record<string, string | true | undefined>>, ...options: string[]): string[] {
  return options.flatMap((option) => {
    const value = given[option];
    return value === undefined ? [] : [`--${option}`, ...(value === true ? [] : [value])];
  });
}

/** What is to be posted, with its body. */
async function composed(
  call: Call,
  given: Given<typeof POSTING> & { readonly status?: string },
): Promise<{ channel: Channel; outgoing: Outgoing }> {
  const channel = openChannel(call.root, call.operands[0]!);
  const unwritten = {
    from: call.agent(),
    to: given.to === undefined ? undefined : words(given.to),
    title: given.title,
    reply: given.reply === undefined ? undefined : parseNumber("--reply", given.reply),
    status: given.status,
    priority: given.priority === undefined ? undefined : parsePriority(given.priority),
    key: given.key,
    force: given.force,
  };
  const body = await bodyFrom(given, call.note, () => checkAddress(channel, unwritten));
  return { channel, outgoing: { ...unwritten, body } };
}

/** Says what was posted, and of each whom it is for whether it will be seen soon. */
async function printPosted(
  call: Call,
  channel: Channel,
  { message, created, bytes, lines, notes }: Posted,
): Promise<void> {
  notes.forEach(call.note);
  const { body: _, ...head } = message;
  const others = orNote(call.note, () => whoWillSee(channel, message, created)).flat();
  const text = [
    `posted #${message.seq} -> ${channel.name}/${message.file}${created ? "" : "  before, under this key"}`,
    `  to ${message.to.join(", ") || "all"}; ${plural(bytes, "byte")}, ${plural(lines, "line")}; ${message.path}`,
    ...others.map(presenceLine),
  ];
  const data = { ...head, created, bytes, lines, addressees: others };
  await printDone(`posted #${message.seq}`, answer(call.json, data, text.join("\n")));
}

/** What is known of those whom a message is for; of a message to all in an open channel that is nobody in particular. */
function whoWillSee(channel: Channel, message: Message, created: boolean): Presence[] {
  if (message.to.length === 0 && readMeta(channel).members.length === 0) return [];
  const newest = created ? message.seq : listMessages(channel).entries.at(-1)?.seq; // others came since the first try
  return presence(channel, addressees(channel, message), newest);
}

/** Waits as it was told to, shows what came, and marks it; also what had come when a wait ends without the rest. */
async function waitAndShow(
  call: () => Call, // as it is by then
  given: Given<typeof WAITING>,
  waiting: (how: Waiting) => Promise<Batch[]>,
  names?: string, // of those whom it waits for, as they were given
): Promise<void> {
  const how = { timeout: waitingTime(given.timeout), interval: waitingInterval(given.interval), onNote: call().note };
  const budget = budgetOf(call(), given["max-bytes"]);
  try {
    const batches = await owned((signal) => waiting({ ...how, signal }), given.detached);
    await deliver(call(), batches, budget, false);
    if (batches.length === 0) call().note("all of them have written, and nothing of it is new for you");
  } catch (error) {
    if (!(error instanceof WaitEnded)) throw error;
    await deliver(call(), error.came, budget, false);
    const late = error.code === "timeout" && names !== undefined && error.missing.length > 0;
    const swap = late ? ([names, error.missing.join()] as const) : undefined;
    throw new ChatError(error.code, error.message, error.remedy ?? call().again, swap);
  }
}

/** Runs something that blocks, and looks after who is waiting for the output: now and then, and before it is shown. */
async function owned<T>(
  body: (signal: AbortSignal, assertOwned: () => void) => Promise<T>,
  detached = false,
): Promise<T> {
  assertOutput();
  const assertOwned = detached ? () => {} : watchOwner();
  const watched = async (signal: AbortSignal, stop: AbortController): Promise<T> => {
    assertOwned();
    const timer = setInterval(() => {
      try {
        assertOwned();
      } catch (error) {
        stop.abort(error);
      }
    }, OWNER_MS);
    try {
      const found = await body(signal, assertOwned);
      assertOwned();
      return found;
    } catch (error) {
      if (error instanceof WaitEnded) assertOwned(); // it may have something to show too
      throw error;
    } finally {
      clearInterval(timer);
    }
  };
  return interruptible(watched, detached);
}

async function waitAndShowTasks(
  call: Call,
  given: Given<typeof FILTERS & typeof WAITING> & { readonly sync?: string },
  channels: readonly Channel[] | (() => readonly Channel[]),
): Promise<void> {
  const { task, tasks, timeout: _, interval: __, sync: ___, detached, "max-bytes": bytes, ...others } = given;
  const mixed = [
    ...Object.keys(others),
    ...(bytes === undefined ? [] : ["max-bytes"]),
    ...(task && tasks ? ["tasks"] : []),
  ];
  const [other] = mixed.filter((name) => !(name in EVERYWHERE));
  if (other !== undefined) throw new ChatError("usage", `--${other} does not go with --${task ? "task" : "tasks"}`);
  if (task !== undefined && call.operands.length !== 1)
    throw new ChatError("usage", "--task needs the one channel that has it");
  const [timeout, interval] = [waitingTime(given.timeout), waitingInterval(given.interval)];
  const [name, onNote] = [call.agent(), call.note];
  const found = await owned(
    (signal) => waitForTasks(channels, name, task, { timeout, interval, signal, onNote }),
    detached,
  );
  if (found.length === 0) call.note(`task-${task} is gone`);
  for (const one of found) await print(answer(call.json, one, `${taskLine(one)}\n  ${one.path}`)); // in which channel
}

function parsePositive(what: string, text: string): number {
  const seconds = parseSeconds(what, text);
  if (seconds > 0) return seconds;
  throw new ChatError("bad_value", `${what} ${quoted(text)} is no time to wait for a remote`);
}

/** What a sync has to tell beside what it did. */
function syncNotes({ left_out, lost, notes }: Synced): string[] {
  const [left, more] = [left_out.slice(0, LEFT_OUT_MAX), left_out.length - LEFT_OUT_MAX];
  return [
    ...notes,
    ...lost.map(lostLine),
    ...left.map(({ path: file, reason }) => `left out: ${quoted(file)} ${reason}`),
    ...(more > 0 ? [`left out: ${plural(more, "file")} more`] : []),
  ];
}

function lostLine({ channel, task, agent, owner }: Lost): string {
  return `${channel}: task-${task} is ${owner || "nobody"}'s, not ${agent}'s: the remote had that first`;
}

const LEFT_OUT_MAX = 10; // files named in talk; --json has all

function syncedLines({ remote, root, sent, came, renumbered: moved }: Synced): string {
  const numbers = moved.length === 0 ? "" : `, ${count(moved.length)} renumbered`;
  const line = `synced ${root} with ${remote}: ${plural(sent.length, "message")} sent, ${count(came.length)} came${numbers}`;
  return [line, ...moved.map((row) => `  ${renumberedLine(row)}`)].join("\n");
}

async function postAndSync(
  call: Call,
  channel: Channel,
  posting: (signal: AbortSignal) => Promise<Posted>,
): Promise<void> {
  const before = numbering(channel);
  await syncAndPrint(call, channel, await interruptible(posting), before);
}

/** It is there, pushed or not, and is told under the number that it has by then. */
async function syncAndPrint(call: Call, channel: Channel, posted: Posted, before: Numbering): Promise<Posted> {
  try {
    await syncPosted(call, channel, posted);
  } finally {
    await printPosted(call, channel, nowPosted(channel, posted, before));
  }
  return nowPosted(channel, posted, before);
}

async function syncPosted(call: Call, channel: Channel, { message }: Posted): Promise<void> {
  try {
    syncNotes(await interruptible((signal) => sync(call.root, { signal }))).forEach(call.note);
  } catch (error) {
    throw keptHere(error, `the message of ${message.from} to ${channel.name} is posted here, and not pushed`);
  }
}

/** What could not be pushed is not undone: the next sync sends it. */
function keptHere(error: unknown, what: string): unknown {
  if (!(error instanceof ChatError) || EXIT[error.code] !== 1) return error;
  return new ChatError("unpushed", `${what}: ${error.message}`, error.remedy ?? "agent-chat sync");
}

/** Pushes what an agent did with a task. Throws `taken` where somebody elsewhere was first: then it was undone here. */
async function syncTask(call: Call, channel: Channel, task: string, state: string): Promise<void> {
  const agent = call.agent();
  const syncing = (signal: AbortSignal): Promise<Synced> => sync(call.root, { signal, untold: { task, agent } });
  try {
    syncNotes(await interruptible(syncing)).forEach(call.note);
  } catch (error) {
    throw keptHere(error, `task-${task} is ${state} here, and that is not pushed`);
  }
  const files = filesOf(channel, task);
  const others = files.filter(({ state: now, owner }) => now !== "open" && foldName(owner) !== agent);
  if (others.length > 0) throw refusal(channel, task, others, agent);
}

/** Fetches and takes in; without the remote, what is here has to do. */
async function pullOrNote({ root, note }: Call, signal?: AbortSignal): Promise<void> {
  try {
    const pull = (stop: AbortSignal): Promise<Synced> => sync(root, { pull: true, signal: stop });
    syncNotes(await (signal === undefined ? interruptible(pull) : pull(signal))).forEach(note);
  } catch (error) {
    if (!(error instanceof ChatError) || EXIT[error.code] !== 1) throw error;
    note(`not fetched: ${error.message}`);
  }
}

/** Runs `body`, and beside it fetches every so many seconds. */
async function pulling(call: Call, every: number | undefined, body: () => Promise<void>): Promise<void> {
  if (every === undefined) return body();
  const stop = new AbortController();
  const quiet = { ...call, note: once(call.note) };
  const pullAgain = async (): Promise<void> => {
    while (!stop.signal.aborted) {
      await pullOrNote(quiet, stop.signal);
      await sleep(Math.max(every, 1) * 1000, stop.signal);
    }
  };
  const fetching = pullAgain().catch((error: unknown) => {
    if (!stop.signal.aborted) quiet.note(error instanceof Error ? error.message : String(error));
  });
  try {
    await body();
  } finally {
    stop.abort(new ChatError("sigterm", "no longer needed"));
    await fetching;
  }
}

/** Of those whom a wait names, who has neither posted nor read, and may be mistyped. */
function noteUnknown(call: Call, channel: Channel, names: readonly string[]): void {
  const named = names.filter((name) => foldName(name) !== "" && !isEverybody(name)); // those are refused
  const strangers = (): Stranger[] => strangersAmong(channel, readMeta(channel), named, [call.agent()]);
  for (const { name, hint } of explaining(`look for ${named.join(", ")}`, strangers))
    call.note(`${quoted(name)} has never posted or read in "${channel.name}"${hint}`);
}

function olderThan(given: { steal?: true; "older-than"?: string }): number | undefined {
  const { steal, "older-than": text } = given;
  if (steal === undefined && text === undefined) return undefined;
  if (steal === undefined || text === undefined)
    throw new ChatError("usage", "--steal and --older-than go together: how long must its owner have been silent?");
  return parseDuration("--older-than", text);
}

async function printClaim(call: Call, channel: Channel, claimed: Claim): Promise<void> {
  const { task, from, file, path: full, already, stolen_from } = claimed;
  const line = already ? `already yours: ${file}` : `claimed ${from} -> ${file}`;
  const data = { channel: channel.name, task, file, path: full, owner: call.agent(), already };
  const more = { ...(!already && { from_file: from }), ...(stolen_from !== null && { stolen_from }) };
  const told = stolen_from === null ? "" : `\n  ${stolen_from} was told`;
  await printDone(line, answer(call.json, { ...data, ...more }, `${line}\n  ${full}${told}`));
}

async function endTask(call: Call, given: Given<typeof ENDING> & { sync?: true }, end: typeof finish): Promise<void> {
  const channel = openChannel(call.root, call.operands[0]!);
  const [name, body] = [call.agent(), await bodyIfAny(given, call.note)];
  noteStranger(call, channel, name);
  const ending = (signal: AbortSignal): Promise<Ended> =>
    end(channel, name, call.operands[1]!, { body, force: given.force, signal });
  const { task, from, already, message } = await interruptible(ending);
  if (given.sync) await syncTask(call, channel, task.task, task.state);
  const line = already ? `already so: ${task.file}` : `${end === finish ? "done" : "released"} ${from} -> ${task.file}`;
  const told = message === null ? "" : `\n  posted #${message.seq} to ${message.to.join(", ") || "all"}`;
  const more = already ? {} : { from_file: from };
  const data = { ...task, already, ...more, message: message === null ? null : { seq: message.seq, to: message.to } };
  await printDone(line, answer(call.json, data, `${line}\n  ${task.path}${told}`));
}

function renumberedLine({ from, file, seq, reply_to }: Renumbered): string {
  return from === file ? `${file} answers #${reply_to} now` : `renumbered ${from} -> ${file}  now #${seq}`;
}

/** Which tasks are to be listed; nothing said: all. */
function taskFilter(
  mine: Name | undefined,
  open: boolean,
  stale: string | undefined,
): (channel: Channel, task: Task) => boolean {
  const older = stale === undefined ? undefined : parseDuration("--stale", stale);
  return (channel, task) => {
    const yours = [task.owner ?? "", ...(task.state === "done" ? [] : task.for)].map(foldName);
    return (
      (mine === undefined || (yours.includes(mine) && task.state !== "done")) &&
      (!open || task.state === "open") &&
      (older === undefined || isLeft(channel, task, "" as Name, older))
    );
  };
}

async function changeMembership(call: Call, change: typeof join): Promise<void> {
  const channel = openChannel(call.root, call.operands[0]!);
  const [name, before] = [call.agent(), readMeta(channel)];
  const { members } = await interruptible((signal) => change(channel, name, { signal }));
  if (before.members.length === 0 && members.length > 0)
    call.note(`"${channel.name}" was open to all; from now on its members are ${members.join(", ")}`);
  const isIn = (list: readonly string[]): boolean => list.some((member) => foldName(member) === name);
  const changed = isIn(members) !== isIn(before.members);
  const is = isIn(members) ? "a member" : "no member";
  const line = `${name} is ${is} of '${channel.name}'${changed ? "" : " already"} at ${channel.path}  members=${members.join(", ") || "(open)"}`;
  const data = { channel: channel.name, path: channel.path, agent: name, members, changed };
  await printDone(line, answer(call.json, data, line));
}

/** The text of --body or --body-file; stdin is read only where one of them asks for it. */
async function bodyIfAny(given: { body?: string; "body-file"?: string }, note: Note): Promise<string | undefined> {
  const none = given.body === undefined && given["body-file"] === undefined;
  return none ? undefined : bodyFrom(given, note, () => {});
}

/** The body; what else is wrong with the message is said before anybody types or pipes one. */
async function bodyFrom(
  given: { body?: string; "body-file"?: string },
  note: Note,
  check: () => void,
): Promise<string> {
  const { body, "body-file": file } = given;
  if (body !== undefined && file !== undefined)
    throw new ChatError("usage", "--body and --body-file both give the body");
  if (body !== undefined && body !== "-") return body;
  if (file !== undefined && file !== "-")
    return explaining(`read the body from ${quoted(file)}`, () => decodeBody(readSome(file)));
  check();
  return decodeBody(await readStdin(body === "-" || file === "-", note));
}

/** A file, or a pipe with a name, as far as a body may reach and one byte more. */
function readSome(file: string): Buffer {
  const fd = fs.openSync(file, "r");
  try {
    return readAll(fd, 2 * BODY_MAX + 4); // UTF-16 has two bytes for each that is posted
  } finally {
    fs.closeSync(fd);
  }
}

/** The channels named, each once, or all of the root. */
function chosen({ root, operands, note }: Call): Channel[] {
  const named = operands.map((name) => openChannel(root, name));
  if (named.length > 0) return named.filter((one, i) => named.findIndex((other) => other.path === one.path) === i);
  let hidden = 0;
  const all = listChannels(root, (text) => (hidden++, note(text)));
  if (all.length > 0) return all;
  if (hidden > 0) throw new ChatError("no_access", `no channel in ${root} can be looked into`, NO_ACCESS);
  throw new ChatError("no_channel", `no channels in ${root}`, `agent-chat init NAME --root ${shellWord(root)}`);
}

/** What could be had; what could not is noted, so that one channel does not hide the others. */
function orNote<T>(note: Note, get: () => T): T[] {
  try {
    return [get()];
  } catch (error) {
    if (!(error instanceof ChatError)) throw error;
    note(error.message);
    return [];
  }
}

/** The same of each channel. One that was named must be there; of others one that can be had is enough. */
function ofEach<T>({ operands, note }: Call, channels: readonly Channel[], get: (channel: Channel) => T): T[] {
  const found = operands.length > 0 ? [] : channels.slice(0, -1).flatMap((one) => orNote(note, () => get(one)));
  const rest = operands.length > 0 ? channels : channels.slice(-1);
  return [...found, ...(found.length > 0 ? rest.flatMap((one) => orNote(note, () => get(one))) : rest.map(get))];
}

/** Passes each text on once. */
function once(note: Note): Note {
  const told = new Set<string>();
  return (text) => {
    if (!told.has(text)) note(text);
    told.add(text);
  };
}

/** Somebody who never read here, and is no member, may have mistyped their own name. */
function noteStranger({ note }: Call, channel: Channel, agent: Name): void {
  if (fs.existsSync(cursorPath(channel, agent))) return;
  const meta = readMeta(channel);
  const near = isStranger(meta, agent) ? nearest(agent, meta.members) : undefined;
  if (near !== undefined) note(`"${agent}" is not a member of "${channel.name}"; did you mean "${visible(near)}"?`);
}

/** Shows, then marks; what cannot be marked is said, and will be shown again. */
async function deliver(call: Call, batches: readonly Batch[], budget: number, peek: boolean): Promise<void> {
  const messages = batches.flatMap((batch) => batch.messages);
  const shown = new Set(await show(messages, call.json, budget));
  const marked = peek ? false : await markAll(call, batches, shown);
  const rest = messages.length - shown.size;
  const more = `${rest} more unread: ${marked ? `run it again: ${call.rest}` : "raise --max-bytes to see them"}`;
  if (rest > 0) await (call.json ? call.note(more) : print(`${more}\n`));
}

/** Somebody who is new in a long channel need not read all that came before. */
function suggestCursor({ json, note, instead }: Call, { channel, cursor, messages }: Batch, budget: number): void {
  const bytes = messages.reduce((sum, { body }) => sum + Buffer.byteLength(body), 0);
  if (json || messages.length === 1 || cursor.text !== undefined || bytes <= 2 * budget) return;
  const skip = instead(["cursor", channel.name, "--set", "all"]);
  note(
    `${plural(messages.length, "message")} of ${count(bytes)} bytes came before you; to count them as shown: ${skip}`,
  );
}

/** Marks what was shown; whether all of it could be marked. */
async function markAll(call: Call, batches: readonly Batch[], shown: ReadonlySet<Message>): Promise<boolean> {
  let marked = true;
  for (const batch of batches) {
    const entries = batch.messages.filter((message) => shown.has(message));
    try {
      await interruptible((signal) => mark(batch, entries, { signal }));
    } catch (error) {
      if (!(error instanceof ChatError) || EXIT[error.code] > 128) throw error;
      call.note(`${error.message}; you will be shown these again${error.remedy ? `\n  try: ${error.remedy}` : ""}`);
      marked = false;
    }
  }
  return marked;
}

async function showThreads(call: Call, channels: readonly Channel[], budget: number): Promise<void> {
  const threads = ofEach(call, channels, (channel) => lastMessages(channel, Infinity));
  threads.flatMap(({ notes }) => notes).forEach(call.note);
  const messages = threads.flatMap((thread) => thread.messages);
  const shown = await show(messages, call.json, budget);
  if (shown.length < messages.length) call.note(`${messages.length - shown.length} more not shown: raise --max-bytes`);
  if (messages.length === 0) call.note(`no messages in ${channels.map((channel) => channel.path).join(", ")}`);
}

function nothingNew({ root, instead }: Call, agent: Name, batches: readonly Batch[]): string {
  const where = batches.map(({ channel, cursor, newest }) => {
    const shown = `shown ${visible(cursor.text ?? "").trim()} by ${timestamp(cursor.moved)}`;
    return [channel, `newest #${newest}, ${cursor.moved === undefined ? "nothing shown yet" : shown}`] as const;
  });
  const first = batches.find(({ cursor }) => cursor.moved !== undefined);
  const again = first === undefined ? "" : `; seen ones: ${instead(["peek", first.channel.name])}`;
  return `nothing new for ${agent} in ${placesText(where) || root}${again}`;
}

/** One row of `channels`, as `--json` prints it. */
interface Row {
  readonly channel: string;
  readonly path: string;
  readonly messages: number;
  readonly unread?: number;
  readonly members: readonly string[];
  readonly topic: string;
  readonly created: string;
  readonly newest: { seq: number; from: string; title: string; ts: string } | null;
  readonly paused?: Pause;
}

function describe(channel: Channel, name: Name | undefined, say: Note): Row {
  const [meta, note] = [readMeta(channel), once(say)];
  metaNotes(channel, meta).forEach(note);
  const listing = listMessages(channel);
  twiceNotes(channel, listing.entries).forEach(note);
  const { messages: lasting, notes: odd } = lastOf(channel, listing, 1);
  odd.forEach(note); // what cannot be read must not look like no message
  const [last] = lasting;
  const count = listing.entries.filter(({ seq }) => seq <= (last?.seq ?? 0)).length;
  const newest = last === undefined ? null : { seq: last.seq, from: last.from, title: last.title, ts: last.ts };
  const { members, topic, created } = meta;
  const paused = currentPause(channel);
  const row = {
    channel: channel.name,
    path: channel.path,
    messages: count,
    members,
    topic,
    created,
    newest,
    ...(paused && { paused }),
  };
  if (name === undefined) return row;
  const { messages, notes } = read(channel, name);
  notes.forEach(note);
  return { ...row, unread: messages.length };
}

const DONE_SHOWN = 5; // finished tasks on one screen
const SHOWN = 10; // others, of each state

/** What is known of those who have one of these tasks now. */
function ownersOf(channel: Channel, tasks: readonly Task[]): Map<string, Presence> {
  const names = tasks.filter(({ state }) => state === "claimed").map(({ owner }) => owner!);
  return new Map(presence(channel, [...new Set(names)]).map((one) => [one.agent, one]));
}

/** A channel's tasks, for programs: with each that is claimed, what is known of its owner. */
function boardRows(channel: Channel, tasks: readonly Task[]): string {
  const owners = ownersOf(channel, tasks);
  const row = (task: Task): object => {
    const one = task.state === "claimed" ? owners.get(task.owner!) : undefined;
    return one === undefined ? task : { ...task, presence: one };
  };
  return tasks.map((task) => `${JSON.stringify(row(task))}\n`).join("");
}

/** Some tasks of a channel, at a glance; the counts are of all, or who asks for few would take it for empty. */
function boardText(channel: Channel, whole: readonly Task[], tasks: readonly Task[]): string {
  const states = ["open", "blocked", "claimed", "done"] as const;
  const count = (one: Task["state"]): number => whole.filter(({ state }) => state === one).length;
  const of = (state: Task["state"]): Task[] => tasks.filter((task) => task.state === state);
  const pause = currentPause(channel);
  const paused = pause === undefined ? [] : [`  ${pauseWords(pause)}`];
  const head = `${channel.name}: ${states.map((state) => `${count(state)} ${state}`).join(", ")}`;
  const parts = states.map((state) => (state === "done" ? of(state).slice(-DONE_SHOWN) : of(state).slice(0, SHOWN)));
  const more = states.flatMap((state, i) => {
    const rest = of(state).length - parts[i]!.length;
    return rest === 0 || state === "done" ? [] : [`${rest} more ${state}`];
  });
  const owners = ownersOf(channel, tasks);
  const rows = parts.flat().map((task) => `  ${taskLine(task, owners.get(task.owner ?? ""))}`);
  const rest = more.length === 0 ? [] : [`  ${more.join(", ")}: --json has all`];
  return [head, ...paused, ...rows, ...rest].join("\n");
}

function taskLine(
  { task, state, title, from, for: names, after, priority, owner, since, slot }: Task,
  one?: Presence,
): string {
  const words = [
    priority === "normal" ? "" : priority,
    slot ? "slot" : "",
    titleFrom(title), // as short as if it came from the body
    names.length === 0 || state === "done" ? "" : `for ${names.join(", ")}`,
    state === "blocked" && after.length > 0 ? `after ${after.join(", ")}` : "",
    owner === null
      ? from && `from ${from}`
      : `${owner}${since === null ? "" : ` since ${clockTime(since)}, ${age(since)}`}`,
    one === undefined ? "" : ownerWords(one),
  ];
  return `${state.padEnd(7)}  task-${task}  ${listed(words, "; ")}`;
}

/** Whether the owner of a task is waiting, or silent. */
function ownerWords({ seen, waiting, status }: Presence): string {
  const silent = seen === null ? "never seen here" : isSilent(seen) ? `silent since ${clockTime(seen)}` : "";
  return listed([waiting === null ? silent : "waiting now", status === null ? "" : statusWords(status)], "; ");
}

function isSilent(seen: string): boolean {
  return Date.now() - Date.parse(seen) >= SILENT_MS;
}

/** Tasks that two clones took apart, or that were made anew. */
function torn(channel: Channel, all: readonly Task[]): string[] {
  const spare = sparesOf(all);
  return [...new Set(all.map(({ task }) => task))].flatMap((id) => {
    const files = all.filter(({ task }) => task === id);
    if (files.length < 2) return [];
    const one = files.find((task) => spare.includes(task));
    const owner = files.find(({ state }) => state === "claimed")?.owner ?? "NAME";
    const release = `agent-chat release ${shellWord(channel.name)} ${id} --as ${shellWord(foldName(owner))}`;
    const mend = one === undefined ? release : `rm ${shellWord(one.path)}`;
    return [`task-${id} is there ${files.length} times: ${namesOf(files)}; to settle it: ${mend}`];
  });
}

/** One agent on one line of a roster. */
function rosterLine(one: Presence & { readonly tasks: readonly string[] }): string {
  const { agent, last_post, seen, unread, waiting, status, tasks } = one;
  const silent = seen !== null && isSilent(seen);
  const seenLater = Date.parse(seen ?? "") - (Date.parse(last_post?.ts ?? "") || 0); // the same minute is said once
  const words = [
    seen === null ? "never seen here" : silent ? `silent since ${clockTime(seen)}, ${age(seen)}` : "",
    last_post === null ? "" : `last post #${last_post.seq} ${age(last_post.ts)}`,
    seen === null || silent || waiting !== null || seenLater < 60_000 ? "" : `seen ${age(seen)}`,
    unread === null ? "" : `${count(unread)} unread`,
    waiting === null
      ? ""
      : `waiting since ${clockTime(waiting.since)} until ${clockTime(waiting.until)}${waiting.for && ` for ${field(waiting.for)}`}`,
    tasks.length === 0 ? "" : `has ${tasks.map((id) => `task-${id}`).join(", ")}`,
    status === null ? "" : statusWords(status),
  ];
  return `  ${field(agent)}: ${listed(words, "; ")}`;
}

function receiptLines(channel: Channel, receipt: Receipt): string {
  const { seq, from, title, file, shown, unshown, replied } = receipt;
  const answers = replied.map((reply) => `${reply.from} #${reply.seq}`);
  const never = presence(channel, unshown).map(
    ({ agent, seen }) => agent + (seen === null ? " (never seen here)" : ""),
  );
  const lines = [
    `#${seq} ${from} -> ${receipt.for.join(", ") || "nobody known yet"}  ${channel.name}/${file}`,
    `${title}`,
    `  shown to    : ${shown.join(", ") || "nobody"}`,
    `  not shown to: ${never.join(", ") || "nobody"}`,
    `  replied     : ${answers.join(", ") || "nobody"}`,
  ];
  return lines.join("\n");
}

function channelLines({ channel, path: folder, messages, unread, members, newest, paused }: Row): string {
  const waiting = unread === undefined ? "" : `, ${unread} unread`;
  const last = newest === null ? "no message yet" : `last: #${newest.seq} ${newest.from}: ${newest.title}`;
  return visible(
    `${channel}  ${plural(messages, "message")}${waiting}  ${members.join(", ") || "(open)"}  ${folder}\n  ${last}${paused === undefined ? "" : `\n  tasks are ${pauseWords(paused)}`}`,
  );
}

// ---- help ----------------------------------------------------------------------------------------------------------

const EXIT_HELP = `exit codes:
  0  done                        5  everybody waits
  1  could not                  64  wrong usage
  2  nothing came in time      129  ended by SIGHUP
  3  somebody else has it      130  ended by SIGINT
  4  the key is taken          143  ended by SIGTERM`;

function columns(rows: readonly (readonly [string, string])[]): string {
  const width = Math.max(...rows.map(([left]) => left.length));
  return rows.map(([left, right]) => wrap(`  ${left.padEnd(width)}  `, right)).join("\n");
}

/** Words in lines under 80 wide, each line after the first indented like it. */
function wrap(head: string, text: string): string {
  const lines = [head];
  for (const word of text.split(" ")) {
    if (lines.at(-1)!.length + word.length >= 79) lines.push(" ".repeat(head.length));
    lines[lines.length - 1] += /\S$/.test(lines.at(-1)!) && lines.at(-1)!.length > head.length ? ` ${word}` : word;
  }
  return lines.join("\n");
}

function optionRows(options: Options): [string, string][] {
  return Object.entries(options).map(([name, { value, short, help }]) => {
    const flags = listed([short === undefined ? "" : `-${short}`, name.length > 1 ? `--${name}` : ""], ", ");
    return [value === undefined ? flags : `${flags} ${value}`, help];
  });
}

function commandHelp(name: string, { summary, operands, options, examples }: Command): string {
  const usage = `agent-chat ${name}${operands && ` ${operands}`} [options]`;
  const rows = columns([...optionRows(options), ...optionRows(EVERYWHERE)]);
  return `${usage}\n${summary}\n\noptions:\n${rows}\n\nexamples:\n${examples.join("\n")}\n`;
}

function generalHelp(): string {
  const rows = Object.entries(COMMANDS).map(([name, { operands, summary }]): [string, string] => [
    `${name} ${operands}`.trim(),
    summary,
  ]);
  const about = "agent-chat - agents leave each other numbered messages in a folder, and wait";
  const session = [
    "agent-chat init review --members alice,bob",
    ...COMMANDS.post.examples.slice(0, 1),
    COMMANDS.wait.examples[0],
    COMMANDS.claim.examples[0],
  ];
  return `${about}\n\nagent-chat <command> [options]\n\n${columns(rows)}\n\noptions of every command, before or after it:\n${columns(optionRows(EVERYWHERE))}\n\n${EXIT_HELP}\n\nexamples:\n${session.join("\n")}\n\nonly read, wait and ask mark what they show; more: agent-chat <command> --help\n`;
}

// ---- main ----------------------------------------------------------------------------------------------------------

type Value = string | boolean | undefined;

interface Parsed {
  readonly name: string | undefined;
  readonly values: Readonly<Record<string, Value>>;
  readonly operands: readonly string[];
}

/**
 * parseArgs refuses values that begin with a dash; agents send diffs, so a value is joined to its option first. An
 * operand that begins with one and has a space is a text, for no option is called so: it and what follows come last.
 */
function joinValues(args: readonly string[], options: Options): string[] {
  const takes = new Map<string, string>();
  for (const [name, { value, short }] of Object.entries(options)) {
    if (value !== undefined) takes.set(`--${name}`, value);
    if (value !== undefined && short !== undefined) takes.set(`-${short}`, value);
  }
  const known = new Set(Object.keys(options).map((name) => `--${name}`));
  const [joined, texts]: [string[], string[]] = [[], []];
  for (let i = 0; i < args.length; i++) {
    const [arg, value] = [args[i]!, args[i + 1]];
    if (arg === "--") return [...joined, "--", ...texts, ...args.slice(i + 1)];
    if (/^-\S*\s/.test(optionOf(arg)) || (texts.length > 0 && !arg.startsWith("-"))) {
      texts.push(arg);
      continue;
    }
    const given = value !== undefined && !known.has(value.split("=")[0]!);
    if (takes.has(arg) && !given) throw new ChatError("usage", `${arg} needs a value: ${takes.get(arg)}`);
    joined.push(takes.has(arg) ? `${arg}${arg.startsWith("--") ? "=" : ""}${args[++i]}` : arg);
  }
  return texts.length === 0 ? joined : [...joined, "--", ...texts];
}

function parse(args: readonly string[]): Parsed {
  const at = commandAt(args);
  const name = args[at];
  const options: Options = { ...EVERYWHERE, ...(name === undefined ? {} : commandNamed(name).options) };
  const words = args.filter((_, i) => i !== at);
  const { values, positionals } = parseWords(joinValues(words, options), options, name);
  for (const [option, value] of Object.entries(values)) {
    if (Array.isArray(value) && value.length > 1) throw new ChatError("usage", `--${option} is given twice`);
  }
  const single = Object.entries(values).map(([option, value]) => [option, Array.isArray(value) ? value[0] : value]);
  return { name, values: Object.fromEntries(single) as Parsed["values"], operands: positionals };
}

function parseWords(words: string[], options: Options, name = ""): ReturnType<typeof parseArgs> {
  const config = Object.entries(options).map(([key, { value, short }]) => {
    const type = value === undefined ? "boolean" : "string";
    return [key, { type, multiple: true, ...(short && { short }) }] as const;
  });
  try {
    return parseArgs({ args: words, options: Object.fromEntries(config), allowPositionals: true });
  } catch (error) {
    const help = `agent-chat ${name} --help`.replace("  ", " ");
    throw new ChatError("usage", unknownOption(error as Error, options), help);
  }
}

/** The position of the command: the first word that is neither an option nor the value of one. */
function commandAt(args: readonly string[]): number {
  for (let i = 0; i < args.length; i++) {
    if (!args[i]!.startsWith("-")) return i;
    const option = (EVERYWHERE as Options)[args[i]!.slice(2)];
    if (option?.value !== undefined) i++;
  }
  return args.length;
}

function commandNamed(name: string): Command {
  const names = Object.keys(COMMANDS);
  if (names.includes(name)) return COMMANDS[name as keyof typeof COMMANDS] as Command;
  const near = nearest(name, names);
  const swap = near === undefined ? undefined : ([name, near] as const);
  throw new ChatError("usage", `${quoted(name)} is not a command: ${names.join(", ")}`, "agent-chat --help", swap);
}

function unknownOption(error: Error, options: Options): string {
  const word = /'(-[^' ]*)/.exec(error.message)?.[1];
  if (word === undefined || !isCode(error, "ERR_PARSE_ARGS_UNKNOWN_OPTION")) return error.message;
  const known = Object.keys(options).map((name) => `--${name}`);
  const near = nearest(word, known);
  return `unknown option ${quoted(word)}${near === undefined ? "" : `; did you mean ${near}?`}`;
}

/** How many operands a command takes, from the line that help prints. */
function checkOperands(name: string, { operands }: Command, given: readonly string[]): void {
  const words = operands.split(" ").filter((word) => word !== "");
  const least = words.filter((word) => word.startsWith("<")).length;
  const most = words.some((word) => word.includes("...")) ? Infinity : words.length;
  const usage = `agent-chat ${name} --help`;
  if (given.length < least) throw new ChatError("usage", `${name} needs ${words.slice(given.length).join(" ")}`, usage);
  if (given.length > most)
    throw new ChatError("usage", `${quoted(given[most]!)} is one word too many for ${name}`, usage);
}

/** An argument with broken UTF-8 reaches us changed; only Linux tells what was really typed. */
function checkArguments(args: readonly string[]): void {
  if (!args.some((arg) => arg.includes("\ufffd"))) return;
  const found = explaining("read the arguments", () =>
    fs.existsSync("/proc/self/cmdline") ? fs.readFileSync("/proc/self/cmdline") : Buffer.alloc(0),
  );
  if (isUtf8(found)) return;
  const message = "an argument is not valid UTF-8: nothing was done";
  throw new ChatError("bad_value", message, "send a text with --body-file; names and folders have to be in UTF-8");
}

/** Who is calling: --as or --from, else $AGENT_CHAT_NAME. */
function findName(as: Value, from: Value): Found<Name | undefined> {
  const byAs = typeof as === "string" ? parseName("--as", as) : undefined;
  const byFrom = typeof from === "string" ? parseName("--from", from) : undefined;
  if (byAs !== undefined && byFrom !== undefined && byAs !== byFrom) {
    const message = `--as "${byAs}" and --from "${byFrom}" are two names for one sender`;
    throw new ChatError("usage", message, "give one of them");
  }
  if (byAs !== undefined) return { value: byAs, from: "--as" };
  if (byFrom !== undefined) return { value: byFrom, from: "--from" };
  const environment = process.env["AGENT_CHAT_NAME"];
  return { value: environment ? parseName("AGENT_CHAT_NAME", environment) : undefined, from: "AGENT_CHAT_NAME" };
}

function toCall({ values, operands }: Parsed, { options }: Command, args: readonly string[]): Call {
  const json = values["json"] === true;
  const note = talk(json);
  const sender = options["from"]?.caller ? values["from"] : undefined;
  const { value: name, from: nameFrom } = findName(values["as"], sender);
  const agent = (): Name => {
    if (name !== undefined) return name;
    throw new ChatError("no_name", "who are you? no name was given", "add --as NAME, or set AGENT_CHAT_NAME");
  };
  const option = values["root"] as string | undefined;
  const { value: root, from: rootFrom } = explaining("find the root", () => findRoot(option, note));
  const said = /^(--root|AGENT_CHAT_ROOT)$/.test(rootFrom) ? ["--root", root] : [];
  const instead = (words: readonly string[]): string =>
    shellLine([...words, ...(name === undefined ? [] : ["--as", name]), ...said, ...(json ? ["--json"] : [])]);
  const again = commandLine(args);
  return { root, rootFrom, operands, json, again, rest: again, instead, note, agent, name, nameFrom };
}

async function run(args: readonly string[]): Promise<void> {
  checkArguments(args);
  const parsed = parse(args);
  const { name, values, operands } = parsed;
  if (values["version"]) return print(`${VERSION}\n`);
  if (values["help"]) return print(name === undefined ? generalHelp() : commandHelp(name, commandNamed(name)));
  if (name === undefined) throw new ChatError("usage", "no command was given", "agent-chat --help");
  const entry = commandNamed(name);
  checkOperands(name, entry, operands);
  await entry.run(toCall(parsed, entry, args), values as Given<Options>);
}

/** The same command once more, whole: what the environment said of who and where is in it. */
function commandLine(args: readonly string[]): string {
  const { AGENT_CHAT_NAME: name, AGENT_CHAT_ROOT: root } = process.env;
  const more = [
    ...unless(args, args[commandAt(args)] === "wait" ? ["--as"] : ["--as", "--from"], "--as", name),
    ...unless(args, ["--root"], "--root", root?.trim() && absolute(root)),
  ];
  return shellLine(args.includes("--") ? [...more, ...args] : [...args, ...more]); // behind `--` they would be words
}

function shellLine(words: readonly string[]): string {
  return `agent-chat ${words.map(shellWord).join(" ")}`;
}

function unless(
  args: readonly string[],
  given: readonly string[],
  option: string,
  value: string | undefined,
): string[] {
  return !value || args.some((arg) => given.includes(optionOf(arg))) ? [] : [option, value];
}

/** `--root` of `--root` and of `--root=DIR`. */
function optionOf(arg: string): string {
  return arg.split("=")[0]!;
}

/**
 * The command line with one word for another: an argument, the value of an option, or one of a list. Undefined unless
 * that word is there exactly once: a title or a body may say it too, and is not to be changed.
 */
function exchanged(args: readonly string[], [wrong, right]: readonly [string, string]): string[] | undefined {
  const isIt = (word: string): boolean => foldName(word) === foldName(wrong);
  const parts = args.map((arg) => (isIt(arg) ? [arg] : arg.split(/([=,])/)));
  if (parts.flat().filter(isIt).length !== 1) return undefined;
  return parts.map((words) => words.map((word) => (isIt(word) ? right : word)).join(""));
}

/** What to type: the same with another word, the same again, or what the error says, in the root that was meant. */
function remedyFor({ code, remedy, swap }: ChatError, args: readonly string[]): string | undefined {
  const mended = swap === undefined || args.join(" ").length >= 300 ? undefined : exchanged(args, swap);
  if (mended !== undefined) return commandLine(mended);
  if (code === "timeout") return remedy ?? commandLine(args);
  const command = args[commandAt(args)] ?? "";
  if (remedy === undefined && EXIT[code] === EXIT.usage)
    return `agent-chat ${Object.hasOwn(COMMANDS, command) ? `${command} ` : ""}--help`;
  const root = args.findIndex((arg) => optionOf(arg) === "--root");
  if (!remedy?.startsWith("agent-chat ") || /--root|--help/.test(remedy) || root < 0) return remedy;
  return `${remedy} ${args
    .slice(root, root + (args[root] === "--root" ? 2 : 1))
    .map(shellWord)
    .join(" ")}`;
}

/** Prints an error, as text or as JSON, with the command that mends it; returns the exit code. */
function report(thrown: unknown, args: readonly string[]): number {
  const error = isCode(thrown, DENIED) ? explained(thrown, "go on") : thrown;
  if (!(error instanceof ChatError)) throw error; // a bug: its stack is what is needed
  const { code, message, remedy } = error;
  if (code === "closed" && remedy === undefined) return 0; // a closed pipe is no failure: nothing was marked
  const again = remedyFor(error, args);
  const text = `agent-chat: ${visible(message)}${again === undefined ? "" : `\n  try: ${again}`}`;
  complain(args.includes("--json") ? JSON.stringify({ error: { code, message, try: again ?? null } }) : text);
  return EXIT[code];
}

/** Runs one command line; returns its exit code. */
export async function main(args: readonly string[]): Promise<number> {
  try {
    await run(args);
    return 0;
  } catch (error) {
    return report(error, args);
  }
}

/** Whether this file is the program that was started, and not a library that was imported. */
function isProgram(): boolean {
  try {
    const own = fs.realpathSync(import.meta.filename); // a link's own name with --preserve-symlinks-main
    return fs.realpathSync(process.argv[1] ?? "") === own;
  } catch {
    return false; // `node -e` may be given any words
  }
}

if (isProgram()) {
  void main(process.argv.slice(2)).then((code) => process.exit(code)); // all output was written synchronously: nothing is pending
}
