//! Change sets of copy-on-write workspaces: format, capture, review, conflicts, application, storage.
//!
//! A sandbox can have a copy-on-write workspace: the guest sees a directory of the host, all its writes go to a private
//! layer, and the directory stays unchanged. At the end, the writes are captured as a change set, which a person
//! reviews and applies.
//!
//! ```text
//! upper directory of an overlay --capture_overlay--> change set --Store::keep--> file
//! full copy of the workspace --capture_comparison--> change set --Store::keep--> file
//! file --ChangeSet::read--> checked changes --render, document--> review --apply--> workspace, conflicts, refusals
//! ```
//!
//! Everything in a change set is untrusted, since the guest made it: names, sizes, links, counts, contents. The reader
//! accepts nothing but what the format allows, the review shows no control characters, and the application never leaves
//! the workspace, never overwrites a change of the host, and never writes a file that the host would execute unasked.
//! The crate needs no sandbox, and its API is blocking.
//!
//! # Format
//!
//! A change set is an uncompressed layer of an OCI image: a tar of files, directories and symbolic links. Hard links
//! become separate files. A file `.wh.NAME` deletes `NAME`, and `.wh..wh..opq` deletes everything in its directory that
//! the layer does not contain. Paths are relative to the workspace. Extended records have what a layer has no field
//! for. A reader that does not know them ignores them.
//!
//! | record | of | value |
//! |---|---|---|
//! | `COFFERDAM.format` | the archive | version of the format, `1` |
//! | `COFFERDAM.workspace` | the archive | absolute path of the workspace |
//! | `COFFERDAM.started` | the archive | time at which the sandbox began, in nanoseconds since the epoch |
//! | `COFFERDAM.device`, `COFFERDAM.inode` | the archive | identity of the workspace |
//! | `COFFERDAM.base` | an entry | file that it replaces or deletes: type, size, mtime, ctime, inode, octal mode |
//! | `COFFERDAM.tree` | an entry | number of files and SHA-256 of a directory tree that it replaces or deletes |
//!
//! The first five are in a global extended header, which is the first member. An entry without `COFFERDAM.base`
//! replaces nothing. Owners and modification times of new files are not recorded, nor are extended attributes.
//!
//! # Conflicts
//!
//! A change is a conflict if its file in the workspace differs from the recorded one, or changed at or after the
//! start of the sandbox. The host's file stays, and the guest's version is written beside it as `NAME.cofferdam-new`.
//!
//! # Where to look
//!
//! - Format: `layer.rs` writes it, `blocks.rs` reads members, `read.rs` checks them. `pax.rs` and `names.rs` are pure.
//! - Capture: `capture.rs`; marks of overlayfs: `overlay.rs`.
//! - Review: `resolve.rs` compares with the workspace, `diff.rs` compares lines, `render.rs` prints, `document.rs` has
//!   the form as data, `text.rs` makes guest bytes printable.
//! - Application: `apply/mod.rs`; what is refused: `apply/refuse.rs`. Guarded files: the table in `guarded.rs`; links
//!   of the host to them: `aliases.rs`. Cofferdam's own directories: `own.rs`. Conflicts: `conflict.rs`. One application at a time: `apply/lock.rs`; what a
//!   killed one left: `apply/leftovers.rs`.
//! - Copies between the host and sandboxes, and copy-on-write workspaces of backends without overlays: `sandbox/`.
//! - Stored change sets: `store.rs`; files elsewhere: `saved.rs`; removal of a part: `discard.rs`; those of sandboxes that end: `sandbox/keep.rs`.
//! - Access to the workspace, beneath descriptors and never through links: `tree.rs`.
#![forbid(unsafe_code)]

mod aliases;
mod apply;
mod blocks;
mod bounds;
mod capture;
mod change;
mod conflict;
mod diff;
mod discard;
mod document;
mod error;
mod fingerprint;
mod glob;
mod guarded;
mod header;
mod layer;
mod names;
mod overlay;
mod own;
mod pax;
mod read;
mod render;
mod resolve;
#[cfg(feature = "sandbox")]
pub mod sandbox;
mod saved;
mod store;
pub mod text;
mod tree;

pub use apply::{
    Applied, ApplyOptions, Effect, Existing, NEW_SUFFIX, Refusal, Refused, Workspace, apply, conflicts, effect,
    is_applied,
};
pub use bounds::{Bounds, MAX_BYTES, MAX_DEPTH, MAX_ENTRIES, MAX_NAME, MAX_PATH};
pub use capture::{MAX_SKIPPED, SkipReason, Skipped, Summary, capture_comparison, capture_overlay};
pub use change::{Change, Kind, Node};
pub use conflict::{Cause, Conflict};
pub use diff::MAX_TEXT;
pub use discard::{Discarded, would_discard};
pub use document::{Document, DocumentChange, document};
pub use error::{ChangesError, Result};
pub use fingerprint::{Base, FileKind, Fingerprint, TreeDigest};
pub use glob::Globs;
pub use header::{FORMAT, Header};
pub use layer::LayerWriter;
pub use overlay::Marks;
pub use own::OwnDirectories;
pub use read::{ChangeSet, Content};
pub use render::{Color, RenderOptions, Stat, render};
pub use resolve::resolve;
pub use saved::{SavedFile, open_saved};
pub use store::{Id, MAX_STORE_AGE, MAX_STORE_BYTES, Store, StoreLimits, StoredContents, StoredSet};
