//! `exitless image`: the boot image as a file, for a boot loader or for QEMU by hand.

use crate::{
    load,
    output::{self, Output},
    say::print,
};
use anyhow::Result;
use std::path::PathBuf;

const EXAMPLE: &str = "\
Boot it by hand, on the machine that `exitless run` would make:
  qemu-system-x86_64 -machine q35 -cpu max -smp 2 -m 2G -nodefaults \\
      -display none -device intel-iommu,intremap=on,eim=on -serial stdio \\
      -kernel HYPERVISOR -initrd IMAGE";

/// Pack a plan and its kernels into a boot image.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = crate::help::flow(EXAMPLE))]
pub struct Args {
    /// The plan
    #[arg(value_name = "VM.TOML")]
    file: PathBuf,
    /// Where to write the boot image
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

/// Writes the boot image.
pub fn image(args: &Args) -> Result<()> {
    let plan = load::plan(&args.file)?;
    let inputs = [(args.file.clone(), "the plan".to_owned())];
    output::apart_from("--output", &args.output, inputs.into_iter().chain(load::inputs(&plan)))?;
    let output = Output::claim(&args.output)?;
    let image = plan::image::build(&plan)?;
    output.write(&image)?;
    print(format_args!("{}: {} bytes\n", args.output.display(), image.len()))
}
