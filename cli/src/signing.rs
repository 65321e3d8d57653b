//! Signatures on UEFI programs, for firmware that starts nothing else (Secure Boot).
//!
//! Guarantees: the key is read by the signing tool alone and is copied nowhere. Whose keys
//! firmware takes is set up in firmware; nothing here knows.

use crate::{context::Context, helper, needs};
use anyhow::{Context as _, Result, anyhow};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
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
        for (option, path) in [("--sign", &self.key), ("--certificate", &self.certificate)] {
            readable(path).with_context(|| option.to_owned())?;
        }
        needs::signing(cx)
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

fn readable(path: &Path) -> Result<()> {
    let name = path.display();
    if path.is_dir() {
        return Err(anyhow!("{name} is a folder; a PEM file is needed"));
    }
    // A key is no pipe: it is read by another program, and may be read twice.
    let text = fs::read(path).map_err(|error| anyhow!("{name} can't be read: {error}"))?;
    let pem = text.windows(11).any(|part| part == b"-----BEGIN ");
    pem.then_some(()).ok_or_else(|| {
        anyhow!("{name} is no PEM file; `openssl x509 -inform DER` makes one of a certificate, `openssl pkey` of a key")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_key_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let pem = folder.path().join("key.pem");
        fs::write(&pem, "# of mine\n-----BEGIN PRIVATE KEY-----\n").unwrap();
        let refused = |path: &Path| readable(path).err().map(|error| error.to_string());
        assert_eq!(refused(&pem), None);
        fs::write(folder.path().join("der"), [0x30, 0x82]).unwrap();
        let said = refused(&folder.path().join("der")).unwrap();
        assert!(said.contains("der is no PEM file; `openssl x509 "), "{said}");
        assert!(refused(folder.path()).unwrap().contains("is a folder; a PEM file is needed"));
        let none = Signature { key: folder.path().join("no"), certificate: pem };
        let error = format!("{:#}", none.check(&Context::for_tests()).unwrap_err());
        assert!(error.starts_with("--sign: ") && error.contains("can't be read: No such"));
    }
}
