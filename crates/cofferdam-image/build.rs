//! Compiles the init of VMs, a program without any library, which images contain.

#[path = "../cofferdam-linux/bare/compile.rs"]
mod compile;

fn main() {
    if std::env::var_os("CARGO_FEATURE_DISK").is_some() {
        compile::program("init/main.rs", "cofferdam-vm-init");
    }
}
