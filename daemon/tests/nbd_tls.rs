//! The daemon in front of NBD servers over TLS: qemu-nbd and nbdkit, with certificates that the
//! test makes; and what can't be right.

#[allow(dead_code, reason = "the other test has the rest")]
mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod nbd_server;
    pub mod program;
    pub mod wire;
}

use front_end::daemon::{Daemon, PROGRAM};
use front_end::driver::{FLUSH, FrontEnd, IN, OUT};
use front_end::nbd_server::Server;
use front_end::program::{Program, program};
use front_end::wire::Wire;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const MARK: [u8; 512] = [0xa5; 512];
/// Whom the server's certificate is for.
const NAME: &str = "storage.example";

/// One that signs.
struct Ca {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    fn new(name: &str) -> Ca {
        let mut asked = CertificateParams::new(Vec::new()).expect("no names");
        asked.distinguished_name.push(DnType::CommonName, name);
        asked.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = asked.self_signed(&key).expect("a certificate").pem();
        Ca { pem, issuer: Issuer::new(asked, key) }
    }

    /// Puts a certificate for this name into a folder, with its key.
    fn sign(&self, name: &str, folder: &Path, files: [&str; 2]) {
        let key = KeyPair::generate().expect("a key");
        let asked = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let signed = asked.signed_by(&key, &self.issuer).expect("a certificate");
        std::fs::write(folder.join(files[0]), signed.pem()).expect("it is written");
        std::fs::write(folder.join(files[1]), key.serialize_pem()).expect("it is written");
    }
}

/// The files of a server and of a client, each in a folder of its own as servers want them.
struct Files {
    folder: TempDir,
}

impl Files {
    /// For this name, by one who signs for both.
    fn new(name: &str) -> Files {
        let folder = tempfile::tempdir().expect("a folder");
        let ca = Ca::new("right");
        for side in ["server", "client"] {
            let own = folder.path().join(side);
            std::fs::create_dir(&own).expect("a folder");
            std::fs::write(own.join("ca-cert.pem"), &ca.pem).expect("it is written");
            let files = [format!("{side}-cert.pem"), format!("{side}-key.pem")];
            let name = if side == "server" { name } else { "client.example" };
            ca.sign(name, &own, [&files[0], &files[1]]);
        }
        let disk = std::fs::File::create(folder.path().join("disk"));
        disk.and_then(|file| file.set_len(1 << 20)).expect("a file");
        Files { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Signs one side's certificate by somebody whom the other one doesn't know.
    fn forge(&self, side: &str, name: &str) {
        let files = [format!("{side}-cert.pem"), format!("{side}-key.pem")];
        Ca::new("right").sign(name, &self.folder.path().join(side), [&files[0], &files[1]]);
    }

    fn uri(&self) -> String {
        format!("nbds+unix:///disk?socket={}", self.path("nbd"))
    }

    /// A disk with the client's files.
    fn toml(&self) -> String {
        let client = self.path("client");
        format!(
            "[disk.d]\nnbd = \"{}\"\nsocket = \"socket\"\n\
             tls = {{ ca = \"{client}/ca-cert.pem\", certificate = \"{client}/client-cert.pem\", \
             key = \"{client}/client-key.pem\", name = \"{NAME}\" }}\n\
             [host]\ncontrol = \"control\"\n",
            self.uri()
        )
    }

    /// What the program says that doesn't serve this.
    fn refused(&self, toml: &str) -> String {
        let file = self.folder.path().join("io.toml");
        std::fs::write(&file, toml).expect("it is written");
        let ran = Command::new(PROGRAM).arg("run").arg(file).output().expect("it runs");
        assert!(!ran.status.success());
        String::from_utf8(ran.stderr).expect("it is text")
    }

    fn expect(&self, toml: &str, part: &str) {
        let said = self.refused(toml);
        assert!(said.contains(part), "{said}");
    }

    fn qemu_nbd(&self) -> Program {
        self.qemu_nbd_as("NORMAL")
    }

    /// By what GnuTLS calls a priority.
    fn qemu_nbd_as(&self, priority: &str) -> Program {
        let _ = std::fs::remove_file(self.path("nbd"));
        let credentials = format!(
            "tls-creds-x509,id=tls,endpoint=server,verify-peer=yes,priority={priority},dir={}",
            self.path("server")
        );
        let (socket, disk) = (self.path("nbd"), self.path("disk"));
        let arguments = ["-f", "raw", "-t", "-e", "8", "-x", "disk", "-k", &socket];
        let with = ["--object", &credentials, "--tls-creds", "tls", &disk];
        program("qemu-nbd", &[&arguments[..], &with].concat(), Path::new(&socket))
    }
}

/// The server is killed and comes back, while the files of this side aren't there any more: the
/// sandbox wouldn't let them be read, either.
#[test]
#[ignore = "a step of its own in `exitless test`: it needs qemu-nbd"]
fn qemu_nbd_is_a_server_over_tls_and_is_reconnected_to() {
    let files = Files::new(NAME);
    let mut server = files.qemu_nbd();
    let daemon = Daemon::run(&files.toml());
    std::fs::remove_dir_all(files.path("client")).expect("they are there");
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, false);
    front.tries_disk();
    for round in 0..3 {
        drop(server);
        front.offer(OUT, 5, &[round; 512]);
        server = files.qemu_nbd();
        assert_eq!(front.answer(), 0);
        front.offer(IN, 5, &[0; 512]);
        assert_eq!((front.answer(), front.data()), (0, [round; 512]));
        front.offer(FLUSH, 0, &MARK);
        // The one on which it was answered may have been lost since.
        front.answer();
        front.tries_disk();
    }
    drop(server);
}

#[test]
#[ignore = "a step of its own in `exitless test`: it needs qemu-nbd"]
fn a_server_of_tls_1_2_is_used() {
    let files = Files::new(NAME);
    let _server = files.qemu_nbd_as("NORMAL:-VERS-TLS1.3");
    let daemon = Daemon::run(&files.toml());
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, false);
    front.tries_disk();
}

/// The new program reads the files again.
#[test]
#[ignore = "a step of its own in `exitless test`: it needs qemu-nbd"]
fn a_new_program_reaches_the_server_over_tls() {
    let files = Files::new(NAME);
    let _server = files.qemu_nbd();
    let mut daemon = Daemon::run(&files.toml());
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, true);
    front.tries_disk();
    daemon.upgrade();
    front.tries_disk();
    assert_eq!(daemon.said("the server is"), 0, "it never was gone");
    // One that doesn't trust it any more says so.
    let ca = files.path("client/ca-cert.pem");
    std::fs::write(&ca, Ca::new("other").pem).expect("it is written");
    daemon.upgrade();
    let why = format!("the server is gone: the server's certificate isn't signed by that of {ca}");
    daemon.wait_until_said(&why, 1);
}

/// Who serves can't read files, and is given those of TLS open; it makes its connections itself.
#[test]
#[ignore = "a step of its own in `exitless test`: it needs qemu-nbd"]
fn one_that_comes_later_is_reached_from_inside_the_sandbox() {
    let files = Files::new(NAME);
    let mut server = files.qemu_nbd();
    let daemon = Daemon::run(&format!(
        "[disk.a]\nram = \"1M\"\nsocket = \"a\"\n[host]\ncontrol = \"control\"\npaths = [\"{}\"]\n",
        files.folder.path().display()
    ));
    let toml = files.toml();
    let (later, _) = toml.split_once("[host]").expect("it has a host");
    std::fs::write(daemon.path("d.toml"), later).expect("it is written");
    let mut add = Command::new(PROGRAM);
    add.args(["add", "--control", &daemon.path("control"), &daemon.path("d.toml")]);
    assert!(add.status().expect("it runs").success());
    std::fs::remove_dir_all(files.path("client")).expect("they are there");
    let mut front = FrontEnd::new(Wire::connect(&daemon.path("socket")));
    front.set_up(0, false);
    front.tries_disk();
    assert_eq!(daemon.said("the server is"), 0, "it never was gone");
    drop(server);
    server = files.qemu_nbd();
    front.offer(IN, 1, &[0; 512]);
    assert_eq!((front.answer(), front.data()), (0, [1 ^ 0x5a; 512]));
    daemon.wait_until_said("the server is gone", 1);
    daemon.wait_until_said("the server is there again", 1);
    drop(server);
}

#[test]
#[ignore = "a step of its own in `exitless test`: it needs nbdkit"]
fn nbdkit_is_a_server_over_tls() {
    let files = Files::new(NAME);
    let (socket, folder) = (files.path("nbd"), files.path("server"));
    let folder = format!("--tls-certificates={folder}");
    let arguments =
        ["-f", "-U", &socket, "--tls=require", "--tls-verify-peer", &folder, "memory", "1M"];
    let _server = program("nbdkit", &arguments, Path::new(&socket));
    let daemon = Daemon::run(&files.toml());
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, false);
    front.tries_disk();
}

#[test]
#[ignore = "a step of its own in `exitless test`: it needs qemu-nbd"]
fn a_server_that_isnt_the_named_one_is_refused() {
    let files = Files::new("other.example");
    let server = files.qemu_nbd();
    files.expect(
        &files.toml(),
        "the server's certificate is for other.example, and not for storage.example",
    );
    drop(server);
    // By another one, and by another one of the same name. qemu-nbd doesn't start with a
    // certificate that its own CA hasn't signed.
    for name in ["other", "right"] {
        let forged = Ca::new(name);
        std::fs::write(files.path("server/ca-cert.pem"), &forged.pem).expect("it is written");
        forged.sign(NAME, Path::new(&files.path("server")), ["server-cert.pem", "server-key.pem"]);
        let _server = files.qemu_nbd();
        let ca = files.path("client/ca-cert.pem");
        let part = format!("the server's certificate isn't signed by that of {ca}");
        files.expect(&files.toml(), &part);
    }
}

#[test]
#[ignore = "a step of its own in `exitless test`: it needs qemu-nbd"]
fn a_server_refuses_who_has_no_certificate_or_another_ones() {
    let files = Files::new(NAME);
    let _server = files.qemu_nbd();
    files.forge("client", "client.example");
    files.expect(&files.toml(), "can't be used: the server");
    let (ca, uri) = (files.path("client/ca-cert.pem"), files.uri());
    let none = format!(
        "[disk.d]\nnbd = \"{uri}\"\nsocket = \"s\"\n\
         tls = {{ ca = \"{ca}\", name = \"{NAME}\" }}\n"
    );
    files.expect(&none, "can't be used: the server");
    let plain = format!("[disk.d]\nnbd = \"{}\"\nsocket = \"s\"\n", uri.replace("nbds", "nbd"));
    files.expect(&plain, "the server asks for TLS: write nbds://");
}

/// It says that it doesn't know of it, and what it serves isn't taken in the clear.
#[test]
fn a_server_without_tls_isnt_used() {
    let files = Files::new(NAME);
    let _server = Server::at(Path::new(&files.path("nbd")));
    files.expect(&files.toml(), "the server has no TLS: it doesn't know of it");
}

#[test]
fn files_that_are_wrong_are_named() {
    let files = Files::new(NAME);
    let (toml, path) = (files.toml(), |name: &str| files.path(name));
    let key = path("client/client-key.pem");
    let certificate = path("client/client-cert.pem");
    files.expect(
        &toml.replace("client/client-key.pem", "server/server-key.pem"),
        &format!(
            "the key in {} doesn't fit the certificate in {certificate}",
            path("server/server-key.pem")
        ),
    );
    files.expect(
        &toml.replace("client-key.pem", "client-cert.pem"),
        &format!("{certificate} has no private key without a password"),
    );
    let ca = path("client/ca-cert.pem");
    std::fs::write(&ca, "nothing").expect("it is written");
    files.expect(&toml, &format!("{ca} has no certificate"));
    std::fs::write(&ca, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        .expect("it is written");
    files.expect(&toml, &format!("{ca} has a certificate that can't be a CA's"));
    std::fs::remove_file(&ca).expect("it is there");
    files.expect(&toml, &format!("{ca} can't be read: No such file"));
    std::fs::remove_file(&key).expect("it is there");
    std::fs::write(&ca, Ca::new("other").pem).expect("it is written");
    files.expect(&toml, &format!("{key} can't be read: No such file"));
}

#[test]
fn what_doesnt_fit_together_is_said_with_its_line() {
    let files = Files::new(NAME);
    let says = |rest: &str, part: &str| {
        files.expect(&format!("[disk.d]\nsocket = \"s\"\n{rest}\n"), part);
    };
    says("nbd = \"nbds://h\"", "io.toml:1: [disk.d]: nbds://h is with TLS, and no CA is named");
    says("nbd = \"nbd://h\"\ntls = { ca = \"c\" }", "nbd://h is without TLS; write nbds://");
    says(
        "nbd = \"nbds+unix:///x?socket=s\"\ntls = { ca = \"c\" }",
        "doesn't say whom the server's certificate is to be for",
    );
    says("nbd = \"nbds://h\"\ntls = {}", "io.toml:4: [disk.d] tls: it has no `ca`");
    says("nbd = \"nbds://h\"\ntls = { ca = \"c\", key = \"k\" }", "`certificate` and `key` go");
    says(
        "nbd = \"nbds://h\"\ntls = { certificates = \"c\" }",
        "unknown key `certificates` of `tls`; did you mean",
    );
    says("nbd = \"nbds://h\"\ntls = { ca = \"c\", name = \"a b\" }", "tls.name: it is no name of");
    says("ram = \"1M\"\ntimeout = \"60s\"", "`timeout` is for `nbd` alone");
    says("nbd = \"nbd://h\"\ntimeout = \"1ms\"", "io.toml:4: [disk.d] timeout: a server's time");
}
