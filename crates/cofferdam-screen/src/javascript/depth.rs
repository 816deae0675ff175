//! How deep code is nested, before a parser follows it down.
//!
//! The parser has no end of its own: it goes as deep as the code does, and where a bracket may begin the parameters of a
//! function it reads what is in it once as such and once as something else, so that deep code takes it long. And where a
//! slash begins a regular expression, only it knows for sure. So there are two guards. A small lexer counts what is open, and
//! refuses what is deeper than people write; where a slash may be either, it goes on with both. And whatever it overlooks,
//! the stack is made for all that the code could open ([`stack_for`]), so that nothing overflows it.

use super::lexer::{Lexer, is_operator, is_word};

/// Brackets and operators in each other that are taken.
const MOST: usize = 1000;
/// What is open at each token, of all tokens: how often the parser may look at them. Ten times what large bundles have.
const MOST_WORK: usize = 8 << 20;
/// What code may open in all if the lexer is not sure of what it read.
const MOST_UNSURE: usize = 2000;
/// Readings of the code that are followed at the same time.
const MOST_READINGS: usize = 8;
/// Stack that the parser uses for one thing that is open. Measured: at most 11 kB for `({a(){`, which is four.
const FRAME: usize = if cfg!(debug_assertions) { 12 << 10 } else { 6 << 10 };

/// Why code is not given to the parser.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// From this byte on.
    Deep(usize),
    /// Too much of it, for code of which it is not sure what it says.
    Ambiguous,
}

/// The stack for code that is what the lexer takes it for, or is not.
pub(crate) fn stack_for(code: &str) -> usize {
    opened(code).saturating_mul(FRAME)
}

/// All that could open a level, wherever it stands, in a text or a comment as well.
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
        count += usize::from(matches!(
            byte,
            b'(' | b'['
                | b'{'
                | b'<'
                | b'!'
                | b'~'
                | b'+'
                | b'-'
                | b'*'
                | b'='
                | b'?'
                | b':'
                | b'`'
                | b'@'
                | b'|'
                | b'&'
        ));
    }
    count
}

/// Refuses code that is nested too deeply.
pub(super) fn check(code: &str) -> Result<(), Failure> {
    let mut readings = vec![Lexer::new(code)];
    let (mut work, mut unsure) = (0, false);
    // The one that is behind the others goes on, so that those that agree again meet.
    while let Some(last) = (0..readings.len()).min_by_key(|index| readings[*index].at) {
        let lexer = &mut readings[last];
        let Some(byte) = lexer.peek(0) else {
            readings.swap_remove(last);
            continue;
        };
        lexer.token(byte);
        let depth = lexer.outer.len() + lexer.waiting + lexer.level.operators;
        // A comment that another reading goes over again is work of its own.
        work += depth + std::mem::take(&mut lexer.skipped) / 16;
        if depth > MOST {
            return Err(Failure::Deep(lexer.at));
        }
        if work > MOST_WORK {
            return Err(Failure::Ambiguous);
        }
        let (dead, other) = (lexer.dead, lexer.other.take());
        if let Some(other) = other {
            unsure |= readings.len() == MOST_READINGS;
            readings.extend((!unsure).then_some(*other));
        }
        if dead {
            readings.swap_remove(last);
        } else if readings.len() > 1 {
            let lexer = readings.swap_remove(last);
            match readings.iter_mut().find(|each| each.is_where(&lexer)) {
                Some(each) => each.merge(lexer),
                None => readings.push(lexer),
            }
        }
    }
    if unsure && opened(code) > MOST_UNSURE { Err(Failure::Ambiguous) } else { Ok(()) }
}

/// The same for code in a text, which is read on the stack that there is.
pub(super) fn check_nested(code: &str) -> Result<(), Failure> {
    check(code)?;
    if opened(code) > MOST { Err(Failure::Ambiguous) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_refused() {
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
    fn what_is_only_long_is_not() {
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
    fn what_hides_behind_a_slash_is_found() {
        let deep = "(".repeat(MOST + 1);
        for before in ["{}\n/'/;", "x = {} /'/ ", "x = {} / a //`\n", "a++ /'/ ", "let\n/`/;", "<!-- `\n", "\n--> `\n"]
        {
            let hidden = format!("{before}{deep}");
            assert!(matches!(check(&hidden), Err(Failure::Deep(_))), "{before}");
        }
    }

    #[test]
    fn readings_meet_again_or_there_are_too_many() {
        assert_eq!(check(&"{}\n/[(]/.test(a);\n".repeat(5000)), Ok(()));
        assert_eq!(check(&"x = {} / 2; {}\n/b/g;\n".repeat(5000)), Ok(()));
        let apart = format!("{}{}", "{} /(a/ ".repeat(50), "(a) ".repeat(MOST_UNSURE));
        assert_eq!(check(&apart), Err(Failure::Ambiguous));
    }

    #[test]
    fn work_has_a_bound() {
        let deep = format!("{}{}", "(a=".repeat(100), "a,".repeat(300_000));
        assert_eq!(check(&deep), Err(Failure::Ambiguous));
    }
}
