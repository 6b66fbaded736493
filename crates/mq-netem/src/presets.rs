//! The links that ship with the program, from `profiles/net`.

macro_rules! presets {
    ($($name:literal)*) => {
        const PRESETS: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../../profiles/net/", $name, ".toml"))),)*
        ];
    };
}

presets! {
    "w20/wifi" "w20/cellular" "w20/satellite"
    "s21/wired-1ms" "s21/wired-25ms" "s21/wired-100ms"
    "s22/wifi" "s22/cellular" "s22/satellite"
    "dl"
}

/// The text of a shipped profile. W20 and S21 used the same links, so `s21/wifi` is `w20/wifi`.
pub(crate) fn find(name: &str) -> Option<&'static str> {
    let shared = match name {
        "s21/wifi" => "w20/wifi",
        "s21/cellular" => "w20/cellular",
        "s21/satellite" => "w20/satellite",
        other => other,
    };
    let mut presets = PRESETS.iter();
    presets
        .find(|(known, _)| *known == shared)
        .map(|(_, text)| *text)
}

/// The names of all shipped profiles.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}
