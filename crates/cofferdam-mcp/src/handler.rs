//! Handler of the requests of one client session, or of one request if the protocol has no sessions.
#![expect(deprecated, reason = "clients of the revision before the current one set the level of log messages")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cofferdam_contract::{Capability, Workspace};
use rmcp::RoleServer;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorData, Implementation, InitializeRequestParams, InitializeResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, LoggingLevel, PaginatedRequestParams,
    ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig,
    SetLevelRequestParams, Tool,
};
use rmcp::service::RequestContext;
use tokio::sync::Mutex;

use crate::calls::Caller;
use crate::catalog::{self, Name};
use crate::http::Client;
use crate::live::Reporter;
use crate::resources;
use crate::server::Inner;
use crate::store::{Account, Owner};

/// Description of the server for models.
const INSTRUCTIONS: &str = "Runs untrusted code and commands in sandboxes. Each sandbox has a workspace for files, \
     mounted at /workspace. Within a session, calls without a sandbox id share one sandbox; create_sandbox creates \
     more. Idle sandboxes are closed after a while, and their files are deleted. The server's settings determine \
     limits and network access; arguments can only tighten them.";

/// A handler of requests. Dropping it closes the sandboxes of its session.
#[derive(Debug)]
pub struct Handler {
    server: Arc<Inner>,
    session: OnceLock<u64>,
    /// The sandbox of calls that name none.
    own: Mutex<Option<String>>,
    /// True if the client requested no log messages of level info.
    quiet: AtomicBool,
}

impl Handler {
    pub(crate) fn new(server: Arc<Inner>) -> Self {
        Self { server, session: OnceLock::new(), own: Mutex::new(None), quiet: AtomicBool::new(false) }
    }

    /// Begins a session, to which all later sandboxes belong.
    pub(crate) fn begin_session(&self) {
        self.session.get_or_init(|| self.server.next_session());
    }

    fn owner(&self) -> Owner {
        self.session.get().map_or(Owner::Anyone, |number| Owner::Session(*number))
    }

    fn account(&self, context: &RequestContext<RoleServer>) -> Account {
        Account { owner: self.owner(), client: client(context) }
    }

    /// Returns true if this backend and the allowed languages support a tool.
    fn offers(&self, tool: &str) -> bool {
        let can = |capability| self.server.profile.capabilities.contains(&capability);
        match Name::parse(tool) {
            Some(Name::RunCommand) => can(Capability::UnixPrograms) && self.server.runs_shells(),
            Some(Name::SnapshotSandbox | Name::RestoreSandbox) => can(Capability::Snapshot),
            Some(Name::ForkSandbox) => can(Capability::Fork),
            Some(Name::ReadFile | Name::WriteFile | Name::EditFile | Name::ListFiles) => can(Capability::Files),
            Some(Name::ShowChanges) => {
                matches!(self.server.config.spec.workspace(), Workspace::CopyOnWrite { .. })
            }
            Some(Name::RunCode | Name::CreateSandbox | Name::CloseSandbox) => true,
            None => false,
        }
    }

    /// Returns true if the client of this request wants output as log messages. In the current revision each request
    /// opts in. In earlier revisions a session can opt out.
    fn wants_logs(&self, context: &RequestContext<RoleServer>) -> bool {
        let current = context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
        match (context.meta.log_level(), current) {
            (Some(level), _) => includes_info(level),
            (None, true) => false,
            (None, false) => !self.quiet.load(Ordering::Relaxed),
        }
    }
}

impl Handler {
    /// Runs work on files until its client cancels it, or until the wall time limit of code has passed.
    async fn in_time<T>(
        &self,
        context: &RequestContext<RoleServer>,
        work: impl Future<Output = Result<T, ErrorData>>,
    ) -> Result<T, ErrorData> {
        let max = self.server.config.spec.limits().wall_time;
        tokio::select! {
            biased;
            () = context.ct.cancelled() => Err(ErrorData::internal_error("the request was cancelled", None)),
            () = tokio::time::sleep(max) => Err(ErrorData::internal_error("the file operation timed out", None)),
            result = work => result,
        }
    }
}

/// Returns the client of a request, if the server has many clients.
fn client(context: &RequestContext<RoleServer>) -> Option<Client> {
    context.extensions.get::<http::request::Parts>().and_then(|parts| parts.extensions.get::<Client>()).copied()
}

fn includes_info(level: LoggingLevel) -> bool {
    matches!(level, LoggingLevel::Debug | LoggingLevel::Info)
}

impl Drop for Handler {
    fn drop(&mut self) {
        if let Owner::Session(number) = self.owner() {
            self.server.store.end_session(Owner::Session(number));
        }
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_logging().enable_resources().enable_tools().build();
        let implementation = Implementation::new("cofferdam", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(capabilities).with_server_info(implementation).with_instructions(INSTRUCTIONS)
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        // Only revisions with sessions know this request.
        self.begin_session();
        context.peer.set_peer_info(request.clone());
        self.negotiate_initialize(&request)
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.quiet.store(!includes_info(request.level), Ordering::Relaxed);
        Ok(())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = catalog::tools().iter().filter(|tool| self.offers(&tool.name)).cloned();
        Ok(ListToolsResult::with_all_items(tools.collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        catalog::tools().iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(name) = Name::parse(&request.name) else {
            let shown: String = request.name.chars().take(64).collect();
            return Err(ErrorData::invalid_params(format!("there is no tool '{}'", shown.escape_debug()), None));
        };
        let reporter = Reporter::new(&context, self.wants_logs(&context));
        let (owner, client) = (self.owner(), client(&context));
        let caller = Caller { server: &self.server, owner, client, own: &self.own, reporter: &reporter };
        let result = tokio::select! {
            biased;
            // Dropping the call's state ends everything that runs for it. The client does not read an answer.
            () = context.ct.cancelled() => return Err(ErrorData::internal_error("the call was cancelled", None)),
            result = caller.call(name, request.arguments.unwrap_or_default()) => result,
        };
        reporter.finish().await;
        Ok(result.into())
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let cursor = request.and_then(|request| request.cursor);
        self.in_time(&context, resources::list(&self.server, self.account(&context), cursor.as_deref())).await
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(vec![resources::template()]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let read = resources::read(&self.server, self.account(&context), &request.uri);
        self.in_time(&context, read).await.map(Into::into)
    }
}
