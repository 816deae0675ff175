//! Tests of malicious code: each check ends in time with a bounded report or an error.

use std::time::{Duration, Instant};

use cofferdam_screen::{AnalysisError, Analyzer, Language, Report, Rules};
use proptest::prelude::*;

const LANGUAGES: [Language; 3] = [Language::Python, Language::JavaScript, Language::TypeScript];
/// A timeout far above the duration of any check, even on a busy machine and without optimization.
const LONG: Duration = Duration::from_secs(60);

fn check(language: Language, code: &str) -> Result<Report, AnalysisError> {
    let start = Instant::now();
    let answer = Analyzer::default().check(language, code);
    let begin: String = code.chars().take(40).collect();
    assert!(start.elapsed() < LONG, "{language} took {:?} for {begin}", start.elapsed());
    if let Err(error @ (AnalysisError::Parser(_) | AnalysisError::Host(_))) = &answer {
        panic!("{language} failed on {begin}: {error}");
    }
    answer
}

/// Promise (Static analysis and audit log): Excessive nesting is refused by name and does not overflow the stack.
#[test]
fn nesting_without_end_is_refused_by_name() {
    for piece in [
        "(",
        "[",
        "{",
        "-",
        "not ",
        "~",
        "lambda: ",
        "f(",
        "x[",
        "a if b else ",
        "a**",
        "[a for a in ",
        "f'{",
        "await ",
    ] {
        let deep = check(Language::Python, &piece.repeat(1_000_000 / piece.len()));
        assert!(matches!(deep, Err(AnalysisError::TooDeep { line: Some(1) })), "{piece}: {deep:?}");
    }
    for language in [Language::JavaScript, Language::TypeScript] {
        for piece in [
            "(", "[", "{", "!", "-", "typeof ", "a=>", "a=", "a?b:", "f(", "x[", "`${", "new ", "if(a)", "a:", "(a=",
            "async(", "<T>(",
        ] {
            let deep = check(language, &piece.repeat(1_000_000 / piece.len()));
            assert!(matches!(deep, Err(AnalysisError::TooDeep { line: Some(1) })), "{piece}: {deep:?}");
        }
    }
    let error = check(Language::Python, &format!("x = 1\n\n{}", "(".repeat(5000))).unwrap_err();
    assert_eq!(error.to_string(), "the code is nested too deeply to be analyzed, from line 3 on");
}

#[test]
fn chains_without_end_are_read_or_refused() {
    // A left-leaning tree is built by a loop, and is as deep as the code is long.
    for (language, chain) in [
        (Language::Python, "a.b"),
        (Language::Python, "+a"),
        (Language::Python, "()"),
        (Language::Python, "[0]"),
        (Language::Python, " or a"),
        (Language::Python, "<a"),
        (Language::JavaScript, ".b"),
        (Language::JavaScript, "+a"),
        (Language::JavaScript, "()"),
        (Language::JavaScript, "[0]"),
        (Language::JavaScript, "?.b"),
        (Language::JavaScript, "``"),
        (Language::JavaScript, "||a"),
        (Language::JavaScript, ",a"),
        (Language::TypeScript, "!"),
        (Language::TypeScript, " as a"),
    ] {
        let max = Rules::default().max_bytes;
        let code = format!("a{}", chain.repeat((max - 1) / chain.len()));
        match check(language, &code) {
            Ok(_) | Err(AnalysisError::TooDeep { .. }) => {}
            other => panic!("{language} {chain}: {other:?}"),
        }
        let short = format!("a{}", chain.repeat(400));
        assert!(check(language, &short).is_ok(), "{language} {chain}: {:?}", check(language, &short));
    }
}

#[test]
fn deeply_nested_code_is_parsed_or_refused_quickly() {
    for (open, close) in [
        ("(a=", ")"),
        ("((a=", ")=>1)"),
        ("a?(b)=>c?(", "):d:e"),
        ("async(a=", ")"),
        ("({a(){", "}})"),
        ("class{[", "]=1}"),
        ("`${", "}`"),
        ("<T>(a=", ")=>1"),
        ("f<T>(", ")"),
        ("if(a){", "}"),
        ("if(a){}else ", ";"),
        ("let x:A<", ">"),
    ] {
        for language in [Language::JavaScript, Language::TypeScript] {
            for depth in [10, 40, 150] {
                let code = format!("{}{}", open.repeat(depth), close.repeat(depth));
                drop(check(language, &code));
            }
        }
    }
    for (open, close) in
        [("(", ")"), ("[x for x in ", "]"), ("lambda x=", ":1"), ("f'{", "}'"), ("f(x=", ")"), ("{1:", "}")]
    {
        for depth in [10, 40, 150] {
            drop(check(Language::Python, &format!("{}1{}", open.repeat(depth), close.repeat(depth))));
        }
    }
}

/// Promise (Static analysis and audit log): Nesting behind regular expressions and divisions does not overflow the
/// stack.
#[test]
fn depth_that_hides_behind_a_slash_overflows_nothing() {
    // Code, a regular expression, a text or a comment may follow these. After some of them the parser gives up.
    let befores = [
        "x = {}\n/'/; ",
        "x = {} /'/ ",
        "a++ /'/ ",
        "yield /'/ ",
        "<!-- '\n",
        "let\n/`/;",
        "}/'/;",
        ")",
        "]",
        "'\\\n",
        "'\n",
        "/a\n",
        "x = {} / a //`\n",
    ];
    for before in befores {
        for open in ["(", "[", "{", "!", "({a(){", "`${", "a?(b)=>c?("] {
            for count in [800, 2500, 6000, 100_000] {
                drop(check(Language::JavaScript, &format!("{before}{}", open.repeat(count))));
                drop(check(Language::JavaScript, &format!("{before}{}//'`/", open.repeat(count))));
            }
        }
    }
}

/// Promise (Static analysis and audit log): Code that is deep and long is refused before its analysis takes long.
#[test]
fn deep_and_long_is_refused_before_it_takes_long() {
    for open in ["(a=", "a?(b)=>c?(", "async(a=", "a<(", "a?(b)=>"] {
        for language in [Language::JavaScript, Language::TypeScript] {
            let refused = check(language, &format!("{}[{}]", open.repeat(100), "a,".repeat(300_000)));
            assert_eq!(refused, Err(AnalysisError::TooAmbiguous), "{open}");
        }
    }
}

/// Promise (Static analysis and audit log): The lookup of names in deep scopes takes little time.
#[test]
fn names_in_deep_scopes_are_looked_up_in_time() {
    let python = |depth: usize, names: usize| format!("{}[{}]", "lambda b:".repeat(depth), "a,".repeat(names));
    let javascript =
        |depth: usize, names: usize| format!("{}{}{}", "{let b;".repeat(depth), "a;".repeat(names), "}".repeat(depth));
    for depth in [0, 12, 100, 500, 900] {
        assert!(!check(Language::Python, &python(depth, 500_000)).unwrap().truncated, "{depth}");
        let answer = check(Language::JavaScript, &javascript(depth, 500_000));
        assert!(
            answer.map_or_else(|error| error == AnalysisError::TooAmbiguous, |report| !report.truncated),
            "{depth}"
        );
    }
}

/// Promise (Static analysis and audit log): The resolution of chained aliases takes little time.
#[test]
fn aliases_of_aliases_are_followed_in_time() {
    let attributes: String = (1..40_000).map(|name| format!("x{name} = x{}.a\n", name - 1)).collect();
    let choices: String = (1..20_000).map(|name| format!("x{name} = x{0} or x{0}\n", name - 1)).collect();
    let one_name = "x = x.a or x.b or x.c\n".repeat(40_000);
    for code in [attributes, choices.clone(), one_name] {
        check(Language::Python, &format!("import os\nx0 = x = os\n{code}")).unwrap();
    }
    check(Language::JavaScript, &format!("var x0 = process\n{}", choices.replace("or", "||"))).unwrap();
    for (language, piece) in [(Language::Python, "'a' + "), (Language::JavaScript, "'a' + ")] {
        let added = format!("f({}'b')", piece.repeat(900));
        check(language, &added.replace('f', "__import__")).unwrap();
        check(language, &added.replace('f', "require")).unwrap();
    }
}

#[test]
fn the_end_of_a_comment_is_searched_once() {
    check(Language::JavaScript, &"{}/ /*x/\n".repeat(100_000)).ok();
    check(Language::JavaScript, &format!("{}*/", "{}/ /*x/\n".repeat(100_000))).ok();
}

#[test]
fn findings_and_size_have_a_bound() {
    let report = check(Language::Python, &"eval(x)\n".repeat(5000)).unwrap();
    assert_eq!((report.findings.len(), report.truncated), (100, true));
    let report = check(Language::JavaScript, &"eval(x)\n".repeat(100)).unwrap();
    assert_eq!((report.findings.len(), report.truncated), (100, false));
    for language in LANGUAGES {
        let max = Rules::default().max_bytes;
        let refused = check(language, &" ".repeat(max + 1));
        assert_eq!(refused, Err(AnalysisError::TooLarge { bytes: max + 1, max }));
        assert!(check(language, &" ".repeat(max)).is_ok());
    }
}

#[test]
fn strange_characters_stay_in_the_code() {
    for language in LANGUAGES {
        for code in [
            "\0",
            "\u{FEFF}",
            "\u{202E}x = 1",
            "'\u{1b}[31m",
            "\u{FEFF}x = 1",
            "\r\r\n",
            "'\u{2028}",
            "x = '\u{10FFFF}'",
            "ﬁ = 1",
        ] {
            if let Err(error) = check(language, code) {
                assert!(!error.to_string().contains(char::is_control), "{error:?}");
            }
        }
    }
    let report = check(Language::Python, "\u{FEFF}import os").unwrap();
    assert_eq!((report.findings[0].line, report.findings[0].column), (1, 8));
    // Python and the parser both read this as `eval`.
    let report = check(Language::Python, "ｅval(x)").unwrap();
    assert_eq!(report.findings.len(), 1);
}

/// Tokens in random order.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "'",
        "\"",
        "`",
        "${",
        "/",
        "//",
        "/*",
        "*/",
        "#",
        "\\",
        "\n",
        " ",
        "    ",
        ":",
        ";",
        ",",
        ".",
        "=",
        "=>",
        "==",
        "+",
        "-",
        "*",
        "**",
        "!",
        "?",
        "?.",
        "<",
        ">",
        "@",
        "|",
        "&",
        "...",
        ":=",
        "f'",
        "'''",
        "b'",
        "0",
        "1e9",
        "0x1",
        "a",
        "os",
        "eval",
        "exec",
        "import ",
        "from ",
        "require",
        "__import__",
        "getattr",
        "'os'",
        "'fs'",
        "import('fs')",
        "def ",
        "class ",
        "lambda ",
        "function ",
        "async ",
        "await ",
        "yield ",
        "return ",
        "if ",
        "else ",
        "for ",
        " in ",
        " of ",
        "while ",
        "try ",
        "except ",
        "catch",
        "match ",
        "case ",
        "type ",
        "new ",
        "let ",
        "var ",
        "const ",
        "global ",
        "del ",
        "<T>",
        " as ",
        "enum ",
        "namespace ",
        "é",
        "日",
        "\u{2028}",
        "\0",
        ".join(",
        "[::-1]",
        "chr(",
        "%",
        "format(",
        "\t",
    ]);
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_code_breaks_it(code in pieces()) {
        for language in LANGUAGES {
            if let Ok(report) = check(language, &code) {
                for found in report.findings {
                    prop_assert!(found.line >= 1 && found.column >= 1);
                    prop_assert!(!found.text.chars().any(char::is_control));
                }
            }
        }
    }

    #[test]
    fn no_text_breaks_it(code in any::<String>()) {
        for language in LANGUAGES {
            drop(check(language, &code));
        }
    }

    #[test]
    fn code_around_does_not_hide_a_finding(before in "[a-z]{1,8} = [0-9]{1,4}\n", lines in 0_usize..20) {
        let code = format!("{}import os\n", before.repeat(lines));
        // A user-defined name may be a keyword.
        if let Ok(report) = check(Language::Python, &code) {
            prop_assert_eq!(report.findings.len(), 1);
            prop_assert_eq!((report.findings[0].line, report.findings[0].column), (lines + 1, 8));
        }
    }
}
