'use strict';
/** The plugin {{name}}. */

exports.activate = (plugin) => {
  plugin.method('hello', async ({ name = 'world' }, ctx) => ({ greeting: `Hello, ${name}!` }));
};
