'use strict';
const assert = require('node:assert/strict');
const fs = require('node:fs');
const { test } = require('node:test');
const sdk = require('../cofferdam-plugin.cjs');
const { Harness } = require('../testing.cjs');

/** Returns a harness for one method `run`. */
function harness(run, options) {
  return new Harness((plugin) => plugin.method('run', run), options);
}

test('permissions_are_checked', async () => {
  const requests = {
    'fs.read': (ctx) => ctx.fs.read('a'),
    'secrets.read': (ctx) => ctx.secrets.get('A'),
    'events.publish': (ctx) => ctx.events.publish('a'),
    'scheduler.create': (ctx) => ctx.scheduler.create('a', { every: '1h' }),
    'calendar.read': (ctx) => ctx.calendar.read('a'),
    'artifacts.write': (ctx) => ctx.artifacts.write('a', 'b'),
    net: (ctx) => ctx.net.fetch('https://example.com'),
    invoke: (ctx) => ctx.invoke('a', 'b'),
    'sandbox.execute': (ctx) => ctx.execute('python', '1'),
  };
  for (const [permission, request] of Object.entries(requests)) {
    const answer = harness((_, ctx) => request(ctx)).call('run');
    await assert.rejects(answer, (error) => error instanceof sdk.PermissionDeniedError && error.data.permission === permission);
  }
});

test('values_have_versions', async () => {
  const run = async (_, ctx) => {
    const { version } = await ctx.kv.set('a', 1);
    await ctx.kv.set('a', 2, { ifVersion: version });
    await assert.rejects(ctx.kv.set('a', 3, { ifVersion: version }), sdk.ConflictError);
    await ctx.kv.set('b', 1);
    assert.deepEqual(await ctx.kv.list({ limit: 1 }), { keys: ['a'], more: true });
    return ctx.kv.delete('b');
  };
  assert.deepEqual(await harness(run).call('run'), { deleted: true });
});

test('files_and_artifacts_keep_bytes', async () => {
  const bytes = Buffer.from([0, 255, 10]);
  const permissions = ['fs.read', 'fs.write', 'artifacts.read', 'artifacts.write'];
  const run = async (_, ctx) => {
    await ctx.fs.write('out', bytes);
    await ctx.fs.write('out', 'x', { append: true });
    const { digest } = await ctx.artifacts.write('a', (await ctx.fs.read('out')).content);
    return Buffer.from((await ctx.artifacts.read({ digest })).content).toString('hex');
  };
  assert.equal(await harness(run, { permissions }).call('run'), '00ff0a78');
});

test('fetches_reach_allowed_hosts_only', async () => {
  const fetch = ({ url }) => ({ status: 201, body: url });
  const run = async (url, ctx) => {
    const { status, body } = await ctx.net.fetch(url);
    return [status, Buffer.from(body).toString()];
  };
  const host = harness(run, { permissions: ['net'], net: ['a.example'], fetch });
  assert.deepEqual(await host.call('run', 'https://a.example/x'), [201, 'https://a.example/x']);
  await assert.rejects(host.call('run', 'https://b.example/'), { kind: 'permission-denied' });
});

test('calls_can_be_cancelled', async () => {
  const controller = new AbortController();
  const run = (_, ctx) => new Promise((_, reject) => ctx.signal.addEventListener('abort', () => reject(ctx.signal.reason)));
  const answer = harness(run).call('run', null, { signal: controller.signal });
  setImmediate(() => controller.abort());
  await assert.rejects(answer, sdk.CancelledError);
});

test('streams_exceed_the_credit', async () => {
  async function* run(n) {
    for (let i = 0; i < n; i++) yield i;
    return 'end';
  }
  const { items, result } = await harness(run).stream('run', 200);
  assert.equal(items.length, 200);
  assert.equal(result, 'end');
});

test('temporary_files_are_removed', async () => {
  let outside;
  let failed;
  const host = new Harness(async (plugin) => {
    outside = await plugin.temporaryFile();
    plugin.method('run', (_, ctx) => ctx.temporaryFile());
    plugin.onTimer('tick', async (_, ctx) => {
      failed = await ctx.temporaryFile();
      throw new Error('the timer failed');
    });
  });
  assert.ok(!fs.existsSync(await host.call('run')));
  await assert.rejects(host.fire('tick'), /the timer failed/);
  assert.ok(!fs.existsSync(failed));
  assert.ok(fs.existsSync(outside));
  await host.stop();
  assert.ok(!fs.existsSync(outside));
});

test('events_timers_logs_and_progress_are_recorded', async () => {
  const seen = [];
  const host = new Harness((plugin) => {
    plugin.onEvent('a.**', (event) => seen.push(event.payload));
    plugin.onTimer('tick', (timer, ctx) => ctx.log.warn('tick', { n: timer.payload }));
    plugin.method('run', (_, ctx) => ctx.progress({ percent: 5 }));
  });
  await host.deliver('a.b.c', 1);
  await host.fire('tick', 2);
  await host.call('run');
  assert.deepEqual(seen, [1]);
  assert.deepEqual(host.logs, [{ level: 'warn', message: 'tick', fields: { n: 2 } }]);
  assert.deepEqual(host.progress, [{ percent: 5 }]);
  await assert.rejects(host.deliver('a'), sdk.NotFoundError);
});
