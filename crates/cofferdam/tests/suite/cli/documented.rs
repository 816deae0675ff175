//! Every command in README.md, CONTRIBUTING.md, SECURITY.md, the pages of docs and `--help` is run verbatim, or has a
//! row with the reason and the test that runs it instead. Output that a page shows is not compared.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::documents::{configure, shell};
use super::{cofferdam, has_weaker_containers, outcome, repository};

/// The treatment of a documented command.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Row {
    /// Run it here, after the previous ones of its block.
    Here,
    /// Run it here. It ends with one of these statuses, as the page shows.
    Fails(&'static [i32]),
    /// Run it if an interpreter for WebAssembly is installed.
    WithInterpreter,
    /// Run it with the tests' container engine.
    WithEngine,
    /// Skip it for this reason.
    Elsewhere(&'static str),
}

/// The treatment of commands that do not simply run here. The first row whose text is a prefix of the command applies.
const ROWS: &[(&str, Row)] = &[
    ("cargo ", Row::Elsewhere("a task of this repository")),
    ("git clone ", Row::Elsewhere("fetches from the network")),
    ("sudo ", Row::Elsewhere("changes the host")),
    ("apt-get ", Row::Elsewhere("changes the host")),
    ("pip install ", Row::Elsewhere("needs a package; cargo xtask test installs the wheel")),
    ("uvx ", Row::Elsewhere("another program; cargo xtask test installs the wheel")),
    ("npm install ", Row::Elsewhere("needs a package; cargo xtask test installs it")),
    ("tar ", Row::Elsewhere("needs a package; cargo xtask test unpacks the tarball")),
    ("sha256sum ", Row::Elsewhere("needs packages; cargo xtask test compares their checksums")),
    ("systemd-run ", Row::Elsewhere("needs a user session of systemd")),
    ("docker run ", Row::Elsewhere("shows options of another program")),
    ("cat /sys/kernel/security/lsm", Row::Elsewhere("needs securityfs")),
    ("claude ", Row::Elsewhere("another program; the configurations of clients are run by documents")),
    ("tail -n 1 audit-", Row::Elsewhere("needs a log; the audit suite computes these hashes")),
    ("cofferdam setup", Row::Elsewhere("downloads for minutes; the wasm-supply suite does it")),
    ("cofferdam run --tty", Row::Elsewhere("needs a terminal; terminals has one")),
    ("cofferdam run --config bad.toml", Row::Fails(&[125])),
    // Without control groups, the interpreter reports the failed allocation itself.
    ("cofferdam run --memory 64M --lang python --code 'x = ", Row::Fails(&[137, 1])),
    ("echo $?", Row::Elsewhere("prints the status of the command before it, which has a row")),
    ("cofferdam run --net pypi.org", Row::Elsewhere("reaches the internet; net has servers of its own")),
    ("cofferdam run --net '@python", Row::Elsewhere("reaches the internet; net has servers of its own")),
    ("cofferdam run --net '*.example.com", Row::Elsewhere("names a program of an example")),
    ("cofferdam run --net-policy ", Row::Elsewhere("names a program of an example; net has policies of its own")),
    ("cofferdam run --net ", Row::Here),
    ("cofferdam run --publish ", Row::Elsewhere("serves until it is ended; published runs servers")),
    ("curl ", Row::Elsewhere("a client of a server in a sandbox; published has clients")),
    ("cofferdam run --level wasm -- prog.wasm", Row::Here),
    ("cofferdam run --level wasm", Row::WithInterpreter),
    ("cofferdam run --backend wasm -- python3", Row::WithInterpreter),
    ("cofferdam doctor --backend docker", Row::WithEngine),
    ("cofferdam run --backend docker script.py", Row::WithEngine),
    ("cofferdam run --backend docker:runsc", Row::WithEngine),
    ("SANDBOX_TYPE=docker ", Row::WithEngine),
    ("cofferdam image list", Row::WithEngine),
    ("cofferdam image build-base", Row::Elsewhere("takes long; every run of the tests makes this image with it")),
    ("cofferdam image import", Row::Elsewhere("needs a root file system; the container suite imports one")),
    ("cofferdam image pull", Row::Elsewhere("needs a public registry; the container suite has one of its own")),
    ("cofferdam run --image", Row::Elsewhere("needs those images; the container suite makes them")),
    (
        "cofferdam vm ",
        Row::Elsewhere("takes minutes; machines builds, lists and prunes images, travels exports and imports them"),
    ),
    ("cofferdam run --level vm", Row::Elsewhere("needs an image of virtual machines; machines has one")),
    ("cofferdam run --backend vm", Row::Elsewhere("needs an image of virtual machines; machines has one")),
    ("SANDBOX_TYPE=vm ", Row::Elsewhere("needs an image of virtual machines; machines has one")),
    ("cofferdam doctor --backend vm", Row::Elsewhere("needs an image of virtual machines; machines has one")),
    ("cofferdam snapshot ", Row::Elsewhere("needs a virtual machine; snapshots has one")),
    ("cofferdam mcp --http", Row::Elsewhere("serves until it is ended; documents starts and ends it")),
    ("cofferdam audit verify /var/log", Row::Elsewhere("names a log and a hash of an example")),
];

fn row(command: &str) -> Row {
    ROWS.iter().find(|(start, _)| command.starts_with(start)).map_or(Row::Here, |(_, row)| *row)
}

/// A block of commands and its page.
struct Block {
    page: String,
    commands: Vec<String>,
}

/// Extracts the command from a line of a page: the text before a comment.
fn command_of(line: &str) -> Option<String> {
    let line = line.split_once("  #").map_or(line, |(command, _)| command).trim();
    (!line.is_empty() && !line.starts_with('#')).then(|| line.to_owned())
}

/// Extracts the commands from a block of a page: the lines of `sh`, or the lines with a prompt of `console`. Returns
/// `None` for blocks in other languages.
fn commands_of(block: &str) -> Option<Vec<String>> {
    if let Some(lines) = block.strip_prefix("sh\n") {
        return Some(lines.lines().filter_map(command_of).collect());
    }
    let lines = block.strip_prefix("console\n")?.lines();
    Some(lines.filter_map(|line| command_of(line.strip_prefix("$ ")?)).collect())
}

/// Returns the commands of all pages.
fn pages() -> Vec<Block> {
    let mut files: Vec<_> = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| repository().join(name)).into();
    let mut docs: Vec<PathBuf> = std::fs::read_dir(repository().join("docs"))
        .expect("docs")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    docs.sort();
    files.extend(docs.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    let mut blocks = Vec::new();
    for file in files {
        let page = file.file_name().expect("a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&file).expect("a page");
        for commands in text.split("\n```").filter_map(commands_of) {
            blocks.push(Block { page: page.clone(), commands });
        }
    }
    blocks
}

/// Returns the examples in the help of all commands.
fn helps() -> Vec<Block> {
    let (_, help, _) = outcome(cofferdam().arg("--help"));
    let list = help.split_once("Commands:\n").expect("a list of commands").1;
    let names: Vec<_> = list
        .lines()
        .map_while(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !name.is_empty())
        .collect();
    assert!(names.contains(&"run") && names.contains(&"doctor"), "{names:?}");
    let mut blocks = Vec::new();
    for name in std::iter::once(None).chain(names.into_iter().map(Some)) {
        let (_, help, _) = outcome(cofferdam().args(name).arg("--help"));
        let Some((_, examples)) = help.split_once("Examples:\n") else { continue };
        let lines = examples.lines().take_while(|line| line.starts_with("  "));
        let commands = lines.filter_map(|line| {
            // A description follows two spaces. A line that does not start with a command continues the previous one.
            let command = line.trim().split("  ").next()?.to_owned();
            ["cofferdam ", "printf ", "echo "].iter().any(|start| command.starts_with(start)).then_some(command)
        });
        blocks.push(Block { page: format!("cofferdam {} --help", name.unwrap_or("")), commands: commands.collect() });
    }
    blocks
}

/// Creates a home directory with the files that the pages mention: programs, a project, a makefile.
fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &[u8]| {
        let path = home.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("created");
        std::fs::write(path, text).expect("written");
    };
    let primes = std::fs::read(repository().join("examples/primes.py")).expect("the example");
    write("examples/primes.py", &primes);
    for name in ["script.py", "x.py"] {
        write(name, b"import sys\nprint('ran', sys.argv[1:])\n");
    }
    write("project/script.js", b"console.log('ran')\n");
    write("Makefile", b"all:\n\techo made\ntest:\n\techo tested\n");
    // A module whose _start returns immediately.
    write(
        "prog.wasm",
        b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x03\x02\x01\0\x05\x03\x01\0\x01\x07\x13\x02\x06memory\x02\0\x06_start\0\0\
          \x0a\x04\x01\x02\0\x0b",
    );
    home
}

/// Runs a command. Returns `None` if this host lacks its requirements.
fn run_shown(command: &str, how: Row, home: &Path) -> Option<(i32, String, String)> {
    let mut shell = shell(command, home);
    shell.env("XDG_RUNTIME_DIR", home);
    match how {
        Row::Elsewhere(_) => return None,
        Row::Here | Row::Fails(_) => {}
        Row::WithEngine => {
            let Ok(socket) = std::env::var("COFFERDAM_TEST_DOCKER") else {
                println!("SKIP {command}: COFFERDAM_TEST_DOCKER names no engine");
                return None;
            };
            if has_weaker_containers() {
                println!(
                    "SKIP {command}: on cgroup v1 an ordinary user's container is refused without --allow-weaker memory"
                );
                return None;
            }
            shell.env("DOCKER_HOST", format!("unix://{socket}"));
        }
        Row::WithInterpreter => {}
    }
    let ended = outcome(&mut shell);
    if how == Row::WithInterpreter && ended.0 != 0 && ended.2.contains("is not installed") {
        println!("SKIP {command}: no interpreter for WebAssembly is installed");
        return None;
    }
    Some(ended)
}

#[test]
fn every_documented_command_works_as_written() {
    let mut done = BTreeSet::new();
    let mut failed = Vec::new();
    for Block { page, commands } in pages().into_iter().chain(helps()) {
        let home = home();
        let daemon = commands.iter().any(|command| command.starts_with("cofferdam daemon"));
        if commands.iter().any(|command| command.starts_with("cofferdam audit")) {
            // The log exists after the first run.
            configure(home.path(), &format!("[audit]\ndirectory = {:?}\n", home.path().join("audit")));
            let (status, _, stderr) = outcome(&mut shell("cofferdam run -- true", home.path()));
            assert_eq!(status, 0, "{stderr}");
        }
        for command in commands {
            // Runs of a daemon differ from runs of the command itself.
            if !daemon && !done.insert(command.clone()) {
                continue;
            }
            let row = row(&command);
            let Some((status, stdout, stderr)) = run_shown(&command, row, home.path()) else { continue };
            let is_shown = match row {
                Row::Fails(statuses) => statuses.contains(&status),
                _ => status == 0,
            };
            let answers = !command.contains("print(6 * 7)") || stdout.trim_end().ends_with("42");
            if !is_shown || !answers {
                failed.push(format!("{page}: {command}\n  status {status}\n  {stdout}\n  {stderr}"));
            }
        }
        if daemon {
            outcome(shell("cofferdam daemon stop", home.path()).env("XDG_RUNTIME_DIR", home.path()));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_row_of_documented_commands_has_a_command() {
    let commands: Vec<_> = pages().into_iter().chain(helps()).flat_map(|block| block.commands).collect();
    assert!(commands.len() > 60, "{} commands were found", commands.len());
    for (start, _) in ROWS {
        assert!(commands.iter().any(|command| command.starts_with(start)), "nothing shown begins with '{start}'");
    }
}
