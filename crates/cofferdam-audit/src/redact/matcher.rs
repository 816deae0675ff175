//! Finds many patterns at once in one pass, however they overlap (Aho and Corasick, 1975).

use std::collections::VecDeque;

/// No node.
const NONE: u32 = 0;

/// One state: the longest beginning of a pattern that the text ends with.
#[derive(Clone, Copy)]
struct Node {
    /// The byte that leads here.
    byte: u8,
    first_child: u32,
    next_sibling: u32,
    /// The state for the longest shorter beginning.
    fail: u32,
    depth: u32,
    /// The longest pattern that the text ends with here: the secret it belongs to and its length, or length 0.
    secret: u32,
    length: u32,
}

/// Patterns, ready to be looked for. State 0 is where a text begins.
pub(super) struct Matcher {
    nodes: Vec<Node>,
    /// The children of the root, by byte.
    roots: Vec<u32>,
}

impl Matcher {
    /// Of patterns that are not empty, with the number of the secret each belongs to.
    pub fn new(patterns: &[(Vec<u8>, usize)]) -> Self {
        let root = Node { byte: 0, first_child: NONE, next_sibling: NONE, fail: 0, depth: 0, secret: 0, length: 0 };
        let mut matcher = Self { nodes: vec![root], roots: vec![NONE; 256] };
        for (pattern, secret) in patterns {
            matcher.add(pattern, *secret as u32);
        }
        matcher.link();
        matcher
    }

    /// The state after one more byte.
    pub fn step(&self, mut state: u32, byte: u8) -> u32 {
        loop {
            let child = self.child(state, byte);
            if child != NONE || state == 0 {
                return child;
            }
            state = self.nodes[state as usize].fail;
        }
    }

    /// The secret and the length of the longest pattern that ends here.
    pub fn found(&self, state: u32) -> Option<(usize, u32)> {
        let node = &self.nodes[state as usize];
        (node.length > 0).then_some((node.secret as usize, node.length))
    }

    /// How many of the last bytes may be the beginning of a pattern.
    pub fn depth(&self, state: u32) -> u32 {
        self.nodes[state as usize].depth
    }

    fn child(&self, state: u32, byte: u8) -> u32 {
        if state == 0 {
            return self.roots[usize::from(byte)];
        }
        let mut child = self.nodes[state as usize].first_child;
        while child != NONE && self.nodes[child as usize].byte != byte {
            child = self.nodes[child as usize].next_sibling;
        }
        child
    }

    fn add(&mut self, pattern: &[u8], secret: u32) {
        let mut state = 0;
        for (index, byte) in pattern.iter().enumerate() {
            let child = self.child(state, *byte);
            state = if child != NONE { child } else { self.grow(state, *byte, index as u32 + 1) };
        }
        let node = &mut self.nodes[state as usize];
        if node.length == 0 {
            (node.secret, node.length) = (secret, pattern.len() as u32);
        }
    }

    fn grow(&mut self, parent: u32, byte: u8, depth: u32) -> u32 {
        let new = self.nodes.len() as u32;
        let next_sibling = if parent == 0 { NONE } else { self.nodes[parent as usize].first_child };
        self.nodes.push(Node { byte, first_child: NONE, next_sibling, fail: 0, depth, secret: 0, length: 0 });
        if parent == 0 {
            self.roots[usize::from(byte)] = new;
        } else {
            self.nodes[parent as usize].first_child = new;
        }
        new
    }

    /// Sets where each state falls back to, the shallow ones first.
    fn link(&mut self) {
        let mut queue: VecDeque<u32> = self.roots.iter().copied().filter(|root| *root != NONE).collect();
        while let Some(state) = queue.pop_front() {
            let node = self.nodes[state as usize];
            let mut child = node.first_child;
            while child != NONE {
                let fail = self.step(node.fail, self.nodes[child as usize].byte);
                let shorter = self.nodes[fail as usize];
                let own = &mut self.nodes[child as usize];
                own.fail = fail;
                if own.length == 0 {
                    (own.secret, own.length) = (shorter.secret, shorter.length);
                }
                queue.push_back(child);
                child = own.next_sibling;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The same as a search that compares everywhere.
        #[test]
        fn it_finds_the_longest_pattern_at_each_place(
            patterns in proptest::collection::vec("[ab]{1,5}", 0..6),
            text in "[abc]{0,40}",
        ) {
            let numbered: Vec<_> = patterns.iter().enumerate().map(|(n, p)| (p.clone().into_bytes(), n)).collect();
            let matcher = Matcher::new(&numbered);
            let mut state = 0;
            for end in 1..=text.len() {
                state = matcher.step(state, text.as_bytes()[end - 1]);
                let longest = patterns.iter().filter(|p| text[..end].ends_with(p.as_str())).map(String::len).max();
                prop_assert_eq!(matcher.found(state).map(|(_, length)| length as usize), longest);
                let begins = (0..=end).find(|at| patterns.iter().any(|p| p.starts_with(&text[*at..end]))).unwrap_or(end);
                prop_assert_eq!(matcher.depth(state) as usize, end - begins);
            }
        }
    }
}
