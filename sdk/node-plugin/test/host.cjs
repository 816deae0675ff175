'use strict';
/** A host for tests: runs a plugin process and exchanges frames with it. */

const { spawn } = require('node:child_process');
const path = require('node:path');

const ANSWER_TIMEOUT_MS = 30_000;
const SDK = path.join(__dirname, '..', 'cofferdam-plugin.cjs');

function frame(message) {
  const body = typeof message === 'string' ? message : JSON.stringify(message);
  return `Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;
}

class Host {
  /** Starts the SDK in a directory. `serve` answers requests of the plugin. */
  constructor(cwd, { entry = 'main.cjs:activate', serve = () => ({ result: null }), permissions = [], pipes } = {}) {
    // Node.js gives sockets to child processes. A shell makes pipes, but hides the exit status.
    const shell = pipes ? ['sh', '-c', '{ cat | "$0" "$@" 2>&1 1>&3 | cat >&2; } 3>&1 | cat'] : [];
    const [program, ...args] = [...shell, process.execPath, SDK];
    this.process = spawn(program, args, { cwd, stdio: ['pipe', 'pipe', 'pipe'] });
    this.entry = entry;
    this.serve = serve;
    this.permissions = permissions;
    this.received = [];
    this.pending = new Map();
    this.onMessage = () => {};
    this.log = '';
    this.bytes = Buffer.alloc(0);
    this.lastId = 0;
    this.process.stdout.on('data', (chunk) => {
      try {
        this.read(chunk);
      } catch (error) {
        this.log += error.message;
        this.kill();
      }
    });
    this.process.stderr.on('data', (chunk) => (this.log += chunk));
    this.process.stdin.on('error', () => {});
    this.ended = new Promise((resolve) => this.process.on('close', (code) => resolve(code)));
    // Without this, a plugin that does not answer would stop the tests.
    const timer = setTimeout(() => this.kill(), ANSWER_TIMEOUT_MS);
    this.ended.then(() => clearTimeout(timer));
    this.ended.then(() => this.pending.forEach(({ reject }) => reject(new Error(`the plugin ended: ${this.log}`))));
  }

  read(chunk) {
    this.bytes = Buffer.concat([this.bytes, chunk]);
    for (;;) {
      const end = this.bytes.indexOf('\r\n\r\n');
      if (end < 0) return;
      const header = /^Content-Length: ([0-9]+)$/.exec(this.bytes.toString('latin1', 0, end));
      if (!header) throw new Error(`no frame: ${this.bytes}`);
      const stop = end + 4 + Number(header[1]);
      if (this.bytes.length < stop) return;
      const message = JSON.parse(this.bytes.toString('utf8', end + 4, stop));
      this.bytes = this.bytes.subarray(stop);
      [message].flat().forEach((part) => this.receive(part));
    }
  }

  receive(message) {
    this.received.push(message);
    this.onMessage(message);
    if (message.method === undefined) {
      this.pending.get(message.id)?.resolve(message);
      this.pending.delete(message.id);
    } else if (message.id !== undefined) {
      const { id, correlationId } = message;
      this.send({ jsonrpc: '2.0', id, correlationId, ...this.serve(message) });
    }
  }

  send(message) {
    this.process.stdin.write(frame(message));
  }

  /** Sends a request and returns the whole response. */
  request(method, params, id = ++this.lastId) {
    const answer = this.expect(id);
    this.send({ jsonrpc: '2.0', id, method, params, correlationId: `c-${id}` });
    return answer;
  }

  /** Returns the response to a request that the test sends itself. */
  expect(id) {
    return new Promise((resolve, reject) => this.pending.set(id, { resolve, reject }));
  }

  initialize() {
    return this.request('initialize', {
      protocolVersion: 1, plugin: { name: 'test', version: '1.0.0' }, entry: this.entry, methods: [],
      permissions: this.permissions, config: { greeting: 'hello' }, mode: 'production', maxMessage: 8 << 20,
    });
  }

  call(method, input = null, context = {}) {
    return this.request('call', { method, input, context });
  }

  /** Ends the plugin and returns its exit status. */
  exit() {
    this.process.stdin.end(frame({ jsonrpc: '2.0', method: 'exit' }));
    return this.ended;
  }

  /** Ends a plugin that is left over after a failure. */
  kill() {
    this.process.stdin.destroy();
    this.process.kill('SIGKILL');
  }
}

module.exports = { Host, frame };
