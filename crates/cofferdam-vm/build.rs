//! Compiles the init, a program without any library, which the crate carries inside.

#[path = "../cofferdam-linux/bare/compile.rs"]
mod compile;

fn main() {
    compile::program("init/main.rs", "cofferdam-vm-init");
}
