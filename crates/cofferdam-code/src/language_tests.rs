//! Tests of the list of languages.

use super::*;

fn name_of(languages: &Languages, file: &str) -> Option<String> {
    languages.by_extension(Path::new(file)).ok().map(|(name, _)| name.to_owned())
}

fn language(extension: &str, program: &str) -> Language {
    Language { extensions: vec![extension.to_owned()], interpreter: vec![program.to_owned()], ..Language::default() }
}

/// Promise (Command line): Each extension belongs to one language of an explicit list.
#[test]
fn the_extension_picks_the_language() {
    let languages = Languages::default();
    for (file, name) in [
        ("a.py", Some("python")),
        ("dir.js/a.PY", Some("python")),
        ("a.js", Some("javascript")),
        ("a.mjs", Some("javascript")),
        ("a.cjs", Some("javascript")),
        ("a.ts", Some("typescript")),
        ("a.sh", Some("sh")),
        ("a.bash", Some("bash")),
        ("a.wasm", Some("wasm")),
        ("a.tar.gz", None),
        ("a.rb", None),
        ("py", None),
        (".py", None),
        ("a.", None),
    ] {
        assert_eq!(name_of(&languages, file).as_deref(), name, "{file}");
    }
}

/// Promise (Code execution): Configuration adds, changes and restricts languages.
#[test]
fn configuration_adds_changes_and_restricts() {
    let added =
        BTreeMap::from([("ruby".to_owned(), language("rb", "ruby")), ("dash".to_owned(), language("sh", "dash"))]);
    let languages = Languages::new(&added, None).unwrap();
    assert_eq!(name_of(&languages, "a.rb").as_deref(), Some("ruby"));
    assert_eq!(name_of(&languages, "a.sh").as_deref(), Some("dash"));
    let allowed = BTreeSet::from(["ruby".to_owned()]);
    let restricted = Languages::new(&added, Some(&allowed)).unwrap();
    assert_eq!(name_of(&restricted, "a.py"), None);
    assert_eq!(restricted.by_name("python").unwrap_err().kind(), ErrorKind::Denied);
    assert!(Languages::new(&BTreeMap::new(), Some(&allowed)).is_err());
}

#[test]
fn built_in_language_keeps_unconfigured_settings() {
    let changed = |name: &str, language: Language| {
        let languages = Languages::new(&BTreeMap::from([(name.to_owned(), language)]), None).unwrap();
        languages.by_name(name).unwrap().clone()
    };
    let isolated = Language { interpreter: vec!["python3".to_owned(), "-I".to_owned()], ..language("py", "python3") };
    let python = changed("python", isolated);
    assert_eq!((python.results(), python.version.len()), (Results::Python, 2), "its code is still analyzed");
    assert_eq!(changed("typescript", language("ts", "node")).least_version.as_deref(), Some("22.6"));
    let other = changed("python", language("py", "pypy3"));
    assert_eq!((other.results(), other.version.len()), (Results::Python, 0));
    let plain = changed("python", Language { results: Some(Results::None), ..language("py", "python3") });
    assert_eq!(plain.results(), Results::None);
    assert_eq!(changed("ruby", language("rb", "ruby")).results(), Results::None);
}

/// Promise (Command line): Invalid languages in the configuration are refused.
#[test]
fn bad_languages_are_refused() {
    let mut compiled = language("c", "cc");
    (compiled.run, compiled.results) = (vec!["{program}".to_owned()], Some(Results::Python));
    let named = Language { file: Some("a/b.c".to_owned()), ..language("c", "cc") };
    let least = Language { least_version: Some("3".to_owned()), ..language("c", "cc") };
    let all = [language("rb", ""), language(".rb", "ruby"), compiled, named, least];
    for (name, language) in all.into_iter().map(|bad| ("ruby", bad)).chain([("Ruby", language("rb", "ruby"))]) {
        assert!(Languages::new(&BTreeMap::from([(name.to_owned(), language.clone())]), None).is_err(), "{language:?}");
    }
}

#[test]
fn command_of_a_compiler_has_its_paths() {
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let c = Language {
        interpreter: words(&["cc", "-DX='a b'", "-o", "{program}", "{file}"]),
        run: words(&["{program}"]),
        ..language("c", "cc")
    };
    assert_eq!(c.file_name(), "main.c");
    let command = c.command();
    assert_eq!(command[..2], words(&["sh", "-c"]));
    let expected = r#"file=$1; shift; directory=$(mktemp -d) || exit 125; program=$directory/program; 'cc' '-DX='\''a b'\''' '-o' ''"$program"'' ''"$file"'' || exit; exec ''"$program"'' "$@""#;
    assert_eq!(command[2], expected);
    let plain = Languages::default();
    assert_eq!(plain.by_name("python").unwrap().command(), words(&["python3", "-u"]));
}
