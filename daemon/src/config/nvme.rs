//! A disk on an NVMe controller that is this program's: its address, and which bytes of it.

use serde::{Deserialize, Serialize};

/// A part of a controller's first namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nvme {
    /// On the PCI bus, as Linux writes it.
    pub address: String,
    /// The part's first byte.
    pub offset: u64,
    /// Its bytes. None: all that there are from there on.
    pub size: Option<u64>,
}

/// The address of a PCI device, such as `0000:01:00.0`; without a domain it is the first one's.
///
/// # Errors
///
/// A sentence.
pub fn pci_address(text: &str) -> Result<String, String> {
    let lower = text.to_ascii_lowercase();
    let whole = if lower.matches(':').count() == 1 { format!("0000:{lower}") } else { lower };
    let hex = |text: &str, digits| {
        text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let is_one = || {
        let (domain, rest) = whole.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (device, function) = rest.split_once('.')?;
        let is_hex = hex(domain, 4) && hex(bus, 2) && hex(device, 2) && hex(function, 1);
        let (device, function) = (u8::from_str_radix(device, 16), function.parse::<u8>());
        Some(is_hex && device.is_ok_and(|at| at < 32) && function.is_ok_and(|at| at < 8))
    };
    if is_one() == Some(true) {
        return Ok(whole);
    }
    Err(format!(
        "`{}` is no address of a PCI device; write one as `lspci -D` shows it, such as \
         \"0000:01:00.0\"",
        super::field::shown(text)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_as_linux_writes_it() {
        let whole = Ok("0000:0a:1f.7".to_owned());
        assert_eq!(pci_address("0000:0a:1f.7"), whole);
        assert_eq!(pci_address("0A:1F.7"), whole);
        for wrong in ["", "nvme0", "0000:00:20.0", "0000:00:00.8", "0:00:00.0", "/0:00:00.0"] {
            let said = pci_address(wrong).expect_err("it is none");
            assert!(said.contains("is no address of a PCI device"), "{said}");
        }
    }
}
