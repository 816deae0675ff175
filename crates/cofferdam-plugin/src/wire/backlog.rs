//! The items of streams that wait for their callers, with one bound for all streams of a plugin.
//!
//! Where the bound is reached, the caller with the most waiting bytes loses its largest stream. A caller within its
//! share, which is the bound divided by the number of callers with waiting items, loses none.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::peer::StreamItem;

/// The maximum size of all waiting items, in bytes.
pub const MAX_WAITING: usize = 64 << 20;
/// The maximum number of waiting items of one stream that are not progress.
pub const STREAM_CREDIT: usize = 64;

#[derive(Default)]
struct Stream {
    caller: String,
    items: VecDeque<(StreamItem, usize)>,
    bytes: usize,
    /// True once no more items come.
    is_closed: bool,
    /// True once the stream was cut, which discards its items.
    is_cut: bool,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct State {
    bytes: usize,
    next: u64,
    streams: HashMap<u64, Stream>,
}

impl State {
    /// Cuts the largest stream of the caller with the most waiting bytes.
    fn cut_largest(&mut self) {
        let mut callers = HashMap::<&str, usize>::new();
        for stream in self.streams.values() {
            *callers.entry(&stream.caller).or_default() += stream.bytes;
        }
        let largest = self.streams.iter().max_by_key(|(_, stream)| (callers[&*stream.caller], stream.bytes));
        let Some(stream) = largest.map(|(id, _)| *id).and_then(|id| self.streams.get_mut(&id)) else { return };
        self.bytes -= std::mem::take(&mut stream.bytes);
        stream.items = VecDeque::new();
        stream.is_cut = true;
        stream.changed.notify_one();
    }
}

/// All streams of a plugin.
#[derive(Clone, Default)]
pub struct Backlog(Arc<Mutex<State>>);

impl Backlog {
    /// Opens a stream for a caller.
    pub fn open(&self, caller: &str) -> (Sender, Receiver) {
        let changed = Arc::new(Notify::new());
        let stream = Stream { caller: caller.to_owned(), changed: Arc::clone(&changed), ..Stream::default() };
        let mut state = self.0.lock();
        let id = state.next;
        state.next += 1;
        state.streams.insert(id, stream);
        (Sender { backlog: self.clone(), id }, Receiver { backlog: self.clone(), id, changed })
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.0.lock().bytes
    }
}

/// The plugin's end of a stream. Dropping it ends the stream.
pub struct Sender {
    backlog: Backlog,
    id: u64,
}

impl Sender {
    /// Adds an item of a size. Cuts streams until all waiting items are within the bound. Returns false if the caller
    /// takes no items any more.
    pub fn push(&self, item: StreamItem, size: usize) -> bool {
        let mut state = self.backlog.0.lock();
        let bytes = state.bytes;
        let Some(stream) = state.streams.get_mut(&self.id).filter(|stream| !stream.is_cut) else {
            return false;
        };
        let is_crowded = stream.items.len() >= STREAM_CREDIT || bytes + size > MAX_WAITING;
        // Progress is worth nothing later, so it never takes the room of items.
        if is_crowded && matches!(item, StreamItem::Progress(_)) {
            return false;
        }
        stream.items.push_back((item, size));
        stream.bytes += size;
        stream.changed.notify_one();
        state.bytes += size;
        while state.bytes > MAX_WAITING {
            state.cut_largest();
        }
        !state.streams[&self.id].is_cut
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if let Some(stream) = self.backlog.0.lock().streams.get_mut(&self.id) {
            stream.is_closed = true;
            stream.changed.notify_one();
        }
    }
}

/// The end of a stream without its items.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The caller has taken all items.
    Closed,
    /// The caller was too slow. Its waiting items are lost.
    Cut,
}

/// The caller's end of a stream. Dropping it discards the items.
pub struct Receiver {
    backlog: Backlog,
    id: u64,
    changed: Arc<Notify>,
}

impl Receiver {
    /// Takes the next item, and waits for it. A dropped future loses nothing.
    pub async fn next(&self) -> Result<StreamItem, End> {
        loop {
            if let Some(next) = self.take() {
                return next;
            }
            self.changed.notified().await;
        }
    }

    /// Waits until the stream is cut.
    pub async fn cut(&self) {
        while !self.backlog.0.lock().streams.get(&self.id).is_some_and(|stream| stream.is_cut) {
            self.changed.notified().await;
        }
    }

    fn take(&self) -> Option<Result<StreamItem, End>> {
        let mut state = self.backlog.0.lock();
        let stream = state.streams.get_mut(&self.id)?;
        if stream.is_cut {
            return Some(Err(End::Cut));
        }
        let Some((item, size)) = stream.items.pop_front() else {
            return stream.is_closed.then_some(Err(End::Closed));
        };
        stream.bytes -= size;
        state.bytes -= size;
        Some(Ok(item))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut state = self.backlog.0.lock();
        if let Some(stream) = state.streams.remove(&self.id) {
            state.bytes -= stream.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const MIB: usize = 1 << 20;

    fn push(stream: &(Sender, Receiver), size: usize) -> bool {
        let pushed = stream.0.push(StreamItem::Item(Value::Null), size);
        assert!(stream.0.backlog.bytes() <= MAX_WAITING);
        pushed
    }

    /// Promise (Plugins): A client with many slow streams does not take the room of another client.
    #[test]
    fn callers_within_their_share_lose_nothing() {
        let backlog = Backlog::default();
        let modest = backlog.open("modest");
        for _ in 0..4 {
            assert!(push(&modest, 8 * MIB - 1));
        }
        let greedy: Vec<_> = (0..64).map(|_| backlog.open("greedy")).collect();
        let lost = |stream: &&(Sender, Receiver)| matches!(stream.1.take(), Some(Err(End::Cut)));
        for stream in &greedy {
            push(stream, 8 * MIB);
        }
        assert_eq!(greedy.iter().filter(lost).count(), 60);
        assert!((0..4).all(|_| matches!(modest.1.take(), Some(Ok(_)))));
        assert!(push(&modest, 8 * MIB));
        drop((modest, greedy));
        assert_eq!((backlog.bytes(), backlog.0.lock().streams.len()), (0, 0));
    }

    #[test]
    fn a_lone_caller_may_use_all_room_and_progress_none_of_others() {
        let backlog = Backlog::default();
        let lone = backlog.open("a");
        for _ in 0..8 {
            assert!(push(&lone, 8 * MIB));
        }
        let other = backlog.open("b");
        assert!(!other.0.push(StreamItem::Progress(Value::Null), 1));
        assert!(matches!(lone.1.take(), Some(Ok(_))));
        assert!(push(&lone, 8 * MIB));
        assert!(!push(&lone, 1));
        assert!(matches!(lone.1.take(), Some(Err(End::Cut))));
        assert!(!push(&lone, 1));
        assert_eq!(backlog.bytes(), 0);
    }
}
