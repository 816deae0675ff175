//! Programs that use quota-bounded objects. They work, and the quota is returned when the objects are gone.

use super::{outcome, run};

/// Runs a program in a process sandbox and requires success.
fn succeeds(words: &[&str]) -> String {
    let (status, output, errors) = outcome(&mut run(words));
    assert_eq!(status, 0, "{output}\n{errors}");
    output
}

#[test]
fn sqlite_makes_more_transactions_than_a_quota_of_locks_has_calls() {
    let output = succeeds(&[
        "--lang",
        "python",
        "--code",
        "import sqlite3
base = sqlite3.connect('/workspace/base.db', isolation_level=None)
base.execute('pragma synchronous = off')
base.execute('create table numbers (number)')
for number in range(8000):
    base.execute('insert into numbers values (?)', (number,))
print(base.execute('select count(*), sum(number) from numbers').fetchone())",
    ]);
    assert_eq!(output, "(8000, 31996000)\n");
}

#[test]
fn two_programs_wait_for_each_others_locks() {
    let output = succeeds(&[
        "--lang",
        "python",
        "--code",
        "import fcntl, os, time
file = open('/workspace/lock', 'w')
fcntl.lockf(file, fcntl.LOCK_EX)
ready, ready_writer = os.pipe()
if os.fork() == 0:
    other = open('/workspace/lock', 'w')
    os.write(ready_writer, b'.')
    fcntl.lockf(other, fcntl.LOCK_EX)
    print('second', flush=True)
    os._exit(0)
os.read(ready, 1)
time.sleep(0.2)
print('first', flush=True)
fcntl.lockf(file, fcntl.LOCK_UN)
os.wait()",
    ]);
    assert_eq!(output, "first\nsecond\n");
}

#[test]
fn locks_netlink_sockets_and_listeners_are_refused_at_their_maximum_and_had_again_afterwards() {
    let output = succeeds(&[
        "--lang",
        "python",
        "--code",
        "import errno, fcntl, os, socket, struct, time

def listener():
    made = socket.socket()
    made.bind(('127.0.0.1', 0))
    made.listen(1)
    return made

def netlink():
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)

def most(make, error):
    held = []
    try:
        while len(held) < 100:
            held.append(make())
    except OSError as refused:
        assert refused.errno == error, refused
    count = len(held)
    for made in held:
        made.close()
    return count

def patiently(make):
    for attempt in range(100):
        try:
            return make()
        except OSError:
            time.sleep(0.05)
    raise SystemExit('the quota does not come back')

counts = most(listener, errno.ENOBUFS), most(netlink, errno.ENOBUFS)
assert 24 <= counts[0] <= 32 and 32 <= counts[1] <= 48, counts
for attempt in range(100):
    patiently(listener).close()
    patiently(netlink).close()

def lock(file, command, start, kind=fcntl.F_WRLCK):
    fcntl.fcntl(file, command, struct.pack('hhqqixxxx', kind, os.SEEK_SET, start, 1, 0))

OPEN_FILE_LOCK = 37
for command, bound in (fcntl.F_SETLK, 40000), (OPEN_FILE_LOCK, 20000):
    files, count = [], 0
    try:
        while count < 100000:
            if count % 500 == 0:
                files.append(open(f'/workspace/{len(files)}', 'w'))
            lock(files[-1], command, 2 * count)
            count += 1
    except OSError as refused:
        assert refused.errno == errno.ENOLCK, refused
    assert count < bound, count
    for file in files:
        file.close()
    file = open('/workspace/0', 'w')
    patiently(lambda: lock(file, command, 0))
    for again in range(10000):
        lock(file, command, 0)
        lock(file, command, 0, fcntl.F_UNLCK)
    file.close()
print('all of them')",
    ]);
    assert_eq!(output, "all of them\n");
}

#[test]
fn node_lists_its_network_interfaces_and_serves_on_its_loopback() {
    let output = succeeds(&[
        "--lang",
        "javascript",
        "--code",
        "const http = require('http');
console.log(require('os').networkInterfaces().lo.map(it => it.address).join());
const server = http.createServer((request, response) => response.end('served'));
server.listen(0, '127.0.0.1', () => {
  http.get({ port: server.address().port, host: '127.0.0.1' }, response => {
    response.on('data', data => console.log(data.toString()));
    response.on('end', () => server.close());
  });
});",
    ]);
    assert!(output.starts_with("127.0.0.1"), "{output}");
    assert!(output.ends_with("\nserved\n"), "{output}");
}
