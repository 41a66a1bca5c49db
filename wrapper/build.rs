//! Arranges the statically linked wrapper, which is what is shipped: see `cold.ld`.

fn main() {
    println!("cargo:rerun-if-changed=cold.ld");
    let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if features.split(',').any(|feature| feature == "crt-static") {
        println!("cargo:rustc-link-arg-bins=-Wl,-T,{}/cold.ld", env!("CARGO_MANIFEST_DIR"));
    }
}
