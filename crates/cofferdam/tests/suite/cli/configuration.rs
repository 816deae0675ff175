//! Sources of settings, which untrusted files and users cannot influence.

use std::path::Path;

use super::{cofferdam, json, outcome, run};

fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_bad_file_is_named_with_line_and_key() {
    let directory = tempfile::tempdir().unwrap();
    let path = write(directory.path(), "c.toml", "[limits]\nmemory = \"lots\"\n");
    for command in [&mut run(["--config", &path, "--", "true"]), run(["--", "true"]).env("COFFERDAM_CONFIG", &path)] {
        let (code, _, stderr) = outcome(command);
        assert_eq!(code, 125);
        let expected = format!("cofferdam: read configuration failed: {path}:2: memory: 'lots' is not a size");
        assert!(stderr.starts_with(&expected), "{stderr}");
    }
    let (code, _, stderr) = outcome(&mut run(["--config", "/no/such.toml", "--", "true"]));
    assert_eq!(code, 125);
    assert!(stderr.starts_with("cofferdam: read configuration failed: cannot read '/no/such.toml'"), "{stderr}");
}

#[test]
fn bad_variables_are_named() {
    let (code, _, stderr) = outcome(run(["--", "true"]).env("SANDBOX_TIMEOUT_SEC", "soon"));
    assert_eq!(code, 125);
    assert!(stderr.contains("SANDBOX_TIMEOUT_SEC is 'soon', which is not a number of seconds"), "{stderr}");
    for name in ["apple-vz", "nonsense"] {
        let (code, _, stderr) = outcome(run(["--", "true"]).env("SANDBOX_TYPE", name));
        assert_eq!(code, 125);
        assert!(
            stderr.contains(name) && stderr.contains("SANDBOX_TYPE") && stderr.contains("try: use one of"),
            "{stderr}"
        );
    }
}

#[test]
fn help_reads_no_configuration() {
    let (code, _, stderr) = outcome(cofferdam().args(["run", "--help"]).env("COFFERDAM_CONFIG", "/no/such.toml"));
    assert_eq!((code, stderr.as_str()), (0, ""));
}

#[test]
fn languages_can_be_restricted_and_added() {
    let directory = tempfile::tempdir().unwrap();
    let restricted = write(directory.path(), "c.toml", "languages_allowed = [\"sh\"]\n");
    let (code, _, stderr) = outcome(&mut run(["--config", &restricted, "examples/primes.py"]));
    assert_eq!(code, 125);
    assert!(stderr.contains("no language runs files that end in '.py'"), "{stderr}");
    let added = write(
        directory.path(),
        "d.toml",
        "[languages.shout]\nextensions = [\"shout\"]\ninterpreter = [\"sh\", \"-e\"]\n",
    );
    let file = write(directory.path(), "a.shout", "echo SHOUT; false; echo no");
    assert_eq!(outcome(&mut run(["--config", &added, &file])), (1, "SHOUT\n".to_owned(), String::new()));
}

/// Promise (Command line): The command line applies the precedence of options, environment and configuration file.
#[test]
fn options_beat_environment_beats_file() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "cofferdam/config.toml", "tenant = \"acme\"\n[limits]\nwall_time = 50\npids = 9\n");
    let limits = |words: &[&str], variable: Option<&str>| {
        let mut command = run(["--json"]);
        command.args(words).args(["--", "true"]).env("XDG_CONFIG_HOME", directory.path());
        if let Some(value) = variable {
            command.env("SANDBOX_TIMEOUT_SEC", value);
        }
        let (code, stdout, stderr) = outcome(&mut command);
        assert_eq!(code, 0, "{stderr}");
        let document = json(&stdout);
        assert_eq!((&document["tenant"], &document["limits"]["pids"]), (&json("\"acme\""), &json("9")));
        document["limits"]["wall_time"].as_f64()
    };
    assert_eq!(limits(&[], None), Some(50.0));
    assert_eq!(limits(&[], Some("40")), Some(40.0));
    assert_eq!(limits(&["--timeout", "30s"], Some("40")), Some(30.0));
}

/// Promise (Command line): A configuration file in the current directory is not read.
#[test]
fn a_file_in_the_current_directory_is_not_read() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["cofferdam.toml", "config.toml", ".config/cofferdam/config.toml", "cofferdam/config.toml"] {
        write(directory.path(), name, "tenant = \"evil\"\n");
    }
    let mut command = run(["--json", "--", "true"]);
    let (code, stdout, stderr) =
        outcome(command.current_dir(directory.path()).env("HOME", "").env("XDG_CONFIG_HOME", "."));
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(json(&stdout)["tenant"], "default");
}

#[test]
fn files_that_others_can_change_are_not_trusted() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let set = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let config = write(directory.path(), "cofferdam/config.toml", "tenant = \"evil\"\n");
    let token = write(directory.path(), "cofferdam/token", "a-token-that-is-long-enough-to-be-one\n");
    let (below, config_path) = (directory.path().join("cofferdam"), Path::new(&config).to_owned());
    let found = |remedy: &str| {
        let mut usual = run(["--", "true"]);
        usual.env("XDG_CONFIG_HOME", directory.path());
        for command in [&mut run(["--config", &config, "--", "true"]), &mut usual] {
            let (code, _, stderr) = outcome(command);
            assert!(
                code == 125 && stderr.contains("not trusted") && stderr.contains(remedy),
                "{remedy}: {code} {stderr}"
            );
        }
    };
    set(&config_path, 0o664);
    found("chmod go-w");
    set(&config_path, 0o644);
    set(&below, 0o777);
    found("chmod go-w");
    set(&below, 0o755);
    assert_eq!(outcome(&mut run(["--config", &config, "--", "true"])).0, 0);
    // A token file that other users can read is not secret.
    set(Path::new(&token), 0o644);
    let mut server = cofferdam();
    let (code, _, stderr) = outcome(server.args(["mcp", "--http", "127.0.0.1:0", "--token-file", &token]));
    assert!(code == 125 && stderr.contains("not trusted") && stderr.contains("chmod go-rwx"), "{code} {stderr}");
    if rustix::process::geteuid().is_root() {
        // As under sudo: root's HOME belongs to another user.
        chown(&config_path, Some(65533), Some(65533)).unwrap();
        found("belongs to user 65533");
        chown(&config_path, Some(0), Some(0)).unwrap();
        chown(&below, Some(65533), Some(65533)).unwrap();
        found("belongs to user 65533");
        // A missing file is not required.
        std::fs::remove_file(&config_path).unwrap();
        let (code, _, stderr) = outcome(run(["--", "true"]).env("XDG_CONFIG_HOME", directory.path()));
        assert_eq!(code, 0, "{stderr}");
        let qemu = write(&below, "qemu", "#!/bin/sh\nexit 1\n");
        set(Path::new(&qemu), 0o755);
        let mut doctor = cofferdam();
        doctor.args(["doctor", "--backend", "vm"]).env("COFFERDAM_VM_QEMU", &qemu).env("HOME", directory.path());
        let (_, stdout, _) = outcome(&mut doctor);
        assert!(stdout.contains("not trusted"), "{stdout}");
    }
}
