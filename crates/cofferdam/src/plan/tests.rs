//! Unit tests.

use super::*;
use crate::args;
use crate::config::ConfigFile;
use crate::settings::Environment;
use std::time::Duration;

fn plan(words: &[&str]) -> Result<Plan> {
    let raw: Vec<_> = ["cofferdam", "run"].iter().chain(words).map(Into::into).collect();
    let args::Command::Run(run) = args::parse(&raw).unwrap().command else { panic!("not a run") };
    let settings = Settings::resolve(&run, &Environment::default(), &ConfigFile::default())?;
    Plan::new(&run, &settings, None)
}

fn directory_with(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

#[test]
fn a_file_becomes_a_script_of_its_language() {
    let directory = directory_with(&[("a.py", "print(1)")]);
    let file = directory.path().join("a.py");
    let plan = plan(&[file.to_str().unwrap(), "--x"]).unwrap();
    let expected = Script {
        interpreter: vec!["python3".into(), "-u".into()],
        name: "a.py".into(),
        contents: "print(1)".into(),
        args: vec!["--x".into()],
    };
    assert_eq!(plan.request.command(), &Command::Script(expected));
    assert_eq!(plan.request.stdin(), &Stdin::Empty);
}

#[test]
fn a_file_of_the_workspace_runs_from_its_place() {
    let directory = directory_with(&[("a.py", "")]);
    let (path, file) = (directory.path().to_str().unwrap(), directory.path().join("a.py"));
    let plan = plan(&["--workspace", &format!("{path}:ro"), file.to_str().unwrap(), "x"]).unwrap();
    let argv = ["python3", "-u", "/workspace/a.py", "x"].map(str::to_owned).to_vec();
    assert_eq!(plan.request.command(), &Command::Argv(argv));
    let path = directory.path().canonicalize().unwrap();
    assert_eq!(plan.spec.workspace(), &Workspace::HostDir { path, access: Access::ReadOnly });
}

#[test]
fn a_relative_file_that_is_not_here_is_found_in_the_workspace() {
    let directory = directory_with(&[("only-in-the-workspace.py", "")]);
    let path = directory.path().to_str().unwrap();
    let found = plan(&["--workspace", path, "only-in-the-workspace.py"]).unwrap();
    let argv = ["python3", "-u", "/workspace/only-in-the-workspace.py"].map(str::to_owned).to_vec();
    assert_eq!(found.request.command(), &Command::Argv(argv));
    std::os::unix::fs::symlink("/etc/passwd", directory.path().join("link-that-leads-out.py")).unwrap();
    let error = plan(&["--workspace", path, "link-that-leads-out.py"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PathEscape);
    let error = plan(&["--workspace", path, "in-neither-place.py"]).unwrap_err();
    assert_eq!((error.kind(), error.context().next()), (ErrorKind::NotFound, Some(("also looked in", path))));
}

#[test]
fn a_file_has_the_same_name_with_and_without_its_whole_result() {
    let directory = directory_with(&[("t.py", "1")]);
    let plan = plan(&[directory.path().join("t.py").to_str().unwrap()]).unwrap();
    assert_eq!(plan.code.unwrap().request.file_name.as_deref(), Some("t.py"));
}

#[test]
fn links_are_refused_and_exchanged_directories_detected() {
    let directory = directory_with(&[]);
    let top = directory.path().canonicalize().unwrap();
    std::fs::create_dir(top.join("real")).unwrap();
    std::os::unix::fs::symlink("real", top.join("link")).unwrap();
    for option in ["--workspace", "--root"] {
        let error = plan(&[option, top.join("link").to_str().unwrap(), "--", "true"]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PathEscape, "{option}");
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("realpath")), "{error:?}");
    }
    let path = top.join("real");
    let spec = plan(&["--workspace", path.to_str().unwrap(), "--", "true"]).unwrap().spec;
    let id = |path: &Path| recorded(Directory::open(path).unwrap()).1;
    assert!(spec.check_directory(&path, id(&path)).is_ok());
    // File systems reuse the inode number of a removed directory, but not while it is open.
    let removed = top.join("removed");
    std::fs::create_dir(&removed).unwrap();
    let planned = plan(&["--workspace", removed.to_str().unwrap(), "--", "true"]).unwrap().spec;
    std::fs::remove_dir(&removed).unwrap();
    std::fs::create_dir(&removed).unwrap();
    assert_eq!(planned.check_directory(&removed, id(&removed)).unwrap_err().kind(), ErrorKind::NotFound);
    std::fs::rename(&path, top.join("aside")).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert_eq!(spec.check_directory(&path, id(&path)).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_link_out_of_the_workspace_is_refused() {
    let (outside, directory) = (directory_with(&[("secret.py", "")]), directory_with(&[]));
    let link = directory.path().join("a.py");
    std::os::unix::fs::symlink(outside.path().join("secret.py"), &link).unwrap();
    let error = plan(&["--workspace", directory.path().to_str().unwrap(), link.to_str().unwrap()]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PathEscape);
}

#[test]
fn file_that_is_no_program_is_refused_with_a_reason() {
    let directory = directory_with(&[("a.rb", ""), ("big.py", "")]);
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::File::options().write(true).open(path("big.py")).unwrap().set_len((16 << 20) + 1).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, path("fifo.py"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for (name, kind, text) in [
        ("missing.py", ErrorKind::NotFound, "No such file or directory"),
        ("a.rb/x.py", ErrorKind::NotFound, "Not a directory"),
        ("", ErrorKind::InvalidInput, "is a directory"),
        ("a.rb", ErrorKind::Denied, "no language runs files that end in '.rb'"),
        ("big.py", ErrorKind::InvalidInput, "larger than the 16 MiB"),
        ("fifo.py", ErrorKind::InvalidInput, "is not a regular file"),
    ] {
        let error = plan(&[&path(name)]).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(text), "{error}");
    }
}

#[test]
fn commands_and_code_are_taken_as_given() {
    let argv = plan(&["--", "echo", "--json"]).unwrap();
    assert_eq!(argv.request.command(), &Command::Argv(vec!["echo".into(), "--json".into()]));
    let code = plan(&["--lang", "sh", "--code", "echo $1", "a"]).unwrap();
    let Command::Script(script) = code.request.command() else { panic!("{code:?}") };
    assert_eq!((script.name.as_str(), script.args.as_slice()), ("main.sh", &["a".to_owned()][..]));
    let python = plan(&["--code", "print(1)"]).unwrap();
    assert_eq!(python.code.unwrap().request.language, "python");
    for words in [&[][..], &["--stdin", "-"], &["--lang", "sh", "--", "x"], &["--lang", "cobol", "--code", "x"]] {
        assert!(plan(words).is_err(), "{words:?}");
    }
}

#[test]
fn options_reach_the_spec_and_the_request() {
    let words = "--timeout 5s --memory none --env A=1 --label job=7 --tenant acme --working-dir sub --stdin \
                 --max-output 1G --allow-weaker disk -- true";
    let plan = plan(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
    assert_eq!(plan.spec.limits().wall_time, Duration::from_secs(5));
    assert_eq!(plan.spec.limits().memory, None);
    assert_eq!(plan.spec.tenant().as_str(), "acme");
    assert_eq!(plan.spec.labels()["job"], "7");
    assert!(plan.spec.allow_weaker().contains(&cofferdam::Protection::Disk));
    assert_eq!(plan.request.env().iter().next(), Some(("A", Some("1"))));
    assert_eq!(plan.request.working_dir().as_str(), "sub");
    assert_eq!(plan.request.stdin(), &Stdin::Stream);
    assert_eq!(plan.request.output_buffer(), MAX_BUFFER);
}
