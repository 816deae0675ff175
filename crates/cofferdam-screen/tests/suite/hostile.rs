//! Code that is meant to break whoever reads it: every answer comes, is bounded, and is an answer.

use std::time::{Duration, Instant};

use cofferdam_screen::{Language, Report, Rules, Screen, ScreenError};
use proptest::prelude::*;

const LANGUAGES: [Language; 3] = [Language::Python, Language::JavaScript, Language::TypeScript];
/// Far more than any of them takes, on a machine that is busy and without optimisation.
const LONG: Duration = Duration::from_secs(60);

fn check(language: Language, code: &str) -> Result<Report, ScreenError> {
    let start = Instant::now();
    let answer = Screen::default().check(language, code);
    let begin: String = code.chars().take(40).collect();
    assert!(start.elapsed() < LONG, "{language} took {:?} for {begin}", start.elapsed());
    if let Err(error @ (ScreenError::Parser(_) | ScreenError::Host(_))) = &answer {
        panic!("{language} failed on {begin}: {error}");
    }
    answer
}

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
        assert!(matches!(deep, Err(ScreenError::TooDeep { line: Some(1) })), "{piece}: {deep:?}");
    }
    for language in [Language::JavaScript, Language::TypeScript] {
        for piece in [
            "(", "[", "{", "!", "-", "typeof ", "a=>", "a=", "a?b:", "f(", "x[", "`${", "new ", "if(a)", "a:", "(a=",
            "async(", "<T>(",
        ] {
            let deep = check(language, &piece.repeat(1_000_000 / piece.len()));
            assert!(matches!(deep, Err(ScreenError::TooDeep { line: Some(1) })), "{piece}: {deep:?}");
        }
    }
    let error = check(Language::Python, &format!("x = 1\n\n{}", "(".repeat(5000))).unwrap_err();
    assert_eq!(error.to_string(), "the code is nested too deeply to be screened, from line 3 on");
}

#[test]
fn chains_without_end_are_read_or_refused() {
    // A tree that leans to the left is built by a loop, and is as deep as the code is long.
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
        let most = Rules::default().max_bytes;
        let code = format!("a{}", chain.repeat((most - 1) / chain.len()));
        match check(language, &code) {
            Ok(_) | Err(ScreenError::TooDeep { .. }) => {}
            other => panic!("{language} {chain}: {other:?}"),
        }
        let short = format!("a{}", chain.repeat(400));
        assert!(check(language, &short).is_ok(), "{language} {chain}: {:?}", check(language, &short));
    }
}

#[test]
fn what_is_right_and_deep_is_read_or_refused_quickly() {
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

#[test]
fn depth_that_hides_behind_a_slash_overflows_nothing() {
    // What stands behind these may be code, a regular expression, a text or a comment; after some the parser gives up.
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
            for count in [800, 20_000, 100_000] {
                drop(check(Language::JavaScript, &format!("{before}{}", open.repeat(count))));
                drop(check(Language::JavaScript, &format!("{before}{}//'`/", open.repeat(count))));
            }
        }
    }
}

#[test]
fn deep_and_long_is_refused_before_it_takes_long() {
    for open in ["(a=", "a?(b)=>c?(", "async(a=", "a<(", "a?(b)=>"] {
        for language in [Language::JavaScript, Language::TypeScript] {
            let refused = check(language, &format!("{}[{}]", open.repeat(100), "a,".repeat(300_000)));
            assert_eq!(refused, Err(ScreenError::TooAmbiguous), "{open}");
        }
    }
}

#[test]
fn texts_that_grow_do_not() {
    let doubled: String = "x = x + x\n".repeat(100);
    check(Language::Python, &format!("x = 'import os'\n{doubled}exec(x)")).unwrap();
    check(Language::JavaScript, &format!("let x = 'a';{}eval(x)", "x = x + x;".repeat(100))).unwrap();
    check(Language::Python, "exec('a' * 10 ** 18)\nexec('a'.replace('', 'b' * 1000) * 1000)").unwrap();
    check(Language::JavaScript, "eval('a'.repeat(1e15)); eval('a'.replaceAll('', 'b'.repeat(1000)).repeat(1000))")
        .unwrap();
    let mut nested = "import os".to_owned();
    for _ in 0..8 {
        nested = format!("exec({nested:?})");
    }
    check(Language::Python, &nested).unwrap();
    let many = format!("x = {:?}\n{}", "y = 1\n".repeat(5000), "exec(x)\n".repeat(2000));
    assert!(check(Language::Python, &many).unwrap().truncated);
    let deep = format!("exec('{}')", "(".repeat(2000));
    assert!(matches!(check(Language::Python, &deep), Err(ScreenError::TooDeep { .. })));
    let deep = format!("eval('{}')", "(".repeat(2000));
    assert!(matches!(check(Language::JavaScript, &deep), Err(ScreenError::TooDeep { .. })));
}

#[test]
fn lists_in_lists_are_not_gone_through() {
    let (mut python, mut javascript) = ("x0 = [1, 1]\n".to_owned(), "var x0 = [1, 1];\n".to_owned());
    for level in 1..46 {
        let before = level - 1;
        python += &format!("x{level} = [x{before}, x{before}]\n");
        javascript += &format!("var x{level} = [x{before}, x{before}];\n");
    }
    for again in ["", "again"] {
        check(Language::Python, &format!("{python}{}", python.replace('x', &format!("{again}x")))).unwrap();
        check(Language::JavaScript, &format!("{javascript}{}", javascript.replace('x', &format!("{again}x")))).unwrap();
    }
    // Lists that are dropped one in another.
    let chain: String = (1..40_000).map(|level| format!("x{level} = [x{}]\n", level - 1)).collect();
    check(Language::Python, &format!("x0 = [1]\n{chain}")).unwrap();
}

#[test]
fn texts_without_code_cost_what_their_names_cost() {
    let names: String = (0..10_000).map(|name| format!("n{name} = 1\n")).collect();
    for call in ["eval('')\n", "eval('1')\n"] {
        let calls = call.repeat(10_000);
        check(Language::Python, &format!("{names}{calls}")).unwrap();
        check(Language::JavaScript, &format!("{names}{calls}")).unwrap();
    }
    let report = check(Language::Python, &format!("{names}{}", "eval('1')\n".repeat(10_000))).unwrap();
    assert!(report.truncated);
}

#[test]
fn names_are_looked_for_in_deep_scopes_for_what_it_costs() {
    let python = |depth: usize, names: usize| format!("{}[{}]", "lambda b:".repeat(depth), "a,".repeat(names));
    let javascript =
        |depth: usize, names: usize| format!("{}{}{}", "{let b;".repeat(depth), "a;".repeat(names), "}".repeat(depth));
    for depth in [100, 500, 900] {
        assert!(check(Language::Python, &python(depth, 500_000)).unwrap().truncated, "{depth}");
        let refused = check(Language::JavaScript, &javascript(depth, 500_000));
        assert!(refused.map_or_else(|error| error == ScreenError::TooAmbiguous, |report| report.truncated), "{depth}");
    }
    // As deep as programs are that mean well.
    for depth in [0, 5, 12] {
        assert!(!check(Language::Python, &python(depth, 100_000)).unwrap().truncated, "{depth}");
        assert!(!check(Language::JavaScript, &javascript(depth, 100_000)).unwrap().truncated, "{depth}");
    }
}

#[test]
fn comments_without_an_end_are_looked_for_once() {
    check(Language::JavaScript, &"{}/ /*x/\n".repeat(100_000)).ok();
    check(Language::JavaScript, &format!("{}*/", "{}/ /*x/\n".repeat(100_000))).ok();
}

#[test]
fn a_name_with_more_values_than_are_kept_is_no_constant() {
    let nine: String = (0..8).map(|name| format!("n = 'm{name}'\n")).chain(["n = 'os'\n".to_owned()]).collect();
    let either = "n = 'json'\nn = unknown()\n";
    let dynamic = |language, code: &str| {
        let report = check(language, code).unwrap();
        let found = report.findings.iter().any(|found| found.rule.to_string() == "dynamic-import");
        (found, report.truncated)
    };
    for import in ["import importlib\nimportlib.import_module(n)", "__import__(n)", "m = [n]\n__import__(m[0])"] {
        assert_eq!(dynamic(Language::Python, &format!("{nine}{import}")), (true, true), "{import}");
        assert_eq!(dynamic(Language::Python, &format!("{either}{import}")), (true, false), "{import}");
        assert_eq!(dynamic(Language::Python, &format!("n = 'json'\nn = 're'\n{import}")), (false, false), "{import}");
    }
    for import in ["require(n)", "import(n)", "require(`${n}`)"] {
        assert_eq!(dynamic(Language::JavaScript, &format!("let n\n{nine}{import}")), (true, true), "{import}");
        assert_eq!(dynamic(Language::JavaScript, &format!("var {either}{import}")), (true, false), "{import}");
        assert_eq!(
            dynamic(Language::JavaScript, &format!("var n = 'a'\nn = 'b'\n{import}")),
            (false, false),
            "{import}"
        );
    }
}

#[test]
fn what_is_made_of_texts_has_a_bound() {
    let doubled: String = (1..16).map(|level| format!("x{level} = x{0} + x{0}\n", level - 1)).collect();
    let python = format!("x0 = 'ab'\n{doubled}l = list(x15)\n");
    for make in [
        "f'{x15}'",
        "x15[1:]",
        "l + l",
        "[c for c in x15]",
        "str(x15)",
        "''.join([x15])",
        "'%s' % x15",
        "('%s' * 500) % l",
    ] {
        let many: String = (0..4000).map(|name| format!("y{name} = {make}\n")).collect();
        assert!(check(Language::Python, &format!("{python}{many}")).unwrap().truncated, "{make}");
    }
    let javascript = format!("x0 = 'ab'\n{doubled}l = x15.split('')\n");
    for make in ["`${x15}`", "x15.slice(1)", "l.concat(l)", "String(x15)", "[x15].join('')", "x15 + 'a'.slice(1)"] {
        let many: String = (0..4000).map(|name| format!("y{name} = {make}\n")).collect();
        assert!(check(Language::JavaScript, &format!("{javascript}{many}")).unwrap().truncated, "{make}");
    }
}

#[test]
fn findings_and_size_have_a_bound() {
    let report = check(Language::Python, &"eval(x)\n".repeat(5000)).unwrap();
    assert_eq!((report.findings.len(), report.truncated), (100, true));
    let report = check(Language::JavaScript, &"eval(x)\n".repeat(100)).unwrap();
    assert_eq!((report.findings.len(), report.truncated), (100, false));
    for language in LANGUAGES {
        let most = Rules::default().max_bytes;
        let refused = check(language, &" ".repeat(most + 1));
        assert_eq!(refused, Err(ScreenError::TooLarge { bytes: most + 1, most }));
        assert!(check(language, &" ".repeat(most)).is_ok());
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
    // Python takes this for `eval`, and so does the parser.
    let report = check(Language::Python, "ｅval(x)").unwrap();
    assert_eq!(report.findings.len(), 1);
}

/// Pieces that mean something, in any order.
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
        // A name of one's own may be a keyword.
        if let Ok(report) = check(Language::Python, &code) {
            prop_assert_eq!(report.findings.len(), 1);
            prop_assert_eq!((report.findings[0].line, report.findings[0].column), (lines + 1, 8));
        }
    }
}
