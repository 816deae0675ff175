//! What forks have of the file system: all of it together, or of `/tmp` only what is their own.

use std::time::Duration;

use cofferdam_contract::{Backend, ByteSize, Limits, SandboxPath, Spec, Stdin, collect};
use cofferdam_interpreter::{Temporary, Zygote, ZygoteConfig};

use super::{started, started_with, told, zygote};
use crate::support::{backend, block_on, python};

/// Has a file of its own, and waits.
const OWNER: &str = "import tempfile, time, os\nkept = tempfile.NamedTemporaryFile()\nkept.write(b'kept'); kept.flush()\n\
    print(kept.name, __file__, flush=True)\ntime.sleep(100)";
/// Tries to read and change another one's files, and says what it could do.
const INTRUDER: &str = "import errno, os, sys\n\
    def attempt(name, what):\n    try:\n        what()\n        print(name, end=' ')\n    except OSError as error:\n        assert error.errno in (errno.EACCES, errno.EPERM, errno.EXDEV), error\n\
    kept, script = sys.argv[1:]\nplace = os.path.dirname(script)\n\
    attempt('read', lambda: open(kept).read())\nattempt('read-script', lambda: open(script).read())\n\
    attempt('write', lambda: open(kept, 'a').write('x'))\n\
    attempt('plant', lambda: (os.chmod(place, 0o755), open(place + '/json.py', 'w').write('1')))\n\
    attempt('replace', lambda: (os.chmod(script, 0o644), open(script, 'w').write('1')))\n\
    attempt('link', lambda: os.link(kept, place + '/linked'))\n\
    attempt('move', lambda: os.rename(kept, os.path.join(os.environ['TMPDIR'], 'moved')))\n\
    attempt('make', lambda: open('/tmp/made', 'w').write('x'))\nprint()";
/// What works in any case.
const USUAL: &str = "import os, sys, subprocess, tempfile, multiprocessing\n\
    open('/workspace/x', 'w').write('x')\nwith tempfile.NamedTemporaryFile('w+') as file:\n    file.write('x')\n\
    assert open(__file__).read() and os.listdir('/') and os.listdir('/tmp') and open('/dev/null', 'w').write('x')\n\
    assert open('/etc/hosts').read() is not None and open('/proc/self/status').read()\n\
    def double(x):\n    return 2 * x\nif __name__ == '__main__':\n    \
    print(subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True, text=True).stdout.strip())\n    \
    with multiprocessing.get_context('spawn').Pool(1) as pool:\n        print(pool.map(double, [1, 2]))";

#[test]
fn a_temporary_directory_of_ones_own_is_closed_to_siblings() {
    block_on(async {
        let backend = backend();
        for (temporary, reached) in [
            (Temporary::Own, "\n"),
            // The control, and what the documentation says.
            (Temporary::Shared, "read read-script write plant replace link move make \n"),
        ] {
            let zygote = zygote(&backend, &ZygoteConfig { temporary, ..ZygoteConfig::python() }).await;
            let (owner, places) = started(&zygote, OWNER).await;
            let places: Vec<&str> = places.split(' ').collect();
            assert_eq!(told(&zygote, INTRUDER, &places).await, reached, "{temporary:?}");
            owner.close().await.expect("it ends");
            assert_eq!(told(&zygote, USUAL, &[]).await, "1\n[2, 4]\n", "{temporary:?}");
            zygote.close().await.expect("it closes");
        }
    });
}

/// Said in the documentation: one sandbox is one place for files and the loopback.
#[test]
fn files_and_loopback_are_shared() {
    block_on(async {
        let backend = backend();
        let zygote = zygote(&backend, &ZygoteConfig::python()).await;
        let listen = "import socket, time\ns = socket.socket()\ns.bind(('127.0.0.1', 0))\ns.listen()\nopen('/workspace/port', 'w').write(str(s.getsockname()[1]))\nprint(1, flush=True)\ntime.sleep(100)";
        let (handle, _) = started(&zygote, listen).await;
        let connect = "import socket\nsocket.create_connection(('127.0.0.1', int(open('/workspace/port').read())), 5)\nprint('connected')";
        assert_eq!(told(&zygote, connect, &[]).await, "connected\n");
        handle.close().await.expect("it ends");
        zygote.close().await.expect("it closes");
    });
}

/// A fork that takes all room for files, or all files, takes it from those that come; those that run go on, and it is given
/// back.
#[test]
fn a_fork_that_fills_the_disk_ends_no_sibling() {
    const FILES: &str = "import os\ntry:\n    for i in range(10**7):\n        open(f'/workspace/full/{i}', 'x').close()\nexcept OSError:\n    print('full', flush=True)\nimport time\ntime.sleep(100)";
    const BYTES: &str = "try:\n    with open('/workspace/full/0', 'wb', 0) as file:\n        while True:\n            file.write(bytes(1 << 16))\nexcept OSError:\n    print('full', flush=True)\nimport time\ntime.sleep(100)";
    block_on(async {
        let backend = backend();
        for fill in [BYTES, FILES] {
            let config = ZygoteConfig { ready: 1, ..ZygoteConfig::python() };
            let limits = Limits {
                pids: Some(20 + config.extra_processes()),
                disk: Some(ByteSize::from_mebibytes(8)),
                ..Limits::default()
            };
            let spec = Spec::builder().limits(limits).build().expect("valid");
            let sandbox = backend.create(spec).await.expect("a sandbox");
            let zygote = Zygote::warm(sandbox, config).await.expect("it becomes warm");
            let sibling = "import sys\nprint(1, flush=True)\nsys.stdin.read()\nprint('alive')";
            let request = python(sibling).to_builder().stdin(Stdin::Stream).build().expect("valid");
            let (sibling, _) = started_with(&zygote, request).await;
            let (filler, _) = started(&zygote, &format!("import os\nos.mkdir('/workspace/full')\n{fill}")).await;
            // What was ready was made before the disk was full; none can be made after these took it, until there is room.
            let long = "import time\nprint(2, flush=True)\ntime.sleep(100)";
            let waiting = async {
                collect(zygote.start(python("print(2)")).await.expect("it is taken in")).await.expect("it runs then")
            };
            let make_room = async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                assert!(zygote.is_open(), "the disk is full, and the zygote has ended");
                for name in sandbox_files(&zygote).await {
                    zygote.sandbox().remove(&name).await.expect("it is removed");
                }
            };
            let (one, other) = (zygote.start(python(long)), zygote.start(python(long)));
            let (one, other, waited, ()) = tokio::join!(one, other, waiting, make_room);
            assert!(waited.exit.success());
            // A request that finds no room for its script fails alone.
            for handle in [Ok(filler), one, other].into_iter().flatten() {
                handle.close().await.expect("it ends");
            }
            assert_eq!(told(&zygote, "print(3)", &[]).await, "3\n");
            drop(sibling.stdin());
            assert!(sibling.exit().await.expect("it ends").success());
            zygote.close().await.expect("it closes");
        }
    });
}

/// What lies in the directory that was filled.
async fn sandbox_files(zygote: &Zygote) -> Vec<SandboxPath> {
    let place = SandboxPath::new("full").expect("a path");
    let entries = zygote.sandbox().list_dir(&place).await.expect("it is listed");
    entries.iter().map(|entry| SandboxPath::new(format!("full/{}", entry.name)).expect("a path")).collect()
}
