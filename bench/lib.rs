//! Benches only; see `benches/`, `suts/` and `runs/`.
