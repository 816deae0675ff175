//! Compiles the init, a program without any library, which the crate contains.

#[path = "../cofferdam-linux/bare/compile.rs"]
mod compile;

fn main() {
    compile::program("jail-init/main.rs", "cofferdam-vm-jail-init");
}
