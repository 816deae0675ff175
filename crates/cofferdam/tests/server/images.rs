//! Images of a server: loaded, shown, used and removed from the command line.

use std::path::Path;
use std::process::Command;

use cofferdam_util::sha256;
use serde_json::json;

use super::{Server, json as parsed, outcome, program};

fn append(tar: &mut tar::Builder<Vec<u8>>, name: &str, bytes: &[u8], mode: u32) {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(mode);
    tar.append_data(&mut header, name.trim_start_matches('/'), bytes).unwrap();
}

/// Returns a layer with `cat` of this host, what it needs, and a file.
fn layer() -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    append(&mut tar, "readme", b"of the image\n", 0o644);
    let program = std::fs::canonicalize("/bin/cat").unwrap();
    append(&mut tar, "bin/cat", &std::fs::read(&program).unwrap(), 0o755);
    let listed = Command::new("ldd").arg(&program).output().unwrap().stdout;
    for library in String::from_utf8_lossy(&listed).split_whitespace().filter(|word| word.starts_with('/')) {
        append(&mut tar, library, &std::fs::read(library).unwrap(), 0o755);
    }
    tar.into_inner().unwrap()
}

/// Writes an archive like one of `docker save`.
fn save(path: &Path) {
    let layer = layer();
    let settings = json!({ "Env": ["PATH=/bin"], "Cmd": ["cat", "/readme"] });
    let contents = format!("sha256:{}", sha256::of(&layer));
    let rootfs = json!({ "type": "layers", "diff_ids": [contents] });
    let config = json!({ "os": "linux", "config": settings, "rootfs": rootfs }).to_string();
    let name = format!("{}.json", sha256::of(&config));
    let list = json!([{ "Config": name, "RepoTags": ["saved/tool:1"], "Layers": ["layer.tar"] }]).to_string();
    let mut tar = tar::Builder::new(Vec::new());
    for (name, bytes) in [(&*name, config.as_bytes()), ("layer.tar", &layer), ("manifest.json", list.as_bytes())] {
        append(&mut tar, name, bytes, 0o644);
    }
    std::fs::write(path, tar.into_inner().unwrap()).unwrap();
}

/// Promise (Server): An administrator loads, shows, prunes and removes the images of a server, and a client uses one, from
/// the command line, with the same documents as on the host.
#[test]
fn images_of_a_server_are_loaded_used_and_removed() {
    let server = Server::start(&["--allow-images", "--backend", "process"]);
    let here = server.state.path();
    save(&here.join("saved.tar"));
    let on = |words: &[&str]| server.ask(&[&["image"], words, &["--server", &server.url]].concat());
    let fails = |words: &[&str]| {
        let (code, _, stderr) = outcome(&mut server.client(&[&["image"], words, &["--on-server"]].concat()));
        assert_ne!(code, 0, "{words:?}");
        stderr
    };
    assert_eq!(on(&["ls"]), "");
    let loaded = on(&["load", "saved.tar"]);
    assert_eq!(loaded, "loaded saved/tool:1; use it: cofferdam create --image saved/tool:1 ...\n");
    let loaded = parsed(&on(&["load", "saved.tar", "--name", "other", "--json"]));
    assert_eq!(loaded["images"][0]["names"], json!(["other:latest"]));
    // The server has the store of its user.
    for words in [&["ls", "--json"][..], &["inspect", "saved/tool:1", "--json"], &["inspect", "other"], &["ls"]] {
        let own = outcome(program(here).arg("image").args(words)).1;
        let served = on(words);
        match words.contains(&"--json") {
            true => {
                let (mut own, served) = (parsed(&own), parsed(&served));
                own.as_object_mut().unwrap().remove("directory");
                assert_eq!(served, own, "{words:?}");
            }
            false => assert_eq!(served.lines().count(), own.lines().count(), "{words:?}: {served}"),
        }
    }
    assert_eq!(on(&["rm", "saved/tool:1"]), "removed saved/tool:1\nremoved 0 images, freed 0 bytes\n");
    let pruned = parsed(&on(&["prune", "--older-than", "0s", "--json"]));
    assert_eq!((&pruned["names"], pruned["images"].as_array().unwrap().len()), (&json!(["other:latest"]), 1));
    assert_eq!(parsed(&on(&["ls", "--json"]))["images"], json!([]));

    on(&["load", "saved.tar"]);
    server.ask(&["create", "--name", "box", "--image", "saved/tool:1"]);
    assert_eq!(server.ask(&["exec", "box", "--", "cat", "/readme"]), "of the image\n");
    assert!(on(&["ls"]).contains("in use"));
    let refused = fails(&["rm", "saved/tool:1"]);
    assert!(refused.contains("is used by a sandbox") && refused.contains("try: end its sandboxes first"), "{refused}");
    server.ask(&["rm", "box"]);
    assert!(on(&["rm", "saved/tool:1"]).starts_with("removed saved/tool:1\nremoved 1 images"));
    assert_eq!(parsed(&on(&["ls", "--json"]))["images"], json!([]));
    on(&["load", "saved.tar"]);
    server.ask(&["create", "--name", "again", "--image", "saved/tool:1"]);
    assert_eq!(server.ask(&["exec", "again", "--", "cat", "/readme"]), "of the image\n");

    std::fs::write(here.join("broken.tar"), [7; 2048]).unwrap();
    for (words, text) in [
        (&["rm", "other"][..], "has no image 'other'"),
        (&["inspect", "other"], "has no image 'other'"),
        (&["load", "broken.tar"], "the archive is not a tar"),
        (&["load", "missing.tar"], "cannot open the archive"),
        (&["load", "."], "try: pack it: tar"),
        (&["load", "saved.tar", "--name", "../x"], "is not a name of an image"),
        (&["pull", "localhost:1/none"], "cannot connect to the registry localhost:1"),
        (&["pull", "../x"], "is not a name of an image"),
    ] {
        let stderr = fails(words);
        assert!(stderr.contains(text) && !stderr.contains(&*here.join("cofferdam").to_string_lossy()), "{stderr}");
    }
    assert_eq!(server.stop(), Some(0));
}
