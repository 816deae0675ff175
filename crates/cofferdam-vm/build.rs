//! Compiles the init and the keeper, programs without any library, which the crate contains.

#[path = "../cofferdam-linux/bare/compile.rs"]
mod compile;

fn main() {
    compile::program("init/main.rs", "cofferdam-vm-init");
    compile::program("keeper/main.rs", "cofferdam-vm-keeper");
}
