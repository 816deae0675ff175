//! The documents of `cofferdam image --json`, which a server has, too.

use std::time::{SystemTime, UNIX_EPOCH};

use cofferdam::registry::image_store::{Added, Inspected, Listed, Removed, StoreError};
use cofferdam_image::store::ImageStore;
use serde_json::{Value, json};

/// Returns the images of a store, and its size.
pub fn list(store: &ImageStore) -> Result<Value, StoreError> {
    let rows: Vec<Value> = store.list()?.iter().map(listed).collect();
    let (size, max) = (store.size()?, store.options().max_bytes);
    Ok(json!({"images": rows, "size": size, "max_size": max, "directory": store.root().display().to_string()}))
}

/// Returns an image of a list.
fn listed(image: &Listed) -> Value {
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    json!({
        "names": texts(&image.names),
        "digest": image.manifest.to_string(),
        "size": image.bytes,
        "stored": seconds(image.stored),
        "used": seconds(image.used),
        "in_use": image.in_use,
    })
}

/// Returns an image with its settings and layers.
pub fn inspected(image: &Inspected) -> Value {
    let mut whole = listed(&image.listed);
    let settings = &image.settings;
    whole["config_digest"] = json!(image.config.to_string());
    whole["config"] = json!({
        "env": settings.env.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(),
        "user": settings.user,
        "working_dir": settings.working_dir,
        "entrypoint": settings.entrypoint,
        "cmd": settings.cmd,
        "labels": settings.labels,
    });
    let layers = image.layers.iter().map(
        |layer| json!({"digest": layer.blob.to_string(), "contents": layer.contents.to_string(), "size": layer.size}),
    );
    whole["layers"] = layers.collect();
    whole["dropped"] = json!(image.dropped);
    whole
}

/// Returns images that were added.
pub fn added(added: &[Added]) -> Value {
    let images = added.iter().map(
        |image| json!({"names": texts(&image.names), "digest": image.manifest.to_string(), "dropped": image.dropped}),
    );
    json!({"images": images.collect::<Vec<_>>()})
}

/// Returns the result of a removal.
pub fn removed(removed: &Removed) -> Value {
    json!({
        "names": texts(&removed.names),
        "images": texts(&removed.images),
        "freed": removed.freed,
        "deferred": removed.is_deferred,
    })
}

fn texts(all: &[impl ToString]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}
