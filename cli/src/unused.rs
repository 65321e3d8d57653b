//! What a command line gives a run for controllers that its VMs must have.
//!
//! Guarantees: what [`Given::check`] accepts is of use to some VM. A disk image or a network
//! controller's model without such a controller would be taken without a word, and lost.

use anyhow::{Result, bail};

/// An option that is given once for each controller of a kind.
pub struct Given {
    /// The option.
    pub option: &'static str,
    /// The controller in a sentence.
    pub controller: &'static str,
    /// Its name without a number.
    pub name: &'static str,
}

/// Disk images.
pub const DISKS: Given = Given { option: "--disk", controller: "an NVMe controller", name: "nvme" };
/// Models of network controllers.
pub const NICS: Given = Given { option: "--nic", controller: "a network controller", name: "nic" };

impl Given {
    /// Fails if it was `given` more often than the VMs have controllers, `there` of them; with what
    /// would help, which is another thing if the VMs are described `in_plan`.
    pub fn check(&self, given: usize, there: usize, in_plan: bool) -> Result<()> {
        if given <= there {
            return Ok(());
        }
        let Given { option, controller, name } = self;
        let add = match in_plan {
            true => format!("add \"{name}{there}\" to some VM's devices"),
            false => format!("add --device {name}{there}"),
        };
        match there {
            0 => bail!("{option}: no VM has {controller}; {add}"),
            1 => bail!("{option}: {given} are given, and the machine has {name}0 alone; {add}"),
            n => bail!(
                "{option}: {given} are given, and the machine has {name}0 to {name}{}; {add}",
                n - 1
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_vm_can_use_is_refused_with_what_would_help() {
        let told = |of: &Given, given, there, in_plan| {
            of.check(given, there, in_plan).err().map(|e| e.to_string()).unwrap_or_default()
        };
        assert_eq!([told(&DISKS, 0, 0, false), told(&DISKS, 2, 2, false)], ["", ""]);
        let said = "--disk: no VM has an NVMe controller; add --device nvme0";
        assert_eq!(told(&DISKS, 1, 0, false), said);
        let said = "--nic: no VM has a network controller; add \"nic0\" to some VM's devices";
        assert_eq!(told(&NICS, 1, 0, true), said);
        let said = "--disk: 3 are given, and the machine has nvme0 alone; add --device nvme1";
        assert_eq!(told(&DISKS, 3, 1, false), said);
        let said = "--nic: 3 are given, and the machine has nic0 to nic1; add --device nic2";
        assert_eq!(told(&NICS, 3, 2, false), said);
    }
}
