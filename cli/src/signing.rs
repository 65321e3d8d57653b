//! Signatures on UEFI programs, for firmware that starts nothing else (Secure Boot).
//!
//! Guarantees: the key is read by the signing tool alone and is copied nowhere. Whose keys
//! firmware takes is set up in firmware; nothing here knows.

use crate::{context::Context, helper, needs};
use anyhow::{Context as _, Result, anyhow};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A key and its certificate, both PEM files.
#[derive(Clone, Debug)]
pub struct Signature {
    /// The private key.
    pub key: PathBuf,
    /// The certificate that firmware knows it by.
    pub certificate: PathBuf,
}

impl Signature {
    /// Whether it can be used; the first fault if not.
    pub fn check(&self, cx: &Context) -> Result<()> {
        readable(&self.key, Kind::Key).context("--sign")?;
        readable(&self.certificate, Kind::Certificate).context("--certificate")?;
        needs::signing(cx)?;
        belong_together(&self.key, &self.certificate).context("--certificate")
    }

    /// The program, signed.
    pub fn sign(&self, program: &[u8], cx: &Context) -> Result<Vec<u8>> {
        let folder = tempfile::tempdir().context("no temporary folder can be made")?;
        let (from, to) = (folder.path().join("unsigned.efi"), folder.path().join("signed.efi"));
        fs::write(&from, program).context("the program can't be written to a temporary file")?;
        let mut sbsign = Command::new("sbsign");
        sbsign.arg("--key").arg(&self.key).arg("--cert").arg(&self.certificate);
        sbsign.arg("--output").arg(&to).arg(&from);
        helper::run(&mut sbsign, "the signature", cx)?;
        fs::read(&to).context("the signed program can't be read")
    }
}

/// What a PEM file has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Key,
    Certificate,
}

/// Fails if the certificate is of another key, as far as that shows: a key with a password is left
/// to the signing tool.
fn belong_together(key: &Path, certificate: &Path) -> Result<()> {
    let own = public(&["pkey", "-passin", "pass:", "-pubout"], key);
    let certified = public(&["x509", "-pubkey", "-noout"], certificate);
    match (own, certified) {
        (Some(own), Some(certified)) if own != certified => Err(anyhow!(
            "{} isn't the certificate of {}: it has another public key",
            certificate.display(),
            key.display()
        )),
        _ => Ok(()),
    }
}

/// The public key of a file, in openssl's words; none if it can't say.
fn public(arguments: &[&str], path: &Path) -> Option<String> {
    let mut openssl = Command::new("openssl");
    let output = openssl.args(arguments).arg("-in").arg(path).stdin(Stdio::null()).output();
    let output = output.ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok().map(|key| key.trim().to_owned())
}

fn readable(path: &Path, kind: Kind) -> Result<()> {
    let name = path.display();
    if path.is_dir() {
        return Err(anyhow!("{name} is a folder; a PEM file is needed"));
    }
    // A key is no pipe: it is read by another program, and may be read twice.
    let text = fs::read(path).map_err(|error| anyhow!("{name} can't be read: {error}"))?;
    let text = String::from_utf8_lossy(&text);
    let begins: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("-----BEGIN ")).collect();
    let is = |end: &str| begins.iter().any(|begin| begin.ends_with(end));
    let (key, certificate) = (is("PRIVATE KEY-----"), is("CERTIFICATE-----"));
    match kind {
        _ if begins.is_empty() => Err(anyhow!(
            "{name} is no PEM file; `openssl x509 -inform DER` makes one of a certificate, `openssl pkey` of a key"
        )),
        Kind::Key if !key => Err(anyhow!(
            "{name} has no private key{}",
            if certificate { ", but a certificate" } else { "" }
        )),
        Kind::Certificate if !certificate => Err(anyhow!(
            "{name} has no certificate{}",
            if key { ", but a private key" } else { "" }
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_key_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let pem = folder.path().join("key.pem");
        fs::write(&pem, "# of mine\n-----BEGIN PRIVATE KEY-----\n").unwrap();
        let refused = |path: &Path| readable(path, Kind::Key).err().map(|error| error.to_string());
        assert_eq!(refused(&pem), None);
        fs::write(folder.path().join("der"), [0x30, 0x82]).unwrap();
        let said = refused(&folder.path().join("der")).unwrap();
        assert!(said.contains("der is no PEM file; `openssl x509 "), "{said}");
        assert!(refused(folder.path()).unwrap().contains("is a folder; a PEM file is needed"));
        let error = readable(&pem, Kind::Certificate).unwrap_err().to_string();
        assert!(error.ends_with("key.pem has no certificate, but a private key"), "{error}");
        let certificate = folder.path().join("cert.pem");
        fs::write(&certificate, "-----BEGIN CERTIFICATE-----\n").unwrap();
        assert!(refused(&certificate).unwrap().ends_with("has no private key, but a certificate"));
        let none = Signature { key: folder.path().join("no"), certificate: pem };
        let error = format!("{:#}", none.check(&Context::for_tests()).unwrap_err());
        assert!(error.starts_with("--sign: ") && error.contains("can't be read: No such"));
    }

    /// A key of the Edwards curve and its certificate, and another one's.
    #[test]
    fn a_certificate_of_another_key_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        for name in ["own", "other"] {
            let mut openssl = Command::new("openssl");
            openssl.args(["req", "-x509", "-newkey", "ed25519", "-nodes", "-subj", "/CN=x"]);
            openssl.arg("-keyout").arg(file(name)).arg("-out").arg(file(&format!("{name}.pem")));
            assert!(openssl.stderr(Stdio::null()).status().unwrap().success());
        }
        let of = |key: &str, certificate: &str| {
            belong_together(&file(key), &file(certificate)).err().map(|e| e.to_string())
        };
        assert_eq!(of("own", "own.pem"), None);
        let said = of("own", "other.pem").unwrap();
        assert!(said.contains("other.pem isn't the certificate of "), "{said}");
        // What openssl can't read is sbsign's to refuse.
        assert_eq!(of("nowhere", "own.pem"), None);
    }
}
