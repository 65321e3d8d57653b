//! A place with what the examples of the docs need: their text, folders, a disk to boot from; and
//! programs in it, as a user without rights.
//!
//! Guarantees: programs that were started have ended when the value is gone, with all that they
//! started.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

/// The page.
pub fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples.md");
    fs::read_to_string(path).expect("the page is there")
}

/// The page's block that begins with this.
pub fn block(page: &str, kind: &str) -> String {
    let begin = format!("\n```{kind}\n");
    let (_, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("the page has no {kind}"));
    rest.split_once("```").expect("it ends").0.to_owned()
}

/// Debian's user `nobody`: libvirt has sessions of users, and root is none to it.
const NOBODY: u32 = 65534;

const BYTES: u64 = 16 << 20;
/// What BIOS runs of a disk, at 0x7c00: writes itself to the second sector, by its extended call,
/// and has BIOS boot from what comes next.
const BOOT: [u8; 46] = [
    0xfa, // cli
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0, // ds, es and ss are 0
    0xbc, 0x00, 0x7c, // mov sp, 0x7c00
    0xfb, 0xfc, // sti; cld
    0xb4, 0x43, 0xb0, 0x00, // mov ax, 0x4300: write; dl is the disk, as BIOS left it
    0xbe, 0x1e, 0x7c, // mov si, 0x7c1e: the packet below
    0xcd, 0x13, // int 0x13
    0x72, 0x02, // jc over the next: a disk that wasn't written isn't left
    0xcd, 0x18, // int 0x18: the next one
    0xf4, 0xeb, 0xfd, // hlt, for ever
    16, 0, 1, 0, // the packet: its length, one sector
    0x00, 0x7c, 0x00, 0x00, // from 0:0x7c00
    1, 0, 0, 0, 0, 0, 0, 0, // to the second
];

/// What GRUB does, started by UEFI: writes to a file of the disk, and switches the machine off.
const GRUB: &str = "set booted=uefi\nsave_env -f /grubenv booted\nhalt\n";

/// A folder of its own.
#[derive(Clone)]
pub struct Place {
    folder: Rc<tempfile::TempDir>,
    is_root: bool,
    is_uefi: bool,
}

impl Place {
    pub fn new() -> Place {
        let folder = Rc::new(tempfile::tempdir().expect("a folder"));
        let is_root = fs::metadata("/proc/self").expect("it is there").uid() == 0;
        let place = Place { folder, is_root, is_uefi: false };
        for name in ["", "srv", "run", "config", "config/libvirt", "runtime", "cache", "data"] {
            fs::create_dir_all(place.path(name)).expect("a folder");
            place.give(name);
        }
        let mut boot = [0; 512];
        boot[..BOOT.len()].copy_from_slice(&BOOT);
        [boot[510], boot[511]] = [0x55, 0xaa];
        let disk = fs::File::create(place.path("srv/web.img")).expect("a file");
        disk.write_all_at(&boot, 0).and_then(|()| disk.set_len(BYTES)).expect("a disk");
        place.give("srv/web.img");
        // Where the program is built others may not reach it.
        fs::copy(env!("CARGO_BIN_EXE_exitless-io"), place.path("exitless-io")).expect("a copy");
        place.write("io.toml", &place.text(&block(&page(), "toml")));
        place
    }

    /// Its disk has a file system with what UEFI firmware boots from it.
    pub fn with_uefi_disk() -> Place {
        let place = Place { is_uefi: true, ..Place::new() };
        let disk = place.path("srv/web.img");
        fs::write(&disk, []).expect("it is written");
        fs::File::options()
            .write(true)
            .open(&disk)
            .and_then(|file| file.set_len(BYTES))
            .expect("it grows");
        place.give("srv/web.img");
        place.write("grub.cfg", GRUB);
        let modules = ["fat", "part_msdos", "part_gpt", "loadenv", "halt"];
        let image = ["-O", "x86_64-efi", "-p", "/", "-c", "grub.cfg", "-o", "BOOTX64.EFI"];
        place.run("grub-mkimage", &[&image[..], &modules].concat());
        place.run("grub-editenv", &["grubenv", "create"]);
        place.run("mformat", &["-i", &disk, "::"]);
        place.run("mmd", &["-i", &disk, "::/EFI", "::/EFI/BOOT"]);
        place.run("mcopy", &["-i", &disk, "BOOTX64.EFI", "::/EFI/BOOT/"]);
        place.run("mcopy", &["-i", &disk, "grubenv", "::/grubenv"]);
        place
    }

    fn give(&self, name: &str) {
        if self.is_root {
            chown(self.path(name), Some(NOBODY), Some(NOBODY)).expect("root may");
        }
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    pub fn has(&self, name: &str) -> bool {
        Path::new(&self.path(name)).exists()
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("it is written");
        self.give(name);
    }

    /// A text of the page, with the folders of this place.
    pub fn text(&self, text: &str) -> String {
        let folders = [("/srv/exitless", "srv"), ("/run/exitless", "run")];
        let text = text.replace("/etc/exitless/io.toml", &self.path("io.toml"));
        folders.iter().fold(text, |text, (from, to)| text.replace(from, &self.path(to)))
    }

    /// The program as the page starts it, once it serves.
    pub fn daemon(&self) -> Started {
        let text = self.text(&block(&page(), "sh daemon"));
        let started = self.start("sh", &["-euc", &format!("exec {text}")]);
        ["run/control", "run/db-net.sock"].iter().fold(started, |it, name| it.until(self, name))
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(if self.is_root { "setpriv" } else { program });
        if self.is_root {
            let nobody = NOBODY.to_string();
            command.args(["--reuid", &nobody, "--regid", &nobody, "--clear-groups", program]);
        }
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}:/usr/sbin", self.path("")));
        command.env("HOME", self.path("")).env("LC_ALL", "C");
        for kind in ["config", "cache", "data"] {
            command.env(format!("XDG_{}_HOME", kind.to_uppercase()), self.path(kind));
        }
        command.env("XDG_RUNTIME_DIR", self.path("runtime"));
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// Runs it to its end, which must be a good one.
    pub fn run(&self, program: &str, arguments: &[&str]) {
        let ran = self.command(program, arguments).output().expect("it runs");
        assert!(ran.status.success(), "{program}: {}", String::from_utf8_lossy(&ran.stderr));
    }

    /// Starts it, as the first of a process group.
    pub fn start(&self, program: &str, arguments: &[&str]) -> Started {
        Started(self.command(program, arguments).process_group(0).spawn().expect("it starts"))
    }

    /// Whether what booted has written to the disk: its first sector is also its second, or its
    /// file says so.
    pub fn was_written(&self) -> bool {
        if self.is_uefi {
            let disk = self.path("srv/web.img");
            let read = self.command("mtype", &["-i", &disk, "::/grubenv"]).output();
            return read.expect("it runs").stdout.windows(12).any(|text| text == b"booted=uefi\n");
        }
        let disk = fs::read(self.path("srv/web.img")).expect("it is there");
        disk[..512] == disk[512..1024]
    }
}

/// A program that runs.
pub struct Started(Child);

impl Started {
    /// Once there is a file of this name.
    pub fn until(mut self, place: &Place, name: &str) -> Started {
        while !place.has(name) {
            assert_eq!(self.0.try_wait().expect("it is ours"), None, "it ended");
            std::thread::yield_now();
        }
        self
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.0.wait();
    }
}
