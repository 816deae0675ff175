//! Tests of TypeScript in versions of Node that strip types: the oldest, a common one, the newest. `cargo xtask test`
//! installs them, each in a root of its own. `cargo xtask clients` does so by hand.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_code::{CodeConfig, CodeRequest, CodeResult, ScreeningConfig, ScreeningMode, Sessions};
use cofferdam_contract::{ErrorKind, RootFs};

use crate::support::{World, spec};

/// The environment variable with the directories of the roots.
const NODES: &str = "COFFERDAM_TEST_NODES";

fn roots(test: &str) -> Option<[PathBuf; 3]> {
    let Some(directory) = std::env::var_os(NODES).map(PathBuf::from) else {
        println!("SKIP {test}: {NODES} names no Nodes; cargo xtask clients installs them");
        return None;
    };
    Some(["node-oldest", "node-usual", "node-newest"].map(|name| directory.join(name)))
}

async fn world(root: &Path, config: CodeConfig) -> World {
    World::with(config, spec().root(RootFs::Directory { path: root.to_owned() })).await
}

/// Returns true if this version of Node can strip types from a text, and not only from files.
fn is_oldest(root: &Path) -> bool {
    root.ends_with("node-oldest")
}

fn value(result: &CodeResult) -> Option<&str> {
    result.results.first().and_then(|result| result.data["text/plain"].as_str())
}

#[tokio::test]
async fn types_are_taken_away_and_the_rest_is_as_in_javascript() {
    let Some(roots) = roots("types_are_taken_away_and_the_rest_is_as_in_javascript") else { return };
    for root in &roots {
        let world = world(root, CodeConfig::default()).await;
        world
            .sandbox
            .write_bytes(&"mine.mts".to_owned().try_into().expect("a path"), "export const y: number = 7;")
            .await
            .expect("written");
        for (code, stdout, shown, exit) in [
            ("const x: number = 1;\nconsole.log(x);\nx + 1", "1\n", Some("2"), 0),
            (
                "interface I { a: number }\nconst f = <T,>(x: T): T => x;\nf({ a: 5 } satisfies I)",
                "",
                Some("{ a: 5 }"),
                0,
            ),
            (
                "import { sep } from 'node:path';\nimport { y } from './mine.mts';\nconsole.log(sep as string, y)",
                "/ 7\n",
                None,
                0,
            ),
            (
                "const x: number = await Promise.resolve(2);\nconsole.log(x, typeof require, typeof __filename)",
                "2 function string\n",
                None,
                0,
            ),
            ("import type { X } from './nowhere';\nconsole.log('no import is left')", "no import is left\n", None, 0),
            ("process.exit(4 as number)", "", None, 4),
        ] {
            let result = world.run("typescript", code).await;
            let stderr = result.stderr.text();
            assert_eq!((result.stdout.text().as_ref(), result.exit_code), (stdout, exit), "{root:?} {code}: {stderr}");
            if !is_oldest(root) {
                assert_eq!(
                    (value(&result).filter(|_| shown.is_some()), stderr.as_ref()),
                    (shown, ""),
                    "{root:?} {code}"
                );
            }
            let version = result.meta.runtime.version.as_deref().expect("a version");
            assert!(version.starts_with("22.") || version.starts_with("26."), "{root:?}: {version}");
            assert_eq!(result.meta.runtime.interpreter, "node");
            assert!(result.files.changes.is_empty(), "no internal file is left: {:?}", result.files);
        }
    }
}

#[tokio::test]
async fn errors_name_the_lines_of_the_code() {
    let Some(roots) = roots("errors_name_the_lines_of_the_code") else { return };
    for root in &roots {
        let world = world(root, CodeConfig::default()).await;
        for code in [
            "interface I {\n  a: number\n}\nthrow new Error('here') as I",
            "import 'node:fs';\ninterface I { a: number }\n\nthrow new Error('here')",
            "const a: number = await 1;\n\n\nthrow new Error('here')",
        ] {
            let result = world.run("typescript", code).await;
            let stderr = result.stderr.text();
            assert!(result.exit_code == 1 && stderr.contains("Error: here"), "{root:?} {code}: {stderr}");
            assert!(stderr.contains("main.ts:4"), "{root:?} {code}: {stderr}");
            assert!(!stderr.contains("cofferdam"), "{root:?} {code}: {stderr}");
        }
        // Syntax that needs transformation, not only stripping, is rejected by the interpreter, which reports the
        // position.
        for (code, what) in [
            ("console.log(1);\nenum A { B }", "TypeScript enum is not supported in strip-only mode"),
            (
                "console.log(1);\nnamespace N { export const a = 1 }",
                "TypeScript namespace declaration is not supported in strip-only mode",
            ),
            (
                "console.log(1);\nclass A { constructor(private x: number) {} }",
                "TypeScript parameter property is not supported in strip-only mode",
            ),
        ] {
            let result = world.run("typescript", code).await;
            let stderr = result.stderr.text();
            assert_eq!((result.exit_code, result.stdout.text().as_ref()), (1, ""), "nothing ran: {root:?} {stderr}");
            let location = if is_oldest(root) { "[2:" } else { "main.ts:2" };
            assert!(stderr.contains(what) && stderr.contains(location), "{root:?} {code}: {stderr}");
        }
    }
}

#[tokio::test]
async fn typescript_is_screened_as_javascript_is() {
    let Some([_, root, _]) = roots("typescript_is_screened_as_javascript_is") else { return };
    let screening = ScreeningConfig { mode: ScreeningMode::Block, ..ScreeningConfig::default() };
    let world = world(&root, CodeConfig { screening, ..CodeConfig::default() }).await;
    for (code, kind, text) in [
        ("const run: any = require('child_process')", ErrorKind::Denied, "line 1, column 18"),
        ("type A = string;\nimport fs from 'node:fs'", ErrorKind::Denied, "import:fs"),
        ("let a: number = (0, eval)('1') as number", ErrorKind::Denied, "call:eval"),
        ("const a: = 5", ErrorKind::InvalidInput, "syntax error in line 1"),
    ] {
        let error = world.try_run(CodeRequest::new("typescript", code)).await.expect_err("refused");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(text), "{error}");
    }
    let types = world.run("typescript", "import type { Stats } from 'node:fs';\nconst a: Stats | number = 6;\na").await;
    assert_eq!((value(&types), types.exit_code), (Some("6"), 0), "{}", types.stderr.text());
}

#[tokio::test]
async fn sessions_take_types_away_where_node_can() {
    let Some(roots) = roots("sessions_take_types_away_where_node_can") else { return };
    for root in &roots {
        let world = world(root, CodeConfig::default()).await;
        let sessions = Sessions::new(world.executor.clone());
        let opened = sessions.open(&world.profile, &world.sandbox, "typescript").await;
        if is_oldest(root) {
            let error = opened.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.message().contains("a session in typescript needs node 22.13 or newer"), "{error}");
            continue;
        }
        let session = opened.expect("a session");
        let call = async |code: &str| {
            let request = CodeRequest::new("", code).timeout(Duration::from_secs(20));
            session.call(request).await.expect("a result")
        };
        let first = call("const x: number = 20; function f(y: number): number { return x + y }").await;
        assert_eq!((first.exit_code, first.stderr.text().as_ref()), (0, ""), "{root:?}");
        assert_eq!(value(&call("f(22) as number").await), Some("42"), "{root:?}");
        let refused = call("enum A { B }").await;
        assert!(
            refused.exit_code == 1 && refused.stderr.text().contains("TypeScript enum is not supported"),
            "{root:?} {}",
            refused.stderr.text()
        );
        assert_eq!(value(&call("x").await), Some("20"), "the rejected code lost nothing");
        sessions.shutdown().await;
    }
}
