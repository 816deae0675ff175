//! Compiles the agent, a program without any library, which the crate carries inside.

#[path = "../cofferdam-linux/bare/compile.rs"]
mod compile;

fn main() {
    compile::program("agent/main.rs", "cofferdam-agent");
}
