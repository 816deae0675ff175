// Warms up and waits for the one request that this process will run. Started as `node FLAGS --require FILE main.js
// TOKEN KIND WARM_UP MODULE...`. The file is loaded before a main script, which the request's script replaces, so
// that it runs on the same stack as in a cold start.
"use strict";
// Child processes must not load this file, and the code must not see it.
process.execArgv.splice(process.execArgv.indexOf("--require"), 2);
delete require.cache[__filename];
// Worker threads also load preloaded files. Only the main thread waits for the request.
if (!require("node:worker_threads").isMainThread) return;
const fs = require("node:fs");
const Module = require("node:module");
const crypto = require("node:crypto");
const WARM_ROUNDS = 5;
const [token, , warmUp, ...modules] = process.argv.splice(2);

function send(descriptor, text) {
  let data = Buffer.from(text);
  while (data.length > 0) {
    try {
      data = data.subarray(fs.writeSync(descriptor, data));
    } catch (error) {
      // The first use of the stream made it non-blocking. Its reader will drain it.
      if (error.code !== "EAGAIN") throw error;
    }
  }
}

function refuse(word, what, error) {
  send(1, `${token} ${word} ${what}: ${error}`.replace(/\s+/g, " ").slice(0, 2000) + "\n");
  process.reallyExit(1);
}

function receive(count) {
  const data = Buffer.alloc(count);
  let have = 0;
  while (have < count) {
    const got = fs.readSync(0, data, have, count - have, null);
    // The input has ended without a request.
    if (got === 0) process.reallyExit(0);
    have += got;
  }
  return data;
}

function nextRequest() {
  const lengths = receive(8);
  const [head, code] = [lengths.readUInt32BE(0), lengths.readUInt32BE(4)];
  const body = receive(head + code);
  const [kind, name, directory, count, ...words] = body.subarray(0, head).toString().split("\0");
  const args = words.slice(0, Number(count));
  return { kind, name, directory, args, variables: words.slice(args.length), code: body.subarray(head) };
}

function prepare(request) {
  if (request.directory) process.chdir(request.directory);
  let file = require("node:path").resolve(request.name);
  if (request.kind === "code") {
    file = `${home}/${request.name}`;
    fs.writeFileSync(file, request.code, { flag: "wx", mode: 0o444 });
    fs.chmodSync(home, 0o555);
  }
  for (const variable of request.variables) {
    const at = variable.indexOf("=");
    if (at < 0) delete process.env[variable];
    else process.env[variable.slice(0, at)] = variable.slice(at + 1);
  }
  process.argv[1] = file;
  process.argv.push(...request.args);
  return file;
}

// Exercises all steps of a request, so that V8 has compiled them, and reverts their effects.
function rehearse() {
  const [place, main] = [process.argv[1], process.mainModule];
  const code = Buffer.from("console.log(' ')");
  const file = prepare({ kind: "code", name: "warm.js", directory: "", args: [], variables: ["A=1", "A"], code });
  Module.runMain(file);
  [process.argv[1], process.mainModule] = [place, main];
  delete require.cache[file];
  fs.chmodSync(home, 0o755);
  fs.unlinkSync(file);
}

const home = `/tmp/code-${crypto.randomBytes(8).toString("hex")}`;
for (const name of modules) {
  try {
    // Modules are not resolved from the workspace: Node caches failed lookups, and files may still be added there.
    Module.createRequire("/main.js")(name);
  } catch (error) {
    refuse("missing", `the module '${name}' cannot be loaded`, error);
  }
}
try {
  fs.mkdirSync(home, 0o755);
  for (let round = 0; round < WARM_ROUNDS; round++) rehearse();
  new Function("require", warmUp)(require);
} catch (error) {
  refuse("failed", "the warm-up failed", error);
}
const used = process.cpuUsage();
send(2, `${token} ready\n`);
send(1, `${token} ready ${used.user + used.system}\n`);
const request = nextRequest();
try {
  // The function is bound so that no frame of this file is on the script's stack.
  Module.runMain = Module.runMain.bind(Module, prepare(request));
} catch (error) {
  send(1, `-${Math.abs(error.errno ?? 5)} ${error.syscall === "chdir" ? "directory" : "store"}\n`);
  process.reallyExit(1);
}
send(1, "+");
