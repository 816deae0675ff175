//! Comparison with the interpreters of this machine: code that they accept is parsed, with the same positions. The
//! tests print a message if an interpreter is missing.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cofferdam_screen::{AnalysisError, Analyzer, Language, PythonRules, Rules};

const ENOUGH: Duration = Duration::from_secs(8);
/// Modules that are imported often.
const MODULES: [&str; 7] = ["os", "sys", "re", "collections", "typing", "unittest", "test"];
const MAX_FILES: usize = 400;

/// A program that prints files of the library that Python itself compiles, up to a number.
const LIBRARY: &str = r#"
import os, sys, sysconfig, warnings
warnings.simplefilter("ignore")
found = []
for folder, folders, files in os.walk(sysconfig.get_path("stdlib")):
    folders[:] = sorted(f for f in folders if f not in ("site-packages", "dist-packages", "__pycache__"))
    for name in sorted(files):
        path = os.path.join(folder, name)
        if name.endswith(".py") and os.path.getsize(path) < 200_000:
            found.append(path)
step = max(1, len(found) // int(sys.argv[1]))
for path in found[::step]:
    try:
        text = open(path, encoding="utf-8").read()
        compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        continue
    print(path)
"#;

/// A program that prints the positions of imports for each file named on its input, with columns in characters,
/// starting at 1.
const IMPORTS: &str = r#"
import ast, sys
wanted = sys.argv[1].split(",")
for path in sys.stdin.read().split("\n"):
    if not path:
        continue
    text = open(path, encoding="utf-8", newline="").read()
    lines = ast._splitlines_no_ff(text) if hasattr(ast, "_splitlines_no_ff") else text.splitlines(True)
    def column(node):
        return len(lines[node.lineno - 1].encode()[:node.col_offset].decode()) + 1
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in wanted:
                    print(path, alias.lineno, column(alias), sep="\t")
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module.split(".")[0] in wanted:
            print(path, node.names[0].lineno, column(node.names[0]), sep="\t")
"#;

fn run(program: &str, arguments: &[&str], input: &str) -> Option<String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| eprintln!("skipped: there is no {program} on this machine ({error})"))
        .ok()?;
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success(), "{program} failed");
    Some(String::from_utf8(done.stdout).unwrap())
}

/// Promise (Static analysis and audit log): Code that Python compiles is not a syntax error.
#[test]
fn code_that_python_compiles_is_no_syntax_error() {
    let Some(files) = run("python3", &["-I", "-c", LIBRARY, &MAX_FILES.to_string()], "") else { return };
    let screen = Analyzer::default();
    let start = Instant::now();
    let (mut read, mut bytes, mut wrong) = (0, 0, Vec::new());
    for path in files.lines() {
        let Ok(code) = std::fs::read_to_string(path) else { continue };
        if let Err(error) = screen.check(Language::Python, &code) {
            wrong.push(format!("{path}: {error}"));
        }
        read += 1;
        bytes += code.len();
        if start.elapsed() > ENOUGH {
            break;
        }
    }
    println!("{read} files, {bytes} bytes, {:?}", start.elapsed());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(read > 50, "only {read} files of the library were found");
}

/// Promise (Static analysis and audit log): The positions of imports are those of Python.
#[test]
fn imports_have_the_positions_that_python_reports() {
    let Some(files) = run("python3", &["-I", "-c", LIBRARY, "200"], "") else { return };
    let Some(expected) = run("python3", &["-I", "-c", IMPORTS, &MODULES.join(",")], &files) else { return };
    let mut expected: Vec<&str> = expected.lines().collect();
    expected.sort_unstable();
    let python = PythonRules {
        imports: MODULES.map(str::to_owned).to_vec(),
        calls: Vec::new(),
        attributes: Vec::new(),
        dynamic_imports: false,
        ..PythonRules::default()
    };
    let screen = Analyzer::new(Rules { python, ..Rules::default() });
    let mut found = Vec::new();
    for path in files.lines() {
        let code = std::fs::read_to_string(path).unwrap();
        for each in screen.check(Language::Python, &code).unwrap().findings {
            // Imports that Python's tree does not show: an attribute of another module, a call.
            if each.why.starts_with("imports") && !each.text.contains('(') {
                found.push(format!("{path}\t{}\t{}", each.line, each.column));
            }
        }
    }
    found.sort_unstable();
    assert!(expected.len() > 100, "only {} imports", expected.len());
    println!("{} imports", expected.len());
    assert_eq!(found, expected);
}

/// Scripts that come with Node.js, which runs them.
///
/// Promise (Static analysis and audit log): Code that Node runs is not a syntax error.
#[test]
fn code_that_node_runs_is_no_syntax_error() {
    let Some(program) = run("node", &["-p", "process.execPath"], "") else { return };
    let Some(prefix) = Path::new(program.trim()).ancestors().nth(2) else { return };
    let mut files = Vec::new();
    for folder in ["lib/node_modules/npm", "share/nodejs"] {
        scripts(&prefix.join(folder), &mut files);
    }
    files.sort();
    let step = (files.len() / MAX_FILES).max(1);
    let screen = Analyzer::default();
    let start = Instant::now();
    let (mut read, mut bytes, mut wrong) = (0, 0, Vec::new());
    for path in files.iter().step_by(step) {
        let Ok(code) = std::fs::read_to_string(path) else { continue };
        match screen.check(Language::JavaScript, &code) {
            Ok(_) | Err(AnalysisError::TooLarge { .. }) => {}
            Err(error) => wrong.push(format!("{}: {error}", path.display())),
        }
        read += 1;
        bytes += code.len();
        if start.elapsed() > ENOUGH {
            break;
        }
    }
    println!("{read} files, {bytes} bytes, {:?}", start.elapsed());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    if read == 0 {
        eprintln!("skipped: this Node.js came without scripts");
    }
}

fn scripts(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => scripts(&path, found),
            Ok(kind)
                if kind.is_file()
                    && path.extension().is_some_and(|end| ["js", "cjs", "mjs"].iter().any(|e| end == *e)) =>
            {
                found.push(path);
            }
            _ => {}
        }
    }
}
