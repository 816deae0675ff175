//! The tasks of the server that run now, for its operator: requests, creates, execs, connections and background tasks.
//!
//! A task is in the list from its start until its guard is dropped. It has ids and states, never output or arguments.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_contract::TenantId;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::tracer;

/// The kind of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TaskKind {
    /// A request.
    Request,
    /// The create of a sandbox.
    Create,
    /// An exec.
    Exec,
    /// A connection that was a request: a WebSocket, or one to a port.
    Stream,
    /// A task of the server itself.
    Background,
}

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TaskState {
    /// It waits for room on the server.
    Queued,
    /// It runs.
    Running,
    /// Its answer has begun.
    Answering,
}

/// A task.
#[derive(Debug, Clone)]
pub struct Task {
    /// The kind.
    pub kind: TaskKind,
    /// The route of a request, the backend of a create or exec, the purpose of others.
    pub name: String,
    /// The state.
    pub state: TaskState,
    /// The tenant.
    pub tenant: Option<TenantId>,
    /// The sandbox.
    pub sandbox: Option<String>,
    /// The exec.
    pub exec: Option<String>,
    /// The trace.
    pub trace: Option<String>,
    /// The start.
    pub begun: Instant,
}

impl Task {
    /// Creates a task that begins now, in the current trace.
    pub fn new(kind: TaskKind, name: impl Into<String>, tenant: Option<&TenantId>) -> Self {
        Self {
            kind,
            name: name.into(),
            state: TaskState::Running,
            tenant: tenant.cloned(),
            sandbox: None,
            exec: None,
            trace: tracer::current().map(|ids| ids.trace_id().to_string()),
            begun: Instant::now(),
        }
    }

    /// Returns the time since its start.
    pub fn age(&self) -> Duration {
        self.begun.elapsed()
    }
}

/// The tasks that run now. Their ids are in the order of their starts.
#[derive(Debug, Default)]
pub struct Tasks(Mutex<Live>);

#[derive(Debug, Default)]
struct Live {
    last: u64,
    tasks: BTreeMap<u64, Task>,
}

/// An entry of the list, until it is dropped.
#[derive(Debug)]
pub struct TaskGuard {
    of: Arc<Tasks>,
    id: u64,
}

impl Tasks {
    /// Adds a task.
    pub fn add(self: &Arc<Self>, task: Task) -> TaskGuard {
        let mut live = self.0.lock();
        live.last += 1;
        let id = live.last;
        live.tasks.insert(id, task);
        TaskGuard { of: Arc::clone(self), id }
    }

    /// Spawns a task of the server itself.
    pub fn spawn<T: Send + 'static>(
        self: &Arc<Self>,
        name: &str,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let guard = self.add(Task::new(TaskKind::Background, name, None));
        tokio::spawn(async move {
            let _guard = guard;
            work.await
        })
    }

    /// Returns the tasks that `wanted` accepts, the oldest first, at most `max`, and the number of all of them.
    pub fn list(&self, max: usize, wanted: impl Fn(&Task) -> bool) -> (Vec<Task>, usize) {
        let live = self.0.lock();
        let total = live.tasks.values().filter(|task| wanted(task)).count();
        (live.tasks.values().filter(|task| wanted(task)).take(max).cloned().collect(), total)
    }
}

impl TaskGuard {
    /// Sets the state.
    pub fn set(&self, state: TaskState) {
        if let Some(task) = self.of.0.lock().tasks.get_mut(&self.id) {
            task.state = state;
        }
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.of.0.lock().tasks.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_listed_until_their_guards_are_dropped() {
        let tasks = Arc::new(Tasks::default());
        let guards: Vec<_> =
            (0..3).map(|number| tasks.add(Task::new(TaskKind::Exec, format!("{number}"), None))).collect();
        guards[1].set(TaskState::Queued);
        let (listed, total) = tasks.list(2, |_| true);
        let names: Vec<_> = listed.iter().map(|task| (&*task.name, task.state)).collect();
        assert_eq!((names, total), (vec![("0", TaskState::Running), ("1", TaskState::Queued)], 3));
        assert_eq!(tasks.list(9, |task| task.state == TaskState::Queued).1, 1);
        drop(guards);
        assert_eq!(tasks.list(9, |_| true).1, 0);
    }
}
