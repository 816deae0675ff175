//! The OpenAPI document: paths from the handlers, schemas from the types, scopes from the routes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};
use utoipa::openapi::path::{Operation, Paths};
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::schema::Schema;
use utoipa::openapi::security::SecurityRequirement;
use utoipa::openapi::{ContentBuilder, Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use super::problem::{PROBLEM_JSON, Problem};
use super::{App, attach::Control, audit, views};
use crate::caller::Scope;
use crate::quota::Quota;

/// The name of the security scheme.
const SCHEME: &str = "key";

/// Names types in the document. Their schemas come from `schemars`, as those of all documents of the contract.
macro_rules! documented {
    ($($type:ty = $name:literal),* $(,)?) => {
        $(
            impl PartialSchema for $type {
                fn schema() -> RefOr<Schema> {
                    Ref::from_schema_name($name).into()
                }
            }

            impl ToSchema for $type {
                fn name() -> Cow<'static, str> {
                    $name.into()
                }
            }
        )*

        fn schemas(generator: &mut SchemaGenerator) -> BTreeMap<&'static str, Value> {
            BTreeMap::from([$(($name, definition::<$type>(generator))),*])
        }
    };
}

documented! {
    views::AppliedChanges = "AppliedChanges",
    views::ApplyChanges = "ApplyChanges",
    audit::AuditPage = "AuditPage",
    audit::AuditPart = "AuditPart",
    views::BackendList = "BackendList",
    views::ChangesReport = "ChangesReport",
    views::CallPlugin = "CallPlugin",
    views::CreateSandbox = "CreateSandbox",
    views::CreateVolume = "CreateVolume",
    views::DeletedSandbox = "DeletedSandbox",
    views::ExecEvent = "ExecEvent",
    views::ExecList = "ExecList",
    views::ExecView = "ExecView",
    views::ExtendSandbox = "ExtendSandbox",
    views::CodeEvent = "CodeEvent",
    views::CodeOutcome = "CodeOutcome",
    views::Copied = "Copied",
    views::FileEvent = "FileEvent",
    views::FileList = "FileList",
    views::FileStat = "FileStat",
    views::ForkSandbox = "ForkSandbox",
    views::Health = "Health",
    views::ImageList = "ImageList",
    views::KernelList = "KernelList",
    views::KernelView = "KernelView",
    views::MoveFile = "MoveFile",
    views::OpenKernel = "OpenKernel",
    views::PluginEvent = "PluginEvent",
    views::PluginList = "PluginList",
    views::PluginOutcome = "PluginOutcome",
    super::pools::PoolList = "PoolList",
    views::RenameSandbox = "RenameSandbox",
    views::RunCode = "RunCode",
    views::RunResult = "RunResult",
    super::network::SandboxNetwork = "SandboxNetwork",
    views::SandboxDetails = "SandboxDetails",
    views::SandboxList = "SandboxList",
    views::SandboxView = "SandboxView",
    views::SignalExec = "SignalExec",
    views::SnapshotList = "SnapshotList",
    views::SnapshotView = "SnapshotView",
    views::StartExec = "StartExec",
    views::StartRun = "StartRun",
    views::StatsView = "StatsView",
    views::TakeSnapshot = "TakeSnapshot",
    views::VolumeList = "VolumeList",
    views::VolumeView = "VolumeView",
    views::Version = "Version",
    views::Written = "Written",
    super::usage::QuotaList = "QuotaList",
    super::usage::QuotaState = "QuotaState",
    super::usage::UsageList = "UsageList",
    super::tasks::TaskList = "TaskList",
    super::changes::ChangesForm = "ChangesForm",
    super::sandboxes::UnkeptChanges = "UnkeptChanges",
    crate::images::AddedImages = "AddedImages",
    crate::images::HostImageDetails = "HostImageDetails",
    crate::images::RemovedImages = "RemovedImages",
    crate::plugins::HostPlugin = "HostPlugin",
    Quota = "Quota",
    Control = "Control",
    Problem = "Problem",
}

fn definition<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    T::json_schema(generator).to_value()
}

/// Requires a scope in the document of these operations.
pub(super) fn require(paths: &mut Paths, scope: Scope) {
    for item in paths.paths.values_mut() {
        for operation in operations(item) {
            operation.security = Some(vec![SecurityRequirement::new(SCHEME, [scope.as_str()])]);
        }
    }
}

fn operations(item: &mut utoipa::openapi::PathItem) -> impl Iterator<Item = &mut Operation> {
    let utoipa::openapi::PathItem { get, put, post, delete, head, patch, .. } = item;
    [get, put, post, delete, head, patch].into_iter().flatten()
}

/// Returns the document as JSON.
pub fn document() -> String {
    let app = App::for_document();
    let (_, mut api) = super::routes_of(&app).split_for_parts();
    api.info.title = "Cofferdam".to_owned();
    api.info.version = "1".to_owned();
    api.info.description = Some("Sandboxes for untrusted code.".to_owned());
    let problem = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    let problem = ResponseBuilder::new().description("An error").content(PROBLEM_JSON, problem).build();
    for item in api.paths.paths.values_mut() {
        for operation in operations(item) {
            operation.responses.responses.insert("default".to_owned(), problem.clone().into());
        }
    }
    // A path of several segments has no other name in OpenAPI.
    api.paths.paths =
        std::mem::take(&mut api.paths.paths).into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    let mut document = serde_json::to_value(&api).unwrap_or_default();
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .into_generator();
    let own = schemas(&mut generator);
    let mut all: BTreeMap<String, Value> = generator.take_definitions(true).into_iter().collect();
    all.extend(own.into_iter().map(|(name, schema)| (name.to_owned(), schema)));
    document["components"]["schemas"] = json!(all);
    document["components"]["securitySchemes"] = json!({ SCHEME: { "type": "http", "scheme": "bearer" } });
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}
