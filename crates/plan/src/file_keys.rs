//! The keys of a VM's table, and those of `[host]`.

use super::{Error, Field, Places, Problem, Sidecores, parse_choice};
use crate::{AtEnd, GuestIommu, Host, OnReset, Protection, Vm, WithoutRemapping, parse_size};
use alloc::{borrow::ToOwned, string::String};

impl<'v> Field<'_, 'v, '_> {
    /// A key of a VM's table.
    pub(super) fn of_vm(&self, read: &mut Vm<String>, places: &mut Places) -> Result<(), Error> {
        match self.key {
            "cpus" => read.cpus = self.cores()?,
            "weight" => read.weight = self.weight()?,
            "limit" => read.limit = self.limit(places)?,
            "memory" => {
                let text = self.string("a size in quotes, such as \"1G\"")?;
                read.memory = self.within(parse_size(text))?;
            }
            "kernel" => read.kernel = self.path()?,
            "initrd" => read.initrd = Some(self.path()?),
            "cmdline" => {
                read.cmdline =
                    self.string("a text in quotes, such as \"console=ttyS0\"")?.to_owned();
            }
            "devices" => read.devices = self.devices()?,
            "disk" => read.disks = self.disks(&read.name, places)?,
            "network" => read.interfaces = self.interfaces(&read.name, places)?,
            "reset" => {
                let needed = "\"restart\" or \"stop\"";
                read.reset = self.one_of(&OnReset::ALL, needed, Problem::Reset)?;
            }
            "nested" => read.nested = self.flag()?,
            "iommu" => {
                let needed = "\"none\", \"virtio\", \"virtio-optimistic\", \"vt-d\", \"vt-d-optimistic\", \"amd-vi\" or \"amd-vi-optimistic\"";
                read.iommu = self.one_of(&GuestIommu::ALL, needed, Problem::GuestIommu)?;
            }
            _ => {
                let text = self.string("a policy in quotes, such as \"auto\"")?;
                read.interrupts = self.within(parse_choice(text))?;
            }
        }
        Ok(())
    }
    /// A key of `[host]`. `screen` becomes what is said of it, and where: the VMs may come later.
    pub(super) fn of_host(
        &self,
        read: &mut Host,
        screen: &mut Option<(usize, &'v str)>,
        sidecores: &mut Sidecores,
    ) -> Result<(), Error> {
        match self.key {
            "iommu_faults" => {
                let needed = "\"elsewhere\", \"nmi\" or \"limit\"";
                let unknown = Problem::Protection;
                read.iommu_faults = self.one_of(&Protection::ALL, needed, unknown)?;
            }
            "without_interrupt_remapping" => {
                let needed = "\"refuse\" or \"trust-every-guest\"";
                let unknown = Problem::WithoutRemapping;
                read.without_remapping = self.one_of(&WithoutRemapping::ALL, needed, unknown)?;
            }
            "sidecores" => *sidecores = self.sidecores()?,
            "whole_turns" => read.whole_turns = self.flag()?,
            "sidecore_latency" | "sidecore_rounds" => self.moving(&mut read.moving)?,
            "screen" => {
                let text = self.string("a VM's name in quotes, or \"all\"")?;
                *screen = Some((self.value.span().start, text));
            }
            _ => {
                let needed = "\"stay\", \"power-off\" or \"reset\"";
                read.at_end = self.one_of(&AtEnd::ALL, needed, Problem::AtEnd)?;
            }
        }
        Ok(())
    }
}
