use cofferdam_contract::Publisher;
use tokio::io::{AsyncReadExt, DuplexStream};

use super::super::backlog::MAX_WAITING;
use super::*;

/// A host that has no requests of plugins.
struct Nothing;

#[async_trait]
impl Served for Nothing {
    async fn request(&self, _incoming: Incoming) -> Result<Value, CallError> {
        Ok(Value::Null)
    }

    fn notification(&self, _incoming: Incoming) {}

    fn log(&self, _bytes: &[u8]) {}
}

/// A plugin that streams items of `sizes`, a list of [number, bytes], within its credit.
async fn plugin(mut stdin: DuplexStream, output: Publisher) {
    let (mut decoder, mut calls) = (Decoder::new(MAX_MESSAGE), HashMap::new());
    let mut data = vec![0; 65536];
    let publish = |message: Value| output.publish(OutputStream::Stdout, encode(message.to_string().as_bytes()));
    loop {
        match stdin.read(&mut data).await {
            Ok(count) if count > 0 => decoder.feed(&data[..count]),
            _ => return,
        }
        while let Some(body) = decoder.next_body().unwrap() {
            let message: Value = serde_json::from_slice(&body).unwrap();
            let params = &message["params"];
            let (id, acknowledged) = if message["method"] == "call" {
                let each = |pair: &Value| (pair[0].as_u64().unwrap() as usize, pair[1].as_u64().unwrap() as usize);
                let sizes: Vec<_> = params["sizes"].as_array().unwrap().iter().map(each).collect();
                let sizes: Vec<_> = sizes.into_iter().flat_map(|(count, size)| vec![size; count]).collect();
                let id = message["id"].as_u64().unwrap();
                calls.insert(id, (sizes, 0));
                (id, 0)
            } else {
                (params["id"].as_u64().unwrap(), params["count"].as_u64().unwrap_or_default() as usize)
            };
            let Some((sizes, sent)) = calls.get_mut(&id) else { continue };
            while *sent < sizes.len().min(acknowledged + STREAM_CREDIT) {
                let value = "x".repeat(sizes[*sent]);
                publish(
                    json!({"jsonrpc": "2.0", "method": "$/stream", "params": {"id": id, "seq": *sent, "value": value}}),
                );
                *sent += 1;
            }
            if *sent == sizes.len() && calls.remove(&id).is_some() {
                publish(json!({"jsonrpc": "2.0", "id": id, "result": "done"}));
            }
        }
    }
}

/// Promise (Plugins): A client that does not take the items of its stream loses this stream, and no other client waits or
/// fails. The items that wait stay within their bound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_client_is_cut_alone() {
    let output = Publisher::new(256 << 20, u64::MAX);
    let subscription = output.subscribe();
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    tokio::spawn(plugin(theirs, output));
    let (peer, _writer) = Peer::new(StdinWriter::new(ours));
    let serving = tokio::spawn({
        let peer = peer.clone();
        async move { peer.serve(subscription, Arc::new(Nothing)).await }
    });
    let call =
        async |caller, sizes: Value| peer.request("call", &json!({"sizes": sizes}), "c", Some(caller)).await.unwrap();
    // The slow client's items fill the room.
    let mut slow = call("slow", json!([[100, 10], [42, 1_500_000], [400, 10]])).await;
    for _ in 0..100 {
        assert!(matches!(slow.step().await, Step::Item(_)));
    }
    while peer.0.backlog.bytes() < 42 * 1_500_000 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut fast = call("fast", json!([[12, 5_000_000]])).await;
    for at in 0..12 {
        let step = fast.step().await;
        assert!(matches!(step, Step::Item(_)), "{at}");
        let waiting = peer.0.backlog.bytes();
        assert!(waiting <= MAX_WAITING, "{waiting}");
    }
    assert!(matches!(fast.step().await, Step::Answer(Ok(_))));
    tokio::time::timeout(Duration::from_secs(20), slow.cut()).await.expect("the slow client is cut");
    assert!(matches!(slow.step().await, Step::Cut));
    let answer = tokio::time::timeout(Duration::from_secs(20), slow.step()).await.expect("the plugin continues");
    assert!(matches!(answer, Step::Answer(Ok(_))), "{answer:?}");
    assert_eq!(peer.0.backlog.bytes(), 0);
    let mut next = call("slow", json!([[1, 10]])).await;
    assert!(matches!(next.step().await, Step::Item(_)));
    assert!(!serving.is_finished(), "the plugin broke no rule");
    serving.abort();
}

/// Promise (Plugins): A plugin that sends beyond its credit is ended, also if no caller takes the items.
#[tokio::test]
async fn items_beyond_the_credit_are_a_flood() {
    for caller in [None, Some("slow")] {
        let output = Publisher::new(1 << 20, u64::MAX);
        let subscription = output.subscribe();
        // Nothing reads, so no acknowledgement is sent.
        let (ours, _theirs) = tokio::io::duplex(1 << 20);
        let (peer, _writer) = Peer::new(StdinWriter::new(ours));
        let request = peer.request("call", &json!({}), "c", caller).await.unwrap();
        // Without the task that acknowledges discarded items, the credit stays as it is.
        peer.0.waiters.lock().get_mut(&request.id).unwrap().discarded = Some(watch::channel(0).0);
        for seq in 0..=STREAM_CREDIT {
            let params = json!({"id": request.id, "seq": seq, "value": 1});
            let message = json!({"jsonrpc": "2.0", "method": "$/stream", "params": params});
            output.publish(OutputStream::Stdout, encode(message.to_string().as_bytes()));
        }
        let broken = peer.serve(subscription, Arc::new(Nothing)).await;
        assert_eq!(broken, Some(Violation::Flood(TOO_MANY_ITEMS)), "{caller:?}");
    }
}
