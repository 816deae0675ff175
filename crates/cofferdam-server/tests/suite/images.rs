//! Images of the host, of a double of the image store.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result, Retry};
use cofferdam_server::client::Content;
use cofferdam_server::{
    AddedImage, AddedImages, HostImage, HostImageConfig, HostImageDetails, HostImageList, HostImages, RemovedImages,
    Scope, ServerConfig,
};
use cofferdam_util::sha256;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::support::{Method, Over, bounds, get, start_with};

/// A host with the image `base:1`, whose registry has it, too.
#[derive(Debug)]
pub struct OneImage {
    /// The calls that change images.
    calls: Mutex<Vec<String>>,
    /// The permits of pulls.
    pulls: Semaphore,
}

impl Default for OneImage {
    fn default() -> Self {
        Self { calls: Mutex::default(), pulls: Semaphore::new(Semaphore::MAX_PERMITS) }
    }
}

impl OneImage {
    fn image() -> HostImage {
        HostImage {
            names: vec!["base:1".to_owned()],
            digest: "sha256:0".to_owned(),
            size: 7,
            stored: 3,
            used: Some(5),
            in_use: Some(true),
        }
    }

    fn find(name: &str) -> Result<()> {
        match name {
            "base:1" => Ok(()),
            "../x" => Err(Error::invalid("read image name", "'../x' is not a name of an image")),
            "private:1" => {
                let source = std::io::Error::other("cannot read /secret");
                Err(Error::new(ErrorKind::Io, "use images", "the server cannot use its image store")
                    .with_source(source))
            }
            _ => Err(Error::new(ErrorKind::NotFound, "find image", format!("there is no image '{name}'"))
                .with_remedy("pull it")),
        }
    }

    fn record(&self, call: impl Into<String>) {
        self.calls.lock().push(call.into());
    }
}

fn added(name: &str, digest: String) -> AddedImages {
    AddedImages { images: vec![AddedImage { names: vec![name.to_owned()], digest, dropped: None }] }
}

#[async_trait::async_trait]
impl HostImages for OneImage {
    async fn images(&self) -> Result<HostImageList> {
        Ok(HostImageList { images: vec![Self::image()], size: 7, max_size: 100 })
    }

    async fn inspect(&self, name: &str) -> Result<HostImageDetails> {
        Self::find(name)?;
        Ok(HostImageDetails {
            image: Self::image(),
            config_digest: "sha256:1".to_owned(),
            config: HostImageConfig { cmd: vec!["sh".to_owned()], ..HostImageConfig::default() },
            layers: Vec::new(),
            dropped: None,
        })
    }

    async fn pull(&self, name: &str) -> Result<AddedImages> {
        self.record(format!("begin {name}"));
        self.pulls.acquire().await.unwrap().forget();
        if name == "unreachable:1" {
            let error = Error::new(ErrorKind::Unavailable, "pull image", "cannot connect to the registry");
            return Err(error.with_retry(Retry::MayHelp).with_remedy("check its name and the network"));
        }
        Self::find(name)?;
        self.record(format!("pulled {name}"));
        Ok(added(name, "sha256:0".to_owned()))
    }

    async fn spool(&self) -> Result<File> {
        self.record("spool");
        Ok(tempfile::tempfile().unwrap())
    }

    async fn load(&self, mut archive: File, name: Option<&str>) -> Result<AddedImages> {
        archive.seek(SeekFrom::Start(0)).unwrap();
        Ok(added(name.unwrap_or("own:1"), sha256::of_reader(archive).unwrap()))
    }

    async fn prune(&self, unused_for: Option<Duration>) -> Result<RemovedImages> {
        self.record(format!("prune {unused_for:?}"));
        Ok(RemovedImages { freed: 9, ..RemovedImages::default() })
    }

    async fn remove(&self, name: &str) -> Result<RemovedImages> {
        Self::find(name)?;
        self.record(format!("remove {name}"));
        Ok(RemovedImages { names: vec![name.to_owned()], ..RemovedImages::default() })
    }
}

/// Sends a request without a body, and returns the document of the answer.
async fn call(client: &cofferdam_server::client::Client, method: Method, path: &str) -> Result<Value> {
    client.call(method, path, None::<&()>).await
}

/// Promise (Server): A tenant sees the images of the host only if the operator lets tenants choose one, and never when
/// others used them. An administrator always sees them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_are_shown_if_tenants_may_choose_one() {
    for allowed in [false, true] {
        let server = start_with(Over::Tls, bounds(), |config| config.policy.images = allowed).await;
        let (tenant, _) = server.keyed("acme", &[Scope::SandboxesRead]).await;
        let (admin, _) = server.keyed("ops", &[Scope::SandboxesRead, Scope::Admin]).await;
        let own = json!({ "names": ["base:1"], "digest": "sha256:0", "size": 7, "stored": 3 });
        let mut whole = own.clone();
        (whole["used"], whole["in_use"]) = (json!(5), json!(true));
        let listed = get(&admin, "/v1/images").await.unwrap();
        assert_eq!(listed, json!({ "images": [whole], "next": null, "size": 7, "max_size": 100 }));
        let details = get(&admin, "/v1/images/inspect?name=base:1").await.unwrap();
        assert_eq!((&details["used"], &details["config"]["cmd"]), (&json!(5), &json!(["sh"])));
        for path in ["/v1/images", "/v1/images/inspect?name=base:1"] {
            match (allowed, get(&tenant, path).await) {
                (false, refused) => assert_eq!(refused.unwrap_err().kind(), ErrorKind::Denied),
                (true, shown) => {
                    let shown = shown.unwrap();
                    let image = shown.pointer("/images/0").unwrap_or(&shown);
                    assert!(image["used"].is_null() && image["in_use"].is_null(), "{shown}");
                    assert!(image["digest"] == "sha256:0" && shown["max_size"].is_null(), "{shown}");
                }
            }
        }
        server.stop().await;
    }
}

/// Promise (Server): An administrator pulls, loads, prunes and removes images of the host. Other callers do not. Failures
/// have their kind and remedy, and name no files of the host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn administrators_manage_images() {
    let images = Arc::new(OneImage::default());
    let change = |config: &mut ServerConfig| config.images = Some(Arc::clone(&images) as _);
    let server = start_with(Over::Tls, bounds(), change).await;
    let (admin, key) = server.keyed("ops", &[Scope::Admin]).await;
    let pulled = call(&admin, Method::POST, "/v1/images/pull?name=base:1").await.unwrap();
    assert_eq!(pulled, json!({ "images": [{ "names": ["base:1"], "digest": "sha256:0", "dropped": null }] }));
    for (query, unused_for) in [("", "None"), ("?older_than=720h", "Some(2592000s)"), ("?older_than=5", "Some(5s)")] {
        let pruned = call(&admin, Method::POST, &format!("/v1/images/prune{query}")).await.unwrap();
        assert_eq!(pruned, json!({ "names": [], "images": [], "freed": 9, "deferred": false }));
        assert_eq!(images.calls.lock().pop().unwrap(), format!("prune {unused_for}"));
    }
    let removed = call(&admin, Method::DELETE, "/v1/images?name=base%3A1").await.unwrap();
    assert_eq!(removed["names"], json!(["base:1"]));
    assert_eq!(*images.calls.lock(), ["begin base:1", "pulled base:1", "remove base:1"]);
    let audited = get(&admin, "/v1/admin/audit?kind=call&limit=1").await.unwrap();
    let record = &audited["lines"][0]["record"];
    assert_eq!((&record["method"], &record["endpoint"]), (&json!("DELETE"), &json!("/v1/images")), "{audited}");
    assert_eq!((&record["key"], &record["status"]), (&json!(key), &json!(200)), "{audited}");
    let audited = get(&admin, "/v1/admin/audit?kind=action&limit=100").await.unwrap();
    let mut actions: Vec<_> = audited["lines"].as_array().unwrap().iter().map(|line| &line["record"]).collect();
    actions.sort_by_key(|record| record["time"].to_string());
    let shown = |record: &Value| {
        assert_eq!(record["key"], json!(key), "{record}");
        let text = |name: &str| record[name].as_str().unwrap_or("-").to_owned();
        ["action", "state", "image", "digest"].map(text).join(" ")
    };
    let expected = ["image-pull begun base:1 -", "image-pull ended base:1 sha256:0"];
    assert_eq!(actions.iter().take(2).map(|record| shown(record)).collect::<Vec<_>>(), expected);
    let last: Vec<_> = actions.iter().rev().take(2).map(|record| shown(record)).collect();
    assert_eq!(last, ["image-rm ended base:1 -", "image-rm begun base:1 -"]);
    assert_eq!(actions.len(), 10, "{audited}");

    for (method, path, kind, remedy) in [
        (Method::POST, "/v1/images/pull?name=unreachable:1", ErrorKind::Unavailable, Some("check its name")),
        (Method::POST, "/v1/images/pull?name=none", ErrorKind::NotFound, Some("pull it")),
        (Method::POST, "/v1/images/pull?name=../x", ErrorKind::InvalidInput, None),
        (Method::POST, "/v1/images/pull", ErrorKind::InvalidInput, None),
        (Method::POST, "/v1/images/prune?older_than=soon", ErrorKind::InvalidInput, None),
        (Method::POST, "/v1/images/prune?name=base:1", ErrorKind::InvalidInput, None),
        (Method::DELETE, "/v1/images?name=none", ErrorKind::NotFound, Some("pull it")),
        (Method::DELETE, "/v1/images?name=private:1", ErrorKind::Io, None),
    ] {
        let error = call(&admin, method.clone(), path).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{method} {path}: {error}");
        assert!(error.remedy().unwrap_or_default().starts_with(remedy.unwrap_or_default()), "{path}: {error:?}");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }
    let before = images.calls.lock().clone();
    let others: Vec<_> = Scope::ALL.iter().copied().filter(|scope| *scope != Scope::Admin).collect();
    let (tenant, _) = server.keyed("acme", &others).await;
    for (method, path) in [
        (Method::POST, "/v1/images/pull?name=base:1"),
        (Method::POST, "/v1/images/load"),
        (Method::POST, "/v1/images/prune"),
        (Method::DELETE, "/v1/images?name=base:1"),
    ] {
        assert_eq!(call(&tenant, method, path).await.unwrap_err().kind(), ErrorKind::Denied, "{path}");
    }
    assert_eq!(*images.calls.lock(), before);
    server.stop().await;
}

/// Promise (Server): An archive of images goes to a file of the image store, within the limit of the server and as it
/// arrives. One that is too large, or does not arrive, is not loaded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_of_images_is_bounded() {
    let mut small = bounds();
    (small.image, small.stall_time) = (300_000, Duration::from_millis(300));
    let server = start_with(Over::Tls, small, |_| {}).await;
    let (admin, _) = server.keyed("ops", &[Scope::Admin]).await;
    let bytes: Vec<u8> = (0..300_000u32).map(|at| (at * 7) as u8).collect();
    for (query, name) in [("", "own:1"), ("?name=my/image:2", "my/image:2")] {
        let content = Content::Bytes(bytes.clone().into());
        let loaded: Value = admin.call_with(Method::POST, &format!("/v1/images/load{query}"), content).await.unwrap();
        let image = json!({ "names": [name], "digest": sha256::of(&bytes), "dropped": null });
        assert_eq!(loaded["images"], json!([image]));
    }
    let more = Content::Bytes([bytes.as_slice(), b"x"].concat().into());
    let error = admin.send(Method::POST, "/v1/images/load", more).await.unwrap_err();
    assert!(error.message().contains("larger than 300000 bytes"), "{error}");
    let (reader, writer) = tokio::io::duplex(64);
    let error = admin.send(Method::POST, "/v1/images/load", Content::reader(reader)).await.unwrap_err();
    assert!(error.message().contains("did not arrive in time"), "{error}");
    drop(writer);
    server.stop().await;
}

/// Promise (Server): A pull continues if its client leaves, and the pulls and loads of a tenant take turns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_continues_without_its_client() {
    let images = Arc::new(OneImage { pulls: Semaphore::new(0), ..OneImage::default() });
    let change = |config: &mut ServerConfig| config.images = Some(Arc::clone(&images) as _);
    let server = start_with(Over::Tls, bounds(), change).await;
    let (admin, _) = server.keyed("ops", &[Scope::Admin]).await;
    let wait = |count: usize| {
        let images = Arc::clone(&images);
        tokio::time::timeout(Duration::from_secs(20), async move {
            while images.calls.lock().len() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
    };
    {
        let leaving = call(&admin, Method::POST, "/v1/images/pull?name=base:1");
        tokio::select! {
            answer = leaving => panic!("{answer:?}"),
            begun = wait(1) => begun.unwrap(),
        }
    }
    let second = server.keyed("ops", &[Scope::Admin]).await.0;
    let load = tokio::spawn(async move {
        second.send(Method::POST, "/v1/images/load", Content::Bytes("x".into())).await.map(drop)
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(*images.calls.lock(), ["begin base:1"], "the load waits");
    images.pulls.add_permits(1);
    load.await.unwrap().unwrap();
    assert_eq!(*images.calls.lock(), ["begin base:1", "pulled base:1", "spool"]);
    server.stop().await;
}
