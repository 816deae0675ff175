//! Calls of plugins over HTTP. The program's own host of plugins is tested with real ones by the tests of `cofferdam`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_contract::{Error, ErrorKind, Result};
use cofferdam_server::{
    HostPlugin, HostPlugins, PluginAnswer, PluginCall, PluginError, PluginItem, PluginMethod, Quota,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::code::{events, next};
use crate::support::{Over, bounds, get, post, start, start_and_fail, start_with};

/// A plugin whose methods return what they receive.
#[derive(Debug)]
pub struct Echo;

/// The calls of [`Echo`] that were cancelled.
static CANCELLED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A call that is cancelled if it is dropped.
struct Running(Option<String>);

impl Drop for Running {
    fn drop(&mut self) {
        CANCELLED.lock().extend(self.0.take());
    }
}

#[async_trait]
impl HostPlugins for Echo {
    fn plugins(&self) -> Vec<HostPlugin> {
        let method = |name: &str| PluginMethod { name: name.to_owned(), description: None, input: None, output: None };
        vec![HostPlugin {
            name: "echo".to_owned(),
            version: "1.0.0".to_owned(),
            description: None,
            state: "ready".to_owned(),
            methods: ["count", "echo", "fail", "wait", "refuse"].map(method).into(),
        }]
    }

    async fn call(&self, call: PluginCall, items: mpsc::Sender<PluginItem>) -> Result<PluginAnswer> {
        let result = match call.method.as_str() {
            "echo" => Ok(json!({ "input": call.input, "tenant": call.tenant, "timeout": call.timeout })),
            "count" => {
                for number in 0..call.input["to"].as_u64().unwrap_or_default() {
                    let _ = items.send(PluginItem::Progress(json!({ "percent": number }))).await;
                    let _ = items.send(PluginItem::Item(json!(number))).await;
                }
                Ok(Value::Null)
            }
            "wait" => {
                let running = Running(call.input["name"].as_str().map(str::to_owned));
                let _ = items.send(PluginItem::Item(json!("begun"))).await;
                tokio::time::sleep(Duration::from_secs(600)).await;
                drop(running);
                Ok(Value::Null)
            }
            "refuse" => return Err(Error::invalid("call plugin", "the input does not fit")),
            _ => Err(PluginError { code: -32003, message: "it failed".to_owned(), data: Default::default() }),
        };
        Ok(PluginAnswer { id: "call".to_owned(), result })
    }

    async fn close(&self) {}
}

/// Promise (Server): Tenants see the plugins of the server and call their methods; a method that fails is an outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn methods_of_plugins_are_called() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    let listed = get(&client, "/v1/plugins").await.unwrap();
    assert_eq!(listed["plugins"][0]["name"], "echo");
    assert_eq!(get(&client, "/v1/plugins/echo").await.unwrap(), listed["plugins"][0]);
    let call = async |method: &str, body| post(&client, &format!("/v1/plugins/echo/methods/{method}"), body).await;

    let outcome = call("echo", json!({ "input": [1, "x"], "timeout": 2.5 })).await.unwrap();
    let result = json!({ "input": [1, "x"], "tenant": "default", "timeout": { "secs": 2, "nanos": 500_000_000 } });
    assert_eq!(outcome, json!({ "id": "call", "result": result }));
    assert_eq!(call("echo", json!({})).await.unwrap()["result"]["input"], json!({}));
    let outcome = call("count", json!({ "input": { "to": 3 } })).await.unwrap();
    assert_eq!(outcome, json!({ "id": "call", "result": null, "items": [0, 1, 2] }));
    let outcome = call("count", json!({ "input": { "to": 10_001 } })).await.unwrap();
    assert_eq!((outcome["items"].as_array().unwrap().len(), &outcome["truncated"]), (10_000, &json!(true)));
    let outcome = call("fail", json!({})).await.unwrap();
    assert_eq!(outcome["error"]["message"], "it failed");

    assert_eq!(call("refuse", json!({})).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(call("unknown", json!({})).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(call("echo", json!({ "inputs": 1 })).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    for body in [json!([]), json!([7, 2.5]), json!("echo"), json!(null)] {
        assert_eq!(call("echo", body).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(get(&client, "/v1/plugins/other").await.unwrap_err().kind(), ErrorKind::NotFound);
    server.stop().await;
}

/// Promise (Server): The items of a call are streamed, and a client that leaves cancels the call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_of_plugins_are_streamed() {
    let server = start(Over::Tcp, bounds()).await;
    let path = "/v1/plugins/echo/methods/count";
    let mut lines = events(&server, path, &json!({ "input": { "to": 2 } })).await;
    for number in 0..2 {
        assert_eq!(next(&mut lines).await, json!({ "event": "progress", "progress": { "percent": number } }));
        assert_eq!(next(&mut lines).await, json!({ "event": "item", "item": number }));
    }
    assert_eq!(next(&mut lines).await, json!({ "event": "result", "outcome": { "id": "call", "result": null } }));
    let mut lines = events(&server, "/v1/plugins/echo/methods/refuse", &json!({})).await;
    let status = lines.next_line().await.unwrap().unwrap();
    assert!(status.starts_with("HTTP/1.1 400"), "a failure before the first event has a status: {status}");
    // An outcome without items is the only event.
    let mut lines = events(&server, "/v1/plugins/echo/methods/fail", &json!({})).await;
    assert_eq!(next(&mut lines).await["outcome"]["error"]["message"], "it failed");

    let mut lines = events(&server, "/v1/plugins/echo/methods/wait", &json!({ "input": { "name": "left" } })).await;
    assert_eq!(next(&mut lines).await["item"], "begun");
    drop(lines);
    let cancelled = async {
        while !CANCELLED.lock().contains(&"left".to_owned()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), cancelled).await.expect("the call is cancelled");
    server.stop().await;
}

/// Promise (Server): Calls of plugins count as execs of the tenant's quota.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_plugins_are_limited() {
    let quota = Quota { execs_per_second: Some(1), ..Quota::default() };
    let server = start_with(Over::Tcp, bounds(), |config| config.quota = quota).await;
    let client = server.client();
    let mut refused = None;
    for _ in 0..20 {
        if let Err(error) = post(&client, "/v1/plugins/echo/methods/echo", json!({})).await {
            refused = Some(error);
            break;
        }
    }
    assert_eq!(refused.expect("a refusal").kind(), ErrorKind::ResourceExhausted);
    server.stop().await;
}

/// A plugin without methods that counts its ends.
#[derive(Debug, Default)]
struct Counted(AtomicUsize);

#[async_trait]
impl HostPlugins for Counted {
    fn plugins(&self) -> Vec<HostPlugin> {
        Vec::new()
    }

    async fn call(&self, _: PluginCall, _: mpsc::Sender<PluginItem>) -> Result<PluginAnswer> {
        Err(Error::invalid("call plugin", "there is no method"))
    }

    async fn close(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Promise (Server): Plugins end with the server, also if it cannot start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugins_end_with_a_server_that_cannot_start() {
    let plugins = Arc::new(Counted::default());
    let server = start_with(Over::Tcp, bounds(), |config| config.plugins = Some(Arc::clone(&plugins) as _)).await;
    assert_eq!(plugins.0.load(Ordering::SeqCst), 0);
    server.stop().await;
    assert_eq!(plugins.0.load(Ordering::SeqCst), 1);
    let failed = start_and_fail(|config| {
        config.plugins = Some(Arc::clone(&plugins) as _);
        // It is a file.
        config.snapshots = config.snapshots.with_file_name("state.db");
    });
    assert!(failed.await.is_err());
    assert_eq!(plugins.0.load(Ordering::SeqCst), 2);
}

/// Promise (Server): A server without plugins lists none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_have_no_plugins() {
    let server = start_with(Over::Tcp, bounds(), |config| config.plugins = None).await;
    assert_eq!(get(&server.client(), "/v1/plugins").await.unwrap(), json!({ "plugins": [] }));
    let call = post(&server.client(), "/v1/plugins/echo/methods/echo", json!({})).await;
    assert_eq!(call.unwrap_err().kind(), ErrorKind::NotFound);
    server.stop().await;
}
