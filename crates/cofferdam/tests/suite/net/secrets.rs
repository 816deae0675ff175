//! Secrets at the edge: programs have placeholders, and the gateway puts values into requests to the named hosts only.

use std::process::Command;

use super::{Place, USERS, outcome};

/// The values, of the sources environment, file and command. No two have a common part.
const TOKEN: &str = "token-4d1f9a7c35";
const KEY: &str = "key/+&=8b2e60d1f7";
const PASSWORD: &str = "password-c07e51ab";

/// Writes the values of two secrets to files, and the policy with all three.
fn policy(place: &Place) -> String {
    for (name, value) in [("key", KEY), ("password", PASSWORD)] {
        std::fs::write(place.directory.path().join(name), format!("{value}\n")).expect("a secret");
    }
    let directory = place.directory.path().display();
    place.policy(&format!(
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
fn run(place: &Place, user: &str, options: &[&str], code: &str) -> Command {
    let mut run = place.command(user, &[&["--net-policy", &policy(place)], options].concat());
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
    let Some(place) = Place::new("secrets_reach_their_hosts_only") else { return };
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
        let (status, stdout, stderr) = outcome(&mut run(&place, user, &[], code));
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
    let Some(place) = Place::new("values_of_secrets_are_nowhere_in_a_sandbox") else { return };
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
        let log = place.directory.path().join(format!("log-{user}"));
        std::fs::write(&log, "").expect("a log");
        std::os::unix::fs::chown(&log, Some(user.parse().expect("a number")), None).expect("an owner");
        let options = [options, &["--net-log", log.to_str().expect("a path")]].concat();
        let (status, stdout, stderr) = outcome(run(&place, user, &options, code).args(&values));
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

/// Promise (Network): A secret that cannot be used is an error that names the secret and has no value.
#[test]
fn errors_about_secrets_have_no_value() {
    let Some(place) = Place::new("errors_about_secrets_have_no_value") else { return };
    for (policy, environment, expected) in [
        (policy(&place), "", "the environment variable of a secret is not set"),
        (policy(&place), "short", "too short"),
        (policy(&place), "token-4d1f9a7c35\nsecond line", "control characters"),
        (policy(&place).replace("policy", "missing"), TOKEN, "cannot read the policy"),
    ] {
        let mut run = place.command("0", &["--net-policy", &policy, "--", "true"]);
        if !environment.is_empty() {
            run.env("SOURCE", environment);
        }
        let (status, stdout, stderr) = outcome(&mut run);
        assert!(status == 125 && stdout.is_empty(), "{status} {stdout} {stderr}");
        assert!(stderr.contains(expected), "{stderr}");
        check_absent(&stderr);
    }
    let unlisted = place.policy(&format!(
        "[[allow]]\nhost = \"api.example:443\"\n[[secret]]\nname = \"T\"\nfrom = \"command:echo {TOKEN}\"\nhosts = \
         [\"other.example:443\"]\n"
    ));
    let (status, _, stderr) = outcome(&mut place.command("0", &["--net-policy", &unlisted, "--", "true"]));
    assert!(status == 125 && stderr.contains("no rule of the network policy allows requests"), "{stderr}");
    check_absent(&stderr);
}
