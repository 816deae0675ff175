//! Secrets at the edge: programs have placeholders, and the gateway puts values into requests to the named hosts only.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{Fixture, USERS, outcome};

/// The values, of the sources environment, file and command. No two have a common part.
const TOKEN: &str = "token-4d1f9a7c35";
const KEY: &str = "key/+&=8b2e60d1f7";
const PASSWORD: &str = "password-c07e51ab";

/// Writes the values of two secrets to files, and the policy with all three.
fn policy(fixture: &Fixture) -> String {
    for (name, value) in [("key", KEY), ("password", PASSWORD)] {
        std::fs::write(fixture.directory.path().join(name), format!("{value}\n")).expect("a secret");
    }
    let directory = fixture.directory.path().display();
    fixture.policy(&format!(
        r#"
        [[allow]]
        host = "api.example:443"
        [[allow]]
        host = "elsewhere.example:443"
        protocol = "https"
        [[allow]]
        host = "api.example:80"
        [[secret]]
        name = "API_TOKEN"
        from = "env:SOURCE"
        hosts = ["api.example:443"]
        [[secret]]
        name = "API_KEY"
        from = "file:{directory}/key"
        hosts = ["api.example:443"]
        place = {{ query = "key" }}
        [[secret]]
        name = "API_PASSWORD"
        from = "command:cat {directory}/password"
        hosts = ["api.example:443"]
        place = "basic"
        max_uses = 2
        "#
    ))
}

/// Returns a run with the policy, whose own environment has the value of the first secret.
fn run(fixture: &Fixture, user: &str, options: &[&str], code: &str) -> Command {
    let mut run = fixture.command(user, &[&["--net-policy", &policy(fixture)], options].concat());
    run.env("SOURCE", TOKEN).args(["--", "python3", "-c", &format!("{}\n{code}", super::PRELUDE)]);
    run
}

/// Checks that a text has no value of a secret, in any usual form.
fn check_absent(text: &str) {
    use std::fmt::Write;
    for value in [TOKEN, KEY, PASSWORD] {
        let hex = value.bytes().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("a string");
            hex
        });
        for form in [value.to_owned(), hex, value.replace('&', "%26").replace('=', "%3D").replace('+', "%2B")] {
            assert!(!text.contains(&form), "{form} is in: {text}");
        }
    }
}

fn backwards(text: &str) -> String {
    text.chars().rev().collect()
}

/// Promise (Network): A secret reaches the hosts that it names, in the place that it names, and is masked in answers.
#[test]
fn secrets_reach_their_hosts_only() {
    let Some(fixture) = Fixture::new("secrets_reach_their_hosts_only") else { return };
    let code = r"
import base64, os
token, key, password = (os.environ['API_' + name] for name in ('TOKEN', 'KEY', 'PASSWORD'))
basic = {'Authorization': 'Basic ' + base64.b64encode(f'me:{password}'.encode()).decode()}
bearer = {'Authorization': 'Bearer ' + token}
print('# header', *fetch('https://api.example/', headers=bearer))
print('# query', *fetch(f'https://api.example/?a=1&key={key}'))
print('# basic', *fetch('https://api.example/', headers=basic))
print('# elsewhere', *fetch(f'https://elsewhere.example/?key={key}', headers=bearer))
print('# without TLS', *fetch(f'http://api.example/?key={key}', headers=bearer))
print('# other places', *fetch(f'https://api.example/{token}?other={key}', 'POST', {'X-Other': token}, body=password))
print('# twice', *fetch('https://api.example/', headers={'Authorization': f'{token} {token}'}))
print('# used up', status('https://api.example/', headers=basic), *fetch('https://api.example/', headers=basic))
print('# end', token, key, password)";
    for user in USERS {
        let (status, stdout, stderr) = outcome(&mut run(&fixture, user, &[], code));
        assert_eq!(status, 0, "{stdout} {stderr}");
        check_absent(&stdout);
        check_absent(&stderr);
        let placeholders = stdout.rsplit_once("# end ").expect("an end").1.split_whitespace().collect::<Vec<_>>();
        let [token, key, password] = placeholders[..] else { panic!("{stdout}") };
        let part = |name: &str| {
            let from = stdout.split_once(&format!("# {name}")).unwrap_or_else(|| panic!("no {name}: {stdout}")).1;
            from.split("\n# ").next().expect("a part")
        };
        // The server has the value, and its answer has stars of the same length.
        let header = part("header");
        assert!(header.contains(&format!("Bearer {}\n", "*".repeat(TOKEN.len()))), "{header}");
        assert!(header.contains(&backwards(TOKEN)), "{header}");
        let query = part("query");
        let encoded = KEY.replace('/', "%2F").replace('+', "%2B").replace('&', "%26").replace('=', "%3D");
        assert!(query.contains("200 GET /?a=1&key=***") && query.contains(&backwards(&encoded)), "{query}");
        let basic = part("basic");
        // `me:` and the value, in base64.
        assert!(
            basic.contains("Basic bWU6*****") && basic.contains(&backwards("bWU6cGFzc3dvcmQtYzA3ZTUxYWI=")),
            "{basic}"
        );
        // Other hosts and places have the placeholder.
        for name in ["elsewhere", "without TLS"] {
            let part = part(name);
            assert!(part.contains(&format!("Bearer {token}\n")) && part.contains(&format!("key={key} ")), "{part}");
        }
        let other = part("other places");
        for text in [format!("/{token}?other={key}"), format!("x-other: {token}\n"), format!("\n{password}\n")] {
            assert!(other.contains(&text), "{text}: {other}");
        }
        assert!(part("twice").starts_with(" 403 "), "{stdout}");
        assert!(part("used up").starts_with(" 200 403 "), "{stdout}");
        assert!(stderr.contains("the secret API_PASSWORD: it was used 2 times"), "{stderr}");
    }
}

/// Promise (Network): No file, process or variable of a sandbox has the value of a secret, nor has any output or log.
#[test]
fn values_of_secrets_are_nowhere_in_a_sandbox() {
    let Some(fixture) = Fixture::new("values_of_secrets_are_nowhere_in_a_sandbox") else { return };
    let code = r"
import os, pathlib
fetch('https://api.example/?key=' + os.environ['API_KEY'], headers={'Authorization': os.environ['API_TOKEN']})
print(dict(os.environ))
files = [path for top in ('/code', '/tmp', '/run', '/workspace', '/dev/shm') for path in pathlib.Path(top).rglob('*')]
files += pathlib.Path('/proc').glob('*/environ')
files += pathlib.Path('/proc').glob('*/cmdline')
for path in files:
    try: print(path, path.read_bytes().decode(errors='replace') if path.is_file() else '')
    except OSError as error: print(path, error)
sys.stdout.flush()
# The memory of all processes that it may read, with the values built so that this text does not have them.
values = [backwards[::-1].encode() for backwards in sys.argv[1:]]
found = 0
for process in pathlib.Path('/proc').glob('[0-9]*'):
    try: maps, memory = (process / 'maps').read_text(), open(process / 'mem', 'rb', 0)
    except OSError: continue
    own = int(process.name) == os.getpid()
    for line in maps.splitlines() if not own else []:
        start, end = (int(part, 16) for part in line.split()[0].split('-'))
        try: memory.seek(start); found += any(value in memory.read(min(end - start, 1 << 26)) for value in values)
        except (OSError, ValueError): pass
print('found in memory:', found)";
    let values = [TOKEN, KEY, PASSWORD].map(backwards);
    for (user, options) in [("0", &[][..]), (super::ORDINARY, &[]), ("0", &["--json"]), ("0", &["--events"])] {
        let log = fixture.directory.path().join(format!("log-{user}"));
        std::fs::write(&log, "").expect("a log");
        std::os::unix::fs::chown(&log, Some(user.parse().expect("a number")), None).expect("an owner");
        let options = [options, &["--net-log", log.to_str().expect("a path")]].concat();
        let (status, stdout, stderr) = outcome(run(&fixture, user, &options, code).args(&values));
        assert_eq!(status, 0, "{stdout} {stderr}");
        assert!(stdout.contains("API_TOKEN") && stdout.contains("ca-certificates.crt"), "{stdout}");
        assert!(stdout.contains("found in memory: 0"), "{stdout}");
        check_absent(&stdout);
        check_absent(&stderr);
        let log = std::fs::read_to_string(log).expect("the log");
        assert!(log.contains("api.example"), "{log}");
        check_absent(&log);
    }
}

/// Returns the children of a process, and theirs.
fn descendants(process: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let children = tasks.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let text = children.collect::<Vec<_>>().join(" ");
    let children = text.split_whitespace().filter_map(|child| child.parse().ok());
    children.flat_map(|child| [vec![child], descendants(child)].concat()).collect()
}

/// Returns the limit of core files of a process.
fn core_limit(process: u32) -> String {
    let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).expect("it lives");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max core file size"));
    line.and_then(|line| line.split_whitespace().next()).expect("a limit").to_owned()
}

/// Returns true if a text is in the writable memory of a process.
fn holds(process: u32, text: &str) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).expect("it lives");
    let memory = File::open(format!("/proc/{process}/mem")).expect("it lives");
    let ranges = maps.lines().filter(|line| line.contains(" rw")).filter_map(|line| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    });
    ranges.into_iter().any(|(start, end)| {
        let mut bytes = vec![0; usize::try_from(end - start).expect("it fits")];
        let read = memory.read_at(&mut bytes, start).unwrap_or_default();
        bytes[..read].windows(text.len()).any(|part| part == text.as_bytes())
    })
}

/// Promise (Network): The process that holds secrets writes no core dump, whatever limit it was started with.
#[test]
fn the_process_that_holds_secrets_dumps_no_core() {
    let Some(fixture) = Fixture::new("the_process_that_holds_secrets_dumps_no_core") else { return };
    for user in USERS {
        let run = run(&fixture, user, &[], "import time\nprint('ready', flush=True); time.sleep(50)");
        let mut unlimited = Command::new("prlimit");
        unlimited.arg("--core=unlimited:unlimited").arg(run.get_program()).args(run.get_args()).env_clear();
        unlimited.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
        let mut child = unlimited.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let first = BufReader::new(child.stdout.take().expect("piped")).lines().next();
        let processes = descendants(child.id());
        let (control, supervisor) = (core_limit(child.id()), processes.first().copied().expect("a process"));
        let holders: Vec<u32> = processes.iter().copied().filter(|process| holds(*process, KEY)).collect();
        let limit = core_limit(supervisor);
        let stopped = Pid::from_raw(supervisor.try_into().expect("a number")).expect("a process");
        kill_process(stopped, Signal::TERM).expect("it lives");
        child.wait().expect("it ends");
        assert_eq!(first.and_then(Result::ok).as_deref(), Some("ready"));
        assert!(processes.len() > 2, "the launcher and the sandbox are seen: {processes:?}");
        assert_eq!(holders, [supervisor], "no other process holds a secret");
        // With a limit of 1 byte, the kernel neither writes a file nor starts a handler.
        assert_eq!((control.as_str(), limit.as_str()), ("unlimited", "1"), "{user}");
    }
}

/// Promise (Network): A secret that cannot be used is an error that names the secret and has no value.
#[test]
fn errors_about_secrets_have_no_value() {
    let Some(fixture) = Fixture::new("errors_about_secrets_have_no_value") else { return };
    for (policy, environment, expected) in [
        (policy(&fixture), "", "the environment variable of a secret is not set"),
        (policy(&fixture), "short", "too short"),
        (policy(&fixture), "token-4d1f9a7c35\nsecond line", "control characters"),
        (policy(&fixture).replace("policy", "missing"), TOKEN, "cannot read the policy"),
    ] {
        let mut run = fixture.command("0", &["--net-policy", &policy, "--", "true"]);
        if !environment.is_empty() {
            run.env("SOURCE", environment);
        }
        let (status, stdout, stderr) = outcome(&mut run);
        assert!(status == 125 && stdout.is_empty(), "{status} {stdout} {stderr}");
        assert!(stderr.contains(expected), "{stderr}");
        check_absent(&stderr);
    }
    let unlisted = fixture.policy(&format!(
        "[[allow]]\nhost = \"api.example:443\"\n[[secret]]\nname = \"T\"\nfrom = \"command:echo {TOKEN}\"\nhosts = \
         [\"other.example:443\"]\n"
    ));
    let (status, _, stderr) = outcome(&mut fixture.command("0", &["--net-policy", &unlisted, "--", "true"]));
    assert!(status == 125 && stderr.contains("no rule of the network policy allows requests"), "{stderr}");
    check_absent(&stderr);
}
