//! Components generated from text.

use std::path::Path;

use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

use crate::support::assemble;

/// The functions that they can call.
const PRELUDE: &str = include_str!("component.wat");

/// Adds metadata to a module, with the world of the interfaces that it targets.
pub(crate) fn meant_for(mut module: Vec<u8>, world: &str) -> Vec<u8> {
    let mut resolve = Resolve::default();
    let wit = Path::new(env!("CARGO_MANIFEST_DIR")).join("wit");
    let (package, _) = resolve.push_dir(wit).expect("the interfaces");
    let package = match world.split_once('{') {
        Some(_) => resolve.push_str("world.wit", &format!("package test:test;\nworld {world}")).expect("a world"),
        None => package,
    };
    let name = world.split(' ').next().filter(|_| world.contains('{')).unwrap_or(world);
    let world = resolve.select_world(&[package], Some(name)).expect("the world");
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).expect("metadata");
    module
}

/// Returns a command with this code as `run`, which leaves 0 for success and 1 for failure; `more` precedes it.
pub(crate) fn component_with(more: &str, code: &str) -> Vec<u8> {
    let run = format!("(func (export \"wasi:cli/run@0.2.12#run\") (result i32) (local $i i32) (local $n i64)\n{code})");
    let module = meant_for(assemble(&format!("(module {PRELUDE}\n{more}\n{run})")), "guest");
    let encoder = ComponentEncoder::default().module(&module).expect("a module");
    encoder.validate(true).encode().expect("a component")
}

pub(crate) fn component(code: &str) -> Vec<u8> {
    component_with("", code)
}

/// Places texts in data segments from 1024 on. Returns the declarations and, for each text, its address and length as
/// two constants.
pub(crate) fn texts(texts: &[&str]) -> (String, Vec<String>) {
    let (mut data, mut spans, mut at) = (String::new(), Vec::new(), 1024);
    for text in texts {
        data += &format!("(data (i32.const {at}) \"{text}\")\n");
        spans.push(format!("(i32.const {at}) (i32.const {})", text.len()));
        at += text.len() + 16;
    }
    (data, spans)
}
