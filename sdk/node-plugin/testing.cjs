// SPDX-License-Identifier: Apache-2.0
'use strict';
/**
 * Harness that runs the methods of a plugin without a host: services in memory, with the host's permission checks.
 *
 * Messages pass through the same session as with a host, so they obey its limits. Recurrences of the calendar and the
 * times of timers are not computed: a test fires timers itself.
 */

const { createHash } = require('node:crypto');
const fs = require('node:fs');
const sdk = require('./cofferdam-plugin.cjs');

const { Session, errorFromWire, errorToWire, contentFromWire, contentToWire, matches } = sdk.internal;

/** @type {Record<string, string>} */
const PERMISSIONS = {
  'fs.read': 'fs.read', 'fs.stat': 'fs.read', 'fs.list': 'fs.read',
  'fs.write': 'fs.write', 'fs.mkdir': 'fs.write', 'fs.remove': 'fs.write',
  'net.fetch': 'net',
  'secrets.get': 'secrets.read', 'secrets.set': 'secrets.write', 'secrets.delete': 'secrets.write',
  'events.publish': 'events.publish', 'events.subscribe': 'events.subscribe', 'events.unsubscribe': 'events.subscribe',
  'scheduler.create': 'scheduler.create', 'scheduler.list': 'scheduler.create', 'scheduler.cancel': 'scheduler.cancel',
  'calendar.create': 'calendar.write', 'calendar.delete': 'calendar.write', 'calendar.import': 'calendar.write',
  'calendar.read': 'calendar.read', 'calendar.query': 'calendar.read', 'calendar.export': 'calendar.read',
  'artifacts.write': 'artifacts.write', 'artifacts.read': 'artifacts.read', 'artifacts.list': 'artifacts.read',
  invoke: 'invoke', 'sandbox.execute': 'sandbox.execute',
};

/** @param {string} permission @param {string} target @param {string} remedy */
function denied(permission, target, remedy) {
  const data = { permission, target, remedy };
  return new sdk.PermissionDeniedError(`the manifest does not permit ${permission} for ${target}`, { data });
}

/** Returns the value of a map. @param {Map<string, any>} map @param {string} key @param {string} kind */
function found(map, key, kind) {
  if (!map.has(key)) throw new sdk.NotFoundError(`the ${kind} ${key} does not exist`);
  return map.get(key);
}

class Harness {
  /** @param {any} activate @param {any} options */
  constructor(activate, options = {}) {
    this.activate = activate;
    this.options = { permissions: [], config: {}, secrets: {}, files: {}, net: [], publish: ['**'], ...options };
    this.kv = new Map();
    this.files = new Map(Object.entries(this.options.files).map(([name, content]) => [name, Buffer.from(content)]));
    this.secrets = new Map(Object.entries(this.options.secrets));
    /** @type {any[]} */
    this.published = [];
    this.timers = new Map();
    this.calendar = new Map();
    this.artifacts = new Map();
    /** @type {any[]} */
    this.logs = [];
    /** @type {any[]} */
    this.progress = [];
    /** @type {Set<string>} */
    this.temporary = new Set();
    this.lastId = 0;
    /** @type {Promise<any> | undefined} */
    this.started = undefined;
    /** @type {Map<number, any>} */
    this.pending = new Map();
    this.services = this.createServices();
    this.session = new Session((/** @type {string} */ text) => this.receive(JSON.parse(text)), {
      load: async () => this.activate,
      exit: () => {},
    });
  }

  // Connection

  /** @param {string} method @param {object} params @param {any} extra */
  request(method, params, extra = {}) {
    const id = ++this.lastId;
    const answer = new Promise((resolve, reject) => this.pending.set(id, { ...extra, resolve, reject }));
    extra.signal?.addEventListener('abort', () => this.notify('$/cancelRequest', { id }), { once: true });
    this.session.receive({ jsonrpc: '2.0', id, method, params: JSON.parse(JSON.stringify(params)) });
    return answer;
  }

  /** @param {string} method @param {object} params */
  notify(method, params) {
    this.session.receive({ jsonrpc: '2.0', method, params });
  }

  /** @param {any} message */
  receive(message) {
    if (message.method === undefined) {
      const pending = this.pending.get(message.id);
      this.pending.delete(message.id);
      if (message.error) pending.reject(errorFromWire(message.error));
      else pending.resolve(message.result);
    } else if (message.id !== undefined) {
      this.serve(message);
    } else {
      this.notified(message);
    }
  }

  /** @param {any} message */
  notified({ method, params }) {
    if (method === 'log') this.logs.push(params);
    if (method === '$/progress') this.progress.push(params.value);
    if (method === '$/stream') {
      this.pending.get(params.id)?.onItem?.(params.value);
      setImmediate(() => this.notify('$/streamAck', { id: params.id, count: params.seq + 1 }));
    }
  }

  /** @param {any} message */
  async serve({ id, method, params, correlationId }) {
    const answer = { jsonrpc: '2.0', id, correlationId };
    try {
      this.checkPermission(method, params);
      const service = this.services[method];
      if (!service) throw new sdk.MethodNotFoundError(`the host has no method ${method}`);
      const result = (await service(params)) ?? null;
      this.session.receive(JSON.parse(JSON.stringify({ ...answer, result })));
    } catch (error) {
      this.session.receive({ ...answer, error: errorToWire(error) });
    }
  }

  /** @param {string} method @param {any} params */
  checkPermission(method, params) {
    const permission = PERMISSIONS[method];
    if (permission === undefined || this.options.permissions.includes(permission)) return;
    const target = params.path ?? params.url ?? params.name ?? params.plugin ?? params.pattern ?? method;
    throw denied(permission, target, `add "${permission}" to permissions`);
  }

  // Services

  /** @returns {Record<string, (params: any) => any>} */
  createServices() {
    return {
      ...this.createStores(),
      ...this.createFiles(),
      ...this.createCalendar(),
      'config.get': () => ({ config: this.options.config }),
      'net.fetch': (params) => this.fetch(params),
      'events.publish': ({ name, payload = null }) => {
        if (!this.options.publish.some((/** @type {string} */ pattern) => matches(pattern, name))) {
          throw denied('events.publish', name, `add "${name}" to events.publish`);
        }
        this.published.push({ name, payload });
        return { id: `event-${this.published.length}`, subscribers: 0 };
      },
      'events.subscribe': ({ pattern }) => ({ subscription: pattern }),
      'events.unsubscribe': () => null,
      'scheduler.create': (params) => {
        const id = `timer-${++this.lastId}`;
        this.timers.set(id, { id, ...params });
        return { id, next: params.at ?? new Date().toISOString() };
      },
      'scheduler.list': () => ({ timers: [...this.timers.values()] }),
      'scheduler.cancel': ({ id }) => ({ cancelled: this.timers.delete(id) }),
      invoke: ({ plugin, method, input }) => {
        if (!this.options.invoke) throw new sdk.NotFoundError(`the harness has no plugin ${plugin}`);
        return this.options.invoke(plugin, method, input);
      },
      'sandbox.execute': ({ language, code }) => {
        if (!this.options.execute) throw new sdk.UnavailableError('the harness has no execute');
        const empty = { stdout: '', stderr: '', exitCode: 0, result: null, killedBy: null };
        return { ...empty, ...this.options.execute(language, code) };
      },
      'resources.track': ({ path }) => {
        this.temporary.add(path);
      },
    };
  }

  /** @returns {Record<string, (params: any) => any>} */
  createStores() {
    const version = (/** @type {string} */ key, /** @type {number | undefined} */ expected) => {
      const current = this.kv.get(key)?.version ?? 0;
      if (expected !== undefined && expected !== current) throw new sdk.ConflictError(`the key ${key} was changed`);
      return current;
    };
    const secret = (/** @type {string} */ permission, /** @type {string} */ name) => {
      if (!this.secrets.has(name)) throw denied(permission, name, `add "${name}" to secrets`);
      return name;
    };
    return {
      'kv.get': ({ key }) => this.kv.get(key) ?? { value: null, version: 0 },
      'kv.set': ({ key, value, ifVersion }) => {
        const next = version(key, ifVersion) + 1;
        this.kv.set(key, { value, version: next });
        return { version: next };
      },
      'kv.delete': ({ key, ifVersion }) => {
        version(key, ifVersion);
        return { deleted: this.kv.delete(key) };
      },
      'kv.list': ({ prefix = '', after = '', limit = 100 }) => {
        const keys = [...this.kv.keys()].filter((key) => key.startsWith(prefix) && key > after).sort();
        return { keys: keys.slice(0, limit), more: keys.length > limit };
      },
      'secrets.get': ({ name }) => ({ value: this.secrets.get(secret('secrets.read', name)) }),
      'secrets.set': ({ name, value }) => {
        this.secrets.set(secret('secrets.write', name), value);
      },
      'secrets.delete': ({ name }) => {
        this.secrets.set(secret('secrets.write', name), '');
      },
    };
  }

  /** @returns {Record<string, (params: any) => any>} */
  createFiles() {
    return {
      'fs.read': ({ path, offset = 0, length = Infinity }) => {
        const content = found(this.files, path, 'file');
        return { content: contentToWire(content.subarray(offset, offset + length)), size: content.length };
      },
      'fs.stat': ({ path }) => {
        const content = found(this.files, path, 'file');
        return { kind: 'file', size: content.length, modified: new Date(0).toISOString() };
      },
      'fs.list': ({ path }) => {
        const prefix = path === '.' ? '' : `${path}/`;
        const inside = [...this.files].filter(([name]) => name.startsWith(prefix));
        const names = inside.map(([name, { length }]) => ({ name: name.slice(prefix.length), size: length }));
        return { entries: names.filter(({ name }) => !name.includes('/')).map((entry) => ({ kind: 'file', ...entry })) };
      },
      'fs.write': ({ path, content, append = false }) => {
        const start = append ? this.files.get(path) ?? Buffer.alloc(0) : Buffer.alloc(0);
        const bytes = Buffer.concat([start, contentFromWire(content)]);
        this.files.set(path, bytes);
        return { size: bytes.length };
      },
      'fs.mkdir': () => null,
      'fs.remove': ({ path }) => {
        found(this.files, path, 'file');
        this.files.delete(path);
      },
      'artifacts.write': ({ name, content, mediaType = 'application/octet-stream', metadata = {} }) => {
        const bytes = contentFromWire(content);
        const digest = `sha256:${createHash('sha256').update(bytes).digest('hex')}`;
        this.artifacts.set(digest, { name, digest, size: bytes.length, mediaType, metadata, content });
        return { digest, size: bytes.length };
      },
      'artifacts.read': ({ digest, name }) => {
        const named = [...this.artifacts.values()].reverse().find((artifact) => artifact.name === name);
        return found(this.artifacts, digest ?? named?.digest ?? name, 'artifact');
      },
      'artifacts.list': ({ after = '', limit = 100 }) => {
        const all = [...this.artifacts.values()].filter(({ digest }) => digest > after);
        const artifacts = all.sort((a, b) => (a.digest < b.digest ? -1 : 1)).slice(0, limit);
        return { artifacts: artifacts.map(({ content, ...rest }) => rest), more: all.length > limit };
      },
    };
  }

  /** @returns {Record<string, (params: any) => any>} */
  createCalendar() {
    return {
      'calendar.create': (entry) => {
        const id = `entry-${++this.lastId}`;
        this.calendar.set(id, { id, ...entry });
        return { id };
      },
      'calendar.read': ({ id }) => found(this.calendar, id, 'entry'),
      'calendar.query': ({ from, to, limit = 100 }) => {
        const inside = [...this.calendar.values()].filter(
          ({ start, end = start }) => Date.parse(start) < Date.parse(to) && Date.parse(end) >= Date.parse(from),
        );
        const occurrences = inside.map(({ id, summary, start, end = start }) => ({ id, summary, start, end }));
        return { occurrences: occurrences.slice(0, limit) };
      },
      'calendar.delete': ({ id }) => ({ deleted: this.calendar.delete(id) }),
    };
  }

  /** @param {any} params */
  fetch({ url, body, ...options }) {
    const { host } = new URL(url);
    if (!this.options.net.includes(host)) throw denied('net', host, `add "${host}:443" to sandbox.net`);
    if (!this.options.fetch) throw new sdk.UnavailableError('the harness has no fetch');
    const sent = body === undefined ? {} : { body: contentFromWire(body) };
    const { status = 200, headers = {}, body: content = '' } = this.options.fetch({ url, ...options, ...sent });
    return { status, headers, body: contentToWire(content), truncated: false };
  }

  // For tests

  start() {
    const { name = 'test', version = '0.0.0', permissions, config } = this.options;
    this.started ??= this.request('initialize', {
      protocolVersion: 1, plugin: { name, version }, entry: 'test:activate', methods: [], permissions, config,
      mode: 'development',
    });
    return this.started;
  }

  /** @param {string} method @param {unknown} input @param {any} options */
  async call(method, input = null, { signal, onItem, ...context } = {}) {
    await this.start();
    return this.request('call', { method, input, context }, { signal, onItem });
  }

  /** @param {string} method @param {unknown} input @param {any} options */
  async stream(method, input = null, options = {}) {
    /** @type {unknown[]} */
    const items = [];
    const result = await this.call(method, input, { ...options, onItem: (/** @type {any} */ item) => items.push(item) });
    return { items, result };
  }

  /** @param {string} name @param {unknown} payload */
  async deliver(name, payload = null) {
    await this.start();
    const id = `event-${++this.lastId}`;
    await this.request('events.deliver', { id, name, payload, publisher: 'test', attempt: 1, subscription: name });
  }

  /** @param {string} name @param {unknown} payload */
  async fire(name, payload = null) {
    await this.start();
    const scheduled = new Date().toISOString();
    await this.request('scheduler.fire', { id: `fire-${++this.lastId}`, name, payload, scheduled, missed: 0 });
  }

  async stop() {
    if (this.started) await this.request('shutdown', {});
    for (const file of this.temporary) fs.rmSync(file, { force: true });
  }
}

module.exports = { Harness };
