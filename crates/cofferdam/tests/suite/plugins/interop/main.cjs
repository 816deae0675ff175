'use strict';
// A plugin without an SDK: vscode-jsonrpc speaks the protocol.

const rpc = require('vscode-jsonrpc/node');

// The library does not pass the id of a request to its handler, and streams need it.
let id;
const messageStrategy = {
  handleMessage(message, next) {
    id = message.id;
    next(message);
  },
};
const connection = rpc.createMessageConnection(
  new rpc.StreamMessageReader(process.stdin),
  new rpc.StreamMessageWriter(process.stdout),
  undefined,
  { messageStrategy },
);
const log = (message) => connection.sendNotification('log', { level: 'info', message });
const cancelled = new rpc.ResponseError(-32800, 'cancelled');
const acknowledged = new Map();
let wake = () => {};

const methods = {
  echo: (input) => input,
  async kv({ key, value }) {
    await connection.sendRequest('kv.set', { key, value });
    return (await connection.sendRequest('kv.get', { key })).value;
  },
  denied: () => connection.sendRequest('fs.read', { path: '/etc/passwd' }).catch((error) => error.data.kind),
  async abandon() {
    const source = new rpc.CancellationTokenSource();
    const params = { language: 'python', code: 'import time; time.sleep(60)' };
    const request = connection.sendRequest('sandbox.execute', params, source.token);
    source.cancel();
    return request.catch((error) => error.code);
  },
  async wait(_, token, call) {
    await connection.sendProgress(new rpc.ProgressType(), call, { message: 'waiting' });
    await new Promise((resolve) => token.onCancellationRequested(resolve));
    log('cancelled');
    throw cancelled;
  },
  async count({ n }, token, call) {
    acknowledged.set(call, 0);
    for (let seq = 0; seq < n; seq++) {
      while (seq - acknowledged.get(call) >= 64) await new Promise((resolve) => (wake = resolve));
      await connection.sendNotification('$/stream', { id: call, seq, value: seq });
    }
    return n;
  },
};

connection.onRequest('initialize', () => ({
  protocolVersion: 1, sdk: { name: 'vscode-jsonrpc', version: '10' }, methods: Object.keys(methods),
}));
connection.onRequest('call', ({ method, input }, token) => methods[method](input, token, id));
connection.onRequest('ping', () => void log('ping'));
connection.onRequest('shutdown', () => null);
connection.onNotification('exit', () => process.exit(0));
connection.onNotification('$/streamAck', ({ id, count }) => {
  acknowledged.set(id, count);
  wake();
});
connection.listen();
