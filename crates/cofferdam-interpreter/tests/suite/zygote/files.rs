//! What forks have of the file system: all of it together, or of `/tmp` only what is their own.

use cofferdam_interpreter::{Temporary, ZygoteConfig};

use super::{started, told, zygote};
use crate::support::{backend, block_on};

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
