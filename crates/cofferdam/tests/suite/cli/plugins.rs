//! `cofferdam plugins`.

use super::{cofferdam, json, outcome, repository};

/// Promise (Plugins): `plugins validate` reports all problems of a manifest with their places, and fails for a plugin that
/// cannot be used.
#[test]
fn manifests_are_validated() {
    let home = tempfile::tempdir().expect("a directory");
    let validate = |words: &[&str]| {
        outcome(cofferdam().args(["plugins", "validate"]).args(words).current_dir(home.path()).env("HOME", home.path()))
    };
    let (status, stdout, stderr) = validate(&[]);
    assert_eq!((status, stdout.as_str()), (125, ""));
    assert!(stderr.contains("no plugin.toml and no plugin.json") && stderr.contains("try: "), "{stderr}");

    let full =
        std::fs::read_to_string(repository().join("crates/cofferdam-plugin/tests/full.toml")).expect("an example");
    std::fs::write(home.path().join("plugin.toml"), &full).expect("written");
    assert_eq!(validate(&[]), (0, "./plugin.toml: ok, weather 1.2.0\n".to_owned(), String::new()));

    let wrong = full.replace("version =", "verson =").replace("\"net\", ", "");
    std::fs::write(home.path().join("plugin.toml"), wrong).expect("written");
    std::fs::write(home.path().join("other.json"), "{\"manifest\": 1,\n \"name\": 7}").expect("written");
    let (status, stdout, stderr) = validate(&["plugin.toml", "other.json"]);
    assert_eq!((status, stderr.as_str()), (1, ""));
    for line in [
        "plugin.toml:3:1: error[unknown-key]: the key 'verson' is unknown\n  try: write 'version', or remove the key\n",
        "error[missing-permission]: sandbox.net has no effect without the permission net\n",
        "other.json:2:10: error[wrong-type]: the value must be of type string, and is of type integer\n",
        "plugin.toml: 3 problems\n",
    ] {
        assert!(stdout.contains(line), "{line}{stdout}");
    }
    let (status, stdout, _) = validate(&["--json", "other.json"]);
    let document = json(&stdout);
    assert_eq!((status, &document["valid"]), (1, &serde_json::json!(false)));
    let problem = &document["manifests"][0]["problems"];
    assert!(problem.as_array().is_some_and(|problems| problems.iter().any(|problem| problem["rule"] == "wrong-type")));

    for path in ["missing.toml", "/dev/zero", "/proc/self/mem"] {
        let (status, stdout, stderr) = validate(&[path]);
        assert_eq!((status, stdout.as_str()), (125, ""), "{path}");
        assert!(stderr.contains("cannot read the manifest"), "{path}: {stderr}");
    }
    let (status, stdout, _) = outcome(cofferdam().args(["plugins", "schema"]));
    assert_eq!((status, &json(&stdout)["properties"]["name"]["type"]), (0, &serde_json::json!("string")));
}
