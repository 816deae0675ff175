//! Every command in README.md, CONTRIBUTING.md, SECURITY.md, the pages of docs and `--help` is run verbatim, or has a
//! row with the reason, and with the test that stands for it if there is one. Output that a page shows is not compared.
//! Every program in Rust on these pages is part of a test. Configurations on the pages are accepted.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam::engine::PoolConfig;
use cofferdam::{ExecRequest, Spec};

use super::documents::{configure, shell};
use super::{has_weaker_containers, outcome, repository};

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
    /// Skip it for this reason. This test runs the same command with other arguments, or its server or client.
    Tested(&'static str, &'static str),
    /// Skip it for this reason. No test runs it.
    Untested(&'static str),
}

/// The treatment of commands that do not simply run here. The first row whose text is a prefix of the command applies.
const ROWS: &[(&str, Row)] = &[
    ("cargo ", Row::Untested("a task of this repository")),
    ("git clone ", Row::Untested("fetches from the network")),
    ("sudo ", Row::Untested("changes the host")),
    ("apt-get ", Row::Untested("changes the host")),
    ("pip install ", Row::Tested("needs a package", "package_wheel_runs")),
    ("uvx ", Row::Tested("another program, and needs a package", "package_wheel_runs")),
    ("npm install ", Row::Tested("needs a package", "package_npm_runs")),
    ("tar ", Row::Tested("needs a package", "package_tarball_runs")),
    ("sha256sum ", Row::Tested("needs packages", "package_checksums_match")),
    ("systemd-run ", Row::Untested("needs a user session of systemd")),
    ("docker run ", Row::Untested("shows options of another program")),
    ("cat /sys/kernel/security/lsm", Row::Untested("needs securityfs")),
    ("claude ", Row::Tested("another program", "the_configurations_of_clients_start_the_server")),
    ("tail -n 1 audit-", Row::Tested("needs a log", "the_example_is_a_log_and_its_hash_can_be_computed_by_hand")),
    (
        "cofferdam setup",
        Row::Tested("downloads for minutes", "both_interpreters_are_obtained_found_again_and_repaired"),
    ),
    ("cofferdam run --tty", Row::Tested("needs a terminal", "a_terminal_program_gets_keys_size_and_its_own_terminal")),
    ("cofferdam run --config bad.toml", Row::Fails(&[125])),
    // Without control groups, the interpreter reports the failed allocation itself.
    ("cofferdam run --memory 64M --lang python --code 'x = ", Row::Fails(&[137, 1])),
    ("echo $?", Row::Untested("prints the status of the command before it, which has a row")),
    ("cofferdam run --net pypi.org", Row::Tested("reaches the internet", "policy_allows_its_hosts_and_nothing_else")),
    ("cofferdam run --net '@python", Row::Tested("reaches the internet", "pip_installs_with_the_preset")),
    (
        "cofferdam run --net '*.example.com",
        Row::Tested("names a program of an example", "policy_allows_its_hosts_and_nothing_else"),
    ),
    (
        "cofferdam run --net-policy ",
        Row::Tested("names a program of an example", "requests_are_allowed_by_method_and_path"),
    ),
    ("cofferdam serve --detach", Row::Here),
    ("cofferdam serve st", Row::Here),
    (
        "cofferdam serve --listen 127.0.0.1:8080 --otlp",
        Row::Tested("serves until it is ended", "spans_lead_from_the_client_to_the_guest"),
    ),
    (
        "cofferdam serve --listen 127.0.0.1:8080 --plugin",
        Row::Tested("serves until it is ended", "tenants_call_the_plugins_of_a_server"),
    ),
    ("cofferdam plugins list --server", Row::Tested("needs a server", "tenants_call_the_plugins_of_a_server")),
    ("cofferdam plugins call hello hello", Row::Tested("needs a server", "tenants_call_the_plugins_of_a_server")),
    ("cofferdam serve", Row::Tested("serves until it is ended", "a_server_is_used_from_the_command_line")),
    (
        "cofferdam keys create --tenant acme && cofferdam serve",
        Row::Tested("serves until it is ended", "a_key_opens_the_server_until_it_is_revoked"),
    ),
    ("cofferdam keys create", Row::Here),
    ("cofferdam keys ls", Row::Here),
    ("cofferdam keys ", Row::Tested("needs an id", "a_key_opens_the_server_until_it_is_revoked")),
    ("cofferdam create --name fix --workspace", Row::Tested("needs a server", "changes_of_a_workspace_are_applied")),
    ("cofferdam diff", Row::Tested("needs a server", "changes_of_a_workspace_are_applied")),
    ("cofferdam code", Row::Tested("needs a server", "code_and_kernels_run")),
    ("cofferdam kernel", Row::Tested("needs a server", "code_and_kernels_run")),
    ("source <(cofferdam completions", Row::Tested("changes the shell", "names_are_completed_by_the_shell")),
    ("cofferdam create --volume", Row::Tested("needs a server", "volumes_of_a_server_are_used")),
    // These are in a block that starts a server.
    ("cofferdam create --name build", Row::Here),
    ("cofferdam exec build -- sh", Row::Here),
    ("cofferdam logs build", Row::Here),
    ("cofferdam cp build:greeting", Row::Here),
    ("cofferdam rm build", Row::Here),
    ("cofferdam create", Row::Tested("needs a server", "a_server_is_used_from_the_command_line")),
    ("cofferdam attach", Row::Tested("needs a server", "a_cut_connection_is_made_again")),
    ("cofferdam fork", Row::Tested("needs a server", "snapshots_are_taken_moved_and_restored")),
    ("cofferdam snapshot take", Row::Tested("needs a server", "snapshots_are_taken_moved_and_restored")),
    ("cofferdam port", Row::Tested("needs a server", "a_port_is_forwarded")),
    ("cofferdam watch", Row::Tested("needs a server", "directories_are_copied_and_watched")),
    ("cofferdam pause", Row::Tested("needs a server", "sandboxes_are_paused_renamed_measured_and_pruned")),
    ("cofferdam resume", Row::Tested("needs a server", "sandboxes_are_paused_renamed_measured_and_pruned")),
    ("cofferdam extend", Row::Tested("needs a server", "sandboxes_are_paused_renamed_measured_and_pruned")),
    ("cofferdam rename", Row::Tested("needs a server", "sandboxes_are_paused_renamed_measured_and_pruned")),
    ("cofferdam stats", Row::Tested("needs a server", "sandboxes_are_paused_renamed_measured_and_pruned")),
    ("cofferdam prune", Row::Tested("needs a server", "sandboxes_are_paused_renamed_measured_and_pruned")),
    ("cofferdam exec", Row::Tested("needs a server", "a_server_is_used_from_the_command_line")),
    ("cofferdam logs", Row::Tested("needs a server", "a_server_is_used_from_the_command_line")),
    ("cofferdam ls --server", Row::Tested("needs a server", "a_server_is_used_from_the_command_line")),
    ("cofferdam ls", Row::Here),
    ("cofferdam cp", Row::Tested("needs a server", "a_server_is_used_from_the_command_line")),
    ("cofferdam rm", Row::Tested("needs a server", "a_server_is_used_from_the_command_line")),
    ("cofferdam changes ls", Row::Here),
    ("cofferdam changes apply fix.tar", Row::Here),
    ("cofferdam changes prune", Row::Here),
    ("cofferdam changes ", Row::Tested("needs an id", "changes_are_kept_shown_applied_and_discarded")),
    ("cofferdam volume ls --on-server", Row::Tested("needs a server", "volumes_of_a_server_are_used")),
    ("cofferdam volume create data --on-server", Row::Tested("needs a server", "volumes_of_a_server_are_used")),
    ("cofferdam volume ls", Row::Here),
    (
        "cofferdam run --volume ",
        Row::Tested("needs a volume", "a_volume_with_a_size_survives_and_limits_its_sandboxes"),
    ),
    ("cofferdam net set", Row::Tested("needs a server", "the_policy_of_a_sandbox_of_a_server_is_replaced")),
    ("cofferdam net show", Row::Tested("needs a server", "the_policy_of_a_sandbox_of_a_server_is_replaced")),
    ("cofferdam run --net ", Row::Here),
    ("export E2B_API_KEY=", Row::Untested("sets a key of the reader")),
    ("cofferdam doctor --backend e2b", Row::Tested("needs a key of E2B", "doctor_reports_valid_and_invalid_keys")),
    ("cofferdam run --backend e2b", Row::Tested("needs a key of E2B", "e2b_backend_passes_the_conformance_suite")),
    ("cofferdam run --backend remote", Row::Tested("needs a server", "a_run_uses_a_server_as_its_backend")),
    ("cofferdam run --publish ", Row::Tested("serves until it is ended", "published_ports_lead_to_the_server")),
    ("curl --unix-socket", Row::Tested("a client of a server", "tasks_are_listed_until_they_end")),
    ("curl ", Row::Tested("a client of a server in a sandbox", "published_ports_lead_to_the_server")),
    ("cofferdam run --level wasm -- prog.wasm", Row::Here),
    ("cofferdam run --level wasm", Row::WithInterpreter),
    ("cofferdam run --backend wasm -- python3", Row::WithInterpreter),
    ("cofferdam doctor --backend docker", Row::WithEngine),
    ("cofferdam run --backend docker script.py", Row::WithEngine),
    ("cofferdam run --backend docker:runsc", Row::WithEngine),
    ("SANDBOX_TYPE=docker ", Row::WithEngine),
    ("cofferdam image ls --on-server", Row::Tested("needs a server", "images_of_a_server_are_loaded_used_and_removed")),
    ("cofferdam image ls --engine", Row::WithEngine),
    ("cofferdam image ls", Row::Here),
    ("cofferdam image build", Row::Tested("takes long; every run of the tests makes this image", "make_base_image")),
    ("cofferdam image prune", Row::Here),
    (
        "cofferdam image load saved.tar --on-server",
        Row::Tested("needs a server", "images_of_a_server_are_loaded_used_and_removed"),
    ),
    (
        "cofferdam image load saved.tar --server",
        Row::Tested("needs a server", "images_of_a_server_are_loaded_used_and_removed"),
    ),
    ("cofferdam image load", Row::Tested("needs an archive", "images_are_loaded_from_an_archive")),
    (
        "cofferdam image rm python:3.13-slim --on-server",
        Row::Tested("needs a server", "images_of_a_server_are_loaded_used_and_removed"),
    ),
    (
        "cofferdam image pull --engine",
        Row::Tested("needs a public registry", "an_image_comes_from_a_registry_with_its_progress"),
    ),
    (
        "cofferdam image pull python:3.13-slim --on-server",
        Row::Tested("needs a registry", "images_of_a_server_are_loaded_used_and_removed"),
    ),
    ("cofferdam image pull", Row::Tested("needs a public registry", "an_image_is_pulled_with_the_logins_of_docker")),
    ("cofferdam run --image", Row::Tested("needs those images", "images_are_made_from_directories_and_listed")),
    ("cofferdam vm export-image", Row::Tested("takes minutes", "an_image_is_exported_and_imported_by_another_user")),
    ("cofferdam vm import-image", Row::Tested("takes minutes", "an_image_is_exported_and_imported_by_another_user")),
    ("cofferdam vm ", Row::Tested("takes minutes", "images_are_made_of_directories_named_listed_and_pruned")),
    (
        "cofferdam run --level vm",
        Row::Tested("needs an image of virtual machines", "script_runs_in_a_vm_and_posture_names_the_vmm"),
    ),
    (
        "cofferdam run --backend vm",
        Row::Tested("needs an image of virtual machines", "script_runs_in_a_vm_and_posture_names_the_vmm"),
    ),
    (
        "SANDBOX_TYPE=vm ",
        Row::Tested("needs an image of virtual machines", "script_runs_in_a_vm_and_posture_names_the_vmm"),
    ),
    (
        "cofferdam doctor --backend vm",
        Row::Tested("needs an image of virtual machines", "doctor_reports_requirements_of_vms"),
    ),
    ("cofferdam snapshot inspect", Row::Tested("needs an archive", "archive_is_shown_without_a_vm")),
    (
        "cofferdam snapshot restore m.snap --attach",
        Row::Tested("needs a virtual machine", "a_restored_program_is_attached_to_with_its_output_and_status"),
    ),
    (
        "cofferdam snapshot restore m.snap --lang",
        Row::Tested("needs a virtual machine", "saves_and_runs_of_restored_vms_are_logged"),
    ),
    ("cofferdam snapshot ", Row::Tested("needs a virtual machine", "program_resumes_in_another_process_and_directory")),
    (
        "cofferdam plugins run ./",
        Row::Tested("serves until it is ended", "b5_a_changed_file_reloads_an_inline_plugin_after_its_running_calls"),
    ),
    (
        "cofferdam plugins call ./hello hello --development",
        Row::Tested("is refused, or needs debugpy", "b7_debugging_is_refused_in_production_mode_and_in_sandboxes"),
    ),
    (
        "cofferdam plugins call ./web",
        Row::Tested(
            "names a plugin in Node.js",
            "b7_a_profile_of_node_has_chromes_format_and_names_the_plugins_function",
        ),
    ),
    ("cofferdam mcp --http", Row::Tested("serves until it is ended", "the_commands_of_the_page_on_mcp_serve")),
    ("cofferdam audit query --server", Row::Tested("needs a server", "the_audit_log_of_a_server_is_searched")),
    (
        "cofferdam audit verify /var/log",
        Row::Tested("names a log and a hash of an example", "runs_are_logged_and_the_log_is_verified"),
    ),
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

/// Returns the names and texts of all pages.
fn texts() -> Vec<(String, String)> {
    let mut files: Vec<_> = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| repository().join(name)).into();
    let mut docs: Vec<PathBuf> = std::fs::read_dir(repository().join("docs"))
        .expect("docs")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    docs.sort();
    files.extend(docs.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    let read = |file: PathBuf| {
        let page = file.file_name().expect("a name").to_string_lossy().into_owned();
        (page, std::fs::read_to_string(&file).expect("a page"))
    };
    files.into_iter().map(read).collect()
}

/// Returns the commands of all pages.
fn pages() -> Vec<Block> {
    let mut blocks = Vec::new();
    for (page, text) in texts() {
        for commands in text.split("\n```").filter_map(commands_of) {
            blocks.push(Block { page: page.clone(), commands });
        }
    }
    blocks
}

/// Returns the examples in the help of all commands.
fn helps() -> Vec<Block> {
    let mut blocks = Vec::new();
    for (words, help) in super::help::helps() {
        let Some((_, examples)) = help.split_once("Examples:\n") else { continue };
        let lines = examples.lines().take_while(|line| line.starts_with("  "));
        let commands = lines.filter_map(|line| {
            // A description follows two spaces. A line that does not start with a command continues the previous one.
            let command = line.trim().split("  ").next()?.to_owned();
            ["cofferdam ", "printf ", "echo "].iter().any(|start| command.starts_with(start)).then_some(command)
        });
        blocks.push(Block { page: format!("cofferdam {} --help", words.join(" ")), commands: commands.collect() });
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
    write("greet.py", b"print(\"Helo, Ada\")\n");
    for name in ["script.py", "x.py"] {
        write(name, b"import sys\nprint('ran', sys.argv[1:])\n");
    }
    write("project/script.js", b"console.log('ran')\n");
    write("plugin.toml", include_bytes!("../../../../cofferdam-plugin/tests/full.toml"));
    write("Makefile", b"all:\n\techo made\ntest:\n\techo tested\n");
    write("report.py", b"import os\nos.mkdir('out')\nopen('out/plot.png', 'w').close()\n");
    write("data/a.csv", b"1\n");
    write("data.csv", b"1\n");
    write("rootfs/etc/os-release", b"NAME=Example\n");
    // A module whose _start returns immediately.
    write(
        "prog.wasm",
        b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x03\x02\x01\0\x05\x03\x01\0\x01\x07\x13\x02\x06memory\x02\0\x06_start\0\0\
          \x0a\x04\x01\x02\0\x0b",
    );
    home
}

/// Runs a command. Returns `None` if this host lacks its requirements.
///
/// `state` is outside of the home, because a directory that contains it is never mounted writable.
fn run_shown(command: &str, how: Row, home: &Path, state: &Path) -> Option<(i32, String, String)> {
    let mut shell = shell(command, home);
    shell.env("XDG_RUNTIME_DIR", home).env("XDG_STATE_HOME", state);
    match how {
        Row::Tested(..) | Row::Untested(_) => return None,
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
        Row::WithInterpreter => {
            let interpreters = std::env::var_os("COFFERDAM_TEST_WASM_CACHE").map(PathBuf::from);
            if let Some(cache) = interpreters.as_deref().and_then(Path::parent).and_then(Path::parent) {
                shell.env("XDG_CACHE_HOME", cache);
            }
        }
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
        let (home, state) = (home(), tempfile::tempdir().expect("a directory"));
        let server = commands.iter().any(|command| command.starts_with("cofferdam serve --detach"));
        if commands.iter().any(|command| command.starts_with("cofferdam audit")) {
            // The log exists after the first run.
            configure(home.path(), &format!("[audit]\ndirectory = {:?}\n", home.path().join("audit")));
            let (status, _, stderr) = outcome(&mut shell("cofferdam run -- true", home.path()));
            assert_eq!(status, 0, "{stderr}");
        }
        for command in commands {
            // Runs of a server differ from runs of the command itself, and later commands of a block need a new plugin.
            let is_needed = server || command.starts_with("cofferdam plugins new ");
            if !done.insert(command.clone()) && !is_needed {
                continue;
            }
            let row = row(&command);
            let Some((status, stdout, stderr)) = run_shown(&command, row, home.path(), state.path()) else { continue };
            let is_shown = match row {
                Row::Fails(statuses) => statuses.contains(&status),
                _ => status == 0,
            };
            let answers = !command.contains("print(6 * 7)") || stdout.trim_end().ends_with("42");
            if !is_shown || !answers {
                failed.push(format!("{page}: {command}\n  status {status}\n  {stdout}\n  {stderr}"));
            }
        }
        if server {
            outcome(shell("cofferdam serve stop", home.path()).env("XDG_RUNTIME_DIR", home.path()));
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

/// Returns the text of all Rust files below a directory.
fn sources(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a directory of the repository");
    entries
        .flat_map(|entry| {
            let path = entry.expect("an entry").path();
            if path.is_dir() && path.file_name().is_none_or(|name| name != "target") {
                sources(&path)
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                vec![std::fs::read_to_string(path).expect("a source file")]
            } else {
                Vec::new()
            }
        })
        .collect()
}

#[test]
fn every_test_that_stands_for_a_documented_command_exists() {
    let sources: Vec<_> = ["crates", "xtask/src"].iter().flat_map(|name| sources(&repository().join(name))).collect();
    for (start, row) in ROWS {
        let Row::Tested(_, test) = row else { continue };
        // Tests of packages are functions of xtask, in a list with their names.
        let forms = [format!("fn {test}("), format!("(\"{test}\", ")];
        let is_there = sources.iter().any(|text| forms.iter().any(|form| text.contains(form)));
        assert!(is_there, "no function is called {test}, which stands for '{start}'");
    }
}

/// Configurations on pages: page, language, first words, file, and a command that accepts the file.
const CONFIGURATIONS: &[(&str, &str, &str, &str, &str)] = &[
    (
        "network.md",
        "toml",
        "[[allow]]",
        "policy.toml",
        "cofferdam net explain --net-policy policy.toml https://api.example.com/v1/x",
    ),
    ("plugins.md", "toml", "manifest = 1", "plugin.toml", "cofferdam plugins validate plugin.toml"),
    (
        "server-operations.md",
        "json",
        "{\"sandboxes\": 20",
        "quota.json",
        "cofferdam serve --check --listen 127.0.0.1:0 --quota quota.json",
    ),
    (
        "server-access.md",
        "json",
        "{\"rules\"",
        "rules.json",
        "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -addext subjectAltName=DNS:localhost \
         -keyout key.pem -out cert.pem && cofferdam serve --check --listen 127.0.0.1:0 --tls-cert cert.pem --tls-key \
         key.pem --tls-client-ca cert.pem --client-rules rules.json",
    ),
];

#[test]
fn every_configuration_of_the_pages_is_accepted() {
    let texts = texts();
    for (page, language, start, file, command) in CONFIGURATIONS {
        let (home, state) = (home(), tempfile::tempdir().expect("a directory"));
        let (_, text) = texts.iter().find(|(name, _)| name == page).expect(page);
        let start = format!("{language}\n{start}");
        let block = text.split("\n```").find(|block| block.starts_with(&start)).expect(&start);
        std::fs::write(home.path().join(file), &block[language.len()..]).expect("written");
        let (status, _, stderr) = run_shown(command, Row::Here, home.path(), state.path()).expect("it runs here");
        assert_eq!(status, 0, "{page}: {command}: {stderr}");
    }
}

/// Runs the programs of docs/reference.md.
async fn shown_on_the_page_of_reference() -> cofferdam::Result<()> {
    let request = ExecRequest::argv(["echo", "hello"]).build()?;
    let (completed, posture) = cofferdam::run(Spec::default(), request).await?;
    assert_eq!(completed.stdout, "hello\n");
    assert!(!posture.items().is_empty());

    let (spec, request) = (Spec::default(), ExecRequest::argv(["true"]).build()?);
    let pooled = cofferdam::registry::pooled("process", Spec::default(), PoolConfig::default())?;
    let (completed, posture) = pooled.pool().run(spec, request).await?;
    assert!(completed.exit.success() && !posture.items().is_empty());
    pooled.pool().shutdown(Duration::from_secs(10)).await
}

#[tokio::test]
async fn the_programs_of_the_page_of_reference_run() {
    match shown_on_the_page_of_reference().await {
        Err(error) if error.kind() == cofferdam::ErrorKind::Unsupported => {
            println!("SKIP on a host that cannot enforce all default protections: {error}");
        }
        ended => ended.expect("they run"),
    }
}

/// Returns code without comments and white space.
fn bare(code: &str) -> String {
    let lines = code.lines().filter_map(|line| line.split("// ").next());
    lines.flat_map(str::split_whitespace).collect()
}

#[test]
fn every_program_in_rust_of_the_pages_is_in_a_test() {
    let sources: Vec<_> = sources(&repository().join("crates")).iter().map(|text| bare(text)).collect();
    let mut count = 0;
    for (page, text) in texts() {
        for program in text.split("\n```").filter_map(|block| block.strip_prefix("rust\n")) {
            let body = match program.split_once("\n\n") {
                Some((imports, body)) if imports.starts_with("use ") => bare(body),
                _ => bare(program),
            };
            let is_there = sources.iter().any(|source| source.contains(&body));
            assert!(is_there, "{page}: no test has this program:\n{program}");
            count += 1;
        }
    }
    assert!(count >= 8, "{count} programs were found");
}
