//! How deep code is nested, before a parser follows it down.
//!
//! The parser has no end of its own, and where a regular expression begins only it knows for sure. So there are two guards.
//! A small lexer counts what is open, and refuses what is deeper than people write; where it cannot know whether a slash
//! begins a regular expression it says so, and then only so much code is taken. And whatever it overlooks, the stack is made
//! for all that the code could open ([`stack_for`]), so that nothing overflows it.

/// Brackets and operators in each other that are taken.
const MOST: usize = 1000;
/// What code may open in all if the lexer is not sure of what it read.
const MOST_UNSURE: usize = 20_000;
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

/// Words that are followed by what they are for.
fn is_operator(word: &[u8]) -> bool {
    matches!(
        word,
        b"typeof"
            | b"void"
            | b"delete"
            | b"await"
            | b"yield"
            | b"new"
            | b"if"
            | b"else"
            | b"for"
            | b"while"
            | b"do"
            | b"with"
            | b"return"
            | b"throw"
            | b"case"
            | b"keyof"
            | b"unique"
            | b"infer"
            | b"readonly"
            | b"asserts"
            | b"is"
            | b"as"
            | b"satisfies"
            | b"extends"
            | b"in"
            | b"of"
            | b"instanceof"
            | b"abstract"
            | b"import"
            | b"async"
            | b"function"
            | b"class"
            | b"try"
            | b"switch"
            | b"export"
            | b"default"
            | b"namespace"
            | b"module"
    )
}

/// After these a slash may be either.
fn is_either(word: &[u8]) -> bool {
    matches!(
        word,
        b"await"
            | b"yield"
            | b"of"
            | b"as"
            | b"is"
            | b"keyof"
            | b"async"
            | b"let"
            | b"infer"
            | b"asserts"
            | b"satisfies"
            | b"readonly"
            | b"unique"
            | b"abstract"
            | b"namespace"
            | b"module"
    )
}

/// Words that go on with the statement before them.
fn goes_on(word: &[u8]) -> bool {
    matches!(
        word,
        b"else"
            | b"while"
            | b"catch"
            | b"finally"
            | b"instanceof"
            | b"in"
            | b"of"
            | b"as"
            | b"satisfies"
            | b"extends"
            | b"is"
            | b"implements"
            | b"from"
            | b"with"
            | b"assert"
    )
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'\\' | b'#') || byte >= 0x80
}

/// What stood before, for what comes to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// A slash divides, and another operand on a new line is a new statement.
    Operand,
    /// A slash begins a regular expression.
    Operator,
    /// The end of a block or of an object.
    Brace,
    /// Nobody knows.
    Either,
    /// A dot: a word is a name.
    Dot,
}

/// What is open in one bracket.
struct Level {
    operators: usize,
    /// A `${` in a template, rather than a bracket.
    template: bool,
    /// The bracket of `if (…)` and its like, after which a statement begins.
    condition: bool,
}

struct Lexer<'a> {
    code: &'a [u8],
    at: usize,
    outer: Vec<Level>,
    level: Level,
    /// Operators of all levels in `outer`.
    waiting: usize,
    before: Before,
    /// The last word was `if`, `for`, `while` or `with`.
    condition: bool,
    new_line: bool,
    unsure: bool,
}

/// Refuses code that is nested too deeply.
pub(super) fn check(code: &str) -> Result<(), Failure> {
    let level = Level { operators: 0, template: false, condition: false };
    let mut lexer = Lexer {
        code: code.as_bytes(),
        at: 0,
        outer: Vec::new(),
        level,
        waiting: 0,
        before: Before::Operator,
        condition: false,
        new_line: true,
        unsure: false,
    };
    if code.starts_with("#!") {
        lexer.skip_line();
    }
    while let Some(byte) = lexer.peek(0) {
        lexer.token(byte);
        if lexer.outer.len() + lexer.waiting + lexer.level.operators > MOST {
            return Err(Failure::Deep(lexer.at));
        }
    }
    if lexer.unsure && opened(code) > MOST_UNSURE { Err(Failure::Ambiguous) } else { Ok(()) }
}

/// The same for code in a text, which is read on the stack that there is.
pub(super) fn check_nested(code: &str) -> Result<(), Failure> {
    check(code)?;
    if opened(code) > MOST { Err(Failure::Ambiguous) } else { Ok(()) }
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> Option<u8> {
        self.code.get(self.at + ahead).copied()
    }

    fn token(&mut self, byte: u8) {
        match byte {
            b'\n' | b'\r' => {
                self.new_line = true;
                self.at += 1;
            }
            b' ' | b'\t' | 0x0B | 0x0C => self.at += 1,
            b'/' => self.slash(),
            b'"' | b'\'' => self.text(byte),
            b'`' => {
                self.operand();
                self.at += 1;
                self.template();
            }
            b'(' | b'[' | b'{' => self.open(byte),
            b')' | b']' | b'}' => self.close(byte),
            b',' | b';' => {
                self.level.operators = 0;
                self.operator(0);
            }
            b'.' => {
                self.at += 1;
                self.before = if self.peek(0) == Some(b'.') { Before::Operator } else { Before::Dot };
            }
            b'+' | b'-' if self.peek(1) == Some(byte) => {
                // `a++` and `++a`: what was is what is.
                if byte == b'-' && self.peek(2) == Some(b'>') {
                    self.unsure = true;
                }
                self.at += 1;
                let before = self.before;
                self.operator(1);
                self.before = if before == Before::Operator { Before::Operator } else { Before::Either };
            }
            b'!' if self.before == Before::Operand && self.peek(1) != Some(b'=') => {
                // Of TypeScript, after an operand.
                self.operator(1);
                self.before = Before::Either;
            }
            _ if is_word(byte) => self.word(),
            _ => {
                self.unsure |= self.code[self.at..].starts_with(b"<!--");
                self.operator(1);
            }
        }
    }

    fn operator(&mut self, count: usize) {
        self.at += 1;
        self.level.operators += count;
        self.before = Before::Operator;
        (self.new_line, self.condition) = (false, false);
    }

    /// Before an operand: where one stands on the line before, a new statement begins.
    fn operand(&mut self) {
        if self.before == Before::Brace || (self.before == Before::Operand && self.new_line) {
            self.level.operators = 0;
        }
        self.before = Before::Operand;
        (self.new_line, self.condition) = (false, false);
    }

    fn word(&mut self) {
        let start = self.at;
        while self.peek(0).is_some_and(is_word) {
            self.at += 1;
        }
        let code = self.code;
        let word = &code[start..self.at];
        let is_name = self.before == Before::Dot;
        if is_name {
            self.before = Before::Operand;
            (self.new_line, self.condition) = (false, false);
            return;
        }
        // What has no letters of a word, as a line separator, is not looked into.
        if goes_on(word) {
            self.new_line = false;
        } else {
            self.operand();
        }
        self.condition = matches!(word, b"if" | b"for" | b"while" | b"with") || (word == b"await" && self.condition);
        if is_operator(word) {
            self.level.operators += 1;
            self.before = if is_either(word) { Before::Either } else { Before::Operator };
        } else {
            self.before = if is_either(word) { Before::Either } else { Before::Operand };
        }
        self.new_line = false;
    }

    fn open(&mut self, byte: u8) {
        // A bracket may go on with what is before it, a block does not.
        if byte == b'{' && self.before == Before::Brace {
            self.level.operators = 0;
        }
        let condition = byte == b'(' && self.condition;
        self.push(Level { operators: 0, template: false, condition });
        self.at += 1;
        self.before = Before::Operator;
        (self.new_line, self.condition) = (false, false);
    }

    fn push(&mut self, level: Level) {
        let outer = std::mem::replace(&mut self.level, level);
        self.waiting += outer.operators;
        self.outer.push(outer);
    }

    fn pop(&mut self) -> Level {
        let outer = self.outer.pop().unwrap_or(Level { operators: 0, template: false, condition: false });
        self.waiting = self.waiting.saturating_sub(outer.operators);
        std::mem::replace(&mut self.level, outer)
    }

    fn close(&mut self, byte: u8) {
        self.at += 1;
        if self.outer.is_empty() {
            // Closes nothing: the parser will say so.
            self.unsure = true;
        }
        let closed = self.pop();
        (self.new_line, self.condition) = (false, false);
        if closed.template && byte == b'}' {
            self.template();
            return;
        }
        self.unsure |= closed.template;
        self.before = match byte {
            b'}' => Before::Brace,
            b')' if closed.condition => Before::Operator,
            _ => Before::Operand,
        };
    }

    /// The text of a template, up to its end or to the next `${`.
    fn template(&mut self) {
        while let Some(byte) = self.peek(0) {
            self.at += 1;
            match byte {
                b'\\' => self.at += 1,
                b'`' => {
                    self.before = Before::Operand;
                    return;
                }
                b'$' if self.peek(0) == Some(b'{') => {
                    self.at += 1;
                    self.push(Level { operators: 0, template: true, condition: false });
                    self.before = Before::Operator;
                    return;
                }
                _ => {}
            }
        }
        self.unsure = true;
    }

    fn text(&mut self, quote: u8) {
        self.operand();
        self.at += 1;
        while let Some(byte) = self.peek(0) {
            self.at += 1;
            match byte {
                b'\\' => {
                    // A line goes on after both bytes of its end.
                    let both = self.peek(0) == Some(b'\r') && self.peek(1) == Some(b'\n');
                    self.at += 1 + usize::from(both);
                }
                b'\n' | b'\r' => break,
                _ if byte == quote => return,
                _ => {}
            }
        }
        self.unsure = true;
    }

    fn skip_line(&mut self) {
        while self.peek(0).is_some_and(|byte| byte != b'\n' && byte != b'\r') {
            // Two more characters end a line.
            if self.code[self.at..].starts_with(b"\xE2\x80\xA8") || self.code[self.at..].starts_with(b"\xE2\x80\xA9") {
                self.at += 3;
                return;
            }
            self.at += 1;
        }
    }

    fn slash(&mut self) {
        match self.peek(1) {
            Some(b'/') => self.skip_line(),
            Some(b'*') => {
                let rest = &self.code[self.at + 2..];
                let end = rest.windows(2).position(|pair| pair == b"*/");
                self.unsure |= end.is_none();
                let length = end.map_or(self.code.len() - self.at, |end| end + 4);
                self.new_line |= rest[..end.unwrap_or(rest.len())].iter().any(|byte| matches!(byte, b'\n' | b'\r'));
                self.at += length;
            }
            _ if self.before == Before::Operand => self.operator(1),
            _ => {
                self.unsure |= self.before != Before::Operator;
                self.expression();
            }
        }
    }

    /// A regular expression.
    fn expression(&mut self) {
        self.operand();
        self.at += 1;
        let mut class = false;
        while let Some(byte) = self.peek(0) {
            self.at += 1;
            match byte {
                b'\\' => self.at += 1,
                b'[' => class = true,
                b']' => class = false,
                b'/' if !class => return,
                b'\n' | b'\r' => break,
                _ => {}
            }
        }
        self.unsure = true;
    }
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
    fn what_hides_behind_a_slash_has_a_smaller_bound() {
        let hidden = format!("x = {{}}\n/'/; {}", "(".repeat(MOST_UNSURE + 1));
        assert!(check(&hidden).is_err());
        let hidden = format!("x = {{}} /'/ {} //'", "(".repeat(MOST_UNSURE + 1));
        assert!(check(&hidden).is_err());
    }
}
