//! `cofferdam volume` with the volumes of a server.

use cofferdam::configuration::Bound;
use cofferdam::{ByteSize, Result};
use cofferdam_server::client::{Client, Content, Method};
use cofferdam_server::rest::views::{CreateVolume, VolumeList, VolumeView};
use cofferdam_volume::Name;
use serde_json::json;

use super::client::encoded;
use super::connect;
use crate::args::{CreateVolumeArgs, VolumeCommand};
use crate::commands::block_on;
use crate::report::{self, Form};
use crate::style::Tone;
use crate::terminal::one_line;

/// Runs a command for volumes of a server. Returns `None` for one that is for volumes of this host.
pub fn main(command: &VolumeCommand) -> Option<u8> {
    let (on, form) = match command {
        VolumeCommand::Create(args) => (&args.on, Form::of(args.json)),
        VolumeCommand::Ls(args) => (&args.on, Form::of(args.json)),
        VolumeCommand::Inspect(args) => (&args.on, Form::of(args.json)),
        VolumeCommand::Rm(args) => (&args.on, Form::Text),
        VolumeCommand::Export(_) | VolumeCommand::Import(_) => return None,
    };
    if !on.on_server && !on.client.is_set() {
        return None;
    }
    let done = connect(&on.client).and_then(|client| {
        block_on(async {
            match command {
                VolumeCommand::Create(args) => create(&client, args, form).await,
                VolumeCommand::Ls(_) => all(&client).await.map(|all| list(&all, form)),
                VolumeCommand::Inspect(args) => inspect(&client, &args.name, form).await,
                VolumeCommand::Rm(args) => remove(&client, &args.names).await,
                VolumeCommand::Export(_) | VolumeCommand::Import(_) => Ok(0),
            }
        })
    });
    Some(report::finish(done, form))
}

fn path(name: &Name) -> String {
    format!("/v1/volumes/{}", encoded(name.as_str()))
}

async fn create(client: &Client, args: &CreateVolumeArgs, form: Form) -> Result<u8> {
    let size = match args.size {
        Some(Bound::Of(size)) => Some(size),
        Some(Bound::None) | None => None,
    };
    let unlimited = matches!(args.size, Some(Bound::None));
    let request = CreateVolume { name: args.name.to_string(), size, unlimited };
    let volume: VolumeView = client.call(Method::POST, "/v1/volumes", Some(&request)).await?;
    if form == Form::Json {
        return Ok(report::printed(report::document(&json!(volume)), 0));
    }
    report::remark(&format!("created the volume {} on the server", one_line(&volume.name)), Tone::Good);
    Ok(0)
}

async fn all(client: &Client) -> Result<Vec<VolumeView>> {
    let (mut all, mut path) = (Vec::new(), "/v1/volumes?limit=1000".to_owned());
    loop {
        let page: VolumeList = client.call(Method::GET, &path, None::<&()>).await?;
        all.extend(page.volumes);
        match page.next {
            Some(next) => path = format!("/v1/volumes?limit=1000&after={}", encoded(&next)),
            None => return Ok(all),
        }
    }
}

fn list(all: &[VolumeView], form: Form) -> u8 {
    if form == Form::Json {
        return report::printed(report::document(&json!({ "volumes": all })), 0);
    }
    let line = |one: &VolumeView| {
        let shown = |bytes: Option<u64>, none: &str| {
            bytes.map_or(none.to_owned(), |bytes| ByteSize::from_bytes(bytes).to_string())
        };
        let (used, size) = (shown(one.used, "?"), shown(one.size, "no limit"));
        let users = if one.in_use { "  in use" } else { "" };
        format!("{}\n", one_line(&format!("{:<24} {used:>10} of {size:<10}{users}", one.name)))
    };
    report::printed(report::print(&all.iter().map(line).collect::<String>()), 0)
}

async fn inspect(client: &Client, name: &Name, form: Form) -> Result<u8> {
    let view: VolumeView = client.call(Method::GET, &path(name), None::<&()>).await?;
    Ok(match form {
        Form::Json => report::printed(report::document(&json!(view)), 0),
        _ => list(&[view], form),
    })
}

async fn remove(client: &Client, names: &[Name]) -> Result<u8> {
    for name in names {
        client.send(Method::DELETE, &path(name), Content::None).await?;
    }
    Ok(0)
}
