//! A small lexer of JavaScript, which knows no more than what is open: brackets, and operators that wait for their operand.

/// Words that are followed by what they are for.
pub(super) fn is_operator(word: &[u8]) -> bool {
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

pub(super) fn is_word(byte: u8) -> bool {
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
#[derive(Clone, Default)]
pub(super) struct Level {
    pub(super) operators: usize,
    /// What closes it.
    closer: u8,
    /// A `${` in a template, rather than a bracket.
    template: bool,
    /// The bracket of `if (…)` and its like, after which a statement begins.
    condition: bool,
}

/// One reading of the code.
#[derive(Clone)]
pub(super) struct Lexer<'a> {
    code: &'a [u8],
    /// Where the last comment of more lines can end, if one can.
    last_end: Option<usize>,
    pub(super) at: usize,
    /// Bytes of comments that were looked through, which no bracket counts.
    pub(super) skipped: usize,
    pub(super) outer: Vec<Level>,
    pub(super) level: Level,
    /// Operators of all levels in `outer`.
    pub(super) waiting: usize,
    before: Before,
    /// The last word was `if`, `for`, `while` or `with`.
    condition: bool,
    new_line: bool,
    /// The parser cannot go on: a text without its end, a bracket that closes nothing.
    pub(super) dead: bool,
    /// The other reading of what was just read.
    pub(super) other: Option<Box<Lexer<'a>>>,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(code: &'a str) -> Self {
        let mut lexer = Self {
            code: code.as_bytes(),
            last_end: code.rfind("*/"),
            skipped: 0,
            at: 0,
            outer: Vec::new(),
            level: Level::default(),
            waiting: 0,
            before: Before::Operator,
            condition: false,
            new_line: true,
            dead: false,
            other: None,
        };
        if code.starts_with("#!") {
            lexer.skip_line();
        }
        lexer
    }

    /// Whether both go on in the same way from here.
    pub(super) fn is_where(&self, other: &Self) -> bool {
        let like = |a: &Level, b: &Level| (a.closer, a.template, a.condition) == (b.closer, b.template, b.condition);
        self.at == other.at
            && (self.before, self.condition, self.new_line) == (other.before, other.condition, other.new_line)
            && like(&self.level, &other.level)
            && self.outer.len() == other.outer.len()
            && self.outer.iter().zip(&other.outer).all(|(a, b)| like(a, b))
    }

    /// One reading for both, which is at least as deep as each.
    pub(super) fn merge(&mut self, other: Self) {
        let level = |a: &mut Level, b: &Level| a.operators = a.operators.max(b.operators);
        level(&mut self.level, &other.level);
        self.outer.iter_mut().zip(&other.outer).for_each(|(a, b)| level(a, b));
        self.waiting = self.outer.iter().map(|level| level.operators).sum();
    }

    /// What follows may be read in another way, too.
    fn fork(&mut self, read: impl FnOnce(&mut Self)) {
        let mut other = self.clone();
        read(&mut other);
        self.other = Some(Box::new(other));
    }

    pub(super) fn peek(&self, ahead: usize) -> Option<u8> {
        self.code.get(self.at + ahead).copied()
    }

    pub(super) fn token(&mut self, byte: u8) {
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
                // In a script, a comment of the web.
                if byte == b'-' && self.peek(2) == Some(b'>') && self.new_line {
                    self.fork(Self::skip_line);
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
                if self.code[self.at..].starts_with(b"<!--") {
                    self.fork(Self::skip_line);
                }
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
        let closer = match byte {
            b'(' => b')',
            b'[' => b']',
            _ => b'}',
        };
        self.push(Level { operators: 0, closer, template: false, condition });
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
        let outer = self.outer.pop().unwrap_or_default();
        self.waiting = self.waiting.saturating_sub(outer.operators);
        std::mem::replace(&mut self.level, outer)
    }

    fn close(&mut self, byte: u8) {
        self.at += 1;
        self.dead |= self.outer.is_empty() || self.level.closer != byte;
        let closed = self.pop();
        (self.new_line, self.condition) = (false, false);
        if closed.template {
            self.template();
            return;
        }
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
                    self.push(Level { operators: 0, closer: b'}', template: true, condition: false });
                    self.before = Before::Operator;
                    return;
                }
                _ => {}
            }
        }
        self.dead = true;
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
        self.dead = true;
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
                if self.last_end.is_none_or(|end| end < self.at + 2) {
                    self.dead = true;
                    self.at = self.code.len();
                    return;
                }
                let rest = &self.code[self.at + 2..];
                let end = rest.windows(2).position(|pair| pair == b"*/");
                self.dead |= end.is_none();
                let length = end.map_or(self.code.len() - self.at, |end| end + 4);
                self.new_line |= rest[..end.unwrap_or(rest.len())].iter().any(|byte| matches!(byte, b'\n' | b'\r'));
                self.at += length;
                self.skipped += length;
            }
            _ if self.before == Before::Operand => self.operator(1),
            _ => {
                if self.before != Before::Operator {
                    self.fork(|other| other.operator(1));
                }
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
        self.dead = true;
    }
}
