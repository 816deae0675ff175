//! Plugins: list, describe, call a method.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use cofferdam_contract::{Error, ErrorKind};
use opentelemetry::KeyValue;
use opentelemetry::trace::FutureExt as _;
use tokio::sync::mpsc;

use super::events::{self, EventSender, accepts_events};
use super::extract::{Json, Path};
use super::problem::Failure;
use super::slots::TenantSlot;
use super::views::{CallPlugin, PluginEvent, PluginList, PluginOutcome};
use super::{Answer, App};
use crate::caller::Caller;
use crate::plugins::{HostPlugin, HostPlugins, PluginAnswer, PluginCall, PluginItem};
use crate::trace::traceparent;
use crate::tracer::PLUGIN;

/// The most items in one answer, and the most bytes of them.
const MAX_ITEMS: usize = 10_000;
const MAX_ITEM_BYTES: usize = 8 << 20;
/// Items that wait for a slow client. The plugin waits, too.
const QUEUE: usize = 1;

/// List the plugins of the server.
#[utoipa::path(get, path = "/v1/plugins", tag = "plugins", responses((status = 200, body = PluginList)))]
pub async fn list(State(app): State<App>) -> axum::Json<PluginList> {
    let plugins = app.services().plugins.as_ref().map(|plugins| plugins.plugins()).unwrap_or_default();
    axum::Json(PluginList { plugins })
}

/// Describe a plugin: its methods and their schemas.
#[utoipa::path(get, path = "/v1/plugins/{plugin}", tag = "plugins", params(("plugin" = String, Path)),
    responses((status = 200, body = HostPlugin)))]
pub async fn get(State(app): State<App>, Path(plugin): Path<String>) -> Result<axum::Json<HostPlugin>, Failure> {
    Ok(axum::Json(find(&app, &plugin)?.1))
}

/// Call a method of a plugin.
///
/// A failure of the method is an outcome with `error`. A client that disconnects cancels the call. With
/// `Accept: text/event-stream`, the answer is a stream of the events `progress` and `item`, and at the end `result` or
/// `error`; a slow client slows the plugin down. A failure before the first event has a status of its own, unless it takes
/// longer than 15 s.
#[utoipa::path(post, path = "/v1/plugins/{plugin}/methods/{method}", tag = "plugins", request_body = CallPlugin,
    params(("plugin" = String, Path), ("method" = String, Path)),
    responses((status = 200, content((PluginOutcome = "application/json"), (PluginEvent = "text/event-stream")))))]
pub async fn call(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((plugin, method)): Path<(String, String)>,
    headers: HeaderMap,
    Json(request): Json<CallPlugin>,
) -> Answer {
    let (plugins, found) = find(&app, &plugin)?;
    if !found.methods.iter().any(|known| known.name == method) {
        return Err(Error::new(ErrorKind::NotFound, "call plugin", "the plugin has no such method").into());
    }
    app.services().admission.exec(&caller.tenant)?;
    let slot = app.plugin_slot(&caller.tenant)?;
    let call = PluginCall {
        plugin,
        method,
        input: request.input,
        timeout: request.timeout,
        tenant: caller.tenant.clone(),
        traceparent: None,
    };
    let work = Work { app: app.clone(), plugins, call, _slot: slot };
    if !accepts_events(&headers) {
        return Ok(axum::Json(work.collect().await?).into_response());
    }
    events::answer(app, caller, QUEUE, |sender| work.stream(sender)).await
}

fn find(app: &App, name: &str) -> Result<(Arc<dyn HostPlugins>, HostPlugin), Failure> {
    let plugins = app.services().plugins.as_ref();
    let found = plugins.and_then(|plugins| plugins.plugins().into_iter().find(|plugin| plugin.name == name));
    let missing = || Error::new(ErrorKind::NotFound, "find plugin", "the server has no such plugin");
    Ok(plugins.cloned().zip(found).ok_or_else(missing)?)
}

/// A call of a method.
struct Work {
    app: App,
    plugins: Arc<dyn HostPlugins>,
    call: PluginCall,
    _slot: TenantSlot,
}

impl Work {
    async fn run(mut self, items: mpsc::Sender<PluginItem>) -> Result<PluginAnswer, Failure> {
        let span = self.app.services().tracer.start("plugin", [KeyValue::new(PLUGIN, self.call.plugin.clone())]);
        let ids = span.ids();
        self.call.traceparent = ids.is_valid().then(|| traceparent(&ids));
        let answer = self.plugins.call(self.call, items).with_context(span.context()).await;
        match &answer {
            Ok(PluginAnswer { result: Ok(_), .. }) => {}
            Ok(PluginAnswer { result: Err(_), .. }) => span.fail("plugin"),
            Err(error) => span.fail(error.kind().as_str()),
        }
        Ok(answer?)
    }

    /// Waits for the outcome, with all items.
    async fn collect(self) -> Result<PluginOutcome, Failure> {
        let (sender, mut receiver) = mpsc::channel(QUEUE);
        let collecting = async {
            let (mut items, mut size, mut truncated) = (Vec::new(), 0, false);
            while let Some(next) = receiver.recv().await {
                let PluginItem::Item(item) = next else { continue };
                size += item.to_string().len();
                if items.len() < MAX_ITEMS && size <= MAX_ITEM_BYTES {
                    items.push(item);
                } else {
                    truncated = true;
                }
            }
            (items, truncated)
        };
        let (answer, (items, truncated)) = tokio::join!(self.run(sender), collecting);
        Ok(PluginOutcome { items, truncated, ..outcome(answer?) })
    }

    /// Sends the items of the call. Returns its outcome.
    async fn stream(self, events: Arc<EventSender<PluginEvent>>) -> Result<PluginEvent, Failure> {
        let (sender, mut receiver) = mpsc::channel(QUEUE);
        let forwarding = async {
            while let Some(next) = receiver.recv().await {
                let next = match next {
                    PluginItem::Progress(progress) => PluginEvent::Progress { progress },
                    PluginItem::Item(item) => PluginEvent::Item { item },
                };
                if !events.send(&next).await {
                    let message = "the client takes the items of the stream too slowly";
                    return Err(Failure::from(Error::new(ErrorKind::Unavailable, "call plugin", message)));
                }
            }
            Ok(())
        };
        // A client that takes nothing cancels the call.
        let (answer, ()) = tokio::try_join!(self.run(sender), forwarding)?;
        Ok(PluginEvent::Result { outcome: outcome(answer) })
    }
}

fn outcome(PluginAnswer { id, result }: PluginAnswer) -> PluginOutcome {
    let (result, error) = match result {
        Ok(result) => (Some(result), None),
        Err(error) => (None, Some(error)),
    };
    PluginOutcome { id, result, error, items: Vec::new(), truncated: false }
}
