//! Links liblowbit.so. It is looked for in LOWBIT_LIB_DIR, else in the build folders of the checkout this crate lies
//! in.

use std::{env, path::PathBuf};

fn main() {
    println!("cargo:rerun-if-env-changed=LOWBIT_LIB_DIR");
    let checkout = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap()).join("../..");
    let named = env::var("LOWBIT_LIB_DIR").ok().map(PathBuf::from);
    let built = ["cuda", "release"].map(|preset| checkout.join("build").join(preset).join("lib"));
    let found = named.into_iter().chain(built).find(|dir| dir.join("liblowbit.so").is_file());
    match found {
        Some(dir) => {
            let dir = dir.canonicalize().unwrap();
            println!("cargo:rustc-link-search=native={}", dir.display());
            println!("cargo:rustc-link-arg=-Wl,-rpath,{}", dir.display());
        }
        None => println!("cargo:warning=liblowbit.so not found: run scripts/build.sh or set LOWBIT_LIB_DIR"),
    }
    println!("cargo:rustc-link-lib=dylib=lowbit");
}
