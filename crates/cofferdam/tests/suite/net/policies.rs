//! Detailed rules, learned policies, the log of connections and the explanation of policies.

use std::process::Command;

use serde_json::Value;

use super::{Fixture, USERS, outcome};

/// Promise (Network): Requests are allowed by method and path, without TLS and over TLS that is intercepted. Others get
/// status 403, never reach the server, and are reported.
#[test]
fn requests_are_allowed_by_method_and_path() {
    let Some(fixture) = Fixture::new("requests_are_allowed_by_method_and_path") else { return };
    let policy = fixture.policy(
        r#"
        [[allow]]
        host = "api.example:80"
        methods = ["GET", "POST"]
        paths = ["/v1", "/public/"]
        [[allow]]
        host = "api.example:443"
        methods = ["GET"]
        paths = ["/v1"]
        [[allow]]
        host = "wrong.example:443"
        protocol = "https"
        "#,
    );
    let code = r"
for url, method in (
    ('http://api.example/v1', 'GET'), ('http://api.example/v1/x?y=/../z', 'POST'),
    ('http://api.example/public/x', 'GET'), ('http://api.example/v1', 'DELETE'), ('http://api.example/v10', 'GET'),
    ('http://api.example/public', 'GET'),
    ('https://api.example/v1/x', 'GET'), ('https://api.example/v1', 'PUT'), ('https://api.example/refused', 'GET')):
    code, text = fetch(url, method)
    print(code, text.splitlines()[0])
# The server has no certificate for this name.
print(*fetch('https://wrong.example/'))";
    let expected = "\
        200 GET /v1 HTTP/1.1\n\
        200 POST /v1/x?y=/../z HTTP/1.1\n\
        200 GET /public/x HTTP/1.1\n\
        403 refused by the sandbox's network policy: the policy does not allow this method; a rule with methods = \
        [\"DELETE\"] would allow it\n\
        403 refused by the sandbox's network policy: the policy does not allow this path; a rule with paths = \
        [\"/v10\"] would allow it\n\
        403 refused by the sandbox's network policy: the policy does not allow this path; a rule with paths = \
        [\"/public\"] would allow it\n\
        200 GET /v1/x HTTP/1.1\n\
        403 refused by the sandbox's network policy: the policy does not allow this method; a rule with methods = \
        [\"PUT\"] would allow it\n\
        403 refused by the sandbox's network policy: the policy does not allow this path; a rule with paths = \
        [\"/refused\"] would allow it\n\
        502 no TLS connection to wrong.example:443: invalid peer certificate: ";
    for user in USERS {
        let (status, stdout, stderr) = fixture.run(user, &["--net-policy", &policy], code);
        assert_eq!(status, 0, "{stderr}");
        assert!(stdout.starts_with(expected), "{stdout}");
        for denied in ["[\\\"DELETE\\\"]", "[\\\"/v10\\\"]", "[\\\"/public\\\"]", "[\\\"PUT\\\"]", "[\\\"/refused\\\"]"]
        {
            assert!(stderr.contains(denied), "{denied} {stderr}");
        }
    }
    let requests = fixture.log("requests");
    assert!(requests.contains("GET /v1/x HTTP/1.1") && !requests.contains("refused"), "{requests}");
}

/// Promise (Network): A redirect is a new request, which needs a rule that allows it.
#[test]
fn redirects_are_new_requests() {
    let Some(fixture) = Fixture::new("redirects_are_new_requests") else { return };
    let policy = fixture.policy(
        r#"
        [[allow]]
        host = "api.example:443"
        paths = ["/redirect", "/open"]
        [[allow]]
        host = "web.example:80"
        paths = ["/open"]
        "#,
    );
    let code = r"
import urllib.error, urllib.request
def follow(url):
    try:
        with urllib.request.urlopen('https://api.example/redirect?' + url, timeout=15) as answer: return answer.status
    except urllib.error.HTTPError as error: return error.code, error.geturl()
    except OSError as error: return type(getattr(error, 'reason', error)).__name__
for url in ('/open', 'http://web.example/open', 'https://api.example/redirect?http://web.example/open', '/closed',
            'http://web.example/closed', 'https://elsewhere.example/closed', 'http://web.example:8080/closed'):
    print(follow(url))";
    let expected = "200\n200\n200\n(403, 'https://api.example/closed')\n(403, 'http://web.example/closed')\n\
                    gaierror\nConnectionRefusedError\n";
    for user in USERS {
        let (status, stdout, stderr) = fixture.run(user, &["--net-policy", &policy], code);
        assert_eq!((status, stdout.as_str()), (0, expected), "{stderr}");
        for denied in [
            "an HTTP request to api.example:443: the policy does not allow this path",
            "an HTTP request to web.example:80: the policy does not allow this path",
            "the look-up of elsewhere.example: the policy does not list it",
            "the connection to web.example:8080: the policy does not allow this port",
        ] {
            assert!(stderr.contains(denied), "{denied}: {stderr}");
        }
    }
    let requests = fixture.log("requests");
    assert!(requests.contains("GET /open ") && !requests.contains("GET /closed"), "{requests}");
}

/// Promise (Network): TLS passes untouched unless a rule of its host needs the requests.
#[test]
fn only_tls_of_hosts_with_rules_for_requests_is_intercepted() {
    let Some(fixture) = Fixture::new("only_tls_of_hosts_with_rules_for_requests_is_intercepted") else { return };
    let code = r"
import os
def issuer(name):
    context = ssl.create_default_context()
    with socket.create_connection((name, 443), 15) as plain, context.wrap_socket(plain, server_hostname=name) as secure:
        return dict(pair[0] for pair in secure.getpeercert()['issuer'])['commonName'][:17]
print(os.environ.get('SSL_CERT_FILE'))
os.environ.setdefault('SSL_CERT_FILE', '/workspace/certificate.pem')
attempt(issuer, 'api.example')
attempt(issuer, 'elsewhere.example')
print(status('http://api.example/', cafile=None))";
    let rule = |host: &str, protocol: &str| format!("[[allow]]\nhost = \"{host}\"\nprotocol = \"{protocol}\"\n");
    for (api, printed, denied) in [
        ("https", "/code/ca-certificates.crt\nCofferdam sandbox\nPlace authority\n403\n", "this protocol"),
        ("tls", "None\nPlace authority\nPlace authority\n403\n", "this protocol"),
        ("http", "None\nfailed: SSLEOFError\nPlace authority\n403\n", "a rule with protocol = \"tls\" would allow it"),
    ] {
        let port_80 = rule("api.example:80", if api == "http" { "tls" } else { api });
        let policy =
            fixture.policy(&[rule("api.example:443", api), rule("elsewhere.example:443", "tls"), port_80].concat());
        let (status, stdout, stderr) = fixture.run("0", &["--net-policy", &policy], code);
        let issuers = stdout.replace("failed: ConnectionResetError", "failed: SSLEOFError");
        assert_eq!((status, issuers.as_str()), (0, printed), "{api}: {stderr}");
        assert!(stderr.replace('\\', "").contains(denied), "{api}: {stderr}");
    }
}

/// Promise (Network): Where TLS is intercepted, the certificates of the system have the authority of the gateway, and are
/// the system's own elsewhere. No program can change them.
#[test]
fn the_certificates_of_the_system_have_the_authority() {
    let test = "the_certificates_of_the_system_have_the_authority";
    let Some(fixture) = Fixture::new(test) else { return };
    let bundle = "/etc/ssl/certs/ca-certificates.crt";
    if !std::path::Path::new(bundle).is_file() {
        return println!("SKIP {test}: this host has no {bundle}");
    }
    let code = format!(
        r"
import os, pathlib, shutil, subprocess
bundle = pathlib.Path('{bundle}')
print(status('https://api.example/', cafile=str(bundle)))
own = pathlib.Path('/code/ca-certificates.crt')
print(own.exists() and own.read_bytes() == bundle.read_bytes())
for path in (bundle, own):
    try: path.write_bytes(b''); print('written')
    except OSError: pass
# A client without variables, which reads the certificates of the system.
curl = [shutil.which('curl'), '-sS', '-o', '/dev/null', '-w', '%{{http_code}}', 'https://api.example/']
print(subprocess.run(curl, env={{}}, capture_output=True, text=True).stdout if curl[0] else 'no curl')"
    );
    for user in USERS {
        for (protocol, expected) in [("https", "200\nTrue\n200\n"), ("tls", "SSLCertVerificationError\nFalse\n000\n")] {
            let rule = format!("[[allow]]\nhost = \"api.example:443\"\nprotocol = \"{protocol}\"\n");
            let (status, stdout, stderr) = fixture.run(user, &["--net-policy", &fixture.policy(&rule)], &code);
            let expected = match stdout.ends_with("no curl\n") {
                true => expected.replace("\n200\n", "\nno curl\n").replace("000\n", "no curl\n"),
                false => expected.to_owned(),
            };
            assert_eq!((status, stdout), (0, expected), "{user} {protocol}: {stderr}");
        }
    }
}

/// Promise (Network): A rule's budget of requests and bytes, and its rate, hold for the whole sandbox.
#[test]
fn budgets_of_rules_hold() {
    let Some(fixture) = Fixture::new("budgets_of_rules_hold") else { return };
    let policy = fixture.policy(
        r#"
        [[allow]]
        host = "api.example:80"
        max_requests = 2
        [[allow]]
        host = "elsewhere.example:80"
        max_bytes = "100k"
        [[allow]]
        host = "web.example:80"
        requests_per_minute = 3
        [[allow]]
        host = "web.example:7"
        max_requests = 1
        [[allow]]
        host = "api.example:443"
        protocol = "https"
        max_requests = 1
        [[allow]]
        host = "elsewhere.example:443"
        bytes_per_second = "100k"
        "#,
    );
    let code = r"
print([status('http://api.example/') for _ in range(4)])
print([status('https://api.example/') for _ in range(2)])
print([status('http://web.example/') for _ in range(5)])
print([status('http://elsewhere.example/size/1000'), status('http://elsewhere.example/size/200000'),
       status('http://elsewhere.example/size/1000')])
print(talk('web.example', 7, b'abc'))
attempt(talk, 'web.example', 7, b'abc')
import time
begun = time.monotonic()
answer = fetch('https://elsewhere.example/size/150000', cafile='/workspace/certificate.pem')
print(len(answer[1]), time.monotonic() - begun > 0.5)";
    let (status, stdout, stderr) = fixture.run("0", &["--net-policy", &policy], code);
    let expected = "[200, 200, 403, 403]\n[200, 403]\n[200, 200, 200, 403, 403]\n[200, 'IncompleteRead', 403]\n\
                    b'3 bytes'\nb''\n150000 True\n";
    assert_eq!((status, stdout.as_str()), (0, expected), "{stderr}");
    for denied in [
        "api.example:80: the budget of its rule is used up: api.example:80",
        "its rule allows fewer requests a minute: web.example:80",
        "the connection to elsewhere.example:80: the budget of its rule is used up: elsewhere.example:80",
    ] {
        assert!(stderr.contains(denied), "{stderr}");
    }
}

/// Promise (Network): A policy reaches ranges of addresses and private addresses by naming them, and no others.
#[test]
fn ranges_and_named_private_addresses_are_reached() {
    let Some(fixture) = Fixture::new("ranges_and_named_private_addresses_are_reached") else { return };
    for user in USERS {
        for (policy, code, printed, denied) in [
            ("11.22.33.0/24:7", "attempt(talk, '11.22.33.44', 7, b'abc')", "b'3 bytes'\n", ""),
            (
                "11.22.33.0/24:7",
                "attempt(talk, '11.22.34.44', 7)",
                "b''\n",
                "the connection to 11.22.34.44:7: no name in the policy resolved to it",
            ),
            (
                "11.22.33.0/24:7",
                "attempt(talk, '11.22.33.44', 80, b'abc')",
                "failed: ConnectionRefusedError\n",
                "the connection to 11.22.33.44:80: the policy does not allow this port",
            ),
            ("private.example:7,10.1.2.3:7", "attempt(talk, 'private.example', 7, b'abc')", "b'3 bytes'\n", ""),
            (
                "private.example:7,private.example:80,10.1.2.3:7",
                "attempt(talk, 'private.example', 80)",
                "b''\n",
                "the address is not public",
            ),
            ("private.example:7,10.1.2.0/30:7", "attempt(talk, 'private.example', 7, b'abc')", "b'3 bytes'\n", ""),
            (
                "private.example:7,10.1.2.4:7",
                "attempt(talk, 'private.example', 7)",
                "b''\n",
                "the address is not public",
            ),
        ] {
            fixture.check((user, policy), code, printed, denied);
        }
    }
}

/// Promise (Network): A policy is learned without any connection, or with all of them, and allows what the run did.
#[test]
fn learned_policy_allows_the_runs_connections() {
    let Some(fixture) = Fixture::new("learned_policy_allows_the_runs_connections") else { return };
    // The last two are on a port that no sandbox serves while a policy is learned.
    let code = "print(status('https://api.example/', cafile='/workspace/certificate.pem'), status('http://web.example/'))\n\
                attempt(talk, 'web.example', 7, b'abc')\nattempt(talk, '11.22.33.44', 7, b'abc')";
    let refused = "failed: ConnectionRefusedError\n";
    for user in USERS {
        let before = fixture.log("connections");
        let (status, stdout, stderr) = fixture.run(user, &["--net-learn"], code);
        assert!(status == 0 && !stdout.contains("200"), "{stdout} {stderr}");
        assert_eq!(fixture.log("connections"), before, "a run that learns connects to nothing");
        let learned = learned(&stderr);
        assert_eq!(learned, "11.22.33.44:7,api.example:443,web.example:7,web.example:80", "{stderr}");
        let (status, stdout, stderr) = fixture.run(user, &["--net", learned], code);
        assert_eq!((status, stdout.as_str()), (0, "200 200\nb'3 bytes'\nb'3 bytes'\n"), "{stderr}");
        let (status, stdout, stderr) = fixture.run(user, &["--net-learn=allow"], code);
        assert_eq!((status, stdout), (0, format!("200 200\n{refused}{refused}")), "{stderr}");
        assert_eq!(self::learned(&stderr), learned);
    }
    // A guest cannot add other hosts or words to the policy.
    let names = r"
for name in (b'x:80,*.evil.test:443,y', b'*.evil.test', b'x; reboot', b'\x1b[31mred', b'fine.example'):
    with socket.create_connection(('198.18.0.1', 3128), 15) as c:
        c.sendall(b'\x05\x01\0\x05\x01\0\x03%c%s\0\x50' % (len(name), name)); c.shutdown(socket.SHUT_WR)
        while c.recv(64): pass
for address in ('198.18.0.1', '198.18.7.7', '127.0.0.1'): attempt(talk, address, 80)";
    let (_, _, stderr) = fixture.run("0", &["--net-learn"], names);
    assert_eq!(self::learned(&stderr), "fine.example:80", "{stderr}");
    // Everything is allowed, but no private address.
    let (_, stdout, stderr) = fixture.run("0", &["--net-learn=allow"], "attempt(talk, 'private.example', 80)");
    assert_eq!(stdout, "b''\n", "{stderr}");
}

fn learned(stderr: &str) -> &str {
    let line = stderr.lines().find_map(|line| line.split_once("the smallest policy that allows this: --net "));
    line.unwrap_or_else(|| panic!("no policy: {stderr}")).1
}

/// Promise (Network): The log has each connection and request, with sandbox, tenant, rule, bytes and reason.
#[test]
fn the_log_has_each_connection_and_request() {
    use std::os::unix::fs::PermissionsExt;
    let Some(fixture) = Fixture::new("the_log_has_each_connection_and_request") else { return };
    let log = fixture.directory.path().join("log");
    std::fs::write(&log, "{\"earlier\": true}\n").expect("a log");
    std::fs::set_permissions(&log, std::fs::Permissions::from_mode(0o666)).expect("the mode is set");
    let policy = fixture
        .policy("[[allow]]\nhost = \"api.example:443\"\nmethods = [\"GET\"]\n[[allow]]\nhost = \"web.example:7\"\n");
    let code = "import time\nfetch('https://api.example/x?token=hidden'); fetch('https://api.example/y', 'POST')\n\
                talk('web.example', 7, b'abc')\n\
                with socket.create_connection(('web.example', 7), 15) as connection:\n    \
                connection.sendall(b'abcd'); time.sleep(0.3)";
    for user in USERS {
        let options = ["--net-policy", &policy, "--tenant", "acme", "--net-log", log.to_str().expect("a path")];
        let (status, _, stderr) = fixture.run(user, &options, code);
        assert_eq!(status, 0, "{stderr}");
        let text = std::fs::read_to_string(&log).expect("the log");
        assert!(!text.contains("hidden"), "a query can have secrets: {text}");
        let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines.remove(0)["earlier"], true, "the log is appended to");
        let lines = &lines[lines.len() - 6..];
        for line in lines {
            assert_eq!(line["tenant"], "acme", "{line}");
            assert!(line["sandbox"].as_str().is_some_and(|id| !id.is_empty()), "{line}");
        }
        let find =
            |what: &dyn Fn(&Value) -> bool| lines.iter().find(|line| what(line)).unwrap_or_else(|| panic!("{text}"));
        let x = find(&|line| line["path"] == "/x");
        assert_eq!(
            (&x["method"], &x["rule"], &x["protocol"]),
            (&"GET".into(), &"api.example:443 GET".into(), &"https".into())
        );
        let y = find(&|line| line["path"] == "/y");
        assert!(y["rule"].is_null() && y["reason"].as_str().is_some_and(|why| why.contains("method")), "{y}");
        let held = find(&|line| line["sent"] == 4);
        let time = held["duration_ms"].as_u64().expect("a number");
        assert!((250..30_000).contains(&time), "{held}");
        let echo = find(&|line| line["port"] == 7 && line["sent"] != 4);
        assert_eq!((&echo["rule"], &echo["address"]), (&"web.example:7".into(), &"11.22.33.44".into()), "{echo}");
        assert_eq!((&echo["sent"], &echo["received"]), (&3.into(), &7.into()), "{echo}");
    }
}

/// Promise (Network): `net explain` names the deciding rule, and its exit status is 1 if the policy allows nothing.
#[test]
fn net_explain_names_the_deciding_rule() {
    let directory = tempfile::tempdir().expect("a directory");
    let policy = directory.path().join("policy.toml");
    let rules = "[[allow]]\nhost = \"*.example:443\"\nmethods = [\"GET\"]\npaths = [\"/v1\"]\n[[allow]]\nhost = \
                 \"10.0.0.0/8:5432\"\n";
    std::fs::write(&policy, rules).expect("a policy");
    let explain = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
        outcome(command.args(["net", "explain", "--net-policy"]).arg(&policy).args(words))
    };
    for (words, expected, text) in [
        (
            &["https://a.example/v1/x"][..],
            0,
            "GET https://a.example:443/v1/x: allowed by the rule *.example:443 GET /v1\n",
        ),
        (&["https://a.example/v1", "--method", "PUT"], 1, "refused: the policy does not allow this method\n"),
        (&["https://a.example/v1/%2e%2e/x"], 1, "refused: servers may read this path as another one\n"),
        (
            &["a.example:443"],
            1,
            "a.example:443, TLS that passes through: refused: the policy does not allow this protocol\n",
        ),
        (&["http://a.example:443/v1"], 1, "refused: nothing but TLS is spoken on port 443\n"),
        (&["a.example:22"], 1, "refused: the policy does not allow this port\n"),
        (&["10.1.2.3:5432"], 0, "10.1.2.3:5432, other protocols: allowed by the rule 10.0.0.0/8:5432\n"),
        (&["example"], 1, "the look-up of example: refused: the policy does not list it\n"),
        (&["a.example", "--net", "none"], 125, ""),
    ] {
        let (status, stdout, stderr) = explain(words);
        assert!(status == expected && stdout.contains(text), "{words:?}: {status} {stdout} {stderr}");
    }
    let (status, stdout, _) = explain(&["--json", "https://a.example/v1"]);
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(
        (status, &document["allowed"], &document["verdicts"][0]["rule"]),
        (0, &true.into(), &"*.example:443 GET /v1".into())
    );
}

/// `net explain` has the policy of the configuration file as `run` does, and refuses what the gateway refuses.
#[test]
fn net_explain_agrees_with_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("config.toml");
    let rules = "[[network.allow]]\nhost = \"a.example:443\"\nmethods = [\"GET\"]\npaths = [\"/simple/\"]\n\
                 [[network.allow]]\nhost = \"a.example:443\"\nmethods = [\"POST\"]\n";
    std::fs::write(&config, rules).expect("a configuration");
    let url = "https://a.example/simple/x";
    for (words, expected, text) in [
        (&[url][..], 0, "allowed by the rule a.example:443 GET /simple/\n"),
        (&[url, "--method", "POST"], 0, "allowed by the rule a.example:443 POST\n"),
        (&[url, "--net", "b.example:443"], 1, "the look-up of a.example: refused: the policy does not list it\n"),
        (&[url, "--net", "none"], 1, "the look-up of a.example: refused: the policy does not list it\n"),
        // Services of clouds, the sandbox itself, and addresses that it does not have.
        (&["169.254.169.254:80", "--net", "169.254.0.0/16:80"], 1, "refused: the address is not public"),
        (&["169.254.169.254:80", "--net", "169.254.169.254:80"], 0, "allowed by the rule 169.254.169.254:80\n"),
        (&["169.254.7.7:80", "--net", "169.254.0.0/16:80"], 0, "allowed by the rule 169.254.0.0/16:80\n"),
        (&["localhost:80", "--net", "localhost:80"], 1, "refused: localhost is the sandbox itself"),
        (&["127.0.0.1:80", "--net", "127.0.0.0/8:80"], 1, "refused: loopback addresses are the sandbox itself"),
        (&["[fd00::1]:80", "--net", "[fd00::1]:80"], 1, "reaches no IPv6 addresses"),
        (&["[64:ff9b::1]:80", "--net", "[64:ff9b::/96]:80"], 1, "refused: no name in the policy resolved to it\n"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
        let command = command.args(["net", "explain", "--config"]).arg(&config).args(words);
        let (status, stdout, stderr) = outcome(command.env_remove("SANDBOX_TYPE"));
        assert!(status == expected && stdout.contains(text), "{words:?}: {status} {stdout} {stderr}");
    }
    let missing = directory.path().join("missing.toml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    let (status, stdout, _) = outcome(command.arg("--config").arg(missing).args(["net", "explain", url]));
    assert_eq!((status, stdout.as_str()), (125, ""), "a file that is named must exist");
}

/// Promise (Network): A program of Java trusts the gateway where it intercepts TLS.
#[test]
fn java_trusts_the_authority_of_the_gateway() {
    let test = "java_trusts_the_authority_of_the_gateway";
    let Some(fixture) = Fixture::new(test) else { return };
    let policy = fixture.policy("[[allow]]\nhost = \"api.example:443\"\npaths = [\"/v1/\"]\n");
    let source = "import java.net.*;\npublic class Fetch {\n  public static void main(String[] urls) throws Exception {\n    \
                  for (String url : urls) {\n      \
                  System.out.println(((HttpURLConnection) new URL(url).openConnection()).getResponseCode());\n    \
                  }\n  }\n}\n";
    std::fs::write(fixture.files().join("Fetch.java"), source).expect("written");
    let run = |words: &[&str]| {
        let options = ["--net-policy", &policy, "--memory", "1G"];
        outcome(fixture.command("0", &options).arg("--").args(words))
    };
    let (status, _, stderr) = run(&["java", "-version"]);
    if status != 0 {
        return println!("SKIP {test}: the sandbox has no Java: {stderr}");
    }
    let words = ["java", "/workspace/Fetch.java", "https://api.example/v1/x", "https://api.example/v2/x"];
    let (status, stdout, stderr) = run(&words);
    assert_eq!((status, stdout.as_str()), (0, "200\n403\n"), "{stderr}");
}
