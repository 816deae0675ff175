//! Bounds on the nesting of code, before it is parsed.
//!
//! The parser recurses as deeply as the code is nested. At a bracket that may start the parameters of a function, it
//! parses the same code twice. So there are two guards. A small lexer counts open brackets and operators. If only the
//! parser can know whether a slash starts a regular expression, the lexer stops, and the size of the code bounds the
//! work. In any case the stack is large enough for everything that the code could open ([`stack_for`]).
//!
//! Oxc has no limit on its recursion, and no hook that could count it. A count of bytes cannot replace the lexer: it
//! would have to ignore each closing bracket that may be in a text or a comment, and so refuse some usual code of 60 kB.

use super::lexer::{Lexer, is_operator, is_word};

/// The maximum depth of nested brackets and operators.
const MAX_DEPTH: usize = 1000;
/// The maximum sum of the depths of all tokens. It bounds how often the parser parses them. Large bundles reach a tenth
/// of it.
const MAX_WORK: usize = 8 << 20;
/// The maximum product of brackets and operators and bytes of code, for code that the lexer could not follow to its
/// end.
const MAX_UNSURE_WORK: usize = 256 << 20;
/// The stack that the parser needs for each open bracket or operator. Measured: at most 11 kB for `({a(){`, which is
/// four.
const FRAME: usize = if cfg!(debug_assertions) { 12 << 10 } else { 6 << 10 };

/// The reason why code is not parsed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The code is too deep from this byte on.
    Deep(usize),
    /// The parser could take too long.
    Ambiguous,
}

/// Returns the maximum stack that the parser needs.
pub(crate) fn stack_for(code: &str) -> usize {
    opened(code).saturating_mul(FRAME)
}

/// Counts everything that could open a level, including in strings and comments.
fn opened(code: &str) -> usize {
    let mut count = 0;
    let mut word = 0;
    for (at, byte) in code.bytes().enumerate() {
        let in_word = is_word(byte);
        if in_word {
            word += 1;
            continue;
        }
        count += usize::from(word > 0 && is_operator(&code.as_bytes()[at - word..at]));
        word = 0;
        count += usize::from(b"([{<!~+-*=?:`@|&".contains(&byte));
    }
    count
}

/// Rejects code that is nested too deeply.
pub(super) fn check(code: &str) -> Result<(), Failure> {
    let mut lexer = Lexer::new(code);
    let mut work = 0;
    while let Some(byte) = lexer.peek(0).filter(|_| !lexer.dead) {
        lexer.token(byte);
        if lexer.unsure {
            let is_small = opened(code).saturating_mul(code.len()) <= MAX_UNSURE_WORK;
            return if is_small { Ok(()) } else { Err(Failure::Ambiguous) };
        }
        let depth = lexer.outer.len() + lexer.waiting + lexer.level.operators;
        work += depth;
        if depth > MAX_DEPTH {
            return Err(Failure::Deep(lexer.at));
        }
        if work > MAX_WORK {
            return Err(Failure::Ambiguous);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_nesting_is_refused() {
        for piece in [
            "(",
            "[",
            "{",
            "!",
            "-",
            "typeof ",
            "a=>",
            "a=",
            "a?b:",
            "f(",
            "`${",
            "a**",
            "new ",
            "if(a)",
            "for(;;)",
            "else if(a){}",
            "a:",
            "(a,",
            "keyof\n",
            "await\n",
            "if(a)\n",
            "else\nif(a){}\n",
            "A<",
            "/*(*/(",
            "'('(",
        ] {
            assert!(matches!(check(&piece.repeat(100_000)), Err(Failure::Deep(_))), "{piece}");
            assert_eq!(check(&piece.repeat(100)), Ok(()), "{piece}");
        }
    }

    #[test]
    fn long_code_is_not_deep() {
        for piece in [
            "a = -1\n",
            "const a = b\n",
            "f(!a)\n",
            "if (a) { b = -c } else if (d) { e() }\n",
            "function f(a = 1) { return -a }\n",
            "class A { b() { return !c } }\n",
            "x = a / b / c;",
            "x = `a${b}c`\n",
            "x = /[(/]\\/(/g;",
            "x = \"(\" + '(';",
            "// (((\n",
            "/* ((( */",
            "export const a = () => 1\n",
        ] {
            assert_eq!(check(&piece.repeat(3000)), Ok(()), "{piece}");
        }
        for piece in ["-1, ", "{a: !b}, ", "(a) => -a, ", "a ? b : c, "] {
            assert_eq!(check(&format!("x = [{}]", piece.repeat(20_000))), Ok(()), "{piece}");
        }
    }

    #[test]
    fn code_that_only_the_parser_can_follow_is_refused_unless_it_is_small() {
        for before in ["{}\n/'/;", "x = {} /'/ ", "x = {} / a //`\n", "a++ /'/ ", "let\n/`/;", "<!-- `\n", "\n--> `\n"]
        {
            assert_eq!(check(&format!("{before}{}", "(".repeat(100_000))), Err(Failure::Ambiguous), "{before}");
            assert_eq!(check(&format!("{before}{}", "(a)".repeat(5000))), Ok(()), "{before}");
        }
    }

    #[test]
    fn deep_and_long_code_is_ambiguous() {
        let deep = format!("{}{}", "(a=".repeat(100), "a,".repeat(300_000));
        assert_eq!(check(&deep), Err(Failure::Ambiguous));
    }
}
