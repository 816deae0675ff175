//! Plugins that a server hosts.

use rustix::process::{Signal, kill_process};
use serde_json::json as value;

use super::{Server, json, outcome, program};

/// Creates the plugin `hello` in a new home.
fn plugin() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let (code, _, stderr) = outcome(program(home.path()).args(["plugins", "new", "hello", "--runtime", "python"]));
    assert_eq!(code, 0, "{stderr}");
    home
}

fn serve(home: tempfile::TempDir) -> Server {
    Server::start_in(home, &["--listen", "127.0.0.1:0", "--plugin", "./hello", "--plugin-state", "plugin-state"])
}

/// Promise (Server): `serve --plugin` lets tenants list a plugin and call its methods in its sandbox, over HTTP and with
/// `cofferdam plugins --server`.
#[test]
fn tenants_call_the_plugins_of_a_server() {
    let server = serve(plugin());
    let created = outcome(&mut server.client(&["keys", "create", "--tenant", "acme", "--scope", "plugins"]));
    let key = created.1.trim().to_owned();
    let ask = |words: &[&str]| {
        let words = [&["plugins"], words, &["--server", &server.url]].concat();
        outcome(server.client(&words).env("COFFERDAM_KEY", &key))
    };
    let (code, stdout, stderr) = ask(&["list"]);
    assert!(code == 0 && stdout.starts_with("hello ") && stdout.ends_with(" hello\n"), "{stdout}{stderr}");
    let listed = json(&ask(&["list", "--json"]).1);
    assert_eq!(listed["plugins"][0]["methods"][0]["name"], "hello");

    let (code, stdout, stderr) = ask(&["call", "hello", "hello", r#"{"name": "Ada"}"#]);
    assert_eq!((code, json(&stdout)), (0, value!({ "greeting": "Hello, Ada!" })), "{stderr}");
    let (code, stdout, _) = ask(&["call", "hello", "hello", r#"{"name": "Ada"}"#, "--json"]);
    assert_eq!((code, &json(&stdout)["result"]["greeting"]), (0, &value!("Hello, Ada!")));

    for (words, expected) in [
        (&["call", "hello", "hello", r#"{"name": 7}"#][..], "the input"),
        (&["call", "hello", "other"], "no such method"),
        (&["call", "other", "hello"], "no such plugin"),
        (&["call", "hello", "hello", "no json"], "not JSON"),
        (&["call", "hello", "hello", "--with", "x"], "excludes the options of a host"),
    ] {
        let (code, _, stderr) = ask(words);
        assert!(code != 0 && stderr.contains(expected), "{words:?}: {code} {stderr}");
    }
    let (_, _, refused) = outcome(&mut server.client(&["plugins", "list", "--server", &server.url]));
    assert!(refused.contains("key"), "{refused}");

    kill_process(server.pid(), Signal::USR2).unwrap();
    let reason = server.lines.recv_timeout(std::time::Duration::from_secs(30)).unwrap();
    assert!(reason.contains("a server with --plugin is not upgraded"), "{reason}");
    assert_eq!(ask(&["list"]).0, 0);
    assert_eq!(server.stop(), Some(0));
}

/// Promise (Server): A server whose plugin cannot be loaded does not start, and says why.
#[test]
fn a_plugin_that_cannot_be_loaded_stops_the_start() {
    let home = plugin();
    let serve = |words: &[&str]| {
        let mut command = program(home.path());
        outcome(command.args(["serve", "--listen", "127.0.0.1:0", "--plugin-state", "plugin-state"]).args(words))
    };
    for (words, expected) in [
        (&["--plugin", "absent"][..], "absent"),
        (&["--plugin", "./absent"], "absent"),
        (&["--plugin", "./hello", "--plugin", "./hello"], "is loaded"),
        (&["--plugin", "./hello", "--plugin-config", "x"], "PLUGIN=FILE"),
        (&["--plugin", "./hello", "--plugin-config", "other=file"], "which is not served"),
        (&["--plugin", "./hello", "--plugin-config", "./hello=absent"], "configuration"),
    ] {
        let (code, _, stderr) = serve(words);
        assert!([125, 127].contains(&code) && stderr.contains(expected), "{words:?}: {code} {stderr}");
        let (code, _, stderr) = serve(&[words, &["--check"]].concat());
        assert!(code == 1 && stderr.contains(expected), "{words:?}: {code} {stderr}");
    }
    let (_, _, stderr) = serve(&["--plugin", "./hello", "--check"]);
    assert!(stderr.contains("the plugins start: hello"), "{stderr}");
}
