//! A small lexer of JavaScript that tracks only open brackets, and operators that wait for their operand.

/// Words that are followed by an operand or by a block.
#[rustfmt::skip]
const OPERATORS: &[&[u8]] = &[
    b"typeof", b"void", b"delete", b"await", b"yield", b"new", b"if", b"else", b"for", b"while", b"do", b"with", b"return",
    b"throw", b"case", b"keyof", b"unique", b"infer", b"readonly", b"asserts", b"is", b"as", b"satisfies", b"extends", b"in",
    b"of", b"instanceof", b"abstract", b"import", b"async", b"function", b"class", b"try", b"switch", b"export", b"default",
    b"namespace", b"module",
];
/// Words after which a slash may divide or begin a regular expression.
#[rustfmt::skip]
const AMBIGUOUS: &[&[u8]] = &[
    b"await", b"yield", b"of", b"as", b"is", b"keyof", b"async", b"let", b"infer", b"asserts", b"satisfies", b"readonly",
    b"unique", b"abstract", b"namespace", b"module",
];
/// Words that continue the statement before them.
#[rustfmt::skip]
const CONTINUING: &[&[u8]] = &[
    b"else", b"while", b"catch", b"finally", b"instanceof", b"in", b"of", b"as", b"satisfies", b"extends", b"is",
    b"implements", b"from", b"with", b"assert",
];

pub(super) fn is_operator(word: &[u8]) -> bool {
    OPERATORS.contains(&word)
}

pub(super) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'\\' | b'#') || byte >= 0x80
}

/// The previous token, which decides the meaning of the next one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// A slash divides, and another operand on a new line is a new statement.
    Operand,
    /// A slash begins a regular expression.
    Operator,
    /// The end of a block or of an object.
    Brace,
    /// A word or operator whose effect only the parser knows.
    Either,
    /// A dot: the next word is a name.
    Dot,
}

/// Operators in one bracket.
#[derive(Default)]
pub(super) struct Level {
    pub(super) operators: usize,
    /// The closing bracket.
    closer: u8,
    /// True for a `${` in a template.
    template: bool,
    /// True for the bracket of `if (…)` and similar, after which a statement begins.
    condition: bool,
}

/// A position in the code with everything that is open there.
pub(super) struct Lexer<'a> {
    code: &'a [u8],
    pub(super) at: usize,
    pub(super) outer: Vec<Level>,
    pub(super) level: Level,
    /// Operators of all levels in `outer`.
    pub(super) waiting: usize,
    before: Before,
    /// The last word was `if`, `for`, `while` or `with`.
    condition: bool,
    new_line: bool,
    /// The parser stops here: a string without its end, or a bracket that closes nothing.
    pub(super) dead: bool,
    /// Only the parser knows how to read on: a slash divides or starts a regular expression.
    pub(super) unsure: bool,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(code: &'a str) -> Self {
        let mut lexer = Self {
            code: code.as_bytes(),
            at: 0,
            outer: Vec::new(),
            level: Level::default(),
            waiting: 0,
            before: Before::Operator,
            condition: false,
            new_line: true,
            dead: false,
            unsure: false,
        };
        if code.starts_with("#!") {
            lexer.skip_line();
        }
        lexer
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
                // In a script, `-->` at the start of a line begins a comment.
                self.unsure |= byte == b'-' && self.peek(2) == Some(b'>') && self.new_line;
                self.at += 1;
                let before = self.before;
                self.operator(1);
                self.before = if before == Before::Operator { Before::Operator } else { Before::Either };
            }
            b'!' if self.before == Before::Operand && self.peek(1) != Some(b'=') => {
                // TypeScript operators after an operand.
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

    /// Handles the start of an operand. If another one is on the line before, a new statement begins.
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
        if CONTINUING.contains(&word) {
            self.new_line = false;
        } else {
            self.operand();
        }
        self.condition = matches!(word, b"if" | b"for" | b"while" | b"with") || (word == b"await" && self.condition);
        if is_operator(word) {
            self.level.operators += 1;
            self.before = if AMBIGUOUS.contains(&word) { Before::Either } else { Before::Operator };
        } else {
            self.before = if AMBIGUOUS.contains(&word) { Before::Either } else { Before::Operand };
        }
        self.new_line = false;
    }

    fn open(&mut self, byte: u8) {
        // A bracket may continue the expression before it, a block does not.
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

    /// Reads the text of a template, up to its end or to the next `${`.
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
                    // A line continues after both bytes of its end.
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
                let rest = &self.code[self.at + 2..];
                let end = rest.windows(2).position(|pair| pair == b"*/");
                self.dead |= end.is_none();
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

    /// Reads a regular expression.
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
