//! What later steps of a whole test need, made while the first ones run: most of it is fetched, or
//! keeps one core busy.
//!
//! Nothing depends on it: what isn't there when a step needs it, that step makes, and says why it
//! can't.

use crate::{background::Job, server};
use exitless::{context::Context, qemu::Iommu, recipe};
use std::process::Command;

/// Guests by the recipes of `guests/linux`.
const GUESTS: [&str; 5] = ["disk", "workloads", "table", "nested", "vfio"];
/// Firmware and emulators by those of `cli`, below `build`.
const MACHINES: [(&str, &str, &[&str]); 2] =
    [("ovmf", "ovmf-trixie", &["trixie"]), ("bochs", "bochs", &[])];
/// The same for AMD-Vi, where the QEMU that is there won't do.
const QEMU: (&str, &str, &[&str]) = ("qemu", "qemu", &[]);

/// What is built, in the order in which steps need it; a quick test needs less.
pub fn built(cx: &Context, quick: bool) -> Vec<Job> {
    let image =
        |package, profile, features: &[&str]| cx.profile_command(package, profile, features);
    let mut commands = vec![
        image("hypervisor", "image", &[]),
        cx.loader_command(),
        server::packed_command(cx),
        image("kernels", "release", &[]),
        image("hypervisor", "planted", &["plant"]),
    ];
    if !quick {
        commands.push(image("hostile", "release", &[]));
        commands.push(server::packed_load_command(cx));
    }
    commands.into_iter().map(Job::ahead).collect()
}

/// What is fetched.
pub fn fetched(cx: &Context) -> Vec<Job> {
    let lacks = cx.qemu(Some(Iommu::VtD)).and_then(|qemu| qemu.lacks());
    let qemu = lacks.is_ok_and(|lacks| !lacks.is_empty()).then_some(QEMU);
    let guests = GUESTS.map(|name| recipe(cx, &format!("guests/linux/{name}"), &guest(name), &[]));
    let machines = MACHINES.into_iter().chain(qemu);
    let machines = machines.map(|(of, out, which)| recipe(cx, &format!("cli/{of}"), out, which));
    guests.into_iter().chain(machines).map(Job::ahead).collect()
}

fn guest(name: &str) -> String {
    format!("guest-{name}")
}

fn recipe(cx: &Context, folder: &str, out: &str, which: &[&str]) -> Command {
    let script = cx.root.join(folder).join("build");
    recipe::command(&script, &cx.root.join("build").join(out), which)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn each_recipe_is_there() {
        let jobs = fetched(&Context::for_tests());
        assert!(jobs.len() >= GUESTS.len() + MACHINES.len());
        for job in jobs {
            let script = Path::new(job.command.get_program());
            assert!(script.is_file(), "{}", script.display());
        }
    }
}
