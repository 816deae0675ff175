//! Heuristic that detects incomplete code. Pure. Only the interpreter knows whether code is valid.

/// Returns true if code continues on the next line: a bracket or string is open, or no empty line has ended a block.
pub fn is_incomplete(language: &str, code: &str) -> bool {
    let python = language == "python";
    let open = open_parts(code, python);
    if open.text || open.brackets > 0 {
        return true;
    }
    let last = code.trim_end_matches('\n').lines().next_back().unwrap_or_default();
    if last.ends_with('\\') {
        return true;
    }
    if !python {
        return false;
    }
    let blank = code.ends_with("\n\n") || last.trim().is_empty();
    (open.block || code.starts_with('@')) && !blank
}

/// Constructs that are open at the end of code.
struct Open {
    brackets: i64,
    /// True in a multi-line string.
    text: bool,
    /// True if a line of Python ended in a colon outside brackets and strings.
    block: bool,
}

fn open_parts(code: &str, python: bool) -> Open {
    let (mut brackets, mut quote): (i64, Option<&str>) = (0, None);
    let (mut colon, mut block) = (false, false);
    let mut rest = code;
    let quotes: &[&str] = if python { &["\"\"\"", "'''", "\"", "'"] } else { &["`", "\"", "'"] };
    while let Some(c) = rest.chars().next() {
        if let Some(end) = quote {
            let ended = rest.starts_with(end);
            // A single-line string ends with its line, even without a closing quote.
            let broken = c == '\n' && end.len() == 1 && end != "`";
            if ended || broken {
                quote = None;
            }
            let step = if c == '\\' { 1 + rest[1..].chars().next().map_or(0, char::len_utf8) } else { c.len_utf8() };
            rest = &rest[if ended { end.len() } else { step }..];
            continue;
        }
        if let Some(begun) = quotes.iter().find(|quote| rest.starts_with(**quote)) {
            (quote, colon) = (Some(*begun), false);
            rest = &rest[begun.len()..];
            continue;
        }
        let comment = if python { c == '#' } else { rest.starts_with("//") };
        if comment {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
            continue;
        }
        match c {
            '(' | '[' | '{' => brackets += 1,
            ')' | ']' | '}' => brackets -= 1,
            _ => {}
        }
        block |= c == '\n' && colon;
        colon = if c == '\n' || !c.is_whitespace() { python && c == ':' && brackets <= 0 } else { colon };
        rest = &rest[c.len_utf8()..];
    }
    Open { brackets, text: quote.is_some_and(|quote| quote.len() == 3 || quote == "`"), block }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repl_continues_incomplete_code() {
        for (language, code, more) in [
            ("python", "1 + 1\n", false),
            ("python", "f(1,\n", true),
            ("python", "f(1,\n2)\n", false),
            ("python", "def f():\n", true),
            ("python", "def f():\n    return 1\n", true),
            ("python", "def f():\n    return 1\n\n", false),
            ("python", "if x: pass\n", false),
            ("python", "'''a\n", true),
            ("python", "'''a\n'''\n", false),
            ("python", "x = '('\n", false),
            ("python", "x = 1 # (\n", false),
            ("python", "x = \\\n", true),
            ("python", "for a in b: # why\n", true),
            ("python", "@decorated\n", true),
            ("python", "'it\\'s ('\n", false),
            ("python", "x = {'a':\n1}\n", false),
            ("python", "x = '''a:\n'''\n", false),
            ("python", "x = 'a:\n", false),
            ("python", "f(x[1:\n])\n", false),
            ("python", "def f(a,\n      b):\n", true),
            ("python", "# why:\nx = 1\n", false),
            ("python", "if x:# why\n", true),
            ("python", ")\n", false),
            ("javascript", "function f() {\n", true),
            ("javascript", "function f() {\n}\n", false),
            ("javascript", "`a\n", true),
            ("javascript", "x = '{' // {\n", false),
            ("javascript", "a: 1\n", false),
            ("python", "'\\", true),
            ("python", "'\u{e9}\\\u{e9}", false),
        ] {
            assert_eq!(is_incomplete(language, code), more, "{code:?}");
        }
    }
}
