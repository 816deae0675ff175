//! Watches of workspaces, as a program that uses the library sees them.

use std::time::{Duration, Instant};

use cofferdam::{
    Backend, Command, ExecRequest, MAX_WATCHED_DIRECTORIES, Result, Sandbox, SandboxPath, Script, Spec, WatchEvent,
    WatchOptions, registry,
};

const PAGE: &str = include_str!("../../../../docs/workspace.md");

async fn list(sandbox: &dyn Sandbox) -> Result<Vec<SandboxPath>> {
    let entries = sandbox.list_dir(&SandboxPath::default()).await?;
    entries.into_iter().map(|entry| SandboxPath::new(entry.name)).collect()
}

/// Runs the example of docs/workspace.md.
async fn example(backend: &dyn Backend) -> Result<Vec<SandboxPath>> {
    let mut created = Vec::new();
    let sandbox = backend.create(Spec::default()).await?;
    let mut events = sandbox.watch(&SandboxPath::default(), WatchOptions::default()).await?;
    let request = ExecRequest::argv(["touch", "notes.txt"]).build()?;
    sandbox.exec(request).await?;
    while let Some(event) = events.next().await {
        match event {
            WatchEvent::Created(path) => created.push(path),
            WatchEvent::Overflow => created.extend(list(&*sandbox).await?),
            _ => continue,
        }
        break;
    }
    sandbox.close().await?;
    Ok(created)
}

#[tokio::test]
async fn the_example_of_the_page_on_workspaces_is_this_one_and_runs() {
    let bare = |text: &str| text.split_whitespace().collect::<String>();
    let here = bare(include_str!("watch.rs"));
    let block = PAGE.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block");
    let (_, body) = block.split_once("\n\n").expect("a line for what is used");
    assert!(here.contains(&bare(body)), "{block}");
    let backend = registry::backend("process").expect("the backend is built in");
    assert_eq!(example(&*backend).await.expect("it runs"), [SandboxPath::new("notes.txt").expect("valid")]);
}

/// Returns the highest number of watches of an inotify instance of this process.
fn watches() -> usize {
    let files = std::fs::read_dir("/proc/self/fdinfo").expect("the descriptors");
    let texts = files.filter_map(|file| std::fs::read_to_string(file.ok()?.path()).ok());
    texts.map(|text| text.lines().filter(|line| line.starts_with("inotify wd:")).count()).max().unwrap_or(0)
}

const HOSTILE: &str = r#"
import os, time
try:
    for number in range(100000):
        os.mkdir("d%d" % number)
except OSError:
    pass
until = time.monotonic() + 5
os.makedirs("tree/" + "/".join("abcdefgh"))
while time.monotonic() < until:
    os.rename("tree", "other")
    for number in range(1000):
        open("other/f%d" % number, "w").close()
    for number in range(1000):
        os.unlink("other/f%d" % number)
    os.rename("other", "tree")
print("done")
"#;

/// Promise (Files): A guest that creates 100,000 directories and a flood of changes costs a bounded number of watches
/// and events, which a watch reports as an overflow. The watch works afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_directories_and_changes_is_bounded() {
    let backend = registry::backend("process").expect("the backend is built in");
    let sandbox = backend.create(Spec::default()).await.expect("created");
    let root = SandboxPath::default();
    let mut events = sandbox.watch(&root, WatchOptions::default()).await.expect("watched");
    let interpreter = ["python3", "-I", "-S"].map(str::to_owned).into();
    let script = Script { interpreter, name: "flood.py".to_owned(), contents: HOSTILE.into(), args: Vec::new() };
    let running = sandbox.exec(ExecRequest::builder(Command::Script(script)).build().expect("valid"));
    let (mut overflows, mut received, mut peak) = (0, 0, 0);
    tokio::pin!(running);
    let done = loop {
        tokio::select! {
            done = &mut running => break done.expect("it runs"),
            event = events.next() => {
                let event = event.expect("the sandbox is there");
                overflows += usize::from(event == WatchEvent::Overflow);
                received += 1;
                if received % 100 == 1 {
                    peak = peak.max(watches());
                }
            }
        }
    };
    assert_eq!(done.stdout, "done\n", "{done:?}");
    peak = peak.max(watches());
    assert!(peak <= MAX_WATCHED_DIRECTORIES, "{peak} watches");
    // On a busy host the guest does not get as far as the bound in its time.
    let is_flooded = overflows > 0 || peak < MAX_WATCHED_DIRECTORIES;
    assert!(peak > 100 && is_flooded, "{peak} watches, {overflows} overflows, {received} events");
    // After the last overflow, everything is watched again.
    let deadline = Instant::now() + Duration::from_secs(60);
    for number in 0.. {
        let path = SandboxPath::new(format!("after{number}")).expect("valid");
        sandbox.write_bytes(&path, "x").await.expect("written");
        let reported = async {
            while let Some(event) = events.next().await {
                if event == WatchEvent::Created(path.clone()) {
                    return true;
                }
            }
            false
        };
        match tokio::time::timeout(Duration::from_secs(3), reported).await {
            Ok(reported) => {
                assert!(reported, "the watch ended");
                break;
            }
            Err(_) => assert!(Instant::now() < deadline, "a new file was not reported"),
        }
    }
    sandbox.close().await.expect("closed");
}
