//! Build script: it compiles the agent, a program without any library, which the crate embeds.

#[path = "../cofferdam-linux/bare/compile.rs"]
mod compile;

fn main() {
    compile::program("agent/main.rs", "cofferdam-agent");
}
