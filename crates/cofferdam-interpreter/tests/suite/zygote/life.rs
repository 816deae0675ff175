//! How forks begin, end, wait for nobody, and end with their zygote.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{ByteSize, ErrorKind, ExecRequest, LimitKind, Retry, SandboxPath, Stdin, collect};
use cofferdam_interpreter::{InterpreterConfig, ZygoteConfig};
use tokio::io::AsyncWriteExt;

use super::{run, started, told, zygote};
use crate::support::{backend, block_on, code, printed, python, read_line, stdout};

#[test]
fn ends_are_told_as_they_were() {
    block_on(async {
        let backend = backend();
        let zygote = zygote(&backend, &ZygoteConfig::python()).await;
        for (text, code, signal) in [
            ("pass", 0, None),
            ("import os\nos._exit(9)", 9, None),
            ("import sys\nsys.exit(3)", 3, None),
            ("raise SystemExit('text')", 1, None),
            ("1/0", 1, None),
            ("import ctypes\nctypes.string_at(0)", -1, Some(11)),
            ("import os\nos.kill(os.getpid(), 15)", -1, Some(15)),
            ("import os\nos.abort()", -1, Some(6)),
            // Whatever it prints and closes: it is not what tells of its end.
            ("import os\nos.closerange(0, 100)\nos._exit(4)", 4, None),
            ("import os\nos.write(1, b'\\0\\0\\0\\x14\\5\\0\\0\\0\\0' + bytes(20))\nos._exit(5)", 5, None),
        ] {
            let completed = run(&zygote, python(text)).await.expect("it runs");
            assert_eq!((completed.exit.code, completed.exit.signal), (code, signal), "{text}: {}", printed(&completed));
            assert!(!completed.exit.timed_out && !completed.exit.cancelled && completed.exit.killed_by.is_none());
        }
        zygote.close().await.expect("it closes");
    });
}

#[test]
fn time_and_use_are_the_requests_own() {
    block_on(async {
        let backend = backend();
        let interpreter = InterpreterConfig {
            warm_up: "import time\nt = time.process_time()\nwhile time.process_time() < t + 0.5: pass".to_owned(),
            ..InterpreterConfig::python()
        };
        let zygote = zygote(&backend, &ZygoteConfig::of(interpreter)).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let quiet = run(&zygote, python("print(1)")).await.expect("it runs");
        assert!(quiet.exit.usage.cpu_seconds < 0.2 && quiet.exit.usage.output_bytes == 2, "{}", printed(&quiet));
        assert!(quiet.exit.usage.peak_memory_bytes.is_some_and(|bytes| bytes > 1 << 20), "{}", printed(&quiet));
        let busy = "import os, time\nos.fork()\nos.fork()\nt = time.process_time()\nwhile time.process_time() < t + 0.2: pass\ntry:\n    while True: os.wait()\nexcept ChildProcessError: pass";
        let busy = run(&zygote, python(busy)).await.expect("it runs");
        assert!((0.7..1.5).contains(&busy.exit.usage.cpu_seconds), "{}", printed(&busy));
        let slow = run(&zygote, python("import time\ntime.sleep(0.2)")).await.expect("it runs");
        assert!(slow.exit.duration >= Duration::from_millis(200) && slow.exit.usage.cpu_seconds < 0.15);
        let cut = python("print('x' * 100_000)").to_builder().max_output(ByteSize::from_bytes(1000)).build();
        let cut = run(&zygote, cut.expect("valid")).await.expect("it runs");
        assert!(
            cut.exit.truncated && cut.stdout.len() == 1000 && cut.exit.usage.output_bytes == 100_001,
            "{:?}",
            cut.exit
        );
        zygote.close().await.expect("it closes");
    });
}

#[test]
fn all_processes_of_a_fork_together_have_its_cpu_time() {
    block_on(async {
        let backend = backend();
        let config = ZygoteConfig { cpu_time: Some(Duration::from_secs(1)), ..ZygoteConfig::python() };
        let zygote = zygote(&backend, &config).await;
        let busy = run(&zygote, python("while True: pass")).await.expect("it runs");
        assert_eq!(busy.exit.killed_by, Some(LimitKind::Cpu), "{}", printed(&busy));
        let spread =
            "import os, time\nfor _ in range(5):\n    if os.fork() == 0:\n        while True: pass\ntime.sleep(100)";
        let spread = run(&zygote, python(spread)).await.expect("it runs");
        assert_eq!(spread.exit.killed_by, Some(LimitKind::Cpu), "{}", printed(&spread));
        assert!((0.9..2.0).contains(&spread.exit.usage.cpu_seconds), "{}", printed(&spread));
        assert!(told(&zygote, "import time\ntime.sleep(1.2)\nprint(1)", &[]).await == "1\n", "sleeping costs nothing");
        let defiant = "import resource, signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\ntry:\n    resource.setrlimit(resource.RLIMIT_CPU, (9, 9))\n    print('raised')\nexcept ValueError:\n    pass\nwhile True: pass";
        let defiant = run(&zygote, python(defiant)).await.expect("it runs");
        assert_eq!(defiant.exit.killed_by, Some(LimitKind::Cpu), "{}", printed(&defiant));
        assert_eq!(stdout(&defiant), "", "it was raised");
        zygote.close().await.expect("it closes");
    });
}

#[test]
fn many_run_at_once_and_no_more_than_may() {
    block_on(async {
        let backend = backend();
        let config = ZygoteConfig { most_running: 4, ..ZygoteConfig::python() };
        let zygote = zygote(&backend, &config).await;
        let mut running = Vec::new();
        for number in 0..4 {
            let text = format!("import sys\nprint(sys.stdin.readline().strip(), {number})");
            let request = python(&text).to_builder().stdin(Stdin::Stream).build().expect("valid");
            running.push(zygote.start(request).await.expect("it starts"));
        }
        assert_eq!(zygote.running(), 4);
        let error = zygote.start(python("")).await.expect_err("there are enough");
        assert_eq!((error.kind(), error.retry()), (ErrorKind::ResourceExhausted, Retry::MayHelp), "{error}");
        for (number, handle) in running.iter().enumerate().rev() {
            let mut input = handle.stdin().expect("it was asked for");
            input.write_all(format!("for {number}\n").as_bytes()).await.expect("it is read");
        }
        for (number, handle) in running.into_iter().enumerate() {
            let completed = collect(handle).await.expect("it ends");
            assert_eq!(stdout(&completed), format!("for {number} {number}\n"));
        }
        assert_eq!(told(&zygote, "print(1)", &[]).await, "1\n");
        zygote.close().await.expect("it closes");
    });
}

#[test]
fn a_fork_that_does_not_read_or_is_not_read_holds_up_nobody() {
    block_on(async {
        let backend = backend();
        let zygote = zygote(&backend, &ZygoteConfig::python()).await;
        let large = "x".repeat(5 << 20);
        let deaf = python("print(1, flush=True)\nimport time\ntime.sleep(100)").to_builder();
        let deaf = zygote.start(deaf.stdin(Stdin::Bytes(large.clone().into())).build().expect("valid")).await;
        let loud = zygote.start(python("import os\nwhile True: os.write(1, b'x' * 65536)")).await;
        let chatty = zygote.start(python("import os\nwhile True: os.write(2, b'x')")).await;
        let others = [deaf, loud, chatty].map(|handle| handle.expect("it starts"));
        // Nobody reads their output: their handles' subscriptions are never asked.
        for _ in 0..5 {
            assert_eq!(told(&zygote, "print(1)", &[]).await, "1\n");
        }
        let request = python("import sys\nprint(len(sys.stdin.buffer.read()))").to_builder();
        let completed = run(&zygote, request.stdin(Stdin::Bytes(large.into())).build().expect("valid")).await;
        assert_eq!(stdout(&completed.expect("it runs")), "5242880\n");
        let completed = run(&zygote, python("print('y' * 900_000)")).await.expect("it runs");
        assert_eq!(completed.stdout.len(), 900_001);
        for handle in others {
            handle.close().await.expect("it ends");
        }
        zygote.close().await.expect("it closes");
    });
}

/// More than the windows and the pipe hold, by a process that ends at once: every byte of it comes, or is counted.
#[test]
fn what_a_fork_printed_last_is_not_lost() {
    block_on(async {
        let backend = backend();
        let zygote = zygote(&backend, &ZygoteConfig::python()).await;
        for round in 0..40 {
            let bytes = 200_000 + 7919 * round;
            let text = format!("import os\nos.write(2, b'y' * 30000)\nprint('x' * {bytes})\nos._exit(0)");
            let completed = run(&zygote, python(&text)).await.expect("it runs");
            assert_eq!((completed.stdout.len(), completed.stderr.len()), (bytes + 1, 30_000), "{:?}", completed.exit);
        }
        zygote.close().await.expect("it closes");
    });
}

#[test]
fn input_streams_and_ends() {
    block_on(async {
        let backend = backend();
        let zygote = zygote(&backend, &ZygoteConfig::python()).await;
        let text = "import sys\nfor line in sys.stdin:\n    print('got', line, end='', flush=True)\nprint('end')";
        let request = python(text).to_builder().stdin(Stdin::Stream).build().expect("valid");
        let handle = zygote.start(request).await.expect("it starts");
        let (mut input, mut output) = (handle.stdin().expect("it was asked for"), handle.output());
        for line in ["one\n", "two\n"] {
            input.write_all(line.as_bytes()).await.expect("it is read");
            assert_eq!(read_line(&mut output).await, format!("got {line}"));
        }
        input.close().await.expect("it closes");
        assert!(handle.exit().await.expect("it ends").success());

        // One that closes its input is told to who writes.
        let text = "import os, time\nos.close(0)\ntime.sleep(100)";
        let request = python(text).to_builder().stdin(Stdin::Stream).build().expect("valid");
        let handle = zygote.start(request).await.expect("it starts");
        let mut input = handle.stdin().expect("it was asked for");
        while input.write_all(&[b'x'; 4096]).await.is_ok() {}
        handle.close().await.expect("it ends");
        zygote.close().await.expect("it closes");
    });
}

#[test]
fn a_request_that_cannot_begin_says_why_and_harms_nobody() {
    block_on(async {
        let backend = backend();
        let zygote = zygote(&backend, &ZygoteConfig::python()).await;
        let there = SandboxPath::new("no/such/directory").expect("valid");
        let request = python("print(1)").to_builder().working_dir(there).build().expect("valid");
        let error = zygote.start(request).await.expect_err("the directory is not there");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        let request = python("print(1)").to_builder().timeout(Duration::from_secs(1 << 20)).build().expect("valid");
        let error = zygote.start(request).await.expect_err("it would outlive the zygote");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(told(&zygote, "print(1)", &[]).await, "1\n");
        zygote.close().await.expect("it closes");
    });
}

#[test]
fn a_zygote_retires_and_lets_what_runs_come_to_its_end() {
    block_on(async {
        let backend = backend();
        let config = ZygoteConfig { max_forks: 2, ..ZygoteConfig::python() };
        let used = zygote(&backend, &config).await;
        assert_eq!(told(&used, "print(1)", &[]).await, "1\n");
        assert!(used.is_open());
        let (handle, _) = started(&used, "import time\nprint(1, flush=True)\ntime.sleep(0.3)\nprint(2)").await;
        assert!(!used.is_open());
        let error = used.start(python("")).await.expect_err("it made all of its forks");
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::MayHelp), "{error}");
        let weak = Arc::downgrade(used.sandbox());
        drop(used);
        assert!(handle.exit().await.expect("it ends").success());
        drop(handle);
        for _ in 0..200 {
            if weak.upgrade().is_none() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(weak.upgrade().is_none(), "nobody needs it any more");

        let old = zygote(&backend, &ZygoteConfig { max_age: Duration::from_millis(1), ..ZygoteConfig::python() }).await;
        assert_eq!(old.start(python("")).await.expect_err("it is too old").kind(), ErrorKind::Unavailable);
        old.close().await.expect("it closes");
    });
}

#[test]
fn whoever_of_its_processes_dies_everybody_is_told() {
    block_on(async {
        let backend = backend();
        let family = "import os, time\n\
            def parent(pid):\n    return next(int(line.split()[1]) for line in open(f'/proc/{pid}/status') if line.startswith('PPid'))\n\
            guard = os.getppid()\nzygote = parent(guard)\nprint(guard, zygote, parent(zygote), flush=True)\ntime.sleep(100)";
        for victim in 0..3 {
            let zygote = zygote(&backend, &ZygoteConfig::python()).await;
            let (sibling, _) = started(&zygote, "import time\nprint(1, flush=True)\ntime.sleep(100)").await;
            let (handle, pids) = started(&zygote, family).await;
            let pid = pids.split(' ').nth(victim).expect("three");
            // Another exec of the sandbox is outside of the forks' walls.
            let kill = ExecRequest::argv(["kill", "-9", pid]).build().expect("valid");
            // The sandbox may be closed before this one's own end is told.
            let _ = zygote.sandbox().exec(kill).await;
            for handle in [sibling, handle] {
                let error = handle.exit().await.expect_err("the zygote died");
                assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::MayHelp), "{error}");
            }
            assert!(!zygote.is_open());
            let error = zygote.start(python("")).await.expect_err("it is gone");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            zygote.close().await.expect("it closes");
        }
    });
}

#[test]
fn closing_tells_those_who_run() {
    block_on(async {
        let backend = backend();
        let zygote = zygote(&backend, &ZygoteConfig::python()).await;
        let (handle, _) = started(&zygote, "import time\nprint(1, flush=True)\ntime.sleep(100)").await;
        zygote.close().await.expect("it closes");
        assert_eq!(handle.exit().await.expect_err("it was closed").kind(), ErrorKind::Closed);
        assert_eq!(zygote.start(python("")).await.expect_err("it was closed").kind(), ErrorKind::Closed);
        zygote.close().await.expect("it is closed already");
    });
}

#[test]
fn files_of_the_workspace_run_too() {
    block_on(async {
        let backend = backend();
        let zygote = zygote(&backend, &ZygoteConfig::python()).await;
        let path = SandboxPath::new("a/x.py").expect("valid");
        zygote.sandbox().write_bytes(&path, "import sys\nprint(sys.argv)".to_owned()).await.expect("it is written");
        let request = ExecRequest::argv(["python3", "-u", "a/x.py", "b"]).build().expect("valid");
        let completed = run(&zygote, request).await.expect("it runs");
        assert_eq!(stdout(&completed), "['a/x.py', 'b']\n", "{}", printed(&completed));
        let _ = code;
        zygote.close().await.expect("it closes");
    });
}
