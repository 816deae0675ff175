//! Containers from the command line: checks without an engine, and checks with the tests' engine.

use std::process::Command;

use super::code::typed;
use super::{WEAKER, cofferdam, has_weaker_containers, json, outcome, run};

/// Returns the command with the tests' engine, or prints why there is none.
pub fn with_engine(mut command: Command) -> Option<Command> {
    let Ok(socket) = std::env::var("COFFERDAM_TEST_DOCKER") else {
        println!("SKIP containers: COFFERDAM_TEST_DOCKER names no engine");
        return None;
    };
    command.env("DOCKER_HOST", format!("unix://{socket}"));
    Some(command)
}

/// Promise (Containers): The command line explains a missing engine.
#[test]
fn a_missing_engine_is_explained() {
    let (code, _, stderr) =
        outcome(run(["--backend", "docker", "--", "true"]).env("DOCKER_HOST", "unix:///nowhere/docker.sock"));
    assert_eq!(code, 125);
    assert!(stderr.contains("/nowhere/docker.sock") && stderr.contains("  try: "), "{stderr}");
    let (code, _, stderr) =
        outcome(run(["--backend", "docker", "--", "true"]).env("DOCKER_HOST", "ssh://host").env_remove("HOME"));
    assert_eq!(code, 125);
    assert!(stderr.contains("use unix:// or tcp://"), "{stderr}");
}

#[test]
fn a_missing_engine_is_blamed_on_the_image_store_only_if_that_lacks_the_image() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::create_dir_all(directory.path().join("root/own")).expect("a directory inside");
    let state = directory.path().join("state");
    let mut import = cofferdam();
    import.args(["image", "import"]).arg(directory.path().join("root")).arg("stored:1").env("XDG_STATE_HOME", &state);
    let (code, _, stderr) = outcome(&mut import);
    assert_eq!(code, 0, "{stderr}");
    for (words, backend, is_hinted) in [
        (&["--image", "other:1"][..], "", true),
        (&["--image", "other:1"], "docker", false),
        (&["--level", "container", "--image", "other:1"], "", false),
        (&["--level", "container", "--image", "stored:1"], "", false),
        (&["--backend", "docker", "--image", "stored:1"], "", false),
    ] {
        let mut command = run(words);
        command.args(["--", "true"]).env("XDG_STATE_HOME", &state).env("SANDBOX_TYPE", backend);
        let (code, _, stderr) = outcome(command.env("DOCKER_HOST", "unix:///nowhere/docker.sock"));
        assert!(code == 125 && stderr.contains("/nowhere/docker.sock"), "{words:?}: {code} {stderr}");
        assert_eq!(stderr.contains("image store: has no such image"), is_hinted, "{words:?} {backend}: {stderr}");
        assert_eq!(stderr.contains("no engine is needed"), is_hinted, "{words:?} {backend}: {stderr}");
    }
}

#[test]
fn no_engine_is_asked_when_another_backend_runs() {
    let (code, stdout, stderr) = outcome(
        run(["--backend", "simulated", "--", "sim", "print", "x"]).env("DOCKER_HOST", "unix:///nowhere/docker.sock"),
    );
    assert!(!stderr.contains("nowhere"), "{code} {stdout} {stderr}");
}

#[test]
fn a_script_runs_in_a_container() {
    let code = "import os, sys; print(6 * 7, os.getuid() != 0, sys.argv[1:])";
    let Some(mut command) = with_engine(run(["--json", "--lang", "python", "--code", code, "a", "b"])) else { return };
    let (status, stdout, stderr) = outcome(command.env("SANDBOX_TYPE", "docker"));
    assert_eq!((status, stderr.as_str()), (0, ""), "{stdout}");
    let answer = json(&stdout);
    assert_eq!((answer["backend"].as_str(), answer["level"].as_str()), (Some("docker"), Some("container")));
    assert_eq!(answer["stdout"]["text"], "42 True ['a', 'b']\n");
    let rows = answer["posture"].as_array().expect("rows");
    let weak: Vec<_> =
        rows.iter().filter(|row| row["remedy"].is_string()).map(|row| row["protection"].as_str()).collect();
    let expected = if has_weaker_containers() { vec![Some("memory")] } else { vec![] };
    assert_eq!(weak, expected, "{}", answer["posture"]);
}

#[test]
fn a_session_in_a_container_keeps_its_variables() {
    let mut repl = cofferdam();
    repl.args(["repl", "--no-history", "--allow-weaker", WEAKER]);
    repl.args(["--backend", "docker", "--lang", "python", "--timeout", "2s"]);
    let Some(mut repl) = with_engine(repl) else { return };
    let (status, stdout, stderr) = typed(&mut repl, "x = 6\nx * 7\nwhile True: pass\n'x' in globals()\n");
    assert_eq!((status, stdout.as_str()), (0, "42\nFalse\n"), "{stderr}");
    assert!(stderr.contains("did not end within 2."), "{stderr}");
}

#[test]
fn exit_statuses_match_other_levels() {
    for (words, status) in [
        (&["--timeout", "1s", "--", "sleep", "100"][..], 124),
        (&["--", "sh", "-c", "exit 7"], 7),
        (&["--", "sh", "-c", "kill -9 $$"], 137),
        (&["--", "no-such-program"], 127),
        (&["--", "/etc/passwd"], 126),
        (&["--memory", "32M", "--", "python3", "-c", "x = b'x' * (256 << 20)"], 137),
        (&["--image", "no/such:image", "--", "true"], 127),
        (&["--net", "example.org", "--", "true"], 125),
    ] {
        let Some(mut command) = with_engine(run(["--backend", "docker"])) else { return };
        let (code, _, stderr) = outcome(command.args(words));
        assert_eq!(code, status, "{words:?}: {stderr}");
    }
}

#[test]
fn images_are_made_from_directories_and_listed() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(directory.path().join("own")).expect("a directory inside");
    let name = format!("cofferdam-test/{}:1", std::process::id());
    let Some(mut import) = with_engine(cofferdam()) else { return };
    import.args(["image", "import", "--engine"]).arg(directory.path()).args([&name, "--json"]);
    let (code, stdout, stderr) = outcome(&mut import);
    assert_eq!(code, 0, "{stderr}");
    let id = json(&stdout)["id"].as_str().expect("an id").to_owned();
    let Some(mut list) = with_engine(cofferdam()) else { return };
    let (_, stdout, _) = outcome(list.args(["image", "list", "--engine", "--json"]));
    let images = json(&stdout)["images"].as_array().expect("a list").clone();
    let found = images.iter().find(|image| image["id"] == *id).expect("the image is listed");
    assert_eq!(found["names"][0], *name);
    assert_eq!(found["imported"], true);
    let Some(mut command) = with_engine(run(["--image", &name, "--", "/no-program"])) else { return };
    let (code, _, stderr) = outcome(&mut command);
    assert_eq!(code, 127, "{stderr}");
    let Some(mut refused) = with_engine(cofferdam()) else { return };
    let (code, _, stderr) = outcome(refused.args(["image", "import", "--engine", "/no/such/directory", &name]));
    assert!(code == 127 && stderr.contains("/no/such/directory"), "{stderr}");
}

/// Promise (Images): A container whose engine lacks an image gets it from the image store, without a registry.
#[test]
fn an_image_of_the_store_is_loaded_into_the_engine() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::create_dir_all(directory.path().join("root/own")).expect("a directory inside");
    let state = directory.path().join("state");
    let name = format!("cofferdam-test/stored-{}:1", std::process::id());
    let Some(mut import) = with_engine(cofferdam()) else { return };
    import.args(["image", "import"]).arg(directory.path().join("root")).arg(&name).env("XDG_STATE_HOME", &state);
    let (code, _, stderr) = outcome(&mut import);
    assert_eq!(code, 0, "{stderr}");
    let words = ["--backend", "docker", "--image", &name, "--", "/no-program"];
    let Some(mut without) = with_engine(run(words)) else { return };
    let (code, _, stderr) = outcome(without.env("XDG_STATE_HOME", directory.path().join("other")));
    assert!(code == 127 && stderr.contains("the container engine has no such image"), "{stderr}");
    let Some(mut command) = with_engine(run(words)) else { return };
    let (code, _, stderr) = outcome(command.env("XDG_STATE_HOME", &state));
    // The program is missing, and the image is not.
    assert!(code == 127 && !stderr.contains("has no such image"), "{stderr}");
    let Some(mut list) = with_engine(cofferdam()) else { return };
    let (_, stdout, _) = outcome(list.args(["image", "ls", "--engine", "--json"]));
    let images = json(&stdout)["images"].as_array().expect("a list").clone();
    assert!(images.iter().any(|image| image["names"].to_string().contains(&name)), "{stdout}");
}

#[test]
fn doctor_reports_engines() {
    let (code, stdout, _) =
        outcome(cofferdam().args(["doctor", "--backend", "docker"]).env("DOCKER_HOST", "unix:///nowhere/docker.sock"));
    assert_eq!(code, 1, "{stdout}");
    assert!(stdout.contains("docker (level container): cannot") || stdout.contains("missing"), "{stdout}");
    let Some(mut doctor) = with_engine(cofferdam()) else { return };
    let (code, stdout, _) = outcome(doctor.args(["doctor", "--backend", "docker"]));
    assert_eq!(code, i32::from(has_weaker_containers()), "{stdout}");
    assert!(stdout.contains("ok       image"), "{stdout}");
}

/// Promise (Server): The snapshot of a container on a server has its files, and survives its sandbox.
#[cfg(feature = "server")]
#[test]
fn container_snapshot_on_a_server_survives_its_sandbox() {
    let Some(mut serve) = with_engine(cofferdam()) else { return };
    serve.args(["serve", "--backend", "docker"]);
    super::vms::check_snapshot_on_a_server(serve);
}
