// SPDX-License-Identifier: Apache-2.0
'use strict';
/**
 * SDK for Cofferdam plugins in JavaScript and TypeScript, in one file without dependencies.
 *
 *     standard input --FrameReader--> decode --Session--> methods and handlers of the Plugin
 *     standard output <--frame-- encode <-- answers, notifications, requests of services
 *
 * The host runs this file itself: it then loads the entry that `initialize` names. The file does not validate inputs
 * against the manifest's schemas and does not check permissions of services. The host does both.
 */

const { AsyncLocalStorage } = require('node:async_hooks');
const { randomBytes } = require('node:crypto');
const fs = require('node:fs');
const Module = require('node:module');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { Readable } = require('node:stream');
const { setTimeout: delay } = require('node:timers/promises');
const { pathToFileURL } = require('node:url');

const PACKAGE = '@cofferdam/plugin';
const VERSION = '0.1.0';
const PROTOCOL_VERSION = 1;

/** The limits of the protocol. */
const MAX_MESSAGE = 8 * 1024 * 1024;
const MAX_HEADERS = 4096;
const MAX_DEPTH = 64;
/** The nesting of metadata that crosses to another plugin. */
const MAX_PORTABLE_DEPTH = 32;
/** The parts of metadata that are named as dropped. */
const MAX_DROPPED = 100;
const MAX_BATCH = 100;
const MAX_REQUESTS = 256;
const MAX_ID = 128;
const STREAM_CREDIT = 64;
/** The limits of an error. */
const MAX_ERROR_MESSAGE = 4096;
const MAX_STACK = 16 * 1024;
/** The delay before the first repetition of a method. It doubles with each further one. */
const RETRY_DELAY_MS = 100;
const NAME = /^[a-z][a-z0-9]*([._-][a-z0-9]+)*$/;
/** The exit status after a broken frame. */
const STATUS_BROKEN = 65;

// Errors

/** @type {Record<string, number>} */
const CODES = {
  'parse-error': -32700,
  'invalid-request': -32600,
  'method-not-found': -32601,
  'invalid-params': -32602,
  internal: -32603,
  cancelled: -32800,
  'permission-denied': -32001,
  timeout: -32002,
  'plugin-failed': -32003,
  limit: -32004,
  'not-found': -32005,
  unavailable: -32006,
  conflict: -32007,
};

/** An error of a request, in either direction. */
class PluginError extends Error {
  static kind = 'plugin-failed';

  /**
   * @param {string} message
   * @param {{ data?: Record<string, unknown>, retryable?: boolean, cause?: unknown, kind?: string }} [options]
   */
  constructor(message, { data, retryable, cause, kind } = {}) {
    super(String(message).slice(0, MAX_ERROR_MESSAGE), cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    this.kind = kind ?? new.target.kind;
    /** @type {Record<string, unknown>} */
    this.data = { ...data };
    if (retryable !== undefined) this.data.retryable = retryable;
  }

  get code() {
    return CODES[this.kind];
  }
}

class InvalidRequestError extends PluginError {
  static kind = 'invalid-request';
}
class MethodNotFoundError extends PluginError {
  static kind = 'method-not-found';
}
class InvalidParamsError extends PluginError {
  static kind = 'invalid-params';
}
class InternalError extends PluginError {
  static kind = 'internal';
}
class CancelledError extends PluginError {
  static kind = 'cancelled';
}
class PermissionDeniedError extends PluginError {
  static kind = 'permission-denied';
}
class TimeoutError extends PluginError {
  static kind = 'timeout';
}
class LimitError extends PluginError {
  static kind = 'limit';
}
class NotFoundError extends PluginError {
  static kind = 'not-found';
}
class UnavailableError extends PluginError {
  static kind = 'unavailable';
}
class ConflictError extends PluginError {
  static kind = 'conflict';
}

const ERRORS = [
  InvalidRequestError, MethodNotFoundError, InvalidParamsError, InternalError, CancelledError, PermissionDeniedError,
  TimeoutError, LimitError, NotFoundError, UnavailableError, ConflictError, PluginError,
];

/** A message of the host that breaks the protocol. It ends the process. */
class ProtocolError extends Error {}

/** Creates the error for the member `error` of a response. A code without a kind is one of another plugin. */
function errorFromWire(/** @type {any} */ error) {
  if (!isObject(error) || !Number.isSafeInteger(error.code) || typeof error.message !== 'string') {
    throw new ProtocolError('bad-message');
  }
  const kind = Object.keys(CODES).find((name) => CODES[name] === error.code) ?? 'plugin-failed';
  const Class = ERRORS.find((candidate) => candidate.kind === kind) ?? PluginError;
  const { kind: _, ...data } = isObject(error.data) ? error.data : {};
  return new Class(error.message, { data, kind });
}

/** Returns the member `error` of a response for anything that a method threw. */
function errorToWire(/** @type {any} */ error) {
  const known = error instanceof PluginError;
  const message = String(error?.message ?? error).slice(0, MAX_ERROR_MESSAGE);
  if (known && error.kind !== 'plugin-failed') {
    return { code: error.code, message, data: { ...error.data, kind: error.kind } };
  }
  const stack = typeof error?.stack === 'string' ? error.stack.slice(0, MAX_STACK) : undefined;
  /** @type {Record<string, unknown>} */
  const data = { type: error?.name ?? typeof error, stack, ...(known ? error.data : {}), kind: 'plugin-failed' };
  if (typeof error?.retryable === 'boolean') data.retryable = error.retryable;
  return { code: CODES['plugin-failed'], message, data };
}

// Frames

/** A reader of frames. It holds at most one frame and one chunk. */
class FrameReader {
  /** @param {number} [maxBody] */
  constructor(maxBody = MAX_MESSAGE) {
    this.maxBody = maxBody;
    /** @type {Buffer[]} */
    this.chunks = [];
    this.size = 0;
    /** The length of the body, or null before the end of its headers. */
    this.bodyLength = /** @type {number | null} */ (null);
    this.needed = 1;
  }

  /** Takes a chunk and returns the bodies that are complete. Throws `ProtocolError`. */
  *push(/** @type {Buffer} */ chunk) {
    this.chunks.push(chunk);
    this.size += chunk.length;
    while (this.size >= this.needed) {
      const bytes = this.chunks.length === 1 ? this.chunks[0] : Buffer.concat(this.chunks);
      if (this.bodyLength === null) {
        this.readHeaders(bytes);
      } else {
        const length = this.bodyLength;
        this.rest(bytes.subarray(length), null, 1);
        yield bytes.subarray(0, length);
      }
    }
  }

  /** @param {Buffer} bytes */
  readHeaders(bytes) {
    const end = bytes.indexOf('\r\n\r\n');
    if (end > MAX_HEADERS - 4 || (end < 0 && bytes.length >= MAX_HEADERS)) throw new ProtocolError('too-large');
    if (end < 0) {
      this.rest(bytes, null, bytes.length + 1);
      return;
    }
    const length = contentLength(bytes.toString('latin1', 0, end));
    if (length > this.maxBody) throw new ProtocolError('too-large');
    this.rest(bytes.subarray(end + 4), length, length);
  }

  /** @param {Buffer} bytes @param {number | null} bodyLength @param {number} needed */
  rest(bytes, bodyLength, needed) {
    this.chunks = [bytes];
    this.size = bytes.length;
    this.bodyLength = bodyLength;
    this.needed = needed;
  }
}

/** Returns the length that the headers state. */
function contentLength(/** @type {string} */ headers) {
  let length = -1;
  for (const line of headers.split('\r\n')) {
    const header = /^([!-9;-~]+):[ \t]*([^\r\n]*?)[ \t]*$/.exec(line);
    if (!header) throw new ProtocolError('bad-frame');
    const name = header[1].toLowerCase();
    if (name === 'content-length') {
      if (length >= 0 || !/^[0-9]{1,15}$/.test(header[2])) throw new ProtocolError('bad-frame');
      length = Number(header[2]);
    }
    const charset = name === 'content-type' ? /charset="?([^";]*)/i.exec(header[2]) : null;
    if (charset && !/^utf-?8$/i.test(charset[1].trim())) throw new ProtocolError('bad-frame');
  }
  if (length < 0) throw new ProtocolError('bad-frame');
  return length;
}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Returns the message of a body. */
function decode(/** @type {Buffer} */ body) {
  let text;
  try {
    text = utf8.decode(body);
  } catch {
    throw new ProtocolError('not-json');
  }
  if (depthOf(text) > MAX_DEPTH) throw new ProtocolError('too-deep');
  try {
    return JSON.parse(text);
  } catch {
    throw new ProtocolError('not-json');
  }
}

/** Returns the text of a message. Throws `LimitError` if it breaks a limit of the protocol. */
function encode(/** @type {unknown} */ message, maxMessage = MAX_MESSAGE) {
  return checked(JSON.stringify(message), maxMessage);
}

/** Returns the text if it keeps the limits of the protocol. */
function checked(/** @type {string} */ text, /** @type {number} */ maxMessage) {
  if (Buffer.byteLength(text) > maxMessage) throw new LimitError(`a message has at most ${maxMessage} bytes`);
  if (depthOf(text) > MAX_DEPTH) throw new LimitError(`a message nests at most ${MAX_DEPTH} levels`);
  return text;
}

/**
 * Returns a copy of a value that JSON represents, and pointers to the parts that cannot cross: functions, symbols, numbers
 * without a value, handles, cycles, and what is nested too deeply.
 */
function portable(/** @type {unknown} */ value, /** @type {string} */ pointer) {
  /** @type {string[]} */
  const dropped = [];
  /** @type {unknown[]} */
  const ancestors = [];
  const drop = (/** @type {string} */ at) => {
    if (dropped.length < MAX_DROPPED) dropped.push(at.slice(0, 200));
    return undefined;
  };
  const visit = (/** @type {any} */ part, /** @type {string} */ at) => {
    if (part === null || typeof part === 'string' || typeof part === 'boolean') return part;
    if (typeof part === 'number') return Number.isFinite(part) ? part : drop(at);
    if (typeof part !== 'object') return drop(at);
    if (typeof part.toJSON === 'function') return visit(part.toJSON(), at);
    const isList = Array.isArray(part);
    const isPlain = isList || [Object.prototype, null].includes(Object.getPrototypeOf(part));
    if (!isPlain || ancestors.includes(part) || ancestors.length >= MAX_PORTABLE_DEPTH) return drop(at);
    ancestors.push(part);
    /** @type {[string, any][]} */
    const members = Object.entries(part);
    const visited = members.map(([key, member]) => {
      const name = key.replaceAll('~', '~0').replaceAll('/', '~1');
      return /** @type {[string, any]} */ ([key, visit(member, `${at}/${name}`)]);
    });
    ancestors.pop();
    if (isList) return visited.map(([, member]) => (member === undefined ? null : member));
    return Object.fromEntries(visited.filter(([, member]) => member !== undefined));
  };
  return { metadata: visit(value, pointer), dropped };
}

/** Returns the frame of a text. */
function frame(/** @type {string} */ text) {
  return `Content-Length: ${Buffer.byteLength(text)}\r\n\r\n${text}`;
}

/** Returns the nesting of JSON text. */
function depthOf(/** @type {string} */ text) {
  let depth = 0;
  let deepest = 0;
  for (let i = 0; i < text.length; i++) {
    const c = text.charCodeAt(i);
    if (c === 0x22) i = endOfString(text, i);
    else if (c === 0x7b || c === 0x5b) deepest = Math.max(deepest, ++depth);
    else if (c === 0x7d || c === 0x5d) depth--;
  }
  return deepest;
}

/** Returns the index of the quote that ends the string, or the length of the text. */
function endOfString(/** @type {string} */ text, /** @type {number} */ start) {
  for (let i = start + 1; i < text.length; i++) {
    const c = text.charCodeAt(i);
    if (c === 0x22) return i;
    if (c === 0x5c) i++;
  }
  return text.length;
}

// Services

/** @param {string | Uint8Array} content */
function contentToWire(content) {
  if (typeof content === 'string') return { text: content };
  try {
    return { text: utf8.decode(content) };
  } catch {
    return { base64: Buffer.from(content).toString('base64') };
  }
}

/** Returns the bytes of a content. */
function contentFromWire(/** @type {any} */ content) {
  return Buffer.from(content?.text ?? content?.base64 ?? '', content?.text === undefined ? 'base64' : 'utf8');
}

/** Creates the requests of a plugin. @param {(method: string, params?: object) => Promise<any>} request */
function createServices(request) {
  const forward = (/** @type {string} */ method, /** @type {string[]} */ ...names) =>
    (/** @type {any[]} */ ...values) => {
      const params = Object.fromEntries(names.map((name, index) => [name, values[index]]));
      return request(method, { ...params, ...values[names.length] });
    };
  const readFile = async (/** @type {string} */ name, options = {}) => {
    const result = await request('fs.read', { path: name, ...options });
    return { ...result, content: contentFromWire(result.content) };
  };
  return {
    kv: {
      get: forward('kv.get', 'key'),
      set: forward('kv.set', 'key', 'value'),
      delete: forward('kv.delete', 'key'),
      list: forward('kv.list'),
    },
    fs: {
      read: readFile,
      readText: async (/** @type {string} */ name) => (await readFile(name)).content.toString('utf8'),
      stat: forward('fs.stat', 'path'),
      list: forward('fs.list', 'path'),
      write: (/** @type {string} */ name, /** @type {string | Uint8Array} */ content, options = {}) =>
        request('fs.write', { path: name, content: contentToWire(content), ...options }),
      mkdir: forward('fs.mkdir', 'path'),
      remove: forward('fs.remove', 'path'),
    },
    net: {
      fetch: async (/** @type {string} */ url, /** @type {any} */ { body, ...options } = {}) => {
        const sent = body === undefined ? {} : { body: contentToWire(body) };
        const response = await request('net.fetch', { url: String(url), ...options, ...sent });
        return { ...response, body: contentFromWire(response.body) };
      },
    },
    secrets: {
      get: async (/** @type {string} */ name) => (await request('secrets.get', { name })).value,
      set: forward('secrets.set', 'name', 'value'),
      delete: forward('secrets.delete', 'name'),
    },
    events: {
      publish: forward('events.publish', 'name', 'payload'),
      subscribe: forward('events.subscribe', 'pattern'),
      unsubscribe: forward('events.unsubscribe', 'subscription'),
    },
    scheduler: {
      create: forward('scheduler.create', 'name'),
      list: forward('scheduler.list'),
      cancel: forward('scheduler.cancel', 'id'),
    },
    calendar: {
      create: forward('calendar.create'),
      read: forward('calendar.read', 'id'),
      query: forward('calendar.query', 'from', 'to'),
      delete: forward('calendar.delete', 'id'),
      import: forward('calendar.import', 'ics'),
      export: forward('calendar.export', 'ids'),
    },
    artifacts: {
      write: (/** @type {string} */ name, /** @type {string | Uint8Array} */ content, options = {}) =>
        request('artifacts.write', { name, content: contentToWire(content), ...options }),
      read: async (/** @type {object} */ selector) => {
        const artifact = await request('artifacts.read', selector);
        return { ...artifact, content: contentFromWire(artifact.content) };
      },
      list: forward('artifacts.list'),
    },
    invoke: (/** @type {string} */ plugin, /** @type {string} */ method, /** @type {unknown} */ input, options = {}) => {
      const { metadata, ...others } = options;
      const crossing = metadata === undefined ? {} : portable(metadata, '/metadata');
      return request('invoke', { plugin, method, input, ...others, ...crossing });
    },
    execute: forward('sandbox.execute', 'language', 'code'),
    temporaryFile: async () => {
      const file = path.join(os.tmpdir(), `plugin-${randomBytes(12).toString('hex')}`);
      await request('resources.track', { path: file });
      scope.getStore()?.temporary.push(file);
      fs.closeSync(fs.openSync(file, 'wx', 0o600));
      return file;
    },
  };
}

// Plugins and sessions

/** The methods and handlers of a plugin. */
class Plugin {
  /** @param {object} services @param {object} identity */
  constructor(services, identity) {
    Object.assign(this, services, identity);
    /** @type {Map<string, any>} */
    this.methods = new Map();
    /** @type {{ pattern: string, fn: Function }[]} */
    this.eventHandlers = [];
    /** @type {Map<string, Function>} */
    this.timers = new Map();
    /** @type {Function[]} */
    this.shutdownHandlers = [];
  }

  /** Registers a method. */
  method(/** @type {string} */ name, /** @type {any} */ options, /** @type {any} */ fn = options) {
    if (!NAME.test(name) || name.length > 64) throw new TypeError(`the name of a method is invalid: ${name}`);
    if (this.methods.has(name)) throw new TypeError(`the method ${name} is registered already`);
    if (typeof fn !== 'function') throw new TypeError(`the method ${name} is not a function`);
    const { timeout, retry = 0, permission = [] } = fn === options ? {} : options;
    this.methods.set(name, { fn, timeout: milliseconds(timeout), retry, permissions: [permission].flat() });
    return this;
  }

  /** Registers a handler of events. */
  onEvent(/** @type {string} */ pattern, /** @type {Function} */ fn) {
    this.eventHandlers.push({ pattern, fn });
    return this;
  }

  /** Registers the handler of a timer. */
  onTimer(/** @type {string} */ name, /** @type {Function} */ fn) {
    this.timers.set(name, fn);
    return this;
  }

  /** Registers a handler that runs before the plugin ends. */
  onShutdown(/** @type {Function} */ fn) {
    this.shutdownHandlers.push(fn);
    return this;
  }
}

/** @type {Record<string, number>} */
const UNITS = { ms: 1, s: 1000, m: 60_000, min: 60_000, h: 3_600_000 };

/** Parses a duration: a number of milliseconds, or text such as `1.5s`. */
function milliseconds(/** @type {any} */ value) {
  if (value === undefined || typeof value === 'number') return value;
  const parts = /^([0-9]+(?:\.[0-9]+)?) ?(ms|s|m|min|h)$/.exec(String(value));
  if (!parts) throw new TypeError(`a duration is invalid: ${value}`);
  return Number(parts[1]) * UNITS[parts[2]];
}

/** Returns true if a pattern matches the name of an event. `*` is one part, `**` at the end any number of parts. */
function matches(/** @type {string} */ pattern, /** @type {string} */ name) {
  const parts = pattern.split('.');
  const names = name.split('.');
  const open = parts[parts.length - 1] === '**';
  if (open) parts.pop();
  if (open ? names.length <= parts.length : names.length !== parts.length) return false;
  return parts.every((part, index) => part === '*' || part === names[index]);
}

function isObject(/** @type {unknown} */ value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function isId(/** @type {unknown} */ id) {
  if (typeof id === 'string') return Buffer.byteLength(id) <= MAX_ID;
  return Number.isSafeInteger(id) && /** @type {number} */ (id) >= 0;
}

/** The request of the host that the current code serves. */
const scope = /** @type {AsyncLocalStorage<Call>} */ (new AsyncLocalStorage());

/** A request of the host while it runs. */
class Call {
  /** @param {string | number} id @param {string} correlationId */
  constructor(id, correlationId) {
    this.id = id;
    this.correlationId = correlationId;
    /** @type {AbortController | undefined} */
    this.created = undefined;
    this.ended = false;
    this.sent = 0;
    this.acknowledged = 0;
    /** @type {string[]} */
    this.temporary = [];
    this.wake = () => {};
  }

  /** Returns the controller. It is costly, and most calls need none. */
  get controller() {
    if (!this.created) {
      this.created = new AbortController();
      this.created.signal.addEventListener('abort', () => this.wake());
    }
    return this.created;
  }

  get aborted() {
    return this.created?.signal.aborted === true;
  }

  /** Waits until the stream may send an item. Throws if the call was cancelled. */
  async credit() {
    const { signal } = this.controller;
    while (!signal.aborted && this.sent - this.acknowledged >= STREAM_CREDIT) {
      await new Promise((resolve) => (this.wake = () => resolve(null)));
    }
    signal.throwIfAborted();
  }

  /** Removes the temporary files of the handlers, which have ended. */
  removeTemporary() {
    for (const file of this.temporary) {
      try {
        fs.unlinkSync(file);
      } catch {
        // The plugin has removed it.
      }
    }
  }
}

/** A connection to a host, without its transport. */
class Session {
  /**
   * @param {(text: string) => void} send sends the text of a message
   * @param {{ load: (entry: string) => Promise<Function>, exit: () => void }} options
   */
  constructor(send, { load, exit }) {
    this.write = send;
    this.load = load;
    this.exit = exit;
    this.state = 'new';
    this.prefix = randomBytes(6).toString('hex');
    this.lastId = 0;
    this.maxMessage = MAX_MESSAGE;
    /** @type {Map<unknown, { resolve: Function, reject: Function }>} */
    this.pending = new Map();
    /** @type {Function[]} */
    this.waiting = [];
    /** @type {Map<unknown, Call>} */
    this.running = new Map();
    /** @type {any} */
    this.params = {};
    this.services = {
      ...createServices((method, params) => this.request(method, params)),
      log: this.createLog(),
    };
    /** @type {Plugin} */
    this.plugin = new Plugin(this.services, {});
  }

  createLog() {
    const level = (/** @type {string} */ name) => (/** @type {unknown} */ message, fields = {}) =>
      this.notify('log', { level: name, message: String(message), fields });
    return { debug: level('debug'), info: level('info'), warn: level('warn'), error: level('error') };
  }

  // Sending

  send(/** @type {string} */ text) {
    if (this.state !== 'ended') this.write(text);
  }

  correlationId() {
    return scope.getStore()?.correlationId ?? `${this.prefix}-${++this.lastId}`;
  }

  notify(/** @type {string} */ method, /** @type {object} */ params, correlationId = this.correlationId()) {
    this.send(encode({ jsonrpc: '2.0', method, params, correlationId }, this.maxMessage));
  }

  /** Sends a request and returns its result. Cancelling the current call cancels the request. */
  async request(/** @type {string} */ method, params = {}) {
    while (this.pending.size >= MAX_REQUESTS) await new Promise((resolve) => this.waiting.push(resolve));
    const id = ++this.lastId;
    const correlationId = this.correlationId();
    const text = encode({ jsonrpc: '2.0', id, method, params, correlationId }, this.maxMessage);
    const signal = scope.getStore()?.controller.signal;
    const cancel = () => this.notify('$/cancelRequest', { id }, correlationId);
    signal?.addEventListener('abort', cancel, { once: true });
    try {
      return await new Promise((resolve, reject) => {
        this.pending.set(id, { resolve, reject });
        this.send(text);
      });
    } finally {
      signal?.removeEventListener('abort', cancel);
    }
  }

  // Receiving

  /** Handles a message or a batch. Throws `ProtocolError` if the host broke the protocol. */
  async receive(/** @type {any} */ message) {
    if (!Array.isArray(message)) {
      const answer = await this.handle(message);
      if (answer) this.send(answer);
      return;
    }
    if (message.length === 0 || message.length > MAX_BATCH) throw new ProtocolError('bad-message');
    const answers = (await Promise.all(message.map((part) => this.handle(part)))).filter(Boolean);
    try {
      if (answers.length > 0) this.send(checked(`[${answers.join(',')}]`, this.maxMessage));
    } catch {
      for (const answer of answers) this.send(/** @type {string} */ (answer));
    }
  }

  handle(/** @type {any} */ message) {
    if (!isObject(message) || message.jsonrpc !== '2.0') throw new ProtocolError('bad-message');
    if (typeof message.method !== 'string') return this.settle(message);
    return message.id === undefined ? this.notified(message) : this.answer(message);
  }

  settle(/** @type {any} */ { id, result = null, error }) {
    const request = this.pending.get(id);
    if (!request) throw new ProtocolError('unknown-id');
    this.pending.delete(id);
    this.waiting.shift()?.();
    if (error === undefined) request.resolve(result);
    else request.reject(errorFromWire(error));
  }

  notified(/** @type {any} */ { method, params }) {
    const call = this.running.get(params?.id);
    if (method === 'exit') this.exit();
    if (method === '$/cancelRequest') call?.controller.abort(new CancelledError('the request was cancelled'));
    if (method === '$/streamAck' && call && params.count > call.acknowledged && params.count <= call.sent) {
      call.acknowledged = params.count;
      call.wake();
    }
  }

  /** Runs a request and returns the text of its answer. */
  async answer(/** @type {any} */ { id, method, params = {}, correlationId }) {
    if (!isId(id) || this.running.has(id)) throw new ProtocolError('bad-message');
    if (this.running.size >= MAX_REQUESTS) throw new ProtocolError('flood');
    const call = new Call(id, typeof correlationId === 'string' ? correlationId : this.correlationId());
    this.running.set(id, call);
    const answer = { jsonrpc: '2.0', id, correlationId: call.correlationId };
    try {
      const result = (await scope.run(call, () => this.dispatch(call, method, params))) ?? null;
      return encode({ ...answer, result }, this.maxMessage);
    } catch (error) {
      const cause = call.aborted ? call.controller.signal.reason : error;
      return this.encodeError(answer, cause);
    } finally {
      call.ended = true;
      this.running.delete(id);
    }
  }

  encodeError(/** @type {object} */ answer, /** @type {unknown} */ error) {
    try {
      return encode({ ...answer, error: errorToWire(error) }, this.maxMessage);
    } catch {
      const plain = new PluginError('the method failed with an error that cannot be sent');
      return encode({ ...answer, error: errorToWire(plain) }, this.maxMessage);
    }
  }

  dispatch(/** @type {Call} */ call, /** @type {string} */ method, /** @type {any} */ params) {
    if (method === 'ping') return null;
    if (method === 'initialize') return this.initialize(params);
    if (this.state !== 'ready') throw new InvalidRequestError(`the plugin is not ready for ${method}`);
    if (method === 'call') return this.call(call, params);
    if (method === 'events.deliver') return this.deliver(call, params).finally(() => call.removeTemporary());
    if (method === 'scheduler.fire') return this.fire(call, params).finally(() => call.removeTemporary());
    if (method === 'shutdown') return this.shutdown();
    throw new MethodNotFoundError(`the plugin has no request ${method}`);
  }

  async initialize(/** @type {any} */ params) {
    if (this.state !== 'new') throw new InvalidRequestError('the plugin is initialized already');
    if (params.protocolVersion !== PROTOCOL_VERSION) {
      throw new InvalidParamsError(`the SDK speaks protocol ${PROTOCOL_VERSION}, the host ${params.protocolVersion}`);
    }
    this.state = 'starting';
    this.params = { permissions: [], config: {}, ...params };
    this.maxMessage = Math.min(params.maxMessage ?? MAX_MESSAGE, MAX_MESSAGE);
    this.plugin = new Plugin(this.services, { ...params.plugin, config: this.params.config });
    await (await this.load(params.entry))(this.plugin);
    this.state = 'ready';
    const sdk = { name: PACKAGE, version: VERSION };
    return { protocolVersion: PROTOCOL_VERSION, sdk, methods: [...this.plugin.methods.keys()] };
  }

  async shutdown() {
    for (const fn of this.plugin.shutdownHandlers) await fn();
    setImmediate(() => (this.state = 'ended'));
  }

  context(/** @type {Call} */ call, /** @type {any} */ { requestId, tenant, traceparent, deadline, ...rest } = {}) {
    return {
      __proto__: this.services,
      requestId, tenant, traceparent,
      deadline: deadline === undefined || deadline === null ? undefined : new Date(deadline),
      metadata: rest.metadata ?? {}, depth: rest.depth ?? 0, dropped: rest.dropped ?? [],
      correlationId: call.correlationId,
      config: this.params.config,
      get signal() {
        return call.controller.signal;
      },
      progress: (/** @type {unknown} */ value) => {
        if (!call.ended) this.notify('$/progress', { token: call.id, value });
      },
    };
  }

  // Methods and handlers

  async call(/** @type {Call} */ call, /** @type {any} */ { method, input = null, context }) {
    const found = this.plugin.methods.get(method);
    if (!found) throw new MethodNotFoundError(`the plugin has no method ${method}`);
    for (const permission of found.permissions) this.requirePermission(permission, method);
    const attempt = this.attempt(found, input, this.context(call, context), call);
    const run = attempt.finally(() => call.removeTemporary());
    if (found.timeout === undefined) return run;
    const stop = new AbortController();
    const expiry = delay(found.timeout, null, { signal: stop.signal }).then(() => {
      call.controller.abort(new TimeoutError(`the method ${method} took more than ${found.timeout} ms`));
      throw call.controller.signal.reason;
    });
    return Promise.race([run, expiry]).finally(() => stop.abort());
  }

  requirePermission(/** @type {string} */ permission, /** @type {string} */ target) {
    if (this.params.permissions.includes(permission)) return;
    const data = { permission, target, remedy: `add "${permission}" to permissions of the manifest` };
    throw new PermissionDeniedError(`the method ${target} needs the permission ${permission}`, { data });
  }

  /** Runs a method, and again after an error that another attempt may avoid. */
  async attempt(/** @type {any} */ found, /** @type {any} */ input, /** @type {any} */ ctx, /** @type {Call} */ call) {
    for (let attempt = 0; ; attempt++) {
      try {
        const output = await found.fn(input, ctx);
        return typeof output?.[Symbol.asyncIterator] === 'function' ? await this.stream(output, call) : output;
      } catch (/** @type {any} */ error) {
        const final = error instanceof PluginError && !['plugin-failed', 'unavailable', 'conflict'].includes(error.kind);
        if (final || attempt >= found.retry || call.sent > 0 || call.aborted) throw error;
        await delay(RETRY_DELAY_MS * 2 ** Math.min(attempt, 10), null, { signal: ctx.signal });
      }
    }
  }

  /** Sends the items of a stream and returns its final value. */
  async stream(/** @type {any} */ items, /** @type {Call} */ call) {
    const iterator = items[Symbol.asyncIterator]();
    let done = false;
    try {
      for (;;) {
        const next = await iterator.next();
        done = next.done;
        if (done) return next.value;
        await call.credit();
        this.notify('$/stream', { id: call.id, seq: call.sent++, value: next.value ?? null });
      }
    } finally {
      if (!done) await iterator.return?.();
    }
  }

  async deliver(/** @type {Call} */ call, /** @type {any} */ event) {
    const handlers = this.plugin.eventHandlers;
    const exact = handlers.filter(({ pattern }) => pattern === event.subscription);
    const found = exact.length > 0 ? exact : handlers.filter(({ pattern }) => matches(pattern, event.name));
    if (found.length === 0) throw new NotFoundError(`the plugin has no handler for the event ${event.name}`);
    for (const { fn } of found) await fn(event, this.context(call));
  }

  async fire(/** @type {Call} */ call, /** @type {any} */ timer) {
    const fn = this.plugin.timers.get(timer.name);
    if (!fn) throw new NotFoundError(`the plugin has no handler for the timer ${timer.name}`);
    await fn(timer, this.context(call));
  }
}

// The process

/**
 * Moves the protocol to descriptors of its own: descriptor 1 becomes the log and descriptor 0 is empty, also for child
 * processes. Node.js cannot duplicate a descriptor, but Linux opens a pipe again through `/proc`. The lowest free
 * descriptor is the next to be opened.
 */
function moveStdio() {
  const { O_RDONLY, O_WRONLY, O_APPEND, O_NONBLOCK } = fs.constants;
  const reopen = (/** @type {number} */ fd, /** @type {number} */ flags) => fs.openSync(`/proc/self/fd/${fd}`, flags);
  if (!fs.fstatSync(0).isFIFO() || !fs.fstatSync(1).isFIFO()) throw new Error('the descriptors are no pipes');
  const input = reopen(0, O_RDONLY | O_NONBLOCK);
  const output = reopen(1, O_WRONLY | O_NONBLOCK);
  fs.closeSync(reopen(2, O_WRONLY | O_NONBLOCK)); // Fails here if the log cannot be opened, before anything is closed.
  fs.closeSync(0);
  fs.openSync('/dev/null', 'r');
  fs.closeSync(1);
  reopen(2, O_WRONLY | O_APPEND);
  return {
    input: new net.Socket({ fd: input, readable: true, writable: false }),
    output: new net.Socket({ fd: output, readable: false, writable: true }),
  };
}

/** Returns the streams of the protocol and points `process.stdout`, `process.stdin` and the console elsewhere. */
function takeStdio() {
  try {
    return moveStdio();
  } catch {
    const { stdin: input, stdout: output } = process;
    const empty = Readable.from([]);
    Object.defineProperty(process, 'stdin', { get: () => empty, configurable: true });
    Object.defineProperty(process, 'stdout', { get: () => process.stderr, configurable: true });
    return { input, output };
  }
}

/** Ends the process after an error of the connection. */
function fail(/** @type {any} */ error) {
  if (!(error instanceof ProtocolError)) throw error;
  fs.writeSync(2, `${PACKAGE}: the host broke the protocol: ${error.message}\n`);
  process.exit(STATUS_BROKEN);
}

/** Makes `import` of the package return this instance. `isModule`: the entry is an ECMAScript module. */
function shareWithModules(/** @type {boolean} */ isModule) {
  const url = pathToFileURL(__filename).href;
  const answer = { url, format: 'commonjs', shortCircuit: true };
  const module = /** @type {any} */ (Module);
  if (module.registerHooks) {
    module.registerHooks({
      resolve: (/** @type {string} */ name, /** @type {any} */ context, /** @type {any} */ next) =>
        name === PACKAGE ? answer : next(name, context),
    });
  } else if (module.register && isModule) {
    const source = `export async function resolve(name, context, next) {
      return name === ${JSON.stringify(PACKAGE)} ? ${JSON.stringify(answer)} : next(name, context);
    }`;
    module.register(`data:text/javascript,${encodeURIComponent(source)}`);
  }
}

/** Makes `require` of the package return this instance. */
function shareWithRequire() {
  const module = /** @type {any} */ (Module);
  const resolve = module._resolveFilename;
  module._resolveFilename = function (/** @type {string} */ name, /** @type {any[]} */ ...rest) {
    return name === PACKAGE ? __filename : resolve.call(this, name, ...rest);
  };
}

/** Loads `path/of/module.js:export`, relative to the working directory. */
async function loadEntry(/** @type {unknown} */ entry) {
  const parts = /^(.+):([^:/]+)$/.exec(String(entry));
  if (!parts) throw new InvalidParamsError(`the entry is not of the form path/of/module.js:export: ${entry}`);
  const file = path.resolve(parts[1]);
  shareWithRequire();
  shareWithModules(!file.endsWith('.cjs') && /^\s*(import|export)\b/m.test(fs.readFileSync(file, 'utf8')));
  const loaded = await import(pathToFileURL(file).href);
  const activate = loaded[parts[2]] ?? loaded.default?.[parts[2]];
  if (typeof activate !== 'function') throw new InvalidParamsError(`the entry has no function ${parts[2]}`);
  return activate;
}

/** Runs a plugin on standard input and output. Without `activate`, the entry of `initialize` is loaded. */
function run(/** @type {Function | undefined} */ activate = undefined) {
  process.setSourceMapsEnabled(true);
  const { input, output } = takeStdio();
  const reader = new FrameReader();
  const session = new Session((text) => output.write(frame(text)), {
    load: async (entry) => activate ?? loadEntry(entry),
    exit: () => output.end(() => process.exit(0)),
  });
  input.on('data', (/** @type {Buffer} */ chunk) => {
    try {
      for (const body of reader.push(chunk)) session.receive(decode(body)).catch(fail);
    } catch (error) {
      fail(error);
    }
  });
  input.on('end', () => process.exit(0));
  input.on('error', () => process.exit(0));
  output.on('error', () => process.exit(0));
}

module.exports = {
  run,
  PluginError,
  InvalidRequestError,
  MethodNotFoundError,
  InvalidParamsError,
  InternalError,
  CancelledError,
  PermissionDeniedError,
  TimeoutError,
  LimitError,
  NotFoundError,
  UnavailableError,
  ConflictError,
  /** Parts for the test harness, without a promise of stability. */
  internal: { Session, errorFromWire, errorToWire, contentFromWire, contentToWire, matches },
};

if (require.main === module) run();
