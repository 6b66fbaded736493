//! Files that cannot be read to their end: FIFOs, and storage that does not answer.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use mq_testkit::free_port;
use nix::{
    sys::{
        signal::{Signal, kill},
        stat::Mode,
    },
    unistd::{Pid, mkfifo},
};

use crate::{
    program::{Broker, get, preloaded},
    raw::RawClients,
};

/// `ann`'s password is `pencil`; made by `mosquitto_passwd`.
const PASSWORDS: &str = "ann:$7$101$FZZ0UNgSFP8t2lxC$HnZt7dEpxtgrXAUGYtFCa+ZgSH3DaGu9eqP+6sRF1GFeIOcND243Nblmv4oxdSdxNUG+InsvCCeZY658jWztvw==\n";

fn fifo(path: &Path) {
    let _ = fs::remove_file(path);
    mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
}

fn hang_up(broker: &Broker) {
    let pid = Pid::from_raw(i32::try_from(broker.pid()).unwrap());
    kill(pid, Signal::SIGHUP).unwrap();
}

/// Waits until the log has this so often.
fn log_has(broker: &Broker, part: &str, times: usize) {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let log = fs::read_to_string(broker.file("log")).unwrap();
        if log.matches(part).count() >= times {
            return;
        }
        assert!(Instant::now() < until, "{part} in\n{log}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn serves(broker: &Broker, admin: u16) {
    let client = RawClients::new(&broker.url).connect("c", |_| {});
    assert!(client.is_some(), "it lets a client in");
    assert_eq!(get(admin, "/healthz").0, 200);
}

#[test]
fn a_watched_file_that_becomes_a_fifo_is_refused_by_name_and_the_broker_goes_on() {
    let admin = free_port();
    let configuration = format!(
        "[reload]\nwatch = true\n[auth]\npassword_file = \"FOLDER/passwords\"\nallow_anonymous = true\n\
         [admin]\nhttp = \"127.0.0.1:{admin}\"\n"
    );
    let files = [("passwords", PASSWORDS)];
    let mut broker = Broker::with_log("tcp", &configuration, &files);
    fifo(&broker.file("passwords"));
    log_has(&broker, "passwords: cannot be read: a FIFO, not", 1);
    serves(&broker, admin);
    hang_up(&broker);
    log_has(&broker, "passwords: cannot be read: a FIFO, not", 2);
    serves(&broker, admin);
    assert_eq!(broker.end_within(Duration::from_secs(20)), Some(0));
}

/// In front of open(2): the file `HANG_FILE` opens once the file `HANG_WHILE` is gone.
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int open_late(const char *path, int flags, mode_t mode) {
    const char *file = getenv("HANG_FILE"), *as_long_as = getenv("HANG_WHILE");
    if (file && as_long_as && strcmp(path, file) == 0)
        while (access(as_long_as, F_OK) == 0)
            usleep(10000);
    return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    return open_late(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    return open_late(path, flags, mode);
}
"#;

/// Starts a broker whose file `passwords`, in the folder that is returned, cannot be opened while the file `hangs` is
/// there. Returns its port for operators as well; `None`, and a skipped test, if there is no C compiler.
fn on_hanging_storage(watch: bool) -> Option<(tempfile::TempDir, Broker, u16)> {
    let storage = tempfile::tempdir().unwrap();
    preloaded(storage.path(), LIBRARY)?;
    let place = |name: &str| storage.path().join(name);
    fs::write(place("passwords"), PASSWORDS).unwrap();
    let text = |name: &str| place(name).to_str().unwrap().to_owned();
    let environment = [
        ("HANG_FILE", text("passwords")),
        ("HANG_WHILE", text("hangs")),
        ("LD_PRELOAD", text("library.so")),
    ];
    let environment = environment.map(|(name, value)| (name.to_owned(), value));
    let admin = free_port();
    let configuration = format!(
        "[reload]\nwatch = {watch}\n[auth]\npassword_file = {:?}\nallow_anonymous = true\n\
         [admin]\nhttp = \"127.0.0.1:{admin}\"\n",
        text("passwords")
    );
    let broker = Broker::with_environment("tcp", &configuration, &environment);
    Some((storage, broker, admin))
}

#[test]
fn a_read_that_fails_late_is_logged_without_another_signal() {
    let Some((storage, mut broker, _)) = on_hanging_storage(false) else {
        return;
    };
    let place = |name: &str| storage.path().join(name);
    fs::write(place("hangs"), "").unwrap();
    fs::write(place("passwords"), "ann:secret\n").unwrap();
    hang_up(&broker);
    log_has(&broker, "files not read in time", 1);
    fs::remove_file(place("hangs")).unwrap();
    log_has(&broker, "storage of the files answers again", 1);
    log_has(&broker, "reload: failed; nothing was changed", 1);
    assert_eq!(broker.end_within(Duration::from_secs(20)), Some(0));
}

#[test]
fn files_on_storage_that_hangs_stop_neither_clients_nor_operators_nor_the_end() {
    let Some((storage, mut broker, admin)) = on_hanging_storage(true) else {
        return;
    };
    let place = |name: &str| storage.path().join(name);
    fs::write(place("hangs"), "").unwrap();
    hang_up(&broker);
    serves(&broker, admin);
    log_has(&broker, "files not read in time", 1);
    hang_up(&broker);
    log_has(&broker, "ignored while an earlier read", 1);
    serves(&broker, admin);

    fs::remove_file(place("hangs")).unwrap();
    log_has(&broker, "storage of the files answers again", 1);
    fs::write(place("hangs"), "").unwrap();
    hang_up(&broker);
    log_has(&broker, "files not read in time", 2);
    assert_eq!(broker.end_within(Duration::from_secs(20)), Some(0));
}

/// Ends a program that hangs, so that the test does not.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_fifo_in_the_place_of_a_file_is_one_line_and_exit_code_1_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    fs::write(place("cert"), made.cert.pem()).unwrap();
    fs::write(place("key"), made.signing_key.serialize_pem()).unwrap();
    fifo(&place("fifo"));
    let (good, fifo) = (|name: &str| format!("{:?}", place(name)), place("fifo"));
    let tls = |cert: &str, key: &str, more: &str| {
        format!("[tls]\ncertificate = {cert}\nkey = {key}\n{more}")
    };
    let bad = format!("{fifo:?}");
    for (name, text) in [
        ("certificate", tls(&bad, &good("key"), "")),
        ("key", tls(&good("cert"), &bad, "")),
        (
            "authority",
            tls(&good("cert"), &good("key"), &format!("client_ca = {bad}\n")),
        ),
        ("passwords", format!("[auth]\npassword_file = {bad}\n")),
        (
            "rules",
            format!("[auth]\nacl_file = {bad}\nallow_anonymous = true\n"),
        ),
        (
            "tokens",
            format!("[admin]\nhttp = \"127.0.0.1:0\"\ntoken_file = {bad}\n"),
        ),
        (
            "tickets",
            tls(
                &good("cert"),
                &good("key"),
                &format!("ticket_file = {bad}\n"),
            ),
        ),
        ("store", format!("[store]\npath = {bad}\n")),
        ("configuration", String::new()),
    ] {
        let config = if text.is_empty() {
            fifo.clone()
        } else {
            let scheme = if text.starts_with("[tls]") {
                "tls"
            } else {
                "tcp"
            };
            let listen = format!("listen = [\"{scheme}://127.0.0.1:0\"]\n");
            fs::write(place("config"), listen + &text).unwrap();
            place("config")
        };
        let child = Command::new(env!("CARGO_BIN_EXE_mqbroker"))
            .args(["--until-stdin-ends", "--config"])
            .arg(config)
            .stdin(Stdio::piped())
            .stderr(Stdio::from(fs::File::create(place("said")).unwrap()))
            .spawn();
        let mut child = Ends(child.unwrap());
        let until = Instant::now() + Duration::from_secs(10);
        let status = loop {
            if let Some(status) = child.0.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "{name}: it hangs");
            std::thread::sleep(Duration::from_millis(20));
        };
        let said = fs::read_to_string(place("said")).unwrap();
        assert_eq!(status.code(), Some(1), "{name}: {said}");
        let last = said.lines().last().unwrap_or_default();
        let reason = match name {
            "store" => "is no regular file",
            _ => "a FIFO, not",
        };
        for part in ["mqbroker: ", fifo.to_str().unwrap(), reason] {
            assert!(last.contains(part), "{name}: {part} in {said}");
        }
    }
}
