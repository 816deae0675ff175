//! Execution of tool calls. Errors become results with a reason; nothing here is a protocol error.

mod changes;
mod code;
mod command;
mod files;
mod sandboxes;
mod text;

pub use command::shells;

use cofferdam_contract::{Error, ErrorKind, Result, Retry};
use rmcp::model::{CallToolResult, ContentBlock, JsonObject};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::catalog::Name;
use crate::failure;
use crate::http::Client;
use crate::live::Reporter;
use crate::results::UsedSandbox;
use crate::server::{Inner, Source};
use crate::store::{Account, InUse, Owner};

/// The client of a call, and the resources that it may use.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    pub(crate) server: &'a Inner,
    pub(crate) owner: Owner,
    /// The client's address, if the server has many clients.
    pub(crate) client: Option<Client>,
    /// The sandbox of calls that name none.
    pub(crate) own: &'a Mutex<Option<String>>,
    pub(crate) reporter: &'a Reporter,
}

/// A sandbox for one call.
struct Found<'a> {
    sandbox: InUse,
    used: UsedSandbox,
    /// The guard of a sandbox that exists only for this call.
    _temporary: Option<Temporary<'a>>,
}

/// A guard that closes a sandbox of one call when the call ends or is cancelled.
struct Temporary<'a> {
    server: &'a Inner,
    id: String,
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        self.server.store.abandon(&self.id);
    }
}

impl<'a> Caller<'a> {
    /// Returns the account of the caller's sandboxes.
    fn account(self) -> Account {
        Account { owner: self.owner, client: self.client }
    }

    /// Executes a call.
    pub async fn call(self, name: Name, arguments: JsonObject) -> CallToolResult {
        let result = match self.server.enter_call(self.client) {
            Ok(_call) => self.dispatch(name, arguments).await,
            Err(error) => Err(error),
        };
        result.unwrap_or_else(|error| failure::result(&error))
    }

    /// Executes a call. File operations have the wall time limit of code, because a guest can make a file endlessly
    /// long.
    async fn dispatch(self, name: Name, arguments: JsonObject) -> Result<CallToolResult> {
        let files =
            [Name::ReadFile, Name::WriteFile, Name::EditFile, Name::ListFiles, Name::ShowChanges].contains(&name);
        let carried_out = self.carry_out(name, arguments);
        if !files {
            return carried_out.await;
        }
        let max = self.server.config.spec.limits().wall_time;
        tokio::time::timeout(max, carried_out).await.unwrap_or_else(|_| {
            let what = format!("the file operation timed out after {max:?}");
            Err(Error::new(ErrorKind::ResourceExhausted, name.as_str(), what)
                .with_retry(Retry::Never)
                .with_remedy("process less in one call, or use run_command"))
        })
    }

    async fn carry_out(self, name: Name, arguments: JsonObject) -> Result<CallToolResult> {
        match name {
            Name::RunCode => self.run_code(parse(name, arguments)?).await,
            Name::RunCommand => self.run_command(parse(name, arguments)?).await,
            Name::ReadFile => self.read_file(parse(name, arguments)?).await,
            Name::WriteFile => self.write_file(parse(name, arguments)?).await,
            Name::EditFile => self.edit_file(parse(name, arguments)?).await,
            Name::ListFiles => self.list_files(parse(name, arguments)?).await,
            Name::ShowChanges => self.show_changes(parse(name, arguments)?).await,
            Name::CreateSandbox => self.create_sandbox(parse(name, arguments)?).await,
            Name::SnapshotSandbox => self.snapshot_sandbox(parse(name, arguments)?).await,
            Name::RestoreSandbox => self.restore_sandbox(parse(name, arguments)?).await,
            Name::ForkSandbox => self.fork_sandbox(parse(name, arguments)?).await,
            Name::CloseSandbox => self.close_sandbox(parse(name, arguments)?).await,
        }
    }

    /// Returns the sandbox that a call names, else the session's own sandbox, which is created if necessary. Without a
    /// session, creates a sandbox for this call only.
    async fn find(self, named: Option<&str>) -> Result<Found<'a>> {
        if let Some(id) = named {
            let sandbox = self.server.store.enter(self.owner, id)?;
            let used = UsedSandbox { sandbox: Some(id.to_owned()), created: false };
            return Ok(Found { sandbox, used, _temporary: None });
        }
        let spec = || Source::Spec(Box::new(self.server.config.spec.clone()));
        if self.owner == Owner::Anyone {
            let sandbox = self.server.create(self.account(), spec()).await?;
            let temporary = Temporary { server: self.server, id: sandbox.id().to_owned() };
            return Ok(Found {
                sandbox,
                used: UsedSandbox { sandbox: None, created: true },
                _temporary: Some(temporary),
            });
        }
        // Concurrent calls wait for the sandbox that this call creates.
        let mut own = self.own.lock().await;
        if let Some(sandbox) = own.as_deref().and_then(|id| self.server.store.enter(self.owner, id).ok()) {
            let used = UsedSandbox { sandbox: Some(sandbox.id().to_owned()), created: false };
            return Ok(Found { sandbox, used, _temporary: None });
        }
        let sandbox = self.server.create(self.account(), spec()).await?;
        *own = Some(sandbox.id().to_owned());
        let used = UsedSandbox { sandbox: Some(sandbox.id().to_owned()), created: true };
        Ok(Found { sandbox, used, _temporary: None })
    }

    /// Returns the sandbox that a call names, else the session's own sandbox, if it exists.
    async fn existing(self, named: Option<&str>) -> Result<InUse> {
        if let Some(id) = named {
            return self.server.store.enter(self.owner, id);
        }
        let own = self.own.lock().await.clone();
        match own {
            Some(id) => self.server.store.enter(self.owner, &id),
            None => Err(Error::new(ErrorKind::NotFound, "find", "this session has no sandbox of its own")
                .with_remedy("pass the id of a sandbox")),
        }
    }

    /// Returns a sandbox like [`Self::find`], for calls that need a sandbox that exists after the call.
    async fn find_lasting(self, named: Option<&str>) -> Result<Found<'a>> {
        if named.is_none() && self.owner == Owner::Anyone {
            return Err(Error::invalid(
                "find",
                "sandbox is missing, which is required in protocol revisions without sessions",
            )
            .with_remedy("create a sandbox with create_sandbox, and pass its id as sandbox"));
        }
        self.find(named).await
    }
}

fn parse<T: DeserializeOwned>(name: Name, arguments: JsonObject) -> Result<T> {
    serde_json::from_value(Value::Object(arguments)).map_err(|error| failure::arguments(name.as_str(), &error))
}

/// Returns a result with structured content, and plain content for clients that do not read it.
fn structured(value: &impl Serialize, content: Vec<ContentBlock>) -> Result<CallToolResult> {
    let value = serde_json::to_value(value).map_err(|error| {
        Error::new(ErrorKind::Internal, "call", "cannot convert the result to JSON").with_source(error)
    })?;
    let mut result = CallToolResult::success(content);
    if result.content.is_empty() {
        result.content.push(ContentBlock::text(value.to_string()));
    }
    result.structured_content = Some(value);
    Ok(result)
}
