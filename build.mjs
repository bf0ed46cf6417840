// Makes dist/agent-chat.cjs, what npm installs, from chat.ts: one plain CommonJS file, and its types.
import fs from "node:fs";
import ts from "typescript";

const GUARD = `if (parseInt(process.versions.node, 10) < 20) {
  process.stderr.write("agent-chat needs Node 20 or later; this is " + process.version + "\\n");
  process.exit(1);
}`;

/** Replaces what must stand exactly once. */
function swap(text, from, to) {
  const parts = text.split(from);
  if (parts.length !== 2) throw new Error(`build: ${from} stands ${parts.length - 1} times in chat.ts, not once`);
  return parts.join(to);
}

let source = fs.readFileSync("chat.ts", "utf8").replace(/^#!.*\n/, "");
source = swap(source, "import.meta.filename", "__filename"); // CommonJS knows its own file by another name

const { outputText } = ts.transpileModule(source, {
  fileName: "chat.ts",
  compilerOptions: { module: ts.ModuleKind.CommonJS, target: ts.ScriptTarget.ES2019, removeComments: true, esModuleInterop: true },
});
fs.mkdirSync("dist", { recursive: true });
fs.writeFileSync("dist/agent-chat.cjs", `#!/usr/bin/env node\n${GUARD}\n${outputText}`, { mode: 0o755 });

const program = ts.createProgram(["chat.ts"], {
  ...ts.parseJsonConfigFileContent(ts.readConfigFile("tsconfig.json", ts.sys.readFile).config, ts.sys, ".").options,
  noEmit: false,
  declaration: true,
  emitDeclarationOnly: true,
  stripInternal: true,
});
program.emit(undefined, (_, text) => fs.writeFileSync("dist/agent-chat.d.cts", text));
