use super::*;

const FULL: &str = include_str!("../tests/full.toml");

fn problems(text: &str) -> Vec<String> {
    match check(text, Format::Toml) {
        Ok((_, warnings)) => warnings.iter().map(ToString::to_string).collect(),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

/// Returns the rules that are broken after `from` is replaced by `to` in the full manifest.
fn broken(from: &str, to: &str) -> Vec<&'static str> {
    assert!(FULL.contains(from), "{from}");
    let text = FULL.replacen(from, to, 1);
    check(&text, Format::Toml).err().unwrap_or_default().iter().map(|problem| problem.rule).collect()
}

/// Promise (Plugins): A manifest in TOML and the same in JSON are equal.
#[test]
fn both_formats_give_the_same_manifest() {
    let (manifest, warnings) = check(FULL, Format::Toml).unwrap();
    assert!(warnings.is_empty());
    assert_eq!(manifest.sandbox.limits.cpu_time.unwrap().as_secs(), 10);
    assert_eq!(manifest.methods["forecast"].timeout.unwrap().as_secs(), 5);
    assert!(manifest.methods["forecast"].idempotent);
    let value: toml::Table = FULL.parse().unwrap();
    let json = serde_json::to_string_pretty(&value).unwrap();
    assert_eq!(check(&json, Format::Json).unwrap().0, manifest);
}

/// Promise (Plugins): Every problem of a manifest is reported at once, with line, column, rule and remedy.
#[test]
fn all_problems_are_reported_at_once() {
    let text = r#"manifest = 1
name = "Weather"
verson = "1.2.0"
runtime = "pyton"
entry = "weather.main"
permissions = ["net", "fs.raed", "net"]

[sandbox]
stategy = "vm"
fsAccess = { write = ["../x"] }
limits = { memory = "lots", pids = "many" }
"#;
    let found = problems(text);
    let expected = [
        "1:1: error[missing-key]: the key 'version' is missing\n  try: add a version, such as version = \"0.1.0\"",
        "2:8: error[invalid-value]: the value \"Weather\" is invalid\n  try: use small letters, digits, and '.', '_' or '-' between them",
        "3:1: error[unknown-key]: the key 'verson' is unknown\n  try: write 'version', or remove the key",
        "4:11: error[unknown-value]: the value \"pyton\" is unknown\n  try: write \"python\"",
        "6:15: error[duplicate-item]: an item is there twice\n  try: remove one of both",
        "6:16: error[empty-allowlist]: the permission net grants nothing without sandbox.net\n  try: add sandbox.net = [\"api.example.com:443\"], or remove the permission",
        "6:23: error[unknown-value]: the value \"fs.raed\" is unknown\n  try: write \"fs.read\"",
        "9:1: error[unknown-key]: the key 'stategy' is unknown\n  try: write 'strategy', or remove the key",
        "10:14: error[missing-permission]: sandbox.fsAccess.write has no effect without the permission fs.write\n  try: add \"fs.write\" to permissions, or remove the list",
        "10:23: error[path]: the path ../x has '..', a backslash or a zero byte\n  try: write a path below the plugin's data directory, or an absolute one",
        "11:21: error[invalid-value]: the value \"lots\" is invalid\n  try: write a size, such as \"256M\"",
    ];
    for line in expected {
        assert!(found.iter().any(|problem| problem == line), "{line}\n--\n{}", found.join("\n"));
    }
    assert_eq!(found.len(), expected.len() + 1, "{}", found.join("\n"));
    assert!(found.last().is_some_and(|last| last.starts_with("11:36: error[")), "{}", found.join("\n"));
}

#[test]
fn each_rule_holds() {
    for (from, to, rule) in [
        ("manifest = 1", "manifest = 2", "invalid-value"),
        ("\"1.2.0\"", "\"1.2\"", "invalid-value"),
        ("weather.main:activate", "weather.main", "entry"),
        ("runtime = \"python\"", "runtime = \"node\"", "entry"),
        ("runtime = \"python\"", "runtime = \"command\"", "entry"),
        ("weather.main:activate", "weather.main:a$b", "entry"),
        ("strategy = \"subprocess\"", "strategy = \"wasm\"", "strategy"),
        ("level = \"process\"", "level = \"vm\"", "level"),
        ("\"net\", ", "", "missing-permission"),
        ("secrets = [\"API_TOKEN\"]", "", "empty-allowlist"),
        ("secrets = [\"API_TOKEN\"]", "secrets = [\"A B\"]", "invalid-value"),
        ("/usr/share/zoneinfo", "/", "path"),
        ("api.example.com:443", "localhost:80", "host"),
        ("api.example.com:443", "api.example.com:0", "host"),
        ("type = \"object\"\nproperties", "type = \"objekt\"\nproperties", "schema"),
        ("#/$defs/city", "#/$defs/town", "schema"),
        ("#/$defs/city", "https://example.com/schema.json", "schema"),
        ("weather.*.alert", "weather..alert", "event-pattern"),
        ("weather.*.alert", "weather.**.alert", "event-pattern"),
        ("maxBackoff = \"30s\"", "maxBackoff = \"100ms\"", "backoff"),
        ("timeout = \"5s\"", "timeout = \"0s\"", "zero-time"),
        ("timeout = \"5s\"", "timeout = 5", "wrong-type"),
        ("call = \"30s\"", "call = \"soon\"", "invalid-value"),
        ("[methods.forecast]", "[methods.Forecast]", "invalid-name"),
        ("pids = 32", "pids = 0", "invalid-value"),
    ] {
        assert_eq!(broken(from, to), [rule], "{from} -> {to}");
    }
    assert_eq!(broken("strategy = \"subprocess\"\nlevel = \"process\"", "strategy = \"inline\""), [""; 0]);
    let text = FULL.replace("strategy = \"subprocess\"\nlevel = \"process\"", "strategy = \"inline\"");
    let (_, warnings) = check(&text, Format::Toml).unwrap();
    assert_eq!(warnings.iter().map(|warning| warning.rule).collect::<Vec<_>>(), ["development-only"]);
}

#[test]
fn syntax_problems_have_a_position() {
    let found = problems("name = \"a\"\nversion = \nruntime = [\n");
    assert!(found[0].starts_with("2:"), "{found:?}");
    let found = check("{\n  \"name\": \"a\",\n  \"name\": \"b\"\n}", Format::Json).unwrap_err();
    assert_eq!((found[0].rule, found[0].line, found[0].column), ("duplicate-key", 3, 3));
    for text in ["", "{", "[1,]", "{\"a\": 1} x", "// a\n{}", &"[".repeat(100_000)] {
        assert!(check(text, Format::Json).is_err(), "{text:.20}");
    }
    let deep = format!("a = {}", "[".repeat(100_000));
    assert!(check(&deep, Format::Toml).is_err());
    assert_eq!(check(&"#".repeat(MAX_MANIFEST + 1), Format::Toml).unwrap_err()[0].rule, "too-large");
}

/// Promise (Plugins): A manifest with very many problems is checked in bounded time.
#[test]
fn very_many_problems_are_bounded() {
    use std::fmt::Write;
    let (mut keys, mut hosts, mut twice, mut broken) = (String::new(), String::new(), String::new(), String::new());
    for number in 0..40_000 {
        writeln!(keys, "k{number} = 1").unwrap();
        write!(hosts, "\"a b\", ").unwrap();
        write!(twice, "\"a\": 1, ").unwrap();
        writeln!(broken, "= {number}").unwrap();
    }
    let hosts = format!("sandbox.net = [{hosts}]");
    let twice = format!("{{{twice}\"b\": 2}}");
    let begun = std::time::Instant::now();
    for (text, format) in
        [(&keys, Format::Toml), (&hosts, Format::Toml), (&twice, Format::Json), (&broken, Format::Toml)]
    {
        let problems = check(text, format).unwrap_err();
        assert!((1..=MAX_PROBLEMS).contains(&problems.len()), "{}", problems.len());
    }
    // Without a bound it takes hours.
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
}

#[test]
fn every_key_of_the_full_manifest_is_in_the_schema() {
    assert!(known_keys("").contains(&"configSchema".to_owned()));
    assert!(known_keys("/sandbox/fsAccess").contains(&"write".to_owned()));
    assert!(known_keys("/methods/forecast").contains(&"idempotent".to_owned()));
    assert!(options_at("/permissions/0").contains(&"sandbox.execute".to_owned()));
    assert!(options_at("/sandbox/strategy").contains(&"inline".to_owned()));
}

proptest::proptest! {
    /// Promise (Plugins): No text makes the check of a manifest fail other than by problems with a place.
    #[test]
    fn problems_of_any_text_have_a_position(text in "[ -~\n\t\u{e9}]{0,200}", json in proptest::bool::ANY) {
        let format = if json { Format::Json } else { Format::Toml };
        for problem in check(&text, format).unwrap_err() {
            proptest::prop_assert!(problem.line >= 1 && problem.column >= 1);
            proptest::prop_assert!(!problem.message.chars().any(char::is_control));
        }
    }
}
