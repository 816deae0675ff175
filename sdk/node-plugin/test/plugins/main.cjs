'use strict';
/** Plugin of the tests. */

const { execSync } = require('node:child_process');
const fs = require('node:fs');
const { setTimeout: delay } = require('node:timers/promises');
const sdk = require('@cofferdam/plugin');

async function* count({ n }) {
  for (let i = 0; i < n; i++) yield i;
  return n;
}

exports.activate = (plugin) => {
  let failures = 0;
  plugin.method('echo', (input) => input);
  plugin.method('fail', (message) => {
    throw new RangeError(message);
  });
  plugin.method('cycle', () => {
    const value = {};
    value.self = value;
    return value;
  });
  plugin.method('large', () => 'x'.repeat(9 << 20));
  plugin.method('deep', () => JSON.parse('['.repeat(64) + ']'.repeat(64)));
  plugin.method('print', (text) => {
    console.log(`console ${text}`);
    process.stdout.write(`stream ${text}\n`);
  });
  plugin.method('print-raw', (text) => {
    fs.writeSync(1, `raw ${text}\n`);
    execSync(`echo child ${text}`, { stdio: 'inherit' });
  });
  plugin.method('stdin', () => fs.readFileSync(0, 'utf8'));
  plugin.method('count', count);
  plugin.method('sleep', (_, ctx) => delay(60_000, null, { signal: ctx.signal }));
  plugin.method('slow', { timeout: '20ms' }, (_, ctx) => delay(60_000, null, { signal: ctx.signal }));
  plugin.method('flaky', { retry: 2 }, () => {
    if (++failures < 3) throw new Error('again');
    return failures;
  });
  plugin.method('guarded', { permission: 'fs.read' }, () => 'open');
  plugin.method('read', async (path, ctx) => (await ctx.fs.read(path)).content.toString());
  plugin.method('many', async (n, ctx) => {
    await Promise.all(Array.from({ length: n }, (_, i) => ctx.kv.set(`key-${i}`, i)));
  });
  plugin.method('context', async (_, ctx) => {
    await delay(1);
    const { value } = await ctx.kv.get('key');
    const { tenant, depth, config, metadata, deadline } = ctx;
    return { tenant, depth, config, metadata, deadline, value, same: ctx instanceof Object && sdk.run !== undefined };
  });
  plugin.method('temporary', async (_, ctx) => {
    const file = await ctx.temporaryFile();
    const { size, mode } = fs.statSync(file);
    fs.unlinkSync(await ctx.temporaryFile());
    return { file, size, mode: mode & 0o777 };
  });
  plugin.onEvent('weather.*', ({ name, payload }, ctx) => ctx.kv.set(name, payload));
  plugin.onTimer('tick', (timer, ctx) => ctx.kv.set('tick', timer.missed));
  plugin.onShutdown(() => console.log('shutdown handler'));
};
