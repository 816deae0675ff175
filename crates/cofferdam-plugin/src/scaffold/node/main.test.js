'use strict';
/** Tests of the plugin {{name}}, without a host. */

const assert = require('node:assert');
const { test } = require('node:test');
const { Harness } = require('@cofferdam/plugin/testing');
const { activate } = require('./main.js');

test('hello greets by name', async () => {
  assert.deepStrictEqual(await new Harness(activate).call('hello', { name: 'Ada' }), { greeting: 'Hello, Ada!' });
});

test('hello greets the world by default', async () => {
  assert.deepStrictEqual(await new Harness(activate).call('hello', {}), { greeting: 'Hello, world!' });
});
