// SPDX-License-Identifier: Apache-2.0
'use strict';
/** Plugin of the conformance suite, with the methods of its README. */

const { setTimeout: delay } = require('node:timers/promises');
const { Worker } = require('node:worker_threads');
const { InvalidParamsError, PluginError } = require('@cofferdam/plugin');

/** Blocks a thread. Code that blocks belongs in a worker, since all methods share the main thread. */
const BUSY = `
  const end = Date.now() + require('node:worker_threads').workerData * 1000;
  while (Date.now() < end);
`;

async function* count({ n }) {
  for (let i = 0; i < n; i++) yield i;
  return n;
}

async function kv({ key, value }, ctx) {
  await ctx.kv.set(key, value);
  return (await ctx.kv.get(key)).value;
}

async function denied(_, ctx) {
  try {
    return (await ctx.fs.read('/etc/passwd')).content.toString();
  } catch (error) {
    return error instanceof PluginError ? error.kind : String(error);
  }
}

function add({ a, b }) {
  if (typeof a !== 'number' || typeof b !== 'number') throw new InvalidParamsError('a and b must be numbers');
  return a + b;
}

function busy({ seconds }) {
  return new Promise((resolve, reject) => {
    const worker = new Worker(BUSY, { eval: true, workerData: seconds });
    worker.on('error', reject).on('exit', () => resolve(null));
  });
}

exports.activate = (plugin) => {
  plugin.method('echo', (input) => input);
  plugin.method('add', add);
  plugin.method('fail', ({ message }) => {
    throw new TypeError(message);
  });
  plugin.method('sleep', async ({ seconds }, ctx) => {
    await delay(seconds * 1000, null, { signal: ctx.signal });
  });
  plugin.method('count', count);
  plugin.method('print', ({ text }) => console.log(text));
  plugin.method('kv', kv);
  plugin.method('progress', (_, ctx) => {
    for (const percent of [0, 50, 100]) ctx.progress({ percent });
  });
  plugin.method('denied', denied);
  plugin.method('correlate', (_, ctx) => ctx.correlationId);
  plugin.method('busy', busy);
};
