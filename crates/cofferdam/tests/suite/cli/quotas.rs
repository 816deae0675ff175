//! Programs that use quota-bounded objects. They work, and the quota is returned when the objects are gone. Usual tools
//! work with the default limits.

use super::{json, outcome, run};

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

/// Takes of each kind of object what it can get, and gives it back. Locks of open files come back in process sandboxes only,
/// where the kernel lists them.
const OBJECTS: &str = "import errno, fcntl, os, socket, struct, sys, time

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
    if command == OPEN_FILE_LOCK and 'container' in sys.argv:
        continue
    file = open('/workspace/0', 'w')
    patiently(lambda: lock(file, command, 0))
    for again in range(10000):
        lock(file, command, 0)
        lock(file, command, 0, fcntl.F_UNLCK)
    file.close()
if 'container' in sys.argv:
    for name, expected in ('ipv4/tcp_rmem', 65536), ('ipv4/tcp_max_tw_buckets', 1024), ('core/somaxconn', 16):
        assert int(open('/proc/sys/net/' + name).read().split()[-1]) == expected, name
print('all of them')";

/// Takes locks in processes that hide them: their first thread has ended. Prints the number of locks of all processes,
/// which is twice the quota if none is refused.
const HIDDEN_LOCKS: &str = "import ctypes, fcntl, os, platform, select, struct, threading, time
EXIT = {'x86_64': 60, 'aarch64': 93}[platform.machine()]

def work(number, answer):
    count, files = 0, []
    try:
        while count < 10000:
            if count % 500 == 0:
                files.append(open(f'/workspace/{number}-{len(files)}', 'w'))
            lock = struct.pack('hhqqixxxx', fcntl.F_WRLCK, os.SEEK_SET, 2 * count, 1, 0)
            fcntl.fcntl(files[-1], fcntl.F_SETLK, lock)
            count += 1
    except OSError:
        pass
    os.write(answer, b'%d ' % count)
    time.sleep(60)

ends = []
for number in range(8):
    reader, writer = os.pipe()
    if os.fork() == 0:
        threading.Thread(target=work, args=(number, writer)).start()
        ctypes.CDLL(None).syscall(EXIT, 0)
    os.close(writer)
    ends.append(reader)
print(sum(int(os.read(end, 20)) for end in ends))
os._exit(0)";

#[test]
fn locks_of_processes_whose_first_thread_has_ended_count() {
    let output = succeeds(&["--lang", "python", "--code", HIDDEN_LOCKS]);
    assert!((1_000..45_000).contains(&output.trim().parse::<u32>().unwrap()), "{output}");
}

#[test]
fn locks_netlink_sockets_and_listeners_are_refused_at_their_maximum_and_had_again_afterwards() {
    assert_eq!(succeeds(&["--lang", "python", "--code", OBJECTS]), "all of them\n");
}

#[cfg(feature = "container")]
#[test]
fn containers_have_the_same_quotas_and_limit_processes() {
    use super::containers::with_engine;
    let run_in_container = |words: &[&str]| {
        let words = ["--backend", "docker", "--allow-weaker", super::WEAKER].iter().chain(words);
        with_engine(run(words)).map(|mut command| outcome(&mut command))
    };
    let Some((status, output, errors)) =
        run_in_container(&["--timeout", "50s", "--lang", "python", "--code", OBJECTS, "container"])
    else {
        return;
    };
    assert_eq!((status, output.as_str()), (0, "all of them\n"), "{errors}");
    let (status, output, errors) = run_in_container(&["--lang", "python", "--code", HIDDEN_LOCKS]).unwrap();
    assert!(status == 0 && (1_000..45_000).contains(&output.trim().parse::<u32>().unwrap()), "{output}{errors}");
    let (_, output, errors) =
        run_in_container(&["--json", "--processes", "10", "--lang", "python", "--code", PROCESSES]).unwrap();
    assert_at_limit_of_ten(&output, &errors);
}

/// The exit status of a line whose tool is not installed inside.
const ABSENT: i32 = 77;

#[test]
fn npm_pip_and_a_compiler_run_with_the_default_limits() {
    let compile = "echo 'int main(void) { return 0; }' > x.c && cc x.c -o x && ./x";
    for (tool, line) in [("npm", "npm --version"), ("pip", "pip --version"), ("cc", compile)] {
        let line = format!("command -v {tool} > /dev/null || exit {ABSENT}; {line}");
        let (status, output, errors) = outcome(&mut run(["--json", "--", "sh", "-c", &line]));
        if status == ABSENT {
            println!("SKIP {tool} with the default limits: it is not installed where sandboxes find it");
            continue;
        }
        assert_eq!(status, 0, "{line}: {output}\n{errors}");
        assert_eq!(json(&output)["exit"]["limits_hit"], serde_json::json!([]), "{line}: {output}");
    }
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

#[test]
fn no_thread_gets_a_table_of_descriptors_of_its_own() {
    let output = succeeds(&[
        "--lang",
        "python",
        "--code",
        "import ctypes, errno, threading
CLOSE_RANGE, UNSHARE, CLOEXEC = 436, 2, 4
def close_range(flags):
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(CLOSE_RANGE, 1000, 1001, flags)
    print(result, errno.errorcode.get(ctypes.get_errno()), flush=True)
for flags in UNSHARE, UNSHARE | CLOEXEC, CLOEXEC, 0:
    thread = threading.Thread(target=close_range, args=(flags,))
    thread.start()
    thread.join()",
    ]);
    assert_eq!(output, "-1 EINVAL\n-1 EINVAL\n0 None\n0 None\n");
}

/// Counts the processes that it can have at once, with two threads in each but the first.
const PROCESSES: &str = "import errno, os, threading, time
count = 1
try:
    while count < 100:
        if os.fork() == 0:
            threading.Thread(target=time.sleep, args=(30,)).start()
            time.sleep(30)
        count += 1
except OSError as refused:
    assert refused.errno == errno.EAGAIN, refused
print(count)
os.kill(-1, 9)";

#[test]
fn processes_are_limited_apart_from_threads() {
    let (_, output, errors) =
        outcome(&mut run(["--json", "--processes", "10", "--lang", "python", "--code", PROCESSES]));
    assert_at_limit_of_ten(&output, &errors);
}

fn assert_at_limit_of_ten(output: &str, errors: &str) {
    let result: serde_json::Value = serde_json::from_str(output).unwrap_or_else(|_| panic!("{output}\n{errors}"));
    assert_eq!(result["stdout"]["text"], "10\n", "{output}\n{errors}");
    assert_eq!(result["limits_hit"], serde_json::json!(["pids"]), "{output}");
}

#[test]
fn programs_that_start_one_process_after_the_other_are_not_hindered() {
    let output =
        succeeds(&["--processes", "3", "--", "sh", "-c", "for i in $(seq 300); do /bin/true; done; echo done"]);
    assert_eq!(output, "done\n");
    let threads = "import threading
threads = [threading.Thread(target=lambda: None) for _ in range(100)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print('joined')";
    assert_eq!(succeeds(&["--processes", "1", "--lang", "python", "--code", threads]), "joined\n");
}

#[test]
fn threads_that_fork_at_once_get_no_more_than_the_limit() {
    let racing = "import os, threading, time
threading.stack_size(1 << 18)
ready = threading.Barrier(48)
def fork():
    ready.wait()
    for attempt in range(5):
        try:
            if os.fork() == 0:
                time.sleep(20)
                os._exit(0)
        except OSError:
            pass
for thread in [threading.Thread(target=fork) for _ in range(48)]:
    thread.start()
most = 0
until = time.time() + 3
while time.time() < until:
    most = max(most, sum(name.isdigit() for name in os.listdir('/proc')) - 1)
print(most, flush=True)
os.kill(0, 9)";
    let (_, output, errors) =
        outcome(&mut run(["--processes", "12", "--timeout", "30s", "--lang", "python", "--code", racing]));
    let count: u32 = output.trim().parse().unwrap_or_else(|_| panic!("{output}\n{errors}"));
    assert!((8..=12).contains(&count), "{count}");
}
