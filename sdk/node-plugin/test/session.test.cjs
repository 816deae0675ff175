'use strict';
const assert = require('node:assert/strict');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { after, test } = require('node:test');
const { Host, frame } = require('./host.cjs');

// A copy outside of the package, where Node.js itself does not find the package.
const PLUGINS = fs.mkdtempSync(path.join(os.tmpdir(), 'plugin-test-'));
fs.cpSync(path.join(__dirname, 'plugins'), PLUGINS, { recursive: true });
after(() => fs.rmSync(PLUGINS, { recursive: true }));

const DENIED = { code: -32001, message: 'no', data: { kind: 'permission-denied', permission: 'fs.read' } };

/** Runs a test with an initialized plugin, which must end with status 0. */
function check(name, options, body) {
  test(name, async () => {
    const host = new Host(PLUGINS, options);
    try {
      assert.equal((await host.initialize()).error, undefined);
      await body(host);
      assert.equal(await (host.process.stdin.writableEnded ? host.ended : host.exit()), 0, host.log);
    } finally {
      host.kill();
    }
  });
}

check('values_return_unchanged', {}, async (host) => {
  const values = [null, 0, 'ü\u2028\ud83d\ude00', [[], {}], { a: { b: [1.5] } }, 'x'.repeat(4 << 20)];
  for (const value of values) assert.deepEqual((await host.call('echo', value)).result, value);
});

check('answers_have_the_correlation_of_their_request', {}, async (host) => {
  const answers = await Promise.all([1, 2, 3].map((n) => host.call('echo', n)));
  for (const { id, correlationId } of answers) assert.equal(correlationId, `c-${id}`);
});

check('thrown_errors_have_type_and_stack', {}, async (host) => {
  const { error } = await host.call('fail', 'broken');
  assert.equal(error.code, -32003);
  assert.equal(error.message, 'broken');
  assert.equal(error.data.type, 'RangeError');
  assert.match(error.data.stack, /main\.cjs:\d+/);
  assert.equal((await host.call('fail', 'x'.repeat(10_000))).error.message.length, 4096);
});

check('results_that_cannot_be_sent_are_errors', {}, async (host) => {
  assert.equal((await host.call('cycle')).error.data.kind, 'plugin-failed');
  assert.equal((await host.call('large')).error.data.kind, 'limit');
  assert.equal((await host.call('deep')).error.data.kind, 'limit');
});

check('unknown_methods_are_not_found', {}, async (host) => {
  assert.equal((await host.call('none')).error.code, -32601);
  assert.equal((await host.request('none', {})).error.code, -32601);
  assert.equal((await host.initialize()).error.code, -32600);
});

check('prints_reach_the_log_only', {}, async (host) => {
  await host.call('print', 'one');
  assert.equal(await host.exit(), 0);
  assert.match(host.log, /console one\nstream one/);
});

check('raw_prints_and_children_reach_the_log_with_pipes', { pipes: true }, async (host) => {
  await host.call('print', 'one');
  await host.call('print-raw', 'two');
  assert.equal((await host.call('stdin')).result, '');
  assert.equal(await host.exit(), 0);
  assert.match(host.log, /console one\nstream one\nraw two\nchild two/);
});

check('streams_wait_for_acknowledgements', {}, async (host) => {
  const items = () => host.received.filter(({ method }) => method === '$/stream');
  const answer = host.call('count', { n: 100 });
  // The 64th item and a ping after it: the SDK had the time to send a 65th.
  await new Promise((resolve) => (host.onMessage = () => items().length === 64 && resolve()));
  await host.request('ping');
  assert.equal(items().length, 64);
  host.send({ jsonrpc: '2.0', method: '$/streamAck', params: { id: items()[0].params.id, count: 64 } });
  assert.equal((await answer).result, 100);
  assert.deepEqual(items().map(({ params }) => params.seq), Array.from({ length: 100 }, (_, i) => i));
});

check('cancelled_calls_answer_once', {}, async (host) => {
  const answer = host.call('sleep');
  host.send({ jsonrpc: '2.0', method: '$/cancelRequest', params: { id: host.lastId } });
  host.send({ jsonrpc: '2.0', method: '$/cancelRequest', params: { id: 999 } });
  assert.equal((await answer).error.code, -32800);
  const stream = host.call('count', { n: 1000 });
  host.send({ jsonrpc: '2.0', method: '$/cancelRequest', params: { id: host.lastId } });
  assert.equal((await stream).error.code, -32800);
  await host.request('ping');
  assert.equal(host.received.filter(({ error }) => error?.code === -32800).length, 2);
});

test('cancelling_a_call_cancels_its_requests', async () => {
  const host = new Host(PLUGINS);
  host.receive = function (message) {
    // The answer to `fs.read` is its cancellation.
    if (message.method !== '$/cancelRequest') return message.method ? undefined : Host.prototype.receive.call(this, message);
    this.received.push(message);
    this.send({ jsonrpc: '2.0', id: message.params.id, error: { code: -32800, message: 'cancelled' } });
  };
  try {
    await host.initialize();
    const answer = host.call('read', 'file');
    host.send({ jsonrpc: '2.0', method: '$/cancelRequest', params: { id: host.lastId } });
    const { error, correlationId } = await answer;
    assert.equal(error.code, -32800);
    assert.equal(host.received.find(({ method }) => method).correlationId, correlationId);
    assert.equal(await host.exit(), 0);
  } finally {
    host.kill();
  }
});

check('method_options_apply', {}, async (host) => {
  assert.equal((await host.call('slow')).error.code, -32002);
  assert.equal((await host.call('flaky')).result, 3);
  const { error } = await host.call('guarded');
  assert.equal(error.code, -32001);
  assert.equal(error.data.permission, 'fs.read');
});

check('granted_permission_opens_a_method', { permissions: ['fs.read'] }, async (host) => {
  assert.equal((await host.call('guarded')).result, 'open');
});

check('errors_of_services_pass_through', { serve: () => ({ error: DENIED }) }, async (host) => {
  const { error } = await host.call('read', 'secret');
  assert.deepEqual(error, DENIED);
});

check('binary_contents_are_decoded', { serve: () => ({ result: { content: { base64: 'aGk=' }, size: 2 } }) }, async (host) => {
  assert.equal((await host.call('read', 'file')).result, 'hi');
});

const stored = { serve: () => ({ result: { value: 7, version: 1 } }) };
check('context_crosses_and_correlates', stored, async (host) => {
  const context = { tenant: 't', depth: 2, metadata: { a: 1 }, deadline: '2030-01-01T00:00:00Z' };
  const { result, correlationId } = await host.call('context', null, context);
  assert.deepEqual(result, {
    ...context, deadline: '2030-01-01T00:00:00.000Z', config: { greeting: 'hello' }, value: 7, same: true,
  });
  assert.equal(host.received.find(({ method }) => method === 'kv.get').correlationId, correlationId);
});

test('requests_without_an_answer_stay_below_the_limit', async () => {
  let open = 0;
  let most = 0;
  const held = [];
  const host = new Host(PLUGINS);
  host.receive = function (message) {
    if (message.method !== 'kv.set') return Host.prototype.receive.call(this, message);
    most = Math.max(most, ++open);
    held.push(message);
    if (held.length === 256) setImmediate(() => held.splice(0).forEach(({ id }) => {
      open--;
      this.send({ jsonrpc: '2.0', id, result: { version: 1 } });
    }));
  };
  await host.initialize();
  assert.equal((await host.call('many', 512)).result, null);
  assert.equal(most, 256);
  assert.equal(await host.exit(), 0);
});

check('temporary_files_are_tracked_and_removed_with_their_call', {}, async (host) => {
  const { result } = await host.call('temporary');
  assert.equal(result.mode, 0o600);
  assert.equal(result.size, 0);
  assert.equal(host.received.find(({ method }) => method === 'resources.track').params.path, result.file);
  assert.ok(!fs.existsSync(result.file));
});

check('events_and_timers_reach_handlers', { serve: () => ({ result: { version: 1 } }) }, async (host) => {
  const event = { id: 'e', name: 'weather.changed', payload: 5, publisher: 'p', attempt: 1, subscription: 'weather.*' };
  assert.equal((await host.request('events.deliver', event)).result, null);
  assert.equal((await host.request('events.deliver', { ...event, name: 'x.y', subscription: 'x.*' })).error.code, -32005);
  assert.equal((await host.request('scheduler.fire', { id: 't', name: 'tick', missed: 3 })).result, null);
  const keys = host.received.filter(({ method }) => method === 'kv.set').map(({ params }) => params.key);
  assert.deepEqual(keys, ['weather.changed', 'tick']);
});

check('batches_answer_each_request', {}, async (host) => {
  const call = (id) => ({ jsonrpc: '2.0', id, method: 'call', params: { method: 'echo', input: id } });
  const answers = [101, 102].map((id) => host.expect(id));
  host.send([call(101), { jsonrpc: '2.0', method: '$/unknown' }, call(102)]);
  assert.deepEqual((await Promise.all(answers)).map(({ result }) => result), [101, 102]);
});

check('frames_may_be_split_and_glued', {}, async (host) => {
  const answers = [201, 202].map((id) => host.expect(id));
  const type = 'Content-Type: application/json; charset=utf-8\r\n';
  const ping = (id) => `${type}${frame({ jsonrpc: '2.0', id, method: 'ping' }).replace('Content', 'CONTENT')}`;
  for (const byte of Buffer.from(ping(201))) host.process.stdin.write(Buffer.from([byte]));
  host.process.stdin.write(ping(202));
  assert.deepEqual((await Promise.all(answers)).map(({ result }) => result), [null, null]);
});

check('shutdown_runs_handlers', {}, async (host) => {
  assert.equal((await host.request('shutdown')).result, null);
  assert.equal(await host.exit(), 0);
  assert.match(host.log, /shutdown handler/);
});

const broken = {
  missing_length: 'X: 1\r\n\r\n{}',
  repeated_length: 'Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}',
  huge_length: 'Content-Length: 8388609\r\n\r\n',
  negative_length: 'Content-Length: -1\r\n\r\n',
  long_headers: `X: ${'x'.repeat(5000)}`,
  foreign_charset: 'Content-Length: 2\r\nContent-Type: a; charset=latin1\r\n\r\n{}',
  no_json: frame('{'),
  not_utf8: Buffer.concat([Buffer.from('Content-Length: 3\r\n\r\n'), Buffer.from([0x22, 0xff, 0x22])]),
  empty_batch: frame('[]'),
  long_batch: frame(JSON.stringify(Array(101).fill({ jsonrpc: '2.0', method: 'x' }))),
  deep: frame('['.repeat(65) + ']'.repeat(65)),
  not_a_message: frame('1'),
  unknown_id: frame('{"jsonrpc":"2.0","id":77,"result":1}'),
  long_id: frame({ jsonrpc: '2.0', id: 'x'.repeat(129), method: 'ping' }),
  duplicate_id: frame({ jsonrpc: '2.0', id: 1, method: 'initialize', params: {} }).repeat(2),
};
for (const [name, bytes] of Object.entries(broken)) {
  test(`broken_frame_ends_the_process_${name}`, async () => {
    const host = new Host(PLUGINS);
    host.process.stdin.write(bytes);
    assert.equal(await host.ended, 65, host.log);
    assert.match(host.log, /the host broke the protocol/);
  });
}

test('end_of_input_ends_the_process', async () => {
  const host = new Host(PLUGINS);
  await host.initialize();
  host.call('sleep').catch(() => {});
  host.process.stdin.end();
  assert.equal(await host.ended, 0);
});

test('modules_share_the_instance_of_the_package', async () => {
  const host = new Host(path.join(PLUGINS, 'esm'), { entry: 'main.mjs:activate', serve: () => ({ error: DENIED }) });
  assert.equal((await host.initialize()).error, undefined);
  assert.equal((await host.call('missing')).error.code, -32005);
  assert.equal((await host.call('denied')).result, true);
  assert.equal(await host.exit(), 0);
});

test('entries_that_fail_are_reported', async () => {
  for (const entry of ['none.cjs:activate', 'main.cjs:none', 'main.cjs', '']) {
    const host = new Host(PLUGINS, { entry });
    const { error } = await host.initialize();
    assert.ok(['invalid-params', 'plugin-failed'].includes(error.data.kind), entry);
    assert.equal(await host.exit(), 0);
  }
});
