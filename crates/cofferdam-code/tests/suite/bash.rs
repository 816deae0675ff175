//! Tests of the shell tool for agents.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_code::{BashConfig, BashTool, CodeConfig, Executor};
use cofferdam_contract::{Backend, Sandbox};

use crate::support::{World, backend, spec};

fn tool() -> BashTool {
    let executor = Executor::new(CodeConfig::default()).expect("an executor");
    let backend: Arc<dyn Backend> = backend();
    let config = BashConfig { max_answer: 400, ..BashConfig::default() };
    BashTool::new(executor, config, backend, spec().build().expect("valid")).expect("a tool")
}

/// Promise (Code execution): The bash tool keeps the working directory between calls, and shortens long output to head
/// and tail.
#[tokio::test]
async fn the_directory_is_kept_and_the_answer_is_compact() {
    let tool = tool();
    for (line, answer) in [
        ("mkdir -p a/b; cd a/b", "[no output]"),
        ("pwd", "/workspace/a/b"),
        ("echo out; echo err >&2; exit 3", "out\nerr\n[exit code 3]"),
        ("cd ../..", "[no output]"),
        ("pwd; cd /tmp", "/workspace"),
        ("pwd", "/workspace"),
        ("cd a/b; rm -r ../../a", "[no output]"),
        ("pwd", "/workspace"),
        ("kill -9 $$", "[ended by signal 9]"),
    ] {
        assert_eq!(tool.call(None, line, None).await, answer, "{line}");
    }
    let slow = tool.call(None, "echo a; sleep 60", Some(Duration::from_secs(1))).await;
    assert!(slow.starts_with("a\n[killed after 1.") && slow.ends_with("s: the time was over]"), "{slow}");
    let long = tool.call(None, "seq 1 1000", None).await;
    assert!(long.starts_with("1\n2\n") && long.ends_with("999\n1000"), "{long}");
    assert!(long.contains("[… 3492 of 3892 characters left out …]"), "{long}");
    let wrong = tool.call(None, "echo 'open", None).await;
    assert!(wrong.contains("[exit code 2]"), "{wrong}");
    let refused = tool.call(None, "true", Some(Duration::from_secs(100_000))).await;
    assert!(refused.starts_with("[not run: a timeout of 100000 s is more than"), "{refused}");
    tool.close().await.expect("it closes");
}

#[tokio::test]
async fn the_sandbox_of_the_context_comes_first() {
    let (tool, world) = (tool(), World::new().await);
    world.sandbox.clone().write_bytes(&"mark".to_owned().try_into().expect("a path"), "here").await.expect("written");
    let sandbox: Arc<dyn Sandbox> = Arc::clone(&world.sandbox);
    assert_eq!(tool.call(Some((&world.profile, &sandbox)), "cat mark", None).await, "here");
    assert!(tool.call(None, "cat mark", None).await.contains("No such file"));
}

#[tokio::test]
async fn each_sandbox_has_a_directory_of_its_own() {
    let (tool, one, two) = (tool(), World::new().await, World::new().await);
    let sandboxes: [Arc<dyn Sandbox>; 2] = [Arc::clone(&one.sandbox), Arc::clone(&two.sandbox)];
    let [first, second] = [(&one.profile, &sandboxes[0]), (&two.profile, &sandboxes[1])];
    assert_eq!(tool.call(Some(first), "mkdir a; cd a", None).await, "[no output]");
    assert_eq!(tool.call(Some(second), "mkdir -p a; pwd", None).await, "/workspace");
    assert_eq!(tool.call(Some(first), "pwd", None).await, "/workspace/a");
    assert!(tool.directory(sandboxes[1].id()).is_workspace());
}

#[tokio::test]
async fn directory_survives_any_shell_line_and_wrapper_stays_hidden() {
    let tool = tool();
    assert_eq!(tool.call(None, "mkdir -p a b/c 'd e'; ln -s b/c link", None).await, "[no output]");
    for (line, answer, directory) in [
        ("cd a; exec 2>&1; echo one", "one", "/workspace/a"),
        ("cd ../b; unset PATH PWD", "[no output]", "/workspace/b"),
        ("PWD=/workspace/a", "[no output]", "/workspace/b"),
        ("set -eu; cd c; false; echo not this", "[exit code 1]", "/workspace/b/c"),
        ("cd ..; exit 7", "[exit code 7]", "/workspace/b"),
        ("cd ../link; trap 'echo bye' INT; printf() { echo mine; }; unset -f printf", "[no output]", "/workspace/b/c"),
        ("cd '../../d e'; printf 'no end'", "no end", "/workspace/d e"),
        ("cd /workspace/a; printf '\\377\\376' >&2", "\u{fffd}\u{fffd}", "/workspace/a"),
        // If the shell or its exit trap is replaced, the directory stays unchanged.
        ("cd /workspace/b; exec echo gone", "gone", "/workspace/a"),
        ("cd /workspace/b; trap 'echo mine' EXIT", "mine", "/workspace/a"),
        ("cd /workspace/b; exec >/dev/null 2>&1", "[no output]", "/workspace/a"),
        ("cd /tmp", "[no output]", "/workspace"),
    ] {
        assert_eq!(tool.call(None, line, None).await, answer, "{line}");
        assert_eq!(tool.call(None, "pwd", None).await, directory, "{line}");
    }
    let traced = tool.call(None, "set -x; cd a", None).await;
    assert_eq!(traced, "+ cd a");
    assert_eq!(tool.call(None, "pwd", None).await, "/workspace/a");
    // A background process delays no answer, whatever files it keeps open.
    let begun = std::time::Instant::now();
    assert_eq!(tool.call(None, "sleep 600 & (trap '' TERM HUP; sleep 600) & echo here", None).await, "here");
    assert!(begun.elapsed() < Duration::from_secs(300));
    tool.close().await.expect("it closes");
}

#[tokio::test]
async fn of_a_flood_the_true_end_is_shown_and_all_of_it_is_counted() {
    let tool = tool();
    // Less than the buffer of a slow reader. Beyond that the beginning may be lost, and is counted.
    let line = "cd /tmp; mkdir -p /workspace/x; cd /workspace/x; head -c 60000000 /dev/zero | tr '\\0' x; echo; echo end; echo error >&2";
    let answer = tool.call(None, line, Some(Duration::from_secs(50))).await;
    assert!(answer.starts_with(&"x".repeat(200)), "{answer}");
    assert!(answer.ends_with("x\nend\nerror"), "{answer}");
    assert!(answer.contains("[… 59999610 of 60000010 characters left out …]"), "{answer}");
    assert_eq!(
        tool.call(None, "pwd", None).await,
        "/workspace/x",
        "the directory is reported although standard error came late"
    );
    // Multi-byte characters are cut between characters, and invalid bytes are shown as such.
    let wide = "for i in {1..200000}; do printf '\u{20ac}'; done";
    let answer = tool.call(None, wide, Some(Duration::from_secs(50))).await;
    assert_eq!(answer, format!("{0}\n[… 199600 of 200000 characters left out …]\n{0}", "\u{20ac}".repeat(200)));
    let errors = "head -c 3000000 /dev/zero | tr '\\0' '\\377' >&2; cd ..";
    let answer = tool.call(None, errors, None).await;
    assert!(answer.starts_with(&"\u{fffd}".repeat(200)) && answer.ends_with(&"\u{fffd}".repeat(200)), "{answer}");
    assert!(answer.contains("[… 2999600 of 3000000 characters left out …]"), "{answer}");
    assert_eq!(tool.call(None, "pwd", None).await, "/workspace");
    let whole = tool.run(None, "head -c 3000000 /dev/zero", None).await.expect("a result");
    assert_eq!(
        (whole.stdout.bytes().len(), whole.truncated),
        (1 << 20, true),
        "a result has no more than the allowed output"
    );
    tool.close().await.expect("it closes");
}
