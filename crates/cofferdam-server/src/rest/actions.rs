//! The audit records of actions that continue if the client leaves: one at the begin and one at the end.

use cofferdam_audit::{Action, ActionState, Log, SandboxRecord, Text, Timestamp};
use cofferdam_contract::{Error, Result};

use super::App;
use crate::caller::Caller;
use crate::ids::new_id;
use crate::layers::audit::blocking;
use crate::report;

/// An action whose begin is recorded.
pub struct Recorded(Option<(Log, Action)>);

/// Records the begin of an action, which must not begin otherwise.
///
/// # Errors
/// - `Unavailable` if the audit log fails.
pub async fn begin(app: &App, caller: &Caller, action: &str, fill: impl FnOnce(&mut Action)) -> Result<Recorded> {
    let Some(log) = app.services().audit.clone() else { return Ok(Recorded(None)) };
    let mut record = Action {
        id: Text::new(new_id("act")?),
        tenant: Text::new(caller.tenant.as_str()),
        key: Text::new(&caller.key),
        time: Timestamp::now(),
        action: Text::new(action),
        state: ActionState::Begun,
        sandbox: None,
        snapshot: None,
        created: None,
        image: None,
        digest: None,
        dry_run: false,
        files: None,
        unapplied: 0,
        network: None,
        failed: None,
    };
    fill(&mut record);
    write(&log, record.clone()).await?;
    Ok(Recorded(Some((log, record))))
}

impl Recorded {
    /// Records the end. `fill` adds what a success did.
    pub async fn end<T>(self, outcome: &Result<T>, fill: impl FnOnce(&mut Action, &T)) {
        let Some((log, mut record)) = self.0 else { return };
        (record.time, record.state) = (Timestamp::now(), ActionState::Ended);
        match outcome {
            Ok(done) => fill(&mut record, done),
            Err(error) => fail(&mut record, error.message()),
        }
        if let Err(error) = write(&log, record).await {
            report::warning(&format!("the end of an action could not be recorded: {error}"));
        }
    }
}

/// Marks an action as failed. The tenant can read the reason.
pub fn fail(action: &mut Action, reason: &str) {
    (action.state, action.failed) = (ActionState::Failed, Some(Text::new(reason)));
}

async fn write(log: &Log, action: Action) -> Result<(), Error> {
    let log = log.clone();
    blocking(move || log.record_network(vec![SandboxRecord::Action(Box::new(action))])).await
}
