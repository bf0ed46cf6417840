// What a remote may hold, and how git may fail: nothing of it is trusted, nothing is lost, and the next sync goes on.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { until } from "./helpers.ts";
import { AC, assertLinear, fleet, gitThatFirst, pair, runGit, type Fleet } from "./machines.ts";

/** Pushes to the remote what git lets anybody push: rows of mode, path and content; a content alone is no path. */
function pushByHand(
  { git, box, remote }: Fleet,
  entries: readonly (readonly [mode: string, file: string, content: string | Buffer])[],
): void {
  const evil = fs.mkdtempSync(path.join(box.dir, "evil-"));
  git(box.dir, "clone", "-q", "--no-checkout", remote, evil);
  git(evil, "read-tree", "HEAD");
  for (const [mode, file, content] of entries) {
    const oid = mode === "160000" ? "1".repeat(40) : runGit(evil, ["hash-object", "-w", "--stdin"], content).trim();
    git(evil, "update-index", "--add", "--cacheinfo", `${mode},${oid},${file}`);
  }
  git(evil, "commit", "-q", "-m", "by hand");
  git(evil, "push", "-q", "origin", "HEAD:main");
}

const message = (seq: number, body: string, more = ""): string =>
  `---\nseq: ${seq}\nfrom: eve\nto: all\nstatus: fyi\ntitle: odd\nts: 2026-01-01T00:00:00Z\n${more}---\n${body}\n`;

/** The code of the error that --json prints. */
function failure(result: { status: number | null; stderr: string }): string {
  assert.equal(result.status, 1, result.stderr);
  const last = result.stderr.trim().split("\n").at(-1)!;
  return (JSON.parse(last) as { error: { code: string } }).error.code;
}

test("sync: what a remote has that is no message is left out and named; the next sync goes on and takes nothing away", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  fs.writeFileSync(path.join(net.box.dir, "secret"), "secret\n");
  const bad: [string, string, string | Buffer][] = [
    ["120000", "review/0001-eve-odd.md", path.join(net.box.dir, "secret")],
    ["160000", "review/0002-eve-odd.md", ""],
    ["100644", "review/0003-eve-odd.md", message(4, "another number")],
    ["100644", "review/0004-eve-odd.md", "---\nseq: 4\nfrom: eve\n"],
    ["100644", "review/0005-eve-odd.md", message(5, "x".repeat(9_000_000))],
    ["100644", "review/_files/0001/big.bin", Buffer.alloc(11_000_000)],
    ["100644", "review/900000000000000-eve-odd.md", message(9, "a number that nothing could follow")],
    ["100644", "review/_seq.lock/x.draft", "x"],
    ["100644", "review/_files/0001/..\\evil.txt", "x"],
    ["100644", "review/_files/0001/CON", "x"],
    ["100644", "review/-rf", "x"],
    ["100644", "review/two\nlines", "x"],
    ["100644", "outside.txt", "x"],
    ["100644", "folder/0001-eve-odd.md", message(1, "x")],
    ["100644", "review/a/b/c/d/e/f/g/h/i/j/k/l.txt", "x"],
    ["120000", "review/_files/0007", net.box.dir],
    ["120000", "link", net.box.dir],
  ];
  const silent: [string, string, string][] = [
    ["100644", "review/.cursors/bob.txt", "1-99\n"],
    ["100644", "review/.cursors/.moving", "{}"],
  ];
  pushByHand(net, [...bad, ...silent, ["100644", "review/0006-eve-good.md", message(6, "good")]]);
  const before = net.git(net.remote, "rev-parse", "main:review");
  there.post("bob", "mine");
  const first = there.sync();
  const left = new Set(first.left_out.map(({ path: file }) => file));
  for (const [, file] of bad) assert.ok(left.has(file), `${file} is not named`);
  for (const [, file] of bad) assert.equal(fs.lstatSync(there.at(file), { throwIfNoEntry: false }), undefined, file);
  for (const [, file] of silent) // a .moving of our own, after the renumbering, is empty
    assert.equal(fs.existsSync(there.at(file)) ? fs.readFileSync(there.at(file), "utf8") : "", "", file);
  assert.deepEqual(there.files(), ["0006-eve-good.md", "0007-bob-mine.md"]);
  assert.deepEqual(there.read("cat"), ["odd", "mine"]);
  there.post("bob", "later");
  const second = there.sync();
  assert.deepEqual([second.left_out, second.renumbered], [[], []]);
  here.sync();
  here.post("ann", "one more");
  here.sync();
  there.sync();
  assert.deepEqual(there.files(), [
    "0006-eve-good.md",
    "0007-bob-mine.md",
    "0008-bob-later.md",
    "0009-ann-one-more.md",
  ]);
  assert.deepEqual(here.files(), there.files());
  const kept = net.git(net.remote, "ls-tree", "-r", "--name-only", "-z", "main").split("\0");
  for (const [, file] of [...bad, ...silent]) assert.ok(kept.includes(file), `${file} was taken off the remote`);
  assert.notEqual(net.git(net.remote, "rev-parse", "main:review"), before);
  assertLinear(net);
});

test("sync: what a remote put where a message of here belongs, before or after it was pushed, makes room for it", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  pushByHand(net, [
    ["120000", "review/0001-bob-mine.md", "/etc/hostname"],
    ["100644", "review/0002-bob-next.md", "no message"],
  ]);
  there.post("bob", "mine");
  assert.deepEqual(
    there.sync().sent.map(({ seq }) => seq),
    [1],
  );
  there.post("bob", "next"); // its name was left out before it was there
  assert.deepEqual(
    there.sync().sent.map(({ seq }) => seq),
    [2],
  );
  pushByHand(net, [["100644", "review/0001-bob-mine.md", "spoilt"]]);
  there.sync();
  here.sync();
  assert.deepEqual(
    [here.read("cat"), there.read("cat")],
    [
      ["mine", "next"],
      ["mine", "next"],
    ],
  );
  assert.match(net.git(net.remote, "ls-tree", "main:review"), /^100644 blob \w+\t0001-bob-mine\.md$/m);
});

test("sync: a folder of the remote that becomes a channel only later comes then, with all it has", (t) => {
  const net = fleet(t);
  const [here] = pair(net);
  pushByHand(net, [["100644", "late/0001-eve-odd.md", message(1, "x")]]);
  assert.deepEqual(
    here.sync().left_out.map(({ path: file }) => file),
    ["late/0001-eve-odd.md"],
  );
  pushByHand(net, [["100644", "late/_meta.json", '{"channel":"late","members":[]}\n']]);
  assert.deepEqual([here.sync().left_out, here.read("bob", "late")], [[], ["odd"]]);
});

test("sync: a path that git itself refuses to check out stops nothing and lands nowhere", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  const blob = runGit(net.remote, ["hash-object", "-w", "--stdin"], "owned\n").trim();
  const mktree = (rows: string): string => runGit(net.remote, ["mktree"], rows).trim();
  const raw = (rows: [string, string, string][]): string => {
    const bytes = Buffer.concat(
      rows.flatMap(([mode, name, oid]) => [Buffer.from(`${mode} ${name}\0`), Buffer.from(oid, "hex")]),
    );
    return runGit(net.remote, ["hash-object", "-t", "tree", "-w", "--stdin", "--literally"], bytes).trim();
  };
  const inner = raw([["100644", "evil.txt", blob]]);
  const review = net.git(net.remote, "rev-parse", "main:review").trim();
  const meta = net.git(net.remote, "rev-parse", "main:review/_meta.json").trim();
  const evil = raw([
    ["40000", "..", inner],
    ["40000", ".git", inner],
    ["100644", "_meta.json", meta],
  ]);
  const top = mktree(`040000 tree ${review}\treview\n040000 tree ${evil}\tzzz\n`);
  const commit = runGit(net.remote, ["commit-tree", top, "-p", "main", "-m", "evil"]).trim();
  net.git(net.remote, "update-ref", "refs/heads/main", commit);
  there.post("bob", "mine");
  const { left_out } = there.sync();
  assert.ok(
    left_out.some(({ path: file }) => file === "zzz/../evil.txt"),
    JSON.stringify(left_out),
  );
  assert.deepEqual([fs.existsSync(there.at("evil.txt")), fs.existsSync(there.at("zzz", ".git"))], [false, false]);
  here.sync();
  assert.deepEqual([here.files(), there.files()], [["0001-bob-mine.md"], ["0001-bob-mine.md"]]);
});

test("sync: links that a clone made by hand has lead nothing out of the root", (t) => {
  const net = fleet(t);
  const [, there] = pair(net);
  const outside = path.join(net.box.dir, "outside");
  fs.mkdirSync(outside);
  pushByHand(net, [["120000", "review/_files", outside]]);
  net.git(net.box.dir, "clone", "-q", net.remote, "clone");
  const clone = net.machine("clone");
  assert.equal(fs.lstatSync(clone.at("review", "_files")).isSymbolicLink(), true, "git made the link");
  const evil = path.join(net.box.dir, "evil");
  net.git(net.box.dir, "clone", "-q", net.remote, evil);
  net.git(evil, "rm", "-q", "review/_files");
  fs.mkdirSync(path.join(evil, "review", "_files", "0001"), { recursive: true });
  fs.writeFileSync(path.join(evil, "review", "_files", "0001", "key"), "x");
  net.git(evil, "add", "-A");
  net.git(evil, "commit", "-q", "-m", "through the link");
  net.git(evil, "push", "-q", "origin", "HEAD:main");
  const { left_out } = clone.sync();
  assert.deepEqual(
    [fs.readdirSync(outside), left_out.map(({ path: file }) => file)],
    [[], ["review/_files/0001/key", "review/_files"]],
  );
  there.sync();
  assert.equal(fs.existsSync(there.at("review", "_files", "0001", "key")), true);
});

test("sync: a .gitignore and .gitattributes of the remote hide and change nothing of what is here", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  pushByHand(net, [
    ["100644", ".gitignore", "*\n"],
    ["100644", ".gitattributes", "* text eol=crlf ident\n*.md filter=evil\n"],
  ]);
  there.sync();
  there.ok(["post", "review", "--as", "bob", "--title", "mine", "--body", "$Id$ one\r\ntwo"]);
  assert.deepEqual(there.read("bob"), []);
  there.sync();
  here.sync();
  const [one, other] = [here, there].map((machine) => fs.readFileSync(machine.at("review", "0001-bob-mine.md")));
  assert.deepEqual(one, other);
  assert.doesNotMatch(net.git(net.remote, "ls-tree", "-r", "--name-only", "main"), /\.cursors|lock/);
});

test("sync: a .gitignore of the remote does not make a root carry cursors, which would hide messages", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  here.post("ann", "shown");
  here.sync();
  const before = fs.readFileSync(there.at(".gitignore"), "utf8");
  pushByHand(net, [
    ["100644", ".gitignore", `${before}!*/.cursors/*.txt\n`],
    ["100644", "review/.cursors/bob.txt", "1"],
  ]);
  const { left_out } = there.sync();
  assert.deepEqual(left_out.map(({ path: file }) => file), [".gitignore"]);
  pushByHand(net, [["100644", "review/.cursors/bob.txt", "1-1"]]);
  there.post("bob", "mine");
  there.sync(); // by what is here now
  assert.match(net.git(net.remote, "show", "main:.gitignore"), /!/, "it stays there");
  assert.equal(fs.readFileSync(there.at(".gitignore"), "utf8"), before);
  assert.deepEqual(there.read("bob"), ["shown"]);
});

test("sync: core.autocrlf, commit.gpgSign, no identity and a hook of the repository change nothing", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  for (const [key, value] of [
    ["core.autocrlf", "true"],
    ["commit.gpgSign", "true"],
    ["push.gpgSign", "true"],
    ["gpg.program", "/bin/false"],
    ["user.useConfigOnly", "true"],
    ["push.followTags", "true"],
    ["fetch.prune", "true"],
  ] as const)
    there.git("config", key, value);
  const ran = path.join(net.box.dir, "ran");
  const hooks = [
    "pre-push",
    "post-commit",
    "pre-commit",
    "reference-transaction",
    "post-index-change",
    "post-checkout",
    "post-merge",
    "commit-msg",
  ];
  for (const hook of hooks)
    fs.writeFileSync(there.at(".git", "hooks", hook), `#!/bin/sh\necho ${hook} >> "${ran}"\nexit 1\n`, { mode: 0o755 });
  const bodies = ["one\r\ntwo\r\n", "one\ntwo\n", "mixed\r\nlines\n"];
  for (const [i, body] of bodies.entries())
    there.ok(["post", "review", "--as", "bob", "--title", `t${i}`, "--body-file", "-"], { stdin: body });
  fs.mkdirSync(there.at("review", "_files", "0001"), { recursive: true });
  fs.writeFileSync(there.at("review", "_files", "0001", "a.txt"), "a\r\nb\n");
  const env = { HOME: path.join(net.box.dir, "nobody"), EMAIL: undefined };
  there.ok(["sync"], { env });
  here.ok(["sync"], { env });
  here.post("ann", "answer", "--body", "back\r\nagain");
  here.sync();
  there.ok(["sync"], { env });
  for (const file of [...here.files(), "_files/0001/a.txt"])
    assert.deepEqual(fs.readFileSync(here.at("review", file)), fs.readFileSync(there.at("review", file)), file);
  assert.equal(fs.existsSync(ran), false, fs.existsSync(ran) ? fs.readFileSync(ran, "utf8") : "");
  assert.equal(net.git(net.remote, "log", "--format=%an", "main").includes("agent-chat"), true);
  there.sync();
  assert.equal(net.log().length, 4, "one for the root, the channel, what is from here, and the answer");
});

test("sync: what git says of the repository around, as in its hooks, is not taken for the root's", (t) => {
  const net = fleet(t);
  const [here] = pair(net);
  const code = path.join(net.box.dir, "code");
  net.git(net.box.dir, "init", "-q", "-b", "main", code);
  fs.writeFileSync(path.join(code, "main.c"), "int main;\n");
  net.git(code, "add", ".");
  net.git(code, "commit", "-q", "-m", "code");
  const index = fs.readFileSync(path.join(code, ".git", "index"));
  here.post("ann", "a");
  const env = {
    GIT_DIR: path.join(code, ".git"),
    GIT_WORK_TREE: code,
    GIT_INDEX_FILE: path.join(code, ".git", "index"),
    GIT_OBJECT_DIRECTORY: path.join(code, ".git", "objects"),
    GIT_PREFIX: "x/",
    GIT_CONFIG_COUNT: "1",
    GIT_CONFIG_KEY_0: "core.bare",
    GIT_CONFIG_VALUE_0: "true",
  };
  here.ok(["sync"], { env, cwd: code });
  assert.match(net.log()[0]!, /review: #1 from ann/);
  assert.deepEqual(fs.readFileSync(path.join(code, ".git", "index")), index);
  const other = net.machine("other");
  other.ok(["sync", "--init", net.remote], { env, cwd: code });
  assert.deepEqual([other.files(), net.git(code, "status", "--porcelain")], [["0001-ann-a.md"], ""]);
  net.git(code, "remote", "add", "origin", net.remote); // and from a real hook
  fs.writeFileSync(
    path.join(code, ".git", "hooks", "post-commit"),
    `#!/bin/sh\n${AC} post review --root "${here.root}" --as ann --title hook --body x --sync\n`,
    { mode: 0o755 },
  );
  net.git(code, "commit", "-q", "--allow-empty", "-m", "more");
  assert.match(net.log()[0]!, /review: #2 from ann/);
  assert.equal(net.git(code, "log", "--format=%s"), "more\ncode\n");
});

test("sync: no git, no repository, no remote, a detached head and a merge under way each have their error, and nothing changes", (t) => {
  const net = fleet(t);
  const [here] = pair(net);
  here.post("ann", "a");
  const head = here.git("rev-parse", "HEAD");
  const fails = (args: string[] = [], env = {}): string => failure(here.chat(["sync", "--json", ...args], { env }));
  assert.equal(fails([], { PATH: net.box.dir }), "no_git");
  assert.equal(fails(["--remote", "nowhere"]), "no_remote");
  here.git("checkout", "-q", "--detach");
  assert.equal(fails(), "no_repo");
  here.git("checkout", "-q", "main");
  fs.writeFileSync(here.at(".git", "MERGE_HEAD"), head);
  assert.equal(fails(), "no_repo");
  assert.match(here.chat(["sync"]).stderr, /git -C \S+ merge --continue/);
  fs.unlinkSync(here.at(".git", "MERGE_HEAD"));
  here.git("remote", "rename", "origin", "other");
  assert.match(here.ok(["sync"]), /other\/main/);
  here.git("remote", "remove", "other");
  assert.equal(fails(), "no_remote");
  const alone = net.machine("alone");
  alone.ok(["init", "review"]);
  assert.equal(failure(alone.chat(["sync", "--json"])), "no_repo");
  assert.equal(failure(net.machine("none").chat(["sync", "--json"])), "no_repo");
  assert.deepEqual([here.files(), fs.existsSync(here.at("_sync.lock"))], [["0001-ann-a.md"], false]);
});

test("sync: a remote that hangs, or asks, is given up after --timeout; what is here is kept and goes with the next one", async (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  here.post("ann", "a");
  const pidFile = path.join(net.box.dir, "pid");
  const ssh = path.join(net.box.dir, "ssh");
  fs.writeFileSync(ssh, `#!/bin/bash\necho $$ >> "${pidFile}"\nexec sleep 300\n`, { mode: 0o755 });
  here.git("remote", "set-url", "origin", "ssh://nobody@localhost/x.git");
  const began = Date.now();
  const env = { GIT_SSH_COMMAND: ssh, GIT_SSH_VARIANT: "ssh" };
  const hung = here.chat(["sync", "--timeout", "0.5", "--json"], { env });
  assert.equal(failure(hung), "unpushed");
  assert.match(hung.stderr, /said nothing for 0\.5 s/);
  assert.ok(Date.now() - began < 8_000);
  const pids = fs.readFileSync(pidFile, "utf8").trim().split("\n").map(Number);
  const lives = (pid: number): boolean =>
    spawnSync("bash", ["-c", `kill -0 ${pid} 2>/dev/null && ! grep -q '^State:.Z' /proc/${pid}/status`]).status === 0;
  await until("what git started is ended", () => !pids.some(lives));
  const asks = path.join(net.box.dir, "asks");
  fs.writeFileSync(
    asks,
    `#!/bin/bash\necho "$@" > "${asks}.args"\necho 'nobody@localhost: Permission denied (publickey).' >&2\nexit 255\n`,
    { mode: 0o755 },
  );
  const denied = here.chat(["sync", "--json"], { env: { ...env, GIT_SSH_COMMAND: asks } });
  assert.deepEqual([failure(denied), /Permission denied/.test(denied.stderr)], ["unpushed", true]);
  assert.match(fs.readFileSync(`${asks}.args`, "utf8"), /BatchMode=yes/);
  here.git("remote", "set-url", "origin", net.remote);
  here.sync();
  there.sync();
  assert.deepEqual(there.read("bob"), ["a"]);
});

test("sync: a push that hangs, and one that is killed, leave what the next sync sends", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  here.post("ann", "a");
  const hang = gitThatFirst(net.box, `[[ " $* " == *" push "* ]] && exec sleep 300`);
  assert.equal(failure(here.chat(["sync", "--timeout", "0.5", "--json"], { env: { PATH: hang } })), "unpushed");
  const half = gitThatFirst(
    net.box,
    `if [[ " $* " == *" push "* ]]; then PATH=\${PATH#*:} git "$@"; kill -9 $PPID; fi`,
  ); // pushed, and nobody here knows
  here.chat(["sync"], { env: { PATH: half } });
  there.post("bob", "b");
  there.sync();
  here.sync();
  assert.deepEqual(
    [here.files(), there.files()],
    [
      ["0001-ann-a.md", "0002-bob-b.md"],
      ["0001-ann-a.md", "0002-bob-b.md"],
    ],
  );
  assertLinear(net);
});

test("sync: locks of another git are named; nothing is half done, and once they are gone it goes on", async (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  const third = net.joined("third");
  for (const title of ["a", "b"]) here.post("ann", title);
  here.sync();
  const locks = [
    [there, there.at(".git", "index.lock")],
    [third, third.at(".git", "refs", "heads", "main.lock")],
  ] as const;
  for (const [machine, lock] of locks) {
    machine.post(machine === there ? "bob" : "cat", "mine");
    fs.writeFileSync(lock, "");
  }
  const running = locks.map(([machine]) => machine.start(["sync", "--json"]));
  for (const [i, { ended }] of running.entries()) {
    const result = await ended;
    assert.equal(failure(result), "locked");
    assert.ok(result.stderr.includes(locks[i]![1]), result.stderr);
  }
  for (const [machine, lock] of locks) {
    machine.post(machine === there ? "bob" : "cat", "meanwhile");
    fs.unlinkSync(lock);
    machine.sync();
  }
  for (const machine of [here, there, third]) machine.sync();
  const names = [
    "0001-ann-a.md",
    "0002-ann-b.md",
    "0003-bob-mine.md",
    "0004-bob-meanwhile.md",
    "0005-cat-mine.md",
    "0006-cat-meanwhile.md",
  ];
  for (const machine of [here, there, third]) assert.deepEqual(machine.files(), names);
  assert.deepEqual(there.read("dan"), ["a", "b", "mine", "meanwhile", "mine", "meanwhile"]);
  assertLinear(net);
});

test("sync: on a full disk it says so, what is here stays whole, and with space again it goes on", (t) => {
  const net = fleet(t);
  const [here] = pair(net);
  if (spawnSync("unshare", ["-rm", "mount", "-t", "tmpfs", "-o", "size=1m", "none", net.box.dir]).status !== 0)
    return t.skip("no mount");
  for (let i = 0; i < 3; i++)
    here.ok(["post", "review", "--as", "ann", "--title", `m${i}`, "--body-file", "-"], {
      stdin: runGit(net.box.dir, ["hash-object", "--stdin"], String(i)).repeat(2000),
    });
  here.sync();
  const small = path.join(net.box.dir, "small");
  fs.mkdirSync(small);
  const script = `set -e
mount -t tmpfs -o size=1m none "${small}"
export AGENT_CHAT_ROOT="${small}/root" GIT_CONFIG_GLOBAL=/dev/null
mkdir "${small}/root"
dd if=/dev/zero of="${small}/fill" bs=1k count=820 2>/dev/null
${AC} sync --json --init "${net.remote}" && exit 9 || [ $? = 1 ]
echo --- >&2
rm "${small}/fill"
${AC} sync --json --init "${net.remote}"
${AC} read review --as bob --json --max-bytes 9000000`;
  const ran = spawnSync("unshare", ["-rm", "bash", "-c", script], {
    encoding: "utf8",
    maxBuffer: 1 << 26,
    cwd: net.box.dir,
  });
  assert.equal(ran.status, 0, ran.stderr);
  assert.match(ran.stderr.split("---")[0]!, /"no_space"/);
  assert.equal(ran.stdout.split("\n").filter((row) => row.includes('"title":"m')).length, 3, ran.stdout.slice(0, 500));
});

test("sync: ended by a signal while git holds a lock, it leaves none, and the next sync goes on", async (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  here.post("ann", "a");
  const slow = `if [[ " $* " == *" --index-info "* ]]; then (cat; sleep 60) | PATH=\${PATH#*:} git "$@"; exit; fi`;
  const running = here.start(["sync"], { env: { PATH: gitThatFirst(net.box, slow) } });
  await until("git has its lock", () => fs.existsSync(here.at(".git", "index.lock")));
  running.child.kill("SIGTERM");
  assert.equal((await running.ended).status, 143);
  await until("git has ended", () => !fs.existsSync(here.at(".git", "index.lock")));
  assert.equal(fs.existsSync(here.at("_sync.lock")), false);
  here.sync();
  there.sync();
  assert.deepEqual(there.read("bob"), ["a"]);
});

test("wait --sync: a remote that hangs holds no wait back", (t) => {
  const net = fleet(t);
  const [here] = pair(net);
  const PATH = gitThatFirst(net.box, `[[ " $* " == *" fetch "* ]] && exec sleep 300`);
  here.read("bob");
  const began = Date.now();
  const waited = here.chat(["wait", "review", "--as", "bob", "--sync", "1", "--timeout", "1"], { env: { PATH } });
  assert.deepEqual([waited.status, Date.now() - began < 6_000], [2, true], waited.stderr);
  here.post("ann", "local");
  const shown = here.chat(["wait", "review", "--as", "bob", "--sync", "1", "--timeout", "20"], { env: { PATH } });
  assert.deepEqual([shown.status, /local/.test(shown.stdout)], [0, true], "the tick goes on");
  assert.equal(fs.existsSync(here.at("_sync.lock")), false);
});

test("sync: killed before the branch follows, it does not take what came for something of here", (t) => {
  const net = fleet(t);
  const [here, there] = pair(net);
  here.ok(["task", "review", "work", "--as", "ann"]);
  here.sync();
  there.sync();
  here.ok(["claim", "review", "1", "--as", "cat"]);
  here.sync();
  const PATH = gitThatFirst(net.box, '[[ " $* " == *" update-ref -m "* ]] && { kill -9 $PPID; exit 1; }');
  assert.equal(there.chat(["sync"], { env: { PATH } }).signal, "SIGKILL");
  const tasks = (): string[] => fs.readdirSync(there.at("review")).filter((name) => name.startsWith("task"));
  assert.deepEqual(tasks(), ["task-1.CLAIMED-cat.md"]);
  here.ok(["release", "review", "1", "--as", "cat"]);
  here.sync();
  assert.deepEqual([there.sync().lost, tasks()], [[], ["task-1.md"]], "nobody here had it");
});

test("sync: a number that is below others and comes only now is shown, though a cursor has it already", (t) => {
  const net = fleet(t);
  const [, there] = pair(net);
  const file = (seq: number, title: string): [string, string, string] => ["100644", `review/000${seq}-eve-${title}.md`, message(seq, title)];
  pushByHand(net, [file(1, "one"), file(3, "three")]);
  there.sync();
  fs.mkdirSync(there.at("review", ".cursors"), { recursive: true });
  fs.writeFileSync(there.at("review", ".cursors", "cat.txt"), "3"); // as the reference says that all up to there were shown
  fs.writeFileSync(there.at("review", ".cursors", "Old_Cat.txt"), "3"); // a name that only the reference allows
  pushByHand(net, [file(2, "two")]);
  there.sync();
  assert.equal(fs.readFileSync(there.at("review", ".cursors", "Old_Cat.txt"), "utf8"), "1-1,3-3");
  assert.deepEqual([there.read("cat"), there.read("cat")], [["odd"], []]);
});
