//! The output forms `--json` and `--events`.

use super::{json, outcome, run};

/// Promise (Command line): `--json` prints one document with the complete outcome.
#[test]
fn json_document_has_the_complete_outcome() {
    let words = ["--json", "--tenant", "acme", "--", "sh", "-c", "printf 'a\\303\\251'; printf '\\377' >&2; exit 3"];
    let (code, stdout, stderr) = outcome(&mut run(words));
    assert_eq!((code, stderr.as_str()), (3, ""));
    let document = json(&stdout);
    assert_eq!(document["exit"]["code"], 3);
    assert_eq!(document["status"], 3);
    assert_eq!(document["stdout"], json(r#"{"text":"aé"}"#));
    assert_eq!(document["stderr"], json(r#"{"base64":"/w=="}"#));
    assert_eq!(document["backend"], "process");
    assert_eq!(document["level"], "process");
    assert_eq!(document["tenant"], "acme");
    assert_eq!(document["limits"]["memory"], 512 << 20);
    assert_eq!(document["usage"]["output_bytes"], 4);
    assert!(document["sandbox"].is_string());
    let posture = document["posture"].as_array().unwrap();
    let row = |name: &str| posture.iter().find(|row| row["protection"] == name);
    for name in ["pid-namespace", "root-filesystem", "seccomp", "memory", "network"] {
        assert!(row(name).is_some_and(|row| row["state"].is_string() && row["mechanism"].is_string()), "{name}");
    }
}

#[test]
fn json_document_includes_the_messages() {
    let (code, stdout, stderr) = outcome(&mut run(["--json", "--timeout", "200ms", "--", "sleep", "60"]));
    assert_eq!((code, stderr.as_str()), (124, ""));
    let document = json(&stdout);
    assert_eq!((&document["exit"]["timed_out"], &document["exit"]["code"]), (&json("true"), &json("-1")));
}

/// Promise (Command line): `--events` prints events as lines in order.
#[test]
fn events_come_as_lines_in_order() {
    let script = "echo one; echo two >&2; printf '\\342\\202'; sleep 0.2; printf '\\254\\n'; printf '\\377'; exit 4";
    let (code, stdout, stderr) = outcome(&mut run(["--events", "--", "sh", "-c", script]));
    assert_eq!((code, stderr.as_str()), (4, ""));
    let lines: Vec<_> = stdout.lines().map(json).collect();
    assert_eq!(lines[0]["type"], "started");
    assert!(lines[0]["sandbox"].is_string());
    let end = lines.last().unwrap();
    assert_eq!((end["type"].as_str(), end["status"].as_u64()), (Some("exit"), Some(4)));
    assert!(end["posture"].is_array() && end["exit"]["duration"].is_number());
    let text = |stream: &str| -> String {
        let of = lines.iter().filter(|line| line["type"] == "output" && line["stream"] == stream);
        of.filter_map(|line| line["text"].as_str().map(str::to_owned)).collect()
    };
    // The last bytes may arrive with the previous line, which is then not valid text.
    assert!(text("stdout").starts_with("one\n"), "{stdout}");
    assert!(!text("stdout").contains('\u{fffd}'), "{stdout}");
    assert_eq!(text("stderr"), "two\n");
    assert!(lines.iter().any(|line| line["stream"] == "stdout" && line["base64"].is_string()), "{stdout}");
}

#[test]
fn a_program_that_is_not_there_is_one_error_line() {
    let (code, stdout, _) = outcome(&mut run(["--events", "--", "no-such-program"]));
    assert_eq!(code, 127);
    let line = json(stdout.lines().last().unwrap());
    assert_eq!((line["type"].as_str(), line["error"]["kind"].as_str()), (Some("error"), Some("not-found")));
}
