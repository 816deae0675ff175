'use strict';
const assert = require('node:assert/strict');
const { execFileSync, spawnSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { test } = require('node:test');
const { pathToFileURL } = require('node:url');
const { Host } = require('./host.cjs');

const ROOT = path.join(__dirname, '..');
const tsc = (...args) => spawnSync('npx', ['-y', '-p', 'typescript@5.9', 'tsc', ...args], { cwd: ROOT, encoding: 'utf8' });
const reason = tsc('--version').status === 0 ? false : 'the TypeScript compiler is not available';

/** Runs a function with a directory that is removed afterwards. */
async function withDirectory(run) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), 'plugin-test-'));
  try {
    await run(directory);
  } finally {
    fs.rmSync(directory, { recursive: true });
  }
}

/** Links the package into a directory, as npm does. */
function install(directory) {
  fs.mkdirSync(path.join(directory, 'node_modules/@cofferdam'), { recursive: true });
  fs.symlinkSync(ROOT, path.join(directory, 'node_modules/@cofferdam/plugin'));
}

test('examples_of_the_readme_run', () =>
  withDirectory((directory) => {
    install(directory);
    const readme = fs.readFileSync(path.join(ROOT, 'README.md'), 'utf8');
    const examples = [...readme.matchAll(/```js\n\/\/ (\S+)\n([^]*?)```/g)];
    assert.deepEqual(examples.map(([, name]) => name), ['main.js', 'main.test.js']);
    for (const [, name, text] of examples) fs.writeFileSync(path.join(directory, name), text);
    const { NODE_TEST_CONTEXT: _, ...env } = process.env;
    const output = execFileSync(process.execPath, ['--test'], { cwd: directory, env, encoding: 'utf8' });
    assert.match(output, /pass 1\b/);
  }));

test('import_and_require_return_the_same_classes', async () => {
  const module = await import(pathToFileURL(path.join(ROOT, 'index.mjs')).href);
  const { internal: _, ...exported } = require('../cofferdam-plugin.cjs');
  assert.deepEqual({ ...module }, exported);
});

test('types_accept_the_example_and_reject_mistakes', { skip: reason }, () =>
  withDirectory((directory) => {
    install(directory);
    const check = (text) => {
      fs.writeFileSync(path.join(directory, 'a.ts'), `import type { Plugin } from '@cofferdam/plugin';\n${text}`);
      const options = ['--strict', '--noEmit', '--module', 'nodenext', '--target', 'es2022'];
      return tsc(...options, path.join(directory, 'a.ts'));
    };
    const valid = check(`export function activate(plugin: Plugin) {
      plugin.method('a', async (input: { n: number }, ctx) => (await ctx.kv.get<number>('k')).value ?? input.n);
      plugin.method('b', { timeout: '1s', permission: ['net'] }, async function* () { yield 1; return 2; });
      plugin.onEvent('a.*', (event, ctx) => ctx.secrets.get(event.name));
    }`);
    assert.equal(valid.status, 0, valid.stdout);
    const wrong = check(`export const f = (plugin: Plugin) => plugin.method('a', { permission: 'everything' }, () => 1);`);
    assert.match(wrong.stdout, /everything/);
  }));

test('stacks_name_lines_of_typescript', { skip: reason }, () =>
  withDirectory(async (directory) => {
    const built = tsc('-p', 'examples/typescript', '--outDir', directory);
    assert.equal(built.status, 0, built.stdout);
    const host = new Host(directory, { entry: 'main.js:activate', serve: () => ({ result: { value: 1, version: 1 } }) });
    try {
      await host.initialize();
      assert.deepEqual((await host.call('order', { item: 'pear', quantity: 2 })).result, { number: 2, total: 6 });
      assert.match((await host.call('broken')).error.data.stack, /main\.ts:28:/);
      assert.equal(await host.exit(), 0);
    } finally {
      host.kill();
    }
  }));
