// Says hello, and where it runs.
//
//     cofferdam run examples/hello.js you

const name = process.argv[2] ?? 'world';
console.log(`hello, ${name}, from Node ${process.version} in ${process.cwd()}`);
