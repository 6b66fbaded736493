//! The corpora of the fuzz targets: a file for each, and in it a line for each input, in hexadecimal digits.

use std::fs;

/// Reads the inputs of a target's corpus.
pub(crate) fn inputs(target: &str) -> Vec<Vec<u8>> {
    let file = format!(
        "{}/../../fuzz/corpus/{target}.hex",
        env!("CARGO_MANIFEST_DIR")
    );
    let corpus = fs::read_to_string(file).expect("the corpus is part of the repository");
    corpus.lines().map(input).collect()
}

fn input(line: &str) -> Vec<u8> {
    let digits = line.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits
        .map(|pair| byte(pair).expect("hexadecimal digits"))
        .collect()
}
