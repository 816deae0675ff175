//! What screening knows about a value of the program without running it.

use std::rc::Rc;

/// How many values an expression may have that are told apart.
const MOST_VALUES: usize = 8;
/// Bytes of a text that is put together.
pub(crate) const MOST_TEXT: usize = 64 << 10;

/// Levels of lists in lists, which are dropped by recursion.
const MOST_LIST_LEVELS: u8 = 32;
/// Items of lists, and bytes of a text in them, that are compared.
const MOST_COMPARED: usize = 64;
/// Bytes of a text that is compared with others an expression may be.
const LONGEST_COMPARED: usize = 4 << 10;

/// One thing that an expression may be.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Text(Rc<str>),
    Number(i64),
    List(List),
    Thing(Thing),
}

/// The items of a list, which may themselves be lists.
#[derive(Debug, Clone)]
pub(crate) struct List {
    items: Rc<[Values]>,
    levels: u8,
}

impl List {
    /// Nothing where that would be too many lists in each other.
    fn new(items: Vec<Values>) -> Option<Self> {
        let inner = items.iter().flat_map(Values::lists).map(|list| list.levels).max().unwrap_or(0);
        (inner < MOST_LIST_LEVELS).then(|| Self { items: items.into(), levels: inner + 1 })
    }

    /// Whether both are known to be the same, without a look into the lists in them: one list may be in another many times
    /// over, on every level.
    fn is(&self, other: &Self) -> bool {
        let same = |left: &Value, right: &Value| match (left, right) {
            (Value::List(left), Value::List(right)) => Rc::ptr_eq(&left.items, &right.items),
            (Value::Text(left), Value::Text(right)) => {
                Rc::ptr_eq(left, right) || (left.len() <= MOST_COMPARED && left == right)
            }
            (left, right) => left == right,
        };
        Rc::ptr_eq(&self.items, &other.items)
            || (self.len() <= MOST_COMPARED
                && self.len() == other.len()
                && self.iter().zip(other.iter()).all(|(left, right)| {
                    left.known.len() == right.known.len()
                        && (left.open, left.dropped) == (right.open, right.dropped)
                        && left.known.iter().zip(&right.known).all(|(left, right)| same(left, right))
                }))
    }
}

impl std::ops::Deref for List {
    type Target = [Values];

    fn deref(&self) -> &[Values] {
        &self.items
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            // Long texts of one length that differ in the end alone would each be read again and again.
            (Self::Text(left), Self::Text(right)) => {
                Rc::ptr_eq(left, right) || (left.len() <= LONGEST_COMPARED && left == right)
            }
            (Self::Number(left), Self::Number(right)) => left == right,
            (Self::List(left), Self::List(right)) => left.is(right),
            (Self::Thing(left), Self::Thing(right)) => left == right,
            _ => false,
        }
    }
}

/// A module, a function or an object of the language, by the path that leads to it: `os.system`, `builtins.eval`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Thing {
    pub path: Rc<str>,
    /// It came with an import that was wanted, though it is not wanted itself: `os`, by `import os.path`.
    pub open: bool,
}

/// All that an expression may be. Nothing means that it may be anything.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Values {
    known: Vec<Value>,
    /// It may be something else, too, that nobody knows.
    open: bool,
    /// It may be something that was known, and is not kept.
    dropped: bool,
}

impl Values {
    pub fn unknown() -> Self {
        Self::default()
    }

    pub fn text(text: impl Into<Rc<str>>) -> Self {
        Self::one(Value::Text(text.into()))
    }

    pub fn number(number: i64) -> Self {
        Self::one(Value::Number(number))
    }

    pub fn list(items: Vec<Values>) -> Self {
        List::new(items).map_or_else(Self::unknown, |list| Self::one(Value::List(list)))
    }

    pub fn thing(path: impl Into<Rc<str>>) -> Self {
        Self::one(Value::Thing(Thing { path: path.into(), open: false }))
    }

    pub fn is_unknown(&self) -> bool {
        self.known.is_empty()
    }

    pub fn add(&mut self, other: &Self) {
        self.open |= other.open || other.is_unknown();
        self.dropped |= other.dropped;
        for value in &other.known {
            if self.known.contains(value) {
                continue;
            }
            if self.known.len() < MOST_VALUES {
                self.known.push(value.clone());
                continue;
            }
            self.dropped = true;
            // What leads somewhere is kept rather than a text.
            let other = self.known.iter_mut().find(|known| !matches!(known, Value::Thing(_)));
            if let (Value::Thing(_), Some(other)) = (value, other) {
                *other = value.clone();
            }
        }
    }

    fn one(value: Value) -> Self {
        Self { known: vec![value], open: false, dropped: false }
    }

    /// Whether it may be something that is not among the values.
    pub fn is_open(&self) -> bool {
        self.open || self.dropped || self.is_unknown()
    }

    /// Bytes that its texts and lists take, and items of the lists.
    pub fn size(&self) -> (usize, usize) {
        let texts: usize = self.texts().map(|text| text.len()).sum();
        let items: usize = self.lists().map(|list| list.len()).sum();
        // Each item has values of its own.
        (texts + items.saturating_mul(64), items)
    }

    pub fn has_dropped(&self) -> bool {
        self.dropped
    }

    /// May be whatever else the others may be.
    pub fn open_as(mut self, others: &[&Self]) -> Self {
        self.open |= others.iter().any(|other| other.open);
        self.dropped |= others.iter().any(|other| other.dropped);
        self
    }

    pub fn or(mut self, other: &Self) -> Self {
        self.open |= self.is_unknown();
        self.add(other);
        self
    }

    pub fn iter(&self) -> impl Iterator<Item = &Value> {
        self.known.iter()
    }

    pub fn texts(&self) -> impl Iterator<Item = &Rc<str>> {
        self.known.iter().filter_map(|value| match value {
            Value::Text(text) => Some(text),
            _ => None,
        })
    }

    pub fn things(&self) -> impl Iterator<Item = &Thing> {
        self.known.iter().filter_map(|value| match value {
            Value::Thing(thing) => Some(thing),
            _ => None,
        })
    }

    pub fn lists(&self) -> impl Iterator<Item = &List> {
        self.known.iter().filter_map(|value| match value {
            Value::List(list) => Some(list),
            _ => None,
        })
    }

    pub fn numbers(&self) -> impl Iterator<Item = i64> {
        self.known.iter().filter_map(|value| match value {
            Value::Number(number) => Some(*number),
            _ => None,
        })
    }

    pub fn is_thing(&self, path: &str) -> bool {
        self.things().any(|thing| &*thing.path == path)
    }

    /// What comes of each value.
    pub fn each(&self, mut make: impl FnMut(&Value) -> Self) -> Self {
        let mut made = Self::default();
        for value in &self.known {
            made.add(&make(value));
        }
        made.open_as(&[self])
    }

    /// What comes of each pair.
    pub fn with(&self, other: &Self, mut make: impl FnMut(&Value, &Value) -> Option<Value>) -> Self {
        let mut made = Self::default();
        for left in &self.known {
            for right in &other.known {
                made.add(&make(left, right).map_or_else(Self::unknown, Self::one));
            }
        }
        made.open_as(&[self, other])
    }
}

impl From<Thing> for Values {
    fn from(thing: Thing) -> Self {
        Self::one(Value::Thing(thing))
    }
}

impl Value {
    /// Nothing where that would be too many lists in each other.
    pub fn list(items: Vec<Values>) -> Option<Self> {
        List::new(items).map(Self::List)
    }

    /// As text, where an expression in a text is shown.
    pub fn shown(&self) -> Option<Rc<str>> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Number(number) => Some(number.to_string().into()),
            _ => None,
        }
    }
}

/// Two texts in one, unless that is too long.
pub(crate) fn joined(left: &str, right: &str) -> Option<Value> {
    (left.len() + right.len() <= MOST_TEXT).then(|| Value::Text([left, right].concat().into()))
}

/// The same as values, for what is shown of each part.
pub(crate) fn append(text: &Values, part: &Values) -> Values {
    text.with(part, |text, part| joined(&text.shown()?, &part.shown()?))
}

/// All items with this between them, put together by `append`.
pub(crate) fn join(separator: &str, items: &[Values], mut append: impl FnMut(&Values, &Values) -> Values) -> Values {
    let mut text = Values::text("");
    for (index, item) in items.iter().enumerate() {
        if index > 0 && !separator.is_empty() {
            text = append(&text, &Values::text(separator));
        }
        text = append(&text, item);
        if text.is_unknown() {
            break;
        }
    }
    text
}

/// Every `step`th item from `start` to `end`, as both languages count: from the end where negative.
pub(crate) fn sliced<T: Clone>(items: &[T], start: Option<i64>, end: Option<i64>, step: i64) -> Vec<T> {
    let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
    let place =
        |at: i64, least: i64, most: i64| (if at < 0 { at.saturating_add(length) } else { at }).clamp(least, most);
    let mut taken = Vec::new();
    let (mut at, until) = if step > 0 {
        (start.map_or(0, |at| place(at, 0, length)), end.map_or(length, |at| place(at, 0, length)))
    } else {
        (start.map_or(length - 1, |at| place(at, -1, length - 1)), end.map_or(-1, |at| place(at, -1, length - 1)))
    };
    while step != 0 && if step > 0 { at < until } else { at > until } {
        taken.extend(usize::try_from(at).ok().and_then(|at| items.get(at)).cloned());
        at = at.saturating_add(step);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_python_s() {
        let items = ['a', 'b', 'c', 'd'];
        for (start, end, step, expected) in [
            (None, None, -1, "dcba"),
            (None, None, 2, "ac"),
            (Some(1), Some(3), 1, "bc"),
            (Some(-2), None, 1, "cd"),
            (Some(-1), Some(-3), -1, "dc"),
            (Some(9), None, -2, "db"),
            (None, Some(-9), 1, ""),
            (Some(i64::MIN), Some(i64::MAX), i64::MAX, "a"),
            (None, None, i64::MIN, "d"),
            (None, None, 0, ""),
        ] {
            let slice: String = sliced(&items, start, end, step).into_iter().collect();
            assert_eq!(slice, expected, "{start:?} {end:?} {step}");
        }
    }

    #[test]
    fn joined_texts_stay_short() {
        let long = Values::text("x".repeat(MOST_TEXT / 2));
        assert!(!append(&long, &long).is_unknown());
        assert!(append(&append(&long, &long), &Values::number(1)).is_unknown());
        assert_eq!(join("-", &[Values::text("a"), Values::number(2)], append), Values::text("a-2"));
        assert!(join("", &[Values::text("a"), Values::unknown()], append).is_unknown());
    }
}
