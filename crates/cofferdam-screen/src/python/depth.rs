//! Bounds on the nesting of code, by its tokens, before it is parsed.
//!
//! The parser recurses for each open bracket, each block, and each operator with an operand to its right. A comma ends
//! all operators within its bracket, except those around the parameters of a lambda. The count is at least the depth of
//! the parser, and only slightly higher for usual code.

use ruff_python_ast::token::TokenKind;
use ruff_python_parser::{Mode, lexer};

/// The maximum depth, which is more than CPython compiles.
const MAX_DEPTH: usize = 1000;

/// The operators in one bracket.
#[derive(Default)]
struct Level {
    /// Number of operators that wait for their right operand.
    operators: usize,
    /// Number of lambdas whose colon has not been read.
    lambdas: usize,
}

/// Fails with the end of the line from which on the code is too deep.
pub(super) fn check(code: &str) -> Result<(), usize> {
    if is_shallow(code) {
        return Ok(());
    }
    // The lexer does not report its position. Lines up to the position are too deep, and lines up to the one before are
    // not.
    let ends: Vec<usize> = code.match_indices(['\n', '\r']).map(|(at, _)| at).chain([code.len()]).collect();
    let deep = ends.partition_point(|end| is_shallow(&code[..*end]));
    Err(ends.get(deep).copied().unwrap_or(code.len()))
}

fn is_shallow(code: &str) -> bool {
    let mut lexer = lexer::lex(code, Mode::Module);
    let mut blocks = 0_usize;
    let mut outer: Vec<Level> = Vec::new();
    let mut level = Level::default();
    // Number of operators of all levels in `outer`.
    let mut waiting = 0;
    loop {
        match lexer.next_token() {
            TokenKind::EndOfFile => return true,
            TokenKind::Indent => blocks += 1,
            TokenKind::Dedent => blocks = blocks.saturating_sub(1),
            TokenKind::Newline => {
                outer.clear();
                (level, waiting) = (Level::default(), 0);
            }
            TokenKind::Lpar
            | TokenKind::Lsqb
            | TokenKind::Lbrace
            | TokenKind::FStringStart
            | TokenKind::TStringStart => {
                waiting += level.operators;
                outer.push(std::mem::take(&mut level));
            }
            TokenKind::Rpar | TokenKind::Rsqb | TokenKind::Rbrace | TokenKind::FStringEnd | TokenKind::TStringEnd => {
                level = outer.pop().unwrap_or_default();
                waiting -= level.operators;
            }
            TokenKind::Comma | TokenKind::Semi if level.lambdas == 0 => level.operators = 0,
            TokenKind::Colon => level.lambdas = level.lambdas.saturating_sub(1),
            TokenKind::Lambda => {
                level.lambdas += 1;
                level.operators += 1;
            }
            TokenKind::Not
            | TokenKind::Minus
            | TokenKind::Plus
            | TokenKind::Tilde
            | TokenKind::Star
            | TokenKind::DoubleStar
            | TokenKind::Await
            | TokenKind::Yield
            | TokenKind::If
            | TokenKind::Else
            | TokenKind::ColonEqual => level.operators += 1,
            _ => {}
        }
        if blocks + outer.len() + waiting + level.operators > MAX_DEPTH {
            return false;
        }
    }
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
            "not ",
            "-",
            "~",
            "lambda:",
            "lambda a,b:",
            "f(",
            "a[",
            "a if b else ",
            "a**",
            "f'{",
            "x:=",
            "await ",
        ] {
            assert!(check(&piece.repeat(100_000)).is_err(), "{piece}");
            assert!(check(&piece.repeat(100)).is_ok(), "{piece}");
        }
        let blocks: String = (0..2000).map(|depth| format!("{}if x:\n", " ".repeat(depth))).collect();
        assert!(check(&blocks).is_err());
    }

    #[test]
    fn long_code_is_not_deep() {
        for piece in ["-1, ", "x = (-1, not y)\n", "a.b", "a, ", "if a: pass\n", "x = lambda a, b: -a\n", "f(-1);"] {
            assert!(check(&piece.repeat(20_000)).is_ok(), "{piece}");
            assert!(check(&format!("[{}]", piece.replace('\n', ",").repeat(20_000))).is_ok(), "{piece}");
        }
    }
}
