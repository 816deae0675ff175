//! What cannot be forked safely is refused when it is warmed, and says why.

use cofferdam_contract::{ByteSize, ErrorKind, ExecRequest};
use cofferdam_interpreter::{InterpreterConfig, ZygoteConfig};

use super::{run, told, try_zygote, zygote};
use crate::support::{backend, block_on, code, python};

fn warmed_by(code: &str) -> ZygoteConfig {
    ZygoteConfig::of(InterpreterConfig { warm_up: code.to_owned(), ..InterpreterConfig::python() })
}

#[test]
fn without_a_wall_between_forks_there_are_none() {
    block_on(async {
        let backend = backend();
        for (what, code, word) in [
            ("no ctypes", "import sys\nsys.modules['ctypes'] = None", "ctypes"),
            (
                "an older kernel",
                "import ctypes\nclass Old:\n    def __init__(self, *a, **k): pass\n    def syscall(self, *words): return 5\n    def prctl(self, *words): return 1\nctypes.CDLL = Old",
                "version 6 is needed, this kernel has 5",
            ),
            (
                "a kernel without",
                "import ctypes\nclass Old:\n    def __init__(self, *a, **k): pass\n    def syscall(self, *words): return -1\nctypes.CDLL = Old",
                "Landlock",
            ),
            (
                "a wall that is not there",
                "import ctypes, os\nreal = ctypes.CDLL(None, use_errno=True)\nclass Fake:\n    def __init__(self, *a, **k): pass\n    def prctl(self, *words): return real.prctl(*words)\n    def syscall(self, *words):\n        return os.dup(0) if words[0].value == 444 and words[1] else 0 if words[0].value == 446 else 7\nctypes.CDLL = Fake",
                "signals pass the wall",
            ),
        ] {
            let error = try_zygote(&backend, &warmed_by(code)).await.expect_err(what);
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{what}: {error}");
            assert!(error.message().contains(word), "{what}: {error}");
        }
        let error = try_zygote(&backend, &ZygoteConfig::of(InterpreterConfig::node())).await.expect_err("Node");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    });
}

#[test]
fn modules_with_something_that_forks_would_share_are_refused() {
    block_on(async {
        let backend = backend();
        for (code, word) in [
            ("import builtins\nbuiltins.kept = open('/etc/hostname')", "descriptor"),
            ("import builtins, socket\nbuiltins.kept = socket.socketpair()", "descriptor"),
            (
                "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
                "thread",
            ),
            ("import subprocess, builtins\nbuiltins.kept = subprocess.Popen(['sleep', '1000'])", "child process"),
            ("import builtins, mmap\nbuiltins.kept = mmap.mmap(-1, 4096)", "memory that is shared"),
        ] {
            let error = try_zygote(&backend, &warmed_by(code)).await.expect_err(code);
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{code}: {error}");
            // Where no control group counts memory, the sandbox refuses to share it at all.
            let refused = word.starts_with("memory") && error.message().contains("PermissionError");
            assert!(error.message().contains(word) || refused, "{code}: {error}");
        }
        let after_fork = "import builtins\nbuiltins.kept = open('/etc/hostname')\nraise ValueError('x')".to_owned();
        let error = try_zygote(&backend, &ZygoteConfig { after_fork, ..ZygoteConfig::python() }).await;
        let error = error.expect_err("its own code fails");
        assert!(error.message().contains("ValueError: x"), "{error}");
        let error = try_zygote(&backend, &warmed_by("no such code")).await.expect_err("it cannot be warmed");
        assert!(error.message().contains("SyntaxError"), "{error}");
        let missing = ZygoteConfig::of(InterpreterConfig::python().with_modules(["no_such_module"]));
        let error = try_zygote(&backend, &missing).await.expect_err("a module is missing");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    });
}

#[test]
fn what_has_to_start_cold_is_told_so() {
    block_on(async {
        let backend = backend();
        let zygote = zygote(&backend, &ZygoteConfig::python()).await;
        for request in [
            ExecRequest::argv(["python3", "-u", "-c", "print(1)"]).build(),
            ExecRequest::argv(["node", "x.js"]).build(),
            python("print(1)").to_builder().env("PYTHONPATH", "/x").build(),
            code(&InterpreterConfig::python(), "main.py", "").max_output(ByteSize::from_mebibytes(900)).build(),
        ] {
            let request = request.expect("valid");
            assert!(ZygoteConfig::python().accepts(&request).is_err());
            let error = run(&zygote, request).await.expect_err("that has to start cold");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
        assert_eq!(told(&zygote, "print(1)", &[]).await, "1\n");
        zygote.close().await.expect("it closes");
    });
}
