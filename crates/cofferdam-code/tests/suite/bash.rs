//! The tool for agents.

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
    assert!(refused.starts_with("[not run: a time-out of 100000 s is more than"), "{refused}");
    tool.close().await.expect("it closes");
}

#[tokio::test]
async fn the_sandbox_of_the_context_comes_first() {
    let (tool, world) = (tool(), World::new().await);
    world.sandbox.clone().write_bytes(&"mark".to_owned().try_into().expect("a path"), "here").await.expect("written");
    let sandbox: Arc<dyn Sandbox> = Arc::clone(&world.sandbox);
    assert_eq!(tool.call(Some((&world.place, &sandbox)), "cat mark", None).await, "here");
    assert!(tool.call(None, "cat mark", None).await.contains("No such file"));
}

#[tokio::test]
async fn each_sandbox_has_a_directory_of_its_own() {
    let (tool, one, two) = (tool(), World::new().await, World::new().await);
    let sandboxes: [Arc<dyn Sandbox>; 2] = [Arc::clone(&one.sandbox), Arc::clone(&two.sandbox)];
    let [first, second] = [(&one.place, &sandboxes[0]), (&two.place, &sandboxes[1])];
    assert_eq!(tool.call(Some(first), "mkdir a; cd a", None).await, "[no output]");
    assert_eq!(tool.call(Some(second), "mkdir -p a; pwd", None).await, "/workspace");
    assert_eq!(tool.call(Some(first), "pwd", None).await, "/workspace/a");
    assert!(tool.directory(sandboxes[1].id()).is_workspace());
}
