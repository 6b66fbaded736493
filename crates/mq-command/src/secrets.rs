//! Passwords, which nothing that is printed shows, and the list of processes only for a moment.

use std::{borrow::Cow, ffi::OsString};

/// Placeholder for a password.
const HIDDEN: &str = "…";

/// Hides the password in each word that has a user and a password before an `@`.
pub(crate) fn hidden(text: &str) -> String {
    let words: Vec<_> = text.split(' ').map(hidden_in).collect();
    words.join(" ")
}

/// Hides the password of one word, which may be a whole URL with spaces in its password.
fn hidden_in(word: &str) -> Cow<'_, str> {
    let Some(at) = word.rfind('@') else {
        return Cow::Borrowed(word);
    };
    let begin = word[..at].find("://").map_or(0, |scheme| scheme + 3);
    match word[begin..at].find(':') {
        None => Cow::Borrowed(word),
        Some(colon) => {
            let user = &word[..=begin + colon];
            Cow::Owned(format!("{user}{HIDDEN}{}", &word[at..]))
        }
    }
}

/// Hides the passwords in a message about the command line, which may quote its words.
pub(crate) fn hidden_of(words: &[OsString], message: &str) -> String {
    let words = words.iter().filter_map(|word| word.to_str());
    let quoted = words.filter(|word| word.contains('@'));
    let message = quoted.fold(message.to_owned(), |message, word| {
        message.replace(word, &hidden_in(word))
    });
    hidden(&message)
}

/// Returns the words of the command line, which other users of the machine may read (`/proc/PID/cmdline`, ps). If there
/// is a password among them, the program starts itself again with it hidden: the same process, a millisecond later. The
/// words as they were are in its environment, which its own user alone may read.
pub(crate) fn command_line() -> Vec<OsString> {
    let words: Vec<_> = std::env::args_os().collect();
    #[cfg(unix)]
    if let Some(words) = again::words(&words) {
        return words;
    }
    words
}

#[cfg(unix)]
mod again {
    use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

    use super::{HIDDEN, hidden_in};

    /// Variable of the environment for the words before they were hidden, as JSON.
    const WORDS: &str = "MQ_HIDDEN_WORDS";

    /// Hides the password in `word`, if there is one; `before` is the word before it, such as `-P`.
    fn shown(before: &str, word: &str) -> String {
        match word {
            _ if before == "-P" || before == "--pw" => HIDDEN.to_owned(),
            _ if word.starts_with("--pw=") => format!("--pw={HIDDEN}"),
            _ if word.starts_with("-P") && word.len() > 2 => format!("-P{HIDDEN}"),
            _ => hidden_in(word).into_owned(),
        }
    }

    pub(super) fn all_shown(words: &[String]) -> Vec<String> {
        let before = words.iter().map(String::as_str);
        let before = std::iter::once("").chain(before);
        before
            .zip(words)
            .map(|(before, word)| shown(before, word))
            .collect()
    }

    /// Returns the words before they were hidden, in a process that was started again. Else starts the program again,
    /// if there is something to hide; where that fails, the words stay as they are.
    pub(super) fn words(given: &[OsString]) -> Option<Vec<OsString>> {
        let given: Option<Vec<_>> = given.iter().map(|word| word.to_str()).collect();
        let given: Vec<_> = given?.into_iter().map(str::to_owned).collect();
        let before = std::env::var(WORDS).ok();
        let before = before.and_then(|text| serde_json::from_str::<Vec<String>>(&text).ok());
        // The environment of another program may have them from another start.
        if let Some(before) = before.filter(|before| all_shown(before) == given) {
            return Some(before.into_iter().map(Into::into).collect());
        }
        let shown = all_shown(&given);
        if shown == given || given.get(1).is_some_and(|word| word == "bench") {
            return None;
        }
        let mut command = Command::new(std::env::current_exe().ok()?);
        command.arg0(&shown[0]).args(&shown[1..]);
        let _ = command
            .env(WORDS, serde_json::to_string(&given).ok()?)
            .exec();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_before_an_at_is_hidden_and_everything_else_stays() {
        for (text, expected) in [
            (
                "`mqtts://ann:pw@h:1/a` is wrong",
                "`mqtts://ann:…@h:1/a` is wrong",
            ),
            ("`ann:p:w@` has no place", "`ann:…@` has no place"),
            ("mqtt://ann@h: no, a:b", "mqtt://ann@h: no, a:b"),
            ("@plant: no such file", "@plant: no such file"),
            ("https://h:1 a  b\n", "https://h:1 a  b\n"),
        ] {
            assert_eq!(hidden(text), expected);
        }
        let words = ["mq", "sub", "mqtt://ann:p w@h"].map(OsString::from);
        let message = hidden_of(&words, "unexpected argument 'mqtt://ann:p w@h' found");
        assert_eq!(message, "unexpected argument 'mqtt://ann:…@h' found");
    }

    #[cfg(unix)]
    #[test]
    fn words_with_a_password_are_shown_without_it() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let shown = again::all_shown(&words(
            "mq sub -P pw --pw pw --pw=pw -Ppw mqtt://a:pw@h -p 1",
        ));
        let expected = "mq sub -P … --pw … --pw=… -P… mqtt://a:…@h -p 1";
        assert_eq!(shown, words(expected));
        // So the process is started again once.
        assert_eq!(again::all_shown(&shown), shown);
    }
}
