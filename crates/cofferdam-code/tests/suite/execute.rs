//! One call at a time.

use crate::support::World;

#[tokio::test]
async fn python_gives_output_value_and_meta() {
    let world = World::new().await;
    let result = world
        .run("python", "import sys\nprint('hi')\nprint('oh', file=sys.stderr)\nopen('a.txt','w').write('x')\n6 * 7")
        .await;
    assert_eq!((result.stdout.text().as_ref(), result.exit_code), ("hi\n", 0), "{}", result.stderr.text());
    assert_eq!(result.stderr.text(), "oh\n");
    assert_eq!(result.results[0].data["text/plain"], "42");
    assert_eq!(result.files.changes.len(), 1, "{:?}", result.files);
    assert_eq!(result.meta.backend, "process");
    println!("{}", serde_json::to_string_pretty(&result).expect("json"));
}

#[tokio::test]
async fn shells_run() {
    let world = World::new().await;
    let result = world.run("bash", "echo ${BASH_VERSION%%.*}; exit 3").await;
    assert_eq!((result.stdout.text().as_ref(), result.exit_code), ("5\n", 3));
    assert!(result.meta.runtime.version.expect("a version").starts_with("5."));
    assert_eq!(world.run("sh", "echo $0 | grep -c main.sh").await.stdout.text(), "1\n");
}
