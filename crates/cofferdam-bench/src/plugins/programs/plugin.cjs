exports.activate = (plugin) => {
  plugin.method('echo', (input) => input);
  plugin.method('stream', async function* ({ count, size }) {
    const item = 'x'.repeat(size);
    for (let sent = 0; sent < count; sent++) yield item;
  });
};
