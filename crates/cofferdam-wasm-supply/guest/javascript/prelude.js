// The world of a script: console, timers, process, files. Evaluated once, before the script; gives a function that
// main.c calls with its `host`, and that returns what main.c asks for later. Nothing here trusts anything: it runs on
// the script's side of the wall, and what it refuses it refuses to be understood, not to be safe.
(function (host) {
  "use strict";
  const g = globalThis;

  // ---- errors of the system -------------------------------------------------------------------------------------
  // The numbers are those of WASI preview 1.
  const codes = {
    2: "EACCES", 8: "EBADF", 20: "EEXIST", 22: "EFBIG", 28: "EINVAL", 29: "EIO", 31: "EISDIR", 32: "ELOOP",
    37: "ENAMETOOLONG", 44: "ENOENT", 48: "ENOMEM", 51: "ENOSPC", 52: "ENOSYS", 54: "ENOTDIR", 55: "ENOTEMPTY",
    58: "ENOTSUP", 63: "EPERM", 19: "EDQUOT", 69: "EROFS", 75: "EXDEV", 76: "ENOTCAPABLE",
  };
  const words = {
    EACCES: "permission denied", ENOENT: "no such file or directory", EEXIST: "file already exists",
    EISDIR: "illegal operation on a directory", ENOTDIR: "not a directory", ENOTEMPTY: "directory not empty",
    ENOSPC: "no space left", EROFS: "read-only file system", ENOTCAPABLE: "not allowed in this sandbox",
    EPERM: "operation not permitted", EDQUOT: "quota exceeded", EFBIG: "file too large",
  };
  function check(result, call, path) {
    if (typeof result !== "number" || result >= 0) return result;
    const code = codes[-result] ?? `errno ${-result}`;
    const error = new Error(`${code}: ${words[code] ?? "the host refused"}, ${call}${path === undefined ? "" : ` '${path}'`}`);
    throw Object.assign(error, { code, errno: result, syscall: call, path });
  }
  function absent(what) {
    const error = new Error(`${what} is not available: WebAssembly sandboxes have no network, threads or processes`);
    return Object.assign(error, { code: "ERR_NOT_AVAILABLE" });
  }

  // ---- how values are shown ---------------------------------------------------------------------------------------
  const identifier = /^[A-Za-z_$][\w$]*$/;
  const quote = (text) => {
    const mark = !text.includes("'") ? "'" : !text.includes('"') ? '"' : "'";
    const body = JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"');
    return mark + (mark === "'" ? body.replaceAll("'", "\\'") : body.replaceAll('"', '\\"').replaceAll('\\\\"', '\\"')) + mark;
  };
  function nameOf(value) {
    for (let at = value; at; at = Object.getPrototypeOf(at)) {
      const own = Object.getOwnPropertyDescriptor(at, "constructor")?.value;
      if (typeof own === "function" && own.name) return own.name;
    }
    return null;
  }
  const kind = (value) => Object.prototype.toString.call(value).slice(8, -1);
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
    const what = source.startsWith("class") ? `[class ${value.name || "(anonymous)"}]`
      : `[${kind(value)}${value.name ? `: ${value.name}` : " (anonymous)"}]`;
    const own = Object.keys(value);
    return own.length ? `${what} ${layout("{", "}", fields(value, own, depth, seen))}` : what;
  }
  function showError(error) {
    let head;
    try { head = String(error); } catch { head = "[error]"; }
    const stack = typeof error.stack === "string" && error.stack.trim() ? `\n${error.stack.trimEnd()}` : "";
    return head + stack;
  }
  function fields(value, keys, depth, seen) {
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
      return open === "[" || open.endsWith(" [") ? `${open} ${items.join(", ")} ${close}` : `${open} ${items.join(", ")} ${close}`;
    }
    return `${open}\n${items.map((item) => "  " + item.replaceAll("\n", "\n  ")).join(",\n")}\n${close}`;
  }
  function inspectObject(value, depth, seen) {
    if (seen.includes(value)) return "[Circular *1]";
    const tag = kind(value);
    const name = nameOf(value);
    const keys = [...Object.keys(value), ...Object.getOwnPropertySymbols(value).filter((key) => Object.prototype.propertyIsEnumerable.call(value, key))];
    if (value instanceof Error) {
      const own = keys.filter((key) => key !== "stack" && key !== "message" && key !== "cause");
      const cause = Object.hasOwn(value, "cause") && depth >= 0 ? `\n  [cause]: ${inspect(value.cause, depth - 1, [...seen, value])}` : "";
      const shown = showError(value) + cause;
      return own.length && depth >= 0 ? `${shown} ${layout("{", "}", fields(value, own, depth, [...seen, value]))}` : shown;
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
      items.push(...fields(value, keys.filter((key) => !/^\d+$/.test(String(key))), depth, inner));
      return layout(name === "Array" ? "[" : `${name}(${value.length}) [`, "]", items);
    }
    if (ArrayBuffer.isView(value) && tag !== "DataView") {
      const items = Array.from(value.subarray(0, 100), (item) => inspect(item));
      if (value.length > 100) items.push(`... ${value.length - 100} more items`);
      return layout(`${name}(${value.length}) [`, "]", items);
    }
    if (value instanceof Map) {
      const items = Array.from(value, ([key, item]) => `${inspect(key, depth - 1, inner)} => ${inspect(item, depth - 1, inner)}`);
      return layout(`${name}(${value.size}) {`, "}", [...items, ...fields(value, keys, depth, inner)]);
    }
    if (value instanceof Set) {
      return layout(`${name}(${value.size}) {`, "}", [...Array.from(value, (item) => inspect(item, depth - 1, inner)), ...fields(value, keys, depth, inner)]);
    }
    const state = value instanceof Promise ? host.state(value) : -1;
    const extra = state === 0 ? ["<pending>"] : state === 2 ? ["<rejected>"] : [];
    const label = name === null ? "[Object: null prototype] " : name !== "Object" ? `${name} ` : tag !== "Object" ? `Object [${tag}] ` : "";
    return layout(`${label}{`, "}", [...extra, ...fields(value, keys, depth, inner)]);
  }
  function format(values) {
    let rest = values;
    let text = "";
    if (typeof values[0] === "string" && values.length > 1) {
      let at = 1;
      text = values[0].replace(/%[sdifjoOc%]/g, (mark) => {
        if (mark === "%%") return "%";
        if (at >= values.length) return mark;
        const value = values[at++];
        switch (mark) {
          case "%s": return typeof value === "string" ? value : typeof value === "object" && value !== null ? inspect(value, 0) : typeof value === "bigint" ? `${value}n` : String(value);
          case "%d": return typeof value === "bigint" ? `${value}n` : typeof value === "object" ? "NaN" : String(Number(value));
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
  let margin = "";
  const counts = new Map();
  const clocks = new Map();
  const say = (fd, values) => {
    const text = format(values);
    host.write(fd, (margin ? margin + text.replaceAll("\n", "\n" + margin) : text) + "\n");
  };
  const log = (...values) => say(1, values);
  const complain = (...values) => say(2, values);
  const elapsed = (label) => `${label}: ${(performance.now() - (clocks.get(label) ?? NaN)).toFixed(3)}ms`;
  function table(data) {
    if (typeof data !== "object" || data === null) return log(data);
    const rows = Array.isArray(data) ? data.map((row, at) => [String(at), row]) : Object.entries(data);
    const columns = [];
    for (const [, row] of rows) {
      const names = typeof row === "object" && row !== null ? Object.keys(row) : ["Values"];
      for (const name of names) if (!columns.includes(name)) columns.push(name);
    }
    const cells = [["(index)", ...columns], ...rows.map(([index, row]) => [index, ...columns.map((name) =>
      typeof row === "object" && row !== null ? (Object.hasOwn(row, name) ? inspect(row[name], 0) : "") : name === "Values" ? inspect(row, 0) : "")])];
    const widths = cells[0].map((_, at) => Math.max(...cells.map((row) => row[at].length)) + 2);
    const bar = (left, middle, right) => left + widths.map((width) => "─".repeat(width)).join(middle) + right;
    const show = (row) => `│${row.map((cell, at) => ` ${cell}`.padEnd(widths[at])).join("│")}│`;
    log([bar("┌", "┬", "┐"), show(cells[0]), bar("├", "┼", "┤"), ...cells.slice(1).map(show), bar("└", "┴", "┘")].join("\n"));
  }
  g.console = {
    log, info: log, debug: log, error: complain, warn: complain, table,
    dir: (value, options) => say(1, [inspect(value, options?.depth === null ? 1e3 : options?.depth ?? 2)]),
    trace: (...values) => say(2, ["Trace:", ...values, "\n" + new Error().stack]),
    assert: (truth, ...values) => { if (!truth) say(2, values.length ? ["Assertion failed:", ...values] : ["Assertion failed"]); },
    group: (...values) => { if (values.length) log(...values); margin += "  "; },
    groupEnd: () => { margin = margin.slice(2); },
    count: (label = "default") => { counts.set(label, (counts.get(label) ?? 0) + 1); log(`${label}: ${counts.get(label)}`); },
    countReset: (label = "default") => { counts.delete(label); },
    time: (label = "default") => { clocks.set(label, performance.now()); },
    timeLog: (label = "default", ...values) => log(elapsed(label), ...values),
    timeEnd: (label = "default") => { log(elapsed(label)); clocks.delete(label); },
  };
  g.console.groupCollapsed = g.console.group;
  g.print = (...values) => { host.write(1, values.map(String).join(" ") + "\n"); };

  // ---- timers -----------------------------------------------------------------------------------------------------
  // A heap: none is due before the one above it. Those that were stopped are passed over when they come to the top.
  const timers = new Map();
  let heap = [];
  let lastTimer = 0;
  const now = () => performance.now();
  const before = (one, other) => one.due < other.due || (one.due === other.due && one.id < other.id);
  function enter(timer) {
    let place = heap.push(timer) - 1;
    for (let above; place > 0 && before(timer, heap[(above = (place - 1) >> 1)]); place = above) heap[place] = heap[above];
    heap[place] = timer;
  }
  function leave() {
    const last = heap.pop();
    if (heap.length === 0) return;
    let place = 0;
    for (let below; (below = 2 * place + 1) < heap.length; place = below) {
      if (below + 1 < heap.length && before(heap[below + 1], heap[below])) below++;
      if (!before(heap[below], last)) break;
      heap[place] = heap[below];
    }
    heap[place] = last;
  }
  function start(callback, wait, values, every) {
    if (typeof callback !== "function") throw new TypeError("the callback of a timer must be a function");
    const delay = Math.max(1, Number(wait) || 0);
    const timer = { id: ++lastTimer, due: now() + delay, callback, values, every: every ? delay : 0 };
    timers.set(timer.id, timer);
    enter(timer);
    return timer.id;
  }
  const waits = (timer) => timers.has(timer.id);
  function stop(id) {
    if (!timers.delete(id) || heap.length <= 2 * timers.size + 64) return;
    const kept = heap.filter(waits);
    heap = [];
    kept.forEach(enter);
  }
  function earliest() {
    while (heap.length && !waits(heap[0])) leave();
    return heap[0];
  }
  g.setTimeout = (callback, wait, ...values) => start(callback, wait, values, false);
  g.setInterval = (callback, wait, ...values) => start(callback, wait, values, true);
  g.setImmediate = (callback, ...values) => start(callback, 0, values, false);
  g.clearTimeout = g.clearInterval = g.clearImmediate = stop;

  // ---- text and randomness ----------------------------------------------------------------------------------------
  const view = (data) => (data instanceof Uint8Array ? data
    : ArrayBuffer.isView(data) ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : new Uint8Array(data));
  g.TextEncoder = class TextEncoder {
    get encoding() { return "utf-8"; }
    encode(text = "") { return host.encode(String(text)); }
  };
  g.TextDecoder = class TextDecoder {
    constructor(label = "utf-8") { if (!/^utf-?8$/i.test(label)) throw new RangeError(`only utf-8 is decoded here, not ${label}`); }
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
  g.fetch = () => Promise.reject(absent("fetch"));
  for (const name of ["WebSocket", "XMLHttpRequest", "Worker"]) g[name] = class { constructor() { throw absent(name); } };

  const parse = JSON.parse;
  JSON.parse = function (text, reviver) {
    const json = `${text}`;
    if (json.length > 1000 && host.nesting(json) > 1000) throw new RangeError("Maximum call stack size exceeded: JSON is nested deeper than 1000");
    return parse(json, reviver);
  };
  Object.defineProperty(JSON.parse, "name", { value: "parse" });

  // ---- files ------------------------------------------------------------------------------------------------------
  const at = (path) => (typeof path === "number" ? path : String(path?.pathname ?? path));
  const wants = (options) => (typeof options === "string" ? options : options?.encoding);
  const text = (data, encoding) => {
    if (!encoding || encoding === "buffer") return data;
    if (!/^utf-?8$/i.test(encoding)) throw new TypeError(`only utf8 is decoded here, not ${encoding}`);
    return host.decode(data);
  };
  const bytes = (data) => (typeof data === "string" ? data : view(data));
  const statOf = (path) => {
    const [what, size, mtimeMs] = check(host.stat(at(path)), "stat", path);
    return { size, mtimeMs, mtime: new Date(mtimeMs), isFile: () => what === 0, isDirectory: () => what === 1, isSymbolicLink: () => false };
  };
  const there = (path) => Array.isArray(host.stat(at(path)));
  const fs = {
    readFileSync: (path, options) => text(check(host.read(path === "/dev/stdin" ? 0 : at(path)), "open", path), wants(options)),
    writeFileSync: (path, data) => { typeof path === "number" ? check(host.write(path, bytes(data)), "write") : check(host.store(at(path), bytes(data), false), "open", path); },
    appendFileSync: (path, data) => { check(host.store(at(path), bytes(data), true), "open", path); },
    existsSync: there,
    statSync: statOf,
    lstatSync: statOf,
    readdirSync: (path, options) => {
      const names = check(host.list(at(path)), "scandir", path).sort();
      return options?.withFileTypes ? names.map((name) => Object.assign(statOf(`${at(path)}/${name}`), { name })) : names;
    },
    mkdirSync: (path, options) => {
      if (!options?.recursive) return void check(host.mkdir(at(path)), "mkdir", path);
      const parts = at(path).split("/");
      for (let end = 1; end <= parts.length; end++) {
        const part = parts.slice(0, end).join("/");
        if (part && part !== "." && !there(part)) check(host.mkdir(part), "mkdir", part);
      }
    },
    unlinkSync: (path) => { check(host.unlink(at(path)), "unlink", path); },
    rmdirSync: (path) => { check(host.rmdir(at(path)), "rmdir", path); },
    rmSync: (path, options) => {
      if (!there(path)) { if (options?.force) return; check(host.unlink(at(path)), "rm", path); }
      if (!statOf(path).isDirectory()) return void check(host.unlink(at(path)), "rm", path);
      if (!options?.recursive) throw Object.assign(new Error(`EISDIR: is a directory, rm '${path}'`), { code: "EISDIR" });
      for (const name of fs.readdirSync(path)) fs.rmSync(`${at(path)}/${name}`, options);
      check(host.rmdir(at(path)), "rmdir", path);
    },
    renameSync: (from, to) => { check(host.rename(at(from), at(to)), "rename", from); },
    copyFileSync: (from, to) => { fs.writeFileSync(to, fs.readFileSync(from)); },
  };
  fs.promises = Object.fromEntries(Object.entries(fs).filter(([name]) => name.endsWith("Sync")).map(([name, call]) => [name.slice(0, -4), async (...values) => call(...values)]));

  // ---- paths and process ------------------------------------------------------------------------------------------
  const tidy = (path) => {
    const parts = [];
    for (const part of path.split("/")) {
      if (part === "..") { if (parts.length && parts.at(-1) !== "..") parts.pop(); else if (!path.startsWith("/")) parts.push(part); }
      else if (part && part !== ".") parts.push(part);
    }
    return (path.startsWith("/") ? "/" : "") + parts.join("/") || ".";
  };
  const path = {
    sep: "/", delimiter: ":", normalize: tidy,
    join: (...parts) => tidy(parts.filter(Boolean).join("/")),
    resolve: (...parts) => { let all = ""; for (const part of parts) all = part.startsWith("/") ? part : all ? `${all}/${part}` : part; return tidy(all.startsWith("/") ? all : `${process.cwd()}/${all}`); },
    isAbsolute: (name) => name.startsWith("/"),
    dirname: (name) => { const end = name.replace(/\/+$/, "").lastIndexOf("/"); return end < 0 ? "." : end === 0 ? "/" : name.slice(0, end); },
    basename: (name, suffix = "") => { const last = name.replace(/\/+$/, "").split("/").at(-1); return suffix && last !== suffix && last.endsWith(suffix) ? last.slice(0, -suffix.length) : last; },
    extname: (name) => { const last = path.basename(name); const dot = last.lastIndexOf("."); return dot > 0 ? last.slice(dot) : ""; },
  };
  path.posix = path;
  const variables = (lines) => Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf("=")), line.slice(line.indexOf("=") + 1)]));
  const env = variables(host.environ);
  let directory;
  const inline = host.argv[1] === "-e";
  const process = {
    argv: [host.argv[0], ...host.argv.slice(inline ? 3 : 1)], env, platform: "wasi", arch: "wasm32", pid: 1, exitCode: undefined,
    version: "", versions: {}, cwd: () => directory ?? (env.PWD || "/"),
    exit: (status = process.exitCode ?? 0) => host.exit(Number(status)),
    stdout: { isTTY: false, write: (data) => { check(host.write(1, bytes(data)), "write"); return true; } },
    stderr: { isTTY: false, write: (data) => { check(host.write(2, bytes(data)), "write"); return true; } },
    hrtime: Object.assign(() => { const time = now(); return [Math.floor(time / 1e3), Math.floor((time % 1e3) * 1e6)]; }, { bigint: () => BigInt(Math.floor(now() * 1e6)) }),
    nextTick: (call, ...values) => queueMicrotask(() => call(...values)),
    uptime: () => now() / 1e3, on: () => process, once: () => process, off: () => process, emitWarning: (text) => complain(`Warning: ${text}`),
  };
  process.stdin = { isTTY: false, fd: 0, setEncoding: () => process.stdin, [Symbol.asyncIterator]: async function* () { const all = fs.readFileSync(0, "utf8"); if (all) yield all; },
    on: (event, call) => { // The whole input as one piece, soon.
      if (event === "data") setTimeout(() => { const all = fs.readFileSync(0, "utf8"); if (all) call(all); }, 0);
      if (event === "end" || event === "close") setTimeout(call, 2);
      return process.stdin;
    } };
  g.process = process;
  g.global = g;
  g.scriptArgs = process.argv.slice(1);

  // ---- modules ----------------------------------------------------------------------------------------------------
  const builtins = {
    fs, path, process, "fs/promises": fs.promises, os: { EOL: "\n", platform: () => "wasi", tmpdir: () => "/tmp", cpus: () => [], homedir: () => "/" },
    util: { inspect: (value, options) => inspect(value, options?.depth === null ? 1e3 : options?.depth ?? 2), format: (...values) => format(values),
      promisify: (call) => (...values) => new Promise((yes, no) => call(...values, (error, value) => (error ? no(error) : yes(value)))),
      isDeepStrictEqual: (a, b) => inspect(a, 1e3) === inspect(b, 1e3), types: {} },
    timers: { setTimeout: g.setTimeout, setInterval: g.setInterval, setImmediate: g.setImmediate, clearTimeout: stop, clearInterval: stop },
    "timers/promises": { setTimeout: (wait, value) => new Promise((done) => g.setTimeout(done, wait, value)) },
    perf_hooks: { performance }, crypto: { ...g.crypto, webcrypto: g.crypto },
  };
  builtins.assert = (() => {
    const fail = (message, fallback) => { throw message instanceof Error ? message : Object.assign(new Error(message ?? fallback), { name: "AssertionError", code: "ERR_ASSERTION" }); };
    const assert = (value, message) => { if (!value) fail(message, `${inspect(value)} is not truthy`); };
    const same = (a, b, message) => { if (!Object.is(a, b)) fail(message, `${inspect(a)} !== ${inspect(b)}`); };
    const deep = (a, b, message) => { if (!builtins.util.isDeepStrictEqual(a, b)) fail(message, `${inspect(a)} is not deeply equal to ${inspect(b)}`); };
    return Object.assign(assert, { ok: assert, equal: same, strictEqual: same, deepEqual: deep, deepStrictEqual: deep,
      notStrictEqual: (a, b, message) => { if (Object.is(a, b)) fail(message, `${inspect(a)} === ${inspect(b)}`); },
      throws: (call, message) => { try { call(); } catch { return; } fail(typeof message === "string" ? message : undefined, "no exception was thrown"); },
      fail: (message) => fail(message, "failed") });
  })();
  builtins["assert/strict"] = builtins.assert;
  const refused = /^(net|dgram|http|https|http2|tls|dns|child_process|cluster|worker_threads|inspector|repl|vm|v8)(\/|$)/;
  const plain = (name) => (name.startsWith("node:") ? name.slice(5) : name);
  function missing(name) {
    if (refused.test(plain(name))) return absent(`module '${name}'`);
    return Object.assign(new Error(`Cannot find module '${name}': there are the script's own files, by a path that begins with ./ or /, and ${Object.keys(builtins).sort().join(", ")}`), { code: "MODULE_NOT_FOUND" });
  }
  const loaded = new Map();
  let script = "";
  // What a script finds of its own without asking for it: made when it does ask.
  for (const [name, get] of [["__filename", () => path.resolve(script)], ["__dirname", () => path.dirname(path.resolve(script))]]) {
    const set = (value) => Object.defineProperty(g, name, { value, writable: true, configurable: true });
    Object.defineProperty(g, name, { get, set, configurable: true });
  }
  function begin(name) {
    script = name;
    g.module = { exports: {} };
    g.exports = g.module.exports;
    g.require = requireFrom(name);
  }
  function requireFrom(base) {
    const require = (name) => {
      if (Object.hasOwn(builtins, plain(name))) return builtins[plain(name)];
      if (!/^\.{0,2}\//.test(name)) throw missing(name);
      const wanted = name.startsWith("/") ? tidy(name) : path.join(path.dirname(base), name);
      const file = [wanted, `${wanted}.js`, `${wanted}.json`, `${wanted}/index.js`].find((each) => there(each) && statOf(each).isFile());
      if (!file) throw missing(name);
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

  // ---- what main.c asks for ---------------------------------------------------------------------------------------
  const rejected = new Map();
  const last = (error, prefix) => host.write(2, `${prefix}${inspect(error)}\n`);
  const world = {
    name: inline ? "[eval]" : host.argv[1] ?? "",
    main() {
      if (host.argv.length < 2 || (inline && host.argv.length < 3)) {
        host.write(2, "JavaScript: nothing to run; give a file, or -e and code\n");
        host.exit(2);
      }
      const file = host.argv[1];
      begin(inline || file === "-" ? `${process.cwd()}/x` : file);
      if (inline) return host.argv[2];
      try {
        return fs.readFileSync(file === "-" ? 0 : file, "utf8").replace(/^\uFEFF/, "");
      } catch (error) {
        host.write(2, `JavaScript: the script cannot be read: ${error.message}\n`);
        host.exit(2);
      }
    },
    source(name) {
      const known = plain(name);
      if (Object.hasOwn(builtins, known)) {
        const names = Object.keys(builtins[known]).filter((key) => identifier.test(key) && key !== "default");
        return `const m = globalThis[Symbol.for("cofferdam.builtin")](${JSON.stringify(known)});\nexport default m;\n`
          + names.map((key, index) => `const e${index} = m[${JSON.stringify(key)}];\nexport { e${index} as ${key} };\n`).join("");
      }
      if (!name.includes("/") && !there(name)) throw missing(name);
      const found = fs.readFileSync(name, "utf8");
      return name.endsWith(".json") ? `export default ${JSON.stringify(JSON.parse(found))};` : found;
    },
    rejection(promise, reason, handled) { if (handled) rejected.delete(promise); else rejected.set(promise, reason); },
    // Whether a rejection stayed without a handler.
    drained() {
      if (rejected.size === 0) return false;
      const [reason] = rejected.values();
      rejected.clear();
      last(reason, "Uncaught ");
      return true;
    },
    abandon() { timers.clear(); heap = []; },
    // ---- for requests, in warm.h
    arguments(values) {
      process.argv = [host.argv[0], ...values];
      g.scriptArgs = values;
      process.exitCode = undefined;
      begin(values[0] ?? "");
    },
    variables(lines) { process.env = variables(lines); },
    directory(name) { directory = name; },
    uncaught(error) { last(error, "Uncaught "); },
    next() { const first = earliest(); return first ? Math.max(0, first.due - now()) : -1; },
    fire() {
      const timer = earliest();
      if (!timer) return;
      leave();
      if (timer.every) { timer.due = now() + timer.every; enter(timer); } else timers.delete(timer.id);
      timer.callback(...timer.values);
    },
    status(result, isModule) {
      if (process.exitCode !== undefined) return Number(process.exitCode);
      if (isModule && host.state(result) === 0) {
        host.write(2, "Warning: a top-level await never ended\n");
        return 13;
      }
      return 0;
    },
  };
  return world;
});
