//! The links that ship with the program, from `profiles/net`.

/// Shipped profiles of one kind: names and texts.
pub(crate) type Presets = &'static [(&'static str, &'static str)];

macro_rules! presets {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../profiles/", $name, ".toml"))),)*]
    };
}

/// Files that shipped profiles name.
const FILES: Presets = &[("umts.trace", include_str!("../profiles/umts.trace"))];

/// Links between two hosts.
pub(crate) const LINKS: Presets = presets! {
    "w20/wifi" "w20/cellular" "w20/satellite"
    "s21/wired-1ms" "s21/wired-25ms" "s21/wired-100ms"
    "s22/wifi" "s22/cellular" "s22/satellite"
    "dl"
    "leo"
    "leo26"
    "lw26"
    "nb-iot"
    "sm22"
    "umts"
};

/// Radio channels that several hosts share.
pub(crate) const MEDIA: Presets = presets! { "s21/medium" };

/// Returns the text of a shipped profile. W20 and S21 used the same links, so `s21/wifi` is `w20/wifi`.
pub(crate) fn find(presets: Presets, name: &str) -> Option<&'static str> {
    let shared = match name {
        "s21/wifi" => "w20/wifi",
        "s21/cellular" => "w20/cellular",
        "s21/satellite" => "w20/satellite",
        other => other,
    };
    let found = presets.iter().find(|(known, _)| *known == shared);
    found.map(|(_, text)| *text)
}

/// Returns the text of a file that a shipped profile names.
pub(crate) fn find_file(name: &str) -> Option<&'static str> {
    let found = FILES.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text)
}

/// Returns the names of the presets.
pub(crate) fn names(presets: Presets) -> impl Iterator<Item = &'static str> {
    presets.iter().map(|(name, _)| *name)
}
