// Runs code the way Node runs a script, and captures results besides the output: the value of the last expression. This
// file is no isolation boundary: the code controls all of it, and the host trusts none of it. In a session it serves
// one piece of code after the other in the same realm.
(function cofferdam(source, name, resultsPath, most, session, typescript) {
  "use strict";
  const real = typeof process === "object" && process.versions && process.versions.v8 !== undefined;
  const load = require;
  const fs = load("fs");
  let records = [];
  let room = 0;
  let value;
  let known = false;
  const tooLarge = new RangeError("too large");

  function add(kind, data, note) {
    const line = JSON.stringify({ kind, data, note }) + "\n";
    const length = real ? Buffer.byteLength(line) : line.length * 3;
    if (length > room || records.length > 64) return;
    room -= length;
    records.push(line);
  }

  function begin() {
    [records, room, value, known] = [[], most, undefined, false];
    const version = real ? process.versions.node : undefined;
    if (version) add("runtime", { version });
  }

  function keep(result) {
    [value, known] = [result, true];
    // The value of a promise is its result, if it settles in time. A rejection is reported as usual.
    if (result instanceof Promise) result.then((settled) => { value = settled; });
  }

  // Stops the serialization of a value that would be too large before it exhausts the memory.
  function bounded() {
    let [parts, characters] = [100000, room / 2];
    return (key, part) => {
      parts -= 1;
      characters -= key.length + (typeof part === "string" ? part.length : 0);
      if (parts < 0 || characters < 0) throw tooLarge;
      return part;
    };
  }

  function show() {
    if (!known || value === undefined) return;
    const data = {};
    let note;
    try {
      const text = real ? load("util").inspect(value, { depth: 4, maxStringLength: 65536, maxArrayLength: 1000 }) : plain(value);
      data["text/plain"] = text.length > 65536 ? `${text.slice(0, 65536)}… (${text.length - 65536} characters more)` : text;
    } catch (error) {
      data["text/plain"] = "<it cannot be shown>";
    }
    try {
      if (typeof value === "object" || typeof value === "number" || typeof value === "boolean") {
        const text = JSON.stringify(value, bounded());
        if (text !== undefined && text.length >= room / 2) throw tooLarge;
        if (text !== undefined) data["application/json"] = text;
      }
    } catch (error) {
      // Not every value can be represented in JSON.
      if (error === tooLarge) note = "application/json: too large";
    }
    add("value", data, note);
  }

  function plain(shown) {
    if (typeof shown === "string") return JSON.stringify(shown);
    if (typeof shown === "function" || typeof shown === "symbol") return String(shown);
    if (typeof shown === "bigint") return `${shown}n`;
    if (typeof shown !== "object" || shown === null || shown instanceof Error) return String(shown);
    const text = JSON.stringify(shown);
    return text === undefined ? String(shown) : text;
  }

  function finish(where) {
    if (!where) return;
    try {
      show();
      fs.writeFileSync(where, records.join(""), { flag: "wx", mode: 0o644 });
    } catch (error) {
      // There are no results besides the output in this case.
    }
  }

  // Removes lines from an error's stack. A filter gets all lines and returns the remaining ones.
  function without(error, filter = (lines) => lines.filter((line) => !line.includes(__filename))) {
    if (error && typeof error === "object" && typeof error.stack === "string") {
      try {
        error.stack = filter(error.stack.split("\n")).join("\n");
      } catch (refused) {
        // Frozen.
      }
    }
    return error;
  }

  // Serves pieces of code in a WebAssembly sandbox, which has no events of input: timers run only during a call.
  function serveInWasm() {
    const { runInThisContext } = load("vm");
    const [decoder, later, write, read, tell] = [new TextDecoder(), setTimeout, fs.writeFileSync, fs.readSync, console.error];
    const leave = process.exit;
    const piece = new Uint8Array(65536);
    let data = new Uint8Array(0);
    let count = 0;

    // The code was called by `script`, and that by `runInThisContext`.
    const own = (lines) => {
      const at = lines.findIndex((line) => line.includes("at runInThisContext "));
      return at < 0 ? lines : lines.slice(0, at - 1);
    };

    // Returns the next bytes up to an end that a search finds in the data. Ends with the input.
    const take = (find) => {
      for (;;) {
        const end = find(data);
        if (end > 0 && end <= data.length) {
          const taken = data.slice(0, end);
          data = data.slice(end);
          return taken;
        }
        const length = read(0, piece);
        if (length === 0) leave(0);
        const joined = new Uint8Array(data.length + length);
        joined.set(data);
        joined.set(piece.subarray(0, length), data.length);
        data = joined;
      }
    };

    const next = () => {
      const length = Number(decoder.decode(take((bytes) => bytes.indexOf(10) + 1)));
      const body = take(() => length);
      const [one, two] = [body.indexOf(0), body.indexOf(0, body.indexOf(0) + 1)];
      const [marker, where] = [decoder.decode(body.subarray(0, one)), decoder.decode(body.subarray(one + 1, two))];
      count += 1;
      let open = true;
      begin();
      const end = (word) => {
        if (!open) return;
        open = false;
        finish(where);
        write(2, `\x1e${marker}\n`);
        write(1, `\x1e${marker} ${word}\n`);
      };
      const failed = (error) => {
        tell("Uncaught", without(error, own));
        end("error 1");
        later(next, 0);
      };
      const served = (result) => {
        keep(result);
        // What the code has already scheduled runs before the end of the call.
        later(() => {
          end("ok 0");
          next();
        }, 0);
      };
      process.exit = (status = process.exitCode ?? 0) => {
        end(`exit ${Number(status) & 255}`);
        leave(status);
      };
      try {
        const done = runInThisContext(decoder.decode(body.subarray(two + 1)), { filename: `call-${count}.js`, awaits: true });
        if (done.promise) done.promise.then(served, failed);
        else served(done.value);
      } catch (error) {
        failed(error);
      }
    };
    next();
  }

  if (!real && session) {
    serveInWasm();
    return;
  }

  if (!real) {
    // Without V8 there is no module `vm`. Code that is not a script is a module, which has no value.
    begin();
    try {
      keep((0, eval)(`${source}\n//# sourceURL=${name}`));
    } finally {
      finish(resultsPath);
    }
    return;
  }

  const path = load("path");
  const vm = load("vm");
  const Module = load("module");
  const file = path.join(__dirname, name);
  // Code imports from its workspace, as if its file were there.
  const shown = path.join(process.cwd(), name);
  const dynamic = vm.constants && vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER;

  // Strips types and preserves every line and column. Returns `null` if this version of Node strips types only from
  // files.
  function strip(text) {
    if (!typescript) return text;
    if (!Module.stripTypeScriptTypes) return null;
    const warn = process.emitWarning;
    process.emitWarning = () => {};
    try {
      return Module.stripTypeScriptTypes(text);
    } catch (error) {
      // A syntax error contains a position only if the text has a name. A name for all texts would shift the line
      // numbers.
      return Module.stripTypeScriptTypes(text, { sourceUrl: shown });
    } finally {
      process.emitWarning = warn;
    }
  }

  // Suppresses the warning of Node that `import()` is experimental here.
  function hush() {
    const warn = process.emitWarning;
    process.emitWarning = (text, ...rest) => String(text).startsWith("vm.USE_MAIN_CONTEXT") ? undefined : warn.call(process, text, ...rest);
  }

  function once() {
    process.argv[1] = file;
    Object.assign(globalThis, { require: Module.createRequire(path.join(process.cwd(), name)), __filename: file, __dirname: process.cwd() });
    globalThis.module = { exports: {}, id: ".", filename: file, loaded: false, children: [], paths: [] };
    globalThis.exports = globalThis.module.exports;
    globalThis.require.main = globalThis.module;
    process.on("exit", () => finish(resultsPath));
    process.on("uncaughtExceptionMonitor", (error) => { without(error); });
    begin();
    hush();
    const text = strip(source);
    let script;
    let first;
    try {
      if (text === null) throw new SyntaxError("not read as a script");
      script = new vm.Script(text, { filename: shown, importModuleDynamically: dynamic });
    } catch (error) {
      first = error;
    }
    if (script) {
      try {
        keep(script.runInThisContext({ displayErrors: true }));
      } catch (error) {
        throw without(error);
      }
      return;
    }
    module_(text === null ? source : text, text === null, first);
  }

  // Runs code with `await`, `return` or `import` at its top level, and code whose types only the module loader strips.
  function module_(text, typed, first) {
    const head = "(async function (require, module, exports, __filename, __dirname) {";
    let body;
    try {
      if (!typed) body = new vm.Script(`${head}\n${text}\n})`, { filename: shown, lineOffset: -1, importModuleDynamically: dynamic });
    } catch (error) {
      body = undefined;
    }
    if (body) {
      body.runInThisContext()(globalThis.require, globalThis.module, globalThis.exports, file, process.cwd()).then(keep);
      return;
    }
    if (!typed && !/\b(import|export|await)\b/.test(text)) throw without(first);
    // Imports are resolved from the file's directory. The displayed name is that of the code.
    const named = `${text}\n//# sourceURL=${shown}`;
    const target = put(process.cwd(), named, typed) || put(load("os").tmpdir(), named, typed);
    const address = (lines) => `data:text/javascript,${encodeURIComponent(lines)}`;
    if (!target && typed) throw new Error("cannot write the file from which Node strips types");
    // Without a file, only modules of Node and `data:` modules can be imported.
    if (!target) return void import(address(named));
    const remove = () => fs.rmSync(target, { force: true });
    process.on("exit", remove);
    // The first module that runs after loading removes the file, so that killed code leaves none.
    const key = `cofferdam ${path.basename(target)}`;
    Object.defineProperty(globalThis, Symbol.for(key), { value: remove, configurable: true });
    const before = address(`globalThis[Symbol.for("${key}")](); delete globalThis[Symbol.for("${key}")];`);
    const lines = [before, load("url").pathToFileURL(target)].map((url) => `import ${JSON.stringify(url)};`);
    import(address(lines.join("\n")));
  }

  function put(base, text, typed) {
    const name = `.cofferdam-${load("crypto").randomBytes(12).toString("hex")}.${typed ? "mts" : "mjs"}`;
    const target = path.join(base, name);
    try {
      fs.writeFileSync(target, text, { flag: "wx" });
      return target;
    } catch (error) {
      // A full disk may create the name without the contents.
      fs.rmSync(target, { force: true });
      return null;
    }
  }

  function serve() {
    const { PassThrough } = load("stream");
    const sink = new PassThrough();
    sink.resume();
    const world = load("repl").start({ prompt: "", input: new PassThrough(), output: sink, terminal: false, useGlobal: true, useColors: false });
    const evaluate = world.eval.bind(world);
    // Errors after the end of a call are printed, and end no process.
    const tell = (error) => { try { console.error("Uncaught", error); } catch (refused) { /* Nothing can be shown. */ } };
    process.on("uncaughtException", tell);
    process.on("unhandledRejection", tell);
    const write = fs.writeSync;
    let current;
    // If Node's REPL catches errors through a domain, it reports them there instead of to the callback.
    if (world._domain) {
      world._domain.removeAllListeners("error");
      world._domain.on("error", (error) => (current ? current(error) : tell(error)));
    }
    const input = process.stdin;
    let data = Buffer.alloc(0);
    let busy = false;
    const say = (fd, text) => {
      for (let rest = Buffer.from(text); rest.length > 0; ) {
        try {
          rest = rest.subarray(write(fd, rest));
        } catch (error) {
          if (error.code !== "EAGAIN") return;
        }
      }
    };
    const next = () => {
      const end = data.indexOf(10);
      if (busy || end < 0) return;
      const length = Number(data.subarray(0, end));
      if (data.length < end + 1 + length) return;
      const body = data.subarray(end + 1, end + 1 + length);
      data = data.subarray(end + 1 + length);
      const [one, two] = [body.indexOf(0), body.indexOf(0, body.indexOf(0) + 1)];
      const [marker, where] = [body.toString("utf8", 0, one), body.toString("utf8", one + 1, two)];
      busy = true;
      begin();
      const done = (error, result) => {
        if (current !== done) return;
        current = undefined;
        let word = "ok 0";
        if (error) {
          word = "error 1";
          const inner = error.err === undefined ? error : error.err;
          tell(inner instanceof Error ? without(inner) : inner);
        } else {
          keep(result);
        }
        setImmediate(() => {
          finish(where);
          say(2, `\x1e${marker}\n`);
          say(1, `\x1e${marker} ${word}\n`);
          busy = false;
          next();
        });
      };
      current = done;
      const exiting = (status) => {
        finish(where);
        say(2, `\x1e${marker}\n`);
        say(1, `\x1e${marker} exit ${status & 255}\n`);
      };
      process.removeAllListeners("exit");
      process.once("exit", (status) => { if (busy) exiting(status); });
      let text;
      try {
        text = strip(body.toString("utf8", two + 1));
        if (text === null) throw new Error("this version of Node cannot strip types; a session in TypeScript needs Node 22.13");
      } catch (error) {
        done(error);
        return;
      }
      evaluate(text + "\n", world.context, name, done);
    };
    input.on("data", (piece) => { data = Buffer.concat([data, piece]); next(); });
    input.on("end", () => { if (!busy) process.exit(0); });
  }

  if (session) serve();
  else once();
})
