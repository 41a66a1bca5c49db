//! Rebuilds the gateway when a file of the web console changes: the files are embedded.

fn main() {
    println!("cargo:rerun-if-changed=console");
}
