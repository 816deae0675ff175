//! Unit tests.

use cofferdam::NetworkPolicy;

use super::*;
use clap::CommandFactory;

#[test]
fn a_run_is_parsed_alike_by_the_part_and_by_the_whole() {
    for line in [
        "cofferdam run a.py",
        "cofferdam run --config c.toml --json a.py --config x",
        "cofferdam run --timeout 5s --env A=b --config c.toml -- echo -- x",
        "cofferdam run --lang sh --code -x -- a",
        "cofferdam run --memory none --pids 5 --allow-weaker memory,disk --workspace .:ro x.py",
    ] {
        let raw: Vec<_> = line.split_whitespace().map(Into::into).collect();
        let part = parse_run(&raw).unwrap_or_else(|| panic!("{line} is not parsed by the part"));
        let whole = Cli::try_parse_from(&raw).unwrap();
        assert_eq!(format!("{part:?}"), format!("{whole:?}"), "{line}");
    }
    for line in
        ["cofferdam run --help", "cofferdam run --memroy 1M x", "cofferdam --config c run x", "cofferdam doctor"]
    {
        assert!(parse_run(&line.split_whitespace().map(Into::into).collect::<Vec<_>>()).is_none(), "{line}");
    }
}

fn run(line: &str) -> Result<RunArgs, clap::Error> {
    let raw: Vec<_> = ["cofferdam", "run"].into_iter().chain(line.split_whitespace()).map(Into::into).collect();
    parse(&raw).map(|cli| match cli.command {
        Command::Run(run) => *run,
        other => panic!("{other:?}"),
    })
}

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn separator_distinguishes_command_and_file() {
    for (line, words, separated) in [
        ("a.py", vec!["a.py"], false),
        ("a.py --json -- x", vec!["a.py", "--json", "--", "x"], false),
        ("--json a.py x", vec!["a.py", "x"], false),
        ("-- echo --json", vec!["echo", "--json"], true),
        ("--timeout 5s -- echo -- x", vec!["echo", "--", "x"], true),
        ("--lang sh --code -x -- a", vec!["a"], true),
    ] {
        let run = run(line).unwrap();
        assert_eq!((run.words, run.separated), (words.into_iter().map(str::to_owned).collect(), separated), "{line}");
    }
}

#[test]
fn values_are_parsed_once() {
    let run = run("--memory none --pids 5 --allow-weaker memory,disk --env A=b=c --net a.b,c.d:443 x.py").unwrap();
    assert_eq!(run.limits.memory, Some(Bound::None));
    assert_eq!(run.limits.pids, Some(Bound::Of(5)));
    assert_eq!(run.limits.allow_weaker, [Protection::Memory, Protection::Disk]);
    assert_eq!(run.start.env, [("A".to_owned(), "b=c".to_owned())]);
    assert_eq!(
        run.sandbox.network.net,
        Some(NetworkPolicy::Allow { hosts: vec!["a.b".to_owned(), "c.d:443".to_owned()] })
    );
}

#[test]
fn bad_values_are_refused() {
    for line in [
        "--memroy 1M x.py",
        "--memory lots x.py",
        "--timeout 1d x.py",
        "--pids -1 x.py",
        "--env HOME x.py",
        "--env =x x.py",
        "--label a x.py",
        "--net none,a x.py",
        "--allow-weaker all x.py",
        "--tty --json x.py",
        "--json --events x.py",
        "--level 9 x.py",
        "--working-dir ../x x.py",
        "--tenant ../x x.py",
    ] {
        assert!(run(line).is_err(), "{line}");
    }
}
