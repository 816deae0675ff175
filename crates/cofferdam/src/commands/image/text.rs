//! The documents of `cofferdam image` as text. Those of a server are escaped.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cofferdam::ByteSize;
use cofferdam_image::store::Dropped;
use serde_json::Value;

use crate::args::ImageCommand;
use crate::report;
use crate::style::Tone;
use crate::terminal::{ago, one_line};

/// Number of digits of a digest in lists.
const DIGITS: usize = 12;

/// Returns the text of a document of a command. `user` is a command that uses an image.
pub fn of(command: &ImageCommand, document: &Value, user: &str) -> String {
    match command {
        ImageCommand::List { .. } => list(document),
        ImageCommand::Pull { .. } => added(document, "pulled", user),
        ImageCommand::Load { .. } => added(document, "loaded", user),
        ImageCommand::Import { .. } | ImageCommand::Build { .. } => added(document, "created", user),
        ImageCommand::Rm { .. } | ImageCommand::Prune { .. } => removed(document),
        ImageCommand::Inspect { .. } => inspected(document),
    }
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn words(value: &Value) -> Vec<&str> {
    array(value).iter().filter_map(Value::as_str).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn size(value: &Value) -> String {
    ByteSize::from_bytes(value.as_u64().unwrap_or_default()).to_string()
}

fn names(image: &Value) -> String {
    match words(&image["names"])[..] {
        [] => "(no name)".to_owned(),
        ref names => names.join(" "),
    }
}

fn dropped(image: &Value) -> Option<String> {
    let dropped: Dropped = serde_json::from_value(image["dropped"].clone()).ok()?;
    (!dropped.is_empty()).then(|| dropped.to_string())
}

// Writing to a string cannot fail.
fn list(document: &Value) -> String {
    let mut all = String::new();
    let images = array(&document["images"]);
    for image in images {
        let digest: String = text(&image["digest"]).trim_start_matches("sha256:").chars().take(DIGITS).collect();
        let used = match (image["in_use"].as_bool(), image["used"].as_u64()) {
            (Some(true), _) => "in use".to_owned(),
            (_, Some(used)) => {
                let used = UNIX_EPOCH.checked_add(Duration::from_secs(used)).unwrap_or(UNIX_EPOCH);
                ago(SystemTime::now().duration_since(used).unwrap_or_default())
            }
            (_, None) => String::new(),
        };
        let row = format!("{digest}  {:>8}  {used:>9}  {}", size(&image["size"]), names(image));
        let _ = writeln!(all, "{}", one_line(&row));
    }
    if !images.is_empty() && document["max_size"].is_u64() {
        let _ = writeln!(all, "{} of {} are used", size(&document["size"]), size(&document["max_size"]));
    }
    all
}

fn added(document: &Value, verb: &str, user: &str) -> String {
    let mut all = String::new();
    for image in array(&document["images"]) {
        for name in words(&image["names"]) {
            let name = one_line(name);
            let _ = writeln!(all, "{verb} {name}; use it: cofferdam {user} --image {name} ...");
        }
        if let Some(dropped) = dropped(image).filter(|_| verb != "created") {
            report::remark(&format!("not kept of its files: {dropped}"), Tone::Warning);
        }
    }
    all
}

fn inspected(image: &Value) -> String {
    let mut all = String::new();
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(all, "{name:<12} {}", one_line(value));
    };
    let config = &image["config"];
    row("names", &names(image));
    row("digest", text(&image["digest"]));
    row("id", text(&image["config_digest"]));
    row("size", &size(&image["size"]));
    row("user", text(&config["user"]));
    row("directory", text(&config["working_dir"]));
    row("entrypoint", &words(&config["entrypoint"]).join(" "));
    row("command", &words(&config["cmd"]).join(" "));
    for variable in words(&config["env"]) {
        row("variable", variable);
    }
    for (name, value) in config["labels"].as_object().into_iter().flatten() {
        row("label", &format!("{name}={}", text(value)));
    }
    if let Some(dropped) = dropped(image) {
        row("not kept", &dropped);
    }
    for layer in array(&image["layers"]) {
        row("layer", &format!("{}  {}", text(&layer["contents"]), size(&layer["size"])));
    }
    all
}

fn removed(document: &Value) -> String {
    let mut all = String::new();
    for name in words(&document["names"]) {
        let _ = writeln!(all, "removed {}", one_line(name));
    }
    let _ = writeln!(all, "removed {} images, freed {}", array(&document["images"]).len(), size(&document["freed"]));
    if document["deferred"] == true {
        let _ = writeln!(all, "another process adds an image; the next removal frees the rest");
    }
    all
}
