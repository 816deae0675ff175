// The runtime of scripts: console, timers, process, files. main.c evaluates this file once, before the script. The
// result is a function that takes the `host` object of main.c and returns the runtime object, whose methods main.c
// calls. This file is no isolation boundary: the script can change all of it. Its errors explain limits and do not
// enforce them.
(function (host) {
  "use strict";
  const g = globalThis;

  // ---- system errors ----------------------------------------------------------------------------------------------
  // The numbers are those of WASI preview 1.
  const codes = {
    2: "EACCES", 8: "EBADF", 20: "EEXIST", 22: "EFBIG", 28: "EINVAL", 29: "EIO", 31: "EISDIR", 32: "ELOOP",
    37: "ENAMETOOLONG", 44: "ENOENT", 48: "ENOMEM", 51: "ENOSPC", 52: "ENOSYS", 54: "ENOTDIR", 55: "ENOTEMPTY",
    58: "ENOTSUP", 63: "EPERM", 19: "EDQUOT", 69: "EROFS", 75: "EXDEV", 76: "ENOTCAPABLE",
  };
  const messages = {
    EACCES: "permission denied", ENOENT: "no such file or directory", EEXIST: "file already exists",
    EISDIR: "illegal operation on a directory", ENOTDIR: "not a directory", ENOTEMPTY: "directory not empty",
    ENOSPC: "no space left", EROFS: "read-only file system", ENOTCAPABLE: "not allowed in this sandbox",
    EPERM: "operation not permitted", EDQUOT: "quota exceeded", EFBIG: "file too large",
  };
  // Throws the system error if the result is a negative errno. Returns the result otherwise.
  function check(result, call, path) {
    if (typeof result !== "number" || result >= 0) return result;
    const code = codes[-result] ?? `errno ${-result}`;
    const error = new Error(
      `${code}: ${messages[code] ?? "the system call failed"}, ${call}${path === undefined ? "" : ` '${path}'`}`);
    throw Object.assign(error, { code, errno: result, syscall: call, path });
  }
  function notAvailable(what) {
    const error = new Error(`${what} is not available: WebAssembly sandboxes have no network, threads or processes`);
    return Object.assign(error, { code: "ERR_NOT_AVAILABLE" });
  }

  // ---- inspection of values ---------------------------------------------------------------------------------------
  const identifier = /^[A-Za-z_$][\w$]*$/;
  const quote = (text) => {
    const mark = !text.includes("'") ? "'" : !text.includes('"') ? '"' : "'";
    const body = JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"');
    return mark
      + (mark === "'" ? body.replaceAll("'", "\\'") : body.replaceAll('"', '\\"').replaceAll('\\\\"', '\\"'))
      + mark;
  };
  function nameOf(value) {
    for (let at = value; at; at = Object.getPrototypeOf(at)) {
      const own = Object.getOwnPropertyDescriptor(at, "constructor")?.value;
      if (typeof own === "function" && own.name) return own.name;
    }
    return null;
  }
  const tagOf = (value) => Object.prototype.toString.call(value).slice(8, -1);
  function inspect(value, depth = 2, seen = []) {
    switch (typeof value) {
      case "string": return quote(value);
      case "bigint": return `${value}n`;
      case "symbol": return value.toString();
      case "number": return Object.is(value, -0) ? "-0" : String(value);
      case "function": return inspectFunction(value, depth, seen);
      case "object": return value === null ? "null" : inspectObject(value, depth, seen);
      default: return String(value);
    }
  }
  function inspectFunction(value, depth, seen) {
    const source = Function.prototype.toString.call(value);
    const head = source.startsWith("class") ? `[class ${value.name || "(anonymous)"}]`
      : `[${tagOf(value)}${value.name ? `: ${value.name}` : " (anonymous)"}]`;
    const own = Object.keys(value);
    return own.length ? `${head} ${layout("{", "}", inspectFields(value, own, depth, seen))}` : head;
  }
  function formatError(error) {
    let head;
    try { head = String(error); } catch { head = "[error]"; }
    const stack = typeof error.stack === "string" && error.stack.trim() ? `\n${error.stack.trimEnd()}` : "";
    return head + stack;
  }
  function inspectFields(value, keys, depth, seen) {
    return keys.map((key) => {
      const entry = Object.getOwnPropertyDescriptor(value, key);
      const shown = entry && entry.get ? (entry.set ? "[Getter/Setter]" : "[Getter]")
        : entry && entry.set ? "[Setter]" : inspect(value[key], depth - 1, seen);
      const name = typeof key === "symbol" ? `[${key.toString()}]` : identifier.test(key) ? key : quote(key);
      return `${name}: ${shown}`;
    });
  }
  function layout(open, close, items) {
    if (items.length === 0) return open + close;
    const width = items.reduce((sum, item) => sum + item.length + 2, open.length + close.length);
    if (width <= 76 && !items.some((item) => item.includes("\n"))) {
      return `${open} ${items.join(", ")} ${close}`;
    }
    return `${open}\n${items.map((item) => "  " + item.replaceAll("\n", "\n  ")).join(",\n")}\n${close}`;
  }
  function inspectObject(value, depth, seen) {
    if (seen.includes(value)) return "[Circular *1]";
    const tag = tagOf(value);
    const name = nameOf(value);
    const keys = [
      ...Object.keys(value),
      ...Object.getOwnPropertySymbols(value).filter((key) => Object.prototype.propertyIsEnumerable.call(value, key)),
    ];
    if (value instanceof Error) {
      const own = keys.filter((key) => key !== "stack" && key !== "message" && key !== "cause");
      const cause = Object.hasOwn(value, "cause") && depth >= 0
        ? `\n  [cause]: ${inspect(value.cause, depth - 1, [...seen, value])}` : "";
      const shown = formatError(value) + cause;
      return own.length && depth >= 0
        ? `${shown} ${layout("{", "}", inspectFields(value, own, depth, [...seen, value]))}` : shown;
    }
    if (tag === "Date") return Number.isNaN(value.getTime()) ? "Invalid Date" : value.toISOString();
    if (tag === "RegExp") return String(value);
    if (tag === "Number" || tag === "Boolean" || tag === "String" || tag === "BigInt") {
      if (value instanceof g[tag]) return `[${tag}: ${inspect(value.valueOf())}]`;
    }
    if (depth < 0) return Array.isArray(value) ? "[Array]" : `[${name ?? "Object: null prototype"}]`;
    const inner = [...seen, value];
    if (Array.isArray(value)) {
      const items = [];
      for (let at = 0, holes = 0; at <= Math.min(value.length, 100); at++) {
        if (at < value.length && at < 100 && !(at in value)) { holes++; continue; }
        if (holes) { items.push(`<${holes} empty item${holes > 1 ? "s" : ""}>`); holes = 0; }
        if (at < value.length && at < 100) items.push(inspect(value[at], depth - 1, inner));
      }
      if (value.length > 100) items.push(`... ${value.length - 100} more items`);
      items.push(...inspectFields(value, keys.filter((key) => !/^\d+$/.test(String(key))), depth, inner));
      return layout(name === "Array" ? "[" : `${name}(${value.length}) [`, "]", items);
    }
    if (ArrayBuffer.isView(value) && tag !== "DataView") {
      const items = Array.from(value.subarray(0, 100), (item) => inspect(item));
      if (value.length > 100) items.push(`... ${value.length - 100} more items`);
      return layout(`${name}(${value.length}) [`, "]", items);
    }
    if (value instanceof Map) {
      const items = Array.from(value, ([key, item]) =>
        `${inspect(key, depth - 1, inner)} => ${inspect(item, depth - 1, inner)}`);
      return layout(`${name}(${value.size}) {`, "}", [...items, ...inspectFields(value, keys, depth, inner)]);
    }
    if (value instanceof Set) {
      return layout(`${name}(${value.size}) {`, "}", [
        ...Array.from(value, (item) => inspect(item, depth - 1, inner)),
        ...inspectFields(value, keys, depth, inner),
      ]);
    }
    const state = value instanceof Promise ? host.promiseState(value) : -1;
    const extra = state === 0 ? ["<pending>"] : state === 2 ? ["<rejected>"] : [];
    const label = name === null ? "[Object: null prototype] "
      : name !== "Object" ? `${name} ` : tag !== "Object" ? `Object [${tag}] ` : "";
    return layout(`${label}{`, "}", [...extra, ...inspectFields(value, keys, depth, inner)]);
  }
  function format(values) {
    let rest = values;
    let text = "";
    if (typeof values[0] === "string" && values.length > 1) {
      let at = 1;
      text = values[0].replace(/%[sdifjoOc%]/g, (directive) => {
        if (directive === "%%") return "%";
        if (at >= values.length) return directive;
        const value = values[at++];
        switch (directive) {
          case "%s":
            return typeof value === "string" ? value
              : typeof value === "object" && value !== null ? inspect(value, 0)
                : typeof value === "bigint" ? `${value}n` : String(value);
          case "%d":
            return typeof value === "bigint" ? `${value}n`
              : typeof value === "object" ? "NaN" : String(Number(value));
          case "%i": return String(Number.parseInt(value, 10));
          case "%f": return String(Number.parseFloat(value));
          case "%j": try { return JSON.stringify(value); } catch { return "[Circular]"; }
          case "%c": return "";
          default: return inspect(value, 4);
        }
      });
      rest = values.slice(at);
      if (rest.length) text += " ";
    }
    return text + rest.map((value) => (typeof value === "string" ? value : inspect(value))).join(" ");
  }

  // ---- console ----------------------------------------------------------------------------------------------------
  let indentation = "";
  const counts = new Map();
  const startTimes = new Map();
  const writeLine = (fd, values) => {
    const text = format(values);
    host.write(fd, (indentation ? indentation + text.replaceAll("\n", "\n" + indentation) : text) + "\n");
  };
  const log = (...values) => writeLine(1, values);
  const error = (...values) => writeLine(2, values);
  const elapsed = (label) => `${label}: ${(performance.now() - (startTimes.get(label) ?? NaN)).toFixed(3)}ms`;
  function table(data) {
    if (typeof data !== "object" || data === null) return log(data);
    const rows = Array.isArray(data) ? data.map((row, at) => [String(at), row]) : Object.entries(data);
    const columns = [];
    for (const [, row] of rows) {
      const names = typeof row === "object" && row !== null ? Object.keys(row) : ["Values"];
      for (const name of names) if (!columns.includes(name)) columns.push(name);
    }
    const cells = [
      ["(index)", ...columns],
      ...rows.map(([index, row]) => [index, ...columns.map((name) =>
        typeof row === "object" && row !== null ? (Object.hasOwn(row, name) ? inspect(row[name], 0) : "")
          : name === "Values" ? inspect(row, 0) : "")]),
    ];
    const widths = cells[0].map((_, at) => Math.max(...cells.map((row) => row[at].length)) + 2);
    const bar = (left, middle, right) => left + widths.map((width) => "─".repeat(width)).join(middle) + right;
    const show = (row) => `│${row.map((cell, at) => ` ${cell}`.padEnd(widths[at])).join("│")}│`;
    log([
      bar("┌", "┬", "┐"), show(cells[0]), bar("├", "┼", "┤"), ...cells.slice(1).map(show), bar("└", "┴", "┘"),
    ].join("\n"));
  }
  g.console = {
    log, info: log, debug: log, error, warn: error, table,
    dir: (value, options) => writeLine(1, [inspect(value, options?.depth === null ? 1e3 : options?.depth ?? 2)]),
    trace: (...values) => writeLine(2, ["Trace:", ...values, "\n" + new Error().stack]),
    assert: (truth, ...values) => {
      if (!truth) writeLine(2, values.length ? ["Assertion failed:", ...values] : ["Assertion failed"]);
    },
    group: (...values) => { if (values.length) log(...values); indentation += "  "; },
    groupEnd: () => { indentation = indentation.slice(2); },
    count: (label = "default") => {
      counts.set(label, (counts.get(label) ?? 0) + 1);
      log(`${label}: ${counts.get(label)}`);
    },
    countReset: (label = "default") => { counts.delete(label); },
    time: (label = "default") => { startTimes.set(label, performance.now()); },
    timeLog: (label = "default", ...values) => log(elapsed(label), ...values),
    timeEnd: (label = "default") => { log(elapsed(label)); startTimes.delete(label); },
  };
  g.console.groupCollapsed = g.console.group;
  g.print = (...values) => { host.write(1, values.map(String).join(" ") + "\n"); };

  // ---- timers -----------------------------------------------------------------------------------------------------
  // A binary heap by due time. A cleared timer stays in the heap until it reaches the top or the heap is rebuilt.
  const timers = new Map();
  let heap = [];
  let lastTimer = 0;
  const now = () => performance.now();
  const isBefore = (one, other) => one.due < other.due || (one.due === other.due && one.id < other.id);
  function push(timer) {
    let index = heap.push(timer) - 1;
    for (let parent; index > 0 && isBefore(timer, heap[(parent = (index - 1) >> 1)]); index = parent)
      heap[index] = heap[parent];
    heap[index] = timer;
  }
  function pop() {
    const last = heap.pop();
    if (heap.length === 0) return;
    let index = 0;
    for (let child; (child = 2 * index + 1) < heap.length; index = child) {
      if (child + 1 < heap.length && isBefore(heap[child + 1], heap[child])) child++;
      if (!isBefore(heap[child], last)) break;
      heap[index] = heap[child];
    }
    heap[index] = last;
  }
  function setTimer(callback, wait, values, repeats) {
    if (typeof callback !== "function") throw new TypeError("the callback of a timer must be a function");
    const delay = Math.max(1, Number(wait) || 0);
    const timer = { id: ++lastTimer, due: now() + delay, callback, values, interval: repeats ? delay : 0 };
    timers.set(timer.id, timer);
    push(timer);
    return timer.id;
  }
  const isActive = (timer) => timers.has(timer.id);
  function clearTimer(id) {
    if (!timers.delete(id) || heap.length <= 2 * timers.size + 64) return;
    const active = heap.filter(isActive);
    heap = [];
    active.forEach(push);
  }
  function earliest() {
    while (heap.length && !isActive(heap[0])) pop();
    return heap[0];
  }
  g.setTimeout = (callback, wait, ...values) => setTimer(callback, wait, values, false);
  g.setInterval = (callback, wait, ...values) => setTimer(callback, wait, values, true);
  g.setImmediate = (callback, ...values) => setTimer(callback, 0, values, false);
  g.clearTimeout = g.clearInterval = g.clearImmediate = clearTimer;

  // ---- text and random numbers ------------------------------------------------------------------------------------
  const view = (data) => (data instanceof Uint8Array ? data
    : ArrayBuffer.isView(data) ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : new Uint8Array(data));
  g.TextEncoder = class TextEncoder {
    get encoding() { return "utf-8"; }
    encode(text = "") { return host.encode(String(text)); }
  };
  g.TextDecoder = class TextDecoder {
    constructor(label = "utf-8") {
      if (!/^utf-?8$/i.test(label)) throw new RangeError(`encoding '${label}' is not supported; use utf-8`);
    }
    get encoding() { return "utf-8"; }
    decode(data) { return data === undefined ? "" : host.decode(view(data)); }
  };
  const hex = (byte) => byte.toString(16).padStart(2, "0");
  g.crypto = {
    getRandomValues: (array) => { check(host.random(view(array)), "random"); return array; },
    randomUUID: () => {
      const bytes = g.crypto.getRandomValues(new Uint8Array(16));
      bytes[6] = (bytes[6] & 15) | 64;
      bytes[8] = (bytes[8] & 63) | 128;
      return Array.from(bytes, hex).join("").replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
    },
  };
  g.fetch = () => Promise.reject(notAvailable("fetch"));
  for (const name of ["WebSocket", "XMLHttpRequest", "Worker"])
    g[name] = class { constructor() { throw notAvailable(name); } };

  const parse = JSON.parse;
  JSON.parse = function (text, reviver) {
    const json = `${text}`;
    if (json.length > 1000 && host.nestingDepth(json) > 1000)
      throw new RangeError("Maximum call stack size exceeded: JSON is nested deeper than 1000");
    return parse(json, reviver);
  };
  Object.defineProperty(JSON.parse, "name", { value: "parse" });

  // ---- files ------------------------------------------------------------------------------------------------------
  const toPath = (path) => (typeof path === "number" ? path : String(path?.pathname ?? path));
  const encodingOf = (options) => (typeof options === "string" ? options : options?.encoding);
  const decode = (data, encoding) => {
    if (!encoding || encoding === "buffer") return data;
    if (!/^utf-?8$/i.test(encoding)) throw new TypeError(`encoding '${encoding}' is not supported; use utf8`);
    return host.decode(data);
  };
  const toBytes = (data) => (typeof data === "string" ? data : view(data));
  const statOf = (path) => {
    const [kind, size, mtimeMs] = check(host.stat(toPath(path)), "stat", path);
    return {
      size, mtimeMs, mtime: new Date(mtimeMs),
      isFile: () => kind === 0, isDirectory: () => kind === 1, isSymbolicLink: () => false,
    };
  };
  const exists = (path) => Array.isArray(host.stat(toPath(path)));
  const fs = {
    readFileSync: (path, options) =>
      decode(check(host.read(path === "/dev/stdin" ? 0 : toPath(path)), "open", path), encodingOf(options)),
    readSync: (fd, buffer, offset = 0, length = buffer.byteLength - offset) =>
      check(host.readSome(fd, view(buffer).subarray(offset, offset + length)), "read"),
    writeFileSync: (path, data) => {
      typeof path === "number" ? check(host.write(path, toBytes(data)), "write")
        : check(host.writeFile(toPath(path), toBytes(data), false), "open", path);
    },
    appendFileSync: (path, data) => { check(host.writeFile(toPath(path), toBytes(data), true), "open", path); },
    existsSync: exists,
    statSync: statOf,
    lstatSync: statOf,
    readdirSync: (path, options) => {
      const names = check(host.list(toPath(path)), "scandir", path).sort();
      return options?.withFileTypes
        ? names.map((name) => Object.assign(statOf(`${toPath(path)}/${name}`), { name })) : names;
    },
    mkdirSync: (path, options) => {
      if (!options?.recursive) return void check(host.mkdir(toPath(path)), "mkdir", path);
      const parts = toPath(path).split("/");
      for (let end = 1; end <= parts.length; end++) {
        const part = parts.slice(0, end).join("/");
        if (part && part !== "." && !exists(part)) check(host.mkdir(part), "mkdir", part);
      }
    },
    unlinkSync: (path) => { check(host.unlink(toPath(path)), "unlink", path); },
    rmdirSync: (path) => { check(host.rmdir(toPath(path)), "rmdir", path); },
    rmSync: (path, options) => {
      if (!exists(path)) { if (options?.force) return; check(host.unlink(toPath(path)), "rm", path); }
      if (!statOf(path).isDirectory()) return void check(host.unlink(toPath(path)), "rm", path);
      if (!options?.recursive)
        throw Object.assign(new Error(`EISDIR: is a directory, rm '${path}'`), { code: "EISDIR" });
      for (const name of fs.readdirSync(path)) fs.rmSync(`${toPath(path)}/${name}`, options);
      check(host.rmdir(toPath(path)), "rmdir", path);
    },
    renameSync: (from, to) => { check(host.rename(toPath(from), toPath(to)), "rename", from); },
    copyFileSync: (from, to) => { fs.writeFileSync(to, fs.readFileSync(from)); },
  };
  fs.promises = Object.fromEntries(Object.entries(fs)
    .filter(([name]) => name.endsWith("Sync"))
    .map(([name, call]) => [name.slice(0, -4), async (...values) => call(...values)]));

  // ---- paths and process ------------------------------------------------------------------------------------------
  const normalize = (path) => {
    const parts = [];
    for (const part of path.split("/")) {
      if (part === "..") {
        if (parts.length && parts.at(-1) !== "..") parts.pop();
        else if (!path.startsWith("/")) parts.push(part);
      } else if (part && part !== ".") parts.push(part);
    }
    return (path.startsWith("/") ? "/" : "") + parts.join("/") || ".";
  };
  const path = {
    sep: "/", delimiter: ":", normalize,
    join: (...parts) => normalize(parts.filter(Boolean).join("/")),
    resolve: (...parts) => {
      let all = "";
      for (const part of parts) all = part.startsWith("/") ? part : all ? `${all}/${part}` : part;
      return normalize(all.startsWith("/") ? all : `${process.cwd()}/${all}`);
    },
    isAbsolute: (name) => name.startsWith("/"),
    dirname: (name) => {
      const end = name.replace(/\/+$/, "").lastIndexOf("/");
      return end < 0 ? "." : end === 0 ? "/" : name.slice(0, end);
    },
    basename: (name, suffix = "") => {
      const last = name.replace(/\/+$/, "").split("/").at(-1);
      return suffix && last !== suffix && last.endsWith(suffix) ? last.slice(0, -suffix.length) : last;
    },
    extname: (name) => {
      const last = path.basename(name);
      const dot = last.lastIndexOf(".");
      return dot > 0 ? last.slice(dot) : "";
    },
  };
  path.posix = path;
  const parseVariables = (lines) => Object.fromEntries(
    lines.map((line) => [line.slice(0, line.indexOf("=")), line.slice(line.indexOf("=") + 1)]));
  const env = parseVariables(host.environ);
  let directory;
  const inline = host.argv[1] === "-e";
  const process = {
    argv: [host.argv[0], ...host.argv.slice(inline ? 3 : 1)],
    env, platform: "wasi", arch: "wasm32", pid: 1, exitCode: undefined,
    version: "", versions: {}, cwd: () => directory ?? (env.PWD || "/"),
    exit: (status = process.exitCode ?? 0) => host.exit(Number(status)),
    stdout: { isTTY: false, write: (data) => { check(host.write(1, toBytes(data)), "write"); return true; } },
    stderr: { isTTY: false, write: (data) => { check(host.write(2, toBytes(data)), "write"); return true; } },
    hrtime: Object.assign(
      () => { const time = now(); return [Math.floor(time / 1e3), Math.floor((time % 1e3) * 1e6)]; },
      { bigint: () => BigInt(Math.floor(now() * 1e6)) },
    ),
    nextTick: (call, ...values) => queueMicrotask(() => call(...values)),
    uptime: () => now() / 1e3, on: () => process, once: () => process, off: () => process,
    emitWarning: (text) => error(`Warning: ${text}`),
  };
  process.stdin = {
    isTTY: false, fd: 0, setEncoding: () => process.stdin,
    [Symbol.asyncIterator]: async function* () { const all = fs.readFileSync(0, "utf8"); if (all) yield all; },
    on: (event, call) => { // Passes the whole input in one event.
      if (event === "data") setTimeout(() => { const all = fs.readFileSync(0, "utf8"); if (all) call(all); }, 0);
      if (event === "end" || event === "close") setTimeout(call, 2);
      return process.stdin;
    },
  };
  g.process = process;
  g.global = g;
  g.scriptArgs = process.argv.slice(1);

  // ---- modules ----------------------------------------------------------------------------------------------------
  const builtins = {
    fs, path, process, "fs/promises": fs.promises,
    os: { EOL: "\n", platform: () => "wasi", tmpdir: () => "/tmp", cpus: () => [], homedir: () => "/" },
    util: {
      inspect: (value, options) => inspect(value, options?.depth === null ? 1e3 : options?.depth ?? 2),
      format: (...values) => format(values),
      promisify: (call) => (...values) => new Promise((resolve, reject) =>
        call(...values, (error, value) => (error ? reject(error) : resolve(value)))),
      isDeepStrictEqual: (a, b) => inspect(a, 1e3) === inspect(b, 1e3), types: {},
    },
    timers: {
      setTimeout: g.setTimeout, setInterval: g.setInterval, setImmediate: g.setImmediate,
      clearTimeout: clearTimer, clearInterval: clearTimer,
    },
    "timers/promises": { setTimeout: (wait, value) => new Promise((resolve) => g.setTimeout(resolve, wait, value)) },
    // With `awaits`, code may use `await` outside of functions. Its value is then `{ promise }`.
    vm: { runInThisContext(code, options) {
      const name = (typeof options === "string" ? options : options?.filename) ?? "evalmachine.<anonymous>";
      if (!options?.awaits) return host.script(String(code), name);
      const [value, awaits] = host.script(String(code), name, true);
      return awaits ? { promise: value.then((result) => result.value) } : { value };
    } },
    perf_hooks: { performance }, crypto: { ...g.crypto, webcrypto: g.crypto },
  };
  builtins.assert = (() => {
    const fail = (message, fallback) => {
      throw message instanceof Error ? message
        : Object.assign(new Error(message ?? fallback), { name: "AssertionError", code: "ERR_ASSERTION" });
    };
    const assert = (value, message) => { if (!value) fail(message, `${inspect(value)} is not truthy`); };
    const same = (a, b, message) => { if (!Object.is(a, b)) fail(message, `${inspect(a)} !== ${inspect(b)}`); };
    const deep = (a, b, message) => {
      if (!builtins.util.isDeepStrictEqual(a, b)) fail(message, `${inspect(a)} is not deeply equal to ${inspect(b)}`);
    };
    return Object.assign(assert, {
      ok: assert, equal: same, strictEqual: same, deepEqual: deep, deepStrictEqual: deep,
      notStrictEqual: (a, b, message) => { if (Object.is(a, b)) fail(message, `${inspect(a)} === ${inspect(b)}`); },
      throws: (call, message) => {
        try { call(); } catch { return; }
        fail(typeof message === "string" ? message : undefined, "no exception was thrown");
      },
      fail: (message) => fail(message, "failed"),
    });
  })();
  builtins["assert/strict"] = builtins.assert;
  const unsupported =
    /^(net|dgram|http|https|http2|tls|dns|child_process|cluster|worker_threads|inspector|repl|v8)(\/|$)/;
  const withoutScheme = (name) => (name.startsWith("node:") ? name.slice(5) : name);
  function moduleNotFound(name) {
    if (unsupported.test(withoutScheme(name))) return notAvailable(`module '${name}'`);
    const error = new Error(`Cannot find module '${name}'; import a file by a path that begins with ./ or /, `
      + `or a built-in module: ${Object.keys(builtins).sort().join(", ")}`);
    return Object.assign(error, { code: "MODULE_NOT_FOUND" });
  }
  const loaded = new Map();
  let script = "";
  // Defines `__filename` and `__dirname` as getters, because most scripts do not use them.
  for (const [name, get] of [
    ["__filename", () => path.resolve(script)], ["__dirname", () => path.dirname(path.resolve(script))],
  ]) {
    const set = (value) => Object.defineProperty(g, name, { value, writable: true, configurable: true });
    Object.defineProperty(g, name, { get, set, configurable: true });
  }
  function setScript(name) {
    script = name;
    g.module = { exports: {} };
    g.exports = g.module.exports;
    g.require = requireFrom(name);
  }
  function requireFrom(base) {
    const require = (name) => {
      if (Object.hasOwn(builtins, withoutScheme(name))) return builtins[withoutScheme(name)];
      if (!/^\.{0,2}\//.test(name)) throw moduleNotFound(name);
      const wanted = name.startsWith("/") ? normalize(name) : path.join(path.dirname(base), name);
      const file = [wanted, `${wanted}.js`, `${wanted}.json`, `${wanted}/index.js`]
        .find((candidate) => exists(candidate) && statOf(candidate).isFile());
      if (!file) throw moduleNotFound(name);
      if (loaded.has(file)) return loaded.get(file).exports;
      const source = fs.readFileSync(file, "utf8");
      const module = { exports: {}, filename: file };
      loaded.set(file, module);
      if (file.endsWith(".json")) return (module.exports = JSON.parse(source));
      host.script(`(function (exports, require, module, __filename, __dirname) {${source}\n})`, file)
        .call(module.exports, module.exports, requireFrom(file), module, file, path.dirname(file));
      return module.exports;
    };
    require.main = g.module;
    return require;
  }
  Object.defineProperty(g, Symbol.for("cofferdam.builtin"), { value: (name) => builtins[name] });

  // ---- methods that main.c calls ----------------------------------------------------------------------------------
  const unhandled = new Map();
  const printError = (error, prefix) => host.write(2, `${prefix}${inspect(error)}\n`);
  const runtime = {
    name: inline ? "[eval]" : host.argv[1] ?? "",
    // Returns the source text of the command line.
    main() {
      if (host.argv.length < 2 || (inline && host.argv.length < 3)) {
        host.write(2, "JavaScript: nothing to run; give a file, or -e and code\n");
        host.exit(2);
      }
      const file = host.argv[1];
      setScript(inline || file === "-" ? `${process.cwd()}/x` : file);
      if (inline) return host.argv[2];
      try {
        return fs.readFileSync(file === "-" ? 0 : file, "utf8").replace(/^\uFEFF/, "");
      } catch (error) {
        host.write(2, `JavaScript: cannot read the script: ${error.message}\n`);
        host.exit(2);
      }
    },
    // Returns the source text of an imported module.
    moduleSource(name) {
      const known = withoutScheme(name);
      if (Object.hasOwn(builtins, known)) {
        const names = Object.keys(builtins[known]).filter((key) => identifier.test(key) && key !== "default");
        return `const m = globalThis[Symbol.for("cofferdam.builtin")](${JSON.stringify(known)});\nexport default m;\n`
          + names.map((key, index) =>
            `const e${index} = m[${JSON.stringify(key)}];\nexport { e${index} as ${key} };\n`).join("");
      }
      if (!name.includes("/") && !exists(name)) throw moduleNotFound(name);
      const found = fs.readFileSync(name, "utf8");
      return name.endsWith(".json") ? `export default ${JSON.stringify(JSON.parse(found))};` : found;
    },
    trackRejection(promise, reason, handled) {
      if (handled) unhandled.delete(promise); else unhandled.set(promise, reason);
    },
    // Prints the first unhandled rejection. Returns whether there was one.
    reportRejection() {
      if (unhandled.size === 0) return false;
      const [reason] = unhandled.values();
      unhandled.clear();
      printError(reason, "Uncaught ");
      return true;
    },
    clearTimers() { timers.clear(); heap = []; },
    // ---- for requests, in requests.h
    setArguments(values) {
      process.argv = [host.argv[0], ...values];
      g.scriptArgs = values;
      process.exitCode = undefined;
      setScript(values[0] ?? "");
    },
    setEnvironment(lines) { process.env = parseVariables(lines); },
    setDirectory(name) { directory = name; },
    // ---- for the event loop
    printUncaught(error) { printError(error, "Uncaught "); },
    // Returns the milliseconds until the next timer, or -1 without one.
    nextTimeout() { const first = earliest(); return first ? Math.max(0, first.due - now()) : -1; },
    runTimer() {
      const timer = earliest();
      if (!timer) return;
      pop();
      if (timer.interval) { timer.due = now() + timer.interval; push(timer); } else timers.delete(timer.id);
      timer.callback(...timer.values);
    },
    exitStatus(result, isModule) {
      if (process.exitCode !== undefined) return Number(process.exitCode);
      if (isModule && host.promiseState(result) === 0) {
        host.write(2, "Warning: a top-level await did not settle\n");
        return 13;
      }
      return 0;
    },
  };
  return runtime;
});
