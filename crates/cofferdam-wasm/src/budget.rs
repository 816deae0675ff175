//! A memory limit for decoding: one byte of a file can expand to a hundred bytes in memory.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// The memory charged for an element that owns an allocation.
const OWN: u64 = 64;

thread_local! {
    /// The bytes that lists can still allocate on this thread.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Runs `decode`, in which all [`list`]s together allocate at most `bytes`.
pub(crate) fn within<T>(bytes: u64, decode: impl FnOnce() -> T) -> T {
    LEFT.set(bytes);
    let decoded = decode();
    LEFT.set(0);
    decoded
}

/// Decodes a list and charges its elements before storing them. Outside of [`within`] the budget is zero.
pub(crate) fn list<'a, D: Deserializer<'a>, T: Deserialize<'a>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_seq(List(PhantomData))
}

struct List<T>(PhantomData<T>);

impl<'a, T: Deserialize<'a>> Visitor<'a> for List<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
        // A growing list has up to twice the capacity that it needs.
        let own = if std::mem::needs_drop::<T>() { OWN } else { 0 };
        let each = 2 * size_of::<T>() as u64 + own;
        let mut list = Vec::new();
        while let Some(element) = elements.next_element()? {
            let left = LEFT.get().checked_sub(each).ok_or_else(|| A::Error::custom("it needs too much memory"))?;
            LEFT.set(left);
            list.push(element);
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct Lists {
        #[serde(deserialize_with = "list")]
        first: Vec<(u64, u64)>,
        #[serde(deserialize_with = "list")]
        second: Vec<String>,
    }

    #[test]
    fn all_lists_together_stay_within_the_bound() {
        let bytes = postcard::to_stdvec(&(vec![(1u64, 2u64); 10], vec![String::new(); 10])).unwrap();
        let needed = 10 * 32 + 10 * (48 + OWN);
        let read = |bound| within(bound, || postcard::from_bytes::<Lists>(&bytes));
        let lists = read(needed).unwrap();
        assert_eq!((lists.first.len(), lists.second.len()), (10, 10));
        assert!(read(needed - 1).is_err());
        assert!(postcard::from_bytes::<Lists>(&bytes).is_err());
    }
}
