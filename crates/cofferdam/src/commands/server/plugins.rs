//! Plugins of a server: those that `cofferdam serve --plugin` hosts, and calls of those of another server.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use cofferdam::plugins::{CallOptions, Context, Host, LoadOptions, StreamItem};
use cofferdam::{Error, Result};
use cofferdam_plugin::{CallError, ErrorKind as CallErrorKind, Manifest, Method as ManifestMethod};
use cofferdam_server::client::Method;
use cofferdam_server::rest::views::{CallPlugin, PluginList, PluginOutcome};
use cofferdam_server::{HostPlugin, HostPlugins, PluginAnswer, PluginCall, PluginError, PluginItem, PluginMethod};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::client::encoded;
use super::connect;
use crate::args::{CallArgs, ClientArgs, HostArgs, ListArgs, ServePluginsArgs};
use crate::commands::block_on;
use crate::commands::plugins::{call, host};
use crate::report::{self, document, print, printed};
use crate::settings::Settings;
use crate::terminal::one_line;

/// Members of a failure's data that are for tenants. Others may name files of the host.
const FOR_TENANTS: [&str; 3] = ["details", "permission", "remedy"];

/// The plugins that a server hosts.
pub struct Hosted(Host);

impl std::fmt::Debug for Hosted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hosted").finish_non_exhaustive()
    }
}

/// Loads the plugins of the options, and starts them. Returns `None` if there are none.
pub async fn open(args: &ServePluginsArgs, settings: &Settings) -> Result<Option<Arc<dyn HostPlugins>>> {
    if args.plugin.is_empty() {
        return Ok(None);
    }
    let host_args = HostArgs { state: args.plugin_state.clone(), key: args.plugin_key.clone(), ..HostArgs::default() };
    let opened = host::open_with(&host_args, settings).await?;
    match load(&opened, args).await {
        Ok(()) => Ok(Some(Arc::new(Hosted(opened)))),
        Err(error) => {
            opened.drain(None).await;
            Err(error)
        }
    }
}

async fn load(opened: &Host, args: &ServePluginsArgs) -> Result<()> {
    let mut configs = Vec::new();
    for text in &args.plugin_config {
        let (plugin, file) = text
            .split_once('=')
            .ok_or_else(|| Error::invalid("serve", "--plugin-config has no file").with_remedy("write PLUGIN=FILE"))?;
        if !args.plugin.iter().any(|name| name == plugin) {
            let message = format!("--plugin-config names the plugin '{}', which is not served", one_line(plugin));
            return Err(Error::invalid("serve", message).with_remedy("add --plugin, with the same text"));
        }
        configs.push((plugin, host::configuration(Path::new(file))?));
    }
    for plugin in &args.plugin {
        let config = configs.iter().find(|(name, _)| name == plugin).map(|(_, config)| config.clone());
        let name = host::load_one(opened, plugin, LoadOptions { config, ..LoadOptions::default() }).await?;
        opened.prepare(&name).await.map_err(|error| Error::invalid("serve", error.message))?;
    }
    Ok(())
}

#[async_trait]
impl HostPlugins for Hosted {
    fn plugins(&self) -> Vec<HostPlugin> {
        self.0.manifests().into_iter().map(|(manifest, state)| described(&manifest, state)).collect()
    }

    async fn call(&self, call: PluginCall, items: mpsc::Sender<PluginItem>) -> Result<PluginAnswer> {
        let checked = self.0.check_input(&call.plugin, &call.method, &call.input);
        checked.map_err(|error| Error::invalid("call plugin", error.message))?;
        let context = Context {
            tenant: Some(call.tenant.as_str().to_owned()),
            traceparent: call.traceparent,
            ..Context::default()
        };
        let options = CallOptions { context, timeout: call.timeout, stream: true };
        let mut running = self.0.call(&call.plugin, &call.method, call.input, options);
        while let Some(item) = running.next().await {
            let item = match item {
                StreamItem::Progress(value) => PluginItem::Progress(value),
                StreamItem::Item(value) => PluginItem::Item(value),
            };
            // Without a receiver, only the result matters.
            let _ = items.send(item).await;
        }
        let id = running.id().to_owned();
        Ok(PluginAnswer { id, result: running.result().await.map_err(|error| failure(&error)) })
    }

    async fn close(&self) {
        self.0.drain(None).await;
    }
}

fn described(manifest: &Manifest, state: &str) -> HostPlugin {
    let method = |(name, method): (&String, &ManifestMethod)| PluginMethod {
        name: name.clone(),
        description: method.description.clone(),
        input: method.input.clone(),
        output: method.output.clone(),
    };
    HostPlugin {
        name: manifest.name.clone(),
        version: manifest.version.clone(),
        description: manifest.description.clone(),
        state: state.to_owned(),
        methods: manifest.methods.iter().map(method).collect(),
    }
}

/// Returns the failure without what is for the operator.
fn failure(error: &CallError) -> PluginError {
    let mut data = error.data.clone();
    data.retain(|name, _| FOR_TENANTS.contains(&name.as_str()));
    data.insert("kind".to_owned(), json!(error.kind));
    let message = match error.kind {
        CallErrorKind::Unavailable => "the plugin is not available, or ended during the call".to_owned(),
        CallErrorKind::Internal => "the host of plugins failed".to_owned(),
        _ => error.message.clone(),
    };
    PluginError { code: error.kind.code(), message, data }
}

/// Lists the plugins of a server. Returns `None` if the options name no server.
pub fn list(args: &ListArgs) -> Option<Result<u8>> {
    args.client.server.as_ref()?;
    Some(list_of(&args.client, args.json))
}

fn list_of(args: &ClientArgs, json: bool) -> Result<u8> {
    let client = connect(args)?;
    let list: PluginList = block_on(async { client.call(Method::GET, "/v1/plugins", None::<&()>).await })?;
    if json {
        return Ok(printed(document(&json!(list)), 0));
    }
    let line = |plugin: &HostPlugin| {
        let methods: Vec<_> = plugin.methods.iter().map(|method| one_line(&method.name)).collect();
        let [name, version, state] = [&plugin.name, &plugin.version, &plugin.state].map(|text| one_line(text));
        format!("{name:<24} {version:<10} {state:<10} {}\n", methods.join(","))
    };
    let lines: String = list.plugins.iter().map(line).collect();
    Ok(printed(print(if lines.is_empty() { "the server has no plugins\n" } else { &lines }), 0))
}

/// Calls a method of a plugin of a server. Returns `None` if the options name no server.
pub fn call(args: &CallArgs) -> Option<Result<u8>> {
    args.client.server.as_ref()?;
    Some(call_on(args))
}

fn call_on(args: &CallArgs) -> Result<u8> {
    if args.host != HostArgs::default() {
        return Err(Error::invalid("call plugin", "--server excludes the options of a host of plugins")
            .with_remedy("the server's operator sets them"));
    }
    let body = CallPlugin { input: call::input(&args.input)?, timeout: args.timeout };
    let client = connect(&args.client)?;
    let path = format!("/v1/plugins/{}/methods/{}", encoded(&args.plugin), encoded(&args.method));
    let outcome: PluginOutcome = block_on(async { client.call(Method::POST, &path, Some(&body)).await })?;
    let status = if outcome.error.is_none() { 0 } else { report::FAILED };
    if args.json {
        let mut value = json!({"correlationId": outcome.id, "items": outcome.items, "truncated": outcome.truncated});
        match &outcome.error {
            Some(error) => value["error"] = json!(error),
            None => value["result"] = outcome.result.unwrap_or(Value::Null),
        }
        return Ok(printed(document(&value), status));
    }
    for item in &outcome.items {
        if printed(print(&format!("{item}\n")), 0) != 0 {
            return Ok(report::FAILED);
        }
    }
    match outcome.error {
        None => Ok(printed(document(&outcome.result.unwrap_or(Value::Null)), 0)),
        Some(PluginError { message, data, .. }) => {
            call::report_failure(&CallError { kind: CallErrorKind::PluginFailed, message, data });
            Ok(status)
        }
    }
}
