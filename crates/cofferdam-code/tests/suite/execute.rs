//! Tests of single executions.

use std::collections::BTreeMap;
use std::time::Duration;

use cofferdam_code::{
    Bounds, CodeConfig, CodeRequest, Languages, RichKind, ScreeningConfig, ScreeningMode, Touched, Want,
};
use cofferdam_contract::{Access, ErrorKind, Workspace};

use crate::support::{World, spec};

/// Promise (Code execution): Python code returns its output, its last value, its files and its metadata.
#[tokio::test]
async fn python_gives_output_value_files_and_meta() {
    let world = World::new().await;
    let code = "import sys\nprint('hi')\nprint('oh', file=sys.stderr)\nopen('a.txt', 'w').write('x')\n6 * 7";
    let result = world.run("python", code).await;
    assert_eq!((result.stdout.text().as_ref(), result.exit_code), ("hi\n", 0), "{}", result.stderr.text());
    assert_eq!(result.stderr.text(), "oh\n");
    assert_eq!((result.results.len(), result.results_dropped), (1, 0));
    assert_eq!(result.results[0].kind, RichKind::Value);
    assert_eq!(result.results[0].data["text/plain"], "42");
    let [file] = &result.files.changes[..] else { panic!("{:?}", result.files) };
    assert_eq!((file.name.as_str(), file.change, file.size), ("a.txt", Touched::Created, 1));
    let hash = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881";
    assert_eq!(file.sha256.as_deref(), Some(hash));
    assert!(result.files.complete && result.files.total == 1);
    assert_eq!((result.meta.backend.as_str(), result.meta.posture.len()), ("process", 64));
    assert!(result.meta.runtime.version.as_ref().is_some_and(|version| version.starts_with("3.")), "{result:?}");
    let left = world.sandbox.list_dir(&Default::default()).await.expect("a listing");
    assert_eq!(left.len(), 1, "no internal file is left: {left:?}");
    let json = serde_json::to_value(&result).expect("JSON");
    assert_eq!(json["stdout"]["text"], "hi\n");
    assert!(json["duration"].as_f64().is_some_and(|seconds| seconds > 0.0), "{json}");
}

/// Promise (Code execution): Python code runs as a script does.
#[tokio::test]
async fn python_runs_as_a_script_does() {
    let world = World::new().await;
    for (code, stdout, stderr, exit) in [
        ("import sys; print(__name__, sys.argv[1:])", "__main__ []\n", "", 0),
        (
            "x = 1\nprint(x)\n\nraise ValueError('no')",
            "1\n",
            "line 4, in <module>\n    raise ValueError('no')\nValueError: no\n",
            1,
        ),
        ("import sys\nsys.exit(3)", "", "", 3),
        ("import sys\nsys.exit('words')", "", "words\n", 1),
        ("from __future__ import annotations\ndef f(a: missing): return 1\nprint(f(1))", "1\n", "", 0),
        ("import inspect\ndef f():\n    return 5\nprint(inspect.getsource(f))", "def f():\n    return 5\n\n", "", 0),
        ("import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__name__)", "A\n", "", 0),
        ("import os, sys\nsys.stdout.write('x')\nsys.stdout.flush()\nos._exit(7)", "x", "", 7),
        ("import atexit\natexit.register(print, 'bye')\n1", "bye\n", "", 0),
        ("open('mine.py', 'w').write('y = 2')\nimport mine\nprint(mine.y)", "2\n", "", 0),
        (
            "import multiprocessing as m\nif __name__ == '__main__':\n    print(m.get_context('spawn').Pool(1).map(abs, [-1]))",
            "[1]\n",
            "",
            0,
        ),
        ("'caf\u{e9} \u{1f600} \\u0000 \u{2028}'; print(len('\u{1f600}\u{2028}'))", "2\n", "", 0),
        // Some editors store files with a byte order mark.
        ("\u{feff}print(1)\r\nif 1:\r\n    print(2)\r\n", "1\n2\n", "", 0),
    ] {
        let result = world.run("python", code).await;
        assert_eq!(result.stdout.text(), stdout, "{code}: {}", result.stderr.text());
        assert!(result.stderr.text().ends_with(stderr), "{code}: {}", result.stderr.text());
        assert_eq!(result.exit_code, exit, "{code}");
        assert!(!result.stderr.text().contains("cofferdam"), "{code}: {}", result.stderr.text());
    }
}

/// Promise (Code execution): Figures are returned as PNG, and data frames as JSON and HTML.
#[tokio::test]
async fn figures_and_frames_are_results() {
    // The system's Python, which has the packages. Another one may come first in PATH.
    let python =
        toml::from_str("[python]\nextensions = ['py']\ninterpreter = ['/usr/bin/python3', '-u']").expect("valid");
    let config = CodeConfig { languages: Languages::new(&python, None).expect("valid"), ..CodeConfig::default() };
    let world = World::with(config, spec()).await;
    // On first use it builds a list of fonts, and prints a warning if that takes long.
    let found = world.run("python", "import pandas, matplotlib.pyplot").await;
    if found.exit_code != 0 {
        let missing = found.stderr.text().contains("No module named");
        assert!(missing, "{}", found.stderr.text());
        println!("SKIP without matplotlib and pandas for Python: figures and data frames are not tested");
        return;
    }
    let figure =
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nplt.figure(); plt.plot([3]);\nprint(1)";
    let result = world.run("python", figure).await;
    assert_eq!(result.stderr.text(), "");
    let kinds: Vec<_> = result.results.iter().map(|result| result.kind).collect();
    assert_eq!(kinds, [RichKind::Figure, RichKind::Figure]);
    assert!(result.results[0].data["image/png"].as_str().is_some_and(|image| image.starts_with("iVBORw0KGgo")));
    let flood = "import matplotlib.pyplot as plt\nplt.figure(figsize=(3000, 3000))\nfor n in range(20): plt.figure(figsize=(1, 1))\n1";
    let result = world.run("python", flood).await;
    let kinds = result.results.iter().filter(|result| result.kind == RichKind::Figure).count();
    assert_eq!((kinds, result.results_dropped), (15, 6), "one cannot be drawn, five are too many");
    let wide = "import pandas as pd\npd.DataFrame({'a': ['x' * (5 << 20)] * 5})";
    let result = world.run("python", wide).await;
    assert!(result.results[0].data["text/html"].as_str().is_some_and(|html| html.contains("<table")));
    assert_eq!(result.results[0].note.as_deref(), Some("application/json: too large"));
    let frame = "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})";
    let result = world.run("python", frame).await;
    let data = &result.results[0].data;
    assert!(data["text/html"].as_str().is_some_and(|html| html.contains("<table")), "{data:?}");
    assert_eq!(data["application/json"]["data"], serde_json::json!([[1, "x"], [2, "y"]]));
    let many = "import pandas as pd\npd.DataFrame({'a': range(100000)})";
    let result = world.run("python", many).await;
    assert_eq!(result.results[0].note.as_deref(), Some("the first 1000 of 100000 rows"));
    let shown = "display(1, 'two')\nclass H:\n    def _repr_html_(self): return '<b>x</b>'\nH()";
    let result = world.run("python", shown).await;
    let kinds: Vec<_> = result.results.iter().map(|result| result.kind).collect();
    assert_eq!(kinds, [RichKind::Display, RichKind::Display, RichKind::Value]);
    assert_eq!(result.results[2].data["text/html"], "<b>x</b>");
}

/// Promise (Code execution): JavaScript code returns its output and its last value.
#[tokio::test]
async fn javascript_gives_output_and_value() {
    let world = World::new().await;
    for (code, stdout, value, exit) in [
        ("console.log(1); ({a: [1, 2]})", "1\n", Some("{ a: [ 1, 2 ] }"), 0),
        ("const fs = require('fs'); fs.writeFileSync('b.txt', 'x'); 'done'", "", Some("'done'"), 0),
        ("Promise.resolve(5)", "", Some("5"), 0),
        ("let x = await Promise.resolve(2); console.log(x)", "2\n", None, 0),
        ("import fs from 'node:fs'; console.log(typeof fs.readFileSync)", "function\n", None, 0),
        (
            "import fs from 'fs'; fs.writeFileSync('mine.mjs', 'export const y = 7'); console.log((await import('./mine.mjs')).y)",
            "7\n",
            None,
            0,
        ),
        ("import { y } from './mine.mjs'; console.log(y, import.meta.url.slice(0, 8))", "7 file:///\n", None, 0),
        ("const { y } = await import('./mine.mjs'); console.log(y)", "7\n", None, 0),
        ("console.log(typeof module, typeof __filename, require.main === module)", "object string true\n", None, 0),
        ("process.exit(4)", "", None, 4),
        ("throw new Error('no')", "", None, 1),
        ("Promise.reject(new Error('no'))", "", None, 1),
        ("setTimeout(() => console.log('late'), 10); undefined", "late\n", None, 0),
        ("console.log('\u{2028}\u{1f600}'.length)", "3\n", None, 0),
    ] {
        let result = world.run("javascript", code).await;
        assert_eq!(result.stdout.text(), stdout, "{code}: {}", result.stderr.text());
        assert_eq!(result.exit_code, exit, "{code}: {}", result.stderr.text());
        let shown = result.results.iter().find_map(|result| result.data.get("text/plain")?.as_str());
        if exit == 0 {
            assert_eq!(shown, value, "{code}");
        }
        assert!(!result.stderr.text().contains("cofferdam"), "{code}: {}", result.stderr.text());
    }
    for code in
        ["\n\nthrow new Error('no')", "await 1;\n\nthrow new Error('no')", "import 'fs';\n\nthrow new Error('no')"]
    {
        let result = world.run("javascript", code).await;
        let stderr = result.stderr.text();
        assert!(result.exit_code == 1 && stderr.contains("main.js:3\nthrow new Error('no')\n"), "{code}: {stderr}");
        assert!(!stderr.contains("cofferdam") && !stderr.contains("Warning"), "{code}: {stderr}");
    }
    let endless = "import fs from 'fs'; console.log(fs.readdirSync('.').length); await new Promise(() => setInterval(() => {}, 1000))";
    let request = CodeRequest::new("javascript", endless).timeout(Duration::from_secs(3));
    let killed = world.try_run(request).await.expect("a result");
    assert!(killed.timed_out && killed.stdout.text() == "2\n", "{killed:?}");
    assert!(killed.files.changes.is_empty(), "a killed module leaves no internal file: {:?}", killed.files);
    let result = world.run("javascript", "({a: [1, 2]})").await;
    assert_eq!(result.results[0].data["application/json"], serde_json::json!({"a": [1, 2]}));
    assert!(result.meta.runtime.version.is_some());
}

#[tokio::test]
async fn typescript_runs_where_node_does() {
    let world = World::new().await;
    match world.try_run(CodeRequest::new("typescript", "const x: number = 1; console.log(x)")).await {
        Ok(result) => assert_eq!(result.stdout.text(), "1\n", "{}", result.stderr.text()),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.message().contains("typescript needs node 22.6 or newer"), "{error}");
        }
    }
}

#[tokio::test]
async fn shells_run() {
    let world = World::new().await;
    let result = world.run("bash", "echo ${BASH_VERSION%%.*}; exit 3").await;
    assert_eq!((result.stdout.text().as_ref(), result.exit_code), ("5\n", 3));
    assert!(result.meta.runtime.version.expect("a version").starts_with("5."));
    assert_eq!(world.run("sh", "echo $0 | grep -c main.sh").await.stdout.text(), "1\n");
}

/// Promise (Code execution): Configuration alone adds a compiled language.
#[tokio::test]
async fn a_compiled_language_needs_configuration_alone() {
    let text = r#"
        [c]
        extensions = ["c"]
        interpreter = ["cc", "-O1", "-o", "{program}", "{file}"]
        run = ["{program}"]
        version = ["cc", "--version"]
    "#;
    let added: BTreeMap<String, _> = toml::from_str(text).expect("valid");
    let config = CodeConfig { languages: Languages::new(&added, None).expect("valid"), ..CodeConfig::default() };
    let world = World::with(config, spec()).await;
    let code =
        "#include <stdio.h>\nint main(int n, char **v) { printf(\"%s\\n\", n > 1 ? v[1] : \"none\"); return 5; }";
    let mut request = CodeRequest::new("c", code);
    request.args = vec!["it's $HOME".to_owned()];
    let result = world.try_run(request).await.expect("it runs");
    assert_eq!((result.stdout.text().as_ref(), result.exit_code), ("it's $HOME\n", 5), "{}", result.stderr.text());
    assert!(result.meta.runtime.version.is_some());
    let wrong = world.run("c", "int main( {").await;
    assert!(wrong.exit_code != 0 && wrong.stderr.text().contains("error"), "{}", wrong.stderr.text());
}

/// Promise (Code execution): A language that is not allowed, a missing interpreter, a syntax error and a finding are
/// reported before anything starts.
#[tokio::test]
async fn forbidden_or_invalid_code_is_refused_before_the_start() {
    let added = toml::from_str("[ghost]\nextensions = ['gh']\ninterpreter = ['no-such-program']\n").expect("valid");
    let config = CodeConfig {
        languages: Languages::new(&added, None).expect("valid"),
        bounds: Bounds { max_timeout: Some(Duration::from_secs(5)), ..Bounds::default() },
        screening: ScreeningConfig { mode: ScreeningMode::Block, ..ScreeningConfig::default() },
        ..CodeConfig::default()
    };
    let world = World::with(config, spec()).await;
    for (language, code, kind, text) in [
        ("cobol", "", ErrorKind::Denied, "the language 'cobol' is not among those that may run"),
        ("ghost", "", ErrorKind::NotFound, "ghost cannot run here: the sandbox has no 'no-such-program'"),
        ("python", "def (", ErrorKind::InvalidInput, "syntax error in line 1"),
        ("python", "print(1)\nimport subprocess", ErrorKind::Denied, "line 2, column 8"),
        ("javascript", "require('child_process')", ErrorKind::Denied, "import:child_process"),
    ] {
        let error = world.try_run(CodeRequest::new(language, code)).await.expect_err("refused");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(text), "{error}");
    }
    let long = CodeRequest::new("sh", "true").timeout(Duration::from_secs(6));
    assert_eq!(world.try_run(long).await.expect_err("refused").kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn findings_stand_beside_the_result_of_code_that_runs() {
    let screening = ScreeningConfig { mode: ScreeningMode::Warn, ..ScreeningConfig::default() };
    let world = World::with(CodeConfig { screening, ..CodeConfig::default() }, spec()).await;
    let result = world.run("python", "import os; print(os.sep)").await;
    assert_eq!(result.stdout.text(), "/\n");
    let screened = result.screening.expect("it was screened");
    assert_eq!((screened.findings[0].line, screened.findings[0].rule.to_string()), (1, "import:os".to_owned()));
}

/// Promise (Code execution): A result names the created, changed and removed files with their hashes.
#[tokio::test]
async fn workspace_changes_are_reported_with_hashes() {
    let host = tempfile::tempdir().expect("a directory");
    for name in ["same", "changed", "gone"] {
        std::fs::write(host.path().join(name), "1").expect("written");
    }
    let mounted = |access| spec().workspace(Workspace::HostDir { path: host.path().into(), access });
    let world = World::with(CodeConfig::default(), mounted(Access::ReadWrite)).await;
    let code = "import os\nos.remove('gone')\nopen('changed','w').write('2')\nos.mkdir('d')\nopen('d/new','wb').write(b'\\xff')\nos.symlink('/etc/passwd', 'link')";
    let result = world.try_run(CodeRequest::new("python", code).with_contents()).await.expect("it runs");
    let seen: Vec<_> = result.files.changes.iter().map(|file| (file.name.as_str(), file.change)).collect();
    let expected = [
        ("changed", Touched::Changed),
        ("d/new", Touched::Created),
        ("gone", Touched::Removed),
        ("link", Touched::Created),
    ];
    assert_eq!(seen, expected, "{:?}", result.stderr.text());
    let json = serde_json::to_value(&result.files).expect("JSON");
    assert_eq!(json["changes"][0]["contents"]["text"], "2");
    assert_eq!(json["changes"][1]["contents"]["base64"], "/w==");
    assert!(json["changes"][3].get("contents").is_none() && json["changes"][3].get("sha256").is_none(), "{json}");
    let reading = World::with(CodeConfig::default(), mounted(Access::ReadOnly)).await;
    let result = reading.run("python", "open('same').read()").await;
    assert_eq!(result.results[0].data["text/plain"], "'1'", "results come out of a workspace that is read-only");
    assert_eq!(std::fs::read_dir(host.path()).expect("a listing").count(), 4, "no internal file is left");
}

#[tokio::test]
async fn timeout_input_and_options_are_respected() {
    let world = World::new().await;
    let request =
        CodeRequest::new("python", "print('a', flush=True)\nwhile True: pass").timeout(Duration::from_secs(1));
    let result = world.try_run(request).await.expect("a result");
    assert!(result.timed_out && result.exit_code == -1 && result.stdout.text() == "a\n", "{result:?}");
    let mut request = CodeRequest::new("python", "print(input())\n5");
    request.stdin = bytes::Bytes::from_static(b"from outside\n");
    (request.results, request.files) = (Want::No, Want::No);
    let result = world.try_run(request).await.expect("a result");
    assert_eq!((result.stdout.text().as_ref(), result.results.len()), ("from outside\n", 0));
    let seen = parking_lot::Mutex::new(Vec::new());
    let keep = |chunk: &cofferdam_contract::Chunk| seen.lock().extend_from_slice(&chunk.data);
    let request = CodeRequest::new("sh", "echo live");
    world.executor.execute_live(&world.profile, &*world.sandbox, request, &keep).await.expect("it runs");
    assert_eq!(seen.into_inner(), b"live\n");
}
