//! Tests of rules from a configuration file, and of the names of modes.

use cofferdam_screen::{Analyzer, Language, Mode, Rule, Rules};

#[test]
fn a_file_replaces_the_lists_that_it_names() {
    let text = r#"
        max_bytes = 1000

        [python]
        imports = ["requests"]
        calls = ["open", "pickle.loads"]
        version = "3.11"

        [javascript]
        imports = []
    "#;
    let rules: Rules = toml::from_str(text).unwrap();
    let screen = Analyzer::new(rules.clone());
    let found = |language, code| crate::found(&screen, language, code);
    assert_eq!(found(Language::Python, "import os, requests"), "1:12 import:requests");
    assert_eq!(found(Language::Python, "open('x'); eval('1')"), "1:1 call:open");
    assert_eq!(
        found(Language::Python, "from pickle import loads as l\nl(x)"),
        "1:20 call:pickle.loads, 2:1 call:pickle.loads"
    );
    assert_eq!(found(Language::Python, "x.__globals__"), "1:3 attribute:__globals__");
    assert_eq!(found(Language::JavaScript, "require('fs'); eval(x)"), "1:16 call:eval");
    let again: Rules = serde_json::from_str(&serde_json::to_string(&rules).unwrap()).unwrap();
    assert_eq!(again, rules);
}

#[test]
fn errors_of_a_configuration_file_are_reported() {
    for (text, expected) in [
        ("[python]\nimport = []", "unknown field `import`"),
        ("[python]\nversion = \"3.99\"", "there is no version of Python '3.99'; known: 3.7 to 3.15"),
        ("[java]\n", "unknown field `java`"),
    ] {
        let error = toml::from_str::<Rules>(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn words_are_read_and_shown() {
    for mode in [Mode::Off, Mode::Warn, Mode::Block] {
        assert_eq!(mode.to_string().parse(), Ok(mode));
        assert_eq!(serde_json::to_string(&mode).unwrap(), format!("\"{mode}\""));
    }
    for language in [Language::Python, Language::JavaScript, Language::TypeScript] {
        assert_eq!(language.to_string().parse(), Ok(language));
        assert_eq!(serde_json::to_string(&language).unwrap(), format!("\"{language}\""));
    }
    let wrong = "blokc\u{1b}".parse::<Mode>().unwrap_err();
    assert_eq!(wrong.to_string(), "there is no mode of screening 'blokc\\u{1b}'; known: off, warn, block");
    for rule in ["import:os", "call:eval", "attribute:__x__", "dynamic-import"] {
        assert_eq!(rule.parse::<Rule>().unwrap().to_string(), rule);
    }
    for wrong in ["", "import", "import:", "os", "imports:os"] {
        assert!(wrong.parse::<Rule>().is_err(), "{wrong}");
    }
}
