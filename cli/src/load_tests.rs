//! Plans whose files are there, and plans whose aren't.

use super::*;
use tempfile::{TempDir, tempdir};

/// 32 bytes that a loader takes for a kernel: a multiboot 1 header with address
/// fields, loaded at 1 MiB.
pub fn tiny_kernel() -> Vec<u8> {
    let (magic, flags) = (0x1BAD_B002u32, 0x1_0000u32);
    let sum = 0u32.wrapping_sub(magic).wrapping_sub(flags);
    let fields = [magic, flags, sum, 0x10_0000, 0x10_0000, 0, 0, 0x10_0010];
    fields.map(u32::to_le_bytes).concat()
}

/// A directory with a `vm.toml` and a multiboot kernel `k`.
fn directory(text: &str) -> TempDir {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("vm.toml"), text).unwrap();
    fs::write(dir.path().join("k"), tiny_kernel()).unwrap();
    fs::write(dir.path().join("empty"), "").unwrap();
    fs::write(dir.path().join("junk"), [0; 40_000]).unwrap();
    dir
}

fn refusal(text: &str) -> String {
    let dir = directory(text);
    let error = plan(&dir.path().join("vm.toml")).expect_err(text);
    format!("{error:#}").replace(&format!("{}/", dir.path().display()), "")
}

#[test]
fn files_are_found_beside_the_plan() {
    let dir = directory("[vm.a]\nkernel='k'\ninitrd='junk'\n");
    let plan = plan(&dir.path().join("vm.toml")).unwrap();
    assert_eq!(format(&plan.vms[0]).unwrap(), Format::Multiboot);
    assert_eq!(plan.vms[0].initrd.as_ref().unwrap().bytes.len(), 40_000);
}

#[test]
fn files_that_serve_no_one_are_refused_by_name() {
    let disk = "[vm.a]\nkernel='k'\ndisk={size='1M',image='x'}\n[host]\nsidecores=1\n";
    assert_eq!(refusal(disk), "vm.toml:3: [vm.a] disk: `x` doesn't exist");
    assert_eq!(refusal("[vm.a]\nkernel='x'\n"), "vm.toml:2: [vm.a] kernel: `x` doesn't exist");
    let home = refusal("[vm.a]\nkernel='~/x'\n");
    assert!(home.contains("`~/x` doesn't exist; `~` means nothing here"), "{home}");
    assert_eq!(refusal("[vm.a]\nkernel='.'\n"), "vm.toml:2: [vm.a] kernel: `.` is a folder");
    assert_eq!(refusal("[vm.a]\nkernel='empty'\n"), "vm.toml:2: [vm.a] kernel: `empty` is empty");
    assert_eq!(
        refusal("[vm.a]\nkernel='k'\ninitrd='empty'\n"),
        "vm.toml:3: [vm.a] initrd: `empty` is empty"
    );
    assert!(
        refusal("[vm.a]\nkernel='junk'\n")
            .starts_with("vm.toml:2: [vm.a] kernel: junk can't be started: ")
    );
    assert!(
        refusal("[vm.a]\nkernel=3\n").starts_with("vm.toml:2: [vm.a] kernel: this is a number")
    );
}

#[test]
fn all_that_is_wrong_is_told() {
    let two = "[vm.a]\nkernel=3\nkernal='k'\n[vm.b]\nkernel='k'\nmemory='1'\n";
    let told = refusal(two);
    let begins = ["2: [vm.a] kernel: ", "\nexitless: vm.toml:3: ", "\nexitless: vm.toml:6: "];
    assert!(begins.iter().all(|begin| told.contains(begin)), "{told}");
    assert_eq!(
        refusal("[vm.a]\nkernel='x'\ninitrd='y'\n[vm.b]\nkernel='k'\ninitrd='.'\n"),
        "vm.toml:2: [vm.a] kernel: `x` doesn't exist\n\
         exitless: vm.toml:3: [vm.a] initrd: `y` doesn't exist\n\
         exitless: vm.toml:6: [vm.b] initrd: `.` is a folder"
    );
}

/// The pipe has no writer: opening it would never return.
#[test]
fn pipes_and_devices_are_refused_before_they_are_opened() {
    let dir = directory("");
    let pipe = dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for (name, shown) in [(pipe.display().to_string(), "pipe"), ("/dev/zero".into(), "/dev/zero")] {
        for text in
            [format!("[vm.a]\nkernel='{name}'\n"), format!("[vm.a]\nkernel='k'\ninitrd='{name}'\n")]
        {
            let error = refusal(&text);
            let said = format!("{shown}` is a device or a pipe, and a file is needed");
            assert!(error.ends_with(&said), "{error}");
        }
    }
}

#[test]
fn a_plan_that_is_no_text_is_told_to_be_none() {
    let dir = directory("");
    let path = dir.path().join("vm.toml");
    fs::write(&path, b"# A plan.\n[\xFF\xFE").unwrap();
    let error = plan(&path).unwrap_err().to_string();
    let says = "vm.toml:2: it can't be a plan: the byte 0xff is no text (UTF-8)";
    assert!(error.ends_with(says), "{error}");
}

/// What a plan with a sparse file `large` is told, and how much of the file was read.
fn refusal_of_large(text: &str, head: &[u8], size: u64) -> String {
    let dir = directory(text);
    let path = dir.path().join("large");
    fs::write(&path, head).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(size).unwrap();
    let error = plan(&dir.path().join("vm.toml")).unwrap_err();
    format!("{error:#}").replace(&format!("{}/", dir.path().display()), "")
}

/// Reading 100G would take minutes, if there were memory for it.
#[test]
fn what_is_too_long_is_not_read() {
    const LONG: u64 = 100 << 30;
    let unknown = loader::Error::UnknownFormat;
    assert_eq!(
        refusal_of_large("[vm.a]\nkernel='large'\nmemory='200G'\n", b"", LONG),
        format!("vm.toml:2: [vm.a] kernel: large can't be started: {unknown}")
    );
    assert_eq!(
        refusal_of_large("[vm.a]\nkernel='large'\n", &tiny_kernel(), LONG),
        "vm.toml:2: [vm.a] kernel: `large` has 107374182400 bytes, more than its VM's memory (1G)"
    );
    assert_eq!(
        refusal_of_large("[vm.a]\nkernel='k'\ninitrd='large'\n", b"", LONG),
        "vm.toml:3: [vm.a] initrd: `large` has 107374182400 bytes, more than its VM's memory (1G)"
    );
    let dir = directory("");
    let long = fs::File::options().write(true).open(dir.path().join("vm.toml")).unwrap();
    long.set_len(LONG).unwrap();
    let error = plan(&dir.path().join("vm.toml")).unwrap_err().to_string();
    assert!(error.ends_with("` has 107374182400 bytes, more than any plan has (1M)"), "{error}");
}

/// Whether the file alone has more bytes than there is memory, or only with the kernel.
#[test]
fn memory_that_is_too_little_is_told_with_what_is_enough() {
    for (size, enough) in [(63 << 20, "66M"), (64 << 20, "66M"), (65 << 20, "68M")] {
        let plan = "[vm.a]\nkernel='k'\ninitrd='large'\nmemory='64M'\n";
        let said = |more: &str| refusal_of_large(&format!("{plan}{more}"), b"", size);
        let expected = format!(
            "vm.toml:4: [vm.a] memory: 64M is too little for its kernel and initrd, which need \
             {enough} to be loaded; raise it to that, and by what the guest needs to run"
        );
        assert_eq!(said(""), expected);
        assert_eq!(said("nested=true\n"), format!("{expected}, with guests of its own"));
        let plan = plan.replace("64M", enough);
        let dir = directory(&plan);
        fs::File::create(dir.path().join("large")).unwrap().set_len(size).unwrap();
        assert!(self::plan(&dir.path().join("vm.toml")).is_ok(), "{plan}");
    }
    // What is left out has no line.
    let error = refusal_of_large("[vm.a]\nkernel='k'\ninitrd='large'\n", b"", 1 << 30);
    assert!(error.starts_with("vm.toml: [vm.a] memory: 1G is too little"), "{error}");
}

/// A kernel that fits without its initrd isn't to blame, and no memory is enough.
#[test]
fn an_initrd_that_fits_nowhere_is_named() {
    let plan = "[vm.a]\nkernel='k'\ninitrd='large'\nmemory='4G'\n";
    let error = refusal_of_large(plan, b"", 2 << 30);
    let said = "vm.toml:3: [vm.a] initrd: large can't be loaded: the initrd of 2147483648 bytes";
    assert!(error.starts_with(said), "{error}");
}

#[test]
fn a_file_of_another_kind_is_told_for_what_it_is() {
    let dir = directory("[vm.a]\nkernel='vm.toml'\n");
    let path = |name: &str| dir.path().join(name);
    let told = |name: &str| {
        let error = plan(&path(name)).expect_err(name);
        format!("{error:#}").replace(&format!("{}/", dir.path().display()), "")
    };
    let said = "vm.toml:2: [vm.a] kernel: vm.toml can't be started: it is a plan, and a kernel is";
    assert!(told("vm.toml").starts_with(said), "{}", told("vm.toml"));
    fs::write(path("packed"), b"\x1F\x8B\x08 and so on").unwrap();
    assert!(told("packed").starts_with("packed is packed (gzip), and a plan (vm.toml) is"));
    fs::write(path("b.toml"), "[vm.a]\nkernel='packed'\n").unwrap();
    let said = "b.toml:2: [vm.a] kernel: packed can't be started: it is packed (gzip)";
    assert!(told("b.toml").starts_with(said), "{}", told("b.toml"));
    // A program's own sentence would be about its program headers.
    let own = std::env::current_exe().unwrap();
    fs::write(path("c.toml"), format!("[vm.a]\nkernel='{}'\n", own.display())).unwrap();
    let said = "can't be started: it is a program of an operating system, and a kernel";
    assert!(told("c.toml").contains(said), "{}", told("c.toml"));
    assert!(plan(&own).unwrap_err().to_string().contains("is a program of an operating"));
    // Only of Linux it is known what a RAM disk is: another kernel gets any file.
    fs::write(path("d.toml"), "[vm.a]\nkernel='k'\ninitrd='d.toml'\n").unwrap();
    assert!(plan(&path("d.toml")).is_ok());
}

#[test]
fn a_kernel_in_the_place_of_a_plan_is_recognised() {
    let dir = directory("");
    let path = dir.path().join("k");
    let (error, name) = (plan(&path).unwrap_err().to_string(), path.display());
    assert_eq!(error, format!("{name} is a kernel and no plan; `--kernel {name}` runs it"));
}

#[test]
fn a_plan_that_is_no_file_is_refused_by_name() {
    let error = plan(Path::new("nowhere/vm.toml")).unwrap_err();
    assert_eq!(error.to_string(), "`nowhere/vm.toml` doesn't exist");
}
