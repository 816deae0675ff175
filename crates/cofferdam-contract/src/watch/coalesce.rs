//! Coalescing of changes, as a pure data structure.
//!
//! Changes of one path become one. A renamed file is a removed and a created path until its batch is taken, so that
//! programs that replace files again and again cost two paths. A renamed directory ends a segment: what was reported
//! before it has the old names, what follows has the new ones.

use std::collections::{BTreeMap, BTreeSet};

use crate::{SandboxPath, WatchEvent};

/// The maximum number of bytes of the paths of one batch.
const MAX_BYTES: usize = 4 << 20;

/// A change as a backend sees it, in the order in which changes happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchChange {
    /// A file, link or directory appeared, or replaced a file.
    Created(SandboxPath),
    /// Contents or attributes changed.
    Changed(SandboxPath),
    /// A file, link or directory disappeared, with all beneath it.
    Removed(SandboxPath),
    /// A file, link or directory has another path, with all beneath it. What had this path is gone.
    Renamed {
        /// The former path.
        from: SandboxPath,
        /// The new path.
        to: SandboxPath,
        /// True for a directory.
        directory: bool,
    },
    /// Changes were lost.
    Lost,
}

impl WatchChange {
    /// Returns the change of an entry whose path a guest chose. A path that the file API cannot name becomes a change
    /// of the nearest directory that it can.
    pub fn of(path: &[u8], change: impl FnOnce(SandboxPath) -> Self) -> Self {
        named(path).map_or_else(|| Self::Changed(nearest(path)), change)
    }

    /// Returns the changes of a renamed entry, like [`Self::of`].
    pub fn of_rename(from: &[u8], to: &[u8], directory: bool) -> Vec<Self> {
        match (named(from), named(to)) {
            (Some(from), Some(to)) => vec![Self::Renamed { from, to, directory }],
            // Its contents were not reported under their former names.
            (None, Some(_)) if directory => vec![Self::Lost],
            _ => vec![Self::of(from, Self::Removed), Self::of(to, Self::Created)],
        }
    }
}

fn named(path: &[u8]) -> Option<SandboxPath> {
    SandboxPath::new(std::str::from_utf8(path).ok()?).ok().filter(|named| named.as_str().len() == path.len())
}

fn nearest(path: &[u8]) -> SandboxPath {
    let slashes = path.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    slashes.map(|at| &path[..at]).find_map(named).unwrap_or_default()
}

/// The changes of one path in a segment. If several are set, they happened in this order.
#[derive(Debug, Default)]
struct Entry {
    removed: bool,
    created: bool,
    /// The path under which a created file was known before the segment.
    from: Option<SandboxPath>,
    changed: bool,
}

impl Entry {
    /// Returns true if the path does not exist any more.
    fn is_gone(&self) -> bool {
        self.removed && !self.created
    }
}

/// Changes without a renamed directory among them, and the rename that ends them.
#[derive(Debug, Default)]
struct Segment {
    entries: BTreeMap<SandboxPath, Entry>,
    rename: Option<(SandboxPath, SandboxPath)>,
}

/// Changes that were not delivered yet.
///
/// A set of paths that the taken events are applied to is equal to a set that the changes are applied to. A path that
/// is created and removed is reported as removed, because a reader that lists files meanwhile may have seen it.
#[derive(Debug)]
pub struct Coalescer {
    segments: Vec<Segment>,
    /// The number of paths and renames.
    count: usize,
    bytes: usize,
    max_pending: usize,
    overflowed: bool,
}

impl Coalescer {
    /// Creates an empty coalescer for at most `max_pending` paths.
    #[must_use]
    pub fn new(max_pending: usize) -> Self {
        Self { segments: Vec::new(), count: 0, bytes: 0, max_pending, overflowed: false }
    }

    /// Returns true if there is no event.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0 && !self.overflowed
    }

    /// Adds a change.
    pub fn add(&mut self, change: WatchChange) {
        if self.overflowed {
            return;
        }
        match change {
            WatchChange::Created(path) => self.entry(path).created = true,
            WatchChange::Changed(path) => {
                let entry = self.entry(path);
                entry.changed |= !entry.is_gone();
            }
            WatchChange::Removed(path) => self.remove(path),
            WatchChange::Renamed { from, to, directory: false } => self.rename_file(from, to),
            WatchChange::Renamed { from, to, directory: true } => {
                self.charge(1, from.as_str().len() + to.as_str().len());
                self.segment().rename = Some((from, to));
            }
            WatchChange::Lost => self.overflow(),
        }
        if self.count > self.max_pending || self.bytes > MAX_BYTES {
            self.overflow();
        }
    }

    /// Takes all events. Afterwards the coalescer is empty.
    pub fn take(&mut self) -> Vec<WatchEvent> {
        let overflowed = self.overflowed;
        let segments = std::mem::take(&mut self.segments);
        *self = Self::new(self.max_pending);
        if overflowed { vec![WatchEvent::Overflow] } else { segments.into_iter().flat_map(Segment::events).collect() }
    }

    fn overflow(&mut self) {
        *self = Self { overflowed: true, ..Self::new(self.max_pending) };
    }

    fn charge(&mut self, count: usize, bytes: usize) {
        self.count += count;
        self.bytes += bytes;
    }

    /// Returns the segment of the next change.
    fn segment(&mut self) -> &mut Segment {
        if self.segments.last().is_none_or(|segment| segment.rename.is_some()) {
            self.segments.push(Segment::default());
        }
        let last = self.segments.len() - 1;
        &mut self.segments[last]
    }

    fn entry(&mut self, path: SandboxPath) -> &mut Entry {
        let length = path.as_str().len();
        if !self.segment().entries.contains_key(&path) {
            self.charge(1, length);
        }
        self.segment().entries.entry(path).or_default()
    }

    fn remove(&mut self, path: SandboxPath) {
        let beneath: Vec<_> = self.segment().beneath(&path).cloned().collect();
        for path in beneath {
            self.segment().entries.remove(&path);
            self.count -= 1;
            self.bytes -= path.as_str().len();
        }
        *self.entry(path) = Entry { removed: true, ..Entry::default() };
    }

    fn rename_file(&mut self, from: SandboxPath, to: SandboxPath) {
        let before = self.segment().entries.remove(&from);
        let (origin, changed) = match &before {
            None => (Some(from.clone()), false),
            Some(entry) if entry.created => (entry.from.clone(), entry.changed),
            Some(entry) => (Some(from.clone()).filter(|_| !entry.removed), entry.changed),
        };
        if before.is_some() {
            self.count -= 1;
            self.bytes -= from.as_str().len();
        }
        self.remove(from);
        let replaced = self.segment().entries.get(&to).is_some_and(|entry| entry.removed);
        *self.entry(to) = Entry { removed: replaced, created: true, from: origin, changed };
    }
}

impl Segment {
    /// Returns the paths beneath a directory that have changes.
    fn beneath(&self, path: &SandboxPath) -> impl Iterator<Item = &SandboxPath> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        // All between "path/" and "path0", the next text that does not begin with it.
        let (first, after) = (format!("{}/", path.as_str()), format!("{}0", path.as_str()));
        let bounds = match path.is_workspace() {
            true => (Excluded(""), Unbounded),
            false => (Included(first.as_str()), Excluded(after.as_str())),
        };
        self.entries.range::<str, _>(bounds).map(|(path, _)| path)
    }

    fn events(self) -> Vec<WatchEvent> {
        let Self { entries, rename } = self;
        let is_gone = |path: &SandboxPath| entries.get(path).is_some_and(Entry::is_gone);
        let renamed: BTreeSet<SandboxPath> =
            entries.values().filter_map(|entry| entry.from.clone()).filter(is_gone).collect();
        let mut events = Vec::new();
        for (path, Entry { removed, created, from, changed }) in entries {
            // The event of the new path covers this one.
            if renamed.contains(&path) && !created {
                continue;
            }
            if removed {
                events.push(WatchEvent::Removed(path.clone()));
            }
            let origin = from.filter(|from| renamed.contains(from));
            let is_new = created && origin.is_none();
            match origin {
                Some(from) => events.push(WatchEvent::Renamed { from, to: path.clone() }),
                None if created => events.push(WatchEvent::Created(path.clone())),
                None => {}
            }
            if changed && !is_new {
                events.push(WatchEvent::Changed(path));
            }
        }
        events.extend(rename.map(|(from, to)| WatchEvent::Renamed { from, to }));
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> SandboxPath {
        SandboxPath::new(text).unwrap()
    }

    fn created(text: &str) -> WatchChange {
        WatchChange::Created(path(text))
    }

    fn changed(text: &str) -> WatchChange {
        WatchChange::Changed(path(text))
    }

    fn removed(text: &str) -> WatchChange {
        WatchChange::Removed(path(text))
    }

    fn renamed(from: &str, to: &str, directory: bool) -> WatchChange {
        WatchChange::Renamed { from: path(from), to: path(to), directory }
    }

    fn coalesced(changes: impl IntoIterator<Item = WatchChange>) -> Vec<String> {
        let mut coalescer = Coalescer::new(100);
        changes.into_iter().for_each(|change| coalescer.add(change));
        coalescer.take().iter().map(shown).collect()
    }

    fn shown(event: &WatchEvent) -> String {
        match event {
            WatchEvent::Created(path) => format!("+{}", path.as_str()),
            WatchEvent::Changed(path) => format!("*{}", path.as_str()),
            WatchEvent::Removed(path) => format!("-{}", path.as_str()),
            WatchEvent::Renamed { from, to } => format!("{}>{}", from.as_str(), to.as_str()),
            WatchEvent::Overflow => "!".to_owned(),
        }
    }

    #[test]
    fn changes_of_one_path_become_one() {
        assert_eq!(coalesced((0..10_000).map(|_| changed("f"))), ["*f"]);
        assert_eq!(coalesced([created("f"), changed("f"), changed("f")]), ["+f"]);
        assert_eq!(coalesced([changed("f"), removed("f")]), ["-f"]);
        assert_eq!(coalesced([created("f"), removed("f")]), ["-f"]);
        assert_eq!(coalesced([removed("d"), created("d"), created("d/f")]), ["-d", "+d", "+d/f"]);
        assert_eq!(coalesced([created("d/f"), created("d-e"), removed("d/f"), removed("d")]), ["-d", "+d-e"]);
    }

    #[test]
    fn renames_of_files_are_paired_at_the_end() {
        assert_eq!(coalesced([renamed("a", "b", false)]), ["a>b"]);
        assert_eq!(coalesced([changed("a"), renamed("a", "b", false)]), ["a>b", "*b"]);
        assert_eq!(coalesced([renamed("a", "b", false), renamed("b", "c", false)]), ["-b", "a>c"]);
        assert_eq!(coalesced([renamed("a", "b", false), created("a")]), ["-a", "+a", "+b"]);
        let replaced = (0..1000).flat_map(|_| [created("tmp"), changed("tmp"), renamed("tmp", "f", false)]);
        assert_eq!(coalesced(replaced), ["+f", "-tmp"]);
    }

    #[test]
    fn names_that_are_no_text_become_changes_of_their_directory() {
        let directory = WatchChange::Changed(path("a/b"));
        for bytes in [&b"a/b/\xff"[..], b"a/b/\xff/c/d", b"a/b//c", b"a/b/../c"] {
            assert_eq!(WatchChange::of(bytes, WatchChange::Created), directory, "{bytes:?}");
        }
        assert_eq!(WatchChange::of(b"\xff", WatchChange::Removed), WatchChange::Changed(SandboxPath::default()));
        assert_eq!(
            WatchChange::of(b"/workspace/a", WatchChange::Removed),
            WatchChange::Changed(SandboxPath::default())
        );
        assert_eq!(WatchChange::of_rename(b"a", b"b", true), [renamed("a", "b", true)]);
        assert_eq!(WatchChange::of_rename(b"\xff", b"b", true), [WatchChange::Lost]);
        assert_eq!(WatchChange::of_rename(b"a", b"a/b/\xff", true), [removed("a"), directory]);
    }

    #[test]
    fn a_renamed_directory_separates_old_names_from_new_ones() {
        let changes = [created("d/f"), renamed("d", "e", true), changed("e/f"), created("d")];
        assert_eq!(coalesced(changes), ["+d/f", "d>e", "+d", "*e/f"]);
    }

    #[test]
    fn overflow_is_reported_once_and_frees_all() {
        let mut coalescer = Coalescer::new(10);
        (0..1000).for_each(|number| coalescer.add(created(&format!("f{number}"))));
        assert!(!coalescer.is_empty());
        assert_eq!(coalescer.segments.len(), 0);
        assert_eq!(coalescer.take(), [WatchEvent::Overflow]);
        assert!(coalescer.is_empty());
        coalescer.add(created("g"));
        assert_eq!(coalescer.take(), [WatchEvent::Created(path("g"))]);
        let long = "n".repeat(255) + &("/".to_owned() + &"n".repeat(255)).repeat(14);
        let mut coalescer = Coalescer::new(usize::MAX);
        (0..2000).for_each(|number| coalescer.add(created(&format!("{number}/{long}"))));
        assert_eq!(coalescer.take(), [WatchEvent::Overflow]);
    }

    /// A reader's set of paths, and the directory tree of a test.
    #[derive(Default, Clone, Debug, PartialEq)]
    struct Paths(BTreeSet<SandboxPath>);

    impl Paths {
        fn remove(&mut self, path: &SandboxPath) {
            self.0.retain(|other| other != path && !other.is_beneath(path));
        }

        fn rename(&mut self, from: &SandboxPath, to: &SandboxPath) {
            self.remove(to);
            let moved: Vec<_> = self.0.iter().filter(|path| path.is_beneath(from)).cloned().collect();
            self.remove(from);
            let tails = moved.iter().map(|path| &path.as_str()[from.as_str().len()..]);
            self.0.extend(tails.map(|tail| self::path(&format!("{}{tail}", to.as_str()))));
            self.0.insert(to.clone());
        }

        fn apply(&mut self, event: &WatchEvent) {
            match event {
                WatchEvent::Created(path) => drop(self.0.insert(path.clone())),
                WatchEvent::Removed(path) => self.remove(path),
                WatchEvent::Renamed { from, to } => self.rename(from, to),
                WatchEvent::Changed(_) | WatchEvent::Overflow => {}
            }
        }
    }

    /// Turns numbers into a possible change of a tree: `true` in the map is a directory. Returns what a kernel reports.
    fn step(
        tree: &mut BTreeMap<SandboxPath, bool>,
        kind: u8,
        one: &SandboxPath,
        other: &SandboxPath,
    ) -> Vec<WatchChange> {
        let has_parent = |tree: &BTreeMap<SandboxPath, bool>, path: &SandboxPath| {
            path.as_str().rsplit_once('/').is_none_or(|(above, _)| tree.get(&self::path(above)) == Some(&true))
        };
        match (kind % 5, tree.get(one).copied()) {
            (0 | 1, None) if has_parent(tree, one) => {
                tree.insert(one.clone(), kind.is_multiple_of(5));
                vec![WatchChange::Created(one.clone())]
            }
            (2, Some(_)) => vec![WatchChange::Changed(one.clone())],
            (3, Some(_)) => {
                let gone: Vec<_> = tree.keys().filter(|path| *path == one || path.is_beneath(one)).cloned().collect();
                tree.retain(|path, _| !gone.contains(path));
                gone.into_iter().rev().map(WatchChange::Removed).collect()
            }
            (4, Some(directory)) if one != other && !other.is_beneath(one) && has_parent(tree, other) => {
                let is_allowed = match tree.get(other) {
                    None => true,
                    Some(false) => !directory,
                    Some(true) => directory && !tree.keys().any(|path| path.is_beneath(other)),
                };
                if !is_allowed {
                    return Vec::new();
                }
                let moved: Vec<_> = tree.keys().filter(|path| *path == one || path.is_beneath(one)).cloned().collect();
                for path in moved {
                    let kind = tree.remove(&path).unwrap();
                    tree.insert(
                        self::path(&format!("{}{}", other.as_str(), &path.as_str()[one.as_str().len()..])),
                        kind,
                    );
                }
                vec![WatchChange::Renamed { from: one.clone(), to: other.clone(), directory }]
            }
            _ => Vec::new(),
        }
    }

    fn any_path() -> impl Strategy<Value = SandboxPath> {
        prop::collection::vec("[ab]|a-", 1..4).prop_map(|parts| path(&parts.join("/")))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Promise (Files): Coalesced events of a watch lead to the same set of files as all single changes.
        #[test]
        fn coalesced_events_lead_to_the_same_set(
            steps in prop::collection::vec((0u8..5, any_path(), any_path(), prop::bool::weighted(0.1)), 1..60),
        ) {
            let (mut tree, mut seen) = (BTreeMap::new(), Paths::default());
            let mut coalescer = Coalescer::new(1000);
            for (kind, one, other, take) in steps {
                step(&mut tree, kind, &one, &other).into_iter().for_each(|change| coalescer.add(change));
                if take {
                    coalescer.take().iter().for_each(|event| seen.apply(event));
                    prop_assert_eq!(&seen.0, &tree.keys().cloned().collect());
                }
            }
            coalescer.take().iter().for_each(|event| seen.apply(event));
            prop_assert_eq!(&seen.0, &tree.keys().cloned().collect());
            prop_assert!(coalescer.count == 0 && coalescer.bytes == 0);
        }

        /// Promise (Files): A reader that lists files between two changes of a watch has the same set after the events.
        #[test]
        fn a_list_between_changes_is_corrected(
            steps in prop::collection::vec((0u8..5, any_path(), any_path()), 1..40), at in 0usize..40,
        ) {
            let (mut tree, mut seen) = (BTreeMap::new(), Paths::default());
            let mut coalescer = Coalescer::new(1000);
            for (number, (kind, one, other)) in steps.into_iter().enumerate() {
                step(&mut tree, kind, &one, &other).into_iter().for_each(|change| coalescer.add(change));
                if number == at {
                    seen.0 = tree.keys().cloned().collect();
                }
            }
            let after = coalescer.take();
            // A list that is newer than a rename of a directory has paths that the rename does not move.
            prop_assume!(!after.iter().any(|event| matches!(event, WatchEvent::Renamed { .. })));
            after.iter().for_each(|event| seen.apply(event));
            prop_assert_eq!(&seen.0, &tree.keys().cloned().collect());
        }

        #[test]
        fn any_changes_are_bounded(
            changes in prop::collection::vec((0u8..5, any_path(), any_path(), any::<bool>()), 1..200), max in 1usize..20,
        ) {
            let mut coalescer = Coalescer::new(max);
            for (kind, one, other, directory) in changes {
                coalescer.add(match kind {
                    0 => WatchChange::Created(one),
                    1 => WatchChange::Changed(one),
                    2 => WatchChange::Removed(one),
                    _ => WatchChange::Renamed { from: one, to: other, directory },
                });
                let held: usize = coalescer.segments.iter().map(|it| it.entries.len() + usize::from(it.rename.is_some())).sum();
                prop_assert_eq!(held, coalescer.count);
                prop_assert!(held <= max);
            }
            prop_assert!(coalescer.take().len() <= 3 * max);
        }
    }
}
