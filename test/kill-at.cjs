// Preloaded into the program: kills it before the n-th call that changes something, KILL_AT=n; a git that it runs is one
// such call. With KILL_GIT=1 it is the n-th git, which dies too, a moment after it has begun.
"use strict";
const fs = require("node:fs");
const children = require("node:child_process");
const { syncBuiltinESMExports } = require("node:module");

let left = Number(process.env.KILL_AT);
let inside = false; // what a call calls itself is part of it
const die = () => process.kill(process.pid, "SIGKILL");

const CHANGES = /^(write|writeFile|appendFile|rename|link|unlink|rmdir|rm|mkdir|utimes|ftruncate|copyFile)Sync$/;

function changes(name, args) {
  if (name === "openSync") return args[1] !== undefined && args[1] !== "r";
  return CHANGES.test(name);
}

for (const [name, real] of Object.entries(fs)) {
  if (typeof real !== "function" || !name.endsWith("Sync")) continue;
  fs[name] = (...args) => {
    if (inside) return real(...args);
    if (process.env.KILL_GIT !== "1" && changes(name, args) && --left === 0) die();
    inside = true;
    try {
      return real(...args);
    } finally {
      inside = false;
    }
  };
  Object.assign(fs[name], real); // realpathSync.native
}

const { spawn } = children;
children.spawn = (...args) => {
  if (--left !== 0) return spawn(...args);
  if (process.env.KILL_GIT !== "1") die();
  const child = spawn(...args);
  setTimeout(() => {
    try {
      process.kill(-child.pid, "SIGKILL");
    } catch {
      // it was quicker
    }
    die();
  }, Math.random() * 4);
  return child;
};
syncBuiltinESMExports();
