#!/.machine/usr/bin/python3
"""A fresh Debian's stand-ins, by the name under which this file is called.

machine.py gives the root the programs of a Debian as debootstrap makes it, and runs a script in it
apt        puts the programs of packages in place, out of those that the machine outside has
systemctl  starts a service as its unit says: folders, user, rights, readiness; reloads and stops it
"""
import os, shutil, signal, socket, subprocess, sys, time

MACHINE = "/.machine"
LOG = "/var/log/mqbroker.log"
PID = "/run/mqbroker.pid"


def packages():
    """What the machine outside has installed: each package's priority and the names that it depends on."""
    form = "${Package}\t${db:Status-Status}\t${Essential}\t${Priority}\t${Pre-Depends}, ${Depends}\t${Provides}\n"
    query = [MACHINE + "/usr/bin/dpkg-query", "--admindir=" + MACHINE + "/dpkg"]
    found = {}
    for line in subprocess.check_output(query + ["-W", "-f", form], text=True).splitlines():
        name, status, essential, priority, depends, provides = line.split("\t")
        if status == "installed":
            wants = [each.split("|")[0].split("(")[0].split(":")[0].strip() for each in depends.split(",")]
            is_base = essential == "yes" or priority in ("required", "important")
            found[name] = (is_base, [want for want in wants if want], query)
            for other in provides.split(","):
                found.setdefault(other.split("(")[0].strip(), (False, [name], query))
    return found


def put(names):
    """Puts packages and what they depend on in place: their programs, and their files of /etc."""
    known = packages()
    wanted = [name for name in known if known[name][0]] if names is None else list(names)
    done = set()
    while wanted:
        name = wanted.pop()
        if name in done:
            continue
        done.add(name)
        if name not in known:
            # A library under another name, for one; a package that was asked for has to be there.
            if names is not None and name in names:
                sys.exit("apt: the machine has no package " + name)
            continue
        _, depends, query = known[name]
        wanted += depends
        listed = subprocess.run(query + ["-L", name], capture_output=True, text=True).stdout
        for path in listed.splitlines():
            folder, file = os.path.split(path)
            if folder in ("/bin", "/sbin", "/usr/bin", "/usr/sbin"):
                at = "/usr/" + os.path.basename(folder) + "/" + file
                if not os.path.lexists(at):
                    os.symlink(MACHINE + at, at)
            elif path.startswith("/etc/") and os.path.isfile(MACHINE + path) and not os.path.lexists(path):
                os.makedirs(folder, exist_ok=True)
                shutil.copy(MACHINE + path, path)


def put_own(name):
    """Does what this project's Debian package does: its files, and its script."""
    os.symlink(MACHINE + "/programs/" + name, "/usr/bin/" + name)
    if name == "mqbroker":
        deploy = MACHINE + "/deploy/"
        os.makedirs("/etc/mqbroker", exist_ok=True)
        shutil.copy(deploy + "debian/mqbroker.toml", "/etc/mqbroker/mqbroker.toml")
        # As deploy/dist has it.
        unit = open(deploy + "systemd/mqbroker.service").read().replace("/usr/local/bin/", "/usr/bin/")
        open("/etc/systemd/system/mqbroker.service", "w").write(unit)
        subprocess.run(["sh", deploy + "debian/mqbroker/postinst", "configure"], check=True)
        Unit().start()


def apt():
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    if words[0] != "install":
        sys.exit("apt: only install is known")
    own = [word for word in words[1:] if word.endswith(".deb")]
    put([word for word in words[1:] if word not in own])
    for file in own:
        if not os.path.exists(file):
            sys.exit("apt: there is no " + file)
        put_own(os.path.basename(file).split("_")[0])


def start():
    put(None)
    for name, of in (("apt", "bin"), ("systemctl", "bin")):
        at = "/usr/" + of + "/" + name
        if os.path.lexists(at):
            os.remove(at)
        os.symlink(MACHINE + "/machine.py", at)
    # A shell is the first process, which takes over what its children leave.
    words = "timeout --kill-after=10 300 bash /.machine/script; exit $?"
    os.execv("/usr/bin/bash", ["bash", "-c", words])


class Unit:
    def __init__(self):
        self.fields = {}
        for line in open("/etc/systemd/system/mqbroker.service"):
            if "=" in line and not line.startswith("#"):
                name, value = line.rstrip("\n").split("=", 1)
                self.fields[name] = value

    def start(self):
        field = self.fields
        user, group = field["User"], field["Group"]
        for of, kind in (("/var/lib/", "State"), ("/run/", "Runtime")):
            folder = of + field[kind + "Directory"]
            os.makedirs(folder, exist_ok=True)
            os.chmod(folder, int(field[kind + "DirectoryMode"], 8))
            shutil.chown(folder, user, group)
        assert field["Type"] == "notify" and field["CapabilityBoundingSet"] == ""
        ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        at = "/run/notify"
        if os.path.exists(at):
            os.remove(at)
        ready.bind(at)
        os.chmod(at, 0o666)
        ready.settimeout(20)
        words = ["setpriv", "--reuid", user, "--regid", group, "--init-groups", "--no-new-privs",
            "--bounding-set=-all", "--inh-caps=-all"] + field["ExecStart"].split()
        # What systemd gives a service, and nothing of the shell that asks for it.
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
        program = subprocess.Popen(words, stdin=subprocess.DEVNULL, cwd="/", start_new_session=True,
            stdout=open(LOG, "a"), stderr=subprocess.STDOUT,
            env={"PATH": path, "LANG": "C.UTF-8", "NOTIFY_SOCKET": at, "RUST_LOG": "info"})
        open(PID, "w").write(str(program.pid))
        while b"READY=1" not in ready.recv(1000):
            pass

    def stop(self):
        pid = int(open(PID).read())
        os.remove(PID)
        os.kill(pid, signal.SIGTERM)
        for _ in range(400):
            try:
                if open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "Z":
                    break
            except OSError:
                break
            time.sleep(0.05)
        else:
            sys.exit("systemctl: the service does not end")
        # What the unit's RuntimeDirectory= means.
        shutil.rmtree("/run/" + self.fields["RuntimeDirectory"])

    def reload(self):
        command = self.fields["ExecReload"].replace("$MAINPID", open(PID).read())
        subprocess.run(command.split(), check=True)
        time.sleep(1)


def systemctl():
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    if words == ["daemon-reload"]:
        return
    asked, of = words
    if (asked, of) == ("disable", "mosquitto"):
        return  # It does not run.
    if of != "mqbroker":
        sys.exit("systemctl: there is no unit " + of)
    unit = Unit()
    is_running = os.path.exists(PID)
    if asked in ("restart", "stop") and is_running:
        unit.stop()
    if asked in ("start", "restart") or asked == "enable" and "--now" in sys.argv:
        if asked == "restart" or not is_running:
            unit.start()
    elif asked == "reload":
        unit.reload()
    elif asked != "stop":
        sys.exit("systemctl: unknown: " + asked)


{"machine.py": start, "apt": apt, "systemctl": systemctl}[os.path.basename(sys.argv[0])]()
