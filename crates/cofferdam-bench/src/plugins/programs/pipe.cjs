let rest = Buffer.alloc(0);

function send(body) {
  return process.stdout.write(Buffer.concat([Buffer.from(`Content-Length: ${body.length}\r\n\r\n`), body]));
}

async function answer(body) {
  if (body.toString('latin1', 0, 7) !== 'stream ') return send(body);
  const [count, size] = body.toString().split(' ').slice(1).map(Number);
  const item = Buffer.alloc(size, 'x');
  for (let sent = 0; sent < count; sent++) {
    if (!send(item)) await new Promise((resolve) => process.stdout.once('drain', resolve));
  }
}

process.stdin.on('data', (chunk) => {
  rest = rest.length > 0 ? Buffer.concat([rest, chunk]) : chunk;
  for (;;) {
    const head = rest.indexOf('\r\n\r\n');
    if (head < 0) return;
    const size = Number(rest.toString('latin1', 'Content-Length: '.length, head));
    if (rest.length < head + 4 + size) return;
    answer(rest.subarray(head + 4, head + 4 + size));
    rest = rest.subarray(head + 4 + size);
  }
});
