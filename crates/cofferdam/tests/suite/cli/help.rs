//! The help of every command, which is a page of the documentation.

use super::{cofferdam, outcome, repository};

const PAGE: &str = "docs/commands.md";
const HEAD: &str = "\
# Help of all commands

> This page has the output of `--help` for each command of a binary with all features. See [commands, limits, exit
> statuses](reference.md) for an overview. A test keeps it current.
";

/// Promise (Command line): The documentation has the current help of each command.
#[test]
fn the_documented_help_of_every_command_is_current() {
    let mut page = HEAD.to_owned();
    for (words, help) in helps() {
        let title = ["cofferdam"].into_iter().chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join(" ");
        page += &format!("\n## {title}\n\n```text\n{}\n```\n", help.trim_end());
    }
    let path = repository().join(PAGE);
    if std::env::var_os("COFFERDAM_UPDATE_HELP").is_some() {
        std::fs::write(&path, &page).expect("the page is written");
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(committed == page, "run this test with COFFERDAM_UPDATE_HELP=1, and look at the difference in {PAGE}");
}

/// Returns the words and the help of each command, in the order of the lists in their helps.
pub fn helps() -> Vec<(Vec<String>, String)> {
    let (mut helps, mut waiting) = (Vec::new(), vec![Vec::new()]);
    while let Some(words) = waiting.pop() {
        let (code, help, stderr) = outcome(cofferdam().args(&words).arg("--help"));
        assert_eq!((code, stderr.as_str()), (0, ""), "{words:?}");
        let below = subcommands(&help).into_iter().rev();
        waiting.extend(below.map(|command| words.iter().cloned().chain([command]).collect::<Vec<_>>()));
        helps.push((words, help));
    }
    assert!(helps.len() > 50, "{helps:?}");
    helps
}

/// Returns the subcommands that a help text lists, but for `help` itself.
fn subcommands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").map(str::to_owned).collect()
}
