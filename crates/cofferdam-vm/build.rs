//! Compiles the keeper, a program without any library, which the crate contains.

#[path = "../cofferdam-linux/bare/compile.rs"]
mod compile;

fn main() {
    compile::program("keeper/main.rs", "cofferdam-vm-keeper");
}
